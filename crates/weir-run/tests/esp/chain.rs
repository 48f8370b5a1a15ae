//! ESP stages of a file, in virtual time: tunnels within tunnels, and the keepalives of a tunnel in UDP.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use weir_core::drops::DropReason;
use weir_ipsec::algorithm::{Algorithm, KeyMaterial, Transform};
use weir_ipsec::esp::{Encapsulation, EspMode};
use weir_ipsec::keepalive::EVERY_NS_DEFAULT;
use weir_ipsec::sequence::SequenceNumbers;
use weir_ipsec::tunnel::Tunnel;
use weir_path::assembly::Shares;
use weir_path::deal;
use weir_path::esp::marks::SequenceMark;
use weir_path::esp::plan::{AssociationKey, AssociationNumbers, AssociationPlan, EspChange};
use weir_path::frames::Frames;
use weir_path::owners::Owners;
use weir_path::plan::{Plan, StageKind};
use weir_path::port::POLL_PACKETS_MAX;
use weir_path::worker::Worker;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;
use weir_run::topology;
use weir_sim::frame_port::FramePort;

const LAN: usize = 0;
const WAN: usize = 1;
const LINK_LEN: usize = 14;
const MS: u64 = 1_000_000;
/// The number of tunnels that the seed's author had in one another.
const DEPTH: usize = 16;
const PACKETS: u16 = 200;
/// So few numbers at once that a mark is asked for all the time.
const AHEAD: u64 = 4;

/// The places on the stack where each association, by its SPI, sealed packets.
type StackDepths = Arc<Mutex<BTreeSet<(u32, usize)>>>;

/// A mark that is safe at once, and remembers how deep the stack was where it was asked.
#[derive(Debug)]
struct StackProbe {
    safe: u64,
    depths: StackDepths,
    spi: u32,
}

impl SequenceMark for StackProbe {
    fn want(&mut self, mark: u64) {
        self.safe = mark;
    }

    fn safe(&self) -> u64 {
        let here = std::hint::black_box(0u8);
        self.depths.lock().unwrap().insert((self.spi, &raw const here as usize));
        self.safe
    }

    fn end(&mut self, _: u64) {}
}

/// The stages of a file, on one worker.
struct Bench {
    worker: Worker<FramePort>,
    stages: Vec<String>,
    /// The depths of the stack at which packets were sealed.
    depths: StackDepths,
    now_ns: u64,
    next_ns: Option<u64>,
}

fn plan(file: &str) -> Plan {
    let read = topology::read("chain.toml", file, "4711", |path| Err(path.into()));
    let read = read.unwrap_or_else(|told| panic!("{}\n{file}", told.join("\n")));
    assert_eq!(read.warnings, [""; 0]);
    read.plan.expect("it has ports")
}

fn key(association: &AssociationPlan, depths: &StackDepths) -> AssociationKey {
    let AssociationPlan { algorithm, spi, is_extended, .. } = *association;
    let material = KeyMaterial::new(algorithm, &vec![(spi ^ spi >> 8) as u8; algorithm.key_len()]).unwrap();
    let numbers = SequenceNumbers::from_mark(1, is_extended, AHEAD);
    let probe = StackProbe { safe: 1 + AHEAD, depths: Arc::clone(depths), spi };
    AssociationKey {
        transform: Transform::new(algorithm, &material).unwrap(),
        numbers: match association.is_inbound {
            true => AssociationNumbers::unmarked(),
            false => AssociationNumbers::Sent(numbers, Box::new(probe)),
        },
    }
}

impl Bench {
    fn new(plan: &Plan) -> Bench {
        let pools = Pool::for_workers(FrameMemory::new(4096, 2048).unwrap(), 1);
        let shares =
            Shares { held_packets_max: 1024, poll_budget_max: POLL_PACKETS_MAX, queues_gone: 1, seed: 7 };
        let ports = plan.ports.iter().map(|_| Some(FramePort::new(1))).collect();
        let frames = pools.into_iter().map(Frames::new).collect();
        let workers = deal::workers((plan, &Owners::alone(plan)), ports, frames, shares, 0).unwrap();
        let [mut worker] = <[Worker<FramePort>; 1]>::try_from(workers).ok().expect("one worker");
        let depths = Arc::default();
        for (number, stage) in plan.stages.iter().enumerate() {
            if let StageKind::Esp(esp) = &stage.kind {
                let keys = esp.associations.iter().map(|of| Some(key(of, &depths))).collect();
                worker.change_esp(number, EspChange { plan: (**esp).clone(), keys }, 0);
            }
        }
        let stages = plan.stages.iter().map(|stage| stage.name.clone()).collect();
        Bench { worker, stages, depths, now_ns: 0, next_ns: None }
    }

