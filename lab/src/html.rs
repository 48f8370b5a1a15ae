//! A report as one HTML page that needs nothing else: style inside, plots as inline SVG, light and dark.

use std::fmt::Write;

use crate::escape::escape;
use crate::histogram;
use crate::plot;
use crate::report::{Report, is_ours};

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1c2126; --dim: #5d6872; --line: #d9dee3; --paper: #ffffff; --ours: #0b7a53;
  --bad: #b3261e; --seed: #b3261e; --c0: #b9770e; --c1: #7d5ba6; --c2: #0b9464; --c3: #2f6fb3; --c4: #b04a7a;
  --c5: #5f7d1a; --c6: #87644a; --c7: #4d7c83; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --dim: #9aa6b1; --line: #333b43; --paper: #14181c;
  --ours: #4fd1a1; --bad: #ff8a80; --seed: #ff8a80; --c0: #e0a84a; --c1: #b294dc; --c2: #35c08c; --c3: #6fa8e6;
  --c4: #e084ae; --c5: #a3c255; --c6: #c59b7b; --c7: #82b7be; } }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.05rem; margin: 2.2rem 0 .4rem; }
.machine, .notes { color: var(--dim); font-size: .9rem; } .notes { padding-left: 1.2rem; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; font-size: .9rem; margin: 1.2rem 0 0; padding: 0;
  list-style: none; }
.legend svg { width: 14px; height: 14px; margin-right: .4rem; vertical-align: -1px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .25rem .45rem; text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid var(--line); vertical-align: bottom; }
th small { display: block; color: var(--dim); font-weight: normal; min-height: 1.2em; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
tr.first td { border-top: 1px solid var(--line); } tr.ours td { color: var(--ours); font-weight: 600; }
tr.failed td, .failed { color: var(--bad); }
figure { margin: 0; overflow-x: auto; } figure svg { width: 100%; min-width: 38rem; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink); } svg .mid { text-anchor: middle; }
svg .end { text-anchor: end; } svg .tick { fill: var(--dim); } svg .case { font-size: 12px; }
svg .value { font-size: 10px; } svg .grid { stroke: var(--line); } svg .axis { stroke: var(--dim); }
svg line.published { stroke: var(--seed); stroke-width: 1.5; stroke-dasharray: 5 3; }
svg rect.published { fill: none; stroke: var(--seed); stroke-dasharray: 3 2; }
svg text.published { fill: var(--seed); font-size: 10px; }
";

/// The number of colours of the style; further systems begin again.
const COLOURS: usize = 8;

/// The whole page.
pub fn render(report: &Report) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>weir lab {lab}</title>\n<style>{STYLE}{series}</style>\n</head>\n<body>\n\
         <h1>{title}</h1>\n<p class=\"machine\">{machine}</p>\n",
        lab = escape(report.lab),
        series = series_style(report.systems().len()),
        title = escape(report.title),
        machine = escape(&report.machine.to_line()),
    );
    page += &legend(report);
    for plot in report.plots {
        let drawn = match report.has_buckets(plot.field) {
            true => histogram::render(report, plot),
            false => plot::render(report, plot),
        };
        page += &format!("<h2>{}</h2>\n<figure>\n{drawn}</figure>\n", escape(plot.title));
    }
    page += &table(report);
    if let Some(absence) = report.absence() {
        page += &format!("<p class=\"notes\">{}</p>\n", escape(&absence));
    }
    for bound in &report.bounds {
        let class = if bound.is_missed() { "failed" } else { "notes" };
        page += &format!("<p class=\"{class}\">{}</p>\n", escape(&bound.to_line()));
    }
    for row in report.failures() {
        let error = row.error.as_deref().unwrap_or_default();
        let text = format!("{}, {} {}: {error}", row.system, row.case, report.case_heading);
        page += &format!("<p class=\"failed\">Failed: {}</p>\n", escape(&text));
    }
    page += "<h2>How to read this</h2>\n<ul class=\"notes\">\n";
    for note in report.notes {
        page += &format!("<li>{}</li>\n", code(&escape(note)));
    }
    page + "</ul>\n</body>\n</html>\n"
}

/// The text between backticks, as code.
fn code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(index, part)| if index % 2 == 1 { format!("<code>{part}</code>") } else { part.into() })
        .collect()
}

fn series_style(systems: usize) -> String {
    (0..systems).map(|index| format!("svg .s{index} {{ fill: var(--c{}); }}\n", index % COLOURS)).collect()
}

fn legend(report: &Report) -> String {
    let mut out = "<ul class=\"legend\">\n".to_string();
    for (index, system) in report.systems().iter().enumerate() {
        let swatch =
            format!("<svg viewBox=\"0 0 14 14\"><rect class=\"s{index}\" width=\"14\" height=\"14\"/></svg>");
        out += &format!("<li>{swatch}{}</li>\n", escape(system));
    }
    if report.plots.iter().any(|plot| plot.reference.is_some()) {
        let mark = "<svg viewBox=\"0 0 14 14\"><line class=\"published\" y1=\"7\" x2=\"14\" y2=\"7\"/></svg>";
        out += &format!("<li>{mark}as published</li>\n");
    }
    out + "</ul>\n"
}

fn table(report: &Report) -> String {
    let mut out = "<h2>All figures</h2>\n<div class=\"scroll\"><table>\n<tr>".to_string();
    let mut heading = |text: &str, unit: &str| {
        write!(out, "<th>{}<small>{}</small></th>", escape(text), escape(unit)).expect("writing to a string");
    };
    heading(report.case_heading, "");
    heading("system", "");
    report.columns().for_each(|field| heading(field.heading, field.unit));
    out += "</tr>\n";
    let mut case = None;
    for row in &report.rows {
        let mut classes = Vec::new();
        if case != Some(&row.case) {
            classes.push("first");
            case = Some(&row.case);
        }
        match (&row.error, is_ours(&row.system)) {
            (Some(_), _) => classes.push("failed"),
            (None, true) => classes.push("ours"),
            (None, false) => {}
        }
        out += &format!("<tr class=\"{}\">", classes.join(" "));
        out += &format!("<td>{}</td><td>{}</td>", escape(&row.case), escape(&row.system));
        for field in report.columns() {
            out += &format!("<td>{}</td>", row.value(field.name).to_text(field.decimals));
        }
        out += "</tr>\n";
    }
    out + "</table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn the_page_stands_alone_and_escapes_what_it_is_given() {
        let page = render(&sample());
        for outside in ["http://", "https://", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("A &lt;fast&gt; CPU") && page.contains("no &amp; never"));
        assert!(!page.contains("<fast>"));
    }

    #[test]
    fn every_row_and_every_plot_is_there() {
        let page = render(&sample());
        assert_eq!(page.matches("<tr class=").count(), 4);
        assert_eq!(page.matches("<figure>").count(), 2);
        assert_eq!(page.matches("class=\"first").count(), 2);
    }
}
