//! `activator top`

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::run::{cant_execute, check_command};
use super::{Connect, go_on, hold_signals, status_of, stop};
use crate::cli::{By, TopArgs};
use crate::control::{Config, Control, Scope, SetPer, already_on, start_counts};
use crate::counts::{self, Answer, Counts, Interval, Look};
use crate::error::{BAD_TRACE, Failure};
use crate::filter::Filter;
use crate::rings::{self, Rings};
use crate::status::{State, Status};
use crate::sys::{self, Child, Exec, Held, Ready, Signals};
use crate::table::{self, Size, View};
use crate::units::Pages;
use crate::{Io, calibrate};

/// Length of an interval.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time between two looks for a reader of the output.
const READER: Duration = Duration::from_millis(500);
/// How long a command may take to end after a signal has come for it and for us.
const GRACE: Duration = Duration::from_millis(500);
/// N, if it is not given.
const N: Pages = Pages(512);

impl TopArgs {
    fn n(&self) -> Pages {
        self.n.as_ref().map_or(N, |given| given.pages)
    }
}

/// Shows counts of references, again and again.
pub fn execute(args: &TopArgs, connect: Connect<'_>, io: &mut Io<'_>) -> Result<u8, Failure> {
    let sort = args.order().map_err(Failure::usage)?;
    if !args.command.is_empty() {
        check_command(&args.command)?;
    }
    let is_plain = args.json || args.once || std::env::var_os("TERM").is_some_and(|t| t == "dumb");
    let is_drawn = io.is_stdout && !is_plain && io::stdout().is_terminal();
    let more: &[_] = match is_drawn {
        true => &[libc::SIGWINCH, libc::SIGTSTP],
        false => &[],
    };
    let mut signals = hold_signals(more)?;
    let control = connect()?;
    let control = control.as_ref();
    let status = status_of(control)?;
    let view = View {
        of: args.by.tables(),
        is_by_ring: args.by == By::Ring,
        sort,
        rows: args.rows.map(|rows| rows as usize),
        cost: args.cost.filter(|cost| *cost > 0.0),
        is_unmeasured: false,
        is_own: !status.is_on(),
    };
    let mut top = Top {
        control,
        args,
        before: Look {
            status,
            counts: None,
            rings: None,
        },
        view,
        is_drawn,
        room: 0,
        ring_room: 0,
        last: None,
        child: None,
        exec_error: None,
    };
    if status.is_on() {
        top.attach()?;
    } else {
        let held = top.begin(&mut signals, io)?;
        top.child = held.map(Held::release);
    }
    // From here on, our own trace is ended in every case.
    if is_drawn {
        // If that fails, so does the first frame.
        let _ = io.print(table::BEGIN);
    }
    let why = top.until_end(&mut signals, io);
    if is_drawn {
        let _ = io.print(table::END);
    }
    top.end(why, &mut signals, io)
}

/// Why no more is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// All rounds were shown.
    Rounds,
    /// Nobody reads the output.
    Reader,
    /// The command has ended, or could not be executed.
    Command,
    /// The trace has ended.
    Trace,
    /// A signal has come.
    Signal(libc::c_int),
}

struct Top<'a> {
    control: &'a dyn Control,
    args: &'a TopArgs,
    view: View,
    /// Whether the table is redrawn in place.
    is_drawn: bool,
    /// What the last interval ended with.
    before: Look,
    /// Room for counts.
    room: usize,
    /// Room for rings.
    ring_room: usize,
    /// What is on the screen.
    last: Option<Interval>,
    child: Option<Child>,
    exec_error: Option<i32>,
}

/// The trace that only counts.
fn config(args: &TopArgs, scope: Scope) -> Result<Config, Failure> {
    let n = args.n();
    Ok(Config {
        set_per: args.set_per.unwrap_or(SetPer::All),
        // All records are left out, so none is made.
        filter: Some(Filter::nothing().map_err(Failure::usage)?),
        counted: true,
        unwritten: true,
        ..Config::plain(scope, n, "no file (activator top)")
    })
}

