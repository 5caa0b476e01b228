//! From the first task to the first program.

/// The first task: everything in the nucleus is ready.
pub fn start() -> ! {
    nucleus::power::stop(nucleus::power::Stop::BadStart)
}
