//! The traces that a program can leave behind in the kernel, as text that can be compared before and after.
//!
//! For each interface of a namespace: flags, XDP, queueing disciplines, filters, offloads and the NAPI knobs. For the
//! machine: BPF programs, pinned objects, namespaces, and files under `/run/weir`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::Namespace;

/// The traces of the interfaces of one namespace, by name of the thing.
pub type Traces = BTreeMap<String, String>;

/// Reads the traces of a namespace.
pub fn traces(namespace: &Namespace) -> Result<Traces> {
    let mut traces = Traces::new();
    let links: serde_json::Value = serde_json::from_str(&namespace.ip("-j link show")?)?;
    for link in links.as_array().context("`ip -j link` printed no list")? {
        let name = link["ifname"].as_str().context("an interface without a name")?;
        if name == "lo" {
            continue;
        }
        let mut keep = |what: &str, text: String| traces.insert(format!("{name} {what}"), text);
        keep("link", namespace.ip(&format!("-d link show dev {name}"))?);
        keep("qdisc", without_refcounts(&namespace.tc(&format!("qdisc show dev {name}"))?));
        for hook in ["ingress", "egress"] {
            // An interface without a hook has no filters, and tc says so by failing.
            keep(hook, namespace.tc(&format!("filter show dev {name} {hook}")).unwrap_or_default());
        }
        keep("offloads", namespace.sh(&format!("ethtool -k {name}"))?);
        let knobs = ["napi_defer_hard_irqs", "gro_flush_timeout", "threaded"]
            .map(|knob| format!("/sys/class/net/{name}/{knob}"));
        keep("knobs", namespace.sh(&format!("grep -H . {}", knobs.join(" ")))?);
    }
    Ok(traces)
}

/// A counter of a namespace since it was made, such as `TCPOFOQueue` of `TcpExt` (`/proc/net/netstat`).
pub fn counter(namespace: &Namespace, table: &str, name: &str) -> Result<u64> {
    let text = namespace.sh("cat /proc/net/netstat")?;
    let is_of = |line: &&str| line.split(':').next() == Some(table);
    let mut lines = text.lines().filter(is_of);
    let names = lines.next().with_context(|| format!("no {table}"))?.split_whitespace();
    let values = lines.next().with_context(|| format!("no values of {table}"))?.split_whitespace();
    let count = names.zip(values).find(|(of, _)| *of == name).with_context(|| format!("no {name}"))?.1;
    Ok(count.parse()?)
}

/// Fails with every difference.
pub fn require_same(before: &Traces, after: &Traces) -> Result<()> {
    let mut differences = Vec::new();
    for key in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let side = |traces: &Traces| traces.get(key).map_or("(gone)", |text| text.trim()).to_string();
        let (was, is) = (side(before), side(after));
        if was != is {
            differences.push(format!("{key}: was {}, is {}", only(&was, &is), only(&is, &was)));
        }
    }
    ensure!(differences.is_empty(), "left changed:\n{}", differences.join("\n"));
    Ok(())
}

/// The things of a program on the machine beside interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Belongings {
    bpf_programs: BTreeSet<u32>,
    files: BTreeSet<String>,
}

/// Looks at all belongings. Namespaces are Weir's if their names say so: others may make theirs meanwhile.
pub fn belongings() -> Result<Belongings> {
    let mut files = BTreeSet::new();
    for folder in ["/sys/fs/bpf", "/run/netns", "/run/weir"] {
        list(Path::new(folder), &mut files);
    }
    files.retain(|file| file.strip_prefix("/run/netns/").is_none_or(|name| name.starts_with("weir")));
    Ok(Belongings { bpf_programs: bpf_programs()?, files })
}

impl Belongings {
    /// The things that are here and were not there before.
    pub fn new_since(&self, before: &Belongings) -> Vec<String> {
        let programs =
            self.bpf_programs.difference(&before.bpf_programs).map(|id| format!("BPF program {id}"));
        programs.chain(self.files.difference(&before.files).cloned()).collect()
    }
}

fn list(folder: &Path, files: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            list(&path, files);
        } else {
            files.insert(path.display().to_string());
        }
    }
}

/// The files of holds on things of these namespaces; a namespace before them with the same number may have left some.
pub fn holds(namespaces: &[&Namespace]) -> Result<Vec<String>> {
    let inode = |namespace: &&Namespace| Ok(fs::metadata(format!("/run/netns/{}", namespace.name()))?.ino());
    let inodes = namespaces.iter().map(inode).collect::<Result<Vec<_>>>()?;
    let entries = fs::read_dir("/run/weir/holds").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let of_these = |name: &String| inodes.iter().any(|inode| name.starts_with(&format!("{inode}-")));
    let mut names: Vec<_> = names.filter(of_these).collect();
    names.sort_unstable();
    Ok(names)
}

/// The ids of the programs that the kernel holds, for any process.
fn bpf_programs() -> Result<BTreeSet<u32>> {
    const BPF_PROG_GET_NEXT_ID: i32 = 11;
    /// The head of `union bpf_attr` for this command.
    #[repr(C)]
    struct NextId {
        start_id: u32,
        next_id: u32,
        open_flags: u32,
    }
    let mut ids = BTreeSet::new();
    let mut attr = NextId { start_id: 0, next_id: 0, open_flags: 0 };
    loop {
        let length = size_of::<NextId>();
        // SAFETY: the pointer and the length are those of a live, fully initialised struct laid out as the kernel's.
        let done = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_GET_NEXT_ID, &raw mut attr, length) };
        if done != 0 {
            let error = io::Error::last_os_error();
            ensure!(error.raw_os_error() == Some(libc::ENOENT), "BPF_PROG_GET_NEXT_ID: {error}");
            return Ok(ids);
        }
        ids.insert(attr.next_id);
        attr.start_id = attr.next_id;
    }
}

/// The text without reference counts: that of a queueing discipline depends on how it came to be there.
fn without_refcounts(text: &str) -> String {
    let mut words = text.split(' ');
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if word == "refcnt" {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
}

/// The lines of `text` that are not in `other`; short texts whole.
fn only(text: &str, other: &str) -> String {
    let others: BTreeSet<&str> = other.lines().collect();
    let lines: Vec<&str> = text.lines().filter(|line| !others.contains(line)).map(str::trim).collect();
    format!("`{}`", lines.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_counts_do_not_count() {
        assert_eq!(without_refcounts("qdisc noqueue 0: root refcnt 129 \n"), "qdisc noqueue 0: root \n");
    }

    #[test]
    fn a_difference_is_named_with_its_lines() {
        let traces = |text: &str| Traces::from([("wa offloads".to_string(), text.to_string())]);
        let (before, after) = (traces("gro: off\ntso: on\n"), traces("gro: on\ntso: on\n"));
        require_same(&before, &before).unwrap();
        let error = require_same(&before, &after).unwrap_err().to_string();
        assert_eq!(error, "left changed:\nwa offloads: was `gro: off`, is `gro: on`");
        assert!(require_same(&before, &Traces::new()).is_err());
    }
}
