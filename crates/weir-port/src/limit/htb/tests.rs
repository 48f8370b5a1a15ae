//! Tests of the kernel's objects of a limit in place.

use std::process::Command;

use weir_core::limit::{HtbTree, QueueParameters};
use weir_core::rate::Rate;

use super::*;
use crate::netns::NetNs;
use crate::probe::scratch::{self, ScratchPair};
use crate::sys;

#[test]
fn a_queue_that_somebody_sets_meanwhile_stays() {
    if !sys::is_root() {
        return;
    }
    let made = scratch::run(|answer| {
        let link = ScratchPair::new(c"near", &NetNs::current()?)?.receiver;
        let rate = Rate::from_bits_per_s(10_000_000).unwrap();
        let wanted =
            QueueParameters { rate, burst_bytes: 20_480, packet_bytes_max: 1518, frame_bytes_max: 1518 };
        let first = HtbTree::new(wanted).unwrap().first_class();
        let set = |verb: &str, handle: &str, queue: &str| {
            let tc = ["qdisc", verb, "dev", &link.name, "root", "handle", handle, queue];
            assert!(Command::new("tc").args(tc).status().unwrap().success());
        };
        let told = |created: Result<()>| -> Result<String> {
            let created = created.map_err(|error| error.to_string());
            let told = format!("{created:?} {:?}", root(link.ifindex)?);
            remove(link.ifindex, 0)?;
            Ok(told)
        };
        let create_now = || create(link.ifindex, chosen_noqueue(link.ifindex)?, &first);
        let mut made = vec![told(create_now())?];
        for queue in ["noqueue", "pfifo"] {
            set("add", "5:", queue);
            made.push(told(create_now())?);
        }
        // Another takes the place of a `noqueue` that was seen.
        set("replace", "7:", "noqueue");
        let RootKind::Default(seen) = root(link.ifindex)? else { panic!("it is none") };
        set("replace", "6:", "pfifo");
        made.push(told(create(link.ifindex, seen, &first))?);
        answer(made);
        Ok(())
    });
    let made = made.unwrap();
    assert_eq!(made[..2], ["Ok(()) Limit"; 2]);
    for (made, handle) in made[2..].iter().zip([0x5_0000, 0x6_0000]) {
        assert!(made.contains("meanwhile"), "{made}");
        assert!(made.ends_with(&format!("Other(\"pfifo\", {handle})")), "{made}");
    }
}

#[test]
fn tokens_are_found_among_the_statistics_and_what_is_cut_short_has_none() {
    let attribute = |kind: u16, words: &[i32]| -> Vec<u8> {
        let mut bytes = (4 + 4 * words.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    };
    let mut all = attribute(1, &[7, 7, 7]);
    all.extend(attribute(4, &[1, 2, 3, -5, 6]));
    assert_eq!(tokens(&all), Some(Tokens { own_ns: -320, ceil_ns: 384 }));
    for length in 0..all.len() {
        assert_eq!(tokens(&all[..length]), None, "{length} bytes");
    }
    assert_eq!(tokens(&attribute(4, &[1, 2, 3, -5])), None);
}
