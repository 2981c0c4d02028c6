//! `take-turns PROCESSES PAGES ROUNDS`: processes that take turns, in a ring of pipes. In its turn, a
//! process writes each of its pages once. The program prints the sum of what all of them wrote.
use kvmtrace_guest::{arg, check, fork_child, map_at, sum, wait_child, write};
use std::fs::File;
use std::io::{Read, Result, Write};
use std::os::fd::{FromRawFd, OwnedFd};

/// A pipe: where to read, and where to write.
fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: There is room for two.
    check(unsafe { libc::pipe(fds.as_mut_ptr()) })?;
    // SAFETY: Both are new, and nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// What one process does; the sum of its pages.
fn turns(me: usize, pages: usize, rounds: usize, from: OwnedFd, to: OwnedFd) -> Result<u64> {
    let (mut from, mut to) = (File::from(from), File::from(to));
    let base = map_at(0x1000_0000_0000, pages)?;
    let mut baton = [0; 1];
    for round in 0..rounds {
        from.read_exact(&mut baton)?;
        for page in 0..pages {
            write(base, page, (me + page + round) as u8);
        }
        to.write_all(&baton)?;
    }
    Ok(sum(base, pages))
}

fn main() -> Result<()> {
    let (processes, pages, rounds) = (arg(1, 2), arg(2, 100), arg(3, 10));
    let mut pipes = Vec::new();
    for _ in 0..processes {
        pipes.push(pipe()?);
    }
    // The first one begins.
    File::from(pipes[0].1.try_clone()?).write_all(b"x")?;
    let (mut readers, mut writers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
    writers.rotate_left(1);
    let mut children = Vec::new();
    for me in 1..processes {
        let (from, to) = (readers[me].try_clone()?, writers[me].try_clone()?);
        children.push(fork_child(|| {
            let sum = turns(me, pages, rounds, from, to);
            sum.map_or(255, |sum| (sum % 200) as i32)
        })?);
    }
    let (from, to) = (readers.remove(0), writers.remove(0));
    let mut total = turns(0, pages, rounds, from, to)?;
    for child in children {
        total += wait_child(child)? as u64 >> 8;
    }
    println!("{total}");
    Ok(())
}
