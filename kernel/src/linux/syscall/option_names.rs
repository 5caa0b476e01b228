//! Linux's names of options and flags, for the records of those that are refused.
//!
//! The names and their values are those of `linux-raw-sys`. Only arguments whose values say what a
//! program wanted have names here; other values, and options that a list lacks, read as numbers.

use alloc::{format, string::String};

use abi::raw::{general, ioctl, net, prctl};

use super::table;

/// A name of Linux's and its value.
type Name = (&'static str, u64);

/// Names with the values that the constants of a module have: `names! { prctl: PR_SET_MM ... }`.
/// Without commas, the formatter leaves them as many on a line as fit.
macro_rules! names {
    ($module:ident: $($name:ident)*) => {
        &[$((stringify!($name), $module::$name as u64)),*]
    };
}

/// How the values of an argument read.
enum Shape {
    /// One name.
    One(&'static [Name]),
    /// Names of bits.
    Bits(&'static [Name]),
}

/// The arguments whose values have names, of a call or, where that is empty, of any.
const ARGUMENTS: &[(&str, &str, Shape)] = &[
    ("prctl", "option", Shape::One(OPTIONS)),
    ("ioctl", "request", Shape::One(REQUESTS)),
    ("fcntl", "cmd", Shape::One(COMMANDS)),
    ("", "advice", Shape::One(ADVICES)),
    ("", "futex_op", Shape::One(FUTEXES)),
    ("", "clockid", Shape::One(CLOCKS)),
    ("", "domain", Shape::One(DOMAINS)),
    ("clone", "flags", Shape::Bits(CLONES)),
    ("clone3", "flags", Shape::Bits(CLONES)),
    ("unshare", "flags", Shape::Bits(CLONES)),
    ("", "nstype", Shape::Bits(CLONES)),
    ("", "mountflags", Shape::Bits(MOUNTS)),
    ("mmap", "flags", Shape::Bits(MAPS)),
    ("sendto", "flags", Shape::Bits(MESSAGES)),
    ("sendmsg", "flags", Shape::Bits(MESSAGES)),
    ("sendmmsg", "flags", Shape::Bits(MESSAGES)),
    ("recvfrom", "flags", Shape::Bits(MESSAGES)),
    ("recvmsg", "flags", Shape::Bits(MESSAGES)),
    ("recvmmsg", "flags", Shape::Bits(MESSAGES)),
];

/// The options of a socket by level.
const SOCKET_OPTIONS: &[(&str, u32, &[Name])] = &[
    ("SOL_SOCKET", net::SOL_SOCKET, SOCKET),
    ("IPPROTO_IP", net::IPPROTO_IP as u32, IP),
    ("IPPROTO_IPV6", net::IPPROTO_IPV6 as u32, IPV6),
    ("IPPROTO_TCP", net::IPPROTO_TCP as u32, TCP),
];

/// Returns Linux's name of the 64-bit call with a number, whether or not this kernel has it.
pub(in crate::linux) fn call_name(number: u32) -> Option<&'static str> {
    let missing = || name_of(MISSING, number.into())?.strip_prefix("__NR_");
    table::name(number).or_else(missing)
}

/// Tells whether a request of `ioctl` is known for files of some type: that one of another type
/// refuses it is no lack.
pub(in crate::linux) fn is_known_request(request: u32) -> bool {
    name_of(KNOWN_REQUESTS, request.into()).is_some()
}

/// Returns how `value` of an argument of a call reads: by its names, or as a number.
pub(in crate::linux) fn value_text(call: &str, argument: &str, value: u64) -> String {
    match argument {
        "optname" => return socket_option_text((value >> 32) as u32, value as u32),
        // The first bytes of a name.
        "filesystemtype" => {
            let bytes = value.to_le_bytes();
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            return format!("{}", text.escape_ascii());
        }
        _ => {}
    }
    let is_it = |it: &&(&str, &str, Shape)| it.1 == argument && (it.0 == call || it.0.is_empty());
    match ARGUMENTS.iter().find(is_it) {
        Some((_, _, Shape::One(names))) => name_or_number(names, value),
        Some((_, _, Shape::Bits(names))) => bits_text(names, value),
        None => name_or_number(&[], value),
    }
}

fn name_of(names: &[Name], value: u64) -> Option<&'static str> {
    Some(names.iter().find(|(_, known)| *known == value)?.0)
}

fn name_or_number(names: &[Name], value: u64) -> String {
    name_of(names, value).map_or_else(|| format!("{value:#x}"), String::from)
}

/// An option of a socket with its level.
fn socket_option_text(level: u32, option: u32) -> String {
    match SOCKET_OPTIONS.iter().find(|it| it.1 == level) {
        Some((level, _, names)) => format!("{level}:{}", name_or_number(names, option.into())),
        None => format!("{level}:{option:#x}"),
    }
}

/// The names of the bits, and what has no name as a number.
fn bits_text(names: &[Name], value: u64) -> String {
    let (mut text, mut rest) = (String::new(), value);
    for &(name, bit) in names {
        if rest & bit != 0 && bit.is_power_of_two() {
            rest &= !bit;
            text = text + name + "|";
        }
    }
    if rest != 0 || text.is_empty() {
        return text + &name_or_number(&[], rest);
    }
    text.pop();
    text
}

/// Calls that this kernel does not have; [`TABLE`](super::table) has the names of the others.
const MISSING: &[Name] = names! {general:
    __NR_ptrace __NR_uselib __NR_sysfs __NR_vhangup __NR_modify_ldt __NR__sysctl __NR_acct
    __NR_iopl __NR_ioperm __NR_create_module __NR_init_module __NR_delete_module
    __NR_get_kernel_syms __NR_query_module __NR_quotactl __NR_nfsservctl __NR_getpmsg
    __NR_putpmsg __NR_afs_syscall __NR_tuxcall __NR_security __NR_set_thread_area __NR_io_setup
    __NR_io_destroy __NR_io_getevents __NR_io_submit __NR_io_cancel __NR_get_thread_area
    __NR_lookup_dcookie __NR_epoll_ctl_old __NR_epoll_wait_old __NR_remap_file_pages
    __NR_vserver __NR_mbind __NR_set_mempolicy __NR_get_mempolicy __NR_kexec_load __NR_add_key
    __NR_request_key __NR_keyctl __NR_migrate_pages __NR_move_pages __NR_perf_event_open
    __NR_fanotify_init __NR_fanotify_mark __NR_finit_module __NR_kexec_file_load __NR_bpf
    __NR_userfaultfd __NR_pkey_mprotect __NR_pkey_alloc __NR_pkey_free __NR_io_pgetevents
    __NR_uretprobe __NR_io_uring_setup __NR_io_uring_enter __NR_io_uring_register __NR_open_tree
    __NR_move_mount __NR_fsopen __NR_fsconfig __NR_fsmount __NR_fspick __NR_mount_setattr
    __NR_quotactl_fd __NR_landlock_create_ruleset __NR_landlock_add_rule
    __NR_landlock_restrict_self __NR_memfd_secret __NR_process_mrelease
    __NR_set_mempolicy_home_node __NR_cachestat __NR_map_shadow_stack __NR_futex_wake
    __NR_futex_wait __NR_futex_requeue __NR_statmount __NR_listmount __NR_lsm_get_self_attr
    __NR_lsm_set_self_attr __NR_lsm_list_modules __NR_mseal __NR_setxattrat __NR_getxattrat
    __NR_listxattrat __NR_removexattrat __NR_open_tree_attr __NR_file_getattr __NR_file_setattr
};

/// Requests of `ioctl` that files of some type know.
const KNOWN_REQUESTS: &[Name] = names! {ioctl:
    FIOCLEX FIONCLEX FIONBIO FIOASYNC FIONREAD FIOQSIZE FIOGETOWN FIOSETOWN FIGETBSZ FICLONE
    FICLONERANGE FIDEDUPERANGE SIOCGPGRP SIOCSPGRP SIOCATMARK SIOCGIFADDR SIOCGIFBRDADDR
    SIOCGIFCONF SIOCGIFDSTADDR SIOCGIFFLAGS SIOCGIFHWADDR SIOCGIFINDEX SIOCGIFMAP SIOCGIFMETRIC
    SIOCGIFMTU SIOCGIFNAME SIOCGIFNETMASK SIOCGIFTXQLEN SIOCSIFADDR SIOCSIFBRDADDR
    SIOCSIFDSTADDR SIOCSIFFLAGS SIOCSIFHWADDR SIOCSIFMTU SIOCSIFNETMASK TCFLSH TCGETS TCGETS2
    TCSBRK TCSBRKP TCSETS TCSETS2 TCSETSF TCSETSF2 TCSETSW TCSETSW2 TCXONC TIOCCBRK TIOCEXCL
    TIOCGDEV TIOCGETD TIOCGEXCL TIOCGPGRP TIOCGPKT TIOCGPTLCK TIOCGPTN TIOCGPTPEER TIOCGSID
    TIOCGWINSZ TIOCNOTTY TIOCNXCL TIOCOUTQ TIOCPKT TIOCSBRK TIOCSCTTY TIOCSETD TIOCSIG TIOCSPGRP
    TIOCSPTLCK TIOCSTI TIOCSWINSZ TIOCVHANGUP BLKALIGNOFF BLKBSZGET BLKBSZSET BLKDISCARD
    BLKDISCARDZEROES BLKFLSBUF BLKGETSIZE BLKGETSIZE64 BLKIOMIN BLKIOOPT BLKPBSZGET BLKRAGET
    BLKROGET BLKROTATIONAL BLKSSZGET BLKZEROOUT RTC_AIE_ON RTC_SET_TIME RTC_ALM_READ RTC_PIE_ON
    RTC_PIE_OFF RTC_RD_TIME RTC_AIE_OFF RTC_EPOCH_SET RTC_IRQP_READ RTC_WKALM_RD RTC_UIE_OFF
    RTC_WKALM_SET RTC_IRQP_SET RTC_ALM_SET RTC_UIE_ON
};

/// Requests that no file knows.
const REQUESTS: &[Name] = names! {ioctl:
    BLKCLOSEZONE BLKFINISHZONE BLKFRAGET BLKFRASET BLKGETDISKSEQ BLKGETNRZONES BLKGETZONESZ
    BLKOPENZONE BLKPG BLKRASET BLKREPORTZONE BLKRESETZONE BLKROSET BLKRRPART BLKSECDISCARD
    BLKSECTGET BLKSECTSET BLKTRACESETUP BLKTRACESTART BLKTRACESTOP BLKTRACETEARDOWN FIFREEZE
    FITHAW FITRIM FS_IOC_ADD_ENCRYPTION_KEY FS_IOC_ENABLE_VERITY FS_IOC_FIEMAP FS_IOC_FSGETXATTR
    FS_IOC_FSSETXATTR FS_IOC_GETFLAGS FS_IOC_GETFSLABEL FS_IOC_GETFSMAP FS_IOC_GETVERSION
    FS_IOC_GET_ENCRYPTION_KEY_STATUS FS_IOC_GET_ENCRYPTION_NONCE FS_IOC_GET_ENCRYPTION_POLICY
    FS_IOC_GET_ENCRYPTION_POLICY_EX FS_IOC_GET_ENCRYPTION_PWSALT FS_IOC_MEASURE_VERITY
    FS_IOC_READ_VERITY_METADATA FS_IOC_REMOVE_ENCRYPTION_KEY
    FS_IOC_REMOVE_ENCRYPTION_KEY_ALL_USERS FS_IOC_SETFLAGS FS_IOC_SETFSLABEL FS_IOC_SETVERSION
    FS_IOC_SET_ENCRYPTION_POLICY KDDISABIO KDENABIO KDGETLED KDGETMODE KDGKBLED KDGKBMETA
    KDGKBMODE KDGKBTYPE KDSETLED KDSETMODE KDSKBLED KDSKBMETA KDSKBMODE NS_GET_NSTYPE
    NS_GET_OWNER_UID NS_GET_PARENT NS_GET_USERNS RTC_EPOCH_READ RTC_PLL_GET RTC_PLL_SET
    RTC_VL_CLR RTC_VL_READ RTC_WIE_OFF RTC_WIE_ON SIOCADDMULTI SIOCADDRT SIOCDARP SIOCDELMULTI
    SIOCDELRT SIOCDIFADDR SIOCGARP SIOCGIFBR SIOCGIFCOUNT SIOCGIFPFLAGS SIOCGIFSLAVE SIOCGSTAMP
    SIOCGSTAMPNS_NEW SIOCGSTAMP_NEW SIOCSARP SIOCSIFBR SIOCSIFHWBROADCAST SIOCSIFLINK SIOCSIFMAP
    SIOCSIFMETRIC SIOCSIFNAME SIOCSIFPFLAGS SIOCSIFSLAVE SIOCSIFTXQLEN TCGETA TCSETA TCSETAF
    TCSETAW TIOCCONS TIOCGICOUNT TIOCGLCKTRMIOS TIOCGRS485 TIOCGSERIAL TIOCGSOFTCAR TIOCLINUX
    TIOCMBIC TIOCMBIS TIOCMGET TIOCMIWAIT TIOCMSET TIOCSLCKTRMIOS TIOCSRS485 TIOCSSERIAL
    TIOCSSOFTCAR TUNATTACHFILTER TUNDETACHFILTER TUNGETDEVNETNS TUNGETFEATURES TUNGETFILTER
    TUNGETIFF TUNGETSNDBUF TUNGETVNETBE TUNGETVNETHDRSZ TUNGETVNETLE TUNSETCARRIER TUNSETDEBUG
    TUNSETFILTEREBPF TUNSETGROUP TUNSETIFF TUNSETIFINDEX TUNSETLINK TUNSETNOCSUM TUNSETOFFLOAD
    TUNSETOWNER TUNSETPERSIST TUNSETQUEUE TUNSETSNDBUF TUNSETSTEERINGEBPF TUNSETTXFILTER
    TUNSETVNETBE TUNSETVNETHDRSZ TUNSETVNETLE VT_ACTIVATE VT_DISALLOCATE VT_GETMODE VT_GETSTATE
    VT_OPENQRY VT_RELDISP VT_RESIZE VT_RESIZEX VT_SETMODE VT_WAITACTIVE
};

/// `prctl`.
const OPTIONS: &[Name] = names! {prctl:
    PR_SET_PDEATHSIG PR_GET_PDEATHSIG PR_GET_DUMPABLE PR_SET_DUMPABLE PR_GET_KEEPCAPS
    PR_SET_KEEPCAPS PR_GET_TIMING PR_SET_TIMING PR_SET_NAME PR_GET_NAME PR_GET_SECCOMP
    PR_SET_SECCOMP PR_CAPBSET_READ PR_CAPBSET_DROP PR_GET_TSC PR_SET_TSC PR_GET_SECUREBITS
    PR_SET_SECUREBITS PR_SET_TIMERSLACK PR_GET_TIMERSLACK PR_TASK_PERF_EVENTS_DISABLE
    PR_TASK_PERF_EVENTS_ENABLE PR_MCE_KILL PR_MCE_KILL_GET PR_SET_MM PR_SET_PTRACER
    PR_SET_CHILD_SUBREAPER PR_GET_CHILD_SUBREAPER PR_SET_NO_NEW_PRIVS PR_GET_NO_NEW_PRIVS
    PR_GET_TID_ADDRESS PR_SET_THP_DISABLE PR_GET_THP_DISABLE PR_CAP_AMBIENT
    PR_GET_SPECULATION_CTRL PR_SET_SPECULATION_CTRL PR_SET_TAGGED_ADDR_CTRL
    PR_GET_TAGGED_ADDR_CTRL PR_SET_IO_FLUSHER PR_GET_IO_FLUSHER PR_SET_SYSCALL_USER_DISPATCH
    PR_SCHED_CORE PR_SET_MDWE PR_GET_MDWE PR_SET_VMA PR_GET_AUXV PR_SET_MEMORY_MERGE
    PR_GET_MEMORY_MERGE PR_GET_SHADOW_STACK_STATUS PR_SET_SHADOW_STACK_STATUS
};

/// `fcntl`.
const COMMANDS: &[Name] = names! {general:
    F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_GETLK F_SETLK F_SETLKW F_SETOWN F_GETOWN F_SETSIG
    F_GETSIG F_SETOWN_EX F_GETOWN_EX F_GETOWNER_UIDS F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW
    F_GETLEASE F_NOTIFY F_CANCELLK F_DUPFD_CLOEXEC F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS
    F_GET_SEALS F_GET_RW_HINT F_SET_RW_HINT F_GET_FILE_RW_HINT F_SET_FILE_RW_HINT
};

/// `madvise`.
const ADVICES: &[Name] = names! {general:
    MADV_NORMAL MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MADV_DONTNEED MADV_FREE MADV_REMOVE
    MADV_DONTFORK MADV_DOFORK MADV_HWPOISON MADV_SOFT_OFFLINE MADV_MERGEABLE MADV_UNMERGEABLE
    MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTDUMP MADV_DODUMP MADV_WIPEONFORK MADV_KEEPONFORK
    MADV_COLD MADV_PAGEOUT MADV_POPULATE_READ MADV_POPULATE_WRITE MADV_DONTNEED_LOCKED
    MADV_COLLAPSE MADV_GUARD_INSTALL MADV_GUARD_REMOVE
};

/// `futex`.
const FUTEXES: &[Name] = names! {general:
    FUTEX_WAIT FUTEX_WAKE FUTEX_FD FUTEX_REQUEUE FUTEX_CMP_REQUEUE FUTEX_WAKE_OP FUTEX_LOCK_PI
    FUTEX_UNLOCK_PI FUTEX_TRYLOCK_PI FUTEX_WAIT_BITSET FUTEX_WAKE_BITSET FUTEX_WAIT_REQUEUE_PI
    FUTEX_CMP_REQUEUE_PI FUTEX_LOCK_PI2
};

/// Clocks.
const CLOCKS: &[Name] = names! {general:
    CLOCK_REALTIME CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID CLOCK_THREAD_CPUTIME_ID
    CLOCK_MONOTONIC_RAW CLOCK_REALTIME_COARSE CLOCK_MONOTONIC_COARSE CLOCK_BOOTTIME
    CLOCK_REALTIME_ALARM CLOCK_BOOTTIME_ALARM CLOCK_SGI_CYCLE CLOCK_TAI
};

/// `clone`, and namespaces.
const CLONES: &[Name] = names! {general:
    CLONE_VM CLONE_FS CLONE_FILES CLONE_SIGHAND CLONE_PIDFD CLONE_PTRACE CLONE_VFORK
    CLONE_PARENT CLONE_THREAD CLONE_NEWNS CLONE_SYSVSEM CLONE_SETTLS CLONE_PARENT_SETTID
    CLONE_CHILD_CLEARTID CLONE_DETACHED CLONE_UNTRACED CLONE_CHILD_SETTID CLONE_NEWCGROUP
    CLONE_NEWUTS CLONE_NEWIPC CLONE_NEWUSER CLONE_NEWPID CLONE_NEWNET CLONE_IO
    CLONE_CLEAR_SIGHAND CLONE_INTO_CGROUP CLONE_NEWTIME
};

/// `mount`.
const MOUNTS: &[Name] = names! {general:
    MS_RDONLY MS_NOSUID MS_NODEV MS_NOEXEC MS_REMOUNT MS_MANDLOCK MS_DIRSYNC MS_NOSYMFOLLOW
    MS_NOATIME MS_NODIRATIME MS_BIND MS_MOVE MS_REC MS_POSIXACL MS_UNBINDABLE MS_PRIVATE
    MS_SLAVE MS_SHARED MS_RELATIME MS_I_VERSION MS_STRICTATIME MS_LAZYTIME
};

/// `mmap`.
const MAPS: &[Name] = names! {general:
    MAP_32BIT MAP_ABOVE4G MAP_FIXED MAP_ANONYMOUS MAP_POPULATE MAP_NONBLOCK MAP_STACK
    MAP_HUGETLB MAP_SYNC MAP_FIXED_NOREPLACE MAP_GROWSDOWN MAP_DENYWRITE MAP_EXECUTABLE
    MAP_LOCKED MAP_NORESERVE MAP_SHARED MAP_PRIVATE MAP_SHARED_VALIDATE MAP_DROPPABLE
};

/// Kinds of networks.
const DOMAINS: &[Name] = names! {net:
    AF_UNSPEC AF_UNIX AF_INET AF_AX25 AF_IPX AF_APPLETALK AF_NETROM AF_BRIDGE AF_ATMPVC AF_X25
    AF_INET6 AF_ROSE AF_NETBEUI AF_SECURITY AF_KEY AF_NETLINK AF_PACKET AF_ASH AF_ECONET
    AF_ATMSVC AF_RDS AF_SNA AF_IRDA AF_PPPOX AF_WANPIPE AF_LLC AF_CAN AF_TIPC AF_BLUETOOTH
    AF_IUCV AF_RXRPC AF_ISDN AF_PHONET AF_IEEE802154 AF_CAIF AF_ALG AF_NFC AF_VSOCK AF_KCM
    AF_QIPCRTR AF_SMC AF_XDP AF_MCTP
};

/// Messages of sockets.
const MESSAGES: &[Name] = names! {net:
    MSG_DONTWAIT MSG_OOB MSG_PEEK MSG_DONTROUTE MSG_CTRUNC MSG_PROBE MSG_TRUNC MSG_EOR
    MSG_WAITALL MSG_CONFIRM MSG_ERRQUEUE MSG_NOSIGNAL MSG_MORE MSG_CMSG_CLOEXEC
};

/// `SOL_SOCKET`.
const SOCKET: &[Name] = names! {net:
    SO_DEBUG SO_REUSEADDR SO_TYPE SO_ERROR SO_DONTROUTE SO_BROADCAST SO_SNDBUF SO_RCVBUF
    SO_SNDBUFFORCE SO_RCVBUFFORCE SO_KEEPALIVE SO_OOBINLINE SO_NO_CHECK SO_PRIORITY SO_LINGER
    SO_BSDCOMPAT SO_REUSEPORT SO_PASSCRED SO_PEERCRED SO_RCVLOWAT SO_SNDLOWAT SO_RCVTIMEO_OLD
    SO_SNDTIMEO_OLD SO_BINDTODEVICE SO_ATTACH_FILTER SO_DETACH_FILTER SO_PEERNAME SO_ACCEPTCONN
    SO_PEERSEC SO_PASSSEC SO_MARK SO_PROTOCOL SO_DOMAIN SO_RXQ_OVFL SO_WIFI_STATUS SO_PEEK_OFF
    SO_NOFCS SO_LOCK_FILTER SO_SELECT_ERR_QUEUE SO_BUSY_POLL SO_MAX_PACING_RATE
    SO_BPF_EXTENSIONS SO_INCOMING_CPU SO_ATTACH_BPF SO_ATTACH_REUSEPORT_CBPF
    SO_ATTACH_REUSEPORT_EBPF SO_CNX_ADVICE SO_MEMINFO SO_INCOMING_NAPI_ID SO_COOKIE
    SO_PEERGROUPS SO_ZEROCOPY SO_TXTIME SO_BINDTOIFINDEX SO_TIMESTAMP_OLD SO_TIMESTAMPNS_OLD
    SO_TIMESTAMPING_OLD SO_TIMESTAMP_NEW SO_TIMESTAMPNS_NEW SO_TIMESTAMPING_NEW SO_RCVTIMEO_NEW
    SO_SNDTIMEO_NEW SO_DETACH_REUSEPORT_BPF SO_PREFER_BUSY_POLL SO_BUSY_POLL_BUDGET
    SO_NETNS_COOKIE SO_BUF_LOCK SO_RESERVE_MEM SO_TXREHASH SO_RCVMARK SO_PASSPIDFD SO_PEERPIDFD
    SO_DEVMEM_LINEAR SO_DEVMEM_DMABUF SO_DEVMEM_DONTNEED SO_RCVPRIORITY SO_PASSRIGHTS SO_INQ
};

/// `IPPROTO_IP`.
const IP: &[Name] = names! {net:
    IP_TOS IP_TTL IP_HDRINCL IP_OPTIONS IP_ROUTER_ALERT IP_RECVOPTS IP_RETOPTS IP_PKTINFO
    IP_PKTOPTIONS IP_MTU_DISCOVER IP_RECVERR IP_RECVTTL IP_RECVTOS IP_MTU IP_FREEBIND
    IP_IPSEC_POLICY IP_XFRM_POLICY IP_PASSSEC IP_TRANSPARENT IP_MINTTL IP_NODEFRAG IP_CHECKSUM
    IP_BIND_ADDRESS_NO_PORT IP_RECVFRAGSIZE IP_MULTICAST_IF IP_MULTICAST_TTL IP_MULTICAST_LOOP
    IP_ADD_MEMBERSHIP IP_DROP_MEMBERSHIP IP_ADD_SOURCE_MEMBERSHIP IP_DROP_SOURCE_MEMBERSHIP
    IP_MSFILTER IP_MULTICAST_ALL IP_UNICAST_IF IP_LOCAL_PORT_RANGE IP_PROTOCOL
};

/// `IPPROTO_IPV6`.
const IPV6: &[Name] = names! {net:
    IPV6_2292PKTOPTIONS IPV6_NEXTHOP IPV6_AUTHHDR IPV6_FLOWINFO IPV6_UNICAST_HOPS
    IPV6_MULTICAST_IF IPV6_MULTICAST_HOPS IPV6_MULTICAST_LOOP IPV6_ADD_MEMBERSHIP
    IPV6_DROP_MEMBERSHIP IPV6_ROUTER_ALERT IPV6_MTU_DISCOVER IPV6_MTU IPV6_RECVERR IPV6_V6ONLY
    IPV6_JOIN_ANYCAST IPV6_LEAVE_ANYCAST IPV6_MULTICAST_ALL IPV6_RECVERR_RFC4884
    IPV6_FLOWLABEL_MGR IPV6_FLOWINFO_SEND IPV6_IPSEC_POLICY IPV6_XFRM_POLICY IPV6_HDRINCL
    IPV6_PKTINFO IPV6_RECVHOPLIMIT IPV6_HOPLIMIT IPV6_RECVHOPOPTS IPV6_HOPOPTS IPV6_RTHDRDSTOPTS
    IPV6_RECVRTHDR IPV6_RTHDR IPV6_RECVDSTOPTS IPV6_DSTOPTS IPV6_RECVPATHMTU IPV6_PATHMTU
    IPV6_DONTFRAG IPV6_RECVTCLASS IPV6_TCLASS IPV6_AUTOFLOWLABEL IPV6_ADDR_PREFERENCES
    IPV6_MINHOPCOUNT IPV6_ORIGDSTADDR IPV6_TRANSPARENT IPV6_UNICAST_IF IPV6_RECVFRAGSIZE
    IPV6_FREEBIND
};

/// `IPPROTO_TCP`.
const TCP: &[Name] = names! {net:
    TCP_NODELAY TCP_MAXSEG TCP_CORK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_SYNCNT
    TCP_LINGER2 TCP_DEFER_ACCEPT TCP_WINDOW_CLAMP TCP_INFO TCP_QUICKACK TCP_CONGESTION
    TCP_MD5SIG TCP_THIN_LINEAR_TIMEOUTS TCP_THIN_DUPACK TCP_USER_TIMEOUT TCP_REPAIR
    TCP_QUEUE_SEQ TCP_FASTOPEN TCP_TIMESTAMP TCP_NOTSENT_LOWAT TCP_CC_INFO TCP_SAVE_SYN
    TCP_SAVED_SYN TCP_REPAIR_WINDOW TCP_FASTOPEN_CONNECT TCP_ULP TCP_MD5SIG_EXT TCP_FASTOPEN_KEY
    TCP_FASTOPEN_NO_COOKIE TCP_ZEROCOPY_RECEIVE TCP_INQ TCP_TX_DELAY TCP_IS_MPTCP TCP_RTO_MAX_MS
    TCP_RTO_MIN_US TCP_DELACK_MAX_US
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_names_or_are_numbers() {
        let texts = [
            ("prctl", "option", 35, "PR_SET_MM"),
            ("prctl", "option", 12345, "0x3039"),
            ("ioctl", "request", 0x5415, "TIOCMGET"),
            (
                "setsockopt",
                "optname",
                1 << 32 | 26,
                "SOL_SOCKET:SO_ATTACH_FILTER",
            ),
            ("getsockopt", "optname", 6 << 32 | 200, "IPPROTO_TCP:0xc8"),
            ("getsockopt", "optname", 77 << 32 | 2, "77:0x2"),
            (
                "clone",
                "flags",
                0x1000_0000 | 0x8000_0000,
                "CLONE_NEWUSER|CLONE_IO",
            ),
            (
                "clone",
                "flags",
                0x1000_0000 | 1 << 40,
                "CLONE_NEWUSER|0x10000000000",
            ),
            (
                "mount",
                "filesystemtype",
                u64::from_le_bytes(*b"btrfs\0\0\0"),
                "btrfs",
            ),
            ("timer_create", "clockid", 11, "CLOCK_TAI"),
            ("anything", "else", 7, "0x7"),
        ];
        for (call, argument, value, text) in texts {
            assert_eq!(value_text(call, argument, value), text);
        }
        assert_eq!(call_name(425), Some("io_uring_setup"));
        assert_eq!(call_name(511), None);
        assert!(is_known_request(0x5401) && !is_known_request(0x1234));
    }
}
