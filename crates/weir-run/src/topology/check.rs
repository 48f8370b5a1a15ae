//! What is wrong with a topology file, as far as the file itself tells; and what it comes to.
//!
//! Rule: all that is wrong is told, each with its place, what is expected and what is nearest. What depends on the machine (interfaces,
//! queues of others) is not looked at here.

use std::collections::HashMap;
use std::ops::Range;

use toml::Spanned;
use weir_core::limit::shared::promised_below;
use weir_core::limit::{Plan, Wanted};
use weir_core::rate::Rate;
use weir_core::units::{parse_size_bytes, size_text};
use weir_port::limit::reshape::ClassesAsked;
use weir_port::link::kernel_name;

use super::file::{self, LimitTable, Told};
use super::{DEVICE_DEFAULT, LimitWanted, Topology};
use crate::classes::{Classes, FRAME_BYTES, asked, file as classes, of_tables_in_place, read_in_place};
use crate::limits::{NAME_IS, burst_warnings, is_name};
use crate::source::Source;

/// The longest packet where the interface is not known yet.
const PACKET_BYTES_MAX: u32 = 65_536;

/// Reads a file called `name`. `open` is asked for a classes file by the path that stands there: what to call it, and all of it.
///
/// # Errors
/// All that is wrong, in the order of the file: where, what is expected, and what to do.
pub fn read(
    name: &str,
    text: &str,
    mut open: impl FnMut(&str) -> Result<(String, String), String>,
) -> Result<Topology, Vec<String>> {
    let source = Source { name, text };
    let (file, mut told) = file::tables(source);
    let mut reader = TopologyReader { source, told: Vec::new(), warnings: Vec::new() };
    let mut limits = Vec::new();
    for table in &file.limits {
        limits.extend(reader.limit(table, &mut open));
    }
    reader.twice(&file.limits);
    if file.limits.is_empty() && told.is_empty() {
        told.push(Told::new(source, 0..0, "there is no limit; write [[limit]] with a device and a rate"));
    }
    told.append(&mut reader.told);
    told.sort_by_key(|told| told.at);
    match told.is_empty() {
        true => Ok(Topology { limits, warnings: reader.warnings }),
        false => Err(told.into_iter().map(|told| told.what).collect()),
    }
}

/// A process and a device.
type Whose<'a> = (Option<i64>, &'a str);

/// The work of reading: what was told so far.
struct TopologyReader<'a> {
    source: Source<'a>,
    told: Vec<Told>,
    warnings: Vec<String>,
}

