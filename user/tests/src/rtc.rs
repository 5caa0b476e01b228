//! `/dev/rtc0`: the real-time clock.

use std::time::{SystemTime, UNIX_EPOCH};

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("rtc: the time is read and set", time_is_set),
    ("rtc: one opener at a time", one_opener),
    ("rtc: each second interrupts", updates),
    ("rtc: an alarm goes off once", alarms),
    ("rtc: periodic interrupts", periodic),
    ("rtc: refusals", refusals),
    ("rtc: what /sys and /proc tell", files),
    ("rtc: an ordinary user may not set it", rights),
];

/// `ioctl`s of `linux/rtc.h`.
const RTC_AIE_ON: c_ulong = 0x7001;
const RTC_AIE_OFF: c_ulong = 0x7002;
const RTC_UIE_ON: c_ulong = 0x7003;
const RTC_UIE_OFF: c_ulong = 0x7004;
const RTC_PIE_ON: c_ulong = 0x7005;
const RTC_PIE_OFF: c_ulong = 0x7006;
const RTC_ALM_SET: c_ulong = 0x4024_7007;
const RTC_ALM_READ: c_ulong = 0x8024_7008;
const RTC_RD_TIME: c_ulong = 0x8024_7009;
const RTC_SET_TIME: c_ulong = 0x4024_700a;
const RTC_IRQP_READ: c_ulong = 0x8008_700b;
const RTC_IRQP_SET: c_ulong = 0x4008_700c;
const RTC_WKALM_SET: c_ulong = 0x4028_700f;
const RTC_WKALM_RD: c_ulong = 0x8028_7010;

/// `struct rtc_time`.
type Fields = [c_int; 9];

const HOUR: usize = 2;
const DAY: usize = 3;
const MONTH: usize = 4;
const YEAR: usize = 5;

fn open_clock() -> Result<File> {
    Ok(File::options().read(true).open("/dev/rtc0")?)
}

fn time(clock: &File) -> Result<Fields> {
    let mut fields = Fields::default();
    call!(ioctl(clock.as_raw_fd(), RTC_RD_TIME, &mut fields));
    Ok(fields)
}

fn set_time(clock: &File, fields: &Fields) -> Outcome {
    call!(ioctl(clock.as_raw_fd(), RTC_SET_TIME, fields));
    Ok(())
}

/// Seconds since the epoch.
fn seconds(fields: &Fields) -> i64 {
    // SAFETY: all fields have values.
    let mut all: tm = unsafe { zeroed() };
    [
        &mut all.tm_sec,
        &mut all.tm_min,
        &mut all.tm_hour,
        &mut all.tm_mday,
        &mut all.tm_mon,
        &mut all.tm_year,
    ]
    .into_iter()
    .zip(fields)
    .for_each(|(to, from)| *to = *from);
    // SAFETY: it is a date.
    unsafe { timegm(&mut all) }
}

/// A read: the kinds of interrupts, and how many.
fn read_interrupts(clock: &File) -> Result<(u64, u64)> {
    let bytes = read_bytes(clock, 8)?;
    equal!(bytes.len(), 8);
    let word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    Ok((word & 0xff, word >> 8))
}

fn time_is_set() -> Outcome {
    let clock = open_clock()?;
    let before = time(&clock)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() as i64;
    let difference = seconds(&before) - now;
    ensure!(difference.abs() < 24 * 3600, before, now);
    // The last second of a February with a leap day.
    let mut wanted: Fields = [59, 59, 23, 29, 1, 128, 0, 0, 0];
    set_time(&clock, &wanted)?;
    let after = time(&clock)?;
    let late = seconds(&after) - seconds(&wanted);
    ensure!((0..=2).contains(&late), after);
    // Tuesday, the 60th day; or the first of March.
    ensure!(after[6..8] == [2, 59] || after[6..8] == [3, 60], after);
    wanted[YEAR] = 99;
    wanted[MONTH] = 11;
    wanted[DAY] = 31;
    wanted[HOUR] = 11;
    set_time(&clock, &wanted)?;
    let after = time(&clock)?;
    ensure!(after[YEAR] == 99 && after[HOUR] >= 11, after);
    set_time(&clock, &before)?;
    // The time of day has stayed.
    let later = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() as i64;
    ensure!((0..60).contains(&(later - now)), later - now);
    Ok(())
}

