//! The class of a packet, found by the program of a limit in place; and the filters as the record keeps them.
//!
//! ```text
//! class = filters of now(packet)
//! for filters before, newest first: the class they say, if it is another and packets of the flow still wait there
//! for a later fragment: all of these as they were for the first of its datagram, which shows ports
//! ```
//!
//! Rule: a flow that another file sends to another class changes its class only when none of its packets wait in the old one, so it is
//! never reordered. Waiting is known as in [`super::program`], by time, or by what [`super::drain`] found to have gone. A class's leaves, flows
//! and clocks are in memory of its own, so a flow is one of a socket within a class.
//!
//! Owner: as for [`super::program`]. Limits: flows that meet in one slot of memory may keep each other in the old class, and where several
//! files before are asked send each other to one, past their own packets. A datagram of which fragments still come is forgotten when eight
//! others whose keys lead to the same of 2,048 sets have begun since; a later fragment has the classes of what it shows then.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};
use weir_core::classify::{Classifier, Conditions, Rule, Subnet, Target};
use weir_core::limit::Leaves;
use weir_core::limit::filter::{self, STACK_END};
use weir_core::limit::fragments;
use weir_core::limit::shared::FREE_BASE;

use super::memory::{self, LeafMemory, Memory};
use super::program::{self, advance_clock, jump_if_over, leaf_of, slot_of};
use crate::bpf::asm::{Asm, Cond, Label, Op, Reg, Width};

/// The most files before the present one whose filters a program asks.
pub const EARLIER_MAX: usize = 3;
/// The base in place of a class that is gone.
pub const NOWHERE: u16 = u16::MAX;

const SKB_LEN: i16 = 0;
const KEY: i16 = STACK_END - 8;
const TIME: i16 = STACK_END - 16;
/// The stack offset of the class that each of the filters says.
const CLASSES: i16 = STACK_END - 24;

/// Filters in order, and the class of packets that none matches. Classes are named by their bases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Filters {
    /// The rules, each `from to protocol from_ports to_ports dscp class`, with `-` for a field that is not asked.
    pub rules: Vec<String>,
    /// The class of packets that no rule matches.
    pub otherwise: u16,
}

impl Filters {
    /// The filters of a classifier whose targets are places in a list of classes with these bases.
    pub fn new(classifier: &Classifier, bases: &[u16]) -> Filters {
        let base = |target: Target| match target {
            Target::Class(index) => bases.get(usize::from(index)).copied().unwrap_or(NOWHERE),
            Target::Free => FREE_BASE,
        };
        let rules = classifier.rules().iter().map(|rule| {
            let asked = &rule.conditions;
            let range = |range: &Option<std::ops::RangeInclusive<u16>>| {
                said(&range.as_ref().map(|range| format!("{}:{}", range.start(), range.end())))
            };
            let words = [
                said(&asked.from),
                said(&asked.to),
                said(&asked.protocol),
                range(&asked.from_ports),
                range(&asked.to_ports),
                said(&asked.dscp),
                base(rule.target).to_string(),
            ];
            words.join(" ")
        });
        Filters { rules: rules.collect(), otherwise: base(classifier.otherwise()) }
    }

    /// The classifier whose targets are bases; a rule that cannot be read is left out.
    pub fn classifier(&self) -> Classifier {
        let rules = self.rules.iter().filter_map(|rule| read(rule)).collect();
        Classifier::new(rules, Target::Class(self.otherwise)).expect("no more than were read from a file")
    }

    /// Returns whether a packet may go to the class with this base.
    pub fn leads_to(&self, base: u16) -> bool {
        let leads = |rule: &String| rule.rsplit_once(' ').is_some_and(|(_, to)| to.parse() == Ok(base));
        self.otherwise == base || self.rules.iter().any(leads)
    }

    /// Returns whether these say nothing that `others` do not: the same conditions, and the same class wherever these still lead to one.
    pub fn are_within(&self, others: &Filters) -> bool {
        let is_same = |(rule, other): (&String, &String)| {
            rule == other
                || rule.strip_suffix(&format!(" {NOWHERE}")).is_some_and(|conditions| {
                    other.rsplit_once(' ').is_some_and(|(of_other, _)| of_other == conditions)
                })
        };
        self.rules.len() == others.rules.len()
            && self.rules.iter().zip(&others.rules).all(is_same)
            && (self.otherwise == others.otherwise || self.otherwise == NOWHERE)
    }

