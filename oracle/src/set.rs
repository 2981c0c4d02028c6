//! The set that CPUs share without a lock, as a replay sees it.
//!
//! The kernel's set lies in memory. A replay sees each load and each store of it, in order: the
//! QEMU that is watched runs its CPUs in turns. So it knows exactly who draws a number when, and
//! when a slot changes its state. This file checks that each change is one that the protocol
//! allows, by the CPU that may make it, and that it is made if and only if it must be. What
//! depends on a race is decided by what the CPU has read.
//!
//! # The protocol
//!
//! A *number* is drawn from one counter for each admission, and a *slot* is what a number has:
//! number `o` has slot `o % slots`. Two CPUs have to do with a number:
//!
//! - The one that drew `o`, its *owner*, reserves the slot and makes it live when the page becomes
//!   a member. Or it gives the admission up, and marks the slot as done with.
//! - The owner of `o + N` *puts it out*. It ends the stay if that has not ended, writes the
//!   record, and frees the slot. Instead, it may give the member its own number and draw another
//!   one: it *renews* members of first segments, and a CLOCK gives second chances. If its own
//!   number has no slot, it cannot do that, and the member goes.
//!
//! Members of other page tables go with one that is put out if the CPU can lock these page tables, which
//! it does not wait for. So if there are several CPUs, they may stay.
//!
//! If other members go with one that is put out, as its batch, their records are written at once as
//! long as their numbers follow it without a gap and there is room. The owners of later numbers
//! find nothing left to be done. Otherwise they write the records.
//!
//! Nobody waits. If the slot has not been freed by an earlier number, the admission is given up.
//! If the owner of `o + N` comes before `o` is live, it marks the slot as overdue, or leaves its
//! mark as `late` if `o` has no slot yet. Then `o` is given up, and the owner of `o + N` ends the
//! stay of `o - N` if it finds it live, and so on.
//!
//! Who clears the entry of a member, for any reason, ends its stay. So does who makes the set
//! smaller: first while others admit, of what is beyond the new size already; then the rest, while
//! the set is paused.
//!
//! # Several sets
//!
//! Several sets have one counter, and each of them has a counter of its own ([`Part::Ordinals`]). A CPU
//! draws a *clock* from the one and then an *ordinal* from the other, and whatever is said above of
//! numbers is about ordinals. But a stay ends at a clock, and what is told to others is clocks: see
//! [`SetList`]. Both are in the same order. If another CPU was faster, a clock is *skipped*, and
//! another one is drawn. With one set, both numbers are the same.
//!
//! # First segments
//!
//! A CPU's *claim* has the count of its admissions, and how many of the last of them are its first
//! segment. It loses that if it has not asked for long, or has switched to another task. If the
//! set is too small for the first segments of all CPUs, those that have a *seat* have one.

use crate::model::{EVICTED, INTERVAL, PIECE, Page, Shape, TABLES, Why};
use claims::Seating;
use std::collections::HashMap;
use std::ops::Range;
use view::{HANDLE_HUGE, HANDLE_PLACE};

mod claims;
mod list;
mod view;

pub use claims::CLAIM_NS;
pub use list::SetList;
pub use view::{Field, Part, State, Turn, View, extend, is_handle_of, place_at};

/// Members of first segments that an admission renews with the lock of its entry held, before it
/// goes on without it; and those that it renews then, before it evicts what comes next.
const NEAR_RENEWALS: u32 = 4;
const RENEWALS: u32 = 64;

/// Second chances that one admission gives at most.
const CHANCES: u32 = 16;
/// Times that a CPU lets another one come first.
const PATIENCE: u64 = 64;

/// Why the stay of a member ends, apart from what its record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// For a number, alone or with the member whose turn it was.
    Evicted,
    /// The kernel has cleared its entry.
    Closed,
    /// The set is made smaller, or emptied.
    Drained,
    /// It was found to have ended when the page was admitted again.
    Missed,
}

/// Something that has come to pass in a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The next number is drawn.
    Drawn,
    /// A page is a member.
    Admitted {
        /// The CPU whose fault it is.
        cpu: usize,
        /// The number.
        ordinal: u64,
    },
    /// A member has a new number.
    Renewed {
        /// The CPU that drew it.
        cpu: usize,
        /// The number so far.
        from: u64,
        /// The number from here on.
        to: u64,
        /// A second chance.
        chance: bool,
    },
    /// A member's stay has ended.
    Ended {
        /// The number.
        ordinal: u64,
        /// Why.
        cause: Cause,
    },
    /// An admission is given up.
    GivenUp {
        /// The number.
        ordinal: u64,
    },
    /// A number of all sets was not used.
    Skipped {
        /// The number.
        clock: u64,
    },
    /// A member has gone together with another one.
    Batched,
}

/// What is known of a number.
#[derive(Clone, Copy, Debug)]
struct Number {
    /// The number among those of all sets.
    clock: u64,
    /// Whose it is; that of a renewal is whose first segment it may be in.
    cpu: usize,
    nth: u32,
    page: Page,
    /// It was found to be overdue.
    overdue: bool,
    /// The accessed bit was cleared in the second segment.
    swept: bool,
    /// Somebody else has found it set since then.
    aged: bool,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    turn: Turn,
    late: u64,
    entry: u64,
}

/// What a number's owner has of its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    /// None so far.
    None,
    /// Reserved, and the greatest number that was found to be late, if it has looked.
    Reserved(Option<u64>),
    /// It is live, or done with.
    Used,
}

/// An admission, from the question to its end.
#[derive(Clone, Debug)]
struct Admission {
    page: Page,
    /// The handle of the page's entry.
    entry: u64,
    epoch: u32,
    /// The page's entry is locked while the number is drawn.
    near: bool,
    number: Option<u64>,
    /// The same among the numbers of all sets.
    clock: u64,
    /// Such a number for which there is none of the set yet, and what it had found to be the set's
    /// next number before.
    pending: Option<(u64, u64)>,
    /// What it has found to be the set's next number.
    seen_next: u64,
    nth: u32,
    time: u64,
    slot: Slot,
    /// What the owner has read last of the slot, while it has not reserved it.
    found: Option<Turn>,
    /// What it has stored of claims and seats, until that is checked.
    stores: Option<Vec<(Part, u64)>>,
    /// What it must store of seats, once that is known.
    seating: Option<Seating>,
    /// Whether the member whose turn it is is in a first segment, if that is decided.
    first: Option<bool>,
    /// What a look at that member's accessed bit has shown.
    looked: Option<bool>,
    chances: u32,
    /// Members of first segments that were renewed with the entry's lock held, and without it.
    renewals: [u32; 2],
    /// The member has the number. Another one is due.
    renewed: bool,
    /// The entry that was disabled, until the stay ends.
    taken: Option<u64>,
    /// Numbers that may go with the member.
    batch: Range<u64>,
    /// A page of each page table that is known to be locked for these, the member's first.
    tables: Vec<Page>,
    /// The one of them whose record may be written at once: those before it were.
    in_row: Option<u64>,
    /// The page may be made a member, or the admission given up.
    settling: bool,
    /// That which has passed into the second segment was swept.
    swept: bool,
    live: bool,
    /// Its owner has given up its slot.
    aborted: bool,
    /// What [`Set::all_ended`] was when the owner was last seen before it came to its slot. After
    /// that, and before it read the slot's turn, it has looked at it.
    all_ended: u64,
}

