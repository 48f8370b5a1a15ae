//! The duties of a router to its neighbours: fragments, errors about packets that are too long, and silence where no error may be sent.

use super::*;
use crate::net::fragment::Fragments;

const MORE: u16 = 0x2000;
const DONT: u16 = 0x4000;
const TOO_LONG: Verdict = Verdict::Drop(DropReason::TooLong);

/// UDP from A's side with these flags and offset.
fn flagged(to: &str, flags_and_offset: u16, payload_bytes: usize) -> Pkt {
    let data: Vec<u8> = (0..payload_bytes).map(|at| (at * 5 + at / 256) as u8).collect();
    let mut ip = ip_v4("192.168.0.2", to, 9, UDP, &data);
    ip[6..8].copy_from_slice(&flags_and_offset.to_be_bytes());
    Ipv4Packet::new_unchecked(&mut ip).fill_checksum();
    ethernet(R0, A, EthernetProtocol::Ipv4, &ip)
}

fn fragments(router: &mut Router<Pkt>, packet: &Pkt, interface: u16) -> Vec<Vec<u8>> {
    let mut cut = Fragments::new(&packet.0, router.mtu_bytes(interface)).expect("a packet to be cut");
    let mut room = [0; 2000];
    let made: Vec<_> =
        std::iter::from_fn(|| cut.write_next(&mut room).map(|len| room[..usize::from(len)].to_vec()))
            .collect();
    router.note_fragments(made.len());
    made
}

/// Puts the fragments of one packet together; each must be right, and leave by interface 1 for B.
fn together(fragments: &[Vec<u8>], ttl: u8) -> Vec<u8> {
    let mut data = Vec::new();
    for (number, fragment) in fragments.iter().enumerate() {
        assert_eq!(fragment[..12], [B, R1].concat());
        let ip = Ipv4Packet::new_checked(&fragment[14..]).expect("IPv4");
        assert!(ip.verify_checksum() && ip.total_len() <= 1280 && ip.hop_limit() == ttl && !ip.dont_frag());
        assert_eq!(
            (usize::from(ip.frag_offset()), ip.more_frags()),
            (data.len(), number + 1 < fragments.len())
        );
        data.extend(ip.payload());
    }
    data
}

#[test]
fn what_is_too_long_and_may_be_cut_leaves_in_fragments() {
    let mut router = router();
    let whole = flagged("10.1.2.3", 0, 1480);
    let mut burst = [from_a("10.1.2.3", 9), whole.clone(), from_a("10.1.2.3", 9)];
    let mut verdicts = [Verdict::Local; 3];
    router.process(0, &mut burst, &Carried, 0, &mut verdicts);
    assert_eq!(verdicts, [Verdict::Forward(1), Verdict::Fragment(1), Verdict::Forward(1)]);
    let made = fragments(&mut router, &burst[1], 1);
    assert_eq!(made.len(), 2);
    assert_eq!(together(&made, 8), whole.0[34..]);
    assert_eq!(self::made(&mut router), [], "nobody is told");
    router.note_fragments(0);
    let counts = router.counts();
    assert_eq!((counts.frag_oks, counts.frag_creates, counts.frag_fails), (1, 2, 1));
}

#[test]
fn what_waited_for_its_neighbour_is_cut_when_it_goes() {
    let mut router = router();
    assert!(matches!(offer(&mut router, flagged("192.168.1.77", 0, 1400), 0), Verdict::Hold(_)));
    assert!(matches!(offer(&mut router, flagged("192.168.1.77", DONT, 1000), 0), Verdict::Hold(_)));
    let mut outbox = Outbox::new(1);
    let own = Speaker { interface: 1, mac: B, address: v4("192.168.1.77") };
    resolve::tell_arp(&mut outbox, own, v4("192.168.1.1"), R1);
    let answer = outbox.pop().expect("an answer").1.to_vec();
    assert_eq!(one(&mut router, 1, &mut Pkt(answer), 1), Verdict::Local);
    let (packet, verdict) = router.release(&Carried, 1).expect("a packet");
    assert_eq!(verdict, Verdict::Fragment(1));
    assert_eq!(together(&fragments(&mut router, &packet, 1), 8), flagged("192.168.1.77", 0, 1400).0[34..]);
    assert_eq!(router.release(&Carried, 1).expect("a packet").1, Verdict::Forward(1));
}

