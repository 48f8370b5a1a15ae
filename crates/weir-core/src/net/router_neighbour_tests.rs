//! Messages of ARP and neighbour discovery that come to a router, and packets whose two destinations do not fit together.

use super::*;

/// A question for an address by A, which is at this link-layer address.
fn asks_arp(mac: [u8; 6], target: &str) -> Pkt {
    let mut outbox = Outbox::new(1);
    let own = Speaker { interface: 0, mac, address: v4("192.168.0.2") };
    resolve::ask_arp(&mut outbox, own, v4(target), None);
    Pkt(outbox.pop().expect("a question").1.to_vec())
}

/// A copy of a frame for another link-layer address.
fn to_mac(frame: &Pkt, to: [u8; 6]) -> Pkt {
    let mut copy = frame.clone();
    copy.0[..6].copy_from_slice(&to);
    copy
}

/// The link-layer address to which a packet for A leaves.
fn way_to_a(router: &mut Router<Pkt>, now_ns: u64) -> [u8; 6] {
    let ip = ip_v4("192.168.1.2", "192.168.0.2", 9, UDP, &[7; 40]);
    let mut packet = ethernet(R1, B, EthernetProtocol::Ipv4, &ip);
    assert_eq!(one(router, 1, &mut packet, now_ns), Verdict::Forward(0));
    packet.0[..6].try_into().expect("an address")
}

/// A neighbour that has moved to another device says so by a question for its own address (RFC 5227), or asks for another's.
#[test]
fn a_known_neighbour_that_asks_for_another_address_is_heard() {
    const MOVED: [u8; 6] = [2, 0, 0, 0, 0, 0xbb];
    const AGAIN: [u8; 6] = [2, 0, 0, 0, 0, 0xbc];
    let mut router = router();
    assert_eq!(one(&mut router, 0, &mut asks_arp(MOVED, "192.168.0.2"), 0), Verdict::Local);
    assert_eq!(router.neighbour(0, v4("192.168.0.2").into()), None, "nobody has asked for it");
    introduce_a(&mut router);
    assert_eq!(way_to_a(&mut router, 0), A);
    assert_eq!(one(&mut router, 0, &mut asks_arp(MOVED, "192.168.0.2"), 1), Verdict::Local);
    assert_eq!(way_to_a(&mut router, 1), MOVED);
    assert_eq!(one(&mut router, 0, &mut asks_arp(AGAIN, "192.168.0.77"), 2), Verdict::Local);
    assert_eq!(way_to_a(&mut router, 2), AGAIN);
    let own_questions = made(&mut router);
    let asks = |frame: &[u8]| {
        ArpPacket::new_checked(&frame[14..]).is_ok_and(|arp| arp.operation() == ArpOperation::Request)
    };
    assert!(own_questions.iter().all(|(_, frame)| asks(frame)), "no question was for this router");
}

/// A router beyond whose second interface there are stations of no network of its own.
fn router_with_routes_on_the_link() -> Router<Pkt> {
    let mut settings = settings();
    settings.routes.extend(["10.9.0.0/16", "2001:db8:9::/48"].map(|destination| Route {
        destination: destination.parse().expect("a prefix"),
        interface: 1,
        gateway: None,
    }));
    Router::new(settings, 0).expect("a router")
}

#[test]
fn a_station_on_a_route_on_the_link_answers_its_question() {
    let (station, station_v6) = (v4("10.9.1.2"), v6("2001:db8:9::2"));
    let mut answers = Outbox::new(2);
    resolve::tell_arp(
        &mut answers,
        Speaker { interface: 1, mac: B, address: station },
        v4("192.168.1.1"),
        R1,
    );
    let asker = Some((v6("2001:db8:1::1"), R1));
    resolve::tell_nd(&mut answers, Speaker { interface: 1, mac: B, address: station_v6 }, asker);
    for waits in [from_a("10.9.1.2", 9), from_a6("2001:db8:9::2", 9)] {
        let mut router = router_with_routes_on_the_link();
        assert!(matches!(offer(&mut router, waits, 0), Verdict::Hold(_)));
        assert!(matches!(&made(&mut router)[..], [(1, _)]), "one question, on that link");
        let answer = Pkt(answers.pop().expect("an answer").1.to_vec());
        assert_eq!(one(&mut router, 0, &mut to_mac(&answer, R0), 0), Verdict::Local);
        assert!(router.release(&Carried, 0).is_none(), "it is not on the other link");
        assert_eq!(one(&mut router, 1, &mut answer.clone(), 0), Verdict::Local);
        let (packet, verdict) = router.release(&Carried, 0).expect("the packet goes");
        assert_eq!((verdict, &packet.0[..12]), (Verdict::Forward(1), &[B, R1].concat()[..]));
    }
}

