//! Messages: who gets them, what they reach, and when something is ready.

use super::raw::{Path, *};
use super::{LEN, Line, Receiver, pages_of, prepare, send_path, take_path};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("fbufs: a message and its notice, each mode", each_mode),
    ("fbufs: several receivers", several_receivers),
    ("fbufs: aggregates of many parts", aggregates),
    ("fbufs: forwarded", forwarded),
    ("fbufs: the ranges of a message", ranges),
    ("fbufs: readiness", readiness),
    ("fbufs: calls with an answer", calls),
];

fn each_mode() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        let receiver = Receiver::start(&path, |path, line| {
            for round in 1..20u8 {
                let message = path.receive()?;
                equal!((message.bytes, message.notices), (LEN as u64, 0));
                check_leaf(message.root, LEN, round)?;
                path.free(message.id)?;
                line.tell()?;
            }
            Ok(())
        })?;
        for round in 1..20u8 {
            prepare(chunk, round);
            let (_, notices) = path.send(chunk)?;
            equal!(notices, 0, mode);
            receiver.line.hear()?;
            equal!(path.notices()?, [pages_of(chunk)], mode, round);
        }
        equal!(path.notices()?.len(), 0);
        receiver.end()?;
        path.shrink(chunk)?;
    }
    Ok(())
}

/// Messages to one of two receivers, and to both: the notice comes with the last.
fn several_receivers() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        let body = |path: &Path, line: &Line| {
            let message = path.receive()?;
            check_leaf(message.root, LEN, 5)?;
            line.tell()?;
            line.hear()?;
            path.free(message.id)?;
            line.tell()?;
            Ok(())
        };
        let (first, second) = (Receiver::start(&path, body)?, Receiver::start(&path, body)?);
        prepare(chunk, 5);
        path.send(chunk)?;
        for receiver in [&first, &second] {
            receiver.line.hear()?;
        }
        for (receiver, count) in [(&first, 0), (&second, 1)] {
            receiver.line.tell()?;
            receiver.line.hear()?;
            equal!(path.notices()?.len(), count, mode);
        }
        first.end()?;
        second.end()?;
    }
    Ok(())
}

/// An aggregate of many parts, in several chunks, with a node across two pages.
fn aggregates() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let (nodes, data) = (path.grow(1)?, path.grow(2)?);
        for i in 0..100 {
            let part = data.wrapping_add(i * 5 * PAGE + 100);
            fill(part, 10, i as u8);
            set_leaf(nodes.wrapping_add(64 * i), part, 10);
        }
        // A list: each pair joins what there was and one more leaf. One lies across two pages.
        let mut root = nodes as *const u8;
        for i in 1..100 {
            let pair = nodes.wrapping_add(2 * PAGE - 8 + 32 * i - 32);
            set_pair(pair, root, nodes.wrapping_add(64 * i));
            root = pair;
        }
        // The same part twice.
        let both = nodes.wrapping_add(8 * PAGE);
        set_pair(both, root, root);
        let receiver = Receiver::start(&path, |path, _| {
            let message = path.receive()?;
            equal!(message.bytes, 2000);
            for i in 0..100 {
                ensure!(is_filled(
                    data.wrapping_add(i * 5 * PAGE + 100),
                    10,
                    i as u8
                ));
            }
            path.free(message.id)?;
            Ok(())
        })?;
        path.send(both)?;
        receiver.end()?;
        let mut pages = 0;
        loop {
            let notices = path.notices()?;
            if notices.is_empty() {
                break;
            }
            let count = |it: &[usize; 2]| (it[1] - it[0]) / PAGE;
            pages += notices.iter().map(count).sum::<usize>();
        }
        equal!(pages, 100 + 4, mode);
    }
    Ok(())
}

