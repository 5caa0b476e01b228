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

const fn row(number: i64, number_32: i64, name: &'static str, kinds: &'static [Kind]) -> Row {
    Row {
        number,
        number_32,
        name,
        kinds,
    }
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

/// The calls by subject.
pub const ROWS: &[Row] = &[
    // Files.
    row(0, 3, "read", &[Fd, Memory, Length]),
    row(1, 4, "write", &[Fd, Memory, Length]),
    row(2, 5, "open", &[Path, Bits(0x4f_ffc3), Mode]),
    row(257, 295, "openat", &[At, Path, Bits(0x4f_ffc3), Mode]),
    row(
        437,
        437,
        "openat2",
        &[At, Path, Structure, One(&[24, 16, 32, 4096])],
    ),
    row(85, 8, "creat", &[Path, Mode]),
    row(3, 6, "close", &[Fd]),
    row(436, 436, "close_range", &[Fd, One(&[20, 60, -1]), Bits(6)]),
    row(32, 41, "dup", &[Fd]),
    row(33, 63, "dup2", &[Fd, Fd]),
    row(292, 330, "dup3", &[Fd, Fd, Bits(0x8_0000)]),
    row(8, 19, "lseek", &[Fd, Offset, One(&[0, 1, 2, 3, 4, 5])]),
    row(17, 180, "pread64", &[Fd, Memory, Length, Offset]),
    row(18, 181, "pwrite64", &[Fd, Memory, Length, Offset]),
    row(19, 145, "readv", &[Fd, Pieces, Small]),
    row(20, 146, "writev", &[Fd, Pieces, Small]),
    row(295, 333, "preadv", &[Fd, Pieces, Small, Offset, Zero]),
    row(296, 334, "pwritev", &[Fd, Pieces, Small, Offset, Zero]),
    row(
        327,
        378,
        "preadv2",
        &[Fd, Pieces, Small, One(&[-1, 0, 100]), Zero, Bits(31)],
    ),
    row(
        328,
        379,
        "pwritev2",
        &[Fd, Pieces, Small, One(&[-1, 0, 100]), Zero, Bits(31)],
    ),
    row(
        72,
        221,
        "fcntl",
        &[
            Fd,
            One(&[
                0, 1, 2, 3, 4, 9, 10, 11, 1024, 1025, 1026, 1028, 1030, 1031, 1032, 1033, 1034,
                1036, 1037,
            ]),
            Any,
        ],
    ),
    row(
        72,
        221,
        "fcntl",
        &[Fd, One(&[5, 6, 7, 12, 13, 14, 36, 37, 38]), Structure],
    ),
    row(73, 143, "flock", &[Fd, Bits(15)]),
    row(74, 118, "fsync", &[Fd]),
    row(75, 148, "fdatasync", &[Fd]),
    row(277, 314, "sync_file_range", &[Fd, Offset, Offset, Bits(7)]),
    row(77, 93, "ftruncate", &[Fd, Offset]),
    row(76, 92, "truncate", &[Path, Offset]),
    row(285, 324, "fallocate", &[Fd, Bits(0x7f), Offset, Offset]),
    row(221, 250, "fadvise64", &[Fd, Offset, Offset, Small]),
    row(187, 225, "readahead", &[Fd, Offset, Length]),
    row(
        326,
        377,
        "copy_file_range",
        &[Fd, Zero, Fd, Zero, Length, Zero],
    ),
    row(
        326,
        377,
        "copy_file_range",
        &[Fd, Structure, Fd, Structure, Length, Small],
    ),
    row(40, 239, "sendfile", &[Fd, Fd, Zero, Length]),
    row(40, 239, "sendfile", &[Fd, Fd, Structure, Length]),
    row(275, 313, "splice", &[Fd, Zero, Fd, Zero, Length, Bits(15)]),
    row(
        275,
        313,
        "splice",
        &[Fd, Structure, Fd, Structure, Length, Bits(15)],
    ),
    row(276, 315, "tee", &[Fd, Fd, Length, Bits(15)]),
    row(278, 316, "vmsplice", &[Fd, Pieces, Small, Bits(15)]),
    row(
        16,
        54,
        "ioctl",
        &[
            Fd,
            One(&[
                0x5401, 0x5402, 0x5403, 0x5404, 0x5405, 0x5409, 0x540a, 0x540b, 0x5411, 0x5413,
                0x5414, 0x541b, 0x5421, 0x5429, 0x5450, 0x5451, 0x5452, 0x80045430, 0x40045431,
                0x5441, 0x8912, 0x8913, 0x8915, 0x8927, 0x8933, 0x80086601, 0x40086602,
            ]),
            Structure,
        ],
    ),
    row(22, 42, "pipe", &[Memory]),
    row(293, 331, "pipe2", &[Memory, Bits(0x8_4800)]),
    row(319, 356, "memfd_create", &[Word, Bits(7)]),
    // Names.
    row(4, 195, "stat", &[Path, Memory]),
    row(6, 196, "lstat", &[Path, Memory]),
    row(5, 197, "fstat", &[Fd, Memory]),
    row(262, 300, "newfstatat", &[At, Path, Memory, Bits(0x1900)]),
    row(
        332,
        383,
        "statx",
        &[At, Path, Bits(0x7900), Bits(0x3fff), Memory],
    ),
    row(137, 268, "statfs", &[Path, Memory]),
    row(138, 269, "fstatfs", &[Fd, Memory]),
    row(21, 33, "access", &[Path, Small]),
    row(269, 307, "faccessat", &[At, Path, Small]),
    row(439, 439, "faccessat2", &[At, Path, Small, Bits(0x1300)]),
    row(217, 220, "getdents64", &[Fd, Memory, Length]),
    row(78, 141, "getdents", &[Fd, Memory, Length]),
    row(79, 183, "getcwd", &[Memory, Length]),
    row(80, 12, "chdir", &[Path]),
    row(81, 133, "fchdir", &[Fd]),
    row(83, 39, "mkdir", &[Path, Mode]),
    row(258, 296, "mkdirat", &[At, Path, Mode]),
    row(84, 40, "rmdir", &[Path]),
    row(87, 10, "unlink", &[Path]),
    row(263, 301, "unlinkat", &[At, Path, Bits(0x200)]),
    row(82, 38, "rename", &[Path, Path]),
    row(264, 302, "renameat", &[At, Path, At, Path]),
    row(316, 353, "renameat2", &[At, Path, At, Path, Bits(7)]),
    row(86, 9, "link", &[Path, Path]),
    row(265, 303, "linkat", &[At, Path, At, Path, Bits(0x1400)]),
    row(88, 83, "symlink", &[Path, Path]),
    row(266, 304, "symlinkat", &[Path, At, Path]),
    row(89, 85, "readlink", &[Path, Memory, Length]),
    row(267, 305, "readlinkat", &[At, Path, Memory, Length]),
    row(90, 15, "chmod", &[Path, Mode]),
    row(91, 94, "fchmod", &[Fd, Mode]),
    row(268, 306, "fchmodat", &[At, Path, Mode]),
    row(92, 182, "chown", &[Path, Small, Small]),
    row(93, 95, "fchown", &[Fd, Small, Small]),
    row(94, 16, "lchown", &[Path, Small, Small]),
    row(
        260,
        298,
        "fchownat",
        &[At, Path, Small, Small, Bits(0x1100)],
    ),
    row(95, 60, "umask", &[Mode]),
    row(132, 30, "utime", &[Path, Structure]),
    row(235, 271, "utimes", &[Path, Times]),
    row(280, 320, "utimensat", &[At, Path, Times, Bits(0x100)]),
    row(261, 299, "futimesat", &[At, Path, Times]),
    row(
        133,
        14,
        "mknod",
        &[Path, One(&[0o10644, 0o100644, 0o140755, 0o20666]), Small],
    ),
    row(
        259,
        297,
        "mknodat",
        &[
            At,
            Path,
            One(&[0o10644, 0o100644, 0o140755, 0o20666]),
            Small,
        ],
    ),
    row(188, 226, "setxattr", &[Path, Word, Memory, Length, Bits(3)]),
    row(
        189,
        227,
        "lsetxattr",
        &[Path, Word, Memory, Length, Bits(3)],
    ),
    row(190, 228, "fsetxattr", &[Fd, Word, Memory, Length, Bits(3)]),
    row(191, 229, "getxattr", &[Path, Word, Memory, Length]),
    row(192, 230, "lgetxattr", &[Path, Word, Memory, Length]),
    row(193, 231, "fgetxattr", &[Fd, Word, Memory, Length]),
    row(194, 232, "listxattr", &[Path, Memory, Length]),
    row(195, 233, "llistxattr", &[Path, Memory, Length]),
    row(196, 234, "flistxattr", &[Fd, Memory, Length]),
    row(197, 235, "removexattr", &[Path, Word]),
    row(198, 236, "lremovexattr", &[Path, Word]),
    row(199, 237, "fremovexattr", &[Fd, Word]),
    row(
        303,
        341,
        "name_to_handle_at",
        &[At, Path, Structure, Memory, Bits(0x1400)],
    ),
    row(
        304,
        342,
        "open_by_handle_at",
        &[Fd, Structure, Bits(0x4f_ffc3)],
    ),
    row(
        165,
        21,
        "mount",
        &[Word, MountPoint, Word, Bits(0xf_ffff), Word],
    ),
    row(
        165,
        21,
        "mount",
        &[
            MountPoint,
            MountPoint,
            Zero,
            One(&[
                0x1000, 0x5000, 0x2000, 0x4_0000, 0x8_0000, 0x10_0000, 0x2_0000, 0x20,
            ]),
            Zero,
        ],
    ),
    row(166, 52, "umount2", &[MountPoint, Bits(15)]),
    row(428, 428, "open_tree", &[At, Path, Bits(0x8_9001)]),
    row(
        429,
        429,
        "move_mount",
        &[At, Path, At, MountPoint, Bits(0x77)],
    ),
    row(430, 430, "fsopen", &[Word, Bits(1)]),
    row(431, 431, "fsconfig", &[Fd, Small, Word, Word, Small]),
    row(432, 432, "fsmount", &[Fd, Bits(1), Bits(0xff)]),
    row(433, 433, "fspick", &[At, Path, Bits(15)]),
    row(
        442,
        442,
        "mount_setattr",
        &[At, MountPoint, Bits(0x8000), Structure, Length],
    ),
    // Waiting for files.
    row(7, 168, "poll", &[Structure, Small, One(&[0, 1, 5])]),
    row(
        271,
        309,
        "ppoll",
        &[Structure, Small, Time, SignalSet, One(&[8])],
    ),
    row(
        23,
        142,
        "select",
        &[Small, Structure, Structure, Structure, Time],
    ),
    row(
        270,
        308,
        "pselect6",
        &[Small, Structure, Structure, Structure, Time, Structure],
    ),
    row(213, 254, "epoll_create", &[Small]),
    row(291, 329, "epoll_create1", &[Bits(0x8_0000)]),
    row(233, 255, "epoll_ctl", &[Fd, One(&[1, 2, 3]), Fd, Structure]),
    row(
        232,
        256,
        "epoll_wait",
        &[Fd, Memory, Small, One(&[0, 1, 5])],
    ),
    row(
        281,
        319,
        "epoll_pwait",
        &[Fd, Memory, Small, One(&[0, 1, 5]), SignalSet, One(&[8])],
    ),
    row(
        441,
        441,
        "epoll_pwait2",
        &[Fd, Memory, Small, Time, SignalSet, One(&[8])],
    ),
    row(284, 323, "eventfd", &[Small]),
    row(290, 328, "eventfd2", &[Small, Bits(0x8_0801)]),
    row(
        283,
        322,
        "timerfd_create",
        &[One(&[0, 1, 7, 8, 9]), Bits(0x8_0800)],
    ),
    row(286, 325, "timerfd_settime", &[Fd, Bits(3), Times, Memory]),
    row(287, 326, "timerfd_gettime", &[Fd, Memory]),
    row(282, 321, "signalfd", &[Fd, SignalSet, One(&[8])]),
    row(
        289,
        327,
        "signalfd4",
        &[One(&[-1, 5, 6]), SignalSet, One(&[8]), Bits(0x8_0800)],
    ),
    row(253, 291, "inotify_init", &[Zero]),
    row(294, 332, "inotify_init1", &[Bits(0x8_0800)]),
    row(
        254,
        292,
        "inotify_add_watch",
        &[Fd, Path, Bits(0xf700_0fff)],
    ),
    row(255, 293, "inotify_rm_watch", &[Fd, Small]),
    // Sockets.
    row(
        41,
        359,
        "socket",
        &[
            One(&[1, 1, 2, 2, 10, 16, 17]),
            One(&[1, 1, 2, 2, 3, 5, 0x801, 0x8_0802]),
            One(&[0, 0, 0, 6, 17]),
        ],
    ),
    row(
        53,
        360,
        "socketpair",
        &[One(&[1, 1, 2]), One(&[1, 2, 5, 0x801]), Zero, Memory],
    ),
    row(49, 361, "bind", &[Fd, Address, Small]),
    row(42, 362, "connect", &[Fd, Address, Small]),
    row(50, 363, "listen", &[Fd, Small]),
    row(43, 0, "accept", &[Fd, Memory, LengthAt]),
    row(288, 364, "accept4", &[Fd, Memory, LengthAt, Bits(0x8_0800)]),
    row(51, 367, "getsockname", &[Fd, Memory, LengthAt]),
    row(52, 368, "getpeername", &[Fd, Memory, LengthAt]),
    row(
        44,
        369,
        "sendto",
        &[Fd, Memory, Length, Bits(0xc0c5), Address, Small],
    ),
    row(
        45,
        371,
        "recvfrom",
        &[Fd, Memory, Length, Bits(0x4000_0163), Memory, LengthAt],
    ),
    row(46, 370, "sendmsg", &[Fd, Message, Bits(0xc0c5)]),
    row(47, 372, "recvmsg", &[Fd, Message, Bits(0x4000_0163)]),
    row(307, 345, "sendmmsg", &[Fd, Message, Small, Bits(0xc0c5)]),
    row(
        299,
        337,
        "recvmmsg",
        &[Fd, Message, Small, Bits(0x4001_0163), Time],
    ),
    row(
        54,
        366,
        "setsockopt",
        &[Fd, One(&[0, 1, 6, 17, 41, 270]), Small, Structure, Length],
    ),
    row(
        54,
        366,
        "setsockopt",
        &[Fd, One(&[1]), Offset, Structure, One(&[4, 8, 16])],
    ),
    row(
        55,
        365,
        "getsockopt",
        &[Fd, One(&[0, 1, 6, 17, 41, 270]), Small, Memory, LengthAt],
    ),
    row(
        55,
        365,
        "getsockopt",
        &[Fd, One(&[1]), Offset, Memory, LengthAt],
    ),
    row(48, 373, "shutdown", &[Fd, Small]),
    // Memory.
    row(
        9,
        192,
        "mmap",
        &[
            Zero,
            Pages,
            Bits(7),
            One(&[1, 2, 0x21, 0x22, 3, 0x8022, 0x4022]),
            Fd,
            One(&[0, 4096, 0x1000_0000]),
        ],
    ),
    row(
        9,
        192,
        "mmap",
        &[
            Page,
            Pages,
            Bits(7),
            One(&[0x31, 0x32, 0x11, 0x12, 0x10_0022]),
            Fd,
            Zero,
        ],
    ),
    row(11, 91, "munmap", &[Page, Pages]),
    row(25, 163, "mremap", &[Page, Pages, Pages, Bits(7), Page]),
    row(10, 125, "mprotect", &[Page, Pages, Bits(0x0300_000f)]),
    row(28, 219, "madvise", &[Page, Pages, Bits(31)]),
    row(26, 144, "msync", &[Page, Pages, Bits(7)]),
    row(27, 218, "mincore", &[Page, Pages, Memory]),
    row(149, 150, "mlock", &[Page, Pages]),
    row(325, 376, "mlock2", &[Page, Pages, Bits(1)]),
    row(150, 151, "munlock", &[Page, Pages]),
    row(151, 152, "mlockall", &[Bits(7)]),
    row(152, 153, "munlockall", &[Zero]),
    row(12, 45, "brk", &[Any]),
    row(
        216,
        257,
        "remap_file_pages",
        &[Page, Pages, Zero, Small, Zero],
    ),
    row(
        310,
        347,
        "process_vm_readv",
        &[Me, Pieces, Small, Pieces, Small, Zero],
    ),
    row(
        311,
        348,
        "process_vm_writev",
        &[Me, Pieces, Small, Pieces, Small, Zero],
    ),
    row(
        440,
        440,
        "process_madvise",
        &[Fd, Pieces, Small, Bits(31), Zero],
    ),
    row(324, 375, "membarrier", &[Bits(0x1ff), Bits(1), Small]),
    row(
        237,
        274,
        "mbind",
        &[Page, Pages, Small, Structure, Small, Small],
    ),
    row(
        239,
        275,
        "get_mempolicy",
        &[Memory, Memory, Small, Page, Small],
    ),
    row(238, 276, "set_mempolicy", &[Small, Structure, Small]),
    row(330, 381, "pkey_alloc", &[Zero, Small]),
    row(329, 380, "pkey_mprotect", &[Page, Pages, Bits(7), Small]),
    row(331, 382, "pkey_free", &[Small]),
    // System V objects and message queues.
    row(29, 395, "shmget", &[Key, Length, Bits(0o7777)]),
    row(
        30,
        397,
        "shmat",
        &[Id, One(&[0, 0, 0x2000_0000]), Bits(0o170000)],
    ),
    row(67, 398, "shmdt", &[Page]),
    row(
        31,
        396,
        "shmctl",
        &[Id, One(&[0, 1, 2, 3, 11, 12, 13, 14, 15]), Structure],
    ),
    row(64, 393, "semget", &[Key, Small, Bits(0o7777)]),
    row(65, 0, "semop", &[Id, Structure, Small]),
    row(220, 0, "semtimedop", &[Id, Structure, Small, Time]),
    row(
        66,
        394,
        "semctl",
        &[
            Id,
            Small,
            One(&[0, 1, 2, 3, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]),
            Structure,
        ],
    ),
    row(68, 399, "msgget", &[Key, Bits(0o7777)]),
    row(69, 400, "msgsnd", &[Id, Structure, Length, Bits(0o4000)]),
    row(
        70,
        401,
        "msgrcv",
        &[Id, Memory, Length, One(&[0, 1, -3, 5]), Bits(0o174000)],
    ),
    row(
        71,
        402,
        "msgctl",
        &[Id, One(&[0, 1, 2, 3, 11, 12, 13]), Structure],
    ),
    row(
        240,
        277,
        "mq_open",
        &[Queue, Bits(0x8_08c3), Mode, Structure],
    ),
    row(241, 278, "mq_unlink", &[Queue]),
    row(242, 279, "mq_timedsend", &[Fd, Memory, Length, Small, Time]),
    row(
        243,
        280,
        "mq_timedreceive",
        &[Fd, Memory, One(&[8192, 8192, 100]), Memory, Time],
    ),
    row(244, 281, "mq_notify", &[Fd, Structure]),
    row(245, 282, "mq_getsetattr", &[Fd, Structure, Memory]),
    // Processes and threads.
    row(39, 20, "getpid", &[Zero]),
    row(110, 64, "getppid", &[Zero]),
    row(186, 224, "gettid", &[Zero]),
    row(121, 132, "getpgid", &[Me]),
    row(111, 65, "getpgrp", &[Zero]),
    row(124, 147, "getsid", &[Me]),
    row(
        61,
        114,
        "wait4",
        &[One(&[-1, 0]), Memory, Bits(0xb), Memory],
    ),
    row(
        247,
        284,
        "waitid",
        &[One(&[0, 1, 2, 3]), Small, Memory, Bits(0x100_000f), Memory],
    ),
    row(59, 11, "execve", &[Program, Zero, Zero]),
    row(
        322,
        358,
        "execveat",
        &[At, Program, Zero, Zero, Bits(0x1100)],
    ),
    row(434, 434, "pidfd_open", &[Me, Bits(0x800)]),
    row(438, 438, "pidfd_getfd", &[Fd, Fd, Zero]),
    row(424, 424, "pidfd_send_signal", &[Fd, Signal, Zero, Zero]),
    row(157, 172, "prctl", &[Small, Any, Any, Any, Any]),
    row(
        157,
        172,
        "prctl",
        &[
            One(&[
                1, 2, 3, 4, 7, 8, 15, 16, 21, 22, 23, 24, 28, 29, 30, 36, 37, 38, 39, 40, 47, 53,
            ]),
            Small,
            Zero,
            Zero,
            Zero,
        ],
    ),
    row(
        158,
        384,
        "arch_prctl",
        &[One(&[0x1003, 0x1004, 0x1011]), Memory],
    ),
    row(218, 258, "set_tid_address", &[Memory]),
    row(273, 311, "set_robust_list", &[Structure, One(&[24, 12])]),
    row(274, 312, "get_robust_list", &[Me, Memory, Memory]),
    row(334, 386, "rseq", &[Memory, One(&[32]), Bits(1), Any]),
    row(
        202,
        240,
        "futex",
        &[Memory, Bits(0x18f), Small, Time, Memory, Any],
    ),
    row(
        449,
        449,
        "futex_waitv",
        &[Structure, Small, Zero, Time, One(&[0, 1])],
    ),
    row(24, 158, "sched_yield", &[Zero]),
    row(203, 241, "sched_setaffinity", &[Zero, Length, Structure]),
    row(204, 242, "sched_getaffinity", &[Me, Length, Memory]),
    row(144, 156, "sched_setscheduler", &[Zero, Small, Structure]),
    row(145, 157, "sched_getscheduler", &[Me]),
    row(142, 154, "sched_setparam", &[Zero, Structure]),
    row(143, 155, "sched_getparam", &[Me, Memory]),
    row(314, 351, "sched_setattr", &[Zero, Structure, Zero]),
    row(315, 352, "sched_getattr", &[Me, Memory, Length, Zero]),
    row(146, 159, "sched_get_priority_max", &[Small]),
    row(147, 160, "sched_get_priority_min", &[Small]),
    row(148, 161, "sched_rr_get_interval", &[Me, Memory]),
    row(140, 96, "getpriority", &[Small, Me]),
    row(141, 97, "setpriority", &[Zero, Zero, Small]),
    row(251, 289, "ioprio_set", &[One(&[1]), Zero, Small]),
    row(252, 290, "ioprio_get", &[Small, Me]),
    row(97, 76, "getrlimit", &[Small, Memory]),
    row(160, 75, "setrlimit", &[Small, Structure]),
    row(302, 340, "prlimit64", &[Zero, Small, Structure, Memory]),
    row(98, 77, "getrusage", &[One(&[0, -1, 1]), Memory]),
    row(100, 43, "times", &[Memory]),
    row(135, 136, "personality", &[One(&[-1, 0, 8, 0x004_0000])]),
    row(309, 318, "getcpu", &[Memory, Memory, Zero]),
    row(312, 349, "kcmp", &[Me, Me, Small, Fd, Fd]),
    row(272, 310, "unshare", &[Bits(0x7e02_0600)]),
    row(308, 346, "setns", &[Fd, Bits(0x7e02_0000)]),
    row(317, 354, "seccomp", &[Small, Small, Structure]),
    // Users.
    row(102, 24, "getuid", &[Zero]),
    row(105, 23, "setuid", &[Small]),
    row(106, 46, "setgid", &[Small]),
    row(113, 70, "setreuid", &[Small, Small]),
    row(114, 71, "setregid", &[Small, Small]),
    row(117, 164, "setresuid", &[Small, Small, Small]),
    row(118, 165, "getresuid", &[Memory, Memory, Memory]),
    row(119, 170, "setresgid", &[Small, Small, Small]),
    row(120, 171, "getresgid", &[Memory, Memory, Memory]),
    row(122, 138, "setfsuid", &[Small]),
    row(123, 139, "setfsgid", &[Small]),
    row(115, 80, "getgroups", &[Small, Memory]),
    row(116, 81, "setgroups", &[Small, Structure]),
    row(125, 184, "capget", &[Structure, Memory]),
    row(126, 185, "capset", &[Structure, Structure]),
    // Signals.
    row(62, 37, "kill", &[Zero, Signal]),
    row(200, 238, "tkill", &[Zero, Signal]),
    row(234, 270, "tgkill", &[Zero, Me, Signal]),
    row(
        13,
        174,
        "rt_sigaction",
        &[Signal, Structure, Memory, One(&[8])],
    ),
    row(
        14,
        175,
        "rt_sigprocmask",
        &[Small, SignalSet, Memory, One(&[8])],
    ),
    row(127, 176, "rt_sigpending", &[Memory, One(&[8])]),
    row(130, 179, "rt_sigsuspend", &[SignalSet, One(&[8])]),
    row(
        128,
        177,
        "rt_sigtimedwait",
        &[SignalSet, Memory, Time, One(&[8])],
    ),
    row(129, 178, "rt_sigqueueinfo", &[Zero, Signal, Structure]),
    row(131, 186, "sigaltstack", &[Structure, Memory]),
    row(37, 27, "alarm", &[Small]),
    row(219, 0, "restart_syscall", &[Zero]),
    // Time.
    row(228, 265, "clock_gettime", &[Small, Memory]),
    row(229, 266, "clock_getres", &[Small, Memory]),
    row(230, 267, "clock_nanosleep", &[Small, Bits(1), Time, Memory]),
    row(305, 343, "clock_adjtime", &[Small, Structure]),
    row(159, 124, "adjtimex", &[Structure]),
    row(35, 162, "nanosleep", &[Time, Memory]),
    row(96, 78, "gettimeofday", &[Memory, Memory]),
    row(201, 13, "time", &[Memory]),
    row(36, 105, "getitimer", &[Small, Memory]),
    row(38, 104, "setitimer", &[Small, Times, Memory]),
    row(
        222,
        259,
        "timer_create",
        &[One(&[0, 1, 2, 3, 7, 8, 9]), Structure, Memory],
    ),
    row(223, 260, "timer_settime", &[Small, Bits(1), Times, Memory]),
    row(224, 261, "timer_gettime", &[Small, Memory]),
    row(225, 262, "timer_getoverrun", &[Small]),
    row(226, 263, "timer_delete", &[Small]),
    // The system.
    row(63, 122, "uname", &[Memory]),
    row(99, 116, "sysinfo", &[Memory]),
    row(103, 103, "syslog", &[Small, Memory, Length]),
    row(318, 355, "getrandom", &[Memory, Length, Bits(7)]),
    row(170, 74, "sethostname", &[Word, Small]),
    row(171, 121, "setdomainname", &[Word, Small]),
    row(136, 62, "ustat", &[Small, Memory]),
    row(139, 135, "sysfs", &[Small, Small, Memory]),
    row(163, 51, "acct", &[Path]),
    row(167, 87, "swapon", &[Path, Zero]),
    row(173, 101, "ioperm", &[Small, Small, Small]),
    row(172, 110, "iopl", &[Small]),
    row(154, 123, "modify_ldt", &[Small, Structure, Length]),
    row(179, 131, "quotactl", &[Small, Path, Small, Memory]),
    row(321, 357, "bpf", &[Small, Structure, Length]),
    row(
        298,
        336,
        "perf_event_open",
        &[Structure, Me, Small, Small, Zero],
    ),
    row(323, 374, "userfaultfd", &[Bits(0x8_0801)]),
    row(206, 245, "io_setup", &[Small, Memory]),
    row(425, 425, "io_uring_setup", &[Small, Structure]),
    row(300, 338, "fanotify_init", &[Small, Small]),
    row(
        444,
        444,
        "landlock_create_ruleset",
        &[Structure, Length, Bits(1)],
    ),
    row(447, 447, "memfd_secret", &[Bits(0x8_0000)]),
    row(248, 286, "add_key", &[Word, Word, Memory, Length, Small]),
    row(250, 288, "keyctl", &[Small, Small, Small, Small, Small]),
    row(212, 253, "lookup_dcookie", &[Any, Memory, Length]),
];
