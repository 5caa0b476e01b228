//! The functions that the hardware calls: see [`hw::handlers`](crate::hw::handlers).

use core::ops::Range;

use crate::addr::{Access, VirtAddr};
use crate::counters::Counter;
use crate::dev::{console, dma};
use crate::lock::InterruptScope;
use crate::mem::domain;
use crate::{ephemeral, pmap, random, task, time, user};

#[unsafe(no_mangle)]
extern "Rust" fn nucleus_reschedule(in_program: bool) {
    task::reschedule(in_program);
}

#[unsafe(no_mangle)]
extern "Rust" fn nucleus_on_timer(in_program: bool) {
    let _scope = InterruptScope::enter();
    random::on_interrupt();
    time::on_timer(|now| task::tick(now, in_program));
}

#[unsafe(no_mangle)]
extern "Rust" fn nucleus_on_shootdown() {
    let _scope = InterruptScope::enter();
    pmap::on_shootdown();
}

#[unsafe(no_mangle)]
extern "Rust" fn nucleus_on_console() {
    let _scope = InterruptScope::enter();
    random::on_interrupt();
    console::on_input();
}

#[unsafe(no_mangle)]
extern "Rust" fn nucleus_resolve_fault(at: VirtAddr, access: Access) -> bool {
    user::resolve(at, access)
}

#[unsafe(no_mangle)]
extern "Rust" fn nucleus_frames_leave(frames: &[Range<u32>], cause: Counter) {
    domain::open::leave(frames, cause);
}

#[unsafe(no_mangle)]
extern "Rust" fn nucleus_frames_enter(frames: &[Range<u32>]) {
    domain::open::enter(frames);
}

#[unsafe(no_mangle)]
extern "Rust" fn nucleus_end_mappings(frames: Range<u32>) {
    ephemeral::end_unused(frames);
}

#[unsafe(no_mangle)]
extern "Rust" fn nucleus_free_stale() -> bool {
    dma::free_stale()
}

#[unsafe(no_mangle)]
extern "Rust" fn nucleus_on_shortage() {
    task::shortage::report_shortage();
}

#[unsafe(no_mangle)]
extern "Rust" fn nucleus_on_kept_tables() {
    task::shortage::report_kept_tables();
}

#[cfg(debug_assertions)]
#[unsafe(no_mangle)]
extern "Rust" fn nucleus_held_locks() -> *mut () {
    task::held_locks().cast()
}

#[cfg(target_os = "none")]
mod bare_metal {
    use crate::addr::PhysAddr;
    use crate::dev::{interrupts, refused};
    use crate::lock::InterruptScope;
    use crate::mem::frame;
    use crate::mem::frame::record::{self, Type};
    use crate::random;

    #[unsafe(no_mangle)]
    extern "Rust" fn nucleus_on_device(number: usize) {
        let _scope = InterruptScope::enter();
        random::on_interrupt();
        interrupts::on_device(number);
    }

    #[unsafe(no_mangle)]
    extern "Rust" fn nucleus_on_iommu_fault() {
        let _scope = InterruptScope::enter();
        refused::on_faults();
    }

    #[unsafe(no_mangle)]
    extern "Rust" fn nucleus_take_kernel_frame() -> Option<PhysAddr> {
        frame::take_own(Type::Kernel).ok().map(record::address)
    }

    #[unsafe(no_mangle)]
    extern "Rust" fn nucleus_take_stack(to: &mut [u32]) -> bool {
        frame::take_stack(to).is_ok()
    }

    #[unsafe(no_mangle)]
    extern "Rust" fn nucleus_give_stack(frames: &[u32]) {
        frame::give_stack(frames);
    }

    #[unsafe(no_mangle)]
    extern "Rust" fn nucleus_take_kernel_table() -> Option<PhysAddr> {
        frame::take_kernel_table().map(record::address)
    }

    #[unsafe(no_mangle)]
    extern "Rust" fn nucleus_give_kernel_table(at: PhysAddr) {
        frame::give_kernel_table(at.frame_number() as u32);
    }
}

#[cfg(not(target_os = "none"))]
#[unsafe(no_mangle)]
extern "Rust" fn nucleus_report_tasks() -> Vec<String> {
    task::report()
}

#[cfg(not(target_os = "none"))]
#[unsafe(no_mangle)]
extern "Rust" fn nucleus_join_scheduler() -> ! {
    task::run_on_this_cpu()
}
