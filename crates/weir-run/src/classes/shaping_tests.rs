//! Classes of files under change, with real frames.

use std::sync::Arc;

use proptest::prelude::*;
use weir_core::drops::Count;
use weir_core::packet::{Meta, Packet};
use weir_core::rate::Rate;
use weir_core::shaper::backlog::Dequeue;
use weir_core::shaper::tbf::{Limit, TbfConfig};
use weir_path::packet::{Ecn, PathPacket};
use weir_path::shaping::{FREE, Holder, Shaping, Size};
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use super::{Classes, read};

const QUEUES: usize = 3;
const SIZE: Size = Size { flows: QUEUES, packets_max: 256, held_packets_max: 256, quantum_bytes: 1518 };

fn pool() -> Pool {
    Pool::new(FrameMemory::new(300, 2048).unwrap())
}

fn classes(text: &str) -> Arc<Classes> {
    Arc::new(read("f", text, ["wa", "wb"]).unwrap())
}

/// The files that a wire is changed between. A flow is a destination port.
fn files() -> [Arc<Classes>; 5] {
    let two = "default = \"b\"\n[[class]]\nname = \"r\"\nrate = \"10mbit\"\n[[class]]\nname = \"a\"\nparent = \"r\"\nrate = \"4mbit\"\n\
               [[class]]\nname = \"b\"\nparent = \"r\"\nrate = \"6mbit\"\n[[filter]]\nto_ports = [1, 2]\nclass = \"a\"\n";
    let free = format!("{two}[[filter]]\nto_ports = 3\nclass = \"free\"\n");
    [
        classes(two),
        classes(&free.replace("\"a\"", "\"other\"")),
        classes(&free.replace("[1, 2]", "[2, 4]").replace("4mbit", "1mbit")),
        classes(&format!("shaper = \"cbq\"\n{two}")),
        classes("[[class]]\nname = \"a\"\nrate = \"5mbit\"\n"),
    ]
}

