//! The longest packet that the way outside takes, as the plan says it and as routers tell it.

use super::*;

#[test]
fn what_the_way_outside_takes_bounds_what_is_sealed() {
    let [mut one, _] = gateways();
    let long = frame(HOSTS[0], HOSTS[1], [1, 2], 1380);
    assert_eq!(one.process(INSIDE, &long, 0).0, INSIDE_OUT);
    one.esp.set_way_bytes(OUTSIDE, 1300);
    let EspVerdict::TooLong(longest) = one.process(INSIDE, &long, 1).0 else { panic!("it does not fit") };
    assert!((1200..1300).contains(&longest), "{longest}");
    one.esp.change(EspChange { plan: plan(0, Lifetime::default()), keys: vec![None, None] }, 2);
    assert_eq!(one.process(INSIDE, &long, 3).0, EspVerdict::TooLong(longest), "another file is no other way");
    one.esp.set_way_bytes(OUTSIDE, 9000);
    assert_eq!(one.process(INSIDE, &long, 4).0, INSIDE_OUT, "the file says 1,500");
}

/// The message of a router on the way that a sealed frame is too long for its next link.
fn too_big(sealed: &[u8], mtu_bytes: u16) -> Vec<u8> {
    let mut message = vec![0; 700];
    let fault = Fault::TooLong(mtu_bytes);
    let len = icmp::tell_sender(&mut message, fault, [203, 0, 113, 1].into(), &sealed[LINK_LEN..]).unwrap();
    [&sealed[6..12], &sealed[..6], &sealed[12..LINK_LEN], &message[..len]].concat()
}

#[test]
fn a_way_that_takes_less_is_learned_from_its_routers() {
    let [mut one, _] = gateways();
    let long = frame(HOSTS[0], HOSTS[1], [1, 2], 1380);
    let (verdict, sealed) = one.process(INSIDE, &long, 0);
    assert_eq!(verdict, INSIDE_OUT);
    // What quotes another association, a number that was not sent, or another way is no message about this gateway's packets.
    for at in [20 + 3, 20 + 7, 16 + 3] {
        let mut others = sealed.clone();
        others[LINK_LEN + at] ^= 0x10;
        weir_ipsec::ip::set_len(&mut others[LINK_LEN..], IpFamily::V4).unwrap();
        assert_eq!(one.process(OUTSIDE, &too_big(&others, 1300), 0).0, OUTSIDE_IN, "byte {at}");
        assert_eq!(one.esp.associations()[0].path_mtu_bytes(0), None, "byte {at}");
    }
    assert_eq!(one.process(OUTSIDE, &too_big(&sealed, 1300), 1).0, EspVerdict::Consume);
    let EspVerdict::TooLong(longest) = one.process(INSIDE, &long, 2).0 else { panic!("it does not fit") };
    let fits = frame(HOSTS[0], HOSTS[1], [1, 2], usize::from(longest) - 28);
    let (verdict, sealed) = one.process(INSIDE, &fits, 3);
    assert_eq!(verdict, INSIDE_OUT);
    assert!((1296..=1300).contains(&(sealed.len() - LINK_LEN)), "{}", sealed.len());
    // The next key goes the same way.
    let mut plan = plan(0, Lifetime::default());
    let next = AssociationPlan { name: "next".into(), spi: 0x2000, ..plan.associations[0].clone() };
    plan.associations.push(next);
    plan.policies[0].associations.insert(0, "next".into());
    let disk = Disk::default();
    disk.safe.store(1 + AHEAD, Ordering::Relaxed);
    one.esp.change(EspChange { plan, keys: vec![None, None, key(2, sent(&disk))] }, 4);
    assert_eq!(one.process(INSIDE, &long, 5).0, EspVerdict::TooLong(longest));
    let known: Vec<_> = one.esp.associations().iter().map(|running| running.path_mtu_bytes(5)).collect();
    assert_eq!(known, [Some(1300), None, Some(1300)]);
    assert_eq!(one.process(INSIDE, &long, 1 + FORGOTTEN_AFTER_NS).0, INSIDE_OUT, "the way may have changed");
}
