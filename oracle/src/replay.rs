//! Threads and several CPUs: the trace is replayed.
//!
//! On a preemptible kernel, and even more on two CPUs, the order of admissions is a race,
//! which no model can predict. So the order is *given*: calls of the kernel's own functions
//! show when a number is taken, when a page becomes a member and when its stay ends. Each
//! of these counts when the lock of the set is dropped, so the order is that of the lock,
//! whatever other CPUs do meanwhile. Everything that follows from the order is *predicted*,
//! and must agree with the kernel:
//!
//! - the number, the victim, the page that passes into the second segment, which stays
//!   are renewed and which get a second chance, and which pages are evicted with a victim;
//! - that a page is admitted by the fault that is handled, with that fault's kind of
//!   access, by the CPU and in the address space that took it;
//! - that an admission is given up if its page was closed since its number was taken, or was
//!   evicted for a greater number, and not unless some page was;
//! - that every access that succeeds, in user mode or by the kernel, is to a member;
//! - that a stay is recorded as written if a store succeeded in it, and only if one did,
//!   or a write fault was granted, or a store that lies on two pages had this page looked
//!   up; and the same for references in the second segment, where an instruction may have
//!   been looked up before an interrupt;
//! - every field of every record, at the end, except times.
//!
//! When a CPU's first segment ends is predicted from the switches of that CPU, which are
//! observed, and from the times of reservations, which are taken from the kernel. Another CPU
//! reads the number of switches without a lock, so what it has read is taken from the kernel,
//! too, and must be the number that was observed, or one less while a switch is under way.
//!
//! Between the end of a stay and the end of the TLB flush that follows it, other CPUs
//! may use the page through a stale entry. Those accesses belong to the stay that
//! ended. They are accepted and counted ([`Counts::late`]) under two conditions: the CPU
//! that makes the access has not flushed the page since, and the CPU that ended the stay
//! has neither finished its flush, nor called a function of the set again, nor returned
//! to user mode. In the same way, an access between the clearing of the accessed bit and
//! the flush may leave no trace in the bit ([`Counts::unsure`]).
//!
//! The QEMU that is watched runs its CPUs in turn, in one thread.

use crate::log::{Counts, Log, Notes};
use crate::model::{Access, CHANCE, DRAINED, EVICTED, Page, RENEWED, Shape, Stay, Who, Why};
use crate::spaces::{STACK_MASK, Spaces, TABLE_MASK};
use crate::watch::{FLAG_USER, FLAG_WRITE, Fault, PAGE_MASK, USER_END};
use std::collections::{HashMap, VecDeque};

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

/// The offset of the victim's number in `struct vmtrace_reservation`.
pub const R_VICTIM_ORDINAL: u64 = 24;
/// Its mm, those of the page that passes, and the number taken.
const R_VICTIM: u64 = 0;
const R_PASSED: u64 = 40;
const R_PASSED_ORDINAL: u64 = 64;
const R_ORDINAL: u64 = 80;
const R_TIME: u64 = 88;

/// ns without a reservation after which a CPU has no first segment.
const CLAIM_NS: u64 = 8_000_000;
/// First segments' lengths that a CPU has its seat for, at least.
const TERM: usize = 4;
/// Seats or CPUs in the queue that one reservation looks at.
const LOOK: usize = 8;

/// And in `struct vmtrace_admission`, which is the beginning of `struct vmtrace_locked`.
const A_MM: u64 = 0;
const A_PAGE: u64 = 16;
const A_MM_ID: u64 = 24;
const A_PFN: u64 = 32;
const A_WAS_DIRTY: u64 = 36;
const A_ORDINAL: u64 = 48;
/// The offset of the epoch in `struct vmtrace_locked`. C sets it.
pub const L_EPOCH: u64 = 76;
/// The offset of the answer there, which the kernel has set when it drops the set's lock.
pub const L_ANSWER: u64 = 216;
/// Where mmap_lock's count of writers lies, if it was looked at; the reservation.
const L_LOCK_SEQ: u64 = 64;
const L_R: u64 = 88;
/// The end of a stay that makes room for no admission: `VMTRACE_END_NOW`.
const END_NOW: u64 = u64::MAX;
/// Entries of a page table.
const ENTRIES: u64 = 512;

/// The result of `vmtrace_rs_admit()` if the page did not become a member.
const NO_SEQ: u64 = u64::MAX;

/// Thread in the low bits of `tid_cpu`, CPU above.
const TID_BITS: u32 = 22;

/// The results of `vmtrace_rs_reserve()` and `vmtrace_rs_admit_locked()`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Off,
    Full,
    Go,
    Hand,
    Again,
    Changed,
    Far,
}

impl Answer {
    fn new(value: u64) -> Option<Self> {
        [
            Answer::Off,
            Answer::Full,
            Answer::Go,
            Answer::Hand,
            Answer::Again,
            Answer::Changed,
            Answer::Far,
        ]
        .get(usize::try_from(value as u32).ok()?)
        .copied()
    }
}

/// What one of the kernel's functions does under the set's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// `vmtrace_rs_reserve(r, mm, epoch)`.
    Reserve {
        /// Address of the reservation.
        r: u64,
        /// The CPU's count of its switches.
        epoch: u32,
    },
    /// `vmtrace_rs_hand(r, mm, ptep, may, flush, epoch)`.
    Hand {
        /// Address of the reservation.
        r: u64,
        /// The number that the hand is at.
        ordinal: u64,
        /// A second chance is possible.
        may: bool,
        /// The CPU's count of its switches.
        epoch: u32,
    },
    /// `vmtrace_rs_sweep(ordinal, ptep)`.
    Sweep {
        /// The page's number.
        ordinal: u64,
    },
    /// `vmtrace_rs_aged(mm, addr, young, entry)`.
    Aged {
        /// The page.
        page: Page,
        /// Its accessed bit was set.
        young: bool,
    },
    /// `vmtrace_rs_evict(ordinal, ptep, why, now, end, disabled)`.
    Evict {
        /// The page's number.
        ordinal: u64,
        /// Why its stay ends.
        why: Why,
        /// The time.
        now: u64,
        /// The number that takes its place.
        end: u64,
    },
    /// `vmtrace_rs_admit_locked(l)`: a reservation, an eviction and an admission in one.
    AdmitLocked {
        /// Address of what C and Rust share.
        l: u64,
        /// The CPU's count of its switches.
        epoch: u32,
    },
    /// `vmtrace_rs_admit(a)`.
    Admit {
        /// Address of the admission.
        a: u64,
    },
    /// `vmtrace_rs_abort(ordinal)`.
    Abort {
        /// The number given up.
        ordinal: u64,
    },
    /// `vmtrace_rs_close(mm, addr, last, why, entry)`.
    Close {
        /// The page.
        page: Page,
        /// VMTRACE_PTE_* that the PTE had.
        last: u64,
        /// Why its stay ends.
        why: Why,
    },
    /// `vmtrace_rs_dirtied(mm, addr, entry)`.
    Dirtied {
        /// The page.
        page: Page,
    },
    /// `vmtrace_rs_dropped(mm, addr, entry)`: the page was no member.
    Dropped {
        /// The page.
        page: Page,
    },
    /// `vmtrace_rs_drop_logged()`: pages were dropped before, and their event has its number.
    DropLogged,
    /// `vmtrace_rs_shrink(victim, n)`.
    Shrink {
        /// The size that is wanted.
        n: u64,
    },
    /// The set gets larger after `vmtrace_log_resize()`.
    Grow {
        /// The size from now on.
        n: u64,
    },
}

/// An [`Op`] that is under way.
#[derive(Clone, Debug)]
struct Pending {
    op: Op,
    /// Where `vmtrace_pte_sweep()` leaves what the PTE had, if it was called.
    swept: Option<u64>,
    /// The calls of `vmtrace_pte_take()`.
    taken: Vec<Taken>,
    /// The CPU whose epoch is being asked for and its switches at that moment, and the
    /// epochs that were read.
    asking: (usize, u32),
    epochs: VecDeque<(usize, u32)>,
}

/// A call of `vmtrace_pte_take()`.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// The PTE's place in its page table.
    entry: u64,
    /// What the PTE had.
    last: Option<Bits>,
}

/// What is about to be done to a victim.
#[derive(Clone, Copy, Debug)]
struct Eviction {
    ordinal: u64,
    why: Why,
    now: u64,
    end: u64,
}

/// Who reserves, and when.
#[derive(Clone, Copy, Debug)]
struct Caller {
    cpu: usize,
    epoch: u32,
    time: u64,
}

/// What a CPU has of the set.
#[derive(Clone, Default, Debug)]
struct Claim {
    /// Its first segment, as far as renewals have not changed the numbers.
    held: VecDeque<u64>,
    /// Numbers taken since it has its seat.
    used: usize,
    /// Its epoch and the time when it reserved last.
    epoch: u32,
    time: u64,
    /// Its switches, and its epoch when there were none.
    switches: u32,
    base: Option<u32>,
}

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
    Reserved,
    Live,
    Closed,
    Aborted,
}

/// A page for which a number has been taken.
#[derive(Clone, Copy, Debug)]
struct Place {
    state: State,
    /// The record. It has no meaning before the page is a member.
    stay: Stay,
    who: Who,
    /// The page that had to be evicted first.
    victim: Option<u64>,
    /// The page that came into the second segment.
    passes: Option<u64>,
    /// The dirty bit was set when the stay began.
    was_dirty: bool,
    /// The stay goes on after a second chance: stores before it hide those after it.
    quiet: bool,
    /// The accessed bit was cleared in the second segment.
    swept: bool,
    /// Somebody else has found the accessed bit set since then.
    aged: bool,
    /// A store succeeded.
    stored: bool,
    /// The dirty bit may be set although no store succeeded.
    may_be_dirty: bool,
    /// There was a reference after the accessed bit was cleared.
    seen: bool,
    /// There may have been such a reference: an access that faulted on another page, or an access
    /// through a stale entry.
    may_be_seen: bool,
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
    /// The lock is still held.
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

/// A page that becomes a member, unless the function's result says otherwise.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    ordinal: u64,
    page: Page,
    /// The last stay of the page ended at a greater number, or the page may have been dropped
    /// after this one was taken.
    overtaken: bool,
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

/// What [`Replay::foresee`] predicts for a reservation.
enum Foreseen {
    /// It waits for a number that is in flight.
    InFlight,
    /// The clock's hand is at this one.
    Hand(u64),
    /// The reservation has its number; this stay must be evicted first.
    Go(Option<u64>),
}

/// Reads eight bytes of the kernel's memory.
pub type Word<'a> = &'a mut dyn FnMut(u64) -> u64;

/// All that is known about a guest whose trace is replayed.
pub struct Replay {
    shape: Shape,
    on: bool,
    sealed: bool,
    spaces: Spaces,
    /// N, as it is now.
    n: u64,
    /// The last F numbers of each CPU, as far as renewals have not changed them.
    firsts: Vec<VecDeque<u64>>,
    claims: Vec<Claim>,
    /// Who has a first segment, if not all CPUs do; and who waits for that.
    seats: Vec<Option<usize>>,
    queue: VecDeque<usize>,
    turn: usize,
    /// All numbers of this trace.
    places: Vec<Place>,
    members: HashMap<Page, u64>,
    /// A cache of the pages that were looked up last, because most accesses are to the same few
    /// pages. It is emptied whenever the set changes.
    recent: [Option<(Page, u64)>; 64],
    /// Victims whose stays have not ended yet, and the number that takes the place of each, if one
    /// does.
    due: HashMap<u64, Option<u64>>,
    /// By stack.
    pending: HashMap<u64, Pending>,
    /// The expected results of functions that have dropped the lock.
    answers: HashMap<u64, Option<Answer>>,
    admitted: HashMap<u64, Admitted>,
    /// The number at which each page's last stay ended, or the page was dropped.
    ended: HashMap<Page, u64>,
    /// The same for an event of dropped pages: any page may be one of those.
    drop_logged: u64,
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
            n: shape.size as u64,
            firsts: vec![VecDeque::new(); cpus],
            claims: vec![Claim::default(); cpus],
            seats: vec![None; seats(&shape, shape.size as u64, cpus)],
            queue: VecDeque::new(),
            turn: 0,
            places: Vec::new(),
            members: HashMap::new(),
            recent: [None; 64],
            due: HashMap::new(),
            pending: HashMap::new(),
            answers: HashMap::new(),
            admitted: HashMap::new(),
            ended: HashMap::new(),
            drop_logged: 0,
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

