//! Two series of a figure compared as FreeBSD's `ministat` does: by Student's t, at 95 %.
//!
//! ```text
//! s     = sqrt(((n - 1) s_n^2 + (m - 1) s_m^2) / (n + m - 2))                 pooled; n values, compared with m
//! +/-   = t s sqrt(1 / n + 1 / m)                                             t at 95 %, two-sided, of n + m - 2 degrees of freedom
//! +/- % = t r sqrt(1 / n + 1 / m) / mean_m                                    r as s, with s_m mean_n / mean_m in place of s_m
//! ```
//!
//! In percent the interval is wider or narrower, since the mean that it is a percentage of was measured as well.
//!
//! Runs that alternate have a drift of the machine in common. Of these the values in pairs are compared, which `ministat` does not do: the
//! interval is that of the mean of their differences, t s / sqrt(n), t of n - 1 degrees of freedom.
//!
//! Pure. Source: FreeBSD `usr.bin/ministat/ministat.c`; the quantiles are of NIST's Engineering Statistics Handbook, 1.3.6.7.2. Limits: a
//! normal distribution is assumed, and that both series scatter alike.

use std::fmt;

/// Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
const T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The quantile of the normal distribution.
const Z_95: f64 = 1.959_964;

/// The quantile for so many degrees of freedom, 1 or more; above 30 by the expansion of Abramowitz and Stegun, 26.7.5.
fn t_95(freedom: usize) -> f64 {
    let (z, of) = (Z_95, freedom as f64);
    let expanded = || {
        z + (z.powi(3) + z) / (4.0 * of) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * of * of)
    };
    T_95.get(freedom - 1).copied().unwrap_or_else(expanded)
}

/// A series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Series {
    /// The number of values.
    pub n: usize,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
    /// The value in the middle, or the mean of the two that are.
    pub median: f64,
    /// The mean.
    pub avg: f64,
    /// The standard deviation, of a sample.
    pub stddev: f64,
}

impl Series {
    /// The series of these values; none without any.
    pub fn of(values: &[f64]) -> Option<Series> {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let (n, (&min, &max)) = (values.len(), values.first().zip(values.last())?);
        let avg = values.iter().sum::<f64>() / n as f64;
        let squares: f64 = values.iter().map(|value| (value - avg).powi(2)).sum();
        Some(Series {
            n,
            min,
            max,
            median: (values[(n - 1) / 2] + values[n / 2]) / 2.0,
            avg,
            stddev: (squares / (n - 1).max(1) as f64).sqrt(),
        })
    }

    /// Half of the confidence interval of the mean, at 95 %; none of a single value.
    pub fn mean_ci(&self) -> Option<f64> {
        (self.n >= 2).then(|| t_95(self.n - 1) * self.stddev / (self.n as f64).sqrt())
    }

    /// The difference of this from `reference`; none if either has too few values.
    pub fn difference(&self, reference: &Series) -> Option<Difference> {
        if self.n < 2 || reference.n < 2 {
            return None;
        }
        let freedom = self.n + reference.n - 2;
        let width = t_95(freedom) * (1.0 / self.n as f64 + 1.0 / reference.n as f64).sqrt();
        let pooled = |ratio: f64| {
            let squares = |series: &Series| (series.n - 1) as f64 * series.stddev.powi(2);
            ((squares(self) + squares(reference) * ratio.powi(2)) / freedom as f64).sqrt()
        };
        let (diff, pooled_stddev) = (self.avg - reference.avg, pooled(1.0));
        Some(Difference {
            diff,
            ci: width * pooled_stddev,
            diff_pct: 100.0 * diff / reference.avg,
            ci_pct: 100.0 * width * pooled(self.avg / reference.avg) / reference.avg,
            pooled_stddev,
        })
    }
}

/// A difference, with its confidence interval at 95 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// The difference of the means.
    pub diff: f64,
    /// Half of its confidence interval.
    pub ci: f64,
    /// The difference in percent of the reference's mean.
    pub diff_pct: f64,
    /// Half of its confidence interval, in percent.
    pub ci_pct: f64,
    /// The standard deviation of both together.
    pub pooled_stddev: f64,
}

impl Difference {
    /// Returns whether 0 is outside of the interval.
    pub fn is_proven(&self) -> bool {
        self.diff.abs() > self.ci
    }
}

/// As `ministat` prints it.
impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Series { n, min, max, median, avg, stddev } = *self;
        let [min, max, median, avg, stddev] = [min, max, median, avg, stddev].map(|value| digits(value, 8));
        write!(f, "{n:3} {min:>13} {max:>13} {median:>13} {avg:>13} {stddev:>13}")
    }
}

