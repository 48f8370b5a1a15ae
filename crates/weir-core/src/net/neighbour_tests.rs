//! The states of a neighbour, its packets' order, and the bounds.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::net::places::IDLE_NS;
use crate::packet::Meta;

#[derive(Debug, PartialEq, Eq)]
struct Pkt(u32);

impl Packet for Pkt {
    fn len_bytes(&self) -> u32 {
        100
    }
    fn meta(&self) -> &Meta {
        unreachable!("a router asks for none")
    }
    fn meta_mut(&mut self) -> &mut Meta {
        unreachable!("a router asks for none")
    }
}

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];
const FRONT: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
const S: u64 = 1_000_000_000;

fn station(last: u8) -> Station {
    Station::v4(0, [10, 0, 0, last])
}

fn neighbours(entries_max: usize) -> Neighbours<Pkt> {
    bounded(entries_max, 4, Limiter::new(1_000_000, 1_000_000))
}

fn bounded(entries_max: usize, incomplete_max: usize, solicits: Limiter) -> Neighbours<Pkt> {
    // Stations 0 to 3 are near, the others are found by hash.
    let near = Near::new(&["10.0.0.1/30".parse().expect("an address")]);
    let bounds = Bounds { entries_max, incomplete_max, held_max: 8, waiting_max: 3, solicits };
    Neighbours::new([near].into(), bounds, 1)
}

/// Asks to send a packet, and holds it if the answer is to wait.
fn offer(neighbours: &mut Neighbours<Pkt>, last: u8, number: u32, now_ns: u64) -> Resolved {
    let resolved = neighbours.resolve(station(last), OWN, now_ns);
    if let Resolved::Wait(neighbour) = resolved {
        neighbours.hold(neighbour, Pkt(number));
    }
    resolved
}

fn requests(neighbours: &mut Neighbours<Pkt>, now_ns: u64) -> Vec<Request> {
    std::iter::from_fn(|| neighbours.next_request(now_ns)).collect()
}

#[test]
fn packets_wait_in_order_and_go_when_answered() {
    let mut neighbours = neighbours(4);
    for number in 0..3 {
        assert!(matches!(offer(&mut neighbours, 2, number, 0), Resolved::Wait(_)));
    }
    assert_eq!(offer(&mut neighbours, 2, 3, 0), Resolved::Drop(DropReason::NeighbourFull));
    assert_eq!(neighbours.held(), Count { packets: 3, bytes: 300 });
    assert_eq!(
        requests(&mut neighbours, 0),
        [Request { interface: 0, target: IpAddr::from([10, 0, 0, 2]), mac: None }]
    );
    assert_eq!(neighbours.next_due_ns(), Some(S));
    assert_eq!(neighbours.release(), None);
    neighbours.answered(station(2), THEIRS, S / 2);
    assert!(matches!(offer(&mut neighbours, 2, 4, S / 2), Resolved::Drop(_)), "none overtakes");
    for number in 0..3 {
        assert_eq!(neighbours.release(), Some(Released::Send(Pkt(number), 0, FRONT)));
    }
    assert_eq!(neighbours.release(), None);
    assert_eq!(neighbours.held(), Count::default());
    assert_eq!(offer(&mut neighbours, 2, 5, S / 2), Resolved::Send(FRONT));
    assert_eq!(requests(&mut neighbours, 10 * S), [], "what is answered is not asked again");
}

#[test]
fn three_requests_without_an_answer_drop_what_waits() {
    let mut neighbours = neighbours(4);
    offer(&mut neighbours, 2, 0, 0);
    for second in 0..3 {
        assert_eq!(requests(&mut neighbours, second * S).len(), 1);
        assert_eq!(requests(&mut neighbours, second * S + S - 1), []);
        assert_eq!(neighbours.release(), None);
    }
    assert_eq!(requests(&mut neighbours, 3 * S), []);
    assert_eq!(neighbours.state(station(2)), Some(NeighbourState::Failed));
    assert_eq!(offer(&mut neighbours, 2, 1, 3 * S), Resolved::Drop(DropReason::NoNeighbour));
    assert_eq!(neighbours.release(), Some(Released::Unreachable(Pkt(0))));
    assert_eq!(neighbours.release(), None);
    assert_eq!(neighbours.state(station(2)), None, "and it is forgotten");
    assert!(matches!(offer(&mut neighbours, 2, 2, 3 * S), Resolved::Wait(_)), "so it may be asked anew");
}

