//! A run limited in place: one pair between the program and the host, with a limit of the kernel's own at either end.
//!
//! Nothing of a packet passes through this process, which waits for the program, passes signals on and looks again when the program
//! has ended. The limits are found by name like any other (`weir stat`, `weir set`), and go with the pair.

use weir_core::drops::Count;
use weir_core::rate::Rate;
use weir_port::enclosure::{self, EnclosureError, Limited};
use weir_port::limit::backlog;
use weir_port::limit::find::{self, LimitInPlace};
use weir_port::limit::htb::QueueTraffic;
use weir_port::limit::memory::Memory;
use weir_port::limit::record::{Direction, LimitStage};
use weir_port::limit::{self, Asked, NetnsInterface};
use weir_port::link::{self, Link};
use weir_port::monitor::{LinkEvent, Monitor};
use weir_port::netns::NetNs;
use weir_port::{Doing, unsent};
use weir_run::classes::Classes;
use weir_run::control::{self, Control};
use weir_run::guardian::Guardian;
use weir_run::watcher::News;

use super::RunArguments;
use super::gate::{self, GateKeeper};
use super::rest::Remainder;
use super::way::{Blind, HEARD, RunNetwork, Totals};
use crate::commands::drops::DropsByReason;
use crate::commands::limit::transaction::set_patiently;
use crate::guarded::{self, Guarded, SessionEvent, spawn};
use crate::{Failure, human, output};

/// A run limited in place.
pub struct InPlace {
    guarded: Guarded,
    gate: Option<GateKeeper>,
    ends: Limited,
    /// The memory of the limit on the program's packets; it tells the limit also when somebody has changed it.
    memory: Memory,
    limit: Rate,
    /// Packets that the devices had dropped before the program started.
    dropped_before: u64,
}

/// The outcome of limiting a run in place.
pub enum Opened {
    /// The run is limited.
    Limited(Box<InPlace>),
    /// This kernel, or this limit, is not for that; why.
    Refused(Guardian, String),
}

/// Makes the network and limits it.
pub fn open(
    mut guardian: Guardian,
    arguments: &RunArguments,
    name: &str,
    classes: Option<&Classes>,
) -> Result<Opened, Failure> {
    if arguments.name.is_some() && control::is_up(&Control::path_of(name)) {
        let failure = Failure::from(format!(
            "a wire called {name} is up already, as `weir stat {name}` shows: give another --name"
        ));
        return Err(guarded::give_up(guardian, failure));
    }
    let limit = |ends: &Limited| limit_both(ends, arguments, name, classes);
    let mut ends = match enclosure::make_limited(&mut guardian, limit) {
        Ok(ends) => ends,
        Err(EnclosureError::Limit(error)) => {
            // The limit of one end may have been there for a moment.
            let _ = backlog::put_back_if_unused();
            return Ok(Opened::Refused(guardian, error.to_string()));
        }
        Err(EnclosureError::Network(error)) => {
            let failure = guarded::give_up(guardian, error.into());
            let _ = backlog::put_back_if_unused();
            return Err(failure);
        }
    };
    let guarded = Guarded::start(guardian, &HEARD)?;
    // A machine whose setting stays as it is limits all the same.
    let _ = backlog::raise();
    match InPlace::parts(&guarded, &mut ends) {
        Ok((gate, memory, dropped_before)) => Ok(Opened::Limited(Box::new(InPlace {
            guarded,
            gate,
            ends,
            memory,
            limit: arguments.rate,
            dropped_before,
        }))),
        Err(failure) => {
            let failure = guarded.give_up(failure);
            let _ = backlog::put_back_if_unused();
            Err(failure)
        }
    }
}

/// Limits both ends. Nobody else knows of them yet, so nobody is in the way; the room for what leaves the limits is made when both are there.
fn limit_both(
    ends: &Limited,
    arguments: &RunArguments,
    name: &str,
    classes: Option<&Classes>,
) -> weir_port::Result<()> {
    let RunArguments { rate, rate_back, burst, .. } = arguments;
    let back = rate_back.unwrap_or(*rate);
    for (place, direction, rate) in
        [(&ends.program, Direction::There, *rate), (&ends.host, Direction::Back, back)]
    {
        let classes = classes.cloned();
        let asked = Asked {
            name: name.into(),
            direction,
            rate: Some(rate),
            burst_bytes: *burst,
            classes,
            moves_at_once: false,
        };
        set_patiently(place, &asked)?;
    }
    Ok(())
}

impl InPlace {
    fn parts(guarded: &Guarded, ends: &mut Limited) -> Result<(Option<GateKeeper>, Memory, u64), Failure> {
        guarded.watch_guardian()?;
        watch_interface(guarded, ends.host.link.ifindex, &ends.host.link.name)?;
        let found = find::at(&ends.program)?.and_then(|found| found.memories.into_iter().next());
        let memory = found.ok_or("the limit of the program's interface is not there")?;
        let gate = gate::keep(ends.host.netns.try_clone()?, ends.way_out.take())?;
        Ok((gate, memory, dropped_by_devices(ends)))
    }

    /// Says how many packets passed without the limit, as far as is known, if somebody took it away: `there` is the rest of it.
    fn taken_away(&self, there: Option<&LimitInPlace>) -> Option<String> {
        let stage = there.map(|seen| seen.record.as_ref().map(|record| record.stage));
        match stage {
            // Packets still pass its queue, which counts them.
            Some(Some(LimitStage::Opening)) => Some("its queue stayed, and let everything pass since".into()),
            Some(_) => None,
            // It went with its interface, whose end is told.
            None if self.ends.program.is_gone() || self.ends.host.is_gone() => None,
            None if find::is_watched(&self.ends.program) == Some(true) => {
                let bypassed = self.memory.arrivals().bypassed;
                Some(format!("{} passed without it", human::plural(bypassed, "packet")))
            }
            None => Some("what passed without it was not counted".into()),
        }
    }

