//! The first page of a swap space, as `mkswap` writes it.

use alloc::vec::Vec;

use abi::{Errno, Result};
use nucleus::PAGE_SIZE;

/// Where the words stand: the version, the last page, how many bad pages, and which.
const VERSION: usize = 1024;
const LAST_PAGE: usize = 1028;
const BAD_COUNT: usize = 1032;
const BAD_PAGES: usize = 1536;
/// The page ends with this.
const MAGIC: &[u8] = b"SWAPSPACE2";
/// Bad pages that there is room for.
const MOST_BAD: usize = (PAGE_SIZE - MAGIC.len() - BAD_PAGES) / 4;

/// The contents of the first page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Pages behind the first one.
    pub slots: u64,
    /// Which of them can't be used, from 0 on.
    pub bad: Vec<u64>,
}

impl Header {
    /// No slots: the state before the first page was read.
    pub const fn none() -> Header {
        Header {
            slots: 0,
            bad: Vec::new(),
        }
    }

    /// Reads it of a device or file that has `pages` pages.
    ///
    /// # Errors
    /// `EINVAL` if it is no such header, or has impossible figures, as more pages than there are;
    /// `ENOMEM`.
    pub fn read(page: &[u8; PAGE_SIZE], pages: u64) -> Result<Header> {
        if !page.ends_with(MAGIC) {
            return Err(Errno::EINVAL);
        }
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&page[at..at + 4]);
            u32::from_le_bytes(bytes)
        };
        let (last, count) = (u64::from(word(LAST_PAGE)), word(BAD_COUNT) as usize);
        if word(VERSION) != 1 || last == 0 || last >= pages || count > MOST_BAD {
            return Err(Errno::EINVAL);
        }
        let mut bad = nucleus::try_vec(count)?;
        for i in 0..count {
            let number = u64::from(word(BAD_PAGES + 4 * i));
            if !(1..=last).contains(&number) {
                return Err(Errno::EINVAL);
            }
            bad.push(number - 1);
        }
        Ok(Header { slots: last, bad })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(words: &[(usize, u32)]) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        page[PAGE_SIZE - MAGIC.len()..].copy_from_slice(MAGIC);
        for &(at, word) in words {
            page[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        page
    }

    #[test]
    fn a_header_says_how_many_slots_there_are() {
        let plain = page(&[(VERSION, 1), (LAST_PAGE, 99)]);
        let header = Header::read(&plain, 100).expect("a header");
        assert_eq!((header.slots, header.bad.len()), (99, 0));
        let damaged = [
            (VERSION, 1),
            (LAST_PAGE, 9),
            (BAD_COUNT, 2),
            (BAD_PAGES, 9),
            (BAD_PAGES + 4, 1),
        ];
        assert_eq!(Header::read(&page(&damaged), 50).expect("one").bad, [8, 0]);
    }

    #[test]
    fn what_can_not_be_is_refused() {
        let mut other = page(&[(VERSION, 1), (LAST_PAGE, 9)]);
        other[PAGE_SIZE - 1] = b'1';
        assert_eq!(Header::read(&other, 100), Err(Errno::EINVAL));
        let least = |words: &[(usize, u32)]| {
            let mut all = [(VERSION, 1), (LAST_PAGE, 9)].to_vec();
            all.extend(words);
            Header::read(&page(&all), 10)
        };
        assert!(least(&[]).is_ok());
        for wrong in [
            &[(VERSION, 0)][..],
            &[(VERSION, 1 << 24)],
            &[(LAST_PAGE, 0)],
            &[(LAST_PAGE, 10)],
            &[(BAD_COUNT, MOST_BAD as u32 + 1)],
            &[(BAD_COUNT, 1), (BAD_PAGES, 0)],
            &[(BAD_COUNT, 1), (BAD_PAGES, 10)],
        ] {
            assert_eq!(least(wrong), Err(Errno::EINVAL), "{wrong:?}");
        }
    }
}
