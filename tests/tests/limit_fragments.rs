//! `weir limit --classes` and datagrams in fragments: all of a datagram is of one class, which its ports may choose.

use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::Namespace;
use weir_lab::clock::wait_until;
use weir_lab::iperf::{Flood, Load};
use weir_tests::classes::File;
use weir_tests::crowd::Crowd;
use weir_tests::limits::{Between, Row};
use weir_tests::{harness, privileged};

const PATIENCE: Duration = Duration::from_secs(30);

/// A narrow class for what no filter names, so that a fragment that goes there comes late.
const FILE: &str = r#"
default = "rest"
[[class]]
name = "named"
rate = "60mbit"
[[class]]
name = "rest"
rate = "5mbit"
ceil = "5mbit"
[[filter]]
protocol = "udp"
to_ports = "7001"
class = "named"
"#;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(all_of_a_datagram_is_of_the_class_of_its_ports).together(),
        privileged!(mixed_datagrams_are_of_the_class_of_their_ports).flooding(),
        privileged!(datagrams_in_fragments_and_whole_ones_arrive_in_order).flooding(),
    ])
}

/// The packets that have left a class of the limit of this name.
fn delivered(row: &Row, limit: &str, class: &str) -> Result<u64> {
    let limits = row.limits(limit)?;
    let classes = limits.first().and_then(|limit| limit["classes"].as_array()).context("no classes")?;
    let class = classes.iter().find(|there| there["name"] == class).context("no class")?;
    class["delivered"].as_u64().context("no packets")
}

fn send(from: &Namespace, to: &str, port: u16, count: usize) -> Result<()> {
    from.enter(|| -> std::io::Result<()> {
        let socket = UdpSocket::bind((if to.contains(':') { "::" } else { "0.0.0.0" }, 0))?;
        // Not connected: a refusal that comes back from the other end is no error of a `send` then.
        (0..count).try_for_each(|_| socket.send_to(&[0; 4000], (to, port)).map(drop))
    })??;
    Ok(())
}

/// Of a program, and of packets that are forwarded, over either version of IP.
fn all_of_a_datagram_is_of_the_class_of_its_ports() -> Result<()> {
    const DATAGRAMS: usize = 20;
    const FRAGMENTS_EACH: u64 = 3;
    let file = File::new(FILE)?;
    let row = Row::new(Between::Routes)?;
    let to = Row::right_addresses(Between::Routes);
    row.weir(&format!("limit wa --rate 100mbit --name sent --classes {}", file.path()))?.success()?;
    row.weir(&format!("limit wb --rate-back 100mbit --name forwarded --classes {}", file.path()))?
        .success()?;
    let mut expected = 0;
    for address in [&to.v4, &to.v6] {
        expected += DATAGRAMS as u64 * FRAGMENTS_EACH;
        for (port, class) in [(7001, "named"), (7002, "rest")] {
            send(&row.left, address, port, DATAGRAMS)?;
            for limit in ["sent", "forwarded"] {
                let mut seen = 0;
                let waited = wait_until("all have left their class", PATIENCE, || {
                    seen = delivered(&row, limit, class)?;
                    // Messages to neighbours are of the rest as well.
                    Ok(seen >= expected)
                });
                waited.with_context(|| format!("{seen} of {expected} of {class} at {limit}"))?;
            }
        }
    }
    for limit in ["sent", "forwarded"] {
        let seen = delivered(&row, limit, "named")?;
        ensure!(seen == expected, "{seen} at {limit} in place of {expected}");
    }
    Ok(())
}

/// Their fragments come mixed where they are forwarded, as the programs take turns where they are sent. Sockets that are not connected number
/// their datagrams together; two that are may use the same numbers at a time.
fn mixed_datagrams_are_of_the_class_of_their_ports() -> Result<()> {
    const PROGRAMS: usize = 64;
    const DATAGRAMS_EACH: usize = 80;
    const FRAGMENTS: u64 = (PROGRAMS * DATAGRAMS_EACH * 3) as u64;
    let file = File::new(FILE)?;
    let row = Row::new(Between::Routes)?;
    let to = Row::right_addresses(Between::Routes).v4;
    row.weir(&format!("limit wa --rate 70mbit --name sent --classes {}", file.path()))?.success()?;
    row.weir(&format!("limit wb --rate-back 100mbit --name forwarded --classes {}", file.path()))?
        .success()?;
    row.left.sh(&format!("ping -q -c 1 {to}"))?;
    std::thread::scope(|scope| {
        let program = || send(&row.left, &to, 7001, DATAGRAMS_EACH);
        let programs: Vec<_> = (0..PROGRAMS).map(|_| scope.spawn(program)).collect();
        programs.into_iter().try_for_each(|program| program.join().expect("a sender panicked"))
    })?;
    for limit in ["sent", "forwarded"] {
        let mut seen = 0;
        let waited = wait_until("all have left their class", PATIENCE, || {
            seen = delivered(&row, limit, "named")?;
            Ok(seen >= FRAGMENTS)
        });
        waited.with_context(|| format!("{seen} of {FRAGMENTS} at {limit}"))?;
        ensure!(seen == FRAGMENTS, "{seen} of {FRAGMENTS} at {limit}");
        row.lossless_limit(limit)?;
    }
    Ok(())
}

/// Beside floods that fill the class of what no filter names.
fn datagrams_in_fragments_and_whole_ones_arrive_in_order() -> Result<()> {
    let file = File::new(FILE)?;
    let row = Row::new(Between::Bridge)?;
    row.weir(&format!("limit wa --rate 100mbit --classes {}", file.path()))?.success()?;
    let to = row.right_address(Between::Bridge);
    // Linux takes fragments of IPv4 for lost between which 64 others of the same sender came; flows take turns of up to 25 packets here.
    row.right.sh("sysctl -qw net.ipv4.ipfrag_max_dist=0")?;
    // Fragments that wait until the address of the neighbour is known may find no place there.
    row.left.sh(&format!("ping -q -c 1 {to}"))?;
    let flood = Flood::start(&Load::new(&row.left, &row.right, &to, 2, 3.0))?;
    let crowd = Crowd::start_mixed(&row.left, &row.right, &to, 1, vec![100, 4000, 100, 1400])?;
    flood.finish(PATIENCE)?;
    let arrived = row.all_arrived(crowd)?;
    ensure!(arrived.count > 1000, "only {} arrived", arrived.count);
    ensure!(arrived.reordered == 0, "{} of {} out of order", arrived.reordered, arrived.count);
    row.lossless_limit("wa").map(drop)
}
