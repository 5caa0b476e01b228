//! Reaching, zeroing and copying pages; the latter by string instructions and by vector registers.

use alloc::vec::Vec;
use core::arch::asm;
use core::hint::black_box;

use super::super::{Kind, Measure};
use super::{UNROLLED, undisturbed};
use crate::frame::{self, Contents};
use crate::{Frame, OutOfMemory, PAGE_SIZE, ephemeral};

/// Pages of each of the two buffers that the first cache of every CPU holds: 16 KiB.
const CACHED: usize = 4;
/// Pages of each of the two buffers that go round in memory: 32 MiB.
const UNCACHED: usize = (32 << 20) / PAGE_SIZE;
/// Of the free memory, the buffers take this part at most.
const PART: usize = 16;
/// Bytes in a line of the caches.
const LINE: usize = 64;
/// Pages that are copied between two looks at whether the caches must be emptied: a batch lasts no
/// longer, so that interrupts wait for a fraction of a millisecond.
const MOST: u64 = 64;

/// Measures zeroing, copying and the bandwidths.
pub fn measure(measure: &mut Measure<'_>) -> Result<(), OutOfMemory> {
    let small = Buffers::new(CACHED)?;
    let (to, from) = (&small.to[0], &small.from[0]);
    measure(
        "page_zero",
        Kind::Time,
        &mut [
            &mut repeated(|| zero_by_words(to)),
            &mut repeated(|| zero_by_vectors(to)),
        ],
    );
    measure(
        "page_copy",
        Kind::Time,
        &mut [
            &mut repeated(|| copy_by_words(to, from)),
            &mut repeated(|| copy_by_vectors(to, from)),
        ],
    );
    measure(
        "word_by_pointer",
        Kind::Time,
        &mut [&mut repeated(|| read_word(black_box(to.bytes())))],
    );
    measure(
        "word_by_mapping",
        Kind::Time,
        &mut [&mut repeated(|| {
            read_word(ephemeral::map(black_box(to)).at(0, size_of::<u64>()));
        })],
    );
    let page = Kind::Rate(PAGE_SIZE as u64);
    measure(
        "memcpy_cached",
        page,
        &mut [
            &mut |n| undisturbed(|| small.copy(0, n as usize, copy_by_words)),
            &mut |n| undisturbed(|| small.copy(0, n as usize, copy_by_vectors)),
        ],
    );
    drop(small);
    let large = Buffers::new(UNCACHED.min(frame::usage().free / PART / 2).max(CACHED))?;
    let mut at = [0, large.to.len() / 2];
    let [words, vectors] = &mut at;
    measure(
        "memcpy_uncached",
        page,
        &mut [
            &mut |n| large.copy_out_of_cache(words, n, copy_by_words),
            &mut |n| large.copy_out_of_cache(vectors, n, copy_by_vectors),
        ],
    );
    Ok(())
}

/// A batch of an operation.
fn repeated(operation: impl Fn()) -> impl FnMut(u64) -> u64 {
    move |n| undisturbed(|| (0..n).for_each(|_| operation()))
}

/// Pages to copy from, and as many to copy to.
struct Buffers {
    from: Vec<Frame>,
    to: Vec<Frame>,
}

impl Buffers {
    /// Of so many pages each, all written once.
    fn new(pages: usize) -> Result<Buffers, OutOfMemory> {
        let fill = || {
            let mut frames = crate::try_vec(pages)?;
            for _ in 0..pages {
                frames.push(Frame::alloc_direct(Contents::Zeroed)?);
            }
            Ok(frames)
        };
        Ok(Buffers {
            from: fill()?,
            to: fill()?,
        })
    }

    /// Pairs of pages from the `at`th on, round and round.
    fn pairs(&self, at: usize) -> impl Iterator<Item = (&Frame, &Frame)> {
        self.to.iter().zip(&self.from).cycle().skip(at)
    }

    /// Copies `n` pages from the `at`th on.
    #[inline]
    fn copy(&self, at: usize, n: usize, copy: impl Fn(&Frame, &Frame)) {
        self.pairs(at).take(n).for_each(|(to, from)| copy(to, from));
    }

