//! The text form of rates, sizes and times: `200mbit`, `20kb`, `5ms`.
//!
//! The rule is tc(8)'s, section PARAMETERS: a decimal number, then a unit, in any case.
//!
//! | quantity | units | a kilo is |
//! |---|---|---|
//! | rate | `bit kbit mbit gbit tbit`; `kibit mibit gibit tibit` | 1000; 1024 |
//! | rate in bytes per second | `bps kbps mbps gbps tbps`; `kibps mibps gibps tibps` | 1000; 1024 |
//! | size | `b k kb m mb g gb`; in bits `kbit mbit gbit` | 1024 |
//! | time | `s sec secs ms msec msecs us usec usecs ns nsec nsecs` | 1000 |
//!
//! As in tc, `1gbps` is a thousand million *bytes* per second, and fractions of the smallest unit are cut off.
//!
//! Source: tc(8); iproute2 `lib/utils_math.c` (`get_rate64`, `get_size64`, `get_time64`).
//!
//! Limits: unlike tc, a number without a unit is refused, because `--rate 200` would mean 200 bits per second
//! and `--queue 5` five microseconds; so are zero, signs, exponents, percentages and anything after the unit.

use std::{fmt, str::FromStr};

use crate::rate::{NS_PER_S, Rate};

/// Reads a size such as `20kb`, in bytes.
pub fn parse_size_bytes(text: &str) -> Result<u64, UnitError> {
    parse(Quantity::Size, text)
}

/// Reads a time such as `5ms`, in nanoseconds.
pub fn parse_time_ns(text: &str) -> Result<u64, UnitError> {
    parse(Quantity::Time, text)
}

impl FromStr for Rate {
    type Err = UnitError;

    /// Reads a rate such as `200mbit`.
    fn from_str(text: &str) -> Result<Rate, UnitError> {
        let bits_per_s = parse(Quantity::Rate, text)?;
        Rate::from_bits_per_s(bits_per_s).ok_or_else(|| UnitError::new(Quantity::Rate, text, Fault::Zero))
    }
}

impl fmt::Display for Rate {
    /// Writes the rate in the largest unit that is exact, so that reading it back gives the same rate.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&in_largest_unit(self.bits_per_s(), 1000, &["bit", "kbit", "mbit", "gbit", "tbit"]))
    }
}

/// Writes a size in the largest unit that is exact: 20480 bytes are `20kb`.
pub fn size_text(size_bytes: u64) -> String {
    in_largest_unit(size_bytes, 1024, &["b", "kb", "mb", "gb"])
}

/// Writes a time in the largest unit that is exact: 5,000,000 ns are `5ms`.
pub fn time_text(time_ns: u64) -> String {
    in_largest_unit(time_ns, 1000, &["ns", "us", "ms", "s"])
}

/// The reason why a text is not a rate, a size or a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    quantity: Quantity,
    text: String,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    Rate,
    Size,
    Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    NoNumber,
    NoUnit,
    UnknownUnit,
    Zero,
    TooLarge,
}

impl UnitError {
    fn new(quantity: Quantity, text: &str, fault: Fault) -> UnitError {
        UnitError { quantity, text: text.to_owned(), fault }
    }
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, example) = match self.quantity {
            Quantity::Rate => ("rate", "200mbit"),
            Quantity::Size => ("size", "20kb"),
            Quantity::Time => ("time", "5ms"),
        };
        write!(f, "{:?} is not a {name}: ", self.text)?;
        match self.fault {
            Fault::NoNumber => write!(f, "it must begin with a plain decimal number")?,
            Fault::NoUnit => write!(f, "it has no unit")?,
            Fault::UnknownUnit => {
                write!(f, "{:?} is none of the units ", split(&self.text).1)?;
                for (index, (unit, _)) in self.quantity.units().iter().enumerate() {
                    write!(f, "{}{unit}", if index == 0 { "" } else { ", " })?;
                }
            }
            Fault::Zero => write!(f, "it must be more than zero")?,
            Fault::TooLarge => write!(f, "it is too large to count")?,
        }
        write!(f, "; write for example {example}")
    }
}

impl std::error::Error for UnitError {}

const K: u64 = 1000;
const KI: u64 = 1024;

