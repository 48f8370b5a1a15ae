//! A limit in place: the kernel's own HTB with a leaf for each flow, on an interface as it stands.
//!
//! From the outside in: this file sets and changes a limit as it is [`Asked`], [`reshape`] changes the classes below it, [`mod@off`]
//! removes it, [`find`] finds the limits there are. [`htb`] and [`filter`] are the kernel's objects, and `tree.rs` brings the classes to a
//! plan. [`program`] gives each flow a leaf, of the class that [`classify`] finds; [`mod@passing`] bounds what waits of packets without a
//! socket; [`memory`] is what the program works on and where [`record`] is kept (`record_slots.rs`). The order of a flow is kept
//! (`order.rs`) at the other end of a pair by [`steering`], also of packets that come from [`mod@behind`] another device, and [`arrivals`]
//! sees there what has passed; otherwise `note.rs` keeps the memory at the interface itself, both by `clsact.rs`. `inside.rs` tells which
//! end of a pair is a container's.
//!
//! Rule: all state is with the queue. The qdisc holds its filter, the filter its program, the program its memory. The memory says what the
//! limit is and what to put back, and outlives a queue that somebody removes. So there is no process, file or pin, and all of it goes with
//! the interface. One setting is the machine's, and [`backlog`] has a file for its value before.
//! A limit is made open: until every leaf is there nothing waits, so no flow has packets where the program does not
//! know of them.
//!
//! Owner: the kernel; commands change it one at a time ([`crate::hold::ends`]). Limits: packets that leave by AF_XDP or with
//! `PACKET_QDISC_BYPASS` pass no queue; at a pair they are counted.

pub mod arrivals;
mod asked;
pub mod backlog;
pub mod behind;
pub mod classify;
mod clsact;
pub mod drain;
pub mod faults;
pub mod filter;
pub mod find;
pub mod htb;
mod inside;
pub mod memory;
mod note;
pub mod off;
pub mod order;
pub mod passing;
pub mod program;
pub mod record;
mod record_slots;
pub mod reshape;
pub mod steering;
mod tree;

use std::io;
use std::path::PathBuf;

use weir_core::limit::{FALLBACK, HtbTree, LeafQueue};
use weir_core::rate::Rate;

pub use self::asked::Asked;
use self::find::Found;
use self::htb::{QueueTraffic, RootKind, RootQueue};
use self::inside::Sight;
pub use self::inside::sees_all_processes;
use self::memory::Memory;
use self::record::{LimitStage, Record};
use self::reshape::Shape;
use self::steering::{Processors, ReceiveSteering};
use self::tree::{leaves_first, open_plan};
use crate::bpf::program::Program;
use crate::error::{Doing, PortError, Result};
use crate::link::Link;
use crate::lock::Lock;
use crate::netns::NetNs;

/// An interface and its namespace.
#[derive(Debug)]
pub struct NetnsInterface {
    /// Its namespace.
    pub netns: NetNs,
    /// The interface.
    pub link: Link,
}

/// The outcome of setting a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The limit is new.
    Made,
    /// The limit was there before and was changed.
    Changed,
}

impl NetnsInterface {
    /// The interface called `name` in this thread's namespace.
    pub fn here(name: &str) -> Result<NetnsInterface> {
        Ok(NetnsInterface { netns: NetNs::current()?, link: Link::by_name(name)? })
    }

    /// The interface called `name` in the namespace of a process.
    pub fn of_process(pid: u32, name: &str) -> Result<NetnsInterface> {
        let netns = NetNs::open(&PathBuf::from(format!("/proc/{pid}/ns/net"))).map_err(|error| {
            let PortError::Kernel { doing, source } = error else { return error };
            let refused = |doing: String, why: &str| PortError::Kernel { doing, source: io::Error::other(why) };
            match source.kind() {
                io::ErrorKind::NotFound => refused(format!("looking for process {pid}"), "there is none"),
                io::ErrorKind::PermissionDenied => refused(
                    format!("looking into process {pid}"),
                    "the process has privileges that weir has not (ptrace(2)): run weir as root of the host, outside of \
                     any container",
                ),
                _ => PortError::Kernel { doing, source },
            }
        })?;
        let link = netns.run(|| Link::by_name(name)).map_err(|error| match error {
            PortError::NoInterface { .. } => PortError::Unsuitable {
                name: name.into(),
                why: format!("is not in the network namespace of process {pid}: name another (`--device`, or `device` in a file)"),
            },
            error => error,
        })?;
        Ok(NetnsInterface { netns, link })
    }

