//! `/proc`: what programs may know, in Linux's formats.
//!
//! `system`: the machine as a whole. `process`: a directory for each process. `subject`: the
//! process or thread of a file. `status`: the numbers of one. `identity`: its ids and counts.
//! `memory`: its mappings. `mem`: its memory itself. `descriptors`: its open files. `disks`: block
//! devices. `sys`: settings. `sysvipc`: System V objects. `net`: sockets. `causeway`: files that
//! only this kernel has.

mod causeway;
mod counts;
mod descriptors;
pub(crate) mod disks;
mod identity;
mod mem;
mod memory;
mod mounts;
mod net;
mod process;
mod ptcache;
mod spaces;
mod status;
mod subject;
mod sys;
mod system;
mod sysvipc;

use alloc::{format, sync::Arc};

use abi::Errno;
use fs::{
    Vnode,
    pseudofs::{self, Entry, Table},
};

use super::{link, shown};
use crate::process::thread;

/// Returns the process whose directory a vnode is.
pub(crate) fn process_of(vnode: &dyn Vnode) -> Option<Arc<crate::process::Process>> {
    let subject: &subject::Subject = pseudofs::directory(vnode)?.downcast_ref()?;
    subject.tid.is_none().then(|| subject.process.clone())
}

/// The root of a new `/proc`. All of them show the same.
pub fn root(causeway: &[(&'static str, fn() -> Entry)]) -> Arc<dyn Vnode> {
    let own = |text: fn(&thread::Thread) -> alloc::string::String| {
        Entry::link(move || {
            thread::with_current(text)
                .map(alloc::string::String::into_bytes)
                .ok_or(Errno::ENOENT)
        })
    };
    let table = Table::new()
        .with("self", own(|thread| format!("{}", thread.process().pid())))
        .with(
            "thread-self",
            own(|thread| format!("{}/task/{}", thread.process().pid(), thread.tid())),
        )
        .with(
            "causeway",
            Entry::directory(causeway::directory(causeway).with("network", shown(counts::network))),
        )
        .with("net", link("self/net"))
        .with("sys", Entry::directory(sys::directory()))
        .with("sysvipc", Entry::directory(sysvipc::directory()));
    pseudofs::root("proc", system::add(table).otherwise(process::Processes))
}
