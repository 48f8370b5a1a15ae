//! A run by a wire, for options that only a wire has: a queue given as a time, classes that the kernel's queue cannot keep, workers, packet
//! memory; and kernels without the queues.
//!
//! Packets that stand in the veth's ring, between the qdisc and Weir, are counted by nobody. While there are such, Weir holds packets
//! itself; the lost packets are those that the qdisc has handed on or holds less those that Weir took in.

use std::sync::Arc;

use weir_core::rate::Rate;
use weir_port::enclosure::{self, Enclosure};
use weir_port::link::Link;
use weir_port::netns::NetNs;
use weir_port::qdisc::RootQdisc;
use weir_port::unsent;
use weir_run::classes;
use weir_run::crew::Crew;
use weir_run::datapath::{DatapathConfig, wire_plan};
use weir_run::guardian::Guardian;
use weir_run::stats::{DirectionStats, Snapshot};

use super::RunArguments;
use super::gate::{self, GateKeeper};
use super::rest::Remainder;
use super::way::{Blind, HEARD, RunNetwork, Totals};
use crate::commands::drops;
use crate::guarded::{self, Guarded};
use crate::session::Session;
use crate::{Failure, text};

/// The longest frame that the program's interface sends: a wire takes no segments that are not cut yet.
const FRAME_BYTES: u64 = 1514;

/// The options of the run, checked.
pub struct Prepared {
    config: DatapathConfig,
    /// The limit on the program's packets.
    rate: Rate,
    /// The cores that were named for the workers.
    cores: Vec<usize>,
}

/// A run by a wire.
pub struct ByWire {
    session: Session,
    gate: Option<GateKeeper>,
    netns: NetNs,
    qdisc: RootQdisc,
    /// Packets that the qdisc had handed on, and Weir not taken in, before the program started: they were sent before Weir was there.
    apart: u32,
    /// The limit on the program's packets when it started, in bits per second.
    limit_bits_per_s: u64,
}

impl Prepared {
    /// Reads and checks everything that a wire would need.
    pub fn new(
        arguments: &RunArguments,
        name: &str,
        file: Option<&(String, String)>,
    ) -> Result<Prepared, Failure> {
        let RunArguments { rate, rate_back, burst, queue, machine, .. } = arguments;
        let (memory_bytes, workers) = machine.check(2, 2)?;
        let limits = [
            text::limits(Some(*rate), *burst, *queue)?,
            text::limits(rate_back.or(Some(*rate)), *burst, *queue)?,
        ];
        let read = |(name, text): &(String, String)| classes::read(name, text, enclosure::PORTS);
        let classes = file.map(read).transpose().map_err(Failure::usage)?.map(Arc::new);
        let plan = wire_plan(enclosure::PORTS.map(String::from), limits, classes);
        let config =
            DatapathConfig { name: name.into(), plan, port_names: Vec::new(), memory_bytes, workers };
        Ok(Prepared { config, rate: *rate, cores: machine.cores().to_vec() })
    }

    /// Makes the network and starts the wire. From here on this thread, and so every other, is in the wire's namespace.
    pub fn open(self, mut guardian: Guardian) -> Result<ByWire, Failure> {
        // The classes of both directions are the same.
        let classes = self.config.plan.ports.first().and_then(|port| port.classes.as_deref());
        classes.into_iter().for_each(text::warn_of);
        text::warn_of_oversold_ports(&self.config);
        let enclose = |guardian: &mut Guardian| -> weir_port::Result<_> {
            let host = NetNs::current()?;
            NetNs::unshare()?;
            let enclosure = enclosure::make(&host, guardian)?;
            Ok((host, enclosure))
        };
        let (host, Enclosure { program: netns, way_out }) = match enclose(&mut guardian) {
            Ok(enclosed) => enclosed,
            Err(error) => return Err(guarded::give_up(guardian, error.into())),
        };
        let session = Session::start(&self.config, guardian, &self.cores, &HEARD)?;
        let watches = gate::keep(host, way_out).and_then(|gate| Ok((gate, look_before(&session, &netns)?)));
        match watches {
            Ok((gate, (qdisc, apart))) => {
                Ok(ByWire { session, gate, netns, qdisc, apart, limit_bits_per_s: self.rate.bits_per_s() })
            }
            Err(failure) => {
                session.finish()?;
                Err(failure)
            }
        }
    }
}

