//! mprotect() and SIGSEGV: pages without any right, and what must be done so that programs do not notice.
//!
//! - A page becomes accessible when the program faults on it, and inaccessible when its turn comes, as in the
//!   kernel's set: first in, first out.
//! - A system call does not fault. So the pages that it is about become accessible before it begins, and stay
//!   until it has returned. A call that fails nevertheless is made anew with more pages.
//! - The kernel also accesses the stack of a task that gets a signal, the memory that says that a thread has
//!   ended, and the memory of rseq(), which is refused.
//!
//! What the program can notice: if it blocks or ignores SIGSEGV, the kernel does so no more after a fault.
//! A page that the kernel adds to a stack is accessible at once if the page above is.

use super::calls::{Call, Span, When};
use super::follower::{Reports, Space};
use super::maps::{Area, whole};
use super::recent::runs;
use super::task::{Failure, Task};
use crate::now_ns;
use libc::siginfo_t;
use std::ops::Range;

type Result<T> = std::result::Result<T, Failure>;

/// Faults in a row on one page that is accessible: one may be of another thread's, and then the program
/// does what it has no right to.
const AGAIN: u32 = 3;

/// How often a call is made anew.
const ANEW: u32 = 3;

/// What a task's system call needs.
#[derive(Default, Debug)]
pub struct InCall {
    /// Its memory.
    spans: Vec<Span>,
    /// Pages that stay accessible until it returns.
    pinned: Vec<u64>,
    /// Of these, those that were not accessible, and are not reported yet.
    fresh: Vec<u64>,
    /// How often it was made anew because it failed.
    anew: u32,
}

/// A stopped task, with its address space.
pub struct Work<'w> {
    /// The task.
    pub task: &'w mut Task,
    /// Where it is.
    pub space: &'w mut Space,
    /// Where pages are reported.
    pub reports: &'w mut Reports,
}

/// Pages of bytes, by number.
fn pages(at: u64, len: u64) -> Range<u64> {
    let range = whole(at, len);
    range.start >> 12..range.end >> 12
}

impl Work<'_> {
    /// Calls mprotect() in the program. Whether it succeeds: the program may be unmapping the range.
    fn mprotect(&mut self, range: &Range<u64>, rights: i32) -> Result<bool> {
        let args = [range.start, range.end - range.start, rights as u64];
        let result = self.task.make(self.space.gate, libc::SYS_mprotect, args)?;
        Ok(result == 0)
    }

    /// What is mapped at a page, if the program has a right there.
    fn area(&self, page: u64) -> Option<Area> {
        self.space.maps.at(page << 12).filter(|a| a.rights != 0)
    }

    /// Makes pages accessible. Gives those that were not.
    fn enable(&mut self, mut wanted: Vec<u64>) -> Result<Vec<u64>> {
        wanted.retain(|page| !self.space.recent.has(*page) && self.area(*page).is_some());
        let mut enabled = Vec::new();
        for run in runs(wanted) {
            // Neighbours may have other rights.
            for (part, area) in self.space.maps.within(run.start << 12..run.end << 12) {
                if area.rights != 0 && self.mprotect(&part, area.rights.into())? {
                    enabled.extend(part.start >> 12..part.end >> 12);
                }
            }
        }
        enabled.iter().for_each(|page| self.space.recent.add(*page));
        Ok(enabled)
    }

    /// Makes the oldest pages inaccessible, if there are too many.
    fn evict(&mut self) -> Result<()> {
        for run in runs(self.space.recent.evict()) {
            for (part, area) in self.space.maps.within(run.start << 12..run.end << 12) {
                // The kernel may have added pages below the end of a stack that is known here.
                let lowest = area.stack && self.space.maps.at(part.start - 1).is_none();
                let grown = if lowest { libc::PROT_GROWSDOWN } else { 0 };
                self.mprotect(&part, libc::PROT_NONE | grown)?;
            }
        }
        Ok(())
    }

    /// The program has mapped this. It loses its rights.
    ///
    /// # Errors
    ///
    /// If the task is gone.
    pub fn mapped(&mut self, range: Range<u64>, area: Area) -> Result<()> {
        if area.rights != 0 {
            self.mprotect(&range, libc::PROT_NONE)?;
        }
        Ok(())
    }

    /// No page is accessible any more: the program has the pages from its parent, and has used none of them.
    ///
    /// # Errors
    ///
    /// If the task is gone.
    pub fn forgets(&mut self) -> Result<()> {
        for (range, area) in self.space.maps.all() {
            let pages = range.start >> 12..range.end >> 12;
            if self.space.recent.any(&pages) {
                self.mapped(range, area)?;
                self.space.recent.remove(pages);
            }
        }
        Ok(())
    }

    /// A call begins that is about this memory.
    ///
    /// # Errors
    ///
    /// If the task is gone.
    pub fn enters(&mut self, spans: Vec<Span>) -> Result<()> {
        self.unpin();
        let of = |s: &Span| pages(s.at, s.len);
        let enabled = self.enable(spans.iter().flat_map(of).collect())?;
        // A call that was begun before its pages were accessible begins anew. These are still to be told.
        self.task.needs.fresh.extend(enabled);
        for page in spans.iter().flat_map(of) {
            if self.space.recent.pin(page) {
                self.task.needs.pinned.push(page);
            }
        }
        self.task.needs.spans = spans;
        self.report(now_ns(), |span| match span.when {
            When::Always => Some(span.len),
            _ => None,
        })?;
        self.evict()
    }

    /// Reports the pages of a call that were not accessible before, as far as they are within so many bytes
    /// of each span.
    fn report(&mut self, time: u64, bytes: impl Fn(&Span) -> Option<u64>) -> Result<()> {
        let needs = &mut self.task.needs;
        if needs.fresh.is_empty() {
            return Ok(());
        }
        for span in &needs.spans {
            let used = pages(span.at, bytes(span).unwrap_or(0));
            let (told, fresh) = needs.fresh.iter().partition(|page| used.contains(page));
            let told: Vec<u64> = told;
            needs.fresh = fresh;
            for page in told {
                self.reports.used_at(time, self.task.pid, page)?;
            }
        }
        Ok(())
    }

    fn unpin(&mut self) {
        for page in self.task.needs.pinned.drain(..) {
            self.space.recent.unpin(page);
        }
    }

    /// A call has returned. Whether it is to be made anew.
    ///
    /// # Errors
    ///
    /// If the task is gone.
    pub fn returns(&mut self, call: Call, result: i64) -> Result<bool> {
        let failed = result == -i64::from(libc::EFAULT) && call.nr != libc::SYS_rt_sigreturn;
        if failed && self.task.needs.anew < ANEW {
            // Perhaps the next page, too: what arguments point to is short.
            let pointed = call.args.iter().flat_map(|at| {
                let page = at >> 12;
                page..page + 2
            });
            let enabled = self.enable(pointed.collect())?;
            if !enabled.is_empty() {
                for page in enabled {
                    self.reports.used(self.task.pid, page)?;
                    if self.space.recent.pin(page) {
                        self.task.needs.pinned.push(page);
                    }
                }
                self.task.needs.anew += 1;
                self.task.make_anew()?;
                return Ok(true);
            }
        }
        if result >= 0 {
            self.report(now_ns(), |span| match span.when {
                When::Always | When::Maybe => None,
                When::Done => Some(span.len),
                When::Result(times) => Some(span.len.min(times.saturating_mul(result as u64))),
            })?;
        }
        self.unpin();
        self.task.needs = InCall::default();
        self.evict()?;
        Ok(false)
    }
}

