//! Text in aligned columns: words to the left, figures to the right, colour only where it says something.

use std::fmt::Write;

/// The style of a cell; shown on a terminal only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// No style.
    Plain,
    /// A heading.
    Heading,
    /// A value as it should be.
    Good,
    /// Worth a look.
    Notice,
    /// Something is wrong.
    Fault,
}

impl Style {
    /// The codes of all styles, and of none (ECMA-48, SGR).
    pub const CODES: [&str; 5] = ["0", "1", "32", "33", "1;31"];

    fn code(self) -> &'static str {
        let [plain, heading, good, notice, fault] = Style::CODES;
        match self {
            Style::Plain => plain,
            Style::Heading => heading,
            Style::Good => good,
            Style::Notice => notice,
            Style::Fault => fault,
        }
    }
}

/// Puts a style around a text, or leaves it alone.
pub fn paint(text: &str, style: Style, colour: bool) -> String {
    match colour && style != Style::Plain {
        true => format!("\x1b[{}m{text}\x1b[{}m", style.code(), Style::Plain.code()),
        false => text.to_string(),
    }
}

/// Columns, headings and rows.
pub struct TextTable {
    headings: Vec<&'static str>,
    words: usize,
    rows: Vec<Vec<(String, Style)>>,
}

impl TextTable {
    /// A table of which the first `words` columns hold words and the others figures. Without any heading it has no such line.
    pub fn new(words: usize, headings: &[&'static str]) -> TextTable {
        TextTable { headings: headings.to_vec(), words, rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are headings.
    pub fn row(&mut self, cells: Vec<(String, Style)>) {
        assert_eq!(cells.len(), self.headings.len(), "a cell for each heading");
        self.rows.push(cells);
    }

    /// The table as lines, each with its end.
    pub fn render(&self, colour: bool) -> String {
        let widths: Vec<usize> = (0..self.headings.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| row[column].0.chars().count());
                cells.chain([self.headings[column].chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let headings = self.headings.iter().map(|heading| (heading.to_string(), Style::Heading)).collect();
        let mut text = String::new();
        let has_headings = self.headings.iter().any(|heading| !heading.is_empty());
        for row in has_headings.then_some(&headings).into_iter().chain(&self.rows) {
            let mut line = String::new();
            // Blanks are written only before something, so that no line ends in one.
            let mut blanks = 0;
            for (column, (cell, style)) in row.iter().enumerate() {
                let pad = widths[column] - cell.chars().count();
                let (before, after) = if column < self.words { (0, pad) } else { (pad, 0) };
                if !cell.is_empty() {
                    let painted = paint(cell, *style, colour);
                    write!(line, "{:1$}{painted}", "", blanks + before).expect("writing to a string");
                    blanks = after + 2;
                } else {
                    blanks += before + after + 2;
                }
            }
            writeln!(text, "{line}").expect("writing to a string");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> TextTable {
        let mut table = TextTable::new(1, &["name", "packets", ""]);
        let plain = |text: &str| (text.to_string(), Style::Plain);
        table.row(vec![plain("a"), plain("1,234"), plain("1 MB")]);
        table.row(vec![plain("a longer name"), ("7".into(), Style::Fault), plain("")]);
        table
    }

    #[test]
    fn words_to_the_left_and_figures_to_the_right() {
        let expected = "\
name           packets
a                1,234  1 MB
a longer name        7
";
        assert_eq!(sample().render(false), expected);
    }

    #[test]
    fn colour_adds_nothing_but_colour() {
        let mut coloured = sample().render(true);
        assert!(coloured.contains("\x1b[1;31m7\x1b[0m"));
        for code in ["\x1b[1m", "\x1b[1;31m", "\x1b[0m"] {
            coloured = coloured.replace(code, "");
        }
        assert_eq!(coloured, sample().render(false));
    }
}
