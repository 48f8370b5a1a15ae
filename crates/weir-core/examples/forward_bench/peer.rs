//! The peer: `dpdk-testpmd --forward-mode=macswap` over the same preloaded ring.

use std::io::{BufRead, BufReader, Result};
use std::process::{Command, Stdio};

use super::frames::udp;

/// The reports that are waited for, one each second.
const REPORTS: usize = 5;

/// Runs testpmd, or prints its command.
pub fn run(run: bool) -> Result<()> {
    let pcap = std::env::temp_dir().join(format!("forward_bench-{}.pcap", std::process::id()));
    let arguments = format!(
        "--no-huge --no-pci --no-telemetry --file-prefix=forward_bench -m 512 -l 0,1 \
         --vdev=net_pcap0,rx_pcap={},infinite_rx=1 --vdev=net_null0,no-rx=1 -- --no-mlockall \
         --total-num-mbufs=16384 --forward-mode=macswap --nb-cores=1 --burst=32 --stats-period=1",
        pcap.display()
    );
    if !run {
        println!("peer, with --peer: dpdk-testpmd {arguments}");
        return Ok(());
    }
    std::fs::write(&pcap, ring_as_pcap())?;
    let spawned = Command::new("dpdk-testpmd")
        .args(arguments.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = spawned else {
        println!("peer: no dpdk-testpmd here; apt-get install dpdk-dev brings it");
        return std::fs::remove_file(&pcap);
    };
    // The packets that it received, and the processor time it had for them: others share the machine.
    let mut seen = Vec::new();
    for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        let line = line?;
        let count = line.trim().strip_prefix("RX-packets:").and_then(|rest| rest.split_whitespace().next());
        // The null device receives nothing, and reports so.
        if let Some(packets) = count.and_then(|count| count.parse::<u64>().ok()).filter(|&n| n > 0) {
            seen.push((packets, cpu_ticks(child.id())?));
            if seen.len() == REPORTS {
                break;
            }
        }
    }
    child.kill()?;
    child.wait()?;
    std::fs::remove_file(&pcap)?;
    let rates: Vec<f64> = seen
        .windows(2)
        .filter(|pair| pair[1].1 > pair[0].1)
        .map(|pair| (pair[1].0 - pair[0].0) as f64 * TICKS_A_SECOND / (pair[1].1 - pair[0].1) as f64 / 1e6)
        .collect();
    println!("testpmd macswap: {rates:.1?} million packets a second of processor time");
    Ok(())
}

/// `USER_HZ`, which Linux fixes for figures that it gives to programs.
const TICKS_A_SECOND: f64 = 100.0;

/// The processor time that a process has had, in ticks (proc(5), `/proc/pid/stat`, fields 14 and 15).
fn cpu_ticks(pid: u32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = behind_name.split_whitespace().skip(11).take(2).flat_map(str::parse::<u64>);
    Ok(ticks.sum())
}

/// 256 packets of 64 bytes (Ethernet, the file's link type 1).
fn ring_as_pcap() -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for n in 0..256 {
        for word in [0u32, 0, 64, 64] {
            file.extend(word.to_le_bytes());
        }
        file.extend(udp([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], [192, 168, 1, 2], n, 64));
    }
    file
}
