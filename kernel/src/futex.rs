//! Futexes: sleeping on a word of a program's memory until another thread wakes it.
//!
//! A waiter enters the bucket of its word and only then compares the word's value, with the bucket's
//! sleeping lock held: who changes the word and wakes afterwards finds it there. Words of
//! private mappings are told apart by address space and address, words of shared ones by
//! object and offset.

use alloc::{collections::VecDeque, sync::Arc};
use core::{
    sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release},
    time::Duration,
};

use abi::{Errno, Result, raw::general as raw};
use nucleus::{
    VirtAddr,
    sync::{Mutex, Rank},
    task::{Sleep, WaitQueue, Woken},
    user,
};

use crate::{
    process::{Own, Space, Thread},
    signal,
};

const BUCKETS: usize = 256;

static TABLE: [Mutex<VecDeque<Entry>>; BUCKETS] =
    [const { Mutex::new(Rank::Futex, VecDeque::new()) }; BUCKETS];

/// Names a word in all address spaces that can reach it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Address of the address space, or of the object.
    owner: usize,
    /// Address in the space, or byte in the object.
    offset: u64,
    shared: bool,
}

struct Entry {
    key: Key,
    bits: u32,
    waiter: Arc<Waiter>,
}

/// What a thread sleeps on; each has one, since it waits for one word at a time.
pub struct Waiter {
    woken: AtomicBool,
    queue: WaitQueue,
}

impl Waiter {
    /// Not waiting.
    pub fn new() -> Arc<Waiter> {
        Arc::new(Waiter {
            woken: AtomicBool::new(false),
            queue: WaitQueue::new(),
        })
    }

    fn wake(&self) {
        self.woken.store(true, Release);
        self.queue.wake_all();
    }
}

impl Key {
    /// The key of the word at `address`; `private` if the program promises that no other address space shares it.
    ///
    /// # Errors
    /// `EINVAL` if the address is not aligned, `EFAULT` if it can't be a program's.
    pub fn new(space: &Arc<Space>, address: VirtAddr, private: bool) -> Result<Key> {
        if !address.0.is_multiple_of(4) {
            return Err(Errno::EINVAL);
        }
        if address.0 >= nucleus::addr::USER_END.0 {
            return Err(Errno::EFAULT);
        }
        if !private && let Some((owner, offset)) = space.map().shared_location(address) {
            return Ok(Key {
                owner,
                offset,
                shared: true,
            });
        }
        Ok(Key {
            owner: Arc::as_ptr(space.map()) as usize,
            offset: address.0 as u64,
            shared: false,
        })
    }

    fn bucket(&self) -> &'static Mutex<VecDeque<Entry>> {
        let mixed = (self.owner as u64 ^ self.offset.rotate_left(20) ^ self.offset >> 2)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &TABLE[(mixed >> 56) as usize % BUCKETS]
    }
}

fn load(address: VirtAddr) -> Result<u32> {
    user::load_u32(address).map_err(|_| Errno::EFAULT)
}

/// `FUTEX_WAIT_BITSET`: sleeps while the word is `expected`, until a wake-up with one of `bits` or `deadline` (since boot).
///
/// # Errors
/// `EAGAIN` if the word is another, `ETIMEDOUT`, a restart number if a signal came.
pub fn wait(
    thread: &Thread,
    key: Key,
    address: VirtAddr,
    expected: u32,
    bits: u32,
    deadline: Option<Duration>,
) -> Result<()> {
    if bits == 0 {
        return Err(Errno::EINVAL);
    }
    let waiter = &thread.futex;
    waiter.woken.store(false, Release);
    {
        let mut bucket = key.bucket().lock();
        if load(address)? != expected {
            return Err(Errno::EAGAIN);
        }
        bucket.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        bucket.push_back(Entry {
            key,
            bits,
            waiter: waiter.clone(),
        });
    }
    let slept = waiter.queue.wait(
        Sleep {
            interruptible: true,
            deadline,
        },
        || waiter.woken.load(Acquire).then_some(()),
    );
    let Err(why) = slept else { return Ok(()) };
    if !withdraw(waiter, key) {
        // Woken in the last moment, and the waker counted it.
        return Ok(());
    }
    Err(match why {
        Woken::TimedOut => Errno::ETIMEDOUT,
        Woken::Interrupted => signal::ERESTARTSYS,
    })
}

