// SPDX-License-Identifier: GPL-2.0

//! The sets of a trace: one for all address spaces, or one for each address space or control group.
//!
//! If exec cannot make even a stack, its address space ends without a hook, and its set is there until
//! the trace or the window ends.
//!
//! Set 0 is there from the beginning to the end of a trace, and all address spaces without a set of
//! their own use it. Any other set is made with its first address space, and *retires* with its last
//! one. No page of it is a member then, and no admission to it is on the way. kvmtraced writes the
//! records that are left in it, and frees it.
//!
//! `mm_struct.vmtrace_set` is the set of an address space, for as long as its number is valid. It is
//! stored before the number. The sets of a trace are there before its first era begins, and with
//! a trace from boot before numbers are those of references. A number that was to be given while there
//! were no sets is of an earlier era, and is not given. So a valid number has a set, until the address space ends: nobody faults in it then. Who has
//! found the number valid in a section of RCU may use the pointer in that section: a set is freed
//! after a grace period that begins when none of its address spaces is in use, or when all numbers of
//! the trace or the window are invalid.
//!
//! Lock order: mmap_lock, session.rs's locks → [`SETS`] → page table lock → the lock of a ring. Memory
//! for sets is allocated without [`SETS`], and without waiting for a disk, for mmap_lock may be held.

use crate::{
    drain::{kick, nr_cpus, ERROR},
    hot::{self, clock_next, this_cpu, Kernel, Refs, Word, STEP},
    machine::{self, afford},
    ring::{Before, Stream},
    stay::{self, Shape},
    tables::{is_broken, Tables},
    tickets::{Cell, Claim, Figures, Memory, Set},
    Store,
};
use core::{mem::size_of, ptr};
use kernel::{
    bindings,
    macros::export,
    prelude::*,
    rbtree::{RBTree, RBTreeNode, RBTreeNodeReservation},
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc, UniqueArc,
    },
};

/// Slots of a set beyond its pages and one for each CPU.
const SLACK: usize = 64;

/// A set, and what goes with it.
#[repr(C)]
pub(crate) struct Scope {
    /// Where it lies, for whoever looks from outside. At the beginning.
    view: bindings::vmtrace_view,
    pub(crate) set: Set<Kernel, Tables>,
    /// Its number, from 0 on, and its key: see [`List`].
    number: u32,
    key: u64,
    /// What its streams have had, by ring. Changed under the lock of the ring.
    flows: Store<Flow>,
    /// Smaller numbers have no record that is still to be written.
    collected: Atomic<u64>,
}

/// What a stream has had.
struct Flow {
    packets: Atomic<u64>,
    lost: Atomic<u64>,
}

/// The stream of a set in a ring, whose lock is held.
pub(crate) struct Of<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) lane: usize,
}

impl Stream for Of<'_> {
    #[inline(always)]
    fn set(&self) -> u32 {
        self.scope.number
    }

    fn begin(&self, own: Before) -> Before {
        self.scope.flows.get(self.lane).map_or(own, |flow| Before {
            packets: flow.packets.fetch_add(1u64, Relaxed),
            lost_full: flow.lost.load(Relaxed),
            lost_atomic: 0,
        })
    }
}

impl Of<'_> {
    /// A record found no room.
    #[cold]
    pub(crate) fn lose(&self) {
        if let Some(flow) = self.scope.flows.get(self.lane) {
            flow.lost.add(1u64, Relaxed);
        }
    }
}

/// As many numbers that are 0.
pub(crate) fn words(many: usize) -> Result<Store<Word>> {
    let mut words = Store::with_capacity(many, GFP_KERNEL)?;
    for _ in 0..many {
        words.push(Word::new(), GFP_KERNEL)?;
    }
    Ok(words)
}

/// Slots that are free. If memory is short, this fails: other programs are not to end for it.
fn cells(many: usize) -> Result<Store<Cell<Kernel>>> {
    let bytes = many.checked_mul(size_of::<Cell<Kernel>>()).ok_or(ENOMEM)?;
    let cells = machine::alloc::<Cell<Kernel>>(bytes)?.as_ptr();
    if !cells.is_aligned() {
        // SAFETY: Nobody else has it.
        unsafe { bindings::kvfree(cells.cast()) };
        return Err(ENOMEM);
    }
    // SAFETY: These are as many bytes, which are zero and nobody else's. A slot of zeros is
    // one that is free: its words are 0, and so are all fields of [`stay::Slot::EMPTY`].
    Ok(unsafe { Store::from_raw_parts(cells, many, many) })
}

