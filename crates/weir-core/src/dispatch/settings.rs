//! The settings of dispatch and steering, under netisr's names, from a file or the command line.
//!
//! | key | value | default |
//! |---|---|---|
//! | `dispatch` | `direct`, `hybrid`, `deferred` | `direct` |
//! | `maxthreads` | workers, or -1 for as many as CPUs | -1 |
//! | `bindthreads` | `true`, `false` (or 1, 0) | `true` |
//! | `defaultqlimit` | packets in a queue whose protocol names no limit | 256 |
//! | `maxqlimit` | the most any limit may be | 10240 |
//! | `rss.bits` | 2^bits buckets, at most 7 | two buckets for each worker |
//! | `rss.key` | `microsoft`, `symmetric` or 80 hexadecimal digits | `microsoft` |
//! | `rss.hash` | `2-tuple`, `4-tuple` | `4-tuple` |
//! | `rss.bucket.N` | the worker bucket N belongs to | N over the workers in turn |
//! | `proto.NAME.policy` | `source`, `flow`, `cpu` | the protocol's |
//! | `proto.NAME.dispatch` | as `dispatch` | as `dispatch` |
//! | `proto.NAME.qlimit` | packets | `defaultqlimit` |
//! | `proto.NAME.full` | `block`, `ecn`, `drop` | `block` |
//!
//! A topology file and the command line both come here as keys and texts, in any order. A value that is wrong by itself is refused when
//! it is set, one that contradicts others in [`Settings::finish`]. Either way the error names the key.
//!
//! Source: FreeBSD `netisr(9)`, `sys/net/rss_config.c`. Defaults are netisr's except for the threads: it
//! starts one.

use std::fmt;
use std::sync::Arc;

use super::protocol::{Mode, Policy, Protocol, Registry, WhenFull};
use crate::steer::key::{BUCKET_BITS_MAX, Key, KeyError};
use crate::steer::parse::HashKind;
use crate::steer::rss::{Rss, RssError, WORKERS_MAX};

/// The most packets that a limit can be, as in netisr, which has them in 32 bits: so the sum of all queues is a number too.
const QLIMIT_MAX: usize = u32::MAX as usize;

/// Settings as they are read, not checked against each other yet.
pub struct Settings {
    dispatch: Mode,
    maxthreads: Option<Set<usize>>,
    bindthreads: bool,
    defaultqlimit: Set<usize>,
    maxqlimit: Set<usize>,
    bits: Option<u32>,
    key: Key,
    hash: HashKind,
    buckets: Vec<Set<(usize, usize)>>,
    protocols: Vec<Protocol>,
    qlimits: Vec<Set<usize>>,
    seen: Vec<String>,
}

/// A value with its key, for errors that are found later.
#[derive(Clone)]
struct Set<T> {
    value: T,
    key: String,
}

impl<T> Set<T> {
    fn new(key: &str, value: T) -> Set<T> {
        Set { value, key: key.to_string() }
    }

    fn error(&self, problem: Problem) -> SettingError {
        SettingError { key: self.key.clone(), problem }
    }
}

/// Settings that are checked against each other.
pub struct Configuration {
    /// Protocols and steering, for every worker.
    pub registry: Arc<Registry>,
    /// The number of workers.
    pub workers: usize,
    /// The most workers that there may be on this machine.
    pub workers_max: usize,
    /// True if each worker is bound to a CPU.
    pub bindthreads: bool,
    /// `dispatch`.
    pub dispatch: Mode,
    /// `defaultqlimit`.
    pub defaultqlimit: usize,
    /// `maxqlimit`.
    pub maxqlimit: usize,
}

/// Reads `KEY=VALUE`.
///
/// # Errors
/// One sentence, without key and value.
pub fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
    let (key, value) = pair
        .filter(|(key, value)| !key.is_empty() && !value.is_empty())
        .ok_or("write KEY=VALUE, for example defaultqlimit=512")?;
    Ok((key.to_string(), value.to_string()))
}

