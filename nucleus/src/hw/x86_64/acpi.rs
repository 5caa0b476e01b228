//! The firmware's tables: which CPUs and interrupt controllers there are, and how to turn the
//! machine off. Read once at boot, through the boot page tables, into [`Tables`]. Nothing in them
//! is trusted to be there or to be well-formed.

use super::bytes::{u16_at, u32_at, u64_at};
use super::dmar::Dmar;
use super::layout::{BOOT_MAPPED, ptr};
use super::percpu::MAX_CPUS;
use crate::PhysAddr;

/// Longest table that is read: a DSDT of a large machine.
const LONGEST: usize = 4 << 20;
const MAX_IO_APICS: usize = 8;
const MAX_PERSISTENT: usize = 4;
/// What names a range of persistent memory in the table of such devices (NFIT).
const PERSISTENT: [u8; 16] = [
    0x79, 0xd3, 0xf0, 0x66, 0xf3, 0xb4, 0x74, 0x40, 0xac, 0x43, 0x0d, 0x33, 0x18, 0xb7, 0x8c, 0xdb,
];
const HEADER: usize = 36;

/// How to turn the machine off or restart it.
#[derive(Clone, Copy, Default, Debug)]
pub struct Power {
    /// The ports of the control register's two halves; 0 if there is none.
    pub control: [u16; 2],
    /// The values for them that mean "off".
    pub off: [u16; 2],
    /// The port that takes ACPI over from the firmware, and the value for it.
    pub take_over: (u16, u8),
    /// The port and value that reset the machine.
    pub reset: Option<(u16, u8)>,
}

/// What the kernel wants to know from the firmware.
pub struct Tables {
    cpus: [u32; MAX_CPUS],
    cpu_count: usize,
    /// CPUs that the firmware lists and that can be used, even those beyond [`MAX_CPUS`].
    pub cpus_listed: usize,
    /// Physical address of the local APICs' registers.
    pub local_apic: u64,
    io_apics: [(u64, u32); MAX_IO_APICS],
    io_apic_count: usize,
    /// Legacy lines: input of the I/O APICs, and flags.
    legacy: [(u32, u16); 16],
    /// Persistent memory: address and bytes.
    persistent: [(u64, u64); MAX_PERSISTENT],
    persistent_count: usize,
    /// How to stop.
    pub power: Power,
    /// The remapping units.
    pub remapping: Dmar,
}

/// Bytes of physical memory, if the boot page tables map them.
fn bytes(at: u64, len: usize) -> Option<&'static [u8]> {
    let end = at.checked_add(len as u64)?;
    if at == 0 || end > BOOT_MAPPED {
        return None;
    }
    // SAFETY: mapped, and firmware memory that nothing changes during boot.
    Some(unsafe { core::slice::from_raw_parts(ptr(PhysAddr(at)), len) })
}

fn sum_is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0u8, |sum, &b| sum.wrapping_add(b)) == 0
}

/// The table at a physical address, if it has this signature and its checksum is right.
fn table(at: u64, signature: &[u8; 4]) -> Option<&'static [u8]> {
    let header = bytes(at, HEADER)?;
    if &header[..4] != signature {
        return None;
    }
    let length = u32_at(header, 4)? as usize;
    if !(HEADER..=LONGEST).contains(&length) {
        return None;
    }
    bytes(at, length).filter(|table| sum_is_zero(table))
}

/// The root pointer in the memory that BIOSes keep for it.
fn find_root() -> Option<u64> {
    let area = bytes(0xe_0000, 0x2_0000)?;
    let at = area.chunks(16).position(|c| c.starts_with(b"RSD PTR "))?;
    Some(0xe_0000 + at as u64 * 16)
}

impl Tables {
    /// What holds when there are no tables: one CPU, and the controllers where they usually are.
    const fn usual() -> Tables {
        let mut legacy = [(0, 0); 16];
        let mut i = 0;
        while i < 16 {
            legacy[i].0 = i as u32;
            i += 1;
        }
        Tables {
            cpus: [0; MAX_CPUS],
            cpu_count: 0,
            cpus_listed: 0,
            local_apic: 0xfee0_0000,
            io_apics: [(0xfec0_0000, 0); MAX_IO_APICS],
            io_apic_count: 0,
            legacy,
            persistent: [(0, 0); MAX_PERSISTENT],
            persistent_count: 0,
            power: Power {
                control: [0; 2],
                off: [0; 2],
                take_over: (0, 0),
                reset: None,
            },
            remapping: Dmar::NONE,
        }
    }

    /// Reads the tables; `root` is where the loader says the root pointer is.
    pub fn read(root: Option<u64>) -> Tables {
        let mut tables = Tables::usual();
        let found = root.and_then(|at| tables.read_root(at));
        if found.is_none() {
            let _ = find_root().and_then(|at| tables.read_root(at));
        }
        if tables.io_apic_count == 0 {
            tables.io_apic_count = 1;
        }
        tables
    }

