//! The machine as a whole.

use alloc::vec::Vec;
use core::time::Duration;

use abi::Result;
use fs::{
    counters::Counter as FsCounter,
    pseudofs::{Entry, Table, Text},
};
use nucleus::{
    Date, boot,
    counters::Counter as NucleusCounter,
    frame::{self, RUN_FRAMES},
    pmap, processor, task, time,
};
use vm::counters::Counter;

use super::{
    super::{kib, line, link, shown, value},
    disks,
};
use crate::{
    counters::Counter as KernelCounter,
    device::rtc,
    mounts,
    process::{Process, files::locks, loadavg, pid_table, ticks},
    swap, uts,
};

/// Adds the files to the root of `/proc`.
pub fn add(table: Table) -> Table {
    table
        .with("cmdline", line(boot::command_line))
        .with("consoles", shown(consoles))
        .with("cpuinfo", shown(cpuinfo))
        .with("devices", shown(devices))
        .with("diskstats", shown(disks::statistics))
        .with("driver", Entry::directory(drivers()))
        .with("execdomains", value("0-0\tLinux           \t[kernel]"))
        .with("filesystems", shown(filesystems))
        .with("interrupts", shown(interrupts))
        .with("loadavg", shown(loadavg))
        .with("locks", Entry::text(file_locks))
        .with("meminfo", shown(meminfo))
        // Nothing is loaded later, and no device shares the number for those that have none of
        // their own.
        .with("misc", shown(|_| {}))
        .with("modules", shown(|_| {}))
        .with("mounts", link("self/mounts"))
        .with("partitions", shown(disks::partitions))
        .with("stat", shown(stat))
        .with("swaps", shown(swaps))
        .with("uptime", shown(uptime))
        .with("version", shown(version))
        .with("vmstat", shown(vmstat))
}

/// Names of feature bits, from bit 0 on, by word of
/// [`Processor::features`](nucleus::processor::Processor), in Linux's order. A dash stands for bits
/// that are not shown.
const FEATURES: [&str; 5] = [
    "fpu vme de pse tsc msr pae mce cx8 apic - sep mtrr pge mca cmov pat pse36 - clflush - - \
     acpi mmx fxsr sse sse2 ss ht",
    "pni pclmulqdq - monitor - - - - - ssse3 - - fma cx16 - - - pcid - sse4_1 sse4_2 x2apic \
     movbe popcnt tsc_deadline_timer aes xsave - avx f16c rdrand hypervisor",
    "fsgsbase - - bmi1 - avx2 - smep bmi2 erms invpcid - - - - - - - rdseed adx smap - - \
     clflushopt clwb - - - - sha_ni",
    "- - - - - - - - - - - syscall - - - - - - - - nx - mmxext - - fxsr_opt pdpe1gb rdtscp - \
     lm 3dnowext 3dnow",
    "lahf_lm - svm - - abm sse4a - 3dnowprefetch",
];

fn cpuinfo(out: &mut Text) {
    let processor = processor::processor();
    let count = task::cpu_count();
    let (mhz, khz) = (processor.kilohertz / 1000, processor.kilohertz % 1000);
    for cpu in 0..count {
        writeln!(out, "processor\t: {cpu}");
        writeln!(out, "vendor_id\t: {}", processor.vendor());
        writeln!(out, "cpu family\t: {}", processor.family);
        writeln!(out, "model\t\t: {}", processor.model);
        writeln!(out, "model name\t: {}", processor.name());
        writeln!(out, "stepping\t: {}", processor.stepping);
        writeln!(out, "cpu MHz\t\t: {mhz}.{khz:03}");
        writeln!(out, "physical id\t: 0");
        writeln!(out, "siblings\t: {count}");
        writeln!(out, "core id\t\t: {cpu}");
        writeln!(out, "cpu cores\t: {count}");
        writeln!(out, "fpu\t\t: yes");
        writeln!(out, "fpu_exception\t: yes");
        writeln!(out, "wp\t\t: yes");
        write!(out, "flags\t\t:");
        for (word, names) in processor.features.iter().zip(FEATURES) {
            for (bit, name) in names.split_whitespace().enumerate() {
                if name != "-" && word >> bit & 1 != 0 {
                    write!(out, " {name}");
                }
            }
        }
        write!(out, "\nbugs\t\t:");
        for name in processor::bugs().names() {
            write!(out, " {name}");
        }
        // Two loops a cycle is what Linux's loop takes where it is measured.
        writeln!(out, "\nbogomips\t: {}.{:02}\n", mhz * 2, khz / 5);
    }
}

fn devices(out: &mut Text) {
    writeln!(
        out,
        "Character devices:\n  1 mem\n  4 ttyS\n  5 /dev/tty\n  5 /dev/console\n  5 /dev/ptmx\n\
         136 pts\n{} rtc\n\nBlock devices:",
        rtc::MAJOR
    );
    disks::drivers(out);
}

