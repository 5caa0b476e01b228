//! Pages that are lent: by pipes, and to other processes by `/dev/causeway`. Each owner of a page
//! that then writes takes a copy of it.

use super::{bomb_of, noted, until_refused};
use crate::{USER, become_user, while_attacking};
use libcauseway::{Causeway, Passing, Receiver};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attacks: bombs: all memory lent by pipes", by_pipes),
    ("attacks: bombs: all memory lent to others", to_others),
    ("attacks: bombs: memory lent in a ring", in_a_ring),
    ("attacks: bombs: memory that is mapped nowhere", unmapped),
];

/// Bytes that are lent at a time.
const SIZE: usize = 64 * 1024;

/// The same memory is lent to pipe after pipe, and written again.
fn by_pipes() -> Outcome {
    bomb_of(8, || {
        let memory = map(SIZE)?;
        until_refused(|| {
            let (_, to) = pipe(O_NONBLOCK)?;
            touch(memory, SIZE, 1);
            call!(write(to, memory.cast(), SIZE));
            touch(memory, SIZE, 2);
            // The other way into a pipe.
            let (_, to) = pipe(O_NONBLOCK)?;
            let piece = vector(memory, SIZE);
            call!(vmsplice(to, &piece, 1, SPLICE_F_GIFT | SPLICE_F_NONBLOCK));
            touch(memory, SIZE, 3);
            Ok(())
        })
    })
}

/// Lets other processes of the user write this one's memory, as they could not after it became one
/// of this user's.
fn open_up() -> Outcome {
    call!(prctl(PR_SET_DUMPABLE, 1 as c_ulong, 0, 0, 0));
    Ok(())
}

/// Passes `memory` to `child`; none if that has been ended for its memory.
fn give(memory: *mut u8, child: pid_t, how: Passing) -> Result<Option<usize>> {
    let range = memory as usize..memory as usize + SIZE;
    // SAFETY: the attack uses memory by pointers.
    let passed =
        unsafe { Causeway::open()?.pass_range(range, Receiver::Id(child as u32), how, None) };
    match passed {
        Ok(passed) => Ok(Some(passed.address)),
        Err(why) if why.raw_os_error() == Some(ESRCH) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

/// Children get the pages in new memory again and again, by each way.
fn to_others() -> Outcome {
    bomb_of(8, || {
        open_up()?;
        let memory = map(SIZE)?;
        let mut child = spawn_sleeper()?;
        let ways = [
            Passing::Lend,
            Passing::Transfer,
            Passing::Copy,
            Passing::Lend,
        ];
        let mut ways = ways.into_iter().cycle();
        until_refused(|| {
            touch(memory, SIZE, 1);
            let how = ways.next().unwrap_or(Passing::Lend);
            match give(memory, child, how)? {
                Some(_) => {}
                None => {
                    wait(child)?;
                    child = spawn_sleeper()?;
                }
            }
            Ok(())
        })
    })
}

/// Processes that lend each other what they got, and write all of it.
fn in_a_ring() -> Outcome {
    const MEMBERS: usize = 3;
    bomb_of(4, || {
        open_up()?;
        let words = shared_map(PAGE)?.cast::<AtomicU64>();
        // SAFETY: a page of zeros that the members have, used as atomics only.
        let words = unsafe { std::slice::from_raw_parts(words, 2 * MEMBERS) };
        let (ids, slots) = words.split_at(MEMBERS);
        let member = |me: usize| -> Outcome {
            ids[me].store(u64::from(std::process::id()), SeqCst);
            let memory = map(SIZE)?;
            let next = loop {
                match ids[(me + 1) % MEMBERS].load(SeqCst) {
                    0 => thread::yield_now(),
                    id => break id as pid_t,
                }
            };
            until_refused(|| {
                let mine = slots[me].swap(0, SeqCst) as *mut u8;
                let mine = if mine.is_null() { memory } else { mine };
                touch(mine, SIZE, me as u8);
                let address = give(mine, next, Passing::Lend)?;
                let address = address.ok_or("the next one ended by Signal(9)")?;
                slots[(me + 1) % MEMBERS].store(address as u64, SeqCst);
                // Half of what it lends it keeps for itself.
                touch(mine, SIZE / 2, 7);
                Ok(())
            })
        };
        for me in 1..MEMBERS {
            spawn(|| {
                let _ = noted(member(me));
                sleep_forever()
            })?;
        }
        member(0)
    })
}

/// Programs that have all memory, and almost none of it mapped: it is they who are ended, and not
/// one of root's that has a twentieth.
fn unmapped() -> Outcome {
    let fills: [fn() -> Outcome; 3] = [without_rights, received, passed_to_itself];
    let total = field("/proc/meminfo", "MemTotal")? as usize * 1024;
    let innocent = spawn(|| {
        touch(map(total / 20)?, total / 20, 1);
        sleep_forever()
    })?;
    let result = while_attacking(|| {
        for fill in fills {
            let culprit = spawn(|| {
                become_user(USER)?;
                open_up()?;
                fill()
            })?;
            equal!(wait(culprit)?, End::Signal(SIGKILL));
        }
        Ok(())
    });
    // SAFETY: asks whether it has ended.
    let ended = unsafe { waitpid(innocent, null_mut(), WNOHANG) };
    if ended == 0 {
        kill_child(innocent)?;
    }
    result?;
    equal!(ended, 0);
    Ok(())
}

fn without_rights() -> Outcome {
    loop {
        let memory = map(SIZE)?;
        touch(memory, SIZE, 1);
        call!(mprotect(memory.cast(), SIZE, PROT_NONE));
    }
}

/// Reads pages that it has lent into memory that it never touches.
fn received() -> Outcome {
    let (from, to) = pipe(0)?;
    let memory = map(SIZE)?;
    loop {
        touch(memory, SIZE, 1);
        call!(write(to, memory.cast(), SIZE));
        call!(read(from, map(SIZE)?.cast(), SIZE));
    }
}

fn passed_to_itself() -> Outcome {
    // SAFETY: asks for the id of this process.
    let own = unsafe { getpid() };
    let memory = map(SIZE)?;
    for way in [Passing::Lend, Passing::Copy].into_iter().cycle() {
        touch(memory, SIZE, 1);
        give(memory, own, way)?;
    }
    Ok(())
}
