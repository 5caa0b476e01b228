//! The state of programs outside the general registers: floating point, vectors, data segments.
//!
//! The kernel computes nothing with these registers. A program's state is loaded when the program
//! is entered and is saved when the CPU switches to another task; in between (system calls,
//! faults, interrupts) it stays where it is, at no cost. `PerCpu::live` names the state that this
//! CPU's registers hold; a state that is live on one CPU is current nowhere else.
//!
//! 64-bit programs in spaces of their own have the same segments, so that nothing is looked at
//! between two of them. Any other state is *segmented*: it has a mark in `PerCpu::live`, and is
//! loaded by `load_segmented`, as is the first that follows one.

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::sync::Arc;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use super::cpu::{self, Features, features};
use super::fpu::{self, END_MARK};
use super::gdt::{self, FIRST_TLS};
use super::selectors::{
    self, LOCAL, canonical, read_fs, read_selectors, read_user_gs, write_fs, write_user_gs,
};
use super::{mitigations, percpu};
use crate::hw::local_segments::LocalSegments;
use crate::hw::registers::{Registers, Selectors, TLS_SEGMENTS};
use crate::hw::{Window, segment, segment::MOST_TURNS};
use crate::{OutOfMemory, speculation};

/// A program's state outside the general registers: FPU and vectors, FS and GS bases. One task's
/// own: what is live on a CPU is that of the task that runs there, or was saved by its switch.
pub struct UserState {
    inner: NonNull<Inner>,
}

#[repr(C, align(64))]
struct Inner {
    /// The bases as the program last had them.
    bases: [u64; 2],
    /// The bases that the kernel last asked for.
    asked: [u64; 2],
    /// The descriptors that a 32-bit thread has set; 0 for none.
    descriptors: [u64; TLS_SEGMENTS],
    /// The data selectors as the program last had them.
    selectors: Selectors,
    /// The program's bits of `SPEC_CTRL`.
    restrictions: u32,
    /// In a small space: bit per descriptor that is turned round.
    turned: u32,
    /// How often one was.
    turns: u32,
    /// The registers when one was last, as a number.
    turned_at: u64,
    /// The local segments of a 32-bit program; none for a 64-bit one.
    local: Option<Arc<LocalSegments>>,
    // The save area follows, marked as a signal frame's is.
}

fn layout() -> Layout {
    // The size is a few KiB and the alignment a power of two.
    Layout::from_size_align(size_of::<Inner>() + fpu::size() + END_MARK, 64)
        .expect("a small layout")
}

impl Inner {
    fn area(this: NonNull<Inner>) -> *mut u8 {
        // SAFETY: the allocation holds the area right after the structure.
        unsafe { this.as_ptr().add(1).cast() }
    }

    /// # Safety
    /// The CPU's registers hold this state, and interrupts are off.
    unsafe fn save(this: NonNull<Inner>) {
        // SAFETY: the caller's promise.
        unsafe {
            Inner::save_registers(this);
            Inner::save_segments(this);
        }
    }

    /// Saves all but the data selectors and the bases.
    ///
    /// # Safety
    /// As [`save`](Inner::save).
    #[inline(always)]
    unsafe fn save_registers(this: NonNull<Inner>) {
        // SAFETY: the caller's promise; the area has room.
        unsafe { fpu::save(Inner::area(this)) };
    }

    /// Saves the data selectors and the bases only.
    ///
    /// # Safety
    /// The state is live on this CPU, and interrupts are off.
    unsafe fn save_segments(this: NonNull<Inner>) {
        if percpu::segments_base() == 0 {
            // SAFETY: the caller's promise.
            return unsafe { Inner::save_flat_segments(this) };
        }
        // SAFETY: the state exists, and nothing else uses it while it is live here.
        let inner = unsafe { &mut *this.as_ptr() };
        inner.selectors = read_selectors();
        // 32-bit code, which can't set the bases in another way; those loaded are moved.
        inner.bases = bases_of(inner);
    }

    /// As [`save_segments`](Inner::save_segments) where the program is in no region.
    ///
    /// # Safety
    /// As [`save_segments`](Inner::save_segments).
    #[inline(always)]
    unsafe fn save_flat_segments(this: NonNull<Inner>) {
        // SAFETY: the state exists, and nothing else uses it while it is live here.
        let inner = unsafe { &mut *this.as_ptr() };
        inner.selectors = read_selectors();
        if features().contains(Features::FSGSBASE) {
            // SAFETY: FSGSBASE is on, and interrupts are off.
            inner.bases = unsafe { [read_fs(), read_user_gs()] };
        }
    }

