//! `causeway bench`: the guest's experiments on this kernel and on another one, in turn.
//!
//! The guest's program prints [`lines`], which make [`results`] by [`statistics`].

pub mod experiments;
pub mod lines;
pub mod results;
pub mod statistics;
