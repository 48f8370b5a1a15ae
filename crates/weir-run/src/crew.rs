//! The workers of a datapath as everyone else reaches them: a request goes to the worker that owns what it concerns.
//!
//! Rule: counters are copied while all workers stand still (`standstill.rs`), so that the sums of [`crate::report`] are exact. All workers
//! get the requests to stand still in the same order, or two that ask at once would make each wait for the other. A worker that is busy
//! taking its queues over is asked again, ever less often, and never makes the others wait for it for long.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use weir_path::esp::plan::EspPlan;
use weir_path::plan::{Plan, StageKind};
use weir_path::shape::PortShape;
use weir_port::prepared::PreparedPort;
use weir_port::view::Pair;

use crate::datapath::Kind;
use crate::ipsec::EspKeys;
use crate::report::PartReport;
use crate::standstill::{Missed, Standstill};
use crate::stats::Snapshot;
use crate::stats::association::AgedAssociation;
use crate::sum::Constants;
use crate::worker::{Mailbox, Request, Reshape, Retaken};

/// The error when a worker has ended.
pub const GOING_DOWN: &str = "the wire is going down";
/// The pauses between attempts to make all workers stand still: 5 ms, then twice as long each time, 1.3 s in all.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
const PAUSES: u32 = 8;

/// The workers of one datapath.
#[derive(Clone)]
pub struct Crew {
    mailboxes: Vec<Mailbox>,
    /// Held while all are asked to stand still.
    order: Arc<Mutex<()>>,
    constants: Constants,
    /// The interfaces of the ports by the names that they have now.
    interfaces: Arc<Mutex<Vec<String>>>,
    /// The associations that run; held while they change.
    esp: Arc<Mutex<EspKeys>>,
}

impl Crew {
    /// The workers behind these mailboxes, in order.
    pub fn new(mailboxes: Vec<Mailbox>, constants: Constants) -> Crew {
        let interfaces = Arc::new(Mutex::new(constants.ports.clone()));
        Crew { mailboxes, order: Arc::default(), constants, interfaces, esp: Arc::default() }
    }

    /// The crew with these associations in its ESP stages.
    pub fn with_esp(self, keys: EspKeys) -> Crew {
        Crew { esp: Arc::new(Mutex::new(keys)), ..self }
    }

    /// The name of the datapath.
    pub fn name(&self) -> &str {
        &self.constants.name
    }

    /// The kind of datapath that they carry.
    pub fn kind(&self) -> Kind {
        self.constants.kind
    }

    /// The interfaces that they carry packets between, by their names when it came up.
    pub fn ports(&self) -> &[String] {
        &self.constants.ports
    }

    /// The interfaces that they carry packets between, by the names that they have now.
    pub fn interfaces(&self) -> Vec<String> {
        self.names_now().clone()
    }