/// The interface takes less by the time the neighbour answers.
#[test]
fn what_waited_for_its_neighbour_and_is_too_long_by_then_is_told() {
    let mut router = router();
    assert!(matches!(offer(&mut router, flagged("192.168.1.77", DONT, 1000), 0), Verdict::Hold(_)));
    made(&mut router);
    router.set_mtu_bytes(1, 600);
    let mut outbox = Outbox::new(1);
    let own = Speaker { interface: 1, mac: B, address: v4("192.168.1.77") };
    resolve::tell_arp(&mut outbox, own, v4("192.168.1.1"), R1);
    let answer = outbox.pop().expect("an answer").1.to_vec();
    assert_eq!(one(&mut router, 1, &mut Pkt(answer), 1), Verdict::Local);
    introduce_a(&mut router);
    made(&mut router);
    let (_, verdict) = router.release(&Carried, 1).expect("a packet");
    assert_eq!((verdict, router.counts().frag_fails), (Verdict::Drop(DropReason::TooLong), 1));
    let told = made(&mut router);
    let [(0, error)] = &told[..] else { panic!("one error, to A: {told:?}") };
    assert_eq!((error[34], error[35], &error[40..42]), (3, 4, &600u16.to_be_bytes()[..]));
}

/// The whole packet, and so its protocol, is not known.
#[test]
fn a_fragment_for_the_router_itself_is_of_no_unknown_protocol() {
    for offset in [1, 8] {
        let fragment = [&[UDP, 0, 0, offset, 0, 0, 0, 0][..], &[0; 40]].concat();
        let ip = ip_v6("2001:db8::2", "2001:db8:1::1", 9, 44, &fragment);
        let mut router = router();
        let verdict = one(&mut router, 0, &mut ethernet(R0, A, EthernetProtocol::Ipv6, &ip), 0);
        assert_eq!((verdict, made(&mut router)), (Verdict::Drop(DropReason::NoHandler), vec![]));
    }
}

#[test]
fn nobody_is_told_of_what_nobody_may_be_told_of() {
    let too_long = |flags: u16| flagged("192.168.1.2", flags, 1400);
    let icmp = |kind: u8| {
        let ip = ip_v4("192.168.0.2", "192.168.1.2", 9, 1, &[vec![kind; 1], vec![0; 1399]].concat());
        ethernet(R0, A, EthernetProtocol::Ipv4, &ip)
    };
    let mut by_group = too_long(DONT);
    by_group.0[..6].copy_from_slice(&[0xff; 6]);
    let v6_long = |next: u8, front: &[u8]| {
        let ip = ip_v6("2001:db8::2", "2001:db8:1::2", 9, next, &[front, &[0; 1400]].concat());
        ethernet(R0, A, EthernetProtocol::Ipv6, &ip)
    };
    // An error behind options, a routing header and a first fragment; a later fragment of ICMPv6.
    let hidden = [[43, 0, 0, 0, 0, 0, 0, 0], [44, 0, 0, 0, 0, 0, 0, 0], [58, 0, 0, 1, 0, 0, 0, 0]].concat();
    let error = [&hidden[..], &[1, 0]].concat();
    let echo = [&hidden[..], &[128, 0]].concat();
    // The packet has more headers than are looked through.
    let deep: Vec<u8> = [60, 0, 1, 4, 0, 0, 0, 0].repeat(20);
    let cases = [
        ("the first fragment", too_long(DONT | MORE), 1),
        ("a later one", too_long(DONT | 10), 0),
        ("the last one", too_long(DONT | MORE | 10), 0),
        ("an echo request", icmp(8), 1),
        ("an error", icmp(3), 0),
        ("a redirect", icmp(5), 0),
        ("by broadcast", by_group, 0),
        ("UDP of IPv6", v6_long(UDP, &[]), 1),
        ("an error of IPv6", v6_long(58, &[2, 0]), 0),
        ("a redirect of IPv6", v6_long(58, &[137, 0]), 0),
        ("an echo behind headers", v6_long(60, &echo), 1),
        ("an error behind headers", v6_long(60, &error), 0),
        ("a later fragment of ICMPv6", v6_long(44, &[58, 0, 0, 8, 0, 0, 0, 0]), 0),
        ("a later fragment of UDP", v6_long(44, &[UDP, 0, 0, 8, 0, 0, 0, 0]), 1),
        ("behind many headers", v6_long(60, &deep), 0),
    ];
    for (what, mut packet, told) in cases {
        let mut router = router();
        let verdict = one(&mut router, 0, &mut packet, 0);
        let dropped = if what == "by broadcast" { DropReason::Martian } else { DropReason::TooLong };
        assert_eq!(verdict, Verdict::Drop(dropped), "{what}");
        assert_eq!(made(&mut router).len(), told, "{what}");
        assert_eq!(router.counts().frag_fails, u64::from(what != "by broadcast"), "{what}");
    }
}

