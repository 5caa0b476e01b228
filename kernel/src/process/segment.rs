//! The segments that threads of 32-bit programs set for themselves (`struct user_desc`).

use abi::{Errno, Result};
use nucleus::{
    speculation,
    trap::{FIRST_TLS_SEGMENT, Segment, TLS_SEGMENTS},
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
    pub const READ_ONLY: u32 = 8;
    pub const IN_PAGES: u32 = 16;
    pub const NOT_PRESENT: u32 = 32;
    pub const AVAILABLE: u32 = 64;
    /// All that a 32-bit program can set.
    pub const ALL: u32 = 127;
}

impl Descriptor {
    /// From the words of the structure.
    ///
    /// # Errors
    /// `EINVAL` for anything but a 32-bit data segment that is present.
    pub fn decode(words: [u32; 4]) -> Result<Descriptor> {
        let [number, base, limit, flags] = words;
        let has = |bit| flags & bit != 0;
        let known = flags & bits::ALL;
        let empty = known == bits::READ_ONLY | bits::NOT_PRESENT || known == 0;
        let number = number as i32;
        if base == 0 && limit == 0 && empty {
            return Ok(Descriptor {
                number,
                segment: None,
            });
        }
        if !has(bits::IS_32_BITS)
            || flags & bits::CONTENTS > bits::GROWS_DOWN
            || has(bits::NOT_PRESENT)
        {
            return Err(Errno::EINVAL);
        }
        Ok(Descriptor {
            number,
            segment: Some(Segment {
                base,
                limit: limit & 0xf_ffff,
                in_pages: has(bits::IN_PAGES),
                writable: !has(bits::READ_ONLY),
                grows_down: has(bits::GROWS_DOWN),
                available: has(bits::AVAILABLE),
            }),
        })
    }

    /// The words of the structure.
    pub fn encode(&self) -> [u32; 4] {
        let number = self.number as u32;
        let Some(segment) = self.segment else {
            return [number, 0, 0, bits::READ_ONLY | bits::NOT_PRESENT];
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
