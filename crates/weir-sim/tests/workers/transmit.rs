//! The counts of an exit by the published names: passes that entered the device, batches tried and failed, sleeps, kicks sent and saved.

use weir_path::exit::TransmitCounts;
use weir_sim::port::TRANSMIT_PACKETS_MAX;

use super::*;

impl Bench {
    fn transmitted(&self, port: usize) -> TransmitCounts {
        let ends = self.workers[self.owners.ports[port]].ends();
        ends.iter().find(|end| end.index == port).unwrap().exit.counts()
    }
}

fn wire(rate: Option<u64>) -> Plan {
    Plan::wire([port_plan(0, None), port_plan(1, rate.map(mbit))])
}

#[test]
fn a_batch_is_tried_once_and_fails_where_the_ring_is_full() {
    let mut bench = Bench::new(&wire(None), 1, 1, SEED);
    (0..40).for_each(|number| bench.port(0).send(0, bridged((0, 0), (1, 0), number)));
    assert!(bench.run_dry(100 * MS));
    let once = TransmitCounts { enter: 1, tried: 1, ..TransmitCounts::default() };
    assert_eq!(bench.transmitted(1), once);
    assert_eq!(bench.transmitted(0), TransmitCounts::default(), "nothing left by it");
    // The port completes no packet now: the ring fills, and packets beyond that are tried in vain.
    bench.port(1).is_stuck = true;
    let more = u64::from(TRANSMIT_PACKETS_MAX) + 10;
    (0..more).for_each(|number| bench.port(0).send(0, bridged((0, 0), (1, 0), 40 + number)));
    while bench.step() {}
    let counts = bench.transmitted(1);
    assert!(counts.tryfail > 0 && counts.tried > counts.tryfail, "{counts:?}");
    assert_eq!((counts.enter, counts.sleep), (counts.tried, 1), "it slept with packets to send: {counts:?}");
    bench.port(1).is_stuck = false;
    bench.asleep[0] = None;
    assert!(bench.run_dry(100 * MS));
    let after = bench.transmitted(1);
    assert!(after.tryfail - counts.tryfail <= 1 && after.tried > counts.tried, "{counts:?} {after:?}");
}

#[test]
fn who_waits_for_a_limit_sleeps_with_packets_to_send() {
    let mut bench = Bench::new(&wire(Some(10)), 1, 1, SEED);
    (0..100).for_each(|number| bench.port(0).send(0, bridged((0, 0), (1, 0), number)));
    assert!(bench.run_dry(1_000 * MS));
    let counts = bench.transmitted(1);
    assert!(counts.sleep > 10, "{counts:?}");
    assert_eq!((counts.tryfail, counts.tried), (0, counts.enter), "{counts:?}");
    bench.go_on(1_000, MS);
    assert_eq!(bench.transmitted(1).sleep, counts.sleep, "with nothing to send it sleeps uncounted");
}

/// Ports 0 and 1, and the bridge, are the first worker's; 2 and 3 the second's.
#[test]
fn a_batch_from_another_worker_is_a_kick_for_the_port_that_it_leaves_by() {
    let mut bench = Bench::new(&lan(&[200; 4]), 1, 2, SEED);
    bench.greet(4, 1);
    let before = [2, 3].map(|port| bench.transmitted(port));
    let now_ns = bench.now_ns + MS;
    let send = |bench: &mut Bench, number| bench.port(0).send(0, bridged((0, 0), (2, 0), number));
    // The second worker sleeps when the first hands over.
    send(&mut bench, 0);
    let [first, second] = &mut bench.workers[..] else { panic!("two workers") };
    let slept = second.park(|_| first.pass(now_ns).map(drop)).unwrap();
    second.pass(now_ns).unwrap();
    assert!(slept, "nothing had come");
    // The second worker is awake now.
    send(&mut bench, 1);
    bench.workers.iter_mut().for_each(|worker| assert!(worker.pass(now_ns).is_ok()));
    let [of_second, of_third] = [2, 3].map(|port| bench.transmitted(port));
    let kicks = |counts: TransmitCounts| [counts.kicks_sent, counts.kicks_saved];
    assert_eq!(kicks(of_second), kicks(before[0]).map(|count| count + 1), "{of_second:?}");
    assert_eq!(of_third, before[1], "nothing left by it");
}
