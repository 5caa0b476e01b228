//! Sets of semaphores.
//!
//! All operations of a call are made, or none. Calls that must wait stand in one queue in the order
//! in which they came. After each change the changing thread walks the queue and makes the calls
//! that have become possible in the name of their sleepers: first those that only wait for zeros,
//! then the others in order, and again from the start as long as a call that was made may allow one
//! before it. A sleeper therefore finds its call made when it wakes, and takes no lock of the set.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use abi::{Errno, Result};
use nucleus::{
    frame, speculation,
    sync::{Mutex, MutexGuard},
    task::{Sleep, Woken},
};

use vm::account::{self, Charge, Kind};

use super::{
    Caller, IPC_NOWAIT, charge,
    ids::{Ids, Object},
    limits::{SEMAEM, SEMMNI, SEMMNS, SEMMSL, SEMVMX},
    now,
    permission::{Change, Permission, READ, WRITE},
};
use crate::process::{
    Handoff, Pid,
    undo::{Undo, UndoList},
};

/// Undone when the process ends.
pub const SEM_UNDO: u32 = 0x1000;

pub static SETS: Ids<Set> = Ids::new();
/// Semaphores of all sets.
static SEMAPHORES: AtomicUsize = AtomicUsize::new(0);

/// One operation (`struct sembuf`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub semaphore: u16,
    /// Added to the value; 0 waits until it is zero.
    pub change: i16,
    /// `IPC_NOWAIT`, `SEM_UNDO`.
    pub flags: u32,
}

pub struct Set {
    id: i32,
    /// Semaphores in it.
    pub count: usize,
    /// Of its maker.
    _charge: Option<Charge>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    status: SemaphoreStatus,
    semaphores: Vec<Semaphore>,
    undos: Vec<Adjustments>,
    /// The waiters, the longest first.
    waiting: VecDeque<Arc<Sleeper>>,
    removed: bool,
}

#[derive(Clone, Copy, Default)]
struct Semaphore {
    /// 0 to [`SEMVMX`].
    value: i32,
    /// The process that changed it last.
    pid: Pid,
}

/// The adjustments of one [`UndoList`].
struct Adjustments {
    list: u64,
    adjustments: Vec<i16>,
    /// Of the first process that has the list.
    _charge: Option<Charge>,
}

/// A call that waits.
struct Sleeper {
    operations: Vec<Operation>,
    pid: Pid,
    list: Option<u64>,
    /// The operation that can't be made.
    blocking: AtomicUsize,
    outcome: Handoff<Result<()>>,
}

enum Attempt {
    Made,
    /// This operation is not possible now.
    Blocked(usize),
    Failed(Errno),
}

/// The figures of `IPC_STAT`.
#[derive(Clone, Copy, Default, Debug)]
pub struct SemaphoreStatus {
    pub permission: Permission,
    pub id: i32,
    pub count: usize,
    /// Seconds since the epoch.
    pub operated: i64,
    pub changed: i64,
}

/// `semget`.
///
/// # Errors
/// `EINVAL` for a number that is not allowed or larger than that of the existing set; else as
/// [`Ids::find_or_make`].
pub fn get(key: i32, count: usize, flags: u32, caller: Caller<'_>) -> Result<i32> {
    if count as u64 > SEMMSL.get() {
        return Err(Errno::EINVAL);
    }
    let fits = |set: &Set| match set.count < count {
        true => Err(Errno::EINVAL),
        false => Ok(()),
    };
    let make = |id| Set::new(id, key, count, flags, caller);
    let most = SEMMNI.get() as usize;
    SETS.find_or_make(key, flags, caller, most, fits, make)
}

/// Semaphores of all sets.
pub fn total() -> usize {
    SEMAPHORES.load(Relaxed)
}

impl Set {
    pub(super) fn new(
        id: i32,
        key: i32,
        count: usize,
        flags: u32,
        caller: Caller<'_>,
    ) -> Result<Arc<Set>> {
        if count == 0 {
            return Err(Errno::EINVAL);
        }
        if total() + count > SEMMNS.get() as usize {
            return Err(Errno::ENOSPC);
        }
        let bytes = size_of::<Set>() + count * size_of::<Semaphore>();
        let charge = charge(Kind::Semaphores, count, bytes)?;
        let semaphores = nucleus::try_filled(count, Semaphore::default())?;
        SEMAPHORES.fetch_add(count, Relaxed);
        let status = SemaphoreStatus {
            permission: Permission::new(key, flags, caller.credentials),
            id,
            count,
            operated: 0,
            changed: now(),
        };
        let state = State {
            status,
            semaphores,
            ..State::default()
        };
        Ok(Arc::new(Set {
            id,
            count,
            _charge: charge,
            state: Mutex::new(crate::rank::IPC_OBJECT, state),
        }))
    }

