//! Child processes that cannot be left behind: each is owned, has a deadline, and is ended by its own id.
//!
//! Standard output and error go to files in memory, so a child never blocks on a full pipe and its output can be read while it runs and
//! after it was ended. A child that has not been waited for keeps its id, so a signal always reaches that child and no other. If this
//! program is killed, the kernel ends its children.
//!
//! Limits: the kernel ties that last promise to the thread that spawned, so spawn from a thread that lives as
//! long as the child should.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, kill_process};

pub use rustix::process::Signal;

use crate::clock::wait_until;
use crate::interrupt::wait_to_clean_up;

/// A running child process. Dropping it ends it.
#[derive(Debug)]
pub struct Process {
    what: String,
    child: Child,
    stdout: File,
    stderr: File,
    status: Option<ExitStatus>,
}

/// A child process that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The command line.
    pub what: String,
    /// The exit status.
    pub status: ExitStatus,
    /// The whole standard output.
    pub stdout: String,
    /// The whole standard error.
    pub stderr: String,
}

/// Sends a signal to a process that the caller knows to be there: one of its own, or its child.
pub fn send_signal(id: u32, signal: Signal) -> Result<()> {
    let pid =
        i32::try_from(id).ok().and_then(Pid::from_raw).with_context(|| format!("{id} is no process"))?;
    kill_process(pid, signal).with_context(|| format!("signalling process {id}"))
}

impl Process {
    /// Starts `command` with no standard input.
    pub fn spawn(command: &mut Command) -> Result<Process> {
        let what = describe(command);
        let stdout = File::from(memfd_create("stdout", MemfdFlags::CLOEXEC)?);
        let stderr = File::from(memfd_create("stderr", MemfdFlags::CLOEXEC)?);
        command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
        // SAFETY: prctl with PR_SET_PDEATHSIG only sets a number in the calling process and is a plain system
        // call, so it may run between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let child = command.spawn().with_context(|| format!("cannot start `{what}`"))?;
        Ok(Process { what, child, stdout, stderr, status: None })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The standard output so far.
    pub fn stdout(&self) -> String {
        read_from_start(&self.stdout)
    }

    /// The standard error so far.
    pub fn stderr(&self) -> String {
        read_from_start(&self.stderr)
    }

    /// Returns whether it has not ended yet.
    pub fn is_running(&mut self) -> Result<bool> {
        if self.status.is_none() {
            self.status = self.child.try_wait().with_context(|| format!("waiting for `{}`", self.what))?;
        }
        Ok(self.status.is_none())
    }

    /// Sends the child a signal. A child that has ended already gets none.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.is_running()? {
            let id = Pid::from_child(&self.child);
            kill_process(id, signal).with_context(|| format!("signalling `{}`", self.what))?;
        }
        Ok(())
    }

    /// Waits for it to end by itself; past `limit` it is ended and the wait fails with its output.
    pub fn wait(mut self, limit: Duration) -> Result<Finished> {
        let what = format!("`{}` ends", self.what);
        match wait_until(&what, limit, || Ok(!self.is_running()?)) {
            Ok(()) => Ok(self.finished()),
            Err(error) => bail!("{error}; {}", self.said()),
        }
    }

    /// Asks it to end with SIGTERM and waits for that.
    pub fn stop(mut self, limit: Duration) -> Result<Finished> {
        self.signal(Signal::TERM)?;
        self.wait(limit)
    }

    /// Waits until `text` stands on standard output; fails at once if the process ends before that.
    pub fn wait_for_output(&mut self, text: &str, limit: Duration) -> Result<()> {
        let what = format!("`{}` prints `{text}`", self.what);
        let waited = wait_until(&what, limit, || Ok(self.stdout().contains(text) || !self.is_running()?));
        match waited {
            Ok(()) if self.stdout().contains(text) => Ok(()),
            Ok(()) => bail!("`{}` ended before it printed `{text}`; {}", self.what, self.said()),
            Err(error) => bail!("{error}; {}", self.said()),
        }
    }

    fn said(&self) -> String {
        let text = format!("{}{}", self.stdout(), self.stderr());
        if text.trim().is_empty() {
            "it said nothing".to_string()
        } else {
            format!("it said: {}", text.trim())
        }
    }

    fn finished(&self) -> Finished {
        Finished {
            what: self.what.clone(),
            status: self.status.expect("only called once the process has ended"),
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.signal(Signal::TERM).is_err() || !matches!(self.is_running(), Ok(true)) {
            return;
        }
        if !wait_to_clean_up(|| !matches!(self.is_running(), Ok(true))) {
            // Both calls fail only if the child is gone already.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Finished {
    /// Fails unless the process exited with status 0; the error carries its output.
    pub fn success(self) -> Result<Finished> {
        if !self.status.success() {
            bail!("`{}` failed ({}): {}", self.what, self.status, self.said());
        }
        Ok(self)
    }

    /// Standard error, or standard output when that is empty.
    pub fn said(&self) -> &str {
        if self.stderr.trim().is_empty() { self.stdout.trim() } else { self.stderr.trim() }
    }
}

/// Runs a command to its end.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished> {
    Process::spawn(command)?.wait(limit)
}

fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Reads by position: the child shares the file's own position and must not see it move.
fn read_from_start(file: &File) -> String {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(n @ 1..) = file.read_at(&mut chunk, bytes.len() as u64) {
        bytes.extend_from_slice(&chunk[..n]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_status_are_kept() {
        let done = run(&mut shell("echo out; echo err >&2; exit 3"), Duration::from_secs(10)).unwrap();
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(done.status.code(), Some(3));
        assert!(done.success().unwrap_err().to_string().contains("err"));
    }

    #[test]
    fn a_child_past_its_deadline_is_ended_and_its_words_are_reported() {
        let child = Process::spawn(&mut shell("echo stuck; exec sleep 1000")).unwrap();
        let id = child.id();
        let error = child.wait(Duration::from_millis(200)).unwrap_err();
        assert!(format!("{error:#}").contains("stuck"), "{error:#}");
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
    }

    #[test]
    fn output_is_seen_while_the_child_runs() {
        let mut child = Process::spawn(&mut shell("echo ready; exec sleep 1000")).unwrap();
        child.wait_for_output("ready", Duration::from_secs(10)).unwrap();
        assert!(child.is_running().unwrap());
        assert!(!child.stop(Duration::from_secs(10)).unwrap().status.success());
    }

    #[test]
    fn a_child_that_ends_early_is_not_waited_for() {
        let mut child = Process::spawn(&mut shell("echo no such device >&2; exit 2")).unwrap();
        let error = child.wait_for_output("ready", Duration::from_secs(60)).unwrap_err();
        assert!(format!("{error:#}").contains("no such device"), "{error:#}");
    }
}
