//! Fragments put together again by a reader of RFC 791 that shares nothing with the code that cut them.

use proptest::prelude::*;

use super::*;

const LINK: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];

/// A fragment, or a packet, read field by field.
#[derive(Debug)]
struct Read {
    header: Vec<u8>,
    data: Vec<u8>,
    dont_fragment: bool,
    more: bool,
    /// The offset in bytes.
    offset: usize,
}

fn read(frame: &[u8]) -> Read {
    assert_eq!(frame[..14], LINK);
    let ip = &frame[14..];
    assert_eq!(ip[0] >> 4, 4);
    let header_len = usize::from(ip[0] % 16) * 4;
    assert_eq!(usize::from(ip[2]) * 256 + usize::from(ip[3]), ip.len(), "nothing behind it");
    let sum =
        ip[..header_len].chunks(2).map(|word| u32::from(word[0]) * 256 + u32::from(word[1])).sum::<u32>();
    assert_eq!(sum % 0xffff, 0, "the checksum");
    assert!(sum > 0 && ip[6] & 0x80 == 0);
    Read {
        header: ip[..header_len].to_vec(),
        data: ip[header_len..].to_vec(),
        dont_fragment: ip[6] & 0x40 != 0,
        more: ip[6] & 0x20 != 0,
        offset: (usize::from(ip[6] & 0x1f) * 256 + usize::from(ip[7])) * 8,
    }
}

/// A packet with these options, data, flags and offset in units, and padding behind it.
fn packet(options: &[u8], data: &[u8], flags_and_offset: u16) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0);
    let header_len = 20 + options.len();
    let len = ((header_len + data.len()) as u16).to_be_bytes();
    let [flags, offset] = flags_and_offset.to_be_bytes();
    let mut ip = vec![0x40 | (header_len / 4) as u8, 0x28, len[0], len[1], 0xab, 0xcd, flags, offset, 64, 17];
    ip.extend([0, 0, 192, 168, 0, 2, 10, 1, 2, 3]);
    ip.extend(options);
    let sum = ip.chunks(2).map(|word| u32::from(word[0]) * 256 + u32::from(word[1])).sum::<u32>();
    let sum = (sum % 0xffff) as u16;
    ip[10..12].copy_from_slice(&(!sum).to_be_bytes());
    [&LINK[..], &ip, data, &[0xee; 3]].concat()
}

fn cut(frame: &[u8], mtu_bytes: u16) -> Vec<Vec<u8>> {
    let mut fragments = Fragments::new(frame, mtu_bytes).expect("a packet that may be cut");
    let expected = fragments.count();
    let mut made = Vec::new();
    let mut room = [0xdd; 4096];
    while let Some(len) = fragments.write_next(&mut room) {
        assert!(room[usize::from(len)..].iter().all(|&byte| byte == 0xdd), "not a byte further");
        made.push(room[..usize::from(len)].to_vec());
        assert_eq!(fragments.count(), expected - made.len());
        room.fill(0xdd);
    }
    made
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256) as u8).collect()
}

/// Checks fragments of `whole` against it, however often it was cut; returns the data that they have together.
fn check(whole: &[u8], fragments: &[Vec<u8>], mtu_bytes: u16) {
    let end = 14 + usize::from(whole[16]) * 256 + usize::from(whole[17]);
    let whole = read(&whole[..end]);
    let mut next = whole.offset;
    let mut together = Vec::new();
    for (number, fragment) in fragments.iter().enumerate() {
        let part = read(fragment);
        assert!(fragment.len() <= 14 + usize::from(mtu_bytes));
        assert_eq!((part.offset, part.dont_fragment), (next, false), "in order, without holes");
        let is_last = number + 1 == fragments.len();
        assert_eq!(part.more, !is_last || whole.more);
        assert!(!part.data.is_empty() && (is_last || part.data.len().is_multiple_of(8)));
        // Version, service, identification, time to live, protocol, addresses.
        for same in [1..2, 4..6, 8..10, 12..20] {
            assert_eq!(part.header[same.clone()], whole.header[same]);
        }
        next += part.data.len();
        together.extend(part.data);
    }
    assert_eq!(together, whole.data);
}

#[test]
fn golden_fragments() {
    let whole = packet(&[], &data(100), 0);
    let fragments = cut(&whole, 68);
    let heads: Vec<_> = fragments.iter().map(|fragment| fragment[16..22].to_vec()).collect();
    // 48 + 48 + 4 bytes at 0, 6 and 12 units.
    assert_eq!(
        heads,
        [[0, 68, 0xab, 0xcd, 0x20, 0], [0, 68, 0xab, 0xcd, 0x20, 6], [0, 24, 0xab, 0xcd, 0x00, 12]]
    );
    check(&whole, &fragments, 68);
}

