//! `random-walk SEED STEPS [THREADS]`: maps, unmaps, moves, protects, advises about,
//! forks over and touches memory at random, the same for a seed. Touches only what it
//! may; what it reads goes into the sum that it prints. Each thread has memory of its
//! own in the address space of all.
use kvmtrace_guest::{PAGE, arg, check, map_with, swap_on};
use std::io::Error;
use std::os::fd::AsRawFd;

const SLOTS: usize = 8;
const PAGES: usize = 48;

/// What may be done with a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum May {
    Nothing,
    Read,
    Write,
}

struct Walk {
    seed: u64,
    /// Number of the thread.
    lane: usize,
    sum: u64,
    slots: [[May; PAGES]; SLOTS],
    file: std::fs::File,
    pipe: [i32; 2],
}

impl Walk {
    fn new(seed: usize, lane: usize) -> std::io::Result<Self> {
        let path = format!("/tmp/random-walk-{lane}");
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        std::fs::remove_file(&path)?;
        file.set_len((PAGES * PAGE) as u64)?;
        let mut pipe = [0; 2];
        // SAFETY: Room for two descriptors.
        check(unsafe { libc::pipe(pipe.as_mut_ptr()) })?;
        Ok(Walk {
            seed: (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            lane,
            sum: 0,
            slots: [[May::Nothing; PAGES]; SLOTS],
            file,
            pipe,
        })
    }

    /// Where a slot lies: some aligned to page tables, some not.
    fn base(&self, slot: usize) -> usize {
        0x1000_0000_0000 + (self.lane << 36) + slot * (1 << 30) + (slot % 3) * 5 * PAGE
    }

    /// A number below `n`.
    fn pick(&mut self, n: usize) -> usize {
        // xorshift64
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) as usize % n
    }

    /// A slot and a range of its pages.
    fn range(&mut self) -> (usize, usize, usize) {
        let slot = self.pick(SLOTS);
        let first = self.pick(PAGES);
        let len = 1 + self.pick(PAGES - first);
        (slot, first, len)
    }

    fn mapped(&self, slot: usize, first: usize, len: usize) -> bool {
        self.slots[slot][first..first + len]
            .iter()
            .all(|m| *m != May::Nothing)
    }

    fn map(&mut self) -> std::io::Result<()> {
        let slot = self.pick(SLOTS);
        let (flags, fd) = match self.pick(4) {
            0 | 1 => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
            2 => (libc::MAP_SHARED, self.file.as_raw_fd()),
            _ => (libc::MAP_PRIVATE, self.file.as_raw_fd()),
        };
        map_with(self.base(slot), PAGES, flags | libc::MAP_FIXED, fd)?;
        self.slots[slot] = [May::Write; PAGES];
        Ok(())
    }

    fn unmap(&mut self) -> std::io::Result<()> {
        let (slot, first, len) = self.range();
        let at = (self.base(slot) + first * PAGE) as *mut libc::c_void;
        // SAFETY: Only this program's slots.
        check(unsafe { libc::munmap(at, len * PAGE) })?;
        self.slots[slot][first..first + len].fill(May::Nothing);
        Ok(())
    }

    fn relocate(&mut self) -> std::io::Result<()> {
        let (slot, first, len) = self.range();
        let (to, dontunmap) = (self.pick(SLOTS), self.pick(4) == 0);
        let rights = self.slots[slot];
        // One mapping's memory only, so that mremap() takes it.
        let one = rights[first..first + len]
            .iter()
            .all(|m| *m == rights[first]);
        if to == slot || !one || !self.mapped(slot, first, len) {
            return Ok(());
        }
        let flags = libc::MREMAP_MAYMOVE
            | libc::MREMAP_FIXED
            | if dontunmap { libc::MREMAP_DONTUNMAP } else { 0 };
        // SAFETY: Both ranges are slots of this program.
        let p = unsafe {
            libc::mremap(
                (self.base(slot) + first * PAGE) as *mut libc::c_void,
                len * PAGE,
                len * PAGE,
                flags,
                (self.base(to) + first * PAGE) as *mut libc::c_void,
            )
        };
        if p == libc::MAP_FAILED {
            // Several mappings, or a kind that can't stay: what lay at the new
            // place may be gone all the same.
            let at = (self.base(to) + first * PAGE) as *mut libc::c_void;
            // SAFETY: As above.
            check(unsafe { libc::munmap(at, len * PAGE) })?;
            self.slots[to][first..first + len].fill(May::Nothing);
            return Ok(());
        }
        self.slots[to][first..first + len].copy_from_slice(&rights[first..first + len]);
        if !dontunmap {
            self.slots[slot][first..first + len].fill(May::Nothing);
        }
        Ok(())
    }

    fn protect(&mut self) -> std::io::Result<()> {
        let (slot, first, len) = self.range();
        if !self.mapped(slot, first, len) {
            return Ok(());
        }
        let (may, prot) = match self.pick(4) {
            0 => (May::Read, libc::PROT_READ),
            1 => (May::Read, libc::PROT_READ | libc::PROT_EXEC),
            _ => (May::Write, libc::PROT_READ | libc::PROT_WRITE),
        };
        let at = (self.base(slot) + first * PAGE) as *mut libc::c_void;
        // SAFETY: Only this program's slots.
        unsafe {
            if self.pick(3) == 0 {
                check(libc::mprotect(at, len * PAGE, libc::PROT_NONE))?;
            }
            check(libc::mprotect(at, len * PAGE, prot))?;
        }
        self.slots[slot][first..first + len].fill(may);
        Ok(())
    }

