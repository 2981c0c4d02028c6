//! Threads and several CPUs: the trace is replayed.
//!
//! On a preemptible kernel, and even more on two CPUs, the order of admissions is a race,
//! which no model can predict. So the order is *given*: each load and each store of the kernel's
//! set is seen, and shows when a number is drawn, when a page becomes a member and when its stay
//! ends. Everything that follows from the order is *predicted*, and must agree with the kernel:
//!
//! - each change of the set: see [`crate::set`];
//! - that a page is admitted by the fault that is handled, with that fault's kind of
//!   access, by the CPU and in the address space that took it;
//! - that an admission is given up only if its slot was not free, if another number was faster, if
//!   its page was closed or evicted since, or if its entry or the mappings were changed;
//! - that every access that succeeds, in user mode or by the kernel, is to a member;
//! - that a stay is recorded as written if a store succeeded in it, and only if one did,
//!   or a write fault was granted, or a store that lies on two pages had this page looked
//!   up; and the same for references in the second segment, where an instruction may have
//!   been looked up before an interrupt;
//! - every field of every record, at the end, except times.
//!
//! There may be several sets. Then each of them has numbers of its own, which follow from the
//! numbers of all sets: records are in the order of the latter. See [`crate::set`] for what is
//! checked of both, and [`crate::scopes`] for which set must be whose.
//!
//! When a CPU's first segment ends is predicted from the switches of that CPU, which are
//! observed, and from the times of admissions, which are taken from the kernel. Another CPU
//! reads the number of switches without a lock, so what it has read is taken from the kernel,
//! too, and must be the number that was observed, or one less while a switch is under way.
//!
//! Between the end of a stay and the end of the TLB flush that follows it, other CPUs
//! may use the page through a stale entry. Those accesses belong to the stay that
//! ended. They are accepted and counted ([`Counts::late`]) under two conditions: the CPU
//! that makes the access has not flushed the page since, and the CPU that ended the stay
//! has neither finished its flush, nor called a function of the set again, nor returned
//! to user mode. In the same way, an access between the clearing of the accessed bit and
//! the flush may leave no trace in the bit ([`Counts::unsure`]). A stay ends for accesses when
//! its entry is disabled or has been cleared, which is shortly before the set notes it.
//!
//! The QEMU that is watched runs its CPUs in turn, in one thread.

use crate::log::{Counts, Log, Notes};
use crate::model::{
    Access, Answer, CHANCE, DRAINED, EVICTED, Page, RENEWED, Shape, Stay, Who, Why,
};
use crate::scopes::Scopes;
use crate::set::{self, Ask, Cause, Change, SetList, View, Word};
use crate::spaces::{STACK_MASK, Spaces, TABLE_MASK};
use crate::watch::{FLAG_USER, FLAG_WRITE, Fault, PAGE_MASK, USER_END};
use std::collections::HashMap;

/// VMTRACE_PTE_YOUNG and VMTRACE_PTE_DIRTY.
const YOUNG: u64 = 1;
const DIRTY: u64 = 2;

/// The same in a PTE of x86: _PAGE_ACCESSED; _PAGE_DIRTY and _PAGE_SAVED_DIRTY.
const PTE_ACCESSED: u64 = 1 << 5;
const PTE_DIRTY: u64 = 1 << 6 | 1 << 58;

/// Flags of `struct vmtrace_ref`.
const REF_KIND: u64 = 3;
const REF_KERNEL: u64 = 4;
const REF_DIRTIED: u64 = 8;

/// Offsets in `struct vmtrace_touch`, which begins with the admission.
const L_MM: u64 = 0;
const L_ENTRY: u64 = 8;
const L_PAGE: u64 = 16;
/// The address space's number, in the low half.
pub const L_MM_ID: u64 = 24;
const L_PFN: u64 = 32;
const L_WAS_DIRTY: u64 = 36;
/// The address of the entry.
const L_PTEP: u64 = 56;
/// Where mmap_lock's count of writers lies, if it is to be looked at, and what it was. The CPU's
/// count of its switches follows.
const L_LOCK_SEQ: u64 = 64;
const L_SEQ: u64 = 72;
/// The number that was drawn, in the ticket, its time, and the number among those of all sets.
const L_ORDINAL: u64 = 80;
const L_TIME: u64 = 96;
const L_CLOCK: u64 = 104;
/// The set, which is there before anything is done with it.
const L_SET: u64 = 128;
/// The offset of the answer, which is there when the function returns.
pub const L_ANSWER: u64 = 136;

/// Offsets in `Cursor` of members.rs: the number of the member.
const C_ORDINAL: u64 = 16;
/// The offset of the set in it.
pub const C_SCOPE: u64 = 32;

/// The result of `vmtrace_rs_admit()` if the page did not become a member.
const NO_SEQ: u64 = u64::MAX;

/// Thread in the low bits of `tid_cpu`, CPU above.
const TID_BITS: u32 = 22;

/// The accessed and dirty bits that a PTE had.
#[derive(Clone, Copy, Default, Debug)]
struct Bits {
    young: bool,
    dirty: bool,
}

impl Bits {
    fn new(last: u64) -> Self {
        Bits {
            young: last & YOUNG != 0,
            dirty: last & DIRTY != 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The number was drawn.
    Drawn,
    Live,
    Closed,
    GivenUp,
}

/// What is known of a number.
#[derive(Clone, Copy, Debug)]
struct Place {
    state: State,
    /// The record. It has no meaning before the page is a member.
    stay: Stay,
    who: Who,
    /// The dirty bit was set when the stay began.
    was_dirty: bool,
    /// The stay goes on after a second chance: stores before it hide those after it.
    quiet: bool,
    /// The entry is disabled or cleared: the stay is about to end, for this reason and with these
    /// bits of the entry.
    going: Option<(Why, Bits)>,
    /// The entry is being disabled: an access comes before that or after it.
    taken: bool,
    /// A store succeeded.
    stored: bool,
    /// The dirty bit may be set although no store succeeded.
    may_be_dirty: bool,
    /// There was a reference after the accessed bit was cleared.
    seen: bool,
    /// There may have been such a reference: an access that faulted on another page, or an access
    /// through a stale entry.
    may_be_seen: bool,
    /// Both, as they were when the page was looked at for a second chance.
    looked: Option<(bool, bool)>,
}

/// The reason why a stale TLB entry may be in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stale {
    /// The page's stay is over.
    Gone(Page),
    /// The accessed bit of this member is cleared.
    Swept(u64),
}

/// The time until a flush is done.
#[derive(Clone, Copy, Debug)]
struct Window {
    stale: Stale,
    page: Page,
    /// The CPU that flushes.
    by: usize,
    /// CPUs that have not flushed yet.
    unflushed: u64,
    /// A stale entry was used.
    used: bool,
    /// The bit is being cleared.
    locked: bool,
}

/// A stay whose record shows a use that the replay does not know of (yet).
///
/// The CPU looks up the first page of an access that lies on two pages before the access
/// faults on the second page. Some instructions later, `exc_page_fault()` is called. If
/// another CPU ends the first page's stay in between, the replay sees the fault only after
/// that. The same happens if an interrupt comes before an instruction that was looked up
/// already. One such interrupt is that of the flush by which the other CPU ends the stay.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    ordinal: u64,
    stay: Stay,
    text: &'static str,
    /// Only a store can be the use.
    store: bool,
    /// CPUs that may be on the way into the fault: they have run nothing in user mode since.
    cpus: u64,
}

