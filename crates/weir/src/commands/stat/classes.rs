//! The classes that share each direction as a table: the limits of each, its traffic, and how long it kept its senders and its packets
//! waiting. Children stand below their parents, set in.

use weir_core::rate::Rate;
use weir_run::stats::{ClassStats, DirectionStats};

use crate::human;
use crate::table::{Style, TextTable};

/// All classes of a wire; none if it has no classes file.
pub fn table(directions: &[DirectionStats]) -> Option<TextTable> {
    let headings = [
        "direction",
        "class",
        "rate",
        "ceil",
        "queue",
        "delivered",
        "",
        "held",
        "dropped",
        "marked",
        "blocked",
        "delay p50",
        "p99",
    ];
    let mut table = TextTable::new(2, &headings);
    for direction in directions {
        let roots = direction.classes.iter().filter(|class| class.parent.is_none());
        roots.for_each(|root| below(direction, root, 0, &mut table));
    }
    directions.iter().any(|direction| !direction.classes.is_empty()).then_some(table)
}

/// A class and those below it. There is no cycle, because each class stands behind its parent.
fn below(direction: &DirectionStats, class: &ClassStats, depth: usize, table: &mut TextTable) {
    table.row(cells(&direction.place.name, class, depth));
    let children = direction.classes.iter().filter(|child| child.parent.as_ref() == Some(&class.place.name));
    children.for_each(|child| below(direction, child, depth + 1, table));
}

fn cells(direction: &str, class: &ClassStats, depth: usize) -> Vec<(String, Style)> {
    let plain = |text: String| (text, Style::Plain);
    let notice = |text: String, number: u64| (text, if number > 0 { Style::Notice } else { Style::Plain });
    let rate = |bits_per_s: Option<u64>| {
        plain(bits_per_s.and_then(Rate::from_bits_per_s).map_or("-".into(), |rate| rate.to_string()))
    };
    let dropped = class.place.books.dropped.values().map(|amount| amount.packets).sum();
    vec![
        plain(direction.into()),
        plain(format!("{}{}", "  ".repeat(depth), class.place.name)),
        rate(class.rate_bits_per_s),
        rate(class.ceil_bits_per_s),
        plain(class.limit_bytes.map_or("-".into(), human::bytes)),
        plain(human::count(class.place.books.delivered.packets)),
        plain(human::bytes(class.place.books.delivered.bytes)),
        plain(human::count(class.place.books.held.packets)),
        notice(human::count(dropped), dropped),
        plain(human::count(class.marked)),
        notice(human::time(class.place.blocked_ns), class.place.blocked_ns.unwrap_or_default()),
        plain(human::time(class.place.delay_ns_p50)),
        plain(human::time(class.place.delay_ns_p99)),
    ]
}

#[cfg(test)]
mod tests {
    use weir_core::drops::Count;
    use weir_run::books::Books;
    use weir_run::stats::PlaceStats;

    use super::*;
    use crate::commands::stat::sample;

    fn class(name: &str, parent: Option<&str>, mbit: Option<u64>) -> ClassStats {
        ClassStats {
            place: PlaceStats {
                blocked_ns: Some(0),
                delay_ns_p50: Some(0),
                delay_ns_p99: Some(0),
                ..PlaceStats::new(name, Books::default())
            },
            parent: parent.map(String::from),
            rate_bits_per_s: mbit.map(|mbit| mbit * 1_000_000),
            ceil_bits_per_s: mbit.map(|_| 200_000_000),
            limit_bytes: None,
            marked: 0,
        }
    }

    #[test]
    fn a_wire_without_classes_has_no_such_table() {
        assert!(table(&sample::snapshot().wires[0].classes).is_none());
    }

    #[test]
    fn children_stand_below_their_parents_whatever_the_order() {
        let mut directions = sample::snapshot().wires[0].classes.clone();
        let mut bulk = class("bulk", Some("gold"), Some(40));
        bulk.limit_bytes = Some(125_000);
        bulk.marked = 17;
        bulk.place.blocked_ns = Some(7_368_000_000_000);
        bulk.place.delay_ns_p50 = Some(4_194_303);
        bulk.place.delay_ns_p99 = Some(5_020_000);
        bulk.place.books = Books {
            accepted: Count { packets: 1_234, bytes: 1_868_276 },
            delivered: Count { packets: 1_200, bytes: 1_816_800 },
            held: Count { packets: 31, bytes: 46_934 },
            dropped: [("max-wait".to_string(), Count { packets: 3, bytes: 4_542 })].into(),
        };
        let link = class("link", None, Some(200));
        let [gold, rest] =
            [("gold", 120), ("rest", 80)].map(|(name, mbit)| class(name, Some("link"), Some(mbit)));
        directions[0].classes = vec![link, gold, rest, bulk, class("free", None, None)];
        let expected = "\
direction  class        rate     ceil   queue  delivered           held  dropped  marked  blocked  delay p50      p99
wa->wb     link      200mbit  200mbit       -          0      0 B     0        0       0      0 s        0 s      0 s
wa->wb       gold    120mbit  200mbit       -          0      0 B     0        0       0      0 s        0 s      0 s
wa->wb         bulk   40mbit  200mbit  125 kB      1,200  1.82 MB    31        3      17  7,368 s    4.19 ms  5.02 ms
wa->wb       rest     80mbit  200mbit       -          0      0 B     0        0       0      0 s        0 s      0 s
wa->wb     free            -        -       -          0      0 B     0        0       0      0 s        0 s      0 s
";
        assert_eq!(table(&directions).unwrap().render(false), expected);
        let coloured = table(&directions).unwrap().render(true);
        assert!(coloured.contains("\x1b[33m7,368 s\x1b[0m"), "what was blocked stands out: {coloured}");
    }
}
