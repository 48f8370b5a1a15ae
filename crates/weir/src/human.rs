//! Figures as people read them: thousands set apart, three digits with the unit that fits.
//!
//! Counts of bytes are decimal (`1.87 GB` is 1.87 thousand million bytes), as `ip -h -s` prints them; limits are in tc's
//! units and printed by [`weir_core::units`]. Scripts read `--json`, which has plain numbers.

/// 1234567 as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `812 B`, `1.87 GB`.
pub fn bytes(number: u64) -> String {
    three_digits(number, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// So many packets in that time: `12 pps`, `1.50 Mpps`.
pub fn packet_rate(packets: u64, time_ns: u64) -> String {
    three_digits(a_second(packets, time_ns), &["pps", "kpps", "Mpps", "Gpps"])
}

/// So many bytes in that time: `96 bit/s`, `1.20 Gbit/s`.
pub fn bit_rate(bytes: u64, time_ns: u64) -> String {
    three_digits(
        a_second(bytes.saturating_mul(8), time_ns),
        &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"],
    )
}

fn a_second(number: u64, time_ns: u64) -> u64 {
    let time_ns = u128::from(time_ns.max(1));
    u64::try_from((u128::from(number) * 1_000_000_000 + time_ns / 2) / time_ns).unwrap_or(u64::MAX)
}

/// `0 s`, `850 ns`, `4.19 ms`, `3,723 s`.
pub fn duration(time_ns: u64) -> String {
    if time_ns == 0 { "0 s".into() } else { three_digits(time_ns, &["ns", "us", "ms", "s"]) }
}

/// As [`duration`]; `-` where it is not known.
pub fn time(time_ns: Option<u64>) -> String {
    time_ns.map_or_else(|| "-".into(), duration)
}

/// A long time in its two largest units: `12s`, `2h 13m`, `3d 4h`.
pub fn uptime(time_ns: u64) -> String {
    let seconds = time_ns / 1_000_000_000;
    let parts =
        [(seconds / 86_400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let first = parts.iter().position(|(number, _)| *number > 0).unwrap_or(parts.len() - 1);
    let shown = parts[first..].iter().take(2).map(|(number, unit)| format!("{number}{unit}"));
    shown.collect::<Vec<_>>().join(" ")
}

/// The part that `part` is of `whole`: `92.1 %`.
pub fn percent(part: u64, whole: u64) -> String {
    let per_mille = (u128::from(part) * 1000 + u128::from(whole) / 2) / u128::from(whole.max(1));
    format!("{}.{} %", per_mille / 10, per_mille % 10)
}

/// One thing, several things.
pub fn plural(number: u64, thing: &str) -> String {
    let ending = match number {
        1 => "",
        _ if thing.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {thing}{ending}", count(number))
}

fn three_digits(number: u64, units: &[&str]) -> String {
    let (mut worth, mut index) = (1u128, 0);
    // Up to the unit in which it rounds to less than a thousand.
    while (u128::from(number) + worth / 2) / worth >= 1000 && index + 1 < units.len() {
        worth *= 1000;
        index += 1;
    }
    // Tenths and hundredths only as far as three digits go.
    let in_hundredths = (u128::from(number) * 100 + worth / 2) / worth;
    let decimals = match in_hundredths {
        _ if index == 0 => 0,
        0..1_000 => 2,
        1_000..9_995 => 1,
        _ => 0,
    };
    let scale = 10u128.pow(decimals);
    let rounded = (u128::from(number) * scale + worth / 2) / worth;
    let whole = count((rounded / scale) as u64);
    match decimals {
        0 => format!("{whole} {}", units[index]),
        _ => format!("{whole}.{:0width$} {}", rounded % scale, units[index], width = decimals as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
    }

    #[test]
    fn three_digits_and_a_unit() {
        for (number, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (9_999, "10.0 kB"),
            (12_345, "12.3 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (1_870_000_000, "1.87 GB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(bytes(number), text);
        }
        assert_eq!(packet_rate(3, 2_000_000_000), "2 pps");
        assert_eq!(bit_rate(300, 1_000_000), "2.40 Mbit/s");
        for (time_ns, text) in
            [(0, "0 s"), (850, "850 ns"), (4_190_000, "4.19 ms"), (3_723_000_000_000, "3,723 s")]
        {
            assert_eq!(duration(time_ns), text);
        }
    }

    #[test]
    fn long_times_and_shares() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (61, "1m 1s"), (8_000, "2h 13m"), (273_600, "3d 4h")]
        {
            assert_eq!(uptime(seconds * 1_000_000_000), text);
        }
        assert_eq!(percent(921, 1000), "92.1 %");
        assert_eq!(percent(0, 0), "0.0 %");
        assert_eq!(plural(1, "packet") + ", " + &plural(2000, "packet"), "1 packet, 2,000 packets");
    }
}
