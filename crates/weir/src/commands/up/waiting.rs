//! The time in which `weir up` waits for its interfaces. Nothing is up yet, but `weir down` ends it and a second one is refused.
//!
//! Rule: it listens at a socket of its own until the control socket of what is up listens, and tells `weir stat` which interfaces it waits
//! for. To be asked to end is to get a SIGTERM, which is heard while it waits, and also on the way from there until it is up.
//!
//! Owner: the main thread; another one serves the socket. Limits: killed, it leaves the socket, which the next one removes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use serde_json::json;
use weir_port::Doing;
use weir_port::signals::{SIGHUP, SIGINT, SIGTERM, Signals};
use weir_port::sys;
use weir_port::undo::FileIdentity;
use weir_run::control::{Command, Control, Responder, Running, RunningPort};
use weir_run::datapath::{DatapathConfig, Kind};
use weir_run::stats::Snapshot;

use crate::{Failure, guarded};

/// A wait that can be ended, until this is dropped.
pub struct InterfaceWait {
    signals: Signals,
    /// The socket's file, until it is removed.
    socket: Option<SocketFile>,
    /// The interfaces that it waits for.
    missing: Arc<Mutex<Vec<String>>>,
    /// Ends the serving thread.
    end: OwnedFd,
    serving: Option<JoinHandle<()>>,
}

impl InterfaceWait {
    /// Listens for commands. From now on a signal is heard by [`InterfaceWait::is_ended`] alone.
    ///
    /// # Errors
    /// If another process waits under this name.
    pub fn begin(config: &DatapathConfig) -> Result<InterfaceWait, Failure> {
        // Before the first thread, which must not get them.
        let signals = Signals::block(&[SIGINT, SIGTERM, SIGHUP])?;
        let path = Control::waiting_path_of(&config.name);
        let mut control = match Control::listen_waiting(&config.name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error.to_string().into()),
            listening => listening.doing(|| format!("making the socket {}", path.display()))?,
        };
        let socket = Some(SocketFile::at(path));
        let process = sys::pidfd(std::process::id())?;
        let missing = Arc::new(Mutex::new(Vec::new()));
        let responder = Waits {
            name: config.name.clone(),
            kind: Kind::of(&config.plan),
            running: running(config),
            missing: Arc::clone(&missing),
            process,
        };
        let end = sys::eventfd()?;
        let until = end.try_clone()?;
        let serve = move || control.serve(&responder, Some(until.as_fd()), None);
        let serving = guarded::spawn("weir-waiting", serve)?;
        Ok(InterfaceWait { signals, socket, missing, end, serving: Some(serving) })
    }

    /// Notes the interfaces that it waits for; without any it is being started.
    pub fn note(&self, missing: &[String]) {
        *locked(&self.missing) = missing.to_vec();
    }

    /// Returns whether it was asked to end, by a signal or a command.
    ///
    /// # Errors
    /// If the kernel refuses to look.
    pub fn is_ended(&self) -> io::Result<bool> {
        self.signals.arrived().map(|signal| signal.is_some())
    }
}

impl Drop for InterfaceWait {
    fn drop(&mut self) {
        // Before nobody listens, because the next one takes the place of a socket at which nobody does.
        drop(self.socket.take());
        sys::signal_eventfd(&self.end);
        // A thread that panicked serves no more.
        let _ = self.serving.take().map(JoinHandle::join);
    }
}

/// The file of a socket, removed with this unless another has its name by then.
struct SocketFile {
    path: PathBuf,
    identity: Option<FileIdentity>,
}

impl SocketFile {
    /// The file that is at this path now.
    fn at(path: PathBuf) -> SocketFile {
        let identity = FileIdentity::of(&path);
        SocketFile { path, identity }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if FileIdentity::of(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The answers while it waits.
struct Waits {
    name: String,
    kind: Kind,
    running: Running,
    missing: Arc<Mutex<Vec<String>>>,
    /// This process.
    process: OwnedFd,
}

impl Responder for Waits {
    fn noun(&self) -> &'static str {
        self.kind.noun()
    }

    fn stat(&self) -> Result<Snapshot, String> {
        let waiting = BTreeMap::from([(self.name.clone(), locked(&self.missing).clone())]);
        Ok(Snapshot { waiting, ..Snapshot::default() })
    }

    fn change(&self, command: &Command) -> Result<String, String> {
        match command {
            Command::Stop => sys::pidfd_signal(self.process.as_fd(), SIGTERM)
                .map(|()| "null".into())
                .map_err(|error| error.to_string()),
            Command::Show => Ok(json!(self.running).to_string()),
            _ => Err("it waits for its interfaces".into()),
        }
    }
}

/// A thread that panicked with it had nothing half done.
fn locked(missing: &Mutex<Vec<String>>) -> MutexGuard<'_, Vec<String>> {
    missing.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ports that it is to have; their file is not run yet.
fn running(config: &DatapathConfig) -> Running {
    let ports = config.port_names.iter().zip(&config.plan.ports);
    let ports = ports
        .map(|(name, port)| RunningPort {
            name: name.clone(),
            interface: port.interface.clone(),
            interface_before: port.interface.clone(),
        })
        .collect();
    Running { file: String::new(), ports }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_another_made_in_its_place_stays() {
        let path = std::env::temp_dir().join(format!("weir-waiting-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let first = SocketFile::at(path.clone());
        // Both files are there at once, so they cannot have the same inode.
        let next = path.with_extension("next");
        std::fs::write(&next, "").unwrap();
        std::fs::rename(&next, &path).unwrap();
        drop(first);
        assert!(path.exists());
        drop(SocketFile::at(path.clone()));
        assert!(!path.exists());
    }
}
