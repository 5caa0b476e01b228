//! The counted instructions by function, largest first.

use std::collections::HashMap;
use std::fmt::Write;

use super::counts::Counts;

/// The unit that an instruction is counted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// The function that stands in the kernel's file, with all that was inlined into it.
    Function,
    /// The function that its source line stands in, inlined or not.
    Inlined,
    /// Its source line.
    Line,
}

/// Returns the table's `top` first lines. `name` maps an address to its unit.
pub fn table(counts: &Counts, name: impl Fn(u64) -> String, top: usize) -> String {
    let mut names: HashMap<u64, String> = HashMap::new();
    let mut sums: HashMap<&str, u64> = HashMap::new();
    for &(address, _) in &counts.kernel {
        names.entry(address).or_insert_with(|| name(address));
    }
    let mut kernel = 0;
    for (address, times) in &counts.kernel {
        *sums.entry(&names[address]).or_default() += times;
        kernel += times;
    }
    let mut sums: Vec<(&str, u64)> = sums.into_iter().collect();
    sums.sort_by_key(|&(name, sum)| (std::cmp::Reverse(sum), name));
    let all = (kernel + counts.programs).max(1) as f64;
    let mut text = String::new();
    let share = |sum: u64| sum as f64 / all * 100.0;
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{:>7} {:>14}  where", "share", "instructions");
    for (name, sum) in [("programs", counts.programs), ("the kernel", kernel)] {
        let _ = writeln!(text, "{:6.2}% {sum:14}  {name}, in all", share(sum));
    }
    for &(name, sum) in sums.iter().take(top) {
        let _ = writeln!(text, "{:6.2}% {sum:14}  {name}", share(sum));
    }
    let rest: u64 = sums.iter().skip(top).map(|&(_, sum)| sum).sum();
    if rest != 0 {
        let others = sums.len() - top;
        let _ = writeln!(text, "{:6.2}% {rest:14}  ({others} others)", share(rest));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_stands_first_and_the_rest_is_summed() {
        let name = |address| match address {
            0x100..0x200 => "small".into(),
            0x200..0x300 => "large".into(),
            _ => "least".into(),
        };
        let counts = Counts {
            programs: 10,
            kernel: vec![(0x100, 20), (0x204, 30), (0x208, 30), (0x310, 10)],
        };
        let text = table(&counts, name, 2);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1][..2], ["10.00%", "10"]);
        assert_eq!(lines[2][..2], ["90.00%", "90"]);
        assert_eq!(lines[3], ["60.00%", "60", "large"]);
        assert_eq!(lines[4], ["20.00%", "20", "small"]);
        assert_eq!(lines[5], ["10.00%", "10", "(1", "others)"]);
    }
}
