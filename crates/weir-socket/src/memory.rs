//! The packet memory of a stack: how many frames it has.
//!
//! ```text
//! a worker    its egress queues, and what is under way in a pass
//! a host      for each socket      two buffers, and what waits before them and is polled
//!             for each connection  its chunks, both ways
//!             for neighbours       what waits for addresses that are asked for
//! beside      what the interface's own rings hold
//! ```
//!
//! Rule: there is a frame for whatever may have one, so a socket that does not read takes no frame from another. Settings for which there cannot be
//! as many are refused before anything is changed.
//!
//! Owner: the builder of a stack, whose settings these are.

use std::io;

use weir_core::net::router::WAITING_SHARE;
use weir_path::departures::UNDER_WAY_MAX;
use weir_path::port::POLL_PACKETS_MAX;
use weir_ring::memory::FRAMES_MAX;

use crate::builder::{EGRESS_PACKETS_MAX, StackBuilder, invalid};
use crate::tcp::control::CHUNKS;
use crate::tcp::port::ANSWERS_MAX;

impl StackBuilder {
    /// The number of frames of packet memory that so many workers with so many hosts each need, with those that the interface has beside.
    ///
    /// # Errors
    /// `InvalidInput` if a memory cannot have as many.
    pub(crate) fn frames(&self, workers: usize, hosts: u32, beside: u32) -> io::Result<u32> {
        let of_socket = 2 * u64::from(self.buffer_frames_max) + 3 * u64::from(POLL_PACKETS_MAX);
        let of_tcp = u32::from(self.connections) * 2 * CHUNKS + ANSWERS_MAX as u32 + 3 * POLL_PACKETS_MAX;
        let of_host = u64::from(self.sockets) * of_socket + u64::from(of_tcp) + u64::from(self.held_max());
        let of_worker = 2 * EGRESS_PACKETS_MAX + UNDER_WAY_MAX + 512;
        let frames = workers as u64 * (of_worker + u64::from(hosts) * of_host) + u64::from(beside);
        u32::try_from(frames).ok().filter(|&frames| frames <= FRAMES_MAX).ok_or_else(|| {
            let StackBuilder { sockets, buffer_frames_max, connections, .. } = self;
            invalid(format_args!(
                "{workers} workers with {sockets} sockets, buffers of {buffer_frames_max} datagrams and {connections} TCP connections need {frames} \
                 frames of packet memory, and there are {FRAMES_MAX} at most: give fewer of them, or smaller buffers by `buffer_frames_max`"
            ))
        })
    }

    /// The number of packets of a host that may wait for neighbours whose addresses are asked for: the shares of the sockets and of the interface, and
    /// all that TCP may have on its way, with a poll more, as a burst waits as a whole or not at all.
    pub(crate) fn held_max(&self) -> u32 {
        let of_others = (u32::from(self.sockets) + 1) * WAITING_SHARE as u32;
        let of_tcp = u32::from(self.connections) * 2 * CHUNKS + ANSWERS_MAX as u32 + POLL_PACKETS_MAX;
        of_others + of_tcp
    }
}

#[cfg(test)]
mod tests {
    use weir_path::traffic::port::MemoryPort;

    use super::*;
    use crate::stack::Stack;

    #[test]
    fn more_frames_than_a_memory_has_are_refused_with_what_to_do() {
        let with = || StackBuilder::default().address("192.0.2.1/24");
        for builder in [
            // 2 * 2^31 is 0 in 32 bits.
            with().buffer_frames_max(1 << 31),
            with().buffer_frames_max((1 << 31) + 1).sockets(1),
            with().buffer_frames_max(1 << 27).sockets(16),
            with().buffer_frames_max(u32::MAX).sockets(u16::MAX).connections(u16::MAX),
            with().buffer_frames_max(1 << 23).sockets(1),
        ] {
            let in_memory = builder.open_in_memory(vec![MemoryPort::default()]).expect_err("too many");
            let in_pair = Stack::pair_of(builder.clone(), StackBuilder::default().address("192.0.2.2/24"));
            for refused in [in_memory, in_pair.expect_err("too many")] {
                assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
                let text = refused.to_string();
                assert!(
                    text.contains("16777216 at most: give fewer") && text.contains("buffers of "),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn the_frames_of_the_interface_count() {
        let builder = StackBuilder::default();
        let without = builder.frames(1, 1, 0).expect("it is possible");
        assert_eq!(builder.frames(1, 1, 100).ok(), Some(without + 100));
        assert!(builder.frames(1, 1, FRAMES_MAX - without).is_ok());
        assert!(builder.frames(1, 1, FRAMES_MAX - without + 1).is_err());
        assert!(builder.frames(1, 1, u32::MAX).is_err());
    }
}
