//! What begins and ends windows while a command runs: a list of times, signals, and files that
//! appear.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::units::parse_time;

/// What begins or ends a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The activator gets a signal.
    Signal(libc::c_int),
    /// A file appears, of any kind.
    File(PathBuf),
}

/// As the user writes it.
impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trigger::Signal(signal) => {
                let known = SIGNALS.iter().find(|(_, number)| number == signal);
                write!(f, "signal:{}", known.map_or("?", |(name, _)| name))
            }
            Trigger::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// Signals that mean nothing else to the activator.
const SIGNALS: [(&str, libc::c_int); 2] = [("USR1", libc::SIGUSR1), ("USR2", libc::SIGUSR2)];

/// Reads a trigger: `signal:USR1`, `signal:USR2` or `file:PATH`.
pub fn parse_trigger(text: &str) -> Result<Trigger, String> {
    if let Some(name) = text.strip_prefix("signal:") {
        let plain = name.strip_prefix("SIG").unwrap_or(name);
        let known = SIGNALS.iter().find(|(known, _)| *known == plain);
        return match known {
            Some((_, signal)) => Ok(Trigger::Signal(*signal)),
            None => Err(format!(
                "{name} can't be a trigger: use signal:USR1 or signal:USR2"
            )),
        };
    }
    match text.strip_prefix("file:") {
        Some("") => Err("a path must follow file:".into()),
        Some(path) => Ok(Trigger::File(path.into())),
        None => Err("give signal:USR1, signal:USR2 or file:PATH".into()),
    }
}

/// A window is to begin, or to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Since the command began.
    pub at: Duration,
    /// Whether it begins.
    pub begin: bool,
}

/// Reads a list of windows: on each line the times at which a window begins and ends, with a comma
/// between them. Empty lines and lines that begin with `#` mean nothing.
///
/// # Errors
///
/// A message that names the line: if it is not of this form, or its window does not end after its
/// beginning, or begins before the one of the line before has ended; or if there is no window.
pub fn parse_steps(text: &str) -> Result<VecDeque<Step>, String> {
    let mut steps = VecDeque::new();
    let mut last = Duration::ZERO;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: String| format!("line {number}: {why}");
        let (begin, end) = line.split_once(',').ok_or_else(|| {
            wrong(format!(
                "{line:?} is not a window: write BEGIN,END, for example 1.5s,2s"
            ))
        })?;
        let time = |text: &str| match text.trim() {
            "0" => Ok(Duration::ZERO),
            text => parse_time(text).map(Duration::from_nanos).map_err(wrong),
        };
        let (begin, end) = (time(begin)?, time(end)?);
        if end <= begin {
            return Err(wrong("the window ends before it has begun".into()));
        }
        if begin < last {
            return Err(wrong(
                "the window begins before the last one has ended".into(),
            ));
        }
        last = end;
        steps.push_back(Step {
            at: begin,
            begin: true,
        });
        steps.push_back(Step {
            at: end,
            begin: false,
        });
    }
    match steps.is_empty() {
        true => Err("there is no window in it".into()),
        false => Ok(steps),
    }
}

/// Reads the list of windows in a file.
pub fn read_steps(path: &Path) -> Result<VecDeque<Step>, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|e| Failure::usage(format!("can't read {}: {e}", path.display())))?;
    parse_steps(&text).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
}

/// What is waited for while a command runs.
#[derive(Debug, Default)]
pub struct Triggers {
    steps: VecDeque<Step>,
    began: Option<Instant>,
    signals: Vec<(libc::c_int, bool)>,
    files: Vec<Awaited>,
    next_look: Option<Instant>,
}

/// A file that is a trigger.
#[derive(Debug)]
struct Awaited {
    path: PathBuf,
    begin: bool,
    is_there: bool,
}

/// Time between two looks for files. Files appear on network file systems, too, of which the kernel
/// gives no notice.
const LOOK: Duration = Duration::from_millis(50);

