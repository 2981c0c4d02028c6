// SPDX-License-Identifier: GPL-2.0

//! References counted by process and mapping, whether or not they are recorded.
//!
//! Each CPU has a table of its own (tally.rs), with a lock that others take only to read the table.
//! Lock order: VMA lock → the lock of a table. Nothing is locked under it.

use crate::{
    drain::nr_cpus,
    hot::{self, clock, this_cpu},
    machine::afford,
    stay,
    tables::own_comm,
    tally::{Count, Place, Tally, NAME, WAYS},
    Store,
};
use core::{
    ffi::CStr,
    mem::{offset_of, size_of},
    ptr,
};
use kernel::{
    bindings,
    macros::export,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed, Release},
            Atomic,
        },
        rcu, SpinLock,
    },
    task::Task,
    uaccess::{UserPtr, UserSlice},
};

const _: () = {
    use bindings::vmtrace_count as C;
    assert!(size_of::<C>() == size_of::<Count>());
    assert!(offset_of!(C, kernel) == offset_of!(Count, made) + 24);
    assert!(offset_of!(C, dev) == offset_of!(Count, dev));
    assert!(offset_of!(C, mm) == offset_of!(Count, mm));
    assert!(offset_of!(C, kind) == offset_of!(Count, kind));
    assert!(offset_of!(C, comm) == offset_of!(Count, comm));
    assert!(offset_of!(C, name) == offset_of!(Count, name));
    assert!(size_of::<bindings::vmtrace_counts>() == bindings::VMTRACE_COUNTS_SIZE_VER0 as usize);
};

/// Counts of each CPU.
const PLACES: usize = 1024;
/// Counts that are copied with a table locked, and how many times [`WAYS`] that is.
const STEP: usize = GROUPS * WAYS;
const GROUPS: usize = 4;

#[pin_data]
struct Lane {
    #[pin]
    tally: SpinLock<Tally>,
}

/// The tables of all CPUs.
pub(crate) struct Counts(KVVec<Pin<KBox<Lane>>>);

/// Those of the present trace, or null. Read under RCU.
static PRESENT: Atomic<*mut Counts> = Atomic::new(ptr::null_mut());

