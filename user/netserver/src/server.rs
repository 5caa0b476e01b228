//! The server: one thread that carries datagrams between its clients and the link.
//!
//! Everything that a client writes is checked, and costs bounded work; a client that breaks the
//! rules, or has ended, is dropped with its ports and references, and harms no other.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::mem;
use std::net::SocketAddrV4;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::time::Instant;

use libfbuf::{Aggregate, Contents, Domain, Member, Received};

use crate::clients::{Client, Limits};
use crate::error;
use crate::fragments::Key;
use crate::link::{Link, Start};
use crate::poll::Poll;
use crate::protocol::{CARD, HEADER, Header, NO_CHECKSUM, NO_VERIFY, Op};
use crate::stack::{Config, Datagram, Stack};
use crate::wire::{ETHERNET, Ipv4, Udp, protocol};

/// The number of the socket at which clients connect; clients have greater ones.
const LISTENER: u64 = 0;
/// The number of the link.
const LINK: u64 = 1;

/// Messages of one client that are served before the next client's turn.
const TURN: usize = 16;

/// Most clients.
const MOST_CLIENTS: usize = 1024;

/// Frames that are taken from the card before the clients' turn.
const FRAMES: usize = 64;

/// Flows of fragments whose receiver is remembered: the most recent ones.
const FLOWS: usize = 64;

/// Milliseconds between looks at what is too old.
const TICK: i32 = 500;

/// The first of the ports that are chosen for clients that want any.
const EPHEMERAL: u16 = 49_152;

/// A bound port.
struct Port {
    client: u64,
    /// The only destination.
    peer: Option<SocketAddrV4>,
    is_verified: bool,
}

/// The server.
pub struct Server {
    domain: Domain,
    stack: Stack,
    link: Link,
    limits: Limits,
    listener: UnixListener,
    poll: Poll,
    clients: BTreeMap<u64, Client>,
    /// Clients that may have something to be done.
    active: VecDeque<u64>,
    ports: BTreeMap<u16, Port>,
    /// Room for frames of the card.
    frames: Vec<Received>,
    /// The receivers of datagrams whose first fragment came.
    flows: VecDeque<(Key, u64)>,
    next_client: u64,
    next_port: u16,
    dropped: u64,
}

impl Server {
    /// Makes a server at a path, whose old socket is removed.
    ///
    /// # Errors
    /// Those of the region, of paths and of sockets.
    pub fn new(
        domain: &Domain,
        socket: &str,
        config: Config,
        link: Link,
        limits: Limits,
    ) -> io::Result<Server> {
        match fs::remove_file(socket) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        let listener = UnixListener::bind(socket)?;
        listener.set_nonblocking(true)?;
        let poll = Poll::new()?;
        poll.add(listener.as_fd(), LISTENER)?;
        let mut link = link;
        if let Link::Card(card) = &mut link {
            if limits.in_place {
                card.use_fbufs(domain);
            }
            poll.add(card.as_fd(), LINK)?;
        }
        Ok(Server {
            domain: domain.clone(),
            stack: Stack::new(domain, config)?,
            link,
            limits,
            listener,
            poll,
            clients: BTreeMap::new(),
            active: VecDeque::new(),
            ports: BTreeMap::new(),
            frames: Vec::new(),
            flows: VecDeque::new(),
            next_client: LINK + 1,
            next_port: EPHEMERAL,
            dropped: 0,
        })
    }

    /// Serves without end.
    ///
    /// # Errors
    /// Those of waiting, and of the link.
    pub fn run(&mut self) -> io::Result<()> {
        loop {
            self.step()?;
        }
    }

