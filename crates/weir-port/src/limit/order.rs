//! The order of a flow's packets behind a limit: refuses interfaces that cannot keep it, and steers at the other end of a pair.
//!
//! Rule: while traffic passes, steering goes from one processor to all in a moment in which that one has no packets to take in: otherwise a
//! packet that another takes in overtakes those that wait there. The limit is lowered for that moment, for some 100 ms at the most.
//! Steering never goes from all to one: that would save work alone.
//!
//! Owner: the kernel. Limits: a processor that takes in other traffic all the time may never be seen idle; then a few packets may overtake
//! others. An end that a limit of another device needs as well stays with one processor.
//!
//! Source: kernel `net/core/dev.c:get_rps_cpu`, `net/core/net-procfs.c:softnet_seq_show` (the length of the list, Linux 5.7).

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use weir_core::rate::Rate;

use super::memory::Memory;
use super::record::{LimitStage, Record};
use super::steering::{Processors, ReceiveSteering};
use super::{NetnsInterface, behind, change, set_words, tree, unsuitable, write};
use crate::error::Result;
use crate::ethtool;
use crate::lock::Lock;

/// The rate of the limit while steering changes: two packets of 1,500 bytes are 0.6 ms apart, and one of 64 kB takes 26 ms.
const SLOW_BITS_PER_S: u64 = 20_000_000;
/// The interval between looks at the one processor, and their number.
const LOOK_EVERY: Duration = Duration::from_micros(100);
const LOOKS: usize = 600;

/// Refuses a pair that cannot keep packets in order. Where its far end has NAPI, the pair's ring refuses packets; a queue above several
/// possible transmit queues then brings some back out of order (kernel `sch_generic.c:dev_requeue_skb`).
pub(super) fn check(place: &NetnsInterface, far_end: Option<&NetnsInterface>) -> Result<()> {
    let Some(far_end) = far_end.filter(|_| place.link.tx_queues_max > 1) else { return Ok(()) };
    let has_xdp = far_end.link.xdp_program.is_some();
    let joins = far_end.netns.run(|| ethtool::receive_offload(&far_end.link))?
        && !place.netns.run(|| ethtool::tcp_segmentation(&place.link))?;
    if !has_xdp && !joins {
        return Ok(());
    }
    let (what, cure) = match has_xdp {
        true => ("an XDP program", format!("remove it, `ip link set dev {} xdp off`,", far_end.link.name)),
        false => (
            "GRO while segmentation is off here",
            format!("switch it off, `ethtool -K {} gro off`,", far_end.link.name),
        ),
    };
    Err(unsuitable(
        place,
        &format!(
            "has {what} at its other end, {}, where one queue cannot keep packets in order: {cure} or make the pair with \
                  `numtxqueues 1`",
            far_end.describe()
        ),
    ))
}

/// The steering at the other end of a pair before any limit set it.
pub(super) fn steering_before(place: &NetnsInterface, steering: &ReceiveSteering) -> Result<Vec<String>> {
    let masks = steering.masks()?;
    let is_others = steering.is_ours()? && behind::is_needed_by_others(place)?;
    Ok(if is_others { vec!["0".into(); masks.len()] } else { masks })
}

/// A sentence for each interface behind `place` whose steering is as a limit sets it, though no record has it: a limit may have been there
/// whose queue and note were both removed. The steering is taken for the user's. `record` is that of the present limit.
pub fn doubtful(place: &NetnsInterface, record: Option<&Record>) -> Result<Vec<String>> {
    let sentence = |end: &NetnsInterface, steering: &ReceiveSteering| -> Result<Option<String>> {
        let said = || -> Result<String> {
            Ok(format!(
                "rps_cpus of {} is {}, as a limit sets it, and no limit says that it did: it is taken for yours, and stays; if it is not, \
                 `echo 0 | tee /sys/class/net/{}/queues/rx-*/rps_cpus` there brings back the kernel's default",
                end.describe(),
                steering.masks()?.join(" "),
                end.link.name
            ))
        };
        steering.is_doubtful()?.then(said).transpose()
    };
    let known = record.map_or(&[][..], |record| &record.steered_behind);
    let mut said = behind::find(place, &[])?.ask_of_unknown(place, known, sentence)?;
    let is_known = record.is_some_and(Record::has_steered);
    if let Some(far_end) = place.far_end()?.filter(|_| !is_known)
        && !behind::is_needed_by_others(place)?
    {
        said.extend(sentence(&far_end, &far_end.steering(&[])?)?);
    }
    Ok(said)
}

