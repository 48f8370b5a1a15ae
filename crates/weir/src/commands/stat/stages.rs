//! The bridges and routers of a topology as tables.

use weir_core::drops::Count;
use weir_run::stats::StageStats;

use crate::human;
use crate::table::{Style, TextTable};

/// The packets that passed each, and its other counts; none without any.
pub fn tables(stages: &[StageStats]) -> Vec<TextTable> {
    if stages.is_empty() {
        return Vec::new();
    }
    let plain = |text: String| (text, Style::Plain);
    let mut passed = TextTable::new(
        2,
        &["stage", "kind", "accepted", "of them made", "delivered", "of them its own", "held", "dropped"],
    );
    let mut dropped = TextTable::new(2, &["stage", "dropped because of", "packets", "bytes"]);
    let mut counts = TextTable::new(2, &["stage", "counter", "count"]);
    let (mut has_drops, mut has_counts) = (false, false);
    for stage in stages {
        let books = &stage.place.books;
        let drops: u64 = books.dropped.values().map(|amount| amount.packets).sum();
        passed.row(vec![
            plain(stage.place.name.clone()),
            plain(stage.kind.clone()),
            plain(human::count(books.accepted.packets)),
            plain(human::count(stage.made)),
            plain(human::count(books.delivered.packets)),
            plain(human::count(stage.consumed)),
            plain(human::count(books.held.packets)),
            plain(human::count(drops)),
        ]);
        for (reason, &Count { packets, bytes }) in &books.dropped {
            has_drops = true;
            dropped.row(vec![
                plain(stage.place.name.clone()),
                plain(reason.clone()),
                plain(human::count(packets)),
                plain(human::bytes(bytes)),
            ]);
        }
        for (counter, &count) in stage.counts.iter().filter(|(_, count)| **count > 0) {
            has_counts = true;
            counts.row(vec![
                plain(stage.place.name.clone()),
                plain(counter.replace('_', " ")),
                plain(human::count(count)),
            ]);
        }
    }
    let more = [has_drops.then_some(dropped), has_counts.then_some(counts)];
    [passed].into_iter().chain(more.into_iter().flatten()).collect()
}
