//! User and group ids of a thread, and its capabilities.

use abi::raw::general as raw;
pub use fs::credentials::CapabilitySet;

/// The ids and capabilities of the caller that count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ids {
    /// Those for files, and the effective capabilities (`PTRACE_MODE_FSCREDS`): of names in
    /// `/proc`.
    Files,
    /// The real ones, and the permitted capabilities (`PTRACE_MODE_REALCREDS`): of system calls.
    Real,
}

/// Immutable; a change makes a new one. `fs` holds the ids that file access is judged by, and the
/// capabilities in effect.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    pub real_uid: u32,
    pub effective_uid: u32,
    pub saved_uid: u32,
    pub real_gid: u32,
    pub effective_gid: u32,
    pub saved_gid: u32,
    /// File-system user and group id, supplementary groups, effective capabilities.
    pub fs: fs::Credentials,
    pub capabilities: Capabilities,
}

/// The capability sets that are not in effect by themselves, and what becomes of them when ids
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The capabilities that may be put into effect.
    pub permitted: CapabilitySet,
    /// The capabilities that a program file may receive at `execve` if it asks.
    pub inheritable: CapabilitySet,
    /// The capabilities that any program receives at `execve`.
    pub ambient: CapabilitySet,
    /// The bounding set of `execve`.
    pub bounding: CapabilitySet,
    /// `SECBIT_*`.
    pub secure_bits: u32,
}

impl Default for Capabilities {
    /// The credentials of the first process.
    fn default() -> Capabilities {
        Capabilities {
            permitted: CapabilitySet::ALL,
            inheritable: CapabilitySet::EMPTY,
            ambient: CapabilitySet::EMPTY,
            bounding: CapabilitySet::ALL,
            secure_bits: 0,
        }
    }
}

/// Capabilities that follow the file-system user id.
const OF_FILES: CapabilitySet = CapabilitySet::of(&[
    raw::CAP_CHOWN,
    raw::CAP_DAC_OVERRIDE,
    raw::CAP_DAC_READ_SEARCH,
    raw::CAP_FOWNER,
    raw::CAP_FSETID,
    raw::CAP_LINUX_IMMUTABLE,
    raw::CAP_MKNOD,
    raw::CAP_MAC_OVERRIDE,
]);

/// `SECURE_NOROOT`: uid 0 gets nothing by `execve`.
pub const NO_ROOT: u32 = 1 << 0;
/// `SECURE_NO_SETUID_FIXUP`: a change of ids leaves the capabilities alone.
pub const NO_SETUID_FIXUP: u32 = 1 << 2;
/// `SECURE_KEEP_CAPS`: giving up uid 0 leaves the permitted ones alone.
pub const KEEP_CAPS: u32 = 1 << 4;
/// `SECURE_NO_CAP_AMBIENT_RAISE`: the ambient set does not grow.
pub const NO_AMBIENT_RAISE: u32 = 1 << 6;
/// All bits, each followed by the one that locks it.
pub const SECURE_BITS: u32 = 0xff;
/// Those that lock.
pub const SECURE_LOCKS: u32 = 0xaa;

/// The highest number that a capability has.
pub const LAST_CAPABILITY: u32 = raw::CAP_LAST_CAP;

impl Credentials {
    /// Whether a capability (`CAP_*`) is in effect.
    #[inline]
    pub fn may(&self, capability: u32) -> bool {
        self.fs.may_use(capability)
    }

    /// Whether the limits of a user do not hold: on processes, pipes and files in flight.
    pub fn may_exceed_limits(&self) -> bool {
        self.may(raw::CAP_SYS_RESOURCE) || self.may(raw::CAP_SYS_ADMIN)
    }

    /// Whether a signal may be sent to a process with these credentials.
    pub fn may_signal(&self, target: &Credentials) -> bool {
        self.may(raw::CAP_KILL)
            || [self.real_uid, self.effective_uid]
                .iter()
                .any(|uid| *uid == target.real_uid || *uid == target.saved_uid)
    }

    /// Whether the memory and files of a process with these credentials may be looked into.
    /// `is_dumpable`: its address space is open to its own user.
    pub fn may_inspect(&self, ids: Ids, target: &Credentials, is_dumpable: bool) -> bool {
        let (uid, gid, capabilities) = match ids {
            Ids::Files => (self.fs.uid, self.fs.gid, self.fs.capabilities),
            Ids::Real => (self.real_uid, self.real_gid, self.capabilities.permitted),
        };
        let same = target.has_only(uid, gid);
        let covers = target.capabilities.permitted.is_within(capabilities);
        same && is_dumpable && covers || self.may(raw::CAP_SYS_PTRACE)
    }

