#!/bin/sh
# Made gcc.vmt in a guest. The kernel's options: random.trust_cpu=on
set -e
mount -t tmpfs tmp /tmp
cd /tmp && head -n 32 /work/job.c > job.c && gcc -O1 -c job.c -o job.o && echo DONE
rm -rf /tmp/db* /tmp/job.* /tmp/redis.* /tmp/bench.log
activator run --pack=zstd -o /tmp/gcc.vmt -- sh -c 'cd /tmp && head -n 32 /work/job.c > job.c && gcc -O1 -c job.c -o job.o && echo DONE'
