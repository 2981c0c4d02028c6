//! The fields of events by name, for output.

use serde_json::{Map, Value, json};

use super::wire::{Body, FileId, MapKind};

/// Takes the fields of an event, in order.
#[allow(missing_docs, reason = "a method for each type of a field")]
pub trait Fields {
    fn u64(&mut self, name: &str, value: u64);
    /// An address.
    fn hex(&mut self, name: &str, value: u64);
    fn u32(&mut self, name: &str, value: u32);
    fn i32(&mut self, name: &str, value: i32);
    fn u8(&mut self, name: &str, value: u8);
    fn kind(&mut self, name: &str, value: MapKind);
    fn text(&mut self, name: &str, value: &[u8]);
}

/// The members of an object of JSON.
#[derive(Default)]
pub struct Members(Map<String, Value>);

impl Members {
    /// Adds one.
    pub fn put(&mut self, name: &str, value: Value) {
        self.0.insert(name.into(), value);
    }
}

impl std::fmt::Display for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&serde_json::to_string(&self.0).map_err(|_| std::fmt::Error)?)
    }
}

impl Fields for Members {
    fn u64(&mut self, name: &str, value: u64) {
        self.put(name, json!(value));
    }
    fn hex(&mut self, name: &str, value: u64) {
        self.put(name, json!(value));
    }
    fn u32(&mut self, name: &str, value: u32) {
        self.put(name, json!(value));
    }
    fn i32(&mut self, name: &str, value: i32) {
        self.put(name, json!(value));
    }
    fn u8(&mut self, name: &str, value: u8) {
        self.put(name, json!(value));
    }
    fn kind(&mut self, name: &str, value: MapKind) {
        self.put(name, json!(value.name()));
    }
    fn text(&mut self, name: &str, value: &[u8]) {
        self.put(name, json!(String::from_utf8_lossy(value)));
    }
}

fn file_fields(to: &mut dyn Fields, file: &FileId) {
    to.u64("dev", file.dev);
    to.u64("ino", file.ino);
    to.u32("generation", file.generation);
}

