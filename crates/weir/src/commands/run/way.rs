//! The way to limit a program's packets: in place at its own interface, or by a wire where only a wire has the options that are asked for.

use weir_core::drops::Count;
use weir_core::limit::{BITS_PER_S_MAX, BITS_PER_S_MIN};
use weir_core::rate::Rate;
use weir_port::netns::NetNs;
use weir_port::signals::{
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2, SIGWINCH,
};
use weir_run::classes::{self, Classes};

use super::rest::Remainder;
use super::{RunArguments, by_wire, in_place};
use crate::commands::drops::DropsByReason;
use crate::guarded::{self, Guarded, Namespaces};
use crate::{Failure, names, output, text};

/// Signals that are passed on to the program, but the last three: those ask to stop, and Weir stops only after its program did.
pub const HEARD: [i32; 10] =
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGTTIN, SIGTTOU];

/// A program's network, limited.
pub trait RunNetwork {
    /// The guardian of all changes, and the events of the run.
    fn guarded(&self) -> &Guarded;
    /// The program's namespace.
    fn netns(&self) -> &NetNs;
    /// The packets of the program that the network still holds.
    fn look(&self) -> Result<Remainder, Blind>;
    /// The lowest limit that the program's packets may be under, in bits per second.
    fn slowest(&self) -> u64;
    /// The length of the longest packet that the program's interface sends, with segments that are not cut yet.
    fn packet_bytes_max(&self) -> u64;
    /// The name of a run of this kind, if this process must not stand while it lasts; `None` if it may.
    fn must_go_on(&self) -> Option<&'static str>;
    /// Ends the network, with all that is in it. Returns the totals of the run.
    fn finish(self: Box<Self>) -> Result<Totals, Failure>;
}

/// Why nobody could look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blind {
    /// The network may be seen in a moment.
    ForNow,
    /// The network is going down.
    ForGood,
}

/// The totals of a run, at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The last limit on the program's packets, which may not be the first.
    pub limit: Option<Rate>,
    /// Packets that the program sent and that were delivered; `None` where nobody counted.
    pub sent: Option<Count>,
    /// Packets taken in from the program.
    pub accepted: u64,
    /// Packets of the program that waited when these totals were read, and went with the network; `None` where nobody looked.
    pub waiting: Option<u64>,
    /// Packets the program was sent.
    pub received: u64,
    /// The time for which senders were held, in nanoseconds.
    pub blocked_ns: Option<u64>,
    /// Packets that were dropped, both ways.
    pub dropped: DropsByReason,
}

/// Makes the network: limited in place if that can be, and by a wire otherwise, which is said.
pub fn open(arguments: &RunArguments, name: &str) -> Result<Box<dyn RunNetwork>, Failure> {
    text::check_queue(arguments.queue, arguments.classes.is_some())?;
    // Until others see the network by its name. One that is not given is of this process alone.
    let _held = arguments.name.as_deref().map(names::hold_new).transpose()?;
    let file = arguments.classes.as_deref().map(text::classes_file).transpose()?;
    // A wire has all options, so a fault of the wire's is a fault.
    let prepared = by_wire::Prepared::new(arguments, name, file.as_ref())?;
    let mut guardian = guarded::guardian(Namespaces::Ours)?;
    let why = match can_limit_in_place(arguments).and_then(|()| classes_in_place(file.as_ref())) {
        Ok(classes) => match in_place::open(guardian, arguments, name, classes.as_ref())? {
            in_place::Opened::Limited(way) => {
                classes.iter().for_each(text::warn_of);
                return Ok(way);
            }
            in_place::Opened::Refused(back, why) => {
                guardian = back;
                why
            }
        },
        Err(why) => why,
    };
    output::say(format_args!(
        "weir: {why}: this run goes by a wire, which carries each packet through this process"
    ));
    Ok(Box::new(prepared.open(guardian)?))
}

/// The classes of a file as the kernel's own queue has them; if it cannot, why.
fn classes_in_place(file: Option<&(String, String)>) -> Result<Option<Classes>, String> {
    let read = |(name, text): &(String, String)| classes::read_in_place(name, text);
    file.map(read).transpose().map_err(|refused| refused.why)
}

/// Checks that the kernel's own queue can keep a limit of this rate; if not, returns the reason.
fn rate_in_place(rate: Rate) -> Result<(), String> {
    let bound = match rate.bits_per_s() {
        ..BITS_PER_S_MIN => format!("below {}", rate_text(BITS_PER_S_MIN)),
        BITS_PER_S_MIN..=BITS_PER_S_MAX => return Ok(()),
        _ => format!("above {}", rate_text(BITS_PER_S_MAX)),
    };
    Err(format!("{bound} the kernel's own queue cannot keep a limit"))
}

fn rate_text(bits_per_s: u64) -> String {
    Rate::from_bits_per_s(bits_per_s).map_or_else(String::new, |rate| rate.to_string())
}

/// Checks that the kernel's own queue has the options that are asked for; if not, returns the reason.
pub fn can_limit_in_place(arguments: &RunArguments) -> Result<(), String> {
    let rates = [Some(arguments.rate), arguments.rate_back];
    rates.into_iter().flatten().try_for_each(rate_in_place)?;
    match arguments.queue.map(|_| "--queue").or(arguments.machine.first_given()) {
        Some(option) => Err(format!("{option} is not for a limit in place")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_the_kernel_cannot_keep_is_told_in_one_sentence() {
        let told = |rate: &str| rate_in_place(rate.parse().unwrap());
        assert_eq!(told("8kbit"), Ok(()));
        assert_eq!(told("10tbit"), Ok(()));
        assert_eq!(told("4kbit"), Err("below 8kbit the kernel's own queue cannot keep a limit".into()));
        assert_eq!(told("999tbit"), Err("above 10tbit the kernel's own queue cannot keep a limit".into()));
    }
}
