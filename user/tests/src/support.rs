//! What the tests have in common: checked calls, children, faults that are caught.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_void, pid_t};

/// What a test returns: why it failed.
pub type Outcome = Result<(), String>;

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

/// The size of a page.
pub const PAGE: usize = 4096;

/// Fails the test unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err(format!($($message)*));
        }
    };
}

/// The result of a call of the C library, which must not be -1.
#[macro_export]
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the test passes what the call asks for, or means the kernel to refuse it.
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe)]
        let result = unsafe { libc::$name($($argument),*) };
        if result as i64 == -1 {
            return Err(format!(
                "{} (line {}): {}", stringify!($name), line!(), std::io::Error::last_os_error()
            ));
        }
        result
    }};
}

/// Fails the test unless the call of the C library fails with this error.
#[macro_export]
macro_rules! refused {
    ($error:ident, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the test means the kernel to refuse what it passes.
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe)]
        let result = unsafe { libc::$name($($argument),*) };
        let error = $crate::support::errno();
        $crate::ensure!(
            result as i64 == -1,
            "{} (line {}) succeeded with {:?}, {} expected",
            stringify!($name), line!(), result, stringify!($error)
        );
        $crate::ensure!(
            error == libc::$error,
            "{} (line {}) failed with {error}, {} ({}) expected",
            stringify!($name), line!(), stringify!($error), libc::$error
        );
    }};
}

/// The error of the last failed call.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// How a child ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Exit(i32),
    Signal(i32),
    Stopped(i32),
    Continued,
}

impl End {
    /// From a status of `wait`.
    pub fn of(status: c_int) -> Self {
        if libc::WIFEXITED(status) {
            Self::Exit(libc::WEXITSTATUS(status))
        } else if libc::WIFSTOPPED(status) {
            Self::Stopped(libc::WSTOPSIG(status))
        } else if libc::WIFCONTINUED(status) {
            Self::Continued
        } else {
            Self::Signal(libc::WTERMSIG(status))
        }
    }
}

/// Forks a child that runs `body` and exits: with 0, or with 99 after it has said what failed.
pub fn spawn(body: impl FnOnce() -> Outcome) -> Result<pid_t, String> {
    let child = call!(fork());
    if child != 0 {
        return Ok(child);
    }
    let status = match body() {
        Ok(()) => 0,
        Err(why) => {
            say(&format!("  in a child: {why}\n"));
            99
        }
    };
    exit(status)
}

/// Ends this process at once.
pub fn exit(status: i32) -> ! {
    // SAFETY: ends the process; nothing is left to be unsound.
    unsafe { libc::_exit(status) }
}

/// Writes to standard output without any buffer.
pub fn say(text: &str) {
    // SAFETY: the bytes are those of a live string.
    let _ = unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
}

/// Waits for a child.
pub fn wait(child: pid_t) -> Result<End, String> {
    wait_with(child, 0)
}

/// Waits for a child with options of `waitpid`.
pub fn wait_with(child: pid_t, options: c_int) -> Result<End, String> {
    let mut status = 0;
    loop {
        // SAFETY: `status` lives across the call.
        let found = unsafe { libc::waitpid(child, &mut status, options) };
        if found == child {
            return Ok(End::of(status));
        }
        if found != -1 || errno() != libc::EINTR {
            return Err(format!("waitpid({child}) gave {found}, errno {}", errno()));
        }
    }
}

/// Runs `body` in a child, which must end with status 0.
pub fn child(body: impl FnOnce() -> Outcome) -> Outcome {
    let end = wait(spawn(body)?)?;
    ensure!(end == End::Exit(0), "the child ended with {end:?}");
    Ok(())
}

/// A signal for a bad access, as the handler saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    pub signal: c_int,
    pub code: c_int,
    pub address: usize,
}

static FAULT: AtomicPtr<Fault> = AtomicPtr::new(ptr::null_mut());

extern "C" fn note_fault(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo; FAULT points to a page shared with the parent.
    unsafe {
        let fault = Fault {
            signal,
            code: (*info).si_code,
            address: (*info).si_addr() as usize,
        };
        FAULT.load(Ordering::SeqCst).write(fault);
    }
    exit(77);
}

