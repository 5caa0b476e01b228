//! Families, signals and futexes on the simulated machine, under many schedules.

use alloc::{boxed::Box, collections::BTreeMap, sync::Arc, vec::Vec};

use abi::{Errno, raw::general as raw};
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use fs::{Namespace, ramfs};

use nucleus::{
    Access, PAGE_SIZE, Prot, VirtAddr, VirtRange, frame,
    sim::{self, Config},
    sync::{Rank, SpinLock},
    task::{self, Spawn},
    user,
};
use vm::{Limits, Map, MapRequest, account::Kind};

use super::{
    FsContext, Layout, Own, Pid, Process, Shared, Space, Thread, exit, fork, memory,
    pid_table::{self, Change, Clones, NewId, WaitRequest, Which},
    seccomp, wait,
};
use crate::process::{
    files,
    futex::{self, Key},
    signal::{self, Action, Ending, Info, SignalSet},
};

fn under_schedules(cpus: usize, body: fn()) {
    let config = Config {
        cpus,
        ..Config::default()
    };
    sim::check("processes", 1..12, config, body);
}

fn task(thread: &Arc<Thread>, body: impl FnOnce() + Send + 'static) {
    let thread = thread.clone();
    let spawn = Spawn {
        name: "test",
        pmap: thread.space().map(|space| space.map().pmap().clone()),
        attachment: Some(thread.clone()),
        cpus: !0,
        priority: Default::default(),
    };
    let body = move || {
        thread.signals.set_task(Some(task::current()));
        body();
        thread.signals.set_task(None);
    };
    task::spawn(spawn, Box::new(body)).unwrap();
}

/// A process of one thread that runs no program.
fn make(parent: Option<Pid>) -> Arc<Thread> {
    let id = pid_table::new_id(true).unwrap();
    fork::make_process(id.get(), parent, false, None).unwrap()
}

/// Ends a process as the end of its only thread does.
fn end(thread: &Arc<Thread>, status: i32) {
    let process = thread.process().clone();
    let status = process.signals.remove_thread(thread, status).unwrap();
    pid_table::remove_thread(thread);
    pid_table::end_process(&process, status);
}

const ANY: WaitRequest = WaitRequest {
    which: Which::Any,
    ended: true,
    stopped: false,
    continued: false,
    clones: Clones::All,
    keep: false,
};

#[test]
fn every_child_is_waited_for_once() {
    under_schedules(3, || {
        let parent = make(None);
        let mut expected = BTreeMap::new();
        for n in 0..5 {
            let child = make(Some(parent.process().pid()));
            let status = (n + 1) << 8;
            expected.insert(child.process().pid(), status);
            task(&child.clone(), move || end(&child, status));
        }
        let waiter = parent.clone();
        task(&parent, move || {
            let mut found = BTreeMap::new();
            loop {
                match wait::wait(waiter.process(), &ANY, true) {
                    Ok(Some((child, Change::Ended(status)))) => {
                        assert!(found.insert(child.pid(), status).is_none());
                        assert!(Process::find(child.pid()).is_none());
                    }
                    Err(Errno::ECHILD) => break,
                    other => panic!("{:?}", other.map(|found| found.map(|f| f.1))),
                }
            }
            assert_eq!(found, expected);
            end(&waiter, 0);
            // No process waits for the parent itself.
            pid_table::remove_unborn(waiter.process().pid());
        });
    });
}

#[test]
fn a_process_counts_until_it_is_waited_for() {
    under_schedules(2, || {
        let parent = make(None);
        let account = parent.process().user();
        let count = move || account.things(Kind::Threads);
        let before = count();
        let child = make(Some(parent.process().pid()));
        task(&child.clone(), move || end(&child, 0));
        let waiter = parent.clone();
        task(&parent, move || {
            let look = WaitRequest { keep: true, ..ANY };
            assert!(wait::wait(waiter.process(), &look, true).is_ok());
            assert_eq!(count(), before + 1);
            assert!(wait::wait(waiter.process(), &ANY, true).is_ok());
            assert_eq!(count(), before);
            end(&waiter, 0);
            pid_table::remove_unborn(waiter.process().pid());
        });
    });
}

