//! Copies of the complete pieces of a trace, made while the trace goes on, when something happens.

use std::collections::VecDeque;
use std::fs;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Io;
use crate::control::Control;
use crate::error::{BAD_TRACE, Failure};
use crate::pieces::{Collected, Uncollected, collect, list};
use crate::rotate::{Rotor, Turn};
use crate::status::{State, Status};
use crate::sys::{Beside, Signals};
use crate::triggers::{Trigger, Triggers, parse_trigger};
use crate::units::{bytes, count, parse_rate};

/// Exit codes of a program: ranges, or all but these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codes {
    all_but: bool,
    ranges: Vec<(u8, u8)>,
}

impl Codes {
    /// Whether a code is meant.
    pub fn has(&self, code: u8) -> bool {
        let is_in = self.ranges.iter().any(|(a, b)| (*a..=*b).contains(&code));
        is_in != self.all_but
    }
}

/// Signals by which programs end.
const SIGNALS: [(&str, libc::c_int); 15] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("SEGV", libc::SIGSEGV),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("XCPU", libc::SIGXCPU),
    ("SYS", libc::SIGSYS),
];

/// Reads exit codes: `0`, `1-127`, `139`, `SIGSEGV`, several of them with commas, or `!` and what is
/// not meant.
fn parse_codes(text: &str) -> Result<Codes, String> {
    let (all_but, list) = match text.strip_prefix('!') {
        Some(list) => (true, list),
        None => (false, text),
    };
    let mut ranges = Vec::new();
    for part in list.split(',') {
        let wrong = |why: &str| format!("{part:?}: {why}");
        if let Some(name) = part.strip_prefix("SIG") {
            let (_, signal) = SIGNALS
                .iter()
                .find(|(known, _)| *known == name)
                .ok_or_else(|| wrong("no such signal ends programs; give 128 + its number"))?;
            let code = 128 + *signal as u8;
            ranges.push((code, code));
            continue;
        }
        let code = |text: &str| match text.parse::<u8>() {
            Ok(code) if !text.starts_with('+') => Ok(code),
            _ => Err(wrong(
                "give an exit code from 0 to 255, a range 1-127, or SIGSEGV",
            )),
        };
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (code(first)?, code(last)?),
            None => (code(part)?, code(part)?),
        };
        if first > last {
            return Err(wrong("the range ends before it begins"));
        }
        ranges.push((first, last));
    }
    Ok(Codes { all_but, ranges })
}

/// What a snapshot is taken for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotTrigger {
    /// A signal comes, or a file appears.
    Plain(Trigger),
    /// The traced program ends with one of these codes.
    Exit(Codes),
    /// There are more references in a second.
    Rate(u64),
}

/// Reads a trigger: `signal:USR1`, `signal:USR2`, `file:PATH`, `exit:CODES` or `rate:N`.
pub fn parse_snapshot_trigger(text: &str) -> Result<SnapshotTrigger, String> {
    if let Some(codes) = text.strip_prefix("exit:") {
        return parse_codes(codes).map(SnapshotTrigger::Exit);
    }
    if let Some(rate) = text.strip_prefix("rate:") {
        let read = parse_rate(rate).map(SnapshotTrigger::Rate);
        return read.map_err(|why| format!("{rate:?}: {why}"));
    }
    if text.starts_with("signal:") || text.starts_with("file:") {
        return parse_trigger(text).map(SnapshotTrigger::Plain);
    }
    Err("give signal:USR1, signal:USR2, file:PATH, exit:CODES or rate:N".into())
}

/// The plain ones among triggers. All do the same.
pub fn plain(of: &[SnapshotTrigger]) -> Vec<(Trigger, bool)> {
    let plain = |t: &SnapshotTrigger| match t {
        SnapshotTrigger::Plain(trigger) => Some((trigger.clone(), true)),
        _ => None,
    };
    of.iter().filter_map(plain).collect()
}

/// The most snapshots, unless the user gives another number.
pub const MOST: u32 = 10;
/// Between two looks at the rate.
const SECOND: Duration = Duration::from_secs(1);
/// After a snapshot because of the rate, as long a look at it makes none.
const REST: Duration = Duration::from_secs(10);
/// Before another try to begin a piece.
const SOON: Duration = Duration::from_millis(50);