/// What has become of an admission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Its number in the set.
    pub number: u64,
    /// The page is a member.
    pub live: bool,
    /// The slot was free, and was not used.
    pub aborted: bool,
}

/// What a CPU is doing with the set.
#[derive(Clone, Debug)]
enum Task {
    None,
    Admit(Box<Admission>),
    /// The entry of a page was cleared. The next number, when that was read.
    Close {
        page: Page,
        next: Option<u64>,
    },
    /// Members are drained, one after the other.
    Drain {
        at: u64,
        all: bool,
        next: Option<u64>,
        taken: Option<u64>,
    },
    /// The set gets another size.
    Size {
        /// From this one.
        before: u64,
    },
}

/// A page that a CPU asks for.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The page.
    pub page: Page,
    /// The handle of its entry.
    pub entry: u64,
    /// The CPU's switches.
    pub epoch: u32,
    /// With the lock of the entry.
    pub near: bool,
}

/// Reads eight bytes of the kernel's memory.
pub type Word<'a> = &'a mut dyn FnMut(u64) -> u64;

/// What all sets have in common.
struct Clock {
    /// The first number of this trace, and the next one.
    start: u64,
    next: u64,
    /// The counter's word.
    word: u64,
    /// The number at which each page's last stay ended, or the page was dropped.
    ended: HashMap<Page, u64>,
    /// The same for an event of dropped pages: any page may be one of those.
    all_ended: u64,
    /// By CPU: the next number that was read for such an event, while it is logged.
    logging: Vec<Option<Option<u64>>>,
}

/// A set.
struct Set {
    shape: Shape,
    /// Which one it is.
    name: u32,
    /// Its numbers are its own.
    apart: bool,
    /// N.
    n: u64,
    /// The first number, and the next one.
    start: u64,
    next: u64,
    cells: Vec<Cell>,
    claims: Vec<[u64; 6]>,
    seats: Vec<u64>,
    /// The front of the queue and its length, and the seat that is looked at next.
    queue: (usize, usize),
    turn: usize,
    /// The CPU that has had the lock of the seats last, while it has not drawn its number.
    seater: Option<usize>,
    numbers: Vec<Number>,
    /// For each CPU, the numbers of its last admissions, each plus one.
    firsts: Vec<u64>,
    /// Renewals that have not written the record of the stay so far: that number, and the new one.
    moving: Vec<(u64, u64)>,
    tasks: Vec<Task>,
    /// What each CPU has read since its last decision.
    loads: Vec<Vec<(Part, u64)>>,
    sealed: bool,
    paused: bool,
    /// It has no address space any more.
    retired: bool,
    /// It is paused, and no admission is on the way. What is before this number is to be drained.
    steady: Option<u64>,
    /// The set is to be smaller. What was before this number is drained while others admit.
    beyond: u64,
    members: u64,
    wrong: Vec<String>,
    changes: Vec<Change>,
}

impl Set {
    /// An empty set of `n` pages for so many CPUs, as it lies there. `start` is its first number.
    fn new(shape: Shape, cpus: usize, view: &View, n: u64, start: u64) -> Self {
        let cell = Cell {
            turn: Turn {
                next: 0,
                state: State::Done,
            },
            late: 0,
            entry: 0,
        };
        Set {
            shape,
            name: view.number(),
            apart: view.is_apart(),
            n,
            start,
            next: start,
            cells: vec![cell; view.slots()],
            claims: vec![[0; 6]; cpus],
            seats: vec![0; cpus * 2],
            queue: (0, 0),
            turn: 0,
            seater: None,
            numbers: Vec::new(),
            firsts: vec![0; cpus * shape.first],
            moving: Vec::new(),
            tasks: vec![Task::None; cpus],
            loads: vec![Vec::new(); cpus],
            sealed: false,
            paused: false,
            retired: false,
            steady: None,
            beyond: 0,
            members: 0,
            wrong: Vec::new(),
            changes: Vec::new(),
        }
    }

    fn misplaced(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.wrong.push(match self.name {
            0 => text,
            set => format!("set {set}: {text}"),
        });
    }

    /// The number among those of all sets.
    fn clock_of(&self, ordinal: u64) -> u64 {
        self.number(ordinal).map_or(ordinal, |n| n.clock)
    }

    /// It has no address space any more: no page is a member, and no admission is on the way.
    fn retire(&mut self) {
        self.retired = true;
        let drawn = (0..self.tasks.len()).any(|cpu| self.drawn(cpu).is_some());
        if self.members > 0 || drawn {
            let members = self.members;
            self.misplaced(format!(
                "nobody is in it any more, it has {members} members, and an admission is{} on the way",
                if drawn { "" } else { " not" }
            ));
        }
    }

    /// Whether nothing is left of it.
    fn is_done(&self) -> bool {
        self.cells.iter().all(|c| c.turn.state == State::Done)
    }

    fn number(&self, ordinal: u64) -> Option<&Number> {
        let at = ordinal.checked_sub(self.start)?;
        self.numbers.get(usize::try_from(at).ok()?)
    }

    fn number_mut(&mut self, ordinal: u64) -> Option<&mut Number> {
        let at = ordinal.checked_sub(self.start)?;
        self.numbers.get_mut(usize::try_from(at).ok()?)
    }

    fn slot(&self, ordinal: u64) -> usize {
        ordinal as usize & (self.cells.len() - 1)
    }

    fn cell(&self, ordinal: u64) -> &Cell {
        &self.cells[self.slot(ordinal)]
    }

    /// Whether a number is a member's.
    fn is_live(&self, ordinal: u64) -> bool {
        self.cell(ordinal).turn.is(ordinal, State::Live)
    }

    fn admission(&self, cpu: usize) -> Option<&Admission> {
        match self.tasks.get(cpu)? {
            Task::Admit(a) => Some(a),
            _ => None,
        }
    }

    fn admission_mut(&mut self, cpu: usize) -> Option<&mut Admission> {
        match self.tasks.get_mut(cpu)? {
            Task::Admit(a) => Some(a),
            _ => None,
        }
    }

    /// The number that a CPU has drawn, while it is about to use it.
    fn drawn(&self, cpu: usize) -> Option<u64> {
        self.admission(cpu)?.number
    }

