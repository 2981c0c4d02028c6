//! Events of files: all that a program of known behaviour does to files, in order and
//! with all fields; and all bytes that real programs read and write.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, debian, step};
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeSet;

/// Traces of `file-calls`: where, its further arguments, and the classes of events.
const CALLS: &[(&str, &str, &str, &str)] = &[
    ("ext4", "/root/work", "all", "usual"),
    ("tmpfs", "/tmp", "some", "usual"),
    ("none", "/tmp", "some", "none"),
    ("io", "/tmp", "some", "io"),
    ("file", "/tmp", "some", "file,gup"),
    ("shm", "/tmp", "some", "shm"),
];

/// What `count-io` runs: several programs, pipes, files, and a server's sockets.
const SCRIPT: &str = "for i in 1 2; do \
    printf 'int f%d(int x) { return x + %d; }\\n' $i $i >$i.c && gcc -O1 -c $i.c & done; wait; \
    sqlite3 db 'create table t(a); with recursive c(x) as (select 1 union all select x + 1 from c \
    where x < 5000) insert into t select x from c; create index i on t(a); \
    select sum(a) from t' && cat [12].c | sort -r | tee out | wc && cp db copy && \
    dd if=db of=copy bs=1000 conv=notrunc && \
    python3 -c 'import json; json.dump(list(range(9999)), open(\"j\", \"w\")); json.load(open(\"j\"))'";

/// The same in a folder.
pub(super) fn script(folder: &str) -> String {
    format!("cd {folder} && {SCRIPT}")
}

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "file-events".into(),
            about: "each way to read, write, open and end files is recorded, in order, to the byte",
            run: Box::new(run),
        },
        Scenario {
            name: "stacked-files".into(),
            about: "reads, writes and mappings of an overlay name the files below, which have the pages",
            run: Box::new(stacked),
        },
    ]
}

/// What needs XFS.
pub(super) fn full() -> Vec<Scenario> {
    vec![Scenario {
        name: "wide-shared-blocks".into(),
        about: "blocks that files of XFS come to share, and requests that are polled for",
        run: Box::new(shared),
    }]
}

