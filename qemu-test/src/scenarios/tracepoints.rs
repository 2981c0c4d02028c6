//! The events as tracepoints: what Debian's trace-cmd records beside a trace is what the
//! trace has, field by field, of each kind of event that can come while trace-cmd runs.

use super::Scenario;
use super::corners::nodes;
use crate::machine::{Machine, Profile, debian};
use crate::runner::say;
use ::postproc::trace::wire::event_names;
use ::postproc::trace::{Body, Event, Fields, MapKind, Merge, Ref, Step, Trace};
use ::postproc::units::{Access, Prot};
use anyhow::{Context, Result, bail, ensure};
use rust_mm_trace::uapi;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The scenario.
pub fn scenario() -> Scenario {
    Scenario {
        name: "tracepoints".into(),
        about: "trace-cmd sees each reference and event that the trace has, of all kinds that programs make",
        run: Box::new(run),
    }
}

/// Kinds of events that the programs below do not make, and why the tracepoint of none is compared with a record. They
/// make all others.
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

/// Kinds of records that the programs must have made.
fn wanted() -> impl Iterator<Item = &'static str> {
    let is_made = |name: &&str| NOT_MADE.iter().all(|(other, _)| other != name);
    ["ref"]
        .into_iter()
        .chain(event_names().into_iter().filter(is_made))
}

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
    for kind in wanted() {
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
            .map(|f| f.split_once('=').map(|(k, v)| (k.into(), in_digits(v))))
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
            ("addr", r.address().to_string()),
            ("access", access.into()),
            ("kernel", u8::from(r.flags().kernel()).to_string()),
            ("pfn", r.pfn.to_string()),
        ],
    )
}

/// An event: the fields that postproc gives, as the tracepoint prints them.
fn event(e: &Event<'_>) -> Result<Told> {
    let body = e.said();
    let mut printed = Printed::default();
    body.fields(&mut printed);
    let mut fields = printed.0;
    // What a tracepoint prints under another name, or as words.
    let mut renamed = |from: &str, to: &'static str| {
        if let Some(value) = fields.remove(from) {
            fields.insert(to.into(), value);
        }
    };
    let own = match body {
        Body::Map(m) => vec![("prot", prot(m.prot)), ("cause", cause(m.cause)?.into())],
        Body::Unmap { .. } => vec![("arg", "0".into())],
        Body::Protect { prot: p, .. } => vec![("prot", prot(p))],
        Body::Move { dontunmap, .. } => {
            renamed("dontunmap", "flags");
            vec![("flags", if dontunmap { "dontunmap" } else { "" }.into())]
        }
        Body::Gup {
            write, long_term, ..
        } => {
            renamed("write", "flags");
            renamed("long_term", "flags");
            let flags = [(write, "write"), (long_term, "longterm")];
            vec![("flags", joined(&flags))]
        }
        Body::Exit { code, .. } => vec![("code", (code as u32).to_string())],
        _ => vec![],
    };
    match body {
        Body::Advise { .. } => renamed("advice", "arg"),
        Body::Truncate { .. } => renamed("length", "offset"),
        Body::Delete { .. } => renamed("length", "bytes"),
        Body::Read(_) | Body::Write(_) => renamed("direct", "flags"),
        _ => {}
    }
    fields.extend(own.into_iter().map(|(k, v)| (k.into(), v)));
    // The set is not an address space's.
    if !matches!(e.body, Body::Resize { .. }) {
        fields.insert("mm".into(), e.mm.0.to_string());
    }
    // The name that a task has when it executes a program is not told.
    if matches!(body, Body::Exec { .. }) {
        fields.remove("comm");
    }
    let snapshot = e.flags & uapi::VMTRACE_EVF_SNAPSHOT != 0;
    Ok(Told {
        name: e.name().into(),
        tid: (!snapshot).then_some(e.tid.0),
        fields,
    })
}

/// Fields as tracepoints print them: all numbers in decimal digits.
#[derive(Default)]
struct Printed(BTreeMap<String, String>);

