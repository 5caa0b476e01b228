//! The real-time clock in the CMOS memory: a date, to the second, that runs on without power.
//!
//! Its registers are read and written through a port for the index and one for the data, so its
//! users must not meet: the boot is alone, and later [`rtc`](crate::dev::rtc) has a lock.

use super::port::{in8, out8};
use crate::hw::date::Date;

const INDEX: u16 = 0x70;
const DATA: u16 = 0x71;

/// Registers of the date. The century is where the firmware keeps it, if anywhere.
const SECONDS: u8 = 0;
const MINUTES: u8 = 2;
const HOURS: u8 = 4;
const WEEKDAY: u8 = 6;
const DAY: u8 = 7;
const MONTH: u8 = 8;
const YEAR: u8 = 9;
const CENTURY: u8 = 0x32;

/// Rates, and whether the date changes just now.
const STATUS_A: u8 = 0x0a;
const IS_UPDATING: u8 = 1 << 7;
/// Stops the divider; once released, the next second begins half a second later.
const RESET_DIVIDER: u8 = 0x70;

/// Formats and interrupts.
const STATUS_B: u8 = 0x0b;
/// Keeps the date from going on while it is written.
const IS_SETTING: u8 = 1 << 7;
const IS_BINARY: u8 = 1 << 2;
const HAS_24_HOURS: u8 = 1 << 1;
const AFTERNOON: u8 = 1 << 7;

/// Centuries that a register with a century in it may hold.
const CENTURIES: core::ops::RangeInclusive<u32> = 19..=29;

fn get(register: u8) -> u8 {
    // SAFETY: reading a register of the clock changes no memory; the index leaves NMIs on.
    unsafe {
        out8(INDEX, register & 0x7f);
        in8(DATA)
    }
}

/// Writes a register of the date or a status register.
fn put(register: u8, value: u8) {
    // SAFETY: these registers change the date and its rate. No interrupt of the clock is enabled
    // by them: its line is masked, and the callers keep the bits that enable one as they were.
    unsafe {
        out8(INDEX, register & 0x7f);
        out8(DATA, value);
    }
}

/// How the registers hold numbers.
#[derive(Clone, Copy)]
struct Format {
    binary: bool,
    whole_day: bool,
}

impl Format {
    fn of(status: u8) -> Format {
        Format {
            binary: status & IS_BINARY != 0,
            whole_day: status & HAS_24_HOURS != 0,
        }
    }

    fn number(self, raw: u8) -> u32 {
        let raw = u32::from(raw);
        match self.binary {
            true => raw,
            false => (raw >> 4) * 10 + (raw & 15),
        }
    }

    /// Of a number below 100.
    fn raw(self, number: u32) -> u8 {
        let number = (number % 100) as u8;
        match self.binary {
            true => number,
            false => ((number / 10) << 4) | (number % 10),
        }
    }

    fn hour(self, raw: u8) -> u32 {
        if self.whole_day {
            return self.number(raw);
        }
        let afternoon = if raw & AFTERNOON != 0 { 12 } else { 0 };
        self.number(raw & !AFTERNOON) % 12 + afternoon
    }

    fn raw_hour(self, hour: u32) -> u8 {
        if self.whole_day {
            return self.raw(hour);
        }
        let of_twelve = match hour % 12 {
            0 => 12,
            hour => hour,
        };
        self.raw(of_twelve) | if hour >= 12 { AFTERNOON } else { 0 }
    }
}

/// The date that the registers hold now, even if an update is on its way.
pub fn date_now() -> Date {
    let format = Format::of(get(STATUS_B));
    let number = |register| format.number(get(register));
    let century = number(CENTURY);
    // Not all clocks have one.
    let century = match CENTURIES.contains(&century) {
        true => century,
        false => 20,
    };
    let date = Date {
        year: century * 100 + number(YEAR),
        month: number(MONTH),
        day: number(DAY),
        hour: format.hour(get(HOURS)),
        minute: number(MINUTES),
        second: number(SECONDS),
    };
    date.clamped()
}

/// The date, unless it changes just now: an update takes 2 ms at most, and comes once a second.
pub fn date() -> Option<Date> {
    let before = get(SECONDS);
    if get(STATUS_A) & IS_UPDATING != 0 {
        return None;
    }
    let date = date_now();
    let changed = get(STATUS_A) & IS_UPDATING != 0 || get(SECONDS) != before;
    (!changed).then_some(date)
}

/// Sets the date; its next second begins half a second later. Returns false, and changes nothing,
/// if the clock can't hold it: one without a century has years from 2000 to 2099.
pub fn set_date(date: &Date) -> bool {
    let status = get(STATUS_B) & !IS_SETTING;
    let format = Format::of(status);
    let has_century = CENTURIES.contains(&format.number(get(CENTURY)));
    let century = date.year / 100;
    let fits = match has_century {
        true => CENTURIES.contains(&century),
        false => century == 20,
    };
    if !date.is_valid() || !fits {
        return false;
    }
    put(STATUS_B, status | IS_SETTING);
    let rates = get(STATUS_A) & !IS_UPDATING;
    put(STATUS_A, rates | RESET_DIVIDER);
    for (register, number) in [
        (YEAR, date.year % 100),
        (MONTH, date.month),
        (DAY, date.day),
        (WEEKDAY, date.weekday() + 1),
        (MINUTES, date.minute),
        (SECONDS, date.second),
    ] {
        put(register, format.raw(number));
    }
    put(HOURS, format.raw_hour(date.hour));
    if has_century {
        put(CENTURY, format.raw(century));
    }
    put(STATUS_B, status);
    put(STATUS_A, rates);
    true
}
