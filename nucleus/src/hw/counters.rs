//! What it cost, by cause: per-CPU, always on, one add without a lock prefix.

use super::machine::{self, MAX_COUNTERS};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One counted cause.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(non_camel_case_types)]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $name,)* }

        impl Counter {
            /// All counters in the order of `/proc/causeway/counters`.
            pub const ALL: &'static [Counter] = &[$(Counter::$name,)*];

            /// The name in `/proc/causeway/counters`.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$name => stringify!($name),)* }
            }
        }
    };
}

counters! {
    /// `invlpg` on the CPU that changed the mapping, one a page.
    tlb_local_page,
    /// Whole-TLB flushes on the CPU that changed the mapping.
    tlb_local_full,
    /// Other CPUs that had to forget something, each counted for each change of one page or
    /// several.
    tlb_remote,
    /// Flushes left out because the accessed bit showed that no TLB could hold the entry.
    tlb_skipped_unaccessed,
    /// Flushes left out because the address space was dead.
    tlb_skipped_dead,
    /// Interrupts sent to other CPUs for a shootdown.
    ipi_shootdown,
    /// Interrupts sent to other CPUs to make them reschedule.
    ipi_reschedule,
    /// Tasks that a CPU without work found in its queue by itself: no interrupt was sent.
    wakes_seen,
    /// Address-space switches (CR3 loads).
    space_switches,
    /// Task switches.
    task_switches,
    /// System calls.
    system_calls,
    /// Faults that found a resident object page.
    fault_object,
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
    /// Pages zeroed, new page tables among them.
    pages_zeroed,
    /// Bytes copied from programs to the kernel.
    bytes_copied_in,
    /// Bytes copied from the kernel to programs.
    bytes_copied_out,
    /// Bytes copied from frame to frame, those of `pages_copied` among them, and between frames and
    /// the kernel's own memory.
    bytes_copied_within,
    /// Bytes that went into a pipe, a socket's queue or a file by a handle to their frame, without
    /// being copied.
    bytes_passed,
    /// Page-table frames taken.
    page_tables_allocated,
    /// Page-table frames given back.
    page_tables_freed,
    /// Page tables of the parent that a forked space came to share.
    page_tables_shared,
    /// Shared page tables that a space copied to change its mappings.
    page_tables_copied,
    /// Shared page tables that a space had for itself again, since all others had left them.
    page_tables_reclaimed,
    /// Large pages entered: 2 MiB by one entry.
    large_entered,
    /// Those of memory that processes share among them.
    large_shared_entered,
    /// Of these, those that were removed or split.
    large_shared_gone,
    /// Large pages that were wanted, and there was no memory in a row.
    large_refused,
    /// Those that were removed as a whole.
    large_removed,
    /// Those that were split because a part was to be removed.
    large_split_remove,
    /// Because a part, or all, was to lose rights.
    large_split_protect,
    /// Because of a fork.
    large_split_fork,
    /// Because something was to be known or done about one page in all spaces: pageout, as a rule.
    large_split_page,
    /// Because of anything else.
    large_split_other,
    /// Frame type changes.
    frame_type_changes,
    /// Ephemeral mappings that cost nothing.
    ephemeral_hits,
    /// Ephemeral mappings that changed a page table.
    ephemeral_misses,
    /// Map entries allocated.
    map_entries,
    /// Packets over the loopback interface: segments, datagrams, and writes that took their place.
    loopback_packets,
    /// Bytes of data over it.
    loopback_bytes,
    /// Packets of IPv6 among them.
    loopback_packets_v6,
    /// Segments of TCP among them, and writes that took their place.
    tcp_segments,
    /// Connections that were asked for.
    tcp_active_opens,
    /// Connections that were asked for at a listener.
    tcp_passive_opens,
    /// Connections that did not come about.
    tcp_attempt_failures,
    /// Connections that were ended by a reset.
    tcp_established_resets,
    /// Resets sent.
    tcp_resets_sent,
    /// Requests for a connection for which a listener had no room.
    tcp_listen_overflows,
    /// Datagrams of UDP that were sent.
    udp_sent,
    /// Those of IPv6 among them.
    udp_sent_v6,
    /// Datagrams put into a socket's queue.
    udp_received,
    /// Those of IPv6 among them.
    udp_received_v6,
    /// Datagrams to ports without a socket.
    udp_no_port,
    /// Those of IPv6 among them.
    udp_no_port_v6,
    /// Datagrams for which a socket had no room.
    udp_dropped,
    /// Those of IPv6 among them.
    udp_dropped_v6,
    /// Messages of ICMP, each sent and received.
    icmp_messages,
    /// Requests for an echo among them.
    icmp_echo_requests,
    /// Echoes among them.
    icmp_echo_replies,
    /// Messages of ICMP that were wrong.
    icmp_errors,
    /// Messages of ICMP for IPv6.
    icmp6_messages,
    /// Requests for an echo among them.
    icmp6_echo_requests,
    /// Echoes among them.
    icmp6_echo_replies,
    /// Interrupts of a CPU's own timer.
    interrupts_timer,
    /// Interrupts of the first serial port.
    interrupts_console,
    /// Messages of devices.
    interrupts_device,
    /// Interrupts by which another CPU asked for a look at the run queue.
    interrupts_reschedule,
    /// Interrupts by which another CPU told of changed mappings.
    interrupts_shootdown,
    /// Interrupts that meant nothing.
    interrupts_spurious,
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
    /// Threads and processes made.
    forks,
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
    /// Out-of-memory kills.
    out_of_memory_kills,
}

impl Counter {
    /// Adds `n` on this CPU.
    #[inline]
    pub fn add(self, n: u64) {
        machine::counter_add(self as usize, n);
    }

    /// What this CPU, below [`task::MAX_CPUS`](crate::task::MAX_CPUS), has counted.
    pub fn of(self, cpu: usize) -> u64 {
        machine::counter_read(cpu, self as usize)
    }

    /// The sum over all CPUs.
    pub fn total(self) -> u64 {
        (0..machine::MAX_CPUS)
            .map(|cpu| machine::counter_read(cpu, self as usize))
            .fold(0, u64::wrapping_add)
    }
}

const _: () = assert!(Counter::ALL.len() <= MAX_COUNTERS);
