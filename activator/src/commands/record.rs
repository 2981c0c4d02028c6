//! `activator record`: a trace from its begin to its end, for people.
//!
//! With a command it is `activator run`. Otherwise it is `activator on`, a wait, and
//! `activator off`.

use std::path::Path;
use std::time::{Duration, Instant};

use rust_mm_trace::shell::quoted;

use super::on::Attached;
use super::{Connect, hold_signals, off, on, run, status_of, stop};
use crate::cli::RecordArgs;
use crate::control::Control;
use crate::error::{BAD_TRACE, Failure};
use crate::keeper::Keeper;
use crate::pace::Pace;
use crate::status::Status;
use crate::summary::{self, Command};
use crate::sys::{Ready, Signals, Watched};
use crate::units::{bytes, count, duration};
use crate::{Io, Name};

/// Time between two checks of whether the trace is still on.
const LOOK: Duration = Duration::from_secs(1);

/// Records a trace.
pub fn execute(args: &RecordArgs, connect: Connect<'_>, io: &mut Io<'_>) -> Result<u8, Failure> {
    let (name, output) = (io.name, &args.run.trace.output);
    let shown =
        |status: &Status, command, pace: Option<&Pace>| text(status, command, pace, output, name);
    if !args.run.command.is_empty() {
        return run::execute_with(&args.run, connect, io, shown);
    }
    let control = connect()?;
    let control = control.as_ref();
    let process = watched(args.scope.pid)?;
    let asked = on::Asked {
        scope: &args.scope,
        trace: &args.run.trace,
        is_recording: true,
    };
    let mut keeper = match on::attach(&asked, connect, io)? {
        // A bad trace goes on, too.
        Attached::Begun(0 | BAD_TRACE, keeper) => keeper,
        Attached::Begun(code, _) | Attached::Kept(code) => return Ok(code),
    };
    // From here on, the trace is ended in every case. Signals are still blocked.
    let ready = hold_signals(&[]).and_then(|signals| Ok((signals, status_of(control)?)));
    let (mut signals, begun) = match ready {
        Ok(ready) => ready,
        Err(e) => {
            // The first failure is the one to report.
            let _ = stop(control);
            return Err(e);
        }
    };
    let mut kept = Kept {
        control,
        begun: &begun,
        keeper: keeper.as_deref_mut(),
    };
    wait(args, process.as_ref(), &mut kept, &mut signals, io);
    let status = end(control, &begun)?;
    let pace = keeper.as_deref().and_then(Keeper::pace);
    if let Some(directory) = status.directory() {
        off::end_of_pieces(&directory, &status, io);
    }
    if args.run.trace.json {
        let json = summary::json(&status, None);
        io.print(&match pace {
            Some(pace) => pace.json(&status, json),
            None => json,
        })?;
    } else if args.run.quiet {
        status.problems().iter().for_each(|p| io.note(p));
    } else {
        // If that fails, the failure cannot be reported.
        let _ = io.err.write_all(shown(&status, None, pace).as_bytes());
    }
    Ok(status.exit_code())
}

/// The process whose end ends the trace. None also if there is no such process, which the start of
/// the trace reports.
fn watched(pid: Option<i32>) -> Result<Option<Watched>, Failure> {
    let Some(pid) = pid else {
        return Ok(None);
    };
    match Watched::new(pid) {
        Ok(process) => Ok(Some(process)),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(e) => Err(Failure::usage(format!("can't watch process {pid}: {e}"))),
    }
}

/// A trace that is waited for.
struct Kept<'a> {
    control: &'a dyn Control,
    begun: &'a Status,
    /// If this process looks after it.
    keeper: Option<&'a mut Keeper>,
}