/// `driver`.
fn drivers() -> Table {
    Table::new().with("rtc", Entry::text(clock))
}

/// The real-time clock. It raises no interrupts: those that programs get are emulated.
fn clock(out: &mut Text) -> Result<()> {
    let now = rtc::now()?;
    let (alarm, alarm_is_on) = rtc::alarm()?;
    let (updates, periodic, rate) = rtc::interrupts();
    let yes = |is: bool| if is { "yes" } else { "no" };
    for (prefix, date) in [("rtc", now), ("alrm", alarm)] {
        let Date {
            year,
            month,
            day,
            hour,
            minute,
            second,
        } = date;
        writeln!(out, "{prefix}_time\t: {hour:02}:{minute:02}:{second:02}");
        writeln!(out, "{prefix}_date\t: {year:04}-{month:02}-{day:02}");
    }
    writeln!(out, "alarm_IRQ\t: {}", yes(alarm_is_on));
    writeln!(out, "alrm_pending\t: no");
    writeln!(out, "update IRQ enabled\t: {}", yes(updates));
    writeln!(out, "periodic IRQ enabled\t: {}", yes(periodic));
    writeln!(out, "periodic IRQ frequency\t: {rate}");
    writeln!(out, "max user IRQ frequency\t: {}", rtc::USER_RATE);
    writeln!(out, "24hr\t\t: yes");
    Ok(())
}

/// The first serial port is the console that programs see; the kernel's own lines go elsewhere.
fn consoles(out: &mut Text) {
    writeln!(out, "ttyS0                -W- (E  p  )    4:64");
}

/// The causes of interrupts: name, counter, description.
const INTERRUPTS: [(&str, NucleusCounter, &str); 6] = [
    (
        "4",
        NucleusCounter::interrupts_console,
        "IO-APIC   4-edge      ttyS0",
    ),
    (
        "MSI",
        NucleusCounter::interrupts_device,
        "Messages of devices",
    ),
    (
        "SPU",
        NucleusCounter::interrupts_spurious,
        "Spurious interrupts",
    ),
    (
        "LOC",
        NucleusCounter::interrupts_timer,
        "Local timer interrupts",
    ),
    (
        "RES",
        NucleusCounter::interrupts_reschedule,
        "Rescheduling interrupts",
    ),
    (
        "TLB",
        NucleusCounter::interrupts_shootdown,
        "TLB shootdowns",
    ),
];

/// How often each CPU was interrupted, by cause.
fn interrupts(out: &mut Text) {
    let count = task::cpu_count();
    write!(out, "    ");
    for cpu in 0..count {
        write!(out, "       CPU{cpu:<3}");
    }
    writeln!(out);
    for (name, counter, what) in INTERRUPTS {
        write!(out, "{name:>3}:");
        for cpu in 0..count {
            write!(out, " {:10}", counter.of(cpu));
        }
        writeln!(out, "   {what}");
    }
}

/// `locks`: advisory locks on files.
fn file_locks(out: &mut Text) -> Result<()> {
    for (i, lock) in locks::all()?.iter().enumerate() {
        let locks::Listed {
            file: (device, inode),
            whole,
            record,
        } = lock;
        let kind = match (whole, record.pid) {
            (true, _) => "FLOCK ",
            (false, 0) => "OFDLCK",
            (false, _) => "POSIX ",
        };
        let mode = match record.mode {
            locks::Mode::Shared => "READ",
            locks::Mode::Exclusive => "WRITE",
        };
        let pid = match record.pid {
            0 => -1,
            pid => i64::from(pid),
        };
        let (major, minor) = (fs::device::major(*device), fs::device::minor(*device));
        write!(
            out,
            "{}: {kind} ADVISORY  {mode} {pid} {major:02x}:{minor:02x}:{inode} {} ",
            i + 1,
            record.start
        );
        match record.last < i64::MAX as u64 {
            true => writeln!(out, "{}", record.last),
            false => writeln!(out, "EOF"),
        }
    }
    Ok(())
}

fn filesystems(out: &mut Text) {
    for fs in mounts::known() {
        let kind = if fs.on_device { "" } else { "nodev" };
        writeln!(out, "{kind}\t{}", fs.name);
    }
}

fn loadavg(out: &mut Text) {
    let population = pid_table::population();
    let (running, threads, last) = (loadavg::running(), population.threads, population.last_pid);
    for load in loadavg::averages() {
        write!(out, "{}.{:02} ", load / 100, load % 100);
    }
    writeln!(out, "{running}/{threads} {last}");
}

