//! Frames built field by field with a known flow, frames of any bytes, and good frames damaged.

use proptest::prelude::*;

use super::*;

/// A frame to build, and the tuple that it must have.
#[derive(Clone, Debug)]
struct Plan {
    tags: Vec<u16>,
    v6: bool,
    source: [u8; 16],
    destination: [u8; 16],
    ports: [u8; 4],
    protocol: u8,
    /// The words of options of IPv4; the extension headers of IPv6 by next-header number.
    options: u8,
    extensions: Vec<(u8, u8)>,
    /// The more-fragments flag and the offset.
    fragment: Option<(bool, u16)>,
    /// The bytes of payload that the IP header claims.
    payload_len: usize,
    padding_len: usize,
}

impl Plan {
    fn frame(&self) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for (i, tag) in self.tags.iter().enumerate() {
            frame.extend(if i + 1 < self.tags.len() { [0x88, 0xa8] } else { [0x81, 0x00] });
            frame.extend(tag.to_be_bytes());
        }
        let mut payload = self.ports.to_vec();
        payload.resize(64, 0xaa);
        payload.truncate(self.payload_len);
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x60, 1, 2, 3]);
            let mut chain = Vec::new();
            let mut headers: Vec<_> = self.extensions.clone();
            if self.fragment.is_some() {
                headers.push((44, 0));
            }
            for (i, (number, len)) in headers.iter().enumerate() {
                let next = headers.get(i + 1).map_or(self.protocol, |(number, _)| *number);
                let mut bytes = vec![0; 8 * (usize::from(*len) + 1)];
                (bytes[0], bytes[1]) = (next, *len);
                if let (44, Some((more, offset))) = (*number, self.fragment) {
                    bytes[2..4].copy_from_slice(&(offset << 3 | u16::from(more)).to_be_bytes());
                }
                chain.extend(bytes);
            }
            frame.extend(u16::to_be_bytes((chain.len() + payload.len()) as u16));
            frame.extend([headers.first().map_or(self.protocol, |(number, _)| *number), 64]);
            frame.extend(self.source);
            frame.extend(self.destination);
            frame.extend(chain);
        } else {
            let header_len = 20 + 4 * usize::from(self.options);
            frame.extend([0x08, 0x00, 0x45 + self.options, 0]);
            frame.extend(u16::to_be_bytes((header_len + payload.len()) as u16));
            let (more, offset) = self.fragment.unwrap_or_default();
            frame.extend([7, 7]);
            frame.extend((offset | u16::from(more) << 13).to_be_bytes());
            frame.extend([64, self.protocol, 0, 0]);
            frame.extend(&self.source[..4]);
            frame.extend(&self.destination[..4]);
            frame.extend(vec![1; header_len - 20]);
        }
        frame.extend(payload);
        frame.resize(frame.len() + self.padding_len, 0x55);
        frame
    }

    fn expected(&self, kind: HashKind) -> Tuple {
        let is_fragment = match self.fragment {
            Some((more, offset)) => self.v6 || more || offset != 0,
            None => false,
        };
        let has_ports = kind == HashKind::FourTuple
            && !is_fragment
            && (self.protocol == 6 || self.protocol == 17)
            && self.payload_len >= 4
            && (!self.v6 || self.extensions.len() <= EXTENSIONS_MAX);
        let word = |bytes: &[u8]| bytes.try_into().unwrap();
        let ports = if has_ports { self.ports } else { [0; 4] };
        if self.tags.len() > TAGS_MAX {
            Tuple::None
        } else if self.v6 {
            let bytes = [self.source, self.destination].concat();
            let addresses = std::array::from_fn(|k| word(&bytes[8 * k..8 * k + 8]));
            Tuple::V6(Flow { addresses, ports })
        } else {
            let bytes = [&self.source[..4], &self.destination[..4]].concat();
            Tuple::V4(Flow { addresses: [word(&bytes)], ports })
        }
    }
}

