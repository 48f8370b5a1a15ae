//! A scan of an interface's network: 100,000 addresses that no station has, beside a flow to a neighbour that exists (RFC 6583).

use super::*;

const KNOWN_MAX: usize = 64;
const INCOMPLETE_MAX: usize = 32;
const HELD_MAX: u64 = 48;
const PER_SECOND: u64 = 5;
const BURST: u64 = 20;
const SCANNED: usize = 100_000;
/// The seconds of a run, longer than an answer is trusted, so that the flow's neighbour is asked again.
const SECONDS: u64 = 40;
/// The time between two packets of the flow.
const STEP_NS: u64 = S / 100;

fn scan_settings() -> RouterSettings {
    let mut settings = settings();
    settings.interfaces[1].addresses =
        ["10.0.0.1/16", "2001:db8:1::1/64"].map(|text| text.parse().expect("an address")).into();
    (settings.routes, settings.neighbours) = (Vec::new(), Vec::new());
    (settings.neighbours_max, settings.incomplete_max) = (KNOWN_MAX, INCOMPLETE_MAX);
    (settings.held_max, settings.waiting_max) = (HELD_MAX as usize, 3);
    (settings.solicits_per_second, settings.solicits_burst) = (PER_SECOND as u32, BURST as u32);
    settings
}

/// One run, with all its counters.
struct Scan {
    router: Router<Pkt>,
    is_v6: bool,
    account: Account,
    now_ns: u64,
    /// Questions to all stations.
    asked: u64,
    /// Questions to the flow's neighbour alone.
    probed: u64,
}

impl Scan {
    fn neighbour(&self) -> IpAddr {
        if self.is_v6 { v6("2001:db8:1::7").into() } else { v4("10.0.0.7").into() }
    }

    fn packet(&self, to: IpAddr, hops: u8) -> Pkt {
        if self.is_v6 { from_a6(&to.to_string(), hops) } else { from_a(&to.to_string(), hops) }
    }

    /// The address with this number that no station has.
    fn nobody(&self, number: u64, seed: u64) -> IpAddr {
        let random = crate::net::table::mix(number ^ seed);
        if self.is_v6 {
            (u128::from(v6("2001:db8:1::")) | u128::from(random | 1 << 63)).to_be_bytes().into()
        } else {
            [10, 0, 128 | random as u8 & 0x3f, (random >> 8) as u8].into()
        }
    }

    /// Passes a burst in and moves its packets; returns the verdicts.
    fn show(&mut self, ingress: u16, mut packets: Vec<Pkt>) -> Vec<Verdict> {
        packets.iter().for_each(|packet| self.account.accept(packet.len_bytes()));
        let mut verdicts = vec![Verdict::Local; packets.len()];
        self.router.process(ingress, &mut packets, &Carried, self.now_ns, &mut verdicts);
        for (packet, &verdict) in packets.into_iter().zip(&verdicts) {
            self.end(packet, verdict);
        }
        self.settle();
        verdicts
    }

    fn end(&mut self, packet: Pkt, verdict: Verdict) {
        match verdict {
            Verdict::Hold(neighbour) => self.router.hold(neighbour, packet),
            Verdict::Drop(reason) => self.account.drop(reason, packet.len_bytes()),
            Verdict::Forward(_) | Verdict::Fragment(_) | Verdict::Local => {
                self.account.deliver(packet.len_bytes());
            }
        }
    }

    /// Takes out packets that may go and the router's own frames, which the flow's neighbour answers; checks every bound.
    fn settle(&mut self) {
        while let Some((packet, verdict)) = self.router.release(&Carried, self.now_ns) {
            self.end(packet, verdict);
        }
        let [known, incomplete] = self.router.neighbours_taken();
        assert!(known <= KNOWN_MAX && incomplete <= INCOMPLETE_MAX, "{known} known, {incomplete} not");
        assert!(self.router.held().packets <= HELD_MAX);
        assert!(self.account.balances(self.router.held()));
        for (interface, bytes) in made(&mut self.router) {
            let is_question = interface == 1 && (bytes[12..14] == [0x08, 0x06] || bytes[12] == 0x86);
            let to_all = bytes[0] & 1 == 1;
            self.asked += u64::from(is_question && to_all);
            let target: &[u8] = if self.is_v6 { &bytes[62..78] } else { &bytes[38..42] };
            let is_for_us = match self.neighbour() {
                IpAddr::V4(address) => address.octets() == target,
                IpAddr::V6(address) => address.octets() == target,
            };
            if is_question && is_for_us {
                self.probed += u64::from(!to_all);
                self.answer();
            }
        }
    }

    fn answer(&mut self) {
        let mut outbox = Outbox::new(1);
        match self.neighbour() {
            IpAddr::V4(address) => {
                let own = Speaker { interface: 1, mac: B, address };
                resolve::tell_arp(&mut outbox, own, v4("10.0.0.1"), R1);
            }
            IpAddr::V6(address) => {
                let own = Speaker { interface: 1, mac: B, address };
                resolve::tell_nd(&mut outbox, own, Some((v6("2001:db8:1::1"), R1)));
            }
        }
        let answer = Pkt(outbox.pop().expect("an answer").1.to_vec());
        self.account.accept(answer.len_bytes());
        let verdict = one(&mut self.router, 1, &mut answer.clone(), self.now_ns);
        assert_eq!(verdict, Verdict::Local);
        self.account.deliver(answer.len_bytes());
    }

