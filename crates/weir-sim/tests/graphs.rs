//! Random graphs of stages always make progress, and the check would notice if they did not.

use weir_sim::graph::{Fault, Outcome, run};

/// Runs `seeds`; returns how many did not complete.
fn hung(seeds: std::ops::Range<u64>, fault: Fault) -> (u64, Outcome) {
    let mut sum = Outcome::default();
    let mut hung = 0;
    for seed in seeds {
        let outcome = run(seed, fault);
        hung += u64::from(!outcome.is_complete());
        assert!(fault != Fault::None || outcome.is_complete(), "seed {seed} hangs: {outcome:?}");
        sum.delivered += outcome.delivered;
        sum.parks += outcome.parks;
        sum.kicks += outcome.kicks;
        sum.has_cycle |= outcome.has_cycle;
    }
    (hung, sum)
}

/// The factor by which runs are more than usual: `WEIR_SIM_TIMES`, for `make verify`.
fn times() -> u64 {
    std::env::var("WEIR_SIM_TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn twenty_thousand_graphs_make_progress() {
    let (hung, sum) = hung(0..20_000 * times(), Fault::None);
    assert_eq!(hung, 0);
    assert!(sum.has_cycle && sum.delivered > 300_000 && sum.kicks > 20_000, "{sum:?}: not a test of much");
}

#[test]
fn every_fault_is_noticed() {
    for fault in
        [Fault::ShortRings, Fault::Snapshot, Fault::NoRecheck, Fault::StoresParked, Fault::SilentCredit]
    {
        let (hung, _) = hung(0..5_000, fault);
        println!("{fault:?}: {hung} of 5000 hang");
        assert!(hung > 0, "{fault:?} is never noticed");
    }
}

#[test]
fn a_seed_repeats_its_run() {
    for seed in 0..100 {
        assert_eq!(run(seed, Fault::None), run(seed, Fault::None), "seed {seed}");
    }
}
