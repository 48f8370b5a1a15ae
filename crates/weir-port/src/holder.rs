//! The holder of an XDP program, or of the lock of a file: the process to stop.
//!
//! The kernel says which program an interface runs, and in `/proc/PID/fdinfo` which program each descriptor of a process keeps attached. A
//! program that was attached by netlink (`ip link set ... xdp`) has no such descriptor. `/proc/locks` has a line for each lock.
//!
//! Source: kernel `kernel/bpf/syscall.c:bpf_link_show_fdinfo`, `fs/locks.c:lock_get_status`. Limits: descriptors of other users' processes
//! are seen by root alone, and no process of another PID namespace. Nobody is seen to have a lock where a file's device is not that of its
//! file system, as on btrfs.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::sys;

/// A process that holds something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderProcess {
    /// Its number.
    pub pid: u32,
    /// Its command line.
    pub line: String,
}

impl HolderProcess {
    fn new(pid: u32) -> HolderProcess {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        HolderProcess { pid, line: String::from_utf8_lossy(&words).replace('\0', " ").trim().to_string() }
    }
}

impl fmt::Display for HolderProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} (`{}`)", self.pid, self.line)
    }
}

/// The process that keeps program number `program` attached.
pub fn of_program(program: u32) -> Option<HolderProcess> {
    let mut processes = sys::processes();
    processes.find(|pid| holds(*pid, program)).map(HolderProcess::new)
}

/// The process that has a file locked by `flock(2)`; none if nobody has, or nobody who can be seen.
pub fn of_lock(file: &File) -> io::Result<Option<HolderProcess>> {
    let about = file.metadata()?;
    let (major, minor) = (libc::major(about.dev()), libc::minor(about.dev()));
    let identity = format!("{major:02x}:{minor:02x}:{}", about.ino());
    let locks = fs::read_to_string("/proc/locks")?;
    let pid = locks.lines().find_map(|line| locker(line, &identity));
    Ok(pid.map(HolderProcess::new))
}

/// The process of a line of `/proc/locks`, if it has this file locked.
fn locker(line: &str, identity: &str) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // A process that waits for a lock has an arrow for its second word.
    let ["FLOCK", _, _, pid, file, ..] = words.get(1..)? else { return None };
    (*file == identity).then(|| pid.parse().ok()).flatten().filter(|pid| *pid > 0)
}

fn holds(pid: u32, program: u32) -> bool {
    // A process that has ended meanwhile holds nothing.
    let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let mut texts = descriptors.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    texts.any(|text| is_link_of(&text, program))
}

/// Returns whether the `fdinfo` of a descriptor says that it keeps this XDP program attached.
pub fn is_link_of(text: &str, program: u32) -> bool {
    let has = |key: &str, value: &str| {
        text.lines().any(|line| line.split_once(':').is_some_and(|(k, v)| k == key && v.trim() == value))
    };
    has("link_type", "xdp") && has("prog_id", &program.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_link_names_its_program() {
        let text = "pos:\t0\nflags:\t02000000\nmnt_id:\t16\nino:\t2074\nlink_type:\txdp\nlink_id:\t9\nprog_tag:\t0123\n\
                    prog_id:\t42\nifindex:\t3\n";
        assert!(is_link_of(text, 42));
        assert!(!is_link_of(text, 4));
        assert!(!is_link_of(&text.replace("xdp", "tcx"), 42));
    }

    #[test]
    fn a_line_of_the_locks_names_the_process_that_has_a_file() {
        let line = "3: FLOCK  ADVISORY  WRITE 4711 fe:00:5482821 0 EOF";
        assert_eq!(locker(line, "fe:00:5482821"), Some(4711));
        assert_eq!(locker(line, "fe:00:548282"), None);
        assert_eq!(locker("3: -> FLOCK  ADVISORY  WRITE 4711 fe:00:5482821 0 EOF", "fe:00:5482821"), None);
        assert_eq!(locker(&line.replace("FLOCK", "POSIX"), "fe:00:5482821"), None);
        assert_eq!(locker(&line.replace("4711", "0"), "fe:00:5482821"), None);
        assert_eq!(locker("", "fe:00:5482821"), None);
    }

    #[test]
    fn a_lock_that_this_process_has_is_its_own() {
        // The folder for temporary files may be on a file system whose devices are others.
        let path = Path::new("/dev/shm").join(format!("weir-holder-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        assert_eq!(of_lock(&file).unwrap(), None);
        file.lock().unwrap();
        let process = of_lock(&File::open(&path).unwrap()).unwrap().unwrap();
        assert_eq!(process, HolderProcess::new(std::process::id()));
        assert!(process.to_string().starts_with(&format!("process {} (`", std::process::id())));
        fs::remove_file(path).unwrap();
    }
}
