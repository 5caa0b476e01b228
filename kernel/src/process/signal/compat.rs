//! `siginfo_t` as 32-bit programs have it.

use abi::raw::general as raw;

/// Words of the 32-bit structure.
pub const WORDS: usize = 32;

/// Which fields belong to a signal and its code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    Sender,
    Value,
    Timer,
    Child,
    Fault,
    Poll,
    SystemCall,
}

fn layout(signal: u32, code: i32) -> Layout {
    const SI_TIMER: i32 = raw::SI_TIMER;
    const SI_SIGIO: i32 = raw::SI_SIGIO;
    const SI_TKILL: i32 = raw::SI_TKILL;
    const SI_KERNEL: i32 = raw::SI_KERNEL as i32;
    match (code, signal) {
        (SI_TIMER, _) => Layout::Timer,
        (SI_SIGIO, _) => Layout::Poll,
        (0 | SI_TKILL | SI_KERNEL, _) => Layout::Sender,
        (..0, _) => Layout::Value,
        (_, raw::SIGCHLD) => Layout::Child,
        (_, raw::SIGPOLL) => Layout::Poll,
        (_, raw::SIGSYS) => Layout::SystemCall,
        (_, raw::SIGILL | raw::SIGFPE | raw::SIGSEGV | raw::SIGBUS | raw::SIGTRAP) => Layout::Fault,
        _ => Layout::Sender,
    }
}

/// From the words of the 64-bit structure. Pointers and times lose their upper halves.
pub fn narrow(wide: &[u64; 16]) -> [u32; WORDS] {
    let low = |word: u64| word as u32;
    let high = |word: u64| (word >> 32) as u32;
    let mut words = [0; WORDS];
    // Number, error, code.
    words[0] = low(wide[0]);
    words[1] = high(wide[0]);
    words[2] = low(wide[1]);
    match layout(words[0], words[2] as i32) {
        Layout::Sender => (words[3], words[4]) = (low(wide[2]), high(wide[2])),
        Layout::Value | Layout::Timer => {
            (words[3], words[4], words[5]) = (low(wide[2]), high(wide[2]), low(wide[3]));
        }
        Layout::Child => {
            // Process, user, status, two times.
            (words[3], words[4], words[5]) = (low(wide[2]), high(wide[2]), low(wide[3]));
            (words[6], words[7]) = (low(wide[4]), low(wide[5]));
        }
        Layout::Fault => words[3] = low(wide[2]),
        // The band, a descriptor.
        Layout::Poll => (words[3], words[4]) = (low(wide[2]), low(wide[3])),
        Layout::SystemCall => {
            (words[3], words[4], words[5]) = (low(wide[2]), low(wide[3]), high(wide[3]));
        }
    }
    words
}

/// Converts the argument of `rt_sigqueueinfo` to the words of the 64-bit structure.
pub fn widen(words: &[u32; WORDS]) -> [u64; 16] {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let mut wide = [0; 16];
    wide[0] = pair(words[0], words[1]);
    wide[1] = u64::from(words[2]);
    wide[2] = pair(words[3], words[4]);
    wide[3] = u64::from(words[5]);
    wide
}

#[cfg(test)]
mod tests {
    use super::super::{Fields, Info};
    use super::*;

    #[test]
    fn fields_keep_their_meaning() {
        let fault = Info::fault(raw::SIGSEGV, raw::SEGV_MAPERR, 0x8000_1234).encode();
        assert_eq!(narrow(&fault)[..4], [11, 0, 1, 0x8000_1234]);
        let fields = Fields::Child {
            pid: 7,
            uid: 8,
            status: 9,
            user: 10,
            system: 11,
        };
        let child = Info::new(raw::SIGCHLD, raw::CLD_EXITED as i32, fields);
        assert_eq!(narrow(&child.encode())[2..8], [1, 7, 8, 9, 10, 11]);
        let user = Info::user(raw::SIGUSR1, 5, 6).encode();
        assert_eq!(narrow(&user)[..5], [10, 0, 0, 5, 6]);
        let mut given = [0; WORDS];
        given[..6].copy_from_slice(&[12, 0, -1i32 as u32, 3, 4, 0xdead_beef]);
        assert_eq!(narrow(&widen(&given)), given);
    }
}
