//! Receive packet steering at the other end of a pair, which keeps the packets of a flow in order.
//!
//! The queue of an interface is run by any processor: the sender's, or that of a timer. Packets that it passes to the other end of a pair
//! wait there in a list of that processor, so two packets of a flow may be in two lists. With steering on, one processor takes in all, or
//! the flow's hash says which.
//!
//! Rule: steering that somebody has set stays as it is; a receive queue that comes while a limit is there is steered as the others are. As much as one processor can take in goes to one: with more of them each packet
//! costs a call from one to another.
//!
//! Limits: [`super::behind`] finds the pairs behind another device, such as a bridge; `order.rs` moves traffic from one processor to all. A
//! network card, a tun and a tap have no other end here.
//!
//! The kernel leaves out of a mask what `isolcpus=` or `nohz_full=` isolates, and refuses one of which nothing is left. So isolated
//! processors are not chosen, and a mask that is read is the one that was written.
//!
//! A processor that goes or comes changes the masks that a limit would write, and those that were written stay. So a limit's record has the
//! masks that it may have written, by which they are recognised. Limits: a limit that shares an end with another, and is set after such a
//! change, takes the other's mask for that of somebody else.
//!
//! Source: kernel `Documentation/networking/scaling.rst`, `net/core/net-sysfs.c:rps_cpumask_housekeeping`, `kernel/sched/isolation.c`. A view of sysfs shows the interfaces of the namespace it
//! was mounted from, so this one is made anew and mounted nowhere (`fsopen(2)`, Linux 5.2).

use std::ffi::{CStr, c_long};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use weir_core::rate::Rate;

use crate::error::{Doing, PortError, Result};
use crate::link::Link;
use crate::sys;

const ONLINE: &str = "/sys/devices/system/cpu/online";
/// The processors that are kept from common work. The second file is there only where the kernel was built for it.
const ISOLATED: [&str; 2] = ["/sys/devices/system/cpu/isolated", "/sys/devices/system/cpu/nohz_full"];
/// The rate that one processor takes in, of packets that are not the smallest.
const ONE_BITS_PER_S_MAX: u64 = 1_000_000_000;

/// The most digits of masks that a record keeps: those of hundreds of masks, but on machines of thousands of processors.
const MASKS_BYTES_MAX: usize = 16_384;

/// The reason why an interface has no masks; each has one receive queue at least.
const NO_MASKS: &str = "has no file rps_cpus, without which packets of a flow overtake each other behind a limit: it was renamed \
     meanwhile, and the same command again finds it; or the kernel has no receive packet steering (CONFIG_RPS)";

/// The processors that take in arriving packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processors {
    /// One processor, chosen by the numbers of the pair's ends.
    One,
    /// All processors but isolated ones; a flow's hash chooses one.
    All,
}

impl Processors {
    /// The processors that a limit of `rate` needs.
    pub fn of(rate: Rate) -> Processors {
        if rate.bits_per_s() <= ONE_BITS_PER_S_MAX { Processors::One } else { Processors::All }
    }
}

/// The steering of all receive queues of an interface together.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Steering {
    /// No queue has a mask.
    Off,
    /// Each queue has this mask of a limit.
    To(String),
    /// Some queues have this mask of a limit, and the others, which may have come later, none.
    InPart(String),
    /// Somebody has set it.
    Others,
}

impl Steering {
    /// The steering by the mask of each queue, where limits write `ours`.
    fn of(masks: &[String], ours: &[String]) -> Steering {
        let set: Vec<_> = masks.iter().filter(|mask| !is_none(mask)).collect();
        let Some(first) = set.first() else { return Steering::Off };
        let is_one_mask = set.iter().all(|mask| digits(mask) == digits(first));
        if !is_one_mask || !ours.iter().any(|mask| digits(mask) == digits(first)) {
            return Steering::Others;
        }
        if set.len() == masks.len() {
            Steering::To(first.to_string())
        } else {
            Steering::InPart(first.to_string())
        }
    }
}

/// The processors that a limit steers packets to, of those that are online now.
struct Choice {
    /// The number of processors of the machine.
    online: usize,
    /// The mask of [`Processors::All`].
    all: String,
    /// The mask of [`Processors::One`].
    one: String,
}

