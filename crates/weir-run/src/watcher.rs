//! The watcher: looks at both ends of the pairs of a datapath for as long as it is up, and keeps them as it needs them.
//!
//! ```text
//! heard of a change, or a second has passed, or somebody asks
//!      -> look at two ends a pair -> ledger: drops, and the event that explains them     (watcher/ledger.rs)
//!                                 -> remedy: follow, put right, or refuse it         (watcher/remedy.rs, act.rs)
//!      -> associations that are not alive -> ages: say each step once                   (watcher/ages.rs)
//! ```
//!
//! Rule: a change that can be put right is, and is said; any other ends a wire in one sentence, and closes the port of a topology until the
//! port is fit again. The kernel's messages only tell when
//! to look, because they can be lost; the look decides. Down and up alone are read from the messages, one by one, because an interface that
//! was down for a moment has lost its NAPI instances.
//!
//! A port of a topology whose interface vanishes is closed, and taken over again when an interface of its name is there, as is one that
//! was not there at first (`coming.rs`); all others carry on. A wire ends, because its other end is useless then.
//!
//! Owner: one thread; others ask it by [`Eye`]. It records the changes that must be put back where an end has moved to.
//!
//! Limits: an interface of its own that moves is gone, as its sockets do not go along. A fight with a program that keeps changing
//! something back is fought for ever, and said as often as the bound on sentences allows.

mod act;
mod ages;
mod coming;
mod eye;
mod glance;
pub mod ledger;
mod mending;
mod owning;
mod remedy;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use weir_core::net::limit::Limiter;
use weir_port::link::Link;
use weir_port::monitor::{Fares, LinkEvent, Monitor, State, Stir};
use weir_port::netns::NetNs;
use weir_port::qdisc::Roots;
use weir_port::undo::Keeper;
use weir_port::view::{Pair, View};
use weir_port::{Doing, confinement, sys};

use self::act::Finding;
use self::ages::Ages;
use self::coming::Missing;
use self::eye::Request;
pub use self::eye::{Absence, Device, Devices, Eye, Lens};
pub use self::glance::Glance;
use self::ledger::{Drops, InterfaceEvent, Ledger};
use self::owning::Owning;
use crate::clock::now_ns;
use crate::crew::Crew;
use crate::datapath::{Kind, Opener};

/// The number of pairs that cost next to nothing to look at; with twice as many there are half as many looks.
const PAIRS_AT_ONCE: u64 = 16;
/// The pause between two looks while nothing is heard, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;
/// The pause between two looks while an event is not over, in nanoseconds.
const LOOK_SOON_NS: u64 = 100_000_000;
/// The most sentences on what changed, in a second and at once.
const SENTENCES_PER_SECOND: u32 = 5;
const SENTENCES_BURST: u32 = 100;
/// The other end of a pair; end `e` of pair `p` is device `2 p + e`.
const SENDER: usize = 1;

/// News for the process that runs the datapath.
pub enum News {
    /// The new state of one of its interfaces.
    Interface(String, State),
    /// A change was found and put right, or followed.
    Said(String),
    /// The datapath cannot go on; why.
    Ended(String),
}

/// Starts to watch these pairs, of which the crew has the ports, and to look for those that are not there yet. `tell` is called with the
/// news, and says whether anybody listens. Further changes that must be put back are recorded with the keeper.
pub fn start<K: Keeper + Send + 'static>(
    lens: Lens,
    pairs: Vec<Option<Pair>>,
    crew: Crew,
    opener: Opener,
    keeper: Arc<Mutex<K>>,
    tell: impl Fn(News) -> bool + Send + 'static,
) -> weir_port::Result<JoinHandle<()>> {
    let watcher = Watcher {
        lens,
        crew,
        opener,
        fares: pairs
            .iter()
            .map(|pair| Fares::new(pair.as_ref().map_or(0, |pair| pair.port.ifindex)))
            .collect(),
        missing: coming::missing(&pairs),
        monitor: Monitor::new()?,
        stir: Stir::new()?,
        ledger: Ledger::new(2 * pairs.len()),
        ages: Ages::default(),
        views: vec![None; 2 * pairs.len()],
        pairs,
        failing_since_ns: BTreeMap::new(),
        owning: Owning::new(),
        is_over: false,
        tell: Box::new(tell),
        sentences: Cell::new(Limiter::new(SENTENCES_PER_SECOND, SENTENCES_BURST)),
        unsaid: Cell::new(0),
    };
    std::thread::Builder::new()
        .name("weir-watcher".into())
        .spawn(move || {
            // Failing, it fails for the main thread as well, which says so.
            let _ = confinement::shed();
            watcher.run(&*keeper)
        })
        .doing(|| "starting the thread that watches the interfaces".into())
}

