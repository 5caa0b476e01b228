//! Sizes as a user writes them, and the host command writes them in the kernel's command line.

/// Parses a number of `K`, `M` or `G`, in bytes, the most of a `u64` at most; `None` for any other
/// text.
pub fn bytes(text: &str) -> Option<u64> {
    let shift = match text.chars().next_back()? {
        'K' | 'k' => 10,
        'M' | 'm' => 20,
        'G' | 'g' => 30,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    let is_plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = is_plain.then(|| digits.parse().ok())??;
    Some(number.saturating_mul(1 << shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_and_a_unit() {
        assert_eq!(bytes("41k"), Some(41 << 10));
        assert_eq!(bytes("0G"), Some(0));
        assert_eq!(bytes("99999999999G"), Some(u64::MAX));
        for wrong in ["", "M", "64", "64MB", "-1M", "+1M", "1.5G", "1 M", "é"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
