//! Tracers that need nothing of this project's kernel: `watch-pages` of the guest.

use super::{NAMES, Observer, Reading, quoted};
use crate::compare::score::{Place, Report};
use crate::compare::truth::{Scope, Spaces};
use crate::loads::Program;
use crate::machine::Outcome;
use ::postproc::trace::{Body, Merge, Step, StreamKind, Trace};
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::follow::report::{self, Entry, Used};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// `watch-pages`, which traces the load in user space.
pub struct Watched {
    /// Its name in the table.
    pub name: &'static str,
    /// How it watches, and with which number.
    pub way: &'static str,
}

/// Where it writes, in the guest.
const REPORTS: &str = "/tmp/reports";

/// The slot of the trace disk that takes the reports. The trace of the names is in front of it.
const SLOT: usize = 64;

/// The name of the program.
const WATCH: &str = "watch-pages";

/// The intervals of a tracer that has some, ns.
fn interval(way: &str) -> Option<u64> {
    let ms = way.strip_prefix("rwp-async ")?.parse::<u64>().ok()?;
    Some(ms * 1_000_000)
}

/// A shell command that runs a load under `watch-pages`. With `named`, it does so in a trace that gives pages
/// their names, and hands over what was reported.
pub fn command(way: &str, load: &str, named: bool) -> String {
    let watch = format!("{WATCH} {way} {REPORTS} /bin/sh -c {}", quoted(load));
    match named {
        false => format!("{watch}; e=$?; rm {REPORTS}; exit $e"),
        true => format!("activator run {NAMES} -o /dev/trace -- {watch} && keep {SLOT} {REPORTS}"),
    }
}

/// The reports of a run.
///
/// # Errors
///
/// If there are none that can be read.
pub fn reports(out: &Outcome) -> Result<Vec<Entry>> {
    let path = out.kept(SLOT, "reports")?;
    Ok(report::read(&std::fs::read(path)?)?)
}

impl Observer for Watched {
    fn name(&self) -> &str {
        self.name
    }

    fn command(&self, load: &str, _: &Program, named: bool) -> String {
        command(self.way, load, named)
    }

    fn read(&self, out: &Outcome, _: &Program) -> Result<Vec<Reading>> {
        Ok(vec![reading(out, self.way)?])
    }

    fn bytes(&self, out: &Outcome) -> Result<u64> {
        Ok(std::fs::metadata(out.dir.join("reports"))?.len())
    }
}

/// What the reports of a run say.
///
/// # Errors
///
/// If there are none that can be read, or they are of processes that the trace does not have.
pub fn reading(out: &Outcome, way: &str) -> Result<Reading> {
    let trace = Trace::open(out.trace())?;
    let lives = Lives::of(&trace)?;
    let begin = trace.header().start_time_ns;
    let entries = reports(out)?;
    ensure!(!entries.is_empty(), "{WATCH} has reported nothing");
    let (reports, ends) = told(&entries, begin, &lives)?;
    Ok(Reading {
        what: "pages",
        reports,
        own: interval(way).map(|ns| (ns, ends)),
        scope: Scope::of(Spaces::AllBut(lives.tracers)),
        begin,
    })
}

/// Reports with the names of address spaces, and the ends of intervals.
fn told(entries: &[Entry], begin: u64, lives: &Lives) -> Result<(Vec<Report>, Vec<u64>)> {
    let (mut reports, mut ends): (Vec<Report>, Vec<u64>) = Default::default();
    // When the interval began, and its first report.
    let (mut since, mut first) = (begin, 0);
    for entry in entries {
        let (used, from, timed) = match entry {
            Entry::Now(used) => (used, used.time, true),
            Entry::Within(used) => (used, since, false),
            Entry::End(time) => {
                for report in reports.iter_mut().skip(first).filter(|r| !r.timed) {
                    report.to = report.to.min(time - 1).max(report.from);
                }
                ends.push(*time);
                (since, first) = (*time, reports.len());
                continue;
            }
        };
        reports.push(Report {
            at: lives.place(used)?,
            pages: 1,
            from,
            to: used.time,
            timed,
        });
    }
    Ok((reports, ends))
}

/// Which address space each process had when.
#[derive(Default)]
struct Lives {
    /// By process: from when on, ns, and which.
    spaces: HashMap<u32, BTreeMap<u64, u32>>,
    /// Those of `watch-pages`, and of what it starts before that is a program.
    tracers: BTreeSet<u32>,
}

