//! Packets that come in fragments: ESP is put together and opened, and what is sealed whole is put together first; the rest passes.

use std::sync::atomic::Ordering;

use weir_core::drops::{Count, DropReason};
use weir_core::net::fragment::Fragments;
use weir_ipsec::reassembly::PATIENCE_NS;

use super::bench::{AHEAD, Bench, LAN, LINK_LEN, MS, WAN, frame, plan, plan_and_warnings};

/// The addresses of two gateways, of each family.
pub const V4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
pub const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

/// One of two gateways with a tunnel for all that is inside, whose associations have these options.
fn gateway(own: usize, options: &str) -> String {
    gateway_of(V4, own, options, "from = \"10.0.0.0/8\"")
}

/// A gateway as of [`gateway`] with these ends, whose outbound policies have these options.
pub fn gateway_of(ends: [&str; 2], own: usize, options: &str, selects: &str) -> String {
    let mut file = format!(
        "[[port]]\ninterface = \"lan\"\n[[port]]\ninterface = \"wan\"\n\
         [[esp]]\nname = \"gw\"\ninside = \"lan\"\noutside = \"wan\"\naddress = [\"{}\"]\n",
        ends[own]
    );
    for from in 0..2 {
        let direction = if from == own { "out" } else { "in" };
        let name = format!("sa-{direction}");
        file += &format!(
            "[[sa]]\nname = \"{name}\"\ndirection = \"{direction}\"\nspi = {}\nsource = \"{}\"\ndestination = \"{}\"\n\
             algorithm = \"aes128-gcm\"\nkey_file = \"{name}.key\"\n{options}\n\
             [[policy]]\ndirection = \"{direction}\"\naction = \"protect\"\n{selects}\nsa = [\"{name}\"]\n",
            0x1000 * (1 + from),
            ends[from],
            ends[1 - from],
        );
    }
    file
}

pub fn cut(frame: &[u8], mtu_bytes: u16) -> Vec<Vec<u8>> {
    let mut fragments = Fragments::new(frame, mtu_bytes).unwrap();
    let mut cut = Vec::new();
    let mut memory = [0; 2048];
    while let Some(len) = fragments.write_next(&mut memory) {
        cut.push(memory[..usize::from(len)].to_vec());
    }
    cut
}

pub fn received(bench: &mut Bench, fragments: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    fragments.into_iter().for_each(|fragment| bench.port(WAN).send(0, fragment));
    bench.run();
    bench.left(LAN)
}

pub fn held(bench: &Bench) -> Count {
    bench.worker.between().kept()
}

#[test]
fn esp_in_fragments_is_opened_in_whatever_order_they_come() {
    let cuttable = "dont_fragment = \"clear\"";
    for (own, peer) in [("", ""), ("udp_ports = [4500, 4501]", "udp_ports = [4501, 4500]")] {
        let options = |udp: [&str; 2], own: usize| {
            let file = gateway(own, cuttable);
            // The ports of what comes are those of what the peer sends.
            let [mine, theirs] = if own == 0 { udp } else { [udp[1], udp[0]] };
            file.replace("key_file = \"sa-out.key\"", &format!("key_file = \"sa-out.key\"\n{mine}"))
                .replace("key_file = \"sa-in.key\"", &format!("key_file = \"sa-in.key\"\n{theirs}"))
        };
        let mut near = Bench::new(&plan(&options([own, peer], 0)));
        let mut far = Bench::new(&plan(&options([own, peer], 1)));
        let clear: Vec<_> = (0..3).map(|number| frame(number, 1420, false)).collect();
        clear.iter().for_each(|frame| near.port(LAN).send(0, frame.clone()));
        near.run();
        let [one, two, three] = near.left(WAN).try_into().unwrap();
        let mut fragments = cut(&one, 1400);
        assert_eq!(fragments.len(), 2);
        fragments.reverse();
        assert_eq!(received(&mut far, fragments), clear[..1]);
        // Packets whose fragments are mixed, and one that is cut again.
        let again = cut(&two, 1440).iter().flat_map(|fragment| cut(fragment, 576)).collect::<Vec<_>>();
        let mixed: Vec<_> = cut(&three, 1280).into_iter().chain(again).rev().collect();
        let opened = received(&mut far, mixed);
        assert_eq!(opened, [clear[1].clone(), clear[2].clone()]);
        assert_eq!((held(&far), far.dropped()), (Count::default(), vec![]));
        let stage = far.worker.between().stages().next().unwrap();
        let (entered, left) = stage.counts();
        assert_eq!((entered.entered, left.dropped), (left.dispatched + left.delayed, 0));
        // What came so was received: it is not taken again.
        assert_eq!(received(&mut far, cut(&one, 1000)), Vec::<Vec<u8>>::new());
        assert_eq!(far.dropped(), [("gw".to_string(), DropReason::EspReplayed)]);
    }
}

