//! Two gateways with a tunnel between them, as `examples/` has them: `weir up` at both ends, programs of the kernel behind each.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::Namespace;
use weir_lab::clock::wait_until;
use weir_lab::iperf::Load;
use weir_lab::ping::Ping;
use weir_lab::process::{Process, run};
use weir_lab::up::Up;
use weir_tests::gateways::{
    BESIDE, COMMAND_LIMIT, FAR, PATIENCE, Site, association, count, esp, require_lossless_through, sites,
    wait_for,
};
use weir_tests::rig::{measure_rate, require_lossless};
use weir_tests::topology::flood;
use weir_tests::{harness, privileged, require_timing, weir_binary};

const SECONDS: f64 = 3.0;
/// The longest payload that fits into the tunnel with the headers of UDP and of either family.
const PAYLOAD_BYTES: u64 = 1380;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(what_passes_is_sealed_and_none_of_it_is_lost),
        privileged!(back_to_back_they_find_each_other).flooding(),
        privileged!(keys_change_under_a_flood).flooding(),
        privileged!(a_worker_of_its_own_seals_and_costs_nobody_beside_anything),
        privileged!(sealers_share_one_association_and_keep_its_order).flooding(),
        privileged!(hybrid_shares_with_sealers_and_keeps_the_order).flooding(),
        privileged!(a_way_that_takes_less_is_learned).flooding(),
        privileged!(a_peer_that_a_translator_moves_is_followed).flooding(),
        privileged!(what_is_cut_on_the_way_is_put_together).flooding(),
        privileged!(ipv6_goes_by_a_way_that_leaves_it_less_than_it_takes).flooding(),
        privileged!(what_a_far_router_tells_is_sealed).together(),
        privileged!(limits_of_an_association_are_told_as_they_are_reached).together(),
    ])
}

/// The packets of ESP and of other protocols of IPv4 that the bridge saw, both ways.
fn on_the_wire(internet: &Namespace) -> Result<[u64; 2]> {
    let text = internet.sh("nft list table netdev wire")?;
    let mut seen = [0, 0];
    for line in text.lines().filter(|line| line.contains("counter packets")) {
        let count =
            line.split("packets ").nth(1).and_then(|rest| rest.split(' ').next()).context("a count")?;
        seen[usize::from(line.contains("!="))] += count.parse::<u64>()?;
    }
    Ok(seen)
}

/// Requires most of the rate from a stream of TCP.
fn require_tcp(near: &Namespace, far: &Namespace, address: &str) -> Result<()> {
    let mut server = Process::spawn(far.command("iperf3").args(["-s", "-1", "--forceflush"]))?;
    server.wait_for_output("listening", COMMAND_LIMIT)?;
    let done = run(near.command("iperf3").args(["-c", address, "-t", "2", "-J"]), PATIENCE)?.success()?;
    let report: Value = serde_json::from_str(&done.stdout)?;
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 reports")?;
    require_timing!(rate > 60e6, "{:.1} Mbit/s of TCP", rate / 1e6);
    Ok(())
}

