//! The answering side of the control socket: one thread that serves all clients at once, for a [`Responder`]: a datapath, or a stack in the
//! process of an application.
//!
//! Rule: nobody is waited for. Each client has [`PATIENCE_NS`] to ask and as long again to read the answer, so one that is slow or
//! silent holds nobody up and is gone after that; one that is too much ([`super::admission`]) is told so and let go at once.
//! A request of a client that has hung up is not carried out. A request is bounded in size; packets never wait for any of this.
//!
//! A socket that somebody has removed, alone or with its directory, can be made again: without it nobody could ask, change or end what is up
//! but by a signal. A file that another process has put in its place stays.
//!
//! Owner: the thread that calls [`Control::serve`]. Source: unix(7).

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use weir_port::lock::Lock;
use weir_port::netns::NetNs;
use weir_port::undo::{FileIdentity, Keeper, Undo};
use weir_port::{directory, sys};

use super::admission::{ROOT, Recent, admits, allows};
use super::{Command, DIRECTORY, FILE_BYTES_MAX, VERSION, free_name, is_up};
use crate::clock::now_ns;
use crate::stats::Snapshot;

/// The longest time that a client may take to ask, and to read the answer, in nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;
/// The time between two looks whether the socket is still there, in nanoseconds.
const LOOK_NS: u64 = 2_000_000_000;
/// The most clients that are taken in at a time.
const ACCEPTED_MAX: usize = 64;
/// Enough for a classes file of [`FILE_BYTES_MAX`] with every byte escaped.
const REQUEST_BYTES_MAX: usize = (6 * FILE_BYTES_MAX + 64 * 1024) as usize;
/// Enough for every request that others than root may make.
const REQUEST_BYTES_MAX_OTHERS: usize = 4096;
/// Everybody may connect; the user decides what may be asked.
const SOCKET_MODE: u32 = 0o666;

/// A datapath or stack that answers at a control socket.
pub trait Responder {
    /// The noun for it in a sentence: `wire`.
    fn noun(&self) -> &'static str;

    /// Copies of its counters.
    ///
    /// # Errors
    /// Why there are none, in a sentence.
    fn stat(&self) -> Result<Snapshot, String>;

    /// Performs a command that root alone may give. Returns the answer, as JSON.
    ///
    /// # Errors
    /// Why not, in a sentence.
    fn change(&self, command: &Command) -> Result<String, String>;
}

