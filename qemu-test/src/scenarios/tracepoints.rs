//! The events as tracepoints: what Debian's trace-cmd records beside a trace is what the
//! trace has, field by field, of each kind of event that can come while trace-cmd runs.

use super::Scenario;
use super::corners::nodes;
use crate::machine::{Machine, Profile, debian};
use crate::runner::say;
use ::postproc::trace::{Body, Event, FileId, MapKind, Merge, Ref, Step, Trace, event_name};
use ::postproc::units::{Access, Prot};
use anyhow::{Context, Result, bail, ensure};
use rust_mm_trace::uapi;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The scenario.
pub fn scenario() -> Scenario {
    Scenario {
        name: "tracepoints".into(),
        about: "trace-cmd sees each reference and event that the trace has, of 32 of 38 kinds",
        run: Box::new(run),
    }
}

/// Kinds of records that the programs below must have made.
const WANTED: &[&str] = &[
    "ref",
    "map",
    "unmap",
    "move",
    "protect",
    "cow",
    "mm_dup",
    "mm_end",
    "fork",
    "exec",
    "exit",
    "open",
    "close",
    "read",
    "write",
    "task",
    "snap_begin",
    "snap_end",
    "swap_in",
    "swap_out",
    "ksm",
    "migrate",
    "switch",
    "advise",
    "truncate",
    "punch",
    "delete",
    "shmat",
    "shmdt",
    "shm_destroy",
    "gup",
    "cgroup",
    "resize",
];

/// What is traced. The shell moves itself to a control group.
const PROGRAMS: &str = "mremap-move && mprotect-storm && fork-cow && frames && ls -l /etc && \
    file-calls /tmp && passes-by /dev/small && activator resize 128 && \
    mkdir -p /tmp/cgroup && mount -t cgroup2 none /tmp/cgroup && mkdir /tmp/cgroup/other && \
    echo 0 >/tmp/cgroup/other/cgroup.procs";

fn run(kernel: &str) -> Result<()> {
    let record = format!(
        "mount -t tracefs tracefs /sys/kernel/tracing && \
         trace-cmd record -q -b 65536 -e vmtrace -o /tmp/trace.dat \
         activator run -n 64 --events all -o /dev/trace -- /bin/sh -c '{PROGRAMS}' >/dev/null"
    );
    let out = Machine {
        name: format!("tracepoints-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps: vec![
            debian("record", &record),
            debian("report", "trace-cmd report -i /tmp/trace.dat"),
        ],
        deadline_s: 300,
    }
    .run_with(&nodes(Profile::Smp))?;
    for r in &out.results {
        ensure!(r.rc == 0, "{} fails: {r:?}", r.name);
    }
    let report = &out.step("report")?.stdout;
    let agreed = compare(&out.trace(), report)?;
    say!("{agreed}");
    // One that is missing and one that says something else must be noticed.
    let (before, last) = report
        .trim_end()
        .rsplit_once('\n')
        .context("trace-cmd's report has a line only")?;
    let other = last.replacen("mm=", "mm=1", 1);
    for changed in [before.to_owned(), format!("{before}\n{other}")] {
        ensure!(
            compare(&out.trace(), &changed).is_err(),
            "a report without its last line, or with another mm in it, compares equal: {last}"
        );
    }
    Ok(())
}

/// What a tracepoint or a record says: its name, who caused it, its fields.
#[derive(Debug)]
struct Told {
    name: String,
    /// Of what a snapshot tells, it is whoever takes it in the one and whom it is about in
    /// the other: none.
    tid: Option<u32>,
    fields: BTreeMap<String, String>,
}

impl Told {
    /// Whether all fields of the other one are here, too.
    fn says(&self, other: &Told) -> bool {
        let same = |(k, v)| self.fields.get(k) == Some(v);
        self.name == other.name
            && (other.tid.is_none() || self.tid == other.tid)
            && other.fields.iter().all(same)
    }
}

/// Says how many there are, if all agree.
fn compare(trace: &Path, report: &str) -> Result<String> {
    let mut seen = BTreeMap::new();
    for line in report.lines() {
        ensure!(
            !line.contains("EVENTS DROPPED"),
            "trace-cmd lost some: {line}"
        );
        if let Some((seq, told)) = tracepoint(line)? {
            if seen.insert(seq, told).is_some() {
                bail!("two tracepoints have the number {seq}");
            }
        }
    }
    let logged = logged(trace)?;
    ensure!(!logged.is_empty(), "the trace is empty");
    for (seq, told) in &logged {
        let point = seen
            .get(seq)
            .with_context(|| format!("no tracepoint has the number {seq}: {told:?}"))?;
        ensure!(
            point.says(told),
            "record {seq} is {told:?}, and the tracepoint says {point:?}"
        );
    }
    if let Some((seq, point)) = seen.iter().find(|(seq, _)| !logged.contains_key(seq)) {
        bail!("no record has the number {seq}: {point:?}");
    }
    let kinds: BTreeSet<_> = logged.values().map(|t| t.name.as_str()).collect();
    has_all(&kinds)?;
    Ok(format!(
        "  all {} tracepoints are records, of {} kinds",
        logged.len(),
        kinds.len()
    ))
}

