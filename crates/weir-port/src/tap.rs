//! Copies of packets that go to the kernel's own stack and that a stack at the same address must hear of too: answers to questions for
//! link-layer addresses, and ICMP errors. A packet does not show for which of both it is, and XDP gives it to one.
//!
//! ```text
//! XDP: pass --> the kernel's own stack
//!                   +--> packet socket: ARP reply, neighbour advertisement, ICMP unreachable or too big, without a VLAN's tag
//! ```
//!
//! So the stack asks for its neighbours itself and learns from an answer to its own questions, as it would alone; and the kernel, which did
//! not ask, ignores the answer (`arp_accept`, `accept_untracked_na` are 0 unless somebody sets them) or has asked as well and learns it
//! too. An error about a packet of the kernel's is copied too, and dropped by the stack as `no-handler`.
//!
//! Owner: the worker of the port, which looks now and then and takes copies as from a receive queue. Limits: a socket's buffer of copies;
//! in a flood of ICMP errors further ones are lost to the stack, as it would lose them to any full queue of the kernel's (`ss -0` counts
//! them), and the stack asks again for an answer that is lost.
//!
//! Source: packet(7); kernel `Documentation/networking/filter.rst`; RFC 826; RFC 792, 4443, 4861 for the types.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::POLL_PACKETS_MAX;

use crate::error::{Doing, Result};
use crate::link::Link;
use crate::sys;

/// The shortest frame that the filter lets in, with an IPv4 header; fewer bytes are no frame.
const FRAME_BYTES_MIN: usize = 34;

/// A packet socket that receives the copies; see the head of the file.
pub struct PacketTap {
    socket: OwnedFd,
    /// True if a copy waits, as of the last look.
    is_readable: bool,
}

impl PacketTap {
    /// The copies of an interface of this thread's namespace, from now on.
    pub fn new(link: &Link) -> Result<PacketTap> {
        open(link.ifindex)
            .map(|socket| PacketTap { socket, is_readable: false })
            .doing(|| format!("opening a packet socket on {}", link.name))
    }

    /// The descriptor, readable while a copy waits.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Looks whether a copy waits.
    pub fn look(&mut self) {
        let mut fds = [sys::poll_in(self.fd())];
        // A failed look finds none, until the next one.
        self.is_readable |= sys::poll(&mut fds, Some(0)).is_ok_and(|ready| ready > 0);
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.is_readable
    }

    pub(crate) fn set_readable(&mut self, is_readable: bool) {
        self.is_readable = is_readable;
    }

    /// Takes the copies that wait, as many as a poll may bring; returns their number.
    pub(crate) fn take(&mut self, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        let before = received.len();
        while received.len() - before < POLL_PACKETS_MAX as usize {
            let Some(frame) = frames.pool.take() else { break };
            let frame_bytes = frames.pool.memory().frame_size_bytes().min(u16::MAX.into()) as u16;
            let mut packet = PathPacket::new(frame, 0, frame_bytes);
            let len = receive(&self.socket, packet.bytes_mut(frames.memory())).unwrap_or(0);
            if len < FRAME_BYTES_MIN {
                frames.pool.give(packet.frame);
                break;
            }
            packet.len_bytes = len.min(frame_bytes.into()) as u16;
            received.push(packet);
        }
        received.len() - before
    }
}

/// Receives the next frame, cut to the buffer; returns its length.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most the length of `buffer`.
    let length = unsafe {
        libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
    };
    sys::check(length as i32).map(|length| length as usize)
}

fn open(ifindex: u32) -> io::Result<OwnedFd> {
    const PACKET_IGNORE_OUTGOING: i32 = 23;
    // A socket of no protocol hears nothing until it is bound, when it has its filter.
    let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    let mut code = filter();
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // SAFETY: the kernel copies the instructions that the program points at, which are alive and as many as it says.
    unsafe { sys::setsockopt_with(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)? };
    sys::setsockopt(socket.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1i32)?;
    let mut address = <libc::sockaddr_ll as sys::Plain>::zeroed();
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = ifindex as i32;
    sys::bind(socket.as_fd(), &address)?;
    Ok(socket)
}

const KEEP: u8 = u8::MAX;
const LEAVE: u8 = u8::MAX - 1;

