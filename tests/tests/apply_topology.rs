//! `weir apply`, `weir set` and `weir show` of a topology that is up: changes under floods, and changes that are refused.
//!
//! ```text
//! h0 - p0 --+
//! h1 - p1 --+-- bridge lan -- e0 -- router gw -- p2 - h2
//! h3 - p3 --+
//! ```

use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use weir_lab::clock::wait_until;
use weir_lab::iperf::{Flow, Load};
use weir_lab::process::{Finished, run};
use weir_tests::classes::File;
use weir_tests::rig::{Demand, Rig, measure_rate, require_lossless, require_rate};
use weir_tests::topology::{Hosts, Up, flood};
use weir_tests::{at_length, harness, privileged, require_timing, weir_binary};

const PATIENCE: Duration = Duration::from_secs(40);
/// The changes are the same each time.
const SEED: u64 = 14;
/// The rate of packets that leave by p3, which nothing changes.
const KEPT_BITS_PER_S: f64 = 40e6;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(random_changes_lose_and_reorder_nothing),
        privileged!(what_cannot_be_changes_nothing).together(),
        privileged!(a_port_is_set_and_shown).together(),
        privileged!(ports_are_meant_by_the_names_that_they_have_now).together(),
        privileged!(limits_and_ports_of_one_file).together(),
        privileged!(a_wire_that_is_called_as_a_file_is_not_ended_by_it).together(),
        privileged!(classes_that_are_guaranteed_more_than_their_port_are_warned_of_once).together(),
    ])
}

/// A file, with the keys of the limits of ports 0 to 2.
fn file(shapes: [&str; 3]) -> String {
    let [p0, p1, p2] = shapes;
    format!(
        r#"
[[port]]
interface = "p0"
{p0}
[[port]]
interface = "p1"
name = "desk"
{p1}
[[port]]
interface = "p2"
{p2}
[[port]]
interface = "p3"
rate = "40mbit"
[[epair]]
name = "e0"
[[bridge]]
name = "lan"
ports = ["p0", "desk", "p3", "e0a"]
[[router]]
name = "gw"
[[router.interface]]
port = "e0b"
address = ["10.99.1.1/24"]
[[router.interface]]
port = "p2"
address = ["10.99.2.1/24"]
"#
    )
}

const RATE: &str = "rate = \"30mbit\"";

/// Hosts as container runtimes connect them, and the file with a rate for every port.
fn bed() -> Result<(Hosts, Up)> {
    let hosts = Hosts::new(4, None)?;
    for (host, net, last) in [(0, 1, 2), (1, 1, 3), (2, 2, 2), (3, 1, 4)] {
        hosts.address(host, &format!("10.99.{net}.{last}/24"))?;
        hosts.hosts[host].ip(&format!("route add default via 10.99.{net}.1"))?;
    }
    let up = hosts.up(&file([RATE; 3]))?;
    Ok((hosts, up))
}

/// A file of the topology that is up.
fn file_of(up: &Up, text: &str) -> Result<File> {
    File::new(&format!("name = \"{}\"\n{text}", up.name))
}

/// Runs `weir apply FILE OPTIONS` where the ports are.
fn apply(hosts: &Hosts, file: &File, options: &[&str]) -> Result<Finished> {
    let mut command = hosts.middle.command(weir_binary()?);
    run(command.args(["apply", file.path()]).args(options), PATIENCE)
}

/// The topology that is up, as a file and in its counters: all that a change could touch.
fn state(up: &Up) -> Result<String> {
    let shown = up.weir(&["show", &up.name])?.success()?.stdout;
    let stat = up.stat()?;
    let classes = stat["classes"].as_array().context("directions")?.iter().map(|direction| {
        let names: Vec<_> = direction["classes"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|class| class["name"].clone())
            .collect();
        format!(
            "{} {} {} {} {names:?}\n",
            direction["name"],
            direction["rate_bits_per_s"],
            direction["burst_bytes"],
            direction["limit_bytes"]
        )
    });
    Ok(shown + &classes.collect::<String>())
}

