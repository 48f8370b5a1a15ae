//! `weir limit --classes`: floors and ceilings hold, filters lead where they say, and another file takes over while packets wait.

use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::names;
use weir_lab::clock::{let_pass, wait_until};
use weir_lab::iperf::{Flood, Load};
use weir_lab::process::Process;
use weir_tests::classes::{File, OFFICE};
use weir_tests::limits::{Between, Row};
use weir_tests::rig::require_lossless;
use weir_tests::{at_length, harness, privileged, require_timing, rounds};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(floors_and_ceilings_hold_under_floods),
        privileged!(filters_lead_where_they_say).together(),
        privileged!(another_file_under_load_loses_nothing).flooding(),
        privileged!(classes_are_removed_under_a_flood).flooding(),
        privileged!(what_goes_is_removed_when_it_is_empty),
        privileged!(forwarded_packets_wait_in_their_class).flooding(),
        privileged!(what_is_waited_for_is_named).flooding(),
        privileged!(floods_over_ipv6_lose_nothing).flooding(),
        privileged!(streams_share_as_their_classes),
        privileged!(wrong_files_change_nothing).together(),
    ])
}

/// The row of a class of the limit at `wa`.
fn class(row: &Row, name: &str) -> Result<Value> {
    let limit = row.limits("wa")?;
    let classes = limit.first().and_then(|limit| limit["classes"].as_array()).context("no classes")?;
    classes
        .iter()
        .find(|class| class["name"] == name)
        .cloned()
        .with_context(|| format!("no class {name}: {classes:?}"))
}

fn packets(row: &Row, name: &str) -> Result<u64> {
    class(row, name)?["delivered"].as_u64().context("no packets")
}

fn bytes(row: &Row, name: &str) -> Result<u64> {
    class(row, name)?["delivered_bytes"].as_u64().context("no bytes")
}

/// Four floods in each of two classes. The rest of the limit is shared by flows, so the first class is between its floor and its ceiling.
fn floors_and_ceilings_hold_under_floods() -> Result<()> {
    const SECONDS: f64 = 3.0;
    let row = Row::new(Between::Bridge)?;
    let file = File::new(OFFICE)?;
    let done = row.weir(&format!("limit wa --rate 200mbit --classes {}", file.path()))?.success()?;
    ensure!(done.stdout.contains("classes a, b, voice"), "{}", done.stdout);
    let to = row.right_address(Between::Bridge);
    let loads = [5001, 5101]
        .map(|first_port| Load { first_port, ..Load::new(&row.left, &row.right, &to, 4, SECONDS + 2.0) });
    let floods = [Flood::start(&loads[0])?, Flood::start(&loads[1])?];
    let_pass(Duration::from_millis(500), |_| ())?;
    let started = weir_lab::clock::now();
    let before = [bytes(&row, "a")?, bytes(&row, "b")?];
    let pings = row.left.sh(&format!("ping -q -c 200 -i 0.005 -Q 184 {to}"))?;
    let_pass(Duration::from_secs_f64(SECONDS).saturating_sub(started.elapsed()), |_| ())?;
    let after = [bytes(&row, "a")?, bytes(&row, "b")?];
    let elapsed_s = started.elapsed().as_secs_f64();
    let mbit = [0, 1].map(|index| (after[index] - before[index]) as f64 * 8e-6 / elapsed_s);
    for (flood, load) in floods.into_iter().zip(&loads) {
        require_lossless(&flood.finish(PATIENCE)?, load)?;
    }
    row.lossless_limit("wa")?;
    // The bits are at most a burst more than the rate, in that time.
    ensure!(mbit[0] <= 152.0 && mbit[1] <= 61.0, "above their ceilings: {mbit:?} Mbit/s");
    ensure!(mbit[0] + mbit[1] <= 202.0, "above the limit: {mbit:?} Mbit/s");
    require_timing!(mbit[0] >= 97.0 && mbit[1] >= 38.8, "below their floors: {mbit:?} Mbit/s");
    // Far above their floors, 140: the rest is borrowed. A timer that the host delays loses some of it.
    require_timing!(mbit[0] + mbit[1] >= 180.0, "some of the limit is left over: {mbit:?} Mbit/s");
    let voice = packets(&row, "voice")?;
    ensure!(voice >= 200, "{voice} packets in the class of pings");
    let mean_ms: f64 = pings
        .split('/')
        .nth(4)
        .and_then(|word| word.parse().ok())
        .with_context(|| format!("no mean: {pings}"))?;
    require_timing!(mean_ms <= 2.0, "a quiet class waits: {pings}");
    Ok(())
}

