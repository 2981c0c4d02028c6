//! `pauses PAGES TURNS [UID]`: touches so many pages in turns, and writes to /dev/vmtrace which of
//! the turns are to be traced: each second one. With UID, it becomes that user first. For each turn it
//! prints "turn traced|paused BEGIN END", in ns.
//!
//! `pauses many TASKS STEPS`: so many processes write `resume` and `pause` so often, without order, and
//! touch pages in between.
use kvmtrace_guest::{arg, check, fork_child, map_at, now_ns, wait_child, write};
use std::fs::File;
use std::io::{Error, Result, Write};

fn device() -> Result<File> {
    File::options().write(true).open("/dev/vmtrace")
}

fn turns(pages: usize, turns: usize) -> Result<()> {
    let base = map_at(0x1000_0000_0000, pages)?;
    let mut device = device()?;
    for turn in 0..turns {
        let traced = turn % 2 == 1;
        // With and without the end of a line, as `echo` and programs write it.
        device.write_all(if traced { b"resume\n" } else { b"pause" })?;
        let begin = now_ns();
        for i in 0..pages {
            write(base, i, 1);
        }
        let end = now_ns();
        println!(
            "turn {} {begin} {end}",
            if traced { "traced" } else { "paused" }
        );
    }
    for wrong in [
        &b"resumes"[..],
        b"",
        b"pause\nresume",
        b"resume and a longer text",
    ] {
        if !wrong.is_empty() && device.write(wrong).is_ok() {
            return Err(Error::other(format!("{wrong:?} was taken")));
        }
    }
    Ok(())
}

fn many(tasks: usize, steps: usize) -> Result<()> {
    let work = |task: usize| -> Result<()> {
        let base = map_at(0x1000_0000_0000, 100)?;
        let mut device = device()?;
        let mut dice = 1 + task as u32;
        for _ in 0..steps {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let resume = dice >> 31 == 0;
            device.write_all(if resume { b"resume" } else { b"pause" })?;
            for i in 0..(dice >> 20) as usize % 100 {
                write(base, i, 1);
            }
        }
        Ok(())
    };
    let children = (0..tasks)
        .map(|task| fork_child(|| i32::from(work(task).is_err())))
        .collect::<Result<Vec<_>>>()?;
    for child in children {
        if wait_child(child)? != 0 {
            return Err(Error::other("a task failed"));
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("many") {
        return many(arg(2, 4), arg(3, 50));
    }
    let uid = arg(3, 0);
    if uid != 0 {
        // SAFETY: Numbers.
        check(unsafe { libc::setuid(uid as libc::uid_t) })?;
    }
    turns(arg(1, 300), arg(2, 6))
}
