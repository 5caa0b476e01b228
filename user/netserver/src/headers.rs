//! The bytes of a header as an aggregate, which is used again as long as they are the same: most
//! messages go where the last one went. Messages through the kernel have headers of their own, by
//! whose pages their sender is told that they are free.

use std::io;

use libfbuf::{Aggregate, Path};

/// The last header.
#[derive(Debug)]
pub(crate) struct LastHeader<const LEN: usize>(Option<([u8; LEN], Aggregate)>);

impl<const LEN: usize> Default for LastHeader<LEN> {
    fn default() -> Self {
        LastHeader(None)
    }
}

impl<const LEN: usize> LastHeader<LEN> {
    /// Returns an aggregate of a path, always the same one, with these bytes; a new one unless
    /// headers are used again.
    ///
    /// # Errors
    /// Those of [`Path::copy`].
    pub(crate) fn of(
        &mut self,
        path: &Path,
        bytes: [u8; LEN],
        is_reused: bool,
    ) -> io::Result<&Aggregate> {
        let kept = self.0.take();
        let header = match kept.filter(|(before, _)| is_reused && *before == bytes) {
            Some(header) => header,
            None => (bytes, path.copy(&bytes)?),
        };
        Ok(&self.0.insert(header).1)
    }
}