/// A fault that is being handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Attempt {
    page: Page,
    access: Access,
    kernel: bool,
    /// An exception, and not the kernel's request.
    exception: bool,
}

/// What a CPU does with the set.
#[derive(Clone, Debug, Default)]
struct Doing {
    /// The kernel's `struct vmtrace_touch`, and the stack of the task.
    at: u64,
    stack: u64,
    /// What the CPU asks for, until it is known of which set.
    ask: Option<Ask>,
    /// The entry as it was when the CPU asked.
    pte: u64,
    /// A page that this CPU asks for was admitted or went meanwhile.
    disturbed: bool,
    /// mmap_lock has had a writer, as this CPU must see when it has drawn its number.
    changed: bool,
    /// The entry that is being disabled.
    taking: Option<u64>,
    /// The number whose accessed bit is being cleared, and where its bits are left.
    sweeping: Option<(u64, u64)>,
    /// What a look for a second chance has found.
    looked: Bits,
    /// Why stays end that are drained.
    why: Why,
    /// The CPU whose switches are asked for, and what they were.
    asking: (usize, u32),
}

/// A CPU's switches.
#[derive(Clone, Copy, Debug, Default)]
struct Switches {
    seen: u32,
    /// The kernel's count when there were none.
    base: Option<u32>,
}

/// All that is known about a guest whose trace is replayed.
pub struct Replay {
    shape: Shape,
    on: bool,
    sealed: bool,
    spaces: Spaces,
    scopes: Scopes,
    /// The kernel's sets.
    sets: Option<SetList>,
    /// All numbers of this trace, of all sets.
    places: Vec<Place>,
    /// The first of them.
    start: u64,
    members: HashMap<Page, u64>,
    /// A cache of the pages that were looked up last, because most accesses are to the same few
    /// pages. It is emptied whenever the set changes.
    recent: [Option<(Page, u64)>; 64],
    /// By CPU.
    doing: Vec<Doing>,
    switches: Vec<Switches>,
    suspects: Vec<Suspect>,
    windows: Vec<Window>,
    attempts: HashMap<u64, Attempt>,
    /// The pages for which the fault handler is running, and whether the access is a write.
    handled: HashMap<u64, (Page, bool)>,
    counts: Counts,
    notes: Notes,
}

impl Replay {
    /// Watches a guest with this number of CPUs and this kind of set, from its boot on.
    pub fn new(shape: Shape, cpus: usize) -> Self {
        Replay {
            shape,
            on: false,
            sealed: false,
            spaces: Spaces::new(cpus),
            scopes: Scopes::new(shape.sets),
            sets: None,
            places: Vec::new(),
            start: 0,
            members: HashMap::new(),
            recent: [None; 64],
            doing: vec![Doing::default(); cpus],
            switches: vec![Switches::default(); cpus],
            suspects: Vec::new(),
            windows: Vec::new(),
            attempts: HashMap::new(),
            handled: HashMap::new(),
            counts: Counts::default(),
            notes: Notes::default(),
        }
    }

    /// Whether accesses are of interest now.
    pub fn wants_accesses(&self) -> bool {
        self.spaces.any()
    }

    /// What address spaces there are.
    pub fn spaces(&mut self) -> &mut Spaces {
        &mut self.spaces
    }

    fn note(&mut self, text: String) {
        self.notes.add(self.places.len(), text);
    }

    /// Counts something that the replay cannot explain.
    pub fn confused(&mut self, text: String) {
        self.counts.confused += 1;
        self.note(text);
    }

    /// The set is not what it must be.
    fn misplaced(&mut self, text: String) {
        self.counts.misplaced += 1;
        self.note(text);
    }

    /// A trace begins, whose set 0 is there.
    pub fn begin(&mut self, view: View, word: Word<'_>) {
        let cpus = self.doing.len();
        let spaces = std::mem::replace(&mut self.spaces, Spaces::new(0));
        let [counter, near] = [0, 8].map(|at| word(view.counter() + at));
        let sets = SetList::new(self.shape, cpus, view, counter, near);
        *self = Replay {
            spaces,
            on: true,
            start: sets.start(),
            sets: Some(sets),
            switches: std::mem::take(&mut self.switches),
            ..Replay::new(self.shape, cpus)
        };
        self.spaces.begin();
    }

    /// No admission is on the way. None is made from here on, unless this is only a pause.
    pub fn quiesced(&mut self) {
        let Some(sets) = &mut self.sets else {
            return;
        };
        if !sets.is_paused() {
            sets.seal();
            self.sealed = true;
        }
    }

    /// Ends the trace; returns what the trace must be, or `None` if no trace was on.
    pub fn end(&mut self) -> Option<Log> {
        if !std::mem::take(&mut self.on) {
            return None;
        }
        self.spaces.end();
        self.sets = None;
        let suspects = std::mem::take(&mut self.suspects);
        self.convict(suspects);
        let open = |p: &&Place| matches!(p.state, State::Live | State::Drawn);
        let open = self.places.iter().filter(open).count();
        if open > 0 {
            self.misplaced(format!("{open} stays have not ended with the trace"));
        }
        let done = self.places.iter().filter(|p| p.state == State::Closed);
        let (stays, whos) = done.map(|p| (p.stay, p.who)).unzip();
        Some(Log {
            shape: self.shape,
            counts: self.counts,
            notes: self.notes.text(),
            stays,
            whos,
            sets: self.scopes.table(),
        })
    }

