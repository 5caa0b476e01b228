//! The calls with the kinds of their arguments, so that some get past the first check.

use crate::arguments::Kind::{self, *};

/// A call and the kinds of its arguments; those not named are 0.
pub struct Row {
    /// Its number for 64-bit programs, and for 32-bit ones: 0 if they have none.
    pub number: i64,
    pub number_32: i64,
    pub name: &'static str,
    pub kinds: &'static [Kind],
}

/// Calls that would end or disturb the test rather than the kernel: for 64-bit programs.
const FORBIDDEN: &[i64] = &[
    libc::SYS_reboot,
    libc::SYS_pause,
    libc::SYS_sync,
    libc::SYS_syncfs,
    libc::SYS_vhangup,
    libc::SYS_setsid, // Would leave the group that the parent kills.
    libc::SYS_setpgid,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_swapoff,
    libc::SYS_ptrace,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    // Forks are made and counted separately: they must not fill the machine.
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_clone,
    libc::SYS_clone3,
];

/// The same for 32-bit programs: exit, fork, stime, ptrace, pause, sync, setpgid, setsid, chroot,
/// settimeofday, reboot, vhangup, swapoff, sigreturn, clone, rt_sigreturn, vfork, pivot_root,
/// exit_group, clock_settime, syncfs, clock_settime64, clone3.
const FORBIDDEN_32: &[i64] = &[
    1, 2, 25, 26, 29, 36, 57, 66, 61, 79, 88, 111, 115, 119, 120, 173, 190, 217, 252, 264, 344,
    404, 435,
];

/// Returns whether a call with this number, of a 32-bit program or not, may be made.
pub fn is_allowed(number: i64, narrow: bool) -> bool {
    // Only the lower half of a number counts.
    let number = i64::from(number as u32);
    !if narrow { FORBIDDEN_32 } else { FORBIDDEN }.contains(&number)
}

/// Confines signals to this process's group, settings to itself, and mounts to their folder;
/// returns false if the call must be left out.
pub fn is_harmless(number: i64, narrow: bool, a: &mut [u64; 6], mount_point: u64) -> bool {
    let native = match narrow {
        true => ROWS
            .iter()
            .find(|row| row.number_32 == number)
            .map_or(-1, |row| row.number),
        false => number,
    };
    // `rt_tgsigqueueinfo`, and the older forms that only 32-bit programs have: `fcntl`, `umount`,
    // `nice`, `ipc`, `socketcall`.
    let native = match (narrow, number) {
        (true, 335) => libc::SYS_rt_tgsigqueueinfo,
        (true, 55) => libc::SYS_fcntl,
        (true, 22) => libc::SYS_umount2,
        _ => native,
    };
    match native {
        libc::SYS_kill
        | libc::SYS_tkill
        | libc::SYS_tgkill
        | libc::SYS_rt_sigqueueinfo
        | libc::SYS_rt_tgsigqueueinfo => {
            a[0] = 0; // The own group, or nobody.
            ![libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU]
                .iter()
                .any(|&stop| a[1] as i32 == stop || a[2] as i32 == stop)
        }
        libc::SYS_pidfd_open => {
            // SAFETY: takes nothing.
            a[0] = unsafe { libc::getpid() } as u64;
            true
        }
        libc::SYS_prlimit64
        | libc::SYS_sched_setscheduler
        | libc::SYS_sched_setparam
        | libc::SYS_sched_setattr
        | libc::SYS_sched_setaffinity => {
            a[0] = 0;
            true
        }
        libc::SYS_setpriority | libc::SYS_ioprio_set => {
            (a[0], a[1]) = (u64::from(native == libc::SYS_ioprio_set), 0);
            true
        }
        libc::SYS_process_vm_writev => {
            // SAFETY: takes nothing.
            a[0] = unsafe { libc::getpid() } as u64;
            true
        }
        // The owner of a file's signals could be any process: none is set.
        libc::SYS_fcntl => {
            if a[1] as u32 == libc::F_SETOWN as u32 {
                a[2] = 0;
            }
            a[1] as u32 != 15
        }
        libc::SYS_ioctl => ![0x8901, 0x8902].contains(&(a[1] as u32)),
        libc::SYS_mount => {
            a[1] = mount_point;
            true
        }
        libc::SYS_umount2 => {
            a[0] = mount_point;
            true
        }
        libc::SYS_move_mount => {
            a[3] = mount_point;
            true
        }
        _ => true,
    }
}

