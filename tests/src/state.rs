//! The kernel's state of the queues of a row of hosts, to tell that it did not change.

use anyhow::{Result, ensure};

use crate::limits::Row;

/// The kernel's state of both pairs.
pub fn state(row: &Row) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for host in [&row.left, &row.middle, &row.right] {
        all.push(host.tc("qdisc show")?);
        all.push(host.tc("class show dev veth0").unwrap_or_default());
        all.push(host.sh("grep -r . /sys/class/net --include=rps_cpus").unwrap_or_default());
    }
    for (host, device) in
        [(&row.left, "veth0"), (&row.middle, "wa"), (&row.middle, "wb"), (&row.right, "veth0")]
    {
        all.push(host.tc(&format!("class show dev {device}"))?);
        all.push(host.tc(&format!("filter show dev {device}"))?);
        all.push(host.tc(&format!("filter show dev {device} ingress"))?);
    }
    Ok(all.iter().map(|text| without_numbers(text)).collect())
}

/// A listing of tc without the numbers that the kernel gives to queues and programs in the order in which they are made.
fn without_numbers(listing: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in listing.lines() {
        let mut words: Vec<_> = line.split_whitespace().collect();
        if words.starts_with(&["qdisc", "tbf"]) {
            words.remove(2);
        }
        // The class of a token bucket, which says no more than the bucket.
        if words.starts_with(&["class", "tbf"]) {
            continue;
        }
        // The number of a queue, and that of a program.
        for word in ["leaf", "id"] {
            if let Some(at) = words.iter().position(|other| *other == word) {
                words.remove(at + 1);
            }
        }
        lines.push(words.join(" "));
    }
    lines.sort();
    lines.join("\n")
}

/// Requires that the state is the same still, after `what`.
pub fn require_same(before: &[String], row: &Row, what: &str) -> Result<()> {
    for (before, after) in before.iter().zip(state(row)?) {
        let lost: Vec<_> = before.lines().filter(|line| !after.lines().any(|other| other == *line)).collect();
        let come: Vec<_> = after.lines().filter(|line| !before.lines().any(|other| other == *line)).collect();
        ensure!(*before == after, "{what}: gone {lost:#?}, come {come:#?}");
    }
    Ok(())
}
