//! Signals: sent, handled, returned from.

use super::{Figure, Paper, Place};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "signals",
    title: "Signals",
    paper: Paper::Basics,
    see: "A handled signal is a call, a frame on the program's stack, a way out to the handler, and a second call back. \
          To another CPU it costs an interrupt besides.",
    floors: &[
        ("fault", "page_fault"),
        ("process-other", "ipi"),
        ("thread-other", "ipi"),
        ("", "system_call"),
    ],
    figures: &[
        Figure::Dots {
            title: "To oneself",
            rows: &[
                ("sent and handled", "signals/self"),
                ("a fault, handled", "signals/fault"),
                ("ignored", "signals/ignored"),
                ("blocked", "signals/blocked"),
                ("the way back alone", "signals/return"),
                ("a mask changed", "signals/mask"),
            ],
        },
        Figure::Dots {
            title: "There and back",
            rows: &[
                ("a thread, same CPU", "signals/thread-same"),
                ("a thread, other CPU", "signals/thread-other"),
                ("a process, same CPU", "signals/process-same"),
                ("a process, other CPU", "signals/process-other"),
            ],
        },
    ],
    reasons: &[(
        "signals/return",
        "The FPU state in the frame, 1.3 KiB, is copied to the thread's own, checked and loaded from there; Linux loads it straight from the program's memory.",
    )],
    ..Place::EMPTY
};