    fn names_now(&self) -> MutexGuard<'_, Vec<String>> {
        self.interfaces.lock().expect("nobody panics while names are read")
    }

    /// Returns whether an error says that it went down while it was asked.
    pub fn is_going_down(error: &str) -> bool {
        error == GOING_DOWN
    }

    /// Copies of all counters.
    pub fn stat(&self) -> Result<Snapshot, String> {
        let devices = self.constants.look();
        self.together(|| self.parts()).map(|parts| self.constants.snapshot(devices, parts))
    }

    /// The result of `ask`, which asks all workers to stand still together, and again after a pause if one missed it.
    fn together<T>(&self, ask: impl Fn() -> Result<Option<T>, String>) -> Result<T, String> {
        let mut pause = PAUSE_FIRST;
        for _ in 0..PAUSES {
            if let Some(told) = ask()? {
                return Ok(told);
            }
            std::thread::sleep(pause);
            pause *= 2;
        }
        let noun = self.kind().noun();
        Err(format!("a worker of the {noun} is busy taking its interface over: ask again in a moment"))
    }

    /// Asks all workers to stand still together. Returns the receivers of their answers.
    fn ask<T>(&self, request: impl Fn(Sender<T>) -> Request) -> Vec<Receiver<T>> {
        let ask = |worker: &Mailbox| {
            let (reply, answer) = channel();
            worker.send(request(reply));
            answer
        };
        let _order = self.order.lock().expect("nobody panics while asking");
        self.mailboxes.iter().map(ask).collect()
    }

    /// The reports of all workers, if they stood still together.
    fn parts(&self) -> Result<Option<Vec<PartReport>>, String> {
        let together = Arc::new(Standstill::new(self.mailboxes.len()));
        let answers = self.ask(|reply| Request::Stat(reply, Arc::clone(&together)));
        let mut parts = Vec::new();
        let mut is_whole = true;
        for answer in &answers {
            match received(answer)? {
                Ok(part) => parts.push(part?),
                Err(Missed) => is_whole = false,
            }
        }
        Ok(is_whole.then_some(parts))
    }

    /// Tells all workers that others may have another credit now.
    fn tune(&self) {
        for worker in self.mailboxes.iter().filter(|_| self.mailboxes.len() > 1) {
            // A worker that has ended has nothing to tune.
            let _ = worker.send(Request::Tune);
        }
    }

    /// The plan of the datapath, with the limits, classes, associations and names of interfaces of now; with their names when it came up if
    /// two are called alike now.
    pub fn plan(&self) -> Result<Plan, String> {
        let mut plan = Plan::clone(&self.constants.plan);
        let names = self.interfaces();
        // A port that is gone has its first name, which another may have now. A file names each interface once.
        if names.iter().collect::<BTreeSet<_>>().len() == names.len() {
            for (port, interface) in plan.ports.iter_mut().zip(names) {
                port.interface = interface;
            }
        }
        for worker in &self.mailboxes {
            let (reply, answer) = channel();
            worker.send(Request::Shapes(reply));
            for PortShape { port, limits, classes } in received(&answer)? {
                // Ports that lead back are not in it.
                if let Some(planned) = plan.ports.get_mut(port) {
                    (planned.limits, planned.classes) = (limits, classes);
                }
            }
        }
        let keys = self.esp_keys();
        for (place, stage) in plan.stages.iter_mut().enumerate() {
            if let (StageKind::Esp(planned), Some(running)) = (&mut stage.kind, keys.plan(place)) {
                **planned = running.clone();
            }
        }
        Ok(plan)
    }

    /// Waits until the last marks of associations that have ended with their workers are on disk: for a second at most.
    pub fn settle_marks(&self) {
        self.esp_keys().settle();
    }

    fn esp_keys(&self) -> MutexGuard<'_, EspKeys> {
        self.esp.lock().expect("nobody panics while keys are read")
    }

    /// Changes ports and ESP stages, all of them or none; or only checks whether it could.
    pub fn change(
        &self,
        shapes: &[PortShape],
        esps: &[(usize, EspPlan)],
        is_trial: bool,
    ) -> Result<(), String> {
        let mut keys = self.esp_keys();
        keys.check_going_on(esps)?;
        if is_trial {
            keys.check(esps)?;
            return self.reshape(shapes, true);
        }
        // All that can fail comes first.
        let prepared = keys.prepare(esps)?;
        if !shapes.is_empty() {
            self.reshape(shapes, false)?;
        }
        for prepared in prepared {
            keys.note(&prepared);
            let (owner, place) = self.owner_of_stage(prepared.stage);
            let (reply, answer) = channel();
            owner.send(Request::ChangeEsp(place, Box::new(prepared.change), reply));
            received(&answer)?;
        }
        Ok(())
    }

    fn owner_of_stage(&self, stage: usize) -> (&Mailbox, usize) {
        let owners = &self.constants.owners;
        (&self.mailboxes[owners.stages[stage]], owners.place_of_stage(stage))
    }

    /// The associations that are not alive; only the workers that have ESP stages are asked.
    ///
    /// # Errors
    /// If a worker has ended.
    pub fn aged_associations(&self) -> Result<Vec<AgedAssociation>, String> {
        let stages = self.constants.plan.stages.iter().zip(&self.constants.owners.stages);
        let owners = stages.filter(|(stage, _)| matches!(stage.kind, StageKind::Esp(_)));
        let owners: BTreeSet<_> = owners.map(|(_, owner)| *owner).collect();
        let mut aged = Vec::new();
        for owner in owners {
            let (reply, answer) = channel();
            self.mailboxes[owner].send(Request::Aged(reply));
            aged.extend(received(&answer)?);
        }
        Ok(aged)
    }

    /// The names of its ports in the tables of its file. A port that is called by its interface is called by that one's present name, unless
    /// two things would be called alike.
    pub fn port_names(&self) -> Vec<String> {
        let Constants { plan, port_names: before, ports, .. } = &self.constants;
        let now = before.iter().zip(ports).zip(self.interfaces());
        let now: Vec<_> =
            now.map(|((name, port), now)| if name == port { now } else { name.clone() }).collect();
        let is_one = |name: &String| {
            now.iter().filter(|other| *other == name).count() == 1
                && plan.stages.iter().all(|stage| stage.name != *name)
        };
        if now.iter().all(is_one) { now } else { before.clone() }
    }

    /// Shapes the packets that leave by these ports so from now on, all ports or none; or only checks whether it could.
    pub fn reshape(&self, shapes: &[PortShape], is_trial: bool) -> Result<(), String> {
        let reshaped = self.together(|| {
            let reshape = Arc::new(Reshape::new(shapes.to_vec(), is_trial, self.mailboxes.len()));
            let answers = self.ask(|reply| Request::Reshape(Arc::clone(&reshape), reply));
            for answer in &answers {
                if received(answer)? == Err(Missed) {
                    return Ok(None);
                }
            }
            match reshape.refused() {
                Some((port, why)) => Err(format!("what leaves by {}: {why}", self.interfaces()[port])),
                None => Ok(Some(())),
            }
        });
        if reshaped.is_ok() && !is_trial {
            self.tune();
        }
        reshaped
    }

    /// Tells that the interface of a port went down.
    pub fn note_down(&self, port: usize) {
        // A worker that has ended need not know.
        let _ = self.owner(port).send(Request::NoteDown(port));
    }

    /// Has the interface of a port owned anew that came up. Returns whether `told` will be told the result: a wire ends if it fails.
    pub fn retake(&self, port: usize, told: &Sender<Retaken>) -> bool {
        let told = (self.kind() == Kind::Topology).then(|| told.clone());
        let is_told = told.is_some();
        self.owner(port).send(Request::Retake(port, told)) && is_told
    }

    /// Tells that the interface of a port, or its other end, has changed; false if its worker has ended.
    pub fn follow(&self, port: usize, pair: Pair) -> bool {
        self.names_now()[port].clone_from(&pair.port.name);
        let owner = self.constants.owners.ports[port];
        for (_, worker) in self.mailboxes.iter().enumerate().filter(|(at, _)| *at != owner) {
            // A worker that has ended need not know.
            let _ = worker.send(Request::Follow(port, Box::new(pair.clone())));
        }
        self.owner(port).send(Request::Follow(port, Box::new(pair)))
    }

    /// Takes a port out whose interface is gone, and closes it; whether it was there. The interface that is waited for has the name that this
    /// one had at first.
    pub fn close_port(&self, port: usize) -> bool {
        self.names_now()[port].clone_from(&self.constants.ports[port]);
        let (reply, answer) = channel();
        let owner = self.owner(port);
        owner.send(Request::TakePort(port, reply));
        let Ok(Some(closed)) = received(&answer) else { return false };
        let borrower = closed.borrower();
        // Closing takes its time, in which nobody waits for the worker.
        drop(closed);
        owner.send(Request::PortClosed(borrower))
    }

    /// Gives in a port whose interface is there, or there again.
    ///
    /// # Errors
    /// Why its worker does not take it.
    pub fn give_port(&self, port: usize, prepared: PreparedPort) -> Result<(), String> {
        let (reply, answer) = channel();
        self.owner(port).send(Request::GivePort(port, Box::new(prepared), reply));
        received(&answer)?
    }

    /// Makes all workers take in what senders have sent already, for a bounded time, deliver what is inside, and end.
    pub fn stop(&self) {
        let (finished, all) = channel();
        for worker in &self.mailboxes {
            worker.send(Request::Finish(finished.clone()));
        }
        drop(finished);
        // A worker takes packets for another, so none ends before all have finished. Each says so by dropping its end.
        let _ = all.recv();
        for worker in &self.mailboxes {
            worker.send(Request::Stop);
        }
    }

    /// The last counters, of parts whose workers have ended.
    pub fn last_words(&self, parts: Vec<PartReport>) -> Snapshot {
        self.constants.snapshot(self.constants.look(), parts)
    }

    fn owner(&self, port: usize) -> &Mailbox {
        &self.mailboxes[self.constants.owners.ports[port]]
    }
}

