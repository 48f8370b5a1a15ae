//! Paths on threads: they end, whole and in order, however the machine schedules them; and one that dies says so.

use weir_core::dispatch::protocol::Mode;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use super::Path;
use super::run::{run, run_path};
use super::spec::{FRAME_BYTES, KindSpec, PathError, PathSpec};
use super::testbed::testbed;
use super::tests::{generator, link, node};
use crate::clock::now_ns;
use weir_path::traffic::generator::Until;

fn has_two_cores() -> bool {
    weir_port::sys::allowed_cores().len() >= 2
}

/// Runs a path, free of cores, and gives up after a minute.
fn run_free(mut spec: PathSpec) -> super::summary::Summary {
    spec.bindthreads = false;
    let summary = run(&spec, &mut |progress| progress.elapsed_ns < 60_000_000_000).unwrap();
    assert!(summary.balances(), "{summary:?}");
    summary
}

#[test]
fn the_test_bed_on_threads() {
    for workers in [1, 2] {
        if workers == 2 && !has_two_cores() {
            continue;
        }
        let summary = run_free(testbed(workers, Mode::Deferred, None, Until::Packets(300_000)));
        let seen = summary.sequences();
        assert_eq!((seen.numbered, seen.missing, seen.duplicated, seen.reordered), (300_000, 0, 0, 0));
        assert_eq!(summary.lost(), 0);
    }
}

/// Hardly any frames and a queue limit of 1: generators wait for credit all the time, and each wait must end.
#[test]
fn a_generator_that_waits_for_credit_is_always_woken() {
    if !has_two_cores() {
        return;
    }
    let mut spec = testbed(2, Mode::Direct, None, Until::Packets(20_000));
    (spec.qlimit, spec.frames) = (1, 768);
    let summary = run_free(spec);
    assert_eq!(summary.sequences().numbered, 20_000);
    assert!(summary.workers[0].blocked > 0, "{summary:?}");
}

#[test]
fn a_generator_with_a_rate_sleeps_between_packets_and_keeps_it() {
    let summary = run_free(testbed(1, Mode::Direct, Some(1000), Until::Packets(50)));
    assert_eq!(summary.sequences().numbered, 50);
    assert!(summary.elapsed_ns >= 49_000_000, "{} ns", summary.elapsed_ns);
    assert!(summary.workers[0].doorbell.blocks > 0);
}

#[test]
fn generators_stop_when_they_are_told() {
    let mut spec = testbed(1, Mode::Direct, None, Until::Stopped);
    spec.bindthreads = false;
    let summary = run(&spec, &mut |progress| progress.told.delivered < 1000).unwrap();
    assert!(summary.balances() && summary.account.delivered.packets >= 1000);
    assert_eq!(summary.held.packets, 0);
}

#[test]
fn a_worker_that_dies_is_named_and_takes_the_others_with_it() {
    // A link at a port the router does not have, which `check` refuses: the router panics at the first packet.
    let mut broken = testbed(2, Mode::Direct, None, Until::Stopped);
    match &mut broken.nodes[2].kind {
        KindSpec::Router(settings) => {
            settings.interfaces.clear();
            settings.neighbours.clear();
        }
        _ => unreachable!("the third is the router"),
    }
    broken.check(2).unwrap_err();
    let pools = Pool::for_workers(FrameMemory::new(broken.frames, FRAME_BYTES).unwrap(), 2);
    let memory = std::sync::Arc::clone(pools[0].memory());
    let path = Path::new(&broken, &memory, pools, now_ns()).unwrap();
    let died = run_path(path, &|_| None, 10_000, &mut |_| true).unwrap_err();
    assert!(matches!(died, PathError::Died { worker: 1, .. }), "{died}");
    assert!(died.to_string().starts_with("worker 1 died: "), "{died}");
}

#[test]
fn more_workers_than_cores_are_refused() {
    let mut spec = PathSpec {
        nodes: vec![node("gen", 0, generator(1, 2, 0, 1, 1)), node("sink", 0, KindSpec::Sink { flows: 1 })],
        links: vec![link((0, 0), (1, 0))],
        ..PathSpec::default()
    };
    spec.workers = weir_port::sys::allowed_cores().len() + 1;
    let error = run(&spec, &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("each worker wants one of its own"), "{error}");
}
