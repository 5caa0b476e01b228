//! Extended attributes.

use libc::c_void;

use crate::support::{self, Outcome, c};
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("attributes: set, get, list, remove", set_get_list),
    ("attributes: limits", limits),
    ("attributes: who may", who_may),
    ("attributes: access lists", access_lists),
];

fn set(path: &std::ffi::CStr, name: &std::ffi::CStr, value: &[u8], flags: i32) -> Outcome {
    call!(setxattr(
        path.as_ptr(),
        name.as_ptr(),
        value.as_ptr().cast(),
        value.len(),
        flags
    ));
    Ok(())
}

fn get(path: &std::ffi::CStr, name: &std::ffi::CStr) -> Result<Vec<u8>, String> {
    let mut value = vec![0u8; 70_000];
    let n = call!(getxattr(
        path.as_ptr(),
        name.as_ptr(),
        value.as_mut_ptr().cast(),
        value.len()
    ));
    value.truncate(n as usize);
    Ok(value)
}

fn list(path: &std::ffi::CStr) -> Result<Vec<String>, String> {
    let mut names = vec![0u8; 70_000];
    let n = call!(listxattr(
        path.as_ptr(),
        names.as_mut_ptr().cast(),
        names.len()
    ));
    names.truncate(n as usize);
    let mut names: Vec<_> = names
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    names.sort();
    Ok(names)
}

fn set_get_list() -> Outcome {
    let (path, file) = support::file("attributes", b"x")?;
    let path = c(&path);
    ensure!(list(&path)?.is_empty(), "attributes from the start");
    refused!(
        ENODATA,
        getxattr(path.as_ptr(), c"user.a".as_ptr(), std::ptr::null_mut(), 0)
    );
    set(&path, c"user.a", b"one", 0)?;
    set(&path, c"user.b", b"", 0)?;
    set(&path, c"trusted.c", b"\0\xff", libc::XATTR_CREATE)?;
    set(&path, c"user.a", b"another", libc::XATTR_REPLACE)?;
    ensure!(get(&path, c"user.a")? == b"another", "another value");
    ensure!(get(&path, c"user.b")?.is_empty(), "not empty");
    ensure!(
        list(&path)? == ["trusted.c", "user.a", "user.b"],
        "{:?}",
        list(&path)?
    );
    let bytes: *const c_void = b"x".as_ptr().cast();
    refused!(
        EEXIST,
        setxattr(
            path.as_ptr(),
            c"user.a".as_ptr(),
            bytes,
            1,
            libc::XATTR_CREATE
        )
    );
    refused!(
        ENODATA,
        setxattr(
            path.as_ptr(),
            c"user.x".as_ptr(),
            bytes,
            1,
            libc::XATTR_REPLACE
        )
    );
    refused!(
        EINVAL,
        setxattr(path.as_ptr(), c"user.x".as_ptr(), bytes, 1, 8)
    );
    let mut small = [0u8; 3];
    refused!(
        ERANGE,
        fgetxattr(file, c"user.a".as_ptr(), small.as_mut_ptr().cast(), 3)
    );
    ensure!(
        call!(fgetxattr(file, c"user.a".as_ptr(), std::ptr::null_mut(), 0)) == 7,
        "another length"
    );
    refused!(ERANGE, flistxattr(file, small.as_mut_ptr().cast(), 3));
    call!(fremovexattr(file, c"user.a".as_ptr()));
    refused!(ENODATA, fremovexattr(file, c"user.a".as_ptr()));
    ensure!(
        list(&path)? == ["trusted.c", "user.b"],
        "{:?}",
        list(&path)?
    );
    // They belong to the file, not to the name.
    let other = c(&format!("{}-other", path.to_string_lossy()));
    call!(link(path.as_ptr(), other.as_ptr()));
    ensure!(
        get(&other, c"trusted.c")? == b"\0\xff",
        "another value by another name"
    );
    Ok(())
}

