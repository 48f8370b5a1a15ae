//! The systems and cases that are run, and the settings of dispatch that make them.
//!
//! The path is ether -> ip, and the work comes after. Ether is handled where the packet is; the system under test is `ip`'s mode and rule,
//! which settings therefore must not touch. Every flow's work is worker 1's: one bucket, as IPsec had one thread. Settings of steering
//! (`maxthreads`, `rss.bits`, `rss.bucket.N`) take the place of that. The settings have no effect if a device's queues deal the flows.
//!
//! Source of the published figures: review D9721, 1.488 Mpps of 64-byte UDP in 2000 flows: 548.8 kpps without netisr, 426.5
//! kpps with a queue of 256 (616976559 of 838781531 dropped), 213.3 kpps with one of 8192 (87097837 of 98903527).

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use weir_core::dispatch::handlers::protocols;
use weir_core::dispatch::protocol::{Mode, Protocol, WhenFull};
use weir_core::dispatch::settings::{Configuration, Settings};

use super::esp::EspCase;

/// Threads of this lab, so its CPUs.
const CPUS: usize = 2;
/// The work of every flow is worker 1's.
const ONE_BUCKET: [(&str, &str); 2] = [("rss.bits", "0"), ("rss.bucket.0", "1")];
/// Settings in whose place [`ONE_BUCKET`] would stand.
const STEERING: [&str; 3] = ["maxthreads", "rss.bits", "rss.bucket."];
/// The settings in which the systems differ.
const UNDER_TEST: [&str; 2] = ["proto.ip.dispatch", "proto.ip.full"];
const QLIMIT: &str = "proto.ip.qlimit";

/// A mode of `ip` with one of two rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct System {
    /// Now or later.
    pub mode: Mode,
    /// True if a full queue drops, instead of holding its feeder.
    pub drops: bool,
}

impl System {
    /// All of them, in the order they take turns.
    pub const ALL: [System; 6] = [
        System { mode: Mode::Direct, drops: false },
        System { mode: Mode::Hybrid, drops: false },
        System { mode: Mode::Deferred, drops: false },
        System { mode: Mode::Direct, drops: true },
        System { mode: Mode::Hybrid, drops: true },
        System { mode: Mode::Deferred, drops: true },
    ];

    /// The name in reports and on the command line.
    pub fn name(self) -> String {
        format!("{}{}", self.mode, if self.drops { "-drop" } else { "" })
    }

    /// The system of that name.
    pub fn from_name(name: &str) -> Option<System> {
        System::ALL.into_iter().find(|system| system.name() == name)
    }
}

/// The cores of the threads, and the workers of the flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Two cores; the work of every flow is worker 1's.
    TwoCores,
    /// Two cores; flows are dealt to both workers.
    Rss,
    /// Both threads on one core; the work of every flow is worker 1's.
    OneCore,
    /// So many workers, each on a core of its own with a queue of the device that brings the flows of its own.
    Workers(usize),
}

/// The load of a flood, in percent: more than any worker can do.
const FLOOD_PCT: f64 = 1000.0;

/// A load and where it is put.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// The name in reports and on the command line.
    pub name: String,
    /// The load, in percent of the most that can be worked on.
    pub load_pct: f64,
    /// True if the queue limit is many times longer.
    pub is_long: bool,
    /// See [`Place`].
    pub place: Place,
}

impl Case {
    /// All that are run if none is named.
    pub fn defaults() -> Vec<Case> {
        const NAMES: [&str; 23] = [
            "1",
            "10",
            "25",
            "50",
            "75",
            "90",
            "100",
            "110",
            "125",
            "150",
            "150-long",
            "271",
            "271-long",
            "50-rss",
            "100-rss",
            "150-rss",
            "200-rss",
            "50-one-core",
            "100-one-core",
            "150-one-core",
            "271-one-core",
            "1-worker",
            "2-workers",
        ];
        NAMES.map(|name| name.parse().expect("a case")).to_vec()
    }
}

impl FromStr for Case {
    type Err = CaseError;

    fn from_str(name: &str) -> Result<Case, CaseError> {
        let error = || CaseError(name.to_string());
        let workers = match name {
            "1-worker" => Some(1),
            "2-workers" => Some(2),
            _ => None,
        };
        if let Some(workers) = workers {
            let place = Place::Workers(workers);
            return Ok(Case { name: name.to_string(), load_pct: FLOOD_PCT, is_long: false, place });
        }
        let (load, suffix) = name.split_once('-').unwrap_or((name, ""));
        let load_pct = load.parse().ok().filter(|load| (0.1..=1000.0).contains(load)).ok_or_else(error)?;
        let (is_long, place) = match suffix {
            "" => (false, Place::TwoCores),
            "long" => (true, Place::TwoCores),
            "rss" => (false, Place::Rss),
            "one-core" => (false, Place::OneCore),
            _ => return Err(error()),
        };
        Ok(Case { name: name.to_string(), load_pct, is_long, place })
    }
}

