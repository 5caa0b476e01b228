//! The file system on the device: superblock, groups, what is free, and when metadata is written.
//!
//! A [`Volume`] knows records and blocks, but no inodes in memory; those are kept by
//! [`Ext2`](super::Ext2), which contains it.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::{Errno, Result};
use nucleus::{
    PAGE_SIZE,
    dma::Part,
    ephemeral,
    frame::Contents,
    log,
    sync::{Mutex, Rank, SpinLock},
};

use super::{
    buffer::{Block, Buffers},
    free::Free,
    group::Group,
    layout::{
        GROUP_SIZE, Geometry, GroupRecord, ReadOnlyCompatible, Refused, State, Superblock, field,
    },
    options::Options,
    orphans::Orphans,
    pending::{Pending, Run},
    removed::Removed,
};
use crate::{
    block::{Device, SECTOR},
    vnode::{Space, now},
};

/// The file system on a device.
pub struct Volume {
    pub(super) buffers: Buffers,
    pub(super) geometry: Geometry,
    pub(super) groups: Vec<Group>,
    pub(super) free: Free,
    pub(super) superblock: Superblock,
    /// The superblock's block and offset.
    superblock_place: (Block, usize),
    /// Blocks and inodes that were freed since the last commit started.
    pub(super) pending: SpinLock<Pending>,
    /// Freed blocks of whose frames a transfer had handles at the last commit (`dax`).
    held: SpinLock<Pending>,
    /// Such blocks at the time when changes were forbidden. They are free on the medium.
    outlived: SpinLock<Vec<Run>>,
    /// Held while metadata is written.
    commit: Mutex<()>,
    /// The number of commits that have begun, and of the last one that succeeded.
    begun: AtomicU64,
    ended: AtomicU64,
    /// The number of commits that have freed what was pending.
    released: AtomicU64,
    pub(super) removed: SpinLock<Vec<Removed>>,
    pub(super) orphans: Orphans,
    read_only: AtomicBool,
    options: SpinLock<Options>,
    /// It was valid when mounted, and no damage has been found since.
    sound: AtomicBool,
}

impl Volume {
    /// Reads the superblock and the groups, and changes nothing.
    ///
    /// # Errors
    /// The reason why the device holds no usable file system.
    pub(super) fn open(device: Arc<Device>) -> core::result::Result<Volume, Refused> {
        let bytes = read_superblock(&device)?;
        let superblock = Superblock::parse(&bytes)?;
        let geometry = Geometry::new(&superblock);
        let size = superblock.blocks as u64 * geometry.block_size as u64;
        if size > device.size() {
            return Err(Refused::invalid("it is larger than its device"));
        }
        if geometry.block_size < device.limits().block_size as usize {
            return Err(Refused::invalid("its blocks are smaller than its device's"));
        }
        let zeros = vm::alloc_frame(Contents::Zeroed).map_err(Errno::from)?;
        let buffers = Buffers::new(device, geometry.block_size, zeros);
        let place = Superblock::OFFSET as usize;
        let block = buffers.get((place / geometry.block_size) as u32)?;
        let head = (block, place % geometry.block_size);
        let free = Free::default();
        let groups = read_groups(&buffers, &geometry, &free)?;
        Ok(Volume {
            buffers,
            geometry,
            groups,
            free,
            superblock_place: head,
            pending: SpinLock::new(Rank::Leaf, Pending::new()),
            held: SpinLock::new(Rank::Leaf, Pending::new()),
            outlived: SpinLock::new(Rank::Leaf, Vec::new()),
            commit: Mutex::new(crate::rank::COMMIT, ()),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            released: AtomicU64::new(0),
            removed: SpinLock::new(Rank::Leaf, Vec::new()),
            read_only: AtomicBool::new(true),
            sound: AtomicBool::new(superblock.state == State::VALID),
            orphans: Orphans::new(superblock.last_orphan),
            options: SpinLock::new(Rank::Leaf, Options::default()),
            superblock,
        })
    }

    /// Whether blocks are pages of memory, so that files can be used where they lie.
    pub(super) fn may_be_in_place(&self) -> bool {
        self.geometry.block_size == PAGE_SIZE && self.device().disk().page(0).is_some()
    }

