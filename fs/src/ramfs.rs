//! (ramfs)
