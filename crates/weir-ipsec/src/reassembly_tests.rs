//! Fragments of ESP, in any order, twice, contradicting each other, too few and too many.

use proptest::prelude::*;
use weir_core::packet::{Meta, Packet};

use super::*;

const ENDS: [[u8; 4]; 2] = [[192, 0, 2, 2], [192, 0, 2, 1]];
const UDP_PORT: u16 = 4500;
const MORE: u16 = 0x2000;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Bytes(Vec<u8>, Meta);

impl Packet for Bytes {
    fn len_bytes(&self) -> u32 {
        self.0.len() as u32
    }

    fn meta(&self) -> &Meta {
        &self.1
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.1
    }

    fn mark_ce(&mut self) -> bool {
        false
    }
}

fn v4(protocol: u8, identification: u16, position: u16, data: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 2, 0, 0];
    ip.extend([identification.to_be_bytes(), position.to_be_bytes()].concat());
    ip.extend([64, protocol, 0, 0]);
    ip.extend(ENDS.concat());
    ip.extend(data);
    ip::set_len(&mut ip, IpFamily::V4).unwrap();
    ip
}

/// With destination options before the fragment header, if `options`.
fn v6(options: bool, fragment: Option<(u16, u32)>, data: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0, 0, 0, 0, 64];
    ip.extend([0x20; 16].iter().chain(&[0x21; 16]));
    let mut next_at = 6;
    if options {
        ip[next_at] = number::ROUTING;
        next_at = ip.len();
        ip.extend([0, 0, 0, 0, 0, 0, 0, 0]);
    }
    if let Some((position, identification)) = fragment {
        ip[next_at] = number::FRAGMENT;
        next_at = ip.len();
        ip.extend([0, 0]);
        ip.extend(position.to_be_bytes());
        ip.extend(identification.to_be_bytes());
    }
    ip[next_at] = number::ESP;
    ip.extend(data);
    ip::set_len(&mut ip, IpFamily::V6).unwrap();
    ip
}

/// Fragments of IPv4 whose data end at these units of 8 bytes; the last with all that is left.
fn cut(protocol: u8, identification: u16, data: &[u8], ends: &[usize]) -> Vec<Vec<u8>> {
    let mut begin = 0;
    let mut fragments = Vec::new();
    for end in ends.iter().map(|end| end * UNIT).chain([data.len()]) {
        let more = if end == data.len() { 0 } else { MORE };
        fragments.push(v4(protocol, identification, (begin / UNIT) as u16 | more, &data[begin..end]));
        begin = end;
    }
    fragments
}

/// Takes packets in; returns what became of the last, and what came out.
fn take(reassembly: &mut Reassembly<Bytes>, packets: &[Vec<u8>], now_ns: u64) -> (Gathered, Vec<Vec<u8>>) {
    let mut out = Vec::new();
    let mut gathered = Gathered::Taken;
    for packet in packets {
        let headers = IpHeaders::read_all(packet).unwrap();
        let fragment = Fragment::of_esp(packet, &headers, &[UDP_PORT]).unwrap();
        gathered = reassembly.take(fragment, Bytes(packet.clone(), Meta::default()), now_ns, &mut out);
    }
    (gathered, out.into_iter().map(|packet| packet.0).collect())
}

fn refused(reassembly: &mut Reassembly<Bytes>) -> Vec<DropReason> {
    std::iter::from_fn(|| reassembly.take_refused()).map(|(_, reason)| reason).collect()
}

fn joined(fragments: &[Vec<u8>]) -> Result<Vec<u8>, DropReason> {
    let mut memory = vec![0; 7];
    memory.extend(&fragments[0]);
    memory.resize(4096, 0xee);
    let mut room = Room::new(&mut memory, 7, fragments[0].len()).unwrap();
    join(&mut room, fragments[1..].iter().map(Vec::as_slice))?;
    Ok(room.packet().to_vec())
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + index / 256) as u8).collect()
}