    fn port(&mut self, port: usize) -> &mut FramePort {
        &mut self.worker.end_mut(port).0.port
    }

    /// Passes until nothing moves. All books balance after each.
    fn run(&mut self) {
        loop {
            self.now_ns += MS / 1000;
            let pass = self.worker.pass(self.now_ns).unwrap();
            self.next_ns = pass.wake_ns;
            let between = self.worker.between();
            assert!(between.stages().all(|stage| stage.account().balances(stage.held())), "a stage's books");
            let queues = between.egress.queues();
            assert!(queues.iter().all(|queue| queue.shaping.account().balances(queue.shaping.held())));
            let is_done = self.port(LAN).queued() + self.port(WAN).queued() == 0;
            if is_done && self.worker.between().egress.held().packets == 0 {
                return;
            }
        }
    }

    /// Lets so much time pass, and wakes whenever the worker wanted.
    fn rest(&mut self, time_ns: u64) {
        let end_ns = self.now_ns + time_ns;
        while let Some(next_ns) = self.next_ns.filter(|&next_ns| next_ns <= end_ns) {
            self.now_ns = self.now_ns.max(next_ns);
            self.run();
        }
        self.now_ns = end_ns;
    }

    fn left(&mut self, port: usize) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.port(port).left)
    }

    /// The reasons of all drops, each with the name of its stage.
    fn dropped(&self) -> Vec<(String, DropReason)> {
        let stages = self.stages.iter().zip(self.worker.between().stages());
        let all = stages.flat_map(|(name, stage)| {
            let dropped = stage.account().dropped.occurred();
            dropped.map(|(reason, _)| (name.clone(), reason)).collect::<Vec<_>>()
        });
        all.collect()
    }

    /// The number of associations that sealed packets, and the number of depths of the stack at which they did.
    fn stack_depths(&self) -> [usize; 2] {
        let depths = self.depths.lock().unwrap();
        let distinct = |of: fn(&(u32, usize)) -> usize| depths.iter().map(of).collect::<BTreeSet<_>>().len();
        [distinct(|(spi, _)| *spi as usize), distinct(|(_, depth)| *depth)]
    }
}

/// A frame of UDP from 10.1.0.2 to 10.2.0.2, `number` in it, whose IP packet has so many bytes.
fn frame(number: u16, len: usize, may_be_cut: bool) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, if may_be_cut { 0 } else { 0x40 }, 0, 64, 17, 0, 0];
    ip.extend([10, 1, 0, 2, 10, 2, 0, 2]);
    ip[4..6].copy_from_slice(&number.to_be_bytes());
    ip.extend([1000u16, 2000, (len - 20) as u16, 0].iter().flat_map(|word| word.to_be_bytes()));
    ip.extend(number.to_be_bytes());
    ip.resize(len, 0x5a);
    weir_ipsec::ip::set_len(&mut ip, weir_ipsec::ip::IpFamily::V4).unwrap();
    [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0][..], &ip].concat()
}

/// The longest packet that a tunnel takes whose own are at most `mtu` bytes long.
fn longest_inside(mtu: usize) -> usize {
    let tunnel = Tunnel::new([0; 4].into(), [0; 4].into()).unwrap();
    let encapsulation = Encapsulation { mode: EspMode::Tunnel(tunnel), udp: None };
    encapsulation.packet_len_max(Algorithm::Aes128Gcm, mtu, 20)
}

/// The MTU outside of each tunnel, the innermost first: the outermost's is a link's.
fn mtus(depth: usize) -> Vec<usize> {
    let mut mtus = vec![1500];
    (1..depth).for_each(|_| mtus.push(longest_inside(mtus[mtus.len() - 1])));
    mtus.reverse();
    mtus
}

