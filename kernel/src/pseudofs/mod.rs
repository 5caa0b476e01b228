//! File systems whose files are computed: `/proc` and `/sys`.

pub mod proc;
pub mod sys;