/// An IPv4 UDP datagram of a flow, with a number in its payload.
fn packet(pool: &mut Pool, port: u8, number: u32, ecn: u8, now_ns: u64) -> PathPacket {
    let mut frame = pool.take().expect("there are frames");
    let memory = Arc::clone(pool.memory());
    let bytes = memory.bytes_mut(&mut frame);
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    bytes[14..34].copy_from_slice(&[0x45, ecn, 0, 86, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[34..42].copy_from_slice(&[0, 9, 0, port, 0, 66, 0, 0]);
    bytes[42..46].copy_from_slice(&number.to_be_bytes());
    let mut packet = PathPacket::new(frame, 0, 100);
    packet.meta = Meta { arrival_ns: now_ns, ..Meta::default() };
    packet
}

fn flow_and_number(pool: &Pool, packet: &PathPacket) -> (u8, u32) {
    let bytes = packet.bytes(pool.memory());
    (bytes[37], u32::from_be_bytes(bytes[42..46].try_into().unwrap()))
}

fn take_in(shaping: &mut Shaping, pool: &mut Pool, port: u8, number: u32, now_ns: u64) {
    let packet = packet(pool, port, number, 0, now_ns);
    let class = shaping.class_of(0, packet.bytes(pool.memory()));
    shaping.enqueue(class, usize::from(port) % QUEUES, packet).unwrap();
}

#[derive(Clone, Copy, Debug)]
enum Step {
    TakeIn(u8),
    Release(u64),
    Change(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1u8..6).prop_map(Step::TakeIn),
        4 => (0u64..400_000).prop_map(Step::Release),
        1 => (0usize..5).prop_map(Step::Change),
    ]
}

proptest! {
    /// Every packet leaves once, each flow's in order, and the books agree at every step, whatever changes when.
    #[test]
    fn changes_lose_nothing_and_reorder_nothing(steps in prop::collection::vec(step(), 1..200)) {
        let (mut pool, files) = (pool(), files());
        let mut shaping = Shaping::new(SIZE, None, 0).unwrap();
        let (mut now_ns, mut sent, mut left) = (0, [0u32; 6], [0u32; 6]);
        let mut release = |shaping: &mut Shaping, pool: &mut Pool, now_ns: u64| loop {
            match shaping.dequeue(now_ns) {
                Dequeue::Packet(_, packet) => {
                    let (flow, number) = flow_and_number(pool, &packet);
                    assert_eq!(number, left[usize::from(flow)], "flow {flow}");
                    left[usize::from(flow)] += 1;
                    pool.give(packet.frame);
                }
                Dequeue::Dropped(reason, _) => panic!("dropped: {}", reason.name()),
                Dequeue::NotBefore(ready_ns) => return Some(ready_ns),
                Dequeue::Empty => return None,
            }
        };
        for step in steps {
            match step {
                Step::TakeIn(port) => {
                    take_in(&mut shaping, &mut pool, port, sent[usize::from(port)], now_ns);
                    sent[usize::from(port)] += 1;
                }
                Step::Release(by_ns) => {
                    now_ns += by_ns;
                    release(&mut shaping, &mut pool, now_ns);
                }
                Step::Change(file) => {
                    let before = shaping.held();
                    shaping.set_classes(Some(Arc::clone(&files[file])), &mut pool, now_ns, |_, _| ());
                    prop_assert_eq!(shaping.held(), before);
                }
            }
            prop_assert!(shaping.account().balances(shaping.held()));
        }
        while let Some(ready_ns) = release(&mut shaping, &mut pool, now_ns) {
            now_ns = ready_ns;
        }
        prop_assert_eq!(left, sent);
        prop_assert_eq!(shaping.held(), Count::default());
        prop_assert_eq!(shaping.account().accepted.packets, u64::from(sent.iter().sum::<u32>()));
    }
}

#[test]
fn a_class_that_stays_keeps_its_bucket_its_books_and_its_number() {
    let mut pool = pool();
    let [first, other, ..] = files();
    let mut shaping = Shaping::new(SIZE, None, 0).unwrap();
    shaping.set_classes(Some(Arc::clone(&first)), &mut pool, 0, |_, _| ());
    let (b, delivered) = (shaping.default_class(), |shaping: &Shaping| {
        shaping.rows(0).iter().find(|row| row.name == "b").unwrap().account.delivered.packets
    });
    // The bursts of 20 kB are 200 packets and more of 100 bytes; then the rate decides.
    let mut number = 0;
    let mut drain = |shaping: &mut Shaping, pool: &mut Pool| {
        let mut out = 0;
        for _ in 0..300 {
            take_in(shaping, pool, 5, number, 0);
            number += 1;
            let Dequeue::Packet(_, packet) = shaping.dequeue(0) else { break };
            pool.give(packet.frame);
            out += 1;
        }
        out
    };
    let burst = drain(&mut shaping, &mut pool);
    assert!((180..210).contains(&burst), "{burst}");
    for file in [&other, &first, &other] {
        shaping.set_classes(Some(Arc::clone(file)), &mut pool, 0, |_, _| ());
        assert_eq!((shaping.default_class(), delivered(&shaping)), (b, burst));
        assert_eq!(drain(&mut shaping, &mut pool), 0, "a change is no second burst");
    }
    let names: Vec<_> = shaping.rows(0).into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["r", "other", "b", "free"]);
    let root = &shaping.rows(0)[0];
    assert!(
        root.account.delivered.packets == burst && root.held.packets == 4,
        "an inner class is the sum of its leaves"
    );
}

/// Classes that stay, that go one by one, and that go all together.
#[test]
fn blocked_times_and_delays_of_classes_that_are_gone_are_kept() {
    const BLOCKED_NS: u64 = 1_000_000_000;
    const WAITED_NS: u64 = 3_000_000;
    let mut pool = pool();
    let [first, other, _, cbq, without_default] = files();
    let mut shaping = Shaping::new(SIZE, None, 0).unwrap();
    let changes = [
        None,
        Some(Arc::clone(&first)),
        Some(other),
        Some(classes("[[class]]\nname = \"c\"\nrate = \"5mbit\"\n")),
        Some(cbq),
        Some(without_default),
        None,
        None,
        Some(first),
    ];
    for (round, change) in (0..).zip(changes) {
        let begin_ns = round * BLOCKED_NS;
        shaping.set_classes(change, &mut pool, begin_ns, |_, _| ());
        let kept = (shaping.blocked_ns(begin_ns), shaping.delay().packets());
        assert_eq!(kept, (round * BLOCKED_NS, round), "after change {round}");
        let class = shaping.default_class();
        shaping.blocked_mut(class).unwrap().begin(begin_ns);
        take_in(&mut shaping, &mut pool, 5, 0, begin_ns);
        let Dequeue::Packet(_, packet) = shaping.dequeue(begin_ns + WAITED_NS) else {
            panic!("it may leave")
        };
        pool.give(packet.frame);
        shaping.blocked_mut(class).unwrap().end(begin_ns + BLOCKED_NS);
        assert_eq!(shaping.delay().delay_ns_max(), WAITED_NS);
    }
}