/// As `ministat` prints it.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_proven() {
            return f.write_str("No difference proven at 95.0% confidence");
        }
        let short = |value: f64| digits(value, 6);
        writeln!(f, "Difference at 95.0% confidence")?;
        writeln!(f, "\t{} +/- {}", short(self.diff), short(self.ci))?;
        writeln!(f, "\t{}% +/- {}%", short(self.diff_pct), short(self.ci_pct))?;
        write!(f, "\t(Student's t, pooled s = {})", short(self.pooled_stddev))
    }
}

/// A number of so many significant digits, without zeros at its end.
fn digits(value: f64, significant: usize) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let decimals = significant as i32 - 1 - value.abs().log10().floor() as i32;
    let text = format!("{value:.*}", decimals.max(0) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(min: f64, max: f64, median: f64, avg: f64, stddev: f64) -> Series {
        Series { n: 5, min, max, median, avg, stddev }
    }

    /// A published series, without IPsec's netisr.
    fn before() -> Series {
        published(546152.0, 550381.0, 549167.0, 548753.4, 1564.3483)
    }

    #[test]
    fn what_ministat_published_comes_out() {
        let deferred = published(416795.0, 440933.5, 423271.0, 426451.8, 9207.3367);
        let (disabled, long) = (
            published(550273.5, 552629.5, 552169.5, 551659.7, 1129.4238),
            published(132107.0, 432864.0, 163939.0, 213309.4, 123845.92),
        );
        let said = |series: Series, reference: Series| series.difference(&reference).unwrap().to_string();
        assert_eq!(
            said(disabled, before()),
            "Difference at 95.0% confidence\n\t2906.3 +/- 1989.79\n\t0.529619% +/- 0.363866%\n\
             \t(Student's t, pooled s = 1364.33)"
        );
        // The mean is published to seven digits, the difference to six: -122301.6.
        assert_eq!(
            said(deferred, before()),
            "Difference at 95.0% confidence\n\t-122302 +/- 9631.37\n\t-22.2872% +/- 1.74536%\n\
             \t(Student's t, pooled s = 6603.87)"
        );
        assert_eq!(
            said(long, deferred),
            "Difference at 95.0% confidence\n\t-213142 +/- 128072\n\t-49.9804% +/- 29.97%\n\
             \t(Student's t, pooled s = 87814)"
        );
        assert_eq!(
            before().to_string(),
            "  5        546152        550381        549167      548753.4     1564.3483"
        );
    }

    #[test]
    fn a_series_is_what_its_values_are() {
        let series = Series::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((series.n, series.min, series.max, series.median, series.avg), (4, 1.0, 4.0, 2.5, 2.5));
        assert!((series.stddev - (5.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(Series::of(&[3.0, 1.0, 9.0]).unwrap().median, 3.0);
        for (freedom, quantile) in [(30, 2.042), (31, 2.040), (40, 2.021), (100, 1.984), (10_000, 1.960)] {
            assert!((t_95(freedom) - quantile).abs() < 1e-3, "{freedom}");
        }
        // Of 3 degrees of freedom: 3.182 * 1.29099 / 2.
        assert!((series.mean_ci().unwrap() - 2.05397).abs() < 1e-4);
        assert_eq!(Series::of(&[1.0]).unwrap().mean_ci(), None);
        assert_eq!(Series::of(&[]), None);
    }

    #[test]
    fn what_scatters_more_than_it_differs_proves_nothing() {
        let [a, b] = [[10.0, 12.0, 11.0], [10.5, 12.5, 11.2]].map(|values| Series::of(&values).unwrap());
        let difference = b.difference(&a).unwrap();
        assert!(!difference.is_proven() && difference.diff > 0.0);
        assert_eq!(difference.to_string(), "No difference proven at 95.0% confidence");
        assert_eq!(a.difference(&Series::of(&[1.0]).unwrap()), None, "one value does not scatter");
    }

    #[test]
    fn fewer_values_need_more_of_a_difference() {
        let two = Series { n: 2, ..before() }.difference(&Series { n: 2, ..before() }).unwrap();
        let many = Series { n: 100, ..before() }.difference(&Series { n: 100, ..before() }).unwrap();
        assert!((two.ci - 4.303 * 1564.3483).abs() < 1e-6, "of two degrees of freedom");
        assert!((many.ci / (1564.3483 * 0.02f64.sqrt()) - 1.972).abs() < 1e-3, "of 198");
    }
}
