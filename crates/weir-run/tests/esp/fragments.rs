//! ESP that comes in fragments is put together and opened; what is not ESP passes in its fragments.

use weir_core::drops::{Count, DropReason};
use weir_core::net::fragment::Fragments;
use weir_ipsec::reassembly::PATIENCE_NS;

use super::bench::{Bench, LAN, LINK_LEN, MS, WAN, frame, plan};

/// One of two gateways with a tunnel, whose packets may be cut on the way.
fn gateway(own: usize, options: &str) -> String {
    let ends = ["192.0.2.1", "192.0.2.2"];
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
             [[policy]]\ndirection = \"{direction}\"\naction = \"protect\"\nfrom = \"10.0.0.0/8\"\nsa = [\"{name}\"]\n",
            0x1000 * (1 + from),
            ends[from],
            ends[1 - from],
        );
    }
    file
}

fn cut(frame: &[u8], mtu_bytes: u16) -> Vec<Vec<u8>> {
    let mut fragments = Fragments::new(frame, mtu_bytes).unwrap();
    let mut cut = Vec::new();
    let mut memory = [0; 2048];
    while let Some(len) = fragments.write_next(&mut memory) {
        cut.push(memory[..usize::from(len)].to_vec());
    }
    cut
}

fn received(bench: &mut Bench, fragments: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    fragments.into_iter().for_each(|fragment| bench.port(WAN).send(0, fragment));
    bench.run();
    bench.left(LAN)
}

fn held(bench: &Bench) -> Count {
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
