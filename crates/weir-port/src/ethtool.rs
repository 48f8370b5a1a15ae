//! The two facts that only `ethtool` knows: how many queues an interface really uses, and whether checksums are left to it.
//!
//! Checksums matter because a veth hands a packet over with its checksum still to be filled in (`CHECKSUM_PARTIAL`), and
//! AF_XDP would carry it out that way. With transmit checksumming off at the sending end, the kernel fills it in first.
//!
//! Source: `include/uapi/linux/ethtool.h`, `SIOCETHTOOL`.

use std::io;
use std::os::fd::AsRawFd;

use crate::error::{Doing, Result};
use crate::sys;

const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GTSO: u32 = 0x1e;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// The queues in use in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Receive queues.
    pub rx: u32,
    /// Transmit queues.
    pub tx: u32,
}

/// The queues of an interface of this thread's namespace; 1 and 1 where the driver does not say.
pub fn channels(name: &str) -> Result<Channels> {
    /// `struct ethtool_channels`.
    #[repr(C)]
    #[derive(Default)]
    struct Request {
        command: u32,
        max: [u32; 4],
        rx: u32,
        tx: u32,
        other: u32,
        combined: u32,
    }
    let mut request = Request { command: ETHTOOL_GCHANNELS, ..Default::default() };
    match ioctl(name, &mut request) {
        Ok(()) => {
            let count = |own: u32| (own + request.combined).max(1);
            Ok(Channels { rx: count(request.rx), tx: count(request.tx) })
        }
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Channels { rx: 1, tx: 1 }),
        Err(error) => Err(error).doing(|| format!("reading how many queues {name} has")),
    }
}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Returns whether checksums of packets sent on an interface of this thread's namespace are left to the device.
pub fn tx_checksum(name: &str) -> Result<bool> {
    let mut value = Value { command: ETHTOOL_GTXCSUM, data: 0 };
    ioctl(name, &mut value).doing(|| format!("reading the checksum offload of {name}"))?;
    Ok(value.data != 0)
}

/// Returns whether an interface of this thread's namespace cuts TCP packets into segments itself.
pub fn tcp_segmentation(name: &str) -> Result<bool> {
    let mut value = Value { command: ETHTOOL_GTSO, data: 0 };
    ioctl(name, &mut value).doing(|| format!("reading the segmentation offload of {name}"))?;
    Ok(value.data != 0)
}

/// Returns whether packets that an interface of this thread's namespace receives are joined (GRO).
pub fn receive_offload(name: &str) -> Result<bool> {
    let mut value = Value { command: ETHTOOL_GGRO, data: 0 };
    ioctl(name, &mut value).doing(|| format!("reading the receive offload of {name}"))?;
    Ok(value.data != 0)
}

/// Leaves checksums of packets sent on an interface of this thread's namespace to the device, or does not.
pub fn set_tx_checksum(name: &str, on: bool) -> Result<()> {
    let mut value = Value { command: ETHTOOL_STXCSUM, data: u32::from(on) };
    ioctl(name, &mut value).doing(|| {
        format!(
            "switching checksum offload of {name} {} (`ethtool -K {name} tx ...`)",
            if on { "on" } else { "off" }
        )
    })
}

/// Switches the joining of received packets (GRO) on or off at an interface of this thread's namespace.
pub fn set_receive_offload(name: &str, on: bool) -> Result<()> {
    let mut value = Value { command: ETHTOOL_SGRO, data: u32::from(on) };
    ioctl(name, &mut value).doing(|| {
        format!(
            "switching receive offload of {name} {} (`ethtool -K {name} gro ...`)",
            if on { "on" } else { "off" }
        )
    })
}

fn ioctl<T>(name: &str, request: &mut T) -> io::Result<()> {
    /// `struct ifreq` as SIOCETHTOOL uses it.
    #[repr(C)]
    struct InterfaceRequest<T> {
        name: [u8; libc::IFNAMSIZ],
        data: *mut T,
        rest: [u64; 2],
    }
    let mut interface = InterfaceRequest { name: [0; libc::IFNAMSIZ], data: request, rest: [0; 2] };
    if name.len() >= interface.name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    interface.name[..name.len()].copy_from_slice(name.as_bytes());
    let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: `interface` is a whole `struct ifreq` (40 bytes) and `data` points at `request`, the structure its own
    // command word names; both outlive the call.
    sys::check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &mut interface) }).map(drop)
}
