//! The abilities of the kernel: each of [`Feature`], and whether queues can be polled in this namespace.

use weir_port::PortError;
use weir_port::probe::limiting::limits_in_place;
use weir_port::probe::{self, Feature, Finding};
use weir_run::clock::now_ns;

use super::Check;
use crate::human;

/// The name of the check without which no other of these can be made.
pub const ROOT: &str = "capabilities";
/// The name of the one check of limits in place; all others are of wires, or of both.
pub const LIMIT: &str = "limit";
const QUICK: &str = "quick trial";
const PRIMING: &str = "priming";

/// The features in the order in which they are tried and shown; `probe::features` keeps it.
const FEATURES: [Feature; 11] = [
    Feature::Veth,
    Feature::Nftables,
    Feature::Checksum,
    Feature::Bpf,
    Feature::Tcx,
    Feature::Xdp,
    Feature::AfXdp,
    Feature::NapiSet,
    Feature::Holding,
    Feature::Refilling,
    Feature::IoUring,
];

/// All checks of the kernel.
pub fn checks() -> Vec<Check> {
    let mut checks = vec![capabilities()];
    if checks[0].fix.is_some() {
        let names = FEATURES.map(|feature| about(feature).0).into_iter().chain([LIMIT, QUICK, PRIMING]);
        checks.extend(names.map(|name| Check::skip(name, "not tried: that takes root")));
        return checks;
    }
    checks.push(limit(limits_in_place(now_ns)));
    let findings = probe::features(now_ns);
    let ring_polls = findings.iter().any(|found| found.feature == Feature::IoUring && found.result.is_ok());
    let complete = findings.iter().any(|found| found.feature == Feature::Holding && found.result.is_ok());
    checks.extend(FEATURES.map(|feature| match findings.iter().find(|found| found.feature == feature) {
        Some(found) => judge(found),
        None => Check::skip(about(feature).0, "not tried, because of what failed"),
    }));
    if complete {
        checks.push(quick_trial());
        checks.push(priming(probe::primes_here(), ring_polls));
    } else {
        checks.extend([QUICK, PRIMING].map(|name| Check::skip(name, "not tried, because of what failed")));
    }
    checks
}

/// A feature's name, whether a wire needs it, and what to do where it is missing.
fn about(feature: Feature) -> (&'static str, bool, &'static str) {
    match feature {
        Feature::Veth => {
            ("veth", true, "`modprobe veth`, and in a container allow making network namespaces")
        }
        Feature::Bpf => ("bpf", true, "use a kernel with CONFIG_BPF_SYSCALL and CONFIG_XDP_SOCKETS"),
        Feature::Tcx => ("tcx", true, "wires need Linux 6.16 or newer with CONFIG_NET_CLS_ACT"),
        Feature::Xdp => ("xdp", true, "use Linux 6.16 or newer"),
        Feature::AfXdp => ("af_xdp", true, "use a kernel with CONFIG_XDP_SOCKETS"),
        Feature::NapiSet => ("napi-set", true, "use Linux 6.13 or newer"),
        Feature::Checksum => ("checksums", true, "use a kernel whose veth has switchable offloads"),
        Feature::Holding => ("holds", true, "a wire would fail in the same way"),
        Feature::Refilling => ("goes on", true, "a wire would fail in the same way"),
        Feature::IoUring => (
            "io_uring",
            false,
            "wires then need packets to reach sockets on their interfaces: use Linux 6.13 or newer, `sysctl -w \
             kernel.io_uring_disabled=0`",
        ),
        Feature::Nftables => {
            ("nftables", false, "`weir run` then reaches this machine only: `modprobe nft_masq`")
        }
    }
}

fn judge(found: &Finding) -> Check {
    let (name, needed, fix) = about(found.feature);
    let (what, fix) = match &found.result {
        Ok(what) => return Check::ok(name, what),
        // The error knows better than this list.
        Err(PortError::Unsupported { what, fix }) => (format!("this kernel lacks {what}"), fix.as_str()),
        Err(error) => (error.to_string(), fix),
    };
    if needed { Check::fail(name, what, fix) } else { Check::warn(name, what, fix) }
}

/// The time of the trial that says whether a wire can hold its senders, and nothing else.
fn quick_trial() -> Check {
    let start_ns = now_ns();
    match probe::holds_senders() {
        Ok(_) => {
            Check::ok(QUICK, format!("holding alone is tried in {}", human::duration(now_ns() - start_ns)))
        }
        Err(error) => Check::fail(QUICK, error.to_string(), "it held a moment ago: run this again"),
    }
}

