//! Measurements of the bare machine.

pub mod hw_cost;
