//! The state of a session, shared by its tasks, the host's messages and the machine's end.

use alloc::sync::Arc;

use abi::raw::general::{SIGHUP, winsize};
use nucleus::{
    sync::{Rank, SpinLock},
    task::WaitQueue,
};
use session::{Stream, Window};

use crate::{
    process::{
        Process,
        signal::{self, Info},
    },
    tty::Tty,
};

/// A session, or its number while there is none.
pub(super) struct Session {
    pub(super) number: u8,
    state: SpinLock<State>,
    /// Woken after each change.
    pub(super) changed: WaitQueue,
}

/// How far the beginning of a session is.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// The number is free, or its session has nothing yet.
    #[default]
    None,
    /// Its tasks and its program begin. The program may have ended before the host is told of it.
    Begins,
    /// The host knows of the program, and may be told of its streams.
    Begun,
    /// The program was refused.
    Refused,
}

#[derive(Default)]
struct State {
    /// There is one.
    is_taken: bool,
    phase: Phase,
    /// Its program's end is the machine's.
    is_first: bool,
    process: Option<Arc<Process>>,
    tty: Option<Arc<Tty>>,
    /// The stream that has what the terminal shows.
    shown: Option<Stream>,
    /// How many bytes of input there are in all, once the host has said so.
    input_end: Option<u64>,
    /// The host reads standard output, and standard error, no more.
    closed: [bool; 2],
    /// The host's side is gone.
    hung_up: bool,
    /// The wait status of the program.
    ended: Option<i32>,
    /// The machine stops.
    stops: bool,
    /// Tasks beside the one that ends the session.
    input_runs: bool,
    error_runs: bool,
    /// The host knows the ends of the streams and of the program.
    told: bool,
}

impl Session {
    pub(super) fn new(number: u8) -> Session {
        Session {
            number,
            state: SpinLock::new(Rank::Leaf, State::default()),
            changed: WaitQueue::new(),
        }
    }

    /// Changes the state and wakes the tasks. Any context; takes a spin lock.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.state.lock());
        self.changed.wake_all();
        result
    }

    /// Begins a session; returns false if there is one already.
    pub(super) fn take(&self) -> bool {
        let mut state = self.state.lock();
        !core::mem::replace(&mut state.is_taken, true)
    }

    /// Ends the session: its number is free.
    pub(super) fn give_back(&self) {
        let before = self.change(core::mem::take);
        drop(before);
    }

    /// Says what the session is, before its tasks begin.
    pub(super) fn set(
        &self,
        is_first: bool,
        tty: Option<Arc<Tty>>,
        shown: Option<Stream>,
        error_runs: bool,
    ) {
        self.change(|state| {
            (state.is_taken, state.phase) = (true, Phase::Begins);
            state.is_first = is_first;
            (state.tty, state.shown) = (tty, shown);
            (state.input_runs, state.error_runs) = (true, error_runs);
        });
    }

    /// The host knows of the program, or that it was refused.
    pub(super) fn set_begun(&self, is_begun: bool) {
        self.change(|state| {
            state.phase = match is_begun {
                true => Phase::Begun,
                false => Phase::Refused,
            };
        });
    }

    /// Waits until the host knows of the program; returns false if it was refused.
    pub(super) fn wait_until_begun(&self) -> bool {
        let decided = || {
            let phase = self.state.lock().phase;
            (phase != Phase::Begins).then_some(phase == Phase::Begun)
        };
        self.changed.wait_soundly(decided)
    }

    pub(super) fn is_first(&self) -> bool {
        self.state.lock().is_first
    }

    /// The program runs.
    pub(super) fn set_process(&self, process: Arc<Process>) {
        let target = self.change(|state| {
            state.process = Some(process);
            state.hang_up_target()
        });
        send_hang_up(target);
    }

    pub(super) fn process(&self) -> Option<Arc<Process>> {
        self.state.lock().process.clone()
    }

    /// Changes the state for a message of the host's. One that comes when the session that it
    /// meant is over is not the next one's, whose [`take`](Session::take) it came before: `None`.
    fn obey<R>(&self, change: impl FnOnce(&mut State) -> R) -> Option<R> {
        self.change(|state| state.is_taken.then(|| change(state)))
    }

    /// The host says how many bytes of input there are in all.
    pub(super) fn end_input(&self, after: u64) {
        self.obey(|state| _ = state.input_end.get_or_insert(after));
    }

    pub(super) fn input_end(&self) -> Option<u64> {
        self.state.lock().input_end
    }

    /// The host reads a stream no more.
    pub(super) fn close_output(&self, stream: Stream) {
        self.obey(|state| state.closed[stream as usize] = true);
    }

    /// Whether the host takes nothing of a stream any more.
    pub(super) fn is_closed(&self, stream: Stream) -> bool {
        let state = self.state.lock();
        state.closed[stream as usize] || state.hung_up
    }

    pub(super) fn resize(&self, window: Window) {
        let tty = self.state.lock().tty.clone();
        if let Some(tty) = tty {
            // It has no errors.
            let _ = tty.set_window(window_size(window));
        }
    }

    /// Sends the program a signal.
    pub(super) fn signal(&self, signal: u8) {
        if let Some(process) = self.process()
            && (1..=64).contains(&signal)
        {
            // It may have ended.
            let _ = signal::send_to_process(&process, Info::kernel(signal.into()));
        }
    }

    /// The host's side is gone. The session may be over before this returns, and its number the
    /// next one's.
    pub(super) fn hang_up(&self) {
        let target = self.obey(|state| {
            state.hung_up = true;
            state.hang_up_target()
        });
        send_hang_up(target.flatten());
    }

    pub(super) fn is_hung_up(&self) -> bool {
        self.state.lock().hung_up
    }

    /// The program has ended with this wait status.
    pub(super) fn end(&self, status: i32) {
        self.change(|state| _ = state.ended.get_or_insert(status));
    }

    pub(super) fn ended(&self) -> Option<i32> {
        self.state.lock().ended
    }

    /// Whether streams are to end with what there is.
    pub(super) fn is_ending(&self) -> bool {
        let state = self.state.lock();
        state.ended.is_some() || state.stops
    }

    /// Whether the machine stops while the program runs, and the host has not hung up.
    pub(super) fn is_cut_off(&self) -> bool {
        let state = self.state.lock();
        state.stops && state.ended.is_none() && !state.hung_up
    }

    /// Whether input goes nowhere any more: the program has ended, or its terminal hangs up.
    pub(super) fn takes_no_input(&self) -> bool {
        let is_dark = {
            let state = self.state.lock();
            let is_closed = |stream: Stream| state.closed[stream as usize];
            state.hung_up || state.shown.is_some_and(is_closed)
        };
        is_dark || self.is_ending()
    }

    /// The input task ends.
    pub(super) fn set_input_over(&self) {
        self.change(|state| state.input_runs = false);
    }

    /// The error task ends.
    pub(super) fn set_error_over(&self) {
        self.change(|state| state.error_runs = false);
    }

    pub(super) fn error_runs(&self) -> bool {
        self.state.lock().error_runs
    }

    pub(super) fn input_runs(&self) -> bool {
        self.state.lock().input_runs
    }

    /// The host knows the ends of the streams and of the program.
    pub(super) fn set_told(&self) {
        self.change(|state| state.told = true);
    }

    /// Stops the session because the machine stops, by the end of the first program if there is a
    /// `status`; waits until the output of the first program has left.
    pub(super) fn wait_for_end(&self, status: Option<i32>) {
        let is_there = self.change(|state| {
            state.stops = true;
            if state.is_first {
                state.ended = state.ended.or(status);
            }
            state.is_first && matches!(state.phase, Phase::Begins | Phase::Begun)
        });
        if is_there {
            self.changed
                .wait_soundly(|| self.state.lock().told.then_some(()));
        }
    }
}