/// Numbers that are the same for a seed: SplitMix64.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// The keys of a port: a rate that receivers keep up with, and perhaps classes, of which none drops.
    fn shape(&mut self) -> String {
        let rate = 5 + self.below(75);
        let mut text = format!("rate = \"{rate}mbit\"\n");
        if self.below(3) == 0 {
            text += &format!("burst = \"{}kb\"\n", 10 + self.below(60));
        }
        if self.below(2) == 0 {
            if self.below(2) == 0 {
                text += &format!("queue = \"{}ms\"\n", 1 + self.below(20));
            }
            return text;
        }
        let is_cbq = self.below(3) == 0;
        if is_cbq {
            text += "shaper = \"cbq\"\n";
        }
        let leaves = 1 + self.below(3);
        text += &format!("default = \"c0\"\n[[port.class]]\nname = \"all\"\nrate = \"{rate}mbit\"\n");
        for leaf in 0..leaves {
            let share = 1 + self.below((rate / leaves).max(1));
            text += &format!(
                "[[port.class]]\nname = \"c{leaf}\"\nparent = \"all\"\nrate = \"{share}mbit\"\npriority = {}\n",
                self.below(8)
            );
            if !is_cbq {
                text += &format!("ceil = \"{}mbit\"\n", share + self.below(rate - share + 1));
            }
            if self.below(4) == 0 {
                text += "full = \"ecn\"\n";
            }
        }
        for leaf in 1..leaves {
            // Ports of the floods: flows move between classes.
            text += &format!(
                "[[port.filter]]\nprotocol = \"udp\"\nto_ports = {}\nclass = \"c{leaf}\"\n",
                5001 + self.below(3)
            );
        }
        text
    }
}

/// 60 random changes in CI, 1,000 where `WEIR_ROUNDS` is set.
fn random_changes_lose_and_reorder_nothing() -> Result<()> {
    let (changes, seconds) = (at_length(60, 1000), at_length(8, 150) as f64);
    println!("{changes} changes of seed {SEED}");
    let (hosts, up) = bed()?;
    let [h0, h1, h2, h3] = &hosts.hosts[..] else { return Err(anyhow!("four hosts")) };
    let kept = Load { first_port: 6001, ..Load::new(h1, h3, "10.99.1.4", 1, seconds) };
    let there = Load::new(h0, h2, "10.99.2.2", 3, seconds);
    let back = Load::new(h2, h0, "10.99.1.2", 2, seconds);
    let floods = [(flood(&there)?, &there), (flood(&back)?, &back)];
    let kept_flood = flood(&kept)?;
    let rate = std::thread::scope(|scope| -> Result<f64> {
        let rate = scope.spawn(|| measure_rate(&kept_flood, &kept));
        let mut draws = Draws(SEED);
        let mut shapes = [RATE; 3].map(String::from);
        for change in 0..changes {
            for shape in &mut shapes {
                if draws.below(3) > 0 {
                    *shape = draws.shape();
                }
            }
            let text = file(shapes.each_ref().map(String::as_str));
            let written = file_of(&up, &text)?;
            apply(&hosts, &written, &[])?.success().with_context(|| format!("change {change}:\n{text}"))?;
            if change % 10 == 0 {
                let again = apply(&hosts, &written, &[])?.success()?.stdout;
                ensure!(again.starts_with("nothing to change: 4 ports"), "change {change}: {again}\n{text}");
                let shown = File::new(&up.weir(&["show", &up.name])?.success()?.stdout)?;
                let same = apply(&hosts, &shown, &["--dry-run"])?.success()?.stdout;
                ensure!(same.starts_with("nothing to change: 4 ports"), "change {change}: {same}\n{text}");
            }
            let remaining = floods.iter().map(|(flood, _)| flood.remaining()).min().unwrap_or_default();
            require_timing!(!remaining.is_zero(), "only {change} of {changes} changes in {seconds} s");
        }
        rate.join().map_err(|_| anyhow!("the measurement panicked"))?
    })?;
    up.check().context("after the changes")?;
    let lossless = |flows: &[Flow], load: &Load, which: &str| {
        require_lossless(flows, load).with_context(|| {
            let counted = up.weir(&["stat", &up.name]).map(|done| done.stdout).unwrap_or_default();
            let devices = hosts.middle.ip("-s -s link show").unwrap_or_default();
            format!("by {which}\n{counted}\n{devices}")
        })
    };
    for (flood, load) in floods {
        lossless(&flood.finish(PATIENCE)?, load, "ports that changed")?;
    }
    let flows = kept_flood.finish(PATIENCE)?;
    lossless(&flows, &kept, "the port that did not change")?;
    up.check()?;
    require_rate(&flows, rate, Demand { jain_min: 0.0, ..Demand::of_rate(KEPT_BITS_PER_S) })?;
    up.down()?;
    Ok(())
}

