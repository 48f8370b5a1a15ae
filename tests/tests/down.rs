//! `weir down`: whom it ends, and whom it does not.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::process::{Finished, run};
use weir_tests::{harness, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(40);

fn main() -> ExitCode {
    harness::main(&[privileged!(whoever_takes_the_place_of_what_has_ended_is_left_alone).together()])
}

fn down(of: impl AsRef<Path>) -> Result<Finished> {
    run(Command::new(weir_binary()?).arg("down").arg(of.as_ref()), PATIENCE)
}

/// A service manager starts a wire that has ended anew. This one does at once, so that somebody listens under the name all the while, and
/// ends it for nobody.
fn whoever_takes_the_place_of_what_has_ended_is_left_alone() -> Result<()> {
    let name = format!("weir-down-{}", std::process::id());
    let [place, next] = ["sock", "next"].map(|end| PathBuf::from(format!("/run/weir/{name}.{end}")));
    std::fs::create_dir_all("/run/weir")?;
    let first = UnixListener::bind(&place)?;
    let second = UnixListener::bind(&next)?;
    let restarts = std::thread::spawn({
        let (place, next) = (place.clone(), next.clone());
        move || -> Result<()> {
            loop {
                let (mut stream, _) = first.accept()?;
                let mut asked = String::new();
                BufReader::new(stream.try_clone()?).read_line(&mut asked)?;
                let is_stop = asked.contains("stop");
                if is_stop {
                    std::fs::rename(&next, &place)?;
                }
                // A wire of another version, of which the counters cannot be read. Whoever only looks has gone.
                let answered = writeln!(stream, "{{\"version\":3,\"ok\":null}}");
                if is_stop {
                    return answered.context("an answer");
                }
            }
        }
    });
    let done = down(&name);
    let _ = std::fs::remove_file(&place);
    drop(second);
    let done = done?.success()?;
    restarts.join().ok().context("it panicked")??;
    ensure!(done.stdout == format!("ended: topology {name}\n"), "{}{}", done.stdout, done.stderr);
    ensure!(done.stderr.contains(&format!("{name} is up again")), "{}", done.stderr);
    Ok(())
}
