//! Which faults of speculation a CPU has, by its maker, its model and what it says of itself.
#![allow(
    missing_docs,
    reason = "faults' own names, and fields whose names say it"
)]

use bitflags::bitflags;

bitflags! {
    /// Faults that programs could use to read what is not theirs.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Bugs: u32 {
        const MELTDOWN = 1 << 0;
        const SPECTRE_V1 = 1 << 1;
        const SPECTRE_V2 = 1 << 2;
        const SPEC_STORE_BYPASS = 1 << 3;
        const L1TF = 1 << 4;
        const MDS = 1 << 5;
        const SWAPGS = 1 << 6;
        const TAA = 1 << 7;
        const ITLB_MULTIHIT = 1 << 8;
        const SRBDS = 1 << 9;
        const MMIO_STALE_DATA = 1 << 10;
        /// No list says whether it has the fault.
        const MMIO_UNKNOWN = 1 << 11;
        const RETBLEED = 1 << 12;
        const GDS = 1 << 13;
        const SRSO = 1 << 14;
        const RFDS = 1 << 15;
    }
}

/// The names in `/proc/cpuinfo`, by bit.
const NAMES: [&str; 16] = [
    "cpu_meltdown",
    "spectre_v1",
    "spectre_v2",
    "spec_store_bypass",
    "l1tf",
    "mds",
    "swapgs",
    "taa",
    "itlb_multihit",
    "srbds",
    "mmio_stale_data",
    "mmio_unknown",
    "retbleed",
    "gds",
    "srso",
    "rfds",
];

/// Bits of `ARCH_CAPABILITIES`: the CPU does not have the fault, or has the ability.
pub(crate) mod capability {
    pub(crate) const RDCL_NO: u64 = 1 << 0;
    /// IBRS may be set once and stay.
    pub(crate) const IBRS_ALL: u64 = 1 << 1;
    /// Returns may be predicted as indirect branches are.
    pub(crate) const RSBA: u64 = 1 << 2;
    pub(crate) const SSB_NO: u64 = 1 << 4;
    pub(crate) const MDS_NO: u64 = 1 << 5;
    pub(crate) const PSCHANGE_MC_NO: u64 = 1 << 6;
    pub(crate) const TSX_CTRL: u64 = 1 << 7;
    pub(crate) const TAA_NO: u64 = 1 << 8;
    /// All three kinds of stale data of device registers.
    pub(crate) const MMIO_NO: u64 = 7 << 13;
    /// The kernel's branches do not follow programs' branch history.
    pub(crate) const BHI_NO: u64 = 1 << 20;
    pub(crate) const GDS_NO: u64 = 1 << 26;
    pub(crate) const RFDS_NO: u64 = 1 << 27;
    /// `verw` clears the registers, too.
    pub(crate) const RFDS_CLEAR: u64 = 1 << 28;
}

/// What a CPU says of itself.
#[derive(Clone, Copy, Default, Debug)]
pub struct Facts {
    pub vendor: [u8; 12],
    pub family: u32,
    pub model: u32,
    /// Leaf 1 `ecx`, leaf 7 `ebx` and `edx`.
    pub one_ecx: u32,
    pub seven_ebx: u32,
    pub seven_edx: u32,
    /// `edx` of leaf 7, part 2.
    pub seven_two_edx: u32,
    /// Leaf 0x8000_0008 `ebx` and leaf 0x8000_0021 `eax`.
    pub amd_ebx: u32,
    pub amd_eax: u32,
    /// 0 without that register.
    pub capabilities: u64,
}

/// What a model, whatever else it says, is known not to have.
const IN_ORDER: Bugs = Bugs::all();
const AIRMONT: Bugs = Bugs::L1TF.union(Bugs::SWAPGS).union(Bugs::ITLB_MULTIHIT);
const SILVERMONT: Bugs = AIRMONT.union(Bugs::SPEC_STORE_BYPASS);
const GOLDMONT: Bugs = AIRMONT.union(Bugs::MDS).union(Bugs::MMIO_UNKNOWN);
const AMD: Bugs = GOLDMONT.union(Bugs::MELTDOWN);
const OLD_AMD: Bugs = AMD.union(Bugs::SPEC_STORE_BYPASS);