/// A receiver sends on what it got, to a domain that is no receiver of the first path.
fn forwarded() -> Outcome {
    for mode in ALL_MODES {
        let first = Path::new(mode)?;
        let chunk = first.grow(1)?;
        let (ours, theirs) = Line::pair()?;
        // Between the two children.
        let (front, back) = socket_pair(SOCK_STREAM)?.into();
        let middle = spawn(|| {
            first.join()?;
            let second = Path::new(mode)?;
            let node = second.grow(1)?;
            send_path(&front, &second)?;
            theirs.tell()?;
            theirs.hear()?;
            let message = first.receive()?;
            set_pair(node, message.root as *const u8, node.wrapping_add(64));
            // The last one has attached by then.
            second.send(node)?;
            first.free(message.id)?;
            theirs.tell()?;
            theirs.hear()?;
            equal!(second.notices()?.len(), 1);
            Ok(())
        })?;
        ours.hear()?;
        let (last_line, their_line) = Line::pair()?;
        let last = spawn(|| {
            let second = take_path(&back)?;
            second.join()?;
            their_line.tell()?;
            let message = second.receive()?;
            equal!(message.bytes, LEN as u64);
            check_leaf(chunk as usize, LEN, 9)?;
            their_line.tell()?;
            their_line.hear()?;
            second.free(message.id)?;
            ensure!(is_filled(chunk, PAGE, 0), "it can still read");
            their_line.tell()
        })?;
        last_line.hear()?;
        prepare(chunk, 9);
        first.send(chunk)?;
        ours.tell()?;
        ours.hear()?;
        // Two messages include it: nothing is noted before both are freed.
        last_line.hear()?;
        equal!(first.notices()?.len(), 0, mode);
        last_line.tell()?;
        last_line.hear()?;
        equal!(first.notices()?, [pages_of(chunk)], mode);
        ours.tell()?;
        wait_ok(middle)?;
        wait_ok(last)?;
    }
    Ok(())
}

/// A message's ranges are what the kernel has checked, whatever its originator writes afterwards.
fn ranges() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        let far = chunk.wrapping_add(20 * PAGE);
        fill(far, PAGE, 3);
        prepare(chunk, 2);
        let (left, right) = (chunk.wrapping_add(64), chunk.wrapping_add(128));
        set_leaf(left, chunk.wrapping_add(PAGE), LEN);
        set_leaf(right, far, PAGE);
        set_pair(chunk, left, right);
        let expected = [pages_of(chunk), [far as usize, far as usize + PAGE]];
        let receiver = Receiver::start(&path, |path, line| {
            let message = path.receive()?;
            line.hear()?;
            equal!(path.ranges(message.id, 100)?, (2, expected.to_vec()), mode);
            // With too little room the count still tells all.
            equal!(path.ranges(message.id, 1)?, (2, expected[..1].to_vec()));
            equal!(path.ranges(message.id, 0)?, (2, vec![]));
            equal!(path.ranges_at(message.id, 8, 1), Err(EFAULT));
            equal!(path.ranges(message.id + 1, 100), Err(EINVAL));
            path.free(message.id)?;
            equal!(path.ranges(message.id, 100), Err(EINVAL));
            Ok(())
        })?;
        let (id, _) = path.send(chunk)?;
        equal!(path.ranges(id, 100), Err(EPERM));
        if mode & SECURED == 0 {
            set_leaf(chunk, chunk.wrapping_add(100 * PAGE), PAGE);
        }
        receiver.line.tell()?;
        receiver.end()?;
    }
    Ok(())
}