/// Floods, TCP and pings of both families, and their packets on the internet's side.
fn what_passes_is_sealed_and_none_of_it_is_lost() -> Result<()> {
    let internet = Namespace::new("net")?;
    let sites = sites(Some(&internet))?;
    let ups = [sites[0].up()?, sites[1].up()?];
    let [near, far] = sites.each_ref().map(|site| &site.host);
    for address in FAR {
        wait_for(near, address)?;
        let load = Load { payload_bytes: PAYLOAD_BYTES, ..Load::new(near, far, address, 2, SECONDS) };
        let flood = flood(&load)?;
        let rate = measure_rate(&flood, &load)?;
        ups[0].check().context("under load")?;
        require_lossless_through(&ups, &sites, &flood.finish(PATIENCE)?, &load).context(address)?;
        require_timing!(rate > 80e6, "{:.1} Mbit/s of 100 with ESP around it", rate / 1e6);
    }
    require_tcp(near, far, FAR[0])?;
    let times = Ping::start_series(near, FAR[0], 20, 0.05)?.finish()?;
    times.require_all()?;
    let [sealed, clear] = on_the_wire(&internet)?;
    ensure!(sealed > 10_000 && clear == 0, "{sealed} packets of ESP, {clear} others");
    for (up, site) in ups.into_iter().zip(&sites) {
        up.check()?;
        let said = up.weir(&["stat", &up.name, "--json"])?.success()?.stdout
            + &up.weir(&["stat", &up.name])?.success()?.stdout
            + &up.weir(&["show", &up.name])?.success()?.stdout;
        let key = fs::read_to_string(site.folder.0.join("one-to-two.key"))?;
        ensure!(!said.contains(&key[..16]), "a key is shown");
        ensure!(said.contains("proto esp spi 0x00001001 mode tunnel aes256-gcm"), "{said}");
        up.down()?;
    }
    Ok(())
}

/// Each gateway is a weir's port at the other's end.
fn back_to_back_they_find_each_other() -> Result<()> {
    let sites = sites(None)?;
    let ups = [sites[0].up()?, sites[1].up()?];
    let [near, far] = sites.each_ref().map(|site| &site.host);
    wait_for(near, FAR[0])?;
    let load = Load { payload_bytes: PAYLOAD_BYTES, ..Load::new(near, far, FAR[0], 2, SECONDS) };
    let flood = flood(&load)?;
    require_lossless(&flood.finish(PATIENCE)?, &load)?;
    for up in ups {
        up.check()?;
        let said = up.weir(&["stat", &up.name, "--json"])?.success()?.stdout;
        ensure!(!said.contains("policy-discard"), "the routers' own packets are dropped: {said}");
        up.down()?;
    }
    Ok(())
}

/// A second key at the receiver, then at the sender, then the first one goes at both.
fn keys_change_under_a_flood() -> Result<()> {
    let internet = Namespace::new("net")?;
    let sites = sites(Some(&internet))?;
    let ups = [sites[0].up()?, sites[1].up()?];
    let [near, far] = sites.each_ref().map(|site| &site.host);
    wait_for(near, FAR[0])?;
    for (number, site) in sites.iter().enumerate() {
        site.folder.key("next", 0x55, number == 0)?;
    }
    let load = Load { payload_bytes: PAYLOAD_BYTES, ..Load::new(near, far, FAR[0], 2, 4.0 * SECONDS) };
    let flood = flood(&load)?;
    let next = |site: &Site, direction: &str| {
        format!(
            "[[sa]]\nname = \"next\"\ndirection = \"{direction}\"\nspi = 0x1002\nsource = \"192.0.2.1\"\ndestination = \"192.0.2.2\"\n\
             algorithm = \"aes256-gcm\"\nkey_file = \"{}/next.key\"\nextended = true\n\n[[esp]]",
            site.folder.0.display()
        )
    };
    let policy = "sa = [\"one-to-two\"]";
    sites[1].apply(
        &ups[1],
        &[("[[esp]]", &next(&sites[1], "in")), (policy, "sa = [\"one-to-two\", \"next\"]")],
    )?;
    sites[0].apply(
        &ups[0],
        &[("[[esp]]", &next(&sites[0], "out")), (policy, "sa = [\"next\", \"one-to-two\"]")],
    )?;
    let arrived = || Ok(count(&association(&ups[1], "next")?, "packets")? > 100);
    wait_until("packets come by the next key", PATIENCE, arrived)?;
    let before = count(&association(&ups[1], "one-to-two")?, "packets")?;
    ensure!(before > 100, "{before} packets by the first key");
    require_lossless_through(&ups, &sites, &flood.finish(PATIENCE)?, &load)?;
    // A key that runs cannot become another association's.
    let other = sites[0].apply(&ups[0], &[("spi = 0x1001", "spi = 0x1003")]);
    ensure!(format!("{:#}", other.err().context("it is refused")?).contains("needs a key of its own"));
    for up in ups {
        up.check()?;
        up.down()?;
    }
    Ok(())
}