    /// Has a station of the network ask for the router's address, so that it is known.
    fn introduce(&mut self, last: u8) -> IpAddr {
        let mut outbox = Outbox::new(1);
        let mac = [2, 0, 0, 0, 1, last];
        let address: IpAddr = if self.is_v6 {
            let address = v6(&format!("2001:db8:1::{last:x}"));
            resolve::ask_nd(&mut outbox, Speaker { interface: 1, mac, address }, v6("2001:db8:1::1"), None);
            address.into()
        } else {
            let address = Ipv4Addr::from([10, 0, 0, last]);
            resolve::ask_arp(&mut outbox, Speaker { interface: 1, mac, address }, v4("10.0.0.1"), None);
            address.into()
        };
        let question = Pkt(outbox.pop().expect("a question").1.to_vec());
        assert_eq!(self.show(1, vec![question]), [Verdict::Local]);
        address
    }
}

fn scan(is_v6: bool, is_at_once: bool, seed: u64, place: usize) {
    let router = Router::new(scan_settings(), 0).expect("a router");
    let account = Account::default();
    let mut run = Scan { router, is_v6, account, now_ns: 0, asked: 0, probed: 0 };
    // The flow's neighbour is asked for and answers; all other places are taken by stations that were heard.
    let first = run.packet(run.neighbour(), 9);
    assert!(matches!(run.show(0, vec![first])[..], [Verdict::Hold(_)]));
    run.settle();
    assert_eq!(run.router.neighbour(1, run.neighbour()), Some(NeighbourState::Reachable));
    let others: Vec<_> = (100..).take(KNOWN_MAX - 1).map(|last| run.introduce(last)).collect();
    assert_eq!(run.router.neighbours_taken(), [KNOWN_MAX, 0]);

    let steps = SECONDS * S / STEP_NS;
    let (mut scanned, asked_before) = (0, run.asked);
    for step in 0..steps {
        run.now_ns = step * STEP_NS;
        let due = if is_at_once { SCANNED } else { SCANNED * (step as usize + 1) / steps as usize };
        loop {
            let count = (due - scanned).min(BURST_MAX - 1);
            let mut burst: Vec<Pkt> = (scanned..scanned + count)
                .map(|number| run.packet(run.nobody(number as u64, seed), 9))
                .collect();
            scanned += count;
            let place = place.min(count);
            burst.insert(place, run.packet(run.neighbour(), 9));
            let verdicts = run.show(0, burst);
            for (at, verdict) in verdicts.into_iter().enumerate() {
                let full = Verdict::Drop(DropReason::NeighbourFull);
                match at == place {
                    true => assert_eq!(verdict, Verdict::Forward(1), "the flow, at {} ns", run.now_ns),
                    false => assert!(verdict == full || matches!(verdict, Verdict::Hold(_))),
                }
            }
            if scanned == due {
                break;
            }
        }
        run.router.poll(run.now_ns);
        run.settle();
    }
    assert_eq!(scanned, SCANNED);
    // Each new address is asked for three times at most.
    let asked = run.asked - asked_before;
    assert!(asked > 0 && asked <= 3 * (BURST + PER_SECOND * SECONDS), "{asked} questions");
    assert!(run.probed > 0, "the flow's neighbour was asked again");
    assert_eq!(run.router.neighbour(1, run.neighbour()), Some(NeighbourState::Reachable));
    for other in others {
        assert_eq!(run.router.neighbour(1, other), Some(NeighbourState::Stale), "{other} gave way");
    }
    assert!(run.router.counts().solicits_limited > 0);
    let dropped = |reason| run.account.dropped.get(reason).packets;
    let scans =
        dropped(DropReason::NeighbourFull) + dropped(DropReason::NoNeighbour) + run.router.held().packets;
    assert_eq!(scans, SCANNED as u64, "and nothing else was dropped");
    assert_eq!(run.account.dropped.total().packets + run.router.held().packets, scans);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn a_scan_takes_nothing_from_who_is_there(
        is_v6 in any::<bool>(), is_at_once in any::<bool>(), seed in any::<u64>(), place in 0..BURST_MAX,
    ) {
        scan(is_v6, is_at_once, seed, place);
    }
}

/// A station that speaks first is found during a scan: it needs no place among the unknown.
#[test]
fn a_new_station_that_speaks_first_is_found_in_a_scan() {
    for is_v6 in [false, true] {
        let router = Router::new(scan_settings(), 0).expect("a router");
        let mut run = Scan { router, is_v6, account: Account::default(), now_ns: 0, asked: 0, probed: 0 };
        let burst = (0..BURST_MAX as u64).map(|number| run.packet(run.nobody(number, 1), 9)).collect();
        run.show(0, burst);
        assert!(run.router.counts().solicits_limited > 0);
        let address = run.introduce(200);
        let packet = run.packet(address, 9);
        assert_eq!(run.show(0, vec![packet]), [Verdict::Forward(1)]);
    }
}
