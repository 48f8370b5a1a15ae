//! The system log, for a process that has nobody else to tell.
//!
//! Source: syslog(3) for the form, RFC 3164; `/dev/kmsg` where no logger runs.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::net::UnixDatagram;

/// Facility daemon, severity warning.
const PRIORITY: u8 = 3 << 3 | 4;

/// Writes a sentence. Nobody is left to tell if that fails.
pub(super) fn write(sentence: &str) {
    let line = format!("<{PRIORITY}>weir-guardian[{}]: {sentence}", std::process::id());
    let logger = UnixDatagram::unbound();
    let logged = logger.and_then(|socket| socket.send_to(line.as_bytes(), "/dev/log"));
    if logged.is_err()
        && let Ok(mut kernel) = OpenOptions::new().write(true).open("/dev/kmsg")
    {
        let _ = kernel.write_all(line.as_bytes());
    }
}
