#!/bin/sh
# Made sqlite3.vmt in a guest. The kernel's options: random.trust_cpu=on
set -e
mount -t tmpfs tmp /tmp
sqlite3 /tmp/db "PRAGMA cache_size = 4000; CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, name TEXT, more BLOB); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 6000) INSERT INTO t SELECT i, (i * 7919) % 200003, printf('row %d', i), zeroblob(1200) FROM n; CREATE INDEX tk ON t(k); SELECT count(*), sum(k), max(name) FROM t; SELECT count(*) FROM t WHERE k BETWEEN 1000 AND 20000; SELECT id, name, length(more) FROM t WHERE k IN (11, 222, 3333, 44444) ORDER BY id; PRAGMA integrity_check;" && echo DONE
rm -rf /tmp/db* /tmp/job.* /tmp/redis.* /tmp/bench.log
activator run --pack=zstd -o /tmp/sqlite3.vmt -- sh -c 'sqlite3 /tmp/db "PRAGMA cache_size = 4000; CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, name TEXT, more BLOB); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 6000) INSERT INTO t SELECT i, (i * 7919) % 200003, printf('\''row %d'\'', i), zeroblob(1200) FROM n; CREATE INDEX tk ON t(k); SELECT count(*), sum(k), max(name) FROM t; SELECT count(*) FROM t WHERE k BETWEEN 1000 AND 20000; SELECT id, name, length(more) FROM t WHERE k IN (11, 222, 3333, 44444) ORDER BY id; PRAGMA integrity_check;" && echo DONE'
