//! The main job's programs: sqlite3 with 200,000 rows, and gcc.
//!
//! Runs with 512 pages have a quarter of the main job's rows, and runs with 64 pages a sixteenth, for most
//! references are records there; [`full`] has all.

use super::Scenario;
use super::many_cpus::renewals;
use crate::machine::{Machine, Outcome, Profile, debian};
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, bail, ensure};
use kvmtrace_guest::Step;

/// The workload at two sizes of the set, on one and two CPUs.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        scenario(512, Profile::Fast, ROWS / 4, ""),
        scenario(64, Profile::Smp, ROWS / 16, ""),
        scenario(64, Profile::Fast, ROWS / 16, ""),
        scenario(512, Profile::Smp, ROWS / 4, ""),
    ]
}

/// What takes minutes.
pub fn full() -> Vec<Scenario> {
    let all = |n, profile| scenario(n, profile, ROWS, "-all-rows");
    vec![
        all(64, Profile::Smp),
        all(64, Profile::Fast),
        all(512, Profile::Smp),
    ]
}

fn scenario(n: u32, profile: Profile, rows: u32, more: &str) -> Scenario {
    Scenario {
        name: format!("workload-{n}-{}{more}", profile.name()),
        about: "sqlite3 and gcc: the same output untraced and traced; no violation",
        run: Box::new(move |kernel| run(n, profile, rows, kernel)),
    }
}

/// Renewals among the records, %, at most.
const RENEWALS: f64 = 2.0;

/// Rows of the main job's table.
pub const ROWS: u32 = 200_000;

const SQL: &str = "
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, name TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ROWS)
  INSERT INTO t SELECT i, (i * 7919) % 200003, printf('row %d of the table', i) FROM n;
CREATE INDEX tk ON t(k);
SELECT count(*), sum(k), max(name) FROM t;
SELECT count(*) FROM t WHERE k BETWEEN 1000 AND 20000;
SELECT id, name FROM t WHERE k IN (11, 222, 3333, 44444, 100000) ORDER BY id;
PRAGMA integrity_check;
";

/// What gcc compiles.
pub const SOURCE: &str = "#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <time.h>
#include <pthread.h>
#include <sys/socket.h>
#include <netinet/in.h>

struct item { int key; char name[24]; struct item *next; };

static int compare(const void *a, const void *b)
{
\treturn ((const struct item *)a)->key - ((const struct item *)b)->key;
}

int main(int argc, char **argv)
{
\tsize_t n = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000, i;
\tstruct item *items = calloc(n, sizeof(*items));

\tif (!items)
\t\treturn 1;
\tfor (i = 0; i < n; i++) {
\t\titems[i].key = (int)((i * 7919) % 10007);
\t\tsnprintf(items[i].name, sizeof(items[i].name), \"item %zu\", i);
\t}
\tqsort(items, n, sizeof(*items), compare);
\tprintf(\"%s %f\\n\", items[0].name, sqrt((double)items[n - 1].key));
\tfree(items);
\treturn 0;
}
";

/// What both runs do: the work in a folder of its own, its output on stdout.
fn work(dir: &str) -> String {
    format!(
        "mkdir /tmp/{dir} && cd /tmp/{dir} && cp /work/job.sql /work/job.c . && \
         sqlite3 db < job.sql && gcc -O2 -c job.c -o job.o && cksum job.o | cut -d' ' -f1,2 && cksum < db"
    )
}

/// Boots the image and runs the workload untraced and traced with a set of
/// `n` pages, sqlite3's with so many rows.
///
/// # Errors
///
/// If the guest fails or the outputs differ.
pub fn trace(n: u32, profile: Profile, rows: u32, kernel: &str) -> Result<Outcome> {
    trace_with(&format!("-n {n}"), &n.to_string(), profile, rows, kernel)
}

/// The same with these options of the activator; `name` is of the run.
///
/// # Errors
///
/// As [`trace`].
pub fn trace_with(
    options: &str,
    name: &str,
    profile: Profile,
    rows: u32,
    kernel: &str,
) -> Result<Outcome> {
    // Lockdep and KASAN make a fault several times as long.
    let limit_s = match kernel {
        "lockdep" | "kasan" => 3600,
        _ => 1200,
    };
    let within = |step: Step| Step {
        timeout_s: limit_s,
        ..step
    };
    let out = Machine {
        name: format!("workload-{name}-{}-{kernel}", profile.name()),
        kernel: kernel.into(),
        profile,
        image: true,
        cmdline: String::new(),
        files: vec![("job.sql".into(), SQL.replace("ROWS", &rows.to_string()).into()), ("job.c".into(), SOURCE.into())],
        steps: vec![
            // The first run fills the page cache for both.
            debian("warm", &work("warm")),
            uptime("start"),
            debian("plain", &work("plain")),
            uptime("between"),
            within(debian(
                "traced",
                &format!(
                    "activator run {options} -o /dev/trace --status-file /tmp/status.json -- /bin/sh -c '{}'",
                    work("traced").replace('\'', "'\\''")
                ),
            )),
            uptime("end"),
            debian("status", "cat /tmp/status.json"),
        ],
        deadline_s: limit_s,
    }
    .run()?;
    let plain = out.step("plain")?;
    let traced = out.step("traced")?;
    ensure!(
        plain.rc == 0 && !plain.stdout.is_empty(),
        "untraced it fails: {plain:?}"
    );
    ensure!(traced.rc == 0, "traced it fails: {traced:?}");
    ensure!(
        plain.stdout == traced.stdout,
        "the output differs:\n{}\ninstead of\n{}",
        traced.stdout,
        plain.stdout
    );
    Ok(out)
}

/// A step that has the times of [`busy`].
pub fn uptime(name: &str) -> Step {
    debian(name, "cat /proc/uptime")
}

/// For how long the only CPU was busy since boot at a step of [`uptime`], s.
///
/// # Errors
///
/// If the guest did not print its times.
pub fn busy(out: &Outcome, name: &str) -> Result<f64> {
    let text = &out.step(name)?.stdout;
    let mut times = text.split_whitespace().map(str::parse::<f64>);
    match (times.next(), times.next()) {
        (Some(Ok(up)), Some(Ok(idle))) => Ok(up - idle),
        _ => bail!("no times in /proc/uptime: {text:?}"),
    }
}

/// By how much the CPU is longer busy with the traced run than with the other one, kvmtraced's work
/// included. Under icount, that is the ratio of the instructions.
///
/// # Errors
///
/// As [`busy`].
pub fn busy_ratio(out: &Outcome) -> Result<f64> {
    let busy = |name| busy(out, name);
    let (start, between, end) = (busy("start")?, busy("between")?, busy("end")?);
    Ok((end - between) / (between - start))
}

fn run(n: u32, profile: Profile, rows: u32, kernel: &str) -> Result<()> {
    let out = trace(n, profile, rows, kernel)?;
    let (rc, _) = postproc::json(&["check", "--frames"], &out.trace())?;
    ensure!(
        rc == 0,
        "postproc check finds:\n{}",
        postproc::explain(&out.trace())
    );
    let status = &out.step("status")?.stdout;
    let share = renewals(&serde_json::from_str(status).context(status.clone())?)?;
    say!("  {share:.2} % of the records are renewals");
    // The other CPU idles most of the time. As long as an idle CPU kept its first segment, a
    // quarter of the records with N=64 were renewals.
    ensure!(share < RENEWALS, "{share:.2} % are renewals");
    // The one that has few references, for libCacheSim takes its time.
    if n == 512 && profile == Profile::Fast {
        postproc::compare_with_libcachesim(&out.trace())?;
    }
    Ok(())
}
