//! `different-turns ROUNDS [0|1|2]`: three processes that do different things and take turns, in a
//! ring of pipes. With a second number, that process runs alone.
//!
//! - Process 0 walks at random. Half of its reads and writes are of a few pages, and the other half
//!   are of a region that moves now and then.
//! - Process 1 reads cycles of pages. Their lengths change from turn to turn.
//! - Process 2 reads the same 40 pages once in each turn.
//!
//! What a process does depends on the number of its turn alone, and not on the other processes. The
//! program prints a sum of what process 0 wrote.
use kvmtrace_guest::{arg, check, fork_child, map_at, read, sum, wait_child, write};
use std::fs::File;
use std::io::{Error, Read, Result, Write};
use std::os::fd::{FromRawFd, OwnedFd};

const PROCESSES: usize = 3;
/// Pages of each.
const PAGES: [usize; PROCESSES] = [500, 450, 40];

/// A pipe: where to read, and where to write.
fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: There is room for two.
    check(unsafe { libc::pipe(fds.as_mut_ptr()) })?;
    // SAFETY: Both are new, and nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Numbers that follow from each other.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

/// One turn of process 0.
fn walk(base: *mut u8, dice: &mut Dice, turn: usize) {
    let region = 30 + turn / 8 * 53 % (PAGES[0] - 130);
    for step in 0..300 + turn * 37 % 500 {
        let page = match dice.below(2) {
            0 => dice.below(30),
            _ => region + dice.below(100),
        };
        match step % 3 {
            0 => write(base, page, (turn + step) as u8),
            _ => {
                read(base, page);
            }
        }
    }
}

/// One turn of process 1.
fn cycle(base: *mut u8, turn: usize) {
    let length = [70, 450, 100, 200, 320][turn % 5];
    for _ in 0..2 {
        for page in 0..length {
            read(base, page);
        }
    }
}

/// All turns of a process; `next` waits for a turn, and gives it on.
fn turns(me: usize, rounds: usize, mut next: impl FnMut(usize) -> Result<()>) -> Result<u64> {
    let base = map_at(0x1000_0000_0000, PAGES[me])?;
    // SAFETY: The mapping just made. Without huge pages, each page is referenced by itself.
    check(unsafe { libc::madvise(base.cast(), PAGES[me] << 12, libc::MADV_NOHUGEPAGE) })?;
    let mut dice = Dice(1);
    for round in 0..rounds {
        next(round)?;
        match me {
            0 => walk(base, &mut dice, round),
            1 => cycle(base, round),
            _ => {
                sum(base, PAGES[me]);
            }
        }
    }
    next(rounds)?;
    Ok(sum(base, PAGES[me]))
}

/// The same in the ring of pipes.
fn in_ring(me: usize, rounds: usize, from: OwnedFd, to: OwnedFd) -> Result<u64> {
    let (mut from, mut to) = (File::from(from), File::from(to));
    let mut baton = [0; 1];
    turns(me, rounds, move |round| {
        if round > 0 {
            to.write_all(&baton)?;
        }
        if round < rounds {
            from.read_exact(&mut baton)?;
        }
        Ok(())
    })
}

fn main() -> Result<()> {
    let rounds = arg(1, 10);
    let alone = arg(2, PROCESSES);
    if alone < PROCESSES {
        println!("{}", turns(alone, rounds, |_| Ok(()))?);
        return Ok(());
    }
    let mut pipes = Vec::new();
    for _ in 0..PROCESSES {
        pipes.push(pipe()?);
    }
    // The first one begins.
    File::from(pipes[0].1.try_clone()?).write_all(b"x")?;
    let (mut readers, mut writers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
    writers.rotate_left(1);
    let mut children = Vec::new();
    for me in 1..PROCESSES {
        let (from, to) = (readers[me].try_clone()?, writers[me].try_clone()?);
        children.push(fork_child(|| {
            i32::from(in_ring(me, rounds, from, to).is_err())
        })?);
    }
    let (from, to) = (readers.remove(0), writers.remove(0));
    let total = in_ring(0, rounds, from, to)?;
    for child in children {
        if wait_child(child)? != 0 {
            return Err(Error::other("a process failed"));
        }
    }
    println!("{total}");
    Ok(())
}
