//! Counters of file systems and disks: see [`nucleus::counters`].

nucleus::counters! {
    from fbuf::counters::END;
    /// Pages of files that were read on demand, or together with those.
    file_page_ins,
    /// Pages of files that were read ahead.
    file_read_ahead,
    /// Pages of windows of read-ahead that their reader used up.
    file_read_ahead_hits,
    /// Pages of windows of read-ahead that no reader came to.
    file_read_ahead_misses,
    /// Requests by which dirty pages of files were written back.
    file_write_clusters,
    /// Pages in them: by the requests, the mean size of a cluster.
    file_write_pages,
    /// Requests among them that failed.
    file_write_errors,
    /// Bytes read from disks into programs' memory, past the pages of files and devices.
    direct_bytes_read,
    /// Bytes written from there.
    direct_bytes_written,
    /// Writes past the pages that went through them instead: into holes, beyond the end, or where
    /// a page has other users.
    direct_fallbacks,
    /// Requests to disks, and pieces of large ones.
    disk_requests,
    /// Those among them that went along with a neighbour's command.
    disk_merged,
    /// Sectors of 512 bytes read from disks.
    disk_sectors_read,
    /// Sectors written to disks.
    disk_sectors_written,
    /// Commands to disks to put on the medium what was written.
    disk_flushes,
    /// Names of paths that were looked up by references and locks, because a read section could not
    /// go so far.
    path_lookups_by_reference,
}
