//! The file of a path.

use alloc::{format, sync::Arc, vec::Vec};

use abi::{
    Errno, Result,
    raw::general::{O_NONBLOCK, O_RDWR, RLIMIT_NOFILE, SEEK_CUR},
};
use fbuf::{
    Moving,
    region::{
        Domain, MANY_NOTICES, MOST_RUN_CHUNKS, Path, REGION_SIZE, REGION_START, Readiness, Role,
    },
};
use fs::{File, OpenFlags, Ready};
use nucleus::{VirtAddr, VirtRange, addr::USER_END, task::Watch, try_vec, user};

use super::{Words, domain, exchange, request, words};
use crate::process::{files::OpenFile, signal, thread};

/// Pairs of addresses that one call gives at most.
const MOST_PAIRS: usize = 1024;

/// Bytes that one call takes from a file at most.
const MOST_TAKEN: u64 = 1 << 20;

/// A flag of requests that would wait: they fail with `EAGAIN` instead, whatever the descriptor's
/// flags, which other processes may change.
const DONT_WAIT: u64 = 1;

/// The offset in a file that has none.
const NO_OFFSET: u64 = u64::MAX;

/// A path, as long as a descriptor leads to it.
pub struct PathFile {
    path: Arc<Path>,
}

impl PathFile {
    /// Opens the path that `make` makes for the caller; returns the descriptor.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`, when none is made; those of `make`.
    pub fn open(make: impl FnOnce() -> Result<Arc<Path>>) -> Result<usize> {
        let most = thread::with_current(|me| me.process().limits().soft(RLIMIT_NOFILE));
        let (most, own) = most.zip(thread::current_shared()).ok_or(Errno::ENOTTY)?;
        let slot = own.files.reserve(0, most)?;
        let file = Arc::new(PathFile { path: make()? });
        let open = OpenFile::new(file, OpenFlags::from_bits_retain(O_RDWR));
        Ok(slot.install(open, true))
    }

    fn attach(&self, domain: &Arc<Domain>) -> Result<Words> {
        let path = &self.path;
        let number = path.attach(domain)?;
        let mode = path.mode().bits();
        Ok(words([path.id(), path.originator(), mode.into(), number]))
    }

    fn grow(&self, domain: &Arc<Domain>, chunks: u64) -> Result<Words> {
        // A larger number is refused as well.
        let chunks = chunks.min(MOST_RUN_CHUNKS as u64 + 1) as usize;
        let range = self.path.grow(domain, chunks)?;
        Ok(words([range.start.0 as u64]))
    }

    fn send(&self, domain: &Arc<Domain>, wait: bool, to: u64, root: u64) -> Result<Words> {
        let to = (to != 0).then_some(to);
        let attempt = || match self.path.send(domain, to, root) {
            Err(Errno::EAGAIN) => None,
            result => Some(result),
        };
        let queue = self.path.queue(Role::Originator);
        let (id, notices) = signal::take_or_wait(queue, wait, attempt)??;
        Ok(words([id, notices as u64]))
    }

    /// Sends on this path, and waits for the next message on another one, by which the receiver
    /// answers. The caller sleeps as soon as it has woken the receiver: one switch.
    ///
    /// # Errors
    /// Those of sending, then those of receiving; `EINTR` for a signal once the request is sent.
    fn call(&self, domain: &Arc<Domain>, wait: bool, words: Words) -> Result<Words> {
        let [to, root, answers, ..] = words;
        let fd = i32::try_from(answers).map_err(|_| Errno::EBADF)?;
        let own = thread::current_shared().ok_or(Errno::EBADF)?;
        let open = own.files.get(fd)?;
        let answers = open.downcast::<PathFile>().ok_or(Errno::EINVAL)?;
        if !matches!(answers.path.role(domain), Role::Receiver(_)) {
            return Err(Errno::EPERM);
        }
        let [id, ..] = self.send(domain, wait, to, root)?;
        let mut words = answers.receive(domain, true).map_err(|error| match error {
            signal::ERESTARTSYS => Errno::EINTR,
            error => error,
        })?;
        words[5] = id;
        Ok(words)
    }

    fn receive(&self, domain: &Arc<Domain>, wait: bool) -> Result<Words> {
        let queue = self.path.queue(self.path.role(domain));
        let attempt = || self.path.receive(domain).transpose();
        let it = signal::take_or_wait(queue, wait, attempt)??;
        let notices = domain.notices() as u64;
        Ok(words([it.root, it.id, it.sender, it.bytes, notices]))
    }

    /// Receives, and tells which pages the message includes, as [`ranges`](PathFile::ranges) does.
    fn receive_with_ranges(
        &self,
        domain: &Arc<Domain>,
        wait: bool,
        at: u64,
        most: u64,
    ) -> Result<Words> {
        let mut words = self.receive(domain, wait)?;
        if most > 0 {
            let [count, ..] = self.ranges(domain, words[1], at, most)?;
            words[5] = count;
        }
        Ok(words)
    }

