#!/bin/sh
# Made python3.vmt in a guest. The kernel's options: random.trust_cpu=on
set -e
mount -t tmpfs tmp /tmp
PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 python3 /work/job.py 8000 && echo DONE
rm -rf /tmp/db* /tmp/job.* /tmp/redis.* /tmp/bench.log
activator run --pack=zstd -o /tmp/python3.vmt -- sh -c 'PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 python3 /work/job.py 8000 && echo DONE'