    /// Loads all but the data selectors and the bases.
    ///
    /// # Safety
    /// The state was validated or saved by the CPU, and interrupts are off.
    #[inline(always)]
    unsafe fn load_registers(this: NonNull<Inner>) {
        // SAFETY: the caller's promise; the area was validated or saved.
        unsafe { fpu::load(Inner::area(this)) };
    }

    /// Loads the data selectors and the bases of a program that is in no region, with the CPU's
    /// tables prepared.
    ///
    /// # Safety
    /// As [`load_registers`](Inner::load_registers).
    #[inline(always)]
    unsafe fn load_flat_segments(&self) {
        gdt::set_tls(percpu::this(), &self.descriptors);
        let [fs, gs] = self.bases;
        // SAFETY: the caller's promise; the bases are canonical.
        unsafe {
            selectors::load(self.selectors);
            write_fs(fs);
            write_user_gs(gs);
        }
    }

    /// As [`load_flat_segments`](Inner::load_flat_segments) for a program in a region.
    ///
    /// # Safety
    /// As [`load_registers`](Inner::load_registers).
    unsafe fn load_region(&self, window: Window) {
        let mut descriptors = self.descriptors;
        for (n, it) in descriptors.iter_mut().enumerate() {
            *it = segment::in_region(*it, window, self.turned >> n & 1 != 0);
        }
        gdt::set_tls(percpu::this(), &descriptors);
        // SAFETY: the caller's promise.
        unsafe { selectors::load(self.selectors) };
    }

    /// A local segment may have another base by now than when the program loaded it. Interrupts are
    /// off.
    fn find_local_bases(&mut self) {
        let selectors = [self.selectors.fs, self.selectors.gs];
        for (at, selector) in selectors.into_iter().enumerate() {
            if selector & LOCAL != 0 {
                let word = gdt::descriptor(percpu::this(), u64::from(selector));
                self.bases[at] = word.map_or(0, segment::base);
            }
        }
    }
}

/// The bases of FS and GS, as the program has set them.
#[cold]
#[inline(never)]
fn bases_of(inner: &Inner) -> [u64; 2] {
    let Selectors { fs, gs, .. } = inner.selectors;
    [fs, gs].map(|selector| base_of(selector, inner).unwrap_or(0))
}

/// The base of the segment that a selector names, as the program has set it, if it is one of a
/// thread's own or a local one.
fn base_of(selector: u16, inner: &Inner) -> Option<u64> {
    let index = usize::from(selector >> 3);
    let word = match (selector & LOCAL != 0, &inner.local) {
        (false, _) => *speculation::get(&inner.descriptors, index.checked_sub(FIRST_TLS)?)?,
        (true, local) => local.as_ref()?.word(index),
    };
    Some(segment::base(word))
}

/// Saves the state that this CPU's registers hold, before another task may use them. Called with
/// interrupts off by the context switch.
#[inline]
pub fn save_live() {
    let live = percpu::this().live.load(Ordering::Relaxed);
    if live & percpu::MARKS != 0 {
        return save_segmented(live & !percpu::MARKS);
    }
    if let Some(inner) = NonNull::new(live as *mut Inner) {
        // SAFETY: `live` names a state that exists (its drop clears it) and is in the registers.
        unsafe {
            Inner::save_registers(inner);
            Inner::save_flat_segments(inner);
        }
        percpu::this().live.store(0, Ordering::Relaxed);
    }
}

/// As [`save_live`] of a state that is marked.
#[inline(never)]
fn save_segmented(live: usize) {
    if let Some(inner) = NonNull::new(live as *mut Inner) {
        // SAFETY: as in `save_live`.
        unsafe { Inner::save(inner) };
    }
    percpu::this().live.store(0, Ordering::Relaxed);
}

impl UserState {
    /// The initial state of a program.
    pub fn new() -> Result<UserState, OutOfMemory> {
        // SAFETY: the size is not 0.
        let memory = unsafe { alloc_zeroed(layout()) };
        let inner = NonNull::new(memory.cast::<Inner>()).ok_or(OutOfMemory)?;
        // SAFETY: the allocation holds the structure, and zero is a value of all its other fields.
        unsafe { (&raw mut (*inner.as_ptr()).local).write(None) };
        let mut state = UserState { inner };
        state.reset();
        Ok(state)
    }

