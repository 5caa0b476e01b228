//! The device and its requests.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::Memory;

/// The requests, as the kernel numbers them.
mod request {
    pub const VERSION: u64 = 0x8004_ca00;
    pub const INHERIT: u64 = 0x4018_ca01;
    pub const COUNTS: u64 = 0x8040_ca02;
    pub const ENTRY: u64 = 0xc040_ca03;
    pub const PASS: u64 = 0xc040_ca04;
}

/// The open device.
#[derive(Debug)]
pub struct Causeway {
    device: OwnedFd,
}

/// Inheritance of memory by children at fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inherit {
    /// The same memory: each sees the others' writes. Grandchildren share it, too.
    Share,
    /// A copy-on-write copy. A page of memory mapped as shared becomes a copy with the child's
    /// first write.
    Copy,
    /// Nothing: the addresses are free in the child.
    None,
    /// Memory of the same size that reads zero.
    Zero,
}

impl Inherit {
    const ALL: [Inherit; 4] = [Inherit::Share, Inherit::Copy, Inherit::None, Inherit::Zero];
}

/// The process that receives a part of the address space. The caller must be permitted to write its
/// memory as by `process_vm_writev`.
#[derive(Clone, Copy, Debug)]
pub enum Receiver<'a> {
    /// By its id, which may be another process's once it has ended and was waited for.
    Id(u32),
    /// By a descriptor (`pidfd_open`).
    Descriptor(BorrowedFd<'a>),
}

/// How a part of the address space is passed to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passing {
    /// The receiver gets a copy-on-write copy of the mappings.
    Copy,
    /// The receiver gets the mappings, and the addresses are free here.
    Move,
    /// Both have the same memory: each sees the other's writes.
    Share,
    /// The pages appear in private memory of the receiver; both have them until one writes.
    Lend,
    /// The pages appear in private memory of the receiver, and read zero here.
    Transfer,
}

impl Passing {
    const ALL: [Passing; 5] = [
        Passing::Copy,
        Passing::Move,
        Passing::Share,
        Passing::Lend,
        Passing::Transfer,
    ];
}

/// What was passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Passed {
    /// Where the receiver has it.
    pub address: usize,
    /// Pages that the receiver got without a copy, those that were never touched among them.
    pub passed: u64,
    /// Pages that were copied, because they cannot be lent.
    pub copied: u64,
}

/// Memory that could not be [given](Causeway::give), and why.
#[derive(Debug)]
pub struct NotGiven {
    /// The memory, with its contents.
    pub memory: Memory,
    /// That of the kernel.
    pub error: io::Error,
}

impl fmt::Display for NotGiven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory was not given: {}", self.error)
    }
}

impl Error for NotGiven {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

/// Drops the memory.
impl From<NotGiven> for io::Error {
    fn from(it: NotGiven) -> io::Error {
        it.error
    }
}

/// Sums over the address space of the program. Units are pages of 4096 bytes but for `entries`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Counts {
    /// Entries of the map: ranges with the same attributes.
    pub entries: u64,
    /// Mapped.
    pub mapped: u64,
    /// Mapped and in memory.
    pub resident: u64,
    /// Locked into memory.
    pub locked: u64,
    /// The most that was ever mapped.
    pub peak: u64,
    /// Page tables.
    pub page_tables: u64,
}

/// Access rights to memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[allow(missing_docs)]
pub struct Rights {
    pub read: bool,
    pub write: bool,
    pub execute: bool,
}

/// One entry of the map.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// Its addresses.
    pub range: Range<usize>,
    /// Current rights.
    pub rights: Rights,
    /// Most rights that `mprotect` may grant.
    pub most_rights: Rights,
    /// Mapped as shared.
    pub shared: bool,
    /// A stack that grows automatically.
    pub grows_down: bool,
    /// Locked into memory, perhaps only from the first use of each page on.
    pub locked: bool,
    /// Private memory that was shared with children.
    pub shared_with_children: bool,
    /// Inheritance by children.
    pub inherit: Inherit,
    /// Pages that are in memory and mapped.
    pub resident: u64,
    /// Anonymous pages.
    pub anonymous: u64,
}

impl Causeway {
    /// Opens the device.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] on another kernel.
    pub fn open() -> io::Result<Causeway> {
        let device = File::open("/dev/causeway")?.into();
        Ok(Causeway { device })
    }

    /// Returns the version of the interface: 1, or a later one that includes it.
    ///
    /// # Errors
    /// That of the kernel, if it does not know the request.
    pub fn version(&self) -> io::Result<u32> {
        let mut version = 0u32;
        // SAFETY: the request writes a `u32`.
        unsafe { self.request(request::VERSION, (&raw mut version).cast())? };
        Ok(version)
    }

    /// Sets the inheritance of `memory` by later children.
    ///
    /// # Errors
    /// That of the kernel: out of memory.
    pub fn set_inherit(&self, memory: &mut Memory, inherit: Inherit) -> io::Result<()> {
        let range = memory.addresses();
        // SAFETY: the memory is accessed through atomics only, which may change at any time; a
        // child without it does not access it, since `Memory` knows the process that has it.
        unsafe { self.set_inherit_of(range, inherit)? };
        memory.note_children(inherit != Inherit::None);
        Ok(())
    }

