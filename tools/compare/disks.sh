# Files on a disk, and swap space (the first disk has an ext2 file system, the second one is empty): for
#   truncate -s 256M files.img; mke2fs -q -t ext2 -b 4096 files.img; truncate -s 64M empty.img
#   causeway root debian DIR bash coreutils mount procps python3 sqlite3 tar util-linux
#   causeway compare-linux --pairs 1 --mem 1G --root DIR --disk files.img --disk empty.img --swap 128M --script tools/compare/disks.sh

# What stands in /proc/swaps, but for what is in use just now.
swaps() { awk '{ print $1, $2, $3, $5 < 0 ? "by itself" : $5 }' /proc/swaps; }

mkdir -p /mnt/files
measure mount mount -t ext2 /dev/vda /mnt/files
cd /mnt/files || exit
stat -f -c '%T %S %b %f %a %c %d' .
df -B 1024 . | awk 'NR == 2 { print $1, $2, $3, $4, $6 }'
ls -a

tar -cf /tmp/tree.tar -C /usr/lib/python3.11 json email xml
tree() { tar -xf /tmp/tree.tar && sync; }
measure untar-sync tree
rm /tmp/tree.tar
find . -type f -print0 | sort -z | xargs -0 md5sum | md5sum
find . -printf '%p %y %m %n %s\n' | grep -v lost+found | sort | md5sum
sums() { find . -type f -print0 | sort -z | xargs -0 cat | md5sum; }
cd /
measure remount eval 'umount /mnt/files && mount -t ext2 /dev/vda /mnt/files'
cd /mnt/files || exit
measure md5sum-from-disk sums
measure md5sum-again sums
stat -f -c '%f %d' .

# Sparse files, links, names.
truncate -s 100M sparse
printf x | dd of=sparse bs=1 seek=50000000 conv=notrunc status=none
stat -c '%s %b %B' sparse
ln sparse hard; ln -s sparse soft; mv sparse moved
stat -c '%n %h %F' hard moved soft
cat soft 2>&1
rm moved hard soft
measure write-fsync-32M dd if=/dev/zero of=large bs=1M count=32 conv=fsync status=none
dd if=/dev/zero of=full bs=1M status=none 2>&1 | head -n 1
rm full large
sync
stat -f -c '%f %d' .

rows() {
    sqlite3 base.db <<'SQL'
pragma journal_mode;
create table t(id integer primary key, a integer, b text);
begin;
with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
insert into t select i, (i * 7919) % 100003, 'row number ' || i from n;
commit;
create index on_a on t(a);
delete from t where a % 3 = 0;
vacuum;
pragma integrity_check;
select count(*), sum(a) from t;
SQL
}
measure sqlite3-20k rows
stat -c %s base.db
python3 - <<'PYTHON'
import mmap, os
with open("mapped", "w+b") as file:
    file.truncate(1 << 20)
    with mmap.mmap(file.fileno(), 0) as memory:
        for at in range(0, 1 << 20, 4096):
            memory[at:at + 8] = at.to_bytes(8, "little")
        memory.flush()
    os.fsync(file.fileno())
    file.seek(0)
    bytes = file.read()
    print(all(bytes[at:at + 8] == at.to_bytes(8, "little") for at in range(0, 1 << 20, 4096)))
    print(os.posix_fallocate(file.fileno(), 0, 2 << 20), os.fstat(file.fileno()).st_size)
PYTHON
cd /
measure umount umount /mnt/files
mount -t ext2 -o ro /dev/vda /mnt/files
touch /mnt/files/none 2>&1
grep ' /mnt/files ' /proc/mounts | cut -d ' ' -f 1-3
umount /mnt/files
mount -t ext2 /dev/vdb /mnt/files 2>&1 | head -n 1

swaps
mkswap -U 01234567-89ab-cdef-0123-456789abcdef -L space /dev/vdb
swapon -p 5 /dev/vdb
swapon --show=NAME,TYPE,SIZE,PRIO --noheadings | awk '{ print $1, $2, $3, $4 < 0 ? "by itself" : $4 }'
swaps
free | awk '/Swap/ { print $2 }'
swapon /dev/vdb 2>&1
python3 - <<'PYTHON'
import mmap
memory = mmap.mmap(-1, 16 << 20)
for at in range(0, len(memory), 4096):
    memory[at:at + 8] = at.to_bytes(8, "little")
memory.madvise(21)  # MADV_PAGEOUT
def used():
    return sum(int(line.split()[3]) for line in open("/proc/swaps").readlines()[1:])
print("in swap space:", used() >= 15 << 10)
print(all(memory[at:at + 8] == at.to_bytes(8, "little") for at in range(0, len(memory), 4096)))
PYTHON
measure swapoff swapoff /dev/vdb
swaps
swapoff /dev/vdb 2>&1
swapoff -a
swaps
vmstat | awk 'NR == 2 { print } NR == 3 { print $3 }'