#[test]
fn fragments_whose_others_do_not_come_are_given_up() {
    let [mut near, mut far] = [0, 1].map(|own| Bench::new(&plan(&gateway(own, "dont_fragment = \"clear\""))));
    near.port(LAN).send(0, frame(1, 1420, false));
    near.run();
    let [sealed] = &near.left(WAN)[..] else { panic!("one packet") };
    let fragments = cut(sealed, 600);
    assert_eq!(received(&mut far, fragments[..2].to_vec()), Vec::<Vec<u8>>::new());
    assert_eq!((held(&far).packets, far.dropped()), (2, vec![]));
    far.rest(PATIENCE_NS + MS);
    assert_eq!(held(&far), Count::default());
    assert_eq!(far.dropped(), [("gw".to_string(), DropReason::ReassemblyTimeout)]);
    let stage = far.worker.between().stages().next().unwrap();
    assert_eq!(stage.account().dropped.total().packets, 2);
    // The last one is too late.
    assert_eq!(received(&mut far, fragments[2..].to_vec()), Vec::<Vec<u8>>::new());
    assert_eq!(held(&far).packets, 1);
}

#[test]
fn other_datagrams_for_the_gateway_pass_in_their_fragments() {
    let mut far = Bench::new(&plan(&gateway(1, "")));
    let mut ike = frame(7, 1500, true);
    ike[LINK_LEN + 12..LINK_LEN + 20].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    weir_ipsec::ip::set_len(&mut ike[LINK_LEN..], weir_ipsec::ip::IpFamily::V4).unwrap();
    for (ports, spi) in [([500u16, 500u16], [9; 4]), ([4500, 4500], [0; 4])] {
        let udp = LINK_LEN + 20;
        ike[udp..udp + 4].copy_from_slice(&ports.map(u16::to_be_bytes).concat());
        ike[udp + 8..udp + 12].copy_from_slice(&spi);
        let mut fragments = cut(&ike, 600);
        assert_eq!(fragments.len(), 3);
        assert_eq!(received(&mut far, fragments.clone()), fragments);
        fragments.swap(0, 1);
        // Another number, as another datagram has.
        for fragment in &mut fragments {
            fragment[LINK_LEN + 5] ^= 1;
            let ip = &mut fragment[LINK_LEN..];
            weir_ipsec::ip::set_len(ip, weir_ipsec::ip::IpFamily::V4).unwrap();
        }
        assert_eq!(received(&mut far, fragments.clone()), fragments);
    }
    assert_eq!((held(&far), far.dropped()), (Count::default(), vec![]));
}

/// A frame of IPv6 with TCP whose packet has so many bytes.
fn frame_v6(len: usize) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0, 0, 0, 6, 64];
    ip.extend([[0xfd; 16], [0xfc; 16]].concat());
    ip.resize(len, 0x5a);
    weir_ipsec::ip::set_len(&mut ip, weir_ipsec::ip::IpFamily::V6).unwrap();
    [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x86, 0xdd][..], &ip].concat()
}