fn filters_lead_where_they_say() -> Result<()> {
    const EACH: u64 = 20;
    const FILTERS: &str = r#"
default = "rest"
[[class]]
name = "port"
rate = "1mbit"
ceil = "10mbit"
[[class]]
name = "dscp"
rate = "1mbit"
ceil = "10mbit"
[[class]]
name = "prefix"
rate = "1mbit"
ceil = "10mbit"
[[class]]
name = "stream"
rate = "1mbit"
ceil = "10mbit"
[[class]]
name = "rest"
rate = "1mbit"
ceil = "10mbit"
[[filter]]
to_ports = [7100, "7200-7300"]
protocol = "udp"
class = "port"
[[filter]]
dscp = "af41"
class = "dscp"
[[filter]]
to = "fd99::/96"
protocol = ["udp", 132]
to_ports = 7001
class = "prefix"
[[filter]]
protocol = "tcp"
to_ports = 7002
class = "stream"
[[filter]]
to_ports = 7003
class = "free"
"#;
    let row = Row::new(Between::Bridge)?;
    let file = File::new(FILTERS)?;
    row.weir(&format!("limit wa --rate 10mbit --classes {}", file.path()))?.success()?;
    let (v4, v6) = (names(0, 2).v4, names(0, 2).v6);
    let send = |to: &str, port: u16, dscp: i32| -> Result<()> {
        row.left.enter(|| -> Result<()> {
            let socket = UdpSocket::bind(if to.contains(':') { "[::]:0" } else { "0.0.0.0:0" })?;
            let tos = dscp << 2;
            if dscp > 0 {
                let option = if to.contains(':') {
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
                } else {
                    (libc::IPPROTO_IP, libc::IP_TOS)
                };
                // SAFETY: the value and its size are passed; the socket is open.
                let set = unsafe {
                    libc::setsockopt(
                        std::os::fd::AsRawFd::as_raw_fd(&socket),
                        option.0,
                        option.1,
                        std::ptr::from_ref(&tos).cast(),
                        size_of::<i32>() as libc::socklen_t,
                    )
                };
                ensure!(set == 0, "the DSCP can be set");
            }
            for _ in 0..EACH {
                socket.send_to(&[0; 100], (to, port))?;
            }
            Ok(())
        })?
    };
    let all = ["port", "dscp", "prefix", "stream", "rest", "free"];
    let counts = || -> Result<Vec<u64>> { all.iter().map(|name| packets(&row, name)).collect() };
    let cases = [
        (&v4, 7100, 0, "port"),
        (&v6, 7300, 0, "port"),
        (&v4, 7301, 34, "dscp"),
        (&v6, 7301, 34, "dscp"),
        (&v6, 7001, 0, "prefix"),
        (&v4, 7001, 0, "rest"),
        (&v4, 7003, 0, "free"),
    ];
    for (to, port, dscp, name) in cases {
        let before = counts()?;
        send(to, port, dscp)?;
        let place = all.iter().position(|class| *class == name).context("a class")?;
        wait_until("they are counted", PATIENCE, || Ok(counts()?[place] >= before[place] + EACH))
            .with_context(|| format!("{to} port {port} to {name}: {before:?}, {:?}", counts().ok()))?;
    }
    let listener = row.right.enter(|| TcpListener::bind(("0.0.0.0", 7002)))??;
    let mut stream = row.left.enter(|| TcpStream::connect((v4.as_str(), 7002)))??;
    let (mut accepted, _) = listener.accept()?;
    stream.write_all(&[1; 100_000])?;
    drop(stream);
    let arrived = std::io::copy(&mut accepted, &mut std::io::sink())?;
    ensure!(arrived == 100_000, "{arrived} bytes arrived");
    ensure!(bytes(&row, "stream")? > 100_000, "TCP goes elsewhere: {:?}", class(&row, "stream")?);
    row.weir("limit wa --off")?.success().map(drop)
}

/// Files that lead the floods elsewhere in turn, classes that come and go among them.
fn another_file_under_load_loses_nothing() -> Result<()> {
    let (times, seconds) = (at_length(6, 20), at_length(10, 30) as f64);
    let row = Row::new(Between::Bridge)?;
    let to = row.right_address(Between::Bridge);
    let other = OFFICE.replace("5001-5004", "5003-5006").replace("100mbit", "60mbit");
    let bulk = OFFICE.replace("\"a\"", "\"bulk\"");
    let files = [File::new(OFFICE)?, File::new(&other)?, File::new(&bulk)?];
    for _ in 0..rounds().unwrap_or(1) {
        row.weir("limit wa --rate 200mbit --name files")?.success()?;
        let load = Load::new(&row.left, &row.right, &to, 6, seconds);
        let flood = Flood::start(&load)?;
        for file in files.iter().cycle().take(times) {
            row.weir(&format!("limit wa --rate 200mbit --classes {}", file.path()))?.success()?;
            let limit = row.lossless_limit("files")?;
            ensure!(limit["stage"] == "limiting", "{limit}");
        }
        let flows = flood.finish(PATIENCE * 2)?;
        row.lossless_limit("files")?;
        row.weir("stat files --check")?.success()?;
        require_lossless(&flows, &load)?;
        row.weir("limit files --off")?.success()?;
    }
    Ok(())
}

