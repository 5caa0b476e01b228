# bash's job control, and line editing by the kernel, driven through a terminal.
python3 /strangers/jobs.py
# A terminal made by util-linux's script.
script -qec 'tty | sed "s/[0-9]*$//"; stty -a | head -n 1 | cut -d";" -f1; echo in a terminal; exit 3' /dev/null | tr -d '\r'; echo "script: ${PIPESTATUS[0]}"
