//! Why a packet was dropped: one list of reasons for the whole path, and a counter for each.
//!
//! The law: nothing is lost unless a rule says so, and then it is counted under the rule's name. So every place
//! that frees an undelivered packet names one of these, and [`crate::account::Account`] proves that the sums agree.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The one reason a packet was dropped for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $name,)* }

        impl DropReason {
            /// Every reason, in the order counters are kept and printed in.
            pub const ALL: &[DropReason] = &[$(DropReason::$name,)*];

            /// The reason's name in statistics and documents.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// The device behind the port refused it for good (`NET_XMIT_DROP`): its receiver's backlog was full.
    DeviceRefused = "device-refused",
    /// The interface it was bound for vanished while the packet was inside.
    PortGone = "port-gone",
    /// It does not fit a frame, or is longer than the way out allows.
    TooLong = "too-long",
    /// It is shorter than its headers say, or its headers contradict each other.
    Malformed = "malformed",
    /// Its class is full and its rule is `drop`.
    ClassFull = "class-full",
    /// It stayed in its class longer than the class's `max_wait`.
    MaxWait = "max-wait",
    /// CoDel dropped it: its class's rule is `drop` or `ecn`, and the queue stood too long.
    Codel = "codel",
    /// A workstream's queue is full and its rule is `drop`.
    WorkstreamFull = "workstream-full",
    /// No route to its destination.
    NoRoute = "no-route",
    /// Its time to live or hop limit ran out.
    TtlExpired = "ttl-expired",
    /// The next hop's address did not resolve.
    NoNeighbour = "no-neighbour",
    /// Nothing handles its protocol here.
    NoHandler = "no-handler",
    /// A bridge has it for the segment it came from, or has no other segment.
    OwnSegment = "own-segment",
    /// A protocol of one link alone (01-80-C2-00-00-0X), which no bridge forwards.
    LinkLocal = "link-local",
    /// Its link-layer destination is another station; or its IP destination is, at a host, which forwards nothing.
    NotForUs = "not-for-us",
    /// Its source or destination address must not be seen on a wire, or not be forwarded.
    Martian = "martian",
    /// The checksum of its header is wrong.
    BadChecksum = "bad-checksum",
    /// Too many packets wait for its next hop's address, or too many addresses are being resolved.
    NeighbourFull = "neighbour-full",
    /// A copy of it was to go to one more port, or it was to leave in fragments, and there were no frames for them.
    NoFrame = "no-frame",
    /// Its SPI names no security association here.
    EspNoAssociation = "esp-no-association",
    /// Its sequence number was received before, or is zero.
    EspReplayed = "esp-replayed",
    /// Its sequence number is older than the replay window remembers.
    EspTooOld = "esp-too-old",
    /// It is shorter than ESP with its association's algorithm can be.
    EspTruncated = "esp-truncated",
    /// Its ICV is not that of its bytes: another key, or somebody changed it.
    EspBadIcv = "esp-bad-icv",
    /// It is proven, but its padding is not what RFC 4303 says, or longer than its payload.
    EspBadPadding = "esp-bad-padding",
    /// It is proven, but carries what its association's mode does not.
    EspBadPayload = "esp-bad-payload",
    /// ESP is only opened whole, and in transport mode only put around what is whole.
    EspFragment = "esp-fragment",
    /// Sent so that an observer sees traffic (next header 59); it carries nothing.
    EspDummy = "esp-dummy",
    /// Its association has no sequence number left.
    EspSequenceOverflow = "esp-sequence-overflow",
    /// Its association reached a hard lifetime.
    EspExpired = "esp-expired",
    /// The path marked it, but it carries a packet whose sender does not understand marks (RFC 6040).
    EspNotEcnCapable = "esp-not-ecn-capable",
    /// A security policy says so, or none says otherwise.
    PolicyDiscard = "policy-discard",
    /// It came by an association that its security policy does not name, or in the clear where the policy wants one.
    PolicyMismatch = "policy-mismatch",
    /// The receive buffer of the socket it is for was full, and the socket's rule is to drop.
    SocketFull = "socket-full",
    /// The socket it was for has been closed.
    SocketClosed = "socket-closed",
}

/// How many packets and bytes were dropped for each reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropCounts {
    counts: [Count; DropReason::ALL.len()],
}

impl Default for DropCounts {
    fn default() -> DropCounts {
        DropCounts { counts: [Count::default(); DropReason::ALL.len()] }
    }
}

/// Packets and bytes, always counted together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many packets.
    pub packets: u64,
    /// Their lengths, added up.
    pub bytes: u64,
}

impl Count {
    /// Counts one packet.
    pub fn add(&mut self, len_bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(len_bytes);
    }

    /// Takes one packet off again.
    pub fn sub(&mut self, len_bytes: u32) {
        self.packets -= 1;
        self.bytes -= u64::from(len_bytes);
    }

    /// Takes packets off again that are counted together.
    pub fn sub_all(&mut self, other: Count) {
        self.packets -= other.packets;
        self.bytes -= other.bytes;
    }

    /// Adds another count to this one.
    pub fn merge(&mut self, other: Count) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

impl DropCounts {
    /// Counts one dropped packet.
    pub fn add(&mut self, reason: DropReason, len_bytes: u32) {
        self.counts[reason as usize].add(len_bytes);
    }

    /// Counts packets that were dropped together.
    pub fn add_all(&mut self, reason: DropReason, dropped: Count) {
        self.counts[reason as usize].merge(dropped);
    }

    /// What was dropped for `reason`.
    pub fn get(&self, reason: DropReason) -> Count {
        self.counts[reason as usize]
    }

    /// What was dropped for any reason.
    pub fn total(&self) -> Count {
        self.counts.iter().fold(Count::default(), |mut sum, count| {
            sum.merge(*count);
            sum
        })
    }

    /// The reasons that occurred, with their counts.
    pub fn occurred(&self) -> impl Iterator<Item = (DropReason, Count)> + '_ {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.get(reason)))
            .filter(|(_, count)| count.packets > 0)
    }

    /// Adds another place's drops to this one.
    pub fn merge(&mut self, other: &DropCounts) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            mine.merge(*theirs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_counter_and_name() {
        let mut counts = DropCounts::default();
        for (index, &reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason as usize, index);
            for _ in 0..=index {
                counts.add(reason, 10);
            }
        }
        for (index, &reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(
                counts.get(reason),
                Count { packets: index as u64 + 1, bytes: 10 * (index as u64 + 1) }
            );
        }
        let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::ALL.len());
    }
}
