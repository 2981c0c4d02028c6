//! The kernel's counts, and whether the trace is good.

use std::fmt;
use std::path::{Path, PathBuf};

use rust_mm_trace::uapi::{
    VMTRACE_COUNTED, VMTRACE_FILTERED, VMTRACE_MODE_BLOCK, VMTRACE_MODE_DISCARD, VMTRACE_PAUSABLE,
    VMTRACE_PIECE, VMTRACE_REGIONS, VMTRACE_SCOPE_ALL, VMTRACE_SCOPE_CGROUP, VMTRACE_SCOPE_COMM,
    VMTRACE_SETS_CGROUP, VMTRACE_SETS_ONE, VMTRACE_SETS_PROCESS, VMTRACE_STATE_EARLY,
    VMTRACE_STATE_ENDING, VMTRACE_STATE_FAILED, VMTRACE_STATE_OFF, VMTRACE_STATE_ON,
    VMTRACE_UNWRITTEN, vmtrace_status,
};
use serde_json::{Map, Value, json};

use crate::error::{BAD_TRACE, Errno};
use crate::units::count;

/// What a trace is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Never on since boot, or ended well.
    Off,
    /// Being written.
    On,
    /// Ended by itself, because its output could not be written.
    Failed,
    /// On since boot, and kept in memory until somebody takes it over.
    Early,
    /// Being ended: nothing more is recorded, and the kernel writes what is left.
    Ending,
    /// A state that this program does not know.
    Unknown(u32),
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::On => f.write_str("on"),
            Self::Failed => f.write_str("failed"),
            Self::Early => f.write_str("on since boot; `activator on --early` takes it over"),
            Self::Ending => f.write_str("ending; the kernel writes what is left"),
            Self::Unknown(n) => write!(f, "unknown ({n})"),
        }
    }
}

/// A `struct vmtrace_status` with its meaning.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// The kernel's struct.
    pub raw: vmtrace_status,
    /// Of a trace in pieces that is on: whether a process begins pieces, if that is known.
    pub is_rotated: Option<bool>,
}

impl From<vmtrace_status> for Status {
    fn from(raw: vmtrace_status) -> Self {
        Self {
            raw,
            is_rotated: None,
        }
    }
}

impl Status {
    /// What the trace is doing.
    pub fn state(&self) -> State {
        match self.raw.state {
            VMTRACE_STATE_OFF => State::Off,
            VMTRACE_STATE_ON => State::On,
            VMTRACE_STATE_FAILED => State::Failed,
            VMTRACE_STATE_EARLY => State::Early,
            VMTRACE_STATE_ENDING => State::Ending,
            other => State::Unknown(other),
        }
    }

    /// Whether tracing is on.
    pub fn is_on(&self) -> bool {
        matches!(self.state(), State::On | State::Early)
    }

    /// Whether references may be left out.
    pub fn is_filtered(&self) -> bool {
        self.raw.flags & VMTRACE_FILTERED != 0
    }

    /// Whether references are counted by process and mapping.
    pub fn is_counted(&self) -> bool {
        self.raw.flags & VMTRACE_COUNTED != 0
    }

    /// Whether regions of memory are sampled, all the time or between windows.
    pub fn has_regions(&self) -> bool {
        self.raw.flags & VMTRACE_REGIONS != 0
    }

    /// Whether regions of memory are sampled, and no reference is recorded.
    pub fn is_of_regions(&self) -> bool {
        let raw = &self.raw;
        // A trace with windows by a plan has begun one of regions, or of references.
        let has_windows =
            raw.flags & VMTRACE_PAUSABLE != 0 || raw.windows != 0 || raw.windows_begun != 0;
        self.has_regions() && !has_windows
    }

    /// Whether records are written; otherwise the trace only counts.
    pub fn is_written(&self) -> bool {
        self.raw.flags & VMTRACE_UNWRITTEN == 0
    }

    /// Whether the trace is written in pieces.
    pub fn is_in_pieces(&self) -> bool {
        self.raw.flags & VMTRACE_PIECE != 0
    }

    /// The directory of the pieces, if the trace is written in pieces.
    pub fn directory(&self) -> Option<PathBuf> {
        let file = PathBuf::from(self.output());
        let directory = file.parent().filter(|_| self.is_in_pieces());
        directory.map(Path::to_owned)
    }

    /// Whether the kernel gave up to start a trace, because its output took nothing.
    pub fn is_abandoned(&self) -> bool {
        self.state() == State::Failed && self.raw.error.abs() == libc::ETIMEDOUT
    }