    /// The figures of `IPC_STAT`.
    pub fn status(&self) -> SemaphoreStatus {
        self.state.lock().status
    }

    /// Makes all `operations`, or sleeps until they can all be made; as `how` says. `list` is the
    /// caller's, where an operation has `SEM_UNDO`.
    ///
    /// # Errors
    /// `EFBIG` for a semaphore that is not there, `EACCES`, `EAGAIN` (would sleep, or the time is
    /// over), `ERANGE`, `EIDRM`, `EINTR`, `ENOMEM`.
    pub fn operate(
        self: &Arc<Set>,
        caller: Caller<'_>,
        mut operations: Vec<Operation>,
        list: Option<&UndoList>,
        how: Sleep,
    ) -> Result<()> {
        for operation in &mut operations {
            let number = usize::from(operation.semaphore);
            if number >= self.count {
                return Err(Errno::EFBIG);
            }
            operation.semaphore = speculation::mask_index(number, self.count) as u16;
        }
        let alters = operations.iter().any(|operation| operation.change != 0);
        let list = list.filter(|_| operations.iter().any(|o| o.flags & SEM_UNDO != 0));
        let wanted = if alters { WRITE } else { READ };
        let sleeper = {
            let mut state = self.allowed(caller, wanted)?;
            if let Some(list) = list {
                // Before the adjustments: those that no list knows would never be undone.
                list.add(self)?;
                state.have_undo(list.number, self.count)?;
            }
            let list = list.map(|list| list.number);
            match state.attempt(&operations, caller.pid, list) {
                Attempt::Made => {
                    state.status.operated = now();
                    if state.may_help(&operations) {
                        state.make_possible();
                    }
                    return Ok(());
                }
                Attempt::Failed(error) => return Err(error),
                Attempt::Blocked(at) if operations[at].flags & IPC_NOWAIT != 0 => {
                    return Err(Errno::EAGAIN);
                }
                Attempt::Blocked(at) => {
                    state.waiting.try_reserve(1)?;
                    let sleeper = Arc::new(Sleeper {
                        operations,
                        pid: caller.pid,
                        list,
                        blocking: AtomicUsize::new(at),
                        outcome: Handoff::default(),
                    });
                    state.waiting.push_back(sleeper.clone());
                    sleeper
                }
            }
        };
        match sleeper.outcome.wait(how) {
            Ok(outcome) => outcome,
            Err(why) => self.give_up(&sleeper, why),
        }
    }

    /// A sleeper goes without its operations, unless they have been made meanwhile.
    fn give_up(&self, sleeper: &Arc<Sleeper>, why: Woken) -> Result<()> {
        let mut state = self.state.lock();
        if let Some(outcome) = sleeper.outcome.take() {
            return outcome;
        }
        state.waiting.retain(|other| !Arc::ptr_eq(other, sleeper));
        Err(match why {
            Woken::Interrupted => Errno::EINTR,
            Woken::TimedOut => Errno::EAGAIN,
        })
    }

    fn usable(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        match state.removed {
            true => Err(Errno::EIDRM),
            false => Ok(state),
        }
    }

