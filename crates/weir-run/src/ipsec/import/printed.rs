//! Reads the output of `ip xfrm state` and `ip xfrm policy`, with `-s` or without, one behind the other or alone.
//!
//! ```text
//! src 192.0.2.1 dst 192.0.2.2                    src 10.1.0.0/24 dst 10.2.0.0/24
//!     proto esp spi 0x1001 reqid 1 mode tunnel       dir out priority 100 ptype main
//!     replay-window 0 flag af-unspec                 tmpl src 192.0.2.1 dst 192.0.2.2
//!     aead rfc4106(gcm(aes)) 0x... 128                       proto esp reqid 1 mode tunnel
//! ```
//!
//! Rule: a property that a file of Weir cannot express is refused with its line, or told; nothing of a key is in an error. An association
//! without its counters is refused: the text may be cut off, and the kernel may have sent with its key. The kernel tells the counters of
//! every association, `anti-replay ... oseq 0x0` or, behind `anti-replay esn context:`, `seq-hi ... oseq 0x0`. Policies of sockets are
//! passed over, because they are IKE's own. One of what is forwarded (`dir fwd`) refuses nothing. An association that IKE still
//! negotiates is left out. So is an association or a policy that no packet of Weir's can match, because none has a mark, an
//! interface number or a security label. A count of packets that have passed, or a time of use, tells of a used key as well as a number
//! does; a device that numbers packets by itself tells nobody.
//!
//! Pure. Source: ip-xfrm(8), iproute2 `ip/ipxfrm.c`.

use std::net::IpAddr;

use weir_core::rate::NS_PER_S;
use weir_ipsec::lifetime::Lifetime;
use weir_ipsec::policy::{AddressPrefix, Selector};
use zeroize::Zeroizing;

use crate::classes::protocol;
use crate::ipsec::xfrm::{XfrmKey, XfrmPolicy, XfrmState, XfrmTemplate, forwarded_alone};

/// The associations and policies that were printed.
#[derive(Default)]
pub(super) struct Listed {
    pub states: Vec<XfrmState>,
    pub policies: Vec<XfrmPolicy>,
    /// The place of the last policy, also of one that is passed over.
    pub last_policy_at: String,
    /// A sentence on each thing that is left out.
    pub notes: Vec<String>,
}

/// Reads the printed text.
pub(super) fn read(text: &str) -> Result<Listed, String> {
    let mut listed = Listed::default();
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()).peekable();
    while let Some((number, first)) = lines.next() {
        let mut entry = Vec::new();
        while let Some(line) = lines.next_if(|(_, line)| line.starts_with([' ', '\t'])) {
            entry.push(line);
        }
        let words = Words::new(number, first);
        let second = entry.first().map_or("", |(_, line)| line.trim());
        match second.split_whitespace().next() {
            Some("proto") => listed.state(&words, &entry)?,
            Some("dir" | "security") => {
                listed.last_policy_at = words.at();
                listed.add_policy(&words, &entry)?;
            }
            Some("socket") => listed.last_policy_at = words.at(),
            _ => {
                return Err(format!(
                    "line {number}: this is not what `ip xfrm state` or `ip xfrm policy` prints"
                ));
            }
        }
    }
    Ok(listed)
}

type Line<'a> = (usize, &'a str);