#[test]
fn an_old_address_is_used_while_it_is_probed() {
    let mut neighbours = neighbours(4);
    offer(&mut neighbours, 2, 0, 0);
    requests(&mut neighbours, 0);
    neighbours.answered(station(2), THEIRS, 0);
    while neighbours.release().is_some() {}
    let old_ns = REACHABLE_NS;
    assert_eq!(offer(&mut neighbours, 2, 1, old_ns), Resolved::Send(FRONT));
    assert_eq!(neighbours.state(station(2)), Some(NeighbourState::Probe));
    assert_eq!(requests(&mut neighbours, old_ns)[0].mac, Some(THEIRS), "asked directly");
    assert_eq!(requests(&mut neighbours, old_ns + S).len(), 1);
    neighbours.answered(station(2), THEIRS, old_ns + S);
    assert_eq!(neighbours.state(station(2)), Some(NeighbourState::Reachable));
    // The entry grows old again, and no answer comes.
    let old_ns = 3 * REACHABLE_NS;
    offer(&mut neighbours, 2, 2, old_ns);
    for second in 0..4 {
        assert_eq!(requests(&mut neighbours, old_ns + second * S).len(), usize::from(second < 3));
    }
    assert_eq!(neighbours.state(station(2)), None);
}

#[test]
fn what_was_not_asked_for_is_not_trusted_and_a_static_entry_never_changes() {
    let mut neighbours = neighbours(4);
    neighbours.answered(station(2), THEIRS, 0);
    assert_eq!(neighbours.state(station(2)), None, "nobody asked");
    neighbours.heard(station(2), THEIRS, OWN, 0);
    assert_eq!(neighbours.state(station(2)), Some(NeighbourState::Stale));
    assert!(neighbours.add_permanent(station(3), THEIRS, OWN, 0));
    neighbours.heard(station(3), [6; 6], OWN, 0);
    neighbours.answered(station(3), [6; 6], 0);
    assert_eq!(offer(&mut neighbours, 3, 0, 1 << 60), Resolved::Send(FRONT));
    assert_eq!(requests(&mut neighbours, 1 << 60), []);
}

#[test]
fn a_full_table_lets_idle_entries_give_way_and_others_stay() {
    let mut neighbours = neighbours(2);
    assert!(neighbours.add_permanent(station(1), THEIRS, OWN, 0));
    neighbours.heard(station(2), THEIRS, OWN, 0);
    neighbours.heard(station(3), THEIRS, OWN, IDLE_NS - 1);
    assert_eq!(neighbours.state(station(3)), None, "nobody gives way yet");
    neighbours.heard(station(3), THEIRS, OWN, IDLE_NS);
    assert_eq!(
        [1, 2, 3].map(|last| neighbours.state(station(last))),
        [Some(NeighbourState::Permanent), None, Some(NeighbourState::Stale)]
    );
    // A neighbour that packets go to is asked, and stays while it is.
    let now_ns = 2 * IDLE_NS;
    assert_eq!(offer(&mut neighbours, 3, 0, now_ns), Resolved::Send(FRONT));
    neighbours.heard(station(2), THEIRS, OWN, now_ns);
    requests(&mut neighbours, now_ns);
    neighbours.answered(station(3), THEIRS, now_ns);
    neighbours.heard(station(2), THEIRS, OWN, now_ns + REACHABLE_NS + IDLE_NS - 1);
    assert_eq!([2, 3].map(|last| neighbours.state(station(last))), [None, Some(NeighbourState::Reachable)]);
    neighbours.heard(station(2), THEIRS, OWN, now_ns + REACHABLE_NS + IDLE_NS);
    assert_eq!([2, 3].map(|last| neighbours.state(station(last))), [Some(NeighbourState::Stale), None]);
}

