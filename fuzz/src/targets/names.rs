//! Names of interfaces, and ends of generated traffic, as a user writes them.

use std::net::Ipv4Addr;

use weir_path::traffic::flows::{Endpoints, Traffic};
use weir_port::link::kernel_name;

use crate::draw::Draw;

/// A name as the kernel takes it (net/core/dev.c:dev_valid_name).
pub fn names(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let found = kernel_name(&text);
    if let Some(name) = &found {
        assert_eq!(name.to_bytes(), text.as_bytes());
    }
    let bytes = text.as_bytes();
    // isspace of lib/ctype.c has the no-break space of Latin-1 too.
    let is_space = |byte: &u8| matches!(byte, 9..=13 | b' ' | 0xa0);
    let is_valid = (1..16).contains(&bytes.len())
        && ![&b"."[..], b".."].contains(&bytes)
        && !bytes.iter().any(|byte| is_space(byte) || [0, b'/', b':'].contains(byte));
    assert_eq!(found.is_some(), is_valid, "{text:?}");
}

/// Ranges of addresses and ports.
pub fn endpoints(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    if draw.rarely(3) {
        let text = String::from_utf8_lossy(draw.rest());
        if let Err(why) = text.parse::<Endpoints>() {
            assert!(why.contains('`'), "{why}");
        }
        return;
    }
    let (src, dst) = (range(&mut draw), range(&mut draw));
    let traffic = Traffic {
        size_bytes: draw.u16(),
        src,
        dst,
        src_mac: smoltcp::wire::EthernetAddress(draw.array()),
        dst_mac: smoltcp::wire::EthernetAddress(draw.array()),
        flows: draw.any_u64() as u32,
        first_flow: draw.any_u64() as u32,
    };
    if traffic.check().is_ok() {
        assert!(u64::from(traffic.first_flow) + u64::from(traffic.flows) <= traffic.combinations());
    }
}

/// A range in its text form, which is read back.
fn range(draw: &mut Draw) -> Endpoints {
    let mut pair = |shift: u32| {
        let (a, b) = ((draw.u64() >> shift) as u32, (draw.u64() >> shift) as u32);
        (a.min(b), a.max(b))
    };
    let (addresses, ports) = (pair(32), pair(48));
    let addresses = (Ipv4Addr::from(addresses.0), Ipv4Addr::from(addresses.1));
    let ports = (ports.0 as u16, ports.1 as u16);
    let text = format!("{}:{}-{}:{}", addresses.0, ports.0, addresses.1, ports.1);
    let found = text.parse().expect("it runs from low to high");
    assert_eq!(found, Endpoints { addresses, ports });
    found
}