/// Takes snapshots when something happens.
#[derive(Debug)]
pub struct Snapshots {
    /// The directory of all snapshots.
    into: PathBuf,
    most: u32,
    quiet: bool,
    triggers: Triggers,
    codes: Vec<Codes>,
    rate: Option<u64>,
    next_rate: Option<Instant>,
    seen: Option<(u64, u64)>,
    /// What the next one is taken for, and when that is tried.
    wanted: Option<(String, Instant)>,
    making: Option<(Beside, String)>,
    taken: u32,
    /// Triggers that came when there were as many as there may be.
    further: u64,
    failure: Option<Failure>,
}

impl Snapshots {
    /// Prepares for triggers.
    ///
    /// # Errors
    ///
    /// If a file that is waited for is there already, or its directory is not.
    pub fn new(
        of: &[SnapshotTrigger],
        into: PathBuf,
        most: u32,
        quiet: bool,
    ) -> Result<Self, Failure> {
        let codes = |t: &SnapshotTrigger| match t {
            SnapshotTrigger::Exit(codes) => Some(codes.clone()),
            _ => None,
        };
        let rate = |t: &SnapshotTrigger| match t {
            SnapshotTrigger::Rate(rate) => Some(*rate),
            _ => None,
        };
        Ok(Self {
            into,
            most,
            quiet,
            triggers: Triggers::new(VecDeque::new(), plain(of))?,
            codes: of.iter().filter_map(codes).collect(),
            rate: of.iter().filter_map(rate).min(),
            next_rate: None,
            seen: None,
            wanted: None,
            making: None,
            taken: 0,
            further: 0,
            failure: None,
        })
    }

    /// The trace has begun.
    pub fn begin(&mut self, now: Instant) {
        self.triggers.begin(now);
        self.next_rate = self.rate.map(|_| now);
    }

    /// Whether the end of the traced program may be a trigger.
    pub fn awaits_exit(&self) -> bool {
        !self.codes.is_empty()
    }

    /// To wait for.
    pub fn fd(&self) -> Option<RawFd> {
        self.making.as_ref().map(|(beside, _)| beside.fd())
    }

