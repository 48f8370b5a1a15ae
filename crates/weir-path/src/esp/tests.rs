//! The verdicts of an ESP stage between two gateways, in virtual time, with keys and marks made here.

mod peer;
mod way;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_core::net::icmp::{self, Fault};
use weir_core::packet::Meta;
use weir_ipsec::algorithm::{Algorithm, KeyMaterial, Transform};
use weir_ipsec::ip::IpFamily;
use weir_ipsec::lifetime::{Age, Lifetime, Limits};
use weir_ipsec::path_mtu::FORGOTTEN_AFTER_NS;
use weir_ipsec::policy::{AddressPrefix, Selector};
use weir_ipsec::sequence::SequenceNumbers;
use weir_ipsec::tunnel::OuterDontFragment;
use weir_ring::pool::Pool;

use super::marks::{ReceivedMark, SequenceMark};
use super::plan::{
    AssociationKey, AssociationNumbers, AssociationPlan, EspChange, EspDispatch, EspPlan, PolicyPlan,
    PolicyVerb,
};
use super::*;

const AHEAD: u64 = 8;
const FRAME_BYTES: u32 = 2048;
const GATEWAYS: [[u8; 4]; 2] = [[192, 0, 2, 1], [192, 0, 2, 2]];
const HOSTS: [[u8; 4]; 2] = [[10, 1, 0, 2], [10, 2, 0, 2]];

/// A disk that says when a mark is safe.
#[derive(Clone, Debug, Default)]
struct Disk {
    wanted: Arc<AtomicU64>,
    safe: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
}

impl ReceivedMark for Disk {
    fn received(&mut self, highest: u64) {
        self.received.store(highest, Ordering::Relaxed);
    }
}