/// Makes `handler` the one for `signal`.
pub fn handle(
    signal: c_int,
    handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void),
    flags: c_int,
) -> Outcome {
    // SAFETY: all zeros is a valid sigaction; the handler has the type that SA_SIGINFO asks for.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | flags;
    call!(sigaction(signal, &action, ptr::null_mut()));
    Ok(())
}

/// Gives this thread a signal stack of its own.
pub fn signal_stack() -> Outcome {
    let size = 16 * PAGE;
    let stack = libc::stack_t {
        ss_sp: map(size)?.cast(),
        ss_flags: 0,
        ss_size: size,
    };
    call!(sigaltstack(&stack, ptr::null_mut()));
    Ok(())
}

/// Runs `body` in a child and returns the bad access that it made, if any.
pub fn fault_of(body: impl FnOnce()) -> Result<Option<Fault>, String> {
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
        end => return Err(format!("the child ended with {end:?}")),
    };
    call!(munmap(shared.cast(), PAGE));
    Ok(fault)
}

/// Fails unless `body` makes this bad access.
pub fn faults(signal: c_int, code: c_int, address: usize, body: impl FnOnce()) -> Outcome {
    let expected = Fault {
        signal,
        code,
        address,
    };
    let fault = fault_of(body)?;
    ensure!(
        fault == Some(expected),
        "{fault:x?} in place of {expected:x?}"
    );
    Ok(())
}

/// A private anonymous mapping.
pub fn map(size: usize) -> Result<*mut u8, String> {
    map_with(
        size,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
    )
}

/// A shared anonymous mapping.
pub fn shared_map(size: usize) -> Result<*mut u8, String> {
    map_with(
        size,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        -1,
    )
}

/// A mapping at an address of the kernel's choice.
pub fn map_with(
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
) -> Result<*mut u8, String> {
    Ok(call!(mmap(ptr::null_mut(), size, protection, flags, file, 0)).cast())
}

/// Reads a byte so that the compiler cannot leave it out.
pub fn peek(address: *const u8) -> u8 {
    // SAFETY: the test means to touch this address, and catches the fault if there is one.
    unsafe { address.read_volatile() }
}

/// Writes a byte so that the compiler cannot leave it out.
pub fn poke(address: *mut u8, value: u8) {
    // SAFETY: as for `peek`.
    unsafe { address.write_volatile(value) }
}

/// A pipe: the end to read and the end to write.
pub fn pipe(flags: c_int) -> Result<(c_int, c_int), String> {
    let mut ends = [0; 2];
    call!(pipe2(ends.as_mut_ptr(), flags));
    Ok((ends[0], ends[1]))
}

/// Sleeps.
pub fn pause_ms(milliseconds: u64) {
    std::thread::sleep(std::time::Duration::from_millis(milliseconds));
}

/// A small generator of numbers that look random (xorshift64*).
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// A path as the C library wants it.
pub fn c(path: &str) -> std::ffi::CString {
    std::ffi::CString::new(path).unwrap_or_default()
}

/// A fresh folder for a test's files.
pub fn folder(name: &str) -> Result<String, String> {
    let path = format!("/tmp/test-{name}-{}", std::process::id());
    std::fs::create_dir_all(&path).map_err(|error| format!("{path}: {error}"))?;
    Ok(path)
}

/// A file with these bytes, open for reading and writing.
pub fn file(name: &str, bytes: &[u8]) -> Result<(String, c_int), String> {
    let path = format!("{}/{name}", folder(name)?);
    std::fs::write(&path, bytes).map_err(|error| format!("{path}: {error}"))?;
    let open = call!(open(c(&path).as_ptr(), libc::O_RDWR));
    Ok((path, open))
}

/// A private anonymous mapping below 2 GiB, for 32-bit pointers.
pub fn call_low_map(size: usize) -> Result<*mut u8, String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    let memory = map_with(size, libc::PROT_READ | libc::PROT_WRITE, flags, -1)?;
    ensure!((memory as usize) < 1 << 31, "MAP_32BIT gave {memory:?}");
    Ok(memory)
}