#[test]
fn words_about_what_is_too_long_are_limited_too() {
    let mut router = router();
    for _ in 0..10 {
        one(&mut router, 0, &mut flagged("192.168.1.2", DONT, 1400), 0);
    }
    let counts = router.counts();
    assert_eq!(
        (made(&mut router).len(), counts.errors, counts.errors_limited, counts.frag_fails),
        (3, 3, 7, 10)
    );
}

/// Errors about other packets leave room for those of what is too long: by another interface, and by the same one.
#[test]
fn a_flood_of_faults_hides_no_mtu() {
    const SENT: u64 = 99;
    // The flood comes in by A's interface each time; what is too long comes from B, or from A as well.
    for ingress in [1, 0] {
        let mut settings = settings();
        (settings.errors_per_second, settings.errors_burst) = (1000, 50);
        settings.interfaces[0].mtu_bytes = if ingress == 1 { 1280 } else { 1500 };
        settings.interfaces[1].mtu_bytes = if ingress == 1 { 1500 } else { 1280 };
        let mut router = Router::<Pkt>::new(settings, 0).expect("a router");
        let long = if ingress == 1 {
            let ip = ip_v4("192.168.1.2", "192.168.0.2", 9, UDP, &[7; 1400]);
            ethernet(R1, B, EthernetProtocol::Ipv4, &ip)
        } else {
            flagged("192.168.1.2", DONT, 1400)
        };
        let mut told = 0;
        for hundredth in 1..=SENT {
            for part in 0..100 {
                let now_ns = hundredth * S / 100 + part * S / 10_000;
                one(&mut router, 0, &mut from_a("192.168.1.2", 1), now_ns);
                made(&mut router);
            }
            let now_ns = (hundredth + 1) * S / 100 - S / 20_000;
            assert_eq!(one(&mut router, ingress, &mut long.clone(), now_ns), TOO_LONG);
            let errors = made(&mut router);
            told += errors.iter().filter(|(port, bytes)| *port == ingress && bytes[34..36] == [3, 4]).count();
        }
        assert_eq!(told as u64, SENT, "from interface {ingress}");
        assert!(router.counts().errors_limited > 8000, "the flood itself is limited");
    }
}

/// No route leads to a sender of link-local scope: it is on the link that its packet came by, whether it is a known neighbour or not.
#[test]
fn a_sender_of_link_local_scope_is_told_that_a_port_is_closed() {
    let sender = resolve::link_local(A);
    for ours in [resolve::link_local(R0), v6("2001:db8::1")] {
        let mut router = router();
        let ip = ip_v6(&sender.to_string(), &ours.to_string(), 64, UDP, &[7; 40]);
        let mut packet = ethernet(R0, A, EthernetProtocol::Ipv6, &ip);
        assert_eq!(one(&mut router, 0, &mut packet, 0), Verdict::Drop(DropReason::NoHandler));
        let told = made(&mut router);
        let [(0, error)] = &told[..] else { panic!("one error, to A: {told:?}") };
        assert_eq!(error[..12], [A, R0].concat());
        let ip = Ipv6Packet::new_checked(&error[14..]).expect("IPv6");
        assert_eq!((ip.src_addr(), ip.dst_addr()), (ours, sender));
        assert_eq!(ip.payload()[..2], [1, 4], "destination unreachable: port");
        assert_eq!(router.counts().errors_untold, 0);
    }
}

#[test]
fn what_cannot_be_told_takes_no_place_among_the_errors() {
    let mut router = router();
    // The router has no route back to this sender.
    let ip = ip_v4("8.8.8.8", "192.168.1.2", 1, UDP, &[0; 8]);
    for _ in 0..10 {
        one(&mut router, 0, &mut ethernet(R0, A, EthernetProtocol::Ipv4, &ip), 0);
    }
    assert_eq!(made(&mut router), []);
    one(&mut router, 0, &mut from_a("192.168.1.2", 1), 0);
    let counts = router.counts();
    assert_eq!(
        (made(&mut router).len(), counts.errors, counts.errors_untold, counts.errors_limited),
        (1, 1, 10, 0)
    );
}

