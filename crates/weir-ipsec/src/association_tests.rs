//! Associations in virtual time, each with its peer.

use proptest::prelude::*;

use super::*;
use crate::algorithm::KeyMaterial;
use crate::esp::Arrival;
use crate::lifetime::Limits;

fn settings(algorithm: Algorithm, extended: bool, lifetime: Lifetime) -> AssociationSettings {
    let key = vec![7; algorithm.key_len()];
    let transform = Transform::new(algorithm, &KeyMaterial::new(algorithm, &key).unwrap()).unwrap();
    let encapsulation = Encapsulation { mode: EspMode::Transport, udp: None };
    AssociationSettings { spi: 9, transform, encapsulation, extended, lifetime }
}

fn pair(extended: bool, mark: u64, window: u32) -> (Outbound, Inbound) {
    let settings = || settings(Algorithm::Aes128Gcm, extended, Lifetime::default());
    let mut numbers = SequenceNumbers::from_mark(mark, extended, 1000);
    if let Some(mark) = numbers.wanted_mark() {
        numbers.reserve(mark);
    }
    (Outbound::new(settings(), numbers, 0), Inbound::new(settings(), ReplayWindow::new(window), 0))
}

const PLAIN: [u8; 24] = [0x45, 0, 0, 24, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 2, 3, 4];

fn seal(outbound: &mut Outbound, now_ns: u64) -> Result<Vec<u8>, Unsealed> {
    let mut memory = PLAIN.to_vec();
    memory.resize(256, 0);
    let mut room = Room::new(&mut memory, 100, 24).unwrap();
    room.packet_mut().copy_from_slice(&PLAIN);
    let headers = IpHeaders::read_all(room.packet()).unwrap();
    outbound.seal(&mut room, &headers, now_ns)?;
    Ok(room.packet().to_vec())
}

fn open(inbound: &mut Inbound, sealed: &[u8], now_ns: u64) -> Result<(), DropReason> {
    let mut memory = sealed.to_vec();
    let mut room = Room::new(&mut memory, 0, sealed.len()).unwrap();
    let Arrival::Esp(located) = esp::locate(room.packet(), &IpHeaders::read_all(room.packet())?, &[])? else {
        panic!("it is ESP")
    };
    inbound.open(&mut room, &located, now_ns)?;
    assert_eq!(room.packet()[9], 17);
    assert_eq!(room.packet()[20..], PLAIN[20..]);
    Ok(())
}

#[test]
fn each_packet_passes_once() {
    for extended in [false, true] {
        let (mut outbound, mut inbound) = pair(extended, 1, 64);
        let sealed: Vec<_> = (0..100).map(|_| seal(&mut outbound, 0).unwrap()).collect();
        assert_eq!(open(&mut inbound, &sealed[99], 0), Ok(()));
        assert_eq!(open(&mut inbound, &sealed[99], 0), Err(DropReason::EspReplayed));
        assert_eq!(open(&mut inbound, &sealed[36], 0), Ok(()), "64 numbers end at the highest");
        // An extended number that is too old is taken for one of the next 2^32, and then it is not proven.
        let too_old = if extended { DropReason::EspBadIcv } else { DropReason::EspTooOld };
        assert_eq!(open(&mut inbound, &sealed[35], 0), Err(too_old));
        assert_eq!((inbound.usage().packets, inbound.usage().bytes, inbound.highest()), (2, 48, 100));
        assert_eq!(outbound.usage().packets, 100);
    }
}

#[test]
fn what_is_not_proven_moves_no_window() {
    let (mut outbound, mut inbound) = pair(false, 1, 64);
    let mut first = seal(&mut outbound, 0).unwrap();
    open(&mut inbound, &first, 0).unwrap();
    // A number far ahead would make all numbers after the first too old.
    first[24..28].copy_from_slice(&900_000u32.to_be_bytes());
    assert_eq!(open(&mut inbound, &first, 0), Err(DropReason::EspBadIcv));
    assert_eq!((inbound.highest(), inbound.usage().packets), (1, 1));
    let second = seal(&mut outbound, 0).unwrap();
    assert_eq!(open(&mut inbound, &second, 0), Ok(()));
}

