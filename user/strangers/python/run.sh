# Runs Python's own tests: for each module that is named, one line a test, `MODULE TEST OUTCOME`, and one with
# the module's time. What the tests print is shown where one failed and DETAILS is set.
#
# usage: [DETAILS=1] bash run.sh MODULE...      in a root with Debian's libpython3.11-testsuite
here=$(dirname "${BASH_SOURCE[0]}")
cd /tmp || exit
export LC_ALL=C.UTF-8
for module in "$@"; do
    begin=$EPOCHREALTIME
    timeout -k 5 1500 python3 -m test --timeout=1200 --junit-xml "/tmp/$module.xml" "$module" </dev/null >"/tmp/$module.log" 2>&1
    status=$?
    end=$EPOCHREALTIME
    echo "time $module $(((${end/./} - ${begin/./}) / 1000)) ms, status $status"
    python3 "$here/report.py" "$module" "/tmp/$module.xml"
    if [ -n "${DETAILS:-}" ] && [ $status != 0 ]; then
        grep -E -A30 '^(ERROR|FAIL):' "/tmp/$module.log"
        tail -n 20 "/tmp/$module.log"
    fi
    rm -f "/tmp/$module.log" "/tmp/$module.xml"
done
