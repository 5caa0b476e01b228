//! The real-time clock: the date that runs on while the machine is off.

use crate::hw::{date::Date, machine};
use crate::lock::{Rank, SpinLock};

/// Held while the clock's registers are used.
static TURN: SpinLock<()> = SpinLock::new(Rank::Leaf, ());

/// Returns the clock's date; `None` while it changes, for 2 ms at most in each second. It is taken
/// as it stands: whether it is in UTC is for the programs to know.
pub fn read() -> Option<Date> {
    let _turn = TURN.lock();
    machine::date()
}

/// Sets the clock; its next second begins half a second later. Returns false, and changes nothing,
/// if it can't hold that date.
#[must_use]
pub fn set(date: &Date) -> bool {
    let _turn = TURN.lock();
    machine::set_date(date)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Config, run};

    #[test]
    fn a_date_that_is_set_is_read_and_goes_on() {
        let body = || {
            let start = read().expect("it changes in no time");
            assert!(start.is_valid());
            let date = Date {
                year: 2031,
                ..start
            };
            assert!(set(&date));
            let now = read().expect("it changes in no time").seconds();
            assert!((date.seconds()..date.seconds() + 60).contains(&now));
            let wrong = Date { month: 13, ..date };
            assert!(!set(&wrong));
            assert_eq!(read().map(|now| now.year), Some(2031));
        };
        run(Config::default(), body).unwrap();
    }
}
