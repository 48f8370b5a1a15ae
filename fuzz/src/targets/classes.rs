//! Classes files: refused in words that name the place, or read into a tree by which a wire can shape.

use std::cell::RefCell;
use std::sync::Arc;

use weir_core::classify::Target;
use weir_core::classify::headers::Headers;
use weir_path::shaping::{FREE, Shaping, Size};
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;
use weir_run::classes::{self, Classes, TreeKind};

use crate::draw::Draw;
use crate::frames::{self, Ends};

const FILE: &str = "f.toml";
const INTERFACES: [&str; 2] = ["wa", "wb"];

/// Any text, most of it nearly such a file.
pub fn classes(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match classes::read(FILE, &text, INTERFACES) {
        Ok(classes) => {
            classes.warnings.iter().for_each(|told| look_at_told(told, &text));
            look_at(&classes);
            shape(classes, bytes);
        }
        Err(told) => look_at_told(&told, &text),
    }
}

/// A tree that is written as a file and read.
pub fn class_trees(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let kind = if draw.flag() { TreeKind::Htb } else { TreeKind::Cbq };
    let mut text = format!("shaper = \"{}\"\n", if kind == TreeKind::Htb { "htb" } else { "cbq" });
    // The parent, the rate and the ceiling of each; and the rate of the class at its top.
    let mut written: Vec<(Option<usize>, u64, u64)> = Vec::new();
    let mut tops: Vec<u64> = Vec::new();
    for place in 0..1 + draw.below(6) {
        let parent = if place == 0 || draw.rarely(4) { None } else { Some(draw.below(place)) };
        let top = parent.map(|parent| tops[parent]);
        let rate = 1 + (draw.any_u64() >> 1);
        // A class without a ceiling of its own may have the top's rate, and not be guaranteed more.
        let rate = if kind == TreeKind::Cbq { rate.min(top.unwrap_or(rate)) } else { rate };
        tops.push(top.unwrap_or(rate));
        let ceil =
            if kind == TreeKind::Htb && draw.flag() { rate.saturating_add(draw.any_u64()) } else { rate };
        text += &format!("[[class]]\nname = \"c{place}\"\nrate = \"{rate}bit\"\n");
        if ceil > rate {
            text += &format!("ceil = \"{ceil}bit\"\n");
        }
        if let Some(parent) = parent {
            text += &format!("parent = \"c{parent}\"\n");
        }
        written.push((parent, rate, ceil));
    }
    let is_leaf = |place: usize| written.iter().all(|(parent, ..)| *parent != Some(place));
    let leaves: Vec<usize> = (0..written.len()).filter(|&place| is_leaf(place)).collect();
    let default = draw.pick(&leaves);
    text.insert_str(0, &format!("default = \"c{default}\"\n"));
    // A filter leads to each leaf.
    let first_port = draw.u16();
    let leaf_of = |port: u16| leaves.get(usize::from(port.wrapping_sub(first_port))).copied();
    for (port, leaf) in leaves.iter().enumerate().map(|(at, leaf)| (first_port.wrapping_add(at as u16), leaf))
    {
        text += &format!("[[filter]]\nto_ports = {port}\nclass = \"c{leaf}\"\n");
    }
    let classes = classes::read(FILE, &text, INTERFACES).unwrap_or_else(|told| panic!("{told}\n{text}"));
    look_at(&classes);
    assert_eq!((classes.kind, classes.classes.len()), (kind, written.len()));
    for class in &classes.classes {
        let place: usize = class.name[1..].parse().expect("its number");
        let (parent, rate, ceil) = written[place];
        assert_eq!(
            class.parent.map(|index| classes.classes[index].name.clone()),
            parent.map(|p| format!("c{p}"))
        );
        assert_eq!((class.rate.bits_per_s(), class.leaf.is_some()), (rate, is_leaf(place)));
        if kind == TreeKind::Htb {
            assert_eq!(class.ceil.bits_per_s(), ceil);
        }
    }
    let frame = frames::ip(&mut draw, Ends::default());
    let headers = Headers::parse(&frame.bytes);
    let expected = headers.ports.and_then(|(_, to)| leaf_of(to)).unwrap_or(default);
    let Target::Class(found) = classes.classifier.classify(0, 0, &headers) else {
        panic!("past the limits\n{text}")
    };
    assert_eq!(classes.classes[usize::from(found)].name, format!("c{expected}"), "{text}");
    shape(classes, &frame.bytes);
}

/// Checks the properties that a reader may rely on.
fn look_at(classes: &Classes) {
    for (index, class) in classes.classes.iter().enumerate() {
        assert!(class.parent.is_none_or(|parent| parent < index && classes.classes[parent].leaf.is_none()));
        assert!(class.ceil >= class.rate || classes.kind == TreeKind::Cbq);
        assert!(class.burst_bytes >= 1514 && class.cburst_bytes >= 1514 && class.quantum_bytes >= 1514);
        let has_child = classes.classes.iter().any(|other| other.parent == Some(index));
        assert_eq!(class.leaf.is_some(), !has_child);
    }
    assert!(classes.default.is_none_or(|class| classes.classes[class].leaf.is_some()));
}

/// Checks that a message is `f.toml:LINE:COLUMN: what`, at a place that the text has.
pub(super) fn look_at_told(told: &str, text: &str) {
    let mut parts = told.splitn(4, ':');
    let (file, line, column) = (parts.next(), parts.next(), parts.next());
    let number =
        |part: Option<&str>| part.and_then(|part| part.parse::<usize>().ok()).filter(|number| *number > 0);
    let (Some(line), Some(column)) = (number(line), number(column)) else { panic!("{told}") };
    let line_len = text.split('\n').nth(line - 1).unwrap_or_else(|| panic!("{told}")).chars().count();
    assert!(file == Some(FILE) && column <= line_len + 1, "{told}");
    assert!(parts.next().is_some_and(|what| what.len() > 5), "{told}");
}

thread_local! {
    static POOL: RefCell<Pool> = RefCell::new(Pool::new(FrameMemory::new(8, 2048).expect("memory for eight frames")));
}

/// Checks that a direction is shaped by the classes, and that a frame finds its place.
fn shape(classes: Classes, frame: &[u8]) {
    // Larger trees take their time to make, and are not another case.
    if classes.classes.len() > 64 {
        return;
    }
    let size = Size { flows: 2, packets_max: 64, held_packets_max: 64, quantum_bytes: 1518 };
    let mut shaping = Shaping::new(size, None, 0).expect("no limits");
    POOL.with_borrow_mut(|pool| {
        shaping.set_classes(Some(Arc::new(classes)), pool, 1, |_, _| panic!("nothing waits"))
    });
    let class = shaping.class_of(0, frame);
    assert!(class == FREE || class < shaping.classes_max());
    assert_eq!((shaping.held().packets, shaping.has_room(class)), (0, true));
    shaping.rows(2);
}
