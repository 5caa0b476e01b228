# Functions, here-documents, expansions, loops, redirections.
greet() { local name=$1; echo "hello, $name ($#)"; return 3; }
greet world x; echo "returned $?"
fact() { if [ "$1" -le 1 ]; then echo 1; else echo $(($1 * $(fact $(($1 - 1))))); fi; }
fact 12
cat <<EOF
expanded: $((6 * 7)) $(echo inner)
EOF
cat <<'EOF'
literal: $((6 * 7)) $(echo inner)
EOF
cat <<-EOF
	tabs are removed
	EOF
for word in a 'b c' "d"; do echo "[$word]"; done
n=0; while [ $n -lt 5 ]; do n=$((n + 1)); [ $n = 3 ] && continue; echo "n=$n"; done
until [ $n = 0 ]; do n=$((n - 1)); done; echo "down to $n"
case foobar in f*r) echo pattern;; *) echo none;; esac
text=/path/to/file.tar.gz
echo "${text##*/} ${text%%.*} ${text%.gz} ${#text} ${undefined:-default} ${text:+set}"
set -- one two three; echo "$# $2 $*"; shift; echo "$1 $@"
echo to-stderr >&2
{ echo grouped; echo output; } > group; cat group
( cd /; pwd ); pwd | sed 's,.*/,,'
echo appended >> group; wc -l < group
exec 3> third; echo "by descriptor" >&3; exec 3>&-; cat third
exec 4< third; read line <&4; echo "read: $line"; exec 4<&-
echo "a:b:c" | { IFS=: read x y z; echo "$z $y $x"; }
printf '%s\n' 'one two' three | while read first rest; do echo "$first|$rest"; done
echo $(seq 1 10 | while read n; do [ $((n % 2)) = 0 ] && echo $n; done)
eval 'echo evaluated $((1 << 10))'
false || echo "or"; true && echo "and"; ! false && echo "not"
if echo x | grep -q y; then echo yes; else echo no; fi
(exit 9); echo $?
sh -c 'echo "args: $0 $1"; exit 4' zero one; echo $?
sh -c 'kill -15 $$'; echo $?
alias say='echo said'; unalias say
type cd | head -c 7; echo
trap 'echo leaving' EXIT
set -e; false_in_condition() { false; }; if false_in_condition; then :; fi
echo end
