//! System calls by themselves.

use super::{Figure, Paper, Place};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "calls",
    title: "System calls, through every way into the kernel",
    paper: Paper::Basics,
    see: "The way in and out again and next to nothing between. The floor is the bare pair of instructions; what the vDSO can tell needs \
          no way in at all.",
    floors: &[
        ("getpid-int80", "int_80"),
        ("clock-vdso", "clock"),
        ("getcpu-vdso", ""),
        ("", "system_call"),
    ],
    figures: &[
        Figure::Dots {
            title: "The way in",
            rows: &[
                ("no such call", "calls/null"),
                ("getppid", "calls/getppid"),
                ("getpid, syscall", "calls/getpid-syscall"),
                ("getpid, int 0x80", "calls/getpid-int80"),
                ("getpid, int 0x80, 32 bit", "calls/getpid-int80-32bit"),
            ],
        },
        Figure::Dots {
            title: "The time",
            rows: &[
                ("clock_gettime, a call", "calls/clock-syscall"),
                ("clock_gettime, vDSO", "calls/clock-vdso"),
                ("getcpu, vDSO", "calls/getcpu-vdso"),
            ],
        },
        Figure::Dots {
            title: "A little work",
            rows: &[
                ("read a byte of /dev/zero", "calls/read-zero"),
                ("write a byte to /dev/null", "calls/write-null"),
                ("stat /dev/null", "calls/stat"),
                ("open and close it", "calls/open-close"),
                ("poll 64 pipes", "calls/poll-64"),
                ("sigaction", "calls/install-handler"),
            ],
        },
    ],
    ..Place::EMPTY
};
