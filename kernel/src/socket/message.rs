//! Messages on their way between a call and a socket.

use alloc::{sync::Arc, vec::Vec};

use abi::raw::net as raw;
use fbuf::{Sink, Source};

use super::{
    Address, Timeout,
    control::{Control, ControlSink},
};
use crate::process::files::OpenFile;

/// The program leaves the bytes as they are until it is told that they have arrived.
pub const MSG_ZEROCOPY: u32 = 0x400_0000;

/// A message to be sent.
pub struct Outgoing<'a> {
    /// Its bytes; those not taken stay.
    pub data: &'a mut dyn Source,
    /// `MSG_*` as the program gave them.
    pub flags: u32,
    /// To whom, if the program said.
    pub to: Option<Address>,
    /// The ancillary data that go with it.
    pub control: Control<'a>,
    /// How long the socket may wait for room.
    pub timeout: Timeout,
}

/// A message to be received.
pub struct Incoming<'a> {
    /// Where its bytes go.
    pub data: &'a mut dyn Sink,
    /// `MSG_*` as the program gave them.
    pub flags: u32,
    /// How long the socket may wait for a message.
    pub timeout: Timeout,
    /// The program asks from whom it is.
    pub wants_address: bool,
    /// From whom; set by the socket.
    pub from: Option<Address>,
    /// `MSG_TRUNC`, `MSG_EOR`, `MSG_OOB`, `MSG_ERRQUEUE`, `MSG_CTRUNC`; added by the socket.
    pub answer: u32,
    /// The ancillary data that came with it; filled by the socket.
    pub control: ControlSink,
    /// Open files that came with it (`SCM_RIGHTS`), which get descriptors where the program has
    /// asked for control data.
    pub rights: Vec<Arc<OpenFile>>,
}

impl<'a> Outgoing<'a> {
    /// Only bytes.
    pub fn plain(data: &'a mut dyn Source, flags: u32, timeout: Timeout) -> Outgoing<'a> {
        Outgoing {
            data,
            flags,
            to: None,
            control: Control::NONE,
            timeout,
        }
    }

    /// Whether the program set `flag`.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

impl<'a> Incoming<'a> {
    /// Only bytes.
    pub fn plain(data: &'a mut dyn Sink, flags: u32, timeout: Timeout) -> Incoming<'a> {
        Incoming {
            data,
            flags,
            timeout,
            wants_address: false,
            from: None,
            answer: 0,
            control: ControlSink::none(),
            rights: Vec::new(),
        }
    }

    /// Whether the program set `flag`.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether the message stays where it is.
    pub fn peeks(&self) -> bool {
        self.has(raw::MSG_PEEK)
    }
}
