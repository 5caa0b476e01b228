//! The interface for C, `fbuf.h`: the crate's types behind pointers, errors as negative numbers.
//!
//! # Safety
//! For all functions: a pointer to a handle came from a function of this module and was not freed;
//! a pointer to bytes or to a place for a result is valid for what the header says.

#![allow(clippy::missing_safety_doc)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::process;
use std::slice;
use std::sync::Mutex;

use libc::{c_int, c_uint, c_void, size_t};

use crate::aggregate::Aggregate;
use crate::channel::Channel;
use crate::contents::{Contents, Fragment, Received};
use crate::frames::Frames;
use crate::path::{Member, Message, Path, To};
use crate::raw::error;
use crate::region::{Backend, Domain, lock};
use crate::space::{Fbuf, Mode};
use crate::units::{Unit, Units};
use crate::{sockets, units};

/// The process that has entered, and its domain. A child of `fork` has a copy, and no domain.
static DOMAIN: Mutex<Option<(u32, Domain)>> = Mutex::new(None);

fn domain() -> io::Result<Domain> {
    let entered = lock(&DOMAIN).clone();
    let own = entered.filter(|(process, _)| *process == process::id());
    own.map(|(_, domain)| domain)
        .ok_or_else(|| error(libc::EPERM))
}

/// Data of a C program.
pub enum Data {
    /// It can be sent, joined and cut.
    Own(Aggregate),
    /// It came by a ring.
    Received(Received),
    /// It came through the kernel.
    Message(Message),
}

impl Data {
    fn own(&self) -> io::Result<&Aggregate> {
        match self {
            Data::Own(aggregate) => Ok(aggregate),
            _ => Err(error(libc::EINVAL)),
        }
    }

    fn received(&self) -> io::Result<&Received> {
        match self {
            Data::Own(_) => Err(error(libc::EINVAL)),
            Data::Received(received) => Ok(received),
            Data::Message(message) => Ok(message.contents()),
        }
    }
}

impl Contents for Data {
    fn fragments(&self) -> impl Iterator<Item = Fragment<'_>> {
        let iterator: Box<dyn Iterator<Item = Fragment<'_>>> = match self {
            Data::Own(aggregate) => Box::new(aggregate.fragments()),
            Data::Received(received) => Box::new(received.fragments()),
            Data::Message(message) => Box::new(message.contents().fragments()),
        };
        iterator
    }

    fn len(&self) -> u64 {
        match self {
            Data::Own(aggregate) => aggregate.len(),
            Data::Received(received) => received.len(),
            Data::Message(message) => message.contents().len(),
        }
    }
}

/// `struct fbuf_fragment`.
#[repr(C)]
pub struct Piece {
    start: *const c_void,
    length: size_t,
}

impl From<Fragment<'_>> for Piece {
    fn from(it: Fragment<'_>) -> Piece {
        Piece {
            start: std::ptr::with_exposed_provenance(it.address()),
            length: it.len(),
        }
    }
}

/// `fbuf_units`: the units, and the one that was given last.
pub struct Generator {
    units: Box<dyn Iterator<Item = Unit<'static>>>,
    last: Vec<u8>,
}

fn status(result: io::Result<()>) -> c_int {
    number(result.map(|()| 0))
}

fn number(result: io::Result<c_int>) -> c_int {
    result.unwrap_or_else(|why| -why.raw_os_error().unwrap_or(libc::EIO))
}

/// Puts a result's handle into its place.
///
/// # Safety
/// The place can be written.
unsafe fn put<T>(to: *mut *mut T, result: io::Result<T>) -> c_int {
    status(result.map(|it| {
        // SAFETY: the caller vouches for the place.
        unsafe { to.write(Box::into_raw(Box::new(it))) };
    }))
}

