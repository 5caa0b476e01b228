//! Queues on the simulated machine, with a device made of code: one that keeps to the protocol, and
//! one that does not.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
    vec::Vec,
};

use super::*;
use crate::dev::virtio::rings::Descriptor;
use crate::{
    PAGE_SIZE,
    dma::{self, Part},
    ephemeral, frame,
    mem::domain,
    sim::{below, device_read, device_write, on_machines_with, random_u64, spawn},
    task,
};

/// Slots of the queues here: fewer than requests, so that some wait for one.
const SLOTS: usize = 4;
/// Tasks that send requests, and how many each sends.
const SENDERS: usize = 3;
const REQUESTS: usize = 8;

/// The device's place.
const DEVICE: u16 = 0x28;

fn queue() -> Queue {
    let domain = dma::domain_of(DEVICE).unwrap();
    Queue::new(0, SLOTS, domain, Doorbell::Code(Box::new(|| ()))).unwrap()
}

fn pause() {
    task::sleep(Sleep::within(Duration::from_micros(random_u64() % 300)));
}

/// The other side of a queue.
struct Device {
    side: Side,
    /// Slots that were made available and are not used yet.
    taken: Vec<u16>,
    lied: bool,
}

impl Device {
    fn new(queue: Arc<Queue>) -> Device {
        Device {
            side: Side::new(queue, DEVICE),
            taken: Vec::new(),
            lied: false,
        }
    }

    /// Takes what was made available.
    fn take(&mut self) {
        while let Some(number) = self.side.take() {
            // It is there already only after a lie.
            assert!(self.lied || !self.taken.contains(&number));
            self.taken.push(number);
        }
    }

    /// Adds the bytes that it reads, and fills what it writes with the sum. Returns how many it
    /// wrote.
    fn serve(&self, number: u16) -> u32 {
        let (mut sum, mut written) = (0u8, 0);
        for piece in self.side.pieces(number).expect("a device's own fault") {
            let mut bytes = vec![sum; piece.len as usize];
            let is_done = match piece.is_written {
                true => device_write(DEVICE, piece.address, &bytes),
                false => device_read(DEVICE, piece.address, &mut bytes),
            };
            assert!(is_done, "a part that the device can't reach");
            if piece.is_written {
                written += piece.len;
            } else {
                sum = bytes.iter().fold(sum, |sum, &byte| sum.wrapping_add(byte));
            }
        }
        written
    }

    /// Does one of the requests, if there is one.
    fn work(&mut self) {
        self.take();
        if !self.taken.is_empty() {
            let number = self.taken.swap_remove(below(self.taken.len()));
            let written = self.serve(number);
            self.side.put_used(number.into(), written);
        }
    }

    /// Says something that can't be, or is not true.
    fn lie(&mut self) {
        self.lied = true;
        self.take();
        let real = self.taken.first().copied().map_or(0, u32::from);
        match below(6) {
            0 => self.side.put_used(random_u64() as u32, random_u64() as u32),
            1 => self.side.put_used(SLOTS as u32, 0),
            2 => self.side.put_used(below(SLOTS) as u32, u32::MAX),
            3 => {
                // The same one twice.
                self.side.put_used(real, 1);
                self.side.put_used(real, 1);
            }
            4 => {
                // Far more than there can be.
                self.side.move_used(random_u64() as u16);
            }
            _ => {
                // Back again.
                self.side.move_used(u16::MAX);
            }
        }
    }
}

/// A request of some parts, the sum of the bytes in those that are read, and the parts that are
/// written.
fn request() -> (Arc<Request>, u8, Vec<Part>) {
    let part = || {
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        // Whole frames and blocks are mapped together.
        if below(3) == 0 {
            let block = Frame::alloc_block(below(4), Contents::Zeroed);
            return Part::all(block.unwrap_or(frame));
        }
        let offset = below(PAGE_SIZE);
        Part::new(frame, offset, 1 + below((PAGE_SIZE - offset).min(40)))
    };
    let mut sum = 0u8;
    let mut parts: Vec<Part> = Vec::new();
    let readable = below(SLOTS);
    for _ in 0..readable {
        let part = part();
        let bytes: Vec<u8> = (0..part.len).map(|_| random_u64() as u8).collect();
        ephemeral::map(&part.frame).write(part.offset, &bytes);
        sum = bytes.iter().fold(sum, |sum, &byte| sum.wrapping_add(byte));
        parts.push(part);
    }
    let written: Vec<Part> = (0..1 + below(SLOTS - readable)).map(|_| part()).collect();
    parts.extend(written.iter().cloned());
    (Request::new(parts, readable), sum, written)
}