    /// Leads the rules of classes that are gone to [`NOWHERE`].
    pub fn forget(&mut self, gone: &[u16]) {
        for rule in &mut self.rules {
            if let Some((conditions, base)) = rule.rsplit_once(' ')
                && base.parse().is_ok_and(|base| gone.contains(&base))
            {
                *rule = format!("{conditions} {NOWHERE}");
            }
        }
        if gone.contains(&self.otherwise) {
            self.otherwise = NOWHERE;
        }
    }
}

fn said<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map_or("-".into(), T::to_string)
}

fn read(rule: &str) -> Option<Rule> {
    let mut words = rule.split(' ');
    let mut word = || Some(words.next()?).map(|word| Some(word).filter(|word| *word != "-"));
    let subnet = |word: Option<&str>| -> Option<Option<Subnet>> {
        let Some(word) = word else { return Some(None) };
        let (address, prefix_len) = word.split_once('/')?;
        Some(Some(Subnet::new(address.parse().ok()?, prefix_len.parse().ok()?)?))
    };
    let range = |word: Option<&str>| -> Option<Option<std::ops::RangeInclusive<u16>>> {
        let Some(word) = word else { return Some(None) };
        let (start, end) = word.split_once(':')?;
        Some(Some(start.parse().ok()?..=end.parse().ok()?))
    };
    let number = |word: Option<&str>| -> Option<Option<u8>> { word.map(str::parse).transpose().ok() };
    Some(Rule {
        conditions: Conditions {
            from: subnet(word()?)?,
            to: subnet(word()?)?,
            protocol: number(word()?)?,
            from_ports: range(word()?)?,
            to_ports: range(word()?)?,
            dscp: number(word()?)?,
            ..Conditions::default()
        },
        target: Target::Class(word()??.parse().ok()?),
    })
}

/// Asks the filters, those of now first; `memory` is the limit's own. Keeps `R6`, the packet.
///
/// # Errors
/// One sentence, if there are too many filters.
pub fn ask(asm: &mut Asm, all: &[Filters], memory: &Memory, link_header_bytes: i32) -> Result<(), String> {
    filter::parse(asm, link_header_bytes);
    for (index, filters) in all.iter().enumerate() {
        let number = |target| match target {
            Target::Class(base) => base,
            Target::Free => FREE_BASE,
        };
        filter::decide(asm, &filters.classifier(), number)?;
        forget_to_the_verifier(asm);
        asm.store(Width::Double, Reg::R10, CLASSES - 8 * index as i16, Reg::R7);
    }
    keep_fragments_together(asm, memory, all);
    Ok(())
}

/// Has later fragments be of the classes of the first of their datagram. A slot of memory has the key of a datagram, then its classes, of
/// 16 bits each. A set of slots has the last datagrams whose keys lead to it, the newest first. Classes that other filters said are not
/// these, so the filters are in the key.
fn keep_fragments_together(asm: &mut Asm, memory: &Memory, all: &[Filters]) {
    let mut hasher = DefaultHasher::new();
    all.hash(&mut hasher);
    let count = all.len();
    let [later, found, done] = [asm.label(), asm.label(), asm.label()];
    let (key_at, classes_at) = (|slot: i16| slot * 16, |slot: i16| slot * 16 + 8);
    let class_at = |index: usize| CLASSES - 8 * index as i16;
    fragments::key(asm, done);
    asm.load_immediate(Reg::R1, hasher.finish() & !1);
    asm.op(Op::Xor, Reg::R9, Reg::R1);
    asm.load_map_value(Reg::R8, memory.map().as_fd());
    asm.op(Op::Mov, Reg::R1, Reg::R9);
    asm.op_imm(Op::Rsh, Reg::R1, 1);
    asm.op_imm(Op::And, Reg::R1, memory::FRAGMENT_SETS - 1);
    asm.op_imm(Op::Mul, Reg::R1, i32::from(memory::FRAGMENT_SLOTS) * 16);
    asm.op_imm(Op::Add, Reg::R1, memory::FRAGMENTS_AT as i32);
    asm.op(Op::Add, Reg::R8, Reg::R1);
    asm.jump_if(Cond::Ne, Reg::R7, 0, later);

    for slot in (1..memory::FRAGMENT_SLOTS).rev() {
        for word_at in [key_at, classes_at] {
            asm.load(Width::Double, Reg::R1, Reg::R8, word_at(slot - 1));
            asm.store(Width::Double, Reg::R8, word_at(slot), Reg::R1);
        }
    }
    asm.op_imm(Op::Mov, Reg::R1, 0);
    for index in (0..count).rev() {
        asm.load(Width::Double, Reg::R2, Reg::R10, class_at(index));
        asm.op_imm(Op::Lsh, Reg::R1, 16);
        asm.op(Op::Or, Reg::R1, Reg::R2);
    }
    asm.store(Width::Double, Reg::R8, classes_at(0), Reg::R1);
    asm.store(Width::Double, Reg::R8, key_at(0), Reg::R9);
    asm.jump(done);

    asm.place(later);
    for slot in 0..memory::FRAGMENT_SLOTS {
        let another = asm.label();
        asm.load(Width::Double, Reg::R1, Reg::R8, key_at(slot));
        asm.jump_if_reg(Cond::Ne, Reg::R1, Reg::R9, another);
        asm.load(Width::Double, Reg::R1, Reg::R8, classes_at(slot));
        asm.jump(found);
        asm.place(another);
    }
    asm.jump(done);
    asm.place(found);
    for index in 0..count {
        asm.op(Op::Mov, Reg::R2, Reg::R1);
        asm.op_imm(Op::And, Reg::R2, 0xffff);
        asm.store(Width::Double, Reg::R10, class_at(index), Reg::R2);
        asm.op_imm(Op::Rsh, Reg::R1, 16);
    }
    asm.place(done);
}
const _: () = assert!(EARLIER_MAX < 4, "the classes of a fragment are in one word");

