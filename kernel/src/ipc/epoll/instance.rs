//! The open file of an epoll.

use abi::{
    Errno, Result,
    raw::general::{EPOLLET, EPOLLEXCLUSIVE, EPOLLONESHOT, SEEK_CUR, epoll_event},
};
use alloc::{
    collections::BTreeMap,
    format,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::ops::Bound::{Excluded, Unbounded};

use fs::{File, Ready as Bits};
use nucleus::{
    VirtAddr, frame,
    sync::Mutex,
    task::{ObserverSet, Sleep, Watch, Woken},
    user,
};
use vm::account::Account;

use super::{
    WATCHES,
    item::{Interest, Item, Key, key},
    nesting::{self, Node},
    ready::Ready,
};
use crate::process::files::OpenFile;

pub struct Epoll {
    pub(super) me: Weak<Epoll>,
    pub(super) ready: Arc<Ready>,
    /// The watches. Held while events are collected, so that a watch is not reported twice by one
    /// call.
    items: Mutex<BTreeMap<Key, Arc<Item>>>,
    /// Which epolls watch this one.
    pub(super) node: Arc<Node>,
    /// The account of the process that made it, for the watches.
    account: Arc<Account>,
}

impl Epoll {
    /// Watches nothing yet; its watches will be charged to `account`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(account: Arc<Account>) -> Result<Arc<Epoll>> {
        frame::check_not_scarce()?;
        Ok(Arc::new_cyclic(|me| Epoll {
            me: me.clone(),
            ready: Ready::new(),
            items: Mutex::new(crate::rank::EPOLL, BTreeMap::new()),
            node: Node::new(),
            account,
        }))
    }

    /// `EPOLL_CTL_ADD`: watches `open`, which the caller has as descriptor `fd`.
    ///
    /// # Errors
    /// `EEXIST`, `ELOOP` for a cycle or a chain of more than five epolls, `EINVAL` for too many
    /// paths upwards from one file, `ENOSPC` for too many watches, `ENOMEM`, `EINTR` for a thread
    /// that is killed.
    pub fn add(&self, open: &Arc<OpenFile>, fd: i32, interest: Interest) -> Result<()> {
        frame::check_not_scarce()?;
        let inner = open.downcast::<Epoll>();
        let mut nesting = inner.map(|_| nesting::lock()).transpose()?;
        if let (Some(inner), Some(nesting)) = (inner, &nesting) {
            nesting.check_depth(self, inner)?;
        }
        let mut items = loop {
            let items = self.items.lock();
            // An epoll that begins to watch this one sees either the new watch or, here, that it
            // does.
            if nesting.is_some() || self.node.is_top() {
                break items;
            }
            drop(items);
            nesting = Some(nesting::lock()?);
        };
        let key = key(open, fd);
        if items.contains_key(&key) {
            return Err(Errno::EEXIST);
        }
        if let (None, Some(nesting)) = (inner, &nesting) {
            nesting.check_file(&self.node, open.attached())?;
        }
        let charge = WATCHES.charge(&self.account).ok_or(Errno::ENOSPC)?;
        let place = self.ready.reserve()?;
        let item = Item::new(key, place, self, open, charge);
        self.ready.enter(&item, interest);
        let found = observe(&item, open, interest).and_then(|found| {
            if let (Some(inner), Some(nesting)) = (inner, &nesting) {
                item.nest(nesting, inner)?;
                nesting.check_paths(inner)?;
            }
            Ok(found)
        });
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.end(&item);
                drop(items);
                item.detach();
                return Err(error);
            }
        };
        items.insert(key, item.clone());
        drop(items);
        drop(nesting);
        if found.intersects(interest.ready()) {
            self.ready.note(&item, |_| true);
        }
        Ok(())
    }

    /// `EPOLL_CTL_MOD`: changes the interest in a watched file.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL` for an exclusive watch.
    pub fn modify(&self, open: &Arc<OpenFile>, fd: i32, interest: Interest) -> Result<()> {
        let items = self.items.lock();
        let item = items.get(&key(open, fd)).ok_or(Errno::ENOENT)?;
        if self.ready.interest(item.place).has(EPOLLEXCLUSIVE) {
            return Err(Errno::EINVAL);
        }
        // Wake-ups count for the new interest before the file is asked: none is missed.
        self.ready.set_interest(item.place, interest);
        if item.poll().intersects(interest.ready()) {
            self.ready.note(item, |_| true);
        }
        Ok(())
    }

    /// `EPOLL_CTL_DEL`: watches `open` under `fd` no more.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn remove(&self, open: &Arc<OpenFile>, fd: i32) -> Result<()> {
        let mut items = self.items.lock();
        let item = items.remove(&key(open, fd)).ok_or(Errno::ENOENT)?;
        self.end(&item);
        drop(items);
        item.detach();
        Ok(())
    }

    /// The description of a watch is gone.
    pub(super) fn forget(&self, item: &Item) {
        let gone = {
            let mut items = self.items.lock();
            match items.get(&item.key) {
                Some(own) if core::ptr::eq(&**own, item) => {
                    let own = items.remove(&item.key);
                    (own, self.ready.leave(item.place))
                }
                _ => (None, None),
            }
        };
        drop(gone);
    }

    /// Takes everything from a watch that it has from others.
    pub(super) fn end(&self, item: &Item) {
        item.retire();
        drop(self.ready.leave(item.place));
    }

    /// Waits for events, as `how` says or not at all, and writes up to `most` of them to the array
    /// at `to`. Returns how many; none when the time is over.
    ///
    /// # Errors
    /// `EFAULT` if not even one could be written, `EINTR`.
    pub fn wait(&self, to: VirtAddr, most: usize, how: Option<Sleep>) -> Result<usize> {
        loop {
            let count = self.collect(to, most)?;
            let Some(how) = how.filter(|_| count == 0) else {
                return Ok(count);
            };
            let any = || (self.ready.len() > 0).then_some(());
            match self.ready.waiters.wait(how, any) {
                Ok(()) => {}
                Err(Woken::TimedOut) => return self.collect(to, most),
                Err(Woken::Interrupted) => return Err(Errno::EINTR),
            }
        }
    }

    fn collect(&self, to: VirtAddr, most: usize) -> Result<usize> {
        if self.ready.len() == 0 {
            return Ok(0);
        }
        let items = self.items.lock();
        let mut count = 0;
        let mut result = Ok(());
        // Those on the list now, each once: what stays ready goes to its end.
        let mut left = self.ready.len();
        while count < most && left > 0 {
            left -= 1;
            let Some(taken) = self.ready.take() else {
                break;
            };
            let found = taken.item.poll() & taken.interest.ready();
            if found.is_empty() {
                continue;
            }
            let event = epoll_event {
                events: found.bits(),
                data: taken.interest.data,
            };
            if user::write(to + count * size_of::<epoll_event>(), &event).is_err() {
                self.ready.put_back_first(&taken.item);
                result = Err(Errno::EFAULT);
                break;
            }
            count += 1;
            if taken.interest.has(EPOLLONESHOT) {
                let spent = taken.interest.spent();
                self.ready.set_interest(taken.item.place, spent);
            } else if !taken.interest.has(EPOLLET) {
                self.ready.put_back(&taken.item);
            }
        }
        drop(items);
        if self.ready.len() > 0 {
            // The wake-up for the remaining watches came to the thread that collects here.
            self.ready.waiters.wake_one();
        }
        match count {
            0 => result.map(|()| 0),
            _ => Ok(count),
        }
    }

    /// Calls `f` with each watch, until one gives false. Returns whether none did.
    pub(super) fn each_item(&self, f: impl FnMut(&Arc<Item>) -> bool) -> bool {
        self.items.lock_nested().values().all(f)
    }
}

