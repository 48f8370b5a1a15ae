//! The packets of the benchmark: owned frames, and UDP to fill them with.

use smoltcp::wire::{IpProtocol, Ipv4Packet, UdpPacket};
use weir_core::packet::{Meta, Packet};

/// The bytes of a frame, a line longer than 2 KiB, so that the headers of a burst do not share a few sets of the cache.
const FRAME_BYTES: usize = 2048 + 64;

#[repr(align(64))]
struct Frame {
    bytes: [u8; FRAME_BYTES],
    meta: Meta,
}

/// A frame and the length of its packet.
pub struct Pkt {
    frame: Box<Frame>,
    len: usize,
}

impl Pkt {
    pub fn pool(frames: usize) -> Vec<Pkt> {
        let frame = || Frame { bytes: [0; FRAME_BYTES], meta: Meta::default() };
        (0..frames).map(|_| Pkt { frame: Box::new(frame()), len: 0 }).collect()
    }

    pub fn copy_from(&mut self, bytes: &[u8]) {
        self.frame.bytes[..bytes.len()].copy_from_slice(bytes);
        self.len = bytes.len();
    }
}

impl Packet for Pkt {
    fn len_bytes(&self) -> u32 {
        self.len as u32
    }
    fn meta(&self) -> &Meta {
        &self.frame.meta
    }
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.frame.meta
    }
}

impl AsRef<[u8]> for Pkt {
    fn as_ref(&self) -> &[u8] {
        &self.frame.bytes[..self.len]
    }
}

impl AsMut<[u8]> for Pkt {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.frame.bytes[..self.len]
    }
}

pub const PAYLOAD: usize = 14 + 20 + 8;

/// A UDP packet of `len` bytes.
pub fn udp(to: [u8; 6], from: [u8; 6], destination: [u8; 4], port: u16, len: usize) -> Vec<u8> {
    let mut bytes = [&to[..], &from, &[0x08, 0x00]].concat();
    bytes.resize(len, 0);
    let mut ip = Ipv4Packet::new_unchecked(&mut bytes[14..]);
    ip.set_version(4);
    ip.set_header_len(20);
    ip.set_total_len((len - 14) as u16);
    ip.set_hop_limit(64);
    ip.set_next_header(IpProtocol::Udp);
    ip.set_src_addr([192, 168, 0, 2].into());
    ip.set_dst_addr(destination.into());
    ip.fill_checksum();
    let mut udp = UdpPacket::new_unchecked(ip.payload_mut());
    udp.set_src_port(1234);
    udp.set_dst_port(port);
    udp.set_len((len - 34) as u16);
    bytes
}
