//! The facts that only `ethtool` knows: how many queues an interface really uses, and which features are on.
//!
//! Transmit checksums matter because a veth hands a packet over with its checksum still to be filled in (`CHECKSUM_PARTIAL`), and
//! AF_XDP would carry it out that way. With transmit checksumming off at the sending end, the kernel fills it in first.
//!
//! Source: `include/uapi/linux/ethtool.h`, `SIOCETHTOOL`; netdevice(7), `SIOCGIFNAME`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::error::{Doing, PortError, Result};
use crate::link::Link;
use crate::netlink::is_code;
use crate::sys;

const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GTSO: u32 = 0x1e;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// The names of features among the sets of names (`ETH_SS_FEATURES`).
const SET_OF_FEATURES: u32 = 4;
/// The words of 32 features that are read; the kernel has two (`ETHTOOL_DEV_FEATURE_WORDS`).
const FEATURE_WORDS: usize = 4;
/// The bytes of a name (`ETH_GSTRING_LEN`).
const NAME_BYTES: usize = 32;
/// The most names that an interface may get in turn while it is asked about.
const TRIES: u32 = 10;

/// The queues in use in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Receive queues.
    pub rx: u32,
    /// Transmit queues.
    pub tx: u32,
}

/// The queues of an interface of this thread's namespace; 1 and 1 where the driver does not say.
///
/// # Errors
/// [`PortError::NoInterface`] if it is gone, as all errors here.
pub fn channels(ifindex: u32, name: &str) -> Result<Channels> {
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
    match ask(ifindex, name, &mut request, || format!("reading how many queues {name} has")) {
        Ok(()) => {
            let count = |own: u32| (own + request.combined).max(1);
            Ok(Channels { rx: count(request.rx), tx: count(request.tx) })
        }
        Err(error) if is_code(&error, libc::EOPNOTSUPP) => Ok(Channels { rx: 1, tx: 1 }),
        Err(error) => Err(error),
    }
}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Features of an interface: a bit for each, by its place in [`feature_names`].
pub(crate) struct FeatureBits {
    /// Those that are on.
    pub active: u128,
    /// Those that somebody asked for, or the driver did, also where something else keeps them off.
    pub requested: u128,
}

/// The features of an interface of this thread's namespace.
pub(crate) fn features(link: &Link) -> Result<FeatureBits> {
    /// `struct ethtool_get_features_block`.
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Word {
        available: u32,
        requested: u32,
        active: u32,
        never_changed: u32,
    }
    /// `struct ethtool_gfeatures`.
    #[repr(C)]
    struct Request {
        command: u32,
        words: u32,
        word: [Word; FEATURE_WORDS],
    }
    let word = [Word::default(); FEATURE_WORDS];
    let mut request = Request { command: ETHTOOL_GFEATURES, words: FEATURE_WORDS as u32, word };
    ask(link.ifindex, &link.name, &mut request, || format!("reading the features of {}", link.name))?;
    let bits = |of: fn(&Word) -> u32| {
        request.word.iter().rev().fold(0, |bits, word| bits << 32 | u128::from(of(word)))
    };
    Ok(FeatureBits { active: bits(|word| word.active), requested: bits(|word| word.requested) })
}

/// The names of all features that this kernel has; an interface of this thread's namespace is asked, and any will do.
pub(crate) fn feature_names(link: &Link) -> Result<Vec<String>> {
    /// `struct ethtool_sset_info` with room for the size of one set.
    #[repr(C)]
    struct Sizes {
        command: u32,
        reserved: u32,
        sets: u64,
        size: u32,
    }
    /// `struct ethtool_gstrings`; the kernel writes as many names as there are.
    #[repr(C)]
    struct Names {
        command: u32,
        set: u32,
        count: u32,
        name: [[u8; NAME_BYTES]; FEATURE_WORDS * 32],
    }
    let doing = || "reading the names of the features of interfaces".to_string();
    let mut sizes = Sizes { command: ETHTOOL_GSSET_INFO, reserved: 0, sets: 1 << SET_OF_FEATURES, size: 0 };
    ask(link.ifindex, &link.name, &mut sizes, doing)?;
    let mut names = Names {
        command: ETHTOOL_GSTRINGS,
        set: SET_OF_FEATURES,
        count: 0,
        name: [[0; NAME_BYTES]; FEATURE_WORDS * 32],
    };
    if sizes.size as usize > names.name.len() {
        let source =
            io::Error::other(format!("it has {}, and {} are known of", sizes.size, names.name.len()));
        return Err(PortError::Kernel { doing: doing(), source });
    }
    ask(link.ifindex, &link.name, &mut names, doing)?;
    let known = names.name.iter().take(names.count as usize);
    let text = |name: &[u8; NAME_BYTES]| {
        String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
    };
    Ok(known.map(text).collect())
}