/// A refusal names the reason, in one line for each, and leaves everything as it was, also the ports that could change.
fn what_cannot_be_changes_nothing() -> Result<()> {
    let (hosts, up) = bed()?;
    let before = state(&up)?;
    let other = "rate = \"10mbit\"";
    let with = |p1: &str| format!("name = \"{}\"\n{}", up.name, file([other, p1, other]));
    let class = "default = \"x\"\n[[port.class]]\nname = \"x\"\n";
    let elsewhere = format!("name = \"{}-other\"\n{}", up.name, file([other; 3]));
    let cases = [
        (with("rate = \"fast\""), "\"fast\" is not a rate"),
        (with("rate = \"20mbit\"\nburst = \"100b\""), "below one frame"),
        (with("rate = \"20mbit\"\nburst = \"60gb\""), "more than a bucket holds"),
        (with(&format!("{class}rate = \"5mbit\"\nceil = \"4mbit\"")), "ceil"),
        (
            with(&format!(
                "shaper = \"cbq\"\n{class}rate = \"5mbit\"\n[[port.class]]\nname = \"y\"\nparent = \"x\"\nrate = \"9mbit\""
            )),
            "",
        ),
        (
            with(&format!("rate = \"20mbit\"\nqueue = \"1ms\"\n{class}rate = \"5mbit\"")),
            "give each class its `queue`",
        ),
        (with(other).replace("p3", "p9"), "port p3 goes; port p9 comes"),
        (with(other).replace("\"desk\"", "\"chair\""), "port p1 is called \"chair\" and not \"desk\""),
        (
            with(other) + "[[router.route]]\nto = \"default\"\nvia = \"10.99.2.9\"\n",
            "router gw has other routes",
        ),
        (
            with(other).replace("name = \"lan\"", "name = \"lan\"\nageing = \"20s\""),
            "bridge lan: ageing 300s -> 20s",
        ),
        (elsewhere, "is not up, so its ports cannot change"),
    ];
    for (text, why) in cases {
        let written = File::new(&text)?;
        for options in [&[][..], &["--dry-run"]] {
            let refused = apply(&hosts, &written, options)?;
            ensure!(
                !refused.status.success() && refused.stderr.contains(why),
                "{why}: {}\n{text}",
                refused.said()
            );
        }
        ensure!(state(&up)? == before, "{why}: something changed");
    }
    // A trial of a file that can be applied prints the changes, and makes none.
    let good = File::new(&with("rate = \"20mbit\""))?;
    let trial = apply(&hosts, &good, &["--dry-run"])?.success()?.stdout;
    ensure!(
        trial.contains("~ port p1: rate 30mbit -> 20mbit")
            && trial.contains("nothing done: 0 to set, 3 to change"),
        "{trial}"
    );
    ensure!(state(&up)? == before, "a trial changed something");
    let done = apply(&hosts, &good, &["--json"])?.success()?.stdout;
    let done: Value = serde_json::from_str(&done)?;
    ensure!(
        done["ports"][3]["change"].is_null() && done["ports"][0]["change"]["values"][0]["after"] == "10mbit",
        "{done}"
    );
    ensure!(state(&up)? != before, "nothing changed");
    up.check()?;
    up.down()?;
    Ok(())
}