fn stacked(kernel: &str) -> Result<()> {
    let argv = "/bin/activator run -n 64 -o /tmp/stacked.vmt -- /bin/stacked";
    let steps = vec![
        step("stacked", &argv.split(' ').collect::<Vec<_>>()),
        step("keep stacked", &["/bin/keep", "0", "/tmp/stacked.vmt"]),
    ];
    let out = Machine {
        name: format!("stacked-files-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 300,
    }
    .run()?;
    let events = trace(&out, 0, "stacked")?;
    let told = &out.step("stacked")?.stdout;
    let file = |which: &str| {
        let line = told.lines().find_map(|l| l.strip_prefix(which));
        let words = line.with_context(|| format!("no {which} in {told}"))?;
        Ok::<_, anyhow::Error>(words.trim().to_string())
    };
    let (lower, upper, merged) = (file("lower")?, file("upper")?, file("merged")?);
    ensure!(
        lower != upper && merged != lower && merged != upper,
        "nothing is stacked: {told}"
    );
    let of = |kind: &str, file: &str, fields: &[&str]| -> Vec<String> {
        let named = |e: &&Value| format!("{} {}", text(e, "dev"), text(e, "ino")) == file;
        let these = events.iter().filter(|e| text(e, "event") == kind);
        these
            .filter(named)
            .map(|e| {
                let words: Vec<_> = fields.iter().map(|f| text(e, f)).collect();
                words.join(" ")
            })
            .collect()
    };
    let io = ["offset", "bytes"];
    for (kind, below, want) in [
        ("read", &lower, &["100 5000"][..]),
        ("read", &upper, &["10 70"]),
        ("write", &upper, &["8192 300"]),
        ("read", &merged, &[]),
        ("write", &merged, &[]),
    ] {
        // What the kernel itself copies up is no read of the program's.
        let got: Vec<_> = of(kind, below, &["offset", "bytes", "call"])
            .into_iter()
            .filter_map(|line| line.strip_suffix(" rw").map(str::to_string))
            .collect();
        ensure!(
            got == want,
            "{kind} of {below}: {got:?} instead of {want:?}"
        );
    }
    ensure!(
        of("map", &lower, &["kind"]).len() == 1 && of("map", &upper, &["kind"]).len() == 1,
        "maps of what lies below"
    );
    for below in [&lower, &upper] {
        ensure!(
            !of("open", below, &io[..1]).is_empty(),
            "no open of {below}"
        );
    }
    ensure!(
        of("open", &merged, &io[..1]).is_empty(),
        "an open of {merged}"
    );
    say!("  {lower} and {upper} below, {merged} above");
    Ok(())
}

/// A file system with shared blocks on the disk that takes the trace afterwards.
const XFS: &str = "mkfs.xfs -q -f /dev/trace && mkdir -p /tmp/x && mount -t xfs /dev/trace /tmp/x \
    && cat /sys/block/$(basename $(readlink -f /dev/trace))/queue/io_poll";

fn shared(kernel: &str) -> Result<()> {
    let traced = "/opt/kvmtrace/bin/activator run -n 512 -o /tmp/shared.vmt -- \
                  /opt/kvmtrace/bin/shared-blocks /tmp/x";
    let steps = vec![
        debian("xfs", XFS),
        debian("shared", traced),
        debian("umount", "umount /tmp/x"),
        step("keep shared", &["/bin/keep", "0", "/tmp/shared.vmt"]),
    ];
    let out = Machine {
        name: format!("wide-shared-blocks-{kernel}"),
        kernel: kernel.into(),
        // A disk has a queue to poll only if it has another one, which takes two CPUs.
        profile: Profile::Smp,
        image: true,
        cmdline: "virtio_blk.poll_queues=1".into(),
        files: vec![],
        steps,
        deadline_s: 300,
    }
    .run()?;
    for name in ["xfs", "umount"] {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{name}: {r:?}");
    }
    let polls = out.step("xfs")?.stdout.trim();
    ensure!(polls == "1", "the disk is not polled: {polls:?}");
    shared_blocks(&out, &trace(&out, 0, "shared")?)
}

/// What `shared-blocks` did is in the events.
pub(super) fn shared_blocks(out: &Outcome, events: &[Value]) -> Result<()> {
    let stdout = &out.step("shared")?.stdout;
    let (head, lines) = stdout.split_once('\n').context("it printed nothing")?;
    let wanted: Vec<&str> = lines.lines().collect();
    let (_, all) = of_program(events, "shared-blocks")?;
    let got: Vec<String> = between(&all, &wanted)?
        .iter()
        .filter_map(|e| line(e))
        .collect();
    compare(&wanted, &got)?;
    say!("  {} events as expected, {head}", wanted.len());
    Ok(())
}

/// The execution of a program, and those of its events that it prints.
fn of_program<'a>(events: &'a [Value], comm: &str) -> Result<(&'a Value, Vec<&'a Value>)> {
    let exec = events
        .iter()
        .find(|e| text(e, "event") == "exec" && text(e, "comm") == comm)
        .with_context(|| format!("{comm} was not executed"))?;
    let of = |e: &&Value| e["pid"] == exec["pid"] && line(e).is_some();
    Ok((exec, events.iter().filter(of).collect()))
}

