//! The system log, for a process that has nobody else to tell.
//!
//! Rule: a logger that is stopped or behind holds nobody up, because the writer has queues to let go.
//!
//! Source: syslog(3) for the form, RFC 3164; `/dev/kmsg` where no logger runs, or where its queue is full.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Facility daemon, severity warning.
const PRIORITY: u8 = 3 << 3 | 4;

/// Writes a sentence. Nobody is left to tell if that fails.
pub(super) fn write(sentence: &str) {
    let line = format!("<{PRIORITY}>weir-guardian[{}]: {sentence}", std::process::id());
    if send(Path::new("/dev/log"), line.as_bytes()).is_err()
        && let Ok(mut kernel) = OpenOptions::new().write(true).open("/dev/kmsg")
    {
        let _ = kernel.write_all(line.as_bytes());
    }
}

/// Sends a line to the logger at a socket, unless its queue is full.
fn send(logger: &Path, line: &[u8]) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to(line, logger).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_logger_that_reads_nothing_holds_nobody_up() {
        let path = std::env::temp_dir().join(format!("weir-log-{}", std::process::id()));
        let _logger = UnixDatagram::bind(&path).unwrap();
        let (done, ended) = channel();
        let logger = path.clone();
        // The queue of a datagram socket is bounded, so it is full some time.
        thread::spawn(move || done.send((0..1 << 20).find_map(|_| send(&logger, b"a line").err())));
        let fault = ended.recv_timeout(Duration::from_secs(30));
        std::fs::remove_file(&path).unwrap();
        let fault = fault.expect("it waits for the logger").expect("the queue is full some time");
        assert_eq!(fault.kind(), io::ErrorKind::WouldBlock);
    }
}
