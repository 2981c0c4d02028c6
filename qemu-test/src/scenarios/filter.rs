//! Filters in the kernel (`--filter`): the references that fit are recorded, and no other ones.

use super::Scenario;
use super::offsets::{self, Seen};
use super::rotate::{send, unpacked, whole};
use crate::machine::{Machine, Outcome, Profile, debian, step};
use crate::postproc;
use crate::runner::say;
use ::postproc::trace::{Merge, Step as At, Trace};
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::Step;
use serde_json::Value;
use std::path::Path;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    type Script = (&'static str, &'static str, fn(&str) -> Result<()>);
    let scripts: [Script; 7] = [
        (
            "filter",
            "of the known references of a program, those that fit each filter are recorded",
            |kernel| known(Profile::Fast, kernel),
        ),
        ("filter-smp", "the same on two CPUs", |kernel| {
            known(Profile::Smp, kernel)
        }),
        (
            "filter-marks",
            "what is left out is recorded with a mark: kernel and postproc judge each reference alike",
            marks,
        ),
        (
            "filter-changes",
            "filters change while two CPUs are slow to take numbers: events say exactly when",
            changes,
        ),
        (
            "filter-noorder",
            "another filter in force before all that were judged by the former one are done",
            no_order,
        ),
        (
            "filter-modes",
            "filters with windows, pieces, several sets and losses: all that is missing is counted",
            modes,
        ),
        (
            "filter-refused",
            "what the kernel refuses, and traces that have no filter",
            refused,
        ),
    ];
    scripts
        .into_iter()
        .map(|(name, about, run)| Scenario {
            name: name.into(),
            about,
            run: Box::new(run),
        })
        .collect()
}

fn machine(name: &str, kernel: &str, profile: Profile, steps: Vec<Step>) -> Machine {
    Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 900,
    }
}

/// All steps have succeeded.
fn all_right(out: &Outcome) -> Result<()> {
    for r in &out.results {
        ensure!(r.rc == 0, "{r:?}");
    }
    Ok(())
}