#[test]
fn unknown_addresses_have_places_of_their_own() {
    let mut neighbours = bounded(1, 2, Limiter::new(1_000_000, 1_000_000));
    neighbours.heard(station(1), THEIRS, OWN, 0);
    for (last, waits) in [(2, true), (3, true), (4, false)] {
        let resolved = offer(&mut neighbours, last, 0, 2 * IDLE_NS);
        assert_eq!(matches!(resolved, Resolved::Wait(_)), waits, "station {last}");
    }
    assert_eq!((neighbours.taken(), neighbours.solicits_limited()), ([1, 2], 1));
    assert_eq!(requests(&mut neighbours, 2 * IDLE_NS).len(), 2);
    assert_eq!(
        neighbours.state(station(1)),
        Some(NeighbourState::Stale),
        "idle, but none of these took its place"
    );
    // An answer needs no limit: its sender exists.
    neighbours.answered(station(2), THEIRS, 2 * IDLE_NS);
    assert_eq!((neighbours.taken(), neighbours.state(station(1))), ([1, 1], None));
    assert_eq!(neighbours.release(), Some(Released::Send(Pkt(0), 0, FRONT)));
    assert_eq!(neighbours.release(), None);
    // If no entry is idle, the answer has no effect, and packets that wait are given up in time.
    neighbours.answered(station(3), THEIRS, 2 * IDLE_NS);
    assert_eq!((neighbours.taken(), neighbours.release()), ([1, 1], None));
    for second in 1..=3 {
        requests(&mut neighbours, 2 * IDLE_NS + second * S);
    }
    assert_eq!(neighbours.release(), Some(Released::Unreachable(Pkt(0))));
    assert_eq!((neighbours.release(), neighbours.taken()), (None, [1, 0]));
}

/// Neighbours of two interfaces, of which the first tells new addresses without end, ten for each place within the time in which none is
/// idle. `trick` is what it does to each of them, beside telling it.
fn crowded(trick: impl Fn(&mut Neighbours<Pkt>, Station, u64)) -> (Neighbours<Pkt>, u64) {
    const PLACES: u64 = 64;
    let bounds = Bounds {
        entries_max: PLACES as usize,
        incomplete_max: 4,
        held_max: 8,
        waiting_max: 3,
        solicits: Limiter::new(1_000_000, 1_000_000),
    };
    let near = ["10.0.0.1/30", "10.1.0.1/30"].map(|own| Near::new(&[own.parse().expect("an address")]));
    let mut neighbours = Neighbours::new(near.into(), bounds, 1);
    // The station on the second interface was known, and idle since.
    neighbours.heard(quiet(), THEIRS, OWN, 0);
    let begin_ns = 2 * REACHABLE_NS;
    let mut now_ns = begin_ns;
    for number in 0..10 * PLACES as u16 {
        let [high, low] = number.to_be_bytes();
        let crowd = Station::v4(0, [10, 0, 1 + high, low]);
        neighbours.heard(crowd, THEIRS, OWN, now_ns);
        trick(&mut neighbours, crowd, now_ns);
        now_ns = begin_ns + u64::from(number) * IDLE_NS / (10 * PLACES);
    }
    (neighbours, now_ns)
}

/// A station on the second interface.
fn quiet() -> Station {
    Station::v4(1, [10, 1, 0, 2])
}

#[test]
fn a_crowd_on_one_interface_shuts_out_no_neighbour_of_another() {
    let only_heard = |_: &mut Neighbours<Pkt>, _, _| {};
    let confirmed =
        |neighbours: &mut Neighbours<Pkt>, crowd, now_ns| neighbours.answered(crowd, THEIRS, now_ns);
    let asked = |neighbours: &mut Neighbours<Pkt>, crowd, now_ns| {
        if neighbours.state(crowd).is_some() {
            assert_eq!(neighbours.resolve(crowd, OWN, now_ns), Resolved::Send(FRONT));
            requests(neighbours, now_ns);
        }
    };
    for trick in [only_heard as fn(&mut Neighbours<Pkt>, Station, u64), confirmed, asked] {
        let (mut neighbours, now_ns) = crowded(trick);
        assert_eq!((neighbours.taken(), neighbours.state(quiet())), ([64, 0], None));
        let Resolved::Wait(waits) = neighbours.resolve(quiet(), OWN, now_ns) else {
            panic!("it is asked for")
        };
        neighbours.hold(waits, Pkt(7));
        neighbours.answered(quiet(), THEIRS, now_ns);
        assert_eq!(neighbours.release(), Some(Released::Send(Pkt(7), 1, FRONT)));
        assert_eq!((neighbours.release(), neighbours.taken()), (None, [64, 0]));
    }
    let (mut neighbours, now_ns) = crowded(only_heard);
    neighbours.heard(quiet(), THEIRS, OWN, now_ns);
    assert_eq!(neighbours.state(quiet()), Some(NeighbourState::Stale), "and it may speak first");
}

