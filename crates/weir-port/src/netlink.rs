//! One request, one acknowledgement: netlink's errors as sentences, with the kernel's own explanation where it gave one.

use netlink_bindings::traits::NetlinkRequest;
use netlink_socket2::{NetlinkSocket, ReplyError};

use crate::error::{PortError, Result};

/// Sends `request` and waits for its acknowledgement.
pub fn acknowledged<R: NetlinkRequest>(
    socket: &mut NetlinkSocket,
    request: &R,
    doing: impl Fn() -> String,
) -> Result<()> {
    let reply = socket.request(request).map_err(|source| PortError::Kernel { doing: doing(), source });
    reply?.recv_ack().map_err(|error| explained(error, doing()))
}

/// A netlink error as a sentence.
pub fn explained(error: ReplyError, doing: String) -> PortError {
    let code = error.as_io_error().raw_os_error();
    if code == Some(libc::EPERM) {
        return PortError::NotRoot { doing };
    }
    let said =
        error.ext_ack().and_then(|ack| ack.get_msg().ok().map(|text| text.to_string_lossy().into_owned()));
    let doing = said.map_or(doing.clone(), |said| format!("{doing} (the kernel says: {said})"));
    PortError::Kernel { doing, source: error.into() }
}

/// Whether an error is the kernel's `code`.
pub fn is_code(error: &PortError, code: i32) -> bool {
    matches!(error, PortError::Kernel { source, .. } if source.raw_os_error() == Some(code))
}
