//! The segments that 32-bit programs set (`struct user_desc`): a thread those of its own, and the
//! process local ones.

use abi::{Errno, Result};
use nucleus::{
    speculation,
    trap::{FIRST_TLS_SEGMENT, LOCAL_SEGMENTS, Segment, TLS_SEGMENTS},
};

/// A `struct user_desc`: number, base, limit, and bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// The number in the table of segments; -1 asks for a free one.
    pub number: i32,
    /// None where the structure stands for an empty place.
    pub segment: Option<Segment>,
}

mod bits {
    pub const IS_32_BITS: u32 = 1;
    pub const CONTENTS: u32 = 6;
    pub const GROWS_DOWN: u32 = 2;
    pub const CODE: u32 = 4;
    pub const CONFORMING_CODE: u32 = CODE | GROWS_DOWN;
    pub const READ_ONLY: u32 = 8;
    pub const IN_PAGES: u32 = 16;
    pub const NOT_PRESENT: u32 = 32;
    pub const AVAILABLE: u32 = 64;
    /// All that a 32-bit program can set.
    pub const ALL: u32 = 127;
    /// Of an empty place.
    pub const EMPTY: u32 = READ_ONLY | NOT_PRESENT;
}

impl Descriptor {
    /// Reads the structure of `set_thread_area`.
    ///
    /// # Errors
    /// `EINVAL` for anything but a 32-bit data segment that is present.
    pub fn decode(words: [u32; 4]) -> Result<Descriptor> {
        let [number, base, limit, flags] = words;
        let known = flags & bits::ALL;
        if base == 0 && limit == 0 && (known == bits::EMPTY || known == 0) {
            return Ok(Descriptor {
                number: number as i32,
                segment: None,
            });
        }
        if flags & bits::CONTENTS > bits::GROWS_DOWN || flags & bits::NOT_PRESENT != 0 {
            return Err(Errno::EINVAL);
        }
        Descriptor::of(words)
    }

    /// Reads the structure of `modify_ldt`; `is_old`: of its first version, which knows neither
    /// conforming code nor the bit without a meaning.
    ///
    /// # Errors
    /// `EINVAL` for a number that is too high, 16-bit segments, and conforming code that is
    /// present. The bit of 64-bit code is ignored, as on Linux.
    pub fn decode_local(words: [u32; 4], is_old: bool) -> Result<Descriptor> {
        let [number, base, limit, flags] = words;
        if number as usize >= LOCAL_SEGMENTS {
            return Err(Errno::EINVAL);
        }
        let is_conforming = flags & bits::CONTENTS == bits::CONFORMING_CODE;
        if is_conforming && (is_old || flags & bits::NOT_PRESENT == 0) {
            return Err(Errno::EINVAL);
        }
        let is_empty = flags & bits::ALL == bits::EMPTY || is_old;
        if base == 0 && limit == 0 && is_empty {
            return Ok(Descriptor {
                number: number as i32,
                segment: None,
            });
        }
        let mut descriptor = Descriptor::of(words)?;
        if let Some(segment) = &mut descriptor.segment {
            segment.available &= !is_old;
        }
        Ok(descriptor)
    }

    /// Reads a structure that describes a segment.
    fn of([number, base, limit, flags]: [u32; 4]) -> Result<Descriptor> {
        let has = |bit| flags & bit != 0;
        // The processor would leave a part of the kernel's stack pointer to a program whose stack
        // segment has 16 bits.
        if !has(bits::IS_32_BITS) {
            return Err(Errno::EINVAL);
        }
        Ok(Descriptor {
            number: number as i32,
            segment: Some(Segment {
                base,
                limit: limit & 0xf_ffff,
                in_pages: has(bits::IN_PAGES),
                is_code: has(bits::CODE),
                writable: !has(bits::READ_ONLY),
                grows_down: has(bits::GROWS_DOWN),
                available: has(bits::AVAILABLE),
                is_absent: has(bits::NOT_PRESENT),
            }),
        })
    }

    /// The words of the structure.
    pub fn encode(&self) -> [u32; 4] {
        let number = self.number as u32;
        let Some(segment) = self.segment else {
            return [number, 0, 0, bits::EMPTY];
        };
        let flags = [
            (true, bits::IS_32_BITS),
            (segment.grows_down, bits::GROWS_DOWN),
            (!segment.writable, bits::READ_ONLY),
            (segment.in_pages, bits::IN_PAGES),
            (segment.available, bits::AVAILABLE),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).map(|(_, bit)| bit);
        [number, segment.base, segment.limit, flags.sum()]
    }
}

/// The place of the segment `number` among the thread's own.
///
/// # Errors
/// `EINVAL` for one that is not a thread's.
pub fn place(number: i32) -> Result<usize> {
    usize::try_from(number)
        .ok()
        .and_then(|number| number.checked_sub(FIRST_TLS_SEGMENT))
        .filter(|n| *n < TLS_SEGMENTS)
        .map(|n| speculation::mask_index(n, TLS_SEGMENTS))
        .ok_or(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_segments_are_those_of_linux_without_16_bit_ones() {
        let decode = |flags, is_old| Descriptor::decode_local([3, 0x1000, 7, flags], is_old);
        // Code, expand-down data, and the bit of 64-bit code, which does not count.
        let code = decode(0x85, false).unwrap().segment.unwrap();
        assert!(code.is_code && code.writable && !code.is_absent);
        let down = decode(0x53, false).unwrap().segment.unwrap();
        assert!(down.grows_down && !down.is_code && down.available);
        assert!(!decode(0x53, true).unwrap().segment.unwrap().available);
        // Absent, and conforming code only so.
        assert!(decode(0x21, false).unwrap().segment.unwrap().is_absent);
        assert!(decode(0x27, false).is_ok());
        for (flags, is_old) in [(0x07, false), (0x27, true), (0x10, false), (0x04, false)] {
            assert_eq!(decode(flags, is_old), Err(Errno::EINVAL), "{flags:#x}");
        }
        let empty = |words, is_old| Descriptor::decode_local(words, is_old).map(|it| it.segment);
        assert_eq!(empty([3, 0, 0, 0x28], false), Ok(None));
        assert_eq!(empty([3, 0, 0, 0x51], true), Ok(None));
        assert_eq!(empty([3, 0, 0, 0], false), Err(Errno::EINVAL));
        assert_eq!(empty([512, 0, 0, 0x28], false), Err(Errno::EINVAL));
        assert_eq!(empty([u32::MAX, 0, 0, 0x28], false), Err(Errno::EINVAL));
    }

    #[test]
    fn what_is_set_is_what_is_got() {
        // As the C library asks for its thread's own segment.
        let words = [12, 0xf7d0_1234, 0xf_ffff, 0x51];
        let descriptor = Descriptor::decode(words).unwrap();
        assert_eq!(descriptor.encode(), words);
        assert_eq!(place(descriptor.number), Ok(0));
        for empty in [[13, 0, 0, 0], [13, 0, 0, 0x28]] {
            assert_eq!(Descriptor::decode(empty).unwrap().segment, None);
        }
        for bad in [0x50, 0x55, 0x71] {
            assert_eq!(Descriptor::decode([12, 1, 1, bad]), Err(Errno::EINVAL));
        }
        assert_eq!(place(11), Err(Errno::EINVAL));
        assert_eq!(place(15), Err(Errno::EINVAL));
        assert_eq!(place(-1), Err(Errno::EINVAL));
    }
}