/// The memory of a set with so many slots and places of first segments.
pub(crate) fn memory(slots: usize, firsts: usize, cpus: usize) -> Result<Memory<Kernel>> {
    let mut claims = Store::with_capacity(cpus, GFP_KERNEL)?;
    for _ in 0..cpus {
        let claim = Claim {
            counts: Word::new(),
            epoch: Word::new(),
            time: Word::new(),
            used: Word::new(),
            seat: Word::new(),
            waits: Word::new(),
        };
        claims.push(claim, GFP_KERNEL)?;
    }
    Ok(Memory {
        cells: cells(slots)?,
        firsts: words(firsts)?,
        claims,
        seats: words(cpus.saturating_mul(2))?,
        numbers: core::array::from_fn(|_| Word::new()),
    })
}

/// What the sets of a trace are like.
#[derive(Clone, Copy)]
pub(crate) struct Make {
    pub(crate) shape: Shape,
    /// What N can become.
    pub(crate) max: u32,
    /// VMTRACE_SETS_*.
    pub(crate) sets: u32,
}

impl Make {
    /// Slots: so many more than pages that a CPU that is slow for a moment finds its slot free.
    fn slots(&self) -> usize {
        (self.max as usize)
            .saturating_add(nr_cpus())
            .saturating_add(SLACK)
            .next_power_of_two()
    }

    /// Bytes of a set.
    pub(crate) fn bytes(&self) -> u64 {
        (self.slots() as u64).saturating_mul(size_of::<Cell<Kernel>>() as u64)
    }

    fn is_one(&self) -> bool {
        self.sets == bindings::VMTRACE_SETS_ONE
    }

    /// An empty set with that number.
    pub(crate) fn scope(&self, number: u32) -> Result<Scope> {
        let memory = memory(self.slots(), stay::firsts_for(&self.shape), self.shape.cpus)?;
        let start = if self.is_one() { clock_next() } else { 0 };
        let mut set = Set::new(&self.shape, memory, Tables, start).ok_or(EINVAL)?;
        if !self.is_one() {
            set.count_apart();
        }
        if is_broken(bindings::VMTRACE_BREAK_NOORDER) || is_broken(bindings::VMTRACE_BREAK_NOSTAMP)
        {
            set.disorder();
        }
        if is_broken(bindings::VMTRACE_BREAK_NOEXPIRE) {
            set.keep_firsts();
        }
        if is_broken(bindings::VMTRACE_BREAK_NOTURNS) {
            set.keep_seats();
        }
        let mut flows = Store::with_capacity(nr_cpus(), GFP_KERNEL)?;
        for _ in 0..nr_cpus() {
            let flow = Flow {
                packets: Atomic::new(0),
                lost: Atomic::new(0),
            };
            flows.push(flow, GFP_KERNEL)?;
        }
        Ok(Scope {
            view: bindings::vmtrace_view::default(),
            set,
            number,
            key: 0,
            flows,
            collected: Atomic::new(0),
        })
    }
}

impl Scope {
    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The next ordinal.
    pub(crate) fn next(&self) -> u64 {
        self.set.next(&hot::NUMBERS)
    }

    /// The first number that a set of size `n` can have a member of.
    pub(crate) fn begin_of(&self, n: u64) -> u64 {
        self.next().saturating_sub(n).max(self.set.start())
    }

    /// Notes where it lies, when it has found its place in memory.
    fn describe(&mut self) {
        let (cells, claims, seats) = self.set.parts();
        self.view = bindings::vmtrace_view {
            counter: &raw const hot::NUMBERS as usize,
            cells: cells.as_ptr() as usize,
            nr_cells: cells.len(),
            cell_size: size_of::<Cell<Kernel>>(),
            claims: claims.as_ptr() as usize,
            nr_claims: claims.len(),
            claim_size: size_of::<Claim<Kernel>>(),
            seats: seats.as_ptr() as usize,
            ordinals: self
                .set
                .own_ordinals()
                .map_or(0, |o| &raw const *o as usize),
            number: self.number as usize,
        };
    }

    pub(crate) fn view(&self) -> bindings::vmtrace_view {
        self.view
    }