    /// An address space that was announced gets the next number.
    pub fn space_numbered(&mut self, stack: u64) {
        let Some((mm, number)) = self.spaces.numbered(stack) else {
            self.confused("an address space of unknown origin is numbered".into());
            return;
        };
        self.counts.spaces += 1;
        if self.scopes.numbered(mm, number).is_none() && self.on {
            self.confused(format!("address space {number} has no set"));
        }
    }

    /// `vmtrace_rs_enter(mm, group)`.
    pub fn entering(&mut self, stack: u64, mm: u64, group: u64) {
        self.scopes.entering(stack, mm, group);
    }

    /// It returns the number of the set.
    pub fn entered(&mut self, stack: u64, set: u32) {
        if let Err(text) = self.scopes.entered(stack, set) {
            if self.on {
                self.confused(text);
            }
        }
        if let Some(sets) = self.sets.as_mut().filter(|_| set > 0) {
            sets.revive(set);
        }
        self.forget_sets();
    }

    /// `vmtrace_rs_leave(mm)`.
    pub fn leaving(&mut self, mm: u64) {
        let left = self.scopes.leaving(mm);
        if let (Some(set), Some(sets)) = (left.filter(|_| !self.sealed), &mut self.sets) {
            sets.retire(set);
        }
        self.follow(&mut |_| 0);
        self.forget_sets();
    }

    /// The kernel may free sets that nobody is in, when all of their records are written.
    fn forget_sets(&mut self) {
        let Some(sets) = &mut self.sets else {
            return;
        };
        for set in sets.done_with() {
            if self.scopes.is_over(set) {
                sets.forget(set);
            }
        }
    }

    fn place(&self, ordinal: u64) -> Option<&Place> {
        let at = ordinal.checked_sub(self.start)?;
        self.places.get(usize::try_from(at).ok()?)
    }

    fn place_mut(&mut self, ordinal: u64) -> Option<&mut Place> {
        let at = ordinal.checked_sub(self.start)?;
        self.places.get_mut(usize::try_from(at).ok()?)
    }

    fn find(&mut self, page: Page) -> Option<u64> {
        let at = (page.addr >> 12) as usize % self.recent.len();
        match self.recent[at] {
            Some((known, ordinal)) if known == page => return Some(ordinal),
            _ => {}
        }
        let ordinal = *self.members.get(&page)?;
        self.recent[at] = Some((page, ordinal));
        Some(ordinal)
    }

    // Faults: what wants which page.

    /// A page fault.
    pub fn fault(&mut self, cpu: usize, fault: &Fault) {
        let stack = fault.stack & STACK_MASK;
        self.attempts.remove(&stack);
        if !self.on || fault.addr >= USER_END {
            return;
        }
        if fault.cr3 & TABLE_MASK != self.spaces.table(cpu) {
            self.confused(format!(
                "CR3 is {:#x} at a fault on CPU {cpu}, and {:#x} was loaded last",
                fault.cr3,
                self.spaces.table(cpu)
            ));
            return;
        }
        let Some(mm) = self.spaces.current(cpu) else {
            return;
        };
        self.counts.faults += 1;
        let attempt = Attempt {
            page: Page {
                mm,
                addr: fault.addr & PAGE_MASK,
            },
            access: fault.access(),
            kernel: fault.kernel(),
            exception: true,
        };
        self.attempts.insert(stack, attempt);
        // The access may lie on the page before, too: then the CPU has looked that
        // one up.
        if fault.addr & !PAGE_MASK == 0 {
            let before = Page {
                addr: attempt.page.addr.wrapping_sub(0x1000),
                ..attempt.page
            };
            let write = attempt.access == Access::Write;
            self.may_be_used(before, write);
            self.acquit(cpu, before, write);
        }
    }

    /// An interrupt comes in user mode, before the instruction at `ip` has run: it may
    /// have been looked up.
    pub fn interrupted(&mut self, cpu: usize, ip: u64) {
        // No instruction is longer.
        for addr in [ip, ip + 14] {
            let Some(mm) = self.spaces.current(cpu).filter(|_| ip < USER_END) else {
                return;
            };
            let page = Page {
                mm,
                addr: addr & PAGE_MASK,
            };
            self.may_be_used(page, false);
            self.acquit(cpu, page, false);
        }
    }

    /// `fixup_user_fault()`.
    pub fn fixup(&mut self, stack: u64, mm: u64, addr: u64, flags: u64) {
        let stack = stack & STACK_MASK;
        self.attempts.remove(&stack);
        let Some(mm) = self.spaces.number(mm) else {
            return;
        };
        self.counts.faults += 1;
        let attempt = Attempt {
            page: Page {
                mm,
                addr: addr & PAGE_MASK,
            },
            access: if flags & FLAG_WRITE != 0 {
                Access::Write
            } else {
                Access::Read
            },
            kernel: flags & FLAG_USER == 0,
            exception: false,
        };
        self.attempts.insert(stack, attempt);
    }

    /// `handle_mm_fault()` is entered, for an exception or not.
    pub fn handling(&mut self, cpu: usize, stack: u64, addr: u64, flags: u64, exception: bool) {
        let stack = stack & STACK_MASK;
        if !self.on {
            return;
        }
        let page = match self.attempts.get(&stack) {
            Some(a) if a.exception == exception => a.page,
            _ => {
                // The earlier attempt was not granted, and this call is not related to it.
                self.attempts.remove(&stack);
                let Some(mm) = self.spaces.current(cpu) else {
                    return;
                };
                Page {
                    mm,
                    addr: addr & PAGE_MASK,
                }
            }
        };
        self.handled.insert(stack, (page, flags & FLAG_WRITE != 0));
    }

    /// It returns. A fault on a member sets its accessed bit, and its dirty bit for a
    /// store.
    pub fn handled(&mut self, stack: u64) {
        let Some((page, write)) = self.handled.remove(&(stack & STACK_MASK)) else {
            return;
        };
        self.may_be_used(page, write);
    }

    /// `__vmtrace_touch()` has left the fault to `handle_mm_fault()`.
    pub fn untouched(&mut self, stack: u64) {
        self.handled.remove(&(stack & STACK_MASK));
    }

    /// The accessed bit of a page may be set without an access that succeeds, and
    /// for a write its dirty bit.
    fn may_be_used(&mut self, page: Page, write: bool) {
        let Some(ordinal) = self.find(page) else {
            return;
        };
        let Some(p) = self.place_mut(ordinal).filter(|p| p.going.is_none()) else {
            return;
        };
        p.may_be_seen = true;
        p.may_be_dirty |= write;
        for w in self.windows.iter_mut() {
            w.used |= w.locked && w.stale == Stale::Swept(ordinal);
        }
    }

