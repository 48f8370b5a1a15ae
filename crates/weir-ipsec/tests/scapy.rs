//! Our packets beside those of scapy, another implementation: the same bytes sealed, and theirs opened. `scripts/esp-vectors.py` made them.
//!
//! All algorithms, IPv4 and IPv6, transport mode and tunnels of either family, in UDP and without, numbers of 32 and of 64 bits.

use weir_ipsec::algorithm::{Algorithm, Associated, KeyMaterial, Transform};
use weir_ipsec::esp::{self, Arrival, Encapsulation, EspMode, UDP_PORT, UdpEncapsulation};
use weir_ipsec::ip::IpHeaders;
use weir_ipsec::room::Room;
use weir_ipsec::tunnel::Tunnel;

struct Case {
    transform: Transform,
    encapsulation: Encapsulation,
    associated: Associated,
    packet: Vec<u8>,
    sealed: Vec<u8>,
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn read(line: &str) -> Case {
    let fields: Vec<&str> = line.split(' ').collect();
    let [name, mode, udp, extended, key, spi, sequence, packet, sealed] = fields[..] else {
        panic!("{line}");
    };
    let algorithm = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name).unwrap();
    let tunnel = |source: &str, destination: &str| {
        EspMode::Tunnel(Tunnel::new(source.parse().unwrap(), destination.parse().unwrap()).unwrap())
    };
    let mode = match mode {
        "tunnel4" => tunnel("192.0.2.1", "192.0.2.2"),
        "tunnel6" => tunnel("2001:db8::1", "2001:db8::2"),
        _ => EspMode::Transport,
    };
    let udp = (udp == "1").then_some(UdpEncapsulation { source: UDP_PORT, destination: UDP_PORT });
    Case {
        transform: Transform::new(algorithm, &KeyMaterial::new(algorithm, &hex(key)).unwrap()).unwrap(),
        encapsulation: Encapsulation { mode, udp },
        associated: Associated {
            spi: u32::from_str_radix(spi, 16).unwrap(),
            sequence: u64::from_str_radix(sequence, 16).unwrap(),
            extended: extended == "1",
        },
        packet: hex(packet),
        sealed: hex(sealed),
    }
}

fn cases() -> impl Iterator<Item = (usize, Case)> {
    include_str!("scapy.txt").lines().map(read).enumerate().map(|(index, case)| (index + 1, case))
}

#[test]
fn seals_to_the_same_bytes() {
    for (line, case) in cases() {
        let mut memory = case.packet.clone();
        memory.resize(2048, 0);
        let mut room = Room::new(&mut memory, 0, case.packet.len()).unwrap();
        let headers = IpHeaders::read_all(room.packet()).unwrap();
        esp::seal(&mut room, &headers, &case.transform, &case.encapsulation, case.associated).unwrap();
        // scapy copies the flow label of what it seals; here an association has one.
        let mut expected = case.sealed;
        if expected[0] >> 4 == 6 && matches!(case.encapsulation.mode, EspMode::Tunnel(_)) {
            expected[1] &= 0xf0;
            expected[2..4].fill(0);
        }
        assert_eq!(room.packet(), expected, "line {line}");
    }
}

#[test]
fn opens_theirs() {
    let mut count = 0;
    for (line, mut case) in cases() {
        let len = case.sealed.len();
        let mut room = Room::new(&mut case.sealed, 0, len).unwrap();
        let headers = IpHeaders::read_all(room.packet()).unwrap();
        let Ok(Arrival::Esp(located)) = esp::locate(room.packet(), &headers, &[UDP_PORT]) else {
            panic!("line {line}");
        };
        let tunnel = matches!(case.encapsulation.mode, EspMode::Tunnel(_));
        let verified = esp::verify(&mut room, &located, &case.transform, case.associated).unwrap();
        verified.unwrap_packet(&mut room, tunnel).unwrap();
        assert_eq!(room.packet(), case.packet, "line {line}");
        count += 1;
    }
    assert!(count >= 300, "{count} packets");
}
