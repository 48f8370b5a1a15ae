//! Tunnels within tunnels, and out of them again.

use weir_core::drops::DropReason;
use weir_ipsec::algorithm::Algorithm;
use weir_ipsec::esp::{Encapsulation, EspMode};
use weir_ipsec::tunnel::Tunnel;
use weir_run::topology;

use super::bench::{Bench, LAN, LINK_LEN, WAN, frame, plan};

/// The number of tunnels that the author of review D9721 had in one another.
const DEPTH: usize = 16;
const PACKETS: u16 = 200;

/// The longest packet that a tunnel takes whose own are at most `mtu` bytes long.
fn longest_inside(mtu: usize) -> usize {
    let tunnel = Tunnel::new([0; 4].into(), [0; 4].into()).unwrap();
    let encapsulation = Encapsulation { mode: EspMode::Tunnel(tunnel), udp: None };
    encapsulation.packet_len_max(Algorithm::Aes128Gcm, mtu, 20)
}

/// The MTU outside of each tunnel, the innermost first: the outermost's is a link's.
fn mtus(depth: usize) -> Vec<usize> {
    let mut mtus = vec![1500];
    (1..depth).for_each(|_| mtus.push(longest_inside(mtus[mtus.len() - 1])));
    mtus.reverse();
    mtus
}

/// A file of so many tunnels in one another, and out of one another again.
fn chain(depth: usize) -> String {
    let mut file =
        "[[port]]\ninterface = \"lan\"\n[[port]]\ninterface = \"wan\"\n[[epair]]\nname = \"mid\"\n"
            .to_string();
    for (own, side) in [(0, "near"), (1, "far")] {
        for (level, mtu) in mtus(depth).into_iter().enumerate() {
            let edge = ["lan", "wan"][own];
            let inside = if level == 0 { edge.into() } else { format!("{side}{}b", level - 1) };
            let outside = match (level + 1 == depth, own) {
                (true, 0) => "mida".into(),
                (true, _) => "midb".into(),
                (false, _) => {
                    file += &format!("[[epair]]\nname = \"{side}{level}\"\n");
                    format!("{side}{level}a")
                }
            };
            let ends = ["1", "2"].map(|end| format!("172.16.{level}.{end}"));
            file += &format!(
                "[[esp]]\nname = \"{side}-{level}\"\ninside = \"{inside}\"\noutside = \"{outside}\"\naddress = [\"{}\"]\nmtu = {mtu}\n",
                ends[own]
            );
            for from in 0..2 {
                let direction = if from == own { "out" } else { "in" };
                file += &format!(
                    "[[sa]]\nname = \"{side}-{level}-{direction}\"\nesp = \"{side}-{level}\"\ndirection = \"{direction}\"\nspi = {}\n\
                     source = \"{}\"\ndestination = \"{}\"\nalgorithm = \"aes128-gcm\"\nkey_file = \"{side}-{level}-{direction}.key\"\n\
                     [[policy]]\nesp = \"{side}-{level}\"\ndirection = \"{direction}\"\nfrom = \"0.0.0.0/0\"\naction = \"protect\"\n\
                     sa = [\"{side}-{level}-{direction}\"]\n",
                    0x1000 * (1 + from) + level,
                    ends[from],
                    ends[1 - from],
                );
            }
        }
    }
    file
}

#[test]
fn sixteen_tunnels_in_one_another_lose_nothing_and_need_no_more_stack_than_one() {
    for depth in [1, 2, DEPTH] {
        let mut bench = Bench::new(&plan(&chain(depth)));
        let longest = longest_inside(mtus(depth)[0]);
        for number in 0..PACKETS {
            // The longest packets, and the shortest.
            let len = if number % 2 == 0 { longest } else { 40 };
            bench.port(LAN).send(0, frame(number, len, false));
            if number % 16 == 0 {
                bench.run();
            }
        }
        bench.run();
        let expected: Vec<_> = (0..PACKETS)
            .map(|number| frame(number, if number % 2 == 0 { longest } else { 40 }, false))
            .collect();
        assert!(bench.left(WAN) == expected, "{depth} tunnels: all, in order, as they were");
        assert_eq!((bench.left(LAN).len(), bench.dropped()), (0, Vec::new()));
        for stage in bench.worker.between().stages() {
            let esp = stage.esp().unwrap();
            let passed: u64 = esp.associations().iter().map(|running| running.usage().packets).sum();
            assert_eq!(passed, u64::from(PACKETS), "each tunnel has sealed or opened all");
        }
        assert_eq!(bench.stack_depths(), [depth, 1], "each stage is served from where the others are");
    }
}