impl Choice {
    /// The choice at the end `link` of a pair, which is that at the other end, too.
    fn now(link: &Link) -> Result<Choice> {
        let online = fs::read_to_string(ONLINE).doing(|| format!("reading {ONLINE}"))?;
        let online = processors(online.trim());
        let isolated = ISOLATED.map(|file| processors(fs::read_to_string(file).unwrap_or_default().trim()));
        let allowed = not_isolated(&online, &isolated.concat());
        let one = one_of(&allowed, link.ifindex.max(link.peer_ifindex.unwrap_or(0)));
        Ok(Choice { online: online.len(), all: mask_of(&allowed), one: mask_of(&[one]) })
    }

    /// Both masks, and then those of `before` that are others.
    fn masks_and(&self, before: &[String]) -> Vec<String> {
        let now = [&self.all, &self.one];
        let older = before.iter().filter(|mask| !now.contains(mask));
        let fits = |bytes: &mut usize, mask: &String| {
            *bytes += mask.len();
            (*bytes <= MASKS_BYTES_MAX).then(|| mask.clone())
        };
        now.into_iter().chain(older).scan(0, fits).collect()
    }
}

/// The masks that a limit of what `link` sends may write now, and then those of `before` that it may have written, the newest first.
/// A processor that goes or comes changes the masks of now, and those in the receive queues stay. Where the processors are not told, nothing
/// is steered.
pub fn masks_written(link: &Link, before: &[String]) -> Vec<String> {
    Choice::now(link).map_or_else(|_| before.to_vec(), |choice| choice.masks_and(before))
}

/// The steering of the receive queues of one interface.
pub struct ReceiveSteering {
    /// The descriptor that keeps `folder` in being.
    _view: OwnedFd,
    folder: PathBuf,
    name: String,
    choice: Choice,
    /// The masks that limits write, or wrote when other processors were online.
    ours: Vec<String>,
}

/// Receive packet steering at the other end of a pair, where a limit has switched it on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedSteering {
    /// The mask of each receive queue before.
    pub before: Vec<String>,
    /// The mask of each receive queue now.
    pub now: Vec<String>,
    /// True if the masks are as a limit sets them, and so put back; masks that somebody has set since are not.
    pub is_ours: bool,
}

impl ReceiveSteering {
    /// The steering of an interface of this thread's namespace, where a limit may have `written` these masks.
    pub fn of(link: &Link, written: &[String]) -> Result<ReceiveSteering> {
        let view = view_of_sysfs().doing(|| "looking at the sysfs of a network namespace".into())?;
        let folder = PathBuf::from(format!(
            "/proc/thread-self/fd/{}/class/net/{}/queues",
            view.as_raw_fd(),
            link.name
        ));
        let choice = Choice::now(link)?;
        let ours = choice.masks_and(written);
        Ok(ReceiveSteering { _view: view, folder, name: link.name.clone(), choice, ours })
    }

    /// The mask of each receive queue, in order.
    pub fn masks(&self) -> Result<Vec<String>> {
        let masks = self.masks_there();
        match masks.is_empty() && self.choice.online > 1 {
            true => Err(PortError::Unsuitable { name: self.name.clone(), why: NO_MASKS.into() }),
            false => Ok(masks),
        }
    }

    fn masks_there(&self) -> Vec<String> {
        let read = |queue: usize| fs::read_to_string(self.file(queue)).ok();
        (0..).map_while(read).map(|mask| mask.trim().to_string()).collect()
    }

    fn steering(&self) -> Result<Steering> {
        Ok(Steering::of(&self.masks()?, &self.ours))
    }

    /// Steers to one processor or all, unless there is only one processor or somebody has set the masks.
    pub fn steer(&self, to: Processors) -> Result<()> {
        let mask = match to {
            Processors::One => &self.choice.one,
            Processors::All => &self.choice.all,
        };
        if self.is_off()? { self.set_all(mask) } else { Ok(()) }
    }

    /// Steers queues that came since a limit steered the others as those are.
    pub fn steer_rest(&self) -> Result<()> {
        match self.steering()? {
            Steering::InPart(mask) => self.set_all(&mask),
            _ => Ok(()),
        }
    }

