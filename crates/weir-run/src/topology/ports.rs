//! The `[[port]]` tables: interfaces whose packets are carried, each with a limit of the packets that leave by it and classes that share
//! it.
//!
//! Rule: a limit means what it means on a wire. An interface has its queue replaced by one of the two, a port or a limit in place.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use weir_core::rate::Rate;
use weir_core::units::parse_time_ns;
use weir_path::plan::PortPlan;

use super::check::{Open, TopologyReader};
use super::class_tables::ClassTables;
use super::tables::{PortTable, TopologyFile};
use crate::classes::{Interfaces, of_tables, oversold, read_each, roots_bits_per_s};
use crate::limits;

impl TopologyReader<'_> {
    /// All ports, in order.
    pub(super) fn ports(&mut self, file: &TopologyFile, open: &mut Open) -> Vec<PortPlan> {
        self.limited_twice(file);
        let numbered = || (0..).zip(&file.ports);
        // A name counts before an interface of another port that is called so.
        let names = numbered().map(|(number, port)| (port.called().as_ref().as_str(), number));
        let by_interface = numbered().map(|(number, port)| (port.interface.as_ref().as_str(), number));
        let interfaces = Interfaces::of_ports(names.chain(by_interface).collect());
        file.ports.iter().map(|table| self.port(table, &interfaces, open)).collect()
    }

    fn port(&mut self, table: &PortTable, interfaces: &Interfaces, open: &mut Open) -> PortPlan {
        let PortTable { at, interface, classes_file, shaper, default, class, filter, .. } = table;
        let classes = ClassTables { of: "port", at, classes_file, shaper, default, class, filter };
        let rate = self.value(&table.rate, str::parse::<Rate>);
        let burst_bytes = self.burst(&table.burst);
        let queue_ns = self.value(&table.queue, parse_time_ns);
        if table.rate.is_none() {
            let all = [
                ("a burst is how much may pass at once of a rate", &table.burst),
                (
                    "a queue is for how long packets may stand at a rate, and without one they stand only while the way out is full",
                    &table.queue,
                ),
            ];
            for (what, text) in all {
                if let Some(text) = text {
                    let why = format!("{what}: write the rate too, such as rate = \"200mbit\"");
                    self.tell(text.span(), why);
                }
            }
        }
        if let Some(queue) = table.queue.as_ref().filter(|_| classes.is_any()) {
            self.tell(
                queue.span(),
                "a queue is for a limit without classes: with them give each class its `queue`",
            );
        }
        let limits = rate.and_then(|rate| {
            let limits = limits::direction(rate, burst_bytes, queue_ns);
            let at = table.burst.as_ref().or(table.rate.as_ref()).map_or(at.clone(), Spanned::span);
            limits.map_err(|why| self.tell(at, why)).ok()
        });
        let classes = self.classes(
            &classes,
            open,
            |name, text| read_each(name, text, interfaces),
            |source, tables| of_tables(source, tables, interfaces),
        );
        if let (Some(rate), Some(text), Some((classes, _))) = (rate, &table.rate, &classes)
            && let Some(why) = oversold(rate, roots_bits_per_s(classes))
        {
            self.warn(text.span(), why);
        }
        PortPlan {
            interface: interface.as_ref().clone(),
            limits,
            classes: classes.map(|(classes, _)| Arc::new(classes)),
            is_optional: table.optional.as_ref().is_some_and(|optional| *optional.as_ref()),
        }
    }

    /// Interfaces that are a port and have a limit in place.
    fn limited_twice(&mut self, file: &TopologyFile) {
        let here = file.limits.iter().filter(|limit| limit.pid.is_none());
        let devices = here.filter_map(|limit| limit.device.as_ref());
        let limited: HashMap<&str, Range<usize>> =
            devices.map(|device| (device.as_ref().as_str(), device.span())).collect();
        for port in &file.ports {
            let interface = &port.interface;
            let Some(limit) = limited.get(interface.as_ref().as_str()) else { continue };
            let (first, second) = match limit.start < interface.span().start {
                true => (limit.clone(), interface.span()),
                false => (interface.span(), limit.clone()),
            };
            let why = format!(
                "{} is in line {} too, and an interface is a port or has a limit in place: give the port a rate, and take the limit out",
                interface.as_ref(),
                self.line(&first)
            );
            self.tell(second, why);
        }
    }
}