fn plans() -> impl Strategy<Value = Plan> {
    let addressing = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<[u8; 4]>());
    let protocol = prop_oneof![3 => Just(6_u8), 3 => Just(17), 1 => Just(50), 1 => Just(1), 1 => Just(59)];
    let fragment = prop_oneof![4 => Just(None), 1 => (any::<bool>(), 0_u16..8192).prop_map(Some)];
    let extensions =
        prop::collection::vec((prop_oneof![Just(0_u8), Just(43), Just(60)], 0_u8..3), 0..=EXTENSIONS_MAX + 2);
    let extensions = prop_oneof![2 => Just(Vec::new()), 1 => extensions];
    (
        (prop::collection::vec(0_u16..4096, 0..4), any::<bool>(), addressing, protocol),
        (prop_oneof![3 => Just(0_u8), 1 => 1_u8..=10], extensions, fragment, 0_usize..40, 0_usize..20),
    )
        .prop_map(
            |(
                (tags, v6, (source, destination, ports), protocol),
                (options, extensions, fragment, payload_len, padding_len),
            )| {
                Plan {
                    tags,
                    v6,
                    source,
                    destination,
                    ports,
                    protocol,
                    options,
                    extensions,
                    fragment,
                    payload_len,
                    padding_len,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_built_frame_has_the_tuple_it_was_built_with(plan in plans()) {
        for kind in HashKind::ALL {
            prop_assert_eq!(tuple(&plan.frame(), kind), plan.expected(kind), "{:?}", kind);
        }
    }

    /// The masked compares and the smoltcp views give the same tuple wherever the compares give any.
    #[test]
    fn both_ways_agree_on_damaged_frames(
        plan in plans(),
        damage in prop::collection::vec((0_usize..80, any::<u8>()), 0..6),
        cut in prop::option::of(0_usize..120),
    ) {
        let mut frame = plan.frame();
        for (at, byte) in damage {
            if let Some(target) = frame.get_mut(at) {
                *target = byte;
            }
        }
        frame.truncate(cut.unwrap_or(frame.len()));
        for kind in HashKind::ALL {
            if let Some(found) = common(&frame, kind) {
                prop_assert_eq!(found, other(&frame, kind), "{:02x?}", frame);
            }
            tuple(&frame, kind);
        }
    }

    #[test]
    fn any_bytes_are_survived(mut frame in prop::collection::vec(any::<u8>(), 0..200), ethertype in 0_usize..5) {
        let ethertypes = [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00], [0x88, 0xa8], [0x08, 0x06]];
        tuple(&frame, HashKind::FourTuple);
        if frame.len() >= 14 {
            frame[12..14].copy_from_slice(&ethertypes[ethertype]);
            tuple(&frame, HashKind::FourTuple);
        }
    }
}

fn plain(v6: bool) -> Plan {
    Plan {
        tags: Vec::new(),
        v6,
        source: [10; 16],
        destination: [20; 16],
        ports: [1, 2, 3, 4],
        protocol: 17,
        options: 0,
        extensions: Vec::new(),
        fragment: None,
        payload_len: 26,
        padding_len: 0,
    }
}

/// The fast way must be the one taken, or the goal of 20 cycles a packet rests on nothing.
#[test]
fn common_frames_are_settled_by_the_compares() {
    for v6 in [false, true] {
        assert!(common(&plain(v6).frame(), HashKind::FourTuple).is_some());
        assert!(common(&Plan { tags: vec![7, 8], ..plain(v6) }.frame(), HashKind::FourTuple).is_some());
    }
    assert_eq!(common(&Plan { options: 1, ..plain(false) }.frame(), HashKind::FourTuple), None);
}

#[test]
fn what_is_not_ip_or_lies_about_its_length_has_no_tuple() {
    let mut arp = plain(false).frame();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let mut too_long = plain(false).frame();
    too_long[16..18].copy_from_slice(&2000_u16.to_be_bytes());
    let mut header_too_short = plain(false).frame();
    header_too_short[14] = 0x44;
    let mut wrong_version = plain(true).frame();
    wrong_version[14] = 0x40;
    for frame in [arp, too_long, header_too_short, wrong_version, Vec::new(), vec![0; 13]] {
        assert_eq!(tuple(&frame, HashKind::FourTuple), Tuple::None, "{frame:02x?}");
    }
}

#[test]
fn padding_is_no_port() {
    let short = Plan { payload_len: 2, padding_len: 24, ..plain(false) };
    assert_eq!(tuple(&short.frame(), HashKind::FourTuple), short.expected(HashKind::TwoTuple));
}
