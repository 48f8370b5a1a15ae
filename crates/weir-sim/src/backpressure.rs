//! The RFC's state machine for sockets, version 1, as its patches 1/4 and 2/4 have it.
//!
//! ```text
//! UNTHROTTLED --(a) a packet of the socket is refused--> OVERLIMIT, at the tail of the qdisc's list
//! OVERLIMIT   --(b) a dequeue runs out of tokens-------> THROTTLED, the whole list at once
//! any listed  --(c) the watchdog's softirq-------------> UNTHROTTLED, off the list, write_space() for each
//! ```
//!
//! Its losses have two causes: (a) needs a loss, and (c) wakes every waiter for one packet's room. Two details decide how many: a failed
//! send also runs the qdisc, so (b) follows (a) within the same send; and (c) goes through `sk_write_space`, so a socket with more than
//! half its buffer charged is *not* woken by it.
//!
//! Owner: the qdisc's root lock; here, the sending machine, which wakes those that [`List::unthrottle`] returns.
//! Source: "[RFC,v1,net-next,1/4] net: Introduce Qdisc backpressure infrastructure" and 2/4 (TBF), May 2022.

use crate::socket::{Backpressure, Socket};

/// A qdisc's `backpressure_list`: indices of sockets, in the order they were refused.
#[derive(Debug, Default)]
pub struct List {
    listed: Vec<usize>,
}

impl List {
    /// (a) Notes that a packet of socket `index` was refused.
    pub fn overlimit(&mut self, index: usize, sockets: &mut [Socket]) {
        let socket = &mut sockets[index];
        if socket.backpressure == Backpressure::Unthrottled {
            socket.backpressure = Backpressure::Overlimit;
            self.listed.push(index);
        }
    }

    /// (b) Notes that a dequeue ran out of tokens.
    pub fn throttle(&mut self, sockets: &mut [Socket]) {
        for &index in &self.listed {
            sockets[index].backpressure = Backpressure::Throttled;
        }
    }

    /// (c) Runs with the watchdog's softirq; the caller calls `write_space` for each socket returned, in that order.
    pub fn unthrottle(&mut self, sockets: &mut [Socket]) -> Vec<usize> {
        for &index in &self.listed {
            sockets[index].backpressure = Backpressure::Unthrottled;
        }
        std::mem::take(&mut self.listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::SNDBUF_BYTES_DEFAULT;

    #[test]
    fn the_three_transitions_and_no_other() {
        use Backpressure::{Overlimit, Throttled, Unthrottled};
        let mut sockets = vec![Socket::new(SNDBUF_BYTES_DEFAULT); 3];
        let states = |sockets: &[Socket]| [0, 1, 2].map(|index: usize| sockets[index].backpressure);
        let mut list = List::default();

        list.throttle(&mut sockets);
        assert_eq!(states(&sockets), [Unthrottled; 3], "only listed sockets are throttled");
        list.overlimit(2, &mut sockets);
        list.overlimit(0, &mut sockets);
        list.overlimit(2, &mut sockets);
        assert_eq!(states(&sockets), [Overlimit, Unthrottled, Overlimit]);
        list.throttle(&mut sockets);
        assert_eq!(states(&sockets), [Throttled, Unthrottled, Throttled]);
        list.overlimit(0, &mut sockets);
        assert_eq!(sockets[0].backpressure, Throttled, "a throttled socket stays throttled");
        assert_eq!(list.unthrottle(&mut sockets), [2, 0], "each once, in the order they were refused");
        assert_eq!(states(&sockets), [Unthrottled; 3]);
        assert_eq!(list.unthrottle(&mut sockets), Vec::<usize>::new());
    }
}
