//! Programs of the simulated machine: closures that get the registers and say why they stopped.

use std::sync::{Arc, Mutex, MutexGuard};

use super::{interface::point, machine::machine};
use crate::{
    OutOfMemory,
    hw::local_segments::LocalSegments,
    hw::registers::{Event, Registers, Selectors, TLS_SEGMENTS},
};

type Program = Arc<dyn Fn(&mut Registers) -> Event + Send + Sync>;

static PROGRAM: Mutex<Option<Program>> = Mutex::new(None);

fn program() -> MutexGuard<'static, Option<Program>> {
    PROGRAM.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// What [`UserContext::run`](super::super::user_context::UserContext) does on this machine until
/// the run ends: one call is one stretch of a program, between two traps. It tells programs apart
/// by the registers, and touches memory through [`crate::user`].
pub fn set_program(run: impl Fn(&mut Registers) -> Event + Send + Sync + 'static) {
    *program() = Some(Arc::new(run));
}

pub(crate) fn reset() {
    *program() = None;
}

/// The state of a program's CPU besides its general registers: what the kernel asks for, without an
/// effect here.
#[derive(Clone, Default)]
pub(crate) struct UserState {
    selectors: Selectors,
    descriptors: [u64; TLS_SEGMENTS],
    local: Option<Arc<LocalSegments>>,
}

impl UserState {
    pub(crate) fn new() -> Result<UserState, OutOfMemory> {
        Ok(UserState::default())
    }

    pub(crate) fn duplicate(&self) -> Result<UserState, OutOfMemory> {
        Ok(self.clone())
    }

    pub(crate) fn reset(&mut self) {}

    pub(crate) fn park(&mut self) {}

    pub(crate) fn selectors(&self) -> Selectors {
        self.selectors
    }

    pub(crate) fn set_selectors(&mut self, selectors: Selectors) {
        self.selectors = selectors;
    }

    pub(crate) fn local_segments(&self) -> Option<&Arc<LocalSegments>> {
        self.local.as_ref()
    }

    pub(crate) fn set_local_segments(&mut self, local: Option<Arc<LocalSegments>>) {
        self.local = local;
    }

    pub(crate) fn set_restrictions(&mut self, _bits: u32) {}

    pub(crate) fn descriptors(&self) -> [u64; TLS_SEGMENTS] {
        self.descriptors
    }

    pub(crate) fn set_descriptors(&mut self, descriptors: [u64; TLS_SEGMENTS]) {
        self.descriptors = descriptors;
    }

    /// Its programs have no segments.
    pub(crate) fn turns(&self) -> u32 {
        0
    }

    /// The FS and GS bases that the program has now: what the kernel last gave it.
    pub(crate) fn take_bases(&mut self, wanted: [u64; 2]) -> [u64; 2] {
        wanted
    }

    pub(crate) fn frame_size() -> usize {
        0
    }

    pub(crate) fn frame(&mut self) -> &[u8] {
        &[]
    }

    pub(crate) fn load_frame<E>(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        read(&mut []).map(|()| true)
    }
}

/// Runs the program until something happens.
pub(crate) fn run(
    registers: &mut Registers,
    _: &mut UserState,
    _must_return: impl FnOnce() -> bool,
) -> Event {
    let run = program()
        .clone()
        .expect("a program that sim::set_program gave");
    if let Some(m) = machine() {
        m.cpu().in_program.set(true);
    }
    point();
    let event = run(registers);
    if let Some(m) = machine() {
        m.cpu().in_program.set(false);
    }
    event
}
