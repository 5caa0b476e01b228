//! The credentials that `execve` gives: set-id bits, file capabilities, and what withholds them.
//!
//! See `capabilities(7)`, "Transformation of capabilities during execve()".

use abi::{Errno, Result, raw::general as raw};
use fs::{Location, MountFlags};

use crate::process::{CapabilitySet, Credentials, KEEP_CAPS, credentials::NO_ROOT};

/// The attribute that holds a file's capabilities.
const ATTRIBUTE: &[u8] = b"security.capability";

/// What a file gives to those that execute it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// The effective user (set-uid).
    pub uid: Option<u32>,
    /// The effective group (set-gid).
    pub gid: Option<u32>,
    pub capabilities: Option<FileCapabilities>,
}

/// The capabilities of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCapabilities {
    pub permitted: CapabilitySet,
    pub inheritable: CapabilitySet,
    /// Those that the program may use are in effect from the start.
    pub in_effect: bool,
}

/// Why a program does not get what its file gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Withheld {
    /// `PR_SET_NO_NEW_PRIVS`.
    pub no_new_privileges: bool,
    /// Another process can change where its relative names lead (`CLONE_FS`).
    pub shares_fs_context: bool,
}

impl Withheld {
    fn any(self) -> bool {
        self.no_new_privileges || self.shares_fs_context
    }
}

/// The result of an `execve`, as far as rights go.
#[derive(Clone, Debug)]
pub struct Rights {
    pub credentials: Credentials,
    /// The program is to distrust its environment (`AT_SECURE`).
    pub secure: bool,
    /// It has rights that the former program did not have.
    pub raised: bool,
    /// The file gave an id or a capability: settings that make attacks easier are undone.
    pub is_set_id: bool,
    /// Its memory is not for other processes of its user.
    pub private: bool,
    /// It acts with other ids than the former program, or may do more.
    pub changed: bool,
}

impl FileCapabilities {
    /// Decodes the attribute. `None` if it counts in another name space of users only.
    ///
    /// # Errors
    /// `EINVAL` for a version or size that is not known.
    fn decode(bytes: &[u8]) -> Result<Option<FileCapabilities>> {
        let word = |at: usize| {
            let word = bytes.get(4 * at..4 * at + 4)?;
            Some(u64::from(u32::from_le_bytes(word.try_into().ok()?)))
        };
        let head = word(0).ok_or(Errno::EINVAL)? as u32;
        // How many words each set has, and the user that is root in the name space.
        let (words, root) = match (head & raw::VFS_CAP_REVISION_MASK, bytes.len()) {
            (raw::VFS_CAP_REVISION_1, 12) => (1, None),
            (raw::VFS_CAP_REVISION_2, 20) => (2, None),
            (raw::VFS_CAP_REVISION_3, 24) => (2, word(5)),
            _ => return Err(Errno::EINVAL),
        };
        if root.is_some_and(|root| root != 0) {
            return Ok(None);
        }
        let set = |which: usize| {
            let words = (0..words).map(|n| word(1 + 2 * n + which).unwrap_or(0) << (32 * n));
            CapabilitySet(words.fold(0, |set, word| set | word)).and(CapabilitySet::ALL)
        };
        Ok(Some(FileCapabilities {
            permitted: set(0),
            inheritable: set(1),
            in_effect: head & raw::VFS_CAP_FLAGS_EFFECTIVE != 0,
        }))
    }
}

impl Grants {
    /// Returns what `file` gives: owner, group and mode are those of one moment. On a mount without
    /// set-id programs it gives nothing.
    ///
    /// # Errors
    /// `EINVAL` for capabilities that can't be decoded, and those of the file system.
    pub fn of(file: &Location, withheld: Withheld) -> Result<Grants> {
        let mut grants = Grants::default();
        if file.mount().has(MountFlags::NO_SET_ID) {
            return Ok(grants);
        }
        let attributes = file.attributes()?;
        let mode = attributes.mode;
        if !withheld.no_new_privileges {
            grants.uid = (mode & raw::S_ISUID != 0).then_some(attributes.uid);
            // Without the right to execute, the bit stands for mandatory locks.
            let set_group = raw::S_ISGID | raw::S_IXGRP;
            grants.gid = (mode & set_group == set_group).then_some(attributes.gid);
        }
        let extended = file.vnode().extended_attributes();
        match extended.and_then(|all| all.get(ATTRIBUTE)) {
            Ok(bytes) => grants.capabilities = FileCapabilities::decode(&bytes)?,
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => {}
            Err(error) => return Err(error),
        }
        Ok(grants)
    }
}

