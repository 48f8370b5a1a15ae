//! The messages to a service manager: that the service is up, that it is alive, that it ends.
//!
//! Rule: nothing is told where nobody asks (`NOTIFY_SOCKET`), and the socket is found before rights are given up. The watchdog is fed at
//! half of the time that it allows, by the caller, who has seen that the workers answer. A message for which the manager has no room is sent
//! again soon.
//!
//! Source: sd_notify(3), systemd.service(5) `WatchdogSec=`. Limits: no descriptors are passed, and no status line is kept.

use std::cell::Cell;
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use weir_run::clock::now_ns;

const LOOK_AGAIN_NS: u64 = 20_000_000;

/// The way to the service manager, if there is one.
pub struct Notify {
    socket: Option<UnixDatagram>,
    /// The time between two signs of life to the watchdog, in nanoseconds.
    pause_ns: Option<u64>,
    /// The time when the next message is due.
    due_ns: Cell<Option<u64>>,
    /// True while the manager has not been told that the service is up, which it is.
    owes_ready: Cell<bool>,
}

impl Notify {
    /// The way that the environment names.
    pub fn from_environment() -> Notify {
        let socket = std::env::var("NOTIFY_SOCKET").ok().and_then(|path| connect(&path));
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let allowed = number("WATCHDOG_USEC").filter(|usec| is_ours && socket.is_some() && *usec > 0);
        let pause_ns = allowed.map(|usec| usec.saturating_mul(1000) / 2);
        Notify { socket, pause_ns, due_ns: Cell::new(None), owes_ready: Cell::new(false) }
    }

    /// The service is up.
    pub fn ready(&self) {
        self.owes_ready.set(true);
        self.alive();
    }

    /// The service ends.
    pub fn ended(&self) {
        self.tell("STOPPING=1");
    }

    /// Returns whether there is something to tell now.
    pub fn is_due(&self) -> bool {
        self.due_ns.get().is_some_and(|due_ns| now_ns() >= due_ns)
    }

    /// Tells what is due, and feeds the watchdog.
    pub fn alive(&self) {
        self.owes_ready.set(self.owes_ready.get() && !self.tell("READY=1"));
        let is_told = !self.owes_ready.get() && (self.pause_ns.is_none() || self.tell("WATCHDOG=1"));
        let pause_ns = if is_told { self.pause_ns } else { Some(LOOK_AGAIN_NS) };
        self.due_ns.set(pause_ns.map(|pause_ns| now_ns().saturating_add(pause_ns)));
    }

    /// The time until there is something to tell; for ever if none.
    pub fn pause(&self) -> Option<Duration> {
        let left_ns = self.due_ns.get()?.saturating_sub(now_ns());
        // Where the workers did not answer, they are asked again soon.
        Some(Duration::from_nanos(left_ns.max(LOOK_AGAIN_NS)))
    }

    /// Sends a message; false if the manager has no room for it now. One that does not listen has its own problem.
    fn tell(&self, what: &str) -> bool {
        let sent = self.socket.as_ref().map(|socket| socket.send(what.as_bytes()));
        !matches!(sent, Some(Err(error)) if error.kind() == ErrorKind::WouldBlock)
    }
}

/// A path, or with an `@` in front a name in the abstract namespace.
fn connect(path: &str) -> Option<UnixDatagram> {
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name).ok()?,
        None => SocketAddr::from_pathname(path).ok()?,
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect_addr(&address).ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}