impl State {
    /// Returns the process to send SIGHUP to: that of a further session whose host side is gone.
    fn hang_up_target(&self) -> Option<Arc<Process>> {
        let tells = self.hung_up && !self.is_first;
        tells.then(|| self.process.clone()).flatten()
    }
}

/// Sends SIGHUP to a session's process, which may have ended.
fn send_hang_up(process: Option<Arc<Process>>) {
    if let Some(process) = process {
        let _ = signal::send_to_process(&process, Info::kernel(SIGHUP));
    }
}

/// Returns the size of a terminal as programs see it.
pub(super) fn window_size(window: Window) -> winsize {
    winsize {
        ws_row: window.rows,
        ws_col: window.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use nucleus::{
        sim::{self, Config},
        task::{self, Spawn},
    };

    use super::*;
    use crate::process::{
        fork, pid_table,
        signal::{Action, SignalSet},
    };

    /// The host may say of a session what crosses the message that its number is free.
    #[test]
    fn what_comes_too_late_is_not_the_next_sessions() {
        sim::check("sessions", 1..2, Config::default(), || {
            let session = Session::new(1);
            assert!(session.take());
            session.set(false, None, None, true);
            session.close_output(Stream::Error);
            assert!(session.is_closed(Stream::Error));
            session.give_back();
            session.close_output(Stream::Output);
            session.end_input(0);
            session.hang_up();
            assert!(session.take());
            session.set(false, None, None, true);
            assert!(!session.is_closed(Stream::Output) && !session.is_closed(Stream::Error));
            assert!(!session.is_hung_up() && session.input_end().is_none());
            session.give_back();
        });
    }

    /// A session is over as soon as its tasks know that the host has hung up.
    #[test]
    fn a_program_learns_of_a_hang_up_though_its_session_ends_first() {
        let config = Config {
            cpus: 2,
            ..Config::default()
        };
        sim::check("sessions", 1..40, config, || {
            let id = pid_table::new_id(true).unwrap();
            let thread = fork::make_process(id.get(), None, false, None).unwrap();
            let handled = Action {
                handler: 0x1000,
                ..Action::default()
            };
            let signals = &thread.process().signals;
            signals.set_action(SIGHUP, Some(handled));
            let session = Arc::new(Session::new(1));
            assert!(session.take());
            session.set(false, None, None, true);
            session.set_process(thread.process().clone());
            let followed = session.clone();
            let follow = move || {
                let is_over = || followed.is_hung_up().then_some(());
                followed.changed.wait_soundly(is_over);
                followed.give_back();
            };
            task::spawn(Spawn::kernel("follow"), Box::new(follow)).unwrap();
            let host = move || {
                session.hang_up();
                let hang_up = SignalSet::one(SIGHUP);
                assert!(thread.take_pending(hang_up).is_some(), "no SIGHUP");
                pid_table::remove_unborn(thread.process().pid());
            };
            task::spawn(Spawn::kernel("host"), Box::new(host)).unwrap();
        });
    }

    /// What the host says before the session's tasks begin counts.
    #[test]
    fn what_comes_early_counts() {
        sim::check("sessions", 1..2, Config::default(), || {
            let session = Session::new(1);
            assert!(session.take());
            session.end_input(5);
            session.hang_up();
            session.set(false, None, None, true);
            assert!(session.is_hung_up() && session.input_end() == Some(5));
        });
    }
}
