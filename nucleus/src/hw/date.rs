//! Dates of the Gregorian calendar, as clocks keep them. The calendar itself is `datealgo`'s.

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

    /// Year, month and day of the nearest date that there is, as the library takes them.
    fn of_calendar(self) -> (i32, u8, u8) {
        let date = self.clamped();
        (date.year as i32, date.month as u8, date.day as u8)
    }

    /// Seconds since the Unix epoch; those of the nearest date if there is no such date.
    pub fn seconds(self) -> u64 {
        let date = self.clamped();
        let of_day = (date.hour * 60 + date.minute) * 60 + date.second;
        // No year is before that of the epoch.
        let days = datealgo::date_to_rd(date.of_calendar()) as u64;
        days * SECONDS_A_DAY + u64::from(of_day)
    }

    /// The date so many seconds after the Unix epoch; [`LAST`](Date::LAST) for later ones.
    pub fn after_epoch(seconds: u64) -> Date {
        let seconds = seconds.min(Date::LAST.seconds());
        let (year, month, day, hour, minute, second) = datealgo::secs_to_datetime(seconds as i64);
        Date {
            year: year as u32,
            month: month.into(),
            day: day.into(),
            hour: hour.into(),
            minute: minute.into(),
            second: second.into(),
        }
    }

    /// Days since Sunday.
    pub fn weekday(self) -> u32 {
        // Its Sunday is 7.
        u32::from(datealgo::date_to_weekday(self.of_calendar())) % 7
    }

    /// Days since the first of January.
    pub fn day_of_year(self) -> u32 {
        let (year, ..) = self.of_calendar();
        let days = [self.of_calendar(), (year, 1, 1)].map(datealgo::date_to_rd);
        (days[0] - days[1]) as u32
    }
}

/// Days of a month that there is.
fn days_of(year: u32, month: u32) -> u32 {
    datealgo::days_in_month(year as i32, month as u8).into()
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
        let day = date(2026, 11, 24);
        assert_eq!((day.weekday(), day.day_of_year()), (2, 327));
        let sunday = date(2024, 12, 29);
        assert_eq!((sunday.weekday(), sunday.day_of_year()), (0, 363));
        assert_eq!(Date::LAST.day_of_year(), 364);
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
