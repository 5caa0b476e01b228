//! Allocating and freeing blocks and inodes: choosing the group.

use core::sync::atomic::Ordering;

use abi::{Errno, Result, raw::general::CAP_SYS_RESOURCE};

use super::{
    free::Free,
    group::{Disk, Group, Room},
    layout::Slot,
    pending::{Pending, Run},
    volume::Volume,
};
use crate::credentials;

impl Volume {
    /// Allocates up to `most` consecutive blocks, as near after `goal` as possible. The current
    /// task's credentials decide whether the reserved blocks may be used.
    pub(super) fn take_blocks(&self, goal: u32, most: u32) -> Result<Run> {
        loop {
            let before = self.releases();
            let most = most.min(self.blocks_to_take(most));
            if most > 0
                && let Some(run) = self.search_blocks(goal, most)?
            {
                self.free.add_blocks(-(run.count as i64));
                // Zeros that failed after its last owner had freed it.
                self.buffers.forget_unwritten(run);
                return Ok(run);
            }
            self.free_more(before, |pending| !pending.blocks.is_empty())?;
        }
    }

    /// Returns how many of the free blocks the current task may allocate, at most `enough`.
    fn blocks_to_take(&self, enough: u32) -> u32 {
        let (free, reserve) = (self.free.blocks(), self.superblock.reserved_blocks);
        let above = free.saturating_sub(reserve);
        if above >= enough || above == free {
            return above;
        }
        let options = self.options();
        let uid = options.reserved_uid.unwrap_or(self.superblock.reserved_uid);
        let gid = options.reserved_gid.unwrap_or(self.superblock.reserved_gid);
        let may = credentials::current_may(|who| {
            // A reserved group of 0 is the default and gives no group of users the right.
            who.may_use(CAP_SYS_RESOURCE) || who.uid == uid || gid != 0 && who.in_group(gid)
        });
        if may { free } else { above }
    }

    /// After a failed search: frees pending blocks and removed files. `before` is the number of
    /// [releases](Volume::releases) when the search started.
    ///
    /// # Errors
    /// `ENOSPC` if nothing was freed.
    #[cold]
    fn free_more(&self, before: u64, wanted: impl Fn(&Pending) -> bool) -> Result<()> {
        self.buffers.wait_for_ends()?;
        self.take_unheld();
        if wanted(&self.pending.lock()) || self.has_removed() {
            return self.commit();
        }
        // A commit that is under way may be about to release what was pending.
        Errno::ENOSPC.unless(self.releases_with_next() > before)
    }