#[test]
fn extended_numbers_pass_the_wrap() {
    let (mut outbound, mut inbound) = pair(true, (1 << 32) - 50, 1024);
    // The receiver has seen some numbers before, or it could not know the upper half.
    inbound.window.note((1 << 32) - 51).unwrap();
    let sealed: Vec<_> = (0..100).map(|_| seal(&mut outbound, 0).unwrap()).collect();
    for packet in sealed.iter().rev() {
        assert_eq!(open(&mut inbound, packet, 0), Ok(()));
    }
    assert_eq!(inbound.highest(), (1 << 32) + 49);
}

#[test]
fn numbers_end_and_are_waited_for() {
    let (mut outbound, _) = pair(false, u32::MAX.into(), 64);
    assert!(seal(&mut outbound, 0).is_ok());
    assert_eq!(seal(&mut outbound, 0), Err(Unsealed::Drop(DropReason::EspSequenceOverflow)));
    let numbers = SequenceNumbers::from_mark(1, false, 10);
    let settings = settings(Algorithm::Aes128Gcm, false, Lifetime::default());
    let mut outbound = Outbound::new(settings, numbers, 0);
    assert_eq!(seal(&mut outbound, 0), Err(Unsealed::Wait));
    outbound.reserve(outbound.numbers().wanted_mark().unwrap());
    assert!(seal(&mut outbound, 0).is_ok());
}

#[test]
fn a_life_ends_in_time_for_both() {
    let limits = |time_ns| Limits { time_ns: Some(time_ns), ..Limits::default() };
    let lifetime = Lifetime { soft: limits(5), hard: limits(9) };
    let mut numbers = SequenceNumbers::from_mark(1, false, 10);
    numbers.reserve(11);
    let mut outbound = Outbound::new(settings(Algorithm::Null, false, lifetime), numbers, 100);
    let window = ReplayWindow::new(64);
    let mut inbound = Inbound::new(settings(Algorithm::Null, false, lifetime), window, 100);
    let sealed = seal(&mut outbound, 104).unwrap();
    assert_eq!(outbound.age(104), Age::Alive);
    assert_eq!(outbound.age(105), Age::Soft);
    assert!(seal(&mut outbound, 108).is_ok());
    assert_eq!(seal(&mut outbound, 109), Err(Unsealed::Drop(DropReason::EspExpired)));
    assert_eq!(open(&mut inbound, &sealed, 109), Err(DropReason::EspExpired));
}

#[test]
fn another_spi_or_wrapping_is_another_association() {
    let (mut outbound, mut inbound) = pair(false, 1, 64);
    let mut sealed = seal(&mut outbound, 0).unwrap();
    sealed[23] ^= 1;
    assert_eq!(open(&mut inbound, &sealed, 0), Err(DropReason::EspNoAssociation));
}

proptest! {
    /// A wire that loses, repeats and reorders: each packet is opened at most once, and each that comes in the window exactly once.
    #[test]
    fn a_wire_that_repeats_and_reorders(
        extended: bool, window in 1u32..=1024, arrivals in prop::collection::vec(0usize..300, 1..400)
    ) {
        let (mut outbound, mut inbound) = pair(extended, 1, window);
        let sealed: Vec<_> = (0..300).map(|_| seal(&mut outbound, 0).unwrap()).collect();
        let mut opened = [false; 300];
        let mut highest = 0;
        for index in arrivals {
            let in_window = index + 1 > highest || highest - (index + 1) < window as usize;
            let expected = in_window && !opened[index];
            prop_assert_eq!(open(&mut inbound, &sealed[index], 0).is_ok(), expected);
            opened[index] |= expected;
            highest = highest.max(if expected { index + 1 } else { 0 });
        }
        prop_assert_eq!(inbound.usage().packets, opened.iter().filter(|&&opened| opened).count() as u64);
    }
}
