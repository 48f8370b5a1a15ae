//! A classes file taken for itself, as `weir check` has it: whether it is one, and what is wrong with it before anybody says where it is for.
//!
//! Rule: it is judged as a wire or a port judges it, with whatever interfaces it names. A reason against a limit in place is told beside.
//!
//! Pure.

use toml::de::DeTable;

use super::{Classes, Interfaces, file, of_tables, read_in_place};
use crate::source::{LineStarts, SourceText};

/// A classes file that nothing is wrong with.
#[derive(Clone, Debug)]
pub struct ClassesFile {
    /// Its classes.
    pub classes: Classes,
    /// The number of its filters.
    pub filters: usize,
    /// The reason why a limit in place cannot have them, in one line; `None` if it can.
    pub not_in_place: Option<String>,
}

/// Returns whether a text has classes or filters at its top, and no table of a topology file beside them.
pub fn is_classes_file(text: &str) -> bool {
    // What is no TOML is told alike of both.
    let root = DeTable::parse(text);
    let has = |known: &[&str]| {
        root.as_ref()
            .is_ok_and(|root| root.get_ref().keys().any(|key| known.contains(&key.get_ref().as_ref())))
    };
    has(&["class", "filter"]) && !crate::topology::file::TABLES.iter().any(|(table, _)| has(&[table]))
}

/// Reads and checks a file called `name` for itself.
///
/// # Errors
/// If the file is wrong: each fault in a sentence.
pub fn read_alone(name: &str, text: &str) -> Result<ClassesFile, Vec<String>> {
    let lines = LineStarts::of(text);
    let source = SourceText { name, text, lines: &lines };
    let tables = file::read(source).map_err(|told| vec![told])?;
    let mut named: Vec<&str> = tables
        .filter
        .iter()
        .filter_map(|filter| Some(filter.interface.as_ref()?.as_ref().as_str()))
        .collect();
    named.sort_unstable();
    named.dedup();
    let classes = of_tables(source, &tables, &Interfaces::of_ports(named.into_iter().zip(0..).collect()))?;
    let not_in_place = read_in_place(name, text).err().map(|refused| refused.why);
    Ok(ClassesFile { classes, filters: tables.filter.len(), not_in_place })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: &str = "[[class]]\nname = \"a\"\nrate = \"10mbit\"\n";

    #[test]
    fn a_classes_file_is_told_from_a_topology() {
        for (text, expected) in [
            (CLASS.to_string(), true),
            ("shaper = \"cbq\"\n[[filter]]\nclass = \"a\"\n".into(), true),
            (format!("{CLASS}[[limit]]\ndevice = \"a\"\n"), false),
            (format!("{CLASS}[[port]]\ninterface = \"a\"\n"), false),
            ("default = \"a\"\n".into(), false),
            (format!("{CLASS}[[class]\n"), false),
            (String::new(), false),
        ] {
            assert_eq!(is_classes_file(&text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_and_what_no_limit_in_place_keeps() {
        let read = |text: &str| read_alone("f.toml", &format!("{CLASS}{text}"));
        let plain = read("[[filter]]\nto_ports = 80\nclass = \"a\"\n").unwrap();
        assert_eq!((plain.classes.classes.len(), plain.filters, plain.not_in_place), (1, 1, None));
        let filter = |name| format!("[[filter]]\ninterface = \"{name}\"\nclass = \"a\"\n");
        let named = read(&["x", "y", "z"].map(filter).concat()).unwrap();
        assert_eq!((named.classes.warnings, named.filters), (Vec::new(), 3));
        assert!(named.not_in_place.unwrap().starts_with("f.toml:5: a limit in place is one interface's"));
        let told = read("rote = \"1mbit\"\n").unwrap_err();
        assert!(told[0].starts_with("f.toml:4:1: unknown key `rote`"), "{told:?}");
    }
}
