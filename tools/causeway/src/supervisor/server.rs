//! The supervisor's side of the guest's socket: a thread for each client.

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use session::Window;

use super::wire::{self, Answer, Greeting, Note, Request};
use crate::guest::Killer;
use crate::input::Keys;
use crate::sessions::{Descriptor, Event, FIRST, Handle, Observer, Streams};

/// The most clients at a time.
const CLIENTS: usize = 100;

/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);

/// The guest, as its clients use it.
#[derive(Clone)]
pub struct Server {
    pub handle: Handle,
    pub killer: Killer,
    /// Set before the machine is ended.
    pub killed: Arc<AtomicBool>,
    /// The clients that asked to be attached, by their names.
    pub attached: Arc<Mutex<Vec<(u64, UnixStream)>>>,
}

impl Server {
    /// Serves clients for as long as this program runs.
    pub fn start(self, listener: UnixListener) {
        let clients = Arc::new(AtomicUsize::new(0));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS {
                    clients.fetch_sub(1, Ordering::Relaxed);
                    wire::greet(&client);
                    wire::write_now(&client, &refused("it has too many clients"));
                    continue;
                }
                let (server, clients) = (self.clone(), Arc::clone(&clients));
                thread::spawn(move || {
                    // A client that speaks wrongly, or goes away, loses its connection.
                    let _ = server.attend(&client);
                    clients.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
    }

    /// Does what a client asks for, until it is gone.
    fn attend(&self, client: &UnixStream) -> Result<()> {
        client.set_read_timeout(Some(PATIENCE))?;
        wire::greet(client);
        if wire::greeting(client)? != Greeting::Version(wire::VERSION) {
            return Ok(());
        }
        let mut next = wire::read::<Request>(client)?;
        client.set_read_timeout(None)?;
        let (request, descriptors) = loop {
            match next {
                None => return Ok(()),
                // The end of a guest that takes no messages may be asked for next.
                Some((Request::Signal(signal), _)) => self.handle.signal_now(FIRST, signal),
                Some((Request::End, _)) => {
                    self.killed.store(true, Ordering::SeqCst);
                    self.killer.kill();
                }
                Some((Request::Watch, _)) => {}
                Some(session) => break session,
            }
            wire::write(client, &Answer::Done, &[])?;
            next = wire::read::<Request>(client)?;
        };
        let id = match request {
            Request::Exec(program) => {
                let terminal = program.terminal();
                let keys = terminal.is_some_and(|terminal| terminal.streams[0]);
                let streams = streams(descriptors, keys.then(Keys::default))?;
                self.handle.open(program, streams, observer(client)?)
            }
            Request::Attach { window, has_keys } => {
                let keys = has_keys.then(Keys::attached);
                let streams = streams(descriptors, keys)?;
                self.attach(client, streams, window)?
            }
            Request::Signal(_) | Request::End | Request::Watch => return Ok(()),
        };
        while let Ok(Some((note, _))) = wire::read::<Note>(client) {
            match note {
                Note::Window(window) => self.handle.window(id, window),
                Note::Signal(signal) => self.handle.signal(id, signal),
            }
        }
        // Of a session that is over this says nothing.
        self.handle.hang_up(id);
        Ok(())
    }
}

impl Server {
    /// Attaches a client. One that was attached and is gone leaves its place to it, though the
    /// thread that serves that one may not know yet.
    fn attach(&self, client: &UnixStream, streams: Streams, window: Option<Window>) -> Result<u64> {
        let kept = client.try_clone()?;
        let observer = observer(client)?;
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.retain(|(id, connection)| {
            let is_gone = is_gone(connection);
            if is_gone {
                self.handle.hang_up(*id);
            }
            !is_gone
        });
        let id = self.handle.attach(streams, window, observer);
        attached.push((id, kept));
        Ok(id)
    }
}

/// Whether the other side has closed a connection.
fn is_gone(connection: &UnixStream) -> bool {
    let mut looked = [PollFd::new(connection, PollFlags::empty())];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let found = poll(&mut looked, Some(&at_once));
    found.is_ok_and(|count| count > 0) && looked[0].revents().contains(PollFlags::HUP)
}

fn refused(why: &str) -> Answer {
    Answer::Event(Event::Refused(why.into()))
}

/// The client's standard input, output and error.
fn streams(descriptors: Vec<OwnedFd>, keys: Option<Keys>) -> Result<Streams> {
    let descriptors: [OwnedFd; 3] = descriptors.try_into().ok().context("not three streams")?;
    let [input, output, error] = descriptors;
    Ok(Streams {
        input: Some(Descriptor::source(input)),
        keys,
        outputs: [output, error].map(|sink| Some(Descriptor::sink(sink))),
        recorder: None,
    })
}

/// A client's connection; it ends with this.
struct Connection(UnixStream);

impl Drop for Connection {
    fn drop(&mut self) {
        // The client may have closed it before.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// Tells a client what happens to its session.
fn observer(client: &UnixStream) -> Result<Observer> {
    let connection = Connection(client.try_clone()?);
    Ok(Box::new(move |event| {
        wire::write_now(&connection.0, &Answer::Event(event));
    }))
}
