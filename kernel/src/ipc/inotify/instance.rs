//! The open file of an inotify, and its watches.

use alloc::{boxed::Box, collections::BTreeMap, format, sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use abi::{
    Errno, Result,
    raw::{
        general::{
            IN_ALL_EVENTS, IN_DELETE_SELF, IN_EXCL_UNLINK, IN_IGNORED, IN_ISDIR, IN_MASK_ADD,
            IN_MASK_CREATE, IN_MOVE_SELF, IN_ONESHOT, IN_UNMOUNT, O_NONBLOCK,
        },
        ioctl::FIONREAD,
    },
};
use core::ops::Bound::{Excluded, Unbounded};
use fbuf::Sink;
use fs::{
    Asynchronous, File, OpenFlags, Ready, Vnode,
    notify::{self, Event, Listener, Mark},
};

use nucleus::{
    VirtAddr, frame,
    sync::{Rank, SpinLock},
    task::{self, WaitQueue},
    user,
};

use super::{
    INSTANCES, WATCHES,
    queue::{Queue, Queued},
};
use vm::account::{Account, Charge, Kind::InotifyInstances, Stock};

use crate::process::signal;

/// A queue of the events of watched files.
pub struct Inotify {
    shared: Arc<Shared>,
    /// The account of the process that made it, for the watches.
    account: Arc<Account>,
    _charge: Charge,
}

/// The state that watches share with the instance: memory only, so that the reporter of an event
/// may drop the last handle.
struct Shared {
    state: SpinLock<State>,
    readers: WaitQueue,
}

struct State {
    queue: Queue,
    watches: BTreeMap<i32, Arc<Watch>>,
    /// Their numbers, by vnode.
    numbers: BTreeMap<usize, i32>,
    /// The number that was given last.
    last: i32,
}

struct Watch {
    shared: Arc<Shared>,
    number: i32,
    key: usize,
    /// `IN_*`: the events and options of the watch.
    mask: AtomicU32,
    mark: SpinLock<Option<Mark>>,
    charge: SpinLock<Option<Charge>>,
}

impl Inotify {
    /// Watches nothing; it and its watches are charged to `account`.
    ///
    /// # Errors
    /// `EMFILE` for too many, `ENOMEM`.
    pub fn new(account: Arc<Account>) -> Result<Arc<Inotify>> {
        frame::check_not_scarce()?;
        let charge = INSTANCES.charge(&account).ok_or(Errno::EMFILE)?;
        Ok(Arc::new(Inotify {
            shared: Arc::new(Shared {
                state: SpinLock::new(
                    fs::rank::NOTIFY,
                    State {
                        queue: Queue::new(Stock::new(Some(account.clone()), InotifyInstances)),
                        watches: BTreeMap::new(),
                        numbers: BTreeMap::new(),
                        last: 0,
                    },
                ),
                readers: WaitQueue::default(),
            }),
            account,
            _charge: charge,
        }))
    }

    /// Watches `vnode`, or changes the events of its watch, as `mask` (`IN_*`) says; returns the
    /// number of the watch.
    ///
    /// # Errors
    /// `EEXIST` with `IN_MASK_CREATE`, `ENOSPC` for too many watches, `ENOMEM`.
    pub fn add(&self, vnode: &Arc<dyn Vnode>, mask: u32) -> Result<i32> {
        frame::check_not_scarce()?;
        let key = notify::key(vnode);
        let kept = mask & (IN_ALL_EVENTS | IN_EXCL_UNLINK | IN_ONESHOT);
        let mut new = None;
        let watch = loop {
            let mut state = self.shared.state.lock();
            if let Some(watch) = state.numbers.get(&key).and_then(|n| state.watches.get(n)) {
                if mask & IN_MASK_CREATE != 0 {
                    return Err(Errno::EEXIST);
                }
                match mask & IN_MASK_ADD {
                    0 => watch.mask.store(kept, Relaxed),
                    _ => _ = watch.mask.fetch_or(kept, Relaxed),
                }
                return Ok(watch.number);
            }
            let Some(charge) = new.take() else {
                drop(state);
                new = Some(WATCHES.charge(&self.account).ok_or(Errno::ENOSPC)?);
                continue;
            };
            let number = state.next_number();
            let watch = Arc::new(Watch {
                shared: self.shared.clone(),
                number,
                key,
                mask: AtomicU32::new(kept),
                mark: SpinLock::new(Rank::Leaf, None),
                charge: SpinLock::new(Rank::Leaf, Some(charge)),
            });
            state.watches.insert(number, watch.clone());
            state.numbers.insert(key, number);
            break watch;
        };
        let mark = match Mark::new(vnode, watch.clone()) {
            Ok(mark) => mark,
            Err(error) => {
                watch.end(false);
                return Err(error);
            }
        };
        *watch.mark.lock() = Some(mark);
        // Another thread may have removed it already.
        if !self.shared.state.lock().lists(&watch) {
            watch.forget_mark();
        }
        Ok(watch.number)
    }

    /// Ends a watch.
    ///
    /// # Errors
    /// `EINVAL` if there is none of this number.
    pub fn remove(&self, number: i32) -> Result<()> {
        let watch = self.shared.state.lock().watches.get(&number).cloned();
        match watch.is_some_and(|watch| watch.end(true)) {
            true => Ok(()),
            false => Err(Errno::EINVAL),
        }
    }

    /// Reads events that fit, but does not wait for any; `None` if there is none.
    fn read_some(&self, to: &mut dyn Sink) -> Option<Result<usize>> {
        let mut total = 0;
        loop {
            let event = {
                let mut state = self.shared.state.lock();
                match state.queue.first_size() {
                    None if total == 0 => return None,
                    Some(size) if size > to.room() && total == 0 => {
                        return Some(Err(Errno::EINVAL));
                    }
                    Some(size) if size <= to.room() => state.queue.pop(),
                    _ => None,
                }
            };
            let Some(event) = event else {
                return Some(Ok(total));
            };
            match put(&event, to) {
                Ok(size) => total += size,
                Err(error) => return Some(fbuf::moved(total, Err(error))),
            }
        }
    }
}

fn put(event: &Queued, to: &mut dyn Sink) -> Result<usize> {
    let head = event.head();
    let size = event.size();
    to.put_bytes(&head)?;
    if !event.name.is_empty() {
        to.put_bytes(&event.name)?;
        to.put_zeros(size - head.len() - event.name.len())?;
    }
    Ok(size)
}

impl State {
    /// Whether `watch` has not been taken off.
    fn lists(&self, watch: &Watch) -> bool {
        let listed = self.watches.get(&watch.number);
        listed.is_some_and(|listed| core::ptr::eq(&**listed, watch))
    }

    /// Numbers rise and are used again only after all of them.
    fn next_number(&mut self) -> i32 {
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            if !self.watches.contains_key(&self.last) {
                return self.last;
            }
        }
    }
}