/// Whether all that is wanted is among the kinds of records.
fn has_all(kinds: &BTreeSet<&str>) -> Result<()> {
    for kind in WANTED {
        ensure!(kinds.contains(kind), "there is no {kind}");
    }
    Ok(())
}

/// Takes a line of `trace-cmd report` apart: `comm-tid [cpu] flags time: name: fields`.
fn tracepoint(line: &str) -> Result<Option<(u64, Told)>> {
    let Some((head, rest)) = line.split_once(": vmtrace_") else {
        return Ok(None);
    };
    let parse = || {
        let (name, text) = rest.split_once(':')?;
        let (task, _) = head.split_once(" [")?;
        let tid = task.trim_end().rsplit_once('-')?.1.parse().ok()?;
        let mut fields: BTreeMap<String, String> = text
            .split_whitespace()
            .map(|f| f.split_once('=').map(|(k, v)| (k.into(), v.into())))
            .collect::<Option<_>>()?;
        let seq = fields.remove("seq")?.parse().ok()?;
        let name = name.into();
        let tid = Some(tid);
        Some((seq, Told { name, tid, fields }))
    };
    parse()
        .map(Some)
        .with_context(|| format!("this line of trace-cmd's can't be read: {line}"))
}

/// All references and events of a trace.
fn logged(path: &Path) -> Result<BTreeMap<u64, Told>> {
    let trace = Trace::open(path)?;
    let mut merge = Merge::new(&trace);
    let mut refs: Vec<Ref> = Vec::new();
    let mut all = BTreeMap::new();
    loop {
        match merge.fill(&mut refs, usize::MAX)? {
            Step::Full | Step::End => break,
            Step::Event(e) => {
                all.insert(e.seq, event(&e)?);
            }
        }
    }
    all.extend(
        refs.iter()
            .filter(|r| !r.flags().continues())
            .map(|r| (r.seq, reference(r))),
    );
    Ok(all)
}

fn reference(r: &Ref) -> Told {
    let access = match r.flags().access() {
        Access::Read => "read",
        Access::Write => "write",
        Access::Exec => "exec",
        Access::Seen => "seen",
    };
    told(
        "ref",
        Some(r.tid().0),
        [
            ("mm", r.mm.0.to_string()),
            ("addr", hex(r.address())),
            ("access", access.into()),
            ("kernel", u8::from(r.flags().kernel()).to_string()),
            ("pfn", hex(r.pfn.into())),
        ],
    )
}

