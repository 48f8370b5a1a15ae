//! An application that drives its stack: a thread of the application makes the worker's passes, between its work with its sockets.
//!
//! ```text
//! loop: turn --> what has come is in the receive buffers --> the application answers --> turn --> ... nothing moved: rest
//! ```
//!
//! So a request costs one wake-up, that of the interface's, and received data is in the cache of the core that answers it.
//!
//! Rule: a thread that drives a stack waits in [`Driver::rest`] alone. A call of any socket or stack that would wait on this thread is refused with
//! `ErrorKind::Deadlock`: nobody else would make the pass that it waits for. Invariant 3 (ARCHITECTURE.md) holds with one more input: the application
//! looks once more for its own work after the worker has said that it parks.
//!
//! Owner: one thread; the worker comes from the thread that the stack gave it, and goes back there when the driver is dropped. Limits: while
//! the application does something else, nothing of its stack moves.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::net::ToSocketAddrs;
use std::sync::mpsc::{Sender, channel};

use weir_core::due::sooner;
use weir_port::sys;
use weir_ring::doorbell::Ringer;
use weir_run::clock::now_ns;
use weir_run::drive::{Driven, Look};
use weir_run::idle::{Idle, Rest};

use crate::batch::Datagrams;
use crate::options::SocketOptions;
use crate::socket::{UdpSocket, first, os};
use crate::stack::Stack;
use crate::worker::{Request, StackWorker};

thread_local! {
    /// The number of stacks that this thread drives.
    static DRIVEN: Cell<usize> = const { Cell::new(0) };
}

/// A worker of a stack, driven by the thread that has this handle.
///
/// ```
/// use weir_socket::{Stack, UdpSocket};
///
/// let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24")?;
/// let server = UdpSocket::bind(&right, "192.0.2.2:7")?;
/// let client = UdpSocket::bind(&left, "192.0.2.1:0")?;
/// client.send_to(b"hello", "192.0.2.2:7")?;
///
/// server.set_nonblocking(true);
/// let mut driver = right.drive(0)?;
/// driver.turn_until(|| server.is_readable())?;
/// let mut buffer = [0; 1500];
/// assert_eq!(server.recv_from(&mut buffer)?.0, 5);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Driver {
    /// The worker, until the stack is over.
    lent: Option<Lent>,
    idle: Idle,
    /// The time when the next turn is due, and whether something may come before.
    until_ns: Option<u64>,
    is_expecting: bool,
    // Last: a stack that ends with this handle waits for its worker.
    _stack: Stack,
    /// The driver stays with its thread.
    _here: PhantomData<*const ()>,
}

/// A worker away from its thread, and the way back.
pub(crate) struct Lent {
    pub(crate) worker: Box<StackWorker>,
    pub(crate) back: Sender<Box<StackWorker>>,
}