/// The worker that receives has a wire as well, whose pings nobody holds while the tunnel is flooded.
fn a_worker_of_its_own_seals_and_costs_nobody_beside_anything() -> Result<()> {
    let internet = Namespace::new("net")?;
    let sites = sites(Some(&internet))?;
    let hosts = [Namespace::new("p0")?, Namespace::new("p1")?];
    let ups = [sites[0].up_with_a_wire(&hosts)?, sites[1].up()?];
    let [near, far] = sites.each_ref().map(|site| &site.host);
    wait_for(near, FAR[0])?;
    wait_for(&hosts[0], BESIDE[1])?;
    let load = Load { payload_bytes: PAYLOAD_BYTES, ..Load::new(near, far, FAR[0], 2, SECONDS) };
    let flood = flood(&load)?;
    let pings = Ping::start_series(&hosts[0], BESIDE[1], 400, 0.005)?.finish()?;
    ups[0].check().context("under load")?;
    require_lossless_through(&ups, &sites, &flood.finish(PATIENCE)?, &load)?;
    pings.require_all().context("beside it")?;
    let inside = workstream(&ups[0], "inside@tunnel")?;
    let [worker, queued, handled] = ["wsid", "queued", "handled"].map(|what| count(&inside, what));
    let [worker, queued, handled] = [worker?, queued?, handled?];
    ensure!(worker == 1 && handled > 10_000 && queued == handled, "{inside}");
    ensure!(ups[0].handled()?[0] > 10_000, "the other worker receives");
    for up in ups {
        up.check()?;
        up.down()?;
    }
    let p99 = pings.percentile_ms(0.99).context("pings")?;
    require_timing!(p99 < 2.0, "{p99} ms for 99 % of the pings beside a flooded tunnel");
    Ok(())
}

fn sealers_share_one_association_and_keep_its_order() -> Result<()> {
    let [given, at_home] = shares_of_two_sealers("deferred")?;
    ensure!(given > 1_000 && at_home == 0, "{given} given to sealers and {at_home} at home");
    Ok(())
}

fn hybrid_shares_with_sealers_and_keeps_the_order() -> Result<()> {
    let [given, at_home] = shares_of_two_sealers("hybrid")?;
    ensure!(given + at_home > 1_000 && at_home > 100, "{given} given to sealers and {at_home} at home");
    Ok(())
}

/// Two sealers at the first gateway, by this dispatch; the second has none, and a window. Returns the packets that were given to sealers,
/// and those that the home did.
fn shares_of_two_sealers(dispatch: &str) -> Result<[u64; 2]> {
    let [one, two] = sites(None)?;
    let text = one.text.replace("[[esp]]\n", &format!("[[esp]]\ndispatch = \"{dispatch}\"\nsealers = 2\n"));
    let one = Site { text, ..one };
    let ups = [Up::start_with(&weir_binary()?, &one.gateway, &one.text, &["--workers", "2"])?, two.up()?];
    wait_for(&one.host, FAR[0])?;
    for (from, to, address) in [(&one.host, &two.host, FAR[0]), (&two.host, &one.host, "10.1.0.2")] {
        let load = Load { payload_bytes: PAYLOAD_BYTES, ..Load::new(from, to, address, 2, SECONDS / 2.0) };
        require_lossless(&flood(&load)?.finish(PATIENCE)?, &load)?;
    }
    ups[0].check()?;
    let stats = ups[0].stat()?;
    let stages = stats["stages"].as_array().context("stages")?;
    let named = |name: &str| {
        stages.iter().find(|stage| stage["name"] == name).with_context(|| format!("no {name} in {stages:?}"))
    };
    let esp = &named("tunnel")?["counts"];
    let [given, merged, at_home] = ["given", "merged", "at_home"].map(|what| count(esp, what));
    let (given, merged, at_home) = (given?, merged?, at_home?);
    ensure!(given - merged <= 256, "{given} given to sealers and {merged} back");
    for sealer in ["tunnel-sealer-0", "tunnel-sealer-1"] {
        let worked = count(named(sealer)?, "delivered")?;
        ensure!(worked >= given / 4, "{sealer} has sealed and opened {worked} packets of {given}");
    }
    for up in ups {
        up.check()?;
        up.down()?;
    }
    Ok([given, at_home])
}

