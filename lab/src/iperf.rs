//! Floods of real `iperf` 2 clients, each with a server of its own, and the servers' reports.
//!
//! A server serves one client and exits (`-P 1`), printing one CSV line (`-y C`):
//! `date,ip,port,ip,port,id,begin-end,bytes,bits/s,jitter ms,lost,total,lost %,out of order`. `total` is the highest
//! sequence number seen, so `total - lost` datagrams arrived. All clients of a flood start at the same moment
//! (`--txstart-time`), once every server has its port open.
//!
//! Source: iperf 2.1.8 as in Debian 12 (`iperf(1)`).
//!
//! Limits: datagrams lost after the last one that arrived are not in `lost`; compare with the bytes that the client says it sent where that
//! matters ([`Flow::missing`]).

use std::fs;
use std::mem;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::bed::Namespace;
use crate::clock::{epoch_seconds, now, wait_until};
use crate::process::{Process, Signal};

/// The payload of the datagrams: iperf's own default over IPv4.
pub const PAYLOAD_BYTES: u64 = 1470;

/// The first client's port, unless a load says another.
pub const FIRST_PORT: u16 = 5001;

/// Ethernet, IPv4 and UDP headers.
pub const HEADERS_V4_BYTES: u64 = 14 + 20 + 8;

/// Ethernet, IPv6 and UDP headers.
pub const HEADERS_V6_BYTES: u64 = 14 + 40 + 8;

/// The servers' socket buffers. The default holds 92 datagrams, which a server that waits for a core overflows; the loss before that is
/// measured here. The kernel cuts it to its `rmem_max`.
const SERVER_BUFFER: &str = "4M";

/// The configuration of a flood.
#[derive(Debug, Clone)]
pub struct Load<'a> {
    /// The namespace of the clients.
    pub from: &'a Namespace,
    /// The namespace of the servers.
    pub to: &'a Namespace,
    /// The servers' address.
    pub address: &'a str,
    /// The number of clients, each with a server.
    pub clients: usize,
    /// The time for which each client sends, in seconds.
    pub seconds: f64,
    /// Payload of a datagram.
    pub payload_bytes: u64,
    /// The first client's port; the others' follow.
    pub first_port: u16,
    /// The program and arguments that enter `from` for each client, if it is a container.
    pub by: &'a [&'a str],
}

impl<'a> Load<'a> {
    /// `clients` floods of full-size datagrams for `seconds`.
    pub fn new(
        from: &'a Namespace,
        to: &'a Namespace,
        address: &'a str,
        clients: usize,
        seconds: f64,
    ) -> Load<'a> {
        Load {
            from,
            to,
            address,
            clients,
            seconds,
            payload_bytes: PAYLOAD_BYTES,
            first_port: FIRST_PORT,
            by: &[],
        }
    }

    fn is_ipv6(&self) -> bool {
        self.address.contains(':')
    }

    /// The length of a datagram's Ethernet frame.
    pub fn frame_bytes(&self) -> u64 {
        self.payload_bytes + if self.is_ipv6() { HEADERS_V6_BYTES } else { HEADERS_V4_BYTES }
    }
}

/// One client's flow, as its server and its client saw it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Flow {
    /// Payload bytes that arrived.
    pub bytes: u64,
    /// Payload bits per second, between the first and the last arrival.
    pub bits_per_s: f64,
    /// Datagrams that the server missed.
    pub lost: u64,
    /// Datagrams up to the last that arrived.
    pub total: u64,
    /// Datagrams that arrived after a later one.
    pub out_of_order: u64,
    /// Payload bytes that the client says it sent.
    pub sent_bytes: u64,
    /// Datagrams that the kernel of the clients did not take, of all of them, from the flood's start to its end.
    pub refused: u64,
    /// Datagrams that found a socket buffer in the servers' namespace full, of all servers, from the flood's start to its end.
    pub overflowed: u64,
}

impl Flow {
    /// Payload bytes that the client sent and the server never saw, wherever in the flow.
    pub fn missing(&self) -> u64 {
        self.sent_bytes.saturating_sub(self.bytes)
    }
}