proptest! {
    #[test]
    fn fragments_in_any_order_make_the_packet(
        len in 33usize..3000,
        places in proptest::collection::btree_set(1usize..4, 1..4),
        order in any::<[u32; 4]>(),
    ) {
        let data = data(len);
        let mut fragments = cut(number::ESP, 7, &data, &places.into_iter().collect::<Vec<_>>());
        let expected = fragments.clone();
        let mut keys = order.iter();
        fragments.sort_by_cached_key(|_| *keys.next().unwrap());
        let mut reassembly = Reassembly::default();
        for fragment in &fragments[1..] {
            prop_assert_eq!(take(&mut reassembly, std::slice::from_ref(fragment), 0).0, Gathered::Taken);
        }
        let (gathered, out) = take(&mut reassembly, &fragments[..1], 1);
        prop_assert_eq!((gathered, &out), (Gathered::Whole, &expected));
        prop_assert_eq!(joined(&out).unwrap(), v4(number::ESP, 7, 0, &data));
        prop_assert_eq!((reassembly.held(), reassembly.due_ns()), (Count::default(), None));
    }
}

#[test]
fn ipv6_loses_the_fragment_header_wherever_it_stands() {
    let data = data(100);
    for options in [false, true] {
        let fragments = [v6(options, Some((1, 9)), &data[..48]), v6(options, Some((48, 9)), &data[48..])];
        let mut reassembly = Reassembly::default();
        let (gathered, out) = take(&mut reassembly, &[fragments[1].clone(), fragments[0].clone()], 0);
        assert_eq!(gathered, Gathered::Whole);
        assert_eq!(joined(&out).unwrap(), v6(options, None, &data));
        // A fragment that is the whole packet needs no other, and has nothing to do with those of its number (RFC 6946).
        take(&mut reassembly, &fragments[..1], 0);
        let (gathered, out) = take(&mut reassembly, &[v6(options, Some((0, 9)), &data)], 0);
        assert_eq!((gathered, joined(&out).unwrap()), (Gathered::Whole, v6(options, None, &data)));
        assert_eq!(reassembly.held().packets, 1);
    }
}

#[test]
fn what_contradicts_itself_fails_with_all_that_comes_later() {
    let data = data(64);
    let [a, b] = [0, 2].map(|at| v4(number::ESP, 7, at | MORE, &data[..16]));
    let overlapping = v4(number::ESP, 7, 1 | MORE, &data[..16]);
    let end = v4(number::ESP, 7, 4, &data[..8]);
    let early_end = v4(number::ESP, 7, 1, &data[..8]);
    for bad in [overlapping, early_end, v4(number::ESP, 7, 2 | MORE, &data[..8])] {
        let mut reassembly = Reassembly::default();
        take(&mut reassembly, &[a.clone(), b.clone(), bad, end.clone()], 0);
        assert_eq!(refused(&mut reassembly), [DropReason::ReassemblyFailed; 4]);
        assert_eq!(reassembly.held(), Count::default());
        // Another packet with the same number begins.
        let (gathered, _) = take(&mut reassembly, &[a.clone(), b.clone(), end.clone()], 1);
        assert_eq!(gathered, Gathered::Whole);
    }
    let mut reassembly = Reassembly::default();
    let (gathered, _) = take(&mut reassembly, &[a.clone(), a.clone(), b, end], 0);
    assert_eq!((gathered, refused(&mut reassembly)), (Gathered::Whole, vec![DropReason::ReassemblyFailed]));
}

#[test]
fn a_fragment_that_cannot_be_is_refused() {
    for (position, len) in [(MORE, 12), (MORE, 0), (0x1fff, 16)] {
        let packet = v4(number::ESP, 7, position, &vec![0; len]);
        let headers = IpHeaders::read_all(&packet).unwrap();
        assert_eq!(Fragment::of_esp(&packet, &headers, &[UDP_PORT]).unwrap_err(), DropReason::Malformed);
    }
}