/// Findings of a rule of `postproc check`: notes, and errors.
fn findings(report: &Value, rule: &str) -> Result<(Vec<String>, Vec<String>)> {
    let rules = report["rules"].as_array().context("no rules")?;
    let rule = rules.iter().find(|r| r["id"] == rule);
    let all = rule.context("no such rule")?["examples"].as_array();
    let texts = |is_note: bool| {
        let some = all.into_iter().flatten();
        some.filter(|f| (f["severity"] == "note") == is_note)
            .map(|f| f["message"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    Ok((texts(true), texts(false)))
}

/// A filter, and what fits it among what the program of offsets.rs does in its own memory.
type Known = (&'static str, fn(u64, &Seen) -> bool);

const KNOWN: [Known; 9] = [
    ("kind == write", |_, r| r.access == "write"),
    ("kind != write && mode == user", |_, r| {
        r.access != "write" && !r.kernel
    }),
    ("mode == kernel", |_, r| r.kernel),
    ("kind == exec", |_, r| r.access == "exec"),
    ("comm == \"offsets\" && tid > 1", |_, _| true),
    ("comm ~ \"[!o]*\" || cpu > 63", |_, _| false),
    ("page in 0x100000000..0x100000080", |page, _| {
        page < 0x1000_0008_0000
    }),
    // An address has its offset in these traces.
    ("!(addr < 0x100000000800)", |page, r| {
        page + r.offset.unwrap_or(0) >= 0x1000_0000_0800
    }),
    ("mapping == \"[anon]\" && mapping_kind == anon", |_, _| true),
];

fn known(profile: Profile, kernel: &str) -> Result<()> {
    let mut steps = Vec::new();
    for (slot, (expr, _)) in KNOWN.iter().enumerate() {
        let file = format!("/tmp/{slot}.vmt");
        let mut argv: Vec<&str> = "/bin/activator run -q -n 64 --offsets --filter"
            .split(' ')
            .collect();
        argv.extend([expr, "-o", &file, "--", "/bin/offsets"]);
        steps.push(step(&format!("traced {slot}"), &argv));
        steps.push(step(
            &format!("status {slot}"),
            &["/bin/activator", "status", "--json"],
        ));
        steps.push(step(
            &format!("keep {slot}"),
            &["/bin/keep", &slot.to_string(), &file],
        ));
    }
    let name = format!("filter-{}", profile.name());
    let machine = Machine {
        image: false,
        ..machine(&name, kernel, profile, steps)
    };
    let out = machine.run()?;
    all_right(&out)?;
    let made = offsets::program();
    for (slot, (expr, fits)) in KNOWN.iter().enumerate() {
        let trace = out.kept(slot, &format!("{slot}.vmt"))?;
        let (rc, report) = postproc::json(&["check", "--frames"], &trace)?;
        ensure!(rc == 0, "{expr}: {}", postproc::explain(&trace));
        let (notes, _) = findings(&report, "filter")?;
        let is_known = |note: &String| note.contains("fit the filter") || note.contains("[anon]");
        ensure!(notes.iter().all(is_known), "{expr}: {notes:?}");
        let mut right = made.clone();
        for (page, all) in &mut right {
            all.retain(|r| fits(*page, r));
        }
        right.retain(|_, all| !all.is_empty());
        let found = offsets::read(&trace)?;
        offsets::compare(&found, &right).with_context(|| (*expr).to_owned())?;
        let status: Value = serde_json::from_str(&out.step(&format!("status {slot}"))?.stdout)?;
        let left_out = status["left_out"].as_u64().context("no count")?;
        say!(
            "  {expr}: {} references, {left_out} records left out",
            right.values().map(Vec::len).sum::<usize>()
        );
        ensure!(left_out > 0, "{expr}: {status}");
        // Something else would be found.
        if let Some(all) = right.values_mut().next() {
            all.pop();
            ensure!(
                offsets::compare(&found, &right).is_err(),
                "{expr}: a lost one is not found"
            );
        }
    }
    Ok(())
}

/// Filters and options. All programs together have references that fit each filter, and others.
const MARKED: [(&str, &str); 4] = [
    (
        "--pack=zstd --offsets",
        "comm == \"sqlite3\" || mapping_kind in (file, shmem) && addr > 0x7f0000000000",
    ),
    (
        "--again",
        "mapping ~ \"lib*.so*\" && kind != exec || mode == kernel",
    ),
    (
        "--policy clock --virtual-time=60",
        "cpu == 0 && mapping in (\"[heap]\", \"[stack]\", \"[vdso]\", \"libc.so.6\")",
    ),
    (
        "--set-per process --again",
        "set > 2 && (comm in (\"sqlite3\", \"sh\") && mapping ~ \"*.so*\" && kind == read || comm ~ \"*e*\")",
    ),
];

const PROGRAMS: &str = "fork-storm 4; exec-args; munmap-remap; mremap-move; file-map; brk-stack; \
    threads; sqlite3 :memory: \"CREATE TABLE t(a, b); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 \
    FROM n WHERE i < 300) INSERT INTO t SELECT i, hex(i) FROM n; SELECT count(*) FROM t;\"; \
    ls -l /usr | sort | tail -n 1";

fn marks(kernel: &str) -> Result<()> {
    let mut steps = Vec::new();
    for (slot, (options, expr)) in MARKED.iter().enumerate() {
        let script = format!(
            "cat >/tmp/programs <<'END'\n{PROGRAMS}\nEND\n\
             activator run -q -n 256 {options} --filter '{expr}' -o /tmp/{slot}.vmt -- \
             sh -c '(sh /tmp/programs) & sh /tmp/programs; wait' >/dev/null\n\
             keep {slot} /tmp/{slot}.vmt"
        );
        steps.push(debian(&format!("traced {slot}"), &script));
    }
    let machine = Machine {
        cmdline: "vmtrace_break=keepleft".into(),
        ..machine("filter-marks", kernel, Profile::Smp, steps)
    };
    let out = machine.run()?;
    all_right(&out)?;
    for (slot, (options, expr)) in MARKED.iter().enumerate() {
        let trace = out.kept(slot, &format!("{slot}.vmt"))?;
        let (_, report) = postproc::json(&["check", "--frames"], &trace)?;
        for rule in report["rules"].as_array().context("no rules")? {
            let id = rule["id"].as_str().unwrap_or_default();
            let (_, errors) = findings(&report, id)?;
            // It is a control's trace.
            ensure!(
                errors.is_empty() || id == "health",
                "{options} {expr}: {id}: {errors:?}"
            );
        }
        let (notes, _) = findings(&report, "filter")?;
        say!("  {options} {expr}: {notes:?}");
        let counts = notes.first().context("nothing was judged")?;
        let numbers: Vec<u64> = counts
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse().ok())
            .collect();
        ensure!(
            numbers.len() == 2 && numbers.iter().all(|n| *n > 100),
            "{expr}: {notes:?}"
        );
    }
    Ok(())
}

/// Programs run while filters change. CPUs are slow between judging a reference and asking for a number.
/// Gives how many changes there were, and what `postproc check` says.
fn changing(kernel: &str, name: &str, cmdline: &str) -> Result<(u32, Value)> {
    let script = "activator run -q -n 64 --filter '' -o /tmp/changes.vmt -- \
         sh -c 'families 2 3 & families 2 3 & threads; wait' >/dev/null & run=$!\n\
         i=0\n\
         while kill -0 $run 2>/dev/null; do\n\
         	activator filter 'kind == write' 2>/dev/null && i=$((i + 1))\n\
         	activator filter 'kind != write && mapping ~ \"*s*\"' 2>/dev/null && i=$((i + 1))\n\
         done\n\
         wait $run\n\
         [ $? -le 1 ] || exit 1\n\
         echo \"changes $i\"\n\
         keep 0 /tmp/changes.vmt";
    let steps = vec![
        step("late", &["/bin/races", "late", "1,1,60"]),
        debian("traced", script),
    ];
    let machine = Machine {
        cmdline: cmdline.into(),
        ..machine(name, kernel, Profile::Smp, steps)
    };
    let out = machine.run()?;
    all_right(&out)?;
    let count: u32 = out
        .step("traced")?
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("changes ")?.parse().ok())
        .context("no changes")?;
    ensure!(count >= 20, "only {count} changes");
    let (_, report) = postproc::json(&["check", "--frames"], &out.kept(0, "changes.vmt")?)?;
    Ok((count, report))
}

fn changes(kernel: &str) -> Result<()> {
    let (count, report) = changing(kernel, "filter-changes", "")?;
    for rule in report["rules"].as_array().context("no rules")? {
        ensure!(rule["errors"] == 0, "{rule}");
    }
    let (notes, _) = findings(&report, "filter")?;
    say!("  {count} changes: {notes:?}");
    ensure!(!notes.is_empty(), "nothing was judged");
    Ok(())
}

/// Without the grace period between two filters, a reference gets a number of the next filter that was
/// judged by the former one.
fn no_order(kernel: &str) -> Result<()> {
    let (count, report) = changing(kernel, "filter-noorder", "vmtrace_break=noorder")?;
    let (_, errors) = findings(&report, "filter")?;
    say!("  {count} changes: {:?}", errors.first());
    ensure!(!errors.is_empty(), "the control shows nothing");
    Ok(())
}

/// Names, and options. Those that rotate write directories.
const MODES: [(&str, &str); 5] = [
    ("windows", "--trace 20ms --skip 20ms"),
    (
        "set-windows",
        "--trace 200 --skip 1ms --set-per process --pack",
    ),
    ("pieces", "--rotate 100K --pack=no"),
    ("set-pieces", "--rotate 64K --set-per process --pack"),
    ("discards", "--mode discard --buffers 4 --buffer-size 4k"),
];

/// Windows that ended after [`LIMIT`] references have so many that are recorded.
fn by_references(path: &Path) -> Result<String> {
    let trace = Trace::open(path)?;
    if trace.header().windows.is_none_or(|w| w.references != LIMIT) {
        return Ok(String::new());
    }
    let firsts = trace.windows();
    let mut counts = vec![0u64; firsts.len()];
    let mut merge = Merge::new(&trace);
    let mut refs = Vec::new();
    loop {
        let step = merge.fill(&mut refs, 4096)?;
        for r in refs.drain(..).filter(|r| !r.flags().continues()) {
            let at = firsts.partition_point(|(first, _)| *first <= r.seq);
            counts[at.checked_sub(1).context("before all windows")?] += 1;
        }
        if let At::End = step {
            break;
        }
    }
    // STOP ends the last one.
    counts.pop();
    ensure!(
        !counts.is_empty() && counts.iter().all(|n| *n == LIMIT),
        "references in windows: {counts:?}"
    );
    Ok(format!(", {} windows of {LIMIT} references", counts.len()))
}

const LIMIT: u64 = 200;

fn modes(kernel: &str) -> Result<()> {
    let traced = |(name, options): (&str, &str)| {
        // How many windows fit into one run of the programs depends on the host.
        let more = if name == "set-windows" {
            "; until activator status --json | grep -Eq \"windows_ended.:([4-9]|[1-9][0-9])\"; do \
             threads; done"
        } else {
            ""
        };
        // A trace with losses is not good, and the exit code of `status` says so, too.
        let lossy = if name == "discards" {
            "|| [ $? = 1 ]"
        } else {
            ""
        };
        debian(
            name,
            &format!(
                "activator run -q -n 64 {options} --filter 'kind == write || comm == \"threads\"' \
                 -o /tmp/{name} -- sh -c 'families 2 4 & families 2 4 & threads; wait{more}' \
                 >/dev/null {lossy}; activator status --json {lossy}"
            ),
        )
    };
    let names = MODES.map(|(name, _)| name).join(" ");
    let mut steps: Vec<Step> = MODES.into_iter().map(traced).collect();
    steps.push(send(0, &names));
    let out = machine("filter-modes", kernel, Profile::Smp, steps).run()?;
    all_right(&out)?;
    let directory = unpacked(&out, 0)?;
    for (name, options) in MODES {
        let status: Value = serde_json::from_str(&out.step(name)?.stdout)?;
        let [left_out, lost] = ["left_out", "lost_full"].map(|key| status[key].as_u64());
        let trace = directory.join(name);
        let what = if name.ends_with("pieces") {
            format!("{} pieces", whole(&trace)?)
        } else {
            // What fits no longer, because a record is missing, is no error of a trace with losses.
            let allowed: &[&str] = if name == "discards" {
                &["--allow-loss"]
            } else {
                &[]
            };
            let (rc, report) = postproc::json(&[&["check", "--frames"], allowed].concat(), &trace)?;
            let exact = ["filter", "conservation", "sequence"];
            for rule in report["rules"].as_array().context("no rules")? {
                let id = rule["id"].as_str().unwrap_or_default();
                let (_, errors) = findings(&report, id)?;
                let may = !allowed.is_empty() && !exact.contains(&id);
                ensure!(errors.is_empty() || may, "{options}: {id}: {errors:?}");
            }
            ensure!(rc == 0, "{options}: exit code {rc}");
            let (notes, _) = findings(&report, "filter")?;
            format!("{notes:?}{}", by_references(&trace)?)
        };
        say!("  {options}: {left_out:?} left out, {lost:?} lost; {what}");
        ensure!(left_out > Some(100), "{options}: {status}");
        ensure!(lost == Some(0) || name == "discards", "{options}: {status}");
    }
    Ok(())
}

/// Commands, their exit codes, and what they print.
const REFUSED: [(&str, i32, &str); 5] = [
    (
        "activator run -q -o /tmp/plain.vmt -- activator filter 'pid == 1'",
        2,
        "--filter ''",
    ),
    ("activator filter 'pid == 1'", 2, "no trace"),
    (
        "activator run --filter 'kind == write && tree == 1' -o /tmp/no.vmt -- true",
        2,
        "--where",
    ),
    (
        "activator on --early --filter 'pid == 1' -o /tmp/no.vmt",
        2,
        "--filter",
    ),
    (
        "activator run -q --filter '' -o /tmp/all.vmt -- activator filter 'pid < 1'",
        0,
        "",
    ),
];

fn refused(kernel: &str) -> Result<()> {
    let steps = REFUSED
        .iter()
        .enumerate()
        .map(|(at, (command, ..))| debian(&format!("refused {at}"), command))
        .collect();
    let out = machine("filter-refused", kernel, Profile::Fast, steps).run()?;
    for (at, (command, rc, text)) in REFUSED.iter().enumerate() {
        let r = out.step(&format!("refused {at}"))?;
        let says = [&r.stdout, &r.stderr].iter().any(|t| t.contains(text));
        ensure!(r.rc == *rc && says, "{command}: {r:?}");
    }
    Ok(())
}