#[test]
fn options_are_copied_if_they_say_so() {
    // No-operation, record route (not copied), loose source route (copied), router alert (copied), end.
    let options = [1, 7, 7, 4, 0, 0, 0, 0, 0x83, 7, 4, 9, 9, 9, 9, 0x94, 4, 0, 0, 0];
    let whole = packet(&options, &data(200), 0);
    let fragments = cut(&whole, 100);
    check(&whole, &fragments, 100);
    assert_eq!(read(&fragments[0]).header[20..], options, "the first has all");
    let copied = [0x83, 7, 4, 9, 9, 9, 9, 0x94, 4, 0, 0, 0];
    for fragment in &fragments[1..] {
        assert_eq!(read(fragment).header[20..], copied);
    }
    // 56 and 64 of the 200 bytes, and the rest.
    assert_eq!(fragments.iter().map(Vec::len).collect::<Vec<_>>(), [14 + 96, 14 + 96, 14 + 96, 14 + 48]);

    // The copied options end within a word, which is filled up.
    let whole = packet(&[7, 3, 4, 0x88, 3, 1, 0, 0], &data(90), 0);
    let fragments = cut(&whole, 68);
    check(&whole, &fragments, 68);
    assert_eq!(read(&fragments[1]).header[20..], [0x88, 3, 1, 0]);
}

#[test]
fn a_fragment_is_cut_as_a_packet_is() {
    const MORE: u16 = 0x2000;
    for flags_and_offset in [MORE, MORE | 185, 370, MORE | 4000] {
        let whole = packet(&[0x94, 4, 0, 0], &data(1480), flags_and_offset);
        let first = cut(&whole, 700);
        check(&whole, &first, 700);
        let again: Vec<_> = first.iter().flat_map(|fragment| cut(fragment, 300)).collect();
        check(&whole, &again, 300);
    }
}

#[test]
fn what_cannot_be_cut_is_not() {
    let long = data(1480);
    let dont_fragment = packet(&[], &long, 0x4000);
    assert_eq!(fit(&dont_fragment, 1499), Err(DropReason::TooLong));
    assert_eq!(fit(&dont_fragment, 1500), Ok(false));
    assert_eq!(fit(&packet(&[], &long, 0), 1499), Ok(true));
    // Options cut short, of no length, of length 1, longer than the header.
    for options in [[1, 1, 1, 7], [7, 0, 0, 0], [7, 1, 0, 0], [7, 5, 0, 0]] {
        assert_eq!(fit(&packet(&options, &long, 0), 1400), Err(DropReason::Malformed));
    }
    assert_eq!(fit(&packet(&[0, 7, 0, 0], &long, 0), 1400), Ok(true), "what is behind the end is nothing");
    // The data reaches to byte 65,535 and no further.
    assert_eq!(fit(&packet(&[], &data(1479), 8007), 1400), Ok(true));
    assert_eq!(fit(&packet(&[], &data(1480), 8007), 1400), Err(DropReason::Malformed));
    assert_eq!(fit(&[0; 30], 68), Err(DropReason::Malformed));
}

/// A packet of IPv6 with these data behind its header, and padding behind it.
fn packet_v6(next: u8, data: &[u8]) -> Vec<u8> {
    let [high, low] = (data.len() as u16).to_be_bytes();
    let mut ip = vec![0x6a, 0xbc, 0xde, 0xf0, high, low, next, 64];
    ip.extend([[0x20; 16], [0x21; 16]].concat());
    let link = [&LINK[..12], &[0x86, 0xdd]].concat();
    [&link[..], &ip, data, &[0xee; 3]].concat()
}

#[test]
fn ipv6_is_cut_by_its_source() {
    for (len, mtu_bytes) in [(1300, 1280), (1232, 1280), (1233, 1280), (3000, 1280), (100, 56), (8, 1280)] {
        let data = data(len);
        let whole = packet_v6(50, &data);
        let mut fragments = Fragments::of_own_v6(&whole, mtu_bytes, 0x1234_5678).unwrap();
        let count = fragments.count();
        let mut together = Vec::new();
        let mut room = [0xdd; 4096];
        for number in 1..=count {
            let len = usize::from(fragments.write_next(&mut room).unwrap());
            assert!(len <= 14 + usize::from(mtu_bytes));
            let (head, part) = room[..len].split_at(14 + 48);
            assert_eq!((&head[..18], &head[21..54]), (&whole[..18], &whole[21..54]));
            assert_eq!(usize::from(head[18]) * 256 + usize::from(head[19]), 8 + part.len());
            assert_eq!((head[20], head[54], head[55]), (44, 50, 0));
            let position = usize::from(head[56]) * 256 + usize::from(head[57]);
            assert_eq!((position & 6, position & !7), (0, together.len()), "in order, without holes");
            assert_eq!(position & 1 == 1, number < count);
            assert!(number == count || part.len() % 8 == 0 && len + 8 > 14 + usize::from(mtu_bytes));
            assert_eq!(head[58..62], [0x12, 0x34, 0x56, 0x78]);
            together.extend(part);
        }
        assert_eq!((together, fragments.write_next(&mut room)), (data, None));
    }
    // A fragment already, also behind options; headers that are longer than the packet, or of which nothing is there.
    for (next, data) in
        [(44, vec![50; 90]), (0, [&[44, 0][..], &[0; 90]].concat()), (43, vec![50; 90]), (60, vec![])]
    {
        let refused = Fragments::of_own_v6(&packet_v6(next, &data), 1280, 1).err();
        assert_eq!(refused, Some(DropReason::Malformed), "{next}");
    }
    let long = packet_v6(43, &[&[50, 10][..], &[0; 200]].concat());
    assert_eq!(Fragments::of_own_v6(&long, 1280, 1).err(), Some(DropReason::TooLong));
    assert_eq!(Fragments::of_own_v6(&packet_v6(50, &[0; 100]), 55, 1).err(), Some(DropReason::TooLong));
    assert_eq!(Fragments::of_own_v6(&packet(&[], &[0; 100], 0), 1280, 1).err(), Some(DropReason::Malformed));
}

