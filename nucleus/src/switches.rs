//! Switches: settings of mechanisms, each declared once.
//!
//! The floor that has a mechanism declares its switch in a table: name, values, default, the value
//! that turns the mechanism off, getter and setter. The word on the kernel's command line, the file
//! in `/proc/causeway` and the variant of `causeway bench --switches` follow from the declaration;
//! the tools read the text of the tables, so names and values are literals.

use alloc::{format, string::String};

use crate::{
    ephemeral::{self, Backend},
    mem::frame,
    pmap::{self, Coherence, Fork},
    task,
};

/// A setting of a mechanism.
pub struct Switch {
    /// The word on the command line, and the file in `/proc/causeway`.
    pub name: &'static str,
    pub values: Values,
    pub default: &'static str,
    /// The value that turns the mechanism off, to measure what it saves.
    pub off: &'static str,
    /// It may change while the machine runs, by its file.
    live: bool,
    get: fn() -> Setting,
    set: fn(Setting) -> bool,
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
}
use Values::{Number, Numbers, OneOf};

impl Switch {
    /// Declares a switch that is set on the command line only. `set` returns false if it fails.
    pub const fn new(
        name: &'static str,
        values: Values,
        default: &'static str,
        off: &'static str,
        get: fn() -> Setting,
        set: fn(Setting) -> bool,
    ) -> Switch {
        Switch {
            name,
            values,
            default,
            off,
            live: false,
            get,
            set,
        }
    }

    /// Lets the switch change while the machine runs.
    pub const fn live(mut self) -> Switch {
        self.live = true;
        self
    }

    /// Tells whether it may change while the machine runs.
    pub fn is_live(&self) -> bool {
        self.live
    }

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
            Number(low, high, _) => Some([number(text, low, high)?, 0]),
            Numbers(low, high, _) => {
                let (first, second) = text.split_once(',')?;
                Some([number(first, low, high)?, number(second, low, high)?])
            }
        }
    }

    /// Sets it.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::OutOfMemory) if the mechanism needs memory that is not there.
    pub fn set(&self, setting: Setting) -> Result<(), crate::OutOfMemory> {
        match (self.set)(setting) {
            true => Ok(()),
            false => Err(crate::OutOfMemory),
        }
    }

    /// Returns its value as text.
    pub fn show(&self) -> String {
        let [first, second] = (self.get)();
        match self.values {
            OneOf(words) => words.get(first as usize).copied().unwrap_or("?").into(),
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
    Switch::new(
        "idlelook",
        // At most a tick: after that, other CPUs ask for help.
        Number(0, 10_000, "microseconds"),
        "200",
        "0",
        || [(task::longest_look() / 1000) as u32, 0],
        |[micros, _]| {
            task::set_longest_look(u64::from(micros) * 1000);
            true
        },
    )
    .live(),
    Switch::new(
        "ephemeral",
        OneOf(&["direct", "uncached"]),
        "direct",
        "uncached",
        || [ephemeral::backend() as u32, 0],
        |[n, _]| {
            ephemeral::set_backend(match n {
                0 => Backend::Direct,
                _ => Backend::Uncached,
            })
            .is_ok()
        },
    ),
    Switch::new(
        "shootdown",
        OneOf(&["precise", "broadcast"]),
        "precise",
        "broadcast",
        || [pmap::coherence() as u32, 0],
        |[n, _]| {
            pmap::set_coherence(match n {
                0 => Coherence::Precise,
                _ => Coherence::Broadcast,
            });
            true
        },
    ),
    Switch::new(
        "fork",
        OneOf(&["share", "copy"]),
        "share",
        "copy",
        || [pmap::fork_mode() as u32, 0],
        |[n, _]| {
            pmap::set_fork(match n {
                0 => Fork::Share,
                _ => Fork::Copy,
            });
            true
        },
    )
    .live(),
    Switch::new(
        "ptcache",
        OneOf(&["on", "off"]),
        "on",
        "off",
        || [u32::from(!frame::keeps_tables()), 0],
        |[n, _]| {
            frame::keep_tables(n == 0);
            true
        },
    ),
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
            let (default, off) = (switch.parse(switch.default), switch.parse(switch.off));
            assert!(default.is_some() && off.is_some() && default != off);
        }
    }
}
