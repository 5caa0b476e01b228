//! Domains that send, receive and end at the same time.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use abi::Errno;
use fbuf::region::{Domain, Mode, Path, statuses};
use nucleus::{PAGE_SIZE, VirtAddr, sync::OnceArc, task, user};
use vm::Map;

use super::support::{Numbers, Tasks, new_map};

fn enter(map: &Arc<Map>) -> Arc<Domain> {
    Domain::enter(map, 1, &OnceArc::new()).expect("room")
}

/// Writes one leaf with a page that is filled, and sends it.
fn originate(map: &Arc<Map>, path: &Path, domain: &Arc<Domain>, mut numbers: Numbers) {
    let mut runs = Vec::new();
    for round in 0..40 {
        match numbers.below(10) {
            0 => runs.extend(path.grow(domain, 1)),
            1 if !runs.is_empty() => {
                let at = numbers.below(runs.len());
                let start: VirtAddr = runs[at].start;
                match path.shrink(domain, start.0 as u64) {
                    Ok(()) => drop(runs.swap_remove(at)),
                    Err(error) => assert_eq!(error, Errno::EBUSY),
                }
            }
            2 => path.take_notices(domain, 3, &mut |_| {}).expect("its own"),
            _ if runs.is_empty() => {}
            _ => {
                let start = numbers.pick(&runs).start + numbers.below(3) * 2 * PAGE_SIZE;
                let data = start + PAGE_SIZE;
                let node: [u64; 4] = [1, PAGE_SIZE as u64, data.0 as u64, 0];
                let may_write = user::copy_out(data, &[round; PAGE_SIZE]).is_ok()
                    && user::write(start, &node).is_ok();
                // It may not before they are freed.
                assert!(may_write || path.mode().is_secured());
                if let Err(error) = path.send(domain, None, start.0 as u64) {
                    // Nothing that was never written is a node.
                    assert!([Errno::EPIPE, Errno::EAGAIN].contains(&error), "{error:?}");
                }
            }
        }
        task::yield_now();
    }
    let _ = map;
}

/// Receives and frees until the originator is gone or it has had enough.
fn receive(path: &Path, domain: &Arc<Domain>, mut numbers: Numbers) {
    if path.attach(domain).is_err() {
        return;
    }
    let mut held = Vec::new();
    for _ in 0..60 {
        match path.receive(domain) {
            Ok(Some(message)) => held.push(message),
            Ok(None) => task::yield_now(),
            Err(error) => {
                assert_eq!(error, Errno::EPIPE);
                break;
            }
        }
        let Some(message) = held.last() else { continue };
        let node: [u64; 4] = user::read(VirtAddr(message.root as usize)).expect("it was sent");
        assert_eq!((node[0], node[1]), (1, PAGE_SIZE as u64));
        let mut bytes = [0u8; PAGE_SIZE];
        user::copy_in(&mut bytes, VirtAddr(node[2] as usize)).expect("it was sent");
        if path.mode().is_secured() {
            assert!(bytes.iter().all(|&byte| byte == bytes[0]), "it was written");
        }
        if numbers.chance(70) {
            let at = numbers.below(held.len());
            path.free(domain, held.swap_remove(at).id)
                .expect("it is held");
        }
    }
    if numbers.chance(30) {
        path.leave(domain);
    }
}

/// One path with an originator and two or three receivers, all of which end at some time.
pub fn run(seed: u64) {
    let mut numbers = Numbers::new(seed);
    let mode = Mode::from_bits(numbers.below(4) as u32).expect("a mode");
    let tasks = Tasks::new();
    let maps: Vec<Arc<Map>> = (0..4).map(|_| new_map()).collect();
    let domains: Vec<Arc<Domain>> = maps.iter().map(enter).collect();
    let path = Path::new(&domains[0], mode, 3).expect("memory");
    let closed = Arc::new(AtomicBool::new(false));
    for (i, (map, domain)) in maps.iter().zip(&domains).enumerate() {
        let (path, domain) = (path.clone(), domain.clone());
        let numbers = Numbers::new(seed + i as u64 + 1);
        let closes = i == 3 && seed.is_multiple_of(5);
        let closed = closed.clone();
        tasks.spawn_in(map, i, move |map| {
            match i {
                0 => originate(map, &path, &domain, numbers),
                // One whose receiver ends early.
                _ if closes => {
                    for _ in 0..30 {
                        task::yield_now();
                    }
                    closed.store(true, SeqCst);
                }
                _ => receive(&path, &domain, numbers),
            }
            domain.end();
        });
    }
    drop((maps, domains));
    tasks.wait_until(0);
    path.close();
    drop(path);
    // Tasks that have ended drop their handles some time later.
    for _ in 0..1000 {
        if statuses().expect("memory").is_empty() {
            return;
        }
        task::reap();
        task::yield_now();
    }
    panic!("a path is left: {:?}", statuses());
}
