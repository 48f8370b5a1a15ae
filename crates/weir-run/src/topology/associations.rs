//! The `[[esp]]` and `[[sa]]` tables: stages that seal and open, and their associations without the keys.
//!
//! Rule: the values of an association's table are checked here; whether its key file is there, is nobody else's to read and has a key, is
//! checked by the process that runs it. SPIs up to 255 are reserved, and of two inbound ones of a stage nobody could tell which is meant.
//!
//! Source: RFC 4303 section 2.1.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use weir_core::dispatch::protocol::Mode;
use weir_core::units::{parse_size_bytes, parse_time_ns, time_text};
use weir_ipsec::algorithm::Algorithm;
use weir_ipsec::keepalive::EVERY_NS_DEFAULT;
use weir_ipsec::lifetime::{Lifetime, Limits};
use weir_ipsec::replay::SIZE_MAX;
use weir_ipsec::tunnel::OuterDontFragment;
use weir_path::esp::plan::{AssociationPlan, EspDispatch, EspPlan, MTU_BYTES_MIN};

use super::check::TopologyReader;
use super::routers::MTU_DEFAULT;
use super::tables::{AssociationTable, EspTable, LifetimeTable, TopologyFile};
use crate::limits::{NAME_IS, is_name};
use crate::nearest::{did_you_mean, or};
use crate::source::is_key;

/// The replay window where none is given: RFC 4303 section 3.4.3 wants it.
pub(crate) const WINDOW_DEFAULT: u32 = 64;
/// The shortest time between keepalives, in nanoseconds: less would only be a load to the peer, as translators remember for tens of seconds
/// (RFC 4787 section 4.3).
const KEEPALIVE_NS_MIN: u64 = 1_000_000_000;
/// The word for no keepalives.
pub(super) const KEEPALIVE_OFF: &str = "off";
/// The first SPI that is not reserved.
pub(crate) const SPI_MIN: u32 = 256;
const MTU_MIN: i64 = MTU_BYTES_MIN as i64;
const MTU_MAX: i64 = 9000;
/// The longest queue: 256 MiB of packets in frames as long as pages.
const QUEUE_PACKETS_MAX: u32 = 1 << 16;
/// Words for directions, and whether each is in.
pub(super) const DIRECTIONS: [(&str, bool); 2] = [("in", true), ("out", false)];
/// Words for modes, and whether each is a tunnel.
pub(super) const MODES: [(&str, bool); 2] = [("tunnel", true), ("transport", false)];
/// Words for DF of the outer header, the default first: fragments are often lost on the way, so a packet is cut before it is sealed, and
/// routers tell how long it may be (RFC 4301 sections 8.1 and 8.2).
pub(super) const DONT_FRAGMENT: [(&str, OuterDontFragment); 3] = [
    ("set", OuterDontFragment::Set),
    ("copy", OuterDontFragment::Copied),
    ("clear", OuterDontFragment::Clear),
];

