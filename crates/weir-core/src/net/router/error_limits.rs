//! The limits on a router's ICMP errors: what one interface brings uses up no error of another's.
//!
//! | errors about | limit |
//! |---|---|
//! | packets that are too long | one for each interface that packets come in by |
//! | other packets | another for each such interface |
//! | packets that waited for a neighbour | one for all interfaces |
//!
//! Too long is apart because a sender that is not told of the MTU sends into a black hole (RFC 2923 section 2.1); any other error only
//! says sooner what the sender finds out by itself. The interface is the one a packet came in by, as its source may be forged.
//!
//! Owner: the router. Source: RFC 1812 section 4.3.2.8, RFC 4443 section 2.4f (limits).
//!
//! Limits: stations of one interface share its errors. A packet that waited does not know any more by which interface it came; the room to
//! wait is one for all interfaces too.

use crate::net::icmp::Fault;
use crate::net::limit::Limiter;

/// The limits on the errors of a router; see the head of the file.
#[derive(Debug)]
pub(super) struct ErrorLimits {
    interfaces: Box<[Limits]>,
    waited: Limiter,
}

/// The limits on the errors about packets that came in by one interface.
#[derive(Clone, Debug)]
struct Limits {
    too_long: Limiter,
    others: Limiter,
}

impl ErrorLimits {
    /// The limits of a router of so many interfaces, of which each is `limit`.
    pub(super) fn new(interfaces: usize, limit: Limiter) -> ErrorLimits {
        let limits = Limits { too_long: limit, others: limit };
        ErrorLimits { interfaces: vec![limits; interfaces].into(), waited: limit }
    }

    /// Returns whether an error may be sent now; if so, it is counted. It is about a packet that came in by `ingress`, or waited if that is
    /// none.
    pub(super) fn admit(&mut self, ingress: Option<u16>, fault: Fault, now_ns: u64) -> bool {
        let limit = match (ingress, fault) {
            (None, _) => &mut self.waited,
            (Some(ingress), Fault::TooLong(_)) => &mut self.interfaces[usize::from(ingress)].too_long,
            (Some(ingress), _) => &mut self.interfaces[usize::from(ingress)].others,
        };
        limit.admit(now_ns)
    }
}
