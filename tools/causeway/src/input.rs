//! The input of the guest's console: keys from a terminal, or bytes from a pipe or file.

/// The key that introduces a command to this program: Ctrl-A.
const ESCAPE: u8 = 0x01;
/// Ctrl-C.
const INTERRUPT: u8 = 0x03;
/// The console's end-of-file character: Ctrl-D.
const END_OF_FILE: u8 = 0x04;
/// The console's quote: the next character is taken as it is (Ctrl-V).
const QUOTE: u8 = 0x16;
/// After how many bytes without a newline piped input is pushed through to the reader. A console
/// holds at least a line of 4096 bytes.
const PUSH: usize = 1024;

/// A command that the user gives by keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// Go on.
    Nothing,
    /// End the machine at once.
    Kill,
    /// Leave the guest, which goes on.
    Detach,
}

/// Finds this program's own commands among the keys.
#[derive(Default, Debug)]
pub struct Keys {
    escaped: bool,
    /// Whether there is a guest that the user can leave.
    may_detach: bool,
}

impl Keys {
    /// The keys of a user who can leave the guest.
    pub fn attached() -> Self {
        Self {
            escaped: false,
            may_detach: true,
        }
    }

    /// Whether there is a guest that the user can leave.
    pub fn may_detach(&self) -> bool {
        self.may_detach
    }

    /// Finds commands among keys that no program gets. Ctrl-C can only mean to leave.
    pub fn find(&mut self, keys: &[u8]) -> Wish {
        let mut dropped = Vec::new();
        match self.pass(keys, &mut dropped) {
            Wish::Nothing if self.may_detach && dropped.contains(&INTERRUPT) => Wish::Detach,
            wish => wish,
        }
    }

    /// Appends to `to` the part of `keys` that is meant for the guest: everything except Ctrl-A,
    /// which introduces a command: `x` ends the machine, `d` leaves it where that is possible, a
    /// second Ctrl-A or `a` sends one Ctrl-A.
    pub fn pass(&mut self, keys: &[u8], to: &mut Vec<u8>) -> Wish {
        for &key in keys {
            match (std::mem::take(&mut self.escaped), key) {
                (true, b'x' | b'X') => return Wish::Kill,
                (true, b'd' | b'D') if self.may_detach => return Wish::Detach,
                (true, b'a' | ESCAPE) => to.push(ESCAPE),
                (true, _) => to.extend([ESCAPE, key]),
                (false, ESCAPE) => self.escaped = true,
                (false, _) => to.push(key),
            }
        }
        Wish::Nothing
    }
}

/// Makes arbitrary bytes arrive unchanged through a console in canonical mode: characters that
/// mean something to the console are quoted, and long lines are pushed through in pieces.
#[derive(Default, Debug)]
pub struct Bytes {
    /// Bytes since the last newline or push.
    held: usize,
}

impl Bytes {
    /// Appends `bytes` to `to` as the console must be sent them.
    pub fn pass(&mut self, bytes: &[u8], to: &mut Vec<u8>) {
        for &byte in bytes {
            // Every control character but the newline might be an editing or a signal key.
            if byte != b'\n' && (byte < b' ' || byte == 0x7f || byte == 0xff) {
                to.push(QUOTE);
            }
            to.push(byte);
            self.held = if byte == b'\n' { 0 } else { self.held + 1 };
            if self.held == PUSH {
                to.push(END_OF_FILE);
                self.held = 0;
            }
        }
    }

    /// Appends the end of the file.
    pub fn end(&mut self, to: &mut Vec<u8>) {
        if std::mem::take(&mut self.held) != 0 {
            to.push(END_OF_FILE);
        }
        to.push(END_OF_FILE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_a_x_kills_and_ctrl_a_a_is_ctrl_a() {
        let (mut keys, mut to) = (Keys::default(), Vec::new());
        assert_eq!(keys.pass(b"ls\x01", &mut to), Wish::Nothing);
        assert_eq!(keys.pass(b"a\x03", &mut to), Wish::Nothing);
        assert_eq!(to, b"ls\x01\x03");
        assert_eq!(keys.pass(b"\x01x", &mut to), Wish::Kill);
    }

    #[test]
    fn keys_for_no_program_may_leave() {
        for (keys, wish) in [
            (&b"ls\r"[..], Wish::Nothing),
            (b"ls\x03", Wish::Detach),
            (b"\x01d", Wish::Detach),
            (b"\x01x", Wish::Kill),
        ] {
            assert_eq!(Keys::attached().find(keys), wish, "{keys:?}");
        }
        assert_eq!(Keys::default().find(b"\x03"), Wish::Nothing);
    }

    #[test]
    fn control_characters_are_quoted_and_the_end_follows() {
        let (mut bytes, mut to) = (Bytes::default(), Vec::new());
        bytes.pass(b"a\x03\nb", &mut to);
        bytes.end(&mut to);
        assert_eq!(to, b"a\x16\x03\nb\x04\x04");
    }

    #[test]
    fn a_long_line_is_pushed_through() {
        let (mut bytes, mut to) = (Bytes::default(), Vec::new());
        bytes.pass(&[b'x'; PUSH], &mut to);
        bytes.end(&mut to);
        assert_eq!(to.len(), PUSH + 2);
        assert_eq!(to.iter().filter(|&&byte| byte == END_OF_FILE).count(), 2);
    }
}
