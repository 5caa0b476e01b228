# procps and gdb: what they say of processes and of the machine, as far as it does not depend on the kernel's figures.
sleep 100 & id=$!
ps -o pid=,ppid=,stat=,comm=,args= -p $id | awk -v me=$$ -v id=$id '{ print ($1 == id), ($2 == me), substr($3, 1, 1), $4, $5, $6 }'
ps -e -o comm= | grep -c '^sleep$'; ps -p 1 -o pid= | tr -d ' '; ps aux | head -n 1; ps -eo user,pid,vsz,rss,tty,stat,start,time,nlwp,ni,pri,psr | head -n 1 | sed 's/  */ /g'
pgrep -x sleep | wc -l; pgrep -f 'sleep 100' | grep -c "^$id$"; pidof sleep | wc -w; kill -STOP $id; sleep 0.1; ps -o stat= -p $id | cut -c1; kill -CONT $id
pkill -x sleep; wait $id; echo $?; free | awk 'NR == 1 { print NF } NR == 2 { print ($2 > 100000), $1 }'; uptime | grep -c 'load average'; vmstat | awk 'NR == 2 { print NF }'; w -h | wc -l
top -b -n 1 | grep -c 'top -' ; top -b -n 1 | awk '$1 == "PID" { print NF }'; pmap $$ | tail -n 1 | grep -c total; pmap -x $$ | grep -c bash | awk '{ print ($1 > 0) }'; sysctl -n kernel.ostype; sysctl -n kernel.hostname | wc -l; pwdx $$ | grep -c "$PWD"; slabtop -V | wc -l
gdb --version | head -n 1 | cut -c1-7; gdb -batch -ex 'print 6 * 7' -ex 'info line main' 2>&1 | head -n 1; strace -V | head -n 1 | cut -c1-6; file /bin/bash | grep -o 'ELF 64-bit LSB pie executable'; bc <<<'2^100'; less -F /etc/hostname | wc -l
