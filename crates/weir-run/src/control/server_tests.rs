//! Tests of the server: a client at a time, with the other end of its connection in hand.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;

use super::*;

/// A client of the server and the other end of its connection.
fn client(user: u32) -> (Client, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (Client { stream: ours, user, until_ns: now_ns() + PATIENCE_NS, state: asking() }, theirs)
}

fn echo(line: &str, user: u32) -> Result<String, String> {
    if line == "bad" { Err(format!("no, {user}")) } else { Ok(json!(line).to_string()) }
}

fn answer(theirs: UnixStream) -> String {
    let mut line = String::new();
    BufReader::new(theirs).read_line(&mut line).unwrap();
    line
}

#[test]
fn a_request_that_comes_in_pieces_is_answered_once_it_is_whole() {
    let (mut client, mut theirs) = client(1000);
    for piece in ["he", "ll"] {
        theirs.write_all(piece.as_bytes()).unwrap();
        assert!(client.goes_on(&mut echo));
    }
    theirs.write_all(b"o\n").unwrap();
    assert!(!client.goes_on(&mut echo), "that is over");
    assert_eq!(answer(theirs), format!("{{\"version\":{VERSION},\"ok\":\"hello\"}}\n"));
}

#[test]
fn errors_say_why_and_which_version_says_so() {
    let (mut client, mut theirs) = client(7);
    theirs.write_all(b"bad\n").unwrap();
    assert!(!client.goes_on(&mut echo));
    assert_eq!(answer(theirs), format!("{{\"error\":\"no, 7\",\"version\":{VERSION}}}\n"));
}

#[test]
fn one_that_is_silent_or_does_not_read_is_gone_after_its_time() {
    let (mut silent, theirs) = client(1000);
    assert!(silent.goes_on(&mut echo));
    silent.until_ns = now_ns();
    assert!(!silent.goes_on(&mut echo));
    drop(theirs);
    let (mut deaf, mut theirs) = client(1000);
    theirs.write_all(b"much\n").unwrap();
    assert!(deaf.goes_on(&mut |_, _| Ok("1".repeat(10_000_000))), "it has time to read");
    assert!(matches!(deaf.state, State::Answered { written, .. } if written > 0));
    deaf.until_ns = now_ns();
    assert!(!deaf.goes_on(&mut echo));
}

#[test]
fn a_request_without_end_is_refused() {
    let (mut client, mut theirs) = client(1000);
    let writing = std::thread::spawn(move || {
        // The client ends when the other side hangs up.
        while theirs.write_all(&[b'x'; 1000]).is_ok() {}
        theirs
    });
    while client.goes_on(&mut |_, _| panic!("nobody asked")) {
        std::thread::yield_now();
    }
    drop(client);
    assert!(answer(writing.join().unwrap()).contains("4096 bytes at most"));
}

#[test]
fn what_is_no_request_is_answered_so() {
    for text in [&b"\xff\xfe\n"[..], b"\0\n"] {
        let (mut client, mut theirs) = client(1000);
        theirs.write_all(text).unwrap();
        assert!(!client.goes_on(&mut |line, _| Err(format!("not a request: {}", line.len()))));
        assert!(answer(theirs).contains("not a request"));
    }
    let (mut client, theirs) = client(1000);
    drop(theirs);
    assert!(!client.goes_on(&mut |_, _| panic!("nobody asked")), "it has gone");
}

#[test]
fn what_a_client_asked_for_that_lost_patience_is_not_done() {
    let (mut client, mut theirs) = client(0);
    theirs.write_all(b"change\n").unwrap();
    drop(theirs);
    assert!(!client.goes_on(&mut |_, _| panic!("nobody waits for it")));
    let (mut client, mut theirs) = self::client(0);
    theirs.write_all(b"change").unwrap();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(!client.goes_on(&mut echo), "it reads, though it says no more");
    assert_eq!(answer(theirs), format!("{{\"version\":{VERSION},\"ok\":\"change\"}}\n"));
}

/// A responder that has no counters and refuses all changes.
struct Refusing;

impl Responder for Refusing {
    fn noun(&self) -> &'static str {
        "stack"
    }

    fn stat(&self) -> Result<Snapshot, String> {
        Ok(Snapshot::default())
    }

    fn change(&self, _: &Command) -> Result<String, String> {
        Err("it is somebody's".into())
    }
}

#[test]
fn a_socket_that_is_removed_is_made_again_and_anothers_is_left_alone() {
    let path = std::env::temp_dir().join(format!("weir-renewed-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listen = || Control { listener: UnixListener::bind(&path).unwrap(), path: path.clone() };
    let mut control = listen();
    assert!(!control.renew().unwrap(), "it is there");
    let first = FileIdentity::of(&path);
    std::fs::remove_file(&path).unwrap();
    // A user who is not root cannot make the directory of sockets.
    match control.renew() {
        Ok(is_made) => assert!(is_made && is_up(&path) && FileIdentity::of(&path) != first),
        Err(why) => assert!(!sys::is_root(), "{why}"),
    }
    let _ = std::fs::remove_file(&path);
    std::fs::write(&path, "somebody's").unwrap();
    assert!(!control.renew().unwrap(), "it is another's");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn whoever_answers_is_asked_until_the_end() {
    let path = std::env::temp_dir().join(format!("weir-server-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let control = Control { listener, path: path.clone() };
    let end: OwnedFd = sys::eventfd().unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut control = control;
            control.serve(&Refusing, Some(end.as_fd()), None);
        });
        let told = super::super::ask(&path, &Command::Stat).unwrap();
        assert!(Snapshot::of_answer(told).unwrap().is_empty());
        let why = super::super::ask(&path, &Command::Stop).unwrap_err();
        assert!(
            why == "it is somebody's" || why == "only root may change a stack: run it with sudo",
            "{why}"
        );
        sys::signal_eventfd(&end);
        serving.join().unwrap();
    });
    assert!(!is_up(&path), "nobody listens any more");
    std::fs::remove_file(&path).unwrap();
}
