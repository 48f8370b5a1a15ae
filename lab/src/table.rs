//! A report as an aligned table: headings with units, one row per system, a rule between cases.
//! Histograms follow, of a field that was published in part those that have a published one beside them; last comes the appendix.
//!
//! With colour, our own rows are bold green and rows that failed are red; without, only the colour is lost.

use std::fmt::Write;

use crate::histogram;
use crate::report::{Report, is_ours};

const RESET: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const OURS: &str = "\x1b[1;32m";
const FAILED: &str = "\x1b[31m";

/// The table, its title above and the machine and the failures below.
pub fn render(report: &Report, colour: bool) -> String {
    let paint =
        |style: &str, text: &str| if colour { format!("{style}{text}{RESET}") } else { text.to_string() };
    let (headings, units, body) = cells(report);
    let width = |column: usize| {
        let own = headings[column].chars().count().max(units[column].chars().count());
        body.iter().map(|row| row[column].chars().count()).chain([own]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let rule = "─".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));

    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{}", text.trim_end()).expect("writing to a string");
    line(paint(BOLD, report.title));
    line(paint(DIM, &report.machine.to_line()));
    line(String::new());
    line(paint(BOLD, join(&headings, &widths).trim_end()));
    line(paint(DIM, join(&units, &widths).trim_end()));
    let mut case = None;
    for (row, cells) in report.rows.iter().zip(&body) {
        if case != Some(&row.case) {
            line(paint(DIM, &rule));
            case = Some(&row.case);
        }
        let text = join(cells, &widths);
        let style = match (&row.error, is_ours(&row.system)) {
            (Some(_), _) => Some(FAILED),
            (None, true) => Some(OURS),
            (None, false) => None,
        };
        line(style.map_or(text.clone(), |style| paint(style, text.trim_end())));
    }
    for plot in report.plots.iter().filter(|plot| report.has_buckets(plot.field)) {
        line(histogram::text(report, plot));
    }
    if let Some(absence) = report.absence() {
        line(paint(DIM, &absence));
    }
    for bound in &report.bounds {
        let text = bound.to_line();
        line(if bound.is_missed() { paint(FAILED, &text) } else { text });
    }
    for row in report.failures() {
        let error = row.error.as_deref().unwrap_or_default();
        let text = format!("FAILED: {}, {} {}: {error}", row.system, row.case, report.case_heading);
        line(paint(FAILED, &text));
    }
    if !report.appendix.is_empty() {
        line(format!("\n{}", report.appendix));
    }
    out
}

/// Headings, units and the text of every row. The first two columns are the case and the system.
fn cells(report: &Report) -> (Vec<String>, Vec<String>, Vec<Vec<String>>) {
    let mut headings = vec![report.case_heading.to_string(), "system".to_string()];
    let mut units = vec![String::new(), String::new()];
    for field in report.columns() {
        headings.push(field.heading.to_string());
        units.push(field.unit.to_string());
    }
    let mut body = Vec::new();
    for row in &report.rows {
        let mut line = vec![row.case.clone(), row.system.clone()];
        line.extend(report.columns().map(|field| row.value(field.name).to_text(field.decimals)));
        body.push(line);
    }
    (headings, units, body)
}

/// Text columns to the left, figures to the right.
fn join(cells: &[String], widths: &[usize]) -> String {
    let pad = |(index, cell): (usize, &String)| {
        let blank = " ".repeat(widths[index] - cell.chars().count());
        if index < 2 { format!("{cell}{blank}") } else { format!("{blank}{cell}") }
    };
    cells.iter().enumerate().map(pad).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn columns_are_aligned_and_units_are_shown() {
        let expected = "\
A sample
Linux 6.18, 2 cores of A <fast> CPU

clients  system   lost  published    wait
                     %          %      ms
─────────────────────────────────────────
2        tbf     91.23       74.7   8.200
2        weir     0.00       74.7   0.400
─────────────────────────────────────────
64       tbf     97.00          -  82.000
64       weir        -          -       -
FAILED: weir, 64 clients: no & never
";
        assert_eq!(render(&sample(), false), expected);
    }

    #[test]
    fn colour_adds_nothing_but_colour() {
        let coloured = render(&sample(), true);
        let mut plain = coloured.clone();
        for style in [RESET, BOLD, DIM, OURS, FAILED] {
            plain = plain.replace(style, "");
        }
        assert_eq!(plain, render(&sample(), false));
        assert!(coloured.contains(OURS) && coloured.contains(FAILED));
    }
}