    // Accesses.

    /// An access of `size` bytes of user memory by the instruction at `pc` has
    /// succeeded.
    pub fn access(&mut self, cpu: usize, pc: u64, addr: u64, size: u64, store: bool) {
        let last = addr + size - 1;
        self.access_page(cpu, pc, addr, store);
        if (last ^ addr) & PAGE_MASK != 0 {
            self.access_page(cpu, pc, last, store);
        }
    }

    fn access_page(&mut self, cpu: usize, pc: u64, addr: u64, store: bool) {
        let Some(mm) = self.spaces.current(cpu) else {
            return;
        };
        let kernel = pc >= USER_END;
        self.counts.access(kernel, store);
        let page = Page {
            mm,
            addr: addr & PAGE_MASK,
        };
        if !self.reference(cpu, page, store) {
            let access = if store { Access::Write } else { Access::Read };
            self.escaped(cpu, page, access, pc);
        }
    }

    /// User mode runs an instruction that has a byte at `addr`.
    pub fn fetch(&mut self, cpu: usize, addr: u64) {
        // This CPU has done all flushes that it had to do.
        self.close_windows(cpu);
        self.not_faulting(cpu);
        let Some(mm) = self.spaces.current(cpu) else {
            return;
        };
        self.counts.fetches += 1;
        let page = Page {
            mm,
            addr: addr & PAGE_MASK,
        };
        if !self.reference(cpu, page, false) {
            self.escaped(cpu, page, Access::Exec, addr);
        }
    }

    /// Notes a reference; false if it must not be.
    fn reference(&mut self, cpu: usize, page: Page, store: bool) -> bool {
        let member = self.find(page);
        let member = member.filter(|o| self.place(*o).is_some_and(|p| p.going.is_none()));
        let Some(ordinal) = member else {
            let late = self.is_stale(cpu, Stale::Gone(page));
            self.counts.late += u64::from(late);
            return late;
        };
        let unsure = self.is_stale(cpu, Stale::Swept(ordinal));
        self.counts.unsure += u64::from(unsure);
        if let Some(p) = self.place_mut(ordinal) {
            p.stored |= store && !p.taken;
            p.may_be_dirty |= store && p.taken;
            p.may_be_seen |= unsure || p.taken;
            p.seen |= !unsure && !p.taken;
        }
        true
    }

    fn escaped(&mut self, cpu: usize, page: Page, access: Access, pc: u64) {
        if self.sealed {
            return;
        }
        if self.spaces.is_joining(page.mm) {
            self.counts.early += 1;
            return;
        }
        self.counts.escaped += 1;
        self.note(format!(
            "{access:?} of {:#x} in mm {} by the instruction at {pc:#x} on CPU {cpu}, and the \
             page is no member",
            page.addr, page.mm
        ));
    }

    // Flushes.

    /// Whether an access may go through a stale entry. While the bit's clearing is
    /// under way, a CPU that has flushed may come before it or after it.
    fn is_stale(&mut self, cpu: usize, stale: Stale) -> bool {
        let mut any = false;
        for w in self.windows.iter_mut().filter(|w| w.stale == stale) {
            if w.locked || w.unflushed & 1 << cpu != 0 {
                self.counts.stale += u64::from(!w.used);
                w.used = true;
                any = true;
            }
        }
        any
    }

    fn open_window(&mut self, by: usize, page: Page, stale: Stale) {
        let unflushed = (1 << self.doing.len()) - 1;
        self.counts.flushes += 1;
        self.windows.push(Window {
            stale,
            page,
            by,
            unflushed,
            used: false,
            locked: false,
        });
    }

    fn close_windows(&mut self, by: usize) {
        if !self.windows.is_empty() {
            self.windows.retain(|w| w.by != by);
        }
    }

    /// A CPU has flushed its TLB, or one address of it.
    pub fn flushed(&mut self, cpu: usize, addr: Option<u64>) {
        for w in &mut self.windows {
            if addr.is_none_or(|addr| addr & PAGE_MASK == w.page.addr) {
                w.unflushed &= !(1 << cpu);
            }
        }
    }

    /// `flush_tlb_mm_range()` returns on this CPU: all CPUs have flushed.
    pub fn flush_done(&mut self, by: usize) {
        self.close_windows(by);
    }

    // The sets.

    /// Whether the plugin is to report loads and stores at an address.
    pub fn watches(&self, addr: u64) -> bool {
        let sets = self.sets.as_ref();
        sets.is_some_and(|sets| sets.watches(addr) || self.tells_set(addr).is_some())
    }

    /// The CPU that tells in which set it asks for a page, if that is told at this address.
    fn tells_set(&self, addr: u64) -> Option<usize> {
        let tells = |d: &Doing| d.ask.is_some() && d.at + L_SET == addr;
        self.doing.iter().position(tells)
    }

    fn set(&mut self) -> Option<&mut SetList> {
        self.sets.as_mut()
    }

    /// A CPU that goes on in the set has flushed before.
    fn goes_on(&mut self, cpu: usize) {
        self.close_windows(cpu);
    }

    /// Takes over what has come to pass in the set.
    fn follow(&mut self, word: Word<'_>) {
        let Some(set) = self.set() else {
            return;
        };
        let (changes, wrong) = (set.changes(), set.wrong());
        if !changes.is_empty() {
            self.recent = [None; 64];
        }
        for text in wrong {
            self.misplaced(text);
        }
        for change in changes {
            match change {
                Change::Drawn => self.places.push(Place::drawn()),
                Change::Admitted { cpu, ordinal } => self.admit(cpu, ordinal, word),
                Change::Renewed {
                    cpu,
                    from,
                    to,
                    chance,
                } => self.renew(cpu, from, to, chance),
                Change::Ended { ordinal, cause } => self.ended(ordinal, cause),
                Change::GivenUp { ordinal } => {
                    self.counts.aborts += 1;
                    if let Some(p) = self.place_mut(ordinal) {
                        p.state = State::GivenUp;
                    }
                }
                Change::Skipped { clock } => {
                    self.counts.skipped += 1;
                    if let Some(p) = self.place_mut(clock) {
                        p.state = State::GivenUp;
                    }
                }
                Change::Batched => self.counts.batched += 1,
            }
        }
    }

