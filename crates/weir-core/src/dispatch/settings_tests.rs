//! Settings are read, and their faults are reported.

use super::super::handlers::protocols;
use super::*;

fn read(given: &[(&str, &str)]) -> Result<Configuration, SettingError> {
    let mut settings = Settings::new(protocols());
    given.iter().try_for_each(|(key, text)| settings.set(key, text))?;
    settings.finish(8)
}

fn complaint(given: &[(&str, &str)]) -> String {
    read(given).err().expect("must be refused").to_string()
}

#[test]
fn everything_can_be_set_in_any_order() {
    let configuration = read(&[
        ("proto.ip6.qlimit", "8192"),
        ("proto.ip6.full", "drop"),
        ("proto.ip.dispatch", "direct"),
        ("proto.arp.policy", "flow"),
        ("rss.bucket.5", "3"),
        ("rss.bits", "3"),
        ("rss.hash", "2-tuple"),
        ("rss.key", "symmetric"),
        ("dispatch", "deferred"),
        ("maxthreads", "4"),
        ("bindthreads", "0"),
        ("defaultqlimit", "512"),
        ("maxqlimit", "8192"),
    ])
    .unwrap();
    let protocol = |name: &str| configuration.registry.get(configuration.registry.id(name).unwrap());
    assert_eq!((configuration.workers, configuration.bindthreads), (4, false));
    assert_eq!((configuration.defaultqlimit, configuration.maxqlimit), (512, 8192));
    assert_eq!((protocol("ip6").qlimit, protocol("ip6").protocol.when_full), (8192, WhenFull::Drop));
    assert_eq!((protocol("ip").qlimit, protocol("ip").mode), (512, Mode::Direct));
    assert_eq!((protocol("arp").protocol.policy, protocol("arp").mode), (Policy::Flow, Mode::Deferred));
    assert_eq!(protocol("ether").mode, Mode::Hybrid, "its own, whatever dispatch says");
    let rss = configuration.registry.rss();
    assert_eq!((rss.buckets(), rss.worker(5), rss.worker(6)), (8, 3, 2));
}

#[test]
fn the_defaults_stand_alone() {
    let configuration = read(&[]).unwrap();
    assert_eq!((configuration.workers, configuration.bindthreads), (8, true));
    assert_eq!((configuration.defaultqlimit, configuration.maxqlimit), (256, 10240));
    assert_eq!(configuration.dispatch, Mode::Direct);
    assert_eq!(configuration.registry.rss().buckets(), 16);
    assert_eq!(read(&[("maxthreads", "-1")]).unwrap().workers, 8);
}

#[test]
fn errors_name_the_key() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (
            &[("bindthreads", "1"), ("dispatch", "sometimes")],
            "dispatch: unknown mode `sometimes`; use one of direct, hybrid, deferred",
        ),
        (
            &[("proto.ip.policy", "hybrid")],
            "proto.ip.policy: unknown policy `hybrid`; use one of source, flow, cpu",
        ),
        (
            &[("proto.ipx.qlimit", "1")],
            "proto.ipx.qlimit: unknown protocol `ipx`; use one of ip, arp, ether, ip6",
        ),
        (
            &[("proto.ip.qlimit", "10241")],
            "proto.ip.qlimit: 10241 is above maxqlimit, 10240; lower it or raise maxqlimit",
        ),
        (
            &[("defaultqlimit", "300"), ("maxqlimit", "200")],
            "defaultqlimit: 300 is above maxqlimit, 200; lower it or raise maxqlimit",
        ),
        (&[("maxqlimit", "200")], "maxqlimit: 200 is below defaultqlimit, 256; set that too, or raise this"),
        (&[("rss.bucket.0", "0"), ("rss.bucket.00", "0")], "rss.bucket.00: set before; set it once"),
        (&[("proto.ip.qlimit", "0")], "proto.ip.qlimit: `0` is no number from 1 to 4294967295"),
        (
            &[("maxthreads", "2"), ("rss.bucket.1", "2")],
            "rss.bucket.1: bucket 1 is given to worker 2, which does not exist; there are workers 0 to 1",
        ),
        (
            &[("rss.bits", "1"), ("rss.bucket.2", "0")],
            "rss.bucket.2: there is no bucket 2; rss.bits makes buckets 0 to 1",
        ),
        (&[("rss.bits", "8")], "rss.bits: `8` is no number from 0 to 7"),
        (&[("rss.hash", "5-tuple")], "rss.hash: unknown hash `5-tuple`; use one of 2-tuple, 4-tuple"),
        (&[("maxthreads", "0")], "maxthreads: `0` is no number of at least 1"),
        (
            &[("maxthreads", "9")],
            "maxthreads: 9 workers on 8 CPUs; a worker wants a CPU of its own, use at most 8",
        ),
        (&[("bindthreads", "maybe")], "bindthreads: unknown switch `maybe`; use one of true, false"),
        (&[("dispatch", "direct"), ("dispatch", "direct")], "dispatch: set before; set it once"),
        (
            &[("proto.ip.full", "explode")],
            "proto.ip.full: unknown rule `explode`; use one of block, ecn, drop",
        ),
    ];
    for (given, expected) in cases {
        assert_eq!(complaint(given), *expected);
    }
    for key in ["dispach", "rss", "rss.seed", "proto.ip", "proto.ip.queue", "rss.bucket.1.2", ""] {
        assert!(complaint(&[(key, "1")]).starts_with(&format!("{key}: no such key; there are dispatch,")));
    }
    assert!(complaint(&[("rss.key", "6d:5a")]).contains("a key has 40 bytes"));
    assert!(complaint(&[("rss.bucket.x", "0")]).contains("`x` is no number from 0 to 127"));
}