/// Takes a waiter out of its bucket, which may no longer be that of `key`; false if it was woken before.
fn withdraw(waiter: &Arc<Waiter>, key: Key) -> bool {
    let remove = |bucket: &Mutex<VecDeque<Entry>>| {
        let mut bucket = bucket.lock();
        let at = bucket
            .iter()
            .position(|entry| Arc::ptr_eq(&entry.waiter, waiter));
        at.map(|at| bucket.remove(at)).is_some()
    };
    if remove(key.bucket()) {
        return true;
    }
    // Moved by a requeue to another word, or woken.
    while !waiter.woken.load(Acquire) {
        if TABLE.iter().any(remove) {
            return true;
        }
    }
    false
}

/// Wakes up to `count` waiters with one of `bits`; returns how many.
pub fn wake(key: Key, count: usize, bits: u32) -> usize {
    let mut bucket = key.bucket().lock();
    wake_in(&mut bucket, key, count, bits)
}

fn wake_in(bucket: &mut VecDeque<Entry>, key: Key, count: usize, bits: u32) -> usize {
    let mut woken = 0;
    if count > 0 {
        bucket.retain(|entry| {
            let wakes = woken < count && entry.key == key && entry.bits & bits != 0;
            if wakes {
                woken += 1;
                entry.waiter.wake();
            }
            !wakes
        });
    }
    woken
}

/// Runs `f` with the buckets of both keys, the second one `None` if it is the same.
fn with_both<R>(
    one: Key,
    two: Key,
    f: impl FnOnce(&mut VecDeque<Entry>, Option<&mut VecDeque<Entry>>) -> R,
) -> R {
    let (a, b) = (one.bucket(), two.bucket());
    if core::ptr::eq(a, b) {
        return f(&mut a.lock(), None);
    }
    let (mut a, mut b) = Mutex::lock_pair(a, b);
    f(&mut a, Some(&mut b))
}

/// `FUTEX_REQUEUE` and `FUTEX_CMP_REQUEUE`: wakes up to `wakes` waiters of `from` and moves up to `moves` others to `to`.
/// Returns those woken and those moved.
///
/// # Errors
/// `EAGAIN` if the word is not `expected`.
pub fn requeue(
    from: Key,
    to: Key,
    wakes: usize,
    moves: usize,
    expected: Option<(VirtAddr, u32)>,
) -> Result<(usize, usize)> {
    with_both(from, to, |source, mut target| {
        if let Some((address, value)) = expected
            && load(address)? != value
        {
            return Err(Errno::EAGAIN);
        }
        let woken = wake_in(source, from, wakes, u32::MAX);
        if from == to {
            return Ok((
                woken,
                source.iter().filter(|e| e.key == from).take(moves).count(),
            ));
        }
        let mut moved = 0;
        let mut at = 0;
        while at < source.len() && moved < moves {
            if source[at].key != from {
                at += 1;
                continue;
            }
            moved += 1;
            match &mut target {
                None => {
                    source[at].key = to;
                    at += 1;
                }
                Some(target) => {
                    target.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                    if let Some(mut entry) = source.remove(at) {
                        entry.key = to;
                        target.push_back(entry);
                    }
                }
            }
        }
        Ok((woken, moved))
    })
}

