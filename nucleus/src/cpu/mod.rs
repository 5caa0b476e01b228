//! What each CPU has for itself.
//!
//! [`percpu`]: values per CPU and staying on one.

pub(crate) mod percpu;