#[test]
fn a_station_on_a_route_on_the_link_is_heard_when_it_asks() {
    let mut questions = Outbox::new(2);
    let own = Speaker { interface: 1, mac: B, address: v4("10.9.1.2") };
    resolve::ask_arp(&mut questions, own, v4("192.168.1.1"), None);
    let own = Speaker { interface: 1, mac: B, address: v6("2001:db8:9::2") };
    resolve::ask_nd(&mut questions, own, v6("2001:db8:1::1"), None);
    for mut packet in [from_a("10.9.1.2", 9), from_a6("2001:db8:9::2", 9)] {
        let mut router = router_with_routes_on_the_link();
        let question = questions.pop().expect("a question").1.to_vec();
        assert_eq!(one(&mut router, 1, &mut Pkt(question), 0), Verdict::Local);
        let answers = made(&mut router);
        let [(1, answer)] = &answers[..] else { panic!("one answer: {answers:?}") };
        assert_eq!(answer[..6], B);
        // The answer of ARP names the asker.
        assert!(answer[12..14] != [8, 6] || answer[38..42] == [10, 9, 1, 2], "{answer:?}");
        assert_eq!(one(&mut router, 0, &mut packet, 0), Verdict::Forward(1));
        assert_eq!(packet.0[..12], [B, R1].concat());
    }
}

/// A neighbour that is asking whether this router is still there may leave its own address out (RFC 4861 section 4.3); the answer is to it
/// alone (section 7.2.4), and says that it is one.
#[test]
fn a_question_without_the_asker_s_link_layer_address_is_answered_to_it() {
    let (asker, ours) = (v6("2001:db8::2"), v6("2001:db8::1"));
    let question = |source: &str| {
        let message = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: ours, lladdr: None });
        let mut payload = vec![0; message.buffer_len()];
        let checksums = ChecksumCapabilities::default();
        message.emit(&v6(source), &ours, &mut Icmpv6Packet::new_unchecked(&mut payload), &checksums);
        let ip = ip_v6(source, "2001:db8::1", 255, u8::from(IpProtocol::Icmpv6), &payload);
        ethernet(R0, A, EthernetProtocol::Ipv6, &ip)
    };
    let mut router = router();
    for (source, to, mac) in [("2001:db8::2", asker, A), ("::", resolve::ALL_NODES, [0x33, 0x33, 0, 0, 0, 1])]
    {
        assert_eq!(one(&mut router, 0, &mut question(source), 0), Verdict::Local);
        let answers = made(&mut router);
        let [(0, answer)] = &answers[..] else { panic!("one answer: {answers:?}") };
        let ip = Ipv6Packet::new_checked(&answer[14..]).expect("IPv6");
        let icmp = Icmpv6Packet::new_checked(ip.payload()).expect("ICMPv6");
        assert_eq!((&answer[..6], ip.dst_addr()), (&mac[..], to), "{source}");
        let is_answer = icmp.neighbor_flags().contains(NdiscNeighborFlags::SOLICITED);
        assert_eq!(is_answer, source != "::", "{source}");
        assert_eq!(router.neighbour(0, asker.into()), None, "its address was not told");
    }
}

#[test]
fn what_is_for_this_router_in_a_frame_for_all_is_dropped_without_a_word() {
    let mut router = router();
    introduce_a(&mut router);
    for to in [v6("2001:db8::1"), resolve::link_local(R0)] {
        assert!(router.ports[0].addresses.iter().any(|own| own.address() == to.into()));
        for group in [[0x33, 0x33, 0, 0, 0, 1], [0xff; 6]] {
            let ip = ip_v6("2001:db8::2", &to.to_string(), 9, UDP, &[7; 40]);
            let mut packet = ethernet(group, A, EthernetProtocol::Ipv6, &ip);
            assert_eq!(one(&mut router, 0, &mut packet, 0), Verdict::Drop(DropReason::Martian), "{to}");
        }
    }
    assert_eq!((made(&mut router), router.counts().errors), (vec![], 0));
}

#[test]
fn answers_for_which_there_is_no_room_are_counted() {
    let mut router = router();
    for number in 0..200u64 {
        assert_eq!(one(&mut router, 0, &mut asks_arp(A, "192.168.0.1"), number), Verdict::Local);
    }
    let told = made(&mut router).len() as u64;
    assert!((1..200).contains(&told), "{told} answers");
    assert_eq!(router.counts().answers_untold, 200 - told);
}