fn event(e: &Event<'_>) -> Result<Told> {
    let text = |name: &[u8]| {
        String::from_utf8_lossy(name.split(|b| *b == 0).next().unwrap_or(name)).into_owned()
    };
    let mut fields = match e.said() {
        Body::Map(m) => vec![
            ("start", hex(m.start)),
            ("end", hex(m.end)),
            ("prot", prot(m.prot)),
            ("kind", map_kind(m.kind).into()),
            ("cause", cause(m.cause)?.into()),
            ("flags", hex(m.flags.into())),
            ("offset", hex(m.offset)),
            ("name", text(m.name)),
        ]
        .into_iter()
        .chain(of_file(&m.file))
        .collect(),
        Body::Unmap { start, end } => vec![
            ("start", hex(start)),
            ("end", hex(end)),
            ("arg", "0".into()),
        ],
        Body::Protect {
            start,
            end,
            prot: p,
        } => vec![("start", hex(start)), ("end", hex(end)), ("prot", prot(p))],
        Body::Move {
            old_start,
            old_len,
            new_start,
            new_len,
            dontunmap,
        } => vec![
            ("old_start", hex(old_start)),
            ("old_len", old_len.to_string()),
            ("new_start", hex(new_start)),
            ("new_len", new_len.to_string()),
            ("flags", if dontunmap { "dontunmap" } else { "" }.into()),
        ],
        Body::Gup {
            page,
            pfn,
            write,
            long_term,
        } => {
            let flags = [(write, "write"), (long_term, "longterm")];
            vec![
                ("page", hex(page)),
                ("pfn", hex(pfn)),
                ("flags", joined(&flags)),
            ]
        }
        Body::SwapIn(s) | Body::SwapOut(s) => vec![
            ("page", hex(s.page)),
            ("pfn", hex(s.pfn)),
            ("area", s.area.to_string()),
            ("slot", s.slot.to_string()),
        ],
        Body::Cow(f) | Body::Ksm(f) | Body::Migrate(f) => vec![
            ("page", hex(f.page)),
            ("old_pfn", hex(f.old_pfn)),
            ("new_pfn", hex(f.new_pfn)),
        ],
        Body::Switch { prev, next } => {
            vec![("prev", prev.0.to_string()), ("next", next.0.to_string())]
        }
        Body::Resize { from, to } => {
            vec![("from", from.to_string()), ("to", to.to_string())]
        }
        Body::MmDup { parent } => vec![("parent", parent.0.to_string())],
        Body::Fork {
            child_tid,
            child_tgid,
            child_mm,
            child_start,
        } => vec![
            ("child_tid", child_tid.0.to_string()),
            ("child_tgid", child_tgid.0.to_string()),
            ("child_mm", child_mm.0.to_string()),
            ("child_start", child_start.to_string()),
        ],
        Body::Exec {
            old_mm, file, name, ..
        } => [
            of_file(&file),
            vec![("old_mm", old_mm.0.to_string()), ("name", text(name))],
        ]
        .concat(),
        Body::Cgroup { tid, tgid, path } => vec![
            ("tid", tid.0.to_string()),
            ("tgid", tgid.0.to_string()),
            ("path", text(path)),
        ],
        Body::Exit {
            utime_ns,
            stime_ns,
            code,
        } => vec![
            ("code", hex(u64::from(code as u32))),
            ("utime", utime_ns.to_string()),
            ("stime", stime_ns.to_string()),
        ],
        Body::Task {
            tid,
            tgid,
            start,
            comm,
            ..
        } => vec![
            ("tid", tid.0.to_string()),
            ("tgid", tgid.0.to_string()),
            ("start", start.to_string()),
            ("comm", text(comm)),
        ],
        Body::Advise { start, end, advice } => vec![
            ("start", hex(start)),
            ("end", hex(end)),
            ("arg", advice.to_string()),
        ],
        Body::Open(f) | Body::Close(f) => [
            of_file(&f.file),
            vec![
                ("length", f.length.to_string()),
                ("kind", f.kind.name().into()),
                ("name", text(f.name)),
            ],
        ]
        .concat(),
        Body::Read(io) | Body::Write(io) => [
            of_file(&io.file),
            vec![
                ("offset", io.offset.to_string()),
                ("bytes", io.bytes.to_string()),
                ("kind", io.kind.name().into()),
                ("call", io.call.name().into()),
                ("flags", u8::from(io.direct).to_string()),
            ],
        ]
        .concat(),
        Body::Truncate { file, length } => {
            [of_file(&file), vec![("offset", length.to_string())]].concat()
        }
        Body::Punch {
            file,
            offset,
            bytes,
        } => [
            of_file(&file),
            vec![("offset", offset.to_string()), ("bytes", bytes.to_string())],
        ]
        .concat(),
        Body::Delete { file, length } => {
            [of_file(&file), vec![("bytes", length.to_string())]].concat()
        }
        Body::ShmAt(shm) | Body::ShmDt(shm) | Body::ShmDestroy(shm) => [
            of_file(&shm.file),
            vec![
                ("start", hex(shm.start)),
                ("end", hex(shm.end)),
                ("shmid", shm.shmid.to_string()),
            ],
        ]
        .concat(),
        Body::MmEnd | Body::SnapBegin | Body::SnapEnd | Body::RefsBegin | Body::CheckpointEnd => {
            vec![]
        }
        other => bail!("no tracepoint of such an event is known here: {other:?}"),
    };
    // The set is not an address space's.
    if !matches!(e.body, Body::Resize { .. }) {
        fields.push(("mm", e.mm.0.to_string()));
    }
    let snapshot = e.flags & uapi::VMTRACE_EVF_SNAPSHOT != 0;
    Ok(told(
        event_name(e.number),
        (!snapshot).then_some(e.tid.0),
        fields,
    ))
}

