//! One plot as inline SVG: bars for each system, grouped by case, the published figure marked across its group.
//!
//! A linear axis starts at 0. A logarithmic one starts at the power of ten below the smallest figure above 0, and a
//! figure of 0 has no bar on it, only its label. Colours are CSS classes (`s0`, `s1`, ... by the order of systems),
//! so the page decides how they look in light and dark.

use std::fmt::Write;

use crate::escape::escape;
use crate::report::{Plot, Report, Scale};

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 286.0;
const LEFT: f64 = 58.0;
/// Room for a slanted label over the highest bar.
const TOP: f64 = 38.0;
const BOTTOM: f64 = 46.0;
/// The share of a group's width that its bars take.
const FILLED: f64 = 0.84;
/// Over narrower bars, level labels would run into each other.
const LABEL_WIDTH: f64 = 28.0;

/// The plot of one field of a report: a panel for the cases that have systems in common, such as floods, and another for the rest,
/// such as trees.
pub fn render(report: &Report, plot: &Plot) -> String {
    panels(report, plot).iter().map(|cases| panel(report, plot, cases)).collect()
}

fn figure(report: &Report, name: &str, case: &str, system: &str) -> Option<f64> {
    let mut rows = report.rows.iter();
    rows.find(|row| row.case == case && row.system == system).and_then(|row| row.value(name).as_f64())
}

/// The systems that have a figure in one of the cases, with their numbers in the report.
fn drawn<'a>(report: &'a Report, plot: &Plot, cases: &[&str]) -> Vec<(usize, &'a str)> {
    let has_figure =
        |system: &str| cases.iter().any(|case| figure(report, plot.field, case, system).is_some());
    report.systems().into_iter().enumerate().filter(|(_, system)| has_figure(system)).collect()
}

/// The cases in parts that share no system; those without a figure are left out.
fn panels<'a>(report: &'a Report, plot: &Plot) -> Vec<Vec<&'a str>> {
    let mut panels: Vec<Vec<&str>> = Vec::new();
    for case in report.cases() {
        let systems = drawn(report, plot, &[case]);
        if systems.is_empty() {
            continue;
        }
        let shares = |panel: &Vec<&str>| drawn(report, plot, panel).iter().any(|one| systems.contains(one));
        match panels.iter_mut().find(|panel| shares(panel)) {
            Some(panel) => panel.push(case),
            None => panels.push(vec![case]),
        }
    }
    panels
}

