//! The bridge against a model, and its rules one by one.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn frame(destination: u64, source: u64) -> Vec<u8> {
    let mut frame = destination.to_be_bytes()[2..].to_vec();
    frame.extend(&source.to_be_bytes()[2..]);
    frame.extend([0x81, 0x00, 0x00, 0x07, 0x08, 0x00]);
    frame
}

fn one(bridge: &mut Bridge, ingress: u16, destination: u64, source: u64, now_ns: u64) -> Egress {
    forwarded(bridge, ingress, &[frame(destination, source)], now_ns)[0]
}

/// The egress of each frame.
fn forwarded(bridge: &mut Bridge, ingress: u16, frames: &[Vec<u8>], now_ns: u64) -> Vec<Egress> {
    let mut runs = Vec::new();
    bridge.forward(ingress, frames, now_ns, &mut runs);
    assert!(runs.windows(2).all(|two| two[0].0 != two[1].0), "neighbours with one egress are one run");
    runs.into_iter().flat_map(|(egress, count)| std::iter::repeat_n(egress, count)).collect()
}

fn bridge(ports: u16, stations_max: usize) -> Bridge {
    let mut bridge = Bridge::new(stations_max, AGEING_NS, 42);
    (0..ports).for_each(|port| bridge.add_port(port));
    bridge
}

const A: u64 = 0x0200_0000_000a;
const B: u64 = 0x0200_0000_000b;
const BROADCAST: u64 = 0xffff_ffff_ffff;