/// Frees a handle, which may be null.
///
/// # Safety
/// It came from [`put`], and is not used again.
unsafe fn free<T>(it: *mut T) {
    if !it.is_null() {
        // SAFETY: the caller vouches for it.
        drop(unsafe { Box::from_raw(it) });
    }
}

/// # Safety
/// The pointer is valid for so many bytes, or the length is 0.
unsafe fn bytes<'a>(start: *const c_void, length: size_t) -> &'a [u8] {
    match length {
        0 => &[],
        // SAFETY: the caller vouches for it.
        _ => unsafe { slice::from_raw_parts(start.cast(), length) },
    }
}

/// Defines functions of the interface, whose bodies rely on the module's rule of safety.
macro_rules! interface {
    ($($(#[$about:meta])* fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?
        $body:block)*) => {
        $(
            $(#[$about])*
            #[unsafe(no_mangle)]
            #[allow(unused_unsafe)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) $(-> $result)? {
                // SAFETY: the rule of this module.
                unsafe { $body }
            }
        )*
    };
}

interface! {
    /// Enters the region.
    fn fbuf_enter(backend: c_int) -> c_int {
        let entered = match backend {
            0 => Domain::enter(Backend::Device),
            1 => Domain::enter(Backend::Memfd),
            2 => Domain::enter_any(),
            _ => Err(error(libc::EINVAL)),
        };
        status(entered.map(|it| *lock(&DOMAIN) = Some((process::id(), it))))
    }

    /// Makes a path.
    fn fbuf_path_new(mode: c_uint, chunks: size_t, path: *mut *mut Path) -> c_int {
        let made = domain().and_then(|domain| match mode {
            0..4 => Path::new(&domain, Mode::of(mode.into()), chunks),
            4 => Path::with_default_mode(&domain, chunks),
            _ => Err(error(libc::EINVAL)),
        });
        put(path, made)
    }

    /// Returns a path's descriptor.
    fn fbuf_path_descriptor(path: *const Path) -> RawFd {
        (*path).as_fd().as_raw_fd()
    }

    /// Gives idle chunks back.
    fn fbuf_path_trim(path: *const Path) {
        (*path).trim();
    }

    /// Frees a path.
    fn fbuf_path_free(path: *mut Path) {
        free(path);
    }

    /// Sends a path's descriptor.
    fn fbuf_path_send(path: *const Path, socket: RawFd) -> c_int {
        status(sockets::send_path(BorrowedFd::borrow_raw(socket), &*path))
    }

    /// Receives a path's descriptor.
    fn fbuf_path_receive(socket: RawFd) -> c_int {
        let received = sockets::receive_path(BorrowedFd::borrow_raw(socket));
        number(received.map(OwnedFd::into_raw_fd))
    }

    /// Attaches to a path.
    fn fbuf_member_attach(descriptor: RawFd, member: *mut *mut Member) -> c_int {
        let fd = OwnedFd::from_raw_fd(descriptor);
        put(member, domain().and_then(|domain| Member::attach(&domain, fd)))
    }

    /// Returns a member's descriptor.
    fn fbuf_member_descriptor(member: *const Member) -> RawFd {
        (*member).as_fd().as_raw_fd()
    }

    /// Returns a member's number.
    fn fbuf_member_number(member: *const Member) -> c_int {
        (*member).number() as c_int
    }

    /// Frees a member.
    fn fbuf_member_free(member: *mut Member) {
        free(member);
    }

    /// Allocates pages.
    fn fbuf_allocate(path: *const Path, length: size_t, pages: *mut *mut Fbuf) -> c_int {
        put(pages, (*path).allocate(length))
    }

    /// Returns the first byte of pages.
    fn fbuf_start(pages: *mut Fbuf) -> *mut c_void {
        (*pages).as_mut_ptr().cast()
    }

    /// Returns the bytes of pages.
    fn fbuf_length(pages: *const Fbuf) -> size_t {
        (&*pages).len()
    }

    /// Makes pages data; they are freed in any case.
    fn fbuf_seal(pages: *mut Fbuf, length: size_t, data: *mut *mut Data) -> c_int {
        let pages = *Box::from_raw(pages);
        put(data, Aggregate::new(pages, length).map(Data::Own))
    }

    /// Frees pages.
    fn fbuf_free(pages: *mut Fbuf) {
        free(pages);
    }

    /// Makes data of a copy.
    fn fbuf_data_copy(
        path: *const Path,
        start: *const c_void,
        length: size_t,
        data: *mut *mut Data
    ) -> c_int {
        put(data, (*path).copy(bytes(start, length)).map(Data::Own))
    }

    /// Takes bytes of a file.
    fn fbuf_data_take(
        path: *const Path,
        file: RawFd,
        offset: i64,
        most: size_t,
        data: *mut *mut Data
    ) -> c_int {
        let file = BorrowedFd::borrow_raw(file);
        let offset = u64::try_from(offset).ok();
        put(data, (*path).take(file, offset, most).map(Data::Own))
    }

    /// Joins data.
    fn fbuf_data_join(front: *const Data, back: *const Data, data: *mut *mut Data) -> c_int {
        let joined = (*front).own().and_then(|front| front.join((*back).own()?));
        put(data, joined.map(Data::Own))
    }

    /// Returns a part of data.
    fn fbuf_data_slice(of: *const Data, start: u64, end: u64, data: *mut *mut Data) -> c_int {
        let part = (*of).own().and_then(|it| it.slice(start..end));
        put(data, part.map(Data::Own))
    }

    /// Splits data.
    fn fbuf_data_split(
        of: *const Data,
        at: u64,
        front: *mut *mut Data,
        back: *mut *mut Data
    ) -> c_int {
        match (*of).own().and_then(|it| it.split(at)) {
            Ok((first, second)) => {
                put(front, Ok(Data::Own(first)));
                put(back, Ok(Data::Own(second)))
            }
            Err(why) => status(Err(why)),
        }
    }

    /// Leaves the first bytes out.
    fn fbuf_data_clip_front(of: *const Data, count: u64, data: *mut *mut Data) -> c_int {
        let rest = (*of).own().and_then(|it| it.clip_front(count));
        put(data, rest.map(Data::Own))
    }

    /// Leaves the last bytes out.
    fn fbuf_data_clip_back(of: *const Data, count: u64, data: *mut *mut Data) -> c_int {
        let rest = (*of).own().and_then(|it| it.clip_back(count));
        put(data, rest.map(Data::Own))
    }

    /// Puts bytes before data.
    fn fbuf_data_prepend(
        to: *const Data,
        start: *const c_void,
        length: size_t,
        data: *mut *mut Data
    ) -> c_int {
        let all = (*to).own().and_then(|it| it.prepend(bytes(start, length)));
        put(data, all.map(Data::Own))
    }

    /// Puts bytes behind data.
    fn fbuf_data_append(
        to: *const Data,
        start: *const c_void,
        length: size_t,
        data: *mut *mut Data
    ) -> c_int {
        let all = (*to).own().and_then(|it| it.append(bytes(start, length)));
        put(data, all.map(Data::Own))
    }

    /// Frees data.
    fn fbuf_data_free(data: *mut Data) {
        free(data);
    }

    /// Makes a received message data of a path.
    fn fbuf_data_forward(
        path: *const Path,
        received: *const Data,
        data: *mut *mut Data
    ) -> c_int {
        let forward = (*received).received().map(|it| (*path).forward(it));
        put(data, forward.map(Data::Own))
    }

    /// Has a packet socket's packets put into fbufs of the kernel.
    fn fbuf_frames_new(socket: RawFd, chunks: size_t, frames: *mut *mut Frames) -> c_int {
        let socket = BorrowedFd::borrow_raw(socket);
        put(frames, domain().and_then(|domain| Frames::new(&domain, socket, chunks)))
    }

    /// Takes packets.
    fn fbuf_frames_take(
        frames: *mut Frames,
        socket: RawFd,
        each: unsafe extern "C" fn(*mut c_void, *mut Data),
        context: *mut c_void
    ) -> c_int {
        let taken = (*frames).take(BorrowedFd::borrow_raw(socket), |packet| {
            each(context, Box::into_raw(Box::new(Data::Received(packet))));
        });
        number(taken.map(|(has_more, has_others)| {
            c_int::from(has_more) | c_int::from(has_others) << 1
        }))
    }

    /// Returns the descriptor of the path of these fbufs.
    fn fbuf_frames_descriptor(frames: *const Frames) -> RawFd {
        (*frames).member().as_fd().as_raw_fd()
    }

    /// Frees the handle.
    fn fbuf_frames_free(frames: *mut Frames) {
        free(frames);
    }

    /// Makes a packet data of a path.
    fn fbuf_frames_forward(
        path: *const Path,
        packet: *const Data,
        data: *mut *mut Data
    ) -> c_int {
        let forward = (*packet).received().and_then(|it| (*path).forward_frame(it));
        put(data, forward.map(Data::Own))
    }

    /// Returns the number of bytes.
    fn fbuf_data_length(data: *const Data) -> u64 {
        (&*data).len()
    }

    /// Copies bytes.
    fn fbuf_data_read(
        data: *const Data,
        offset: u64,
        to: *mut c_void,
        length: size_t
    ) -> size_t {
        match length {
            0 => 0,
            _ => (*data).copy_at(offset, slice::from_raw_parts_mut(to.cast(), length)),
        }
    }

    /// Returns fragments.
    fn fbuf_data_fragments(data: *const Data, to: *mut Piece, most: size_t) -> size_t {
        let mut count = 0;
        for fragment in (*data).fragments().take(most) {
            to.add(count).write(fragment.into());
            count += 1;
        }
        count
    }

    /// Returns lines.
    fn fbuf_lines(data: *const Data, most: size_t, to: *mut *mut Generator) -> c_int {
        let data: &'static Data = &*data;
        put(to, Ok(generator(units::lines(data, most))))
    }

    /// Returns records.
    fn fbuf_records(data: *const Data, size: size_t, to: *mut *mut Generator) -> c_int {
        let data: &'static Data = &*data;
        put(to, Ok(generator(units::records(data, size))))
    }

    /// Returns the next unit.
    fn fbuf_units_next(units: *mut Generator, unit: *mut Piece) -> c_int {
        let generator = &mut *units;
        let piece = match generator.units.next() {
            None => return 0,
            Some(Unit::Within(fragment)) => fragment.into(),
            Some(Unit::Across(bytes)) => {
                generator.last = bytes;
                Piece {
                    start: generator.last.as_ptr().cast(),
                    length: generator.last.len(),
                }
            }
        };
        unit.write(piece);
        1
    }

    /// Frees units.
    fn fbuf_units_free(units: *mut Generator) {
        free(units);
    }

    /// Sends through the kernel.
    fn fbuf_send(path: *const Path, member: c_uint, data: *const Data) -> c_int {
        let sent = (*data).own().and_then(|it| (*path).send(To::of(member.into()), it));
        status(sent.map(drop))
    }

    /// Receives through the kernel.
    fn fbuf_receive(member: *const Member, data: *mut *mut Data) -> c_int {
        let received = (*member).receive();
        let received = received.and_then(|it| it.ok_or_else(|| error(libc::EPIPE)));
        put(data, received.map(Data::Message))
    }

    /// Secures a message that came through the kernel.
    fn fbuf_secure(data: *mut Data) -> c_int {
        status(match &mut *data {
            Data::Message(message) => message.secure(),
            _ => Err(error(libc::EINVAL)),
        })
    }

    /// Sends through the kernel, and receives the answer.
    fn fbuf_call(
        path: *const Path,
        member: c_uint,
        request: *const Data,
        answers: *const Member,
        answer: *mut *mut Data
    ) -> c_int {
        let request = (*request).own();
        let received = request.and_then(|it| (*path).call(To::of(member.into()), it, &*answers));
        let received = received.and_then(|it| it.ok_or_else(|| error(libc::EPIPE)));
        put(answer, received.map(Data::Message))
    }

    /// Reads notices.
    fn fbuf_collect(path: *const Path) -> c_int {
        number((*path).collect().map(|count| count as c_int))
    }

    /// Makes a channel.
    fn fbuf_channel_connect(
        path: *const Path,
        socket: RawFd,
        channel: *mut *mut Channel
    ) -> c_int {
        let socket = OwnedFd::from_raw_fd(socket);
        let made = domain().and_then(|domain| Channel::connect(&domain, &*path, socket));
        put(channel, made)
    }

    /// Returns a channel's descriptor.
    fn fbuf_channel_descriptor(channel: *const Channel) -> RawFd {
        (*channel).as_fd().as_raw_fd()
    }

    /// Sends.
    fn fbuf_channel_send(channel: *mut Channel, data: *const Data) -> c_int {
        status((*data).own().and_then(|it| (*channel).send(it)))
    }

    /// Sends without waiting.
    fn fbuf_channel_try_send(channel: *mut Channel, data: *const Data) -> c_int {
        status((*data).own().and_then(|it| (*channel).try_send(it)))
    }

    /// Receives.
    fn fbuf_channel_receive(channel: *mut Channel, data: *mut *mut Data) -> c_int {
        put(data, some((*channel).receive()))
    }

    /// Receives what the peer may have from another path, too.
    fn fbuf_channel_receive_lent(
        channel: *mut Channel,
        lender: *const Member,
        data: *mut *mut Data
    ) -> c_int {
        let lender = &*lender;
        put(data, some((*channel).receive_lent(|_| Some(lender.clone()))))
    }

    /// Receives without waiting.
    fn fbuf_channel_try_receive(channel: *mut Channel, data: *mut *mut Data) -> c_int {
        put(data, some((*channel).try_receive()))
    }

    /// Sends and receives.
    fn fbuf_channel_call(
        channel: *mut Channel,
        request: *const Data,
        answer: *mut *mut Data
    ) -> c_int {
        let received = (*request).own().and_then(|it| (*channel).call(it));
        put(answer, received.map(Data::Received))
    }

    /// Sends an answer and receives a request.
    fn fbuf_channel_answer(
        channel: *mut Channel,
        answer: *const Data,
        request: *mut *mut Data
    ) -> c_int {
        let received = (*answer).own().and_then(|it| (*channel).answer(it));
        put(request, some(received))
    }

    /// Prepares for waiting.
    fn fbuf_channel_arm(channel: *mut Channel) -> c_int {
        (*channel).arm().into()
    }

    /// Looks for the peer.
    fn fbuf_channel_check(channel: *mut Channel) -> c_int {
        status((*channel).check())
    }

    /// Waits until all is freed.
    fn fbuf_channel_finish(channel: *mut Channel) -> c_int {
        status(Box::from_raw(channel).finish())
    }

    /// Sets how often a wait looks before it sleeps.
    fn fbuf_channel_set_spins(channel: *mut Channel, spins: c_uint) {
        (*channel).set_spins(spins);
    }

    /// Frees a channel.
    fn fbuf_channel_free(channel: *mut Channel) {
        free(channel);
    }
}

fn some(result: io::Result<Option<Received>>) -> io::Result<Data> {
    match result? {
        Some(received) => Ok(Data::Received(received)),
        None => Err(error(libc::EPIPE)),
    }
}

fn generator<I: Iterator<Item = Fragment<'static>> + 'static>(
    units: Units<'static, I>,
) -> Generator {
    Generator {
        units: Box::new(units),
        last: Vec::new(),
    }
}