    /// When it is to look next.
    pub fn next_at(&self) -> Option<Instant> {
        let wanted = self.wanted.as_ref().filter(|_| self.making.is_none());
        [
            self.triggers.next_at(),
            self.next_rate,
            wanted.map(|(_, at)| *at),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether a signal is a trigger.
    pub fn signal(&mut self, signal: libc::c_int) -> bool {
        let is_trigger = self.triggers.signal(signal).is_some();
        if is_trigger {
            self.want("a signal".into());
        }
        is_trigger
    }

    /// The traced program has ended.
    pub fn exited(&mut self, code: u8) {
        if self.codes.iter().any(|codes| codes.has(code)) {
            self.want(format!("the exit code {code}"));
        }
    }

    fn want(&mut self, why: String) {
        let more = u32::from(self.making.is_some());
        if self.taken + more >= self.most {
            self.further += 1;
        } else if self.wanted.is_none() {
            // What comes before it is taken is in it.
            self.wanted = Some((why, Instant::now()));
        }
    }

    /// Does what is due.
    pub fn look(&mut self, control: &dyn Control, rotor: &mut Rotor, io: &mut Io<'_>) {
        let now = Instant::now();
        for _ in self.triggers.due(now) {
            self.want("a file".into());
        }
        if self.next_rate.is_some_and(|at| at <= now) {
            self.next_rate = Some(now + SECOND);
            self.look_at_rate(control, now);
        }
        self.hear(io);
        let is_due = self.wanted.as_ref().is_some_and(|(_, at)| *at <= now);
        if !is_due || self.making.is_some() || rotor.is_over() {
            return;
        }
        match rotor.rotate(control, io) {
            Some(Turn::Done(last)) => self.take(rotor, last),
            Some(_) => {
                if let Some((_, at)) = &mut self.wanted {
                    *at = now + SOON;
                }
            }
            // If the trace has ended, that comes at the end.
            None if rotor.failure().is_some() => {
                self.wanted = None;
                self.fail("no piece could begin for it".into(), io);
            }
            None => {
                if let Some((_, at)) = &mut self.wanted {
                    *at = now + SECOND;
                }
            }
        }
    }

    fn look_at_rate(&mut self, control: &dyn Control, now: Instant) {
        let (Some(rate), Ok(status)) = (self.rate, control.status()) else {
            return;
        };
        let seen = (status.references(), status.duration_ns());
        let Some(before) = self.seen.replace(seen) else {
            return;
        };
        let references = u128::from(seen.0.saturating_sub(before.0));
        let ns = u128::from(seen.1.saturating_sub(before.1));
        if references * 1_000_000_000 > u128::from(rate) * ns && ns > 0 {
            let now_rate = u64::try_from(references * 1_000_000_000 / ns).unwrap_or(u64::MAX);
            self.want(format!("{} references in a second", count(now_rate)));
            self.next_rate = Some(now + REST);
            self.seen = None;
        }
    }

    /// Begins to make a snapshot of the pieces up to `last`.
    fn take(&mut self, rotor: &Rotor, last: u32) {
        let Some((why, _)) = self.wanted.take() else {
            return;
        };
        let (into, from, uuid) = (self.into.clone(), rotor.directory(), rotor.uuid());
        match Beside::new(|| make(&into, from, uuid, last)) {
            Ok(beside) => self.making = Some((beside, why)),
            Err(e) => self.failure = Some(Failure::usage(format!("no snapshot was made: {e}"))),
        }
    }

    /// Hears what the child has to say, if it has.
    fn hear(&mut self, io: &mut Io<'_>) {
        let Some((beside, why)) = &mut self.making else {
            return;
        };
        let is_ready = crate::sys::Ready::wait(&[Some(beside.fd())], Duration::ZERO);
        if !is_ready.is_ok_and(|ready| ready.is(0)) {
            return;
        }
        let Some(text) = beside.next() else { return };
        let text = String::from_utf8_lossy(&text).into_owned();
        let why = std::mem::take(why);
        self.making = None;
        match text.split_once(' ') {
            Some(("made", what)) => {
                self.taken += 1;
                if !self.quiet {
                    io.note(&format!("because of {why}, {what}"));
                }
            }
            Some(("failed", what)) => self.fail(what.to_owned(), io),
            // It was removed before it could be linked. There are newer ones.
            _ if text == "gone" => self.wanted = Some((why, Instant::now())),
            _ => self.fail("the process that makes it was killed".into(), io),
        }
    }

    fn fail(&mut self, why: String, io: &mut Io<'_>) {
        let why = format!("no snapshot was made: {why}");
        io.note(&why);
        self.failure = Some(Failure::usage(why));
    }

    /// The trace has ended: takes what is still wanted, and waits for that. A signal that ends
    /// programs ends the wait.
    pub fn end(
        &mut self,
        status: &Status,
        rotor: &Rotor,
        signals: &mut Signals,
        io: &mut Io<'_>,
    ) -> Result<(), Failure> {
        loop {
            self.hear(io);
            match &self.making {
                Some((beside, _)) => {
                    let fds = [Some(beside.fd()), Some(signals.fd())];
                    // An interrupted wait is no harm.
                    let _ = crate::sys::Ready::wait(&fds, SECOND);
                    let ending = std::iter::from_fn(|| signals.next())
                        .find(|s| ![libc::SIGCHLD, libc::SIGUSR1, libc::SIGUSR2].contains(s));
                    if let Some(signal) = ending {
                        beside.kill();
                        remove_unfinished(&self.into, beside.pid());
                        self.making = None;
                        return Err(Failure::new(
                            128 + signal as u8,
                            "a snapshot was not finished; nothing is left of it",
                        ));
                    }
                }
                None if self.wanted.is_some() => {
                    let is_whole = status.state() == State::Off;
                    let whole = status.raw.piece.checked_sub(u32::from(!is_whole));
                    match whole.filter(|_| status.raw.uuid == *rotor.uuid()) {
                        Some(last) => self.take(rotor, last),
                        None => {
                            self.wanted = None;
                            self.fail("the trace has ended, and no piece is complete".into(), io);
                        }
                    }
                }
                None => break,
            }
        }
        if self.further > 0 {
            io.note(&format!(
                "{} triggers came after the last snapshot that --snapshot-most {} allows",
                count(self.further),
                self.most
            ));
        }
        self.failure.take().map_or(Ok(()), Err)
    }
}

/// Makes a snapshot in a directory of its own in `into`, and tells what became of it.
fn make(into: &Path, from: &Path, uuid: &[u8; 16], last: u32) -> Vec<u8> {
    let made = || -> Result<String, Uncollected> {
        let failed = |e| Uncollected::Failed(format!("{}: {e}", into.display()));
        match fs::create_dir(into) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(e)),
            _ => {}
        }
        let free = (0..).map(|n: u32| into.join(format!("{n:05}")));
        let to = free
            .into_iter()
            .find(|to| fs::symlink_metadata(to).is_err());
        let to = to.unwrap_or_else(|| into.join("more"));
        let got = collect(from, uuid, last, &to, &mut |_, _| true)?;
        Ok(said(&got, &to))
    };
    match made() {
        Ok(what) => format!("made {what}").into_bytes(),
        Err(Uncollected::Failed(why)) => format!("failed {why}").into_bytes(),
        Err(_) => b"gone".to_vec(),
    }
}

