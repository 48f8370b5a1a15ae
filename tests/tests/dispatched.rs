//! A wire of `weir up` whose packets are dispatched to two workers: real programs lose nothing, each flow has one worker, and the counters
//! of each worker for `-Q` add up while packets move.

use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::wait_until;
use weir_lab::iperf::Load;
use weir_tests::rig::{Demand, measure_rate, require_lossless, require_rate};
use weir_tests::topology::{Hosts, Up, flood};
use weir_tests::{harness, privileged};

const PATIENCE: Duration = Duration::from_secs(40);
const SECONDS: f64 = 2.0;
/// So many that they are not all one worker's by chance.
const CLIENTS: usize = 16;
const FLOWS: u16 = 8;
const DATAGRAMS: u64 = 50;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(deferred_on_two_workers).on_two_processors(),
        privileged!(hybrid_on_two_workers).on_two_processors(),
        privileged!(a_small_queue_holds_who_sends).on_two_processors(),
    ])
}

fn file(dispatch: &str) -> String {
    format!(
        "[[port]]\ninterface = \"p0\"\nrate = \"200mbit\"\n[[port]]\ninterface = \"p1\"\nrate = \"200mbit\"\n\
         [[wire]]\nports = [\"p0\", \"p1\"]\n{dispatch}"
    )
}

fn hosts() -> Result<Hosts> {
    let hosts = Hosts::new(2, Some(16))?;
    (0..2).try_for_each(|host| hosts.address(host, &format!("10.99.1.{}/24", host + 1)))?;
    Ok(hosts)
}

/// A figure of the rows of a protocol, for packets from the first host to the second, worker by worker.
fn of_workers(up: &Up, proto: &str, figure: &str) -> Result<Vec<u64>> {
    let all = up.stat_rows("workstreams")?;
    let name = format!("{proto}@p0->p1");
    let rows = all.iter().filter(|row| row["name"] == name.as_str());
    let counts: Vec<_> = rows.map(|row| row[figure].as_u64().context("a count")).collect::<Result<_>>()?;
    ensure!(counts.len() == 2, "{} rows of {name}: {all:?}", counts.len());
    Ok(counts)
}

fn deferred_on_two_workers() -> Result<()> {
    let hosts = hosts()?;
    let up = carries(&hosts, "dispatch = \"deferred\"\n")?;
    let queued = of_workers(&up, "ip", "queued")?;
    ensure!(queued == of_workers(&up, "ip", "handled")?, "all of ip's is handled from its queues");
    ensure!(of_workers(&up, "ip", "hybrid_dispatched")? == [0, 0]);
    up.down().map(drop)
}

fn hybrid_on_two_workers() -> Result<()> {
    let hosts = hosts()?;
    let up = carries(&hosts, "dispatch = \"hybrid\"\nset = [\"rss.hash=4-tuple\"]\n")?;
    let at_once = of_workers(&up, "ip", "hybrid_dispatched")?;
    ensure!(at_once.iter().all(|packets| *packets > 0), "{at_once:?}");
    ensure!(of_workers(&up, "ether", "queued")?[1] > 0, "what is the second worker's was handed over");
    up.down().map(drop)
}

fn a_small_queue_holds_who_sends() -> Result<()> {
    carries(&hosts()?, "dispatch = \"deferred\"\nset = [\"defaultqlimit=4\"]\n")?.down().map(drop)
}

/// Floods both ways, and then flows one by one. The wire ends with its interfaces, and so with the hosts.
fn carries(hosts: &Hosts, dispatch: &str) -> Result<Up> {
    let up = hosts.up_with(&file(dispatch), &["--workers", "2"])?;
    let there = Load::new(&hosts.hosts[0], &hosts.hosts[1], "10.99.1.2", CLIENTS, SECONDS);
    let back =
        Load { first_port: 6001, ..Load::new(&hosts.hosts[1], &hosts.hosts[0], "10.99.1.1", 2, SECONDS) };
    let flood_back = flood(&back)?;
    let flood_there = flood(&there)?;
    let rate = measure_rate(&flood_there, &there)?;
    up.check().context("under load")?;
    let flows = flood_there.finish(PATIENCE)?;
    require_lossless(&flows, &there)?;
    require_lossless(&flood_back.finish(PATIENCE)?, &back).context("back")?;
    up.check()?;
    let handled = of_workers(&up, "ip", "handled")?;
    ensure!(handled.iter().all(|packets| *packets > 100), "both workers have flows: {handled:?}");
    require_rate(&flows, rate, Demand { jain_min: 0.95, ..Demand::of_rate(200e6) })?;
    require_each_flow_is_one_workers(hosts, &up)?;
    let shown = up.weir(&["show", &up.name])?.success()?.stdout;
    ensure!(shown.contains(dispatch.lines().next().unwrap_or_default()), "{shown}");
    Ok(up)
}

fn require_each_flow_is_one_workers(hosts: &Hosts, up: &Up) -> Result<()> {
    for flow in 0..FLOWS {
        let before = of_workers(up, "ip", "handled")?;
        hosts.hosts[0].enter(|| -> Result<()> {
            let socket = UdpSocket::bind(("10.99.1.1", 7001 + flow))?;
            (0..DATAGRAMS).try_for_each(|_| socket.send_to(&[0; 100], "10.99.1.2:9").map(drop))?;
            Ok(())
        })??;
        let mut more = Vec::new();
        wait_until("all have been handled", Duration::from_secs(10), || {
            let now = of_workers(up, "ip", "handled")?;
            more = now.iter().zip(&before).map(|(now, before)| now - before).collect();
            Ok(more.iter().sum::<u64>() >= DATAGRAMS)
        })?;
        ensure!(more.iter().filter(|packets| **packets > 0).count() == 1, "flow {flow}: {more:?}");
    }
    up.check()
}
