# What applets learn about the system: only what must be the same everywhere is printed.
ps | awk 'NR == 1 {print $1}'; ps -o pid,ppid,comm | awk -v me=$$ '$1 == me {print $3}'
sh -c 'sleep 5' & sleep 0.2; ps -o pid,stat,args | awk -v child=$! '$1 == child {print substr($2, 1, 1), $3}'; kill $!
top -b -n 1 | awk '/^Mem:/ {print "memory"} /^CPU:/ {print "cpu"} /PID/ {print "header"} / ps | sh |system.sh/ {found = 1} END {print found}'
free | awk 'NR == 2 {print ($2 > 30000), ($3 > 0), ($4 > 0)}'; uptime | grep -c 'load average'; nproc | awk '{print ($1 > 0)}'
id -u; id -un; whoami; uname -s; uname -m; tty < /dev/null; env | grep '^PATH' | wc -l; arch
pidof none; echo $?; kill -l | head -n 1; kill -0 $$; echo $?; ulimit -n 64; ulimit -n
date -d @86400 -u '+%F %T'; cal 2 2024 | tail -n +2; usleep 1000; time -f '%x' true 2>&1; which sh | sed 's,.*/,,'
head -c 1000 /dev/urandom | wc -c; cat /dev/null | wc -c; echo x > /dev/null; echo $?; ls /proc/self/fd | wc -l | awk '{print ($1 >= 3)}'
tr '\0' ' ' < /proc/$$/cmdline | sed 's, .*/, ,'; echo; readlink /proc/self/exe | sed 's,.*/,,'; grep -c '^Name:' /proc/self/status
grep -c processor /proc/cpuinfo | awk '{print ($1 > 0)}'; awk '/MemTotal/ {print $3}' /proc/meminfo; ls -d /proc/[0-9]* | wc -l | awk '{print ($1 > 1)}'
printf '%s\n' 'old text' 'more old' > edited; ed edited <<EOF 2>/dev/null
1,\$s/old/new/
w
q
EOF
cat edited; time true 2>&1 | wc -l; sleep 0.01 && echo slept; od -An -tx1 -N 8 /dev/zero
setsid sh -c 'ps -o pid,sid 2>/dev/null > /dev/null; echo session'; nohup echo kept 2>/dev/null; env -i X=1 env; xargs -n 1 echo < /etc/hostname | wc -l
