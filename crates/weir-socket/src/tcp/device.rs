//! The device that smoltcp sees: the segment that has come, and frames of the path for segments that are sent.
//!
//! Rule: there is a token to transmit only while the path has asked for packets and there is a frame, so nothing that smoltcp sends is lost here. The
//! answer to a segment (a reset, an acknowledgement of a segment out of order) cannot wait for a token: while the way out is held and many answers
//! wait, it is not made, as if it had been lost on the way. The peer that caused it will cause it again.
//!
//! Owner: the call of smoltcp for which it is made. The host ([`weir_core::net::sockets`]) has verified the checksums of segments that come.

use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;

use crate::datagram::ETHERNET_LEN;

/// A device, for one call.
pub(crate) struct Segments<'a> {
    /// The segment that has come, from its IP header on.
    pub(crate) came: Option<&'a [u8]>,
    /// The segments that are sent.
    pub(crate) go: &'a mut Vec<PathPacket>,
    /// The most segments in `go`, those before this call included.
    pub(crate) go_max: usize,
    pub(crate) frames: &'a mut Frames,
    pub(crate) mtu_bytes: u16,
}

impl Device for Segments<'_> {
    type RxToken<'t>
        = Came<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Go<'t>
    where
        Self: 't;

    fn receive(&mut self, _: Instant) -> Option<(Came<'_>, Go<'_>)> {
        let came = self.came.take()?;
        Some((Came(came), Go { go: self.go, go_max: self.go_max, frames: self.frames }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Go<'_>> {
        let may = self.go.len() < self.go_max && self.frames.pool.available() > 0;
        may.then_some(Go { go: self.go, go_max: self.go_max, frames: self.frames })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities(self.mtu_bytes)
    }
}

fn capabilities(mtu_bytes: u16) -> DeviceCapabilities {
    let mut checksum = ChecksumCapabilities::default();
    checksum.tcp = Checksum::Tx;
    checksum.ipv4 = Checksum::Tx;
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = mtu_bytes.into();
    capabilities.checksum = checksum;
    capabilities
}

/// A segment that has come.
pub(crate) struct Came<'t>(&'t [u8]);

impl RxToken for Came<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

/// A segment that may go.
pub(crate) struct Go<'t> {
    go: &'t mut Vec<PathPacket>,
    go_max: usize,
    frames: &'t mut Frames,
}

impl TxToken for Go<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let may = self.go.len() < self.go_max;
        let Some(frame) = may.then(|| self.frames.pool.take()).flatten() else {
            return write(&mut vec![0; len]);
        };
        // The MTU of the host is at most the size of its frames.
        let mut packet = PathPacket::new(frame, 0, (ETHERNET_LEN + len) as u16);
        let bytes = packet.bytes_mut(self.frames.memory());
        let result = write(&mut bytes[ETHERNET_LEN..]);
        let ethertype: u16 = if bytes[ETHERNET_LEN] >> 4 == 4 { 0x0800 } else { 0x86dd };
        bytes[ETHERNET_LEN - 2..ETHERNET_LEN].copy_from_slice(&ethertype.to_be_bytes());
        self.go.push(packet);
        result
    }
}