    /// The other end of the pair, if the interface is an end of one.
    pub fn far_end(&self) -> Result<Option<NetnsInterface>> {
        if self.link.kind != "veth" {
            return Ok(None);
        }
        let (netns, link) = self.netns.run(|| self.link.peer())?;
        Ok(Some(NetnsInterface { netns, link }))
    }

    /// Returns whether this is a pair's end inside a container, as seen from there: the other end, `far`, is the host's. `None` if nothing
    /// tells.
    pub fn is_inside_of(&self, far: &NetnsInterface) -> Option<bool> {
        Sight::of(&self.netns, &far.netns).is_inside()
    }

    /// Returns whether the interface is not there any more.
    pub fn is_gone(&self) -> bool {
        let link = self.netns.run(|| Link::by_index(self.link.ifindex));
        link.is_err_and(|error| error.is_no_interface())
    }

    /// The name of the interface and the label of its namespace, for people.
    pub fn describe(&self) -> String {
        format!("{} in {}", self.link.name, self.netns.label())
    }

    /// The same interface, with a descriptor of its own for the namespace.
    pub fn try_clone(&self) -> Result<NetnsInterface> {
        Ok(NetnsInterface { netns: self.netns.try_clone()?, link: self.link.clone() })
    }

    /// Returns whether both are the same interface.
    pub fn is(&self, other: &NetnsInterface) -> bool {
        self.netns.is(&other.netns) && self.link.ifindex == other.link.ifindex
    }

    /// The steering of its receive queues, where a limit may have `written` these masks.
    fn steering(&self, written: &[String]) -> Result<ReceiveSteering> {
        self.netns.run(|| ReceiveSteering::of(&self.link, written))
    }
}

/// Limits what an interface sends, or changes the limit there is. `burst_default` gives the burst of a rate where no burst is asked for.
///
/// # Errors
/// One sentence; then nothing is left of a new limit, and one that was there may be half made, as its record says: the same call again
/// finishes it, and one that asks for the record before puts it back.
pub fn set(
    place: &NetnsInterface,
    asked: &Asked,
    burst_default: impl Fn(Rate) -> u64,
) -> Result<(Done, Record)> {
    let Prepared { found, is_whole, mut record, plan } = prepare(place, asked, burst_default)?;
    match found {
        Some(Found { memories, record: Some(before), .. }) => {
            // The masks are in the record before any of them is written.
            let before = Record { masks_written: record.masks_written.clone(), ..before };
            write(&memories[0], &before)?;
            record.steered_behind = behind::update(place, &memories[0], &before)?;
            let processors = Processors::of(plan.wanted().rate);
            let before = order::keep(place, &memories[0], before, processors)?;
            record.steering_before.clone_from(&before.steering_before);
            if before.sees_arrivals && find::is_watched(place) == Some(false) {
                // The record that is written is that of the limit as it is: the other may turn out not to be one that the kernel takes.
                let mut kept = before.clone();
                note::keep_beside(place, place.far_end()?.as_ref(), &memories[0], &mut kept);
                record.sees_arrivals = kept.sees_arrivals;
                (record.keeps_note, record.made_clsact) = (kept.keeps_note, kept.made_clsact);
            }
            let first = || tree::first_class(place.link.ifindex);
            if before.stage == LimitStage::Making && place.netns.run(first)?.is_some() {
                // Packets that passed before the limit was ever whole had no queue to pass.
                memories[0].forget_bypassed();
            }
            if processors == Processors::All {
                order::widen(place, &memories, &before, is_whole)?;
            }
            // A command that was killed may have recorded filters that the program does not ask yet.
            let is_reshaped = asked.reshapes(Some(&before)) || (!is_whole && !before.filters.is_empty());
            if is_reshaped {
                let whole = is_whole.then_some(&before);
                record = reshape::reshape(place, memories, &plan, whole, record, asked.moves_at_once)?;
            } else {
                change(place, &memories, &plan, record.clone(), is_whole)?;
                record.stage = LimitStage::Limiting;
            }
            Ok((Done::Changed, record))
        }
        // A queue without a record: its command ended before the filter was attached, or somebody removed the filter while packets waited.
        half => {
            if half.is_some() {
                let waiting = traffic(place)?.map_or(0, |traffic| traffic.waiting);
                let dropped_before = tx_dropped(place)?;
                let noted = note::gone_from(place, place.far_end()?.as_ref());
                let noqueue = noted.map_or(0, |noted| noted.noqueue_before);
                off::remove_queue(place, noqueue)?;
                record.lost_when_set = waiting + tx_dropped(place)?.saturating_sub(dropped_before);
            }
            record = make(place, &plan, record)?;
            Ok((Done::Made, record))
        }
    }
}

