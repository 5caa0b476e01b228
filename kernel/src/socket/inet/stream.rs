//! TCP sockets.

use alloc::sync::Arc;
use core::{net::SocketAddr, time::Duration};

use abi::{Errno, Result, raw::ioctl as raw_ioctl, raw::net as raw};
use fbuf::{Clipped, Source};
use fs::{Linger, Ready};
use net::{
    Family,
    stream::Read,
    tcp::{self, IpFields, Phase, Progress},
};
use nucleus::{
    VirtAddr,
    sync::{OnceBox, Rank, SpinLock},
    task::Watch,
    user,
};
use vm::Pager;

use super::{
    AF_UNSPEC, IPPROTO_TCP, check_port, control, domain,
    ip_options::{self, IpOptions},
    name::{self, Asked},
    name_options, ready_bits, stack,
    tcp_options::{self, TcpOptions},
    zero_copy,
};
use crate::socket::{
    Address, Answer, Common, Incoming, MSG_ZEROCOPY, Outgoing, Shutdown, Socket, Timeout, Value,
};

/// Sizes of the buffers that a new socket reports, as on Linux.
const SEND_BUFFER: u32 = 16_384;
const RECEIVE_BUFFER: u32 = 131_072;

/// A TCP socket as the system calls see it.
pub struct Stream {
    common: Common,
    tcp: Arc<tcp::Socket>,
    /// Empty until a program sets one of them: those of most connections stay as they are.
    options: OnceBox<LevelOptions>,
}

/// The options of the levels of IP and TCP.
struct LevelOptions {
    ip: SpinLock<IpOptions>,
    tcp: SpinLock<TcpOptions>,
}

impl LevelOptions {
    fn new(ip: IpOptions, tcp: TcpOptions) -> LevelOptions {
        LevelOptions {
            ip: SpinLock::new(Rank::Leaf, ip),
            tcp: SpinLock::new(Rank::Leaf, tcp),
        }
    }
}

impl Default for LevelOptions {
    fn default() -> LevelOptions {
        LevelOptions::new(IpOptions::default(), TcpOptions::default())
    }
}

/// The end of a connection for which `close` waits (`SO_LINGER` with a time).
struct Lingering {
    tcp: Arc<tcp::Socket>,
    timeout: Timeout,
}

impl Linger for Lingering {
    fn wait(&self) {
        let is_over = || !self.tcp.lingers();
        // The time and signals end the wait, not the connection.
        let _ = self.timeout.wait_until(&self.tcp.waits().writable, is_over);
    }
}

impl Stream {
    /// Creates a socket without a name.
    pub fn create(family: Family) -> Arc<dyn Socket> {
        let common = Common::new(domain(family), raw::SOCK_STREAM, IPPROTO_TCP);
        common.set_buffers(SEND_BUFFER as usize, RECEIVE_BUFFER as usize);
        let options = tcp::Options {
            name: name_options(&common),
            ..tcp::Options::default()
        };
        Arc::new(Stream {
            common,
            tcp: stack().tcp_socket(family, options),
            options: OnceBox::new(),
        })
    }

