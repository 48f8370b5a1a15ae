//! Raw Ethernet frames through AF_PACKET, such as no ordinary program sends: VLAN tags, odd sizes, odd types.
//!
//! The kernel takes a VLAN tag off a frame before it hands it to a packet socket, and passes it beside
//! (`PACKET_AUXDATA`); [`RawSocket::receive`] puts it back, so a frame is compared as it stood on the wire.
//!
//! Source: `packet(7)`, `net/packet/af_packet.c`.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use weir_lab::bed::End;

/// The EtherType of local experiments (IEEE 802): no protocol of the kernel's answers to it.
pub const ETHERTYPE: u16 = 0x88b5;

const ETHERTYPE_VLAN: u16 = 0x8100;
const RECEIVE_BUFFER_BYTES: i32 = 64 << 20;

/// A packet socket bound to one interface.
#[derive(Debug)]
pub struct RawSocket {
    fd: OwnedFd,
}

impl RawSocket {
    /// Opens it in the interface's namespace. It does not see packets that leave through the interface.
    pub fn open(end: End) -> Result<RawSocket> {
        let socket = RawSocket::onlooker(end)?;
        socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)?;
        Ok(socket)
    }

    /// Opens a socket with no more memory for frames than any program's: for one that is not read, and only makes each packet dearer to the
    /// interface's own stack.
    pub fn onlooker(end: End) -> Result<RawSocket> {
        end.namespace
            .enter(|| open_here(end.name))?
            .with_context(|| format!("a packet socket on {}", end.name))
    }

    /// Has the kernel say of each frame the time when it came.
    pub fn stamp(&self) -> Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
    }

    /// The socket itself.
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.fd)
    }

    /// Sends past the interface's queue from now on, to the device itself.
    pub fn bypass_queue(&self) -> Result<()> {
        const PACKET_QDISC_BYPASS: i32 = 20;
        self.set(libc::SOL_PACKET, PACKET_QDISC_BYPASS, 1)
    }

    /// Sends one frame; blocks while the interface holds its sender.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        // SAFETY: the pointer and the length are those of a live slice, which the kernel only reads.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent != frame.len() as isize {
            return Err(io::Error::last_os_error()).with_context(|| format!("sending {} bytes", frame.len()));
        }
        Ok(())
    }

    /// The next frame of type [`ETHERTYPE`], or nothing if none comes within `limit`.
    pub fn receive(&self, limit: Duration) -> Result<Option<Vec<u8>>> {
        self.receive_such(limit, |frame| ethertype(frame) == Some(ETHERTYPE))
    }

    /// The next of the frames that are asked for, or nothing if none comes within `limit` of another.
    pub fn receive_such(&self, limit: Duration, is_such: impl Fn(&[u8]) -> bool) -> Result<Option<Vec<u8>>> {
        loop {
            let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd, alive for the call.
            let ready = unsafe { libc::poll(&mut poll, 1, limit.as_millis() as i32) };
            match ready {
                0 => return Ok(None),
                1.. => {}
                _ => return Err(io::Error::last_os_error()).context("poll"),
            }
            let frame = self.receive_any()?;
            if is_such(&frame) {
                return Ok(Some(frame));
            }
        }
    }

    fn receive_any(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; 65536];
        let mut control = [0u64; 16];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: all-zero is a valid msghdr; every pointer put into it outlives the call, with its true length.
        let (length, tag) = unsafe {
            let mut message: libc::msghdr = zeroed();
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of::<[u64; 16]>();
            let length = libc::recvmsg(self.fd.as_raw_fd(), &mut message, 0);
            if length < 0 {
                return Err(io::Error::last_os_error()).context("recvmsg");
            }
            (length as usize, vlan_tag(&message))
        };
        bytes.truncate(length);
        if let Some(tag) = tag {
            bytes.splice(12..12, [ETHERTYPE_VLAN.to_be_bytes(), tag.to_be_bytes()].concat());
        }
        Ok(bytes)
    }
}

/// A frame of `length` bytes that can be told from every other: number, tag and content. Its addresses are nobody's.
pub fn frame(number: u32, length: usize, vlan: Option<u16>, random: &mut Random) -> Vec<u8> {
    let mut frame = vec![0x02, 0x57, 0, 0, 0xff, 2, 0x02, 0x57, 0, 0, 0xff, 1];
    if let Some(tag) = vlan {
        frame.extend(ETHERTYPE_VLAN.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    frame.extend(ETHERTYPE.to_be_bytes());
    frame.extend(number.to_be_bytes());
    while frame.len() < length {
        frame.push(random.next() as u8);
    }
    frame
}

/// SplitMix64: a sequence that a seed repeats.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends, so it is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }
}

/// The type behind a VLAN tag, if there is one.
fn ethertype(frame: &[u8]) -> Option<u16> {
    let at = |offset: usize| Some(u16::from_be_bytes([*frame.get(offset)?, *frame.get(offset + 1)?]));
    match at(12)? {
        ETHERTYPE_VLAN => at(16),
        other => Some(other),
    }
}

/// SAFETY: `message` must have been filled by recvmsg, with its control buffer still alive.
unsafe fn vlan_tag(message: &libc::msghdr) -> Option<u16> {
    // SAFETY: by the contract above the CMSG macros walk a live buffer within the length the kernel set; the payload
    // of this type is a tpacket_auxdata, read without assuming its alignment.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(message);
        while !next.is_null() {
            if ((*next).cmsg_level, (*next).cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
                let aux: libc::tpacket_auxdata =
                    libc::CMSG_DATA(next).cast::<libc::tpacket_auxdata>().read_unaligned();
                return (aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0).then_some(aux.tp_vlan_tci);
            }
            next = libc::CMSG_NXTHDR(message, next);
        }
    }
    None
}

fn open_here(name: &str) -> Result<RawSocket> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: a plain system call; the descriptor it returns is new and ours alone.
    let fd = unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(protocol));
        if fd < 0 {
            return Err(io::Error::last_os_error()).context("socket");
        }
        OwnedFd::from_raw_fd(fd)
    };
    let text = std::ffi::CString::new(name)?;
    // SAFETY: a string that ends in NUL and lives through the call.
    let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error()).with_context(|| format!("no interface {name}"));
    }
    // SAFETY: all-zero is a valid sockaddr_ll; the length given is its size; the kernel only reads it.
    let bound = unsafe {
        let mut address: libc::sockaddr_ll = zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index as i32;
        libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32)
    };
    if bound != 0 {
        return Err(io::Error::last_os_error()).context("bind");
    }
    let socket = RawSocket { fd };
    socket.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
    socket.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    Ok(socket)
}

impl RawSocket {
    fn set(&self, level: i32, name: i32, value: i32) -> Result<()> {
        // SAFETY: the pointer and the size are those of a live i32, which the kernel only reads.
        let done = unsafe {
            let length = size_of::<i32>() as u32;
            libc::setsockopt(self.fd.as_raw_fd(), level, name, (&raw const value).cast(), length)
        };
        if done != 0 {
            return Err(io::Error::last_os_error()).with_context(|| format!("socket option {level}/{name}"));
        }
        Ok(())
    }
}
