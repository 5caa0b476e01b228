//! The calls of a TCP socket's names and connections: bind, listen, connect, accept, shut, close.

use alloc::{boxed::Box, sync::Arc};
use core::net::{IpAddr, SocketAddr};

use crate::counters::Counter;
use abi::{Errno, Result};
use nucleus::{frame, try_box};

use super::{
    ConnectionTable, Pair, Phase, Socket,
    block::{Block, State},
    connection::Connection,
    socket::AcceptQueue,
    table::{Link, WireEnd},
};
use crate::{
    ip::{self, Cover, Route},
    ports::{self, Binding, Search},
    timer::now,
};

/// The progress of a call of `connect`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The connection is established.
    Done,
    /// This call has begun it.
    Begun,
    /// An earlier call had begun it.
    Pending,
}

impl Socket {
    /// Gives the socket a name. Port 0 lets the stack choose a port.
    ///
    /// # Errors
    /// `EINVAL` if it has a name or is in use, `EADDRNOTAVAIL` for an address that is not this
    /// machine's, `EADDRINUSE`.
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        if !address.ip().is_unspecified() && !self.tcp.network.is_own(address.ip()) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        ports::search(|search| {
            let mut table = self.tcp.lock();
            let done = self.bind_in(&mut table, address, search)?;
            if done.is_some() {
                self.inner().bound = address.port() != 0;
            }
            Ok(done)
        })
    }

    /// Takes one step to bind the socket. `None` if the search for a port is to go on.
    fn bind_in(
        &self,
        table: &mut ConnectionTable,
        address: SocketAddr,
        search: &mut Search,
    ) -> Result<Option<()>> {
        let options = {
            let inner = self.inner();
            if inner.phase != Phase::Idle || inner.hold.is_some() {
                return Err(Errno::EINVAL);
            }
            inner.options
        };
        let Some(hold) = table.ports.bind_name(address, &options.name, search)? else {
            return Ok(None);
        };
        let mut inner = self.inner();
        inner.hold = Some(hold);
        inner.local = Some(SocketAddr::new(address.ip(), hold.port));
        Ok(Some(()))
    }

    /// Starts to accept connections, `backlog` + 1 of which may wait. A socket without a name gets
    /// one.
    ///
    /// # Errors
    /// `EINVAL` for a socket that is connected, `EADDRINUSE`, `ENOMEM`, `ENOBUFS` if too many
    /// listen at the port.
    pub fn listen(self: &Arc<Socket>, backlog: usize) -> Result<()> {
        ports::search(|search| self.listen_in(&mut self.tcp.lock(), backlog, search))
    }

    /// Takes one step to listen. `None` if the search for a port is to go on.
    fn listen_in(
        self: &Arc<Socket>,
        table: &mut ConnectionTable,
        backlog: usize,
        search: &mut Search,
    ) -> Result<Option<()>> {
        match self.phase() {
            Phase::Listening => {
                if let Some(accepts) = &mut self.inner().accepts {
                    accepts.backlog = backlog;
                }
                return Ok(Some(()));
            }
            Phase::Idle => {}
            _ => return Err(Errno::EINVAL),
        }
        if self.inner().hold.is_none() {
            let any = SocketAddr::new(self.family().unspecified(), 0);
            if self.bind_in(table, any, search)?.is_none() {
                return Ok(None);
            }
        }
        let Some(hold) = self.inner().hold else {
            return Err(Errno::EINVAL);
        };
        let accepts = try_box(AcceptQueue {
            backlog,
            ..AcceptQueue::default()
        })?;
        table.add_listener(hold.port, self)?;
        if let Err(error) = table.ports.listen(hold) {
            table.remove_listener(hold.port, self);
            return Err(error);
        }
        let mut inner = self.inner();
        inner.phase = Phase::Listening;
        // Handshakes of an earlier time as a listener may not be over.
        let spare = match &mut inner.accepts {
            Some(old) => {
                old.backlog = backlog;
                Some(accepts)
            }
            none => {
                *none = Some(accepts);
                None
            }
        };
        drop(inner);
        drop(spare);
        Ok(Some(()))
    }

    /// Takes the connection that has waited longest.
    ///
    /// # Errors
    /// `EAGAIN` if there is none, `EINVAL` if the socket doesn't listen.
    pub fn accept(&self) -> Result<Arc<Socket>> {
        let mut inner = self.inner();
        if inner.phase != Phase::Listening {
            return Err(Errno::EINVAL);
        }
        inner.take_waiting().ok_or(Errno::EAGAIN)
    }

    /// Begins a connection, or returns the progress of one that an earlier call has begun.
    ///
    /// # Errors
    /// `EISCONN`, `ECONNREFUSED`, `ETIMEDOUT`, `ENETUNREACH`, `EADDRNOTAVAIL` when no port is left,
    /// `ENOMEM`.
    pub fn connect(self: &Arc<Socket>, to: SocketAddr) -> Result<Progress> {
        if let Some(progress) = self.progress()? {
            return Ok(progress);
        }
        frame::check_not_scarce()?;
        let to = ip::destination(to);
        let interface = self.inner().options.name.interface;
        let route = self.tcp.way(to.ip(), interface)?;
        let source = match &route {
            Some(route) => route.source,
            // An interface's own address talks to itself.
            None => ip::source_for(to.ip()).unwrap_or(to.ip()),
        };
        let by_packets = route.is_some();
        let mut search = Search::new();
        let begun = loop {
            let route = route.as_ref();
            let begun = self
                .tcp
                .change(|table| self.connect_in(table, source, to, route, &mut search));
            if let Some(begun) = begun.transpose() {
                break begun;
            }
        };
        if by_packets {
            self.tcp.deliver();
        }
        begun
    }

    fn connect_in(
        self: &Arc<Socket>,
        table: &mut ConnectionTable,
        source: IpAddr,
        to: SocketAddr,
        route: Option<&Route>,
        search: &mut Search,
    ) -> Result<Option<Progress>> {
        // Another thread may have begun meanwhile.
        if let Some(progress) = self.progress()? {
            return Ok(Some(progress));
        }
        table.ends.reserve()?;
        let Some(pair) = self.name_for(table, source, to, search)? else {
            return Ok(None);
        };
        {
            let mut inner = self.inner();
            inner.phase = Phase::Connecting;
            inner.local = Some(pair.local);
            inner.remote = Some(to);
            inner.forget_connection();
        }
        Counter::tcp_active_opens.add(1);
        if let Some(route) = route {
            let start = table.start_on(&pair, route, self);
            let begun = Connection::new(&self.tcp, pair, self.clone(), route.clone(), |host| {
                Block::open(start, host)
            });
            table.join(&self.tcp, begun, None);
            return Ok(Some(Progress::Begun));
        }
        let start = ConnectionTable::start();
        let block = Block::open(start, &mut table.wire.host(pair));
        let end = WireEnd {
            pair,
            socket: self.clone(),
            block,
        };
        table.add(Link::Wire(Box::new(end)), None);
        table.run();
        table.note_deadline(pair);
        Ok(Some(Progress::Begun))
    }

    /// Returns the progress of the connection that an earlier call has begun; `None` if there is
    /// none.
    ///
    /// # Errors
    /// `EISCONN`, or the reason of the failure.
    pub fn progress(&self) -> Result<Option<Progress>> {
        let mut inner = self.inner();
        match inner.phase {
            Phase::Connecting => Ok(Some(Progress::Pending)),
            Phase::Connected if inner.unreported => {
                inner.unreported = false;
                Ok(Some(Progress::Done))
            }
            Phase::Connected | Phase::Listening => Err(Errno::EISCONN),
            Phase::Idle if inner.unreported => {
                inner.unreported = false;
                Err(inner.error.take().unwrap_or(Errno::ECONNABORTED))
            }
            // The connection was made and has ended already; a read reports how.
            Phase::Ended if inner.unreported => {
                inner.unreported = false;
                match inner.error.take() {
                    Some(error) => Err(error),
                    None => Ok(Some(Progress::Done)),
                }
            }
            Phase::Ended => Err(Errno::EISCONN),
            Phase::Idle => Ok(None),
        }
    }

    /// Returns the addresses for a connection to `to`; takes a port if the socket has none. `None`
    /// if the search for one is to go on.
    fn name_for(
        &self,
        table: &mut ConnectionTable,
        source: IpAddr,
        to: SocketAddr,
        search: &mut Search,
    ) -> Result<Option<Pair>> {
        let (hold, local) = {
            let inner = self.inner();
            (inner.hold, inner.local)
        };
        let ip = match local.map(|local| local.ip()) {
            Some(ip) if !ip.is_unspecified() => ip,
            _ => source,
        };
        if ip.is_ipv4() != to.is_ipv4() {
            return Err(Errno::ENETUNREACH);
        }
        let pair = |port| Pair {
            local: SocketAddr::new(ip, port),
            remote: to,
        };
        let now = now();
        let ConnectionTable {
            ports,
            ends,
            waiting,
            ..
        } = table;
        // Connecting to oneself is not supported: an end can't be its own peer here.
        let free = |port| {
            let pair = pair(port);
            pair.local != to && !ends.contains(&pair) && waiting.allows(&pair, now)
        };
        let hold = match hold {
            Some(hold) if free(hold.port) => hold,
            Some(_) => return Err(Errno::EADDRNOTAVAIL),
            None => {
                let binding = Binding {
                    automatic: true,
                    ..self.inner().options.name.binding(ip)
                };
                let Some(hold) = ports.bind_connection(binding, search, free)? else {
                    return Ok(None);
                };
                hold
            }
        };
        let pair = pair(hold.port);
        let hold = ports.change(hold, |binding| binding.cover = Cover::of(ip, true));
        self.inner().hold = Some(hold);
        waiting.forget(&pair, ports);
        Ok(Some(pair))
    }

    /// Shuts the socket for receiving, for sending, or both.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn shut(self: &Arc<Socket>, read: bool, write: bool) -> Result<()> {
        self.tcp.change(|table| self.shut_in(table, read, write))?;
        self.end_listening();
        self.tcp.deliver();
        self.waits().wake_all();
        Ok(())
    }

    fn shut_in(
        self: &Arc<Socket>,
        table: &mut ConnectionTable,
        read: bool,
        write: bool,
    ) -> Result<()> {
        match self.phase() {
            Phase::Listening => {
                if read {
                    self.stop_listening(table);
                }
                return Ok(());
            }
            Phase::Connected => {}
            _ => return Err(Errno::ENOTCONN),
        }
        let finish = {
            let mut inner = self.inner();
            inner.read_shut |= read;
            let finish = write && !inner.write_shut;
            inner.write_shut |= write;
            finish
        };
        if finish && let Some(pair) = self.pair() {
            table.finish(&pair, false);
        }
        Ok(())
    }

    /// Ends the state of listening. The caller [ends](Socket::end_listening) what has come of it.
    fn stop_listening(self: &Arc<Socket>, table: &mut ConnectionTable) {
        let hold = {
            let mut inner = self.inner();
            inner.phase = Phase::Idle;
            inner.hold
        };
        if let Some(hold) = hold {
            table.remove_listener(hold.port, self);
            let hold = table
                .ports
                .change(hold, |binding| binding.listening = false);
            self.inner().hold = Some(hold);
        }
    }

    /// Resets the connections that a socket which listens no more has not accepted, and its
    /// handshakes; others have the table's lock in between.
    fn end_listening(&self) {
        let next = || {
            let mut inner = self.inner();
            match inner.phase {
                Phase::Listening => None,
                _ => inner.take_waiting(),
            }
        };
        while let Some(child) = next() {
            child.close(true);
        }
        let inner = self.inner();
        let has_embryos = inner.embryos() > 0 && inner.phase != Phase::Listening;
        drop(inner);
        if has_embryos {
            self.tcp.reset_embryos(self);
        }
    }

    /// Closes the socket: the last descriptor is gone. With `reset` (`SO_LINGER` with no time), and
    /// when bytes were left unread, the connection is reset instead of ended.
    pub fn close(self: &Arc<Socket>, reset: bool) {
        self.tcp.change(|table| self.close_in(table, reset));
        self.end_listening();
        self.tcp.deliver();
    }

    fn close_in(self: &Arc<Socket>, table: &mut ConnectionTable, reset: bool) {
        self.inner().closed = true;
        let phase = self.phase();
        if phase == Phase::Listening {
            self.stop_listening(table);
        }
        let unread = match self.streams().0 {
            Some(inbound) => inbound.abandon(),
            None => false,
        };
        if let Some(pair) = self.pair().filter(|_| table.owns(self)) {
            match phase {
                // The peer does not know of it yet.
                Phase::Connecting => drop(table.remove(&pair)),
                _ if reset || unread => table.reset(&pair),
                _ => {
                    table.finish(&pair, true);
                    table.note_deadline(pair);
                }
            }
        }
        let holds = self.inner().hold.is_some();
        if holds && !table.owns(self) {
            let hold = self.inner().hold.take();
            table.release(hold);
        }
    }

    /// Forgets the connection and the name that it gave (`connect` with no family). A listener
    /// stops listening.
    pub fn disconnect(self: &Arc<Socket>) {
        let mut table = self.tcp.lock();
        if self.phase() == Phase::Listening {
            self.stop_listening(&mut table);
        }
        if let Some(pair) = self.pair().filter(|_| table.owns(self)) {
            table.reset(&pair);
        }
        let hold = {
            let mut inner = self.inner();
            inner.phase = Phase::Idle;
            inner.unreported = false;
            inner.remote = None;
            inner.forget_connection();
            if inner.bound {
                None
            } else {
                inner.local = None;
                inner.hold.take()
            }
        };
        table.release(hold);
        drop(table);
        self.end_listening();
        self.tcp.deliver();
        self.waits().wake_all();
    }

    /// Returns TCP's state.
    pub fn state(&self) -> State {
        self.tcp.lock().state(self)
    }
}

impl ConnectionTable {
    /// Tells whether the socket has an end here.
    pub(super) fn owns(&self, socket: &Socket) -> bool {
        let end = socket.pair().and_then(|pair| self.ends.get(&pair));
        end.is_some_and(|end| core::ptr::eq(&**end.socket(), socket))
    }
}
