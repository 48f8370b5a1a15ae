//! `weir sa`: the associations and policies of the kernel's IPsec, for a topology file or for a topology that is up.

mod follow;

use std::fs::File;
use std::io::{self, IsTerminal, Read, stdin};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use weir_port::confinement::leave_no_core_dump;
use weir_port::sys;
use weir_run::topology::write::plan::write_esp;
use zeroize::Zeroizing;

use crate::{Failure, Outcome, output};

/// The longest input, in bytes: far more than any gateway has associations.
const BYTES_MAX: u64 = 64 << 20;
/// The room for the input at first, in bytes; it doubles.
const ROOM_BYTES: usize = 64 << 10;

/// Take over security associations and policies that IKE agreed on for the kernel.
#[derive(Args)]
pub struct SaArguments {
    #[command(subcommand)]
    command: SaCommand,
}

#[derive(Subcommand)]
enum SaCommand {
    Import(ImportArguments),
    Follow(follow::FollowArguments),
}

/// Read what `ip xfrm state` and `ip xfrm policy` print, and print it as the tables esp, sa and policy of a file for `weir up`;
/// each key goes into a file of its own.
#[derive(Args)]
#[command(after_help = "Examples:
  sudo mkdir -m 700 /run/weir-keys
  sudo sh -c '{ ip xfrm state; ip xfrm policy; } |
      weir sa import --keys /run/weir-keys --inside e0b --outside wan' \\
      > tunnel.toml
  cat ports.toml tunnel.toml > gateway.toml    # the ports, epairs and routers
  weir check gateway.toml

A key is of one user from its first packet to its last: one with which the
kernel has sent is refused, and from the import on it is Weir's. A key's file
is called by its fingerprint. Of what goes out KEY.sequence is written beside
KEY, once; `weir up` keeps it, and KEY.received of what comes in.
`weir sa follow` does it live.

Left out are associations that IKE still negotiates, policies of sockets, and
what is of a mark, an interface number (if_id) or a security label. So are
policies of direction fwd, with a sentence on one that no policy in equals: add
it with dir in for what comes in outside, and with dir out for what leaves.
Refused with their line are AH, compression, other algorithms, several
templates in a policy, and one of an interface (dev) that lets pass in the
clear.")]
struct ImportArguments {
    /// The file that they printed to; - is the standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Where the key files go, which only their owner may enter
    #[arg(long, value_name = "DIRECTORY")]
    keys: PathBuf,
    /// The name of the esp
    #[arg(long, default_value = "tunnel")]
    name: String,
    /// Its port where packets are in the clear; without it no esp is printed
    #[arg(long, value_name = "PORT", requires = "outside")]
    inside: Option<String>,
    /// Its port where they are protected
    #[arg(long, value_name = "PORT", requires = "inside")]
    outside: Option<String>,
    /// An address of this gateway, from which associations go out; name all of them, or none where the policies say it
    #[arg(long, value_name = "ADDRESS")]
    own: Vec<IpAddr>,
}

/// Runs the command.
pub fn run(arguments: &SaArguments) -> Outcome {
    match &arguments.command {
        SaCommand::Import(arguments) => import(arguments),
        SaCommand::Follow(arguments) => follow::run(arguments),
    }
}

fn import(arguments: &ImportArguments) -> Outcome {
    let keys = keys_directory(&arguments.keys)?;
    let told = |error: io::Error| Failure::usage(format!("{}: {error}", arguments.file.display()));
    // A process without core dumps that is not root's cannot open its own descriptors (/dev/fd) any more.
    let file = open(&arguments.file).map_err(told)?;
    leave_no_core_dump()?;
    let text = read(file.take(BYTES_MAX)).map_err(told)?;
    let import = weir_run::ipsec::import::read(&text, &keys, &arguments.own).map_err(Failure::usage)?;
    if import.plan.associations.is_empty() {
        return Err(Failure::usage(
            "there is no association: `ip xfrm state` prints none until IKE is done, or without root",
        ));
    }
    import.notes.iter().for_each(output::warn);
    import.write_keys()?;
    let ends = arguments.inside.as_deref().zip(arguments.outside.as_deref());
    output::print(write_esp(&arguments.name, ends.map(|(inside, outside)| [inside, outside]), &import.plan))?;
    Ok(ExitCode::SUCCESS)
}

/// The directory of the keys, if nobody else may enter it.
fn keys_directory(keys: &Path) -> Result<PathBuf, Failure> {
    const OTHERS: u32 = 0o077;
    let shown = keys.display();
    let missing = |error| Failure::usage(format!("{shown}: {error}: make it by mkdir -m 700 {shown}"));
    // As `weir up` knows the keys of a file.
    let directory = std::fs::canonicalize(keys).map_err(missing)?;
    let about = std::fs::metadata(&directory).map_err(missing)?;
    if !about.is_dir() || about.uid() != sys::user() || about.mode() & OTHERS != 0 {
        let who = if sys::user() == 0 { "root" } else { "you" };
        return Err(Failure::usage(format!(
            "{shown}: keys go into a directory that only {who} may enter: make one by mkdir -m 700"
        )));
    }
    Ok(directory)
}

/// A file, or the standard input, whose buffer in this process nobody would wipe.
fn open(file: &Path) -> io::Result<File> {
    if file != Path::new("-") {
        return File::open(file);
    }
    if stdin().is_terminal() {
        output::say("weir: reading what `ip xfrm state` and `ip xfrm policy` print from the terminal");
    }
    stdin().as_fd().try_clone_to_owned().map(File::from)
}

/// All text that there is, which has keys in it: memory that is given back is wiped.
fn read(mut from: impl Read) -> io::Result<Zeroizing<String>> {
    let (mut bytes, mut len) = (Zeroizing::new(vec![0; ROOM_BYTES]), 0);
    loop {
        if len == bytes.len() {
            // A buffer that grows by itself would leave a copy of its content behind.
            let mut longer = Zeroizing::new(vec![0; 2 * len]);
            longer[..len].copy_from_slice(&bytes);
            bytes = longer;
        }
        match from.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let text = std::str::from_utf8(&bytes[..len])
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text in UTF-8"))?;
    Ok(Zeroizing::new(text.strip_prefix('\u{feff}').unwrap_or(text).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source that gives a few bytes at a time, and is interrupted between them.
    struct Pieces<'a>(&'a [u8], bool);

    impl Read for Pieces<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let len = room.len().min(7_001);
            self.0.read(&mut room[..len])
        }
    }

    #[test]
    fn all_text_is_read_in_whatever_pieces_it_comes() {
        for len in [0, 1, ROOM_BYTES - 1, ROOM_BYTES, ROOM_BYTES + 1, 5 * ROOM_BYTES] {
            let text: String = ('a'..='z').cycle().take(len).collect();
            assert!(*read(Pieces(text.as_bytes(), false)).unwrap() == text, "{len}");
            let marked = format!("\u{feff}{text}");
            assert!(*read(Pieces(marked.as_bytes(), false)).unwrap() == text, "{len}");
        }
        assert_eq!(read(Pieces(&[b'a', 0xff], false)).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
