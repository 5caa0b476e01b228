//! The cost of page tables by level (`iosup.txt`, Figure 9): what it takes to allocate and to
//! release one, until the table can be used and until it is free. `fault_injection=tables` measures
//! it in the first task, with the cache enabled from the start, without it, and enabled on demand;
//! the log has the figures. A cache that was enabled on demand is a cache that is on: `dynamic` is
//! to show that it costs the same after `off`. With counted instructions, a nanosecond is one.

use crate::dma;
use crate::frame::{give_table, keep_tables, take_table};
use crate::hw::machine::nanoseconds;
use crate::pmap::take_root;

/// Tables that are taken before they are given back: more than a CPU keeps for itself, so that some
/// come from the pool.
const TABLES: usize = 16;
const ROUNDS: u64 = 64;

/// Where no device is. Its domain makes units hold translations, as one with a driver does.
const PLACE: u16 = 0xff;

/// Measures and logs.
pub fn measure() {
    let _attachment = dma::domain_of(PLACE).expect("memory for the measurement");
    for (mode, keeps) in [("on", true), ("off", false), ("dynamic", true)] {
        keep_tables(keeps);
        measure_as(mode);
    }
}

fn measure_as(mode: &str) {
    for level in 1..=4 {
        // What the first round sets aside stays.
        round(level);
        let (mut allocation, mut release) = (0, 0);
        for _ in 0..ROUNDS {
            let [taken, given] = round(level);
            allocation += taken;
            release += given;
        }
        let each = ROUNDS * TABLES as u64;
        crate::log!(
            "tables: {mode}, level {level}: allocation {} ns, release {} ns",
            allocation / each,
            release / each
        );
    }
}

/// The times to take all, and to give all back.
fn round(level: usize) -> [u64; 2] {
    let mut tables = [0; TABLES];
    let start = nanoseconds();
    for to in &mut tables {
        let table = match level {
            4 => take_root(),
            _ => take_table(level).map(|it| it.index()),
        };
        *to = table.expect("memory for the measurement");
    }
    let taken = nanoseconds();
    tables.iter().for_each(|&index| give_table(level, index));
    [taken - start, nanoseconds() - taken]
}
