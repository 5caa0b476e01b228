//! Files in memory without a name, and the seals that keep a file as it is: `memfd_create`.

use alloc::sync::Arc;

use abi::{Errno, Result, raw::general as raw};
use fs::{Location, Mount, OpenFlags, file::VnodeFile, ramfs};
use nucleus::{Prot, sync::Mutex, user};

use super::{Call, FlagSet, SystemCall, call, flag_set};
use crate::process::files::OpenFile;

pub(super) const CALLS: &[SystemCall] = &[call!(__NR_memfd_create, memfd_create)
    .flags(&[&FLAGS])
    .note("there are no huge pages: `MFD_HUGETLB` is refused")];

const FLAGS: FlagSet = flag_set!("flags", [raw::MFD_CLOEXEC, raw::MFD_ALLOW_SEALING], EINVAL);
/// The seals of `F_ADD_SEALS`.
pub(super) const SEALS: FlagSet = flag_set!(
    "seals",
    [
        raw::F_SEAL_SEAL,
        raw::F_SEAL_SHRINK,
        raw::F_SEAL_GROW,
        raw::F_SEAL_WRITE,
        raw::F_SEAL_FUTURE_WRITE
    ],
    EINVAL
);

/// The longest name.
const NAME_MAX: usize = 249;
/// The prefix of its name in `/proc/PID/fd` and `maps`.
const PREFIX: &[u8] = b"memfd:";

/// The file system of all such files; it is mounted nowhere.
pub(super) fn memory_mount() -> Arc<Mount> {
    static MOUNT: Mutex<Option<Arc<Mount>>> = Mutex::new(fs::rank::MOUNT, None);
    let mut mount = MOUNT.lock();
    mount
        .get_or_insert_with(|| {
            let options = ramfs::Options {
                pages: Some(u64::MAX / 2),
                nodes: Some(u64::MAX / 2),
                ..ramfs::Options::default()
            };
            Mount::internal(ramfs::root(options), "tmpfs")
        })
        .clone()
}

fn memfd_create(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(1, &FLAGS)?;
    let name = user::copy_in_string(call.address(0), NAME_MAX)?.ok_or(Errno::EINVAL)?;
    call.takes_memory()?;
    let files = call.files();
    let slot = files.reserve(0, call.descriptor_limit())?;
    let mount = memory_mount();
    let who = &call.credentials().fs;
    let seals = match flags & raw::MFD_ALLOW_SEALING {
        0 => raw::F_SEAL_SEAL,
        _ => 0,
    };
    let vnode = ramfs::create_sealed(mount.root(), 0o777, who, seals)?;
    let shown = [PREFIX, &name].concat();
    let place = Location::unnamed(&mount, vnode, &shown);
    let open_flags = OpenFlags::from_bits_retain(raw::O_RDWR | raw::O_LARGEFILE);
    let file = VnodeFile::new(place, open_flags)?;
    let close_on_exec = flags & raw::MFD_CLOEXEC != 0;
    Ok(slot.install(OpenFile::new(file, open_flags), close_on_exec))
}

/// `F_GET_SEALS`.
///
/// # Errors
/// `EINVAL` for a file that has none.
pub(super) fn get_seals(open: &OpenFile) -> Result<usize> {
    let place = open.location().ok_or(Errno::EINVAL)?;
    Ok(place.vnode().sealable()?.seals() as usize)
}

/// `F_ADD_SEALS`.
///
/// # Errors
/// `EPERM` if the descriptor is not open for writing or no seals may be added, `EBUSY` for
/// `F_SEAL_WRITE` while a mapping may write, `EINVAL` for a file that has none or for an unknown
/// seal.
pub(super) fn add_seals(call: &Call<'_>, open: &OpenFile, seals: u64) -> Result<usize> {
    if !open.flags().writes() {
        return Err(Errno::EPERM);
    }
    let place = open.location().ok_or(Errno::EINVAL)?;
    place.vnode().sealable()?;
    let seals = SEALS.check(call.caller(), seals)?;
    place.vnode().sealable()?.add_seals(seals as u32)?;
    Ok(0)
}

/// Returns the protection to which `mprotect` may raise a new shared mapping of `open`; `max`
/// without seals.
///
/// # Errors
/// `EPERM` where a seal forbids the mapping.
pub(super) fn check_mapping(open: &OpenFile, prot: Prot, max: Prot) -> Result<Prot> {
    let Some(place) = open.location() else {
        return Ok(max);
    };
    let Ok(file) = place.vnode().sealable() else {
        return Ok(max);
    };
    let seals = file.seals();
    let writes = open.flags().writes();
    if seals & raw::F_SEAL_WRITE != 0 && writes {
        return Err(Errno::EPERM);
    }
    if seals & raw::F_SEAL_FUTURE_WRITE == 0 {
        return Ok(max);
    }
    if prot.contains(Prot::WRITE) {
        return Err(Errno::EPERM);
    }
    Ok(max & (Prot::READ | Prot::EXEC))
}
