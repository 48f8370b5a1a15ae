//! The `weir` command: parse, call, print.

mod commands;
mod guarded;
mod human;
mod names;
mod notify;
mod output;
mod session;
mod table;
mod text;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Limits and moves packets on Linux without losing any: a full queue holds whoever feeds it, back to the program that
/// called send.
#[derive(Parser)]
#[command(name = "weir", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(commands::run::RunArguments),
    Wire(commands::wire::WireArguments),
    Limit(commands::limit::LimitArguments),
    Lab(commands::lab::LabArguments),
    Set(commands::set::SetArguments),
    Check(commands::check::CheckArguments),
    Apply(commands::apply::ApplyArguments),
    Up(commands::up::UpArguments),
    Down(commands::down::DownArguments),
    Show(commands::show::ShowArguments),
    Sa(commands::sa::SaArguments),
    Stat(commands::stat::StatArguments),
    Doctor(commands::doctor::DoctorArguments),
    Mend(commands::mend::MendArguments),
    Gen(commands::r#gen::GenArguments),
    Sink(commands::sink::SinkArguments),
    /// The process that the main one starts to clean up after it.
    #[command(hide = true)]
    Guardian {
        /// Also watch whether others still keep the namespaces that it holds.
        #[arg(long)]
        watch_namespaces: bool,
    },
}

fn main() -> ExitCode {
    let command = match parse() {
        Ok(arguments) => arguments.command,
        Err(error) => return explain(&error),
    };
    // Of `weir run` the program would inherit the bound.
    if !matches!(command, Command::Run(_)) {
        // A bound that stays is told of by what it refuses.
        let _ = weir_port::sys::raise_descriptors();
    }
    let result = match command {
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Wire(arguments) => commands::wire::run(&arguments),
        Command::Limit(arguments) => commands::limit::run(&arguments),
        Command::Lab(arguments) => commands::lab::run(&arguments),
        Command::Set(arguments) => commands::set::run(&arguments),
        Command::Check(arguments) => commands::check::run(&arguments),
        Command::Apply(arguments) => commands::apply::run(&arguments),
        Command::Up(arguments) => commands::up::run(&arguments),
        Command::Down(arguments) => commands::down::run(&arguments),
        Command::Show(arguments) => commands::show::run(&arguments),
        Command::Sa(arguments) => commands::sa::run(&arguments),
        Command::Stat(arguments) => commands::stat::run(&arguments),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Mend(arguments) => commands::mend::run(&arguments),
        Command::Gen(arguments) => commands::r#gen::run(&arguments),
        Command::Sink(arguments) => commands::sink::run(&arguments),
        Command::Guardian { watch_namespaces } => {
            let is_done = weir_run::guardian::guard(watch_namespaces);
            return if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    };
    result.unwrap_or_else(fail)
}

/// Reads the command line. Where COLUMNS says a width that holds no word, as 0 does of a terminal that tells none, help has the usual one.
fn parse() -> Result<Arguments, clap::Error> {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse::<usize>().ok());
    let mut command = Arguments::command();
    if columns.is_some_and(|columns| columns < COLUMNS_MIN) {
        command = command.term_width(COLUMNS);
    }
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn fail(failure: Failure) -> ExitCode {
    output::say(format_args!("weir: {}", failure.message));
    ExitCode::from(failure.code)
}

/// Prints help, or the fault of the command line.
fn explain(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if error.use_stderr() {
        return ExitCode::from(BAD_INPUT);
    }
    output::written(printed).map_or_else(fail, |()| ExitCode::SUCCESS)
}

/// The usual width of a terminal, and the least that help is wrapped at.
const COLUMNS: usize = 80;
const COLUMNS_MIN: usize = 20;
/// The status of a wrong command line or file.
const BAD_INPUT: u8 = 2;

/// A command that did not succeed: 1 for a failure, 2 for a wrong command line or file, 126 and 127 for a program that cannot be run.
struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    fn usage(message: impl ToString) -> Failure {
        Failure { message: message.to_string(), code: BAD_INPUT }
    }
}

impl<E: ToString> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure { message: error.to_string(), code: 1 }
    }
}

type Outcome = Result<ExitCode, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts behind the options are wrapped at the terminal's width, so a long line is a whole paragraph.
    #[test]
    fn no_text_of_help_is_wrapped_twice() {
        let all = Arguments::command();
        let mut twice = Vec::new();
        for command in all.get_subcommands().flat_map(|one| std::iter::once(one).chain(one.get_subcommands()))
        {
            let texts = [command.get_after_help(), command.get_after_long_help()];
            for text in texts.into_iter().flatten().map(ToString::to_string) {
                let lines: Vec<_> = text.lines().collect();
                let is_long = |line: &str| line.chars().count() > COLUMNS;
                let is_cut = |pair: &[&str]| is_long(pair[0]) && !pair[1].is_empty();
                let cut = lines.windows(2).filter(|pair| is_cut(pair));
                twice.extend(cut.map(|pair| format!("{}: {}", command.get_name(), pair[0])));
            }
        }
        assert!(twice.is_empty(), "{}", twice.join("\n"));
    }
}
