//! Hosts in transport mode, whose policies name no ends: such a policy alone says neither which peer it wants nor which direction.

use super::{import, refused};

/// The gateway's own address in these texts.
const OWN: &str = "192.0.2.1";

/// An association as `ip xfrm state` of a kernel before 6.10 prints it, without its direction. Each SPI has a key of its own.
fn state([from, to]: [&str; 2], spi: u32, reqid: u32, sealed: u32) -> String {
    format!(
        "src {from} dst {to}
\tproto esp spi {spi:#010x} reqid {reqid} mode transport
\treplay-window 32
\taead rfc4106(gcm(aes)) 0x{spi:040x} 128
\tanti-replay context: seq 0x0, oseq {sealed:#x}, bitmap 0x00000000
\tsel src 0.0.0.0/0 dst 0.0.0.0/0
"
    )
}

fn policy([from, to]: [&str; 2], direction: &str, reqid: u32) -> String {
    format!(
        "src {from} dst {to}
\tdir {direction} priority 100 ptype main
\ttmpl src 0.0.0.0 dst 0.0.0.0
\t\tproto esp reqid {reqid} mode transport
"
    )
}

/// A host's two associations, and its policies in both orders.
fn hosts(selectors: [&str; 2], sealed: u32) -> [String; 2] {
    let [own, peer] = selectors;
    let states = state([OWN, "192.0.2.2"], 0x1001, 1, sealed) + &state(["192.0.2.2", OWN], 0x2001, 1, 0);
    let [out, back] = [policy([own, peer], "out", 1), policy([peer, own], "in", 1)];
    [format!("{states}{out}{back}"), format!("{states}{back}{out}")]
}

/// The associations, and those of each policy.
fn read(text: &str, own: &[&str]) -> (Vec<String>, Vec<(bool, Vec<String>)>) {
    let import = import(text, own).unwrap_or_else(|why| panic!("{why}\n{text}"));
    let names = import.plan.associations.into_iter().map(|of| of.name).collect();
    let mut policies: Vec<_> =
        import.plan.policies.into_iter().map(|of| (of.is_inbound, of.associations)).collect();
    policies.sort();
    (names, policies)
}

/// The peer's key never seals here, whichever policy is asked first.
#[test]
fn the_own_end_says_the_direction() {
    for text in hosts(["0.0.0.0/0"; 2], 0) {
        let (names, policies) = read(&text, &[OWN]);
        assert_eq!(names, ["out-00001001", "in-00002001"], "{text}");
        assert_eq!(
            policies,
            [(false, vec!["out-00001001".to_string()]), (true, vec!["in-00002001".to_string()])],
            "{text}"
        );
    }
    for text in hosts(["0.0.0.0/0"; 2], 7) {
        assert!(refused(&text, &[OWN]).contains("the kernel has sent 7 packets with the key"), "{text}");
    }
}

/// Without an own address, the policies' selectors say it, and policies that want an association of either direction do not.
#[test]
fn selectors_say_the_direction_or_nothing_does() {
    for text in hosts([OWN, "192.0.2.2"], 0) {
        assert_eq!(read(&text, &[]).0, ["out-00001001", "in-00002001"], "{text}");
    }
    for text in hosts(["0.0.0.0/0"; 2], 0) {
        // Nor does one policy that wants both associations, where there is no other.
        let one = text.rfind("src 0.0.0.0/0").unwrap();
        for text in [&text, &text[..one]] {
            assert!(refused(text, &[]).contains("name this gateway's own addresses by --own"), "{text}");
        }
    }
}

#[test]
fn an_association_between_others_is_refused() {
    let said = |direction: &str| {
        let states = hosts([OWN, "192.0.2.2"], 0)[0].replace(
            "\tsel src 0.0.0.0/0 dst 0.0.0.0/0\n",
            &format!("\tsel src 0.0.0.0/0 dst 0.0.0.0/0\n\tdir {direction}\n"),
        );
        refused(&states, &["192.0.2.77"])
    };
    let why = "is this gateway's end of SPI 0x1001 and none of its own addresses: name all of them by --own";
    assert_eq!(said("out"), format!("line 1: 192.0.2.1 {why}"));
    assert_eq!(said("in"), format!("line 1: 192.0.2.2 {why}"));
    let by_policy = refused(&hosts([OWN, "192.0.2.2"], 0)[0], &["192.0.2.77"]);
    assert_eq!(by_policy, format!("line 1: 192.0.2.1 {why}"));
}

/// Both peers' policies want any association; each has that of its own peer.
#[test]
fn a_policy_has_the_associations_of_its_own_peer() {
    let (mut states, mut policies) = (String::new(), String::new());
    for (peer, number) in [("192.0.2.2", 2), ("192.0.2.3", 3)] {
        states += &state([OWN, peer], 0x1000 + number, 0, 0);
        states += &state([peer, OWN], 0x2000 + number, 0, 0);
        policies += &policy([&format!("{OWN}/32"), &format!("{peer}/32")], "out", 0);
        policies += &policy([&format!("{peer}/32"), &format!("{OWN}/32")], "in", 0);
    }
    for own in [&[OWN][..], &[]] {
        let (_, policies) = read(&format!("{states}{policies}"), own);
        let named = |is_inbound: bool, name: &str| (is_inbound, vec![name.to_string()]);
        let expected = [
            named(false, "out-00001002"),
            named(false, "out-00001003"),
            named(true, "in-00002002"),
            named(true, "in-00002003"),
        ];
        assert_eq!(policies, expected);
    }
}
