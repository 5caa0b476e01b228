//! The terminal on the serial console, and which one `/dev/console` is.

use alloc::{boxed::Box, sync::Arc};

use abi::raw::general::{ECHO, ONLCR};
use nucleus::{
    OutOfMemory, console,
    sync::{Rank, SpinLock},
    task::{self, Priority, Spawn},
};

use super::terminal::{Driver, Tty};

/// `/dev/ttyS0`, which `/dev/console` leads to: major 4, minor 64.
pub const DEVICE: u64 = 4 << 8 | 64;

static CONSOLE: SpinLock<Option<Arc<Tty>>> = SpinLock::new(Rank::Leaf, None);

/// The terminal that `/dev/console` is instead.
static FRONT: SpinLock<Option<Arc<Tty>>> = SpinLock::new(Rank::Leaf, None);

struct Port;

impl Driver for Port {
    fn write(&self, bytes: &[u8]) {
        console::write(bytes);
    }
}

/// The console's terminal; it is made at the first call.
pub fn get() -> Arc<Tty> {
    let made = CONSOLE.lock().clone();
    if let Some(tty) = made {
        return tty;
    }
    let new = Tty::new(DEVICE, Box::new(Port)).expect("the machine starts with memory");
    // Two first callers: the slower one's terminal goes, outside the lock.
    CONSOLE.lock().get_or_insert_with(|| new.clone()).clone()
}

/// Returns the terminal that `/dev/console` is: that of the first program's session, else the
/// serial console's.
pub fn front() -> Arc<Tty> {
    let front = FRONT.lock().clone();
    front.unwrap_or_else(get)
}

/// Makes `/dev/console` this terminal, which lasts as long as the machine.
pub fn set_front(tty: Arc<Tty>) {
    let before = FRONT.lock().replace(tty);
    drop(before);
}

/// Makes the console's terminal, with `ONLCR` and `ECHO` or without (without echo, input comes from
/// a program), and starts the task that brings the input. Signal keys act when that task gets the
/// bytes, whether or not a program reads.
///
/// # Errors
/// No memory for the task.
pub fn start(onlcr: bool, echo: bool) -> Result<(), OutOfMemory> {
    let tty = get();
    tty.adjust_settings(|settings| {
        if !onlcr {
            settings.c_oflag &= !ONLCR;
        }
        if !echo {
            settings.c_lflag &= !ECHO;
        }
    });
    task::spawn(
        Spawn {
            name: "console",
            pmap: None,
            attachment: None,
            cpus: !0,
            // A key must act at once however busy the programs are.
            priority: Priority::KERNEL,
        },
        Box::new(move || pump(&tty, !echo)),
    )
    .map(drop)
}

/// Brings input to the terminal. `patient`: the other end is a program that waits until its input
/// is read; otherwise a person, whose keys must act at once.
fn pump(tty: &Tty, patient: bool) {
    let mut bytes = [0; 64];
    loop {
        if patient {
            tty.wait_for_room();
        }
        let n = console::arrivals().wait_soundly(|| {
            let n = console::read(&mut bytes);
            (n > 0).then_some(n)
        });
        tty.receive(&bytes[..n]);
    }
}
