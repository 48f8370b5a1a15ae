//! The application's half of a socket: its use of frames, and its waits for them.
//!
//! Rule: the socket has a lane for each worker, by which the flows come that this worker receives. It sends by the lane of one worker, its home. A
//! thread that waits says so, looks once more, and sleeps (ARCHITECTURE.md, invariant 3). A thread that is woken to send has a frame to send in;
//! wakes without a frame are counted, and their number is 0 (invariant 5).
//!
//! Owner: the socket, under a lock for each direction, which nobody but its own threads can ever hold, and a lock for frames that go back.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
#[cfg(feature = "tokio")]
use std::task::Waker;

use weir_path::packet::PathPacket;
use weir_port::sys;
use weir_ring::doorbell::{Doorbell, Ringer};
use weir_ring::memory::Frame;
use weir_ring::spsc::{CapacityError, Consumer, Producer, capacity_for, ring};
use weir_run::clock::now_ns;

use crate::driver::may_wait;
use crate::port::{FullRule, Lane, Open, Returned, Shared};
use crate::ringers::{OnDrop, Ringers};
use crate::task::Task;
#[cfg(feature = "tokio")]
use crate::task::{Asked, Waits};
use crate::tcp::state::{News, StreamState as State};

/// The sizes of a socket's buffers, and the rule when the receive buffer is full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferSizes {
    pub(crate) send_frames: u32,
    pub(crate) receive_packets: u32,
    pub(crate) full: FullRule,
}

/// The way by which the application calls the worker.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) worker: Ringer,
    /// The list of connections with news, and this connection's number in it, if many connections share a port.
    pub(crate) news: Option<(Arc<News>, u32)>,
}

impl Caller {
    /// Calls the worker, after something was published.
    pub(crate) fn call(&self) {
        if let Some((news, connection)) = &self.news {
            news.note(*connection);
        }
        self.worker.published();
    }
}

/// The half that sends.
pub(crate) struct SendHalf {
    sent: Producer<PathPacket>,
    empty: Consumer<Frame>,
    /// Frames that were taken and not used.
    spare: Vec<Frame>,
    awaited: Awaited,
    #[cfg(feature = "tokio")]
    task: (Arc<Task>, Waits),
    caller: Caller,
    lane: Arc<Lane>,
    shared: Arc<Shared>,
}

/// The half that receives.
pub(crate) struct ReceiveHalf {
    received: Vec<ReceiveLane>,
    /// The lane that is read next.
    turn: usize,
    awaited: Awaited,
    #[cfg(feature = "tokio")]
    task: (Arc<Task>, Waits),
    shared: Arc<Shared>,
}

/// The half that gives frames back, for both others: nobody ever waits with its lock held.
pub(crate) struct Returns {
    lanes: Vec<ReturnLane>,
    home: usize,
    has_unused: bool,
}

/// A lane's ring of received datagrams. In cache lines of its own, as another socket's may be next to it in memory.
#[repr(align(128))]
struct ReceiveLane(Consumer<PathPacket>);

/// A lane's ring of frames that go back; also in cache lines of its own.
#[repr(align(128))]
struct ReturnLane {
    returned: Producer<Returned>,
    caller: Caller,
    lane: Arc<Lane>,
}

/// The application's side of a socket.
pub(crate) struct Halves {
    pub(crate) send: SendHalf,
    pub(crate) receive: ReceiveHalf,
    pub(crate) returns: Returns,
    pub(crate) shared: Arc<Shared>,
}

/// The way in which a thread waits for one direction of a socket.
enum Awaited {
    /// The thread waits for this direction alone: the bell is its own.
    Alone(Doorbell),
    /// The thread sleeps elsewhere and waits for much else too: the direction rings there. Nobody waits here.
    WithOthers(Ringer),
}

impl Awaited {
    fn new(with_others: Option<&Ringer>) -> io::Result<Awaited> {
        match with_others {
            Some(ringer) => Ok(Awaited::WithOthers(ringer.clone())),
            None => Ok(Awaited::Alone(Doorbell::with_full_fences()?)),
        }
    }

    fn ringer(&self) -> Ringer {
        match self {
            Awaited::Alone(doorbell) => doorbell.ringer(),
            Awaited::WithOthers(ringer) => ringer.clone(),
        }
    }