    /// Whether there was no trace since boot.
    pub fn is_never(&self) -> bool {
        self.state() == State::Off && self.raw.uuid == [0; 16]
    }

    /// The trace's UUID in hex.
    pub fn uuid(&self) -> String {
        self.raw.uuid.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The name that the output had at the start.
    pub fn output(&self) -> String {
        text_of(&self.raw.output)
    }

    /// The path of the control group that is traced, or the pattern for names.
    pub fn scope_name(&self) -> String {
        text_of(&self.raw.scope_name)
    }

    /// The traced processes, in words.
    pub fn scope(&self) -> String {
        let name = self.scope_name();
        match self.raw.scope {
            VMTRACE_SCOPE_ALL => "all processes".to_owned(),
            // Who may not trace does not learn which one.
            VMTRACE_SCOPE_CGROUP if name.is_empty() => {
                "a control group and its children".to_owned()
            }
            VMTRACE_SCOPE_COMM if name.is_empty() => "processes by name and children".to_owned(),
            VMTRACE_SCOPE_CGROUP => format!("control group {name} and its children"),
            VMTRACE_SCOPE_COMM => format!("processes named {name} and their children"),
            _ => format!("process {} and its children", self.raw.pid),
        }
    }

    /// What becomes of records that find no room, in words.
    pub fn mode(&self) -> &'static str {
        match self.raw.mode {
            VMTRACE_MODE_BLOCK => "programs wait for room",
            VMTRACE_MODE_DISCARD => "records that find no room are dropped",
            _ => "a mode that this program does not know",
        }
    }

    /// What has a set of its own, in words; `None` if there is only one set.
    pub fn set_per(&self) -> Option<&'static str> {
        match self.raw.sets {
            VMTRACE_SETS_ONE => None,
            VMTRACE_SETS_PROCESS => Some("process"),
            VMTRACE_SETS_CGROUP => Some("control group"),
            _ => Some("thing that this program does not know"),
        }
    }

    /// What follows N in a text: nothing, if there is only one set.
    pub fn for_each(&self) -> String {
        self.set_per()
            .map_or(String::new(), |what| format!(" for each {what}"))
    }

    /// How long the trace has been on, ns.
    pub fn duration_ns(&self) -> u64 {
        self.raw.stop_time.saturating_sub(self.raw.start_time)
    }

    /// References traced until now: admissions and second chances, or, once the trace has
    /// ended, those in the trace and those that its filter has left out. Renewals are no
    /// references.
    pub fn references(&self) -> u64 {
        if self.is_on() {
            self.raw.admissions.saturating_add(self.raw.chances)
        } else {
            let records = self.raw.refs.saturating_add(self.raw.left_out);
            records.saturating_sub(self.raw.renewed)
        }
    }

    /// References per second of the trace.
    pub fn rate(&self) -> f64 {
        match self.duration_ns() {
            0 => 0.0,
            ns => self.references() as f64 * 1e9 / ns as f64,
        }
    }

    /// Records lost, whatever the cause.
    pub fn lost(&self) -> u64 {
        [self.raw.lost_full, self.raw.lost_atomic, self.raw.lost_io]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// What is wrong with the trace; nothing, if it is good.
    pub fn problems(&self) -> Vec<String> {
        let raw = &self.raw;
        let mut found = Vec::new();
        let mut nonzero = |n: u64, what: &str| {
            if n != 0 {
                found.push(format!("{} {what}", count(n)));
            }
        };
        nonzero(raw.lost_full, "records lost because the buffers were full");
        nonzero(
            raw.lost_atomic,
            "events lost where the kernel could not wait for room",
        );
        nonzero(raw.lost_io, "records lost because the output failed");
        nonzero(
            raw.funny,
            "funny PTEs: enabled pages that are not in the set",
        );
        nonzero(raw.stuck, "stuck victims: pages that could not be disabled");
        nonzero(
            raw.dangling,
            "dangling members: pages of the set that are not enabled",
        );
        nonzero(
            raw.miscounted,
            "counts of the set that contradict each other",
        );
        nonzero(
            raw.sets_shared,
            "address spaces share set 0, because there was no memory for sets of their own",
        );
        // Set 0 is there in any case.
        let sets = raw.sets_max.saturating_add(1);
        if raw.members_max > u64::from(raw.evms_peak).saturating_mul(sets) {
            let mut text = format!(
                "{} pages were enabled at one time, more than N={}",
                count(raw.members_max),
                count(raw.evms_peak.into())
            );
            if sets > 1 {
                text += &format!(" in each of {} sets", count(sets));
            }
            found.push(text);
        }
        // Until the end of the trace, some records are still in the buffers. Each renewal
        // and each second chance adds a record. A filter leaves records out.
        let due = [raw.renewed, raw.chances]
            .into_iter()
            .fold(raw.admissions, u64::saturating_add);
        let made = raw.refs.saturating_add(raw.left_out);
        if self.state() == State::Off && self.lost() == 0 && due != made {
            let mut text = format!(
                "{} admissions, renewals and second chances, although {} records were written",
                count(due),
                count(raw.refs)
            );
            if self.is_filtered() || raw.left_out != 0 {
                text += &format!(" and {} left out", count(raw.left_out));
            }
            found.push(text);
        }
        if let Some(why) = self.failure() {
            found.insert(0, format!("the output failed: {why}"));
        }
        found
    }

    /// Why the trace ended by itself, if it did.
    pub fn failure(&self) -> Option<String> {
        match (self.raw.error, self.state()) {
            (0, State::Failed) => Some("the kernel did not say why".to_owned()),
            (0, _) => None,
            // The kernel's convention is a negative number; the header's is not.
            (error, _) if error.saturating_abs() == libc::ETIMEDOUT => {
                Some("it took no data for as long as the stall limit".to_owned())
            }
            (error, _) => Some(Errno(error.saturating_abs()).to_string()),
        }
    }

    /// The exit code that the trace deserves.
    pub fn exit_code(&self) -> u8 {
        if self.problems().is_empty() {
            0
        } else {
            BAD_TRACE
        }
    }

    /// All fields under the kernel's names; the UUID in hex, the output as text. `problems`
    /// lists what is wrong with the trace.
    pub fn json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        macro_rules! fields {
            ($($name:ident)*) => {
                $(map.insert(stringify!($name).into(), json!(self.raw.$name));)*
            };
        }
        fields!(size state error scope pid evms_size evms_min nr_cpus);
        map.insert("uuid".into(), json!(self.uuid()));
        fields!(start_time stop_time last_seq admissions refs events aborted);
        fields!(members members_max funny stuck audits dangling miscounted uncovered);
        fields!(lost_full lost_atomic lost_io waits packets bytes stored mms);
        fields!(renewed chances flags first_segment policy batch evms_max evms_peak classes);
        fields!(windows windows_begun windows_ended unaudited);
        fields!(sets mode sets_made sets_max sets_shared piece piece_bytes left_out interval ran);
        map.insert("scope_name".into(), json!(self.scope_name()));
        map.insert("output".into(), json!(self.output()));
        map.insert("problems".into(), json!(self.problems()));
        map
    }
}

