//! System V shared memory.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{PAGE_SIZE, Prot, VirtAddr};
use vm::{Backing, MapError, MapRequest, Place};

use super::{
    Call, FlagSet, SystemCall, call, choice, flag_set,
    ipc::{self, Controlled},
    memory,
};
use crate::ipc::sysv::{
    Caller, IPC_CREAT, IPC_EXCL, IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT,
    ids::Object,
    limits::{SHMALL, SHMMAX, SHMMNI},
    permission::{EXECUTE, READ, WRITE},
    segment::{self, SEGMENTS, SHM_NORESERVE, Segment},
};

/// `shmget`: of huge pages.
const SHM_HUGETLB: u32 = 0o4000;
/// `shmat`: for reading only.
const SHM_RDONLY: u32 = 0o10000;
/// `shmat`: the address is rounded down to a page.
const SHM_RND: u32 = 0o20000;
/// `shmat`: replaces the mappings there.
const SHM_REMAP: u32 = 0o40000;
/// `shmat`: code may run in it.
const SHM_EXEC: u32 = 0o100000;

const SHM_LOCK: u32 = 11;
const SHM_UNLOCK: u32 = 12;
const SHM_STAT: u32 = 13;
const SHM_INFO: u32 = 14;
const SHM_STAT_ANY: u32 = 15;

const GET_FLAGS: FlagSet = flag_set!(
    "shmflg",
    [IPC_CREAT, IPC_EXCL, SHM_HUGETLB, SHM_NORESERVE, 0o777],
    ignored
);
const AT_FLAGS: FlagSet = flag_set!(
    "shmflg",
    [SHM_RDONLY, SHM_RND, SHM_REMAP, SHM_EXEC],
    ignored
);
const COMMANDS: FlagSet = choice!(
    "cmd",
    [
        IPC_RMID,
        IPC_SET,
        IPC_STAT,
        IPC_INFO,
        SHM_LOCK,
        SHM_UNLOCK,
        SHM_STAT,
        SHM_INFO,
        SHM_STAT_ANY
    ],
    EINVAL
);

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_shmget, shmget)
        .flags(&[&GET_FLAGS])
        .note("there are no huge pages: SHM_HUGETLB gets ENOMEM"),
    call!(__NR_shmat, shmat).flags(&[&AT_FLAGS]),
    call!(__NR_shmdt, shmdt),
    call!(__NR_shmctl, shmctl).flags(&[&COMMANDS]),
];

fn shmget(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(2, &GET_FLAGS)?;
    if flags & SHM_HUGETLB != 0 {
        return Err(Errno::ENOMEM);
    }
    call.takes_memory()?;
    let id = segment::get(call.int(0), call.size(1), flags, ipc::caller(call))?;
    Ok(id as usize)
}

fn shmat(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(2, &AT_FLAGS)?;
    let segment = SEGMENTS.get(call.int(0))?;
    let place = place(call.address(1), flags)?;
    let writes = flags & SHM_RDONLY == 0;
    let runs = flags & SHM_EXEC != 0;
    let mut wanted = READ;
    let mut prot = Prot::READ;
    if writes {
        wanted |= WRITE;
        prot |= Prot::WRITE;
    }
    if runs {
        wanted |= EXECUTE;
        prot |= Prot::EXEC;
    }
    segment.permission().check(call.credentials(), wanted)?;
    segment.hold()?;
    let mapped = map(call, &segment, place, prot, writes);
    segment.release();
    mapped.map(|at| at.0)
}

fn map(
    call: &Call<'_>,
    segment: &Segment,
    place: Place,
    prot: Prot,
    writes: bool,
) -> Result<VirtAddr> {
    let pager = segment.pager().ok_or(Errno::EIDRM)?;
    let mut max_prot = Prot::all();
    max_prot.set(Prot::WRITE, writes);
    let request = MapRequest {
        place,
        max_prot,
        backing: Backing::Object { pager, offset: 0 },
        shared: true,
        label: LABEL,
        ..MapRequest::zero(segment.size, prot)
    };
    if matches!(place, Place::Any) && memory::sees_less(call) {
        return memory::map_low(call, request).map(VirtAddr);
    }
    call.space()
        .map()
        .map(request)
        .map_err(|error| match error {
            MapError::NoMemory => Errno::ENOMEM,
            _ => Errno::EINVAL,
        })
}

