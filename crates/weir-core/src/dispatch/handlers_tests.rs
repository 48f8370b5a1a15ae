//! Every frame has one fate, whatever its bytes.

use proptest::prelude::*;
use smoltcp::wire::{
    ArpHardware, ArpOperation, ArpPacket, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet,
};

use super::super::settings::Settings;
use super::*;

/// The fate of a frame: delivered, or the reason of its drop. It goes on from ether alone, to any other protocol.
fn fate(frame: &[u8]) -> Result<(), DropReason> {
    let registry = Settings::new(protocols()).finish(1).unwrap().registry;
    let handlers = Handlers::new(&registry);
    let mut proto = handlers.ether();
    // A way without repeats is no longer than there are protocols.
    for _ in registry.ids() {
        match handlers.handle(proto, frame) {
            HandlerVerdict::Deliver => return Ok(()),
            HandlerVerdict::Drop(reason) => return Err(reason),
            HandlerVerdict::Dispatch(next) => {
                assert!(proto == handlers.ether() && next != proto);
                proto = next;
            }
        }
    }
    panic!("a way without end")
}

fn frame(tags: usize, ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x02; 12];
    (0..tags).for_each(|tag| frame.extend([[0x81, 0x00, 0, 1], [0x88, 0xa8, 0, 2]][tag % 2]));
    frame.extend(ethertype.to_be_bytes());
    frame.extend(packet);
    frame
}

fn ipv4() -> Vec<u8> {
    let mut bytes = vec![0; 28];
    let mut packet = Ipv4Packet::new_unchecked(&mut bytes[..]);
    packet.set_version(4);
    packet.set_header_len(20);
    packet.set_total_len(28);
    packet.set_next_header(IpProtocol::Udp);
    packet.fill_checksum();
    bytes
}

fn ipv6() -> Vec<u8> {
    let mut bytes = vec![0; 48];
    let mut packet = Ipv6Packet::new_unchecked(&mut bytes[..]);
    packet.set_version(6);
    packet.set_payload_len(8);
    packet.set_next_header(IpProtocol::Udp);
    bytes
}

fn arp() -> Vec<u8> {
    let mut bytes = vec![0; 28];
    let mut packet = ArpPacket::new_unchecked(&mut bytes[..]);
    packet.set_hardware_type(ArpHardware::Ethernet);
    packet.set_protocol_type(EthernetProtocol::Ipv4);
    packet.set_hardware_len(6);
    packet.set_protocol_len(4);
    packet.set_operation(ArpOperation::Request);
    bytes
}

#[test]
fn what_is_whole_arrives_behind_any_tags_and_what_is_cut_short_is_malformed() {
    for (ethertype, packet) in [(IPV4, ipv4()), (IPV6, ipv6()), (ARP, arp())] {
        for tags in 0..=2 {
            let whole = frame(tags, ethertype, &packet);
            assert_eq!(fate(&whole), Ok(()), "{ethertype:04x} behind {tags} tags");
            for len in 0..whole.len() {
                assert_eq!(fate(&whole[..len]), Err(DropReason::Malformed), "{len} of {ethertype:04x}");
            }
            let padded = [&whole[..], &[0; 10]].concat();
            assert_eq!(fate(&padded), Ok(()), "what lies behind is padding");
        }
    }
}

#[test]
fn what_is_wrong_is_dropped_for_its_reason() {
    assert_eq!(fate(&frame(0, 0x88b5, &[0; 46])), Err(DropReason::NoHandler));
    assert_eq!(fate(&frame(0, 46, &[0; 46])), Err(DropReason::NoHandler), "a length, as IEEE 802.3 has it");
    assert_eq!(fate(&frame(3, IPV4, &ipv4())), Err(DropReason::Malformed), "tags without end");
    assert_eq!(fate(&frame(0, IPV6, &ipv4())), Err(DropReason::Malformed), "another version");
    assert_eq!(fate(&frame(0, IPV4, &ipv6())), Err(DropReason::Malformed), "another version");
    let mut wrong = ipv4();
    wrong[15] ^= 1;
    assert_eq!(fate(&frame(0, IPV4, &wrong)), Err(DropReason::BadChecksum));
    let mut long = ipv6();
    long[5] += 1;
    assert_eq!(fate(&frame(0, IPV6, &long)), Err(DropReason::Malformed), "longer than there is");
}

proptest! {
    #[test]
    fn any_bytes_go_one_way(
        mut bytes in prop::collection::vec(any::<u8>(), 0..100),
        ethertype in prop::sample::select(vec![IPV4, IPV6, ARP, 0x8100, 0x88b5]),
    ) {
        let _ = fate(&bytes);
        if let Some(place) = bytes.get_mut(12..14) {
            place.copy_from_slice(&ethertype.to_be_bytes());
        }
        if let Some(version) = bytes.get_mut(14) {
            *version = if ethertype == IPV6 { 0x60 } else { 0x45 };
        }
        let _ = fate(&bytes);
    }
}
