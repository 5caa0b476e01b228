//! The start of an x86-64 machine: the kernel's place (`place`), the first CPU (`init`), then the
//! others (`smp`).

mod init;
mod place;
mod smp;
