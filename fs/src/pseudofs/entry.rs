//! The entries of a generated directory.

use alloc::{sync::Arc, vec::Vec};

use abi::Result;

use super::{Directory, Text};
use crate::{File, Kind, Location, OpenFlags};

pub(super) type Show = dyn Fn(&mut Text) -> Result<()> + Send + Sync;
pub(super) type Store = dyn Fn(&[u8]) -> Result<()> + Send + Sync;
pub(super) type ReadLink = dyn Fn() -> Result<Vec<u8>> + Send + Sync;
pub(super) type Follow = dyn Fn() -> Result<Location> + Send + Sync;
pub(super) type Bind = dyn Fn() -> Result<Arc<Show>> + Send + Sync;
pub(super) type Open = dyn Fn(&Location, OpenFlags) -> Result<Arc<dyn File>> + Send + Sync;

/// An entry of a generated directory, with mode and owner.
#[derive(Clone)]
pub struct Entry {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) body: Body,
}

#[derive(Clone)]
pub(super) enum Body {
    Directory(Arc<dyn Directory>),
    Text {
        show: Arc<Show>,
        store: Option<Arc<Store>>,
    },
    Link {
        text: Arc<ReadLink>,
        follow: Option<Arc<Follow>>,
    },
    File(Arc<Open>),
    /// A text of the moment at which it was opened.
    Bound(Arc<Bind>),
}

impl Entry {
    fn new(mode: u32, body: Body) -> Entry {
        Entry {
            mode,
            uid: 0,
            gid: 0,
            body,
        }
    }

    /// A further directory, mode 0555.
    pub fn directory(directory: impl Directory) -> Entry {
        Entry::new(0o555, Body::Directory(Arc::new(directory)))
    }

    /// A file whose text `show` generates when it is read from the start; mode 0444. An open file
    /// keeps the text until it is read from the start again.
    pub fn text(show: impl Fn(&mut Text) -> Result<()> + Send + Sync + 'static) -> Entry {
        let body = Body::Text {
            show: Arc::new(show),
            store: None,
        };
        Entry::new(0o444, body)
    }

    /// A text about what `bind` finds when the file is opened, and judges the opener by; mode 0444.
    /// It returns what shows the text when that is read, to any reader.
    pub fn bound<S>(bind: impl Fn() -> Result<S> + Send + Sync + 'static) -> Entry
    where
        S: Fn(&mut Text) -> Result<()> + Send + Sync + 'static,
    {
        let body = Body::Bound(Arc::new(move || Ok(Arc::new(bind()?) as Arc<Show>)));
        Entry::new(0o444, body)
    }

    /// A symbolic link with this text, mode 0777.
    pub fn link(text: impl Fn() -> Result<Vec<u8>> + Send + Sync + 'static) -> Entry {
        let body = Body::Link {
            text: Arc::new(text),
            follow: None,
        };
        Entry::new(0o777, body)
    }

    /// A link that shows `text` and leads to the location that `follow` returns; mode 0777.
    pub fn place(
        text: impl Fn() -> Result<Vec<u8>> + Send + Sync + 'static,
        follow: impl Fn() -> Result<Location> + Send + Sync + 'static,
    ) -> Entry {
        let body = Body::Link {
            text: Arc::new(text),
            follow: Some(Arc::new(follow)),
        };
        Entry::new(0o777, body)
    }

    /// A file that `open` opens, given its location; mode 0444.
    pub fn file(
        open: impl Fn(&Location, OpenFlags) -> Result<Arc<dyn File>> + Send + Sync + 'static,
    ) -> Entry {
        Entry::new(0o444, Body::File(Arc::new(open)))
    }

    /// Lets root write a text: `store` gets the bytes of one `write`, 4096 at most. Adds 0200 to
    /// the mode.
    pub fn writable(
        mut self,
        store: impl Fn(&[u8]) -> Result<()> + Send + Sync + 'static,
    ) -> Entry {
        if let Body::Text { store: slot, .. } = &mut self.body {
            *slot = Some(Arc::new(store));
            self.mode |= 0o200;
        }
        self
    }

    /// Sets the permission bits.
    pub fn mode(mut self, mode: u32) -> Entry {
        self.mode = mode & 0o7777;
        self
    }

    /// Sets the owner.
    pub fn owner(mut self, uid: u32, gid: u32) -> Entry {
        self.uid = uid;
        self.gid = gid;
        self
    }

    pub(super) fn kind(&self) -> Kind {
        match self.body {
            Body::Directory(_) => Kind::Directory,
            Body::Text { .. } | Body::File(_) | Body::Bound(_) => Kind::Regular,
            Body::Link { .. } => Kind::Link,
        }
    }
}
