//! Returns the login shell: the superuser's in the root's `/etc/passwd`.

use alloc::vec::Vec;

use fbuf::BytesSink;
use fs::{Kind, Walk};

/// The default where `/etc/passwd` names no shell that exists.
const DEFAULT: &[u8] = b"/bin/sh";
/// So much of `/etc/passwd` is looked at, in bytes.
const LOOKED_AT: usize = 1 << 16;

/// Root's shell.
pub fn of_root(walk: &Walk<'_>) -> Vec<u8> {
    let is_file = |path: &[u8]| {
        let place = walk.resolve(path, true);
        place.is_ok_and(|place| place.vnode().kind() == Kind::Regular)
    };
    let read = || {
        let place = walk.resolve(b"/etc/passwd", true).ok()?;
        let mut text = nucleus::try_filled(LOOKED_AT, 0).ok()?;
        let length = place.vnode().read(0, &mut BytesSink::new(&mut text)).ok()?;
        text.truncate(length);
        shell_in(&text).map(<[u8]>::to_vec)
    };
    read()
        .filter(|shell| is_file(shell))
        .unwrap_or_else(|| DEFAULT.to_vec())
}

/// Returns the last field of the first line whose third one is 0, if it is an absolute path.
fn shell_in(passwd: &[u8]) -> Option<&[u8]> {
    let mut lines = passwd.split(|&byte| byte == b'\n');
    let line = lines.find(|line| line.split(|&byte| byte == b':').nth(2) == Some(b"0"))?;
    let shell = line.split(|&byte| byte == b':').nth(6)?;
    shell.starts_with(b"/").then_some(shell)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_superusers_shell_is_found() {
        let passwd = b"daemon:x:1:1::/:/bin/false\nroot:x:0:0:root:/root:/bin/bash\n";
        assert_eq!(shell_in(passwd), Some(&b"/bin/bash"[..]));
        assert_eq!(shell_in(b"root:x:0:0:root:/root:bash\n"), None);
        assert_eq!(shell_in(b"root:x:0:0"), None);
        assert_eq!(shell_in(b""), None);
    }
}
