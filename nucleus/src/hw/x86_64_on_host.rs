//! The parts of the x86-64 machine that only read what a loader and a firmware left: nothing in
//! it may be trusted, so whatever stands there, they must come back with an answer.

#![allow(dead_code)]

use super::sim::random::Random;
use layout::Physical;

#[path = "x86_64/acpi.rs"]
mod acpi;
#[path = "x86_64/bytes.rs"]
mod bytes;
#[path = "x86_64/dmar.rs"]
mod dmar;
#[path = "x86_64/loader.rs"]
mod loader;
#[path = "x86_64/memory.rs"]
mod memory;
#[path = "x86_64/placement.rs"]
mod placement;

/// Physical memory: a MiB of each test's own.
mod layout {
    use std::cell::Cell;

    use crate::PhysAddr;

    pub const BOOT_MAPPED: u64 = 1 << 20;
    pub const DIRECT_MAP_SIZE: usize = 64 << 40;

    thread_local! {
        static START: Cell<*mut u8> = const { Cell::new(std::ptr::null_mut()) };
    }

    pub struct Image {
        pub start: u64,
        pub end: u64,
    }

    pub fn image() -> Image {
        Image {
            start: 0x20_0000,
            end: 0x28_0000,
        }
    }

    pub fn ptr(at: PhysAddr) -> *mut u8 {
        assert!(at.0 <= BOOT_MAPPED);
        let start = START.get();
        assert!(!start.is_null());
        start.wrapping_add(at.0 as usize)
    }

    /// Fills this thread's memory.
    pub struct Physical(Vec<u8>);

    impl Physical {
        pub fn new() -> Physical {
            let mut bytes = vec![0; BOOT_MAPPED as usize];
            START.set(bytes.as_mut_ptr());
            Physical(bytes)
        }

        pub fn put(&mut self, at: usize, bytes: &[u8]) {
            self.0[at..at + bytes.len()].copy_from_slice(bytes);
        }

        pub fn byte(&mut self, at: usize) -> &mut u8 {
            &mut self.0[at]
        }

        pub fn get(&self, at: usize, len: usize) -> Vec<u8> {
            self.0[at..at + len].to_vec()
        }
    }
}

mod percpu {
    pub const MAX_CPUS: usize = 16;
}

mod start {
    pub const LOADER_PVH: u32 = 1;
    pub const LOADER_MULTIBOOT2: u32 = 2;
}

#[test]
fn memory_map_agrees_with_a_model() {
    const FRAMES: usize = 512;
    for seed in 0..300 {
        let numbers = Random::new(seed);
        let mut map = memory::MemoryMap::new();
        // Per frame: absent, free, in use.
        let mut model = [0u8; FRAMES];
        for _ in 0..30 {
            let start = numbers.below(FRAMES as u64 * 4096);
            let bytes = numbers.below(80 * 4096).min(FRAMES as u64 * 4096 - start);
            let inside = start.div_ceil(4096) as usize..((start + bytes) / 4096) as usize;
            let touched = (start / 4096) as usize..(start + bytes).div_ceil(4096) as usize;
            match numbers.below(4) {
                0 | 1 => {
                    map.add(start, bytes);
                    for frame in inside.filter(|&f| f < FRAMES) {
                        model[frame] = model[frame].max(1);
                    }
                }
                2 => {
                    map.remove(start, bytes);
                    model[touched].fill(0);
                }
                _ => {
                    map.reserve(start, bytes);
                    for frame in touched.clone() {
                        if model[frame] == 1 {
                            model[frame] = 2;
                        }
                    }
                    let whole = model[touched].iter().all(|&m| m != 0);
                    assert_eq!(map.contains(start, bytes), whole, "seed {seed}");
                }
            }
            let mut seen = [0u8; FRAMES];
            let mut last = 0;
            for range in map.ranges() {
                assert!(
                    last <= range.start && range.start < range.end,
                    "seed {seed}"
                );
                last = range.end;
                let value = if range.free { 1 } else { 2 };
                seen[range.start as usize..range.end as usize].fill(value);
            }
            assert_eq!(seen, model, "seed {seed}");
        }
    }
}

