//! Mechanisms that can be switched off, for `--switches`: the paper's comparison on this kernel itself.

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
        experiments: &["fault-ahead", "fault-bandwidth"],
    },
];
