//! The bytes of regular files.

use super::{
    client::{Fid, SetAttr},
    codec::Attr,
    node::Node,
};
use crate::OpenFlags;
use abi::raw::general::{O_RDONLY, O_WRONLY};
use abi::{Errno, Result};
use alloc::sync::Arc;
use alloc::vec;
use fbuf::{Sink, Slice, Source, moved};
use nucleus::{
    Frame, PAGE_SIZE,
    frame::Contents,
    sync::{Rank, SpinLock},
};
use vm::{Object, Pager, PagerError};

pub(super) struct Content {
    object: Object,
    reader: SpinLock<Option<Arc<Fid>>>,
    writer: SpinLock<Option<Arc<Fid>>>,
}

static NO_OBJECT: Object = Object::new();

impl Content {
    pub(super) fn new(_: &Attr) -> Content {
        Content {
            object: Object::new(),
            reader: SpinLock::new(Rank::Leaf, None),
            writer: SpinLock::new(Rank::Leaf, None),
        }
    }
    pub(super) fn shown_size(&self, size: u64) -> u64 {
        size
    }
    pub(super) fn adopt_fid(&self, fid: Fid) {
        let fid = Arc::new(fid);
        *self.reader.lock() = Some(fid.clone());
        *self.writer.lock() = Some(fid);
    }
    fn handle(&self, node: &Node, write: bool) -> Result<Arc<Fid>> {
        let slot = if write { &self.writer } else { &self.reader };
        if let Some(fid) = &*slot.lock() {
            return Ok(fid.clone());
        }
        let fid = node.fid().duplicate()?;
        fid.open(if write { O_WRONLY } else { O_RDONLY })?;
        let fid = Arc::new(fid);
        *slot.lock() = Some(fid.clone());
        Ok(fid)
    }
    pub(super) fn open(&self, node: &Node, flags: OpenFlags) -> Result<()> {
        if flags.reads() {
            self.handle(node, false)?;
        }
        if flags.writes() {
            self.handle(node, true)?;
        }
        Ok(())
    }
    pub(super) fn read(&self, node: &Node, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        let fid = self.handle(node, false)?;
        let mut done = 0;
        while to.room() > 0 {
            let frame = Frame::alloc(Contents::Stale).map_err(|_| Errno::ENOMEM)?;
            let n = fid.read(
                offset + done as u64,
                &[Slice {
                    frame: frame.clone(),
                    offset: 0,
                    len: to.room().min(PAGE_SIZE),
                }],
            )?;
            if n == 0 {
                break;
            }
            match to.put_frame(&frame, 0, n) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) => return moved(done, Err(e)),
            }
        }
        Ok(done)
    }
    pub(super) fn write(
        &self,
        node: &Node,
        offset: u64,
        append: bool,
        from: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        let fid = self.handle(node, true)?;
        let start = if append { node.refresh()?.size } else { offset };
        let mut done = 0;
        while from.left() > 0 {
            let frame = Frame::alloc(Contents::Stale).map_err(|_| Errno::ENOMEM)?;
            let n = from.take_into(&frame, 0, PAGE_SIZE)?;
            done += fid.write(
                start + done as u64,
                &vec![Slice {
                    frame,
                    offset: 0,
                    len: n,
                }],
            )?;
        }
        node.forget_attributes();
        Ok((done, start + done as u64))
    }
    pub(super) fn truncate(&self, node: &Node, size: u64) -> Result<()> {
        node.forget_attributes();
        node.fid().set_attributes(&SetAttr {
            size: Some(size),
            ..SetAttr::default()
        })
    }
    pub(super) fn sync(&self, _: &Node) -> Result<()> {
        Ok(())
    }
}

impl Pager for Node {
    fn object(&self) -> &Object {
        self.content.as_ref().map_or(&NO_OBJECT, |c| &c.object)
    }
    fn get(&self, _: u64) -> core::result::Result<Frame, PagerError> {
        Err(PagerError::Io)
    }
}
