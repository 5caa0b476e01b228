//! What kind of CPUs the machine has, for programs that ask.
#![allow(missing_docs, reason = "fields and variants whose names say it")]

pub use super::bugs::Bugs;
pub use super::machine::{bugs, caches, choice_of, processor, vulnerabilities};
pub use super::mitigations::{Choice, Speculation};

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
    /// What `cpuid` says of abilities: leaf 1 `edx` and `ecx`, leaf 7 `ebx`, leaf 0x8000_0001 `edx`
    /// and `ecx`.
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

/// What a cache holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheKind {
    Data,
    Instruction,
    Unified,
}

/// A cache of each CPU's own, as `cpuid` describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cache {
    /// 1 is the nearest.
    pub level: u32,
    pub kind: CacheKind,
    pub line_bytes: u32,
    /// Lines that share a tag.
    pub partitions: u32,
    pub ways: u32,
    pub sets: u32,
    /// CPUs that share one, 1 or more.
    pub shared_by: u32,
}

impl Cache {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        [self.line_bytes, self.partitions, self.ways, self.sets]
            .into_iter()
            .map(u64::from)
            .product()
    }

    /// From a sub-leaf of leaf 4, or of AMD's 0x8000_001d, which has the same form: `eax`, `ebx`,
    /// `ecx`. `None` behind the last cache.
    pub fn from_leaf([eax, ebx, ecx]: [u32; 3]) -> Option<Cache> {
        let kind = match eax & 31 {
            1 => CacheKind::Data,
            2 => CacheKind::Instruction,
            3 => CacheKind::Unified,
            _ => return None,
        };
        Some(Cache {
            level: eax >> 5 & 7,
            kind,
            line_bytes: (ebx & 0xfff) + 1,
            partitions: (ebx >> 12 & 0x3ff) + 1,
            ways: (ebx >> 22) + 1,
            sets: ecx.wrapping_add(1),
            shared_by: (eax >> 14 & 0xfff) + 1,
        })
    }

    /// From AMD's older description, leaves 0x8000_0005 (`ecx` of the data cache, `edx` of the
    /// instruction cache) and 0x8000_0006 (`ecx` of the second level, `edx` of the third), which do
    /// not say which CPUs share one: each CPU is taken to have its own, as on Linux.
    pub fn from_amd([data, instruction, second, third]: [u32; 4]) -> [Option<Cache>; 4] {
        let cache = |level, kind, kib: u32, ways, lines_per_tag: u32, line_bytes: u32| {
            let bytes = kib.checked_mul(1024)?;
            // All ways in one set.
            let ways = match ways {
                0xffff => bytes / line_bytes.max(1),
                ways => ways,
            };
            let way = line_bytes * lines_per_tag.max(1) * ways;
            (bytes > 0 && way > 0).then(|| Cache {
                level,
                kind,
                line_bytes,
                partitions: lines_per_tag.max(1),
                ways,
                sets: bytes / way,
                shared_by: 1,
            })
        };
        let first = |word: u32, kind| {
            let ways = match word >> 16 & 0xff {
                0xff => 0xffff,
                ways => ways,
            };
            cache(1, kind, word >> 24, ways, word >> 8 & 0xff, word & 0xff)
        };
        // The field for the ways of the outer levels is a code.
        let outer = |level, word: u32, kib| {
            const WAYS: [u32; 16] = [0, 1, 2, 0, 4, 0, 8, 0, 16, 0, 32, 48, 64, 96, 128, 0xffff];
            let ways = WAYS[(word >> 12 & 15) as usize];
            let (lines, bytes) = (word >> 8 & 15, word & 0xff);
            cache(level, CacheKind::Unified, kib, ways, lines, bytes)
        };
        [
            first(data, CacheKind::Data),
            first(instruction, CacheKind::Instruction),
            outer(2, second, second >> 16),
            outer(3, third, (third >> 18) * 512),
        ]
    }
}

fn text(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes)
        .unwrap_or("unknown")
        .trim_matches(['\0', ' '])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_decoded() {
        // 32 KiB, 8 ways of 64 sets, lines of 64 bytes.
        let data = Cache::from_leaf([0x0000_0121, 0x01c0_003f, 63]).unwrap();
        assert_eq!(
            (data.level, data.kind, data.bytes()),
            (1, CacheKind::Data, 32 << 10)
        );
        assert_eq!((data.ways, data.sets, data.line_bytes), (8, 64, 64));
        assert_eq!(Cache::from_leaf([0, 0, 0]), None);
        // 64 KiB of 2 ways twice, 512 KiB of 16 ways, 16 MiB of 16 ways.
        let words = [0x4002_0140, 0x4002_0140, 0x0200_8140, 0x0080_8140];
        let [data, instruction, second, third] = Cache::from_amd(words);
        let (data, second, third) = (data.unwrap(), second.unwrap(), third.unwrap());
        assert_eq!((data.bytes(), data.ways, data.sets), (64 << 10, 2, 512));
        assert_eq!(instruction.unwrap().kind, CacheKind::Instruction);
        assert_eq!(
            (second.level, second.bytes(), second.ways),
            (2, 512 << 10, 16)
        );
        assert_eq!((third.bytes(), third.shared_by), (16 << 20, 1));
        assert_eq!(Cache::from_amd([0; 4]), [None; 4]);
    }
}