fn limits() -> Outcome {
    let (path, _) = support::file("attributes", b"x")?;
    let path = c(&path);
    let value = vec![7u8; 65_537];
    refused!(
        E2BIG,
        setxattr(
            path.as_ptr(),
            c"user.a".as_ptr(),
            value.as_ptr().cast(),
            65_537,
            0
        )
    );
    set(&path, c"user.a", &value[..65_536], 0)?;
    ensure!(get(&path, c"user.a")? == value[..65_536], "another value");
    let long = c(&format!("user.{}", "x".repeat(251)));
    refused!(
        ERANGE,
        setxattr(path.as_ptr(), long.as_ptr(), value.as_ptr().cast(), 1, 0)
    );
    refused!(
        ERANGE,
        setxattr(path.as_ptr(), c"".as_ptr(), value.as_ptr().cast(), 1, 0)
    );
    refused!(
        EINVAL,
        setxattr(
            path.as_ptr(),
            c"user.".as_ptr(),
            value.as_ptr().cast(),
            1,
            0
        )
    );
    refused!(
        EOPNOTSUPP,
        setxattr(
            path.as_ptr(),
            c"os2.a".as_ptr(),
            value.as_ptr().cast(),
            1,
            0
        )
    );
    for n in 0.. {
        let name = c(&format!("user.more{n}"));
        // SAFETY: all pointers are to live bytes.
        let failed = unsafe {
            libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), 4096, 0) != 0
        };
        if failed {
            ensure!(
                support::errno() == libc::ENOSPC,
                "errno {}",
                support::errno()
            );
            ensure!(n > 4, "only {n} more");
            break;
        }
        ensure!(n < 1000, "no limit");
    }
    // What has no attributes.
    let (reader, _) = support::pipe(0)?;
    refused!(
        EOPNOTSUPP,
        fgetxattr(reader, c"user.a".as_ptr(), std::ptr::null_mut(), 0)
    );
    refused!(
        EOPNOTSUPP,
        getxattr(
            c"/proc/version".as_ptr(),
            c"user.a".as_ptr(),
            std::ptr::null_mut(),
            0
        )
    );
    ensure!(list(c"/proc/version")?.is_empty(), "attributes in /proc");
    Ok(())
}

fn who_may() -> Outcome {
    let (path, _) = support::file("attributes", b"x")?;
    let folder = c(path.rsplit_once('/').map_or("/", |(folder, _)| folder));
    let link = c(&format!("{path}-link"));
    let path = c(&path);
    call!(symlink(path.as_ptr(), link.as_ptr()));
    set(&path, c"user.a", b"1", 0)?;
    set(&path, c"trusted.a", b"1", 0)?;
    set(&path, c"security.a", b"1", 0)?;
    let value: *const c_void = b"x".as_ptr().cast();
    refused!(
        EPERM,
        lsetxattr(link.as_ptr(), c"user.a".as_ptr(), value, 1, 0)
    );
    call!(lsetxattr(link.as_ptr(), c"trusted.a".as_ptr(), value, 1, 0));
    call!(chmod(path.as_ptr(), 0o644));
    call!(chmod(folder.as_ptr(), 0o1777));
    support::child(|| {
        call!(setgid(1000));
        call!(setuid(1000));
        ensure!(get(&path, c"user.a")? == b"1", "another value");
        ensure!(
            list(&path)? == ["security.a", "user.a"],
            "{:?}",
            list(&path)?
        );
        refused!(
            ENODATA,
            getxattr(
                path.as_ptr(),
                c"trusted.a".as_ptr(),
                std::ptr::null_mut(),
                0
            )
        );
        refused!(
            EPERM,
            setxattr(path.as_ptr(), c"trusted.a".as_ptr(), value, 1, 0)
        );
        refused!(
            EPERM,
            setxattr(path.as_ptr(), c"security.a".as_ptr(), value, 1, 0)
        );
        refused!(
            EACCES,
            setxattr(path.as_ptr(), c"user.a".as_ptr(), value, 1, 0)
        );
        refused!(
            EPERM,
            setxattr(folder.as_ptr(), c"user.a".as_ptr(), value, 1, 0)
        );
        Ok(())
    })
}

fn access_lists() -> Outcome {
    let (path, file) = support::file("attributes", b"x")?;
    let path = c(&path);
    let name = c"system.posix_acl_access";
    refused!(
        ENODATA,
        getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0)
    );
    let list = |entries: &[(u16, u16)]| {
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, rights) in entries {
            list.extend(tag.to_le_bytes());
            list.extend(rights.to_le_bytes());
            list.extend(u32::MAX.to_le_bytes());
        }
        list
    };
    set(&path, name, &list(&[(1, 6), (4, 4), (0x20, 1)]), 0)?;
    // SAFETY: all zeros is a valid structure to be filled.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    call!(fstat(file, &mut stat));
    ensure!(stat.st_mode & 0o777 == 0o641, "mode {:o}", stat.st_mode);
    let named = list(&[(1, 6), (2, 7), (4, 4), (0x10, 7), (0x20, 1)]);
    refused!(
        EOPNOTSUPP,
        setxattr(
            path.as_ptr(),
            name.as_ptr(),
            named.as_ptr().cast(),
            named.len(),
            0
        )
    );
    call!(removexattr(path.as_ptr(), name.as_ptr()));
    Ok(())
}