    /// Does as [`set_inherit`](Causeway::set_inherit) for any addresses; the first is a multiple of
    /// 4096.
    ///
    /// # Safety
    /// The children's code must match their memory: no reference to memory that is shared or
    /// missing in a child may be used there.
    ///
    /// # Errors
    /// Those of the kernel: `EINVAL` for an unaligned address or to share a stack that grows,
    /// `ENOMEM` if a part is not mapped.
    pub unsafe fn set_inherit_of(&self, range: Range<usize>, inherit: Inherit) -> io::Result<()> {
        let what = Inherit::ALL.iter().position(|&it| it == inherit);
        let len = range.end.saturating_sub(range.start);
        let mut words = [range.start as u64, len as u64, what.unwrap_or(0) as u64];
        // SAFETY: the request reads three words.
        unsafe { self.request(request::INHERIT, words.as_mut_ptr().cast()) }
    }

    /// Returns sums over the address space.
    ///
    /// # Errors
    /// That of the kernel, if it does not know the request.
    pub fn counts(&self) -> io::Result<Counts> {
        let mut words = [0u64; 8];
        // SAFETY: the request writes eight words.
        unsafe { self.request(request::COUNTS, words.as_mut_ptr().cast())? };
        let [entries, mapped, resident, locked, peak, page_tables, ..] = words;
        Ok(Counts {
            entries,
            mapped,
            resident,
            locked,
            peak,
            page_tables,
        })
    }

    /// Returns the entry at an address.
    ///
    /// # Errors
    /// `ENOMEM` if nothing is mapped there.
    pub fn entry(&self, address: usize) -> io::Result<Entry> {
        let mut words = [0u64; 8];
        words[0] = address as u64;
        // SAFETY: the request reads and writes eight words.
        unsafe { self.request(request::ENTRY, words.as_mut_ptr().cast())? };
        let [
            start,
            end,
            rights,
            most,
            flags,
            inherit,
            resident,
            anonymous,
        ] = words;
        let flag = |bit: u64| flags & bit != 0;
        let inherit = Inherit::ALL.get(inherit as usize).copied();
        Ok(Entry {
            range: start as usize..end as usize,
            rights: Rights::of(rights),
            most_rights: Rights::of(most),
            shared: flag(1),
            grows_down: flag(2),
            locked: flag(4 | 8),
            shared_with_children: flag(16),
            inherit: inherit.ok_or(io::ErrorKind::InvalidData)?,
            resident,
            anonymous,
        })
    }

    /// Passes `memory` to a process, which has it at an address of the kernel's choice. Memory that
    /// was [transferred](Passing::Transfer) reads zero afterwards; to move it, use
    /// [`give`](Causeway::give).
    ///
    /// # Errors
    /// Those of [`pass_range`](Causeway::pass_range); [`io::ErrorKind::InvalidInput`] for a move.
    pub fn pass(&self, memory: &Memory, to: Receiver<'_>, how: Passing) -> io::Result<Passed> {
        if how == Passing::Move {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the memory stays mapped, and is accessed through atomics only, which may change
        // at any time. The receiver's memory so far stays as it is.
        unsafe { self.pass_range(memory.addresses(), to, how, None) }
    }

    /// Moves `memory` to a process, which has it at an address of the kernel's choice.
    ///
    /// # Errors
    /// Those of [`pass_range`](Causeway::pass_range), with the memory as it was.
    pub fn give(&self, memory: Memory, to: Receiver<'_>) -> Result<Passed, NotGiven> {
        // SAFETY: no reference to the memory is left.
        match unsafe { self.pass_range(memory.addresses(), to, Passing::Move, None) } {
            Ok(passed) => {
                // The addresses are free.
                mem::forget(memory);
                Ok(passed)
            }
            Err(error) => Err(NotGiven { memory, error }),
        }
    }

    /// Passes `range` to a process, at `address` there or at one of the kernel's choice. All are
    /// multiples of 4096. What is mapped at `address` is replaced; to lend or transfer pages, it
    /// must be private memory that may be written.
    ///
    /// # Safety
    /// No reference to memory that is moved or transferred may be used afterwards, in this process
    /// or the receiver, nor one to what is replaced. Memory that is shared may change at any time.
    ///
    /// # Errors
    /// Those of the kernel: `EINVAL` for a bad range or way, `EFAULT` if a part is not mapped or
    /// may not be read or replaced, `ESRCH`, `EPERM` or `EBADF` for the receiver, `ENOMEM`.
    pub unsafe fn pass_range(
        &self,
        range: Range<usize>,
        to: Receiver<'_>,
        how: Passing,
        address: Option<usize>,
    ) -> io::Result<Passed> {
        let (receiver, flags) = match to {
            Receiver::Id(id) => (u64::from(id), 0),
            Receiver::Descriptor(fd) => (fd.as_raw_fd() as u64, 1),
        };
        let how = Passing::ALL.iter().position(|&it| it == how);
        let mut words = [
            receiver,
            flags,
            how.unwrap_or(0) as u64,
            range.start as u64,
            range.end.saturating_sub(range.start) as u64,
            address.unwrap_or(0) as u64,
            0,
            0,
        ];
        // SAFETY: the request reads and writes eight words; the caller vouches for the ranges.
        unsafe { self.request(request::PASS, words.as_mut_ptr().cast())? };
        let [.., address, passed, copied] = words;
        Ok(Passed {
            address: address as usize,
            passed,
            copied,
        })
    }

    /// Makes a request.
    ///
    /// # Safety
    /// `argument` points to the memory that the request reads and writes.
    unsafe fn request(&self, request: u64, argument: *mut libc::c_void) -> io::Result<()> {
        // SAFETY: the caller vouches for the argument.
        match unsafe { libc::ioctl(self.device.as_raw_fd(), request as _, argument) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

impl Rights {
    fn of(bits: u64) -> Rights {
        Rights {
            read: bits & 1 != 0,
            write: bits & 2 != 0,
            execute: bits & 4 != 0,
        }
    }
}
