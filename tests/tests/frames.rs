//! Frames as they stand on the wire: each arrives as it was sent, byte for byte and in order.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::End;
use weir_lab::clock::now;
use weir_lab::process::run;
use weir_tests::harness;
use weir_tests::kernel::{require_same, traces};
use weir_tests::raw::{Random, RawSocket, frame};
use weir_tests::rig::Rig;
use weir_tests::{privileged, require_timing};

const FRAMES: u32 = 4000;
const SILENCE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(odd_sizes).together(),
        privileged!(vlan_tags).together(),
        privileged!(odd_sizes_on_the_way_back).together(),
        privileged!(too_large_an_mtu_is_refused).together(),
    ])
}

fn odd_sizes() -> Result<()> {
    there(0x0dd, |_| None)
}

/// Tags with every part in use: priority, drop eligibility, number; and frames without one between them.
fn vlan_tags() -> Result<()> {
    there(0x7a9, |number| (number % 3 != 0).then_some((number.wrapping_mul(40_503) & 0xffff) as u16))
}

fn there(seed: u64, vlan: impl Fn(u32) -> Option<u16> + Sync) -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let wire = rig.wire(&["--rate", "100mbit"])?;
    exchange(rig.left_end(), rig.right_end(), seed, vlan)?;
    wire.check()?;
    wire.stop()?;
    Ok(())
}

fn odd_sizes_on_the_way_back() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let wire = rig.wire(&["--rate", "100mbit", "--rate-back", "50mbit"])?;
    exchange(rig.right_end(), rig.left_end(), 0xbac, |_| None)?;
    wire.check()?;
    wire.stop()?;
    Ok(())
}

/// Sends frames of random sizes, the smallest and the largest among them, and compares those that arrive.
fn exchange(from: End, to: End, seed: u64, vlan: impl Fn(u32) -> Option<u16> + Sync) -> Result<()> {
    let (sender, receiver) = (RawSocket::open(from)?, RawSocket::open(to)?);
    let make = |number: u32, random: &mut Random| {
        let tag = vlan(number);
        let most = if tag.is_some() { 1518 } else { 1514 };
        let length = match number % 8 {
            0 => 60,
            1 => most,
            _ => random.between(18, most),
        };
        frame(number, length, tag, random)
    };
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| -> Result<()> {
            let mut random = Random(seed);
            for number in 0..FRAMES {
                sender.send(&make(number, &mut random)).with_context(|| format!("frame {number}"))?;
            }
            Ok(())
        });
        let mut random = Random(seed);
        for number in 0..FRAMES {
            let expected = make(number, &mut random);
            let arrived = receiver.receive(SILENCE)?;
            let arrived =
                arrived.with_context(|| format!("frame {number} of {FRAMES} never came (seed {seed:#x})"))?;
            ensure!(
                arrived == expected,
                "frame {number} (seed {seed:#x}): {} bytes sent, {} arrived, {:02x?}... for {:02x?}...",
                expected.len(),
                arrived.len(),
                &arrived[..arrived.len().min(24)],
                &expected[..expected.len().min(24)]
            );
        }
        sending.join().expect("the sender does not panic")?;
        let extra = receiver.receive(Duration::from_millis(50))?;
        ensure!(extra.is_none(), "a frame arrived that nobody sent");
        Ok(())
    })
}

fn too_large_an_mtu_is_refused() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    for end in [rig.left_end(), rig.a(), rig.b(), rig.right_end()] {
        end.namespace.ip(&format!("link set {} mtu 9000", end.name))?;
    }
    let before = traces(&rig.middle)?;
    let started = now();
    let done = run(&mut rig.weir(&["wire", "wa", "wb", "--rate", "200mbit"]), Duration::from_secs(10))?;
    require_timing!(started.elapsed() < Duration::from_secs(5), "it took {:?} to refuse", started.elapsed());
    ensure!(matches!(done.status.code(), Some(1 | 2)), "it ended with {}", done.status);
    let text = done.stderr.to_lowercase();
    ensure!(text.contains("mtu") && text.contains("9000"), "it does not say what is wrong: {}", done.stderr);
    require_same(&before, &traces(&rig.middle)?)
}
