//! The time for which a place held its feeders: during which it was full and they were not polled.
//!
//! ```text
//! blocked = sum over begin .. end                the present time included while it has not ended
//! ```
//!
//! Owner: the place's owner. A repeated report changes nothing, so the caller need not remember.

/// The time for which a place blocked its feeders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    total_ns: u64,
    since_ns: Option<u64>,
}

impl Blocked {
    /// Notes that a feeder is not polled because the place is full.
    pub fn begin(&mut self, now_ns: u64) {
        self.since_ns.get_or_insert(now_ns);
    }

    /// Notes that its feeders are polled again.
    pub fn end(&mut self, now_ns: u64) {
        *self = Blocked { total_ns: self.total_ns(now_ns), since_ns: None };
    }

    /// The blocked time in all until now, in nanoseconds.
    pub fn total_ns(&self, now_ns: u64) -> u64 {
        self.total_ns + self.since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_time_counts_once_however_often_it_is_told() {
        let mut blocked = Blocked::default();
        blocked.begin(100);
        blocked.begin(200);
        assert_eq!(blocked.total_ns(300), 200);
        blocked.end(400);
        blocked.end(500);
        assert_eq!(blocked.total_ns(600), 300);
        blocked.begin(700);
        assert_eq!(blocked.total_ns(710), 310);
        assert_eq!(blocked.total_ns(650), 300, "a clock that steps back");
    }
}