/// Waits for what ends the trace.
fn wait(
    args: &RecordArgs,
    process: Option<&Watched>,
    kept: &mut Kept<'_>,
    signals: &mut Signals,
    io: &mut Io<'_>,
) {
    let end = args
        .duration
        .map(|ns| Instant::now() + Duration::from_nanos(ns));
    loop {
        let now = Instant::now();
        if signals.ending().is_some() || end.is_some_and(|end| end <= now) {
            return;
        }
        let mut left = end.map_or(LOOK, |end| LOOK.min(end - now));
        if let Some(keeper) = &mut kept.keeper {
            keeper.look(kept.control, io);
            let next = keeper.next_at();
            left = next.map_or(left, |next| left.min(next.saturating_duration_since(now)));
        }
        let fds = [Some(signals.fd()), process.map(Watched::fd)];
        match Ready::wait(&fds, left) {
            Ok(ready) if ready.is(1) => return,
            Ok(_) => {}
            Err(e) => {
                io.note(&format!("can't wait for events: {e}"));
                return;
            }
        }
        // A failed request means nothing for the trace.
        let is_over = |s: Status| s.raw.uuid != kept.begun.raw.uuid || !s.is_on();
        if kept.control.status().is_ok_and(is_over) {
            return;
        }
    }
}

/// Ends the trace, if it is on, and gives its counts.
fn end(control: &dyn Control, begun: &Status) -> Result<Status, Failure> {
    let is_ours = |status: &Status| status.raw.uuid == begun.raw.uuid;
    let mut status = status_of(control)?;
    if is_ours(&status) && status.is_on() {
        status = match stop(control)? {
            Some(status) => status,
            // Somebody ended it between the two calls.
            None => status_of(control)?,
        };
    }
    match is_ours(&status) {
        true => Ok(status),
        false => Err(Failure::usage(format!(
            "somebody has ended the trace and begun another one; `postproc info {}` shows what the \
             trace contains",
            summary::trace(begun)
        ))),
    }
}