/// An interface takes from another no more than its share, and what packets need only if they need the new neighbour too.
#[test]
fn a_crowd_takes_no_place_of_those_who_have_fewer() {
    let confirmed =
        |neighbours: &mut Neighbours<Pkt>, crowd, now_ns| neighbours.answered(crowd, THEIRS, now_ns);
    let (mut neighbours, now_ns) = crowded(confirmed);
    let station = |last| Station::v4(1, [10, 1, 1, last]);
    neighbours.heard(station(0), THEIRS, OWN, now_ns);
    assert_eq!(neighbours.state(station(0)), None, "it only spoke");
    let mut learn = |number: u8| {
        let Resolved::Wait(waits) = neighbours.resolve(station(number), OWN, now_ns) else { return false };
        neighbours.hold(waits, Pkt(0));
        requests(&mut neighbours, now_ns);
        neighbours.answered(station(number), THEIRS, now_ns);
        let is_sent = matches!(neighbours.release(), Some(Released::Send(..)));
        while neighbours.release().is_some() {}
        is_sent
    };
    let learned = (0..60).filter(|&number| learn(number)).count();
    assert_eq!(learned, 32, "of 64 places");
    assert_eq!(neighbours.taken(), [64, 4], "the others are still asked for");
}

#[test]
fn new_questions_are_limited_and_those_to_neighbours_are_not() {
    let mut neighbours = bounded(4, 4, Limiter::new(10, 2));
    neighbours.heard(station(1), THEIRS, OWN, 0);
    let offered = [2, 3, 4, 5, 1].map(|last| offer(&mut neighbours, last, 0, 0));
    assert!(matches!(offered[..2], [Resolved::Wait(_), Resolved::Wait(_)]));
    assert_eq!(offered[2..4], [Resolved::Drop(DropReason::NeighbourFull); 2]);
    assert_eq!((offered[4], neighbours.solicits_limited()), (Resolved::Send(FRONT), 2));
    let asked = requests(&mut neighbours, 0);
    assert_eq!(asked.iter().map(|request| request.mac).collect::<Vec<_>>(), [Some(THEIRS), None, None]);
    assert!(matches!(offer(&mut neighbours, 4, 0, S / 10), Resolved::Wait(_)), "ten a second");
}

#[test]
fn a_probe_that_could_not_be_put_does_not_count() {
    let mut neighbours = neighbours(4);
    neighbours.heard(station(1), THEIRS, OWN, 0);
    offer(&mut neighbours, 1, 0, 0);
    offer(&mut neighbours, 2, 0, 0);
    for second in 0..10 {
        for request in requests(&mut neighbours, second * S) {
            neighbours.note_unasked(request);
        }
        while neighbours.release().is_some() {}
    }
    assert_eq!(neighbours.state(station(1)), Some(NeighbourState::Probe));
    assert_eq!(neighbours.state(station(2)), None, "nobody knows whether it exists");
    for second in 10..14 {
        requests(&mut neighbours, second * S);
    }
    assert_eq!(neighbours.state(station(1)), None);
}