/// Models of Intel's family 6 with the faults that are known by model.
const KNOWN: &[(u32, Bugs)] = &[
    (0x3a, Bugs::SRBDS),
    (0x3c, Bugs::SRBDS),
    (0x45, Bugs::SRBDS),
    (0x46, Bugs::SRBDS),
    (0x3f, Bugs::MMIO_STALE_DATA),
    (0x3d, Bugs::SRBDS),
    (0x47, Bugs::SRBDS),
    (0x56, Bugs::MMIO_STALE_DATA),
    (0x4f, Bugs::MMIO_STALE_DATA),
    (0x4e, CLIENT),
    (0x5e, CLIENT),
    (0x55, SERVER),
    (0x8e, CLIENT),
    (0x9e, CLIENT),
    (0x66, Bugs::RETBLEED),
    (0x7e, CLIENT),
    (0x6a, ICE_LAKE_SERVER),
    (0x6c, ICE_LAKE_SERVER),
    (0x8c, Bugs::GDS),
    (0x8d, Bugs::GDS),
    (0xa5, CLIENT),
    (0xa6, CLIENT),
    (0xa7, SERVER),
    (0x8a, TREMONT.union(Bugs::RETBLEED)),
    (0x96, TREMONT.union(Bugs::RFDS)),
    (0x9c, TREMONT.union(Bugs::RFDS)),
    (0x86, Bugs::MMIO_STALE_DATA.union(Bugs::RFDS)),
    (0x5c, Bugs::RFDS),
    (0x5f, Bugs::RFDS),
    (0x7a, Bugs::RFDS),
    (0x97, Bugs::RFDS),
    (0x9a, Bugs::RFDS),
    (0xb7, Bugs::RFDS),
    (0xba, Bugs::RFDS),
    (0xbe, Bugs::RFDS),
    (0xbf, Bugs::RFDS),
];
const TREMONT: Bugs = Bugs::MMIO_STALE_DATA.union(Bugs::SRBDS);
const ICE_LAKE_SERVER: Bugs = Bugs::MMIO_STALE_DATA.union(Bugs::GDS);
const SERVER: Bugs = ICE_LAKE_SERVER.union(Bugs::RETBLEED);
const CLIENT: Bugs = SERVER.union(Bugs::SRBDS);

impl Facts {
    /// Of a CPU that says nothing.
    #[cfg(target_os = "none")]
    pub(crate) const NONE: Facts = Facts {
        vendor: [0; 12],
        family: 0,
        model: 0,
        one_ecx: 0,
        seven_ebx: 0,
        seven_edx: 0,
        seven_two_edx: 0,
        amd_ebx: 0,
        amd_eax: 0,
        capabilities: 0,
    };

    pub(crate) fn is_intel(&self) -> bool {
        self.vendor == *b"GenuineIntel"
    }

    fn is_amd(&self) -> bool {
        matches!(&self.vendor, b"AuthenticAMD" | b"HygonGenuine")
    }

    /// Whether `invlpg` may leave a global translation where address-space tags are on: some models
    /// of Alder Lake's and Raptor Lake's generation do with older microcode, whose number virtual
    /// machines do not tell.
    #[cfg(any(test, target_os = "none"))]
    pub(crate) fn leaves_global(&self) -> bool {
        let model = matches!(self.model, 0x97 | 0x9a | 0xb7 | 0xba | 0xbe | 0xbf);
        self.is_intel() && self.family == 6 && model
    }

