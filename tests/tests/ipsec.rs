//! Two gateways with a tunnel between them, as `examples/` has them: `weir up` at both ends, programs of the kernel behind each.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::{End, Namespace, plain_veth};
use weir_lab::clock::wait_until;
use weir_lab::iperf::Load;
use weir_lab::ping::Ping;
use weir_lab::process::{Process, run};
use weir_lab::up::Up;
use weir_tests::classes::File;
use weir_tests::raw::RawSocket;
use weir_tests::rig::{measure_rate, require_lossless};
use weir_tests::topology::flood;
use weir_tests::{harness, privileged, require_timing, weir_binary};

const PATIENCE: Duration = Duration::from_secs(40);
const COMMAND_LIMIT: Duration = Duration::from_secs(20);
const SECONDS: f64 = 3.0;
/// The longest payload that fits into the tunnel with the headers of UDP and of either family.
const PAYLOAD_BYTES: u64 = 1380;
/// The addresses of the host behind the second gateway.
const FAR: [&str; 2] = ["10.2.0.2", "fd00:2::2"];
/// The addresses of two hosts beside the first gateway.
const BESIDE: [&str; 2] = ["198.51.100.1", "198.51.100.2"];
/// The user of each key, by direction.
const KEYS: [&str; 2] = ["one-to-two", "two-to-one"];

fn main() -> ExitCode {
    harness::main(&[
        privileged!(what_passes_is_sealed_and_none_of_it_is_lost),
        privileged!(back_to_back_they_find_each_other),
        privileged!(keys_change_under_a_flood),
        privileged!(a_worker_of_its_own_seals_and_costs_nobody_beside_anything),
        privileged!(sealers_share_one_association_and_keep_its_order),
        privileged!(hybrid_shares_with_sealers_and_keeps_the_order),
        privileged!(a_start_uses_no_number_twice),
        privileged!(a_start_takes_nothing_twice),
    ])
}