/// A file of so many tunnels in one another, and out of one another again.
fn chain(depth: usize) -> String {
    let mut file =
        "[[port]]\ninterface = \"lan\"\n[[port]]\ninterface = \"wan\"\n[[epair]]\nname = \"mid\"\n"
            .to_string();
    for (own, side) in [(0, "near"), (1, "far")] {
        for (level, mtu) in mtus(depth).into_iter().enumerate() {
            let edge = ["lan", "wan"][own];
            let inside = if level == 0 { edge.into() } else { format!("{side}{}b", level - 1) };
            let outside = match (level + 1 == depth, own) {
                (true, 0) => "mida".into(),
                (true, _) => "midb".into(),
                (false, _) => {
                    file += &format!("[[epair]]\nname = \"{side}{level}\"\n");
                    format!("{side}{level}a")
                }
            };
            let ends = ["1", "2"].map(|end| format!("172.16.{level}.{end}"));
            file += &format!(
                "[[esp]]\nname = \"{side}-{level}\"\ninside = \"{inside}\"\noutside = \"{outside}\"\naddress = [\"{}\"]\nmtu = {mtu}\n",
                ends[own]
            );
            for from in 0..2 {
                let direction = if from == own { "out" } else { "in" };
                file += &format!(
                    "[[sa]]\nname = \"{side}-{level}-{direction}\"\nesp = \"{side}-{level}\"\ndirection = \"{direction}\"\nspi = {}\n\
                     source = \"{}\"\ndestination = \"{}\"\nalgorithm = \"aes128-gcm\"\nkey_file = \"{side}-{level}-{direction}.key\"\n\
                     [[policy]]\nesp = \"{side}-{level}\"\ndirection = \"{direction}\"\nfrom = \"0.0.0.0/0\"\naction = \"protect\"\n\
                     sa = [\"{side}-{level}-{direction}\"]\n",
                    0x1000 * (1 + from) + level,
                    ends[from],
                    ends[1 - from],
                );
            }
        }
    }
    file
}

#[test]
fn sixteen_tunnels_in_one_another_lose_nothing_and_need_no_more_stack_than_one() {
    for depth in [1, 2, DEPTH] {
        let mut bench = Bench::new(&plan(&chain(depth)));
        let longest = longest_inside(mtus(depth)[0]);
        for number in 0..PACKETS {
            // The longest packets, and the shortest.
            let len = if number % 2 == 0 { longest } else { 40 };
            bench.port(LAN).send(0, frame(number, len, false));
            if number % 16 == 0 {
                bench.run();
            }
        }
        bench.run();
        let expected: Vec<_> = (0..PACKETS)
            .map(|number| frame(number, if number % 2 == 0 { longest } else { 40 }, false))
            .collect();
        assert!(bench.left(WAN) == expected, "{depth} tunnels: all, in order, as they were");
        assert_eq!((bench.left(LAN).len(), bench.dropped()), (0, Vec::new()));
        for stage in bench.worker.between().stages() {
            let esp = stage.esp().unwrap();
            let passed: u64 = esp.associations().iter().map(|running| running.usage().packets).sum();
            assert_eq!(passed, u64::from(PACKETS), "each tunnel has sealed or opened all");
        }
        assert_eq!(bench.stack_depths(), [depth, 1], "each stage is served from where the others are");
    }
}

#[test]
fn the_innermost_tunnel_tells_the_path_mtu_of_all() {
    let mut bench = Bench::new(&plan(&chain(DEPTH)));
    let longest = longest_inside(mtus(DEPTH)[0]);
    assert!((560..640).contains(&longest), "{longest}");
    bench.port(LAN).send(0, frame(1, longest + 1, false));
    bench.run();
    assert_eq!(bench.left(WAN), Vec::<Vec<u8>>::new());
    let [told] = &bench.left(LAN)[..] else { panic!("its sender is told") };
    let icmp = &told[LINK_LEN + 20..];
    assert_eq!((icmp[0], icmp[1], u16::from_be_bytes([icmp[6], icmp[7]])), (3, 4, longest as u16));
    assert_eq!(bench.dropped(), [("near-0".to_string(), DropReason::TooLong)]);
    // A packet that may be cut is cut once, by the first tunnel: none of its fragments is too long for any of the others.
    bench.port(LAN).send(0, frame(2, 1500, true));
    bench.run();
    let fragments = bench.left(WAN);
    let payload: usize = fragments.iter().map(|fragment| fragment.len() - LINK_LEN - 20).sum();
    assert_eq!((fragments.len(), payload), (1480usize.div_ceil((longest - 20) / 8 * 8), 1480));
    assert_eq!(bench.dropped().len(), 1, "nothing more");
}