    /// The options of its mount.
    pub(super) fn options(&self) -> Options {
        *self.options.lock()
    }

    /// Sets the options of its mount.
    pub(super) fn set_options(&self, options: Options) {
        *self.options.lock() = options;
    }

    /// Marks the file system on the disk as in use, and permits changes. Has no effect if they are
    /// permitted already.
    ///
    /// # Errors
    /// `EROFS` for a read-only device, or features that forbid writing; `EIO`.
    pub fn start_writing(&self) -> Result<()> {
        if self.buffers.device.is_read_only() || !self.superblock.may_be_written() {
            return Err(Errno::EROFS);
        }
        if !self.read_only.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let mounts = self.superblock.mounts.saturating_add(1);
        self.store_in_superblock(field::MOUNTS, &mounts.to_le_bytes());
        self.store_in_superblock(field::MOUNTED, &seconds());
        self.put_state(self.superblock.state - State::VALID);
        self.commit()
            .inspect_err(|_| self.read_only.store(true, Ordering::Release))
    }

    /// Writes everything, marks the file system on the disk as valid if it was, and forbids
    /// changes. The caller excludes concurrent changes.
    ///
    /// # Errors
    /// `EIO`: it still counts as in use on the disk, and may be changed.
    pub fn stop_writing(&self) -> Result<()> {
        if self.is_read_only() && self.buffers.changed() == 0 {
            return Ok(());
        }
        self.sync()?;
        if self.sound.load(Ordering::Acquire) {
            self.put_state(self.superblock.state | State::VALID);
        }
        if let Err(error) = self.write_metadata() {
            self.put_state(self.superblock.state - State::VALID);
            return Err(error);
        }
        self.read_only.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns whether it was unmounted cleanly and no damage was found since.
    pub(super) fn is_sound(&self) -> bool {
        self.sound.load(Ordering::Acquire)
    }

    /// Returns whether changes are forbidden.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.buffers.device
    }

    /// Writes all dirty metadata and flushes the disk's cache. What was freed before is free then.
    ///
    /// # Errors
    /// `EIO`; what could not be written is retried with the next commit. `ENOMEM`.
    pub(super) fn commit(&self) -> Result<()> {
        let _turn = self.commit.lock();
        self.commit_once()
    }

    fn commit_once(&self) -> Result<()> {
        let reaped = self.reap();
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        // References to these are gone from the dirty blocks by now.
        self.take_unheld();
        let mut taken = core::mem::take(&mut *self.pending.lock());
        if self.options().in_place {
            let held = taken.take_held(|block| self.is_held(block));
            self.held.lock().append(held);
        }
        if let Err(error) = self.write_metadata() {
            self.free_all(taken);
            return Err(error);
        }
        self.ended.store(number, Ordering::Release);
        let released = self.release(taken);
        self.released.fetch_add(1, Ordering::AcqRel);
        released.and(reaped)
    }

    /// Makes blocks pending whose transfers have ended.
    pub(super) fn take_unheld(&self) {
        let mut all = core::mem::take(&mut *self.held.lock());
        if !all.is_empty() {
            let held = all.take_held(|block| self.is_held(block));
            self.held.lock().append(held);
            self.pending.lock().append(all);
        }
    }

    /// Whether a transfer has a handle of the frame of a freed block, which is possible if files
    /// are in place.
    fn is_held(&self, block: u64) -> bool {
        /// The disk's, and the one of this look-up.
        const OWN_HANDLES: u64 = 2;
        let page = self.device().disk().page(block);
        page.is_some_and(|page| page.handles() > OWN_HANDLES)
    }

    /// The number of commits that released what was pending; waits for one that is under way.
    pub(super) fn releases_with_next(&self) -> u64 {
        let _turn = self.commit.lock();
        self.releases()
    }