fn panel(report: &Report, plot: &Plot, cases: &[&str]) -> String {
    let systems = drawn(report, plot, cases);
    let figure = |name: &str, case: &str, system: &str| figure(report, name, case, system);
    let published = |case: &str| {
        let name = plot.reference?;
        systems.iter().find_map(|(_, system)| figure(name, case, system))
    };
    let mut all: Vec<f64> = cases.iter().filter_map(|case| published(case)).collect();
    for case in cases {
        all.extend(systems.iter().filter_map(|(_, system)| figure(plot.field, case, system)));
    }
    let axis = Axis::over(&all, plot.scale);

    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(plot.title)
    );
    for tick in axis.ticks() {
        let y = axis.y(tick);
        write_line(&mut svg, "grid", LEFT, y, WIDTH, y);
        write_text(&mut svg, "tick end", LEFT - 8.0, y + 4.0, &short(tick));
    }
    let group = (WIDTH - LEFT) / cases.len().max(1) as f64;
    let bar = group * FILLED / systems.len().max(1) as f64;
    for (index, case) in cases.iter().enumerate() {
        let start = LEFT + group * index as f64 + group * (1.0 - FILLED) / 2.0;
        for (place, (series, system)) in systems.iter().enumerate() {
            let Some(value) = figure(plot.field, case, system) else { continue };
            let x = start + bar * place as f64;
            let top = axis.y(value);
            let (inset, full) = (x + 1.5, (bar - 3.0).max(1.0));
            let height = (axis.y(axis.low) - top).max(0.0);
            let label = short(value);
            writeln!(
                svg,
                "<rect class=\"s{series}\" x=\"{inset:.1}\" y=\"{top:.1}\" width=\"{full:.1}\" height=\"{height:.1}\">\
                 <title>{}, {} {}: {value}</title></rect>",
                escape(system),
                escape(case),
                escape(report.case_heading),
            )
            .expect("writing to a string");
            if bar < LABEL_WIDTH {
                write_slanted(&mut svg, x + bar / 2.0, top - 4.0, &label);
            } else {
                write_text(&mut svg, "value mid", x + bar / 2.0, top - 4.0, &label);
            }
        }
        if let Some(value) = published(case) {
            let y = axis.y(value);
            write_line(&mut svg, "published", start, y, start + group * FILLED, y);
            write_text(&mut svg, "published end", start + group * FILLED, y - 4.0, &short(value));
        }
        // A class of a tree stands below its tree, as both beside each other are wider than a group.
        for (line, part) in case.split('/').enumerate() {
            let y = HEIGHT - BOTTOM + 15.0 + 12.0 * line as f64;
            write_text(&mut svg, "case mid", start + group * FILLED / 2.0, y, part);
        }
    }
    let base = axis.y(axis.low);
    write_line(&mut svg, "axis", LEFT, base, WIDTH, base);
    write_text(&mut svg, "tick mid", (LEFT + WIDTH) / 2.0, HEIGHT - 3.0, report.case_heading);
    svg + "</svg>\n"
}

/// The positions of figures between the bottom and the top of a plot.
struct Axis {
    low: f64,
    high: f64,
    step: f64,
    scale: Scale,
}

impl Axis {
    fn over(figures: &[f64], scale: Scale) -> Axis {
        let high = figures.iter().copied().fold(0.0, f64::max);
        match scale {
            Scale::Linear => {
                let high = if high > 0.0 { high } else { 1.0 };
                let step = round_step(high / 4.0);
                // A figure that ends just above a tick may end there too.
                Axis { low: 0.0, high: (high / step - 0.02).ceil() * step, step, scale }
            }
            Scale::Log => {
                let positive = figures.iter().copied().filter(|x| *x > 0.0);
                let least = positive.fold(f64::INFINITY, f64::min);
                let least = if least.is_finite() { least } else { 0.1 };
                let low = 10f64.powf(least.log10().floor());
                let high = 10f64.powf(high.max(low * 10.0).log10().ceil());
                Axis { low, high, step: 10.0, scale }
            }
        }
    }

    fn ticks(&self) -> Vec<f64> {
        let mut ticks = vec![self.low];
        // Half a step of slack, so that rounding does not lose the last tick.
        match self.scale {
            Scale::Linear => {
                while ticks[ticks.len() - 1] + self.step * 0.5 < self.high {
                    ticks.push(ticks.len() as f64 * self.step);
                }
            }
            Scale::Log => {
                while ticks[ticks.len() - 1] * 3.0 < self.high {
                    ticks.push(ticks[ticks.len() - 1] * self.step);
                }
            }
        }
        ticks
    }

    fn y(&self, figure: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (figure - self.low) / (self.high - self.low),
            Scale::Log if figure <= 0.0 => 0.0,
            Scale::Log => (figure / self.low).log10() / (self.high / self.low).log10(),
        };
        HEIGHT - BOTTOM - part.clamp(0.0, 1.0) * (HEIGHT - BOTTOM - TOP)
    }
}

/// The smallest of 1, 2, 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= least * 0.999).unwrap_or(power)
}

