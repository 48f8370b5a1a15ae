//! The reading of options: the units of tc and names, checked where they are given.

use std::fmt::Display;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use weir_core::rate::Rate;
use weir_core::shaper::tbf::TbfConfig;
use weir_core::units::{parse_size_bytes, parse_time_ns, size_text};
use weir_path::plan::{Plan, StageKind};
use weir_run::classes::{self, Classes, Interfaces};
use weir_run::control::FILE_BYTES_MAX;
use weir_run::datapath::DatapathConfig;
use weir_run::limits::{self, NAME_IS, PATH_NAME_IS, is_name, is_path_name};
use weir_run::topology::{self, Topology};

use crate::{Failure, output};

/// Reads a rate, for clap.
pub fn rate(text: &str) -> Result<Rate, String> {
    text.parse().map_err(|error: weir_core::units::UnitError| error.to_string())
}

/// Reads a size, for clap.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).map_err(|error| error.to_string())
}

/// Reads a time, for clap.
pub fn time(text: &str) -> Result<u64, String> {
    parse_time_ns(text).map_err(|error| error.to_string())
}

/// Reads seconds from `least` to `most`, as a number or a time with a unit, for clap.
pub fn seconds(least: f64, most: f64) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let with_unit =
            || parse_time_ns(text).ok().map(|time_ns| Duration::from_nanos(time_ns).as_secs_f64());
        let seconds = text.parse::<f64>().ok().or_else(with_unit);
        let seconds = seconds.filter(|seconds| (least..=most).contains(seconds)).map(Duration::from_secs_f64);
        seconds.ok_or_else(|| format!("write seconds from {least} to {most}, such as 2 or 1500ms"))
    }
}

/// Reads a whole number from `least` to `most`, for clap.
pub fn whole<N>(least: N, most: N) -> impl Fn(&str) -> Result<N, String> + Clone
where
    N: Copy + PartialOrd + Display + FromStr + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse::<N>().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("write a whole number from {least} to {most}"))
    }
}

/// Reads a whole number, `least` or more, for clap.
pub fn at_least<N>(least: N) -> impl Fn(&str) -> Result<N, String> + Clone
where
    N: Copy + PartialOrd + Display + FromStr + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse::<N>();
        let is_too_large =
            number.is_err() && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.ok().filter(|number| *number >= least);
        number.ok_or_else(|| match is_too_large {
            true => "it is too large: write a lower number".into(),
            false => format!("write a whole number, {least} or more"),
        })
    }
}

/// Checks how many workers were asked for.
pub fn check_workers(workers: usize, most: usize) -> Result<(), Failure> {
    let cores = weir_port::sys::allowed_cores().len();
    let most = cores.min(most);
    if (1..=most).contains(&workers) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--workers {workers}: give 1 to {most}; each worker has a core of its own, and this process may use {cores}"
    )))
}

/// Checks a burst that was asked for.
pub fn check_burst(burst_bytes: u64) -> Result<(), Failure> {
    limits::check_burst(burst_bytes).map_err(|why| Failure::usage(format!("--burst: {why}")))
}

/// Checks the rates of a limit in place that were asked for.
pub fn check_rates_in_place(rates: [Option<Rate>; 2]) -> Result<(), Failure> {
    rates.into_iter().flatten().try_for_each(weir_core::limit::check_rate).map_err(Failure::usage)
}

/// Reads a classes file for a wire between two interfaces; warnings go to standard error.
pub fn classes<'a>(file: &Path, interfaces: impl Into<Interfaces<'a>>) -> Result<(String, Classes), Failure> {
    let (name, text) = classes_file(file)?;
    let classes = classes::read(&name, &text, interfaces).map_err(Failure::usage)?;
    warn_of(&classes);
    Ok((text, classes))
}

/// Reads a classes file for a limit in place; warnings go to standard error.
pub fn classes_in_place(file: &Path) -> Result<Classes, Failure> {
    let (name, text) = classes_file(file)?;
    let classes = classes::read_in_place(&name, &text).map_err(|refused| Failure::usage(refused.told))?;
    warn_of(&classes);
    Ok(classes)
}

/// Warns of classes that are kept, but perhaps not as meant.
pub fn warn_of(classes: &Classes) {
    classes.warnings.iter().for_each(output::warn);
}

