//! Receive packet steering at the other end of a pair, which keeps the packets of a flow in order.
//!
//! The queue of an interface is run by whichever processor comes: the sender's, or that of a timer. What it passes to the other end of a
//! pair waits there in a list of that processor, so two packets of a flow may be in two lists. With steering on, the flow's
//! hash says the processor instead.
//!
//! Rule: where somebody has set it, it stays as it is. What is changed is returned, to be put back.
//!
//! Limits: of a pair that is behind another device, such as a bridge, [`super::behind`] knows. A network card, a tun and a tap have no
//! other end here.
//!
//! Source: kernel `Documentation/networking/scaling.rst`, `net/core/net-sysfs.c`. A view of sysfs shows the interfaces of the
//! namespace it was mounted from, so this one is made anew and mounted nowhere (`fsopen(2)`, Linux 5.2).

use std::ffi::{CStr, c_long};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use crate::error::{Doing, Result};
use crate::sys;

const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The steering of the receive queues of one interface.
pub struct ReceiveSteering {
    /// Keeps `folder` in being.
    _view: OwnedFd,
    folder: PathBuf,
    name: String,
}

impl ReceiveSteering {
    /// Of interface `name` of this thread's namespace.
    pub fn of(name: &str) -> Result<ReceiveSteering> {
        let view = view_of_sysfs().doing(|| "looking at the sysfs of a network namespace".into())?;
        let folder =
            PathBuf::from(format!("/proc/thread-self/fd/{}/class/net/{name}/queues", view.as_raw_fd()));
        Ok(ReceiveSteering { _view: view, folder, name: name.into() })
    }

    /// The mask of each receive queue, in order.
    pub fn masks(&self) -> Result<Vec<String>> {
        let read = |queue: usize| fs::read_to_string(self.file(queue)).ok();
        Ok((0..).map_while(read).map(|mask| mask.trim().to_string()).collect())
    }

    /// Steers by every processor, unless there is one only or somebody has set it.
    pub fn spread(&self) -> Result<()> {
        if !self.is_off()? {
            return Ok(());
        }
        self.set(&vec![every_processor()?; self.masks()?.len()])
    }

    /// Whether nobody has set it, where it makes a difference: not with one processor.
    pub fn is_off(&self) -> Result<bool> {
        let is_one = digits(&every_processor()?) == "1";
        Ok(!is_one && self.masks()?.iter().all(|mask| is_none(mask)))
    }

    /// Switches it off, if it is as [`ReceiveSteering::spread`] sets it.
    pub fn switch_off(&self) -> Result<()> {
        let queues = self.masks()?.len();
        if self.is_spread()? { self.set(&vec!["0".into(); queues]) } else { Ok(()) }
    }

    /// Whether it is as [`ReceiveSteering::spread`] sets it.
    pub fn is_spread(&self) -> Result<bool> {
        let mask = every_processor()?;
        Ok(self.masks()?.iter().all(|queue| digits(queue) == digits(&mask)))
    }

    /// Sets the mask of each receive queue; queues that are gone are left out, as is what is no mask.
    pub fn set(&self, masks: &[String]) -> Result<()> {
        for (queue, mask) in masks.iter().enumerate() {
            let is_mask = mask.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b',');
            let file = self.file(queue);
            if is_mask && file.exists() {
                fs::write(&file, mask)
                    .doing(|| format!("setting receive steering of {} queue {queue} to {mask}", self.name))?;
            }
        }
        Ok(())
    }

    fn file(&self, queue: usize) -> PathBuf {
        self.folder.join(format!("rx-{queue}/rps_cpus"))
    }
}

/// Whether a mask names no processor, so that nothing is steered.
pub fn is_none(mask: &str) -> bool {
    digits(mask).is_empty()
}

/// The digits of a mask, from the first that is not 0; none where it is off.
fn digits(mask: &str) -> String {
    mask.chars().filter(|c| *c != ',').skip_while(|c| *c == '0').collect()
}

fn every_processor() -> Result<String> {
    let online = fs::read_to_string(ONLINE).doing(|| format!("reading {ONLINE}"))?;
    Ok(mask_of(online.trim()))
}

/// The mask of a list such as `0-3,8`, in groups of 32 bits.
fn mask_of(list: &str) -> String {
    let mut groups = vec![0u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        for cpu in first..=last.min(first + 8191) {
            if groups.len() <= cpu / 32 {
                groups.resize(cpu / 32 + 1, 0);
            }
            groups[cpu / 32] |= 1 << (cpu % 32);
        }
    }
    let groups: Vec<_> = groups.iter().rev().map(|group| format!("{group:08x}")).collect();
    groups.join(",")
}

fn view_of_sysfs() -> io::Result<OwnedFd> {
    const FSOPEN_CLOEXEC: c_long = 1;
    const FSCONFIG_CMD_CREATE: c_long = 6;
    const FSMOUNT_CLOEXEC: c_long = 1;
    const SYSFS: &CStr = c"sysfs";
    let as_fd = |result: c_long| sys::check_fd(result as i32);
    // SAFETY: the name is a terminated string that outlives the call.
    let context = as_fd(unsafe { libc::syscall(libc::SYS_fsopen, SYSFS.as_ptr(), FSOPEN_CLOEXEC) })?;
    let context_fd = c_long::from(context.as_raw_fd());
    // SAFETY: this command takes no key and no value; the descriptor is open.
    sys::check(unsafe { libc::syscall(libc::SYS_fsconfig, context_fd, FSCONFIG_CMD_CREATE, 0, 0, 0) } as i32)?;
    // SAFETY: takes no pointers; the descriptor is open.
    as_fd(unsafe { libc::syscall(libc::SYS_fsmount, context_fd, FSMOUNT_CLOEXEC, 0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_names_each_processor() {
        for (list, mask) in [
            ("0", "00000001"),
            ("0-1", "00000003"),
            ("0-3,8", "0000010f"),
            ("0-31,33", "00000002,ffffffff"),
            ("", "00000000"),
        ] {
            assert_eq!(mask_of(list), mask, "{list}");
        }
    }

    #[test]
    fn off_is_nothing_but_zeros() {
        assert!(digits("0").is_empty() && digits("00000000,00000000").is_empty());
        assert_eq!(digits("00000000,00000103"), "103");
    }
}
