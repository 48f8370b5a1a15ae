//! One real `iperf3` client with a server of its own, and the data that the server received.
//!
//! Source: iperf3 3.12 as in Debian 12 (`iperf3(1)`); `-J` prints one JSON object.
//!
//! Limits: of UDP, datagrams lost after the last one that arrived are not in `lost`.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::bed::Namespace;
use crate::process::Process;

const READY_LIMIT: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(30);

/// A client that sends.
#[derive(Debug)]
pub struct Stream {
    client: Process,
    _server: Process,
    limit: Duration,
}

/// The data that arrived.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Received {
    /// Payload bits per second.
    pub bits_per_s: f64,
    /// Payload bits.
    pub bits: f64,
    /// Segments that were sent again; of TCP alone.
    pub retransmits: u64,
    /// Datagrams that the server missed; of UDP alone.
    pub lost: u64,
}

impl Stream {
    /// Sends to `address` for whole seconds, with more options of `iperf3 -c`.
    pub fn start(
        from: &Namespace,
        to: &Namespace,
        address: &str,
        port: u16,
        seconds: u64,
        options: &[&str],
    ) -> Result<Stream> {
        let port = port.to_string();
        let mut command = to.command("iperf3");
        let mut server = Process::spawn(command.args(["-s", "-1", "--forceflush", "-p", &port]))?;
        server.wait_for_output("listening", READY_LIMIT)?;
        let mut command = from.command("iperf3");
        command.args(["-c", address, "-p", &port, "-t", &seconds.to_string(), "-J"]).args(options);
        let limit = Duration::from_secs(seconds) + PATIENCE;
        Ok(Stream { client: Process::spawn(&mut command)?, _server: server, limit })
    }

    /// Waits for the client's end.
    pub fn finish(self) -> Result<Received> {
        let done = self.client.wait(self.limit)?.success()?;
        read(&done.stdout).with_context(|| format!("`{}`: {}", done.what, done.said()))
    }
}

fn read(text: &str) -> Result<Received> {
    let report: Value = serde_json::from_str(text).context("iperf3 printed no JSON")?;
    let end = &report["end"];
    // In UDP's own sum are the datagrams; `sum_received` has the data that arrived either way.
    let received = &end["sum_received"];
    Ok(Received {
        bits_per_s: received["bits_per_second"].as_f64().context("iperf3 reports no rate")?,
        bits: received["bytes"].as_f64().context("iperf3 reports no bytes")? * 8.0,
        retransmits: end["sum_sent"]["retransmits"].as_u64().unwrap_or(0),
        lost: received["lost_packets"].as_u64().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_both_protocols_are_read() {
        let tcp = r#"{"end": {"sum_sent": {"bytes": 2000, "retransmits": 3},
                              "sum_received": {"bytes": 1000, "bits_per_second": 8e3}}}"#;
        assert_eq!(read(tcp).unwrap(), Received { bits_per_s: 8e3, bits: 8e3, retransmits: 3, lost: 0 });
        let udp = r#"{"end": {"sum": {"lost_packets": 5},
                              "sum_received": {"bytes": 500, "bits_per_second": 4e3, "lost_packets": 5}}}"#;
        assert_eq!(read(udp).unwrap().lost, 5);
        assert!(read("iperf3: error").is_err() && read("{}").is_err());
    }
}
