//! The one error that most of the kernel shares.

/// No frame is free. A program sees it as `ENOMEM`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory;