    /// A CPU has loaded 8 bytes of a set, or of what lies between its words.
    pub fn loaded(&mut self, cpu: usize, addr: u64, value: u64) {
        if let Some(set) = self.set() {
            set.loaded(cpu, addr, value);
        }
    }

    /// A CPU has stored as many.
    pub fn stored(&mut self, cpu: usize, addr: u64, value: u64, word: Word<'_>) {
        if self.tells_set(addr) == Some(cpu) {
            self.uses(cpu, value, word);
        }
        let Some(set) = self.set() else {
            return;
        };
        if set.stored(cpu, addr, value, word) {
            self.doing[cpu].changed = self.is_changed(cpu, word);
        }
        self.follow(word);
        if self.sets.as_ref().is_some_and(SetList::has_retired) {
            self.forget_sets();
        }
    }

    /// A CPU asks the set that lies at `scope`. It must be that of the address space.
    fn uses(&mut self, cpu: usize, scope: u64, word: Word<'_>) {
        let Some(ask) = self.doing[cpu].ask.take().filter(|_| scope != 0) else {
            return;
        };
        let mut words = [0; View::WORDS];
        for (i, at) in words.iter_mut().zip(0..) {
            *i = word(scope + at * 8);
        }
        let Some(view) = View::new(words) else {
            self.misplaced(format!("there is no set at {scope:#x}"));
            return;
        };
        let (number, must) = (view.number(), self.scopes.of(ask.page.mm));
        if number != must {
            self.misplaced(format!(
                "{:?} is asked for in set {number}, and is of set {must}",
                ask.page
            ));
        }
        if let Some(set) = self.set() {
            set.add(view);
            set.ask(cpu, number, ask);
        }
        self.follow(word);
    }

    /// The number of the set that lies there.
    fn set_at(scope: u64, word: Word<'_>) -> u32 {
        word(scope + View::NUMBER) as u32
    }

    /// Whether mmap_lock has had a writer since a CPU found the entry that it wants to enable.
    fn is_changed(&self, cpu: usize, word: Word<'_>) -> bool {
        let at = self.doing[cpu].at;
        let count = word(at + L_LOCK_SEQ);
        count != 0 && word(count) as u32 != word(at + L_SEQ) as u32
    }

    /// `vmtrace_rs_admit_locked(l)`, or without the lock `vmtrace_rs_reserve(l)`.
    pub fn ask(&mut self, cpu: usize, stack: u64, l: u64, near: bool, word: Word<'_>) {
        self.goes_on(cpu);
        let [page, mm, entry] = [L_PAGE, L_MM_ID, L_ENTRY].map(|at| word(l + at));
        let page = Page {
            mm: mm as u32,
            addr: page & PAGE_MASK,
        };
        let epoch = (word(l + L_SEQ) >> 32) as u32;
        let ptep = word(l + L_PTEP);
        self.doing[cpu] = Doing {
            at: l,
            stack: stack & STACK_MASK,
            pte: if near { word(ptep) } else { 0 },
            ..Doing::default()
        };
        self.doing[cpu].ask = Some(Ask {
            page,
            entry,
            epoch,
            near,
        });
        self.observe(cpu, epoch);
    }

    /// It returns.
    pub fn asked(&mut self, cpu: usize, word: Word<'_>) {
        let at = self.doing[cpu].at;
        self.doing[cpu].ask = None;
        let answer = Answer::new(word(at + L_ANSWER) & u64::from(u32::MAX));
        let Some(set) = self.set() else {
            return;
        };
        let number = set.drawn(cpu);
        let overtaken = set.is_overtaken(cpu);
        let mut text = None;
        match (answer, number) {
            (Some(Answer::Off), None) => {
                set.unanswered(cpu);
                // The trace is over, unless the address space is of an earlier one.
                let mm = word(at + L_MM_ID) as u32;
                self.sealed |= self.spaces.number(word(at + L_MM)) == Some(mm);
            }
            (Some(Answer::Full), None) => {
                set.unanswered(cpu);
                self.counts.full += 1;
            }
            (Some(Answer::Far), Some(number)) => {
                set.went_far(cpu);
                let [kept, clock, time] = [L_ORDINAL, L_CLOCK, L_TIME].map(|l| word(at + l));
                if !set.has(cpu, kept, clock, time) {
                    text = Some(format!(
                        "number {number} is kept as {kept}, {clock} of all, of {time}"
                    ));
                }
            }
            (Some(answer), Some(number)) => {
                let done = set.admitted(cpu);
                let live = done.is_some_and(|done| done.live);
                let aborted = done.is_some_and(|done| done.aborted);
                let fits = match answer {
                    Answer::Go => live,
                    Answer::Changed => !live && self.is_changed(cpu, word),
                    Answer::Full => !live && (!aborted || overtaken != Some(false)),
                    Answer::Off | Answer::Far => false,
                };
                if !fits {
                    text = Some(format!(
                        "an admission is answered by {answer:?}: {done:?}, overtaken {overtaken:?}"
                    ));
                }
                self.noted(cpu, number, live, word);
            }
            _ => {
                text = Some(format!(
                    "an admission is answered by {answer:?} without a number"
                ))
            }
        }
        if let Some(text) = text {
            self.misplaced(text);
        }
        self.follow(word);
    }

    /// A page that is a member has its number noted, beside its entry.
    fn noted(&mut self, cpu: usize, number: u64, live: bool, word: Word<'_>) {
        let entry = word(self.doing[cpu].at + L_ENTRY) & !7;
        let must = number << 1 | 1;
        if live && entry != 0 && word(entry) != must {
            let text = format!(
                "number {number} is a member's, and {:#x} is noted",
                word(entry)
            );
            self.misplaced(text);
        }
    }

    /// `vmtrace_rs_clear_way()` returns.
    pub fn cleared(&mut self, cpu: usize, word: Word<'_>) {
        if let Some(set) = self.set() {
            set.passed(cpu);
        }
        self.follow(word);
    }

    /// `vmtrace_rs_admit(l)` or `vmtrace_rs_abort(l)`.
    pub fn settles(&mut self, cpu: usize, admits: bool, word: Word<'_>) {
        self.goes_on(cpu);
        if let Some(set) = self.set() {
            set.settles(cpu);
        }
        let at = self.doing[cpu].at;
        let ptep = word(at + L_PTEP);
        let d = &self.doing[cpu];
        let (pte, disturbed) = (d.pte, d.disturbed);
        if !admits && !disturbed && pte != 0 && word(ptep) == pte && !self.is_changed(cpu, word) {
            let number = self.set().and_then(|set| set.drawn(cpu));
            self.misplaced(format!("number {number:?} is given up in vain"));
        }
        self.follow(word);
    }