/// By which `shmdt` knows the mappings that `shmat` made.
const LABEL: &str = "[sysv]";

fn place(at: VirtAddr, flags: u32) -> Result<Place> {
    let rounded = match flags & SHM_RND {
        0 if !at.is_page_aligned() => return Err(Errno::EINVAL),
        0 => at,
        _ => VirtAddr(at.0 & !(PAGE_SIZE - 1)),
    };
    let replaces = flags & SHM_REMAP != 0;
    match (at.0, rounded.0) {
        (0, _) | (_, 0) if replaces => Err(Errno::EINVAL),
        (0, _) => Ok(Place::Any),
        _ if replaces => Ok(Place::Fixed(rounded)),
        _ => Ok(Place::FixedNoReplace(rounded)),
    }
}

fn shmdt(call: &mut Call<'_>) -> Result<usize> {
    let at = call.address(0);
    if !at.is_page_aligned() {
        return Err(Errno::EINVAL);
    }
    match call.space().map().unmap_object(at, LABEL) {
        Ok(()) => Ok(0),
        Err(MapError::NoMemory) => Err(Errno::ENOMEM),
        Err(_) => Err(Errno::EINVAL),
    }
}

/// Bytes of `struct shmid64_ds`.
const STATUS_WORDS: usize = 14;

fn shmctl(call: &mut Call<'_>) -> Result<usize> {
    let id = call.int(0);
    let command = call.int(1) as u32;
    if id < 0 || call.int(1) < 0 {
        return Err(Errno::EINVAL);
    }
    call.choice(1, &COMMANDS)?;
    let caller = ipc::caller(call);
    match command {
        IPC_INFO => {
            let (_, highest) = SEGMENTS.population();
            // shmmax, shmmin, shmmni, shmseg, shmall, four unused.
            let most = SHMMNI.get();
            let info = [SHMMAX.get(), 1, most, most, SHMALL.get(), 0, 0, 0, 0];
            call.write(2, &info)?;
            Ok(highest)
        }
        SHM_INFO => {
            let (used, highest) = SEGMENTS.population();
            let (pages, resident, swapped) = segment::totals();
            // used_ids, shm_tot, shm_rss, shm_swp, two unused.
            let info = [used, pages, resident, swapped, 0, 0].map(|it| it as u64);
            call.write(2, &info)?;
            Ok(highest)
        }
        IPC_SET | IPC_RMID | IPC_STAT | SHM_STAT | SHM_STAT_ANY => {
            ipc::control(call, &SEGMENTS, command, SHM_STAT_ANY, 2)
        }
        _ => {
            let limit = call.process().limits().soft(raw::RLIMIT_MEMLOCK);
            SEGMENTS
                .get(id)?
                .set_locked(caller, command == SHM_LOCK, limit)?;
            Ok(0)
        }
    }
}

impl Controlled<STATUS_WORDS> for Segment {
    fn encode(&self) -> [u64; STATUS_WORDS] {
        let s = self.status();
        let users = u64::from(s.creator) | u64::from(s.last) << 32;
        let [attached, detached, changed] = [s.attached, s.detached, s.changed].map(|t| t as u64);
        let own = [
            s.size as u64,
            attached,
            detached,
            changed,
            users,
            s.attachments as u64,
        ];
        ipc::encode(&s.permission, s.id, &own)
    }

    fn change(&self, caller: Caller<'_>, words: &[u64; STATUS_WORDS]) -> Result<()> {
        self.set(caller, ipc::change(words))
    }
}