    /// Searches the group of `goal`, then the groups after it, then the others.
    fn search_blocks(&self, goal: u32, most: u32) -> Result<Option<Run>> {
        let geometry = &self.geometry;
        let exists = (geometry.first_data_block..geometry.blocks).contains(&goal);
        let goal = if exists {
            goal
        } else {
            geometry.first_data_block
        };
        let home = geometry.group_of(goal);
        for number in (home..geometry.groups).chain(0..home) {
            let goal = (number == home).then_some(goal);
            let group = &self.groups[number as usize];
            let taken = group.take_blocks(self.disk(), goal, most);
            if let Some(run) = taken? {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    /// Frees blocks with the next commit. Nothing refers to them any more, not even in a dirty
    /// block that is yet to be stored.
    pub(super) fn free_blocks(&self, run: Run) {
        self.buffers.forget_unwritten(run);
        self.pending.lock().add_blocks(run);
    }

    /// As [`free_blocks`](Volume::free_blocks), for several.
    pub(super) fn free_all(&self, freed: Pending) {
        if !freed.is_empty() {
            for run in &freed.blocks {
                self.buffers.forget_unwritten(*run);
            }
            self.pending.lock().append(freed);
        }
    }

    /// Clears the bits of what was pending when the commit started. What cannot be freed now stays
    /// pending.
    pub(super) fn release(&self, taken: Pending) -> Result<()> {
        let mut result = Ok(());
        let mut left = Pending::new();
        for run in taken.blocks {
            if let Err(error) = self.release_run(run) {
                left.add_blocks(run);
                result = Err(error);
            }
        }
        for (number, directory) in taken.inodes {
            if let Err(error) = self.release_inode(number, directory) {
                left.add_inode(number, directory);
                result = Err(error);
            }
        }
        self.free_all(left);
        result
    }

    /// Frees a run, which may cross groups. After an error, earlier groups have been updated;
    /// freeing their blocks again is refused.
    fn release_run(&self, run: Run) -> Result<()> {
        let mut first = run.first;
        let end = run.first + run.count;
        while first < end {
            let number = self.geometry.group_of(first);
            let count = end.min(self.geometry.group_blocks(number).end) - first;
            let part = Run { first, count };
            let freed = self.groups[number as usize].give_blocks(self.disk(), part);
            self.free.add_blocks(freed? as i64);
            first += count;
        }
        Ok(())
    }

    fn release_inode(&self, number: u32, directory: bool) -> Result<()> {
        let slot = self.geometry.slot(number);
        let index = (number - 1) % self.geometry.inodes_per_group;
        let group = &self.groups[slot.group as usize];
        let freed = group.give_inode(self.disk(), index, directory);
        if freed? {
            self.free.inodes.fetch_add(1, Ordering::Relaxed);
            Free::correct(&self.free.directories, -i64::from(directory));
        }
        Ok(())
    }

    /// Allocates an inode for a file in a directory of group `parent`; `top` for a directory that
    /// starts a tree of its own. `prepare` is called with its number and slot first.
    ///
    /// # Errors
    /// `ENOSPC`; `EIO`, `ENOMEM`; those of `prepare`.
    pub(super) fn take_inode<T>(
        &self,
        parent: u32,
        directory: bool,
        top: bool,
        mut prepare: impl FnMut(u32, Slot) -> Result<T>,
    ) -> Result<T> {
        loop {
            let before = self.releases();
            if Free::take_one(&self.free.inodes) {
                let taken = self.search_inode(parent, directory, top, &mut prepare);
                match taken {
                    Ok(Some(it)) => {
                        let more = directory as u32;
                        self.free.directories.fetch_add(more, Ordering::Relaxed);
                        return Ok(it);
                    }
                    Ok(None) => {}
                    Err(error) => {
                        self.free.inodes.fetch_add(1, Ordering::Relaxed);
                        return Err(error);
                    }
                }
                self.free.inodes.fetch_add(1, Ordering::Relaxed);
            }
            self.free_more(before, |pending| !pending.inodes.is_empty())?;
        }
    }

    fn search_inode<T>(
        &self,
        parent: u32,
        directory: bool,
        top: bool,
        prepare: &mut dyn FnMut(u32, Slot) -> Result<T>,
    ) -> Result<Option<T>> {
        let start = match directory {
            true => self.group_for_directory(parent, top),
            false => parent,
        };
        let groups = self.geometry.groups;
        for number in (start..groups).chain(0..start) {
            let group = &self.groups[number as usize];
            let taken = group.take_inode(self.disk(), directory, |index| {
                let inode = number * self.geometry.inodes_per_group + index + 1;
                prepare(inode, self.geometry.slot(inode))
            });
            if let Some(it) = taken? {
                return Ok(Some(it));
            }
        }
        Ok(None)
    }

    /// Chooses the group of a new directory (Orlov): directories that start a tree are spread over
    /// groups with more room and fewer directories than average; others stay near their parent
    /// while there is room for their content.
    fn group_for_directory(&self, parent: u32, top: bool) -> u32 {
        let groups = self.geometry.groups;
        let average = Room {
            blocks: self.free.blocks() / groups,
            inodes: self.free.inodes.load(Ordering::Relaxed) / groups,
            directories: self.free.directories.load(Ordering::Relaxed) / groups,
        };
        let room = |group: &Group| group.room();
        let in_turn = || (parent..groups).chain(0..parent);
        if top {
            let roomy = in_turn().filter(|&group| {
                let room = room(&self.groups[group as usize]);
                room.inodes > 0 && room.inodes >= average.inodes && room.blocks >= average.blocks
            });
            let fewest = roomy.min_by_key(|&group| room(&self.groups[group as usize]).directories);
            return fewest.unwrap_or(parent);
        }
        let enough = |whole: u32, average: u32| average.saturating_sub(whole / 4);
        let near = in_turn().find(|&group| {
            let room = room(&self.groups[group as usize]);
            room.inodes > enough(self.geometry.inodes_per_group, average.inodes)
                && room.blocks > enough(self.geometry.blocks_per_group, average.blocks)
                && room.directories <= average.directories + self.geometry.inodes_per_group / 16
        });
        near.unwrap_or(parent)
    }

    /// The state that groups need to read and update metadata.
    fn disk(&self) -> Disk<'_> {
        (&self.buffers, &self.geometry, &self.free)
    }
}