impl Listed {
    fn state(&mut self, first: &Words, lines: &[Line]) -> Result<(), String> {
        let mut state = XfrmState {
            at: first.at(),
            window_at: first.at(),
            sealed_at: first.at(),
            ends: first.ends()?,
            selector: None,
            spi: 0,
            reqid: 0,
            is_tunnel: false,
            is_inbound: None,
            window: 0,
            is_extended: false,
            is_df_clear: false,
            aead: None,
            auth: None,
            enc: None,
            udp_ports: None,
            keepalive_ns: None,
            sealed: 0,
            received: 0,
            lifetime: Lifetime::default(),
            left_out: Vec::new(),
        };
        let (mut has_counters, mut is_of_others, mut is_of_any_family) = (false, false, false);
        for &(number, line) in lines {
            let words = Words::new(number, line);
            match words.word(0) {
                "proto" => {
                    words.is_esp()?;
                    state.spi = words.number("spi")?;
                    state.reqid = words.number("reqid")?;
                    state.is_tunnel = words.is_tunnel()?;
                }
                // The last line of an association printed with `-s` begins so too.
                "replay-window" if !words.has("failed") => {
                    (state.window, state.window_at) = (words.number("replay-window")?, words.at());
                    state.flags(&words);
                    is_of_any_family = words.has("af-unspec");
                }
                "replay_window" => {
                    (state.window, state.window_at) = (words.number("replay_window")?, words.at());
                }
                "dir" => state.is_inbound = Some(words.after("dir")? == "in"),
                "aead" => state.aead = Some(words.key(true)?),
                "auth-trunc" => state.auth = Some(words.key(true)?),
                // `auth` has the same key again, or one whose ICV is not cut.
                "auth" if state.auth.is_none() => state.auth = Some(words.key(false)?),
                "enc" => state.enc = Some(words.key(false)?),
                "comp" => return Err(words.told("compression is not built: Weir does ESP alone")),
                "encap" => {
                    if words.after("type")? != "espinudp" {
                        return Err(words.told("of encapsulations Weir has espinudp alone (RFC 3948)"));
                    }
                    state.udp_ports = Some([words.number("sport")?, words.number("dport")?]);
                }
                "anti-replay" if words.has("oseq") => {
                    (state.sealed, state.sealed_at) = (words.counter("oseq")?.into(), words.at());
                    state.received = words.counter("seq")?.into();
                    has_counters = true;
                }
                "seq-hi" => {
                    state.received = words.long_counter(["seq-hi", "seq"])?;
                    (state.sealed, state.sealed_at) = (words.long_counter(["oseq-hi", "oseq"])?, words.at());
                    has_counters = true;
                }
                "limit:" | "expire" => words.lifetime(&mut state.lifetime),
                "crypto" if words.after("mode") == Ok("packet") && words.after("dir") != Ok("in") => {
                    return Err(words.told(
                        "the device numbers what it sends by this association (mode packet), so nobody else knows which numbers its key was \
                         used with: have new keys agreed on without that",
                    ));
                }
                "sel" => {
                    let selector = words.selector()?;
                    // No family is printed as that of the ends.
                    state.selector = (!(is_of_any_family && selector.takes_all())).then_some(selector);
                    if words.has("dev") {
                        state.left_out.push(words.told("dev is left out: an esp has one port outside"));
                    }
                }
                "mark" | "if_id" => is_of_others |= self.leave_to_others(&words)?,
                "security" => {
                    self.leave_label(&words);
                    is_of_others = true;
                }
                "output-mark" | "crypto" | "tfcpad" | "coa" => {
                    state.left_out.push(words.told(&format!("{} is left out", words.word(0))));
                }
                // A key by which something has passed was used, also if no number says so.
                _ => match words.passed() {
                    Some(packets) if packets > state.sealed => {
                        (state.sealed, state.sealed_at) = (packets, words.at());
                    }
                    _ => {}
                },
            }
        }
        if !has_counters {
            return Err(first.uncounted());
        }
        if state.aead.is_none() && state.enc.is_none() && state.auth.is_none() {
            // The kernel has such an entry from the first question for an association until IKE has its keys.
            self.notes.push(first.told("an association that is still negotiated has no key and is left out"));
            return Ok(());
        }
        if !is_of_others {
            self.states.push(state);
        }
        Ok(())
    }

    /// Returns whether a line says that no packet of Weir's is meant, and tells it. A mark or a number of 0 is that of all packets here.
    fn leave_to_others(&mut self, words: &Words) -> Result<bool, String> {
        let key = words.word(0);
        let number: u32 = words.number(key)?;
        if number > 0 {
            let of = if key == "mark" { "mark" } else { "xfrm interface (if_id)" };
            self.notes.push(
                words.told(&format!("what is of {of} {number:#x} is left out: no packet of Weir's has one")),
            );
        }
        Ok(number > 0)
    }

    fn leave_label(&mut self, words: &Words) {
        self.notes.push(words.told("what is of a security label is left out: no packet of Weir's has one"));
    }

    /// Takes a policy over. One of what the kernel forwards is left out in any case: if something of it cannot be said, that is not refused.
    fn add_policy(&mut self, first: &Words, lines: &[Line]) -> Result<(), String> {
        let is_forward = lines.iter().any(|&(number, line)| {
            let words = Words::new(number, line);
            words.word(0) == "dir" && words.word(1) == "fwd"
        });
        let notes = self.notes.len();
        match self.policy(first, lines) {
            said if !is_forward => said,
            said => {
                self.notes.truncate(notes);
                // A half of direction `in` is refused for the same, so there is none.
                self.notes.extend(said.err().map(|_| forwarded_alone(&first.at())));
                Ok(())
            }
        }
    }

