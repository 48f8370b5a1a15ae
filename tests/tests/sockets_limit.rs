//! One limit over the sockets of two workers of a stack on a veth: the kernel's receivers count what comes, in order and at the limit's rate;
//! streams have it too; what was sent before the stack ends still comes.

use std::io::Read;
use std::net::{Shutdown, TcpListener as KernelListener, UdpSocket as KernelSocket};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use weir_lab::clock;
use weir_lab::iperf::overflowed_datagrams;
use weir_socket::{Stack, TcpStream, UdpSocket};
use weir_tests::exchange::{PATIENCE, PAYLOAD_BYTES, byte_at, send_all};
use weir_tests::mixed::widen;
use weir_tests::pair::Pair;
use weir_tests::{harness, privileged, require_timing, weir_binary};

/// The limit, in bits a second.
const RATE: f64 = 100e6;
/// Sockets, of both workers in turn.
const FLOWS: usize = 8;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(datagrams_of_two_workers_have_one_limit).on_two_processors(),
        privileged!(streams_of_two_workers_have_one_limit).on_two_processors(),
        privileged!(streams_have_their_limit_beside_busy_programs).on_two_processors(),
        privileged!(what_both_workers_were_given_leaves_before_the_end).on_two_processors().flooding(),
    ])
}

/// The kernel at the left end, and at the right end a stack of two workers with the limit.
fn hosts() -> Result<(Pair, Stack)> {
    let pair = Pair::new(4)?;
    pair.left.ip("address add 10.99.0.1/24 dev veth0")?;
    let stack = pair.right.enter(|| -> Result<Stack> {
        let stack = Stack::builder().address("10.99.0.2/24").workers(2).rate("100mbit".parse()?);
        Ok(stack.guardian(weir_binary()?).open("veth1")?)
    })??;
    Ok((pair, stack))
}

/// Sockets of the stack, each with a socket of the kernel's that it is connected to.
fn flows(pair: &Pair, stack: &Stack) -> Result<Vec<(UdpSocket, KernelSocket)>> {
    let flow = |_| -> Result<_> {
        let kernels = pair.left.enter(|| KernelSocket::bind("10.99.0.1:0"))??;
        kernels.set_read_timeout(Some(PATIENCE))?;
        widen(&kernels)?;
        let ours = UdpSocket::bind(stack, "10.99.0.2:0")?;
        ours.set_write_timeout(Some(PATIENCE))?;
        ours.connect(kernels.local_addr()?)?;
        Ok((ours, kernels))
    };
    (0..FLOWS).map(flow).collect()
}

/// Sends numbered datagrams.
fn send_numbered(socket: &UdpSocket, datagrams: u32) -> Result<()> {
    let mut payload = [0; PAYLOAD_BYTES];
    for number in 0..datagrams {
        payload[..4].copy_from_slice(&number.to_be_bytes());
        socket.send(&payload)?;
    }
    Ok(())
}

/// Receives so many numbered datagrams, and fails unless each comes, in order; `each` is called for each.
fn receive_numbered(socket: &KernelSocket, datagrams: u32, mut each: impl FnMut()) -> Result<()> {
    let mut payload = [0; PAYLOAD_BYTES];
    for next in 0..datagrams {
        let len = socket.recv(&mut payload).with_context(|| format!("datagram {next}"))?;
        let came = payload.first_chunk().map(|number| u32::from_be_bytes(*number));
        ensure!((len, came) == (PAYLOAD_BYTES, Some(next)), "{came:?} of {len} bytes instead of {next}");
        each();
    }
    Ok(())
}

/// Everything that came, and when what was not the first of it came.
#[derive(Default)]
struct Tally {
    units: usize,
    first_and_last: Option<(Instant, Instant)>,
}

impl Tally {
    /// Counts so many units; the time begins when `warm` have come.
    fn count(&mut self, units: usize, warm: usize) {
        self.units += units;
        if self.units >= warm {
            let now = clock::now();
            let first = self.first_and_last.map_or(now, |(first, _)| first);
            self.first_and_last = Some((first, now));
        }
    }

    fn took(&self) -> Result<Duration> {
        let (first, last) = self.first_and_last.context("nothing came")?;
        Ok(last - first)
    }
}

/// Requires that so many bytes of frames took as long as the limit lets them.
fn require_rate(what: &str, frame_bytes: f64, took: Duration) -> Result<()> {
    let ratio = frame_bytes * 8.0 / RATE / took.as_secs_f64();
    println!("    {what}: {ratio:.4} of the rate");
    require_timing!((0.97..1.03).contains(&ratio), "{what}: {ratio:.4} of the rate");
    Ok(())
}