/// What is ready, by `poll` and by `epoll`.
fn readiness() -> Outcome {
    let path = Path::new(CACHED)?;
    let chunk = path.grow(1)?;
    prepare(chunk, 1);
    let receiver = Receiver::start(&path, |path, line| {
        let epoll = call!(epoll_create1(0));
        let mut event = epoll_entry(EPOLLIN, 7);
        call!(epoll_ctl(
            epoll,
            EPOLL_CTL_ADD,
            path.as_raw_fd(),
            &mut event
        ));
        equal!(poll_for(path, POLLIN, 0)?, 0);
        line.tell()?;
        equal!(call!(epoll_wait(epoll, &mut event, 1, -1)), 1);
        equal!(poll_for(path, POLLIN, 0)?, POLLIN);
        let message = path.receive()?;
        equal!(poll_for(path, POLLIN, 0)?, 0);
        path.free(message.id)?;
        line.tell()?;
        // The originator goes.
        equal!(call!(epoll_wait(epoll, &mut event, 1, -1)), 1);
        equal!(poll_for(path, POLLIN, -1)?, POLLHUP);
        equal!(path.receive(), Err(EPIPE));
        Ok(())
    })?;
    receiver.line.hear()?;
    equal!(poll_for(&path, POLLOUT | POLLPRI, 0)?, POLLOUT);
    path.send(chunk)?;
    receiver.line.hear()?;
    path.leave()?;
    equal!(path.send(chunk), Err(EPERM));
    receiver.end()?;
    // Many notices are something to be told.
    let path = Path::new(CACHED)?;
    let chunk = path.grow(1)?;
    set_leaf(chunk, chunk, 300 * PAGE);
    let receiver = Receiver::start(&path, |path, line| {
        for _ in 0..2 {
            line.hear()?;
            let message = path.receive()?;
            path.free(message.id)?;
            line.tell()?;
        }
        line.hear()
    })?;
    path.send(chunk)?;
    equal!(poll_for(&path, POLLPRI, 0)?, 0);
    receiver.line.tell()?;
    equal!(poll_for(&path, POLLPRI, -1)?, POLLPRI);
    // They are many before all pages are free.
    receiver.line.hear()?;
    equal!(path.notices()?.len(), 1);
    equal!(poll_for(&path, POLLPRI, 0)?, 0);
    path.send(chunk)?;
    receiver.line.tell()?;
    equal!(poll_for(&path, POLLPRI, -1)?, POLLPRI);
    receiver.line.hear()?;
    // They are withdrawn when the pages are sent again.
    equal!(path.send(chunk)?.1, 300);
    equal!(path.notices()?.len(), 0);
    equal!(poll_for(&path, POLLPRI, 0)?, 0);
    receiver.line.tell()?;
    receiver.end()
}

/// A request and its answer in one call each, an end of the server, and a signal.
fn calls() -> Outcome {
    for mode in ALL_MODES {
        let there = Path::new(mode)?;
        let chunk = there.grow(1)?;
        let (front, back) = socket_pair(SOCK_STREAM)?.into();
        let (ours, theirs) = Line::pair()?;
        let server = spawn(|| {
            there.join()?;
            let answers = Path::new(mode)?;
            let node = answers.grow(1)?;
            send_path(&front, &answers)?;
            theirs.hear()?;
            for round in 1..=50u8 {
                let request = there.receive()?;
                check_leaf(request.root, LEN, round)?;
                there.free(request.id)?;
                prepare(node, round + 100);
                answers.send(node)?;
                equal!(there.notices(), Err(EPERM));
                // Of this round as well, if the caller has freed it already.
                ensure!(answers.notices()?.len() <= 1);
            }
            // One that it does not answer.
            there.receive()?;
            theirs.tell()?;
            sleep_forever()
        })?;
        let answers = take_path(&back)?;
        equal!(answers.attach()?[3], 1);
        equal!(there.call(chunk, &there), Err(EPERM));
        ours.tell()?;
        for round in 1..=50u8 {
            prepare(chunk, round);
            let answer = there.call(chunk, &answers)?;
            equal!(answer.bytes, LEN as u64);
            // The request is free again.
            equal!(answer.notices, 4);
            equal!(there.notices()?, [pages_of(chunk)]);
            check_leaf(answer.root, LEN, round + 100)?;
            answers.free(answer.id)?;
        }
        prepare(chunk, 1);
        if mode % 2 == 0 {
            extern "C" fn nothing(_: c_int, _: *mut siginfo_t, _: *mut c_void) {}
            handle(SIGUSR1, nothing, SA_RESTART)?;
            let own = call!(getpid());
            let other = spawn(|| {
                ours.hear()?;
                await_sleep(own)?;
                call!(kill(own, SIGUSR1));
                Ok(())
            })?;
            equal!(there.call(chunk, &answers), Err(EINTR));
            wait_ok(other)?;
            kill_child(server)?;
        } else {
            let killer = spawn(|| {
                ours.hear()?;
                call!(kill(server, SIGKILL));
                Ok(())
            })?;
            equal!(there.call(chunk, &answers), Err(EPIPE));
            wait_ok(killer)?;
            wait(server)?;
        }
    }
    Ok(())
}