#[test]
fn the_last_ids_are_for_those_that_may_exceed_limits() {
    under_schedules(1, || {
        pid_table::set_pid_max(1000).unwrap();
        let mut ids = Vec::new();
        while let Ok(id) = pid_table::new_id(false) {
            ids.push(id);
        }
        let kept: Vec<_> = (0..2).map(|_| pid_table::new_id(true)).collect();
        assert!(kept.iter().all(Result::is_ok), "{}", ids.len());
        assert!(pid_table::new_id(false).is_err());
        pid_table::set_pid_max(pid_table::LAST_PID + 1).unwrap();
    });
}

#[test]
fn children_that_are_not_wanted_leave_nothing() {
    under_schedules(2, || {
        let parent = make(None);
        let ignore = Action {
            handler: signal::IGNORE,
            ..Action::default()
        };
        let process = parent.process();
        process.signals.set_action(raw::SIGCHLD, Some(ignore));
        let children: Vec<_> = (0..4).map(|_| make(Some(process.pid()))).collect();
        let pids: Vec<Pid> = children.iter().map(|c| c.process().pid()).collect();
        for child in children {
            task(&child.clone(), move || end(&child, 0));
        }
        let waiter = parent.clone();
        task(&parent, move || {
            let found = wait::wait(waiter.process(), &ANY, true);
            assert_eq!(found.map(|_| ()), Err(Errno::ECHILD));
            assert!(pids.iter().all(|pid| Process::find(*pid).is_none()));
            end(&waiter, 0);
            pid_table::remove_unborn(waiter.process().pid());
        });
    });
}

#[test]
fn groups_and_sessions_follow_the_rules() {
    under_schedules(1, || {
        // Process 1 is the parent of orphans.
        let _init = make(None);
        let leader = make(None);
        let shell = leader.process().pid();
        let child = make(Some(shell));
        let pid = child.process().pid();
        assert_eq!(child.process().session_id(), shell);
        // A session's leader stays where it is, and no process joins a group of another session.
        assert_eq!(pid_table::set_group(shell, shell, shell), Err(Errno::EPERM));
        assert_eq!(pid_table::set_session(shell), Err(Errno::EPERM));
        assert_eq!(pid_table::set_group(shell, pid, pid), Ok(()));
        assert_eq!(pid_table::set_group(pid, pid, pid), Ok(()));
        assert_eq!(child.process().group_id(), pid);
        assert_eq!(pid_table::members(pid).count(), 1);
        assert!(!pid_table::is_orphaned(pid));
        assert!(pid_table::is_orphaned(shell));
        assert_eq!(pid_table::set_session(pid), Err(Errno::EPERM));
        assert_eq!(pid_table::set_group(shell, pid, shell), Ok(()));
        assert!(pid_table::Group::find(pid).is_none());
        assert_eq!(pid_table::set_session(pid), Ok(()));
        assert_eq!(pid_table::set_group(shell, pid, shell), Err(Errno::EPERM));
        assert_eq!(pid_table::set_group(pid, shell, pid), Err(Errno::ESRCH));
        end(&child, 0);
        assert!(pid_table::take_change(shell, &ANY).unwrap().is_some());
        end(&leader, 0);
        pid_table::remove_unborn(shell);
    });
}

#[test]
fn signals_wait_collapse_and_kill() {
    under_schedules(1, || {
        let thread = make(None);
        let process = thread.process().clone();
        let send = |signal| signal::send_to_process(&process, Info::user(signal, 1, 0)).unwrap();
        thread.set_mask(SignalSet::of(&[raw::SIGTERM, raw::SIGTSTP]));
        send(raw::SIGCHLD);
        assert!(process.signals.pending().is_empty(), "ignored by default");
        send(raw::SIGTERM);
        send(raw::SIGTERM);
        send(raw::SIGTSTP);
        assert!(process.signals.pending().has(raw::SIGTSTP));
        send(raw::SIGCONT);
        assert!(!process.signals.pending().has(raw::SIGTSTP));
        assert!(!thread.signals.needs_attention());
        assert_eq!(process.signals.ending(), None);
        let all = SignalSet(!0);
        assert_eq!(
            thread.take_pending(all).map(|i| i.signal),
            Some(raw::SIGTERM)
        );
        assert_eq!(thread.take_pending(all), None);
        send(raw::SIGTERM);
        thread.set_mask(SignalSet::EMPTY);
        assert!(thread.signals.needs_attention());
        send(raw::SIGKILL);
        assert_eq!(
            process.signals.ending(),
            Some(Ending::Exit(raw::SIGKILL as i32))
        );
        let again = process.signals.add_thread(thread.clone(), None);
        assert_eq!(again, Err(Errno::EAGAIN));
        end(&thread, 0);
        pid_table::remove_unborn(process.pid());
    });
}