/// The qdisc of the program's interface, and the packets that it had handed on and Weir not taken in, before the program starts.
fn look_before(session: &Session, netns: &NetNs) -> Result<(RootQdisc, u32), Failure> {
    let eth0 = netns.run(|| Link::by_name("eth0"))?;
    let qdisc = RootQdisc::new(Arc::new(netns.try_clone()?), eth0.ifindex);
    let sent = qdisc.counters()?.sent;
    let snapshot = session.stat()?;
    let taken = there(&snapshot).map_or(0, |class| class.place.books.accepted.packets);
    Ok((qdisc, sent.wrapping_sub(taken as u32)))
}

impl RunNetwork for ByWire {
    fn guarded(&self) -> &Guarded {
        &self.session.guarded
    }

    fn netns(&self) -> &NetNs {
        &self.netns
    }

    fn look(&self) -> Result<Remainder, Blind> {
        let blind = |error: &str| match Crew::is_going_down(error) {
            true => Blind::ForGood,
            false => Blind::ForNow,
        };
        let snapshot = self.session.stat().map_err(|error| blind(&error))?;
        let queue = self.qdisc.counters().map_err(|_| Blind::ForNow)?;
        let tcp = unsent::by_closed_sockets(&self.netns).map_err(|_| Blind::ForNow)?;
        let (there, port) = there(&snapshot).zip(snapshot.ports.first()).ok_or(Blind::ForNow)?;
        let books = &there.place.books;
        let gone = books.accepted.packets + port.kernel_dropped + port.lost_while_down;
        let in_ring = queue.sent.wrapping_sub(self.apart).wrapping_sub(gone as u32);
        // A larger difference is a negative one.
        let in_ring = if in_ring > u32::MAX / 2 { 0 } else { in_ring.into() };
        let held = books.held.packets;
        Ok(Remainder {
            queued: queue.backlog,
            in_ring,
            held,
            bytes: (queue.backlog + in_ring + held) * FRAME_BYTES,
            accepted: books.accepted.packets,
            delivered: books.delivered.packets,
            tcp,
        })
    }

    fn slowest(&self) -> u64 {
        let snapshot = self.session.stat().unwrap_or_default();
        let there = there(&snapshot);
        let own = there.and_then(|class| class.rate_bits_per_s).unwrap_or(self.limit_bits_per_s);
        let classes =
            there.into_iter().flat_map(|class| &class.classes).filter_map(|class| class.ceil_bits_per_s);
        classes.chain([own]).min().unwrap_or(own)
    }

    fn packet_bytes_max(&self) -> u64 {
        FRAME_BYTES
    }

    fn must_go_on(&self) -> Option<&'static str> {
        Some("a run by a wire")
    }

    fn finish(self: Box<Self>) -> Result<Totals, Failure> {
        // Lest the table that the guardian removes is put back.
        drop(self.gate);
        Ok(totals(&self.session.finish()?))
    }
}

/// The direction in which the program sends: its end of the wire is the first.
fn there(snapshot: &Snapshot) -> Option<&DirectionStats> {
    snapshot.wires.first()?.classes.first()
}

/// The totals of a wire.
pub fn totals(last: &Snapshot) -> Totals {
    let Some([there, back]) = last.wires.first().map(|wire| wire.classes.as_slice()) else {
        return Totals::default();
    };
    Totals {
        limit: there.rate_bits_per_s.and_then(Rate::from_bits_per_s),
        sent: Some(there.place.books.delivered),
        accepted: there.place.books.accepted.packets,
        // The wire has ended by now.
        waiting: None,
        received: back.place.books.delivered.packets,
        blocked_ns: there.place.blocked_ns,
        dropped: drops::of(last),
    }
}
