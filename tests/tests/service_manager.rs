//! A service manager, such as systemd, and `weir up`: what it is told, and when.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Result, ensure};
use weir_lab::clock::wait_until;
use weir_lab::process::{Process, Signal};
use weir_tests::topology::Hosts;
use weir_tests::{harness, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(40);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_service_manager_is_told).together(),
        privileged!(a_busy_service_manager_is_told_later).together(),
    ])
}

/// The socket of a manager, and a file of a wire between two ports; both go with the value.
struct Service {
    hosts: Hosts,
    paths: [PathBuf; 2],
    socket: UnixDatagram,
}

impl Service {
    fn new() -> Result<Service> {
        let hosts = Hosts::new(2, None)?;
        let paths = ["notify", "toml"]
            .map(|kind| std::env::temp_dir().join(format!("{}-told.{kind}", hosts.middle.name())));
        let socket = UnixDatagram::bind(&paths[0])?;
        let ports = "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\n[[wire]]\nports = [\"p0\", \"p1\"]\n";
        std::fs::write(&paths[1], ports)?;
        Ok(Service { hosts, paths, socket })
    }

    /// The command that runs the file and tells the manager.
    fn command(&self) -> Result<Command> {
        let mut command = self.hosts.middle.command(weir_binary()?);
        command.arg("up").arg(&self.paths[1]).env("NOTIFY_SOCKET", &self.paths[0]);
        Ok(command)
    }

    /// The next message to the manager.
    fn heard(&self) -> Result<String> {
        let mut piece = [0; 64];
        let length = self.socket.recv(&mut piece)?;
        Ok(String::from_utf8_lossy(&piece[..length]).into_owned())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // A file that is left in the folder for temporary ones harms nobody.
        self.paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

fn a_service_manager_is_told() -> Result<()> {
    let service = Service::new()?;
    service.socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut daemon = Process::spawn(service.command()?.env("WATCHDOG_USEC", "400000"))?;
    ensure!(service.heard()? == "READY=1", "first of all that it is ready");
    for _ in 0..3 {
        ensure!(service.heard()? == "WATCHDOG=1", "then that it is alive");
    }
    daemon.signal(Signal::TERM)?;
    wait_until("it says that it ends", PATIENCE, || Ok(service.heard()? == "STOPPING=1"))?;
    daemon.wait(PATIENCE)?.success()?;
    Ok(())
}

/// The manager reads nothing while the service starts, and has no room for a message.
fn a_busy_service_manager_is_told_later() -> Result<()> {
    let service = Service::new()?;
    let other = UnixDatagram::unbound()?;
    other.set_nonblocking(true)?;
    while other.send_to(b"OTHER=1", &service.paths[0]).is_ok() {}
    let mut daemon = Process::spawn(&mut service.command()?)?;
    daemon.wait_for_output("ready", PATIENCE)?;
    service.socket.set_nonblocking(true)?;
    wait_until("it says that it is ready", PATIENCE, || {
        Ok(service.heard().is_ok_and(|message| message == "READY=1"))
    })?;
    daemon.signal(Signal::TERM)?;
    daemon.wait(PATIENCE)?.success()?;
    Ok(())
}
