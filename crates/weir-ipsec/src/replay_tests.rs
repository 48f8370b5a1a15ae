//! The window beside a set of all numbers received.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn window_at(size: u32, highest: u64) -> ReplayWindow {
    let mut window = ReplayWindow::new(size);
    window.note(highest).unwrap();
    window
}

#[test]
fn refuses_zero_what_was_received_and_what_is_too_old() {
    let mut window = ReplayWindow::new(64);
    assert_eq!(window.check(0), Err(NotFresh::Replayed));
    for sequence in 1..=100 {
        assert_eq!(window.note(sequence), Ok(()));
        assert_eq!(window.note(sequence), Err(NotFresh::Replayed));
    }
    assert_eq!(window.check(37), Err(NotFresh::Replayed));
    assert_eq!(window.check(36), Err(NotFresh::TooOld));
}

#[test]
fn a_window_that_shrinks_and_grows_knows_what_was_received() {
    let mut window = ReplayWindow::new(SIZE_MAX);
    let size = u64::from(SIZE_MAX);
    (1..=5000).step_by(2).for_each(|sequence| window.note(sequence).unwrap());
    window.set_size(32);
    assert_eq!((window.check(4968), window.check(4967)), (Ok(()), Err(NotFresh::TooOld)));
    window.note(5001).unwrap();
    window.set_size(SIZE_MAX);
    for sequence in 5002 - size..5001 {
        let fresh = if sequence % 2 == 1 { Err(NotFresh::Replayed) } else { Ok(()) };
        assert_eq!(window.check(sequence), fresh, "{sequence}");
    }
    assert_eq!(window.check(5001 - size), Err(NotFresh::TooOld));
}

#[test]
fn a_leap_forgets_all_words() {
    let mut window = ReplayWindow::new(SIZE_MAX);
    for sequence in 1..3000 {
        window.note(sequence).unwrap();
    }
    window.note(1 << 40).unwrap();
    for sequence in (1 << 40) - u64::from(SIZE_MAX) + 1..1 << 40 {
        assert_eq!(window.note(sequence), Ok(()), "{sequence}");
    }
    assert_eq!(window.check((1 << 40) - u64::from(SIZE_MAX)), Err(NotFresh::TooOld));
}

#[test]
fn the_upper_half_follows_the_window() {
    assert_eq!(ReplayWindow::new(64).extend(1), Some(1));
    assert_eq!(ReplayWindow::new(64).extend(u32::MAX), None, "before the first");
    let below = window_at(64, 0xffff_fff0);
    assert_eq!(below.extend(0xffff_ffff), Some(0xffff_ffff));
    assert_eq!(below.extend(0), Some(1 << 32), "the lower half has wrapped");
    let above = window_at(64, (1 << 32) + 5);
    assert_eq!(above.extend(0xffff_fff0), Some(0xffff_fff0), "late, from before the wrap");
    assert_eq!(above.extend(4), Some((1 << 32) + 4));
    let last = window_at(64, u64::MAX);
    assert_eq!(last.extend(0), None, "there is no number after the last");
    assert_eq!(last.check(u64::MAX), Err(NotFresh::Replayed));
}

proptest! {
    /// After an earlier start nothing up to its highest number is taken, and from there on all as by a window that went on.
    #[test]
    fn goes_on_after_the_highest(
        size in 1..=SIZE_MAX,
        highest in prop_oneof![0u64..5000, 0xffff_f000..0x1_0000_1000u64],
        ahead in prop::collection::vec(1u64..3000, 1..60),
    ) {
        let mut window = ReplayWindow::after(size, highest);
        for behind in 0..u64::from(2 * SIZE_MAX).min(highest) {
            prop_assert!(window.check(highest - behind).is_err(), "{} behind {}", behind, highest);
        }
        let mut model = ReplayWindow::new(size);
        (highest.saturating_sub(2 * u64::from(SIZE_MAX)).max(1)..=highest).for_each(|all| model.note(all).unwrap());
        for ahead in ahead {
            prop_assert_eq!(window.extend((highest + ahead) as u32), model.extend((highest + ahead) as u32));
            prop_assert_eq!(window.note(highest + ahead), model.note(highest + ahead));
        }
    }

    #[test]
    fn accepts_as_a_set_does(
        size in 1..=SIZE_MAX,
        begin in prop_oneof![Just(1u64), Just(0xffff_ff00), Just(u64::MAX - 100_000)],
        steps in prop::collection::vec((0u64..4000, any::<bool>()), 1..400),
    ) {
        let mut window = ReplayWindow::new(size);
        let mut received = BTreeSet::new();
        let mut highest = 0;
        let mut at = begin;
        for (step, forward) in steps {
            // The steps are small, around the highest, with a leap now and then.
            let step = if step % 16 == 0 { step } else { step % 80 };
            at = if forward { at.saturating_add(step) } else { at.saturating_sub(step).max(1) };
            let expected = if received.contains(&at) && highest - at < u64::from(size) {
                Err(NotFresh::Replayed)
            } else if at <= highest && highest - at >= u64::from(size) {
                Err(NotFresh::TooOld)
            } else {
                Ok(())
            };
            prop_assert_eq!(window.check(at), expected);
            prop_assert_eq!(window.note(at), expected);
            if expected.is_ok() {
                received.insert(at);
                highest = highest.max(at);
            }
        }
    }

    /// Of all numbers with this lower half, the result is the one that is in the window or next above it.
    #[test]
    fn extends_to_the_nearest(size in 1..=SIZE_MAX, highest in 1u64..1 << 40, behind in 0u64..1024, ahead in 1u64..1 << 31) {
        let window = window_at(size, highest);
        if behind < u64::from(size) && behind < highest {
            prop_assert_eq!(window.extend((highest - behind) as u32), Some(highest - behind));
        }
        prop_assert_eq!(window.extend((highest + ahead) as u32), Some(highest + ahead));
    }
}