/// A flood under way. Dropping it ends its programs.
#[derive(Debug)]
pub struct Flood<'a> {
    clients: Vec<Process>,
    servers: Vec<Process>,
    load: Load<'a>,
    starts_at: f64,
    excused_before: [u64; 2],
}

impl<'a> Flood<'a> {
    /// Opens the servers, sets the clients to start together, and returns once datagrams arrive.
    pub fn start(load: &Load<'a>) -> Result<Flood<'a>> {
        ensure!(load.clients > 0, "a flood needs a client");
        let v6: &[&str] = if load.is_ipv6() { &["-V"] } else { &[] };
        let ports = || (0..load.clients).map(|index| load.first_port + index as u16);
        let mut servers = Vec::new();
        for port in ports() {
            let mut command = load.to.command("iperf");
            command.args(v6).args(["-u", "-s", "-P", "1", "-y", "C", "-w", SERVER_BUFFER]);
            // A server reads no more of a datagram than this.
            command.args(["-p", &port.to_string(), "-l", &load.payload_bytes.to_string()]);
            servers.push(Process::spawn(&mut command)?);
        }
        for (server, port) in servers.iter_mut().zip(ports()) {
            wait_for_port(server, port, "udp")?;
        }
        let excused_before = excused(load)?;
        let lead_s = 0.3 + load.clients as f64 * 0.02;
        let starts_at = epoch_seconds() + lead_s;
        let mut clients = Vec::new();
        for port in ports() {
            let mut command = match load.by {
                [] => load.from.command("iperf"),
                [program, arguments @ ..] => {
                    let mut command = Command::new(program);
                    command.args(arguments).arg("iperf");
                    command
                }
            };
            command.args(v6).args(["-u", "-c", load.address, "-b", "1G", "-y", "C"]);
            command.args(["-p", &port.to_string(), "-t", &load.seconds.to_string()]);
            command.args(["-l", &load.payload_bytes.to_string()]);
            command.args(["--txstart-time", &format!("{starts_at:.6}")]);
            clients.push(Process::spawn(&mut command)?);
        }
        let flood = Flood { clients, servers, load: load.clone(), starts_at, excused_before };
        let before = flood.received_datagrams()?;
        let started = || Ok(epoch_seconds() >= starts_at && flood.received_datagrams()? > before);
        wait_until("the flood's first datagram arrives", Duration::from_secs_f64(lead_s + 10.0), started)
            .with_context(|| said(&flood.clients))?;
        Ok(flood)
    }

    /// The time for which the clients go on sending.
    pub fn remaining(&self) -> Duration {
        Duration::from_secs_f64((self.starts_at + self.load.seconds - epoch_seconds()).max(0.0))
    }

    /// Datagrams that programs in the servers' namespace have received since it was made.
    pub fn received_datagrams(&self) -> Result<u64> {
        received_datagrams(self.load.to, self.load.is_ipv6())
    }

    /// The packets that have come to the servers.
    pub fn deliveries(&self) -> Result<Deliveries> {
        Deliveries::to(self.load.to, self.load.is_ipv6())
    }

    /// Waits for the clients to end and the servers to report, in the clients' order.
    pub fn finish(mut self, patience: Duration) -> Result<Vec<Flow>> {
        let limit = self.remaining() + patience;
        let mut sent = Vec::new();
        for client in mem::take(&mut self.clients) {
            // A client's exit status says nothing: losing the last datagram's answer makes it fail.
            let done = client.wait(limit)?;
            sent.push(
                parse_csv(&done.stdout).with_context(|| format!("`{}`: {}", done.what, done.said()))?.bytes,
            );
        }
        let mut flows = Vec::new();
        for (server, sent_bytes) in mem::take(&mut self.servers).into_iter().zip(sent) {
            flows.push(Flow { sent_bytes, ..report_of(server, patience)? });
        }
        let [refused, overflowed] = excused(&self.load)?;
        let [refused_before, overflowed_before] = self.excused_before;
        for flow in &mut flows {
            // The drops of a queue that went with its interface count as refused no more.
            flow.refused = refused.saturating_sub(refused_before);
            flow.overflowed = overflowed - overflowed_before;
        }
        Ok(flows)
    }
}

/// Kills all programs before it waits for the first: asked to end, iperf goes on for seconds to tell its peer, and a flood that is given up
/// has nothing to tell.
impl Drop for Flood<'_> {
    fn drop(&mut self) {
        for process in self.clients.iter_mut().chain(&mut self.servers) {
            // The signal fails only if the process is gone already.
            let _ = process.signal(Signal::KILL);
        }
    }
}

