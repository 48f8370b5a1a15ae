//! Packets that do not fit into a tunnel: senders are told what does, by the file and by what the gateway's interface takes at the time.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use weir_lab::bed::{End, Namespace, plain_veth};
use weir_lab::clock::wait_until;
use weir_lab::process::run;
use weir_lab::up::Up;
use weir_tests::gateways::{COMMAND_LIMIT, FAR, Folder, PATIENCE, sites, wait_for};
use weir_tests::{harness, privileged, weir_binary};

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_sender_is_told_what_fits).together(),
        privileged!(a_gateway_follows_the_mtu_of_its_port).together(),
        privileged!(transport_mode_takes_what_hosts_cut).together(),
    ])
}

/// The router before the tunnel does not know what fits: senders of both families are told, and come through.
fn a_sender_is_told_what_fits() -> Result<()> {
    let internet = Namespace::new("net")?;
    let mut sites = sites(Some(&internet))?;
    let known = "mtu = 1446 ";
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

/// The hosts at both ends of the associations, which are in transport mode.
const HOSTS: [[&str; 2]; 2] = [["10.9.0.1", "10.9.0.2"], ["fd00:9::1", "fd00:9::2"]];

/// The file of the gateway before host `own`, which has its keys in the folder.
fn transport_file(folder: &Folder, own: usize) -> Result<String> {
    let mut text = "[[port]]\ninterface = \"lan\"\n[[port]]\ninterface = \"wan\"\n[[esp]]\nname = \"gw\"\ninside = \"lan\"\n\
                    outside = \"wan\"\n"
        .to_string();
    text += &format!("address = [\"{}\", \"{}\"]\n", HOSTS[0][own], HOSTS[1][own]);
    for (family, ends) in HOSTS.iter().enumerate() {
        for from in 0..2 {
            let (name, is_out) = (format!("sa{family}{from}"), from == own);
            folder.key(&name, (2 * family + from) as u8, is_out)?;
            let direction = if is_out { "out" } else { "in" };
            let (source, destination) = (ends[from], ends[1 - from]);
            text += &format!(
                "[[sa]]\nname = \"{name}\"\ndirection = \"{direction}\"\nmode = \"transport\"\nspi = {}\nsource = \"{source}\"\n\
                 destination = \"{destination}\"\nalgorithm = \"aes256-gcm\"\nkey_file = \"{}/{name}.key\"\n\
                 [[policy]]\ndirection = \"{direction}\"\nfrom = \"{source}\"\nto = \"{destination}\"\naction = \"protect\"\n\
                 sa = [\"{name}\"]\n",
                0x1000 + 0x10 * family + from,
                folder.0.display(),
            );
        }
    }
    Ok(text)
}

/// Packets that their sender has cut, as it does with long ones and with those that do not fit once it was told, are sealed whole.
fn transport_mode_takes_what_hosts_cut() -> Result<()> {
    let hosts = [Namespace::new("h0")?, Namespace::new("h1")?];
    let gateways = [Namespace::new("gw0")?, Namespace::new("gw1")?];
    let [wan0, wan1] = gateways.each_ref().map(|gateway| End { namespace: gateway, name: "wan" });
    plain_veth(3, wan0, wan1)?;
    let mut ups = Vec::new();
    let mut folders = Vec::new();
    for (own, (host, gateway)) in hosts.iter().zip(&gateways).enumerate() {
        let inside = End { namespace: gateway, name: "lan" };
        plain_veth(own as u8 + 1, End { namespace: host, name: "eth0" }, inside)?;
        host.ip(&format!("addr add {}/24 dev eth0", HOSTS[0][own]))?;
        host.ip(&format!("addr add {}/64 dev eth0 nodad", HOSTS[1][own]))?;
        let folder = Folder::new(gateway)?;
        ups.push(Up::start(&weir_binary()?, gateway, &transport_file(&folder, own)?)?);
        folders.push(folder);
    }
    for [_, address] in HOSTS {
        wait_for(&hosts[0], address)?;
        let ping = |may: &str, bytes: &str| {
            let args = ["-n", "-c", "3", "-i", "0.2", "-W", "5", "-M", may, "-s", bytes, address];
            run(hosts[0].command("ping").args(args), COMMAND_LIMIT)
        };
        // Longer than any packet of the interface, so that the host cuts it.
        for bytes in ["2000", "3000"] {
            let done = ping("dont", bytes)?.success()?;
            ensure!(done.stdout.contains(" 0% packet loss"), "{address}, {bytes} bytes: {}", done.stdout);
        }
        // With DF and as long as the interface takes: the host is told what fits, and cuts to that itself.
        let done = ping("do", "1440")?;
        let told = done.stdout + &done.stderr;
        ensure!(told.contains("mtu = 14") || told.contains("mtu=14"), "{address}: {told}");
        ping("want", "1440")?.success()?;
    }
    for up in ups {
        up.check()?;
        up.down()?;
    }
    Ok(())
}
