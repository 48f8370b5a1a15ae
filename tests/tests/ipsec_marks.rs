//! The marks of sequence numbers of two gateways that are ended, killed and started again, and whose files somebody changes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::{End, Namespace};
use weir_lab::clock::wait_until;
use weir_lab::ping::Ping;
use weir_tests::gateways::{FAR, KEYS, PATIENCE, association, count, mark, sites, wait_for};
use weir_tests::raw::RawSocket;
use weir_tests::{harness, privileged};

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_start_uses_no_number_twice).together(),
        privileged!(a_start_takes_nothing_twice).together(),
        privileged!(a_mark_that_is_taken_away_comes_back).together(),
    ])
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
    ensure!(kept.contains("has another key than the one that runs") && is_placed(&kept), "{kept}");
    fs::write(&key, own)?;
    one.down()?;
    // Numbers that were reserved and not used are given back.
    let next = fs::read_to_string(mark(&key))?;
    let next = next.lines().find_map(|line| line.strip_prefix("next ")).context("a mark")?.parse::<u64>()?;
    ensure!(next > after && next < after + 10_000, "{next} after {after}");
    let refused = |said: &str| -> Result<()> {
        let why = format!("{:#}", sites[0].up().err().context("it is refused")?);
        ensure!(why.contains(said) && is_placed(&why), "{why}");
        Ok(())
    };
    fs::set_permissions(&key, Permissions::from_mode(0o640))?;
    refused("others may read")?;
    fs::set_permissions(&key, Permissions::from_mode(0o600))?;
    fs::write(mark(&key), u64::MAX.to_string())?;
    refused("all sequence numbers of this key are used")?;
    fs::remove_file(mark(&key))?;
    refused("is missing, so nobody knows which sequence numbers")?;
    for name in KEYS {
        fs::remove_file(sites[0].folder.0.join(format!("{name}.key")))?;
    }
    refused("the key that the peer sends with")?;
    refused("/dev/urandom")?;
    two.down()?;
    Ok(())
}

/// Returns whether a sentence on an association begins with the line and the column of its key.
fn is_placed(said: &str) -> bool {
    let place = said.split(": sa \"one-to-two\": ").next().and_then(|before| before.rsplit_once(".toml:"));
    let numbers = place.map(|(_, place)| place.split(':').map(str::parse::<u32>).collect::<Vec<_>>());
    numbers.is_some_and(|numbers| matches!(numbers[..], [Ok(_), Ok(12)]))
}

/// Packets that were recorded between two gateways are sent once more to one that was ended, and to one that was killed, and started again.
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
        times.require_all()?;
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

/// A backup of a mark in the place of the one that is used, or copied over it, and a mark that is removed: no number is used twice after
/// that.
fn a_mark_that_is_taken_away_comes_back() -> Result<()> {
    let internet = Namespace::new("net")?;
    let sites = sites(Some(&internet))?;
    let (one, two) = (sites[0].up()?, sites[1].up()?);
    wait_for(&sites[0].host, FAR[0])?;
    let key = sites[0].folder.0.join("one-to-two.key");
    let received = sites[0].folder.0.join("two-to-one.key.received");
    let backup = key.with_extension("backup");
    fs::write(&backup, "1\n")?;
    fs::rename(&backup, mark(&key))?;
    fs::remove_file(&received)?;
    wait_until("both marks are there again", PATIENCE, || {
        let sent = fs::read_to_string(mark(&key))?;
        Ok(sent.starts_with("weir sequence") && received.exists())
    })?;
    fs::write(mark(&key), "1\n")?;
    wait_until("the mark that was overwritten says its number again", PATIENCE, || {
        Ok(fs::read_to_string(mark(&key))?.starts_with("weir sequence"))
    })?;
    let last = count(&association(&one, KEYS[0])?, "sequence")?;
    let said = one.down()?.stderr;
    ensure!(said.matches("this mark was removed, replaced or overwritten").count() == 3, "{said}");
    let one = sites[0].up()?;
    wait_for(&sites[0].host, FAR[0])?;
    let after = count(&association(&one, KEYS[0])?, "sequence")?;
    ensure!(after > last, "{after} after {last}");
    one.down()?;
    two.down().map(drop)
}