#[test]
fn floods_until_it_has_heard_the_station() {
    let mut bridge = bridge(3, 16);
    assert_eq!(one(&mut bridge, 0, B, A, 0), Egress::Flood);
    assert_eq!(bridge.flood_ports(0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(one(&mut bridge, 2, A, B, 1), Egress::Port(0));
    assert_eq!(one(&mut bridge, 0, B, A, 2), Egress::Port(2));
    assert_eq!(one(&mut bridge, 2, B, A, 3), Egress::Drop(DropReason::OwnSegment), "A moved beside B");
    assert_eq!(one(&mut bridge, 0, A, 0x0200_0000_000c, 4), Egress::Port(2));
    assert_eq!(
        *bridge.counts(),
        BridgeCounts { learned: 3, moved: 1, flooded_unknown: 1, ..Default::default() }
    );
}

#[test]
fn forgets_a_station_after_the_ageing_time() {
    let mut bridge = bridge(2, 16);
    one(&mut bridge, 1, BROADCAST, B, 0);
    assert_eq!(one(&mut bridge, 0, B, A, AGEING_NS - 1), Egress::Port(1));
    assert_eq!(one(&mut bridge, 0, B, A, AGEING_NS), Egress::Flood);
    for _ in 0..64 {
        one(&mut bridge, 0, BROADCAST, A, AGEING_NS);
    }
    assert_eq!(bridge.stations(), 1, "only A is left, and B's place is free");
    assert_eq!(bridge.counts().aged, 1);
}

#[test]
fn keeps_reserved_groups_on_their_link_and_floods_the_others() {
    let mut bridge = bridge(2, 16);
    for last in 1..16 {
        assert_eq!(one(&mut bridge, 0, 0x0180_c200_0000 | last, A, 0), Egress::Drop(DropReason::LinkLocal));
    }
    assert_eq!(one(&mut bridge, 0, 0x0180_c200_0010, A, 0), Egress::Flood);
    assert_eq!(one(&mut bridge, 0, 0x0180_c200_0000, A, 0), Egress::Flood, "a BPDU");
    assert_eq!(one(&mut bridge, 0, BROADCAST, A, 0), Egress::Flood);
    assert_eq!(one(&mut bridge, 0, B, BROADCAST, 0), Egress::Drop(DropReason::Malformed));
    assert_eq!(one(&mut bridge, 0, B, 0, 0), Egress::Drop(DropReason::Malformed));
}

/// One address in two VLANs is two stations; priority tags and none are one VLAN.
#[test]
fn stations_are_of_their_vlan() {
    fn tagged(bridge: &mut Bridge, ingress: u16, to: u64, from: u64, tag: &[u8]) -> Egress {
        let mut frame = frame(to, from);
        frame.splice(12..16, tag.iter().copied());
        forwarded(bridge, ingress, &[frame], 0)[0]
    }
    const SEVEN: &[u8] = &[0x81, 0x00, 0x00, 0x07];
    const EIGHT: &[u8] = &[0x81, 0x00, 0x00, 0x08];
    const EIGHT_URGENT: &[u8] = &[0x88, 0xa8, 0xe0, 0x08];
    const PRIORITY: &[u8] = &[0x81, 0x00, 0xe0, 0x00];
    let mut bridge = bridge(4, 16);
    tagged(&mut bridge, 0, BROADCAST, B, SEVEN);
    tagged(&mut bridge, 1, BROADCAST, B, EIGHT);
    tagged(&mut bridge, 2, BROADCAST, B, &[]);
    assert_eq!((bridge.stations(), bridge.counts().moved), (3, 0));
    for (tag, port) in [(SEVEN, 0), (EIGHT, 1), (EIGHT_URGENT, 1), (PRIORITY, 2), (&[][..], 2)] {
        assert_eq!(tagged(&mut bridge, 3, B, A, tag), Egress::Port(port), "{tag:02x?}");
    }
    assert_eq!(tagged(&mut bridge, 3, B, A, &[0x81, 0x00, 0x00, 0x09]), Egress::Flood);
}

#[test]
fn a_full_table_floods_and_counts() {
    let mut bridge = bridge(2, 4);
    for source in 1..=6 {
        one(&mut bridge, 0, BROADCAST, B + source, 0);
    }
    assert_eq!((bridge.counts().learned, bridge.counts().table_full), (4, 2));
    assert_eq!(one(&mut bridge, 1, B + 6, A, 0), Egress::Flood, "not learned, so flooded");
    assert_eq!(one(&mut bridge, 1, B + 1, A, 0), Egress::Port(0));
}

#[test]
fn a_lone_port_and_a_forgotten_port() {
    let mut bridge = bridge(1, 4);
    assert_eq!(one(&mut bridge, 0, BROADCAST, A, 0), Egress::Drop(DropReason::OwnSegment));
    bridge.add_port(1);
    one(&mut bridge, 1, BROADCAST, B, 0);
    assert_eq!(one(&mut bridge, 0, B, A, 0), Egress::Port(1));
    bridge.forget(1);
    assert_eq!(bridge.stations(), 1);
    assert_eq!(one(&mut bridge, 0, B, A, 0), Egress::Flood);
}

#[derive(Clone, Debug)]
struct Step {
    ingress: u16,
    frames: Vec<(u64, u64)>,
    wait_s: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let address = prop_oneof![
        8 => (0u64..8).prop_map(|low| A + low),
        1 => Just(BROADCAST),
        1 => Just(0x0180_c200_0003),
        1 => Just(0),
    ];
    let frames = prop::collection::vec((address.clone(), address), 0..20);
    let step = (0u16..4, frames, prop_oneof![3 => 0u64..2, 1 => 0u64..400])
        .prop_map(|(ingress, frames, wait_s)| Step { ingress, frames, wait_s });
    prop::collection::vec(step, 1..30)
}

proptest! {
    /// The bridge against a `HashMap` of all stations, frame by frame.
    #[test]
    fn forwards_as_the_model_does(steps in steps()) {
        let mut bridge = bridge(4, 64);
        let mut model: HashMap<u64, (u16, u64)> = HashMap::new();
        let mut now_ns = 0;
        for step in steps {
            now_ns += step.wait_s * 1_000_000_000;
            let frames: Vec<_> = step.frames.iter().map(|&(to, from)| frame(to, from)).collect();
            let egress = forwarded(&mut bridge, step.ingress, &frames, now_ns);
            prop_assert_eq!(egress.len(), frames.len());
            for (&(to, from), egress) in step.frames.iter().zip(egress) {
                let expected = if from & GROUP != 0 || from == 0 {
                    Egress::Drop(DropReason::Malformed)
                } else {
                    let known = model.get(&from).filter(|&&(port, heard_ns)| {
                        // A refresh may be left out for this long.
                        port == step.ingress && now_ns - heard_ns < AGEING_NS / 256
                    });
                    if known.is_none() {
                        model.insert(from, (step.ingress, now_ns));
                    }
                    match model.get(&to) {
                        _ if to == 0x0180_c200_0003 => Egress::Drop(DropReason::LinkLocal),
                        Some(&(port, heard_ns)) if now_ns - heard_ns < AGEING_NS => {
                            if port == step.ingress {
                                Egress::Drop(DropReason::OwnSegment)
                            } else {
                                Egress::Port(port)
                            }
                        }
                        _ => Egress::Flood,
                    }
                };
                prop_assert_eq!(egress, expected);
            }
        }
    }

    #[test]
    fn any_bytes_are_decided(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..64)) {
        let mut bridge = bridge(2, 8);
        let egress = forwarded(&mut bridge, 0, &frames, 0);
        prop_assert_eq!(egress.len(), frames.len());
        for (frame, egress) in frames.iter().zip(egress) {
            prop_assert!(frame.len() >= 14 || egress == Egress::Drop(DropReason::Malformed));
        }
    }
}
