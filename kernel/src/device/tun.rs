//! net/tun: interfaces whose link is a program, which reads what is sent there and writes what
//! arrives. A `tap` has frames of Ethernet, a `tun` packets of IP.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};
use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Relaxed},
};

use abi::{
    Errno, Result,
    raw::{
        general::{CAP_NET_ADMIN, O_NONBLOCK},
        if_tun::{
            IFF_MULTI_QUEUE, IFF_NO_PI, IFF_ONE_QUEUE, IFF_TAP, IFF_TUN, IFF_TUN_EXCL, IFF_VNET_HDR,
        },
        ioctl as raw,
    },
};
use fbuf::{Aggregate, Sink, Source};
use fs::{File, Location, OpenFlags, Ready, device::register_char_device};
use net::{
    ip::Name,
    link::{Device, Features, Mac},
    packet::{Checksum, Packet},
};
use nucleus::{
    VirtAddr, frame, random,
    sync::{OnceArc, Rank, SpinLock},
    task::{Sleep, WaitQueue, Watch},
    user,
};
use vm::account::{Kind, Stock};

use crate::{
    process::{signal, thread},
    socket::inet::{self, stack},
};

/// The device's number.
pub const MAJOR: u32 = 10;
pub const MINOR: u32 = 200;

/// Packets that wait for the program: Linux's `txqueuelen` of such interfaces.
const MOST: usize = 500;
/// Bytes of the largest packet, and of a header of Ethernet.
const MTU: u16 = 1500;
const ETHERNET: usize = 14;
/// The longest packet that a program writes.
const LONGEST: usize = 65_535 + ETHERNET;
/// Bytes of `struct tun_pi`, which stands before each packet unless `IFF_NO_PI` is set; and of the
/// name in a `struct ifreq`.
const INFORMATION: usize = 4;
const NAME: usize = 16;
/// Flags of `TUNSETIFF` that are known.
const FLAGS: u32 = IFF_TUN | IFF_TAP | IFF_NO_PI | IFF_ONE_QUEUE | IFF_TUN_EXCL;

/// Registers the device.
///
/// # Errors
/// `EBUSY` if the number is taken.
pub fn register() -> Result<()> {
    register_char_device(MAJOR, MINOR..=MINOR, |at, _, _| {
        Ok(Arc::new(Handle {
            location: at.clone(),
            tunnel: OnceArc::new(),
        }) as Arc<dyn File>)
    })
}

/// The interface, as the network sees it.
struct Tunnel {
    mac: Option<Mac>,
    has_information: bool,
    queue: SpinLock<Queue>,
    readers: WaitQueue,
    /// The number of the interface.
    index: AtomicU32,
    /// It stays without a program.
    is_kept: AtomicBool,
    /// A program has it open.
    is_attached: AtomicBool,
}

struct Queue {
    packets: VecDeque<Packet>,
    stock: Stock,
}

impl Device for Tunnel {
    fn features(&self) -> Features {
        Features {
            mac: self.mac,
            mtu: MTU,
            checksums: false,
            cuts: 0,
        }
    }

    fn send(&self, packet: &mut Packet) -> bool {
        if !self.is_attached.load(Relaxed) {
            return false;
        }
        {
            let mut queue = self.queue.lock();
            if queue.packets.len() >= MOST || queue.packets.try_reserve(1).is_err() {
                return false;
            }
            queue.packets.push_back(core::mem::take(packet));
            let held = queue.packets.len();
            queue.stock.cover(held);
        }
        self.readers.wake_shared(false);
        true
    }

    fn has_carrier(&self) -> bool {
        self.is_attached.load(Relaxed)
    }

    fn kind(&self) -> &'static str {
        "tun"
    }
}

/// The file.
struct Handle {
    location: Location,
    tunnel: OnceArc<Tunnel>,
}

impl Handle {
    fn tunnel(&self) -> Result<Arc<Tunnel>> {
        // Linux's answer without an interface.
        self.tunnel.get_arc().ok_or(Errno::EBADFD)
    }

