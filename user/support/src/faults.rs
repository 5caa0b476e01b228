//! Bad memory accesses, caught in a child.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_void};

use crate::children::{End, exit, spawn, wait};
use crate::equal;
use crate::failure::{Outcome, Result};
use crate::memory::{PAGE, shared_map, unmap};
use crate::signals::{handle, signal_stack};

/// Codes of signals (`sigaction(2)`) that the C library's bindings leave out.
pub mod code {
    /// SIGSEGV: nothing is mapped there.
    pub const SEGV_MAPERR: i32 = 1;
    /// SIGSEGV: the map does not allow it.
    pub const SEGV_ACCERR: i32 = 2;
    /// SIGILL: an illegal operand.
    pub const ILL_ILLOPN: i32 = 2;
    /// SIGFPE: division by zero.
    pub const FPE_INTDIV: i32 = 1;
}

/// A signal for a bad access, as its handler saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The signal.
    pub signal: c_int,
    /// Its code.
    pub code: c_int,
    /// The address that was accessed.
    pub address: usize,
}

static FAULT: AtomicPtr<Fault> = AtomicPtr::new(ptr::null_mut());

extern "C" fn note_fault(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo; FAULT points to a page shared with the parent.
    unsafe {
        let (code, address) = ((*info).si_code, (*info).si_addr() as usize);
        let fault = Fault {
            signal,
            code,
            address,
        };
        FAULT.load(Ordering::SeqCst).write(fault);
    }
    exit(77);
}

/// Runs `body` in a child and returns the bad access that it made, if any.
pub fn fault_of(body: impl FnOnce()) -> Result<Option<Fault>> {
    let shared = shared_map(PAGE)?.cast::<Fault>();
    let child = spawn(|| {
        FAULT.store(shared, Ordering::SeqCst);
        signal_stack()?;
        for signal in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGILL,
            libc::SIGFPE,
            libc::SIGTRAP,
        ] {
            handle(signal, note_fault, libc::SA_ONSTACK)?;
        }
        body();
        Ok(())
    })?;
    let fault = match wait(child)? {
        End::Exit(0) => None,
        // SAFETY: the child has written it and is gone.
        End::Exit(77) => Some(unsafe { shared.read() }),
        end => return Err(format!("the child ended with {end:?}").into()),
    };
    unmap(shared.cast(), PAGE)?;
    Ok(fault)
}

/// Fails unless `body` makes this bad access.
pub fn faults(signal: c_int, code: c_int, address: usize, body: impl FnOnce()) -> Outcome {
    equal!(
        fault_of(body)?,
        Some(Fault {
            signal,
            code,
            address
        })
    );
    Ok(())
}
