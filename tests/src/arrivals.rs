//! The times when packets came out of a queue, as a packet socket at the other end of the pair sees them, and the check that they keep a
//! limit.
//!
//! ```text
//! excess = most over all windows of (bytes in it - rate x its time) <= burst + one packet for each flow
//! ```
//!
//! Computed as a bucket that leaks at the rate: `level = max(0, level - rate x time) + length`; the highest level is the excess of
//! the worst window. The kernel stamps a packet where the pair hands it over, right after the queue has let it go, so nothing
//! that happens later to it moves the stamp.
//!
//! Limits: a processor that the host takes away between the two moves the stamp by as long. Where the other end has NAPI (XDP, GRO) it is
//! stamped when that polls. Lengths are those of frames; a packet whose
//! segmentation is left to the device counts once with its headers, so less than the queue charges.
//!
//! Source: packet(7), `SO_TIMESTAMPNS` of socket(7).

use std::io;
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, ensure};
use weir_lab::bed::End;
use weir_lab::stolen::Processors;

use crate::raw::RawSocket;

const SECOND_NS: u64 = 1_000_000_000;
/// The pause between two notes of the time that the host has taken, in nanoseconds.
const NOTE_EVERY_NS: u64 = 20_000_000;

/// One packet: the time when it came, and the length of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The time, in nanoseconds.
    pub at_ns: u64,
    /// The length, in bytes.
    pub bytes: u64,
}

/// The packets that came by an interface.
#[derive(Debug, Default)]
pub struct Watched {
    /// The packets, in the order in which they left the queue.
    pub arrivals: Vec<Arrival>,
    /// The ticks of the processors, and the time in nanoseconds, each [`NOTE_EVERY_NS`] or later.
    notes: Vec<(u64, Processors)>,
}

/// A second of a watch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Second {
    /// The share of the rate that arrived.
    pub share: f64,
    /// The time that the host took in it, in seconds of all processors.
    pub stolen_s: f64,
}

impl Second {
    /// Returns whether the share that arrived is within `allowed` of the rate. A queue sends nothing while the host has the processor that
    /// serves it, so packets for the time that the host took may be missing.
    pub fn is_within(&self, allowed: f64) -> bool {
        (1.0 - allowed - self.stolen_s..=1.0 + allowed).contains(&self.share)
    }
}

/// A watch of the packets that come in by an interface.
#[derive(Debug)]
pub struct Watch {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Watched>>>,
}

impl Watch {
    /// Starts to look.
    pub fn start(end: End) -> Result<Watch> {
        let socket = RawSocket::open(end)?;
        socket.stamp().context("time stamps on a packet socket")?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || look(&socket, &over));
        Ok(Watch { is_over, thread: Some(thread) })
    }

    /// The packets that came. Each processor has a list of packets to be received, and one may be behind the other; so they are sorted.
    pub fn finish(mut self) -> Result<Watched> {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("a thread that looks")?;
        let mut watched = thread.join().map_err(|_| anyhow!("the thread that looks panicked"))??;
        watched.arrivals.sort_by_key(|arrival| arrival.at_ns);
        Ok(watched)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// The window that has most more than the rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// The number of bytes beyond the limit.
    pub excess_bytes: f64,
    /// The length of the window, in nanoseconds.
    pub time_ns: u64,
    /// The longest time that nothing came, before or in it, in nanoseconds.
    pub pause_ns: u64,
}