    /// Makes the interface that a program asks for, or takes one that is kept.
    fn attach(&self, argument: VirtAddr) -> Result<()> {
        let mut name: [u8; NAME] = user::read(argument)?;
        let flags = u32::from(user::read::<u16>(argument + NAME)?);
        if self.tunnel.get().is_some() {
            return Err(Errno::EINVAL);
        }
        if flags & !FLAGS != 0 || flags & (IFF_MULTI_QUEUE | IFF_VNET_HDR) != 0 {
            return Err(Errno::EINVAL);
        }
        let is_tap = match flags & (IFF_TUN | IFF_TAP) {
            IFF_TAP => true,
            IFF_TUN => false,
            _ => return Err(Errno::EINVAL),
        };
        if !may_administer() {
            return Err(Errno::EPERM);
        }
        frame::check_not_scarce()?;
        let network = stack().network();
        if name[0] != 0
            && let Some(known) = Name::new(&name)
            && let Some(interface) = network.interface_by_name(known)
        {
            if flags & IFF_TUN_EXCL != 0 {
                return Err(Errno::EBUSY);
            }
            let tunnel = take_kept(interface.index())?;
            if tunnel.mac.is_some() != is_tap {
                tunnel.is_attached.store(false, Relaxed);
                return Err(Errno::EINVAL);
            }
            if !self.has_taken(&tunnel) {
                tunnel.is_attached.store(false, Relaxed);
                return Err(Errno::EINVAL);
            }
            network.note_carrier(interface.index());
            return Ok(());
        }
        let mac = is_tap.then(|| {
            let [.., a, b, c, d, e] = random::u64().to_le_bytes();
            // Local, and of one machine.
            Mac([2, a, b, c, d, e])
        });
        let tunnel = Arc::new(Tunnel {
            mac,
            has_information: flags & IFF_NO_PI == 0,
            queue: SpinLock::new(
                Rank::Leaf,
                Queue {
                    packets: VecDeque::new(),
                    stock: Stock::of_current(Kind::Sockets),
                },
            ),
            readers: WaitQueue::new(),
            index: AtomicU32::new(0),
            is_kept: AtomicBool::new(false),
            is_attached: AtomicBool::new(true),
        });
        let index = add_interface(&tunnel, &name, is_tap)?;
        tunnel.index.store(index, Relaxed);
        network.set_up(index, false)?;
        let made = network.interface(index).ok_or(Errno::ENODEV)?;
        name = made.name().0;
        if !self.has_taken(&tunnel) {
            // It may have been removed.
            let _ = network.remove_interface(index);
            return Err(Errno::EINVAL);
        }
        user::copy_out(argument, &name)?;
        Ok(())
    }

    /// Takes an interface; false if another thread has given this file one meanwhile.
    fn has_taken(&self, tunnel: &Arc<Tunnel>) -> bool {
        core::ptr::eq(
            self.tunnel.get_or_insert(|| tunnel.clone()),
            &raw const **tunnel,
        )
    }
}

/// The most of them that stay without a program: there are no more interfaces, but for those that
/// were removed and are still listed.
const MOST_KEPT: usize = 65;

/// Interfaces that stay without a program.
static KEPT: SpinLock<Vec<Arc<Tunnel>>> = SpinLock::new(Rank::Leaf, Vec::new());

/// Takes the kept interface with a number, for a program.
fn take_kept(index: u32) -> Result<Arc<Tunnel>> {
    let kept = KEPT.lock();
    let is_it = |it: &&Arc<Tunnel>| it.index.load(Relaxed) == index;
    let tunnel = kept.iter().find(is_it).ok_or(Errno::EINVAL)?;
    match tunnel.is_attached.swap(true, AcqRel) {
        true => Err(Errno::EBUSY),
        false => Ok(tunnel.clone()),
    }
}

/// Keeps an interface without a program, or not any more.
fn keep(tunnel: &Arc<Tunnel>, is_kept: bool) -> Result<()> {
    let network = stack().network();
    // This one, which may be there already, and those that netlink has removed.
    let mut gone = nucleus::try_vec(MOST_KEPT)?;
    gone.extend(KEPT.lock().iter().take(MOST_KEPT).cloned());
    gone.retain(|other| {
        let is_there = network.interface(other.index.load(Relaxed)).is_some();
        !is_there || Arc::ptr_eq(other, tunnel)
    });
    let mut kept = KEPT.lock();
    kept.try_reserve(1)?;
    // The last reference to none of them is dropped here, where the list is locked.
    kept.retain(|other| !gone.iter().any(|it| Arc::ptr_eq(it, other)));
    kept.extend(is_kept.then(|| tunnel.clone()));
    tunnel.is_kept.store(is_kept, Relaxed);
    Ok(())
}

/// Adds the interface with a name that is given, free or with a number, or the next free one.
fn add_interface(tunnel: &Arc<Tunnel>, name: &[u8], is_tap: bool) -> Result<u32> {
    let network = stack().network();
    let given = name.split(|&byte| byte == 0).next().unwrap_or(&[]);
    let stem = match given {
        [] if is_tap => &b"tap"[..],
        [] => &b"tun"[..],
        given => match given.strip_suffix(b"%d") {
            Some(stem) => stem,
            None => {
                let name = Name::new(given).ok_or(Errno::EINVAL)?;
                return network.add_interface_named(tunnel.clone(), name);
            }
        },
    };
    for number in 0..=u8::MAX {
        let name = alloc::format!(
            "{}{number}",
            core::str::from_utf8(stem).map_err(|_| Errno::EINVAL)?
        );
        let name = Name::new(name.as_bytes()).ok_or(Errno::EINVAL)?;
        match network.add_interface_named(tunnel.clone(), name) {
            Err(Errno::EEXIST) => {}
            result => return result,
        }
    }
    Err(Errno::ENFILE)
}