/// The other end of a pair, if steering is off there: nobody has set it, or somebody has switched it off under the limit of this record; or
/// if it is off at queues that came since that limit.
pub(super) fn unsteered(place: &NetnsInterface, record: Option<&Record>) -> Option<NetnsInterface> {
    // Where the other end cannot be seen, its steering is not known.
    let far_end = place.far_end().ok().flatten()?;
    let has_steered = record.is_some_and(Record::has_steered);
    let steering = far_end.steering(record.map_or(&[], |record| &record.masks_written)).ok()?;
    let is_off = steering.is_off().ok()? || (has_steered && steering.is_in_part().ok()?);
    is_off.then_some(far_end)
}

/// Steers again where somebody has switched steering off or added queues; returns the record with that. The record is written before anything
/// is changed.
pub(super) fn keep(
    place: &NetnsInterface,
    memory: &Memory,
    before: Record,
    processors: Processors,
) -> Result<Record> {
    let Some(far_end) = unsteered(place, Some(&before)) else { return Ok(before) };
    let _lock = Lock::take()?;
    let steering = far_end.steering(&before.masks_written)?;
    let steering_before = vec!["0".into(); steering.masks()?.len()];
    let record = Record { steering_before, ..before };
    write(memory, &record)?;
    steering.steer(processors)?;
    steering.steer_rest()?;
    Ok(record)
}

/// Steers to all processors what a limit has steered to one, and then leaves the limit lowered; the caller sets it next. If the limit
/// `is_whole`, the queues of its leaves are there.
pub(super) fn widen(
    place: &NetnsInterface,
    memories: &[Memory],
    record: &Record,
    is_whole: bool,
) -> Result<()> {
    if !record.has_steered() {
        return Ok(());
    }
    let Some(far_end) = place.far_end()? else { return Ok(()) };
    let steering = far_end.steering(&record.masks_written)?;
    let Some(one) = steering.is_to_one()? else { return Ok(()) };
    let plan = record.plan().map_err(|why| unsuitable(place, &why))?;
    let slow = Rate::from_bits_per_s(SLOW_BITS_PER_S).expect("more than 0");
    let slow = plan.slowed(slow);
    // A command that ends here leaves a half-made limit, which the next command finishes.
    write(&memories[0], &Record { stage: LimitStage::Making, ..record.clone() })?;
    set_words(memories, &slow, |word, before| word < before);
    let widened = place.netns.run(|| tree::change_those_there(place.link.ifindex, &slow)).and_then(|()| {
        wait_until_idle(one);
        steering.widen()
    });
    if widened.is_err() {
        // The first error is reported; an error of this change is not.
        let _ = change(place, memories, &plan, record.clone(), is_whole);
    }
    widened
}

/// Waits until a processor has no packets to take in, or gives up after [`LOOKS`] looks.
fn wait_until_idle(processor: usize) {
    for _ in 0..LOOKS {
        let backlog = fs::read_to_string("/proc/net/softnet_stat").ok();
        if backlog.and_then(|text| backlog_of(&text, processor)) == Some(0) {
            return;
        }
        sleep(LOOK_EVERY);
    }
}

/// The packets that wait to be taken in by a processor; `None` where the kernel does not say.
fn backlog_of(text: &str, processor: usize) -> Option<u64> {
    let of_line = |line: &str| {
        let mut columns = line.split_whitespace().skip(11).map(|column| u64::from_str_radix(column, 16).ok());
        let (backlog, number) = (columns.next()??, columns.next()??);
        (number == processor as u64).then_some(backlog)
    };
    text.lines().find_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_columns_say_what_waits_for_a_processor() {
        let text = "\
            000023a1 00000000 00000002 00000000 00000000 00000000 00000000 00000000 00000000 0000001f 00000000 00000003 00000000\n\
            00001b2c 00000000 00000001 00000000 00000000 00000000 00000000 00000000 00000000 00000021 00000000 0000000a 00000002 0000 0000\n";
        assert_eq!(backlog_of(text, 0), Some(3));
        assert_eq!(backlog_of(text, 2), Some(10));
        assert_eq!(backlog_of(text, 1), None, "it is not there");
        assert_eq!(backlog_of("00000001 00000000 00000000\n", 0), None, "an old kernel");
    }
}
