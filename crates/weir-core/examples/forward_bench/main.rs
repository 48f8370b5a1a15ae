//! Forwarding in memory on one core: `cargo run --release -p weir-core --example forward_bench [-- --peer]`.
//!
//! - `test bed`: gen - bridge - epair - router - epair - bridge - sink, as in the report on if_epair: 100-byte packets, 2,000
//!   flows to 192.168.1.2 and up, neighbours as static entries. Before timing, every flow's packet is checked byte by
//!   byte at the sink; while timing, every flow's order. An epair on one worker is a bounded queue flushed once a pass.
//! - `macswap`, `bridge`: 64-byte packets copied from a preloaded ring of 256 into frames, forwarded, and given back.
//!   `macswap` does what `dpdk-testpmd`'s mode of that name does; the other asks a learning bridge.
//! - `lookup`: longest prefix match of random destinations in 500,000 prefixes, in bursts.
//!
//! Shown are median and quartiles over the repeats, in cycles of the time-stamp counter, of each repeat's least disturbed round and of its
//! middle one, whose speed a busy machine leaves most of the time. With `--peer`, testpmd runs before and after; otherwise its command is
//! printed.

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("skipped: cycles are read from the x86-64 time-stamp counter");
}

#[cfg(target_arch = "x86_64")]
fn main() -> std::io::Result<()> {
    let peer = std::env::args().any(|argument| argument == "--peer");
    peer::run(peer)?;
    bench::run();
    if peer { peer::run(true) } else { Ok(()) }
}

#[cfg(target_arch = "x86_64")]
mod frames;

#[cfg(target_arch = "x86_64")]
#[path = "../../../../benches/cycles.rs"]
mod cycles;

#[cfg(target_arch = "x86_64")]
mod bench {
    use std::collections::VecDeque;
    use std::hint::black_box;
    use std::net::IpAddr;

    use smoltcp::wire::{EthernetAddress, Ipv4Packet};
    use weir_core::net::BURST_MAX;
    use weir_core::net::bridge::{AGEING_NS, Bridge, Egress};
    use weir_core::net::route::Interface;
    use weir_core::net::route::trie::{Trie, TrieEntry};
    use weir_core::net::router::{Router, RouterSettings, StaticNeighbour, Verdict};
    use weir_core::packet::Carried;

    use super::cycles::{now_cycles, tsc_hz};
    use super::frames::{PAYLOAD, Pkt, udp};

    const REPEATS: usize = 9;
    const ROUNDS: usize = 400;
    /// The packets of a round: long enough to time, short enough to go undisturbed.
    const ROUND: usize = 16 * BURST_MAX;
    const POOL: usize = 4 * BURST_MAX;

    pub fn run() {
        let hz = tsc_hz();
        println!("time-stamp counter {:.2} GHz; cycles a packet: median [quartiles]", hz / 1e9);
        let mut bed = TestBed::new();
        bed.check();
        report("test bed", hz, || bed.round());
        assert_eq!(bed.received, bed.sent, "none lost");
        let mut forwarder = Forwarder::new();
        report("macswap", hz, || forwarder.round_macswap());
        report("bridge", hz, || forwarder.round_bridge());
        let mut lookups = Lookups::new();
        report("lookup", hz, || lookups.round());
        println!("           {} prefixes in {} KiB", lookups.prefixes, lookups.trie.size_bytes() / 1024);
    }

    /// Times rounds of [`ROUND`] packets.
    fn report(name: &str, hz: f64, mut round: impl FnMut()) {
        round();
        let mut least = Vec::with_capacity(REPEATS);
        let mut middle = Vec::with_capacity(REPEATS);
        for _ in 0..REPEATS {
            let mut rounds: Vec<f64> = (0..ROUNDS)
                .map(|_| {
                    let start = now_cycles();
                    round();
                    (now_cycles() - start) as f64 / ROUND as f64
                })
                .collect();
            rounds.sort_by(f64::total_cmp);
            least.push(rounds[0]);
            middle.push(rounds[ROUNDS / 2]);
        }
        let show = |mut cycles: Vec<f64>| {
            cycles.sort_by(f64::total_cmp);
            let [low, at, high] = [1, 2, 3].map(|part| cycles[(REPEATS - 1) * part / 4]);
            format!("{at:>6.1} [{low:.1}-{high:.1}] {:>6.1} Mpps", hz / at / 1e6)
        };
        println!("{name:<9} least {}   middle {}", show(least), show(middle));
    }

    const FLOWS: usize = 2000;
    const GENERATOR: [u8; 6] = [0x00, 0x07, 0x43, 0x57, 0xa0, 0x21];
    const SINK: [u8; 6] = [0x00, 0x07, 0x43, 0x57, 0xa0, 0x29];
    const JAIL_0: [u8; 6] = [0x02, 0x95, 0xfd, 0x1a, 0x50, 0x0b];
    const JAIL_1: [u8; 6] = [0x02, 0x95, 0xfd, 0x1a, 0x51, 0x0a];

