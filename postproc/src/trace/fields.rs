//! The fields of events by name, for output.

use serde_json::{Map, Value, json};

use super::wire::{Call, FileId, FileKind, MapKind};
use crate::units::{Mm, Prot, Tid};

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

/// A type that fields of events have.
pub(in crate::trace) trait Given {
    /// Gives a field of this name.
    fn give(self, name: &str, to: &mut dyn Fields);
}

macro_rules! given {
    ($($type:ty: $value:ident => $to:ident.$method:ident($given:expr);)*) => {
        $(
            impl Given for $type {
                fn give(self, name: &str, $to: &mut dyn Fields) {
                    let $value = self;
                    $to.$method(name, $given);
                }
            }
        )*
    };
}

given! {
    u64: value => to.u64(value);
    u32: value => to.u32(value);
    i32: value => to.i32(value);
    u8: value => to.u8(value);
    bool: value => to.u8(value.into());
    Tid: tid => to.u32(tid.0);
    Mm: mm => to.u32(mm.0);
    Prot: prot => to.u8(prot.0);
    MapKind: kind => to.kind(kind);
    FileKind: kind => to.text(kind.name().as_bytes());
    Call: call => to.text(call.name().as_bytes());
    &[u8]: text => to.text(text);
}

/// A file has three fields, whatever its name is.
impl Given for FileId {
    fn give(self, _name: &str, to: &mut dyn Fields) {
        to.u64("dev", self.dev);
        to.u64("ino", self.ino);
        to.u32("generation", self.generation);
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
