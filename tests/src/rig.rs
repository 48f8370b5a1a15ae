//! The bench of most tests: two hosts, and between them a namespace in which `weir wire` joins two veth ends.
//!
//! ```text
//!  left             middle               right
//!  veth0 ---------- wa [weir wire] wb ---------- veth0
//!  10.99.0.1                                10.99.0.2
//! ```

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::{self, End, Namespace, address, plain_veth, veth};
use weir_lab::iperf::{Flood, Flow, HEADERS_V4_BYTES, Load, jain};
use weir_lab::wire::Wire;

use crate::drops;

/// Queues of a pair whose flows must not wait for each other.
pub const MANY_QUEUES: u32 = 128;

/// Two hosts and the namespace between them.
#[derive(Debug)]
pub struct Rig {
    /// The namespace of the daemon.
    pub middle: Namespace,
    /// The host at interface `wa`.
    pub left: Namespace,
    /// The host at interface `wb`.
    pub right: Namespace,
    weir: PathBuf,
}

impl Rig {
    /// Hosts whose pairs have `queues_left` and `queues_right` queues.
    pub fn new(queues_left: u32, queues_right: u32) -> Result<Rig> {
        let rig = Rig::unjoined()?;
        veth(0, rig.left_end(), rig.a(), queues_left)?;
        veth(1, rig.right_end(), rig.b(), queues_right)?;
        address(0, rig.left_end(), rig.right_end())?;
        Ok(rig)
    }

    /// Hosts whose pairs are made as users make them, without a word of queues.
    pub fn plain() -> Result<Rig> {
        let rig = Rig::unjoined()?;
        plain_veth(0, rig.left_end(), rig.a())?;
        plain_veth(1, rig.right_end(), rig.b())?;
        address(0, rig.left_end(), rig.right_end())?;
        Ok(rig)
    }

    fn unjoined() -> Result<Rig> {
        Ok(Rig {
            middle: Namespace::new("middle")?,
            left: Namespace::new("left")?,
            right: Namespace::new("right")?,
            weir: crate::weir_binary()?,
        })
    }

    /// The left host's interface.
    pub fn left_end(&self) -> End<'_> {
        End { namespace: &self.left, name: "veth0" }
    }

    /// The right host's interface.
    pub fn right_end(&self) -> End<'_> {
        End { namespace: &self.right, name: "veth0" }
    }

    /// The wire's first interface.
    pub fn a(&self) -> End<'_> {
        End { namespace: &self.middle, name: "wa" }
    }

    /// The wire's second interface.
    pub fn b(&self) -> End<'_> {
        End { namespace: &self.middle, name: "wb" }
    }

    /// The left host's addresses.
    pub fn left_address(&self) -> bed::Name4and6 {
        bed::names(0, 1)
    }

    /// The right host's addresses.
    pub fn right_address(&self) -> bed::Name4and6 {
        bed::names(0, 2)
    }

    /// Starts `weir wire wa wb OPTIONS`.
    pub fn wire(&self, options: &[&str]) -> Result<Wire> {
        Wire::start(&self.weir, &self.middle, ["wa", "wb"], options)
    }

    /// A command line of the program under test, in the middle.
    pub fn weir(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = self.middle.command(&self.weir);
        command.args(arguments);
        command
    }
}

/// `weir stat NAME --json` of one wire, whatever other wires are up on the machine.
pub fn stat_of(wire: &Wire) -> Result<serde_json::Value> {
    let done = wire.weir(&["stat", wire.name(), "--json"])?.success()?;
    Ok(serde_json::from_str(&done.stdout)?)
}

/// The least that a flood must reach.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// The limit, in bits of frames per second.
    pub rate_bits_per_s: f64,
    /// The least share of it that must have arrived.
    pub share_min: f64,
    /// The least Jain index.
    pub jain_min: f64,
}

impl Demand {
    /// 97 % of the rate and a Jain index of 0.98.
    pub fn of_rate(rate_bits_per_s: f64) -> Demand {
        Demand { rate_bits_per_s, share_min: 0.97, jain_min: 0.98 }
    }
}

/// The rate of the datagrams that arrive between now and shortly before the flood ends, in bits of frames per second.
pub fn measure_rate(flood: &Flood, load: &Load) -> Result<f64> {
    let margin = std::time::Duration::from_secs_f64(load.seconds * 0.1);
    let before = flood.deliveries()?;
    weir_lab::clock::let_pass(flood.remaining().saturating_sub(margin), |_| ())?;
    let after = flood.deliveries()?;
    crate::require_timing!(
        after.seconds_since(&before) > 0.5,
        "the flood was over before it could be measured"
    );
    Ok(after.per_s_since(&before) * load.frame_bytes() as f64 * 8.0)
}

/// Requires that no datagram is lost, not even at the end, and none is out of order. A datagram that the senders' own kernel did not take
/// was not sent, whatever number its sender had given it.
pub fn require_lossless(flows: &[Flow], load: &Load) -> Result<()> {
    require_lossless_but(flows, load, 0)
}

/// Requires the same, but for `not_held` packets that were dropped where nobody can be held, because their receiver was too slow.
pub fn require_lossless_but(flows: &[Flow], load: &Load, not_held: u64) -> Result<()> {
    let lost: u64 = flows.iter().map(|flow| flow.lost).sum();
    let missing: u64 = flows.iter().map(|flow| flow.missing() / load.payload_bytes).sum();
    let total: u64 = flows.iter().map(|flow| flow.total).sum();
    let Flow { refused, overflowed, .. } = flows.first().copied().context("no flows")?;
    let told = || -> Result<String> {
        let drops = drops::told(&[load.from, load.to])?;
        Ok(format!(
            "{lost} of {total} datagrams lost and {missing} never seen; the senders' kernel did not take {refused} of them, \
             {overflowed} overflowed the servers' own socket buffers, and {not_held} were dropped where nobody can be held{drops}"
        ))
    };
    let gone = lost.max(missing);
    ensure!(gone <= refused + overflowed + not_held, "{}", told()?);
    let reordered: u64 = flows.iter().map(|flow| flow.out_of_order).sum();
    ensure!(reordered == 0, "{reordered} of {total} datagrams arrived out of order");
    // A datagram that reached a receiver too slow for it was not lost on the way.
    crate::require_timing!(gone <= refused, "{}", told()?);
    Ok(())
}

/// Requires the rate, all of the limit and no more than it, and shared evenly.
pub fn require_rate(flows: &[Flow], rate_bits_per_s: f64, demand: Demand) -> Result<()> {
    let share = rate_bits_per_s / demand.rate_bits_per_s;
    crate::require_timing!(share >= demand.share_min, "only {:.1} % of the rate arrived", share * 100.0);
    ensure!(share <= 1.01, "{:.1} % of the rate arrived: the limit does not hold", share * 100.0);
    let rates: Vec<f64> = flows.iter().map(|flow| flow.bits_per_s).collect();
    let index = jain(&rates);
    crate::require_timing!(index >= demand.jain_min, "Jain index {index:.4} over {rates:?} bit/s");
    Ok(())
}

/// The longest datagram payload that an MTU carries over IPv4.
pub fn payload_for_mtu(mtu: u64) -> u64 {
    mtu + 14 - HEADERS_V4_BYTES
}
