//! The classes file of `--classes FILE`: a tree of classes that share a wire, and filters that lead packets to them.
//!
//! ```toml
//! default = "internet"            # the class of packets that no filter matches; or "free", past all limits
//! # shaper = "cbq"                # the other kind of tree; htb unless said otherwise
//!
//! [[class]]
//! name = "link"
//! rate = "200mbit"                # htb: guaranteed; cbq: the share
//!
//! [[class]]
//! name = "internet"
//! parent = "link"
//! rate = "150mbit"
//! ceil = "200mbit"                # htb: the most, by borrowing what others leave of its parent's [the rate, as for tc]
//! # bounded = true                # cbq: never borrows
//! # burst = "40kb"                # of the rate [2 ms, 20kb at least]; cburst: htb, of the ceil [the same]
//! # quantum = "4kb"               # the bytes of one turn of borrowing [1 ms at the rate]
//! # priority = 1                  # 0 to 7, 0 borrows first [0]
//! # full = "ecn"                  # when full: "block" holds senders, "ecn" marks and holds, "drop" drops [block]
//! # max_wait = "50ms"             # a packet that waited longer is dropped [never]
//! # queue = "5ms"                 # how many bytes may wait, as a time at the ceil [5ms]
//!
//! [[filter]]                      # the first that matches wins
//! to = ["10.0.0.0/8", "fd00::/8"] # from, to, protocol, from_ports, to_ports, dscp, interface; all must hold
//! class = "free"
//! ```
//!
//! Each direction of a wire has the tree for itself. [`read`] checks everything before anything is changed: an error names file, line and
//! column, shows the line and says what to do; a file that is kept, but perhaps not as meant, gets a warning. [`read_in_place`] does so for
//! a limit in place, which is the kernel's HTB, and refuses a file that it cannot carry out.
//!
//! Pure: no clock, no files, no sockets. Limits: packets wait in leaves only, so only they take filters, priority, full,
//! max_wait and queue. At most [`CLASSES_MAX`] classes, for filters reach no more.

mod alone;
mod class;
pub(crate) mod file;
mod filters;
mod in_place;
mod reached;
#[cfg(test)]
mod shaping_tests;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;

use toml::Spanned;
use weir_core::classify::{RULES_MAX, Target};
use weir_core::rate::Rate;
use weir_core::shaper::tree::DEPTH_MAX;

use crate::nearest::did_you_mean;
use crate::source::{LineStarts, SourceText};
pub use alone::{ClassesFile, is_classes_file, read_alone};
pub use filters::Interfaces;
use filters::Rules;
pub(crate) use filters::{ports, protocol};
pub(crate) use in_place::of_tables_in_place;
pub use in_place::{NotInPlace, read_in_place};
pub use weir_path::classes::{ClassConfig, Classes, FRAME_BYTES, FREE, LeafRules, TreeKind};

/// The most classes of a file: as many as there can be rules that lead to them.
pub const CLASSES_MAX: usize = RULES_MAX;

/// Reads and checks a file called `name`, whose filters may name `interfaces`, such as the two of a wire.
///
/// # Errors
/// If the file is wrong: all that is, where, and what to do.
pub fn read<'a>(name: &str, text: &str, interfaces: impl Into<Interfaces<'a>>) -> Result<Classes, String> {
    read_each(name, text, &interfaces.into()).map_err(|told| joined(&told))
}

/// Reads and checks a file as [`read`] does.
///
/// # Errors
/// If the file is wrong: each fault in a sentence.
pub(crate) fn read_each(name: &str, text: &str, interfaces: &Interfaces) -> Result<Classes, Vec<String>> {
    let lines = LineStarts::of(text);
    let source = SourceText { name, text, lines: &lines };
    of_tables(source, &file::read(source).map_err(|told| vec![told])?, interfaces)
}

/// Checks tables that have been read, as [`read_each`] does.
pub(crate) fn of_tables(
    source: SourceText,
    file: &file::File,
    interfaces: &Interfaces,
) -> Result<Classes, Vec<String>> {
    Reader::new(source, file)?.read(interfaces)
}

/// Several sentences as one message.
fn joined(told: &[String]) -> String {
    told.join("\nweir: ")
}

/// A warning if classes without a parent, which have these rates, are guaranteed more than the limit that they share. It is no error: the
/// limit holds all the same, and may be low for a while.
pub fn oversold(rate: Rate, roots_bits_per_s: impl Iterator<Item = u64>) -> Option<String> {
    let sum = roots_bits_per_s.fold(0, u64::saturating_add);
    let sum = Rate::from_bits_per_s(sum).filter(|sum| *sum > rate)?;
    Some(format!(
        "the classes without a parent have {sum} together, more than the limit of {rate}: not all can have it at once; lower theirs or \
         raise this"
    ))
}

/// The rates of the classes without a parent, in bits per second.
pub fn roots_bits_per_s(classes: &Classes) -> impl Iterator<Item = u64> {
    classes.classes.iter().filter(|class| class.parent.is_none()).map(|class| class.rate.bits_per_s())
}

