//! Indices that programs choose, kept in range where the CPU only guesses that a check passed
//! (Spectre's variant 1): what depends on such an index must not be loaded from beyond the table.
//!
//! The comparison's outcome becomes a part of the index, by instructions that the compiler cannot
//! turn into a branch.

use core::arch::asm;

/// Returns `index` if it is below `len`, else 0: also while the CPU executes what follows a check
/// of it that will turn out to have failed.
#[inline(always)]
pub fn mask_index(index: usize, len: usize) -> usize {
    let mask: usize;
    // SAFETY: computes with registers.
    unsafe {
        asm!("cmp {index}, {len}", "sbb {mask}, {mask}", index = in(reg) index, len = in(reg) len,
            mask = lateout(reg) mask, options(pure, nomem, nostack));
    }
    index & mask
}

/// Returns the element at `index`, which a program chose.
#[inline(always)]
pub fn get<T>(slice: &[T], index: usize) -> Option<&T> {
    if index >= slice.len() {
        return None;
    }
    let index = mask_index(index, slice.len());
    // SAFETY: the index as it was, or 0; the slice is not empty.
    Some(unsafe { slice.get_unchecked(index) })
}

/// Returns the element at `index`, which a program chose, to be changed.
#[inline(always)]
pub fn get_mut<T>(slice: &mut [T], index: usize) -> Option<&mut T> {
    if index >= slice.len() {
        return None;
    }
    let index = mask_index(index, slice.len());
    // SAFETY: the index as it was, or 0; the slice is not empty.
    Some(unsafe { slice.get_unchecked_mut(index) })
}

/// Returns `slice` from `index` on, where a program chose to begin: empty for an index beyond it.
#[inline(always)]
pub fn rest<T>(slice: &[T], index: usize) -> &[T] {
    // SAFETY: at most the length.
    unsafe { slice.get_unchecked(at_most(index, slice.len())..) }
}

/// Returns the lesser of the two, without a branch.
#[inline(always)]
fn at_most(index: usize, most: usize) -> usize {
    let mut index = index;
    // SAFETY: computes with registers.
    unsafe {
        asm!("cmp {index}, {most}", "cmova {index}, {most}", index = inlateout(reg) index,
            most = in(reg) most, options(pure, nomem, nostack));
    }
    index
}

/// Returns the element at `index`, which a program chose, or the last one for an index beyond it.
/// There is a last one.
#[inline(always)]
pub fn get_or_last<T, const N: usize>(table: &[T; N], index: usize) -> &T {
    const { assert!(N > 0) };
    // SAFETY: at most N - 1.
    unsafe { table.get_unchecked(at_most(index, N - 1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_masked() {
        let table = [10, 11, 12, 13];
        for index in (0..9).chain([usize::MAX, usize::MAX / 2, 1 << 32]) {
            for len in 0..=4 {
                let masked = mask_index(index, len);
                assert_eq!(masked, if index < len { index } else { 0 });
                assert_eq!(get(&table[..len], index), table[..len].get(index));
                let mut copy = table;
                assert_eq!(
                    get_mut(&mut copy[..len], index).copied(),
                    table[..len].get(index).copied()
                );
                assert_eq!(rest(&table[..len], index), &table[index.min(len)..len]);
            }
            assert_eq!(*get_or_last(&table, index), table[index.min(3)]);
        }
    }
}