/// The keeper, which records the changes that must be put back.
type Records = Mutex<dyn Keeper>;

/// The root qdiscs of each namespace that a round came to, by its number, read once.
#[derive(Default)]
struct Queues(HashMap<u64, Roots>);

impl Queues {
    /// Those of the namespace with this number, which this thread is in. If they cannot be read, each interface is asked for.
    fn of(&mut self, namespace: u64) -> &Roots {
        self.0.entry(namespace).or_insert_with(|| Roots::read().unwrap_or_default())
    }
}

struct Watcher {
    lens: Lens,
    /// The pairs, by port; none of a port that is gone.
    pairs: Vec<Option<Pair>>,
    crew: Crew,
    opener: Opener,
    fares: Vec<Fares>,
    /// The ports that are gone, or not there yet.
    missing: BTreeMap<usize, Missing>,
    monitor: Monitor,
    stir: Stir,
    ledger: Ledger,
    ages: Ages,
    views: Vec<Option<View>>,
    /// The pairs that could not be put right, and since when, in nanoseconds.
    failing_since_ns: BTreeMap<usize, u64>,
    owning: Owning,
    /// True if it ends: nothing is put right any more.
    is_over: bool,
    tell: Box<dyn Fn(News) -> bool + Send>,
    /// The bound on sentences: root of a container can change its end of a pair without end.
    sentences: Cell<Limiter>,
    /// The sentences that were too many since the last that was said.
    unsaid: Cell<u64>,
}

/// Tells of the end of a watcher that nobody stopped: a panic.
impl Drop for Watcher {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.tell)(News::Ended("what watches the interfaces failed".into()));
        }
    }
}

impl Watcher {
    fn run(mut self, records: &Records) {
        // An interface that went down and up after its queues were owned, and before anybody listened, has other queues.
        for pair in 0..self.pairs.len() {
            if self.pairs[pair].is_some() {
                self.retake(pair);
            }
        }
        let at_start = self.pairs.iter().flatten();
        let at_start = at_start.filter_map(|pair| LinkEvent::now(pair.port.ifindex).ok()).collect();
        self.hear(Some(at_start), records);
        self.tell_missing();
        let mut next_ns = now_ns();
        loop {
            let mut asked = Vec::new();
            while let Some(request) = self.lens.request() {
                match request {
                    Request::Look(reply) => asked.push(reply),
                    Request::Desert(namespace, reply) => {
                        let _ = reply.send(self.desert(namespace, records));
                    }
                    Request::Stop => return,
                }
            }
            let heard = self.listen(records);
            let looks = heard || !asked.is_empty() || now_ns() >= next_ns;
            if looks {
                self.round(records);
                self.seek(records);
                let pause_ns = if self.ledger.is_open() { LOOK_SOON_NS } else { LOOK_NS };
                next_ns = now_ns() + pause_ns * (self.pairs.len() as u64).div_ceil(PAIRS_AT_ONCE);
            }
            for reply in asked {
                // The asker may have gone.
                let _ = reply.send(());
            }
            // Nobody who asks waits for workers here.
            if looks {
                self.tell_ages();
            }
            let mut fds = [self.monitor.fd(), self.stir.fd(), self.lens.fd()].map(sys::poll_in);
            // An event that ends the wait early is seen in the next round.
            let _ = sys::poll(&mut fds, Some(next_ns.saturating_sub(now_ns())));
            if fds[2].revents != 0 {
                self.lens.clear();
            }
        }
    }

    /// Reads the kernel's messages. Returns whether any of them is of these interfaces.
    fn listen(&mut self, records: &Records) -> bool {
        let mut heard = false;
        while sys::poll(&mut [sys::poll_in(self.monitor.fd())], Some(0)).is_ok_and(|count| count > 0) {
            let Ok(events) = self.monitor.wait() else { break };
            heard |= self.hear(events, records);
            self.seek(records);
        }
        if self.fares.iter().any(Fares::is_unsure) {
            heard |= self.hear(Some(Vec::new()), records);
        }
        let ifindexes = self.pairs.iter().flatten().flat_map(|pair| [pair.port.ifindex, pair.sender.ifindex]);
        heard | self.stir.has_heard_of(&ifindexes.collect::<Vec<_>>()).unwrap_or(false)
    }