    /// The number of commits that released what was pending.
    pub(super) fn releases(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    /// The number of the commit that will include what is dirty now.
    pub(super) fn next_commit(&self) -> u64 {
        self.begun.load(Ordering::Acquire) + 1
    }

    /// The number of the last successful commit.
    pub(super) fn last_commit(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// Commits, and once more if that has freed something, so that it is free on the medium, too.
    /// Changes made meanwhile are not waited for.
    pub(super) fn commit_with_freed(&self) -> Result<()> {
        let _turn = self.commit.lock();
        self.commit_once()?;
        match self.buffers.changed() > 0 {
            true => self.commit_once(),
            false => Ok(()),
        }
    }

    /// Commits until nothing is dirty, not even the effect of releasing pending blocks. The caller
    /// excludes further changes: as no block is reused, blocks with transfers under way are freed
    /// without a wait.
    fn sync(&self) -> Result<()> {
        let _turn = self.commit.lock();
        loop {
            self.commit_once()?;
            self.release_held()?;
            let nothing_freed = self.pending.lock().is_empty() && !self.has_removed();
            if nothing_freed && self.buffers.changed() == 0 {
                return Ok(());
            }
        }
    }

    /// Frees blocks with transfers under way. Nothing on the medium refers to them.
    fn release_held(&self) -> Result<()> {
        let held = core::mem::take(&mut *self.held.lock());
        if held.is_empty() {
            return Ok(());
        }
        let noted = {
            let mut outlived = self.outlived.lock();
            let noted = outlived.try_reserve(held.blocks.len());
            if noted.is_ok() {
                outlived.extend_from_slice(&held.blocks);
            }
            noted
        };
        match noted {
            Ok(()) => self.release(held),
            Err(_) => {
                self.held.lock().append(held);
                Err(Errno::ENOMEM)
            }
        }
    }

    /// Whether a transfer has a handle of a freed block.
    pub(super) fn has_held(&self) -> bool {
        let is_held = |run: &Run| run.blocks().any(|block| self.is_held(block));
        let any = self.held.lock().blocks.iter().any(is_held);
        any || self.outlived.lock().iter().any(is_held)
    }

    fn write_metadata(&self) -> Result<()> {
        if self.buffers.changed() > 0 {
            let inodes = self.free.inodes.load(Ordering::Relaxed);
            self.store_in_superblock(field::FREE_BLOCKS, &self.free.blocks().to_le_bytes());
            self.store_in_superblock(field::FREE_INODES, &inodes.to_le_bytes());
            self.store_in_superblock(field::WRITTEN, &seconds());
            self.buffers.write_back()?;
        }
        self.buffers.device.flush()
    }

    /// Writes bytes into the superblock.
    pub(super) fn store_in_superblock(&self, at: usize, bytes: &[u8]) {
        self.buffers.store(
            &self.superblock_place.0,
            self.superblock_place.1 + at,
            bytes,
        );
    }

    fn put_state(&self, state: State) {
        let state = match self.sound.load(Ordering::Acquire) {
            true => state,
            false => (state - State::VALID) | State::ERROR,
        };
        self.store_in_superblock(field::STATE, &state.bits().to_le_bytes());
    }

    /// Records damage: the next check is thorough, and changes are forbidden unless a mount option
    /// says otherwise. Returns the error for the caller.
    pub(super) fn damaged(&self, what: &str, number: u32) -> Errno {
        log!("ext2 on {}: {what}: {number}", self.device().name());
        let first = self.sound.swap(false, Ordering::AcqRel);
        if first && !self.is_read_only() {
            self.put_state(self.superblock.state);
            if !self.options().continue_on_damage {
                log!("ext2 on {}: it is read-only now", self.device().name());
                self.read_only.store(true, Ordering::Release);
            }
        }
        Errno::EIO
    }

    /// Sets the large-file feature if a file's `size` needs it.
    pub(super) fn note_size(&self, size: u64) {
        const LARGE: u64 = 1 << 31;
        let features = self.superblock.read_only_features;
        if size >= LARGE && !features.contains(ReadOnlyCompatible::LARGE_FILE) {
            let features = features | ReadOnlyCompatible::LARGE_FILE;
            self.store_in_superblock(field::FEATURES_READ_ONLY, &features.bits().to_le_bytes());
        }
    }

    /// Returns whether a block may belong to a file.
    pub(super) fn is_data(&self, block: u32) -> bool {
        let geometry = &self.geometry;
        if !(geometry.first_data_block..geometry.blocks).contains(&block) {
            return false;
        }
        let group = geometry.group_of(block);
        geometry.is_data(group, &self.groups[group as usize].record, block)
    }

    /// As [`is_data`](Volume::is_data).
    ///
    /// # Errors
    /// `EIO`, if not.
    pub(super) fn check_data(&self, block: u32) -> Result<()> {
        match self.is_data(block) {
            true => Ok(()),
            false => Err(self.damaged("a pointer leads out of the data", block)),
        }
    }

    /// Returns a metadata block that something refers to.
    pub(super) fn metadata(&self, block: u32) -> Result<Block> {
        self.check_data(block)?;
        self.buffers.get(block)
    }

    /// Returns its free space; pending blocks count as free.
    pub(super) fn space(&self) -> Space {
        const MAGIC: u64 = 0xef53;
        let (blocks, inodes) = {
            let pending = self.pending.lock();
            (pending.block_count, pending.inodes.len())
        };
        let geometry = &self.geometry;
        let overhead: u64 = (0..geometry.groups)
            .map(|group| geometry.head(group).len() as u64 + 2 + geometry.table_blocks as u64)
            .sum();
        let free = self.free.blocks() as u64 + blocks as u64;
        Space {
            magic: MAGIC,
            block_size: geometry.block_size as u64,
            blocks: geometry.blocks as u64 - geometry.first_data_block as u64 - overhead,
            free,
            available: free.saturating_sub(self.superblock.reserved_blocks as u64),
            files: geometry.inodes as u64,
            free_files: self.free.inodes.load(Ordering::Relaxed) as u64 + inodes as u64,
            name_max: 255,
        }
    }
}

/// Now, as a field of seconds.
fn seconds() -> [u8; 4] {
    (now().as_secs() as u32).to_le_bytes()
}

fn read_superblock(device: &Device) -> core::result::Result<[u8; Superblock::SIZE], Refused> {
    let invalid = Refused::invalid("its device is too small");
    let len = (device.size() as usize).min(PAGE_SIZE);
    let start = Superblock::OFFSET as usize;
    if len < start + Superblock::SIZE {
        return Err(invalid);
    }
    let page = vm::alloc_frame(Contents::Stale).map_err(Errno::from)?;
    let part = Part::new(page.clone(), 0, len / SECTOR * SECTOR);
    device.read(0, alloc::vec![part])?;
    let mut bytes = [0; Superblock::SIZE];
    ephemeral::map(&page).read(start, &mut bytes);
    Ok(bytes)
}

/// Reads all groups, checks the places of their metadata, and sums up their counts.
fn read_groups(
    buffers: &Buffers,
    geometry: &Geometry,
    free: &Free,
) -> core::result::Result<Vec<Group>, Refused> {
    let mut groups = nucleus::try_vec(geometry.groups as usize).map_err(Errno::from)?;
    let per_block = (geometry.block_size / GROUP_SIZE) as u32;
    let table = geometry.first_data_block + 1;
    if geometry.descriptor_blocks > geometry.group_blocks(0).len() as u32 {
        return Err(Refused::invalid("its descriptors don't fit"));
    }
    for first in (0..geometry.groups).step_by(per_block as usize) {
        let block = buffers.get(table + first / per_block)?;
        for number in first..geometry.groups.min(first + per_block) {
            let at = (number - first) as usize * GROUP_SIZE;
            let record = GroupRecord::parse(&block.bytes(at));
            if !geometry.check_group(number, &record) {
                return Err(Refused::invalid("a group's places are impossible"));
            }
            free.add_blocks(record.free_blocks as i64);
            let counts = [
                (&free.inodes, record.free_inodes),
                (&free.directories, record.directories),
            ];
            for (sum, count) in counts {
                sum.fetch_add(count as u32, Ordering::Relaxed);
            }
            groups.push(Group::new(number, record, block.clone(), at));
        }
    }
    Ok(groups)
}
