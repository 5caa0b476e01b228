//! The kernel heap: size classes on frames, with per-CPU caches.