impl Disk {
    fn write(&self) {
        self.safe.store(self.wanted.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl SequenceMark for Disk {
    fn begin(&mut self) {}

    fn want(&mut self, mark: u64) {
        self.wanted.store(mark, Ordering::Relaxed);
    }

    fn safe(&self) -> u64 {
        self.safe.load(Ordering::Relaxed)
    }

    fn end(&mut self, _: u64) {}
}

/// Gateway `own` of the two, with packets of its own.
struct Gateway {
    esp: Esp,
    disk: Disk,
    pool: Pool,
    came: Cell<u64>,
}

fn association(from: usize, own: usize, lifetime: Lifetime) -> AssociationPlan {
    AssociationPlan {
        name: format!("from-{from}"),
        is_inbound: from != own,
        spi: 0x1000 + from as u32,
        source: GATEWAYS[from].into(),
        destination: GATEWAYS[1 - from].into(),
        is_tunnel: true,
        algorithm: Algorithm::Aes128Gcm,
        key_file: Some("key".into()),
        is_extended: true,
        window: 64,
        udp_ports: None,
        keepalive_ns: None,
        follows_peer: false,
        dont_fragment: OuterDontFragment::Copied,
        lifetime,
    }
}

fn policy(from: usize, own: usize) -> PolicyPlan {
    let net = |host: usize| AddressPrefix::new(HOSTS[host].into(), 16).unwrap();
    PolicyPlan {
        is_inbound: from != own,
        selector: Selector {
            source: net(from),
            destination: net(1 - from),
            protocol: None,
            source_ports: None,
            destination_ports: None,
        },
        verb: PolicyVerb::Protect,
        associations: vec![format!("from-{from}")],
    }
}

fn plan(own: usize, lifetime: Lifetime) -> EspPlan {
    EspPlan {
        addresses: vec![GATEWAYS[own].into()],
        mtu_bytes: 1500,
        associations: (0..2).map(|from| association(from, own, lifetime)).collect(),
        policies: (0..2).map(|from| policy(from, own)).collect(),
        dispatch: EspDispatch::default(),
    }
}

fn key(from: usize, numbers: AssociationNumbers) -> Option<AssociationKey> {
    let algorithm = Algorithm::Aes128Gcm;
    let material = KeyMaterial::new(algorithm, &vec![from as u8; algorithm.key_len()]).unwrap();
    Some(AssociationKey { transform: Transform::new(algorithm, &material).unwrap(), numbers })
}

fn sent(disk: &Disk) -> AssociationNumbers {
    AssociationNumbers::Sent(SequenceNumbers::from_mark(1, true, AHEAD), Box::new(disk.clone()))
}

impl Gateway {
    fn new(own: usize, lifetime: Lifetime) -> Gateway {
        let disk = Disk::default();
        let mut esp = Esp::new(&plan(own, lifetime));
        let numbers = |from: usize| match from == own {
            true => sent(&disk),
            false => AssociationNumbers::Received(0, Box::new(disk.clone())),
        };
        let keys = (0..2).map(|from| key(from, numbers(from))).collect();
        esp.change(EspChange { plan: plan(own, lifetime), keys }, 0);
        let pool = Pool::new(FrameMemory::new(64, FRAME_BYTES).unwrap());
        Gateway { esp, disk, pool, came: Cell::new(0) }
    }

    /// A frame in this gateway's memory.
    fn packet(&mut self, bytes: &[u8]) -> PathPacket {
        let mut frame = self.pool.take().expect("frames enough");
        let memory = Arc::clone(self.pool.memory());
        memory.bytes_mut(&mut frame)[..bytes.len()].copy_from_slice(bytes);
        self.came.set(self.came.get() + 1);
        let mut packet = PathPacket::new(frame, 0, bytes.len() as u16);
        packet.meta = Meta { arrival_ns: self.came.get(), ..Meta::default() };
        packet
    }

    /// The verdict on a frame that comes in by a port, and the frame after it.
    fn process(&mut self, port: u16, bytes: &[u8], now_ns: u64) -> (EspVerdict, Vec<u8>) {
        let mut packet = self.packet(bytes);
        let memory = Arc::clone(self.pool.memory());
        let mut verdict = [EspVerdict::Wait];
        let decided =
            self.esp.process(port, std::slice::from_mut(&mut packet), &memory, now_ns, &mut verdict);
        assert_eq!(decided.packets, 1);
        let [verdict] = verdict;
        let after = packet.bytes(&memory).to_vec();
        match verdict {
            EspVerdict::Wait => self.esp.keep(packet),
            _ => self.pool.give(packet.frame),
        }
        (verdict, after)
    }
}

/// Two gateways whose disks have the first marks.
fn gateways() -> [Gateway; 2] {
    let both = [0, 1].map(|own| Gateway::new(own, Lifetime::default()));
    for (own, gateway) in both.iter().enumerate() {
        gateway.disk.safe.store(1 + AHEAD, Ordering::Relaxed);
        assert_eq!(gateway.esp.associations()[own].highest(), 0);
    }
    both
}

/// A frame of UDP between two addresses.
fn frame(source: [u8; 4], destination: [u8; 4], ports: [u16; 2], len: usize) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 63, 17, 0, 0];
    ip.extend(source.iter().chain(&destination));
    ip.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    ip.extend([0, 0, 0, 0]);
    ip.resize(ip.len() + len, 0x5a);
    let udp_len = (ip.len() - 20) as u16;
    ip[24..26].copy_from_slice(&udp_len.to_be_bytes());
    weir_ipsec::ip::set_len(&mut ip, IpFamily::V4).unwrap();
    [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0][..], &ip].concat()
}

const INSIDE_OUT: EspVerdict = EspVerdict::Pass(OUTSIDE);
const OUTSIDE_IN: EspVerdict = EspVerdict::Pass(INSIDE);