impl Lives {
    fn of(trace: &Trace) -> Result<Self> {
        let mut lives = Lives::default();
        let mut merge = Merge::of_kinds(trace, &[StreamKind::Event]);
        while let Step::Event(event) = merge.fill(&mut Vec::new(), 1)? {
            lives.event(event.time_ns, event.tid.0, event.mm.0, &event.body);
        }
        Ok(lives)
    }

    fn event(&mut self, time: u64, tid: u32, mm: u32, body: &Body<'_>) {
        match body {
            Body::Fork {
                child_tid,
                child_tgid,
                child_mm,
                ..
            } if child_tid == child_tgid => {
                let spaces = self.spaces.entry(child_tgid.0).or_default();
                spaces.insert(time, child_mm.0);
                if self.tracers.contains(&mm) {
                    self.tracers.insert(child_mm.0);
                }
            }
            Body::Exec { comm, .. } => {
                self.spaces.entry(tid).or_default().insert(time, mm);
                if *comm == WATCH.as_bytes() {
                    self.tracers.insert(mm);
                }
            }
            _ => {}
        }
    }

    fn place(&self, used: &Used) -> Result<Place> {
        let spaces = self.spaces.get(&used.pid);
        let space = spaces.and_then(|s| s.range(..=used.time).next_back());
        let (_, mm) = space.with_context(|| {
            format!(
                "{WATCH} has reported process {}, which the trace does not have",
                used.pid
            )
        })?;
        Ok(Place {
            mm: *mm,
            vpn: used.vpn,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::postproc::trace::FileId;
    use ::postproc::units::{Mm, Tid};

    fn used(time: u64, pid: u32, vpn: u64) -> Used {
        Used { time, pid, vpn }
    }

    /// Process 10 is the tracer, in address space 1. Process 11 is its child, and a program from 40 on.
    fn lives() -> Lives {
        let mut lives = Lives::default();
        let exec = |comm| Body::Exec {
            old_mm: Mm(0),
            file: FileId::default(),
            comm,
            name: b"",
        };
        let fork = |tid: u32, tgid: u32, mm| Body::Fork {
            child_tid: Tid(tid),
            child_tgid: Tid(tgid),
            child_mm: Mm(mm),
            child_start: 0,
        };
        lives.event(10, 10, 1, &exec(WATCH.as_bytes()));
        lives.event(20, 10, 1, &fork(11, 11, 2));
        lives.event(40, 11, 3, &exec(b"sh"));
        // A thread, and another process.
        lives.event(50, 11, 3, &fork(12, 11, 3));
        lives.event(60, 11, 3, &fork(13, 13, 4));
        lives
    }

    #[test]
    fn a_process_has_one_address_space_after_the_other() {
        let lives = lives();
        assert_eq!(lives.tracers, [1, 2].into());
        let mm = |time, pid| lives.place(&used(time, pid, 5)).ok().map(|p| p.mm);
        assert_eq!(mm(30, 11), Some(2));
        assert_eq!(mm(40, 11), Some(3));
        assert_eq!(mm(70, 13), Some(4));
        assert_eq!(mm(50, 13), None);
        assert_eq!(mm(70, 12), None);
        let spaces = Spaces::AllBut(lives.tracers);
        assert!(spaces.has(3) && !spaces.has(2));
    }

    #[test]
    fn pages_of_an_interval_were_used_at_some_moment_of_it() {
        let entries = [
            Entry::Now(used(70, 11, 5)),
            // Of a process that ends, and of one that is looked at when the interval is over.
            Entry::Within(used(90, 13, 7)),
            Entry::Within(used(151, 11, 6)),
            Entry::End(150),
            Entry::Within(used(251, 11, 8)),
            Entry::End(250),
        ];
        let (reports, ends) = told(&entries, 50, &lives()).unwrap();
        assert_eq!(ends, [150, 250]);
        let of = |r: &Report| (r.at.mm, r.at.vpn, r.from, r.to, r.timed);
        let all: Vec<_> = reports.iter().map(of).collect();
        let first = (3, 5, 70, 70, true);
        let of_first = [(4, 7, 50, 90, false), (3, 6, 50, 149, false)];
        let of_second = (3, 8, 150, 249, false);
        assert_eq!(all, [first, of_first[0], of_first[1], of_second]);
    }
}
