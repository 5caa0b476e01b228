//! Erasing input, on the line and on the screen: `VERASE`, `VWERASE`, `VKILL`, `VREPRINT`.

use abi::raw::general::{ECHO, ECHOCTL, ECHOE, ECHOK, ECHOKE, ECHOPRT, VERASE, VKILL, VWERASE};

use super::{
    line::Line,
    output::{Screen, continues},
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Character,
    Word,
    Line,
}

impl Line {
    /// Erases as the key says.
    pub(super) fn erase(&mut self, key: u8, screen: &mut Screen<'_>) {
        if self.ring.unfinished() == 0 {
            return;
        }
        let extent = if key == self.control(VERASE) {
            Extent::Character
        } else if key == self.control(VWERASE) && key != self.control(VKILL) {
            Extent::Word
        } else {
            if !self.local(ECHO) {
                self.ring.erase(usize::MAX);
                return;
            }
            if !self.local(ECHOK) || !self.local(ECHOKE) || !self.local(ECHOE) {
                self.ring.erase(usize::MAX);
                self.finish_erasing(screen);
                self.echo(key, screen);
                if self.local(ECHOK) {
                    self.echo_processed(b'\n', screen);
                }
                return;
            }
            Extent::Line
        };
        let mut in_word = false;
        while let Some((first, count)) = self.last_character() {
            if extent == Extent::Word {
                if first.is_ascii_alphanumeric() || first == b'_' || first >= 0x80 {
                    in_word = true;
                } else if in_word {
                    break;
                }
            }
            self.erase_character(first, count, extent, screen);
            if extent == Extent::Character {
                break;
            }
        }
        if self.ring.unfinished() == 0 && self.local(ECHO) {
            self.finish_erasing(screen);
        }
    }

    /// The last character's first byte and its number of bytes; `None` where there is none, or only
    /// a part of one.
    fn last_character(&self) -> Option<(u8, usize)> {
        let mut count = 1;
        loop {
            let byte = self.ring.back(count)?;
            if !continues(byte, self.utf8()) {
                return Some((byte, count));
            }
            count += 1;
        }
    }

    fn erase_character(
        &mut self,
        first: u8,
        count: usize,
        extent: Extent,
        screen: &mut Screen<'_>,
    ) {
        if !self.local(ECHO) {
            self.ring.erase(count);
            return;
        }
        if self.local(ECHOPRT) {
            if !self.erasing {
                screen(b"\\");
                self.output.column += 1;
                self.erasing = true;
            }
            self.echo(first, screen);
            for back in (1..count).rev() {
                if let Some(byte) = self.ring.back(back) {
                    screen(&[byte]);
                }
            }
            self.ring.erase(count);
            return;
        }
        self.ring.erase(count);
        if extent == Extent::Character && !self.local(ECHOE) {
            let key = self.control(VERASE);
            self.echo(key, screen);
        } else if first == b'\t' {
            self.erase_tab(screen);
        } else if first.is_ascii_control() {
            if self.local(ECHOCTL) {
                self.wipe(2, screen);
            }
        } else {
            self.wipe(1, screen);
        }
    }

    /// Moves the cursor back over a tab, whose width follows from the text before it.
    fn erase_tab(&mut self, screen: &mut Screen<'_>) {
        let mut columns = 0;
        let mut after_tab = false;
        let mut back = 1;
        while let Some(byte) = self.ring.back(back) {
            if byte == b'\t' {
                after_tab = true;
                break;
            }
            if byte.is_ascii_control() {
                if self.local(ECHOCTL) {
                    columns += 2;
                }
            } else if !continues(byte, self.utf8()) {
                columns += 1;
            }
            back += 1;
        }
        if !after_tab {
            columns += self.output.line_start;
        }
        for _ in 0..8 - columns % 8 {
            screen(&[8]);
            self.output.column = self.output.column.saturating_sub(1);
        }
    }

    fn wipe(&mut self, columns: usize, screen: &mut Screen<'_>) {
        for _ in 0..columns {
            screen(b"\x08 \x08");
            self.output.column = self.output.column.saturating_sub(1);
        }
    }

    /// Closes the `\.../` of `ECHOPRT`.
    pub(super) fn finish_erasing(&mut self, screen: &mut Screen<'_>) {
        if self.erasing {
            screen(b"/");
            self.output.column += 1;
            self.erasing = false;
        }
    }

    /// Shows the unfinished line again.
    pub(super) fn reprint(&mut self, screen: &mut Screen<'_>) {
        self.output.line_start = self.output.column;
        for back in (1..=self.ring.unfinished()).rev() {
            if let Some(byte) = self.ring.back(back) {
                self.echo(byte, screen);
            }
        }
    }
}
