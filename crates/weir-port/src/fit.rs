//! Whether an interface can be a port: by its kind, its other end, its MTU and queues, and by who else has it.
//!
//! Rule: a check changes nothing. An interface that somebody else is about to let go of is waited for, a second at most; the care of a
//! topology's ports, which others wait for, looks once ([`check_now`]).
//!
//! Owner: none, these are looks. Limits: an interface may change after the look.

use std::time::Duration;

use crate::bpf::doorbell::QUEUES_MAX;
use crate::error::{PortError, Result};
use crate::hold::ends;
use crate::holder;
use crate::link::Link;
use crate::netns::NetNs;
use crate::port::MTU_BYTES_MAX;

/// Returns whether an interface cannot be a port as it and its other end are: by its kind, its MTU, its queues, a
/// bridge that it is in, or as one of them is down.
pub fn is_unfit(link: &Link) -> bool {
    let checked = link.peer().and_then(|(_, sender)| check_fit(link, &sender));
    matches!(checked, Err(PortError::Unsuitable { .. } | PortError::Down { .. }))
}

/// Checks that an interface can be a port, and that nobody else has it.
pub(crate) fn check_suitable(link: &Link, sender: &Link) -> Result<()> {
    check_fit(link, sender)?;
    check_program(link, LOOKS_HELD, LOOKS_LEFT)
}

/// Checks by one look that nobody is letting go of an interface of this thread's namespace: for who must not wait, and looks again later.
///
/// # Errors
/// If somebody is, or has an XDP program there, a sentence that names it.
pub fn check_now(link: &Link) -> Result<()> {
    check_program(link, 1, 1)?;
    let netns = NetNs::current()?;
    ends::check_now(&netns, link)?;
    let (sender_netns, sender) = link.peer()?;
    ends::check_shared_now([(&netns, link), (&sender_netns, &sender)])
}

/// Checks that an interface has no XDP program, or loses it while it is looked at so often: one that a process holds, or one that none does.
fn check_program(link: &Link, looks_held: u32, looks_left: u32) -> Result<()> {
    let Some(program) = link.xdp_program else { return Ok(()) };
    let holder = holder::of_program(program);
    if goes(link, program, if holder.is_some() { looks_held } else { looks_left }) {
        return Ok(());
    }
    let why = match holder {
        Some(process) => format!("is in use by {process}, whose XDP program it has: stop that first"),
        None => format!(
            "has XDP program {program}, which no process holds: `ip link set {} xdp off` takes it off",
            link.name
        ),
    };
    Err(PortError::Unsuitable { name: link.name.clone(), why })
}

/// Checks that an interface can be a port as it and its other end are.
///
/// # Errors
/// If it cannot be one, why and what to do.
pub fn check_fit(link: &Link, sender: &Link) -> Result<()> {
    let refuse = |why: String| Err(PortError::Unsuitable { name: link.name.clone(), why });
    if link.master.is_some() {
        return refuse(format!(
            "belongs to a bridge or bond, which would not see its packets: `ip link set {} nomaster` first",
            link.name
        ));
    }
    for end in [link, sender] {
        let other = if std::ptr::eq(end, sender) {
            format!("has another end, {}, which ", end.name)
        } else {
            String::new()
        };
        if !end.up {
            let why = format!("{other}is down: `ip link set {} up` in its namespace", end.name);
            return Err(PortError::Down { name: link.name.clone(), why });
        }
        if end.mtu_bytes > MTU_BYTES_MAX {
            return refuse(format!(
                "{other}has an MTU of {1}, and Weir carries packets of {MTU_BYTES_MAX} bytes at most: `ip link set {0} mtu \
                 {MTU_BYTES_MAX}` or less, in its namespace",
                end.name, end.mtu_bytes
            ));
        }
    }
    if sender.tx_queues != link.rx_queues {
        return refuse(format!(
            "receives on {} queues while {} sends on {}: make them the same with `ethtool -L`",
            link.rx_queues, sender.name, sender.tx_queues
        ));
    }
    if link.rx_queues > QUEUES_MAX {
        return refuse(format!(
            "receives on {} queues, and Weir serves {QUEUES_MAX} at most: give both ends fewer with `ethtool -L`",
            link.rx_queues
        ));
    }
    Ok(())
}

/// The looks for an XDP program that no process holds: the kernel takes that of a killed process off after the process has ended.
const LOOKS_LEFT: u32 = 100;
/// The looks for one that a process holds: a child that was being started has it until it runs its own program.
const LOOKS_HELD: u32 = 10;

/// Returns whether an interface loses this XDP program by itself while it is looked at so often.
fn goes(link: &Link, program: u32, looks: u32) -> bool {
    const LOOK_AGAIN: Duration = Duration::from_millis(10);
    (0..looks).any(|look| {
        if look > 0 {
            std::thread::sleep(LOOK_AGAIN);
        }
        Link::by_index(link.ifindex).is_ok_and(|now| now.xdp_program != Some(program))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_with_more_queues_than_the_doorbell_reaches_is_refused() {
        let end = |queues| {
            let lo = Link::by_name("lo").unwrap();
            Link { up: true, mtu_bytes: 1500, rx_queues: queues, tx_queues: queues, ..lo }
        };
        let told = |queues| check_fit(&end(queues), &end(queues)).map_err(|error| error.to_string());
        assert_eq!(told(4072), Ok(()));
        let why = told(4073).unwrap_err();
        assert!(why.contains("receives on 4073 queues, and Weir serves 4072 at most"), "{why}");
    }
}
