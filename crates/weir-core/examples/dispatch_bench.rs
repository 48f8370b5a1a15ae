//! Dispatch's own cost in cycles of the time-stamp counter: `cargo run --release -p weir-core --example
//! dispatch_bench`.
//!
//! One worker takes bursts of 64 packets through ether and ip, whose handlers do next to nothing, under each
//! mode of ip; every packet must come out in order. Shown are median and quartiles of the repeats; a repeat's
//! figure is its least disturbed round.

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("skipped: cycles are read from the x86-64 time-stamp counter");
}

#[cfg(target_arch = "x86_64")]
fn main() {
    bench::run();
}

#[cfg(target_arch = "x86_64")]
#[path = "../../../benches/cycles.rs"]
mod cycles;

#[cfg(target_arch = "x86_64")]
mod bench {
    use std::hint::black_box;
    use std::sync::Arc;

    use weir_core::dispatch::protocol::{Mode, ProtoId, Protocol};
    use weir_core::dispatch::settings::Settings;
    use weir_core::dispatch::workstream::{Handler, Next, Workstream};
    use weir_core::drops::DropReason;
    use weir_core::packet::{Meta, Packet};
    use weir_core::steer::rss::BURST_MAX;

    use super::cycles::now_cycles;

    const REPEATS: usize = 9;
    const ROUNDS: usize = 2000;

    struct Pkt {
        meta: Meta,
        seq: u32,
    }

    impl Packet for Pkt {
        fn len_bytes(&self) -> u32 {
            60
        }
        fn meta(&self) -> &Meta {
            &self.meta
        }
        fn meta_mut(&mut self) -> &mut Meta {
            &mut self.meta
        }
    }

    /// Ether passes on to ip, ip delivers.
    struct Pass {
        ip: ProtoId,
        next_seq: u32,
    }

    impl Handler<Pkt> for Pass {
        fn handle(&mut self, proto: ProtoId, packet: Pkt, next: &mut Next<'_, Pkt>) {
            if proto != self.ip {
                return next.dispatch(self.ip, packet);
            }
            assert_eq!(packet.seq, self.next_seq, "in order");
            self.next_seq += 1;
            next.delivered(packet.len_bytes());
        }
        fn mark(&mut self, _: &mut Pkt) -> bool {
            false
        }
        fn hand_off(&mut self, _: usize, _: ProtoId, _: Pkt) {
            unreachable!("there is one worker");
        }
        fn dropped(&mut self, _: Pkt, _: DropReason) {
            unreachable!("nothing is dropped");
        }
    }

    pub fn run() {
        println!(
            "cycles a packet through ether and ip, one worker, bursts of {BURST_MAX}: median [quartiles]"
        );
        for mode in Mode::ALL {
            let mut cycles: Vec<f64> = (0..REPEATS).map(|_| least_round(*mode)).collect();
            cycles.sort_by(f64::total_cmp);
            let at = |part: usize| cycles[(cycles.len() - 1) * part / 4];
            println!("{mode:<10} {:>8.2} [{:.2}-{:.2}]", at(2), at(1), at(3));
        }
    }

    fn least_round(mode: Mode) -> f64 {
        let mut settings = Settings::new(Protocol::of_the_path());
        settings.set("proto.ip.dispatch", mode.name(), None).expect("a mode");
        settings.set("maxthreads", "1", None).expect("a worker");
        let registry: Arc<_> = settings.finish(1).expect("settings").registry;
        let ether = registry.id("ether").expect("ether");
        let mut handler = Pass { ip: registry.id("ip").expect("ip"), next_seq: 0 };
        let mut stream = Workstream::new(0, registry, 1024);
        let mut seq = 0;
        let rounds = (0..ROUNDS).map(|_| {
            let start = now_cycles();
            for _ in 0..BURST_MAX {
                let packet = black_box(Pkt { meta: Meta { flow_hash: seq | 1, ..Meta::default() }, seq });
                assert!(stream.dispatch(ether, packet, 0, &mut handler).is_ok(), "there is credit");
                seq += 1;
            }
            stream.drain(0, &mut handler);
            now_cycles() - start
        });
        let least = rounds.min().unwrap_or(0);
        assert_eq!(handler.next_seq, seq, "every packet came out");
        least as f64 / BURST_MAX as f64
    }
}