impl Stack {
    /// Lets this thread drive a worker of the stack from now on, until the driver is dropped; for a pair of stacks the worker serves both. Timers of
    /// this thread become exact (`PR_SET_TIMERSLACK`).
    ///
    /// By the first worker of a stack with a limit leave the packets of all ([`crate::StackBuilder::rate`]): the sockets of the others are held while the
    /// thread that drives it makes no turns.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such worker; `ResourceBusy` if another thread drives it; `Deadlock` if this thread drives a worker already;
    /// `BrokenPipe` if the stack has ended.
    pub fn drive(&self, worker: usize) -> io::Result<Driver> {
        if worker >= self.workers() {
            let why = format!("this stack has {} workers, numbered from 0", self.workers());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let (to, lent) = channel();
        may_wait()?;
        self.ask(worker, Request::Lend(to))?;
        let lent = lent.recv().map_err(|_| os(libc::EPIPE))?.ok_or_else(|| os(libc::EBUSY))?;
        sys::set_timer_slack_ns(1);
        DRIVEN.set(DRIVEN.get() + 1);
        Ok(Driver {
            lent: Some(lent),
            idle: Idle::new(self.wake_cost_ns(), now_ns()),
            until_ns: None,
            is_expecting: false,
            _stack: self.clone(),
            _here: PhantomData,
        })
    }

    /// The worker that the thread of a bucket is to drive, where each bucket has a thread: the worker of its flows, unless an earlier bucket has the
    /// same worker.
    pub fn driven_for(&self, bucket: usize) -> Option<usize> {
        let worker = |bucket: usize| self.rss().worker(bucket as u32);
        (0..bucket).all(|before| worker(before) != worker(bucket)).then(|| worker(bucket))
    }
}

impl UdpSocket {
    /// Binds a socket as [`UdpSocket::bind_bucket`] does, for a thread that drives a worker. News of the socket rings `ringer`: the worker's
    /// [`Stack::ringer`], so that a datagram that comes by another worker's queue ends the [`Driver::rest`] too. Calls of the socket do not wait,
    /// whatever [`UdpSocket::set_nonblocking`] says: it has no descriptors to wait with.
    ///
    /// # Errors
    /// As [`UdpSocket::bind_bucket`].
    pub fn bind_bucket_for(
        stack: &Stack,
        address: impl ToSocketAddrs,
        bucket: usize,
        ringer: &Ringer,
    ) -> io::Result<UdpSocket> {
        let options = SocketOptions { bucket: Some(bucket), ..stack.options() };
        let socket = first(address, |address| UdpSocket::bind_to(stack, address, options, Some(ringer)))?;
        socket.set_nonblocking(true);
        Ok(socket)
    }
}

impl Driver {
    /// Makes one pass; returns whether something moved.
    ///
    /// # Errors
    /// `BrokenPipe` once the stack was stopped; otherwise the error that ends the stack.
    pub fn turn(&mut self) -> io::Result<bool> {
        let Some(lent) = &mut self.lent else { return Err(os(libc::EPIPE)) };
        let now = now_ns();
        let looked = lent.worker.look(now).and_then(|look| match look {
            Look::On(look_ns) => lent.worker.pass(now).map(|pass| Some((look_ns, pass))),
            Look::Over => Ok(None),
        });
        let (look_ns, pass) = match looked {
            Ok(Some(looked)) => looked,
            // The worker's ports are dropped with it, and every thread that waits at a socket is woken; the worker's thread ends.
            ended => {
                self.lent = None;
                return Err(ended.err().unwrap_or_else(|| os(libc::EPIPE)));
            }
        };
        self.until_ns = sooner(look_ns, pass.wake_ns);
        self.is_expecting = pass.expecting;
        if pass.moved > 0 {
            self.idle.worked(now);
        }
        Ok(pass.moved > 0)
    }

    /// Waits until another turn is due. It is to be called after a turn in which nothing moved, and with nothing to do in the application. `has_work`
    /// is asked whether something has come meanwhile; the thread that brings such work rings [`Stack::ringer`]. Of several workers the others bring
    /// datagrams too: a socket that hears them is bound by [`UdpSocket::bind_bucket_for`]. The call may return early.
    ///
    /// # Errors
    /// If the kernel does not let the thread sleep.
    pub fn rest(&mut self, has_work: impl FnOnce() -> bool) -> io::Result<()> {
        let Some(lent) = &mut self.lent else { return Ok(()) };
        match self.idle.rest(now_ns(), self.until_ns, self.is_expecting) {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Park(until_ns) => lent.worker.park_unless(until_ns, has_work)?,
        }
        Ok(())
    }

    /// Turns, and rests, until `is_so` is true.
    ///
    /// # Errors
    /// As [`Driver::turn`] and [`Driver::rest`].
    pub fn turn_until(&mut self, mut is_so: impl FnMut() -> bool) -> io::Result<()> {
        while !is_so() {
            if !self.turn()? {
                self.rest(&mut is_so)?;
            }
        }
        Ok(())
    }