/// From the first that is expected to the last.
fn between<'a>(mine: &'a [&'a Value], wanted: &[&str]) -> Result<&'a [&'a Value]> {
    let at = |l: Option<&&str>, last: bool| {
        let l = l.context("nothing is expected")?;
        let mut found = mine.iter().enumerate().filter_map(|(i, e)| {
            let is = line(e).is_some_and(|g| same(l, &g));
            is.then_some(i)
        });
        let found = if last {
            found.next_back()
        } else {
            found.next()
        };
        found.with_context(|| format!("no event is {l:?}"))
    };
    Ok(&mine[at(wanted.first(), false)?..=at(wanted.last(), true)?])
}

fn run(kernel: &str) -> Result<()> {
    let mut steps = Vec::new();
    let keep = |steps: &mut Vec<_>, name: &str, file: &str| {
        let slot = steps.len().to_string();
        steps.push(step(&format!("keep {name}"), &["/bin/keep", &slot, file]));
    };
    for (name, dir, more, classes) in CALLS {
        let file = format!("/tmp/{name}.vmt");
        let mut argv = vec!["/bin/activator", "run", "-n", "512", "-o", &file];
        argv.extend(["--events", classes, "--", "/bin/file-calls", dir, more]);
        steps.push(step(name, &argv));
        keep(&mut steps, name, &file);
    }
    let argv = "/bin/activator run -n 512 -o /tmp/names.vmt -- /bin/names";
    let argv: Vec<&str> = argv.split(' ').collect();
    steps.push(step("names", &argv));
    keep(&mut steps, "names", "/tmp/names.vmt");
    steps.push(step("held", &["/bin/file-calls", "/tmp", "held"]));
    keep(&mut steps, "held", "/tmp/held.vmt");
    let mut count = debian("count", "");
    count.argv = "/opt/kvmtrace/bin/activator run -n 4096 -o /tmp/count.vmt -- \
                  /opt/kvmtrace/bin/count-io"
        .split_ascii_whitespace()
        .map(String::from)
        .chain([script("/tmp")])
        .collect();
    steps.push(count);
    keep(&mut steps, "count", "/tmp/count.vmt");
    let out = Machine {
        name: format!("file-events-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 900,
    }
    .run()?;
    for (i, (name, _, _, classes)) in CALLS.iter().enumerate() {
        let events = trace(&out, 2 * i + 1, name)?;
        calls(&out, name, &events, classes).with_context(|| format!("file-calls on {name}"))?;
    }
    let n = 2 * CALLS.len();
    names(&out, &trace(&out, n + 1, "names")?)?;
    held(&out, &trace(&out, n + 3, "held")?)?;
    count_io(&out, &trace(&out, n + 5, "count")?)
}

/// The events of a trace, all of whose checks hold.
pub(super) fn trace(out: &Outcome, slot: usize, name: &str) -> Result<Vec<Value>> {
    for step in [name.to_string(), format!("keep {name}")] {
        let r = out.step(&step)?;
        ensure!(r.rc == 0, "{step}: {r:?}");
    }
    let path = out.kept(slot, &format!("{name}.vmt"))?;
    let (rc, _) = postproc::json(&["check", "--frames"], &path)?;
    ensure!(
        rc == 0,
        "postproc check finds:\n{}",
        postproc::explain(&path)
    );
    postproc::events(&[], &path)
}

fn text(event: &Value, field: &str) -> String {
    match &event[field] {
        Value::String(s) => s.clone(),
        Value::Null => "-".into(),
        v => v.to_string(),
    }
}

/// An event as `file-calls` writes it; `None` for those that it does not print.
fn line(event: &Value) -> Option<String> {
    let file = ["dev", "ino", "generation"];
    let (before, after): (&[&str], &[&str]) = match text(event, "event").as_str() {
        "open" | "close" => (&[], &["length", "kind", "name"]),
        "read" | "write" => (&[], &["offset", "bytes", "kind", "call", "direct"]),
        "truncate" | "delete" => (&[], &["length"]),
        "punch" => (&[], &["offset", "bytes"]),
        "shmat" | "shmdt" | "shm_destroy" => (&["start", "end"], &["shmid"]),
        "advise" => {
            let words = ["event", "start", "end", "advice"];
            return Some(words.map(|w| text(event, w)).join(" "));
        }
        _ => return None,
    };
    let words = ["event"].iter().chain(before).chain(&file).chain(after);
    Some(words.map(|w| text(event, w)).collect::<Vec<_>>().join(" "))
}

/// Whether a line is what was expected, where a `-` is anything.
fn same(expected: &str, got: &str) -> bool {
    let (e, g) = (expected.split(' '), got.split(' '));
    e.clone().count() == g.clone().count() && e.zip(g).all(|(e, g)| e == "-" || e == g)
}

/// The first difference between what was expected and what was told.
fn compare(expected: &[&str], got: &[String]) -> Result<()> {
    for i in 0..expected.len().max(got.len()) {
        match (expected.get(i), got.get(i)) {
            (Some(e), Some(g)) if same(e, g) => {}
            (e, g) => bail!(
                "event {i} after {:?}: {g:?} instead of {e:?}",
                got.get(i.wrapping_sub(1))
            ),
        }
    }
    Ok(())
}

/// The class that a line's event is of, if it can be left out.
fn class(line: &str) -> Option<&'static str> {
    match line.split(' ').next()? {
        "open" | "close" => Some("file"),
        "read" | "write" => Some("io"),
        "shmat" | "shmdt" | "shm_destroy" => Some("shm"),
        _ => None,
    }
}

/// What /proc/PID/io counts.
fn counted(event: &Value) -> bool {
    ["rw", "kernel", "sendfile", "copy"].contains(&text(event, "call").as_str())
}

fn bytes<'a>(events: impl IntoIterator<Item = &'a Value>) -> (u64, u64) {
    let mut sums = (0, 0);
    for e in events.into_iter().filter(|e| counted(e)) {
        let n = e["bytes"].as_u64().unwrap_or_default();
        match text(e, "event").as_str() {
            "read" => sums.0 += n,
            "write" => sums.1 += n,
            _ => {}
        }
    }
    sums
}