/// A frame with an ICMP error of a router on the way, which may be cut, about a long packet from 10.2.0.2 to 10.1.0.2.
fn error_frame() -> Vec<u8> {
    let mut quoted = frame(1, 1300, true)[LINK_LEN..].to_vec();
    quoted[12..20].copy_from_slice(&[10, 2, 0, 2, 10, 1, 0, 2]);
    let mut ip =
        vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0, 172, 16, 0, 9, 10, 2, 0, 2, 11, 0, 0, 0, 0, 0, 0, 0];
    ip.extend(quoted);
    weir_ipsec::ip::set_len(&mut ip, weir_ipsec::ip::IpFamily::V4).unwrap();
    [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0][..], &ip].concat()
}

#[test]
fn what_can_neither_be_cut_inside_nor_be_shorter_is_cut_after_it_is_sealed() {
    let ports = "protocol = \"udp\"\nto_ports = 2000";
    let short = |file: String, own: &str| {
        let address = format!("address = [\"{own}\"]\n");
        let cut = file.replace(&address, &format!("{address}mtu = 1280\n"));
        assert_ne!(cut, file);
        cut
    };
    for (ends, frames, selects) in [
        // Fragments inside would not pass the policy.
        (V4, vec![frame(1, 1400, true), frame(2, 100, true)], ports),
        (V6, vec![frame(1, 1400, true), frame(2, 100, true)], ports),
        // So would those of an error that is protected because of what it quotes.
        (V4, vec![error_frame(), frame(2, 100, true)], "from = \"10.0.0.0/8\""),
        // A sender of IPv6 makes none shorter.
        (V4, vec![frame_v6(1280), frame_v6(100)], "from = \"::/0\""),
        (V6, vec![frame_v6(1280), frame_v6(1260)], "from = \"::/0\""),
    ] {
        let file = |own: usize| short(gateway_of(ends, own, "", selects), ends[own]);
        let [mut near, mut far] = [0, 1].map(|own| Bench::new(&plan_and_warnings(&file(own)).0));
        frames.iter().for_each(|frame| near.port(LAN).send(0, frame.clone()));
        near.run();
        let sealed = near.left(WAN);
        assert!(sealed.len() > frames.len() && sealed.iter().all(|frame| frame.len() <= LINK_LEN + 1280));
        assert_eq!((near.dropped(), near.left(LAN).len()), (vec![], 0));
        assert!(received(&mut far, sealed) == frames, "all, in order, as they were");
        assert_eq!((held(&far), far.dropped()), (Count::default(), vec![]));
    }
    // Longer ones of IPv6 are told what every link takes, and those of IPv4 that may not be cut what fits.
    for (long, told_at, told) in [(frame_v6(1400), 40, 1280), (frame(1, 1400, false), 20, 1226)] {
        let file = short(gateway_of(V4, 0, "", ""), V4[0]);
        let mut near = Bench::new(&plan_and_warnings(&file).0);
        near.port(LAN).send(0, long);
        near.run();
        let [error] = &near.left(LAN)[..] else { panic!("its sender is told") };
        let mtu = &error[LINK_LEN + told_at + 6..][..2];
        assert_eq!((u16::from_be_bytes([mtu[0], mtu[1]]), near.left(WAN).len()), (told, 0));
    }
}

/// Headers for the way stay before ESP in transport mode, and before the header of each fragment.
#[test]
fn a_packet_with_headers_for_the_way_is_cut_after_it_is_sealed() {
    let ends = ["fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd", "fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc"];
    let file = |own: usize| {
        let address = format!("address = [\"{}\"]\n", ends[own]);
        let file = gateway_of(ends, own, "mode = \"transport\"", "from = \"::/0\"");
        file.replace(&address, &format!("{address}mtu = 1280\n"))
    };
    let [mut near, mut far] = [0, 1].map(|own| Bench::new(&plan_and_warnings(&file(own)).0));
    // Hop-by-hop options, options for the first destination, a routing header without a way left, and options for the last destination.
    let mut long = frame_v6(1280);
    long[LINK_LEN + 6] = 0;
    for (place, next) in (0..).zip([60, 43, 60, 6]) {
        let header =
            if next == 60 && place > 0 { [next, 0, 4, 0, 0, 0, 0, 0] } else { [next, 0, 1, 4, 0, 0, 0, 0] };
        long[LINK_LEN + 40 + 8 * place..][..8].copy_from_slice(&header);
    }
    near.port(LAN).send(0, long.clone());
    near.run();
    let sealed = near.left(WAN);
    assert_eq!((sealed.len(), near.dropped()), (2, vec![]));
    assert!(sealed.iter().all(|frame| frame.len() <= LINK_LEN + 1280 && frame[LINK_LEN + 56] == 44));
    assert!(received(&mut far, sealed) == [long], "as it was");
    assert_eq!((held(&far), far.dropped()), (Count::default(), vec![]));
}

