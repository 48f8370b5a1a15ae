//! The tcx program at the sending end: gives each flow a transmit queue, says which queues have packets, and wakes the
//! worker if it is parked.
//!
//! ```text
//! if priming: queue = the mark's, or drop a packet that is not marked
//! if flows are steered (a stack of several workers): queue = that of the flow's bucket ([`BucketSteering`])
//! else:       queue = flows[hash] or, for a new flow, the next queue in turn that has no backlog
//! if it has no socket:
//!             drop it and count that, if too much waits in the queue without one; otherwise forwarded[queue] += its cost
//! all[queue] += its cost
//! if pending[queue] = 0 and exchange(pending[queue], 1) = 0:
//!     if compare_exchange(state, PARKED, NOTIFIED): submit one record to the ring buffer
//! ```
//!
//! Invariant 3 (no lost wake-up), the producer's half: it publishes (`pending`), then looks at the state word alone,
//! then kicks. Both are sequentially consistent read-modify-writes; [`Bell::park`] is the other half. Invariant 4 (one
//! kick per park): only the exchange that finds PARKED kicks. A queue that is already known to be pending rings
//! nothing, so senders held by a backlog cost no wake-ups.
//!
//! Packets that wait without a socket are bounded in bytes (`crate::waiting` has the rule), because no socket buffer is charged for them:
//! with room for some ten thousand packets in each of 64 queues they could take gigabytes of the kernel's memory. A packet with a socket is
//! never dropped here: the socket's buffer bounds it.
//!
//! Limits. The program runs *before* the packet is in the device's ring, so a sender preempted in between can leave a
//! packet behind a worker that has looked and gone; the worker therefore looks again at growing intervals. A socket
//! that cached another transmit queue keeps it whatever is asked here (`netdev_pick_tx`), so a queue that was rung in
//! vain makes the worker look at all of them.
//!
//! Source: kernel `net/core/dev.c` (`qdisc_pkt_len_init`; `sch_handle_egress` runs before `netdev_core_pick_tx`), `struct __sk_buff`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::asm::{Asm, Cond, Helper, Label, Op, Reg, Slot, Width};
use super::map::{Map, SharedWords, WakeRing};
use super::program::{BpfLink, Hook, Program};
use super::steering::BucketSteering;
use crate::napi::PRIMING_MARK;
use crate::waiting::{self, LetIn};

const SKB_MARK: i16 = 8;
const SKB_QUEUE_MAPPING: i16 = 12;
const SKB_WIRE_LEN: i16 = 160;
const SKB_GSO_SEGS: i16 = 164;
const SKB_SK: i16 = 168;
const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;
const BPF_RB_FORCE_WAKEUP: i32 = 2;

/// The worker is awake and will look at every pending queue before it parks.
const RUNNING: u32 = 0;
/// The worker sleeps; the sender that finds this owes it one kick.
const PARKED: u32 = 1;
/// The worker sleeps and has been kicked.
const NOTIFIED: u32 = 2;

/// The flows whose queue the program remembers before it forgets the least recently used.
const FLOWS_MAX: u32 = 65_536;
/// The queues in which a new flow looks for one without a backlog.
const QUEUE_TRIES: i32 = 8;

/// One worker's doorbell: a state word that senders look at and a ring buffer that wakes it.
pub struct Bell {
    state: SharedWords,
    kicks: WakeRing,
}

