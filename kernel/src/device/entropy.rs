//! The host's random numbers (`virtio-rng`), for the kernel's generator.

use alloc::{boxed::Box, sync::Arc};
use core::time::Duration;

use nucleus::{
    PAGE_SIZE,
    dma::Buffer,
    log, random,
    task::{self, Sleep, Spawn},
    virtio::{self, Device, Error, Kind, Queue, Request},
};

/// Bytes of a request. The host's are as good as they can be: each has eight bits of entropy.
const BYTES: usize = 64;
/// How long the start waits for the first bytes, which a program could otherwise be told less
/// random ones before: a device that takes longer is broken or its host has none.
const PATIENCE: Duration = Duration::from_secs(2);

/// A device, and the memory that it writes to.
struct Source {
    _device: Device,
    queue: Arc<Queue>,
    request: Arc<Request>,
    buffer: Buffer,
}

/// Starts the devices, and where no other source has seeded the generator waits for their bytes.
pub fn start() {
    let mut devices = 0;
    for found in virtio::take(Kind::Entropy) {
        match Source::new(found) {
            Ok(source) => {
                let body = Box::new(move || source.serve());
                match task::spawn(Spawn::kernel("entropy"), body) {
                    Ok(_) => devices += 1,
                    Err(_) => log!("entropy: no memory for a task"),
                }
            }
            Err(error) => log!("entropy: a device can't be used: {error:?}"),
        }
    }
    if devices > 0 && !random::is_seeded() {
        let until = Sleep::within(PATIENCE);
        let seeded = || random::is_seeded().then_some(());
        if random::seeded().wait(until, seeded).is_err() {
            log!("entropy: the device gives no bytes");
        }
    }
    log!("entropy: {} bits, {devices} devices", random::entropy());
}

impl Source {
    fn new(found: virtio::Found) -> Result<Source, Error> {
        const { assert!(BYTES <= PAGE_SIZE) };
        let device = found.start(0, 1)?;
        let queue = device.queue(0).clone();
        queue.prepare(1)?;
        let buffer = device.pool(1)?.take()?;
        Ok(Source {
            _device: device,
            queue,
            request: Request::idle(1)?,
            buffer,
        })
    }

    /// Adds bytes, now and whenever the generator was seeded anew since.
    fn serve(&self) {
        while self.add().is_ok() {
            // Nothing interrupts a sound sleep.
            let _ = random::wait_until_wanted(Sleep::SOUND);
        }
        log!("entropy: the device has failed");
    }

    fn add(&self) -> Result<(), Error> {
        let part = self.buffer.part(0, BYTES);
        self.request.renew(0, |parts| parts.push(part));
        self.queue.submit(&self.request)?;
        let written = self.queue.wait(&self.request, Sleep::SOUND);
        let count = written.map_or(Err(Error::Broken), |written| written)? as usize;
        let mut bytes = [0; BYTES];
        let count = count.min(BYTES);
        self.buffer.read(0, &mut bytes[..count]);
        self.buffer.write(0, &[0; BYTES]);
        random::add(&bytes[..count], 8 * count as u32);
        bytes.fill(0);
        core::hint::black_box(&bytes);
        Ok(())
    }
}
