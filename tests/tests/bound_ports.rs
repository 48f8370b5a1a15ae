//! The XDP program of an interface that a stack shares with the kernel, as the kernel's verifier takes it, run on frames of each kind: each
//! frame goes to its owner. And the program at the other end where a stack has several workers: the queue by which a flow comes.

use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use weir_core::steer::key::Key;
use weir_core::steer::parse::HashKind;
use weir_core::steer::rss::Rss;
use weir_port::bpf::bound::{BoundPorts, OwnAddress, Transport};
use weir_port::bpf::doorbell::{Announcements, Bell, DoorbellProgram};
use weir_port::bpf::map::Map;
use weir_port::bpf::steering::BucketSteering;
use weir_tests::{harness, privileged};

fn main() -> ExitCode {
    harness::main(&[
        privileged!(each_packet_goes_to_whose_it_is).together(),
        privileged!(what_all_workers_must_hear_goes_to_each).together(),
        privileged!(a_flow_comes_by_the_queue_of_its_bucket).together(),
    ])
}

/// Two addresses of each family, one of each shared.
fn each_packet_goes_to_whose_it_is() -> Result<()> {
    let own = |address: &str, is_shared| -> Result<OwnAddress> {
        Ok(OwnAddress { address: address.parse()?, is_shared })
    };
    let addresses =
        vec![own("10.0.0.2", true)?, own("10.0.0.3", false)?, own("fd00::2", true)?, own("fd00::3", false)?];
    let ports = BoundPorts::new(addresses, 1, None)?;
    let program = ports.load(&Map::xskmap(1)?)?;
    // A frame for the stack is dropped, there being no socket to go to; a frame for the kernel is passed and counted.
    let is_kernels = |frame: &[u8]| -> Result<bool> {
        let before = ports.passed(0);
        let verdict = program.run(frame)?;
        let [packets, bytes] = [0, 1].map(|word| ports.passed(0)[word].wrapping_sub(before[word]));
        match (verdict, packets, bytes as usize) {
            (1, 0, 0) => Ok(false),
            (2, 1, bytes) if bytes == frame.len() => Ok(true),
            other => bail!("{other:?}"),
        }
    };
    let require = |what: &str, frame: &[u8], expected: bool| -> Result<()> {
        ensure!(is_kernels(frame)? == expected, "{what} is the kernel's: {}", !expected);
        Ok(())
    };
    let bits = [
        (0, Transport::Udp, 53),
        (0, Transport::Tcp, 65535),
        (2, Transport::Udp, 0),
        (2, Transport::Tcp, 32),
    ];
    for is_bound in [false, true, false] {
        for (address, transport, port) in bits {
            ports.set(address, transport, port, is_bound);
        }
        for (number, to) in [(0, "10.0.0.2"), (2, "fd00::2")] {
            for (protocol, transport) in [(17, Transport::Udp), (6, Transport::Tcp)] {
                for port in [0, 1, 31, 32, 33, 52, 53, 54, 8192, 65503, 65534, 65535] {
                    let is_ours = is_bound && bits.contains(&(number, transport, port));
                    let frame = packet(to, protocol, port)?;
                    require(&format!("{to} {transport:?} {port}"), &frame, !is_ours)?;
                }
            }
            for protocol in [1, 47, 50, 58, 132] {
                require(to, &packet(to, protocol, 53)?, true)?;
            }
        }
        for to in ["10.0.0.3", "fd00::3"] {
            for protocol in [1, 6, 17, 47, 50, 58, 132] {
                require(to, &packet(to, protocol, 53)?, false)?;
            }
        }
        for to in ["10.0.0.4", "224.0.0.1", "255.255.255.255", "fd00::4", "ff02::1"] {
            require(to, &packet(to, 17, 53)?, true)?;
        }
    }
    ports.set(0, Transport::Udp, 53, true);
    // With options the port stands further behind; of a fragment nobody knows it; a frame that is cut short has none.
    let udp = packet("10.0.0.2", 17, 53)?;
    let mut options = udp.clone();
    options[14] = 0x47;
    options.splice(34..34, [1; 8]);
    require("a packet with options", &options, false)?;
    for (offset, value) in [(20, 0x20), (20, 0x1f), (21, 1)] {
        let mut fragment = udp.clone();
        fragment[offset] = value;
        require("a fragment", &fragment, true)?;
    }
    let mut whole = udp.clone();
    whole[20] = 0x40;
    require("a packet that must not be cut", &whole, false)?;
    for (at, value) in [(14, 0x44), (14, 0x4f), (12, 0x81)] {
        let mut odd = udp.clone();
        odd[at] = value;
        require("a packet that is none, or of a VLAN", &odd[..udp.len().min(60)], true)?;
    }
    for len in 14..udp.len() {
        require("a packet cut short", &udp[..len], len < 38)?;
    }
    let mut extended = packet("fd00::2", 0, 53)?;
    extended[54] = 17;
    require("a packet with extension headers", &extended, true)?;
    // The owner of an address answers ARP for it.
    for (target, is_kernels) in [([10, 0, 0, 2], true), ([10, 0, 0, 3], false), ([10, 0, 0, 4], true)] {
        let mut arp = vec![0xff; 42];
        arp[12..14].copy_from_slice(&[8, 6]);
        arp[38..].copy_from_slice(&target);
        require("ARP", &arp, is_kernels)?;
    }
    for (target, is_kernels) in [("fd00::2", true), ("fd00::3", false), ("fd00::4", true)] {
        let mut solicitation = packet("ff02::1:ff00:3", 58, 0)?;
        solicitation[54] = 135;
        let target: std::net::Ipv6Addr = target.parse()?;
        solicitation[62..78].copy_from_slice(&target.octets());
        require("a neighbour solicitation", &solicitation, is_kernels)?;
        solicitation[54] = 136;
        require("an advertisement to a group", &solicitation, true)?;
    }
    Ok(())
}