    /// A copy, with the same bases.
    pub fn duplicate(&self) -> Result<UserState, OutOfMemory> {
        let copy = UserState::new()?;
        self.sync();
        // SAFETY: both allocations have this size, and the new one is not published yet. What it
        // has of the local segments, nothing, is replaced by another reference to them.
        unsafe {
            let from = self.inner.as_ptr().cast::<u8>();
            from.copy_to_nonoverlapping(copy.inner.as_ptr().cast(), layout().size());
            let local = self.local_segments().cloned();
            (&raw mut (*copy.inner.as_ptr()).local).write(local);
        }
        Ok(copy)
    }

    /// Puts the state back to the initial one, bases 0.
    pub fn reset(&mut self) {
        let frame = self.take_frame();
        fpu::initialise(frame);
        fpu::mark(frame);
        // SAFETY: owned, and not live any more.
        unsafe {
            (*self.inner.as_ptr()).bases = [0; 2];
            (*self.inner.as_ptr()).asked = [0; 2];
        }
    }

    /// The FS and GS bases that the program has now, which it may have set itself. `wanted` are
    /// those that the kernel wants it to have, as for [`make_live`](UserState::make_live): one that
    /// the kernel has changed since then counts. The answer counts as what the kernel asked for.
    pub fn take_bases(&mut self, wanted: [u64; 2]) -> [u64; 2] {
        self.sync();
        // SAFETY: owned by `self`.
        let inner = unsafe { self.inner.as_mut() };
        let mut bases = inner.bases;
        for i in 0..2 {
            if wanted[i] == inner.asked[i] {
                inner.asked[i] = bases[i];
            } else {
                bases[i] = wanted[i];
            }
        }
        bases
    }

    /// The data selectors that the program has now.
    pub fn selectors(&mut self) -> Selectors {
        self.sync();
        // SAFETY: owned by `self`.
        unsafe { self.inner.as_ref().selectors }
    }

    /// Sets the data selectors, and with them the bases of segments that a thread has set itself.
    pub fn set_selectors(&mut self, selectors: Selectors) {
        self.take();
        // SAFETY: owned by `self`, and not live any more.
        let inner = unsafe { self.inner.as_mut() };
        let old = core::mem::replace(&mut inner.selectors, selectors);
        for (i, (old, new)) in [(old.fs, selectors.fs), (old.gs, selectors.gs)]
            .into_iter()
            .enumerate()
        {
            let own = |n: usize| speculation::get(&inner.descriptors, n);
            let index = usize::from(new >> 3).checked_sub(FIRST_TLS);
            match index.filter(|_| new & LOCAL == 0).and_then(own) {
                Some(descriptor) => inner.bases[i] = segment::base(*descriptor),
                None if new != old => inner.bases[i] = 0,
                None => {}
            }
        }
    }

    /// The local segments of a 32-bit program.
    #[inline]
    pub fn local_segments(&self) -> Option<&Arc<LocalSegments>> {
        // SAFETY: owned by `self`; the CPU does not change it.
        unsafe { self.inner.as_ref().local.as_ref() }
    }

    /// Makes it the state of a 32-bit program with these local segments, or of a 64-bit one.
    pub fn set_local_segments(&mut self, local: Option<Arc<LocalSegments>>) {
        self.take();
        // SAFETY: owned by `self`, and not live any more.
        unsafe { self.inner.as_mut().local = local };
    }

    /// Sets the program's bits of `SPEC_CTRL`.
    pub fn set_restrictions(&mut self, bits: u32) {
        self.take();
        // SAFETY: owned by `self`, and not live any more.
        unsafe { self.inner.as_mut().restrictions = bits };
    }

    /// The descriptors that the thread has set; 0 for none.
    pub fn descriptors(&self) -> [u64; TLS_SEGMENTS] {
        // SAFETY: owned by `self`; the CPU's copy is never changed.
        unsafe { self.inner.as_ref().descriptors }
    }

    /// Sets the thread's descriptors: data segments of programs' privilege, accessed, or 0.
    pub fn set_descriptors(&mut self, descriptors: [u64; TLS_SEGMENTS]) {
        self.take();
        // SAFETY: owned by `self`, and not live any more.
        unsafe { self.inner.as_mut().descriptors = descriptors };
        let selectors = self.selectors();
        self.set_selectors(selectors);
    }

