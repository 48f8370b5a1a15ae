//! Paths in memory.
use weir_core::dispatch::protocol::Mode;
use weir_run::path::r#gen::Until;
use weir_run::path::run::run;
use weir_run::path::testbed::testbed;
fn main() {
    let arg: Vec<String> = std::env::args().skip(1).collect();
    let workers: usize = arg.first().and_then(|a| a.parse().ok()).unwrap_or(1);
    let mode = arg.get(1).and_then(|a| Mode::from_name(a)).unwrap_or(Mode::Direct);
    let frames: u32 = arg.get(2).and_then(|a| a.parse().ok()).unwrap_or(2048);
    let q: usize = arg.get(3).and_then(|a| a.parse().ok()).unwrap_or(256);
    for _ in 0..5 {
        let mut spec = testbed(workers, mode, None, Until::Elapsed(400_000_000));
        spec.frames = frames;
        spec.qlimit = q;
        let s = run(&spec, &mut |p| {
            if p.elapsed_ns > 1_000_000_000 {
                eprintln!("{p:?}");
                std::process::exit(1)
            }
            true
        })
        .unwrap();
        println!(
            "{:.2} Mpps (cpu {:.2}) lost {} {:?} balances {} elapsed {} ms",
            s.packets_per_s() / 1e6,
            s.packets_per_cpu_s() / 1e6,
            s.lost(),
            s.sequences(),
            s.balances(),
            s.elapsed_ns / 1_000_000
        );
        for w in &s.workers {
            println!(
                "   passes {} blocked {} {} ms {:?} {:?} drops {:?}",
                w.passes,
                w.blocked,
                w.blocked_ns / 1000000,
                w.outlets,
                w.doorbell,
                w.account.dropped.occurred().collect::<Vec<_>>()
            );
        }
    }
}
