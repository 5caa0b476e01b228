//! The format of netlink messages: a head, a structure that the type says, and attributes; all
//! aligned to four bytes.

use alloc::vec::{self, Vec};
use core::net::IpAddr;

use abi::{Errno, Result, raw::netlink as raw};
use nucleus::PAGE_SIZE;
use vm::account::{Kind, Stock};

use crate::socket::{
    control,
    inet::{AF_INET, AF_INET6},
};

/// Bytes of a `struct nlmsghdr`.
pub const HEAD: usize = 16;
/// Bytes of the head of an attribute.
const ATTRIBUTE_HEAD: usize = 4;
/// An attribute's type without its flags (`NLA_TYPE_MASK`).
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// The next multiple of a message's or attribute's alignment.
fn padded(len: usize) -> usize {
    len.next_multiple_of(raw::NLMSG_ALIGNTO as usize)
}

/// One message that was received.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub kind: u32,
    /// `NLM_F_*`.
    pub flags: u32,
    pub sequence: u32,
    /// The whole message, head included.
    pub whole: &'a [u8],
}

impl<'a> Request<'a> {
    /// The part behind the head.
    pub fn body(&self) -> &'a [u8] {
        &self.whole[HEAD..]
    }

    /// Whether `flag` is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// The attributes behind a structure of `N` bytes.
    pub fn attributes<const N: usize>(&self) -> impl Iterator<Item = (u32, &'a [u8])> + use<'a, N> {
        attributes(self.body().get(padded(N)..).unwrap_or(&[]))
    }
}

/// Returns the messages in `bytes`, up to the first with an impossible length.
pub fn requests(bytes: &[u8]) -> impl Iterator<Item = Request<'_>> {
    let mut left = bytes;
    core::iter::from_fn(move || {
        let head = left.first_chunk::<HEAD>()?;
        let word = |at| control::number(head, at);
        let len = word(0) as usize;
        if len < HEAD || len > left.len() {
            return None;
        }
        let request = Request {
            kind: word(4) & 0xffff,
            flags: word(4) >> 16,
            sequence: word(8),
            whole: &left[..len],
        };
        left = left.get(padded(len)..).unwrap_or(&[]);
        Some(request)
    })
}

/// Returns the attributes in `bytes`, up to the first with an impossible length.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let mut left = bytes;
    core::iter::from_fn(move || {
        let head = left.first_chunk::<ATTRIBUTE_HEAD>()?;
        let len = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let kind = u16::from_le_bytes([head[2], head[3]]) & ATTRIBUTE_TYPE;
        if len < ATTRIBUTE_HEAD || len > left.len() {
            return None;
        }
        let value = &left[ATTRIBUTE_HEAD..len];
        left = left.get(padded(len)..).unwrap_or(&[]);
        Some((kind.into(), value))
    })
}

/// An attribute's value as a 32-bit number.
pub fn number(value: &[u8]) -> Option<u32> {
    value
        .first_chunk::<4>()
        .map(|bytes| u32::from_le_bytes(*bytes))
}

/// Bytes of a list that one datagram has room for, about: what programs have room for that ask
/// with a page.
const FULL: usize = 3584;
/// Bytes that the answers to a request may take, whatever the receive buffer is: a list of all
/// sockets is long.
pub const MOST_ANSWERS: usize = 8 << 20;