/// The filter. Each line is an operation, its operand, and the jumps if it holds and if not: a number of lines to skip, [`KEEP`] or
/// [`LEAVE`].
fn filter() -> Vec<libc::sock_filter> {
    const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const LOAD_BYTE_X: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_IND;
    const LOAD_IHL: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
    const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const HAS: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    /// `SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT`: the kernel takes the tag out of the frame first.
    const VLAN_TAG_PRESENT: u32 = (-0x1000 + 48) as u32;
    const REPLY: u32 = 2;
    let lines = [
        (LOAD_BYTE, VLAN_TAG_PRESENT, 0, 0),
        (IS, 1, LEAVE, 0),
        (LOAD_HALF, 12, 0, 0),
        (IS, 0x0806, 2, 0),
        (IS, 0x0800, 3, 0),
        (IS, 0x86dd, 9, LEAVE),
        // ARP.
        (LOAD_HALF, 20, 0, 0),
        (IS, REPLY, KEEP, LEAVE),
        // IPv4: ICMP, no later fragment, unreachable.
        (LOAD_BYTE, 23, 0, 0),
        (IS, 1, 0, LEAVE),
        (LOAD_HALF, 20, 0, 0),
        (HAS, 0x1fff, LEAVE, 0),
        (LOAD_IHL, 14, 0, 0),
        (LOAD_BYTE_X, 14, 0, 0),
        (IS, 3, KEEP, LEAVE),
        // IPv6: ICMPv6, unreachable, too big, or a neighbour advertisement.
        (LOAD_BYTE, 20, 0, 0),
        (IS, 58, 0, LEAVE),
        (LOAD_BYTE, 54, 0, 0),
        (IS, 1, KEEP, 0),
        (IS, 2, KEEP, 0),
        (IS, 136, KEEP, LEAVE),
    ];
    let end = lines.len();
    let mut code: Vec<libc::sock_filter> = Vec::with_capacity(end + 2);
    for (at, (operation, k, jt, jf)) in lines.into_iter().enumerate() {
        let skip = |to: u8| match to {
            KEEP => (end - at - 1) as u8,
            LEAVE => (end - at) as u8,
            lines => lines,
        };
        code.push(libc::sock_filter { code: operation as u16, jt: skip(jt), jf: skip(jf), k });
    }
    for bytes in [u32::MAX, 0] {
        let end = (libc::BPF_RET | libc::BPF_K) as u16;
        code.push(libc::sock_filter { code: end, jt: 0, jf: 0, k: bytes });
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict of the filter on a frame; a load beyond its end leaves the frame, as in the kernel.
    fn keeps(frame: &[u8], has_tag: bool) -> bool {
        let half = |at: usize| Some(u32::from(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?)));
        let (code, mut accumulator, mut index, mut at) = (filter(), 0u32, 0u32, 0);
        loop {
            let libc::sock_filter { code: operation, jt, jf, k } = code[at];
            at += 1;
            let loaded = match u32::from(operation) {
                0x30 if k > u32::MAX / 2 => Some(u32::from(has_tag)),
                0x30 => frame.get(k as usize).map(|&byte| u32::from(byte)),
                0x28 => half(k as usize),
                0x50 => frame.get((k + index) as usize).map(|&byte| u32::from(byte)),
                0xb1 => {
                    index = frame.get(k as usize).map_or(0, |byte| u32::from(byte & 0x0f) * 4);
                    continue;
                }
                0x15 | 0x45 => {
                    let holds = if operation == 0x15 { accumulator == k } else { accumulator & k != 0 };
                    at += usize::from(if holds { jt } else { jf });
                    continue;
                }
                0x06 => return k > 0,
                other => panic!("operation {other:#x}"),
            };
            let Some(loaded) = loaded else { return false };
            accumulator = loaded;
        }
    }

    fn frame(ethertype: u16, len: usize, bytes: &[(usize, u8)]) -> Vec<u8> {
        let mut frame = vec![0; 14 + len];
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        bytes.iter().for_each(|&(at, byte)| frame[14 + at] = byte);
        frame
    }

    #[test]
    fn answers_and_errors_alone_are_copied() {
        let arp = |operation| frame(0x0806, 28, &[(7, operation)]);
        let icmp = |kind, ihl: usize| frame(0x0800, 60, &[(0, 0x40 | ihl as u8), (9, 1), (4 * ihl, kind)]);
        let icmpv6 = |kind| frame(0x86dd, 64, &[(0, 0x60), (6, 58), (40, kind)]);
        let later = {
            let mut icmp = icmp(3, 5);
            icmp[14 + 7] = 1;
            icmp
        };
        let udp = frame(0x0800, 60, &[(0, 0x45), (9, 17), (20, 3)]);
        let expected = [
            (arp(2), true),
            (arp(1), false),
            (icmp(3, 5), true),
            (icmp(3, 7), true),
            (icmp(8, 5), false),
            (icmp(0, 5), false),
            (later, false),
            (udp, false),
            (icmpv6(1), true),
            (icmpv6(2), true),
            (icmpv6(136), true),
            (icmpv6(135), false),
            (icmpv6(128), false),
            (frame(0x86dd, 64, &[(6, 17), (40, 1)]), false),
            (frame(0x88b5, 64, &[(6, 58), (40, 1)]), false),
        ];
        for (frame, is_kept) in expected {
            assert_eq!(keeps(&frame, false), is_kept, "{frame:x?}");
            assert!(!keeps(&frame, true), "of a VLAN: {frame:x?}");
            for len in 0..34 {
                assert!(!keeps(&frame[..len], false) || len > 21, "cut to {len}");
            }
        }
    }
}