fn received<T>(answer: &Receiver<T>) -> Result<T, String> {
    answer.recv().map_err(|_| GOING_DOWN.to_string())
}

#[cfg(test)]
mod tests {
    use weir_path::owners::Owners;

    use super::*;
    use crate::sum::Sight;

    fn crew(mailboxes: Vec<Mailbox>) -> Crew {
        called(mailboxes, ["a", "b"])
    }

    fn called(mailboxes: Vec<Mailbox>, port_names: [&str; 2]) -> Crew {
        let constants = Constants {
            name: "test".into(),
            kind: Kind::Wire,
            ports: ["a", "b"].map(String::from).into(),
            owners: Owners { ports: vec![0, 1], stages: Vec::new() },
            plan: Arc::default(),
            port_names: port_names.map(String::from).into(),
            frames_total: 0,
            since_ns: 0,
            sight: Sight::Nothing,
        };
        Crew::new(mailboxes, constants)
    }

    #[test]
    fn a_port_is_called_by_the_present_name_of_its_interface() {
        let named = |port_names, interfaces: [&str; 2]| {
            let crew = called(Vec::new(), port_names);
            *crew.interfaces.lock().unwrap() = interfaces.map(String::from).into();
            crew.port_names()
        };
        assert_eq!(named(["a", "b"], ["a", "b"]), ["a", "b"]);
        assert_eq!(named(["a", "b"], ["b", "a"]), ["b", "a"], "they have changed names");
        assert_eq!(named(["lan", "b"], ["x", "c"]), ["lan", "c"], "the file gives one a name");
        assert_eq!(named(["lan", "b"], ["a", "lan"]), ["lan", "b"], "the file calls the other one so");
        assert_eq!(named(["a", "lan"], ["lan", "a"]), ["a", "lan"]);
    }

    /// Otherwise each of two workers could wait for the other.
    #[test]
    fn all_workers_are_asked_to_stand_still_in_one_order() {
        const ASKERS: usize = 40;
        for _ in 0..20 {
            let (mailboxes, inboxes): (Vec<_>, Vec<_>) = (0..2).map(|_| Mailbox::new().unwrap()).unzip();
            let crew = crew(mailboxes);
            std::thread::scope(|scope| {
                let askers: Vec<_> = (0..ASKERS).map(|_| scope.spawn(|| crew.stat().is_err())).collect();
                let places = inboxes.iter().map(|inbox| -> Vec<_> {
                    let requests = (0..ASKERS).map(|_| inbox.next());
                    // The reply channels are dropped with the requests, as at a worker's end.
                    let places = requests.map(|request| match request {
                        Some(Request::Stat(_, together)) => Arc::as_ptr(&together),
                        _ => panic!("nobody asked for anything else"),
                    });
                    places.collect()
                });
                let places: Vec<_> = places.collect();
                assert_eq!(places[0], places[1]);
                drop(inboxes);
                assert!(askers.into_iter().all(|asker| asker.join().unwrap()));
            });
        }
    }
}
