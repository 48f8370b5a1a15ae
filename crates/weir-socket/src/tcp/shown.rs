//! Segments of the peer's on their way to smoltcp, and what it is shown for those that it would take for something else.
//!
//! | segment | what smoltcp does with it | what it is shown |
//! |---|---|---|
//! | one that may be a guess | see `challenge.rs` | what that says |
//! | an acknowledgement alone, beyond the end of the window that was told last | takes nothing of it | the same, with the very next number |
//! | data with a FIN | ends the stream, though it cuts off what is beyond that end; takes no FIN behind old data | the data, then the FIN if all has come |
//! | an acknowledgement of some bytes under way that closes the window | never sends the others again | one with an open window, then the segment |
//!
//! Rule: an acknowledgement within a window that was told at any time is taken; of data, what is beyond the last end is cut off, and its
//! sender sends it again. A scaled window is rounded down, so its end moves back by up to a unit when bytes
//! come, and smoltcp knows the last end alone. A peer that has used the former window numbers its acknowledgements from there on.
//!
//! smoltcp probes a window that has closed, instead of waiting for the acknowledgement of the bytes under way, and takes them for sent when it opens.
//! With a window that is open first it goes on waiting; once that is over, it sends them again when the window opens.
//!
//! Owner: the connection. Source: RFC 7323 section 2.4 (a window that moves back), RFC 9293 sections 3.8.6 and 3.10.7.4. Limits: a FIN that is
//! shown by itself counts as one duplicate acknowledgement; in LAST-ACK smoltcp takes no acknowledgement of nothing new, and so no window
//! update: its probes find out.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;
use smoltcp::wire::{IpProtocol, IpRepr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};

use crate::tcp::challenge::Verdict;
use crate::tcp::connection::{Connection, Flow};
use crate::tcp::segment::{ACK, FIN, Head, RST, SYN, without_fin};

impl Connection {
    /// Takes note of a segment, and has `show` show smoltcp one packet after the other for it.
    pub(crate) fn admit(
        &mut self,
        flow: Flow,
        head: &Head,
        ip: &[u8],
        now: Instant,
        mut show: impl FnMut(&mut Connection, &[u8]),
    ) {
        match self.judge(head) {
            Verdict::Pass => {
                self.note_heard(head, now);
                self.pass(flow, head, ip, show);
            }
            Verdict::Challenge => {
                let question = bare(flow, &self.question());
                show(self, &question);
            }
            Verdict::Drop => {}
        }
    }

    fn pass(&mut self, flow: Flow, head: &Head, ip: &[u8], mut show: impl FnMut(&mut Connection, &[u8])) {
        let is_begun = !matches!(self.state(), State::Closed | State::Listen | State::SynSent);
        if !is_begun || !head.has(ACK) || head.has(SYN | RST) {
            return show(self, ip);
        }
        let next = self.next_number();
        let alone = Head { sequence: next, flags: ACK, data_bytes: 0, ..*head };
        let [_, sent_bytes] = self.queued_bytes();
        let end = head.sequence.wrapping_add(head.data_bytes);
        let beyond = end.wrapping_sub(next);
        // A FIN that was lost has a number too, and so has the byte of a probe.
        let may_be_next = beyond <= self.free_bytes() + 1;
        // Any other may be a guess, or of a former connection: smoltcp judges it by its own number.
        if may_be_next && head.window == 0 && self.sent.is_part(head.acknowledgement, sent_bytes as u32) {
            show(self, &bare(flow, &Head { window: 1, ..alone }));
        }
        match (head.data_bytes, head.has(FIN)) {
            (0, false) if may_be_next && beyond > 0 => {
                show(self, &bare(flow, &alone));
            }
            (1.., true) => {
                show(self, &without_fin(ip));
                if self.next_number() == end {
                    show(self, &bare(flow, &Head { sequence: end, flags: ACK | FIN, ..alone }));
                }
            }
            _ => show(self, ip),
        }
    }
}

/// A packet of the peer's that is an acknowledgement, or a FIN, and nothing more.
fn bare(flow: Flow, head: &Head) -> Vec<u8> {
    let (peer, local) = (flow.peer.ip().into(), flow.local.ip().into());
    let tcp = TcpRepr {
        src_port: flow.peer.port(),
        dst_port: flow.local.port(),
        control: if head.has(FIN) { TcpControl::Fin } else { TcpControl::None },
        seq_number: TcpSeqNumber(head.sequence.cast_signed()),
        ack_number: Some(TcpSeqNumber(head.acknowledgement.cast_signed())),
        window_len: head.window,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let ip = IpRepr::new(peer, local, IpProtocol::Tcp, tcp.buffer_len(), 64);
    let mut bytes = vec![0; ip.buffer_len()];
    // The device has smoltcp check no checksum.
    let checksums = ChecksumCapabilities::ignored();
    ip.emit(&mut bytes, &checksums);
    let mut packet = TcpPacket::new_unchecked(&mut bytes[ip.header_len()..]);
    tcp.emit(&mut packet, &peer, &local, &checksums);
    bytes
}
