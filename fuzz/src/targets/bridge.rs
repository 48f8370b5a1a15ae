//! A bridge, beside a model of one: the same decision for every frame of any content.

use std::collections::HashMap;
use std::iter::repeat_n;

use weir_core::drops::DropReason;
use weir_core::net::bridge::{Bridge, Egress, PortSet};

use crate::draw::Draw;

const AGEING_NS: u64 = 256_000;
const PORTS: u16 = 4;
/// The stations that the bridge remembers, fewer than are drawn.
const STATIONS_MAX: usize = 64;

/// Bursts of frames from several ports.
pub fn bridging(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let mut bridge = Bridge::new(STATIONS_MAX, AGEING_NS, draw.u64());
    (0..PORTS).for_each(|port| bridge.add_port(port));
    let mut heard = Heard::new();
    let mut now_ns = 0;
    while !draw.is_empty() {
        let ingress = draw.u16() % PORTS;
        let frames: Vec<Vec<u8>> = (0..1 + draw.below(6)).map(|_| frame(&mut draw)).collect();
        let mut runs = Vec::new();
        bridge.forward(ingress, &frames, now_ns, &mut runs);
        let found: Vec<Egress> = runs.iter().flat_map(|&(egress, count)| repeat_n(egress, count)).collect();
        assert_eq!(found.len(), frames.len());
        for (frame, found) in frames.iter().zip(found) {
            assert_eq!(found, decide(&mut heard, ingress, frame, now_ns), "{frame:02x?}");
        }
        assert_eq!(bridge.flood_ports(ingress), PortSet(0b1111 & !(1 << ingress)));
        // Times are kept to a 256th, so whole ones are exact: a station heard again is always written again.
        now_ns += [0, 1, 10, AGEING_NS / 1000][draw.below(4)] * 1000;
    }
}

fn frame(draw: &mut Draw) -> Vec<u8> {
    let address = |draw: &mut Draw| match draw.below(8) {
        0 => [0xff; 6],
        1 => [0x01, 0x80, 0xc2, 0, 0, draw.u8() & 0x1f],
        2 => [0; 6],
        3 => [1, 0, 0, 0, 0, draw.u8()],
        _ => [2, 0, 0, 0, 0, draw.u8() % 12],
    };
    let mut frame = [address(draw), address(draw)].concat();
    match draw.below(8) {
        0 => frame.extend([0x81, 0, draw.u8(), draw.u8() % 3, 8, 0]),
        1 => frame.extend([0x88, 0xa8, 0, draw.u8() % 3, 0x81, 0, 0, 9]),
        _ => frame.extend([8, 0]),
    }
    if draw.rarely(16) {
        frame.truncate(draw.below(19));
    }
    frame
}

/// Ports and times of stations, each an address in a VLAN.
type Heard = HashMap<([u8; 6], u16), (u16, u64)>;

/// The decision by 802.1D and 802.1Q, with a map that is never full.
fn decide(heard: &mut Heard, ingress: u16, frame: &[u8], now_ns: u64) -> Egress {
    let (Some(to), Some(from), true) = (frame.first_chunk::<6>(), frame.get(6..12), frame.len() >= 14) else {
        return Egress::Drop(DropReason::Malformed);
    };
    let from: [u8; 6] = from.try_into().expect("six bytes");
    if from[0] & 1 == 1 || from == [0; 6] {
        return Egress::Drop(DropReason::Malformed);
    }
    let vlan = match frame[12..] {
        [0x81, 0x00, first, last, ..] | [0x88, 0xa8, first, last, ..] => {
            u16::from_be_bytes([first & 0xf, last])
        }
        _ => 0,
    };
    heard.insert((from, vlan), (ingress, now_ns));
    if to[0] & 1 == 1 {
        let reserved = to[..5] == [0x01, 0x80, 0xc2, 0, 0] && (1..16).contains(&to[5]);
        return if reserved { Egress::Drop(DropReason::LinkLocal) } else { Egress::Flood };
    }
    match heard.get(&(*to, vlan)) {
        Some(&(port, heard_ns)) if now_ns - heard_ns < AGEING_NS => {
            if port == ingress {
                Egress::Drop(DropReason::OwnSegment)
            } else {
                Egress::Port(port)
            }
        }
        _ => Egress::Flood,
    }
}
