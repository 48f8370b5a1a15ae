//! The rows of `weir lab qdisc --sim`: the same cases on a virtual clock, the RFC's kernel before and after its patches and
//! Weir on one modelled machine, which reproduces the RFC's figures.
//!
//! Systems are `none` (the RFC's kernel as it was), `rfc` (with its patches) and `weir-sim`. The ping is a quiet sender's
//! datagram, one way; CPU time is not modelled.
//!
//! Source: [`weir_sim::table`], [`weir_sim::seed`]. Owner: nobody; rows are values.

use anyhow::Result;
use weir_sim::seed::Lost;
use weir_sim::table::{self, qdisc_table};

use crate::report::Row;

/// The seed of the published figures' runs; another gives other figures, within the tests' bounds.
const SEED: u64 = 1;

/// Runs the simulation, some seconds long.
pub fn qdisc_rows() -> Result<Vec<Row>> {
    Ok(qdisc_table(SEED)?.iter().map(row).collect())
}

fn row(simulated: &table::Row) -> Row {
    // A measured `weir` may stand beside it.
    let system = if simulated.system == "weir" { "weir-sim" } else { simulated.system };
    // "Less than 5 %" is drawn at 5.
    let seed_lost_pct = simulated.seed_lost_pct.map(|lost| match lost {
        Lost::Is(lost_pct) | Lost::LessThan(lost_pct) => lost_pct,
    });
    let values = vec![
        ("lost_pct", simulated.lost_pct.into()),
        ("seed_lost_pct", seed_lost_pct.into()),
        ("rate_share", simulated.rate_share.into()),
        ("jain", simulated.jain.into()),
        ("reordered", simulated.reordered.into()),
        ("ping_p50_ms", simulated.p50_ms.into()),
        ("ping_p99_ms", simulated.p99_ms.into()),
        ("empty_wakes", simulated.empty_wakes.into()),
    ];
    Row::new(system, &simulated.case, values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Value;

    #[test]
    fn a_simulated_row_has_every_figure_that_is_modelled() {
        let simulated = table::Row {
            system: "weir",
            case: "3".to_string(),
            clients: 3,
            lost_pct: 0.5,
            seed_lost_pct: Some(Lost::LessThan(5.0)),
            rate_share: 0.75,
            jain: 0.875,
            reordered: 2,
            p50_ms: 0.25,
            p99_ms: 1.5,
            empty_wakes: 4,
        };
        let row = row(&simulated);
        assert_eq!((row.system.as_str(), row.case.as_str()), ("weir-sim", "3"));
        for field in crate::qdisc::FIELDS {
            let is_missing = row.value(field.name) == Value::Missing;
            assert_eq!(is_missing, ["cpu_s_per_gbit", "floor_share"].contains(&field.name), "{field:?}");
        }
        assert_eq!(row.value("seed_lost_pct"), Value::Number(5.0));
        assert_eq!(row.value("ping_p99_ms"), Value::Number(1.5));
        assert_eq!(row.value("empty_wakes"), Value::Count(4));
    }
}
