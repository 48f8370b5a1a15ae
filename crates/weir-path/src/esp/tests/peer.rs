//! ESP in UDP, of peers behind translators of addresses.

use super::*;

#[test]
fn every_association_in_udp_is_heard_at_its_port() {
    let [mut one, _] = gateways();
    let mut plan = plan(0, Lifetime::default());
    plan.associations = [4500, 4501, 4501]
        .map(|port| AssociationPlan { udp_ports: Some([4500, port]), ..plan.associations[1].clone() })
        .to_vec();
    plan.policies.clear();
    let keys = (0..3).map(|_| key(0, AssociationNumbers::unmarked())).collect();
    one.esp.change(EspChange { plan, keys }, 0);
    assert_eq!(one.esp.udp_ports, [4500, 4501]);
}

/// The plan of gateway `own` in UDP, which follows the other one.
fn in_udp(own: usize) -> EspPlan {
    let mut plan = plan(own, Lifetime::default());
    plan.associations.iter_mut().for_each(|association| {
        association.udp_ports = Some([4500, 4500]);
        association.follows_peer = association.is_inbound;
    });
    plan
}

/// Both gateways, in UDP.
fn gateways_in_udp() -> [Gateway; 2] {
    [0, 1].map(|own| {
        let mut gateway = Gateway::new(own, Lifetime::default());
        gateway.disk.safe.store(u64::MAX, Ordering::Relaxed);
        let numbers = |from: usize| match from == own {
            true => sent(&gateway.disk),
            false => AssociationNumbers::unmarked(),
        };
        let keys = (0..2).map(|from| key(from, numbers(from))).collect();
        gateway.esp.change(EspChange { plan: in_udp(own), keys }, 0);
        gateway
    })
}

/// A packet of the first gateway as it comes to the second from another address and port.
fn moved(sealed: &[u8], address: [u8; 4], port: u16) -> Vec<u8> {
    let mut sealed = sealed.to_vec();
    sealed[LINK_LEN + 12..LINK_LEN + 16].copy_from_slice(&address);
    sealed[LINK_LEN + 20..LINK_LEN + 22].copy_from_slice(&port.to_be_bytes());
    weir_ipsec::ip::set_len(&mut sealed[LINK_LEN..], IpFamily::V4).unwrap();
    sealed
}

#[test]
fn a_peer_leads_no_other_peer_behind_its_address() {
    let [mut one, mut two] = gateways_in_udp();
    // The other peer has the same address, and another port.
    let mut both = in_udp(1);
    for place in 0..2 {
        let like = &both.associations[place];
        let ports = if like.is_inbound { [4501, 4500] } else { [4500, 4501] };
        let (name, spi) = (format!("other-{}", like.name), like.spi + 0x1000);
        both.associations.push(AssociationPlan { name, spi, udp_ports: Some(ports), ..like.clone() });
    }
    let other_keys = |two: &Gateway| [key(5, AssociationNumbers::unmarked()), key(6, sent(&two.disk))];
    let keys = [None, None].into_iter().chain(other_keys(&two)).collect();
    two.esp.change(EspChange { plan: both.clone(), keys }, 0);
    let there = frame(HOSTS[0], HOSTS[1], [1, 2], 10);
    let sealed = moved(&one.process(INSIDE, &there, 0).1, [203, 0, 113, 7], 61_000);
    assert_eq!(two.process(OUTSIDE, &sealed, 0).0, OUTSIDE_IN);
    let ports = |two: &Gateway| -> Vec<_> {
        two.esp.associations().iter().map(|running| running.udp_ports().unwrap()).collect()
    };
    let expected = [[61_000, 4500], [4500, 61_000], [4501, 4500], [4500, 4501]];
    assert_eq!(ports(&two), expected);
    // Nor does it lead one that begins.
    let before = EspPlan { associations: both.associations[..2].to_vec(), ..both.clone() };
    two.esp.change(EspChange { plan: before, keys: vec![None, None] }, 0);
    let keys = [None, None].into_iter().chain(other_keys(&two)).collect();
    two.esp.change(EspChange { plan: both, keys }, 0);
    assert_eq!(ports(&two), expected);
}

