//! Members of a path against each other.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use abi::Errno;
use fbuf::region::{Mode, Path};
use nucleus::{PAGE_SIZE, Prot, VirtAddr, frame, task};
use vm::{Advice, MapRequest, Place};

use super::process::{CACHED, Process, SECURED, UNCACHED, pages};
use super::support::{Tasks, byte};

/// A receiver has memory of its own in the middle of what is mapped in it, and memory ends at any
/// point: what is not mapped as a whole cannot be read.
pub fn half_mapped() {
    for (mode, short_after) in [CACHED, UNCACHED].into_iter().flat_map(|it| {
        let steps = 0..30;
        steps.map(move |step| (it, step))
    }) {
        let (sender, receiver) = (Process::new(), Process::new());
        let (path, start) = sender.path(mode);
        sender.set_leaf(start, start + PAGE_SIZE, 15 * PAGE_SIZE);
        assert_eq!(sender.map.write(start + PAGE_SIZE, b"x"), 1);
        if mode == UNCACHED {
            path.attach(&receiver.domain).expect("room");
        }
        let own = MapRequest {
            place: Place::Fixed(pages(start, 8, 1).start),
            ..MapRequest::zero(PAGE_SIZE, Prot::READ)
        };
        receiver.map.map(own).expect("room");
        frame::seem_scarce_after(Some(short_after));
        let result = match mode {
            CACHED => path.attach(&receiver.domain).map(drop),
            _ => path.send(&sender.domain, None, start.0 as u64).map(drop),
        };
        frame::seem_scarce_after(None);
        let mut byte = [0];
        receiver.map.read(start + PAGE_SIZE, &mut byte);
        let is_sent = result.is_ok();
        assert_eq!(byte == *b"x", is_sent, "{result:?} after {short_after}");
        path.close();
        receiver.leave();
        sender.leave();
    }
}

/// Another thread of the originator changes the aggregate, or drops its contents, while it is sent
/// on a secured path. What the receiver reads stays until it has freed it.
pub fn secured_meanwhile(mode: u32) {
    let (sender, receiver) = (Process::new(), Process::new());
    let (path, start) = sender.path(SECURED | mode);
    path.attach(&receiver.domain).expect("room");
    let (one, other) = (start + PAGE_SIZE, start + 2 * PAGE_SIZE);
    let ends = Arc::new(AtomicBool::new(false));
    let tasks = Tasks::new();
    let map = sender.map.clone();
    let ended = ends.clone();
    tasks.spawn(!0, move || {
        let mut round = 0u8;
        while !ended.load(SeqCst) {
            round = round.wrapping_add(1);
            for data in [one, other] {
                let node = [1, PAGE_SIZE as u64, data.0 as u64, 0].map(u64::to_le_bytes);
                map.write(start, node.as_flattened());
                map.write(data, &[round]);
                task::yield_now();
            }
            let _ = map.advise(pages(start, 0, 3), Advice::Remove);
        }
    });
    for _ in 0..200 {
        let sent = path.send(&sender.domain, None, start.0 as u64);
        let Ok((id, _)) = sent else {
            assert_eq!(sent.err(), Some(Errno::EFAULT));
            continue;
        };
        path.receive(&receiver.domain).expect("a message");
        let read = || {
            let mut node = [0; 32];
            assert_eq!(receiver.map.read(start, &mut node), 32);
            let data = u64::from_le_bytes(node[16..24].try_into().expect("a word"));
            let data = VirtAddr(data as usize);
            (data, (data.0 != 0).then(|| byte(&receiver.map, data)))
        };
        let before = read();
        for _ in 0..3 {
            task::yield_now();
            assert_eq!(read(), before, "it has changed");
        }
        path.free(&receiver.domain, id).expect("it is held");
    }
    ends.store(true, SeqCst);
    tasks.wait_until(0);
    path.close();
    receiver.leave();
    sender.leave();
}

/// A receiver sends on what it may read but was not sent. The originator may write that as before;
/// on a secured path it cannot be sent on.
pub fn forwarded_unsent() {
    for ([first, second], is_sent) in [
        ([SECURED, CACHED], true),
        ([SECURED, SECURED], false),
        ([CACHED, CACHED], true),
        ([CACHED, SECURED], false),
    ] {
        let [sender, middle, last] = [(); 3].map(|()| Process::new());
        let (path, start) = sender.path(first);
        path.attach(&middle.domain).expect("room");
        let (onward, node) = middle.path(second);
        onward.attach(&last.domain).expect("room");
        let data = start + PAGE_SIZE;
        assert_eq!(sender.map.write(data, b"x"), 1);
        middle.set_leaf(node, data, PAGE_SIZE);
        let sent = onward.send(&middle.domain, None, node.0 as u64);
        assert_eq!(sent.err(), (!is_sent).then_some(Errno::EPERM));
        assert_eq!(sender.map.write(data, b"y"), 1, "it may not write its own");
        // Once it was sent, it can.
        sender.set_leaf(start, data, PAGE_SIZE);
        path.send(&sender.domain, None, start.0 as u64)
            .expect("room");
        if second == first {
            let sent = onward.send(&middle.domain, None, node.0 as u64);
            sent.expect("it is as safe as before");
        }
        path.close();
        onward.close();
        [sender, middle, last].iter().for_each(Process::leave);
    }
}

/// Ranges of pages that lie in two runs count twice: no message has more than there is room for
/// while others wait, or its sender would wait for nothing.
pub fn many_ranges() {
    let (sender, receiver) = (Process::new(), Process::new());
    let mode = Mode::from_bits(CACHED).expect("a mode");
    let path = Path::new(&sender.domain, mode, 64).expect("memory");
    path.attach(&receiver.domain).expect("room");
    let [nodes, second] = [32, 1].map(|chunks| {
        let run = path.grow(&sender.domain, chunks).expect("memory");
        run.start
    });
    // One range has the nodes, one lies in both runs, and the others are single pages.
    for (ranges, is_sent) in [(2047, true), (2048, false), (2049, false)] {
        let leaves = ranges;
        for i in 0..leaves {
            let data = match i {
                0 => second - PAGE_SIZE,
                1 => second,
                i => nodes + (100 + 2 * i) * PAGE_SIZE,
            };
            let at = nodes + 64 * i;
            let next = if i + 1 < leaves { 64 } else { 32 };
            assert!(sender.set_node(at, [2, 0, (at + 32).0 as u64, (at + next).0 as u64]));
            sender.set_leaf(at + 32, data, 8);
        }
        let sent = path.send(&sender.domain, None, nodes.0 as u64);
        let expected = (!is_sent).then_some(Errno::E2BIG);
        assert_eq!(sent.err(), expected, "{ranges}");
    }
    path.close();
    receiver.leave();
    sender.leave();
}

/// A receiver joins after another has left: a message for that one does not reach it.
pub fn number_of_another() {
    let (sender, first, second) = (Process::new(), Process::new(), Process::new());
    let (path, start) = sender.path(CACHED);
    let send = |to| path.send(&sender.domain, Some(to), start.0 as u64);
    let number = path.attach(&first.domain).expect("room");
    assert!(send(number).is_ok());
    path.leave(&first.domain);
    let next = path.attach(&second.domain).expect("room");
    assert_eq!(send(number), Err(Errno::EPIPE));
    assert_eq!(send(next + 1), Err(Errno::EINVAL));
    assert_eq!(path.receive(&second.domain), Ok(None));
    assert!(send(next).is_ok());
    path.close();
    for process in [first, second, sender] {
        process.leave();
    }
}