/// The listening socket of a wire.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// The path of a wire's socket.
    pub fn path_of(name: &str) -> PathBuf {
        Path::new(DIRECTORY).join(format!("{name}.sock"))
    }

    /// The path of the socket of a process that waits until it can run a wire of this name.
    pub fn waiting_path_of(name: &str) -> PathBuf {
        Path::new(DIRECTORY).join(format!("{name}.waiting"))
    }

    /// Listens for a wire called `name`.
    ///
    /// # Errors
    /// If a running wire has that name already; the caller says how another one is given.
    pub fn listen(name: &str) -> io::Result<Control> {
        Control::listen_at(Control::path_of(name), || {
            io::Error::new(ErrorKind::AddrInUse, format!("{name} is up already, as `weir stat {name}` shows"))
        })
    }

    /// Listens for a process that waits until it can run a wire called `name`.
    ///
    /// # Errors
    /// If another process does.
    pub fn listen_waiting(name: &str) -> io::Result<Control> {
        Control::listen_at(Control::waiting_path_of(name), || {
            io::Error::new(
                ErrorKind::AddrInUse,
                format!(
                    "another one waits for the interfaces of {name}, or is just being started: `weir down {name}` ends it"
                ),
            )
        })
    }

    fn listen_at(path: PathBuf, in_use: impl Fn() -> io::Error) -> io::Result<Control> {
        directory::make(Path::new(DIRECTORY))?;
        if is_served(&path) {
            return Err(in_use());
        }
        // Until it listens, nobody else takes the socket for one that was left.
        let _lock = Lock::take().map_err(io::Error::other)?;
        if is_up(&path) {
            // Somebody was faster.
            return Err(in_use());
        }
        // Nobody answers: it was left behind by a crash.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        // The umask may have taken bits away.
        std::fs::set_permissions(&path, PermissionsExt::from_mode(SOCKET_MODE))?;
        Ok(Control { listener, path })
    }

    /// Listens under a name that is free ([`free_name`]).
    ///
    /// # Errors
    /// If there is no listening.
    pub fn listen_from(first: &str, is_used: impl Fn(&str) -> bool) -> io::Result<Control> {
        loop {
            let name = free_name(first, &is_used)?;
            match Control::listen(&name) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                listening => return listening,
            }
        }
    }

    /// The name that it listens under.
    pub fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has `keeper` remove the socket at the end, however that comes.
    ///
    /// # Errors
    /// If it cannot; then the socket is removed at once, as nobody else would.
    pub fn entrust(&self, keeper: &mut dyn Keeper) -> weir_port::Result<()> {
        let Some(identity) = FileIdentity::of(&self.path) else { return Ok(()) };
        let undo = Undo::File { path: self.path.clone(), identity };
        NetNs::current().and_then(|here| keeper.record(&here, undo, None)).inspect_err(|_| {
            // The failure that is told is the first.
            let _ = std::fs::remove_file(&self.path);
        })
    }

    /// Answers requests until `end` is readable; without one for as long as the process lives. Every two seconds `look` may look after the
    /// socket itself ([`Control::renew`]).
    pub fn serve(
        &mut self,
        responder: &dyn Responder,
        end: Option<BorrowedFd<'_>>,
        mut look: Option<&mut dyn FnMut(&mut Control)>,
    ) {
        let mut recent = Recent::default();
        let mut clients = Vec::new();
        let mut look_ns = look.is_some().then(|| now_ns() + LOOK_NS);
        while !self.wait(&clients, end, look_ns) {
            if let (Some(look), Some(look_ns)) = (&mut look, &mut look_ns)
                && now_ns() >= *look_ns
            {
                look(self);
                *look_ns = now_ns() + LOOK_NS;
            }
            // Who come and go without a pause keep nobody waiting who was taken in.
            for _ in 0..ACCEPTED_MAX {
                let stream = match self.listener.accept() {
                    Ok((stream, _)) => stream,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => {
                        // No descriptor or no memory: whoever cannot be taken in would end every wait at once.
                        std::thread::sleep(Duration::from_millis(10));
                        break;
                    }
                };
                let user = sys::peer_user(stream.as_fd()).unwrap_or(u32::MAX);
                let is_admitted = admits(clients.iter().map(|client: &Client| client.user), user);
                if stream.set_nonblocking(true).is_err() {
                    continue;
                }
                let mut client = Client { stream, user, until_ns: now_ns() + PATIENCE_NS, state: asking() };
                if is_admitted {
                    clients.push(client);
                } else {
                    client.reply(&Err("too many ask at once: ask again in a moment".into()));
                    // A client that does not read has its own problem.
                    let _ = client.write();
                }
            }
            clients.retain_mut(|client| {
                client.goes_on(&mut |line, user| perform(line, user, responder, &mut recent))
            });
        }
    }

    /// Makes the socket again if it is not there any more. Returns whether it did.
    ///
    /// # Errors
    /// If it cannot; then it is not there.
    pub fn renew(&mut self) -> io::Result<bool> {
        let look = std::fs::symlink_metadata(&self.path);
        if !look.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Ok(false);
        }
        *self = Control::listen_at(self.path.clone(), || io::Error::from(ErrorKind::AddrInUse))?;
        Ok(true)
    }

    /// Waits until a client comes, asks, can be answered, or has taken too long, or it is time to look. Returns whether to end.
    fn wait(&self, clients: &[Client], end: Option<BorrowedFd<'_>>, look_ns: Option<u64>) -> bool {
        // poll(2) passes over a descriptor below 0.
        let end = end.map_or(-1, |end| end.as_raw_fd());
        let mut fds = vec![sys::poll_in(self.listener.as_raw_fd()), sys::poll_in(end)];
        fds.extend(clients.iter().map(Client::waits_for));
        let first_ns = clients.iter().map(|client| client.until_ns).chain(look_ns).min();
        let timeout_ns = first_ns.map(|until_ns| until_ns.saturating_sub(now_ns()) + 1);
        if sys::poll(&mut fds, timeout_ns).is_err() {
            // No memory: it may come back.
            std::thread::sleep(Duration::from_millis(10));
        }
        fds[1].revents != 0
    }
}

enum State {
    Asking(Vec<u8>),
    Answered { answer: Vec<u8>, written: usize },
}

fn asking() -> State {
    State::Asking(Vec::new())
}

struct Client {
    stream: UnixStream,
    user: u32,
    until_ns: u64,
    state: State,
}

/// The function that answers one request of a user.
type Perform<'a> = dyn FnMut(&str, u32) -> Result<String, String> + 'a;

