//! The common part of sockets: type, pending error, and the options of `SOL_SOCKET`.

use alloc::sync::Arc;
use core::{
    ops::Deref,
    sync::atomic::{
        AtomicI32, AtomicU32, AtomicU64, AtomicUsize,
        Ordering::{AcqRel, Relaxed},
    },
    time::Duration,
};

use abi::{
    Errno, Result,
    raw::{
        general::{CAP_NET_ADMIN, CAP_NET_RAW},
        net as raw,
    },
};
use nucleus::{
    VirtAddr,
    task::WaitQueue,
    time,
    user::{self, as_bytes},
};

use vm::account::{Account, Charge, Kind};

use super::{
    Answer, PeerCredentials, Socket, Value, control::ControlSink, inet::interface as device,
};
use crate::{
    bpf::{Program, Use},
    flags::{FlagSet, choice},
    process::thread,
};

/// Bytes of both buffers of a new socket: what half of them, for data, and Linux's own bookkeeping
/// make.
pub const DEFAULT_BUFFER: usize = 212_992;
/// The most that a program which is not root may ask for (`net.core.wmem_max`, `rmem_max`); it gets
/// the double.
const BUFFER_MAX: usize = 212_992;
/// What a socket without data is charged with, in bytes: its records and its open file.
const SOCKET_BYTES: usize = 2048;
/// Bytes of the name of an interface, with the zero behind it.
const DEVICE_NAME: usize = 16;
/// The smallest buffers that there are.
const MIN_SEND_BUFFER: usize = 4608;
const MIN_RECEIVE_BUFFER: usize = 2304;

/// Declares the common options, those that are on or off and others: what `setsockopt` and
/// `getsockopt` know.
macro_rules! options {
    (
        switches: $($switch:ident)*;
        settable: $($set:ident)*;
        readable: $($get:ident)*;
        both: $($both:ident)*;
    ) => {
        /// The common options that `setsockopt` knows.
        pub const SETTABLE: FlagSet = choice!(
            "optname of SOL_SOCKET",
            [$(raw::$switch,)* $(raw::$set,)* $(raw::$both,)*],
            ENOPROTOOPT
        );

        /// The common options that `getsockopt` knows.
        pub const READABLE: FlagSet = choice!(
            "optname of SOL_SOCKET",
            [$(raw::$switch,)* $(raw::$get,)* $(raw::$both,)*],
            ENOPROTOOPT
        );

        /// Whether an option is on or off and nothing else.
        fn is_switch(name: u32) -> bool {
            matches!(name, $(raw::$switch)|*)
        }
    };
}

options! {
    switches: SO_DEBUG SO_REUSEADDR SO_DONTROUTE SO_BROADCAST SO_KEEPALIVE SO_OOBINLINE
        SO_REUSEPORT SO_PASSCRED SO_TIMESTAMP_OLD SO_TIMESTAMPNS_OLD SO_RXQ_OVFL SO_ZEROCOPY;
    settable: SO_SNDBUFFORCE SO_RCVBUFFORCE SO_ATTACH_FILTER SO_DETACH_FILTER;
    readable: SO_TYPE SO_ERROR SO_PEERCRED SO_PEERGROUPS SO_PEERNAME SO_SNDLOWAT SO_ACCEPTCONN
        SO_PROTOCOL SO_DOMAIN SO_COOKIE;
    both: SO_SNDBUF SO_RCVBUF SO_PRIORITY SO_LINGER SO_RCVLOWAT SO_RCVTIMEO_OLD SO_SNDTIMEO_OLD
        SO_RCVTIMEO_NEW SO_SNDTIMEO_NEW SO_MARK SO_PEEK_OFF SO_BINDTODEVICE SO_BINDTOIFINDEX;
}

/// To be embedded in a socket.
pub struct Common {
    /// `AF_*`.
    pub domain: u32,
    /// `SOCK_*`.
    pub kind: u32,
    /// The protocol's number.
    pub protocol: u32,
    /// The number that `stat` and `/proc/PID/fd` show.
    pub inode: u64,
    /// User and group id of the maker.
    pub owner: (u32, u32),
    /// What the socket without its data is charged with.
    charge: Option<Charge>,
    /// Since the epoch.
    pub created: Duration,
    /// The number of a pending error, 0 for none.
    error: AtomicU32,
    /// Bit by option number: those that are on or off.
    switches: AtomicU64,
    send_buffer: AtomicUsize,
    receive_buffer: AtomicUsize,
    /// Nanoseconds; 0 for ever.
    send_timeout: AtomicU64,
    receive_timeout: AtomicU64,
    receive_low_water: AtomicI32,
    /// Where the next look begins, in bytes; negative at the first one always.
    peek_offset: AtomicI32,
    /// Seconds above the lowest bit, which says whether to linger.
    linger: AtomicU64,
    priority: AtomicI32,
    mark: AtomicU32,
    /// The number of the interface to which it is bound; 0 for none.
    device: AtomicU32,
}