#[test]
fn an_answer_longer_than_its_way_back_is_cut_if_its_request_might_be() {
    // B asks the router, whose way back to B takes less than the way B's request came.
    for (flags, expected) in [(0, Verdict::Fragment(1)), (DONT, Verdict::Drop(DropReason::TooLong))] {
        let mut router = router();
        let mut ping = [&[8, 0, 0, 0, 0, 1, 0, 1][..], &[7; 1400]].concat();
        Icmpv4Packet::new_unchecked(&mut ping).fill_checksum();
        let mut ip = ip_v4("10.1.2.3", "192.168.0.1", 9, 1, &ping);
        ip[6..8].copy_from_slice(&u16::to_be_bytes(flags));
        Ipv4Packet::new_unchecked(&mut ip).fill_checksum();
        let mut packet = ethernet(R0, A, EthernetProtocol::Ipv4, &ip);
        assert_eq!(one(&mut router, 0, &mut packet, 0), expected);
        if flags == 0 {
            let reply = together(&fragments(&mut router, &packet, 1), 64);
            let icmp = Icmpv4Packet::new_checked(&reply).expect("ICMP");
            assert!(icmp.verify_checksum() && icmp.data() == [7; 1400]);
        }
        assert_eq!(made(&mut router), []);
    }
    let mut ping = [&[128, 0, 0, 0, 0, 1, 0, 1][..], &[7; 1300]].concat();
    let (from, to) = ("2001:db8:1::2", "2001:db8::1");
    Icmpv6Packet::new_unchecked(&mut ping).fill_checksum(&v6(from), &v6(to));
    let mut packet = ethernet(R0, A, EthernetProtocol::Ipv6, &ip_v6(from, to, 64, 58, &ping));
    assert_eq!(one(&mut router(), 0, &mut packet, 0), Verdict::Drop(DropReason::TooLong));
}

/// Redirects are off: a packet that leaves by the way it came is forwarded, and no station is told of a shorter way.
#[test]
fn what_leaves_by_the_way_it_came_is_forwarded_without_a_redirect() {
    let mut settings = settings();
    let near = |address: &str, mac| StaticNeighbour {
        interface: 0,
        address: address.parse().expect("an address"),
        mac: EthernetAddress(mac),
    };
    settings.neighbours.extend([near("192.168.0.3", B), near("2001:db8::3", B)]);
    let mut router = Router::<Pkt>::new(settings, 0).expect("a router");
    introduce_a(&mut router);
    for mut packet in [from_a("192.168.0.3", 9), from_a6("2001:db8::3", 9)] {
        assert_eq!(one(&mut router, 0, &mut packet, 0), Verdict::Forward(0));
        assert_eq!(packet.0[..12], [B, R0].concat());
    }
    assert_eq!(made(&mut router), []);
    assert_eq!(router.counts().errors, 0);
}

#[test]
fn redirects_are_not_believed() {
    let mut router = router();
    introduce_a(&mut router);
    // The message "10.1.2.3 is reached by 192.168.0.2", quoting a packet to there.
    let quote = ip_v4("192.168.0.1", "10.1.2.3", 9, UDP, &[0; 8]);
    let mut redirect = [&[5, 1, 0, 0, 192, 168, 0, 2][..], &quote].concat();
    Icmpv4Packet::new_unchecked(&mut redirect).fill_checksum();
    let ip = ip_v4("192.168.0.2", "192.168.0.1", 255, 1, &redirect);
    let mut v4_redirect = ethernet(R0, A, EthernetProtocol::Ipv4, &ip);
    let (from, to) = (v6("2001:db8::2"), v6("2001:db8::1"));
    let mut redirect =
        [[137, 0, 0, 0, 0, 0, 0, 0].to_vec(), from.octets().into(), v6("2001:db8:1::2").octets().into()]
            .concat();
    Icmpv6Packet::new_unchecked(&mut redirect).fill_checksum(&from, &to);
    let ip = ip_v6("2001:db8::2", "2001:db8::1", 255, 58, &redirect);
    let mut v6_redirect = ethernet(R0, A, EthernetProtocol::Ipv6, &ip);
    for redirect in [&mut v4_redirect, &mut v6_redirect] {
        assert_eq!(one(&mut router, 0, redirect, 0), Verdict::Drop(DropReason::NoHandler));
    }
    assert_eq!(made(&mut router), []);
    assert_eq!(one(&mut router, 0, &mut from_a("10.1.2.3", 9), 0), Verdict::Forward(1));
    assert_eq!(one(&mut router, 0, &mut from_a6("2001:db8:1::2", 9), 0), Verdict::Forward(1));
}

