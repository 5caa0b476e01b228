//! The machine: x86-64 on bare metal, or the simulated one inside `cargo test`, as the compile
//! target chooses.
//!
//! Nothing here uses a module above: interrupts, faults and the scheduler are reached through
//! [`handlers`]. Beside the two machines stand what both share: the switch between threads
//! ([`context`]), per-CPU [`counters`], the [`log`], the [`processor`]'s description with its
//! [`bugs`] and their [`mitigations`], [`registers`] and [`user_context`] of a program, a clock's
//! [`date`], [`options`] of the command line, sets of [`places`] of functions, and the end of the
//! machine ([`power`]).

pub mod bugs;
pub(crate) mod context;
pub mod counters;
pub mod date;
pub(crate) mod handlers;
#[allow(dead_code, reason = "used by what is built on it")]
pub(crate) mod iommu;
pub mod local_segments;
pub mod log;
#[cfg_attr(
    not(target_os = "none"),
    allow(dead_code, reason = "the simulated machine has no faults")
)]
pub(crate) mod mitigations;
pub(crate) mod options;
pub(crate) mod places;
pub mod power;
pub mod processor;
pub mod registers;
#[cfg_attr(
    not(target_os = "none"),
    allow(
        dead_code,
        reason = "programs of the simulated machine have no segments"
    )
)]
pub(crate) mod segment;
#[cfg(not(target_os = "none"))]
pub mod sim;
pub mod user_context;
#[cfg(target_os = "none")]
pub(crate) mod x86_64;

/// A page that the kernel's half of the address space maps.
#[derive(Clone, Copy)]
pub(crate) struct KernelPage {
    pub(crate) address: usize,
    pub(crate) frame: u64,
    /// It is in the direct map.
    pub(crate) is_direct: bool,
    /// It is in the region where page tables can be written.
    pub(crate) is_table: bool,
    pub(crate) is_writable: bool,
}

/// By which of a CPU's address-space tags a program's space is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag {
    /// 1 to [`machine::tags`]; 0: the CPU has no tags, and drops all translations of programs.
    pub(crate) number: usize,
    /// What the CPU holds by this tag is the space's, and stays.
    pub(crate) keeps: bool,
}

impl Tag {
    /// For CPUs without tags.
    pub(crate) const NONE: Tag = Tag {
        number: 0,
        keeps: false,
    };
}

/// What a program's addresses are to the CPU that runs it: linear ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// Added to an address of the program, it is the linear one; not 0 in small spaces only.
    pub(crate) base: usize,
    /// The end of the addresses that the program may use.
    pub(crate) end: usize,
}

impl Window {
    /// All addresses of programs, as they are.
    pub(crate) const ALL: Window = Window {
        base: 0,
        end: crate::addr::USER_END.0,
    };

    /// Whether it is a region of a small space, which segments keep the program in.
    #[inline]
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn is_small(self) -> bool {
        self.base != 0
    }

    /// The end if the program's addresses are the linear ones, else 0.
    #[inline]
    pub(crate) fn linear_end(self) -> usize {
        match self.base {
            0 => self.end,
            _ => 0,
        }
    }

    /// The program's address for a linear one that the CPU names; an address that is no program's
    /// for one before the region.
    #[inline]
    pub(crate) fn program_address(self, linear: crate::VirtAddr) -> crate::VirtAddr {
        match self.base {
            0 => linear,
            // Linear addresses of 32-bit code wrap.
            base => crate::VirtAddr((linear.0 as u32).wrapping_sub(base as u32) as usize),
        }
    }
}

#[cfg(not(target_os = "none"))]
pub(crate) use sim as machine;
#[cfg(target_os = "none")]
pub(crate) use x86_64 as machine;

/// Timer interrupts per second on a busy CPU.
pub const TICKS_PER_SECOND: u32 = 100;

/// A run of frames that the firmware reported as usable memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// First frame number.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Whether anything uses it now: false for the kernel's image and what the loader left. Regions
    /// in use can be given later by `frame::release`.
    pub free: bool,
    /// Whether its bytes outlive the machine. It is in use then, and not a part of the memory.
    pub persistent: bool,
}

/// Which frames are in the direct map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DirectMap {
    /// All.
    #[default]
    All,
    /// Those of the kernel: no page of a program or file.
    Kernel,
    /// Those of the first so many MiB of physical memory, and what was in use at the start.
    First(u32),
}

impl DirectMap {
    /// Reads the word of the kernel's command line: the last one counts. What is wrong with one is
    /// told when there is a console.
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn read(command_line: &str) -> DirectMap {
        let map = options::last_value(command_line, "directmap", |value| match value {
            "all" => Some(DirectMap::All),
            "kernel" => Some(DirectMap::Kernel),
            size => mebibytes(size).map(DirectMap::First),
        });
        map.unwrap_or_default()
    }
}

/// Reads an amount of memory of 1 MiB to 1 TiB, as in `512M` or `2G`, in MiB.
pub(crate) fn mebibytes(text: &str) -> Option<u32> {
    let (number, unit) = match text.as_bytes() {
        [.., b'M'] => (&text[..text.len() - 1], 1),
        [.., b'G'] => (&text[..text.len() - 1], 1024),
        _ => return None,
    };
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u32 = number.parse().ok().filter(|_| digits)?;
    let mib = number.checked_mul(unit)?;
    (1..=1 << 20).contains(&mib).then_some(mib)
}

/// Longest command line in bytes, as on Linux for this machine.
pub const MAX_COMMAND_LINE: usize = 4096;

/// What the x86-64 machine computes from the loader's and the firmware's data, tested on the host.
#[cfg(all(test, not(target_os = "none")))]
mod x86_64_on_host;