/// The uses of the frames that hold data, in pages.
struct Memory {
    /// Pages of files that are somewhere else as well.
    files: usize,
    /// Those of them that are pages of devices.
    buffers: usize,
    active_files: usize,
    inactive_files: usize,
    dirty: usize,
    writeback: usize,
    /// Frames that can be reclaimed at once.
    available: usize,
    /// Files that are in memory only.
    shared: usize,
    /// All else: what programs and the kernel have for themselves.
    anonymous: usize,
    /// Anonymous and shared.
    active_anonymous: usize,
    inactive_anonymous: usize,
}

impl Memory {
    fn now() -> Memory {
        let data = frame::usage().data;
        let (files, devices) = fs::page_cache::count();
        let files = (files + devices).min(data);
        let shared = mounts::namespace().pages_in_memory() as usize;
        let shared = shared.min(data - files);
        let (dirty, writeback) = fs::page_cache::dirty::counts();
        let active_files = vm::active_in_objects().min(files);
        let inactive_anonymous = vm::inactive_anonymous().min(data - files);
        Memory {
            files,
            buffers: devices.min(files),
            active_files,
            inactive_files: files - active_files,
            dirty,
            writeback,
            available: files.saturating_sub(dirty + writeback),
            shared,
            anonymous: data - files - shared,
            active_anonymous: data - files - inactive_anonymous,
            inactive_anonymous,
        }
    }
}

fn meminfo(out: &mut Text) {
    let usage = frame::usage();
    let space = vm::swap::usage();
    let memory = Memory::now();
    let mut line = |name: &str, kib: u64| {
        writeln!(out, "{name}:{kib:>width$} kB", width = 23 - name.len());
    };
    line("MemTotal", kib(usage.total));
    line("MemFree", kib(usage.free));
    line(
        "MemAvailable",
        kib((usage.free + memory.available).min(usage.total)),
    );
    line("Buffers", kib(memory.buffers));
    line("Cached", kib(memory.files - memory.buffers + memory.shared));
    line("SwapCached", kib(space.cached));
    line("Active", kib(memory.active_anonymous + memory.active_files));
    line(
        "Inactive",
        kib(memory.inactive_anonymous + memory.inactive_files),
    );
    line("Active(anon)", kib(memory.active_anonymous));
    line("Inactive(anon)", kib(memory.inactive_anonymous));
    line("Active(file)", kib(memory.active_files));
    line("Inactive(file)", kib(memory.inactive_files));
    let locked = kib(vm::locked_pages());
    line("Unevictable", locked);
    line("Mlocked", locked);
    line("SwapTotal", kib(space.total));
    line("SwapFree", kib(space.free()));
    line("Dirty", kib(memory.dirty));
    line("Writeback", kib(memory.writeback));
    line("AnonPages", kib(memory.anonymous));
    let shared = pmap::large_shared_pages();
    let private = pmap::large_pages().saturating_sub(shared);
    line("AnonHugePages", kib(private));
    line("ShmemHugePages", kib(shared));
    line("ShmemPmdMapped", kib(shared));
    line("Mapped", 0);
    line("Shmem", kib(memory.shared));
    line("KReclaimable", 0);
    line("Slab", kib(usage.heap));
    line("SReclaimable", 0);
    line("SUnreclaim", kib(usage.heap));
    line("KernelStack", 0);
    line("PageTables", kib(usage.page_tables));
    line("CommitLimit", kib(usage.total + space.total));
    line("Committed_AS", kib(memory.anonymous));
}

/// Time of a CPU: in programs, in the kernel, idle.
fn stat(out: &mut Text) {
    let cpus: Vec<_> = (0..task::cpu_count()).map(task::cpu_times).collect();
    let mut line = |name: core::fmt::Arguments<'_>, [user, system, idle]: [Duration; 3]| {
        writeln!(
            out,
            "{name} {} 0 {} {} 0 0 0 0 0 0",
            ticks(user),
            ticks(system),
            ticks(idle)
        );
    };
    let sum = cpus.iter().fold([Duration::ZERO; 3], |sum, times| {
        [sum[0] + times[0], sum[1] + times[1], sum[2] + times[2]]
    });
    line(format_args!("cpu "), sum);
    for (cpu, times) in cpus.iter().enumerate() {
        line(format_args!("cpu{cpu}"), *times);
    }
    let running = Process::by_id().filter(|p| p.state() == 'R').count();
    let booted = time::since_epoch().saturating_sub(time::since_boot());
    let interrupts: u64 = INTERRUPTS
        .iter()
        .map(|(_, counter, _)| counter.total())
        .sum();
    writeln!(out, "intr {interrupts}");
    writeln!(out, "ctxt {}", NucleusCounter::task_switches.total());
    writeln!(out, "btime {}", booted.as_secs());
    writeln!(out, "processes {}", KernelCounter::forks.total());
    writeln!(out, "procs_running {}", running.max(1));
    writeln!(out, "procs_blocked 0");
}