    /// Sleeps until `there_is` is true, or until this time.
    fn wait(&mut self, deadline_ns: Option<u64>, there_is: impl FnMut() -> bool) -> io::Result<Woken> {
        match self {
            Awaited::Alone(doorbell) => wait(doorbell, deadline_ns, there_is),
            Awaited::WithOthers(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// The halves of a socket with such buffers. The socket has a lane to the worker of each of `callers`, and sends by the lane with the number `home`.
/// News for the halves rings `ringer`, if there is one, instead of bells of their own: then nobody waits for them alone.
pub(crate) fn halves(
    sizes: BufferSizes,
    callers: &[Caller],
    home: usize,
    ringer: Option<&Ringer>,
) -> io::Result<(Halves, Vec<Open>)> {
    let BufferSizes { send_frames, receive_packets, full } = sizes;
    let refused = |error: CapacityError| io::Error::new(io::ErrorKind::InvalidInput, error.to_string());
    let shared = Arc::new(Shared::default());
    let [sender, receiver] = [Awaited::new(ringer)?, Awaited::new(ringer)?];
    let tasks: [Arc<Task>; 2] = Default::default();
    let [sends_to, receives_from] = &tasks;
    let on_drop = |awaited: &Awaited, task| OnDrop { ringer: awaited.ringer(), task: Arc::clone(task) };
    let (mut opens, mut received_by, mut return_lanes) = (Vec::new(), Vec::new(), Vec::new());
    let mut sends_by = None;
    for (number, caller) in callers.iter().enumerate() {
        let send_frames = if number == home { send_frames } else { 0 };
        let (sends, receives) = (send_frames as usize, receive_packets as usize);
        let (to_worker, sent) = ring(capacity_for(sends)).map_err(refused)?;
        let (empty, to_sender) = ring(capacity_for(sends)).map_err(refused)?;
        let (received, to_receiver) = ring(capacity_for(receives)).map_err(refused)?;
        let (back, returned) = ring(capacity_for(sends + receives)).map_err(refused)?;
        let lane = Arc::<Lane>::default();
        opens.push(Open {
            sent,
            empty,
            received,
            returned,
            ringers: Ringers {
                sender: on_drop(&sender, sends_to),
                receiver: on_drop(&receiver, receives_from),
            },
            lane: Arc::clone(&lane),
            shared: Arc::clone(&shared),
            receive_packets,
            full,
            tells_errors: true,
            send_frames,
            owed: send_frames,
        });
        if number == home {
            sends_by = Some((to_worker, to_sender, caller.clone(), Arc::clone(&lane)));
        }
        received_by.push(ReceiveLane(to_receiver));
        return_lanes.push(ReturnLane { returned: back, caller: caller.clone(), lane });
    }
    let (sent, empty, caller, lane) = sends_by.expect("its home is one of its lanes");
    let halves = Halves {
        send: SendHalf {
            sent,
            empty,
            spare: Vec::new(),
            awaited: sender,
            #[cfg(feature = "tokio")]
            task: (Arc::clone(sends_to), Waits::default()),
            caller,
            lane,
            shared: Arc::clone(&shared),
        },
        receive: ReceiveHalf {
            received: received_by,
            turn: 0,
            awaited: receiver,
            #[cfg(feature = "tokio")]
            task: (Arc::clone(receives_from), Waits::default()),
            shared: Arc::clone(&shared),
        },
        returns: Returns { lanes: return_lanes, home, has_unused: false },
        shared,
    };
    Ok((halves, opens))
}

impl SendHalf {
    /// An empty frame of the send buffer, if one is left.
    pub(crate) fn take_frame(&mut self) -> Option<Frame> {
        self.spare.pop().or_else(|| self.empty.pop())
    }

    /// Puts back a frame that was taken and is not used.
    pub(crate) fn put_back(&mut self, frame: Frame) {
        self.spare.push(frame);
    }

    /// Sends a packet, in a frame that was taken or in exchange for one, with the next [`SendHalf::publish`].
    pub(crate) fn stage(&mut self, packet: PathPacket) {
        self.sent.stage(packet).expect("a ring has a slot for each frame of the send buffer");
    }

    /// Sends packets as [`SendHalf::stage`] and [`SendHalf::publish`] do, and leaves none.
    pub(crate) fn send_all(&mut self, packets: &mut Vec<PathPacket>) {
        let count = packets.len();
        let sent = self.sent.push_all(packets);
        assert_eq!(sent, count, "a ring has a slot for each frame of the send buffer");
        self.announce(count);
    }

    /// Publishes the staged packets to the worker.
    pub(crate) fn publish(&mut self) {
        let count = self.sent.publish();
        self.announce(count);
    }

    /// Calls the worker for so many packets.
    fn announce(&self, count: usize) {
        if count > 0 {
            // R0, to A0.
            self.lane.is_announced.store(true, Ordering::Release);
            self.caller.call();
        }
    }

    /// Returns whether the worker has gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.sent.is_abandoned()
    }

    /// Notes that a sender found no frame.
    pub(crate) fn note_throttled(&mut self) {
        let SendHalf { empty, spare, shared, .. } = self;
        shared.note_throttled(|| !spare.is_empty() || !empty.is_empty());
    }

    /// Returns whether there is a frame to send in.
    pub(crate) fn is_writable(&mut self) -> bool {
        !self.spare.is_empty() || !self.empty.is_empty()
    }

    /// Waits until there is a frame, or until this time; returns whether there is a frame, or the worker has gone.
    pub(crate) fn wait(&mut self, deadline_ns: Option<u64>) -> io::Result<bool> {
        self.note_throttled();
        let SendHalf { empty, spare, awaited, sent, shared, .. } = self;
        let woken = awaited.wait(deadline_ns, || {
            let is_over = sent.is_abandoned() || shared.stream.has(State::SEND_ENDED);
            !spare.is_empty() || is_any_given(empty, shared) || is_over
        })?;
        shared.note_wakes(woken.wakes, woken.empty_wakes);
        Ok(woken.there_is)
    }

    /// Returns whether there is a frame, or the worker has gone, or the stream has ended; otherwise this task is woken when one of these is so.
    #[cfg(feature = "tokio")]
    pub(crate) fn ask(&mut self, waker: &Waker) -> bool {
        let SendHalf { empty, spare, sent, shared, task: (task, waits), .. } = self;
        let asked = waits.ask(task, waker, || {
            let is_over = sent.is_abandoned() || shared.stream.has(State::SEND_ENDED);
            !spare.is_empty() || is_any_given(empty, shared) || is_over
        });
        match asked {
            Asked::Ready(was_woken) => shared.note_wakes(was_woken.into(), 0),
            Asked::Pending(is_in_vain) => {
                shared.note_throttled(|| !spare.is_empty() || !empty.is_empty());
                shared.note_wakes(is_in_vain.into(), is_in_vain.into());
            }
        }
        matches!(asked, Asked::Ready(_))
    }

    /// The frames that were taken and not used.
    pub(crate) fn take_spare(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.spare)
    }
}

impl ReceiveHalf {
    /// Hands the datagrams that have come to `each` with the numbers of their lanes, at most so many; returns their number.
    pub(crate) fn take(&mut self, most: usize, mut each: impl FnMut(u16, PathPacket)) -> usize {
        let mut taken = 0;
        for _ in 0..self.received.len() {
            let lane = self.turn;
            self.turn = (lane + 1) % self.received.len();
            taken += self.received[lane].0.pop_each(most - taken, |packet| each(lane as u16, packet));
            if taken == most {
                break;
            }
        }
        taken
    }

    /// Moves the datagrams that have come to the end of `packets`, at most so many and as have room there without allocating; returns their number.
    /// `moved` is told for each lane how many came by it.
    pub(crate) fn take_into(
        &mut self,
        most: usize,
        packets: &mut Vec<PathPacket>,
        mut moved: impl FnMut(u16, usize),
    ) -> usize {
        let mut taken = 0;
        for _ in 0..self.received.len() {
            let lane = self.turn;
            self.turn = (lane + 1) % self.received.len();
            let count = self.received[lane].0.pop_into(packets, most - taken);
            moved(lane as u16, count);
            taken += count;
            if taken == most {
                break;
            }
        }
        taken
    }

    /// Returns whether a worker has gone and no datagram is left.
    pub(crate) fn is_abandoned(&mut self) -> bool {
        is_any_abandoned(&self.received) && !self.is_readable()
    }

    /// Returns whether a datagram has come.
    pub(crate) fn is_readable(&mut self) -> bool {
        has_any(&mut self.received)
    }

    /// Returns whether a datagram has come, or a worker has gone, or the stream has ended; otherwise this task is woken when one of these is so.
    #[cfg(feature = "tokio")]
    pub(crate) fn ask(&mut self, waker: &Waker) -> bool {
        let ReceiveHalf { received, shared, task: (task, waits), .. } = self;
        let asked = waits.ask(task, waker, || {
            let is_over = is_any_abandoned(received) || shared.stream.has(State::RECEIVE_ENDED);
            has_any(received) || is_over || shared.has_error.load(Ordering::Acquire)
        });
        matches!(asked, Asked::Ready(_))
    }

    /// Waits until a datagram or an error has come, or until this time; returns whether one has, or a worker has gone.
    pub(crate) fn wait(&mut self, deadline_ns: Option<u64>) -> io::Result<bool> {
        self.wait_until(deadline_ns, &mut |is_readable| is_readable)
    }

    /// Waits as [`ReceiveHalf::wait`] does, but until `is_so` returns true, which is told whether a datagram has come.
    pub(crate) fn wait_until(
        &mut self,
        deadline_ns: Option<u64>,
        is_so: &mut dyn FnMut(bool) -> bool,
    ) -> io::Result<bool> {
        let ReceiveHalf { received, awaited, shared, .. } = self;
        let woken = awaited.wait(deadline_ns, || {
            let is_over = is_any_abandoned(received) || shared.stream.has(State::RECEIVE_ENDED);
            is_so(has_any(received)) || is_over || shared.has_error.load(Ordering::Acquire)
        })?;
        Ok(woken.there_is)
    }

    /// The ringer of the thread that waits to receive.
    pub(crate) fn ringer(&self) -> Ringer {
        self.awaited.ringer()
    }
}

/// Returns whether a frame was given that is not used. If there is none, that is noted for the worker, which may have given the last one without having
/// looked yet whether somebody waits.
fn is_any_given(empty: &mut Consumer<Frame>, shared: &Shared) -> bool {
    let is_any = !empty.is_empty();
    if !is_any {
        shared.used_frames.store(empty.seen_published(), Ordering::Relaxed);
    }
    is_any
}

fn is_any_abandoned(lanes: &[ReceiveLane]) -> bool {
    lanes.iter().any(|lane| lane.0.is_abandoned())
}

fn has_any(lanes: &mut [ReceiveLane]) -> bool {
    lanes.iter_mut().any(|lane| !lane.0.is_empty())
}

impl Returns {
    /// Gives back the frame of a datagram of so many bytes, or another one for it, to the lane that it came by, with the next [`Returns::publish`].
    pub(crate) fn read(&mut self, lane: u16, frame: Frame, len_bytes: u16) {
        self.stage(lane.into(), Returned::Read(frame, len_bytes));
    }

    /// Gives back a frame of the send buffer that is not used, in exchange for another, with the next [`Returns::publish`].
    pub(crate) fn unused(&mut self, frame: Frame) {
        self.has_unused = true;
        self.stage(self.home, Returned::Unused(frame));
    }

    /// Gives back the frame of a packet that is not read, to the lane that it came by, with the next [`Returns::publish`].
    pub(crate) fn unread(&mut self, lane: u16, frame: Frame) {
        self.stage(lane.into(), Returned::Unread(frame));
    }

    fn stage(&mut self, lane: usize, returned: Returned) {
        self.lanes[lane].returned.stage(returned).expect("a ring has a slot for each frame of the socket");
    }

    /// Publishes the returned frames to the workers, which may be waiting for them.
    pub(crate) fn publish(&mut self) {
        let has_unused = std::mem::take(&mut self.has_unused);
        for (number, ReturnLane { returned, caller, lane }) in self.lanes.iter_mut().enumerate() {
            let is_wanted = || lane.wants_room.swap(false, Ordering::SeqCst);
            if returned.publish() > 0 && (is_wanted() || has_unused && number == self.home) {
                caller.call();
            }
        }
    }
}

/// The outcome of a wait.
#[derive(Default)]
pub(crate) struct Woken {
    pub(crate) there_is: bool,
    wakes: u64,
    empty_wakes: u64,
}

/// Sleeps until `there_is` is true, or until this time.
pub(crate) fn wait(
    doorbell: &mut Doorbell,
    deadline_ns: Option<u64>,
    mut there_is: impl FnMut() -> bool,
) -> io::Result<Woken> {
    let mut woken = Woken::default();
    let left_ns = || deadline_ns.map(|deadline_ns| deadline_ns.saturating_sub(now_ns()));
    may_wait()?;
    loop {
        let kicks_before = doorbell.counts().kicks_sent;
        let Some(parked) = doorbell.park(&mut there_is) else {
            // Something has come meanwhile; or somebody called, and `there_is` is asked again.
            woken.there_is = there_is();
            if woken.there_is || left_ns() == Some(0) {
                return Ok(woken);
            }
            continue;
        };
        let left_ns = left_ns();
        if left_ns == Some(0) {
            return Ok(woken);
        }
        sys::poll(&mut [sys::poll_in(parked.as_fd().as_raw_fd())], left_ns)?;
        drop(parked);
        woken.there_is = there_is();
        // The late ring of an earlier kick counts as no wake.
        let is_wake = u64::from(doorbell.counts().kicks_sent > kicks_before);
        woken.wakes += is_wake;
        if woken.there_is {
            return Ok(woken);
        }
        woken.empty_wakes += is_wake;
    }
}
