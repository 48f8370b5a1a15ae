//! Whole ends of pairs, and names of limits, held for the length of a command that changes or gives them; and the command that has one.
//!
//! Rule: a command has no guardian, so the file of its hold is there while it runs, and of use to nobody afterwards.

use super::{Hold, Owner, Thing, left, locker_of};
use crate::error::{PortError, Result};
use crate::link::Link;
use crate::lock::{Lock, holds};
use crate::netns::NetNs;

/// Ends that are held by this process alone, until dropped.
pub struct Ends {
    _holds: Vec<Hold>,
}

/// Holds whole ends, and the names that limits there are to have, for the length of a command: nobody else starts on the ends meanwhile, or
/// gives another limit such a name.
///
/// # Errors
/// If a wire, a generator or a sink has one of them, a sentence that names it.
pub fn hold(ends: &[(&NetNs, &Link)], names: &[&str], say: &mut dyn FnMut(&str)) -> Result<Ends> {
    let owner = Owner::this(None);
    let here = NetNs::current()?;
    let mut things: Vec<Thing> = names.iter().map(|name| Thing::limit_name(&here, name)).collect();
    for (netns, link) in ends {
        things.extend([Thing::receive(netns, link), Thing::queue(netns, link), Thing::checksum(netns, link)]);
    }
    Ok(Ends { _holds: all_alone(things, &owner, say)? })
}

/// Holds a name that a limit there is to have; `None` if another command has it, which may give it.
pub fn try_name(name: &str) -> Result<Option<Ends>> {
    let thing = Thing::limit_name(&NetNs::current()?, name);
    Ok(Hold::try_alone(&thing, &Owner::this(None))?.map(|hold| Ends { _holds: vec![hold] }))
}

/// The other command that runs and changes this end; `None` if there is none, or its file cannot be read.
pub fn command_at(netns: &NetNs, link: &Link) -> Option<Owner> {
    let owner = Hold::owner_of(&Thing::queue(netns, link))?;
    let is_other_command = owner.guardian.is_none() && owner.pid != std::process::id();
    (is_other_command && owner.lives()).then_some(owner)
}

/// Returns whether a command holds something that it changes, or a weir's changes are being put back.
pub fn is_any_under_way() -> bool {
    left::files()
        .iter()
        .filter_map(|name| Hold::owner_at(&holds().join(name)))
        .any(|owner| owner.is_under_way())
}

/// The sentence that somebody carries packets by an interface, and has it; `None` if nobody does who goes on.
pub fn in_use(netns: &NetNs, link: &Link) -> Option<String> {
    let owner = Hold::owner_of(&Thing::receive(netns, link))?;
    let is_others = owner.guardian.is_some() && owner.pid != std::process::id();
    (is_others && owner.lives()).then(|| {
        format!(
            "interface {} is held by process {} (`{}`): end that first",
            link.name, owner.pid, owner.command
        )
    })
}

/// Checks by one look that the receive queues of an interface would not be waited for: that they are not being put back, and no command is at
/// work there.
pub(crate) fn check_now(netns: &NetNs, link: &Link) -> Result<()> {
    let thing = Thing::receive(netns, link);
    let owner = Hold::owner_of(&thing).filter(|owner| !owner.keeps() && locker_of(&thing).is_some());
    owner.map_or(Ok(()), |Owner { pid, command, .. }| {
        let why = format!("process {pid} (`{command}`), which is about to let it go");
        Err(PortError::Busy { name: thing.name, why })
    })
}

const LOCKED: &str = "another weir, which is about to let go of what it holds";

/// Checks by one look that what is changed at these ends together with others would not be waited for: that no command has it alone.
pub(crate) fn check_shared_now(ends: [(&NetNs, &Link); 2]) -> Result<()> {
    // A holder that asks whether it is the last has the lock, and must not take this look for another holder's.
    let lock = Lock::try_take();
    if lock.is_none() && holds().exists() {
        return Err(PortError::Busy { name: ends[0].1.name.clone(), why: LOCKED.into() });
    }
    for (netns, link) in ends {
        for thing in [Thing::queue(netns, link), Thing::checksum(netns, link), Thing::tags(netns, link)] {
            let tried = Hold::try_lock_file(holds().join(&thing.file), libc::LOCK_SH, false);
            // One without a file is nobody's, and what else is in the way shows when it is taken.
            if let Ok(None) = tried {
                let why =
                    Hold::owner_of(&thing).map_or("another weir".into(), |Owner { pid, command, .. }| {
                        format!("process {pid} (`{command}`), which is about to let it go")
                    });
                return Err(PortError::Busy { name: thing.name, why });
            }
        }
    }
    Ok(())
}

/// Takes things for `owner` alone, in one order for all processes, so that two that want the same things do not each get half of them.
pub(crate) fn all_alone(
    mut things: Vec<Thing>,
    owner: &Owner,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Hold>> {
    things.sort_unstable_by(|one, other| one.file.cmp(&other.file));
    things.dedup_by(|one, other| one.file == other.file);
    things.iter().map(|thing| Hold::alone(thing, owner, say)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit;
    use crate::sys;
    use crate::veth::{self, VethEnd};

    #[test]
    fn an_end_that_a_command_has_is_found_so_by_one_look() {
        if !sys::is_root() {
            return;
        }
        // The namespace is this thread's alone, and goes with it.
        let looked = std::thread::spawn(|| {
            let here = NetNs::unshare().unwrap();
            let [near, far] = [c"near", c"far"].map(|name| VethEnd { name, address: None });
            let (near, far) = veth::create(&near, &far, &here, 1).unwrap();
            // Others may have the machine's lock for a moment.
            let look_again = |_| {
                let seen = fit::check_now(&near).map_err(|error| error.to_string());
                let is_locked = seen.as_ref().is_err_and(|why| why.contains(LOCKED));
                if is_locked {
                    sys::poll(&mut [], Some(1_000_000)).unwrap();
                    return None;
                }
                Some(seen)
            };
            let look = || (0..10_000).find_map(look_again).unwrap();
            let before = look();
            let held = hold(&[(&here, &far)], &[], &mut |_| ()).unwrap();
            let meanwhile = look();
            drop(held);
            (before, meanwhile, look())
        });
        let (before, meanwhile, after) = looked.join().unwrap();
        assert_eq!((before, after), (Ok(()), Ok(())));
        assert!(meanwhile.is_err_and(|why| why.contains("far") && why.contains("is about to let it go")));
    }
}