#[test]
fn a_packet_that_waited_for_a_number_is_cut_in_its_turn() {
    let [mut near, mut far] = [0, 1].map(|own| Bench::new(&plan(&gateway(own, ""))));
    near.is_slow.store(true, Ordering::Relaxed);
    let lens = [100; AHEAD as usize].into_iter().chain([100, 1500, 100]);
    for (number, len) in (0..).zip(lens.clone()) {
        near.port(LAN).send(0, frame(number, len, true));
    }
    near.run();
    assert_eq!((near.left(WAN).len() as u64, held(&near).packets), (AHEAD, 3));
    near.is_slow.store(false, Ordering::Relaxed);
    near.rest(10 * MS);
    let sealed = near.left(WAN);
    assert_eq!((sealed.len(), held(&near), near.dropped()), (4, Count::default(), vec![]));
    let numbers = received(&mut far, sealed).iter().map(|frame| frame[LINK_LEN + 5]).collect::<Vec<_>>();
    let first = AHEAD as u8;
    assert_eq!(numbers, [first, first + 1, first + 1, first + 2]);
}

/// A frame of UDP over IPv6, whose packet has so many bytes, from port 1000 to 2000.
pub fn udp_frame_v6(len: usize) -> Vec<u8> {
    let mut frame = frame_v6(len);
    frame[LINK_LEN + 6] = 17;
    let udp = [1000u16, 2000, (len - 40) as u16, 0].map(u16::to_be_bytes).concat();
    frame[LINK_LEN + 40..][..8].copy_from_slice(&udp);
    frame
}

/// The fragments that a host makes of its own packet for a link that takes so many bytes: of IPv4 with DF, as Linux sets it there too.
pub fn cut_by_host(frame: &[u8], mtu_bytes: u16, number: u16) -> Vec<Vec<u8>> {
    if frame[LINK_LEN] >> 4 == 6 {
        let mut fragments = Fragments::of_own_v6(frame, mtu_bytes, number.into()).unwrap();
        let mut memory = [0; 2048];
        return std::iter::from_fn(|| {
            fragments.write_next(&mut memory).map(|len| memory[..len.into()].to_vec())
        })
        .collect();
    }
    let mut fragments = cut(frame, mtu_bytes);
    for fragment in &mut fragments {
        fragment[LINK_LEN + 6] |= 0x40;
        weir_ipsec::ip::set_len(&mut fragment[LINK_LEN..], weir_ipsec::ip::IpFamily::V4).unwrap();
    }
    fragments
}

