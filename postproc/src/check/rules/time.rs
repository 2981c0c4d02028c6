//! `time`: times go back only where a CPU may have been interrupted.
//!
//! On one CPU, times do not decrease at all. On several, see [`super::drawn`]: an admission is not
//! earlier than its CPU's last admission, nor than any with a smaller number than that. An event is
//! not earlier than any admission with a smaller number.

use std::collections::BTreeMap;

use super::drawn::goes_on;
use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Batch, World};
use crate::space::Issue;
use crate::trace::{Event, PacketSeen, Ref, StreamId, StreamKind, Trace};

#[derive(Default)]
pub(super) struct Time {
    packets: BTreeMap<StreamId, PacketSeen>,
    one_cpu: bool,
    last_ref_ns: u64,
    /// The latest time of the references so far; and what that was at the last admission of each
    /// CPU.
    latest_ns: u64,
    latest_by_cpu: Vec<u64>,
    last_event_ns: BTreeMap<u32, u64>,
    start_ns: u64,
}

impl Time {
    /// A reference on a machine of several CPUs. No stay tells on which CPU it was continued.
    fn of_several(&mut self, r: &Ref, batch: &Batch<'_>, out: &mut Findings) {
        let early = |what: &str, than_ns: u64| {
            let ns = than_ns - r.time_ns;
            Draft::new(format!("a reference is {ns} ns earlier than {what}"))
                .record(Cited::reference(r, batch.world))
        };
        if r.time_ns < self.start_ns {
            out.error(|| early("the beginning of the trace", self.start_ns));
        }
        self.latest_ns = self.latest_ns.max(r.time_ns);
        let cpu = r.cpu() as usize;
        if let Some(before) = self.latest_by_cpu.get_mut(cpu).filter(|_| !goes_on(r)) {
            if r.time_ns < *before {
                out.error(|| early("its CPU's last admission, or one before that", *before));
            }
            *before = self.latest_ns;
        }
    }
}

