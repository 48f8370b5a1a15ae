//! The end of a limit in place: opened in steps, removed when it is empty and quiet, and everything put back.
//!
//! Rule: if the limit were opened at once, packets that wait would pour into the lists of the next interface, which drop. So the rate
//! doubles until nothing waits. While the kernel swaps the root of an interface, packets are lost; so the queue goes in a moment in which
//! no packet is sent. A busy machine holds a sender up for tens of milliseconds, which looks the same; so the moment must have lasted
//! longer than that, by looks that were not held up themselves, and packets that are lost all the same are counted. If there is no such moment, the open queue stays: it limits
//! nothing. One who asks it to end meanwhile has the open queue left to the caller.

use std::thread::sleep;
use std::time::Duration;

use weir_core::limit::{HtbTree, opening};

use super::find::Found;
use super::htb::{self, QueueTraffic};
use super::memory::Memory;
use super::record::{LimitStage, Record};
use super::{NetnsInterface, arrivals, behind, clsact, find, note, order, tree, tx_dropped, unsuitable};
use crate::error::{Doing, Result, unless_short};
use crate::lock::Lock;

/// The longest time of a step.
const STEP_NS: u64 = 20_000_000;
/// The time in which no packet must have been sent: longer than a scheduler lets a sender wait that has something to send.
const QUIET_NS: u64 = 100_000_000;
/// The most of that time that one look proves: what held it up for longer may have held the senders up too.
const LOOK_NS_MAX: u64 = 10_000_000;
/// The longest wait for such a time.
const PATIENCE_NS: u64 = 3_000_000_000;

/// The outcome of removing a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    /// There was no limit.
    None,
    /// The limit is gone.
    Removed {
        /// Packets that were lost: that waited, or came while the kernel swapped queues.
        lost: u64,
        /// True if something stays at the other end of the pair, which cannot be seen from here.
        leaves_far_end: bool,
    },
    /// The limit is open and limits nothing, and could not be removed without loss.
    Open,
    /// It was asked to end: the limit is open, and to be set again.
    Interrupted,
    /// The interface vanished meanwhile, and the limit with it.
    Gone,
}

