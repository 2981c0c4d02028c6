//! Keeps a trace that is on to its budget: looks at the kernel's counts, and changes N or windows as
//! [`crate::budget`] says.

use std::time::Instant;

use rust_mm_trace::uapi::vmtrace_status;

use crate::Io;
use crate::budget::{Budget, Governor, Look, Step};
use crate::cli::TraceArgs;
use crate::control::{Config, Control, SetPer};
use crate::error::{Errno, Failure};
use crate::status::Status;
use crate::units::{Pages, count, duration};
use crate::{calibrate, control, summary};

/// The largest N if there is one set, and the user gives no other: 256 MiB of programs' pages, for
/// which the kernel needs 16 MiB.
const MOST: Pages = Pages(1 << 16);
/// The same if there are many sets.
const MOST_OF_EACH: Pages = Pages(1 << 12);

/// If it is not measured, an event takes this part of a reference's time.
const EVENT: f64 = 0.6;

/// A shorter run may end before N suits it, ns.
const SHORT: u64 = 3_000_000_000;

/// The largest N of a trace with a budget.
pub fn most(args: &TraceArgs) -> Pages {
    let most = match args.set_per {
        SetPer::All => MOST,
        SetPer::Process | SetPer::Cgroup => MOST_OF_EACH,
    };
    Pages(most.0.max(args.n().0))
}

/// What `args` allow, with the time of a reference in a trace like `config`, which is measured by a
/// trace of its own. `None` if they set no limit.
pub fn budget(
    args: &TraceArgs,
    control: &dyn Control,
    config: &Config,
) -> Result<Option<Budget>, Failure> {
    let Some(slowdown) = args.slowdown else {
        return Ok(None);
    };
    if args.cost == Some(0.0) {
        return Err(Failure::usage(
            "with --slowdown, a reference must take more than --cost 0",
        ));
    }
    let reference = match args.cost {
        Some(cost) => Some(cost),
        None => calibrate::reference(control, config)?,
    };
    let reference_ns = reference.filter(|cost| *cost > 0.0).ok_or_else(|| {
        Failure::usage(
            "can't measure how long a reference takes, which --slowdown needs: try again, or give \
             --cost NS",
        )
    })?;
    let event_ns = match args.cost {
        Some(_) => reference_ns * EVENT,
        None => calibrate::event(control, config)?.unwrap_or(reference_ns * EVENT),
    };
    let raw = control::status(control)?.raw;
    let least = match args.first {
        Some(Pages(first)) => control::least_n(first, raw.nr_cpus),
        None => raw.evms_min,
    };
    let most = config.evms_max.unwrap_or(config.evms_size).0;
    Ok(Some(Budget {
        slowdown,
        reference_ns,
        event_ns,
        least,
        most,
        windows: args.pausable,
    }))
}

/// Which N there were.
#[derive(Clone, Copy, Debug)]
struct Seen {
    least: u32,
    most: u32,
    changes: u64,
}

/// Looks after N.
#[derive(Debug)]
pub struct Pace {
    governor: Governor,
    uuid: [u8; 16],
    next: Instant,
    is_over: bool,
    seen: Seen,
    /// What was refused last, so that it is reported once.
    refused: Option<Errno>,
    /// Events that describe what exists when a window begins. No program has lost time for them.
    described: u64,
    /// How often programs had waited for room when it looked last.
    waits: u64,
}

impl Pace {
    /// Begins with a trace that has just begun.
    pub fn new(budget: Budget, status: &Status) -> Self {
        let raw = &status.raw;
        // With a smaller N, the kernel would make batches smaller, and references would take longer.
        let least = control::least_n(raw.first_segment, raw.nr_cpus);
        let least = least.saturating_add(u32::from(raw.batch.saturating_sub(1)));
        let governor = Governor::new(Budget {
            least: budget.least.max(least).min(budget.most),
            ..budget
        });
        let n = raw.evms_size;
        Self {
            next: Instant::now() + governor.rest(),
            governor,
            uuid: status.raw.uuid,
            is_over: false,
            seen: Seen {
                least: n,
                most: n,
                changes: 0,
            },
            refused: None,
            described: events(raw),
            waits: raw.waits,
        }
    }

    /// When it is to look next; `None` if the trace has ended.
    pub fn next_at(&self) -> Option<Instant> {
        (!self.is_over).then_some(self.next)
    }

