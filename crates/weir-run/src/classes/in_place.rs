//! A classes file for a limit in place: a key that the kernel's queue cannot do as a wire does is refused, with its line.
//!
//! Rule: a file that is kept means the same as on a wire. The classes without a parent stand below the limit, which they may borrow from.
//! HTB lets each class have its guaranteed rate even if its parent has nothing left, so the rates guaranteed below a class fit its ceiling.

use std::ops::Range;

use toml::Spanned;
use weir_core::limit::shared::{CLASSES_MAX, LEVELS_MAX, has_leaves, promised_below};
use weir_core::limit::{BITS_PER_S_MIN, PASSING_NS, burst_beyond};
use weir_core::rate::Rate;
use weir_core::units::time_text;

use super::{ClassConfig, Classes, Interfaces, Reader, TreeKind, file, joined};
use crate::source::{LineStarts, SourceText};

/// The advice if a file asks for something that a limit in place cannot do.
const CURE: &str = "join the interfaces with `weir wire`, which can";

/// The reason why a file cannot be kept in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotInPlace {
    /// The message, with the line of the file and what to do.
    pub told: String,
    /// The reason, in one line.
    pub why: String,
}

/// An obstacle to keeping a file in place: its place in the file, the reason, and what to do about it.
struct Obstacle {
    at: Range<usize>,
    why: String,
    cure: String,
}

impl Obstacle {
    fn told(&self, source: SourceText) -> NotInPlace {
        let Obstacle { at, why, cure } = self;
        let (line, _) = source.line_of(at.start);
        NotInPlace {
            told: source.tell(at.clone(), format!("{why}: {cure}")),
            why: format!("{}:{line}: {why}", source.name),
        }
    }
}

impl From<String> for NotInPlace {
    fn from(told: String) -> NotInPlace {
        NotInPlace { why: told.lines().next().unwrap_or_default().into(), told }
    }
}

/// Reads and checks a file called `name`, for a limit in place.
///
/// # Errors
/// If the file is wrong or cannot be kept in place: what, where, and what to do.
pub fn read_in_place(name: &str, text: &str) -> Result<Classes, NotInPlace> {
    let lines = LineStarts::of(text);
    let source = SourceText { name, text, lines: &lines };
    let read = file::read(source).map_err(|told| vec![told.into()]);
    let read = read.and_then(|file| of_tables_in_place(source, &file));
    read.map_err(|refused| NotInPlace {
        why: refused[0].why.clone(),
        told: joined(&refused.into_iter().map(|refused| refused.told).collect::<Vec<_>>()),
    })
}

/// Checks tables that have been read, as [`read_in_place`] does.
///
/// # Errors
/// All that is wrong, one at least: first what only a wire can do.
pub(crate) fn of_tables_in_place(source: SourceText, file: &file::File) -> Result<Classes, Vec<NotInPlace>> {
    let mut kept = file.clone();
    let mut refused = take_refused(&mut kept);
    let read = Reader::new(source, &kept).and_then(|reader| {
        let classes = reader.read(&Interfaces::default())?;
        let order = reader.parents_first().map_err(|why| vec![why])?;
        // The kernel's HTB says nothing of a tree of another kind.
        if reader.kind == TreeKind::Htb {
            refused.extend(check(&kept, &order, &classes.classes));
        }
        Ok(Classes { warnings: reader.warnings_in_place(&order, &classes), ..classes })
    });
    let mut refused: Vec<NotInPlace> = refused.iter().map(|obstacle| obstacle.told(source)).collect();
    match read {
        Ok(classes) if refused.is_empty() => Ok(classes),
        read => {
            refused.extend(read.err().into_iter().flatten().map(NotInPlace::from));
            Err(refused)
        }
    }
}

impl Reader<'_> {
    /// A class at the top may borrow from the limit, so a ceiling there is within reach.
    fn warnings_in_place(&self, order: &[usize], classes: &Classes) -> Vec<String> {
        let mut warnings = classes.warnings.clone();
        warnings.retain(|warning| !self.ceilings_out_of_reach(order, &classes.classes).contains(warning));
        warnings
    }
}

