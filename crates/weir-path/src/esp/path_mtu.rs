//! Path MTU: what routers outside tell of the packets that an ESP stage sealed.
//!
//! Rule: the associations to the end that a packet was for make their packets shorter from then on ([`weir_ipsec::path_mtu`]); the senders
//! inside are told by the packets that do not fit any more, as by every router.
//!
//! Owner: the stage. Limits: the packet that was too long is lost; whatever carried it sends it again.

use weir_ipsec::ip::{IpHeaders, destination_of, number};
use weir_ipsec::path_mtu::TooBig;

use super::Esp;
use super::state::RunningAssociation;

impl Esp {
    /// Learns from a packet that came in outside; returns whether it tells that a packet of this stage was too long.
    pub(super) fn learn_path_mtu(&mut self, ip: &[u8], headers: &IpHeaders, now_ns: u64) -> bool {
        if !matches!(headers.next(), number::ICMP | number::ICMPV6)
            || !self.is_own(destination_of(ip, headers.family()))
        {
            return false;
        }
        let Some(told) = TooBig::read(ip, headers) else { return false };
        let goes_there = |running: &RunningAssociation| running.ends() == [told.source, told.destination];
        let is_of = |running: &&RunningAssociation| {
            let is_sent = (running.plan.spi, running.udp_ports()) == (told.spi, told.udp_ports);
            !running.plan.is_inbound && is_sent && goes_there(running)
        };
        let sender = self.associations.iter().find(is_of);
        if !sender.is_some_and(|running| told.was_sent_lately(running.highest())) {
            return false;
        }
        // A longer one than the stage's own tells nothing.
        if told.mtu_bytes < self.mtu_bytes {
            for running in self.associations.iter_mut().filter(|running| goes_there(running)) {
                running.path_mtu.learn(told.mtu_bytes, now_ns);
            }
        }
        true
    }
}
