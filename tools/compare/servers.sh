# Servers on loopback: redis asked by redis-benchmark, nginx by ab and curl. The root needs
# redis-server redis-tools nginx-light curl apache2-utils.
cd /tmp
ulimit -n 4096
redis-server --port 6379 --bind 127.0.0.1 --save "" --daemonize no > /tmp/redis.log 2>&1 &
for i in $(seq 100); do redis-cli ping 2>/dev/null | grep -q PONG && break; sleep 0.1; done
b() { redis-benchmark -q "$@" > /tmp/b.out 2>&1 || echo failed "$@"; }
b -n 1000 -c 50 -t set
measure redis-set-50 b -n 6000 -c 50 -t set
measure redis-get-50 b -n 6000 -c 50 -t get
measure redis-set-50-pipelined-16 b -n 60000 -c 50 -P 16 -t set
measure redis-set-1 b -n 2000 -c 1 -t set
measure redis-set-1000 b -n 6000 -c 1000 -t set
redis-cli shutdown nosave
mkdir -p www ng
head -c 4096 /dev/zero > www/small
head -c 67108864 /dev/zero > www/big
cat > ng.conf <<X
worker_processes 2; pid /tmp/ng/pid; error_log /tmp/ng/err;
events { worker_connections 1024; }
http { access_log off; sendfile on; tcp_nopush on; client_body_temp_path /tmp/ng/b; proxy_temp_path /tmp/ng/p; fastcgi_temp_path /tmp/ng/f; uwsgi_temp_path /tmp/ng/u; scgi_temp_path /tmp/ng/s;
server { listen 127.0.0.1:8080; root /tmp/www; } }
X
nginx -c /tmp/ng.conf
a() { ab -q "$@" > /tmp/a.out 2>&1; grep -E 'Complete|Failed' /tmp/a.out; }
a -n 100 -c 10 http://127.0.0.1:8080/small
measure nginx-new-connection-10 a -n 1500 -c 10 http://127.0.0.1:8080/small
measure nginx-kept-connection-10 a -k -n 4000 -c 10 http://127.0.0.1:8080/small
measure nginx-kept-connection-100 a -k -n 4000 -c 100 http://127.0.0.1:8080/small
measure nginx-64MiB a -k -n 10 -c 2 http://127.0.0.1:8080/big
measure curl-64MiB curl -sS -o /dev/null http://127.0.0.1:8080/big
nginx -c /tmp/ng.conf -s quit 2>/dev/null
