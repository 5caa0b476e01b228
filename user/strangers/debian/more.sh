# Other languages, terminals inside terminals, remote shells and small servers.
PATH=$PATH:/usr/games; export TERM=vt100
ruby -e 'puts [1,2,3].map{|x|x*2}.inspect; r,w=IO.pipe; fork{w.puts "child"; exit 3}; w.close; puts r.read; Process.wait; p $?.exitstatus; Thread.new{puts "thread"}.join; require "socket"; s=TCPServer.new("127.0.0.1",0); Thread.new{c=s.accept;c.puts "hi";c.close}; puts TCPSocket.new("127.0.0.1",s.addr[1]).read'
lua5.4 -e 'print(6*7, os.time()>0, io.popen("echo popen"):read("a"))'
php -r 'echo array_sum(range(1,100)),"\n"; echo shell_exec("echo sh"); $p=stream_socket_pair(1,1,0); fwrite($p[0],"x\n"); echo fgets($p[1]); $pid=pcntl_fork(); if(!$pid) exit(4); pcntl_wait($st); echo pcntl_wexitstatus($st),"\n";'
echo 'puts [expr 6*7]; puts [exec echo hi]; set f [open "|sort" r+]; puts $f "b\na"; close $f w; puts [read $f]' >x.tcl; tclsh8.6 x.tcl
node -e 'const s=require("net").createServer(c=>c.end("hello")).listen(0,"127.0.0.1",()=>{require("net").connect(s.address().port,"127.0.0.1").on("data",d=>{console.log(d.toString());s.close()})})'
node -e 'require("child_process").exec("echo child",(e,o)=>console.log(o)); process.on("exit",c=>console.log("exit",c))'
node -e 'new (require("worker_threads").Worker)("require(\"worker_threads\").parentPort.postMessage(5)",{eval:true}).on("message",m=>console.log("worker",m))'
node -e 'require("fs").writeFileSync("f","x"); const w=require("fs").watch("f",()=>{console.log("watched");w.close()}); setTimeout(()=>require("fs").appendFileSync("f","y"),50)'
dpkg -l bash | grep -c '^ii'; dpkg --audit; apt-cache policy bash | grep -c Installed; dpkg -S /bin/bash; dpkg -V bash
dash -c 'echo dash; trap "echo bye" EXIT'; zsh -c 'print -l {1..3}; zmodload zsh/net/tcp && echo tcp'
find /etc -name '*.conf' | cpio -o 2>/dev/null | cpio -t 2>/dev/null | wc -l; zip -qr a.zip /etc/default; unzip -q a.zip -d u; diff -r u/etc/default /etc/default && echo zip
zstd -q -T2 /bin/bash -o b.zst; zstd -dc b.zst | cmp - /bin/bash && echo zstd; jq -n '[1,2]|add'; rsync -a /etc/default/ r/; rsync -n -ai /etc/default/ r/ | wc -l
ping -c 2 -i 0.2 127.0.0.1 | grep packets | cut -d, -f1-3; ping -c 1 ::1 | grep packets | cut -d, -f1-3; ip -o link | cut -d' ' -f1-3; ip -o addr show lo | sed 's/  */ /g' | cut -d' ' -f1-4
lsof -p $$ -a -d txt | awk 'NR > 1 { print $1, $4, $5, $NF }'; pstree -A $$ | head -n 1 | cut -c1-4
touch f; setfattr -n trusted.a -v b f; getfattr -d -m trusted f; capsh --has-p=cap_sys_admin && echo capable; setpriv --reuid=33 --regid=33 --clear-groups id
mke2fs -q -F img 8M; e2fsck -fn img >/dev/null 2>&1; echo $?; debugfs -w -R 'write /etc/default/useradd copy' img >/dev/null 2>&1; debugfs -R 'cat copy' img 2>/dev/null | cmp - /etc/default/useradd && echo written
listens() { until grep -q ":$1 .* 0A " /proc/net/tcp; do sleep 0.05; done; }
nc -l 127.0.0.1 5555 >got & nc=$!; listens 15B3; echo via nc | nc -q 1 127.0.0.1 5555; wait $nc; cat got
socat TCP-LISTEN:5556,bind=127.0.0.1,reuseaddr,fork EXEC:cat & p=$!; listens 15B4; echo via socat | socat - TCP:127.0.0.1:5556; socat -u EXEC:'echo pty',pty,setsid,ctty - | tr -d '\r'; kill $p; wait $p 2>/dev/null
expect -c 'spawn -noecho cat; send "hello\r"; expect "hello\r\nhello\r\n" {puts MATCHED}; close; wait' | tr -d '\r'
tmux -L x -f /dev/null new-session -d -x 80 -y 24 'echo in tmux; stty size; exec sleep 50'; until tmux -L x capture-pane -p | grep -q 80; do sleep 0.1; done; tmux -L x capture-pane -p | head -n 2; tmux -L x split-window; tmux -L x list-panes | wc -l; tmux -L x kill-server
screen -dmS s sh -c 'echo in screen >screened; exec sleep 50'; until [ -s screened ]; do sleep 0.1; done; cat screened; screen -ls | grep -c '\.s'; screen -S s -X quit
vim.tiny -e -s -c 'normal ihello' -c 'w v.txt' -c q; cat v.txt
ssh-keygen -q -t ed25519 -N '' -f key; mkdir -p ~/.ssh /run/sshd; cp key.pub ~/.ssh/authorized_keys; chmod 700 ~ ~/.ssh; ssh-keygen -A >/dev/null
/usr/sbin/sshd -p 2222 -o ListenAddress=127.0.0.1 -o UsePAM=no; listens 08AE
o='-q -i key -o StrictHostKeyChecking=no'; ssh $o -p 2222 127.0.0.1 'echo over ssh; id -un; tty'; ssh $o -tt -p 2222 127.0.0.1 'tty | tr -d 0-9; stty size; exit 5' | tr -d '\r'; echo "${PIPESTATUS[0]}"
scp $o -P 2222 /etc/default/useradd 127.0.0.1:$PWD/copied && cmp copied /etc/default/useradd && echo scp; rsync -e "ssh $o -p 2222" -a 127.0.0.1:/etc/default/ r3/ && diff -r r3 /etc/default && echo rsync
ssh $o -f -N -L 2223:127.0.0.1:2222 -p 2222 127.0.0.1; ssh $o -p 2223 127.0.0.1 'echo through a tunnel'; pkill -x ssh; kill "$(cat /run/sshd.pid)"; rm -rf ~/.ssh
