//! Messages in fbufs, and in pages that are lent.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use libcauseway::{Causeway, Passing, Receiver};
use libfbuf::{Aggregate, Backend, Channel, Contents, Domain, Fragment, Member, Mode, Path, To};

use super::Crossing;
use crate::Failure;
use crate::mapping::Mapping;
use crate::movement::{Order, PAGE, Peer, pipe, read_whole, stamp, wrong};

/// The acts of a receiver.
const ATTACH: u8 = 0;
const RECEIVE: u8 = 1;

pub(in crate::experiments) fn enter(backend: Backend) -> Result<Domain, Failure> {
    Domain::enter(backend).map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => Failure::Missing("/dev/fbuf".into()),
        _ => Failure::of("the fbuf region", &why),
    })
}

/// Returns a new message with a stamp in each page.
pub(super) fn message(path: &Path, size: usize, number: u64) -> io::Result<Aggregate> {
    let mut fbuf = path.allocate(size)?;
    stamp(&mut fbuf[..size], number);
    Aggregate::new(fbuf, size)
}

/// Reads the stamp of each page.
pub(super) fn check<'a>(
    fragments: impl Iterator<Item = Fragment<'a>>,
    number: u64,
) -> io::Result<()> {
    for fragment in fragments {
        for at in (0..fragment.len()).step_by(PAGE) {
            let found = fragment.word(at).map(u64::from_le);
            if found != Some(number) {
                return Err(wrong(format!("message {number} has {found:x?} at {at}")));
            }
        }
    }
    Ok(())
}

/// Messages through the kernel, answered by a pipe.
pub(super) struct ThroughKernel {
    _domain: Domain,
    path: Path,
    peer: Peer,
    answers: File,
    size: usize,
    number: u64,
}

impl ThroughKernel {
    pub(super) fn start(mode: Mode, size: usize) -> Result<Self, Failure> {
        let domain = enter(Backend::Device)?;
        let path = Path::new(&domain, mode, 0)?;
        let fd = path.as_fd().try_clone_to_owned()?;
        let (answers, to_answer) = pipe()?;
        let (mut member, mut number) = (None, 0);
        let mut peer = Peer::start(0, move |order| {
            if order.act == ATTACH {
                let domain = Domain::enter(Backend::Device)?;
                member = Some(Member::attach(&domain, fd.try_clone()?)?);
            }
            let Some(member) = &member else {
                return Ok(());
            };
            for _ in 0..order.count {
                let message = member.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
                check(message.contents().fragments(), number)?;
                drop(message);
                number += 1;
                (&to_answer).write_all(&[0])?;
            }
            Ok(())
        })?;
        peer.with(ATTACH, 0, || Ok(()))?;
        Ok(Self {
            _domain: domain,
            path,
            peer,
            answers,
            size,
            number: 0,
        })
    }
}

impl Crossing for ThroughKernel {
    fn send(&mut self, count: u64) -> Result<(), Failure> {
        let (path, answers, number) = (&self.path, &self.answers, &mut self.number);
        self.peer.with(RECEIVE, count, || {
            for _ in 0..count {
                path.send(To::All, &message(path, self.size, *number)?)?;
                *number += 1;
                read_whole(answers, &mut [0])?;
            }
            Ok(())
        })
    }
}

/// Calls through the kernel: a message and its answer by one system call of the caller.
pub(super) struct Calls {
    path: Path,
    answers: Member,
    peer: Peer,
    size: usize,
    number: u64,
}

impl Calls {
    pub(super) fn start(size: usize, cpu: usize) -> Result<Self, Failure> {
        let domain = enter(Backend::Device)?;
        let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0)?;
        let fd = path.as_fd().try_clone_to_owned()?;
        let (here, there) = UnixStream::pair()?;
        let (mut side, mut number) = (None, 0);
        let mut peer = Peer::start(cpu, move |order| {
            if order.act == ATTACH {
                let domain = Domain::enter(Backend::Device)?;
                let member = Member::attach(&domain, fd.try_clone()?)?;
                let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0)?;
                libfbuf::send_path(there.as_fd(), &path)?;
                // Immutable: it is sent again and again.
                side = Some((path.copy(&[0])?, path, member));
            }
            let Some((answer, path, member)) = &side else {
                return Ok(());
            };
            for _ in 0..order.count {
                let message = member.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
                check(message.contents().fragments(), number)?;
                drop(message);
                number += 1;
                path.send(To::All, answer)?;
            }
            Ok(())
        })?;
        let mut answers = None;
        peer.with(ATTACH, 0, || {
            answers = Some(libfbuf::receive_path(here.as_fd())?);
            Ok(())
        })?;
        let answers = Member::attach(&domain, answers.ok_or("no path")?)?;
        Ok(Self {
            path,
            answers,
            peer,
            size,
            number: 0,
        })
    }
}

impl Crossing for Calls {
    fn send(&mut self, count: u64) -> Result<(), Failure> {
        let (path, answers, number) = (&self.path, &self.answers, &mut self.number);
        self.peer.with(RECEIVE, count, || {
            for _ in 0..count {
                let message = message(path, self.size, *number)?;
                *number += 1;
                let answer = path.call(To::All, &message, answers)?;
                answer.ok_or(io::ErrorKind::UnexpectedEof)?;
            }
            Ok(())
        })
    }
}