/// A unit's name and its worth as a fraction: bits need eighths of a byte.
type Unit = (&'static str, (u64, u64));

const RATE_UNITS: &[Unit] = &[
    ("bit", (1, 1)),
    ("kbit", (K, 1)),
    ("mbit", (K * K, 1)),
    ("gbit", (K * K * K, 1)),
    ("tbit", (K * K * K * K, 1)),
    ("kibit", (KI, 1)),
    ("mibit", (KI * KI, 1)),
    ("gibit", (KI * KI * KI, 1)),
    ("tibit", (KI * KI * KI * KI, 1)),
    ("bps", (8, 1)),
    ("kbps", (8 * K, 1)),
    ("mbps", (8 * K * K, 1)),
    ("gbps", (8 * K * K * K, 1)),
    ("tbps", (8 * K * K * K * K, 1)),
    ("kibps", (8 * KI, 1)),
    ("mibps", (8 * KI * KI, 1)),
    ("gibps", (8 * KI * KI * KI, 1)),
    ("tibps", (8 * KI * KI * KI * KI, 1)),
];

const SIZE_UNITS: &[Unit] = &[
    ("b", (1, 1)),
    ("k", (KI, 1)),
    ("kb", (KI, 1)),
    ("m", (KI * KI, 1)),
    ("mb", (KI * KI, 1)),
    ("g", (KI * KI * KI, 1)),
    ("gb", (KI * KI * KI, 1)),
    ("kbit", (KI, 8)),
    ("mbit", (KI * KI, 8)),
    ("gbit", (KI * KI * KI, 8)),
];

const TIME_UNITS: &[Unit] = &[
    ("s", (NS_PER_S, 1)),
    ("sec", (NS_PER_S, 1)),
    ("secs", (NS_PER_S, 1)),
    ("ms", (K * K, 1)),
    ("msec", (K * K, 1)),
    ("msecs", (K * K, 1)),
    ("us", (K, 1)),
    ("usec", (K, 1)),
    ("usecs", (K, 1)),
    ("ns", (1, 1)),
    ("nsec", (1, 1)),
    ("nsecs", (1, 1)),
];

impl Quantity {
    fn units(self) -> &'static [Unit] {
        match self {
            Quantity::Rate => RATE_UNITS,
            Quantity::Size => SIZE_UNITS,
            Quantity::Time => TIME_UNITS,
        }
    }
}

/// Cuts a text into its number and the rest.
fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()))
}

fn parse(quantity: Quantity, text: &str) -> Result<u64, UnitError> {
    let refuse = |fault| UnitError::new(quantity, text, fault);
    let (number, unit) = split(text);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
        return Err(refuse(Fault::NoNumber));
    }
    if unit.is_empty() {
        return Err(refuse(Fault::NoUnit));
    }
    let &(_, (times, parts)) = quantity
        .units()
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        .ok_or_else(|| refuse(Fault::UnknownUnit))?;
    let value = scale(whole, fraction, times, parts).ok_or_else(|| refuse(Fault::TooLarge))?;
    if value == 0 { Err(refuse(Fault::Zero)) } else { Ok(value) }
}

/// `whole.fraction * times / parts`, cut to an integer; `None` where it leaves 64 bits.
///
/// The digits of the fraction are taken one by one, each a tenth of the one before, so that a fraction of any
/// length is exact down to 10^-18 units and cannot overflow.
fn scale(whole: &str, fraction: &str, times: u64, parts: u64) -> Option<u64> {
    const FRACTION_DIGITS: usize = 18;
    let mut digits: u128 = whole.parse().ok()?;
    let mut divisor = u128::from(parts);
    for digit in fraction.bytes().take(FRACTION_DIGITS) {
        digits = digits.checked_mul(10)?.checked_add(u128::from(digit - b'0'))?;
        divisor *= 10;
    }
    u64::try_from(digits.checked_mul(u128::from(times))? / divisor).ok()
}

