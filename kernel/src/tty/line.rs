//! The line discipline `N_TTY`: a state machine from typed bytes to echo, signals and lines. It
//! owns no lock and knows no process, so that every kind of terminal can use it, and a test can
//! drive it byte by byte.

use abi::raw::general::{
    B38400, CREAD, CS8, ECHO, ECHOCTL, ECHOE, ECHOK, ECHOKE, ECHONL, EXTPROC, HUPCL, ICANON, ICRNL,
    IEXTEN, IGNCR, IMAXBEL, INLCR, ISIG, ISTRIP, IUCLC, IUTF8, IXANY, IXON, NOFLSH, ONLCR, OPOST,
    PARMRK, VEOF, VEOL, VEOL2, VERASE, VINTR, VKILL, VLNEXT, VMIN, VQUIT, VREPRINT, VSTART, VSTOP,
    VSUSP, VTIME, VWERASE, termios2,
};

use nucleus::OutOfMemory;

use super::{
    output::{Output, Screen},
    ring::Ring,
};

/// The value of a control character's slot without a key (`_POSIX_VDISABLE`).
pub const DISABLED: u8 = 0;

/// A key that sends a signal to the foreground process group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// `VINTR`: SIGINT.
    Interrupt,
    /// `VQUIT`: SIGQUIT.
    Quit,
    /// `VSUSP`: SIGTSTP.
    Suspend,
}

/// The effect of a typed byte besides echoing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Effect {
    /// A signal key was typed.
    pub key: Option<Key>,
    /// Unread input is to be thrown away; unsent output was, before, as [`Line::flushes`] said.
    pub flushed: bool,
    /// Output was stopped or started by `VSTOP`, `VSTART` or any key (`IXANY`).
    pub flow_changed: bool,
}

/// The settings that a new terminal has.
pub const fn default_settings() -> termios2 {
    let mut cc = [DISABLED; 19];
    cc[VINTR as usize] = 3;
    cc[VQUIT as usize] = 28;
    cc[VERASE as usize] = 127;
    cc[VKILL as usize] = 21;
    cc[VEOF as usize] = 4;
    cc[VMIN as usize] = 1;
    cc[VTIME as usize] = 0;
    cc[VSTART as usize] = 17;
    cc[VSTOP as usize] = 19;
    cc[VSUSP as usize] = 26;
    cc[VREPRINT as usize] = 18;
    cc[abi::raw::general::VDISCARD as usize] = 15;
    cc[VWERASE as usize] = 23;
    cc[VLNEXT as usize] = 22;
    termios2 {
        c_iflag: ICRNL | IXON,
        c_oflag: OPOST | ONLCR,
        c_cflag: B38400 | CS8 | CREAD | HUPCL,
        c_lflag: ISIG | ICANON | ECHO | ECHOE | ECHOK | ECHOCTL | ECHOKE | IEXTEN,
        c_line: 0,
        c_cc: cc,
        c_ispeed: 38400,
        c_ospeed: 38400,
    }
}

/// A line discipline's state.
pub struct Line {
    pub(super) settings: termios2,
    pub(super) ring: Ring,
    pub(super) output: Output,
    /// Output is stopped (`VSTOP`, `TCOOFF`).
    pub stopped: bool,
    /// The next byte is taken literally (`VLNEXT`).
    literal_next: bool,
    /// Inside a `\...` of erased characters (`ECHOPRT`).
    pub(super) erasing: bool,
}

impl Line {
    /// Nothing typed, default settings.
    pub fn new() -> Result<Line, OutOfMemory> {
        Ok(Line {
            settings: default_settings(),
            ring: Ring::new()?,
            output: Output::default(),
            stopped: false,
            literal_next: false,
            erasing: false,
        })
    }

    /// The settings in force.
    pub fn settings(&self) -> &termios2 {
        &self.settings
    }

    /// Changes the settings. What was typed stays: as one line after a change to canonical mode, as
    /// bytes after a change from it.
    pub fn set_settings(&mut self, settings: termios2) {
        let changed = (self.settings.c_lflag ^ settings.c_lflag) & ICANON != 0;
        self.settings = settings;
        if changed {
            self.ring.forget_lines(self.canonical());
            self.erasing = false;
            self.literal_next = false;
        }
        if !self.input_flag(IXON) {
            self.stopped = false;
        }
    }

    /// Whether input is read by lines.
    pub fn canonical(&self) -> bool {
        self.local(ICANON) && !self.local(EXTPROC)
    }

    pub(super) fn local(&self, bit: u32) -> bool {
        self.settings.c_lflag & bit != 0
    }

    fn input_flag(&self, bit: u32) -> bool {
        self.settings.c_iflag & bit != 0
    }

