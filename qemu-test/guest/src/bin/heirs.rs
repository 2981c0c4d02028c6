//! heirs: processes that come and go around windows of a trace, whose plan is the one of
//! the scenario `windows-tree`: 100 ms each, from 100, 300 and 500 ms on.
//!
//! The first process makes one that makes an heir and ends before the first window, so
//! that no living process is the heir's parent by then. The heir makes another one between
//! windows and one within a window, and in each window one with an id that it had before.
//! All tell at their ends when they lived, when the kernel says that they were made, and
//! what they have mapped.
use kvmtrace_guest::{check, fork_child, fork_child_as, map_at, now_ns, sum, wait_child, write};
use std::io::{Error, Read, Result, Write};
use std::os::fd::{AsRawFd, FromRawFd};

/// The id that is used again.
const AGAIN: libc::pid_t = 3000;
/// When the heirs end, ms.
const END: u64 = 650;

/// A process, its pages, and where it tells of itself.
struct Life {
    /// The moment that all times are from.
    zero: u64,
    base: *mut u8,
    /// Room for /proc/self/maps, so that reading it maps nothing.
    text: String,
    out: std::fs::File,
}

impl Life {
    /// References its pages until `ms`, with pauses for others.
    fn until(&self, ms: u64) {
        while now_ns() < self.zero + ms * 1_000_000 {
            for i in 0..40 {
                write(self.base, i, 1);
            }
            std::thread::sleep(std::time::Duration::from_micros(500));
        }
    }

    /// Tells of itself: "moment 0 PID NAME", its maps, and "life PID TICKS FROM TO", the
    /// last three in the units of /proc/PID/stat and CLOCK_MONOTONIC.
    fn tell(&mut self, from: u64) -> Result<()> {
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        let start = stat.rsplit(')').next().and_then(|s| s.split(' ').nth(20));
        let start = start.ok_or_else(|| Error::other("no start in /proc/self/stat"))?;
        self.text.clear();
        std::fs::File::open("/proc/self/maps")?.read_to_string(&mut self.text)?;
        let pid = std::process::id();
        let told = format!("moment 0 {pid} heirs\n{}", self.text);
        let life = format!("life {pid} {start} {from} {}\n", now_ns());
        self.out.write_all((told + &life).as_bytes())
    }
}

/// Makes a process that lives from `from` to `to` ms and does `work` meanwhile; with the
/// id `pid`, or with any if that is 0.
fn spawn(
    life: &mut Life,
    pid: libc::pid_t,
    to: u64,
    work: impl FnOnce(&mut Life) -> Result<()>,
) -> Result<i32> {
    let child = |life: &mut Life| -> Result<()> {
        let from = now_ns();
        work(life)?;
        life.until(to);
        life.tell(from)
    };
    if pid == 0 {
        return fork_child(|| i32::from(child(life).is_err()));
    }
    fork_child_as(pid, || i32::from(child(life).is_err()))
}

/// What the heir does: its own, and one with the same id in each window.
fn heir(life: &mut Life) -> Result<()> {
    let mut mine = Vec::new();
    for window in 0..3 {
        let begin = 100 + window * 200;
        life.until(begin + 10);
        mine.push(spawn(life, AGAIN, begin + 60, |_| Ok(()))?);
        life.until(begin + 70);
        wait_child(AGAIN)?;
        mine.pop();
        match window {
            // Between two windows, and within one.
            0 => life.until(begin + 150),
            1 => life.until(begin + 80),
            _ => break,
        }
        mine.push(spawn(life, 0, END, |_| Ok(()))?);
    }
    life.until(END);
    for pid in mine {
        wait_child(pid)?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut fds = [-1; 2];
    // SAFETY: `fds` has room for two descriptors.
    check(unsafe { libc::pipe(fds.as_mut_ptr()) })?;
    // SAFETY: The call has made both, and nothing else owns them.
    let (mut told, out) = unsafe {
        (
            std::fs::File::from_raw_fd(fds[0]),
            std::fs::File::from_raw_fd(fds[1]),
        )
    };
    let mut life = Life {
        zero: now_ns(),
        base: map_at(0x1000_0000_0000, 40)?,
        text: String::with_capacity(1 << 16),
        out,
    };
    let from = life.zero;
    let first = fork_child(|| {
        // An heir that nobody waits for.
        let made = spawn(&mut life, 0, END, heir);
        life.until(50);
        i32::from(made.is_err())
    })?;
    check(wait_child(first)?)?;
    life.until(END + 10);
    life.tell(from)?;
    println!("zero {} {}", life.zero, sum(life.base, 40));
    // The pipe ends when the last of them has.
    let end = life.out.as_raw_fd();
    // SAFETY: Nobody uses it any more.
    unsafe { libc::close(end) };
    std::mem::forget(life.out);
    let mut text = String::new();
    told.read_to_string(&mut text)?;
    print!("{text}");
    Ok(())
}
