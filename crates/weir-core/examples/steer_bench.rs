//! Steering's cost in cycles of the time-stamp counter, beside DPDK's where its headers are installed.
//!
//! `cargo run --release -p weir-core --example steer_bench`. Both sides hash the same 256 tuples and must agree on the hashes before a
//! figure counts. They take turns (ABBA) for [`REPEATS`] repeats; a repeat's figure is its least round, since
//! a round cannot be faster than the work it does, only disturbed; shown are the median and the quartiles of
//! the repeats.

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("steer_bench: left out: cycles are read from the x86-64 time-stamp counter");
}

#[cfg(target_arch = "x86_64")]
fn main() -> std::process::ExitCode {
    bench::run()
}

#[cfg(target_arch = "x86_64")]
#[path = "../../../benches/peers/peer.rs"]
mod peer;

#[cfg(target_arch = "x86_64")]
#[path = "../../../benches/cycles.rs"]
mod cycles;

#[cfg(target_arch = "x86_64")]
#[path = "../../../benches/floors.rs"]
mod floors;

#[cfg(target_arch = "x86_64")]
mod bench {
    use std::hint::black_box;

    use weir_core::steer::key::Key;
    use weir_core::steer::parse::HashKind;
    use weir_core::steer::rss::{BURST_MAX, Burst, Rss};
    use weir_core::steer::toeplitz::Toeplitz;
    use weir_simd::toeplitz::{BATCH_TUPLES, Batch, Flow, V4_WORDS, V6_WORDS};

    use crate::peer::Peer;

    use super::cycles::now_cycles;
    use super::floors::Floors;

    const REPEATS: usize = 9;
    const ROUNDS: usize = 2000;
    const TUPLES: usize = 256;
    /// Frames of the burst benchmark: 64 bytes each, one to 2 KiB and at the start of a cache line as in packet memory. At that distance
    /// they share a few sets of the first two caches, so most headers come from the third.
    const FRAMES: usize = 1024;
    const FRAME_STRIDE: usize = 2048;
    const LINE_BYTES: usize = 64;

    /// Returns for a frame, by its number and its flow, whether it is tagged, and whether it is IPv6.
    type Make = fn(usize, u32) -> [bool; 2];

    pub fn run() -> std::process::ExitCode {
        let mut floors = Floors::default();
        let peer = Peer::build("thash", &["-lrte_hash"]);
        let peer = peer.map_err(|error| println!("DPDK's hashes: left out: {error}")).ok();
        let (best, portable) = (Toeplitz::new(&Key::MICROSOFT), Toeplitz::portable(&Key::MICROSOFT));
        println!(
            "cycles a tuple, or a packet of bursts of 64: median [quartiles] of {REPEATS}; kernel: {}",
            best.kernel_name()
        );
        toeplitz::<V4_WORDS>("12-byte tuple", &best, &portable, peer.as_ref(), "12", &mut floors);
        toeplitz::<V6_WORDS>("36-byte tuple", &best, &portable, peer.as_ref(), "36", &mut floors);
        // The frames that keep together while the order is changed, if it is.
        let bursts: [(&str, Make, Option<usize>); 7] = [
            ("IPv4", |_, _| [false, false], None),
            ("IPv4 tagged", |_, _| [true, false], None),
            ("IPv6", |_, _| [false, true], None),
            ("IPv4 or IPv6", by_chance, None),
            ("the same in any order", by_chance, Some(1)),
            ("in runs of 8 in any order", |i, _| [false, i / 8 % 2 == 0], Some(8)),
            ("IPv6 one in 64 anywhere", |i, _| [false, i % 64 == 0], Some(1)),
        ];
        for (name, make, run) in bursts {
            for workers in [2, 16] {
                let cycles = burst(&format!("{name}, {workers} workers"), make, workers, run);
                // Measured: 10 to 18 on a quiet core, 25 to 27 where IPv4 and IPv6 come in any order; a busy neighbour makes up to 1.5
                // times of it.
                let most = if run == Some(1) { 45.0 } else { 30.0 };
                floors.at_most(&format!("cycles a packet, {name}, {workers} workers"), cycles, most);
            }
        }
        floors.finish()
    }

    fn by_chance(_: usize, flow: u32) -> [bool; 2] {
        [false, flow.count_ones().is_multiple_of(2)]
    }

