//! The counts of the plugin.

use anyhow::{Context, Result};

/// How often the kernel's instructions were run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions of programs.
    pub programs: u64,
    /// Of the kernel: an instruction's address and how often it ran. An address may stand here
    /// several times: in blocks that overlap.
    pub kernel: Vec<(u64, u64)>,
}

impl Counts {
    /// Reads the plugin's file.
    ///
    /// # Errors
    /// When it is none, or not whole.
    pub fn read(text: &str) -> Result<Self> {
        let mut counts = Self::default();
        for line in text.lines() {
            counts.line(line).with_context(|| {
                format!("the plugin's file has the line {line:?}, which means nothing")
            })?;
        }
        Ok(counts)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        match words.next()? {
            "programs" => self.programs = words.next()?.parse().ok()?,
            "block" => {
                let times = words.next()?.parse().ok()?;
                let hexadecimal = |word| u64::from_str_radix(word, 16).ok();
                let start = hexadecimal(words.next()?)?;
                for word in words {
                    self.kernel
                        .push((start.checked_add(hexadecimal(word)?)?, times));
                }
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_counts_each_of_its_instructions() {
        let counts = Counts::read("programs 12\nblock 3 ffff0010 0 4\n").unwrap();
        assert_eq!(counts.programs, 12);
        assert_eq!(counts.kernel, [(0xffff_0010, 3), (0xffff_0014, 3)]);
        assert!(Counts::read("block 3\n").is_err());
        assert!(Counts::read("noise").is_err());
    }
}