#[test]
fn the_innermost_tunnel_tells_the_path_mtu_of_all() {
    let mut bench = Bench::new(&plan(&chain(DEPTH)));
    let longest = longest_inside(mtus(DEPTH)[0]);
    assert!((560..640).contains(&longest), "{longest}");
    bench.port(LAN).send(0, frame(1, longest + 1, false));
    bench.run();
    assert_eq!(bench.left(WAN), Vec::<Vec<u8>>::new());
    let [told] = &bench.left(LAN)[..] else { panic!("its sender is told") };
    let icmp = &told[LINK_LEN + 20..];
    assert_eq!((icmp[0], icmp[1], u16::from_be_bytes([icmp[6], icmp[7]])), (3, 4, longest as u16));
    assert_eq!(bench.dropped(), [("near-0".to_string(), DropReason::TooLong)]);
    // A packet that may be cut is cut once, by the first tunnel: none of its fragments is too long for any of the others.
    bench.port(LAN).send(0, frame(2, 1500, true));
    bench.run();
    let fragments = bench.left(WAN);
    let payload: usize = fragments.iter().map(|fragment| fragment.len() - LINK_LEN - 20).sum();
    assert_eq!((fragments.len(), payload), (1480usize.div_ceil((longest - 20) / 8 * 8), 1480));
    assert_eq!(bench.dropped().len(), 1, "nothing more");
}

#[test]
fn what_is_too_long_for_the_tunnel_around_it_is_warned_of() {
    let file = chain(3);
    let [inner, between, outer] = mtus(3)[..] else { panic!("three") };
    assert_eq!(outer, 1500);
    let warned =
        |file: &str| topology::read("f.toml", file, "4711", |path| Err(path.into())).unwrap().warnings;
    assert_eq!(warned(&file), [""; 0]);
    for (level, mtu, around) in [(0, inner, 1), (1, between, 2)] {
        let from = format!("172.16.{level}.1\"]\nmtu = {mtu}\n");
        assert!(file.contains(&from));
        let warnings = warned(&file.replace(&from, &format!("172.16.{level}.1\"]\nmtu = {}\n", mtu + 1)));
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        let expected = format!(
            "what \"near-{level}\" seals has up to {} bytes, and \"near-{around}\" around it takes {mtu},",
            mtu + 1
        );
        assert!(warning.contains(&expected), "{warning}");
        // An ESP without mtu seals up to 1500, which is warned of as well.
        let silent = warned(&file.replace(&from, &format!("172.16.{level}.1\"]\n")));
        assert!(silent.iter().any(|warning| warning.contains(&format!("write mtu = {mtu}"))), "{silent:?}");
    }
}

/// Who seals learns it from the tunnel around it, as from every router.
#[test]
fn what_is_too_long_for_the_tunnel_around_it_is_learned() {
    let [takes, _] = mtus(2)[..] else { panic!("two") };
    let file = chain(2).replace(&format!("mtu = {takes}\n"), "");
    let read = topology::read("f.toml", &file, "4711", |path| Err(path.into())).unwrap();
    let mut bench = Bench::new(&read.plan.unwrap());
    let long = longest_inside(1500);
    bench.port(LAN).send(0, frame(1, long, false));
    bench.run();
    assert_eq!((bench.left(WAN).len(), bench.left(LAN).len()), (0, 0), "only the gateway itself is told");
    assert_eq!(bench.dropped(), [("near-1".to_string(), DropReason::TooLong)]);
    let stages = bench.worker.between().stages();
    let all = stages.flat_map(|stage| stage.esp().unwrap().associations());
    let known: Vec<_> = all.filter_map(|running| running.path_mtu_bytes(bench.now_ns)).collect();
    assert_eq!(known, [takes as u16]);
    bench.port(LAN).send(0, frame(2, long, false));
    bench.run();
    let [told] = &bench.left(LAN)[..] else { panic!("its sender is told") };
    let icmp = &told[LINK_LEN + 20..];
    let longest = longest_inside(takes);
    assert_eq!((icmp[0], icmp[1], u16::from_be_bytes([icmp[6], icmp[7]])), (3, 4, longest as u16));
    // One that may be cut is cut before it is sealed.
    for (number, len, may_be_cut, leave) in [(3, longest, false, 1), (4, long, true, 2)] {
        bench.port(LAN).send(0, frame(number, len, may_be_cut));
        bench.run();
        assert_eq!(bench.left(WAN).len(), leave, "{number}");
    }
}