/// Makes a table of calls from lines `NAME NUMBER NUMBER_32: KINDS;`.
macro_rules! rows {
    ($($name:ident $number:literal $number_32:literal: $($kind:expr),*;)*) => {
        &[$(Row {
            number: $number,
            number_32: $number_32,
            name: stringify!($name),
            kinds: &[$($kind),*],
        }),*]
    };
}

/// The calls by subject.
pub const ROWS: &[Row] = rows! {
    // Files.
    read 0 3: Fd, Memory, Length;
    write 1 4: Fd, Memory, Length;
    open 2 5: Path, Bits(0x4f_ffc3), Mode;
    openat 257 295: At, Path, Bits(0x4f_ffc3), Mode;
    openat2 437 437: At, Path, Structure, One(&[24, 16, 32, 4096]);
    creat 85 8: Path, Mode;
    close 3 6: Fd;
    close_range 436 436: Fd, One(&[20, 60, -1]), Bits(6);
    dup 32 41: Fd;
    dup2 33 63: Fd, Fd;
    dup3 292 330: Fd, Fd, Bits(0x8_0000);
    lseek 8 19: Fd, Offset, One(&[0, 1, 2, 3, 4, 5]);
    pread64 17 180: Fd, Memory, Length, Offset;
    pwrite64 18 181: Fd, Memory, Length, Offset;
    readv 19 145: Fd, Pieces, Small;
    writev 20 146: Fd, Pieces, Small;
    preadv 295 333: Fd, Pieces, Small, Offset, Zero;
    pwritev 296 334: Fd, Pieces, Small, Offset, Zero;
    preadv2 327 378: Fd, Pieces, Small, One(&[-1, 0, 100]), Zero, Bits(31);
    pwritev2 328 379: Fd, Pieces, Small, One(&[-1, 0, 100]), Zero, Bits(31);
    fcntl 72 221: Fd, One(&[0, 1, 2, 3, 4, 9, 10, 11, 1024, 1025, 1026, 1028, 1030, 1031, 1032,
        1033, 1034, 1036, 1037]), Any;
    fcntl 72 221: Fd, One(&[5, 6, 7, 12, 13, 14, 36, 37, 38]), Structure;
    flock 73 143: Fd, Bits(15);
    fsync 74 118: Fd;
    fdatasync 75 148: Fd;
    sync_file_range 277 314: Fd, Offset, Offset, Bits(7);
    ftruncate 77 93: Fd, Offset;
    truncate 76 92: Path, Offset;
    fallocate 285 324: Fd, Bits(0x7f), Offset, Offset;
    fadvise64 221 250: Fd, Offset, Offset, Small;
    readahead 187 225: Fd, Offset, Length;
    copy_file_range 326 377: Fd, Zero, Fd, Zero, Length, Zero;
    copy_file_range 326 377: Fd, Structure, Fd, Structure, Length, Small;
    sendfile 40 239: Fd, Fd, Zero, Length;
    sendfile 40 239: Fd, Fd, Structure, Length;
    splice 275 313: Fd, Zero, Fd, Zero, Length, Bits(15);
    splice 275 313: Fd, Structure, Fd, Structure, Length, Bits(15);
    tee 276 315: Fd, Fd, Length, Bits(15);
    vmsplice 278 316: Fd, Pieces, Small, Bits(15);
    ioctl 16 54: Fd, One(&[0x5401, 0x5402, 0x5403, 0x5404, 0x5405, 0x5409, 0x540a, 0x540b, 0x5411,
        0x5413, 0x5414, 0x541b, 0x5421, 0x5429, 0x5450, 0x5451, 0x5452, 0x80045430, 0x40045431,
        0x5441, 0x8912, 0x8913, 0x8915, 0x8927, 0x8933, 0x80086601, 0x40086602]), Structure;
    pipe 22 42: Memory;
    pipe2 293 331: Memory, Bits(0x8_4800);
    memfd_create 319 356: Word, Bits(7);
    // Names.
    stat 4 195: Path, Memory;
    lstat 6 196: Path, Memory;
    fstat 5 197: Fd, Memory;
    newfstatat 262 300: At, Path, Memory, Bits(0x1900);
    statx 332 383: At, Path, Bits(0x7900), Bits(0x3fff), Memory;
    statfs 137 268: Path, Memory;
    fstatfs 138 269: Fd, Memory;
    access 21 33: Path, Small;
    faccessat 269 307: At, Path, Small;
    faccessat2 439 439: At, Path, Small, Bits(0x1300);
    getdents64 217 220: Fd, Memory, Length;
    getdents 78 141: Fd, Memory, Length;
    getcwd 79 183: Memory, Length;
    chdir 80 12: Path;
    fchdir 81 133: Fd;
    mkdir 83 39: Path, Mode;
    mkdirat 258 296: At, Path, Mode;
    rmdir 84 40: Path;
    unlink 87 10: Path;
    unlinkat 263 301: At, Path, Bits(0x200);
    rename 82 38: Path, Path;
    renameat 264 302: At, Path, At, Path;
    renameat2 316 353: At, Path, At, Path, Bits(7);
    link 86 9: Path, Path;
    linkat 265 303: At, Path, At, Path, Bits(0x1400);
    symlink 88 83: Path, Path;
    symlinkat 266 304: Path, At, Path;
    readlink 89 85: Path, Memory, Length;
    readlinkat 267 305: At, Path, Memory, Length;
    chmod 90 15: Path, Mode;
    fchmod 91 94: Fd, Mode;
    fchmodat 268 306: At, Path, Mode;
    chown 92 182: Path, Small, Small;
    fchown 93 95: Fd, Small, Small;
    lchown 94 16: Path, Small, Small;
    fchownat 260 298: At, Path, Small, Small, Bits(0x1100);
    umask 95 60: Mode;
    utime 132 30: Path, Structure;
    utimes 235 271: Path, Times;
    utimensat 280 320: At, Path, Times, Bits(0x100);
    futimesat 261 299: At, Path, Times;
    mknod 133 14: Path, One(&[0o10644, 0o100644, 0o140755, 0o20666]), Small;
    mknodat 259 297: At, Path, One(&[0o10644, 0o100644, 0o140755, 0o20666]), Small;
    setxattr 188 226: Path, Word, Memory, Length, Bits(3);
    lsetxattr 189 227: Path, Word, Memory, Length, Bits(3);
    fsetxattr 190 228: Fd, Word, Memory, Length, Bits(3);
    getxattr 191 229: Path, Word, Memory, Length;
    lgetxattr 192 230: Path, Word, Memory, Length;
    fgetxattr 193 231: Fd, Word, Memory, Length;
    listxattr 194 232: Path, Memory, Length;
    llistxattr 195 233: Path, Memory, Length;
    flistxattr 196 234: Fd, Memory, Length;
    removexattr 197 235: Path, Word;
    lremovexattr 198 236: Path, Word;
    fremovexattr 199 237: Fd, Word;
    name_to_handle_at 303 341: At, Path, Structure, Memory, Bits(0x1400);
    open_by_handle_at 304 342: Fd, Structure, Bits(0x4f_ffc3);
    mount 165 21: Word, MountPoint, Word, Bits(0xf_ffff), Word;
    mount 165 21: MountPoint, MountPoint, Zero, One(&[0x1000, 0x5000, 0x2000, 0x4_0000, 0x8_0000,
        0x10_0000, 0x2_0000, 0x20]), Zero;
    umount2 166 52: MountPoint, Bits(15);
    open_tree 428 428: At, Path, Bits(0x8_9001);
    move_mount 429 429: At, Path, At, MountPoint, Bits(0x77);
    fsopen 430 430: Word, Bits(1);
    fsconfig 431 431: Fd, Small, Word, Word, Small;
    fsmount 432 432: Fd, Bits(1), Bits(0xff);
    fspick 433 433: At, Path, Bits(15);
    mount_setattr 442 442: At, MountPoint, Bits(0x8000), Structure, Length;
    // Waiting for files.
    poll 7 168: Structure, Small, One(&[0, 1, 5]);
    ppoll 271 309: Structure, Small, Time, SignalSet, One(&[8]);
    select 23 142: Small, Structure, Structure, Structure, Time;
    pselect6 270 308: Small, Structure, Structure, Structure, Time, Structure;
    epoll_create 213 254: Small;
    epoll_create1 291 329: Bits(0x8_0000);
    epoll_ctl 233 255: Fd, One(&[1, 2, 3]), Fd, Structure;
    epoll_wait 232 256: Fd, Memory, Small, One(&[0, 1, 5]);
    epoll_pwait 281 319: Fd, Memory, Small, One(&[0, 1, 5]), SignalSet, One(&[8]);
    epoll_pwait2 441 441: Fd, Memory, Small, Time, SignalSet, One(&[8]);
    eventfd 284 323: Small;
    eventfd2 290 328: Small, Bits(0x8_0801);
    timerfd_create 283 322: One(&[0, 1, 7, 8, 9]), Bits(0x8_0800);
    timerfd_settime 286 325: Fd, Bits(3), Times, Memory;
    timerfd_gettime 287 326: Fd, Memory;
    signalfd 282 321: Fd, SignalSet, One(&[8]);
    signalfd4 289 327: One(&[-1, 5, 6]), SignalSet, One(&[8]), Bits(0x8_0800);
    inotify_init 253 291: Zero;
    inotify_init1 294 332: Bits(0x8_0800);
    inotify_add_watch 254 292: Fd, Path, Bits(0xf700_0fff);
    inotify_rm_watch 255 293: Fd, Small;
    // Sockets.
    socket 41 359: One(&[1, 1, 2, 2, 10, 16, 17]), One(&[1, 1, 2, 2, 3, 5, 0x801, 0x8_0802]),
        One(&[0, 0, 0, 6, 17]);
    socketpair 53 360: One(&[1, 1, 2]), One(&[1, 2, 5, 0x801]), Zero, Memory;
    bind 49 361: Fd, Address, Small;
    connect 42 362: Fd, Address, Small;
    listen 50 363: Fd, Small;
    accept 43 0: Fd, Memory, LengthAt;
    accept4 288 364: Fd, Memory, LengthAt, Bits(0x8_0800);
    getsockname 51 367: Fd, Memory, LengthAt;
    getpeername 52 368: Fd, Memory, LengthAt;
    sendto 44 369: Fd, Memory, Length, Bits(0xc0c5), Address, Small;
    recvfrom 45 371: Fd, Memory, Length, Bits(0x4000_0163), Memory, LengthAt;
    sendmsg 46 370: Fd, Message, Bits(0xc0c5);
    recvmsg 47 372: Fd, Message, Bits(0x4000_0163);
    sendmmsg 307 345: Fd, Message, Small, Bits(0xc0c5);
    recvmmsg 299 337: Fd, Message, Small, Bits(0x4001_0163), Time;
    setsockopt 54 366: Fd, One(&[0, 1, 6, 17, 41, 270]), Small, Structure, Length;
    setsockopt 54 366: Fd, One(&[1]), Offset, Structure, One(&[4, 8, 16]);
    getsockopt 55 365: Fd, One(&[0, 1, 6, 17, 41, 270]), Small, Memory, LengthAt;
    getsockopt 55 365: Fd, One(&[1]), Offset, Memory, LengthAt;
    shutdown 48 373: Fd, Small;
    // Memory.
    mmap 9 192: Zero, Pages, Bits(7), One(&[1, 2, 0x21, 0x22, 3, 0x8022, 0x4022]), Fd, One(&[0,
        4096, 0x1000_0000]);
    mmap 9 192: Page, Pages, Bits(7), One(&[0x31, 0x32, 0x11, 0x12, 0x10_0022]), Fd, Zero;
    munmap 11 91: Page, Pages;
    mremap 25 163: Page, Pages, Pages, Bits(7), Page;
    mprotect 10 125: Page, Pages, Bits(0x0300_000f);
    madvise 28 219: Page, Pages, Bits(31);
    msync 26 144: Page, Pages, Bits(7);
    mincore 27 218: Page, Pages, Memory;
    mlock 149 150: Page, Pages;
    mlock2 325 376: Page, Pages, Bits(1);
    munlock 150 151: Page, Pages;
    mlockall 151 152: Bits(7);
    munlockall 152 153: Zero;
    brk 12 45: Any;
    remap_file_pages 216 257: Page, Pages, Zero, Small, Zero;
    process_vm_readv 310 347: Me, Pieces, Small, Pieces, Small, Zero;
    process_vm_writev 311 348: Me, Pieces, Small, Pieces, Small, Zero;
    process_madvise 440 440: Fd, Pieces, Small, Bits(31), Zero;
    membarrier 324 375: Bits(0x1ff), Bits(1), Small;
    mbind 237 274: Page, Pages, Small, Structure, Small, Small;
    get_mempolicy 239 275: Memory, Memory, Small, Page, Small;
    set_mempolicy 238 276: Small, Structure, Small;
    pkey_alloc 330 381: Zero, Small;
    pkey_mprotect 329 380: Page, Pages, Bits(7), Small;
    pkey_free 331 382: Small;
    // System V objects and message queues.
    shmget 29 395: Key, Length, Bits(0o7777);
    shmat 30 397: Id, One(&[0, 0, 0x2000_0000]), Bits(0o170000);
    shmdt 67 398: Page;
    shmctl 31 396: Id, One(&[0, 1, 2, 3, 11, 12, 13, 14, 15]), Structure;
    semget 64 393: Key, Small, Bits(0o7777);
    semop 65 0: Id, Structure, Small;
    semtimedop 220 0: Id, Structure, Small, Time;
    semctl 66 394: Id, Small, One(&[0, 1, 2, 3, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]), Structure;
    msgget 68 399: Key, Bits(0o7777);
    msgsnd 69 400: Id, Structure, Length, Bits(0o4000);
    msgrcv 70 401: Id, Memory, Length, One(&[0, 1, -3, 5]), Bits(0o174000);
    msgctl 71 402: Id, One(&[0, 1, 2, 3, 11, 12, 13]), Structure;
    mq_open 240 277: Queue, Bits(0x8_08c3), Mode, Structure;
    mq_unlink 241 278: Queue;
    mq_timedsend 242 279: Fd, Memory, Length, Small, Time;
    mq_timedreceive 243 280: Fd, Memory, One(&[8192, 8192, 100]), Memory, Time;
    mq_notify 244 281: Fd, Structure;
    mq_getsetattr 245 282: Fd, Structure, Memory;
    // Processes and threads.
    getpid 39 20: Zero;
    getppid 110 64: Zero;
    gettid 186 224: Zero;
    getpgid 121 132: Me;
    getpgrp 111 65: Zero;
    getsid 124 147: Me;
    wait4 61 114: One(&[-1, 0]), Memory, Bits(0xb), Memory;
    waitid 247 284: One(&[0, 1, 2, 3]), Small, Memory, Bits(0x100_000f), Memory;
    execve 59 11: Program, Zero, Zero;
    execveat 322 358: At, Program, Zero, Zero, Bits(0x1100);
    pidfd_open 434 434: Me, Bits(0x800);
    pidfd_getfd 438 438: Fd, Fd, Zero;
    pidfd_send_signal 424 424: Fd, Signal, Zero, Zero;
    prctl 157 172: Small, Any, Any, Any, Any;
    prctl 157 172: One(&[1, 2, 3, 4, 7, 8, 15, 16, 21, 22, 23, 24, 28, 29, 30, 36, 37, 38, 39, 40,
        47, 53]), Small, Zero, Zero, Zero;
    arch_prctl 158 384: One(&[0x1003, 0x1004, 0x1011]), Memory;
    set_tid_address 218 258: Memory;
    set_robust_list 273 311: Structure, One(&[24, 12]);
    get_robust_list 274 312: Me, Memory, Memory;
    rseq 334 386: Memory, One(&[32]), Bits(1), Any;
    futex 202 240: Memory, Bits(0x18f), Small, Time, Memory, Any;
    futex_waitv 449 449: Structure, Small, Zero, Time, One(&[0, 1]);
    sched_yield 24 158: Zero;
    sched_setaffinity 203 241: Zero, Length, Structure;
    sched_getaffinity 204 242: Me, Length, Memory;
    sched_setscheduler 144 156: Zero, Small, Structure;
    sched_getscheduler 145 157: Me;
    sched_setparam 142 154: Zero, Structure;
    sched_getparam 143 155: Me, Memory;
    sched_setattr 314 351: Zero, Structure, Zero;
    sched_getattr 315 352: Me, Memory, Length, Zero;
    sched_get_priority_max 146 159: Small;
    sched_get_priority_min 147 160: Small;
    sched_rr_get_interval 148 161: Me, Memory;
    getpriority 140 96: Small, Me;
    setpriority 141 97: Zero, Zero, Small;
    ioprio_set 251 289: One(&[1]), Zero, Small;
    ioprio_get 252 290: Small, Me;
    getrlimit 97 76: Small, Memory;
    setrlimit 160 75: Small, Structure;
    prlimit64 302 340: Zero, Small, Structure, Memory;
    getrusage 98 77: One(&[0, -1, 1]), Memory;
    times 100 43: Memory;
    personality 135 136: One(&[-1, 0, 8, 0x004_0000]);
    getcpu 309 318: Memory, Memory, Zero;
    kcmp 312 349: Me, Me, Small, Fd, Fd;
    unshare 272 310: Bits(0x7e02_0600);
    setns 308 346: Fd, Bits(0x7e02_0000);
    seccomp 317 354: Small, Small, Structure;
    // Users.
    getuid 102 24: Zero;
    setuid 105 23: Small;
    setgid 106 46: Small;
    setreuid 113 70: Small, Small;
    setregid 114 71: Small, Small;
    setresuid 117 164: Small, Small, Small;
    getresuid 118 165: Memory, Memory, Memory;
    setresgid 119 170: Small, Small, Small;
    getresgid 120 171: Memory, Memory, Memory;
    setfsuid 122 138: Small;
    setfsgid 123 139: Small;
    getgroups 115 80: Small, Memory;
    setgroups 116 81: Small, Structure;
    capget 125 184: Structure, Memory;
    capset 126 185: Structure, Structure;
    // Signals.
    kill 62 37: Zero, Signal;
    tkill 200 238: Zero, Signal;
    tgkill 234 270: Zero, Me, Signal;
    rt_sigaction 13 174: Signal, Structure, Memory, One(&[8]);
    rt_sigprocmask 14 175: Small, SignalSet, Memory, One(&[8]);
    rt_sigpending 127 176: Memory, One(&[8]);
    rt_sigsuspend 130 179: SignalSet, One(&[8]);
    rt_sigtimedwait 128 177: SignalSet, Memory, Time, One(&[8]);
    rt_sigqueueinfo 129 178: Zero, Signal, Structure;
    sigaltstack 131 186: Structure, Memory;
    alarm 37 27: Small;
    restart_syscall 219 0: Zero;
    // Time.
    clock_gettime 228 265: Small, Memory;
    clock_getres 229 266: Small, Memory;
    clock_nanosleep 230 267: Small, Bits(1), Time, Memory;
    clock_adjtime 305 343: Small, Structure;
    adjtimex 159 124: Structure;
    nanosleep 35 162: Time, Memory;
    gettimeofday 96 78: Memory, Memory;
    time 201 13: Memory;
    getitimer 36 105: Small, Memory;
    setitimer 38 104: Small, Times, Memory;
    timer_create 222 259: One(&[0, 1, 2, 3, 7, 8, 9]), Structure, Memory;
    timer_settime 223 260: Small, Bits(1), Times, Memory;
    timer_gettime 224 261: Small, Memory;
    timer_getoverrun 225 262: Small;
    timer_delete 226 263: Small;
    // The system.
    uname 63 122: Memory;
    sysinfo 99 116: Memory;
    syslog 103 103: Small, Memory, Length;
    getrandom 318 355: Memory, Length, Bits(7);
    sethostname 170 74: Word, Small;
    setdomainname 171 121: Word, Small;
    ustat 136 62: Small, Memory;
    sysfs 139 135: Small, Small, Memory;
    acct 163 51: Path;
    swapon 167 87: Path, Zero;
    ioperm 173 101: Small, Small, Small;
    iopl 172 110: Small;
    modify_ldt 154 123: Small, Structure, Length;
    quotactl 179 131: Small, Path, Small, Memory;
    bpf 321 357: Small, Structure, Length;
    perf_event_open 298 336: Structure, Me, Small, Small, Zero;
    userfaultfd 323 374: Bits(0x8_0801);
    io_setup 206 245: Small, Memory;
    io_uring_setup 425 425: Small, Structure;
    fanotify_init 300 338: Small, Small;
    landlock_create_ruleset 444 444: Structure, Length, Bits(1);
    memfd_secret 447 447: Bits(0x8_0000);
    add_key 248 286: Word, Word, Memory, Length, Small;
    keyctl 250 288: Small, Small, Small, Small, Small;
    lookup_dcookie 212 253: Any, Memory, Length;
};
