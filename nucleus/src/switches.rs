//! Switches: settings of mechanisms, each declared once.
//!
//! The floor that has a mechanism declares its switch in a table. The word on the kernel's command
//! line and the file in `/proc/causeway` follow from the declaration.

use alloc::{format, string::String};

use crate::{
    Unchanged,
    ephemeral::{
        self, Backend,
        window::{self, Keep},
    },
    hw::{DirectMap, iommu::Policy, machine, mebibytes},
    mem::{domain, frame},
    pmap::{self, Coherence, Fork, SmallSpaces},
    task,
};

/// A setting of a mechanism.
pub struct Switch {
    /// The word on the command line, and the file in `/proc/causeway`.
    pub name: &'static str,
    /// The values that it can have.
    pub values: Values,
    /// The value without a word on the command line.
    pub default: &'static str,
    /// It may change while the machine runs, by its file; else on the command line only.
    pub is_live: bool,
    /// Returns the value.
    pub get: fn() -> Setting,
    /// Changes the value, or says why not.
    pub set: fn(Setting) -> Result<(), Unchanged>,
}

/// A value as numbers: the index of a word, or one or two numbers.
pub type Setting = [u32; 2];

/// The values that a switch can have.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A number in the range, of this unit.
    Number(u32, u32, &'static str),
    /// Two such numbers with a comma between them.
    Numbers(u32, u32, &'static str),
    /// One of these words, or an amount of memory in MiB: behind the words' indices, and the
    /// amount as the second number.
    Memory(&'static [&'static str]),
}
use Values::{Memory, Number, Numbers, OneOf};

impl Switch {
    /// Reads a value; `None` if the switch can't have it.
    pub fn parse(&self, text: &str) -> Option<Setting> {
        let number = |text: &str, low: u32, high: u32| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|_| digits);
            number.filter(|number| (low..=high).contains(number))
        };
        match self.values {
            OneOf(words) => {
                let index = words.iter().position(|word| *word == text)?;
                Some([index as u32, 0])
            }
            Memory(words) => match words.iter().position(|word| *word == text) {
                Some(index) => Some([index as u32, 0]),
                None => Some([words.len() as u32, mebibytes(text)?]),
            },
            Number(low, high, _) => Some([number(text, low, high)?, 0]),
            Numbers(low, high, _) => {
                let (first, second) = text.split_once(',')?;
                Some([number(first, low, high)?, number(second, low, high)?])
            }
        }
    }

    /// Returns its value as text.
    pub fn show(&self) -> String {
        let [first, second] = (self.get)();
        match self.values {
            OneOf(words) => words.get(first as usize).copied().unwrap_or("?").into(),
            Memory(words) => match words.get(first as usize) {
                Some(word) => (*word).into(),
                None => format!("{second}M"),
            },
            Number(..) => format!("{first}"),
            Numbers(..) => format!("{first},{second}"),
        }
    }

    /// Describes its values in a few words, for a message about a wrong one.
    pub fn help(&self) -> String {
        let name = self.name;
        match self.values {
            OneOf([start @ .., last]) => format!("{name} is {} or {last}", start.join(", ")),
            OneOf([]) => String::new(),
            Memory(words) => format!("{name} is {} or a size as in 512M", words.join(", ")),
            Number(low, high, unit) => format!("{name} wants {unit}, {low} to {high}"),
            Numbers(low, high, unit) => {
                let default = self.default;
                format!("{name} wants two numbers of {unit}, {low} to {high}, as in {default}")
            }
        }
    }
}

