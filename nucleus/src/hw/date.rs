//! Dates of the Gregorian calendar, as clocks keep them.

/// A date and a time of day, to the second: a day that exists, in a year from 1970 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Date {
    /// From 1970 to 9999.
    pub year: u32,
    /// From 1 on.
    pub month: u32,
    /// From 1 on.
    pub day: u32,
    /// From 0 to 23.
    pub hour: u32,
    /// From 0 to 59.
    pub minute: u32,
    /// From 0 to 59.
    pub second: u32,
}

const FIRST_YEAR: u32 = 1970;
const LAST_YEAR: u32 = 9999;
const SECONDS_A_DAY: u64 = 24 * 60 * 60;
/// Days from the first of March of the year 0 to 1970-01-01.
const EPOCH: u64 = 719_468;
/// Days of 400 years.
const DAYS_AN_ERA: u64 = 146_097;

impl Date {
    /// The last second of the last year.
    pub const LAST: Date = Date {
        year: LAST_YEAR,
        month: 12,
        day: 31,
        hour: 23,
        minute: 59,
        second: 59,
    };

    /// Whether there is such a date.
    pub fn is_valid(&self) -> bool {
        (FIRST_YEAR..=LAST_YEAR).contains(&self.year)
            && (1..=12).contains(&self.month)
            && (1..=days_of(self.year, self.month)).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            && self.second < 60
    }

    /// The nearest date that there is, field by field: for a clock that holds nonsense.
    pub fn clamped(self) -> Date {
        let year = self.year.clamp(FIRST_YEAR, LAST_YEAR);
        let month = self.month.clamp(1, 12);
        Date {
            year,
            month,
            day: self.day.clamp(1, days_of(year, month)),
            hour: self.hour.min(23),
            minute: self.minute.min(59),
            second: self.second.min(59),
        }
    }

    /// Seconds since the Unix epoch; those of the nearest date if there is no such date.
    pub fn seconds(self) -> u64 {
        let date = self.clamped();
        // Years that begin in March put the leap day at their end.
        let (year, month) = match date.month {
            3.. => (u64::from(date.year), u64::from(date.month - 3)),
            _ => (u64::from(date.year - 1), u64::from(date.month + 9)),
        };
        let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5;
        let days = days + u64::from(date.day) - 1 - EPOCH;
        let of_day = (date.hour * 60 + date.minute) * 60 + date.second;
        days * SECONDS_A_DAY + u64::from(of_day)
    }

    /// The date so many seconds after the Unix epoch; [`LAST`](Date::LAST) for later ones.
    pub fn after_epoch(seconds: u64) -> Date {
        if seconds > Date::LAST.seconds() {
            return Date::LAST;
        }
        let days = seconds / SECONDS_A_DAY + EPOCH;
        let of_day = (seconds % SECONDS_A_DAY) as u32;
        let (era, of_era) = (days / DAYS_AN_ERA, days % DAYS_AN_ERA);
        // Leap days before it in its era are left out: each year then has 365 days.
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let in_next = month >= 10;
        Date {
            year: (era * 400 + year) as u32 + u32::from(in_next),
            month: (month as u32 + 2) % 12 + 1,
            day: day as u32,
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }

    /// Days since Sunday.
    pub fn weekday(self) -> u32 {
        // The epoch was a Thursday.
        ((self.seconds() / SECONDS_A_DAY + 4) % 7) as u32
    }

    /// Days since the first of January.
    pub fn day_of_year(self) -> u32 {
        let first = Date {
            month: 1,
            day: 1,
            ..self
        };
        ((self.seconds() - first.seconds()) / SECONDS_A_DAY) as u32
    }
}

fn days_of(year: u32, month: u32) -> u32 {
    let leaps = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u32::from(leaps),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(year: u32, month: u32, day: u32) -> Date {
        Date {
            year,
            month,
            day,
            hour: 1,
            minute: 2,
            second: 3,
        }
    }

    #[test]
    fn dates_and_seconds_say_the_same() {
        // As `date -u -d … +%s` says.
        for (it, seconds) in [
            (date(1970, 1, 1), 3723),
            (date(2000, 2, 29), 951_786_123),
            (date(2000, 3, 1), 951_872_523),
            (date(2026, 11, 24), 1_795_482_123),
            (date(2100, 2, 28), 4_107_459_723),
            (date(2100, 3, 1), 4_107_546_123),
        ] {
            assert_eq!((it.seconds(), Date::after_epoch(seconds)), (seconds, it));
        }
        let mut before = Date::after_epoch(0);
        for day in 1..200_000 {
            let next = Date::after_epoch(day * SECONDS_A_DAY);
            assert!(
                next.is_valid() && next.seconds() == day * SECONDS_A_DAY,
                "{next:?}"
            );
            assert_eq!(next.weekday(), (before.weekday() + 1) % 7);
            let follows = match next.day_of_year() {
                0 => next.year == before.year + 1,
                day => next.year == before.year && day == before.day_of_year() + 1,
            };
            assert!(follows, "{before:?} {next:?}");
            before = next;
        }
        assert_eq!(date(2026, 11, 24).weekday(), 2);
        assert_eq!(Date::after_epoch(u64::MAX), Date::LAST);
    }

    #[test]
    fn a_date_that_there_is_not_is_the_nearest() {
        for it in [
            date(2023, 2, 29),
            date(2023, 0, 1),
            date(2023, 4, 31),
            date(1969, 1, 1),
        ] {
            assert!(!it.is_valid() && it.clamped().is_valid(), "{it:?}");
        }
        assert_eq!(date(2023, 2, 31).clamped(), date(2023, 2, 28));
        let late = Date {
            hour: 24,
            ..date(2024, 2, 29)
        };
        assert!(!late.is_valid() && date(2024, 2, 29).is_valid());
    }
}