/// Returns whether an interface of this thread's namespace cuts TCP packets into segments itself.
pub fn tcp_segmentation(link: &Link) -> Result<bool> {
    is_on(link, ETHTOOL_GTSO, "segmentation")
}

/// Returns whether packets that an interface of this thread's namespace receives are joined (GRO).
pub fn receive_offload(link: &Link) -> Result<bool> {
    is_on(link, ETHTOOL_GGRO, "receive")
}

/// Leaves checksums of packets sent on an interface of this thread's namespace to the device, or does not.
pub fn set_tx_checksum(link: &Link, on: bool) -> Result<()> {
    switch(link, ETHTOOL_STXCSUM, on, ["checksum", "tx"])
}

/// Switches the joining of received packets (GRO) on or off at an interface of this thread's namespace.
pub fn set_receive_offload(link: &Link, on: bool) -> Result<()> {
    switch(link, ETHTOOL_SGRO, on, ["receive", "gro"])
}

fn is_on(link: &Link, command: u32, offload: &str) -> Result<bool> {
    let mut value = Value { command, data: 0 };
    ask(link.ifindex, &link.name, &mut value, || format!("reading the {offload} offload of {}", link.name))?;
    Ok(value.data != 0)
}

fn switch(link: &Link, command: u32, on: bool, [offload, option]: [&str; 2]) -> Result<()> {
    let mut value = Value { command, data: u32::from(on) };
    let name = &link.name;
    ask(link.ifindex, name, &mut value, || {
        let to = if on { "on" } else { "off" };
        format!("switching {offload} offload of {name} {to} (`ethtool -K {name} {option} ...`)")
    })
}

/// Asks about an interface by its number: its name may be no text, or be given to another meanwhile. `shown` is the name in errors.
fn ask<T>(ifindex: u32, shown: &str, request: &mut T, doing: impl Fn() -> String) -> Result<()> {
    let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).doing(&doing)?;
    let is_gone = |error: &io::Error| error.raw_os_error() == Some(libc::ENODEV);
    for _ in 0..TRIES {
        let asked = match name_of(&socket, ifindex) {
            Ok(name) => ioctl(&socket, name, request),
            Err(error) if is_gone(&error) => break,
            Err(error) => Err(error),
        };
        match asked {
            // The name is another since it was read.
            Err(error) if is_gone(&error) => {}
            result => return result.doing(doing),
        }
    }
    Err(PortError::NoInterface { name: shown.into() })
}

/// The name of an interface as the kernel has it, which need not be text.
fn name_of(socket: &OwnedFd, ifindex: u32) -> io::Result<[u8; libc::IFNAMSIZ]> {
    /// `struct ifreq` as SIOCGIFNAME uses it.
    #[repr(C)]
    struct NameRequest {
        name: [u8; libc::IFNAMSIZ],
        ifindex: u32,
        rest: [u32; 5],
    }
    let mut interface = NameRequest { name: [0; libc::IFNAMSIZ], ifindex, rest: [0; 5] };
    // SAFETY: `interface` is a whole `struct ifreq` (40 bytes) without addresses, and outlives the call.
    sys::check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFNAME, &mut interface) })?;
    Ok(interface.name)
}

fn ioctl<T>(socket: &OwnedFd, name: [u8; libc::IFNAMSIZ], request: &mut T) -> io::Result<()> {
    /// `struct ifreq` as SIOCETHTOOL uses it.
    #[repr(C)]
    struct InterfaceRequest<T> {
        name: [u8; libc::IFNAMSIZ],
        data: *mut T,
        rest: [u64; 2],
    }
    let mut interface = InterfaceRequest { name, data: request, rest: [0; 2] };
    // SAFETY: `interface` is a whole `struct ifreq` (40 bytes) and `data` points at `request`, the structure its own
    // command word names; both outlive the call.
    sys::check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &mut interface) }).map(drop)
}
