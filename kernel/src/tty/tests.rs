//! The line discipline, byte by byte.

use alloc::{vec, vec::Vec};

use abi::raw::general::{
    ECHO, ECHOPRT, ICANON, ICRNL, ISIG, IUTF8, IXON, ONLCR, VMIN, VTIME, XTABS, termios2,
};

use nucleus::sim::Random;

use super::line::{Key, Line};

/// A line discipline and its output.
struct Bench {
    line: Line,
    shown: Vec<u8>,
    keys: Vec<Key>,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            line: Line::new().unwrap(),
            shown: Vec::new(),
            keys: Vec::new(),
        }
    }

    fn set(&mut self, change: impl FnOnce(&mut termios2)) {
        let mut settings = *self.line.settings();
        change(&mut settings);
        self.line.set_settings(settings);
    }

    fn input(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let shown = &mut self.shown;
            let effect = self
                .line
                .input(byte, &mut |bytes| shown.extend_from_slice(bytes));
            self.keys.extend(effect.key);
        }
    }

    /// The bytes that reach the screen when a program writes.
    fn write(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut shown = Vec::new();
        let screen = &mut |bytes: &[u8]| shown.extend_from_slice(bytes);
        self.line.write(bytes, screen);
        shown
    }

    /// One `read` with a large buffer; `None` where it would wait.
    fn read(&mut self) -> Option<Vec<u8>> {
        if !self.line.readable() {
            return None;
        }
        let mut buffer = [0; 4096];
        let (n, _) = self.line.read(&mut buffer);
        Some(buffer[..n].to_vec())
    }

    fn take_shown(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.shown)
    }
}

/// Types bytes into a new terminal, its settings changed by `set`: checks what is shown, and what
/// is read, one line by each read.
fn types(set: impl FnOnce(&mut termios2), typed: &[u8], shown: &[u8], lines: &[&[u8]]) {
    let mut bench = Bench::new();
    bench.set(set);
    bench.input(typed);
    assert_eq!(bench.take_shown(), shown, "{typed:?}");
    for line in lines {
        assert_eq!(bench.read().as_deref(), Some(*line), "{typed:?}");
    }
    assert_eq!(bench.read(), None, "{typed:?}");
    assert_eq!(bench.keys, [], "{typed:?}");
}

#[test]
fn typed_bytes_are_shown_and_read() {
    types(|_| {}, b"a\nb\n", b"a\r\nb\r\n", &[b"a\n", b"b\n"]);
    // A character, a word and a line are erased, and nothing beyond the line.
    types(|_| {}, b"abc\x7f", b"abc\x08 \x08", &[]);
    let word = b" foo bar\x08 \x08\x08 \x08\x08 \x08";
    types(|_| {}, b" foo bar\x17", word, &[]);
    types(
        |_| {},
        b"ab\x15x\n",
        b"ab\x08 \x08\x08 \x08x\r\n",
        &[b"x\n"],
    );
    types(|_| {}, b"one\n\x7f\x7f\x15\x17", b"one\r\n", &[b"one\n"]);
    // A whole UTF-8 character is erased by one key.
    let (typed, shown) = (
        "a\u{e9}\u{20ac}\x7f\x7f\n",
        "a\u{e9}\u{20ac}\x08 \x08\x08 \x08\r\n",
    );
    let utf8 = |s: &mut termios2| s.c_iflag |= IUTF8;
    types(utf8, typed.as_bytes(), shown.as_bytes(), &[b"a\n"]);
    // Control characters have a caret, quoted ones too; a newline in raw mode is one.
    types(|_| {}, b"\x01\x7f", b"^A\x08 \x08\x08 \x08", &[]);
    types(|_| {}, b"\x16\x03\n", b"^\x08^C\r\n", &[b"\x03\n"]);
    let raw = |s: &mut termios2| s.c_lflag &= !ICANON;
    types(raw, b"a\nb\r", b"a^Jb\r\n", &[b"a\nb\n"]);
    let keeps_returns = |s: &mut termios2| s.c_iflag &= !ICRNL;
    types(keeps_returns, b"a\rb\n", b"a^Mb\r\n", &[b"a\rb\n"]);
    let prints_erased = |s: &mut termios2| s.c_lflag |= ECHOPRT;
    types(prints_erased, b"abc\x7f\x7fx", b"abc\\cb/x", &[]);
}