/// Adds a thousand threads that block all signals to the process of `first`. They are not in the
/// table of ids, which allows fewer on a machine this small.
fn more_threads(first: &Arc<Thread>) -> (Vec<NewId>, Vec<Arc<Thread>>) {
    let process = first.process();
    let ids: Vec<_> = (0..1000)
        .map(|_| pid_table::new_id(true).unwrap())
        .collect();
    let new = |id: &NewId| {
        let mask = SignalSet(!0);
        let thread = Thread::new(id.get(), process.clone(), mask, None, Some(first));
        let added = process.signals.add_thread(thread.clone(), Some(first));
        added.map(|()| thread).unwrap()
    };
    let threads = ids.iter().map(new).collect();
    (ids, threads)
}

/// Ends a process of several threads that runs no program.
fn end_all(first: &Arc<Thread>, others: &[Arc<Thread>]) {
    for thread in others {
        assert!(first.process().signals.remove_thread(thread, 0).is_none());
    }
    end(first, 0);
    pid_table::remove_unborn(first.process().pid());
}

/// How many threads may be looked at under a spin lock, a few times each.
const LOOKS: usize = 300;

#[test]
fn a_signal_finds_its_taker_among_many_threads() {
    under_schedules(1, || {
        let first = make(None);
        first.set_mask(SignalSet(!0));
        let process = first.process().clone();
        let (_ids, others) = more_threads(&first);
        let send = |signal| signal::send_to_process(&process, Info::user(signal, 1, 0)).unwrap();
        let handled = Action {
            handler: 0x1000,
            ..Action::default()
        };
        for signal in [raw::SIGUSR1, raw::SIGUSR2, raw::SIGIO] {
            process.signals.set_action(signal, Some(handled));
        }
        let noticed = || others.iter().filter(|it| it.signals.needs_attention());
        signal::looks::most();
        send(raw::SIGUSR1);
        assert_eq!(noticed().count(), 0);
        // A thread that comes to want it sees it, and so does a new signal's taker.
        others[700].set_mask(SignalSet(!0).without(SignalSet::one(raw::SIGUSR1)));
        assert!(others[700].signals.needs_attention());
        others[800].set_mask(SignalSet(!0).without(SignalSet::one(raw::SIGUSR2)));
        assert!(!others[800].signals.needs_attention());
        send(raw::SIGUSR2);
        assert!(others[800].signals.needs_attention());
        assert_eq!(noticed().count(), 2);
        let taken = others[800].take_pending(SignalSet::one(raw::SIGUSR2));
        assert_eq!(taken.map(|info| info.signal), Some(raw::SIGUSR2));
        // A thread that was notified of a signal, and has not taken it yet, or leaves without it,
        // holds no later one up: among the first threads, and behind them.
        let real_time = 34;
        let waited = SignalSet::one(real_time);
        for [first, second, third] in [[600, 650, 660], [10, 20, 30]] {
            others[first].take_or_wait(SignalSet::EMPTY, waited);
            others[second].take_or_wait(SignalSet::EMPTY, waited);
            send(real_time);
            assert!(others[first].signals.needs_attention());
            assert!(!others[second].signals.needs_attention());
            send(real_time);
            assert!(others[second].signals.needs_attention());
            others[first].take_or_wait(SignalSet::EMPTY, SignalSet::EMPTY);
            others[second].take_or_wait(SignalSet::EMPTY, SignalSet::EMPTY);
            others[third].take_or_wait(SignalSet::EMPTY, waited);
            assert!(!others[third].signals.needs_attention());
            send(real_time);
            assert!(others[third].signals.needs_attention());
            others[third].take_or_wait(SignalSet::EMPTY, SignalSet::EMPTY);
        }
        // Under the lock of the table of processes, too.
        others[900].set_mask(SignalSet(!0).without(SignalSet::one(raw::SIGIO)));
        pid_table::send_to_program(&process, 0, Info::user(raw::SIGIO, 1, 0));
        assert!(others[900].signals.needs_attention());
        assert!(signal::looks::most() < LOOKS);
        end_all(&first, &others);
    });
}

