//! Names of local sockets, and their owners.
//!
//! A name in the file system is a node that `bind` makes; a connecting socket finds the owner by
//! the node's identity, by any path. An abstract name is just bytes, apart for each type of socket.

use alloc::{
    boxed::Box,
    collections::BTreeMap,
    format,
    sync::{Arc, Weak},
    vec::Vec,
};

use abi::{
    Errno, Result,
    raw::net::{AF_UNIX, sockaddr_un},
};
use fs::{Kind, Location, Walk, vnode::Make};
use nucleus::{random, sync::Mutex};

use super::end::End;
use crate::{
    process::{Shared, thread},
    socket::Address,
};

/// Bytes before the name in an address: the family.
const FAMILY: usize = size_of::<u16>();
/// The longest address.
const LONGEST: usize = size_of::<sockaddr_un>();
/// Parts of the table of names, each with a lock of its own.
const SHARDS: usize = 16;
/// The permission that connecting wants.
const WRITE: u32 = 2;
/// Names that `bind` may choose: five hexadecimal digits.
const AUTOMATIC_NAMES: u32 = 1 << 20;

/// The name that an address asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// Any name that is free (an address without one).
    Any,
    Path(Vec<u8>),
    Abstract(Vec<u8>),
}

impl Asked {
    /// Reads an address.
    ///
    /// # Errors
    /// `EINVAL` for another family or an impossible length.
    pub fn read(address: &Address) -> Result<Asked> {
        if address.family() != Some(AF_UNIX) || address.len() > LONGEST {
            return Err(Errno::EINVAL);
        }
        let name = &address.bytes()[FAMILY..];
        Ok(match name {
            [] => Asked::Any,
            [0, name @ ..] => Asked::Abstract(name.into()),
            path => {
                let end = path.iter().position(|&byte| byte == 0);
                Asked::Path(path[..end.unwrap_or(path.len())].into())
            }
        })
    }
}

/// A socket's name.
pub enum Name {
    /// The path as it was given, and the node that it made.
    Path { path: Vec<u8>, node: Location },
    /// The bytes behind the leading zero.
    Abstract { kind: u32, bytes: Vec<u8> },
}

/// The key of a name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// Device and inode.
    Node(u64, u64),
    /// Type of socket, and bytes.
    Abstract(u32, Box<[u8]>),
}

type Shard = Mutex<BTreeMap<Key, Weak<End>>>;

/// All names that sockets have. The locks sleep: maps take memory as they grow.
static NAMES: [Shard; SHARDS] =
    [const { Mutex::new(crate::rank::SOCKET_NAMES, BTreeMap::new()) }; SHARDS];

impl Key {
    fn of_node(node: &Location) -> Result<Key> {
        let attributes = node.attributes()?;
        Ok(Key::Node(attributes.device, attributes.inode))
    }

    fn of_bytes(kind: u32, bytes: &[u8]) -> Key {
        Key::Abstract(kind, bytes.into())
    }

    fn shard(&self) -> &'static Shard {
        let hash = match self {
            Key::Node(device, inode) => device ^ inode,
            Key::Abstract(_, bytes) => bytes.iter().fold(0, |hash: u64, &byte| {
                hash.wrapping_mul(31).wrapping_add(byte.into())
            }),
        };
        &NAMES[(hash % SHARDS as u64) as usize]
    }

    fn find(&self) -> Option<Arc<End>> {
        self.shard().lock().get(self)?.upgrade()
    }
}

