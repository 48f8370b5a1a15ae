//! The earlier of several due times.

/// The sooner of two times, each of which may be absent.
///
/// A minimum over a list of the two gives the same, but a processor waits for both to be written before it reads them back together.
#[inline]
pub fn sooner(one_ns: Option<u64>, other_ns: Option<u64>) -> Option<u64> {
    match (one_ns, other_ns) {
        (Some(one_ns), Some(other_ns)) => Some(one_ns.min(other_ns)),
        _ => one_ns.or(other_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_at_no_time_is_later_than_all() {
        assert_eq!(sooner(Some(2), Some(1)), Some(1));
        assert_eq!(sooner(Some(1), Some(2)), Some(1));
        assert_eq!([sooner(None, Some(u64::MAX)), sooner(Some(0), None)], [Some(u64::MAX), Some(0)]);
        assert_eq!(sooner(None, None), None);
    }
}
