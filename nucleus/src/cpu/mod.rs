//! What each CPU has for itself.
//!
//! [`percpu`]: values per CPU and staying on one; [`random`]: random numbers.

pub(crate) mod percpu;
pub mod random;