    /// A virtual link whose ends are on one worker.
    struct Epair {
        queue: VecDeque<Pkt>,
        limit: usize,
    }

    impl Epair {
        fn send(&mut self, packet: Pkt) {
            assert!(self.queue.len() < self.limit, "an epair holds every packet there is");
            self.queue.push_back(packet);
        }

        /// Takes one flush: the packets that were there when it began.
        fn flush(&mut self, burst: &mut Vec<Pkt>) {
            let waiting = self.queue.len().min(BURST_MAX);
            burst.extend(self.queue.drain(..waiting));
        }
    }

    struct TestBed {
        templates: Vec<Vec<u8>>,
        free: Vec<Pkt>,
        burst: Vec<Pkt>,
        bridges: [Bridge; 2],
        epairs: [Epair; 2],
        router: Router<Pkt>,
        sent_of: Vec<u32>,
        received_of: Vec<u32>,
        next_flow: usize,
        sent: u64,
        received: u64,
    }

    impl TestBed {
        fn new() -> TestBed {
            let interface = |mac, cidr: &str| Interface {
                mac: EthernetAddress(mac),
                mtu_bytes: 1500,
                addresses: vec![cidr.parse().expect("an address")],
            };
            let station = |last| StaticNeighbour {
                interface: 1,
                address: IpAddr::from([192, 168, 1, last]),
                mac: EthernetAddress(SINK),
            };
            let settings = RouterSettings {
                interfaces: vec![interface(JAIL_0, "192.168.0.1/24"), interface(JAIL_1, "192.168.1.1/24")],
                routes: Vec::new(),
                neighbours: (2..=250).map(station).collect(),
                neighbours_max: 1024,
                incomplete_max: 64,
                solicits_per_second: 1000,
                solicits_burst: 64,
                held_max: POOL,
                waiting_max: 64,
                errors_per_second: 1000,
                errors_burst: 50,
                seed: 0x5eed,
                announces: false,
                host: None,
            };
            let template = |flow: usize| {
                let to = [192, 168, 1, 2 + (flow % 249) as u8];
                udp(JAIL_0, GENERATOR, to, 50_000 + (flow / 249) as u16, 100)
            };
            let epair = || Epair { queue: VecDeque::with_capacity(POOL), limit: POOL };
            // Port 0 is the machine's interface, port 1 the epair's end; a frame has come by each.
            let bridge = |behind_0, behind_1| {
                let mut bridge = Bridge::new(1024, AGEING_NS, 0x5eed);
                for (port, source) in [(0, behind_0), (1, behind_1)] {
                    bridge.add_port(port);
                    bridge.forward(port, &[udp([0xff; 6], source, [0; 4], 0, 60)], 0, &mut Vec::new());
                }
                bridge
            };
            TestBed {
                templates: (0..FLOWS).map(template).collect(),
                free: Pkt::pool(POOL),
                burst: Vec::with_capacity(POOL),
                bridges: [bridge(GENERATOR, JAIL_0), bridge(SINK, JAIL_1)],
                epairs: [epair(), epair()],
                router: Router::new(settings, 0).expect("a router"),
                sent_of: vec![0; FLOWS],
                received_of: vec![0; FLOWS],
                next_flow: 0,
                sent: 0,
                received: 0,
            }
        }

        /// Checks one packet of each flow, each compared whole with the expected frame.
        fn check(&mut self) {
            while self.next_flow + BURST_MAX <= FLOWS {
                let first = self.next_flow;
                self.pass();
                for (flow, packet) in (first..).zip(self.free.iter().rev().take(BURST_MAX).rev()) {
                    let mut expected = self.templates[flow].clone();
                    expected[..6].copy_from_slice(&SINK);
                    expected[6..12].copy_from_slice(&JAIL_1);
                    expected[PAYLOAD..PAYLOAD + 4].copy_from_slice(&(flow as u32).to_be_bytes());
                    let mut ip = Ipv4Packet::new_unchecked(&mut expected[14..]);
                    ip.set_hop_limit(63);
                    ip.fill_checksum();
                    assert_eq!(packet.as_ref(), expected, "flow {flow}");
                }
            }
        }

        fn round(&mut self) {
            for _ in 0..ROUND / BURST_MAX {
                self.pass();
            }
        }

