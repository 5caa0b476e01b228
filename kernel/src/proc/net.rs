//! `/proc/net`.

use fs::synthetic::{Entry, Table};

use crate::socket::unix;

/// The directory.
pub(super) fn directory() -> Table {
    Table::new().with(
        "unix",
        Entry::text(|out| {
            out.push(&unix::listing::text());
            Ok(())
        }),
    )
}