    /// It returns: with a record's number, if the page is a member.
    pub fn settled(&mut self, cpu: usize, answer: Option<u64>, word: Word<'_>) {
        let Some(set) = self.set() else {
            return;
        };
        let overtaken = set.is_overtaken(cpu);
        let done = set.admitted(cpu);
        let live = done.is_some_and(|done| done.live);
        let told = answer.is_some_and(|seq| seq != NO_SEQ);
        // If the caller gives up, it has its reason: see `settles()`.
        let reason = answer.is_none() || overtaken != Some(false);
        if live != told || done.is_some_and(|done| done.aborted) && !reason {
            self.misplaced(format!(
                "{done:?} is answered by {answer:x?}, overtaken {overtaken:?}"
            ));
        }
        if let Some(done) = done {
            self.noted(cpu, done.number, done.live, word);
        }
        self.follow(word);
    }

    /// `vmtrace_rs_close(mm, addr, last, why, entry)`.
    pub fn close(&mut self, cpu: usize, page: Page, last: u64, why: Why) {
        self.goes_on(cpu);
        self.counts.closings += 1;
        let number = self.scopes.of(page.mm);
        if let Some(set) = self.set() {
            set.close(cpu, number, page);
        }
        match self.find(page) {
            Some(ordinal) => self.goes(cpu, ordinal, why, Bits::new(last)),
            None if self.sealed || !self.on => {}
            None => {
                self.counts.foreign_closings += 1;
                self.note(format!(
                    "the enabled PTE of {:#x} in mm {} is cleared, and the page is no member",
                    page.addr, page.mm
                ));
            }
        }
        self.follow(&mut |_| 0);
    }

    /// It returns.
    pub fn closed(&mut self, cpu: usize) {
        let page = self.set().and_then(|set| set.closes(cpu));
        if let Some(ordinal) = page.and_then(|page| self.find(page)) {
            self.misplaced(format!("number {ordinal} stays, and its entry is cleared"));
        }
        self.finished(cpu);
    }

    /// `vmtrace_rs_dropped(mm, addr, entry)`, of an entry that has a word.
    pub fn dropped(&mut self, cpu: usize, page: Page) {
        self.goes_on(cpu);
        let number = self.scopes.of(page.mm);
        if let Some(set) = self.set() {
            set.drop(cpu, number, page);
        }
        self.follow(&mut |_| 0);
    }

    /// `vmtrace_rs_drop_logged()`.
    pub fn drop_logged(&mut self, cpu: usize) {
        if let Some(set) = self.set() {
            set.drop_logged(cpu);
        }
        self.follow(&mut |_| 0);
    }

    /// A function of the set returns.
    pub fn finished(&mut self, cpu: usize) {
        if let Some(set) = self.set() {
            set.done(cpu);
        }
    }

    /// `vmtrace_rs_drain(c, ptep, why, now, todo, scope)`.
    pub fn drain(&mut self, cpu: usize, c: u64, why: Why, word: Word<'_>) {
        self.goes_on(cpu);
        self.doing[cpu].why = why;
        let at = word(c + C_ORDINAL);
        let number = Self::set_at(word(c + C_SCOPE), word);
        if let Some(set) = self.set() {
            set.drain(cpu, number, at, why);
        }
        self.follow(word);
    }

    /// `vmtrace_rs_pause(on, scope)`.
    pub fn pause(&mut self, on: bool, scope: u64, word: Word<'_>) {
        let number = Self::set_at(scope, word);
        if let Some(set) = self.set() {
            set.pause(number, on);
        }
    }

    /// `vmtrace_rs_begin_of(n, scope)`, by the task on this stack: the set is to have this size.
    pub fn resizing(&mut self, cpu: usize, stack: u64, n: u64, scope: u64, word: Word<'_>) {
        self.goes_on(cpu);
        let number = Self::set_at(scope, word);
        if let Some(set) = self.set() {
            set.resizing(stack & STACK_MASK, number, n);
        }
        self.follow(word);
    }

    /// It returns where the set begins.
    pub fn begins_at(&mut self, stack: u64, begin: u64) {
        if let Some(set) = self.set() {
            set.begins_at(stack & STACK_MASK, begin);
        }
        self.follow(&mut |_| 0);
    }

    /// `vmtrace_rs_sized(n, scope)`: it has this size.
    pub fn resized(&mut self, cpu: usize, n: u64, scope: u64, word: Word<'_>) {
        let number = Self::set_at(scope, word);
        if let Some(set) = self.set() {
            set.resized(cpu, number, n);
        }
        self.follow(word);
    }

    /// `vmtrace_rs_aged(mm, addr, young, entry)`, of an mm_struct.
    pub fn aged(&mut self, cpu: usize, mm: u64, addr: u64, young: bool) {
        self.goes_on(cpu);
        let Some(mm) = self.spaces.number(mm) else {
            return;
        };
        let page = Page {
            mm,
            addr: addr & PAGE_MASK,
        };
        if let Some(ordinal) = self.find(page) {
            if let Some(set) = self.set() {
                set.aged(ordinal, young);
            }
        }
    }

    /// `vmtrace_rs_dirtied(mm, addr, entry)`.
    pub fn dirtied(&mut self, cpu: usize, page: Page) {
        self.goes_on(cpu);
        if let Some(ordinal) = self.find(page) {
            if let Some(p) = self.place_mut(ordinal) {
                p.stay.dirtied = true;
            }
        }
    }

    /// `vmtrace_pte_take(ptep, young)`: an entry is being disabled.
    pub fn pte_taken(&mut self, cpu: usize, ptep: u64) {
        let Some(set) = self.set() else {
            return;
        };
        let ordinal = set.takes(cpu, set::place_at(ptep));
        self.doing[cpu].taking = ordinal;
        if let Some(p) = ordinal.and_then(|o| self.place_mut(o)) {
            p.taken = true;
        }
        self.follow(&mut |_| 0);
    }

    /// It returns the PTE as it was, or 0 if it was not enabled.
    pub fn pte_took(&mut self, cpu: usize, pte: u64) {
        let Some(ordinal) = self.doing[cpu].taking.take() else {
            return;
        };
        let why = match self.set().is_some_and(|set| set.drawn(cpu).is_some()) {
            true => EVICTED,
            false => self.doing[cpu].why,
        };
        // A look for a second chance may have cleared the bit, and there was none.
        let looked = self.place(ordinal).is_some_and(|p| p.looked.is_some());
        let bits = Bits {
            young: pte & PTE_ACCESSED != 0 || looked && self.doing[cpu].looked.young,
            dirty: pte & PTE_DIRTY != 0,
        };
        self.goes(cpu, ordinal, why, bits);
    }