/// Checks that [`set`] would not be refused, as far as that can be known before anything is changed. Returns the record of the limit there is, if
/// any, and whether that limit is whole.
///
/// # Errors
/// The sentence of [`set`].
pub fn check(
    place: &NetnsInterface,
    asked: &Asked,
    burst_default: impl Fn(Rate) -> u64,
) -> Result<Option<(Record, bool)>> {
    let Prepared { found, is_whole, .. } = prepare(place, asked, burst_default)?;
    let record = found.and_then(|found| found.record);
    let behind = behind::find(place, record.as_ref().map_or(&[], |record| &record.masks_written))?;
    if record.is_none() {
        let far_end = place.far_end()?;
        order::check(place, far_end.as_ref())?;
        far_end.map_or(Ok(()), |far_end| far_end.steering(&[])?.masks().map(drop))?;
        behind.check()?;
    }
    Ok(record.map(|record| {
        let is_ordered = behind.unsteered(&record.steered_behind).is_empty()
            && order::unsteered(place, Some(&record)).is_none()
            && !record.is_exceeded_by(&place.link);
        let is_limiting = record.stage == LimitStage::Limiting;
        let is_seen = !record.sees_arrivals || find::is_watched(place) != Some(false);
        (record, is_whole && is_limiting && is_ordered && is_seen)
    }))
}

/// The limit that is there, and the record and the tree of the limit asked for.
struct Prepared {
    found: Option<Found>,
    is_whole: bool,
    record: Record,
    plan: HtbTree,
}

/// Reads the queue that is there and decides on the new limit; changes nothing.
fn prepare(place: &NetnsInterface, asked: &Asked, burst_default: impl Fn(Rate) -> u64) -> Result<Prepared> {
    let found = match place.netns.run(|| htb::root(place.link.ifindex))? {
        RootKind::Default(_) => None,
        RootKind::Limit => Some(find::below_root(place)?),
        RootKind::Other(kind, handle) => return Err(refuse(place, &kind, handle)),
    };
    if found.as_ref().is_some_and(|found| found.is_strange) {
        return Err(unsuitable(place, find::STRANGE));
    }
    let before = found.as_ref().and_then(|found| found.record.as_ref());
    let gone = if before.is_none() { note::gone_from(place, place.far_end()?.as_ref()) } else { None };
    // One that was killed while it was made was never there.
    let gone = gone.filter(|gone| gone.stage == LimitStage::Limiting);
    let again = gone.map(|gone| asked.clone().again(&gone, &burst_default));
    let asked = again.as_ref().unwrap_or(asked);
    // A command that ended half-way may have left out leaves or their queues.
    let is_whole = before.is_some_and(|before| before.stage != LimitStage::Making);
    let is_whole = is_whole && before.is_some_and(|before| tree::lacks_nothing(place, before));
    let mut record = record::wanted(place, asked, before, burst_default)?;
    if let Some(classes) = asked.classes.as_ref().filter(|_| asked.reshapes(before)) {
        let shape = Shape::new(classes, before).map_err(|why| unsuitable(place, &why))?;
        (record.classes, record.filters) = (shape.classes, shape.filters);
    }
    let plan = record.plan().map_err(|why| unsuitable(place, &format!("cannot be limited: {why}")))?;
    memory::text_of(&record).map_err(|why| unsuitable(place, &format!("cannot be limited so: {why}")))?;
    Ok(Prepared { found, is_whole, record, plan })
}

/// The counters and the backlog of an interface's limit; `None` if there is no limit.
pub fn traffic(place: &NetnsInterface) -> Result<Option<QueueTraffic>> {
    Ok(root(place)?.map(|root| root.traffic))
}