fn classes_are_removed_under_a_flood() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let file = File::new("[[class]]\nname = \"one\"\nrate = \"5mbit\"\nceil = \"10mbit\"\n")?;
    let set = |change: &str| row.weir(&format!("limit wa {change}"))?.success();
    set(&format!("--rate 50mbit --classes {}", file.path()))?;
    let to = row.right_address(Between::Bridge);
    let load = Load::new(&row.left, &row.right, &to, 4, 3.0);
    let flood = Flood::start(&load)?;
    let_pass(Duration::from_secs(1), |_| ())?;
    let done = set("--no-classes")?;
    ensure!(!done.stdout.contains("shared by"), "{}", done.stdout);
    require_lossless(&flood.finish(PATIENCE)?, &load)?;
    row.lossless_limit("wa")?;
    // Classes that packets still waited in have gone by now.
    let done = row.weir("set wa --no-classes")?.success()?;
    ensure!(done.stdout == "limit wa: it was so already\n", "{}", done.stdout);
    let limit = row.limits("wa")?.swap_remove(0);
    ensure!(limit["classes"] == serde_json::json!([]) && limit["rate_bits_per_s"] == 50_000_000, "{limit}");
    let done = set("--no-classes")?;
    ensure!(done.stdout.starts_with("so already: "), "{}", done.stdout);
    ensure!(set("--rate 60mbit")?.stdout.starts_with("changed: "), "another rate");
    row.weir("stat wa --check")?.success()?;
    set("--off").map(drop)
}

fn what_goes_is_removed_when_it_is_empty() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let to = row.right_address(Between::Bridge);
    // Half of a send buffer lasts 70 ms, for which a sender may come late.
    row.weir("limit wa --rate 10mbit")?.success()?;
    let load = Load::new(&row.left, &row.right, &to, 2, 3.0);
    let flood = Flood::start(&load)?;
    let file = File::new("[[class]]\nname = \"one\"\nrate = \"5mbit\"\nceil = \"10mbit\"\n")?;
    let set = || row.weir(&format!("limit wa --classes {}", file.path()))?.success();
    let done = set()?;
    // Unless the host took the processors from both for as long as the packets wait.
    require_timing!(done.stderr.contains("packets still wait"), "the floods have left: {}", done.stderr);
    let flows = flood.finish(PATIENCE)?;
    require_lossless(&flows, &load)?;
    let done = set()?;
    ensure!(!done.stderr.contains("packets still wait"), "{}", done.stderr);
    let count = || -> Result<usize> { Ok(row.left.tc("class show dev veth0 parent 7769:")?.lines().count()) };
    // The limit and its fallback; the class with 272 leaves.
    ensure!(count()? == 275, "{} classes", count()?);
    let other = File::new("[[class]]\nname = \"two\"\nrate = \"50mbit\"\nceil = \"100mbit\"\n")?;
    row.weir(&format!("limit wa --rate 100mbit --classes {}", other.path()))?.success()?;
    ensure!(count()? == 275, "{} classes", count()?);
    ensure!(
        class(&row, "two")?["is_going"] == false && class(&row, "one").is_err(),
        "{:?}",
        row.limits("wa")?
    );
    row.weir("limit wa --rate 60mbit")?.success()?;
    ensure!(class(&row, "two")?["rate_bits_per_s"] == 50_000_000, "the classes stay");
    let done = row.weir("limit wa --rate 40mbit")?;
    ensure!(done.stderr.contains("promised 50mbit together"), "{}", done.stderr);
    row.weir("stat wa --check")?.success()?;
    row.weir("limit wa --off")?.success()?;
    let qdisc = row.left.tc("qdisc show dev veth0")?;
    ensure!(qdisc.contains("noqueue"), "{qdisc}");
    Ok(())
}

