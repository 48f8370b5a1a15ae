//! Packets that do not fit into a tunnel: senders are told what does, by the file and by what the gateway's interface takes at the time.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use weir_lab::bed::Namespace;
use weir_lab::clock::wait_until;
use weir_lab::process::run;
use weir_tests::gateways::{COMMAND_LIMIT, FAR, PATIENCE, sites, wait_for};
use weir_tests::{harness, privileged};

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_sender_is_told_what_fits).together(),
        privileged!(a_gateway_follows_the_mtu_of_its_port).together(),
    ])
}

/// The router before the tunnel does not know what fits: senders of both families are told, and come through.
fn a_sender_is_told_what_fits() -> Result<()> {
    let internet = Namespace::new("net")?;
    let mut sites = sites(Some(&internet))?;
    let known = "mtu = 1438 ";
    ensure!(sites[0].text.contains(known), "{}", sites[0].text);
    sites[0].text = sites[0].text.replace(known, "# ");
    let (one, two) = (sites[0].up()?, sites[1].up()?);
    let near = &sites[0].host;
    for (address, bytes) in [(FAR[0], "1472"), (FAR[1], "1452")] {
        wait_for(near, address)?;
        let mut ping = near.command("ping");
        let done = run(
            ping.args(["-n", "-c", "4", "-i", "0.2", "-W", "5", "-M", "do", "-s", bytes, address]),
            COMMAND_LIMIT,
        )?;
        let told = done.stdout.clone() + &done.stderr;
        ensure!(told.contains("mtu = 1446") || told.contains("mtu=1446"), "{address}: {told}");
        // Without DF the sender itself cuts its packets to what it was told.
        let mut ping = near.command("ping");
        run(
            ping.args(["-n", "-c", "2", "-i", "0.2", "-W", "5", "-M", "want", "-s", bytes, address]),
            COMMAND_LIMIT,
        )?
        .success()?;
    }
    one.down()?;
    two.down().map(drop)
}

/// The pair outside gets a shorter MTU while the gateways are up, and then a shorter one still: they tell who sends what fits, or cut.
fn a_gateway_follows_the_mtu_of_its_port() -> Result<()> {
    let internet = Namespace::new("net")?;
    let sites = sites(Some(&internet))?;
    let ups = [sites[0].up()?, sites[1].up()?];
    let near = &sites[0].host;
    wait_for(near, FAR[0])?;
    let ping = |may: &str, bytes: &str| {
        let args = ["-n", "-c", "1", "-W", "1", "-M", may, "-s", bytes, FAR[0]];
        run(near.command("ping").args(args), COMMAND_LIMIT)
    };
    // Both gateways' pairs, as answers are as long as requests.
    for (mtu, fits) in [(1300, "mtu = 1246"), (1200, "mtu = 1146")] {
        for (site, port) in sites.iter().zip(["w0", "w1"]) {
            site.gateway.ip(&format!("link set veth-wan mtu {mtu}"))?;
            internet.ip(&format!("link set {port} mtu {mtu}"))?;
        }
        wait_until("the sender is told what fits", PATIENCE, || {
            near.ip("route flush cache")?;
            let done = ping("do", "1350")?;
            Ok((done.stdout + &done.stderr).contains(fits))
        })?;
        wait_until("what may be cut passes", PATIENCE, || Ok(ping("want", "1350")?.status.success()))?;
    }
    for up in ups {
        up.check()?;
        up.down()?;
    }
    Ok(())
}
