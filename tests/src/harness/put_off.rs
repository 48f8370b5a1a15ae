//! The tests that were put off: beside others their figure was short, which says nothing, so they are judged alone.
//!
//! Rule: a test that is put off is run once more, in the part of those alone, or the run fails. All test files write to one list, a line
//! for each test: the name of the test file, and that of the test.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{Case, Part};

/// The list, as one test file sees it.
pub(super) struct PutOff {
    pub(super) path: Option<PathBuf>,
    /// The name of the test file.
    pub(super) file: String,
}

impl PutOff {
    /// The list that `WEIR_PUT_OFF` names, for this program.
    pub(super) fn here() -> PutOff {
        let own = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
        let file = own.file_name().unwrap_or_default().to_string_lossy().into_owned();
        PutOff { path: std::env::var_os("WEIR_PUT_OFF").map(PathBuf::from), file }
    }

    /// The cases, of which those that were put off are of those alone.
    pub(super) fn brought_in(&self, cases: &[Case]) -> Vec<Case> {
        let text = self.path.as_ref().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        let is_put_off = |name: &str| text.lines().any(|line| line == format!("{} {name}", self.file));
        let part = |case: &Case| if is_put_off(case.name) { Part::Alone } else { case.part };
        cases.iter().map(|case| Case { part: part(case), ..*case }).collect()
    }

    /// Writes these tests down. Where no list is named, nobody would run them, which is an error.
    pub(super) fn write(&self, names: &[&str]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let path = self.path.as_ref().context("WEIR_PUT_OFF names no file")?;
        let lines: String = names.iter().map(|name| format!("{} {name}\n", self.file)).collect();
        let mut file = fs::OpenOptions::new().append(true).create(true).open(path).context("WEIR_PUT_OFF")?;
        file.write_all(lines.as_bytes()).context("WEIR_PUT_OFF")
    }
}
