//! Directories and files made up on demand.
