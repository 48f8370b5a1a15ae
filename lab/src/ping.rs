//! A real `ping` beside the floods, and every round trip it measured.
//!
//! Source: iputils `ping(8)`: one `time=MS ms` for each answer.
//!
//! Limits: a ping that was lost has no round trip. Percentiles are of those that came back; the number sent and
//! the number answered are kept beside them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bed::Namespace;
use crate::process::Process;

/// The time between one ping and the next, in seconds.
const INTERVAL_S: f64 = 0.02;

/// A ping under way.
#[derive(Debug)]
pub struct Ping {
    process: Process,
    limit: Duration,
}

/// The measurements of a ping.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundTrips {
    /// Echo requests sent.
    pub sent: u64,
    /// Round trips in milliseconds, shortest first; one for each answer.
    pub sorted_ms: Vec<f64>,
}

impl Ping {
    /// Sends echo requests from `from` to `address` for about `duration`, 50 a second.
    pub fn start(from: &Namespace, address: &str, duration: Duration) -> Result<Ping> {
        let count = (duration.as_secs_f64() / INTERVAL_S).ceil().max(1.0) as u64;
        Ping::start_series(from, address, count, INTERVAL_S)
    }

    /// Sends `count` echo requests, one every `interval_s` seconds.
    pub fn start_series(from: &Namespace, address: &str, count: u64, interval_s: f64) -> Result<Ping> {
        let mut command = from.command("ping");
        command.args(["-n", "-i", &interval_s.to_string(), "-c", &count.to_string(), "-W", "2", address]);
        let process = Process::spawn(&mut command)?;
        // Every request may be late on a busy machine, and the last one may wait its two seconds in vain.
        let limit = Duration::from_secs_f64(count as f64 * interval_s * 3.0 + 15.0);
        Ok(Ping { process, limit })
    }

    /// Waits for the last answer.
    pub fn finish(self) -> Result<RoundTrips> {
        let done = self.process.wait(self.limit)?;
        parse(&done.stdout).with_context(|| format!("`{}`: {}", done.what, done.said()))
    }
}

impl RoundTrips {
    /// The round trip that `share` (0 to 1) of the answers did not exceed, by nearest rank.
    pub fn percentile_ms(&self, share: f64) -> Option<f64> {
        let rank = (share * self.sorted_ms.len() as f64).ceil() as usize;
        self.sorted_ms.get(rank.max(1) - 1).copied()
    }
}

/// Reads the output of `ping`.
pub fn parse(text: &str) -> Result<RoundTrips> {
    let summary = text.lines().find(|line| line.contains(" packets transmitted"));
    let summary = summary.context("ping printed no summary")?;
    let sent = summary.split_whitespace().next().and_then(|word| word.parse().ok());
    let sent = sent.with_context(|| format!("ping's summary is not understood: {summary}"))?;
    let mut sorted_ms = Vec::new();
    for line in text.lines().filter(|line| !line.contains("DUP!")) {
        let Some((_, rest)) = line.split_once(" time=") else { continue };
        let number = rest.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
        sorted_ms.push(number.with_context(|| format!("ping's answer is not understood: {line}"))?);
    }
    ensure!(sorted_ms.len() as u64 <= sent, "ping got more answers than it asked for");
    sorted_ms.sort_by(f64::total_cmp);
    Ok(RoundTrips { sent, sorted_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPTURED: &str = "\
PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.
64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=8.45 ms
64 bytes from 10.0.0.2: icmp_seq=2 ttl=64 time=0.190 ms
64 bytes from 10.0.0.2: icmp_seq=2 ttl=64 time=0.200 ms (DUP!)
64 bytes from 10.0.0.2: icmp_seq=4 ttl=64 time=222 ms

--- 10.0.0.2 ping statistics ---
4 packets transmitted, 3 received, +1 duplicates, 25% packet loss, time 391ms
rtt min/avg/max/mdev = 0.190/76.88/222.000/0.078 ms, pipe 3
";

    #[test]
    fn every_answer_is_read_once() {
        let trips = parse(CAPTURED).unwrap();
        assert_eq!(trips, RoundTrips { sent: 4, sorted_ms: vec![0.19, 8.45, 222.0] });
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let trips = RoundTrips { sent: 100, sorted_ms: (1..=100).map(f64::from).collect() };
        assert_eq!(trips.percentile_ms(0.5), Some(50.0));
        assert_eq!(trips.percentile_ms(0.99), Some(99.0));
        assert_eq!(trips.percentile_ms(1.0), Some(100.0));
        assert_eq!(RoundTrips { sent: 3, sorted_ms: vec![] }.percentile_ms(0.5), None);
    }

    #[test]
    fn a_ping_that_could_not_run_is_an_error() {
        assert!(parse("ping: connect: Network is unreachable\n").is_err());
    }
}
