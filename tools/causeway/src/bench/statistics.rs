//! Medians, spreads, and ratios of pairs.
//!
//! Two running kernels measure each row in turn, so a disturbance of the host slows both: the ratio
//! inside one pair is steadier than either value. Everything is a median of some kind, as one
//! disturbed run must not move a figure.

use serde::{Deserialize, Serialize};

use super::results::Better;

/// The doubt about a median above which a row is called noisy: a figure that says no more than
/// that.
///
/// Two medians with this doubt lie less than 10% apart in nineteen of twenty cases, as doubts add
/// up like the sides of a right angle.
pub const NOISE: f64 = 0.07;

/// The ratio of one kernel's costs to another's, over the pairs. Below 1 is good for the first.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// The median of the pairs' ratios.
    pub median: f64,
    /// The least of them.
    pub least: f64,
    /// The greatest of them.
    pub most: f64,
}

/// The median; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The value below which this part of the values lies, from 0 to 1, by linear interpolation between
/// the two values next to it; `None` of nothing.
///
/// The quartiles of five values are the second and the fourth: no estimate beyond the values, as
/// one disturbed run of five must not count.
pub fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = part * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (
        sorted[place.floor() as usize],
        sorted[place.ceil() as usize],
    );
    Some(below + (above - below) * place.fract())
}

/// The ratios of the pairs in which both kernels have a value, in the pairs' order.
///
/// For values that should be `Less`, the first's value divided by the second's; for rates the
/// inverse. Pairs whose divisor is zero have no ratio, but two zeroes are equal.
pub fn ratios(first: &[Option<f64>], second: &[Option<f64>], better: Better) -> Vec<f64> {
    let both = first.iter().zip(second);
    both.filter_map(|pair| match (pair, better) {
        ((Some(a), Some(b)), Better::Less) => divide(*a, *b),
        ((Some(a), Some(b)), Better::More) => divide(*b, *a),
        _ => None,
    })
    .collect()
}

fn divide(cost: f64, other: f64) -> Option<f64> {
    if cost == other {
        Some(1.0)
    } else {
        Some(cost / other).filter(|ratio| ratio.is_finite())
    }
}

/// The ratio over all pairs; `None` when no pair has one.
pub fn ratio(first: &[Option<f64>], second: &[Option<f64>], better: Better) -> Option<Ratio> {
    let ratios = ratios(first, second, better);
    Some(Ratio {
        median: median(&ratios)?,
        least: ratios.iter().copied().reduce(f64::min)?,
        most: ratios.iter().copied().reduce(f64::max)?,
    })
}

/// How far the middle half of some values lies apart (their interquartile range), as a part of
/// their median; 0 for fewer than two, which cannot tell.
pub fn relative_range(values: &[f64]) -> f64 {
    match [0.25, 0.5, 0.75].map(|part| quantile(values, part)) {
        [Some(low), Some(middle), Some(high)] if high > low => (high - low) / middle,
        _ => 0.0,
    }
}

/// How far the median of `count` values with this [spread](relative_range) may lie from the true
/// one in nineteen of twenty cases, as a part of it: half of the notch in a notched box plot
/// (McGill, Tukey and Larsen 1978).
pub fn doubt(spread: f64, count: u32) -> f64 {
    1.57 * spread / f64::from(count.max(1)).sqrt()
}

/// The spread of a row: that of its pairs' ratios or, where the other kernel has none, of the
/// first's values.
pub fn spread(first: &[Option<f64>], second: &[Option<f64>], better: Better) -> f64 {
    let ratios = ratios(first, second, better);
    if ratios.is_empty() {
        relative_range(&first.iter().copied().flatten().collect::<Vec<_>>())
    } else {
        relative_range(&ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(values: &[f64]) -> Vec<Option<f64>> {
        values.iter().copied().map(Some).collect()
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), Some(3.0));
        assert_eq!(quantile(&[5.0, 1.0, 3.0, 4.0, 2.0], 0.25), Some(2.0));
        assert_eq!(quantile(&[1.0, 2.0], 0.75), Some(1.75));
    }

    #[test]
    fn a_ratio_below_one_is_good_whatever_the_unit() {
        let (fast, slow) = (some(&[1.0, 1.0, 2.0]), some(&[2.0, 4.0, 4.0]));
        let times = ratio(&fast, &slow, Better::Less).unwrap();
        assert_eq!((times.median, times.least, times.most), (0.5, 0.25, 0.5));
        let rates = ratio(&slow, &fast, Better::More).unwrap();
        assert_eq!(rates, times);
    }

    #[test]
    fn the_median_is_of_the_ratios_and_not_the_ratio_of_medians() {
        // The host was slow during the second pair, for both.
        let (a, b) = (some(&[10.0, 30.0, 10.0]), some(&[20.0, 60.0, 5.0]));
        assert_eq!(ratio(&a, &b, Better::Less).unwrap().median, 0.5);
    }

    #[test]
    fn pairs_without_both_values_are_left_out() {
        let a = [Some(1.0), None, Some(3.0)];
        let b = [None, Some(1.0), Some(6.0)];
        assert_eq!(ratios(&a, &b, Better::Less), [0.5]);
        assert_eq!(ratio(&a[..2], &b[..2], Better::Less), None);
        // A zero has no ratio to anything but itself.
        assert_eq!(
            ratios(&some(&[0.0, 1.0]), &some(&[0.0, 0.0]), Better::Less),
            [1.0]
        );
    }

    #[test]
    fn one_disturbed_run_does_not_make_a_row_noisy_but_two_do() {
        let steady = some(&[1.0; 5]);
        let one = some(&[1.0, 1.01, 1.02, 0.99, 3.0]);
        let is_noisy = |first: &[Option<f64>], other: &[Option<f64>]| {
            doubt(spread(first, other, Better::Less), 5) > NOISE
        };
        assert!(!is_noisy(&one, &steady));
        let two = some(&[1.0, 1.01, 2.0, 0.99, 3.0]);
        assert!(is_noisy(&two, &steady));
        // The values themselves count where the other kernel has none.
        assert!(is_noisy(&two, &[None; 5]));
        assert_eq!(spread(&some(&[7.0]), &[None], Better::Less), 0.0);
    }

    #[test]
    fn more_pairs_leave_less_doubt() {
        // A middle half that spans a ninth of the median: too much for five pairs, enough with
        // seven.
        assert!(doubt(1.0 / 9.0, 5) > NOISE);
        assert!(doubt(1.0 / 9.0, 7) < NOISE);
    }
}