fn a_port_is_set_and_shown() -> Result<()> {
    let (_hosts, up) = bed()?;
    let set = |options: &[&str]| up.weir(&[&["set", &up.name], options].concat());
    let said = set(&["--port", "desk", "--rate", "12mbit"])?.success()?.stdout;
    ensure!(
        said.starts_with(&format!("topology {} changed: ", up.name)) && said.contains("30mbit -> 12mbit"),
        "{said}"
    );
    set(&["--port", "p2", "--rate", "9mbit", "--burst", "30kb", "--queue", "9ms"])?.success()?;
    let shown = up.weir(&["show", &up.name])?.success()?.stdout;
    ensure!(shown.contains("interface = \"p1\"\nname = \"desk\"\nrate = \"12mbit\"\n"), "{shown}");
    ensure!(shown.contains("rate = \"9mbit\"\nburst = \"30kb\"\nqueue = \"9ms\"\n"), "{shown}");
    let written = File::new(&shown)?;
    up.weir(&["check", written.path()])?.success()?;
    for (options, why) in [
        (
            &["--port", "p22", "--rate", "1mbit"][..],
            "has no port p22: its ports are p0, p1, p2 and p3; did you mean \"p2\"?",
        ),
        (&["--rate", "1mbit"], "one port is set: give --port with p0, p1, p2 or p3"),
        (&["--port", "p2", "--rate-back", "1mbit"], "--rate-back is not for one port"),
        (&["--port", "p2"], "nothing to change"),
    ] {
        let refused = set(options)?;
        ensure!(!refused.status.success() && refused.stderr.contains(why), "{options:?}: {}", refused.said());
    }
    ensure!(up.weir(&["show", &up.name])?.success()?.stdout == shown, "something changed");
    up.down()?;
    Ok(())
}

/// Two interfaces change names while they are ports: commands, files and counters mean those that are called so now.
fn ports_are_meant_by_the_names_that_they_have_now() -> Result<()> {
    let (hosts, up) = bed()?;
    for command in ["link set p0 name spare", "link set p2 name p0", "link set spare name p2"] {
        hosts.middle.ip(command)?;
    }
    let rate = |port: &str, part: &str| -> Result<Value> {
        let stat = up.stat()?;
        let directions = stat["classes"].as_array().context("directions")?;
        let direction = directions.iter().find(|direction| direction["name"] == format!("->{port}"));
        Ok(direction.with_context(|| format!("{port}: {stat}"))?[part].clone())
    };
    let is_told = || Ok(up.stderr().contains("is called p0 now") && up.stderr().contains("is called p2 now"));
    wait_until("the names are followed", PATIENCE, is_told)?;
    up.weir(&["set", &up.name, "--port", "p2", "--rate", "7mbit"])?.success()?;
    ensure!(rate("p2", "rate_bits_per_s")? == 7_000_000 && rate("p0", "rate_bits_per_s")? == 30_000_000);
    // The first host is behind p2 now.
    let shown = up.weir(&["show", &up.name])?.success()?.stdout;
    ensure!(
        shown.contains("interface = \"p2\"\nrate = \"7mbit\"") && shown.contains("\"p2\", \"desk\""),
        "{shown}"
    );
    let written = File::new(&shown)?;
    let said = apply(&hosts, &written, &[])?.success()?.stdout;
    ensure!(said.starts_with("nothing to change"), "{said}");
    let written = File::new(&shown.replace("7mbit", "8mbit"))?;
    apply(&hosts, &written, &[])?.success()?;
    ensure!(rate("p2", "rate_bits_per_s")? == 8_000_000 && rate("p0", "rate_bits_per_s")? == 30_000_000);
    // The file that it came up by means other interfaces now.
    let written = file_of(&up, &file([RATE; 3]))?;
    let refused = apply(&hosts, &written, &[])?;
    let says = "the interface that was p0 is called p2 now";
    ensure!(!refused.status.success() && refused.stderr.contains(says), "{}", refused.said());
    up.check()?;
    up.down()?;
    Ok(())
}

