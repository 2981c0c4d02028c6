//! Runs scenarios, several at a time, and prints what each has to say in one piece.

use crate::scenarios::Scenario;
use crate::scenarios::plan::{Turn, turn};
use anyhow::{Result, bail};
use std::cell::{Cell, RefCell};
use std::fs;
use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

thread_local! {
    /// What the scenario that this thread runs, if any, has said so far.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
    /// The folders of the guests that this thread has booted for its scenario.
    static FOLDERS: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
    /// This thread's share of the host, while its scenario may run beside others.
    static SHARE: RefCell<Option<RwLockReadGuard<'static, ()>>> = const { RefCell::new(None) };
    /// Whether this thread's scenario waits most of the time, beside others.
    static WAITS: Cell<bool> = const { Cell::new(false) };
    /// How long its scenario has waited for CPUs.
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
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

/// CPUs of the host, one for each job: all, and those that no guest has.
struct Cpus {
    all: usize,
    free: usize,
}

/// Before scenarios are run, guests wait for no CPUs.
static CPUS: Mutex<Cpus> = Mutex::new(Cpus { all: 0, free: 0 });
static FREED: Condvar = Condvar::new();
/// Whoever waits for CPUs has this, so that guests get them in turn.
static NEXT: Mutex<()> = Mutex::new(());

/// CPUs of the host that a guest has, until this is dropped.
pub struct CpuShare(usize);

/// Waits until as many CPUs of the host are free as a guest has, or all of them if these are fewer.
///
/// A CPU of a guest that waits for another one spins, for ever if the host does not run that one. With two
/// CPUs in threads of the host, two guests at a time took longer than one after the other: seven scenarios
/// 105 s, and 80 s. A scenario that waits most of the time does not wait for CPUs, too.
pub fn cpus(wanted: usize) -> CpuShare {
    let begin = Instant::now();
    let _turn = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut cpus = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = if WAITS.get() { 0 } else { wanted.min(cpus.all) };
    while cpus.free < wanted {
        cpus = FREED.wait(cpus).unwrap_or_else(PoisonError::into_inner);
    }
    cpus.free -= wanted;
    WAITED.set(WAITED.get() + begin.elapsed());
    CpuShare(wanted)
}

impl Drop for CpuShare {
    fn drop(&mut self) {
        CPUS.lock().unwrap_or_else(PoisonError::into_inner).free += self.0;
        FREED.notify_all();
    }
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

/// Scenarios that are yet to run.
struct Queue<'a> {
    list: Vec<&'a Scenario>,
    next: AtomicUsize,
}

impl<'a> Queue<'a> {
    fn new(list: impl Iterator<Item = &'a Scenario>) -> Self {
        Queue {
            list: list.collect(),
            next: AtomicUsize::new(0),
        }
    }

    fn take(&self) -> Option<&'a Scenario> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.list.get(next).copied()
    }
}

/// Runs all, `jobs` at a time, begun in the order of the list. If that is more than one, scenarios that
/// wait most of the time are taken out of this order: one at a time runs beside the others, and what is
/// left of them runs at the end.
///
/// # Errors
///
/// If one fails, or there is none.
pub fn run_all(list: &[Scenario], kernel: &str, jobs: NonZero<usize>, keep: Keep) -> Result<()> {
    let of = |turns: &'static [Turn]| {
        let list = list.iter();
        Queue::new(list.filter(|s| turns.contains(&turn(&s.name))))
    };
    let failed = Mutex::new(Vec::new());
    let work = |queues: &[&Queue]| {
        while let Some(s) = queues.iter().find_map(|queue| queue.take()) {
            if !run(s, kernel, keep) {
                let mut failed = failed.lock().unwrap_or_else(|e| e.into_inner());
                failed.push(s.name.clone());
            }
        }
    };
    match jobs.get() {
        1 => work(&[&Queue::new(list.iter())]),
        jobs => {
            *CPUS.lock().unwrap_or_else(PoisonError::into_inner) = Cpus {
                all: jobs,
                free: jobs,
            };
            work(&[&of(&[Turn::Alone])]);
            let others = of(&[Turn::Longest, Turn::OneCpu, Turn::Usual]);
            let waiting = of(&[Turn::Waiting]);
            thread::scope(|scope| {
                for _ in 0..jobs {
                    scope.spawn(|| work(&[&others, &waiting]));
                }
                work(&[&waiting]);
            });
        }
    }
    let failed = failed.into_inner().unwrap_or_else(|e| e.into_inner());
    if !failed.is_empty() {
        println!("failed: {}", failed.join(" "));
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
    WAITS.set(turn(&s.name) == Turn::Waiting);
    WAITED.set(Duration::ZERO);
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
    let seconds = (start.elapsed() - WAITED.get()).as_secs_f64();
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
    fn one_that_waits_runs_beside_the_others_and_what_is_alone_before_them() {
        static ALL: Barrier = Barrier::new(3);
        static ENDED: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let _turn = in_turn();
        let list = ["stress-20k", "kunit", "frozen-all", "server-nbd"].map(|name| {
            scenario(name, move || {
                if turn(name) != Turn::Alone {
                    ALL.wait();
                }
                ENDED.lock().unwrap().push(name.into());
                Ok(())
            })
        });
        run_all(&list, "base", NonZero::new(2).unwrap(), Keep::All).unwrap();
        let ended = ENDED.lock().unwrap();
        assert_eq!((ended.len(), ended[0].as_str()), (4, "server-nbd"));
    }

    #[test]
    fn guests_have_no_more_cpus_than_the_host() {
        static USED: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let _turn = in_turn();
        let list: Vec<_> = (0..8)
            .map(|i| {
                scenario(&i.to_string(), move || {
                    // More than there are: all of them.
                    let wanted = [1, 2, 7][i % 3];
                    let _cpus = cpus(wanted);
                    let used = USED.fetch_add(wanted.min(3), Ordering::SeqCst) + wanted.min(3);
                    MOST.fetch_max(used, Ordering::SeqCst);
                    thread::sleep(std::time::Duration::from_millis(5));
                    USED.fetch_sub(wanted.min(3), Ordering::SeqCst);
                    Ok(())
                })
            })
            .collect();
        run_all(&list, "base", NonZero::new(3).unwrap(), Keep::All).unwrap();
        assert_eq!(MOST.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn with_one_job_one_at_a_time_runs_in_the_order_of_the_list() {
        static RUN: Mutex<Vec<&str>> = Mutex::new(Vec::new());
        let _turn = in_turn();
        let names = ["frozen-all", "kunit", "server-nbd", "frozen-pid"];
        let list = names.map(|name| {
            scenario(name, move || {
                // Another one at the same time would find it locked.
                RUN.try_lock().unwrap().push(name);
                Ok(())
            })
        });
        run_all(&list, "base", NonZero::<usize>::MIN, Keep::All).unwrap();
        assert_eq!(*RUN.lock().unwrap(), names);
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
