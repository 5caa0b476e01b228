//! What is done about the [`bugs`](super::bugs) of the CPUs, chosen once, at the start, by what the
//! CPU says of itself and by the command line. The machine carries it out.
//!
//! | switch | what it turns on |
//! |---|---|
//! | `pti` | programs run under roots without the kernel's half |
//! | `mds` | the CPU's buffers are overwritten before a program runs |
//! | `spectre_v1` | fences after `swapgs`, and where it is skipped |
//! | `spectre_v2` | IBRS; predictions are dropped when a CPU goes to another user's program |
//! | | the return stack is filled at each switch of tasks |
//!
//! `mitigations` is the default of all. Inverted addresses in entries that are not present, and
//! [masked indices](crate::speculation), are always on.

use alloc::{string::String, vec::Vec};

use bitflags::bitflags;

use super::bugs::{Bugs, Facts, capability};
use super::options;

/// The switches, with their words: by the CPU, never, always.
pub(crate) const SWITCHES: [(&str, [&str; 3]); 5] = [
    ("mitigations", ["auto", "off", "full"]),
    ("pti", ["auto", "off", "on"]),
    ("mds", ["auto", "off", "full"]),
    ("spectre_v1", ["auto", "off", "on"]),
    ("spectre_v2", ["auto", "off", "on"]),
];
const BY_CPU: u8 = 0;
const OFF: u8 = 1;
const ALWAYS: u8 = 2;

/// The value of each of [`SWITCHES`], as an index of its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Settings([u8; SWITCHES.len()]);

impl Settings {
    /// All by their defaults.
    pub(crate) const NONE: Settings = Settings([BY_CPU; SWITCHES.len()]);

    /// What the options of the command line say; the last one of each counts. A value that a switch
    /// can't have is refused where the other switches are read.
    pub fn read(command_line: &str) -> Settings {
        let mut settings = Settings::default();
        for (slot, (switch, words)) in settings.0.iter_mut().zip(SWITCHES) {
            let place = |value| words.iter().position(|word| *word == value);
            let value = options::last_value(command_line, switch, place);
            *slot = value.map_or(BY_CPU, |value| value as u8);
        }
        settings
    }

    /// The index of the word of the switch `name`.
    pub fn value(&self, name: &str) -> u8 {
        let place = SWITCHES.iter().position(|switch| switch.0 == name);
        place.map_or(BY_CPU, |place| self.0[place])
    }

    /// Whether the mechanism of the switch `name` is wanted.
    fn wants(&self, name: &str, by_cpu: bool) -> bool {
        match (self.value(name), self.value("mitigations")) {
            (BY_CPU, BY_CPU) => by_cpu,
            (BY_CPU, all) => all == ALWAYS,
            (own, _) => own != OFF,
        }
    }
}

/// The bits of a page-table entry that are a physical address.
pub(crate) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// A page-table entry with its address inverted, as one that is not present must keep it: a
/// processor that looks at the address all the same (L1TF) finds one that no memory has. Its own
/// inverse.
#[inline]
pub(crate) const fn inverted(entry: u64) -> u64 {
    entry ^ ADDRESS
}

bitflags! {
    /// Mechanisms that the CPU is able to do and that are wanted.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Measures: u32 {
        /// Programs run under roots without the kernel's half.
        const ISOLATE = 1 << 0;
        /// The CPU's buffers are overwritten before a program runs.
        const CLEAR = 1 << 1;
        /// Fences after `swapgs`, and where it is skipped.
        const FENCE = 1 << 2;
        /// IBRS is set on each way into the kernel and cleared on each way out.
        const IBRS = 1 << 3;
        /// IBRS is set once, by `SPEC_CTRL`.
        const ENHANCED_IBRS = 1 << 4;
        /// The same, by AMD's bit of EFER.
        const AUTOMATIC_IBRS = 1 << 5;
        /// The kernel's branches do not use programs' branch history.
        const OWN_HISTORY = 1 << 6;
        /// Predictions are dropped between programs that do not trust each other.
        const BARRIER = 1 << 7;
        /// The return stack is filled at each switch of tasks.
        const FILL_RETURNS = 1 << 8;
        /// Programs may have their loads wait for earlier stores.
        const STORES_BY_PROGRAM = 1 << 9;
        /// Programs may share no predictions, with the other thread of the core either if the CPU
        /// can do that.
        const BRANCHES_BY_PROGRAM = 1 << 10;
    }
}