    #[inline]
    fn is_live(&self) -> bool {
        let live = percpu::this().live.load(Ordering::Relaxed) & !percpu::MARKS;
        live == self.inner.as_ptr() as usize
    }

    /// Whether another thread has changed the local segments since this CPU made its copy.
    #[inline]
    fn has_stale_segments(&self) -> bool {
        let stamp = percpu::this().local_stamp.load(Ordering::Relaxed);
        self.local_segments()
            .is_some_and(|local| local.stamp() != stamp)
    }

    /// Brings the memory up to date; the registers stay live.
    fn sync(&self) {
        let irqs = cpu::irqs_disable();
        if self.is_live() {
            // SAFETY: live on this CPU, interrupts off.
            unsafe { Inner::save(self.inner) };
        }
        cpu::irqs_restore(irqs);
    }

    /// The save area in memory, current, and the registers no longer in use; to be changed.
    fn take(&mut self) -> &mut [u8] {
        let irqs = cpu::irqs_disable();
        if self.is_live() {
            save_live();
        }
        cpu::irqs_restore(irqs);
        // SAFETY: the allocation holds this many bytes after the structure.
        unsafe { core::slice::from_raw_parts_mut(Inner::area(self.inner), fpu::size()) }
    }

    /// The registers are no longer in use: another task may have the state.
    pub fn park(&mut self) {
        self.take();
    }

    /// The registers are no longer in use, and what they hold is lost but for the selectors and
    /// bases: the save area is about to be written anew.
    fn leave_registers(&mut self) {
        let irqs = cpu::irqs_disable();
        if self.is_live() {
            // SAFETY: it is live here, and interrupts are off.
            unsafe { Inner::save_segments(self.inner) };
            percpu::this().live.store(0, Ordering::Relaxed);
        }
        cpu::irqs_restore(irqs);
    }

    /// Makes this CPU's registers hold the state. `wanted` are the FS and GS bases in the registers
    /// that the kernel can change: where one differs from what it was the last time, the kernel did
    /// change it. Returns whether it is that of a 64-bit program in a space of its own. Interrupts
    /// are off until the program is entered.
    #[inline]
    pub fn make_live(&mut self, wanted: [u64; 2]) -> bool {
        let this = self.inner.as_ptr() as usize;
        let cpu = percpu::this();
        // Without a mark: see `load_segmented`.
        if cpu.live.load(Ordering::Relaxed) != this {
            if self.local_segments().is_some() || !cpu.is_flat.load(Ordering::Relaxed) {
                return self.load_segmented(wanted);
            }
            save_live();
            // SAFETY: interrupts are off; the state is valid by construction.
            unsafe {
                Inner::load_registers(self.inner);
                self.inner.as_ref().load_flat_segments();
            }
            // SAFETY: owned by `self`.
            mitigations::restrict_program(unsafe { self.inner.as_ref().restrictions });
            cpu.live.store(this, Ordering::Relaxed);
        }
        self.set_bases(wanted);
        true
    }

    /// As [`make_live`](UserState::make_live) for a 32-bit program, or on a CPU that had one
    /// before. What is live has a mark unless it is the state of a 64-bit program in a space of its
    /// own.
    #[inline(never)]
    fn load_segmented(&mut self, wanted: [u64; 2]) -> bool {
        let this = self.inner.as_ptr() as usize;
        let cpu = percpu::this();
        let live = cpu.live.load(Ordering::Relaxed);
        if live == this | percpu::SEGMENTED && !self.has_stale_segments() {
            self.set_bases(wanted);
            return false;
        }
        save_live();
        let window = percpu::window();
        let local = self.local_segments().map(|local| &**local);
        let is_flat = local.is_none() && !window.is_small();
        gdt::set_program(cpu, window, local);
        percpu::set_segments_base(window.base);
        cpu.is_flat.store(is_flat, Ordering::Relaxed);
        // SAFETY: interrupts are off; the state is valid by construction.
        unsafe {
            Inner::load_registers(self.inner);
            let inner = self.inner.as_mut();
            if window.is_small() {
                inner.load_region(window);
            } else {
                if inner.local.is_some() {
                    inner.find_local_bases();
                }
                inner.load_flat_segments();
            }
            mitigations::restrict_program(inner.restrictions);
        }
        let mark = if is_flat { 0 } else { percpu::SEGMENTED };
        cpu.live.store(this | mark, Ordering::Relaxed);
        self.set_bases(wanted);
        is_flat
    }

