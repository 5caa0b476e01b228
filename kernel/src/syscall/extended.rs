//! Extended attributes: no file system here has any, which is what programs are told once the file is found.

use abi::{
    Errno, Result,
    raw::general::{self as raw, AT_FDCWD, AT_SYMLINK_NOFOLLOW},
};

use super::{Call, Entry, path};

pub(super) const CALLS: &[Entry] = &[
    Entry::new(raw::__NR_getxattr, "getxattr", by_path),
    Entry::new(raw::__NR_setxattr, "setxattr", by_path),
    Entry::new(raw::__NR_listxattr, "listxattr", by_path),
    Entry::new(raw::__NR_removexattr, "removexattr", by_path),
    Entry::new(raw::__NR_lgetxattr, "lgetxattr", by_path_of_link),
    Entry::new(raw::__NR_lsetxattr, "lsetxattr", by_path_of_link),
    Entry::new(raw::__NR_llistxattr, "llistxattr", by_path_of_link),
    Entry::new(raw::__NR_lremovexattr, "lremovexattr", by_path_of_link),
    Entry::new(raw::__NR_fgetxattr, "fgetxattr", by_descriptor),
    Entry::new(raw::__NR_fsetxattr, "fsetxattr", by_descriptor),
    Entry::new(raw::__NR_flistxattr, "flistxattr", by_descriptor),
    Entry::new(raw::__NR_fremovexattr, "fremovexattr", by_descriptor),
];

fn by_path(call: &mut Call<'_>) -> Result<usize> {
    path::place(call, AT_FDCWD, call.address(0), 0)?;
    Err(Errno::EOPNOTSUPP)
}

fn by_path_of_link(call: &mut Call<'_>) -> Result<usize> {
    path::place(call, AT_FDCWD, call.address(0), AT_SYMLINK_NOFOLLOW)?;
    Err(Errno::EOPNOTSUPP)
}

fn by_descriptor(call: &mut Call<'_>) -> Result<usize> {
    if call.files().get(call.int(0))?.is_path() {
        return Err(Errno::EBADF);
    }
    Err(Errno::EOPNOTSUPP)
}
