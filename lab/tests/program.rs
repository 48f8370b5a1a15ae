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