impl Credentials {
    /// Returns the rights of a program whose file gives `grants`, executed with these credentials.
    ///
    /// # Errors
    /// `EPERM` if the bounding set withholds capabilities from a program that does not look which
    /// ones it has.
    pub fn execute(&self, grants: &Grants, withheld: Withheld) -> Result<Rights> {
        let mut new = self.clone();
        new.effective_uid = grants.uid.unwrap_or(self.effective_uid);
        new.effective_gid = grants.gid.unwrap_or(self.effective_gid);
        let own = &mut new.capabilities;
        let mut permitted = CapabilitySet::EMPTY;
        let mut in_effect = false;
        if let Some(file) = &grants.capabilities {
            permitted = own
                .bounding
                .and(file.permitted)
                .union(own.inheritable.and(file.inheritable));
            if file.in_effect && !file.permitted.is_within(permitted) {
                return Err(Errno::EPERM);
            }
            in_effect = file.in_effect;
        }
        let (real_root, effective_root) = (self.real_uid == 0, new.effective_uid == 0);
        // A file that is set-uid root and names capabilities gives just these.
        let names_all = grants.capabilities.is_some() && effective_root && !real_root;
        if own.secure_bits & NO_ROOT == 0 && !names_all {
            if real_root || effective_root {
                permitted = own.bounding.union(own.inheritable);
            }
            in_effect |= effective_root;
        }
        let gained = !permitted.is_within(self.capabilities.permitted);
        let other_id = new.effective_uid != self.real_uid || new.effective_gid != self.real_gid;
        let is_withheld = (other_id || gained) && withheld.any();
        if is_withheld {
            if !self.may(raw::CAP_SETUID) || withheld.no_new_privileges {
                new.effective_uid = self.real_uid;
                new.effective_gid = self.real_gid;
            }
            permitted = permitted.and(self.capabilities.permitted);
        }
        new.saved_uid = new.effective_uid;
        new.saved_gid = new.effective_gid;
        new.fs.uid = new.effective_uid;
        new.fs.gid = new.effective_gid;
        if grants.capabilities.is_some() || other_id {
            own.ambient = CapabilitySet::EMPTY;
        }
        own.permitted = permitted.union(own.ambient);
        new.fs.capabilities = match in_effect {
            true => own.permitted,
            false => own.ambient,
        };
        own.secure_bits &= !KEEP_CAPS;
        let grew = in_effect || !own.permitted.is_within(own.ambient);
        let changed = new.acts_differently(self);
        let differ = new.effective_uid != new.real_uid || new.effective_gid != new.real_gid;
        Ok(Rights {
            secure: other_id || !real_root && grew,
            raised: (other_id || gained) && !is_withheld,
            is_set_id: grants.uid.is_some() || grants.gid.is_some() || gained,
            private: differ || changed,
            changed,
            credentials: new,
        })
    }