    /// Returns whether no mask is set, on a machine where it makes a difference: with more than one processor.
    pub fn is_off(&self) -> Result<bool> {
        Ok(self.choice.online > 1 && self.steering()? == Steering::Off)
    }

    /// Returns whether only some queues are steered, as a limit does; where one has, the others came since.
    pub fn is_in_part(&self) -> Result<bool> {
        Ok(matches!(self.steering()?, Steering::InPart(_)))
    }

    /// Returns whether the masks are as [`ReceiveSteering::steer`] sets them, queues that came since left out.
    pub fn is_ours(&self) -> Result<bool> {
        Ok(matches!(self.steering()?, Steering::To(_) | Steering::InPart(_)))
    }

    /// Returns whether the masks are as a limit sets them, so that only a limit's record could tell whether a limit did; false with one
    /// processor.
    pub fn is_doubtful(&self) -> Result<bool> {
        Ok(self.choice.online > 1 && matches!(self.steering()?, Steering::To(_)))
    }

    /// The one processor that a limit has steered all queues to; `None` if there are more of them, or no more to steer to.
    pub fn is_to_one(&self) -> Result<Option<usize>> {
        let Steering::To(mask) = self.steering()? else { return Ok(None) };
        Ok(only_one_of(&mask).filter(|_| digits(&mask) != digits(&self.choice.all)))
    }

    /// Steers to all processors at once what is steered to one.
    pub fn widen(&self) -> Result<()> {
        self.set_all(&self.choice.all)
    }

    /// Switches steering off, if it is as [`ReceiveSteering::steer`] sets it, queues that came since left out.
    pub fn switch_off(&self) -> Result<()> {
        // A kernel without steering has none that is on; without its folder the interface has another name by now.
        let has_none = self.masks_there().is_empty() && self.folder.exists();
        if !has_none && self.is_ours()? { self.set_all("0") } else { Ok(()) }
    }

    fn set_all(&self, mask: &str) -> Result<()> {
        self.set(&vec![mask.to_string(); self.masks()?.len()])
    }

    /// Sets the mask of each receive queue; queues that are gone are left out, as are texts that are no mask.
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

/// Returns whether a mask names no processor, so that packets are not steered.
pub fn is_none(mask: &str) -> bool {
    digits(mask).is_empty()
}

/// The digits of a mask, from the first that is not 0; none where steering is off.
fn digits(mask: &str) -> String {
    mask.chars().filter(|c| *c != ',').skip_while(|c| *c == '0').collect()
}

/// The processors of a list such as `0-3,8`.
fn processors(list: &str) -> Vec<usize> {
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        Some(first..=last.min(first + 8191))
    });
    ranges.flatten().collect()
}

/// The online processors without isolated ones; all where nothing else is left, which the kernel then decides on.
fn not_isolated(online: &[usize], isolated: &[usize]) -> Vec<usize> {
    let left: Vec<_> = online.iter().copied().filter(|cpu| !isolated.contains(cpu)).collect();
    if left.is_empty() { online.to_vec() } else { left }
}

/// The one processor of a pair, by the greater of its ends' numbers: the same for both ways, and spread over pairs made one after the other.
/// The number of a container's end is mostly the lower, and may change where the end is moved to another network namespace.
fn one_of(allowed: &[usize], pair: u32) -> usize {
    let spread = pair.wrapping_mul(0x9e37_79b1) >> 16;
    allowed.get(spread as usize % allowed.len().max(1)).copied().unwrap_or(0)
}

/// The processor that a mask names; `None` if it names none, or several.
fn only_one_of(mask: &str) -> Option<usize> {
    let digits = digits(mask);
    let first = digits.chars().next()?.to_digit(16)?;
    let is_one = first.is_power_of_two() && digits[1..].chars().all(|digit| digit == '0');
    is_one.then(|| (digits.len() - 1) * 4 + first.trailing_zeros() as usize)
}