        /// Takes a burst on its whole way.
        fn pass(&mut self) {
            let mut runs = Vec::with_capacity(2);
            let mut verdicts = [Verdict::Local; BURST_MAX];
            self.generate();
            self.bridges[0].forward(0, &self.burst, 0, &mut runs);
            assert_eq!(runs, [(Egress::Port(1), BURST_MAX)]);
            for packet in self.burst.drain(..) {
                self.epairs[0].send(packet);
            }
            self.epairs[0].flush(&mut self.burst);
            self.router.process(0, &mut self.burst, &Carried, 0, &mut verdicts);
            for (packet, verdict) in self.burst.drain(..).zip(verdicts) {
                assert_eq!(verdict, Verdict::Forward(1));
                self.epairs[1].send(packet);
            }
            self.epairs[1].flush(&mut self.burst);
            runs.clear();
            self.bridges[1].forward(1, &self.burst, 0, &mut runs);
            assert_eq!(runs, [(Egress::Port(0), BURST_MAX)]);
            for packet in self.burst.drain(..) {
                let bytes = packet.as_ref();
                let word = |at: usize| bytes[at..].first_chunk().map(|word| u32::from_be_bytes(*word));
                let (flow, number) = (word(PAYLOAD), word(PAYLOAD + 4));
                let next = &mut self.received_of[flow.expect("a flow") as usize];
                assert_eq!(number, Some(*next), "in order");
                *next += 1;
                self.received += 1;
                self.free.push(packet);
            }
        }

        fn generate(&mut self) {
            for _ in 0..BURST_MAX {
                let mut packet = self.free.pop().expect("a frame: all came back");
                let flow = self.next_flow;
                self.next_flow = if flow + 1 == FLOWS { 0 } else { flow + 1 };
                packet.copy_from(&self.templates[flow]);
                let stamp = &mut packet.as_mut()[PAYLOAD..PAYLOAD + 8];
                stamp[..4].copy_from_slice(&(flow as u32).to_be_bytes());
                stamp[4..].copy_from_slice(&self.sent_of[flow].to_be_bytes());
                self.sent_of[flow] += 1;
                self.sent += 1;
                self.burst.push(packet);
            }
        }
    }

    struct Forwarder {
        ring: Vec<[u8; 64]>,
        next: usize,
        free: Vec<Pkt>,
        burst: Vec<Pkt>,
        bridge: Bridge,
    }

    impl Forwarder {
        fn new() -> Forwarder {
            let mut bridge = Bridge::new(1024, AGEING_NS, 0x5eed);
            for (port, source) in [(0, GENERATOR), (1, SINK)] {
                bridge.add_port(port);
                bridge.forward(port, &[udp([0xff; 6], source, [0; 4], 0, 60)], 0, &mut Vec::new());
            }
            let one = |n: u16| udp(SINK, GENERATOR, [192, 168, 1, 2], n, 64).try_into().expect("64 bytes");
            Forwarder {
                ring: (0..256).map(one).collect(),
                next: 0,
                free: Pkt::pool(POOL),
                burst: Vec::with_capacity(BURST_MAX),
                bridge,
            }
        }

        fn receive(&mut self) {
            for _ in 0..BURST_MAX {
                let mut packet = self.free.pop().expect("a frame");
                packet.copy_from(&self.ring[self.next]);
                self.next = (self.next + 1) % self.ring.len();
                self.burst.push(packet);
            }
        }

        fn round_macswap(&mut self) {
            for _ in 0..ROUND / BURST_MAX {
                self.receive();
                for packet in &mut self.burst {
                    if let Some(head) = packet.as_mut().first_chunk_mut::<12>() {
                        let (destination, source) = head.split_at_mut(6);
                        destination.swap_with_slice(source);
                    }
                }
                self.free.append(black_box(&mut self.burst));
            }
        }

        fn round_bridge(&mut self) {
            let mut runs = Vec::with_capacity(1);
            for _ in 0..ROUND / BURST_MAX {
                self.receive();
                runs.clear();
                self.bridge.forward(0, &self.burst, 0, &mut runs);
                assert_eq!(runs, [(Egress::Port(1), BURST_MAX)]);
                self.free.append(black_box(&mut self.burst));
            }
        }
    }

    struct Lookups {
        trie: Trie<4>,
        prefixes: usize,
        addresses: Vec<[u8; 4]>,
        next: usize,
    }

    impl Lookups {
        fn new() -> Lookups {
            let mut random = 0x5eed_u64;
            let mut next = move || {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 32) as u32
            };
            // About the lengths of the Internet's table: three in five are /24, hardly any shorter than /16.
            const LENGTHS: [u8; 20] =
                [24, 24, 24, 24, 24, 24, 24, 24, 24, 24, 24, 24, 22, 22, 23, 21, 20, 19, 18, 16];
            let prefix = |_| {
                let len = LENGTHS[next() as usize % LENGTHS.len()];
                TrieEntry { bits: next().to_be_bytes(), len, value: 1 + next() % 64 }
            };
            let prefixes: Vec<_> = (0..500_000).map(prefix).collect();
            let mut seed = 1u32;
            let address = |_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed ^ seed >> 15).to_be_bytes()
            };
            let addresses = (0..1 << 20).map(address).collect();
            Lookups { prefixes: prefixes.len(), trie: Trie::compile(prefixes), addresses, next: 0 }
        }

        fn round(&mut self) {
            let mut values = [0; BURST_MAX];
            for burst in self.addresses[self.next..self.next + ROUND].chunks(BURST_MAX) {
                self.trie.lookup_burst(burst, black_box(&mut values));
            }
            self.next = (self.next + ROUND) % self.addresses.len();
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod peer;
