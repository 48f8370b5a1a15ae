//! A tun or tap interface and the program behind it, which takes packets that the host sends.
//!
//! Source: kernel `Documentation/networking/tuntap.rst`; `TUNSETIFF` of `include/uapi/linux/if_tun.h`.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::Namespace;

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const IPV4_AND_UDP_BYTES: usize = 28;
const ETHERNET_BYTES: usize = 14;
const LOOK_MS: i32 = 100;

/// The layer of an interface's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// IP packets: tun.
    Ip,
    /// Ethernet frames: tap.
    Ethernet,
}

/// The program's end. The interface goes with it.
#[derive(Debug)]
pub struct Tun {
    file: File,
    layer: Layer,
}

impl Tun {
    /// Makes an interface called `name`, with `network.1` of 24 bits as the host's address and `network.2` behind it.
    pub fn new(host: &Namespace, name: &str, layer: Layer, network: &str) -> Result<Tun> {
        let file = host.enter(|| open(name, layer))??;
        host.ip(&format!("addr add {network}.1/24 dev {name}"))?;
        host.ip(&format!("link set {name} up"))?;
        if layer == Layer::Ethernet {
            host.ip(&format!("neigh replace {network}.2 lladdr 02:57:00:00:77:02 dev {name} nud permanent"))?;
        }
        Ok(Tun { file, layer })
    }

    /// The beginning of the next UDP datagram's payload over IPv4; `WouldBlock` if none comes for a while.
    pub fn receive(&self, head: &mut [u8]) -> io::Result<usize> {
        let mut packet = [0; 65_536];
        let headers = IPV4_AND_UDP_BYTES + if self.layer == Layer::Ethernet { ETHERNET_BYTES } else { 0 };
        loop {
            let mut poll = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd, alive for the call.
            if unsafe { libc::poll(&mut poll, 1, LOOK_MS) } < 1 {
                return Err(ErrorKind::WouldBlock.into());
            }
            let length = (&self.file).read(&mut packet)?;
            let ip = &packet[headers - IPV4_AND_UDP_BYTES..];
            if length >= headers + head.len() && (ip[0], ip[9]) == (0x45, libc::IPPROTO_UDP as u8) {
                head.copy_from_slice(&packet[headers..headers + head.len()]);
                return Ok(head.len());
            }
        }
    }
}

fn open(name: &str, layer: Layer) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").context("/dev/net/tun")?;
    // The head of `struct ifreq`: a name, then flags.
    let mut request = [0u8; 40];
    ensure!(name.len() < libc::IFNAMSIZ, "a name too long");
    request[..name.len()].copy_from_slice(name.as_bytes());
    let kind = if layer == Layer::Ip { libc::IFF_TUN } else { libc::IFF_TAP };
    request[16..18].copy_from_slice(&((kind | libc::IFF_NO_PI) as i16).to_ne_bytes());
    // SAFETY: the request is as long as a `struct ifreq` and alive for the call; the descriptor is open.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) };
    if done < 0 {
        return Err(io::Error::last_os_error()).with_context(|| format!("making {name}"));
    }
    Ok(file)
}
