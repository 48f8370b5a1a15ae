//! The wire under test as two processes, of which either may be killed or stopped, and in which a new one is started at once.
//!
//! All processes that it starts are in a control group of its own, so that those that are left are found, and no process id may be given to
//! them.
//!
//! Rule: a wire that ends by itself has status 1 and said why in its last line.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use weir_lab::bed::Namespace;
use weir_lab::clock::wait_until;
use weir_lab::interrupt::wait_to_clean_up;
use weir_lab::process::{Finished, Process, Signal, run};

const LIMIT: Duration = Duration::from_secs(20);

/// The wire under test.
#[derive(Debug)]
pub struct Subject {
    binary: PathBuf,
    namespace: String,
    rate: String,
    group: Group,
    daemon: Option<Process>,
    guardian: Option<u32>,
}

impl Subject {
    /// A subject without a wire. `namespace` is where it will join `wa` and `wb`.
    pub fn new(binary: &Path, namespace: &Namespace, rate: &str) -> Result<Subject> {
        Ok(Subject {
            binary: binary.to_path_buf(),
            namespace: namespace.name().to_string(),
            rate: rate.to_string(),
            group: Group::new()?,
            daemon: None,
            guardian: None,
        })
    }

    /// Starts a wire and waits until it is ready.
    pub fn start(&mut self) -> Result<()> {
        let mut daemon = self.spawn(&self.namespace)?;
        daemon.wait_for_output("ready", LIMIT)?;
        self.guardian = Some(self.guardian_of(daemon.id())?);
        self.daemon = Some(daemon);
        Ok(())
    }

    /// The end of a start that must fail; beside a wire that is up it is another's name that it asks for.
    pub fn refused(&self, name: &str) -> Result<Finished> {
        self.spawn(name)?.wait(LIMIT)
    }

    fn spawn(&self, name: &str) -> Result<Process> {
        let mut command = self.command(&["wire", "wa", "wb", "--rate", &self.rate, "--name", name]);
        self.group.join(&mut command)?;
        Process::spawn(&mut command)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace]).arg(&self.binary).args(arguments);
        command
    }

    fn guardian_of(&self, daemon: u32) -> Result<u32> {
        let ours = self.group.processes()?.into_iter().filter(|&id| parent(id) == Some(daemon));
        let guardians: Vec<u32> = ours.collect();
        match guardians[..] {
            [guardian] => Ok(guardian),
            _ => bail!("a wire has one guardian, and this one has the children {guardians:?}"),
        }
    }

    /// Returns whether another guardian has taken over for one that was killed; it is the guardian from then on.
    pub fn has_new_guardian(&mut self) -> Result<bool> {
        let Some(daemon) = &self.daemon else { return Ok(false) };
        let is_new = |id: &u32| parent(*id) == Some(daemon.id()) && Some(*id) != self.guardian;
        let Some(new) = self.group.processes()?.into_iter().find(is_new) else { return Ok(false) };
        self.guardian = Some(new);
        Ok(true)
    }

    /// The control group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Returns whether a wire runs.
    pub fn is_running(&mut self) -> Result<bool> {
        self.daemon.as_mut().map_or(Ok(false), Process::is_running)
    }

    /// Signals the daemon.
    pub fn signal_daemon(&mut self, signal: Signal) -> Result<()> {
        self.daemon.as_mut().context("no wire runs")?.signal(signal)
    }

    /// Signals the guardian, or does nothing if it is gone.
    pub fn signal_guardian(&self, signal: i32) -> Result<()> {
        let guardian = self.guardian.context("no wire runs")?;
        if !self.group.processes()?.contains(&guardian) {
            return Ok(());
        }
        // SAFETY: takes no pointers.
        let done = unsafe { libc::kill(guardian as i32, signal) };
        ensure!(done == 0, "signalling the guardian: {}", io::Error::last_os_error());
        Ok(())
    }

    /// Reaps a daemon that was killed.
    pub fn reap(&mut self) -> Result<Finished> {
        self.daemon.take().context("no wire runs")?.wait(LIMIT)
    }

    /// The last line of a wire that ended by itself; one that was stopped cannot speak, and may have been killed by its guardian.
    ///
    /// # Errors
    /// If it did not end as one may.
    pub fn ended_by_itself(&mut self, may_be_killed: bool) -> Result<String> {
        let done = self.reap()?;
        if may_be_killed && done.status.signal() == Some(libc::SIGKILL) {
            return Ok("its guardian killed it".into());
        }
        let why = done.stderr.lines().last().unwrap_or_default().to_string();
        let is_well =
            done.status.code() == Some(1) && why.starts_with("weir: ") && !done.stderr.contains("panicked");
        ensure!(is_well, "it ended by itself with {} and said: {}", done.status, done.stderr);
        Ok(why)
    }

    /// The standard error of the wire so far.
    pub fn said(&self) -> String {
        self.daemon.as_ref().map(Process::stderr).unwrap_or_default()
    }

    /// `weir stat NAME --json`.
    pub fn stat(&self) -> Result<Value> {
        let done = run(&mut self.command(&["stat", &self.namespace, "--json"]), LIMIT)?.success()?;
        Ok(serde_json::from_str(&done.stdout)?)
    }

    /// `weir stat NAME --check`, and its output.
    pub fn check(&self) -> Result<Finished> {
        run(&mut self.command(&["stat", &self.namespace, "--check"]), LIMIT)
    }

    /// Ends the wire as its user would, and waits until no process is left.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(daemon) = self.daemon.take() {
            daemon.stop(LIMIT)?.success()?;
        }
        self.wait_until_alone()
    }

    /// Waits until no process is left in the control group.
    pub fn wait_until_alone(&self) -> Result<()> {
        wait_until("all processes of the wire are gone", LIMIT, || Ok(self.group.processes()?.is_empty()))
    }
}