    /// What its model is known not to have.
    fn spared(&self) -> Bugs {
        match (self.is_intel(), self.family, self.model) {
            _ if self.is_amd() && matches!(self.family, 0x0f..=0x12) => OLD_AMD,
            _ if self.is_amd() => AMD,
            (true, 0..6, _) => IN_ORDER,
            // The first Atoms execute in order.
            (true, 6, 0x1c | 0x26 | 0x27 | 0x35 | 0x36) => IN_ORDER,
            (true, 6, 0x37 | 0x4a | 0x4c | 0x4d | 0x57 | 0x85) => SILVERMONT,
            (true, 6, 0x5a | 0x75) => AIRMONT,
            (true, 6, 0x5c | 0x5f | 0x7a) => GOLDMONT,
            (true, 6, 0x86) => Bugs::ITLB_MULTIHIT,
            (true, 6, 0x8c | 0x8d | 0x97 | 0x9a) => Bugs::MMIO_UNKNOWN,
            _ => Bugs::empty(),
        }
    }
}

impl Bugs {
    /// The faults of a CPU: what nothing says it is free of, it has.
    pub fn of(facts: &Facts) -> Bugs {
        use capability::*;
        let spared = facts.spared();
        let says = |bits: u64| facts.capabilities & bits == bits;
        let mut bugs = Bugs::all()
            - Bugs::TAA
            - Bugs::SRBDS
            - Bugs::MMIO_STALE_DATA
            - Bugs::MMIO_UNKNOWN
            - Bugs::RETBLEED
            - Bugs::GDS
            - Bugs::SRSO
            - Bugs::RFDS
            - spared;
        if spared == IN_ORDER {
            return Bugs::empty();
        }
        if says(RDCL_NO) {
            bugs -= Bugs::MELTDOWN | Bugs::L1TF;
        }
        // AMD's own bit: stores are not bypassed.
        if says(SSB_NO) || facts.is_amd() && facts.amd_ebx >> 26 & 1 != 0 {
            bugs -= Bugs::SPEC_STORE_BYPASS;
        }
        if says(MDS_NO) {
            bugs -= Bugs::MDS;
        }
        if says(PSCHANGE_MC_NO) {
            bugs -= Bugs::ITLB_MULTIHIT;
        }
        let has_transactions = facts.seven_ebx >> 11 & 1 != 0 || says(TSX_CTRL);
        if facts.is_intel() && has_transactions && !says(TAA_NO) {
            bugs |= Bugs::TAA;
        }
        let mut known = Bugs::empty();
        if facts.is_intel() && facts.family == 6 {
            let listed = KNOWN.iter().filter(|(model, _)| *model == facts.model);
            known = listed.fold(known, |known, (_, bugs)| known | *bugs);
        }
        let (random, wide) = (facts.one_ecx >> 30 & 1 != 0, facts.one_ecx >> 28 & 1 != 0);
        if known.contains(Bugs::SRBDS) && (random || facts.seven_ebx >> 18 & 1 != 0) {
            bugs |= Bugs::SRBDS;
        }
        if !says(MMIO_NO) {
            bugs |= known & Bugs::MMIO_STALE_DATA;
            if !known.contains(Bugs::MMIO_STALE_DATA) && !spared.contains(Bugs::MMIO_UNKNOWN) {
                bugs |= Bugs::MMIO_UNKNOWN;
            }
        }
        if known.contains(Bugs::GDS) && !says(GDS_NO) && wide {
            bugs |= Bugs::GDS;
        }
        if known.contains(Bugs::RFDS) && !says(RFDS_NO) {
            bugs |= Bugs::RFDS;
        }
        bugs |= known & Bugs::RETBLEED;
        if facts.is_intel() && says(RSBA) {
            bugs |= Bugs::RETBLEED;
        }
        if facts.is_amd() {
            // A bit of its own says that returns are not predicted as branches.
            if matches!(facts.family, 0x15..=0x18) && facts.amd_ebx >> 29 & 1 == 0 {
                bugs |= Bugs::RETBLEED;
            }
            // One bit denies it, another only what programs could do to the kernel.
            let is_denied = facts.amd_eax & (1 << 29 | 1 << 30) != 0;
            if matches!(facts.family, 0x17..=0x1a) && !is_denied {
                bugs |= Bugs::SRSO;
            }
        }
        bugs
    }

