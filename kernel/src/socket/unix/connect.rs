//! Names and connections.

use alloc::{boxed::Box, collections::VecDeque, sync::Arc};

use abi::{
    Errno, Result,
    raw::net::{AF_UNSPEC, SO_PASSCRED, SOCK_DGRAM},
};
use nucleus::frame;

use super::{
    UnixSocket, credentials,
    end::{DataQueue, End, Inbox, Listener, Stage},
    name::{Asked, Name},
};
use crate::socket::{Address, Socket, Timeout};

/// The answer of a listener to a connecting socket.
enum Answer {
    Queued,
    Full,
}

impl UnixSocket {
    /// Gives it a name.
    ///
    /// # Errors
    /// `EINVAL` if it has one, or for a bad address; `EADDRINUSE`; those of making a node.
    pub(super) fn bind_name(&self, address: &Address) -> Result<()> {
        let asked = Asked::read(address)?;
        if self.end.name().is_some() {
            // An address without a name only asks that there be one.
            return match asked {
                Asked::Any => Ok(()),
                _ => Err(Errno::EINVAL),
            };
        }
        let name = Name::bind(asked, &self.end)?;
        if !self.end.set_name(&name) {
            // Another thread bound it in the meantime.
            name.forget(&self.end);
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// A socket that wants to know senders gets a name, so that it can be answered to.
    pub(super) fn bind_if_curious(&self) -> Result<()> {
        if !self.end.common.is_on(SO_PASSCRED) || self.end.name().is_some() {
            return Ok(());
        }
        match self.bind_name(&Name::none()) {
            Err(Errno::EINVAL) => Ok(()),
            result => result,
        }
    }

    /// Makes it accept connections, or changes how many may wait.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for datagrams, `EINVAL` without a name or when connected.
    pub(super) fn start_listening(&self, backlog: u32) -> Result<()> {
        if self.is_datagram() {
            return Err(Errno::EOPNOTSUPP);
        }
        if self.end.name().is_none() {
            return Err(Errno::EINVAL);
        }
        let credentials = credentials::current_peer();
        {
            let mut stage = self.end.stage.lock();
            match &mut *stage {
                Stage::Fresh => {
                    *stage = Stage::Listening(Listener {
                        backlog,
                        waiting: VecDeque::new(),
                        credentials,
                    });
                }
                Stage::Listening(listener) => {
                    listener.backlog = backlog;
                    listener.credentials = credentials;
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        self.end.connecters.wake_all();
        Ok(())
    }

    /// The next connection.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for datagrams; `EINVAL` if it does not listen, or no longer; those of waiting.
    pub(super) fn accept_connection(&self, timeout: Timeout) -> Result<Arc<dyn Socket>> {
        if self.is_datagram() {
            return Err(Errno::EOPNOTSUPP);
        }
        let next = || {
            let mut stage = self.end.stage.lock();
            let Stage::Listening(listener) = &mut *stage else {
                return Some(Err(Errno::EINVAL));
            };
            match listener.waiting.pop_front() {
                Some(socket) => Some(Ok(socket)),
                None if self.end.is_receive_shut() => Some(Err(Errno::EINVAL)),
                None => None,
            }
        };
        let accepted = timeout.wait(&self.end.common.readers, next)??;
        self.end.connecters.wake_all();
        Ok(accepted)
    }

    /// Connects a stream or a socket of packets.
    ///
    /// # Errors
    /// `ECONNREFUSED`, `EISCONN`, `EAGAIN` when too many wait, those of the address and of waiting.
    pub(super) fn connect_to(&self, address: &Address, timeout: Timeout) -> Result<()> {
        let asked = Asked::read(address)?;
        self.bind_if_curious()?;
        loop {
            let listener = Name::find(&asked, self.end.common.kind)?;
            self.end.stage.lock().check_fresh()?;
            let accepted = self.other_side(&listener)?;
            match self.queue_for(&listener, accepted)? {
                Answer::Queued => return Ok(()),
                Answer::Full => {
                    // An accepting thread makes room; the name may have changed its owner then.
                    timeout.wait_until(&listener.connecters, || has_place(&listener))?;
                }
            }
        }
    }

    /// The socket that the listener's side is to accept, connected to this one already.
    fn other_side(&self, listener: &Arc<End>) -> Result<Arc<UnixSocket>> {
        frame::check_not_scarce()?;
        let end = End::new(self.end.common.kind)?;
        if let Some(name) = listener.name() {
            end.set_name(&name);
        }
        *end.stage.lock() = Stage::Connected;
        end.set_peer(Some(&self.end));
        let accepted = UnixSocket::new(end);
        accepted
            .connected
            .get_or_insert(|| Box::new(self.end.clone()));
        accepted.set_peer_credentials(credentials::current_peer());
        Ok(Arc::new(accepted))
    }

    /// Queues `accepted` for the listener, and connects this socket to it.
    fn queue_for(&self, listener: &Arc<End>, accepted: Arc<UnixSocket>) -> Result<Answer> {
        // Claimed first: no other thread connects this socket while it is being queued.
        {
            let mut stage = self.end.stage.lock();
            stage.check_fresh()?;
            *stage = Stage::Connecting;
        }
        let other = accepted.end.clone();
        let (stage, result) = match push(listener, accepted) {
            Ok(Pushed::Yes(credentials)) => {
                self.set_peer_credentials(credentials);
                self.connected.get_or_insert(|| Box::new(other.clone()));
                self.end.set_peer(Some(&other));
                (Stage::Connected, Ok(Answer::Queued))
            }
            Ok(Pushed::No(accepted)) => {
                // It was never accepted: only its entry among all ends goes.
                accepted.end.release();
                (Stage::Fresh, Ok(Answer::Full))
            }
            Err(error) => (Stage::Fresh, Err(error)),
        };
        *self.end.stage.lock() = stage;
        if matches!(result, Ok(Answer::Queued)) {
            listener.common.readers.wake_shared(false);
            self.end.common.writers.wake_all();
        }
        result
    }

    /// Sets or takes away where datagrams go.
    ///
    /// # Errors
    /// `ECONNREFUSED`, `EPERM` if that one is connected to another, those of the address.
    pub(super) fn set_target(&self, address: &Address) -> Result<()> {
        let target = if address.family() == Some(AF_UNSPEC) {
            None
        } else {
            let asked = Asked::read(address)?;
            self.bind_if_curious()?;
            let target = Name::find(&asked, SOCK_DGRAM)?;
            if !may_send(&self.end, &target) {
                return Err(Errno::EPERM);
            }
            Some(target)
        };
        let old = {
            let mut slot = self.target.lock();
            self.end.set_peer(target.as_ref());
            core::mem::replace(&mut *slot, target.clone())
        };
        if let Some(old) = old
            && target.is_none_or(|target| !Arc::ptr_eq(&old, &target))
        {
            self.disconnected(&old);
        }
        self.end.common.writers.wake_all();
        Ok(())
    }

    /// Datagrams go elsewhere from now on: what waits here was from the old one and is lost; if
    /// that one is connected to this socket, it is told.
    pub(super) fn disconnected(&self, old: &Arc<End>) {
        if let Inbox::Messages(messages) = &self.end.inbox
            && messages.discard()
            && !old.is_closed()
            && old.sends_to(&self.end)
        {
            old.reset();
            old.common.wake();
        }
    }
}

/// Whether `to` takes datagrams of `from`: unless it is connected to another.
pub(super) fn may_send(from: &Arc<End>, to: &Arc<End>) -> bool {
    to.has_no_peer() || to.sends_to(from)
}

/// The result of queueing a connection.
enum Pushed {
    /// It is queued; the credentials of the listener.
    Yes(Option<crate::socket::PeerCredentials>),
    No(Arc<UnixSocket>),
}

fn push(listener: &End, accepted: Arc<UnixSocket>) -> Result<Pushed> {
    let mut stage = listener.stage.lock();
    let result = match &mut *stage {
        Stage::Listening(_) if listener.is_receive_shut() => Err(Errno::ECONNREFUSED),
        Stage::Listening(listener) => {
            if listener.waiting.len() > listener.backlog as usize {
                return Ok(Pushed::No(accepted));
            }
            if listener.waiting.try_reserve(1).is_ok() {
                listener.waiting.push_back(accepted);
                return Ok(Pushed::Yes(listener.credentials.clone()));
            }
            Err(Errno::ENOMEM)
        }
        _ => Err(Errno::ECONNREFUSED),
    };
    drop(stage);
    accepted.end.release();
    result
}

/// Whether a connection could be queued now, or none ever will.
fn has_place(listener: &End) -> bool {
    match &*listener.stage.lock() {
        Stage::Listening(waiting) => {
            waiting.waiting.len() <= waiting.backlog as usize || listener.is_receive_shut()
        }
        _ => true,
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // A socket that never had an open file (a pair that could not be installed, a connection
        // that was never accepted).
        if !self.end.is_closed() {
            self.release();
        }
    }
}
