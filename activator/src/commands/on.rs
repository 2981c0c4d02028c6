//! `activator on`

use super::{
    Connect, budget, config, go_on, hold_signals, open_output, rotate, status_of, stop, text,
    virtual_time, writing,
};
use crate::cli::{OnArgs, ScopeArgs, TraceArgs};
use crate::control::{Control, Scope, check_early, check_ready, start, take, window};
use crate::error::Failure;
use crate::keeper::{self, Keeper};
use crate::status::State;
use crate::sys::{self, Side, Signals, Tell, Watched};
use crate::{Io, summary};

/// Starts a trace of processes that run already.
pub fn execute(args: &OnArgs, connect: Connect<'_>, io: &mut Io<'_>) -> Result<u8, Failure> {
    let asked = Asked {
        scope: &args.scope,
        trace: &args.trace,
        is_recording: false,
    };
    attach(&asked, connect, io).map(|attached| match attached {
        Attached::Begun(code, _) | Attached::Kept(code) => code,
    })
}

/// What is to be traced, and how.
pub(super) struct Asked<'a> {
    /// Which processes.
    pub scope: &'a ScopeArgs,
    /// How.
    pub trace: &'a TraceArgs,
    /// Whether the caller waits for the end of the trace, and prints what there is to print.
    pub is_recording: bool,
}

/// Which process goes on, and with which exit code it would end.
pub(super) enum Attached {
    /// The one that has called. It has to look after the trace, if there is a keeper.
    Begun(u8, Option<Box<Keeper>>),
    /// The process in the background, after the end of the trace.
    Kept(u8),
}

/// Starts the trace. The signals that end a program are blocked then.
pub(super) fn attach(
    args: &Asked<'_>,
    connect: Connect<'_>,
    io: &mut Io<'_>,
) -> Result<Attached, Failure> {
    let mut signals = hold_signals(&keeper::signals(&args.trace.pieces))?;
    let is_kept = args.trace.is_kept() && io.background;
    // Pieces are begun by another process in any case, which goes on if this one is killed.
    if !is_kept || (args.is_recording && args.trace.pieces.rotate.is_none()) {
        let control = connect()?;
        return begin(args, control.as_ref(), &mut signals, io)
            .map(|begun| Attached::Begun(begun.code, begun.keeper.map(Box::new)));
    }
    // A trace of all processes leaves the one out that starts it. So that one stays. (A trace from boot has
    // all processes, this one, too.)
    let failed = |e| Failure::usage(format!("can't create a child process: {e}"));
    match sys::split().map_err(failed)? {
        Side::Parent(child) => child
            .wait(&mut signals)
            .map(|code| Attached::Begun(code, None))
            .map_err(failed),
        Side::Child(tell) => keep(args, connect, &mut signals, tell, io).map(Attached::Kept),
    }
}

/// Starts the trace, lets the parent end, and looks after the trace.
fn keep(
    args: &Asked<'_>,
    connect: Connect<'_>,
    signals: &mut Signals,
    tell: Tell,
    io: &mut Io<'_>,
) -> Result<u8, Failure> {
    let control = connect()?;
    let begun = begin(args, control.as_ref(), signals, io)?;
    let Some(mut keeper) = begun.keeper else {
        return Ok(begun.code);
    };
    // The process in the background has another working directory.
    let output = std::path::absolute(&args.trace.output);
    let mut log = keeper.log(&output.unwrap_or_else(|_| args.trace.output.clone()));
    tell.detach(begun.code);
    // What came until now was for the parent, too.
    let _ = signals.ending();
    let mut io = Io {
        out: &mut std::io::sink(),
        err: &mut log,
        background: false,
        is_stdout: false,
        name: io.name,
    };
    keeper.until_end(control.as_ref(), begun.process, signals, &mut io);
    Ok(0)
}

/// A trace that has begun.
struct Begun {
    /// The exit code that is due.
    code: u8,
    /// If it needs one.
    keeper: Option<Keeper>,
    /// If its end is waited for.
    process: Option<Watched>,
}