/// The text that a NUL ends.
fn text_of(chars: &[libc::c_char]) -> String {
    let bytes: Vec<u8> = chars
        .iter()
        .map(|c| *c as u8)
        .take_while(|b| *b != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Status {
        Status::from(vmtrace_status {
            evms_size: 512,
            evms_peak: 512,
            uuid: [0xab; 16],
            start_time: 1_000_000_000,
            stop_time: 3_000_000_000,
            admissions: 1000,
            refs: 1000,
            members_max: 512,
            ..Default::default()
        })
    }

    #[test]
    fn json_has_every_field() {
        let json = good().json();
        // {:?} of the generated type is the one list of its fields there is.
        let debug = format!("{:#?}", good().raw);
        let fields: Vec<_> = debug
            .lines()
            .filter_map(|l| l.strip_prefix("    ")?.split_once(": "))
            .filter(|(name, _)| !name.starts_with(' '))
            .map(|(name, _)| name)
            .filter(|name| *name != "pad")
            .collect();
        assert!(fields.len() > 20, "{fields:?}");
        for name in &fields {
            assert!(json.contains_key(*name), "{name}");
        }
        assert_eq!(json.len(), fields.len() + 1, "problems");
        assert_eq!(json["uuid"], "ab".repeat(16));
        assert_eq!(json["refs"], 1000);
    }

    #[test]
    fn a_good_trace_has_no_problems() {
        assert_eq!(good().problems(), [""; 0]);
        assert_eq!((good().exit_code(), good().rate()), (0, 500.0));
    }

    #[test]
    fn each_problem_is_told() {
        let problem = |change: &dyn Fn(&mut vmtrace_status)| {
            let mut status = good();
            change(&mut status.raw);
            assert_eq!(status.exit_code(), 1);
            status.problems().join("; ")
        };
        assert_eq!(
            problem(&|s| s.lost_full = 1234),
            "1,234 records lost because the buffers were full"
        );
        assert_eq!(
            problem(&|s| s.lost_atomic = 1),
            "1 events lost where the kernel could not wait for room"
        );
        assert_eq!(
            problem(&|s| s.lost_io = 2),
            "2 records lost because the output failed"
        );
        assert_eq!(
            problem(&|s| s.funny = 3),
            "3 funny PTEs: enabled pages that are not in the set"
        );
        assert_eq!(
            problem(&|s| s.stuck = 4),
            "4 stuck victims: pages that could not be disabled"
        );
        assert_eq!(
            problem(&|s| s.dangling = 5),
            "5 dangling members: pages of the set that are not enabled"
        );
        assert_eq!(
            problem(&|s| s.miscounted = 6),
            "6 counts of the set that contradict each other"
        );
        assert_eq!(
            problem(&|s| s.members_max = 513),
            "513 pages were enabled at one time, more than N=512"
        );
        assert_eq!(
            problem(&|s| (s.members_max, s.sets, s.sets_max) = (1537, 1, 2)),
            "1,537 pages were enabled at one time, more than N=512 in each of 3 sets"
        );
        assert_eq!(
            problem(&|s| (s.sets, s.sets_shared) = (1, 7)),
            "7 address spaces share set 0, because there was no memory for sets of their own"
        );
        assert_eq!(
            problem(&|s| s.refs = 999),
            "1,000 admissions, renewals and second chances, although 999 records were written"
        );
        assert_eq!(
            problem(&|s| (s.flags, s.refs, s.left_out) = (VMTRACE_FILTERED, 300, 600)),
            "1,000 admissions, renewals and second chances, although 300 records were written and \
             600 left out"
        );
        let full = "the output failed: No space left on device";
        for error in [libc::ENOSPC, -libc::ENOSPC] {
            assert_eq!(
                problem(&|s| (s.state, s.error) = (VMTRACE_STATE_FAILED, error)),
                full
            );
            assert_eq!(problem(&|s| s.error = error), full);
        }
        assert_eq!(
            problem(&|s| s.state = VMTRACE_STATE_FAILED),
            "the output failed: the kernel did not say why"
        );
    }

    #[test]
    fn references_that_were_left_out_are_no_problem() {
        let mut status = good();
        (status.raw.flags, status.raw.left_out) = (VMTRACE_FILTERED, 800);
        (status.raw.renewed, status.raw.refs) = (50, 250);
        assert_eq!(status.problems(), [""; 0]);
        assert_eq!((status.references(), status.rate()), (1000, 500.0));
    }

    #[test]
    fn several_sets_are_no_problem() {
        let mut status = good();
        (status.raw.sets, status.raw.sets_made) = (VMTRACE_SETS_PROCESS, 9);
        (status.raw.sets_max, status.raw.members_max) = (2, 1536);
        assert_eq!(status.problems(), [""; 0]);
        assert_eq!(status.exit_code(), 0);
        // Sets that are gone make no room.
        (status.raw.sets_max, status.raw.members_max) = (1, 1025);
        assert_eq!(status.exit_code(), 1);
        (status.raw.sets_max, status.raw.members_max) = (u64::MAX, u64::MAX);
        assert_eq!(status.exit_code(), 0);
    }

    #[test]
    fn sets_in_words() {
        let mut status = good();
        assert_eq!((status.set_per(), status.for_each()), (None, String::new()));
        status.raw.sets = VMTRACE_SETS_PROCESS;
        assert_eq!(status.for_each(), " for each process");
        status.raw.sets = VMTRACE_SETS_CGROUP;
        assert_eq!(status.for_each(), " for each control group");
        status.raw.sets = 3;
        assert!(status.for_each().contains("does not know"));
    }

    #[test]
    fn records_in_the_buffers_are_no_problem() {
        let mut status = good();
        status.raw.state = VMTRACE_STATE_ON;
        status.raw.refs = 0;
        assert_eq!(status.problems(), [""; 0]);
        assert_eq!(status.references(), 1000);
    }

    #[test]
    fn renewals_are_no_references() {
        let mut status = good();
        (status.raw.refs, status.raw.renewed, status.raw.chances) = (1230, 200, 30);
        status.raw.admissions = 1000;
        assert_eq!(status.references(), 1030);
        status.raw.state = VMTRACE_STATE_ON;
        assert_eq!(status.references(), 1030);
    }
}