#[test]
fn output_is_processed() {
    let cases: [(fn(&mut termios2), &[u8], &[u8]); 2] = [
        (|s| s.c_oflag &= !ONLCR, b"x\ny", b"x\ny"),
        (
            |s| s.c_oflag |= XTABS,
            b"ab\tc\n\tx",
            b"ab      c\r\n        x",
        ),
    ];
    for (set, written, expected) in cases {
        let mut bench = Bench::new();
        bench.set(set);
        assert_eq!(bench.write(written), expected);
    }
}

#[test]
fn a_line_is_read_when_it_is_finished() {
    let mut bench = Bench::new();
    bench.input(b"ls");
    assert_eq!(bench.read(), None);
    bench.input(b"\r");
    assert_eq!(bench.take_shown(), b"ls\r\n");
    assert_eq!(bench.read(), Some(b"ls\n".to_vec()));
    assert_eq!(bench.read(), None);
}

#[test]
fn end_of_file_ends_a_read_without_a_byte() {
    let mut bench = Bench::new();
    bench.input(b"\x04");
    assert_eq!(bench.read(), Some(vec![]));
    bench.input(b"ab\x04");
    assert_eq!(bench.read(), Some(b"ab".to_vec()));
    assert_eq!(bench.take_shown(), b"ab");
    // Right behind a full buffer it is not an end of file of its own.
    bench.input(b"abcd\x04ef\n");
    let mut four = [0; 4];
    assert_eq!(bench.line.read(&mut four), (4, true));
    assert_eq!(bench.read(), Some(b"ef\n".to_vec()));
}

#[test]
fn signal_keys_flush_what_was_typed() {
    let mut bench = Bench::new();
    bench.input(b"old\nabc\x03");
    assert_eq!(bench.keys, [Key::Interrupt]);
    assert_eq!(bench.take_shown(), b"old\r\nabc^C");
    assert_eq!(bench.read(), None);
    bench.input(b"\x1a\x1c");
    assert_eq!(bench.keys, [Key::Interrupt, Key::Suspend, Key::Quit]);
    bench.set(|s| s.c_lflag &= !ISIG);
    bench.input(b"\x03\n");
    assert_eq!(bench.keys.len(), 3);
    assert_eq!(bench.read(), Some(b"\x03\n".to_vec()));
}

#[test]
fn signal_keys_act_when_there_is_no_room() {
    let mut bench = Bench::new();
    bench.set(|s| s.c_lflag &= !(ICANON | ECHO));
    while bench.line.has_room() {
        bench.input(b"x");
    }
    assert!(bench.line.is_urgent(3));
    assert!(!bench.line.is_urgent(b'x'));
    bench.input(b"\x03");
    assert_eq!(bench.keys, [Key::Interrupt]);
    assert!(bench.line.has_room());
}

#[test]
fn a_line_that_fills_the_buffer_can_be_finished() {
    let mut bench = Bench::new();
    bench.input(&[b'x'; 10_000]);
    assert!(bench.line.has_room());
    bench.input(b"\n");
    let line = bench.read().unwrap();
    assert!(line.len() > 4000 && line.ends_with(b"x\n"));
    assert_eq!(bench.read(), None);
}

#[test]
fn output_stops_and_goes_on() {
    let mut bench = Bench::new();
    bench.input(b"\x13");
    assert!(bench.line.stopped);
    bench.input(b"\x11");
    assert!(!bench.line.stopped);
    bench.set(|s| s.c_iflag &= !IXON);
    bench.input(b"\x13\n");
    assert!(!bench.line.stopped);
    assert_eq!(bench.read(), Some(b"\x13\n".to_vec()));
}

#[test]
fn raw_mode_counts_bytes() {
    let mut bench = Bench::new();
    bench.set(|s| {
        s.c_lflag &= !(ICANON | ECHO);
        s.c_cc[VMIN as usize] = 3;
        s.c_cc[VTIME as usize] = 0;
    });
    bench.input(b"ab");
    assert!(!bench.line.readable());
    assert_eq!(bench.line.available(), 2);
    bench.input(b"\x7f");
    assert_eq!(bench.read(), Some(b"ab\x7f".to_vec()));
    assert_eq!(bench.take_shown(), b"");
}