/// Warns of limits, each with the rates of the classes without a parent that share it, where these are guaranteed more; once of two that
/// are alike.
pub fn warn_of_oversold(shared: impl Iterator<Item = (Rate, Vec<u64>)>) {
    let mut told =
        shared.filter_map(|(rate, roots)| classes::oversold(rate, roots.into_iter())).collect::<Vec<_>>();
    told.dedup();
    told.iter().for_each(output::warn);
}

/// Warns so of the ports of a datapath.
pub fn warn_of_oversold_ports(config: &DatapathConfig) {
    let shared =
        config.plan.ports.iter().filter_map(|port| Some((port.limits?.rate, port.classes.as_deref()?)));
    warn_of_oversold(shared.map(|(rate, classes)| (rate, classes::roots_bits_per_s(classes).collect())));
}

/// The name of a classes file, and its text.
pub fn classes_file(file: &Path) -> Result<(String, String), Failure> {
    let text =
        read_file(file).map_err(|why| Failure::usage(format!("--classes {}: {why}", file.display())))?;
    Ok((file.display().to_string(), text))
}

/// Reads a topology file, or standard input as `-`, and the classes files that it names, which are where it is; warnings go to standard
/// error. The first failure is that the file cannot be read, the second are its faults.
pub fn topology(file: &Path) -> Result<Result<Topology, Vec<String>>, Failure> {
    let (name, text) = input(file)?;
    topology_of(file, &name, &text)
}

/// The name of a file in sentences, and its text; of standard input as `-`.
pub fn input(file: &Path) -> Result<(String, String), Failure> {
    let name = input_name(file);
    let text = match is_standard_input(file) {
        true => read_text(std::io::stdin().lock()),
        false => read_file(file),
    };
    let text = text.map_err(|why| Failure::usage(format!("{name}: {why}")))?;
    Ok((name, text))
}

/// Reads the text of a topology file, as [`topology()`] does.
pub fn topology_of(file: &Path, name: &str, text: &str) -> Result<Result<Topology, Vec<String>>, Failure> {
    if classes::is_classes_file(text) {
        let why = "it is a file of classes, for --classes or for classes_file of a [[limit]] or a [[port]]: give one of those";
        return Ok(Err(vec![format!("{name}: {why}")]));
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    // Without a machine id the routers' MACs are derived from the rest: machine-id(5).
    let machine_id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let mut topology = topology::read(name, text, machine_id.trim(), |path| {
        let path = folder.join(path);
        Ok((path.display().to_string(), read_file(&path)?))
    });
    // The process that runs the topology may be in another directory, and knows a key by its path.
    if let Ok(Topology { plan: Some(plan), .. }) = &mut topology {
        let folder = std::path::absolute(folder.join("."))?;
        key_files(plan).for_each(|key| *key = without_links(folder.join(&*key)).display().to_string());
    }
    topology.iter().flat_map(|topology| &topology.warnings).for_each(output::warn);
    Ok(topology)
}

/// A path whose directory is said without links and `..`, or as it is if that cannot be found. The file itself may be a link.
fn without_links(path: PathBuf) -> PathBuf {
    let folder = path.parent().and_then(|folder| std::fs::canonicalize(folder).ok());
    folder.zip(path.file_name()).map_or_else(|| path.clone(), |(folder, name)| folder.join(name))
}

/// The key files that a plan names.
fn key_files(plan: &mut Plan) -> impl Iterator<Item = &mut String> {
    let associations = plan.stages.iter_mut().filter_map(|stage| match &mut stage.kind {
        StageKind::Esp(esp) => Some(&mut esp.associations),
        _ => None,
    });
    associations.flatten().filter_map(|association| association.key_file.as_mut())
}

/// Returns whether an argument that names a topology file means standard input.
pub fn is_standard_input(file: &Path) -> bool {
    file == Path::new("-")
}

/// The name of a topology file in sentences.
pub fn input_name(file: &Path) -> String {
    match is_standard_input(file) {
        true => "standard input".into(),
        false => file.display().to_string(),
    }
}

/// The text of a file, or in words why it cannot be read.
pub fn read_file(file: &Path) -> Result<String, String> {
    // A pipe may have no end, or nobody who writes to it; then opening it would wait for ever.
    match std::fs::metadata(file) {
        Ok(about) if !about.is_file() && !about.is_dir() => {
            Err("it is not a regular file: write it to one".into())
        }
        _ => std::fs::File::open(file).map_err(|error| unreadable(&error)).and_then(read_text),
    }
}

/// The text that an input has to its end, or in words why it cannot be read.
fn read_text(input: impl Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    input.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it is longer than {}", size_text(FILE_BYTES_MAX)));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|&&byte| byte != b'\n').count() + 1;
        format!("it is not text in UTF-8, from byte {column} of line {line} on")
    })?;
    // Editors of other systems put a mark in front, which is no text.
    Ok(match text.strip_prefix('\u{feff}') {
        Some(text) => text.into(),
        None => text,
    })
}