impl Counts {
    /// Nothing was counted.
    pub(crate) fn new() -> Result<KBox<Counts>> {
        let bytes = PLACES.saturating_mul(size_of::<Place>());
        afford((bytes as u64).saturating_mul(nr_cpus() as u64))?;
        let mut lanes = KVVec::with_capacity(nr_cpus(), GFP_KERNEL)?;
        for _ in 0..nr_cpus() {
            let mut places: Store<Place> = Store::with_capacity(PLACES, GFP_KERNEL | __GFP_NOWARN)?;
            for _ in 0..PLACES {
                places.push(Place::FREE, GFP_KERNEL)?;
            }
            let gone = Store::from_elem(0u64, PLACES / WAYS, GFP_KERNEL)?;
            let tally = Tally::new(places, gone);
            let lane = pin_init!(Lane {
                tally <- new_spinlock!(tally, "vmtrace::counts::tally"),
            });
            lanes.push(KBox::pin_init(lane, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        Ok(KBox::new(Counts(lanes), GFP_KERNEL)?)
    }
}

/// Does `f` with the counts of the present trace, if it has some. `f` must not sleep.
fn with<R>(none: R, f: impl FnOnce(&Counts) -> R) -> R {
    let _guard = rcu::read_lock();
    let counts = PRESENT.load(Acquire);
    if counts.is_null() {
        return none;
    }
    // SAFETY: Freed after a grace period only.
    f(unsafe { &*counts })
}

/// A trace begins that counts.
pub(crate) fn begin(counts: KBox<Counts>) {
    PRESENT.store(KBox::into_raw(counts), Release);
}

/// The trace has ended. The context may sleep.
pub(crate) fn end() {
    let counts = PRESENT.xchg(ptr::null_mut(), Relaxed);
    if counts.is_null() {
        return;
    }
    rcu::synchronize_rcu();
    // SAFETY: `begin` has made it of a `KBox`, and a grace period has passed since it was taken from
    // where it was found.
    drop(unsafe { KBox::from_raw(counts) });
}

/// Whether references are counted.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_counts() -> bool {
    !PRESENT.load(Relaxed).is_null()
}

/// As much of a name as there is room for, and at least one zero byte.
///
/// # Safety
///
/// It ends with a zero byte, and nobody changes it.
unsafe fn text<const N: usize>(name: *const c_char) -> [u8; N] {
    let mut out = [0u8; N];
    // SAFETY: As promised.
    let name = unsafe { CStr::from_char_ptr(name) }.to_bytes();
    for (to, from) in out.iter_mut().take(N - 1).zip(name) {
        *to = *from;
    }
    out
}

/// Counts a reference that was admitted. Preemption is disabled, and no lock of a page table or a ring
/// is held.
///
/// # Safety
///
/// Both are valid. Of the access, C has set what it sets, and its page was admitted.
#[export]
pub unsafe extern "C" fn vmtrace_rs_count(
    touch: *const bindings::vmtrace_touch,
    place: *const bindings::vmtrace_place,
) {
    // SAFETY: It is a variable of the function that calls this.
    let place = unsafe { &*place };
    // SAFETY: So is the access, of which not all is initialised. These fields are, for its page was
    // admitted.
    let (flags, mm) = unsafe { ((*touch).flags, (*touch).a.mm_id) };
    let reference = crate::pte::Access { flags }.reference();
    let by = match (reference & stay::BY_KERNEL, reference & stay::KIND) {
        (0, kind) => kind as usize,
        _ => 3,
    };
    let mut made = Count {
        dev: place.dev,
        ino: place.ino,
        kind: place.kind,
        mm,
        // SAFETY: The present task is there.
        pid: unsafe { (*Task::current_raw()).tgid } as u32,
        comm: own_comm(),
        // SAFETY: Names of mappings end with a zero byte. C keeps this one.
        name: unsafe { text::<NAME>(place.name) },
        ..Count::NONE
    };
    if let Some(n) = made.made.get_mut(by) {
        *n = 1;
    }
    with((), |counts| {
        if let Some(lane) = counts.0.get(this_cpu()) {
            lane.tally.lock().add(&made);
        }
    });
}

/// Copies counts of a CPU from a place on. Gives the references whose counts were given up there, and
/// the next place, or `None` if there is none.
fn part(cpu: usize, at: usize, to: &mut Store<Count>) -> (u64, Option<usize>) {
    with((0, None), |counts| {
        let Some(lane) = counts.0.get(cpu) else {
            return (0, None);
        };
        let tally = lane.tally.lock();
        let part = tally.part(at, GROUPS);
        for count in part.places.iter().filter_map(Place::get) {
            // There is room for all places.
            let _ = to.push(*count, GFP_ATOMIC);
        }
        (part.gone, part.next)
    })
}

/// Gives the counts to user space, and says in `c` what else it is to get. If the trace ends meanwhile,
/// some are missing.
pub(crate) fn read(c: &mut bindings::vmtrace_counts) -> Result {
    let mut to = UserSlice::new(
        UserPtr::from_addr(usize::try_from(c.counts).map_err(|_| EFAULT)?),
        (c.nr as usize).saturating_mul(size_of::<Count>()),
    )
    .writer();
    let room = c.nr;
    (c.nr, c.elsewhere) = (0, 0);
    let mut some: Store<Count> = Store::with_capacity(STEP, GFP_KERNEL)?;
    for cpu in 0..nr_cpus() {
        let mut at = Some(0);
        while let Some(from) = at {
            some.clear();
            let (gone, next) = part(cpu, from, &mut some);
            at = next;
            c.elsewhere = c.elsewhere.wrapping_add(gone);
            for count in some.iter() {
                if c.nr < room {
                    // SAFETY: Integers and bytes without padding.
                    to.write_slice(unsafe {
                        core::slice::from_raw_parts(ptr::from_ref(count).cast(), size_of::<Count>())
                    })?;
                }
                c.nr = c.nr.saturating_add(1);
            }
        }
    }
    c.time = clock();
    c.references = hot::with(0, |refs| refs.done().admissions);
    Ok(())
}
