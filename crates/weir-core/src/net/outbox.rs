//! The frames a router makes itself: ARP and neighbour discovery messages and ICMP errors.
//!
//! The core has no packet memory to take frames from, so they are written here, and the caller copies each into a frame of its own when it
//! has one to spare. A full outbox refuses a frame and counts it: nothing waits for it, because a peer that still needs the message asks
//! again (RFC 1812 section 4.3.2.8 limits it anyway).
//!
//! Owner: the router's worker. First in, first out.

/// The longest frame: an Ethernet header and IPv6's minimum MTU, which no ICMPv6 error exceeds (RFC 4443 section
/// 2.4c).
pub const MADE_BYTES_MAX: usize = 14 + 1280;

/// A bounded queue of frames.
#[derive(Debug)]
pub struct Outbox {
    frames: Box<[Made]>,
    first: usize,
    len: usize,
    refused: u64,
}

#[derive(Clone, Debug)]
struct Made {
    port: u16,
    len_bytes: usize,
    bytes: [u8; MADE_BYTES_MAX],
}

impl Outbox {
    /// An outbox with room for `frames_max` frames.
    pub fn new(frames_max: usize) -> Outbox {
        let empty = Made { port: 0, len_bytes: 0, bytes: [0; MADE_BYTES_MAX] };
        Outbox { frames: vec![empty; frames_max].into(), first: 0, len: 0, refused: 0 }
    }

    /// Takes the oldest frame out, and the port it leaves by.
    pub fn pop(&mut self) -> Option<(u16, &[u8])> {
        if self.len == 0 {
            return None;
        }
        let made = &self.frames[self.first];
        self.first = (self.first + 1) % self.frames.len();
        self.len -= 1;
        Some((made.port, &made.bytes[..made.len_bytes]))
    }

    /// The number of frames that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no frame waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether there is no room.
    pub fn is_full(&self) -> bool {
        self.len == self.frames.len()
    }

    /// The number of frames that found no room.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// A frame of zeros to be written, which leaves by `port`; `None` when there is no room.
    ///
    /// # Panics
    /// If `len_bytes` is more than [`MADE_BYTES_MAX`].
    pub(super) fn push(&mut self, port: u16, len_bytes: usize) -> Option<&mut [u8]> {
        if self.is_full() {
            self.refused += 1;
            return None;
        }
        let at = (self.first + self.len) % self.frames.len();
        self.len += 1;
        let made = &mut self.frames[at];
        (made.port, made.len_bytes) = (port, len_bytes);
        let bytes = &mut made.bytes[..len_bytes];
        bytes.fill(0);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_and_bounded() {
        let mut outbox = Outbox::new(3);
        let mut expected = 0;
        for port in 0..10u16 {
            for copy in 0..2 {
                outbox.push(port, 60).expect("room")[0] = 2 * port as u8 + copy;
            }
            for _ in 0..2 {
                let (port, bytes) = outbox.pop().expect("a frame");
                assert_eq!((port, bytes[0], bytes.len()), (expected as u16 / 2, expected, 60));
                assert!(bytes[1..].iter().all(|&byte| byte == 0));
                expected += 1;
            }
        }
        assert!(outbox.pop().is_none());
        assert!((0..4).map(|_| outbox.push(0, 60).is_some()).eq([true, true, true, false]));
        assert_eq!((outbox.len(), outbox.refused()), (3, 1));
    }
}
