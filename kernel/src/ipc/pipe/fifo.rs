//! FIFOs: pipes with a name.

use alloc::sync::Arc;

use abi::{Errno, Result, raw::general::O_NONBLOCK};
use fs::{File, Location, OpenFlags, device::Attachment};

use super::{end::End, queue::Pipe};

/// Opens the FIFO at `place`, whose openers meet through `state`. Waits for the other end as
/// `fifo(7)` says.
///
/// # Errors
/// `ENXIO` for writing without a reader and with `O_NONBLOCK`; a restart number; `ENOMEM`.
pub fn open(place: &Location, state: &Attachment, flags: OpenFlags) -> Result<Arc<dyn File>> {
    let pipe = state.get_or_make(Pipe::new)?;
    open_pipe(&pipe, Some(place.clone()), flags)
}

/// Opens ends of `pipe`, with its name if it has one. The ends of a pipe without a name have met
/// already: nothing waits.
///
/// # Errors
/// Those of [`open`].
pub(super) fn open_pipe(
    pipe: &Arc<Pipe>,
    place: Option<Location>,
    flags: OpenFlags,
) -> Result<Arc<dyn File>> {
    let (reads, writes) = (flags.reads(), flags.writes());
    if place.is_none() {
        let end = End::new(pipe, reads, writes, None);
        end.has_met();
        return Ok(end);
    }
    let wait = !flags.has(O_NONBLOCK);
    let before = pipe.status();
    if writes && !reads && !wait && before.readers == 0 {
        return Err(Errno::ENXIO);
    }
    let end = End::new(pipe, reads, writes, place);
    if wait && reads != writes {
        // An opener that has come and gone meanwhile counts as met.
        if reads && before.writers == 0 {
            pipe.wait(&pipe.readers, |now| now.writers_seen != before.writers_seen)?;
        }
        if writes && before.readers == 0 {
            pipe.wait(&pipe.writers, |now| now.readers_seen != before.readers_seen)?;
        }
        end.has_met();
    }
    Ok(end)
}