/// The mask of some processors, in groups of 32 bits.
fn mask_of(processors: &[usize]) -> String {
    let mut groups = vec![0u32];
    for cpu in processors {
        if groups.len() <= cpu / 32 {
            groups.resize(cpu / 32 + 1, 0);
        }
        groups[cpu / 32] |= 1 << (cpu % 32);
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
            assert_eq!(mask_of(&processors(list)), mask, "{list}");
        }
    }

    #[test]
    fn one_processor_serves_both_ways_and_pairs_are_spread() {
        let online: Vec<_> = (0..8).collect();
        let of = |near: u32, far: u32| one_of(&online, near.max(far));
        assert_eq!(of(7, 8), of(8, 7));
        for step in [1, 2, 4] {
            let mut counts = [0; 8];
            (0..256).for_each(|pair| counts[of(2, 3 + pair * step)] += 1);
            assert!(counts.iter().all(|count| (16..=48).contains(count)), "step {step}: {counts:?}");
        }
        assert_eq!(of(50, 2), of(50, 3), "the container's end is moved");
        assert_eq!(one_of(&[], 5), 0);
    }

    #[test]
    fn an_isolated_processor_takes_nothing_in() {
        let allowed = |isolated: &str| not_isolated(&processors("0-7"), &processors(isolated));
        assert_eq!(allowed(""), processors("0-7"));
        assert_eq!(allowed("(null)"), processors("0-7"), "what some kernels say of no `nohz_full`");
        let left = allowed("2-7,9");
        assert_eq!(left, [0, 1]);
        assert_eq!(mask_of(&left), "00000003", "the mask of all");
        assert!((0..256).all(|pair| one_of(&left, pair) < 2), "the mask of one");
        assert_eq!(allowed("0-7"), processors("0-7"));
    }

    #[test]
    fn one_processor_is_enough_up_to_a_gigabit() {
        let of = |bits_per_s| Processors::of(Rate::from_bits_per_s(bits_per_s).unwrap());
        assert_eq!([of(8_000), of(1_000_000_000)], [Processors::One; 2]);
        assert_eq!(of(1_000_000_001), Processors::All);
    }

    #[test]
    fn a_queue_that_came_later_tells_steering_of_ours_from_that_of_others() {
        let texts = |masks: &[&str]| masks.iter().map(ToString::to_string).collect::<Vec<_>>();
        let of = |masks: &[&str]| Steering::of(&texts(masks), &texts(&["0000000f", "2", "8"]));
        let cases: [(&[&str], Steering); 9] = [
            (&[], Steering::Off),
            (&["0", "00"], Steering::Off),
            (&["2", "02"], Steering::To("2".into())),
            (&["f"], Steering::To("f".into())),
            (&["8"], Steering::To("8".into())),
            (&["2", "2", "0"], Steering::InPart("2".into())),
            (&["0", "f"], Steering::InPart("f".into())),
            (&["2", "f"], Steering::Others),
            (&["0", "4"], Steering::Others),
        ];
        for (masks, steering) in cases {
            assert_eq!(of(masks), steering, "{masks:?}");
        }
    }

    #[test]
    fn masks_that_were_written_are_kept_as_long_as_they_have_room() {
        let choice = |number: usize| Choice { online: 2, all: format!("{number:0512x}"), one: "1".into() };
        let mut kept = Vec::new();
        for _ in 0..2 {
            for number in 0..20 {
                kept = choice(number).masks_and(&kept);
            }
        }
        assert_eq!((kept.len(), kept[1].as_str()), (21, "1"), "each once");
        for number in 20..100 {
            kept = choice(number).masks_and(&kept);
        }
        assert!((30..=33).contains(&kept.len()), "{}", kept.len());
        assert!(kept.contains(&choice(99).all) && !kept.contains(&choice(0).all));
    }

    #[test]
    fn a_mask_of_one_processor_tells_which() {
        for cpu in [0, 3, 4, 31, 32, 67] {
            assert_eq!(only_one_of(&mask_of(&[cpu])), Some(cpu));
        }
        for several in ["0", "", "3", "00000101", "00000001,00000001"] {
            assert_eq!(only_one_of(several), None, "{several}");
        }
    }

    #[test]
    fn off_is_nothing_but_zeros() {
        assert!(digits("0").is_empty() && digits("00000000,00000000").is_empty());
        assert_eq!(digits("00000000,00000103"), "103");
    }
}
