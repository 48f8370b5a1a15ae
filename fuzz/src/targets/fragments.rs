//! IPv4 packets cut into fragments, and those again, put together by `etherparse`.
//!
//! Each fragment fits its link, has a right checksum, and has the options that it must; together they are the packet.

use etherparse::defrag::IpDefragBuf;
use etherparse::{IpFragOffset, IpNumber, Ipv4HeaderSlice};
use weir_core::net::fragment::{Fragments, MTU_BYTES_MIN, fit};

use crate::draw::Draw;
use crate::frames::{self, Ends, Frame};

const LINK: usize = 14;

/// Packets of up to a few thousand bytes, by links of any MTU.
pub fn fragments(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let Frame { bytes: mut frame, ip_at, ip_len, .. } = frames::ip(&mut draw, Ends::default());
    frame.truncate(ip_at + ip_len);
    // The drawn packet is short; its payload is made longer.
    let more = draw.below(3000);
    frame.extend((0..more).map(|at| at as u8));
    if frame[ip_at] >> 4 == 4 {
        frame[ip_at + 2..ip_at + 4].copy_from_slice(&((ip_len + more) as u16).to_be_bytes());
    } else {
        frame[ip_at + 4..ip_at + 6].copy_from_slice(&((ip_len + more - 40) as u16).to_be_bytes());
    }
    let padding = draw.below(20);
    frame.extend(vec![0xee; padding]);
    let mtus = [0, 1].map(|_| MTU_BYTES_MIN + draw.u16() % 1500);
    let len = ip_len + more;
    match fit(&frame, mtus[0]) {
        Ok(false) => assert!(len <= usize::from(mtus[0])),
        Err(_) => assert!(len > usize::from(mtus[0])),
        Ok(true) => {
            assert!(len > usize::from(mtus[0]) && frame[ip_at] >> 4 == 4 && frame[ip_at + 6] & 0x40 == 0);
            let once = cut(&frame, mtus[0]);
            look_at(&frame, &once);
            let twice: Vec<_> = once
                .into_iter()
                .flat_map(|piece| match fit(&piece, mtus[1]).expect("options that were read") {
                    true => cut(&piece, mtus[1]),
                    false => vec![piece],
                })
                .collect();
            look_at(&frame, &twice);
        }
    }
}

fn cut(frame: &[u8], mtu_bytes: u16) -> Vec<Vec<u8>> {
    let mut fragments = Fragments::new(frame, mtu_bytes).expect("it may be cut");
    let count = fragments.count();
    let mut made = Vec::new();
    let mut room = vec![0; frame.len()];
    while let Some(len) = fragments.write_next(&mut room) {
        assert!(len <= LINK as u16 + mtu_bytes);
        made.push(room[..usize::from(len)].to_vec());
    }
    assert_eq!(made.len(), count);
    made
}

fn look_at(whole: &[u8], fragments: &[Vec<u8>]) {
    let (was, data) = read(whole);
    let first = was.fragments_offset().value();
    let mut together = IpDefragBuf::new(IpNumber(0), Vec::new(), Vec::new());
    for (number, fragment) in fragments.iter().enumerate() {
        assert_eq!(fragment[..LINK], whole[..LINK]);
        let (is, data) = read(fragment);
        assert_eq!(is.to_header().calc_header_checksum(), is.header_checksum());
        assert_eq!(usize::from(is.total_len()) + LINK, fragment.len(), "nothing behind it");
        let mut expected = was.to_header();
        expected.more_fragments |= number + 1 < fragments.len();
        let own = is.to_header();
        (expected.total_len, expected.header_checksum) = (own.total_len, own.header_checksum);
        (expected.fragment_offset, expected.options) = (own.fragment_offset, own.options.clone());
        assert_eq!(own, expected);
        if number == 0 {
            assert_eq!(is.options(), was.options());
        } else {
            assert!(
                copied(is.options()).eq(copied(was.options())) && is.options().len() <= was.options().len()
            );
        }
        let offset = IpFragOffset::try_new(is.fragments_offset().value() - first).expect("13 bits");
        // A fragment that the packet itself is may end anywhere; then no more is to come here.
        together.add(offset, number + 1 < fragments.len(), data).expect("it fits the others");
    }
    assert!(together.is_complete());
    assert_eq!(together.data(), data);
}

fn read(frame: &[u8]) -> (Ipv4HeaderSlice<'_>, &[u8]) {
    let ip = Ipv4HeaderSlice::from_slice(&frame[LINK..]).expect("IPv4");
    let end = LINK + usize::from(ip.total_len());
    (ip, &frame[LINK + ip.slice().len()..end])
}

/// The options that every fragment has.
fn copied(mut options: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        loop {
            let len = match options.first()? {
                0 => return None,
                1 => 1,
                _ => usize::from(options[1]),
            };
            let (option, rest) = options.split_at(len);
            options = rest;
            if option[0] >= 0x80 {
                return Some(option);
            }
        }
    })
}
