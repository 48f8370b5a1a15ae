//! Two gateways with a tunnel between them, as `examples/` has them: `weir up` at both ends, a host behind each.
//!
//! Owner: the test that makes them; namespaces and files go with the values.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::{End, Namespace, plain_veth};
use weir_lab::clock::wait_until;
use weir_lab::iperf::{Flow, Load};
use weir_lab::process::run;
use weir_lab::up::Up;

use crate::classes::File;
use crate::drops;
use crate::rig::require_lossless_but;
use crate::weir_binary;

/// The longest time that a change takes to be seen.
pub const PATIENCE: Duration = Duration::from_secs(40);
/// The longest time that a command takes.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(20);
/// The addresses of the host behind the second gateway.
pub const FAR: [&str; 2] = ["10.2.0.2", "fd00:2::2"];
/// The addresses of two hosts beside the first gateway.
pub const BESIDE: [&str; 2] = ["198.51.100.1", "198.51.100.2"];
/// The user of each key, by direction.
pub const KEYS: [&str; 2] = ["one-to-two", "two-to-one"];

/// A gateway's files, removed with this value.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// A folder for a gateway.
    pub fn new(gateway: &Namespace) -> Result<Folder> {
        let path = std::env::temp_dir().join(gateway.name());
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Folder(path))
    }

    /// Makes a key, and the mark of one that sends.
    pub fn key(&self, name: &str, byte: u8, is_out: bool) -> Result<()> {
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

/// The mark of what is sent with a key.
pub fn mark(key: &Path) -> PathBuf {
    key.with_extension("key.sequence")
}

/// A gateway, and a host behind it.
#[derive(Debug)]
pub struct Site {
    /// The gateway's namespace.
    pub gateway: Namespace,
    /// The host's.
    pub host: Namespace,
    /// Its keys.
    pub folder: Folder,
    /// The example, with its keys in the folder.
    pub text: String,
}

impl Site {
    /// Runs the site.
    pub fn up(&self) -> Result<Up> {
        Up::start(&weir_binary()?, &self.gateway, &self.text)
    }

    /// Runs the site with another worker that seals and opens packets that wait for it, and a wire between two hosts beside that.
    pub fn up_with_a_wire(&self, hosts: &[Namespace; 2]) -> Result<Up> {
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
    pub fn apply(&self, up: &Up, changes: &[(&str, &str)]) -> Result<()> {
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
pub fn sites(internet: Option<&Namespace>) -> Result<[Site; 2]> {
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

/// Waits until a host is answered by another, whose neighbours have to be found first.
pub fn wait_for(host: &Namespace, address: &str) -> Result<()> {
    wait_until(&format!("{address} answers"), PATIENCE, || {
        let mut command = host.command("ping");
        Ok(run(command.args(["-n", "-q", "-c", "1", "-W", "1", address]), COMMAND_LIMIT)?.status.success())
    })
}

/// Requires that the flood loses nothing on the way through both gateways and the bridge between them; a loss is told with what each of them
/// counts. The bridge can hold nobody who sends to the second gateway, which was too slow for packets that are dropped there.
pub fn require_lossless_through(ups: &[Up; 2], sites: &[Site; 2], flows: &[Flow], load: &Load) -> Result<()> {
    let mut told = String::new();
    for (up, site) in ups.iter().zip(sites) {
        told += &up.weir(&["stat", &up.name])?.success()?.stdout;
        told += &drops::told(&[&site.gateway])?;
    }
    let ports = ups[1].stat_rows("ports")?;
    let outside = ports.iter().find(|port| port["name"] == "veth-wan").context("the outside")?;
    require_lossless_but(flows, load, count(outside, "forwarded_dropped")?).context(told)
}

/// The gateway of a topology that is up, as `weir stat` shows it.
pub fn esp(up: &Up) -> Result<Value> {
    let stat = up.stat()?;
    let stages = stat["stages"].as_array().context("stages")?;
    stages.iter().find(|stage| stage["kind"] == "esp").cloned().context("an esp")
}

/// The association of this name, in a topology that is up.
pub fn association(up: &Up, name: &str) -> Result<Value> {
    let esp = esp(up)?;
    let all = esp["associations"].as_array().context("associations")?;
    all.iter().find(|row| row["name"] == name).cloned().with_context(|| format!("no {name} in {all:?}"))
}

/// A number of an association's row.
pub fn count(row: &Value, what: &str) -> Result<u64> {
    row[what].as_u64().with_context(|| format!("{what} of {row}"))
}