/// The headers of fragments do not tell the ports, and transport mode takes no fragments.
#[test]
fn what_is_sealed_whole_is_put_together_first() {
    let hosts_v6 = ["fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd", "fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc"];
    let transport = "mode = \"transport\"";
    let ports = "protocol = \"udp\"\nto_ports = 2000";
    for (ends, whole, options, selects) in [
        (["10.1.0.2", "10.2.0.2"], frame(1, 1480, true), transport, ""),
        (hosts_v6, udp_frame_v6(1480), transport, "from = \"::/0\""),
        (V4, frame(1, 1480, true), "", ports),
        (V6, udp_frame_v6(1480), "", ports),
    ] {
        let file = |own: usize| gateway_of(ends, own, options, selects);
        let [mut near, mut far] = [0, 1].map(|own| Bench::new(&plan_and_warnings(&file(own)).0));
        let mut pass = |number: u16, turned: bool, far: &mut Bench| {
            let mut fragments = cut_by_host(&whole, 1400, number);
            assert_eq!(fragments.len(), 2);
            if turned {
                fragments.reverse();
            }
            fragments.into_iter().for_each(|fragment| near.port(LAN).send(0, fragment));
            near.run();
            let sealed = near.left(WAN);
            assert_eq!(
                (sealed.len(), held(&near), near.dropped()),
                (2, Count::default(), vec![]),
                "{ends:?}"
            );
            assert!(sealed.iter().all(|frame| frame.len() <= LINK_LEN + 1500));
            let opened = received(far, sealed);
            assert_eq!((held(far), far.dropped()), (Count::default(), vec![]), "{ends:?}");
            opened
        };
        assert!(pass(1, false, &mut far) == std::slice::from_ref(&whole), "{ends:?}: as its sender made it");
        // A packet that is longer than the interface at the other end takes leaves in fragments again.
        far.worker.set_stage_mtu(0, 0, 1400);
        let cut = pass(2, true, &mut far);
        let header_len = if whole[LINK_LEN] >> 4 == 6 { 48 } else { 20 };
        let data: Vec<u8> = cut.iter().flat_map(|frame| frame[LINK_LEN + header_len..].to_vec()).collect();
        let sent = &whole[LINK_LEN + if header_len == 48 { 40 } else { 20 }..];
        assert!((cut.len(), &data[..]) == (2, sent), "{ends:?}");
        assert!(cut.iter().all(|frame| frame.len() <= LINK_LEN + 1400));
    }
}

#[test]
fn fragments_that_waited_for_a_number_are_put_together_in_their_turn() {
    let ports = "protocol = \"udp\"\nto_ports = 2000";
    for shorts_before in [AHEAD, AHEAD + 1] {
        let [mut near, mut far] =
            [0, 1].map(|own| Bench::new(&plan_and_warnings(&gateway_of(V4, own, "", ports)).0));
        near.is_slow.store(true, Ordering::Relaxed);
        let short = |number: u64| frame(number as u16, 100, true);
        let mut sent: Vec<_> = (0..shorts_before).map(short).collect();
        sent.extend(cut_by_host(&frame(shorts_before as u16, 1400, true), 800, 1));
        sent.push(short(shorts_before + 1));
        sent.into_iter().for_each(|frame| near.port(LAN).send(0, frame));
        near.run();
        assert_eq!(near.left(WAN).len() as u64, AHEAD);
        near.is_slow.store(false, Ordering::Relaxed);
        near.rest(10 * MS);
        let sealed = near.left(WAN);
        assert_eq!((held(&near), near.dropped()), (Count::default(), vec![]));
        let numbers =
            received(&mut far, sealed).iter().map(|frame| frame[LINK_LEN + 5].into()).collect::<Vec<u64>>();
        assert_eq!(numbers, (AHEAD..shorts_before + 2).collect::<Vec<_>>());
        let stage = near.worker.between().stages().next().unwrap();
        let (entered, left) = stage.counts();
        assert_eq!((entered.entered, left.dropped), (left.dispatched + left.delayed, 0));
    }
}

/// The fragments of a packet of IPv6 between the ends of the associations in transport mode, with this next header and data.
fn fragments_v6(next: u8, data: &[u8]) -> Vec<Vec<u8>> {
    let mut whole = frame_v6(40 + data.len());
    whole[LINK_LEN + 6] = next;
    whole[LINK_LEN + 7] = 255;
    whole[LINK_LEN + 40..].copy_from_slice(data);
    let mut fragments = Fragments::of_own_v6(&whole, 1400, 5).unwrap();
    let mut memory = [0; 2048];
    std::iter::from_fn(|| fragments.write_next(&mut memory).map(|len| memory[..len.into()].to_vec()))
        .collect()
}