    fn toeplitz<const WORDS: usize>(
        name: &str,
        best: &Toeplitz,
        portable: &Toeplitz,
        peer: Option<&Peer>,
        len: &str,
        floors: &mut Floors,
    ) {
        let packed = tuples::<WORDS>();
        let batches = transposed(&packed);
        let mut hashes = vec![[0; BATCH_TUPLES]; batches.len()];
        let mut scratch = batches.clone();
        let hash = |batches: &[Batch<WORDS>], hashes: &mut [[u32; BATCH_TUPLES]]| {
            for (batch, hashes) in batches.iter().zip(hashes) {
                best.hash_batch(batch, BATCH_TUPLES, hashes);
            }
        };

        let mut rows: Vec<(String, Vec<f64>)> = Vec::new();
        let mut note = |name: String, cycles: f64| match rows.iter_mut().find(|row| row.0 == name) {
            Some(row) => row.1.push(cycles),
            None => rows.push((name, vec![cycles])),
        };
        for repeat in 0..REPEATS {
            let mut ours = |note: &mut dyn FnMut(String, f64)| {
                let kernel = least(TUPLES, || hash(black_box(&batches), black_box(&mut hashes)));
                note(format!("weir {}", best.kernel_name()), kernel);
                let with_transposition = least(TUPLES, || {
                    transpose(black_box(&packed), &mut scratch);
                    hash(&scratch, black_box(&mut hashes));
                });
                note(format!("weir {} + transposing", best.kernel_name()), with_transposition);
                let sum = hashes.iter().flatten().fold(0, |sum, hash| sum ^ hash);
                let tables = least(TUPLES, || {
                    for (tuple, hash) in
                        black_box(&packed).iter().zip(black_box(&mut hashes).iter_mut().flatten())
                    {
                        *hash = portable.hash(tuple);
                    }
                });
                note("weir portable".into(), tables);
                assert_eq!(sum, hashes.iter().flatten().fold(0, |sum, hash| sum ^ hash), "both paths agree");
                sum
            };
            let theirs = |note: &mut dyn FnMut(String, f64)| {
                let Some(peer) = peer else { return };
                for (case, system) in [("bulk", "rte_thash_gfni_bulk"), ("soft", "rte_softrss_be")] {
                    match ask(peer, &format!("{case}{len}")) {
                        Some((cycles, sum)) => {
                            note(system.into(), cycles);
                            assert_eq!(sum, by_peer_sum(portable, &packed), "{system} hashes as we do");
                        }
                        None if repeat == 0 => {
                            println!("{system}, {name}: left out: this processor cannot run it");
                        }
                        None => {}
                    }
                }
            };
            // The order is A B, then B A.
            if repeat % 2 == 0 {
                ours(&mut note);
                theirs(&mut note);
            } else {
                theirs(&mut note);
                ours(&mut note);
            }
        }
        let medians: Vec<(String, f64)> = rows
            .into_iter()
            .map(|(system, cycles)| {
                let median = print(name, &system, cycles);
                (system, median)
            })
            .collect();
        let of =
            |wanted: &str| medians.iter().find(|(system, _)| system == wanted).map(|(_, cycles)| *cycles);
        // Measured: 10.7 to 15 times.
        if let (Some(soft), Some(ours)) = (of("rte_softrss_be"), of("weir portable")) {
            floors.at_least(&format!("rte_softrss_be / weir portable, {name}"), soft / ours, 8.0);
        }
        let kernel = format!("weir {}", best.kernel_name());
        if let (Some(bulk), Some(ours)) = (of("rte_thash_gfni_bulk"), of(&kernel)) {
            floors.at_least(&format!("rte_thash_gfni_bulk / {kernel}, {name}"), bulk / ours, 1.0);
        }
    }

    /// Measures the way of packets, one burst after another, TCP or UDP. A processor learns in what order the frames of a benchmark come,
    /// and so predicts every branch; unless the order within the bursts is another one each round, of runs of so many frames.
    fn burst(name: &str, make: Make, workers: usize, run: Option<usize>) -> f64 {
        let rss = Rss::new(&Key::MICROSOFT, HashKind::FourTuple, Rss::default_bits(workers), workers)
            .expect("settings");
        let memory = frames(make);
        let mut views: Vec<&[u8]> =
            memory[first_line(&memory)..].chunks_exact(FRAME_STRIDE).map(|frame| &frame[..64]).collect();
        let mut burst = Burst::default();
        let mut repeats = Vec::new();
        let mut state = 1_u32;
        for _ in 0..REPEATS {
            let mut taken = 0;
            let rounds = (0..ROUNDS).map(|_| {
                if let Some(run) = run {
                    views.chunks_mut(BURST_MAX).for_each(|frames| shuffle(frames, run, &mut state));
                }
                taken = 0;
                let start = now_cycles();
                for frames in black_box(&views).chunks(BURST_MAX) {
                    rss.hash_burst(frames, black_box(&mut burst));
                    taken += burst.hashes().iter().filter(|hash| rss.worker(**hash) < workers).count();
                }
                now_cycles() - start
            });
            repeats.push(rounds.min().unwrap_or(0) as f64 / FRAMES as f64);
            assert_eq!(taken, FRAMES, "every frame has a worker");
        }
        print(name, "weir", repeats)
    }

