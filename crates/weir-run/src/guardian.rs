//! The guardian: a small process that outlives a crash of the main one and puts the machine back as it was.
//!
//! The main process tells it of each change *before* making it, one JSON object a line, and waits for a line in answer:
//!
//! ```text
//! {"netns": "/proc/4711/fd/9", "undo": {"qdisc": {"ifindex": 12}}}     ->  ok
//! ```
//!
//! When its input ends, because the main process closed it or died, it undoes everything in reverse order and ends. There is
//! no other way of putting things back, so the way that a crash takes is the way that every exit takes. It opens each
//! namespace when told of it, because the path is the main process's and dies with it.
//!
//! Limits: a kill of the whole process group's session or container takes the guardian too; then qdiscs, checksum offload
//! and namespaces stay as they are. The kernel itself takes programs, sockets and NAPI settings back in any case.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};
use weir_port::netns::NetNs;
use weir_port::undo::{Keeper, Undo};
use weir_port::{Doing, PortError, sys};

#[derive(Serialize, Deserialize)]
struct Record {
    netns: PathBuf,
    undo: Undo,
}

/// The main process's side.
pub struct Guardian {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    /// For the case that the guardian dies first.
    records: Vec<(NetNs, Undo)>,
}

impl Guardian {
    /// Starts `program guardian`, which must call [`guard`].
    pub fn start(program: &Path) -> weir_port::Result<Guardian> {
        let start = || -> io::Result<Guardian> {
            let mut command = Command::new(program);
            command.arg("guardian").stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn()?;
            let to = child.stdin.take();
            let from = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
            Ok(Guardian { child, to, from, records: Vec::new() })
        };
        start().doing(|| format!("starting {} guardian, which cleans up after a crash", program.display()))
    }

    /// Puts everything back and waits until that is done; what could not be put back, a sentence each.
    pub fn finish(mut self) -> Vec<String> {
        self.to = None;
        let mut faults: Vec<String> = Vec::new();
        for line in (&mut self.from).lines().map_while(Result::ok) {
            faults.push(line);
        }
        let ended_well = self.child.wait().is_ok_and(|status| status.code().is_some());
        if !ended_well {
            faults = undo_all(&self.records);
        }
        faults
    }

    fn tell(&mut self, netns: &NetNs, undo: &Undo) -> io::Result<()> {
        let record = Record { netns: netns.path(), undo: undo.clone() };
        let to = self.to.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut line = serde_json::to_string(&record)?;
        line.push('\n');
        to.write_all(line.as_bytes())?;
        let mut answer = String::new();
        self.from.read_line(&mut answer)?;
        if answer == "ok\n" { Ok(()) } else { Err(io::Error::other(format!("it answered {answer:?}"))) }
    }
}

impl Keeper for Guardian {
    fn record(&mut self, netns: &NetNs, undo: Undo) -> weir_port::Result<()> {
        self.tell(netns, &undo).doing(|| "telling the guardian what to put back".into())?;
        self.records.push((netns.try_clone()?, undo));
        Ok(())
    }
}

/// The guardian's side: reads records until the end of input, then undoes them. Returns whether all could be put back; each
/// that could not is a sentence on standard output, which is read if the main process is still there.
pub fn guard() -> bool {
    // A Ctrl-C at the terminal is meant for the main process, whose end is what matters here.
    sys::leave_terminal();
    let mut records = Vec::new();
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let answer = match read_record(&line) {
            Ok(record) => {
                records.push(record);
                "ok".to_string()
            }
            Err(error) => error.to_string(),
        };
        if writeln!(io::stdout(), "{answer}").is_err() {
            break;
        }
    }
    let faults = undo_all(&records);
    for fault in &faults {
        // Nobody may be reading any more; then there is nobody to tell.
        let _ = writeln!(io::stdout(), "{fault}");
    }
    faults.is_empty()
}

fn read_record(line: &str) -> weir_port::Result<(NetNs, Undo)> {
    let record: Record = serde_json::from_str(line)
        .map_err(|source| PortError::Kernel { doing: "reading a record".into(), source: source.into() })?;
    Ok((NetNs::open(&record.netns)?, record.undo))
}

fn undo_all(records: &[(NetNs, Undo)]) -> Vec<String> {
    records
        .iter()
        .rev()
        .filter_map(|(netns, undo)| netns.run(|| undo.apply()).err())
        .map(|e| e.to_string())
        .collect()
}
