//! Memory that is passed to another process: pages and map entries (`uvm.txt` 7).

use libcauseway::{Causeway, Passing, Receiver};

use super::process_vm::Child;
use crate::mapping::Mapping;
use crate::movement::PAGE;
use crate::{Bench, Experiment, Failure, call};

/// Page loanout, page transfer, and map entry passing against a copy.
pub const EXPERIMENT: Experiment = Experiment {
    name: "passing",
    title: "Memory passed to another process: loan, transfer, map entries, and a copy",
    help: "\
One operation gives so many written pages of this process to its child, at one place there, whose
former pages are replaced. The child does not touch them. Loans and copies of entries alternate
between two buffers, so no operation meets the pages of the one before. All but the copy need
Causeway's device.

Rows, for 1, 16, 256 and 1024 pages (PAGES):
  passing/copy-PAGES           process_vm_writev, from between two pages: every byte is copied
  passing/lend-PAGES           the pages are lent
  passing/entries-PAGES        the map entries are copied, copy-on-write
  passing/share-PAGES          the map entries are shared
  passing/fill-PAGES           new pages are written, and passed to nobody
  passing/fill-transfer-PAGES  new pages are written and transferred
  passing/fill-move-PAGES      new pages are written, and their map entries moved",
    run,
};

/// The numbers of pages.
const SIZES: [usize; 4] = [1, 16, 256, 1024];

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for pages in SIZES {
        copy(bench, pages)?;
        for (name, how) in [
            ("lend", Passing::Lend),
            ("entries", Passing::Copy),
            ("share", Passing::Share),
        ] {
            kept(bench, name, pages, how)?;
        }
        for (name, how) in [
            ("fill", None),
            ("fill-transfer", Some(Passing::Transfer)),
            ("fill-move", Some(Passing::Move)),
        ] {
            given(bench, name, pages, how)?;
        }
    }
    Ok(())
}

fn batch(pages: usize) -> u64 {
    (1024 / pages as u64).clamp(4, 100)
}

fn open() -> Result<Causeway, Failure> {
    Causeway::open().map_err(|why| Failure::Missing(format!("/dev/causeway: {why}")))
}

/// Passes memory to the start of `place` in the child.
fn pass(
    causeway: &Causeway,
    memory: &Mapping,
    len: usize,
    child: &Child,
    how: Passing,
    place: &Mapping,
) -> Result<(), Failure> {
    let start = memory.at() as usize;
    let to = Receiver::Id(child.0 as u32);
    // SAFETY: only this file uses the memory, by addresses; the child sleeps.
    let passed =
        unsafe { causeway.pass_range(start..start + len, to, how, Some(place.at() as usize)) };
    let passed = passed.map_err(|why| format!("{how:?}: {why}"))?;
    match passed.copied {
        0 => Ok(()),
        copied => Err(format!("{copied} pages were copied").into()),
    }
}

fn copy(bench: &mut Bench, pages: usize) -> Result<(), Failure> {
    let len = pages * PAGE;
    bench
        .row(format!("passing/copy-{pages}"))
        .batch(batch(pages))
        .run(|meter| {
            let memory = Mapping::zero_fill(len + PAGE)?.small();
            memory.write_pages();
            let child = Child::with_own(&memory)?;
            let [local, remote] = [64, 0].map(|offset| libc::iovec {
                iov_base: memory.at().wrapping_add(offset).cast(),
                iov_len: len,
            });
            meter.measure(|n| {
                for _ in 0..n {
                    let moved = call!(process_vm_writev(child.0, &local, 1, &remote, 1, 0))?;
                    if moved as usize != len {
                        return Err(format!("{moved} bytes of {len}").into());
                    }
                }
                Ok(())
            })
        })
}

fn kept(bench: &mut Bench, name: &str, pages: usize, how: Passing) -> Result<(), Failure> {
    let len = pages * PAGE;
    bench
        .row(format!("passing/{name}-{pages}"))
        .batch(batch(pages))
        .run(|meter| {
            let causeway = open()?;
            let place = Mapping::zero_fill(len)?.small();
            let child = Child::with_own(&place)?;
            let buffers = [
                Mapping::zero_fill(len)?.small(),
                Mapping::zero_fill(len)?.small(),
            ];
            buffers.iter().for_each(Mapping::write_pages);
            meter.measure(|n| {
                for i in 0..n {
                    let memory = &buffers[i as usize % 2];
                    pass(&causeway, memory, len, &child, how, &place)?;
                }
                Ok(())
            })
        })
}

fn given(bench: &mut Bench, name: &str, pages: usize, how: Option<Passing>) -> Result<(), Failure> {
    let len = pages * PAGE;
    bench
        .row(format!("passing/{name}-{pages}"))
        .batch(batch(pages))
        .run(|meter| {
            let causeway = how.map(|_| open()).transpose()?;
            let place = Mapping::zero_fill(len)?.small();
            let child = Child::with_own(&place)?;
            let memory = Mapping::zero_fill(len)?;
            meter.measure(|n| {
                for _ in 0..n {
                    // New memory, in the place of what was given away or remains.
                    call!(mmap(
                        memory.at().cast(),
                        len,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                        -1,
                        0
                    ))?;
                    memory.write_pages();
                    if let Some((causeway, how)) = causeway.as_ref().zip(how) {
                        pass(causeway, &memory, len, &child, how, &place)?;
                    }
                }
                Ok(())
            })
        })
}
