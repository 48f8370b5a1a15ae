//! An interface as a user names it, and the interfaces by which packets go there and back: where the limits of both ways stand; and the
//! names of limits there.

use std::borrow::Borrow;
use std::io;

use weir_port::error::PortError;
use weir_port::hold::ends::{self, Ends};
use weir_port::limit::NetnsInterface;
use weir_port::limit::find::{self, LimitInPlace};
use weir_port::limit::record::{Direction, Record};
use weir_port::link::{Link, joints};
use weir_port::netns::NetNs;
use weir_port::sys;
use weir_run::control::{self, Control};
use weir_run::nearest::did_you_mean;

use crate::{Failure, names, output};

/// An interface of this namespace, or of a process's.
#[derive(Clone, Copy, Debug)]
pub struct LimitTarget<'a> {
    /// The process.
    pub pid: Option<u32>,
    /// The interface.
    pub device: &'a str,
}

impl LimitTarget<'_> {
    /// The interfaces that send; the one back may be missing unless it `needs_back`.
    pub fn ways(&self, needs_back: bool) -> Result<Ways, Failure> {
        let name = self.device;
        if let Some(pid) = self.pid {
            let there = NetnsInterface::of_process(pid, name)?;
            // A container's own shell is asked for by its process.
            if pid != std::os::unix::process::parent_id() && NetNs::current()?.is(&there.netns) {
                output::warn(format_args!(
                    "process {pid} is in this network namespace itself: it is {name} here that is meant"
                ));
            }
            // Needed for the way back alone; the kernel may not tell where it is.
            let back = if needs_back { there.far_end()? } else { there.far_end().ok().flatten() };
            return Ok(Ways { there, back, is_doubtful: false, is_back_alone: false, found_by: None });
        }
        let place = NetnsInterface::here(name)?;
        let far_end = place.far_end().map_err(|error| match place.link.peer_netns_id {
            Some(_) if !error.is_shortage() => Failure::from(format!(
                "{name} is one end of a pair whose other end cannot be seen from here, as inside a container ({error}): limit it from \
                 the host, by the name of the end there or with `weir limit --pid PID`"
            )),
            _ => error.into(),
        })?;
        let is_inside = far_end.as_ref().map_or(Some(false), |there| place.is_inside_of(there));
        Ok(match far_end {
            Some(there) if is_inside == Some(true) => {
                return Err(Failure::usage(format!(
                    "{name} is a container's end of a pair, and DEV the host's: what is sent here is limited by `weir limit --pid $$ \
                     --device {name}`, or on the host by `weir limit {}`",
                    there.link.name
                )));
            }
            Some(there) => {
                let is_doubtful = is_inside.is_none();
                Ways { there, back: Some(place), is_doubtful, is_back_alone: false, found_by: None }
            }
            None => {
                Ways { there: place, back: None, is_doubtful: false, is_back_alone: false, found_by: None }
            }
        })
    }

    /// The interfaces where a limit is there, by its own name where no interface is called so: the interface may have another name since,
    /// or be in a namespace whose process has ended.
    pub fn ways_of_limit(&self, needs_back: bool) -> Result<Ways, Failure> {
        let failure = match self.ways(needs_back) {
            // Others than root see no limits.
            Err(failure) if sys::sees_limits() && (self.is_missing() || self.half_of_pair().is_some()) => {
                failure
            }
            found => return found,
        };
        if self.pid.is_some() {
            let message = format!(
                "{}; a limit is gone with its interface, and one that is there `weir stat` names, and `weir limit NAME --off` removes",
                failure.message
            );
            return Err(Failure { message, ..failure });
        }
        self.ways_meant()?.ok_or_else(|| {
            if !self.is_missing() {
                return failure;
            }
            if let Some(message) = names::not_for_limit(self.device) {
                return Failure { message, ..failure };
            }
            let message = format!("{}, and no limit is called so{}", failure.message, self.nearest());
            Failure { message, ..failure }
        })
    }

    /// The interface, if it is the end of a pair whose other end cannot be seen from here.
    pub fn half_of_pair(&self) -> Option<NetnsInterface> {
        let place = self.pid.is_none().then(|| NetnsInterface::here(self.device).ok()).flatten()?;
        place.far_end().is_err().then_some(place)
    }

    /// The ways of the limit that a name means ([`names::limits_meant`]), if there is one.
    pub fn ways_meant(&self) -> Result<Option<Ways>, Failure> {
        Ok(Ways::of_first(names::limits_meant(self.device)?, Some(self.device)))
    }

    /// Returns whether this interface is the one that is meant.
    fn is(&self, place: &NetnsInterface) -> bool {
        let meant = match self.pid {
            Some(pid) => NetnsInterface::of_process(pid, self.device),
            None => NetnsInterface::here(self.device),
        };
        meant.is_ok_and(|meant| meant.is(place))
    }

    /// Returns whether there is no such interface, or no such process.
    pub fn is_missing(&self) -> bool {
        let is_missing = |link: Result<Link, PortError>| link.is_err_and(|error| error.is_no_interface());
        let Some(pid) = self.pid else { return is_missing(Link::by_name(self.device)) };
        let path = format!("/proc/{pid}/ns/net");
        match NetNs::open(path.as_ref()) {
            Ok(netns) => is_missing(netns.run(|| Link::by_name(self.device))),
            // A process that has ended and is not waited for yet has no namespaces.
            Err(PortError::Kernel { source, .. }) => source.kind() == io::ErrorKind::NotFound,
            Err(_) => false,
        }
    }

    /// The interface of this namespace that was perhaps meant, where there is none of that name.
    pub fn nearest(&self) -> String {
        if self.pid.is_some() || !self.is_missing() {
            return String::new();
        }
        // This is not the place to say why they cannot be listed.
        let there = joints().unwrap_or_default();
        did_you_mean(self.device, there.iter().map(|joint| joint.name.as_str()))
    }

    /// The label for the limit of an interface that cannot be found.
    pub fn label(&self) -> String {
        match self.pid {
            Some(pid) => format!("{} of process {pid}", self.device),
            None => self.device.into(),
        }
    }
}