fn may_administer() -> bool {
    thread::current_shared().is_some_and(|shared| shared.credentials.may(CAP_NET_ADMIN))
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Ok(tunnel) = self.tunnel() else { return };
        tunnel.is_attached.store(false, Relaxed);
        let network = stack().network();
        let index = tunnel.index.load(Relaxed);
        match tunnel.is_kept.load(Relaxed) {
            true => network.note_carrier(index),
            // It may have been removed.
            false => drop(network.remove_interface(index)),
        }
        let packets = {
            let mut queue = tunnel.queue.lock();
            queue.stock.cover(0);
            core::mem::take(&mut queue.packets)
        };
        drop(packets);
    }
}

impl File for Handle {
    fn read(&self, _: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        let tunnel = self.tunnel()?;
        let next = || {
            let mut queue = tunnel.queue.lock();
            let packet = queue.packets.pop_front()?;
            let held = queue.packets.len();
            queue.stock.cover(held);
            Some(packet)
        };
        let mut packet = match next() {
            Some(packet) => packet,
            None if flags.has(O_NONBLOCK) => return Err(Errno::EAGAIN),
            None => tunnel
                .readers
                .wait(Sleep::INTERRUPTIBLE, next)
                .map_err(signal::woken)?,
        };
        let mut total = 0;
        if tunnel.has_information {
            let mut kind = [0; 1];
            packet.peek(if tunnel.mac.is_some() { ETHERNET } else { 0 }, &mut kind);
            let kind: u16 = if kind[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
            let [high, low] = kind.to_be_bytes();
            let information = [0, 0, high, low];
            let n = to.room().min(INFORMATION);
            to.put_all(&information[..n])?;
            total += n;
        }
        let head = packet.head.as_slice();
        let n = head.len().min(to.room());
        to.put_all(&head[..n])?;
        total += n;
        while to.room() > 0 && !packet.data.is_empty() {
            let most = to.room();
            match packet.data.drain_into(to, most)? {
                0 => break,
                n => total += n,
            }
        }
        Ok(total)
    }

    fn write(&self, _: Option<u64>, _: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        let tunnel = self.tunnel()?;
        let len = from.left();
        let extra = if tunnel.has_information {
            INFORMATION
        } else {
            0
        };
        let least = if tunnel.mac.is_some() { ETHERNET } else { 1 };
        if len < extra + least || len > LONGEST + extra {
            return Err(Errno::EINVAL);
        }
        frame::check_not_scarce()?;
        let mut information = [0; INFORMATION];
        from.take_all(&mut information[..extra])?;
        let mut data = Aggregate::new();
        if data.fill_from(from, len - extra)? < len - extra {
            return Err(Errno::EFAULT);
        }
        let index = tunnel.index.load(Relaxed);
        if !stack()
            .network()
            .interface(index)
            .is_some_and(|it| it.is_up())
        {
            return Err(Errno::EIO);
        }
        let packet = Packet {
            data,
            checksum: Checksum::Unknown,
            ..Packet::default()
        };
        stack().receive(index, packet);
        Ok(len)
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        let Some(tunnel) = self.tunnel.get() else {
            return Ready::ERR;
        };
        if let Some(watch) = watch {
            watch.add(&tunnel.readers);
        }
        let waiting = !tunnel.queue.lock().packets.is_empty();
        Ready::of(waiting, true)
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        match command {
            raw::TUNSETIFF => self.attach(argument)?,
            raw::TUNGETFEATURES => user::write(argument, &FLAGS)?,
            raw::TUNGETIFF => {
                let tunnel = self.tunnel()?;
                let index = tunnel.index.load(Relaxed);
                let name = inet::interface::by_index(index)?.name().0;
                user::copy_out(argument, &name)?;
                let mut flags = if tunnel.mac.is_some() {
                    IFF_TAP
                } else {
                    IFF_TUN
                };
                if !tunnel.has_information {
                    flags |= IFF_NO_PI;
                }
                user::write(argument + NAME, &(flags as u16))?;
            }
            raw::TUNSETPERSIST => {
                keep(&self.tunnel()?, argument.0 != 0)?;
            }
            // Owners need the capability as well; nothing is computed for the program.
            raw::TUNSETOWNER | raw::TUNSETGROUP | raw::TUNSETNOCSUM | raw::TUNSETSNDBUF => {
                self.tunnel()?;
            }
            raw::TUNSETOFFLOAD if argument.0 == 0 => {
                self.tunnel()?;
            }
            raw::TUNSETOFFLOAD => return Err(Errno::EINVAL),
            _ => return Err(Errno::ENOTTY),
        }
        Ok(0)
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }
}
