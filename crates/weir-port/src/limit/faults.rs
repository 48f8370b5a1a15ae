//! The faults of a limit in place, for `weir stat --check`.
//!
//! Rule: what a command changes at this moment is half done and is not judged; packets that were dropped are.

use super::find::{LimitInPlace, STRANGE};
use super::record::{LimitStage, Record};
use super::{NetnsInterface, order};
use crate::error::PortError;
use crate::link::Link;

/// The sentence on a pair whose other end takes shorter packets than this end sends, and drops the others when they have passed the limit;
/// `None` for any other interface, and where the other end cannot be seen.
pub fn refused_by_mtu(place: &NetnsInterface) -> Option<String> {
    let far_end = place.far_end().ok().flatten()?;
    // An end that was found before may have another MTU now.
    let sent_bytes = place.netns.run(|| Link::by_index(place.link.ifindex)).ok()?.mtu_bytes;
    let taken_bytes = far_end.link.mtu_bytes;
    (taken_bytes < sent_bytes).then(|| {
        format!(
            "{} sends packets of up to {sent_bytes} bytes, and its other end, {}, drops those above its MTU of {taken_bytes}, of which \
             nobody tells the sender: give both ends one MTU",
            place.describe(),
            far_end.describe()
        )
    })
}

impl LimitInPlace {
    /// The faults of the limit, a sentence each.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = if self.command.is_some() { Vec::new() } else { self.faults_of_its_parts() };
        faults.extend(self.faults_of_its_packets());
        faults
    }

    /// Returns whether all its parts are there as they were made, or a command changes them.
    pub fn is_whole(&self) -> bool {
        self.command.is_some() || self.faults_of_its_parts().is_empty()
    }

    /// The sentence that a command changes the limit, so that its parts cannot be judged.
    pub fn what_changes_it(&self) -> Option<String> {
        let command = self.command.as_ref()?;
        let name = self.record.as_ref().map_or_else(String::new, |record| format!(" {}", record.name));
        Some(format!(
            "limit{name} at {} is being changed by process {} (`{}`): look again when that is done",
            self.place.describe(),
            command.pid,
            command.command
        ))
    }

    /// The parts of it that are missing, or not as they were made.
    fn faults_of_its_parts(&self) -> Vec<String> {
        let place = self.place.describe();
        if let (true, Some(record)) = (self.is_gone, &self.record) {
            return vec![self.how_it_went(record)];
        }
        if self.is_strange {
            return vec![format!("{place} {STRANGE}")];
        }
        let Some(record) = &self.record else {
            return vec![format!(
                "the limit at {place} was never finished, or its filter was removed: `weir limit` sets it again, `--off` removes it"
            )];
        };
        let mut faults = Vec::new();
        if record.stage == LimitStage::Making {
            faults.push(format!(
                "limit {} at {place} was left half made: the same command again finishes it",
                record.name
            ));
        }
        if record.stage == LimitStage::Opening {
            faults.push(format!(
                "limit {} at {place} is open, to be removed, and nothing is limited: `--off` again removes the queue",
                record.name
            ));
        }
        faults.extend(self.fault_of_its_classes(record));
        faults.extend(self.fault_of_its_mtu(record));
        // A half-made limit is steered and watched when it is finished.
        if record.stage != LimitStage::Making {
            faults.extend(self.faults_at_the_other_ends(record));
        }
        faults
    }

    fn how_it_went(&self, record: &Record) -> String {
        let place = self.place.describe();
        if record.stage == LimitStage::Making {
            return format!(
                "limit {} at {place} was left half made, without a queue: the same command again makes it, `--off` forgets it",
                record.name
            );
        }
        let how = match &self.seen_from {
            Some(end) => {
                format!("there, or the interface moved, and {} passed {end} since", packets(self.bypassed()))
            }
            None => "by hand".into(),
        };
        format!(
            "limit {} is gone from {place}: its queue was removed {how}: `weir limit` sets it again, `--off` forgets it and puts back \
             what it changed",
            record.name
        )
    }

    fn fault_of_its_classes(&self, record: &Record) -> Option<String> {
        let place = self.place.describe();
        let unlike = self.classes_unlike();
        let count = record.plan().map_or(0, |plan| plan.classes().count());
        match unlike {
            0 => None,
            _ if self.classes.len() < count => Some(format!(
                "limit {} at {place} has {} of its {count} classes: the same command again makes the others",
                record.name,
                self.classes.len()
            )),
            unlike => Some(format!(
                "limit {} at {place} does not limit to its rate: somebody changed {unlike} of its {count} classes, as `tc class change` \
                 does: the same command again sets them",
                record.name
            )),
        }
    }

    /// Packets that are longer than all leaves take.
    fn fault_of_its_mtu(&self, record: &Record) -> Option<String> {
        let link = &self.place.link;
        record.is_exceeded_by(link).then(|| {
            format!(
                "limit {} at {} was set when the MTU was lower than {}: packets that are longer wait in one queue for all flows, past their \
                 classes; the same command again puts them back in turn",
                record.name,
                self.place.describe(),
                link.mtu_bytes
            )
        })
    }

    /// The parts that are missing where its packets arrive.
    fn faults_at_the_other_ends(&self, record: &Record) -> Vec<String> {
        let place = self.place.describe();
        let mut faults = Vec::new();
        if let Some(far_end) = order::unsteered(&self.place, Some(record)) {
            faults.push(format!(
                "limit {} at {place} does not keep flows in order, as rps_cpus is off at its other end, {}, or at queues that were \
                 added there: the same command again sets it",
                record.name,
                far_end.describe()
            ));
        }
        let far_end = self.place.far_end().ok().flatten();
        if let Err(why @ PortError::Unsuitable { .. }) = order::check(&self.place, far_end.as_ref()) {
            faults.push(format!("limit {} does not keep flows in order: {why}", record.name));
        }
        let unsteered = self.behind().unsteered(&record.steered_behind);
        if !unsteered.is_empty() {
            faults.push(format!(
                "limit {} at {place} does not keep flows in order behind {}, which joined since, or where rps_cpus is off at some or \
                 all queues: the same command again does",
                record.name,
                unsteered.join(", ")
            ));
        }
        faults.extend(refused_by_mtu(&self.place).map(|why| format!("limit {}: {why}", record.name)));
        if record.sees_arrivals && self.arrivals.is_none() {
            faults.push(format!(
                "nobody looks at the other end for what passes limit {} at {place}: the program there was removed, or the end moved; the \
                 same command again puts it back",
                record.name
            ));
        }
        faults
    }

    /// The packets that passed it by or were dropped by it, of a limit that is there and can be read.
    fn faults_of_its_packets(&self) -> Vec<String> {
        let Some(record) = self.record.as_ref().filter(|_| !self.is_gone && !self.is_strange) else {
            return Vec::new();
        };
        let place = self.place.describe();
        let mut faults = Vec::new();
        // Nothing has a queue to pass by before it is made, and after it is removed.
        if self.bypassed() > 0 && self.command.is_none() {
            faults.push(format!(
                "limit {} at {place} was passed by {}, which AF_XDP or PACKET_QDISC_BYPASS sent past its queue, or SO_PRIORITY to a leaf \
                 of its own choice: take CAP_NET_RAW from whoever sends so",
                record.name,
                packets(self.bypassed())
            ));
        }
        let [held, _] = self.overflowed();
        if held > 0 {
            faults.push(format!(
                "limit {} at {place} dropped {} with a socket: leaves were full. Where somebody made these shorter the \
                 same command again sets them; the count stays until `--off`",
                record.name,
                packets(held)
            ));
        }
        faults
    }

    /// The packets that passed its queue by.
    fn bypassed(&self) -> u64 {
        self.arrivals.map_or(0, |arrivals| arrivals.bypassed)
    }
}

/// A number of packets, in words.
fn packets(number: u64) -> String {
    if number == 1 { "1 packet".into() } else { format!("{number} packets") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_packet_is_not_several() {
        assert_eq!([0, 1, 2].map(packets), ["0 packets", "1 packet", "2 packets"]);
    }
}