    fn policy(&mut self, first: &Words, lines: &[Line]) -> Result<(), String> {
        let mut policy = XfrmPolicy {
            at: first.at(),
            selector: first.selector()?,
            is_inbound: None,
            is_block: false,
            priority: 0,
            templates: Vec::new(),
        };
        // The template whose own line is to follow.
        let mut begun: Option<String> = None;
        let mut is_of_others = false;
        for &(number, line) in lines {
            let words = Words::new(number, line);
            match words.word(0) {
                "dir" => {
                    policy.is_inbound = match words.after("dir")? {
                        "in" => Some(true),
                        "out" => Some(false),
                        "fwd" => None,
                        _ => return Ok(()),
                    };
                    policy.is_block = words.after("action").is_ok_and(|action| action == "block");
                    policy.priority = words.number("priority")?;
                }
                "tmpl" => {
                    let ends = words.ends()?;
                    policy.templates.push(XfrmTemplate { ends, spi: 0, reqid: 0, is_tunnel: false });
                    begun = Some(words.told("the line behind this tmpl is missing: the text is cut off"));
                }
                "proto" => {
                    words.is_esp()?;
                    begun = None;
                    if let Some(template) = policy.templates.last_mut() {
                        if words.has("spi") {
                            template.spi = words.number("spi")?;
                        }
                        template.reqid = words.number("reqid")?;
                        template.is_tunnel = words.is_tunnel()?;
                    }
                }
                "level" if words.word(1) == "use" => {
                    let why = "an association that is used where there is one and not missed where there is none \
                               (level use) cannot be said: make it required, or two policies";
                    return Err(words.told(why));
                }
                "mark" | "if_id" => is_of_others |= self.leave_to_others(&words)?,
                "security" => {
                    self.leave_label(&words);
                    is_of_others = true;
                }
                "crypto" => self.notes.push(words.told("crypto is left out")),
                _ => {}
            }
        }
        if let Some(why) = begun {
            return Err(why);
        }
        if is_of_others {
            return Ok(());
        }
        if first.has("dev") {
            if !policy.is_block && policy.templates.is_empty() {
                return Err(first.told(
                    "a policy of one interface (dev) lets pass in the clear, which cannot be said: an esp has one port outside, so take the \
                     policy out, or its dev if the packets may pass by any",
                ));
            }
            self.notes.push(first.told("dev is left out: an esp has one port outside"));
        }
        self.policies.push(policy);
        Ok(())
    }
}

impl XfrmState {
    fn flags(&mut self, words: &Words) {
        let flags = words.words.iter().skip_while(|word| **word != "flag").skip(1);
        for flag in flags.filter(|flag| !flag.starts_with('(')) {
            match *flag {
                // The flag alone tells: the kernel has such a context for a window above 32 too. An old `ip` prints its number.
                "esn" | "80" => self.is_extended = true,
                "nopmtudisc" => self.is_df_clear = true,
                // The selector is read by the first (`sel`); alignment follows from the algorithm.
                "af-unspec" | "align4" => {}
                other => self.left_out.push(words.told(&format!("flag {other} is left out"))),
            }
        }
    }
}

/// The words of a line.
struct Words<'a> {
    line: usize,
    words: Vec<&'a str>,
}

impl<'a> Words<'a> {
    fn new(line: usize, text: &'a str) -> Words<'a> {
        Words { line, words: text.split_whitespace().map(|word| word.trim_end_matches(',')).collect() }
    }

    fn word(&self, place: usize) -> &'a str {
        self.words.get(place).copied().unwrap_or_default()
    }

    fn has(&self, key: &str) -> bool {
        self.words.contains(&key)
    }

    fn at(&self) -> String {
        format!("line {}", self.line)
    }

    fn told(&self, why: &str) -> String {
        format!("{}: {why}", self.at())
    }