/// Three significant digits, without zeros that say nothing; from 10 000 on in thousands, millions or billions.
fn short(figure: f64) -> String {
    if figure == 0.0 {
        return "0".to_string();
    }
    if figure.abs() >= 1e4 {
        let (unit, name) = [(1e9, "G"), (1e6, "M"), (1e3, "k")]
            .into_iter()
            .find(|(unit, _)| figure.abs() >= *unit)
            .expect("at least a thousand");
        return short(figure / unit) + name;
    }
    let digits = (2 - figure.abs().log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{figure:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

fn write_line(svg: &mut String, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
    writeln!(svg, "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>")
        .expect("writing to a string");
}

fn write_text(svg: &mut String, class: &str, x: f64, y: f64, text: &str) {
    writeln!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text))
        .expect("writing to a string");
}

fn write_slanted(svg: &mut String, x: f64, y: f64, text: &str) {
    writeln!(
        svg,
        "<text class=\"value\" x=\"{x:.1}\" y=\"{y:.1}\" transform=\"rotate(-50 {x:.1} {y:.1})\">{}</text>",
        escape(text)
    )
    .expect("writing to a string");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn a_linear_axis_starts_at_zero_and_ends_on_a_tick() {
        let axis = Axis::over(&[97.0, 74.7, 0.0], Scale::Linear);
        assert_eq!(axis.ticks(), [0.0, 50.0, 100.0]);
        assert!(axis.y(0.0) > axis.y(74.7) && axis.y(74.7) > axis.y(97.0));
        assert_eq!(axis.y(0.0), HEIGHT - BOTTOM);
    }

    #[test]
    fn a_hair_above_a_tick_is_no_reason_for_another() {
        assert_eq!(Axis::over(&[1.0003, 0.97], Scale::Linear).high, 1.0);
    }

    #[test]
    fn a_log_axis_spans_whole_decades_and_bears_zeros() {
        let axis = Axis::over(&[0.0, 0.4, 220.0], Scale::Log);
        let expected = [0.1, 1.0, 10.0, 100.0, 1000.0];
        assert_eq!(axis.ticks().len(), expected.len());
        for (tick, expected) in axis.ticks().iter().zip(expected) {
            assert!((tick / expected - 1.0).abs() < 1e-9);
        }
        assert_eq!(axis.y(0.0), HEIGHT - BOTTOM);
        assert!((axis.y(10.0) - (TOP + HEIGHT - BOTTOM) / 2.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_to_draw_is_drawn_without_fault() {
        for scale in [Scale::Linear, Scale::Log] {
            assert!(Axis::over(&[], scale).y(0.0).is_finite());
            assert!(Axis::over(&[0.0], scale).ticks().iter().all(|tick| tick.is_finite()));
        }
    }

    #[test]
    fn a_bar_for_each_figure_and_a_mark_for_each_published_one() {
        let report = sample();
        let svg = render(&report, &report.plots[0]);
        assert_eq!(svg.matches("<rect").count(), 3);
        assert_eq!(svg.matches("<line class=\"published\"").count(), 1);
        assert!(svg.contains(">91.2</text>") && svg.contains(">0</text>"));
    }

    #[test]
    fn cases_without_a_system_in_common_are_drawn_apart() {
        use crate::report::Row;
        let mut report = sample();
        report.rows.push(Row::new("htb", "tree/gold", vec![("wait_ms", 40.0.into())]));
        report.rows.push(Row::absent("fq", "2"));
        assert_eq!(panels(&report, &report.plots[0]), [["2", "64"]]);
        assert_eq!(panels(&report, &report.plots[1]), [vec!["2", "64"], vec!["tree/gold"]]);
        let svg = render(&report, &report.plots[1]);
        assert_eq!((svg.matches("<svg").count(), svg.matches("<rect class=\"s2\"").count()), (2, 1));
        assert!(svg.contains(">tree</text>") && svg.contains(">gold</text>"));
    }

    #[test]
    fn labels_are_short() {
        let texts = [0.0, 0.345, 8.2, 91.234, 100.0, 222.4, 9999.0, 100_540.0, 1e6, 31_284_218.0].map(short);
        assert_eq!(texts, ["0", "0.345", "8.2", "91.2", "100", "222", "9999", "101k", "1M", "31.3M"]);
    }
}
