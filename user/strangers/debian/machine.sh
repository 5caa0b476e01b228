# util-linux, and what /proc and /sys tell of the machine and of processes, as far as it is the same on another kernel.
short() { sed 's/  */ /g; s/ $//'; }
lscpu | grep -E '^ *(Architecture|CPU op|Byte Order|CPU\(s\)|On-line|Vendor|Model name|CPU family|Model:|Stepping|Thread|Core|Socket|L[123]|NUMA)' | short
nproc; getconf _NPROCESSORS_ONLN; getconf _NPROCESSORS_CONF; taskset -c 1 nproc; taskset -pc $$ | sed 's/.*: //'
python3 -c 'import os; print(os.cpu_count(), sorted(os.sched_getaffinity(0)), os.sysconf("SC_PAGE_SIZE"))'
cd /sys/devices/system; grep -H . cpu/{online,possible,present,offline} node/{online,possible} node/node0/{cpulist,cpumap,distance}
grep -H . cpu/cpu1/topology/{core_id,physical_package_id,core_siblings_list,thread_siblings_list,package_cpus} cpu/cpu1/cache/index0/{level,type,size,coherency_line_size,ways_of_associativity,number_of_sets,shared_cpu_list}
cd /sys/class/net/lo; grep -H . address addr_len mtu flags operstate type ifindex carrier; cat /sys/class/tty/console/dev /sys/class/tty/ttyS0/dev; cd /tmp/work
stat -f -c %T /proc /sys /dev/pts /tmp; stat -c '%s %a %F' /sys/devices/system/cpu/online /proc/version /sys/class
mkdir a b c; mount -t tmpfs -o size=1m,mode=700,nosuid,noexec test a; findmnt -n -o TARGET,SOURCE,FSTYPE,VFS-OPTIONS a | short; df --output=fstype,size,target a | short
mkdir a/inner; mount -t tmpfs deep a/inner; echo hello >a/inner/file; cp /bin/true a/true; chmod 755 a/true; a/true; echo $?
mount --bind a b; ls b/inner; mount -o remount,ro,bind b; touch b/new; touch a/new && ls b; umount b; mount --rbind a b; cat b/inner/file; umount b; mount --move a c; ls c c/inner
findmnt -n -R -o TARGET,FSTYPE c | short; mountpoint c; mountpoint b; umount -R b; umount -l c; ls c | wc -l; mount -t unheard x c; umount c; mount -t tmpfs -o size=nonsense x c
findmnt -n -o FSTYPE,VFS-OPTIONS /proc | cut -d, -f1; grep -c ' / / ' /proc/self/mountinfo; unshare -h | head -n 2 | tail -n 1
echo text >file; exec 5<file; read -r -n 2 <&5; grep -E 'pos|flags' /proc/$$/fdinfo/5; exec 5<&-; flock file sh -c 'lslocks -n -r -o TYPE,MODE,M,START,END' | sort -u
cat /proc/self/{cgroup,uid_map,setgroups,oom_score_adj,timerslack_ns,personality}; cut -f1 /proc/self/status | grep -v -E '^(Spec|x86_|untag|Ngid|VmP[TP]|VmCharged|HugetlbPages)' | tr -d '\n'; echo
grep -o '^[A-Z][A-Za-z_]*:' /proc/self/smaps | grep -v ProtectionKey | sort -u | tr -d '\n'; echo; tail -n +2 /proc/self/smaps_rollup | cut -d: -f1 | tr '\n' ' '; head -n 1 /proc/self/smaps_rollup | grep -o '.rollup.'
cut -d: -f1 /proc/self/io | tr '\n' ' '; wc -w </proc/self/stat; wc -w </proc/self/statm; wc -l </proc/self/limits; readlink /proc/self/ns/user | tr -d '0-9'
python3 - <<'END'
import ctypes, os
text = ctypes.create_string_buffer(b"what stands there")
with open("/proc/self/mem", "r+b", 0) as memory:
    memory.seek(ctypes.addressof(text)); print(memory.read(4)); memory.seek(ctypes.addressof(text)); memory.write(b"THAT")
print(text.value)
with open("/proc/self/pagemap", "rb", 0) as pages:
    pages.seek(ctypes.addressof(text) // 4096 * 8); print(pages.read(8)[7] >> 7)
child = os.fork() or os._exit(int(open("/proc/self/oom_score_adj", "w").write("500") != 3))
print(os.waitpid(child, 0)[1])
END
sysctl kernel.ostype kernel.ngroups_max kernel.cap_last_cap kernel.pid_max kernel.overflowuid fs.nr_open fs.pipe-max-size net.core.somaxconn vm.max_map_count vm.overcommit_memory
sysctl -w kernel.hostname=other; hostname; sysctl -w vm.max_map_count=70000; cat /proc/sys/vm/max_map_count; sysctl -w kernel.pid_max=5; sysctl -w kernel.ostype=x 2>&1 | head -n 1; hostname causeway
setpriv --reuid 1000 --regid 1000 --clear-groups sh -c 'cat /proc/$PPID/environ; cat /proc/$PPID/maps; ls /proc/$PPID/fd; echo x >/proc/sys/kernel/hostname; mount -t tmpfs x /mnt; dmesg --clear; cat /proc/$PPID/io; readlink /proc/$PPID/exe' 2>&1 | tr -d 0-9
prlimit --nofile --output RESOURCE,UNITS --noheadings | short; prlimit --nofile=100:200 sh -c 'ulimit -n; ulimit -Hn'; chrt -p $$ | sed 's/.*: //' | sed 's/.*'"'s"' //'; ionice; nice -n 5 nice
swapon -s; cat /proc/swaps /proc/modules /proc/diskstats | wc -l; lsblk 2>&1 | wc -l; cut -c5- /proc/filesystems | grep -c tmpfs; head -n 1 /proc/stat | wc -w; awk '{ print NF }' /proc/loadavg /proc/uptime; dmesg | wc -l | awk '{ print ($1 > 0) }'
fallocate -l 64k big; stat -c %s,%b big; fallocate -p -o 4096 -l 8192 big; stat -c %s,%b big; fallocate -n -l 100k big; stat -c %s big; fallocate -c -o 0 -l 4096 big 2>&1 | sed 's/.*: //'; head -c 2 big | od -An -c; truncate -s 1 big; stat -c %s,%b big
python3 -c 'import os; a = os.open("big", os.O_RDWR); os.pwrite(a, b"0123456789", 0); print(os.copy_file_range(a, a, 4, 0, 6), os.pread(a, 20, 0)); print(os.posix_fadvise(a, 0, 0, os.POSIX_FADV_DONTNEED))'
