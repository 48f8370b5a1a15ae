//! Where the kernel has dropped packets: the counters of a test's hosts that are not zero, for whoever looks for a packet that is missing.
//!
//! Packets that find a list of arrivals full (`net.core.netdev_max_backlog`), or too many others that wait for the address of a neighbour,
//! are counted for the whole machine, with those of tests that run beside.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;
use weir_lab::bed::Namespace;
use weir_lab::iperf::net_file;

/// A line for each counter of drops that is not zero: of these hosts' interfaces, queues and protocols, and of the machine.
pub fn told(hosts: &[&Namespace]) -> Result<String> {
    let mut drops = BTreeMap::from([("lists of arrivals".to_string(), of_processors()?)]);
    for family in ["arp", "ndisc"] {
        drops.insert(format!("unknown neighbours, {family}"), of_neighbours(family)?);
    }
    let mut queues = String::new();
    for host in hosts {
        drops.extend(of_links(host)?);
        let of_host = |(name, count)| (format!("{} {name}", host.name()), count);
        drops.extend(of_lines(&net_file(host, "snmp6")?).into_iter().map(of_host));
        for file in ["snmp", "netstat"] {
            drops.extend(of_columns(&net_file(host, file)?).into_iter().map(of_host));
        }
        let text = host.tc("-s qdisc show")?;
        for queue in
            text.split("qdisc ").filter(|queue| queue.contains("(dropped ") && !queue.contains("(dropped 0,"))
        {
            queues += &format!("\n{} {}", host.name(), queue.trim());
        }
    }
    let drops = drops.iter().filter(|(_, count)| **count > 0);
    Ok(drops.map(|(name, count)| format!("\n{name}: {count}")).collect::<String>() + &queues)
}

/// The packets that the interfaces of a host have dropped, by interface and direction.
pub fn of_links(host: &Namespace) -> Result<BTreeMap<String, u64>> {
    let links: Value = serde_json::from_str(&host.ip("-s -j link show")?)?;
    let mut drops = BTreeMap::new();
    for link in links.as_array().context("`ip -j link` printed no list")? {
        let name = link["ifname"].as_str().unwrap_or_default();
        for way in ["rx", "tx"] {
            let dropped = link["stats64"][way]["dropped"].as_u64();
            let dropped = dropped.with_context(|| format!("no drops of {name}"))?;
            drops.insert(format!("{} {name} {way}", host.name()), dropped);
        }
    }
    Ok(drops)
}

/// The packets that the processors of this machine have dropped because their lists of arrivals were full.
pub fn of_processors() -> Result<u64> {
    let text = fs::read_to_string("/proc/net/softnet_stat").context("softnet_stat")?;
    Ok(sum_hex(text.lines(), 1))
}

/// The packets that were dropped while they waited for the address of a neighbour.
fn of_neighbours(family: &str) -> Result<u64> {
    let path = format!("/proc/net/stat/{family}_cache");
    let text = fs::read_to_string(&path).context(path)?;
    let column = text
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().position(|name| name == "unresolved_discards"));
    Ok(sum_hex(text.lines().skip(1), column.context("no unresolved_discards")?))
}

fn sum_hex<'a>(lines: impl Iterator<Item = &'a str>, column: usize) -> u64 {
    let words = lines.filter_map(|line| line.split_whitespace().nth(column));
    words.filter_map(|word| u64::from_str_radix(word, 16).ok()).sum()
}

fn is_of_drops(name: &str) -> bool {
    ["Discard", "Drop", "Err", "Fail", "NoPorts", "NoRoute", "Timeout"].iter().any(|part| name.contains(part))
}

/// `/proc/net/snmp6`: a `name value` a line.
fn of_lines(text: &str) -> Vec<(String, u64)> {
    let counters = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let counters = counters.filter(|(name, _)| is_of_drops(name));
    counters.filter_map(|(name, count)| Some((name.to_string(), count.trim().parse().ok()?))).collect()
}

/// `/proc/net/snmp`: lines in pairs, `prefix: names` and `prefix: values`.
fn of_columns(text: &str) -> Vec<(String, u64)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut drops = Vec::new();
    for pair in lines.chunks_exact(2) {
        let prefix = pair[0].split(':').next().unwrap_or_default();
        for (name, count) in pair[0].split_whitespace().zip(pair[1].split_whitespace()).skip(1) {
            if let Ok(count) = count.parse()
                && is_of_drops(name)
            {
                drops.push((format!("{prefix} {name}"), count));
            }
        }
    }
    drops
}
