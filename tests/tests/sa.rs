//! `weir sa import`: what IKE agreed on for the kernel, taken over by a gateway of Weir's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Result, ensure};
use weir_lab::process::{Finished, run};
use weir_tests::classes::File;
use weir_tests::{harness, plain, weir_binary};

const LIMIT: Duration = Duration::from_secs(20);
const KEY: &str = "0102030405060708090a0b0c0d0e0f10a1b2c3d4";
/// What stands around the tables of an ESP.
const AROUND: &str = "[[port]]\ninterface = \"lan\"\n[[port]]\ninterface = \"wan\"\n[[epair]]\nname = \"e0\"\n\
                      [[wire]]\nports = [\"lan\", \"e0a\"]\n";

fn main() -> ExitCode {
    harness::main(&[
        plain!(what_is_printed_makes_a_file_that_is_right),
        plain!(a_second_time_nothing_is_written),
        plain!(what_cannot_be_taken_over_is_one_sentence),
    ])
}

/// Where the keys go; removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("weir-sa-{name}-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover in the folder for temporary files is all that a failure means.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// As iproute2 prints a tunnel that has just been agreed on.
fn printed() -> String {
    format!(
        "src 192.0.2.1 dst 192.0.2.2\n\tproto esp spi 0x00001001 reqid 1 mode tunnel\n\treplay-window 0 flag af-unspec\n\
         \taead rfc4106(gcm(aes)) 0x{KEY} 128\n\tanti-replay context: seq 0x0, oseq 0x0, bitmap 0x00000000\n\
         \tsel src 0.0.0.0/0 dst 0.0.0.0/0 \n\
         src 10.1.0.0/24 dst 10.2.0.0/24 \n\tdir out priority 100 ptype main \n\ttmpl src 192.0.2.1 dst 192.0.2.2\n\
         \t\tproto esp reqid 1 mode tunnel\n"
    )
}

fn import(text: &str, folder: &Folder, more: &[&str]) -> Result<Finished> {
    let file = File::new(text)?;
    let keys = folder.0.display().to_string();
    let mut command = Command::new(weir_binary()?);
    run(command.args(["sa", "import", file.path(), "--keys", &keys]).args(more), LIMIT)
}

fn what_is_printed_makes_a_file_that_is_right() -> Result<()> {
    let folder = Folder::new("file")?;
    let done = import(&printed(), &folder, &["--inside", "e0b", "--outside", "wan"])?.success()?;
    ensure!(
        !format!("{}{}", done.stdout, done.stderr).contains(&KEY[..8]),
        "a key is shown: {}",
        done.stdout
    );
    let file = File::new(&format!("{AROUND}{}", done.stdout))?;
    run(Command::new(weir_binary()?).args(["check", file.path()]), LIMIT)?.success()?;
    let key = folder.0.join("out-00001001.key");
    ensure!(fs::read_to_string(&key)? == KEY);
    ensure!(fs::metadata(&key)?.permissions().mode() & 0o777 == 0o600, "others may read the key");
    ensure!(fs::read_to_string(folder.0.join("out-00001001.key.sequence"))? == "1\n");
    // Associations alone, for a file that has its [[esp]].
    let alone = import(&printed(), &folder, &[])?.success()?;
    ensure!(alone.stdout.contains("[[sa]]") && !alone.stdout.contains("[[esp]]"), "{}", alone.stdout);
    Ok(())
}

fn a_second_time_nothing_is_written() -> Result<()> {
    let folder = Folder::new("twice")?;
    let first = import(&printed(), &folder, &[])?.success()?;
    let mark = folder.0.join("out-00001001.key.sequence");
    // As `weir up` does.
    fs::write(&mark, "8193 of this key\n")?;
    ensure!(import(&printed(), &folder, &[])?.success()?.stdout == first.stdout);
    ensure!(fs::read_to_string(&mark)? == "8193 of this key\n", "the numbers begin again");
    let other = import(&printed().replace("a1b2c3d4", "00000000"), &folder, &[])?;
    ensure!(
        other.status.code() == Some(1) && other.stderr.contains("this is another key"),
        "{}",
        other.stderr
    );
    Ok(())
}

fn what_cannot_be_taken_over_is_one_sentence() -> Result<()> {
    let folder = Folder::new("refused")?;
    for (text, expected) in [
        (
            printed().replace("oseq 0x0", "oseq 0x7"),
            "the kernel has sent 7 packets with the key of SPI 0x1001",
        ),
        (printed().replace("proto esp spi", "proto ah spi"), "line 2: proto ah is not built"),
        (printed().replace(&format!("0x{KEY}"), "<<Keys hidden>>"), "line 4: this shows no key"),
        (String::new(), "there is no association"),
        ("nonsense\n".into(), "line 1: this is not what"),
    ] {
        let done = import(&text, &folder, &[])?;
        ensure!(done.status.code() == Some(2) && done.stdout.is_empty(), "{}: {}", done.status, done.stdout);
        ensure!(done.stderr.contains(expected) && done.stderr.lines().count() == 1, "{}", done.stderr);
    }
    ensure!(fs::read_dir(&folder.0)?.next().is_none(), "something was written");
    let mut none = Command::new(weir_binary()?);
    let done = run(none.args(["sa", "import", "/nowhere/at-all"]), LIMIT)?;
    ensure!(done.status.code() == Some(2) && done.stderr.contains("/nowhere/at-all"), "{}", done.stderr);
    Ok(())
}
