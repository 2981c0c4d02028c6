//! `virtual-time`: no task's virtual time decreases.
//!
//! A thread that executes a program takes over the id of its process's first thread, which
//! has exited. Its virtual time remains its own. So the time of an id may decrease once
//! after the exit of the thread that had the id.

use std::collections::{HashMap, HashSet};

use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Batch, World};
use crate::space::Issue;
use crate::trace::{Body, Event, Trace};
use crate::units::{Access, Tid};

#[derive(Default)]
pub(super) struct VirtualTime {
    told: bool,
    last: HashMap<Tid, u64>,
    /// Ids of threads that have exited.
    exited: HashSet<Tid>,
    /// Of the part of a process, its id: not all events of other processes are there, so that nobody
    /// knows when a thread id is another thread's.
    only: Option<Tid>,
}

impl VirtualTime {
    /// By how much a task's time decreased, if it did.
    fn back(&mut self, tid: Tid, ticks: u64) -> Option<u64> {
        let last = self.last.insert(tid, ticks).unwrap_or(0);
        let by = last.checked_sub(ticks).filter(|&by| by > 0)?;
        (!self.exited.remove(&tid)).then_some(by)
    }
}

impl Rule for VirtualTime {
    fn id(&self) -> &'static str {
        "virtual-time"
    }

    fn about(&self) -> &'static str {
        "no task's virtual time decreases, in a trace with virtual time"
    }

    fn begin(&mut self, trace: &Trace, _out: &mut Findings) {
        self.told = trace.header().has_vtime();
        self.only = trace.part().map(|part| part.pid);
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
        if !self.told {
            return;
        }
        for r in batch.refs {
            // A second chance has the time of its stay's first admission.
            if r.flags().access() == Access::Seen {
                continue;
            }
            if let Some(by) = self.back(r.tid(), r.vtime) {
                out.error(|| {
                    Draft::new(format!(
                        "a reference is {by} ticks of virtual time earlier than the task's record \
                         before it"
                    ))
                    .record(Cited::reference(r, batch.world))
                });
            }
        }
    }

    fn event(&mut self, e: &Event<'_>, _world: &World, _issues: &[Issue], out: &mut Findings) {
        // The thread id may have been another task's before.
        match e.body {
            Body::Fork { child_tid, .. } => {
                self.last.remove(&child_tid);
                self.exited.remove(&child_tid);
            }
            Body::SnapBegin => {
                self.last.clear();
                self.exited.clear();
            }
            // Of other threads of a process, nobody takes over the id.
            Body::Exit { .. } if e.tid == e.tgid => {
                self.exited.insert(e.tid);
            }
            _ => {}
        }
        if self.only.is_some_and(|pid| pid != e.tgid) {
            return;
        }
        if let Some(by) = e.vtime.and_then(|ticks| self.back(e.tid, ticks)) {
            out.error(|| {
                Draft::new(format!(
                    "an event is {by} ticks of virtual time earlier than the task's record before it"
                ))
                .record(Cited::event(e))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{TraceBuilder, check_bytes};

    fn builder() -> TraceBuilder {
        let mut builder = TraceBuilder::new(2, 4);
        builder.virtual_time(1_000_000);
        builder.program();
        for i in 0..16 {
            builder.touch(i as u32 & 1, 10, 1, 0x1000 + (i % 8) * 0x1000);
        }
        builder
    }

    fn errors(builder: TraceBuilder) -> u64 {
        let report = check_bytes(&builder.finish());
        let errors = report.rule("virtual-time").unwrap().errors;
        assert_eq!(report.errors(), errors, "another rule has found something");
        errors
    }

    #[test]
    fn each_task_has_its_own() {
        let mut builder = builder();
        // A second thread, whose clock is far behind the first one's.
        builder.set_vtime(10, 1_000_000);
        builder.touch(0, 10, 1, 0x1000);
        builder.touch(1, 11, 1, 0x2000);
        builder.touch(0, 10, 1, 0x3000);
        assert_eq!(errors(builder), 0);
    }

    #[test]
    fn a_reference_that_goes_back_is_found() {
        let mut builder = builder();
        builder.set_vtime(10, 0);
        builder.touch(0, 10, 1, 0x1000);
        assert_eq!(errors(builder), 1);
    }

    #[test]
    fn an_event_that_goes_back_is_found() {
        let mut builder = builder();
        builder.set_vtime(10, 0);
        builder.protect(0, 10, 1, 0x8000, 0x9000, crate::units::Prot(3));
        assert_eq!(errors(builder), 1);
    }

    #[test]
    fn a_thread_that_executes_takes_over_the_id() {
        let mut builder = builder();
        builder.exit(0, 10, 1);
        // Another thread, by now of the same id, with a time of its own.
        builder.set_vtime(10, 0);
        builder.touch(0, 10, 1, 0x1000);
        assert_eq!(errors(builder), 0);
    }

    #[test]
    fn an_id_is_taken_over_once() {
        let mut builder = builder();
        builder.exit(0, 10, 1);
        for i in 0..2 {
            builder.set_vtime(10, 0);
            builder.touch(0, 10, 1, 0x1000 + i * 0x2000);
            builder.touch(0, 10, 1, 0x2000 + i * 0x2000);
        }
        assert_eq!(errors(builder), 1);
    }

    #[test]
    fn a_second_chance_is_no_step_back() {
        let mut builder = builder();
        builder.renew(0, 10, true);
        assert_eq!(errors(builder), 0);
    }
}
