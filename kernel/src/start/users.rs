//! The users of the root's `/etc/passwd` and `/etc/group`, for programs that the kernel starts.

use alloc::vec::Vec;

use abi::{Errno, Result};
use fbuf::BytesSink;
use fs::{Kind, Walk};

use crate::process::Credentials;

/// The default where `/etc/passwd` names no shell that exists.
const SHELL: &[u8] = b"/bin/sh";
/// So much of a file is looked at, in bytes.
const LOOKED_AT: usize = 1 << 16;
/// The most supplementary groups that are looked for.
const GROUPS_MAX: usize = 1024;

/// The user as whom a program starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The number.
    pub uid: u32,
    /// The number of the first group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The name, if there is one.
    pub name: Vec<u8>,
    /// The home directory.
    pub home: Vec<u8>,
    /// The login shell.
    pub shell: Vec<u8>,
}

impl User {
    /// Returns the superuser, whose home and shell are those of `/etc/passwd` if they exist.
    pub fn root(walk: &Walk<'_>) -> User {
        let passwd = read(walk, b"/etc/passwd").unwrap_or_default();
        let mut user = find(&passwd, &[], b"0").unwrap_or_else(|_| User::without_line(0));
        user.gid = 0;
        user.groups.clear();
        user.settle(walk);
        user
    }

    /// Returns the user that `wanted` names: `NAME`, `UID`, `NAME:GROUP` or `UID:GID`. Numbers need
    /// no line in the files; one without a line has group 0.
    ///
    /// # Errors
    /// `ENOENT` for a name that is in no line, `ENOMEM`.
    pub fn find(walk: &Walk<'_>, wanted: &[u8]) -> Result<User> {
        let passwd = read(walk, b"/etc/passwd")?;
        let group = read(walk, b"/etc/group")?;
        let mut user = find(&passwd, &group, wanted)?;
        user.settle(walk);
        Ok(user)
    }

    /// Returns a user that has a number only.
    fn without_line(uid: u32) -> User {
        User {
            uid,
            gid: 0,
            groups: Vec::new(),
            name: match uid {
                0 => b"root".to_vec(),
                _ => Vec::new(),
            },
            home: match uid {
                0 => b"/root".to_vec(),
                _ => b"/".to_vec(),
            },
            shell: SHELL.to_vec(),
        }
    }

    /// Replaces a home or a shell that does not exist.
    fn settle(&mut self, walk: &Walk<'_>) {
        let is = |path: &[u8], kind| {
            let place = walk.resolve(path, true);
            place.is_ok_and(|place| place.vnode().kind() == kind)
        };
        if !is(&self.shell, Kind::Regular) {
            self.shell = SHELL.to_vec();
        }
        if !is(&self.home, Kind::Directory) {
            self.home = b"/".to_vec();
        }
    }

    /// Returns the credentials of the user's programs.
    pub fn credentials(&self) -> Credentials {
        let root = Credentials::default();
        let mut own = root.clone();
        (own.real_uid, own.effective_uid, own.saved_uid) = (self.uid, self.uid, self.uid);
        (own.real_gid, own.effective_gid, own.saved_gid) = (self.gid, self.gid, self.gid);
        (own.fs.uid, own.fs.gid) = (self.uid, self.gid);
        own.fs.groups.clone_from(&self.groups);
        own.follow_uids(&root);
        own
    }
}

/// Returns the first bytes of a file; none where there is no such file.
fn read(walk: &Walk<'_>, path: &[u8]) -> Result<Vec<u8>> {
    let Ok(place) = walk.resolve(path, true) else {
        return Ok(Vec::new());
    };
    let mut text = nucleus::try_filled(LOOKED_AT, 0)?;
    let length = place.vnode().read(0, &mut BytesSink::new(&mut text))?;
    text.truncate(length);
    Ok(text)
}

/// Returns the fields of the lines of a file.
fn lines(text: &[u8]) -> impl Iterator<Item = [&[u8]; 7]> {
    text.split(|&byte| byte == b'\n').map(|line| {
        let mut fields = [&b""[..]; 7];
        for (field, found) in fields.iter_mut().zip(line.split(|&byte| byte == b':')) {
            *field = found;
        }
        fields
    })
}

/// The number of a user or a group; the last one stands for none.
fn number(text: &[u8]) -> Option<u32> {
    let number = core::str::from_utf8(text).ok()?.parse().ok()?;
    (number != u32::MAX).then_some(number)
}

