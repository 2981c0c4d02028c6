//! Measures how many ticks of virtual time each fault takes besides the program's own
//! instructions: the way into the kernel up to the point where the task's clock stops, and
//! the way back.
//!
//! A traced child touches pages in a loop, first without faults and then with a fault at
//! each touch. Without faults, the loop's ticks are those of its instructions. With faults,
//! the records show how many ticks a turn took. The difference is the way.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rust_mm_trace::uapi::{
    VMTRACE_BATCH_MAX, VMTRACE_HEADER_SIZE, VMTRACE_REF_FLAGS, VMTRACE_STREAM_REF, vmtrace_packet,
    vmtrace_ref,
};

use crate::control::{Config, Control, Scope, SetPer, refused, start, start_counts, status};
use crate::error::Failure;
use crate::sys::{self, Memory, Probe};
use crate::units::Pages;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Turns of the loop without faults, and the number of tries, of which the fastest counts.
const TURNS: usize = 4096;
const TRIES: usize = 20;
/// Pages of that loop: a power of two, and few enough to stay members.
const HOT: usize = 8;
/// The least number of records from which the result is computed.
const ENOUGH: usize = 64;

/// Reads a byte of page `i & mask` in turn `i`.
#[inline(never)]
fn walk(base: usize, mask: usize, turns: usize) {
    for i in 0..turns {
        let at = (base + (i & mask) * PAGE) as *const u8;
        // SAFETY: The callers' memory has more than `mask` pages.
        unsafe { at.read_volatile() };
    }
}

/// Reads a byte of each of `mask` + 1 pages, a power of two, in an order that seems random. So pages that
/// come one after the other are in different page tables, as in most programs.
#[inline(never)]
fn wander(base: usize, mask: usize) {
    let mut page = 0usize;
    for _ in 0..=mask {
        let at = (base + page * PAGE) as *const u8;
        // SAFETY: As in `walk`.
        unsafe { at.read_volatile() };
        page = after(page, mask);
    }
}

/// The page that follows, in the order of [`wander`]: a linear congruential generator of full period
/// (Knuth, volume 2, 3.2.1.2).
fn after(page: usize, mask: usize) -> usize {
    page.wrapping_mul(0x5_1f85).wrapping_add(0x3_39d5) & mask
}

