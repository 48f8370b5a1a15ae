//! Fragments that may be of ESP, any that may come by a wire.
//!
//! A fragment leaves by one way: in a whole packet, as it is, or refused. A whole packet has headers that read, and is no fragment.

use weir_core::packet::{Meta, Packet};
use weir_ipsec::esp::UDP_PORT;
use weir_ipsec::ip::IpHeaders;
use weir_ipsec::reassembly::{FRAGMENTS_MAX, Fragment, Gathered, PATIENCE_NS, Reassembly, join};
use weir_ipsec::room::Room;

use crate::draw::Draw;

const ESP: u8 = 50;
const UDP: u8 = 17;
/// The most bytes that a whole packet may have here.
const ROOM_BYTES: usize = 2048;

struct Piece(Vec<u8>, Meta);

impl Packet for Piece {
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

/// Fragments of few packets, in any order, of any size, at any time.
pub fn esp_fragments(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let mut reassembly = Reassembly::default();
    let (mut taken, mut left, mut now_ns) = (0, 0, 0);
    while !draw.is_empty() {
        if draw.rarely(16) {
            now_ns += PATIENCE_NS / 4;
        }
        let packet = if draw.flag() { v4(&mut draw) } else { v6(&mut draw) };
        let Ok(headers) = IpHeaders::read_all(&packet) else { continue };
        if !headers.is_fragment() {
            continue;
        }
        let fragment = match headers.next() {
            UDP if draw.flag() => Fragment::of_own_udp(&packet, &headers, draw.flag()),
            ESP | UDP => Fragment::of_esp(&packet, &headers, &[UDP_PORT]),
            _ => Fragment::of_any(&packet, &headers),
        };
        let Ok(fragment) = fragment else { continue };
        taken += 1;
        let mut out = Vec::new();
        let gathered = reassembly.take(fragment, Piece(packet, Meta::default()), now_ns, &mut out);
        match gathered {
            Gathered::Taken => assert!(out.is_empty()),
            Gathered::Whole => whole(&out),
            Gathered::Passes | Gathered::PassesAsIke => assert!(!out.is_empty()),
        }
        left += out.len() as u64;
        left += std::iter::from_fn(|| reassembly.take_refused()).count() as u64;
        let held = reassembly.held().packets;
        assert_eq!(taken, left + held);
        assert!(held <= FRAGMENTS_MAX);
    }
    reassembly.expire(now_ns + PATIENCE_NS);
    left += std::iter::from_fn(|| reassembly.take_refused()).count() as u64;
    assert_eq!((taken, reassembly.held().packets, reassembly.due_ns()), (left, 0, None));
}

fn whole(fragments: &[Piece]) {
    let mut memory = fragments[0].0.clone();
    memory.resize(ROOM_BYTES.max(memory.len()), 0);
    let mut room = Room::new(&mut memory, 0, fragments[0].0.len()).expect("it lies within");
    if join(&mut room, fragments[1..].iter().map(|piece| piece.0.as_slice())).is_ok() {
        let headers = IpHeaders::read_all(room.packet()).expect("it was put together");
        assert!(!headers.is_fragment() && headers.packet_len() == room.len());
    }
}

fn v4(draw: &mut Draw) -> Vec<u8> {
    let data = data(draw);
    let position = u16::from(draw.u8() % 8) | if draw.flag() { 0x2000 } else { 0 };
    let [high, low] = (20 + data.len() as u16).to_be_bytes();
    let mut packet = vec![0x45, draw.u8() & 3, high, low, 0, draw.u8() % 4];
    packet.extend(position.to_be_bytes());
    packet.extend([64, draw.pick(&[ESP, UDP]), 0, 0, 192, 0, 2, 2, 192, 0, 2, 1]);
    packet.extend(data);
    packet
}

fn v6(draw: &mut Draw) -> Vec<u8> {
    let data = data(draw);
    let next = draw.pick(&[ESP, UDP]);
    let options = draw.rarely(4);
    let [high, low] = (8 * (1 + u16::from(options)) + data.len() as u16).to_be_bytes();
    let mut packet = vec![0x60, draw.u8() & 0x30, 0, 0, high, low, if options { 43 } else { 44 }, 64];
    packet.extend([0x20; 32]);
    if options {
        packet.extend([44, 0, 0, 0, 0, 0, 0, 0]);
    }
    let position = u16::from(draw.u8() % 8) << 3 | u16::from(draw.flag());
    packet.extend([next, 0]);
    packet.extend(position.to_be_bytes());
    packet.extend([0, 0, 0, draw.u8() % 4]);
    packet.extend(data);
    packet
}

/// Data of a fragment, mostly of whole units.
fn data(draw: &mut Draw) -> Vec<u8> {
    let len = 8 * draw.below(5) + if draw.rarely(8) { draw.below(8) } else { 0 };
    let mut data = vec![0; len];
    if len >= 12 {
        data[2..4].copy_from_slice(&draw.pick(&[UDP_PORT, 500]).to_be_bytes());
        data[8] = draw.u8() & 1;
    }
    data
}
