//! The processing of bytes on their way to the screen (`OPOST`), and the place of the cursor.

use abi::raw::general::{OCRNL, OLCUC, ONLCR, ONLRET, ONOCR, OPOST, TABDLY, XTABS, tcflag_t};

/// Columns between tab stops.
const TAB: usize = 8;

/// Where finished bytes go.
pub type Screen<'a> = dyn FnMut(&[u8]) + 'a;

/// The output half of a line discipline: it knows the column, so that tabs expand and erasing
/// works.
#[derive(Clone, Copy, Default, Debug)]
pub struct Output {
    /// The cursor's column.
    pub column: usize,
    /// The column in which the line being typed began.
    pub line_start: usize,
}

impl Output {
    /// Sends bytes through output processing.
    pub fn write(&mut self, bytes: &[u8], oflag: tcflag_t, utf8: bool, screen: &mut Screen<'_>) {
        if oflag & OPOST == 0 {
            screen(bytes);
            return;
        }
        // Runs of ordinary bytes go out in one piece.
        let mut rest = bytes;
        while !rest.is_empty() {
            let run = rest
                .iter()
                .position(|&b| {
                    b.is_ascii_control() || (oflag & OLCUC != 0 && b.is_ascii_lowercase())
                })
                .unwrap_or(rest.len());
            let (plain, special) = rest.split_at(run);
            if !plain.is_empty() {
                self.column += plain.iter().filter(|&&b| !continues(b, utf8)).count();
                screen(plain);
            }
            if let Some((&byte, after)) = special.split_first() {
                self.special(byte, oflag, screen);
                rest = after;
            } else {
                rest = special;
            }
        }
    }

    fn special(&mut self, byte: u8, oflag: tcflag_t, screen: &mut Screen<'_>) {
        match byte {
            b'\n' => {
                if oflag & ONLRET != 0 {
                    self.column = 0;
                }
                if oflag & ONLCR != 0 {
                    self.column = 0;
                    self.line_start = 0;
                    screen(b"\r\n");
                    return;
                }
                self.line_start = self.column;
                screen(b"\n");
            }
            b'\r' => {
                if oflag & ONOCR != 0 && self.column == 0 {
                    return;
                }
                if oflag & OCRNL != 0 {
                    if oflag & ONLRET != 0 {
                        self.column = 0;
                        self.line_start = 0;
                    }
                    screen(b"\n");
                    return;
                }
                self.column = 0;
                self.line_start = 0;
                screen(b"\r");
            }
            b'\t' => {
                let spaces = TAB - self.column % TAB;
                self.column += spaces;
                if oflag & TABDLY == XTABS {
                    screen(&b"        "[..spaces]);
                } else {
                    screen(b"\t");
                }
            }
            8 => {
                self.column = self.column.saturating_sub(1);
                screen(&[8]);
            }
            _ if byte.is_ascii_lowercase() => {
                self.column += 1;
                screen(&[byte.to_ascii_uppercase()]);
            }
            _ => screen(&[byte]),
        }
    }
}

/// Whether a byte continues a UTF-8 character, so that it takes no column of its own.
pub fn continues(byte: u8, utf8: bool) -> bool {
    utf8 && byte & 0xc0 == 0x80
}