    /// Waits for something to do, unless there is, and does it.
    ///
    /// # Errors
    /// Those of [`run`](Server::run).
    pub fn step(&mut self) -> io::Result<()> {
        let has_time = match &self.link {
            Link::Loopback => !self.stack.reassembly().is_empty(),
            Link::Card(card) => card.has_asked() || !self.stack.reassembly().is_empty(),
        };
        let wait = match (self.active.is_empty(), has_time) {
            (false, _) => 0,
            (true, true) => TICK,
            (true, false) => -1,
        };
        let mut ready = Vec::new();
        self.poll.wait(wait, |number| ready.push(number))?;
        for number in ready {
            match number {
                LISTENER => self.accept(),
                LINK => self.take_frames()?,
                client if !self.active.contains(&client) => self.active.push_back(client),
                _ => {}
            }
        }
        for _ in 0..self.active.len() {
            let Some(number) = self.active.pop_front() else {
                break;
            };
            match self.serve(number) {
                Ok(true) => self.active.push_back(number),
                Ok(false) => {}
                Err(_) => self.end(number),
            }
        }
        if has_time {
            self.stack.reassembly().expire(Instant::now());
            if let Link::Card(card) = &mut self.link {
                card.expire();
            }
        }
        Ok(())
    }

    /// Takes frames from the card.
    ///
    /// # Errors
    /// Those of the card.
    fn take_frames(&mut self) -> io::Result<()> {
        let Link::Card(card) = &mut self.link else {
            return Ok(());
        };
        let mut frames = mem::take(&mut self.frames);
        let taken = card.take_frames(&mut frames);
        for frame in frames.drain(..) {
            // What fails is a packet that is lost.
            if self.take_frame(&frame).is_err() {
                self.dropped += 1;
            }
        }
        self.frames = frames;
        match taken {
            Ok((_, false)) => return Ok(()),
            Ok((_, true)) => {}
            // It comes once, after the link went down.
            Err(why) if why.raw_os_error() == Some(libc::ENETDOWN) => return Ok(()),
            Err(why) => return Err(why),
        }
        for _ in 0..FRAMES {
            let Link::Card(card) = &mut self.link else {
                return Ok(());
            };
            let start = match card.peek() {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // It comes once, after the link went down.
                Err(why) if why.raw_os_error() == Some(libc::ENETDOWN) => return Ok(()),
                result => result?,
            };
            // What fails below is a packet that is lost.
            let taken = match start.packet() {
                None => card.take_other(self.stack.path()),
                Some(packet) => {
                    let owner = owner(&self.ports, &self.stack, &self.flows, packet, start.len);
                    self.take_packet(owner, start.len)
                }
            };
            if taken.is_err() {
                self.dropped += 1;
            }
        }
        Ok(())
    }

    /// Takes a frame that came in fbufs, where it stays.
    fn take_frame(&mut self, frame: &Received) -> io::Result<()> {
        let Link::Card(card) = &mut self.link else {
            return Ok(());
        };
        if Start::of(frame).packet().is_none() {
            return card.look_at_other(frame, self.stack.path());
        }
        let packet = self.stack.path().forward_frame(frame)?;
        let result = self.up(&packet.clip_front(ETHERNET as u64)?, None);
        // A reply of ICMP.
        let carried = self.carry(None);
        result.and(carried)
    }

    /// Takes a packet into an fbuf of the client that it is for, as far as that is known.
    fn take_packet(&mut self, owner: Option<Owner>, len: usize) -> io::Result<()> {
        let Link::Card(card) = &mut self.link else {
            return Ok(());
        };
        let client = owner
            .as_ref()
            .and_then(|it| self.clients.get_mut(&it.client));
        let fbuf = match client {
            Some(client) => match client.has_room(&self.limits, 0) {
                Ok(true) => client.path().and_then(|it| it.allocate(len)),
                _ => Err(error(libc::ENOBUFS)),
            },
            None => self.stack.path().allocate(len),
        };
        let mut fbuf = match fbuf {
            Ok(fbuf) => fbuf,
            Err(why) => {
                // It leaves the queue all the same.
                card.drop_frame()?;
                return Err(why);
            }
        };
        let len = card.take(&mut fbuf)?;
        let packet = Aggregate::new(fbuf, len)?.clip_front(ETHERNET as u64)?;
        if let Some(Owner { client, key }) = owner
            && !self.flows.iter().any(|(it, _)| *it == key)
        {
            if self.flows.len() >= FLOWS {
                self.flows.pop_front();
            }
            self.flows.push_back((key, client));
        }
        let result = self.up(&packet, None);
        // A reply of ICMP.
        let carried = self.carry(None);
        result.and(carried)
    }