    /// Tells the states of its own interfaces, and tells their workers when one goes down and when it has come up again.
    fn hear(&mut self, heard: Option<Vec<LinkEvent>>, records: &Records) -> bool {
        let mut any = false;
        for pair in 0..self.pairs.len() {
            if self.pairs[pair].is_none() {
                continue;
            }
            // An interface that cannot be looked at now, as for want of memory, is looked at again in the next round.
            for (before, state) in self.fares[pair].changes(heard.as_deref()).unwrap_or_default() {
                any = true;
                match (before, state) {
                    (_, State::Gone) if self.crew.kind() == Kind::Wire => return self.gone(pair, records),
                    (_, State::Gone) => {
                        self.lose(pair, records);
                        break;
                    }
                    (_, State::Down) => self.crew.note_down(pair),
                    (State::Down, _) => self.retake(pair),
                    _ => {}
                }
                if matches!((before, state), (State::Up, State::Down | State::NoCarrier)) {
                    self.ledger.note(InterfaceEvent::Down, self.waiting(2 * pair + SENDER), now_ns());
                }
                let name = self.pairs[pair].as_ref().map(|known| known.port.name.clone());
                (self.tell)(News::Interface(name.unwrap_or_default(), state));
            }
        }
        any
    }

    /// Packets that waited in a device's queue when it was last looked at, if the queue was Weir's.
    fn waiting(&self, device: usize) -> u64 {
        let queue = self.views[device].as_ref().map(|view| &view.queue);
        queue.filter(|queue| queue.is_ours).map_or(0, |queue| queue.counters.backlog)
    }

    /// Ends a wire one of whose interfaces is gone. If it is elsewhere, senders into it are to be let go there.
    fn gone(&mut self, pair: usize, records: &Records) -> bool {
        if std::mem::replace(&mut self.is_over, true) {
            return true;
        }
        let Some(pair) = &self.pairs[pair] else { return true };
        let name = pair.port.name.clone();
        let news = match self::coming::let_go_elsewhere(pair, records) {
            Some(_) => News::Ended(format!(
                "interface {name} was moved to another network namespace while the wire was up; everything else is as before: \
                 start the wire again where it is"
            )),
            None => News::Interface(name, State::Gone),
        };
        (self.tell)(news);
        true
    }

    /// Looks at everything, keeps the books, and acts on the findings.
    fn round(&mut self, records: &Records) {
        let waiting: Vec<_> = (0..self.views.len()).map(|device| self.waiting(device)).collect();
        let (mut queues, here) = (Queues::default(), NetNs::current().map_or(0, |here| here.inode()));
        let places: Vec<_> =
            (0..self.pairs.len()).map(|pair| self.look_at(pair, here, &mut queues)).collect();
        let findings: Vec<_> =
            places.into_iter().enumerate().filter_map(|(pair, place)| self.judge(pair, place?)).collect();
        for finding in &findings {
            self.note(finding, &waiting);
        }
        let seen: Vec<_> = self.views.iter().map(|view| view.as_ref().map(drops_of)).collect();
        self.owning.hear();
        // A device that is gone is no event that goes on; queues that nobody owns yet are one.
        let mut there = (0..self.views.len()).filter(|device| self.pairs[device / 2].is_some());
        let is_up = |view: &Option<View>| view.as_ref().is_some_and(|v| state_of(&v.link) == State::Up);
        let is_well = there.all(|device| is_up(&self.views[device])) && self.owning.is_settled();
        for pair in 0..self.pairs.len() {
            let ends = [2 * pair, 2 * pair + SENDER];
            let mtus = ends.map(|device| self.views[device].as_ref().map(|view| view.link.mtu_bytes));
            let is_narrow = matches!(mtus, [Some(one), Some(other)] if one != other);
            ends.iter().for_each(|&device| self.ledger.set_narrow(device, is_narrow));
        }
        self.ledger.look(&seen, is_well, now_ns());
        self.act_on(findings, records);
        self.own_again();
        self.show();
    }

    /// Looks at a pair. Returns the namespace of its other end; none while that moves, or a namespace ends.
    fn look_at(&mut self, pair: usize, here: u64, queues: &mut Queues) -> Option<Arc<NetNs>> {
        let ifindex = self.pairs[pair].as_ref()?.port.ifindex;
        // A device that cannot be looked at now is looked at again soon.
        let port = View::of(ifindex, queues.of(here)).unwrap_or(None);
        let (place, sender) =
            port.as_ref().and_then(|port| self.find_sender(pair, &port.link, queues)).unzip();
        self.views[2 * pair] = port;
        self.views[2 * pair + SENDER] = sender;
        place
    }

