//! The experiments, a file each. A new one is a line here, a line in [`ALL`], and its place in the host's report.

use crate::Experiment;

mod calls;

/// In the order in which they are listed and done.
pub const ALL: &[&Experiment] = &[&calls::EXPERIMENT];