/// The common part of a socket whose protocol has no wait queues of its own.
pub struct Waited {
    common: Common,
    /// Woken when there is something to receive, to accept, or an end; and after errors.
    pub readers: WaitQueue,
    /// Woken when there is room to send, when a connection is made, or its end; and after errors.
    pub writers: WaitQueue,
}

impl Waited {
    /// As [`Common::new`].
    pub fn new(domain: u32, kind: u32, protocol: u32) -> Waited {
        Waited {
            common: Common::new(domain, kind, protocol),
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
        }
    }

    /// Acts on a change of the option `name`: more room wakes writers.
    pub fn option_changed(&self, name: u32) {
        if matches!(name, raw::SO_SNDBUF | raw::SO_SNDBUFFORCE) {
            self.writers.wake_all();
        }
    }

    /// Wakes all waiters.
    pub fn wake(&self) {
        self.readers.wake_all();
        self.writers.wake_all();
    }
}

impl Deref for Waited {
    type Target = Common;

    #[inline]
    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Common {
    /// Of a socket of the family `domain` (`AF_*`), of type `kind` (`SOCK_*`), owned by the current
    /// thread.
    pub fn new(domain: u32, kind: u32, protocol: u32) -> Common {
        static INODES: AtomicU64 = AtomicU64::new(1);
        let made = thread::with_current(|thread| {
            let account = thread.process().account();
            let charge = account.charge(Kind::Sockets, 1, SOCKET_BYTES);
            (Some(charge), thread.owner())
        });
        let (charge, owner) = made.unwrap_or_default();
        Common {
            domain,
            kind,
            protocol,
            inode: INODES.fetch_add(1, Relaxed),
            owner,
            charge,
            created: time::since_epoch(),
            error: AtomicU32::new(0),
            switches: AtomicU64::new(0),
            send_buffer: AtomicUsize::new(DEFAULT_BUFFER),
            receive_buffer: AtomicUsize::new(DEFAULT_BUFFER),
            send_timeout: AtomicU64::new(0),
            receive_timeout: AtomicU64::new(0),
            receive_low_water: AtomicI32::new(1),
            peek_offset: AtomicI32::new(-1),
            linger: AtomicU64::new(0),
            priority: AtomicI32::new(0),
            mark: AtomicU32::new(0),
            device: AtomicU32::new(0),
        }
    }

    /// Returns the account of its maker; `None` for a socket of the kernel's own.
    pub fn account(&self) -> Option<&Arc<Account>> {
        self.charge.as_ref().map(Charge::account)
    }

    /// Leaves an error for the next call; the caller wakes the waiters.
    pub fn set_error(&self, error: Errno) {
        self.error.store(error.number().into(), Relaxed);
    }

    /// Takes the pending error, if there is one (`SO_ERROR`, and calls that report it).
    pub fn take_error(&self) -> Option<Errno> {
        if self.error.load(Relaxed) == 0 {
            return None;
        }
        match self.error.swap(0, AcqRel) {
            0 => None,
            number => Some(Errno::internal(number as u16)),
        }
    }

    /// Whether an error is pending.
    pub fn has_error(&self) -> bool {
        self.error.load(Relaxed) != 0
    }

    /// Whether the option `name`, one that is on or off, is on.
    #[inline]
    pub fn is_on(&self, name: u32) -> bool {
        debug_assert!(is_switch(name));
        self.switches.load(Relaxed) & 1 << name != 0
    }

    /// Sets an option that is on or off.
    pub fn switch(&self, name: u32, on: bool) {
        debug_assert!(is_switch(name));
        if on {
            self.switches.fetch_or(1 << name, Relaxed);
        } else {
            self.switches.fetch_and(!(1 << name), Relaxed);
        }
    }

    /// Bytes that may wait to be received by others (`SO_SNDBUF`).
    pub fn send_buffer(&self) -> usize {
        self.send_buffer.load(Relaxed)
    }

    /// Bytes that may wait to be received (`SO_RCVBUF`).
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer.load(Relaxed)
    }

