//! What kind of CPU this is, as programs are told.

use alloc::vec::Vec;
use core::arch::x86_64::{__cpuid, __cpuid_count};

use super::clock;
use super::cpu::{Features, features, msr, read_msr};
use crate::hw::bugs::Facts;
use crate::hw::processor::{Cache, Processor};

/// What programs may want to know of the CPUs.
pub fn processor() -> Processor {
    let mut vendor = [0; 12];
    let zero = __cpuid(0);
    for (part, word) in vendor
        .chunks_exact_mut(4)
        .zip([zero.ebx, zero.edx, zero.ecx])
    {
        part.copy_from_slice(&word.to_le_bytes());
    }
    let mut name = [0; 48];
    if __cpuid(0x8000_0000).eax >= 0x8000_0004 {
        for (part, leaf) in name.chunks_exact_mut(16).zip(0x8000_0002..) {
            let found = __cpuid(leaf);
            let words = [found.eax, found.ebx, found.ecx, found.edx];
            for (bytes, word) in part.chunks_exact_mut(4).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
    }
    let one = __cpuid(1);
    let family = one.eax >> 8 & 15;
    let model = one.eax >> 4 & 15;
    let seven = match zero.eax >= 7 {
        true => __cpuid_count(7, 0).ebx,
        false => 0,
    };
    let extended = __cpuid(0x8000_0001);
    Processor {
        features: [one.edx, one.ecx, seven, extended.edx, extended.ecx],
        vendor,
        name,
        family: match family {
            15 => family + (one.eax >> 20 & 0xff),
            _ => family,
        },
        model: match family {
            6 | 15 => model | one.eax >> 12 & 0xf0,
            _ => model,
        },
        stepping: one.eax & 15,
        kilohertz: clock::kilohertz(),
        // Linux's: the feature word of leaf 1; ring 3 may use the instructions for FS and GS bases.
        capabilities: one.edx.into(),
        capabilities2: match features().contains(Features::FSGSBASE) {
            true => 2,
            false => 0,
        },
    }
}

/// What this CPU says of itself about faults of speculation.
pub fn facts() -> Facts {
    let this = processor();
    let leaf = |leaf, part| {
        let highest = __cpuid(leaf & 0x8000_0000).eax;
        (highest >= leaf).then(|| __cpuid_count(leaf, part))
    };
    let seven = leaf(7, 0);
    let seven_edx = seven.map_or(0, |leaf| leaf.edx);
    let parts = seven.map_or(0, |leaf| leaf.eax);
    let capabilities = match seven_edx >> 29 & 1 {
        0 => 0,
        // SAFETY: the bit says that the register exists.
        _ => unsafe { read_msr(msr::ARCH_CAPABILITIES) },
    };
    Facts {
        vendor: this.vendor,
        family: this.family,
        model: this.model,
        one_ecx: __cpuid(1).ecx,
        seven_ebx: seven.map_or(0, |leaf| leaf.ebx),
        seven_edx,
        seven_two_edx: match parts >= 2 {
            true => leaf(7, 2).map_or(0, |leaf| leaf.edx),
            false => 0,
        },
        amd_ebx: leaf(0x8000_0008, 0).map_or(0, |leaf| leaf.ebx),
        amd_eax: leaf(0x8000_0021, 0).map_or(0, |leaf| leaf.eax),
        capabilities,
    }
}

/// The caches of each CPU, as Linux finds them: by leaf 4, on AMD's by the leaf that came with the
/// topology extensions, or by the older ones.
pub fn caches() -> Vec<Cache> {
    /// No CPU has more.
    const MOST: u32 = 8;
    let highest = __cpuid(0x8000_0000).eax;
    let by_leaf = |leaf| {
        let words = (0..MOST).map(|sub| {
            let found = __cpuid_count(leaf, sub);
            [found.eax, found.ebx, found.ecx]
        });
        words.map_while(Cache::from_leaf).collect()
    };
    let is_amd = processor().vendor() == "AuthenticAMD";
    if !is_amd {
        return match __cpuid(0).eax >= 4 {
            true => by_leaf(4),
            false => Vec::new(),
        };
    }
    if highest >= 0x8000_001d && __cpuid(0x8000_0001).ecx >> 22 & 1 != 0 {
        return by_leaf(0x8000_001d);
    }
    if highest < 0x8000_0006 {
        return Vec::new();
    }
    let (first, outer) = (__cpuid(0x8000_0005), __cpuid(0x8000_0006));
    let words = [first.ecx, first.edx, outer.ecx, outer.edx];
    Cache::from_amd(words).into_iter().flatten().collect()
}
