//! `small-ids ROUNDS`: processes with smaller ids than those of the processes that make them, as
//! after the ids have begun again from the start. Whoever visits processes by id may have been
//! at such an id before the process was made, and comes to its maker later.
//!
//! Ids in order: those that the kernel gives to what is made; some that only sleep, and take time
//! to visit; the maker; and its helpers. A process is made by fork, by vfork and exec, by a helper
//! that shares its memory with it and ends at once, or by such a helper that stays until the
//! process has ended. Each touches its pages in turns, and at its end tells "lived ID HOW ASKED
//! FIRST…": when its maker asked for it, when its first turn began, and when each turn ended.
//! `small-ids live ASKED` is what exec executes, with a large environment, so that its maker can be
//! visited between the time at which exec makes an address space and the time at which exec enters it.
use kvmtrace_guest::{
    arg, check, fork_child, fork_child_as, map_at, now_ns, wait_child, wait_for, write,
};
use std::io::{Error, Result, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const PAGES: usize = 100;
/// How long a process lives, ms: longer than a visit takes.
const LIFE: u64 = 1000;
/// What is between two of them at least, ms, and by how much that grows from one to the next, until it
/// begins again. Otherwise the rounds can keep step with the windows, so that one way of making a
/// process never comes while a window begins.
const APART: u64 = 100;
const MORE: u64 = 17;
const MOST: u64 = 90;
/// What exec copies: a string of this many bytes, so many times. The kernel takes a quarter of what a
/// stack may have.
const WORD: usize = 120_000;
const WORDS: usize = 16;
static LONG: [u8; WORD] = {
    let mut word = [b'x'; WORD];
    word[WORD - 1] = 0;
    word
};
/// How long a helper waits, ms: long, so that many windows begin meanwhile.
const HELP: u64 = 300;
const SLEEPERS: i32 = 8;
/// The first ids of those that sleep, and of the maker and its helpers.
const MIDDLE: i32 = 1000;
const LARGE: i32 = 2000;
/// When this process was asked for.
static ASKED: AtomicU64 = AtomicU64::new(0);
const TOLD: &str = "/tmp/small-ids.told";

fn sleep(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

fn live(base: *mut u8, how: &str) -> Result<()> {
    let from = now_ns();
    // SAFETY: No conditions.
    let pid = unsafe { libc::getpid() };
    let mut told = format!("lived {pid} {how} {} {from}", ASKED.load(Relaxed));
    let mut now = from;
    while now < from + LIFE * 1_000_000 {
        for i in 0..PAGES {
            write(base, i, 1);
        }
        now = now_ns();
        told += &format!(" {now}");
        sleep(5);
    }
    told.push('\n');
    let mut file = std::fs::File::options().append(true).open(TOLD)?;
    file.write_all(told.as_bytes())
}

/// In the maker's memory, while that waits.
extern "C" fn executes(asked: *mut libc::c_void) -> i32 {
    let argv = [
        c"small-ids".as_ptr(),
        c"live".as_ptr(),
        asked.cast_const().cast(),
        std::ptr::null(),
    ];
    let mut envp = [LONG.as_ptr().cast(); WORDS + 1];
    envp[WORDS] = std::ptr::null();
    // SAFETY: Strings with their ends.
    unsafe { libc::execve(c"/bin/small-ids".as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    1
}

/// In the helper's memory, which nobody else uses any more.
extern "C" fn shares(base: *mut libc::c_void) -> i32 {
    i32::from(live(base.cast(), "share").is_err())
}

/// The same, while the helper only waits.
extern "C" fn shares_with_helper(base: *mut libc::c_void) -> i32 {
    i32::from(live(base.cast(), "stay").is_err())
}

/// A process that begins with `what`, in this one's memory.
fn beside(
    what: extern "C" fn(*mut libc::c_void) -> i32,
    flags: i32,
    arg: *mut libc::c_void,
) -> Result<i32> {
    let stack = map_at(0x1100_0000_0000, 16)?;
    // SAFETY: The stack is the child's until it has its own, or to its end.
    check(unsafe {
        libc::clone(
            what,
            stack.add(16 * 4096).cast(),
            libc::CLONE_VM | libc::SIGCHLD | flags,
            arg,
        )
    })
}

fn help(base: *mut u8, stay: bool) -> Result<()> {
    sleep(HELP);
    ASKED.store(now_ns(), Relaxed);
    if !stay {
        return beside(shares, 0, base.cast()).map(drop);
    }
    let child = beside(shares_with_helper, 0, base.cast())?;
    wait_child(child).map(drop)
}

/// Whether a child has ended.
fn gone(how: i32) -> bool {
    // SAFETY: Nothing is written.
    unsafe { libc::waitpid(-1, std::ptr::null_mut(), how) > 0 }
}

fn make(base: *mut u8, rounds: i32) -> Result<()> {
    for round in 0..rounds {
        ASKED.store(now_ns(), Relaxed);
        match round % 4 {
            0 => fork_child(|| i32::from(live(base, "fork").is_err()))?,
            1 => {
                let asked = std::ffi::CString::new(now_ns().to_string())?;
                beside(
                    executes,
                    libc::CLONE_VFORK,
                    asked.as_ptr().cast_mut().cast(),
                )?
            }
            kind => fork_child_as(LARGE + 1 + round, || {
                i32::from(help(base, kind == 3).is_err())
            })?,
        };
        sleep(APART + round as u64 * MORE % MOST);
        while gone(libc::WNOHANG) {}
    }
    while gone(0) {}
    Ok(())
}

fn main() -> Result<()> {
    let base = map_at(0x1000_0000_0000, PAGES)?;
    if std::env::args().nth(1).as_deref() == Some("live") {
        ASKED.store(arg(2, 0) as u64, Relaxed);
        return live(base, "exec");
    }
    let rounds = arg(1, 160);
    for i in 0..PAGES {
        write(base, i, 1);
    }
    std::fs::write(TOLD, "")?;
    let sleepers = (0..SLEEPERS)
        .map(|n| {
            fork_child_as(MIDDLE + n, || {
                // SAFETY: It ends with its parent.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                loop {
                    sleep(1000);
                }
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let maker = fork_child_as(LARGE, || i32::from(make(base, rounds as i32).is_err()))?;
    if wait_child(maker)? != 0 {
        return Err(Error::other("the maker failed"));
    }
    let told = || std::fs::read_to_string(TOLD).unwrap_or_default();
    wait_for(60, "those that were made", || {
        told().lines().count() == rounds
    })?;
    for pid in sleepers {
        // SAFETY: A child of ours.
        check(unsafe { libc::kill(pid, libc::SIGKILL) })?;
        wait_child(pid)?;
    }
    print!("{}", told());
    Ok(())
}