/// Removes the limit of the packets that an interface sends; `now` without regard for packets that wait. It ends early where it
/// `is_interrupted` while it waits for a moment without packets.
pub fn off(
    place: &NetnsInterface,
    now: bool,
    clock_ns: fn() -> u64,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<Off> {
    let far_end = place.far_end().ok().flatten();
    // The kernel's errors for an absent interface are several.
    take_off(place, now, clock_ns, is_interrupted).or_else(|error| match place.is_gone() {
        true => put_back_left(place, far_end).map(|()| Off::Gone),
        false => Err(error),
    })
}

/// Puts back what was changed for a limit whose queue somebody took away; false if there is none such.
pub fn mend(place: &NetnsInterface) -> Result<bool> {
    Ok(find::at(place)?.is_none() && forget(&Lock::take()?, place, false)? != Off::None)
}

fn take_off(
    place: &NetnsInterface,
    now: bool,
    clock_ns: fn() -> u64,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<Off> {
    let Some(Found { memories, record, is_strange }) = find::at(place)? else {
        return forget(&Lock::take()?, place, now);
    };
    if is_strange && !now {
        return Err(unsuitable(place, find::STRANGE));
    }
    // Without its filter the limit is known from what it left beside it.
    let noted = if record.is_some() { None } else { clsact::memory_at(note::SPOT, place)? };
    let noted = noted.and_then(|memory| memory.record());
    let far_end = far_end_of(place, record.as_ref().or(noted.as_ref()), now)?;
    // Another limit that goes, or comes, at the same time looks at this one's record.
    let lock = match &record {
        Some(record) if !now => open_and_empty(place, &memories, record, clock_ns, is_interrupted)?,
        _ => Ok(Lock::take()?),
    };
    let lock = match lock {
        Ok(lock) => lock,
        Err(stays) => return Ok(stays),
    };
    let waiting = traffic(place)?.waiting;
    let dropped_before = tx_dropped(place)?;
    let noqueue = record.as_ref().or(noted.as_ref()).map_or(0, |record| record.noqueue_before);
    remove_queue(place, noqueue)?;
    let lost = waiting + tx_dropped(place)?.saturating_sub(dropped_before);
    match &record {
        Some(record) => {
            put_back(&lock, place, far_end.as_ref(), record)?;
            Ok(Off::Removed { lost, leaves_far_end: record.changes_far_end() && far_end.is_none() })
        }
        None if is_strange => {
            forget_strange(&lock, place, far_end.as_ref())?;
            // Whatever that version changed there.
            let leaves_far_end = far_end.is_none() && place.link.kind == "veth";
            Ok(Off::Removed { lost, leaves_far_end })
        }
        // The limit is half made, or without its filter: the other end remembers what was changed beside it.
        None => {
            let left = forget(&lock, place, now)?;
            Ok(Off::Removed {
                lost,
                leaves_far_end: matches!(left, Off::Removed { leaves_far_end: true, .. }),
            })
        }
    }
}

/// Takes the queue of a limit off, with all packets that wait in it, and puts back the `noqueue` of this handle that was there before, if it
/// is not 0.
pub(super) fn remove_queue(place: &NetnsInterface, noqueue: u32) -> Result<()> {
    place.netns.run(|| htb::remove(place.link.ifindex, noqueue))
}

/// Opens the limit and waits for a moment in which no packet waits and none is sent. Returns the lock, taken in that moment; or why
/// the open queue stays.
fn open_and_empty(
    place: &NetnsInterface,
    memories: &[Memory],
    record: &Record,
    clock_ns: fn() -> u64,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<std::result::Result<Lock, Off>> {
    if traffic(place)?.waiting > 0 {
        order::widen(place, memories, record, tree::lacks_nothing(place, record))?;
    }
    let write =
        |record: &Record| memories[0].write(record).doing(|| "writing that the limit is being opened".into());
    write(&Record { stage: LimitStage::Opening, ..record.clone() })?;
    let plan = record.plan().map_err(|why| unsuitable(place, &why))?;
    let open = |plan: &HtbTree| place.netns.run(|| tree::change_those_there(place.link.ifindex, plan));
    for rate in opening(plan.wanted().rate) {
        if traffic(place)?.waiting == 0 {
            break;
        }
        open(&plan.opened(rate))?;
        if is_interrupted() {
            return Ok(Err(Off::Interrupted));
        }
        let end_ns = clock_ns() + STEP_NS;
        while clock_ns() < end_ns && traffic(place)?.waiting > 0 {
            sleep(Duration::from_millis(1));
        }
    }
    open(&tree::open_plan(&plan))?;
    let end_ns = clock_ns() + PATIENCE_NS;
    let mut quiet = Quiet { packets: traffic(place)?.packets, looked_ns: clock_ns(), quiet_ns: 0 };
    while quiet.may_come(clock_ns(), end_ns) {
        if is_interrupted() {
            return Ok(Err(Off::Interrupted));
        }
        sleep(Duration::from_micros(500));
        if quiet.note(&traffic(place)?, clock_ns()) {
            let lock = Lock::take()?;
            // Another command may have had the lock for long.
            if quiet.note(&traffic(place)?, clock_ns()) {
                return Ok(Ok(lock));
            }
        }
    }
    Ok(Err(Off::Open))
}

/// The time for which a queue has sent nothing, by looks at it.
struct Quiet {
    /// The packets that it had sent at the last look.
    packets: u64,
    looked_ns: u64,
    quiet_ns: u64,
}

impl Quiet {
    /// Returns whether it is worth to look again: until the end, and where looks take long until the quiet that has begun is proven.
    fn may_come(&self, now_ns: u64, end_ns: u64) -> bool {
        now_ns < end_ns || self.quiet_ns > 0
    }

    /// Notes a look. Returns whether it has been quiet for long enough.
    fn note(&mut self, now: &QueueTraffic, now_ns: u64) -> bool {
        let proven_ns = (now_ns - self.looked_ns).min(LOOK_NS_MAX);
        let is_quiet = now.waiting == 0 && now.packets == self.packets;
        self.quiet_ns = if is_quiet { self.quiet_ns + proven_ns } else { 0 };
        (self.packets, self.looked_ns) = (now.packets, now_ns);
        self.quiet_ns >= QUIET_NS
    }
}

fn traffic(place: &NetnsInterface) -> Result<QueueTraffic> {
    Ok(super::traffic(place)?.unwrap_or_default())
}

/// The other end of a pair; `None` of one that cannot be seen from here, which is an error if something was changed there for this limit,
/// unless it is to go `now`.
fn far_end_of(place: &NetnsInterface, record: Option<&Record>, now: bool) -> Result<Option<NetnsInterface>> {
    match place.far_end() {
        Err(error) if !now && record.is_some_and(Record::changes_far_end) => {
            let why = format!(
                "has its other end, where receive steering is to be put back, out of sight, so nothing was removed ({error}): remove \
                 its limit in the host's PID namespace, or here with `weir limit DEV --off --now`, which loses what waits and leaves \
                 the steering"
            );
            Err(unsuitable(place, &why))
        }
        far_end => unless_short(far_end),
    }
}

/// Puts back what is left of a limit that somebody took away.
fn forget(lock: &Lock, place: &NetnsInterface, now: bool) -> Result<Off> {
    let noted = clsact::memory_at(note::SPOT, place)?;
    let record = noted.as_ref().and_then(Memory::record);
    // Nothing can be put back at the other end if that cannot be seen.
    let far_end = far_end_of(place, record.as_ref(), now)?;
    let seen = far_end.as_ref().map_or(Ok(None), |far_end| clsact::memory_at(arrivals::SPOT, far_end))?;
    let (sees_arrivals, keeps_note) = (seen.is_some(), noted.is_some());
    let Some(memory) = seen.or(noted) else { return Ok(Off::None) };
    let mut leaves_far_end = false;
    match memory.record() {
        // The memory was found at these places, whatever the record says.
        Some(record) => {
            leaves_far_end = record.changes_far_end() && far_end.is_none();
            put_back(lock, place, far_end.as_ref(), &Record { sees_arrivals, keeps_note, ..record })?;
        }
        None => {
            let far_end = far_end.filter(|_| sees_arrivals);
            far_end.map_or(Ok(()), |far_end| clsact::detach(arrivals::SPOT, &far_end, false))?;
            clsact::detach(note::SPOT, place, false)?;
        }
    }
    Ok(Off::Removed { lost: 0, leaves_far_end })
}

/// Takes off what a limit of another version of weir left beside its queue, whose record says nothing here: its programs, and all steering
/// that is as a limit sets it.
fn forget_strange(lock: &Lock, place: &NetnsInterface, far_end: Option<&NetnsInterface>) -> Result<()> {
    let behind: Vec<_> = behind::find(place, &[])?.pairs.iter().map(|pair| pair.ifindex).collect();
    behind::put_back(lock, place, &behind, &[])?;
    if let Some(far_end) = far_end {
        if !behind::is_needed_by_others(place)? {
            far_end.steering(&[])?.switch_off()?;
        }
        clsact::detach(arrivals::SPOT, far_end, false)?;
    }
    clsact::detach(note::SPOT, place, false)
}

/// Puts back what the limit changed beside the queue, unless somebody changed it again, as far as the other end of the pair is seen. What
/// remembers that goes last, so that after a failure the same command finds it.
pub(super) fn put_back(
    lock: &Lock,
    place: &NetnsInterface,
    far_end: Option<&NetnsInterface>,
    record: &Record,
) -> Result<()> {
    behind::put_back(lock, place, &record.steered_behind, &record.masks_written)?;
    far_end.map_or(Ok(()), |far_end| put_back_at(far_end, place, record))?;
    if record.keeps_note {
        clsact::detach(note::SPOT, place, record.made_clsact)?;
    }
    Ok(())
}

/// Puts back what the limit of an interface changed at its other end.
fn put_back_at(far_end: &NetnsInterface, place: &NetnsInterface, record: &Record) -> Result<()> {
    if record.has_steered() && !behind::is_needed_by_others(place)? {
        far_end.steering(&record.masks_written)?.switch_off()?;
    }
    match record.sees_arrivals {
        true => clsact::detach(arrivals::SPOT, far_end, record.made_clsact),
        false => Ok(()),
    }
}

/// Puts back what the limit of an interface that is not there any more has left at its other end: the interface was moved, and left its
/// queue. A pair that is deleted goes as a whole.
fn put_back_left(place: &NetnsInterface, far_end: Option<NetnsInterface>) -> Result<()> {
    let Some(far_end) = far_end.filter(|far_end| !far_end.is_gone()) else { return Ok(()) };
    let _lock = Lock::take()?;
    let left = clsact::memory_at(arrivals::SPOT, &far_end)?.and_then(|memory| memory.record());
    left.map_or(Ok(()), |record| put_back_at(&far_end, place, &record))
}

#[cfg(test)]
mod tests {
    use weir_core::rate::Rate;

    use super::super::record::Direction;
    use super::super::{Asked, set};
    use super::*;
    use crate::netns::NetNs;
    use crate::probe::scratch::{self, ScratchPair};
    use crate::sys;

    const MS: u64 = 1_000_000;

    /// The times of the looks, in milliseconds, at which a queue is found quiet that sends nothing.
    fn found(looks_ms: impl Iterator<Item = u64>) -> Option<u64> {
        let mut quiet = Quiet { packets: 7, looked_ns: 0, quiet_ns: 0 };
        let traffic = QueueTraffic { packets: 7, ..QueueTraffic::default() };
        for ms in looks_ms {
            if !quiet.may_come(quiet.looked_ns, PATIENCE_NS) {
                break;
            }
            if quiet.note(&traffic, ms * MS) {
                return Some(ms);
            }
        }
        None
    }

    #[test]
    fn a_machine_that_stood_was_not_quiet() {
        assert_eq!(found(1..1000), Some(100));
        assert_eq!(found([1, 400, 800].into_iter()), None, "held up, as senders may have been");
        assert_eq!(found((1..1000).map(|look| look * 400)), Some(4000), "looks that take long");
        assert_eq!(found((1..1000).map(|look| look * 50)), Some(500), "seldom, and often enough");
    }

    #[test]
    fn a_packet_ends_a_quiet_moment() {
        let mut quiet = Quiet { packets: 0, looked_ns: 0, quiet_ns: QUIET_NS };
        let traffic = |packets, waiting| QueueTraffic { packets, waiting, ..QueueTraffic::default() };
        assert!(quiet.note(&traffic(0, 0), MS));
        for (packets, waiting) in [(1, 0), (1, 1)] {
            assert!(!quiet.note(&traffic(packets, waiting), 2 * MS));
            assert_eq!(quiet.quiet_ns, 0);
            quiet.quiet_ns = QUIET_NS;
        }
    }

    #[test]
    fn a_limit_of_another_version_leaves_nothing_when_it_is_taken_off_at_once() {
        if !sys::is_root() {
            return;
        }
        let told = scratch::run(|answer| {
            let pair = ScratchPair::new(c"near", &NetNs::current()?)?;
            let [place, far_end] =
                [&pair.receiver, &pair.sender].map(|link| NetnsInterface::here(&link.name));
            let (place, far_end) = (place?, far_end?);
            let asked = Asked {
                name: "near".into(),
                direction: Direction::There,
                rate: Rate::from_bits_per_s(10_000_000),
                burst_bytes: None,
                classes: None,
                moves_at_once: false,
            };
            set(&place, &asked, |_| 20_480)?;
            let off = |now| off(&place, now, || 0, &|| false);
            let left = || -> Result<(bool, bool)> {
                let has_program = arrivals::SPOT.program_id(far_end.link.ifindex)?.is_some();
                Ok((has_program, far_end.steering(&[])?.is_ours()?))
            };
            let memory = clsact::memory_at(arrivals::SPOT, &far_end)?.expect("it sees what arrives");
            memory.record_slots().write(b"a later form");
            assert!(off(false).is_err_and(|error| error.to_string().contains("does not know")));
            let before = left()?;
            off(true)?;
            answer((before, left()?));
            Ok(())
        });
        let ((has_program, _), after) = told.unwrap();
        assert!(has_program, "this sees nothing");
        assert_eq!(after, (false, false), "a program that is left, and steering that is");
    }
}