    fn accept(&mut self) {
        // Whatever fails here is the new client's loss.
        let Ok((socket, _)) = self.listener.accept() else {
            return;
        };
        if self.clients.len() >= MOST_CLIENTS {
            return;
        }
        let number = self.next_client;
        let client = Client::greet(number, socket, &self.limits);
        let client = client.and_then(|it| self.watch(&it).map(|()| it));
        if let Ok(client) = client {
            self.next_client += 1;
            self.clients.insert(number, client);
        }
    }

    fn watch(&self, client: &Client) -> io::Result<()> {
        let mut all = client.descriptors().into_iter();
        all.try_for_each(|it| self.poll.add(it, client.number))
    }

    /// Serves a client; returns whether it may have more to do.
    ///
    /// # Errors
    /// What ends the client.
    fn serve(&mut self, number: u64) -> io::Result<bool> {
        let Some(client) = self.clients.get_mut(&number) else {
            return Ok(false);
        };
        if client.is_new() {
            // The connection is watched as a part of the line.
            client
                .descriptors()
                .into_iter()
                .for_each(|it| self.poll.remove(it));
            let is_open = client.open(&self.domain, &self.limits)?;
            let client = self.clients.get(&number);
            client.map_or(Ok(()), |it| self.watch(it))?;
            return Ok(is_open);
        }
        for _ in 0..TURN {
            let Some(client) = self.clients.get_mut(&number) else {
                return Ok(false);
            };
            match client.receive() {
                Ok(message) => self.take(number, &message)?,
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                    // What a client sent before its end counts.
                    client.line()?.check()?;
                    return Ok(client.line()?.arm());
                }
                // No aggregate, or too many pieces: it is freed, and the client goes on.
                Err(why) if is_bad_message(&why) => self.dropped += 1,
                Err(why) => return Err(why),
            }
        }
        Ok(true)
    }

    /// Drops a client with all that it has.
    fn end(&mut self, number: u64) {
        let Some(client) = self.clients.remove(&number) else {
            return;
        };
        client
            .descriptors()
            .into_iter()
            .for_each(|it| self.poll.remove(it));
        for port in &client.ports {
            self.ports.remove(port);
        }
        for other in self.clients.values_mut() {
            other.forget(&client);
        }
    }

    /// Does what a message of a client asks for.
    fn take(&mut self, number: u64, message: &Received) -> io::Result<()> {
        let mut bytes = [0; HEADER];
        message.copy_at(0, &mut bytes);
        let Some(header) = Header::read(&bytes) else {
            return Err(error(libc::EPROTO));
        };
        let result = match header.op {
            Op::Bind => self.bind(number, &header),
            Op::Connect => self.connect(number, &header),
            Op::Close => self.close(number, &header),
            Op::Send => {
                // Without a reply: datagrams that cannot be sent are lost.
                if self.send(number, &header, message).is_err() {
                    self.dropped += 1;
                }
                return Ok(());
            }
            Op::Reply | Op::Datagram | Op::Gone => return Err(error(libc::EPROTO)),
        };
        let none = SocketAddrV4::new(self.stack.config().address, 0);
        let mut reply = Header::new(Op::Reply, header.port, none);
        reply.request = header.request;
        match result {
            Ok(port) => reply.port = port,
            Err(number) => reply.error = number as u16,
        }
        match self.clients.get_mut(&number) {
            Some(client) => client.send(&reply, None),
            None => Ok(()),
        }
    }

    fn bind(&mut self, number: u64, header: &Header) -> Result<u16, i32> {
        let client = self.clients.get_mut(&number).ok_or(libc::EPIPE)?;
        if client.ports.len() >= self.limits.ports {
            return Err(libc::ENOBUFS);
        }
        let port = match header.port {
            0 => {
                let mut candidates = (0..=u16::MAX - EPHEMERAL).map(|step| {
                    let from = self.next_port - EPHEMERAL;
                    EPHEMERAL + (from + step) % (u16::MAX - EPHEMERAL + 1)
                });
                let port = candidates.find(|port| !self.ports.contains_key(port));
                port.ok_or(libc::EADDRINUSE)?
            }
            port if self.ports.contains_key(&port) => return Err(libc::EADDRINUSE),
            port => port,
        };
        if header.port == 0 {
            self.next_port = port.checked_add(1).unwrap_or(EPHEMERAL);
        }
        client.ports.insert(port);
        let bound = Port {
            client: number,
            peer: None,
            is_verified: header.flags & NO_VERIFY == 0,
        };
        self.ports.insert(port, bound);
        Ok(port)
    }

    /// Returns a port of a client.
    fn port(&mut self, number: u64, port: u16) -> Result<&mut Port, i32> {
        let found = self.ports.get_mut(&port);
        found.filter(|it| it.client == number).ok_or(libc::EINVAL)
    }

    fn connect(&mut self, number: u64, header: &Header) -> Result<u16, i32> {
        let port = self.port(number, header.port)?;
        port.peer = Some(header.peer).filter(|peer| peer.port() != 0);
        Ok(header.port)
    }

    fn close(&mut self, number: u64, header: &Header) -> Result<u16, i32> {
        self.port(number, header.port)?;
        self.ports.remove(&header.port);
        if let Some(client) = self.clients.get_mut(&number) {
            client.ports.remove(&header.port);
        }
        Ok(header.port)
    }

    fn send(&mut self, number: u64, header: &Header, message: &Received) -> io::Result<()> {
        self.port(number, header.port).map_err(error)?;
        let body = self.stack.path().forward(message);
        let body = body.clip_front(HEADER as u64)?;
        let has_checksum = header.flags & NO_CHECKSUM == 0;
        let result = self
            .stack
            .send(header.port, header.peer, &body, has_checksum);
        let sent = self.carry(Some(number));
        result.and(sent)
    }

    /// Carries packets between the protocols and the link. All that turns around here came from
    /// this client.
    fn carry(&mut self, from: Option<u64>) -> io::Result<()> {
        let mut result = Ok(());
        while let Some((to, packet)) = self.stack.take() {
            let is_own = to == self.stack.config().address;
            let carried = match &mut self.link {
                Link::Loopback => self.up(&packet, from),
                Link::Card(_) if is_own => self.up(&packet, from),
                Link::Card(card) => card.send(to, packet, self.stack.path()),
            };
            result = result.and(carried);
        }
        result
    }

    fn up(&mut self, packet: &Aggregate, from: Option<u64>) -> io::Result<()> {
        match self.stack.receive(packet, Instant::now())? {
            Some(datagram) => self.deliver(&datagram, from),
            None => Ok(()),
        }
    }

    /// Gives a datagram to the client that has its port.
    fn deliver(&mut self, datagram: &Datagram, from: Option<u64>) -> io::Result<()> {
        let Some(port) = self.ports.get(&datagram.to.port()) else {
            return Err(error(libc::ECONNREFUSED));
        };
        let to = port.client;
        if port.peer.is_some_and(|peer| peer != datagram.from) {
            return Err(error(libc::ECONNREFUSED));
        }
        if port.is_verified && !datagram.is_intact() {
            return Err(error(libc::EBADMSG));
        }
        let sender_port = self.ports.get(&datagram.from.port());
        let may_share = from.is_some_and(|from| {
            sender_port.is_some_and(|it| it.client == from && it.peer == Some(datagram.to))
        });
        let Some(mut client) = self.clients.remove(&to) else {
            return Err(error(libc::ECONNREFUSED));
        };
        let sender = from.filter(|from| *from != to);
        let sender = sender.and_then(|from| self.clients.get_mut(&from));
        let sender = sender.map(|sender| (sender, may_share));
        let source = match &self.link {
            Link::Card(card) if from.is_none() => Source::Card {
                shared: card.member().filter(|_| self.limits.shares_card),
            },
            _ => Source::Client(sender),
        };
        let result = give(&mut client, source, &self.limits, datagram);
        self.clients.insert(to, client);
        result
    }
}

