//! Messages of the kernel's IPsec over netlink: followed in words without a key, and as a plan that a file can say.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

use weir_path::esp::plan::{EspDispatch, EspPlan};
use weir_path::plan::StageKind;
use weir_run::ipsec::follow::Follower;
use weir_run::topology::{self, write::plan::write_esp};

use crate::draw::Draw;

const AROUND: &str = "[[port]]\ninterface = \"lan\"\n[[port]]\ninterface = \"wan\"\n[[epair]]\nname = \"e0\"\n\
                      [[wire]]\nports = [\"lan\", \"e0a\"]\n";
/// Digits that only the keys of the messages have.
const KEY: &str = "05060708090a0b0c";

/// The most messages of an input: some of each kind.
const MESSAGES_MAX: usize = 24;

/// Messages of a kernel.
static MESSAGES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let captured = include_str!("../../../crates/weir-run/src/ipsec/follow/captured.txt");
    let lines = captured.lines().filter(|line| !line.starts_with('#'));
    let digits = lines.filter_map(|line| line.split_once(' ')).map(|(_, digits)| digits.as_bytes());
    let byte =
        |pair: &[u8; 2]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    digits.map(|digits| digits.as_chunks::<2>().0.iter().filter_map(byte).collect()).collect()
});

/// Any bytes.
pub fn follow_bytes(bytes: &[u8]) {
    let mut follower = follower();
    let _ = follower.dumped(bytes);
    hear(&mut follower, bytes);
    look_at(&mut follower);
}

/// Messages of a kernel in any order, changed here and there and cut off.
pub fn follows(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let mut follower = follower();
    for _ in 0..MESSAGES_MAX {
        if draw.is_empty() {
            break;
        }
        let mut message = MESSAGES[draw.below(MESSAGES.len())].clone();
        if draw.rarely(2) {
            for _ in 0..=draw.below(4) {
                let at = draw.below(message.len());
                message[at] = draw.u8();
            }
        }
        if draw.rarely(8) {
            message.truncate(draw.below(message.len() + 1));
            if let Some(length) = message.len().try_into().ok().map(u32::to_ne_bytes)
                && message.len() >= length.len()
            {
                message[..length.len()].copy_from_slice(&length);
            }
        }
        if draw.rarely(8) {
            let _ = follower.dumped(&message);
        }
        hear(&mut follower, &message);
    }
    look_at(&mut follower);
}

fn follower() -> Follower {
    Follower::new(Path::new("/run/keys"))
}

fn hear(follower: &mut Follower, message: &[u8]) {
    follower.heard(message).lines.iter().for_each(|line| require_harmless(line));
}

fn require_harmless(line: &str) {
    assert!(!line.contains(KEY) && !line.is_empty() && !line.contains('\n'), "{line}");
}

fn look_at(follower: &mut Follower) {
    let running = EspPlan {
        addresses: ["192.0.2.1", "2001:db8::1"].map(|own| own.parse().expect("an address")).into(),
        mtu_bytes: 1500,
        associations: Vec::new(),
        policies: Vec::new(),
        dispatch: EspDispatch::default(),
    };
    let wanted = follower.wanted(&running, &BTreeSet::new());
    wanted.notes.iter().for_each(|note| require_harmless(note));
    // The running plan goes on: names and places are the same once more.
    assert_eq!(follower.wanted(&wanted.plan, &BTreeSet::new()).plan, wanted.plan);
    if wanted.plan == running {
        return;
    }
    let tables = write_esp("tunnel", Some(["e0b", "wan"]), &wanted.plan);
    assert!(!tables.contains(KEY), "{tables}");
    let read = topology::read("f.toml", &format!("{AROUND}{tables}"), "4711", |_| Err("none".into()));
    // A plan that a file cannot say, such as one with a reserved SPI, is refused there, and left out by the program that applies it.
    let Ok(read) = read else { return };
    let stages = read.plan.expect("it has ports").stages.into_iter();
    let esp = stages.filter_map(|stage| match stage.kind {
        StageKind::Esp(plan) => Some(*plan),
        _ => None,
    });
    assert_eq!(esp.collect::<Vec<_>>(), [wanted.plan]);
}
