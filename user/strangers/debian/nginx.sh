# nginx with two workers, asked by curl.
mkdir -p www/sub logs tmp; echo 'hello from nginx' >www/index.html; seq 1 200000 >www/big; echo '<p>' >www/sub/page.html; chmod 755 . www www/sub
cat >conf <<C
user www-data;
worker_processes 2;
pid $PWD/pid;
error_log $PWD/logs/error.log warn;
events { worker_connections 64; }
http {
    access_log $PWD/logs/access.log;
    sendfile on; tcp_nopush on; gzip on; gzip_types text/plain; gzip_min_length 100; default_type text/plain;
    types { text/html html; }
    client_body_temp_path $PWD/tmp/body; proxy_temp_path $PWD/tmp/proxy; fastcgi_temp_path $PWD/tmp/f; uwsgi_temp_path $PWD/tmp/u; scgi_temp_path $PWD/tmp/s;
    server {
        listen 127.0.0.1:8080; listen unix:$PWD/nginx.sock; root $PWD/www; autoindex on;
        location /proxy/ { proxy_pass http://127.0.0.1:8081/; }
        location /echo { return 200 "you asked \$request_method \$uri\n"; }
    }
    server { listen 127.0.0.1:8081; listen [::1]:8081; location / { return 200 "upstream\n"; } }
}
C
nginx -t -c "$PWD/conf" 2>&1 | grep -o 'test is successful'
nginx -c "$PWD/conf" || { cat logs/error.log; exit 1; }
get() { curl -s --max-time 20 "$@"; }
for _ in $(seq 50); do get -o /dev/null http://127.0.0.1:8080/ && break; sleep 0.1; done
get http://127.0.0.1:8080/; get -I http://127.0.0.1:8080/ | tr -d '\r' | grep -E '^HTTP|^Content-(Type|Length)'
get http://127.0.0.1:8080/big | cmp - www/big && echo big file; get --compressed http://127.0.0.1:8080/big | md5sum | cmp - <(md5sum <www/big) && echo compressed
get -r 100-199 http://127.0.0.1:8080/big | md5sum; get -o /dev/null -w '%{http_code}\n' http://127.0.0.1:8080/none; get http://127.0.0.1:8080/sub/ | grep -c page.html
get http://127.0.0.1:8080/proxy/x; get -X POST -d data http://127.0.0.1:8080/echo; get -g 'http://[::1]:8081/'; get --unix-socket nginx.sock http://localhost/echo
get http://localhost:8080/echo; get 'http://127.0.0.1:8080/echo?[1-30]' | sort | uniq -c | sed 's/^ *//'
for i in $(seq 8); do get http://127.0.0.1:8080/big -o "got$i" & done; wait; for i in $(seq 8); do cmp "got$i" www/big; done; echo eight at once
ps -o user=,args= -C nginx | sort | uniq -c | sed 's/  */ /g;s|-c /.*||'
nginx -c "$PWD/conf" -s reload 2>/dev/null; sleep 0.5; get http://127.0.0.1:8080/echo; echo rotated >>logs/access.log; nginx -c "$PWD/conf" -s quit 2>/dev/null; for _ in $(seq 100); do [ -e pid ] || break; sleep 0.1; done; [ -e pid ] || echo stopped
get http://127.0.0.1:8080/ || echo "refused: $?"; wc -l <logs/access.log; cut -d: -f4- logs/error.log
