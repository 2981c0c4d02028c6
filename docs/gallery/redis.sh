#!/bin/sh
# Made redis.vmt in a guest. The kernel's options: random.trust_cpu=on
set -e
mount -t tmpfs tmp /tmp
cd /tmp && { redis-server --port 0 --unixsocket /tmp/redis.sock --save '' --appendonly no --daemonize no > redis.log & }; until redis-cli -s /tmp/redis.sock ping > /dev/null 2>&1; do sleep 0.1; done; redis-benchmark -s /tmp/redis.sock -q -c 8 -n 100 -r 20000 -d 400 -t set,get,incr,lpush,rpop,sadd,hset,zadd,mset > bench.log && redis-cli -s /tmp/redis.sock dbsize && redis-cli -s /tmp/redis.sock shutdown nosave; wait && echo DONE
rm -rf /tmp/db* /tmp/job.* /tmp/redis.* /tmp/bench.log
activator run --pack=zstd -o /tmp/redis.vmt -- sh -c 'cd /tmp && { redis-server --port 0 --unixsocket /tmp/redis.sock --save '\'''\'' --appendonly no --daemonize no > redis.log & }; until redis-cli -s /tmp/redis.sock ping > /dev/null 2>&1; do sleep 0.1; done; redis-benchmark -s /tmp/redis.sock -q -c 8 -n 100 -r 20000 -d 400 -t set,get,incr,lpush,rpop,sadd,hset,zadd,mset > bench.log && redis-cli -s /tmp/redis.sock dbsize && redis-cli -s /tmp/redis.sock shutdown nosave; wait && echo DONE'
