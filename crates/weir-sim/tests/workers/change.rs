//! Classes that change under load on two workers: packets that stages have made wait among those that came in, and gates of both workers
//! follow to the new classes.

use weir_path::classes::TreeKind;
use weir_sim::plans::tree;

use super::*;

const PACKETS: u64 = 2_000;

/// The router asks for neighbours that are not there, so questions of its own wait for the slow port of the other worker.
#[test]
fn classes_change_while_packets_that_a_stage_made_wait() {
    let mut bench = Bench::new(&bed(), 4, 2, SEED);
    let trees = [tree(TreeKind::Htb, &["a"], 5), tree(TreeKind::Cbq, &["b", "a"], 7)];
    for number in 0..PACKETS {
        bench.port(0).send(0, routed(number, "10.0.1.2"));
    }
    let mut waited = 0;
    for change in 0..60 {
        (0..10).for_each(|_| bench.go_on(20, MS / 10));
        bench.port(0).send(1, routed(0, &format!("10.0.1.{}", 20 + change)));
        bench.go_on(20, MS / 100);
        let now_ns = bench.now_ns;
        waited += u64::from(bench.workers[1].egress(1).unwrap().shaping.held().packets > 0);
        bench.workers[1].set_classes(1, trees.get(change % 3), now_ns);
        bench.workers.iter_mut().for_each(Worker::tune);
    }
    assert!(waited > 40, "packets waited in {waited} of 60 changes");
    assert!(bench.run_dry(20_000 * MS), "{} left", bench.left_to_do());
    let left = std::mem::take(&mut bench.port(1).left);
    let numbers: Vec<_> = left.iter().filter(|bytes| bytes[12..14] == [8, 0]).map(|b| number_of(b)).collect();
    assert_eq!(numbers, (0..PACKETS).collect::<Vec<_>>(), "in order and none missing");
    assert!(left.len() as u64 > PACKETS + 40, "{} packets left", left.len());
}