/// Hop-by-hop options, and all up to a routing header, are in every fragment; other destination options in the first alone.
#[test]
fn headers_for_the_way_are_in_every_fragment() {
    let header = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let (options, routing) = ([60, 43, 60], [0, 60, 43, 60]);
    for (numbers, of_all) in [(&options[..1], 0), (&options[..], 2), (&routing[..1], 1), (&routing[..], 3)] {
        let numbers: Vec<u8> = numbers.iter().copied().chain([50]).collect();
        let headers: Vec<u8> = numbers[1..].iter().flat_map(|&next| header(next)).collect();
        let whole = packet_v6(numbers[0], &[&headers[..], &data(1300)].concat());
        let mut fragments = Fragments::of_own_v6(&whole, 1280, 7).unwrap();
        let before_len = 14 + 40 + 8 * of_all;
        let mut together: Vec<u8> = Vec::new();
        let mut room = [0; 1500];
        for number in 0..2 {
            let len = usize::from(fragments.write_next(&mut room).unwrap());
            let (head, part) = room[..len].split_at(before_len + 8);
            let mut before = head[..before_len].to_vec();
            // The number that leads to the fragment header leads past it in the packet.
            let next_at = if of_all == 0 { 20 } else { before_len - 8 };
            assert_eq!((before[next_at], head[before_len]), (44, numbers[of_all]), "{numbers:?}");
            before[next_at] = numbers[of_all];
            before[18..20].copy_from_slice(&whole[18..20]);
            assert_eq!(before, whole[..before_len], "{numbers:?}");
            assert_eq!(usize::from(head[18]) * 256 + usize::from(head[19]), len - 54);
            let position = usize::from(head[before_len + 2]) * 256 + usize::from(head[before_len + 3]);
            assert_eq!((position & !7, position & 1), (together.len(), 1 - number));
            together.extend(part);
        }
        assert_eq!(together, whole[before_len..whole.len() - 3], "{numbers:?}");
        assert_eq!(fragments.write_next(&mut room), None);
    }
}

proptest! {
    #[test]
    fn fragments_are_the_packet_and_as_few_as_can_be(
        mtu_bytes in 68u16..1600, again_bytes in 68u16..1600, len in 1usize..3000,
        words in 0usize..11, offset in 0u16..7000, more in any::<bool>(),
    ) {
        let options: Vec<u8> = [0x94, 4, 0, 0, 7, 3, 4, 1].into_iter().cycle().take(4 * words).collect();
        // A packet that is followed by more fragments has whole units.
        let (len, flags) = if more { (len.next_multiple_of(8), 0x2000) } else { (len, 0) };
        let whole = packet(&options, &data(len), flags | offset);
        prop_assume!(usize::from(whole[16]) * 256 + usize::from(whole[17]) > usize::from(mtu_bytes));
        let fragments = cut(&whole, mtu_bytes);
        check(&whole, &fragments, mtu_bytes);
        for fragment in fragments.iter().rev().skip(1) {
            prop_assert!(fragment.len() + 8 > 14 + usize::from(mtu_bytes), "another unit had room");
        }
        let again: Vec<_> = fragments.iter().flat_map(|fragment| match fit(fragment, again_bytes) {
            Ok(true) => cut(fragment, again_bytes),
            fits => { assert_eq!(fits, Ok(false)); vec![fragment.clone()] }
        }).collect();
        check(&whole, &again, mtu_bytes);
    }

    #[test]
    fn any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..200), mtu_bytes in 0u16..200, words in 0u8..16) {
        if let Some(first) = bytes.get_mut(14) {
            *first = 0x40 | words;
        }
        let _ = fit(&bytes, mtu_bytes);
        if let Ok(mut fragments) = Fragments::new(&bytes, mtu_bytes) {
            let mut room = [0; 300];
            let count = fragments.count();
            prop_assert_eq!((0..).take_while(|_| fragments.write_next(&mut room).is_some()).count(), count);
        }
    }
}
