//! How many queues there may be, and how large.

use alloc::sync::Arc;

use abi::{Errno, Result};
use vm::account::{Account, Charge, Kind};

use crate::ipc::setting::Setting;

/// The most that a privileged program may ask for: messages of a queue, and bytes of a message.
const HARD_MESSAGES: u64 = 65_536;
const HARD_BYTES: u64 = 16 << 20;
/// The least that the settings can be.
const LEAST_MESSAGES: u64 = 1;
const LEAST_BYTES: u64 = 128;

/// Queues of all users together.
pub static QUEUES_MAX: Setting = Setting::new(256, i32::MAX as u64);
/// Messages of a queue, and bytes of a message.
pub static MSG_MAX: Setting = Setting::between(10, LEAST_MESSAGES, HARD_MESSAGES);
pub static MSGSIZE_MAX: Setting = Setting::between(8192, LEAST_BYTES, HARD_BYTES);
/// The size of a queue whose maker gives none.
pub static MSG_DEFAULT: Setting = Setting::between(10, LEAST_MESSAGES, HARD_MESSAGES);
pub static MSGSIZE_DEFAULT: Setting = Setting::between(8192, LEAST_BYTES, HARD_BYTES);

/// Priorities are below this.
pub const PRIORITIES: u32 = 32_768;
/// Linux's accounting for keeping a message, and for each priority in use.
const MESSAGE_COST: u64 = 48;
const PRIORITY_COST: u64 = 48;

/// How many messages a queue holds, and the most bytes of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    pub messages: usize,
    pub bytes: usize,
}

impl Size {
    /// Returns the size of a queue whose maker gives none.
    pub fn usual() -> Size {
        Size {
            messages: MSG_MAX.get().min(MSG_DEFAULT.get()) as usize,
            bytes: MSGSIZE_MAX.get().min(MSGSIZE_DEFAULT.get()) as usize,
        }
    }

    /// As a program asks for it.
    ///
    /// # Errors
    /// `EINVAL` for figures that are not positive or exceed the settings, or fixed limits with
    /// `privilege`.
    pub fn asked(messages: i64, bytes: i64, privilege: bool) -> Result<Size> {
        let (most, longest) = match privilege {
            true => (HARD_MESSAGES, HARD_BYTES),
            false => (MSG_MAX.get(), MSGSIZE_MAX.get()),
        };
        let within = |value: i64, most: u64| {
            u64::try_from(value)
                .ok()
                .filter(|value| (1..=most).contains(value))
                .ok_or(Errno::EINVAL)
        };
        Ok(Size {
            messages: within(messages, most)? as usize,
            bytes: within(bytes, longest)? as usize,
        })
    }

    /// Charges a queue to `account`, whose user's queues may take `limit` bytes together.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn charge(self, account: &Arc<Account>, limit: u64) -> Result<Charge> {
        // The things are bytes, so that the limit is one of bytes.
        let cost = self.cost() as usize;
        let charge = account.charge_within(Kind::PosixQueues, cost, cost, limit as usize);
        charge.ok_or(Errno::EMFILE)
    }

    /// Returns the bytes that it counts against `RLIMIT_MSGQUEUE`.
    fn cost(self) -> u64 {
        let messages = self.messages as u64;
        let priorities = messages.min(u64::from(PRIORITIES));
        messages * (MESSAGE_COST + self.bytes as u64) + priorities * PRIORITY_COST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked() {
        let size = |messages, bytes| Size { messages, bytes };
        assert_eq!(Size::asked(10, 8192, false), Ok(size(10, 8192)));
        for (messages, bytes) in [(0, 1), (1, 0), (-1, 1), (11, 1), (1, 8193)] {
            assert_eq!(Size::asked(messages, bytes, false), Err(Errno::EINVAL));
        }
        assert_eq!(Size::asked(11, 8193, true), Ok(size(11, 8193)));
        assert_eq!(Size::asked(65_537, 1, true), Err(Errno::EINVAL));
    }
}