    /// Copies `n` pages from the `at`th on, of which no cache has anything, and moves `at` on.
    fn copy_out_of_cache(&self, at: &mut usize, n: u64, copy: fn(&Frame, &Frame)) -> u64 {
        let mut took = 0;
        let mut left = n;
        while left > 0 {
            let part = left.min(MOST) as usize;
            for (to, from) in self.pairs(*at).take(part) {
                forget(to);
                forget(from);
            }
            took += undisturbed(|| self.copy(*at, part, copy));
            *at = (*at + part) % self.to.len();
            left -= part as u64;
        }
        took
    }
}

/// Takes a page out of all caches.
fn forget(frame: &Frame) {
    for line in (0..PAGE_SIZE).step_by(LINE) {
        // SAFETY: a line of the page; what it holds stays.
        unsafe {
            let line = frame.bytes().add(line);
            asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
        };
    }
    // SAFETY: waits until all of them are out.
    unsafe { asm!("mfence", options(nostack, preserves_flags)) };
}

fn read_word(from: *const u8) {
    // SAFETY: an aligned word of a page that is the caller's, and mapped.
    unsafe { from.cast::<u64>().read_volatile() };
}

fn zero_by_words(to: &Frame) {
    // SAFETY: writes one page, which is the caller's.
    unsafe {
        asm!("rep stosq", inout("rdi") to.bytes() => _, inout("rcx") PAGE_SIZE / 8 => _,
            in("rax") 0, options(nostack, preserves_flags));
    }
}

fn copy_by_words(to: &Frame, from: &Frame) {
    // SAFETY: writes one page and reads another, which are the caller's.
    unsafe {
        asm!("rep movsq", inout("rdi") to.bytes() => _, inout("rsi") from.bytes() => _,
            inout("rcx") PAGE_SIZE / 8 => _, options(nostack, preserves_flags));
    }
}

/// As [`zero_by_words`], for a CPU with interrupts off: the vector register is some program's, and
/// gets its value back.
fn zero_by_vectors(to: &Frame) {
    // SAFETY: writes one page, which is the caller's, and a place on the stack; nothing else uses
    // the register meanwhile.
    unsafe {
        asm!(
            "sub rsp, 16",
            "movups [rsp], xmm0",
            "xorps xmm0, xmm0",
            "2:",
            ".set at, 0",
            ".rept {unrolled}",
            "movaps [{to} + at], xmm0",
            ".set at, at + 16",
            ".endr",
            "add {to}, {unrolled} * 16",
            "dec {left:e}",
            "jnz 2b",
            "movups xmm0, [rsp]",
            "add rsp, 16",
            to = inout(reg) to.bytes() => _,
            left = inout(reg) PAGE_SIZE as u32 / (UNROLLED as u32 * 16) => _,
            unrolled = const UNROLLED,
        );
    }
}

/// As [`copy_by_words`], for a CPU with interrupts off.
fn copy_by_vectors(to: &Frame, from: &Frame) {
    // SAFETY: as in `zero_by_vectors`; reads another page, which is the caller's too.
    unsafe {
        asm!(
            "sub rsp, 32",
            "movups [rsp], xmm0",
            "movups [rsp + 16], xmm1",
            "2:",
            ".set at, 0",
            ".rept {unrolled} / 2",
            "movaps xmm0, [{from} + at]",
            "movaps xmm1, [{from} + at + 16]",
            "movaps [{to} + at], xmm0",
            "movaps [{to} + at + 16], xmm1",
            ".set at, at + 32",
            ".endr",
            "add {from}, {unrolled} * 16",
            "add {to}, {unrolled} * 16",
            "dec {left:e}",
            "jnz 2b",
            "movups xmm0, [rsp]",
            "movups xmm1, [rsp + 16]",
            "add rsp, 32",
            to = inout(reg) to.bytes() => _,
            from = inout(reg) from.bytes() => _,
            left = inout(reg) PAGE_SIZE as u32 / (UNROLLED as u32 * 16) => _,
            unrolled = const UNROLLED,
        );
    }
}