/// The worst window in which the host took nothing: while it has the processor between the queue and the stamp, packets are stamped late.
pub fn worst_window(watched: &Watched, rate_bits_per_s: f64) -> Window {
    let rate_bytes_per_ns = rate_bits_per_s / 8e9;
    let pairs = watched.notes.iter().zip(watched.notes.iter().skip(1));
    let mut taken =
        pairs.filter(|((_, before), (_, after))| after.stolen_seconds_since(before) > 0.0).peekable();
    let (mut worst, mut level) = (Window::default(), 0.0f64);
    let mut last_ns = watched.arrivals.first().map_or(0, |first| first.at_ns);
    let (mut start_ns, mut pause_ns) = (last_ns, 0);
    for arrival in &watched.arrivals {
        while taken.next_if(|(_, (until_ns, _))| *until_ns < arrival.at_ns).is_some() {}
        let is_taken = taken.peek().is_some_and(|((from_ns, _), _)| *from_ns <= arrival.at_ns);
        let passed_ns = arrival.at_ns.saturating_sub(last_ns);
        last_ns = arrival.at_ns;
        level -= passed_ns as f64 * rate_bytes_per_ns;
        if level <= 0.0 || is_taken {
            (level, start_ns, pause_ns) = (0.0, arrival.at_ns, passed_ns);
        }
        if is_taken {
            continue;
        }
        pause_ns = pause_ns.max(passed_ns);
        level += arrival.bytes as f64;
        if level > worst.excess_bytes {
            worst = Window { excess_bytes: level, time_ns: arrival.at_ns.saturating_sub(start_ns), pause_ns };
        }
    }
    worst
}

/// Each whole second, without the first fifth of one, in which programs start.
pub fn seconds(watched: &Watched, rate_bits_per_s: f64) -> Vec<Second> {
    let arrivals = &watched.arrivals;
    let Some((first, last)) = arrivals.first().zip(arrivals.last()) else { return Vec::new() };
    let start_ns = first.at_ns + SECOND_NS / 5;
    let seconds = last.at_ns.saturating_sub(start_ns) / SECOND_NS;
    let mut bytes = vec![0; seconds as usize];
    for arrival in arrivals.iter().filter(|arrival| arrival.at_ns >= start_ns) {
        if let Some(bytes) = bytes.get_mut(((arrival.at_ns - start_ns) / SECOND_NS) as usize) {
            *bytes += arrival.bytes;
        }
    }
    let second = |(start_ns, bytes)| Second {
        share: bytes as f64 * 8.0 / rate_bits_per_s,
        stolen_s: stolen_s(&watched.notes, start_ns, start_ns + SECOND_NS),
    };
    (start_ns..).step_by(SECOND_NS as usize).zip(bytes).map(second).collect()
}

/// The time that the host took from the last note before `start_ns` to the first behind `end_ns`, in seconds of all processors.
fn stolen_s(notes: &[(u64, Processors)], start_ns: u64, end_ns: u64) -> f64 {
    let before = notes.iter().rev().find(|(at_ns, _)| *at_ns <= start_ns).or(notes.first());
    let after = notes.iter().find(|(at_ns, _)| *at_ns >= end_ns).or(notes.last());
    before.zip(after).map_or(0.0, |((_, before), (_, after))| after.stolen_seconds_since(before))
}

fn look(socket: &RawSocket, is_over: &AtomicBool) -> Result<Watched> {
    let mut watched = Watched::default();
    while !is_over.load(Ordering::Relaxed) {
        while let Some(arrival) = next(socket)? {
            watched.arrivals.push(arrival);
            if watched.notes.last().is_none_or(|(noted_ns, _)| arrival.at_ns >= noted_ns + NOTE_EVERY_NS) {
                watched.notes.push((arrival.at_ns, Processors::now()?));
            }
        }
        let mut poll = libc::pollfd { fd: socket.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, alive for the call.
        let ready = unsafe { libc::poll(&mut poll, 1, 20) };
        ensure!(ready >= 0, "poll: {}", io::Error::last_os_error());
    }
    Ok(watched)
}

/// The next packet that is there already, with no byte of it.
fn next(socket: &RawSocket) -> Result<Option<Arrival>> {
    let mut control = [0u64; 16];
    // SAFETY: all-zero is a valid msghdr, which asks for no bytes; the control buffer outlives the call, with its true length.
    let (length, stamp) = unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of::<[u64; 16]>();
        let length =
            libc::recvmsg(socket.fd().as_raw_fd(), &mut message, libc::MSG_TRUNC | libc::MSG_DONTWAIT);
        (length, if length >= 0 { stamp_ns(&message) } else { None })
    };
    if length < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            _ => Err(error).context("recvmsg"),
        };
    }
    let at_ns = stamp.context("a packet without a time stamp")?;
    Ok(Some(Arrival { at_ns, bytes: length as u64 }))
}