impl Settings {
    /// The defaults for `protocols`.
    pub fn new(protocols: Vec<Protocol>) -> Settings {
        Settings {
            dispatch: Mode::Direct,
            maxthreads: None,
            bindthreads: true,
            defaultqlimit: Set::new("defaultqlimit", 256),
            maxqlimit: Set::new("maxqlimit", 10240),
            bits: None,
            key: Key::MICROSOFT,
            hash: HashKind::default(),
            buckets: Vec::new(),
            protocols,
            qlimits: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Sets `key` to the value in `text`.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), SettingError> {
        let error = |problem| SettingError { key: key.to_string(), problem };
        self.set_value(key, text).map_err(error)?;
        let name = canonical(key);
        if self.seen.contains(&name) {
            return Err(error(Problem::Twice));
        }
        self.seen.push(name);
        Ok(())
    }

    fn set_value(&mut self, key: &str, text: &str) -> Result<(), Problem> {
        let unknown = |kind, known| Problem::Unknown { kind, text: text.to_string(), known };
        let mode = || {
            Mode::from_name(text)
                .ok_or_else(|| unknown("mode", names(Mode::ALL.iter().map(|mode| mode.name()))))
        };
        let parts: Vec<&str> = key.split('.').collect();
        match parts[..] {
            ["dispatch"] => self.dispatch = mode()?,
            ["maxthreads"] if text == "-1" => self.maxthreads = None,
            ["maxthreads"] => self.maxthreads = Some(Set::new(key, number(text, 1, usize::MAX)?)),
            ["bindthreads"] => {
                self.bindthreads = match text {
                    "true" | "1" => true,
                    "false" | "0" => false,
                    _ => return Err(unknown("switch", "true, false".into())),
                }
            }
            ["defaultqlimit"] => self.defaultqlimit = Set::new(key, number(text, 1, QLIMIT_MAX)?),
            ["maxqlimit"] => self.maxqlimit = Set::new(key, number(text, 1, QLIMIT_MAX)?),
            ["rss", "bits"] => {
                self.bits = Some(number(text, 0, BUCKET_BITS_MAX as usize)? as u32);
            }
            ["rss", "key"] => self.key = text.parse().map_err(Problem::Key)?,
            ["rss", "hash"] => {
                let kind = HashKind::ALL.into_iter().find(|kind| kind.name() == text);
                self.hash =
                    kind.ok_or_else(|| unknown("hash", names(HashKind::ALL.iter().map(|kind| kind.name()))))?;
            }
            ["rss", "bucket", bucket] => {
                let bucket = number(bucket, 0, (1 << BUCKET_BITS_MAX) - 1)?;
                self.buckets.push(Set::new(key, (bucket, number(text, 0, usize::MAX)?)));
            }
            ["proto", name, setting] => {
                let known = || names(self.protocols.iter().map(|protocol| protocol.name));
                let place =
                    self.protocols.iter().position(|protocol| protocol.name == name).ok_or_else(|| {
                        Problem::Unknown { kind: "protocol", text: name.to_string(), known: known() }
                    })?;
                let protocol = &mut self.protocols[place];
                match setting {
                    "policy" => {
                        let policy = Policy::from_name(text);
                        protocol.policy = policy.ok_or_else(|| {
                            unknown("policy", names(Policy::ALL.iter().map(|policy| policy.name())))
                        })?;
                    }
                    "dispatch" => protocol.mode = Some(mode()?),
                    "qlimit" => {
                        let qlimit = Set::new(key, number(text, 1, QLIMIT_MAX)?);
                        protocol.qlimit = Some(qlimit.value);
                        self.qlimits.push(qlimit);
                    }
                    "full" => {
                        let rule = WhenFull::from_name(text);
                        protocol.when_full = rule.ok_or_else(|| {
                            unknown("rule", names(WhenFull::ALL.iter().map(|rule| rule.name())))
                        })?;
                    }
                    _ => return Err(Problem::NoSuchKey),
                }
            }
            _ => return Err(Problem::NoSuchKey),
        }
        Ok(())
    }

    /// Checks the limits of queues, whatever the machine.
    ///
    /// # Errors
    /// If one is above `maxqlimit`, or that is below the default.
    pub fn check_qlimits(&self) -> Result<(), SettingError> {
        let maxqlimit = self.maxqlimit.value;
        let is_default = !self.seen.contains(&self.defaultqlimit.key);
        for limit in self.qlimits.iter().chain([&self.defaultqlimit]) {
            if limit.value > maxqlimit {
                if is_default && limit.key == self.defaultqlimit.key {
                    // The error names the setting that was set, not the default.
                    let problem = Problem::BelowDefault { maxqlimit, defaultqlimit: limit.value };
                    return Err(self.maxqlimit.error(problem));
                }
                return Err(limit.error(Problem::AboveMax { qlimit: limit.value, maxqlimit }));
            }
        }
        Ok(())
    }

    /// Checks settings that depend on others, on a machine with `cpus` CPUs.
    pub fn finish(self, cpus: usize) -> Result<Configuration, SettingError> {
        self.check_qlimits()?;
        let maxqlimit = self.maxqlimit.value;
        let workers_max = cpus.clamp(1, WORKERS_MAX);
        let workers = match &self.maxthreads {
            Some(threads) if threads.value > workers_max => {
                return Err(threads.error(Problem::AboveCpus {
                    threads: threads.value,
                    cpus,
                    most: workers_max,
                }));
            }
            Some(threads) => threads.value,
            None => workers_max,
        };
        let bits = self.bits.unwrap_or_else(|| Rss::default_bits(workers));
        let mut rss = Rss::new(&self.key, self.hash, bits, workers)
            .map_err(|error| SettingError { key: "rss.bits".to_string(), problem: Problem::Rss(error) })?;
        for bucket in &self.buckets {
            let (number, worker) = bucket.value;
            rss.assign(number, worker).map_err(|error| bucket.error(Problem::Rss(error)))?;
        }
        let registry = Registry::new(self.protocols, self.dispatch, self.defaultqlimit.value, rss);
        Ok(Configuration {
            registry: Arc::new(registry),
            workers,
            workers_max,
            bindthreads: self.bindthreads,
            dispatch: self.dispatch,
            defaultqlimit: self.defaultqlimit.value,
            maxqlimit,
        })
    }
}

/// The one way of writing a key whose number can be written in several ways.
fn canonical(key: &str) -> String {
    let bucket = key.strip_prefix("rss.bucket.").and_then(|bucket| bucket.parse::<usize>().ok());
    bucket.map_or(key.to_string(), |bucket| format!("rss.bucket.{bucket}"))
}

fn number(text: &str, least: usize, most: usize) -> Result<usize, Problem> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| Problem::NotANumber { text: text.to_string(), least, most })
}