/// The client that a packet is for, and the datagram that it is of.
struct Owner {
    client: u64,
    key: Key,
}

/// Looks at the start of a packet for whom it is.
fn owner(
    ports: &BTreeMap<u16, Port>,
    stack: &Stack,
    flows: &VecDeque<(Key, u64)>,
    packet: &[u8],
    len: usize,
) -> Option<Owner> {
    let (ip, header_len) = Ipv4::read(packet, len)?;
    if ip.to != stack.config().address || ip.protocol != protocol::UDP {
        return None;
    }
    let key = Key::of(&ip);
    let client = match ip.offset {
        0 => {
            let udp = Udp::read(packet.get(header_len..)?.first_chunk()?);
            ports.get(&udp.to)?.client
        }
        _ => flows.iter().find(|(it, _)| *it == key)?.1,
    };
    Some(Owner { client, key })
}

/// Where a datagram comes from.
enum Source<'a> {
    /// The card; the membership in the path of its fbufs, if clients may join that.
    Card { shared: Option<&'a Member> },
    /// Another client, and whether the receiver may join its path; `None`: the receiver itself.
    Client(Option<(&'a mut Client, bool)>),
}

/// Gives a datagram to a client. Its body lies in fbufs of the sending client, if there is one, or
/// of the card: where the receiver may join that path, it is not copied.
fn give(
    client: &mut Client,
    source: Source<'_>,
    limits: &Limits,
    datagram: &Datagram,
) -> io::Result<()> {
    let mut header = Header::new(Op::Datagram, datagram.to.port(), datagram.from);
    if !client.has_room(limits, datagram.body.len())? {
        return Err(error(libc::ENOBUFS));
    }
    let is_by_kernel = client.line()?.is_by_kernel();
    let may_read = match source {
        Source::Card { shared } => {
            if let Some(member) = shared {
                client.share_card(member)?;
                header.share = CARD;
            }
            // It joins by its first datagram.
            client.path()?.has(&datagram.body)
                || shared.is_some() && client.may_read(&datagram.body)
        }
        Source::Client(None) => true,
        Source::Client(Some((sender, may_share))) => {
            // A receiver that may read the sender's path for good costs no mapping for each
            // message.
            let is_shared = may_share && !sender.is_uncached() && sender.share_with(client)?;
            if is_shared {
                header.share = sender.number;
            }
            // What the sender sends on may be another's, and a receiver joins by its first
            // datagram.
            is_by_kernel || (is_shared && client.may_read(&datagram.body))
        }
    };
    if may_read {
        let body = client.path()?.adopt(&datagram.body)?;
        match client.send(&header, Some(&body)) {
            // Through the kernel, to a client that has not joined yet.
            Err(why) if why.raw_os_error() == Some(libc::EPERM) && header.share == CARD => {}
            result => return result,
        }
    }
    let body = copied(client, &datagram.body)?;
    client.send(&header, Some(&body))
}

/// Copies a body into fbufs of the server's path to a client.
fn copied(client: &Client, body: &Aggregate) -> io::Result<Aggregate> {
    let len = body.len() as usize;
    if len == 0 {
        return Ok(client.path()?.empty());
    }
    let mut fbuf = client.path()?.allocate(len)?;
    let copied = body.copy_at(0, &mut fbuf[..len]);
    Aggregate::new(fbuf, copied)
}

fn is_bad_message(why: &io::Error) -> bool {
    let bad = [
        libc::EFAULT,
        libc::ELOOP,
        libc::E2BIG,
        libc::EINVAL,
        libc::ENOMEM,
    ];
    why.raw_os_error().is_some_and(|it| bad.contains(&it))
}