fn one_opener() -> Outcome {
    let clock = open_clock()?;
    let path = c"/dev/rtc0".as_ptr();
    refused!(EBUSY, open(path, O_RDONLY));
    refused!(EBUSY, open(c"/dev/rtc".as_ptr(), O_RDONLY));
    let copy = clock.try_clone()?;
    drop(clock);
    refused!(EBUSY, open(path, O_RDONLY));
    drop(copy);
    drop(open_clock()?);
    Ok(())
}

fn updates() -> Outcome {
    let clock = open_clock()?;
    let fd = clock.as_raw_fd();
    call!(ioctl(fd, RTC_UIE_ON, 0));
    equal!(poll_for(&clock, POLLIN, 5000)?, POLLIN);
    let (first, begin) = (time(&clock)?, Instant::now());
    let (kinds, count) = read_interrupts(&clock)?;
    equal!((kinds, count), (0x90, 1));
    // The next one comes a second later, and the clock is a second later then.
    let (_, count) = read_interrupts(&clock)?;
    let passed = begin.elapsed();
    ensure!(count >= 1, count);
    let went = seconds(&time(&clock)?) - seconds(&first);
    ensure!((1..4).contains(&went), went);
    ensure!(passed > Duration::from_millis(700), passed);
    // Those of a reader that is late are counted.
    pause_ms(2100);
    let (_, count) = read_interrupts(&clock)?;
    ensure!(count >= 2, count);
    call!(ioctl(fd, RTC_UIE_OFF, 0));
    equal!(poll_for(&clock, POLLIN, 1200)?, 0);
    Ok(())
}

fn alarms() -> Outcome {
    let clock = open_clock()?;
    let fd = clock.as_raw_fd();
    let mut alarm = [0 as c_int; 10];
    let now = seconds(&time(&clock)?);
    let mut at: Fields = Fields::default();
    // SAFETY: `gmtime_r` fills it, and gives no null for such a time.
    let all: tm = unsafe {
        let mut all: tm = zeroed();
        gmtime_r(&(now + 2), &mut all);
        all
    };
    at[..6].copy_from_slice(&[
        all.tm_sec,
        all.tm_min,
        all.tm_hour,
        all.tm_mday,
        all.tm_mon,
        all.tm_year,
    ]);
    alarm[0] = 1;
    alarm[1..].copy_from_slice(&at);
    call!(ioctl(fd, RTC_WKALM_SET, &alarm));
    let mut read = [0 as c_int; 10];
    call!(ioctl(fd, RTC_WKALM_RD, &mut read));
    equal!(read[..7], alarm[..7]);
    equal!(poll_for(&clock, POLLIN, 0)?, 0);
    equal!(read_interrupts(&clock)?, (0xa0, 1));
    ensure!(seconds(&time(&clock)?) >= now + 2);
    call!(ioctl(fd, RTC_WKALM_RD, &mut read));
    equal!(read[0], 0, "it is over");
    equal!(poll_for(&clock, POLLIN, 1100)?, 0);
    // Only the time of day counts: within a day.
    let mut daily: Fields = [-1; 9];
    daily[..3].copy_from_slice(&at[..3]);
    call!(ioctl(fd, RTC_ALM_SET, &daily));
    call!(ioctl(fd, RTC_ALM_READ, &mut read));
    let ahead = seconds(&read[..9].try_into().expect("nine")) - (now + 2);
    ensure!(ahead == 0 || ahead == 24 * 3600, ahead);
    // Set to a moment that is over, and turned on: it goes off at once.
    at[YEAR] -= 1;
    alarm[0] = 0;
    alarm[1..].copy_from_slice(&at);
    call!(ioctl(fd, RTC_WKALM_SET, &alarm));
    equal!(poll_for(&clock, POLLIN, 50)?, 0);
    call!(ioctl(fd, RTC_AIE_ON, 0));
    equal!(poll_for(&clock, POLLIN, 1000)?, POLLIN);
    call!(ioctl(fd, RTC_AIE_OFF, 0));
    equal!(read_interrupts(&clock)?, (0xa0, 1));
    Ok(())
}