/// The words for a failure to read a file.
fn unreadable(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "there is no such file".to_string(),
        ErrorKind::PermissionDenied => "it may not be read".into(),
        ErrorKind::IsADirectory => "it is a directory, not a file".into(),
        _ => error.to_string(),
    }
}

/// Refuses `--queue` where classes have queues of their own.
pub fn check_queue(queue_ns: Option<u64>, has_classes: bool) -> Result<(), Failure> {
    match queue_ns {
        Some(_) if has_classes => Err(Failure::usage(
            "--queue is for a limit without classes: with them give each class its `queue` in the file",
        )),
        _ => Ok(()),
    }
}

/// The limits of a direction from the options that were given.
pub fn limits(
    rate: Option<Rate>,
    burst_bytes: Option<u64>,
    queue_ns: Option<u64>,
) -> Result<Option<TbfConfig>, Failure> {
    if let Some(burst_bytes) = burst_bytes {
        check_burst(burst_bytes)?;
    }
    let Some(rate) = rate else {
        return match (queue_ns, burst_bytes) {
            (Some(_), _) => Err(Failure::usage(
                "--queue says for how long packets may stand at a rate, and without one they stand only while the way out is full: give \
                 --rate too",
            )),
            (None, Some(_)) => {
                Err(Failure::usage("--burst is how much may pass at once of a rate: give --rate too"))
            }
            (None, None) => Ok(None),
        };
    };
    limits::direction(rate, burst_bytes, queue_ns).map(Some).map_err(Failure::usage)
}

/// Checks the name of a limit, which may be any interface's.
pub fn check_limit_name(name: &str) -> Result<(), Failure> {
    if !is_name(name) {
        return Err(Failure::usage(format!("a limit cannot be called {name:?}: a --name is {NAME_IS}")));
    }
    Ok(())
}

/// Checks the name of a wire, which may be an interface's, or of a run, as `noun` says.
pub fn check_path_name(noun: &str, name: &str) -> Result<(), Failure> {
    if !is_path_name(name) {
        return Err(Failure::usage(format!(
            "a {noun} cannot be called \"{name}\": give it a --name of {PATH_NAME_IS}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn seconds_are_a_number_or_a_time() {
        let seconds = seconds(0.01, 60.0);
        for (text, ms) in [("0.5", 500), ("1", 1000), ("1s", 1000), ("20ms", 20), ("60", 60_000)] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for wrong in ["0", "-1", "nan", "inf", "1min", "", "61", "5ms", "1e9"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_number_that_cannot_be_kept_is_too_large() {
        let pid = at_least(1_u32);
        assert_eq!(pid("4294967295"), Ok(u32::MAX));
        assert_eq!(pid("4294967296"), Err("it is too large: write a lower number".into()));
        for wrong in ["0", "-1", "", "1.5", "x"] {
            assert_eq!(pid(wrong), Err("write a whole number, 1 or more".into()), "{wrong}");
        }
    }

    #[test]
    fn a_key_is_known_by_one_path() {
        let base = std::env::temp_dir().join(format!("weir-text-{}", std::process::id()));
        fs::create_dir_all(base.join("keys")).unwrap();
        symlink(base.join("keys"), base.join("link")).unwrap();
        let base_in_full = fs::canonicalize(&base).unwrap();
        let expected = base_in_full.join("keys/there.key");
        for path in ["keys/there.key", "link/there.key", "keys/../keys/./there.key"] {
            assert_eq!(without_links(base.join(path)), expected, "{path}");
        }
        let nowhere = base.join("nowhere/../there.key");
        assert_eq!(without_links(nowhere.clone()), nowhere);
        fs::remove_dir_all(&base).unwrap();
    }
}
