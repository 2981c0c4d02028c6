// SPDX-License-Identifier: GPL-2.0

//! The filter of a trace: which references are recorded.
//!
//! A reference is judged before its page table is locked, and before it has a number; both are in one
//! section without preemption, which is a section of RCU. Another filter is put in place while no set
//! gives numbers. The sets go on when all sections that may have seen the former filter have ended. So
//! each number is that of a reference that was judged by the filter in force at that number. The event
//! of the change says where that is.
//!
//! The set does not know of filters: what is left out is a bit of the member's record.

use crate::{
    hot,
    judge::{self, Reference, Test},
    members, pte, read_struct, record,
    scopes::Scope,
    session::Filter,
    stay,
    tables::{is_broken, own_comm, COMM, HUGE, PAGE_MASK, PAGE_SHIFT},
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
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed, Release},
            Atomic,
        },
        rcu,
    },
    task::Task,
    uaccess::{UserPtr, UserSlice},
};

// The layouts that pure logic knows.
const _: () = {
    use bindings::vmtrace_filter_test as C;
    assert!(size_of::<C>() == size_of::<Test>());
    assert!(offset_of!(C, op) == offset_of!(Test, op));
    assert!(offset_of!(C, yes) == offset_of!(Test, yes));
    assert!(offset_of!(C, no) == offset_of!(Test, no));
    assert!(offset_of!(C, low) == offset_of!(Test, low));
    assert!(offset_of!(C, high) == offset_of!(Test, high));
    assert!(bindings::VMTRACE_OP_RANGE == judge::RANGE as u32);
    assert!(bindings::VMTRACE_OP_TEXT == judge::TEXT as u32);
    assert!(bindings::VMTRACE_OP_GLOB == judge::GLOB as u32);
    assert!(bindings::VMTRACE_FILTER_KEEP == judge::KEEP as u32);
    assert!(bindings::VMTRACE_FILTER_LEAVE == judge::LEAVE as u32);
    assert!(bindings::VMTRACE_FIELD_COMM == judge::COMM as u32);
    assert!(bindings::VMTRACE_FIELD_MAPPING == judge::MAPPING as u32);
    assert!(bindings::VMTRACE_FIELD_MAPPING_KIND == judge::LAST_FIELD as u32);
    assert!(bindings::VMTRACE_REF_LEFT as u64 == stay::LEFT);
    assert!(size_of::<bindings::vmtrace_filter>() == bindings::VMTRACE_FILTER_SIZE_VER0 as usize);
};

/// The payload of an event.
#[repr(align(8))]
struct Payload([u8; MOST]);

/// Bytes of the event of a filter, without its expression.
const EVENT: usize = size_of::<bindings::vmtrace_ev_filter>();

/// A filter that was found good.
pub(crate) struct Program {
    tests: Store<Test>,
    texts: Store<u8>,
    /// Bytes of the expression, with which `texts` begins.
    expr: usize,
    /// Bits of the fields that tests are about.
    fields: u32,
}

/// Addresses are those of accesses, not of pages.
static EXACT: Atomic<bool> = Atomic::new(false);
/// The present trace has filters.
static ON: Atomic<bool> = Atomic::new(false);

/// That of the present trace, or null: all references are recorded. Read under RCU.
static PRESENT: Atomic<*mut Program> = Atomic::new(ptr::null_mut());

/// Reads as many bytes.
fn copy(at: u64, bytes: usize) -> Result<Store<u8>> {
    let mut to = Store::from_elem(0u8, bytes, GFP_KERNEL)?;
    let from = UserPtr::from_addr(usize::try_from(at).map_err(|_| EFAULT)?);
    UserSlice::new(from, bytes).reader().read_slice(&mut to)?;
    Ok(to)
}

/// A test as user space gives it.
fn test(bytes: &[u8]) -> Option<Test> {
    let short = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let long = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    Some(Test {
        field: short(0)?,
        op: short(offset_of!(Test, op))?,
        yes: short(offset_of!(Test, yes))?,
        no: short(offset_of!(Test, no))?,
        low: long(offset_of!(Test, low))?,
        high: long(offset_of!(Test, high))?,
    })
}

