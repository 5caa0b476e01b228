//! The extended attributes of a vnode.

use alloc::{boxed::Box, collections::BTreeMap, sync::Arc, vec::Vec};

use abi::{
    Errno, Result,
    raw::general::{XATTR_CREATE, XATTR_LIST_MAX, XATTR_REPLACE},
};
use nucleus::{PAGE_SIZE, frame, heap, sync::Mutex};
use vm::account::{self, Account, Charge, Kind};

use super::Ramfs;

/// The most bytes of names and values of one vnode: as many as two of the largest values.
const BYTES_MAX: usize = 128 * 1024;
/// The bytes that an attribute costs besides its name and value.
const OVERHEAD: usize = 64;

/// The attributes of one vnode. They take pages of the file system, so its limit covers them, and
/// each is charged to the user who set it.
pub(super) struct Extended {
    attributes: Mutex<Attributes>,
}

#[derive(Default)]
struct Attributes {
    values: BTreeMap<Box<[u8]>, Value>,
    /// Bytes of all names and values, [`OVERHEAD`] included.
    bytes: usize,
    /// The bytes of all names, with a NUL after each.
    list_len: usize,
}

struct Value {
    bytes: Box<[u8]>,
    _charge: Option<Charge>,
}

/// The bytes that an attribute is charged with, besides its name and value: those of a node of the
/// map, which a single one has for itself.
const ATTRIBUTE_BYTES: usize = heap::size_of_block(size_of::<Extended>())
    + heap::size_of_block(11 * (size_of::<Box<[u8]>>() + size_of::<Value>()) + 16);

/// Charges an attribute of so many bytes to the current user, if that one may keep it.
///
/// # Errors
/// `ENOSPC`.
fn charge(bytes: usize) -> Result<Option<Charge>> {
    let Some(payer) = account::current_for(Kind::Files) else {
        return Ok(None);
    };
    let may = |user: &Arc<Account>| user.may_keep(Kind::Files, 0, 1);
    let charge = payer.charge_if(Kind::Files, 1, bytes, may);
    charge.map(Some).ok_or(Errno::ENOSPC)
}

fn pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_SIZE)
}

impl Extended {
    pub(super) fn new() -> Extended {
        Extended {
            attributes: Mutex::new(crate::rank::VNODE, Attributes::default()),
        }
    }

    /// Returns a copy of the value of `name`.
    pub(super) fn get(&self, name: &[u8]) -> Result<Vec<u8>> {
        let attributes = self.attributes.lock();
        let value = attributes.values.get(name).ok_or(Errno::ENODATA)?;
        Ok(nucleus::try_copy(&value.bytes)?)
    }

    /// As [`ExtendedAttributes::set`](crate::vnode::ExtendedAttributes::set).
    pub(super) fn set(
        &self,
        fs: &Ramfs,
        name: &[u8],
        value: Option<&[u8]>,
        flags: u32,
    ) -> Result<()> {
        let mut attributes = self.attributes.lock();
        let cost = |value: &[u8]| OVERHEAD + name.len() + value.len();
        let old = attributes.values.get(name).map(|old| cost(&old.bytes));
        match old {
            Some(_) if flags & XATTR_CREATE != 0 => return Err(Errno::EEXIST),
            None if flags & XATTR_REPLACE != 0 || value.is_none() => return Err(Errno::ENODATA),
            _ => {}
        }
        let bytes = attributes.bytes - old.unwrap_or(0) + value.map_or(0, cost);
        let list_len = match (old, value) {
            (None, Some(_)) => attributes.list_len + name.len() + 1,
            (Some(_), None) => attributes.list_len - name.len() - 1,
            _ => attributes.list_len,
        };
        if bytes > BYTES_MAX || list_len > XATTR_LIST_MAX as usize {
            return Err(Errno::ENOSPC);
        }
        let (before, after) = (pages(attributes.bytes), pages(bytes));
        let new = match value {
            None => None,
            Some(_) if frame::is_scarce() => return Err(Errno::ENOMEM),
            Some(value) => {
                let [name, data] = [name, value].map(|it| heap::size_of_block(it.len()));
                let bytes = ATTRIBUTE_BYTES + name + data;
                Some(Value {
                    _charge: charge(bytes)?,
                    bytes: nucleus::try_copy(value)?.into_boxed_slice(),
                })
            }
        };
        for taken in 0..after.saturating_sub(before) {
            if let Err(error) = fs.take_page() {
                fs.give_pages(taken);
                return Err(error);
            }
        }
        fs.give_pages(before.saturating_sub(after));
        match new {
            None => attributes.values.remove(name),
            Some(value) => attributes.values.insert(name.into(), value),
        };
        attributes.bytes = bytes;
        attributes.list_len = list_len;
        Ok(())
    }

    /// Returns all names, a NUL after each.
    pub(super) fn names(&self) -> Result<Vec<u8>> {
        let attributes = self.attributes.lock();
        let mut names = nucleus::try_vec(attributes.list_len)?;
        for name in attributes.values.keys() {
            names.extend_from_slice(name);
            names.push(0);
        }
        Ok(names)
    }

    /// Returns the pages that it is charged.
    pub(super) fn pages(&self) -> usize {
        pages(self.attributes.lock().bytes)
    }
}