/// A gateway's files, removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(gateway: &Namespace) -> Result<Folder> {
        let path = std::env::temp_dir().join(gateway.name());
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Folder(path))
    }

    fn key(&self, name: &str, byte: u8, is_out: bool) -> Result<()> {
        let path = self.0.join(format!("{name}.key"));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        // 32 bytes of AES-256 and 4 of salt.
        let bytes = (0..36u8).map(|index| index.wrapping_mul(7) ^ byte);
        file.write_all(bytes.map(|byte| format!("{byte:02x}")).collect::<String>().as_bytes())?;
        if is_out {
            fs::write(mark(&path), "1\n")?;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover in the folder for temporary files is all that a failure means.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mark(key: &Path) -> PathBuf {
    key.with_extension("key.sequence")
}

/// A gateway, and a host behind it.
struct Site {
    gateway: Namespace,
    host: Namespace,
    folder: Folder,
    /// The example, with its keys in the folder.
    text: String,
}

impl Site {
    fn up(&self) -> Result<Up> {
        Up::start(&weir_binary()?, &self.gateway, &self.text)
    }

    /// Runs the site with another worker that seals and opens packets that wait for it, and a wire between two hosts beside that.
    fn up_with_a_wire(&self, hosts: &[Namespace; 2]) -> Result<Up> {
        let mut text = self.text.replace("[[esp]]\n", "[[esp]]\ndispatch = \"deferred\"\n");
        for (number, host) in hosts.iter().enumerate() {
            let port = format!("veth-p{number}");
            let end = End { namespace: &self.gateway, name: &port };
            plain_veth(5 + number as u8, End { namespace: host, name: "eth0" }, end)?;
            host.ip(&format!("addr add {}/24 dev eth0", BESIDE[number]))?;
            text += &format!("\n[[port]]\ninterface = \"{port}\"\n");
        }
        text += "\n[[wire]]\nports = [\"veth-p0\", \"veth-p1\"]\n";
        Up::start_with(&weir_binary()?, &self.gateway, &text, &["--workers", "2"])
    }

    /// Applies its text with changes.
    fn apply(&self, up: &Up, changes: &[(&str, &str)]) -> Result<()> {
        let mut text = format!("name = \"{}\"\n{}", up.name, self.text);
        for (before, after) in changes {
            ensure!(text.contains(before), "no {before} in {text}");
            text = text.replace(before, after);
        }
        let file = File::new(&text)?;
        up.weir(&["apply", file.path()])?.success().map(drop)
    }
}

/// Both sites; with `internet` between them, a bridge of the kernel's that counts the packets that it sees, or back to back.
fn sites(internet: Option<&Namespace>) -> Result<[Site; 2]> {
    let site = |number: usize| -> Result<Site> {
        let (gateway, host) =
            (Namespace::new(&format!("gw{number}"))?, Namespace::new(&format!("h{number}"))?);
        let pair = number as u8 + 1;
        plain_veth(
            pair,
            End { namespace: &host, name: "eth0" },
            End { namespace: &gateway, name: "veth-lan" },
        )?;
        for (own, router, nodad) in [
            (format!("10.{pair}.0.2/24"), format!("10.{pair}.0.1"), ""),
            (format!("fd00:{pair}::2/64"), format!("fd00:{pair}::1"), "nodad"),
        ] {
            host.ip(&format!("addr add {own} dev eth0 {nodad}"))?;
            host.ip(&format!("route add default via {router}"))?;
        }
        let example = ["gateway.toml", "gateway-peer.toml"][number];
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(example);
        let folder = Folder::new(&gateway)?;
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let text = text.replace("key_file = \"", &format!("key_file = \"{}/", folder.0.display()));
        for (sender, name) in KEYS.iter().enumerate() {
            folder.key(name, sender as u8, sender == number)?;
        }
        Ok(Site { gateway, host, folder, text })
    };
    let both = [site(0)?, site(1)?];
    let ends = both.each_ref().map(|site| End { namespace: &site.gateway, name: "veth-wan" });
    match internet {
        None => plain_veth(3, ends[0], ends[1])?,
        Some(internet) => {
            internet.ip("link add name br0 type bridge")?;
            internet.ip("link set br0 up")?;
            internet.sh("nft add table netdev wire")?;
            for (number, end) in ends.into_iter().enumerate() {
                let name = format!("w{number}");
                plain_veth(3 + number as u8, end, End { namespace: internet, name: &name })?;
                internet.ip(&format!("link set {name} master br0"))?;
                internet.sh(&format!(
                    "nft add chain netdev wire {name} {{ type filter hook ingress device {name} priority 0 ; }}"
                ))?;
                internet.sh(&format!("nft add rule netdev wire {name} ip protocol esp counter"))?;
                internet.sh(&format!("nft add rule netdev wire {name} ip protocol != esp counter"))?;
            }
        }
    }
    Ok(both)
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

/// Waits until a host is answered by another, whose neighbours have to be found first.
fn wait_for(host: &Namespace, address: &str) -> Result<()> {
    wait_until(&format!("{address} answers"), PATIENCE, || {
        let mut command = host.command("ping");
        Ok(run(command.args(["-n", "-q", "-c", "1", "-W", "1", address]), COMMAND_LIMIT)?.status.success())
    })
}

/// The association of this name, in a topology that is up.
fn association(up: &Up, name: &str) -> Result<Value> {
    let stat = up.stat()?;
    let stages = stat["stages"].as_array().context("stages")?;
    let esp = stages.iter().find(|stage| stage["kind"] == "esp").context("an esp")?;
    let all = esp["associations"].as_array().context("associations")?;
    all.iter().find(|row| row["name"] == name).cloned().with_context(|| format!("no {name} in {all:?}"))
}

fn count(row: &Value, what: &str) -> Result<u64> {
    row[what].as_u64().with_context(|| format!("{what} of {row}"))
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
        require_lossless(&flood.finish(PATIENCE)?, &load).context(address)?;
        require_timing!(rate > 80e6, "{:.1} Mbit/s of 100 with ESP around it", rate / 1e6);
    }
    let mut server = Process::spawn(far.command("iperf3").args(["-s", "-1", "--forceflush"]))?;
    server.wait_for_output("listening", COMMAND_LIMIT)?;
    let done = run(near.command("iperf3").args(["-c", FAR[0], "-t", "2", "-J"]), PATIENCE)?.success()?;
    let report: Value = serde_json::from_str(&done.stdout)?;
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 reports")?;
    require_timing!(rate > 60e6, "{:.1} Mbit/s of TCP", rate / 1e6);
    let times = Ping::start_series(near, FAR[0], 20, 0.05)?.finish()?;
    ensure!(times.sorted_ms.len() == 20, "{} of 20 pings answered", times.sorted_ms.len());
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
    let load = Load { payload_bytes: PAYLOAD_BYTES, ..Load::new(near, far, FAR[0], 2, 2.0 * SECONDS) };
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
    require_lossless(&flood.finish(PATIENCE)?, &load)?;
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
    require_lossless(&flood.finish(PATIENCE)?, &load)?;
    ensure!(pings.sorted_ms.len() == 400, "{} of 400 pings beside it answered", pings.sorted_ms.len());
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
    ensure!(given > 10_000 && at_home == 0, "{given} given to sealers and {at_home} at home");
    Ok(())
}

fn hybrid_shares_with_sealers_and_keeps_the_order() -> Result<()> {
    let [given, at_home] = shares_of_two_sealers("hybrid")?;
    ensure!(given + at_home > 10_000 && at_home > 100, "{given} given to sealers and {at_home} at home");
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
    let done = up.weir(&["stat", &up.name, "--json"])?.success()?;
    let all: Value = serde_json::from_str(&done.stdout)?;
    let rows = all["workstreams"].as_array().context("workstreams")?;
    rows.iter().find(|row| row["name"] == name).cloned().with_context(|| format!("no {name} in {rows:?}"))
}

/// Killed and started again, a gateway goes on behind all numbers that it could have used; where nobody knows these, it does not start.
fn a_start_uses_no_number_twice() -> Result<()> {
    let internet = Namespace::new("net")?;
    let sites = sites(Some(&internet))?;
    let ups = [sites[0].up()?, sites[1].up()?];
    let near = &sites[0].host;
    wait_for(near, FAR[0])?;
    let [one, two] = ups;
    let before = count(&association(&one, KEYS[0])?, "sequence")?;
    one.kill()?;
    let one = sites[0].up()?;
    wait_for(near, FAR[0])?;
    let after = count(&association(&one, KEYS[0])?, "sequence")?;
    ensure!(before >= 1 && after > before + 1000, "{before}, then {after}");
    ensure!(count(&association(&two, KEYS[0])?, "sequence")? == after, "the other end has seen it");
    let key = sites[0].folder.0.join("one-to-two.key");
    let another = fs::read_to_string(sites[0].folder.0.join("two-to-one.key"))?;
    let own = fs::read_to_string(&key)?;
    fs::write(&key, another)?;
    let kept = format!("{:#}", sites[0].apply(&one, &[]).err().context("it is refused")?);
    ensure!(kept.contains("has another key than the one that runs"), "{kept}");
    fs::write(&key, own)?;
    one.down()?;
    // Numbers that were reserved and not used are given back.
    let next = fs::read_to_string(mark(&key))?;
    let next = next.lines().find_map(|line| line.strip_prefix("next ")).context("a mark")?.parse::<u64>()?;
    ensure!(next > after && next < after + 10_000, "{next} after {after}");
    let refused = |said: &str| -> Result<()> {
        let why = format!("{:#}", sites[0].up().err().context("it is refused")?);
        ensure!(why.contains(said), "{why}");
        Ok(())
    };
    fs::set_permissions(&key, Permissions::from_mode(0o640))?;
    refused("others may read")?;
    fs::set_permissions(&key, Permissions::from_mode(0o600))?;
    fs::write(mark(&key), u64::MAX.to_string())?;
    refused("all sequence numbers of this key are used")?;
    fs::remove_file(mark(&key))?;
    refused("is missing, so nobody knows which sequence numbers")?;
    two.down()?;
    Ok(())
}

/// What was recorded between two gateways is sent once more to one that was ended, and to one that was killed, and started again.
fn a_start_takes_nothing_twice() -> Result<()> {
    const PINGS: usize = 20;
    let internet = Namespace::new("net")?;
    let sites = sites(Some(&internet))?;
    let (one, mut two) = (sites[0].up()?, sites[1].up()?);
    let near = &sites[0].host;
    wait_for(near, FAR[0])?;
    let [recorder, sender] = ["w0", "w1"].map(|name| RawSocket::open(End { namespace: &internet, name }));
    let (recorder, sender) = (recorder?, sender?);
    let key = sites[1].folder.0.join("one-to-two.key");
    let received = key.with_extension("key.received");
    for is_killed in [false, true] {
        let times = Ping::start_series(near, FAR[0], PINGS as u64, 0.02)?.finish()?;
        ensure!(times.sorted_ms.len() == PINGS, "{} of {PINGS} pings answered", times.sorted_ms.len());
        let mut recorded = Vec::new();
        // IPv4 whose protocol is ESP.
        let is_esp = |frame: &[u8]| frame.len() > 34 && frame[12..14] == [8, 0] && frame[23] == 50;
        while let Some(frame) = recorder.receive_such(Duration::from_millis(100), is_esp)? {
            recorded.push(frame);
        }
        ensure!(recorded.len() >= PINGS, "{} recorded", recorded.len());
        let highest = count(&association(&two, KEYS[0])?, "sequence")?;
        if is_killed {
            wait_until("the mark of what was received is written", PATIENCE, || {
                Ok(fs::read_to_string(&received)?.contains(&format!("next {:020}", highest + 1)))
            })?;
            two.kill()?;
        } else {
            two.down()?;
        }
        two = sites[1].up()?;
        recorded.iter().try_for_each(|frame| sender.send(frame))?;
        let copies = recorded.len() as u64;
        wait_until("each copy is dropped", PATIENCE, || {
            let row = association(&two, KEYS[0])?;
            let dropped = |reason: &str| row["dropped"][reason].as_u64().unwrap_or(0);
            ensure!(count(&row, "packets")? == 0, "a copy was taken: {row}");
            ensure!(count(&row, "sequence")? == highest, "it goes on at {highest}: {row}");
            Ok(dropped("esp-replayed") + dropped("esp-too-old") == copies)
        })?;
        wait_for(near, FAR[0])?;
    }
    two.down()?;
    fs::write(&received, "weir received\nnext 1")?;
    let why = format!("{:#}", sites[1].up().err().context("it is refused")?);
    ensure!(why.contains("nobody knows what was received") && why.contains("`rm "), "{why}");
    one.down().map(drop)
}