impl Rule for Time {
    fn id(&self) -> &'static str {
        "time"
    }

    fn about(&self) -> &'static str {
        "time does not decrease: over the events of each CPU, and on one CPU over all references; \
         on several, no admission is earlier than its CPU's last one or any before that"
    }

    fn begin(&mut self, trace: &Trace, _out: &mut Findings) {
        let header = trace.header();
        self.start_ns = header.start_time_ns;
        self.one_cpu = header.nr_cpus == 1;
        self.latest_by_cpu = vec![0; header.nr_cpus as usize];
    }

    fn packet(&mut self, packet: &PacketSeen, out: &mut Findings) {
        let head = &packet.head;
        let mut back = |what: &str, from: u64, to: u64| {
            if to < from {
                out.error(|| {
                    Draft::new(format!(
                        "stream {}: {what} of packet {} is {} ns before {from} ns",
                        head.stream,
                        head.seq,
                        from - to
                    ))
                    .at(packet.offset)
                });
            }
        };
        back("the end", head.first_time_ns, head.last_time_ns);
        if head.stream.kind == StreamKind::Ref && !self.one_cpu {
            // Its base of times may be before anything.
            back("the end", self.start_ns, head.last_time_ns);
            return;
        }
        back("the beginning", self.start_ns, head.first_time_ns);
        if let Some(last) = self.packets.insert(head.stream, *packet) {
            back("the beginning", last.head.last_time_ns, head.first_time_ns);
        }
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
        for r in batch.refs {
            if !self.one_cpu {
                self.of_several(r, batch, out);
                continue;
            }
            if r.time_ns < self.last_ref_ns {
                let last = self.last_ref_ns;
                out.error(|| {
                    Draft::new(format!(
                        "a reference is {} ns earlier than the record before it",
                        last - r.time_ns
                    ))
                    .record(Cited::reference(r, batch.world))
                });
            }
            self.last_ref_ns = r.time_ns;
            self.latest_ns = self.latest_ns.max(r.time_ns);
        }
    }

    fn event(&mut self, e: &Event<'_>, _world: &World, _issues: &[Issue], out: &mut Findings) {
        let last = self.last_event_ns.insert(e.cpu, e.time_ns).unwrap_or(0);
        let mut early = |what: &str, than_ns: u64| {
            if e.time_ns < than_ns {
                let ns = than_ns - e.time_ns;
                out.error(|| {
                    Draft::new(format!("an event is {ns} ns earlier than {what}"))
                        .record(Cited::event(e))
                });
            }
        };
        early("the event before it on the same CPU", last);
        early("a reference before it", self.latest_ns);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{TraceBuilder, check_bytes};
    use crate::units::Prot;

    #[test]
    fn going_back_is_found() {
        let mut builder = TraceBuilder::sample();
        builder.turn_back_time(1000);
        builder.touch(0, 10, 1, 0x1000);
        assert!(check_bytes(&builder.finish()).rule("time").unwrap().errors >= 1);
    }

    /// Errors after touches of new pages in turn by two CPUs, 100 ns apart, the last one by CPU 0.
    fn errors(cpus: u32, last: impl FnOnce(&mut TraceBuilder, &mut dyn FnMut() -> u64)) -> u64 {
        let mut b = TraceBuilder::new(cpus, 4);
        b.program();
        b.map_anon(0, 10, 1, 0x10_0000, 0x20_0000, Prot(3));
        let mut page = 0x10_0000;
        let mut next = || {
            page += 0x1000;
            page
        };
        for i in 0..21 {
            b.touch((i & 1).min(cpus - 1), 10, 1, next());
        }
        last(&mut b, &mut next);
        let report = check_bytes(&b.finish());
        let others = report.rules.iter().filter(|r| r.id != "time");
        assert!(others.clone().all(|r| r.errors == 0), "{report:#?}");
        report.rule("time").unwrap().errors
    }

    #[test]
    fn an_admission_may_be_earlier_than_those_of_other_cpus() {
        // The last admissions of CPUs 1 and 0 were 200 and 100 ns before.
        let at = |early, cpu| {
            errors(2, |b, next| {
                b.read_early(early);
                b.touch(cpu, 10, 1, next());
            })
        };
        assert_eq!([at(0, 1), at(199, 1), at(200, 1), at(201, 1)], [0, 0, 0, 1]);
        assert_eq!([at(0, 0), at(99, 0), at(100, 0), at(101, 0)], [0, 0, 0, 1]);
        // On one CPU, it is no earlier than the record before.
        let alone = |early| {
            errors(1, |b, next| {
                b.read_early(early);
                b.touch(0, 10, 1, next());
            })
        };
        assert_eq!([alone(0), alone(100), alone(101)], [0, 0, 1]);
    }

    #[test]
    fn an_admission_is_not_earlier_than_what_its_cpu_came_after() {
        // CPU 1 is early, and then not earlier than itself, but than CPU 0 was before its own
        // earlier admission.
        let at = |early| {
            errors(2, |b, next| {
                b.read_early(150);
                b.touch(1, 10, 1, next());
                b.read_early(early);
                b.touch(1, 10, 1, next());
            })
        };
        assert_eq!([at(0), at(200), at(201), at(249)], [0, 0, 1, 1]);
    }

    #[test]
    fn what_continues_a_stay_may_be_earlier() {
        let at = |early| {
            errors(2, |b, _| {
                b.read_early(early);
                b.renew(1, 10, false);
                b.read_early(early);
                b.renew(0, 10, true);
            })
        };
        assert_eq!([at(0), at(350)], [0, 0]);
        // Not before the trace.
        assert_eq!(at(1 << 40), 2);
    }

    #[test]
    fn an_event_is_not_earlier_than_a_reference_before_it() {
        for cpus in [1, 2] {
            let at = |early| {
                errors(cpus, |b, _| {
                    b.turn_back_time(early);
                    b.protect(cpus - 1, 10, 1, 0x1000, 0x2000, Prot(3));
                    b.leap(early);
                })
            };
            assert_eq!([at(0), at(100), at(101)], [0, 0, 1], "{cpus}");
        }
    }
}