    /// Moves the records with smaller numbers than `end` to this CPU's ring. None of the set's
    /// admissions is on the way, and [`SETS`] is held, so that nobody else does this. False if there
    /// is no room, or if there is only what others need, unless `all`.
    fn collect_before(&self, refs: &Refs, end: u64, all: bool) -> bool {
        let Some(lane) = refs.lane_of(this_cpu()) else {
            return true;
        };
        let begin = self.begin_of(self.set.size());
        let mut at = begin.max(self.collected.load(Relaxed));
        while at < end {
            let to = at.saturating_add(STEP).min(end);
            let mut records = lane.records.lock();
            while at < to {
                let has_room = all || !records.is_scarce();
                let put = |s: &stay::Slot| has_room && records.try_emit(s, self);
                if !self.set.clear(at, put) {
                    self.collected.store(at, Relaxed);
                    return false;
                }
                at = at.wrapping_add(1);
            }
        }
        self.collected.store(at, Relaxed);
        true
    }

    /// The same for all records of the set.
    fn collect(&self, all: bool) -> bool {
        hot::with(true, |refs| self.collect_before(refs, self.next(), all))
    }

    /// Drops all records that are in no ring yet; no admission is on the way. Gives how many.
    fn discard(&self) -> u64 {
        let mut lost = 0u64;
        let mut at = self.begin_of(self.set.size());
        while at < self.next() {
            self.set.clear(at, |_| {
                lost = lost.wrapping_add(1);
                true
            });
            at = at.wrapping_add(1);
        }
        lost
    }
}

/// A set, and who uses it.
struct Member {
    scope: Arc<Scope>,
    /// The control group that it is of, if it is of one.
    group: u64,
    /// Address spaces.
    users: u32,
    /// Its records are in rings: what to ask RCU before it is freed.
    buried: Option<usize>,
}

/// The sets of the present trace.
pub(crate) struct List {
    make: Make,
    /// Which trace it is.
    trace: u64,
    common: Arc<Scope>,
    /// By key. Keys are never used again, not even in another trace.
    live: RBTree<u64, Member>,
    retired: RBTree<u64, Member>,
    nr_live: u64,
    /// Sets are made that give no tickets.
    paused: bool,
    /// N of sets that are made.
    size: u64,
    /// Sets that were made, the most at once, and address spaces that had to share set 0.
    made: u32,
    most: u64,
    shared: u64,
    /// Of those that were freed.
    freed: Figures,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is.
    unsafe(uninit) static SETS: Mutex<Option<KBox<List>>> = None;
}

/// The last trace, and the last key.
static TRACE: Atomic<u64> = Atomic::new(0);
static KEY: Atomic<u64> = Atomic::new(0);
/// Sets that have retired.
static RETIRED: Atomic<u64> = Atomic::new(0);

/// Makes the lock usable.
///
/// # Safety
///
/// Called once, before anything else here.
pub(crate) unsafe fn init() {
    // SAFETY: By the caller's promise.
    unsafe { SETS.init() };
}

/// Does `f` with the sets of the present trace, if there is one.
fn with<R>(none: R, f: impl FnOnce(&mut List) -> R) -> R {
    match SETS.lock().as_mut() {
        Some(list) => f(list),
        None => none,
    }
}

/// Set 0 of a trace, in its place.
pub(crate) fn common(make: &Make) -> Result<Arc<Scope>> {
    let mut scope = UniqueArc::new(make.scope(0)?, GFP_KERNEL)?;
    scope.describe();
    Ok(scope.into())
}

/// The sets of a trace that begins, of which there is set 0 yet.
pub(crate) fn list(make: &Make, common: Arc<Scope>) -> Result<KBox<List>> {
    let list = List {
        make: *make,
        trace: TRACE.fetch_add(1u64, Relaxed),
        size: common.set.size(),
        common,
        live: RBTree::new(),
        retired: RBTree::new(),
        nr_live: 0,
        paused: false,
        made: 0,
        most: 0,
        shared: 0,
        freed: Figures::default(),
    };
    Ok(KBox::new(list, GFP_KERNEL)?)
}

/// Puts the sets of a trace that begins in place.
pub(crate) fn install(list: KBox<List>) {
    RETIRED.store(0, Relaxed);
    *SETS.lock() = Some(list);
}

/// Takes them away. To be dropped after a grace period.
pub(crate) fn remove() -> Option<KBox<List>> {
    SETS.lock().take()
}

/// Where an address space comes to: the set, its key (0 for set 0), and its number.
type Place = (*const Scope, u64, u32);

