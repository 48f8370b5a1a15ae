//! The `[[limit]]` tables: limits in place, each for itself and beside the others.
//!
//! Rule: a fault of one table is told at its place; a fault between two tables of one limit, at the second's.

use std::collections::HashMap;
use std::ops::Range;

use toml::Spanned;
use weir_core::limit::shared::promised_below;
use weir_core::limit::{burst_beyond, check_rate};
use weir_core::rate::Rate;
use weir_port::link::kernel_name;

use super::check::{Open, TopologyReader};
use super::class_tables::ClassTables;
use super::tables::LimitTable;
use super::{DEVICE_DEFAULT, INTERFACE_NAME_IS, LimitWanted};
use crate::classes::{Classes, NotInPlace, of_tables_in_place, read_in_place};
use crate::limits::{NAME_IS, burst_warnings, is_name};

/// A process and a device.
type Whose<'a> = (Option<i64>, &'a str);

impl TopologyReader<'_> {
    /// All limits that have no fault.
    pub(super) fn limits(&mut self, tables: &[LimitTable], open: &mut Open) -> Vec<LimitWanted> {
        let limits = tables.iter().filter_map(|table| self.limit(table, open)).collect();
        self.limits_twice(tables);
        limits
    }

    /// One limit; `None` if it has faults, which are told.
    fn limit(&mut self, table: &LimitTable, open: &mut Open) -> Option<LimitWanted> {
        let before = self.told.len();
        let pid = self.pid(table);
        let device = self.device(table);
        self.limit_name(table);
        let rate = self.limit_rate(&table.rate);
        let rate_back = self.limit_rate(&table.rate_back);
        if table.rate.is_none() && table.rate_back.is_none() {
            self.tell(
                table.at.clone(),
                "a limit has a rate, of what the programs behind the interface send, or a rate_back, of what is sent to them; write for \
                 example rate = \"200mbit\"",
            );
        }
        let burst_bytes = self.burst(&table.burst);
        for rate in [rate, rate_back].into_iter().flatten() {
            if let Some((text, bytes)) = table.burst.as_ref().zip(burst_bytes)
                && let Some(why) = burst_beyond(rate, bytes)
            {
                self.tell(text.span(), format!("there is no such burst: {why}"));
                continue;
            }
            self.warn_of_burst(table, rate, burst_bytes);
        }
        let classes = self.limit_classes(table, open);
        if let Some((classes, of)) = &classes {
            for (text, rate) in [(&table.rate, rate), (&table.rate_back, rate_back)] {
                self.check_promises(of, classes, text, rate);
            }
        }
        (self.told.len() == before).then(|| LimitWanted {
            at: self.source.place(table.device.as_ref().map_or(table.at.start, |device| device.span().start)),
            device,
            pid,
            name: table.name.as_ref().map(|name| name.as_ref().clone()),
            rate,
            rate_back,
            burst_bytes,
            classes: classes.map_or_else(Classes::none, |(classes, _)| classes),
            is_optional: table.optional.unwrap_or(false),
        })
    }

    fn pid(&mut self, table: &LimitTable) -> Option<u32> {
        let pid = table.pid.as_ref()?;
        let number = u32::try_from(*pid.as_ref()).ok().filter(|pid| (1..=i32::MAX as u32).contains(pid));
        if number.is_none() {
            self.tell(pid.span(), format!("a process has a number from 1 to {}", i32::MAX));
        }
        number
    }

    fn device(&mut self, table: &LimitTable) -> String {
        let Some(device) = &table.device else {
            if table.pid.is_none() {
                self.tell(
                    table.at.clone(),
                    "missing key `device`: write the interface, such as device = \"veth-a\", or the pid of a process and the device there",
                );
            }
            return DEVICE_DEFAULT.into();
        };
        if kernel_name(device.as_ref()).is_none() {
            self.tell(device.span(), format!("no interface can be called so: a name is {INTERFACE_NAME_IS}"));
        }
        device.as_ref().clone()
    }

    fn limit_name(&mut self, table: &LimitTable) {
        if let Some(name) = table.name.as_ref().filter(|name| !is_name(name.as_ref())) {
            self.tell(name.span(), format!("a limit cannot be called so: a name is {NAME_IS}"));
        }
    }

    fn limit_rate(&mut self, text: &Option<Spanned<String>>) -> Option<Rate> {
        let text = text.as_ref()?;
        let rate = text.as_ref().parse::<Rate>();
        let fits = rate.map_err(|error| error.to_string()).and_then(|rate| check_rate(rate).map(|()| rate));
        fits.map_err(|why| self.tell(text.span(), why)).ok()
    }

    fn warn_of_burst(&mut self, table: &LimitTable, rate: Rate, burst_bytes: Option<u64>) {
        if let Some((text, bytes)) = table.burst.as_ref().zip(burst_bytes) {
            for what in burst_warnings(rate, bytes, |usual| format!("burst = \"{usual}\"")) {
                self.warn(text.span(), what);
            }
        }
    }

    /// The classes, and the place that names them.
    fn limit_classes(&mut self, table: &LimitTable, open: &mut Open) -> Option<(Classes, Range<usize>)> {
        let LimitTable { classes_file, default, class, filter, at, .. } = table;
        let tables = ClassTables { of: "limit", at, classes_file, shaper: &None, default, class, filter };
        self.classes(
            &tables,
            open,
            |name, text| read_in_place(name, text).map_err(|refused| vec![refused.told]),
            |source, tables| {
                let refused = |all: Vec<NotInPlace>| all.into_iter().map(|refused| refused.told).collect();
                of_tables_in_place(source, tables).map_err(refused)
            },
        )
    }

    /// HTB lets each class have its guaranteed rate, so the rates of all together must fit the limit.
    fn check_promises(
        &mut self,
        of: &Range<usize>,
        classes: &Classes,
        text: &Option<Spanned<String>>,
        rate: Option<Rate>,
    ) {
        let (Some(rate), Some(text)) = (rate, text) else { return };
        let each = classes.classes.iter().enumerate();
        let below = promised_below(each.map(|(index, class)| (index, class.parent, class.rate.bits_per_s())));
        let promised = below.get(&None).and_then(|bits_per_s| Rate::from_bits_per_s(*bits_per_s));
        if let Some(promised) = promised.filter(|promised| *promised > rate) {
            let line = self.line(of);
            let why = format!(
                "the classes of line {line} are promised {promised} together, and the kernel's queue lets each have its own whatever the \
                 limit of {rate} has left: write \"{promised}\" here, or lower their rates"
            );
            self.tell(text.span(), why);
        }
    }

    /// Tells limits that two tables set, and names that are given twice.
    fn limits_twice(&mut self, tables: &[LimitTable]) {
        let mut devices: HashMap<(Option<i64>, &str, bool), Range<usize>> = HashMap::new();
        let mut names: HashMap<&str, (Range<usize>, Whose)> = HashMap::new();
        for table in tables {
            let pid = table.pid.as_ref().map(|pid| *pid.as_ref());
            let Some(device) = table
                .device
                .as_ref()
                .map(|device| device.as_ref().as_str())
                .or(pid.and(Some(DEVICE_DEFAULT)))
            else {
                continue;
            };
            let at = table
                .device
                .as_ref()
                .map_or_else(|| table.pid.as_ref().map_or(table.at.clone(), Spanned::span), Spanned::span);
            let ways = [(false, &table.rate), (true, &table.rate_back)];
            let mut first = None;
            for (is_back, _) in ways.into_iter().filter(|(_, rate)| rate.is_some()) {
                first = first.or_else(|| devices.insert((pid, device, is_back), at.clone()));
            }
            if let Some(first) = first {
                let line = self.line(&first);
                self.tell(at, format!("{device} has a limit in line {line}: an interface has one each way; join them, or take one out"));
            }
            let Some(name) = &table.name else { continue };
            let before = names.insert(name.as_ref(), (name.span(), (pid, device)));
            if let Some((first, _)) = before.filter(|(_, of)| *of != (pid, device)) {
                let line = self.line(&first);
                self.tell(
                    name.span(),
                    format!("the limit of line {line} is called so; give one of them another name"),
                );
            }
        }
    }
}
