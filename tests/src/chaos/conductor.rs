//! Makes a plan happen, one event after another, and judges calm and events.
//!
//! ```text
//!   calm                    event                    calm
//!  ------------|-------------------------------|------------
//!         arrived (H)                       sent (S)
//! ```
//!
//! At an event's start, `H` datagrams of each flow have arrived, and all below must have: that ends the calm before. When the event is over
//! and datagrams flow again, `S` have been sent, and all from there on must arrive: so begins the calm after. The datagrams between `H` and
//! `S` are the event's.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use weir_lab::clock;

use crate::chaos::accounts::{Account, Loss, Losses, Terms, grown, losses};
use crate::chaos::events::{Stage, answers};
use crate::chaos::floods::{Floods, Marks};
use crate::chaos::patience::{Patience, Since};
use crate::chaos::plan::{At, Event, Kind};
use crate::chaos::site::Site;
use crate::chaos::stream::{CHUNK_BYTES, Stream};
use crate::chaos::subject::Subject;
use crate::kernel::{Belongings, Traces, belongings, require_same};

/// The rate both ways; the flows offer more.
const RATE: &str = "50mbit";
/// One chunk more than the packets on its way may hold.
const STREAM_BYTES: u64 = 2 * CHUNK_BYTES as u64;
/// An event ends a wire once, and the one after it perhaps.
const ENDINGS_MAX: usize = 3;
const LONG: Duration = Duration::from_secs(20);

/// The outcome of all events.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Events that happened.
    pub events: usize,
    /// The faults, a sentence each.
    pub faults: Vec<String>,
    /// Datagrams in calm.
    pub calm: u64,
    /// Datagrams missing over all events.
    pub missing: u64,
    /// Wires that ended by themselves.
    pub endings: usize,
}

/// The outcome of waiting for traffic.
enum Traffic {
    /// Traffic flows, so long after it was asked to.
    Flows(Duration),
    /// The wire ended by itself.
    Ended,
    /// Traffic does not flow, and which does not.
    Lacks(String),
}

/// Traffic, and the wire.
struct Scene<'a> {
    site: &'a Site,
    subject: Subject,
    floods: Floods,
    streams: [Stream; 2],
    patience: Patience,
    before: [Traces; 3],
    /// The marks from which on everything must arrive.
    calm_from: Marks,
    outcome: Outcome,
}

/// Lets the plan happen until `limit` is over; each event is a line of output.
pub fn conduct(binary: &std::path::Path, plan: &[Event], limit: Duration) -> Result<Outcome> {
    let started = clock::now();
    let site = Site::new()?;
    let (before, had) = (site.traces()?, belongings()?);
    let mut subject = Subject::new(binary, &site.middle, RATE)?;
    subject.start()?;
    let floods = Floods::start(&site)?;
    let streams = [Stream::start(&site, At::Left, At::Right)?, Stream::start(&site, At::Right, At::Left)?];
    let mut scene = Scene {
        site: &site,
        calm_from: floods.sent(),
        floods,
        streams,
        patience: Patience::start(subject.group().list()),
        subject,
        before,
        outcome: Outcome::default(),
    };
    match scene.wait_for_traffic(scene.patience.now(), LONG)? {
        Traffic::Flows(_) => {}
        Traffic::Ended => bail!("the first wire ended by itself: {}", scene.subject.ended_by_itself(false)?),
        Traffic::Lacks(what) => bail!("no traffic at first: {what}"),
    }
    for (number, event) in plan.iter().enumerate() {
        if started.elapsed() > limit {
            break;
        }
        let faults = scene.outcome.faults.len();
        scene.happen(number, event).with_context(|| format!("event {number}, {event}"))?;
        for fault in &scene.outcome.faults[faults..] {
            println!("         FAULT: {fault}");
        }
    }
    scene.end(&had)
}