/// Runs `f` with the current thread's view of the file system.
fn with_walk<R>(f: impl FnOnce(&Walk<'_>, &Shared) -> Result<R>) -> Result<R> {
    let shared = thread::current_shared().ok_or(Errno::EACCES)?;
    let walk = Walk {
        root: &shared.fs.root(),
        start: &shared.fs.cwd(),
        who: &shared.credentials.fs,
    };
    f(&walk, &shared)
}

impl Name {
    /// Makes the name that is asked for, and gives it to `end`.
    ///
    /// # Errors
    /// `EADDRINUSE`; those of making a node.
    pub fn bind(asked: Asked, end: &Arc<End>) -> Result<Arc<Name>> {
        match asked {
            Asked::Any => Name::bind_any(end),
            Asked::Path(path) => Name::bind_path(path, end),
            Asked::Abstract(bytes) => Name::bind_abstract(bytes, end),
        }
    }

    fn bind_path(path: Vec<u8>, end: &Arc<End>) -> Result<Arc<Name>> {
        let node = with_walk(|walk, shared| {
            let mode = 0o777 & !shared.fs.umask();
            walk.make(&path, Make::Socket, mode)
        });
        let node = node.map_err(|error| match error {
            Errno::EEXIST => Errno::EADDRINUSE,
            error => error,
        })?;
        let key = Key::of_node(&node)?;
        key.shard().lock().insert(key.clone(), Arc::downgrade(end));
        Ok(Arc::new(Name::Path { path, node }))
    }

    fn bind_abstract(bytes: Vec<u8>, end: &Arc<End>) -> Result<Arc<Name>> {
        let kind = end.common.kind;
        let key = Key::of_bytes(kind, &bytes);
        let mut names = key.shard().lock();
        if names.contains_key(&key) {
            return Err(Errno::EADDRINUSE);
        }
        names.insert(key.clone(), Arc::downgrade(end));
        drop(names);
        Ok(Arc::new(Name::Abstract { kind, bytes }))
    }

    /// Tries names from a random one on until one is free.
    fn bind_any(end: &Arc<End>) -> Result<Arc<Name>> {
        let mut random = [0; 4];
        random::fill(&mut random);
        let first = u32::from_le_bytes(random) % AUTOMATIC_NAMES;
        for n in 0..AUTOMATIC_NAMES {
            let number = (first + n) % AUTOMATIC_NAMES;
            match Name::bind_abstract(format!("{number:05x}").into_bytes(), end) {
                Err(Errno::EADDRINUSE) => {}
                result => return result,
            }
        }
        Err(Errno::ENOSPC)
    }

    /// The socket that `asked` names.
    ///
    /// # Errors
    /// `ECONNREFUSED` if no socket has the name, `EPROTOTYPE` if a socket of another type has the
    /// path; `EINVAL` for no name; those of the walk, `EACCES` without the permission to write.
    pub fn find(asked: &Asked, kind: u32) -> Result<Arc<End>> {
        let key = match asked {
            Asked::Any => return Err(Errno::EINVAL),
            Asked::Abstract(bytes) => Key::of_bytes(kind, bytes),
            Asked::Path(path) => {
                let node = with_walk(|walk, _| {
                    let node = walk.resolve(path, true)?;
                    walk.access(&node, WRITE)?;
                    Ok(node)
                })?;
                if node.vnode().kind() != Kind::Socket {
                    return Err(Errno::ECONNREFUSED);
                }
                Key::of_node(&node)?
            }
        };
        let end = key.find().ok_or(Errno::ECONNREFUSED)?;
        if end.common.kind != kind {
            return Err(Errno::EPROTOTYPE);
        }
        Ok(end)
    }

    /// Takes the name away from `end`, if `end` is its owner: connecting sockets no longer find
    /// one.
    pub fn forget(&self, end: &Arc<End>) {
        let key = match self {
            Name::Path { node, .. } => match Key::of_node(node) {
                Ok(key) => key,
                Err(_) => return,
            },
            Name::Abstract { kind, bytes } => Key::of_bytes(*kind, bytes),
        };
        let mut names = key.shard().lock();
        if names
            .get(&key)
            .is_some_and(|named| core::ptr::eq(named.as_ptr(), Arc::as_ptr(end)))
        {
            names.remove(&key);
        }
    }

    /// As `getsockname` shows it.
    pub fn address(&self) -> Address {
        let mut bytes = [0; LONGEST + 1];
        bytes[..FAMILY].copy_from_slice(&(AF_UNIX as u16).to_le_bytes());
        let len = match self {
            // With the NUL behind it, even where the program left no room for one.
            Name::Path { path, .. } => {
                bytes[FAMILY..FAMILY + path.len()].copy_from_slice(path);
                FAMILY + path.len() + 1
            }
            Name::Abstract { bytes: name, .. } => {
                bytes[FAMILY + 1..FAMILY + 1 + name.len()].copy_from_slice(name);
                FAMILY + 1 + name.len()
            }
        };
        Address::new(&bytes[..len])
    }

    /// The address of a socket without a name.
    pub fn none() -> Address {
        Address::new(&(AF_UNIX as u16).to_le_bytes())
    }

    /// As `/proc/net/unix` shows it.
    pub fn text(&self) -> Vec<u8> {
        match self {
            Name::Path { path, .. } => path.clone(),
            Name::Abstract { bytes, .. } => {
                let mut text = Vec::from(b"@");
                text.extend(
                    bytes
                        .iter()
                        .map(|&byte| if byte == 0 { b'@' } else { byte }),
                );
                text
            }
        }
    }
}
