//! The engine of the stable toolchain: a fixed number of inputs, the same ones each time, from a seed that is printed.
//!
//! Input number `n` of a target depends on the seed, the target's name and `n` alone. It is random bytes, or one of the target's corpus
//! with some of its bytes changed, taken out, put in or exchanged for those of another. A failing input is shrunk by bolero and reported
//! with the command that shows it again.
//!
//! | variable | says |
//! |---|---|
//! | `WEIR_FUZZ_INPUTS` | how many inputs each target sees |
//! | `WEIR_FUZZ_SEED` | another seed |
//! | `WEIR_FUZZ_ONLY` | the one input to show, by its number |
//!
//! The corpus of a target is in bolero's folder too: `tests/__fuzz__/TARGET/corpus`. All of it is shown first, unchanged.
//!
//! Limits: the engine learns nothing from the code that an input reaches. `cargo bolero test` does that, with a nightly toolchain.

use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bolero::TestTarget;
use bolero_engine::input::Bytes;
use bolero_engine::{Engine, Test, driver, panic};

const INPUTS_DEFAULT: u64 = 5_000;
const SEED_DEFAULT: u64 = 1;
/// The longest input: no parser here has a state that needs more.
const LEN_MAX: usize = 2048;
const RANDOM_LEN_MAX: usize = 320;
const SHRINK_TIME: Duration = Duration::from_secs(2);

/// Shows `target` its inputs.
///
/// # Panics
/// If one of them makes it panic, with the command that shows it again.
pub fn run(name: &'static str, target: fn(&[u8])) {
    TestTarget::new(Counted { name }).with_shrink_time(SHRINK_TIME).for_each(target);
}

struct Counted {
    name: &'static str,
}

impl<T: Test> Engine<T> for Counted
where
    T::Value: Debug,
{
    type Output = ();

    fn run(self, mut test: T, options: driver::Options) {
        let name = self.name;
        let seed = variable("WEIR_FUZZ_SEED").unwrap_or(SEED_DEFAULT);
        let corpus = read_corpus(name);
        panic::set_hook();
        let forwarded = panic::forward_panic(false);
        let begin = now();
        let mut shown = 0;
        let mut show = |what: &dyn Fn() -> String, bytes: &[u8]| {
            shown += 1;
            if let Err(error) = test.test(&mut Bytes::new(bytes, &options)) {
                let shrunk = test.shrink(bytes.to_vec(), None, &options);
                panic::forward_panic(true);
                let found =
                    shrunk.map_or_else(|| format!("{bytes:02x?}\n{error}"), |shrunk| format!("{shrunk:#}"));
                panic!("{}\n{found}", what());
            }
        };
        let only = variable("WEIR_FUZZ_ONLY");
        if only.is_none() {
            for (file, bytes) in &corpus {
                show(&|| format!("fuzz {name}: found by the corpus's {file}"), bytes);
            }
        }
        let numbers = match only {
            Some(number) => number..number + 1,
            None => 0..variable("WEIR_FUZZ_INPUTS").unwrap_or(INPUTS_DEFAULT),
        };
        let mut bytes = Vec::new();
        for number in numbers {
            write_input(&mut bytes, Random::new(seed, name, number), &corpus);
            let replay = || {
                format!(
                    "fuzz {name}: found by input {number} of seed {seed}; again: \
                     WEIR_FUZZ_SEED={seed} WEIR_FUZZ_ONLY={number} cargo test -p weir-fuzz --test targets {name}"
                )
            };
            show(&replay, &bytes);
        }
        panic::forward_panic(forwarded);
        println!("fuzz {name}: {shown} inputs, seed {seed}, {:.1} s", begin.elapsed().as_secs_f64());
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a target took is told; nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: write a whole number")))
}

/// The corpus, in the order of the files' names.
fn read_corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/__fuzz__").join(target).join("corpus");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .map(|entry| {
            let bytes =
                fs::read(entry.path()).unwrap_or_else(|error| panic!("{}: {error}", entry.path().display()));
            (entry.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect();
    files.sort();
    files
}

fn write_input(bytes: &mut Vec<u8>, mut random: Random, corpus: &[(String, Vec<u8>)]) {
    bytes.clear();
    if corpus.is_empty() || random.below(4) == 0 {
        let len = random.below(RANDOM_LEN_MAX + 1);
        bytes.extend(std::iter::repeat_with(|| random.byte()).take(len));
        return;
    }
    bytes.extend(&corpus[random.below(corpus.len())].1);
    let most = 1 << random.below(5);
    for _ in 0..=random.below(most) {
        change(bytes, &mut random, corpus);
    }
    bytes.truncate(LEN_MAX);
}

/// Makes one change to the bytes.
fn change(bytes: &mut Vec<u8>, random: &mut Random, corpus: &[(String, Vec<u8>)]) {
    const EDGES: [u8; 12] = [0, 1, 2, 4, 0x7f, 0x80, 0xfe, 0xff, b'0', b'9', b'"', b' '];
    let len = bytes.len();
    let at = random.below(len + 1);
    let end = at + random.below((len - at).min(32) + 1);
    match random.below(9) {
        0 if at < len => bytes[at] ^= 1 << random.below(8),
        1 if at < len => bytes[at] = random.byte(),
        2 if at < len => bytes[at] = EDGES[random.below(EDGES.len())],
        3 if at < len => bytes[at] = bytes[at].wrapping_add(if random.below(2) == 0 { 1 } else { u8::MAX }),
        4 => bytes.truncate(at),
        5 => drop(bytes.drain(at..end)),
        6 => bytes.extend_from_within(at..end),
        7 => {
            // A piece of another input takes the place of one of this.
            let other = &corpus[random.below(corpus.len())].1;
            let from = random.below(other.len() + 1);
            let to = from + random.below((other.len() - from).min(64) + 1);
            bytes.splice(at..end, other[from..to].iter().copied());
        }
        _ => {
            let value = [random.byte(), random.byte()];
            bytes.splice(at..(at + 2 * random.below(2)).min(len), value);
        }
    }
}

/// SplitMix64: small, and any seed is as good as another.
struct Random(u64);

impl Random {
    fn new(seed: u64, target: &str, number: u64) -> Random {
        let name =
            target.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let mut random = Random(name ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn byte(&mut self) -> u8 {
        self.next() as u8
    }

    /// A number below `end`, which is far below 2^32, so that none is favoured to speak of.
    fn below(&mut self, end: usize) -> usize {
        (((self.next() >> 32) * end as u64) >> 32) as usize
    }
}