/// The state of reading: the tables as they are written, and the parent of each class.
struct Reader<'a> {
    source: SourceText<'a>,
    file: &'a file::File,
    kind: TreeKind,
    /// The place of each class in the file, by its name.
    places: HashMap<&'a str, usize>,
    /// The parent's place in the file of each class, and whether each class is a parent itself.
    parents: Vec<Option<usize>>,
    is_inner: Vec<bool>,
    /// The faults of names.
    told: Vec<String>,
}

impl<'a> Reader<'a> {
    /// Takes tables that have been read. Faults of names are told by [`Reader::read`], with all others.
    fn new(source: SourceText<'a>, file: &'a file::File) -> Result<Reader<'a>, Vec<String>> {
        let kind = match &file.shaper {
            None => TreeKind::Htb,
            Some(shaper) => match shaper.as_ref().as_str() {
                "htb" => TreeKind::Htb,
                "cbq" => TreeKind::Cbq,
                other => {
                    let near = did_you_mean(other, ["htb", "cbq"]);
                    let why = format!("the shapers are \"htb\" and \"cbq\"{near}");
                    return Err(vec![source.tell(shaper.span(), why)]);
                }
            },
        };
        if file.class.is_empty() {
            let why = "there is no class; write [[class]] with a name and a rate";
            return Err(vec![source.tell(file.at.clone(), why)]);
        }
        if let Some(class) = file.class.get(CLASSES_MAX) {
            let why = format!(
                "{} classes are more than {CLASSES_MAX}, and no filters could lead to more; take this and the rest out",
                file.class.len()
            );
            return Err(vec![source.tell(class.name.span(), why)]);
        }
        let (mut places, mut told) = (HashMap::new(), Vec::new());
        for (place, class) in file.class.iter().enumerate() {
            if let Err(why) = check_name(class.name.as_ref()) {
                told.push(source.tell(class.name.span(), why));
            }
            let first = *places.entry(class.name.as_ref().as_str()).or_insert(place);
            if first != place {
                let (line, _) = source.line_of(file.class[first].name.span().start);
                let why = format!("there is a class of this name in line {line}; give one of them another");
                told.push(source.tell(class.name.span(), why));
            }
        }
        let mut reader = Reader {
            source,
            file,
            kind,
            places,
            parents: Vec::new(),
            is_inner: vec![false; file.class.len()],
            told,
        };
        for class in &file.class {
            let parent = class.parent.as_ref().map(|parent| reader.place_of(parent)).transpose();
            let parent = parent.unwrap_or_else(|why| {
                reader.told.push(why);
                None
            });
            reader.parents.push(parent);
            if let Some(parent) = parent {
                reader.is_inner[parent] = true;
            }
        }
        Ok(reader)
    }

    fn read(&self, interfaces: &Interfaces) -> Result<Classes, Vec<String>> {
        let mut told = self.told.clone();
        let order = match self.parents_first() {
            Ok(order) => order,
            Err(why) => return Err([told, vec![why]].concat()),
        };
        // The place in the list of each class of the file.
        let mut index_of = vec![0; order.len()];
        order.iter().enumerate().for_each(|(index, &place)| index_of[place] = index);
        // None of a class that is wrong, nor of those below it, of which nothing can be told before.
        let mut classes: Vec<Option<ClassConfig>> = Vec::with_capacity(order.len());
        for &place in &order {
            let parent = self.parents[place].map(|parent| index_of[parent]);
            let above = parent.map(|parent| classes[parent].as_ref());
            let class = match above {
                Some(None) => None,
                above => self.class(place, parent, above.flatten()).map_err(|why| told.push(why)).ok(),
            };
            classes.push(class);
        }
        let leaf_of = |name: &Spanned<String>| self.leaf(name).map(|place| index_of[place] as u16);
        let default = self.file.default.as_ref().filter(|name| name.as_ref() != FREE);
        let default = default.map(leaf_of).transpose().unwrap_or_else(|why| {
            told.push(why);
            None
        });
        let (rules, faults) = Rules::read(self.source, &self.file.filter, interfaces, leaf_of);
        told.extend(faults);
        let classes: Vec<_> = classes.into_iter().flatten().collect();
        if !told.is_empty() {
            return Err(told);
        }
        let default = match self.file.default {
            None => Some(self.only_leaf(&classes).map_err(|why| vec![why])?),
            Some(_) => default.map(usize::from),
        };
        let otherwise = default.map_or(Target::Free, |class| Target::Class(class as u16));
        let (classifier, mut warnings) = rules.classifier(self.source, otherwise);
        warnings.extend(self.children_above_parents(&order, &classes));
        warnings.extend(self.ceilings_out_of_reach(&order, &classes));
        warnings.extend(self.unreached(&order, &classes, &classifier));
        Ok(Classes { kind: self.kind, classes, classifier, default, warnings })
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.file.class.iter().map(|class| class.name.as_ref().as_str())
    }

    fn place_of(&self, name: &Spanned<String>) -> Result<usize, String> {
        self.places.get(name.as_ref().as_str()).copied().ok_or_else(|| {
            let near = did_you_mean(name.as_ref(), self.names());
            self.source.tell(name.span(), format!("there is no class \"{}\"{near}", name.as_ref()))
        })
    }

    fn leaf(&self, name: &Spanned<String>) -> Result<usize, String> {
        let place = self.place_of(name)?;
        if self.is_inner[place] {
            let child = self.parents.iter().position(|parent| *parent == Some(place));
            let child = child.map_or("", |child| self.file.class[child].name.as_ref());
            let why = format!(
                "class \"{}\" has children, and packets wait in leaves; name one, such as \"{child}\"",
                name.as_ref()
            );
            return Err(self.source.tell(name.span(), why));
        }
        Ok(place)
    }

    fn only_leaf(&self, classes: &[ClassConfig]) -> Result<usize, String> {
        let mut leaves = classes.iter().enumerate().filter(|(_, class)| class.leaf.is_some());
        match (leaves.next(), leaves.next()) {
            (Some((only, _)), None) => Ok(only),
            (Some((_, first)), _) => {
                let why = format!(
                    "nothing says where packets go that no filter matches; write default = \"{}\", or \"{FREE}\"",
                    first.name
                );
                Err(self.source.tell(self.file.at.clone(), why))
            }
            (None, _) => unreachable!("without a cycle there is a leaf"),
        }
    }

    /// The places of all classes, each behind its parent's; or the cycle that makes that impossible.
    fn parents_first(&self) -> Result<Vec<usize>, String> {
        let mut order = Vec::with_capacity(self.parents.len());
        let mut depth_of = vec![None; self.parents.len()];
        for place in 0..self.parents.len() {
            let mut line = vec![];
            let mut next = Some(place);
            while let Some(class) = next.filter(|&class| depth_of[class].is_none()) {
                if line.contains(&class) {
                    return Err(self.cycle(class));
                }
                line.push(class);
                next = self.parents[class];
            }
            let above = next.and_then(|class| depth_of[class]);
            for (depth, &class) in (above.map_or(0, |depth: usize| depth + 1)..).zip(line.iter().rev()) {
                if depth > DEPTH_MAX {
                    let why = format!("classes nest at most {DEPTH_MAX} deep; take levels out");
                    return Err(self.source.tell(self.parent_span(class), why));
                }
                depth_of[class] = Some(depth);
                order.push(class);
            }
        }
        Ok(order)
    }

    fn cycle(&self, class: usize) -> String {
        let mut names = vec![self.file.class[class].name.as_ref().as_str()];
        let mut next = self.parents[class];
        while let Some(parent) = next {
            names.push(self.file.class[parent].name.as_ref());
            next = self.parents[parent].filter(|_| parent != class);
        }
        let why =
            format!("a cycle of parents: {}; give one of them no parent, or another", names.join(" -> "));
        self.source.tell(self.parent_span(class), why)
    }

    fn parent_span(&self, class: usize) -> Range<usize> {
        let class = &self.file.class[class];
        class.parent.as_ref().unwrap_or(&class.name).span()
    }

    /// A warning for each class without a parent whose ceiling is above its rate: there is nobody to borrow from.
    fn ceilings_out_of_reach(&self, order: &[usize], classes: &[ClassConfig]) -> Vec<String> {
        let reachable = |class: &ClassConfig| class.parent.is_some() || class.ceil <= class.rate;
        let out_of_reach =
            order.iter().zip(classes).filter(|(_, class)| self.kind == TreeKind::Htb && !reachable(class));
        out_of_reach
            .filter_map(|(&place, class)| {
                let span = self.file.class[place].ceil.as_ref()?.span();
                let why = format!(
                    "on a wire or a port \"{}\" has no parent to borrow from and never gets above its rate {}: give it a parent, or leave the ceil out",
                    class.name, class.rate
                );
                Some(self.source.tell(span, why))
            })
            .collect()
    }

    /// A warning for each class whose children are guaranteed more than it is itself.
    fn children_above_parents(&self, order: &[usize], classes: &[ClassConfig]) -> Vec<String> {
        let mut children_bits_per_s = vec![0u64; classes.len()];
        for class in classes {
            if let Some(parent) = class.parent {
                children_bits_per_s[parent] =
                    children_bits_per_s[parent].saturating_add(class.rate.bits_per_s());
            }
        }
        let above = order.iter().zip(classes).zip(children_bits_per_s).filter_map(|((&place, class), sum)| {
            let sum = Rate::from_bits_per_s(sum).filter(|sum| *sum > class.rate)?;
            let why = format!(
                "the children of \"{}\" have {sum} together, more than its {}: not all can have it at once; lower theirs or raise this",
                class.name, class.rate
            );
            Some(self.source.tell(self.file.class[place].rate.span(), why))
        });
        above.collect()
    }
}

fn check_name(name: &str) -> Result<(), String> {
    if name == FREE {
        return Err(format!("\"{FREE}\" stands for no class at all; choose another name"));
    }
    let fits = |c: char| c.is_alphanumeric() || "-_.:/".contains(c);
    if name.is_empty() || name.chars().count() > 64 || !name.chars().all(fits) {
        return Err("a name is 1 to 64 letters, digits or any of -_.:/".into());
    }
    Ok(())
}
