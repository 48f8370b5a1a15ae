//! Fragments that the gateway itself sends: IKE passes in the clear, and anything else is sealed, cut before that where it is too long.

use weir_core::drops::Count;

use super::bench::{Bench, LAN, LINK_LEN, WAN, frame, plan, plan_and_warnings};
use super::fragments::{V4, V6, cut, cut_by_host, gateway_of, held, received, udp_frame_v6};

/// A frame of UDP from one gateway to the other, whose packet has so many bytes, with these ports and first bytes.
fn own_frame(ports: [u16; 2], data: [u8; 4], len: usize) -> Vec<u8> {
    const UDP_AT: usize = LINK_LEN + 20;
    let mut whole = frame(7, len, true);
    whole[LINK_LEN + 12..UDP_AT].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    whole[UDP_AT..UDP_AT + 4].copy_from_slice(&ports.map(u16::to_be_bytes).concat());
    whole[UDP_AT + 8..UDP_AT + 12].copy_from_slice(&data);
    weir_ipsec::ip::set_len(&mut whole[LINK_LEN..], weir_ipsec::ip::IpFamily::V4).unwrap();
    whole
}

/// A policy names the gateways themselves too, and IKE passes in the clear all the same; what is not IKE is sealed in its fragments.
#[test]
fn ike_in_fragments_passes_where_a_policy_names_the_gateway() {
    for is_turned in [false, true] {
        for (ports, data, is_ike) in [
            ([500u16, 500u16], [9; 4], true),
            ([4500, 4500], [0; 4], true),
            ([4500, 500], [9; 4], false),
            ([1000, 2000], [0; 4], false),
        ] {
            let [mut near, mut far] = [0, 1].map(|own| Bench::new(&plan(&gateway_of(V4, own, "", ""))));
            let whole = own_frame(ports, data, 1500);
            let mut fragments = cut_by_host(&whole, 600, 7);
            assert_eq!(fragments.len(), 3);
            if is_turned {
                fragments.reverse();
            }
            fragments.iter().for_each(|fragment| near.port(LAN).send(0, fragment.clone()));
            near.run();
            let left = near.left(WAN);
            assert_eq!((left == fragments, left.len()), (is_ike, 3), "{ports:?}");
            assert!(received(&mut far, left) == fragments, "{ports:?}");
            for gateway in [&near, &far] {
                assert_eq!((held(gateway), gateway.dropped()), (Count::default(), vec![]), "{ports:?}");
            }
        }
    }
}

/// IKE with many certificates is longer than a frame, so nobody could put it together.
#[test]
fn long_ike_in_fragments_passes_whatever_the_policy_needs() {
    let transport = "mode = \"transport\"";
    let ports = "protocol = \"udp\"\nto_ports = \"500-4500\"";
    for (options, selects) in [("", ""), (transport, ""), ("", ports)] {
        for is_turned in [false, true] {
            for (own, data) in [(500, [9; 4]), (4500, [0; 4])] {
                let file = gateway_of(V4, 0, options, selects);
                let mut near = Bench::new(&plan_and_warnings(&file).0);
                let mut fragments = cut(&own_frame([own; 2], data, 5000), 1500);
                assert_eq!(fragments.len(), 4);
                if is_turned {
                    fragments.reverse();
                }
                fragments.iter().for_each(|fragment| near.port(LAN).send(0, fragment.clone()));
                near.run();
                assert_eq!((held(&near), near.dropped()), (Count::default(), vec![]), "{options} {selects}");
                assert!(near.left(WAN) == fragments, "{options} {selects} {own}");
            }
        }
    }
}

/// Outside, fragments would be lost behind many a NAT or firewall.
#[test]
fn fragments_of_the_gateway_itself_are_cut_before_they_are_sealed() {
    for is_turned in [false, true] {
        let [mut near, mut far] = [0, 1].map(|own| Bench::new(&plan(&gateway_of(V4, own, "", ""))));
        let whole = own_frame([1000, 2000], [7; 4], 2900);
        let mut fragments = cut(&whole, 1500);
        assert_eq!((fragments.len(), fragments[0].len()), (2, LINK_LEN + 1500));
        if is_turned {
            fragments.reverse();
        }
        fragments.into_iter().for_each(|fragment| near.port(LAN).send(0, fragment));
        near.run();
        let sealed = near.left(WAN);
        assert_eq!((sealed.len(), held(&near), near.dropped()), (3, Count::default(), vec![]));
        let is_fragment = |frame: &Vec<u8>| frame[LINK_LEN + 6] & 0x3f != 0 || frame[LINK_LEN + 7] != 0;
        assert!(!sealed.iter().any(is_fragment), "what leaves is no fragment");
        let mut opened = received(&mut far, sealed);
        opened.sort_by_key(|frame| [frame[LINK_LEN + 6] & 0x1f, frame[LINK_LEN + 7]]);
        let data: Vec<u8> = opened.iter().flat_map(|frame| frame[LINK_LEN + 20..].to_vec()).collect();
        assert!(data == whole[LINK_LEN + 20..]);
        assert_eq!((held(&far), far.dropped()), (Count::default(), vec![]));
    }
    // A sender of IPv6 makes shorter ones, once it is told.
    let mut near = Bench::new(&plan(&gateway_of(V6, 0, "", "from = \"::/0\"")));
    let mut whole = udp_frame_v6(2800);
    for (place, address) in V6.iter().enumerate() {
        let address: std::net::Ipv6Addr = address.parse().unwrap();
        whole[LINK_LEN + 8 + 16 * place..][..16].copy_from_slice(&address.octets());
    }
    cut_by_host(&whole, 1500, 1).into_iter().for_each(|fragment| near.port(LAN).send(0, fragment));
    near.run();
    let told = near.left(LAN);
    assert_eq!((near.left(WAN).len(), held(&near), told.len()), (1, Count::default(), 1));
    assert_eq!(told[0][LINK_LEN + 40], 2, "too big");
}