    /// Returns the options of the levels of IP and TCP, to be changed.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn own_options(&self) -> Result<&LevelOptions> {
        Ok(self.options.get_or_try_insert(LevelOptions::default)?)
    }

    /// Reads the options of the levels of IP and TCP.
    fn read_options<R>(&self, read: impl FnOnce(&LevelOptions) -> R) -> R {
        match self.options.get() {
            Some(options) => read(options),
            None => read(&LevelOptions::default()),
        }
    }

    /// Wraps a connection that was accepted; it inherits the listener's options.
    fn accepted(&self, tcp: Arc<tcp::Socket>) -> Result<Arc<dyn Socket>> {
        let options = OnceBox::new();
        if let Some(own) = self.options.get() {
            // One lock at a time.
            let ip = *own.ip.lock();
            let tcp_options = *own.tcp.lock();
            if let Err(error) = options.get_or_try_insert(|| LevelOptions::new(ip, tcp_options)) {
                tcp.close(true);
                return Err(error.into());
            }
        }
        let common = Common::new(self.common.domain, raw::SOCK_STREAM, IPPROTO_TCP);
        common.inherit(&self.common);
        tcp.set_options(|options| options.name.tag = common.inode);
        Ok(Arc::new(Stream {
            common,
            tcp,
            options,
        }))
    }

    fn read_name(&self, address: &Address, asked: Asked) -> Result<SocketAddr> {
        let family = self.tcp.family();
        let name = name::read(family, address, asked)?;
        name::check_version(family, self.tcp.is_v6_only(), name, asked)?;
        Ok(name)
    }

    /// Passes the options of TCP on to the protocol.
    fn pass_settings(&self) {
        let keep_alive = self.common.is_on(raw::SO_KEEPALIVE);
        let settings = self.read_options(|options| tcp_options::settings(&options.tcp, keep_alive));
        self.tcp.set_options(|options| options.settings = settings);
    }

    /// Passes what headers of IP say on to the protocol.
    fn pass_ip_fields(&self) {
        let [v4, v6] = self.read_options(|options| {
            let mut ip = options.ip.lock();
            ip.clear_congestion_bits();
            [Family::V4, Family::V6].map(|family| {
                let to = family.unspecified();
                (ip.hops_for(to), ip.service_for(to))
            })
        });
        let fields = |(hops, service)| IpFields { hops, service };
        self.tcp.set_options(|options| {
            options.ip_v4 = fields(v4);
            options.ip_v6 = fields(v6);
        });
    }

    /// Returns the result of a call that an error ended after `total` bytes: these are reported
    /// now, an error of the connection by the next call.
    fn ended(&self, total: usize, error: Errno) -> Result<usize> {
        if total > 0 {
            self.tcp.keep_error(error);
        }
        fbuf::moved(total, Err(error))
    }

    /// Sends by `send`, waiting for room as the call allows.
    #[inline]
    fn when_writable<T>(&self, timeout: Timeout, mut send: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match send() {
                Err(Errno::EAGAIN) => self.await_writable(timeout, || false)?,
                result => return result,
            }
        }
    }

    fn await_writable(&self, timeout: Timeout, is_over: impl Fn() -> bool) -> Result<()> {
        let ready = || self.tcp.readiness();
        let writable = || ready().writable || ready().error || is_over();
        timeout.wait_until(&self.tcp.waits().writable, writable)
    }

    fn send_bytes(&self, data: &mut dyn Source, timeout: Timeout) -> Result<usize> {
        self.send_by(data, timeout, |data| self.tcp.send(data))
    }

    /// Sends bytes that stay stable until the program is told of their arrival (`MSG_ZEROCOPY`).
    fn send_stable(&self, data: &mut dyn Source, timeout: Timeout) -> Result<usize> {
        let are_enough = data.left() >= vm::least_stable();
        let mut lent = 0;
        let sent = self.send_by(data, timeout, |data| {
            self.tcp.send_stable(data, are_enough, &mut lent)
        });
        if let Ok(sent @ 1..) = sent {
            self.tcp.await_completion(lent < sent);
        }
        sent
    }

    #[inline(always)]
    fn send_by(
        &self,
        data: &mut dyn Source,
        timeout: Timeout,
        mut send: impl FnMut(&mut dyn Source) -> Result<usize>,
    ) -> Result<usize> {
        let mut total = 0;
        while data.left() > 0 {
            let error = match send(data) {
                Ok(n) => {
                    total += n;
                    continue;
                }
                Err(Errno::EAGAIN) => {
                    let (n, waited) = self.await_room(data, timeout);
                    total += n;
                    match waited {
                        // What the peer took counts, even if it has left.
                        Err(error) if data.left() > 0 => error,
                        _ => continue,
                    }
                }
                Err(error) => error,
            };
            return self.ended(total, error);
        }
        Ok(total)
    }

    /// Waits for room; returns how many bytes the peer has taken out of the buffer meanwhile, and
    /// how the wait has ended.
    fn await_room(&self, data: &mut dyn Source, timeout: Timeout) -> (usize, Result<()>) {
        let Some(offered) = timeout
            .waits()
            .then(|| self.tcp.offer_bytes(data))
            .flatten()
        else {
            return (0, self.await_writable(timeout, || false));
        };
        let waited = self.await_writable(timeout, || offered.has_pulled());
        (offered.withdraw_bytes(data), waited)
    }

    /// Sends all but the last byte as usual, and that one as urgent.
    fn send_urgent(&self, message: &mut Outgoing<'_>) -> Result<usize> {
        let Some(before) = message.data.left().checked_sub(1) else {
            return Ok(0);
        };
        let sent = self.send_bytes(&mut Clipped::new(message.data, before), message.timeout)?;
        if sent < before {
            return Ok(sent);
        }
        let mut last = [0];
        let urgent = message
            .data
            .take_all(&mut last)
            .and_then(|()| self.when_writable(message.timeout, || self.tcp.send_urgent(last[0])));
        match urgent {
            Ok(()) => Ok(sent + 1),
            Err(error) => self.ended(sent, error),
        }
    }

    fn receive_bytes(&self, message: &mut Incoming<'_>) -> Result<usize> {
        let how = Read {
            peek: message.peeks(),
            discard: message.has(raw::MSG_TRUNC),
        };
        let all = message.data.room();
        let target = if message.has(raw::MSG_WAITALL) {
            all
        } else {
            self.common.receive_low_water().min(all)
        };
        let mut total = 0;
        loop {
            let error = match self.tcp.receive(message.data, all - total, how) {
                Ok(0) => return Ok(total),
                Ok(n) => {
                    total += n;
                    // The next round would peek at the same bytes again.
                    if total >= target || how.peek || self.tcp.is_at_mark() {
                        return Ok(total);
                    }
                    continue;
                }
                Err(Errno::EAGAIN) => {
                    let (n, waited) = self.await_bytes(message, how);
                    total += n;
                    match waited {
                        Ok(()) if n > 0 && total >= target => return Ok(total),
                        Ok(()) => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            return self.ended(total, error);
        }
    }

    /// Waits for bytes; returns how many the peer has put into the buffer meanwhile, and how the
    /// wait has ended.
    fn await_bytes(&self, message: &mut Incoming<'_>, how: Read) -> (usize, Result<()>) {
        let takes = message.timeout.waits() && !how.peek && !how.discard;
        let readable = || self.tcp.has_input();
        let waits = &self.tcp.waits().readable;
        let Some(offered) = takes.then(|| self.tcp.offer(message.data)).flatten() else {
            return (0, message.timeout.wait_until(waits, readable));
        };
        let is_over = || readable() || offered.has_put();
        let waited = message.timeout.wait_until(waits, is_over);
        let n = offered.withdraw(message.data);
        (n, waited)
    }

    fn receive_urgent(&self, message: &mut Incoming<'_>) -> Result<usize> {
        let byte = self.tcp.receive_urgent(message.peeks())?;
        message.answer |= raw::MSG_OOB;
        if message.data.room() == 0 {
            message.answer |= raw::MSG_TRUNC;
            return Ok(0);
        }
        message.data.put_bytes(&[byte])
    }
}

impl Socket for Stream {
    fn common(&self) -> &Common {
        &self.common
    }

    fn take_error(&self) -> Option<Errno> {
        self.tcp.take_error()
    }

    fn bind(&self, address: &Address) -> Result<()> {
        let name = self.read_name(address, Asked::Bind)?;
        check_port(name.port())?;
        self.tcp.bind(name)
    }

    fn listen(&self, backlog: u32) -> Result<()> {
        self.tcp.listen(backlog as usize)
    }

    fn accept(&self, timeout: Timeout) -> Result<Arc<dyn Socket>> {
        loop {
            match self.tcp.accept() {
                Ok(tcp) => return self.accepted(tcp),
                Err(Errno::EAGAIN) => {}
                Err(error) => return Err(error),
            }
            let changed = || self.tcp.phase() != Phase::Listening || self.tcp.has_input();
            let acceptable = self.tcp.waits().acceptable()?;
            if let Err(error) = timeout.wait_until(acceptable, changed) {
                // A wake-up for a connection that this caller gives up goes to another one.
                if self.tcp.has_input() {
                    acceptable.wake_one();
                }
                return Err(error);
            }
        }
    }

    fn connect(&self, address: &Address, timeout: Timeout) -> Result<()> {
        if address.family() == Some(AF_UNSPEC) {
            self.tcp.disconnect();
            return Ok(());
        }
        let to = self.read_name(address, Asked::Connect)?;
        let scope = name::scope(address);
        if scope != 0 && self.common.device() == 0 {
            self.tcp
                .set_options(|options| options.name.interface = scope);
        }
        match self.tcp.connect(to)? {
            Progress::Done => return Ok(()),
            Progress::Begun if !timeout.waits() => return Err(Errno::EINPROGRESS),
            Progress::Pending if !timeout.waits() => return Err(Errno::EALREADY),
            Progress::Begun | Progress::Pending => {}
        }
        let is_over = || self.tcp.phase() != Phase::Connecting;
        match timeout.wait_until(&self.tcp.waits().writable, is_over) {
            Ok(()) => {}
            Err(Errno::EAGAIN) => return Err(Errno::EINPROGRESS),
            Err(error) => return Err(error),
        }
        match self.tcp.progress() {
            // Another thread has taken the result.
            Err(Errno::EISCONN) | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn name(&self) -> Result<Address> {
        Ok(name::write(self.tcp.family(), self.tcp.names().0))
    }

    fn peer_name(&self) -> Result<Address> {
        match self.tcp.phase() {
            Phase::Connected => Ok(name::write(self.tcp.family(), self.tcp.names().1)),
            _ => Err(Errno::ENOTCONN),
        }
    }

    fn shutdown(&self, what: Shutdown) -> Result<()> {
        self.tcp.shut(what.receive, what.send)
    }

    fn send(&self, message: &mut Outgoing<'_>) -> Result<usize> {
        if message.data.left() == 0 {
            // Nothing is sent, but a connection has to be there.
            let checked = self.when_writable(message.timeout, || self.tcp.check_sends());
            return checked.map(|()| 0);
        }
        if message.has(raw::MSG_OOB) {
            return self.send_urgent(message);
        }
        if message.has(MSG_ZEROCOPY) && self.common.is_on(raw::SO_ZEROCOPY) {
            return self.send_stable(message.data, message.timeout);
        }
        self.send_bytes(message.data, message.timeout)
    }

    fn completes_sends(&self) -> bool {
        true
    }

    fn receive(&self, message: &mut Incoming<'_>) -> Result<usize> {
        if message.has(raw::MSG_ERRQUEUE) {
            let completion = self.tcp.take_completion().ok_or(Errno::EAGAIN)?;
            control::put_completion(completion, self.tcp.family(), message);
            return Ok(0);
        }
        if message.has(raw::MSG_OOB) {
            return self.receive_urgent(message);
        }
        if self.tcp.phase() == Phase::Listening {
            return Err(Errno::ENOTCONN);
        }
        self.receive_bytes(message)
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(watch) = watch {
            watch.add(&self.tcp.waits().readable);
            watch.add(&self.tcp.waits().writable);
        }
        ready_bits(self.tcp.readiness())
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        let summary = self.tcp.summary();
        let number = match command {
            raw_ioctl::FIONREAD | raw_ioctl::TIOCOUTQ if summary.phase == Phase::Listening => {
                return Err(Errno::EINVAL);
            }
            raw_ioctl::FIONREAD => summary.unread,
            raw_ioctl::TIOCOUTQ => summary.unsent,
            raw_ioctl::SIOCATMARK => usize::from(self.tcp.is_at_mark()),
            _ => return Err(Errno::ENOTTY),
        };
        user::write(argument, &(number.min(i32::MAX as usize) as i32))?;
        Ok(0)
    }

    fn set_option(&self, level: u32, name: u32, value: &Value) -> Result<()> {
        match level {
            raw::SOL_TCP => {
                if let Some(time) = tcp_options::set(&self.own_options()?.tcp, name, value)? {
                    self.tcp.set_options(|options| options.defer_accept = time);
                }
                self.pass_settings();
                Ok(())
            }
            raw::SOL_IPV6 if name == raw::IPV6_V6ONLY => {
                let on = ip_options::v6_only(self.tcp.family(), value)?;
                if self.tcp.names().0.is_some() {
                    return Err(Errno::EINVAL);
                }
                self.tcp.set_options(|options| options.name.v6_only = on);
                Ok(())
            }
            _ => {
                let options = &self.own_options()?.ip;
                ip_options::set(options, self.tcp.family(), level, name, value)?;
                self.pass_ip_fields();
                Ok(())
            }
        }
    }

    fn option(&self, level: u32, name: u32) -> Result<Answer> {
        match level {
            raw::SOL_TCP => {
                self.read_options(|options| tcp_options::get(&options.tcp, &self.tcp, name))
            }
            raw::SOL_IPV6 if name == raw::IPV6_V6ONLY && self.tcp.family() == Family::V6 => {
                Ok(Answer::flag(self.tcp.is_v6_only()))
            }
            _ => self.read_options(|options| {
                ip_options::get(&options.ip, self.tcp.family(), level, name)
            }),
        }
    }

    fn exchange_option(&self, level: u32, name: u32, given: &Value) -> Option<Result<Answer>> {
        let asks = level == raw::SOL_TCP && name == raw::TCP_ZEROCOPY_RECEIVE;
        asks.then(|| zero_copy::receive(&self.tcp, given))
    }

    fn mapping(&self) -> Result<Arc<dyn Pager>> {
        zero_copy::mapping(self.common.inode)
    }

    fn option_changed(&self, name: u32) {
        if name == raw::SO_KEEPALIVE {
            self.pass_settings();
            return;
        }
        let common = &self.common;
        self.tcp.set_options(|options| match name {
            raw::SO_BINDTODEVICE => options.name.interface = common.device(),
            raw::SO_REUSEADDR => options.name.reuse_address = common.is_on(name),
            raw::SO_REUSEPORT => options.name.reuse_port = common.is_on(name),
            raw::SO_OOBINLINE => options.urgent_in_line = common.is_on(raw::SO_OOBINLINE),
            raw::SO_SNDBUF | raw::SO_SNDBUFFORCE => {
                options.send_buffer = common.send_buffer() as u32;
                options.is_send_fixed = true;
            }
            raw::SO_RCVBUF | raw::SO_RCVBUFFORCE => {
                options.receive_buffer = common.receive_buffer() as u32;
                options.is_receive_fixed = true;
            }
            raw::SO_RCVLOWAT => options.low_water = common.receive_low_water() as u32,
            _ => {}
        });
    }

    fn lingers(&self, time: Duration) -> Option<Arc<dyn Linger>> {
        let tcp = self.tcp.clone();
        let timeout = Timeout::new(true, Some(time));
        Some(Arc::new(Lingering { tcp, timeout }))
    }

    fn buffers(&self) -> (usize, usize) {
        let options = self.tcp.summary().options;
        let shown = |size: u32, start: u32, common: usize| match size > start {
            // It has grown.
            true => size as usize,
            false => common,
        };
        let common = &self.common;
        (
            shown(options.send_buffer, tcp::SEND_BUFFER, common.send_buffer()),
            shown(
                options.receive_buffer,
                RECEIVE_BUFFER,
                common.receive_buffer(),
            ),
        )
    }

    fn is_listening(&self) -> bool {
        self.tcp.phase() == Phase::Listening
    }

    fn release(&self) {
        let reset = self.common.linger().is_some_and(|time| time.is_zero());
        self.tcp.close(reset);
    }
}
