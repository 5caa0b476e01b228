//! The bytes of a header as an aggregate, which is used again as long as they are the same: most
//! messages go where the last one went.

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
    /// Returns an aggregate of a path with these bytes. The path is always the same.
    ///
    /// # Errors
    /// Those of [`Path::copy`].
    pub(crate) fn of(&mut self, path: &Path, bytes: [u8; LEN]) -> io::Result<&Aggregate> {
        let kept = self.0.take().filter(|(before, _)| *before == bytes);
        let header = match kept {
            Some(header) => header,
            None => (bytes, path.copy(&bytes)?),
        };
        Ok(&self.0.insert(header).1)
    }
}
