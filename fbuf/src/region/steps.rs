//! The extents of a message in steps: what is done with one of them while its path is locked is
//! bounded, and the caller can be killed in between.

use alloc::sync::Arc;
use core::ops::Range;

use super::{message::Extent, path::Path, run::Run};

/// The most pages of a step: with all receivers some thousand page-table entries.
const STEP_PAGES: usize = 256;

/// The extents of a message that are left to do.
#[derive(Clone)]
pub(super) struct Steps<'a> {
    rest: &'a [Extent],
    /// Pages of the first that are done.
    done: usize,
}

/// Neighbouring extents of one path, or a part of one.
#[derive(Clone)]
pub(super) struct Step<'a> {
    extents: &'a [Extent],
    /// Pages of the first that do not belong to it.
    skipped: usize,
    pages: usize,
}

impl<'a> Steps<'a> {
    pub fn of(extents: &'a [Extent]) -> Steps<'a> {
        Steps {
            rest: extents,
            done: 0,
        }
    }
}

impl<'a> Iterator for Steps<'a> {
    type Item = Step<'a>;

    fn next(&mut self) -> Option<Step<'a>> {
        let (rest, skipped) = (self.rest, self.done);
        let path = &rest.first()?.run.path;
        let mut pages = 0;
        let mut count = 0;
        while let Some(extent) = rest.get(count)
            && Arc::ptr_eq(&extent.run.path, path)
            && pages < STEP_PAGES
        {
            let left = extent.pages.len() - self.done;
            let part = left.min(STEP_PAGES - pages);
            pages += part;
            count += 1;
            match part < left {
                true => self.done += part,
                false => {
                    self.done = 0;
                    self.rest = &rest[count..];
                }
            }
        }
        Some(Step {
            extents: &rest[..count],
            skipped,
            pages,
        })
    }
}

impl<'a> Step<'a> {
    /// Returns the path whose pages these are.
    pub fn path(&self) -> &'a Arc<Path> {
        &self.extents[0].run.path
    }

    /// Returns the runs and pages.
    pub fn parts(&self) -> impl Iterator<Item = (&'a Arc<Run>, Range<usize>)> + use<'a> {
        let (mut skipped, mut left) = (self.skipped, self.pages);
        self.extents.iter().map(move |extent| {
            let start = extent.pages.start + core::mem::take(&mut skipped);
            let end = extent.pages.end.min(start + left);
            left -= end - start;
            (&extent.run, start..end)
        })
    }
}
