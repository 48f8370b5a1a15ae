//! A worker of a sink: its portion of the plan, driven as any of the path (`drive.rs`).
//!
//! At rest its queues are looked at again after ever longer times, `REST_NS_MAX` at most, since packets of an AF_XDP socket at the
//! other end are not announced.
//!
//! Owner: the thread that runs it.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use weir_core::account::Account;
use weir_core::drops::Count;
use weir_path::dispatch::Dispatch;
use weir_path::either_port::EitherPort;
use weir_path::end::End;
use weir_path::loop_port::LoopPort;
use weir_path::port::{ReceiveQueues, TransmitRing};
use weir_path::stage::Stage;
use weir_path::worker::{Pass, Worker};
use weir_port::bpf::doorbell::Bell;
use weir_port::napi::Poller;
use weir_port::share::PortShare;
use weir_port::sys;

use crate::clock::now_ns;
use crate::drive::{Driven, Look};
use crate::progress::{ProgressBoard, WorkerProgress};

/// The time from one look to the next while packets come, in nanoseconds.
const REST_NS_MIN: u64 = 50_000;
/// The longest a worker rests, in nanoseconds.
const REST_NS_MAX: u64 = 1_000_000;

/// New pollers of the queues of these numbers: the interface came up again.
pub type Pollers = Vec<(usize, Poller)>;

/// One worker of a sink.
pub struct SinkWorker<'a> {
    path: Worker<EitherPort<PortShare<'a>, LoopPort>>,
    number: usize,
    bell: &'a Bell,
    pollers: Receiver<Pollers>,
    board: Arc<ProgressBoard>,
    rest_ns: u64,
    look_ns: u64,
    is_closed: bool,
}

impl<'a> SinkWorker<'a> {
    /// The worker of this number; its portion has one stage.
    pub fn new(
        number: usize,
        path: Worker<EitherPort<PortShare<'a>, LoopPort>>,
        bell: &'a Bell,
        pollers: Receiver<Pollers>,
        board: Arc<ProgressBoard>,
    ) -> SinkWorker<'a> {
        SinkWorker { path, number, bell, pollers, board, rest_ns: REST_NS_MIN, look_ns: 0, is_closed: false }
    }

    /// The worker of the path, which moves its packets.
    pub fn path(&self) -> &Worker<EitherPort<PortShare<'a>, LoopPort>> {
        &self.path
    }

    /// The number of queues of the interface that the worker has.
    pub fn queues(&self) -> usize {
        self.share().map_or(0, PortShare::queues)
    }

    /// Packets and bytes that came by its queues.
    pub fn received(&self) -> Count {
        self.share().map_or(Count::default(), PortShare::received)
    }

    /// Packets and bytes delivered here, whichever worker received them.
    pub fn delivered(&self) -> Count {
        self.stage().own()[1]
    }

    /// Its dispatch.
    pub fn dispatch(&self) -> &Dispatch {
        self.stage().dispatch().expect("the stage of a sink is dispatch")
    }

    /// The books of the packets that it handled.
    pub fn account(&self) -> &Account {
        self.stage().account()
    }

    /// Returns whether the books of its stage and of its queues balance.
    pub fn balances(&self) -> bool {
        let mut queues = self.path.between().egress.queues().iter();
        self.account().balances(Count::default())
            && queues.all(|queue| queue.shaping.account().balances(queue.shaping.held()))
    }

    /// Packets that wait here.
    pub fn held(&self) -> Count {
        let mut held = self.path.between().egress.held();
        self.path.ends().iter().for_each(|end| held.merge(end.port.in_flight()));
        held
    }

    /// Packets that it handed to others, and packets that it took from them.
    pub fn crossed(&self) -> [Count; 2] {
        let mut handed = Count::default();
        self.path.handed().iter().for_each(|&count| handed.merge(count));
        [handed, self.path.landed()]
    }

    fn stage(&self) -> &Stage {
        self.path.between().stages().next().expect("each worker of a sink has a stage")
    }

    fn share(&self) -> Option<&PortShare<'a>> {
        self.path.ends().iter().find_map(|end| end.port.kernel())
    }

    fn share_mut(&mut self) -> Option<&mut PortShare<'a>> {
        let End { index, .. } = self.path.ends().iter().find(|end| end.port.kernel().is_some())?;
        let index = *index;
        self.path.end_mut(index).0.port.kernel_mut()
    }

    fn tell(&self) {
        let seen = self.dispatch().sequences().counts();
        let (delivered, dropped) = (self.delivered(), self.account().dropped.total());
        self.board.tell(
            self.number,
            &WorkerProgress {
                received: self.received().packets,
                ended: delivered.packets + dropped.packets,
                delivered,
                numbered: seen.numbered + seen.dropped,
                is_closed: self.is_closed,
            },
        );
    }
}

impl Driven for SinkWorker<'_> {
    fn look(&mut self, now_ns: u64) -> io::Result<Look> {
        self.tell();
        if self.board.is_ending() {
            return Ok(Look::Over);
        }
        if now_ns >= self.look_ns {
            (self.look_ns, self.rest_ns) = (now_ns + self.rest_ns, (2 * self.rest_ns).min(REST_NS_MAX));
            let (pollers, is_stopping) = (self.pollers.try_recv().ok(), self.board.is_stopping());
            let is_owned_anew = pollers.is_some();
            if let Some(share) = self.share_mut() {
                pollers.into_iter().for_each(|pollers| share.set_pollers(pollers));
                if is_stopping {
                    share.close();
                }
                share.look();
            }
            if is_owned_anew {
                // The pollers before may have brought fewer packets a call.
                self.path.tune();
            }
            self.is_closed = is_stopping;
        }
        Ok(Look::On(Some(self.look_ns)))
    }

    fn pass(&mut self, now_ns: u64) -> io::Result<Pass> {
        let pass = self.path.pass(now_ns)?;
        if pass.moved > 0 {
            self.rest_ns = REST_NS_MIN;
        }
        Ok(pass)
    }

    fn park(&mut self, until_ns: Option<u64>) -> io::Result<()> {
        let SinkWorker { path, bell, .. } = self;
        bell.park();
        let timeout_ns = until_ns.map(|until_ns| until_ns.saturating_sub(now_ns()));
        let slept = path.park(|kicked| {
            // poll(2) passes over a descriptor below 0.
            let kicked = kicked.map_or(-1, |kicked| kicked.as_raw_fd());
            sys::poll(&mut [bell.fd(), kicked].map(sys::poll_in), timeout_ns).map(drop)
        });
        bell.unpark();
        slept.map(drop)
    }
}