impl List {
    fn common(&self) -> Place {
        (Arc::as_ptr(&self.common), 0, 0)
    }

    /// One more address space of what has a set.
    fn join(&mut self, group: u64) -> Option<Place> {
        match self.make.sets {
            bindings::VMTRACE_SETS_ONE => return Some(self.common()),
            bindings::VMTRACE_SETS_CGROUP => {}
            _ if is_broken(bindings::VMTRACE_BREAK_ONESET) => {}
            _ => return None,
        }
        for (key, m) in self.live.iter_mut() {
            if m.group == group {
                m.users = m.users.saturating_add(1);
                return Some((Arc::as_ptr(&m.scope), *key, m.scope.number));
            }
        }
        None
    }

    /// Puts a set in place, with one user.
    fn add(&mut self, node: RBTreeNode<u64, Member>) {
        self.live.insert(node);
        self.nr_live = self.nr_live.wrapping_add(1);
        self.most = self.most.max(self.nr_live);
    }

    fn share(&mut self) -> Place {
        self.shared = self.shared.wrapping_add(1);
        self.common()
    }

    /// A set has no user any more.
    fn retire(&mut self, key: u64) {
        if let Some(node) = self.live.remove_node(&key) {
            self.nr_live = self.nr_live.wrapping_sub(1);
            self.retired.insert(node);
            RETIRED.add(1u64, Relaxed);
        }
    }

    /// Adds up the figures of all sets.
    fn figures(&self) -> Figures {
        let mut all = self.freed;
        self.visit(|scope| add(&mut all, figures_of(scope, self.is_live(scope))));
        all
    }

    /// Does `f` with each set.
    fn visit(&self, mut f: impl FnMut(&Scope)) {
        f(&self.common);
        for m in self.live.values() {
            f(&m.scope);
        }
        for m in self.retired.values() {
            f(&m.scope);
        }
    }

    /// Whether a set may have members.
    fn is_live(&self, scope: &Scope) -> bool {
        scope.key == 0 || self.live.get(&scope.key).is_some()
    }
}

/// The figures of a set. One that has retired has no first segments.
fn figures_of(scope: &Scope, live: bool) -> Figures {
    let mut f = scope.set.figures(scope.next());
    f.first = if live { f.first } else { 0 };
    f
}

fn add(all: &mut Figures, f: Figures) {
    all.live = all.live.wrapping_add(f.live);
    all.first = all.first.wrapping_add(f.first);
    all.reserved = all.reserved.wrapping_add(f.reserved);
    all.tickets = all.tickets.wrapping_add(f.tickets);
    all.wrong = all.wrong.wrapping_add(f.wrong);
}

/// What a set more needs.
type New = (UniqueArc<Scope>, RBTreeNodeReservation<u64, Member>);

/// What sets leave of the memory that is free, and what retired ones may take that kvmtraced cannot
/// free because the output holds it up: parts of all memory.
const LEFT: u64 = 8;
const RETIRED_MOST: u64 = 16;

/// Sets that are being made. Their memory may still look free.
static MAKING: Atomic<u64> = Atomic::new(0);

fn new_member(make: &Make) -> Result<New> {
    let memory = machine::memory();
    let retired = RETIRED.load(Relaxed).saturating_mul(make.bytes());
    if retired > memory / RETIRED_MOST {
        kick();
        return Err(ENOMEM);
    }
    let making = MAKING.fetch_add(1u64, Relaxed).wrapping_add(1);
    let made = make_member(make, making, memory / LEFT);
    MAKING.fetch_sub(1u64, Relaxed);
    made
}

/// Makes a set while `making` are made, itself included: all of these together leave `left` bytes.
fn make_member(make: &Make, making: u64, left: u64) -> Result<New> {
    afford(making.saturating_mul(make.bytes()).saturating_add(left))?;
    let scope = UniqueArc::new(make.scope(0)?, GFP_KERNEL)?;
    Ok((scope, RBTreeNodeReservation::new(GFP_KERNEL)?))
}

