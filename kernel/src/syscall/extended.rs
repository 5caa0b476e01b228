//! Extended attributes: no file system here has any, which is what programs are told once the file is found.

use abi::{
    Errno, Result,
    raw::general::{self as raw, AT_FDCWD, AT_SYMLINK_NOFOLLOW},
};

use super::{Call, Handler, path};

pub(super) const CALLS: &[(u32, Handler)] = &[
    (raw::__NR_getxattr, by_path),
    (raw::__NR_setxattr, by_path),
    (raw::__NR_listxattr, by_path),
    (raw::__NR_removexattr, by_path),
    (raw::__NR_lgetxattr, by_path_of_link),
    (raw::__NR_lsetxattr, by_path_of_link),
    (raw::__NR_llistxattr, by_path_of_link),
    (raw::__NR_lremovexattr, by_path_of_link),
    (raw::__NR_fgetxattr, by_descriptor),
    (raw::__NR_fsetxattr, by_descriptor),
    (raw::__NR_flistxattr, by_descriptor),
    (raw::__NR_fremovexattr, by_descriptor),
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