/// An obstacle for each option that no limit in place keeps. All are taken out of the tables, so that the rest is read by itself, but for
/// `shaper`, which other keys are checked against.
fn take_refused(file: &mut file::File) -> Vec<Obstacle> {
    let mut refused = Vec::new();
    if let Some(shaper) = file.shaper.as_ref().filter(|shaper| shaper.as_ref().as_str() == "cbq") {
        let why = "a limit in place is the kernel's HTB, not CBQ".into();
        refused.push(Obstacle { at: shaper.span(), why, cure: format!("take the line out, or {CURE}") });
    }
    let waits = time_text(PASSING_NS);
    for class in &mut file.class {
        let full = class.full.take_if(|full| full.as_ref().as_str() != "block");
        let wrong: [(Option<Spanned<String>>, &str, String); 4] = [
            (
                class.max_wait.take(),
                "max_wait",
                "a limit in place holds senders and drops nothing of theirs by time".into(),
            ),
            (
                class.queue.take(),
                "queue",
                "in place each flow's packets wait in a queue of its own, as many as its socket may send"
                    .into(),
            ),
            (
                full,
                "full",
                format!(
                    "a limit in place always holds who has a socket, and marks, then drops what has none, after {waits} or the time of \
                     two of the longest packets if that is more"
                ),
            ),
            (class.quantum.take(), "quantum", "in place a turn is 3 ms of the class's ceiling".into()),
        ];
        refused.extend(wrong.into_iter().filter_map(|(text, key, why)| {
            Some(Obstacle { at: text?.span(), why, cure: format!("take {key} out, or {CURE}") })
        }));
    }
    refused.extend(file.filter.iter_mut().filter_map(|filter| filter.interface.take()).map(|name| {
        Obstacle {
            at: name.span(),
            why: "a limit in place is one interface's, and each way has its own".into(),
            cure: "take interface out".into(),
        }
    }));
    refused
}

fn check(file: &file::File, order: &[usize], classes: &[ClassConfig]) -> Vec<Obstacle> {
    let rate_of = |index: usize| file.class[order[index]].rate.span();
    if let Some(class) = classes.get(CLASSES_MAX - 1) {
        return vec![Obstacle {
            at: rate_of(CLASSES_MAX - 1),
            why: format!("a limit in place has {} classes at most", CLASSES_MAX - 1),
            cure: format!("take \"{}\" and the rest out, or {CURE}", class.name),
        }];
    }
    let mut obstacles = Vec::new();
    let mut depths = vec![1; classes.len()];
    for (index, class) in classes.iter().enumerate() {
        if let Some(parent) = class.parent {
            depths[index] = depths[parent] + 1;
        }
        // Only the first class too deep of a line is told: a cure for it brings up those below, too.
        if depths[index] == LEVELS_MAX + 1 {
            obstacles.push(Obstacle {
                at: rate_of(index),
                why: format!("the kernel's classes nest at most {LEVELS_MAX} deep below the limit"),
                cure: format!("take levels out, or {CURE}"),
            });
        }
        if class.leaf.is_some() && !has_leaves(class.rate) {
            let least = Rate::from_bits_per_s(BITS_PER_S_MIN).expect("more than 0");
            obstacles.push(Obstacle {
                at: rate_of(index),
                why: format!(
                    "\"{}\" is promised {}, too little for each of its leaves to have a byte a second",
                    class.name, class.rate
                ),
                cure: format!("give it {least}, or {CURE}"),
            });
        }
    }
    obstacles.extend(bursts_beyond(file, order, classes));
    let below = promised_below(
        classes.iter().enumerate().map(|(index, class)| (index, class.parent, class.rate.bits_per_s())),
    );
    for (index, class) in classes.iter().enumerate() {
        let promised = below.get(&Some(index)).and_then(|bits_per_s| Rate::from_bits_per_s(*bits_per_s));
        if let Some(promised) = promised.filter(|promised| *promised > class.ceil) {
            obstacles.push(Obstacle {
                at: rate_of(index),
                why: format!(
                    "the classes below \"{}\" are promised {promised} together, and the kernel's queue would let them pass its {}",
                    class.name, class.ceil
                ),
                cure: "lower theirs, or raise this".into(),
            });
        }
    }
    obstacles
}