#[test]
fn an_inner_class_was_blocked_no_longer_than_its_leaves_at_the_same_time() {
    let mut shaping = Shaping::new(SIZE, None, 0).unwrap();
    shaping.set_classes(Some(Arc::clone(&files()[0])), &mut pool(), 0, |_, _| ());
    let classes: Vec<_> = (0..shaping.classes_max()).filter(|&class| class != FREE).collect();
    for class in classes {
        shaping.blocked_mut(class).into_iter().for_each(|times| times.begin(0));
    }
    let rows = shaping.rows(5);
    let of = |name: &str| rows.iter().find(|row| row.name == name).unwrap().blocked_ns;
    assert_eq!(["a", "b", "r"].map(of), [5, 5, 5]);
}

/// Only the first fragment of a datagram has the ports that its class is chosen by.
#[test]
fn all_of_a_datagram_is_of_the_class_of_its_ports() {
    let mut pool = pool();
    let mut shaping = Shaping::new(SIZE, None, 0).unwrap();
    shaping.set_classes(Some(Arc::clone(&files()[0])), &mut pool, 0, |_, _| ());
    let mut fragment = |shaping: &mut Shaping, id: u8, place: [u8; 2], port: u8| {
        let packet = packet(&mut pool, port, 0, 0, 0);
        let mut bytes = packet.bytes(pool.memory()).to_vec();
        pool.give(packet.frame);
        bytes[19] = id;
        bytes[20..22].copy_from_slice(&place);
        shaping.class_of(0, &bytes)
    };
    let [a, b] = [1, 3].map(|port| fragment(&mut shaping, 0, [0, 0], port));
    assert_ne!(a, b);
    assert_eq!(fragment(&mut shaping, 7, [0x20, 0], 1), a, "the first fragment");
    assert_eq!(fragment(&mut shaping, 7, [0x20, 185], 99), a, "one in the middle");
    assert_eq!(fragment(&mut shaping, 7, [1, 114], 99), a, "the last");
    assert_eq!(fragment(&mut shaping, 8, [1, 114], 99), b, "the last of another, whose first never came");
}

#[test]
fn a_datagram_keeps_its_class_when_classes_change_between_its_fragments() {
    let mut pool = pool();
    let mut shaping = Shaping::new(SIZE, None, 0).unwrap();
    let class = |name: &str| format!("[[class]]\nname = \"{name}\"\nrate = \"1mbit\"\n");
    let filter = |port: u8, name: &str| format!("[[filter]]\nto_ports = {port}\nclass = \"{name}\"\n");
    let file = |names: &[&str]| {
        let each: String = names.iter().map(|name| class(name)).collect();
        let filters: String = (1..).zip(&names[1..]).map(|(port, name)| filter(port, name)).collect();
        classes(&format!("default = \"{}\"\n{each}{filters}", names[0]))
    };
    let mut class_of = |shaping: &mut Shaping, place: [u8; 2], port: u8| {
        let packet = packet(&mut pool, port, 0, 0, 0);
        let mut bytes = packet.bytes(pool.memory()).to_vec();
        pool.give(packet.frame);
        bytes[20..22].copy_from_slice(&place);
        shaping.class_of(0, &bytes)
    };
    let mut other_pool = self::pool();
    shaping.set_classes(Some(file(&["bulk", "fast"])), &mut other_pool, 0, |_, _| ());
    let first = class_of(&mut shaping, [0x20, 0], 1);
    assert_ne!(first, shaping.default_class());
    // The class is at another place of the file now.
    shaping.set_classes(Some(file(&["bulk", "other", "fast"])), &mut other_pool, 0, |_, _| ());
    assert_eq!(class_of(&mut shaping, [1, 114], 99), first, "the last of a datagram whose first has left");
}