#[test]
fn memory_map_stands_extremes() {
    let mut map = memory::MemoryMap::new();
    map.add(u64::MAX, u64::MAX);
    map.add(0, u64::MAX);
    map.remove(u64::MAX - 5, u64::MAX);
    map.reserve(u64::MAX, 1);
    assert!(!map.contains(u64::MAX, 2));
    // More holes than the list has room for: memory is lost, never invented.
    for hole in 0..1000u64 {
        map.remove(hole * 0x10000, 4096);
        assert!(!map.contains(hole * 0x10000, 1));
    }
    map.prepare_early(1 << 40);
}

#[test]
fn persistent_memory_stays_apart() {
    let mut map = memory::MemoryMap::new();
    map.add(0x10_0000, 0x100_0000);
    map.add(0x300_0000, 0x100_0000);
    assert_eq!(
        map.add_persistent(0x200_0800, 0x10_0000),
        Some(0x2001..0x2100)
    );
    // What overlaps is refused: memory, itself, the first MiB, what has no end.
    for (start, bytes) in [
        (0xff_0000, 0x10_0000),
        (0x20f_f000, 0x1000),
        (0, 0x1000),
        (0x40_0000_0000, 0xfff),
        (u64::MAX - 0x1000, 0x2000),
    ] {
        assert_eq!(map.add_persistent(start, bytes), None, "{start:#x}");
    }
    let kinds: Vec<_> = map
        .managed()
        .iter()
        .map(|r| (r.start, r.free, r.persistent))
        .collect();
    assert_eq!(
        kinds,
        [
            (0x100, true, false),
            (0x2001, false, true),
            (0x3000, true, false)
        ]
    );
}

const ROOT: usize = 0xe_1000;
const LIST: usize = 0x1000;
const CONTROLLERS: usize = 0x2000;
const FIXED: usize = 0x3000;
const CODE: usize = 0x4000;
const NVDIMMS: usize = 0x5000;
const UNITS: usize = 0x6000;

fn mend(memory: &mut Physical, at: usize, len: usize, sum_at: usize) {
    *memory.byte(at + sum_at) = 0;
    let sum = memory
        .get(at, len)
        .iter()
        .fold(0u8, |sum, &b| sum.wrapping_add(b));
    *memory.byte(at + sum_at) = sum.wrapping_neg();
}

fn table(memory: &mut Physical, at: usize, signature: &[u8; 4], body: &[u8]) {
    let len = 36 + body.len();
    memory.put(at, signature);
    memory.put(at + 4, &(len as u32).to_le_bytes());
    memory.put(at + 36, body);
    mend(memory, at, len, 9);
}