fn begin(
    args: &Asked<'_>,
    control: &dyn Control,
    signals: &mut Signals,
    io: &mut Io<'_>,
) -> Result<Begun, Failure> {
    let snapshots = keeper::prepare(args.trace, true)?;
    // Everything that can be checked is checked before anything is created.
    if args.scope.early {
        check_early(control)?;
    } else {
        check_ready(control, &args.trace.sizes())?;
    }
    let scope = args.scope.asked().scope()?;
    let process = match (&snapshots, &scope) {
        (Some(snapshots), Scope::Tree(pid)) if snapshots.awaits_exit() => {
            let watched = Watched::new(*pid);
            Some(watched.map_err(|e| Failure::usage(format!("can't watch process {pid}: {e}")))?)
        }
        (Some(snapshots), _) if snapshots.awaits_exit() => {
            return Err(Failure::usage(
                "--snapshot-on exit: is about one program: use --pid, or `activator run`",
            ));
        }
        _ => None,
    };
    let ticks = match args.scope.early {
        true => Ok(None),
        false => virtual_time(args.trace, control),
    };
    go_on(signals)?;
    let ticks = ticks?;
    let budget = budget(args.trace, ticks, control);
    go_on(signals)?;
    let budget = budget?;
    let output = open_output(args.trace, io)?;
    let started = if args.scope.early {
        take(control, &output.name(), writing(args.trace), output.fd())
    } else {
        let config = config(args.trace, scope, ticks, &output);
        start(control, &config, output.fd())
    };
    if let Err(failure) = started {
        output.discard();
        return Err(failure);
    }
    // The trace from boot cannot be taken a second time: it stays.
    if let (false, Err(failure)) = (args.scope.early, go_on(signals)) {
        let _ = stop(control);
        output.discard();
        return Err(failure);
    }
    if args.trace.pausable && !args.trace.paused {
        window(control, true)?;
    }
    let status = status_of(control)?;
    if let (State::Failed, Some(why)) = (status.state(), status.failure()) {
        let _ = stop(control);
        let name = output.name();
        output.discard();
        return Err(Failure::usage(format!(
            "the trace failed at its start: can't write {name}: {why}; give -o another path"
        )));
    }
    output.commit()?;
    let keeper = Keeper::new(&args.trace.pieces, snapshots, budget, &status, None);
    let keeps = keeper
        .as_ref()
        .filter(|_| io.background && !args.is_recording);
    let keeps = keeps.map(|keeper| (std::process::id(), keeper.task()));
    if args.trace.json {
        let shown = match keeps {
            Some((pid, _)) => rotate::beside(&status, "keeper_pid", pid.into()),
            None => text(&status, true),
        };
        // Whoever records prints one object, at the end.
        if !args.is_recording {
            io.print(&shown)?;
        }
    } else {
        let is_of_regions = args.trace.sampling.sample.is_some();
        let line = format!(
            "{} {} into {}{}{}; {}{}{} ends it",
            if args.trace.paused {
                "to trace"
            } else if is_of_regions {
                "sampling regions of"
            } else {
                "tracing"
            },
            status.scope(),
            summary::trace(&status),
            match is_of_regions {
                true => String::new(),
                false => format!(" with N={}{}", status.raw.evms_size, status.for_each()),
            },
            match args.trace.sampling.between {
                Some(_) => " in windows, and sampling regions between them",
                None => "",
            },
            match keeps {
                Some((pid, task)) => format!("process {pid} {task}, "),
                None => String::new(),
            },
            if args.trace.paused {
                "`activator resume` begins, "
            } else {
                ""
            },
            match args.is_recording {
                true => "Ctrl-C",
                false => "`activator off`",
            }
        );
        match args.is_recording {
            true => io.note(&line),
            false => io.print(&(line + "\n"))?,
        }
    }
    // A trace from boot may have lost records before it was taken.
    let problems = status.problems();
    problems.iter().for_each(|p| io.note(p));
    Ok(Begun {
        code: status.exit_code(),
        keeper,
        process,
    })
}

#[cfg(test)]
mod tests {
    use crate::fake::Bench;

