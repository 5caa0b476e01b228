//! Which rows are meant: ids with `*` for any letters and `{}` for a size or a count.

/// Whether a row's id fits a pattern. `*` stands for any letters but `/`, `{}` for a number with or
/// without a unit of bytes behind it, as `1`, `64B`, `4KiB`.
pub fn fits(pattern: &str, id: &str) -> bool {
    find(pattern, id).is_some()
}

/// The number, in bytes or units, that stands in `id` where the pattern has `{}`.
pub fn number(pattern: &str, id: &str) -> Option<f64> {
    find(pattern, id)?
}

/// If the id fits: the number, if the pattern has one.
fn find(pattern: &str, id: &str) -> Option<Option<f64>> {
    let Some(at) = pattern.find(['*', '{']) else {
        return (pattern == id).then_some(None);
    };
    let (same, rest) = pattern.split_at(at);
    let id = id.strip_prefix(same)?;
    if let Some(rest) = rest.strip_prefix("{}") {
        let (number, left) = size(id)?;
        return find(rest, left).map(|_| Some(number));
    }
    let rest = rest.strip_prefix('*')?;
    let reach = id.find('/').unwrap_or(id.len());
    id.char_indices()
        .map(|(at, _)| at)
        .chain([id.len()])
        .filter(|at| *at <= reach)
        .find_map(|at| find(rest, &id[at..]))
}

/// Returns the number that a text begins with, as `64B`, `4KiB`, `2`, and the rest of the text.
fn size(text: &str) -> Option<(f64, &str)> {
    let digits = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let rest = &text[digits..];
    for (unit, bytes) in [
        ("GiB", (1u64 << 30) as f64),
        ("MiB", (1u64 << 20) as f64),
        ("KiB", 1024.0),
        ("B", 1.0),
    ] {
        if let Some(left) = rest.strip_prefix(unit) {
            return Some((number * bytes, left));
        }
    }
    Some((number, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_found() {
        assert_eq!(
            number("pipe/bandwidth-{}", "pipe/bandwidth-4KiB"),
            Some(4096.0)
        );
        assert_eq!(
            number("pipe/bandwidth-{}-2cpu", "pipe/bandwidth-64B-2cpu"),
            Some(64.0)
        );
        assert_eq!(number("fork/{}-written", "fork/0-written"), Some(0.0));
        assert_eq!(
            number("pipe/bandwidth-{}", "pipe/bandwidth-4KiB-2cpu"),
            None
        );
        assert_eq!(number("pipe/bandwidth-{}", "pipe/bandwidth-"), None);
        assert_eq!(number("pipe/latency", "pipe/latency"), None);
    }

    #[test]
    fn any_letters_are_any_but_a_slash() {
        assert!(fits("pipe/latency", "pipe/latency"));
        assert!(!fits("pipe/latency", "pipe/latency-2cpu"));
        assert!(fits("pipe/*", "pipe/"));
        assert!(fits("*/latency*", "unix-socket/latency-2cpu"));
        assert!(!fits("pipe/*", "pipe/a/b"));
        assert!(fits("pipe/*-{}-*", "pipe/bandwidth-4KiB-2cpu"));
        assert!(!fits("", "pipe"));
        assert!(fits("ä*", "äö"));
    }
}
