//! A virtual machine with x86-64 CPUs.