    /// Sets the bases that the kernel has changed. The state is live, and interrupts are off.
    #[inline(always)]
    fn set_bases(&mut self, wanted: [u64; 2]) {
        // SAFETY: owned by `self`.
        let inner = unsafe { self.inner.as_mut() };
        if wanted != inner.asked {
            // In a small space a base comes with a limit, by a selector, or not at all.
            let is_small = percpu::segments_base() != 0;
            // SAFETY: canonical, and interrupts are off.
            unsafe {
                if wanted[0] != inner.asked[0] && !is_small {
                    inner.bases[0] = canonical(wanted[0]);
                    write_fs(inner.bases[0]);
                }
                if wanted[1] != inner.asked[1] && !is_small {
                    inner.bases[1] = canonical(wanted[1]);
                    write_user_gs(inner.bases[1]);
                }
            }
            inner.asked = wanted;
        }
    }

    /// After a general protection fault in a small space: turns the thread's segments round that
    /// serve one sign only and are in use. Whether that may help: not if these registers had them
    /// turned the last time. The state is live, and interrupts are off.
    pub fn turn_segments(&mut self, regs: &Registers) -> bool {
        let window = percpu::window();
        // SAFETY: owned by `self`; the registers hold the rest.
        let inner = unsafe { self.inner.as_mut() };
        let Selectors { ds, es, fs, gs } = read_selectors();
        let mut used = 0;
        for selector in [ds, es, fs, gs] {
            let n = usize::from(selector >> 3).wrapping_sub(FIRST_TLS);
            let own = speculation::get(&inner.descriptors, n).copied();
            let own = own.filter(|_| selector & LOCAL == 0);
            if own.is_some_and(segment::has_both_signs) {
                used |= 1 << n;
            }
        }
        let at = regs.fingerprint();
        let is_again = at == inner.turned_at && inner.turns != 0;
        if used == 0 || !window.is_small() || is_again || inner.turns >= MOST_TURNS {
            return false;
        }
        inner.turned_at = at;
        inner.turned ^= used;
        inner.turns = inner.turns.saturating_add(1);
        inner.selectors = Selectors { ds, es, fs, gs };
        // SAFETY: interrupts are off.
        unsafe { inner.load_region(window) };
        true
    }

    /// How often its segments were turned round.
    pub fn turns(&self) -> u32 {
        // SAFETY: owned by `self`.
        unsafe { self.inner.as_ref().turns }
    }

    /// Bytes of the state in a signal frame.
    pub fn frame_size() -> usize {
        fpu::frame_size()
    }

    /// The state in the layout of a signal frame, as long as [`frame_size`](UserState::frame_size)
    /// says.
    pub fn frame(&mut self) -> &[u8] {
        // The marks stand in the area all the time: the CPU does not use their place.
        self.take_frame()
    }

    /// Takes the state from a signal frame, of which `read` fills in the bytes: the whole of it if
    /// the marks are there, else the legacy part, with the rest in its initial state. What cannot
    /// be read, or the CPU would fault on, is refused: the state is the initial one then.
    pub fn load_frame<E>(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        self.leave_registers();
        let frame = self.take_frame();
        let outcome = read(frame).map(|()| fpu::accept(frame));
        if !matches!(outcome, Ok(true)) {
            fpu::initialise(frame);
        }
        fpu::mark(frame);
        outcome
    }

    /// The save area with the end mark behind it; otherwise as [`take`](UserState::take).
    fn take_frame(&mut self) -> &mut [u8] {
        let len = Self::frame_size();
        let area = self.take().as_mut_ptr();
        // SAFETY: the allocation has room for the mark after the area.
        unsafe { core::slice::from_raw_parts_mut(area, len) }
    }
}

impl Drop for UserState {
    fn drop(&mut self) {
        let irqs = cpu::irqs_disable();
        if self.is_live() {
            percpu::this().live.store(0, Ordering::Relaxed);
        }
        cpu::irqs_restore(irqs);
        // SAFETY: owned by `self`, allocated with this layout, and no CPU holds it live: a state
        // that is live on a CPU belongs to the task that runs there, which is the one that drops
        // it.
        unsafe {
            self.inner.as_mut().local = None;
            dealloc(self.inner.as_ptr().cast(), layout());
        }
    }
}