impl Body<'_> {
    /// Gives an event's own fields; which these are depends on its number alone.
    pub fn fields(&self, to: &mut dyn Fields) {
        match *self {
            Body::Map(ref map) => {
                to.hex("start", map.start);
                to.hex("end", map.end);
                to.u64("offset", map.offset);
                file_fields(to, &map.file);
                to.u8("prot", map.prot.0);
                to.u32("flags", map.flags);
                to.kind("kind", map.kind);
                to.text("name", map.name);
            }
            Body::Unmap { start, end } => {
                to.hex("start", start);
                to.hex("end", end);
            }
            Body::Move {
                old_start,
                old_len,
                new_start,
                new_len,
                dontunmap,
            } => {
                to.hex("old_start", old_start);
                to.u64("old_len", old_len);
                to.hex("new_start", new_start);
                to.u64("new_len", new_len);
                to.u8("dontunmap", dontunmap.into());
            }
            Body::Protect { start, end, prot } => {
                to.hex("start", start);
                to.hex("end", end);
                to.u8("prot", prot.0);
            }
            Body::Advise { start, end, advice } => {
                to.hex("start", start);
                to.hex("end", end);
                to.u64("advice", advice);
            }
            Body::Gup {
                page,
                pfn,
                write,
                long_term,
            } => {
                to.hex("page", page);
                to.u64("pfn", pfn);
                to.u8("write", write.into());
                to.u8("long_term", long_term.into());
            }
            Body::SwapIn(swap) | Body::SwapOut(swap) => {
                to.hex("page", swap.page);
                to.u64("pfn", swap.pfn);
                to.u8("area", swap.area);
                to.u64("slot", swap.slot);
            }
            Body::Cow(frame) | Body::Ksm(frame) | Body::Migrate(frame) => {
                to.hex("page", frame.page);
                to.u64("old_pfn", frame.old_pfn);
                to.u64("new_pfn", frame.new_pfn);
            }
            Body::Switch { prev, next } => {
                to.u32("prev", prev.0);
                to.u32("next", next.0);
            }
            Body::MmDup { parent } => to.u32("parent", parent.0),
            Body::Fork {
                child_tid,
                child_tgid,
                child_mm,
                child_start,
            } => {
                to.u32("child_tid", child_tid.0);
                to.u32("child_tgid", child_tgid.0);
                to.u32("child_mm", child_mm.0);
                to.u64("child_start_ns", child_start);
            }
            Body::Exec {
                old_mm,
                ref file,
                comm,
                name,
            } => {
                to.u32("old_mm", old_mm.0);
                file_fields(to, file);
                to.text("comm", comm);
                to.text("name", name);
            }
            Body::Exit {
                utime_ns,
                stime_ns,
                code,
            } => {
                to.u64("utime_ns", utime_ns);
                to.u64("stime_ns", stime_ns);
                to.i32("code", code);
            }
            Body::Task {
                tid,
                tgid,
                start,
                comm,
                ..
            } => {
                to.u32("task_tid", tid.0);
                to.u32("task_tgid", tgid.0);
                to.u64("task_start_ns", start);
                to.text("comm", comm);
            }
            Body::Cgroup { tid, tgid, path } => {
                to.u32("task_tid", tid.0);
                to.u32("task_tgid", tgid.0);
                to.text("path", path);
            }
            Body::Truncate { ref file, length } => {
                file_fields(to, file);
                to.u64("length", length);
            }
            Body::Punch {
                ref file,
                offset,
                bytes,
            } => {
                file_fields(to, file);
                to.u64("offset", offset);
                to.u64("bytes", bytes);
            }
            Body::Delete { ref file, length } => {
                file_fields(to, file);
                to.u64("length", length);
            }
            Body::Open(ref open) | Body::Close(ref open) => {
                file_fields(to, &open.file);
                to.u64("length", open.length);
                to.text("kind", open.kind.name().as_bytes());
                to.text("name", open.name);
            }
            Body::Read(ref io) | Body::Write(ref io) => {
                file_fields(to, &io.file);
                to.u64("offset", io.offset);
                to.u64("bytes", io.bytes);
                to.text("kind", io.kind.name().as_bytes());
                to.text("call", io.call.name().as_bytes());
                to.u8("direct", io.direct.into());
            }
            Body::ShmAt(ref shm) | Body::ShmDt(ref shm) | Body::ShmDestroy(ref shm) => {
                to.hex("start", shm.start);
                to.hex("end", shm.end);
                file_fields(to, &shm.file);
                to.i32("shmid", shm.shmid);
            }
            Body::Resize { from, to: size } => {
                to.u32("from", from);
                to.u32("to", size);
            }
            Body::Set { set, cgroup } => {
                to.u32("set", set);
                to.u64("cgroup", cgroup);
            }
            Body::Filter { tests, expr } => {
                to.u32("tests", tests);
                to.text("expr", expr);
            }
            Body::Region(ref region) => {
                to.hex("start", region.start);
                to.hex("end", region.end);
                to.u32("looks", region.looks);
                to.u32("accesses", region.accesses);
                to.u32("writes", region.writes);
                to.u32("age", region.age);
                to.hex("cpus", region.cpus);
                to.u32("index", region.index);
                to.u32("regions", region.regions);
            }
            Body::Checkpoint { last_mm } => to.u32("last_mm", last_mm.0),
            Body::MmEnd
            | Body::SnapBegin
            | Body::SnapEnd
            | Body::RefsBegin
            | Body::CheckpointEnd
            | Body::Aside
            | Body::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TraceBuilder;
    use crate::trace::wire::{event_fields, event_names};
    use crate::trace::{Merge, Step, StreamKind, Trace};

    #[derive(Default)]
    struct Names(Vec<String>);

    impl Fields for Names {
        fn u64(&mut self, name: &str, _value: u64) {
            self.0.push(name.into());
        }
        fn hex(&mut self, name: &str, _value: u64) {
            self.0.push(name.into());
        }
        fn u32(&mut self, name: &str, _value: u32) {
            self.0.push(name.into());
        }
        fn i32(&mut self, name: &str, _value: i32) {
            self.0.push(name.into());
        }
        fn u8(&mut self, name: &str, _value: u8) {
            self.0.push(name.into());
        }
        fn kind(&mut self, name: &str, _value: MapKind) {
            self.0.push(name.into());
        }
        fn text(&mut self, name: &str, _value: &[u8]) {
            self.0.push(name.into());
        }
    }

    #[test]
    fn the_fields_of_an_event_are_known_before_it() {
        let of = |name: &str| {
            let mut names = Names::default();
            event_fields(name, &mut names);
            names.0
        };
        let without: Vec<_> = event_names()
            .into_iter()
            .filter(|name| of(name).is_empty())
            .collect();
        // A type whose fields cannot be decoded from zeros would be here, too.
        assert_eq!(
            without,
            [
                "mm_end",
                "snap_begin",
                "snap_end",
                "refs_begin",
                "checkpoint_end"
            ]
        );
        assert!(of("no such event").is_empty());
        let trace = Trace::from_bytes("memory", TraceBuilder::sample().finish()).expect("a trace");
        let mut merge = Merge::of_kinds(&trace, &[StreamKind::Event]);
        let mut events = 0;
        while let Step::Event(event) = merge.fill(&mut Vec::new(), 1).expect("reads") {
            let mut names = Names::default();
            event.said().fields(&mut names);
            assert_eq!(names.0, of(event.name()), "{}", event.name());
            events += 1;
        }
        assert!(events > 0);
    }
}
