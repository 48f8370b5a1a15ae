//! Starts senders again when the process that held them has gone.
//!
//! A veth stops a sending queue when its ring is full, and the next poll of the receiving NAPI instance starts it. An owned instance is
//! polled by its owner alone and goes with the owner's XDP program. If the queue is stopped then, nobody is left to start it: every packet
//! for it is dropped, or waits in a qdisc, for good. Neither another qdisc nor `ip link set down` and up at either end starts it; a poll of
//! a new instance does:
//!
//! ```text
//! owner's program gone -> a program that passes everything -> instances that nobody owns -> each polled once -> program gone
//! ```
//!
//! Two ways of polling once, of which one must do ([`Means::start`]):
//!
//! - io_uring, told the instances' ids. It may be forbidden (`kernel.io_uring_disabled`, a container's filter).
//! - A frame that an XDP program redirects to the *sending* end. It takes no transmit queue, so it does not matter that those are
//!   stopped; the veth puts it into the ring of receive queue *core modulo queues* and has softirq poll that. So every queue is reached
//!   where there are as many cores as queues.
//!
//! An instance that nobody owns is run by softirq whenever its ring is not empty, and starts the queue each time, so it can go again under
//! load. It can go for good only once nothing stops queues any more: a sender without a qdisc is not stopped, its packets are dropped. So
//! the program stays until the qdiscs are gone ([`Means::end`]). Where the user has GRO on, instances outlive every program, and the
//! settings of an owner are put back too.
//!
//! Owner: the process that puts things back (`crate::undo`), in the interface's namespace. Source: kernel `drivers/net/veth.c:veth_xmit`,
//! `veth_poll`, `veth_napi_del_range`, `veth_xdp_xmit`, `veth_select_rxq`, Linux 6.18; `net/bpf/test_run.c`.
//!
//! Limits: an interface that is down has no instances to poll; its senders stay stopped until somebody releases or owns it again. Packets
//! in the ring when a program goes are freed by the kernel uncounted, 256 packets a queue at most.

use std::io;

use crate::bpf::map::Map;
use crate::bpf::program::{self, Program};
use crate::bpf::redirect;
use crate::error::{Doing, PortError, Result};
use crate::link::Link;
use crate::napi::{self, Deferral, Once};
use crate::netns::NetNs;
use crate::sys;

/// The tries, 10 ms apart, for a dying process to drop its program: its sockets go first, and the kernel waits for all cores at each.
const TRIES: u32 = 1000;
const BETWEEN_NS: u64 = 10_000_000;

/// The programs and rings by which senders are started, made before they are needed, when there may be none to be had.
pub struct Means {
    pass: io::Result<Program>,
    once: Result<Once>,
    /// Programs that pass everything, kept until the end, each with the namespace and the number of its interface.
    passing: Vec<((u64, u32), program::BpfLink)>,
}

impl Default for Means {
    fn default() -> Means {
        Means::new()
    }
}

impl Means {
    /// Makes the means, as far as they are to be had here.
    pub fn new() -> Means {
        let pass = Map::xskmap(1).and_then(|none| redirect::load(&none));
        Means { pass, once: Once::new(), passing: Vec::new() }
    }

    /// Fails with what to change unless the queues of an interface with so many of them can be released.
    pub fn check(&self, link: &Link) -> Result<()> {
        let cores = sys::allowed_cores().len();
        if self.once.is_ok() || link.rx_queues as usize <= cores {
            return Ok(());
        }
        Err(PortError::Unsuitable {
            name: link.name.clone(),
            why: format!(
                "has {} queues, which could not be let go again: that needs io_uring (`sysctl -w kernel.io_uring_disabled=0`, and \
                 no filter against it), or no more queues than the {cores} cores of this process (`ethtool -L`)",
                link.rx_queues
            ),
        })
    }