    /// Tells whose memory an address is that the originator names in a ring.
    fn whose(&self, domain: &Arc<Domain>, address: u64) -> Result<Words> {
        let source = self.path.source_of(domain, address)?;
        let [start, end] = [source.addresses.start, source.addresses.end].map(|it| it.0 as u64);
        let bits = u64::from(source.is_own) | u64::from(source.is_senders) << 1;
        Ok(words([start, end, source.path, bits]))
    }

    /// Sleeps while a word, which the originator writes and [rings](PathFile::ring), has this value
    /// and the originator is there. Wakes for other words, too.
    ///
    /// # Errors
    /// `EAGAIN` for another value, `EPIPE` once the originator is gone, `EFAULT` for an address
    /// outside the region, `EINVAL` for one between words, a restart number after a signal.
    fn wait(&self, at: u64, value: u64) -> Result<usize> {
        let at = word(at)?;
        let mut has_slept = false;
        let awake = || {
            if self.path.is_over() {
                return Some(Err(Errno::EPIPE));
            }
            match user::load_u32(at) {
                Ok(found) if found != value as u32 => Some(match has_slept {
                    true => Ok(0),
                    false => Err(Errno::EAGAIN),
                }),
                Ok(_) => {
                    has_slept = true;
                    None
                }
                Err(_) => Some(Err(Errno::EFAULT)),
            }
        };
        signal::take_or_wait(self.path.bell(at), true, awake)?
    }

    /// Wakes those that wait for a word, which was changed before.
    ///
    /// # Errors
    /// Those of an address, as [`wait`](PathFile::wait).
    fn ring(&self, at: u64) -> Result<usize> {
        self.path.bell(word(at)?).wake_all();
        Ok(0)
    }

    /// Rings for a word of another path, and waits for one of this: both sides of a pair of rings
    /// by one switch.
    ///
    /// # Errors
    /// Those of waiting; the others are woken then. `EBADF` and `EINVAL` for what is no path, and
    /// those of ringing.
    fn pass(&self, [other, rung, at, value, ..]: Words) -> Result<usize> {
        let fd = i32::try_from(other).map_err(|_| Errno::EBADF)?;
        let files = thread::current_files().ok_or(Errno::EBADF)?;
        let open = files.get(fd)?;
        drop(files);
        let other = open.downcast::<PathFile>().ok_or(Errno::EINVAL)?;
        other.ring(rung)?;
        // It may be closed while this sleeps.
        drop(open);
        self.wait(at, value)
    }

    /// Reads from a file, a pipe or a socket into fbufs that no message includes: whole pages get
    /// there without a copy. `offset` is [`NO_OFFSET`] for what has none.
    ///
    /// # Errors
    /// Those of [`Path::check_free`] and of reading; `EINVAL` for a file that cannot be spliced or
    /// an offset that is missing or not allowed.
    fn take(&self, domain: &Arc<Domain>, words_in: Words) -> Result<Words> {
        let [fd, offset, at, len, ..] = words_in;
        let len = len.min(MOST_TAKEN);
        let end = at.checked_add(len).ok_or(Errno::EFAULT)?;
        self.path.check_free(domain, at..end)?;
        let fd = i32::try_from(fd).map_err(|_| Errno::EBADF)?;
        let own = thread::current_shared().ok_or(Errno::EBADF)?;
        let from = own.files.get(fd)?;
        let file = from.readable()?;
        let has_offset = file.seek(0, SEEK_CUR) != Err(Errno::ESPIPE);
        let offset = (offset != NO_OFFSET).then_some(offset);
        let is_good = offset.is_none_or(|it| it.checked_add(len).is_some_and(|it| it >> 63 == 0));
        if !file.splices() || has_offset != offset.is_some() || !is_good {
            return Err(Errno::EINVAL);
        }
        let mut taken = Moving::new(len as usize, usize::MAX);
        file.read(offset, from.flags(), &mut taken)?;
        let put = match taken.is_empty() {
            true => 0,
            false => self.path.put(domain, at, taken)?,
        };
        Ok(words([put as u64]))
    }

    fn notices(&self, domain: &Arc<Domain>, at: u64, most: u64) -> Result<Words> {
        let most = most.min(MOST_PAIRS as u64) as usize;
        let mut pairs: Vec<[u64; 2]> = try_vec(most)?;
        self.path.take_notices(domain, most, &mut |range| {
            pairs.push([range.start.0 as u64, range.end.0 as u64]);
        })?;
        write_pairs(&pairs, at)?;
        Ok(words([pairs.len() as u64]))
    }