/// Bits of `SPEC_CTRL`.
pub(crate) mod control {
    /// Indirect branches follow nothing that less privileged code has taught.
    pub(crate) const IBRS: u64 = 1 << 0;
    /// Nor what the other thread of the core has.
    pub(crate) const STIBP: u64 = 1 << 1;
    /// Loads wait for earlier stores.
    pub(crate) const SSBD: u64 = 1 << 2;
    /// Nor follow they the history of less privileged code's branches.
    pub(crate) const BHI_DIS_S: u64 = 1 << 10;
}

impl Facts {
    /// The bits of `SPEC_CTRL` that exist; without any there is no such register.
    pub fn controls(&self) -> u64 {
        let bit = |word: u32, bit: u32, control: u64| match word >> bit & 1 {
            0 => 0,
            _ => control,
        };
        bit(self.seven_edx, 26, control::IBRS)
            | bit(self.seven_edx, 27, control::STIBP)
            | bit(self.seven_edx, 31, control::SSBD)
            | bit(self.seven_two_edx, 4, control::BHI_DIS_S)
            | bit(self.amd_ebx, 14, control::IBRS)
            | bit(self.amd_ebx, 15, control::STIBP)
            | bit(self.amd_ebx, 24, control::SSBD)
    }

    /// Whether `PRED_CMD` exists, with its barrier.
    pub fn has_barrier(&self) -> bool {
        self.seven_edx >> 26 & 1 != 0 || self.amd_ebx >> 12 & 1 != 0
    }

    /// Whether EFER has the bit of automatic IBRS.
    pub fn has_automatic_ibrs(&self) -> bool {
        self.amd_eax >> 8 & 1 != 0
    }

    /// Whether `verw` overwrites the CPU's buffers.
    pub fn clears_buffers(&self) -> bool {
        self.seven_edx >> 10 & 1 != 0
    }
}

impl Measures {
    /// Those that settings and CPU ask for.
    pub fn choose(settings: &Settings, facts: &Facts) -> Measures {
        let bugs = Bugs::of(facts);
        let mut chosen = Measures::empty();
        let sampled = Bugs::MDS | Bugs::TAA | Bugs::MMIO_STALE_DATA | Bugs::RFDS;
        chosen.set(
            Measures::ISOLATE,
            settings.wants("pti", bugs.contains(Bugs::MELTDOWN)),
        );
        chosen.set(
            Measures::CLEAR,
            settings.wants("mds", bugs.intersects(sampled)),
        );
        chosen.set(
            Measures::FENCE,
            settings.wants("spectre_v1", bugs.contains(Bugs::SWAPGS)),
        );
        if settings.wants("spectre_v2", bugs.contains(Bugs::SPECTRE_V2)) {
            let controls = facts.controls();
            let ibrs = match () {
                () if facts.has_automatic_ibrs() => Measures::AUTOMATIC_IBRS,
                () if controls & control::IBRS == 0 => Measures::empty(),
                () if facts.capabilities & capability::IBRS_ALL != 0 => Measures::ENHANCED_IBRS,
                () => Measures::IBRS,
            };
            chosen |= ibrs | Measures::FILL_RETURNS;
            chosen.set(
                Measures::OWN_HISTORY,
                controls & control::BHI_DIS_S != 0 && ibrs == Measures::ENHANCED_IBRS,
            );
            chosen.set(Measures::BARRIER, facts.has_barrier());
            chosen.set(
                Measures::BRANCHES_BY_PROGRAM,
                facts.has_barrier() || controls & control::STIBP != 0,
            );
        }
        chosen.set(
            Measures::STORES_BY_PROGRAM,
            settings.wants("mitigations", bugs.contains(Bugs::SPEC_STORE_BYPASS))
                && facts.controls() & control::SSBD != 0,
        );
        chosen
    }

    /// The bits of `SPEC_CTRL` that are set while the kernel runs.
    pub fn controls(self) -> u64 {
        let bit = |measure, control| match self.intersects(measure) {
            true => control,
            false => 0,
        };
        bit(Measures::IBRS | Measures::ENHANCED_IBRS, control::IBRS)
            | bit(Measures::OWN_HISTORY, control::BHI_DIS_S)
    }
}

