//! Tests of `wheel`: against a sorted map of slots, whatever the clock does.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Push { ahead: u64, flows: usize },
    Advance { by: u64, slots_max: usize },
    TakeAny,
}

fn operation() -> impl Strategy<Value = Operation> {
    // Within a slot, a word of the set, the window, and beyond it.
    let time = prop_oneof![0u64..1 << 20, 0u64..1 << 25, 0u64..1 << 30, 0u64..1 << 38, 0u64..1 << 46];
    prop_oneof![
        8 => (time.clone(), 1usize..40).prop_map(|(ahead, flows)| Operation::Push { ahead, flows }),
        8 => (time, 0usize..100).prop_map(|(by, slots_max)| Operation::Advance { by, slots_max }),
        1 => Just(Operation::TakeAny),
    ]
}

fn flows_of(wheel: &mut Wheel, due: &mut Due) -> Vec<u32> {
    let mut flows = Vec::new();
    while wheel.take_chunk(due) {
        flows.extend(std::iter::from_fn(|| due.next()));
    }
    assert!(due.is_empty());
    flows.sort_unstable();
    flows
}

proptest! {
    /// The same flows at the same times, in order of their slots, with no more memory than for those that are in it; also when the
    /// caller is late, or does not take all that is due.
    #[test]
    fn flows_leave_in_order_of_time_and_never_early(
        operations in prop::collection::vec(operation(), 1..200),
        flows_max in 1usize..100,
    ) {
        let mut now = 0;
        let mut wheel = Wheel::new(flows_max);
        let mut model: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        let (mut inside, mut number, mut due) = (0, 0, Due::default());
        for &operation in &operations {
            let mut all_taken = false;
            match operation {
                Operation::Push { ahead, flows } => {
                    for _ in 0..flows.min(flows_max - inside) {
                        let at = now + ahead;
                        wheel.push(at, number);
                        let slot = at.div_ceil(1 << SLOT_SHIFT).clamp(wheel.base, wheel.base + SLOTS - 1);
                        model.entry(slot).or_default().push(number);
                        inside += 1;
                        number += 1;
                    }
                }
                Operation::Advance { by, slots_max } => {
                    now += by;
                    all_taken = true;
                    for taken in 0.. {
                        if taken == slots_max {
                            all_taken = false;
                            break;
                        }
                        let told: Vec<u32> = wheel.later(&due).to_vec();
                        if !wheel.take_due(now, &mut due) {
                            break;
                        }
                        let (slot, flows) = model.pop_first().expect("nothing is taken that is not there");
                        prop_assert!(slot << SLOT_SHIFT <= now, "early");
                        prop_assert!(!told.is_empty() && told.iter().all(|flow| flows.contains(flow)), "the next ones are told");
                        inside -= flows.len();
                        prop_assert_eq!(flows_of(&mut wheel, &mut due), flows);
                    }
                }
                Operation::TakeAny => {
                    prop_assert_eq!(wheel.take_any(&mut due), !model.is_empty());
                    for flow in flows_of(&mut wheel, &mut due) {
                        let slot = *model.iter().find(|(_, flows)| flows.contains(&flow)).expect("it was there").0;
                        let flows = model.get_mut(&slot).expect("just found");
                        flows.retain(|other| *other != flow);
                        if flows.is_empty() {
                            model.remove(&slot);
                        }
                        inside -= 1;
                    }
                }
            }
            let first = model.first_key_value().map(|(slot, _)| slot << SLOT_SHIFT);
            prop_assert_eq!(wheel.next(), first);
            prop_assert!(!all_taken || first.is_none_or(|at| at > now), "late");
            prop_assert!(wheel.chunks.len() <= flows_max + flows_max.div_ceil(CHUNK - 1) + 2, "memory");
        }
    }
}

#[test]
fn a_clock_that_steps_back_takes_nothing_and_loses_nothing() {
    const SLOT: Ticks = 1 << SLOT_SHIFT;
    let (mut wheel, mut due) = (Wheel::new(2), Due::default());
    assert!(!wheel.take_due(1000 * SLOT, &mut due));
    wheel.push(1002 * SLOT + 1, 7);
    assert!(!wheel.take_due(0, &mut due));
    wheel.push(0, 8);
    assert!(wheel.take_due(1000 * SLOT, &mut due), "a time past goes into the first slot");
    assert_eq!(flows_of(&mut wheel, &mut due), [8]);
    assert!(!wheel.take_due(1003 * SLOT - 1, &mut due));
    assert!(wheel.take_due(1003 * SLOT, &mut due));
    assert_eq!(flows_of(&mut wheel, &mut due), [7]);
}

/// However many flows wait for the same time, each is taken once.
#[test]
fn a_herd_is_taken_whole() {
    let flows = 100_000;
    let (mut wheel, mut due) = (Wheel::new(flows as usize), Due::default());
    let at = 12_345_678_901;
    (0..flows).for_each(|flow| wheel.push(at, flow));
    assert_eq!(wheel.next(), Some(at.next_multiple_of(1 << SLOT_SHIFT)));
    assert!(!wheel.take_due(at - (1 << SLOT_SHIFT), &mut due));
    assert!(wheel.take_due(at + (1 << SLOT_SHIFT), &mut due));
    assert!(flows_of(&mut wheel, &mut due).into_iter().eq(0..flows));
}