#[test]
fn job_control_undoes_signals_of_many_threads() {
    under_schedules(1, || {
        let first = make(None);
        let process = first.process().clone();
        let (_ids, others) = more_threads(&first);
        let stop = Info::user(raw::SIGTSTP, 1, 0);
        for thread in &others {
            signal::send_to_thread(thread, stop).unwrap();
        }
        assert!(others[0].pending_signals().has(raw::SIGTSTP));
        signal::looks::most();
        signal::send_to_process(&process, Info::user(raw::SIGCONT, 1, 0)).unwrap();
        assert!(signal::looks::most() < LOOKS);
        for thread in &others[..500] {
            assert!(!thread.pending_signals().has(raw::SIGTSTP));
        }
        // One that came after SIGCONT stays, whether the thread has looked at its signals or not.
        for thread in [&others[0], &others[999]] {
            signal::send_to_thread(thread, stop).unwrap();
            let taken = thread.take_pending(SignalSet(!0));
            assert_eq!(taken.map(|info| info.signal), Some(raw::SIGTSTP));
            assert!(thread.take_pending(SignalSet(!0)).is_none());
        }
        end_all(&first, &others);
    });
}

#[test]
fn filters_reach_many_threads() {
    under_schedules(1, || {
        let first = make(None);
        let allow = u64::from(abi::raw::ptrace::SECCOMP_RET_ALLOW) << 32 | 6;
        let program = || seccomp::Program::new(crate::bpf::Use::Seccomp, 1, |_| Ok(allow)).unwrap();
        assert_eq!(seccomp::add(&first, program(), false, false), Ok(None));
        let (_ids, others) = more_threads(&first);
        assert_eq!(others[999].seccomp.filter_count(), 1);
        signal::looks::most();
        assert_eq!(seccomp::add(&first, program(), false, true), Ok(None));
        assert!(signal::looks::most() < LOOKS);
        assert!(others.iter().all(|it| it.seccomp.filter_count() == 2));
        // One with a filter of its own keeps all as they are.
        assert_eq!(
            seccomp::add(&others[500], program(), false, false),
            Ok(None)
        );
        let odd = Some(others[500].tid());
        assert_eq!(seccomp::add(&first, program(), false, true), Ok(odd));
        assert_eq!(others[0].seccomp.filter_count(), 2);
        end_all(&first, &others);
    });
}

/// The map that the fault hook works on.
static MAP: SpinLock<Option<Arc<Map>>> = SpinLock::new(Rank::Leaf, None);

fn resolve(address: VirtAddr, access: Access) -> bool {
    let map = MAP.lock().clone();
    map.is_some_and(|map| map.fault(address, access).is_ok())
}

fn space() -> (Arc<Space>, VirtAddr) {
    space_of(1)
}

/// An address space with so many pages of memory.
fn space_of(pages: usize) -> (Arc<Space>, VirtAddr) {
    let map = Map::new(Limits::NONE, vm::Randomness::Everything).unwrap();
    let page = map
        .map(MapRequest::zero(
            pages * PAGE_SIZE,
            Prot::READ | Prot::WRITE,
        ))
        .unwrap();
    let root = Namespace::new(ramfs::root(ramfs::Options::default()), "ramfs").root();
    *MAP.lock() = Some(map.clone());
    user::set_fault_hook(resolve);
    let layout = Layout {
        exe: root,
        _text: None,
        code: VirtRange::default(),
        arguments: VirtRange::default(),
        environment: VirtRange::default(),
        stack_start: 0,
        class: crate::process::exec::elf::Class::X64,
        auxiliary: Vec::new(),
    };
    (Space::new(map, layout), page)
}

/// What a thread in `space` shares with others.
fn shared(space: Arc<Space>) -> Shared {
    Shared {
        fs: FsContext::new(space.layout.exe.clone()),
        files: files::FileTable::new(),
        credentials: Arc::new(super::Credentials::default()),
        space,
    }
}