    /// Puts the runs of `run` frames in another order, by the numbers that `state` begins.
    fn shuffle(frames: &mut [&[u8]], run: usize, state: &mut u32) {
        for i in 1..frames.len() / run {
            *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let with = (*state >> 16) as usize % (i + 1);
            (0..run).for_each(|k| frames.swap(run * i + k, run * with + k));
        }
    }

    fn print(name: &str, system: &str, mut cycles: Vec<f64>) -> f64 {
        cycles.sort_by(f64::total_cmp);
        let at = |part: usize| cycles[(cycles.len() - 1) * part / 4];
        println!("{name:<36} {system:<28} {:>8.2} [{:.2}-{:.2}]", at(2), at(1), at(3));
        at(2)
    }

    /// The cycles of the least disturbed round, for each of `items`.
    fn least(items: usize, mut work: impl FnMut()) -> f64 {
        let cycles = (0..ROUNDS).map(|_| {
            let start = now_cycles();
            work();
            now_cycles() - start
        });
        cycles.min().unwrap_or(0) as f64 / items as f64
    }

    /// The peer's cycles per tuple and the XOR of its hashes; `None` for a case that this processor cannot run.
    fn ask(peer: &Peer, case: &str) -> Option<(f64, u32)> {
        let text = peer.run(&[case.to_string()]).expect("the peer runs")?;
        let (cycles, sum) = text.trim().split_once(' ').expect("two numbers");
        Some((cycles.parse().expect("a number"), u32::from_str_radix(sum, 16).expect("a hash")))
    }

    fn by_peer_sum<const WORDS: usize>(portable: &Toeplitz, packed: &[Flow<WORDS>]) -> u32 {
        packed.iter().fold(0, |sum, tuple| sum ^ portable.hash(tuple))
    }

    /// The tuples of `benches/peers/thash.c`.
    fn tuples<const WORDS: usize>() -> Vec<Flow<WORDS>> {
        let mut state = 1_u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..TUPLES)
            .map(|_| Flow {
                addresses: std::array::from_fn(|_| std::array::from_fn(|_| byte())),
                ports: std::array::from_fn(|_| byte()),
            })
            .collect()
    }

    fn transposed<const WORDS: usize>(packed: &[Flow<WORDS>]) -> Vec<Batch<WORDS>> {
        let mut batches = vec![Batch::ZEROS; packed.len() / BATCH_TUPLES];
        transpose(packed, &mut batches);
        batches
    }

    fn transpose<const WORDS: usize>(packed: &[Flow<WORDS>], batches: &mut [Batch<WORDS>]) {
        for (flows, batch) in packed.as_chunks::<BATCH_TUPLES>().0.iter().zip(batches) {
            for (t, flow) in flows.iter().enumerate() {
                batch.set(t, flow);
            }
        }
    }

    /// The offset of the first cache line in `memory`.
    fn first_line(memory: &[u8]) -> usize {
        memory.as_ptr().align_offset(LINE_BYTES)
    }

    fn frames(make: Make) -> Vec<u8> {
        let mut memory = vec![0; FRAMES * FRAME_STRIDE + LINE_BYTES];
        let start = first_line(&memory);
        for (i, frame) in memory[start..].chunks_exact_mut(FRAME_STRIDE).enumerate() {
            let flow = (i as u32).wrapping_mul(0x9e37_79b9);
            let [tag, v6] = make(i, flow);
            let (protocol, flow) = (if flow >> 20 & 1 == 0 { 6 } else { 17 }, flow.to_be_bytes());
            let mut head = vec![0; 12];
            if tag {
                head.extend([0x81, 0x00, 0, 5]);
            }
            if v6 {
                head.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, protocol, 64]);
                head.extend([0xfd; 12]);
                head.extend(flow);
                head.extend([0xfc; 16]);
            } else {
                head.extend([0x08, 0x00, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, protocol, 0, 0]);
                head.extend(flow);
                head.extend([10, 0, 0, 1]);
            }
            head.extend([1, 2, 0, 53]);
            frame[..head.len()].copy_from_slice(&head);
        }
        memory
    }
}