/// Keeps the value of `R7`, but has the kernel's verifier forget it: the verifier would check the rest once for each class.
fn forget_to_the_verifier(asm: &mut Asm) {
    asm.load(Width::Word, Reg::R1, Reg::R6, SKB_LEN);
    asm.op(Op::Xor, Reg::R7, Reg::R1);
    asm.op(Op::Xor, Reg::R7, Reg::R1);
}

/// `R8` = the memory of the class that a flow with key `R7` belongs to at time `R9`, where `count` filters were asked. Keeps `R6`, `R7` and `R9`.
pub fn memory_of_class(asm: &mut Asm, memories: &[Memory], count: usize, group: LeafMemory, leaves: Leaves) {
    let found = asm.label();
    asm.store(Width::Double, Reg::R10, KEY, Reg::R7);
    asm.store(Width::Double, Reg::R10, TIME, Reg::R9);
    for index in 1..count {
        let next = asm.label();
        asm.load(Width::Double, Reg::R1, Reg::R10, CLASSES - 8 * index as i16);
        asm.load(Width::Double, Reg::R2, Reg::R10, CLASSES);
        asm.jump_if_reg(Cond::Eq, Reg::R1, Reg::R2, next);
        choose_memory(asm, memories, next);
        asm.load(Width::Double, Reg::R9, Reg::R10, TIME);
        advance_clock(asm, group);
        asm.load(Width::Double, Reg::R7, Reg::R10, KEY);
        slot_of(asm, group);
        asm.load(Width::Double, Reg::R2, Reg::R7, 0);
        leaf_of(asm, Reg::R2, group, leaves);
        asm.op(Op::Mov, Reg::R3, Reg::R2);
        jump_if_over(asm, next);
        asm.load(Width::Double, Reg::R3, Reg::R5, memory::GONE_BEHIND);
        jump_if_gone(asm, next);
        program::count(asm, memory::STAYED);
        asm.jump(found);
        asm.place(next);
    }
    asm.load(Width::Double, Reg::R1, Reg::R10, CLASSES);
    // A class without memory is no class of these filters.
    let own = asm.label();
    choose_memory(asm, memories, own);
    asm.jump(found);
    asm.place(own);
    asm.load_map_value(Reg::R8, memories[0].map().as_fd());
    asm.place(found);
    asm.load(Width::Double, Reg::R7, Reg::R10, KEY);
    asm.load(Width::Double, Reg::R9, Reg::R10, TIME);
}