fn told(
    name: &str,
    tid: Option<u32>,
    fields: impl IntoIterator<Item = (&'static str, String)>,
) -> Told {
    Told {
        name: name.into(),
        tid,
        fields: fields.into_iter().map(|(k, v)| (k.into(), v)).collect(),
    }
}

fn hex(n: u64) -> String {
    format!("{n:#x}")
}

fn of_file(file: &FileId) -> Vec<(&'static str, String)> {
    vec![
        ("dev", format!("{}:{}", file.dev >> 20, file.dev & 0xf_ffff)),
        ("ino", file.ino.to_string()),
        ("generation", file.generation.to_string()),
    ]
}

fn joined(flags: &[(bool, &str)]) -> String {
    let set: Vec<_> = flags.iter().filter(|f| f.0).map(|f| f.1).collect();
    set.join("|")
}

fn prot(prot: Prot) -> String {
    let has = |bit| u32::from(prot.0) & bit != 0;
    joined(&[
        (has(uapi::VMTRACE_PROT_READ), "read"),
        (has(uapi::VMTRACE_PROT_WRITE), "write"),
        (has(uapi::VMTRACE_PROT_EXEC), "exec"),
    ])
}

fn map_kind(kind: MapKind) -> &'static str {
    match kind {
        MapKind::Anon => "anon",
        MapKind::File => "file",
        MapKind::Shmem => "shmem",
        MapKind::Device => "device",
        MapKind::Special => "special",
        MapKind::Hugetlb => "hugetlb",
        MapKind::Unknown => "unknown",
    }
}

fn cause(cause: u16) -> Result<&'static str> {
    Ok(match u32::from(cause) {
        uapi::VMTRACE_BY_MMAP => "mmap",
        uapi::VMTRACE_BY_BRK => "brk",
        uapi::VMTRACE_BY_STACK => "stack",
        uapi::VMTRACE_BY_MREMAP => "mremap",
        uapi::VMTRACE_BY_SNAPSHOT => "snapshot",
        uapi::VMTRACE_BY_SPECIAL => "special",
        other => bail!("a mapping of unknown cause {other}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All other kinds, and why the tracepoint of none is compared with a record.
    const NOT_MADE: &[(&str, &str)] = &[
        (
            "refs_begin",
            "of a trace from boot alone: it comes before trace-cmd can run",
        ),
        (
            "set",
            "of a trace of several sets, which the programs' one is not",
        ),
        (
            "filter",
            "of a trace with filters, which the programs' one is not",
        ),
        (
            "checkpoint",
            "of a trace in pieces, which the programs' one is not",
        ),
        (
            "checkpoint_end",
            "of a trace in pieces, which the programs' one is not",
        ),
        (
            "region",
            "of a trace of regions, which the programs' one is not",
        ),
    ];

    #[test]
    fn a_line_of_trace_cmds_is_taken_apart() {
        let line = "   my-prog-one-123   [001] .....   12.345678: vmtrace_protect:      \
                    seq=7 mm=2 start=0x1000 end=0x2000 prot=";
        let (seq, told) = tracepoint(line).unwrap().unwrap();
        assert_eq!(
            (seq, told.name.as_str(), told.tid),
            (7, "protect", Some(123))
        );
        assert_eq!(told.fields["prot"], "");
        assert_eq!(told.fields["end"], "0x2000");
        assert!(tracepoint("cpus=2").unwrap().is_none());
        assert!(tracepoint(" a-1 [000] 1.0: vmtrace_unmap: mm=1").is_err());
    }

    /// An event that is new must be made by the programs, or be named.
    #[test]
    fn each_kind_of_event_is_made_or_named() {
        let made = || WANTED.iter().copied().filter(|kind| *kind != "ref");
        let mut named: Vec<_> = made().chain(NOT_MADE.iter().map(|n| n.0)).collect();
        let mut all = ::postproc::trace::wire::event_names();
        named.sort_unstable();
        all.sort_unstable();
        assert_eq!(named, all);
        let about = scenario().about;
        let counts = format!("of {} of {} kinds", made().count(), all.len());
        assert!(about.ends_with(&counts), "{about}: {counts}");
    }

    #[test]
    fn a_kind_that_is_missing_is_noticed() {
        let without = |kind: &'static str| WANTED.iter().copied().filter(move |k| *k != kind);
        assert!(has_all(&without("").collect()).is_ok());
        for kind in WANTED {
            let error = has_all(&without(kind).collect()).unwrap_err().to_string();
            assert_eq!(error, format!("there is no {kind}"));
        }
    }

    #[test]
    fn another_field_or_thread_is_noticed() {
        let line = |tid: u32, end: &str| {
            let line = format!(" a-{tid} [000] 1.0: vmtrace_unmap: seq=1 mm=1 end={end} more=1");
            tracepoint(&line).unwrap().unwrap().1
        };
        let record = told(
            "unmap",
            Some(5),
            [("mm", "1".into()), ("end", "0x10".into())],
        );
        assert!(line(5, "0x10").says(&record));
        assert!(!line(6, "0x10").says(&record));
        assert!(!line(5, "0x11").says(&record));
        assert!(!record.says(&line(5, "0x10")));
    }
}
