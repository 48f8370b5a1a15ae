//! memcached's header of a datagram, and how a reply is cut into datagrams.
//!
//! ```text
//! request id (16) | number of this datagram (16) | how many there are (16) | 0 (16)        all in network order
//! ```
//!
//! Source: memcached `doc/protocol.txt`, "UDP protocol". Limits: a request is one datagram, as memcached's must be.

use crate::reply::TOO_LONG;

/// Before each datagram's text.
pub const HEADER_BYTES: usize = 8;
/// The longest datagram, as memcached's.
pub const DATAGRAM_BYTES_MAX: usize = 1400;

/// The answer to a request of several datagrams.
pub const SEVERAL: &[u8] = b"SERVER_ERROR multi-packet request not supported\r\n";

/// The request id and the text of a datagram; without text, if it is one of several. `None` if it is too short to be answered.
pub fn read(datagram: &[u8]) -> Option<(u16, Option<&[u8]>)> {
    let (header, text) = datagram.split_at_checked(HEADER_BYTES)?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    Some((word(0), (word(2) == 0 && word(4) <= 1).then_some(text)))
}

/// The datagrams of a reply, of which each has as many bytes as its way takes at the most: the header of each, and its text. None if the reply
/// is empty; one that says so if it is longer than as many datagrams as the header can number.
pub fn cut(id: u16, reply: &[u8], way_bytes: usize) -> impl Iterator<Item = ([u8; HEADER_BYTES], &[u8])> {
    let text_bytes = way_bytes.min(DATAGRAM_BYTES_MAX).saturating_sub(HEADER_BYTES).max(1);
    let text = if reply.len() > usize::from(u16::MAX) * text_bytes { TOO_LONG } else { reply };
    let chunks = text.chunks(text_bytes);
    let count = chunks.len() as u16;
    chunks.enumerate().map(move |(number, text)| {
        let mut header = [0; HEADER_BYTES];
        for (at, word) in [id, number as u16, count].into_iter().enumerate() {
            header[2 * at..][..2].copy_from_slice(&word.to_be_bytes());
        }
        (header, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_whole_again_when_its_datagrams_are_joined() {
        // The longest payloads of Ethernet and of the narrowest way of IPv6.
        for (way_bytes, text_bytes) in [(1472, 1392), (1232, 1224)] {
            whole_again(way_bytes, text_bytes);
        }
    }

    fn whole_again(way_bytes: usize, text_bytes: usize) {
        for len in [0, 1, text_bytes, text_bytes + 1, 10 * text_bytes] {
            let reply: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let datagrams: Vec<_> = cut(0x1234, &reply, way_bytes).collect();
            assert_eq!(datagrams.len(), len.div_ceil(text_bytes));
            for (number, (header, text)) in datagrams.iter().enumerate() {
                assert_eq!(*header, [0x12, 0x34, 0, number as u8, 0, datagrams.len() as u8, 0, 0]);
                assert!(HEADER_BYTES + text.len() <= way_bytes);
            }
            assert_eq!(
                datagrams.iter().flat_map(|(_, text)| text.iter().copied()).collect::<Vec<_>>(),
                reply
            );
        }
    }

    #[test]
    fn a_client_whose_reply_is_too_long_for_datagrams_is_told() {
        let mut reply = vec![b'v'; 65_535 * (DATAGRAM_BYTES_MAX - HEADER_BYTES)];
        assert_eq!(cut(7, &reply, 1472).count(), 65_535);
        reply.push(b'v');
        let datagrams: Vec<_> = cut(7, &reply, 1472).collect();
        assert_eq!(datagrams, [([0, 7, 0, 0, 0, 1, 0, 0], TOO_LONG)]);
    }

    #[test]
    fn a_request_is_one_datagram() {
        assert_eq!(read(b"\x01\x02\0\0\0\x01\0\0get a\r\n"), Some((0x102, Some(b"get a\r\n".as_slice()))));
        assert_eq!(read(b"\x01\x02\0\0\0\x02\0\0get a\r\n"), Some((0x102, None)));
        assert_eq!(read(b"\x01\x02\0\x01\0\x02\0\0get a\r\n"), Some((0x102, None)));
        assert_eq!(read(b"\x01\x02\0\0\0\x01\0"), None);
    }
}