/// Sends requests from several tasks to a device that `act`s until all are done; `check` gets what
/// each gave. Returns how many frames did not come back.
fn exchange(
    act: fn(&mut Device, usize),
    check: fn(Result<u32, Error>, u8, &[Part]),
    interrupts: bool,
) -> usize {
    let before = frame::usage().data;
    let queue = Arc::new(queue());
    if interrupts {
        queue.set_interrupts();
    }
    let (left, gone) = (
        Arc::new(AtomicUsize::new(SENDERS)),
        Arc::new(AtomicBool::new(false)),
    );
    for _ in 0..SENDERS {
        let (queue, left) = (queue.clone(), left.clone());
        spawn(move || {
            for _ in 0..REQUESTS {
                let (request, sum, written) = request();
                let result = queue
                    .submit(&request)
                    .and_then(|()| queue.wait(&request, Sleep::SOUND).unwrap());
                check(result, sum, &written);
            }
            drop(queue);
            left.fetch_sub(1, Ordering::SeqCst);
        });
    }
    let device = {
        let (queue, left, gone) = (queue.clone(), left.clone(), gone.clone());
        move || {
            let mut device = Device::new(queue);
            let mut turn = 0;
            while left.load(Ordering::SeqCst) > 0 {
                act(&mut device, turn);
                turn += 1;
                if interrupts {
                    device.side.queue().look();
                }
                pause();
            }
            drop(device);
            gone.store(true, Ordering::SeqCst);
        }
    };
    spawn(device);
    while !gone.load(Ordering::SeqCst) {
        pause();
    }
    drop(queue);
    // The cleaner may have had the domain for a moment.
    while domain::any() {
        pause();
    }
    frame::usage().data - before
}

#[test]
fn all_requests_are_served() {
    for interrupts in [false, true] {
        on_machines_with("virtqueue", 1..=3, 256, 40, move || {
            let check = |result: Result<u32, Error>, sum: u8, written: &[Part]| {
                let len: usize = written.iter().map(|part| part.len).sum();
                assert_eq!(result, Ok(len as u32));
                for part in written {
                    let mut bytes = vec![0; part.len];
                    ephemeral::map(&part.frame).read(part.offset, &mut bytes);
                    assert!(
                        bytes.iter().all(|&byte| byte == sum),
                        "not what the device wrote"
                    );
                }
            };
            assert_eq!(exchange(|device, _| device.work(), check, interrupts), 0);
        });
    }
}

#[test]
fn a_device_that_lies_is_given_up() {
    for interrupts in [false, true] {
        on_machines_with("lying device", 1..=3, 256, 40, move || {
            // Each request ends, whatever it is told.
            let check = |result: Result<u32, Error>, _: u8, _: &[Part]| {
                assert!(matches!(result, Ok(_) | Err(Error::Broken)));
            };
            let act = |device: &mut Device, turn: usize| match turn {
                0..4 => device.work(),
                _ => device.lie(),
            };
            // Those that the device had when it was given up, and may write to at any time.
            let lost = exchange(act, check, interrupts);
            let most = match dma::policy() {
                dma::Policy::Off => SLOTS * ((SLOTS << frame::LARGEST_BLOCK) + 1),
                _ => 0,
            };
            assert!(lost <= most, "{lost} frames");
        });
    }
}

#[test]
fn too_long_a_request_is_refused() {
    on_machines_with("too long", 1..=3, 256, 40, || {
        let queue = queue();
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let parts = vec![Part::whole(frame); SLOTS + 1];
        assert_eq!(
            queue.try_submit(&Request::new(parts, 0)),
            Err(Error::TooLong)
        );
    });
}

/// What a device has keeps its frames, whatever the driver does.
#[test]
fn a_request_in_flight_keeps_its_frames() {
    on_machines_with("in flight", [1], 256, 1, || {
        let queue = queue();
        let before = frame::usage().data;
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let request = Request::new(vec![Part::whole(frame)], 0);
        queue.try_submit(&request).unwrap();
        let held = frame::usage().data;
        request.abandon();
        request.clear();
        assert!(request.take_parts().is_empty());
        drop(request);
        assert_eq!(frame::usage().data, held);
        drop(queue);
        assert!(frame::usage().data < before);
    });
}