impl Printed {
    fn put(&mut self, name: &str, value: String) {
        // Where postproc's tables have more than one time or thread, tracepoints have names of their own.
        let name = name.strip_prefix("task_").unwrap_or(name);
        let name = name.strip_suffix("_ns").unwrap_or(name);
        self.0.insert(name.into(), value);
    }
}

impl Fields for Printed {
    fn u64(&mut self, name: &str, value: u64) {
        let value = match name {
            "dev" => format!("{}:{}", value >> 20, value & 0xf_ffff),
            _ => value.to_string(),
        };
        self.put(name, value);
    }
    fn hex(&mut self, name: &str, value: u64) {
        self.put(name, value.to_string());
    }
    fn u32(&mut self, name: &str, value: u32) {
        self.put(name, value.to_string());
    }
    fn i32(&mut self, name: &str, value: i32) {
        self.put(name, value.to_string());
    }
    fn u8(&mut self, name: &str, value: u8) {
        self.put(name, value.to_string());
    }
    fn kind(&mut self, name: &str, value: MapKind) {
        self.put(name, value.name().into());
    }
    fn text(&mut self, name: &str, value: &[u8]) {
        let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
        self.put(name, in_digits(&String::from_utf8_lossy(&value[..end])));
    }
}

/// A number in hexadecimal digits as one in decimal digits; other text as it is.
fn in_digits(value: &str) -> String {
    let digits = value.strip_prefix("0x");
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.map_or_else(|| value.into(), |number| number.to_string())
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
        assert_eq!(told.fields["end"], 0x2000.to_string());
        assert!(tracepoint("cpus=2").unwrap().is_none());
        assert!(tracepoint(" a-1 [000] 1.0: vmtrace_unmap: mm=1").is_err());
    }

    #[test]
    fn kinds_that_are_not_made_are_kinds_of_events() {
        let all = event_names();
        let unknown = NOT_MADE.iter().find(|(name, _)| !all.contains(name));
        assert_eq!(unknown, None);
        assert_eq!(wanted().count(), 1 + all.len() - NOT_MADE.len());
    }

    /// The kernel's compiler demands neither a tracepoint nor that the event is passed to it.
    #[test]
    fn each_kind_of_event_has_a_tracepoint() {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let patches = std::fs::read_dir(top.join("linux-patches")).unwrap();
        let patches = patches.map(|entry| read(&entry.unwrap().path()));
        let file = "+++ b/include/trace/events/vmtrace.h";
        let header: String = patches.filter(|text| text.contains(file)).collect();
        let switch = read(&top.join("rust-mm-trace/kernel/trace.c"));
        let lacks = |name: &str, header: &str, switch: &str| {
            // TRACE_EVENT(NAME or DEFINE_EVENT(CLASS, NAME
            let is_made = header.lines().any(|line| {
                let made = line
                    .strip_prefix('+')
                    .and_then(|line| line.split_once("_EVENT"));
                let of = made.and_then(|(_, rest)| rest.strip_suffix(','));
                of.is_some_and(|rest| {
                    rest.rsplit(['(', ' ']).next() == Some(&format!("vmtrace_{name}"))
                })
            });
            let case = format!(
                "case VMTRACE_EV_{}:\n\t\ttrace_vmtrace_{name}(",
                name.to_uppercase()
            );
            !is_made || !switch.contains(&case)
        };
        for name in event_names() {
            assert!(!lacks(name, &header, &switch), "no tracepoint of {name}");
            // The control.
            let other = header.replace(&format!("vmtrace_{name},"), "vmtrace_other,");
            assert!(lacks(name, &other, &switch), "{name}");
            let other = switch.replace(&format!("trace_vmtrace_{name}("), "other(");
            assert!(lacks(name, &header, &other), "{name}");
        }
    }

    #[test]
    fn a_kind_that_is_missing_is_noticed() {
        let without = |kind: &'static str| wanted().filter(move |k| *k != kind);
        assert!(has_all(&without("").collect()).is_ok());
        for kind in wanted() {
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
        let record = told("unmap", Some(5), [("mm", "1".into()), ("end", "16".into())]);
        assert!(line(5, "0x10").says(&record));
        assert!(!line(6, "0x10").says(&record));
        assert!(!line(5, "0x11").says(&record));
        assert!(!record.says(&line(5, "0x10")));
    }
}