impl Watch {
    fn forget_mark(&self) {
        let mark = self.mark.lock().take();
        drop(mark);
        let charge = self.charge.lock().take();
        drop(charge);
    }

    /// Takes the watch off, and says so in the queue if `said`. Returns whether it was there.
    fn end(&self, said: bool) -> bool {
        let gone = {
            let mut state = self.shared.state.lock();
            if !state.lists(self) {
                return false;
            }
            state.numbers.remove(&self.key);
            if said {
                state.queue.push(Queued {
                    watch: self.number,
                    mask: IN_IGNORED,
                    cookie: 0,
                    name: Box::default(),
                });
            }
            state.watches.remove(&self.number)
        };
        self.forget_mark();
        self.shared.readers.wake_shared(false);
        drop(gone);
        true
    }
}

impl Listener for Watch {
    fn told(&self, event: &Event<'_>) {
        let wanted = self.mask.load(Relaxed);
        let happened = event.mask & (IN_ALL_EVENTS | IN_UNMOUNT);
        if happened & (wanted | IN_UNMOUNT) == 0 {
            return;
        }
        if event.removed && event.name.is_some() && wanted & IN_EXCL_UNLINK != 0 {
            return;
        }
        let mut mask = event.mask;
        if mask & (IN_DELETE_SELF | IN_MOVE_SELF) != 0 {
            // Linux sets the bit only for events outside of it.
            mask &= !IN_ISDIR;
        }
        // Where memory is scarce, others need it more: the event is lost.
        let room = frame::check_not_scarce().map_err(Errno::from);
        let name = room.and_then(|()| copy(event.name.unwrap_or_default()));
        {
            let mut state = self.shared.state.lock();
            if !state.lists(self) {
                return;
            }
            match name {
                Ok(name) => state.queue.push(Queued {
                    watch: self.number,
                    mask,
                    cookie: event.cookie,
                    name,
                }),
                Err(_) => state.queue.overflow(),
            }
        }
        if wanted & IN_ONESHOT != 0 {
            self.end(true);
        }
        self.shared.readers.wake_shared(false);
    }

    fn ended(&self) {
        self.end(true);
    }
}

fn copy(name: &[u8]) -> Result<Box<[u8]>> {
    Ok(nucleus::try_copy(name)?.into_boxed_slice())
}

impl File for Inotify {
    fn splices(&self) -> bool {
        false
    }

    fn read(&self, _: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        let wait = !flags.has(O_NONBLOCK);
        signal::take_or_wait(&self.shared.readers, wait, || self.read_some(to))?
    }

    fn seek(&self, _: i64, _: u32) -> Result<u64> {
        Ok(0)
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn task::Watch<'a>>) -> Ready {
        if let Some(watch) = watch {
            watch.add(&self.shared.readers);
        }
        Ready::of(!self.shared.state.lock().queue.is_empty(), false)
    }

    fn asynchronous(&self) -> Asynchronous {
        Asynchronous::Named
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        match command {
            FIONREAD => {
                let bytes = self.shared.state.lock().queue.bytes();
                user::write(argument, &(bytes as i32))?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:inotify".to_vec()
    }

    fn details(&self, out: &mut dyn FnMut(&[u8])) {
        let fill = |after: Option<i32>, take: &mut dyn FnMut(i32, Arc<Watch>) -> bool| {
            let state = self.shared.state.lock();
            let after = after.map_or(Unbounded, Excluded);
            let mut rest = state.watches.range((after, Unbounded));
            rest.all(|(number, watch)| take(*number, watch.clone()));
        };
        nucleus::visit_by_key(fill, |watch| {
            let vnode = watch.mark.lock().as_ref().and_then(Mark::vnode);
            let Some(Ok(attributes)) = vnode.map(|vnode| vnode.attributes()) else {
                return true;
            };
            let line = format!(
                "inotify wd:{:x} ino:{:x} sdev:{:x} mask:{:x} ignored_mask:0 \n",
                watch.number,
                attributes.inode,
                attributes.device,
                watch.mask.load(Relaxed) & !IN_ONESHOT,
            );
            out(line.as_bytes());
            true
        });
    }
}

impl Drop for Inotify {
    fn drop(&mut self) {
        let watches = core::mem::take(&mut self.shared.state.lock().watches);
        for watch in watches.into_values() {
            watch.forget_mark();
        }
    }
}
