//! What else the kernel has for such a limit, set up as someone who knows it would.
//!
//! - `fq`: each flow is paced to its share of the limit, which asks one to know the number of flows.
//! - `fq_codel`: a queue for each flow below TBF, which drops what stands too long.
//! - `cake`: limit, queue for each flow and dropping in one.
//! - `tbf-fq`: TBF with `fq` below it, without a pace, or `sfq` where there is no `fq`.
//!
//! Which of them a kernel has is tried, on a pair of their own. What it lacks is a row that says so.
//!
//! Source: tc-fq(8), tc-fq_codel(8), tc-cake(8), tc-tbf(8), tc-sfq(8).

use anyhow::Result;

use crate::bed::{self, End, Namespace};
use crate::qdisc::{BURST, RATE, RATE_BITS_PER_S};

/// A queueing discipline of the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Paces each flow.
    Fq,
    /// A queue for each flow, below TBF.
    FqCodel,
    /// All in one.
    Cake,
    /// Fair queues below TBF.
    TbfFq,
}

impl Peer {
    /// All of them.
    pub const ALL: [Peer; 4] = [Peer::Fq, Peer::FqCodel, Peer::Cake, Peer::TbfFq];

    /// The name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Fq => "fq",
            Peer::FqCodel => "fq_codel",
            Peer::Cake => "cake",
            Peer::TbfFq => "tbf-fq",
        }
    }

    /// The arguments of `tc`, in order; where there are several ways, the best first.
    fn ways(self, clients: usize) -> Vec<Vec<String>> {
        let below_tbf = |queue: &str| {
            vec![
                format!("qdisc replace dev veth0 root handle 1: tbf rate {RATE} burst {BURST} limit 200k"),
                format!("qdisc add dev veth0 parent 1:1 handle 10: {queue}"),
            ]
        };
        match self {
            Peer::Fq => {
                let each = RATE_BITS_PER_S / clients as f64;
                vec![vec![format!("qdisc replace dev veth0 root fq maxrate {each:.0}bit")]]
            }
            Peer::FqCodel => vec![below_tbf("fq_codel")],
            Peer::Cake => vec![vec![format!("qdisc replace dev veth0 root cake bandwidth {RATE}")]],
            Peer::TbfFq => vec![below_tbf("fq"), below_tbf("sfq")],
        }
    }

    /// Sets it up on `veth0`. Whether the kernel has it; any other fault is an error.
    pub fn set_up(self, namespace: &Namespace, clients: usize) -> Result<bool> {
        for way in self.ways(clients) {
            match way.iter().try_for_each(|command| namespace.tc(command).map(drop)) {
                Ok(()) => return Ok(true),
                Err(error) if is_unknown(&format!("{error:#}")) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Whether the kernel has it, tried on a pair that goes again.
    pub fn is_here(self) -> Result<bool> {
        let [one, other] = [Namespace::new("peer")?, Namespace::new("peer")?];
        bed::veth(0, End { namespace: &one, name: "veth0" }, End { namespace: &other, name: "veth1" }, 1)?;
        self.set_up(&one, 1)
    }
}

/// Whether this is how the kernel says that it has no such queueing discipline.
fn is_unknown(error: &str) -> bool {
    error.contains("qdisc kind is unknown") || error.contains("No such file or directory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_of_fq_is_paced_to_its_share() {
        assert_eq!(Peer::Fq.ways(64), [["qdisc replace dev veth0 root fq maxrate 3125000bit"]]);
    }

    #[test]
    fn a_kernel_without_fq_has_sfq_below_tbf() {
        let ways = Peer::TbfFq.ways(2);
        assert!(ways[0][1].ends_with(" fq") && ways[1][1].ends_with(" sfq"));
    }

    #[test]
    fn what_a_kernel_lacks_is_told_from_what_is_wrong() {
        assert!(is_unknown("`tc ...` ended with 2: Error: Specified qdisc kind is unknown."));
        assert!(!is_unknown("Error: argument \"12furlongs\" is wrong"));
    }
}