/// Messages by a ring, answered by the other one.
pub(super) struct ThroughRing {
    path: Path,
    channel: Channel,
    peer: Peer,
    size: usize,
    number: u64,
}

/// How often a ring is looked at before a program sleeps, where the other has a CPU of its own.
const SPINS: u32 = 2000;

impl ThroughRing {
    pub(super) fn start(backend: Backend, size: usize, cpu: usize) -> Result<Self, Failure> {
        let domain = enter(backend)?;
        let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0)?;
        let (here, there) = UnixStream::pair()?;
        let spins = if cpu == 0 { 0 } else { SPINS };
        let mut side = None;
        let mut there = Some(there);
        let mut number = 0;
        let serve = move |order: Order| {
            if let Some(socket) = there.take() {
                let domain = Domain::enter(backend)?;
                let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0)?;
                let mut channel = Channel::connect(&domain, &path, socket.into())?;
                channel.set_spins(spins);
                // Immutable: it is sent again and again.
                side = Some((path.copy(&[0])?, channel));
            }
            let Some((answer, channel)) = &mut side else {
                return Ok(());
            };
            let mut request = match order.count {
                0 => return Ok(()),
                _ => channel.receive()?,
            };
            for left in (0..order.count).rev() {
                let message = request.ok_or(io::ErrorKind::UnexpectedEof)?;
                check(message.fragments(), number)?;
                drop(message);
                number += 1;
                request = match left {
                    0 => return channel.send(answer),
                    _ => channel.answer(answer)?,
                };
            }
            Ok(())
        };
        let mut peer = Peer::start(cpu, serve)?;
        let mut channel = None;
        peer.with(ATTACH, 0, || {
            channel = Some(Channel::connect(&domain, &path, here.into())?);
            Ok(())
        })?;
        let mut channel = channel.ok_or("no channel")?;
        channel.set_spins(spins);
        Ok(Self {
            path,
            channel,
            peer,
            size,
            number: 0,
        })
    }
}

impl Crossing for ThroughRing {
    fn send(&mut self, count: u64) -> Result<(), Failure> {
        let (path, channel, number) = (&self.path, &mut self.channel, &mut self.number);
        self.peer.with(RECEIVE, count, || {
            for _ in 0..count {
                let message = message(path, self.size, *number)?;
                *number += 1;
                channel.call(&message)?;
            }
            Ok(())
        })
    }
}

/// Pages that are lent to a place of the other program: both have them until one writes.
pub(super) struct Lent {
    causeway: Causeway,
    memory: Mapping,
    place: Mapping,
    process: u32,
    peer: Peer,
    told: File,
    answers: File,
    size: usize,
    number: u64,
}

impl Lent {
    pub(super) fn start(size: usize) -> Result<Self, Failure> {
        let causeway =
            Causeway::open().map_err(|why| Failure::Missing(format!("/dev/causeway: {why}")))?;
        let memory = Mapping::zero_fill(size)?.small();
        let place = Mapping::zero_fill(size)?.small();
        let (to_hear, told) = pipe()?;
        let (answers, to_answer) = pipe()?;
        let at = place.at();
        let mut number: u64 = 0;
        let mut peer = Peer::start(0, move |order| {
            if order.act == ATTACH {
                let id = std::process::id().to_le_bytes();
                return (&to_answer).write_all(&id);
            }
            for _ in 0..order.count {
                read_whole(&to_hear, &mut [0])?;
                for page in (0..size).step_by(PAGE) {
                    // SAFETY: the child's copy of `place`, whose pages the kernel replaces.
                    let found = unsafe { at.add(page).cast::<u64>().read_volatile() };
                    if found != number {
                        return Err(wrong(format!("message {number} has {found} at {page}")));
                    }
                }
                number += 1;
                (&to_answer).write_all(&[0])?;
            }
            Ok(())
        })?;
        let mut id = [0; 4];
        peer.with(ATTACH, 0, || read_whole(&answers, &mut id))?;
        Ok(Self {
            causeway,
            memory,
            place,
            process: u32::from_le_bytes(id),
            peer,
            told,
            answers,
            size,
            number: 0,
        })
    }
}

impl Crossing for Lent {
    fn send(&mut self, count: u64) -> Result<(), Failure> {
        let (memory, place) = (self.memory.at(), self.place.at() as usize);
        let (causeway, told, answers) = (&self.causeway, &self.told, &self.answers);
        let to = Receiver::Id(self.process);
        let (number, size) = (&mut self.number, self.size);
        self.peer.with(RECEIVE, count, || {
            for _ in 0..count {
                for page in (0..size).step_by(PAGE) {
                    // SAFETY: this value's own mapping.
                    unsafe { memory.add(page).cast::<u64>().write_volatile(*number) };
                }
                *number += 1;
                let range = memory as usize..memory as usize + size;
                // SAFETY: only this file uses the memory, by addresses.
                unsafe { causeway.pass_range(range, to, Passing::Lend, Some(place))? };
                (&mut &*told).write_all(&[0])?;
                read_whole(answers, &mut [0])?;
            }
            Ok(())
        })
    }
}
