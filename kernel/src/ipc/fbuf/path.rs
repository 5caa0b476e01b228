//! The file of a path.

use alloc::{format, sync::Arc, vec::Vec};

use abi::{Errno, Result, raw::general::O_NONBLOCK};
use fbuf::region::{Domain, MANY_NOTICES, MOST_RUN_CHUNKS, Path, Readiness, Role};
use fs::{File, OpenFlags, Ready};
use nucleus::{VirtAddr, VirtRange, addr::USER_END, task::Watch, try_vec, user};

use super::{Words, domain, exchange, request, words};
use crate::process::{signal, thread};

/// Pairs of addresses that one call gives at most.
const MOST_PAIRS: usize = 1024;

/// A path, as long as a descriptor leads to it.
pub struct PathFile {
    path: Arc<Path>,
}

impl PathFile {
    pub fn new(path: Arc<Path>) -> PathFile {
        PathFile { path }
    }

    fn attach(&self, domain: &Arc<Domain>) -> Result<Words> {
        let path = &self.path;
        let index = path.attach(domain)?;
        let mode = path.mode().bits();
        Ok(words([
            path.id(),
            path.originator(),
            mode.into(),
            index as u64 + 1,
        ]))
    }

    fn grow(&self, domain: &Arc<Domain>, chunks: u64) -> Result<Words> {
        // A larger number is refused as well.
        let chunks = chunks.min(MOST_RUN_CHUNKS as u64 + 1) as usize;
        let range = self.path.grow(domain, chunks)?;
        Ok(words([range.start.0 as u64]))
    }

    fn send(&self, domain: &Arc<Domain>, flags: OpenFlags, to: u64, root: u64) -> Result<Words> {
        let to = match to {
            0 => None,
            number => Some(usize::try_from(number - 1).map_err(|_| Errno::EINVAL)?),
        };
        let attempt = || match self.path.send(domain, to, root) {
            Err(Errno::EAGAIN) => None,
            result => Some(result),
        };
        let wait = !flags.has(O_NONBLOCK);
        let queue = self.path.queue(Role::Originator);
        let (id, notices) = signal::take_or_wait(queue, wait, attempt)??;
        Ok(words([id, notices as u64]))
    }

    /// Sends on this path, and waits for the next message on another one, by which the receiver
    /// answers. The caller sleeps as soon as it has woken the receiver: one switch.
    ///
    /// # Errors
    /// Those of sending, then those of receiving; `EINTR` for a signal once the request is sent.
    fn call(&self, domain: &Arc<Domain>, flags: OpenFlags, words: Words) -> Result<Words> {
        let [to, root, answers, ..] = words;
        let fd = i32::try_from(answers).map_err(|_| Errno::EBADF)?;
        let own = thread::current_shared().ok_or(Errno::EBADF)?;
        let open = own.files.get(fd)?;
        let answers = open.downcast::<PathFile>().ok_or(Errno::EINVAL)?;
        if !matches!(answers.path.role(domain), Role::Receiver(_)) {
            return Err(Errno::EPERM);
        }
        let [id, ..] = self.send(domain, flags, to, root)?;
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

    fn notices(&self, domain: &Arc<Domain>, at: u64, most: u64) -> Result<Words> {
        let most = most.min(MOST_PAIRS as u64) as usize;
        let mut pairs: Vec<[u64; 2]> = try_vec(most)?;
        self.path.take_notices(domain, most, &mut |range| {
            pairs.push([range.start.0 as u64, range.end.0 as u64]);
        })?;
        let at = VirtAddr(usize::try_from(at).map_err(|_| Errno::EFAULT)?);
        for (i, pair) in pairs.iter().enumerate() {
            user::write(at + i * size_of::<[u64; 2]>(), pair)?;
        }
        Ok(words([pairs.len() as u64]))
    }
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
        let domain = domain().ok_or(Errno::EPERM)?;
        let domain = &domain;
        let wait = !flags.has(O_NONBLOCK);
        exchange(argument, |words_in @ [first, second, ..]| match command {
            request::ATTACH => self.attach(domain),
            request::GROW => self.grow(domain, first),
            request::SHRINK => self.path.shrink(domain, first).map(|()| words([])),
            request::SEND => self.send(domain, flags, first, second),
            request::RECEIVE => self.receive(domain, wait),
            request::FREE => self.path.free(domain, first).map(|()| words([])),
            request::NOTICES => self.notices(domain, first, second),
            request::SECURE => {
                let secured = self.path.secure(domain, addresses(first, second)?);
                secured.map(|()| words([]))
            }
            request::CALL => self.call(domain, flags, words_in),
            request::IDLE => {
                let idle = self.path.set_idle(domain, addresses(first, second)?);
                idle.map(|()| words([]))
            }
            request::LEAVE => {
                self.path.leave(domain);
                Ok(words([]))
            }
            _ => Err(Errno::ENOTTY),
        })
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