impl TopologyReader<'_> {
    /// The plan of each ESP, in the order of the tables.
    pub(super) fn esps(&mut self, file: &TopologyFile) -> Vec<EspPlan> {
        let mut plans: Vec<EspPlan> = file.esps.iter().map(|table| self.esp(table)).collect();
        let mut names: HashMap<&str, Range<usize>> = HashMap::new();
        for table in &file.associations {
            let name = table.name.as_ref();
            if !is_name(name) {
                let why = format!("an association cannot be called so: a name is {NAME_IS}");
                self.tell(table.name.span(), why);
            }
            if let Some(first) = names.insert(name, table.name.span()) {
                let line = self.line(&first);
                let why = format!(
                    "line {line} has an association called \"{name}\" already: give one another name"
                );
                self.tell(table.name.span(), why);
            }
            self.check_key_file(file, table);
            let esp = self.esp_of(file, table.esp.as_ref(), table.name.span());
            let (Some(plan), Some(association)) = (esp, self.association(table)) else { continue };
            self.check_own_end(table, &association, &plans[plan].addresses);
            let others = &plans[plan].associations;
            if let Some(other) = others.iter().find(|other| association.shares_spi_with(other)) {
                let how = if association.is_inbound { "comes in" } else { "goes to this address" };
                let why = format!("\"{}\" {how} by this SPI too: give one of the two another", other.name);
                self.tell(table.spi.span(), why);
            }
            plans[plan].associations.push(association);
        }
        self.policies(file, &mut plans);
        self.warn_of_unnamed(file);
        plans
    }

    /// Checks that the gateway's own end of an association is one of its addresses: nothing else that comes to it is opened.
    fn check_own_end(&mut self, table: &AssociationTable, association: &AssociationPlan, own: &[IpAddr]) {
        let (text, end) = match association.is_inbound {
            true => (&table.destination, association.destination),
            false => (&table.source, association.source),
        };
        if !own.is_empty() && !own.contains(&end) {
            let addresses = own.iter().map(IpAddr::to_string).collect::<Vec<_>>();
            let addresses = or(&addresses.iter().map(String::as_str).collect::<Vec<_>>());
            let why = format!("this end is the esp's own, which has {addresses}, and not {end}");
            self.tell(text.span(), why);
        }
    }

    /// Warns of an association that no policy names: it seals nothing, and packets that it opens do not pass.
    fn warn_of_unnamed(&mut self, file: &TopologyFile) {
        let named: HashSet<&str> =
            file.policies.iter().flat_map(|policy| &policy.sa).map(|name| name.as_ref().as_str()).collect();
        for table in &file.associations {
            let name = table.name.as_ref();
            if !named.contains(name.as_str()) {
                let why = format!(
                    "no policy names this association, so nothing passes by it: add \"{name}\" to the sa = [...] of its policies"
                );
                self.warn(table.name.span(), why);
            }
        }
    }

    fn esp(&mut self, table: &EspTable) -> EspPlan {
        let read = |text: &Spanned<String>| text.as_ref().parse::<IpAddr>().map_err(|_| text.span());
        let mut addresses = Vec::new();
        for text in table.address.as_ref() {
            match read(text) {
                Ok(address) if !is_of_one_host(address) => {
                    self.tell(text.span(), format!("{address} is no host's address, which an esp has"));
                }
                Ok(address) => addresses.push(address),
                Err(at) => self.tell(at, "this is no address; write for example 192.0.2.1 or 2001:db8::1"),
            }
        }
        if table.address.as_ref().is_empty() {
            let why = "an esp opens what comes to its addresses: write one, such as [\"192.0.2.1\"]";
            self.tell(table.address.span(), why);
        }
        let mtu = table.mtu.as_ref().map_or(MTU_DEFAULT.into(), |mtu| *mtu.as_ref());
        if let Some(mtu) = table.mtu.as_ref().filter(|mtu| !(MTU_MIN..=MTU_MAX).contains(mtu.as_ref())) {
            self.tell(mtu.span(), format!("the longest IP packet outside has {MTU_MIN} to {MTU_MAX} bytes"));
        }
        EspPlan {
            addresses,
            mtu_bytes: mtu.clamp(MTU_MIN, MTU_MAX) as u16,
            associations: Vec::new(),
            policies: Vec::new(),
            dispatch: self.esp_dispatch(table),
        }
    }

    /// The dispatch of an ESP: when packets are sealed and opened, and how many wait for that.
    fn esp_dispatch(&mut self, table: &EspTable) -> EspDispatch {
        let modes = [Mode::Direct, Mode::Hybrid, Mode::Deferred].map(|mode| (mode.name(), mode));
        let mode = match &table.dispatch {
            Some(word) => self.word(word, "a mode of dispatch", &modes),
            None => Some(Mode::Direct),
        };
        let mut dispatch = EspDispatch::default();
        if let Some(queue) = &table.queue_packets {
            let packets =
                u32::try_from(*queue.as_ref()).ok().filter(|of| (1..=QUEUE_PACKETS_MAX).contains(of));
            if mode == Some(Mode::Direct) {
                let why = "queue_packets is of packets that wait to be sealed or opened: write dispatch = \"deferred\" too, or take it out";
                self.tell(queue.span(), why);
            } else if packets.is_none() {
                self.tell(queue.span(), format!("a queue of an esp holds 1 to {QUEUE_PACKETS_MAX} packets"));
            }
            dispatch.queue_packets = packets.unwrap_or(dispatch.queue_packets);
        }
        if let Some(sealers) = &table.sealers {
            let most = EspDispatch::SEALERS_MAX;
            let count = u16::try_from(*sealers.as_ref()).ok().filter(|count| (1..=most).contains(count));
            if mode == Some(Mode::Direct) {
                let why = "sealers share what waits to be sealed or opened: write dispatch = \"deferred\" too, or take it out";
                self.tell(sealers.span(), why);
            } else if count.is_none() {
                self.tell(sealers.span(), format!("an esp has 1 to {most} sealers, or no such key"));
            }
            dispatch.sealers = count.unwrap_or(0);
        }
        EspDispatch { mode: mode.unwrap_or(Mode::Direct), ..dispatch }
    }

    /// The ESP that a table is of, by its place; a fault in that is told.
    pub(super) fn esp_of(
        &mut self,
        file: &TopologyFile,
        name: Option<&Spanned<String>>,
        at: Range<usize>,
    ) -> Option<usize> {
        let names = || file.esps.iter().map(|esp| esp.name.as_ref().as_str());
        let told = match (name, file.esps.len()) {
            (Some(name), _) => {
                let place = names().position(|known| known == name.as_ref());
                if place.is_some() || file.is_partial {
                    return place;
                }
                let near = did_you_mean(name.as_ref(), names());
                (name.span(), format!("there is no [[esp]] \"{}\"{near}", name.as_ref()))
            }
            (None, 1) => return Some(0),
            (None, 0) if file.is_partial => return None,
            (None, 0) => (
                at,
                "it is of an [[esp]], and there is none: write one, with what is inside and outside".into(),
            ),
            (None, _) => {
                let names: Vec<_> = names().collect();
                (
                    at,
                    format!(
                        "which of the several [[esp]] it is of is not said: write esp = \"...\", one of {}",
                        or(&names)
                    ),
                )
            }
        };
        self.tell(told.0, told.1);
        None
    }

    fn association(&mut self, table: &AssociationTable) -> Option<AssociationPlan> {
        let is_inbound = self.word(&table.direction, "a direction", &DIRECTIONS)?;
        let is_tunnel = table.mode.as_ref().map_or(Some(true), |mode| self.word(mode, "a mode", &MODES))?;
        let algorithms = Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm));
        let algorithm = self.word(&table.algorithm, "an algorithm", &algorithms)?;
        let dont_fragment = match &table.dont_fragment {
            Some(word) => self.word(word, "what becomes of DF", &DONT_FRAGMENT)?,
            None => DONT_FRAGMENT[0].1,
        };
        let spi = u32::try_from(*table.spi.as_ref()).ok().filter(|spi| *spi >= SPI_MIN);
        if spi.is_none() {
            self.tell(table.spi.span(), format!("an SPI is a number from {SPI_MIN} to {}", u32::MAX));
        }
        let source = self.end_of_association(&table.source);
        let destination = self.end_of_association(&table.destination);
        let (spi, source, destination) = (spi?, source?, destination?);
        if source.is_ipv4() != destination.is_ipv4() {
            let why =
                format!("an association is between addresses of one family, and {source} is of the other");
            self.tell(table.destination.span(), why);
            return None;
        }
        if source == destination {
            let why = format!("both ends are {source}: an association is between two hosts");
            self.tell(table.destination.span(), why);
        }
        if let Some(ports) = table.udp_ports.as_ref().filter(|ports| ports.as_ref().contains(&0)) {
            self.tell(ports.span(), "0 is no port that UDP is sent to or answered at: write 1 to 65535");
        }
        let window = match &table.window {
            None => Some(WINDOW_DEFAULT),
            Some(window) if !is_inbound => {
                let why = "a replay window is of what comes in: take it out";
                self.tell(window.span(), why);
                None
            }
            Some(window) => {
                let size = u32::try_from(*window.as_ref()).ok().filter(|size| (1..=SIZE_MAX).contains(size));
                if size.is_none() {
                    self.tell(window.span(), format!("a replay window has 1 to {SIZE_MAX} packets"));
                }
                size
            }
        };
        match (&table.key_file, algorithm.key_len()) {
            (None, 1..) => {
                let why = format!("{} needs a key: write key_file = \"...\"", algorithm.name());
                self.tell(table.algorithm.span(), why);
                return None;
            }
            (Some(key), 0) => self.tell(key.span(), format!("{} has no key", algorithm.name())),
            _ => {}
        }
        let keepalive_ns = self.keepalive(table, is_inbound);
        let follows_peer = self.follows_peer(table, is_inbound);
        let lifetime =
            Lifetime { soft: self.limits_of_life(&table.soft), hard: self.limits_of_life(&table.hard) };
        self.check_lifetime(table, &lifetime);
        Some(AssociationPlan {
            name: table.name.as_ref().clone(),
            is_inbound,
            spi,
            source,
            destination,
            is_tunnel,
            algorithm,
            key_file: table.key_file.as_ref().map(|file| file.as_ref().clone()),
            is_extended: table.extended.unwrap_or(false),
            window: window?,
            udp_ports: table.udp_ports.as_ref().map(|ports| *ports.as_ref()),
            keepalive_ns,
            follows_peer,
            dont_fragment,
            lifetime,
        })
    }

    /// Whether an association follows its peer to where packets come from.
    fn follows_peer(&mut self, table: &AssociationTable, is_inbound: bool) -> bool {
        let Some(follows) = table.follow_peer.as_ref().filter(|follows| *follows.as_ref()) else {
            return false;
        };
        let why = match &table.udp_ports {
            _ if !is_inbound => {
                "a peer is followed to where its packets come from: write it where direction is \"in\""
            }
            None => "a peer is followed by ESP in UDP: write udp_ports, or take it out",
            Some(_) => return true,
        };
        self.tell(follows.span(), why);
        false
    }

    /// The time between keepalives, in nanoseconds, which keep a way through a translator of addresses alive.
    fn keepalive(&mut self, table: &AssociationTable, is_inbound: bool) -> Option<u64> {
        let time_or_off = |text: &str| match text {
            KEEPALIVE_OFF => Ok(0),
            _ => match parse_time_ns(text).map_err(|error| error.to_string())? {
                every_ns @ KEEPALIVE_NS_MIN.. => Ok(every_ns),
                _ => Err(format!(
                    "keepalives are sent after {} without a packet or more, usually {}, or \"{KEEPALIVE_OFF}\"",
                    time_text(KEEPALIVE_NS_MIN),
                    time_text(EVERY_NS_DEFAULT)
                )),
            },
        };
        let every_ns = self.value(&table.keepalive, time_or_off);
        let why = match (&table.keepalive, &table.udp_ports) {
            (Some(_), _) if is_inbound => "keepalives are sent by what goes out: take it out",
            (Some(_), None) => "keepalives are of ESP in UDP: write udp_ports, or take it out",
            (_, Some(_)) if !is_inbound => {
                return every_ns.or(Some(EVERY_NS_DEFAULT)).filter(|every_ns| *every_ns > 0);
            }
            _ => return None,
        };
        self.tell(table.keepalive.as_ref().map_or(table.name.span(), Spanned::span), why);
        None
    }

    fn end_of_association(&mut self, text: &Spanned<String>) -> Option<IpAddr> {
        let address = text.as_ref().parse().ok();
        match address {
            None => {
                let why = format!("\"{}\" is no address; write for example 192.0.2.1", text.as_ref());
                self.tell(text.span(), why);
            }
            Some(address) if !is_of_one_host(address) => {
                self.tell(
                    text.span(),
                    format!("{address} is no host's address, which the end of an association is"),
                );
                return None;
            }
            Some(_) => {}
        }
        address
    }

    /// Checks that a key is in a file, and of one association.
    fn check_key_file(&mut self, file: &TopologyFile, table: &AssociationTable) {
        let Some(key) = &table.key_file else { return };
        if key.as_ref().is_empty() {
            return self
                .tell(key.span(), "this names no file: write the path of the file that the key is in");
        }
        if is_key(key.as_ref()) {
            let why = "this is a key, and not the path of its file: make a new one, and write it into a file";
            return self.tell(key.span(), why);
        }
        // A dot in front is the same directory.
        let in_full = |file: &Spanned<String>| Path::new("/").join(file.as_ref());
        let mut others = file.associations.iter().take_while(|other| !std::ptr::eq(*other, table));
        let has_this = |other: &&AssociationTable| {
            other.key_file.as_ref().is_some_and(|other| in_full(other) == in_full(key))
        };
        if let Some(other) = others.find(has_this) {
            let name = other.name.as_ref();
            let are_ends = other.spi == table.spi && other.direction != table.direction;
            self.tell(
                key.span(),
                match are_ends {
                    true => format!(
                        "\"{name}\" is the other end of this association: it belongs in a file of its own, with its own `weir up`"
                    ),
                    false => format!("\"{name}\" has this key: no two associations may, so make another"),
                },
            );
        }
    }

    /// Checks that a limit lets something pass, and that a successor is due before the end.
    fn check_lifetime(&mut self, table: &AssociationTable, lifetime: &Lifetime) {
        let of = |limits: &Limits| [limits.time_ns, limits.bytes, limits.packets];
        for (soft, hard) in of(&lifetime.soft).into_iter().zip(of(&lifetime.hard)) {
            if soft == Some(0) || hard == Some(0) {
                self.tell(
                    table.name.span(),
                    "a lifetime of 0 lets nothing pass: leave it out, or write more",
                );
            } else if let (Some(soft), Some(hard)) = (soft, hard)
                && soft > hard
            {
                let why = "soft is when a successor is due, and here it is after hard, when nothing passes any more";
                self.tell(table.name.span(), why);
            }
        }
    }

    fn limits_of_life(&mut self, table: &LifetimeTable) -> Limits {
        let time_ns = self.value(&table.time, parse_time_ns);
        // Bytes are counted, so a number alone says how many, as it does of `packets`.
        let read = |text: &str| text.parse().or_else(|_| parse_size_bytes(text));
        Limits { time_ns, bytes: self.value(&table.bytes, read), packets: table.packets }
    }

    /// The value of one of a few words; any other word is told as a fault.
    pub(super) fn word<T: Copy>(
        &mut self,
        word: &Spanned<String>,
        what: &str,
        words: &[(&str, T)],
    ) -> Option<T> {
        let found = words.iter().find(|(known, _)| known == word.as_ref()).map(|(_, value)| *value);
        if found.is_none() {
            let known: Vec<_> = words.iter().map(|(known, _)| *known).collect();
            let near = did_you_mean(word.as_ref(), known.iter().copied());
            self.tell(
                word.span(),
                format!("\"{}\" is not {what}: write {}{near}", word.as_ref(), or(&known)),
            );
        }
        found
    }
}

/// Returns whether the address may be one host's: neither nobody's nor a group's.
fn is_of_one_host(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && address != IpAddr::V4(Ipv4Addr::BROADCAST)
}
