//! The state of one end of a pair that a wire depends on, at one moment.
//!
//! A wire needs more of its interfaces than descriptors hold: a queue that keeps packets that the ring does not take, checksums filled in,
//! tags in the frame, its program before others, an MTU and queues that it knows. Anybody may change those, so they are looked at again and
//! again.
//!
//! Rule: no state is kept here. An interface that goes during the look counts as absent.
//!
//! Source: rtnetlink(7), `SIOCETHTOOL`, `BPF_PROG_QUERY` of bpf(2).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bpf::doorbell::DoorbellProgram;
use crate::error::{Doing, PortError, Result};
use crate::features::{self, Offloads};
use crate::link::Link;
use crate::netns::NetNs;
use crate::{hooks, qdisc};

/// A pair, as of the last look at it.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The end that is a wire's.
    pub port: Link,
    /// The namespace of the other end.
    pub sender_netns: Arc<NetNs>,
    /// The other end, by which programs send and receive.
    pub sender: Link,
    /// The features that were on at the sender's end before the wire came.
    pub before: Offloads,
    /// The program at the sender's end, which rings when packets come.
    pub doorbell: Arc<DoorbellProgram>,
    /// True while the queues of the port wait to be owned again: packets pass to the kernel's own stack.
    pub is_disowned: Arc<AtomicBool>,
}

impl Pair {
    /// Returns whether its queues wait to be owned again.
    pub fn waits_to_be_owned(&self) -> bool {
        self.is_disowned.load(Ordering::Relaxed)
    }

    /// Returns whether its queues wait to be owned again, and packets can come, as the port is now.
    pub fn can_be_owned(&self, port: &Link) -> bool {
        port.up && port.has_carrier && self.waits_to_be_owned()
    }
}

/// One end of a pair as it is now.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The interface.
    pub link: Link,
    /// The queue that it sends by.
    pub queue: qdisc::Root,
    /// The features that leave something out of the frames that it sends.
    pub offloads: Offloads,
    /// The tcx programs that it runs on packets it sends, by number and in that order.
    pub egress_programs: Vec<u32>,
}

impl View {
    /// The state of an interface of this thread's namespace, whose root qdiscs were read before; `None` if there is none of that number.
    pub fn of(ifindex: u32, roots: &qdisc::Roots) -> Result<Option<View>> {
        let look = || -> Result<View> {
            let link = Link::by_index(ifindex)?;
            let offloads = features::offloads(&link)?;
            let egress_programs =
                hooks::on_egress(ifindex).doing(|| format!("reading the programs of {}", link.name))?;
            // One that came since has to be looked at by itself.
            let queue = roots.of(ifindex).cloned().map_or_else(|| qdisc::root(ifindex), Ok)?;
            Ok(View { queue, link, offloads, egress_programs })
        };
        match look() {
            Ok(view) => Ok(Some(view)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns whether an error says that the interface is not there, or no longer.
pub fn is_gone(error: &PortError) -> bool {
    let code = match error {
        PortError::Kernel { source, .. } => source.raw_os_error(),
        _ => None,
    };
    error.is_no_interface() || code == Some(libc::ENODEV)
}
