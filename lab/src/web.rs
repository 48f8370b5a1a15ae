//! A real web server in a namespace, and short connections to it: connect, ask, read the answer, close, as `nc` in a loop does.
//!
//! The server is one that the machine has: nginx, busybox's httpd, or python3's `http.server`. It sends one small page from a file and
//! closes.
//!
//! One client connects, at most once in an interval, and again at once if it is late. The time of a connection is measured from before
//! `connect` to the end of the answer. A connection that is refused, times out, or brings anything but the page has failed.
//!
//! Limits: one connection at a time, so a pause of the path is one long connection and not as many as would have come meanwhile. The client
//! is an ordinary thread: the time that it waits for a processor is in every figure.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::bed::Namespace;
use crate::clock::{now, wait_until};
use crate::epair::histogram::Histogram;
use crate::interrupt;
use crate::process::Process;

const PAGE: &str = "<!doctype html><title>weir</title><p>All of it arrived.\n";
const REQUEST: &str = "GET /index.html HTTP/1.0\r\nHost: weir\r\nConnection: close\r\n\r\n";
const READY_LIMIT: Duration = Duration::from_secs(20);
/// A packet that is lost is sent again after one second.
const CONNECTION_LIMIT: Duration = Duration::from_secs(5);

/// A web server that serves one page. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    /// Ends before its folder goes.
    _process: Process,
    _folder: Folder,
    /// The name of the program.
    pub program: &'static str,
}

/// A folder that goes with its value.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    /// A new folder that nobody else can change: root writes into it, and anybody may have put one of this name there before.
    fn new(path: PathBuf) -> Result<Folder> {
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("making {}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A page that is left in the folder for temporary files harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Server {
    /// Starts the first server that is installed, and waits until it serves a page to a client in another namespace.
    pub fn start(namespace: &Namespace, client: &Namespace, address: SocketAddrV4) -> Result<Server> {
        let folder = Folder::new(std::env::temp_dir().join(format!("{}-web", namespace.name())))?;
        fs::write(folder.0.join("index.html"), PAGE)?;
        let root = folder.0.to_str().context("a path in UTF-8")?;
        let port = address.port().to_string();
        let (program, mut command) = if let Some(path) = installed("nginx") {
            fs::write(folder.0.join("nginx.conf"), nginx_conf(root, address))?;
            let mut command = namespace.command(path);
            command.args(["-p", root, "-c", "nginx.conf", "-e", "stderr"]);
            ("nginx", command)
        } else if let Some(path) = installed("busybox") {
            let mut command = namespace.command(path);
            command.args(["httpd", "-f", "-p", &address.to_string(), "-h", root]);
            ("busybox httpd", command)
        } else if let Some(path) = installed("python3") {
            let mut command = namespace.command(path);
            let bind = address.ip().to_string();
            command.args(["-m", "http.server", &port, "--bind", &bind, "--directory", root]);
            ("python3 -m http.server", command)
        } else {
            bail!("no web server: install nginx or busybox, or python3");
        };
        let mut process = Process::spawn(&mut command)?;
        wait_until(&format!("{program} serves a page"), READY_LIMIT, || {
            ensure!(process.is_running()?, "{program} ended early: {}", process.stderr().trim());
            Ok(client.enter(|| connect(address))?.is_ok())
        })
        .with_context(|| process.stderr().trim().to_string())?;
        Ok(Server { _process: process, _folder: folder, program })
    }
}

/// The configuration of nginx: one process that is nobody's child but ours, and writes nothing outside its folder.
fn nginx_conf(root: &str, address: SocketAddrV4) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("{name}_temp_path {root}/{name};\n"))
        .collect();
    format!(
        "daemon off;\nmaster_process off;\npid {root}/nginx.pid;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}\
         server {{ listen {address}; root {root}; }}\n}}\n"
    )
}

/// The path of a program, in the folders of root as well.
fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    // A shim may be there for a program that is not.
    let runs = |path: &PathBuf| {
        let help = if program == "nginx" { "-v" } else { "--help" };
        Command::new(path).arg(help).output().is_ok_and(|done| done.status.success())
    };
    folders.map(|folder| folder.join(program)).find(|path| path.is_file() && runs(path))
}

/// The outcome of a client's connections.
#[derive(Debug, Default)]
pub struct Connections {
    /// The times of the connections that succeeded.
    pub took: Histogram,
    /// The number of connections that succeeded.
    pub count: u64,
    /// The number of connections that failed.
    pub failed: u64,
    /// The reason of the first failure.
    pub failure: Option<String>,
}

impl Connections {
    /// Counts all of another client's.
    pub fn merge(&mut self, other: &Connections) {
        self.took.merge(&other.took);
        self.count += other.count;
        self.failed += other.failed;
        self.failure = self.failure.take().or_else(|| other.failure.clone());
    }
}

/// Connects from a namespace for `time`, once in each `interval`.
pub fn connect_for(
    namespace: &Namespace,
    address: SocketAddrV4,
    time: Duration,
    interval: Duration,
) -> Result<Connections> {
    namespace.enter(|| {
        let mut connections = Connections::default();
        let (end, mut due) = (now() + time, now());
        while now() < end {
            interrupt::check()?;
            std::thread::sleep(due.saturating_duration_since(now()));
            let begin = now();
            due = begin.max(due + interval);
            match connect(address) {
                Ok(()) => {
                    connections.took.add(begin.elapsed().as_nanos() as u64);
                    connections.count += 1;
                }
                Err(error) => {
                    connections.failed += 1;
                    connections.failure.get_or_insert_with(|| format!("{error:#}"));
                }
            }
        }
        Ok(connections)
    })?
}

/// One connection.
fn connect(address: SocketAddrV4) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address.into(), CONNECTION_LIMIT).context("connecting")?;
    stream.set_read_timeout(Some(CONNECTION_LIMIT))?;
    stream.write_all(REQUEST.as_bytes()).context("asking")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("reading the answer")?;
    ensure!(answer.starts_with("HTTP/1.") && answer.ends_with(PAGE), "an answer of {answer:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_folder_that_somebody_put_there_before_is_refused_and_left_alone() {
        let base = std::env::temp_dir().join(format!("weir-web-{}", std::process::id()));
        let base = Folder::new(base).unwrap();
        assert_eq!(fs::metadata(&base.0).unwrap().permissions().mode() & 0o777, 0o700);
        let (folder, link) = (base.0.join("web"), base.0.join("web/index.html"));
        fs::create_dir(&folder).unwrap();
        symlink(base.0.join("precious"), &link).unwrap();
        let error = Folder::new(folder).unwrap_err();
        assert!(format!("{error:#}").contains("File exists"), "{error:#}");
        assert!(link.is_symlink(), "it is its owner's");
    }
}