impl TopologyReader<'_> {
    /// One limit, or `None` and what is wrong with it.
    fn limit(
        &mut self,
        table: &LimitTable,
        open: &mut impl FnMut(&str) -> Result<(String, String), String>,
    ) -> Option<LimitWanted> {
        let before = self.told.len();
        let pid = self.pid(table);
        let device = self.device(table);
        self.name(table);
        let rate = self.rate(&table.rate);
        let rate_back = self.rate(&table.rate_back);
        if table.rate.is_none() && table.rate_back.is_none() {
            self.tell(
                table.at.clone(),
                "a limit has a rate, of what the programs behind the interface send, or a rate_back, of what is sent to them; write for \
                 example rate = \"200mbit\"",
            );
        }
        let burst_bytes = self.burst(table);
        for rate in [rate, rate_back].into_iter().flatten() {
            self.warn_of_burst(table, rate, burst_bytes);
        }
        let classes = self.classes(table, open);
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
            classes: classes.map_or_else(ClassesAsked::none, |(classes, _)| asked(&classes)),
            is_optional: table.optional.unwrap_or(false),
        })
    }

    fn tell(&mut self, at: Range<usize>, what: impl std::fmt::Display) {
        self.told.push(Told::new(self.source, at, what));
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
            self.tell(
                device.span(),
                "no interface can be called so: a name is 1 to 15 bytes without spaces, slashes and colons",
            );
        }
        device.as_ref().clone()
    }

    fn name(&mut self, table: &LimitTable) {
        if let Some(name) = table.name.as_ref().filter(|name| !is_name(name.as_ref())) {
            self.tell(name.span(), format!("a limit cannot be called so: a name is {NAME_IS}"));
        }
    }

    fn rate(&mut self, text: &Option<Spanned<String>>) -> Option<Rate> {
        let text = text.as_ref()?;
        let rate = text.as_ref().parse::<Rate>();
        let wanted = |rate| Wanted { rate, burst_bytes: FRAME_BYTES, packet_bytes_max: PACKET_BYTES_MAX };
        let fits =
            rate.map_err(|error| error.to_string()).and_then(|rate| Plan::new(wanted(rate)).map(|_| rate));
        fits.map_err(|why| self.tell(text.span(), why)).ok()
    }

    fn burst(&mut self, table: &LimitTable) -> Option<u64> {
        let text = table.burst.as_ref()?;
        match parse_size_bytes(text.as_ref()) {
            Err(error) => self.tell(text.span(), error),
            Ok(bytes) if bytes < FRAME_BYTES => self.tell(
                text.span(),
                format!(
                    "a burst of {} is below one frame of {FRAME_BYTES} bytes, which could then never pass: give 2kb or more",
                    size_text(bytes)
                ),
            ),
            Ok(bytes) => return Some(bytes),
        }
        None
    }

    fn warn_of_burst(&mut self, table: &LimitTable, rate: Rate, burst_bytes: Option<u64>) {
        if let Some((text, bytes)) = table.burst.as_ref().zip(burst_bytes) {
            let warnings = burst_warnings(rate, bytes, |usual| format!("burst = \"{usual}\""));
            self.warnings.extend(warnings.into_iter().map(|what| self.source.tell(text.span(), what)));
        }
    }

    /// The classes, and where they are called.
    fn classes(
        &mut self,
        table: &LimitTable,
        open: &mut impl FnMut(&str) -> Result<(String, String), String>,
    ) -> Option<(Classes, Range<usize>)> {
        let LimitTable { classes_file, default, class, filter, at, .. } = table;
        let first = class.first().map(|class| class.name.span());
        let here = default.as_ref().map(Spanned::span).or(first);
        let here = here.or_else(|| filter.first().map(|filter| filter.class.span()));
        let first_of_classes = here.as_ref().map_or(at.start, |here| here.start);
        let read = match (classes_file, here) {
            (None, None) => return None,
            (Some(path), Some(_)) => {
                self.tell(
                    path.span(),
                    "the classes are in a file of their own or here: take one of the two out",
                );
                return None;
            }
            (Some(path), None) => match open(path.as_ref()) {
                Ok((name, text)) => read_in_place(&name, &text).map(|classes| (classes, path.span())),
                Err(why) => {
                    self.tell(path.span(), format!("classes file {:?}: {why}", path.as_ref()));
                    return None;
                }
            },
            (None, Some(here)) if class.is_empty() => {
                self.tell(here, "there is no class; write [[limit.class]] with a name and a rate");
                return None;
            }
            (None, Some(here)) => {
                let tables = classes::File {
                    at: at.clone(),
                    shaper: None,
                    default: default.clone(),
                    class: class.clone(),
                    filter: filter.clone(),
                };
                of_tables_in_place(self.source, &tables).map(|classes| (classes, here))
            }
        };
        match read {
            Ok((classes, of)) => {
                self.warnings.extend(classes.warnings.iter().cloned());
                Some((classes, of))
            }
            Err(refused) => {
                let at = classes_file.as_ref().map_or(first_of_classes, |path| path.span().start);
                self.told.push(Told { at, what: refused.told });
                None
            }
        }
    }

    /// HTB lets each class have what it is promised, so all together must fit the limit.
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
            let (line, _) = self.source.line_of(of.start);
            let why = format!(
                "the classes of line {line} are promised {promised} together, and the kernel's queue lets each have its own whatever the \
                 limit of {rate} has left: write \"{promised}\" here, or lower their rates"
            );
            self.tell(text.span(), why);
        }
    }

    /// What two tables say of one limit, and names that are given twice.
    fn twice(&mut self, tables: &[LimitTable]) {
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
                let (line, _) = self.source.line_of(first.start);
                self.tell(at, format!("{device} has a limit in line {line}: an interface has one each way; join them, or take one out"));
            }
            let Some(name) = &table.name else { continue };
            let before = names.insert(name.as_ref(), (name.span(), (pid, device)));
            if let Some((first, _)) = before.filter(|(_, of)| *of != (pid, device)) {
                let (line, _) = self.source.line_of(first.start);
                self.tell(
                    name.span(),
                    format!("the limit of line {line} is called so; give one of them another name"),
                );
            }
        }
    }
}
