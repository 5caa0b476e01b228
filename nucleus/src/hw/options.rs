//! Options of the kernel's command line, for the settings that are read before all floors work.

/// Returns the words of the kernel, which end at `--`: those behind it are the program's.
pub(crate) fn words(command_line: &str) -> impl Iterator<Item = &str> {
    command_line.split(' ').take_while(|word| *word != "--")
}

/// Returns the values of the option `name=value`, in their order: the last one counts.
pub(crate) fn values<'a>(command_line: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let options = words(command_line).filter_map(|word| word.split_once('='));
    options.filter_map(move |(option, value)| (option == name).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_end_where_the_program_begins() {
        let line = "guard=on iommu=open iommu.queue=off guard=off kaslr=off -- guard=on";
        assert_eq!(values(line, "guard").last(), Some("off"));
        assert_eq!(values(line, "iommu").last(), Some("open"));
        assert_eq!(values(line, "directmap").last(), None);
        assert!(words(line).any(|word| word == "kaslr=off"));
        assert_eq!(words(line).count(), 5);
    }
}