    /// The finding on a pair of which both ends were seen.
    fn judge(&self, pair: usize, place: Arc<NetNs>) -> Option<Finding> {
        let known = self.pairs[pair].as_ref()?;
        let (port, sender) = (self.views[2 * pair].as_ref()?, self.views[2 * pair + SENDER].as_ref()?);
        let has_moved = !Arc::ptr_eq(&place, &known.sender_netns);
        let is_first = known.doorbell.is_first(&sender.egress_programs);
        let kind = self.crew.kind();
        let remedies = [
            remedy::of_port(kind, &known.port, port),
            remedy::of_sender(kind, &known.sender, sender, is_first),
        ];
        Some(Finding { pair, place, has_moved, remedies })
    }

    /// The other end of a pair, wherever it is now.
    fn find_sender(&self, pair: usize, port: &Link, queues: &mut Queues) -> Option<(Arc<NetNs>, View)> {
        let Pair { port: known, sender_netns, .. } = self.pairs[pair].as_ref()?;
        let place = |link: &Link| (link.peer_netns_id, link.peer_ifindex);
        let netns = match place(known) == place(port) {
            true => Arc::clone(sender_netns),
            false => Arc::new(port.peer().ok()?.0),
        };
        let view = netns
            .run(|| View::of(port.peer_ifindex.unwrap_or_default(), queues.of(netns.inode())))
            .ok()??;
        // Another interface may have got its number.
        (view.link.peer_ifindex == Some(port.ifindex)).then_some((netns, view))
    }

    /// Says a sentence, unless there were too many.
    fn say(&self, text: String) {
        let mut sentences = self.sentences.get();
        let is_admitted = sentences.admit(now_ns());
        self.sentences.set(sentences);
        match (is_admitted, self.unsaid.get()) {
            (false, unsaid) => return self.unsaid.set(unsaid + 1),
            (true, 0) => (self.tell)(News::Said(text)),
            (true, unsaid) => {
                (self.tell)(News::Said(format!("{text} ({unsaid} sentences before this were too many)")))
            }
        };
        self.unsaid.set(0);
    }

    /// Says which associations have reached a limit. A worker that has ended has none.
    fn tell_ages(&mut self) {
        let aged = self.crew.aged_associations().unwrap_or_default();
        let sentences = self.ages.news(aged);
        sentences.into_iter().for_each(|sentence| self.say(sentence));
    }

    fn end(&mut self, why: String) {
        if !std::mem::replace(&mut self.is_over, true) {
            (self.tell)(News::Ended(why));
        }
    }

    /// Lays the devices out as they were seen, for everyone who asks.
    fn show(&self) {
        let device = |index: usize| {
            let pair = self.pairs[index / 2].as_ref();
            let view = self.views[index].as_ref();
            let link = pair.map(|pair| if index % 2 == SENDER { &pair.sender } else { &pair.port });
            // The port alone has a name in a pair that is gone.
            let otherwise = if index % 2 == SENDER { "" } else { self.opener.interface(index / 2) };
            Device {
                name: link.map_or(otherwise, |link| &link.name).into(),
                state: view.map(|view| state_of(&view.link)),
                absence: self.missing.get(&(index / 2)).map(Missing::absence).filter(|_| index % 2 != SENDER),
                is_optional: self.opener.is_optional(index / 2),
                counts: self.ledger.counts(index),
                backlog: view.map_or(0, |view| view.queue.counters.backlog),
            }
        };
        let pairs = (0..self.pairs.len()).map(|pair| [0, SENDER].map(|end| device(2 * pair + end))).collect();
        self.lens.show(Devices { pairs, events: self.ledger.events().clone() });
    }
}

/// The keeper, locked. A thread that panicked with it had nothing half done.
fn locked(records: &Records) -> MutexGuard<'_, dyn Keeper + 'static> {
    records.lock().unwrap_or_else(PoisonError::into_inner)
}

fn drops_of(View { link, queue, .. }: &View) -> Drops {
    Drops { rx: link.rx_dropped, tx: link.tx_dropped, queue: queue.counters.dropped }
}

fn state_of(link: &Link) -> State {
    match (link.up, link.has_carrier) {
        (false, _) => State::Down,
        (true, false) => State::NoCarrier,
        (true, true) => State::Up,
    }
}
