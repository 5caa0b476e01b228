//! Control messages: `struct cmsghdr` and what follows it, in the layout of either kind of program.

use alloc::vec::Vec;

use abi::{Errno, Result};

/// The layout of control messages in a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// A length of 8 bytes, aligned to 8.
    Wide,
    /// A length of 4 bytes, aligned to 4 (32-bit programs).
    Narrow,
}

impl Layout {
    /// Bytes of a length, and the alignment.
    fn word(self) -> usize {
        match self {
            Layout::Wide => 8,
            Layout::Narrow => 4,
        }
    }

    /// Bytes of the head: length, level, type.
    pub fn head(self) -> usize {
        self.word() + 8
    }

    /// Bytes that `len` take with padding.
    fn padded(self, len: usize) -> usize {
        len.next_multiple_of(self.word())
    }
}

/// The control data of a message that is sent.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    bytes: &'a [u8],
    layout: Layout,
}

/// One control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlMessage<'a> {
    pub level: u32,
    pub kind: u32,
    pub data: &'a [u8],
}

impl<'a> Control<'a> {
    /// No control messages.
    pub const NONE: Control<'static> = Control {
        bytes: &[],
        layout: Layout::Wide,
    };

    /// Those that the bytes hold.
    pub fn new(bytes: &'a [u8], layout: Layout) -> Control<'a> {
        Control { bytes, layout }
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() < self.layout.head()
    }

    /// The messages in order; `EINVAL` for one with an impossible length, which is the last.
    pub fn messages(&self) -> impl Iterator<Item = Result<ControlMessage<'a>>> + use<'a> {
        let layout = self.layout;
        let mut left = self.bytes;
        core::iter::from_fn(move || {
            if left.len() < layout.head() {
                return None;
            }
            let word = layout.word();
            let mut raw = [0; 8];
            raw[..word].copy_from_slice(&left[..word]);
            let len = usize::from_le_bytes(raw);
            if len < layout.head() || len > left.len() {
                left = &[];
                return Some(Err(Errno::EINVAL));
            }
            let message = ControlMessage {
                level: number(left, word),
                kind: number(left, word + 4),
                data: &left[layout.head()..len],
            };
            left = left.get(layout.padded(len)..).unwrap_or(&[]);
            Some(Ok(message))
        })
    }
}

/// The 32-bit number at byte `at`, which lies inside.
pub(super) fn number(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

/// Takes the control messages of a message that is received, as many as the program has room for.
pub struct ControlSink {
    /// The added messages.
    pub bytes: Vec<u8>,
    room: usize,
    layout: Layout,
    /// Something was left out for which there was no room.
    pub is_truncated: bool,
    /// Control messages were asked for; otherwise sockets need not build any.
    pub is_wanted: bool,
}

impl ControlSink {
    /// Takes nothing; what is left out is not reported.
    pub fn none() -> ControlSink {
        ControlSink {
            is_wanted: false,
            ..ControlSink::new(0, Layout::Wide)
        }
    }

    /// Takes up to `room` bytes.
    pub fn new(room: usize, layout: Layout) -> ControlSink {
        ControlSink {
            bytes: Vec::new(),
            room,
            layout,
            is_truncated: false,
            is_wanted: true,
        }
    }

    /// Adds a message; cut off where the room ends, or left out, and then noted
    /// (`is_truncated`).
    pub fn put(&mut self, level: u32, kind: u32, data: &[u8]) {
        let layout = self.layout;
        let room = self.room - self.bytes.len();
        let whole = layout.head() + data.len();
        let len = whole.min(room);
        if len < layout.head() || self.bytes.try_reserve(layout.padded(len)).is_err() {
            self.is_truncated = true;
            return;
        }
        self.is_truncated |= len < whole;
        let end = self.bytes.len() + layout.padded(len).min(room);
        self.bytes
            .extend_from_slice(&(len as u64).to_le_bytes()[..layout.word()]);
        self.bytes.extend_from_slice(&level.to_le_bytes());
        self.bytes.extend_from_slice(&kind.to_le_bytes());
        self.bytes.extend_from_slice(&data[..len - layout.head()]);
        self.bytes.resize(end, 0);
    }

    /// How many 32-bit numbers a further message could hold.
    pub fn room_for_numbers(&self) -> usize {
        (self.room - self.bytes.len()).saturating_sub(self.layout.head()) / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_read_again() {
        for layout in [Layout::Wide, Layout::Narrow] {
            let mut sink = ControlSink::new(100, layout);
            sink.put(1, 2, b"abcde");
            sink.put(3, 4, b"");
            sink.put(5, 6, &[7; 8]);
            assert!(!sink.is_truncated);
            let control = Control::new(&sink.bytes, layout);
            let all: Vec<_> = control.messages().map(Result::unwrap).collect();
            assert_eq!(all.len(), 3);
            assert_eq!(
                (all[0].level, all[0].kind, all[0].data),
                (1, 2, &b"abcde"[..])
            );
            assert_eq!((all[1].level, all[1].kind, all[1].data), (3, 4, &b""[..]));
            assert_eq!(
                (all[2].level, all[2].kind, all[2].data),
                (5, 6, &[7; 8][..])
            );
        }
    }

    #[test]
    fn what_has_no_room_is_cut() {
        let mut sink = ControlSink::new(18, Layout::Wide);
        sink.put(1, 2, b"abcd");
        assert!(sink.is_truncated);
        assert_eq!(sink.bytes.len(), 18);
        assert_eq!(sink.bytes[0], 18);
        sink.put(1, 2, b"");
        assert_eq!(sink.bytes.len(), 18);
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let mut bytes = [0; 24];
        for len in [0, 15, 25, u64::MAX] {
            bytes[..8].copy_from_slice(&len.to_le_bytes());
            let control = Control::new(&bytes, Layout::Wide);
            let all: Vec<_> = control.messages().collect();
            assert_eq!(all, [Err(Errno::EINVAL)]);
        }
        assert!(Control::new(&bytes[..15], Layout::Wide).is_empty());
    }
}