/// The interfaces that send, each way.
#[derive(Debug)]
pub struct Ways {
    /// The interface by which the programs behind the interface send.
    pub there: NetnsInterface,
    back: Option<NetnsInterface>,
    /// Nothing tells which of them is the host's.
    is_doubtful: bool,
    /// True if the one interface is that of the way back, as the other end cannot be seen from here.
    is_back_alone: bool,
    /// The name of the limit by which they were found.
    found_by: Option<String>,
}

impl Ways {
    /// The ways of the first of these limits that can be read, which are those that are called `name`, or else an interface's.
    pub fn of_first<L: Borrow<LimitInPlace>>(limits: Vec<L>, name: Option<&str>) -> Option<Ways> {
        let (place, record) = limits.into_iter().find_map(|seen| {
            let seen = seen.borrow();
            Some((seen.place.try_clone().ok()?, seen.record_or_left()?))
        })?;
        let found_by = Some(record.name).filter(|own| Some(own.as_str()) == name);
        Some(match (record.direction, place.far_end().ok().flatten()) {
            (Direction::Back, Some(there)) => {
                Ways { there, back: Some(place), is_doubtful: false, is_back_alone: false, found_by }
            }
            (direction, back) => {
                let is_back_alone = direction == Direction::Back;
                Ways { there: place, back, is_doubtful: false, is_back_alone, found_by }
            }
        })
    }

    /// Refuses ends that were found by the name of a limit alone, if no limit there is called so any more. Asked when they are held.
    pub fn check_still_there(&self, target: LimitTarget) -> Result<(), Failure> {
        let Some(name) = &self.found_by else { return Ok(()) };
        for end in self.ends() {
            if target.is(end) {
                return Ok(());
            }
            let record = match find::record_at(end) {
                Err(_) if end.is_gone() => None,
                record => record?,
            };
            if record.is_some_and(|record| record.name == *name) {
                return Ok(());
            }
        }
        let place = self.there.describe();
        Err(format!("limit {name} at {place} is gone meanwhile: nothing was changed").into())
    }

    /// Returns whether any of the ends has a limit.
    pub fn has_limit(&self) -> bool {
        self.ends().any(|end| find::record_at(end).is_ok_and(|record| record.is_some()))
    }

    /// The interfaces of both ways.
    pub fn ends(&self) -> impl Iterator<Item = &NetnsInterface> + Clone {
        std::iter::once(&self.there).chain(&self.back)
    }

