//! `weir check`: whether a topology file can be brought about, as far as the file itself tells; or a classes file, which is known by its tables.

use std::path::PathBuf;
use std::process::ExitCode;

use weir_run::classes::{is_classes_file, read_alone};
use weir_run::ipsec::missing_keys;
use weir_run::topology::{self, Topology};

use crate::{BAD_INPUT, Outcome, human, output, text};

/// Check a file of limits, of ports and what joins them, or of classes, without touching anything; what is wrong is said with its line.
#[derive(clap::Args)]
#[command(after_help = concat!("Examples:
  weir check weir.toml && sudo weir apply weir.toml
  weir check office.toml              a file for --classes, too
  weir check --schema > weir.schema.json

", include_str!("file-help.txt"), "
", include_str!("path-help.txt"), "
Whether the interfaces are there, `weir apply --dry-run` says of limits,
and `weir up` of ports; it also reads the key files, and here a warning
tells those that are missing. The status is 2 where something is wrong, as
that of those commands."))]
pub struct CheckArguments {
    /// The file, or - for standard input
    #[arg(required_unless_present = "schema")]
    file: Option<PathBuf>,
    /// Print the JSON schema of such files, for an editor that completes and checks keys, instead
    #[arg(long, conflicts_with = "file")]
    schema: bool,
}

/// Runs the command.
pub fn run(arguments: &CheckArguments) -> Outcome {
    let Some(file) = arguments.file.as_ref().filter(|_| !arguments.schema) else {
        let schema = serde_json::to_string_pretty(&topology::schema()).map_err(|error| error.to_string())?;
        output::print_line(schema)?;
        return Ok(ExitCode::SUCCESS);
    };
    let (name, text) = text::input(file)?;
    let checked = match is_classes_file(&text) {
        true => check_classes(&name, &text),
        false => text::topology_of(file, &name, &text)?.map(|topology| check_topology(&topology)),
    };
    match checked {
        Ok((sum, warnings)) => {
            let but = match warnings {
                0 => String::new(),
                number => format!(" but for {}", human::plural(number as u64, "warning")),
            };
            output::print_line(format_args!("{name}: {sum}; nothing wrong{but}"))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(told) => {
            told.iter().for_each(|what| output::say(format_args!("weir: {what}")));
            Ok(ExitCode::from(BAD_INPUT))
        }
    }
}

/// Warns of a classes file. Returns its contents in words and the number of warnings, or its faults.
fn check_classes(name: &str, text: &str) -> Result<(String, usize), Vec<String>> {
    let file = read_alone(name, text)?;
    text::warn_of(&file.classes);
    let classes = human::plural(file.classes.classes.len() as u64, "class");
    let filters = human::plural(file.filters as u64, "filter");
    let only = file.not_in_place.map_or(String::new(), |why| format!(", of a wire or a port alone ({why})"));
    Ok((format!("{classes} and {filters} for --classes{only}"), file.classes.warnings.len()))
}

/// Warns of the keys of a topology that are missing, behind its own warnings. Returns its contents in words and the number of warnings.
fn check_topology(topology: &Topology) -> (String, usize) {
    let missing = topology.plan.as_ref().map_or_else(Vec::new, missing_keys);
    topology.placed(&missing.join("\n")).into_iter().flatten().for_each(output::warn);
    (sum(topology), topology.warnings.len() + missing.len())
}

/// The contents of a file, in a line: `4 ports, 1 bridge, 1 router, 2 limits`. A limit of both ways is one, as for `weir apply`.
fn sum(topology: &Topology) -> String {
    let there = topology.counts().into_iter().filter(|(number, _)| *number > 0);
    let there: Vec<_> = there.map(|(number, thing)| human::plural(number as u64, thing)).collect();
    if there.is_empty() { "no limit".into() } else { there.join(", ") }
}