#[test]
fn what_one_seals_the_other_opens_once() {
    let [mut one, mut two] = gateways();
    let clear = frame(HOSTS[0], HOSTS[1], [1000, 2000], 100);
    let (verdict, sealed) = one.process(INSIDE, &clear, 5);
    assert_eq!(verdict, INSIDE_OUT);
    assert!(!sealed.windows(20).any(|window| window == [0x5a; 20]), "nothing of it is in the clear");
    assert_eq!((sealed[LINK_LEN + 9], &sealed[..12]), (number::ESP, &clear[..12]));
    assert_eq!(two.process(OUTSIDE, &sealed, 6), (OUTSIDE_IN, clear.clone()));
    assert_eq!(two.process(OUTSIDE, &sealed, 7).0, EspVerdict::Drop(DropReason::EspReplayed));
    let mut changed = one.process(INSIDE, &clear, 8).1;
    changed[LINK_LEN + 40] ^= 1;
    assert_eq!(two.process(OUTSIDE, &changed, 9).0, EspVerdict::Drop(DropReason::EspBadIcv));
    let received = two.disk.received.load(Ordering::Relaxed);
    assert_eq!(
        (received, two.esp.associations()[0].highest()),
        (1, 1),
        "what is not proven was not received"
    );
    let [_, inbound] = [&two.esp.associations()[1], &two.esp.associations()[0]];
    assert_eq!((inbound.usage().packets, inbound.dropped().total().packets), (1, 2));
}

#[test]
fn what_no_policy_names_passes_neither_way() {
    let [mut one, mut two] = gateways();
    let discard = EspVerdict::Drop(DropReason::PolicyDiscard);
    let elsewhere = frame(HOSTS[0], [10, 3, 0, 1], [1, 2], 10);
    assert_eq!(one.process(INSIDE, &elsewhere, 0).0, discard);
    // This packet should have come by the tunnel and came in the clear.
    let clear = frame(HOSTS[0], HOSTS[1], [1, 2], 10);
    assert_eq!(two.process(OUTSIDE, &clear, 0).0, EspVerdict::Drop(DropReason::PolicyMismatch));
    // The first ESP packet is not for the gateway that gets it; the second is of no association.
    let mut sealed = one.process(INSIDE, &clear, 0).1;
    assert_eq!(one.process(OUTSIDE, &sealed, 0).0, discard, "it is not for this gateway");
    sealed[LINK_LEN + 23] = 0x77;
    assert_eq!(two.process(OUTSIDE, &sealed, 0).0, EspVerdict::Drop(DropReason::EspNoAssociation));
    for kind in [[0x81, 0x00], [0x88, 0xa8], [0x88, 0x47], [0x88, 0x64], [0x00, 0x26]] {
        let mut hidden = clear.clone();
        hidden[12..14].copy_from_slice(&kind);
        assert_eq!(one.process(INSIDE, &hidden, 0).0, discard, "{kind:?}");
        assert_eq!(two.process(OUTSIDE, &hidden, 0).0, discard, "{kind:?}");
    }
}

#[test]
fn neighbours_and_ike_pass_as_they_are() {
    let [mut one, _] = gateways();
    let mut arp = frame(HOSTS[0], HOSTS[1], [1, 2], 10);
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(one.process(INSIDE, &arp, 0), (INSIDE_OUT, arp.clone()));
    assert_eq!(one.process(OUTSIDE, &arp, 0), (OUTSIDE_IN, arp));
    let ike = frame(GATEWAYS[1], GATEWAYS[0], [500, 500], 40);
    assert_eq!(one.process(OUTSIDE, &ike, 0), (OUTSIDE_IN, ike));
    let answer = frame(GATEWAYS[0], GATEWAYS[1], [500, 500], 40);
    assert_eq!(one.process(INSIDE, &answer, 0), (INSIDE_OUT, answer));
    let mut keepalive = frame(GATEWAYS[1], GATEWAYS[0], [4500, 4500], 1);
    *keepalive.last_mut().unwrap() = 0xff;
    assert_eq!(one.process(OUTSIDE, &keepalive, 0).0, EspVerdict::Consume);
}

