//! A scenario: the system, its senders, their time, and the expected results. Written as a short text.
//!
//! ```text
//! # Two clients as published, with the RFC.
//! system rfc                      none, rfc or weir
//! rate 200mbit
//! burst 20kb
//! limit 200kb                     a size; for weir also a time
//! senders 2 flood 1gbit 1470b     or: quiet 10ms 56b; tcp 1ms (its round trip); then perhaps `poll`, `sndbuf 64kb`
//! time 30s
//! expect lost_pct 3.2 within 3    or: at_most, at_least
//! ```
//!
//! A group with `poll` asks before each send. Besides: `warm_up` (the time from which delays count), `wake`, `deliver`, `link_delay`
//! (times); `cpus`, `link_loss_permille`; and for weir `preempt` (a time), `preempt_permille`, `queues`, `poll` and `queue_packets`
//! (numbers).
//! Each line is a word and its values; the last line of a word counts, except `senders` and `expect`, which add up. Units are tc's.
//!
//! Owner: none; a scenario is a value. A text that is wrong gives one error with its line.

use std::fmt;

use weir_core::{
    rate::Rate,
    shaper::tbf::Limit,
    units::{parse_size_bytes, parse_time_ns},
};

use crate::{
    parameters::MachineParameters,
    port::Fault,
    seed,
    sender::{Program, Wait},
    socket::SNDBUF_BYTES_DEFAULT,
};

/// The system that shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// The kernel's TBF.
    None,
    /// The kernel's TBF with the RFC's patches.
    Rfc,
    /// Weir.
    Weir,
}

impl System {
    /// Its name in scenarios and tables.
    pub fn name(self) -> &'static str {
        match self {
            System::None => "none",
            System::Rfc => "rfc",
            System::Weir => "weir",
        }
    }
}

/// Senders that do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The number of senders.
    pub count: usize,
    /// The program of each.
    pub program: Program,
    /// The way in which each waits.
    pub wait: Wait,
    /// The send buffer of each, in bytes.
    pub sndbuf_bytes: u32,
}

impl Group {
    /// Senders with blocking sockets and the default send buffer.
    pub const fn new(count: usize, program: Program) -> Group {
        Group { count, program, wait: Wait::Block, sndbuf_bytes: SNDBUF_BYTES_DEFAULT }
    }
}

/// A condition on a value of the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Expect {
    /// The value's name, one of [`crate::report::Report::value`].
    pub name: String,
    /// The bound that it must keep.
    pub bound: Bound,
}

/// A bound on a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// The value, and the deviation allowed.
    Within(f64, f64),
    /// The most.
    AtMost(f64),
    /// The least.
    AtLeast(f64),
}

/// One experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The system that shapes.
    pub system: System,
    /// Its rate.
    pub rate: Rate,
    /// Its burst.
    pub burst_bytes: u64,
    /// The limit on waiting bytes: TBF's point of dropping, Weir's credit.
    pub limit: Limit,
    /// The groups of senders; processes are numbered through.
    pub groups: Vec<Group>,
    /// The time for which they send. Then the path drains.
    pub time_ns: u64,
    /// The time from which delays count.
    pub warm_up_ns: u64,
    /// The sending machine.
    pub machine: MachineParameters,
    /// The delay from the limit to the receiver.
    pub link_delay_ns: u64,
    /// The packets, of 1000, that the link loses.
    pub link_loss_permille: u64,
    /// Weir: transmit queues of the sending end; 0 for one for each sender.
    pub queues: usize,
    /// Weir: the most packets one poll takes; 0 for an eighth of the credit, between 4 and 64.
    pub poll_packets: usize,
    /// Weir: the packets that one queue's qdisc and ring hold; 0 for all that its senders' buffers can.
    pub queue_packets: usize,
    /// Weir: the fault of its kernel, to see that it is found.
    pub fault: Option<Fault>,
    /// The expected results.
    pub expects: Vec<Expect>,
}

impl Default for Scenario {
    /// The published link and machine, without senders.
    fn default() -> Scenario {
        const RATE: Rate = match Rate::from_bits_per_s(200_000_000) {
            Some(rate) => rate,
            None => unreachable!(),
        };
        Scenario {
            system: System::None,
            rate: RATE,
            burst_bytes: 20 << 10,
            limit: Limit::Bytes(200 << 10),
            groups: Vec::new(),
            time_ns: 10_000_000_000,
            warm_up_ns: 0,
            machine: seed::MACHINE,
            link_delay_ns: 0,
            link_loss_permille: 0,
            queues: 0,
            poll_packets: 0,
            queue_packets: 0,
            fault: None,
            expects: Vec::new(),
        }
    }
}