fn swaps(out: &mut Text) {
    const NAME_COLUMN: usize = 40;
    writeln!(out, "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority");
    let tab = |kib: u64| if kib < 10_000_000 { "\t" } else { "" };
    // Entries that do not fit into memory are left out.
    for area in swap::list().unwrap_or_default() {
        let start = out.len();
        out.push_escaped(&area.at.path_without_locks());
        out.push(b" ");
        out.pad_to(start, NAME_COLUMN);
        let kind = if area.is_file { "file\t" } else { "partition" };
        let (size, used) = (kib(area.slots), kib(area.used));
        let (after_size, after_used) = (tab(size), tab(used));
        let priority = area.priority;
        writeln!(
            out,
            "{kind}\t{size}\t{after_size}{used}\t{after_used}{priority}"
        );
    }
}

fn uptime(out: &mut Text) {
    let up = time::since_boot();
    let idle: Duration = (0..task::cpu_count())
        .map(|cpu| task::cpu_times(cpu)[2])
        .sum();
    let hundredths = |time: Duration| (time.as_secs(), time.subsec_millis() / 10);
    let ((up, up_part), (idle, idle_part)) = (hundredths(up), hundredths(idle));
    writeln!(out, "{up}.{up_part:02} {idle}.{idle_part:02}");
}

fn version(out: &mut Text) {
    out.push(b"Linux version ");
    let (release, version) = uts::release();
    out.push(&release);
    out.push(b" (causeway) ");
    out.push(version);
    out.push(b"\n");
}

fn vmstat(out: &mut Text) {
    let usage = frame::usage();
    let faults: u64 = super::causeway::FAULTS.iter().map(|c| c.total()).sum();
    writeln!(out, "nr_free_pages {}", usage.free);
    let memory = Memory::now();
    writeln!(out, "nr_inactive_anon {}", memory.inactive_anonymous);
    writeln!(out, "nr_active_anon {}", memory.active_anonymous);
    writeln!(out, "nr_inactive_file {}", memory.inactive_files);
    writeln!(out, "nr_active_file {}", memory.active_files);
    writeln!(out, "nr_dirty {}", memory.dirty);
    writeln!(out, "nr_writeback {}", memory.writeback);
    writeln!(out, "nr_page_table_pages {}", usage.page_tables);
    let (disks, devices) = fs::page_cache::count();
    writeln!(out, "nr_file_pages {}", disks + devices);
    let shared = pmap::large_shared_pages();
    let private = pmap::large_pages().saturating_sub(shared);
    writeln!(out, "nr_shmem_hugepages {}", shared / RUN_FRAMES);
    writeln!(out, "nr_shmem_pmdmapped {}", shared / RUN_FRAMES);
    writeln!(
        out,
        "nr_anon_transparent_hugepages {}",
        private / RUN_FRAMES
    );
    let (limit, background) = fs::page_cache::dirty::limits();
    writeln!(out, "nr_dirty_threshold {limit}");
    writeln!(out, "nr_dirty_background_threshold {background}");
    // In KiB, two sectors each.
    let kibibytes = |counter: FsCounter| counter.total() / 2;
    writeln!(out, "pgpgin {}", kibibytes(FsCounter::disk_sectors_read));
    writeln!(
        out,
        "pgpgout {}",
        kibibytes(FsCounter::disk_sectors_written)
    );
    writeln!(out, "pgfault {faults}");
    let major = Counter::fault_read_in.total() + Counter::fault_swap_in.total();
    writeln!(out, "pgmajfault {major}");
    writeln!(out, "pswpin {}", Counter::swap_pages_in.total());
    writeln!(out, "pswpout {}", Counter::swap_pages_out.total());
    for (name, counter) in [
        ("pgactivate", Counter::pageout_second_chances),
        ("pgdeactivate", Counter::pageout_deactivated),
        ("pgscan_kswapd", Counter::pageout_scanned),
        ("pgsteal_kswapd", Counter::pageout_freed),
        ("pageoutrun", Counter::pageout_runs),
        ("allocstall_normal", Counter::memory_waits),
    ] {
        writeln!(out, "{name} {}", counter.total());
    }
    let kills = KernelCounter::out_of_memory_kills.total();
    writeln!(out, "oom_kill {kills}");
    let shared = NucleusCounter::large_shared_entered.total();
    let private = NucleusCounter::large_entered.total().saturating_sub(shared);
    writeln!(out, "thp_fault_alloc {private}");
    writeln!(out, "thp_fault_fallback {}", Counter::large_refused.total());
    writeln!(out, "thp_file_mapped {shared}");
    writeln!(out, "thp_split_pmd {}", pmap::large_splits());
}