fn find(passwd: &[u8], group: &[u8], wanted: &[u8]) -> Result<User> {
    let (wanted, wanted_group) = match wanted.iter().position(|&byte| byte == b':') {
        Some(at) => (&wanted[..at], Some(&wanted[at + 1..])),
        None => (wanted, None),
    };
    let wanted_uid = number(wanted);
    let line = lines(passwd).find(|line| match wanted_uid {
        Some(uid) => number(line[2]) == Some(uid),
        None => !wanted.is_empty() && line[0] == wanted,
    });
    let mut user = match (line, wanted_uid) {
        (Some([name, _, uid, gid, _, home, shell]), _) => {
            let uid = number(uid).ok_or(Errno::ENOENT)?;
            let absolute = |path: &[u8], other: &[u8]| match path {
                [b'/', ..] => path.to_vec(),
                _ => other.to_vec(),
            };
            User {
                uid,
                gid: number(gid).unwrap_or(0),
                groups: Vec::new(),
                name: name.to_vec(),
                home: absolute(home, b"/"),
                shell: absolute(shell, SHELL),
            }
        }
        (None, Some(uid)) => User::without_line(uid),
        (None, None) => return Err(Errno::ENOENT),
    };
    let is_member = |members: &[u8]| {
        !user.name.is_empty()
            && members
                .split(|&byte| byte == b',')
                .any(|it| it == user.name)
    };
    match wanted_group {
        None => {
            let groups = lines(group).filter(|line| is_member(line[3]));
            let groups = groups.filter_map(|line| number(line[2])).take(GROUPS_MAX);
            user.groups = groups.collect();
        }
        Some(name) => {
            let named = || lines(group).find(|line| !name.is_empty() && line[0] == name);
            let gid = number(name).or_else(|| named().and_then(|line| number(line[2])));
            user.gid = gid.ok_or(Errno::ENOENT)?;
        }
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] = b"daemon:x:1:1::/:/bin/false\nroot:x:0:0:root:/root:/bin/bash\n\
        anna:x:1000:1000:Anna,,,:/home/anna:/bin/sh\nodd:x:7:7::home:sh\n";
    const GROUP: &[u8] = b"root:x:0:\ndisk:x:6:anna\nusers:x:100:bert,anna\nanna:x:1000:\n";

    fn found(wanted: &[u8]) -> Result<(u32, u32, Vec<u32>)> {
        find(PASSWD, GROUP, wanted).map(|user| (user.uid, user.gid, user.groups))
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        assert_eq!(found(b"anna"), Ok((1000, 1000, Vec::from([6, 100]))));
        assert_eq!(found(b"1000"), found(b"anna"));
        assert_eq!(found(b"anna:users"), Ok((1000, 100, Vec::new())));
        assert_eq!(found(b"anna:7"), Ok((1000, 7, Vec::new())));
        assert_eq!(found(b"4711"), Ok((4711, 0, Vec::new())));
        assert_eq!(found(b"4711:12"), Ok((4711, 12, Vec::new())));
        for wrong in [
            &b"bert"[..],
            b"",
            b":",
            b"anna:",
            b"anna:nobody",
            b":users",
            b"-1",
            b"4294967296",
        ] {
            assert_eq!(found(wrong), Err(Errno::ENOENT), "{wrong:?}");
        }
    }

    #[test]
    fn homes_and_shells_are_absolute() {
        let user = find(PASSWD, GROUP, b"odd").unwrap();
        assert_eq!((&user.home[..], &user.shell[..]), (&b"/"[..], SHELL));
        let root = find(PASSWD, b"", b"0").unwrap();
        assert_eq!(
            (&root.home[..], &root.shell[..]),
            (&b"/root"[..], &b"/bin/bash"[..])
        );
        assert_eq!(find(b"", b"", b"0").unwrap().shell, SHELL);
    }

    #[test]
    fn an_ordinary_user_has_no_capabilities() {
        let own = find(PASSWD, GROUP, b"anna").unwrap().credentials();
        assert_eq!(own.fs.capabilities, fs::credentials::CapabilitySet::EMPTY);
        assert_eq!(
            own.capabilities.permitted,
            fs::credentials::CapabilitySet::EMPTY
        );
        assert_eq!([own.real_uid, own.saved_uid, own.fs.uid], [1000; 3]);
    }
}
