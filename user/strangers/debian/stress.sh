# stress-ng checks what it gets ($1 seconds for each group): each line says whether a group had no complaint.
seconds=${1:-5}
run() {
    local name=$1; shift
    if timeout $((seconds * 10 + 60)) stress-ng --verify --no-rand-seed --oom-avoid -t "${seconds}s" --temp-path "$PWD" "$@" >log 2>&1 && ! grep -qE 'fail:|error:|verify.*fail' log; then echo "$name: passed"; else echo "$name: failed"; cat log; fi
}
run cpu --cpu 2 --cpu-method all
run processes --fork 2 --vfork 1 --exec 1 --daemon 1 --wait 1 --zombie 1 --zombie-max 50
run threads --pthread 2 --pthread-max 32 --clone 1 --clone-max 16 --mutex 2
run futex --futex 2 --sem 2 --sem-sysv 1 --flock 2 --lockf 1
run pipe --pipe 2 --fifo 1 --vm-splice 1 --splice 1 --tee 1
run sockets --sock 2 --sockpair 2 --udp 1 --sockfd 1 --sock-port 8100 --udp-port 8200 --sockfd-port 8300
run epoll --epoll 2 --epoll-port 8400 --poll 2 --eventfd 1
run signals --kill 2 --sigq 1 --sigpending 1 --sigsuspend 1 --sigsegv 1 --sigfd 1 --sigfpe 1 --sigchld 1
run timers --timer 1 --timerfd 1 --itimer 1 --clock 1 --nanosleep 1 --alarm 1
run mmap --mmap 2 --mmap-bytes 32M --mremap 1 --mremap-bytes 8M --vm 2 --vm-bytes 32M --mmapfork 1 --madvise 1 --mprotect 1 --msync 1 --msync-bytes 4M --brk 1 --stack 1
run shm --shm 1 --shm-bytes 4M --shm-sysv 1 --shm-sysv-bytes 4M --msg 1 --mq 1
run files --hdd 1 --hdd-bytes 16M --dir 1 --dentry 1 --link 1 --symlink 1 --rename 1 --chmod 1 --fallocate 1 --fallocate-bytes 8M --utime 1 --seek 1 --seek-size 8M --getdent 1 --access 1
run scheduler --switch 2 --yield 2 --affinity 1 --nice 1 --context 1 --get 1 --set 1 --resources 1