/// The root queue of an interface's limit; `None` if there is no limit.
pub fn root(place: &NetnsInterface) -> Result<Option<RootQueue>> {
    let root = place.netns.run(|| htb::root_queue(place.link.ifindex))?;
    Ok(root.filter(|root| root.kind == RootKind::Limit))
}

/// Makes a limit where there is none; the result is the record with the packets that this cost.
fn make(place: &NetnsInterface, plan: &HtbTree, mut record: Record) -> Result<Record> {
    let far_end = place.far_end()?;
    order::check(place, far_end.as_ref())?;
    // Settings changed for a limit that somebody took away were changed before this limit, whose record is from here on the only one.
    let gone = note::gone_from(place, far_end.as_ref());
    gone.iter().for_each(|gone| record.take_over(gone, &place.link));
    let noqueue = place.netns.run(|| htb::chosen_noqueue(place.link.ifindex))?;
    record.noqueue_before = noqueue;
    let steering = far_end.as_ref().map(|far_end| far_end.steering(&record.masks_written)).transpose()?;
    let memories = memories(plan, Vec::new())?;
    set_words(&memories, plan, |_, _| true);
    let own = &memories[0];
    write(own, &record)?;
    // A program beside the queue, at either end, costs packets as the queue does.
    let dropped_before = tx_dropped_of(place, far_end.as_ref());
    note::keep_beside(place, far_end.as_ref(), own, &mut record);
    let ifindex = place.link.ifindex;
    let processors = Processors::of(plan.wanted().rate);
    let open = open_plan(plan);
    let make_queue = |record: &Record| {
        let program = load(place, &memories, record)?;
        place.netns.run(|| {
            htb::create(ifindex, noqueue, &open.first_class())?;
            htb::CHOICE.attach(ifindex, &program)?;
            htb::set(ifindex, open.classes().filter(|class| class.number != FALLBACK))?;
            // What passed before had no queue to pass. From here on the count is kept.
            own.forget_bypassed();
            tree::settle(ifindex, &open)
        })
    };
    let steer = |record: &mut Record| {
        if let Some(steering) = &steering {
            let _lock = Lock::take()?;
            // What is off is switched on here, whatever a limit that is gone found before.
            if gone.is_none() || steering.is_off()? {
                record.steering_before = order::steering_before(place, steering)?;
            }
            write(own, record)?;
            steering.steer(processors)?;
        }
        record.steered_behind = behind::update(place, own, record)?;
        Ok(())
    };
    // Any processor may run the queue: the packets that it sends wait in one list from the first on. Where nothing beside the queue keeps
    // the record, a command that is killed here would leave steering that nobody knows of, so the queue comes first.
    let is_kept = record.sees_arrivals || record.keeps_note;
    let made = write(own, &record).and_then(|()| if is_kept { steer(&mut record) } else { Ok(()) });
    let made = made.and_then(|()| make_queue(&record)).map(|lost| record.lost_when_set += lost);
    let made = made.and_then(|()| if is_kept { Ok(()) } else { steer(&mut record) });
    // Packets that came before the first class was there, and packets that waited in a leaf whose queue replaced the kernel's default.
    let seen = place.try_clone().and_then(find::seen_at).ok().flatten();
    record.refused_when_set = seen.map_or(0, |seen| seen.misdirected());
    record.lost_when_set += tx_dropped_of(place, far_end.as_ref()).saturating_sub(dropped_before);
    record.lost_when_set += record.refused_when_set;
    let made = made.and_then(|()| change(place, &memories, plan, record.clone(), true));
    if made.is_err() {
        // The first error is reported; errors of the removal are not.
        let _ = off::remove_queue(place, noqueue);
        let changed = own.record().unwrap_or(record.clone());
        let _ = Lock::take().and_then(|lock| off::put_back(&lock, place, far_end.as_ref(), &changed));
    }
    made.map(|()| Record { stage: LimitStage::Limiting, ..record })
}

/// The packets that a device counts as dropped, among them those that came while the kernel swapped its queue.
fn tx_dropped(place: &NetnsInterface) -> Result<u64> {
    Ok(place.netns.run(|| Link::by_index(place.link.ifindex))?.tx_dropped)
}