#[derive(Clone, Debug)]
enum Step {
    Offer(u8),
    Answer(u8),
    Heard(u8),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u8..6).prop_map(Step::Offer),
        2 => (0u8..6).prop_map(Step::Answer),
        1 => (0u8..6).prop_map(Step::Heard),
        2 => (0u64..20).prop_map(|tenths| Step::Wait(tenths * S / 10)),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// No packet is lost or overtaken, whatever messages come when.
    #[test]
    fn every_packet_comes_out_once_and_in_order(steps in steps(), entries_max in 1usize..5) {
        let mut neighbours = neighbours(entries_max);
        let mut waiting: Vec<VecDeque<u32>> = vec![VecDeque::new(); 6];
        let (mut number, mut now_ns) = (0, 0);
        for step in steps {
            match step {
                Step::Offer(last) => {
                    number += 1;
                    match offer(&mut neighbours, last, number, now_ns) {
                        Resolved::Wait(_) => waiting[usize::from(last)].push_back(number),
                        Resolved::Send(_) => prop_assert!(waiting[usize::from(last)].is_empty(), "overtaken"),
                        Resolved::Drop(_) => {}
                    }
                }
                Step::Answer(last) => neighbours.answered(station(last), [2, 0, 0, 0, 0, last], now_ns),
                Step::Heard(last) => neighbours.heard(station(last), [2, 0, 0, 0, 0, last], OWN, now_ns),
                Step::Wait(wait_ns) => now_ns += wait_ns,
            }
            prop_assert!(requests(&mut neighbours, now_ns).len() <= entries_max + 4);
            let [known, incomplete] = neighbours.taken();
            prop_assert!(known <= entries_max && incomplete <= 4);
            let held = waiting.iter().map(VecDeque::len).sum::<usize>();
            prop_assert_eq!(neighbours.held().packets, held as u64);
            while let Some(released) = neighbours.release() {
                let number = match &released {
                    Released::Send(packet, ..) | Released::Unreachable(packet) => packet.0,
                };
                let queue = waiting.iter_mut().find(|queue| queue.front() == Some(&number));
                prop_assert!(queue.is_some(), "{number} came out of turn");
                queue.expect("a queue").pop_front();
            }
        }
        // All packets that wait come out by themselves in time.
        for _ in 0..5 {
            now_ns += S;
            requests(&mut neighbours, now_ns);
            while neighbours.release().is_some() {}
        }
        prop_assert_eq!(neighbours.held(), Count::default());
        prop_assert_eq!(neighbours.next_due_ns(), None);
    }

    /// The packets that go at once, against the last message of each station: addresses change, trust ends, entries give way.
    #[test]
    fn what_is_ready_is_what_was_told_last(
        steps in prop::collection::vec((steps().prop_map(|steps| steps[0].clone()), 0u8..3), 1..200),
        entries_max in 1usize..5,
    ) {
        let mut neighbours = neighbours(entries_max);
        let mut told = [([0; 6], 0); 6];
        let mut now_ns = 0;
        for (step, mac) in steps {
            let mac = [2, 0, 0, 0, 1, mac];
            match step {
                Step::Offer(last) => drop(offer(&mut neighbours, last, 0, now_ns)),
                Step::Answer(last) => {
                    if neighbours.state(station(last)).is_some() {
                        told[usize::from(last)] = (mac, now_ns);
                    }
                    neighbours.answered(station(last), mac, now_ns);
                }
                Step::Heard(last) => {
                    neighbours.heard(station(last), mac, OWN, now_ns);
                    told[usize::from(last)].0 = mac;
                }
                // The wait is up to longer than an answer is trusted.
                Step::Wait(wait_ns) => now_ns += 20 * wait_ns,
            }
            requests(&mut neighbours, now_ns);
            while neighbours.release().is_some() {}
            for last in 0..6 {
                let (mac, confirmed_ns) = told[usize::from(last)];
                let trusted = match neighbours.state(station(last)) {
                    Some(NeighbourState::Probe | NeighbourState::Permanent) => true,
                    Some(NeighbourState::Reachable) => now_ns - confirmed_ns < REACHABLE_NS,
                    _ => false,
                };
                let front = [mac, OWN].concat();
                let expected = trusted.then_some(&front[..]);
                prop_assert_eq!(neighbours.ready(station(last), now_ns).map(|front| &front[..]), expected);
                let near = neighbours.ready_v4(0, [10, 0, 0, last], now_ns);
                prop_assert_eq!(near.map(|front| &front[..]), expected);
            }
        }
    }
}

#[test]
fn an_interface_that_is_gone_has_no_neighbours_but_those_that_are_configured() {
    let mut neighbours = neighbours(8);
    for last in [1, 2, 9] {
        neighbours.heard(station(last), THEIRS, OWN, 0);
    }
    neighbours.answered(station(2), THEIRS, 0);
    let elsewhere = Station::v4(0, [10, 0, 0, 77]);
    let permanent = Station::v4(0, [10, 0, 0, 3]);
    assert!(neighbours.add_permanent(permanent, THEIRS, OWN, 0));
    neighbours.forget(1);
    assert_eq!(neighbours.taken(), [4, 0], "another interface");
    neighbours.forget(0);
    assert_eq!(neighbours.taken(), [1, 0]);
    assert_eq!([station(1), station(2), station(9), elsewhere].map(|who| neighbours.state(who)), [None; 4]);
    assert_eq!(neighbours.state(permanent), Some(NeighbourState::Permanent));
    assert!(matches!(offer(&mut neighbours, 2, 0, S), Resolved::Wait(_)), "it is asked for anew");
}