    /// Starts the queues that send into an interface of this thread's namespace, once its owner's program has gone; `before` is how its
    /// instances were deferred before they were owned. Content with the interface being gone.
    ///
    /// # Errors
    /// If another program stays there, or something else is missing; the interface is then as before, and it may be tried again.
    pub fn release(&mut self, ifindex: u32, before: Deferral) -> Result<()> {
        let doing = || format!("letting those go on that send into interface number {ifindex}");
        let interface = (NetNs::current()?.inode(), ifindex);
        // Only a new program makes new instances, and one of ours would be in its way.
        self.passing.retain(|(of, _)| *of != interface);
        let program = self.pass.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()));
        let program = program.doing(doing)?;
        let is_gone = || Link::by_index(ifindex).is_err_and(|error| error.is_no_interface());
        let pause = || sys::poll(&mut [], Some(BETWEEN_NS)).map(drop);
        let attached = when_free(|| program.attach(ifindex), is_gone, pause).doing(doing)?;
        let Some(attached) = attached else { return Ok(()) };
        self.let_go(ifindex, before)?;
        self.passing.push((interface, attached));
        Ok(())
    }

    /// Gives the new instances of an interface the settings of before, and polls each once.
    fn let_go(&self, ifindex: u32, before: Deferral) -> Result<()> {
        let ids = napi::instances(ifindex)?;
        ids.iter().try_for_each(|&id| napi::let_go(id, before))?;
        match &self.once {
            Ok(once) => once.poll(&ids),
            Err(_) => {
                let (netns, sender) = Link::by_index(ifindex)?.peer()?;
                netns.run(|| kick(sender.ifindex))
            }
        }
    }

    /// Polls these instances once; interface `sender` of `netns` sends into them.
    pub fn start(&self, ids: &[u32], netns: &NetNs, sender: u32) -> Result<()> {
        match &self.once {
            Ok(once) => once.poll(ids),
            Err(_) => netns.run(|| kick(sender)),
        }
    }

    /// Drops the programs, when no qdisc stops senders any more.
    pub fn end(&mut self) {
        self.passing.clear();
    }
}

/// Has softirq poll the other end of an interface of this thread's namespace, on as many of its queues as there are cores.
fn kick(ifindex: u32) -> Result<()> {
    /// The frame, to an address and of a type that no host has (IEEE 802, local experiments): a receiver drops it.
    const FRAME: [u8; 60] = {
        let mut frame = [0; 60];
        (frame[0], frame[6], frame[12], frame[13]) = (0x02, 0x02, 0x88, 0xb5);
        frame
    };
    let kick = || -> io::Result<()> {
        let program = redirect::to_interface(ifindex)?;
        sys::on_each_core(|| program.run_live(&FRAME))
    };
    kick().doing(|| {
        format!("sending a frame by interface number {ifindex} past its queues (Linux 5.18 or newer)")
    })
}

/// Attaches a program as soon as none is in its way, pausing between two tries; `None` if the interface is gone.
fn when_free<T>(
    mut attach: impl FnMut() -> io::Result<T>,
    is_gone: impl Fn() -> bool,
    mut pause: impl FnMut() -> io::Result<()>,
) -> io::Result<Option<T>> {
    for _ in 0..TRIES {
        match attach() {
            Ok(attached) => return Ok(Some(attached)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => pause()?,
            // The kernel's error for an absent interface is EINVAL.
            Err(_) if is_gone() => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    let why = "an XDP program is still there: end the process that has it (`bpftool net` shows the program)";
    Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link;
    use crate::veth::{self, VethEnd};

    #[test]
    fn a_program_that_stays_is_an_error_and_not_a_release() {
        let busy = || Err::<(), _>(io::Error::from_raw_os_error(libc::EBUSY));
        let mut pauses = 0;
        let pause = || {
            pauses += 1;
            Ok(())
        };
        let waited = when_free(busy, || false, pause);
        assert_eq!(waited.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(pauses, TRIES);
        let mut tries = 0;
        let soon = || {
            tries += 1;
            if tries < 3 { busy() } else { Ok(()) }
        };
        assert_eq!(when_free(soon, || false, || Ok(())).unwrap(), Some(()));
        let absent = || Err::<(), _>(io::Error::from_raw_os_error(libc::EINVAL));
        assert_eq!(when_free(absent, || true, || Ok(())).unwrap(), None);
        assert!(when_free(absent, || false, || Ok(())).is_err());
    }

    #[test]
    fn a_release_that_fails_or_is_repeated_is_not_in_its_own_way() {
        if !sys::is_root() {
            return;
        }
        // The namespace is this thread's alone, and goes with it.
        let released = std::thread::spawn(|| {
            let netns = NetNs::unshare().unwrap();
            let [near, far] = [c"near", c"far"].map(|name| VethEnd { name, address: None });
            let (near, far) = veth::create(&near, &far, &netns, 1).unwrap();
            [&near, &far].into_iter().for_each(|end| link::set_up(end.ifindex, true).unwrap());
            let mut means = Means::new();
            let program = || Link::by_name("near").unwrap().xdp_program;
            let before = Deferral { hard_irqs: u32::MAX, ..Deferral::default() };
            let refused = means.release(near.ifindex, before);
            assert!(refused.is_err(), "the kernel takes no such deferral");
            assert_eq!(program(), None);
            means.release(near.ifindex, Deferral::default()).unwrap();
            let first = program();
            means.release(near.ifindex, Deferral::default()).unwrap();
            assert!(first.is_some() && program().is_some());
            means.end();
            // Another test's thread may be about to run a program, and has the descriptors of this process until then.
            let is_gone = |_| {
                sys::poll(&mut [], Some(1_000_000)).unwrap();
                program().is_none()
            };
            assert!((0..10_000).any(is_gone));
        });
        released.join().unwrap();
    }
}
