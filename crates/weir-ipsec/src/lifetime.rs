//! The lifetime of an association: limits in time, in bytes and in packets, each soft and hard.
//!
//! ```text
//! alive  --a soft limit-->  soft: still used, a successor is due  --a hard limit-->  expired: no packet passes
//! ```
//!
//! Bytes are those of the packets inside. A packet that reaches a limit still passes; the next one meets it. The time for which the machine
//! sleeps counts, as to the peer and to the kernel's associations (`CLOCK_BOOTTIME`); whoever knows of it notes it in the usage.
//!
//! Owner: the association. Source: RFC 4301 section 4.4.2.1.

/// A limit of each kind; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The time since the association began.
    pub time_ns: Option<u64>,
    /// The bytes that passed.
    pub bytes: Option<u64>,
    /// The packets that passed.
    pub packets: Option<u64>,
}

/// Soft and hard limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// The limits at which a successor is due.
    pub soft: Limits,
    /// The limits at which no packet passes any more.
    pub hard: Limits,
}

/// The age of an association, by its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Age {
    /// No limit is reached.
    Alive,
    /// A soft limit is reached.
    Soft,
    /// A hard limit is reached.
    Expired,
}

/// The packets that have passed, and the time since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The time at which the association began.
    pub since_ns: u64,
    /// The time since then for which the machine slept, and its clock stood still.
    pub asleep_ns: u64,
    /// Packets that passed.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Usage {
    /// The usage of an association that begins now.
    pub fn since(now_ns: u64) -> Usage {
        Usage { since_ns: now_ns, asleep_ns: 0, packets: 0, bytes: 0 }
    }

    /// Counts a packet.
    #[inline]
    pub fn add(&mut self, len_bytes: usize) {
        self.packets += 1;
        self.bytes += len_bytes as u64;
    }

    /// The time since the association began.
    #[inline]
    pub fn lived_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.since_ns) + self.asleep_ns
    }

    #[inline]
    fn reached(&self, limits: &Limits, now_ns: u64) -> bool {
        let is = |limit: Option<u64>, used: u64| limit.is_some_and(|limit| used >= limit);
        is(limits.time_ns, self.lived_ns(now_ns))
            || is(limits.bytes, self.bytes)
            || is(limits.packets, self.packets)
    }
}

impl Lifetime {
    /// Returns whether there is a hard limit, so that an association may end by itself.
    pub fn ends(&self) -> bool {
        self.hard != Limits::default()
    }

    /// The age of an association with this usage.
    #[inline]
    pub fn age(&self, usage: &Usage, now_ns: u64) -> Age {
        if usage.reached(&self.hard, now_ns) {
            Age::Expired
        } else if usage.reached(&self.soft, now_ns) {
            Age::Soft
        } else {
            Age::Alive
        }
    }

    /// Returns whether an association with this usage may be used no more.
    #[inline(never)]
    pub fn is_over(&self, usage: &Usage, now_ns: u64) -> bool {
        usage.reached(&self.hard, now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_ends_a_life_of_its_own() {
        let kinds: [fn(u64) -> Limits; 3] = [
            |limit| Limits { time_ns: Some(limit), ..Limits::default() },
            |limit| Limits { bytes: Some(limit), ..Limits::default() },
            |limit| Limits { packets: Some(limit), ..Limits::default() },
        ];
        for limits in kinds {
            let lifetime = Lifetime { soft: limits(3), hard: limits(5) };
            let mut usage = Usage::since(100);
            let ages: Vec<Age> = (0..6)
                .map(|step| {
                    let age = lifetime.age(&usage, 100 + step);
                    usage.add(1);
                    age
                })
                .collect();
            assert_eq!(ages, [Age::Alive, Age::Alive, Age::Alive, Age::Soft, Age::Soft, Age::Expired]);
        }
        assert_eq!(Lifetime::default().age(&Usage::since(0), u64::MAX), Age::Alive);
    }

    #[test]
    fn time_asleep_is_lived() {
        let limits = |time_ns| Limits { time_ns: Some(time_ns), ..Limits::default() };
        let lifetime = Lifetime { soft: limits(3), hard: limits(5) };
        let asleep = Usage { asleep_ns: 2, ..Usage::since(100) };
        assert_eq!(
            [100, 101, 103].map(|now_ns| lifetime.age(&asleep, now_ns)),
            [Age::Alive, Age::Soft, Age::Expired]
        );
    }
}
