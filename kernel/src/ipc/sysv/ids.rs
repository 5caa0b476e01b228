//! From a key or an id to an object.
//!
//! An id is the index of a place in the table and, above it, a sequence number that grows when
//! places are used again: the id of a removed object finds nothing, though another object may stand
//! in its place.

use alloc::{collections::BTreeMap, sync::Arc, vec::Vec};

use abi::{Errno, Result};
use nucleus::{frame, speculation, sync::BiasedRwLock};

use super::{Caller, IPC_CREAT, IPC_EXCL, IPC_PRIVATE, permission::Permission};

/// Bits of an id that are the index.
const INDEX_BITS: u32 = 15;
/// Objects of one kind at most (`IPCMNI`).
pub const MOST: usize = 1 << INDEX_BITS;
/// The highest sequence number.
const SEQUENCE_MAX: u32 = i32::MAX as u32 >> INDEX_BITS;
/// Places that are used in turn before any is used again: removed ids stay invalid for a while.
const TURN_MIN: usize = 64;

/// An object that an id names.
pub trait Object: Send + Sync {
    /// Owner and mode now.
    fn permission(&self) -> Permission;
    fn id(&self) -> i32;

    /// Removes the object (`IPC_RMID`).
    ///
    /// # Errors
    /// `EIDRM` if it has been removed, `EPERM`.
    fn remove(&self, caller: Caller<'_>) -> Result<()>;
}

pub struct Ids<T> {
    table: BiasedRwLock<IdTable<T>>,
}

struct IdTable<T> {
    places: Vec<Option<Arc<T>>>,
    /// From a key to an id.
    keys: BTreeMap<i32, i32>,
    in_use: usize,
    sequence: u32,
    last: Option<usize>,
}

/// The sequence number in an id.
pub fn sequence(id: i32) -> u32 {
    id as u32 >> INDEX_BITS
}

fn index(id: i32) -> usize {
    id as usize & (MOST - 1)
}

impl<T: Object> Ids<T> {
    pub(super) const fn new() -> Ids<T> {
        Ids {
            table: BiasedRwLock::new(
                crate::rank::IPC,
                IdTable {
                    places: Vec::new(),
                    keys: BTreeMap::new(),
                    in_use: 0,
                    sequence: 0,
                    last: None,
                },
            ),
        }
    }

    /// The object with this id.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub fn get(&self, id: i32) -> Result<Arc<T>> {
        if id < 0 {
            return Err(Errno::EINVAL);
        }
        self.at(index(id))
            .filter(|object| object.id() == id)
            .ok_or(Errno::EINVAL)
    }

    /// Returns the object at this index (`SHM_STAT` and similar commands).
    pub fn at(&self, index: usize) -> Option<Arc<T>> {
        self.table
            .read_with(|table| speculation::get(&table.places, index)?.clone())
    }

    /// How many there are, and the highest index in use.
    pub fn population(&self) -> (usize, usize) {
        let table = self.table.read();
        let highest = table.places.iter().rposition(Option::is_some).unwrap_or(0);
        (table.in_use, highest)
    }

    /// Returns the id of the object with `key`, or of a new one that `make` returns for an id
    /// (`shmget`, `semget`, `msgget`). An existing one must grant the rights in `flags` and satisfy
    /// `fits`. There are at most `most`.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EACCES`, `ENOSPC`, `ENOMEM`, and those of `fits` and `make`.
    pub fn find_or_make(
        &self,
        key: i32,
        flags: u32,
        caller: Caller<'_>,
        most: usize,
        fits: impl FnOnce(&T) -> Result<()>,
        make: impl FnOnce(i32) -> Result<Arc<T>>,
    ) -> Result<i32> {
        let existing = |table: &IdTable<T>| {
            let id = *table.keys.get(&key)?;
            table.places[index(id)].clone()
        };
        if key != IPC_PRIVATE {
            let found = self.table.read_with(existing);
            if let Some(object) = found {
                return use_existing(&*object, flags, caller, fits);
            }
            if flags & IPC_CREAT == 0 {
                return Err(Errno::ENOENT);
            }
        }
        frame::check_not_scarce()?;
        let mut table = self.table.write();
        if key != IPC_PRIVATE
            && let Some(object) = existing(&table)
        {
            drop(table);
            return use_existing(&*object, flags, caller, fits);
        }
        let most = most.min(MOST);
        if table.in_use >= most {
            return Err(Errno::ENOSPC);
        }
        let (place, sequence) = table.choose(most)?;
        let id = (sequence << INDEX_BITS) as i32 | place as i32;
        let object = make(id)?;
        table.places[place] = Some(object);
        table.in_use += 1;
        table.sequence = sequence;
        table.last = Some(place);
        if key != IPC_PRIVATE {
            table.keys.insert(key, id);
        }
        Ok(id)
    }

    /// Makes the object's key find nothing any more.
    pub fn forget_key(&self, key: i32, id: i32) {
        if key != IPC_PRIVATE {
            self.table.write().forget_key(key, id);
        }
    }

    /// Takes the object out, if it still is in. The caller drops it with no lock held.
    pub fn remove(&self, id: i32) -> Option<Arc<T>> {
        let mut table = self.table.write();
        let place = speculation::get_mut(&mut table.places, index(id))?;
        let object = place.take_if(|object| object.id() == id)?;
        table.in_use -= 1;
        table.forget_key(object.permission().key, id);
        Some(object)
    }
}

fn use_existing<T: Object>(
    object: &T,
    flags: u32,
    caller: Caller<'_>,
    fits: impl FnOnce(&T) -> Result<()>,
) -> Result<i32> {
    if flags & (IPC_CREAT | IPC_EXCL) == IPC_CREAT | IPC_EXCL {
        return Err(Errno::EEXIST);
    }
    fits(object)?;
    object.permission().check(caller.credentials, flags)?;
    Ok(object.id())
}

impl<T> IdTable<T> {
    /// A free place, made if necessary, and the sequence number for it.
    fn choose(&mut self, most: usize) -> Result<(usize, u32)> {
        let turn = (self.in_use * 3 / 2).max(TURN_MIN).min(most);
        if self.places.len() < turn {
            let more = turn - self.places.len();
            self.places.try_reserve(more)?;
            self.places.resize_with(turn, || None);
        }
        let from = self.last.map_or(0, |last| last + 1);
        let free = |index: &usize| self.places[*index].is_none();
        let index = (from..turn)
            .find(free)
            .or_else(|| (0..self.places.len()).find(free))
            .ok_or(Errno::ENOSPC)?;
        let again = self.last.is_some_and(|last| index <= last);
        let sequence = match again {
            true if self.sequence == SEQUENCE_MAX => 0,
            true => self.sequence + 1,
            false => self.sequence,
        };
        Ok((index, sequence))
    }

    fn forget_key(&mut self, key: i32, id: i32) {
        if self.keys.get(&key) == Some(&id) {
            self.keys.remove(&key);
        }
    }
}