    /// Says which end of a pair is taken for the host's, where nothing tells.
    pub fn say_doubt(&self, target: LimitTarget) {
        if self.is_doubtful {
            let name = target.device;
            output::say(format_args!(
                "weir: nothing tells which end of its pair is the host's, so {name} is taken for it and {} for where programs send: if {name} is \
                 a container's own, write `weir limit --pid $$ --device {name}`",
                self.there.describe()
            ));
        }
    }

    /// The interface by which the programs send.
    pub fn there(&self, target: LimitTarget) -> Result<&NetnsInterface, Failure> {
        match self.is_back_alone {
            false => Ok(&self.there),
            true => Err(Failure::usage(format!(
                "the limit of {} is one of the way back alone, and the other end of its pair cannot be seen from here: give --rate-back for \
                 that limit, or run it in the host's PID namespace",
                target.device
            ))),
        }
    }

    /// The interface by which packets are sent to them; `asked` is what the user wrote who wants it.
    pub fn back(&self, target: LimitTarget, asked: &str) -> Result<&NetnsInterface, Failure> {
        let back = self.back.as_ref().or(self.is_back_alone.then_some(&self.there));
        back.ok_or_else(|| {
            Failure::usage(format!(
                "{asked} is for a pair both ends of which can be seen from here: what is sent to {} passes no other queue that could hold",
                target.device
            ))
        })
    }

    /// Refuses a name that another limit has, something that is up, or another interface here: `weir set` could tell none of them.
    /// `named` are the limits that keep their names.
    pub fn check_name<'a>(
        &self,
        name: &str,
        mut named: impl Iterator<Item = &'a (NetnsInterface, String)>,
    ) -> Result<(), Failure> {
        let is_ours = |place: &NetnsInterface| self.own_ends().any(|end| end.is(place));
        let other = named.find(|(place, other)| other == name && !is_ours(place));
        let whose = match other {
            Some((place, _)) => format!("the limit at {}", place.describe()),
            None if control::is_up(&Control::path_of(name)) => "what is up, as `weir stat` shows it,".into(),
            // The limit may have been there first.
            None if self.is_called(name) => return Ok(()),
            None if self.is_of_another_interface(name) => "an interface here that is not the limit's".into(),
            None => return Ok(()),
        };
        Err(Failure::usage(format!("{whose} is called {name} already: give this one another name")))
    }

    /// The limit at one of these ends, if it was set from the other end of a pair with both in one namespace: none is the host's, and that
    /// is the limit of the other end, not of the other way. One whose queue is gone hinders nobody.
    pub fn turned_at(&self, place: &NetnsInterface) -> Option<Record> {
        let back = self.back.as_ref().filter(|back| back.netns.is(&self.there.netns))?;
        let direction = if back.is(place) { Direction::Back } else { Direction::There };
        find::at(place).ok().flatten()?.record.filter(|record| record.direction != direction)
    }

    /// Refuses to set a limit at one of these ends that is another's ([`turned_at`](Ways::turned_at)).
    pub fn check_not_turned(&self, place: &NetnsInterface) -> Result<(), Failure> {
        let Some(Record { name, direction, .. }) = self.turned_at(place) else { return Ok(()) };
        let option = if direction == Direction::Back { "--rate-back" } else { "--rate" };
        Err(Failure::usage(format!(
            "what {} sends is limited by {name} already, which was set from the other end of the pair: write `weir limit {name} {option} RATE` \
             to change it, or remove it first by `weir limit {name} --off`",
            place.describe()
        )))
    }

    /// The ends whose limits are not another's ([`turned_at`](Ways::turned_at)).
    fn own_ends(&self) -> impl Iterator<Item = &NetnsInterface> {
        self.ends().filter(|end| self.turned_at(end).is_none())
    }

    /// Returns whether a limit of these ways is called so already.
    fn is_called(&self, name: &str) -> bool {
        self.own_ends()
            .any(|end| find::record_at(end).ok().flatten().is_some_and(|record| record.name == name))
    }

    /// Returns whether an interface here is called so by which the limit is not found: that of another pair, or the end of this one that
    /// means the other way.
    fn is_of_another_interface(&self, name: &str) -> bool {
        let target = LimitTarget { pid: None, device: name };
        match target.ways(false) {
            Ok(meant) => !meant.there.is(&self.there),
            Err(_) => NetnsInterface::here(name).is_ok_and(|place| !self.ends().any(|end| end.is(&place))),
        }
    }

    /// The interfaces of the limit that these ways were found by the name of: the other way of a pair may have a limit with another name,
    /// which is another limit. If they were found by an interface, those of both ways.
    pub fn ends_so_called(&self) -> impl Iterator<Item = &NetnsInterface> + Clone {
        let is_anothers = |end: &NetnsInterface| {
            let named = || find::record_at(end).ok().flatten().map(|record| record.name);
            self.found_by.is_some() && named().is_some_and(|name| Some(name) != self.found_by)
        };
        self.ends().filter(move |end| !is_anothers(end))
    }

    /// The name of the limit at `place`, if there is one among `names`, or else of the other way; else one after the interface, so that no
    /// other limit of the machine is called the same, no other interface here, nothing that is up, and none that is to be. A command that gives the name has it held
    /// in `names` when this returns, and asks [`LimitNames::given_meanwhile`] then.
    pub fn default_name(
        &self,
        place: &NetnsInterface,
        target: LimitTarget,
        names: &mut LimitNames,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<String, Failure> {
        let name_at = |end: &NetnsInterface| names.named.iter().find(|(other, _)| other.is(end));
        if let Some((_, name)) = std::iter::once(place).chain(self.own_ends()).find_map(name_at) {
            return Ok(name.clone());
        }
        let mut taken = Vec::<String>::new();
        loop {
            let is_used = |name: &str| {
                is_wanted(name)
                    || self.is_of_another_interface(name)
                    || taken.iter().any(|taken| taken == name)
                    || names.named.iter().any(|(_, other)| other == name)
            };
            let name = self.free_name(target, is_used)?;
            match names.hold(&name)? {
                true => return Ok(name),
                false => taken.push(name),
            }
        }
    }

    /// A name after the interface that is not used, and that nothing has which is up.
    fn free_name(&self, target: LimitTarget, is_used: impl Fn(&str) -> bool) -> Result<String, Failure> {
        let host_end =
            self.back.as_ref().filter(|back| NetNs::current().is_ok_and(|here| here.is(&back.netns)));
        let first = match (target.pid, host_end) {
            (_, Some(end)) => end.link.name.clone(),
            (Some(pid), None) => format!("{}@{pid}", self.there.link.name),
            (None, None) => target.device.into(),
        };
        control::free_name(&first, is_used)
            .map_err(|error| format!("looking for what is up that could be called {first}: {error}").into())
    }
}

