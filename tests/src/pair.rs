//! The bench of `weir gen` and `weir sink`: two hosts with a pair between them.
//!
//! ```text
//!  left                          right
//!  veth0 [weir gen] ------------ veth1 [weir sink]
//!  10.99.0.1                 10.99.0.2
//! ```

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::{End, Namespace, address, names, veth};
use weir_lab::clock::wait_until;
use weir_lab::ping;
use weir_lab::process::{Process, run};

use crate::{require_answer, weir_binary};

/// The longest time that anything may take here.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A pair between two hosts.
#[derive(Debug)]
pub struct Pair {
    /// The host that sends.
    pub left: Namespace,
    /// The host that receives.
    pub right: Namespace,
}

impl Pair {
    /// A pair of so many queues.
    pub fn new(queues: u32) -> Result<Pair> {
        let pair = Pair { left: Namespace::new("left")?, right: Namespace::new("right")? };
        veth(0, pair.left_end(), pair.right_end(), queues)?;
        Ok(pair)
    }

    /// A pair of so many queues whose ends have addresses.
    pub fn with_addresses(queues: u32) -> Result<Pair> {
        let pair = Pair::new(queues)?;
        address(0, pair.left_end(), pair.right_end())?;
        Ok(pair)
    }

    /// The end that sends.
    pub fn left_end(&self) -> End<'_> {
        End { namespace: &self.left, name: "veth0" }
    }

    /// The end that receives.
    pub fn right_end(&self) -> End<'_> {
        End { namespace: &self.right, name: "veth1" }
    }

    /// A sink that counts already, and ends by itself only after 50 s.
    pub fn sink(&self, options: &[&str]) -> Result<Process> {
        let mut sink = self.right.command(weir_binary()?);
        let mut sink = Process::spawn(sink.args(["sink", "veth1", "--json", "--time", "50s"]).args(options))?;
        wait_until("the sink is ready", Duration::from_secs(20), || {
            ensure!(sink.is_running()?, "it ended: {}", sink.stderr());
            Ok(sink.stderr().contains("ready"))
        })?;
        Ok(sink)
    }

    /// A generator that is sending already.
    pub fn generator(&self, options: &[&str]) -> Result<Process> {
        let mut generator = self.left.command(weir_binary()?);
        let mut generator = Process::spawn(generator.args(["gen", "veth0", "--json"]).args(options))?;
        let before = self.sent()?;
        wait_until("the generator sends", Duration::from_secs(20), || {
            ensure!(generator.is_running()?, "it ended: {}", generator.stderr());
            Ok(self.sent()? > before + 100)
        })?;
        Ok(generator)
    }

    /// The report of a generator that sends so many packets, all of which must be taken.
    pub fn generate(&self, options: &[&str], packets: u64) -> Result<Value> {
        let mut generator = self.left.command(weir_binary()?);
        generator.args(["gen", "veth0", "--json", "--count", &packets.to_string()]).args(options);
        json_of(&run(&mut generator, LIMIT)?.success()?.stdout)
    }

    /// The number of packets that the sending end has put into the ring.
    pub fn sent(&self) -> Result<u64> {
        let text = self.left.ip("-j -s link show dev veth0")?;
        let links: Value = serde_json::from_str(&text)?;
        links[0]["stats64"]["tx"]["packets"].as_u64().with_context(|| format!("no count: {text}"))
    }

    /// Returns whether a ping gets through and back at once.
    pub fn is_answered(&self) -> Result<bool> {
        ping::is_answered(&self.left, &names(0, 2).v4)
    }

    /// Fails unless one does, soon.
    pub fn require_answer(&self) -> Result<()> {
        require_answer(&self.left, &names(0, 2).v4)
    }
}

/// The output of a program with `--json`.
pub fn json_of(text: &str) -> Result<Value> {
    serde_json::from_str(text).with_context(|| format!("no JSON: {text}"))
}