/// `FUTEX_WAKE_OP`: changes the word of `two` as `operation` says, wakes waiters of `one`, and those of `two` if
/// the old value compares as it says.
///
/// # Errors
/// `EFAULT`, `ENOSYS` for an unknown operation.
pub fn wake_op(
    one: Key,
    two: Key,
    address: VirtAddr,
    wakes_one: usize,
    wakes_two: usize,
    operation: u32,
) -> Result<usize> {
    let sign_extend = |value: u32| ((value << 20) as i32) >> 20;
    let mut argument = sign_extend(operation >> 12 & 0xfff) as u32;
    let compare_to = sign_extend(operation & 0xfff);
    let kind = operation >> 28;
    if kind & raw::FUTEX_OP_OPARG_SHIFT != 0 {
        argument = 1 << (argument & 31);
    }
    with_both(one, two, |first, second| {
        let old = loop {
            let old = load(address)?;
            let new = match kind & 7 {
                raw::FUTEX_OP_SET => argument,
                raw::FUTEX_OP_ADD => old.wrapping_add(argument),
                raw::FUTEX_OP_OR => old | argument,
                raw::FUTEX_OP_ANDN => old & !argument,
                raw::FUTEX_OP_XOR => old ^ argument,
                _ => return Err(Errno::ENOSYS),
            };
            if user::compare_exchange_u32(address, old, new).map_err(|_| Errno::EFAULT)? == old {
                break old as i32;
            }
        };
        let holds = match operation >> 24 & 15 {
            raw::FUTEX_OP_CMP_EQ => old == compare_to,
            raw::FUTEX_OP_CMP_NE => old != compare_to,
            raw::FUTEX_OP_CMP_LT => old < compare_to,
            raw::FUTEX_OP_CMP_LE => old <= compare_to,
            raw::FUTEX_OP_CMP_GT => old > compare_to,
            raw::FUTEX_OP_CMP_GE => old >= compare_to,
            _ => return Err(Errno::ENOSYS),
        };
        let mut woken = wake_in(first, one, wakes_one, u32::MAX);
        if holds {
            woken += wake_in(second.unwrap_or(first), two, wakes_two, u32::MAX);
        }
        Ok(woken)
    })
}

/// How many entries of a robust list are looked at, as on Linux: the list may be a circle.
const ROBUST_LIST_MAX: usize = 2048;

/// The thread leaves its address space, by its end or by `execve`: locks that it holds are marked as those of a
/// dead owner, and who waits for its end is woken.
pub fn leave(thread: &Thread, own: &mut Own) {
    if own.robust_list != 0 {
        // A list that can't be read any further says nothing more.
        let _ = release_robust(thread, own);
        own.robust_list = 0;
    }
    let address = core::mem::take(&mut own.clear_child_tid);
    if address != 0 && Arc::strong_count(&own.space) > 2 {
        let address = VirtAddr(address as usize);
        if user::write(address, &0u32).is_ok()
            && let Ok(key) = Key::new(&own.space, address, false)
        {
            wake(key, 1, u32::MAX);
        }
    }
}

fn release_robust(thread: &Thread, own: &Own) -> Result<()> {
    let word = |address: u64| -> Result<u64> {
        user::read(VirtAddr(address as usize)).map_err(|_| Errno::EFAULT)
    };
    let head = own.robust_list;
    let offset = word(head.wrapping_add(8))?;
    let pending = word(head.wrapping_add(16))? & !1;
    let mut entry = word(head)?;
    let mut seen = 0;
    while entry & !1 != head && seen < ROBUST_LIST_MAX {
        // The next link is read first: the owner's death may free the entry.
        let next = word(entry & !1);
        if entry & !1 != pending {
            mark_dead(thread, own, (entry & !1).wrapping_add(offset), false)?;
        }
        entry = next?;
        seen += 1;
    }
    if pending != 0 {
        mark_dead(thread, own, pending.wrapping_add(offset), true)?;
    }
    Ok(())
}

/// Marks one lock, if the thread holds it, and wakes one waiter.
fn mark_dead(thread: &Thread, own: &Own, address: u64, pending: bool) -> Result<()> {
    let address = VirtAddr(address as usize);
    let key = Key::new(&own.space, address, false)?;
    loop {
        let value = load(address)?;
        if pending && value == 0 {
            // The owner died between giving up the lock and waking: somebody else must be woken for it.
            wake(key, 1, u32::MAX);
            return Ok(());
        }
        if value & raw::FUTEX_TID_MASK != thread.tid() {
            return Ok(());
        }
        let dead = value & raw::FUTEX_WAITERS | raw::FUTEX_OWNER_DIED;
        let old = user::compare_exchange_u32(address, value, dead).map_err(|_| Errno::EFAULT)?;
        if old == value {
            if value & raw::FUTEX_WAITERS != 0 {
                wake(key, 1, u32::MAX);
            }
            return Ok(());
        }
    }
}
