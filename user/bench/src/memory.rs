//! Amounts of the machine's memory, from `/proc/meminfo`.

use std::fs;

use crate::Failure;

/// Returns a field of `/proc/meminfo` in bytes.
///
/// # Errors
/// When the kernel has no such field.
pub fn amount(name: &str) -> Result<u64, Failure> {
    field(&fs::read_to_string("/proc/meminfo")?, name)
}

fn field(information: &str, name: &str) -> Result<u64, Failure> {
    let value = |line: &str| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    let found = information.lines().find_map(value);
    Ok(found.ok_or_else(|| format!("/proc/meminfo has no {name}"))? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_in_kibibytes() {
        let text = "MemTotal:  10 kB\nMemAvailable:   1024 kB\nHugePages_Total:  0\n";
        assert_eq!(field(text, "MemAvailable"), Ok(1 << 20));
        assert!(field(text, "MemFree").is_err());
        assert!(field(text, "Mem").is_err());
    }
}
