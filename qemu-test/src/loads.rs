//! Programs of the guest's Debian under loads that are the same each time, for `fidelity` and
//! `compare`.

use crate::scenarios::workload::SOURCE;
use anyhow::{Context, Result};

/// A program of the Debian root under a load that is the same each time.
pub struct Program {
    /// Its name on command lines and in tables.
    pub name: &'static str,
    /// The name of the process that does most of the work.
    pub main: &'static str,
    /// A shell command; DONE is what it prints last if all went well.
    work: &'static str,
    /// How much there is to do, the word AMOUNT, by [`Amount`].
    amount: [u32; 3],
}

/// Removes what all of [`PROGRAMS`] leave behind.
pub const CLEAN: &str = "rm -rf /tmp/db* /tmp/job.* /tmp/redis.* /tmp/bench.log";

/// How much a program is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// As little as is of use.
    Small,
    /// Some 100 million references.
    Middle,
    /// About twice as many, so that the program runs for a third of a second of the guest's time.
    Large,
}

/// Real programs: a database, a compiler, an interpreter, and a server with its client.
pub const PROGRAMS: [Program; 4] = [
    Program {
        name: "sqlite3",
        main: "sqlite3",
        work: "sqlite3 /tmp/db \"PRAGMA cache_size = 4000; \
            CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, name TEXT, more BLOB); \
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < AMOUNT) \
              INSERT INTO t SELECT i, (i * 7919) % 200003, printf('row %d', i), zeroblob(1200) FROM n; \
            CREATE INDEX tk ON t(k); \
            SELECT count(*), sum(k), max(name) FROM t; \
            SELECT count(*) FROM t WHERE k BETWEEN 1000 AND 20000; \
            SELECT id, name, length(more) FROM t WHERE k IN (11, 222, 3333, 44444) ORDER BY id; \
            PRAGMA integrity_check;\" && echo DONE",
        amount: [1000, 6000, 14_000],
    },
    Program {
        name: "gcc",
        main: "cc1",
        work: "cd /tmp && head -n AMOUNT /work/job.c > job.c && gcc -O1 -c job.c -o job.o && \
            echo DONE",
        amount: [8, SOURCE_LINES, SOURCE_LINES + 9 * FUNCTION_LINES],
    },
    Program {
        name: "python3",
        main: "python3",
        work: "PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 python3 /work/job.py AMOUNT && echo DONE",
        amount: [1000, 8000, 13_000],
    },
    Program {
        name: "redis",
        main: "redis-server",
        work: "cd /tmp && { redis-server --port 0 --unixsocket /tmp/redis.sock --save '' \
              --appendonly no --daemonize no > redis.log & }; \
            until redis-cli -s /tmp/redis.sock ping > /dev/null 2>&1; do sleep 0.1; done; \
            redis-benchmark -s /tmp/redis.sock -q -c 8 -n AMOUNT -r 20000 -d 400 \
              -t set,get,incr,lpush,rpop,sadd,hset,zadd,mset > bench.log && \
            redis-cli -s /tmp/redis.sock dbsize && \
            redis-cli -s /tmp/redis.sock shutdown nosave; wait && echo DONE",
        amount: [30, 100, 260],
    },
];

impl Amount {
    /// That of `fidelity`.
    pub fn of_fidelity(quick: bool) -> Self {
        if quick { Amount::Small } else { Amount::Middle }
    }

    /// That of `compare`, whose observers need some intervals.
    pub fn of_compare(quick: bool) -> Self {
        if quick { Amount::Middle } else { Amount::Large }
    }
}

impl Program {
    /// Its command with its amount.
    pub fn script(&self, amount: Amount) -> String {
        let amount = self.amount[amount as usize].to_string();
        self.work.replace("AMOUNT", &amount)
    }
}

const PYTHON: &str = "
import collections, json, re, sys

amount = int(sys.argv[1])
words = [f'word{i * 7919 % 5003}' for i in range(amount)]
count = collections.Counter(words)
index = collections.defaultdict(list)
for i, w in enumerate(words):
    index[w].append(i)
text = json.dumps({w: index[w] for w in sorted(index)})
assert json.loads(text) == index
found = re.findall(r'word(\\d)(\\d+)', ' '.join(words[:amount // 4]))
rows = sorted(((c, w) for w, c in count.items()), key=lambda r: (-r[0], r[1]))
size = 20 + amount // 300
matrix = [[(i * j) % 97 for j in range(size)] for i in range(size)]
turned = list(map(list, zip(*matrix)))
total = sum(sum(a * b for a, b in zip(r, c)) for r, c in zip(matrix, turned))
print(len(text), len(found), rows[0], total)
";

/// Lines of [`SOURCE`], and of its function.
const SOURCE_LINES: u32 = 32;
const FUNCTION_LINES: u32 = 16;
/// How often the function is in what gcc compiles, under other names, behind all of [`SOURCE`].
const FUNCTIONS: usize = 40;

/// What gcc compiles: as much of it as [`Amount`] says.
fn source() -> String {
    let main = SOURCE.find("int main").unwrap_or(0);
    let named = |i| SOURCE[main..].replacen("main", &format!("main{i}"), 1);
    let functions: String = (0..FUNCTIONS).map(named).collect();
    format!("{SOURCE}{functions}")
}

/// The files that the programs need in /work.
pub fn files() -> Vec<(String, Vec<u8>)> {
    vec![
        ("job.c".into(), source().into()),
        ("job.py".into(), PYTHON.into()),
    ]
}

/// One of [`PROGRAMS`] as a shell command, with so much to do.
///
/// # Errors
///
/// If there is no program of this name.
pub fn script(name: &str, amount: u32) -> Result<String> {
    let program = PROGRAMS.iter().find(|p| p.name == name);
    let work = program.with_context(|| format!("no program {name}"))?.work;
    Ok(work.replace("AMOUNT", &amount.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gcc_gets_whole_functions() {
        assert_eq!(SOURCE.lines().count(), SOURCE_LINES as usize);
        let function = SOURCE.lines().skip_while(|l| !l.starts_with("int main"));
        assert_eq!(function.count(), FUNCTION_LINES as usize);
        let source = source();
        assert!(source.starts_with(SOURCE) && source.contains("int main39(int argc"));
        let gcc = PROGRAMS.iter().find(|p| p.name == "gcc").unwrap();
        for amount in gcc.amount {
            let last = source.lines().nth(amount as usize - 1).unwrap();
            assert!(last == "}" || last.starts_with("#include"), "{last}");
        }
    }
}
