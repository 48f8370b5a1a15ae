//! The rows of given turns, without a bed.

use super::*;

fn connections(took_ns: &[u64], failed: u64) -> Option<Connections> {
    let mut connections = Connections { failed, count: took_ns.len() as u64, ..Connections::default() };
    took_ns.iter().for_each(|ns| connections.took.add(*ns));
    connections.failure = (failed > 0).then(|| "refused".to_string());
    Some(connections)
}

fn turn(took_ns: &[u64]) -> Turn {
    Turn { connections: connections(took_ns, 0), lost: Some(0), ..Turn::default() }
}

#[test]
fn connections_of_all_rounds_are_one_histogram_and_ratios_are_of_rounds() {
    let weir = (vec![turn(&[1_000_000, 3_000_000]), turn(&[1_000_000, 8_000_000])], None);
    let kernel = (vec![turn(&[1_000_000]), turn(&[4_000_000])], None);
    let row = |system, turns| row(system, Case::Load, turns, Some(&kernel.0));
    let (ours, theirs) = (row(System::Weir, &weir), row(System::Kernel, &kernel));
    let figure = |name: &str| ours.value(name).as_f64().unwrap();
    assert_eq!((figure("connections"), figure("failed"), figure("max_ms")), (4.0, 0.0, 8.0));
    assert_eq!((figure("ratio_least"), figure("ratio_most")), (2.0, 3.0));
    assert!(matches!(ours.value("latency_hist"), Value::Buckets(_)));
    assert_eq!(theirs.value("ratio"), Value::Missing);
    let bounds = bounds_of(Case::Load, "nginx", &ours, Some(&theirs));
    assert_eq!(bounds.len(), 2);
    assert_eq!((bounds[0].figure, bounds[1].figure), (8.0, 2.0));
    assert!(bounds_of(Case::Quiet, "nginx", &ours, Some(&theirs)).is_empty());
}

#[test]
fn weir_may_fail_no_connection_and_lose_nothing_and_others_may() {
    let lossy = Turn { lost: Some(3), ..turn(&[1]) };
    let failing = Turn { connections: connections(&[1], 2), ..Turn::default() };
    for turn in [lossy, failing] {
        let turns = (vec![turn], None);
        assert!(row(System::Weir, Case::Load, &turns, None).error.is_some());
        assert!(row(System::Kernel, Case::Load, &turns, None).error.is_none());
    }
    let failed = (vec![turn(&[5])], Some("no web server".to_string()));
    let row = row(System::Kernel, Case::Load, &failed, None);
    assert_eq!(row.error.as_deref(), Some("no web server"));
    assert_eq!(row.value("connections"), Value::Count(1));
}

#[test]
fn a_median_is_one_of_the_figures() {
    assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(vec![2.0, 1.0]), Some(1.0));
    assert_eq!(median(Vec::new()), None);
}
