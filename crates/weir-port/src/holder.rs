//! The holder of an XDP program: the process to stop.
//!
//! The kernel says which program an interface runs, and in `/proc/PID/fdinfo` which program each descriptor of a process keeps attached. A
//! program that was attached by netlink (`ip link set ... xdp`) has no such descriptor.
//!
//! Source: kernel `kernel/bpf/syscall.c:bpf_link_show_fdinfo`. Limits: processes of other users are seen by root alone.

use std::fs;
use std::path::Path;

/// The process that keeps program number `program` attached: its number and its command line.
pub fn of_program(program: u32) -> Option<(u32, String)> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pid = processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .find(|pid| holds(&Path::new("/proc").join(pid.to_string()).join("fdinfo"), program))?;
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&words).replace('\0', " ");
    Some((pid, line.trim().to_string()))
}

fn holds(descriptors: &Path, program: u32) -> bool {
    // A process that has ended meanwhile holds nothing.
    let descriptors = fs::read_dir(descriptors).into_iter().flatten().flatten();
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
    use super::*;

    #[test]
    fn a_link_names_its_program() {
        let text = "pos:\t0\nflags:\t02000000\nmnt_id:\t16\nino:\t2074\nlink_type:\txdp\nlink_id:\t9\nprog_tag:\t0123\n\
                    prog_id:\t42\nifindex:\t3\n";
        assert!(is_link_of(text, 42));
        assert!(!is_link_of(text, 4));
        assert!(!is_link_of(&text.replace("xdp", "tcx"), 42));
    }
}