/// While the disk is slow packets wait, in order, and so do those that need no number but came after.
#[test]
fn no_number_is_used_that_is_not_safe() {
    let mut one = Gateway::new(0, Lifetime::default());
    let clear = frame(HOSTS[0], HOSTS[1], [1, 2], 10);
    let own = frame(GATEWAYS[0], GATEWAYS[1], [500, 500], 40);
    for packet in [&clear, &own, &clear] {
        assert_eq!(one.process(INSIDE, packet, 0).0, EspVerdict::Wait);
    }
    assert!(one.esp.is_waiting() && one.esp.held().packets == 3);
    let memory = Arc::clone(one.pool.memory());
    let mut first = one.esp.take_waiting().unwrap();
    assert_eq!(one.esp.process_again(&mut first, &memory, 1).0, EspVerdict::Wait);
    one.esp.put_back(first);
    one.disk.write();
    let mut order = Vec::new();
    while let Some(mut packet) = one.esp.take_waiting() {
        order.push(packet.meta.arrival_ns);
        assert_eq!(one.esp.process_again(&mut packet, &memory, 2).0, INSIDE_OUT);
        one.pool.give(packet.frame);
    }
    assert_eq!((order, one.esp.held()), (vec![1, 2, 3], Count::default()));
    // From here on marks are asked for ahead, so that a disk that answers in time makes no packet wait.
    for packet in 0..100 {
        assert_eq!(one.process(INSIDE, &clear, packet).0, INSIDE_OUT, "{packet}");
        one.disk.write();
    }
    assert!(one.esp.associations()[0].highest() < one.disk.safe.load(Ordering::Relaxed));
}

#[test]
fn what_would_be_too_long_is_cut_or_told() {
    let [mut one, _] = gateways();
    let mut long = frame(HOSTS[0], HOSTS[1], [1, 2], 1472);
    assert_eq!(long.len(), 1514);
    let EspVerdict::TooLong(longest) = one.process(INSIDE, &long, 0).0 else { panic!("it may not be cut") };
    let fits = frame(HOSTS[0], HOSTS[1], [1, 2], usize::from(longest) - 28);
    let (verdict, sealed) = one.process(INSIDE, &fits, 0);
    assert_eq!(verdict, INSIDE_OUT);
    assert!((1496..=1500).contains(&(sealed.len() - LINK_LEN)), "{}", sealed.len());
    long[LINK_LEN + 6] = 0;
    weir_ipsec::ip::set_len(&mut long[LINK_LEN..], IpFamily::V4).unwrap();
    assert_eq!(one.process(INSIDE, &long, 0).0, EspVerdict::Cut(longest));
}

#[test]
fn a_flood_by_one_port_keeps_the_mtu_from_no_other() {
    let [mut one, _] = gateways();
    let mut room = [0; 2048];
    let mut tell = |origin: u16, from: [u8; 4], now_ns: u64| {
        let long = frame(from, HOSTS[1], [1, 2], 1472);
        one.esp.tell_too_long(origin, &long, 1400, &mut room, now_ns).is_some()
    };
    const NOBODY: [u8; 4] = [0; 4];
    let mut told = [0; 3];
    for hundredth in 0..100 {
        for part in 0..100 {
            let now_ns = hundredth * 10_000_000 + part * 100_000;
            told[0] += u64::from(tell(0, HOSTS[0], now_ns));
            tell(2, NOBODY, now_ns);
        }
        let now_ns = hundredth * 10_000_000 + 9_950_000;
        told[1] += u64::from(tell(1, HOSTS[0], now_ns));
        told[2] += u64::from(tell(2, HOSTS[0], now_ns));
    }
    assert_eq!(told[1..], [100, 100], "and what cannot be told takes no place");
    assert!((1000..1100).contains(&told[0]), "the flood is limited: {} of 10,000", told[0]);
}

