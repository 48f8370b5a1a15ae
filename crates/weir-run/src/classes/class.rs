//! One class of a file: its values, read and checked, and their defaults.
//!
//! ```text
//! ceil = rate (htb), that of the top (cbq)     burst, cburst = 2 ms, 20 kb at least     quantum = 1 ms of the rate
//! queue = 5 ms at the ceil; of a class that marks or drops ten of CoDel's targets       priority = 0, full = "block"
//! ```
//!
//! Rule: a key that is not for this kind of tree, or not for a class that has children, is refused with its line.
//! Pure. Source: tc-htb(8), `sch_htb.c` (the quantum).

use toml::Spanned;
use weir_core::rate::Rate;
use weir_core::shaper::backlog::{FullPolicy, QueueRule};
use weir_core::shaper::codel::CodelConfig;
use weir_core::shaper::token_bucket::BURST_BYTES_MAX;
use weir_core::shaper::tree::PRIORITIES;
use weir_core::units::{UnitError, parse_size_bytes, parse_time_ns, size_text};
use weir_path::classes::{quantum_bytes_default, queue_ns_default};

use super::{ClassConfig, FRAME_BYTES, LeafRules, Reader, TreeKind, file};
use crate::limits::burst_bytes_default;
use crate::nearest::did_you_mean;

impl Reader<'_> {
    /// One class, checked by itself and against its parent.
    pub(super) fn class(
        &self,
        place: usize,
        parent: Option<usize>,
        above: Option<&ClassConfig>,
    ) -> Result<ClassConfig, String> {
        let class = &self.file.class[place];
        let rate = self.value(&class.rate, str::parse::<Rate>)?;
        let ceil = class.ceil.as_ref().map(|ceil| self.value(ceil, str::parse::<Rate>)).transpose()?;
        let bounded = class.bounded.as_ref().is_some_and(|bounded| *bounded.as_ref());
        let ceil = match (self.kind, ceil) {
            // tc-htb(8): "Defaults to the configured rate, which implies no borrowing."
            (TreeKind::Htb, ceil) => ceil.unwrap_or(rate),
            (TreeKind::Cbq, _) if bounded => rate,
            (TreeKind::Cbq, _) => above.map_or(rate, |above| above.ceil),
        };
        self.refuse_of_the_other_kind(class)?;
        if ceil < rate {
            let span = class.ceil.as_ref().unwrap_or(&class.rate).span();
            let why = match self.kind {
                TreeKind::Htb => {
                    format!("the ceiling {ceil} is below the rate {rate}; raise it to {rate} or more")
                }
                TreeKind::Cbq => format!(
                    "the share {rate} is above the {ceil} that all classes under the same top have together; write {ceil} or less"
                ),
            };
            return Err(self.source.tell(span, why));
        }
        let burst = |text: &Option<Spanned<String>>, rate| match text {
            Some(text) => self.burst(text),
            None => Ok(burst_bytes_default(rate).min(BURST_BYTES_MAX)),
        };
        let is_inner = self.is_inner[place];
        Ok(ClassConfig {
            name: class.name.as_ref().clone(),
            parent,
            rate,
            ceil,
            burst_bytes: burst(&class.burst, rate)?,
            cburst_bytes: burst(&class.cburst, ceil)?,
            bounded,
            quantum_bytes: self.quantum(class, rate)?,
            leaf: if is_inner {
                self.refuse_of_leaves(class).map(|()| None)?
            } else {
                Some(self.leaf_rules(class)?)
            },
        })
    }

    fn refuse_of_the_other_kind(&self, class: &file::ClassTable) -> Result<(), String> {
        let (wrong, why) = match self.kind {
            TreeKind::Htb => (
                class.bounded.as_ref().map(Spanned::span),
                "bounded is for shaper = \"cbq\"; for htb write a ceil that is the rate",
            ),
            TreeKind::Cbq => (
                class.ceil.as_ref().or(class.cburst.as_ref()).map(Spanned::span),
                "a class of cbq has no ceiling; write bounded = true if it must not borrow",
            ),
        };
        wrong.map_or(Ok(()), |span| Err(self.source.tell(span, why)))
    }

    fn refuse_of_leaves(&self, class: &file::ClassTable) -> Result<(), String> {
        let texts = [("full", &class.full), ("max_wait", &class.max_wait), ("queue", &class.queue)];
        let text = texts.into_iter().find_map(|(key, text)| Some((key, text.as_ref()?.span())));
        let wrong = text.or_else(|| Some(("priority", class.priority.as_ref()?.span())));
        let Some((key, span)) = wrong else { return Ok(()) };
        let why =
            format!("{key} is for classes in which packets wait, and this one has children; write it there");
        Err(self.source.tell(span, why))
    }

    fn leaf_rules(&self, class: &file::ClassTable) -> Result<LeafRules, String> {
        let priority = match &class.priority {
            None => 0,
            Some(priority) => u8::try_from(*priority.as_ref())
                .ok()
                .filter(|priority| usize::from(*priority) < PRIORITIES)
                .ok_or_else(|| {
                    let why = format!("a priority is 0 to {}, and 0 goes first", PRIORITIES - 1);
                    self.source.tell(priority.span(), why)
                })?,
        };
        let time = |text: &Option<Spanned<String>>| {
            text.as_ref().map(|text| self.value(text, parse_time_ns)).transpose()
        };
        // The direction that shapes by this class sets the longest packet.
        let codel = CodelConfig::default();
        let when_full = match class.full.as_ref().map(|full| (full, full.as_ref().as_str())) {
            None | Some((_, "block")) => FullPolicy::Block,
            Some((_, "ecn")) => FullPolicy::Ecn(codel),
            Some((_, "drop")) => FullPolicy::Drop(codel),
            Some((full, other)) => {
                let near = did_you_mean(other, ["block", "ecn", "drop"]);
                let why = format!("a full class does one of \"block\", \"ecn\" and \"drop\"{near}");
                return Err(self.source.tell(full.span(), why));
            }
        };
        Ok(LeafRules {
            priority,
            queue_ns: time(&class.queue)?.unwrap_or_else(|| queue_ns_default(when_full)),
            rule: QueueRule { when_full, max_wait_ns: time(&class.max_wait)? },
        })
    }

    fn value<T>(
        &self,
        text: &Spanned<String>,
        read: impl Fn(&str) -> Result<T, UnitError>,
    ) -> Result<T, String> {
        read(text.as_ref()).map_err(|error| self.source.tell(text.span(), error))
    }

    fn burst(&self, text: &Spanned<String>) -> Result<u64, String> {
        let bytes = self.value(text, parse_size_bytes)?;
        let why = if bytes < FRAME_BYTES {
            format!(
                "a burst of {} is below one frame of {FRAME_BYTES} bytes; give 2kb or more",
                size_text(bytes)
            )
        } else if bytes > BURST_BYTES_MAX {
            format!("a bucket holds {} at most; give less", size_text(BURST_BYTES_MAX))
        } else {
            return Ok(bytes);
        };
        Err(self.source.tell(text.span(), why))
    }

    fn quantum(&self, class: &file::ClassTable, rate: Rate) -> Result<u32, String> {
        let Some(text) = &class.quantum else { return Ok(quantum_bytes_default(rate)) };
        let bytes = self.value(text, parse_size_bytes)?;
        u32::try_from(bytes).ok().filter(|_| (FRAME_BYTES..=1 << 30).contains(&bytes)).ok_or_else(|| {
            let why = format!("a quantum is one frame of {FRAME_BYTES} bytes at least and 1gb at most; leave it out for 1 ms at the rate");
            self.source.tell(text.span(), why)
        })
    }
}
