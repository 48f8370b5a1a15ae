//! [`Transmission`] on a modelled kernel, which may not say how far it has taken packets when a call fails.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_ring::pool::Pool;

use super::*;

const RING: u32 = 8;
const FRAMES: u32 = 64;
const FRAME_BYTES: u32 = 64;

/// The device's treatment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The device takes it and has done with it at once.
    Taken,
    /// The device takes it and has done with it later.
    Kept,
    Refused,
    /// The device has no room for it at the first try.
    Busy,
}

/// The calls that fail and yet leave the counter of the transmit ring as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    /// Calls that took a packet before they failed (Linux 6.17).
    IfSent,
    Never,
}

struct Kernel {
    tells: Tells,
    /// The packets that one call takes.
    batch: usize,
    fates: VecDeque<Fate>,
    entries: Vec<Descriptor>,
    published: usize,
    taken: usize,
    said: usize,
    noted: usize,
    kept: VecDeque<u64>,
    completions: VecDeque<u64>,
    popped: usize,
}

impl Kernel {
    fn new(tells: Tells, batch: usize, fates: &[Fate]) -> Kernel {
        Kernel {
            tells,
            batch,
            fates: fates.iter().copied().collect(),
            entries: Vec::new(),
            published: 0,
            taken: 0,
            said: 0,
            noted: 0,
            kept: VecDeque::new(),
            completions: VecDeque::new(),
            popped: 0,
        }
    }

    fn fail(&mut self, sent: bool, how: Transmit) -> io::Result<Transmit> {
        if sent && self.tells == Tells::IfSent {
            self.said = self.taken;
        }
        Ok(how)
    }

    /// Completes the packets that the device kept, the last first.
    fn finish_kept(&mut self) {
        self.completions.extend(self.kept.drain(..).rev());
    }
}

impl TransmitRings for Kernel {
    fn push(&mut self, descriptor: Descriptor) {
        assert!(self.entries.len() - self.taken < RING as usize, "overwrites what the kernel has not taken");
        assert!(self.unconsumed() < RING, "no room as far as is known");
        self.entries.push(descriptor);
    }

    fn publish(&mut self) {
        self.published = self.entries.len();
    }

    fn unconsumed(&self) -> u32 {
        (self.entries.len() - self.said.max(self.noted)) as u32
    }

    fn note_unconsumed(&mut self, unconsumed: u32) {
        let taken = self.entries.len() - unconsumed as usize;
        assert!(taken <= self.taken, "says that more were taken than were");
        self.noted = self.noted.max(taken);
    }

    fn kick(&mut self) -> io::Result<Transmit> {
        for count in 0.. {
            if self.taken == self.published {
                self.said = self.taken;
                break;
            }
            if count == self.batch {
                return self.fail(count > 0, Transmit::Busy);
            }
            let address = self.entries[self.taken].address;
            match self.fates.pop_front().expect("a fate for each packet") {
                Fate::Busy => {
                    self.fates.push_front(Fate::Taken);
                    return self.fail(count > 0, Transmit::Busy);
                }
                Fate::Refused => {
                    self.taken += 1;
                    self.completions.push_back(address);
                    return self.fail(count > 0, Transmit::Refused);
                }
                Fate::Taken => self.completions.push_back(address),
                Fate::Kept => self.kept.push_back(address),
            }
            self.taken += 1;
        }
        Ok(Transmit::Progress)
    }

    fn completed(&self) -> impl Iterator<Item = u64> {
        self.completions.iter().copied().skip(self.popped)
    }

    fn pop(&mut self) -> Option<u64> {
        let address = self.completions.get(self.popped).copied();
        self.popped += usize::from(address.is_some());
        address
    }

    fn release(&mut self) {
        self.completions.drain(..std::mem::take(&mut self.popped));
    }
}

/// Sends a packet for each fate, `burst` at a time, and returns the reported completions, by length: the `n`th packet is `n` bytes long.
fn fates_reported(kernel: &mut Kernel, packets: u32, burst: u32) -> Vec<(u32, Completion)> {
    let pool = Pool::new(FrameMemory::new(FRAMES, FRAME_BYTES).unwrap());
    let mut frames = Frames::new(pool);
    let mut transmission = Transmission::new(&Arc::clone(frames.pool.memory()), RING, 0);
    let mut reported = Vec::new();
    let mut put = 0;
    for _ in 0..10_000 {
        for _ in 0..burst.min(transmission.room()).min(packets - put) {
            let frame = frames.pool.take().expect("more frames than the ring is long");
            put += 1;
            transmission.put(PathPacket::new(frame, 0, put as u16), kernel, &mut frames);
        }
        transmission.flush(kernel, || true).unwrap();
        transmission.complete(kernel, &mut frames, |length, fate| reported.push((length, fate)));
        kernel.finish_kept();
        if reported.len() == packets as usize {
            break;
        }
    }
    assert_eq!(transmission.in_flight(), (0, 0), "of {packets} packets {} ended", reported.len());
    reported.sort_unstable_by_key(|(length, _)| *length);
    reported
}

fn expected(fates: &[Fate]) -> Vec<(u32, Completion)> {
    let of = |fate: &Fate| if *fate == Fate::Refused { Completion::Refused } else { Completion::Delivered };
    (1..).zip(fates.iter().map(of)).collect()
}

#[test]
fn the_refused_one_is_told_from_those_before_and_behind_it() {
    use Fate::{Kept, Refused, Taken};
    let fates = [Refused, Taken, Kept, Refused, Refused, Taken, Kept, Refused];
    for tells in [Tells::IfSent, Tells::Never] {
        let mut kernel = Kernel::new(tells, 64, &fates);
        assert_eq!(fates_reported(&mut kernel, 8, 8), expected(&fates), "{tells:?}");
    }
}

#[test]
fn a_kernel_that_never_tells_how_far_it_is_gets_no_packet_too_many() {
    // Each call takes two packets and fails.
    let fates = [Fate::Kept; 50];
    let mut kernel = Kernel::new(Tells::Never, 2, &fates);
    assert_eq!(fates_reported(&mut kernel, 50, 8), expected(&fates));
}

#[test]
fn whatever_the_device_does_each_packet_has_its_own_fate() {
    // A linear congruential generator (Knuth), so that each run is the same.
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for run in 0..2_000 {
        let fates: Vec<Fate> = (0..40)
            .map(|_| [Fate::Taken, Fate::Kept, Fate::Refused, Fate::Busy][random(4) as usize])
            .collect();
        let tells = [Tells::IfSent, Tells::Never][random(2) as usize];
        let (batch, burst) = (1 + random(9) as usize, 1 + random(8) as u32);
        let mut kernel = Kernel::new(tells, batch, &fates);
        let reported = fates_reported(&mut kernel, 40, burst);
        assert_eq!(reported, expected(&fates), "run {run}, {tells:?}, {batch} a call, {burst} at a time");
    }
}
