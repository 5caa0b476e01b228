//! Debian's sqlite3 on a root that is a disk: a database larger than the guest's memory, a machine that is killed while it changes, and what is
//! there at the next boot; and Debian's own tools for mounts on such a root.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Report;
use super::boot::{Bench, Plan, finish};
use super::ext2::{check, killed_after};
use super::roots;
use crate::disk::Disk;
use crate::guest::Ending;
use crate::qemu::{Boot, Machine};
use crate::root::ext2;
use crate::run::Console;

/// What the root has besides what Debian calls essential.
const PACKAGES: &[&str] = &["bash", "coreutils", "mount", "sqlite3", "util-linux"];

/// How large a run is.
struct Size {
    /// The guest's, in MiB.
    memory: u64,
    /// Bytes of the image beside the files of the root.
    room: u64,
    /// The CPUs of the machines that it is run on.
    cpus: &'static [u32],
    patience: Duration,
}

const SHORT: Size = Size {
    memory: 64,
    room: 320 << 20,
    cpus: &[2],
    patience: Duration::from_secs(240),
};
const LONG: Size = Size {
    memory: 256,
    room: 1 << 30,
    cpus: &[1, 2, 4],
    patience: Duration::from_secs(1500),
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
pub fn folder() -> anyhow::Result<PathBuf> {
    roots::folder("disk", PACKAGES)
}

/// A new image of Debian's root.
fn image(bench: &Bench, size: &Size) -> Result<PathBuf, String> {
    let make = || {
        let folder = folder()?;
        let image = bench.path("debian.ext2");
        if image.exists() {
            std::fs::remove_file(&image)?;
        }
        let files = crate::root::Root::folder(&folder)?.bytes();
        ext2::make(Some(&folder), &image, Some(files + size.room))?;
        Ok(image)
    };
    make().map_err(|error: anyhow::Error| format!("{error:#}"))
}

/// A machine of so many CPUs and MiB whose root is the image, which runs a script of bash's.
fn machine(
    bench: &Bench,
    image: &Path,
    (cpus, memory): (u32, u64),
    script: &str,
    more: &[Disk],
) -> Result<Machine, String> {
    let command = ["/bin/bash", "-c", script];
    let memory = format!("{memory}M");
    let mut plan = Plan::new(image, &command);
    plan.cpus = cpus;
    plan.memory = &memory;
    plan.fast = true;
    let command: Vec<String> = command.iter().map(ToString::to_string).collect();
    let line = Console::pipes().command_line(&["root=/dev/vda".into()], &command);
    let mut machine = bench.machine(&plan, &line);
    if let Boot::Kernel { root, .. } = &mut machine.boot {
        *root = None;
    }
    machine.extra.extend(Disk::at(image)?.qemu(0));
    for (disk, number) in more.iter().zip(1..) {
        machine.extra.extend(disk.qemu(number));
    }
    Ok(machine)
}

/// What a script printed that ended well.
fn output(bench: &Bench, machine: &Machine, patience: Duration) -> Result<String, String> {
    let finished = finish(machine, b"", patience, |_| ());
    let finished = finished.map_err(|error| format!("{error:#}"))?;
    match finished.ending {
        Ending::Status(0) => Ok(finished.text()),
        _ => Err(finished.why(&bench.fast)),
    }
}

/// Another disk is mounted, filled, and taken off; the root says of itself what it is.
const MOUNTS: &str = "
mount | grep -c '^/dev/vda on / type ext2 (rw'
df --output=fstype,target / | tail -n 1
mount -t ext2 /dev/vdb /mnt && findmnt -n -o SOURCE,FSTYPE /mnt
cp /bin/bash /mnt/ && mkdir -p /mnt/kept && date > /mnt/kept/date && sync -f /mnt && cmp /bin/bash /mnt/bash && echo same
test $(df --output=used /mnt | tail -n 1) -gt 1000 && echo used
exec 3< /mnt/bash; umount /mnt 2>/dev/null || echo busy; exec 3<&-
umount /mnt && ls /mnt | wc -l; mount -o ro /dev/vdb /mnt && cmp /bin/bash /mnt/bash && echo there
touch /mnt/no 2>/dev/null || echo refused; mount -o remount,rw /mnt && touch /mnt/yes && sync && echo kept >> /root/kept; cat /root/kept";

fn mounts(bench: &Bench, image: &Path) -> Result<(), String> {
    let second = bench.path("second.ext2");
    let empty = bench.fresh_folder("empty");
    let empty = empty.map_err(|error| format!("{error:#}"))?;
    let made = ext2::make(Some(&empty), &second, Some(16 << 20));
    made.map_err(|error| format!("{error:#}"))?;
    let mut wanted =
        String::from("1\next2 /\n/dev/vdb ext2\nsame\nused\nbusy\n0\nthere\nrefused\n");
    // Twice: what the first boot did on its root is there.
    for _ in 0..2 {
        let disks = [Disk::at(&second)?];
        let machine = machine(bench, image, (2, 128), MOUNTS, &disks)?;
        let printed = output(bench, &machine, Duration::from_secs(120))?;
        wanted.push_str("kept\n");
        if printed != wanted {
            return Err(format!("{printed:?} in place of {wanted:?}"));
        }
        check(image, "-fn", 0)?;
        check(&second, "-fn", 0)?;
    }
    Ok(())
}

/// Makes a database of so many bytes, then changes it for ever, and says each time when it is done. With less than `extra`, sqlite does not sync the
/// directory from which it removes a journal, and the last change may be taken back.
fn build(bytes: u64) -> String {
    format!(
        "
cd /root; sql() {{ sqlite3 -bail -cmd 'pragma synchronous=extra' base \"$@\"; }}
sql 'create table item(id integer primary key, mark integer, body blob); create index by_mark on item(mark);
create table change(number integer primary key)'
while [ $(stat -c %s base) -lt {bytes} ]; do
  sql 'insert into item(mark, body) select random(), zeroblob(6000) from generate_series(1, 1000)' || exit 1
done
echo built
n=0; while true; do n=$((n + 1))
  sql \"begin; update item set mark = random() where id % 97 = $n % 97; delete from item where id % 1009 = $n;
insert into change values($n); commit\" && echo change $n || exit 1
done"
    )
}

fn database(bench: &Bench, image: &Path, size: &Size, cpus: u32) -> Result<(), String> {
    let bytes = 2 * (size.memory << 20);
    let builds = machine(bench, image, (cpus, size.memory), &build(bytes), &[])?;
    let last = format!("change {CHANGES}\n");
    killed_after(&builds, last.as_bytes(), size.patience)?;
    check(image, "-fy", 3)?;
    let look = format!(
        "cd /root; test $(stat -c %s base) -ge {bytes} && echo large
sqlite3 base 'pragma integrity_check; select count(*) from change where number <= {CHANGES}'"
    );
    let looks = machine(bench, image, (cpus, size.memory), &look, &[])?;
    let found = output(bench, &looks, size.patience)?;
    check(image, "-fn", 0)?;
    // What the machine had said before it was killed is there.
    let wanted = format!("large\nok\n{CHANGES}\n");
    match found == wanted {
        true => Ok(()),
        false => Err(format!("{found:?} in place of {wanted:?}")),
    }
}