/// The set of a new address space of that control group. It may sleep.
fn place(group: u64) -> Place {
    let none = (ptr::null(), 0, 0);
    let found = with(Err(none), |list| match list.join(group) {
        Some(place) => Err(place),
        // Nothing is recorded any more.
        None if ERROR.load(Relaxed) != 0 => Err(list.common()),
        None => Ok((list.make, list.trace)),
    });
    let (make, trace) = match found {
        Ok(found) => found,
        Err(place) => return place,
    };
    let made = new_member(&make);
    let mut unused = None;
    let place = with(none, |list| {
        if list.trace != trace {
            return none;
        }
        let Ok((mut scope, reserved)) = made else {
            return list.share();
        };
        // Numbers are never used again.
        if list.made == u32::MAX {
            unused = Some(scope);
            return list.share();
        }
        if let Some(place) = list.join(group) {
            unused = Some(scope);
            return place;
        }
        list.made = list.made.wrapping_add(1);
        scope.number = list.made;
        // It may have changed meanwhile.
        scope.set.resize(list.size);
        if list.paused {
            scope.set.pause();
        }
        scope.describe();
        let key = KEY.fetch_add(1u64, Relaxed).wrapping_add(1);
        scope.key = key;
        let scope: Arc<Scope> = scope.into();
        let place = (Arc::as_ptr(&scope), key, scope.number);
        let member = Member {
            scope,
            group,
            users: 1,
            buried: None,
        };
        list.add(reserved.into_node(key, member));
        place
    });
    drop(unused);
    place
}

/// Gives an address space its set, and gives that set's number. `group` is the control group of its
/// task, or 0 if sets are not those of groups. The context may sleep.
///
/// # Safety
///
/// `mm` is valid, and has no valid number: nobody else uses its set.
#[export]
pub unsafe extern "C" fn vmtrace_rs_enter(mm: *mut bindings::mm_struct, group: u64) -> u32 {
    // SAFETY: As promised.
    unsafe { vmtrace_rs_leave(mm) };
    let one = hot::with(None, |refs| refs.only_scope());
    let (set, key, number) = match one {
        Some(set) => (set, 0, 0),
        None => place(group),
    };
    // SAFETY: Valid, as promised, and the fields are words. The number is stored later.
    unsafe {
        (&raw mut (*mm).__bindgen_anon_1.vmtrace_set_key).write(key);
        (&raw mut (*mm).__bindgen_anon_1.vmtrace_set).write_volatile(set.cast_mut().cast());
    }
    number
}

/// An address space needs its set no more: no page of it is a member, and nobody is in it.
///
/// # Safety
///
/// `mm` is valid, and was entered in this trace or an earlier one, or its fields are 0.
#[export]
pub unsafe extern "C" fn vmtrace_rs_leave(mm: *mut bindings::mm_struct) {
    // SAFETY: Valid, as promised.
    let key = unsafe {
        let key = (&raw mut (*mm).__bindgen_anon_1.vmtrace_set_key).replace(0);
        (&raw mut (*mm).__bindgen_anon_1.vmtrace_set).write_volatile(ptr::null_mut());
        key
    };
    if key == 0 {
        return;
    }
    let retired = with(false, |list| {
        let Some(m) = list.live.get_mut(&key) else {
            return false;
        };
        m.users = m.users.saturating_sub(1);
        let last = m.users == 0;
        if last {
            list.retire(key);
        }
        last
    });
    if retired {
        kick();
    }
}

/// The number of an address space's set; `group` gets its control group, or 0.
///
/// # Safety
///
/// `mm` is valid and traced, and `group` is valid.
#[export]
pub unsafe extern "C" fn vmtrace_rs_set_of(mm: *mut bindings::mm_struct, group: *mut u64) -> u32 {
    // SAFETY: Valid, as promised. The key does not change while the number is valid.
    let key = unsafe { (&raw const (*mm).__bindgen_anon_1.vmtrace_set_key).read() };
    let (number, of) = with((0, 0), |list| match list.live.get(&key) {
        Some(m) => (m.scope.number, m.group),
        None => (0, 0),
    });
    // SAFETY: Valid, as promised.
    unsafe { group.write(of) };
    number
}

/// Does `f` with each set in turn, without a lock, and with set 0 first. Sets that are made meanwhile
/// are left out.
pub(crate) fn for_each(mut f: impl FnMut(&Scope)) {
    let end = KEY.load(Relaxed);
    let mut last = None;
    while let Some((key, scope)) = after(last).filter(|(key, _)| *key <= end) {
        f(&scope);
        last = Some(key);
    }
}