    /// Tells which pages a received message includes, as they were checked when it was sent: its
    /// nodes may have changed since.
    fn ranges(&self, domain: &Arc<Domain>, id: u64, at: u64, most: u64) -> Result<Words> {
        let most = most.min(MOST_PAIRS as u64) as usize;
        let mut pairs: Vec<[u64; 2]> = try_vec(most)?;
        let count = self.path.ranges_of(domain, id, &mut |range| {
            if pairs.len() < most {
                pairs.push([range.start.0 as u64, range.end.0 as u64]);
            }
        })?;
        write_pairs(&pairs, at)?;
        Ok(words([count as u64]))
    }
}

/// Checks the address of a word of the region.
fn word(at: u64) -> Result<VirtAddr> {
    let at = VirtAddr(usize::try_from(at).map_err(|_| Errno::EFAULT)?);
    match at.0 % 4 {
        _ if at < REGION_START || at >= REGION_START + REGION_SIZE => Err(Errno::EFAULT),
        0 => Ok(at),
        _ => Err(Errno::EINVAL),
    }
}

fn write_pairs(pairs: &[[u64; 2]], at: u64) -> Result<()> {
    let at = VirtAddr(usize::try_from(at).map_err(|_| Errno::EFAULT)?);
    for (i, pair) in pairs.iter().enumerate() {
        user::write(at + i * size_of::<[u64; 2]>(), pair)?;
    }
    Ok(())
}

impl File for PathFile {
    fn splices(&self) -> bool {
        false
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        let role = domain().map_or(Role::Stranger, |domain| self.path.role(&domain));
        if let Some(watch) = watch {
            match role {
                // `epoll` watches on when it has attached.
                Role::Stranger => self.path.queues().for_each(|queue| watch.add(queue)),
                role => watch.add(self.path.queue(role)),
            }
        }
        ready(role, self.path.readiness(role))
    }

    fn control(&self, flags: OpenFlags, command: u32, argument: VirtAddr) -> Result<usize> {
        // These need nothing but the path.
        if let request::WAIT | request::PASS | request::RING = command {
            let words_in @ [first, second, ..]: Words = user::read(argument)?;
            return match command {
                request::WAIT => self.wait(first, second),
                request::PASS => self.pass(words_in),
                _ => self.ring(first),
            };
        }
        let domain = domain().ok_or(Errno::EPERM)?;
        let domain = &domain;
        let wait = !flags.has(O_NONBLOCK);
        exchange(
            argument,
            |words_in @ [first, second, third, ..]| match command {
                request::ATTACH => self.attach(domain),
                request::GROW => self.grow(domain, first),
                request::SHRINK => self.path.shrink(domain, first).map(|()| words([])),
                request::SEND => self.send(domain, wait && third & DONT_WAIT == 0, first, second),
                request::RECEIVE => {
                    let wait = wait && first & DONT_WAIT == 0;
                    self.receive_with_ranges(domain, wait, second, third)
                }
                request::FREE => self.path.free(domain, first).map(|()| words([])),
                request::NOTICES => self.notices(domain, first, second),
                request::RANGES => self.ranges(domain, first, second, third),
                request::SECURE => {
                    let secured = self.path.secure(domain, addresses(first, second)?);
                    secured.map(|()| words([]))
                }
                request::CALL => self.call(domain, wait, words_in),
                request::WHOSE => self.whose(domain, first),
                request::TAKE => self.take(domain, words_in),
                request::IDLE => {
                    let idle = self.path.set_idle(domain, addresses(first, second)?);
                    idle.map(|()| words([]))
                }
                request::LEAVE => {
                    self.path.leave(domain);
                    Ok(words([]))
                }
                _ => Err(Errno::ENOTTY),
            },
        )
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[fbuf]".to_vec()
    }

    fn details(&self, out: &mut dyn FnMut(&[u8])) {
        let (id, mode) = (self.path.id(), self.path.mode().bits());
        out(format!("fbuf-path: {id}\nfbuf-mode: {mode}\n").as_bytes());
    }
}

impl Drop for PathFile {
    fn drop(&mut self) {
        self.path.close();
    }
}

fn ready(role: Role, state: Readiness) -> Ready {
    let mut ready = match role {
        Role::Originator => Ready::of(false, state.has_room),
        _ => Ready::of(state.has_message, false),
    };
    let has_many = role == Role::Originator && state.notices >= MANY_NOTICES;
    ready.set(Ready::PRI, has_many);
    ready.set(Ready::HUP, state.is_over);
    ready
}

fn addresses(start: u64, len: u64) -> Result<VirtRange> {
    let end = start.checked_add(len);
    let end = end.filter(|&end| end <= USER_END.0 as u64);
    let end = end.ok_or(Errno::EFAULT)?;
    Ok(VirtRange::new(
        VirtAddr(start as usize),
        VirtAddr(end as usize),
    ))
}
