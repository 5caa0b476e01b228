//! `/sys/class`, `/sys/devices` and `/sys/dev`, and the terminals and the clock in them.

use alloc::{format, string::String};

use fs::pseudofs::{Entry, Table};
use nucleus::Date;

use super::{block, directory, interfaces::Interfaces, line, link, value};
use crate::device::rtc;

/// Terminals: name and number.
const TERMINALS: [(&str, &str); 4] = [
    ("console", "5:1"),
    ("ptmx", "5:2"),
    ("tty", "5:0"),
    ("ttyS0", "4:64"),
];

/// `class`: links to devices, by their kinds.
pub(super) fn classes() -> Table {
    let terminals = TERMINALS.iter().fold(Table::new(), |table, &(name, _)| {
        let to = move || Ok(format!("../../devices/virtual/tty/{name}").into_bytes());
        table.with(name, Entry::link(to))
    });
    Table::new()
        .with("block", block::class())
        .with("net", directory(Interfaces::Links))
        .with("rtc", directory(Table::new().with("rtc0", link(CLOCK))))
        .with("tty", directory(terminals))
}

/// The real-time clock, from a folder two below the root.
const CLOCK: &str = "../../devices/platform/rtc_cmos/rtc/rtc0";

/// `devices/platform`.
pub(super) fn platform() -> Table {
    let clocks = Table::new().with("rtc0", directory(clock()));
    let driver = Table::new().with("rtc", directory(clocks));
    Table::new().with("rtc_cmos", directory(driver))
}

fn clock() -> Table {
    let number = || format!("{}:{}", rtc::MAJOR, rtc::MINOR);
    let event = || {
        let (major, minor) = (rtc::MAJOR, rtc::MINOR);
        format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=rtc0")
    };
    let now = |show: fn(Date) -> String| {
        Entry::text(move |out| {
            writeln!(out, "{}", show(rtc::now()?));
            Ok(())
        })
    };
    let date = |it: Date| format!("{:04}-{:02}-{:02}", it.year, it.month, it.day);
    let time = |it: Date| format!("{:02}:{:02}:{:02}", it.hour, it.minute, it.second);
    Table::new()
        .with("date", now(date))
        .with("dev", line(number))
        .with("device", link("../../../rtc_cmos"))
        // The time of day begins at this clock's date.
        .with("hctosys", value("1"))
        .with("max_user_freq", value(rtc::USER_RATE))
        .with("name", value(rtc::NAME))
        .with("since_epoch", now(|it| format!("{}", it.seconds())))
        .with("subsystem", link("../../../../../class/rtc"))
        .with("time", now(time))
        .with("uevent", line(event))
}

/// `dev`: the same by number.
pub(super) fn numbers() -> Table {
    let characters = TERMINALS
        .iter()
        .fold(Table::new(), |table, &(name, number)| {
            let to = move || Ok(format!("../../devices/virtual/tty/{name}").into_bytes());
            table.with(number, Entry::link(to))
        })
        .with("254:0", link(CLOCK));
    const { assert!(rtc::MAJOR == 254 && rtc::MINOR == 0) };
    Table::new()
        .with("block", block::by_number())
        .with("char", directory(characters))
}

/// `devices/virtual`.
pub(super) fn devices() -> Table {
    let terminals = TERMINALS
        .iter()
        .fold(Table::new(), |table, &(name, number)| {
            table.with(name, directory(terminal(name, number)))
        });
    Table::new()
        .with("block", block::devices())
        .with("net", directory(Interfaces::Devices))
        .with("tty", directory(terminals))
}

fn terminal(name: &'static str, number: &'static str) -> Table {
    let event = move || {
        let (major, minor) = number.split_once(':').unwrap_or((number, "0"));
        format!("MAJOR={major}\nMINOR={minor}\nDEVNAME={name}")
    };
    let table = Table::new()
        .with("dev", value(number))
        .with("subsystem", link("../../../../class/tty"))
        .with("uevent", line(event));
    match name {
        // The devices of the class.
        "console" => table.with("active", value("ttyS0")),
        _ => table,
    }
}