fn names(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// The error of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    /// The key.
    pub key: String,
    /// The fault.
    pub problem: Problem,
}

/// The fault of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// There is no such key.
    NoSuchKey,
    /// The key was set before.
    Twice,
    /// The word is not one of those it may be.
    Unknown {
        /// The kind of word that is expected.
        kind: &'static str,
        /// The word.
        text: String,
        /// The words that it may be.
        known: String,
    },
    /// The text is not a number, or is out of range.
    NotANumber {
        /// The text.
        text: String,
        /// The least value.
        least: usize,
        /// The most value.
        most: usize,
    },
    /// A queue limit above `maxqlimit`.
    AboveMax {
        /// The limit.
        qlimit: usize,
        /// `maxqlimit`.
        maxqlimit: usize,
    },
    /// A `maxqlimit` below a `defaultqlimit` that was not set.
    BelowDefault {
        /// `maxqlimit`.
        maxqlimit: usize,
        /// `defaultqlimit`.
        defaultqlimit: usize,
    },
    /// More workers than CPUs, or than there can be.
    AboveCpus {
        /// The workers asked for.
        threads: usize,
        /// The CPUs there are.
        cpus: usize,
        /// The most there may be.
        most: usize,
    },
    /// A key that cannot be used.
    Key(KeyError),
    /// Steering that is refused.
    Rss(RssError),
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.problem)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::NoSuchKey => f.write_str(
                "no such key; there are dispatch, maxthreads, bindthreads, defaultqlimit, maxqlimit, rss.bits, \
                 rss.key, rss.hash, rss.bucket.N, and policy, dispatch, qlimit, full under proto.NAME",
            ),
            Problem::Twice => f.write_str("set before; set it once"),
            Problem::Unknown { kind, text, known } => write!(f, "unknown {kind} `{text}`; use one of {known}"),
            Problem::NotANumber { text, least, most: usize::MAX } => {
                write!(f, "`{text}` is no number of at least {least}")
            }
            Problem::NotANumber { text, least, most } => write!(f, "`{text}` is no number from {least} to {most}"),
            Problem::AboveMax { qlimit, maxqlimit } => {
                write!(f, "{qlimit} is above maxqlimit, {maxqlimit}; lower it or raise maxqlimit")
            }
            Problem::BelowDefault { maxqlimit, defaultqlimit } => {
                write!(f, "{maxqlimit} is below defaultqlimit, {defaultqlimit}; set that too, or raise this")
            }
            Problem::AboveCpus { threads, cpus, most } => {
                write!(f, "{threads} workers on {cpus} CPUs; a worker wants a CPU of its own, use at most {most}")
            }
            Problem::Key(error) => error.fmt(f),
            Problem::Rss(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SettingError {}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