/// Speculation that a program may restrict for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speculation {
    /// Loads pass earlier stores to addresses that are not known yet.
    Stores,
    /// Indirect branches go where others have taught them to go.
    Branches,
}

/// What a program may do about a kind of speculation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The CPU does not have the fault.
    NotAffected,
    /// Nothing: it is always allowed.
    Always,
    /// It is allowed unless the program says otherwise.
    ByProgram,
}

/// What programs may do about a kind of speculation.
pub(crate) fn choice(facts: &Facts, measures: Measures, kind: Speculation) -> Choice {
    let (bug, measure) = match kind {
        Speculation::Stores => (Bugs::SPEC_STORE_BYPASS, Measures::STORES_BY_PROGRAM),
        Speculation::Branches => (Bugs::SPECTRE_V2, Measures::BRANCHES_BY_PROGRAM),
    };
    match (Bugs::of(facts).contains(bug), measures.contains(measure)) {
        (false, _) => Choice::NotAffected,
        (true, false) => Choice::Always,
        (true, true) => Choice::ByProgram,
    }
}

/// The bits of `SPEC_CTRL` for a program that wants these kinds restricted, of those that it may.
pub(crate) fn restrictions(facts: &Facts, measures: Measures, stores: bool, branches: bool) -> u64 {
    let mut bits = 0;
    if stores && measures.contains(Measures::STORES_BY_PROGRAM) {
        bits |= control::SSBD;
    }
    if branches && measures.contains(Measures::BRANCHES_BY_PROGRAM) {
        bits |= control::STIBP;
    }
    bits & facts.controls()
}