#[test]
fn udp_waits_for_its_first_fragment_and_passes_if_that_is_not_esp() {
    let udp = |identification: u16, port: u16, spi: u32| {
        let mut data = data(64);
        data[2..4].copy_from_slice(&port.to_be_bytes());
        data[8..12].copy_from_slice(&spi.to_be_bytes());
        cut(number::UDP, identification, &data, &[2, 4])
    };
    let mut reassembly = Reassembly::default();
    let mut esp = udp(7, UDP_PORT, 0x1000);
    esp.rotate_left(1);
    assert_eq!(take(&mut reassembly, &esp, 0).0, Gathered::Whole);
    // IKE, which passes as such, and another port.
    for (all, gathered) in [
        (udp(7, UDP_PORT, 0), Gathered::PassesAsIke),
        (udp(8, 500, 0x1000), Gathered::PassesAsIke),
        (udp(9, 501, 0), Gathered::Passes),
    ] {
        let [first, second, third] = all.try_into().unwrap();
        assert_eq!(take(&mut reassembly, std::slice::from_ref(&second), 0), (Gathered::Taken, vec![]));
        let passed = (gathered, vec![second, first.clone()]);
        assert_eq!(take(&mut reassembly, &[first], 0), passed);
        assert_eq!(take(&mut reassembly, std::slice::from_ref(&third), 0), (gathered, vec![third]));
        assert_eq!(reassembly.held(), Count::default());
    }
    // Numbers come again.
    assert_eq!(take(&mut reassembly, &udp(7, UDP_PORT, 0x1000), 0).0, Gathered::Whole);
    assert!(refused(&mut reassembly).is_empty());
}

#[test]
fn fragments_wait_only_so_long_and_only_so_many() {
    let first = |number: u16| v4(number::ESP, number, MORE, &[0; 16]);
    let mut reassembly = Reassembly::default();
    take(&mut reassembly, &[first(1)], 5);
    take(&mut reassembly, &[first(2)], 6);
    reassembly.expire(PATIENCE_NS + 5);
    assert_eq!(refused(&mut reassembly), [DropReason::ReassemblyTimeout]);
    assert_eq!((reassembly.held().packets, reassembly.due_ns()), (1, Some(PATIENCE_NS + 6)));
    // The oldest goes for the newest.
    let many: Vec<_> = (100..100 + DATAGRAMS_MAX as u16).map(first).collect();
    take(&mut reassembly, &many, 7);
    assert_eq!(refused(&mut reassembly), [DropReason::ReassemblyFailed]);
    assert_eq!(reassembly.held().packets, DATAGRAMS_MAX as u64);
    // Many fragments of one packet.
    let mut reassembly = Reassembly::default();
    let many: Vec<_> =
        (0..FRAGMENTS_MAX as u16 + 1).map(|at| v4(number::ESP, 1, at | MORE, &[0; 8])).collect();
    take(&mut reassembly, &many, 0);
    assert_eq!(refused(&mut reassembly).len() as u64, FRAGMENTS_MAX + 1);
}

#[test]
fn a_mark_of_congestion_stays_and_one_on_what_cannot_be_marked_is_refused() {
    let fragments = cut(number::ESP, 7, &data(64), &[2, 4]);
    let marked = |at: usize, class: u8| {
        let mut fragments = fragments.clone();
        ip::set_traffic_class(&mut fragments[at], IpFamily::V4, class);
        joined(&fragments)
    };
    for at in 0..3 {
        assert_eq!(ip::traffic_class(&marked(at, 3).unwrap(), IpFamily::V4), 3);
    }
    let mut mixed = fragments.clone();
    ip::set_traffic_class(&mut mixed[0], IpFamily::V4, 3);
    ip::set_traffic_class(&mut mixed[2], IpFamily::V4, 0);
    assert_eq!(joined(&mixed), Err(DropReason::ReassemblyFailed));
}

#[test]
fn a_packet_longer_than_its_memory_is_refused() {
    let fragments = cut(number::ESP, 7, &data(4200), &[200, 400]);
    assert_eq!(joined(&fragments), Err(DropReason::TooLong));
}