fn periodic() -> Outcome {
    let clock = open_clock()?;
    let fd = clock.as_raw_fd();
    let mut rate: c_ulong = 0;
    call!(ioctl(fd, RTC_IRQP_SET, 64 as c_ulong));
    call!(ioctl(fd, RTC_IRQP_READ, &mut rate));
    equal!(rate, 64);
    call!(ioctl(fd, RTC_PIE_ON, 0));
    let begin = Instant::now();
    let mut total = 0;
    while total < 32 {
        let (kinds, count) = read_interrupts(&clock)?;
        equal!(kinds, 0xc0);
        total += count;
    }
    let passed = begin.elapsed();
    ensure!(passed >= Duration::from_millis(490), passed, total);
    call!(ioctl(fd, RTC_PIE_OFF, 0));
    call!(fcntl(fd, F_SETFL, O_NONBLOCK));
    // What was due before it was turned off.
    let _ = read_interrupts(&clock);
    refused!(EAGAIN, read(fd, [0u8; 8].as_mut_ptr().cast(), 8));
    drop(clock);
    // The rate stays, the interrupts do not.
    let clock = open_clock()?;
    call!(ioctl(clock.as_raw_fd(), RTC_IRQP_READ, &mut rate));
    equal!(rate, 64);
    equal!(poll_for(&clock, POLLIN, 100)?, 0);
    Ok(())
}

fn refusals() -> Outcome {
    let clock = open_clock()?;
    let fd = clock.as_raw_fd();
    let now = time(&clock)?;
    for (field, value) in [
        (0, 60),
        (HOUR, 24),
        (DAY, 0),
        (DAY, 32),
        (MONTH, 12),
        (YEAR, 69),
    ] {
        let mut wrong = now;
        wrong[field] = value;
        refused!(EINVAL, ioctl(fd, RTC_SET_TIME, &wrong));
    }
    refused!(EFAULT, ioctl(fd, RTC_RD_TIME, 8));
    refused!(EFAULT, ioctl(fd, RTC_SET_TIME, 8));
    refused!(EINVAL, ioctl(fd, RTC_IRQP_SET, 0));
    refused!(EINVAL, ioctl(fd, RTC_IRQP_SET, 8193 as c_ulong));
    refused!(ENOTTY, ioctl(fd, 0x7099));
    let mut bytes = [0u8; 8];
    refused!(EINVAL, read(fd, bytes.as_mut_ptr().cast(), 3));
    refused!(EINVAL, read(fd, bytes.as_mut_ptr().cast(), 7));
    refused!(ESPIPE, lseek(fd, 0, SEEK_SET));
    equal!(poll_for(&clock, POLLIN, 0)?, 0);
    Ok(())
}

fn files() -> Outcome {
    const FOLDER: &str = "/sys/class/rtc/rtc0";
    let near = |one: i64, other: i64| (one - other).abs() <= 2;
    let shown: i64 = read_text(&format!("{FOLDER}/since_epoch"))?
        .trim()
        .parse()?;
    let clock = open_clock()?;
    let now = seconds(&time(&clock)?);
    ensure!(near(shown, now), shown, now);
    equal!(read_text(&format!("{FOLDER}/hctosys"))?, "1\n");
    ensure!(read_text(&format!("{FOLDER}/name"))?.starts_with("rtc_cmos"));
    let date = read_text(&format!("{FOLDER}/date"))?;
    let text = read_text("/proc/driver/rtc")?;
    ensure!(text.contains(&format!("rtc_date\t: {date}")), date, text);
    let time = read_text(&format!("{FOLDER}/time"))?;
    equal!((date.len(), time.len()), (11, 9));
    let number = read_text(&format!("{FOLDER}/dev"))?;
    let node = fs::metadata("/dev/rtc")?;
    equal!(node.mode(), S_IFCHR | 0o600);
    let shown = format!("{}:{}", major(node.rdev()), minor(node.rdev()));
    equal!(number.trim(), shown);
    Ok(())
}

fn rights() -> Outcome {
    child(|| {
        let clock = open_clock()?;
        let now = time(&clock)?;
        call!(setuid(1000));
        let fd = clock.as_raw_fd();
        refused!(EACCES, ioctl(fd, RTC_SET_TIME, &now));
        refused!(EACCES, ioctl(fd, RTC_IRQP_SET, 128 as c_ulong));
        call!(ioctl(fd, RTC_IRQP_SET, 2 as c_ulong));
        drop(clock);
        refused!(EACCES, open(c"/dev/rtc0".as_ptr(), O_RDONLY));
        Ok(())
    })
}
