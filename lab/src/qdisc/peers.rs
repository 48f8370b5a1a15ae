//! The other queueing disciplines of the kernel for such a limit, set up as someone who knows them would.
//!
//! - `fq`: each flow is paced to its share of the limit, which asks one to know the number of flows.
//! - `fq_codel`: a queue for each flow below TBF, which drops packets that stand too long.
//! - `cake`: limit, queue for each flow and dropping in one.
//! - `tbf-fq`: TBF with `fq` below it, without a pace, or `sfq` where there is no `fq`.
//! - `htb-fq`: HTB with one class and `fq` below it.
//! - `htb-leaves`: HTB with a leaf for each client and one for the rest, each with room for its senders, so that none is dropped: a filter
//!   for each client's port, which asks one to know the ports. The nearest to `weir limit` that a script sets up.
//!
//! The lab tries which of them the kernel has, on a pair of its own. A discipline that the kernel lacks has a row that says so.
//!
//! Source: tc-fq(8), tc-fq_codel(8), tc-cake(8), tc-tbf(8), tc-sfq(8), tc-htb(8), tc-u32(8).

use anyhow::Result;

use crate::bed::{self, End, Namespace};
use crate::iperf::FIRST_PORT;
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
    /// Fair queues below HTB.
    HtbFq,
    /// A class of HTB for each client.
    HtbLeaves,
}

impl Peer {
    /// All of them.
    pub const ALL: [Peer; 6] =
        [Peer::Fq, Peer::FqCodel, Peer::Cake, Peer::TbfFq, Peer::HtbFq, Peer::HtbLeaves];

    /// The name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Fq => "fq",
            Peer::FqCodel => "fq_codel",
            Peer::Cake => "cake",
            Peer::TbfFq => "tbf-fq",
            Peer::HtbFq => "htb-fq",
            Peer::HtbLeaves => "htb-leaves",
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
            Peer::HtbFq => {
                let mut commands = htb_root(0x10);
                commands.push(htb_leaf(0x10, RATE_BITS_PER_S));
                commands.push("qdisc add dev veth0 parent 1:10 fq".into());
                vec![commands]
            }
            Peer::HtbLeaves => {
                // Half of the limit is promised, so that it always can be.
                let each = RATE_BITS_PER_S / 2.0 / (clients + 1) as f64;
                let mut commands = htb_root(REST);
                commands.push(htb_leaf(REST, each));
                for client in 0..clients as u16 {
                    let class = REST + 1 + client;
                    commands.push(htb_leaf(class, each));
                    commands.push(format!("qdisc add dev veth0 parent 1:{class:x} bfifo limit 16mb"));
                    commands.push(format!(
                        "filter add dev veth0 parent 1: protocol ip u32 match ip dport {} 0xffff flowid 1:{class:x}",
                        FIRST_PORT + client
                    ));
                }
                vec![commands]
            }
        }
    }

    /// Sets the discipline up on `veth0`. Returns whether the kernel has it; any other fault is an error.
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

    /// Returns whether the kernel has it, tried on a pair that goes again.
    pub fn is_here(self) -> Result<bool> {
        let [one, other] = [Namespace::new("peer")?, Namespace::new("peer")?];
        bed::veth(0, End { namespace: &one, name: "veth0" }, End { namespace: &other, name: "veth1" }, 1)?;
        self.set_up(&one, 1)
    }
}

/// The class of packets that are no client's.
const REST: u16 = 0x10;

/// HTB with the limit, and `rest` for packets that no filter finds.
fn htb_root(rest: u16) -> Vec<String> {
    vec![
        format!("qdisc replace dev veth0 root handle 1: htb default {rest:x}"),
        format!("class add dev veth0 parent 1: classid 1:1 htb rate {RATE} burst {BURST} cburst {BURST}"),
    ]
}

fn htb_leaf(class: u16, rate_bits_per_s: f64) -> String {
    format!(
        "class add dev veth0 parent 1:1 classid 1:{class:x} htb rate {rate_bits_per_s:.0}bit ceil {RATE} burst 2kb cburst {BURST} \
         quantum 1514"
    )
}

/// Returns whether this is how the kernel says that it has no such queueing discipline.
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
    fn each_client_has_a_leaf_of_its_own() {
        let [way] = <[_; 1]>::try_from(Peer::HtbLeaves.ways(2)).unwrap();
        assert_eq!(way.iter().filter(|command| command.contains(" bfifo ")).count(), 2);
        assert!(way.last().unwrap().ends_with("match ip dport 5002 0xffff flowid 1:12"));
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
