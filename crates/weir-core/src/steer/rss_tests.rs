//! Bursts against the definition, one frame at a time.

use proptest::prelude::*;

use super::super::toeplitz::tests::by_definition;
use super::*;

fn udp_v4(source: u32, port: u16) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend(source.to_be_bytes());
    frame.extend([10, 0, 0, 1]);
    frame.extend(port.to_be_bytes());
    frame.extend([0, 53]);
    frame.resize(60, 0);
    frame
}

fn udp_v6(source: u32, port: u16) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
    frame.extend([0xfe; 12]);
    frame.extend(source.to_be_bytes());
    frame.extend([0xfd; 16]);
    frame.extend(port.to_be_bytes());
    frame.extend([0, 53, 0, 8, 0, 0]);
    frame
}

fn arp() -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12..14].copy_from_slice(&[0x08, 0x06]);
    frame
}

fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let frame = (0_u8..8, any::<u32>(), any::<u16>()).prop_map(|(make, source, port)| match make {
        0..4 => udp_v4(source, port),
        4..7 => udp_v6(source, port),
        _ => arp(),
    });
    prop::collection::vec(frame, 0..=BURST_MAX)
}

fn defined_hash(key: &Key, frame: &[u8]) -> u32 {
    match frame[12..14] {
        [0x08, 0x00] => by_definition(key, &frame[26..38]),
        [0x86, 0xdd] => by_definition(key, &frame[22..58]),
        _ => 0,
    }
}

proptest! {
    /// One scratch serves two bursts: nothing of the first may show in the second.
    #[test]
    fn a_burst_is_hashed_by_the_definition(
        first in frames(),
        second in frames(),
        bits in 0..=BUCKET_BITS_MAX,
        workers in 1..=WORKERS_MAX,
        portable in any::<bool>(),
    ) {
        let mut rss = Rss::new(&Key::MICROSOFT, HashKind::FourTuple, bits, workers).unwrap();
        if portable {
            rss.toeplitz = Toeplitz::portable(&Key::MICROSOFT);
        }
        let mut burst = Burst::default();
        for frames in [&first, &second] {
            let views: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            rss.hash_burst(&views, &mut burst);
            prop_assert_eq!(burst.hashes().len(), frames.len());
            for (i, frame) in frames.iter().enumerate() {
                let hash = defined_hash(&Key::MICROSOFT, frame);
                prop_assert_eq!(burst.hashes()[i], hash, "frame {}", i);
                prop_assert_eq!(rss.hash(frame), hash, "frame {}", i);
                prop_assert_eq!(rss.bucket(hash), hash as usize % (1 << bits));
                prop_assert_eq!(rss.worker(hash), hash as usize % (1 << bits) % workers);
            }
        }
    }
}

#[test]
fn a_moved_bucket_takes_its_flows_along() {
    let mut rss = Rss::new(&Key::MICROSOFT, HashKind::FourTuple, 3, 4).unwrap();
    let frame = udp_v4(0x0a0b_0203, 4000);
    let bucket = rss.bucket(rss.hash(&frame));
    let new_worker = (rss.worker(rss.hash(&frame)) + 1) % 4;
    rss.assign(bucket, new_worker).unwrap();
    assert_eq!(rss.worker(rss.hash(&frame)), new_worker);
}

#[test]
fn the_ports_count_only_under_the_4_tuple() {
    let (a, b) = (udp_v4(1, 1000), udp_v4(1, 1001));
    let rss = |kind| Rss::new(&Key::MICROSOFT, kind, 7, 64).unwrap();
    assert_eq!(rss(HashKind::TwoTuple).hash(&a), rss(HashKind::TwoTuple).hash(&b));
    assert_ne!(rss(HashKind::FourTuple).hash(&a), rss(HashKind::FourTuple).hash(&b));
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let rss = |bits, workers| Rss::new(&Key::MICROSOFT, HashKind::FourTuple, bits, workers);
    assert_eq!(rss(8, 1).err(), Some(RssError::Bits(8)));
    assert_eq!(rss(3, 0).err(), Some(RssError::Workers(0)));
    assert_eq!(rss(3, 65).err(), Some(RssError::Workers(65)));
    let mut rss = rss(3, 2).unwrap();
    assert_eq!(rss.assign(8, 0), Err(RssError::NoBucket { bucket: 8, buckets: 8 }));
    let error = rss.assign(7, 2).unwrap_err();
    assert_eq!(error, RssError::NoWorker { bucket: 7, worker: 2, workers: 2 });
    assert!(
        error.to_string().contains("worker 2, which does not exist; there are workers 0 to 1"),
        "{error}"
    );
}

#[test]
fn default_bits_are_two_buckets_a_worker() {
    assert_eq!([1, 2, 3, 8, 63, 64].map(Rss::default_bits), [1, 2, 3, 4, 7, 7]);
}

/// Even load: 4096 flows over 8 workers, none more than a quarter off its share.
#[test]
fn flows_spread_evenly() {
    for key in [Key::MICROSOFT, Key::SYMMETRIC] {
        let rss = Rss::new(&key, HashKind::FourTuple, 7, 8).unwrap();
        let mut flows = [0_u32; 8];
        for i in 0..4096_u32 {
            let source = 0x0a0b_0000 + i / 16;
            flows[rss.worker(rss.hash(&udp_v4(source, 1024 + (i % 16) as u16 * 37)))] += 1;
        }
        assert!(flows.iter().all(|n| (384..=640).contains(n)), "{key} {flows:?}");
    }
}

/// The sum of the shares of its bytes, by which a device or a program of the kernel's steers, is the same hash.
#[test]
fn a_hash_is_the_sum_of_its_bytes_shares() {
    let rss = Rss::new(&Key::MICROSOFT, HashKind::FourTuple, 3, 2).unwrap();
    let sum =
        |tuple: &[u8]| tuple.iter().enumerate().fold(0, |sum, (at, &byte)| sum ^ rss.share_of(at, byte));
    for number in 0..200_u32 {
        let (source, port) = (number.wrapping_mul(0x9e37_79b9), (number as u16).wrapping_mul(331));
        let (v4, v6) = (udp_v4(source, port), udp_v6(source, port));
        assert_eq!(sum(&v4[26..38]), rss.hash(&v4));
        assert_eq!(sum(&v6[22..58]), rss.hash(&v6));
    }
}

#[test]
fn flows_come_by_a_queue_of_their_worker() {
    for (bits, workers, queues) in
        [(0, 1, 1), (1, 2, 2), (3, 2, 2), (3, 2, 5), (4, 3, 8), (7, 4, 64), (2, 4, 200)]
    {
        let rss = Rss::new(&Key::SYMMETRIC, HashKind::FourTuple, bits, workers).unwrap();
        let by = rss.queues(queues);
        assert_eq!(by.len(), rss.buckets());
        for (bucket, &queue) in by.iter().enumerate() {
            assert!(usize::from(queue) < queues);
            assert_eq!(usize::from(queue) % workers, rss.worker(bucket as u32), "{bits} {workers} {queues}");
        }
        let mut used: Vec<u8> = by.clone();
        used.sort_unstable();
        used.dedup();
        // No queue has two buckets while another has none.
        assert_eq!(used.len(), queues.min(rss.buckets()), "{bits} {workers} {queues}");
    }
    // The queues are too few for all workers: no bucket has one beyond them.
    let rss = Rss::new(&Key::SYMMETRIC, HashKind::FourTuple, 2, 4).unwrap();
    assert_eq!(rss.queues(2), [0, 1, 0, 1]);
}
