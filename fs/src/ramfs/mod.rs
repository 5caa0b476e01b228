//! The in-memory file system.