impl Triggers {
    /// Prepares to wait. `of` has triggers, and whether each begins a window.
    ///
    /// # Errors
    ///
    /// If a file is there already, or its directory is not; or if a trigger begins and ends windows.
    pub fn new(steps: VecDeque<Step>, of: Vec<(Trigger, bool)>) -> Result<Self, Failure> {
        for (trigger, begin) in &of {
            if of.contains(&(trigger.clone(), !begin)) {
                return Err(Failure::usage(format!(
                    "{trigger} cannot both begin and end windows: give one of them another trigger"
                )));
            }
        }
        let mut all = Triggers {
            steps,
            ..Triggers::default()
        };
        for (trigger, begin) in of {
            match trigger {
                Trigger::Signal(signal) => all.signals.push((signal, begin)),
                Trigger::File(path) => {
                    check_awaited(&path).map_err(|why| {
                        Failure::usage(format!("can't wait for {}: {why}", path.display()))
                    })?;
                    all.files.push(Awaited {
                        path,
                        begin,
                        is_there: false,
                    });
                }
            }
        }
        Ok(all)
    }

    /// The command begins.
    pub fn begin(&mut self, now: Instant) {
        self.began = Some(now);
        self.next_look = (!self.files.is_empty()).then_some(now);
    }

    /// Signals that are triggers.
    pub fn signals(of: &[(Trigger, bool)]) -> Vec<libc::c_int> {
        let signal = |t: &Trigger| match t {
            Trigger::Signal(signal) => Some(*signal),
            Trigger::File(_) => None,
        };
        of.iter().filter_map(|(t, _)| signal(t)).collect()
    }

    /// When [`Triggers::due`] is to be called next.
    pub fn next_at(&self) -> Option<Instant> {
        let by_list = self.began.zip(self.steps.front()).map(|(t, s)| t + s.at);
        [by_list, self.next_look].into_iter().flatten().min()
    }

    /// What is to be done now by the list, and because files have appeared: whether a window is to
    /// begin, for each.
    pub fn due(&mut self, now: Instant) -> Vec<bool> {
        let mut due = Vec::new();
        while let (Some(began), Some(step)) = (self.began, self.steps.front()) {
            if began + step.at > now {
                break;
            }
            due.push(step.begin);
            self.steps.pop_front();
        }
        if self.next_look.is_some_and(|at| at <= now) {
            for file in &mut self.files {
                let is_there = fs::symlink_metadata(&file.path).is_ok();
                if is_there && !file.is_there {
                    due.push(file.begin);
                }
                file.is_there = is_there;
            }
            self.next_look = Some(now + LOOK);
        }
        due
    }

    /// Whether a window is to begin or to end because of a signal, if it is a trigger.
    pub fn signal(&self, signal: libc::c_int) -> Option<bool> {
        let (_, begin) = self.signals.iter().find(|(of, _)| *of == signal)?;
        Some(*begin)
    }
}