impl Top<'_> {
    /// Begins to show a trace that somebody else has begun.
    fn attach(&mut self) -> Result<(), Failure> {
        let args = self.args;
        let is_for_own = !args.command.is_empty()
            || args.asked().is_some()
            || args.n.is_some()
            || args.set_per.is_some();
        if is_for_own {
            let mut failure = already_on(&self.before.status);
            failure.message += ". To show it, leave out CMD, --pid, --cgroup, --comm, \
                                    -N and --set-per, which are for a new trace";
            return Err(failure);
        }
        if let Some(look) = self.look()? {
            self.before = look;
        }
        Ok(())
    }

    /// Begins a trace that only counts; gives the child that will become the command. If that
    /// fails, or a signal comes meanwhile, nothing is left behind.
    fn begin(&mut self, signals: &mut Signals, io: &mut Io<'_>) -> Result<Option<Held>, Failure> {
        let args = self.args;
        let (n, min) = (args.n().0, self.before.status.raw.evms_min);
        if n < min {
            return Err(Failure::usage(format!(
                "N={n} is too small: this machine needs at least {min}; use -N {min} or more"
            )));
        }
        let all = config(args, args.asked().scope()?)?;
        if args.cost.is_none() {
            self.view.cost = calibrate::reference(self.control, &all)?;
            match (self.view.cost, self.is_drawn) {
                (Some(_), _) => {}
                // The table would be drawn over a notice.
                (None, true) => self.view.is_unmeasured = true,
                (None, false) => io.note(table::UNMEASURED),
            }
        }
        go_on(signals)?;
        let held = match args.command.is_empty() {
            true => None,
            false => Some(self.hold(signals)?),
        };
        let scope = held
            .as_ref()
            .map_or_else(|| all.scope.clone(), |h| Scope::Tree(h.pid()));
        let started = start_counts(self.control, &Config { scope, ..all });
        let begun = started.and_then(|()| {
            let begun = go_on(signals).and_then(|()| status_of(self.control));
            begun.inspect_err(|_| {
                let _ = stop(self.control);
            })
        });
        match begun {
            Ok(status) => {
                let counts = Some(Counts::none(status.raw.start_time));
                let rings = Some(Rings::none(status.raw.start_time));
                self.before = Look {
                    status,
                    counts,
                    rings,
                };
                Ok(held)
            }
            Err(failure) => {
                if let Some(held) = held {
                    held.abandon();
                }
                Err(failure)
            }
        }
    }

    /// The child, which leaves our output alone.
    fn hold(&self, signals: &Signals) -> Result<Held, Failure> {
        let failed = |e: io::Error| Failure::usage(format!("can't create a child process: {e}"));
        let null = File::options().write(true).open("/dev/null");
        let null = null.map_err(|e| Failure::usage(format!("can't open /dev/null: {e}")))?;
        let (out, err) = (libc::STDOUT_FILENO, libc::STDERR_FILENO);
        let output = match self.is_drawn {
            true if io::stderr().is_terminal() => {
                vec![(null.as_raw_fd(), out), (null.as_raw_fd(), err)]
            }
            true => vec![(null.as_raw_fd(), out)],
            false => vec![(err, out)],
        };
        Held::with_output(self.args.command.clone(), signals, &output).map_err(failed)
    }

    /// What is known now; `None` if the trace has ended.
    fn look(&mut self) -> Result<Option<Look>, Failure> {
        let status = status_of(self.control)?;
        if !self.is_same(&status) || !status.is_on() {
            return Ok(None);
        }
        let counts = match status.is_counted() {
            false => None,
            true => match counts::ask(self.control, &mut self.room)? {
                Answer::Counts(counts) => Some(counts),
                Answer::Uncounted => None,
                Answer::Off => return Ok(None),
            },
        };
        let rings = match rings::ask(self.control, status.raw.uuid, &mut self.ring_room)? {
            rings::Answer::Rings(rings) => Some(rings),
            rings::Answer::Unknown => None,
            rings::Answer::Off => return Ok(None),
        };
        Ok(Some(Look {
            status,
            counts,
            rings,
        }))
    }

    fn is_same(&self, status: &Status) -> bool {
        status.raw.uuid == self.before.status.raw.uuid
    }

    /// Shows what came since the last round.
    fn round(&mut self, io: &mut Io<'_>) -> Result<Option<Why>, Failure> {
        let Some(now) = self.look()? else {
            return Ok(Some(Why::Trace));
        };
        let interval = Interval::new(&self.before, &now);
        self.before = now;
        let is_first = self.last.is_none();
        let interval = self.last.insert(interval);
        let text = match (self.args.json, self.is_drawn) {
            (true, _) => table::json(interval, &self.view),
            (false, true) => return self.draw(io),
            (false, false) if is_first => table::text(interval, &self.view, None),
            (false, false) => "\n".to_owned() + &table::text(interval, &self.view, None),
        };
        Ok((!io.offer(&text)?).then_some(Why::Reader))
    }

    /// Draws the last interval.
    fn draw(&self, io: &mut Io<'_>) -> Result<Option<Why>, Failure> {
        let Some(interval) = &self.last else {
            return Ok(None);
        };
        let (columns, lines) = sys::terminal_size().unwrap_or((80, 24));
        let size = Some(Size { columns, lines });
        let frame = table::frame(&table::text(interval, &self.view, size));
        Ok((!io.offer(&frame)?).then_some(Why::Reader))
    }

    /// Shows one round after the other.
    fn until_end(&mut self, signals: &mut Signals, io: &mut Io<'_>) -> Result<Why, Failure> {
        let args = self.args;
        let failed = |e: io::Error| Failure::usage(format!("can't wait for events: {e}"));
        let interval = match (args.delay, args.once && !args.command.is_empty()) {
            // The whole run of the command.
            (None, true) => None,
            (delay, _) => Some(delay.unwrap_or(INTERVAL)),
        };
        let mut left = match args.once {
            true => Some(1),
            false => args.rounds,
        };
        let mut next = interval.map(|interval| Instant::now() + interval);
        loop {
            let [exec, end] = self.child.as_ref().map_or([None; 2], Child::fds);
            let now = Instant::now();
            let wait = next.map_or(READER, |next| next.saturating_duration_since(now));
            let fds = [exec, end, Some(signals.fd())];
            let ready = Ready::wait(&fds, wait.min(READER)).map_err(failed)?;
            if ready.is(0) && self.take_exec() {
                return Ok(Why::Command);
            }
            while let Some(signal) = signals.next() {
                match signal {
                    libc::SIGCHLD => {}
                    libc::SIGWINCH => {
                        self.draw(io)?;
                    }
                    libc::SIGTSTP => {
                        io.print(table::END)?;
                        sys::suspend();
                        io.print(table::BEGIN)?;
                        self.draw(io)?;
                    }
                    ending => return Ok(Why::Signal(ending)),
                }
            }
            if self.has_ended() {
                // A child that has ended has reported its exec, perhaps after the last look.
                let is_unread = self.child.as_ref().is_some_and(|c| c.fds()[0].is_some());
                if is_unread && self.take_exec() {
                    return Ok(Why::Command);
                }
                // What came since the last round.
                return Ok(self.round(io)?.unwrap_or(Why::Command));
            }
            if next.is_some_and(|next| Instant::now() >= next) {
                if let Some(why) = self.round(io)? {
                    return Ok(why);
                }
                left = left.map(|left| left - 1);
                if left == Some(0) {
                    return Ok(Why::Rounds);
                }
                // Rounds that were too late are left out.
                next = interval.map(|interval| Instant::now() + interval);
            } else if io.is_stdout && sys::has_no_reader() {
                return Ok(Why::Reader);
            }
        }
    }

    /// Takes note of what became of the execve(); gives whether it failed.
    fn take_exec(&mut self) -> bool {
        if let Some(Exec::Failed(errno)) = self.child.as_mut().map(Child::exec) {
            self.exec_error = Some(errno);
        }
        self.exec_error.is_some()
    }

    /// Whether there was a command, and it has ended.
    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| {
            child.reap(false);
            child.ended().is_some()
        })
    }

    /// Ends our own trace, and gives the exit code.
    fn end(
        mut self,
        why: Result<Why, Failure>,
        signals: &mut Signals,
        io: &mut Io<'_>,
    ) -> Result<u8, Failure> {
        let ended = match self.view.is_own {
            true => self.end_trace(),
            false => self.last_status(&why, io),
        };
        let command = self.wait(&why, signals, io);
        if let Some(errno) = self.exec_error {
            return Err(cant_execute(&self.args.command[0], errno));
        }
        // What failed first explains what failed later.
        let why = why?;
        let problems = ended?;
        problems.iter().for_each(|problem| io.note(problem));
        Ok(match (why, command) {
            _ if !problems.is_empty() => BAD_TRACE,
            (_, Some(code)) => code,
            (Why::Signal(signal), None) => signalled(signal),
            (_, None) => 0,
        })
    }

    /// Ends the trace that we have begun, unless somebody else has; gives what is wrong with it.
    fn end_trace(&self) -> Result<Vec<String>, Failure> {
        const ENDED: &str = "somebody else has ended the trace";
        let status = status_of(self.control)?;
        if !self.is_same(&status) {
            return Ok(vec![format!("{ENDED}, and begun another one")]);
        }
        let ended = match status.state() {
            State::Off => None,
            _ => stop(self.control)?,
        };
        match ended {
            Some(status) => Ok(status.problems()),
            None => {
                let mut problems = status_of(self.control)?.problems();
                problems.push(ENDED.to_owned());
                Ok(problems)
            }
        }
    }

    /// What is wrong with the trace of somebody else, as far as it is still known.
    fn last_status(
        &self,
        why: &Result<Why, Failure>,
        io: &mut Io<'_>,
    ) -> Result<Vec<String>, Failure> {
        if *why == Ok(Why::Trace) {
            io.note("the trace has ended");
        }
        let status = status_of(self.control)?;
        Ok(match self.is_same(&status) {
            true => status.problems(),
            false => Vec::new(),
        })
    }

    /// Waits for the command, if there is one, which is not traced any more. Gives the exit code
    /// that is due for it. After a signal for us, it is not waited for long.
    fn wait(
        &mut self,
        why: &Result<Why, Failure>,
        signals: &mut Signals,
        io: &mut Io<'_>,
    ) -> Option<u8> {
        let mut first = match why {
            Ok(Why::Signal(signal)) => Some(*signal),
            _ => None,
        };
        let mut until = None;
        loop {
            let is_over = self.has_ended();
            let child = self.child.as_ref()?;
            if let (true, Some(ended)) = (is_over, child.ended()) {
                return Some(ended.code());
            }
            if let Some(signal) = first.take().or_else(|| signals.next()) {
                match signal {
                    libc::SIGTERM | libc::SIGHUP => child.signal(signal),
                    // The terminal sends these to the command, too.
                    libc::SIGINT | libc::SIGQUIT => {}
                    _ => continue,
                }
                until = Some((Instant::now() + GRACE, signal));
                continue;
            }
            let now = Instant::now();
            if let Some((_, signal)) = until.filter(|(until, _)| now >= *until) {
                io.note("the command goes on untraced");
                return Some(signalled(signal));
            }
            let left = until.map_or(INTERVAL, |(until, _)| until - now);
            let [_, end] = child.fds();
            if let Err(e) = Ready::wait(&[end, Some(signals.fd())], left) {
                io.note(&format!(
                    "can't wait for the command, which goes on untraced: {e}"
                ));
                return Some(BAD_TRACE);
            }
        }
    }
}