/// Lets the watch see every wake-up of the file from now on; returns the readiness now.
fn observe(item: &Arc<Item>, open: &Arc<OpenFile>, interest: Interest) -> Result<Bits> {
    let mut set = ObserverSet::new(item.clone(), interest.has(EPOLLEXCLUSIVE));
    let found = open.file().poll(Some(&mut set));
    item.observe(set.finish()?);
    item.attach()?;
    Ok(found)
}

impl File for Epoll {
    fn splices(&self) -> bool {
        false
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Bits {
        if let Some(watch) = watch {
            watch.add(&self.ready.pollers);
        }
        if self.ready.len() == 0 {
            return Bits::empty();
        }
        // Asked by an outer epoll, perhaps, which holds its own.
        let _turn = self.items.lock_nested();
        for _ in 0..self.ready.len() {
            let Some(taken) = self.ready.take() else {
                break;
            };
            if taken.item.poll().intersects(taken.interest.ready()) {
                self.ready.put_back_first(&taken.item);
                return Bits::IN | Bits::RDNORM;
            }
        }
        Bits::empty()
    }

    fn ready_now(&self) -> Option<Bits> {
        (self.ready.len() == 0).then_some(Bits::empty())
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[eventpoll]".to_vec()
    }

    fn details(&self, out: &mut dyn FnMut(&[u8])) {
        let fill = |after: Option<Key>, take: &mut dyn FnMut(Key, _) -> bool| {
            let items = self.items.lock();
            let after = after.map_or(Unbounded, Excluded);
            items.range((after, Unbounded)).all(|(key, item)| {
                let interest = self.ready.interest(item.place);
                take(*key, (key.1, interest, item.open.clone()))
            });
        };
        // A description may go away while it is looked at here, and then wants the lock.
        nucleus::visit_by_key(fill, |(fd, interest, open)| {
            let Some(open) = open.upgrade() else {
                return true;
            };
            let Ok(attributes) = open.attributes() else {
                return true;
            };
            let line = format!(
                "tfd: {fd:8} events: {:8x} data: {:16x}  pos:{} ino:{:x} sdev:{:x}\n",
                interest.events,
                interest.data,
                open.file().seek(0, SEEK_CUR).unwrap_or(0),
                attributes.inode,
                attributes.device,
            );
            out(line.as_bytes());
            true
        });
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        for item in core::mem::take(self.items.get_mut()).into_values() {
            self.end(&item);
            item.detach();
        }
    }
}