    /// The names in `/proc/cpuinfo`.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let names = NAMES.into_iter().enumerate();
        names.filter_map(move |(bit, name)| (self.bits() >> bit & 1 != 0).then_some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intel(model: u32) -> Facts {
        Facts {
            vendor: *b"GenuineIntel",
            family: 6,
            model,
            one_ecx: 1 << 30 | 1 << 28,
            ..Facts::default()
        }
    }

    #[test]
    fn an_old_processor_has_what_it_does_not_deny() {
        let skylake = Bugs::of(&intel(0x5e));
        let names: Vec<_> = skylake.names().collect();
        assert_eq!(
            names.join(" "),
            "cpu_meltdown spectre_v1 spectre_v2 spec_store_bypass l1tf mds swapgs itlb_multihit \
             srbds mmio_stale_data retbleed gds"
        );
        let haswell = Bugs::of(&intel(0x3c));
        assert!(haswell.contains(Bugs::MELTDOWN | Bugs::L1TF | Bugs::MDS | Bugs::SRBDS));
        assert!(haswell.contains(Bugs::MMIO_UNKNOWN) && !haswell.contains(Bugs::RETBLEED));
        let transactions = Facts {
            seven_ebx: 1 << 11,
            ..intel(0x5e)
        };
        assert!(Bugs::of(&transactions).contains(Bugs::TAA));
    }

    #[test]
    fn what_a_processor_denies_it_does_not_have() {
        use capability::*;
        let new = Facts {
            capabilities: RDCL_NO | MDS_NO | TAA_NO | SSB_NO | PSCHANGE_MC_NO | MMIO_NO | GDS_NO,
            seven_ebx: 1 << 11,
            ..intel(0x6a)
        };
        assert_eq!(
            Bugs::of(&new),
            Bugs::SPECTRE_V1 | Bugs::SPECTRE_V2 | Bugs::SWAPGS
        );
        // Two of the three kinds are not enough.
        let partly = Facts {
            capabilities: 3 << 13,
            ..intel(0x6a)
        };
        assert!(Bugs::of(&partly).contains(Bugs::MMIO_STALE_DATA));
    }

    #[test]
    fn some_leave_global_translations() {
        assert!(intel(0x97).leaves_global() && intel(0xbe).leaves_global());
        assert!(!intel(0x8f).leaves_global() && !intel(0x3c).leaves_global());
    }

    #[test]
    fn makers_and_models_are_spared_what_they_never_had() {
        let amd = Facts {
            vendor: *b"AuthenticAMD",
            family: 0x17,
            ..Facts::default()
        };
        let always = Bugs::SPECTRE_V1 | Bugs::SPECTRE_V2 | Bugs::SPEC_STORE_BYPASS;
        assert_eq!(Bugs::of(&amd), always | Bugs::RETBLEED | Bugs::SRSO);
        let denies = Facts {
            amd_ebx: 1 << 26,
            amd_eax: 1 << 29,
            family: 0x19,
            ..amd
        };
        assert_eq!(Bugs::of(&denies), Bugs::SPECTRE_V1 | Bugs::SPECTRE_V2);
        let of_family = |family, amd_eax| {
            Bugs::of(&Facts {
                family,
                amd_eax,
                ..amd
            })
        };
        let returns = Bugs::RETBLEED | Bugs::SRSO;
        assert_eq!(of_family(0x18, 0) & returns, returns);
        assert_eq!(of_family(0x19, 0) & returns, Bugs::SRSO);
        assert_eq!(of_family(0x1a, 0) & returns, Bugs::SRSO);
        assert_eq!(of_family(0x1a, 1 << 30) & returns, Bugs::empty());
        assert_eq!(Bugs::of(&intel(0x1c)), Bugs::empty());
        assert!(!Bugs::of(&intel(0x5c)).intersects(Bugs::L1TF | Bugs::MDS));
        assert!(Bugs::of(&intel(0x5c)).contains(Bugs::MELTDOWN));
        let unknown = Facts {
            vendor: *b"SimulatedCPU",
            ..Facts::default()
        };
        assert!(Bugs::of(&unknown).contains(always | Bugs::MELTDOWN | Bugs::MDS));
    }
}
