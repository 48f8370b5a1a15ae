//! The control socket: how `weir stat` and `weir set` reach a running wire.
//!
//! A Unix socket `/run/weir/NAME.sock`, mode 0600 in a directory of mode 0755: whoever may connect may steer. One JSON object
//! a line, one line in answer:
//!
//! ```text
//! "stat"                                                      -> {"ok": {"wires": [...], ...}}
//! {"set": {"direction": 0, "rate_bits_per_s": 100000000}}     -> {"ok": null}  or  {"error": "..."}
//! {"set-classes": {"file": "office.toml", "text": "..."}}     -> {"ok": null}  or  {"error": "..."}
//! ```
//!
//! Limits: connections are served one after the other, each bounded in size and time, so a client that stalls holds others up
//! for a second at most, and packets never.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::classes::Classes;
use crate::crew::Crew;
use crate::limits::SetLimits;
use crate::stats::Snapshot;

/// Where the sockets are.
pub const DIRECTORY: &str = weir_port::lock::DIRECTORY;
/// Enough for a classes file of [`FILE_BYTES_MAX`] with every byte escaped.
const REQUEST_BYTES_MAX: u64 = 6 * FILE_BYTES_MAX + 64 * 1024;
/// The longest classes file, in bytes.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
const TIMEOUT: Duration = Duration::from_secs(1);

/// A request to a running wire.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// Copies of the counters.
    Stat,
    /// A live change of limits.
    Set(SetLimits),
    /// A live change of classes.
    SetClasses(SetClasses),
}

/// A classes file for both directions, as it is written; whoever runs the wire checks it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetClasses {
    /// What to call the file where something is wrong with it.
    pub file: String,
    /// All of it.
    pub text: String,
}

/// The listening socket of a wire.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// The path of a wire's socket.
    pub fn path_of(name: &str) -> PathBuf {
        Path::new(DIRECTORY).join(format!("{name}.sock"))
    }

    /// Listens for a wire called `name`.
    ///
    /// # Errors
    /// If a running wire has that name already.
    pub fn listen(name: &str) -> io::Result<Control> {
        let path = Control::path_of(name);
        std::fs::create_dir_all(DIRECTORY)?;
        if is_served(&path) {
            return Err(io::Error::other(format!(
                "a wire called {name} is up already, as `weir stat {name}` shows; a wire of other interfaces needs another --name"
            )));
        }
        // Nobody answers: it was left behind by a crash.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
        Ok(Control { listener, path })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Answers requests for as long as the process lives.
    pub fn serve(&self, crew: &Crew) {
        for stream in self.listener.incoming() {
            let Ok(stream) = stream else { continue };
            // A client that breaks off has its own problem.
            let _ = answer(stream, crew);
        }
    }
}

fn answer(mut stream: UnixStream, crew: &Crew) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&stream).take(REQUEST_BYTES_MAX)).read_line(&mut line)?;
    let reply = match perform(&line, crew) {
        Ok(value) => json!({ "ok": value }),
        Err(error) => json!({ "error": error }),
    };
    writeln!(stream, "{reply}")
}

fn perform(line: &str, crew: &Crew) -> Result<Value, String> {
    match serde_json::from_str(line).map_err(|error| format!("not a request: {error}"))? {
        Command::Stat => serde_json::to_value(crew.stat()?).map_err(|error| error.to_string()),
        Command::Set(set) => {
            if set.direction > 1 {
                return Err(format!("there is no direction {}: 0 is there, 1 is back", set.direction));
            }
            crew.set_limits(set.direction, Box::new(move |present| set.apply(present)))?;
            Ok(Value::Null)
        }
        Command::SetClasses(SetClasses { file, text }) => {
            // Read on this thread: the workers have packets to move.
            let classes = Classes::read(&file, &text, crew.ports().each_ref().map(String::as_str))?;
            crew.set_classes(&Arc::new(classes))?;
            Ok(Value::Null)
        }
    }
}

/// Whether a wire listens there. One that was just killed still seems to, until the kernel has taken its sockets apart; it gets some
/// time to answer or to be gone.
fn is_served(path: &Path) -> bool {
    const LOOKS: u32 = 40;
    const BETWEEN: Duration = Duration::from_millis(50);
    for _ in 0..LOOKS {
        let Ok(mut stream) = UnixStream::connect(path) else { return false };
        let answers = stream.set_read_timeout(Some(BETWEEN)).is_ok()
            && writeln!(stream, "{}", json!(Command::Stat)).is_ok()
            && stream.read(&mut [0]).is_ok_and(|count| count > 0);
        if answers {
            return true;
        }
    }
    true
}

/// Asks the wire that listens at `path`.
pub fn ask(path: &Path, command: &Command) -> Result<Value, String> {
    let ask = || -> io::Result<String> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(TIMEOUT * 5))?;
        writeln!(stream, "{}", serde_json::to_string(command)?)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    let line = ask().map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => format!("{}: only root may ask: run it with sudo", path.display()),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("no wire listens at {}: `weir stat` lists those that are up", path.display())
        }
        io::ErrorKind::WouldBlock => {
            format!("the wire at {} does not answer: has its process been stopped?", path.display())
        }
        _ => format!("{}: {error}", path.display()),
    })?;
    let mut reply: Value =
        serde_json::from_str(&line).map_err(|error| format!("{}: {error}", path.display()))?;
    match reply["error"].as_str() {
        Some(error) => Err(error.to_string()),
        None => Ok(reply["ok"].take()),
    }
}

/// Whether nobody listens there; a wire that may not be asked is one that is up.
fn has_gone(path: &Path) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    UnixStream::connect(path).is_err_and(|error| matches!(error.kind(), ConnectionRefused | NotFound))
}

/// The counters of one wire.
pub fn stat(name: &str) -> Result<Snapshot, String> {
    read(&Control::path_of(name))
}

fn read(path: &Path) -> Result<Snapshot, String> {
    serde_json::from_value(ask(path, &Command::Stat)?).map_err(|error| format!("{}: {error}", path.display()))
}

/// The counters of every wire that is up and answers, and why others do not.
pub fn stat_all() -> (Snapshot, Vec<String>) {
    let (mut all, mut faults) = (Snapshot::default(), Vec::new());
    let mut paths: Vec<_> = std::fs::read_dir(DIRECTORY)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .collect();
    paths.sort();
    for path in paths {
        // Left behind by a crash: nobody listens any more.
        if has_gone(&path) {
            continue;
        }
        match read(&path) {
            Ok(snapshot) => all.merge(snapshot),
            // It went down while it was being asked.
            Err(error) if Crew::is_going_down(&error) || has_gone(&path) => {}
            Err(error) => faults.push(error),
        }
    }
    (all, faults)
}