    pub(super) fn utf8(&self) -> bool {
        self.input_flag(IUTF8)
    }

    /// The byte that does `slot` (`VINTR`, ...).
    pub(super) fn control(&self, slot: u32) -> u8 {
        self.settings.c_cc[slot as usize]
    }

    fn is(&self, byte: u8, slot: u32) -> bool {
        byte != DISABLED && byte == self.control(slot)
    }

    /// The signal that `byte` would send now.
    pub fn signal_key(&self, byte: u8) -> Option<Key> {
        if !self.local(ISIG) || self.literal_next || self.local(EXTPROC) {
            return None;
        }
        let byte = self.stripped(byte);
        if self.is(byte, VINTR) {
            Some(Key::Interrupt)
        } else if self.is(byte, VQUIT) {
            Some(Key::Quit)
        } else if self.is(byte, VSUSP) {
            Some(Key::Suspend)
        } else {
            None
        }
    }

    /// Whether `byte` would throw away unread input and unsent output.
    pub fn flushes(&self, byte: u8) -> bool {
        self.signal_key(byte).is_some() && !self.local(NOFLSH)
    }

    /// Whether `byte` acts at once, even when there is no room for bytes: signal keys, stop and
    /// start.
    pub fn is_urgent(&self, byte: u8) -> bool {
        let stripped = self.stripped(byte);
        self.signal_key(byte).is_some()
            || (self.input_flag(IXON)
                && !self.literal_next
                && !self.local(EXTPROC)
                && (self.is(stripped, VSTART) || self.is(stripped, VSTOP)))
    }

    /// Whether `byte` takes the meaning of the byte behind it away, unless it is quoted itself.
    pub fn quotes(&self, byte: u8) -> bool {
        self.local(ICANON)
            && self.local(IEXTEN)
            && !self.local(EXTPROC)
            && self.is(self.stripped(byte), VLNEXT)
    }

    fn stripped(&self, byte: u8) -> u8 {
        let byte = if self.input_flag(ISTRIP) {
            byte & 0x7f
        } else {
            byte
        };
        if self.input_flag(IUCLC) && self.local(IEXTEN) {
            byte.to_ascii_lowercase()
        } else {
            byte
        }
    }

    /// Whether a byte typed now would be kept. In canonical mode an unfinished line that fills the
    /// ring swallows what follows, or it could never be finished.
    pub fn has_room(&self) -> bool {
        // One place is kept for the byte that ends the line, one for the double of `PARMRK`.
        self.ring.room() > 2 || (self.canonical() && self.ring.finished() == 0)
    }

    /// Takes a typed byte.
    pub fn input(&mut self, byte: u8, screen: &mut Screen<'_>) -> Effect {
        let mut effect = Effect::default();
        if self.literal_next {
            self.literal_next = false;
            let byte = self.stripped(byte);
            self.ordinary(byte, screen);
            return effect;
        }
        if let Some(key) = self.signal_key(byte) {
            let byte = self.stripped(byte);
            effect.key = Some(key);
            if !self.local(NOFLSH) {
                self.flush_input();
                effect.flushed = true;
            }
            if self.input_flag(IXON) && self.stopped {
                self.stopped = false;
                effect.flow_changed = true;
            }
            if self.local(ECHO) {
                self.echo(byte, screen);
            }
            return effect;
        }
        let mut byte = self.stripped(byte);
        if self.local(EXTPROC) {
            self.keep(byte, screen);
            return effect;
        }
        if self.input_flag(IXON) {
            let start = self.is(byte, VSTART);
            if start || self.is(byte, VSTOP) {
                effect.flow_changed = self.stopped == start;
                self.stopped = !start;
                return effect;
            }
            if self.stopped && self.input_flag(IXANY) {
                self.stopped = false;
                effect.flow_changed = true;
            }
        }
        let typed = byte;
        match byte {
            b'\r' if self.input_flag(IGNCR) => return effect,
            b'\r' if self.input_flag(ICRNL) => byte = b'\n',
            b'\n' if self.input_flag(INLCR) => byte = b'\r',
            _ => {}
        }
        if self.local(ICANON) && self.edit(byte, screen) {
            return effect;
        }
        if byte == b'\n' && typed == b'\r' {
            // Only the carriage return that became a newline is shown as one here, a newline itself
            // as `^J`.
            if self.local(ECHO) {
                self.finish_erasing(screen);
                self.echo_processed(byte, screen);
            }
            self.keep(byte, screen);
        } else {
            self.ordinary(byte, screen);
        }
        effect
    }

