//! The two machines. The compile target chooses: `x86_64` on bare metal, `sim` inside `cargo test`.

#[cfg(not(target_os = "none"))]
pub mod sim;
#[cfg(target_os = "none")]
pub(crate) mod x86_64;

#[cfg(not(target_os = "none"))]
pub(crate) use sim as machine;
#[cfg(target_os = "none")]
pub(crate) use x86_64 as machine;