    /// Whether its bearer acts with other ids than that of `old`, or may do more: its memory is
    /// private then, and it is not tied to its parent any more.
    pub fn acts_differently(&self, old: &Credentials) -> bool {
        let ids = |c: &Credentials| [c.effective_uid, c.effective_gid, c.fs.uid, c.fs.gid];
        ids(self) != ids(old)
            || !self
                .capabilities
                .permitted
                .is_within(old.capabilities.permitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> Credentials {
        let mut user = Credentials {
            real_uid: 1000,
            effective_uid: 1000,
            saved_uid: 1000,
            real_gid: 1000,
            effective_gid: 1000,
            saved_gid: 1000,
            fs: fs::Credentials::user(1000, 1000),
            ..Credentials::default()
        };
        user.capabilities.permitted = CapabilitySet::EMPTY;
        user
    }

    fn capability(permitted: u32, in_effect: bool) -> Grants {
        Grants {
            capabilities: Some(FileCapabilities {
                permitted: CapabilitySet::of(&[permitted]),
                inheritable: CapabilitySet::EMPTY,
                in_effect,
            }),
            ..Grants::default()
        }
    }

    const SET_UID: Grants = Grants {
        uid: Some(0),
        gid: None,
        capabilities: None,
    };
    const NO_NEW: Withheld = Withheld {
        no_new_privileges: true,
        shares_fs_context: false,
    };
    const SHARED: Withheld = Withheld {
        no_new_privileges: false,
        shares_fs_context: true,
    };

    #[test]
    fn a_plain_program_changes_nothing() {
        let rights = user()
            .execute(&Grants::default(), Withheld::default())
            .unwrap();
        assert!(!rights.secure && !rights.raised && !rights.private && !rights.is_set_id);
        let root = Credentials::default();
        let rights = root
            .execute(&Grants::default(), Withheld::default())
            .unwrap();
        assert!(!rights.secure && !rights.raised && !rights.private && !rights.is_set_id);
        assert_eq!(rights.credentials.fs.capabilities, CapabilitySet::ALL);
    }

    #[test]
    fn a_set_uid_program_gets_its_owner_unless_it_is_watched() {
        let rights = user().execute(&SET_UID, Withheld::default()).unwrap();
        assert!(rights.secure && rights.raised && rights.private && rights.is_set_id);
        let new = &rights.credentials;
        assert_eq!(
            [new.real_uid, new.effective_uid, new.saved_uid],
            [1000, 0, 0]
        );
        assert_eq!(new.fs.capabilities, CapabilitySet::ALL);
        for withheld in [NO_NEW, SHARED] {
            let rights = user().execute(&SET_UID, withheld).unwrap();
            assert!(!rights.raised && rights.secure);
            assert_eq!(rights.credentials.effective_uid, 1000);
            assert_eq!(rights.credentials.saved_uid, 1000);
            assert_eq!(rights.credentials.fs.capabilities, CapabilitySet::EMPTY);
            assert_eq!(
                rights.credentials.capabilities.permitted,
                CapabilitySet::EMPTY
            );
        }
    }

    #[test]
    fn capabilities_of_a_file_are_bounded() {
        let net = capability(raw::CAP_NET_RAW, true);
        let rights = user().execute(&net, Withheld::default()).unwrap();
        assert!(rights.secure && rights.raised && rights.private);
        assert!(rights.credentials.may(raw::CAP_NET_RAW));
        assert!(!rights.credentials.may(raw::CAP_KILL));
        let quiet = capability(raw::CAP_NET_RAW, false);
        let rights = user().execute(&quiet, Withheld::default()).unwrap();
        assert!(!rights.credentials.may(raw::CAP_NET_RAW) && rights.secure);
        let rights = user().execute(&net, NO_NEW).unwrap();
        assert!(!rights.credentials.may(raw::CAP_NET_RAW) && !rights.raised);
        let mut bound = user();
        bound.capabilities.bounding = CapabilitySet::EMPTY;
        assert_eq!(
            bound.execute(&net, Withheld::default()).err(),
            Some(Errno::EPERM)
        );
        assert!(bound.execute(&quiet, Withheld::default()).is_ok());
    }

    #[test]
    fn a_set_uid_root_file_with_capabilities_gives_just_these() {
        let both = Grants {
            uid: Some(0),
            ..capability(raw::CAP_NET_RAW, true)
        };
        let rights = user().execute(&both, Withheld::default()).unwrap();
        assert_eq!(
            rights.credentials.fs.capabilities,
            CapabilitySet::of(&[raw::CAP_NET_RAW])
        );
    }

    #[test]
    fn ambient_capabilities_survive_but_not_a_set_id_file() {
        let mut user = user();
        let one = CapabilitySet::of(&[raw::CAP_NET_BIND_SERVICE]);
        user.capabilities.permitted = one;
        user.capabilities.inheritable = one;
        user.capabilities.ambient = one;
        user.capabilities.secure_bits = KEEP_CAPS;
        let rights = user
            .execute(&Grants::default(), Withheld::default())
            .unwrap();
        assert_eq!(rights.credentials.fs.capabilities, one);
        assert_eq!(rights.credentials.capabilities.secure_bits, 0);
        assert!(!rights.secure);
        let group = Grants {
            gid: Some(5),
            ..Grants::default()
        };
        let rights = user.execute(&group, Withheld::default()).unwrap();
        assert_eq!(rights.credentials.fs.capabilities, CapabilitySet::EMPTY);
    }

    #[test]
    fn attributes_of_all_versions_are_decoded_and_others_refused() {
        let bytes = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let decode = |words: &[u32]| FileCapabilities::decode(&bytes(words));
        let first = decode(&[0x0100_0001, 1 << 13, 2]).unwrap().unwrap();
        assert_eq!(first.permitted, CapabilitySet(1 << 13));
        assert_eq!(first.inheritable, CapabilitySet(2));
        assert!(first.in_effect);
        let second = decode(&[0x0200_0000, 1, 2, 1 << 6, 0]).unwrap().unwrap();
        assert_eq!(second.permitted, CapabilitySet(1 | 1 << 38));
        assert!(!second.in_effect);
        assert_eq!(decode(&[0x0300_0000, 1, 2, 0, 0, 1000]), Ok(None));
        assert!(decode(&[0x0300_0000, 1, 2, 0, 0, 0]).unwrap().is_some());
        for bad in [
            &[][..],
            &[0x0200_0000],
            &[0x0400_0000, 0, 0, 0, 0],
            &[0x0100_0000, 0],
        ] {
            assert_eq!(decode(bad), Err(Errno::EINVAL));
        }
    }
}
