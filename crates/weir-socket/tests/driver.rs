//! A stack that its application drives.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use weir_run::clock::now_ns;
use weir_socket::{Driver, Stack, TcpListener, TcpStream, UdpSocket};

const SERVER: &str = "192.0.2.2:7";
const PATIENCE: Duration = Duration::from_secs(30);

fn pair() -> (Stack, Stack) {
    Stack::pair("192.0.2.1/24", "192.0.2.2/24").unwrap()
}

/// Sends back all datagrams, until `is_over`.
fn echo(driver: &mut Driver, socket: &UdpSocket, is_over: &AtomicBool) -> io::Result<u64> {
    let mut batch = socket.datagrams(32);
    let mut echoed = 0;
    socket.set_nonblocking(true);
    while !is_over.load(Ordering::Relaxed) {
        let mut has_moved = driver.turn()?;
        match socket.recv_batch(&mut batch) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            received => {
                received?;
                has_moved = true;
            }
        }
        echoed += driver.send_all(socket, &mut batch)? as u64;
        if !has_moved {
            driver.rest(|| socket.is_readable() || is_over.load(Ordering::Relaxed))?;
        }
    }
    Ok(echoed)
}

/// Sends so many requests, and waits for each answer.
fn ask(socket: &UdpSocket, times: u32) {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; 64];
    for number in 0..times {
        socket.send_to(&number.to_le_bytes(), SERVER).unwrap();
        let (len, _) = socket.recv_from(&mut answer).unwrap();
        assert_eq!(answer[..len], number.to_le_bytes());
    }
}

#[test]
fn who_drives_answers_and_gives_the_worker_back() {
    let (left, right) = pair();
    let server = UdpSocket::bind(&right, SERVER).unwrap();
    let client = UdpSocket::bind(&left, "192.0.2.1:0").unwrap();
    let is_over = AtomicBool::new(false);
    let echoed = thread::scope(|scope| {
        let driving = scope.spawn(|| echo(&mut right.drive(0).unwrap(), &server, &is_over));
        ask(&client, 2_000);
        // The driver's turns answer a thread that binds and closes meanwhile.
        for _ in 0..100 {
            drop(UdpSocket::bind(&left, "192.0.2.1:0").unwrap());
        }
        assert!(left.books().unwrap().balances);
        is_over.store(true, Ordering::Relaxed);
        right.ringer(0).published();
        driving.join().unwrap()
    });
    assert_eq!(echoed.unwrap(), 2_000);
    // The stack's own thread goes on with the worker.
    let books = left.books().unwrap();
    assert!(books.balances && books.dropped.total().packets == 0, "{books:?}");
    client.send_to(b"again", SERVER).unwrap();
    assert!(server.wait_readable(Some(PATIENCE)).unwrap());
    left.stop().unwrap();
}

#[test]
fn a_call_that_would_wait_for_its_own_thread_is_refused() {
    let (left, right) = pair();
    let server = UdpSocket::bind(&right, SERVER).unwrap();
    let listener = TcpListener::bind(&right, SERVER).unwrap();
    let driver = right.drive(0).unwrap();
    let kinds = [
        server.recv_from(&mut [0; 8]).map(drop),
        server.wait_readable(Some(PATIENCE)).map(drop),
        UdpSocket::bind(&left, "192.0.2.1:0").map(drop),
        TcpStream::connect(&left, SERVER).map(drop),
        listener.accept().map(drop),
        left.books().map(drop),
        left.stop(),
        left.drive(0).map(drop),
    ];
    for (number, result) in kinds.into_iter().enumerate() {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Deadlock, "call {number}");
    }
    drop(driver);
    assert!(left.books().unwrap().balances);
    left.stop().unwrap();
}