    /// Canonical mode's keys. Returns whether the byte was one.
    fn edit(&mut self, byte: u8, screen: &mut Screen<'_>) -> bool {
        let extended = self.local(IEXTEN);
        if self.is(byte, VERASE) || self.is(byte, VKILL) || (extended && self.is(byte, VWERASE)) {
            self.erase(byte, screen);
        } else if extended && self.is(byte, VLNEXT) {
            self.literal_next = true;
            if self.local(ECHO) {
                self.finish_erasing(screen);
                if self.local(ECHOCTL) {
                    screen(b"^\x08");
                }
            }
        } else if extended && self.is(byte, VREPRINT) && self.local(ECHO) {
            self.finish_erasing(screen);
            self.echo(byte, screen);
            self.echo_processed(b'\n', screen);
            self.reprint(screen);
        } else if byte == b'\n' {
            if self.local(ECHO) || self.local(ECHONL) {
                self.finish_erasing(screen);
                self.echo_processed(b'\n', screen);
            }
            self.ring.push_delimiter(byte);
        } else if self.is(byte, VEOF) {
            self.ring.push_delimiter(byte);
        } else if self.is(byte, VEOL) || (extended && self.is(byte, VEOL2)) {
            if self.local(ECHO) {
                self.finish_erasing(screen);
                self.begin_line();
                self.echo(byte, screen);
            }
            self.ring.push_delimiter(byte);
        } else {
            return false;
        }
        true
    }

    /// Echoes and keeps a byte that means nothing special.
    fn ordinary(&mut self, byte: u8, screen: &mut Screen<'_>) {
        if self.local(ICANON) && self.ring.room() <= 2 {
            self.complain(screen);
            return;
        }
        if self.local(ECHO) {
            self.finish_erasing(screen);
            self.begin_line();
            self.echo(byte, screen);
        }
        self.keep(byte, screen);
    }

    fn keep(&mut self, byte: u8, screen: &mut Screen<'_>) {
        if self.ring.room() < 2 {
            self.complain(screen);
            return;
        }
        if byte == 0xff && self.input_flag(PARMRK) && !self.input_flag(ISTRIP) {
            self.ring.push(byte);
        }
        self.ring.push(byte);
    }

    fn complain(&mut self, screen: &mut Screen<'_>) {
        if self.input_flag(IMAXBEL) {
            screen(b"\x07");
        }
    }

    /// Drops unread input.
    pub fn flush_input(&mut self) {
        self.ring.clear();
        self.erasing = false;
        self.literal_next = false;
    }

    /// Sends a program's bytes to the screen through output processing.
    pub fn write(&mut self, bytes: &[u8], screen: &mut Screen<'_>) {
        let utf8 = self.utf8();
        self.output
            .write(bytes, self.settings.c_oflag, utf8, screen);
    }

    /// The first byte of a line remembers where the line starts, for erasing tabs.
    fn begin_line(&mut self) {
        if self.ring.unfinished() == 0 {
            self.output.line_start = self.output.column;
        }
    }

    /// Echoes a byte: control characters as `^X` with `ECHOCTL`.
    pub(super) fn echo(&mut self, byte: u8, screen: &mut Screen<'_>) {
        if self.local(ECHOCTL) && byte.is_ascii_control() && byte != b'\t' {
            screen(&[b'^', byte ^ 0x40]);
            self.output.column += 2;
        } else {
            self.echo_processed(byte, screen);
        }
    }

    /// Echoes a byte through output processing only.
    pub(super) fn echo_processed(&mut self, byte: u8, screen: &mut Screen<'_>) {
        self.write(&[byte], screen);
    }

    /// Whether a reader would get something: a line, or bytes (`VMIN` of them, if it waits for a
    /// number).
    pub fn readable(&self) -> bool {
        if self.canonical() {
            return self.ring.finished() > 0;
        }
        let (minimum, time) = (self.control(VMIN), self.control(VTIME));
        let enough = if time == 0 && minimum > 0 {
            usize::from(minimum)
        } else {
            1
        };
        self.ring.len() >= enough
    }

    /// Bytes that a reader could take now (`FIONREAD`).
    pub fn available(&self) -> usize {
        if self.canonical() {
            self.ring.finished()
        } else {
            self.ring.len()
        }
    }

    /// Takes bytes for a reader; in canonical mode bytes of one line. The second value says that
    /// the read is over: a line ended, perhaps an empty one (`VEOF` at the start of a line: end of
    /// file).
    pub fn read(&mut self, to: &mut [u8]) -> (usize, bool) {
        if self.canonical() {
            let end_of_file = self.control(VEOF);
            self.ring.take_line(to, end_of_file)
        } else {
            (self.ring.take(to), false)
        }
    }
}