impl Bell {
    /// A bell whose worker is awake.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell { state: SharedWords::new(1)?, kicks: WakeRing::new()? })
    }

    /// Says that the worker is about to sleep. After this returns and before it sleeps, the worker must look at every pending queue once
    /// more: a queue that was rung before is not announced again.
    pub fn park(&self) {
        // Store, then fence, then the caller's look at `pending`: against the program's exchange of `pending`, then its
        // look at the state. One of the two sees the other (Dekker).
        self.state.words()[0].store(PARKED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Says that the worker is awake; true if it had been kicked since it parked.
    pub fn unpark(&self) -> bool {
        // Drained even if nothing was seen: a record may come after the state it announces, and would otherwise keep
        // the descriptor readable for ever.
        self.kicks.drain();
        self.state.words()[0].swap(RUNNING, Ordering::SeqCst) == NOTIFIED
    }

    /// The descriptor that is readable while a kick is waiting to be taken by [`Bell::unpark`].
    pub fn fd(&self) -> RawFd {
        self.kicks.as_fd().as_raw_fd()
    }
}

const WORD_PRIMING: usize = 0;
const WORD_NEXT: usize = 16;
const WORD_PENDING: usize = 32;
/// The words of a queue's account, a cache line; the accounts stand behind the words of all queues.
const ACCOUNT_WORDS: usize = 16;
const ACCOUNT_SHIFT: i32 = 6;
/// The words of an account: the bytes let in, and of those the bytes forwarded without a socket; the forwarded bytes that no longer wait,
/// written by the queue's worker; and, in two words, the packets that were dropped.
const ACCOUNT_ALL: usize = 0;
const ACCOUNT_FORWARDED: usize = 1;
const ACCOUNT_GONE: usize = 2;
const ACCOUNT_DROPPED: usize = 4;

/// The most queues of a device: the program finds the account of a queue by an instruction's offset.
pub(crate) const QUEUES_MAX: u32 = 4072;
const _: () = assert!(4 * (accounts(QUEUES_MAX as usize) + ACCOUNT_DROPPED) <= i16::MAX as usize);

/// The word at which the accounts begin.
const fn accounts(queues: usize) -> usize {
    (WORD_PENDING + 2 * queues).next_multiple_of(ACCOUNT_WORDS)
}

/// The words that one sending end's program and the worker share.
pub struct Announcements {
    words: SharedWords,
    queues: usize,
}

impl Announcements {
    /// The words for a device with `queues` transmit queues, none pending.
    pub fn new(queues: usize) -> io::Result<Announcements> {
        Ok(Announcements { words: SharedWords::new(accounts(queues) + ACCOUNT_WORDS * queues)?, queues })
    }

    /// While priming, a packet marked as [`PRIMING_MARK`] goes to the queue its mark names, so that each NAPI instance can be
    /// reached. All others are dropped: they would be the kernel's, whose own stack they are not for, and while they come, an
    /// instance cannot be taken from its softirq for certain (`crate::ownership`). Flows stay where they are.
    pub fn set_priming(&self, priming: bool) {
        self.words.words()[WORD_PRIMING].store(u32::from(priming), Ordering::SeqCst);
    }

    /// Returns whether something was announced on `queue` and not yet taken back by [`Announcements::expect_none`].
    pub fn is_pending(&self, queue: usize) -> bool {
        self.pending(queue).load(Ordering::Acquire) != 0
    }

    /// Marks `queue` as known to have packets, so that its senders ring no bell.
    pub fn set_pending(&self, queue: usize) {
        self.pending(queue).store(1, Ordering::Release);
    }

    /// Asks for the next packet of `queue` to be announced. The queue must be polled once more afterwards: a packet
    /// that came while it was still marked as pending was not announced.
    pub fn expect_none(&self, queue: usize) {
        self.pending(queue).swap(0, Ordering::SeqCst);
    }

    /// Tells the program whether `queue` has a backlog, which new flows then avoid.
    pub fn set_backlog(&self, queue: usize, backlog: bool) {
        self.words.words()[WORD_PENDING + self.queues + queue].store(u32::from(backlog), Ordering::Relaxed);
    }

    /// The bytes let into `queue` so far.
    pub(crate) fn let_in(&self, queue: usize) -> LetIn {
        let word = |word| self.account(queue, word).load(Ordering::Acquire);
        // `forwarded` is read first: bytes that came between the two reads would be in it and not in `all`.
        let forwarded = word(ACCOUNT_FORWARDED);
        LetIn { all: word(ACCOUNT_ALL), forwarded }
    }

    /// Tells the program how many forwarded bytes no longer wait in `queue`.
    pub(crate) fn set_gone(&self, queue: usize, bytes: u32) {
        self.account(queue, ACCOUNT_GONE).store(bytes, Ordering::Release);
    }

    /// The packets that were dropped because too many bytes waited without a socket. They may be looked at rarely, so they are counted in
    /// 64 bits.
    pub(crate) fn dropped(&self) -> u64 {
        (0..self.queues).map(|queue| self.dropped_of(queue).load(Ordering::Relaxed)).sum()
    }

    /// The bytes that wait without a socket in all queues, or a little less.
    pub fn forwarded_waiting_bytes(&self) -> u64 {
        let waits = |queue| {
            let gone = self.account(queue, ACCOUNT_GONE).load(Ordering::Acquire);
            u64::from(self.let_in(queue).forwarded.wrapping_sub(gone))
        };
        (0..self.queues).map(waits).sum()
    }

    fn account(&self, queue: usize, word: usize) -> &AtomicU32 {
        &self.words.words()[self.place(queue, word)]
    }

    fn dropped_of(&self, queue: usize) -> &AtomicU64 {
        self.words.double(self.place(queue, ACCOUNT_DROPPED))
    }

    /// The place of a word of a queue's account.
    fn place(&self, queue: usize, word: usize) -> usize {
        assert!(queue < self.queues, "a queue of this device");
        accounts(self.queues) + ACCOUNT_WORDS * queue + word
    }

    fn pending(&self, queue: usize) -> &AtomicU32 {
        assert!(queue < self.queues, "a queue of this device");
        &self.words.words()[WORD_PENDING + queue]
    }
}

/// The program of one sending end, which must run before the programs of others: a verdict of one of those would silence it.
///
/// Rule: the program is loaded twice, and one copy is attached. It is put first again by attaching the other copy before all programs and
/// then detaching the one; so no packet passes without it. The kernel attaches no program twice. A packet that passes both copies meanwhile
/// is counted twice as let in, which is put right as a loss is (`waiting.rs`).
///
/// Owner: the port, which takes the program off; the watcher, which alone puts it first again.
#[derive(Debug)]
pub struct DoorbellProgram {
    copies: [Program; 2],
    ids: [u32; 2],
    place: Mutex<Place>,
}

/// The attachment of a doorbell program.
#[derive(Debug)]
enum Place {
    /// Not attached yet.
    New,
    /// This copy is attached, as long as its link is held.
    Attached { copy: usize, _link: BpfLink },
    /// Taken off for good.
    Gone,
}

impl DoorbellProgram {
    /// Loads the program. The bells are of the owners of the receiving queues ([`crate::port::owner_of`]); `steering`, if any, gives flows
    /// their queues.
    pub fn load(
        bells: &[&Bell],
        announcements: &Announcements,
        steering: Option<&BucketSteering>,
    ) -> io::Result<DoorbellProgram> {
        let flows = match steering {
            None if announcements.queues > 1 => Some(Map::lru_hash(FLOWS_MAX)?),
            _ => None,
        };
        let choice = match (steering, &flows) {
            (Some(steering), _) => Choice::Steered(steering),
            (None, Some(flows)) => Choice::InTurn(flows.as_fd()),
            (None, None) => Choice::One,
        };
        let code = code(bells, announcements, &choice);
        let load = || Program::load(Hook::TcxEgress, &code);
        let copies = [load()?, load()?];
        let ids = [copies[0].id()?, copies[1].id()?];
        Ok(DoorbellProgram { copies, ids, place: Mutex::new(Place::New) })
    }

    /// Attaches the program to an interface of this thread's namespace before all other programs, also if it is attached already; not once
    /// it has been taken off.
    pub fn put_first(&self, ifindex: u32) -> io::Result<()> {
        let mut place = self.place();
        let next = match *place {
            Place::Gone => return Ok(()),
            Place::New => 0,
            Place::Attached { copy, .. } => 1 - copy,
        };
        // The link of the copy before is closed only when this copy is attached.
        *place = Place::Attached { copy: next, _link: self.copies[next].attach(ifindex)? };
        Ok(())
    }

    /// Runs the program on a frame as if that was being sent, and sends nothing; returns the program's verdict.
    pub fn run(&self, frame: &[u8]) -> io::Result<u32> {
        self.copies[0].run(frame)
    }

    /// Returns whether the program comes first in a row of programs, or is not attached.
    pub fn is_first(&self, programs: &[u32]) -> bool {
        match *self.place() {
            Place::Attached { copy, .. } => programs.first() == Some(&self.ids[copy]),
            Place::New | Place::Gone => true,
        }
    }

    /// Takes the program off for good.
    pub fn take_off(&self) {
        *self.place() = Place::Gone;
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rule by which a flow gets its queue.
enum Choice<'a> {
    /// There is one queue.
    One,
    /// A new flow gets the next queue, which is remembered.
    InTurn(BorrowedFd<'a>),
    /// A flow gets the queue of its bucket.
    Steered(&'a BucketSteering),
}

fn code(bells: &[&Bell], announcements: &Announcements, choice: &Choice<'_>) -> Vec<Slot> {
    let mut asm = Asm::new();
    let out = asm.label();
    let drop = asm.label();
    asm.op(Op::Mov, Reg::R6, Reg::R1);
    asm.load_map_value(Reg::R8, announcements.words.as_fd());
    choose_queue(&mut asm, choice, announcements.queues, drop);
    account(&mut asm, announcements.queues, out, drop);
    announce(&mut asm, bells, announcements.queues, out);
    asm.place(out);
    asm.op_imm(Op::Mov, Reg::R0, TCX_NEXT);
    asm.exit();
    asm.place(drop);
    asm.op_imm(Op::Mov, Reg::R0, TCX_DROP);
    asm.exit();
    asm.finish()
}

/// Leaves the queue in `R7` and in the packet, or goes to `drop`. `R6` is the packet, `R8` the announcements.
fn choose_queue(asm: &mut Asm, choice: &Choice<'_>, queues: usize, drop: Label) {
    let classify = asm.label();
    let set = asm.label();

    asm.load(Width::Word, Reg::R0, Reg::R8, byte_offset(WORD_PRIMING));
    asm.jump_if(Cond::Eq, Reg::R0, 0, classify);
    asm.load(Width::Word, Reg::R7, Reg::R6, SKB_MARK);
    asm.op(Op::Mov, Reg::R0, Reg::R7);
    asm.op_imm(Op::And, Reg::R0, !0xffff);
    asm.jump_if(Cond::Ne, Reg::R0, PRIMING_MARK as i32, drop);
    asm.op_imm(Op::And, Reg::R7, 0xffff);
    asm.op_imm(Op::Mod, Reg::R7, queues as i32);
    asm.jump(set);

    asm.place(classify);
    match choice {
        Choice::One => asm.op_imm(Op::Mov, Reg::R7, 0),
        Choice::InTurn(flows) => choose_queue_of_flow(asm, *flows, queues, set),
        Choice::Steered(steering) => steering.choose_queue(asm, set),
    }

    // The queue is set as a recorded receive queue, from which `skb_tx_hash` subtracts one again.
    asm.place(set);
    asm.op(Op::Mov, Reg::R1, Reg::R7);
    asm.op_imm(Op::Add, Reg::R1, 1);
    asm.store(Width::Word, Reg::R6, SKB_QUEUE_MAPPING, Reg::R1);
}

/// Leaves the queue of the packet's flow in `R7` and goes to `chosen` or on.
fn choose_queue_of_flow(asm: &mut Asm, flows: BorrowedFd<'_>, queues: usize, chosen: Label) {
    let new_flow = asm.label();
    let picked = asm.label();
    let queues = queues as i32;

    // The hash of a local connected socket is the socket's own; anything else is dissected.
    asm.op(Op::Mov, Reg::R1, Reg::R6);
    asm.call(Helper::GetHashRecalc);
    asm.store(Width::Word, Reg::R10, -4, Reg::R0);
    asm.load_map(Reg::R1, flows);
    asm.op(Op::Mov, Reg::R2, Reg::R10);
    asm.op_imm(Op::Add, Reg::R2, -4);
    asm.call(Helper::MapLookup);
    asm.jump_if(Cond::Eq, Reg::R0, 0, new_flow);
    asm.load(Width::Word, Reg::R7, Reg::R0, 0);
    asm.op_imm(Op::Mod, Reg::R7, queues);
    asm.jump(chosen);

    // Each try takes a number of its own, so that no two flows of one lap end up in one queue.
    asm.place(new_flow);
    for _ in 0..QUEUE_TRIES {
        let backlogged = asm.label();
        asm.op_imm(Op::Mov, Reg::R7, 1);
        asm.fetch_add(Reg::R8, byte_offset(WORD_NEXT), Reg::R7);
        asm.op_imm(Op::Mod, Reg::R7, queues);
        word_of_queue(asm, Reg::R1, queues, backlogged);
        asm.load(Width::Word, Reg::R0, Reg::R1, byte_offset(WORD_PENDING + queues as usize));
        asm.jump_if(Cond::Eq, Reg::R0, 0, picked);
        asm.place(backlogged);
    }
    asm.place(picked);
    asm.store(Width::Word, Reg::R10, -8, Reg::R7);
    asm.load_map(Reg::R1, flows);
    asm.op(Op::Mov, Reg::R2, Reg::R10);
    asm.op_imm(Op::Add, Reg::R2, -4);
    asm.op(Op::Mov, Reg::R3, Reg::R10);
    asm.op_imm(Op::Add, Reg::R3, -8);
    asm.op_imm(Op::Mov, Reg::R4, 0);
    asm.call(Helper::MapUpdate);
}

/// Adds the packet to the account of the queue in `R7`, or counts it there and goes to `drop`.
fn account(asm: &mut Asm, queues: usize, beyond: Label, drop: Label) {
    let [is_whole, long, fits, full, held] =
        [asm.label(), asm.label(), asm.label(), asm.label(), asm.label()];
    let word = |word: usize| byte_offset(accounts(queues) + word);
    asm.op(Op::Mov, Reg::R1, Reg::R7);
    asm.op_imm(Op::And, Reg::R1, 0xffff);
    asm.jump_if(Cond::Ge, Reg::R1, queues as i32, beyond);
    asm.op_imm(Op::Lsh, Reg::R1, ACCOUNT_SHIFT);
    asm.op(Op::Add, Reg::R1, Reg::R8);
    // The cost of the packet, as `waiting.rs` counts the frames that it becomes: one for each segment.
    asm.load(Width::Word, Reg::R2, Reg::R6, SKB_GSO_SEGS);
    asm.jump_if(Cond::Ne, Reg::R2, 0, is_whole);
    asm.op_imm(Op::Mov, Reg::R2, 1);
    asm.place(is_whole);
    asm.op_imm(Op::Mul, Reg::R2, waiting::OVERHEAD_BYTES as i32);
    asm.load(Width::Word, Reg::R3, Reg::R6, SKB_WIRE_LEN);
    asm.op(Op::Add, Reg::R2, Reg::R3);
    asm.load(Width::Double, Reg::R4, Reg::R6, SKB_SK);
    asm.jump_if(Cond::Ne, Reg::R4, 0, held);

    asm.load(Width::Word, Reg::R4, Reg::R1, word(ACCOUNT_FORWARDED));
    asm.load(Width::Word, Reg::R5, Reg::R1, word(ACCOUNT_GONE));
    asm.op(Op::Sub, Reg::R4, Reg::R5);
    // Both counters wrap at 2^32.
    asm.op_imm(Op::Lsh, Reg::R4, 32);
    asm.op_imm(Op::Rsh, Reg::R4, 32);
    asm.op(Op::Add, Reg::R4, Reg::R2);
    let bytes_max = waiting::bytes_max(queues);
    asm.jump_if(Cond::Ge, Reg::R3, waiting::SHORT_BYTES as i32 + 1, long);
    asm.jump_if(Cond::Ge, Reg::R4, (bytes_max + waiting::reserve_bytes(queues)) as i32 + 1, full);
    asm.jump(fits);
    asm.place(long);
    asm.jump_if(Cond::Ge, Reg::R4, bytes_max as i32 + 1, full);
    asm.place(fits);
    // The atomic addition leaves the old value in its source register, so that is a copy.
    asm.op(Op::Mov, Reg::R4, Reg::R2);
    asm.fetch_add(Reg::R1, word(ACCOUNT_FORWARDED), Reg::R4);
    asm.place(held);
    asm.fetch_add(Reg::R1, word(ACCOUNT_ALL), Reg::R2);
    let counted = asm.label();
    asm.jump(counted);
    asm.place(full);
    asm.op_imm(Op::Mov, Reg::R2, 1);
    asm.add_double(Reg::R1, word(ACCOUNT_DROPPED), Reg::R2);
    asm.jump(drop);
    asm.place(counted);
}

/// Sets `pending` of the queue in `R7` and kicks its owner, if that is parked.
fn announce(asm: &mut Asm, bells: &[&Bell], queues: usize, out: Label) {
    word_of_queue(asm, Reg::R1, queues as i32, out);
    asm.load(Width::Word, Reg::R0, Reg::R1, byte_offset(WORD_PENDING));
    asm.jump_if(Cond::Ne, Reg::R0, 0, out);
    asm.op_imm(Op::Mov, Reg::R2, 1);
    asm.exchange(Reg::R1, byte_offset(WORD_PENDING), Reg::R2);
    asm.jump_if(Cond::Ne, Reg::R2, 0, out);

    let Some((last, others)) = bells.split_last() else { return };
    asm.op_imm(Op::Mod, Reg::R7, bells.len() as i32);
    for (owner, bell) in others.iter().enumerate() {
        let next = asm.label();
        asm.jump_if(Cond::Ne, Reg::R7, owner as i32, next);
        kick(asm, bell, out);
        asm.jump(out);
        asm.place(next);
    }
    kick(asm, last, out);
}

/// Kicks the worker of a bell, if it is parked.
fn kick(asm: &mut Asm, bell: &Bell, out: Label) {
    asm.load_map_value(Reg::R1, bell.state.as_fd());
    asm.load(Width::Word, Reg::R0, Reg::R1, 0);
    asm.jump_if(Cond::Ne, Reg::R0, PARKED as i32, out);
    asm.op_imm(Op::Mov, Reg::R2, NOTIFIED as i32);
    asm.compare_exchange(Reg::R1, 0, Reg::R2);
    asm.jump_if(Cond::Ne, Reg::R0, PARKED as i32, out);
    asm.store_imm(Width::Double, Reg::R10, -16, 0);
    asm.load_map(Reg::R1, bell.kicks.as_fd());
    asm.op(Op::Mov, Reg::R2, Reg::R10);
    asm.op_imm(Op::Add, Reg::R2, -16);
    asm.op_imm(Op::Mov, Reg::R3, 8);
    asm.op_imm(Op::Mov, Reg::R4, BPF_RB_FORCE_WAKEUP);
    asm.call(Helper::RingbufOutput);
}

/// `register = &words[queue in R7]`, leaving to `beyond` if there is no such queue, which the verifier wants to see.
fn word_of_queue(asm: &mut Asm, register: Reg, queues: i32, beyond: Label) {
    asm.op(Op::Mov, register, Reg::R7);
    asm.op_imm(Op::And, register, 0xffff);
    asm.jump_if(Cond::Ge, register, queues, beyond);
    asm.op_imm(Op::Lsh, register, 2);
    asm.op(Op::Add, register, Reg::R8);
}

fn byte_offset(word: usize) -> i16 {
    i16::try_from(word * 4).expect("the announcements of a device fit an instruction's offset")
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::process::Command;

    use super::*;
    use crate::netns::NetNs;
    use crate::probe::scratch::{ScratchPair, run};
    use crate::sys;

    /// A question for an address has no socket, so it is dropped where too many bytes wait without one.
    #[test]
    fn drops_are_counted_beyond_32_bits_however_rarely_somebody_looks() {
        if !sys::is_root() {
            return;
        }
        let dropped = run(|answer| {
            let pair = ScratchPair::new(c"receiver", &NetNs::current()?)?;
            let announcements = Announcements::new(2).unwrap();
            let program = DoorbellProgram::load(&[&Bell::new().unwrap()], &announcements, None).unwrap();
            for queue in [0, 1] {
                announcements.account(queue, ACCOUNT_FORWARDED).store(64 << 20, Ordering::Relaxed);
                announcements.dropped_of(queue).store(u32::MAX.into(), Ordering::Relaxed);
            }
            program.put_first(pair.sender.ifindex).unwrap();
            let address = ["address", "add", "192.0.2.1/24", "dev", &pair.sender.name];
            assert!(Command::new("ip").args(address).status().unwrap().success());
            let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
            socket.send_to(&[0], "192.0.2.2:9").unwrap();
            answer(announcements.dropped());
            Ok(())
        });
        let dropped = dropped.unwrap();
        let before = 2 * u64::from(u32::MAX);
        assert!((before + 1..before + 100).contains(&dropped), "{dropped}");
    }
}