#[test]
fn what_is_too_long_for_the_tunnel_around_it_is_warned_of() {
    let file = chain(3);
    let [inner, between, outer] = mtus(3)[..] else { panic!("three") };
    assert_eq!(outer, 1500);
    let warned =
        |file: &str| topology::read("f.toml", file, "4711", |path| Err(path.into())).unwrap().warnings;
    assert_eq!(warned(&file), [""; 0]);
    for (level, mtu, around) in [(0, inner, 1), (1, between, 2)] {
        let from = format!("172.16.{level}.1\"]\nmtu = {mtu}\n");
        assert!(file.contains(&from));
        let warnings = warned(&file.replace(&from, &format!("172.16.{level}.1\"]\nmtu = {}\n", mtu + 1)));
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        let expected = format!(
            "what \"near-{level}\" seals has up to {} bytes, and \"near-{around}\" around it takes {mtu},",
            mtu + 1
        );
        assert!(warning.contains(&expected), "{warning}");
        // An ESP without mtu seals up to 1500, which is warned of as well.
        let silent = warned(&file.replace(&from, &format!("172.16.{level}.1\"]\n")));
        assert!(silent.iter().any(|warning| warning.contains(&format!("write mtu = {mtu}"))), "{silent:?}");
    }
}

/// Who seals learns it from the tunnel around it, as from every router.
#[test]
fn what_is_too_long_for_the_tunnel_around_it_is_learned() {
    let [takes, _] = mtus(2)[..] else { panic!("two") };
    let file = chain(2).replace(&format!("mtu = {takes}\n"), "");
    let read = topology::read("f.toml", &file, "4711", |path| Err(path.into())).unwrap();
    let mut bench = Bench::new(&read.plan.unwrap());
    let long = longest_inside(1500);
    bench.port(LAN).send(0, frame(1, long, false));
    bench.run();
    assert_eq!((bench.left(WAN).len(), bench.left(LAN).len()), (0, 0), "only the gateway itself is told");
    assert_eq!(bench.dropped(), [("near-1".to_string(), DropReason::TooLong)]);
    let stages = bench.worker.between().stages();
    let all = stages.flat_map(|stage| stage.esp().unwrap().associations());
    let known: Vec<_> = all.filter_map(|running| running.path_mtu_bytes(bench.now_ns)).collect();
    assert_eq!(known, [takes as u16]);
    bench.port(LAN).send(0, frame(2, long, false));
    bench.run();
    let [told] = &bench.left(LAN)[..] else { panic!("its sender is told") };
    let icmp = &told[LINK_LEN + 20..];
    let longest = longest_inside(takes);
    assert_eq!((icmp[0], icmp[1], u16::from_be_bytes([icmp[6], icmp[7]])), (3, 4, longest as u16));
    // One that may be cut is cut before it is sealed.
    for (number, len, may_be_cut, leave) in [(3, longest, false, 1), (4, long, true, 2)] {
        bench.port(LAN).send(0, frame(number, len, may_be_cut));
        bench.run();
        assert_eq!(bench.left(WAN).len(), leave, "{number}");
    }
}

/// A gateway in UDP, without its peer: the packets that it seals leave.
const IN_UDP: &str = r#"
[[port]]
interface = "lan"
[[port]]
interface = "wan"
[[esp]]
name = "tunnel"
inside = "lan"
outside = "wan"
address = ["192.0.2.1"]
[[sa]]
name = "there"
direction = "out"
spi = 0x1001
source = "192.0.2.1"
destination = "192.0.2.2"
algorithm = "aes128-gcm"
key_file = "there.key"
udp_ports = [4500, 4501]
hard = { packets = 4 }
[[policy]]
direction = "out"
action = "protect"
sa = ["there"]
"#;

