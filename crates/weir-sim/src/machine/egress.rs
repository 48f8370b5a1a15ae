//! The way out that a scenario describes: the kernel's TBF, with or without the RFC, or Weir.
//!
//! Numbers of Weir's that a scenario leaves open are the path's own defaults.

use weir_core::shaper::tbf::{Limit, TbfConfig};

use crate::{
    kernel::KernelQdisc,
    scenario::{Scenario, System},
    tbf::TbfParameters,
    weir::{WeirParameters, WeirWire},
};

/// The smallest truesize of a datagram, hence the most that a send buffer holds.
const TRUESIZE_BYTES_MIN: u32 = 768;

/// The way out of packets after `send`.
pub(super) enum Egress {
    Kernel(KernelQdisc),
    Weir(Box<WeirWire>),
}

impl Egress {
    /// The egress of `scenario`; otherwise the reason why it cannot be.
    pub(super) fn new(scenario: &Scenario) -> Result<Egress, String> {
        let limit_bytes = match scenario.limit {
            Limit::Bytes(bytes) => bytes,
            Limit::TimeNs(time_ns) => scenario.rate.bytes_in(time_ns),
        };
        let kernel = |backpressure| {
            let parameters =
                TbfParameters { rate: scenario.rate, burst_bytes: scenario.burst_bytes, limit_bytes };
            Egress::Kernel(KernelQdisc::new(parameters, backpressure))
        };
        match scenario.system {
            System::None => Ok(kernel(false)),
            System::Rfc => Ok(kernel(true)),
            System::Weir => {
                let senders = scenario.senders();
                let queues = if scenario.queues == 0 { senders } else { scenario.queues };
                let sndbuf_bytes = scenario.groups.iter().map(|group| group.sndbuf_bytes).max().unwrap_or(0);
                let packets_in_buffer = sndbuf_bytes / TRUESIZE_BYTES_MIN + 1;
                let queue_packets = match scenario.queue_packets {
                    0 => senders.div_ceil(queues) * packets_in_buffer as usize,
                    packets => packets,
                };
                let limits = TbfConfig {
                    rate: scenario.rate,
                    burst_bytes: scenario.burst_bytes,
                    limit: scenario.limit,
                };
                let parameters = WeirParameters {
                    limits,
                    queues,
                    queue_packets,
                    poll_packets: (scenario.poll_packets > 0).then_some(scenario.poll_packets as u32),
                    poll_ns: scenario.machine.worker_poll_ns,
                    // The far side's stack runs in the transmitter's context, on any CPU.
                    packet_ns: scenario.machine.worker_packet_ns + scenario.machine.deliver_ns,
                    end_ns: scenario.time_ns,
                    fault: scenario.fault,
                };
                Ok(Egress::Weir(Box::new(WeirWire::new(parameters)?)))
            }
        }
    }
}