fn ticks() -> u64 {
    // SAFETY: Every x86-64 CPU has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The child's work: it measures the ticks of [`TURNS`] turns without faults. Then it has a
/// fault in each of `turns` turns, if the set has fewer than `mask` pages.
fn probe(base: usize, mask: usize, turns: usize) -> u64 {
    for i in 0..=mask {
        let at = (base + i * PAGE) as *mut u8;
        // SAFETY: As in `walk`.
        unsafe { at.write_volatile(1) };
    }
    walk(base, HOT - 1, HOT);
    let mut least = u64::MAX;
    for _ in 0..TRIES {
        let begin = ticks();
        walk(base, HOT - 1, TURNS);
        least = least.min(ticks() - begin);
    }
    walk(base, mask, turns);
    least
}

/// Virtual times of the references to pages of `base`, each with its page's number.
fn references(trace: &[u8], base: usize, pages: usize) -> Vec<(usize, u64)> {
    let mut found = Vec::new();
    let head = size_of::<vmtrace_packet>();
    let size = size_of::<vmtrace_ref>();
    let mut at = VMTRACE_HEADER_SIZE as usize;
    while let Some(bytes) = trace.get(at..at + head) {
        // SAFETY: As many bytes as the struct has, which is integers.
        let packet: vmtrace_packet = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
        let end = at + head + packet.content_size as usize;
        let content = trace.get(at + head..end).unwrap_or_default();
        at = end;
        if u32::from(packet.kind) != VMTRACE_STREAM_REF {
            continue;
        }
        for record in content.chunks_exact(size + 8) {
            // SAFETY: As above.
            let r: vmtrace_ref = unsafe { std::ptr::read_unaligned(record.as_ptr().cast()) };
            let page = (r.page & !u64::from(VMTRACE_REF_FLAGS)) as usize;
            let number = page.wrapping_sub(base) / PAGE;
            let vtime = record.last_chunk().map_or(0, |b| u64::from_le_bytes(*b));
            if number < pages {
                found.push((number, vtime));
            }
        }
    }
    found
}

/// The ticks of a fault's way, from the records of `pages` pages and the ticks of the loop
/// without faults; `None` if there are too few records.
fn way(touches: &[(usize, u64)], pages: usize, least: u64) -> Option<u32> {
    let mut turns: Vec<u64> = touches
        .windows(2)
        .filter(|pair| pair[1].0 == (pair[0].0 + 1) % pages)
        .filter_map(|pair| pair[1].1.checked_sub(pair[0].1))
        .collect();
    if turns.len() < ENOUGH {
        return None;
    }
    turns.sort_unstable();
    let own = (least as f64 / TURNS as f64).round() as u64;
    u32::try_from(turns[turns.len() / 2].saturating_sub(own)).ok()
}

/// Measures it, with a trace of its own.
pub fn measure(control: &dyn Control) -> Result<u32, Failure> {
    let failed = |e: std::io::Error| {
        Failure::usage(format!(
            "can't measure the ticks of virtual time that a fault takes: {e}; give \
             --virtual-time=TICKS"
        ))
    };
    let n = status(control)?.raw.evms_min.max(64).next_power_of_two();
    let pages = 4 * n as usize;
    let memory = Memory::new(pages * PAGE).map_err(failed)?;
    let mut file: File = sys::memory_file(c"vmtrace-virtual-time").map_err(failed)?;
    let base = memory.address();
    let child = Probe::new(|| probe(base, pages - 1, 4 * pages)).map_err(failed)?;
    let output = "a measurement of virtual time";
    let config = Config {
        batch: Some(1),
        virtual_time: Some(0),
        ..Config::plain(Scope::Tree(child.pid()), Pages(n), output)
    };
    start(control, &config, file.as_fd())?;
    let least = child.run();
    control
        .stop()
        .map_err(|e| refused("end a measurement", e))?;
    let least = least.map_err(failed)?;
    let mut trace = Vec::new();
    file.rewind()
        .and_then(|()| file.read_to_end(&mut trace))
        .map_err(failed)?;
    way(&references(&trace, base, pages), pages, least).ok_or_else(|| {
        Failure::usage(
            "can't measure the ticks of virtual time that a fault takes: too few references were \
             recorded; give --virtual-time=TICKS",
        )
    })
}

/// Turns of the loop with faults are timed in passes over all pages. The median counts.
const PASSES: usize = 9;

/// The child's work for [`reference`]: the time that a fault adds to a turn, ps, as the median of
/// [`PASSES`] passes over `mask` + 1 pages.
fn time(base: usize, mask: usize) -> u64 {
    let own = {
        walk(base, HOT - 1, HOT);
        let least = (0..TRIES).map(|_| {
            let begin = sys::now();
            walk(base, HOT - 1, TURNS);
            sys::now() - begin
        });
        least.min().unwrap_or(0).saturating_mul(1000) / TURNS as u64
    };
    let mut passes = [0; PASSES];
    for i in 0..=mask {
        let at = (base + i * PAGE) as *mut u8;
        // SAFETY: As in `walk`.
        unsafe { at.write_volatile(1) };
    }
    for pass in &mut passes {
        let begin = sys::now();
        wander(base, mask);
        *pass = (sys::now() - begin).saturating_mul(1000) / (mask as u64 + 1);
    }
    passes.sort_unstable();
    passes[PASSES / 2].saturating_sub(own)
}

/// Measures how long one reference takes in a trace like `config`, ns, with a trace of its own:
/// one thread reads more pages than the set has, again and again. `None` if it could not be
/// measured. The pages are in several page tables.
pub fn reference(control: &dyn Control, config: &Config) -> Result<Option<f64>, Failure> {
    /// A larger set makes a reference hardly slower, and the measurement longer.
    const MOST: u32 = 1024;
    // At least what the first segments and the batches of `config` need.
    let first = config.first_segment.map_or(0, |first| first.0);
    let least = first.saturating_mul(2).saturating_add(VMTRACE_BATCH_MAX);
    let n = config.evms_size.0.min(MOST.max(least));
    let pages = (4 * n as usize).next_power_of_two();
    let Ok(memory) = Memory::new(pages * PAGE) else {
        return Ok(None);
    };
    let base = memory.address();
    let Ok(child) = Probe::new(|| time(base, pages - 1)) else {
        return Ok(None);
    };
    let config = Config {
        scope: Scope::Tree(child.pid()),
        set_per: SetPer::All,
        evms_size: Pages(n),
        ..config.clone()
    };
    start_counts(control, &config)?;
    let time = child.run();
    let status = control
        .stop()
        .map_err(|e| refused("end a measurement", e))?;
    // Without a fault in each turn it was something else that was measured.
    let turns = (PASSES * pages) as u64;
    let is_good = status.raw.admissions >= turns && status.problems().is_empty();
    Ok(time.ok().filter(|_| is_good).map(|ps| ps as f64 / 1000.0))
}

/// Reads of a byte in a pass, and passes, of which the fastest counts.
const READS: usize = 256;
const READ_PASSES: usize = 16;

/// The time of a read of a byte of `file`, ps.
fn read_time(file: &File) -> u64 {
    let mut byte = [0];
    let pass = || {
        let begin = sys::now();
        for _ in 0..READS {
            // A file in memory can be read.
            let _ = file.read_at(&mut byte, 0);
        }
        sys::now() - begin
    };
    let least = std::iter::repeat_with(pass).take(READ_PASSES).min();
    least.unwrap_or(0).saturating_mul(1000) / READS as u64
}

/// Measures how long one event takes in a trace like `config`, ns, with a trace of its own: a thread
/// reads from a file, traced and untraced. `None` if reads are no events there, or it could not be
/// measured.
pub fn event(control: &dyn Control, config: &Config) -> Result<Option<f64>, Failure> {
    let Ok(mut file) = sys::memory_file(c"vmtrace-event") else {
        return Ok(None);
    };
    if file.write_all(&[0]).is_err() {
        return Ok(None);
    }
    let Ok(child) = Probe::new(|| read_time(&file)) else {
        return Ok(None);
    };
    let config = Config {
        scope: Scope::Tree(child.pid()),
        set_per: SetPer::All,
        ..config.clone()
    };
    start_counts(control, &config)?;
    let traced = child.run();
    let status = control
        .stop()
        .map_err(|e| refused("end a measurement", e))?;
    let plain = read_time(&file);
    let is_good = status.raw.events >= (READS * READ_PASSES) as u64 && status.problems().is_empty();
    let ps = traced.ok().and_then(|ps| ps.checked_sub(plain));
    Ok(ps.filter(|_| is_good).map(|ps| ps as f64 / 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn way_of_a_fault() {
        // A turn takes 5 ticks, a fault 281 more, an interrupt comes now and then.
        let mut touches = Vec::new();
        let mut time = 1000;
        for i in 0..200 {
            time += 286 + if i % 10 == 0 { 40_000 } else { 0 };
            touches.push((i % 16, time));
        }
        let least = 5 * TURNS as u64 + 30;
        assert_eq!(way(&touches, 16, least), Some(281));
        // Not of the loop's turns: pages out of order are ignored.
        let apart: Vec<_> = touches.iter().map(|t| (t.0 * 3 % 16, t.1)).collect();
        assert_eq!(way(&apart, 16, least), None);
        assert_eq!(way(&touches[..ENOUGH], 16, least), None);
    }

    #[test]
    fn wandering_comes_to_each_page_once() {
        for mask in [7, 127, 4095] {
            let mut seen = vec![0; mask + 1];
            let mut page = 0usize;
            for _ in 0..=mask {
                seen[page] += 1;
                page = after(page, mask);
            }
            assert!(seen.iter().all(|n| *n == 1), "{mask}");
        }
    }

    #[test]
    fn references_of_a_trace() {
        let (base, size) = (0x10_0000, size_of::<vmtrace_ref>() + 8);
        let mut trace = vec![0; VMTRACE_HEADER_SIZE as usize];
        for (kind, page) in [(2, base), (1, base + PAGE), (1, base - PAGE), (1, base)] {
            let mut head = vec![0; size_of::<vmtrace_packet>()];
            let field = |at: usize| at..at + 4;
            let kind_at = std::mem::offset_of!(vmtrace_packet, kind);
            let size_at = std::mem::offset_of!(vmtrace_packet, content_size);
            head[kind_at..kind_at + 2].copy_from_slice(&u16::to_le_bytes(kind));
            head[field(size_at)].copy_from_slice(&(size as u32).to_le_bytes());
            let mut record = vec![0; size];
            record[..8].copy_from_slice(&(page as u64 | 1).to_le_bytes());
            record[size - 8..].copy_from_slice(&(page as u64 + 7).to_le_bytes());
            trace.extend(head);
            trace.extend(record);
        }
        let time = |page: usize| page as u64 + 7;
        let want = [(1, time(base + PAGE)), (0, time(base))];
        assert_eq!(references(&trace, base, 4), want);
        trace.truncate(trace.len() - 1);
        assert_eq!(references(&trace, base, 4), want[..1]);
    }

    #[test]
    fn child_gives_the_time_of_a_turn() {
        let memory = Memory::new(16 * PAGE).expect("memory");
        let base = memory.address();
        let child = Probe::new(|| time(base, 15)).expect("child");
        // Nothing faults here.
        let ps = child.run().expect("result");
        assert!(ps < 1 << 40, "{ps}");
    }

    #[test]
    fn child_gives_its_ticks() {
        let memory = Memory::new(16 * PAGE).expect("memory");
        let base = memory.address();
        let child = Probe::new(|| probe(base, 15, 64)).expect("child");
        let least = child.run().expect("result");
        assert!(least > TURNS as u64 && least < 1 << 40, "{least}");
    }
}