    /// The page that a CPU asks for.
    fn asks(&self, cpu: usize) -> Option<Page> {
        self.admission(cpu).map(|a| a.page)
    }

    /// The page whose entry a CPU has cleared, while it tells the set so.
    fn closes(&self, cpu: usize) -> Option<Page> {
        match self.tasks.get(cpu)? {
            Task::Close { page, .. } => Some(*page),
            _ => None,
        }
    }

    /// Whether this is what a CPU keeps of its number: in the set, among those of all, and its time.
    fn has(&self, cpu: usize, number: u64, clock: u64, time: u64) -> bool {
        self.admission(cpu)
            .is_some_and(|a| (a.number, a.clock, a.time) == (Some(number), clock, time))
    }

    /// The number that a number puts out.
    fn out(&self, ordinal: u64) -> Option<u64> {
        ordinal.checked_sub(self.n).filter(|o| *o >= self.start)
    }

    // What CPUs ask of the set.

    fn begin(&mut self, cpu: usize, task: Task) {
        if let Some(number) = self.drawn(cpu) {
            self.misplaced(format!("CPU {cpu} leaves its number {number} behind"));
        }
        self.tasks[cpu] = task;
        self.loads[cpu].clear();
    }

    /// A CPU asks for the admission of a page.
    fn ask(&mut self, cpu: usize, ask: Ask, clock: &Clock) {
        let Ask {
            page,
            entry,
            epoch,
            near,
        } = ask;
        let admission = Admission {
            page,
            entry,
            epoch,
            near,
            number: None,
            clock: 0,
            pending: None,
            seen_next: 0,
            nth: 0,
            time: 0,
            slot: Slot::None,
            found: None,
            stores: Some(Vec::new()),
            seating: None,
            first: None,
            looked: None,
            chances: 0,
            renewals: [0; 2],
            renewed: false,
            taken: None,
            batch: 0..0,
            tables: Vec::new(),
            in_row: None,
            settling: near,
            swept: false,
            live: false,
            aborted: false,
            all_ended: clock.all_ended,
        };
        self.begin(cpu, Task::Admit(Box::new(admission)));
    }

    /// It is about to make the page a member, or to give up.
    fn settles(&mut self, cpu: usize, clock: &Clock) {
        self.seen_at_work(cpu, clock);
        if let Some(a) = self.admission_mut(cpu) {
            a.settling = true;
        }
    }

    /// It has its answer.
    fn admitted(&mut self, cpu: usize) -> Option<Outcome> {
        self.took(cpu);
        self.end_batch(cpu);
        let Task::Admit(a) = std::mem::replace(&mut self.tasks[cpu], Task::None) else {
            return None;
        };
        let number = a.number?;
        if a.renewed {
            self.misplaced(format!("no number follows {number}, which a member has"));
        }
        if !a.live {
            self.check_way(number);
            if !self.has_no_slot(number, &a) {
                let (slot, found) = (a.slot, a.found);
                self.misplaced(format!(
                    "number {number} is neither used nor given up: {slot:?}, {found:?}"
                ));
            }
            self.changes.push(Change::GivenUp { ordinal: number });
        }
        Some(Outcome {
            number,
            live: a.live,
            aborted: a.aborted,
        })
    }

    /// Whether an admission is done with its slot, or has found that the number has none.
    fn has_no_slot(&self, number: u64, a: &Admission) -> bool {
        match a.slot {
            Slot::None => a.found.is_some_and(|t| !t.is_free(number)),
            Slot::Reserved(_) => false,
            Slot::Used => true,
        }
    }

    /// Only the number was drawn, although the entry was locked. This must have a reason.
    fn went_far(&mut self, cpu: usize) {
        self.took(cpu);
        let Some(a) = self.admission(cpu) else {
            return;
        };
        let Some(number) = a.number else {
            self.misplaced(format!("CPU {cpu} goes on without a number"));
            return;
        };
        let (entry, near, renewals) = (a.entry, a.near, a.renewals[0]);
        if let Some(a) = self.admission_mut(cpu) {
            (a.settling, a.near) = (false, false);
        }
        if !near || self.shape.sweeps() || renewals == NEAR_RENEWALS {
            return;
        }
        // The member that it has found, which may have gone since.
        let found = self.loads[cpu]
            .iter()
            .rev()
            .find_map(|(part, value)| match part {
                Part::Entry(slot) => Some((*slot, *value)),
                _ => None,
            });
        // The turn of another one than the first comes only if a CPU is slow.
        let own = self.out(number).map(|o| self.slot(o));
        let far = |other: u64| (other ^ entry) >> 12 != 0 || (other | entry) & HANDLE_HUGE != 0;
        let reason = found.is_some_and(|(slot, other)| Some(slot) != own || far(other));
        if !reason {
            self.misplaced(format!(
                "number {number} is not used at once, although nothing far away is to be done"
            ));
        }
    }

