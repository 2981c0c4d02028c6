//! `time`: within a stream, time does not decrease.

use std::collections::BTreeMap;

use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Batch, World};
use crate::space::Issue;
use crate::trace::{Event, PacketSeen, StreamId, Trace};

#[derive(Default)]
pub(super) struct Time {
    packets: BTreeMap<StreamId, PacketSeen>,
    last_ref_ns: u64,
    last_event_ns: BTreeMap<u32, u64>,
    start_ns: u64,
}

impl Rule for Time {
    fn id(&self) -> &'static str {
        "time"
    }

    fn about(&self) -> &'static str {
        "time does not decrease: over all references together, and over the events of each CPU"
    }

    fn begin(&mut self, trace: &Trace, _out: &mut Findings) {
        self.start_ns = trace.header().start_time_ns;
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
            // Number and time of every admission are assigned under one lock.
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
        }
    }

    fn event(&mut self, e: &Event<'_>, _world: &World, _issues: &[Issue], out: &mut Findings) {
        let last = self.last_event_ns.insert(e.cpu, e.time_ns).unwrap_or(0);
        if e.time_ns < last {
            out.error(|| {
                Draft::new(format!(
                    "an event is {} ns earlier than the event before it on the same CPU",
                    last - e.time_ns
                ))
                .record(Cited::event(e))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{TraceBuilder, check_bytes};

    #[test]
    fn going_back_is_found() {
        let mut builder = TraceBuilder::sample();
        builder.turn_back_time(1000);
        builder.touch(0, 10, 1, 0x1000);
        assert!(check_bytes(&builder.finish()).rule("time").unwrap().errors >= 1);
    }
}