    /// Whether the trace has ended.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Looks at the counts, if it is time for that, and does what follows.
    pub fn look(&mut self, control: &dyn Control, io: &mut Io<'_>) {
        let now = Instant::now();
        if self.is_over || now < self.next {
            return;
        }
        self.next = now + self.governor.rest();
        // A failed request means nothing for the trace.
        let Ok(status) = control.status() else {
            return;
        };
        if status.raw.uuid != self.uuid || !status.is_on() {
            self.is_over = true;
            return;
        }
        let has_waited = status.raw.waits > self.waits;
        self.waits = status.raw.waits;
        let done = match self.governor.look(self.counted(&status.raw)) {
            Step::Keep => return,
            // A smaller set needs room for the records of what leaves it.
            Step::Resize(n) if n < status.raw.evms_size && has_waited => return,
            Step::Resize(n) => control.resize(Pages(n)).map(|()| {
                self.seen.least = self.seen.least.min(n);
                self.seen.most = self.seen.most.max(n);
                self.seen.changes += 1;
            }),
            Step::Pause => control.window(false),
            Step::Resume => control.window(true).map(|()| {
                if let Ok(begun) = control.status() {
                    self.described += events(&begun.raw).saturating_sub(events(&status.raw));
                }
            }),
        };
        match done {
            // The next look finds out.
            Ok(()) | Err(Errno(libc::ENODATA | libc::EINPROGRESS | libc::EINTR)) => {}
            Err(errno) if self.refused == Some(errno) => {}
            Err(errno) => {
                self.refused = Some(errno);
                io.note(&format!("can't keep to --slowdown: {errno}"));
            }
        }
    }

    /// What was counted until a status.
    fn counted(&self, raw: &vmtrace_status) -> Look {
        Look {
            ran: raw.ran,
            references: references(raw),
            events: events(raw).saturating_sub(self.described),
            n: raw.evms_size,
            is_open: raw.windows_begun > raw.windows_ended || !has_windows(raw),
            windows: raw.windows_begun,
        }
    }

    /// The slowdown of a trace with these counts.
    pub fn slowdown(&self, status: &Status) -> Option<f64> {
        let budget = self.governor.budget();
        budget.slowdown_of(&self.counted(&status.raw))
    }

    /// The status as JSON, and the slowdown.
    pub fn json(&self, status: &Status, text: String) -> String {
        let budget = self.governor.budget();
        summary::with(
            text,
            [
                ("slowdown", self.slowdown(status).into()),
                ("slowdown_asked", budget.slowdown.into()),
                ("slowdown_exceeded", self.governor.is_exceeded().into()),
                ("reference_ns", budget.reference_ns.into()),
                ("event_ns", budget.event_ns.into()),
            ],
        )
    }

    /// How the trace has kept to its budget, for people.
    pub fn text(&self, status: &Status) -> String {
        let budget = self.governor.budget();
        let Some(slowdown) = self.slowdown(status) else {
            return "unknown: no program ran".to_owned();
        };
        let mut text = format!(
            "{slowdown:.3}, at most {} asked; {} ns for a reference, {} ns for an event; N from {} to {}, {} changes",
            budget.slowdown,
            budget.reference_ns.round(),
            budget.event_ns.round(),
            count(self.seen.least.into()),
            count(self.seen.most.into()),
            count(self.seen.changes)
        );
        // A little above comes from the last moments.
        let is_above = slowdown - 1.0 > 1.2 * (budget.slowdown - 1.0);
        if is_above && self.governor.is_exceeded() {
            text += match budget.windows {
                true => "; windows could not be ended in time",
                false => {
                    "; the largest N is too small: give a larger --max, or --pausable for windows"
                }
            };
        } else if let Some(errno) = self.refused.filter(|_| is_above) {
            text += &format!("; N or the window could not be changed: {errno}");
        } else if is_above && status.raw.ran < SHORT {
            text += &format!(
                "; programs ran for {} only, which was too short",
                duration(status.raw.ran)
            );
        }
        if status.raw.waits > 0 {
            text += "; in addition, programs waited for room in the buffers";
        }
        text
    }
}

fn references(raw: &vmtrace_status) -> u64 {
    raw.admissions.saturating_add(raw.chances)
}

/// Events until now: what has numbers, and is no record of a reference. Events that have not been
/// written yet are among them.
fn events(raw: &vmtrace_status) -> u64 {
    [references(raw), raw.renewed, raw.aborted]
        .iter()
        .fold(raw.last_seq, |n, other| n.saturating_sub(*other))
}

fn has_windows(raw: &vmtrace_status) -> bool {
    raw.windows != 0 || raw.windows_begun != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(change: impl FnOnce(&mut vmtrace_status)) -> Status {
        let mut raw = vmtrace_status {
            evms_size: 512,
            first_segment: 16,
            nr_cpus: 2,
            batch: 12,
            last_seq: 90_000,
            ..Default::default()
        };
        change(&mut raw);
        Status::from(raw)
    }

    #[test]
    fn events_that_describe_what_exists_are_no_loss() {
        let budget = Budget {
            slowdown: 1.1,
            reference_ns: 1000.0,
            event_ns: 1000.0,
            least: 32,
            most: 4096,
            windows: false,
        };
        let begun = status(|_| {});
        let pace = Pace::new(budget, &begun);
        // Of 100 ms, 10 ms for references and 10 ms for events of the program.
        let now = status(|s| {
            (s.ran, s.last_seq, s.admissions) = (100_000_000, 110_000, 10_000);
        });
        let slowdown = pace.slowdown(&now).expect("it ran");
        assert!((slowdown - 1.25).abs() < 1e-9, "{slowdown}");
        // N leaves room for the batches that a reference was measured with.
        assert_eq!(pace.governor.budget().least, 32 + 11);
    }
}
