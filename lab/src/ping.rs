//! A real `ping` beside the floods, and every round trip it measured.
//!
//! Source: iputils `ping(8)`: one `time=MS ms` for each answer.
//!
//! An answer may come late: with a deadline (`-w`) ping waits for as many answers as it was asked for, and sends more requests meanwhile,
//! which are left out here.
//!
//! Limits: a ping that was lost has no round trip. Percentiles are of those that came back; the number sent and
//! the number answered are kept beside them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bed::Namespace;
use crate::clock::{now, wait_until};
use crate::process::{Process, run};

/// The time between one ping and the next, in seconds.
const INTERVAL_S: f64 = 0.02;

/// A ping under way.
#[derive(Debug)]
pub struct Ping {
    process: Process,
    count: u64,
    limit: Duration,
}

/// The measurements of a ping.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundTrips {
    /// The number of echo requests that were asked for. One that ping had no time to send counts as one without an answer.
    pub sent: u64,
    /// Round trips in milliseconds, shortest first; one for each answer.
    pub sorted_ms: Vec<f64>,
}

/// Returns whether one echo request is answered at once, within 0.3 s.
pub fn is_answered(from: &Namespace, address: &str) -> Result<bool> {
    let mut command = from.command("ping");
    command.args(["-n", "-c", "1", "-W", "0.3", address]);
    Ok(run(&mut command, Duration::from_secs(30))?.status.success())
}

/// Waits until one is, for 20 s at most. Returns the time that it took.
pub fn wait_for_answer(from: &Namespace, address: &str) -> Result<Duration> {
    let started = now();
    wait_until("a ping is answered", Duration::from_secs(20), || is_answered(from, address))?;
    Ok(started.elapsed())
}

impl Ping {
    /// Sends echo requests from `from` to `address` for about `duration`, 50 a second.
    pub fn start(from: &Namespace, address: &str, duration: Duration) -> Result<Ping> {
        let count = (duration.as_secs_f64() / INTERVAL_S).ceil().max(1.0) as u64;
        Ping::start_series(from, address, count, INTERVAL_S)
    }

    /// Sends `count` echo requests, one every `interval_s` seconds.
    pub fn start_series(from: &Namespace, address: &str, count: u64, interval_s: f64) -> Result<Ping> {
        Ping::start_with(from, &[], address, count, interval_s)
    }

    /// Sends them with more options of ping's.
    pub fn start_with(
        from: &Namespace,
        options: &[&str],
        address: &str,
        count: u64,
        interval_s: f64,
    ) -> Result<Ping> {
        // Every request may be late on a busy machine.
        let deadline_s = (count as f64 * interval_s * 3.0).ceil() + 5.0;
        let mut command = from.command("ping");
        command.args(["-n", "-i", &interval_s.to_string(), "-c", &count.to_string()]);
        let process = Process::spawn(command.args(options).args(["-w", &deadline_s.to_string(), address]))?;
        Ok(Ping { process, count, limit: Duration::from_secs_f64(deadline_s + 10.0) })
    }

    /// Waits for the last answer, but no longer than three times as long as all take, and some seconds.
    pub fn finish(self) -> Result<RoundTrips> {
        let done = self.process.wait(self.limit)?;
        parse(&done.stdout, self.count).with_context(|| format!("`{}`: {}", done.what, done.said()))
    }
}

impl RoundTrips {
    /// Fails unless all were answered.
    pub fn require_all(&self) -> Result<()> {
        ensure!(
            self.sorted_ms.len() as u64 == self.sent,
            "{} of {} pings were answered",
            self.sorted_ms.len(),
            self.sent
        );
        Ok(())
    }

    /// The round trip that `share` (0 to 1) of the answers did not exceed, by nearest rank.
    pub fn percentile_ms(&self, share: f64) -> Option<f64> {
        let rank = (share * self.sorted_ms.len() as f64).ceil() as usize;
        self.sorted_ms.get(rank.max(1) - 1).copied()
    }
}

/// Reads the output of `ping` about its first `count` requests.
fn parse(text: &str, count: u64) -> Result<RoundTrips> {
    let summary = text.lines().find(|line| line.contains(" packets transmitted"));
    let summary = summary.context("ping printed no summary")?;
    let sent = summary.split_whitespace().next().and_then(|word| word.parse().ok());
    let sent: u64 = sent.with_context(|| format!("ping's summary is not understood: {summary}"))?;
    let mut sorted_ms = Vec::new();
    for line in text.lines().filter(|line| line.contains(" time=") && !line.contains("DUP!")) {
        let value = |name: &str| line.split_once(name)?.1.split_whitespace().next()?.parse::<f64>().ok();
        let (number, time_ms) = value(" icmp_seq=")
            .zip(value(" time="))
            .with_context(|| format!("ping's answer is not understood: {line}"))?;
        if number <= count as f64 {
            sorted_ms.push(time_ms);
        }
    }
    ensure!(sorted_ms.len() as u64 <= sent.min(count), "ping got more answers than it asked for");
    sorted_ms.sort_by(f64::total_cmp);
    Ok(RoundTrips { sent: count, sorted_ms })
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
        let trips = parse(CAPTURED, 4).unwrap();
        assert_eq!(trips, RoundTrips { sent: 4, sorted_ms: vec![0.19, 8.45, 222.0] });
        let trips = parse(CAPTURED, 3).unwrap();
        assert_eq!(trips, RoundTrips { sent: 3, sorted_ms: vec![0.19, 8.45] });
        assert!(parse(CAPTURED, 20).unwrap().require_all().is_err(), "ping had no time for all");
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
        assert!(parse("ping: connect: Network is unreachable\n", 1).is_err());
    }
}
