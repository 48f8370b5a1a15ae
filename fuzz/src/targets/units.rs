//! Rates, sizes and times: written values read back, and any number is the result of arithmetic on its digits.

use weir_core::rate::Rate;
use weir_core::units::{UnitError, parse_size_bytes, parse_time_ns, size_text, time_text};

use crate::draw::Draw;

/// Units with their worth, as numerator and denominator, by quantity: rate, size, time. Written down from tc(8) once more.
const UNITS: [&[(&str, u128, u128)]; 3] = [
    &[
        ("bit", 1, 1),
        ("kbit", 1000, 1),
        ("mbit", 1_000_000, 1),
        ("gbit", 1_000_000_000, 1),
        ("tbit", 1_000_000_000_000, 1),
        ("kibit", 1 << 10, 1),
        ("mibit", 1 << 20, 1),
        ("gibit", 1 << 30, 1),
        ("tibit", 1 << 40, 1),
        ("bps", 8, 1),
        ("kbps", 8000, 1),
        ("mbps", 8_000_000, 1),
        ("gbps", 8_000_000_000, 1),
        ("tbps", 8_000_000_000_000, 1),
        ("kibps", 8 << 10, 1),
        ("mibps", 8 << 20, 1),
        ("gibps", 8 << 30, 1),
        ("tibps", 8 << 40, 1),
    ],
    &[
        ("b", 1, 1),
        ("k", 1 << 10, 1),
        ("kb", 1 << 10, 1),
        ("m", 1 << 20, 1),
        ("mb", 1 << 20, 1),
        ("g", 1 << 30, 1),
        ("gb", 1 << 30, 1),
        ("kbit", 1 << 10, 8),
        ("mbit", 1 << 20, 8),
        ("gbit", 1 << 30, 8),
    ],
    &[
        ("s", 1_000_000_000, 1),
        ("sec", 1_000_000_000, 1),
        ("secs", 1_000_000_000, 1),
        ("ms", 1_000_000, 1),
        ("msec", 1_000_000, 1),
        ("msecs", 1_000_000, 1),
        ("us", 1000, 1),
        ("usec", 1000, 1),
        ("usecs", 1000, 1),
        ("ns", 1, 1),
        ("nsec", 1, 1),
        ("nsecs", 1, 1),
    ],
];

/// Reads a text as all three, and writes each value that was read.
pub fn units(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    if draw.flag() {
        return number(&mut draw);
    }
    let text = String::from_utf8_lossy(draw.rest());
    for (quantity, result) in read_all(&text).into_iter().enumerate() {
        match result {
            Ok(value) => {
                let (digits, unit) =
                    text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').expect("a unit"));
                let known = UNITS[quantity].iter().any(|(name, ..)| name.eq_ignore_ascii_case(unit));
                assert!(known && !digits.is_empty() && value > 0, "{text:?} is read as {value}");
            }
            Err(error) => {
                let told = error.to_string();
                assert!(told.contains("write for example") && !told.contains('\n'), "{told}");
            }
        }
    }
}

/// A number with a fraction and a unit, against arithmetic on its digits; and any value, written and read.
fn number(draw: &mut Draw) {
    let (whole, digits) = (draw.any_u64(), draw.below(7));
    let fraction = u128::from(draw.any_u64()) % 10u128.pow(digits as u32);
    let quantity = draw.below(3);
    let (unit, times, parts) = draw.pick(UNITS[quantity]);
    let mut text =
        if digits == 0 { format!("{whole}{unit}") } else { format!("{whole}.{fraction:0digits$}{unit}") };
    if draw.flag() {
        text.make_ascii_uppercase();
    }
    let scaled = u128::from(whole) * 10u128.pow(digits as u32) + fraction;
    // The product is below 2^64 * 10^6 * 8 * 2^40, which 128 bits hold.
    let expected =
        u64::try_from(scaled * times / (parts * 10u128.pow(digits as u32))).ok().filter(|&value| value > 0);
    let found = read_all(&text)[quantity].clone().ok();
    assert_eq!(found, expected, "{text}");
    let value = draw.any_u64().max(1);
    let rate = Rate::from_bits_per_s(value).expect("above zero");
    assert_eq!(rate.to_string().parse(), Ok(rate));
    assert_eq!(parse_size_bytes(&size_text(value)), Ok(value));
    assert_eq!(parse_time_ns(&time_text(value)), Ok(value));
}

fn read_all(text: &str) -> [Result<u64, UnitError>; 3] {
    [text.parse::<Rate>().map(Rate::bits_per_s), parse_size_bytes(text), parse_time_ns(text)]
}