#[test]
fn what_is_free_passes_a_full_class_and_takes_turns_with_the_rest() {
    let mut pool = pool();
    let mut shaping = Shaping::new(SIZE, None, 0).unwrap();
    shaping.set_classes(Some(Arc::clone(&files()[1])), &mut pool, 0, |_, _| ());
    for number in 0..63 {
        take_in(&mut shaping, &mut pool, 5, number, 0);
    }
    let class = shaping.default_class();
    assert!(!shaping.has_room(class) && shaping.has_room(FREE), "its credit of 6250 bytes is used up");
    for number in 0..3 {
        take_in(&mut shaping, &mut pool, 3, number, 0);
    }
    let mut order = Vec::new();
    for _ in 0..6 {
        let Dequeue::Packet(_, packet) = shaping.dequeue(0) else { panic!("the burst is not used up") };
        order.push(flow_and_number(&pool, &packet).0);
        pool.give(packet.frame);
    }
    assert_eq!(order, [3, 5, 3, 5, 3, 5]);
}

#[test]
fn a_mark_is_noted_in_the_class_and_made_on_the_way_out() {
    let mut pool = pool();
    for (ecn, expected) in [(0, Ecn::Incapable), (2, Ecn::Marked)] {
        let mut packet = packet(&mut pool, 1, 0, ecn, 0);
        packet.ecn = Ecn::of(packet.bytes(pool.memory()), true);
        assert_eq!(packet.mark_ce(), ecn != 0);
        assert_eq!(packet.ecn, expected);
        packet.make_mark(pool.memory());
        let marked = packet.bytes(pool.memory())[15];
        assert_eq!(marked, if ecn == 0 { 0 } else { 3 });
        pool.give(packet.frame);
    }
}

/// A burst at once is the same however long packets are: the burst of the limit, or one packet if that is longer; also for packets of
/// another MTU later.
#[test]
fn a_burst_is_the_same_for_long_packets() {
    const LONG_BYTES: u16 = 3520;
    const BURST_BYTES: u64 = 20 * 1024;
    for (shaper, link) in [("htb", None), ("htb", Some(BURST_BYTES)), ("cbq", Some(BURST_BYTES))] {
        let limits = link.map(|burst_bytes| TbfConfig {
            rate: "1mbit".parse().unwrap(),
            burst_bytes,
            limit: Limit::Bytes(1 << 20),
        });
        let text = format!(
            "shaper = \"{shaper}\"\ndefault = \"a\"\n[[class]]\nname = \"a\"\nrate = \"1mbit\"\nburst = \"20kb\"\nqueue = \"10s\"\n"
        );
        for is_known_first in [true, false] {
            let mut pool = Pool::new(FrameMemory::new(300, 4096).unwrap());
            let mut shaping = Shaping::new(SIZE, limits, 0).unwrap();
            let note = |shaping: &mut Shaping| shaping.set_packet_bytes_max(LONG_BYTES.into(), 0);
            is_known_first.then(|| note(&mut shaping));
            shaping.set_classes(Some(classes(&text)), &mut pool, 0, |_, _| ());
            (!is_known_first).then(|| note(&mut shaping));
            for number in 0..40 {
                let mut packet = packet(&mut pool, 1, number, 0, 0);
                packet.len_bytes = LONG_BYTES;
                shaping.enqueue(shaping.default_class(), 1, packet).unwrap();
            }
            let mut out_bytes = 0;
            while let Dequeue::Packet(_, packet) = shaping.dequeue(0) {
                out_bytes += u64::from(packet.len_bytes);
                pool.give(packet.frame);
            }
            assert!(
                (BURST_BYTES - u64::from(LONG_BYTES)..=BURST_BYTES).contains(&out_bytes),
                "{shaper}, link {link:?}: {out_bytes} bytes at once"
            );
        }
    }
}