/// The report of a server that serves one client. It stands a quarter of a second before the server ends, for which that would go on to
/// answer the client.
fn report_of(mut server: Process, patience: Duration) -> Result<Flow> {
    let mut flow = None;
    wait_until("a server of iperf reports", patience, || {
        let is_over = !server.is_running()?;
        let text = server.stdout();
        flow = text.rsplit_once('\n').and_then(|(lines, _)| parse_csv(lines).ok());
        Ok(flow.is_some() || is_over)
    })?;
    server.signal(Signal::KILL)?;
    flow.with_context(|| format!("iperf printed no report: {}{}", server.stdout(), server.stderr()))
}

/// Reads the last report of `iperf -y C`. Lines that are no report (warnings) are passed over.
pub fn parse_csv(text: &str) -> Result<Flow> {
    let Some(flow) = text.lines().rev().find_map(csv_line) else {
        bail!("iperf printed no report");
    };
    Ok(flow)
}

fn csv_line(line: &str) -> Option<Flow> {
    let fields: Vec<&str> = line.trim().split(',').collect();
    if fields.len() < 14 {
        return None;
    }
    // The client's own line has -1 for values that only the server knows.
    let count = |index: usize| fields[index].parse::<i64>().ok().map(|n| n.max(0) as u64);
    Some(Flow {
        bytes: count(7)?,
        bits_per_s: fields[8].parse().ok()?,
        lost: count(10)?,
        total: count(11)?,
        out_of_order: count(13)?,
        ..Flow::default()
    })
}

/// Jain's fairness index: `(sum x)^2 / (n * sum x^2)`; 1 when all are equal, 1/n when one has everything.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// Starts a server with arguments such as `-u`, which reports as a flood's do, and waits until it has its port open.
pub fn serve(namespace: &Namespace, port: u16, arguments: &[&str]) -> Result<Process> {
    let mut command = namespace.command("iperf");
    command.args(["-s", "-y", "C", "-p", &port.to_string()]).args(arguments);
    let mut server = Process::spawn(&mut command)?;
    wait_for_port(&mut server, port, if arguments.contains(&"-u") { "udp" } else { "tcp" })?;
    Ok(server)
}

fn wait_for_port(server: &mut Process, port: u16, protocol: &str) -> Result<()> {
    let tables = ["", "6"].map(|version| format!("/proc/{}/net/{protocol}{version}", server.id()));
    let mark = format!(":{port:04X} ");
    let waited =
        wait_until(&format!("an iperf server has port {port} open"), Duration::from_secs(20), || {
            if !server.is_running()? {
                bail!("an iperf server ended early: {}", server.stderr().trim());
            }
            Ok(tables.iter().any(|table| fs::read_to_string(table).is_ok_and(|text| text.contains(&mark))))
        });
    waited.with_context(|| server.stderr().trim().to_string())
}

fn said(clients: &[Process]) -> String {
    clients.iter().map(|client| client.stderr()).find(|text| !text.trim().is_empty()).unwrap_or_default()
}

/// The packets that a namespace's kernel has taken in for its programs, ICMP left out, and the time at which they were counted. Packets
/// that wait in the socket of a program which has no processor are among them, so that a rate is that of the way to it.
#[derive(Clone, Copy, Debug)]
pub struct Deliveries {
    packets: u64,
    at: Instant,
}

