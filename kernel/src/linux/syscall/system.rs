//! The system as a whole: names, figures, the log, the end.

use abi::{
    Errno, Result,
    raw::{general as raw, system::new_utsname},
};
use nucleus::{
    PAGE_SIZE, frame,
    sync::{Rank, SpinLock},
    time, user,
};

use super::{Call, Entry};
use crate::{
    process::{loadavg, pid_table},
    start,
};

/// Clock ticks per second in what programs are told (`AT_CLKTCK`, `times`).
pub const CLOCK_TICKS: u32 = 100;
/// Longest host or domain name.
const NAME_MAX: usize = 64;
/// The Linux version whose interface this kernel follows, unless the command line says that programs are to see
/// another one (`release=STRING`).
static RELEASE: SpinLock<Name> = SpinLock::new(Rank::Leaf, Name::new(b"6.1.0-causeway"));
/// What `uname -v` gives.
const VERSION: &[u8] = b"#1 SMP Causeway";
/// Numbers of `linux/personality.h`, which the bindings leave out.
const UNAME26: u32 = 0x2_0000;
const PER_MASK: u32 = 0xff;
const PER_LINUX32: u32 = 8;

pub(super) const CALLS: &[Entry] = &[
    Entry::new(raw::__NR_uname, "uname", uname),
    Entry::new(raw::__NR_sethostname, "sethostname", sethostname),
    Entry::new(raw::__NR_setdomainname, "setdomainname", setdomainname),
    Entry::new(raw::__NR_sysinfo, "sysinfo", sysinfo),
    Entry::new(raw::__NR_reboot, "reboot", reboot),
];

#[derive(Clone, Copy)]
struct Name {
    bytes: [u8; NAME_MAX],
    len: usize,
}

impl Name {
    const fn new(text: &[u8]) -> Name {
        let mut bytes = [0; NAME_MAX];
        let mut at = 0;
        while at < text.len() {
            bytes[at] = text[at];
            at += 1;
        }
        Name {
            bytes,
            len: text.len(),
        }
    }
}

static HOST: SpinLock<Name> = SpinLock::new(Rank::Leaf, Name::new(b"causeway"));
static DOMAIN: SpinLock<Name> = SpinLock::new(Rank::Leaf, Name::new(b"(none)"));

/// The host's name.
pub fn hostname() -> alloc::vec::Vec<u8> {
    let name = *HOST.lock();
    name.bytes[..name.len].to_vec()
}

/// The name of the domain.
pub fn domainname() -> alloc::vec::Vec<u8> {
    let name = *DOMAIN.lock();
    name.bytes[..name.len].to_vec()
}

/// Sets the host's name.
///
/// # Errors
/// `EINVAL` if it is too long.
pub fn change_hostname(name: &[u8]) -> Result<()> {
    change_name(&HOST, name)
}

/// Sets the domain's name.
///
/// # Errors
/// `EINVAL` if it is too long.
pub fn change_domainname(name: &[u8]) -> Result<()> {
    change_name(&DOMAIN, name)
}

fn change_name(which: &SpinLock<Name>, name: &[u8]) -> Result<()> {
    let mut new = Name {
        bytes: [0; NAME_MAX],
        len: name.len(),
    };
    let to = new.bytes.get_mut(..name.len()).ok_or(Errno::EINVAL)?;
    to.copy_from_slice(name);
    *which.lock() = new;
    Ok(())
}

/// The release and version strings of `uname`.
pub fn release() -> (alloc::vec::Vec<u8>, &'static [u8]) {
    let name = *RELEASE.lock();
    (name.bytes[..name.len].to_vec(), VERSION)
}

/// Sets the release string; what is longer than `uname` has room for is cut off.
pub fn set_release(text: &[u8]) {
    *RELEASE.lock() = Name::new(&text[..text.len().min(NAME_MAX)]);
}

/// The release as a program with `UNAME26` is to see it: a 2.6 whose number grows with the real one's second.
fn old_release(release: &[u8]) -> alloc::vec::Vec<u8> {
    let mut dots = 0;
    let numbers = release.iter().position(|byte| {
        dots += usize::from(*byte == b'.');
        dots == 3 || !byte.is_ascii_digit() && *byte != b'.'
    });
    let (numbers, rest) = release.split_at(numbers.unwrap_or(release.len()));
    let second = numbers.split(|byte| *byte == b'.').nth(1).unwrap_or(b"0");
    let second = second.iter().fold(0u32, |n, digit| {
        n.saturating_mul(10).saturating_add(u32::from(digit - b'0'))
    });
    let mut old = alloc::format!("2.6.{}", second.saturating_add(60)).into_bytes();
    old.extend_from_slice(rest);
    old
}