#[test]
fn an_association_ends_and_its_successor_goes_on() {
    let lifetime = Lifetime { hard: Limits { packets: Some(2), ..Limits::default() }, ..Lifetime::default() };
    let mut one = Gateway::new(0, lifetime);
    one.disk.safe.store(1 + AHEAD, Ordering::Relaxed);
    let clear = frame(HOSTS[0], HOSTS[1], [1, 2], 10);
    let verdicts: Vec<_> = (0..3).map(|_| one.process(INSIDE, &clear, 0).0).collect();
    assert_eq!(verdicts, [INSIDE_OUT, INSIDE_OUT, EspVerdict::Drop(DropReason::EspExpired)]);
    // A second association is added to the same policy; the first stays as it is.
    let mut plan = plan(0, lifetime);
    let next = AssociationPlan { name: "next".into(), spi: 0x2000, ..plan.associations[0].clone() };
    plan.associations.push(next);
    plan.policies[0].associations.push("next".into());
    let disk = Disk::default();
    disk.safe.store(1 + AHEAD, Ordering::Relaxed);
    one.esp.change(EspChange { plan, keys: vec![None, None, key(2, sent(&disk))] }, 1);
    let (verdict, sealed) = one.process(INSIDE, &clear, 2);
    assert_eq!((verdict, &sealed[LINK_LEN + 20..LINK_LEN + 24]), (INSIDE_OUT, &[0, 0, 0x20, 0][..]));
    assert_eq!(one.esp.associations()[0].usage().packets, 2);
}

/// The clock stands still meanwhile.
#[test]
fn time_asleep_counts_for_the_associations_that_were_there() {
    const LIFE_NS: u64 = 3600 * 1_000_000_000;
    let hard = Limits { time_ns: Some(LIFE_NS), ..Limits::default() };
    let lifetime = Lifetime { hard, ..Lifetime::default() };
    let mut one = Gateway::new(0, lifetime);
    one.disk.safe.store(1 + AHEAD, Ordering::Relaxed);
    let clear = frame(HOSTS[0], HOSTS[1], [1, 2], 10);
    one.esp.note_asleep(LIFE_NS - 2);
    assert_eq!(one.process(INSIDE, &clear, 1).0, INSIDE_OUT);
    one.esp.note_asleep(1);
    assert_eq!(one.process(INSIDE, &clear, 1).0, EspVerdict::Drop(DropReason::EspExpired));
    let disk = Disk::default();
    disk.safe.store(1 + AHEAD, Ordering::Relaxed);
    one.esp.change(EspChange { plan: plan(0, lifetime), keys: vec![key(2, sent(&disk)), None] }, 1);
    assert_eq!(one.process(INSIDE, &clear, LIFE_NS).0, INSIDE_OUT, "one that began after it");
    let age = |place: usize| one.esp.associations()[place].age(2);
    assert_eq!([age(0), age(1)], [Age::Alive, Age::Expired]);
}

/// Limits are raised, and the window narrowed and widened, while the key is used.
#[test]
fn limits_and_the_window_change_and_the_key_goes_on() {
    let lifetime = |packets: u64| Lifetime {
        hard: Limits { packets: Some(packets), ..Limits::default() },
        ..Lifetime::default()
    };
    let change = |gateway: &mut Gateway, own: usize, packets: u64, window: u32| {
        let mut plan = plan(own, lifetime(packets));
        plan.associations.iter_mut().for_each(|association| association.window = window);
        gateway.esp.change(EspChange { plan, keys: vec![None, None] }, 1);
    };
    let dropped = |reason: DropReason| EspVerdict::Drop(reason);
    let [mut one, mut two] = [0, 1].map(|own| Gateway::new(own, lifetime(2)));
    one.disk.safe.store(1 + AHEAD, Ordering::Relaxed);
    let clear = frame(HOSTS[0], HOSTS[1], [1, 2], 10);
    let mut sealed: Vec<_> = (0..2).map(|_| one.process(INSIDE, &clear, 0).1).collect();
    assert_eq!(one.process(INSIDE, &clear, 0).0, dropped(DropReason::EspExpired));

    assert_eq!(two.process(OUTSIDE, &sealed[1], 0).0, OUTSIDE_IN);
    change(&mut two, 1, 4, 1);
    // Behind the window it is taken for a number of the next 2^32, and is not proven.
    assert_eq!(two.process(OUTSIDE, &sealed[0], 1).0, dropped(DropReason::EspBadIcv));
    change(&mut two, 1, 4, 1024);
    assert_eq!(two.process(OUTSIDE, &sealed[0], 1).0, OUTSIDE_IN);
    assert_eq!(two.process(OUTSIDE, &sealed[0], 1).0, dropped(DropReason::EspReplayed));

    change(&mut one, 0, 5, 64);
    sealed.extend((0..3).map(|_| one.process(INSIDE, &clear, 2).1));
    assert_eq!(one.process(INSIDE, &clear, 2).0, dropped(DropReason::EspExpired), "what passed counts");
    let opened: Vec<_> = sealed[2..].iter().map(|sealed| two.process(OUTSIDE, sealed, 2).0).collect();
    assert_eq!(opened, [OUTSIDE_IN, OUTSIDE_IN, dropped(DropReason::EspExpired)]);
    assert_eq!(two.esp.associations()[0].highest(), 4, "the numbers went on");
}