    /// Returns [`usable`](Set::usable) state for a caller that has `rights`.
    fn allowed(&self, caller: Caller<'_>, rights: u32) -> Result<MutexGuard<'_, State>> {
        let state = self.usable()?;
        state.status.permission.check(caller.credentials, rights)?;
        Ok(state)
    }

    fn semaphore(&self, number: i32) -> Result<usize> {
        usize::try_from(number)
            .ok()
            .filter(|number| *number < self.count)
            .map(|number| speculation::mask_index(number, self.count))
            .ok_or(Errno::EINVAL)
    }

    /// `GETVAL` and `GETPID`.
    ///
    /// # Errors
    /// `EINVAL`, `EIDRM`, `EACCES`.
    pub fn value(&self, caller: Caller<'_>, number: i32) -> Result<(i32, Pid)> {
        let state = self.allowed(caller, READ)?;
        let semaphore = state.semaphores[self.semaphore(number)?];
        Ok((semaphore.value, semaphore.pid))
    }

    /// `GETNCNT`, or with `for_zero` `GETZCNT`: how many calls wait for this semaphore.
    ///
    /// # Errors
    /// `EINVAL`, `EIDRM`, `EACCES`.
    pub fn waiters(&self, caller: Caller<'_>, number: i32, for_zero: bool) -> Result<usize> {
        let state = self.allowed(caller, READ)?;
        let number = self.semaphore(number)?;
        let waits = |sleeper: &&Arc<Sleeper>| {
            let blocking = sleeper.operations[sleeper.blocking.load(Relaxed)];
            usize::from(blocking.semaphore) == number && (blocking.change == 0) == for_zero
        };
        Ok(state.waiting.iter().filter(waits).count())
    }

    /// `GETALL`.
    ///
    /// # Errors
    /// `EIDRM`, `EACCES`, `ENOMEM`.
    pub fn values(&self, caller: Caller<'_>) -> Result<Vec<u16>> {
        let mut values = nucleus::try_vec(self.count)?;
        let state = self.allowed(caller, READ)?;
        values.extend(state.semaphores.iter().map(|s| s.value as u16));
        Ok(values)
    }

    /// `SETVAL` from `first` on, or `SETALL`: sets values and drops their adjustments.
    ///
    /// # Errors
    /// `EIDRM`, `EACCES`, `EINVAL` for a semaphore that is not there, `ERANGE`.
    pub fn set_values(&self, caller: Caller<'_>, first: i32, values: &[u16]) -> Result<()> {
        let mut state = self.allowed(caller, WRITE)?;
        let first = self.semaphore(first)?;
        if values.iter().any(|value| i32::from(*value) > SEMVMX) {
            return Err(Errno::ERANGE);
        }
        let range = first..(first + values.len()).min(self.count);
        for undo in &mut state.undos {
            undo.adjustments[range.clone()].fill(0);
        }
        for (semaphore, value) in state.semaphores[range].iter_mut().zip(values) {
            semaphore.value = i32::from(*value);
            semaphore.pid = caller.pid;
        }
        state.status.changed = now();
        state.make_possible();
        Ok(())
    }

    /// `IPC_SET`.
    ///
    /// # Errors
    /// `EIDRM`, `EPERM`, `EINVAL`.
    pub fn set(&self, caller: Caller<'_>, change: Change) -> Result<()> {
        let mut state = self.usable()?;
        state.status.permission.set(caller, change)?;
        state.status.changed = now();
        Ok(())
    }
}

impl Undo for Set {
    fn undo(&self, list: u64, pid: Pid) {
        let mut state = self.state.lock();
        let Some(at) = state.undos.iter().position(|undo| undo.list == list) else {
            return;
        };
        let undo = state.undos.swap_remove(at);
        for (semaphore, adjustment) in state.semaphores.iter_mut().zip(&undo.adjustments) {
            if *adjustment != 0 {
                let value = semaphore.value + i32::from(*adjustment);
                semaphore.value = value.clamp(0, SEMVMX);
                semaphore.pid = pid;
            }
        }
        state.status.operated = now();
        state.make_possible();
    }
}

impl State {
    /// Makes room for the adjustments of a list.
    fn have_undo(&mut self, list: u64, count: usize) -> Result<()> {
        if self.undos.iter().any(|undo| undo.list == list) {
            return Ok(());
        }
        frame::check_not_scarce()?;
        let adjustments = nucleus::try_filled(count, 0)?;
        self.undos.try_reserve(1)?;
        let bytes = size_of::<Adjustments>() + count * size_of::<i16>();
        self.undos.push(Adjustments {
            list,
            adjustments,
            _charge: account::current().map(|it| it.charge(Kind::Undos, 1, bytes)),
        });
        Ok(())
    }

    /// Makes all operations or none.
    fn attempt(&mut self, operations: &[Operation], pid: Pid, list: Option<u64>) -> Attempt {
        let undo = match list {
            None => None,
            // Gone if the process that waits has ended; then it is dying and needs none.
            Some(list) => self.undos.iter().position(|undo| undo.list == list),
        };
        let mut done = 0;
        let end = loop {
            let Some(operation) = operations.get(done) else {
                break Attempt::Made;
            };
            let semaphore = &mut self.semaphores[usize::from(operation.semaphore)];
            let value = semaphore.value + i32::from(operation.change);
            if value < 0 || operation.change == 0 && semaphore.value != 0 {
                break Attempt::Blocked(done);
            }
            if value > SEMVMX {
                break Attempt::Failed(Errno::ERANGE);
            }
            if operation.flags & SEM_UNDO != 0
                && let Some(undo) = undo
            {
                let slot = &mut self.undos[undo].adjustments[usize::from(operation.semaphore)];
                let adjustment = i32::from(*slot) - i32::from(operation.change);
                if !(-SEMAEM - 1..=SEMAEM).contains(&adjustment) {
                    break Attempt::Failed(Errno::ERANGE);
                }
                *slot = adjustment as i16;
            }
            semaphore.value = value;
            done += 1;
        };
        if let Attempt::Made = end {
            for operation in operations {
                self.semaphores[usize::from(operation.semaphore)].pid = pid;
            }
            return end;
        }
        for operation in operations[..done].iter().rev() {
            let number = usize::from(operation.semaphore);
            self.semaphores[number].value -= i32::from(operation.change);
            if operation.flags & SEM_UNDO != 0
                && let Some(undo) = undo
            {
                self.undos[undo].adjustments[number] += operation.change;
            }
        }
        end
    }

