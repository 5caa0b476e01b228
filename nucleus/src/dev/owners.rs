//! Owners of PCI functions: a driver of the kernel, or programs.
//!
//! A function that programs have is free for a driver again when the last
//! [`DeviceMemory`](crate::DeviceMemory) of it has been dropped, unless a page of it was used: then
//! its state is unknown, a driver would make it a bus master in that state, and the page may still
//! be mapped.

use alloc::vec::Vec;

use super::functions::AssignError;
use crate::lock::{Rank, SpinLock};

/// The owners of all functions.
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
pub(super) static OWNERS: SpinLock<Owners> = SpinLock::new(Rank::Leaf, Owners::new());

enum Owner {
    Driver,
    Programs {
        /// How many `DeviceMemory`s of it there are.
        assigned: u32,
        /// A page of it was used.
        is_used: bool,
    },
}

/// Functions that have an owner, by place.
pub(super) struct Owners(Vec<(u16, Owner)>);

#[cfg_attr(not(target_os = "none"), allow(dead_code))]
impl Owners {
    pub(super) const fn new() -> Owners {
        Owners(Vec::new())
    }

    fn find(&mut self, function: u16) -> Option<&mut Owner> {
        let found = self.0.iter_mut().find(|(place, _)| *place == function);
        found.map(|(_, owner)| owner)
    }

    /// Assigns a function to programs, once more if they have it.
    ///
    /// # Errors
    /// [`AssignError::Busy`], [`AssignError::OutOfMemory`].
    pub(super) fn assign(&mut self, function: u16) -> Result<(), AssignError> {
        match self.find(function) {
            Some(Owner::Driver) => return Err(AssignError::Busy),
            Some(Owner::Programs { assigned, .. }) => {
                *assigned = assigned.checked_add(1).ok_or(AssignError::OutOfMemory)?;
            }
            None => {
                let refused = |_| AssignError::OutOfMemory;
                self.0.try_reserve(1).map_err(refused)?;
                let owner = Owner::Programs {
                    assigned: 1,
                    is_used: false,
                };
                self.0.push((function, owner));
            }
        }
        Ok(())
    }

    /// Takes [`assign`](Owners::assign) back; `was_used` if a page was.
    pub(super) fn release(&mut self, function: u16, was_used: bool) {
        if let Some(Owner::Programs { assigned, is_used }) = self.find(function) {
            *assigned = assigned.saturating_sub(1);
            *is_used |= was_used;
            if *assigned == 0 && !*is_used {
                self.0.retain(|(place, _)| *place != function);
            }
        }
    }

    /// Takes a function for a driver; false if it has an owner, or without memory to note this.
    pub(super) fn take(&mut self, function: u16) -> bool {
        let is_free = self.find(function).is_none() && self.0.try_reserve(1).is_ok();
        if is_free {
            self.0.push((function, Owner::Driver));
        }
        is_free
    }
}

#[cfg(all(test, not(target_os = "none")))]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_one_kind_of_owner() {
        let mut owners = Owners::new();
        assert!(owners.take(8));
        assert!(!owners.take(8));
        assert_eq!(owners.assign(8), Err(AssignError::Busy));
        // A program does not release a driver's function.
        owners.release(8, false);
        assert_eq!(owners.assign(8), Err(AssignError::Busy));
        assert_eq!(owners.assign(9), Ok(()));
        assert_eq!(owners.assign(9), Ok(()));
        assert!(!owners.take(9));
        owners.release(9, false);
        assert!(!owners.take(9), "another program has it");
        owners.release(9, false);
        assert!(owners.take(9));
    }

    #[test]
    fn what_a_program_used_is_no_drivers_again() {
        let mut owners = Owners::new();
        assert_eq!(owners.assign(9), Ok(()));
        assert_eq!(owners.assign(9), Ok(()));
        owners.release(9, true);
        owners.release(9, false);
        assert!(!owners.take(9));
        assert_eq!(owners.assign(9), Ok(()));
        owners.release(9, false);
        assert!(!owners.take(9));
    }
}
