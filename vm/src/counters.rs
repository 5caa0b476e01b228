//! Counters of the virtual-memory system: see [`nucleus::counters`].

nucleus::counters! {
    from nucleus::counters::END;
    /// Faults that found a resident object page.
    fault_object,
    /// Faults that mapped a page of a device.
    fault_device,
    /// Faults that found a resident anon.
    fault_anon,
    /// Faults that made a zero-filled page.
    fault_zero_fill,
    /// Faults that copied an object's page to a new anon (promotion).
    fault_promote,
    /// Faults that copied a shared anon.
    fault_copy,
    /// Write faults on an anon with one reference left: written in place.
    fault_in_place,
    /// Faults that found the mapping already there.
    fault_spurious,
    /// Faults that asked a pager.
    fault_pager,
    /// Faults that let go of all locks while a pager read.
    fault_read_in,
    /// Faults answered with a signal.
    fault_error,
    /// Pages mapped ahead by the fault routine.
    fault_ahead_pages,
    /// Faults that let go of all locks while a page was read from swap.
    fault_swap_in,
    /// Pages read from swap.
    swap_pages_in,
    /// Reads that brought them: clusters.
    swap_reads,
    /// Pages written to swap.
    swap_pages_out,
    /// Writes that took them: clusters.
    swap_writes,
    /// Reads and writes of swap that failed.
    swap_failures,
    /// Pages in memory that were dropped because a slot had the same bytes.
    swap_clean_drops,
    /// Slots given back because their page was written.
    swap_slots_dirtied,
    /// Pages copied.
    pages_copied,
    /// Pages that a program has lent.
    pages_lent,
    /// Pages that became a program's in the place of those it had.
    pages_transferred,
    /// Lent pages of which a writer took a copy.
    loans_broken_by_write,
    /// Lent pages that one of their owners gave up to page-out.
    loans_broken_by_pageout,
    /// Lent pages that a program unmapped, or lost to `exec`.
    loans_broken_by_unmap,
    /// Lent pages that left an object with its end, or by truncation.
    loans_broken_by_truncation,
    /// Lent pages of programs that ended.
    loans_broken_by_exit,
    /// Map entries that were passed by a copy.
    entries_copied,
    /// Map entries that were moved to another place or address space.
    entries_moved,
    /// Map entries that two places or address spaces came to share.
    entries_shared,
    /// Page mappings that moved along with their entries.
    mappings_moved,
    /// Large pages that were wanted, and there was no memory in a row.
    large_refused,
    /// Map entries allocated.
    map_entries,
    /// Times that the pagedaemon woke up to free frames.
    pageout_runs,
    /// Pages that it looked at.
    pageout_scanned,
    /// Pages that it made inactive.
    pageout_deactivated,
    /// Inactive pages that had been used, and became active again.
    pageout_second_chances,
    /// Pages that had not been used and stayed, because a small process has them.
    pageout_spared,
    /// Pages that it took out of memory.
    pageout_freed,
    /// Times that a task waited for it.
    memory_waits,
}