/// While an association is expired nothing is due; with higher limits its keepalives go on.
#[test]
fn an_association_that_lives_again_keeps_its_way_open() {
    const EVERY_NS: u64 = 20_000_000_000;
    let with = |packets: u64| {
        let hard = Limits { packets: Some(packets), ..Limits::default() };
        let mut plan = plan(0, Lifetime { hard, ..Lifetime::default() });
        plan.associations[0].udp_ports = Some([4500, 4500]);
        plan.associations[0].keepalive_ns = Some(EVERY_NS);
        plan
    };
    let mut one = Gateway::new(0, Lifetime::default());
    let disk = Disk::default();
    disk.safe.store(1 + AHEAD, Ordering::Relaxed);
    let received = AssociationNumbers::Received(0, Box::new(disk.clone()));
    let keys = vec![key(0, sent(&disk)), key(1, received)];
    one.esp.change(EspChange { plan: with(1), keys }, 0);
    let clear = frame(HOSTS[0], HOSTS[1], [1, 2], 10);
    assert_eq!(one.process(INSIDE, &clear, 1).0, INSIDE_OUT);
    let mut room = [0; FRAME_BYTES as usize];
    assert_eq!(one.esp.write_keepalive(&mut room, EVERY_NS + 1), None, "it is expired");
    assert_eq!(one.esp.next_keepalive_ns(), None);
    one.esp.change(EspChange { plan: with(9), keys: vec![None, None] }, EVERY_NS + 2);
    assert_eq!(one.esp.next_keepalive_ns(), Some(EVERY_NS + 2));
    assert!(one.esp.write_keepalive(&mut room, EVERY_NS + 2).is_some(), "it was due while it was expired");
    assert_eq!(one.esp.write_keepalive(&mut room, EVERY_NS + 2), None);
    assert_eq!(one.esp.next_keepalive_ns(), Some(2 * EVERY_NS + 2));
}

#[test]
fn an_association_without_numbers_leaves_the_packets_to_its_successor() {
    let mut one = Gateway::new(0, Lifetime::default());
    let mut plan = plan(0, Lifetime::default());
    let last = AssociationPlan { name: "last".into(), is_extended: false, ..plan.associations[0].clone() };
    let next = AssociationPlan { name: "next".into(), spi: 0x2000, ..plan.associations[0].clone() };
    plan.associations = vec![last, next];
    plan.policies.truncate(1);
    plan.policies[0].associations = vec!["last".into(), "next".into()];
    let disk = Disk::default();
    disk.safe.store(u64::MAX, Ordering::Relaxed);
    let of = |numbers| AssociationNumbers::Sent(numbers, Box::new(disk.clone()));
    let two_left = SequenceNumbers::from_mark(u64::from(u32::MAX) - 1, false, AHEAD);
    let keys = vec![key(0, of(two_left)), key(2, of(SequenceNumbers::from_mark(1, true, AHEAD)))];
    one.esp.change(EspChange { plan, keys }, 0);
    let clear = frame(HOSTS[0], HOSTS[1], [1, 2], 10);
    let spis = (0..3).map(|_| {
        let (verdict, sealed) = one.process(INSIDE, &clear, 0);
        assert_eq!(verdict, INSIDE_OUT);
        u16::from_be_bytes([sealed[LINK_LEN + 22], sealed[LINK_LEN + 23]])
    });
    assert_eq!(spis.collect::<Vec<_>>(), [0x1000, 0x1000, 0x2000]);
}