/// As [`tx_dropped`], of both ends of a pair; none of an end that is gone.
fn tx_dropped_of(place: &NetnsInterface, far_end: Option<&NetnsInterface>) -> u64 {
    [Some(place), far_end].into_iter().flatten().filter_map(|end| tx_dropped(end).ok()).sum()
}

/// Changes a limit to a plan; if it `is_whole`, its classes and their queues are there.
fn change(
    place: &NetnsInterface,
    memories: &[Memory],
    plan: &HtbTree,
    record: Record,
    is_whole: bool,
) -> Result<()> {
    write(&memories[0], &Record { stage: LimitStage::Making, ..record.clone() })?;
    set_words(memories, plan, |word, before| word < before);
    let ifindex = place.link.ifindex;
    let lost = place.netns.run(|| {
        if !is_whole {
            htb::set(ifindex, leaves_first(plan, is_whole))?;
            return tree::settle(ifindex, plan);
        }
        // No packet comes to a leaf that is longer than its quantum.
        htb::set_queues(ifindex, plan.classes(), LeafQueue::cuts_shorter)?;
        htb::set(ifindex, leaves_first(plan, is_whole))?;
        htb::set_queues(ifindex, plan.classes(), LeafQueue::ne).map(|()| 0)
    })?;
    set_words(memories, plan, |_, _| true);
    let lost_when_set = record.lost_when_set + lost;
    write(&memories[0], &Record { stage: LimitStage::Limiting, lost_when_set, ..record })
}

/// Sets the clocks of all leaves, and the longest packet that all take, for a plan where `is_due` by the new value and the one before. The
/// program must never take a leaf to be served faster than it is, and uses the lower of both clocks for the time in between; nor give it a
/// packet that it does not take.
fn set_words(memories: &[Memory], plan: &HtbTree, is_due: impl Fn(u64, u64) -> bool) {
    let uncut_bytes_max = plan.uncut_bytes_max();
    if is_due(uncut_bytes_max.into(), memories[0].uncut_bytes_max()) {
        memories[0].set_uncut_bytes_max(uncut_bytes_max);
    }
    for group in plan.groups() {
        let memory = memories.iter().find(|memory| memory.base() == group.base);
        if let Some(memory) =
            memory.filter(|memory| is_due(weir_core::limit::leaf_clock(&group), memory.clock()))
        {
            memory.set_clocks(&group);
        }
    }
}

/// The memories of a plan's leaves, the limit's own first; new ones where none is there.
fn memories(plan: &HtbTree, mut there: Vec<Memory>) -> Result<Vec<Memory>> {
    for base in std::iter::once(0).chain(plan.groups().map(|group| group.base)) {
        if !there.iter().any(|memory| memory.base() == base) {
            there.push(Memory::new(base).doing(|| "making the memory of a limit".into())?);
        }
    }
    there.sort_by_key(Memory::base);
    Ok(there)
}

fn load(place: &NetnsInterface, memories: &[Memory], record: &Record) -> Result<Program> {
    let link_header_bytes = place.link.link_header_bytes as i32;
    let loaded = program::load(memories, &record.filters, link_header_bytes, record.sees_arrivals);
    if loaded.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ArgumentListTooLong) {
        return Err(unsuitable(
            place,
            "cannot have so many classes and filters at once, with those of the file before, as the kernel's verifier would not come to \
             an end: take some out, remove the limit first with `weir limit --off`, or join the interfaces with `weir wire`",
        ));
    }
    loaded.doing(|| "loading the program that gives flows their leaves".into())
}

fn refuse(place: &NetnsInterface, kind: &str, handle: u32) -> PortError {
    const WIRE: u32 = 0x7765_0000;
    let place_text = place.describe();
    let name = &place.link.name;
    PortError::Unsuitable {
        name: place_text,
        why: if handle == WIRE {
            format!(
                "is an end of a wire or of a stack (`weir stat` names it): stop that first, or, if it was killed, `weir mend {name}` there"
            )
        } else {
            format!(
                "has a {kind} qdisc {:x}: that somebody set: remove it with `tc qdisc del dev {name} root` there",
                handle >> 16
            )
        },
    }
}

fn unsuitable(place: &NetnsInterface, why: &str) -> PortError {
    PortError::Unsuitable { name: place.describe(), why: why.into() }
}

fn write(memory: &Memory, record: &Record) -> Result<()> {
    memory.write(record).doing(|| "writing what the limit is into its memory".into())
}
