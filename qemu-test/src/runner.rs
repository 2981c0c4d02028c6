//! Runs scenarios, several at a time, and prints what each has to say in one piece.

use crate::scenarios::Scenario;
use anyhow::{Result, bail};
use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

thread_local! {
    /// What the scenario that this thread runs, if any, has said so far.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
    /// The folders of the guests that this thread has booted for its scenario.
    static FOLDERS: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
}

/// Files of a guest's folder that stay, whatever becomes of the scenario: they are small.
const SMALL: [&str; 3] = ["console.log", "command", "results.json"];

/// Notes the folder of a guest that belongs to the scenario that this thread runs.
pub fn booted_in(folder: &Path) {
    FOLDERS.with_borrow_mut(|all| all.push(folder.into()));
}

/// Disks and traces of a scenario: some hundred MB each, 18 GB in all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Those of scenarios that fail, for a look at them.
    Failed,
    /// Those of all scenarios.
    All,
}

/// Removes what is large of the folders of a scenario that has passed.
fn trim(folders: &[PathBuf]) {
    for folder in folders {
        // A scenario may have removed the folder itself.
        let Ok(entries) = fs::read_dir(folder) else {
            continue;
        };
        for entry in entries.flatten() {
            if !SMALL.iter().any(|small| entry.file_name() == *small) {
                let path = entry.path();
                let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
            }
        }
    }
}

/// A line about the scenario that this thread runs, printed when it ends; at once
/// outside of any. [`say!`] formats it.
pub fn say_line(line: &str) {
    SAID.with_borrow_mut(|said| match said {
        Some(said) => {
            said.push_str(line);
            said.push('\n');
        }
        None => println!("{line}"),
    });
}

/// As `println!`, of the scenario that this thread runs.
macro_rules! say {
    ($($what:tt)*) => {
        $crate::runner::say_line(&format!($($what)*))
    };
}
pub(crate) use say;

/// One for each CPU of the host: most guests have one.
pub fn default_jobs() -> NonZero<usize> {
    thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN)
}

/// Runs all, `jobs` at a time, begun in the order of the list.
///
/// # Errors
///
/// If one fails, or there is none.
pub fn run_all(list: &[Scenario], kernel: &str, jobs: NonZero<usize>, keep: Keep) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..jobs.get().min(list.len()) {
            scope.spawn(|| {
                while let Some(s) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !run(s, kernel, keep) {
                        failed
                            .lock()
                            .unwrap_or_else(|e| e.into_inner())
                            .push(&s.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(|e| e.into_inner());
    if !failed.is_empty() {
        let names: Vec<_> = failed.iter().map(|n| n.as_str()).collect();
        println!("failed: {}", names.join(" "));
    }
    let passed = list.len() - failed.len();
    println!("{passed} passed, {} failed", failed.len());
    if passed == 0 || !failed.is_empty() {
        bail!("not all scenarios passed");
    }
    Ok(())
}

fn run(s: &Scenario, kernel: &str, keep: Keep) -> bool {
    let start = Instant::now();
    SAID.set(Some(String::new()));
    FOLDERS.take();
    let result = (s.run)(kernel);
    let folders = FOLDERS.take();
    if result.is_ok() && keep == Keep::Failed {
        trim(&folders);
    }
    let (verdict, about) = match &result {
        Ok(()) => ("ok    ", String::new()),
        Err(e) => ("FAILED", format!("  {}\n{e:#}", s.about)),
    };
    let mut text = SAID.take().unwrap_or_default();
    let seconds = start.elapsed().as_secs_f64();
    text += &format!("{verdict} {:<32} {seconds:>6.1} s{about}\n", s.name);
    let mut out = std::io::stdout().lock();
    // The reader of the output may have gone; the exit code remains.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    result.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn scenario(name: &str, run: impl Fn() -> Result<()> + Send + Sync + 'static) -> Scenario {
        Scenario {
            name: name.into(),
            about: "a test",
            run: Box::new(move |_| run()),
        }
    }

    #[test]
    fn as_many_run_at_once_as_wanted_and_each_once() {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        static BOTH: Barrier = Barrier::new(2);
        let list: Vec<_> = (0..6)
            .map(|i| {
                scenario(&i.to_string(), || {
                    // Ends only if another one is there.
                    BOTH.wait();
                    RUNS.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                })
            })
            .collect();
        run_all(&list, "base", NonZero::new(2).unwrap(), Keep::All).unwrap();
        assert_eq!(RUNS.load(Ordering::SeqCst), 6);
    }

    #[test]
    fn one_failure_fails_all_and_nothing_is_no_success() {
        let one = NonZero::<usize>::MIN;
        let good = || scenario("good", || Ok(()));
        let bad = || scenario("bad", || bail!("not well"));
        assert!(run_all(&[good()], "base", one, Keep::All).is_ok());
        assert!(run_all(&[good(), bad(), good()], "base", one, Keep::All).is_err());
        assert!(run_all(&[], "base", one, Keep::All).is_err());
    }

    #[test]
    fn only_what_failed_keeps_its_disks() {
        let dir = std::env::temp_dir().join(format!("runner-{}", std::process::id()));
        let scenario = |name: &str, good: bool| {
            let folder = dir.join(name);
            scenario(name, move || {
                fs::create_dir_all(folder.join("x"))?;
                for file in ["console.log", "trace.img", "x/y"] {
                    fs::write(folder.join(file), "")?;
                }
                booted_in(&folder);
                if good { Ok(()) } else { bail!("not well") }
            })
        };
        let one = NonZero::<usize>::MIN;
        let has = |file: &str| dir.join(file).exists();
        let both = [scenario("bad", false), scenario("good", true)];
        assert!(run_all(&both, "base", one, Keep::Failed).is_err());
        assert!(has("good/console.log") && !has("good/trace.img") && !has("good/x"));
        assert!(has("bad/console.log") && has("bad/trace.img") && has("bad/x/y"));
        run_all(&both[1..], "base", one, Keep::All).unwrap();
        assert!(has("good/trace.img"));
        fs::remove_dir_all(&dir).unwrap();
    }
}
