//! The classes of a limit or a port: in a file of their own, or in tables below its own.
//!
//! Rule: one of the two. The reader that is handed in decides which classes can be kept: those of a limit in place, or those of a path.

use std::ops::Range;

use toml::Spanned;

use super::check::{Open, TopologyReader};
use super::file::Told;
use crate::classes::{Classes, file};
use crate::source::SourceText;

/// The keys of a table that concern classes.
pub(super) struct ClassTables<'a> {
    /// The table: `limit` or `port`.
    pub of: &'static str,
    /// The span of the table.
    pub at: &'a Range<usize>,
    pub classes_file: &'a Option<Spanned<String>>,
    pub shaper: &'a Option<Spanned<String>>,
    pub default: &'a Option<Spanned<String>>,
    pub class: &'a [file::ClassTable],
    pub filter: &'a [file::Filter],
}

impl ClassTables<'_> {
    /// The place of the first key that stands here and not in a file.
    fn here(&self) -> Option<Range<usize>> {
        let default = self.default.as_ref().map(Spanned::span);
        let shaper = self.shaper.as_ref().map(Spanned::span);
        let class = self.class.first().map(|class| class.name.span());
        let filter = self.filter.first().map(|filter| filter.class.span());
        default.or(shaper).or(class).or(filter)
    }

    /// Returns whether there are any.
    pub fn is_any(&self) -> bool {
        self.classes_file.is_some() || self.here().is_some()
    }
}

impl TopologyReader<'_> {
    /// The classes, and the place that names them; `None` without any, and where they have a fault, which is told.
    pub(super) fn classes(
        &mut self,
        tables: &ClassTables,
        open: &mut Open,
        of_file: impl Fn(&str, &str) -> Result<Classes, Vec<String>>,
        of_tables: impl Fn(SourceText, &file::File) -> Result<Classes, Vec<String>>,
    ) -> Option<(Classes, Range<usize>)> {
        let (read, called) = match (tables.classes_file, tables.here()) {
            (None, None) => return None,
            (Some(path), Some(_)) => {
                self.tell(
                    path.span(),
                    "the classes are in a file of their own or here: take one of the two out",
                );
                return None;
            }
            (Some(path), None) => match open(path.as_ref()) {
                Ok((name, text)) => (of_file(&name, &text), path.span()),
                Err(why) => {
                    self.tell(path.span(), format!("classes file {:?}: {why}", path.as_ref()));
                    return None;
                }
            },
            (None, Some(here)) if tables.class.is_empty() => {
                let why = format!("there is no class; write [[{}.class]] with a name and a rate", tables.of);
                self.tell(here, why);
                return None;
            }
            (None, Some(here)) => {
                let tables = file::File {
                    at: tables.at.clone(),
                    shaper: tables.shaper.clone(),
                    default: tables.default.clone(),
                    class: tables.class.to_vec(),
                    filter: tables.filter.to_vec(),
                };
                (of_tables(self.source, &tables), here)
            }
        };
        match read {
            Ok(classes) => {
                let warnings = classes.warnings.iter().cloned();
                self.warnings.extend(warnings.map(|what| Told { at: called.start, what }));
                Some((classes, called))
            }
            Err(told) => {
                self.told.extend(told.into_iter().map(|what| Told { at: called.start, what }));
                None
            }
        }
    }
}