fn parent(id: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name, which may hold anything, ends at the last parenthesis.
    text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// A control group that counts processes. Dropping it kills processes that are left in it and removes it.
#[derive(Debug)]
pub struct Group {
    folder: PathBuf,
}

impl Group {
    fn new() -> Result<Group> {
        let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
        let root = if controllers.split_whitespace().any(|name| name == "pids") {
            fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+pids")
                .context("the controller of process ids")?;
            "/sys/fs/cgroup"
        } else {
            "/sys/fs/cgroup/pids"
        };
        let folder = Path::new(root).join(format!("weir-chaos-{}", std::process::id()));
        fs::create_dir(&folder)
            .with_context(|| format!("a control group of process ids, {}", folder.display()))?;
        Ok(Group { folder })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Lets `command` run in it.
    fn join(&self, command: &mut Command) -> Result<()> {
        let file = fs::OpenOptions::new().write(true).open(self.list())?;
        let join = move || {
            // SAFETY: one byte of a constant is read during the call; 0 stands for the process that writes it.
            match unsafe { libc::write(file.as_raw_fd(), c"0".as_ptr().cast(), 1) } {
                1 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: between fork and exec it makes one system call and takes no memory and no lock.
        unsafe { command.pre_exec(join) };
        Ok(())
    }

    /// The file that lists the processes in it.
    pub fn list(&self) -> PathBuf {
        self.file("cgroup.procs")
    }

    /// The processes in it.
    pub fn processes(&self) -> Result<Vec<u32>> {
        let text = fs::read_to_string(self.list())?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Gives no process id or thread beyond what there are now and `more`; `None` ends that.
    pub fn limit(&self, more: Option<u32>) -> Result<()> {
        let most = match more {
            Some(more) => {
                let now: u32 = fs::read_to_string(self.file("pids.current"))?.trim().parse()?;
                (now + more).to_string()
            }
            None => "max".to_string(),
        };
        fs::write(self.file("pids.max"), most).context("pids.max")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // After a failure processes may be left in it; they are all of this test's making.
        for id in self.processes().unwrap_or_default() {
            // SAFETY: takes no pointers.
            unsafe { libc::kill(id as i32, libc::SIGKILL) };
        }
        // The kernel refuses until they are gone.
        wait_to_clean_up(|| fs::remove_dir(&self.folder).is_ok());
    }
}