/// A name that is no case's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseError(String);

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: write a load in percent, 0.1 to 1000, alone or with -long, -rss or -one-core behind it, 1-worker or 2-workers, \
             or one of IPsec's: {}",
            self.0,
            EspCase::ALL.map(|case| case.name).join(", ")
        )
    }
}

impl std::error::Error for CaseError {}

/// `ip`'s queue limit by these settings, which are checked here.
pub fn queue_limit(settings: &[(String, String)]) -> Result<usize> {
    for (key, _) in settings {
        ensure!(
            !UNDER_TEST.contains(&key.as_str()),
            "--set {key}: that is what this lab's systems differ in; choose with --systems"
        );
    }
    let finish = |default_steering| {
        read(settings, default_steering, CPUS, |_| ()).map(|configuration| limit_of(&configuration))
    };
    finish(false)?;
    finish(true)
}

/// The limit of `ip`'s queue.
pub fn limit_of(configuration: &Configuration) -> usize {
    let ip = configuration.registry.id("ip").expect("a protocol of the path");
    configuration.registry.get(ip).qlimit
}

/// Protocols, workers and steering of a system in a case; in a long one the limit is `long` times the usual.
pub fn configure(
    settings: &[(String, String)],
    system: System,
    case: &Case,
    long: usize,
) -> Result<Configuration> {
    let qlimit = queue_limit(settings)? * if case.is_long { long } else { 1 };
    let mut settings = settings.to_vec();
    settings.retain(|(key, _)| key != QLIMIT);
    let cpus = match case.place {
        Place::Workers(workers) => {
            let workers = read(&settings, false, CPUS, |_| ())?.workers.min(workers);
            settings.retain(|(key, _)| !steers(key));
            workers
        }
        _ => CPUS,
    };
    // Flows are dealt to as many workers as there are: a share of each is then its own.
    let dealt = matches!(case.place, Place::Rss | Place::Workers(_));
    read(&settings, !dealt, cpus, |ip| {
        ip.mode = Some(system.mode);
        ip.when_full = if system.drops { WhenFull::Drop } else { WhenFull::Block };
        // Past `maxqlimit`, which bounds the limits that a user may ask for.
        ip.qlimit = Some(qlimit);
    })
}

fn steers(key: &str) -> bool {
    STEERING.iter().any(|own| key.starts_with(own))
}

fn read(
    settings: &[(String, String)],
    default_steering: bool,
    cpus: usize,
    under_test: impl FnOnce(&mut Protocol),
) -> Result<Configuration> {
    let mut protocols = protocols();
    let mut named = |name| protocols.iter_mut().position(|protocol| protocol.name == name);
    let [ether, ip] = ["ether", "ip"].map(|name| named(name).expect("a protocol of the path"));
    protocols[ether].mode = Some(Mode::Direct);
    under_test(&mut protocols[ip]);
    let mut read = Settings::new(protocols);
    let is_steered = settings.iter().any(|(key, _)| steers(key));
    let defaults = if default_steering && !is_steered { ONE_BUCKET.as_slice() } else { &[] };
    let given = settings.iter().map(|(key, text)| (key.as_str(), text.as_str()));
    for (key, text) in given.chain(defaults.iter().copied()) {
        if let Err(error) = read.set(key, text) {
            bail!("--set {error}");
        }
    }
    read.finish(cpus).map_err(|error| anyhow::anyhow!("--set {error}"))
}