/// The set that follows one with this key, or set 0.
fn after(key: Option<u64>) -> Option<(u64, Arc<Scope>)> {
    with(None, |list| match key {
        None => Some((0, list.common.clone())),
        Some(key) => {
            let next = list.live.cursor_lower_bound(&key.wrapping_add(1))?;
            let (key, m) = next.current();
            Some((*key, m.scope.clone()))
        }
    })
}

/// All sets give no tickets, or give them again; so do those that are made from here on.
pub(crate) fn pause(pause: bool, f: impl Fn(&Scope)) {
    with((), |list| list.paused = pause);
    for_each(f);
}

/// Sets that are made from here on have this size.
pub(crate) fn set_size(n: u32) {
    with((), |list| list.size = u64::from(n));
}

/// Makes a set as large as `n`: moves the records with smaller numbers than `end` to this CPU's ring,
/// and calls `sized`. Leaves a set alone that has retired, for kvmtraced writes what is left in it. No
/// admission is on the way. False if there is no room.
pub(crate) fn resize(scope: &Scope, end: u64, sized: impl FnOnce(&Scope)) -> bool {
    with(true, |list| {
        if !list.is_live(scope) {
            return true;
        }
        // With the lock, for a set that retires between the two would lose what is beyond its size.
        let done = hot::with(true, |refs| scope.collect_before(refs, end, true));
        if done {
            sized(scope);
        }
        done
    })
}

/// Those sets that retire now have no user, as the window of their address spaces has ended: no
/// number of it is valid.
pub(crate) fn retire_all() {
    with((), |list| loop {
        let first = list.live.keys().next().copied();
        match first {
            Some(key) => list.retire(key),
            None => break,
        }
    });
    kick();
}

/// For kvmtraced: brings what is left in sets that have retired into rings, and frees those of them
/// that nobody can be using any more.
pub(crate) fn bury() {
    if RETIRED.load(Relaxed) == 0 {
        return;
    }
    let mut at = 0u64;
    while let Some(node) = with(None, |list| list.bury_next(&mut at)) {
        // Freed without the lock.
        drop(node);
    }
}

impl List {
    /// Goes on with the sets that have retired from `at` on, and takes out one that can be freed.
    fn bury_next(&mut self, at: &mut u64) -> Option<RBTreeNode<u64, Member>> {
        loop {
            let mut cursor = self.retired.cursor_lower_bound_mut(at)?;
            let (key, m) = cursor.current_mut();
            let key = *key;
            *at = key.wrapping_add(1);
            match m.buried {
                // SAFETY: The cookie is of a grace period that RCU was asked for.
                Some(cookie) if unsafe { bindings::poll_state_synchronize_rcu(cookie) } => {
                    let f = figures_of(&m.scope, false);
                    add(&mut self.freed, f);
                    RETIRED.fetch_sub(1u64, Relaxed);
                    return self.retired.remove_node(&key);
                }
                Some(_) => {}
                None => {
                    if is_broken(bindings::VMTRACE_BREAK_NOBURY) || m.scope.collect(false) {
                        // SAFETY: This is kvmtraced's context, with a mutex held. Only NMIs must not
                        // call it.
                        m.buried = Some(unsafe { bindings::start_poll_synchronize_rcu() });
                    }
                }
            }
        }
    }
}

/// Moves all records of all sets to this CPU's ring; no admission is on the way. False if there is no
/// room.
pub(crate) fn collect() -> bool {
    with(true, |list| {
        let mut done = true;
        list.visit(|scope| done = done && scope.collect(true));
        done
    })
}

/// Drops all records that are in no ring yet; no admission is on the way. Gives how many.
pub(crate) fn discard() -> u64 {
    with(0, |list| {
        let mut lost = 0u64;
        list.visit(|scope| lost = lost.wrapping_add(scope.discard()));
        lost
    })
}

/// Pages that all sets together can have.
pub(crate) fn size() -> u64 {
    with(0, |list| {
        list.size.saturating_mul(list.nr_live.saturating_add(1))
    })
}

/// The figures of all sets together.
pub(crate) fn figures() -> Figures {
    with(Figures::default(), |list| list.figures())
}

/// Brings the figures that STATUS reports up to date.
pub(crate) fn fill(s: &mut bindings::vmtrace_status) {
    with((), |list| {
        s.evms_size = list.common.set.size() as u32;
        s.batch = list.common.set.batch() as u16;
        s.sets = list.make.sets;
        s.sets_made = u64::from(list.made);
        s.sets_max = list.most;
        s.sets_shared = list.shared;
    });
}