    /// Whether the limits of a process with these credentials may be seen and changed.
    pub fn may_limit(&self, target: &Credentials) -> bool {
        target.has_only(self.real_uid, self.real_gid) || self.may(raw::CAP_SYS_RESOURCE)
    }

    /// Whether real, effective and saved ids are these.
    fn has_only(&self, uid: u32, gid: u32) -> bool {
        [self.real_uid, self.effective_uid, self.saved_uid] == [uid; 3]
            && [self.real_gid, self.effective_gid, self.saved_gid] == [gid; 3]
    }

    /// Returns the capabilities by which `access` judges, which asks for the real user id: those of
    /// root are its permitted ones, other users have none; with `SECBIT_NO_SETUID_FIXUP`, those in
    /// effect.
    pub fn capabilities_of_real_uid(&self) -> CapabilitySet {
        if self.capabilities.secure_bits & NO_SETUID_FIXUP != 0 {
            self.fs.capabilities
        } else if self.real_uid == 0 {
            self.capabilities.permitted
        } else {
            CapabilitySet::EMPTY
        }
    }

    /// The user id, if the process has but one.
    pub fn one_uid(&self) -> Option<u32> {
        let uid = self.real_uid;
        ([self.effective_uid, self.saved_uid] == [uid; 2]).then_some(uid)
    }

    /// Drops or restores uid 0's capabilities after the user ids became those in `self`; `old` are
    /// the former ones.
    pub fn follow_uids(&mut self, old: &Credentials) {
        let bits = self.capabilities.secure_bits;
        if bits & NO_SETUID_FIXUP != 0 {
            return;
        }
        let is_root = |c: &Credentials| [c.real_uid, c.effective_uid, c.saved_uid].contains(&0);
        if is_root(old) && !is_root(self) {
            if bits & KEEP_CAPS == 0 {
                self.capabilities.permitted = CapabilitySet::EMPTY;
                self.fs.capabilities = CapabilitySet::EMPTY;
            }
            self.capabilities.ambient = CapabilitySet::EMPTY;
        }
        match (old.effective_uid, self.effective_uid) {
            (0, 0) => {}
            (0, _) => self.fs.capabilities = CapabilitySet::EMPTY,
            (_, 0) => self.fs.capabilities = self.capabilities.permitted,
            _ => {}
        }
    }

    /// The same after a change of the file-system user id alone.
    pub fn follow_fs_uid(&mut self, old: u32) {
        if self.capabilities.secure_bits & NO_SETUID_FIXUP != 0 {
            return;
        }
        match (old == 0, self.fs.uid == 0) {
            (true, false) => self.fs.capabilities = self.fs.capabilities.without(OF_FILES),
            (false, true) => {
                let gained = OF_FILES.and(self.capabilities.permitted);
                self.fs.capabilities = self.fs.capabilities.union(gained);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_uids(old: &Credentials, real: u32, effective: u32, saved: u32) -> Credentials {
        let mut new = old.clone();
        [new.real_uid, new.effective_uid, new.saved_uid] = [real, effective, saved];
        new.fs.uid = effective;
        new.follow_uids(old);
        new
    }

    #[test]
    fn uid_0_gives_its_capabilities_up_for_good_or_for_a_while() {
        let root = Credentials::default();
        let away = with_uids(&root, 0, 1000, 0);
        assert!(!away.may(raw::CAP_KILL));
        assert_eq!(away.capabilities.permitted, CapabilitySet::ALL);
        let back = with_uids(&away, 0, 0, 0);
        assert!(back.may(raw::CAP_KILL));
        let gone = with_uids(&root, 1000, 1000, 1000);
        assert_eq!(gone.capabilities.permitted, CapabilitySet::EMPTY);
        assert!(!gone.may(raw::CAP_KILL));
    }

    #[test]
    fn keep_caps_keeps_what_is_permitted() {
        let mut root = Credentials::default();
        root.capabilities.secure_bits = KEEP_CAPS;
        let kept = with_uids(&root, 1000, 1000, 1000);
        assert_eq!(kept.capabilities.permitted, CapabilitySet::ALL);
        assert_eq!(kept.fs.capabilities, CapabilitySet::EMPTY);
    }

    #[test]
    fn a_file_system_id_takes_the_capabilities_of_files_only() {
        let mut user = Credentials::default();
        user.fs.uid = 1000;
        user.follow_fs_uid(0);
        assert!(!user.may(raw::CAP_DAC_OVERRIDE) && user.may(raw::CAP_KILL));
        user.fs.uid = 0;
        user.follow_fs_uid(1000);
        assert!(user.may(raw::CAP_DAC_OVERRIDE));
    }
}