    /// Sets both sizes as they are (for a family with other ones, or a connection that takes over
    /// its listener's).
    pub fn set_buffers(&self, send: usize, receive: usize) {
        self.send_buffer.store(send, Relaxed);
        self.receive_buffer.store(receive, Relaxed);
    }

    /// Takes over the options of a listener, for a connection that it accepts.
    pub fn inherit(&self, from: &Common) {
        for (to, from) in [
            (&self.switches, &from.switches),
            (&self.send_timeout, &from.send_timeout),
            (&self.receive_timeout, &from.receive_timeout),
            (&self.linger, &from.linger),
        ] {
            to.store(from.load(Relaxed), Relaxed);
        }
        self.set_buffers(from.send_buffer(), from.receive_buffer());
        let low_water = from.receive_low_water.load(Relaxed);
        self.receive_low_water.store(low_water, Relaxed);
        self.priority.store(from.priority(), Relaxed);
        self.mark.store(from.mark.load(Relaxed), Relaxed);
        self.device.store(from.device(), Relaxed);
    }

    /// Returns the place of the timeout `name`, and whether its value has the program's own layout
    /// instead of one of 64-bit numbers.
    fn timeout(&self, name: u32) -> (&AtomicU64, bool) {
        match name {
            raw::SO_RCVTIMEO_OLD | raw::SO_RCVTIMEO_NEW => {
                (&self.receive_timeout, name == raw::SO_RCVTIMEO_OLD)
            }
            _ => (&self.send_timeout, name == raw::SO_SNDTIMEO_OLD),
        }
    }

    /// Adds the time at which a message was sent, since the epoch, if the program asked for it.
    pub fn put_time(&self, control: &mut ControlSink, at: Duration) {
        let (kind, fraction) = if self.is_on(raw::SO_TIMESTAMP_OLD) {
            (raw::SCM_TIMESTAMP, at.subsec_micros())
        } else if self.is_on(raw::SO_TIMESTAMPNS_OLD) {
            (raw::SCM_TIMESTAMPNS, at.subsec_nanos())
        } else {
            return;
        };
        let parts = [at.as_secs(), fraction.into()];
        control.put(raw::SOL_SOCKET, kind, as_bytes(&parts));
    }

    /// How long sending may wait.
    pub fn send_timeout(&self) -> Option<Duration> {
        timeout(&self.send_timeout)
    }

    /// How long receiving may wait.
    pub fn receive_timeout(&self) -> Option<Duration> {
        timeout(&self.receive_timeout)
    }

    /// The fewest bytes that receiving waits for (`SO_RCVLOWAT`), 1 at least.
    pub fn receive_low_water(&self) -> usize {
        self.receive_low_water.load(Relaxed).max(1) as usize
    }

    /// How many bytes the next look (`MSG_PEEK`) leaves out, where the program has asked for looks
    /// that go on (`SO_PEEK_OFF`).
    pub fn peek_from(&self) -> Option<usize> {
        usize::try_from(self.peek_offset.load(Relaxed)).ok()
    }

    /// Notes that a call received or looked at `bytes` bytes: the place of the next look moves with
    /// that, if the program has asked for such a place.
    pub fn note_received(&self, bytes: usize, peeks: bool) {
        let old = self.peek_offset.load(Relaxed);
        if old < 0 || bytes == 0 {
            return;
        }
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        let new = match peeks {
            true => old.saturating_add(bytes),
            false => (old - bytes).max(0),
        };
        self.peek_offset.store(new, Relaxed);
    }

    /// How long closing may wait for data to be sent (`SO_LINGER`).
    pub fn linger(&self) -> Option<Duration> {
        let linger = self.linger.load(Relaxed);
        (linger & 1 != 0).then(|| Duration::from_secs(linger >> 1))
    }

    /// Returns the number of the interface to which it is bound (`SO_BINDTODEVICE`); 0 for none.
    pub fn device(&self) -> u32 {
        self.device.load(Relaxed)
    }

    /// `SO_PRIORITY`.
    pub fn priority(&self) -> i32 {
        self.priority.load(Relaxed)
    }
}

fn timeout(nanoseconds: &AtomicU64) -> Option<Duration> {
    match nanoseconds.load(Relaxed) {
        0 => None,
        nanoseconds => Some(Duration::from_nanos(nanoseconds)),
    }
}

/// Whether the current thread has a capability (`CAP_*`).
pub(super) fn may(capability: u32) -> bool {
    thread::current_shared().is_some_and(|shared| shared.credentials.may(capability))
}