/// The reason why a text is not a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// The line, counted from 1; 0 for the whole text.
    pub line: usize,
    /// The fault.
    pub what: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for ScenarioError {}

impl Scenario {
    /// Reads a text of the form in the header.
    pub fn parse(text: &str) -> Result<Scenario, ScenarioError> {
        let mut scenario = Scenario::default();
        for (index, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
            if !words.is_empty() {
                scenario.set(&words).map_err(|what| ScenarioError { line: index + 1, what })?;
            }
        }
        scenario.check().map_err(|what| ScenarioError { line: 0, what })?;
        Ok(scenario)
    }

    /// The number of processes that send.
    pub fn senders(&self) -> usize {
        self.groups.iter().map(|group| group.count).sum()
    }

    /// Checks that the scenario can be run; otherwise returns the fault.
    pub fn check(&self) -> Result<(), String> {
        if self.senders() == 0 {
            return Err("nobody sends; add for example `senders 2 flood 1gbit 1470b`".to_owned());
        }
        if self.burst_bytes < 1514 {
            return Err(format!(
                "a burst of {} bytes lets no full frame pass; use 1514 or more",
                self.burst_bytes
            ));
        }
        if self.machine.preempt_permille > 0 && self.machine.preempt_ns == 0 {
            return Err(
                "`preempt_permille` senders are preempted, but for no time; add for example `preempt 1ms`"
                    .to_owned(),
            );
        }
        if self.machine.cpus == 0 {
            return Err("a machine without CPUs runs nothing; `cpus` must be at least 1".to_owned());
        }
        match self.limit {
            Limit::TimeNs(_) if self.system != System::Weir => {
                Err("the kernel's limit is a size; write for example `limit 200kb`".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn set(&mut self, words: &[&str]) -> Result<(), String> {
        match *words {
            ["system", "none"] => self.system = System::None,
            ["system", "rfc"] => self.system = System::Rfc,
            ["system", "weir"] => self.system = System::Weir,
            ["rate", text] => self.rate = rate(text)?,
            ["burst", text] => self.burst_bytes = size(text)?,
            ["limit", text] => self.limit = limit(text)?,
            ["time", text] => self.time_ns = time(text)?,
            ["warm_up", text] => self.warm_up_ns = time(text)?,
            ["cpus", text] => self.machine.cpus = number(text)?,
            ["deliver", text] => self.machine.deliver_ns = time(text)?,
            ["wake", text] => self.machine.wake_ns = time(text)?,
            ["preempt", text] => self.machine.preempt_ns = time(text)?,
            ["preempt_permille", text] => self.machine.preempt_permille = number(text)? as u64,
            ["link_delay", text] => self.link_delay_ns = time(text)?,
            ["link_loss_permille", text] => self.link_loss_permille = number(text)? as u64,
            ["queues", text] => self.queues = number(text)?,
            ["poll", text] => self.poll_packets = number(text)?,
            ["queue_packets", text] => self.queue_packets = number(text)?,
            ["senders", count, ref words @ ..] => self.groups.push(parse_group(number(count)?, words)?),
            ["expect", name, ref bound @ ..] => {
                self.expects.push(Expect { name: name.to_owned(), bound: parse_bound(bound)? });
            }
            [word, ..] => {
                return Err(format!("{word:?} with these values is not known; see weir-sim's scenario.rs"));
            }
            [] => {}
        }
        Ok(())
    }
}

impl Bound {
    /// Returns whether `value` keeps the bound.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Bound::Within(middle, half) => (value - middle).abs() <= half,
            Bound::AtMost(most) => value <= most,
            Bound::AtLeast(least) => value >= least,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Within(middle, half) => write!(f, "{middle} within {half}"),
            Bound::AtMost(most) => write!(f, "at most {most}"),
            Bound::AtLeast(least) => write!(f, "at least {least}"),
        }
    }
}

fn parse_group(count: usize, mut words: &[&str]) -> Result<Group, String> {
    let (mut wait, mut sndbuf_bytes) = (Wait::Block, SNDBUF_BYTES_DEFAULT);
    loop {
        match words {
            [rest @ .., "poll"] => (words, wait) = (rest, Wait::Poll),
            [rest @ .., "sndbuf", text] => (words, sndbuf_bytes) = (rest, size_u32(text)?),
            program => return Ok(Group { count, program: parse_program(program)?, wait, sndbuf_bytes }),
        }
    }
}

fn parse_program(words: &[&str]) -> Result<Program, String> {
    match *words {
        ["flood", wish, payload] => {
            let payload_bytes = payload_bytes(payload)?;
            Ok(Program::Flood { payload_bytes, interval_ns: rate(wish)?.ns_for(payload_bytes.into()) })
        }
        ["quiet", interval, payload] => {
            Ok(Program::Quiet { payload_bytes: payload_bytes(payload)?, interval_ns: time(interval)? })
        }
        ["tcp", rtt] => Ok(Program::Tcp { rtt_ns: time(rtt)? }),
        _ => Err(format!("{words:?} is no program; write flood RATE SIZE, quiet TIME SIZE or tcp TIME")),
    }
}

fn parse_bound(words: &[&str]) -> Result<Bound, String> {
    let value = |text: &str| text.parse::<f64>().map_err(|_| format!("{text:?} is not a number"));
    match *words {
        [middle, "within", half] => Ok(Bound::Within(value(middle)?, value(half)?)),
        ["at_most", most] => Ok(Bound::AtMost(value(most)?)),
        ["at_least", least] => Ok(Bound::AtLeast(value(least)?)),
        _ => Err(format!("{words:?} is no bound; write X within Y, at_most X or at_least X")),
    }
}

fn payload_bytes(text: &str) -> Result<u32, String> {
    match size_u32(text)? {
        bytes @ 1..=1472 => Ok(bytes),
        bytes => Err(format!("a payload of {bytes} bytes does not fit an Ethernet frame; at most 1472")),
    }
}

fn rate(text: &str) -> Result<Rate, String> {
    text.parse::<Rate>().map_err(|error| error.to_string())
}

fn size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).map_err(|error| error.to_string())
}

