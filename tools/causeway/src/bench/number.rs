//! Numbers as people read them: three digits that mean something, and a unit that suits.

/// Formats a value with three significant digits and separated thousands; a value that is no number
/// is a dash.
pub fn digits(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let size = value.abs();
    let places = match size {
        _ if size >= 99.95 || size == 0.0 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.9995 => 2,
        _ if size >= 0.01 => 3,
        _ if size >= 0.001 => 4,
        _ => return format!("{value:.1e}"),
    };
    grouped(&format!("{value:.places$}"))
}

/// Puts a comma between each three digits before the point.
fn grouped(text: &str) -> String {
    let (sign, text) = text
        .strip_prefix('-')
        .map_or(("", text), |rest| ("-", rest));
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut result = String::from(sign);
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            result.push(',');
        }
        result.push(digit);
    }
    result + rest
}

/// A ratio's digits: two behind the point, or as many as it takes to show that it is not nothing.
pub fn ratio(value: f64) -> String {
    match value {
        _ if !value.is_finite() => "–".into(),
        _ if value >= 99.95 => digits(value),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ if value >= 0.1 || value <= 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A unit, and how much of the results' own unit is one of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit<'a> {
    pub name: &'a str,
    size: f64,
    /// Whether zeros behind the point say something: not where things are counted.
    is_measure: bool,
}

impl<'a> Unit<'a> {
    /// The unit in which the least of `values`, given in the results' unit `name`, is at least 1
    /// where that can be.
    pub fn of(name: &'a str, values: impl IntoIterator<Item = f64>) -> Self {
        let least = values
            .into_iter()
            .filter(|value| value.is_finite() && *value > 0.0)
            .fold(f64::INFINITY, f64::min);
        let larger: &[(&'static str, f64)] = match name {
            "ns" => &[("s", 1e9), ("ms", 1e6), ("µs", 1e3)],
            "instr" => &[("M instr", 1e6), ("k instr", 1e3)],
            "bytes" => &[
                ("GiB", (1u64 << 30) as f64),
                ("MiB", (1u64 << 20) as f64),
                ("KiB", (1u64 << 10) as f64),
            ],
            "MiB/s" => &[("GiB/s", 1024.0)],
            _ => &[],
        };
        larger
            .iter()
            .find(|(_, size)| least.is_finite() && least >= *size)
            .map_or(
                Unit {
                    name,
                    size: 1.0,
                    is_measure: matches!(name, "ns" | "s" | "instr" | "MiB/s" | "ops/s"),
                },
                |&(name, size)| Unit {
                    name,
                    size,
                    is_measure: true,
                },
            )
    }

    /// A value of the results' unit in this one.
    pub fn scaled(&self, value: f64) -> f64 {
        value / self.size
    }

    /// The digits of a value that is given in the results' unit.
    pub fn digits(&self, value: f64) -> String {
        if self.is_measure {
            digits(self.scaled(value))
        } else {
            trimmed(self.scaled(value))
        }
    }
}

/// A value with its unit, as in `1.25 µs`.
pub fn with_unit(value: f64, unit: &str) -> String {
    let suited = Unit::of(unit, [value]);
    format!("{} {}", suited.digits(value), suited.name)
}

/// A number of bytes in powers of two, as row names have it: `64`, `4K`, `1M`.
pub fn bytes(value: f64) -> String {
    const STEPS: [(&str, f64); 3] = [
        ("G", (1u64 << 30) as f64),
        ("M", (1u64 << 20) as f64),
        ("K", 1024.0),
    ];
    for (letter, size) in STEPS {
        if value >= size {
            return format!("{}{letter}", trimmed(value / size));
        }
    }
    trimmed(value)
}

/// Digits without zeros behind the point that say nothing.
pub fn trimmed(value: f64) -> String {
    let text = digits(value);
    match text.contains('.') && !text.contains('e') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_count() {
        for (value, text) in [
            (0.0, "0"),
            (0.0451, "0.045"),
            (1.0, "1.00"),
            (99.96, "100"),
            (812.4, "812"),
            (1_234_567.0, "1,234,567"),
            (-1234.0, "-1,234"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
            (0.000_01, "1.0e-5"),
        ] {
            assert_eq!(digits(value), text);
        }
        assert_eq!(trimmed(16.0), "16");
        assert_eq!(trimmed(1.50), "1.5");
    }

    #[test]
    fn ratios_keep_what_is_small() {
        assert_eq!(ratio(0.5), "0.50");
        assert_eq!(ratio(0.042), "0.042");
        assert_eq!(ratio(12.34), "12.3");
        assert_eq!(ratio(f64::NAN), "–");
    }

    #[test]
    fn one_unit_for_what_stands_side_by_side() {
        let unit = Unit::of("ns", [900.0, 2_000_000.0]);
        assert_eq!(unit.name, "ns");
        let unit = Unit::of("ns", [9_000.0, 2_000_000.0, f64::NAN]);
        assert_eq!((unit.name, unit.digits(9_000.0)), ("µs", "9.00".into()));
        assert_eq!(Unit::of("ns", []).name, "ns");
        assert_eq!(with_unit(31.0, "pages"), "31 pages");
        assert_eq!(with_unit(2048.0, "MiB/s"), "2.00 GiB/s");
        assert_eq!(with_unit(12.0, "ops/s"), "12.0 ops/s");
    }

    #[test]
    fn sizes_in_powers_of_two() {
        assert_eq!(bytes(64.0), "64");
        assert_eq!(bytes(4096.0), "4K");
        assert_eq!(bytes(1_572_864.0), "1.5M");
    }
}
