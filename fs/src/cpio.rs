//! (cpio)