/// What is done about each fault, in Linux's words for the files of
/// `/sys/devices/system/cpu/vulnerabilities`.
pub(crate) fn vulnerabilities(facts: &Facts, measures: Measures) -> Vec<(&'static str, String)> {
    let bugs = Bugs::of(facts);
    let has = |measure| measures.contains(measure);
    // Leaf 1 `ecx`: under a hypervisor.
    let is_guest = facts.one_ecx >> 31 != 0;
    let threads = match is_guest {
        true => "; SMT Host state unknown",
        false => "",
    };
    let clears = match (has(Measures::CLEAR), facts.clears_buffers()) {
        (false, _) => "Vulnerable",
        (true, true) => "Mitigation: Clear CPU buffers",
        (true, false) => "Vulnerable: Clear CPU buffers attempted, no microcode",
    };
    let cleared = [clears, threads].concat();
    let register_files = match (
        has(Measures::CLEAR),
        facts.capabilities & capability::RFDS_CLEAR,
    ) {
        (false, _) => "Vulnerable",
        (true, 0) => "Vulnerable: No microcode",
        (true, _) => "Mitigation: Clear Register File",
    };
    let by_host = match is_guest {
        true => "Unknown: Dependent on hypervisor status",
        false => "Vulnerable",
    };
    let isolated = match has(Measures::ISOLATE) {
        true => "Mitigation: PTI",
        false => "Vulnerable",
    };
    let swaps = match has(Measures::FENCE) || !bugs.contains(Bugs::SWAPGS) {
        true => "Mitigation: usercopy/swapgs barriers and __user pointer sanitization",
        false => {
            "Vulnerable: __user pointer sanitization and usercopy barriers only; no swapgs barriers"
        }
    };
    let ibrs = match () {
        () if has(Measures::AUTOMATIC_IBRS) => "Mitigation: Automatic IBRS",
        () if has(Measures::ENHANCED_IBRS) => "Mitigation: Enhanced IBRS",
        () if has(Measures::IBRS) => "Mitigation: IBRS",
        () => "Vulnerable",
    };
    let barrier = match has(Measures::BARRIER) {
        true => "; IBPB: conditional",
        false => "; IBPB: disabled",
    };
    let returns = match has(Measures::FILL_RETURNS) {
        true => "; RSB filling",
        false => "",
    };
    let history = match (has(Measures::OWN_HISTORY), has(Measures::ENHANCED_IBRS)) {
        (true, _) => "; BHI: BHI_DIS_S",
        (false, true) if facts.capabilities & capability::BHI_NO == 0 => "; BHI: Vulnerable",
        _ => "",
    };
    let predicted = [ibrs, barrier, returns, history].concat();
    // Of AMD's, IBRS does nothing about the returns.
    let retbleed = match ibrs {
        "Mitigation: IBRS" | "Mitigation: Enhanced IBRS" if facts.is_intel() => ibrs,
        _ => "Vulnerable",
    };
    let mapped_registers = match bugs.contains(Bugs::MMIO_UNKNOWN) {
        true => "Unknown: No mitigations",
        false => &cleared,
    };
    let stores = match has(Measures::STORES_BY_PROGRAM) {
        true => "Mitigation: Speculative Store Bypass disabled via prctl",
        false => "Vulnerable",
    };
    let state = |name, bug, state: &str| {
        let words = match bugs.intersects(bug) {
            true => state,
            false => "Not affected",
        };
        (name, String::from(words))
    };
    let no_guests = "KVM: Mitigation: VMX unsupported";
    let mmio = Bugs::MMIO_STALE_DATA | Bugs::MMIO_UNKNOWN;
    Vec::from([
        state("gather_data_sampling", Bugs::GDS, by_host),
        state("itlb_multihit", Bugs::ITLB_MULTIHIT, no_guests),
        state("l1tf", Bugs::L1TF, "Mitigation: PTE Inversion"),
        state("mds", Bugs::MDS, &cleared),
        state("meltdown", Bugs::MELTDOWN, isolated),
        state("mmio_stale_data", mmio, mapped_registers),
        state("reg_file_data_sampling", Bugs::RFDS, register_files),
        state("retbleed", Bugs::RETBLEED, retbleed),
        state("spec_rstack_overflow", Bugs::SRSO, "Vulnerable"),
        state("spec_store_bypass", Bugs::SPEC_STORE_BYPASS, stores),
        state("spectre_v1", Bugs::SPECTRE_V1, swaps),
        state("spectre_v2", Bugs::SPECTRE_V2, &predicted),
        state("srbds", Bugs::SRBDS, by_host),
        state("tsx_async_abort", Bugs::TAA, &cleared),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hw::sim::random::Random;

    const IBRS_AND_IBPB: u32 = 1 << 26;
    const STIBP: u32 = 1 << 27;
    const CAPABILITIES: u32 = 1 << 29;
    const SSBD: u32 = 1 << 31;
    const MD_CLEAR: u32 = 1 << 10;

    fn intel(model: u32, seven_edx: u32, capabilities: u64) -> Facts {
        Facts {
            vendor: *b"GenuineIntel",
            family: 6,
            model,
            one_ecx: 1 << 30 | 1 << 28,
            seven_edx,
            capabilities,
            ..Facts::default()
        }
    }

    fn amd(family: u32, amd_ebx: u32, amd_eax: u32) -> Facts {
        Facts {
            vendor: *b"AuthenticAMD",
            family,
            amd_ebx,
            amd_eax,
            ..Facts::default()
        }
    }

    fn chosen(line: &str, facts: &Facts) -> Measures {
        Measures::choose(&Settings::read(line), facts)
    }

    fn state(facts: &Facts, measures: Measures, name: &str) -> String {
        let mut states = vulnerabilities(facts, measures).into_iter();
        states.find(|state| state.0 == name).expect("a name").1
    }

    #[test]
    fn processors_get_what_they_need_and_can_do() {
        use capability::*;
        let updated = IBRS_AND_IBPB | STIBP | SSBD | MD_CLEAR | CAPABILITIES;
        let swaps = Measures::FENCE;
        let old = Measures::ISOLATE | Measures::CLEAR | swaps | Measures::FILL_RETURNS;
        let asked = Measures::STORES_BY_PROGRAM;
        let predicted = Measures::BARRIER | Measures::FILL_RETURNS | Measures::BRANCHES_BY_PROGRAM;
        let cascade_lake = RDCL_NO | IBRS_ALL | MDS_NO | TAA_NO;
        let no_more = cascade_lake | MMIO_NO | GDS_NO | SSB_NO | PSCHANGE_MC_NO | RFDS_NO;
        for (name, facts, expected) in [
            ("Haswell as it left the works", intel(0x3c, 0, 0), old),
            (
                "Skylake with new microcode",
                intel(0x5e, updated, 0),
                old | Measures::IBRS | predicted | asked,
            ),
            (
                "Cascade Lake",
                intel(0x55, updated, cascade_lake),
                Measures::CLEAR | swaps | Measures::ENHANCED_IBRS | predicted | asked,
            ),
            (
                "Sapphire Rapids",
                Facts {
                    seven_two_edx: 1 << 4,
                    ..intel(0x8f, updated, no_more)
                },
                swaps | Measures::ENHANCED_IBRS | Measures::OWN_HISTORY | predicted,
            ),
            (
                "Alder Lake",
                intel(0x97, updated, RDCL_NO | IBRS_ALL | MDS_NO | TAA_NO),
                Measures::CLEAR | swaps | Measures::ENHANCED_IBRS | predicted | asked,
            ),
            ("a first Atom", intel(0x1c, 0, 0), Measures::empty()),
            ("K8, as emulated", amd(0x0f, 0, 0), Measures::FILL_RETURNS),
            ("Zen 2 without IBRS", amd(0x17, 1 << 12, 0), predicted),
            (
                "Zen 3",
                amd(0x19, 1 << 12 | 1 << 14, 0),
                Measures::IBRS | predicted,
            ),
            (
                "Zen 4",
                amd(0x19, 1 << 12 | 1 << 14, 1 << 8),
                Measures::AUTOMATIC_IBRS | predicted,
            ),
        ] {
            assert_eq!(chosen("", &facts), expected, "{name}");
            assert_eq!(
                chosen("mitigations=off", &facts),
                Measures::empty(),
                "{name}"
            );
            let full = chosen("mitigations=full", &facts);
            assert!(full.contains(expected | old), "{name}: {full:?}");
        }
    }

    #[test]
    fn a_switch_says_it_for_one_mechanism() {
        let zen = amd(0x17, 1 << 12, 0);
        let predicted = Measures::BARRIER | Measures::FILL_RETURNS | Measures::BRANCHES_BY_PROGRAM;
        for (line, expected) in [
            ("pti=on", predicted | Measures::ISOLATE),
            (
                "mitigations=off pti=on mds=full",
                Measures::ISOLATE | Measures::CLEAR,
            ),
            ("mitigations=off spectre_v1=on", Measures::FENCE),
            (
                "mitigations=full spectre_v2=off pti=off",
                Measures::CLEAR | Measures::FENCE,
            ),
            ("spectre_v2=off spectre_v2=on", predicted),
            ("pti=of xpti=on spectre_v2 quiet", predicted),
            ("-- pti=on", predicted),
        ] {
            assert_eq!(chosen(line, &zen), expected, "{line}");
        }
        assert_eq!(Settings::read("mds=full").value("mds"), 2);
    }

    /// Of any CPU, whatever it says: registers and bits are written only where it has them, what it
    /// needs and can do is done, and no file claims what is not done.
    #[test]
    fn only_what_a_processor_has_is_used() {
        let values =
            |words: [&'static str; 3]| [None, Some(words[0]), Some(words[1]), Some(words[2])];
        for seed in 0..20_000 {
            let numbers = Random::new(seed);
            let word = || match numbers.below(3) {
                0 => 0,
                1 => numbers.next(),
                _ => numbers.next() & numbers.next(),
            };
            let words = [word(), word(), word(), word(), word(), word(), word()];
            let facts = Facts {
                vendor: match words[6] % 4 {
                    0 => *b"GenuineIntel",
                    1 => *b"AuthenticAMD",
                    2 => *b"HygonGenuine",
                    _ => *b"SimulatedCPU",
                },
                family: [6, 0x0f, 0x17, 0x19][(words[6] >> 8) as usize % 4],
                model: (words[6] >> 16 & 0xff) as u32,
                one_ecx: words[0] as u32,
                seven_ebx: (words[0] >> 32) as u32,
                seven_edx: words[1] as u32,
                seven_two_edx: (words[1] >> 32) as u32,
                amd_ebx: words[2] as u32,
                amd_eax: words[3] as u32,
                capabilities: match words[1] >> 29 & 1 {
                    0 => 0,
                    _ => words[4],
                },
            };
            let mut line = String::new();
            for (name, words) in SWITCHES {
                if let Some(value) = values(words)[numbers.below(4) as usize] {
                    line += &format!(" {name}={value}");
                }
            }
            let why = format!("seed {seed},{line}");
            let measures = chosen(&line, &facts);
            let bugs = Bugs::of(&facts);
            assert_eq!(measures.controls() & !facts.controls(), 0, "{why}");
            let has = |measure| measures.contains(measure);
            let asked = restrictions(&facts, measures, true, true);
            assert_eq!(asked & !facts.controls(), 0, "{why}");
            let can_ask = choice(&facts, measures, Speculation::Stores) == Choice::ByProgram;
            assert!(!can_ask || asked & control::SSBD != 0, "{why}");
            assert!(!has(Measures::BARRIER) || facts.has_barrier(), "{why}");
            assert!(
                !has(Measures::AUTOMATIC_IBRS) || facts.has_automatic_ibrs(),
                "{why}"
            );
            let kinds = Measures::IBRS | Measures::ENHANCED_IBRS | Measures::AUTOMATIC_IBRS;
            assert!((measures & kinds).bits().count_ones() <= 1, "{why}");

            let by_cpu = chosen("", &facts);
            assert!(chosen("mitigations=full", &facts).contains(by_cpu), "{why}");
            assert_eq!(
                by_cpu.contains(Measures::ISOLATE),
                bugs.contains(Bugs::MELTDOWN)
            );
            assert_eq!(
                by_cpu.contains(Measures::FENCE),
                bugs.contains(Bugs::SWAPGS)
            );
            for (name, states) in [("off", Measures::empty()), (&*line, measures)] {
                // Masked indices, too, where `swapgs` needs nothing.
                let always = ["l1tf", "spectre_v1"];
                for (file, state) in vulnerabilities(&facts, states) {
                    let claims = state.starts_with("Mitigation: ");
                    assert!(
                        !claims || always.contains(&file) || states != Measures::empty(),
                        "{why}, {name}: {file}: {state}"
                    );
                }
            }
            let meltdown = state(&facts, measures, "meltdown");
            match (bugs.contains(Bugs::MELTDOWN), has(Measures::ISOLATE)) {
                (false, _) => assert_eq!(meltdown, "Not affected", "{why}"),
                (true, true) => assert_eq!(meltdown, "Mitigation: PTI", "{why}"),
                (true, false) => assert_eq!(meltdown, "Vulnerable", "{why}"),
            }
        }
    }

    #[test]
    fn inverted_addresses_name_no_memory() {
        for frame in [0u64, 1, 0x1234, 0xffff_ffff] {
            let entry = frame << 12 | 0x8000_0000_0000_0461;
            assert_eq!(inverted(inverted(entry)), entry);
            assert_eq!((inverted(entry) ^ entry) & !ADDRESS, 0);
            // Beyond half of what the narrowest processors address: 36 bits.
            let bits = if frame < 1 << 23 { 36 } else { 46 };
            assert_ne!(inverted(entry) & 1 << (bits - 1), 0);
        }
    }

    #[test]
    fn files_say_what_holds() {
        let skylake = intel(0x5e, IBRS_AND_IBPB | MD_CLEAR, 0);
        let auto = chosen("", &skylake);
        assert_eq!(
            state(&skylake, auto, "mds"),
            "Mitigation: Clear CPU buffers"
        );
        assert_eq!(state(&skylake, auto, "retbleed"), "Mitigation: IBRS");
        assert_eq!(
            state(&skylake, auto, "spectre_v2"),
            "Mitigation: IBRS; IBPB: conditional; RSB filling"
        );
        let old = intel(0x5e, 0, 0);
        assert_eq!(
            state(&old, chosen("", &old), "mds"),
            "Vulnerable: Clear CPU buffers attempted, no microcode"
        );
        // IBRS does not do for AMD's returns.
        let zen = amd(0x17, 1 << 12 | 1 << 14, 0);
        assert_eq!(state(&zen, chosen("", &zen), "retbleed"), "Vulnerable");
        let guest = Facts {
            one_ecx: 1 << 31,
            ..skylake
        };
        assert_eq!(
            state(&guest, Measures::empty(), "mds"),
            "Vulnerable; SMT Host state unknown"
        );
    }
}