/// SIGSEGV. Whether it is of the tracer's making, and the task goes on without it.
///
/// # Errors
///
/// If the task is gone.
pub fn fault(work: &mut Work<'_>, info: &siginfo_t) -> Result<bool> {
    /// No right to access what is mapped (include/uapi/asm-generic/siginfo.h).
    const SEGV_ACCERR: i32 = 2;
    if info.si_code != SEGV_ACCERR {
        return Ok(false);
    }
    // SAFETY: The kernel's own SIGSEGV has an address.
    let addr = unsafe { info.si_addr() } as u64;
    let page = addr >> 12;
    if work.area(page).is_none() && work.space.maps.grown(addr).is_none() {
        return Ok(false);
    }
    let (last, times) = work.task.again;
    if work.space.recent.has(page) {
        let times = if last == page { times + 1 } else { 1 };
        work.task.again = (page, times);
        if times >= AGAIN {
            work.task.again = (page, 0);
            return Ok(false);
        }
        // Another thread was faster; or what is known is wrong.
        work.space.recent.remove(page..page + 1);
    } else {
        work.task.again = (page, 0);
    }
    work.reports.used(work.task.pid, page)?;
    work.enable(vec![page])?;
    work.evict()?;
    Ok(true)
}

/// A signal is about to be delivered: the kernel may write to the task's stacks.
///
/// # Errors
///
/// If the task is gone.
pub fn before_signal(work: &mut Work<'_>) -> Result<()> {
    let frame = frame();
    let sp = work.task.registers()?.rsp;
    let (at, len) = work.task.signal_stack;
    let top = at.saturating_add(len);
    let below = |sp: u64| pages(sp.saturating_sub(frame), frame);
    let signal_stack = if top > frame { below(top) } else { 0..0 };
    work.enable(below(sp).chain(signal_stack).collect())?;
    Ok(())
}

/// Bytes on the stack for a signal: what the kernel says that it writes, what the program may have below its
/// stack pointer, and what aligning takes.
fn frame() -> u64 {
    /// include/uapi/linux/auxvec.h.
    const AT_MINSIGSTKSZ: u64 = 51;
    // SAFETY: It has no memory to go wrong with.
    let size = unsafe { libc::getauxval(AT_MINSIGSTKSZ) };
    size.max(2048) + 128 + 256
}

/// The memory of calls that is not in their arguments.
pub fn special(work: &Work<'_>, call: Call, sp: u64) -> Option<Vec<Span>> {
    match call.nr {
        // The frame of the signal, of which the return address is gone already.
        libc::SYS_rt_sigreturn => Some(vec![Span {
            at: sp.saturating_sub(8),
            len: frame(),
            when: When::Always,
        }]),
        libc::SYS_exit => Some(vec![Span {
            at: work.task.clears,
            len: 4,
            when: match work.space.tasks {
                1 => When::Maybe,
                _ => When::Always,
            },
        }]),
        _ => None,
    }
}

/// A task is no more, so it needs nothing.
pub fn forget(task: &Task, space: &mut Space) {
    for page in &task.needs.pinned {
        space.recent.unpin(*page);
    }
}