impl Deliveries {
    /// The packets until now.
    pub fn to(namespace: &Namespace, ipv6: bool) -> Result<Deliveries> {
        let name = if ipv6 { "snmp6" } else { "snmp" };
        let path = format!("/proc/thread-self/net/{name}");
        let (text, at) = namespace.enter(|| (fs::read_to_string(&path), now()))?;
        let text = text.with_context(|| format!("reading {path}"))?;
        let counts = match ipv6 {
            false => [snmp_value(&text, "Ip:", "InDelivers"), snmp_value(&text, "Icmp:", "InMsgs")],
            true => [snmp6_value(&text, "Ip6InDelivers"), snmp6_value(&text, "Icmp6InMsgs")],
        };
        let [Some(all), Some(icmp)] = counts else { bail!("no InDelivers or InMsgs in {path}") };
        Ok(Deliveries { packets: all - icmp, at })
    }

    /// The seconds from an earlier count to this one.
    pub fn seconds_since(&self, before: &Deliveries) -> f64 {
        (self.at - before.at).as_secs_f64()
    }

    /// The packets from an earlier count to this one.
    pub fn packets_since(&self, before: &Deliveries) -> u64 {
        self.packets - before.packets
    }

    /// The packets a second from an earlier count to this one.
    pub fn per_s_since(&self, before: &Deliveries) -> f64 {
        self.packets_since(before) as f64 / self.seconds_since(before)
    }
}

/// Datagrams that programs in a namespace have received since it was made.
pub fn received_datagrams(namespace: &Namespace, ipv6: bool) -> Result<u64> {
    if ipv6 {
        let text = net_file(namespace, "snmp6")?;
        snmp6_value(&text, "Udp6InDatagrams").context("no Udp6InDatagrams in /proc/net/snmp6")
    } else {
        let text = net_file(namespace, "snmp")?;
        snmp_value(&text, "Udp:", "InDatagrams").context("no InDatagrams in /proc/net/snmp")
    }
}

/// Segments of TCP that a namespace has received since it was made.
pub fn received_segments(namespace: &Namespace) -> Result<u64> {
    let text = net_file(namespace, "snmp")?;
    snmp_value(&text, "Tcp:", "InSegs").context("no InSegs in /proc/net/snmp")
}

/// The datagrams of a load's namespaces that were lost at an end, so far: refused to a client, or too many for a server's socket.
fn excused(load: &Load) -> Result<[u64; 2]> {
    Ok([refused_datagrams(load.from)?, overflowed_datagrams(load.to)?])
}

/// Datagrams that found a program's socket buffer full, in a namespace since it was made: a loss of the receiver's.
pub fn overflowed_datagrams(namespace: &Namespace) -> Result<u64> {
    let v4 = snmp_value(&net_file(namespace, "snmp")?, "Udp:", "RcvbufErrors");
    let v6 = snmp6_value(&net_file(namespace, "snmp6")?, "Udp6RcvbufErrors");
    Ok(v4.context("no RcvbufErrors in /proc/net/snmp")? + v6.unwrap_or(0))
}

/// Datagrams that the kernel of a namespace never took from those who sent them, since the namespace was made: their `send` failed, as that
/// of a client does whose time ends while it is held. A datagram that a queue drops is discarded too, by a `send` that succeeds, and not
/// one of these; the drops of the queues of interfaces that are gone are not known.
pub fn refused_datagrams(namespace: &Namespace) -> Result<u64> {
    let (snmp, snmp6) = (net_file(namespace, "snmp")?, net_file(namespace, "snmp6")?);
    let discarded = snmp_value(&snmp, "Ip:", "OutDiscards").context("no OutDiscards in /proc/net/snmp")?;
    let discarded = discarded + snmp6_value(&snmp6, "Ip6OutDiscards").unwrap_or(0);
    Ok(discarded.saturating_sub(dropped_by_queues(&namespace.tc("-s qdisc show")?)))
}