/// The published kpps of a system in a case, and percent dropped.
pub fn published(system: System, case: &Case) -> (Option<f64>, Option<f64>) {
    match (system.name().as_str(), case.name.as_str()) {
        ("direct-drop", "271") => (Some(548.8), None),
        ("deferred-drop", "271") => (Some(426.5), Some(100.0 * 616_976_559.0 / 838_781_531.0)),
        ("deferred-drop", "271-long") => (Some(213.3), Some(100.0 * 87_097_837.0 / 98_903_527.0)),
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use weir_core::steer::rss::Rss;
    use weir_path::traffic::flows::Flows;

    use super::*;
    use crate::netisr::drive::traffic;

    /// The worker that each flow has.
    fn workers_of_flows(rss: &Rss) -> Vec<usize> {
        let traffic = traffic();
        let mut flows = Flows::new(&traffic).unwrap();
        let mut frame = [0; 64];
        let of_next = |_| {
            flows.write_next(&mut frame);
            rss.worker(rss.hash(&frame[..usize::from(traffic.size_bytes)]))
        };
        (0..traffic.flows).map(of_next).collect()
    }

    fn settings(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, text)| (key.to_string(), text.to_string())).collect()
    }

    fn configured(pairs: &[(&str, &str)], system: &str, case: &str) -> Configuration {
        let system = System::from_name(system).unwrap();
        configure(&settings(pairs), system, &case.parse().unwrap(), 32).unwrap()
    }

    #[test]
    fn names_and_cases_are_inverse() {
        assert!(System::ALL.iter().all(|system| System::from_name(&system.name()) == Some(*system)));
        assert_eq!(System::from_name("deferred-drop").map(|system| system.drops), Some(true));
        let long: Case = "150-long".parse().unwrap();
        assert_eq!((long.load_pct, long.is_long, long.place), (150.0, true, Place::TwoCores));
        for wrong in ["", "0", "1001", "nan", "fast", "100-two", "-long", "100-long-rss"] {
            let error = wrong.parse::<Case>().unwrap_err().to_string();
            assert!(error.contains("load in percent"), "{error}");
        }
    }

    #[test]
    fn a_system_is_a_mode_and_a_rule_of_ip() {
        let configuration = configured(&[], "hybrid-drop", "150-long");
        let registered = |name| configuration.registry.get(configuration.registry.id(name).unwrap());
        let ip = registered("ip");
        assert_eq!((ip.mode, ip.qlimit), (Mode::Hybrid, 8192));
        assert_eq!(ip.protocol.when_full, WhenFull::Drop);
        assert_eq!((registered("ether").mode, registered("arp").mode), (Mode::Direct, Mode::Direct));
        let workers = workers_of_flows(configuration.registry.rss());
        assert!(workers.iter().all(|worker| *worker == 1), "one thread for the work: {workers:?}");
        let workers = workers_of_flows(configured(&[], "hybrid", "100-rss").registry.rss());
        let second = workers.iter().filter(|worker| **worker == 1).count();
        assert!(
            (workers.len() / 4..=workers.len() * 3 / 4).contains(&second),
            "{second} of {}",
            workers.len()
        );
        assert_eq!(configured(&[], "hybrid", "1-worker").workers, 1);
        let configuration = configured(&[("rss.bits", "0"), ("rss.bucket.0", "1")], "hybrid", "2-workers");
        let workers = workers_of_flows(configuration.registry.rss());
        assert!(workers.contains(&0) && workers.contains(&1), "the device's queues deal them: {workers:?}");
    }

    #[test]
    fn settings_reach_the_registry() {
        let configuration = configured(
            &[("defaultqlimit", "64"), ("dispatch", "deferred"), ("bindthreads", "0"), ("maxthreads", "1")],
            "direct",
            "100-long",
        );
        let registered = |name| configuration.registry.get(configuration.registry.id(name).unwrap());
        assert_eq!((registered("ip").qlimit, registered("ip").mode), (2048, Mode::Direct));
        assert_eq!(registered("ip6").mode, Mode::Deferred);
        assert_eq!((configuration.bindthreads, configuration.workers), (false, 1));
        let workers = workers_of_flows(configured(&[("rss.bits", "1")], "direct", "100").registry.rss());
        assert!(workers.contains(&0), "settings of steering take the default's place: {workers:?}");
        assert_eq!(queue_limit(&settings(&[(QLIMIT, "512")])).unwrap(), 512);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_key() {
        for (pairs, words) in [
            (vec![("proto.ip.policy", "fast")], vec!["--set proto.ip.policy: unknown policy `fast`", "cpu"]),
            (vec![("dispatch", "later")], vec!["--set dispatch: unknown mode `later`", "hybrid"]),
            (vec![("proto.gre.qlimit", "9")], vec!["--set proto.gre.qlimit: unknown protocol `gre`", "ip6"]),
            (vec![("defaultqlimit", "20000")], vec!["--set defaultqlimit: 20000 is above maxqlimit, 10240"]),
            (vec![("rss.bits", "1"), ("rss.bucket.1", "2")], vec!["--set rss.bucket.1: ", "worker"]),
            (vec![("maxthreads", "3")], vec!["--set maxthreads: 3 workers on 2 CPUs"]),
            (vec![("rss.key", "secret")], vec!["--set rss.key: "]),
            (vec![("speed", "9")], vec!["--set speed: no such key"]),
            (vec![("proto.ip.dispatch", "direct")], vec!["--set proto.ip.dispatch: ", "--systems"]),
            (vec![("dispatch", "direct"), ("dispatch", "hybrid")], vec!["--set dispatch: set before"]),
        ] {
            let error = queue_limit(&settings(&pairs)).unwrap_err().to_string();
            words.iter().for_each(|word| assert!(error.contains(word), "{pairs:?}: {error}"));
        }
    }
}
