//! Commands to a device (5.1.6.5).

use alloc::sync::Arc;
use core::time::Duration;

use nucleus::{
    dma::Buffer,
    sync::Mutex,
    task::Sleep,
    virtio::{Device, Error, Queue, Request},
};

/// Which packets the device hands over.
pub const PROMISCUOUS: (u8, u8) = (0, 0);
pub const ALL_GROUPS: (u8, u8) = (0, 1);
/// How many pairs of queues are used.
pub const SET_PAIRS: (u8, u8) = (4, 0);

/// How long the device may take for a command.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most bytes of an argument, and where things are in the frame.
const ARGUMENT: usize = 8;
const ARGUMENT_AT: usize = 8;
const ANSWER_AT: usize = 32;
/// The answer, and what stands there before it.
const OK: u8 = 0;
const NONE: u8 = 0xff;

/// The control queue.
pub struct Control {
    queue: Arc<Queue>,
    state: Mutex<State>,
}

struct State {
    request: Arc<Request>,
    page: Buffer,
}

impl Control {
    /// The control queue with this number.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(device: &Device, number: u16) -> Result<Control, Error> {
        let queue = device.queue(number).clone();
        queue.prepare(1)?;
        let state = State {
            request: Request::idle(3)?,
            page: device.pool(1)?.take()?,
        };
        Ok(Control {
            queue,
            state: Mutex::new(crate::rank::CARD, state),
        })
    }

    /// Gives the device a command, and waits until it is done.
    ///
    /// # Errors
    /// [`Error::Lacks`] if the device refuses it, [`Error::Broken`] if it does not answer.
    pub fn command(&self, (class, command): (u8, u8), argument: &[u8]) -> Result<(), Error> {
        assert!((1..=ARGUMENT).contains(&argument.len()));
        let state = self.state.lock();
        let State { request, page } = &*state;
        if request.result().is_none() {
            // An earlier command is not answered yet.
            return Err(Error::Broken);
        }
        page.write(0, &[class, command]);
        page.write(ARGUMENT_AT, argument);
        page.write(ANSWER_AT, &[NONE]);
        request.renew(2, |parts| {
            parts.push(page.part(0, 2));
            parts.push(page.part(ARGUMENT_AT, argument.len()));
            parts.push(page.part(ANSWER_AT, 1));
        });
        self.queue
            .try_submit(request)
            .inspect_err(|_| request.abandon())?;
        let done = self.queue.wait(request, Sleep::within(PATIENCE));
        done.map_err(|_| Error::Broken)??;
        let mut answer = [NONE];
        page.read(ANSWER_AT, &mut answer);
        match answer[0] {
            OK => Ok(()),
            _ => Err(Error::Lacks("a command")),
        }
    }
}
