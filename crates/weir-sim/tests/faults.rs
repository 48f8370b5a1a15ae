//! The faults that the simulator must find: a credit that is not kept, a wake-up that is lost, an announcement that is not made.

use weir_core::shaper::tbf::Limit;
use weir_sim::machine::run;
use weir_sim::port::Fault;
use weir_sim::scenario::{Group, Scenario, System};
use weir_sim::sender::{Program, Wait};

fn scenario(fault: Option<Fault>) -> Scenario {
    let group = |count, program| Group { count, program, wait: Wait::Block, sndbuf_bytes: 212_992 };
    Scenario {
        system: System::Weir,
        limit: Limit::Bytes(6_000),
        time_ns: 200_000_000,
        groups: vec![
            group(4, Program::Flood { payload_bytes: 1470, interval_ns: 10_000 }),
            group(1, Program::Quiet { payload_bytes: 100, interval_ns: 5_000_000 }),
        ],
        fault,
        ..Scenario::default()
    }
}

#[test]
fn a_kernel_without_faults_is_no_violation() {
    let report = run(&scenario(None), 1).unwrap();
    assert_eq!((report.lost_pct, report.reordered), (0.0, 0));
    assert!(report.p99_ms < 2.0, "{} ms", report.p99_ms);
}

#[test]
fn a_poll_that_overruns_its_budget_is_a_violation_of_the_credit() {
    let error = run(&scenario(Some(Fault::PollOverruns)), 1).unwrap_err();
    assert!(error.to_string().contains("credit: the class holds"), "{error}");
}

#[test]
fn a_timer_that_is_lost_is_a_violation_of_progress() {
    let error = run(&scenario(Some(Fault::TimerLost)), 1).unwrap_err();
    assert!(error.to_string().contains("stuck inside"), "{error}");
}

#[test]
fn an_announcement_that_is_lost_is_a_violation_of_progress() {
    let error = run(&scenario(Some(Fault::AnnouncementLost)), 1).unwrap_err();
    assert!(error.to_string().contains("stuck inside"), "{error}");
}
