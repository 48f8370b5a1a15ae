//! A classes file for a limit in place: what the kernel's queue cannot do as a wire does is refused, with the line.
//!
//! Rule: what is kept means the same as on a wire. The classes without a parent stand below the limit, which they may borrow from.
//! HTB lets each class have what it is promised whatever its parent has left, so what is promised below a class fits its ceiling.

use std::ops::Range;

use toml::Spanned;
use weir_core::limit::shared::{CLASSES_MAX, LEVELS_MAX, has_leaves, promised_below};
use weir_core::limit::{BITS_PER_S_MIN, PASSING_NS};
use weir_core::rate::Rate;
use weir_core::units::time_text;

use super::source::Source;
use super::{ClassConfig, Classes, Reader, file};

/// What does all that a limit in place cannot.
const CURE: &str = "join the interfaces with `weir wire`, which can";

impl Classes {
    /// Reads and checks a file called `name`, for a limit in place.
    ///
    /// # Errors
    /// What is wrong, where, and what to do.
    pub fn read_in_place(name: &str, text: &str) -> Result<Classes, String> {
        let source = Source { name, text };
        let file = file::read(source)?;
        refuse(source, &file)?;
        let reader = Reader::new(source, &file)?;
        let classes = reader.read(["", ""])?;
        let order = reader.parents_first()?;
        check(source, &file, &order, &classes.classes)?;
        Ok(Classes { warnings: reader.warnings_in_place(&order, &classes), ..classes })
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

fn refuse(source: Source, file: &file::File) -> Result<(), String> {
    if let Some(shaper) = file.shaper.as_ref().filter(|shaper| shaper.as_ref().as_str() == "cbq") {
        return Err(source.tell(
            shaper.span(),
            format!("a limit in place is the kernel's HTB, not CBQ: take the line out, or {CURE}"),
        ));
    }
    let waits = time_text(PASSING_NS);
    for class in &file.class {
        let is_full = class.full.as_ref().filter(|full| full.as_ref().as_str() != "block");
        let wrong: [(Option<Range<usize>>, String); 4] = [
            (
                class.max_wait.as_ref().map(Spanned::span),
                format!(
                    "a limit in place holds senders and drops nothing of theirs by time: take max_wait out, or {CURE}"
                ),
            ),
            (
                class.queue.as_ref().map(Spanned::span),
                format!(
                    "in place each flow's packets wait in a queue of its own, as many as its socket may send: take queue out, or {CURE}"
                ),
            ),
            (
                is_full.map(Spanned::span),
                format!(
                    "a limit in place always holds who has a socket, and marks, then drops, after {waits} what has none: take full out, or {CURE}"
                ),
            ),
            (
                class.quantum.as_ref().map(Spanned::span),
                format!(
                    "in place a turn is the longest packet there is, the same for all: take quantum out, or {CURE}"
                ),
            ),
        ];
        if let Some((span, why)) = wrong.into_iter().find_map(|(span, why)| Some((span?, why))) {
            return Err(source.tell(span, why));
        }
    }
    if let Some(name) = file.filter.iter().find_map(|filter| filter.interface.as_ref()) {
        let why = "a limit in place is one interface's, and each way has its own: take interface out";
        return Err(source.tell(name.span(), why));
    }
    Ok(())
}

fn check(source: Source, file: &file::File, order: &[usize], classes: &[ClassConfig]) -> Result<(), String> {
    let rate_of = |index: usize| file.class[order[index]].rate.span();
    if let Some(class) = classes.get(CLASSES_MAX - 1) {
        let why = format!(
            "a limit in place has {} classes at most: take \"{}\" and the rest out, or {CURE}",
            CLASSES_MAX - 1,
            class.name
        );
        return Err(source.tell(rate_of(CLASSES_MAX - 1), why));
    }
    let mut depths = vec![1; classes.len()];
    for (index, class) in classes.iter().enumerate() {
        if let Some(parent) = class.parent {
            depths[index] = depths[parent] + 1;
        }
        if depths[index] > LEVELS_MAX {
            let why = format!(
                "the kernel's classes nest at most {LEVELS_MAX} deep below the limit: take levels out, or {CURE}"
            );
            return Err(source.tell(rate_of(index), why));
        }
        if class.leaf.is_some() && !has_leaves(class.rate) {
            let least = Rate::from_bits_per_s(BITS_PER_S_MIN).expect("more than 0");
            let why = format!(
                "\"{}\" is promised {}, too little for each of its leaves to have a byte a second: give it {least}, or {CURE}",
                class.name, class.rate
            );
            return Err(source.tell(rate_of(index), why));
        }
    }
    let below = promised_below(
        classes.iter().enumerate().map(|(index, class)| (index, class.parent, class.rate.bits_per_s())),
    );
    for (index, class) in classes.iter().enumerate() {
        let promised = below.get(&Some(index)).and_then(|bits_per_s| Rate::from_bits_per_s(*bits_per_s));
        if let Some(promised) = promised.filter(|promised| *promised > class.ceil) {
            let why = format!(
                "the classes below \"{}\" are promised {promised} together, and the kernel's queue would let them pass its {}: lower theirs, \
                 or raise this",
                class.name, class.ceil
            );
            return Err(source.tell(rate_of(index), why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Classes, String> {
        Classes::read_in_place("f.toml", text)
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
        assert!(!Classes::read("f.toml", text, ["a", "b"]).unwrap().warnings.is_empty());
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