pub(super) fn calls(out: &Outcome, name: &str, events: &[Value], classes: &str) -> Result<()> {
    let expected = &out.step(name)?.stdout;
    let (head, lines) = expected.split_once('\n').context("it printed nothing")?;
    let all: Vec<&str> = lines.lines().collect();
    let told = |line: &str| {
        class(line).is_none_or(|c| classes == "usual" || classes.split(',').any(|w| w == c))
    };
    let wanted: Vec<&str> = all.iter().copied().filter(|l| told(l)).collect();
    let (exec, mine) = of_program(events, "file-calls")?;
    let got: Vec<String> = between(&mine, &wanted)?
        .iter()
        .filter_map(|e| line(e))
        .collect();
    compare(&wanted, &got)?;
    if classes != "usual" {
        // The control: what is left out is missed.
        ensure!(
            compare(&all, &got).is_err(),
            "events that are left out are not missed"
        );
        let has = |what: &str| events.iter().any(|e| text(e, "event") == what);
        for (what, class) in [
            ("open", "file"),
            ("read", "io"),
            ("shmat", "shm"),
            ("gup", "gup"),
        ] {
            let wanted = classes.split(',').any(|c| c == class);
            ensure!(has(what) == wanted, "--events {classes}: {what}");
        }
        say!("  {name}: {} of {} events", wanted.len(), all.len());
        return Ok(());
    }

    // A worker of the kernel's is of the same process, but another thread.
    let workers = mine.iter().filter(|e| e["tid"] != e["pid"]).count();
    ensure!(workers > 0, "nothing was done by a worker");
    // What is open at the end is closed after its address space is gone.
    let close = events
        .iter()
        .find(|e| text(e, "event") == "close" && text(e, "name") == "left")
        .context("what was left open was not closed")?;
    let exit = events
        .iter()
        .rfind(|e| text(e, "event") == "exit" && e["tid"] == exec["pid"])
        .context("no exit")?;
    ensure!(
        close["mm"] == exec["mm"] && close["seq"].as_u64() > exit["seq"].as_u64(),
        "closed as {close} after {exit}"
    );
    // Between the two reads of /proc/self/io.
    let io = |e: &&Value| text(e, "event") == "read" && text(e, "ino") == io_inode(&all);
    let first = mine.iter().position(io).context("no first count")?;
    let last = mine.iter().rposition(io).context("no last count")?;
    let sums = bytes(mine[first..last].iter().copied());
    ensure!(
        format!("counted {} {}", sums.0, sums.1) == head,
        "events sum up to {sums:?}: {head}"
    );
    say!(
        "  {name}: {} events as expected, {workers} by workers; {head} bytes as /proc/self/io",
        wanted.len()
    );
    Ok(())
}