/// One that was given to a device can't be given to it again.
#[test]
fn a_request_is_given_once() {
    let failure = crate::sim::run(crate::sim::Config::default(), || {
        let queue = queue();
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let request = Request::new(vec![Part::whole(frame)], 0);
        queue.try_submit(&request).unwrap();
        let _ = queue.try_submit(&request);
    });
    let failure = failure.unwrap_err().to_string();
    assert!(failure.contains("given to a device twice"), "{failure}");
}

/// The frame of a request's descriptors shows the device nothing of those who had it before.
#[test]
fn descriptors_stand_alone_in_their_frame() {
    on_machines_with("descriptors", [1], 256, 10, || {
        if dma::policy() != dma::Policy::Strict {
            return;
        }
        dma::tests::soil_all();
        let queue = Arc::new(queue());
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let request = Request::new(vec![Part::whole(frame)], 0);
        queue.try_submit(&request).unwrap();
        let mut device = Device::new(queue.clone());
        device.take();
        let [descriptors, ..] = queue.addresses();
        let mut head = [0; size_of::<Descriptor>()];
        let at = descriptors + (device.taken[0] as usize * head.len()) as u64;
        assert!(device_read(DEVICE, at, &mut head));
        let table = u64::from_le_bytes(head[..8].try_into().unwrap());
        let mut bytes = [0; PAGE_SIZE];
        assert!(device_read(DEVICE, table, &mut bytes));
        let behind = &bytes[size_of::<Descriptor>()..];
        assert!(behind.iter().all(|&byte| byte == 0), "bytes of others");
        device.work();
        queue.look();
    });
}

/// A request that finds memory for a part of what its slot needs leaves no memory behind, however
/// often it is tried.
#[test]
fn attempts_that_fail_leave_no_memory_behind() {
    on_machines_with("attempts", [1], 1024, 10, || {
        let queue = queue();
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let request = Request::new(vec![Part::whole(frame)], 0);
        let taken = || {
            let usage = frame::usage();
            usage.data + usage.kernel
        };
        let attempt = |left| {
            frame::fail_after(Some(left));
            let result = queue.try_submit(&request);
            frame::fail_after(None);
            result == Err(Error::OutOfMemory)
        };
        for left in 0..4 {
            // What the first one makes for good is for the next, which may come further.
            let is_failure = attempt(left);
            let before = taken();
            for _ in 0..20 {
                if !is_failure || !attempt(left) {
                    return;
                }
                assert_eq!(
                    taken(),
                    before,
                    "memory left by attempts that fail at {left}"
                );
            }
        }
    });
}

/// A task that waits for a slot hears that the device has failed, also where one task takes all
/// that the device has done.
#[test]
fn a_failure_wakes_the_tasks_that_wait_for_a_slot() {
    on_machines_with("failure", 1..=3, 256, 20, || {
        let queue = Arc::new(queue());
        queue.set_interrupts();
        queue.defer(Arc::new(WaitQueue::new()));
        let is_refused = Arc::new(AtomicBool::new(false));
        {
            let (queue, is_refused) = (queue.clone(), is_refused.clone());
            spawn(move || {
                while queue.submit(&request().0).is_ok() {}
                is_refused.store(true, Ordering::SeqCst);
            });
        }
        pause();
        let mut device = Device::new(queue.clone());
        device.side.put_used(SLOTS as u32, 0);
        assert!(queue.take_done(&mut [0; 2]) == 0 && queue.is_broken());
        for _ in 0..100 {
            pause();
        }
        assert!(is_refused.load(Ordering::SeqCst), "it waits still");
    });
}

/// How many frames the device of a queue finds for as long as it lives, and how many slots have
/// memory.
fn lasting(queue: &Queue) -> [usize; 2] {
    let strict = queue.domain.strict().unwrap();
    let state = queue.state.lock_irq();
    let slots = state.slots.iter().filter(|it| it.memory.is_some());
    let slots = slots.count();
    drop(state);
    [strict.usage()[0], slots]
}

