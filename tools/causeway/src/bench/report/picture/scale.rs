//! An axis: where a value stands, and which values are written beside it. All axes are logarithmic:
//! equal steps are equal ratios.

/// The round numbers of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spread {
    /// With 1, 2 and 5 times powers of ten as its round numbers, which its ends are.
    Log,
    /// With powers of two, and ends where the values end.
    Binary,
}

/// An axis over a span of values that is never empty.
#[derive(Clone, Debug)]
pub struct Axis {
    spread: Spread,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis that holds all of `values`; nothing if none of them can stand on it.
    pub fn over(spread: Spread, values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let fits = |value: &f64| value.is_finite() && *value > 0.0;
        let (mut from, mut to) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.into_iter().filter(fits) {
            from = from.min(value);
            to = to.max(value);
        }
        if from > to {
            return None;
        }
        let (from, to) = match spread {
            Spread::Log => {
                let rounds = rounds(to / from);
                let (low, high) = (round_down(from, rounds), round_up(to, rounds));
                if low < high {
                    (low, high)
                } else {
                    (low / 2.0, high * 2.0)
                }
            }
            Spread::Binary if from < to => (from, to),
            Spread::Binary => (from / 2.0, to * 2.0),
        };
        Some(Axis { spread, from, to })
    }

    /// Returns the position of `value`, from 0 to 1; values outside are at the nearer end.
    pub fn at(&self, value: f64) -> f64 {
        let place = (value / self.from).max(f64::MIN_POSITIVE).ln() / (self.to / self.from).ln();
        if place.is_finite() {
            place.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    /// The round numbers to write beside the axis: at least one, at most about `most`.
    pub fn ticks(&self, most: usize) -> Vec<f64> {
        let most = most.max(2);
        match self.spread {
            Spread::Binary => {
                let (low, high) = (
                    self.from.log2().ceil() as i32,
                    self.to.log2().floor() as i32,
                );
                let every = (1..=16)
                    .find(|every| ((high - low) / every) < most as i32)
                    .unwrap_or(16);
                (low..=high)
                    .step_by(every as usize)
                    .map(|power| f64::from(power).exp2())
                    .collect()
            }
            Spread::Log => {
                let decades = (self.to / self.from).log10();
                let steps = if decades <= 1.4 {
                    rounds(self.to / self.from)
                } else {
                    &[1.0]
                };
                let (low, high) = (
                    self.from.log10().floor() as i32,
                    self.to.log10().ceil() as i32,
                );
                let every = ((decades / most as f64).ceil() as usize).max(1);
                (low..=high)
                    .filter(|power| power.rem_euclid(every as i32) == 0)
                    .flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)))
                    .filter(|value| {
                        *value >= self.from * 0.999_999 && *value <= self.to * 1.000_001
                    })
                    .collect()
            }
        }
    }
}

/// The round numbers of a decade: more of them where an axis spans little.
fn rounds(span: f64) -> &'static [f64] {
    if span <= FINE {
        &[1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]
    } else {
        &[1.0, 2.0, 5.0]
    }
}

/// The span, as a ratio, up to which an axis has the finer round numbers.
const FINE: f64 = 2.6;

/// The next lower round number.
fn round_down(value: f64, rounds: &[f64]) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    rounds
        .iter()
        .rev()
        .map(|round| round * power)
        .find(|round| *round <= value * 1.000_001)
        .unwrap_or(power)
}

/// The next higher.
fn round_up(value: f64, rounds: &[f64]) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    rounds
        .iter()
        .map(|round| round * power)
        .find(|round| *round >= value * 0.999_999)
        .unwrap_or(power * 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_show_is_no_axis() {
        assert!(Axis::over(Spread::Log, []).is_none());
        assert!(Axis::over(Spread::Log, [0.0, -1.0, f64::NAN]).is_none());
        assert!(Axis::over(Spread::Binary, [f64::INFINITY]).is_none());
    }

    #[test]
    fn one_value_still_has_room() {
        for spread in [Spread::Log, Spread::Binary] {
            let axis = Axis::over(spread, [7.0]).unwrap();
            assert!((0.0..=1.0).contains(&axis.at(7.0)));
            assert!(!axis.ticks(5).is_empty(), "{spread:?}");
        }
    }

    #[test]
    fn ratios_take_equal_room() {
        let axis = Axis::over(Spread::Log, [1.0, 10.0, 100.0]).unwrap();
        assert!((axis.at(10.0) - 0.5).abs() < 1e-9);
        assert_eq!(axis.ticks(6), [1.0, 10.0, 100.0]);
        assert_eq!(axis.at(f64::NAN), 0.0);
        assert_eq!(axis.at(0.0), 0.0);
        assert_eq!(axis.at(1e9), 1.0);
    }

    #[test]
    fn a_short_axis_has_finer_steps() {
        let axis = Axis::over(Spread::Log, [1.0, 1.27]).unwrap();
        assert_eq!(axis.ticks(6), [1.0, 1.2, 1.5]);
        assert!(axis.at(1.27) > 0.5);
    }

    #[test]
    fn sizes_have_powers_of_two() {
        let axis = Axis::over(Spread::Binary, [64.0, 4_194_304.0]).unwrap();
        assert_eq!(
            axis.ticks(5),
            [64.0, 1024.0, 16384.0, 262_144.0, 4_194_304.0]
        );
    }
}
