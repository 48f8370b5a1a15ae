//! The reasons why packets are dropped: one list for the whole path, and a counter for each.
//!
//! The law: nothing is lost unless a rule says so, and then it is counted under the rule's name. So every place
//! that frees an undelivered packet names one of these, and [`crate::account::Account`] proves that the sums agree.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The reason of a packet's drop, one for each packet.
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
    /// The device behind the port refused the packet for good (`NET_XMIT_DROP`): its receiver's backlog was full.
    DeviceRefused = "device-refused",
    /// The interface the packet was bound for vanished while it was inside.
    PortGone = "port-gone",
    /// The packet does not fit a frame, or is longer than the way out allows.
    TooLong = "too-long",
    /// The packet is shorter than its headers say, or its headers contradict each other.
    Malformed = "malformed",
    /// The packet's class is full and its rule is `drop`; or a stage made the packet, and as many of those wait there as may.
    ClassFull = "class-full",
    /// The packet stayed in its class longer than the class's `max_wait`.
    MaxWait = "max-wait",
    /// CoDel dropped the packet: its class's rule is `drop` or `ecn`, and the queue stood too long.
    Codel = "codel",
    /// A workstream's queue is full and its rule is `drop`.
    WorkstreamFull = "workstream-full",
    /// The packet's destination has no route.
    NoRoute = "no-route",
    /// The packet's time to live or hop limit ran out.
    TtlExpired = "ttl-expired",
    /// The next hop's address did not resolve.
    NoNeighbour = "no-neighbour",
    /// No protocol here handles the packet.
    NoHandler = "no-handler",
    /// The packet is for the segment of a bridge that it came from, or the bridge has no other segment.
    OwnSegment = "own-segment",
    /// The packet is of a protocol of one link alone (01-80-C2-00-00-0X), which no bridge forwards.
    LinkLocal = "link-local",
    /// The packet's link-layer destination is another station; or its IP destination is, at a host, which forwards nothing.
    NotForUs = "not-for-us",
    /// The packet's source or destination address must not be seen on a wire, or not be forwarded.
    Martian = "martian",
    /// The checksum of the packet's header is wrong.
    BadChecksum = "bad-checksum",
    /// Too many packets wait for the next hop's address, or too many addresses are being resolved.
    NeighbourFull = "neighbour-full",
    /// The packet was to be copied to one more port, or to leave in fragments, and there were no frames for them.
    NoFrame = "no-frame",
    /// The packet's SPI names no security association here.
    EspNoAssociation = "esp-no-association",
    /// The packet's sequence number was received before, or is zero.
    EspReplayed = "esp-replayed",
    /// The packet's sequence number is older than the replay window remembers.
    EspTooOld = "esp-too-old",
    /// The packet is shorter than ESP with its association's algorithm can be.
    EspTruncated = "esp-truncated",
    /// The packet's ICV is not that of its bytes: the key is another, or somebody changed it.
    EspBadIcv = "esp-bad-icv",
    /// The packet is proven, but its padding is not as RFC 4303 has it, or longer than its payload.
    EspBadPadding = "esp-bad-padding",
    /// The packet is proven, but carries a payload that its association's mode does not.
    EspBadPayload = "esp-bad-payload",
    /// The packet is a fragment, in transport mode, which takes whole packets only, or where a policy for ports would decide.
    EspFragment = "esp-fragment",
    /// The packet is a fragment, and the others of its packet did not come in time.
    ReassemblyTimeout = "reassembly-timeout",
    /// The packet is a fragment that came twice, that contradicts others of its packet, or that there was no room for.
    ReassemblyFailed = "reassembly-failed",
    /// The packet is a dummy (next header 59), sent so that an observer sees traffic; it carries no payload.
    EspDummy = "esp-dummy",
    /// The packet's association has no sequence number left.
    EspSequenceOverflow = "esp-sequence-overflow",
    /// The packet's association reached a hard lifetime.
    EspExpired = "esp-expired",
    /// The path marked the packet, but it carries one whose sender does not understand marks (RFC 6040).
    EspNotEcnCapable = "esp-not-ecn-capable",
    /// A security policy discards the packet, or no policy applies to it.
    PolicyDiscard = "policy-discard",
    /// The packet came by an association that its security policy does not name, or in the clear where the policy wants one.
    PolicyMismatch = "policy-mismatch",
    /// The receive buffer of the packet's socket was full, and the socket's rule is to drop.
    SocketFull = "socket-full",
    /// The packet's socket has been closed.
    SocketClosed = "socket-closed",
}

/// The packets and bytes that were dropped for each reason.
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
    /// The number of packets.
    pub packets: u64,
    /// The sum of their lengths.
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

    /// The packets and bytes dropped for `reason`.
    pub fn get(&self, reason: DropReason) -> Count {
        self.counts[reason as usize]
    }

    /// The packets and bytes dropped for any reason.
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