impl Program {
    /// What user space asks for; `None` if all references are to be recorded.
    pub(crate) fn new(asked: &Filter) -> Result<Option<KBox<Program>>> {
        let f = &asked.0;
        if f.nr_tests > bindings::VMTRACE_FILTER_TESTS
            || f.texts_len > bindings::VMTRACE_FILTER_TEXTS
            || f.expr_len > bindings::VMTRACE_FILTER_EXPR
        {
            return Err(E2BIG);
        }
        if f.expr_len > f.texts_len || (f.expr_len == 0) != (f.nr_tests == 0) {
            return Err(EINVAL);
        }
        let texts = copy(f.texts, f.texts_len as usize)?;
        let expr = texts.get(..f.expr_len as usize).ok_or(EINVAL)?;
        if expr.contains(&0) {
            return Err(EINVAL);
        }
        if f.nr_tests == 0 {
            return Ok(None);
        }
        let bytes = (f.nr_tests as usize).saturating_mul(size_of::<Test>());
        let raw = copy(f.tests, bytes)?;
        let mut tests = Store::with_capacity(f.nr_tests as usize, GFP_KERNEL)?;
        for bytes in raw.chunks_exact(size_of::<Test>()) {
            tests.push(test(bytes).ok_or(EINVAL)?, GFP_KERNEL)?;
        }
        if !judge::are_good(&tests, &texts) {
            return Err(EINVAL);
        }
        let program = Program {
            fields: judge::fields(&tests),
            tests,
            texts,
            expr: f.expr_len as usize,
        };
        Ok(Some(KBox::new(program, GFP_KERNEL)?))
    }

    /// That at an address of user space, which a configuration has.
    pub(crate) fn at(at: u64) -> Result<Option<KBox<Program>>> {
        if at == 0 {
            return Ok(None);
        }
        let at = UserPtr::from_addr(usize::try_from(at).map_err(|_| EFAULT)?);
        let size: u32 = UserSlice::new(at, size_of::<u32>()).reader().read()?;
        if size > STRUCT_MOST {
            return Err(E2BIG);
        }
        let least = bindings::VMTRACE_FILTER_SIZE_VER0;
        Program::new(&read_struct(at, size as usize, least)?)
    }

    /// Writes the payload of its event, and gives the payload's size.
    fn describe(&self, out: &mut [u8]) -> usize {
        let expr = self.texts.get(..self.expr).unwrap_or_default();
        record::put(out, 0, &(self.tests.len() as u32).to_le_bytes());
        record::put(out, 4, &(expr.len() as u32).to_le_bytes());
        record::put(out, EVENT, expr);
        EVENT.saturating_add(expr.len().next_multiple_of(8))
    }

    fn keeps(&self, access: &Access<'_>) -> bool {
        judge::keeps(&self.tests, &self.texts, access)
    }
}

/// No version of `struct vmtrace_filter` has more bytes.
const STRUCT_MOST: u32 = 4096;

/// Does `f` with the filter of the present trace, if it has one.
#[inline(always)]
fn with<R>(none: R, f: impl FnOnce(&Program) -> R) -> R {
    let _guard = rcu::read_lock();
    let program = PRESENT.load(Acquire);
    if program.is_null() {
        return none;
    }
    // SAFETY: Freed after a grace period only.
    f(unsafe { &*program })
}

/// A reference that is being made.
///
/// # Invariants
///
/// The struct is valid. Not all of it is initialised, so there is no reference to it. C has set what
/// `struct vmtrace_touch` says that C sets, and `mask` if the entry is that of a huge page.
struct Access<'a> {
    touch: *const bindings::vmtrace_touch,
    place: &'a bindings::vmtrace_place,
    comm: [u8; COMM],
}

/// Reads a field that C has set.
macro_rules! c {
    ($access:expr, $($field:tt)+) => {
        // SAFETY: It is valid, and C has set this, by the type's invariant.
        unsafe { (*$access.touch).$($field)+ }
    };
}

impl Access<'_> {
    /// The address of the page, which may be a huge one.
    fn page(&self) -> u64 {
        let mask = match c!(self, a.entry) & HUGE {
            0 => PAGE_MASK,
            _ => c!(self, mask) as u64,
        };
        c!(self, a.address) as u64 & mask
    }

    /// A name, which ends with a zero byte.
    fn name(&self, field: u16) -> *const c_char {
        match u32::from(field) {
            bindings::VMTRACE_FIELD_COMM => self.comm.as_ptr().cast(),
            _ => self.place.name.cast(),
        }
    }
}

