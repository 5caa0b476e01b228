//! `/proc/sysvipc`.

use fs::pseudofs::Text;
use nucleus::PAGE_SIZE;

use super::{
    ids::{Ids, Object},
    message::QUEUES,
    permission::Permission,
    segment::SEGMENTS,
    semaphore::SETS,
};

/// Calls `line` for each object.
fn each<T: Object>(ids: &Ids<T>, mut line: impl FnMut(&T)) {
    let (_, highest) = ids.population();
    for object in (0..=highest).filter_map(|index| ids.at(index)) {
        line(&object);
    }
}

fn owners(p: &Permission) -> alloc::string::String {
    alloc::format!(
        "{:5} {:5} {:5} {:5}",
        p.uid,
        p.gid,
        p.creator_uid,
        p.creator_gid
    )
}

/// `/proc/sysvipc/shm`.
pub fn segments(out: &mut Text) {
    out.push(
        b"       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  \
          cgid      atime      dtime      ctime                   rss                  swap\n",
    );
    each(&SEGMENTS, |segment| {
        let s = segment.status();
        writeln!(
            out,
            "{:10} {:10}  {:4o} {:21} {:5} {:5}  {:5} {} {:10} {:10} {:10} {:21} {:21}",
            s.permission.key,
            s.id,
            s.permission.mode,
            s.size,
            s.creator,
            s.last,
            s.attachments,
            owners(&s.permission),
            s.attached,
            s.detached,
            s.changed,
            s.resident_pages * PAGE_SIZE,
            s.swapped_pages * PAGE_SIZE,
        );
    });
}

/// `/proc/sysvipc/sem`.
pub fn sets(out: &mut Text) {
    out.push(
        b"       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n",
    );
    each(&SETS, |set| {
        let s = set.status();
        writeln!(
            out,
            "{:10} {:10}  {:4o} {:10} {} {:10} {:10}",
            s.permission.key,
            s.id,
            s.permission.mode,
            s.count,
            owners(&s.permission),
            s.operated,
            s.changed,
        );
    });
}

/// `/proc/sysvipc/msg`.
pub fn queues(out: &mut Text) {
    out.push(
        b"       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid \
          \x20    stime      rtime      ctime\n",
    );
    each(&QUEUES, |queue| {
        let s = queue.status();
        writeln!(
            out,
            "{:10} {:10}  {:4o}  {:10} {:10} {:5} {:5} {} {:10} {:10} {:10}",
            s.permission.key,
            s.id,
            s.permission.mode,
            s.bytes,
            s.messages,
            s.last_sender,
            s.last_receiver,
            owners(&s.permission),
            s.sent,
            s.received,
            s.changed,
        );
    });
}