#[test]
fn nothing_but_ike_and_neighbours_pass_by_the_policies() {
    let [mut one, _] = gateways();
    let is_ike = |ports: [u16; 2], data: &[u8], is_outbound: bool| {
        let ends = if is_outbound { [GATEWAYS[0], GATEWAYS[1]] } else { [GATEWAYS[1], GATEWAYS[0]] };
        let mut packet = frame(ends[0], ends[1], ports, data.len());
        packet[LINK_LEN + 28..].copy_from_slice(data);
        let ip = &packet[LINK_LEN..];
        one.esp.is_own_ike(ip, &IpHeaders::read_all(ip).unwrap(), is_outbound)
    };
    for is_outbound in [true, false] {
        for (ports, data, expected) in [
            ([500, 500], &[1; 8][..], true),
            ([4500, 4500], &[0, 0, 0, 0, 1], true),
            ([4500, 4500], &[0xff], true),
            ([4500, 4500], &[0, 0, 0, 1, 1], false),
            ([4500, 4500], &[], false),
            ([4501, 4501], &[0, 0, 0, 0, 1], false),
        ] {
            assert_eq!(is_ike(ports, data, is_outbound), expected, "{ports:?} {data:?} {is_outbound}");
        }
    }
    // A solicitation, alone and as fragments of something that begins like it.
    let mut solicitation = vec![0x60, 0, 0, 0, 0, 0, number::ICMPV6, 255];
    solicitation.extend([[0xfd; 16], [0xfc; 16]].concat());
    solicitation.extend([135; 24]);
    let mut fragment = solicitation.clone();
    fragment[6] = number::FRAGMENT;
    fragment.splice(40..40, [number::ICMPV6, 0, 0, 8, 0, 0, 0, 1]);
    // A report for the bridges of the link, and what looks like one and could go further.
    let report = |hop_limit: u8, to: [u8; 2]| {
        let mut report = vec![0x60, 0, 0, 0, 0, 0, number::HOP_BY_HOP, hop_limit];
        report.extend([[0xfe; 16], [0; 16]].concat());
        report[24..26].copy_from_slice(&to);
        report.extend([&[number::ICMPV6, 0, 5, 2, 0, 0, 1, 0][..], &[143; 8]].concat());
        report
    };
    let reports = [report(1, [0xff, 2]), report(2, [0xff, 2]), report(1, [0xff, 5])];
    for (number, mut packet) in [solicitation, fragment].into_iter().chain(reports).enumerate() {
        weir_ipsec::ip::set_len(&mut packet, IpFamily::V6).unwrap();
        let headers = IpHeaders::read_all(&packet).unwrap();
        assert_eq!(is_neighbourly(&packet, &headers), number == 0, "{number}");
        assert_eq!(is_report(&packet, &headers), number == 2, "{number}");
        // What others outside report is for their link, and no packet that a policy discards.
        let framed = [&[0x33, 0x33, 0, 0, 0, 0x16, 2, 0, 0, 0, 0, 8, 0x86, 0xdd][..], &packet].concat();
        let verdict = match number {
            0 => OUTSIDE_IN,
            2 => EspVerdict::Consume,
            _ => EspVerdict::Drop(DropReason::PolicyDiscard),
        };
        assert_eq!(one.process(OUTSIDE, &framed, 0).0, verdict, "{number}");
    }
}