/// The row of `weir stat -Q` of this name.
fn workstream(up: &Up, name: &str) -> Result<Value> {
    let rows = up.stat_rows("workstreams")?;
    rows.iter().find(|row| row["name"] == name).cloned().with_context(|| format!("no {name} in {rows:?}"))
}

/// The MTU of the way between the gateways by a router, in bytes.
const TAKES_BYTES: u64 = 1400;

/// Makes the internet between two gateways a router, whose next link takes so many bytes.
fn route_between(internet: &Namespace, takes_bytes: u64) -> Result<()> {
    internet.sh("nft delete table netdev wire")?;
    internet.ip("link del br0")?;
    internet.ip("addr add 203.0.113.1/32 dev lo")?;
    internet.ip("link set lo up")?;
    internet.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
    for number in 0..2 {
        // The gateways look for each other on their link.
        let (to, other) = (number + 1, 2 - number);
        internet.sh(&format!(
            "sysctl -qw net.ipv4.conf.w{number}.proxy_arp=1 net.ipv6.conf.w{number}.proxy_ndp=1"
        ))?;
        internet.ip(&format!("neigh add proxy 2001:db8::{other} dev w{number}"))?;
        internet
            .ip(&format!("route add 192.0.2.{to}/32 dev w{number} src 203.0.113.1 mtu lock {takes_bytes}"))?;
    }
    Ok(())
}

/// A router between the gateways, whose next link takes less than theirs. It tells the gateway, and the gateway tells who sends.
fn a_way_that_takes_less_is_learned() -> Result<()> {
    let internet = Namespace::new("net")?;
    let sites = sites(Some(&internet))?;
    route_between(&internet, TAKES_BYTES)?;
    let ups = [sites[0].up()?, sites[1].up()?];
    let [near, far] = sites.each_ref().map(|site| &site.host);
    for (address, bytes) in [(FAR[0], "1400"), (FAR[1], "1380")] {
        wait_for(near, address)?;
        let ping = |count: &str, may: &str| {
            let mut ping = near.command("ping");
            let args = ["-n", "-c", count, "-i", "0.2", "-W", "5", "-M", may, "-s", bytes, address];
            run(ping.args(args), COMMAND_LIMIT)
        };
        let done = ping("4", "do")?;
        let told = done.stdout.clone() + &done.stderr;
        ensure!(told.contains("mtu = 1346") || told.contains("mtu=1346"), "{address}: {told}");
        // Without DF the sender itself cuts its packets to what it was told. The first answer is lost, and teaches the gateway it came by.
        ping("1", "want")?;
        Ping::start_with(near, &["-M", "want", "-s", bytes], address, 2, 0.2)?.finish()?.require_all()?;
    }
    require_tcp(near, far, FAR[0])?;
    ensure!(count(&association(&ups[0], "one-to-two")?, "path_mtu_bytes")? == TAKES_BYTES);
    let said = ups[0].weir(&["stat", &ups[0].name])?.success()?.stdout;
    ensure!(said.contains(&format!("path-mtu {TAKES_BYTES}")), "{said}");
    for up in ups {
        up.check()?;
        up.down()?;
    }
    Ok(())
}

