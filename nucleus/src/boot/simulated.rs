//! Running a test on a fresh machine, once or with many seeds.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, Once},
};

use crate::dma::audit_devices;
use crate::ephemeral::audit::audit_kernel;
pub use crate::hw::sim::machine::Config;
use crate::hw::sim::machine::{DEVICE_PAGES, FIRST_FRAME, Machine, machine, required};
use crate::hw::sim::program;
use crate::hw::{DirectMap, Region};
use crate::mem::device::{Caching, DeviceMemory};
use crate::mem::frame;
use crate::pmap::audit::{Seen, audit_frames};
use crate::{PAGE_SHIFT, PhysAddr};

/// Why a run failed: a panic of a task, a deadlock, or what the oracle saw.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Failure {
    pub seed: u64,
    pub message: String,
    /// The end of the kernel's log.
    pub log: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.message)?;
        if !self.log.is_empty() {
            write!(f, "\nkernel log:\n{}", self.log)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// The nucleus has one set of global state in a process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

type Body = Box<dyn FnOnce() + Send>;

/// Boots a machine with all of the nucleus's state new and runs `body` as its first task.
///
/// # Errors
/// A task panicked, all sleep for ever, there was no end, or the oracle objected.
pub fn run(config: Config, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let _one = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    catch_panics();
    // A thread of its own: a panic inside leaves the thread's panic state behind.
    let runner = std::thread::spawn(move || {
        reset();
        let machine = Machine::new(config);
        let mut body: Option<Body> = Some(Box::new(body));
        machine.run(boot, &raw mut body as usize);
        let outcome = machine.outcome.take().unwrap_or(Ok(()));
        outcome.map_err(|message| {
            let log = machine.log.take();
            let tail = log.len().saturating_sub(4000);
            Failure {
                seed: config.seed,
                message,
                log: String::from_utf8_lossy(&log[tail..]).into_owned(),
            }
        })
    });
    match runner.join() {
        Ok(result) => result,
        Err(_) => panic!("the simulator itself panicked with seed {}", config.seed),
    }
}

/// The seeds of random runs: the `usual` ones, or as the environment says: the one of `SEED`, or as
/// many as `SEEDS` from the first on.
pub fn seeds(usual: Range<u64>) -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse().ok());
    match (number("SEED"), number("SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => usual.start..usual.start + count,
        (None, None) => usual,
    }
}

/// Runs `body` with each of the [`seeds`] and panics at the first failure, naming the seed.
pub fn check(
    name: &str,
    usual: Range<u64>,
    config: Config,
    body: impl Fn() + Send + Sync + 'static,
) {
    let body = Arc::new(body);
    for seed in seeds(usual) {
        let body = body.clone();
        if let Err(failure) = run(Config { seed, ..config }, move || body()) {
            panic!("{name}: {failure}\nrepeat with SEED={seed}");
        }
    }
}

/// The memory of the machine's one device.
///
/// # Panics
/// Outside of a run.
pub fn device_memory() -> DeviceMemory {
    let memory =
        DeviceMemory::outside_ram(first_of_device(), DEVICE_PAGES as u64, Caching::Uncached);
    memory.expect("the device's memory has no frames")
}

/// The first byte of each page of the device, as the device sees it.
///
/// # Panics
/// Outside of a run.
pub fn device_bytes() -> Vec<u8> {
    let m = required();
    let pages = first_of_device()..first_of_device() + DEVICE_PAGES as u64;
    // SAFETY: inside the machine's memory, of which one thread uses all.
    let byte = |page| unsafe { m.memory(PhysAddr(page << PAGE_SHIFT)).read() };
    pages.map(byte).collect()
}

fn first_of_device() -> u64 {
    FIRST_FRAME + required().config.pages as u64
}

/// Everything that a machine's tasks left in the nucleus's global state goes.
fn reset() {
    crate::sync::parking_lot::reset();
    crate::sync::section::reset();
    crate::task::reset();
    crate::dev::dma::reset();
    crate::dev::bus_master::reset();
    crate::time::reset();
    program::reset();
}

extern "C" fn boot(body: usize) -> ! {
    let m = machine().expect("the machine that boots");
    // SAFETY: `run` put it there and waits.
    let body = unsafe { (*(body as *mut Option<Body>)).take() };
    let memory = Region {
        start: FIRST_FRAME,
        end: FIRST_FRAME + m.config.pages as u64,
        free: true,
        persistent: false,
    };
    // One machine in four has no direct map of data, so all that runs here is tried with it.
    let by_seed = match m.config.seed % 4 {
        3 => DirectMap::Kernel,
        _ => DirectMap::All,
    };
    frame::set_direct_map(m.config.direct_map.unwrap_or(by_seed));
    // SAFETY: all memory of the machine but the first frames, which only this module uses; no task
    // runs yet.
    unsafe { frame::init(&[memory]) }.expect("a machine with more memory");
    // SAFETY: this CPU is alone, and there is no task yet.
    unsafe {
        crate::mem::domain::start(m.config.policy());
        crate::pmap::init();
        crate::ephemeral::init();
        crate::console::reset();
        crate::log::reset();
    }
    crate::time::init();
    crate::random::init();
    m.start_others();
    crate::task::run_boot_cpu(Box::new(move || {
        if let Some(body) = body {
            body();
            audit();
        }
        machine().expect("the machine that boots").body_ended();
    }))
}

/// What every run ends with. Tasks may still run.
///
/// # Panics
/// The audit found something.
fn audit() {
    let mut seen = Seen::default();
    let mut found = Vec::new();
    audit_frames(false, &mut seen, &mut |it| found.push(it.to_string()));
    audit_kernel(&mut seen, &mut |it| found.push(it.to_string()));
    audit_devices(&mut seen, &mut |it| found.push(it.to_string()));
    assert!(found.is_empty(), "the audit: {found:#?}");
}

/// Makes a panic on a simulated machine end its run: with the next thing that the machine does, or
/// when all of the task's stack is unwound. To go on unwinding might need the machine; to end the
/// run inside the hook would hold the hook's lock for ever, which the test harness wants in the
/// end.
fn catch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let Some(m) = machine() else {
                return usual(info);
            };
            let mut message = info.to_string();
            if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
                message += &format!("\n{}", std::backtrace::Backtrace::force_capture());
            }
            m.panicked(format!("CPU {}: {message}", m.current()));
        }));
    });
}
