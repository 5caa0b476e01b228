//! The system as a whole: names, figures, the log, the end.

use core::sync::atomic::Ordering::Relaxed;

use abi::{
    Errno, Result,
    raw::{general as raw, system::new_utsname},
};
use nucleus::{PAGE_SIZE, frame, time, user};

use super::{Call, SystemCall, call};
use crate::{
    process::{loadavg, pid_table},
    shutdown, uts,
};

/// Numbers of `linux/personality.h`, which the bindings leave out.
const UNAME26: u32 = 0x2_0000;
const PER_MASK: u32 = 0xff;
const PER_LINUX32: u32 = 8;

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_uname, uname),
    call!(__NR_sethostname, |call| {
        set_name(call, uts::change_hostname)
    }),
    call!(__NR_setdomainname, |call| {
        set_name(call, uts::change_domainname)
    }),
    call!(__NR_sysinfo, sysinfo),
    call!(__NR_reboot, reboot),
];

/// Returns the release for a program with `UNAME26`: a 2.6 whose number grows with the second
/// number of the real one.
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

fn uname(call: &mut Call<'_>) -> Result<usize> {
    let fill = |field: &mut [core::ffi::c_char], text: &[u8]| {
        for (to, from) in field.iter_mut().zip(text) {
            *to = *from as core::ffi::c_char;
        }
    };
    let (host, domain) = (uts::hostname(), uts::domainname());
    let (mut release, version) = uts::release();
    let personality = call.process().personality.load(Relaxed);
    if personality & UNAME26 != 0 {
        release = old_release(&release);
    }
    let machine: &[u8] = match personality & PER_MASK {
        PER_LINUX32 => b"i686",
        _ => b"x86_64",
    };
    let mut names: new_utsname = user::zeroed();
    fill(&mut names.sysname, b"Linux");
    fill(&mut names.nodename, host.as_bytes());
    fill(&mut names.release, &release);
    fill(&mut names.version, version);
    fill(&mut names.machine, machine);
    fill(&mut names.domainname, domain.as_bytes());
    call.write(0, &names)?;
    Ok(0)
}

fn set_name(call: &Call<'_>, set: fn(&[u8]) -> Result<()>) -> Result<usize> {
    call.require(raw::CAP_SYS_ADMIN)?;
    let len = usize::try_from(call.int(1)).map_err(|_| Errno::EINVAL)?;
    let mut name = [0; uts::NAME_MAX];
    let name = name.get_mut(..len).ok_or(Errno::EINVAL)?;
    user::copy_in(name, call.address(0))?;
    set(name)?;
    Ok(0)
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

fn reboot(call: &mut Call<'_>) -> Result<usize> {
    call.require(raw::CAP_SYS_BOOT)?;
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
        raw::LINUX_REBOOT_CMD_HALT | raw::LINUX_REBOOT_CMD_POWER_OFF => shutdown::power_off(),
        raw::LINUX_REBOOT_CMD_RESTART | raw::LINUX_REBOOT_CMD_RESTART2 => shutdown::restart(),
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