#[test]
fn a_worker_is_driven_by_one_thread_and_ends_with_its_stack() {
    let (left, right) = pair();
    let none = left.drive(1).unwrap_err();
    assert_eq!((none.kind(), none.to_string().contains("1 workers")), (ErrorKind::InvalidInput, true));
    let (drives, is_driven) = channel();
    thread::scope(|scope| {
        let driving = scope.spawn(|| {
            let mut driver = right.drive(0).unwrap();
            drives.send(()).unwrap();
            // The condition never becomes true, but the stack ends.
            let ended = driver.turn_until(|| false).unwrap_err();
            assert_eq!(driver.turn().unwrap_err().kind(), ErrorKind::BrokenPipe);
            ended.kind()
        });
        is_driven.recv().unwrap();
        assert_eq!(left.drive(0).unwrap_err().kind(), ErrorKind::ResourceBusy);
        left.stop().unwrap();
        assert_eq!(driving.join().unwrap(), ErrorKind::BrokenPipe);
    });
    assert_eq!(left.drive(0).unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn the_last_handle_of_a_stack_may_be_its_driver() {
    let (left, right) = pair();
    let mut driver = right.drive(0).unwrap();
    drop((left, right));
    assert!(!driver.turn().unwrap());
    // The drop does not wait for ever, though nobody is left who could ask.
    drop(driver);
}

#[test]
fn a_ring_ends_a_rest_and_none_is_missed() {
    const ROUNDS: u32 = 2_000;
    let (left, right) = pair();
    let (to_driver, from_other) = channel();
    let (to_other, from_driver) = channel();
    thread::scope(|scope| {
        let stack = &right;
        scope.spawn(move || {
            let mut driver = stack.drive(0).unwrap();
            for number in 0..ROUNDS {
                let mut heard = None;
                driver
                    .turn_until(|| {
                        heard = heard.or_else(|| from_other.try_recv().ok());
                        heard.is_some()
                    })
                    .unwrap();
                assert_eq!(heard, Some(number));
                to_other.send(number).unwrap();
            }
        });
        let ringer = left.ringer(0);
        for number in 0..ROUNDS {
            to_driver.send(number).unwrap();
            ringer.published();
            assert_eq!(from_driver.recv_timeout(PATIENCE).unwrap(), number);
        }
    });
}

/// A datagram for the socket of a thread that drives one worker, which comes by the queue of another while the thread sleeps. Timers of the driven
/// worker end a rest twice a second, so all rounds have the time that a few such rests take.
#[test]
fn what_comes_by_another_workers_queue_ends_a_rest() {
    const ROUNDS: u32 = 300;
    let builder = Stack::builder().workers(2);
    let left = builder.clone().address("192.0.2.1/24");
    let (left, right) = Stack::pair_of(left, builder.address("192.0.2.2/24")).unwrap();
    let bucket = (0..right.buckets()).find(|bucket| right.rss().worker(*bucket as u32) == 0).unwrap();
    let server = UdpSocket::bind_bucket_for(&right, SERVER, bucket, &right.ringer(0)).unwrap();
    // A socket of one of the other worker's buckets sends by that worker, and its flow falls into the driven one's bucket.
    let other = (0..left.buckets()).find(|bucket| left.rss().worker(*bucket as u32) == 1).unwrap();
    let bucket_of = |port: u16| right.bucket_of(([192, 0, 2, 1], port).into(), server.local_addr());
    let port = (4000..).find(|port| bucket_of(*port) == bucket).unwrap();
    let client = UdpSocket::bind_bucket(&left, ("192.0.2.1", port), other).unwrap();
    let (heard, hears) = channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut driver = right.drive(0).unwrap();
            heard.send(()).unwrap();
            for _ in 0..ROUNDS {
                if driver.turn_until(|| server.is_readable()).is_err() {
                    return;
                }
                server.recv_from(&mut [0; 8]).unwrap();
                heard.send(()).unwrap();
            }
        });
        let end_ns = now_ns() + PATIENCE.as_nanos() as u64;
        let hear = || hears.recv_timeout(Duration::from_nanos(end_ns.saturating_sub(now_ns())));
        let mut come = hear();
        for _ in 0..ROUNDS {
            client.send_to(b"wake up", SERVER).unwrap();
            come = come.and(hear());
            if come.is_err() {
                break;
            }
        }
        left.stop().unwrap();
        come.expect("the thread is woken");
    });
}
