//! Options of the kernel's command line, for the settings that are read before all floors work.

/// Returns the words of the kernel, which end at `--`: those behind it are the program's.
pub(crate) fn words(command_line: &str) -> impl Iterator<Item = &str> {
    let words = command_line.split_ascii_whitespace();
    words.take_while(|word| *word != "--")
}

/// Returns the last value of the option `name=value` that `read` knows: that one counts.
pub(crate) fn last_value<'a, T>(
    command_line: &'a str,
    name: &str,
    read: impl Fn(&'a str) -> Option<T>,
) -> Option<T> {
    let options = words(command_line).filter_map(|word| word.split_once('='));
    let values = options.filter(|(option, _)| *option == name);
    values.filter_map(|(_, value)| read(value)).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_end_where_the_program_begins() {
        let line = "guard=on iommu=open iommu.queue=off guard=off kaslr=off -- guard=on";
        assert_eq!(last_value(line, "guard", Some), Some("off"));
        assert_eq!(last_value(line, "iommu", Some), Some("open"));
        assert_eq!(last_value(line, "directmap", Some), None);
        assert!(words(line).any(|word| word == "kaslr=off"));
        assert_eq!(words(line).count(), 5);
    }

    /// As the kernel reads the other options.
    #[test]
    fn words_end_at_any_white_space() {
        let line = "guard=on\tguard=off\n iommu=open  --\tiommu=off";
        assert_eq!(last_value(line, "guard", Some), Some("off"));
        assert_eq!(last_value(line, "iommu", Some), Some("open"));
        assert_eq!(words(line).count(), 3);
    }

    #[test]
    fn the_last_value_that_is_known_counts() {
        let line = "large=on large=off large=2M";
        let read = |value| match value {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        };
        assert_eq!(last_value(line, "large", read), Some(false));
        assert_eq!(last_value(line, "small", read), None);
    }
}