/// Sums ` Sent 1 bytes 1 pkt (dropped 1, overlimits 0 requeues 0)`.
fn dropped_by_queues(text: &str) -> u64 {
    let counts = text.split("(dropped ").skip(1);
    counts.filter_map(|rest| rest.split(',').next()?.parse::<u64>().ok()).sum()
}

/// The text of a file of `/proc/net` as a namespace has it.
pub fn net_file(namespace: &Namespace, name: &str) -> Result<String> {
    let path = format!("/proc/thread-self/net/{name}");
    namespace.enter(|| fs::read_to_string(&path))?.with_context(|| format!("reading {path}"))
}

/// Looks a counter up in `/proc/net/snmp`: a line of names, then a line of values, under the same prefix.
fn snmp_value(text: &str, prefix: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(prefix));
    let column = lines.next()?.split_whitespace().position(|word| word == name)?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

/// Looks a counter up in `/proc/net/snmp6`: one `name value` a line.
fn snmp6_value(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_report_is_read() {
        let text = "19700101000000,10.0.0.1,49984,10.0.0.2,6666,1,0.0-2.0,16734480,66790813,0.045,171231,182615,93.766,25\n";
        let flow = parse_csv(text).unwrap();
        let expected = Flow {
            bytes: 16_734_480,
            bits_per_s: 66_790_813.0,
            lost: 171_231,
            total: 182_615,
            out_of_order: 25,
            ..Flow::default()
        };
        assert_eq!(flow, expected);
        assert_eq!((flow.total - flow.lost) * PAYLOAD_BYTES, flow.bytes);
    }

    #[test]
    fn warnings_around_a_report_are_passed_over() {
        let text = "19700101000000,10.0.0.1,34064,10.0.0.2,5064,1,0.0-4.0,1209810,2400062,1.410,28965,29788,97.237,0\n\
                    [  3] WARNING: ack of last datagram failed.\n";
        assert_eq!(parse_csv(text).unwrap().lost, 28_965);
    }

    #[test]
    fn drops_of_all_queues_are_summed() {
        let text = "qdisc mq 0: dev a root\n Sent 9 bytes 1 pkt (dropped 2, overlimits 0 requeues 0)\n backlog 0b 0p requeues 0\n\
                    qdisc fq 1: dev b root\n Sent 9 bytes 1 pkt (dropped 40, overlimits 7 requeues 0)\n";
        assert_eq!(dropped_by_queues(text), 42);
    }

    #[test]
    fn a_client_report_gives_the_bytes_sent() {
        let text = "19700101000000.000,10.0.0.1,49984,10.0.0.2,6666,1,0.0-2.0,268444050,1073715535,0.000,0,-1,-0.000,0\n";
        let flow = parse_csv(text).unwrap();
        assert_eq!((flow.bytes, flow.total), (268_444_050, 0));
    }

    #[test]
    fn no_report_is_an_error() {
        for text in ["", "connect failed: Network is unreachable\n", "1,2,3\n"] {
            assert!(parse_csv(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_lost_at_the_very_end_is_seen() {
        let flow = Flow { bytes: 10, sent_bytes: 30, ..Flow::default() };
        assert_eq!(flow.missing(), 20);
    }

    #[test]
    fn jain_is_one_for_equals_and_one_nth_for_one_winner() {
        assert!((jain(&[5.0; 8]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
        assert_eq!(jain(&[0.0, 0.0]), 0.0);
    }

    #[test]
    fn kernel_counters_are_found_by_name() {
        let snmp = "Ip: Forwarding InReceives\nIp: 1 7\nUdp: InDatagrams NoPorts\nUdp: 45 9\nUdpLite: InDatagrams\nUdpLite: 3\n";
        assert_eq!(snmp_value(snmp, "Udp:", "InDatagrams"), Some(45));
        assert_eq!(snmp_value(snmp, "Udp:", "OutDatagrams"), None);
        let snmp6 = "Ip6InReceives                   \t4\nUdp6InDatagrams                 \t12\n";
        assert_eq!(snmp6_value(snmp6, "Udp6InDatagrams"), Some(12));
        assert_eq!(snmp6_value(snmp6, "Udp6"), None);
    }
}