/// Three CPUs of which one is off, an I/O APIC, an override, power control and a DSDT; a range of
/// persistent memory, and another one that is not.
fn firmware() -> Physical {
    let mut memory = Physical::new();
    memory.put(ROOT, b"RSD PTR ");
    memory.put(ROOT + 16, &(LIST as u32).to_le_bytes());
    mend(&mut memory, ROOT, 20, 8);
    let mut list = Vec::new();
    for at in [CONTROLLERS, FIXED, NVDIMMS, UNITS] {
        list.extend((at as u32).to_le_bytes());
    }
    table(&mut memory, LIST, b"RSDT", &list);
    let mut body = vec![0, 0, 0xe0, 0xfe, 1, 0, 0, 0];
    for (id, on) in [(0, 1), (1, 0), (7, 1)] {
        body.extend([0, 8, 0, id, on, 0, 0, 0]);
    }
    body.extend([1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
    body.extend([2, 10, 0, 4, 9, 0, 0, 0, 0xd, 0]);
    table(&mut memory, CONTROLLERS, b"APIC", &body);
    let mut fixed = vec![0; 116];
    fixed[4..8].copy_from_slice(&(CODE as u32).to_le_bytes());
    fixed[28..32].copy_from_slice(&0x604u32.to_le_bytes());
    fixed[76..80].copy_from_slice(&(1u32 << 10).to_le_bytes());
    fixed[80] = 1;
    fixed[84..92].copy_from_slice(&0xcf9u64.to_le_bytes());
    fixed[92] = 6;
    table(&mut memory, FIXED, b"FACP", &fixed);
    table(
        &mut memory,
        CODE,
        b"DSDT",
        b"\x08_S5_\x12\x06\x04\x0a\x05\x01\x00\x00",
    );
    let mut ranges = vec![0; 4];
    for (first, start) in [(0x79, 0x1_0000_0000u64), (0x78, 0x2_0000_0000)] {
        let mut range = vec![0, 0, 56, 0];
        range.resize(56, 0);
        range[16..32].copy_from_slice(&[
            first, 0xd3, 0xf0, 0x66, 0xf3, 0xb4, 0x74, 0x40, 0xac, 0x43, 0x0d, 0x33, 0x18, 0xb7,
            0x8c, 0xdb,
        ]);
        range[32..40].copy_from_slice(&start.to_le_bytes());
        range[40..48].copy_from_slice(&0x100_0000u64.to_le_bytes());
        // A structure of another kind before it.
        ranges.extend([1, 0, 8, 0, 0, 0, 0, 0]);
        ranges.extend(range);
    }
    table(&mut memory, NVDIMMS, b"NFIT", &ranges);
    table(&mut memory, UNITS, b"DMAR", &remapping());
    memory
}

/// A scope: kind, number, first bus, path.
fn scope(kind: u8, number: u8, bus: u8, path: &[(u8, u8)]) -> Vec<u8> {
    let mut scope = vec![kind, 6 + 2 * path.len() as u8, 0, 0, number, bus];
    path.iter()
        .for_each(|&(at, function)| scope.extend([at, function]));
    scope
}

/// An entry: kind, what is before the scopes, the scopes.
fn entry(kind: u16, fixed: &[u8], scopes: &[Vec<u8>]) -> Vec<u8> {
    let mut entry = kind.to_le_bytes().to_vec();
    let scopes = scopes.concat();
    entry.extend((4 + fixed.len() as u16 + scopes.len() as u16).to_le_bytes());
    entry.extend([fixed, &scopes].concat());
    entry
}

/// A unit for two devices behind bridges, one for all others and the I/O APIC, one of another
/// segment; memory that a device uses, and a region without an end.
fn remapping() -> Vec<u8> {
    let unit =
        |flags: u8, segment: u8, at: u64| [&[flags, 0, segment, 0], &at.to_le_bytes()[..]].concat();
    let region =
        |start: u64, last: u64| [&[0; 4], &start.to_le_bytes()[..], &last.to_le_bytes()].concat();
    let named = [
        scope(1, 0, 0, &[(28, 0), (2, 1)]),
        scope(2, 0, 3, &[(1, 0)]),
    ];
    let rest = [scope(3, 0, 0xff, &[(30, 0)])];
    let mut body = vec![47, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    body.extend(entry(0, &unit(0, 0, 0xfed9_0000), &named));
    body.extend(entry(0, &unit(0, 1, 0xfeda_0000), &[]));
    // Of a kind that is not known.
    body.extend(entry(9, &[1, 2, 3], &[]));
    body.extend(entry(0, &unit(1, 0, 0xfed9_1000), &rest));
    let user = [scope(1, 0, 0, &[(2, 0)])];
    body.extend(entry(1, &region(0xbf00_0000, 0xbfff_ffff), &user));
    body.extend(entry(1, &region(0x1000, u64::MAX), &user));
    body
}

#[test]
fn firmware_tables_are_read() {
    let _memory = firmware();
    for root in [Some(ROOT as u64), None, Some(0x50)] {
        let tables = acpi::Tables::read(root);
        assert_eq!(tables.cpus(), [0, 7]);
        assert_eq!(tables.local_apic, 0xfee0_0000);
        assert_eq!(tables.io_apics(), [(0xfec0_0000, 0)]);
        assert_eq!(tables.legacy_line(4), (9, 0xd));
        assert_eq!(tables.legacy_line(5), (5, 0));
        assert_eq!(tables.power.control, [0x604, 0]);
        assert_eq!(tables.power.off, [5 << 10 | 1 << 13, 1 << 10 | 1 << 13]);
        assert_eq!(tables.power.reset, Some((0xcf9, 6)));
        assert_eq!(tables.persistent(), [(0x1_0000_0000, 0x100_0000)]);
    }
}

#[test]
fn damaged_firmware_tables_do_no_harm() {
    let tables = [
        (LIST, 48),
        (CONTROLLERS, 36 + 54),
        (FIXED, 152),
        (CODE, 49),
        (NVDIMMS, 36 + 4 + 128),
        (UNITS, 36 + remapping().len()),
    ];
    for seed in 0..3000 {
        let numbers = Random::new(seed);
        let mut memory = firmware();
        for _ in 0..=numbers.below(3) {
            let (at, len) = tables[numbers.below(6) as usize];
            let hit = at + numbers.below(len as u64) as usize;
            *memory.byte(hit) = numbers.below(256) as u8;
            // A wrong sum would only hide the damage.
            mend(&mut memory, at, len, 9);
        }
        let tables = acpi::Tables::read(Some(ROOT as u64));
        assert!(tables.cpus().len() <= 16 && !tables.io_apics().is_empty());
        let units = &tables.remapping;
        let all = units.units().iter().flat_map(|unit| units.scopes(unit));
        let all = all.chain(
            units
                .regions()
                .iter()
                .flat_map(|region| units.users(region)),
        );
        // Bridges that lead anywhere, too.
        let places = all.filter_map(|scope| scope.place(|at| Some((at as u8, u8::MAX))));
        assert!(places.count() <= 96);
        for region in units.regions() {
            assert!(region.start < region.end && region.end <= 1 << 52);
        }
    }
}

/// A table of units, each of so many devices.
fn units_of(devices: &[usize]) -> dmar::Dmar {
    let mut table = vec![0; 48];
    for (n, &devices) in devices.iter().enumerate() {
        let len = 16 + 8 * devices as u16;
        table.extend([0, 0, len as u8, (len >> 8) as u8, 1, 0, 0, 0]);
        table.extend((0xfed9_0000 + 0x1000 * n as u64).to_le_bytes());
        (0..devices).for_each(|n| table.extend([1, 8, 0, 0, 0, 0, n as u8 >> 3, n as u8 & 7]));
    }
    dmar::Dmar::read(&table)
}

#[test]
fn a_table_without_room_for_all_units_says_so() {
    assert!(!units_of(&[3; 16]).lacks_units);
    assert!(units_of(&[3; 17]).lacks_units);
    assert!(!units_of(&[90, 6]).lacks_units);
    let found = units_of(&[90, 7]);
    assert!(found.lacks_units && found.left_out == 1);
    assert_eq!(found.scopes(&found.units()[0]).len(), 90);
}

/// What stands where a unit may have been leaves the others with what they name.
#[test]
fn a_unit_that_is_cut_short_may_have_been_any() {
    let whole = |at: u8| [0, 0, 16, 0, 1, 0, 0, 0, 0, at, 0xd9, 0xfe, 0, 0, 0, 0];
    let read = |bad: &[u8]| {
        let table = [&[0; 48], &whole(0)[..], bad, &whole(0x10)].concat();
        dmar::Dmar::read(&table)
    };
    assert!(!read(&[]).lacks_units && read(&[]).units().len() == 2);
    // Of another segment.
    assert!(!read(&[0, 0, 16, 0, 1, 0, 1, 0, 0, 0x20, 0xd9, 0xfe, 0, 0, 0, 0]).lacks_units);
    for length in [4u8, 6, 7, 8, 12, 15] {
        let bad = [&[0, 0, length, 0][..], &[1; 11][..usize::from(length) - 4]].concat();
        assert!(read(&bad).lacks_units, "a unit of {length} bytes");
    }
    for kind in 0..5 {
        for length in 0..4 {
            let found = read(&[kind, 0, length, 0]);
            assert!(
                found.lacks_units,
                "an entry of kind {kind} with length {length}"
            );
        }
    }
}

/// Whatever the firmware says, no device is given the units' own registers, or those of the
/// interrupt controllers.
#[test]
fn regions_of_the_platforms_registers_are_left_out() {
    let read = |start: u64, last: u64| {
        let region = [
            &[1, 0, 24, 0, 0, 0, 0, 0][..],
            &start.to_le_bytes(),
            &last.to_le_bytes(),
        ];
        let unit = [0, 0, 16, 0, 1, 0, 0, 0, 0, 0, 0xd9, 0xe0, 0, 0, 0, 0];
        let table = [&[0; 48], &region.concat()[..], &unit].concat();
        dmar::Dmar::read(&table)
    };
    assert_eq!(read(0xdf00_0000, 0xdfff_ffff).regions().len(), 1);
    for (start, last) in [
        (0xfec0_0000, 0xfec0_0fff),
        (0xfed9_0000, 0xfed9_0fff),
        (0xfee0_0000, 0xfeef_ffff),
        (0xffff_f000, 0x1_0000_0fff),
        (0xfe00_0000, 0xffff_ffff),
        // Where the unit is, which comes later in the table.
        (0xe0d9_0000, 0xe0d9_0fff),
        (0xe000_0000, 0xe1ff_ffff),
    ] {
        let found = read(start, last);
        assert!(
            found.regions().is_empty(),
            "{start:#x} is given to a device"
        );
        assert!(found.left_out == 1 && found.units().len() == 1);
    }
}

#[test]
fn remapping_units_are_read() {
    let _memory = firmware();
    let found = acpi::Tables::read(Some(ROOT as u64)).remapping;
    assert!(found.remaps_interrupts() && !found.refuses_x2apic());
    // A unit of another segment, and a region without an end.
    assert_eq!(found.left_out, 2);
    assert!(!found.lacks_units);
    let units: Vec<_> = found
        .units()
        .iter()
        .map(|unit| (unit.registers, unit.takes_rest, found.scopes(unit).len()))
        .collect();
    assert_eq!(units, [(0xfed9_0000, false, 2), (0xfed9_1000, true, 1)]);
    // The root port at 00:1c.0 leads to the buses 4 to 6.
    let behind = |at| (at == 0x1c << 3).then_some((4, 6));
    let [device, bridge] = found.scopes(&found.units()[0]) else {
        panic!("two scopes");
    };
    assert_eq!(device.place(behind), Some(4 << 8 | 2 << 3 | 1));
    assert_eq!(device.place(|_| None), None);
    assert_eq!(bridge.kind, dmar::Kind::Bridge);
    assert_eq!(bridge.place(behind), Some(3 << 8 | 1 << 3));
    let [io_apic] = found.scopes(&found.units()[1]) else {
        panic!("a scope");
    };
    assert_eq!(io_apic.kind, dmar::Kind::IoApic);
    assert_eq!(io_apic.place(behind), Some(0xfff0 & !0xff | 30 << 3));
    let [region] = found.regions() else {
        panic!("a region");
    };
    assert_eq!((region.start, region.end), (0xbf00_0000, 0xc000_0000));
    assert_eq!(found.users(region)[0].place(behind), Some(2 << 3));
}

const START_INFO: usize = 0x1000;
const MAP: usize = 0x2000;
const MODULE: usize = 0x3000;
const LINE: usize = 0x4000;

fn pvh(line: &[u8], archive: (u64, u64)) -> Physical {
    let mut memory = Physical::new();
    let mut info = Vec::new();
    for word in [0x336e_c578u32, 1, 0, 1] {
        info.extend(word.to_le_bytes());
    }
    for word in [MODULE as u64, LINE as u64, 0, MAP as u64] {
        info.extend(word.to_le_bytes());
    }
    info.extend(3u64.to_le_bytes());
    memory.put(START_INFO, &info);
    let map = [
        (0u64, 0x9_fc00u64, 1u64),
        (0x10_0000, 0xff0_0000, 1),
        (0xf00_0000, 0x1000, 2),
    ];
    for (i, (start, bytes, kind)) in map.into_iter().enumerate() {
        for (j, word) in [start, bytes, kind].into_iter().enumerate() {
            memory.put(MAP + i * 24 + j * 8, &word.to_le_bytes());
        }
    }
    memory.put(MODULE, &archive.0.to_le_bytes());
    memory.put(MODULE + 8, &archive.1.to_le_bytes());
    memory.put(LINE, line);
    memory
}

#[test]
fn pvh_start_information_is_read() {
    let _memory = pvh(b"onlcr=0 \xff\xfe -- ls\0", (0x40_0000, 5000));
    let found = loader::read_all(1, START_INFO as u64).expect("it is right");
    assert_eq!(found.command_line(), "onlcr=0 ?? -- ls");
    assert_eq!(found.archive, Some((0x40_0000, 5000)));
    assert!(!found.memory.contains(0xf00_0000, 1) && found.memory.contains(0xf00_1000, 4096));
    let in_use: Vec<_> = found.memory.ranges().iter().filter(|r| !r.free).collect();
    assert_eq!((in_use[0].start, in_use[0].end), (0x200, 0x280));
    assert_eq!((in_use[1].start, in_use[1].end), (0x400, 0x402));
}

#[test]
fn a_bad_archive_is_refused() {
    for archive in [
        (0x9_f000, 0x2000),
        (0xfff_f000, 0x1001),
        (0x27_ffff, 5),
        (u64::MAX, 2),
        (1 << 46, 1),
    ] {
        let _memory = pvh(b"\0", archive);
        assert!(
            loader::read_all(1, START_INFO as u64).is_err(),
            "{archive:x?}"
        );
    }
}

#[test]
fn a_long_command_line_is_refused() {
    let fits = [&[b'a'; 4096][..], b"\0"].concat();
    let _memory = pvh(&fits, (0, 0));
    let found = loader::read_all(1, START_INFO as u64).expect("it fits");
    assert_eq!(found.command_line().len(), 4096);
    let _memory = pvh(&[b'a'; 4098], (0, 0));
    assert!(loader::read_all(1, START_INFO as u64).is_err());
}

fn tag(memory: &mut Vec<u8>, kind: u32, body: &[u8]) {
    memory.extend(kind.to_le_bytes());
    memory.extend((body.len() as u32 + 8).to_le_bytes());
    memory.extend(body);
    memory.resize(memory.len().next_multiple_of(8), 0);
}

fn multiboot2() -> (Physical, usize) {
    let mut info = vec![0; 8];
    tag(&mut info, 1, b"-- sh\0");
    let module: Vec<u8> = [0x40_0000u32, 0x40_1234]
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    tag(&mut info, 3, &module);
    let mut map: Vec<u8> = [24u32, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
    map.extend(
        [0x10_0000u64, 0xff0_0000, 1]
            .iter()
            .flat_map(|w| w.to_le_bytes()),
    );
    tag(&mut info, 6, &map);
    tag(&mut info, 0, &[]);
    let total = info.len() as u32;
    info[..4].copy_from_slice(&total.to_le_bytes());
    let mut memory = Physical::new();
    memory.put(START_INFO, &info);
    (memory, info.len())
}

#[test]
fn multiboot2_information_is_read() {
    let _memory = multiboot2();
    let found = loader::read_all(2, START_INFO as u64).expect("it is right");
    assert_eq!(found.command_line(), "-- sh");
    assert_eq!(found.archive, Some((0x40_0000, 0x1234)));
    assert!(found.memory.contains(0x10_0000, 0xff0_0000));
}

#[test]
fn damaged_loader_information_does_no_harm() {
    for seed in 0..3000 {
        let numbers = Random::new(seed);
        let (mut memory, len, kind) = match seed % 2 {
            0 => (pvh(b"quiet\0", (0x40_0000, 5000)), 0x3010, 1),
            _ => {
                let (memory, len) = multiboot2();
                (memory, len, 2)
            }
        };
        for _ in 0..=numbers.below(4) {
            let at = match kind {
                1 => {
                    [START_INFO, MAP, MODULE][numbers.below(3) as usize]
                        + numbers.below(72) as usize
                }
                _ => START_INFO + numbers.below(len as u64) as usize,
            };
            *memory.byte(at) = numbers.below(256) as u8;
        }
        if let Ok(found) = loader::read_all(kind, START_INFO as u64) {
            assert!(!found.memory.ranges().is_empty());
        }
    }
}

/// A seed is taken out of the command line and of the loader's memory, except behind `--`, where a
/// program's arguments are.
#[test]
fn a_seed_is_taken_out_of_the_command_line() {
    let digits = "00ff".repeat(16);
    let line = format!("echo=0 seed={digits} onlcr=0 seed=12 -- sh seed={digits}\0");
    let memory = pvh(line.as_bytes(), (0, 0));
    let found = loader::read_all(1, START_INFO as u64).expect("it is right");
    let left = format!("echo=0 onlcr=0 -- sh seed={digits}");
    assert_eq!(found.command_line(), left);
    let seed: Vec<u8> = [0, 0xff].repeat(16);
    assert_eq!(found.seed.as_ref().map(<[u8; 32]>::as_slice), Some(&*seed));
    let behind = memory.get(LINE, line.len());
    let end = behind.iter().position(|&byte| byte == 0).expect("it ends");
    assert_eq!(behind[..end], *left.as_bytes());
    assert!(behind[end..].iter().all(|&byte| byte == 0));
    // The line is read once for the kernel's place, and again for everything else.
    let again = loader::read_all(1, START_INFO as u64).expect("it is right");
    assert_eq!((again.command_line(), again.seed), (&*left, None));

    let line = format!("seed={digits}\0");
    let _memory = pvh(line.as_bytes(), (0, 0));
    let found = loader::read_all(1, START_INFO as u64).expect("it is right");
    assert!(found.command_line().is_empty() && found.seed.is_some());
    loader::keep_seed(&found.seed.unwrap());
    assert_eq!(loader::take_seed(), found.seed);
    assert_eq!(loader::take_seed(), None);
}

/// Wherever chance puts them, no two regions overlap, all are canonical, and the image stays within
/// what its code reaches.
#[test]
fn the_kernel_has_room_in_every_place() {
    const GIB: usize = 1 << 30;
    let mut images = std::collections::BTreeSet::new();
    for seed in 0..20_000 {
        let numbers = Random::new(seed);
        let memory_end = 1u64 << (27 + numbers.below(20)) | numbers.below(1 << 40);
        let image_end = 0x10_0000 + numbers.below(16 << 20);
        let extreme = numbers.below(3);
        let below = |limit: u64| match extreme {
            0 => 0,
            1 => limit - 1,
            _ => numbers.below(limit),
        };
        let to = placement::choose(below, image_end, memory_end);
        images.insert(to.image);
        assert!(to.image % (2 << 20) == 0 && to.direct_map % GIB == 0);
        assert!(to.image as u64 + image_end <= (2 << 30) - (2 << 20));
        let direct_end = to.direct_map + memory_end as usize;
        let room = layout::DIRECT_MAP_SIZE;
        assert!(
            direct_end <= room || memory_end as usize > room - GIB,
            "{to:x?}"
        );
        assert!(to.direct_map >> 30 & 511 <= 508, "{to:x?}");
        let [stacks, window, devices, blocks, tables] = to.regions;
        let slot = |at: usize| at >> 39 & 511;
        assert!((384..511).contains(&slot(stacks)) && stacks >> 47 == 0x1_ffff);
        assert!(stacks + 2 * GIB <= window && window + GIB <= devices);
        assert!(slot(stacks) == slot(window) && slot(stacks) == slot(devices + GIB - 1));
        assert!((384..511).contains(&slot(blocks)) && slot(blocks) != slot(stacks));
        assert!(![slot(stacks), slot(blocks)].contains(&slot(tables)));
        assert!((384..511).contains(&slot(tables)) && tables >> 47 == 0x1_ffff);
        assert!(
            memory_end as usize > 512 * GIB
                || slot(tables) == slot(tables + memory_end as usize - 1)
        );
        assert!(slot(blocks) == slot(blocks + 320 * GIB - 1) && blocks >> 47 == 0x1_ffff);
    }
    assert!(images.len() > 1000, "{}", images.len());
}