/// The first gateway is behind a translator, which gives its port another number at any time.
fn a_peer_that_a_translator_moves_is_followed() -> Result<()> {
    let internet = Namespace::new("net")?;
    let mut sites = sites(Some(&internet))?;
    for (number, site) in sites.iter_mut().enumerate() {
        site.text = site.text.replace("key_file =", "udp_ports = [4500, 4500]\nkey_file =");
        if number == 1 {
            site.text =
                site.text.replace("direction = \"in\"\nspi", "direction = \"in\"\nfollow_peer = true\nspi");
            ensure!(site.text.contains("follow_peer"), "no association in {}", site.text);
        }
    }
    let translate = |port: u16| -> Result<()> {
        for (chain, rule) in [
            ("w0", format!("udp sport 4500 udp sport set {port}")),
            ("w1", format!("udp dport {port} udp dport set 4500")),
        ] {
            internet.sh(&format!("nft flush chain netdev wire {chain}"))?;
            internet.sh(&format!("nft add rule netdev wire {chain} {rule}"))?;
        }
        Ok(())
    };
    translate(5001)?;
    let ups = [sites[0].up()?, sites[1].up()?];
    let [near, far] = sites.each_ref().map(|site| &site.host);
    for port in [5001, 61000] {
        translate(port)?;
        FAR.iter().try_for_each(|address| wait_for(near, address))?;
        require_tcp(near, far, FAR[0])?;
        for (name, place) in [("one-to-two", 0), ("two-to-one", 1)] {
            let row = association(&ups[1], name)?;
            ensure!(row["udp_ports"][place] == port, "{port}: {row}");
        }
    }
    for up in ups {
        up.check()?;
        up.down()?;
    }
    Ok(())
}

/// Packets of a tunnel that a router may cut come in fragments, as the kernel cuts them, and are put together.
fn what_is_cut_on_the_way_is_put_together() -> Result<()> {
    let internet = Namespace::new("net")?;
    let mut sites = sites(Some(&internet))?;
    route_between(&internet, TAKES_BYTES)?;
    for site in &mut sites {
        site.text = site
            .text
            .replace("direction = \"out\"\nspi", "direction = \"out\"\ndont_fragment = \"clear\"\nspi");
        ensure!(site.text.contains("dont_fragment"), "no association in {}", site.text);
    }
    let ups = [sites[0].up()?, sites[1].up()?];
    let [near, far] = sites.each_ref().map(|site| &site.host);
    for (address, bytes) in [(FAR[0], "1400"), (FAR[1], "1380")] {
        wait_for(near, address)?;
        let trips = Ping::start_with(near, &["-M", "do", "-s", bytes], address, 50, 0.01)?.finish()?;
        trips.require_all().context(address)?;
    }
    require_tcp(near, far, FAR[0])?;
    let cut = internet.sh("nstat -asz IpFragOKs")?;
    let cut: u64 =
        cut.split_whitespace().skip_while(|&word| word != "IpFragOKs").nth(1).context("a count")?.parse()?;
    ensure!(cut > 1000, "the router cut {cut} packets");
    for up in ups {
        up.check()?;
        let esp = esp(&up)?;
        ensure!(count(&esp, "held")? == 0, "{esp}");
        up.down()?;
    }
    Ok(())
}

/// Senders of IPv6 make packets of 1,280 bytes, whatever they are told. The gateway cuts those that do not fit after it has sealed them.
fn ipv6_goes_by_a_way_that_leaves_it_less_than_it_takes() -> Result<()> {
    let internet = Namespace::new("net")?;
    let sites = sites(Some(&internet))?;
    route_between(&internet, 1300)?;
    let ups = [sites[0].up()?, sites[1].up()?];
    let [near, far] = sites.each_ref().map(|site| &site.host);
    wait_for(near, FAR[1])?;
    // Each gateway loses the packet by which it learns what the way takes.
    for _ in 0..2 {
        run(
            near.command("ping").args(["-n", "-q", "-c", "1", "-W", "5", "-s", "1232", FAR[1]]),
            COMMAND_LIMIT,
        )?;
    }
    Ping::start_with(near, &["-s", "1232"], FAR[1], 20, 0.1)?.finish()?.require_all()?;
    require_tcp(near, far, FAR[1])?;
    for up in ups {
        up.check()?;
        up.down()?;
    }
    Ok(())
}