/// The bursts that HTB, which keeps them in time, cannot keep.
fn bursts_beyond(file: &file::File, order: &[usize], classes: &[ClassConfig]) -> Vec<Obstacle> {
    let each = order.iter().zip(classes).flat_map(|(&place, class)| {
        let table = &file.class[place];
        [(&table.burst, class.rate, class.burst_bytes), (&table.cburst, class.ceil, class.cburst_bytes)]
    });
    let beyond = each.filter_map(|(text, rate, bytes)| {
        let (text, why) = (text.as_ref()?, burst_beyond(rate, bytes)?);
        let why = format!("there is no such burst: {why}");
        Some(Obstacle { at: text.span(), why, cure: format!("write less, or {CURE}") })
    });
    beyond.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Classes, String> {
        read_in_place("f.toml", text).map_err(|refused| refused.told)
    }

    const CLASS: &str = "[[class]]\nname = \"a\"\nrate = \"10mbit\"\n";

    #[test]
    fn what_the_kernels_queue_keeps_is_read_as_for_a_wire() {
        let text = "default = \"b\"\n[[class]]\nname = \"a\"\nrate = \"10mbit\"\nceil = \"20mbit\"\npriority = 1\nburst = \"40kb\"\n\
                    full = \"block\"\n[[class]]\nname = \"b\"\nrate = \"10mbit\"\n[[filter]]\nto_ports = 5001\nclass = \"a\"\n";
        let classes = read(text).unwrap();
        assert_eq!(classes.classes.len(), 2);
        assert_eq!(
            classes.warnings,
            Vec::<String>::new(),
            "a ceiling above the rate is what the limit leaves"
        );
        assert!(!crate::classes::read("f.toml", text, ["a", "b"]).unwrap().warnings.is_empty());
    }

    #[test]
    fn what_only_a_wire_can_is_refused_with_its_line() {
        for (line, word) in [
            ("max_wait = \"5ms\"", "max_wait"),
            ("queue = \"5ms\"", "queue"),
            ("full = \"ecn\"", "full"),
            ("quantum = \"4kb\"", "quantum"),
        ] {
            let why = read(&format!("{CLASS}{line}\n")).unwrap_err();
            assert!(why.starts_with("f.toml:4:") && why.contains(word) && why.contains("weir wire"), "{why}");
        }
        let why = read(&format!("shaper = \"cbq\"\n{CLASS}")).unwrap_err();
        assert!(why.starts_with("f.toml:1:") && why.contains("weir wire"), "{why}");
        let why = read(&format!("{CLASS}[[filter]]\ninterface = \"wa\"\nclass = \"a\"\n")).unwrap_err();
        assert!(why.starts_with("f.toml:5:") && why.contains("interface"), "{why}");
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let text = format!(
            "{CLASS}queue = \"5\"\nquantum = \"4kb\"\n[[class]]\nname = \"b\"\nrate = \"fast\"\n\
             [[filter]]\ninterface = \"wa\"\nclass = \"c\"\n"
        );
        let told = read(&text).unwrap_err();
        let lines = told.lines().filter_map(|line| line.split("f.toml:").nth(1)?.split(':').next());
        assert_eq!(lines.collect::<Vec<_>>(), ["4", "5", "10", "8", "11"], "{told}");
        let below = "[[class]]\nname = \"b\"\nparent = \"a\"\nrate = \"11mbit\"\nburst = \"1gb\"\n";
        let told = read(&format!("{CLASS}full = \"ecn\"\n{below}")).unwrap_err();
        for word in ["full", "no such burst", "promised 11mbit together"] {
            assert!(told.contains(word), "{told}");
        }
    }

    #[test]
    fn a_leaf_that_nothing_leads_to_is_warned_of() {
        let text = format!("{CLASS}[[class]]\nname = \"y\"\nrate = \"1mbit\"\n");
        let warnings = read(&format!("default = \"free\"\n{text}")).unwrap().warnings;
        assert!(
            warnings.iter().any(|warning| warning.contains("nothing leads to the class \"y\"")),
            "{warnings:?}"
        );
    }

    #[test]
    fn why_not_in_place_is_one_line_without_a_cure() {
        let why = read_in_place("f.toml", &format!("shaper = \"cbq\"\n{CLASS}")).unwrap_err().why;
        assert_eq!(why, "f.toml:1: a limit in place is the kernel's HTB, not CBQ");
        let why = read_in_place("f.toml", "[[class]\n").unwrap_err().why;
        assert_eq!(why.lines().count(), 1, "{why}");
    }

    #[test]
    fn a_burst_that_htb_cannot_keep_is_refused_with_its_line() {
        for (key, rate) in [("burst", "10mbit"), ("cburst", "20mbit")] {
            let why = read(&format!("{CLASS}ceil = \"20mbit\"\n{key} = \"1gb\"\n")).unwrap_err();
            let told = format!("at most, which {rate} takes 274s for: write less");
            assert!(why.starts_with("f.toml:5:") && why.contains(&told), "{why}");
            assert!(read(&format!("{CLASS}ceil = \"20mbit\"\n{key} = \"300mb\"\n")).is_ok());
        }
    }

    #[test]
    fn what_would_break_a_limit_is_refused_with_its_line() {
        let why = read("[[class]]\nname = \"a\"\nrate = \"7kbit\"\n").unwrap_err();
        assert!(why.starts_with("f.toml:3:") && why.contains("give it 8kbit"), "{why}");
        let below = "[[class]]\nname = \"b\"\nparent = \"a\"\nrate = \"11mbit\"\n";
        let why = read(&format!("{CLASS}{below}")).unwrap_err();
        assert!(why.starts_with("f.toml:3:") && why.contains("promised 11mbit together"), "{why}");
        let mut deep = CLASS.to_string();
        for level in 0..6 {
            let parent = if level == 0 { "a".to_string() } else { format!("a{}", level - 1) };
            deep += &format!("[[class]]\nname = \"a{level}\"\nparent = \"{parent}\"\nrate = \"10mbit\"\n");
        }
        assert!(read(&deep).unwrap_err().contains("nest at most 6 deep"));
        let many: String =
            (0..62).map(|index| format!("[[class]]\nname = \"c{index}\"\nrate = \"8kbit\"\n")).collect();
        assert!(read(&format!("default = \"c0\"\n{many}")).unwrap_err().contains("61 classes at most"));
    }
}
