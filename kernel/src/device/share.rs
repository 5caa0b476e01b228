//! Folders of the host's: 9P servers behind virtio devices (`virtio-9p`), and the file system type
//! `9p`.

use alloc::{boxed::Box, format, string::String, sync::Arc, vec::Vec};

use abi::{Errno, Result};
use fbuf::View;
use fs::{
    Vnode,
    ninep::{self, Flight, Transport},
};
use nucleus::{
    PAGE_SIZE,
    dma::{self, Buffer, Part, Pool},
    log,
    sync::Mutex,
    task::{Sleep, Woken},
    virtio::{self, Device, Error, Kind, Queue, Request},
};

use super::errno;
use crate::process::thread;

/// The feature of a device that it has a tag.
const MOUNT_TAG: u64 = 1;
/// Frames for messages that are kept: a call in flight uses two.
const KEPT: usize = 32;
/// The longest tag.
const TAG_MAX: usize = 255;

/// A device and its tag.
struct Share {
    tag: Vec<u8>,
    server: Arc<Server>,
}

/// The devices that were found. Held while they are looked for.
static SHARES: Mutex<Vec<Share>> = Mutex::new(fs::rank::MOUNT, Vec::new());

/// Returns the root of the server whose device has the tag `tag` (`mount -t 9p -o trans=virtio`).
///
/// # Errors
/// `ENOENT` if there is no such device, `EINVAL` for options that are not understood, those of the
/// server.
pub fn mount(tag: &[u8], options: &[u8]) -> Result<Arc<dyn Vnode>> {
    let mut name: &[u8] = b"";
    for option in options.split(|&b| b == b',').filter(|it| !it.is_empty()) {
        match option {
            b"trans=virtio" | b"version=9p2000.L" | b"ro" | b"rw" => {}
            _ => name = option.strip_prefix(b"aname=").ok_or(Errno::EINVAL)?,
        }
    }
    let server = find(tag)?.ok_or(Errno::ENOENT)?;
    ninep::root(server, name)
}

/// The message that no device has the tag `tag`, with the tags that there are.
pub fn none_with(tag: &str) -> String {
    let shares = SHARES.lock();
    let tags: Vec<_> = shares
        .iter()
        .map(|share| String::from_utf8_lossy(&share.tag))
        .collect();
    let there = match &tags[..] {
        [] => "none".into(),
        tags => tags.join(", "),
    };
    format!("no device shares '{tag}'; there are: {there}")
}

fn find(tag: &[u8]) -> Result<Option<Arc<Server>>> {
    let mut shares = SHARES.lock();
    let found = |shares: &[Share]| {
        let share = shares.iter().find(|share| share.tag == tag);
        share.map(|share| share.server.clone())
    };
    if let Some(server) = found(&shares) {
        return Ok(Some(server));
    }
    // Those that programs had at an earlier look may be free now.
    let more = look();
    shares.try_reserve(more.len()).map_err(|_| Errno::ENOMEM)?;
    shares.extend(more);
    Ok(found(&shares))
}

/// Starts all devices of the kind.
fn look() -> Vec<Share> {
    let mut shares = Vec::new();
    for found in virtio::take(Kind::Files) {
        match start(found) {
            Ok(share) => shares.push(share),
            Err(error) => log!("9p: a device can't be used: {error:?}"),
        }
    }
    shares
}

fn start(found: virtio::Found) -> core::result::Result<Share, Error> {
    let device = found.start(MOUNT_TAG, 1)?;
    let mut len = [0; 2];
    device.read_config(0, &mut len)?;
    let len = u16::from_le_bytes(len).into();
    if len > TAG_MAX {
        return Err(Error::Broken);
    }
    #[allow(clippy::disallowed_methods, reason = "TAG_MAX bytes at most")]
    let mut tag = alloc::vec![0; len];
    device.read_config(2, &mut tag)?;
    Ok(Share {
        tag,
        server: Arc::new(Server {
            pool: device.pool(KEPT)?,
            device,
        }),
    })
}

/// The way to a server: one queue of requests.
struct Server {
    device: Device,
    pool: Arc<Pool>,
}

/// A message on its way.
struct InFlight {
    queue: Arc<Queue>,
    request: Arc<Request>,
    /// The frames of the answer's first bytes.
    reply: Vec<Buffer>,
    /// How many bytes those are.
    room: usize,
    /// The frames of the message, kept until it has landed.
    _message: Vec<Buffer>,
    /// The data of the message, which are not to change meanwhile.
    _data: Vec<View>,
}

fn part(slice: &View) -> Part {
    Part::new(slice.frame.clone(), slice.offset, slice.len)
}

impl Server {
    /// Buffers for `len` bytes.
    fn buffers(&self, len: usize) -> Result<Vec<Buffer>> {
        let mut buffers = Vec::new();
        for _ in 0..len.div_ceil(PAGE_SIZE) {
            buffers.push(self.pool.take()?);
        }
        Ok(buffers)
    }
}

/// The first `len` bytes of buffers, which have as many.
fn parts_of(buffers: &[Buffer], len: usize) -> impl Iterator<Item = Part> {
    let places = (0..len).step_by(PAGE_SIZE);
    places
        .zip(buffers)
        .map(move |(at, buffer)| buffer.part(0, (len - at).min(PAGE_SIZE)))
}

impl Transport for Server {
    fn max_slices(&self) -> usize {
        self.device.queue(0).max_parts()
    }

    fn send(
        &self,
        message: &[u8],
        data: &[View],
        reply: usize,
        receive: &[View],
    ) -> Result<Box<dyn Flight>> {
        let sent = self.buffers(message.len())?;
        let answer = self.buffers(reply)?;
        let mut parts = Vec::new();
        let count = sent.len() + data.len() + answer.len() + receive.len();
        parts.try_reserve_exact(count)?;
        dma::write_all(&sent, message);
        parts.extend(parts_of(&sent, message.len()));
        parts.extend(data.iter().map(part));
        let mut kept = Vec::new();
        kept.try_reserve_exact(data.len())?;
        kept.extend(data.iter().cloned());
        let readable = parts.len();
        parts.extend(parts_of(&answer, reply));
        parts.extend(receive.iter().map(part));
        let queue = self.device.queue(0);
        let request = Request::new(parts, readable);
        queue.submit(&request).map_err(errno)?;
        Ok(Box::new(InFlight {
            queue: queue.clone(),
            request,
            reply: answer,
            room: reply,
            _message: sent,
            _data: kept,
        }))
    }

    fn gives_up(&self) -> bool {
        thread::with_current(thread::Thread::is_dying).unwrap_or(false)
    }
}

impl Flight for InFlight {
    fn has_landed(&self) -> bool {
        self.queue.is_done(&self.request)
    }

    fn wait(&self, how: Sleep) -> core::result::Result<(), Woken> {
        // Whether it failed is seen when it is taken.
        self.queue.wait(&self.request, how).map(|_| ())
    }

    fn take(&mut self, to: &mut [u8]) -> Result<usize> {
        let written = self.request.result().ok_or(Errno::EIO)?.map_err(errno)? as usize;
        let kept = written.min(self.room).min(to.len());
        dma::read_all(&self.reply, &mut to[..kept]);
        Ok(written)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // The request itself stays in its slot until that is used again; its frames need not.
        drop(self.request.take_parts());
    }
}