/// SAFETY: `message` must have been filled by recvmsg, with its control buffer still alive.
unsafe fn stamp_ns(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: by the contract above the CMSG macros walk a live buffer within the length the kernel set; the payload of this type is a
    // timespec, read without assuming its alignment.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(message);
        while !next.is_null() {
            if ((*next).cmsg_level, (*next).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
                let time: libc::timespec = libc::CMSG_DATA(next).cast::<libc::timespec>().read_unaligned();
                return Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64);
            }
            next = libc::CMSG_NXTHDR(message, next);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at_us: u64, bytes: u64) -> Arrival {
        Arrival { at_ns: at_us * 1000, bytes }
    }

    #[test]
    fn the_worst_window_is_found() {
        // 8 Mbit/s: a byte each microsecond.
        let worst = |arrivals: &[Arrival]| {
            worst_window(&Watched { arrivals: arrivals.to_vec(), notes: Vec::new() }, 8e6)
        };
        assert_eq!(worst(&[at(0, 100), at(100, 100), at(200, 100)]).excess_bytes, 100.0);
        let window = worst(&[at(0, 100), at(1000, 100), at(1010, 100), at(1020, 100)]);
        assert_eq!(window, Window { excess_bytes: 280.0, time_ns: 20_000, pause_ns: 1_000_000 });
        assert_eq!(worst(&[]), Window::default());
    }

    #[test]
    fn windows_in_which_the_host_took_something_say_nothing() {
        let arrivals: Vec<_> = (0..100).map(|time| at(time * 10, if time < 50 { 30 } else { 20 })).collect();
        let note = |at_us: u64, stolen| (at_us * 1000, Processors::of(0, stolen));
        let excess = |notes| worst_window(&Watched { arrivals: arrivals.clone(), notes }, 8e6).excess_bytes;
        assert_eq!(excess(vec![note(0, 5), note(500, 5), note(1000, 5)]), 1510.0);
        assert_eq!(excess(vec![note(0, 5), note(500, 6), note(1000, 6)]), 500.0);
        assert_eq!(excess(vec![note(0, 5), note(500, 5), note(1000, 6)]), 1010.0);
        assert_eq!(excess(vec![note(0, 5), note(500, 6), note(1000, 7)]), 0.0);
    }

    #[test]
    fn whole_seconds_alone_are_judged() {
        let arrivals = (0..2500).map(|ms| at(ms * 1000, 1000)).collect();
        let seconds = seconds(&Watched { arrivals, notes: Vec::new() }, 8e6);
        assert_eq!(seconds.len(), 2);
        assert!(seconds.iter().all(|second| second.is_within(0.001)), "{seconds:?}");
    }

    #[test]
    fn what_the_host_took_of_a_second_may_be_missing_in_it() {
        let second = |share, stolen_s| Second { share, stolen_s };
        assert!(second(0.991, 0.0).is_within(0.01) && second(1.009, 0.5).is_within(0.01));
        assert!(!second(0.98, 0.0).is_within(0.01) && !second(1.02, 0.5).is_within(0.01));
        assert!(second(0.98, 0.01).is_within(0.01) && !second(0.96, 0.02).is_within(0.01));
        let notes: Vec<_> = (0..10).map(|note| (note * 100, Processors::of(0, note))).collect();
        let tick_s = Processors::of(0, 1).stolen_seconds_since(&Processors::of(0, 0));
        for (start_ns, end_ns, ticks) in [(150, 350, 3.0), (200, 300, 1.0), (0, 5000, 9.0)] {
            assert!((stolen_s(&notes, start_ns, end_ns) - ticks * tick_s).abs() < 1e-9);
        }
        assert_eq!(stolen_s(&[], 0, 1), 0.0);
    }
}
