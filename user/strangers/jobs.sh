# Background jobs, wait, traps and signals.
(sleep 0.3; echo first; exit 3) & one=$!
(sleep 0.1; echo second; exit 4) & two=$!
wait $two; echo "two: $?"
wait $one; echo "one: $?"
wait; echo "none left: $?"
trap 'echo got USR1' USR1
kill -USR1 $$; echo after
trap 'echo got TERM; kill $child; exit 5' TERM
(
    trap 'echo inner TERM; exit 6' TERM
    while :; do sleep 0.05; done
) & inner=$!
sleep 0.3; kill $inner; wait $inner; echo "inner: $?"
sleep 100 & child=$!
trap - USR1
# Killed while the shell waits: after a kill of its own, ash may take the child's status at once, and
# then does not name the signal.
sleep 1000 & long=$!; (sleep 0.2; kill -KILL $long) & wait $long; echo "killed: $?"
(trap '' INT; kill -INT $(sh -c 'echo $PPID'); echo survived INT)
yes | head -n 100000 | tail -n 1
echo "pipe: $?"
mkfifo pipe; (echo through the fifo > pipe) & cat pipe; wait $!
i=0; while [ $i -lt 30 ]; do (exit $i) & i=$((i + 1)); done; 
wait $!; echo "last: $?"
timeout 0.2 sleep 10; echo "timeout: $?"
(sleep 0.2; kill -TERM $$) &
wait $child
echo not reached