    /// The entry of a member is not enabled any more: for accesses, its stay is over.
    fn goes(&mut self, cpu: usize, ordinal: u64, why: Why, bits: Bits) {
        let Some(p) = self.place_mut(ordinal) else {
            return;
        };
        p.going = Some((why, bits));
        let page = p.stay.page;
        self.open_window(cpu, page, Stale::Gone(page));
    }

    /// `vmtrace_pte_sweep(ptep, last)`: from here on another CPU may set the accessed bit that is
    /// cleared.
    pub fn pte_sweeps(&mut self, cpu: usize, last: u64) {
        let ordinal = self.set().and_then(|set| set.sweeps(cpu));
        self.doing[cpu].sweeping = ordinal.map(|o| (o, last));
        if let Some(page) = ordinal.and_then(|o| self.place(o)).map(|p| p.stay.page) {
            self.open_window(cpu, page, Stale::Swept(ordinal.unwrap_or_default()));
            if let Some(w) = self.windows.last_mut() {
                w.locked = true;
            }
        }
        self.follow(&mut |_| 0);
    }

    /// It returns.
    pub fn pte_swept(&mut self, cpu: usize, word: Word<'_>) {
        let Some((ordinal, last)) = self.doing[cpu].sweeping.take() else {
            return;
        };
        let bits = Bits::new(word(last));
        self.doing[cpu].looked = bits;
        let all = (1 << self.doing.len()) - 1;
        let mut used = false;
        for w in self.windows.iter_mut().filter(|w| w.by == cpu && w.locked) {
            used |= w.used;
            (w.locked, w.unflushed, w.used) = (false, all, false);
        }
        let look = self
            .set()
            .is_some_and(|set| set.swept(cpu, ordinal, bits.young));
        if let Some(p) = self.place_mut(ordinal) {
            p.looked = look.then_some((p.seen, p.may_be_seen));
            (p.seen, p.may_be_seen) = (false, used);
        }
    }

    /// `__vmtrace_switch(prev)`: a CPU switches to another task.
    pub fn switched(&mut self, cpu: usize) {
        if let Some(s) = self.switches.get_mut(cpu) {
            s.seen = s.seen.wrapping_add(1);
        }
    }

    /// A CPU has counted its own switches.
    fn observe(&mut self, cpu: usize, epoch: u32) {
        let s = &mut self.switches[cpu];
        let base = epoch.wrapping_sub(s.seen);
        if s.base.replace(base).is_some_and(|known| known != base) {
            self.misplaced(format!(
                "CPU {cpu} has switched as often as was not observed"
            ));
        }
    }

    /// `vmtrace_epoch_of(cpu)`.
    pub fn epoch_asked(&mut self, cpu: usize, of: u64) {
        let of = of as u32 as usize;
        let seen = self.switches.get(of).map_or(0, |s| s.seen);
        self.doing[cpu].asking = (of, seen);
    }

    /// It returns. The other CPU may have switched many times since the question, for nothing
    /// holds it up. At the question, a switch that was seen to begin may not have counted yet.
    pub fn epoch_answered(&mut self, cpu: usize, value: u64) {
        let ((of, asked), value) = (self.doing[cpu].asking, value as u32);
        if let Some(set) = self.set() {
            set.switches(cpu, of, value);
        }
        let Some(Switches {
            seen,
            base: Some(base),
        }) = self.switches.get(of).copied()
        else {
            return;
        };
        let least = base.wrapping_add(asked).wrapping_sub(1);
        let most = base.wrapping_add(seen);
        if value.wrapping_sub(least) > most.wrapping_sub(least) {
            self.misplaced(format!(
                "CPU {of} is said to have switched {value} times, not {least} to {most}"
            ));
        }
    }

    /// A page is a member.
    fn admit(&mut self, cpu: usize, ordinal: u64, word: Word<'_>) {
        let (l, stack) = (self.doing[cpu].at, self.doing[cpu].stack);
        let [page, mm, entry] = [L_PAGE, L_MM, L_ENTRY].map(|at| word(l + at));
        let (ids, pfn) = (word(l + L_MM_ID), word(l + L_PFN) as u32);
        let was_dirty = word(l + L_WAS_DIRTY) & 0xff != 0;
        let (mm_id, tid_cpu) = (ids as u32, (ids >> 32) as u32);
        let stay = Stay {
            page: Page {
                mm: mm_id,
                addr: page & PAGE_MASK,
            },
            access: match page & REF_KIND {
                0 => Access::Read,
                1 => Access::Write,
                2 => Access::Exec,
                _ => Access::Seen,
            },
            kernel: page & REF_KERNEL != 0,
            dirtied: page & REF_DIRTIED != 0,
            again: false,
            goes_on: false,
            why: DRAINED,
        };
        let who = Who {
            tid: tid_cpu & ((1 << TID_BITS) - 1),
            cpu: tid_cpu >> TID_BITS,
            pfn,
        };
        self.counts.granted += 1;
        let attempt = self.attempts.remove(&stack);
        let founded = attempt.is_some_and(|at| {
            (at.page, at.access, at.kernel) == (stay.page, stay.access, stay.kernel)
        });
        if !founded
            || stay.dirtied != (stay.access == Access::Write)
            || who.cpu as usize != cpu
            || self.spaces.number(mm) != Some(mm_id)
            || !set::is_handle_of(entry, stay.page)
        {
            self.counts.unfounded += 1;
            self.note(format!(
                "on CPU {cpu} {stay:?} begins for {who:?} in the entry {entry:#x}, and the fault \
                 there is {attempt:?}"
            ));
        }
        if self.doing[cpu].changed {
            self.misplaced(format!(
                "number {ordinal} is used, although mappings were changed before it was drawn"
            ));
        }
        if let Some(before) = self.members.insert(stay.page, ordinal) {
            self.misplaced(format!("{:?} is a member already: {before}", stay.page));
        }
        self.disturb(stay.page, Some(cpu), word);
        if let Some(p) = self.place_mut(ordinal) {
            *p = Place {
                state: State::Live,
                stay,
                who,
                was_dirty,
                ..*p
            };
        }
    }