/// An attribute's value as an address of a family (`AF_INET`, `AF_INET6`).
///
/// # Errors
/// `EINVAL` for a wrong length, `EAFNOSUPPORT`.
pub fn address(family: u32, value: &[u8]) -> Result<IpAddr> {
    match family {
        AF_INET => Ok(IpAddr::from(
            *value.first_chunk::<4>().ok_or(Errno::EINVAL)?,
        )),
        AF_INET6 => Ok(IpAddr::from(
            *value.first_chunk::<16>().ok_or(Errno::EINVAL)?,
        )),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

/// The family of an address.
pub fn family(ip: IpAddr) -> u32 {
    match ip {
        IpAddr::V4(_) => AF_INET,
        IpAddr::V6(_) => AF_INET6,
    }
}

/// The answers to the requests of one datagram. Each request's are given to the receiver before the
/// next request is served, so the kernel holds one list at a time, however many are asked for.
pub struct Answers<'a> {
    /// Takes a datagram, or the reason why there is none; false if the receiver misses it.
    give: &'a mut dyn FnMut(Result<Vec<u8>>) -> bool,
    has_room: bool,
}

impl<'a> Answers<'a> {
    pub fn new(give: &'a mut dyn FnMut(Result<Vec<u8>>) -> bool) -> Answers<'a> {
        Answers {
            give,
            has_room: true,
        }
    }

    /// Gives a datagram to the receiver, or tells it that it misses one that could not be written.
    pub fn push(&mut self, datagram: Result<Vec<u8>>) {
        self.has_room &= (self.give)(datagram);
    }

    /// Checks that a list is worth making: the receiver had room for every answer before.
    ///
    /// # Errors
    /// `ENOBUFS`.
    pub fn check_room(&self) -> Result<()> {
        match self.has_room {
            true => Ok(()),
            false => Err(Errno::ENOBUFS),
        }
    }
}

/// Messages that are written one behind the other into datagrams.
pub struct Writer {
    bytes: Vec<u8>,
    /// Datagrams that are full.
    full: Vec<Vec<u8>>,
    /// Their bytes, which are charged to the requester while the list is made.
    kept: usize,
    stock: Stock,
    /// The list is not whole.
    failure: Option<Errno>,
    /// Of the request that is answered.
    sequence: u32,
    /// The port of the requester.
    port: u32,
}

impl Writer {
    /// Nothing yet; the answers are to `request` of the socket at `port`.
    pub fn new(request: &Request<'_>, port: u32) -> Writer {
        Writer {
            sequence: request.sequence,
            port,
            ..Writer::news()
        }
    }

    /// Empty; for notifications, which have sequence number 0.
    pub fn news() -> Writer {
        Writer {
            bytes: Vec::new(),
            full: Vec::new(),
            kept: 0,
            stock: Stock::of_current(Kind::Sockets),
            failure: None,
            sequence: 0,
            port: 0,
        }
    }

    /// Adds a message: the structure that `kind` says, and attributes.
    pub fn message(
        &mut self,
        kind: u32,
        flags: u32,
        structure: &[u8],
        attributes: impl FnOnce(&mut Attributes<'_>),
    ) {
        if self.bytes.len() >= FULL && self.full.try_reserve(1).is_ok() {
            self.kept += self.bytes.len();
            self.stock.cover(self.kept.div_ceil(PAGE_SIZE));
            self.full.push(snug(core::mem::take(&mut self.bytes)));
        }
        if self.kept > MOST_ANSWERS {
            self.fail(Errno::ENOBUFS);
        }
        // A message is shorter than this, unless it repeats a request.
        if self.failure.is_none() && self.bytes.try_reserve(FULL).is_err() {
            self.fail(Errno::ENOMEM);
        }
        if self.failure.is_some() {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&(kind as u16).to_le_bytes());
        self.bytes.extend_from_slice(&(flags as u16).to_le_bytes());
        self.bytes.extend_from_slice(&self.sequence.to_le_bytes());
        self.bytes.extend_from_slice(&self.port.to_le_bytes());
        self.bytes.extend_from_slice(structure);
        pad(&mut self.bytes);
        attributes(&mut Attributes(&mut self.bytes));
        let len = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&len.to_le_bytes());
    }

    /// Adds the answer to a request that failed, or that asked to be told of its success. It
    /// repeats the request, or of it only the head (`capped`) where that says enough.
    pub fn outcome(&mut self, request: &Request<'_>, error: Option<Errno>, capped: bool) {
        let number = error.map_or(0, |error| -i32::from(error.number()));
        let capped = capped || error.is_none();
        let repeated = if capped {
            &request.whole[..HEAD]
        } else {
            request.whole
        };
        let flags = if capped { raw::NLM_F_CAPPED } else { 0 };
        if self.bytes.try_reserve(repeated.len() + 2 * FULL).is_err() {
            self.fail(Errno::ENOMEM);
        }
        self.message(raw::NLMSG_ERROR, flags, &number.to_le_bytes(), |rest| {
            rest.0.extend_from_slice(repeated);
            pad(rest.0);
        });
    }

    /// Adds the end of a list.
    pub fn done(&mut self, error: Option<Errno>, flags: u32) {
        let number = error.map_or(0, |error| -i32::from(error.number()));
        let kind = raw::NLMSG_DONE;
        self.message(
            kind,
            flags | raw::NLM_F_MULTI,
            &number.to_le_bytes(),
            |_| {},
        );
    }

    /// Writes nothing more, and frees the list.
    fn fail(&mut self, error: Errno) {
        self.failure.get_or_insert(error);
        self.full.clear();
    }

    /// The last datagram.
    ///
    /// # Errors
    /// `ENOMEM` if it could not be written.
    pub fn finish(self) -> Result<Vec<u8>> {
        match self.failure {
            Some(error) => Err(error),
            None => Ok(snug(self.bytes)),
        }
    }

    /// All datagrams.
    ///
    /// # Errors
    /// `ENOMEM` if they could not be written, `ENOBUFS` if they are longer than
    /// [`MOST_ANSWERS`].
    pub fn finish_all(mut self) -> Result<List> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        if !self.bytes.is_empty() {
            self.full.try_reserve(1)?;
            self.kept += self.bytes.len();
            self.stock.cover(self.kept.div_ceil(PAGE_SIZE));
            self.full.push(snug(self.bytes));
        }
        Ok(List {
            datagrams: self.full.into_iter(),
            kept: self.kept,
            taken: 0,
            stock: self.stock,
        })
    }
}

/// The datagrams of a list. Each is charged to the requester until the next one is taken: by then
/// the queue that it went to has charged it.
pub struct List {
    datagrams: vec::IntoIter<Vec<u8>>,
    /// Bytes that are charged.
    kept: usize,
    /// Those of the datagram that was taken last.
    taken: usize,
    stock: Stock,
}

impl Iterator for List {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        self.kept -= core::mem::take(&mut self.taken);
        self.stock.cover(self.kept.div_ceil(PAGE_SIZE));
        let next = self.datagrams.next()?;
        self.taken = next.len();
        Some(next)
    }
}

