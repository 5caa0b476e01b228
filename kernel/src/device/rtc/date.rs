//! The clock's date, and dates as rtc(4) has them.

use core::time::Duration;

use abi::{Errno, Result};
use nucleus::{
    Date, rtc,
    task::{self, Sleep},
};

/// How often the clock is read while it changes.
const LOOK: Duration = Duration::from_millis(1);
/// Readings of a clock that changes just now, [`LOOK`] apart; a change takes 2 ms.
const ATTEMPTS: u32 = 20;

pub(super) const SECONDS_A_DAY: u64 = 24 * 60 * 60;

/// `struct rtc_time`: second, minute, hour, day, month from 0 on, year from 1900 on, day of the
/// week, day of the year, and daylight saving.
pub(super) type Fields = [i32; 9];

pub(super) fn fields(date: Date) -> Fields {
    [
        date.second,
        date.minute,
        date.hour,
        date.day,
        date.month - 1,
        date.year - 1900,
        date.weekday(),
        date.day_of_year(),
        0,
    ]
    .map(|field| field as i32)
}

/// Returns the date of these fields.
///
/// # Errors
/// `EINVAL` if there is no such date.
pub(super) fn date([second, minute, hour, day, month, year, ..]: Fields) -> Result<Date> {
    let field = |value: i32, first: u32| {
        let value = u32::try_from(value).map_err(|_| Errno::EINVAL)?;
        value.checked_add(first).ok_or(Errno::EINVAL)
    };
    let date = Date {
        year: field(year, 1900)?,
        month: field(month, 1)?,
        day: field(day, 0)?,
        hour: field(hour, 0)?,
        minute: field(minute, 0)?,
        second: field(second, 0)?,
    };
    date.is_valid().then_some(date).ok_or(Errno::EINVAL)
}

/// The clock's date.
///
/// # Errors
/// `EIO` if it does not stop changing.
pub fn now() -> Result<Date> {
    for _ in 0..ATTEMPTS {
        if let Some(date) = rtc::read() {
            return Ok(date);
        }
        // Either end of the sleep is followed by another look.
        let _ = task::sleep(Sleep::within(LOOK));
    }
    Err(Errno::EIO)
}

/// The time of an alarm that has only a time of day: today, or tomorrow if that is over.
pub(super) fn within_a_day(wanted: Fields, now: Date) -> Result<u64> {
    let [second, minute, hour, ..] = wanted;
    let [.., day, month, year, _, _, _] = fields(now);
    let at = date([second, minute, hour, day, month, year, 0, 0, 0])?.seconds();
    Ok(match at < now.seconds() {
        true => at + SECONDS_A_DAY,
        false => at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 1_700_049_600;

    #[test]
    fn fields_are_those_of_the_manual() {
        let noon = fields(Date::after_epoch(NOON));
        assert_eq!(noon, [0, 0, 12, 15, 10, 123, 3, 318, 0]);
        assert_eq!(date(noon).map(Date::seconds), Ok(NOON));
        for (at, value) in [(0, 60), (1, -1), (2, 24), (3, 0), (3, 31), (4, 12), (5, 69)] {
            let mut wrong = noon;
            wrong[at] = value;
            assert_eq!(date(wrong), Err(Errno::EINVAL), "{at} {value}");
        }
        let now = Date::after_epoch(NOON);
        let mut daily = [-1; 9];
        daily[..3].copy_from_slice(&[5, 0, 12]);
        assert_eq!(within_a_day(daily, now), Ok(NOON + 5));
        daily[2] = 11;
        assert_eq!(
            within_a_day(daily, now),
            Ok(NOON + 5 - 3600 + SECONDS_A_DAY)
        );
    }
}