    /// Whether operations that were made may have helped a call that waits: a value has grown or
    /// become zero.
    fn may_help(&self, operations: &[Operation]) -> bool {
        let zero =
            |operation: &Operation| self.semaphores[usize::from(operation.semaphore)].value == 0;
        let helps = |o: &Operation| o.change > 0 || o.change < 0 && zero(o);
        !self.waiting.is_empty() && operations.iter().any(helps)
    }

    /// After a change: makes the waiting calls that have become possible.
    fn make_possible(&mut self) {
        loop {
            self.make_those(|sleeper| !sleeper.alters());
            if !self.make_those(Sleeper::alters) {
                return;
            }
        }
    }

    /// Goes through the waiting calls that `which` chooses, in order, up to the first that changes
    /// something; whether there was one.
    fn make_those(&mut self, which: impl Fn(&Sleeper) -> bool) -> bool {
        let mut at = 0;
        while let Some(sleeper) = self.waiting.get(at).cloned() {
            if !which(&sleeper) {
                at += 1;
                continue;
            }
            let outcome = match self.attempt(&sleeper.operations, sleeper.pid, sleeper.list) {
                Attempt::Blocked(operation)
                    if sleeper.operations[operation].flags & IPC_NOWAIT != 0 =>
                {
                    Err(Errno::EAGAIN)
                }
                Attempt::Blocked(operation) => {
                    sleeper.blocking.store(operation, Relaxed);
                    at += 1;
                    continue;
                }
                Attempt::Failed(error) => Err(error),
                Attempt::Made => {
                    self.status.operated = now();
                    Ok(())
                }
            };
            self.waiting.remove(at);
            let again = outcome.is_ok() && sleeper.alters();
            sleeper.outcome.give(outcome);
            if again {
                return true;
            }
        }
        false
    }
}

impl Sleeper {
    fn alters(&self) -> bool {
        self.operations
            .iter()
            .any(|operation| operation.change != 0)
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        SEMAPHORES.fetch_sub(self.count, Relaxed);
    }
}

impl Object for Set {
    fn permission(&self) -> Permission {
        self.state.lock().status.permission
    }

    fn id(&self) -> i32 {
        self.id
    }

    /// Waiters get `EIDRM`.
    fn remove(&self, caller: Caller<'_>) -> Result<()> {
        {
            let mut state = self.usable()?;
            state.status.permission.check_owner(caller)?;
            state.removed = true;
            state.undos = Vec::new();
            for sleeper in core::mem::take(&mut state.waiting) {
                sleeper.outcome.give(Err(Errno::EIDRM));
            }
        }
        drop(SETS.remove(self.id));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use nucleus::sim::{self, Config};

    use super::*;
    use crate::process::{CapabilitySet, Credentials};

    fn on_machine(body: fn()) {
        if let Err(failure) = sim::run(Config::default(), body) {
            panic!("{failure}");
        }
    }

    fn user(id: u32) -> Credentials {
        let mut user = Credentials {
            effective_uid: id,
            fs: fs::Credentials::user(id, id),
            ..Credentials::default()
        };
        user.capabilities.permitted = CapabilitySet::EMPTY;
        user
    }

    fn raise(set: &Arc<Set>, who: &Credentials, list: &UndoList) -> Result<()> {
        let operation = Operation {
            semaphore: 0,
            change: 1,
            flags: SEM_UNDO,
        };
        let caller = Caller {
            credentials: who,
            pid: 1,
        };
        set.operate(caller, vec![operation], Some(list), Sleep::INTERRUPTIBLE)
    }

    fn set_of(owner: &Credentials) -> Arc<Set> {
        let caller = Caller {
            credentials: owner,
            pid: 1,
        };
        Set::new(0, 0, 4, 0o600, caller).unwrap()
    }

    #[test]
    fn a_refused_call_leaves_nothing_to_undo() {
        on_machine(|| {
            let (owner, stranger, list) = (user(1), user(2), UndoList::new());
            let set = set_of(&owner);
            assert_eq!(raise(&set, &stranger, &list), Err(Errno::EACCES));
            assert_eq!(list.len(), 0);
            assert_eq!(raise(&set, &owner, &list), Ok(()));
            assert_eq!(raise(&set, &owner, &list), Ok(()));
            assert_eq!(list.len(), 1);
        });
    }

    #[test]
    fn a_list_forgets_sets_that_are_gone() {
        on_machine(|| {
            let (owner, list) = (user(1), UndoList::new());
            let kept: Vec<_> = (0..20).map(|_| set_of(&owner)).collect();
            for set in &kept {
                assert_eq!(raise(set, &owner, &list), Ok(()));
            }
            for _ in 0..1000 {
                assert_eq!(raise(&set_of(&owner), &owner, &list), Ok(()));
                assert!(list.len() <= 4 * kept.len(), "{}", list.len());
            }
        });
    }
}
