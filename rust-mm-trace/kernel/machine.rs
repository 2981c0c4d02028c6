// SPDX-License-Identifier: GPL-2.0

//! What the machine has, and what a trace's header says of it.

use crate::{drain::nr_cpus, hot::clock, Store};
use core::{
    mem::size_of,
    ptr::{self, NonNull},
};
use kernel::{bindings, cpu::CpuId, cpumask::Cpumask, page::PAGE_SHIFT, prelude::*};
use pin_init::Zeroable;

/// Whether a CPU is to have buffers. It may come or go at any moment.
pub(crate) fn is_online(cpu: usize) -> bool {
    // SAFETY: The kernel has this mask for as long as it runs. Its bits are changed one by one.
    let mask = unsafe { Cpumask::from_raw(&raw const bindings::__cpu_online_mask) };
    let cpu = u32::try_from(cpu).ok().and_then(CpuId::from_u32);
    cpu.is_some_and(|cpu| mask.test(cpu))
}

/// Memory of the machine, in bytes.
pub(crate) fn memory() -> u64 {
    // SAFETY: An aligned word, which others change by atomic operations. A volatile load is what
    // atomic_long_read() does.
    let pages = unsafe { (&raw const bindings::_totalram_pages.counter).read_volatile() };
    u64::try_from(pages).unwrap_or(0) << PAGE_SHIFT
}

/// Fails with ENOMEM if `bytes` are more than what a trace may take without harm to others: of what
/// is free or easily freed.
pub(crate) fn afford(bytes: u64) -> Result {
    // SAFETY: Only adds up figures.
    let pages = u64::try_from(unsafe { bindings::si_mem_available() }).unwrap_or(0);
    if bytes > pages.saturating_sub(pages / 8) << PAGE_SHIFT {
        return Err(ENOMEM);
    }
    Ok(())
}

/// Memory for `bytes` of records and sets, set to zero, to be freed by kvfree(). ENOMEM rather than
/// to end programs that have memory. It sleeps.
pub(crate) fn alloc<T>(bytes: usize) -> Result<NonNull<T>> {
    const FLAGS: u32 = bindings::GFP_KERNEL
        | 1 << bindings::___GFP_NORETRY_BIT
        | 1 << bindings::___GFP_NOWARN_BIT
        | 1 << bindings::___GFP_ZERO_BIT;
    let align = core::mem::align_of::<T>();
    // SAFETY: Without old memory, this only allocates. A type's alignment is a power of two.
    let new = unsafe {
        bindings::kvrealloc_node_align(ptr::null(), bytes, align, FLAGS, bindings::NUMA_NO_NODE)
    };
    NonNull::new(new.cast()).ok_or(ENOMEM)
}

/// So many values, all zero: see [`alloc`].
pub(crate) fn zeroed<T: Zeroable>(many: usize) -> Result<Store<T>> {
    let bytes = many.checked_mul(size_of::<T>()).ok_or(ENOMEM)?;
    let values = alloc::<T>(bytes)?;
    // SAFETY: The memory is for as many values, of which each may be zero, and is nobody else's.
    Ok(unsafe { Store::from_raw_parts(values.as_ptr(), many, many) })
}

/// Copies a string of C, and ends it with zeros. It is cut if it is too long.
fn copy(to: &mut [u8], from: &[u8]) {
    to.fill(0);
    let room = to.len().saturating_sub(1);
    let text = from.iter().take_while(|c| **c != 0);
    for (to, from) in to.iter_mut().take(room).zip(text) {
        *to = *from;
    }
}

/// Fills in what tells this trace from others, when it begins, and where it was made.
pub(crate) fn describe(h: &mut bindings::vmtrace_header) {
    // SAFETY: There is room for as many bytes.
    unsafe { bindings::get_random_bytes(h.uuid.as_mut_ptr().cast(), h.uuid.len()) };
    h.start_time = clock();
    // SAFETY: May be called in any context.
    let real = unsafe { bindings::ktime_get_with_offset(bindings::tk_offsets_TK_OFFS_REAL) };
    h.realtime_offset = real.wrapping_sub(h.start_time as i64);
    h.nr_cpus = nr_cpus() as u32;
    // SAFETY: Written at boot only.
    let broken = unsafe { (&raw const bindings::vmtrace_break).read() } as u64;
    let others = u32::from(broken >> 32 != 0) << bindings::VMTRACE_BREAK_OTHERS;
    h.debug_break = broken as u32 | others;
    // SAFETY: These two names are written at boot only.
    let (release, arch) = unsafe {
        let name = &raw const bindings::init_uts_ns.name;
        ((*name).release, (*name).machine)
    };
    copy(&mut h.release, &release);
    copy(&mut h.arch, &arch);
}