/// Forwarded packets have nobody who could be held: they wait, then they are dropped, and counted for their class.
fn forwarded_packets_wait_in_their_class() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    let file = File::new(OFFICE)?;
    row.weir(&format!("limit wb --rate-back 150mbit --classes {}", file.path()))?.success()?;
    let to = row.right_address(Between::Routes);
    let load = Load { first_port: 5101, ..Load::new(&row.left, &row.right, &to, 2, 2.0) };
    let flood = Flood::start(&load)?;
    wait_until("one is dropped", PATIENCE, || {
        let limits = row.limits("wb")?;
        let classes = limits[0]["classes"].as_array().context("no classes")?;
        let dropped = |name: &str| {
            classes.iter().find(|class| class["name"] == name).map(|class| class["dropped"].clone())
        };
        let none = serde_json::json!({"held-full": 0, "passing-full": 0});
        ensure!(dropped("a") == Some(none), "nothing is sent there: {classes:?}");
        ensure!(limits[0]["dropped"]["held-full"] == 0, "{limits:?}");
        Ok(dropped("b").and_then(|reasons| reasons["passing-full"].as_u64()) > Some(0))
    })?;
    flood.finish(PATIENCE).map(drop)
}

/// A class at its ceiling waits for that, classes that have used up the limit for the limit, and an empty class for nothing.
fn what_is_waited_for_is_named() -> Result<()> {
    const FILE: &str = r#"
default = "wide"
[[class]]
name = "narrow"
rate = "5mbit"
ceil = "10mbit"
[[class]]
name = "wide"
rate = "10mbit"
ceil = "50mbit"
[[class]]
name = "other"
rate = "10mbit"
ceil = "50mbit"
[[filter]]
protocol = "udp"
to_ports = "5001-5002"
class = "narrow"
[[filter]]
protocol = "udp"
to_ports = "5101-5102"
class = "other"
"#;
    let row = Row::new(Between::Bridge)?;
    let file = File::new(FILE)?;
    row.weir(&format!("limit wa --rate 50mbit --classes {}", file.path()))?.success()?;
    let to = row.right_address(Between::Bridge);
    let said = || -> Result<[Value; 4]> {
        let limit = row.limits("wa")?.swap_remove(0);
        let of = |name: &str| {
            let classes = limit["classes"].as_array().context("no classes")?;
            let class = classes.iter().find(|class| class["name"] == name).context("no such class")?;
            anyhow::Ok(class["waits_for"].clone())
        };
        Ok([limit["waits_for"].clone(), of("narrow")?, of("wide")?, of("other")?])
    };
    let require = |expected: [Option<&str>; 4]| {
        let expected = expected.map(|name| name.map_or(Value::Null, Value::from));
        let mut seen = Vec::new();
        let named = wait_until("the gates are named", PATIENCE, || {
            seen.push(said()?);
            Ok(seen.last() == Some(&expected))
        });
        named.with_context(|| format!("{:?} in place of {expected:?}", &seen[..seen.len().min(9)]))
    };
    require([None; 4])?;
    // Longer than any wait for a state under it; a flood is cut short.
    let load = |first_port| Load { first_port, ..Load::new(&row.left, &row.right, &to, 2, 120.0) };
    let narrow = Flood::start(&load(5001))?;
    require([Some("narrow"), Some("narrow"), None, None])?;
    let shown = row.weir("stat wa")?.success()?.stdout;
    ensure!(shown.contains("waits for class narrow's ceiling"), "{shown}");
    drop(narrow);
    require([None; 4])?;
    let floods = [Flood::start(&load(5101))?, Flood::start(&load(5201))?];
    require([Some("wa"), None, Some("wa"), Some("wa")])?;
    let shown = row.weir("stat wa")?.success()?.stdout;
    ensure!(shown.contains("waits for limit wa"), "{shown}");
    drop(floods);
    require([None; 4])
}

fn floods_over_ipv6_lose_nothing() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let file = File::new(OFFICE)?;
    row.weir(&format!("limit wa --rate 200mbit --classes {}", file.path()))?.success()?;
    let to = Row::right_addresses(Between::Bridge).v6;
    // Whole datagrams: fragments have tests of their own.
    let loads = [5001, 5101].map(|first_port| Load {
        first_port,
        payload_bytes: 1450,
        ..Load::new(&row.left, &row.right, &to, 4, 3.0)
    });
    let floods = [Flood::start(&loads[0])?, Flood::start(&loads[1])?];
    for (flood, load) in floods.into_iter().zip(&loads) {
        require_lossless(&flood.finish(PATIENCE)?, load)?;
    }
    row.lossless_limit("wa")?;
    for name in ["a", "b"] {
        ensure!(packets(&row, name)? > 1000, "{name} has {} packets", packets(&row, name)?);
    }
    row.weir("stat wa --check")?.success().map(drop)
}