fn in_largest_unit(mut value: u64, base: u64, units: &[&str]) -> String {
    let mut unit = 0;
    while unit + 1 < units.len() && value != 0 && value.is_multiple_of(base) {
        value /= base;
        unit += 1;
    }
    format!("{value}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(text: &str) -> u64 {
        text.parse::<Rate>().unwrap_or_else(|error| panic!("{error}")).bits_per_s()
    }

    #[test]
    fn reads_what_tc_reads() {
        assert_eq!(rate("200mbit"), 200_000_000);
        assert_eq!(rate("1.5Mbit"), 1_500_000);
        assert_eq!(rate("1gbps"), 8_000_000_000);
        assert_eq!(rate("1kibit"), 1024);
        assert_eq!(rate("0.5tibps"), 1 << 42);
        assert_eq!(rate("1.9bit"), 1);
        assert_eq!(parse_size_bytes("20kb"), Ok(20 * 1024));
        assert_eq!(parse_size_bytes("1540b"), Ok(1540));
        assert_eq!(parse_size_bytes("1.5m"), Ok(3 << 19));
        assert_eq!(parse_size_bytes("8kbit"), Ok(1024));
        assert_eq!(parse_time_ns("5ms"), Ok(5_000_000));
        assert_eq!(parse_time_ns("50us"), Ok(50_000));
        assert_eq!(parse_time_ns("0.000000001s"), Ok(1));
        assert_eq!(parse_time_ns("1sec"), Ok(NS_PER_S));
    }

    #[test]
    fn refuses_with_the_text_the_fault_and_an_example() {
        let refused = |text: &str| text.parse::<Rate>().unwrap_err().to_string();
        assert_eq!(refused("200"), r#""200" is not a rate: it has no unit; write for example 200mbit"#);
        assert!(
            refused("200mbits")
                .starts_with(r#""200mbits" is not a rate: "mbits" is none of the units bit, kbit"#)
        );
        assert!(refused("0mbit").contains("more than zero"));
        assert!(refused("0.4bit").contains("more than zero"));
        assert!(refused("18446744.073709551616tbit").contains("too large"));
        assert_eq!(rate("18446744.073709551615tbit"), u64::MAX);
        for text in ["", "mbit", "-5mbit", "+5mbit", ".5mbit", "5.mbit", "1.2.3mbit", " 5mbit", "\u{665}mbit"]
        {
            assert!(refused(text).contains("plain decimal number"), "{text:?}: {}", refused(text));
        }
        for text in ["5mbit ", "5mbit5", "1e6bit", "5%", "5mb"] {
            assert!(refused(text).contains("none of the units"), "{text:?}: {}", refused(text));
        }
        assert!(parse_size_bytes("99999999999gb").unwrap_err().to_string().contains("too large"));
        assert!(parse_size_bytes(&"9".repeat(60)).unwrap_err().to_string().contains("no unit"));
        assert!(
            parse_size_bytes(&format!("{}b", "9".repeat(60))).unwrap_err().to_string().contains("too large")
        );
        assert!(parse_time_ns("5 ms").unwrap_err().to_string().ends_with("write for example 5ms"));
    }

    #[test]
    fn prints_the_largest_exact_unit() {
        let print = |bits_per_s| Rate::from_bits_per_s(bits_per_s).unwrap().to_string();
        assert_eq!(print(200_000_000), "200mbit");
        assert_eq!(print(1_500_000), "1500kbit");
        assert_eq!(print(1_000_000_000_000_000), "1000tbit");
        assert_eq!(print(8191), "8191bit");
        assert_eq!(size_text(20_480), "20kb");
        assert_eq!(size_text(1540), "1540b");
        assert_eq!(time_text(5_000_000), "5ms");
        assert_eq!(time_text(0), "0ns");
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back_the_same(digits in 1..=u64::MAX, shift in 0u32..64, zeros in 0u32..19) {
            let value = (digits >> shift).max(1).saturating_mul(10u64.pow(zeros));
            prop_assert_eq!(rate(&Rate::from_bits_per_s(value).unwrap().to_string()), value);
            prop_assert_eq!(parse_size_bytes(&size_text(value)), Ok(value));
            prop_assert_eq!(parse_time_ns(&time_text(value)), Ok(value));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,12}|[0-9]{0,25}\\.?[0-9]{0,25}[kmgt]?i?(bit|bps|b|s)?") {
            for result in [text.parse::<Rate>().map(Rate::bits_per_s), parse_size_bytes(&text), parse_time_ns(&text)] {
                match result {
                    Ok(value) => prop_assert!(value > 0),
                    Err(error) => prop_assert!(error.to_string().contains("write for example")),
                }
            }
        }
    }
}