/// A lock as the C library makes it: 0 free, 1 taken, 2 taken with waiters.
fn lock(thread: &Thread, key: Key, word: VirtAddr) {
    let mut seen = user::compare_exchange_u32(word, 0, 1).unwrap();
    while seen != 0 {
        if seen == 2 || user::compare_exchange_u32(word, 1, 2).unwrap() != 0 {
            match futex::wait(thread, key, word, 2, u32::MAX, None) {
                Ok(()) | Err(Errno::EAGAIN) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        seen = user::compare_exchange_u32(word, 0, 2).unwrap();
    }
}

fn unlock(key: Key, word: VirtAddr) {
    loop {
        let seen = user::load_u32(word).unwrap();
        if user::compare_exchange_u32(word, seen, 0).unwrap() == seen {
            if seen == 2 {
                futex::wake(key, 1, u32::MAX).unwrap();
            }
            return;
        }
    }
}

#[test]
fn a_futex_lock_keeps_all_but_one_out_and_loses_no_wake_up() {
    under_schedules(3, || {
        let (space, page) = space();
        let shared = shared(space.clone());
        let count = page + 64;
        for _ in 0..4 {
            let id = pid_table::new_id(true).unwrap();
            let thread = fork::make_process(id.get(), None, false, Some(shared.clone())).unwrap();
            let space = space.clone();
            let user = thread.clone();
            task(&thread, move || {
                let key = Key::new(&space, page, true).unwrap();
                for _ in 0..6 {
                    lock(&user, key, page);
                    let old: u32 = user::read(count).unwrap();
                    task::yield_now();
                    user::write(count, &(old + 1)).unwrap();
                    unlock(key, page);
                }
                // The last one to leave sees every turn.
                let last = Key::new(&space, page + 128, true).unwrap();
                lock(&user, last, page + 128);
                let left: u32 = user::read(page + 192).unwrap();
                user::write(page + 192, &(left + 1)).unwrap();
                if left + 1 == 4 {
                    assert_eq!(user::load_u32(count), Ok(24));
                    *MAP.lock() = None;
                }
                unlock(last, page + 128);
                user.publish(None);
                task::set_pmap(None);
                drop(space);
                end(&user, 0);
                pid_table::remove_unborn(user.process().pid());
            });
        }
        let _: Own = Own::new(shared, |_, _, _| {});
    });
}

/// Processes with one address space are ended together, and it weighs once; none is ended if one of
/// them may not be.
#[test]
fn those_that_share_memory_are_ended_together() {
    const LARGE: usize = 48;
    under_schedules(2, || {
        let make_user = |shared: &Shared| {
            let id = pid_table::new_id(true).unwrap();
            fork::make_process(id.get(), None, false, Some(shared.clone())).unwrap()
        };
        let make_space = |pages| {
            let (space, at) = space_of(pages);
            for page in 0..pages {
                let fault = space.map().fault(at + page * PAGE_SIZE, Access::Write);
                assert!(fault.is_ok());
            }
            shared(space)
        };
        // The machine before this one ended some, too.
        memory::kill_largest(None, memory::came_back());
        // The first process is never ended.
        let first = make(None);
        let both = make_space(LARGE);
        let sharers = [make_user(&both), make_user(&both)];
        let single = make_user(&make_space(LARGE / 2));
        *MAP.lock() = None;
        drop(both);
        let is_ended = |thread: &Arc<Thread>| thread.process().signals.ending().is_some();
        let never = &sharers[1].process().oom_adjustment;
        never.store(memory::OOM_NEVER, SeqCst);
        assert!(memory::kill_largest(None, memory::came_back()));
        assert!(is_ended(&single) && !sharers.iter().any(is_ended));
        never.store(0, SeqCst);
        let finish = |thread: &Arc<Thread>| {
            thread.publish(None);
            end(thread, 0);
            pid_table::remove_unborn(thread.process().pid());
        };
        let before = memory::came_back();
        finish(&single);
        // Its memory has come back since.
        assert!(memory::kill_largest(None, before));
        assert!(!sharers.iter().any(is_ended));
        assert!(memory::kill_largest(None, memory::came_back()));
        assert!(sharers.iter().all(is_ended));
        let weight = |thread: &Arc<Thread>| thread.process().account().weight.load(SeqCst);
        // Of what it has mapped alone: processes of other tests have the same user.
        let user = sharers[0].process().user();
        let user = user.weight.load(SeqCst).saturating_sub(user.pages());
        assert!(weight(&sharers[0]) >= LARGE && weight(&sharers[1]) >= LARGE);
        assert!(user < 2 * LARGE, "weighed {user}");
        sharers.iter().for_each(finish);
        finish(&first);
    });
}

/// A thread that runs another program gives each of its words up once, though their waiters name it
/// as the owner again at once.
#[test]
fn words_are_given_up_once() {
    const WAITERS: usize = 4;
    under_schedules(3, || {
        // The end of process 1 is the machine's.
        let _init = make(None);
        let (space, page) = space();
        let shared = shared(space);
        let make_user = || {
            let id = pid_table::new_id(true).unwrap();
            fork::make_process(id.get(), None, false, Some(shared.clone())).unwrap()
        };
        let owner = make_user();
        let handed_over = Arc::new([const { AtomicUsize::new(0) }; 2]);
        let phase = Arc::new(AtomicUsize::new(0));
        for n in 0..WAITERS {
            let waiter = make_user();
            let own = Own::new(shared.clone(), |_, _, _| {});
            let (owner, handed_over, phase) = (owner.clone(), handed_over.clone(), phase.clone());
            task(&waiter.clone(), move || {
                let word = page + 64 * n;
                let key = Key::new(&own.space, word, true).unwrap();
                while phase.load(SeqCst) < 2 {
                    user::write(word, &owner.tid()).unwrap();
                    match futex::pi::lock(&waiter, key, word, None, None) {
                        Ok(()) => {
                            let phase = phase.load(SeqCst).min(1);
                            handed_over[phase].fetch_add(1, SeqCst);
                        }
                        Err(Errno::ESRCH) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
                user::write(word, &0u32).unwrap();
                exit::end_thread(waiter.clone(), own, 0);
                pid_table::remove_unborn(waiter.process().pid());
            });
        }
        let mut own = Own::new(shared, |_, _, _| {});
        task(&owner.clone(), move || {
            for _ in 0..20 {
                task::yield_now();
            }
            assert_eq!(handed_over[0].load(SeqCst), 0);
            phase.store(1, SeqCst);
            futex::leave(&owner, &mut own, false);
            let count = handed_over[1].load(SeqCst);
            assert!(count <= WAITERS, "{count} were handed over");
            phase.store(2, SeqCst);
            *MAP.lock() = None;
            exit::end_thread(owner.clone(), own, 0);
            pid_table::remove_unborn(owner.process().pid());
        });
    });
}

/// No process is ended for memory while that of a process that ends by itself is being freed.
#[test]
fn who_ends_by_itself_is_waited_for() {
    const LARGE: usize = 64;
    let config = Config {
        cpus: 3,
        ..Config::default()
    };
    sim::check("a user who ends", 0..100, config, || {
        let make_user = |pages| {
            let (space, at) = space_of(pages);
            for page in 0..pages {
                let fault = space.map().fault(at + page * PAGE_SIZE, Access::Write);
                assert!(fault.is_ok());
            }
            let shared = shared(space);
            let id = pid_table::new_id(true).unwrap();
            let thread = fork::make_process(id.get(), None, false, Some(shared.clone()));
            (thread.unwrap(), Own::new(shared, |_, _, _| {}))
        };
        // The first process is never ended.
        let first = make(None);
        let before = frame::usage().data;
        let (small, small_own) = make_user(1);
        let (large, large_own) = make_user(LARGE);
        *MAP.lock() = None;
        let wanting = small.clone();
        task(&small, move || {
            for _ in 0..200 {
                memory::kill_largest(None, memory::came_back());
                if wanting.process().signals.ending().is_some() {
                    let left = frame::usage().data - before;
                    assert!(left < LARGE, "it is ended, and {left} pages come back");
                    break;
                }
                task::yield_now();
            }
            exit::end_thread(wanting.clone(), small_own, 0);
            pid_table::remove_unborn(wanting.process().pid());
        });
        let leaving = large.clone();
        task(&large, move || {
            let pid = leaving.process().pid();
            exit::end_thread(leaving, large_own, 0);
            pid_table::remove_unborn(pid);
        });
        end(&first, 0);
        pid_table::remove_unborn(first.process().pid());
    });
}