#[test]
fn a_way_through_a_translator_is_kept_alive() {
    let plan = plan(IN_UDP);
    let StageKind::Esp(esp) = &plan.stages[0].kind else { panic!("an esp") };
    assert_eq!(esp.associations[0].keepalive_ns, Some(EVERY_NS_DEFAULT), "RFC 3948 section 4");
    let second = 1000 * MS;
    let mut bench = Bench::new(&plan);
    bench.run();
    bench.rest(100 * second);
    assert_eq!(bench.left(WAN).len(), 0, "the way to the peer is not known yet");
    let send = |bench: &mut Bench| {
        bench.port(LAN).send(0, frame(1, 100, true));
        bench.run();
        bench.left(WAN)
    };
    let [sealed] = &send(&mut bench)[..] else { panic!("one packet") };
    bench.rest(19 * second);
    assert_eq!(bench.left(WAN).len(), 0);
    bench.rest(2 * second);
    let [keepalive] = &bench.left(WAN)[..] else { panic!("one keepalive") };
    // To the same next hop, and from port to port as the sealed packets.
    assert_eq!((&keepalive[..LINK_LEN], keepalive.len()), (&sealed[..LINK_LEN], LINK_LEN + 29));
    assert_eq!(keepalive[LINK_LEN + 12..LINK_LEN + 24], sealed[LINK_LEN + 12..LINK_LEN + 24]);
    assert_eq!(keepalive[LINK_LEN + 28..], [0xff]);
    // A packet puts it off; without one they come every 20 s, woken by nothing else.
    bench.rest(18 * second);
    assert_eq!(send(&mut bench).len(), 1);
    bench.rest(19 * second);
    assert_eq!(bench.left(WAN).len(), 0);
    bench.rest(102 * second);
    assert_eq!(bench.left(WAN).len(), 6);
    let running = |bench: &Bench| {
        let stage = bench.worker.between().stages().next().unwrap();
        let running = &stage.esp().unwrap().associations()[0];
        (running.usage().packets, running.keepalives().packets, running.keepalives().bytes)
    };
    assert_eq!(running(&bench), (2, 7, 7 * keepalive.len() as u64));
    // An association whose life is over keeps nothing alive.
    (0..3).for_each(|_| drop(send(&mut bench)));
    bench.rest(100 * second);
    assert_eq!((bench.left(WAN).len(), running(&bench).1), (0, 7));
    assert_eq!(bench.dropped(), [("tunnel".to_string(), DropReason::EspExpired)]);
}

#[test]
fn keepalives_are_as_the_file_says() {
    let with = |from: &str, to: &str| {
        let file = IN_UDP.replace(from, to);
        assert_ne!(file, IN_UDP);
        topology::read("f.toml", &file, "4711", |path| Err(path.into()))
    };
    for (keepalive, expected) in [("7s", Some(7000 * MS)), ("20s", Some(EVERY_NS_DEFAULT)), ("off", None)] {
        let read = with("hard", &format!("keepalive = \"{keepalive}\"\nhard")).unwrap();
        let plan = read.plan.unwrap();
        let of = |plan: &Plan| match &plan.stages[0].kind {
            StageKind::Esp(esp) => esp.associations[0].keepalive_ns,
            _ => panic!("an esp"),
        };
        assert_eq!(of(&plan), expected);
        let text = topology::write::plan::write(&read.name, &["lan", "wan"], &plan);
        let again = topology::read("f.toml", &text, "4711", |path| Err(path.into())).unwrap();
        assert_eq!(of(&again.plan.unwrap()), expected, "{text}");
    }
    let told = with("udp_ports = [4500, 4501]", "keepalive = \"7s\"").unwrap_err();
    assert!(told[0].contains("keepalives are of ESP in UDP"), "{told:?}");
    let inbound = ("direction = \"out\"\nspi", "direction = \"in\"\nkeepalive = \"7s\"\nspi");
    let told = with(inbound.0, inbound.1).unwrap_err();
    assert!(told[0].contains("keepalives are sent by what goes out"), "{told:?}");
}

#[test]
fn a_tunnel_without_room_for_ipv6_is_warned_of() {
    let warned = |mtu: u32, from: &str| {
        let own = "address = [\"192.0.2.1\"]\n";
        let file = IN_UDP.replace(own, &format!("{own}mtu = {mtu}\n"));
        let file = file.replace("[[policy]]\n", &format!("[[policy]]\n{from}"));
        topology::read("f.toml", &file, "4711", |path| Err(path.into())).unwrap().warnings
    };
    // A policy without addresses is for both families.
    for from in ["", "from = \"fd00::/64\"\n"] {
        let told = warned(1343, from);
        let [warning] = &told[..] else { panic!("{told:?}") };
        assert!(
            warning.contains("\"tunnel\" has no room") && warning.contains("write mtu = 1344, or"),
            "{warning}"
        );
        assert_eq!(warned(1344, from), [""; 0]);
    }
    assert_eq!(warned(1343, "from = \"10.0.0.0/8\"\n"), [""; 0]);
}
