//! What kind of CPUs the machine has, for programs that ask.

/// A CPU; all are alike.
#[derive(Clone, Copy, Debug)]
pub struct Processor {
    /// The maker's signature.
    pub vendor: [u8; 12],
    /// The name, padded with NULs.
    pub name: [u8; 48],
    pub family: u32,
    pub model: u32,
    pub stepping: u32,
    /// Nominal rate.
    pub kilohertz: u64,
    /// `AT_HWCAP`.
    pub capabilities: u64,
    /// `AT_HWCAP2`.
    pub capabilities2: u64,
    /// What `cpuid` says of abilities: leaf 1 `edx` and `ecx`, leaf 7 `ebx`, leaf 0x8000_0001 `edx` and `ecx`.
    pub features: [u32; 5],
}

impl Processor {
    /// The maker's signature as text.
    pub fn vendor(&self) -> &str {
        text(&self.vendor)
    }

    /// The name as text, without padding.
    pub fn name(&self) -> &str {
        text(&self.name)
    }
}

fn text(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes)
        .unwrap_or("unknown")
        .trim_matches(['\0', ' '])
}

/// Asks the machine.
#[cfg(target_os = "none")]
pub fn processor() -> Processor {
    crate::arch::machine::processor()
}

/// The simulated machine's.
#[cfg(not(target_os = "none"))]
pub fn processor() -> Processor {
    let mut name = [0; 48];
    name[..9].copy_from_slice(b"simulated");
    Processor {
        vendor: *b"SimulatedCPU",
        name,
        family: 6,
        model: 0,
        stepping: 0,
        kilohertz: 1_000_000,
        capabilities: 0,
        capabilities2: 0,
        features: [0; 5],
    }
}