    /// Sends all of a batch by a socket of the stack, and turns while its send buffer is full; returns the number of datagrams.
    ///
    /// # Errors
    /// As [`UdpSocket::send_batch`] of a socket that does not wait, but `WouldBlock`, and as [`Driver::turn_until`].
    pub fn send_all(&mut self, socket: &UdpSocket, batch: &mut Datagrams<'_>) -> io::Result<usize> {
        let mut sent = 0;
        while !batch.is_empty() {
            match socket.send_batch(batch) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.turn_until(|| socket.is_writable())?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        DRIVEN.set(DRIVEN.get() - 1);
        if let Some(Lent { worker, back }) = self.lent.take() {
            // The worker's thread waits for the worker.
            let _ = back.send(worker);
        }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("is_over", &self.lent.is_none()).finish()
    }
}

/// Checks that this thread may wait for a worker of a stack.
///
/// # Errors
/// `Deadlock` if this thread drives a worker.
pub(crate) fn may_wait() -> io::Result<()> {
    if DRIVEN.get() == 0 { Ok(()) } else { Err(os(libc::EDEADLK)) }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::thread;

    use weir_core::drops::DropReason;

    use super::*;
    use crate::tcp::listener::TcpListener;
    use crate::tcp::stream::TcpStream;
    use crate::worker::socket_port;

    #[test]
    fn no_request_is_lost_to_a_thread_that_rests_and_rests_again() {
        let (stack, _) = Stack::pair("192.0.2.1/24", "192.0.2.2/24").expect("stacks");
        let mut driver = stack.drive(0).expect("a worker");
        let answers = [(); 2].map(|()| {
            let (reply, answer) = channel();
            stack.ask(0, Request::Books(reply)).expect("it is there");
            let worker = &mut driver.lent.as_mut().expect("it goes on").worker;
            worker.park_unless(Some(0), || false).expect("it may sleep");
            answer
        });
        driver.turn().expect("a turn");
        assert_eq!(answers.map(|answer| answer.try_recv().is_ok()), [true; 2]);
    }

    #[test]
    fn a_socket_gets_nothing_that_was_for_the_one_before_in_its_place() {
        let builder = |address| Stack::builder().sockets(1).buffer_frames_max(4096).address(address);
        let (left, right) = Stack::pair_of(builder("192.0.2.1/24"), builder("192.0.2.2/24")).expect("stacks");
        let client = UdpSocket::bind(&left, "192.0.2.1:0").expect("a socket");
        let silent = UdpSocket::bind(&right, "192.0.2.2:7").expect("a socket");
        client.set_nonblocking(true);
        let mut driver = right.drive(0).expect("a worker");
        loop {
            while client.send_to(b"for port 7", "192.0.2.2:7").is_ok() {}
            if !driver.turn().expect("a turn") && !client.is_writable() {
                break;
            }
        }
        drop(silent);
        let worker = &mut driver.lent.as_mut().expect("it goes on").worker;
        let held = worker.books().held;
        let mut queues = worker.path.between().egress.queues().iter();
        let port = queues.find(|queue| queue.shaping.held().packets > 0).expect("they wait").port;
        assert!(matches!(worker.look(now_ns()), Ok(Look::On(_))));
        let (socket, _) = socket_port(&mut worker.path, port).expect("a socket");
        assert!(socket.shared().is_some(), "its place is not free");
        let next = thread::scope(|scope| {
            let binding = scope.spawn(|| {
                let end_ns = now_ns() + 30_000_000_000;
                let mut bound = UdpSocket::bind(&right, "192.0.2.2:9");
                while bound.is_err() && now_ns() < end_ns {
                    bound = UdpSocket::bind(&right, "192.0.2.2:9");
                }
                bound.expect("there is a place again")
            });
            while !binding.is_finished() {
                driver.turn().expect("a turn");
            }
            binding.join().expect("it ends")
        });
        while driver.turn().expect("a turn") {}
        assert!(!next.is_readable());
        let books = driver.lent.as_mut().expect("it goes on").worker.books();
        assert!(books.balances && books.held.packets == 0);
        assert_eq!(books.dropped.get(DropReason::SocketClosed), held);
    }

    #[test]
    fn a_stream_that_was_closed_just_before_its_stack_ends_has_its_end_sent() {
        let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24").expect("stacks");
        let listener = TcpListener::bind(&right, "192.0.2.2:7").expect("a listener");
        let client = TcpStream::connect(&left, "192.0.2.2:7").expect("it is open");
        let (server, _) = listener.accept().expect("a connection");
        server.set_nonblocking(true);
        let mut driver = right.drive(0).expect("a worker");
        while driver.turn().expect("a turn") {}
        drop(client);
        right.ask(0, Request::Stop).expect("it is there");
        let came = loop {
            match (&server).read(&mut [0; 10]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                came => break came,
            }
            // The worker goes with its last turn, and the streams are told so.
            let _ = driver.turn();
        };
        assert_eq!(came.expect("the peer has ended"), 0);
        while driver.turn().is_ok() {}
    }

    #[test]
    fn of_two_that_ask_for_a_worker_at_once_one_gets_it() {
        let (stack, _) = Stack::pair("192.0.2.1/24", "192.0.2.2/24").expect("stacks");
        let driver = stack.drive(0).expect("a worker");
        let [first, second] = [(); 2].map(|()| {
            let (to, lent) = channel();
            stack.ask(0, Request::Lend(to)).expect("it is there");
            lent
        });
        drop(driver);
        let lent = first.recv().expect("it is answered").expect("it gets the worker");
        assert!(second.recv().expect("it is answered").is_none());
        lent.back.send(lent.worker).expect("its thread waits");
    }
}
