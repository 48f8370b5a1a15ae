//! Random scenarios: the rules hold at every step, every run ends, and Weir loses no packet and wakes no process in vain. A failure names
//! its seed; the scenario follows from it.

use weir_core::{rate::Rate, shaper::tbf::Limit};
use weir_sim::{
    machine::run,
    prng::Prng,
    scenario::{Group, Scenario, System},
    sender::{Program, Wait},
};

const SEEDS: u64 = 400;

fn random_scenario(seed: u64) -> Scenario {
    let mut prng = Prng::new(seed);
    let mut scenario = Scenario {
        system: [System::None, System::Rfc, System::Weir, System::Weir][prng.below(4) as usize],
        rate: Rate::from_bits_per_s(prng.between(1, 300) * prng.between(1_000_000, 1_000_003)).unwrap(),
        burst_bytes: prng.between(1514, 65_536),
        limit: Limit::Bytes(prng.between(1_514, 400_000)),
        time_ns: prng.between(10_000_000, 150_000_000),
        link_delay_ns: [0, prng.below(5_000_000)][prng.below(2) as usize],
        link_loss_permille: [0, prng.below(100)][prng.below(2) as usize],
        queues: [0, prng.between(1, 16) as usize][prng.below(2) as usize],
        poll_packets: prng.between(1, 64) as usize,
        ..Scenario::default()
    };
    scenario.machine.cpus = prng.between(1, 8) as usize;
    scenario.machine.deliver_ns = prng.below(20_000);
    scenario.machine.wake_ns = prng.between(1_000, 300_000);
    if scenario.system == System::Weir && prng.chance(500) {
        scenario.limit = Limit::TimeNs(prng.between(100_000, 20_000_000));
    }
    for _ in 0..prng.between(1, 4) {
        let payload_bytes = prng.between(1, 1472) as u32;
        let program = match prng.below(4) {
            0 => Program::Quiet { payload_bytes, interval_ns: prng.between(100_000, 20_000_000) },
            1 => Program::Tcp { rtt_ns: prng.between(10_000, 20_000_000) },
            _ => Program::Flood { payload_bytes, interval_ns: prng.between(100, 2_000_000) },
        };
        let wait = if prng.chance(500) { Wait::Block } else { Wait::Poll };
        let sndbuf_bytes = prng.between(4_608, 425_984) as u32;
        scenario.groups.push(Group { count: prng.between(1, 12) as usize, program, wait, sndbuf_bytes });
    }
    scenario
}

/// The factor by which runs are more than usual: `WEIR_SIM_TIMES`, for `make verify`.
fn times() -> u64 {
    std::env::var("WEIR_SIM_TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn random_scenarios_keep_the_rules_and_come_to_an_end() {
    let (mut weir_runs, mut weir_packets, mut others_lost) = (0, 0, 0);
    for seed in 0..SEEDS * times() {
        let scenario = random_scenario(seed);
        let report = run(&scenario, seed).unwrap_or_else(|error| panic!("{error}: {scenario:?}"));
        assert_eq!(report.reordered, 0, "seed {seed}: {scenario:?}");
        if scenario.system != System::Weir {
            others_lost += u64::from(report.lost_pct > 0.0);
            continue;
        }
        let in_vain = (report.empty_wakes, report.repeated_wakes, report.kicks.saturating_sub(report.parks));
        assert_eq!(in_vain, (0, 0, 0), "seed {seed}: {scenario:?}");
        assert_eq!((report.lost_pct, report.quiet_lost_pct), (0.0, 0.0), "seed {seed}: {scenario:?}");
        weir_runs += 1;
        weir_packets += report.delivered;
    }
    assert!(
        weir_runs > 100 && weir_packets > 100_000,
        "{weir_runs} runs, {weir_packets} packets: not a test of much"
    );
    assert!(others_lost > 50, "{others_lost} runs of the kernel lost: the scenarios do not press");
}
