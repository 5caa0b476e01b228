//! How the machine was started: by PVH or multiboot2, with a command line and a root archive.

use core::ops::Deref;

/// Defines the kernel's entry: `nucleus::entry!(path::to::start)` in the binary crate, where
/// `fn start() -> !` runs as the first task with everything in the nucleus ready.
#[macro_export]
macro_rules! entry {
    ($start:path) => {
        #[unsafe(no_mangle)]
        extern "Rust" fn causeway_start() -> ! {
            $start()
        }
    };
}

/// The kernel's command line; bytes that are not UTF-8 were replaced.
pub fn command_line() -> &'static str {
    todo!()
}

/// The root archive that the loader left in memory. Dropping it frees its frames.
pub struct Archive {
    _private: (),
}

impl Deref for Archive {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        todo!()
    }
}

/// Takes the root archive, once.
pub fn take_archive() -> Option<Archive> {
    todo!()
}
