//! Whether it is worth that a program's pages change hands (`uvm.txt` 7): one that writes pages
//! which it has lent, or received from others that still have them, pays for a fault and a copy,
//! which is more than a copy alone.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What became of the pages that an address space or a file lent, or of those that an address space
/// received.
#[derive(Default, Debug)]
pub struct History {
    /// Pages that changed hands, and of these written while they had other owners, since the last
    /// judgement.
    moved: AtomicU32,
    broken: AtomicU32,
    /// Pages that are to be copied before the next attempt, and how many it was the last time.
    rest: AtomicU32,
    penalty: AtomicU32,
    /// Pages that changed hands since then.
    since: AtomicU32,
}

/// Pages after which the history is judged: those of one step of a transfer, so that one bad step
/// ends the attempt. Other values were not measured.
const SAMPLE: u32 = 16;
/// The least and the most pages that are copied before the next attempt. By instructions, a least
/// of 256 costs `file/write-new-1MiB` 3%, and gains no row whose pages are all written. The most
/// was not measured: an attempt of 16 pages is 0.1% of it.
const LEAST_REST: u32 = 1 << 10;
const MOST_REST: u32 = 1 << 14;
/// Pages that change hands before the next bad judgement is taken for a first one: more than one
/// large call moves, whose pages a program writes only after it.
/// By instructions, none of these costs `unix-socket/stream-bandwidth-1MiB` 28%, its `-filled` 12%,
/// and `file/write-new-1MiB` 11%.
const PROBATION: u32 = 1 << 11;

impl History {
    /// Whether `pages` are to change hands. Threads may count at the same time: the sums are
    /// guesses.
    pub(crate) fn allows(&self, pages: u32) -> bool {
        let rest = self.rest.load(Relaxed);
        if rest > 0 {
            self.rest.store(rest.saturating_sub(pages), Relaxed);
            return false;
        }
        let moved = self.moved.load(Relaxed);
        if moved < SAMPLE {
            if moved == 0 {
                // What was broken before has moved by another history.
                self.broken.store(0, Relaxed);
            }
            self.moved.store(moved + pages.min(SAMPLE), Relaxed);
            return true;
        }
        let broken = self.broken.swap(0, Relaxed);
        if broken.saturating_mul(2) < moved {
            self.moved.store(pages.min(SAMPLE), Relaxed);
            let since = self.since.load(Relaxed).saturating_add(moved);
            self.since.store(since, Relaxed);
            if since >= PROBATION {
                self.penalty.store(0, Relaxed);
            }
            return true;
        }
        self.moved.store(0, Relaxed);
        self.since.store(0, Relaxed);
        let penalty = self.penalty.load(Relaxed);
        let penalty = (penalty * 4).clamp(LEAST_REST, MOST_REST);
        self.penalty.store(penalty, Relaxed);
        self.rest.store(penalty, Relaxed);
        false
    }

    /// Returns how many pages were written since the last judgement.
    pub(crate) fn breaks(&self) -> u32 {
        self.broken.load(Relaxed)
    }

    /// Forgets the pages that were written since there were so many: the kernel did, with what
    /// others had not lent, which says nothing about the program.
    pub(crate) fn forget(&self, breaks: u32) {
        if self.broken.load(Relaxed) > breaks {
            self.broken.store(breaks, Relaxed);
        }
    }

    /// A lent page was written. While all are copied the kernel itself writes the pages that were
    /// received before, which says nothing about the program.
    pub fn broke(&self) {
        if self.rest.load(Relaxed) == 0 {
            self.broken.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of a write, and of a question.
    const WRITE: u32 = 256;
    const STEP: u32 = 16;

    /// Writes so often; returns the pages that were lent. With `writes`, each page that is lent is
    /// written after the call.
    fn write(history: &History, times: u32, writes: bool) -> u32 {
        let mut all = 0;
        for _ in 0..times {
            let steps = (0..WRITE / STEP).filter(|_| history.allows(STEP));
            let lent = STEP * steps.count() as u32;
            all += lent;
            (0..lent).filter(|_| writes).for_each(|_| history.broke());
        }
        all
    }

    #[test]
    fn a_program_that_writes_its_large_buffers_again_has_them_copied() {
        let history = History::default();
        let lent = write(&history, 400, true);
        assert!(lent * 20 < 400 * WRITE, "{lent} of {} pages", 400 * WRITE);
    }

    /// A receiver whose pages are copied over the received ones, which break.
    #[test]
    fn copies_by_the_kernel_are_no_writes_of_the_program() {
        let history = History::default();
        write(&history, 1, true);
        let read = || {
            for _ in 0..WRITE / STEP {
                if !history.allows(STEP) {
                    (0..STEP).for_each(|_| history.broke());
                }
            }
        };
        (0..40).for_each(|_| read());
        assert_eq!(write(&history, 1, false), WRITE);
    }

    /// A receiver whose sender copies for a while, over pages that were lent before.
    #[test]
    fn what_a_sender_copies_is_no_write_of_the_receiver() {
        let history = History::default();
        for _ in 0..10 {
            assert_eq!(write(&history, 1, false), WRITE);
            let breaks = history.breaks();
            (0..WRITE).for_each(|_| history.broke());
            history.forget(breaks);
        }
        // Its own writes count beside them.
        let mut lent = 0;
        for _ in 0..400 {
            lent += write(&history, 1, true);
            let breaks = history.breaks();
            (0..7).for_each(|_| history.broke());
            history.forget(breaks);
        }
        assert!(lent * 20 < 400 * WRITE, "{lent} of {} pages", 400 * WRITE);
    }

    #[test]
    fn a_program_that_has_changed_lends_again() {
        let history = History::default();
        write(&history, 400, true);
        write(&history, 2 * MOST_REST / WRITE, false);
        assert_eq!(write(&history, 10, false), 10 * WRITE);
        // Nor does it rest for long after one buffer of another kind.
        write(&history, 1, true);
        let lent = write(&history, 40, false);
        assert!(lent >= 32 * WRITE, "{lent} pages");
    }
}