/// A gateway of hosts of IPv6 in transport mode, and what leaves it of these frames, inside of which all that comes is protected.
fn left_in_transport(frames: Vec<Vec<u8>>) -> (Bench, Vec<Vec<u8>>) {
    let ends = ["fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd", "fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc"];
    let file = gateway_of(ends, 0, "mode = \"transport\"", "from = \"::/0\"");
    let mut near = Bench::new(&plan_and_warnings(&file).0);
    frames.into_iter().for_each(|frame| near.port(LAN).send(0, frame));
    near.run();
    let left = near.left(WAN);
    (near, left)
}

/// A policy that changes from a tunnel to transport mode: what does not fit is cut for the one, and put together for the other.
#[test]
fn a_policy_of_both_modes_seals_what_was_put_together_whole() {
    let ends = ["10.1.0.2", "10.2.0.2"];
    let other = "[[sa]]\nname = \"old\"\ndirection = \"out\"\nmode = \"transport\"\nspi = 0x7000\nsource = \"10.1.0.2\"\n\
                 destination = \"10.2.0.2\"\nalgorithm = \"aes128-gcm\"\nkey_file = \"old.key\"\n";
    let file = gateway_of(ends, 0, "", "") + other;
    let file = file.replace("sa = [\"sa-out\"]", "sa = [\"sa-out\", \"old\"]");
    for is_slow in [false, true] {
        let mut near = Bench::new(&plan_and_warnings(&file).0);
        let shorts = if is_slow { AHEAD as u16 } else { 0 };
        near.is_slow.store(is_slow, Ordering::Relaxed);
        for number in 0..=shorts {
            near.port(LAN).send(0, frame(number, 100, true));
        }
        near.port(LAN).send(0, frame(200, 1490, true));
        cut_by_host(&frame(201, 1490, true), 800, 1).into_iter().for_each(|one| near.port(LAN).send(0, one));
        near.run();
        near.is_slow.store(false, Ordering::Relaxed);
        near.rest(10 * MS);
        assert_eq!((held(&near), near.dropped()), (Count::default(), vec![]));
        assert_eq!(near.left(WAN).len(), usize::from(shorts) + 1 + 2 + 2);
    }
}

#[test]
fn fragments_of_fragments_are_malformed() {
    // Each header would be taken off by putting together one fragment, which is the whole.
    let mut nested = frame_v6(40 + 8 * 150);
    nested[LINK_LEN + 6] = 44;
    nested[LINK_LEN + 40..].copy_from_slice(&[44, 0, 0, 0, 0, 0, 0, 7].repeat(150));
    let (near, left) = left_in_transport(vec![nested]);
    assert_eq!((left.len(), held(&near)), (0, Count::default()));
    assert_eq!(near.dropped(), [("gw".to_string(), DropReason::Malformed)]);
}

#[test]
fn what_is_put_together_passes_by_no_rule_for_whole_packets() {
    // A neighbour solicitation passes in the clear if it is whole (RFC 6980); one in fragments is protected as anything else.
    let solicitation = [&[135, 0, 0, 0][..], &[0; 1500]].concat();
    let (near, left) = left_in_transport(fragments_v6(58, &solicitation));
    let is_sealed = |frame: &Vec<u8>| frame[LINK_LEN + 6] == 44 && frame[LINK_LEN + 40] == 50;
    assert!(left.len() == 2 && left.iter().all(is_sealed));
    assert_eq!((held(&near), near.dropped()), (Count::default(), vec![]));
    // IKE of the gateway passes in the clear, and is as long as it was.
    let ike = [&[1, 244, 1, 244, 1506u16.to_be_bytes()[0], 1506u16.to_be_bytes()[1], 0, 0][..], &[9; 1498]]
        .concat();
    let (near, left) = left_in_transport(fragments_v6(17, &ike));
    let is_clear = |frame: &Vec<u8>| frame[LINK_LEN + 6] == 44 && frame[LINK_LEN + 40] == 17;
    assert!(left.len() == 2 && left.iter().all(is_clear));
    assert_eq!((held(&near), near.dropped()), (Count::default(), vec![]));
}
