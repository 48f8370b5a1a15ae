//! The room for packets that have left limits in place, as commands make it and give it back; they say only what they could not do.

use std::time::Duration;

use weir_port::limit::backlog::{self, PACKETS_MIN};

use crate::{human, output};

/// Makes room for packets that have left limits.
pub fn raise() {
    if let Err(error) = backlog::raise() {
        output::warn(format_args!(
            "packets that have left the limit may be lost while a processor is busy: `sysctl -w \
             net.core.netdev_max_backlog={PACKETS_MIN}` makes room for them, which weir could not: {error}"
        ));
    }
}

/// Puts the room back as it was if no limit is left. Returns whether it did.
pub fn put_back() -> bool {
    backlog::put_back_if_unused().unwrap_or_else(|error| {
        output::warn(format_args!("net.core.netdev_max_backlog may stay raised: {error}"));
        false
    })
}

/// The sentence on room that limits which are gone left behind, and that is there still after a moment; `None` if there is none, or nobody
/// can tell.
pub fn left_for(moment: Duration) -> Option<String> {
    backlog::left().ok()??;
    std::thread::sleep(moment);
    let before = backlog::left().ok()??;
    Some(format!(
        "net.core.netdev_max_backlog is {} for limits, of which there is none any more, and was {} before them: put back by `weir mend`",
        human::count(PACKETS_MIN),
        human::count(before)
    ))
}
