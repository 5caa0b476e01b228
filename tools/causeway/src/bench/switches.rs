//! Mechanisms that can be switched off, for `--switches`: the paper's comparison on this kernel itself.

/// In how many of the pairs switches are thrown: what they show is large, and each takes boots of its own.
pub const PAIRS: u32 = 3;

/// A switch on the kernel's command line.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    /// As it stands there.
    pub option: &'static str,
    /// The experiments that it matters to; the others are not run with it.
    pub experiments: &'static [&'static str],
}

/// Every switch.
pub const SWITCHES: &[Switch] = &[
    // One page a fault: what the window of neighbours saves (`uvm.txt` 5.4).
    Switch {
        option: "faultahead=0,0",
        experiments: &["fault-ahead", "fault-bandwidth", "map-fault-unmap"],
    },
    // An address allocated, mapped and told to every CPU for each use of a page: the original kernel of
    // `ephemeral-mappings.txt` 6.
    Switch {
        option: "ephemeral=uncached",
        experiments: &[
            "pipe",
            "unix-socket",
            "splice",
            "file",
            "postmark",
            "pipeline",
            "tcp-loopback",
        ],
    },
    // Every CPU told of every change of a mapping: what knowing who may hold it saves.
    Switch {
        option: "shootdown=broadcast",
        experiments: &["mmap-threads", "memory-calls", "map-fault-unmap", "fork"],
    },
    // A child's page tables empty, its parent's mappings write-protected one by one: what sharing them saves (`uvm.txt` 8, Figure 6).
    Switch {
        option: "fork=copy",
        experiments: &["fork", "exec"],
    },
    // Pages of 4 KiB only: what a fault for 2 MiB saves.
    Switch {
        option: "large=off",
        experiments: &["memory-calls", "memory-pressure", "fork"],
    },
    // Page tables made anew each time (`iosup.txt` 5.2).
    Switch {
        option: "ptcache=off",
        experiments: &["fork", "map-fault-unmap", "memory-calls"],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiments;

    #[test]
    fn a_switch_matters_to_experiments_that_there_are() {
        for switch in SWITCHES {
            assert!(switch.option.contains('='), "{switch:?}");
            for name in switch.experiments {
                let place = experiments::place(name);
                assert!(place.is_some(), "{name} of {}", switch.option);
            }
        }
    }
}
