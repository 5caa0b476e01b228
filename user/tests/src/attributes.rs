//! Extended attributes.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attributes: set, get, list, remove", set_get_list),
    ("attributes: limits", limits),
    ("attributes: who may", who_may),
    ("attributes: access lists", access_lists),
];

fn set(path: &CStr, name: &CStr, value: &[u8], flags: i32) -> Outcome {
    call!(setxattr(
        path.as_ptr(),
        name.as_ptr(),
        value.as_ptr().cast(),
        value.len(),
        flags
    ));
    Ok(())
}

fn get(path: &CStr, name: &CStr) -> Result<Vec<u8>> {
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

fn list(path: &CStr) -> Result<Vec<String>> {
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
    let (path, file) = file("attributes", b"x")?;
    let path = c(&path);
    ensure!(list(&path)?.is_empty(), "attributes from the start");
    refused! { getxattr(path.as_ptr(), c"user.a".as_ptr(), null_mut(), 0) => ENODATA; }
    set(&path, c"user.a", b"one", 0)?;
    set(&path, c"user.b", b"", 0)?;
    set(&path, c"trusted.c", b"\0\xff", XATTR_CREATE)?;
    set(&path, c"user.a", b"another", XATTR_REPLACE)?;
    ensure!(get(&path, c"user.a")? == b"another", "another value");
    ensure!(get(&path, c"user.b")?.is_empty(), "not empty");
    equal!(list(&path)?, ["trusted.c", "user.a", "user.b"]);
    let bytes: *const c_void = b"x".as_ptr().cast();
    refused! {
        setxattr(path.as_ptr(), c"user.a".as_ptr(), bytes, 1, XATTR_CREATE) => EEXIST;
        setxattr(path.as_ptr(), c"user.x".as_ptr(), bytes, 1, XATTR_REPLACE) => ENODATA;
        setxattr(path.as_ptr(), c"user.x".as_ptr(), bytes, 1, 8) => EINVAL;
    }
    let mut small = [0u8; 3];
    refused! { fgetxattr(file, c"user.a".as_ptr(), small.as_mut_ptr().cast(), 3) => ERANGE; }
    equal!(call!(fgetxattr(file, c"user.a".as_ptr(), null_mut(), 0)), 7);
    refused!(ERANGE, flistxattr(file, small.as_mut_ptr().cast(), 3));
    call!(fremovexattr(file, c"user.a".as_ptr()));
    refused!(ENODATA, fremovexattr(file, c"user.a".as_ptr()));
    equal!(list(&path)?, ["trusted.c", "user.b"]);
    // Attributes belong to the file, not to its name.
    let other = c(&format!("{}-other", path.to_string_lossy()));
    call!(link(path.as_ptr(), other.as_ptr()));
    equal!(get(&other, c"trusted.c")?, b"\0\xff");
    Ok(())
}

fn limits() -> Outcome {
    let (path, _) = file("attributes", b"x")?;
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
    refused! {
        setxattr(path.as_ptr(), long.as_ptr(), value.as_ptr().cast(), 1, 0) => ERANGE;
        setxattr(path.as_ptr(), c"".as_ptr(), value.as_ptr().cast(), 1, 0) => ERANGE;
        setxattr(path.as_ptr(), c"user.".as_ptr(), value.as_ptr().cast(), 1, 0) => EINVAL;
        setxattr(path.as_ptr(), c"os2.a".as_ptr(), value.as_ptr().cast(), 1, 0) => EOPNOTSUPP;
    }
    for n in 0.. {
        let name = c(&format!("user.more{n}"));
        // SAFETY: all pointers are to live bytes.
        let failed = unsafe {
            libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), 4096, 0) != 0
        };
        if failed {
            equal!(errno(), ENOSPC);
            ensure!(n > 4, "only {n} more");
            break;
        }
        ensure!(n < 1000, "no limit");
    }
    // Files without attributes.
    let (reader, _) = pipe(0)?;
    refused! {
        fgetxattr(reader, c"user.a".as_ptr(), null_mut(), 0) => EOPNOTSUPP;
        getxattr(c"/proc/version".as_ptr(), c"user.a".as_ptr(), null_mut(), 0) => EOPNOTSUPP;
    }
    ensure!(list(c"/proc/version")?.is_empty(), "attributes in /proc");
    Ok(())
}

fn who_may() -> Outcome {
    let (path, _) = file("attributes", b"x")?;
    let folder = c(path.rsplit_once('/').map_or("/", |(folder, _)| folder));
    let link = c(&format!("{path}-link"));
    let path = c(&path);
    call!(symlink(path.as_ptr(), link.as_ptr()));
    set(&path, c"user.a", b"1", 0)?;
    set(&path, c"trusted.a", b"1", 0)?;
    set(&path, c"security.a", b"1", 0)?;
    let value: *const c_void = b"x".as_ptr().cast();
    refused! { lsetxattr(link.as_ptr(), c"user.a".as_ptr(), value, 1, 0) => EPERM; }
    call!(lsetxattr(link.as_ptr(), c"trusted.a".as_ptr(), value, 1, 0));
    call!(chmod(path.as_ptr(), 0o644));
    call!(chmod(folder.as_ptr(), 0o1777));
    child(|| {
        call!(setgid(1000));
        call!(setuid(1000));
        ensure!(get(&path, c"user.a")? == b"1", "another value");
        equal!(list(&path)?, ["security.a", "user.a"]);
        refused! {
            getxattr(path.as_ptr(), c"trusted.a".as_ptr(), null_mut(), 0) => ENODATA;
            setxattr(path.as_ptr(), c"trusted.a".as_ptr(), value, 1, 0) => EPERM;
            setxattr(path.as_ptr(), c"security.a".as_ptr(), value, 1, 0) => EPERM;
            setxattr(path.as_ptr(), c"user.a".as_ptr(), value, 1, 0) => EACCES;
            setxattr(folder.as_ptr(), c"user.a".as_ptr(), value, 1, 0) => EPERM;
        }
        Ok(())
    })
}

fn access_lists() -> Outcome {
    let (path, file) = file("attributes", b"x")?;
    let path = c(&path);
    let name = c"system.posix_acl_access";
    refused! { getxattr(path.as_ptr(), name.as_ptr(), null_mut(), 0) => ENODATA; }
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
    let mut stat: stat = unsafe { zeroed() };
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
