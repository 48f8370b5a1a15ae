//! A mark of congestion: two bits, a checksum that stays right, and nothing else; only where the sender understands.

use etherparse::{Ipv4Header, Ipv6HeaderSlice};
use weir_core::shaper::ecn::{is_capable, mark_ce};

use crate::draw::Draw;
use crate::frames::{self, Ends};

/// Marks a frame.
pub fn marking(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    if draw.rarely(3) {
        mark(draw.rest());
        return;
    }
    let frame = frames::ip(&mut draw, Ends { is_tagged: true, ..Ends::default() });
    let marked = mark(&frame.bytes);
    let understood = frame.said.ecn != 0 && frame.said.tags <= 2;
    assert_eq!(marked.is_some(), understood, "{frame:02x?}");
    let Some(marked) = marked else { return };
    let ip = &marked[frame.ip_at..];
    if frame.said.source.is_ipv4() {
        let (header, _) = Ipv4Header::from_slice(ip).expect("it was valid");
        assert_eq!((header.ecn.value(), header.dscp.value()), (3, frame.said.dscp));
        assert_eq!(header.calc_header_checksum(), header.header_checksum, "{frame:02x?}");
    } else {
        let header = Ipv6HeaderSlice::from_slice(ip).expect("it was valid");
        assert_eq!(header.traffic_class(), frame.said.dscp << 2 | 3);
    }
}

/// The marked frame, if it could be marked; otherwise the frame is unchanged.
fn mark(frame: &[u8]) -> Option<Vec<u8>> {
    let mut marked = frame.to_vec();
    let done = mark_ce(&mut marked);
    assert_eq!(done, is_capable(frame), "{frame:02x?}");
    assert_eq!(marked.len(), frame.len());
    let mut again = marked.clone();
    assert_eq!((mark_ce(&mut again), &again), (done, &marked), "a second mark changes nothing");
    if !done {
        assert_eq!(marked, frame);
    }
    done.then_some(marked)
}