    /// A trace begins.
    pub fn begin(&mut self) {
        let cpus = self.firsts.len();
        let spaces = std::mem::replace(&mut self.spaces, Spaces::new(0));
        *self = Replay {
            spaces,
            on: true,
            ..Replay::new(self.shape, cpus)
        };
        self.spaces.begin();
    }

    /// No admissions from here on.
    pub fn seal(&mut self) {
        self.sealed = true;
    }

    /// Ends the trace; returns what the trace must be, or `None` if no trace was on.
    pub fn end(&mut self) -> Option<Log> {
        if !std::mem::take(&mut self.on) {
            return None;
        }
        self.spaces.end();
        let suspects = std::mem::take(&mut self.suspects);
        self.convict(suspects);
        let open = |p: &&Place| matches!(p.state, State::Live | State::Reserved);
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
        })
    }

    /// An address space that was announced gets the next number.
    pub fn space_numbered(&mut self, stack: u64) {
        if self.spaces.numbered(stack) {
            self.counts.spaces += 1;
        } else {
            self.confused("an address space of unknown origin is numbered".into());
        }
    }

    fn place(&self, ordinal: u64) -> Option<&Place> {
        self.places.get(usize::try_from(ordinal).ok()?)
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
        let p = &mut self.places[ordinal as usize];
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
        let Some(ordinal) = self.find(page) else {
            let late = self.is_stale(cpu, Stale::Gone(page));
            self.counts.late += u64::from(late);
            return late;
        };
        let unsure = self.is_stale(cpu, Stale::Swept(ordinal));
        let p = &mut self.places[ordinal as usize];
        p.stored |= store;
        if unsure {
            p.may_be_seen = true;
            self.counts.unsure += 1;
        } else {
            p.seen = true;
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
        let unflushed = (1 << self.firsts.len()) - 1;
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

    // The set. The task on this stack is about to do something under its lock.

    /// One of the functions that change the set is entered.
    pub fn enter(&mut self, stack: u64, op: Op) {
        if self.on {
            let pending = Pending {
                op,
                swept: None,
                taken: Vec::new(),
                asking: (0, 0),
                epochs: VecDeque::new(),
            };
            self.pending.insert(stack & STACK_MASK, pending);
        }
    }

    /// `vmtrace_log_resize()`: a set that gets larger does so when this task has the
    /// lock next.
    pub fn resizing(&mut self, stack: u64, from: u64, to: u64) {
        if to > from {
            self.enter(stack, Op::Grow { n: to });
        }
    }

    /// `vmtrace_pte_sweep(ptep, last)`: from here on, and not only when the lock is
    /// dropped, another CPU may set the accessed bit that is cleared.
    pub fn pte_swept(&mut self, cpu: usize, stack: u64, last: u64) {
        let Some(p) = self.pending.get_mut(&(stack & STACK_MASK)) else {
            return;
        };
        p.swept = Some(last);
        if let Op::Sweep { ordinal } | Op::Hand { ordinal, .. } = p.op {
            if let Some(place) = self.places.get(ordinal as usize) {
                let page = place.stay.page;
                self.open_window(cpu, page, Stale::Swept(ordinal));
                if let Some(w) = self.windows.last_mut() {
                    w.locked = true;
                }
            }
        }
    }

    /// Closes the window that [`Replay::pte_swept`] opened; returns whether the page was used in
    /// it.
    fn swept(&mut self, cpu: usize) -> bool {
        let at = self.windows.iter().position(|w| w.by == cpu && w.locked);
        at.is_some_and(|at| self.windows.remove(at).used)
    }

    /// `vmtrace_pte_take(ptep, young)`.
    pub fn pte_taken(&mut self, stack: u64, ptep: u64) {
        if let Some(p) = self.pending.get_mut(&(stack & STACK_MASK)) {
            p.taken.push(Taken {
                entry: ptep / 8 % ENTRIES,
                last: None,
            });
        }
    }

    /// It returns the PTE as it was, or 0 if it was not enabled.
    pub fn pte_took(&mut self, stack: u64, pte: u64) {
        let pending = self.pending.get_mut(&(stack & STACK_MASK));
        if let Some(taken) = pending.and_then(|p| p.taken.last_mut()) {
            taken.last = Some(Bits {
                young: pte & PTE_ACCESSED != 0,
                dirty: pte & PTE_DIRTY != 0,
            });
        }
    }

    /// `__vmtrace_switch(prev)`: a CPU switches to another task.
    pub fn switched(&mut self, cpu: usize) {
        if let Some(c) = self.claims.get_mut(cpu) {
            c.switches = c.switches.wrapping_add(1);
        }
    }

    /// `vmtrace_epoch_of(cpu)`.
    pub fn epoch_asked(&mut self, stack: u64, of: u64) {
        let of = of as u32 as usize;
        let switches = self.claims.get(of).map_or(0, |c| c.switches);
        if let Some(p) = self.pending.get_mut(&(stack & STACK_MASK)) {
            p.asking = (of, switches);
        }
    }

    /// It returns. The other CPU may have switched many times since the question, for nothing
    /// holds it up. At the question, a switch that was seen to begin may not have counted yet.
    pub fn epoch_answered(&mut self, stack: u64, value: u64) {
        let Some(p) = self.pending.get_mut(&(stack & STACK_MASK)) else {
            return;
        };
        let ((cpu, asked), value) = (p.asking, value as u32);
        p.epochs.push_back((cpu, value));
        let Some(c) = self.claims.get(cpu) else {
            return;
        };
        let Some(base) = c.base else {
            return;
        };
        let least = base.wrapping_add(asked).wrapping_sub(1);
        let most = base.wrapping_add(c.switches);
        if value.wrapping_sub(least) > most.wrapping_sub(least) {
            self.misplaced(format!(
                "CPU {cpu} is said to have switched {value} times, not {least} to {most}"
            ));
        }
    }

    /// Whether some task has something to do under the lock.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The task on this stack drops the set's lock: what it did counts now.
    pub fn unlock(&mut self, cpu: usize, stack: u64, word: Word<'_>) {
        let stack = stack & STACK_MASK;
        let Some(mut pending) = self.pending.remove(&stack) else {
            return;
        };
        // A CPU that goes on in the set has flushed before.
        self.windows.retain(|w| w.by != cpu || w.locked);
        self.recent = [None; 64];
        match pending.op {
            Op::Reserve { r, epoch } => {
                let time = word(r + R_TIME);
                let by = Caller { cpu, epoch, time };
                let answer = self.reserve(by, r, &mut pending.epochs, word);
                self.compare_names(cpu, r, answer, word);
                self.answers.insert(stack, answer);
            }
            Op::Hand {
                r,
                ordinal,
                may,
                epoch,
            } => {
                let time = word(r + R_TIME);
                let by = Caller { cpu, epoch, time };
                let answer = self.hand(by, r, ordinal, may, &mut pending, word);
                self.compare_names(cpu, r, answer, word);
                self.answers.insert(stack, answer);
            }
            Op::Shrink { n } => self.shrink(n, &mut pending.epochs),
            Op::Grow { n } => {
                self.n = self.n.max(n);
                self.seat_all(n);
            }
            Op::Sweep { ordinal } => self.sweep(cpu, ordinal),
            Op::Aged { page, young } => {
                if let Some(ordinal) = self.find(page) {
                    self.places[ordinal as usize].aged |= young;
                }
            }
            Op::Evict {
                ordinal,
                why,
                now,
                end,
            } => {
                let eviction = Eviction {
                    ordinal,
                    why,
                    now,
                    end,
                };
                self.evict(cpu, eviction, &mut pending);
            }
            Op::AdmitLocked { l, epoch } => {
                let time = word(l + L_R + R_TIME);
                let by = Caller { cpu, epoch, time };
                self.admit_locked(by, stack, l, &mut pending, word);
            }
            Op::Admit { a } => self.admit(cpu, stack, a, word),
            Op::Abort { ordinal } => {
                self.counts.aborts += 1;
                match self.places.get_mut(ordinal as usize) {
                    Some(p) if p.state == State::Reserved => p.state = State::Aborted,
                    _ => self.misplaced(format!("number {ordinal} is given up, and is not free")),
                }
            }
            Op::Close { page, last, why } => self.close(cpu, page, last, why),
            Op::Dirtied { page } => {
                if let Some(ordinal) = self.find(page) {
                    self.places[ordinal as usize].stay.dirtied = true;
                }
            }
            // As the closing of a member, this refuses admissions that have their numbers.
            Op::Dropped { page } => self.ended(page, None),
            Op::DropLogged => self.drop_logged = self.places.len() as u64,
        }
    }

    /// `vmtrace_rs_reserve()` or `vmtrace_rs_hand()` returns: it must be as foreseen.
    pub fn answered(&mut self, stack: u64, value: u64) {
        if let Some(foreseen) = self.answers.remove(&(stack & STACK_MASK)) {
            self.compare(Answer::new(value), foreseen);
        }
    }

    fn compare(&mut self, answer: Option<Answer>, foreseen: Option<Answer>) {
        match (answer, foreseen) {
            (Some(Answer::Off), _) => self.sealed = true,
            // There was no room for a record.
            (Some(Answer::Full), None) => self.counts.full += 1,
            _ if answer == foreseen => {}
            _ => self.misplaced(format!(
                "a reservation is answered by {answer:?} and not by {foreseen:?}"
            )),
        }
    }

    /// `vmtrace_rs_admit()` returns: the page is a member, or another CPU was faster.
    pub fn admitted(&mut self, stack: u64, value: u64) {
        let Some(a) = self.admitted.remove(&(stack & STACK_MASK)) else {
            return;
        };
        let refused = value == NO_SEQ;
        if a.overtaken != refused {
            self.misplaced(format!(
                "number {} is {} to {:?}, whose last stay ended {} it",
                a.ordinal,
                if refused { "refused" } else { "given" },
                a.page,
                if a.overtaken { "after" } else { "before" },
            ));
        }
        if refused {
            self.counts.granted -= 1;
            self.members.remove(&a.page);
            self.recent = [None; 64];
            if let Some(p) = self.places.get_mut(a.ordinal as usize) {
                p.state = State::Reserved;
            }
        }
    }

    fn is_live(&self, ordinal: u64) -> bool {
        self.place(ordinal).is_some_and(|p| p.state == State::Live)
    }

    /// Sets up the seats of a set of `n`.
    fn seat_all(&mut self, n: u64) {
        let seats = seats(&self.shape, n, self.claims.len());
        if seats == self.seats.len() {
            return;
        }
        self.seats = vec![None; seats];
        self.queue.clear();
        self.turn = 0;
        for c in &mut self.claims {
            c.held.clear();
            c.used = 0;
        }
    }

    fn is_seated(&self, cpu: usize) -> bool {
        self.seats.is_empty() || self.seats.contains(&Some(cpu))
    }

    /// Whether another CPU's first segment has ended. `epochs` are those that the kernel read.
    fn is_over(&self, cpu: usize, time: u64, epochs: &mut VecDeque<(usize, u32)>) -> bool {
        let c = &self.claims[cpu];
        if self.claims.len() == 1 {
            return false;
        }
        if time.saturating_sub(c.time) >= CLAIM_NS {
            return true;
        }
        let read = epochs.iter().position(|(of, _)| *of == cpu);
        let read = read.and_then(|at| epochs.remove(at));
        read.is_some_and(|(_, epoch)| epoch != c.epoch)
    }

    /// A CPU wants a number.
    fn attend(&mut self, by: Caller, epochs: &mut VecDeque<(usize, u32)>) {
        let several = self.claims.len() > 1;
        let c = &mut self.claims[by.cpu];
        let base = by.epoch.wrapping_sub(c.switches);
        let moved = c.base.replace(base).is_some_and(|known| known != base);
        let idle = by.time.saturating_sub(c.time) >= CLAIM_NS;
        if several && (idle || c.epoch != by.epoch) {
            c.held.clear();
        }
        (c.epoch, c.time) = (by.epoch, by.time);
        if moved {
            self.misplaced(format!(
                "CPU {} has switched as often as was not observed",
                by.cpu
            ));
        }
        if self.is_seated(by.cpu) {
            return;
        }
        if !self.queue.contains(&by.cpu) {
            self.queue.push_back(by.cpu);
        }
        for _ in 0..LOOK {
            let Some(&next) = self.queue.front() else {
                return;
            };
            if next != by.cpu && self.is_over(next, by.time, epochs) {
                self.queue.pop_front();
                continue;
            }
            let turn = self.turn;
            self.turn = (turn + 1) % self.seats.len();
            if let Some(holder) = self.seats[turn] {
                let served = self.claims[holder].used >= TERM * self.shape.first;
                if !served && !self.is_over(holder, by.time, epochs) {
                    continue;
                }
                self.claims[holder].held.clear();
            }
            self.queue.pop_front();
            self.seats[turn] = Some(next);
            self.claims[next].used = 0;
        }
    }

    /// Predicts the result of a reservation by a CPU, and which members of first segments are
    /// renewed for it.
    fn foresee(&self, by: Caller, epochs: &mut VecDeque<(usize, u32)>) -> (Vec<u64>, Foreseen) {
        let held = &self.claims[by.cpu].held;
        let leaves = held
            .front()
            .filter(|_| held.len() == self.shape.first)
            .copied();
        let mut renewed = Vec::new();
        let Some(tail) = (self.places.len() as u64).checked_sub(self.n) else {
            return (renewed, Foreseen::Go(None));
        };
        for ordinal in tail.. {
            let state = self.place(ordinal).map(|p| p.state);
            let claimed =
                |epochs: &mut _| Some(ordinal) != leaves && self.is_first(ordinal, by.time, epochs);
            let found = match state {
                Some(State::Live) if claimed(epochs) => {
                    renewed.push(ordinal);
                    continue;
                }
                Some(State::Live) if self.shape.clock => Foreseen::Hand(ordinal),
                Some(State::Live) => Foreseen::Go(Some(ordinal)),
                Some(State::Reserved) => Foreseen::InFlight,
                Some(State::Closed | State::Aborted) | None => Foreseen::Go(None),
            };
            return (renewed, found);
        }
        (renewed, Foreseen::Go(None))
    }

    fn is_first(&self, ordinal: u64, time: u64, epochs: &mut VecDeque<(usize, u32)>) -> bool {
        let holder = self.claims.iter().position(|c| c.held.contains(&ordinal));
        holder.is_some_and(|cpu| !self.is_over(cpu, time, epochs))
    }

    /// A number is wanted. `None` if the kernel has not given what is due: it may
    /// have no room for a record, or no trace any more.
    fn reserve(
        &mut self,
        by: Caller,
        r: u64,
        epochs: &mut VecDeque<(usize, u32)>,
        word: Word<'_>,
    ) -> Option<Answer> {
        self.reserve_at(by, r, Some(r + R_ORDINAL), epochs, word)
    }

    /// The same; the number is to be found at an address, if there was room.
    fn reserve_at(
        &mut self,
        by: Caller,
        r: u64,
        number: Option<u64>,
        epochs: &mut VecDeque<(usize, u32)>,
        word: Word<'_>,
    ) -> Option<Answer> {
        if self.sealed {
            return Some(Answer::Off);
        }
        let cpu = by.cpu;
        self.attend(by, epochs);
        let (renewed, foreseen) = self.foresee(by, epochs);
        let given = match foreseen {
            Foreseen::InFlight => true,
            Foreseen::Hand(ordinal) => number.is_some() && word(r + R_VICTIM_ORDINAL) == ordinal,
            Foreseen::Go(_) => {
                let next = (self.places.len() + renewed.len()) as u64;
                number.is_some_and(|at| word(at) == next)
            }
        };
        if !given {
            return None;
        }
        for ordinal in renewed {
            self.renew(ordinal, RENEWED, Bits::default());
        }
        let victim = match foreseen {
            Foreseen::InFlight => return Some(Answer::Full),
            Foreseen::Hand(_) => return Some(Answer::Hand),
            Foreseen::Go(victim) => victim,
        };
        let ordinal = self.places.len() as u64;
        self.places.push(Place::reserved(victim));
        if self.is_seated(cpu) {
            let c = &mut self.claims[cpu];
            c.held.push_back(ordinal);
            if c.held.len() > self.shape.first {
                c.held.pop_front();
            }
            c.used += 1;
        }
        let first = &mut self.firsts[cpu];
        first.push_back(ordinal);
        let passes = if first.len() > self.shape.first {
            first.pop_front()
        } else {
            None
        };
        let passes = passes
            .filter(|p| self.shape.sweeps() && victim != Some(*p))
            .filter(|p| self.is_live(*p));
        self.due.extend(victim.map(|v| (v, Some(ordinal))));
        self.places[ordinal as usize].passes = passes;
        Some(Answer::Go)
    }

    /// What a reservation must name, if it has a number: the victim and what passes.
    fn compare_names(&mut self, cpu: usize, r: u64, answer: Option<Answer>, word: Word<'_>) {
        let Some(ordinal) = (self.places.len() as u64).checked_sub(1) else {
            return;
        };
        if answer != Some(Answer::Go) {
            return;
        }
        let mut named = |mm: u64, ordinal: u64| (word(r + mm) != 0).then(|| word(r + ordinal));
        let got = [
            named(R_VICTIM, R_VICTIM_ORDINAL),
            named(R_PASSED, R_PASSED_ORDINAL),
        ];
        let place = &self.places[ordinal as usize];
        let must = [place.victim, place.passes];
        if got != must {
            self.misplaced(format!(
                "number {ordinal} on CPU {cpu}: the victim and what passes are {got:?} and must \
                 be {must:?}"
            ));
            // Go on with what there is.
            self.due.extend(got[0].map(|v| (v, Some(ordinal))));
            self.places[ordinal as usize].victim = got[0];
        }
    }

    fn hand(
        &mut self,
        by: Caller,
        r: u64,
        ordinal: u64,
        may: bool,
        pending: &mut Pending,
        word: Word<'_>,
    ) -> Option<Answer> {
        let cpu = by.cpu;
        if self.sealed {
            return Some(Answer::Off);
        }
        if !self.is_live(ordinal) {
            return Some(Answer::Again);
        }
        let place = self.places[ordinal as usize];
        if may && place.swept {
            // Without room for a record, it does not look.
            let bits = Bits::new(word(pending.swept?));
            let used = self.swept(cpu);
            if bits.young || place.aged {
                self.renew(ordinal, CHANCE, bits);
                if let Some(next) = self.places.last_mut() {
                    next.may_be_seen = used;
                }
                if bits.young {
                    let stale = Stale::Swept(self.places.len() as u64 - 1);
                    self.open_window(cpu, place.stay.page, stale);
                }
                return Some(Answer::Again);
            }
        }
        let Some(last) = pending.taken.first().and_then(|t| t.last) else {
            self.misplaced(format!("{:?} must be disabled, and is not", place.stay));
            return Some(Answer::Again);
        };
        self.finish(ordinal, EVICTED, last);
        self.ended(place.stay.page, None);
        let answer = self.reserve(by, r, &mut pending.epochs, word);
        self.open_window(cpu, place.stay.page, Stale::Gone(place.stay.page));
        answer
    }

    fn sweep(&mut self, cpu: usize, ordinal: u64) {
        if !self.is_live(ordinal) {
            return;
        }
        let used = self.swept(cpu);
        let p = &mut self.places[ordinal as usize];
        (p.swept, p.aged, p.seen, p.may_be_seen) = (true, false, false, used);
        let page = p.stay.page;
        self.open_window(cpu, page, Stale::Swept(ordinal));
    }

    fn shrink(&mut self, n: u64, epochs: &mut VecDeque<(usize, u32)>) {
        self.seat_all(n);
        while self.n > n {
            let Some(tail) = (self.places.len() as u64).checked_sub(self.n) else {
                self.n = n.max(self.places.len() as u64);
                continue;
            };
            match self.places[tail as usize].state {
                State::Live if self.is_first(tail, 0, epochs) => {
                    self.renew(tail, RENEWED, Bits::default());
                }
                State::Live => {
                    self.due.insert(tail, None);
                    return;
                }
                State::Reserved => return,
                State::Closed | State::Aborted => self.n -= 1,
            }
        }
    }

    /// What `vmtrace_rs_admit_locked()` has done. The answer is known already.
    fn admit_locked(
        &mut self,
        by: Caller,
        stack: u64,
        l: u64,
        pending: &mut Pending,
        word: Word<'_>,
    ) {
        let answer = Answer::new(word(l + L_ANSWER) & u64::from(u32::MAX));
        let [mm, page, ids] = [A_MM, A_PAGE, A_MM_ID].map(|at| word(l + at));
        let page = Page {
            mm: ids as u32,
            addr: page & PAGE_MASK,
        };
        if answer == Some(Answer::Off) {
            // The trace is over, unless the address space is of an earlier one.
            self.sealed |= self.spaces.number(mm) == Some(page.mm);
            return;
        }
        let r = l + L_R;
        let number = match answer {
            Some(Answer::Go | Answer::Changed) => Some(l + A_ORDINAL),
            Some(Answer::Full) => None,
            _ => Some(r + R_ORDINAL),
        };
        let foreseen = self.reserve_at(by, r, number, &mut pending.epochs, word);
        let ordinal = (self.places.len() as u64).wrapping_sub(1);
        let place = self.place(ordinal).filter(|_| foreseen == Some(Answer::Go));
        let (victim, passes) = place.map_or((None, None), |p| (p.victim, p.passes));
        let may = match answer {
            Some(Answer::Go) => passes.is_none(),
            // Whether the mappings were changed is the kernel's own affair.
            Some(Answer::Changed) => passes.is_none() && word(l + L_LOCK_SEQ) != 0,
            // And whether another page table's lock was free.
            Some(Answer::Far) => passes.is_some() || victim.is_some_and(|v| !self.is_at(v, page)),
            _ => false,
        };
        if !may || foreseen != Some(Answer::Go) {
            self.compare(answer, foreseen.filter(|f| *f != Answer::Go));
            return;
        }
        if answer == Some(Answer::Far) {
            self.compare_names(by.cpu, r, foreseen, word);
            return;
        }
        if let Some(victim) = victim {
            let eviction = Eviction {
                ordinal: victim,
                why: EVICTED,
                now: by.time,
                end: ordinal,
            };
            self.evict(by.cpu, eviction, pending);
        } else if !pending.taken.is_empty() {
            self.misplaced(format!(
                "number {ordinal} has no victim, and disables a page"
            ));
        }
        if answer == Some(Answer::Changed) {
            self.counts.aborts += 1;
            self.places[ordinal as usize].state = State::Aborted;
            return;
        }
        self.admit(by.cpu, stack, l, word);
        // It has the last number there is, so nothing can have come between.
        if let Some(a) = self.admitted.remove(&stack) {
            if a.ordinal != ordinal || a.overtaken {
                self.misplaced(format!("number {} and not {ordinal} is given", a.ordinal));
            }
        }
    }

    /// Whether the page of a stay is in the page table that a page is in.
    fn is_at(&self, ordinal: u64, page: Page) -> bool {
        let place = self.place(ordinal);
        place.is_some_and(|p| p.stay.page.is_near(page))
    }

    fn admit(&mut self, cpu: usize, stack: u64, a: u64, word: Word<'_>) {
        let [ordinal, page, mm] = [A_ORDINAL, A_PAGE, A_MM].map(|at| word(a + at));
        let (ids, pfn) = (word(a + A_MM_ID), word(a + A_PFN) as u32);
        let was_dirty = word(a + A_WAS_DIRTY) & 0xff != 0;
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
        {
            self.counts.unfounded += 1;
            self.note(format!(
                "on CPU {cpu} {stay:?} begins for {who:?}, and the fault there is {attempt:?}"
            ));
        }
        match self.place(ordinal) {
            Some(p) if p.state == State::Reserved => {
                if let Some(victim) = p.victim.filter(|v| self.due.contains_key(v)) {
                    self.misplaced(format!("number {ordinal} is live before {victim} went"));
                }
            }
            other => {
                let text = format!("number {ordinal} is given to a page: {other:?}");
                self.misplaced(text);
                return;
            }
        }
        let ended = self.ended.get(&stay.page).copied().unwrap_or_default();
        let admitted = Admitted {
            ordinal,
            page: stay.page,
            overtaken: ordinal < self.drop_logged.max(ended),
        };
        self.admitted.insert(stack, admitted);
        let before = self.members.insert(stay.page, ordinal);
        if let Some(before) = before {
            self.misplaced(format!("{:?} is a member already: {before}", stay.page));
        }
        let p = &mut self.places[ordinal as usize];
        *p = Place {
            state: State::Live,
            stay,
            who,
            was_dirty,
            ..*p
        };
        if self.members.len() as u64 > self.n {
            self.misplaced(format!("{} pages are members", self.members.len()));
        }
    }

    /// A page's stay ends at a number, or after all numbers there are; or the page is dropped. An
    /// admission with a smaller number would be of a time before that.
    fn ended(&mut self, page: Page, number: Option<u64>) {
        let number = number.unwrap_or(self.places.len() as u64);
        let before = self.ended.entry(page).or_default();
        *before = number.max(*before);
    }

    fn evict(&mut self, cpu: usize, e: Eviction, pending: &mut Pending) {
        let Eviction { ordinal, why, .. } = e;
        let named = self.due.remove(&ordinal);
        if !self.is_live(ordinal) {
            // The function that came first has ended the stay.
            return;
        }
        if named.is_none() && why == EVICTED || why != EVICTED && !self.sealed {
            self.misplaced(format!("number {ordinal} is disabled out of its turn"));
        }
        if pending.taken.is_empty() {
            self.misplaced(format!("number {ordinal} has no page table any more"));
            return;
        }
        let mut all = vec![ordinal];
        // What makes room for no admission has no batch.
        if e.end != END_NOW {
            all.extend(self.others(e, &mut pending.epochs));
        }
        let entry = |o: &u64| self.places[*o as usize].stay.page.addr >> 12 & (ENTRIES - 1);
        let must: Vec<_> = all.iter().map(entry).collect();
        let taken: Vec<_> = pending.taken.iter().map(|t| t.entry).collect();
        if taken != must {
            self.misplaced(format!(
                "with number {ordinal}, which must be disabled as {all:?}, in the entries {must:?} \
                 of its page table, the entries {taken:?} are disabled"
            ));
        }
        // Not what the victim was named for: a change of N may have named it before an admission
        // did, and evict it after that.
        let number = (e.end != END_NOW).then_some(e.end);
        for (ordinal, taken) in all.into_iter().zip(&pending.taken) {
            self.finish(ordinal, why, taken.last.unwrap_or_default());
            let page = self.places[ordinal as usize].stay.page;
            self.ended(page, number);
            self.open_window(cpu, page, Stale::Gone(page));
        }
    }

    /// The members that go with a victim: some of those that come next.
    fn others(&mut self, e: Eviction, epochs: &mut VecDeque<(usize, u32)>) -> Vec<u64> {
        let cpus = self.claims.len();
        let batch = self.shape.batch_of(self.n as usize, cpus) as u64;
        let victim = self.places[e.ordinal as usize].stay.page;
        // The set may have grown since the number was taken.
        let kept = (self.shape.least(cpus) as u64).saturating_sub(1);
        let next = e.ordinal + 1..(e.ordinal + batch).min(e.end.saturating_sub(kept));
        let goes = |o: &u64| {
            let near = self.place(*o).is_some_and(|p| p.stay.page.is_near(victim));
            near && self.is_live(*o) && !self.is_first(*o, e.now, epochs)
        };
        let others: Vec<_> = next.filter(goes).collect();
        self.counts.batched += others.len() as u64;
        others
    }

    fn close(&mut self, cpu: usize, page: Page, last: u64, why: Why) {
        self.counts.closings += 1;
        match self.find(page) {
            Some(ordinal) => {
                self.ended(page, None);
                self.due.remove(&ordinal);
                self.finish(ordinal, why, Bits::new(last));
                self.open_window(cpu, page, Stale::Gone(page));
            }
            None if self.sealed => {}
            None => {
                self.counts.foreign_closings += 1;
                self.note(format!(
                    "the enabled PTE of {:#x} in mm {} is cleared, and the page is no member",
                    page.addr, page.mm
                ));
            }
        }
    }

    /// Gives a member a new number.
    fn renew(&mut self, ordinal: u64, why: Why, bits: Bits) {
        let old = self.places[ordinal as usize];
        self.finish(ordinal, why, bits);
        let to = self.places.len() as u64;
        let chance = why == CHANCE;
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
        self.places.push(Place {
            stay,
            was_dirty: old.was_dirty || bits.dirty,
            quiet: old.quiet || chance && bits.dirty,
            aged: false,
            seen: false,
            // All evidence about a stay is passed on to its renewal.
            may_be_seen: !chance && (old.seen || old.may_be_seen),
            stored: old.stored && !chance,
            may_be_dirty: old.may_be_dirty && !chance,
            victim: None,
            ..old
        });
        self.members.insert(old.stay.page, to);
        self.recent = [None; 64];
        if chance {
            self.counts.chances += 1;
            return;
        }
        self.counts.renewed += 1;
        let held = self.claims.iter_mut().map(|c| &mut c.held);
        let lists = self.firsts.iter_mut().chain(held);
        for place in lists.flatten().filter(|p| **p == ordinal) {
            *place = to;
        }
    }

    /// Ends a member's stay. Its record must agree with the accesses.
    fn finish(&mut self, ordinal: u64, why: Why, bits: Bits) {
        let p = &mut self.places[ordinal as usize];
        p.state = State::Closed;
        p.stay.why = why;
        p.stay.dirtied |= bits.dirty && !p.was_dirty;
        p.stay.again = p.swept && (bits.young || p.aged);
        let mut p = *p;
        self.members.remove(&p.stay.page);
        self.recent = [None; 64];

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
        } else if told && p.swept && p.seen && !p.stay.again {
            let text = "a reference in the second segment is not told";
            self.mistold(ordinal, p.stay, text);
        } else if let Some((text, store)) = unfounded {
            let cpus = (1 << self.firsts.len()) - 1;
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

/// How many CPUs have a first segment at a time in a set of `n`; 0: each.
fn seats(shape: &Shape, n: u64, cpus: usize) -> usize {
    let n = n as usize;
    if cpus <= 1 || n >= 2 * shape.first * cpus {
        return 0;
    }
    (n / shape.first / 8).max(1)
}

impl Place {
    fn reserved(victim: Option<u64>) -> Self {
        Place {
            state: State::Reserved,
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
            victim,
            passes: None,
            was_dirty: false,
            quiet: false,
            swept: false,
            aged: false,
            stored: false,
            may_be_dirty: false,
            seen: false,
            may_be_seen: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::{PF_USER, PF_WRITE};
    use Answer::{Again, Changed, Far, Full, Go, Hand, Off};

    const STACKS: [u64; 2] = [0xffff_8880_0000_4000, 0xffff_8880_0000_8000];
    const MM: u64 = 0xffff_8880_1234_5000;
    const CR3: u64 = 0x1000_0000;
    const PC: u64 = 0x40_0000;
    /// Where the kernel's structures lie.
    const R: u64 = 0x1000;
    const A: u64 = 0x2000;
    const LAST: u64 = 0x3000;
    const L: u64 = 0x4000;

    /// Two CPUs that run the address space 1, and the kernel's part.
    struct Guest {
        replay: Replay,
        words: HashMap<u64, u64>,
        /// Numbers that the kernel has given.
        head: u64,
        /// What the other CPU does before a sweep drops the lock.
        meanwhile: Option<fn(&mut Guest, usize)>,
    }

    fn guest(size: usize, clock: bool) -> Guest {
        guest_with(Shape {
            first: 1,
            again: clock,
            clock,
            ..Shape::fifo(size)
        })
    }

    fn guest_with(shape: Shape) -> Guest {
        let mut replay = Replay::new(shape, 2);
        for cpu in 0..2 {
            replay.spaces().switching(cpu, MM);
            replay.spaces().table_loaded(cpu, CR3);
        }
        replay.begin();
        replay.spaces().comes(STACKS[0], MM, false);
        replay.space_numbered(STACKS[0]);
        Guest {
            replay,
            words: HashMap::new(),
            head: 0,
            meanwhile: None,
        }
    }

    fn page(n: u64) -> Page {
        Page {
            mm: 1,
            addr: n << 12,
        }
    }

    impl Guest {
        /// Does something under the lock, after which these words are there.
        fn act(&mut self, cpu: usize, op: Op, words: &[(u64, u64)]) {
            self.words.extend(words.iter().copied());
            self.replay.enter(STACKS[cpu], op);
            match op {
                Op::Evict { ordinal, .. } => {
                    let place = self.replay.place(ordinal);
                    let page = place.map_or(0, |p| p.stay.page.addr >> 12);
                    self.take(cpu, page);
                }
                Op::Sweep { .. } => {
                    self.replay.pte_swept(cpu, STACKS[cpu], LAST);
                    if let Some(meanwhile) = self.meanwhile.take() {
                        meanwhile(self, 1 - cpu);
                    }
                }
                Op::Hand { .. } => {
                    self.replay.pte_swept(cpu, STACKS[cpu], LAST);
                    self.take(cpu, 1);
                }
                _ => {}
            }
            self.unlock(cpu);
        }

        fn unlock(&mut self, cpu: usize) {
            let words = &self.words;
            self.replay.unlock(cpu, STACKS[cpu], &mut |at| {
                words.get(&at).copied().unwrap_or(0)
            });
        }

        /// Disables the entry of a page, which has the bits that are there.
        fn take(&mut self, cpu: usize, n: u64) {
            let ptep = 0xffff_8880_0123_4000 + n % ENTRIES * 8;
            self.replay.pte_taken(STACKS[cpu], ptep);
            let bits = Bits::new(self.words[&LAST]);
            let pte = [(bits.young, PTE_ACCESSED), (bits.dirty, PTE_DIRTY)];
            let pte = pte.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum();
            self.replay.pte_took(STACKS[cpu], pte);
        }

        fn fault(&mut self, cpu: usize, n: u64, code: u64) {
            let fault = Fault {
                stack: STACKS[cpu],
                addr: n << 12 | 8,
                code,
                cr3: CR3,
                ip: PC,
            };
            self.replay.fault(cpu, &fault);
            let write = if code & PF_WRITE != 0 { FLAG_WRITE } else { 0 };
            self.replay
                .handling(cpu, STACKS[cpu], fault.addr, write, true);
        }

        /// A number, with the victim and what passes.
        fn reserve(&mut self, cpu: usize, victim: Option<u64>, passes: Option<u64>) -> u64 {
            let words = self.named(victim, passes);
            self.act(cpu, Op::Reserve { r: R, epoch: 0 }, &words);
            self.answer(cpu, Go);
            self.head += 1;
            self.head - 1
        }

        fn named(&self, victim: Option<u64>, passes: Option<u64>) -> Vec<(u64, u64)> {
            vec![
                (R + R_VICTIM, u64::from(victim.is_some())),
                (R + R_VICTIM_ORDINAL, victim.unwrap_or(77)),
                (R + R_PASSED, u64::from(passes.is_some())),
                (R + R_PASSED_ORDINAL, passes.unwrap_or(77)),
                (R + R_ORDINAL, self.head),
            ]
        }

        fn answer(&mut self, cpu: usize, answer: Answer) {
            self.replay.answered(STACKS[cpu], answer as u64);
        }

        fn admit(&mut self, cpu: usize, ordinal: u64, n: u64, write: bool) {
            self.admit_answered(cpu, ordinal, n, write, 7);
        }

        fn admit_answered(&mut self, cpu: usize, ordinal: u64, n: u64, write: bool, answer: u64) {
            let words = Self::admission(A, cpu, ordinal, n, write);
            self.act(cpu, Op::Admit { a: A }, &words);
            self.replay.admitted(STACKS[cpu], answer);
            self.replay.handled(STACKS[cpu]);
        }

        fn admission(a: u64, cpu: usize, ordinal: u64, n: u64, write: bool) -> [(u64, u64); 6] {
            let flags = if write { 1 | REF_DIRTIED } else { 0 };
            let tid = 100 + cpu as u64;
            [
                (a + A_ORDINAL, ordinal),
                (a + A_MM, MM),
                (a + A_PAGE, n << 12 | flags),
                (a + A_MM_ID, 1 | (tid | (cpu as u64) << TID_BITS) << 32),
                (a + A_PFN, 0x500 + n),
                (a + A_WAS_DIRTY, 0),
            ]
        }

        /// A read fault's admission in one go, with these pages disabled, which were clean.
        fn admit_locked(
            &mut self,
            cpu: usize,
            n: u64,
            victim: Option<u64>,
            disabled: &[u64],
            answer: Answer,
        ) -> u64 {
            self.fault(cpu, n, PF_USER);
            let words = Self::admission(L, cpu, self.head, n, false);
            self.words.extend(words);
            let named = self.named(victim, None);
            self.words
                .extend(named.iter().map(|(at, word)| (at - R + L + L_R, *word)));
            self.words.insert(L + L_ANSWER, answer as u64);
            self.words.insert(LAST, 0);
            self.replay
                .enter(STACKS[cpu], Op::AdmitLocked { l: L, epoch: 0 });
            for n in disabled {
                self.take(cpu, *n);
            }
            self.unlock(cpu);
            self.replay.flush_done(cpu);
            self.replay.handled(STACKS[cpu]);
            self.head += 1;
            self.head - 1
        }

        /// Evicts, with these bits of the PTE.
        fn evict(&mut self, cpu: usize, ordinal: u64, last: u64) {
            let op = eviction(ordinal, EVICTED);
            self.act(cpu, op, &[(LAST, last)]);
        }

        /// Evicts a victim for the number `end`, with these pages and bits of their PTEs, the
        /// victim's first.
        fn evict_batch(&mut self, cpu: usize, ordinal: u64, end: u64, pages: &[(u64, u64)]) {
            let op = Op::Evict {
                ordinal,
                why: EVICTED,
                now: 0,
                end,
            };
            self.replay.enter(STACKS[cpu], op);
            for &(n, last) in pages {
                self.words.insert(LAST, last);
                self.take(cpu, n);
            }
            self.words.insert(LAST, DIRTY);
            self.unlock(cpu);
        }

        /// All of a read fault's admission.
        fn read(&mut self, cpu: usize, n: u64) -> u64 {
            self.fault(cpu, n, PF_USER);
            let ordinal = self.reserve(cpu, None, None);
            self.admit(cpu, ordinal, n, false);
            self.touch(cpu, n);
            ordinal
        }

        fn touch(&mut self, cpu: usize, n: u64) {
            self.replay.access(cpu, PC, n << 12, 8, false);
        }

        fn store(&mut self, cpu: usize, n: u64) {
            self.replay.access(cpu, PC, n << 12, 8, true);
        }

        /// Counts of violations, in the order of their names in [`Counts`].
        fn wrong(&self) -> [u64; 6] {
            let c = &self.replay.counts;
            [
                c.escaped,
                c.foreign_closings,
                c.unfounded,
                c.misplaced,
                c.mistold + self.replay.suspects.len() as u64,
                c.confused,
            ]
        }

        fn end(mut self) -> Log {
            self.replay.seal();
            for ordinal in 0..self.head {
                let op = eviction(ordinal, DRAINED);
                self.act(0, op, &[(LAST, 0)]);
            }
            self.replay.end().unwrap()
        }
    }

    fn eviction(ordinal: u64, why: Why) -> Op {
        Op::Evict {
            ordinal,
            why,
            now: 0,
            end: END_NOW,
        }
    }

    /// Pages 1 and 2 are members of a full set of two, and 3 is admitted on CPU 1 in
    /// the place of 1, which CPU 0 has been using.
    fn full() -> Guest {
        let mut g = guest(2, false);
        g.read(0, 1);
        g.read(1, 2);
        // 1 is CPU 0's first segment, so it is renewed; its turn would be 2's, which
        // CPU 1 gives up for this one.
        g.fault(1, 3, PF_USER);
        g.head += 1;
        g
    }

    #[test]
    fn the_first_segment_of_another_cpu_is_renewed() {
        let mut g = full();
        let ordinal = g.reserve(1, Some(1), None);
        g.evict(1, 1, 0);
        g.admit(1, ordinal, 3, false);
        g.touch(0, 1);
        g.touch(1, 3);
        assert_eq!(g.wrong(), [0; 6]);
        let log = g.end();
        let told: Vec<_> = log
            .stays
            .iter()
            .zip(&log.whos)
            .map(|(s, w)| (s.page.addr >> 12, s.goes_on, s.why, w.cpu, w.tid, w.pfn))
            .collect();
        assert_eq!(
            told,
            [
                (1, false, RENEWED, 0, 100, 0x501),
                (2, false, EVICTED, 1, 101, 0x502),
                (1, true, DRAINED, 0, 100, 0x501),
                (3, false, DRAINED, 1, 101, 0x503),
            ]
        );
        assert_eq!(log.counts.violations(), 0);
    }

    #[test]
    fn an_admission_in_one_go_is_as_one_in_steps() {
        let mut g = full();
        // CPU 1's fault on page 3 is that of full().
        let ordinal = g.admit_locked(1, 3, Some(1), &[2], Go);
        g.touch(1, 3);
        g.touch(0, 1);
        assert_eq!((ordinal, g.wrong()), (3, [0; 6]));
        assert_eq!(g.replay.counts.granted, 3);
        let log = g.end();
        let told = log.stays.iter().zip(&log.whos);
        let told: Vec<_> = told
            .map(|(s, w)| (s.page.addr >> 12, s.why, w.pfn))
            .collect();
        assert_eq!(
            told,
            [
                (1, RENEWED, 0x501),
                (2, EVICTED, 0x502),
                (1, DRAINED, 0x501),
                (3, DRAINED, 0x503),
            ]
        );
        assert_eq!(log.counts.violations(), 0);
    }

    #[test]
    fn an_admission_in_one_go_disables_its_victim() {
        // Page 515 is in another page table than page 2, whose lock may be free or not.
        for (n, disabled, answer, wrong) in [
            (3, &[2][..], Go, 0),
            (3, &[], Go, 1),
            (3, &[1], Go, 1),
            (3, &[], Far, 1),
            (515, &[2], Go, 0),
            (515, &[], Go, 1),
            (515, &[], Far, 0),
            (3, &[], Full, 0),
            (3, &[2], Hand, 1),
        ] {
            let mut g = full();
            g.admit_locked(1, n, Some(1), disabled, answer);
            let misplaced = g.wrong()[3];
            assert_eq!(misplaced != 0, wrong != 0, "{n} {disabled:?} {answer:?}");
        }
    }

    #[test]
    fn an_admission_whose_victim_is_elsewhere_goes_on_in_steps() {
        let mut g = full();
        let ordinal = g.admit_locked(1, 515, Some(1), &[], Far);
        assert!(g.replay.is_live(1));
        // Early: the victim is still there.
        assert_eq!(g.wrong(), [0; 6]);
        g.evict(1, 1, 0);
        g.fault(1, 515, PF_USER);
        g.admit(1, ordinal, 515, false);
        g.touch(1, 515);
        assert_eq!(g.wrong(), [0; 6]);
        assert_eq!(g.end().counts.violations(), 0);
    }

    #[test]
    fn an_admission_in_one_go_sweeps_nothing() {
        for (answer, wrong) in [(Far, 0), (Go, 1)] {
            let mut g = guest_with(Shape {
                first: 1,
                again: true,
                ..Shape::fifo(4)
            });
            g.read(0, 1);
            g.words.insert(L + L_R + R_PASSED, 1);
            g.words.insert(L + L_R + R_PASSED_ORDINAL, 0);
            let named = |g: &mut Guest| g.named(None, Some(0));
            let words = named(&mut g);
            g.fault(0, 2, PF_USER);
            g.words.extend(Guest::admission(L, 0, 1, 2, false));
            g.words
                .extend(words.iter().map(|(at, word)| (at - R + L + L_R, *word)));
            g.words.insert(L + L_ANSWER, answer as u64);
            g.replay
                .enter(STACKS[0], Op::AdmitLocked { l: L, epoch: 0 });
            g.unlock(0);
            assert_eq!(g.wrong(), [0, 0, 0, wrong, 0, 0], "{answer:?}");
        }
    }

    #[test]
    fn what_gives_up_in_one_go_must_have_looked_at_the_lock() {
        for (looked, wrong) in [(true, 0), (false, 1)] {
            let mut g = full();
            g.words.insert(L + L_LOCK_SEQ, u64::from(looked));
            g.admit_locked(1, 3, Some(1), &[2], Changed);
            assert_eq!(g.wrong(), [0, 0, 0, wrong, 0, 0], "{looked}");
            assert_eq!(g.replay.counts.aborts, 1 - wrong);
            // It is no member.
            g.touch(1, 3);
            assert_eq!(g.wrong()[0], 1);
            // The victim has gone if the answer is right.
            assert_eq!(g.replay.is_live(1), wrong == 1);
            assert!(!g.replay.is_live(3));
        }
    }

    #[test]
    fn an_admission_in_one_go_after_the_end_seals() {
        let mut g = full();
        g.words.insert(L + A_MM, MM + 64);
        g.admit_locked(1, 3, None, &[], Off);
        assert!(g.replay.sealed);
        let mut g = full();
        let words = Guest::admission(L, 1, 0, 3, false);
        g.words.extend(words);
        g.words.insert(L + A_MM, MM + 64);
        g.words.insert(L + L_ANSWER, Off as u64);
        g.replay
            .enter(STACKS[1], Op::AdmitLocked { l: L, epoch: 0 });
        g.unlock(1);
        // Of another trace.
        assert!(!g.replay.sealed);
    }

    #[test]
    fn another_victim_is_a_violation() {
        for victim in [None, Some(0), Some(2)] {
            let mut g = full();
            g.reserve(1, victim, None);
            assert_eq!(g.wrong(), [0, 0, 0, 1, 0, 0], "{victim:?}");
        }
    }

    #[test]
    fn a_victim_that_stays_is_a_violation() {
        let mut g = full();
        let ordinal = g.reserve(1, Some(1), None);
        g.admit(1, ordinal, 3, false);
        // The page is a member too early, so the set has three members.
        assert_eq!(g.wrong(), [0, 0, 0, 2, 0, 0]);
    }

    #[test]
    fn until_the_flush_an_evicted_page_may_be_used_elsewhere() {
        type Act = fn(&mut Guest);
        let acts: [(Act, u64); 7] = [
            (|_| {}, 0),
            // Its own flush, of this page and of another one.
            (|g| g.replay.flushed(0, Some(0x2fff)), 1),
            (|g| g.replay.flushed(0, Some(0x3000)), 0),
            (|g| g.replay.flushed(0, None), 1),
            (|g| g.replay.flush_done(1), 1),
            // The other CPU goes on without a flush.
            (|g| g.replay.fetch(1, 0x5000), 2),
            (
                |g| {
                    g.act(
                        1,
                        Op::Aged {
                            page: page(9),
                            young: false,
                        },
                        &[],
                    )
                },
                1,
            ),
        ];
        for (i, (act, escaped)) in acts.into_iter().enumerate() {
            let mut g = full();
            g.touch(0, 2);
            g.reserve(1, Some(1), None);
            g.evict(1, 1, 0);
            act(&mut g);
            g.touch(0, 2);
            assert_eq!(g.wrong(), [escaped, 0, 0, 0, 0, 0], "act {i}");
            let late = u64::from(escaped == 0);
            assert_eq!((g.replay.counts.late, g.replay.counts.stale), (late, late));
        }
    }

    #[test]
    fn an_admission_must_be_what_faulted() {
        type Change = fn(&mut Guest);
        let changes: [(Change, u64); 5] = [
            (|g| g.fault(0, 1, PF_USER), 0),
            (|g| g.fault(0, 1, PF_USER | PF_WRITE), 1),
            (|g| g.fault(0, 1, 0), 1),
            (|g| g.fault(0, 2, PF_USER), 1),
            (|g| g.fault(1, 1, PF_USER), 1),
        ];
        for (i, (fault, unfounded)) in changes.into_iter().enumerate() {
            let mut g = guest(4, false);
            fault(&mut g);
            let ordinal = g.reserve(0, None, None);
            g.admit(0, ordinal, 1, false);
            assert_eq!(g.wrong(), [0, 0, unfounded, 0, 0, 0], "change {i}");
        }
    }

    #[test]
    fn a_page_that_came_and_went_is_not_admitted_late() {
        // The page that CPU 0 has a number for, whether page 1 has been evicted when CPU 0 goes
        // on, the answer, and what is wrong.
        let cases = [
            (1, true, NO_SEQ, 0),
            (1, true, 7, 1),
            (9, true, NO_SEQ, 1),
            (9, true, 7, 0),
            (9, false, NO_SEQ, 1),
            (9, false, 7, 0),
        ];
        for (n, evicted, answer, misplaced) in cases {
            let mut g = guest(4, false);
            g.fault(1, 1, PF_USER);
            let early = g.reserve(1, None, None);
            g.fault(0, n, PF_USER);
            let late = g.reserve(0, None, None);
            g.admit(1, early, 1, false);
            g.read(1, 2);
            g.read(1, 3);
            g.fault(1, 4, PF_USER);
            let next = g.reserve(1, Some(early), None);
            if evicted {
                g.evict(1, early, 0);
                g.replay.flush_done(1);
            }
            g.admit_answered(0, late, n, false, answer);
            assert_eq!(
                g.wrong(),
                [0, 0, 0, misplaced, 0, 0],
                "{n}, {evicted}, {answer:#x}"
            );
            if evicted {
                g.admit(1, next, 4, false);
                assert_eq!(g.wrong(), [0, 0, 0, misplaced, 0, 0]);
            }
        }
    }

    #[test]
    fn a_number_after_that_of_the_eviction_is_not_late() {
        let mut g = guest(4, false);
        for n in [1, 2, 3, 5] {
            g.read(1, n);
        }
        g.fault(1, 4, PF_USER);
        let next = g.reserve(1, Some(0), None);
        g.fault(0, 1, PF_USER);
        let after = g.reserve(0, Some(1), None);
        for (cpu, victim, end) in [(1, 0, next), (0, 1, after)] {
            g.evict_batch(cpu, victim, end, &[(victim + 1, 0)]);
            g.replay.flush_done(cpu);
        }
        g.admit(0, after, 1, false);
        g.admit(1, next, 4, false);
        assert_eq!(g.wrong(), [0; 6]);
    }

    #[test]
    fn a_page_that_went_by_the_hand_or_a_shrink_is_not_admitted_late() {
        for (answer, misplaced) in [(NO_SEQ, 0), (7, 1)] {
            let mut g = guest(4, false);
            g.fault(1, 1, PF_USER);
            let early = g.reserve(1, None, None);
            g.fault(0, 1, PF_USER);
            let late = g.reserve(0, None, None);
            g.admit(1, early, 1, false);
            g.read(1, 2);
            g.act(1, Op::Shrink { n: 2 }, &[]);
            g.evict(1, early, 0);
            g.replay.flush_done(1);
            g.admit_answered(0, late, 1, false, answer);
            assert_eq!(g.wrong(), [0, 0, 0, misplaced, 0, 0], "shrink, {answer:#x}");

            let mut g = guest(3, true);
            g.read(0, 1);
            g.fault(0, 2, PF_USER);
            let second = g.reserve(0, None, Some(0));
            g.act(0, Op::Sweep { ordinal: 0 }, &[(LAST, YOUNG)]);
            g.replay.flush_done(0);
            g.admit(0, second, 2, false);
            g.fault(1, 1, PF_USER);
            let late = g.reserve(1, None, None);
            g.fault(0, 4, PF_USER);
            let victim = [(R + R_VICTIM_ORDINAL, 0)];
            g.act(0, Op::Reserve { r: R, epoch: 0 }, &victim);
            g.answer(0, Hand);
            let hand = Op::Hand {
                r: R,
                ordinal: 0,
                may: true,
                epoch: 0,
            };
            let mut words = g.named(None, Some(second));
            words.push((LAST, 0));
            g.act(0, hand, &words);
            g.answer(0, Go);
            g.replay.flush_done(0);
            g.admit_answered(1, late, 1, false, answer);
            assert_eq!(g.wrong(), [0, 0, 0, misplaced, 0, 0], "hand, {answer:#x}");
        }
    }

    #[test]
    fn an_admission_that_is_overtaken_is_given_up() {
        // Which page another CPU has closed meanwhile, the answer, and what is wrong.
        let cases = [
            (Some(1), NO_SEQ, 0),
            (Some(1), 7, 1),
            (Some(2), NO_SEQ, 1),
            (Some(2), 7, 0),
            (None, NO_SEQ, 1),
            (None, 7, 0),
        ];
        // A page that is dropped, and is no member, is the same.
        for (dropped, answer, misplaced) in cases {
            let mut g = guest(4, false);
            g.fault(0, 1, PF_USER);
            let late = g.reserve(0, None, None);
            if let Some(n) = dropped {
                g.act(1, Op::Dropped { page: page(n) }, &[]);
            }
            g.admit_answered(0, late, 1, false, answer);
            assert_eq!(
                g.wrong(),
                [0, 0, 0, misplaced, 0, 0],
                "dropped {dropped:?}, {answer:#x}"
            );
        }
        // An event of dropped pages ends all admissions that have their numbers, and no later
        // ones.
        for (late_event, answer, misplaced) in [
            (true, NO_SEQ, 0),
            (true, 7, 1),
            (false, NO_SEQ, 1),
            (false, 7, 0),
        ] {
            let mut g = guest(4, false);
            g.fault(0, 1, PF_USER);
            if !late_event {
                g.act(1, Op::DropLogged, &[]);
            }
            let late = g.reserve(0, None, None);
            if late_event {
                g.act(1, Op::DropLogged, &[]);
            }
            g.admit_answered(0, late, 1, false, answer);
            assert_eq!(
                g.wrong(),
                [0, 0, 0, misplaced, 0, 0],
                "{late_event}, {answer:#x}"
            );
        }
        for (closed, answer, misplaced) in cases {
            let mut g = guest(4, false);
            g.fault(0, 1, PF_USER);
            let late = g.reserve(0, None, None);
            if let Some(n) = closed {
                g.read(1, n);
                let op = Op::Close {
                    page: page(n),
                    last: 0,
                    why: 1,
                };
                g.act(1, op, &[]);
                g.replay.flush_done(1);
            }
            g.admit_answered(0, late, 1, false, answer);
            assert_eq!(
                g.wrong(),
                [0, 0, 0, misplaced, 0, 0],
                "{closed:?}, {answer:#x}"
            );
            let refused = answer == NO_SEQ;
            if refused {
                g.act(0, Op::Abort { ordinal: late }, &[]);
            }
            // Only a member can be used.
            g.touch(0, 1);
            let escaped = u64::from(refused);
            assert_eq!(g.wrong(), [escaped, 0, 0, misplaced, 0, 0]);
        }
    }

    /// The other CPU has looked page 1 up, for a store that goes on on page 2, and its
    /// fault there is heard of only when the first page's stay is over.
    #[test]
    fn a_fault_on_the_next_page_tells_who_used_the_first() {
        type Act = fn(&mut Guest);
        let fault = |g: &mut Guest, cpu: usize, addr: u64, code: u64| {
            let fault = Fault {
                stack: STACKS[cpu],
                addr,
                code,
                cr3: CR3,
                ip: PC,
            };
            g.replay.fault(cpu, &fault);
        };
        let acts: [(Act, u64, u64, u64); 5] = [
            (|_| {}, 0x2000, PF_USER | PF_WRITE, 0),
            // A load leaves no dirty bit; not the page's end; another page.
            (|_| {}, 0x2000, PF_USER, 1),
            (|_| {}, 0x2008, PF_USER | PF_WRITE, 1),
            (|_| {}, 0x3000, PF_USER | PF_WRITE, 1),
            // The CPU has run in user mode since.
            (|g| g.replay.fetch(1, 0x5000), 0x2000, PF_USER | PF_WRITE, 1),
        ];
        for (i, (before, addr, code, mistold)) in acts.into_iter().enumerate() {
            let mut g = guest(4, false);
            g.read(0, 1);
            g.read(1, 5);
            let op = Op::Close {
                page: page(1),
                last: DIRTY,
                why: 1,
            };
            g.act(0, op, &[]);
            g.replay.flush_done(0);
            before(&mut g);
            fault(&mut g, 1, addr, code);
            assert_eq!(g.wrong(), [0, 0, 0, 0, mistold, 0], "act {i}");
        }
    }

    /// Another CPU had looked up an instruction on the page, and its turn came after the
    /// stay's end, with the interrupt of the flush.
    #[test]
    fn an_interrupt_after_a_stay_tells_who_looked_it_up() {
        type Act = fn(&mut Guest);
        let acts: [(Act, u64); 6] = [
            (|g| g.replay.interrupted(1, 0x1ffe), 0),
            // The instruction begins on the page before.
            (|g| g.replay.interrupted(1, 0xffe), 0),
            (|_| {}, 1),
            // Another page; a CPU that has run on since.
            (|g| g.replay.interrupted(1, 0x5000), 1),
            (
                |g| {
                    g.replay.fetch(1, 0x5000);
                    g.replay.interrupted(1, 0x1ffe);
                },
                1,
            ),
            // An instruction is not written.
            (
                |g| {
                    let close = Op::Close {
                        page: page(5),
                        last: DIRTY,
                        why: 1,
                    };
                    g.act(0, close, &[]);
                    g.replay.flush_done(0);
                    g.replay.interrupted(1, 0x1ffe);
                    g.replay.interrupted(1, 0x5000);
                },
                1,
            ),
        ];
        for (i, (act, mistold)) in acts.into_iter().enumerate() {
            let mut g = guest(8, true);
            g.read(0, 1);
            g.read(1, 5);
            g.fault(0, 2, PF_USER);
            let ordinal = g.reserve(0, None, Some(0));
            g.act(0, Op::Sweep { ordinal: 0 }, &[(LAST, YOUNG)]);
            g.replay.flush_done(0);
            g.admit(0, ordinal, 2, false);
            let close = Op::Close {
                page: page(1),
                last: YOUNG,
                why: 1,
            };
            g.act(0, close, &[]);
            g.replay.flush_done(0);
            act(&mut g);
            assert_eq!(g.wrong(), [0, 0, 0, 0, mistold, 0], "act {i}");
        }
    }

    #[test]
    fn each_admission_needs_its_own_number_and_fault() {
        let mut g = guest(4, false);
        let ordinal = g.read(0, 1);
        g.admit(0, ordinal, 2, false);
        assert_eq!(g.wrong(), [0, 0, 1, 1, 0, 0]);
    }

    #[test]
    fn stores_and_what_is_told_of_them_agree() {
        type Act = fn(&mut Guest);
        let acts: [(Act, u64, u64); 6] = [
            (|_| {}, 0, 0),
            (|_| {}, DIRTY, 1),
            (|g| g.store(0, 1), DIRTY, 0),
            (|g| g.store(0, 1), 0, 1),
            // A write fault on the member, and a store that lies on the next page, too.
            (
                |g| {
                    g.fault(0, 1, PF_USER | PF_WRITE);
                    g.replay.handled(STACKS[0]);
                },
                DIRTY,
                0,
            ),
            (
                |g| {
                    let fault = Fault {
                        stack: STACKS[0],
                        addr: 0x2000,
                        code: PF_USER | PF_WRITE,
                        cr3: CR3,
                        ip: PC,
                    };
                    g.replay.fault(0, &fault);
                },
                DIRTY,
                0,
            ),
        ];
        for (i, (act, last, mistold)) in acts.into_iter().enumerate() {
            let mut g = guest(4, false);
            g.read(0, 1);
            act(&mut g);
            let close = Op::Close {
                page: page(1),
                last,
                why: 1,
            };
            g.act(0, close, &[]);
            assert_eq!(g.wrong(), [0, 0, 0, 0, mistold, 0], "act {i}");
        }
    }

    #[test]
    fn references_after_a_sweep_and_what_is_told_of_them_agree() {
        // Referenced by this CPU before its flush, or after, or about to be, or not;
        // told, or not.
        for (early, late, about, last, mistold, unsure) in [
            (false, false, false, 0, 0, 0),
            (false, false, false, YOUNG, 1, 0),
            (true, false, false, 0, 0, 1),
            (true, false, false, YOUNG, 0, 1),
            (false, true, false, YOUNG, 0, 0),
            (false, true, false, 0, 1, 0),
            (false, false, true, YOUNG, 0, 0),
            (false, false, true, 0, 0, 0),
        ] {
            let mut g = guest(8, true);
            g.read(0, 1);
            g.fault(0, 2, PF_USER);
            let ordinal = g.reserve(0, None, Some(0));
            g.act(0, Op::Sweep { ordinal: 0 }, &[(LAST, YOUNG)]);
            if early {
                g.touch(1, 1);
            }
            g.replay.flush_done(0);
            g.admit(0, ordinal, 2, false);
            if late {
                g.touch(1, 1);
            }
            if about {
                g.replay.interrupted(1, 0xffe);
            }
            let close = Op::Close {
                page: page(1),
                last,
                why: 1,
            };
            g.act(0, close, &[]);
            assert_eq!(g.wrong(), [0, 0, 0, 0, mistold, 0]);
            assert_eq!(g.replay.counts.unsure, unsure);
        }
    }

    #[test]
    fn a_reference_while_the_sweep_has_the_lock_may_be_told() {
        type Act = fn(&mut Guest, usize);
        let acts: [(Act, u64); 4] = [
            (|g, cpu| g.touch(cpu, 1), 1),
            // Switching to another address space and back, it has flushed.
            (
                |g, cpu| {
                    g.replay.flushed(cpu, None);
                    g.touch(cpu, 1);
                },
                1,
            ),
            // The end of a fault that was not granted.
            (
                |g, cpu| {
                    g.fault(cpu, 1, PF_USER);
                    g.replay.handled(STACKS[cpu]);
                },
                0,
            ),
            (|g, cpu| g.replay.interrupted(cpu, 0x1ffe), 0),
        ];
        for (i, (act, unsure)) in acts.into_iter().enumerate() {
            for last in [0, YOUNG] {
                let mut g = guest(8, true);
                g.read(0, 1);
                g.fault(0, 2, PF_USER);
                g.reserve(0, None, Some(0));
                g.meanwhile = Some(act);
                g.act(0, Op::Sweep { ordinal: 0 }, &[(LAST, YOUNG)]);
                let close = Op::Close {
                    page: page(1),
                    last,
                    why: 1,
                };
                g.act(0, close, &[]);
                assert_eq!(g.wrong(), [0; 6], "act {i}, {last}");
                assert_eq!(g.replay.counts.unsure, unsure);
            }
        }
    }

    #[test]
    fn the_hand_gives_a_chance_or_the_place() {
        for chance in [true, false] {
            let mut g = guest(3, true);
            g.read(0, 1);
            g.fault(0, 2, PF_USER);
            let second = g.reserve(0, None, Some(0));
            g.act(0, Op::Sweep { ordinal: 0 }, &[(LAST, YOUNG)]);
            g.replay.flush_done(0);
            g.admit(0, second, 2, false);
            if chance {
                g.touch(0, 1);
            }
            g.read(1, 3);
            g.fault(1, 4, PF_USER);
            g.act(
                1,
                Op::Reserve { r: R, epoch: 0 },
                &[(R + R_VICTIM_ORDINAL, 0)],
            );
            g.answer(1, Hand);
            let hand = Op::Hand {
                r: R,
                ordinal: 0,
                may: true,
                epoch: 0,
            };
            let mut words = g.named(None, Some(2));
            words.push((LAST, if chance { YOUNG } else { 0 }));
            g.act(1, hand, &words);
            if chance {
                g.answer(1, Again);
                assert_eq!(g.replay.counts.chances, 1);
                assert!(g.replay.find(page(1)).is_some());
            } else {
                g.answer(1, Go);
                assert!(g.replay.find(page(1)).is_none());
            }
            assert_eq!(g.wrong(), [0; 6]);
        }
    }

    #[test]
    fn a_reservation_in_flight_is_waited_for() {
        let mut g = guest(2, false);
        g.reserve(0, None, None);
        g.read(1, 2);
        g.fault(1, 3, PF_USER);
        g.act(1, Op::Reserve { r: R, epoch: 0 }, &[]);
        g.answer(1, Full);
        assert_eq!(g.wrong(), [0; 6]);
        // Nothing waits for a number that was given up.
        g.act(0, Op::Abort { ordinal: 0 }, &[]);
        g.reserve(1, None, None);
        assert_eq!(g.wrong(), [0; 6]);
        g.act(0, Op::Abort { ordinal: 1 }, &[]);
        assert_eq!(g.wrong(), [0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn an_epoch_is_one_that_the_cpu_had_since_the_question() {
        // Switches before the question, and until the answer.
        for (value, misplaced) in [(0, 1), (1, 0), (2, 0), (4, 0), (5, 1)] {
            let mut g = guest(4, false);
            g.read(1, 1);
            let base = g.replay.claims[1].base.unwrap();
            g.replay.switched(1);
            g.replay.switched(1);
            g.replay.enter(STACKS[0], Op::Shrink { n: 2 });
            g.replay.epoch_asked(STACKS[0], 1);
            g.replay.switched(1);
            g.replay.switched(1);
            g.replay
                .epoch_answered(STACKS[0], u64::from(base.wrapping_add(value)));
            assert_eq!(g.wrong(), [0, 0, 0, misplaced, 0, 0], "{value}");
        }
    }

    #[test]
    fn without_room_nothing_changes_and_off_is_the_end() {
        let mut g = guest(2, false);
        g.words.insert(R + R_ORDINAL, 99);
        g.fault(0, 1, PF_USER);
        g.act(0, Op::Reserve { r: R, epoch: 0 }, &[]);
        g.answer(0, Full);
        assert_eq!((g.replay.counts.full, g.replay.places.len()), (1, 0));
        g.act(0, Op::Reserve { r: R, epoch: 0 }, &[]);
        g.answer(0, Off);
        g.touch(0, 1);
        assert_eq!(g.wrong(), [0; 6]);
    }

    #[test]
    fn an_access_to_no_member_and_a_closing_of_none_are_violations() {
        let mut g = guest(4, false);
        g.touch(1, 1);
        let close = Op::Close {
            page: page(1),
            last: 0,
            why: 1,
        };
        g.act(0, close, &[]);
        assert_eq!(g.wrong(), [1, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn a_set_that_shrinks_disables_its_oldest() {
        let mut g = guest(4, false);
        for (cpu, n) in [(0, 1), (0, 2), (1, 3)] {
            g.read(cpu, n);
        }
        for _ in 0..2 {
            g.act(0, Op::Shrink { n: 2 }, &[]);
            g.evict(0, 0, 0);
        }
        g.act(0, Op::Shrink { n: 2 }, &[]);
        assert_eq!((g.replay.n, g.replay.members.len()), (2, 2));
        g.replay.resizing(STACKS[0], 2, 3);
        assert!(g.replay.is_pending());
        g.replay.unlock(0, STACKS[0], &mut |_| 0);
        assert_eq!(g.replay.n, 3);
        assert_eq!(g.wrong(), [0; 6]);
        g.evict(0, 1, 0);
        assert_eq!(g.wrong(), [0, 0, 0, 1, 0, 0]);
    }

    /// A set of eight pages that CPU 0 has filled with the pages 1 to 6, 513 and 7, and evicts up
    /// to four at a time; or CPU 1 has admitted 4, which is its first segment.
    fn batches(other: bool) -> Guest {
        let mut g = guest_with(Shape {
            first: 1,
            batch: 4,
            ..Shape::fifo(8)
        });
        for n in [1, 2, 3] {
            g.read(0, n);
        }
        g.read(usize::from(other), 4);
        for n in [513, 5, 6, 7] {
            g.read(0, n);
        }
        g
    }

    /// The same, with a number for an admission, for which page 1 has to go.
    fn batch_due(other: bool) -> (Guest, u64) {
        let mut g = batches(other);
        g.fault(0, 8, PF_USER);
        let ordinal = g.reserve(0, Some(0), None);
        (g, ordinal)
    }

    #[test]
    fn a_batch_goes_with_its_victim() {
        let (mut g, ordinal) = batch_due(false);
        // Each has the bits of its own PTE: 3 is dirty by a store.
        g.store(0, 3);
        g.evict_batch(0, 0, ordinal, &[(1, 0), (2, 0), (3, DIRTY), (4, 0)]);
        g.replay.flush_done(0);
        g.admit(0, ordinal, 8, false);
        // Three numbers have no victim, as their places are free already.
        for n in [1, 2, 3] {
            g.read(0, n);
        }
        // The next one has a batch over two page tables, in which there are 5 and 6, too.
        g.fault(0, 4, PF_USER);
        let next = g.reserve(0, Some(4), None);
        g.evict_batch(0, 4, next, &[(513, 0)]);
        g.replay.flush_done(0);
        g.admit(0, next, 4, false);
        assert_eq!(g.wrong(), [0; 6]);
        assert_eq!((g.replay.counts.batched, g.replay.members.len()), (3, 8));
        let log = g.end();
        let told: Vec<_> = log.stays.iter().map(|s| (s.why, s.dirtied)).collect();
        let mut want = [(EVICTED, false); 13];
        want[2].1 = true;
        want[5..].fill((DRAINED, false));
        assert_eq!(told, want);
        assert_eq!(log.counts.violations(), 0);
    }

    #[test]
    fn another_batch_is_a_violation() {
        for pages in [
            &[1, 2, 3][..],
            &[1],
            &[],
            &[1, 2, 4, 3],
            &[1, 2, 3, 4, 5],
            &[2, 1, 3, 4],
            &[1, 2, 3, 5],
        ] {
            let (mut g, ordinal) = batch_due(false);
            let pages: Vec<_> = pages.iter().map(|n| (*n, 0)).collect();
            g.evict_batch(0, 0, ordinal, &pages);
            assert_eq!(g.wrong(), [0, 0, 0, 1, 0, 0], "{pages:?}");
        }
    }

    #[test]
    fn a_batch_leaves_first_segments_as_long_as_they_last() {
        // Whether page 4 is the first segment of CPU 1, and its epoch when that is asked for.
        for (other, switched, goes) in [
            (false, false, true),
            (true, false, false),
            (true, true, true),
        ] {
            let (mut g, ordinal) = batch_due(other);
            if switched {
                g.replay.switched(1);
            }
            let mut pages = vec![(1, 0), (2, 0), (3, 0)];
            if goes {
                pages.push((4, 0));
            }
            let op = Op::Evict {
                ordinal: 0,
                why: EVICTED,
                now: 0,
                end: ordinal,
            };
            g.replay.enter(STACKS[0], op);
            g.words.insert(LAST, 0);
            for (n, _) in &pages[..3] {
                g.take(0, *n);
            }
            if other {
                g.replay.epoch_asked(STACKS[0], 1);
                g.replay.epoch_answered(STACKS[0], u64::from(switched));
            }
            if goes {
                g.take(0, 4);
            }
            g.unlock(0);
            assert_eq!(g.wrong(), [0; 6], "{other} {switched}");
            assert_eq!(g.replay.is_live(3), !goes);
        }
    }

    #[test]
    fn what_another_cpu_has_ended_has_no_batch() {
        let (mut g, ordinal) = batch_due(false);
        let close = Op::Close {
            page: page(1),
            last: 0,
            why: 1,
        };
        g.act(1, close, &[]);
        g.replay.flush_done(1);
        g.evict_batch(0, 0, ordinal, &[]);
        g.admit(0, ordinal, 8, false);
        assert_eq!(g.wrong(), [0; 6]);
        assert_eq!(g.replay.members.len(), 8);
    }

    #[test]
    fn what_another_cpu_has_ended_is_in_no_batch() {
        let (mut g, ordinal) = batch_due(false);
        let close = Op::Close {
            page: page(2),
            last: 0,
            why: 1,
        };
        g.act(1, close, &[]);
        g.replay.flush_done(1);
        g.evict_batch(0, 0, ordinal, &[(1, 0), (3, 0), (4, 0)]);
        g.admit(0, ordinal, 8, false);
        assert_eq!(g.wrong(), [0; 6]);
        assert_eq!(g.replay.members.len(), 5);
    }

    #[test]
    fn a_batch_leaves_room_for_two_first_segments() {
        let mut g = guest_with(Shape {
            first: 1,
            batch: 4,
            ..Shape::fifo(8)
        });
        g.act(0, Op::Shrink { n: 4 }, &[]);
        assert_eq!(g.replay.n, 4);
        for n in [1, 2, 3, 4] {
            g.read(0, n);
        }
        g.fault(0, 5, PF_USER);
        let ordinal = g.reserve(0, Some(0), None);
        // Page 4 is in no first segment either.
        g.evict_batch(0, 0, ordinal, &[(1, 0), (2, 0), (3, 0)]);
        g.admit(0, ordinal, 5, false);
        assert_eq!(g.wrong(), [0; 6]);
        assert_eq!(g.replay.members.len(), 2);
    }

    #[test]
    fn until_the_flush_all_of_a_batch_may_be_used_elsewhere() {
        for (flushed, escaped) in [(false, 0), (true, 3)] {
            let (mut g, ordinal) = batch_due(false);
            g.evict_batch(0, 0, ordinal, &[(1, 0), (2, 0), (3, 0), (4, 0)]);
            if flushed {
                g.replay.flush_done(0);
            } else {
                // One page of them.
                g.replay.flushed(1, Some(0x5000));
            }
            for n in [1, 3, 4] {
                g.touch(1, n);
            }
            assert_eq!(g.wrong(), [escaped, 0, 0, 0, 0, 0]);
            assert_eq!(g.replay.counts.late, 3 - escaped);
        }
    }

    #[test]
    fn a_page_that_went_in_a_batch_is_not_admitted_late() {
        for (answer, misplaced) in [(NO_SEQ, 0), (7, 1)] {
            let mut g = guest_with(Shape {
                first: 1,
                batch: 3,
                ..Shape::fifo(6)
            });
            g.read(0, 1);
            g.fault(0, 2, PF_USER);
            let early = g.reserve(0, None, None);
            // The other CPU has seen page 2 disabled, too.
            g.fault(1, 2, PF_USER);
            let late = g.reserve(1, None, None);
            g.admit(0, early, 2, false);
            for n in [3, 4, 5] {
                g.read(0, n);
            }
            g.fault(0, 6, PF_USER);
            let ordinal = g.reserve(0, Some(0), None);
            g.evict_batch(0, 0, ordinal, &[(1, 0), (2, 0)]);
            g.replay.flush_done(0);
            g.admit_answered(1, late, 2, false, answer);
            assert_eq!(g.wrong(), [0, 0, 0, misplaced, 0, 0], "{answer:#x}");
        }
    }

    #[test]
    fn what_makes_the_set_smaller_has_no_batch() {
        let mut g = batches(false);
        g.act(0, Op::Shrink { n: 2 }, &[]);
        g.evict(0, 0, 0);
        assert_eq!(g.wrong(), [0; 6]);
        assert_eq!(g.replay.members.len(), 7);
    }

    #[test]
    fn a_victim_may_be_named_twice() {
        let mut g = batches(false);
        g.act(0, Op::Shrink { n: 2 }, &[]);
        // Another CPU's admission names it, too, before it goes.
        g.fault(1, 8, PF_USER);
        let ordinal = g.reserve(1, Some(0), None);
        g.evict(0, 0, 0);
        g.replay.flush_done(0);
        // It went for any number. That is no reason to refuse a number of another page.
        g.evict_batch(1, 0, ordinal, &[]);
        g.admit_answered(1, ordinal, 8, false, 7);
        assert_eq!(g.wrong(), [0; 6]);
    }

    #[test]
    fn what_has_not_ended_is_a_violation() {
        let mut g = guest(4, false);
        g.read(0, 1);
        let log = g.replay.end().unwrap();
        assert_eq!((log.counts.misplaced, log.stays.len()), (1, 0));
        assert!(g.replay.end().is_none());
    }
}