/// The exit code for a signal, as shells report it. The signals that are held have numbers up to
/// 15.
fn signalled(signal: libc::c_int) -> u8 {
    128 + signal as u8
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rust_mm_trace::uapi::{
        VMTRACE_COUNTED, VMTRACE_FILTERED, VMTRACE_UNWRITTEN, vmtrace_ring, vmtrace_status,
    };
    use serde_json::Value;

    use super::*;
    use crate::counts::entry;
    use crate::fake::{Bench, Fake, Got};
    use crate::rings::{Kind, ring};
    use crate::table::{RINGLESS, UNCOUNTED};

    /// Runs `top` with short intervals, and a time of a reference that need not be measured.
    fn top(bench: &Bench, args: &[&str]) -> Got {
        bench.activator(&[&["top", "--cost", "500"], args].concat())
    }

    fn lines(got: &Got) -> Vec<Value> {
        let lines = got.out.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().expect("JSON")
    }

    fn raw(bench: &Bench) -> vmtrace_status {
        bench.fake.status().expect("a status").raw
    }

    fn one(n: u64) -> Vec<rust_mm_trace::uapi::vmtrace_count> {
        vec![entry(9, "sh", ("[heap]", 0), [n, 0, 0, 0])]
    }

    /// Nothing that was begun goes on.
    fn all_ended(bench: &Bench) {
        assert!(!bench.fake.status().expect("a status").is_on());
        assert_eq!(bench.fake.starts.get(), bench.fake.stops.get());
    }

    #[test]
    fn counts_in_a_trace_of_its_own() {
        let bench = Bench::new();
        bench.fake.count([one(100), one(150), one(150)]);
        let got = top(&bench, &["-n", "3", "-d", "0.01", "-N", "16MiB"]);
        let tables: Vec<_> = got.expect(0).out.split("\n\ntrace ").collect();
        assert_eq!((tables.len(), got.err.as_str()), (3, ""), "{}", got.out);
        assert!(tables[0].starts_with("trace      all processes; "));
        assert!(tables[0].contains("; counts only\n"), "{}", tables[0]);
        assert!(tables[0].contains(" sh\n") && tables[0].contains(" [heap]"));
        assert!(tables[1].contains("of one CPU's time, at 500 ns each\n"));
        // Nothing was referenced in the last interval.
        assert!(!tables[2].contains(" sh\n"), "{}", tables[2]);
        all_ended(&bench);
        let raw = raw(&bench);
        let flags = VMTRACE_COUNTED | VMTRACE_UNWRITTEN | VMTRACE_FILTERED;
        assert_eq!((raw.flags, raw.classes, raw.scope), (flags, 0, 1));
        assert_eq!((raw.evms_size, raw.refs), (4096, 0));
        assert_eq!(Fake::filter(&bench.fake).as_deref(), Some("!(pid >= 0)"));
        // `status` says what that was.
        let status = bench.activator(&["status"]);
        assert!(
            status
                .expect(0)
                .out
                .contains("\noutput     no file (activator top)\n")
        );
        assert!(!status.out.contains("postproc"), "{}", status.out);
    }

    #[test]
    fn what_one_reference_takes() {
        let bench = Bench::new();
        let json = ["top", "--once", "-d", "0.01", "--json"];
        // No reference of the measurement faulted.
        let got = bench.activator(&json);
        assert!(
            got.expect(0).err.contains("could not be measured"),
            "{}",
            got.err
        );
        assert_eq!(lines(&got)[0]["reference_ns"], Value::Null);
        assert_eq!(bench.fake.starts.get(), 2);
        all_ended(&bench);
        bench.fake.busy.set(1 << 20);
        let got = bench.activator(&json);
        assert_eq!(got.expect(0).err, "");
        assert!(lines(&got)[0]["reference_ns"].is_f64(), "{}", got.out);
        all_ended(&bench);
        // 0 asks for no estimate, and nothing is measured.
        let got = bench.activator(&[&json[..], &["--cost", "0"]].concat());
        assert_eq!(lines(got.expect(0))[0]["reference_ns"], Value::Null);
        assert_eq!((got.err.as_str(), bench.fake.starts.get()), ("", 5));
        all_ended(&bench);
    }

    #[test]
    fn a_trace_of_somebody_else_is_shown_and_goes_on() {
        let bench = Bench::new();
        bench
            .activator(&["on", "--all", "--count", "-o", "t.vmt"])
            .expect(0);
        // What was there before is not of the first interval.
        bench.fake.count([one(1000), one(1100), one(1350)]);
        let got = bench.activator(&["top", "-n", "2", "-d", "0.01", "--json"]);
        let lines = lines(got.expect(0));
        let told: Vec<_> = lines
            .iter()
            .map(|l| &l["processes"][0]["references"])
            .collect();
        assert_eq!(told, [100, 250]);
        assert_eq!(lines[1]["references_total"], 1350);
        assert_eq!(lines[1]["begun_by_top"], false);
        assert_eq!(lines[1]["reference_ns"], Value::Null);
        let got = bench.activator(&["top", "--once", "-d", "0.01"]);
        let into = format!("; into {}\n", bench.path("t.vmt").display());
        assert!(got.expect(0).out.contains(&into), "{}", got.out);
        assert!(!got.out.contains("slowdown"));
        assert_eq!((bench.fake.starts.get(), bench.fake.stops.get()), (1, 0));
        // It is not for what would need another trace.
        for args in [
            &["--", "true"][..],
            &["-p", "1"],
            &["-N", "64"],
            &["--set-per", "process"],
        ] {
            let got = bench.activator(&[&["top", "--once"], args].concat());
            let err = &got.expect(2).err;
            assert!(
                err.contains("tracing is already on: all processes into "),
                "{err}"
            );
            assert!(err.contains("leave out CMD, --pid, --cgroup"), "{err}");
        }
        assert_eq!((bench.fake.starts.get(), bench.fake.stops.get()), (1, 0));
    }

    #[test]
    fn a_trace_without_counts_has_figures_of_the_status() {
        let bench = Bench::new();
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
        let got = bench.activator(&["top", "--once", "-d", "0.01"]);
        // The kernel counts ten in each second.
        assert!(
            got.expect(0).out.contains("\nreferences 10 a second; "),
            "{}",
            got.out
        );
        assert!(
            got.out.ends_with(&format!("\n\n{UNCOUNTED}\n")),
            "{}",
            got.out
        );
        let got = bench.activator(&["top", "--once", "-d", "0.01", "--json"]);
        let line = lines(got.expect(0)).remove(0);
        assert_eq!(
            (&line["counted"], &line["references"]),
            (&false.into(), &10.into())
        );
        assert_eq!(line["processes"], Value::Array(Vec::new()));
        assert_eq!((bench.fake.asked(), bench.fake.stops.get()), (0, 0));
        bench.fake.change(|s| s.funny = 1);
        let got = bench.activator(&["top", "--once", "-d", "0.01"]);
        assert!(got.expect(1).err.contains("1 funny PTEs"), "{}", got.err);
    }

    /// References of CPU 1, of which so many were lost; `free` of 8 sub-buffers are free.
    fn lossy(lost_full: u64, free: u32) -> Result<Vec<vmtrace_ring>, i32> {
        let references = vmtrace_ring {
            lost_full,
            ..ring(Kind::References, 1, [free, 0])
        };
        Ok(vec![references, ring(Kind::Events, 1, [7, 0])])
    }

    /// The lines of the output that begin with `rings`.
    fn rings_lines(got: &Got) -> Vec<&str> {
        let lines = got
            .out
            .lines()
            .filter_map(|l| l.strip_prefix("rings      "));
        lines.collect()
    }

    #[test]
    fn fill_and_loss_of_rings() {
        let events = "events 12.5%";
        let wants = [
            format!(
                "references 12.5% full at most (CPU 1), {events}; 0 records lost, 5 since the start"
            ),
            format!(
                "LOST 123 records, 128 since the start; references 100.0% full at most (CPU 1), {events}"
            ),
            format!(
                "references 50.0% full at most (CPU 1), {events}; 0 records lost, 128 since the start"
            ),
        ];
        // A trace of somebody else, with counts and without. What was lost before is not of the
        // first interval.
        for on in [
            &["on", "--all", "-o", "t.vmt"][..],
            &["on", "--all", "--count", "-o", "t.vmt"],
        ] {
            let bench = Bench::new();
            bench.activator(on).expect(0);
            bench
                .fake
                .answer_rings([lossy(5, 7), lossy(5, 7), lossy(128, 0), lossy(128, 4)]);
            let got = top(&bench, &["-n", "3", "-d", "0.01", "--by", "ring"]);
            assert_eq!(rings_lines(got.expect(0)), wants);
            assert_eq!(got.out.matches("\n      1 references ").count(), 3);
            assert!(!got.out.contains(UNCOUNTED) && !got.out.contains("PID"));
            assert_eq!((bench.fake.starts.get(), bench.fake.stops.get()), (1, 0));
        }
        // In a trace of its own, all is of the first interval.
        let bench = Bench::new();
        bench.fake.answer_rings([lossy(5, 7), lossy(5, 7)]);
        let got = top(&bench, &["-n", "2", "-d", "0.01"]);
        let lines = rings_lines(got.expect(0));
        assert!(lines[0].starts_with("LOST 5 records, 5 since the start; "));
        assert!(lines[1].ends_with("; 0 records lost, 5 since the start"));
        all_ended(&bench);
    }

    #[test]
    fn rings_as_json() {
        let bench = Bench::new();
        let args = ["--once", "-d", "0.01", "--json", "--by", "ring"];
        let line = lines(top(&bench, &args).expect(0)).remove(0);
        let rings = line["rings"].as_array().expect("rings");
        assert_eq!((rings.len(), line.get("processes")), (4, None));
        let ring = &rings[0];
        assert_eq!(
            (&ring["kind"], &ring["cpu"]),
            (&"references".into(), &0.into())
        );
        assert_eq!((&ring["fill"], &ring["lost"]), (&0.125.into(), &0.into()));
        // More than there is room for at first.
        let many = (0..1000).map(ring_of).collect();
        bench.fake.answer_rings([Ok(many)]);
        let line = lines(top(&bench, &args).expect(0)).remove(0);
        assert_eq!(line["rings"].as_array().map(Vec::len), Some(1000));
        let args = [&args[..], &["--sort", "cpu", "--rows", "2"]].concat();
        let line = lines(top(&bench, &args).expect(0)).remove(0);
        assert_eq!(
            (&line["rings"][1]["cpu"], &line["rings"][2]),
            (&1.into(), &Value::Null)
        );
    }

    fn ring_of(cpu: u32) -> vmtrace_ring {
        ring(Kind::References, cpu, [cpu % 8, 0])
    }

    #[test]
    fn a_kernel_that_does_not_report_rings() {
        let bench = Bench::new();
        bench.fake.answer_rings([Err(libc::ENOTTY)]);
        bench.fake.count([one(100)]);
        let got = top(&bench, &["--once", "-d", "0.01"]);
        assert!(got.expect(0).out.contains(" sh\n"), "{}", got.out);
        assert_eq!((rings_lines(&got).len(), got.err.as_str()), (0, ""));
        let got = top(&bench, &["--once", "-d", "0.01", "--json"]);
        assert_eq!(lines(got.expect(0))[0]["rings"], Value::Null);
        let got = top(&bench, &["--once", "-d", "0.01", "--by", "ring"]);
        assert!(
            got.expect(0).out.ends_with(&format!("\n\n{RINGLESS}\n")),
            "{}",
            got.out
        );
        all_ended(&bench);
    }

    #[test]
    fn a_trace_that_ends_between_two_requests() {
        // The status says that it is on, and then there are no rings any more.
        let bench = Bench::new();
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
        bench
            .fake
            .answer_rings([lossy(0, 7), lossy(0, 7), Err(libc::ENODATA)]);
        let got = bench.activator(&["top", "-d", "0.01", "--json"]);
        assert_eq!(lines(got.expect(0)).len(), 1);
        assert_eq!(got.err, "activator: the trace has ended\n");
        assert_eq!(bench.fake.stops.get(), 0);
    }

    #[test]
    fn ends_with_the_trace_of_somebody_else() {
        let on = ["on", "--all", "--count", "-o", "t.vmt"];
        for replaced in [false, true] {
            let bench = Bench::new();
            bench.activator(&on).expect(0);
            match replaced {
                true => bench.fake.replaced_after(4),
                false => bench.fake.off_after(4),
            }
            let got = bench.activator(&["top", "-d", "0.01"]);
            assert_eq!(got.expect(0).err, "activator: the trace has ended\n");
            assert_eq!(bench.fake.stops.get(), 0);
        }
    }

    #[test]
    fn exit_code_is_the_commands() {
        for (script, code) in [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)] {
            let bench = Bench::new();
            bench.fake.count([one(100)]);
            let got = top(&bench, &["--once", "--json", "--", "sh", "-c", script]);
            let lines = lines(got.expect(code));
            assert_eq!((lines.len(), got.err.as_str()), (1, ""));
            assert_eq!(lines[0]["mappings"][0]["mapping"], "[heap]");
            all_ended(&bench);
            assert_eq!(raw(&bench).scope, 2);
        }
        // The command runs longer than the rounds, and is waited for.
        let bench = Bench::new();
        let go = bench.path("go");
        let script = format!("sleep 0.3; touch {}; exit 5", go.display());
        let rounds = ["-n", "2", "-d", "0.01", "--json", "--", "sh", "-c", &script];
        let got = top(&bench, &rounds);
        assert_eq!(lines(got.expect(5)).len(), 2);
        assert!(go.exists());
        all_ended(&bench);
        // Or shorter: what is left is shown.
        let bench = Bench::new();
        let got = top(&bench, &["-d", "600", "--json", "--", "true"]);
        assert_eq!(lines(got.expect(0)).len(), 1);
    }

    #[test]
    fn a_command_that_is_not_there() {
        let bench = Bench::new();
        top(&bench, &["--", "no-such-command"]).expect(127);
        assert_eq!(bench.fake.starts.get(), 0);
        let script = bench.path("script");
        std::fs::write(&script, "#!/no/such/interpreter\n").expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, mode).expect("chmod");
        let got = top(&bench, &["--", script.to_str().expect("UTF-8")]);
        let told = "(its interpreter or loader is missing)";
        assert!(got.expect(127).err.contains(told), "{}", got.err);
        assert_eq!(bench.fake.starts.get(), 1);
        all_ended(&bench);
    }

    #[test]
    fn a_bad_trace_is_1_whatever_the_command_was() {
        let bench = Bench::new();
        bench.fake.change(|s| s.funny = 1);
        let got = top(&bench, &["--once", "--", "sh", "-c", "exit 3"]);
        assert!(got.expect(1).err.contains("1 funny PTEs"), "{}", got.err);
        all_ended(&bench);
        // It fails while it is shown.
        let bench = Bench::new();
        bench.fake.full_after(3);
        let got = top(&bench, &["-d", "0.01"]);
        assert!(
            got.expect(1).err.contains("the output failed"),
            "{}",
            got.err
        );
        assert_eq!((bench.fake.starts.get(), bench.fake.stops.get()), (1, 1));
    }

    #[test]
    fn a_trace_that_somebody_ended() {
        let bench = Bench::new();
        bench.fake.off_after(3);
        let got = top(&bench, &["-d", "0.01"]);
        assert_eq!(
            got.expect(1).err,
            "activator: somebody else has ended the trace\n"
        );
        assert_eq!(bench.fake.stops.get(), 0);
        // Another one is left alone.
        let bench = Bench::new();
        bench.fake.replaced_after(3);
        let got = top(&bench, &["-d", "0.01", "--", "sleep", "0.1"]);
        assert!(
            got.expect(1).err.contains("and begun another one"),
            "{}",
            got.err
        );
        assert_eq!(bench.fake.stops.get(), 0);
    }

    #[test]
    fn refusals() {
        let small = top(&Bench::new(), &["-N", "31"]);
        assert!(
            small.expect(2).err.contains("; use -N 32 or more"),
            "{}",
            small.err
        );
        for (errno, want) in [
            (libc::EPERM, "run this as root"),
            (libc::EINVAL, "too old to count references"),
            (libc::E2BIG, "too old to count references"),
            (
                libc::ENOTTY,
                "the kernel's vmtrace interface is not the one",
            ),
            (libc::ENOMEM, "use a smaller N"),
            (libc::EBUSY, "`activator off` ends it"),
        ] {
            let bench = Bench::new();
            bench.fake.refuse_start(errno);
            let made = bench.path("made");
            let command = ["--", "touch", made.to_str().expect("UTF-8")];
            // Measured or not, with a command or without.
            for line in [&["top"][..], &["top", "--cost", "5"]] {
                for command in [&[][..], &command] {
                    let got = bench.activator(&[line, command].concat());
                    assert!(got.expect(2).err.contains(want), "{errno}: {}", got.err);
                }
            }
            assert!(!made.exists());
        }
        // What is refused later ends the trace, too.
        for (errno, want) in [
            (libc::EPERM, "run this as root"),
            (
                libc::ENOTTY,
                "the kernel's vmtrace interface is not the one",
            ),
            (libc::EFAULT, "Bad address"),
        ] {
            for command in [&[][..], &["--", "true"]] {
                let bench = Bench::new();
                bench.fake.refuse_counts(errno);
                let got = top(&bench, &[&["-d", "0.01"], command].concat());
                assert!(got.expect(2).err.contains(want), "{errno}: {}", got.err);
                assert_eq!(bench.fake.starts.get(), 1);
                all_ended(&bench);
            }
        }
        let bench = Bench::new();
        bench.fake.answer_rings([Err(libc::EPERM)]);
        let got = top(&bench, &["-d", "0.01"]);
        assert!(
            got.expect(2).err.contains("run this as root"),
            "{}",
            got.err
        );
        all_ended(&bench);
        let pid = top(&Bench::new(), &["-p", "4194303"]);
        assert!(
            pid.expect(2).err.contains("there is no process"),
            "{}",
            pid.err
        );
    }

    #[test]
    fn ends_when_nobody_reads() {
        struct Closed(u32);
        impl Write for Closed {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                match self.0.checked_sub(1) {
                    None => Err(io::ErrorKind::BrokenPipe.into()),
                    Some(left) => {
                        self.0 = left;
                        Ok(bytes.len())
                    }
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for (command, code) in [(&[][..], 0), (&["--", "sh", "-c", "sleep 0.2; exit 3"], 3)] {
            let bench = Bench::new();
            let line = ["activator", "top", "-d", "0.01", "--cost", "5"];
            let line = [&line[..], command].concat();
            let (mut out, mut err) = (Closed(2), Vec::new());
            let got = crate::run(
                line.iter().map(Into::into),
                &|_| Ok(Box::new(bench.fake.clone())),
                &mut Io {
                    out: &mut out,
                    err: &mut err,
                    background: false,
                    is_stdout: false,
                    name: crate::Name::Activator,
                },
            );
            assert_eq!((got, String::from_utf8_lossy(&err).as_ref()), (code, ""));
            all_ended(&bench);
        }
    }

    #[test]
    fn tables_and_their_order() {
        let keys = |by: &str| {
            let bench = Bench::new();
            bench.fake.count([vec![
                entry(1, "a", ("[heap]", 0), [5, 1, 0, 0]),
                entry(2, "b", ("[heap]", 0), [1, 2, 0, 0]),
            ]]);
            let args = [
                "--once", "-d", "0.01", "--json", "--sort", "writes", "--by", by,
            ];
            let line = lines(top(&bench, &args).expect(0)).remove(0);
            let found = ["processes", "mappings", "pairs"].map(|k| {
                let rows = line.get(k)?.as_array()?;
                Some(rows.iter().map(|r| r["writes"].clone()).collect::<Vec<_>>())
            });
            found.map(|rows| rows.map(|rows| format!("{rows:?}").replace("Number", "")))
        };
        let (two, one) = (Some("[(2), (1)]".into()), Some("[(3)]".into()));
        assert_eq!(keys("process"), [two.clone(), None, None]);
        assert_eq!(keys("mapping"), [None, one.clone(), None]);
        assert_eq!(keys("both"), [two.clone(), one, None]);
        assert_eq!(keys("pair"), [None, None, two]);
        for (args, why) in [
            (&["--once", "-n", "2"][..], "cannot be used with"),
            (&["-p", "1", "--", "true"], "cannot be used with"),
            (&["-n", "0"], "invalid value"),
            (&["-d", "0"], "number of seconds"),
            (&["--by", "thread"], "process, mapping, both, pair, ring"),
            (
                &["--by", "ring", "--sort", "reads"],
                "with --by ring, use full, waiting",
            ),
            (
                &["--by", "ring", "--sort", "pid"],
                "with --by ring, use full, waiting",
            ),
            (&["--sort", "full"], "add --by ring"),
            (&["--by", "pair", "--sort", "cpu"], "add --by ring"),
        ] {
            let got = top(&Bench::new(), args);
            assert!(got.expect(2).err.contains(why), "{args:?}: {}", got.err);
        }
    }
}