/// Ports are checked before a limit is set, and limits before a port changes.
fn limits_and_ports_of_one_file() -> Result<()> {
    let (hosts, up) = bed()?;
    hosts.middle.ip("link add spare type veth peer name spare2")?;
    let before = state(&up)?;
    let limit = |device: &str| format!("[[limit]]\ndevice = \"{device}\"\nrate = \"10mbit\"\n");
    let limits = || -> Result<String> {
        let mut command = hosts.middle.command(weir_binary()?);
        Ok(run(command.arg("show"), PATIENCE)?.success()?.stdout)
    };
    let good = file(["rate = \"10mbit\"", RATE, RATE]);
    for text in [good.clone() + &limit("nowhere"), good.replace("p3", "p9") + &limit("spare")] {
        let written = file_of(&up, &text)?;
        ensure!(!apply(&hosts, &written, &[])?.status.success(), "{text}");
        ensure!(state(&up)? == before && !limits()?.contains("spare"), "something changed");
    }
    let written = file_of(&up, &(good + &limit("spare")))?;
    let said = apply(&hosts, &written, &[])?.success()?.stdout;
    ensure!(said.ends_with("applied: 1 set, 1 changed, 3 as before\n"), "{said}");
    ensure!(limits()?.contains("spare"), "no limit");
    let said = apply(&hosts, &written, &[])?.success()?.stdout;
    ensure!(said.starts_with("nothing to change: 4 ports and 1 limit as"), "{said}");
    up.check()?;
    up.down()?;
    Ok(())
}

/// A wire is called as an interface, and so may a file be.
fn a_wire_that_is_called_as_a_file_is_not_ended_by_it() -> Result<()> {
    let rig = Rig::new(2, 2)?;
    let wire = rig.wire(&["--rate", "50mbit"])?;
    let name = wire.name();
    for text in [
        "[[limit]]\ndevice = \"none\"\nrate = \"1mbit\"\n",
        "[[port]]\ninterface = \"x\"\n[[port]]\ninterface = \"y\"\n[[wire]]\nports = [\"x\", \"y\"]\n",
    ] {
        let file = File::named(name, &format!("name = \"{name}\"\n{text}"))?;
        let down = run(Command::new(weir_binary()?).args(["down", file.path()]), PATIENCE)?;
        let said = down.success()?.stdout;
        ensure!(said.starts_with(&format!("{name}, which is up, has no port of this file")), "{said}");
        ensure!(!said.contains("ended"), "{said}");
        wire.weir(&["stat", name, "--check"])?.success()?;
    }
    wire.stop()?.success().map(drop)
}

/// The warning comes by check, apply, set and up, each once.
fn classes_that_are_guaranteed_more_than_their_port_are_warned_of_once() -> Result<()> {
    const TWO: &str = "default = \"x\"\n[[port.class]]\nname = \"x\"\nrate = \"20mbit\"\n[[port.class]]\nname = \"y\"\nrate = \"10mbit\"\n\
                       [[port.filter]]\nclass = \"y\"\nto_ports = 80\n";
    let (hosts, up) = bed()?;
    let warned = |text: &str| text.matches("have 30mbit together, more than the limit of 20mbit").count();
    let fits = file_of(&up, &file([&format!("rate = \"30mbit\"\n{TWO}"), RATE, RATE]))?;
    let done = apply(&hosts, &fits, &[])?.success()?;
    ensure!(done.stderr.is_empty(), "{}", done.stderr);
    let set = up.weir(&["set", &up.name, "--port", "p0", "--rate", "20mbit"])?.success()?;
    ensure!(warned(&set.stderr) == 1 && set.stderr.lines().count() == 1, "{}", set.stderr);
    drop(fits);
    let sold = file([&format!("rate = \"20mbit\"\n{TWO}"), RATE, RATE]);
    let written = file_of(&up, &sold)?;
    let path = written.path();
    for done in [apply(&hosts, &written, &[])?.success()?, up.weir(&["check", path])?.success()?] {
        ensure!(
            warned(&done.stderr) == 1 && done.stderr.contains(&format!("{path}:5:8: ")),
            "{}",
            done.stderr
        );
    }
    up.check()?;
    up.down()?;
    let up = hosts.up(&sold)?;
    ensure!(warned(&up.daemon.stderr()) == 1, "{}", up.daemon.stderr());
    up.down()?;
    Ok(())
}