/// Jumps to `label` if packets up to `R3` have gone, and so those up to `R2`, of which some may wait by time. Spoils `R3`.
///
/// Words wrap: `R3` is `R2` or more, by less than can wait. Otherwise it was told before packets that came later.
///
/// Limits: when a leaf's word has gone on by 2^64 parts less those that can wait, 16 TB, what was told before counts again for 2 GB, one part
/// of 8,192: a flow that leaves the class then may overtake its packets, once. To forget it where a change begins would bring back flows
/// that left at the change before.
fn jump_if_gone(asm: &mut Asm, label: Label) {
    asm.op(Op::Sub, Reg::R3, Reg::R2);
    asm.op_imm(Op::Rsh, Reg::R3, program::STALE_BITS);
    asm.jump_if(Cond::Eq, Reg::R3, 0, label);
}

/// `R8` = the memory of class `R1`, leaving to `none` if the class has none.
fn choose_memory(asm: &mut Asm, memories: &[Memory], none: Label) {
    let chosen = asm.label();
    for memory in memories {
        let other = asm.label();
        asm.jump_if(Cond::Ne, Reg::R1, memory.base().into(), other);
        asm.load_map_value(Reg::R8, memory.map().as_fd());
        asm.jump(chosen);
        asm.place(other);
    }
    asm.jump(none);
    asm.place(chosen);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::program::{Hook, Program};
    use crate::sys;

    /// Leaves pass so much in weeks at 100 Gbit/s that their words wrap.
    #[test]
    fn what_has_gone_is_told_across_the_wrap_of_words() {
        const WAITING: u64 = 1 << 40;
        if !sys::is_root() {
            return;
        }
        let has_gone = |gone: u64, word: u64| {
            let (mut asm, yes) = (Asm::new(), 1);
            let label = asm.label();
            asm.load_immediate(Reg::R3, gone);
            asm.load_immediate(Reg::R2, word);
            asm.op_imm(Op::Mov, Reg::R0, yes);
            jump_if_gone(&mut asm, label);
            asm.op_imm(Op::Mov, Reg::R0, 0);
            asm.place(label);
            asm.exit();
            Program::load(Hook::Filter, &asm.finish()).unwrap().run(&[0; 64]).unwrap() == yes as u32
        };
        for word in [WAITING, u64::MAX / 2, u64::MAX - WAITING / 2, 5, 0] {
            assert!(has_gone(word, word), "{word}: all");
            assert!(has_gone(word.wrapping_add(WAITING), word), "{word}: more");
            assert!(!has_gone(word.wrapping_sub(1), word), "{word}: all but one");
            for earlier in [1 << 52, 1 << 62, 1 << 63] {
                let gone = word.wrapping_sub(earlier);
                assert!(!has_gone(gone, word), "{word}: {gone} was told long ago");
            }
            // The window in which words cannot tell: 2^64 parts less so many have passed since.
            let window = 1 << program::STALE_BITS;
            for (beyond, is_within) in [(0, true), (1, true), (window - 1, true), (window, false)] {
                assert_eq!(has_gone(word.wrapping_add(beyond), word), is_within, "{word}: round, {beyond}");
            }
        }
    }

    #[test]
    fn filters_are_read_as_they_were_written() {
        let subnet = |text: &str, prefix_len| Subnet::new(text.parse().unwrap(), prefix_len);
        let rules = vec![
            Rule {
                conditions: Conditions {
                    from: subnet("10.0.0.0", 8),
                    to: subnet("10.1.0.0", 16),
                    protocol: Some(6),
                    from_ports: Some(1..=65535),
                    to_ports: Some(443..=443),
                    dscp: Some(46),
                    ..Conditions::default()
                },
                target: Target::Class(1),
            },
            Rule {
                conditions: Conditions { to: subnet("fd00::", 8), ..Conditions::default() },
                target: Target::Free,
            },
            Rule { conditions: Conditions::default(), target: Target::Class(0) },
        ];
        let classifier = Classifier::new(rules, Target::Class(0)).unwrap();
        let mut filters = Filters::new(&classifier, &[0x800, 0xc00]);
        let read = filters.classifier();
        assert_eq!(read.rules().len(), 3);
        for (read, written) in read.rules().iter().zip(classifier.rules()) {
            assert_eq!(read.conditions, written.conditions);
        }
        let targets: Vec<_> = read.rules().iter().map(|rule| rule.target).collect();
        assert_eq!(targets, [0xc00, FREE_BASE, 0x800].map(Target::Class));
        assert_eq!(read.otherwise(), Target::Class(0x800));
        filters.forget(&[0x800]);
        assert_eq!(filters.rules[2], format!("- - - - - - {NOWHERE}"));
        assert_eq!(filters.otherwise, NOWHERE);
    }
}
