//! A tunnel in UDP: its keepalives, and the room that it leaves.

use weir_core::drops::DropReason;
use weir_ipsec::keepalive::EVERY_NS_DEFAULT;
use weir_path::plan::{Plan, StageKind};
use weir_run::topology;

use super::bench::{Bench, LAN, LINK_LEN, MS, WAN, frame, plan};

/// A gateway in UDP, without its peer: the packets that it seals leave.
const IN_UDP: &str = r#"
[[port]]
interface = "lan"
[[port]]
interface = "wan"
[[esp]]
name = "tunnel"
inside = "lan"
outside = "wan"
address = ["192.0.2.1"]
[[sa]]
name = "there"
direction = "out"
spi = 0x1001
source = "192.0.2.1"
destination = "192.0.2.2"
algorithm = "aes128-gcm"
key_file = "there.key"
udp_ports = [4500, 4501]
hard = { packets = 4 }
[[policy]]
direction = "out"
action = "protect"
sa = ["there"]
"#;

#[test]
fn a_way_through_a_translator_is_kept_alive() {
    let plan = plan(IN_UDP);
    let StageKind::Esp(esp) = &plan.stages[0].kind else { panic!("an esp") };
    assert_eq!(esp.associations[0].keepalive_ns, Some(EVERY_NS_DEFAULT), "RFC 3948 section 4");
    let second = 1000 * MS;
    let mut bench = Bench::new(&plan);
    bench.run();
    bench.rest(100 * second);
    assert_eq!(bench.left(WAN).len(), 0, "the way to the peer is not known yet");
    let send = |bench: &mut Bench| {
        bench.port(LAN).send(0, frame(1, 100, true));
        bench.run();
        bench.left(WAN)
    };
    let [sealed] = &send(&mut bench)[..] else { panic!("one packet") };
    bench.rest(19 * second);
    assert_eq!(bench.left(WAN).len(), 0);
    bench.rest(2 * second);
    let [keepalive] = &bench.left(WAN)[..] else { panic!("one keepalive") };
    // To the same next hop, and from port to port as the sealed packets.
    assert_eq!((&keepalive[..LINK_LEN], keepalive.len()), (&sealed[..LINK_LEN], LINK_LEN + 29));
    assert_eq!(keepalive[LINK_LEN + 12..LINK_LEN + 24], sealed[LINK_LEN + 12..LINK_LEN + 24]);
    assert_eq!(keepalive[LINK_LEN + 28..], [0xff]);
    // A packet puts it off; without one they come every 20 s, woken by nothing else.
    bench.rest(18 * second);
    assert_eq!(send(&mut bench).len(), 1);
    bench.rest(19 * second);
    assert_eq!(bench.left(WAN).len(), 0);
    bench.rest(102 * second);
    assert_eq!(bench.left(WAN).len(), 6);
    let running = |bench: &Bench| {
        let stage = bench.worker.between().stages().next().unwrap();
        let running = &stage.esp().unwrap().associations()[0];
        (running.usage().packets, running.keepalives().packets, running.keepalives().bytes)
    };
    assert_eq!(running(&bench), (2, 7, 7 * keepalive.len() as u64));
    // An association whose life is over keeps nothing alive.
    (0..3).for_each(|_| drop(send(&mut bench)));
    bench.rest(100 * second);
    assert_eq!((bench.left(WAN).len(), running(&bench).1), (0, 7));
    assert_eq!(bench.dropped(), [("tunnel".to_string(), DropReason::EspExpired)]);
}

#[test]
fn keepalives_are_as_the_file_says() {
    let with = |from: &str, to: &str| {
        let file = IN_UDP.replace(from, to);
        assert_ne!(file, IN_UDP);
        topology::read("f.toml", &file, "4711", |path| Err(path.into()))
    };
    for (keepalive, expected) in [("7s", Some(7000 * MS)), ("20s", Some(EVERY_NS_DEFAULT)), ("off", None)] {
        let read = with("hard", &format!("keepalive = \"{keepalive}\"\nhard")).unwrap();
        let plan = read.plan.unwrap();
        let of = |plan: &Plan| match &plan.stages[0].kind {
            StageKind::Esp(esp) => esp.associations[0].keepalive_ns,
            _ => panic!("an esp"),
        };
        assert_eq!(of(&plan), expected);
        let text = topology::write::plan::write(&read.name, &["lan", "wan"], &plan);
        let again = topology::read("f.toml", &text, "4711", |path| Err(path.into())).unwrap();
        assert_eq!(of(&again.plan.unwrap()), expected, "{text}");
    }
    let told = with("udp_ports = [4500, 4501]", "keepalive = \"7s\"").unwrap_err();
    assert!(told[0].contains("keepalives are of ESP in UDP"), "{told:?}");
    let inbound = ("direction = \"out\"\nspi", "direction = \"in\"\nkeepalive = \"7s\"\nspi");
    let told = with(inbound.0, inbound.1).unwrap_err();
    assert!(told[0].contains("keepalives are sent by what goes out"), "{told:?}");
}

#[test]
fn a_tunnel_without_room_for_ipv6_is_warned_of() {
    let warned = |mtu: u32, from: &str| {
        let own = "address = [\"192.0.2.1\"]\n";
        let file = IN_UDP.replace(own, &format!("{own}mtu = {mtu}\n"));
        let file = file.replace("[[policy]]\n", &format!("[[policy]]\n{from}"));
        topology::read("f.toml", &file, "4711", |path| Err(path.into())).unwrap().warnings
    };
    // A policy without addresses is for both families.
    for from in ["", "from = \"fd00::/64\"\n"] {
        let told = warned(1343, from);
        let [warning] = &told[..] else { panic!("{told:?}") };
        assert!(
            warning.contains("\"tunnel\" has no room") && warning.contains("write mtu = 1344 or"),
            "{warning}"
        );
        assert_eq!(warned(1344, from), [""; 0]);
    }
    assert_eq!(warned(1343, "from = \"10.0.0.0/8\"\n"), [""; 0]);
}