fn rss(bits: u32, workers: usize) -> Result<Rss> {
    Ok(Rss::new(&Key::MICROSOFT, HashKind::FourTuple, bits, workers)?)
}

/// An address that a stack of two workers has for itself: answers and errors go past its sockets, to where each worker has a copy of them.
fn what_all_workers_must_hear_goes_to_each() -> Result<()> {
    let own = ["10.0.0.3", "fd00::3"].map(|address| -> Result<OwnAddress> {
        Ok(OwnAddress { address: address.parse()?, is_shared: false })
    });
    let own = own.into_iter().collect::<Result<Vec<_>>>()?;
    let ports = BoundPorts::new(own, 2, Some(BucketSteering::new(&rss(1, 2)?, 2)?))?;
    let program = ports.load(&Map::xskmap(2)?)?;
    let require = |what: &str, frame: &[u8], is_passed: bool| -> Result<()> {
        ensure!((program.run(frame)? == 2) == is_passed, "{what} is passed on: {}", !is_passed);
        Ok(())
    };
    for protocol in [6, 17] {
        for to in ["10.0.0.3", "fd00::3"] {
            require(to, &packet(to, protocol, 53)?, false)?;
        }
    }
    for (kind, is_passed) in [(0, false), (3, true), (8, false), (11, false)] {
        let mut icmp = packet("10.0.0.3", 1, 0)?;
        icmp[34] = kind;
        require(&format!("ICMP type {kind}"), &icmp, is_passed)?;
        icmp[14] = 0x46;
        icmp.splice(34..34, [1; 4]);
        require(&format!("ICMP type {kind} behind options"), &icmp, is_passed)?;
        icmp[21] = 1;
        require("a later fragment", &icmp, false)?;
    }
    for (kind, is_passed) in [(1, true), (2, true), (3, false), (128, false), (135, false), (136, true)] {
        let mut icmp = packet("fd00::3", 58, 0)?;
        icmp[54] = kind;
        require(&format!("ICMPv6 type {kind}"), &icmp, is_passed)?;
    }
    for (operation, is_passed) in [(1, false), (2, true)] {
        let mut arp = vec![0; 42];
        arp[12..14].copy_from_slice(&[8, 6]);
        arp[21] = operation;
        arp[38..].copy_from_slice(&[10, 0, 0, 3]);
        require(&format!("ARP operation {operation}"), &arp, is_passed)?;
    }
    Ok(())
}

fn a_flow_comes_by_the_queue_of_its_bucket() -> Result<()> {
    for (bits, workers, queues) in [(1, 2, 2), (3, 2, 5), (7, 4, 8)] {
        let (rss, bell) = (rss(bits, workers)?, Bell::new()?);
        let announcements = Announcements::new(queues)?;
        let steering = BucketSteering::new(&rss, queues)?;
        let program = DoorbellProgram::load(&[&bell], &announcements, Some(&steering))?;
        let by = rss.queues(queues);
        let queue_of = |frame: &[u8]| -> Result<Vec<usize>> {
            program.run(frame)?;
            let pending = (0..queues).filter(|&queue| announcements.is_pending(queue)).collect();
            (0..queues).for_each(|queue| announcements.expect_none(queue));
            Ok(pending)
        };
        for number in 0..64_u16 {
            for (to, protocol) in [("10.0.0.3", 6), ("10.0.0.3", 17), ("fd00::3", 6), ("fd00::3", 17)] {
                let mut frame = packet(to, protocol, number.wrapping_mul(4001))?;
                // Each frame has another source.
                frame[if to.contains('.') { 29 } else { 37 }] = number as u8;
                let wanted = usize::from(by[rss.bucket(rss.hash(&frame))]);
                let found = queue_of(&frame)?;
                ensure!(found == [wanted], "{to} {protocol} {number}: {found:?}, not {wanted}");
            }
        }
        let mut options = packet("10.0.0.3", 17, 53)?;
        options[14] = 0x47;
        options[17] += 8;
        options.splice(34..34, [1; 8]);
        ensure!(queue_of(&options)? == [usize::from(by[rss.bucket(rss.hash(&options))])], "with options");
        for other in [packet("10.0.0.3", 1, 0)?, packet("fd00::3", 58, 0)?, vec![0; 60]] {
            ensure!(queue_of(&other)? == [0], "what has no ports");
        }
        let mut fragment = packet("10.0.0.3", 17, 53)?;
        fragment[20] = 0x20;
        ensure!(queue_of(&fragment)? == [0], "a fragment");
    }
    Ok(())
}

/// A frame to an address, of this protocol and, if that has such, this port.
fn packet(to: &str, protocol: u8, port: u16) -> Result<Vec<u8>> {
    let mut frame = vec![2; 12];
    match to.parse()? {
        IpAddr::V4(to) => {
            frame.extend([8, 0, 0x45, 0, 0, 64, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1]);
            frame.extend(to.octets());
        }
        IpAddr::V6(to) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 44, protocol, 64]);
            frame.extend([0xfd; 16]);
            frame.extend(to.octets());
        }
    }
    frame.extend([0x13, 0x88]);
    frame.extend(port.to_be_bytes());
    frame.extend([0; 40]);
    Ok(frame)
}