/// The inode of /proc/self/io, which is read first of all.
fn io_inode(lines: &[&str]) -> String {
    let read = lines.iter().find(|l| l.starts_with("read"));
    let ino = read.and_then(|l| l.split(' ').nth(2));
    ino.unwrap_or_default().into()
}

/// All names that a process and its threads are given, and control groups, each once.
fn names(out: &Outcome, events: &[Value]) -> Result<()> {
    let got: Vec<String> = events
        .iter()
        .filter(|e| e["snapshot"] == false)
        .filter_map(|e| {
            let last = match text(e, "event").as_str() {
                "task" => "comm",
                "cgroup" => "path",
                _ => return None,
            };
            Some(
                ["event", "task_tid", "task_tgid", last]
                    .map(|w| text(e, w))
                    .join(" "),
            )
        })
        .collect();
    let stdout = &out.step("names")?.stdout;
    let wanted: Vec<&str> = stdout.lines().collect();
    compare(&wanted, &got)?;
    let exec = events
        .iter()
        .find(|e| text(e, "event") == "exec")
        .context("no exec")?;
    // What is executed is what is mapped.
    let maps = events.iter().filter(|e| text(e, "event") == "map");
    let same_file = |e: &&Value| {
        ["dev", "ino", "generation"]
            .iter()
            .all(|field| e[*field] == exec[*field])
    };
    let mapped = maps.filter(same_file).count();
    ensure!(
        mapped > 1 && text(exec, "name") == "names" && exec["ino"] != 0,
        "{exec} is mapped {mapped} times"
    );
    say!("  names: {} names and control groups", wanted.len());
    Ok(())
}

/// What was open before the trace is in its snapshot.
fn held(out: &Outcome, events: &[Value]) -> Result<()> {
    let snapshot: Vec<String> = events
        .iter()
        .filter(|e| e["snapshot"] == true && text(e, "event") == "open")
        .filter_map(line)
        .collect();
    for l in out.step("held")?.stdout.lines() {
        let n = snapshot.iter().filter(|g| same(l, g)).count();
        // Both ends of the pipe are one inode.
        let wanted = 1 + usize::from(l.contains(" pipe "));
        ensure!(
            if l.contains(" char ") || l.contains(" pipe ") {
                n >= wanted
            } else {
                n == wanted
            },
            "{n} times {l:?} in {snapshot:?}"
        );
    }
    say!("  held: {} open files in the snapshot", snapshot.len());
    Ok(())
}

/// All bytes that a shell and all its children have read and written.
pub(super) fn count_io(out: &Outcome, events: &[Value]) -> Result<()> {
    let stdout = &out.step("count")?.stdout;
    let numbers: Vec<u64> = stdout
        .split_ascii_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let [pid, rchar, wchar] = numbers[..] else {
        bail!("count-io printed {stdout:?}");
    };
    let mut tree = BTreeSet::from([pid]);
    for e in events.iter().filter(|e| text(e, "event") == "fork") {
        if e["pid"].as_u64().is_some_and(|p| tree.contains(&p)) {
            tree.extend(e["child_tgid"].as_u64());
        }
    }
    let theirs = || {
        events
            .iter()
            .filter(|e| e["pid"].as_u64().is_some_and(|p| tree.contains(&p)))
    };
    let sums = bytes(theirs());
    ensure!(
        sums == (rchar, wchar),
        "events sum up to {sums:?}, /proc/{pid}/io says {rchar} and {wchar}"
    );
    // The control: one event less is missed.
    let large = theirs().find(|e| counted(e)).context("no event")?;
    ensure!(
        bytes(theirs().filter(|e| !std::ptr::eq(*e, large))) != sums,
        "an event that is left out is not missed"
    );
    ensure!(
        rchar > 300_000 && wchar > 100_000 && tree.len() > 10,
        "hardly anything was done: {stdout}, {} processes",
        tree.len()
    );
    say!(
        "  count: {} processes read {rchar} and wrote {wchar} bytes: all are in events",
        tree.len()
    );
    Ok(())
}
