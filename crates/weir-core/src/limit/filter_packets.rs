//! Frames and filters drawn from a seed, for tests that compare two classifiers.
//!
//! The values are few, so that filters often match; the frames have every kind of header that is read, and now and then one is cut short or
//! wrong.

use super::{Classifier, Conditions, Rule, Subnet, Target};

/// A generator of numbers that repeat (xorshift64*, Vigna 2016).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

const PORTS: [u16; 6] = [0, 53, 443, 5201, 8080, 65535];
const DSCPS: [u8; 4] = [0, 10, 46, 63];
const TRANSPORTS: [u8; 9] = [6, 17, 17, 33, 132, 136, 1, 58, 47];

fn address4(random: &mut Random) -> [u8; 4] {
    [random.of(&[10, 192, 255]), 0, random.of(&[0, 1, 128]), random.of(&[1, 2, 255])]
}

fn address6(random: &mut Random) -> [u8; 16] {
    let mut address = [0; 16];
    address[0] = random.of(&[0xfd, 0x20, 0xff]);
    address[7] = random.of(&[0, 1, 0x80]);
    address[8] = random.of(&[0, 0x80, 0xff]);
    address[15] = random.of(&[1, 2, 255]);
    address
}

fn subnet(random: &mut Random, is_ipv4: bool) -> Subnet {
    if is_ipv4 {
        let prefix_len = random.of(&[0, 1, 8, 17, 24, 31, 32]);
        Subnet::new(address4(random).into(), prefix_len).unwrap()
    } else {
        let prefix_len = random.of(&[0, 7, 8, 57, 63, 64, 65, 72, 127, 128]);
        Subnet::new(address6(random).into(), prefix_len).unwrap()
    }
}

fn ports(random: &mut Random) -> std::ops::RangeInclusive<u16> {
    let (a, b) = (random.of(&PORTS), random.of(&PORTS));
    if random.one_in(40) { std::ops::RangeInclusive::new(9, 1) } else { a.min(b)..=a.max(b) }
}

/// `count` rules, each to a class of its own number.
pub fn filters(random: &mut Random, count: u16) -> Classifier {
    let rules = (0..count).map(|index| {
        let is_ipv4 = random.one_in(2);
        let to_ipv4 = if random.one_in(20) { !is_ipv4 } else { is_ipv4 };
        let mut conditions = Conditions {
            from: random.one_in(3).then(|| subnet(random, is_ipv4)),
            to: random.one_in(3).then(|| subnet(random, to_ipv4)),
            protocol: random.one_in(4).then(|| random.of(&TRANSPORTS)),
            dscp: random.one_in(5).then(|| random.of(&DSCPS)),
            from_ports: random.one_in(5).then(|| ports(random)),
            to_ports: random.one_in(4).then(|| ports(random)),
            ..Conditions::default()
        };
        if conditions == Conditions::default() || random.one_in(3) {
            // A rule that takes everything would leave nothing to the others.
            conditions.protocol = Some(random.of(&TRANSPORTS));
            conditions.dscp = Some(random.of(&DSCPS));
        }
        Rule { conditions, target: if random.one_in(8) { Target::Free } else { Target::Class(index) } }
    });
    Classifier::new(rules.collect(), Target::Class(count)).unwrap()
}

/// A frame of at least 14 bytes, of any content.
pub fn frame(random: &mut Random) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for _ in 0..random.of(&[0, 0, 0, 1, 1, 2, 3]) {
        frame.extend(random.of(&[0x8100_u16, 0x88a8]).to_be_bytes());
        frame.extend([random.below(256) as u8, random.below(256) as u8]);
    }
    let is_ipv4 = random.one_in(2);
    let ethertype: u16 = if is_ipv4 { 0x0800 } else { 0x86dd };
    frame.extend(if random.one_in(30) { 0x0806 } else { ethertype }.to_be_bytes());
    frame.extend(if is_ipv4 { ipv4(random) } else { ipv6(random) });
    if random.one_in(6) {
        // Bytes stand behind the packet, as padding does.
        frame.resize(frame.len() + random.below(20) as usize, 0);
    }
    if random.one_in(5) {
        frame.truncate(14 + random.below(frame.len() as u64 - 13) as usize);
    }
    if random.one_in(8) {
        let at = 12 + random.below(frame.len() as u64 - 12) as usize;
        frame[at] = random.below(256) as u8;
    }
    frame
}

fn transport(random: &mut Random) -> Vec<u8> {
    let mut transport = random.of(&PORTS).to_be_bytes().to_vec();
    transport.extend(random.of(&PORTS).to_be_bytes());
    transport.resize(random.of(&[8, 8, 20, 4, 3, 0]), 0);
    transport
}

fn ipv4(random: &mut Random) -> Vec<u8> {
    let options = 4 * random.of(&[0, 0, 0, 1, 10]) as usize;
    let transport = transport(random);
    let mut packet = vec![0; 20 + options];
    packet[0] = 0x45 + options as u8 / 4;
    packet[1] = random.of(&DSCPS) << 2 | random.below(4) as u8;
    let length = (packet.len() + transport.len()) as u16;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[6..8].copy_from_slice(&random.of(&[0_u16, 0, 0x4000, 0x2000, 0x2001, 0x00b9]).to_be_bytes());
    packet[9] = random.of(&TRANSPORTS);
    packet[12..16].copy_from_slice(&address4(random));
    packet[16..20].copy_from_slice(&address4(random));
    packet.extend(transport);
    packet
}

fn ipv6(random: &mut Random) -> Vec<u8> {
    let mut payload = Vec::new();
    let mut first = random.of(&TRANSPORTS);
    let count = random.of(&[0, 0, 1, 2, 3, 8, 9]);
    // The headers are made from the last to the first.
    let mut headers = Vec::new();
    for _ in 0..count {
        let kind = random.of(&[0, 43, 44, 51, 60]);
        let words = random.of(&[0_u8, 1, 2]);
        let mut header = match kind {
            44 => {
                let offset = random.of(&[0_u16, 1, 8, 0x0700]);
                let [high, low] = offset.to_be_bytes();
                vec![first, 0, high, low, 0, 0, 0, 1]
            }
            51 => vec![0; 8 + 4 * usize::from(words)],
            _ => vec![0; 8 + 8 * usize::from(words)],
        };
        header[0] = first;
        if kind != 44 {
            header[1] = words;
        }
        headers.push(header);
        first = kind;
    }
    headers.into_iter().rev().for_each(|header| payload.extend(header));
    payload.extend(transport(random));
    let mut packet = vec![0; 40];
    let class = u16::from(random.of(&DSCPS) << 2 | random.below(4) as u8);
    packet[0..2].copy_from_slice(&(0x6000 | class << 4 | random.below(16) as u16).to_be_bytes());
    packet[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    packet[6] = first;
    packet[8..24].copy_from_slice(&address6(random));
    packet[24..40].copy_from_slice(&address6(random));
    packet.extend(payload);
    packet
}
