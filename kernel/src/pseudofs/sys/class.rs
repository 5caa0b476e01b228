//! `/sys/class`, the devices behind it, and their numbers.

use alloc::{format, string::String};

use fs::pseudofs::{Entry, Table};
use net::counters::Counter;
use nucleus::Date;

use super::{block, directory, line, link, value};
use crate::{device::rtc, socket::inet::interface};

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
    let interfaces = Table::new().with("lo", link("../../devices/virtual/net/lo"));
    Table::new()
        .with("block", block::class())
        .with("net", directory(interfaces))
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
    let interfaces = Table::new().with("lo", directory(loopback()));
    Table::new()
        .with("block", block::devices())
        .with("net", directory(interfaces))
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

fn loopback() -> Table {
    Table::new()
        .with("addr_assign_type", value("0"))
        .with("addr_len", value("6"))
        .with("address", value("00:00:00:00:00:00"))
        .with("broadcast", value("00:00:00:00:00:00"))
        .with("carrier", value("1"))
        .with("dev_id", value("0x0"))
        .with("dev_port", value("0"))
        .with("dormant", value("0"))
        // Up, and the loopback: the device's own flags, without those of its state.
        .with("flags", value("0x9"))
        .with("ifindex", value(net::ip::LOOPBACK))
        .with("iflink", value(net::ip::LOOPBACK))
        .with("link_mode", value("0"))
        .with("mtu", value(65_536))
        .with("netdev_group", value("0"))
        .with("operstate", value("unknown"))
        .with("statistics", directory(statistics()))
        .with("subsystem", link("../../../../class/net"))
        .with("tx_queue_len", value(interface::QUEUE))
        .with("type", value("772"))
        .with("uevent", value("INTERFACE=lo\nIFINDEX=1"))
}

/// Every packet that goes out comes in, and none is lost.
fn statistics() -> Table {
    const NEVER: [&str; 19] = [
        "collisions",
        "multicast",
        "rx_compressed",
        "rx_crc_errors",
        "rx_dropped",
        "rx_errors",
        "rx_fifo_errors",
        "rx_frame_errors",
        "rx_length_errors",
        "rx_missed_errors",
        "rx_nohandler",
        "rx_over_errors",
        "tx_aborted_errors",
        "tx_carrier_errors",
        "tx_compressed",
        "tx_dropped",
        "tx_errors",
        "tx_fifo_errors",
        "tx_heartbeat_errors",
    ];
    let total = |counter: Counter| line(move || counter.total());
    NEVER
        .iter()
        .fold(Table::new(), |table, name| table.with(name, value("0")))
        .with("rx_bytes", total(Counter::loopback_bytes))
        .with("rx_packets", total(Counter::loopback_packets))
        .with("tx_bytes", total(Counter::loopback_bytes))
        .with("tx_packets", total(Counter::loopback_packets))
        .with("tx_window_errors", value("0"))
}