fn size_u32(text: &str) -> Result<u32, String> {
    u32::try_from(size(text)?).map_err(|_| format!("{text:?} is too large here"))
}

fn time(text: &str) -> Result<u64, String> {
    parse_time_ns(text).map_err(|error| error.to_string())
}

fn limit(text: &str) -> Result<Limit, String> {
    match parse_time_ns(text) {
        Ok(time_ns) => Ok(Limit::TimeNs(time_ns)),
        Err(_) => size(text).map(Limit::Bytes),
    }
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text:?} is not a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_says_it_all() {
        let scenario = Scenario::parse(
            "# a comment\nsystem weir\nrate 1gbit # fast\nlimit 5ms\nqueues 64\ntime 2s\n\
             senders 2 flood 1gbit 1470b\nsenders 3 flood 100mbit 100b sndbuf 64kb poll\nsenders 1 quiet 10ms 56b\n\
             senders 4 tcp 1ms\nexpect lost_pct at_most 0\nexpect jain 1 within 0.01\n",
        )
        .unwrap();
        assert_eq!((scenario.system, scenario.senders()), (System::Weir, 10));
        assert_eq!(scenario.limit, Limit::TimeNs(5_000_000));
        let flood = Program::Flood { payload_bytes: 1470, interval_ns: 11_760 };
        assert_eq!(scenario.groups[0], Group::new(2, flood));
        let group = scenario.groups[1];
        assert_eq!((group.wait, group.sndbuf_bytes), (Wait::Poll, 65_536));
        assert_eq!(scenario.expects[1].bound, Bound::Within(1.0, 0.01));
        assert!(!scenario.expects[1].bound.holds(1.02) && scenario.expects[1].bound.holds(0.995));
    }

    #[test]
    fn an_error_names_its_line() {
        for (text, line, part) in [
            ("system none\nrate 200", 2, "no unit"),
            ("senders x flood 1gbit 1470b", 1, "whole number"),
            ("senders 1 flood 1gbit 1473b", 1, "at most 1472"),
            ("\nspeed 3", 2, "\"speed\""),
            ("senders 1 tcp 1ms\nexpect jain over 9", 2, "no bound"),
            ("senders 1 tcp 1ms\nlimit 5ms", 0, "a size"),
            ("rate 1mbit", 0, "nobody sends"),
            ("senders 1 tcp 1ms\nburst 100b", 0, "1514"),
        ] {
            let error = Scenario::parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text:?}: {error}");
            assert!(error.what.contains(part), "{text:?}: {error}");
        }
    }
}
