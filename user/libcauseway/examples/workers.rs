//! A parent and its children count together in private memory; a secret of the parent is not
//! inherited.
//!
//! usage: `workers [CHILDREN]`

use std::io;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

use libcauseway::{Causeway, Inherit, Memory};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("workers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let children = std::env::args().nth(1).map_or(Ok(4), |word| word.parse());
    let children: u64 = children.map_err(io::Error::other)?;
    let causeway = Causeway::open()?;
    let mut sums = Memory::new(4096)?;
    let mut secret = Memory::new(4096)?;
    secret.as_u64s()[0].store(0x5ec2e7, Relaxed);
    causeway.set_inherit(&mut sums, Inherit::Share)?;
    causeway.set_inherit(&mut secret, Inherit::Zero)?;
    for child in 1..=children {
        // SAFETY: this program has one thread, and the child only counts and ends.
        match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()),
            0 => {
                sums.as_u64s()[0].fetch_add(child, Relaxed);
                sums.as_u64s()[1].fetch_add(secret.as_u64s()[0].load(Relaxed), Relaxed);
                // SAFETY: ends the process.
                unsafe { libc::_exit(0) }
            }
            _ => {}
        }
    }
    for _ in 0..children {
        // SAFETY: nothing is written.
        unsafe { libc::wait(std::ptr::null_mut()) };
    }
    let [sum, seen] = [0, 1].map(|i| sums.as_u64s()[i].load(Relaxed));
    println!("{children} children added up to {sum}, and saw {seen} of the secret");
    println!("{:?}", causeway.counts()?);
    Ok(())
}
