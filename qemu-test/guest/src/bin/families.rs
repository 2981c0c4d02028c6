//! `families TASKS ROUNDS`: so many processes make others, so often: threads that map, touch and
//! unmap pages, forks that write to what they share, and programs that are started by fork and by
//! vfork, by the first thread and by another one. Every value read is checked. Prints how many ended
//! as they should.
//!
//! `families leaf NUMBER`: a program that touches some pages, and exits with a code that follows from
//! NUMBER.
use kvmtrace_guest::{PAGE, arg, check, fork_child, map_at, map_with, read, wait_child, write};
use std::io::{Error, Result};
use std::os::unix::process::CommandExt;
use std::process::Command;

const PAGES: usize = 120;
const BASE: usize = 0x1000_0000_0000;

fn code_of(number: usize) -> i32 {
    (number % 100) as i32
}

/// Pages that come and go, with values that only their thread writes.
fn pages(seed: usize) -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    for turn in 0..3 {
        let base = map_with(0, PAGES, flags, -1)?;
        for i in 0..PAGES {
            write(base, i, (seed + turn + i) as u8);
        }
        let wrong = (0..PAGES).find(|i| read(base, *i) != (seed + turn + i) as u8);
        // SAFETY: The mapping is this function's.
        check(unsafe { libc::munmap(base.cast(), PAGES * PAGE) })?;
        if let Some(i) = wrong {
            return Err(Error::other(format!("page {i} has another value")));
        }
    }
    Ok(())
}

fn leaf(number: usize) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("families");
    command.args(["leaf", &number.to_string()]);
    command
}

/// One round; the number of programs that ended as they should.
fn round(base: *mut u8, seed: usize) -> Result<usize> {
    let threads: Vec<_> = (0..3)
        .map(|n| std::thread::spawn(move || pages(seed * 7 + n)))
        .collect();
    let mut good = 0;
    // By posix_spawn(), as Rust does it: the child has the parent's memory until it executes.
    let spawned = leaf(seed).spawn()?;
    // By fork, and then exec in the child: what they share is copied meanwhile.
    let child = fork_child(|| {
        for i in (0..PAGES).step_by(3) {
            write(base, i, 9);
        }
        let _ = leaf(seed + 1).exec();
        255
    })?;
    for i in 0..PAGES {
        write(base, i, seed as u8);
    }
    // A child that leaves a child behind.
    let parent = fork_child(|| match fork_child(|| code_of(seed)) {
        Ok(pid) if seed % 2 == 0 => wait_child(pid).map_or(254, |s| s >> 8),
        Ok(_) => code_of(seed),
        Err(_) => 253,
    })?;
    let mut spawned = spawned;
    good += usize::from(spawned.wait()?.code() == Some(code_of(seed)));
    good += usize::from(wait_child(child)? >> 8 == code_of(seed + 1));
    good += usize::from(wait_child(parent)? >> 8 == code_of(seed));
    for thread in threads {
        thread
            .join()
            .map_err(|_| Error::other("a thread failed"))??;
    }
    match (0..PAGES).find(|i| read(base, *i) != seed as u8) {
        Some(i) => Err(Error::other(format!("page {i} was written by a child"))),
        None => Ok(good),
    }
}

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("leaf") {
        let base = map_at(BASE, PAGES)?;
        (0..PAGES).for_each(|i| write(base, i, 1));
        std::process::exit(code_of(arg(2, 0)));
    }
    let (tasks, rounds) = (arg(1, 4), arg(2, 20));
    let work = |task: usize| -> Result<usize> {
        let base = map_at(BASE, PAGES)?;
        (0..rounds).map(|n| round(base, task * 31 + n)).sum()
    };
    let children = (0..tasks)
        .map(|task| {
            fork_child(|| match work(task) {
                Ok(good) => i32::from(good != 3 * rounds),
                Err(e) => {
                    eprintln!("task {task}: {e}");
                    2
                }
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let mut good = 0;
    for child in children {
        good += usize::from(wait_child(child)? == 0);
    }
    println!("{good} families of {tasks}");
    Ok(())
}