/// The check of whether `weir limit` works here. A wire does without.
fn limit(result: weir_port::Result<()>) -> Check {
    const TRIED: &str = "the kernel's own queue limits in place: tried on a veth; tun, tap and bridges take the same code, others were not \
                         tried. Packets with a socket are held, forwarded ones wait 25 ms of the rate, or the time of two of \
                         the longest packets if that is more, then are dropped";
    let fix = "for `weir limit` use a kernel with CONFIG_NET_SCH_HTB, CONFIG_NET_SCH_TBF and CONFIG_NET_CLS_BPF, 5.10 or newer; wires need neither";
    result.map_or_else(|error| Check::warn(LIMIT, error.to_string(), fix), |()| Check::ok(LIMIT, TRIED))
}

/// The ways in which queues can be polled: by a socket that a packet has reached in this namespace, or by io_uring.
fn priming(primes: weir_port::Result<bool>, ring_polls: bool) -> Check {
    const FILTERED: &str =
        "packets from a veth do not reach sockets of this namespace, so a firewall drops its input";
    const ACCEPT: &str = "let UDP to 255.255.255.255 in on the wire's two interfaces (nft: `iifname \"NAME\" udp dport != 0 accept`)";
    match (primes, ring_polls) {
        (Ok(true), _) => Check::ok(PRIMING, "packets from a veth reach sockets here: wires poll by sockets"),
        (Ok(false), true) => {
            let what =
                format!("{FILTERED}: wires poll by io_uring instead, which is three to four times slower");
            Check::warn(PRIMING, what, ACCEPT)
        }
        (Ok(false), false) => {
            Check::fail(PRIMING, format!("{FILTERED}, and io_uring cannot poll either"), ACCEPT)
        }
        (Err(error), _) => Check::fail(PRIMING, error.to_string(), "see what failed above"),
    }
}

/// The capabilities of this process, by the kernel's own word (capabilities(7)).
fn capabilities() -> Check {
    const NEEDED: [(u32, &str); 4] =
        [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (21, "CAP_SYS_ADMIN"), (39, "CAP_BPF")];
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = effective(&status).unwrap_or(0);
    let missing: Vec<_> =
        NEEDED.iter().filter(|(bit, _)| effective >> bit & 1 == 0).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Check::ok(ROOT, NEEDED.map(|(_, name)| name).join(", "));
    }
    let fix = "run it with sudo, or give the container these capabilities";
    Check::fail(ROOT, format!("lacks {}", missing.join(", ")), fix)
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_status() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000001fffeffffff\nCapBnd:\t0\n"), Some(0x1ff_feff_ffff));
        assert_eq!(effective("CapBnd:\t0\n"), None);
    }

    /// The versions of kernels that a text names, as in "Linux 6.18" and "6.12.61".
    fn versions(text: &str) -> Vec<(u32, u32)> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
        let version = |word: &str| {
            let mut parts = word.split('.').map(str::parse);
            Some((parts.next()?.ok()?, parts.next()?.ok()?))
        };
        words.filter_map(version).collect()
    }

    #[test]
    fn nobody_is_sent_to_a_kernel_on_which_no_wire_runs() {
        assert_eq!(versions("a 6.12 kernel from 6.12.61 on, Linux 6.9."), [(6, 12), (6, 12), (6, 9)]);
        let least = versions(about(Feature::NapiSet).2)[0];
        let fixes = FEATURES.iter().map(|&feature| about(feature).2);
        for fix in fixes.chain([probe::HOLDING_FIX, probe::REFILLING_FIX]) {
            assert!(versions(fix).iter().all(|&version| version >= least), "{fix}");
        }
    }

    #[test]
    fn a_filtered_namespace_is_a_warning_only_with_io_uring() {
        let status = |primes, ring| priming(Ok(primes), ring).status;
        assert_eq!(status(true, false), Status::Ok);
        assert_eq!(status(false, true), Status::Warn);
        assert_eq!(status(false, false), Status::Fail);
    }

    #[test]
    fn what_a_wire_does_without_is_a_warning() {
        let lacks = || PortError::Unsupported { what: "that".into(), fix: "do this".into() };
        let found = |feature| judge(&Finding { feature, result: Err(lacks()) });
        assert_eq!(found(Feature::Holding), Check::fail("holds", "this kernel lacks that", "do this"));
        assert_eq!(found(Feature::IoUring).status, Status::Warn);
    }
}
