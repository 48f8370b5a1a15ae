//! The program `weir-lab`. That it is tried here has cargo build it beside the tests, which start it through `weir lab`.

use std::process::Command;

#[test]
fn a_lab_that_is_none_is_refused_with_the_names_of_all() {
    let done = Command::new(env!("CARGO_BIN_EXE_weir-lab")).arg("none").output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    for name in ["qdisc", "epair", "bed", "netisr", "ifq", "rss"] {
        assert!(said.contains(name), "{said}");
    }
}

#[test]
fn a_lab_on_interfaces_removes_the_namespaces_of_runs_that_were_killed() {
    if !weir_lab::bed::is_privileged() {
        println!("skipped, it needs root");
        return;
    }
    // Names of network namespaces of its own; no process has the number in this one.
    let script = "mount -t tmpfs none /run && ip netns add weir-bed-4194305-0-left && \
                  \"$0\" rss --systems kernel-veth --seconds 0.1 && ls /run/netns";
    let done = Command::new("unshare")
        .args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_weir-lab")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && !said.contains("weir-bed-"), "{done:?}");
}