/// The privileges of a network administrator, and of a user of raw sockets.
fn may_mark() -> bool {
    may(CAP_NET_RAW) || may(CAP_NET_ADMIN)
}

/// Sets one of the options in [`SETTABLE`].
///
/// # Errors
/// As Linux.
pub fn set(socket: &dyn Socket, name: u32, value: &Value) -> Result<()> {
    let common = socket.common();
    match name {
        raw::SO_RCVTIMEO_OLD
        | raw::SO_RCVTIMEO_NEW
        | raw::SO_SNDTIMEO_OLD
        | raw::SO_SNDTIMEO_NEW => {
            let (place, is_old) = common.timeout(name);
            let nanoseconds = value.timeval(is_old)?.map_or(0, |time| {
                u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
            });
            place.store(nanoseconds, Relaxed);
        }
        raw::SO_LINGER => {
            let [on, seconds]: [i32; 2] = value.read()?;
            let seconds = u64::from(seconds.max(0) as u32);
            common
                .linger
                .store(seconds << 1 | u64::from(on != 0), Relaxed);
        }
        raw::SO_PEEK_OFF if !socket.looks_from_a_place() => return Err(Errno::EOPNOTSUPP),
        raw::SO_PEEK_OFF => common.peek_offset.store(value.int()?, Relaxed),
        raw::SO_ZEROCOPY if !socket.completes_sends() => return Err(Errno::EOPNOTSUPP),
        raw::SO_ZEROCOPY => {
            let value = value.int()?;
            if !(0..=1).contains(&value) {
                return Err(Errno::EINVAL);
            }
            common.switch(name, value != 0);
        }
        raw::SO_ATTACH_FILTER => return socket.set_filter(Some(read_filter(value)?)),
        raw::SO_DETACH_FILTER => return socket.set_filter(None),
        raw::SO_BINDTODEVICE | raw::SO_BINDTOIFINDEX => {
            let index = match name {
                raw::SO_BINDTODEVICE => {
                    let mut name = [0; DEVICE_NAME];
                    let n = value.bytes(&mut name[..DEVICE_NAME - 1])?;
                    device::index_of(&name[..n])?
                }
                _ => {
                    let index = value.int()?;
                    device::check_index(index)?;
                    index as u32
                }
            };
            // A first binding takes nothing from anybody.
            if common.device() != 0 && !may(CAP_NET_RAW) {
                return Err(Errno::EPERM);
            }
            common.device.store(index, Relaxed);
            socket.option_changed(raw::SO_BINDTODEVICE);
            return Ok(());
        }
        _ => set_int(common, name, value.int()?)?,
    }
    socket.option_changed(name);
    Ok(())
}

/// Reads a `struct sock_fprog` and the filter that it names.
fn read_filter(value: &Value) -> Result<Program> {
    let (count, first) = if value.compatible {
        let [count, first]: [u32; 2] = value.read()?;
        (count as u16, first as usize)
    } else {
        let [count, first]: [u64; 2] = value.read()?;
        (count as u16, first as usize)
    };
    Program::new(Use::Socket, count.into(), |n| {
        let at = VirtAddr(first.wrapping_add(n * 8));
        user::read(at).map_err(|_| Errno::EFAULT)
    })
}

fn set_int(common: &Common, name: u32, value: i32) -> Result<()> {
    match name {
        raw::SO_SNDBUF | raw::SO_SNDBUFFORCE | raw::SO_RCVBUF | raw::SO_RCVBUFFORCE => {
            let forced = matches!(name, raw::SO_SNDBUFFORCE | raw::SO_RCVBUFFORCE);
            if forced && !may(CAP_NET_ADMIN) {
                return Err(Errno::EPERM);
            }
            // A negative number is a large one, and cut to the limit; by force it is the smallest.
            let asked = match forced {
                true => value.max(0) as usize,
                false => (value as u32 as usize).min(BUFFER_MAX),
            };
            let bytes = asked.min(i32::MAX as usize / 2) * 2;
            match name {
                raw::SO_SNDBUF | raw::SO_SNDBUFFORCE => common
                    .send_buffer
                    .store(bytes.max(MIN_SEND_BUFFER), Relaxed),
                _ => common
                    .receive_buffer
                    .store(bytes.max(MIN_RECEIVE_BUFFER), Relaxed),
            }
        }
        raw::SO_PRIORITY => {
            if !(0..=6).contains(&value) && !may_mark() {
                return Err(Errno::EPERM);
            }
            common.priority.store(value, Relaxed);
        }
        raw::SO_MARK => {
            if !may_mark() {
                return Err(Errno::EPERM);
            }
            common.mark.store(value as u32, Relaxed);
        }
        raw::SO_RCVLOWAT => {
            let value = if value < 0 { i32::MAX } else { value.max(1) };
            common.receive_low_water.store(value, Relaxed);
        }
        raw::SO_DEBUG if value != 0 && !may(CAP_NET_ADMIN) => return Err(Errno::EACCES),
        // One clock or the other.
        raw::SO_TIMESTAMP_OLD | raw::SO_TIMESTAMPNS_OLD => {
            common.switch(raw::SO_TIMESTAMP_OLD, false);
            common.switch(raw::SO_TIMESTAMPNS_OLD, false);
            common.switch(name, value != 0);
        }
        _ if is_switch(name) => common.switch(name, value != 0),
        _ => return Err(Errno::ENOPROTOOPT),
    }
    Ok(())
}