/// One packet that waits for its turn is no standing queue, however long packets are; two of them are.
#[test]
fn codel_knows_how_long_packets_are() {
    const LONG_BYTES: u16 = 3520;
    const WAIT_NS: u64 = 30_000_000;
    let text = "default = \"a\"\n[[class]]\nname = \"a\"\nrate = \"2mbit\"\nfull = \"drop\"\n";
    for (standing, is_dropped) in [(1, false), (2, true)] {
        let mut pool = Pool::new(FrameMemory::new(300, 4096).unwrap());
        let mut shaping = Shaping::new(SIZE, None, 0).unwrap();
        shaping.set_classes(Some(classes(text)), &mut pool, 0, |_, _| ());
        shaping.set_packet_bytes_max(LONG_BYTES.into(), 0);
        let mut dropped = 0;
        for number in 0..50 {
            let now_ns = u64::from(number) * WAIT_NS;
            if number >= standing {
                match shaping.dequeue(now_ns) {
                    Dequeue::Packet(_, packet) => pool.give(packet.frame),
                    Dequeue::Dropped(_, packet) => {
                        dropped += 1;
                        pool.give(packet.frame);
                    }
                    other => panic!("{other:?}"),
                }
            }
            let mut packet = packet(&mut pool, 1, number, 0, now_ns);
            packet.len_bytes = LONG_BYTES;
            shaping.enqueue(shaping.default_class(), 1, packet).unwrap();
        }
        assert_eq!(dropped > 0, is_dropped, "{standing} packets waiting: {dropped} dropped");
    }
}

/// The holder of waiting packets: a class at its ceiling is its own, classes that have used up their parent's rate have the parent, and an
/// empty class has none.
#[test]
fn what_is_waited_for_is_known() {
    let mut pool = pool();
    let text = "default = \"free\"\n[[class]]\nname = \"all\"\nrate = \"10mbit\"\nburst = \"2kb\"\ncburst = \"2kb\"\n\
                [[class]]\nname = \"wide\"\nparent = \"all\"\nrate = \"1mbit\"\nceil = \"10mbit\"\nburst = \"2kb\"\ncburst = \"9kb\"\n\
                [[class]]\nname = \"narrow\"\nparent = \"all\"\nrate = \"100kbit\"\nceil = \"200kbit\"\nburst = \"2kb\"\ncburst = \"2kb\"\n\
                [[filter]]\nto_ports = 1\nclass = \"narrow\"\n[[filter]]\nto_ports = 2\nclass = \"wide\"\n";
    let mut shaping = Shaping::new(SIZE, None, 0).unwrap();
    shaping.set_classes(Some(classes(text)), &mut pool, 0, |_, _| ());
    let waits_for = |shaping: &Shaping, name: &str| {
        shaping.rows(0).iter().find(|row| row.name == name).unwrap().holders.most().cloned()
    };
    let release = |shaping: &mut Shaping, pool: &mut Pool| {
        while let Dequeue::Packet(_, packet) = shaping.dequeue(0) {
            pool.give(packet.frame);
        }
    };
    assert_eq!((waits_for(&shaping, "all"), shaping.holders(0).most()), (None, None), "nothing waits");
    (0..60).for_each(|number| take_in(&mut shaping, &mut pool, 1, number, 0));
    release(&mut shaping, &mut pool);
    let class = |name: &str| Some(Holder::Class(name.into()));
    assert_eq!(waits_for(&shaping, "narrow"), class("narrow"));
    assert_eq!((waits_for(&shaping, "all"), waits_for(&shaping, "wide")), (class("narrow"), None));
    (0..120).for_each(|number| take_in(&mut shaping, &mut pool, 2, number, 0));
    release(&mut shaping, &mut pool);
    assert_eq!((waits_for(&shaping, "wide"), waits_for(&shaping, "narrow")), (class("all"), class("narrow")));
    assert_eq!(shaping.holders(0).most(), class("all").as_ref(), "most of what waits");
    let limits = TbfConfig {
        rate: Rate::from_bits_per_s(1_000_000).unwrap(),
        burst_bytes: 2_000,
        limit: Limit::Bytes(100_000),
    };
    let mut one = Shaping::new(SIZE, Some(limits), 0).unwrap();
    (0..30).for_each(|number| take_in(&mut one, &mut pool, 3, number, 0));
    release(&mut one, &mut pool);
    assert_eq!(one.holders(0).most(), Some(&Holder::Limit));
}
