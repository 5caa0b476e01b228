//! Debian's sqlite3 on a root that is a disk: a database larger than the guest's memory, a machine
//! that is killed while the database changes, and its state at the next boot; and Debian's own
//! tools for mounts on such a root.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::Report;
use super::boot::{Bench, Plan};
use super::ext2::check;
use super::roots;
use crate::disk::Disk;
use crate::root::ext2;

/// The root's packages besides Debian's essential ones.
const PACKAGES: &[&str] = &["bash", "coreutils", "mount", "sqlite3", "util-linux"];

/// How large a run is.
struct Size {
    /// The guest's, in MiB.
    memory: u64,
    /// Bytes of the image beside the files of the root.
    room: u64,
    /// The CPUs of the machines that it is run on.
    cpus: &'static [u32],
    /// In seconds.
    timeout: u64,
}

const SHORT: Size = Size {
    memory: 64,
    room: 320 << 20,
    cpus: &[2],
    timeout: 240,
};
const LONG: Size = Size {
    memory: 256,
    room: 1 << 30,
    cpus: &[1, 2, 4],
    timeout: 1500,
};

/// Transactions that are seen before the machine is killed.
const CHANGES: u32 = 3;

/// Runs them; with `long`, in guests of usual size.
pub fn run(bench: &Bench, report: &mut Report, long: bool) {
    let size = if long { LONG } else { SHORT };
    let name = "ext2: mount, df, sync and umount of Debian's";
    if report.wants(name) {
        report.run(name, || mounts(bench, &image(bench, &size)?));
    }
    for &cpus in size.cpus {
        let name = format!(
            "ext2: a database of sqlite3's, twice {} MiB, killed and looked at, {cpus} CPUs",
            size.memory
        );
        if report.wants(&name) {
            report.run(&name, || {
                database(bench, &image(bench, &size)?, &size, cpus)
            });
        }
    }
}

/// The folder with Debian's root, made if need be.
///
/// # Errors
/// When it can't be made.
pub fn folder() -> Result<PathBuf> {
    roots::folder("disk", PACKAGES)
}

/// A new image of Debian's root.
fn image(bench: &Bench, size: &Size) -> Result<PathBuf> {
    let folder = folder()?;
    let image = bench.path("debian.ext2");
    if image.exists() {
        std::fs::remove_file(&image)?;
    }
    let files = crate::root::Root::folder(&folder)?.bytes();
    ext2::make(Some(&folder), &image, Some(files + size.room))?;
    Ok(image)
}

/// A guest with so many MiB whose root is the image, which runs a script of bash's.
fn script<'a>(bench: &'a Bench, image: &Path, memory: u64, script: &str) -> Result<Plan<'a>> {
    let guest = bench.bash(script).memory(&format!("{memory}M")).fast();
    Ok(guest.root_disk(Disk::at(image)?))
}

/// Mounts, fills and unmounts another disk, and shows what the root says of itself.
const MOUNTS: &str = "
mount | grep -c '^/dev/vda on / type ext2 (rw'
df --output=fstype,target / | tail -n 1
mount -t ext2 /dev/vdb /mnt && findmnt -n -o SOURCE,FSTYPE /mnt
cp /bin/bash /mnt/ && mkdir -p /mnt/kept && date > /mnt/kept/date && sync -f /mnt && cmp /bin/bash /mnt/bash && echo same
test $(df --output=used /mnt | tail -n 1) -gt 1000 && echo used
exec 3< /mnt/bash; umount /mnt 2>/dev/null || echo busy; exec 3<&-
umount /mnt && ls /mnt | wc -l; mount -o ro /dev/vdb /mnt && cmp /bin/bash /mnt/bash && echo there
touch /mnt/no 2>/dev/null || echo refused; mount -o remount,rw /mnt && touch /mnt/yes && sync && echo kept >> /root/kept; cat /root/kept";

fn mounts(bench: &Bench, image: &Path) -> Result<()> {
    let second = bench.path("second.ext2");
    ext2::make(Some(&bench.fresh_folder("empty")?), &second, Some(16 << 20))?;
    let mut wanted =
        String::from("1\next2 /\n/dev/vdb ext2\nsame\nused\nbusy\n0\nthere\nrefused\n");
    // Twice: the second boot finds what the first one wrote to its root.
    for _ in 0..2 {
        let guest = script(bench, image, 128, MOUNTS)?.cpus(2).timeout(120);
        let printed = guest.disk(Disk::at(&second)?).output()?;
        wanted.push_str("kept\n");
        ensure!(printed == wanted, "{printed:?} in place of {wanted:?}");
        check(image, "-fn", 0)?;
        check(&second, "-fn", 0)?;
    }
    Ok(())
}

/// Makes a database of so many bytes, then changes it for ever, and says each time when it is done.
/// With less than `extra`, sqlite does not sync the directory from which it removes a journal, and
/// the last change may be taken back. The flusher is at work all the time from then on: what it
/// writes must not be worse than nothing.
fn build(bytes: u64) -> String {
    format!(
        "
cd /root; sql() {{ sqlite3 -bail -cmd 'pragma synchronous=extra' base \"$@\"; }}
sql 'create table item(id integer primary key, mark integer, body blob); create index by_mark on item(mark);
create table change(number integer primary key)'
while [ $(stat -c %s base) -lt {bytes} ]; do
  sql 'insert into item(mark, body) select random(), zeroblob(6000) from generate_series(1, 1000)' || exit 1
done
echo 50 > /proc/sys/vm/dirty_expire_centisecs; echo 10 > /proc/sys/vm/dirty_writeback_centisecs
echo built
n=0; while true; do n=$((n + 1))
  sql \"begin; update item set mark = random() where id % 97 = $n % 97; delete from item where id % 1009 = $n;
insert into change values($n); commit\" && echo change $n || exit 1
done"
    )
}

fn database(bench: &Bench, image: &Path, size: &Size, cpus: u32) -> Result<()> {
    let guest = |line: &str| -> Result<Plan> {
        let guest = script(bench, image, size.memory, line)?;
        Ok(guest.cpus(cpus).timeout(size.timeout))
    };
    let bytes = 2 * (size.memory << 20);
    guest(&build(bytes))?.killed_after(&format!("change {CHANGES}\n"))?;
    check(image, "-fy", 3)?;
    let look = format!(
        "cd /root; test $(stat -c %s base) -ge {bytes} && echo large
sqlite3 base 'pragma integrity_check; select count(*) from change where number <= {CHANGES}'"
    );
    let found = guest(&look)?.output()?;
    check(image, "-fn", 0)?;
    // The changes that the guest had reported before it was killed.
    let wanted = format!("large\nok\n{CHANGES}\n");
    ensure!(found == wanted, "{found:?} in place of {wanted:?}");
    Ok(())
}