impl Scene<'_> {
    fn fault(&mut self, number: usize, event: &Event, what: impl std::fmt::Display) {
        self.outcome.faults.push(format!("event {number}, {event}: {what}"));
    }

    fn happen(&mut self, number: usize, event: &Event) -> Result<()> {
        let terms = Terms::of(event);
        let counters = self.losses(number, event);
        let start = self.floods.arrived();
        self.judge_calm(number, event, &start);
        let sent_at_start = self.floods.sent();
        let begun = clock::now();
        let mut stage = Stage {
            site: self.site,
            subject: &mut self.subject,
            floods: &self.floods,
            patience: &self.patience,
            before: &self.before,
            faults: Vec::new(),
        };
        let since = stage.perform(event)?;
        for fault in stage.faults {
            self.fault(number, event, fault);
        }
        let endings = self.outcome.endings;
        let took = self.traffic_or_rescue(number, event, terms, since)?;
        let rest = terms.mended_within.saturating_sub(begun.elapsed());
        if !rest.is_zero() {
            clock::let_pass(rest, |_| ())?;
            self.calm_from = self.floods.sent();
        }
        clock::let_pass(Duration::from_millis(event.calm_ms), |_| ())?;
        let (floods, calm_from) = (&self.floods, &self.calm_from);
        if !self.patience.wait(LONG, || Ok(floods.have_passed(calm_from)))? {
            self.fault(number, event, "what is sent in the calm after it does not arrive");
        }
        if !self.subject.is_running()? {
            self.fault(number, event, "it ended in the calm after it");
            self.traffic_or_rescue(number, event, terms, self.patience.now())?;
        }
        let now = self.losses(number, event);
        // A wire that was started anew has counted none of its forerunner's losses.
        let has_ended = self.outcome.endings > endings;
        let loss = if has_ended { Loss::Hole } else { terms.loss };
        let is_another = event.kind.starts_anew() || has_ended;
        let shown = if is_another { Losses::new() } else { grown(&counters, &now) };
        let fate = self.floods.fate(&start, &self.calm_from);
        let total = |marks: &[u64]| marks.iter().sum::<u64>();
        let account = Account {
            missing: fate.missing,
            shown: shown.values().sum(),
            under_way: total(&sent_at_start) - total(&start),
            sent: total(&self.calm_from) - total(&sent_at_start),
        };
        self.outcome.events += 1;
        self.outcome.missing += account.missing;
        println!(
            "    {number:>4} {event}, {} ms: flows after {:.2} s; {}{}{}",
            event.hold_ms,
            took.as_secs_f64(),
            account.describe(loss),
            if shown.is_empty() { String::new() } else { format!("; counted: {shown:?}") },
            if fate.late > 0 { format!("; {} late", fate.late) } else { String::new() },
        );
        if loss == Loss::None && fate.late > 0 {
            self.fault(number, event, format!("{} late", fate.late));
        }
        if account.unexplained(loss) > 0 {
            self.fault(number, event, format!("{} missing without account", account.unexplained(loss)));
        }
        let check = self.subject.check()?;
        if !check.status.success() {
            self.fault(number, event, format!("`weir stat --check` says: {}", check.said()));
        }
        Ok(())
    }

    /// The losses that the wire counted; an answer that does not come is a fault.
    fn losses(&mut self, number: usize, event: &Event) -> Losses {
        match self.subject.stat() {
            Ok(stat) => losses(&stat),
            Err(error) => {
                self.fault(number, event, format!("{error:#}"));
                Losses::new()
            }
        }
    }

    /// Everything since the last event has arrived, in order.
    fn judge_calm(&mut self, number: usize, event: &Event, end: &[u64]) {
        let fate = self.floods.fate(&self.calm_from, end);
        self.outcome.calm += fate.count;
        if fate.missing + fate.late > 0 {
            let what = format!(
                "in the calm before it {} of {} missing, {} late",
                fate.missing, fate.count, fate.late
            );
            self.fault(number, event, what);
        }
        self.floods.forget_below(end);
    }

    /// The time until traffic flowed, by this wire, or by the one that is started at once if this one ends by itself.
    fn traffic_or_rescue(
        &mut self,
        number: usize,
        event: &Event,
        terms: Terms,
        since: Since,
    ) -> Result<Duration> {
        let mut since = since;
        for _ in 0..ENDINGS_MAX {
            match self.wait_for_traffic(since, terms.flows_within)? {
                Traffic::Flows(took) => return Ok(took),
                Traffic::Ended => since = self.replace_ended(number, event, terms)?,
                Traffic::Lacks(what) => {
                    let limit = terms.flows_within;
                    self.fault(number, event, format!("after {limit:?} traffic does not flow: {what}"));
                    return self.rescue(number, event);
                }
            }
        }
        bail!("each wire that is started ends by itself")
    }

    /// A wire that ended by itself is started at once; since when traffic must flow.
    fn replace_ended(&mut self, number: usize, event: &Event, terms: Terms) -> Result<Since> {
        self.outcome.endings += 1;
        let may_be_killed = event.kind == Kind::StopDaemon;
        match self.subject.ended_by_itself(may_be_killed) {
            Ok(why) if terms.may_end => println!("         it ended: {why}"),
            Ok(why) => self.fault(number, event, format!("it ended, which it may not: {why}")),
            Err(error) => self.fault(number, event, format!("{error:#}")),
        }
        let since = self.patience.now();
        self.subject.start().context("starting it anew after it ended")?;
        Ok(since)
    }

    /// Waits until datagrams of every flow, bytes of both streams and a ping have got through that left after `since`. The calm begins when
    /// the datagrams have.
    fn wait_for_traffic(&mut self, since: Since, limit: Duration) -> Result<Traffic> {
        let (floods, streams, subject) = (&self.floods, &self.streams, &mut self.subject);
        let (sent, mut calm_from) = (floods.sent(), None);
        let bytes = streams.each_ref().map(|stream| stream.arrived_bytes() + STREAM_BYTES);
        let (mut lacking, mut is_running) = (String::new(), true);
        self.patience.wait_since(since, limit, || {
            lacking.clear();
            if floods.have_passed(&sent) {
                calm_from.get_or_insert_with(|| floods.sent());
            } else {
                let behind =
                    floods.arrived().iter().zip(&sent).filter(|(arrived, sent)| arrived <= sent).count();
                write!(lacking, "{behind} of {} UDP flows ", sent.len())?;
            }
            for (stream, bytes) in streams.iter().zip(bytes) {
                if stream.arrived_bytes() < bytes {
                    lacking.push_str("TCP ");
                }
            }
            if lacking.is_empty() && answers(self.site).is_err() {
                lacking.push_str("ping");
            }
            is_running = subject.is_running()?;
            Ok(lacking.is_empty() || !is_running)
        })?;
        self.calm_from = calm_from.unwrap_or_else(|| floods.sent());
        Ok(match (is_running, lacking.is_empty()) {
            (false, _) => Traffic::Ended,
            (true, true) => Traffic::Flows(since.elapsed()),
            (true, false) => Traffic::Lacks(lacking),
        })
    }

    /// After traffic did not come back in time: it may come late, or only to a new wire.
    fn rescue(&mut self, number: usize, event: &Event) -> Result<Duration> {
        let late = self.wait_for_traffic(self.patience.now(), Duration::from_secs(4))?;
        if let Traffic::Flows(took) = late {
            return Ok(took);
        }
        println!("         it said: {}", self.subject.said().trim().replace('\n', " | "));
        if self.subject.is_running()? {
            self.subject.stop()?;
        } else {
            let why = self.subject.ended_by_itself(false);
            self.fault(number, event, format!("it ended late: {why:?}"));
        }
        self.subject.start()?;
        match self.wait_for_traffic(self.patience.now(), LONG)? {
            Traffic::Flows(took) => Ok(took),
            Traffic::Ended => bail!("a new wire ends by itself"),
            Traffic::Lacks(what) => bail!("no traffic even through a new wire: {what}"),
        }
    }

    /// The judgement on the last calm, and on the traces that are left behind.
    fn end(mut self, had: &Belongings) -> Result<Outcome> {
        let fate = self.floods.fate(&self.calm_from, &self.floods.arrived());
        self.outcome.calm += fate.count;
        let mut faults = Vec::new();
        if fate.missing + fate.late > 0 {
            faults.push(format!("in the last calm {} missing, {} late", fate.missing, fate.late));
        }
        if self.floods.twice() > 0 {
            faults.push(format!("{} datagrams came twice", self.floods.twice()));
        }
        let wrong: u64 = self.streams.iter().map(Stream::wrong).sum();
        if wrong > 0 {
            faults.push(format!("{wrong} TCP streams with a wrong byte"));
        }
        if let Err(error) = self.subject.stop() {
            faults.push(format!("at its end: {error:#}"));
        }
        let mut why = String::new();
        let restored = self.patience.wait(Duration::from_secs(5), || {
            let after = self.site.traces()?;
            let changed =
                self.before.iter().zip(&after).find_map(|(before, after)| require_same(before, after).err());
            let left = belongings()?.new_since(had);
            why = changed
                .map_or_else(|| format!("left behind: {}", left.join(", ")), |error| error.to_string());
            Ok(why == "left behind: ")
        })?;
        if !restored {
            faults.push(why);
        }
        faults.iter().for_each(|fault| println!("         FAULT: {fault}"));
        self.outcome.faults.extend(faults);
        Ok(self.outcome)
    }
}