    /// The numbers that a number puts out if all CPUs are slow, the latest first.
    fn row(&self, ordinal: u64) -> impl Iterator<Item = u64> + use<'_> {
        let steps = 1..=self.claims.len() as u64 + 1;
        steps
            .map_while(move |k| ordinal.checked_sub(k * self.n))
            .take_while(|o| *o >= self.start)
    }

    /// The kernel has cleared the entry of a page.
    fn close(&mut self, cpu: usize, page: Page) {
        self.begin(cpu, Task::Close { page, next: None });
    }

    /// Members from a number on are to be drained: those beyond a smaller set, or all that there are.
    fn drain(&mut self, cpu: usize, at: u64, why: Why) {
        let all = why != EVICTED;
        self.begin(
            cpu,
            Task::Drain {
                at,
                all,
                next: None,
                taken: None,
            },
        );
        // Admissions may go on when a piece of the trace or an interval ends.
        if all && !self.sealed && !matches!(why, PIECE | INTERVAL) {
            self.misplaced("members are drained before the end");
        }
    }

    /// What a CPU was doing is done, unless it is an admission.
    fn done(&mut self, cpu: usize) {
        match self.tasks[cpu] {
            Task::Admit(_) => return,
            Task::Size { before } => self.sized(before),
            _ => {}
        }
        self.tasks[cpu] = Task::None;
    }

    /// Admissions are made no more, or again, while the trace goes on.
    fn pause(&mut self, on: bool) {
        self.paused = on;
        self.steady = None;
    }

    /// Where a set of this size begins.
    fn begin_of(&self, n: u64) -> u64 {
        self.next.saturating_sub(n).max(self.start)
    }

    /// A task has asked where a set of size `n` begins, when it would have begun at `from`, and gets
    /// this answer: the set is to have that size. If the set is not paused, it is about to be
    /// smaller: what is beyond that size already is drained. If it is, the size is to change, and
    /// nothing is on the way.
    fn begins_at(&mut self, n: u64, from: u64, begin: u64) {
        if !(from..=self.begin_of(n)).contains(&begin) {
            self.misplaced("the beginning of a set does not follow from the next number");
            return;
        }
        if !self.paused {
            self.beyond = begin;
            return;
        }
        for cpu in 0..self.tasks.len() {
            if let Some(number) = self.drawn(cpu) {
                self.misplaced(format!(
                    "number {number} is on the way on CPU {cpu} while the set is paused"
                ));
            }
        }
        self.steady = Some(begin);
    }

    /// It has this size from here on.
    fn resized(&mut self, cpu: usize, n: u64) {
        if self.steady.is_none() {
            self.misplaced("the set has another size while admissions may be on the way");
        }
        let beyond = self.next.saturating_sub(n);
        for ordinal in self.next.saturating_sub(self.n).max(self.start)..beyond {
            let turn = self.cell(ordinal).turn;
            if turn.next == ordinal + 1 && turn.state != State::Done {
                self.misplaced(format!(
                    "number {ordinal} is {:?} beyond a set of {n}",
                    turn.state
                ));
            }
        }
        self.tasks[cpu] = Task::Size { before: self.n };
        let cpus = self.claims.len();
        if claims::seats(&self.shape, n, cpus) != claims::seats(&self.shape, self.n, cpus) {
            (self.queue, self.turn) = ((0, 0), 0);
        }
        self.n = n;
    }

    /// The set has done what it does for another size than it had `before`.
    fn sized(&mut self, before: u64) {
        let cpus = self.claims.len();
        let anew =
            claims::seats(&self.shape, self.n, cpus) != claims::seats(&self.shape, before, cpus);
        let clear = |c: &[u64; 6]| {
            [Field::Used, Field::Seat]
                .iter()
                .all(|f| c[*f as usize] == 0)
                && c[Field::Counts as usize] as u32 == 0
        };
        if anew && (self.seats.iter().any(|s| *s != 0) || !self.claims.iter().all(clear)) {
            self.misplaced("the seats are others, and first segments do not begin anew");
        }
    }

    /// Somebody else clears the accessed bit of a member.
    fn aged(&mut self, ordinal: u64, young: bool) {
        if let Some(number) = self.number_mut(ordinal) {
            number.aged |= young;
        }
    }

    /// Whether a member was swept, and whether somebody else has found its accessed bit set since
    /// then.
    fn marks(&self, ordinal: u64) -> (bool, bool) {
        self.number(ordinal)
            .map_or((false, false), |n| (n.swept, n.aged))
    }

    // What CPUs do with entries.

    /// `vmtrace_pte_take()`: the entry at a place of its page table is disabled. Returns the
    /// member whose stay ends with that.
    fn takes(&mut self, cpu: usize, place: u64) -> Option<u64> {
        let ordinal = match &self.tasks[cpu] {
            Task::Admit(_) => self.victim(cpu),
            Task::Drain { at, all, .. } => {
                let (at, all) = (*at, *all);
                let limit = if all {
                    u64::MAX
                } else {
                    self.steady.unwrap_or(self.beyond)
                };
                if at >= limit {
                    self.misplaced(format!(
                        "number {at} is drained, which has its place in the smaller set"
                    ));
                }
                Some(at)
            }
            _ => None,
        };
        let Some(ordinal) = ordinal.filter(|o| self.is_live(*o)) else {
            self.misplaced(format!(
                "entry {place} is disabled on CPU {cpu} out of its turn: {ordinal:?}"
            ));
            return None;
        };
        if self.place_of(ordinal) != place {
            self.misplaced(format!(
                "entry {place} is disabled on CPU {cpu}, and number {ordinal} is in entry {}",
                self.place_of(ordinal)
            ));
        }
        match &mut self.tasks[cpu] {
            Task::Admit(a) => a.taken = Some(ordinal),
            Task::Drain { taken, .. } => *taken = Some(ordinal),
            _ => {}
        }
        Some(ordinal)
    }

    fn place_of(&self, ordinal: u64) -> u64 {
        (self.cell(ordinal).entry & HANDLE_PLACE) / 8
    }

    /// The member that a CPU's number puts out, or the next one of its batch. It must not be
    /// renewed.
    fn victim(&mut self, cpu: usize) -> Option<u64> {
        self.took(cpu);
        let a = self.admission(cpu)?;
        let (number, looked) = (a.number?, a.looked);
        let has_no_slot = self.has_no_slot(number, a);
        if !a.batch.is_empty() {
            return self.next_of_batch(cpu);
        }
        let out = self.out(number)?;
        if !self.is_live(out) {
            // A CPU was slow: what it had to do is done for it.
            let live = self.row(number).find(|o| self.is_live(*o))?;
            return self.is_in_row(cpu, live).then_some(live);
        }
        let first = self.first(cpu, out);
        let look = !first && self.may_look(cpu, out);
        let must = match (first, looked) {
            (true, _) if !has_no_slot => Some("be renewed, for it is in a first segment"),
            (_, None) if look => Some("be looked at first"),
            (_, Some(true)) if !has_no_slot => Some("get a second chance"),
            _ => None,
        };
        if let Some(must) = must {
            self.misplaced(format!("number {out} goes for {number}, and must {must}"));
        }
        Some(out)
    }

    fn may_look(&self, cpu: usize, out: u64) -> bool {
        let chances = self.admission(cpu).map_or(0, |a| a.chances);
        self.shape.clock && chances < CHANCES && self.number(out).is_some_and(|n| n.swept)
    }

    /// Whether the member that a number puts out is in a first segment, decided once.
    fn first(&mut self, cpu: usize, out: u64) -> bool {
        if let Some(first) = self.admission(cpu).and_then(|a| a.first) {
            return first;
        }
        if self
            .admission(cpu)
            .is_some_and(|a| a.renewals[1] >= RENEWALS)
        {
            return false;
        }
        let first = self.is_first(cpu, out);
        if let Some(a) = self.admission_mut(cpu) {
            a.first = Some(first);
        }
        first
    }

    /// The next number of a batch that goes or must go, of those that were live when the CPU looked.
    fn next_of_batch(&mut self, cpu: usize) -> Option<u64> {
        loop {
            let a = self.admission_mut(cpu)?;
            let number = a.number?;
            let ordinal = a.batch.next()?;
            let mut tables = std::mem::take(&mut a.tables);
            let goes = self.goes_with(cpu, ordinal, self.out(number)?, &mut tables);
            self.admission_mut(cpu)?.tables = tables;
            if goes {
                self.changes.push(Change::Batched);
                return Some(ordinal);
            }
        }
    }

    fn goes_with(&mut self, cpu: usize, ordinal: u64, out: u64, tables: &mut Vec<Page>) -> bool {
        let (Some(page), Some(victim)) = (self.page_of(ordinal), self.page_of(out)) else {
            return false;
        };
        let huge = (self.cell(ordinal).entry | self.cell(out).entry) & HANDLE_HUGE != 0;
        let live = self.saw_live(cpu, ordinal);
        let alone = self.claims.len() == 1;
        if huge || page.mm != victim.mm || alone && !live {
            return false;
        }
        if tables.is_empty() {
            tables.push(victim);
        }
        if !tables.iter().any(|one| one.is_near(page)) {
            if tables.len() == TABLES || !(alone || self.has_locked(cpu, ordinal, out)) {
                return false;
            }
            tables.push(page);
        }
        live && !self.is_first(cpu, ordinal)
    }

    /// Whether a CPU has locked the page table of a number's page to evict it with `out`, if the CPU had
    /// not locked it before. It looks at the turn of the page's slot twice before it tries to, and at once
    /// again if it could. When it has looked at all of the batch, it looks at the turn of `out`. After
    /// that, it may look at any turn for another reason.
    fn has_locked(&self, cpu: usize, ordinal: u64, out: u64) -> bool {
        let (slot, out) = (self.slot(ordinal), self.slot(out));
        let turns = self.loads[cpu].iter().filter_map(|(part, _)| match part {
            Part::Turn(slot) => Some(*slot),
            _ => None,
        });
        let mut in_row = 0;
        turns.take_while(|turn| *turn != out).any(|turn| {
            in_row = if turn == slot { in_row + 1 } else { 0 };
            in_row > 2
        })
    }

    fn page_of(&self, ordinal: u64) -> Option<Page> {
        self.number(ordinal).map(|number| number.page)
    }

    /// Whether a number was a member's when a CPU looked at its slot last. It must have looked, if
    /// the number is one.
    fn saw_live(&self, cpu: usize, ordinal: u64) -> bool {
        let at = Part::Turn(self.slot(ordinal));
        let mut loads = self.loads[cpu].iter().rev();
        match loads.find(|(part, _)| *part == at) {
            Some((_, word)) => *word == Turn::new(ordinal, State::Live).word(),
            None => self.is_live(ordinal),
        }
    }

    /// A CPU goes on after it has put a number out: all of the batch has gone.
    fn end_batch(&mut self, cpu: usize) {
        if let Some(going) = self.next_of_batch(cpu) {
            self.misplaced(format!("number {going} must go with others, and stays"));
        }
        if let Some(a) = self.admission_mut(cpu) {
            (a.batch, a.in_row) = (0..0, None);
            a.tables.clear();
        }
    }

    /// `vmtrace_pte_sweep()` on this CPU. Returns the member whose accessed bit is cleared.
    fn sweeps(&mut self, cpu: usize) -> Option<u64> {
        self.took(cpu);
        let number = self.admission(cpu).and_then(|a| a.number);
        let Some(number) = number else {
            self.misplaced(format!("CPU {cpu} clears an accessed bit without a number"));
            return None;
        };
        let out = self.out(number).filter(|o| self.is_live(*o));
        if let Some(out) = out {
            let first = self.first(cpu, out);
            if first || !self.may_look(cpu, out) {
                self.misplaced(format!(
                    "number {out} is looked at for a second chance that it cannot get"
                ));
            }
            return Some(out);
        }
        let passed = self.passes(cpu);
        let live = passed.iter().copied().find(|o| self.is_live(*o));
        if live.is_none() {
            self.misplaced(format!(
                "CPU {cpu} clears an accessed bit, and what passes is {passed:?}"
            ));
        }
        live
    }

    /// It has found these bits. Returns whether this was a look for a second chance.
    fn swept(&mut self, cpu: usize, ordinal: u64, young: bool) -> bool {
        let number = self.admission(cpu).and_then(|a| a.number);
        let out = number.and_then(|n| self.out(n));
        if out == Some(ordinal) {
            let aged = self.number(ordinal).is_some_and(|n| n.aged);
            if let Some(a) = self.admission_mut(cpu) {
                a.looked = Some(young || aged);
            }
            return true;
        }
        if let Some(n) = self.number_mut(ordinal) {
            (n.swept, n.aged) = (true, false);
        }
        if let Some(a) = self.admission_mut(cpu) {
            a.swept = true;
        }
        false
    }

    /// The place of a CPU's admission among its last ones.
    fn place(&self, cpu: usize, nth: u32) -> usize {
        cpu * self.shape.first + nth as usize % self.shape.first
    }

    /// The numbers of which one has passed into the second segment: two while it is renewed.
    fn passes(&self, cpu: usize) -> Vec<u64> {
        let Some(a) = self.admission(cpu).filter(|_| self.shape.sweeps()) else {
            return Vec::new();
        };
        let Some(passed) = self.firsts[self.place(cpu, a.nth)].checked_sub(1) else {
            return Vec::new();
        };
        let before = self.moving.iter().find(|(_, to)| *to == passed);
        [Some(passed), before.map(|(from, _)| *from)]
            .into_iter()
            .flatten()
            .collect()
    }

    /// The way is clear: what has passed into the second segment must have been swept, if it was a
    /// member when the CPU looked.
    fn passed(&mut self, cpu: usize) {
        self.took(cpu);
        let Some(a) = self.admission(cpu) else {
            return;
        };
        let (Some(number), nth, swept) = (a.number, a.nth, a.swept) else {
            return;
        };
        let passed = self.passes(cpu);
        if self.shape.sweeps() {
            let place = self.place(cpu, nth);
            self.firsts[place] = number + 1;
        }
        let missed = passed.iter().all(|o| {
            let at = Part::Turn(self.slot(*o));
            self.loads[cpu].iter().any(|(part, _)| *part == at) && self.saw_live(cpu, *o)
        });
        if !swept && !passed.is_empty() && missed {
            self.misplaced(format!(
                "{passed:?} passes into the second segment on CPU {cpu}, and is not swept"
            ));
        }
    }

    // Words of the set.

    /// A CPU has asked for another one's switches.
    fn switches(&mut self, cpu: usize, of: usize, value: u32) {
        self.loads[cpu].push((Part::Switches(of), u64::from(value)));
    }

    /// A CPU has loaded a word.
    fn load(&mut self, cpu: usize, part: Part, value: u64, clock: &Clock) {
        if !self.is_of_own_slot(cpu, part) {
            self.seen_at_work(cpu, clock);
        }
        match part {
            Part::Counter => self.next_loaded(cpu, extend(value as u32, clock.next), false),
            Part::Ordinals => self.next_loaded(cpu, value, true),
            Part::Turn(slot) => self.turn_loaded(cpu, slot, value),
            Part::Late(slot) => self.late_loaded(cpu, slot, value),
            Part::Claim(of, Field::Seat) if of == cpu => self.seat_loaded(cpu),
            _ => {}
        }
        if matches!(self.tasks[cpu], Task::Admit(_)) {
            self.loads[cpu].push((part, value));
        }
    }

    /// A CPU does something else than to reserve its slot and make it live.
    fn seen_at_work(&mut self, cpu: usize, clock: &Clock) {
        if let Some(a) = self.admission_mut(cpu) {
            a.all_ended = clock.all_ended;
        }
    }

    /// Whether a word is one of the slot of a CPU's number.
    fn is_of_own_slot(&self, cpu: usize, part: Part) -> bool {
        let own = self.drawn(cpu).map(|number| self.slot(number));
        matches!(part, Part::Turn(slot) | Part::Late(slot) | Part::Entry(slot) if Some(slot) == own)
    }

    /// A CPU has read the next number, of all sets or `own`.
    fn next_loaded(&mut self, cpu: usize, value: u64, own: bool) {
        match &mut self.tasks[cpu] {
            Task::Close { next, .. } if !own => {
                next.get_or_insert(value);
            }
            // It reads the number again for each member.
            Task::Drain { next, .. } if !own => *next = Some(value),
            Task::Admit(a) if own => a.seen_next = value,
            _ => {}
        }
    }

    fn turn_loaded(&mut self, cpu: usize, slot: usize, word: u64) {
        let Some(number) = self.drawn(cpu) else {
            return;
        };
        self.took(cpu);
        if slot == self.slot(number) {
            if let Some(a) = self.admission_mut(cpu) {
                if a.slot == Slot::None {
                    a.found = Turn::read(word);
                }
            }
        }
    }

    fn late_loaded(&mut self, cpu: usize, slot: usize, value: u64) {
        let own = self.drawn(cpu).map(|number| self.slot(number));
        if let Some(a) = self.admission_mut(cpu).filter(|_| own == Some(slot)) {
            if let Slot::Reserved(late) = &mut a.slot {
                *late = Some(value);
            }
        }
    }

    /// A CPU has stored a word.
    fn store(&mut self, cpu: usize, part: Part, value: u64, clock: &mut Clock, word: Word<'_>) {
        if !self.is_of_own_slot(cpu, part) {
            self.seen_at_work(cpu, clock);
        }
        match part {
            Part::Ordinals => self.ordinals_stored(cpu, value),
            Part::Turn(slot) => self.turn_stored(cpu, slot, value, clock, word),
            Part::Late(slot) => self.late_stored(cpu, slot, value),
            Part::Entry(slot) => self.entry_stored(cpu, slot, value),
            Part::Claim(of, field) => {
                self.claims[of][field as usize] = value;
                self.claim_stored(cpu, part, value);
            }
            Part::Seat(seat) => {
                self.seats[seat] = value;
                self.claim_stored(cpu, part, value);
            }
            Part::Counter | Part::Switches(_) => {}
        }
    }

    fn claim_stored(&mut self, cpu: usize, part: Part, value: u64) {
        let stores = match &mut self.tasks[cpu] {
            Task::Admit(a) => a.stores.as_mut(),
            Task::Size { .. } => return,
            _ => None,
        };
        if let Some(stores) = stores {
            stores.push((part, value));
            return;
        }
        self.misplaced(format!(
            "CPU {cpu} stores {value:#x} as {part:?}, and draws no number"
        ));
    }

    /// A CPU has drawn a number of all sets.
    fn counted(&mut self, cpu: usize, clock: u64) {
        if self.steady.is_some() {
            self.misplaced(format!("number {clock} is drawn while the set is paused"));
        }
        if self.admission(cpu).is_none() {
            self.misplaced(format!("CPU {cpu} draws number {clock} for nothing"));
            return;
        }
        if !self.apart {
            self.next = clock;
            self.draws(cpu, clock);
            return;
        }
        self.skips(cpu);
        if let Some(a) = self.admission_mut(cpu) {
            a.pending = Some((clock, a.seen_next));
        }
    }

    /// A CPU does not use the number of all sets that it has, if it has one. There must be a reason:
    /// another CPU has drawn the number of this set that this CPU wanted.
    fn skips(&mut self, cpu: usize) {
        let next = self.next;
        let Some(a) = self.admission_mut(cpu) else {
            return;
        };
        let Some((clock, found)) = a.pending.take() else {
            return;
        };
        if found == next {
            self.misplaced(format!(
                "CPU {cpu} does not use number {clock}, although no other CPU was faster"
            ));
        }
        self.changes.push(Change::Skipped { clock });
    }

    /// A CPU has drawn a number of this set, or tried to.
    fn ordinals_stored(&mut self, cpu: usize, value: u64) {
        let next = self.next;
        if value == next {
            // Another CPU was faster.
            return;
        }
        let clock = self.admission_mut(cpu).and_then(|a| a.pending.take());
        let Some((clock, _)) = clock.filter(|_| value == next + 1) else {
            self.misplaced(format!(
                "CPU {cpu} makes {value} the next number, which is {next}, for number {clock:?} of all"
            ));
            return;
        };
        let before = self.numbers.last().map(|n| n.clock);
        if before.is_some_and(|before| before > clock) {
            self.misplaced(format!(
                "number {clock} of all becomes {next}, and the one before is {before:?} of all"
            ));
        }
        self.draws(cpu, clock);
    }

    /// A CPU has drawn the next number.
    fn draws(&mut self, cpu: usize, clock: u64) {
        let number = self.next;
        self.next += 1;
        self.numbers.push(Number {
            clock,
            cpu,
            nth: 0,
            page: Page { mm: 0, addr: 0 },
            overdue: false,
            swept: false,
            aged: false,
        });
        let Some(a) = self.admission_mut(cpu) else {
            return;
        };
        let (before, renewed) = (a.number, a.renewed);
        (a.number, a.clock) = (Some(number), clock);
        (a.slot, a.found, a.first, a.looked) = (Slot::None, None, None, None);
        a.renewed = false;
        if let Some(before) = before.filter(|_| !renewed) {
            self.misplaced(format!("CPU {cpu} draws {number} and has {before}"));
        }
        // What it has read before is of another decision, unless it is the first number.
        if before.is_some() {
            self.loads[cpu].clear();
        }
    }

    fn entry_stored(&mut self, cpu: usize, slot: usize, value: u64) {
        let cell = &mut self.cells[slot];
        cell.entry = value;
        let reserved = matches!(cell.turn.state, State::Reserved | State::Overdue);
        let next = cell.turn.next;
        if !reserved || self.drawn(cpu).map(|n| n + 1) != Some(next) {
            self.misplaced(format!(
                "CPU {cpu} stores an entry in slot {slot}, which is not its own"
            ));
        }
    }

    fn late_stored(&mut self, cpu: usize, slot: usize, value: u64) {
        let before = std::mem::replace(&mut self.cells[slot].late, value);
        if before == value {
            return;
        }
        let number = self.drawn(cpu);
        let row = value > 0 && self.is_in_row(cpu, value - 1);
        if value < before || !row || self.slot(value.wrapping_sub(1)) != slot {
            self.misplaced(format!(
                "CPU {cpu} with {number:?} finds that number {} is late",
                value.wrapping_sub(1)
            ));
        }
    }

    fn turn_stored(
        &mut self,
        cpu: usize,
        slot: usize,
        value: u64,
        clock: &mut Clock,
        word: Word<'_>,
    ) {
        let old = self.cells[slot].turn;
        let Some(new) = Turn::read(value) else {
            self.misplaced(format!("CPU {cpu} stores {value:#x} in slot {slot}"));
            return;
        };
        if new == old {
            // Another CPU was faster.
            return;
        }
        let Some(ordinal) = new.next.checked_sub(1) else {
            self.misplaced(format!("CPU {cpu} stores no number in slot {slot}"));
            return;
        };
        self.took(cpu);
        let own = self.drawn(cpu) == Some(ordinal);
        let same = old.next == new.next && self.slot(ordinal) == slot;
        self.cells[slot].turn = new;
        let free = self.slot(ordinal) == slot && old.is_free(ordinal);
        let fits = match (old.state, new.state) {
            (State::Done, State::Reserved) => own && free && self.reserves(cpu),
            (State::Done, State::Done) => own && free && self.aborts(cpu, ordinal),
            _ if !same => false,
            (State::Reserved, State::Done) => own && self.is_late(cpu, ordinal),
            (State::Reserved, State::Live) => own && self.lives(cpu, ordinal, clock),
            (State::Reserved, State::Overdue) => self.overtakes(cpu, ordinal),
            (State::Overdue, State::Done) => own && self.frees_own(cpu),
            (State::Live, State::Closed) => self.ends(cpu, ordinal, false, clock, word),
            (State::Live, State::Done) => self.ends(cpu, ordinal, true, clock, word),
            (State::Closed, State::Done) => self.writes(cpu, ordinal),
            _ => false,
        };
        if !fits {
            self.misplaced(format!(
                "CPU {cpu}, with number {:?}, makes {new:?} of {old:?} in slot {slot}",
                self.drawn(cpu)
            ));
        }
    }

    fn reserves(&mut self, cpu: usize) -> bool {
        match self.admission_mut(cpu) {
            Some(a) if a.slot == Slot::None => {
                a.slot = Slot::Reserved(None);
                true
            }
            _ => false,
        }
    }

    /// The owner has seen that the number is late.
    fn is_late(&mut self, cpu: usize, ordinal: u64) -> bool {
        let before = self
            .admission_mut(cpu)
            .map(|a| std::mem::replace(&mut a.slot, Slot::Used));
        matches!(before, Some(Slot::Reserved(Some(late))) if late > ordinal)
    }

    fn frees_own(&mut self, cpu: usize) -> bool {
        self.admission_mut(cpu)
            .map(|a| a.slot = Slot::Used)
            .is_some()
    }

    /// A number that has its slot is given up by another one.
    fn overtakes(&mut self, cpu: usize, ordinal: u64) -> bool {
        if let Some(number) = self.number_mut(ordinal) {
            number.overdue = true;
        }
        self.is_in_row(cpu, ordinal)
    }

    /// Whether a CPU's number may give a number up: it puts it out, or would, if those in between
    /// were not given up.
    fn is_in_row(&mut self, cpu: usize, ordinal: u64) -> bool {
        let Some(number) = self.drawn(cpu) else {
            return false;
        };
        let between = self.row(number).take_while(|o| *o > ordinal);
        let given_up = |o: u64| {
            let cell = self.cell(o);
            let overdue = self.number(o).is_some_and(|n| n.overdue);
            match cell.turn.state {
                _ if cell.turn.next != o + 1 => true,
                State::Overdue => true,
                // Its owner has seen that.
                State::Done => overdue || cell.late > o,
                _ => false,
            }
        };
        self.row(number).any(|o| o == ordinal) && between.into_iter().all(given_up)
    }

    /// A slot is freed by the owner of the number that puts it out; or by anybody while no number
    /// is on the way.
    fn puts_out(&mut self, cpu: usize, ordinal: u64) -> bool {
        match self.drawn(cpu) {
            Some(number) => self.out(number) == Some(ordinal),
            None => {
                (self.sealed || self.retired || self.steady.is_some())
                    && (0..self.tasks.len()).all(|cpu| self.drawn(cpu).is_none())
            }
        }
    }

    fn writes(&mut self, cpu: usize, ordinal: u64) -> bool {
        self.end_batch(cpu);
        self.moving.retain(|(from, _)| *from != ordinal);
        self.puts_out(cpu, ordinal)
    }

    /// A slot gets live: that of an admission, or of a renewal.
    fn lives(&mut self, cpu: usize, ordinal: u64, clock: &Clock) -> bool {
        self.end_batch(cpu);
        let out = self.out(ordinal).filter(|o| self.is_live(*o));
        let Some(a) = self.admission_mut(cpu) else {
            return false;
        };
        // It has looked whether it is late after it had reserved the slot, and it was not.
        let before = std::mem::replace(&mut a.slot, Slot::Used);
        let in_time = matches!(before, Slot::Reserved(Some(late)) if late <= ordinal);
        if let Some(out) = out {
            if !a.settling || a.near {
                self.renews(cpu, out, ordinal);
                return in_time;
            }
        }
        let Some(a) = self.admission_mut(cpu) else {
            return false;
        };
        a.live = true;
        let (settling, page, nth, all_ended) = (a.settling, a.page, a.nth, a.all_ended);
        self.members += 1;
        self.check_way(ordinal);
        if self.members > self.n {
            self.misplaced(format!("{} pages are members", self.members));
        }
        let ended = clock.ended.get(&page).copied().unwrap_or_default();
        let own = self.clock_of(ordinal);
        if own < ended.max(all_ended) {
            self.misplaced(format!(
                "number {own} on CPU {cpu} is given to {page:?}, whose last stay ended at \
                 {ended}, or which may have been dropped before {all_ended}"
            ));
        }
        if let Some(number) = self.number_mut(ordinal) {
            *number = Number {
                clock: number.clock,
                cpu,
                nth,
                page,
                overdue: false,
                swept: false,
                aged: false,
            };
        }
        self.changes.push(Change::Admitted { cpu, ordinal });
        settling && in_time
    }

    fn renews(&mut self, cpu: usize, from: u64, to: u64) {
        let first = self.first(cpu, from);
        let looked = self.admission(cpu).and_then(|a| a.looked);
        let chance = !first && looked == Some(true);
        if !first && !chance {
            self.misplaced(format!(
                "number {from} becomes {to}, and is neither in a first segment nor referenced"
            ));
        }
        let number = *self.number(from).unwrap_or(&Number {
            clock: 0,
            cpu,
            nth: 0,
            page: Page { mm: 0, addr: 0 },
            overdue: false,
            swept: false,
            aged: false,
        });
        if let Some(next) = self.number_mut(to) {
            *next = Number {
                clock: next.clock,
                aged: false,
                ..number
            };
        }
        if !chance && self.shape.sweeps() {
            let place = self.place(number.cpu, number.nth);
            if self.firsts[place] == from + 1 {
                self.firsts[place] = to + 1;
            }
        }
        self.moving.push((from, to));
        if let Some(a) = self.admission_mut(cpu) {
            a.renewed = true;
            a.chances += u32::from(chance);
            a.renewals[usize::from(!a.near)] += u32::from(!chance);
            if a.near && a.renewals[0] > NEAR_RENEWALS {
                let text = format!("{to} is one more renewal with the lock of the entry held");
                self.misplaced(text);
            }
        }
        self.changes.push(Change::Renewed {
            cpu,
            from,
            to,
            chance,
        });
    }

    /// Whether an admission with a CPU's number is too late for its page; `None` while that is being
    /// changed.
    fn is_overtaken(&self, cpu: usize, clock: &Clock) -> Option<bool> {
        let a = self.admission(cpu)?;
        a.number?;
        let ended = clock.ended.get(&a.page).copied().unwrap_or_default();
        let mut logging = clock.logging.iter().flatten().flatten();
        match a.clock < ended.max(clock.all_ended) {
            true => Some(true),
            false => (!logging.any(|next| *next > a.clock)).then_some(false),
        }
    }

    /// The owner of a number gives it up, and its slot is free.
    fn aborts(&mut self, cpu: usize, ordinal: u64) -> bool {
        self.end_batch(cpu);
        let Some(a) = self.admission_mut(cpu) else {
            return false;
        };
        let before = std::mem::replace(&mut a.slot, Slot::Used);
        a.aborted = true;
        let settling = a.settling;
        self.check_way(ordinal);
        settling && before == Slot::None
    }

    /// What a number puts out must be done before it is used or given up.
    fn check_way(&mut self, number: u64) {
        for (i, out) in self.row(number).collect::<Vec<_>>().into_iter().enumerate() {
            let cell = *self.cell(out);
            let done = match cell.turn.state {
                // It has had no slot, or is long done.
                _ if cell.turn.next != out + 1 => {
                    i > 0 || cell.late > out || cell.turn.next > out + 1
                }
                State::Done | State::Overdue => true,
                State::Live => false,
                // Its owner will see that.
                State::Reserved => cell.late > out,
                // The record of another number than that which it puts out is not its own.
                State::Closed => i > 0,
            };
            if !done {
                self.misplaced(format!(
                    "number {number} goes on before {out}, which it puts out, is done: {cell:?}"
                ));
            }
        }
    }

    /// The stay of a member ends, and its record is `written` at once or left to whom it belongs.
    fn ends(
        &mut self,
        cpu: usize,
        ordinal: u64,
        written: bool,
        clock: &mut Clock,
        word: Word<'_>,
    ) -> bool {
        let page = self.number(ordinal).map(|n| n.page);
        let own = self.clock_of(ordinal);
        let number = self.drawn(cpu);
        let (cause, end) = match &mut self.tasks[cpu] {
            Task::Close { page: closed, next } => {
                let fits = page == Some(*closed);
                (fits.then_some(Cause::Closed), *next)
            }
            Task::Drain {
                at, next, taken, ..
            } => {
                let fits = taken.take() == Some(ordinal);
                *at = ordinal + 1;
                (fits.then_some(Cause::Drained), *next)
            }
            Task::Admit(a) => {
                let cause = if a.taken.take() == Some(ordinal) {
                    Some(Cause::Evicted)
                } else if a.renewed {
                    // Its record has ended with the new number.
                    None
                } else {
                    Some(Cause::Missed)
                };
                (cause, a.number.map(|_| a.clock))
            }
            _ => (None, None),
        };
        let renewed = self.moving.iter().find(|(from, _)| *from == ordinal);
        if renewed.is_some() {
            return !written && self.out(number.unwrap_or(0)) == Some(ordinal);
        }
        self.members = self.members.saturating_sub(1);
        let entry = self.cell(ordinal).entry & !HANDLE_HUGE;
        if let Some(end) = end {
            if let Some(page) = page {
                let before = clock.ended.entry(page).or_default();
                *before = end.max(*before);
            }
            let noted = if entry == 0 { end << 1 } else { word(entry) };
            if noted != end << 1 {
                self.misplaced(format!(
                    "the stay of number {own} ends at {end}, and {noted:#x} is noted"
                ));
            }
        }
        let batch = self.batch();
        let out = number.and_then(|number| self.out(number));
        let mut in_row = false;
        if let Some(a) = self.admission_mut(cpu) {
            in_row = a.in_row == Some(ordinal);
            if out == Some(ordinal) && cause == Some(Cause::Evicted) {
                a.batch = ordinal + 1..ordinal + batch;
                in_row = true;
            }
            // Without room, a record is left to later numbers, and so are all after it.
            a.in_row = (in_row && written).then_some(ordinal + 1);
        }
        if out == Some(ordinal) {
            // What the CPU reads from here on is of the batch.
            self.loads[cpu].clear();
        }
        let fits =
            cause.is_some_and(|c| c != Cause::Missed) && end.is_some() && (in_row || !written);
        self.changes.push(Change::Ended {
            ordinal,
            cause: cause.unwrap_or(Cause::Missed),
        });
        fits
    }

    /// Pages that one admission evicts at most.
    fn batch(&self) -> u64 {
        let batch = self.shape.batch_of(self.n as usize, self.claims.len());
        if self.shape.clock { 1 } else { batch as u64 }
    }

    /// A question was answered without a number. In a set with few pages for its CPUs, that may be
    /// because another CPU is to come first, which is counted. Otherwise nothing is stored.
    fn unanswered(&mut self, cpu: usize) {
        self.skips(cpu);
        let Task::Admit(a) = std::mem::replace(&mut self.tasks[cpu], Task::None) else {
            return;
        };
        let stores = a.stores.unwrap_or_default();
        let waits = Part::Claim(cpu, Field::Waits);
        let fits = match stores[..] {
            [] => true,
            [(part, value)] => part == waits && value <= PATIENCE && self.is_crowded(),
            _ => false,
        };
        if !fits {
            self.misplaced(format!("CPU {cpu} draws no number, and stores {stores:x?}"));
        }
    }
}
