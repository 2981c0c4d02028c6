//! The end by a signal.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::time::Duration;

use crate::unfinished;
use nix::libc;
use nix::sys::signal::{SigSet, Signal};

/// Set by the first signal.
static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// The number of that signal; 0 before it.
static SIGNAL: AtomicU8 = AtomicU8::new(0);

/// How long a command may take to end by itself after a signal.
const GRACE: Duration = Duration::from_millis(200);
/// How long standard error may take to accept a line.
const PATIENCE: Duration = Duration::from_millis(100);

/// The flag that the first signal sets; the whole process has one. Code that looks at the flag
/// ends in order. Code that does not look in time is ended nevertheless.
pub fn stop_flag() -> Arc<AtomicBool> {
    STOP.clone()
}

/// The exit code of an end by the signal that has come, if one has: 128 and its number.
pub fn exit_code() -> Option<u8> {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => None,
        number => Some(128 + number),
    }
}

/// The message before the end by a signal.
pub fn message() -> String {
    let number = i32::from(SIGNAL.load(Ordering::Relaxed));
    let name = Signal::try_from(number).map_or("a signal", Signal::as_str);
    format!(
        "{}: ended by {name}; no unfinished output is left",
        super::own_name()
    )
}

/// Makes SIGINT, SIGTERM and SIGHUP end the process within a second and leave nothing
/// unfinished behind. Must be called before other threads exist.
///
/// A separate thread waits for the signals. So no system call of another thread delays
/// them, not even one that waits for a pipe.
pub fn watch() {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    // nohup makes the process ignore it.
    if !is_ignored(Signal::SIGHUP) {
        signals.add(Signal::SIGHUP);
    }
    if signals.thread_block().is_err() {
        return;
    }
    let waiter = std::thread::Builder::new().name("signals".into());
    let waiting = waiter.spawn(move || {
        if let Ok(signal) = signals.wait() {
            end(signal);
        }
    });
    if waiting.is_err() {
        // Without the thread, signals end the process at once, which leaves temporary files.
        let _ = signals.thread_unblock();
    }
}

fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal as i32 - 1) & 1 != 0)
}

fn end(signal: Signal) {
    SIGNAL.store(signal as u8, Ordering::Relaxed);
    STOP.store(true, Ordering::Relaxed);
    std::thread::sleep(GRACE);
    unfinished::remove_all();
    // Standard error may be a pipe that is full, or another thread may wait for it.
    let (printed, is_printed) = mpsc::channel();
    let printing = std::thread::Builder::new().spawn(move || {
        eprintln!("{}", message());
        let _ = printed.send(());
    });
    if printing.is_ok() {
        let _ = is_printed.recv_timeout(PATIENCE);
    }
    let code = exit_code().unwrap_or(super::FAILED);
    // SAFETY: the call needs nothing and does not return. Handlers that exit() would run
    // could wait for a thread that waits for a pipe.
    unsafe { libc::_exit(code.into()) }
}