    /// The word behind another.
    fn after(&self, key: &str) -> Result<&'a str, String> {
        let mut words = self.words.iter().skip_while(|word| **word != key);
        words.nth(1).copied().ok_or_else(|| self.told(&format!("\"{key}\" and what follows it is missing")))
    }

    /// The number behind a word, decimal or hexadecimal; `-s` repeats it in brackets, and a mark has its mask behind it.
    fn number<T: TryFrom<u64>>(&self, key: &str) -> Result<T, String> {
        let text = self.after(key)?;
        let text = text.split(['(', '/']).next().unwrap_or_default();
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| self.told(&format!("{key} {text} is no such number")))
    }

    /// A counter, which is always printed in hexadecimal: the 0 of 0x7 alone is no counter.
    fn counter(&self, key: &str) -> Result<u32, String> {
        match self.after(key) {
            Ok(text) if text.len() > 2 && text.starts_with("0x") => self.number(key),
            _ => Err(self.uncounted()),
        }
    }

    /// A counter in two halves, the upper one first.
    fn long_counter(&self, [upper, lower]: [&str; 2]) -> Result<u64, String> {
        Ok(u64::from(self.counter(upper)?) << 32 | u64::from(self.counter(lower)?))
    }

    /// The packets that the line says have passed by an association: a count, or one at least where it says when that was.
    fn passed(&self) -> Option<u64> {
        match self.word(0) {
            "add" => (self.after("use").ok()? != "-").then_some(1),
            "lastused" => Some(1),
            bytes if bytes.ends_with("(bytes)") => self.word(1).strip_suffix("(packets)")?.parse().ok(),
            _ => None,
        }
    }

    fn uncounted(&self) -> String {
        self.told(
            "the counters of this association (oseq) are missing, and the kernel may have sent with its key: the text is cut off or printed \
             without them, so give the whole output of `ip xfrm state`",
        )
    }

    fn is_esp(&self) -> Result<(), String> {
        match self.after("proto")? {
            "esp" => Ok(()),
            other => Err(self.told(&format!("proto {other} is not built: Weir does ESP alone"))),
        }
    }

    fn is_tunnel(&self) -> Result<bool, String> {
        match self.after("mode")? {
            "tunnel" => Ok(true),
            "transport" => Ok(false),
            other => Err(self.told(&format!("mode {other} is not built: Weir has tunnel and transport"))),
        }
    }

    /// The source and the destination of the line.
    fn ends(&self) -> Result<[IpAddr; 2], String> {
        let address = |key: &str| {
            let text = self.after(key)?;
            text.parse().map_err(|_| self.told(&format!("{key} {text} is no address")))
        };
        Ok([address("src")?, address("dst")?])
    }

    fn selector(&self) -> Result<Selector, String> {
        let prefix = |key: &str| {
            let text = self.after(key)?;
            let (address, len) = text.split_once('/').unwrap_or((text, ""));
            let address: Option<IpAddr> = address.parse().ok();
            let len = match (len, address) {
                ("", Some(address)) => Some(if address.is_ipv4() { 32 } else { 128 }),
                (len, _) => len.parse().ok(),
            };
            let prefix = address.zip(len).and_then(|(address, len)| AddressPrefix::new(address, len));
            prefix.ok_or_else(|| self.told(&format!("{key} {text} is no prefix")))
        };
        if let Some(key) = ["type", "code", "key"].into_iter().find(|key| self.has(key)) {
            return Err(self.told(&format!(
                "a selector of one {key} cannot be said: Weir's are of protocols and ports"
            )));
        }
        let port = |key: &str| match self.has(key) {
            true => self.number::<u16>(key).map(|port| Some(port..=port)),
            false => Ok(None),
        };
        let protocol = match self.has("proto") {
            true => Some(protocol(self.after("proto")?).map_err(|why| self.told(&why))?),
            false => None,
        };
        Ok(Selector {
            source: prefix("src")?,
            destination: prefix("dst")?,
            protocol,
            source_ports: port("sport")?,
            destination_ports: port("dport")?,
        })
    }

    /// `aead NAME 0xDIGITS [(BITS bits)] ICV`, the last where it has one.
    fn key(&self, has_icv: bool) -> Result<XfrmKey, String> {
        // An empty key is not printed.
        let is_empty = self.word(2).is_empty() || self.word(2).starts_with('(');
        let digits = if is_empty { Some("") } else { self.word(2).strip_prefix("0x") };
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let Some(digits) = digits else {
            return Err(self.told("this shows no key: run `ip xfrm state` as root, without nokeys"));
        };
        let icv_bits = self.words.last().filter(|_| has_icv).map_or(Some(0), |bits| bits.parse().ok());
        let icv_bits = icv_bits.ok_or_else(|| self.told("the length of its ICV is missing"))?;
        Ok(XfrmKey {
            at: self.at(),
            name: self.word(1).into(),
            digits: Zeroizing::new(digits.into()),
            icv_bits,
        })
    }

    /// `limit: soft 5(bytes), hard (INF)(bytes)` or `expire add: soft 0(sec), hard 3600(sec)`, where 0 is no limit.
    fn lifetime(&self, lifetime: &mut Lifetime) {
        let value = |key: &str| {
            let text = self.after(key).unwrap_or_default();
            let (number, unit) = text.split_once('(').unwrap_or_default();
            Some((number.parse::<u64>().ok().filter(|number| *number > 0)?, unit.trim_end_matches(')')))
        };
        for (key, limits) in [("soft", &mut lifetime.soft), ("hard", &mut lifetime.hard)] {
            match value(key) {
                Some((bytes, "bytes")) => limits.bytes = Some(bytes),
                Some((packets, "packets")) => limits.packets = Some(packets),
                Some((seconds, "sec")) if self.word(1) == "add:" => {
                    limits.time_ns = Some(seconds.saturating_mul(NS_PER_S));
                }
                _ => {}
            }
        }
    }
}