/// Checks whether a file can appear.
fn check_awaited(path: &Path) -> Result<(), String> {
    if fs::symlink_metadata(path).is_ok() {
        return Err("it exists already: remove it".into());
    }
    let dir = match path.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    match fs::metadata(dir) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(format!("{} is no directory", dir.display())),
        Err(e) => Err(format!("{}: {e}", dir.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [bool; 0] = [];

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn triggers_are_read() {
        let usr1 = Ok(Trigger::Signal(libc::SIGUSR1));
        assert_eq!(parse_trigger("signal:USR1"), usr1);
        assert_eq!(parse_trigger("signal:SIGUSR1"), usr1);
        assert_eq!(
            parse_trigger("file:/tmp/go"),
            Ok(Trigger::File("/tmp/go".into()))
        );
        for wrong in ["signal:KILL", "signal:", "file:", "USR1", ""] {
            assert!(parse_trigger(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_are_read() {
        let text = "# begin,end\n\n0,10ms\n 10ms , 1s\n2min,3min\n";
        let steps = parse_steps(text).expect("a list");
        let at: Vec<_> = steps.iter().map(|s| (s.at, s.begin)).collect();
        assert_eq!(
            at,
            [
                (ms(0), true),
                (ms(10), false),
                (ms(10), true),
                (ms(1000), false),
                (ms(120_000), true),
                (ms(180_000), false)
            ]
        );
        for (wrong, line) in [
            ("", "no window"),
            ("1s", "line 1"),
            ("# \n2s,1s", "line 2"),
            ("1s,1s", "line 1"),
            ("1s,3s\n2s,4s", "line 2"),
            ("1s,2", "line 1"),
            ("1s,2s,3s", "line 1"),
        ] {
            let e = parse_steps(wrong).expect_err(wrong);
            assert!(e.contains(line), "{wrong:?}: {e}");
        }
    }

    #[test]
    fn steps_come_in_time() {
        let steps = parse_steps("10ms,30ms\n30ms,90ms").expect("a list");
        let mut triggers = Triggers::new(steps, Vec::new()).expect("no files");
        let start = Instant::now();
        assert_eq!((triggers.next_at(), triggers.due(start)), (None, vec![]));
        triggers.begin(start);
        assert_eq!(triggers.next_at(), Some(start + ms(10)));
        assert_eq!(triggers.due(start + ms(9)), NONE);
        assert_eq!(triggers.due(start + ms(10)), [true]);
        assert_eq!(triggers.due(start + ms(10)), NONE);
        assert_eq!(triggers.due(start + ms(40)), [false, true]);
        assert_eq!(triggers.due(start + ms(95)), [false]);
        assert_eq!(triggers.next_at(), None);
    }

    #[test]
    fn files_appear() {
        let dir = tempfile::tempdir().expect("a directory");
        let [go, stop] = ["go", "stop"].map(|name| dir.path().join(name));
        let of = |path: &PathBuf, begin| (Trigger::File(path.clone()), begin);
        let list = vec![
            of(&go, true),
            of(&stop, false),
            (Trigger::Signal(libc::SIGUSR1), true),
        ];
        assert_eq!(Triggers::signals(&list), [libc::SIGUSR1]);
        let mut triggers = Triggers::new(VecDeque::new(), list.clone()).expect("a directory");
        let start = Instant::now();
        assert_eq!(triggers.next_at(), None);
        triggers.begin(start);
        assert_eq!(triggers.due(start), NONE);
        fs::write(&go, "").expect("written");
        assert_eq!(triggers.due(start + ms(1)), NONE, "not yet");
        assert_eq!(triggers.due(start + ms(50)), [true]);
        assert_eq!(triggers.due(start + ms(100)), NONE, "it is there already");
        fs::create_dir(&stop).expect("made");
        fs::remove_file(&go).expect("removed");
        assert_eq!(triggers.due(start + ms(150)), [false]);
        fs::write(&go, "").expect("written");
        assert_eq!(triggers.due(start + ms(200)), [true]);
        assert_eq!(triggers.signal(libc::SIGUSR1), Some(true));
        assert_eq!(triggers.signal(libc::SIGUSR2), None);
        let e = Triggers::new(VecDeque::new(), list).expect_err("they exist");
        assert!(e.message.contains("exists already"), "{e}");
        for trigger in ["signal:USR2", "file:/tmp/none of this name"] {
            let trigger = parse_trigger(trigger).expect("a trigger");
            let both = vec![(trigger.clone(), true), (trigger.clone(), false)];
            let e = Triggers::new(VecDeque::new(), both).expect_err("it cannot do both");
            assert!(e.message.contains("both"), "{e}");
            let twice = vec![(trigger.clone(), true), (trigger, true)];
            Triggers::new(VecDeque::new(), twice).expect("that is no contradiction");
        }
        let nowhere = vec![of(&dir.path().join("no/where"), true)];
        let e = Triggers::new(VecDeque::new(), nowhere).expect_err("no directory");
        assert!(e.message.contains("can't wait for"), "{e}");
    }
}
