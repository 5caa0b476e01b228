# redis-server as Debian ships it, spoken to over loopback and over a Unix-domain socket, saved and loaded again.
mkdir -p data; redis-server --version | grep -o 'Redis server'
start() {
    redis-server --port 7777 --bind 127.0.0.1 --dir "$PWD/data" --unixsocket "$PWD/redis.sock" --logfile "$PWD/log" --daemonize yes --pidfile "$PWD/pid" "$@"
    for _ in $(seq 100); do redis-cli -p 7777 ping 2>/dev/null | grep -q PONG && return; sleep 0.1; done
    echo "no answer"; cat log
}
start --save '' --appendonly yes
cli() { redis-cli -p 7777 "$@"; }
cli set key value; cli get key; cli incr n; cli incrby n 41; cli lpush list a b c; cli lrange list 0 -1; cli hset h f 1 g 2; cli hgetall h; cli zadd z 1 one 2 two; cli zrange z 0 -1 withscores
redis-cli -s redis.sock get key; cli setex short 1 x; sleep 1.2; cli exists short
cli eval 'local s = 0 for i = 1, 1000 do s = s + i end return s' 0; printf 'set a 1\nset b 2\nmget a b\n' | cli
timeout 3 redis-cli -p 7777 subscribe news & until [ "$(cli pubsub numsub news | tail -n 1)" = 1 ]; do sleep 0.1; done; cli publish news hello >/dev/null; wait
seq 1 2000 | sed 's/.*/set k& v&/' | redis-cli -p 7777 --pipe | tail -n 1; cli dbsize
redis-benchmark -p 7777 -q -n 2000 -c 20 -P 4 -t ping,set,get,incr,lpush,mset 2>&1 | tr '\r' '\n' | grep 'requests per second' | sed 's/:.*//' | sort
redis-benchmark -s redis.sock -q -n 1000 -c 5 -t set,get 2>&1 | tr '\r' '\n' | grep 'requests per second' | sed 's/:.*//' | sort
cli config get maxclients | tail -n 1; cli bgrewriteaof; for _ in $(seq 50); do [ "$(cli info persistence | grep -c 'aof_rewrite_in_progress:0')" = 1 ] && break; sleep 0.1; done
cli save; kill "$(cat pid)"; while [ -e pid ]; do sleep 0.05; done
start --save '' --appendonly yes; cli get key; cli get k1999; cli dbsize; cli shutdown nosave; for _ in $(seq 50); do [ -e pid ] || break; sleep 0.1; done; ls data | head -n 1; grep -c 'Redis is now ready to exit' log