/// Four TCP streams in each of two classes that together are promised the limit.
fn streams_share_as_their_classes() -> Result<()> {
    const SECONDS: f64 = 4.0;
    const FILE: &str = r#"
default = "rest"
[[class]]
name = "most"
rate = "120mbit"
ceil = "120mbit"
burst = "200kb"
cburst = "200kb"
[[class]]
name = "rest"
rate = "80mbit"
ceil = "80mbit"
burst = "200kb"
cburst = "200kb"
[[filter]]
protocol = "tcp"
to_ports = 5301
class = "most"
"#;
    let row = Row::new(Between::Bridge)?;
    let file = File::new(FILE)?;
    row.weir(&format!("limit wa --rate 200mbit --burst 200kb --classes {}", file.path()))?.success()?;
    let to = row.right_address(Between::Bridge);
    let mut programs = Vec::new();
    for port in ["5301", "5302"] {
        let mut command = row.right.command("iperf3");
        let mut server = Process::spawn(command.args(["-s", "-1", "--forceflush", "-p", port]))?;
        server.wait_for_output("Server listening", PATIENCE)?;
        let mut command = row.left.command("iperf3");
        let client = command.args(["-c", &to, "-p", port, "-P", "4", "-t", "6"]);
        programs.push((server, Process::spawn(client)?));
    }
    let both = || -> Result<[u64; 2]> { Ok([bytes(&row, "most")?, bytes(&row, "rest")?]) };
    wait_until("both are under way", PATIENCE, || Ok(both()?.iter().all(|bytes| *bytes > 10_000_000)))?;
    // Both looks take time: the bytes are those of no more than this.
    let (begin, before) = (weir_lab::clock::now(), both()?);
    let_pass(Duration::from_secs_f64(SECONDS), |_| ())?;
    let (after, elapsed_s) = (both()?, begin.elapsed().as_secs_f64());
    for (_, client) in &mut programs {
        require_timing!(client.is_running()?, "the streams ended before the time was over");
    }
    let mbit = [0, 1].map(|index| (after[index] - before[index]) as f64 * 8e-6 / elapsed_s);
    println!("    {mbit:.1?} Mbit/s");
    ensure!(mbit[0] <= 122.0 && mbit[1] <= 82.0, "above their ceilings: {mbit:?} Mbit/s");
    require_timing!(mbit[0] >= 114.0 && mbit[1] >= 76.0, "below 95 % of their classes: {mbit:?} Mbit/s");
    for (server, client) in programs {
        client.wait(PATIENCE)?.success()?;
        server.stop(PATIENCE)?;
    }
    row.lossless_limit("wa").map(drop)
}

fn wrong_files_change_nothing() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let good = File::new(OFFICE)?;
    row.weir(&format!("limit wa --rate 200mbit --classes {}", good.path()))?.success()?;
    let classes = || row.left.tc("class show dev veth0");
    let before = classes()?;
    let one = "[[class]]\nname = \"x\"\nrate = \"10mbit\"\n";
    let cases = [
        (format!("shaper = \"cbq\"\n{one}"), 2, "not CBQ"),
        (format!("{one}max_wait = \"5ms\"\n"), 2, "take max_wait out"),
        (format!("{one}full = \"drop\"\n"), 2, "take full out"),
        (format!("{one}queue = \"5ms\"\n"), 2, "take queue out"),
        (format!("{one}quantum = \"9kb\"\n"), 2, "take quantum out"),
        (format!("{one}[[filter]]\ninterface = \"wa\"\nclass = \"x\"\n"), 2, "take interface out"),
        (one.replace("10mbit", "1kbit"), 2, ":3:8: \"x\" is promised 1kbit"),
        (one.replace("10mbit", "300mbit"), 1, "promised 300mbit together"),
        (format!("{one}[[filter]]\nclass = \"y\"\n"), 2, "there is no class \"y\""),
        ("[[class]\n".into(), 2, ":1:"),
    ];
    for (text, status, sentence) in cases {
        let file = File::new(&text)?;
        let done = row.weir(&format!("limit wa --classes {}", file.path()))?;
        ensure!(done.status.code() == Some(status), "{text}: {:?} {}", done.status, done.stderr);
        ensure!(done.stderr.contains(sentence), "{text} says {}", done.stderr);
        ensure!(classes()? == before, "{text} changed something");
    }
    let missing = row.weir("limit wa --classes /nowhere.toml")?;
    ensure!(
        missing.status.code() == Some(2) && missing.stderr.contains("there is no such file"),
        "{}",
        missing.stderr
    );
    row.weir("stat wa --check")?.success().map(drop)
}