/// A short summary, and what to type next.
fn text(
    status: &Status,
    command: Option<Command>,
    pace: Option<&Pace>,
    output: &Path,
    name: Name,
) -> String {
    let records = match status.is_of_regions() {
        true => format!("regions, {} events", count(status.raw.events)),
        false => format!("{} references", count(status.references())),
    };
    let mut text = format!(
        "{}: {records} in {}, {}\n",
        output.display(),
        duration(status.duration_ns()),
        bytes(status.raw.stored)
    );
    if let Some(pace) = pace {
        text += &format!("slowdown: {}\n", pace.text(status));
    }
    let problems = summary::problems(status, command);
    for problem in &problems {
        text += &format!("BAD: {}\n", name.named(problem));
    }
    let (reader, output) = (name.reader(), quoted(&output.display().to_string()));
    text += &format!("next:\n  {reader} check {output}\n");
    if problems.is_empty() && status.is_of_regions() {
        text += &format!("  {reader} regions {output}\n");
        text += &format!("  {reader} export {output} --format damon -o damon.data\n");
    } else if problems.is_empty() {
        text += &format!("  {reader} info {output}\n  {reader} report {output}\n");
        if status.has_regions() {
            text += &format!("  {reader} regions {output}\n");
        }
        text += &format!("  {reader} simulate {output} --policy lru,opt --curve\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Bench, Fake};

    #[test]
    fn ends_after_a_time() {
        let mut bench = Bench::new();
        let line = ["record", "--all", "--for", "20ms", "-o", "t.vmt"];
        let got = bench.activator(&line);
        let err = &got.expect(0).err;
        assert_eq!(got.out, "");
        assert_eq!((bench.fake.starts.get(), bench.fake.stops.get()), (1, 1));
        let path = bench.path("t.vmt").display().to_string();
        let (begun, ended) = err.split_once('\n').expect("two messages");
        assert_eq!(
            begun,
            format!("activator: tracing all processes into {path} with N=512; Ctrl-C ends it")
        );
        assert!(ended.starts_with(&format!("{path}: ")), "{ended}");
        assert!(ended.contains("references in"), "{ended}");
        let next = format!("\nnext:\n  postproc check {path}\n  postproc info {path}\n");
        assert!(ended.contains(&next), "{ended}");

        // Of regions, which have no references.
        let line = [
            "record", "--all", "--for", "1ms", "-o", "r.vmt", "--sample", "5ms",
        ];
        let got = bench.activator(&line);
        let err = &got.expect(0).err;
        assert!(err.contains("r.vmt: regions, "), "{err}");
        let next = format!("  postproc regions {}\n", bench.path("r.vmt").display());
        assert!(err.contains(&next) && !err.contains("references"), "{err}");

        // The same under the name that people know.
        bench.name = Name::Kvmtrace;
        let line = ["record", "--all", "--for", "1ms", "-o", "u.vmt"];
        let got = bench.activator(&line);
        let err = &got.expect(0).err;
        assert!(err.starts_with("kvmtrace: tracing"), "{err}");
        assert!(err.contains("\nnext:\n  kvmtrace check"), "{err}");
        assert!(!err.contains("postproc"), "{err}");
        let got = bench.activator(&["off"]);
        assert_eq!(
            got.expect(2).err,
            "kvmtrace: tracing is not on: `kvmtrace on` starts it\n"
        );
    }

    #[test]
    fn says_how_large_the_trace_is() {
        let mut status = Fake::example();
        status.raw.stored = status.raw.bytes / 8;
        let said = text(&status, None, None, Path::new("t.vmt"), Name::Activator);
        let want = "t.vmt: 1,234,567 references in 12.5 s, 4.7 MiB\n";
        assert!(said.starts_with(want), "{said}");
    }

    #[test]
    fn keeps_to_a_budget() {
        let bench = Bench::new();
        // As with `run`: 2000 pages suit the budget.
        bench.fake.program.set(|n| {
            let references = 20_000_000 / u64::from(n);
            (references, 100_000_000 + references * 1000)
        });
        let line = [
            "record",
            "--all",
            "--for",
            "700ms",
            "--slowdown",
            "1.1",
            "--cost",
            "1000",
        ];
        let got = bench.activator(&[&line[..], &["--json", "-o", "t.vmt"]].concat());
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
        let n = json["evms_size"].as_u64().expect("a number");
        assert!((1000..4000).contains(&n), "{json}");
        let slowdown = json["slowdown"].as_f64().expect("a number");
        assert!((1.05..1.15).contains(&slowdown), "{json}");
        let got = bench.activator(&[&line[..], &["-o", "u.vmt"]].concat());
        let told = "\nslowdown: 1.";
        assert!(got.expect(0).err.contains(told), "{}", got.err);
        assert!(!bench.path("u.vmt.keeper.log").exists());
    }

    #[test]
    fn a_trace_that_cannot_be_watched_is_ended() {
        let bench = Bench::new();
        // The first look is that of the start.
        bench.fake.refuse_look(2);
        let line = ["record", "--all", "--for", "1ms", "-o", "t.vmt"];
        bench.activator(&line).expect(2);
        assert_eq!((bench.fake.starts.get(), bench.fake.stops.get()), (1, 1));
    }

    #[test]
    fn json_is_one_object() {
        let bench = Bench::new();
        let line = ["record", "--all", "--for", "1ms", "--json", "-o", "t.vmt"];
        let got = bench.activator(&line);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
        assert_eq!(json["state"], 0);
        assert_eq!(got.err, "");
    }

    #[test]
    fn a_bad_trace_is_reported() {
        let bench = Bench::new();
        bench.fake.change(|s| s.lost_full = 3);
        let line = ["record", "--all", "--for", "1ms", "-o", "t.vmt"];
        let got = bench.activator(&line);
        let err = &got.expect(1).err;
        assert!(err.contains("\nBAD: 3 records lost"), "{err}");
        assert!(!err.contains("simulate"), "{err}");
        assert_eq!(bench.fake.stops.get(), 1);
    }

    #[test]
    fn what_is_asked_for_must_be_clear() {
        let bench = Bench::new();
        for (args, why) in [
            (&["record"][..], "<CMD|--all|--pid <PID>|--cgroup"),
            (&["record", "--all", "ls"], "cannot be used with"),
            (&["record", "--for", "1s", "ls"], "cannot be used with"),
            (&["record", "--all", "-p", "1"], "cannot be used with"),
            (&["record", "--all", "--wait-all"], "cannot be used with"),
            (
                &["record", "--all", "--windows", "list"],
                "cannot be used with",
            ),
            (&["record", "-p", "2147483647"], "there is no process"),
        ] {
            let got = bench.activator(args);
            assert!(got.expect(2).err.contains(why), "{args:?}: {}", got.err);
        }
        assert_eq!(bench.fake.starts.get(), 0);
    }
}