/// The gateway at the far end drops packets and says so: what it quotes came sealed, and goes back sealed.
fn what_a_far_router_tells_is_sealed() -> Result<()> {
    let internet = Namespace::new("net")?;
    let sites = sites(Some(&internet))?;
    let ups = [sites[0].up()?, sites[1].up()?];
    let near = &sites[0].host;
    for (host, nobody) in [(FAR[0], "10.2.0.77"), (FAR[1], "fd00:2::77")] {
        wait_for(near, host)?;
        for (address, hops, expected) in [(host, "2", "ime"), (nobody, "64", "nreachable")] {
            let mut ping = near.command("ping");
            let done =
                run(ping.args(["-n", "-c", "2", "-i", "1", "-W", "4", "-t", hops, address]), COMMAND_LIMIT)?;
            ensure!(done.stdout.contains(expected), "{address}, {hops} hops: {}", done.stdout);
        }
    }
    let [sealed, clear] = on_the_wire(&internet)?;
    ensure!(sealed > 10 && clear == 0, "{sealed} packets of ESP, {clear} others");
    for up in ups {
        up.check()?;
        up.down()?;
    }
    Ok(())
}

/// Once each, while the gateway is up: at the soft limit everything passes, at the hard one nothing does.
fn limits_of_an_association_are_told_as_they_are_reached() -> Result<()> {
    let mut sites = sites(None)?;
    let before = "key_file = \"";
    let after = format!("soft = {{ packets = 20 }}\nhard = {{ packets = 40 }}\n{before}");
    sites[0].text = sites[0].text.replacen(before, &after, 1);
    let ups = [sites[0].up()?, sites[1].up()?];
    let near = &sites[0].host;
    let ping = |count: u32| {
        let mut command = near.command("ping");
        command.args(["-n", "-q", "-i", "0.02", "-W", "5", "-c", &count.to_string(), FAR[0]]);
        run(&mut command, COMMAND_LIMIT)
    };
    let told = |limit: &str| {
        let sentence = format!("association one-to-two (SPI 0x1001) has reached a {limit} limit");
        wait_until("the limit is told", PATIENCE, || Ok(ups[0].stderr().matches(&sentence).count() == 1))
    };
    wait_for(near, FAR[0])?;
    wait_until("the soft limit", PATIENCE, || {
        let is_soft = count(&association(&ups[0], "one-to-two")?, "packets")? >= 20;
        if !is_soft {
            ping(1)?.success()?;
        }
        Ok(is_soft)
    })?;
    told("soft")?;
    ping(1)?.success()?;
    ping(40)?;
    told("hard")?;
    ensure!(count(&association(&ups[0], "one-to-two")?, "packets")? <= 40, "a packet passed the hard limit");
    // With higher limits it goes on, by the same key; what has passed counts.
    let limits = [
        "soft = { packets = 20 }\nhard = { packets = 40 }",
        "soft = { packets = 400 }\nhard = { packets = 500 }",
    ];
    sites[0].apply(&ups[0], &[(limits[0], limits[1])])?;
    ping(5)?.success()?;
    ensure!(count(&association(&ups[0], "one-to-two")?, "packets")? >= 45, "it began anew");
    // The same key by another path.
    let folder = sites[0].folder.0.display().to_string();
    let roundabout = format!("{folder}/../{}/", sites[0].gateway.name());
    sites[0].apply(&ups[0], &[(limits[0], limits[1]), (&format!("{folder}/"), &roundabout)])?;
    for (up, times) in ups.into_iter().zip([2, 0]) {
        up.check()?;
        let said = up.down()?.stderr;
        ensure!(said.matches("has reached a").count() == times, "{said}");
    }
    Ok(())
}