impl Client {
    fn waits_for(&self) -> libc::pollfd {
        let events = match self.state {
            State::Asking(_) => libc::POLLIN,
            State::Answered { .. } => libc::POLLOUT,
        };
        libc::pollfd { fd: self.stream.as_raw_fd(), events, revents: 0 }
    }

    /// Reads the request, answers it, and sends the answer as far as the client reads it. Returns false when that is over.
    fn goes_on(&mut self, perform: &mut Perform<'_>) -> bool {
        let result = match self.state {
            State::Asking(_) => self.read(perform),
            State::Answered { .. } => self.write(),
        };
        match result {
            Err(error) if error.kind() == ErrorKind::WouldBlock => now_ns() < self.until_ns,
            Err(error) if error.kind() == ErrorKind::Interrupted => true,
            // The client broke off, or has the whole answer.
            _ => false,
        }
    }

    fn read(&mut self, perform: &mut Perform<'_>) -> io::Result<()> {
        let State::Asking(request) = &mut self.state else { return Ok(()) };
        let bytes_max = if self.user == ROOT { REQUEST_BYTES_MAX } else { REQUEST_BYTES_MAX_OTHERS };
        let mut piece = [0; 16 * 1024];
        loop {
            let count = self.stream.read(&mut piece)?;
            let piece = &piece[..count];
            let end = piece.iter().position(|byte| *byte == b'\n');
            request.extend_from_slice(&piece[..end.unwrap_or(count)]);
            if request.len() > bytes_max {
                self.reply(&Err(format!("a request is {bytes_max} bytes at most")));
                return self.write();
            }
            if end.is_some() || count == 0 {
                break;
            }
        }
        if request.is_empty() || has_hung_up(&self.stream)? {
            return Ok(());
        }
        let answer = match std::str::from_utf8(request) {
            Ok(line) => perform(line, self.user),
            Err(_) => Err("not a request: it is not text in UTF-8".into()),
        };
        self.reply(&answer);
        self.write()
    }

    fn reply(&mut self, answer: &Result<String, String>) {
        let answer = match answer {
            Ok(value) => format!("{{\"version\":{VERSION},\"ok\":{value}}}\n"),
            Err(error) => format!("{}\n", json!({ "version": VERSION, "error": error })),
        };
        self.until_ns = now_ns() + PATIENCE_NS;
        self.state = State::Answered { answer: answer.into_bytes(), written: 0 };
    }

    fn write(&mut self) -> io::Result<()> {
        let State::Answered { answer, written } = &mut self.state else { return Ok(()) };
        while *written < answer.len() {
            *written += self.stream.write(&answer[*written..])?;
        }
        Ok(())
    }
}

/// Returns whether the client waits for no answer any more: it has ended, or has told its user that there is none.
fn has_hung_up(stream: &UnixStream) -> io::Result<bool> {
    let mut fds = [libc::pollfd { fd: stream.as_raw_fd(), events: 0, revents: 0 }];
    sys::poll(&mut fds, Some(0))?;
    Ok(fds[0].revents & libc::POLLHUP != 0)
}

/// The answer to one request, as JSON.
fn perform(line: &str, user: u32, responder: &dyn Responder, recent: &mut Recent) -> Result<String, String> {
    let command: Command = serde_json::from_str(line).map_err(|error| format!("not a request: {error}"))?;
    if !allows(&command, user) {
        let noun = responder.noun();
        return Err(match command {
            // Addresses, keys' places and policies stand in it.
            Command::Show => {
                format!("only root may see the file of a {noun}, or change it: run it with sudo")
            }
            _ => format!("only root may change a {noun}: run it with sudo"),
        });
    }
    match command {
        Command::Stat => recent.tell(user, now_ns(), || {
            serde_json::to_string(&responder.stat()?).map_err(|error| error.to_string())
        }),
        change => responder.change(&change),
    }
}

/// Returns whether a wire listens there. A wire that was just killed still seems to, until the kernel has taken its sockets apart; it gets
/// some time to answer or to be gone: two seconds.
pub fn is_served(path: &Path) -> bool {
    const LOOKS: u32 = 40;
    const BETWEEN: Duration = Duration::from_millis(50);
    for _ in 0..LOOKS {
        let mut stream = match sys::connect_unix(path, BETWEEN.as_nanos() as u64) {
            Ok(stream) => stream,
            // It has more clients than it takes in.
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(_) => return false,
        };
        let answers = stream.set_read_timeout(Some(BETWEEN)).is_ok()
            && writeln!(stream, "{}", json!(Command::Stat)).is_ok()
            && stream.read(&mut [0]).is_ok_and(|count| count > 0);
        if answers {
            return true;
        }
    }
    true
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