    fn traffic(place: &NetnsInterface) -> Option<QueueTraffic> {
        limit::traffic(place).ok().flatten()
    }
}

/// Makes an event of the end of the pair: the program has no network then.
fn watch_interface(guarded: &Guarded, ifindex: u32, name: &str) -> Result<(), Failure> {
    let monitor = Monitor::new()?;
    let (events, name) = (guarded.events(), name.to_string());
    let is_gone_now = move || LinkEvent::now(ifindex).is_ok_and(|now| now == LinkEvent::Gone { ifindex });
    spawn("weir-watcher", move || {
        // It may have gone before anybody listened.
        let mut is_gone = is_gone_now();
        while !is_gone {
            is_gone = match monitor.wait() {
                Ok(Some(told)) => told.contains(&LinkEvent::Gone { ifindex }),
                // Something was not heard: look.
                Ok(None) => is_gone_now(),
                Err(_) => return,
            };
        }
        // At the end of the run nobody listens any more.
        let _ = events.send(SessionEvent::News(News::Ended(format!("its interface {name} vanished"))));
    })
    .doing(|| "starting to watch the program's interface".into())?;
    Ok(())
}

/// Packets that were dropped between the two ends, behind either queue.
fn dropped_by_devices(ends: &Limited) -> u64 {
    let dropped = |place: &NetnsInterface| {
        let link = place.netns.run(|| Link::by_index(place.link.ifindex));
        link.map_or(0, |link| link.tx_dropped)
    };
    dropped(&ends.program) + dropped(&ends.host)
}

impl RunNetwork for InPlace {
    fn guarded(&self) -> &Guarded {
        &self.guarded
    }

    fn netns(&self) -> &NetNs {
        &self.ends.program.netns
    }

    fn look(&self) -> Result<Remainder, Blind> {
        let tcp = unsent::by_closed_sockets(self.netns()).map_err(|_| Blind::ForNow)?;
        // A queue that the program took away holds nothing.
        let traffic = Self::traffic(&self.ends.program).unwrap_or_default();
        Ok(Remainder {
            queued: traffic.waiting,
            bytes: traffic.waiting_bytes,
            accepted: traffic.packets,
            delivered: traffic.packets,
            tcp,
            ..Remainder::default()
        })
    }

    fn slowest(&self) -> u64 {
        let Some(record) = self.memory.record() else { return self.limit.bits_per_s() };
        let ceilings = record.classes.iter().map(|class| class.ceil_bits_per_s);
        ceilings.chain([record.rate_bits_per_s]).min().unwrap_or(record.rate_bits_per_s)
    }

    fn packet_bytes_max(&self) -> u64 {
        let link = &self.ends.program.link;
        link.gso_bytes_max.max(link.mtu_bytes).into()
    }

    fn must_go_on(&self) -> Option<&'static str> {
        // The gate would not be put back, and this host might forward for anybody.
        self.gate.as_ref().map(|_| "a run with a way out, which weir guards,")
    }

    fn finish(mut self: Box<Self>) -> Result<Totals, Failure> {
        // Lest the table that the guardian removes is put back.
        drop(self.gate.take());
        let [there, back] = [&self.ends.program, &self.ends.host].map(seen);
        let dropped =
            drops(&[&there, &back], dropped_by_devices(&self.ends).saturating_sub(self.dropped_before));
        let record = self.memory.record();
        let taken = self.taken_away(there.as_ref());
        // The pair goes with the look at what waits, as what leaves between the two would be told as lost. The guardian, which may take its
        // time, deletes one that cannot be deleted here.
        let traffic = there.map(|seen| Self::traffic(&self.ends.program).unwrap_or(seen.traffic));
        let _ = self.ends.host.netns.run(|| link::delete(self.ends.host.link.ifindex));
        let limit = record.as_ref().and_then(|record| Rate::from_bits_per_s(record.rate_bits_per_s));
        let arrivals = record.filter(|record| record.sees_arrivals).map(|_| self.memory.arrivals());
        let finished = self.guarded.finish();
        let _ = backlog::put_back_if_unused();
        finished?;
        if let Some(taken) = taken {
            output::say(format_args!("weir: the limit was taken away while CMD ran; {taken}"));
        }
        Ok(Totals {
            limit: limit.or(Some(self.limit)),
            sent: traffic.map(|traffic| Count { packets: traffic.packets, bytes: traffic.bytes }),
            accepted: traffic.map_or(0, |traffic| traffic.packets),
            waiting: traffic.map(|traffic| traffic.waiting),
            received: back.map_or(0, |seen| seen.traffic.packets),
            blocked_ns: arrivals.map(|arrivals| arrivals.held_ns),
            dropped,
        })
    }
}

fn seen(place: &NetnsInterface) -> Option<LimitInPlace> {
    let netns = place.netns.try_clone().ok()?;
    find::seen_at(NetnsInterface { netns, link: place.link.clone() }).ok().flatten()
}

/// Drops by the queues' rules, and by the devices.
fn drops(limits: &[&Option<LimitInPlace>], by_devices: u64) -> DropsByReason {
    let mut drops = DropsByReason::from([("kernel".to_string(), by_devices)]);
    for seen in limits.iter().filter_map(|seen| seen.as_ref()) {
        for (reason, packets) in seen.dropped() {
            *drops.entry(reason.into()).or_default() += packets;
        }
    }
    drops
}