    fn advise(&mut self) -> std::io::Result<()> {
        let (slot, first, len) = self.range();
        let advice = [
            libc::MADV_DONTNEED,
            libc::MADV_FREE,
            libc::MADV_COLD,
            libc::MADV_PAGEOUT,
            libc::MADV_WILLNEED,
            libc::MADV_POPULATE_READ,
            libc::MADV_POPULATE_WRITE,
            libc::MADV_HUGEPAGE,
            libc::MADV_NOHUGEPAGE,
            libc::MADV_MERGEABLE,
        ];
        let advice = advice[self.pick(advice.len())];
        let at = (self.base(slot) + first * PAGE) as *mut libc::c_void;
        // SAFETY: Only this program's slots; advice that does not fit is refused.
        unsafe { libc::madvise(at, len * PAGE, advice) };
        Ok(())
    }

    fn touch(&mut self) {
        for _ in 0..40 {
            let (slot, page) = (self.pick(SLOTS), self.pick(PAGES));
            let crosses = page + 1 < PAGES && self.pick(4) == 0;
            let may = self.slots[slot][page];
            let next = if crosses {
                self.slots[slot][page + 1]
            } else {
                may
            };
            let at =
                (self.base(slot) + page * PAGE + if crosses { PAGE - 3 } else { 64 }) as *mut u64;
            if may == May::Nothing || next == May::Nothing {
                continue;
            }
            let store = may == May::Write && next == May::Write && self.pick(2) == 0;
            let value = self.seed;
            // SAFETY: What is mapped and allowed, as was looked up.
            unsafe {
                if store {
                    at.write_unaligned(value);
                } else {
                    self.sum = self.sum.wrapping_mul(31).wrapping_add(at.read_unaligned());
                }
            }
        }
    }

    /// Memory to memory through a pipe.
    fn copy(&mut self) -> std::io::Result<()> {
        let (from, first, len) = self.range();
        let (to, len) = (self.pick(SLOTS), len.min(6));
        let writable = |m: &May| *m == May::Write;
        if !self.mapped(from, first, len)
            || !self.slots[to][first..first + len].iter().all(writable)
        {
            return Ok(());
        }
        let bytes = len * PAGE - 100;
        // SAFETY: Both ranges are mapped, and the second may be written.
        let done = unsafe {
            libc::write(
                self.pipe[1],
                (self.base(from) + first * PAGE + 50) as *const _,
                bytes,
            ) + libc::read(
                self.pipe[0],
                (self.base(to) + first * PAGE + 90) as *mut _,
                bytes,
            )
        };
        if done == 2 * bytes as isize {
            Ok(())
        } else {
            Err(Error::last_os_error())
        }
    }

    fn fork(&mut self, depth: usize) -> std::io::Result<()> {
        // SAFETY: The child only does what a child of one with threads may.
        let pid = check(unsafe { libc::fork() })?;
        if pid == 0 {
            let steps = 2 + self.pick(10);
            let code = match self.steps(steps, depth + 1) {
                Ok(()) => (self.sum % 100) as i32,
                Err(_) => 101,
            };
            // SAFETY: The end of the child.
            unsafe { libc::_exit(code) };
        }
        for _ in 0..self.pick(4) {
            self.touch();
        }
        let mut status = 0;
        // SAFETY: A child of ours.
        check(unsafe { libc::waitpid(pid, &mut status, 0) })?;
        if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) > 100 {
            return Err(Error::other(format!("a child ended with {status:#x}")));
        }
        self.sum = self
            .sum
            .wrapping_mul(31)
            .wrapping_add(libc::WEXITSTATUS(status) as u64);
        Ok(())
    }

    fn steps(&mut self, steps: usize, depth: usize) -> std::io::Result<()> {
        for _ in 0..steps {
            match self.pick(16) {
                0 | 1 => self.map()?,
                2 => self.unmap()?,
                3 => self.relocate()?,
                4 | 5 => self.protect()?,
                6 | 7 => self.advise()?,
                8 => self.copy()?,
                9 if depth < 3 => self.fork(depth)?,
                10 if depth == 0 => {
                    // While no child looks: the file loses its pages, and is as long as before.
                    self.file.set_len(0)?;
                    self.file.set_len((PAGES * PAGE) as u64)?;
                }
                _ => self.touch(),
            }
        }
        Ok(())
    }
}

fn main() -> std::io::Result<()> {
    swap_on("/dev/swap")?;
    let (seed, steps) = (arg(1, 1), arg(2, 300));
    let threads: Vec<_> = (0..arg(3, 1))
        .map(|lane| {
            let mut walk = Walk::new(seed + lane * 1000, lane)?;
            Ok(std::thread::spawn(move || {
                walk.steps(steps, 0).map(|()| walk.sum)
            }))
        })
        .collect::<std::io::Result<_>>()?;
    for thread in threads {
        let sum = thread
            .join()
            .map_err(|_| Error::other("a thread failed"))??;
        println!("{sum}");
    }
    Ok(())
}
