//! Histograms of a field that holds buckets: as text, the counts of every system side by side; as inline SVG, bars.
//!
//! A row is a power of two, named by its lower end, as dtrace's `quantize()` prints it. A bar's length is its bucket's share
//! of the system's total; a bucket that holds anything at all shows at least a hair, as it is the tail that matters. A
//! published histogram stands beside the system it was measured of.

use std::fmt::Write;

use crate::escape::escape;
use crate::report::{Plot, Report, Value};

const WIDTH: f64 = 820.0;
const LEFT: f64 = 84.0;
const ROW: f64 = 13.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 14.0;
/// The least length of a bar that stands for something.
const HAIR: f64 = 1.5;

/// A column of counts.
struct Column {
    heading: String,
    /// The place of its system.
    series: usize,
    published: bool,
    buckets: Vec<[u64; 2]>,
}

impl Column {
    fn count(&self, lower_end: u64) -> u64 {
        self.buckets.iter().find(|[end, _]| *end == lower_end).map_or(0, |[_, count]| *count)
    }
}

/// The histograms as text: of a field that was published in part, of those cases alone.
pub fn text(report: &Report, plot: &Plot) -> String {
    let mut out = String::new();
    for case in report.cases() {
        let columns = columns(report, plot, case);
        let is_published = columns.iter().any(|column| column.published);
        if columns.is_empty() || plot.reference.is_some() && !is_published {
            continue;
        }
        write!(out, "\n{}, {case}\n{:>12}", plot.title, "from").expect("writing to a string");
        let width = |column: &Column| column.heading.chars().count().max(9) + 2;
        for column in &columns {
            write!(out, "{:>1$}", column.heading, width(column)).expect("writing to a string");
        }
        for lower_end in rows(&columns) {
            write!(out, "\n{lower_end:>12}").expect("writing to a string");
            for column in &columns {
                let count = match column.count(lower_end) {
                    0 => ".".to_string(),
                    count => count.to_string(),
                };
                write!(out, "{count:>0$}", width(column)).expect("writing to a string");
            }
        }
        out.push('\n');
    }
    out
}

/// The histograms of all cases.
pub fn render(report: &Report, plot: &Plot) -> String {
    report.cases().iter().map(|case| render_case(report, plot, case)).collect()
}

fn render_case(report: &Report, plot: &Plot, case: &str) -> String {
    let all = columns(report, plot, case);
    let own = all.iter().filter(|column| !column.published).count();
    if own == 0 {
        return String::new();
    }
    let rows = rows(&all);
    let height = TOP + ROW * rows.len() as f64 + BOTTOM;
    let label = format!("{}, {case}", plot.title);
    let mut svg =
        format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n", escape(&label));
    let mut line = |text: String| writeln!(svg, "{text}").expect("writing to a string");
    let text = |class: &str, x: f64, y: f64, text: &str| {
        format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text))
    };
    line(text("case end", LEFT - 8.0, TOP - 10.0, case));
    for (row, lower_end) in rows.iter().enumerate() {
        line(text("tick end", LEFT - 8.0, TOP + ROW * (row as f64 + 0.8), &lower_end.to_string()));
    }
    let slot = (WIDTH - LEFT) / own as f64;
    let mut place = 0.0;
    for column in &all {
        // A published histogram lies over its system's.
        if !column.published {
            line(text("", LEFT + slot * place, TOP - 10.0, &column.heading));
            place += 1.0;
        }
        let x = LEFT + slot * (place - 1.0);
        let total: u64 = column.buckets.iter().map(|[_, count]| count).sum();
        for (row, lower_end) in rows.iter().enumerate() {
            let count = column.count(*lower_end);
            if count == 0 {
                continue;
            }
            let length = (count as f64 / total as f64 * (slot - 8.0)).max(HAIR);
            let class =
                if column.published { "published".to_string() } else { format!("s{}", column.series) };
            line(format!(
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"{:.1}\">\
                 <title>{}, from {lower_end}: {count}</title></rect>",
                TOP + ROW * row as f64 + 1.0,
                ROW - 2.0,
                escape(&column.heading),
            ));
        }
    }
    svg + "</svg>\n"
}

/// The columns of a case in the order of systems, a published one after its system's own.
fn columns(report: &Report, plot: &Plot, case: &str) -> Vec<Column> {
    let mut columns = Vec::new();
    for (series, system) in report.systems().into_iter().enumerate() {
        for row in report.rows.iter().filter(|row| row.case == case && row.system == system) {
            let own = Some((plot.field, system.to_string(), false));
            let seed = plot.reference.map(|field| (field, format!("{system} published"), true));
            for (field, heading, published) in own.into_iter().chain(seed) {
                if let Value::Buckets(buckets) = row.value(field) {
                    columns.push(Column { heading, series, published, buckets });
                }
            }
        }
    }
    columns
}

/// All powers of two from the least bucket that holds something to the greatest.
fn rows(columns: &[Column]) -> Vec<u64> {
    let held = columns.iter().flat_map(|column| &column.buckets).filter(|[_, count]| *count > 0);
    let ends = held.map(|[end, _]| *end);
    let (Some(least), Some(greatest)) = (ends.clone().min(), ends.max()) else { return Vec::new() };
    std::iter::successors(Some(least), |end| end.checked_mul(2)).take_while(|end| *end <= greatest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Field, Row, Scale, tests::sample};

    const FIELDS: &[Field] = &[Field { name: "wait_hist", heading: "wait", unit: "ns", decimals: 0 }];
    const PLOT: Plot =
        Plot { field: "wait_hist", title: "Wait, ns", scale: Scale::Log, reference: Some("seed_wait_hist") };

    fn report() -> Report {
        let own = |buckets: &[[u64; 2]]| ("wait_hist", Value::from(buckets.to_vec()));
        let seed = ("seed_wait_hist", Value::from(vec![[128, 7], [512, 1]]));
        let rows = vec![
            Row::new("old", "busy", vec![own(&[[256, 100_000], [512, 0], [1024, 1]]), seed]),
            Row::new("new", "busy", vec![own(&[[256, 5]])]),
            Row::new("new", "idle", vec![own(&[[64, 5]])]),
        ];
        Report { fields: FIELDS, plots: const { &[PLOT] }, rows, ..sample() }
    }

    #[test]
    fn text_shows_every_bucket_beside_the_published_ones() {
        let expected = "
Wait, ns, busy
        from        old  old published        new
         128          .              7          .
         256     100000              .          5
         512          .              1          .
        1024          1              .          .
";
        assert_eq!(text(&report(), &PLOT), expected);
    }

    #[test]
    fn every_bucket_that_holds_something_has_a_bar_and_a_single_one_shows() {
        let svg = render(&report(), &PLOT);
        assert_eq!(svg.matches("<svg").count(), 2);
        assert_eq!(svg.matches("<rect class=\"s0\"").count(), 2);
        assert_eq!(svg.matches("<rect class=\"published\"").count(), 2);
        assert!(svg.contains("old, from 1024: 1") && svg.contains(&format!("width=\"{HAIR:.1}\"")));
    }

    #[test]
    fn buckets_have_a_plot_and_no_column() {
        let report = report();
        assert_eq!(report.columns().count(), 0);
        assert!(crate::table::render(&report, false).contains("old published"));
        assert_eq!(report.to_json()["rows"][1]["wait_hist"], serde_json::json!([[256, 5]]));
        assert!(crate::html::render(&report).contains("class=\"published\""));
    }
}
