//! Copies between address spaces by the kernel.

use std::mem::MaybeUninit;

use crate::mapping::Mapping;
use crate::{Bench, Experiment, Failure, call};

/// `process_vm_readv` and `process_vm_writev`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "process-vm",
    title: "Memory of another process: process_vm_readv and process_vm_writev",
    help: "\
One operation moves so many bytes between memory of this process and memory of its child, by one
call. All pages are resident, and their own.

Rows, for 4KiB, 64KiB and 1MiB (--full: 16KiB and 256KiB, too):
  process-vm/read-SIZE    process_vm_readv
  process-vm/write-SIZE   process_vm_writev",
    run,
};

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let sizes: &[usize] = match bench.is_full() {
        true => &[4, 16, 64, 256, 1024],
        false => &[4, 64, 1024],
    };
    for (name, reads) in [("read", true), ("write", false)] {
        for &size in sizes {
            let text = match size {
                1024 => "1MiB".to_owned(),
                size => format!("{size}KiB"),
            };
            let len = size << 10;
            bench
                .row(format!("process-vm/{name}-{text}"))
                .batch((2048 / size as u64).clamp(4, 100))
                .run(|meter| {
                    let memory = Mapping::zero_fill(len)?.small();
                    memory.write_pages();
                    let child = Child::with_own(&memory)?;
                    let part = libc::iovec {
                        iov_base: memory.at().cast(),
                        iov_len: len,
                    };
                    meter.measure(|n| {
                        for _ in 0..n {
                            let moved = match reads {
                                true => call!(process_vm_readv(child.0, &part, 1, &part, 1, 0))?,
                                false => call!(process_vm_writev(child.0, &part, 1, &part, 1, 0))?,
                            };
                            if moved as usize != len {
                                return Err(format!("{moved} bytes of {len}").into());
                            }
                        }
                        Ok(())
                    })
                })?;
        }
    }
    Ok(())
}

/// A child that sleeps until it is dropped.
pub(super) struct Child(pub(super) libc::pid_t);

impl Child {
    /// Starts a child with pages of its own in place of the parent's.
    pub(super) fn with_own(memory: &Mapping) -> Result<Self, Failure> {
        let mut ends = [0; 2];
        call!(pipe(ends.as_mut_ptr()))?;
        let child = call!(fork())?;
        if child == 0 {
            memory.write_pages();
            let byte = 1u8;
            // SAFETY: a byte that lives; then the child sleeps until the parent kills it.
            unsafe {
                libc::write(ends[1], (&raw const byte).cast(), 1);
                loop {
                    libc::pause();
                }
            }
        }
        let child = Self(child);
        let mut byte = MaybeUninit::<u8>::uninit();
        call!(read(ends[0], byte.as_mut_ptr().cast(), 1))?;
        call!(close(ends[0]))?;
        call!(close(ends[1]))?;
        // Unshares the pages that the fork shared.
        memory.write_pages();
        Ok(child)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of its own, which it has not waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}