/// The nucleus's switches.
pub const SWITCHES: &[Switch] = &[
    Switch {
        name: "idlelook",
        // At most a tick: after that, other CPUs ask for help.
        values: Number(0, 10_000, "microseconds"),
        default: "200",
        is_live: true,
        get: || [(task::longest_look() / 1000) as u32, 0],
        set: |[micros, _]| {
            task::set_longest_look(u64::from(micros) * 1000);
            Ok(())
        },
    },
    Switch {
        name: "ephemeral",
        values: OneOf(&["direct", "window", "uncached"]),
        default: "direct",
        is_live: true,
        get: || [ephemeral::backend() as u32, 0],
        set: |[n, _]| {
            const BACKENDS: [Backend; 3] = [Backend::Direct, Backend::Window, Backend::Uncached];
            ephemeral::set_backend(BACKENDS[n as usize])
        },
    },
    Switch {
        name: "ephemeral.entries",
        // 512 MiB; the simulated machine has fewer.
        values: Number(2, 128 << 10, "entries"),
        default: "8192",
        is_live: true,
        get: || [window::entries() as u32, 0],
        set: |[n, _]| window::set_entries(n as usize),
    },
    Switch {
        name: "ephemeral.parts",
        values: OneOf(&["on", "off"]),
        default: "on",
        is_live: true,
        get: || [u32::from(!window::has_parts()), 0],
        set: |[n, _]| window::set_parts(n == 0),
    },
    Switch {
        name: "ephemeral.late",
        values: OneOf(&["on", "off"]),
        default: "on",
        is_live: true,
        get: || [u32::from(!window::is_late()), 0],
        set: |[n, _]| {
            window::set_late(n == 0);
            Ok(())
        },
    },
    Switch {
        name: "ephemeral.private",
        values: OneOf(&["on", "off"]),
        default: "on",
        is_live: true,
        get: || [u32::from(!window::is_private()), 0],
        set: |[n, _]| {
            window::set_private(n == 0);
            Ok(())
        },
    },
    Switch {
        name: "ephemeral.keep",
        values: OneOf(&["auto", "on", "off"]),
        default: "auto",
        is_live: true,
        get: || [window::keep() as u32, 0],
        set: |[n, _]| window::set_keep([Keep::Auto, Keep::On, Keep::Off][n as usize]),
    },
    Switch {
        name: "ephemeral.ahead",
        values: Number(1, window::MAX_AHEAD as u32, "mappings"),
        default: "64",
        is_live: true,
        get: || [window::ahead() as u32, 0],
        set: |[n, _]| {
            window::set_ahead(n as usize);
            Ok(())
        },
    },
    Switch {
        name: "ephemeral.flushes",
        values: OneOf(&["on", "off"]),
        default: "on",
        is_live: true,
        get: || [u32::from(!window::uses_flushes()), 0],
        set: |[n, _]| {
            window::use_flushes(n == 0);
            Ok(())
        },
    },
    Switch {
        name: "ephemeral.scarce",
        values: OneOf(&["off", "on"]),
        default: "off",
        is_live: true,
        get: || [u32::from(ephemeral::is_scarce()), 0],
        set: |[n, _]| {
            ephemeral::seem_scarce(n == 1);
            Ok(())
        },
    },
    Switch {
        name: "directmap",
        values: Memory(&["all", "kernel"]),
        default: "all",
        is_live: false,
        get: || match frame::direct_map() {
            DirectMap::All => [0, 0],
            DirectMap::Kernel => [1, 0],
            DirectMap::First(mib) => [2, mib],
        },
        // The start has read it.
        set: |_| Ok(()),
    },
    Switch {
        name: "shootdown",
        values: OneOf(&["precise", "broadcast"]),
        default: "precise",
        is_live: false,
        get: || [pmap::coherence() as u32, 0],
        set: |[n, _]| {
            pmap::set_coherence([Coherence::Precise, Coherence::Broadcast][n as usize]);
            Ok(())
        },
    },
    Switch {
        name: "tags",
        // Off also where the CPU has none, and where programs have roots of their own.
        values: OneOf(&["on", "off"]),
        default: "on",
        is_live: false,
        get: || [u32::from(machine::tags() == 0), 0],
        // The start has read it.
        set: |_| Ok(()),
    },
    Switch {
        name: "spaces",
        values: OneOf(&["large", "small", "small,shared"]),
        default: "large",
        is_live: true,
        get: || match pmap::small_spaces() {
            SmallSpaces::None => [0, 0],
            SmallSpaces::OfUsers => [1, 0],
            SmallSpaces::Shared => [2, 0],
        },
        set: |[n, _]| {
            const SPACES: [SmallSpaces; 3] =
                [SmallSpaces::None, SmallSpaces::OfUsers, SmallSpaces::Shared];
            pmap::set_small_spaces(SPACES[n as usize]);
            Ok(())
        },
    },
    Switch {
        name: "region",
        values: OneOf(&["4M", "8M", "16M", "32M", "64M", "128M", "256M", "512M"]),
        default: "256M",
        is_live: true,
        get: || [(pmap::region() / pmap::REGIONS.start()).ilog2(), 0],
        set: |[n, _]| {
            pmap::set_region(pmap::REGIONS.start() << n);
            Ok(())
        },
    },
    Switch {
        name: "fork",
        values: OneOf(&["share", "copy"]),
        default: "share",
        is_live: true,
        get: || [pmap::fork_mode() as u32, 0],
        set: |[n, _]| {
            pmap::set_fork([Fork::Share, Fork::Copy][n as usize]);
            Ok(())
        },
    },
    Switch {
        name: "ptcache",
        // `dynamic`: off until it is enabled by `/proc/causeway/ptcache` (`iosup.txt` 7.2).
        values: OneOf(&["on", "off", "dynamic"]),
        default: "on",
        is_live: false,
        get: || [u32::from(!frame::keeps_tables()), 0],
        set: |[n, _]| {
            frame::keep_tables(n == 0);
            Ok(())
        },
    },
    Switch {
        name: "iommu.queue",
        values: OneOf(&["on", "off"]),
        default: "on",
        is_live: false,
        get: || [u32::from(machine::iommu_has_no_queue()), 0],
        // The start has read it.
        set: |_| Ok(()),
    },
    Switch {
        name: "iommu",
        values: OneOf(&["strict", "open", "off"]),
        default: "strict",
        is_live: false,
        get: || match domain::policy() {
            Policy::Strict => [0, 0],
            Policy::Open => [1, 0],
            Policy::Off => [2, 0],
        },
        // The start has read it.
        set: |_| Ok(()),
    },
    Switch {
        name: "guard",
        values: OneOf(&["on", "off"]),
        default: "on",
        is_live: false,
        get: || [u32::from(!machine::is_guarded()), 0],
        // The start has read it.
        set: |_| Ok(()),
    },
    Switch {
        name: "mitigations",
        values: OneOf(&["auto", "off", "full"]),
        default: "auto",
        is_live: false,
        get: || [machine::choice("mitigations"), 0],
        // The start has read it.
        set: |_| Ok(()),
    },
    Switch {
        name: "pti",
        values: OneOf(&["auto", "off", "on"]),
        default: "auto",
        is_live: false,
        get: || [machine::choice("pti"), 0],
        // The start has read it.
        set: |_| Ok(()),
    },
    Switch {
        name: "mds",
        values: OneOf(&["auto", "off", "full"]),
        default: "auto",
        is_live: false,
        get: || [machine::choice("mds"), 0],
        // The start has read it.
        set: |_| Ok(()),
    },
    Switch {
        name: "spectre_v1",
        values: OneOf(&["auto", "off", "on"]),
        default: "auto",
        is_live: false,
        get: || [machine::choice("spectre_v1"), 0],
        // The start has read it.
        set: |_| Ok(()),
    },
    Switch {
        name: "spectre_v2",
        values: OneOf(&["auto", "off", "on"]),
        default: "auto",
        is_live: false,
        get: || [machine::choice("spectre_v2"), 0],
        // The start has read it.
        set: |_| Ok(()),
    },
    Switch {
        name: "fragment",
        values: OneOf(&["0", "1"]),
        default: "0",
        is_live: true,
        get: || [u32::from(frame::refuses_blocks()), 0],
        set: |[n, _]| {
            frame::refuse_blocks(n == 1);
            Ok(())
        },
    },
    Switch {
        name: "failalloc",
        values: Number(0, 1_000_000, "allocations"),
        default: "0",
        is_live: true,
        get: || [frame::fails_each(), 0],
        set: |[n, _]| {
            frame::fail_each(n);
            Ok(())
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_others_refused() {
        let find = |name: &str| SWITCHES.iter().find(|it| it.name == name).unwrap();
        assert_eq!(find("fork").parse("copy"), Some([1, 0]));
        assert_eq!(find("fork").parse("lazy"), None);
        assert_eq!(find("fork").help(), "fork is share or copy");
        assert_eq!(find("idlelook").parse("10000"), Some([10_000, 0]));
        for wrong in ["10001", "", "+1", "1,2"] {
            assert_eq!(find("idlelook").parse(wrong), None, "{wrong}");
        }
        for switch in SWITCHES {
            assert!(switch.parse(switch.default).is_some());
        }
    }
}
