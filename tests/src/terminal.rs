//! A program on a terminal of its own, as in a window: typed text reaches it as keys do.
//!
//! Source: pty(7); `setsid(2)` and `TIOCSCTTY` (ioctl_tty(2)) make the terminal the program's own.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use weir_lab::clock::wait_until;

/// A program on a terminal. Dropping it closes the terminal, which hangs the program up.
#[derive(Debug)]
pub struct Terminal {
    master: File,
    child: Child,
    shown: Vec<u8>,
}

impl Terminal {
    /// Starts `command` as the leader of a session on a new terminal.
    pub fn start(command: &mut Command) -> Result<Terminal> {
        // SAFETY: takes no pointers.
        let master = unsafe { libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) };
        ensure!(master >= 0, "no terminal: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new and ours alone.
        let master = unsafe { File::from_raw_fd(master) };
        let mut number: libc::c_int = 0;
        let mut unlock: libc::c_int = 0;
        // SAFETY: both requests take a pointer to an int, alive for the call; O_NONBLOCK takes a plain number.
        let ready = unsafe {
            libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &mut unlock) == 0
                && libc::ioctl(master.as_raw_fd(), libc::TIOCGPTN, &mut number) == 0
                && libc::fcntl(master.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) == 0
        };
        ensure!(ready, "no terminal: {}", std::io::Error::last_os_error());
        let path = format!("/dev/pts/{number}");
        let slave = OpenOptions::new().read(true).write(true).open(&path).with_context(|| path.clone())?;
        command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
        // SAFETY: between fork and exec only plain system calls are made, which neither allocate nor lock.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        // The command keeps its ends of the terminal otherwise, and the end of the program would not be seen.
        command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        Ok(Terminal { master, child, shown: Vec::new() })
    }

    /// Types keys.
    pub fn keys(&mut self, keys: &str) -> Result<()> {
        self.master.write_all(keys.as_bytes()).context("typing")
    }

    /// Waits until `text` is shown, behind the text of the wait before.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<()> {
        let mut found = false;
        let waited = wait_until(&format!("the terminal shows {text:?}"), limit, || {
            self.look();
            let shown = String::from_utf8_lossy(&self.shown).into_owned();
            if let Some(at) = shown.find(text) {
                self.shown = shown.as_bytes()[at + text.len()..].to_vec();
                found = true;
            }
            Ok(found)
        });
        match waited {
            Ok(()) => Ok(()),
            Err(error) => bail!("{error}; it shows {:?}", String::from_utf8_lossy(&self.shown)),
        }
    }

    /// Waits for the program's end. Returns its status, and the text that was shown since the last wait.
    pub fn finish(mut self, limit: Duration) -> Result<(ExitStatus, String)> {
        let mut status = None;
        let waited = wait_until("the program on the terminal ends", limit, || {
            self.look();
            status = self.child.try_wait()?;
            Ok(status.is_some())
        });
        self.look();
        waited.with_context(|| format!("it shows {:?}", String::from_utf8_lossy(&self.shown)))?;
        let shown = String::from_utf8_lossy(&self.shown).into_owned();
        Ok((status.context("it has ended")?, shown))
    }

    fn look(&mut self) {
        let mut chunk = [0; 4096];
        // An error says that there is nothing now, or that the program has closed the terminal.
        while let Ok(count @ 1..) = self.master.read(&mut chunk) {
            self.shown.extend(&chunk[..count]);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Both calls fail only if the program is gone already.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