    fn read_root(&mut self, at: u64) -> Option<()> {
        let root = bytes(at, 20)?;
        if !root.starts_with(b"RSD PTR ") || !sum_is_zero(root) {
            return None;
        }
        let extended = if root[15] >= 2 {
            bytes(at, 36).and_then(|r| u64_at(r, 24))
        } else {
            None
        };
        let (list, width) = match extended.and_then(|at| table(at, b"XSDT")) {
            Some(list) => (list, 8),
            None => (table(u32_at(root, 16)?.into(), b"RSDT")?, 4),
        };
        for entry in list[HEADER..].chunks_exact(width) {
            let mut wide = [0; 8];
            wide[..width].copy_from_slice(entry);
            let at = u64::from_le_bytes(wide);
            if let Some(madt) = table(at, b"APIC") {
                self.read_controllers(madt);
            } else if let Some(fadt) = table(at, b"FACP") {
                let _ = self.read_power(fadt);
            } else if let Some(nfit) = table(at, b"NFIT") {
                self.read_persistent(nfit);
            } else if let Some(dmar) = table(at, b"DMAR") {
                self.remapping = Dmar::read(dmar);
            }
        }
        Some(())
    }

    fn read_persistent(&mut self, nfit: &[u8]) {
        const RANGE: u16 = 0;
        let mut rest = nfit.get(HEADER + 4..).unwrap_or(&[]);
        while let (Some(kind), Some(length)) = (u16_at(rest, 0), u16_at(rest, 2)) {
            let Some((entry, others)) = rest.split_at_checked(length.max(4).into()) else {
                return;
            };
            rest = others;
            if let (RANGE, Some(name)) = (kind, entry.get(16..32))
                && let (Some(start), Some(bytes)) = (u64_at(entry, 32), u64_at(entry, 40))
                && name == PERSISTENT
                && self.persistent_count < MAX_PERSISTENT
            {
                self.persistent[self.persistent_count] = (start, bytes);
                self.persistent_count += 1;
            }
        }
    }

    /// Persistent memory, as the firmware describes it: addresses and bytes.
    pub fn persistent(&self) -> &[(u64, u64)] {
        &self.persistent[..self.persistent_count]
    }

    fn read_controllers(&mut self, madt: &[u8]) {
        if let Some(at) = u32_at(madt, HEADER) {
            self.local_apic = at.into();
        }
        let mut rest = madt.get(HEADER + 8..).unwrap_or(&[]);
        while rest.len() >= 2 && (2..=rest.len()).contains(&(rest[1] as usize)) {
            let (entry, others) = rest.split_at(rest[1] as usize);
            let _ = self.read_controller(entry);
            rest = others;
        }
    }

    fn read_controller(&mut self, entry: &[u8]) -> Option<()> {
        match entry[0] {
            0 if u32_at(entry, 4)? & 1 != 0 => self.add_cpu(entry[3].into()),
            9 if u32_at(entry, 8)? & 1 != 0 => self.add_cpu(u32_at(entry, 4)?),
            1 if self.io_apic_count < MAX_IO_APICS => {
                let found = (u32_at(entry, 4)?.into(), u32_at(entry, 8)?);
                self.io_apics[self.io_apic_count] = found;
                self.io_apic_count += 1;
            }
            2 => {
                let line = self.legacy.get_mut(*entry.get(3)? as usize)?;
                *line = (u32_at(entry, 4)?, u16_at(entry, 8)?);
            }
            5 => self.local_apic = u64_at(entry, 4)?,
            _ => {}
        }
        Some(())
    }

    fn add_cpu(&mut self, id: u32) {
        self.cpus_listed += 1;
        if self.cpu_count < MAX_CPUS && !self.cpus().contains(&id) {
            self.cpus[self.cpu_count] = id;
            self.cpu_count += 1;
        }
    }

    fn read_power(&mut self, fadt: &[u8]) -> Option<()> {
        let control = [u32_at(fadt, 64)? as u16, u32_at(fadt, 68)? as u16];
        self.power.control = control;
        self.power.take_over = (u32_at(fadt, 48)? as u16, *fadt.get(52)?);
        // The reset register, when it exists and is a port.
        if u32_at(fadt, 112)? >> 10 & 1 != 0 && fadt.get(116) == Some(&1) {
            self.power.reset = Some((u64_at(fadt, 120)? as u16, *fadt.get(128)?));
        }
        let wide = u64_at(fadt, 140).and_then(|at| table(at, b"DSDT"));
        let code = wide.or_else(|| table(u32_at(fadt, 40)?.into(), b"DSDT"))?;
        self.power.off = sleep_type(code)?;
        Some(())
    }

    /// Local APIC numbers of the CPUs, in the table's order.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus[..self.cpu_count]
    }

    /// The I/O APICs: physical address and first input.
    pub fn io_apics(&self) -> &[(u64, u32)] {
        &self.io_apics[..self.io_apic_count]
    }

    /// Where a legacy line below 16 ends: the I/O APICs' input, and its flags.
    pub fn legacy_line(&self, line: u8) -> (u32, u16) {
        self.legacy[line as usize]
    }
}

/// The values for the control register that turn the machine off, from the object `\_S5`: a name,
/// a package, and small constants. The only piece of the byte code that is looked at.
fn sleep_type(code: &[u8]) -> Option<[u16; 2]> {
    let at = code
        .windows(5)
        .position(|w| &w[..4] == b"_S5_" && w[4] == 0x12)?;
    let mut rest = code.get(at + 5..)?;
    // The package's length: the top two bits of its first byte count the bytes that follow.
    let extra = rest.first()? >> 6;
    rest = rest.get(2 + extra as usize..)?;
    let mut values = [0; 2];
    for value in &mut values {
        let (number, used) = match *rest.first()? {
            small @ (0 | 1) => (small, 1),
            0x0a => (*rest.get(1)?, 2),
            _ => return None,
        };
        *value = u16::from(number & 7) << 10 | 1 << 13;
        rest = rest.get(used..)?;
    }
    Some(values)
}