/// Slots are prepared once.
#[test]
fn slots_that_have_memory_take_no_more() {
    on_machines_with("prepared", [1], 256, 10, || {
        if dma::policy() != dma::Policy::Strict {
            return;
        }
        let queue = queue();
        let [rings, none] = lasting(&queue);
        assert_eq!(none, 0);
        for count in [1, 1, 3, 2, SLOTS, 2 * SLOTS] {
            queue.prepare(count).unwrap();
            let [mapped, slots] = lasting(&queue);
            assert_eq!(mapped, rings + slots, "after {count}");
        }
        assert_eq!(lasting(&queue)[1], SLOTS);
    });
}

/// All memory that is made for slots has a slot, though another slot becomes free meanwhile.
#[test]
fn memory_for_a_slot_is_kept() {
    on_machines_with("kept", [2, 3], 256, 60, || {
        if dma::policy() != dma::Policy::Strict {
            return;
        }
        let queue = Arc::new(queue());
        let [rings, _] = lasting(&queue);
        let is_over = Arc::new(AtomicBool::new(false));
        let is_gone = Arc::new(AtomicBool::new(false));
        {
            let (queue, is_over, is_gone) = (queue.clone(), is_over.clone(), is_gone.clone());
            spawn(move || {
                let mut device = Device::new(queue);
                while !is_over.load(Ordering::SeqCst) {
                    device.work();
                    device.side.queue().look();
                    task::yield_now();
                }
                drop(device);
                is_gone.store(true, Ordering::SeqCst);
            });
        }
        let requests: Vec<_> = (0..REQUESTS).map(|_| request().0).collect();
        for request in &requests {
            queue.submit(request).unwrap();
        }
        for request in &requests {
            queue.wait(request, Sleep::SOUND).unwrap().unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
        while !is_gone.load(Ordering::SeqCst) {
            pause();
        }
        let [mapped, slots] = lasting(&queue);
        assert_eq!(mapped, rings + slots);
    });
}

/// Gives a device requests again and again, as a driver does that leaves all to one task: with the
/// parts that they had, or with others. Each time the device finds those of the request that has
/// the slot.
#[test]
fn requests_that_are_given_again_have_their_own_parts() {
    /// More than there are slots, so that they move.
    const AGAIN: usize = SLOTS + 2;
    on_machines_with("again", 1..=2, 256, 60, || {
        let queue = Arc::new(queue());
        queue.defer(Arc::new(WaitQueue::new()));
        let mut device = Device::new(queue.clone());
        let requests = |number| Request::idle_numbered(2, number as u32).unwrap();
        let requests: Vec<_> = (0..AGAIN).map(requests).collect();
        let mut parts: Vec<Option<[Part; 2]>> = vec![None; AGAIN];
        let mut flying: Vec<Option<u8>> = vec![None; AGAIN];
        let part = || Part::new(Frame::alloc(Contents::Zeroed).unwrap(), below(99), 1);
        for _ in 0..200 {
            let number = below(AGAIN);
            let request = &requests[number];
            match below(3) {
                0 if flying[number].is_none() => {
                    let again = parts[number].as_ref().filter(|_| below(3) > 0);
                    let own = again.cloned().unwrap_or_else(|| [part(), part()]);
                    let mark = random_u64() as u8;
                    for (part, byte) in own.iter().zip([mark, !mark]) {
                        ephemeral::map(&part.frame).write(part.offset, &[byte]);
                    }
                    if again.is_none() || !request.again() {
                        request.renew(1, |list| list.extend(own.iter().cloned()));
                    }
                    parts[number] = Some(own);
                    match queue.try_submit(request) {
                        Ok(()) => flying[number] = Some(mark),
                        Err(error) => {
                            assert_eq!(error, Error::Full);
                            request.abandon();
                            parts[number] = None;
                        }
                    }
                }
                1 => device.work(),
                _ => {
                    let mut done = [0; 2];
                    let count = queue.take_done(&mut done);
                    for number in done[..count].iter().map(|it| *it as usize) {
                        let mark = flying[number].take().expect("one that was given");
                        assert_eq!(requests[number].result(), Some(Ok(1)));
                        let [_, written] = parts[number].as_ref().unwrap();
                        let mut byte = [0];
                        ephemeral::map(&written.frame).read(written.offset, &mut byte);
                        assert_eq!(byte, [mark], "another request's parts");
                    }
                }
            }
        }
    });
}