/// What a collection has, in words.
pub fn said(got: &Collected, to: &Path) -> String {
    format!(
        "pieces {} to {} ({}) are in {}",
        got.first,
        got.last,
        bytes(got.bytes),
        to.display()
    )
}

/// Removes what a process that was killed has left.
fn remove_unfinished(into: &Path, pid: libc::pid_t) {
    let Ok(entries) = fs::read_dir(into) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') && name.ends_with(&format!(".{pid}")) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// What `activator snapshot` makes of a trace that may go on. `next` begins a piece if the trace is
/// on, and gives the number of the last one that is complete.
pub fn take_now(
    from: &Path,
    uuid: &[u8; 16],
    to: &Path,
    next: &mut dyn FnMut() -> Result<u32, Failure>,
    go_on: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Option<Collected>, Failure> {
    const TRIES: u32 = 20;
    for _ in 0..TRIES {
        let last = next()?;
        match collect(from, uuid, last, to, go_on) {
            Ok(got) => return Ok(Some(got)),
            Err(Uncollected::Interrupted) => return Ok(None),
            Err(Uncollected::Failed(why)) => return Err(Failure::usage(why)),
            // It was removed meanwhile, so there are newer ones.
            Err(Uncollected::Gone) => {}
        }
    }
    let left = list(from).map_or(0, |pieces| pieces.len());
    Err(Failure::new(
        BAD_TRACE,
        format!(
            "pieces are removed faster than they can be linked; there are {left} in {} now: \
             give --keep a larger size",
            from.display()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triggers_are_read() {
        let usr2 = SnapshotTrigger::Plain(Trigger::Signal(libc::SIGUSR2));
        assert_eq!(parse_snapshot_trigger("signal:USR2"), Ok(usr2));
        assert_eq!(
            parse_snapshot_trigger("file:/tmp/go"),
            Ok(SnapshotTrigger::Plain(Trigger::File("/tmp/go".into())))
        );
        for (text, rate) in [("300", 300), ("10k", 10_000), ("2M", 2_000_000)] {
            let got = parse_snapshot_trigger(&format!("rate:{text}"));
            assert_eq!(got, Ok(SnapshotTrigger::Rate(rate)));
        }
        for (wrong, why) in [
            ("", "give signal:USR1"),
            ("USR1", "give signal:USR1"),
            ("signal:KILL", "KILL can't be a trigger"),
            ("file:", "a path must follow"),
            ("rate:", "\"\": give a number"),
            ("rate:0", "\"0\": give a number"),
            ("rate:-1", "\"-1\": give"),
            ("rate:10K", "\"10K\": give"),
            ("exit:", "\"\": give an exit code"),
            ("exit:!", "\"\": give an exit code"),
            ("exit:256", "\"256\": give an exit code"),
            ("exit:0,x", "\"x\": give an exit code"),
            ("exit:0,,1", "\"\": give an exit code"),
            ("exit:9-3", "\"9-3\": the range ends"),
            ("exit:1-", "\"1-\": give"),
            ("exit:SIGFOO", "\"SIGFOO\": no such signal"),
            ("exit:!!0", "\"!0\": give"),
        ] {
            let told = parse_snapshot_trigger(wrong).expect_err(wrong);
            assert!(told.contains(why), "{wrong}: {told}");
        }
    }

    #[test]
    fn codes() {
        let has = |text: &str| {
            let Ok(SnapshotTrigger::Exit(codes)) = parse_snapshot_trigger(text) else {
                panic!("{text}");
            };
            let all: Vec<u8> = (0..=255).filter(|code| codes.has(*code)).collect();
            all
        };
        assert_eq!(has("exit:0"), [0]);
        assert_eq!(has("exit:SIGSEGV"), [139]);
        assert_eq!(has("exit:139"), [139]);
        assert_eq!(has("exit:1-3,7,SIGABRT"), [1, 2, 3, 7, 134]);
        assert_eq!(has("exit:!0"), (1..=255).collect::<Vec<_>>());
        assert_eq!(has("exit:!0-253,255"), [254]);
    }
}