    /// A page has come or gone. Other CPUs that ask for it may give up.
    fn disturb(&mut self, page: Page, but: Option<usize>, _word: Word<'_>) {
        for cpu in 0..self.doing.len() {
            let asks = self.sets.as_ref().and_then(|set| set.asks(cpu));
            if Some(cpu) != but && asks == Some(page) {
                self.doing[cpu].disturbed = true;
            }
        }
    }

    /// A member's stay ends.
    fn ended(&mut self, ordinal: u64, cause: Cause) {
        let going = self.place(ordinal).and_then(|p| p.going);
        let (why, bits) = going.unwrap_or_default();
        if going.is_none() || cause == Cause::Missed {
            self.misplaced(format!(
                "the stay of number {ordinal} ends for no reason: {cause:?}"
            ));
        }
        self.finish(ordinal, why, bits);
    }

    /// A member has a new number.
    fn renew(&mut self, cpu: usize, from: u64, to: u64, chance: bool) {
        let Some(old) = self.place(from).copied() else {
            return;
        };
        let bits = match chance {
            true => self.doing[cpu].looked,
            false => Bits::default(),
        };
        let why = if chance { CHANCE } else { RENEWED };
        if let Some((p, (seen, may_be_seen))) = self
            .place_mut(from)
            .filter(|_| chance)
            .and_then(|p| p.looked.map(|looked| (p, looked)))
        {
            (p.seen, p.may_be_seen) = (seen, may_be_seen);
        }
        self.finish(from, why, bits);
        let stay = Stay {
            access: if chance {
                Access::Seen
            } else {
                old.stay.access
            },
            dirtied: old.stay.dirtied && !chance,
            goes_on: !chance,
            ..old.stay
        };
        let next = Place {
            stay,
            was_dirty: old.was_dirty || bits.dirty,
            quiet: old.quiet || chance && bits.dirty,
            // All evidence about a stay is passed on to its renewal; after a second chance, only
            // what came after the look.
            seen: chance && old.seen,
            may_be_seen: old.may_be_seen || !chance && old.seen,
            looked: None,
            stored: old.stored && !chance,
            may_be_dirty: old.may_be_dirty && !chance,
            ..old
        };
        if let Some(place) = self.place_mut(to) {
            *place = next;
        }
        self.members.insert(old.stay.page, to);
        if !chance {
            self.counts.renewed += 1;
            for w in &mut self.windows {
                if w.stale == Stale::Swept(from) {
                    w.stale = Stale::Swept(to);
                }
            }
            return;
        }
        self.counts.chances += 1;
        // Only what the look has cleared hides references.
        self.windows
            .retain(|w| w.stale != Stale::Swept(from) || bits.young);
        for w in &mut self.windows {
            if w.stale == Stale::Swept(from) {
                w.stale = Stale::Swept(to);
            }
        }
    }

    /// Ends a member's stay. Its record must agree with the accesses.
    fn finish(&mut self, ordinal: u64, why: Why, bits: Bits) {
        let (swept, aged) = self.set().map_or((false, false), |set| set.marks(ordinal));
        let cpus = (1 << self.doing.len()) - 1;
        let Some(p) = self.place_mut(ordinal) else {
            return;
        };
        p.state = State::Closed;
        p.stay.why = why;
        p.stay.dirtied |= bits.dirty && !p.was_dirty;
        p.stay.again = swept && (bits.young || aged);
        let mut p = *p;
        self.members.remove(&p.stay.page);
        self.disturb(p.stay.page, None, &mut |_| 0);

        if let (Some((seen, may_be_seen)), true) = (p.looked, why != CHANCE) {
            p.seen |= seen;
            p.may_be_seen |= may_be_seen;
        }
        for (_, write) in self.handled.values().filter(|h| h.0 == p.stay.page) {
            p.may_be_seen = true;
            p.may_be_dirty |= write;
        }
        let wrote = p.stored || p.may_be_dirty || p.stay.access == Access::Write;
        // A renewal does not read the PTE: the bits are reported at the end of the stay.
        let told = why != RENEWED;
        let unfounded = if p.stay.dirtied && !wrote {
            Some(("a store is told that was not", true))
        } else if p.stay.again && !p.seen && !p.may_be_seen {
            let text = "a reference in the second segment is told that was not";
            Some((text, false))
        } else {
            None
        };
        if told && p.stored && !p.quiet && !p.stay.dirtied {
            self.mistold(ordinal, p.stay, "a store is not told");
        } else if told && swept && p.seen && !p.stay.again {
            let text = "a reference in the second segment is not told";
            self.mistold(ordinal, p.stay, text);
        } else if let Some((text, store)) = unfounded {
            self.suspects.push(Suspect {
                ordinal,
                stay: p.stay,
                text,
                store,
                cpus,
            });
        }
    }

    fn mistold(&mut self, ordinal: u64, stay: Stay, text: &str) {
        self.counts.mistold += 1;
        self.note(format!("number {ordinal}, {stay:?}: {text}"));
    }

    /// A CPU runs on in user mode: if it was on the way into a fault, that is over.
    fn not_faulting(&mut self, cpu: usize) {
        if self.suspects.is_empty() {
            return;
        }
        for suspect in &mut self.suspects {
            suspect.cpus &= !(1 << cpu);
        }
        let (over, open) = std::mem::take(&mut self.suspects)
            .into_iter()
            .partition(|s| s.cpus == 0);
        self.suspects = open;
        self.convict(over);
    }

    /// A CPU had looked up a page when it entered the kernel, to write or not.
    fn acquit(&mut self, cpu: usize, page: Page, write: bool) {
        self.suspects
            .retain(|s| s.cpus & 1 << cpu == 0 || s.stay.page != page || s.store && !write);
    }

    fn convict(&mut self, suspects: Vec<Suspect>) {
        for s in suspects {
            self.mistold(s.ordinal, s.stay, s.text);
        }
    }
}

impl Place {
    fn drawn() -> Self {
        Place {
            state: State::Drawn,
            stay: Stay {
                page: Page { mm: 0, addr: 0 },
                access: Access::Read,
                kernel: false,
                dirtied: false,
                again: false,
                goes_on: false,
                why: DRAINED,
            },
            who: Who::default(),
            was_dirty: false,
            quiet: false,
            going: None,
            taken: false,
            stored: false,
            may_be_dirty: false,
            seen: false,
            may_be_seen: false,
            looked: None,
        }
    }
}

#[cfg(test)]
mod tests;
