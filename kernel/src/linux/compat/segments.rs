//! The segments that threads of 32-bit programs set for themselves.

use abi::{Errno, Result, raw::general as raw};
use nucleus::trap::{FIRST_TLS_SEGMENT, Segment, TLS_SEGMENTS};

use super::{Call, Row, give, shim};

pub(super) const CALLS: &[Row] = &[
    shim(243, raw::__NR_set_thread_area, set),
    shim(244, raw::__NR_get_thread_area, get),
];

/// A `struct user_desc`: number, base, limit, and bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor {
    number: i32,
    /// None where the structure stands for an empty place.
    pub segment: Option<Segment>,
}

/// The bits of a `struct user_desc`.
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
    fn encode(&self) -> [u32; 4] {
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

    /// Which of a thread's own segments it is about.
    ///
    /// # Errors
    /// `EINVAL` for one that is not a thread's.
    pub fn place(&self) -> Result<usize> {
        place(self.number)
    }
}

fn place(number: i32) -> Result<usize> {
    usize::try_from(number)
        .ok()
        .and_then(|number| number.checked_sub(FIRST_TLS_SEGMENT))
        .filter(|n| *n < TLS_SEGMENTS)
        .ok_or(Errno::EINVAL)
}

/// `set_thread_area`: number -1 asks for a free one, and hears which.
fn set(call: &mut Call<'_>) -> Result<usize> {
    let words: [u32; 4] = call.read(0)?;
    let descriptor = Descriptor::decode(words)?;
    let n = match descriptor.number {
        -1 => {
            let free = (0..TLS_SEGMENTS).find(|n| call.context.segment(*n).is_none());
            let n = free.ok_or(Errno::ESRCH)?;
            give(call.address(0), &((FIRST_TLS_SEGMENT + n) as u32))?;
            n
        }
        number => place(number)?,
    };
    call.context.set_segment(n, descriptor.segment);
    Ok(0)
}

fn get(call: &mut Call<'_>) -> Result<usize> {
    let number: i32 = call.read(0)?;
    let segment = call.context.segment(place(number)?);
    let descriptor = Descriptor { number, segment };
    call.write(0, &descriptor.encode())?;
    Ok(0)
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
        assert_eq!(descriptor.place(), Ok(0));
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
