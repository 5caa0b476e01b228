//! The protocol stack of the machine, and the numbers of its families and protocols.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Errno, Result, raw::general::CAP_NET_BIND_SERVICE};
use net::Stack;
use nucleus::{
    sync::OnceBox,
    task::{self, Spawn},
};

use crate::socket::common;

/// The number of IPv4.
pub const AF_INET: u32 = 2;
/// The number of IPv6.
pub const AF_INET6: u32 = 10;
/// The family of no address: connecting to one ends the connection.
pub(super) const AF_UNSPEC: u32 = 0;

pub(super) const IPPROTO_IP: u32 = 0;
pub(super) const IPPROTO_TCP: u32 = 6;
pub(super) const IPPROTO_UDP: u32 = 17;
pub(super) const IPPROTO_UDPLITE: u32 = 136;

/// Returns the number of a family.
pub(super) fn domain(family: net::Family) -> u32 {
    match family {
        net::Family::V4 => AF_INET,
        net::Family::V6 => AF_INET6,
    }
}

/// Returns the machine's protocols. The thread that runs their timers starts with the first use.
pub fn stack() -> &'static Stack {
    static STACK: OnceBox<Stack> = OnceBox::new();
    static SERVED: AtomicBool = AtomicBool::new(false);
    let stack = STACK.get_or_insert(|| Box::new(Stack::new()));
    if !SERVED.load(Ordering::Relaxed) && !SERVED.swap(true, Ordering::Relaxed) {
        let spawn = Spawn {
            name: "net",
            pmap: None,
            attachment: None,
            cpus: u64::MAX,
            priority: Default::default(),
        };
        if task::spawn(spawn, Box::new(|| stack.serve())).is_err() {
            // The next caller tries again.
            SERVED.store(false, Ordering::Relaxed);
        }
    }
    stack
}

/// Checks that the current thread may bind to a port.
///
/// # Errors
/// `EACCES` for ports below 1024 without privilege.
pub(super) fn check_port(port: u16) -> Result<()> {
    if (1..1024).contains(&port) && !common::may(CAP_NET_BIND_SERVICE) {
        return Err(Errno::EACCES);
    }
    Ok(())
}
