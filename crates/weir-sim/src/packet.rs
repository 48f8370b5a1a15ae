//! A modelled datagram or segment: its length on the wire, its charge to its socket, its sender and the time of its send.
//!
//! Two lengths differ and both matter. A qdisc counts `len_bytes`, the frame with its Ethernet header. A socket is
//! charged `truesize_bytes`, the memory of the kernel's buffer:
//!
//! ```text
//! data     = round up to a slab of (16 link + payload + 8 UDP + 20 IP + 15 slack, to 64) + 320 shared info
//! truesize = data + 256 buffer head
//! ```
//!
//! For iperf's 1470 bytes: length 1512, truesize 2048 + 256 = 2304.
//!
//! Source: `__ip_append_data` in net/ipv4/ip_output.c, `__alloc_skb` and `SKB_TRUESIZE` of Linux 5.18, x86-64.

use weir_core::packet::{Meta, Packet};

/// One packet of the simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimPacket {
    len_bytes: u32,
    payload_bytes: u32,
    /// The bytes that its socket is charged.
    pub truesize_bytes: u32,
    /// Index of the process that sent it.
    pub sender: u32,
    /// Its number in its flow, counted at the send: 0, 1, 2, ...
    pub sequence: u64,
    /// The number of the segment of its byte stream that it carries; 0 in a datagram.
    pub segment: u64,
    /// The time at which `send` took it.
    pub sent_ns: u64,
    meta: Meta,
}

/// The bytes of the Ethernet, IPv4 and UDP headers.
const UDP_HEADERS_BYTES: u32 = 14 + 20 + 8;
/// The bytes of the Ethernet, IPv4 and TCP headers, timestamps included.
const TCP_HEADERS_BYTES: u32 = 14 + 20 + 32;
/// The payload of a full-size TCP segment.
const SEGMENT_BYTES: u32 = 1448;
/// The memory of such a segment: a page fragment's share and the head, as for a full-size datagram.
const SEGMENT_TRUESIZE_BYTES: u32 = 2304;

impl SimPacket {
    /// A UDP datagram of `payload_bytes` sent now.
    pub fn datagram(sender: u32, sequence: u64, payload_bytes: u32, now_ns: u64) -> SimPacket {
        SimPacket {
            len_bytes: UDP_HEADERS_BYTES + payload_bytes,
            payload_bytes,
            truesize_bytes: truesize_bytes(payload_bytes),
            sender,
            sequence,
            segment: 0,
            sent_ns: now_ns,
            meta: Meta { flow_hash: sender, ..Meta::default() },
        }
    }

    /// A full-size TCP segment sent now.
    pub fn segment(sender: u32, sequence: u64, segment: u64, now_ns: u64) -> SimPacket {
        SimPacket {
            len_bytes: SEGMENT_BYTES + TCP_HEADERS_BYTES,
            payload_bytes: SEGMENT_BYTES,
            truesize_bytes: SEGMENT_TRUESIZE_BYTES,
            sender,
            sequence,
            segment,
            sent_ns: now_ns,
            meta: Meta { flow_hash: sender, ..Meta::default() },
        }
    }

    /// The bytes it carries for its sender.
    pub fn payload_bytes(&self) -> u32 {
        self.payload_bytes
    }
}

impl Packet for SimPacket {
    fn len_bytes(&self) -> u32 {
        self.len_bytes
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
}

/// The bytes that the kernel charges a socket for a datagram of `payload_bytes`.
fn truesize_bytes(payload_bytes: u32) -> u32 {
    const LINK_BYTES: u32 = 16;
    const SLACK_BYTES: u32 = 15;
    const SHARED_INFO_BYTES: u32 = 320;
    const HEAD_BYTES: u32 = 256;
    let data_bytes = (LINK_BYTES + 20 + 8 + payload_bytes + SLACK_BYTES).next_multiple_of(64);
    (data_bytes + SHARED_INFO_BYTES).next_power_of_two() + HEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_size_datagram_costs_what_the_kernel_charges() {
        let full = SimPacket::datagram(0, 0, 1470, 0);
        assert_eq!((full.len_bytes(), full.truesize_bytes), (1512, 2304));
        // The small datagrams of the kernel facts: 277 of them fill the default buffer of 212,992 bytes.
        let small = SimPacket::datagram(0, 0, 46, 0);
        assert_eq!((small.len_bytes(), small.truesize_bytes), (88, 768));
        assert_eq!(212_992 / small.truesize_bytes, 277);
    }
}