#[test]
fn a_change_of_mode_keeps_what_was_typed() {
    let mut bench = Bench::new();
    bench.input(b"half");
    bench.set(|s| s.c_lflag &= !ICANON);
    assert_eq!(bench.read(), Some(b"half".to_vec()));
    bench.input(b"raw");
    bench.set(|s| s.c_lflag |= ICANON);
    assert_eq!(bench.read(), Some(b"raw".to_vec()));
    bench.input(b"line\n");
    assert_eq!(bench.read(), Some(b"line\n".to_vec()));
}

/// One row of a screen: the effect of the bytes on a terminal.
#[derive(Default)]
struct Row {
    cells: Vec<u8>,
    cursor: usize,
}

impl Row {
    fn show(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                8 => self.cursor = self.cursor.saturating_sub(1),
                b'\r' => self.cursor = 0,
                b'\n' => *self = Row::default(),
                b'\t' => self.cursor = (self.cursor / 8 + 1) * 8,
                _ => {
                    if self.cells.len() <= self.cursor {
                        self.cells.resize(self.cursor + 1, b' ');
                    }
                    self.cells[self.cursor] = byte;
                    self.cursor += 1;
                }
            }
        }
    }

    /// Returns the text left of the cursor, and checks that none stands right of it.
    fn text(&self) -> Vec<u8> {
        let mut text = self.cells.clone();
        text.resize(text.len().max(self.cursor), b' ');
        assert!(
            text[self.cursor..].iter().all(|&b| b == b' '),
            "something is left behind the cursor: {:?}",
            alloc::string::String::from_utf8_lossy(&text)
        );
        text.truncate(self.cursor);
        text
    }
}

/// How a line looks behind a prompt of `start` columns.
fn rendered(line: &[u8], start: usize) -> Vec<u8> {
    let mut text = vec![b'>'; start];
    for &byte in line {
        match byte {
            b'\t' => {
                let column = (text.len() / 8 + 1) * 8;
                text.resize(column, b' ');
            }
            _ if byte.is_ascii_control() => text.extend_from_slice(&[b'^', byte ^ 0x40]),
            _ => text.push(byte),
        }
    }
    text
}

/// Types at random and compares with the plainest editor: the bytes that are read, and the screen
/// after every key.
#[test]
fn editing_agrees_with_a_plain_editor_and_a_screen() {
    for seed in 1..200u64 {
        let mut random = Random::new(seed);
        let mut bench = Bench::new();
        let mut row = Row::default();
        let mut editor: Vec<u8> = Vec::new();
        let mut start = 0;
        for _ in 0..300 {
            if editor.is_empty() && random.below(8) == 0 {
                let prompt = vec![b'>'; random.below(12)];
                row = Row::default();
                row.show(&bench.write(b"\r"));
                row.show(&bench.write(&prompt));
                start = prompt.len();
            }
            let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            let key = match random.below(16) {
                0 | 1 => 0x7f,
                2 => 0x17,
                3 => 0x15,
                4 => b'\n',
                5 => b'\t',
                6 => 1,
                7 | 8 => b' ',
                n => b'a' + n as u8,
            };
            match key {
                0x7f => drop(editor.pop()),
                0x15 => editor.clear(),
                0x17 => {
                    while editor.last().is_some_and(|&b| !word(b)) {
                        editor.pop();
                    }
                    while editor.last().is_some_and(|&b| word(b)) {
                        editor.pop();
                    }
                }
                _ => editor.push(key),
            }
            bench.input(&[key]);
            row.show(&bench.take_shown());
            if key == b'\n' {
                assert_eq!(bench.read().as_ref(), Some(&editor), "seed {seed}");
                editor.clear();
                start = 0;
            }
            assert_eq!(bench.read(), None, "seed {seed}");
            let expected = rendered(&editor, start);
            assert_eq!(
                alloc::string::String::from_utf8_lossy(&row.text()),
                alloc::string::String::from_utf8_lossy(&expected),
                "seed {seed}"
            );
        }
    }
}