    #[test]
    fn starts_and_says_so() {
        let bench = Bench::new();
        let got = bench.activator(&["on", "--all", "-o", "t.vmt", "-n", "16MiB"]);
        let path = bench.path("t.vmt");
        assert_eq!(
            got.expect(0).out,
            format!(
                "tracing all processes into {} with N=4096; `activator off` ends it\n",
                path.display()
            )
        );
        assert_eq!(bench.fake.starts.get(), 1);
        let pid = std::process::id().to_string();
        bench.activator(&["off"]).expect(0);
        let json = bench.activator(&["on", "--pid", &pid, "-o", "u.vmt", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json.expect(0).out).expect("JSON");
        assert_eq!(json["pid"].to_string(), pid);
        assert_eq!(
            (&json["state"], &json["evms_size"]),
            (&1.into(), &512.into())
        );
    }

    #[test]
    fn in_pieces() {
        let bench = Bench::new();
        let on = ["on", "--all", "--rotate", "1G", "-o", "t"];
        let got = bench.activator(&on);
        let want = format!(
            "tracing all processes into {} with N=512; `activator off` ends it\n",
            bench.path("t").display()
        );
        assert_eq!(got.expect(0).out, want);
        assert!(bench.path("t").join("00000.vmtrace").exists());
        let exit = [&on[..5], &["u", "--snapshot-on", "exit:!0"]].concat();
        let got = bench.activator(&exit);
        assert!(got.expect(2).err.contains("already on"), "{}", got.err);
        bench.activator(&["off"]).expect(0);
        let got = bench.activator(&exit);
        assert!(got.expect(2).err.contains("use --pid"), "{}", got.err);
        let got = bench.activator(&[&on[..5], &["no/such/t"]].concat());
        assert!(got.expect(2).err.contains("there is no directory"));
        let got = bench.activator(&on);
        assert!(got.expect(2).err.contains("t is not empty"), "{}", got.err);
        bench.fake.refuse_start(libc::ENOMEM);
        bench.activator(&[&on[..5], &["u"]].concat()).expect(2);
        assert!(!bench.path("u").exists());
    }

    #[test]
    fn filtered() {
        let bench = Bench::new();
        let on = ["on", "--all", "-o", "t.vmt"];
        bench.activator(&on).expect(0);
        let got = bench.activator(&["status"]);
        assert!(!got.expect(0).out.contains("\nfilter "), "{}", got.out);
        assert_eq!(bench.fake.filter(), None);
        bench.activator(&["off"]).expect(0);
        let got = bench.activator(&["on", "--all", "-o", "u.vmt", "--filter", "cpu == 1"]);
        let want = " with N=512; `activator off` ends it\n";
        assert!(got.expect(0).out.ends_with(want), "{}", got.out);
        assert_eq!(bench.fake.filter().as_deref(), Some("cpu == 1"));
        let got = bench.activator(&["status"]);
        let told = "\nfilter     8 records of references left out\n";
        assert!(got.expect(0).out.contains(told), "{}", got.out);
        bench.activator(&["filter", ""]).expect(0);
        let got = bench.activator(&["off", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
        assert_eq!(json["flags"], 128 | 8);
        let left_out = json["left_out"].as_u64().unwrap_or_default();
        assert!(left_out >= 8, "{json}");
        assert_eq!(
            json["refs"].as_u64().map(|n| n + left_out),
            json["admissions"].as_u64()
        );
    }

    #[test]
    fn of_regions() {
        let bench = Bench::new();
        let on = [
            "on", "--all", "-o", "t.vmt", "--sample", "1ms", "--by", "fault",
        ];
        let got = bench.activator(&on);
        let want = format!(
            "sampling regions of all processes into {}; `activator off` ends it\n",
            bench.path("t.vmt").display()
        );
        assert_eq!(got.expect(0).out, want);
        let raw = bench.fake.sampling.get();
        assert_eq!(
            (raw.sample, raw.aggregate, raw.update),
            (1_000_000, 20_000_000, 200_000_000)
        );
        assert_eq!((raw.min_regions, raw.max_regions, raw.by), (10, 1000, 1));
        let got = bench.activator(&["status"]);
        let text = &got.expect(0).out;
        let told =
            "\nregions    are sampled and reported as events; no reference is recorded\nevents ";
        assert!(text.contains(told), "{text}");
        assert!(
            !text.contains("\nreferences ") && !text.contains("\npages "),
            "{text}"
        );
        let got = bench.activator(&["status", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
        assert_eq!(
            (&json["flags"], &json["of_regions"]),
            (&(1024 | 8).into(), &true.into())
        );
        let text = bench.activator(&["off"]).expect(0).out.clone();
        assert!(text.contains("\nnext       postproc regions "), "{text}");
        // Another trace is one of references.
        bench.activator(&["on", "--all", "-o", "u.vmt"]).expect(0);
        assert_eq!(bench.fake.sampling.get().sample, 0);
        let got = bench.activator(&["off", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
        assert_eq!(json["of_regions"], false);
    }

    #[test]
    fn regions_are_refused() {
        let bench = Bench::new();
        let on = ["on", "--all", "-o", "t.vmt", "--sample", "5ms"];
        let got = bench.activator(&[&on[..], &["--aggregate", "1ms"]].concat());
        assert!(
            got.expect(2)
                .err
                .contains("--aggregate is less than the time of a look")
        );
        assert!(!bench.path("t.vmt").exists());
        // By a kernel that does not know them.
        bench.fake.refuse_start(libc::E2BIG);
        let got = bench.activator(&on);
        let err = &got.expect(2).err;
        assert!(err.contains("refused to sample regions"), "{err}");
        assert!(!bench.path("t.vmt").exists());
    }

    #[test]
    fn counted() {
        for (options, is_counted) in [(&[][..], false), (&["--count"], true)] {
            let bench = Bench::new();
            bench
                .activator(&[&["on", "--all", "-o", "t.vmt"], options].concat())
                .expect(0);
            let got = bench.activator(&["status"]);
            let told = "\ncounts     by process and mapping; `activator top` shows them\n";
            assert_eq!(got.expect(0).out.contains(told), is_counted);
            let got = bench.activator(&["off", "--json"]);
            let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
            let packed = 8;
            assert_eq!(
                json["flags"],
                if is_counted { 256 | packed } else { packed }
            );
        }
        let bench = Bench::new();
        bench.fake.boot_early();
        let got = bench.activator(&["on", "--early", "--count", "-o", "t.vmt"]);
        assert!(got.expect(2).err.contains("cannot be used with"));
    }

    #[test]
    fn several_sets() {
        for (value, words, sets) in [
            ("all", "", 0),
            ("process", " for each process", 1),
            ("cgroup", " for each control group", 2),
        ] {
            let bench = Bench::new();
            let on = ["on", "--all", "-o", "t.vmt", "--set-per", value];
            let got = bench.activator(&on);
            let want = format!(" with N=512{words}; `activator off` ends it\n");
            assert!(got.expect(0).out.ends_with(&want), "{}", got.out);
            let got = bench.activator(&["status", "--json"]);
            let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
            let made = sets.min(1);
            for (field, want) in [
                ("sets", sets),
                ("sets_made", made),
                ("sets_max", made),
                ("sets_shared", 0),
                ("evms_max", if sets == 0 { 2048 } else { 512 }),
            ] {
                assert_eq!(json[field], want, "{value}: {field}");
            }
            let got = bench.activator(&["off"]);
            assert_eq!(got.expect(0).out.contains("\nsets "), sets != 0);
            assert_eq!(got.out.contains("; N=512, batches of 13\n"), sets == 0);
        }
    }

    #[test]
    fn sets_that_there_is_no_memory_for() {
        let told =
            "3 address spaces share set 0, because there was no memory for sets of their own";
        // Without them, all is well: see `several_sets`.
        let bench = Bench::new();
        bench.fake.change(|s| s.sets_shared = 3);
        let got = bench.activator(&["on", "--all", "--set-per", "process", "-o", "t.vmt"]);
        assert_eq!(got.expect(1).err, format!("activator: {told}\n"));
        for command in ["status", "off", "status"] {
            let got = bench.activator(&[command]);
            let text = &got.expect(1).out;
            assert!(
                text.contains("; 0 made, 0 at most at once; 3 address"),
                "{text}"
            );
            assert!(text.ends_with(&format!("BAD        {told}\n")), "{text}");
            let got = bench.activator(&["status", "--json"]);
            let json: serde_json::Value = serde_json::from_str(&got.expect(1).out).expect("JSON");
            assert_eq!(
                (&json["sets_shared"], &json["problems"][0]),
                (&3.into(), &told.into())
            );
        }
    }

    #[test]
    fn takes_the_trace_from_boot() {
        let bench = Bench::new();
        let take = ["on", "--early", "-o", "t.vmt"];
        let none = bench.activator(&take);
        assert!(
            none.expect(2).err.contains("there is no trace from boot"),
            "{}",
            none.err
        );
        assert!(!bench.path("t.vmt").exists());
        bench.fake.boot_early();
        let other = bench.activator(&["on", "--all", "-o", "u.vmt"]);
        assert!(
            other
                .expect(2)
                .err
                .contains("`activator on --early` takes it over"),
            "{}",
            other.err
        );
        let sized = bench.activator(&[&take[..], &["-n", "64"]].concat());
        assert!(
            sized.expect(2).err.contains("cannot be used with"),
            "{}",
            sized.err
        );
        let sets = bench.activator(&[&take[..], &["--set-per", "process"]].concat());
        assert!(
            sets.expect(2)
                .err
                .contains("'--early' cannot be used with '--set-per"),
            "{}",
            sets.err
        );
        let got = bench.activator(&["status"]);
        assert!(
            got.expect(0).out.starts_with("tracing    on since boot"),
            "{}",
            got.out
        );
        let got = bench.activator(&take);
        let path = bench.path("t.vmt");
        assert_eq!(
            got.expect(0).out,
            format!(
                "tracing all processes into {} with N=512; `activator off` ends it\n",
                path.display()
            )
        );
        bench.activator(&["on", "--early", "-o", "u.vmt"]).expect(2);
        bench.activator(&["off"]).expect(0);
    }

    #[test]
    fn takes_the_trace_from_boot_in_pieces() {
        let bench = Bench::new();
        bench.fake.boot_early();
        // Before that, there are no pieces.
        let to = bench.path("s").to_string_lossy().into_owned();
        for args in [&["rotate"][..], &["snapshot", &to]] {
            let got = bench.activator(args);
            let told = "`activator on --early --rotate` takes it over";
            assert!(got.expect(2).err.contains(told), "{}", got.err);
        }
        let take = ["on", "--early", "--rotate", "1G,1h", "--keep", "16G"];
        let got = bench.activator(&take);
        assert!(got.expect(2).err.contains("--output <OUTPUT>"));
        let more = ["-o", "t", "--snapshot-on", "signal:USR1"];
        let take = [&take[..], &more].concat();
        // A kernel that does not know this; one without memory. The trace stays, and nothing else does.
        for (errno, told) in [
            (libc::EINVAL, "leave out --rotate and use `postproc split`"),
            (libc::ENOMEM, "end programs that take memory"),
        ] {
            bench.fake.refuse_take(errno);
            let got = bench.activator(&take);
            assert!(got.expect(2).err.contains(told), "{}", got.err);
            assert!(!bench.path("t").exists());
        }
        let got = bench.activator(&take);
        let want = format!(
            "tracing all processes into {} with N=512; `activator off` ends it\n",
            bench.path("t").display()
        );
        assert_eq!(got.expect(0).out, want);
        let first = bench.path("t").join("00000.vmtrace");
        let got = bench.activator(&["rotate"]);
        assert_eq!(got.expect(0).out, format!("{}\n", first.display()));
        let got = bench.activator(&["snapshot", &to]);
        let said = &got.expect(0).out;
        assert!(said.starts_with("pieces 0 to 1 ("), "{said}");
        bench.activator(&["off"]).expect(0);
        assert!(!bench.path("t").join(".keeper.log").exists());
    }

    #[test]
    fn trace_from_boot_that_lost_something() {
        let bench = Bench::new();
        bench.fake.boot_early();
        bench.fake.change(|s| s.lost_full = 3);
        for args in [&["status"][..], &["on", "--early", "-o", "t.vmt"]] {
            let got = bench.activator(args);
            assert!(
                got.expect(1).out.contains("3 records lost") || got.err.contains("3 records lost"),
                "{}{}",
                got.out,
                got.err
            );
        }
    }

    #[test]
    fn second_is_refused_with_the_first() {
        let bench = Bench::new();
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
        let second = bench.activator(&["on", "--all", "-o", "u.vmt"]);
        assert_eq!(
            second.expect(2).err,
            format!(
                "activator: tracing is already on: all processes into {}, started 2.00 s ago; \
                 `activator off` ends it\n",
                bench.path("t.vmt").display()
            )
        );
        assert!(!bench.path("u.vmt").exists());
    }

    #[test]
    fn refused_start_leaves_things_as_they_were() {
        let bench = Bench::new();
        bench.fake.refuse_start(libc::ENOMEM);
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(2);
        assert!(!bench.path("t.vmt").exists());
        std::fs::write(bench.path("t.vmt"), "old").expect("write");
        bench
            .activator(&["on", "--all", "-o", "t.vmt", "--force"])
            .expect(2);
        assert_eq!(std::fs::read(bench.path("t.vmt")).expect("read"), b"old");
    }

    #[test]
    fn bad_input_makes_nothing() {
        let bench = Bench::new();
        for (args, want) in [
            (&["--all", "-n", "4"][..], "N=4 is too small"),
            (&["--pid", "2147483647"], "there is no process 2147483647"),
            (
                &["--all", "-n", "20GiB"],
                "N=5242880 is too large: at most 4194304",
            ),
            (&["--all", "-n", "-5"], "expected a number of pages"),
            (&["--all", "-n", "many"], "expected a number of pages"),
            (
                &["--all", "-n", "4k"],
                "4k is a size in bytes, and less than 16 pages of 4KiB. For 4096 pages, write 4096",
            ),
            (
                &["--all", "--max", "10%"],
                "a share would be of the footprint, which is known after the trace only",
            ),
            (&["--all", "--memory", "16 MiB"], "did you mean 16MiB?"),
            (&["--all", "--pid", "1"], "cannot be used with"),
            (&[], "required arguments were not provided"),
            (&["--pid", "0"], "0 is not in 1.."),
            (&["--all", "--buffers", "3"], "3 is not in 4.."),
            (
                &["--all", "--buffer-size", "5000"],
                "a power of two from 4KiB to 1MiB",
            ),
            (&["--all", "--batch", "65"], "65 is not in 1..=64"),
            (
                &["--all", "--set-per", "thread"],
                "[possible values: all, process, cgroup]",
            ),
            (
                &["--all", "-n", "40", "--batch", "10"],
                "use --batch 9 or less, or -n 41 or more",
            ),
            (
                &["--all", "--filter", "pid == 1 && time < 1s"],
                "\n  pid == 1 && time < 1s\n              ^^^^\n",
            ),
            (
                &["--all", "--policy", "clock", "--batch", "8"],
                "is not possible with --policy clock",
            ),
        ] {
            let args = [&["on", "-o", "t.vmt"], args].concat();
            let got = bench.activator(&args);
            assert!(got.expect(2).err.contains(want), "{args:?}: {}", got.err);
            assert!(!bench.path("t.vmt").exists(), "{args:?}");
        }
        assert_eq!(bench.fake.starts.get(), 0);
    }

    #[test]
    fn kernel_thread() {
        // Not in containers, which have no kernel threads.
        if std::fs::read_to_string("/proc/2/status").is_ok_and(|s| s.contains("Kthread:\t1")) {
            let bench = Bench::new();
            let got = bench.activator(&["on", "--pid", "2", "-o", "t.vmt"]);
            assert!(
                got.expect(2).err.contains("is a kernel thread"),
                "{}",
                got.err
            );
        }
    }

    #[test]
    fn full_at_once() {
        let bench = Bench::new();
        bench.fake.full_after(1);
        let got = bench.activator(&["on", "--all", "-o", "t.vmt"]);
        assert!(
            got.expect(2)
                .err
                .ends_with("t.vmt: No space left on device; give -o another path\n"),
            "{}",
            got.err
        );
        assert!(!bench.path("t.vmt").exists());
        assert_eq!(bench.fake.stops.get(), 1);
    }

    #[test]
    fn race_for_the_start() {
        let bench = Bench::new();
        bench.fake.refuse_start(libc::EBUSY);
        let got = bench.activator(&["on", "--all", "-o", "t.vmt"]);
        assert!(got.expect(2).err.contains("`activator off` ends it"));
    }
}