/// Returns a datagram in about as much memory as its bytes take, for which its owner is charged.
fn snug(bytes: Vec<u8>) -> Vec<u8> {
    match bytes.capacity() > 2 * bytes.len() {
        true => nucleus::try_copy(&bytes).unwrap_or(bytes),
        false => bytes,
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(padded(bytes.len()), 0);
}

/// The attributes of a message that is being written.
pub struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    /// Adds an attribute.
    pub fn put(&mut self, kind: u32, value: &[u8]) {
        self.nested(kind, |inside| inside.0.extend_from_slice(value));
    }

    /// Adds a 32-bit number.
    pub fn put_number(&mut self, kind: u32, value: u32) {
        self.put(kind, &value.to_le_bytes());
    }

    /// Adds an address.
    pub fn put_address(&mut self, kind: u32, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.put(kind, &ip.octets()),
            IpAddr::V6(ip) => self.put(kind, &ip.octets()),
        }
    }

    /// Adds an attribute that consists of attributes.
    pub fn nested(&mut self, kind: u32, inside: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 2]);
        self.0.extend_from_slice(&(kind as u16).to_le_bytes());
        inside(&mut Attributes(self.0));
        let len = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&len.to_le_bytes());
        pad(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm::account::Account;

    fn request(len: u32, kind: u16, flags: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0]);
        bytes.resize(padded(len as usize).max(HEAD), 9);
        bytes
    }

    #[test]
    fn requests_end_at_a_length_that_cannot_be() {
        let mut bytes = request(17, 18, 1);
        bytes.extend(request(16, 22, 5));
        for wrong in [15, 17, u32::MAX, 0] {
            let mut bytes = bytes.clone();
            bytes.extend_from_slice(&request(16, 1, 1));
            let last = bytes.len() - HEAD;
            bytes[last..last + 4].copy_from_slice(&wrong.to_le_bytes());
            let kinds: Vec<_> = requests(&bytes)
                .map(|r| (r.kind, r.flags, r.body().len()))
                .collect();
            assert_eq!(kinds, [(18, 1, 1), (22, 5, 0)]);
        }
    }

    #[test]
    fn what_was_written_is_read_again() {
        let bytes = request(16, 18, 1);
        let asked = requests(&bytes).next().unwrap();
        let mut writer = Writer::new(&asked, 42);
        writer.message(16, raw::NLM_F_MULTI, &[1; 8], |attributes| {
            attributes.put(3, b"lo\0");
            attributes.put_number(4, 5);
            attributes.nested(26, |inside| inside.put(10, &[1]));
        });
        writer.done(None, 0);
        let answer = writer.finish().unwrap();
        let all: Vec<_> = requests(&answer).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].kind, all[0].sequence), (16, 7));
        let found: Vec<_> = all[0].attributes::<8>().collect();
        assert_eq!(found[0], (3, &b"lo\0"[..]));
        assert_eq!(found[1].1, 5u32.to_le_bytes());
        assert_eq!(attributes(found[2].1).collect::<Vec<_>>(), [(10, &[1][..])]);
        assert_eq!((all[1].kind, all[1].body()), (3, &[0; 4][..]));
    }

    #[test]
    fn answers_take_the_memory_that_they_are_charged_with() {
        let bytes = request(20, 18, 5);
        let asked = requests(&bytes).next().unwrap();
        let mut writer = Writer::new(&asked, 42);
        writer.outcome(&asked, None, true);
        let answer = writer.finish().unwrap();
        assert!(
            answer.capacity() <= 2 * answer.len(),
            "{}",
            answer.capacity()
        );
    }

    #[test]
    fn a_list_ends_at_the_most_bytes() {
        let bytes = request(20, 18, 5);
        let asked = requests(&bytes).next().unwrap();
        for (count, fits) in [(2000, true), (4000, false)] {
            let mut writer = Writer::new(&asked, 42);
            for _ in 0..count {
                writer.message(16, 0, &[0; FULL], |_| {});
            }
            let list = writer.finish_all();
            assert_eq!(list.map(|list| list.count()).ok(), fits.then_some(count));
        }
    }

    /// A receiver without the end of a list, or an acknowledgement, would wait for it.
    #[test]
    fn an_answer_that_cannot_be_written_is_no_empty_datagram() {
        let bytes = request(20, 18, 5);
        let asked = requests(&bytes).next().unwrap();
        let mut writer = Writer::new(&asked, 42);
        writer.fail(Errno::ENOMEM);
        writer.done(None, 0);
        let mut given = Vec::new();
        let mut give = |datagram: Result<Vec<u8>>| {
            given.push(datagram.clone());
            datagram.is_ok()
        };
        let mut answers = Answers::new(&mut give);
        answers.push(writer.finish());
        assert_eq!(answers.check_room(), Err(Errno::ENOBUFS));
        assert_eq!(given, [Err(Errno::ENOMEM)]);
    }

    /// The requester pays for a list until the queue of its socket does.
    #[test]
    fn a_list_is_charged_until_it_is_queued() {
        let bytes = request(20, 18, 5);
        let asked = requests(&bytes).next().unwrap();
        let payer = Account::of_process(10, &Account::of_user(1));
        let charged = || payer.bytes(Kind::Sockets);
        let mut writer = Writer::new(&asked, 42);
        writer.stock = Stock::new(Some(payer.clone()), Kind::Sockets);
        for _ in 0..1000 {
            writer.message(16, 0, &[0; FULL], |_| {});
        }
        let mut list = writer.finish_all().unwrap();
        let queue = Stock::new(Some(payer.clone()), Kind::Sockets);
        let mut left = 1000 * FULL;
        let mut queued = 0;
        assert!(charged() >= left);
        for datagram in list.by_ref() {
            assert!(charged() >= left + queued, "{left} left, {queued} queued");
            left -= FULL;
            queued += datagram.len();
            queue.cover(queued.div_ceil(PAGE_SIZE));
        }
        drop((list, queue));
        assert_eq!(charged(), 0);
    }

    #[test]
    fn a_failure_repeats_the_request_and_a_success_its_head() {
        let bytes = request(20, 18, 5);
        let asked = requests(&bytes).next().unwrap();
        for (error, capped, len) in [
            (None, false, 36),
            (Some(Errno::EPERM), false, 40),
            (Some(Errno::EPERM), true, 36),
        ] {
            let mut writer = Writer::new(&asked, 42);
            writer.outcome(&asked, error, capped);
            assert_eq!(writer.finish().unwrap().len(), len);
        }
    }
}