#[test]
fn a_peer_that_a_translator_moves_is_followed() {
    let [mut one, mut two] = gateways_in_udp();
    let there = frame(HOSTS[0], HOSTS[1], [1, 2], 10);
    let back = frame(HOSTS[1], HOSTS[0], [2, 1], 10);
    let goes_to = |two: &mut Gateway| {
        let (verdict, sealed) = two.process(INSIDE, &back, 0);
        assert_eq!(verdict, INSIDE_OUT);
        let ip = &sealed[LINK_LEN..];
        ([ip[16], ip[17], ip[18], ip[19]], u16::from_be_bytes([ip[22], ip[23]]))
    };
    let [first, second, third] = [0; 3].map(|_| one.process(INSIDE, &there, 0).1);
    assert_eq!(goes_to(&mut two), (GATEWAYS[0], 4500));
    let elsewhere = ([203, 0, 113, 7], 61_000);
    assert_eq!(
        two.process(OUTSIDE, &moved(&second, elsewhere.0, elsewhere.1), 0),
        (OUTSIDE_IN, there.clone())
    );
    assert_eq!(goes_to(&mut two), elsewhere);
    let known = two.esp.associations().iter().map(|running| (running.ends(), running.udp_ports().unwrap()));
    let [peer, own] = [elsewhere.0, GATEWAYS[1]].map(IpAddr::from);
    assert_eq!(known.collect::<Vec<_>>(), [([peer, own], [61_000, 4500]), ([own, peer], [4500, 61_000])]);
    // A late packet, a copy and a forged one lead nowhere else.
    let mut forged = moved(&third, [198, 51, 100, 9], 9);
    *forged.last_mut().unwrap() ^= 1;
    for (packet, passes) in [(moved(&first, [198, 51, 100, 9], 9), true), (second, false), (forged, false)] {
        assert_eq!(two.process(OUTSIDE, &packet, 0).0 == OUTSIDE_IN, passes);
        assert_eq!(goes_to(&mut two), elsewhere);
    }
    // The next key goes to where the peer is, and the peer may come back.
    let keys = vec![None, key(3, sent(&two.disk))];
    let mut plan = in_udp(1);
    plan.associations[1].spi = 0x2001;
    two.esp.change(EspChange { plan, keys }, 0);
    assert_eq!(goes_to(&mut two), elsewhere);
    // So does one that begins when none goes there.
    let mut without = in_udp(1);
    (without.associations, without.policies) = (without.associations[..1].to_vec(), Vec::new());
    two.esp.change(EspChange { plan: without, keys: vec![None] }, 0);
    let mut plan = in_udp(1);
    plan.associations[1].spi = 0x2002;
    let keys = vec![None, key(4, sent(&two.disk))];
    two.esp.change(EspChange { plan, keys }, 0);
    assert_eq!(goes_to(&mut two), elsewhere);
    assert_eq!(two.process(OUTSIDE, &third, 0), (OUTSIDE_IN, there.clone()));
    assert_eq!(goes_to(&mut two), (GATEWAYS[0], 4500));
    // A peer that moves comes by the next key, and comes back by the one before.
    let mut plan = in_udp(1);
    plan.associations[1].spi = 0x2002;
    let next = AssociationPlan { name: "next".into(), spi: 0x1009, ..plan.associations[0].clone() };
    plan.associations.push(next);
    plan.policies.iter_mut().filter(|policy| policy.is_inbound).for_each(|policy| {
        policy.associations.push("next".into());
    });
    let keys = vec![None, None, key(9, AssociationNumbers::unmarked())];
    two.esp.change(EspChange { plan, keys }, 0);
    let mut next = in_udp(0);
    next.associations[0].spi = 0x1009;
    let before = one.process(INSIDE, &there, 0).1;
    one.esp.change(EspChange { plan: next, keys: vec![key(9, sent(&one.disk)), None] }, 0);
    let by_next = moved(&one.process(INSIDE, &there, 0).1, elsewhere.0, elsewhere.1);
    for (packet, comes_from) in [(by_next, elsewhere), (before, (GATEWAYS[0], 4500))] {
        assert_eq!(two.process(OUTSIDE, &packet, 0), (OUTSIDE_IN, there.clone()));
        assert_eq!(goes_to(&mut two), comes_from);
    }
}
