//! An XDP program of somebody else's on an interface. It is there for as long as its value.
//!
//! Source: kernel `include/uapi/linux/bpf.h`, `enum xdp_action`, `struct xdp_md`.

use anyhow::{Context, Result};
use weir_lab::bed::End;

use crate::bpf::{Counter, attach};

const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
/// `r0 = 2 (XDP_PASS); exit`.
const PASS: [u64; 2] = [2 << 32 | 0xb7, 0x95];
/// `r0 = 1 (XDP_DROP); exit`.
const DROP: [u64; 2] = [1 << 32 | 0xb7, 0x95];

/// A program that is attached.
#[derive(Debug)]
pub struct Xdp {
    _link: std::os::fd::OwnedFd,
    counter: Counter,
}

impl Xdp {
    /// A program that passes all frames, and counts those of `length_bytes`.
    pub fn counting(end: End, length_bytes: u16) -> Result<Xdp> {
        let counter = Counter::new()?;
        // r2 = data_end - data; unless it is the length, skip four.
        let mut code =
            vec![4 << 16 | 0x1261, 0x1361, 0x321f, u64::from(length_bytes) << 32 | 4 << 16 | 0x255];
        code.extend(counter.add_one());
        code.extend(PASS);
        Xdp::new(end, counter, &code)
    }

    /// A program that drops one frame of `each`.
    pub fn dropping(end: End, each: u32) -> Result<Xdp> {
        let counter = Counter::new()?;
        let mut code = counter.add_one().to_vec();
        // r3 %= each; if it is 0, skip two.
        code.extend([u64::from(each) << 32 | 0x397, 2 << 16 | 0x315]);
        code.extend(PASS);
        code.extend(DROP);
        Xdp::new(end, counter, &code)
    }

    /// The number that it counted.
    pub fn count(&self) -> Result<u64> {
        Ok(self.counter.count()?)
    }

    fn new(end: End, counter: Counter, code: &[u64]) -> Result<Xdp> {
        let link = end.namespace.enter(|| attach(end.name, BPF_PROG_TYPE_XDP, BPF_XDP, 0, code))?;
        Ok(Xdp { _link: link.with_context(|| format!("an XDP program on {}", end.name))?, counter })
    }
}