/// The value of one of the options in [`READABLE`].
///
/// # Errors
/// As Linux.
pub fn get(socket: &dyn Socket, name: u32, compatible: bool) -> Result<Answer> {
    let common = socket.common();
    let bytes = |bytes: usize| Answer::Int(bytes.min(i32::MAX as usize) as i32);
    Ok(match name {
        raw::SO_TYPE => Answer::Int(common.kind as i32),
        raw::SO_DOMAIN => Answer::Int(common.domain as i32),
        raw::SO_PROTOCOL => Answer::Int(common.protocol as i32),
        raw::SO_ERROR => Answer::Int(socket.take_error().map_or(0, |e| e.number().into())),
        raw::SO_SNDBUF => bytes(socket.buffers().0),
        raw::SO_RCVBUF => bytes(socket.buffers().1),
        raw::SO_RCVLOWAT => Answer::Int(common.receive_low_water.load(Relaxed)),
        raw::SO_SNDLOWAT => Answer::Int(1),
        raw::SO_PEEK_OFF if !socket.looks_from_a_place() => return Err(Errno::EOPNOTSUPP),
        raw::SO_PEEK_OFF => Answer::Int(common.peek_offset.load(Relaxed)),
        raw::SO_PRIORITY => Answer::Int(common.priority()),
        raw::SO_BINDTOIFINDEX => Answer::Int(common.device() as i32),
        raw::SO_BINDTODEVICE => Answer::Bytes(match common.device() {
            0 => alloc::vec::Vec::new(),
            index => device::by_index(index)?.name().with_zero().to_vec(),
        }),
        raw::SO_MARK => Answer::Int(common.mark.load(Relaxed) as i32),
        raw::SO_ACCEPTCONN => Answer::flag(socket.is_listening()),
        raw::SO_COOKIE => Answer::of(&common.inode),
        raw::SO_LINGER => {
            let linger = common.linger.load(Relaxed);
            Answer::of(&[(linger & 1) as i32, (linger >> 1) as i32])
        }
        raw::SO_RCVTIMEO_OLD
        | raw::SO_RCVTIMEO_NEW
        | raw::SO_SNDTIMEO_OLD
        | raw::SO_SNDTIMEO_NEW => {
            let (place, is_old) = common.timeout(name);
            timeval(timeout(place), compatible && is_old)
        }
        raw::SO_PEERCRED => match socket.peer_credentials() {
            Some(PeerCredentials { pid, uid, gid, .. }) => Answer::of(&[pid, uid, gid]),
            None => Answer::of(&[0, u32::MAX, u32::MAX]),
        },
        raw::SO_PEERGROUPS => {
            let peer = socket.peer_credentials().ok_or(Errno::ENODATA)?;
            let groups = peer.groups.iter().flat_map(|group| group.to_le_bytes());
            Answer::Whole(groups.collect())
        }
        raw::SO_PEERNAME => Answer::Bytes(socket.peer_name()?.bytes().into()),
        _ if is_switch(name) => Answer::flag(common.is_on(name)),
        _ => return Err(Errno::ENOPROTOOPT),
    })
}

/// As `struct timeval`.
fn timeval(time: Option<Duration>, narrow: bool) -> Answer {
    let time = time.unwrap_or_default();
    let (seconds, microseconds) = (time.as_secs() as i64, i64::from(time.subsec_micros()));
    if narrow {
        Answer::of(&[seconds as i32, microseconds as i32])
    } else {
        Answer::of(&[seconds, microseconds])
    }
}