/// The names of the machine's limits, and those that this command gives, which no other gives until this is dropped.
pub struct LimitNames {
    /// The limits that have names, as they were last looked at.
    pub named: Vec<(NetnsInterface, String)>,
    /// The names that are held to be given; `None` if the command gives none.
    held: Option<Vec<(String, Ends)>>,
}

impl LimitNames {
    /// The names that there are, for a command that `gives` some, or changes nothing.
    pub fn look(gives: bool) -> Result<LimitNames, Failure> {
        Ok(LimitNames { named: find::names()?, held: gives.then(Vec::new) })
    }

    /// Looks at the names again, as one may have been given before it was held; returns such a name, which is held no more. One look, which
    /// takes long where there are many limits, is for all names that are held.
    pub fn given_meanwhile(&mut self) -> Result<Option<String>, Failure> {
        let Some(held) = self.held.as_mut().filter(|held| !held.is_empty()) else { return Ok(None) };
        self.named = find::names()?;
        let is_given = |(name, _): &mut (String, Ends)| self.named.iter().any(|(_, other)| other == name);
        Ok(held.extract_if(.., is_given).map(|(name, _)| name).last())
    }

    /// Holds a name that is to be given; returns false if another command does.
    fn hold(&mut self, name: &str) -> Result<bool, Failure> {
        let Some(held) = &mut self.held else { return Ok(true) };
        if held.iter().any(|(other, _)| other == name) {
            return Ok(true);
        }
        // A name that has to be waited for would be another limit's then.
        let Some(hold) = ends::try_name(name)? else { return Ok(false) };
        held.push((name.into(), hold));
        Ok(true)
    }
}