pub(super) fn uname(call: &mut Call<'_>) -> Result<usize> {
    let fill = |field: &mut [core::ffi::c_char], text: &[u8]| {
        for (to, from) in field.iter_mut().zip(text) {
            *to = *from as core::ffi::c_char;
        }
    };
    let host = *HOST.lock();
    let domain = *DOMAIN.lock();
    let (mut release, version) = release();
    let personality = call.process().personality();
    if personality & UNAME26 != 0 {
        release = old_release(&release);
    }
    let machine: &[u8] = match personality & PER_MASK {
        PER_LINUX32 => b"i686",
        _ => b"x86_64",
    };
    let mut names: new_utsname = user::zeroed();
    fill(&mut names.sysname, b"Linux");
    fill(&mut names.nodename, &host.bytes[..host.len]);
    fill(&mut names.release, &release);
    fill(&mut names.version, version);
    fill(&mut names.machine, machine);
    fill(&mut names.domainname, &domain.bytes[..domain.len]);
    call.write(0, &names)?;
    Ok(0)
}

fn set_name(call: &Call<'_>, name: &SpinLock<Name>) -> Result<usize> {
    if !call.credentials().may(raw::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let len = usize::try_from(call.int(1)).map_err(|_| Errno::EINVAL)?;
    let mut new = Name {
        bytes: [0; NAME_MAX],
        len,
    };
    let to = new.bytes.get_mut(..len).ok_or(Errno::EINVAL)?;
    user::copy_in(to, call.address(0)).map_err(|_| Errno::EFAULT)?;
    *name.lock() = new;
    Ok(0)
}

fn sethostname(call: &mut Call<'_>) -> Result<usize> {
    set_name(call, &HOST)
}

fn setdomainname(call: &mut Call<'_>) -> Result<usize> {
    set_name(call, &DOMAIN)
}

fn sysinfo(call: &mut Call<'_>) -> Result<usize> {
    let (usage, swap) = (frame::usage(), vm::swap::usage());
    let population = pid_table::population();
    let mut words = [0u64; 14];
    words[0] = time::since_boot().as_secs();
    words[1..4].copy_from_slice(&loadavg::fixed_point());
    words[4] = (usage.total * PAGE_SIZE) as u64;
    words[5] = (usage.free * PAGE_SIZE) as u64;
    words[8] = (swap.total * PAGE_SIZE) as u64;
    words[9] = (swap.free() * PAGE_SIZE) as u64;
    words[10] = population.threads.min(usize::from(u16::MAX)) as u64;
    // All sizes are in bytes.
    words[13] = 1;
    call.write(0, &words)?;
    Ok(0)
}

pub(super) fn reboot(call: &mut Call<'_>) -> Result<usize> {
    if !call.credentials().may(raw::CAP_SYS_BOOT) {
        return Err(Errno::EPERM);
    }
    let second = [
        raw::LINUX_REBOOT_MAGIC2,
        raw::LINUX_REBOOT_MAGIC2A,
        raw::LINUX_REBOOT_MAGIC2B,
        raw::LINUX_REBOOT_MAGIC2C,
    ];
    if call.unsigned(0) != raw::LINUX_REBOOT_MAGIC1 || !second.contains(&call.unsigned(1)) {
        return Err(Errno::EINVAL);
    }
    match call.unsigned(2) {
        raw::LINUX_REBOOT_CMD_CAD_ON | raw::LINUX_REBOOT_CMD_CAD_OFF => Ok(0),
        raw::LINUX_REBOOT_CMD_HALT | raw::LINUX_REBOOT_CMD_POWER_OFF => start::power_off(),
        raw::LINUX_REBOOT_CMD_RESTART | raw::LINUX_REBOOT_CMD_RESTART2 => start::restart(),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::old_release;

    #[test]
    fn an_old_release_keeps_what_follows_the_numbers() {
        assert_eq!(old_release(b"6.1.0-causeway"), b"2.6.61-causeway");
        assert_eq!(old_release(b"5.10.7.3+x"), b"2.6.70.3+x");
        assert_eq!(old_release(b""), b"2.6.60");
    }
}