impl Reference for Access<'_> {
    fn number(&self, field: u16) -> u64 {
        let flags = c!(self, flags);
        let reference = pte::Access { flags }.reference();
        let tid_cpu = c!(self, a.tid_cpu);
        match u32::from(field) {
            // SAFETY: The present task is there.
            bindings::VMTRACE_FIELD_PID => unsafe { (*Task::current_raw()).tgid as u64 },
            bindings::VMTRACE_FIELD_TID => {
                u64::from(tid_cpu & ((1 << bindings::VMTRACE_TID_BITS) - 1))
            }
            bindings::VMTRACE_FIELD_CPU => u64::from(tid_cpu >> bindings::VMTRACE_TID_BITS),
            bindings::VMTRACE_FIELD_ADDR if EXACT.load(Relaxed) => c!(self, a.address) as u64,
            bindings::VMTRACE_FIELD_ADDR => self.page(),
            bindings::VMTRACE_FIELD_PAGE => self.page() >> PAGE_SHIFT,
            bindings::VMTRACE_FIELD_KIND => reference & stay::KIND,
            bindings::VMTRACE_FIELD_MODE => u64::from(reference & stay::BY_KERNEL != 0),
            bindings::VMTRACE_FIELD_SET => {
                let (mm, number) = (c!(self, a.mm), |_: &_, scope: &Scope| scope.number());
                // SAFETY: The address space is the one that faults.
                u64::from(unsafe { hot::with_set(mm, 0, number) })
            }
            _ => u64::from(self.place.kind),
        }
    }

    fn is(&self, field: u16, text: &[u8]) -> bool {
        // SAFETY: It ends with a zero byte, and nobody changes it.
        let name = unsafe { CStr::from_char_ptr(self.name(field)) };
        name.to_bytes() == text
    }

    fn fits(&self, field: u16, pattern: &[u8]) -> bool {
        // SAFETY: Both end with a zero byte: see `judge::are_good`.
        unsafe { bindings::vmtrace_glob(pattern.as_ptr().cast(), self.name(field).cast()) }
    }
}

/// Whether the filter asks for mappings. It may change until the number is taken: then no number is
/// given.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_judge_maps() -> bool {
    with(false, |program| program.fields & judge::OF_MAPPING != 0)
}

/// Whether a reference is recorded.
///
/// # Safety
///
/// Both are valid. Of the access, what [`Access`] reads is set.
#[export]
pub unsafe extern "C" fn vmtrace_rs_judge(
    touch: *const bindings::vmtrace_touch,
    place: *const bindings::vmtrace_place,
) -> bool {
    with(true, |program| {
        // SAFETY: It is a variable of the function that calls this.
        let place = unsafe { &*place };
        // INVARIANT: As promised.
        program.keeps(&Access {
            touch,
            place,
            comm: own_comm(),
        })
    })
}

const MOST: usize = EVENT + bindings::VMTRACE_FILTER_EXPR as usize;
const _: () = assert!(MOST % 8 == 0);

/// Logs the present filter, if the trace has filters. The context may sleep.
pub(crate) fn log(flags: u32) {
    if !ON.load(Relaxed) {
        return;
    }
    let mut out = Payload([0u8; MOST]);
    let len = with(EVENT, |program| program.describe(&mut out.0));
    // SAFETY: There are so many bytes.
    unsafe { bindings::vmtrace_log_filter(out.0.as_ptr().cast(), len, flags) };
}

/// The same.
///
/// # Safety
///
/// The context may sleep.
#[export]
pub unsafe extern "C" fn vmtrace_rs_log_filter(flags: u32) {
    log(flags);
}

/// A trace begins that has filters, with this one. If its records have offsets, addresses are `exact`.
/// No address space is traced.
pub(crate) fn begin(program: Option<KBox<Program>>, exact: bool) {
    EXACT.store(exact, Relaxed);
    let program = program.map_or(ptr::null_mut(), KBox::into_raw);
    PRESENT.store(program, Release);
    ON.store(true, Relaxed);
}

/// The trace has ended: no page is admitted any more.
pub(crate) fn end() {
    ON.store(false, Relaxed);
    let program = PRESENT.xchg(ptr::null_mut(), Relaxed);
    if !program.is_null() {
        rcu::synchronize_rcu();
    }
    free(program);
}

/// Frees a filter that nobody can find any more.
fn free(program: *mut Program) {
    if !program.is_null() {
        // SAFETY: `begin` and `change` have made it of a `KBox`, and a grace period has passed since
        // it was taken from where it was found.
        drop(unsafe { KBox::from_raw(program) });
    }
}

/// Another filter takes the place of that of the present trace, which does not end meanwhile.
///
/// # Errors
///
/// As of [`members::while_paused`].
pub(crate) fn change(program: Option<KBox<Program>>) -> Result {
    let mut out = Payload([0u8; MOST]);
    let len = program.as_deref().map_or(EVENT, |p| p.describe(&mut out.0));
    let event = out.0.get(..len).ok_or(EINVAL)?;
    let mut next = program.map_or(ptr::null_mut(), KBox::into_raw);
    let changed = members::while_paused(|| {
        // SAFETY: There are so many bytes.
        if !unsafe { bindings::vmtrace_try_log_filter(event.as_ptr().cast(), event.len()) } {
            return false;
        }
        next = PRESENT.xchg(next, Release);
        // Whoever is judged by the former one asks for a number in the same section, and gets none.
        if !is_broken(bindings::VMTRACE_BREAK_NOORDER) {
            // SAFETY: The context may sleep.
            unsafe { bindings::synchronize_rcu_expedited() };
        }
        true
    });
    free(next);
    changed
}
