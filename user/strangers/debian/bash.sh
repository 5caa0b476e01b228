# What bash offers beyond a POSIX shell, and how it uses the kernel for it.
set -u
declare -A colours=([red]=1 [green]=2)
colours[blue]=3
for name in "${!colours[@]}"; do echo "$name ${colours[$name]}"; done | sort
numbers=({1..5} 10)
echo "${numbers[@]:1:3}" "${#numbers[@]}" "${numbers[-1]}"
echo $((2 ** 40 % 1000003)) $((16#ff + 8#17))

# Process substitution, here-strings, a coprocess.
diff <(printf '%s\n' a b c) <(printf '%s\n' a x c)
paste -d+ <(seq 3) <(seq 4 6) <(seq 7 9)
read -r first rest <<<"one two three"; echo "$first|$rest"
coproc REVERSE { while read -r line; do rev <<<"$line"; done; }
echo desserts >&"${REVERSE[1]}"; read -r answer <&"${REVERSE[0]}"; echo "$answer"
exec {REVERSE[1]}>&-; wait "$REVERSE_PID"; echo "coprocess: $?"

# Pipelines and statuses.
set -o pipefail
true | false | true; echo "${PIPESTATUS[*]} $?"
set +o pipefail
( exit 7 ); echo $?
bash -c 'kill -TERM $$'; echo $?
{ bash -c 'kill -KILL $$'; } 2>/dev/null; echo $?
timeout 0.2 sleep 5; echo $?

# Jobs.
sleep 0.2 & one=$!
( exit 3 ) & two=$!
wait "$two"; echo "two: $?"
wait "$one"; echo "one: $?"
for i in 1 2 3; do ( exit "$i" ) & done
total=0; while wait -n; [ $? -ne 127 ] && total=$((total + 1)) && [ $total -lt 3 ]; do :; done; echo "waited for $total"
set -m
sleep 30 & kill -STOP %1; sleep 0.1; jobs | sed 's/  */ /g'; kill -CONT %1; kill %1; wait %1; echo "killed: $?"
set +m

# Traps.
trap 'echo usr1 caught' USR1
kill -USR1 $$; sleep 0.05
( trap 'echo leaving' EXIT; trap 'echo term; exit 4' TERM; kill -TERM $BASHPID; sleep 1 ); echo $?
trap - USR1

# Descriptors, reading with a time limit, restricted sizes.
exec {fd}<>/tmp/work-fd; echo line >&"$fd"; exec {fd}>&-; cat /tmp/work-fd; rm /tmp/work-fd
read -r -t 0.1 nothing < <(sleep 1); [ $? -gt 128 ] && echo "timed out"
mapfile -t lines < <(seq 5); echo "${#lines[@]} ${lines[3]}"
( ulimit -f 1; head -c 5000 /dev/zero >/tmp/limited ) 2>/dev/null; echo "$? $(stat -c %s /tmp/limited)"; rm -f /tmp/limited
( ulimit -n 20; exec 2>/dev/null; for i in {1..40}; do exec {x}</dev/null || break; done ); echo "limit: $?"

# Matching, words, functions, recursion.
[[ "causeway-12.5" =~ ^([a-z]+)-([0-9]+)\.([0-9]+)$ ]] && echo "${BASH_REMATCH[@]:1}"
shopt -s extglob globstar nullglob
mkdir -p tree/{a,b}/{x,y}; touch tree/{a,b}/{x,y}/{1,2}.txt
printf '%s\n' tree/**/*.txt | wc -l; echo tree/@(a|b)/!(y)/1.txt
fib() { (( $1 < 2 )) && echo "$1" || echo $(( $(fib $(($1 - 1))) + $(fib $(($1 - 2))) )); }
fib 10
printf '%05d|%-6s|%x|%q\n' 42 ab 255 'a b$c'
printf -v stamp '%(%Y-%m-%d)T' 0; echo "$stamp"
echo "${PATH//:/ }" | wc -w; s=Hello; echo "${s^^} ${s,,} ${s:1:3} ${s/l/L} ${#s}"
rm -r tree
