//! The start of an x86-64 machine: the first CPU (`init`), then the others (`smp`).

mod init;
mod smp;
