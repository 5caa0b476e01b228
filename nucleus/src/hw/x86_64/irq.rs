//! Interrupts from devices, from the timer and from other CPUs: the vectors and what they call.

use core::sync::atomic::{AtomicUsize, Ordering};

use alloc::boxed::Box;

use super::{apic, percpu, space};
use crate::sync::{InterruptScope, OnceBox};
use crate::{console, counters::Counter, pmap, task, time};

/// First serial port.
pub const CONSOLE: u8 = 0x30;
/// The first of the vectors for messages of devices.
pub const FIRST_DEVICE: u8 = 0x40;
/// How many there are.
pub const DEVICES: usize = 128;
/// This CPU's timer.
pub const TIMER: u8 = 0xf0;
/// Another CPU wants this one to schedule.
pub const RESCHEDULE: u8 = 0xf1;
/// Another CPU changed mappings.
pub const SHOOTDOWN: u8 = 0xf2;
/// Another CPU changed mappings of the kernel's half.
pub const FLUSH: u8 = 0xf3;
/// Another CPU measures how long this one takes to answer; its gate goes to [`floor`](super::floor).
pub const FLOOR: u8 = 0xf4;
/// What the local APIC gives when there was nothing after all; it wants no answer.
pub const SPURIOUS: u8 = 0xff;

/// Handles one interrupt, with interrupts off. `in_program`: it interrupted a program.
pub fn handle(vector: u64, in_program: bool) {
    let vector = vector as u8;
    if vector == SPURIOUS {
        Counter::interrupts_spurious.add(1);
        return;
    }
    // Each handler may switch to no other task before the answer to the APIC; none does.
    apic::end_of_interrupt();
    let _scope = InterruptScope::enter();
    let cause = match vector {
        TIMER => Counter::interrupts_timer,
        RESCHEDULE => Counter::interrupts_reschedule,
        SHOOTDOWN | FLUSH => Counter::interrupts_shootdown,
        CONSOLE => Counter::interrupts_console,
        _ if vector.wrapping_sub(FIRST_DEVICE) < DEVICES as u8 => Counter::interrupts_device,
        _ => Counter::interrupts_spurious,
    };
    cause.add(1);
    match vector {
        TIMER => time::on_timer(in_program),
        RESCHEDULE => task::on_reschedule(),
        SHOOTDOWN => pmap::on_shootdown(),
        FLUSH => space::answer_flush(),
        CONSOLE => console::on_input(),
        _ if vector.wrapping_sub(FIRST_DEVICE) < DEVICES as u8 => {
            on_message(vector.wrapping_sub(FIRST_DEVICE).into());
        }
        // The two legacy interrupt controllers are masked, but may raise a spurious one.
        _ => {}
    }
}

/// What runs when a device sends a message. It runs with interrupts off: it may take locks of
/// [`Rank::Device`](crate::sync::Rank::Device) and later, frees nothing and does not sleep.
type Handler = Box<dyn Fn() + Send + Sync>;

static HANDLERS: [OnceBox<Handler>; DEVICES] = [const { OnceBox::new() }; DEVICES];
static NEXT_HANDLER: AtomicUsize = AtomicUsize::new(0);

/// What a device writes, and where to, so that a handler runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub address: u64,
    pub data: u32,
}

/// Gives `handler` a vector, for good; the messages of devices go to the CPUs in turn. `None` when all vectors are taken.
pub(crate) fn add_handler(handler: Handler) -> Option<Message> {
    let next = |n: usize| (n < DEVICES).then_some(n + 1);
    let number = NEXT_HANDLER
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
        .ok()?;
    HANDLERS[number].get_or_insert(|| Box::new(handler));
    let cpu = number % percpu::cpu_count();
    // A message can name CPUs with numbers below 256 only.
    let id = Some(apic::id_of(cpu))
        .filter(|&id| id < 256)
        .unwrap_or(apic::id_of(0));
    Some(Message {
        address: 0xfee0_0000 | u64::from(id & 0xff) << 12,
        data: u32::from(FIRST_DEVICE) + number as u32,
    })
}

fn on_message(number: usize) {
    if let Some(handler) = HANDLERS[number].get() {
        handler();
    }
}
