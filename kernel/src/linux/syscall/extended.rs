//! Extended attributes: `getxattr`, `setxattr`, `listxattr`, `removexattr` and their relatives.

use alloc::vec::Vec;

use abi::{
    Errno, Result,
    raw::general::{self as raw, AT_FDCWD, AT_SYMLINK_NOFOLLOW, XATTR_CREATE, XATTR_REPLACE},
};
use fs::Location;
use nucleus::{VirtAddr, user};

use super::{Call, FlagSet, SystemCall, call, flag_set, path};

const FLAGS: FlagSet = flag_set!("flags", [XATTR_CREATE, XATTR_REPLACE], EINVAL);

/// Reports that `system.` attributes are not supported.
const LISTS: &str =
    "an access list (`system.posix_acl_*`) that permission bits can't say gets EOPNOTSUPP(95)";

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_getxattr, |call| get(call, By::Path)),
    call!(__NR_lgetxattr, |call| get(call, By::Link)),
    call!(__NR_fgetxattr, |call| get(call, By::Descriptor)),
    call!(__NR_setxattr, |call| set(call, By::Path))
        .flags(&[&FLAGS])
        .note(LISTS),
    call!(__NR_lsetxattr, |call| set(call, By::Link))
        .flags(&[&FLAGS])
        .note(LISTS),
    call!(__NR_fsetxattr, |call| set(call, By::Descriptor))
        .flags(&[&FLAGS])
        .note(LISTS),
    call!(__NR_listxattr, |call| list(call, By::Path)),
    call!(__NR_llistxattr, |call| list(call, By::Link)),
    call!(__NR_flistxattr, |call| list(call, By::Descriptor)),
    call!(__NR_removexattr, |call| remove(call, By::Path)),
    call!(__NR_lremovexattr, |call| remove(call, By::Link)),
    call!(__NR_fremovexattr, |call| remove(call, By::Descriptor)),
];

/// Which file a call means by its first argument.
#[derive(Clone, Copy)]
enum By {
    Path,
    /// A path whose last name may be a link.
    Link,
    Descriptor,
}

/// The place; `None` for an open file that has none.
fn place(call: &Call<'_>, by: By) -> Result<Option<Location>> {
    match by {
        By::Path => path::named(call, 0).map(Some),
        By::Link => path::place(call, AT_FDCWD, call.address(0), AT_SYMLINK_NOFOLLOW).map(Some),
        By::Descriptor => {
            let open = call.opened(0)?;
            Ok(open.location().cloned())
        }
    }
}

/// The attribute's name.
fn name(call: &Call<'_>) -> Result<Vec<u8>> {
    let name = user::copy_in_string(call.address(1), raw::XATTR_NAME_MAX as usize)?;
    name.filter(|name| !name.is_empty()).ok_or(Errno::ERANGE)
}

/// Gives the program bytes, or, where it has no room at all, only their number.
fn give(bytes: &[u8], to: VirtAddr, room: usize) -> Result<usize> {
    if room == 0 {
        return Ok(bytes.len());
    }
    if bytes.len() > room {
        return Err(Errno::ERANGE);
    }
    user::copy_out(to, bytes)?;
    Ok(bytes.len())
}

fn get(call: &Call<'_>, by: By) -> Result<usize> {
    let name = name(call)?;
    let place = place(call, by)?.ok_or(Errno::EOPNOTSUPP)?;
    let value = place.extended(&call.credentials().fs, &name)?;
    give(&value, call.address(2), call.size(3))
}

fn list(call: &Call<'_>, by: By) -> Result<usize> {
    let Some(place) = place(call, by)? else {
        return Ok(0);
    };
    let names = match place.extended_names(&call.credentials().fs) {
        // A file system without attributes has an empty list.
        Err(Errno::EOPNOTSUPP) => return Ok(0),
        names => names?,
    };
    give(&names, call.address(1), call.size(2))
}

fn set(call: &Call<'_>, by: By) -> Result<usize> {
    let flags = call.flags(4, &FLAGS)?;
    let name = name(call)?;
    let size = call.size(3);
    if size > raw::XATTR_SIZE_MAX as usize {
        return Err(Errno::E2BIG);
    }
    call.takes_memory()?;
    let value: Vec<u8> = call.read_many(2, size)?;
    let place = place(call, by)?.ok_or(Errno::EOPNOTSUPP)?;
    place.set_extended(&call.credentials().fs, &name, Some(&value), flags)?;
    Ok(0)
}

fn remove(call: &Call<'_>, by: By) -> Result<usize> {
    let name = name(call)?;
    let place = place(call, by)?.ok_or(Errno::EOPNOTSUPP)?;
    place.set_extended(&call.credentials().fs, &name, None, 0)?;
    Ok(0)
}
