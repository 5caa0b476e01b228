//! Ahead, equal or behind: the verdict of a ratio.

use super::results::Row;

/// Ratios nearer to 1 than this are called equal: the tolerance of instruction counts, which repeat
/// to the digit.
pub const EQUAL: f64 = 0.03;

/// How a row's cost on kernel 0 compares with that on kernel 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Ahead,
    Equal,
    Behind,
    /// One of them has no value, or there is only one.
    Unknown,
}

impl Verdict {
    /// A row's verdict, by the median of its pairs' ratios.
    pub fn of(row: &Row) -> Self {
        let ratio = row.ratio.map(|ratio| ratio.median);
        ratio.map_or(Self::Unknown, Self::of_ratio)
    }

    /// The verdict of a ratio of costs.
    pub fn of_ratio(ratio: f64) -> Self {
        match ratio {
            _ if ratio < 1.0 - EQUAL => Self::Ahead,
            _ if ratio > 1.0 + EQUAL && ratio.is_finite() => Self::Behind,
            _ if ratio.is_finite() => Self::Equal,
            _ => Self::Unknown,
        }
    }

    /// The word for it, and the class of its colour.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ahead => "ahead",
            Self::Equal => "equal",
            Self::Behind => "behind",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::tests::example;
    use crate::bench::statistics::Ratio;

    #[test]
    fn verdicts() {
        let mut results = example();
        let mut verdict = |median: f64| {
            results.rows[0].ratio = Some(Ratio {
                median,
                least: median,
                most: median,
            });
            Verdict::of(&results.rows[0])
        };
        assert_eq!(verdict(0.5), Verdict::Ahead);
        assert_eq!(verdict(1.02), Verdict::Equal);
        assert_eq!(verdict(1.04), Verdict::Behind);
        assert_eq!(verdict(f64::NAN), Verdict::Unknown);
        results.rows[0].ratio = None;
        assert_eq!(Verdict::of(&results.rows[0]), Verdict::Unknown);
    }
}
