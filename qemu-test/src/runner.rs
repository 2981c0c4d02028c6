//! Runs scenarios, several at a time, and prints what each has to say in one piece.

use crate::scenarios::Scenario;
use anyhow::{Result, bail};
use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::Instant;

thread_local! {
    /// What the scenario that this thread runs, if any, has said so far.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
    /// The folders of the guests that this thread has booted for its scenario.
    static FOLDERS: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
    /// This thread's share of the host, while its scenario may run beside others.
    static SHARE: RefCell<Option<RwLockReadGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// The host. Scenarios share it, except one that asks to be [`alone`].
static HOST: RwLock<()> = RwLock::new(());

/// Waits until no other scenario runs. None begins before the result is dropped.
///
/// For guests with more CPUs than the host has. Each flush of their TLBs waits until the host has
/// run every CPU of the guest, so another guest beside makes them ten times slower. And for guests
/// that are to repeat: how soon the host runs each of QEMU's threads must not differ.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    SHARE.take();
    HOST.write().unwrap_or_else(|e| e.into_inner())
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
    SHARE.set(Some(HOST.read().unwrap_or_else(|e| e.into_inner())));
    let start = Instant::now();
    SAID.set(Some(String::new()));
    FOLDERS.take();
    let result = (s.run)(kernel);
    SHARE.take();
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
    use anyhow::ensure;
    use std::sync::{Barrier, MutexGuard};

    /// Tests whose scenarios wait for others: a scenario that waits to be alone holds up those
    /// of all runs.
    fn in_turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(|e| e.into_inner())
    }

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
        let _turn = in_turn();
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
    fn nothing_runs_beside_a_scenario_that_is_alone() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        fn count() {
            let running = RUNNING.fetch_add(1, Ordering::SeqCst) + 1;
            MOST.fetch_max(running, Ordering::SeqCst);
            thread::sleep(std::time::Duration::from_millis(20));
            RUNNING.fetch_sub(1, Ordering::SeqCst);
        }
        let _turn = in_turn();
        let list: Vec<_> = (0..8)
            .map(|i| {
                scenario(&i.to_string(), move || {
                    let alone = (i % 2 == 0).then(alone);
                    if alone.is_some() {
                        MOST.store(0, Ordering::SeqCst);
                    }
                    count();
                    let most = MOST.load(Ordering::SeqCst);
                    ensure!(alone.is_none() || most == 1, "{most} ran at a time");
                    Ok(())
                })
            })
            .collect();
        run_all(&list, "base", NonZero::new(4).unwrap(), Keep::All).unwrap();
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