/// Ends a stack, after a check that nothing was lost in it.
fn require_clean(stack: &Stack) -> Result<()> {
    let start = clock::now();
    while stack.books()?.held.packets > 0 {
        ensure!(start.elapsed() < PATIENCE, "{:?}", stack.books()?);
        thread::yield_now();
    }
    let books = stack.books()?;
    ensure!(books.balances, "{books:?}");
    for (reason, count) in books.dropped.occurred() {
        // Packets of the kernel to groups are for nobody here.
        ensure!(reason.name() == "no-handler", "{} {count:?}", reason.name());
    }
    Ok(stack.stop()?)
}

fn datagrams_of_two_workers_have_one_limit() -> Result<()> {
    const DATAGRAMS: u32 = 4000;
    const WARM: usize = 2000;
    let (pair, stack) = hosts()?;
    let flows = flows(&pair, &stack)?;
    let tally = Mutex::new(Tally::default());
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (ours, kernels) in &flows {
            threads.push(scope.spawn(|| send_numbered(ours, DATAGRAMS)));
            let note = || tally.lock().expect("no panic").count(1, WARM);
            threads.push(scope.spawn(move || receive_numbered(kernels, DATAGRAMS, note)));
        }
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    require_timing!(overflowed_datagrams(&pair.left)? == 0, "the receivers were too slow");
    for (ours, _) in &flows {
        let counts = ours.counts();
        ensure!(counts.throttled > 0 && counts.empty_wakes == 0, "{counts:?}");
    }
    let frames = DATAGRAMS as usize * FLOWS - WARM;
    let took = tally.lock().expect("no panic").took()?;
    require_rate("datagrams", (frames * (PAYLOAD_BYTES + 42)) as f64, took)?;
    drop(flows);
    require_clean(&stack)
}

fn streams_of_two_workers_have_one_limit() -> Result<()> {
    streams_have_one_limit()
}

/// The burst makes up for the time in which a worker waits for a processor.
fn streams_have_their_limit_beside_busy_programs() -> Result<()> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // On a thread of its own, so that the others end if it panics.
        let result = scope.spawn(streams_have_one_limit).join();
        is_over.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|_| bail!("it panicked, see above"))
    })
}

fn streams_have_one_limit() -> Result<()> {
    const LEN: usize = 2 << 20;
    const WARM: usize = 2 << 20;
    let (pair, stack) = hosts()?;
    let listener = pair.left.enter(|| KernelListener::bind("10.99.0.1:7"))??;
    let mut streams = Vec::new();
    let mut of_workers = [0; 2];
    for _ in 0..FLOWS {
        let ours = TcpStream::connect(&stack, "10.99.0.1:7")?;
        ours.set_write_timeout(Some(PATIENCE))?;
        let (kernels, from) = listener.accept()?;
        kernels.set_read_timeout(Some(PATIENCE))?;
        of_workers[stack.rss().worker(stack.bucket_of("10.99.0.1:7".parse()?, from) as u32)] += 1;
        streams.push((ours, kernels));
    }
    ensure!(!of_workers.contains(&0), "one worker has all: {of_workers:?}");
    let tally = Mutex::new(Tally::default());
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (ours, kernels) in &mut streams {
            let tally = &tally;
            threads.push(scope.spawn(|| send_all(&*ours, LEN, || ours.shutdown(Shutdown::Write))));
            threads.push(scope.spawn(move || -> Result<()> {
                let (mut at, mut chunk) = (0, vec![0; 64 << 10]);
                loop {
                    let len = kernels.read(&mut chunk)?;
                    ensure!(chunk[..len].iter().zip(at..).all(|(&byte, at)| byte == byte_at(at)), "at {at}");
                    (at, _) = (at + len, tally.lock().expect("no panic").count(len, WARM));
                    if len == 0 {
                        ensure!(at == LEN, "{at} bytes of {LEN}");
                        return Ok(());
                    }
                }
            }));
        }
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    for (ours, _) in &streams {
        ensure!(ours.counts().throttled > 0 && ours.counts().empty_wakes == 0, "{:?}", ours.counts());
    }
    let took = tally.lock().expect("no panic").took()?;
    // Full segments: of 1514 bytes of a frame 1460 are the stream's.
    require_rate("streams", (FLOWS * LEN - WARM) as f64 * 1514.0 / 1460.0, took)?;
    drop(streams);
    require_clean(&stack)
}

fn what_both_workers_were_given_leaves_before_the_end() -> Result<()> {
    // Fewer than the send buffers and the receivers' buffers take.
    const DATAGRAMS: u32 = 100;
    let (pair, stack) = hosts()?;
    let flows = flows(&pair, &stack)?;
    // What waits for a neighbour's address is not waited for, so each worker asks for it before.
    for (ours, kernels) in &flows {
        send_numbered(ours, 1)?;
        receive_numbered(kernels, 1, || ())?;
    }
    flows.iter().try_for_each(|(ours, _)| send_numbered(ours, DATAGRAMS))?;
    stack.stop()?;
    flows.iter().try_for_each(|(_, kernels)| receive_numbered(kernels, DATAGRAMS, || ()))
}