#[test]
fn a_link_that_takes_less_than_every_link_must_is_refused() {
    let said = |interface: usize, mtu_bytes, only_v4: bool| {
        let mut settings = settings();
        settings.interfaces[interface].mtu_bytes = mtu_bytes;
        if only_v4 {
            settings.interfaces[interface].addresses.truncate(1);
            settings.neighbours.truncate(1);
        }
        Router::<Pkt>::new(settings, 0).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(said(1, 1279, false), Err("interface 1: its MTU is below 1280; give it that or more".into()));
    assert_eq!(said(1, 68, true), Ok(()));
    assert_eq!(said(0, 67, true), Err("interface 0: its MTU is below 68; give it that or more".into()));
}

#[test]
fn a_router_tells_its_links_where_it_is_when_it_starts() {
    let mut router: Router<Pkt> = Router::new(RouterSettings { announces: true, ..settings() }, 0).unwrap();
    let mut told = Vec::new();
    while router.poll(0) == Some(0) {
        told.extend(made(&mut router));
    }
    told.extend(made(&mut router));
    let ethertype = |frame: &[u8]| u16::from_be_bytes([frame[12], frame[13]]);
    for (interface, mac, v4, v6_address) in
        [(0, R0, [192, 168, 0, 1], "2001:db8::1"), (1, R1, [192, 168, 1, 1], "2001:db8:1::1")]
    {
        let here: Vec<_> =
            told.iter().filter(|(port, _)| *port == interface).map(|(_, frame)| frame).collect();
        assert!(here.iter().all(|frame| frame[6..12] == mac), "{here:?}");
        let arp: Vec<_> = here.iter().filter(|frame| ethertype(frame) == 0x0806).collect();
        assert_eq!(arp.len(), 1, "{here:?}");
        assert_eq!((&arp[0][..6], &arp[0][28..32], &arp[0][38..42]), (&[0xff; 6][..], &v4[..], &v4[..]));
        // All nodes; the flags are those of a router whose word goes before older ones.
        let is_told = |frame: &&&Vec<u8>| {
            frame[..6] == [0x33, 0x33, 0, 0, 0, 1]
                && frame[54] == 136
                && frame[58] == 0xa0
                && frame[62..78] == v6(v6_address).octets()
        };
        assert_eq!(here.iter().filter(is_told).count(), 1, "{here:?}");
    }
    router.poll(0);
    assert_eq!(made(&mut router), [], "it says so once");
}

/// A bridge that snoops passes on to it what is for a group that it has reported, and forgets that after a while.
#[test]
fn a_router_reports_its_groups_again_and_again() {
    let start = |settings: RouterSettings| {
        let mut router: Router<Pkt> =
            Router::new(RouterSettings { announces: true, ..settings }, 0).expect("a router");
        while router.poll(0) == Some(0) {}
        router
    };
    let reports = |router: &mut Router<Pkt>| {
        let made = made(router).into_iter().filter(|(_, frame)| frame[..6] == [0x33, 0x33, 0, 0, 0, 0x16]);
        made.map(|(interface, frame)| {
            let groups = frame[70..].chunks(20).map(|record| record[4..].try_into().expect("an address"));
            (interface, groups.map(|group: [u8; 16]| group.into()).collect::<Vec<Ipv6Addr>>())
        })
        .collect::<Vec<_>>()
    };
    let group = |own| resolve::solicited_node(own);
    let expected = [R0, R1].map(|mac| vec![group(v6("2001:db8::1")), group(resolve::link_local(mac))]);
    let expected: Vec<_> = (0..).zip(expected).collect();
    let mut router = start(settings());
    assert_eq!(reports(&mut router), expected);
    for (at_ns, next_ns) in [(S, 11 * S), (11 * S, 21 * S)] {
        assert_eq!((router.poll(at_ns - 1), router.poll(at_ns)), (Some(at_ns), Some(at_ns)));
        assert_eq!(router.poll(at_ns), Some(next_ns));
        assert_eq!(reports(&mut router), expected);
    }
    let mut of_v4 = settings();
    of_v4.interfaces.iter_mut().for_each(|interface| interface.addresses.truncate(1));
    of_v4.neighbours.truncate(1);
    let mut router = start(of_v4);
    assert_eq!((reports(&mut router), router.poll(S)), (vec![], None));
}
