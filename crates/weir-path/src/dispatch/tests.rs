//! The rule of order, and the treatment of packets when a queue is full, a packet at a time. Random schedules of whole paths are in
//! `weir-sim`.

use weir_core::dispatch::protocol::Registry;
use weir_ring::pool::Pool;

use super::*;
use crate::traffic::flows::{Flows, Traffic};

const QLIMIT: u64 = 4;

/// The dispatch of one of two workers.
struct Bench {
    dispatch: Dispatch,
    pool: Pool,
    flows: Flows,
}

impl Bench {
    /// Every flow is worker 0's; ether is handled where a packet is.
    fn new(worker: u16, settings: &[(&str, &str)]) -> Bench {
        let own = [("rss.bits", "0"), ("rss.bucket.0", "0"), ("proto.ether.dispatch", "direct")];
        let settings = settings.iter().chain(&own);
        let settings: Vec<_> = settings.map(|(key, text)| (key.to_string(), text.to_string())).collect();
        let registry = registry(&settings, 2).unwrap();
        let plan = DispatchPlan { worker, entries: 1, steers: true, flows: 1, exit: None, registry };
        let mac = smoltcp::wire::EthernetAddress([2; 6]);
        let traffic = Traffic {
            size_bytes: 60,
            src: "198.18.0.1".parse().unwrap(),
            dst: "198.19.0.1".parse().unwrap(),
            src_mac: mac,
            dst_mac: mac,
            flows: 1,
            first_flow: 0,
        };
        Bench {
            dispatch: Dispatch::new(&plan),
            pool: Pool::new(FrameMemory::new(64, 256).unwrap()),
            flows: Flows::new(&traffic).unwrap(),
        }
    }

    fn registry(&self) -> &Registry {
        &self.dispatch.plan.registry
    }

    fn ip(&self) -> ProtoId {
        self.registry().id("ip").unwrap()
    }

    /// The next packet of the flow, whose sender knows ECN.
    fn packet(&mut self) -> PathPacket {
        let mut frame = self.pool.take().unwrap();
        let bytes = self.pool.memory().bytes_mut(&mut frame);
        self.flows.write_next(bytes);
        let mut ip = smoltcp::wire::Ipv4Packet::new_unchecked(&mut bytes[14..]);
        ip.set_ecn(0b10);
        ip.fill_checksum();
        PathPacket::new(frame, 0, 60)
    }

    /// The verdict on a packet that comes in by a port.
    fn handle(&mut self, port: u16, packet: &mut PathPacket) -> Handled {
        let mut handled = [Handled::Delivered; BURST_MAX];
        let memory = self.pool.memory().clone();
        self.dispatch.handle(port, std::slice::from_mut(packet), &memory, &mut handled);
        handled[0]
    }

    /// The verdict on the next packet, which comes in by a port.
    fn next(&mut self, port: u16) -> Handled {
        let mut packet = self.packet();
        self.handle(port, &mut packet)
    }

    fn entry(&self) -> u16 {
        self.dispatch.plan.entry(0)
    }

    fn queue(&self) -> u16 {
        self.dispatch.plan.queue(self.ip())
    }
}

#[test]
fn the_mode_says_when_and_the_policy_where() {
    for mode in Mode::ALL {
        let [mut own, mut other] = [0, 1].map(|worker| Bench::new(worker, &[("dispatch", mode.name())]));
        let (at_own, at_other) = (own.next(own.entry()), other.next(other.entry()));
        let over = Handled::Sent(other.dispatch.plan.over(0, other.ip()));
        let expected = match mode {
            Mode::Direct => (Handled::Delivered, Handled::Delivered),
            Mode::Hybrid => (Handled::Delivered, over),
            Mode::Deferred => (Handled::Sent(own.queue()), over),
        };
        assert_eq!((at_own, at_other), expected, "{mode}");
    }
}

#[test]
fn nothing_is_handled_ahead_of_what_waits() {
    let mut bench = Bench::new(0, &[("dispatch", "hybrid")]);
    let (entry, queue) = (bench.entry(), bench.queue());
    let over = bench.dispatch.plan.over(1, bench.ip());
    let waits = Handled::Sent(queue);
    // The first packet is handed over by the other worker, and the next one came in here.
    let [mut first, mut second] = [bench.packet(), bench.packet()];
    assert_eq!([bench.handle(over, &mut first), bench.handle(entry, &mut second)], [waits; 2]);
    assert_eq!(bench.handle(queue, &mut first), Handled::Delivered);
    let mut third = bench.packet();
    assert_eq!(bench.handle(entry, &mut third), waits, "one still waits");
    assert_eq!([&mut second, &mut third].map(|packet| bench.handle(queue, packet)), [Handled::Delivered; 2]);
    assert_eq!(bench.next(entry), Handled::Delivered, "none waits");
    let counts = *bench.dispatch.sequences().counts();
    assert_eq!((counts.numbered, counts.reordered, counts.missing), (4, 0, 0));
    let counts = bench.dispatch.counts(bench.ip());
    assert_eq!((counts.len, counts.wmark, counts.queued, counts.hybrid_dispatched), (0, 2, 3, 1));
}

#[test]
fn a_full_queue_does_what_its_rule_says() {
    for rule in WhenFull::ALL {
        let qlimit = QLIMIT.to_string();
        let settings = [("dispatch", "deferred"), ("proto.ip.full", rule.name()), ("defaultqlimit", &qlimit)];
        let mut bench = Bench::new(0, &settings);
        let (entry, waits) = (bench.entry(), Handled::Sent(bench.queue()));
        for number in 0..2 * QLIMIT {
            let mut packet = bench.packet();
            let handled = bench.handle(entry, &mut packet);
            let is_dropped = *rule == WhenFull::Drop && number >= QLIMIT;
            let expected = if is_dropped { Handled::Dropped(DropReason::WorkstreamFull) } else { waits };
            assert_eq!(handled, expected, "{rule}, {number}");
            let is_marked = *rule == WhenFull::Ecn && 2 * number >= QLIMIT;
            assert_eq!(packet.bytes(bench.pool.memory())[15] & 3 == 3, is_marked, "{rule}, {number}");
        }
        let counts = bench.dispatch.counts(bench.ip());
        let expected = match rule {
            WhenFull::Block => (2 * QLIMIT, 0, 0),
            WhenFull::Ecn => (2 * QLIMIT, 0, 2 * QLIMIT - QLIMIT / 2),
            WhenFull::Drop => (QLIMIT, QLIMIT, 0),
        };
        assert_eq!((counts.wmark, counts.queue_drops, counts.marked), expected, "{rule}");
    }
}
