//! The set of a guest with one CPU, in the simplest form.
//!
//! The set consists of the last N numbers. Each admission takes a number, and so do
//! an aborted admission and a second chance. A page whose stay ends early keeps its
//! place until N later numbers have been taken. A stay ends when its place is lost,
//! or earlier if its PTE is cleared. Records are in the order of their numbers.
//!
//! The last F admissions are the first segment. The next admission moves the oldest of
//! them into the second segment. On request, the accessed bit is cleared at that moment
//! (the page is *swept*), so that at the end the bit shows whether the page was
//! referenced again. With CLOCK, a page whose turn to be evicted has come and that was
//! referenced again gets a *second chance*: its record ends, the bit is cleared, and a
//! record with a new number begins.
//!
//! When N is made smaller, the oldest pages lose their places, whatever segment they are in: at
//! first those that are beyond the smaller set already, while admissions go on, and then, while no
//! admission is made, the rest.
//!
//! As long as N does not change, all pages of the second segment are due for eviction before
//! those of the first segment, whose oldest page moves on to the second segment. After N was
//! made smaller, the oldest pages may be in the first segment, because second chances have
//! given newer numbers to the others. Pages of the first segment must stay, so they are
//! *renewed*: their records end, and records with new numbers begin.
//!
//! A FIFO may evict in *batches* of up to K. When a page is evicted for a newcomer, so are those
//! of the next K - 1 places that are in the same address space and not in the first segment, as far as
//! their page tables are among the first [`TABLES`] that come up. They keep their places. The model has
//! no huge pages, which are in no batch and have none.
//!
//! A trace may have several sets, each with N pages and places of its own: one for each address
//! space or control group ([`Sets`]). Whatever is said above of admissions and numbers is then about
//! those of a set. Records are in the order of all admissions.
//!
//! The model knows one thing about accessed bits: whether the page was referenced since
//! the bit was cleared with a flush. If somebody else clears the bit in between (reclaim),
//! nothing changes: the kernel must remember the bit.

use std::collections::{HashMap, VecDeque};

/// The kind of access that admitted a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Exec,
    /// An access that only the accessed bit shows: a second chance.
    Seen,
}

/// What has a set of its own: `VMTRACE_SETS_*`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Sets {
    /// All address spaces have one set together.
    #[default]
    One,
    /// Each address space.
    Process,
    /// Each control group.
    Cgroup,
}

impl Sets {
    /// What this number stands for.
    pub fn new(value: u32) -> Option<Self> {
        let all = [Sets::One, Sets::Process, Sets::Cgroup];
        all.get(value as usize).copied()
    }
}

/// The kind of a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// N.
    pub size: usize,
    /// F, admissions in the first segment.
    pub first: usize,
    /// Whether references in the second segment are recorded.
    pub again: bool,
    /// Whether the second segment is a CLOCK, not a FIFO.
    pub clock: bool,
    /// K, pages that one admission evicts at most.
    pub batch: usize,
    /// What has a set of its own.
    pub sets: Sets,
}

impl Shape {
    /// The kernel's least and default F.
    pub const FIRST: usize = 16;

    /// A FIFO of `size` pages that records no further references.
    pub const fn fifo(size: usize) -> Self {
        Shape {
            size,
            first: Self::FIRST,
            again: false,
            clock: false,
            batch: 1,
            sets: Sets::One,
        }
    }

    /// The smallest set: the first segments of the CPUs, of one CPU or of two.
    pub fn least(self, cpus: usize) -> usize {
        self.first * cpus.min(2)
    }

    /// What is left of a batch while the set has `size` pages: so much that the smallest set
    /// stays.
    pub fn batch_of(self, size: usize, cpus: usize) -> usize {
        let most = size.saturating_sub(self.least(cpus)) + 1;
        self.batch.min(most)
    }

    /// Whether accessed bits are cleared.
    pub fn sweeps(self) -> bool {
        self.again || self.clock
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "a {} of {} pages{}, {} of them in the first segment, {} references again, evicting {} at once",
            if self.clock { "CLOCK" } else { "FIFO" },
            self.size,
            match self.sets {
                Sets::One => "",
                Sets::Process => " for each process",
                Sets::Cgroup => " for each control group",
            },
            self.first,
            if self.sweeps() {
                "telling"
            } else {
                "not telling"
            },
            self.batch,
        )
    }
}

/// A page of an address space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Page {
    /// The address space's number in the trace.
    pub mm: u32,
    /// Address of the page's first byte.
    pub addr: u64,
}

impl Page {
    /// Whether the PTEs of both pages are in one page table.
    pub fn is_near(self, other: Page) -> bool {
        self.mm == other.mm && self.addr >> 21 == other.addr >> 21
    }
}

/// Page tables that the pages of a batch have at most, the victim's included.
pub const TABLES: usize = 4;

/// Why a stay ended: `VMTRACE_WHY_*`. The model itself only knows three of them.
pub type Why = u8;
/// The stay lost its place.
pub const EVICTED: Why = 0;
/// Tracing stopped.
pub const DRAINED: Why = 7;
/// Why a stay ended: another piece of the trace began.
pub const PIECE: Why = 14;
/// Why a stay ended: an interval did.
pub const INTERVAL: Why = 15;
/// The stay goes on: the page is in the first segment.
pub const RENEWED: Why = 12;
/// The stay goes on: the page got a second chance.
pub const CHANCE: Why = 13;

/// What the kernel's set says to an admission: `VMTRACE_RESERVE_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// There is no set, or it is closed: the page is enabled without a record.
    Off,
    /// The page is not admitted. The access faults again.
    Full,
    /// The page is a member.
    Go,
    /// Mappings were changed. The fault has to look again.
    Changed,
    /// Only a number was taken.
    Far,
}

impl Answer {
    /// The answer of this number. Whether kvmtraced is woken (`VMTRACE_RESERVE_KICK`) is left out.
    pub fn new(value: u64) -> Option<Self> {
        [
            Answer::Off,
            Answer::Full,
            Answer::Go,
            Answer::Changed,
            Answer::Far,
        ]
        .get(usize::from(value as u8))
        .copied()
    }
}

/// The largest number of second chances for one admission; the next page is evicted.
const CHANCES: usize = 16;

/// The most pages that one step towards a smaller set takes.
pub const DRAIN: usize = 64;

/// One stay of a page in the set: the content that the trace's record must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stay {
    /// The page.
    pub page: Page,
    /// The access that admitted the page.
    pub access: Access,
    /// Whether the kernel made that access.
    pub kernel: bool,
    /// The page was written during the stay.
    pub dirtied: bool,
    /// The page was referenced after it had entered the second segment.
    pub again: bool,
    /// No reference began this stay: an earlier stay goes on, with a new number.
    pub goes_on: bool,
    /// Why the stay ended.
    pub why: Why,
}

/// Further fields of a record, if they are known.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Who {
    /// The thread.
    pub tid: u32,
    /// The CPU.
    pub cpu: u32,
    /// The page's frame.
    pub pfn: u32,
}

/// The state of the PTE of a stay's page, and what follows from that state.
#[derive(Clone, Copy, Default)]
struct Bits {
    /// The accessed bit was cleared in the second segment.
    swept: bool,
    /// There was a reference since the stay began or the bit was cleared.
    referenced: bool,
    /// The dirty bit is set.
    dirty: bool,
    /// The dirty bit was set when the stay began, so it does not show later stores.
    quiet: bool,
    /// A fault has shown a store, whatever the dirty bit is.
    faulted: bool,
    /// The stay that continues this one.
    next: Option<usize>,
}

/// A set: the places that its last admissions have.
struct Places {
    /// N, as it is now.
    size: usize,
    /// The last N numbers: indices of stays; `None` is an admission given up.
    places: VecDeque<Option<usize>>,
    /// Numbers that have left `places`.
    gone: usize,
    /// Of a set that is made smaller: numbers below are to be drained.
    beyond: usize,
    /// The last F admissions.
    first: VecDeque<Option<usize>>,
}

impl Places {
    fn new(size: usize) -> Self {
        Places {
            size,
            places: VecDeque::new(),
            gone: 0,
            beyond: 0,
            first: VecDeque::new(),
        }
    }
}

/// All sets and the record of all stays.
pub struct Model {
    shape: Shape,
    /// By number. Set 0 is there from the beginning.
    sets: Vec<Places>,
    /// The set of each address space, if it is not set 0.
    of: HashMap<u32, usize>,
    members: HashMap<Page, usize>,
    stays: Vec<Stay>,
    /// One for each stay.
    bits: Vec<Bits>,
    /// A cache of the pages that were looked up last, because most accesses are to the same few
    /// pages. It is emptied whenever a set changes.
    recent: [Option<(Page, usize)>; 64],
}

impl Model {
    /// Empty sets.
    ///
    /// # Panics
    ///
    /// If their size is 0, or less than that of their first segment.
    pub fn new(shape: Shape) -> Self {
        assert!(
            0 < shape.first && shape.first <= shape.size,
            "there is no {shape}"
        );
        Model {
            shape,
            sets: vec![Places::new(shape.size)],
            of: HashMap::new(),
            members: HashMap::new(),
            stays: Vec::new(),
            bits: Vec::new(),
            recent: [None; 64],
        }
    }

    /// An address space is in this set from here on. A set that begins with it is empty, and of the
    /// size that set 0 has now.
    pub fn enter(&mut self, mm: u32, set: u32) {
        let set = set as usize;
        let size = self.sets[0].size;
        while self.sets.len() <= set {
            self.sets.push(Places::new(size));
        }
        if set > 0 && self.sets[set].gone + self.sets[set].places.len() == 0 {
            self.sets[set].size = size;
        }
        self.of.insert(mm, set);
    }

    /// How many members a set has.
    pub fn members_of(&self, set: u32) -> usize {
        let places = self.sets.get(set as usize).map(|s| s.places.iter());
        let turns = places.into_iter().flatten().flatten();
        turns.filter(|turn| self.lasts(**turn)).count()
    }

    fn set_of(&self, mm: u32) -> usize {
        self.of.get(&mm).copied().unwrap_or(0)
    }

    /// Stays so far, including those that have not ended.
    pub fn admissions(&self) -> usize {
        self.stays.len()
    }

    fn find(&mut self, page: Page) -> Option<usize> {
        let at = (page.addr >> 12) as usize % self.recent.len();
        match self.recent[at] {
            Some((known, index)) if known == page => return Some(index),
            _ => {}
        }
        let index = *self.members.get(&page)?;
        self.recent[at] = Some((page, index));
        Some(index)
    }

    /// Whether a page is in the set.
    pub fn is_member(&mut self, page: Page) -> bool {
        self.find(page).is_some()
    }

    /// Admits a page that is not a member to its address space's set.
    ///
    /// # Panics
    ///
    /// If it is one.
    pub fn admit(&mut self, page: Page, access: Access, kernel: bool) {
        let set = self.set_of(page.mm);
        self.make_room(set);
        let dirtied = access == Access::Write;
        let index = self.begin(
            Stay {
                page,
                access,
                kernel,
                dirtied,
                again: false,
                goes_on: false,
                why: DRAINED,
            },
            Bits {
                dirty: dirtied,
                faulted: dirtied,
                ..Bits::default()
            },
        );
        self.sets[set].first.push_back(Some(index));
    }

    /// Takes a place without a page, in the set of an address space.
    pub fn give_up(&mut self, mm: u32) {
        let set = self.set_of(mm);
        self.make_room(set);
        self.sets[set].places.push_back(None);
        self.sets[set].first.push_back(None);
    }

    fn begin(&mut self, stay: Stay, bits: Bits) -> usize {
        let index = self.stays.len();
        let before = self.members.insert(stay.page, index);
        assert!(before.is_none(), "{:?} is a member already", stay.page);
        let set = self.set_of(stay.page.mm);
        self.sets[set].places.push_back(Some(index));
        self.stays.push(stay);
        self.bits.push(bits);
        index
    }

    /// Whether a stay has not ended. If it has ended, its page may be a member by a later stay.
    fn lasts(&self, index: usize) -> bool {
        self.members.get(&self.stays[index].page) == Some(&index)
    }

    fn end(&mut self, index: usize, why: Why) {
        let bits = self.bits[index];
        let stay = &mut self.stays[index];
        self.members.remove(&stay.page);
        stay.again = bits.swept && bits.referenced;
        stay.why = why;
    }

    /// Makes room for a newcomer in both segments of a set.
    fn make_room(&mut self, set: usize) {
        self.recent = [None; 64];
        let passes = if self.sets[set].first.len() == self.shape.first {
            self.sets[set].first.pop_front().flatten()
        } else {
            None
        };
        let mut chances = 0;
        while self.sets[set].places.len() == self.sets[set].size {
            let Some(turn) = self.next_place(set) else {
                continue;
            };
            if !self.lasts(turn) {
                continue;
            }
            if self.sets[set].first.contains(&Some(turn)) {
                self.renew(set, turn);
                continue;
            }
            let Bits {
                swept, referenced, ..
            } = self.bits[turn];
            if self.shape.clock && swept && referenced && chances < CHANCES {
                chances += 1;
                self.give_chance(turn);
            } else {
                self.end(turn, EVICTED);
                self.end_batch(set, self.stays[turn].page);
            }
        }
        // The page that passes is swept after the victim is found, because it may be the victim.
        let passes = passes.filter(|p| self.shape.sweeps() && self.lasts(*p));
        if let Some(passes) = passes {
            let bits = &mut self.bits[passes];
            bits.swept = true;
            bits.referenced = false;
        }
    }

    /// The oldest number is out of its set.
    fn next_place(&mut self, set: usize) -> Option<usize> {
        self.sets[set].gone += 1;
        self.sets[set].places.pop_front().flatten()
    }

    /// Ends the stays that go with that of a victim, whose place is lost.
    fn end_batch(&mut self, set: usize, victim: Page) {
        let s = &self.sets[set];
        let others = self.shape.batch_of(s.size, 1) - 1;
        let places: Vec<_> = s.places.iter().take(others).flatten().copied().collect();
        let mut tables = vec![victim];
        for index in places {
            let page = self.stays[index].page;
            if !self.lasts(index) || page.mm != victim.mm {
                continue;
            }
            if !tables.iter().any(|one| one.is_near(page)) {
                if tables.len() == TABLES {
                    continue;
                }
                tables.push(page);
            }
            if !self.sets[set].first.contains(&Some(index)) {
                self.end(index, EVICTED);
            }
        }
    }

    /// A set is to have another size. What is beyond a smaller one now is to be drained first.
    pub fn resizing(&mut self, set: u32, size: usize) {
        if let Some(s) = self.sets.get_mut(set as usize) {
            s.beyond = (s.gone + s.places.len()).saturating_sub(size);
        }
    }

    /// One step towards a smaller set: the oldest member that is beyond it loses its place, and so
    /// do the members of the next places, as far as they are in the same page table and beyond the
    /// smaller set, too.
    pub fn drain(&mut self, set: u32) {
        self.recent = [None; 64];
        let Some(s) = self.sets.get(set as usize) else {
            return;
        };
        let beyond = s.beyond.saturating_sub(s.gone);
        let beyond = s.places.iter().take(beyond).copied();
        let run: Vec<_> = beyond
            .map(|place| place.filter(|turn| self.lasts(*turn)))
            .skip_while(Option::is_none)
            .map_while(|turn| turn)
            .take(DRAIN)
            .collect();
        let near = |turn: &usize| self.stays[*turn].page.is_near(self.stays[run[0]].page);
        let run: Vec<_> = run.iter().copied().take_while(near).collect();
        for turn in run {
            self.end(turn, EVICTED);
        }
    }

    /// A set has another size from here on.
    pub fn resized(&mut self, set: u32, size: usize) {
        self.recent = [None; 64];
        let set = set as usize;
        let Some(s) = self.sets.get_mut(set) else {
            return;
        };
        s.size = size;
        while self.sets[set].places.len() > size {
            // If it is a member still, the kernel has missed it.
            if let Some(turn) = self.next_place(set).filter(|t| self.lasts(*t)) {
                self.end(turn, EVICTED);
            }
        }
    }

    /// Gives a page of the first segment a new number. The PTE is not read, so the record of the
    /// new stay will report what its bits show.
    fn renew(&mut self, set: usize, old: usize) {
        let bits = self.bits[old];
        let stay = self.stays[old];
        self.end(old, RENEWED);
        self.stays[old].dirtied = bits.faulted;
        self.stays[old].again = false;
        let next = self.begin(
            Stay {
                goes_on: true,
                ..stay
            },
            bits,
        );
        self.bits[old].next = Some(next);
        let first = &mut self.sets[set].first;
        for place in first.iter_mut().filter(|p| **p == Some(old)) {
            *place = Some(next);
        }
    }

    fn give_chance(&mut self, old: usize) {
        self.end(old, CHANCE);
        let Bits { dirty, .. } = self.bits[old];
        let next = self.begin(
            Stay {
                access: Access::Seen,
                dirtied: false,
                again: false,
                goes_on: false,
                why: DRAINED,
                ..self.stays[old]
            },
            Bits {
                swept: true,
                dirty,
                quiet: dirty,
                ..Bits::default()
            },
        );
        self.bits[old].next = Some(next);
    }

    /// Notes a reference to a member; false if it is none.
    pub fn touch(&mut self, page: Page) -> bool {
        match self.find(page) {
            Some(index) => {
                self.bits[index].referenced = true;
                true
            }
            None => false,
        }
    }

    /// Notes a store to a member; false if it is none.
    pub fn store(&mut self, page: Page) -> bool {
        match self.find(page) {
            Some(index) => {
                let bits = &mut self.bits[index];
                bits.referenced = true;
                bits.dirty = true;
                if !bits.quiet {
                    self.stays[index].dirtied = true;
                }
                true
            }
            None => false,
        }
    }

    /// Notes a write fault on a member, which shows a store whatever the dirty bit was; false if
    /// the page is not a member.
    pub fn write_fault(&mut self, page: Page) -> bool {
        let known = self.store(page);
        if let Some(index) = self.find(page) {
            self.stays[index].dirtied = true;
            self.bits[index].faulted = true;
        }
        known
    }

    /// The present stay of a member, for [`Model::store_in`].
    pub fn stay_of(&mut self, page: Page) -> Option<usize> {
        self.find(page)
    }

    /// Whether a reference would add information: the page's accessed bit was cleared, and nothing
    /// has set it since.
    pub fn awaits(&self, stay: usize) -> bool {
        self.bits
            .get(stay)
            .is_some_and(|b| b.swept && !b.referenced)
    }

    /// Notes a store in a stay that may be over.
    pub fn store_in(&mut self, stay: usize) {
        let (Some(told), Some(bits)) = (self.stays.get_mut(stay), self.bits.get_mut(stay)) else {
            return;
        };
        bits.dirty = true;
        if !bits.quiet {
            told.dirtied = true;
        }
        // Where it went on, the dirty bit was set from the beginning.
        let mut next = bits.next;
        while let Some(bits) = next.and_then(|next| self.bits.get_mut(next)) {
            bits.dirty = true;
            bits.quiet = true;
            next = bits.next;
        }
    }

    /// Ends a member's stay early; false if it is none.
    pub fn close(&mut self, page: Page, why: Why) -> bool {
        self.recent = [None; 64];
        match self.members.get(&page) {
            Some(&index) => {
                self.end(index, why);
                true
            }
            None => false,
        }
    }

    /// All stays in order of admission; those that last end here.
    pub fn finish(mut self) -> Vec<Stay> {
        let lasting: Vec<_> = self.members.values().copied().collect();
        for index in lasting {
            self.end(index, DRAINED);
        }
        self.stays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(n: u64) -> Page {
        Page {
            mm: 1,
            addr: n << 12,
        }
    }

    /// A FIFO without a second segment.
    fn fifo(size: usize) -> Model {
        Model::new(Shape {
            first: size,
            ..Shape::fifo(size)
        })
    }

    fn again(size: usize, first: usize, clock: bool) -> Model {
        Model::new(Shape {
            first,
            again: true,
            clock,
            ..Shape::fifo(size)
        })
    }

    fn read(m: &mut Model, n: u64) {
        if !m.touch(page(n)) {
            m.admit(page(n), Access::Read, false);
        }
    }

    fn whys(m: Model) -> Vec<(u64, Why)> {
        m.finish()
            .iter()
            .map(|s| (s.page.addr >> 12, s.why))
            .collect()
    }

    #[test]
    fn a_cycle_longer_than_the_set_admits_every_time() {
        let mut m = fifo(3);
        for i in 0..12 {
            read(&mut m, i % 4);
        }
        assert_eq!(m.admissions(), 12);
        let mut m = fifo(4);
        for i in 0..12 {
            read(&mut m, i % 4);
        }
        assert_eq!(m.admissions(), 4);
    }

    #[test]
    fn a_page_whose_stay_ended_keeps_its_place() {
        let mut m = fifo(2);
        read(&mut m, 1);
        assert!(m.close(page(1), 1));
        read(&mut m, 2);
        // The place of 1 is lost now, not that of 2.
        read(&mut m, 3);
        assert!(m.is_member(page(2)) && m.is_member(page(3)));
        assert_eq!(whys(m), [(1, 1), (2, DRAINED), (3, DRAINED)]);
    }

    #[test]
    fn a_closed_page_that_came_again_is_not_lost_with_its_old_place() {
        let mut m = fifo(2);
        read(&mut m, 1);
        assert!(m.close(page(1), 2));
        read(&mut m, 1);
        read(&mut m, 2);
        assert!(m.is_member(page(1)));
        read(&mut m, 3);
        assert!(!m.is_member(page(1)));
        assert_eq!(whys(m), [(1, 2), (1, EVICTED), (2, DRAINED), (3, DRAINED)]);
    }

    #[test]
    fn an_admission_given_up_takes_a_place() {
        let mut m = fifo(2);
        read(&mut m, 1);
        m.give_up(1);
        assert!(m.is_member(page(1)));
        m.give_up(1);
        assert!(!m.is_member(page(1)));
        assert_eq!(whys(m), [(1, EVICTED)]);
    }

    #[test]
    fn stores_count_for_the_stay_they_fall_in() {
        let mut m = fifo(1);
        read(&mut m, 1);
        assert!(m.store(page(1)));
        read(&mut m, 2);
        assert!(!m.store(page(1)));
        read(&mut m, 1);
        m.close(page(1), 1);
        m.admit(page(1), Access::Write, true);
        let dirtied: Vec<_> = m.finish().iter().map(|s| s.dirtied).collect();
        assert_eq!(dirtied, [true, false, false, true]);
    }

    #[test]
    fn the_same_address_in_two_spaces_is_two_pages() {
        let mut m = fifo(2);
        let (a, b) = (Page { mm: 1, addr: 0 }, Page { mm: 2, addr: 0 });
        m.admit(a, Access::Exec, false);
        assert!(!m.is_member(b));
        m.admit(b, Access::Exec, false);
        assert!(m.close(a, 6) && m.is_member(b) && !m.close(a, 6));
    }

    #[test]
    #[should_panic(expected = "is a member already")]
    fn a_member_is_not_admitted() {
        let mut m = fifo(2);
        m.admit(page(1), Access::Read, false);
        m.admit(page(1), Access::Read, false);
    }

    fn records(m: Model) -> Vec<(u64, Access, bool, Why)> {
        m.finish()
            .iter()
            .map(|s| (s.page.addr >> 12, s.access, s.again, s.why))
            .collect()
    }

    use Access::{Read, Seen};

    #[test]
    fn references_are_told_from_the_second_segment_on() {
        for clock in [false, true] {
            let mut m = again(4, 2, clock);
            read(&mut m, 1);
            read(&mut m, 1);
            read(&mut m, 2);
            read(&mut m, 1);
            // Now 1 passes, then 2.
            read(&mut m, 3);
            read(&mut m, 4);
            read(&mut m, 2);
            let told: Vec<_> = m.finish().iter().map(|s| s.again).collect();
            assert_eq!(told, [false, true, false, false]);
        }
    }

    #[test]
    fn unasked_nothing_is_told() {
        let mut m = Model::new(Shape {
            first: 1,
            ..Shape::fifo(3)
        });
        for n in [1, 2, 1, 3, 1, 4, 3] {
            read(&mut m, n);
        }
        assert!(m.finish().iter().all(|s| !s.again));
    }

    #[test]
    fn a_clock_gives_second_chances_in_their_turn() {
        let mut m = again(3, 1, true);
        for n in [1, 2, 3] {
            read(&mut m, n);
        }
        read(&mut m, 1);
        // 1 gets a second chance, and 2 is evicted. Then 3 is evicted, which was not referenced
        // again.
        read(&mut m, 4);
        read(&mut m, 5);
        assert_eq!(
            records(m),
            [
                (1, Read, true, CHANCE),
                (2, Read, false, EVICTED),
                (3, Read, false, EVICTED),
                (1, Seen, false, DRAINED),
                (4, Read, false, DRAINED),
                (5, Read, false, DRAINED),
            ]
        );
    }

    #[test]
    fn the_page_that_passes_is_not_spared() {
        let mut m = again(2, 1, true);
        read(&mut m, 1);
        read(&mut m, 2);
        read(&mut m, 1);
        // 1 gets a second chance. Then 2 is due, which enters the second segment at this moment.
        read(&mut m, 2);
        read(&mut m, 3);
        assert_eq!(
            records(m),
            [
                (1, Read, true, CHANCE),
                (2, Read, false, EVICTED),
                (1, Seen, false, DRAINED),
                (3, Read, false, DRAINED),
            ]
        );
    }

    #[test]
    fn without_a_second_segment_a_clock_is_a_fifo() {
        let walk = |mut m: Model| {
            for n in [1, 2, 1, 3, 1, 4, 2, 2, 1, 5] {
                read(&mut m, n);
            }
            m.finish()
        };
        assert_eq!(walk(again(3, 3, true)), walk(fifo(3)));
    }

    #[test]
    fn sixteen_chances_and_no_more() {
        let mut m = again(21, 1, true);
        for n in 0..21 {
            read(&mut m, n);
        }
        for n in 0..20 {
            read(&mut m, n);
        }
        read(&mut m, 99);
        let all = records(m);
        let of = |why| all.iter().filter(move |r| r.3 == why).map(|r| r.0);
        assert!(of(CHANCE).eq(0..16));
        assert!(of(EVICTED).eq([16]));
        assert_eq!(all[16], (16, Read, true, EVICTED));
    }

    #[test]
    fn closed_and_given_up_places_need_no_chance() {
        let mut m = again(3, 1, true);
        read(&mut m, 1);
        m.give_up(1);
        read(&mut m, 2);
        read(&mut m, 1);
        assert!(m.close(page(1), 5));
        read(&mut m, 3);
        read(&mut m, 4);
        assert_eq!(
            records(m),
            [
                (1, Read, true, 5),
                (2, Read, false, DRAINED),
                (3, Read, false, DRAINED),
                (4, Read, false, DRAINED),
            ]
        );
    }

    #[test]
    fn a_store_before_a_second_chance_hides_those_after_it() {
        // Stores before and after, and a write fault after: both records show a store.
        for (before, after, fault, told) in [
            (false, false, false, [false, false]),
            (true, false, false, [true, false]),
            (true, true, false, [true, false]),
            (false, true, false, [false, true]),
            (true, true, true, [true, true]),
        ] {
            let mut m = again(3, 1, true);
            for n in [1, 2, 3, 1] {
                read(&mut m, n);
            }
            if before {
                m.store(page(1));
            }
            read(&mut m, 4);
            if after {
                m.store(page(1));
            }
            if fault {
                m.write_fault(page(1));
            }
            let stays = m.finish();
            assert_eq!([stays[0].dirtied, stays[3].dirtied], told);
        }
    }

    #[test]
    fn a_store_known_late_hides_those_in_later_stays() {
        let mut m = again(3, 1, true);
        for n in [1, 2, 3, 1] {
            read(&mut m, n);
        }
        let stay = m.stay_of(page(1)).unwrap();
        read(&mut m, 4);
        m.store_in(stay);
        m.store(page(1));
        let stays = m.finish();
        assert_eq!([stays[0].dirtied, stays[3].dirtied], [true, false]);
    }

    #[test]
    fn a_smaller_set_loses_its_oldest() {
        let mut m = fifo(5);
        m.shape.first = 1;
        for n in [1, 2, 600, 4, 5] {
            read(&mut m, n);
        }
        m.close(page(4), 1);
        m.resizing(0, 1);
        // 600 is in another page table, and 4 a member no more. 5 stays.
        m.drain(0);
        assert_eq!(
            [1, 2, 600].map(|n| m.is_member(page(n))),
            [false, false, true]
        );
        m.drain(0);
        m.drain(0);
        assert_eq!([600, 5].map(|n| m.is_member(page(n))), [false, true]);
        m.resized(0, 1);
        read(&mut m, 7);
        assert_eq!([5, 7].map(|n| m.is_member(page(n))), [false, true]);
        m.resizing(0, 3);
        m.drain(0);
        m.resized(0, 3);
        for n in [8, 9, 10] {
            read(&mut m, n);
        }
        assert_eq!([7, 8].map(|n| m.is_member(page(n))), [false, true]);
        // What was not drained is beyond the set all the same.
        m.resized(0, 2);
        assert_eq!([8, 9].map(|n| m.is_member(page(n))), [false, true]);
    }

    #[test]
    fn what_was_beyond_a_smaller_set_goes_while_others_come() {
        let mut m = fifo(5);
        m.shape.first = 1;
        for n in 1..=5 {
            read(&mut m, n);
        }
        m.resizing(0, 3);
        read(&mut m, 6);
        // 1 has gone for 6. Of what is left, only 2 was beyond.
        m.drain(0);
        assert_eq!([2, 3].map(|n| m.is_member(page(n))), [false, true]);
        read(&mut m, 7);
        m.resizing(0, 3);
        m.drain(0);
        m.resized(0, 3);
        let members: Vec<_> = (1..=7).filter(|n| m.is_member(page(*n))).collect();
        assert_eq!(members, [5, 6, 7]);
    }

    #[test]
    fn a_step_towards_a_smaller_set_takes_so_many() {
        let mut m = fifo(100);
        for n in 512..612 {
            read(&mut m, n);
        }
        m.resizing(0, 10);
        for left in [36, 10, 10] {
            m.drain(0);
            assert_eq!(m.members.len(), left);
        }
    }

    #[test]
    fn a_smaller_set_renews_what_is_left_of_its_first_segment() {
        for fault in [false, true] {
            // 1 and 2 got second chances, behind 4, 5 and 6.
            let mut m = again(6, 3, true);
            for n in [1, 2, 3, 4, 5, 6, 1, 2, 7] {
                read(&mut m, n);
            }
            if fault {
                m.write_fault(page(6));
            } else {
                m.store(page(6));
            }
            m.resizing(0, 4);
            m.drain(0);
            m.resized(0, 4);
            read(&mut m, 8);
            let told: Vec<_> = m
                .finish()
                .iter()
                .map(|s| (s.page.addr >> 12, s.goes_on, s.dirtied, s.why))
                .collect();
            assert_eq!(
                told,
                [
                    (1, false, false, CHANCE),
                    (2, false, false, CHANCE),
                    (3, false, false, EVICTED),
                    (4, false, false, EVICTED),
                    (5, false, false, EVICTED),
                    (6, false, fault, RENEWED),
                    (1, false, false, EVICTED),
                    (2, false, false, DRAINED),
                    (7, false, false, DRAINED),
                    (6, true, true, DRAINED),
                    (8, false, false, DRAINED),
                ]
            );
        }
    }

    /// A FIFO that evicts in batches.
    fn batches(size: usize, first: usize, batch: usize) -> Model {
        Model::new(Shape {
            first,
            batch,
            ..Shape::fifo(size)
        })
    }

    /// Pages that are members, of the first twenty and of those from 512 on.
    fn members(m: &mut Model) -> Vec<u64> {
        let pages = (0..20).chain(512..520);
        pages.filter(|n| m.is_member(page(*n))).collect()
    }

    #[test]
    fn a_batch_goes_with_its_victim_and_keeps_its_places() {
        let mut m = batches(6, 1, 3);
        for n in 1..=6 {
            read(&mut m, n);
        }
        read(&mut m, 7);
        assert_eq!(members(&mut m), [4, 5, 6, 7]);
        // The places of 2 and 3 are lost now, and nothing is evicted.
        read(&mut m, 8);
        read(&mut m, 9);
        assert_eq!(members(&mut m), [4, 5, 6, 7, 8, 9]);
        read(&mut m, 10);
        assert_eq!(members(&mut m), [7, 8, 9, 10]);
        let ends: Vec<_> = whys(m).iter().map(|w| w.1).collect();
        assert_eq!(ends[..6], [EVICTED; 6]);
        assert_eq!(ends[6..], [DRAINED; 4]);
    }

    #[test]
    fn a_batch_of_one_is_no_batch() {
        let walk = |mut m: Model| {
            for n in [1, 2, 3, 4, 5, 1, 6, 2, 7, 8] {
                read(&mut m, n);
            }
            m.finish()
        };
        assert_eq!(walk(batches(4, 1, 1)), walk(batches(4, 4, 9)));
    }

    #[test]
    fn a_batch_is_of_one_address_space() {
        let other = Page {
            mm: 2,
            addr: 3 << 12,
        };
        let mut m = batches(6, 1, 4);
        read(&mut m, 1);
        read(&mut m, 512);
        m.admit(other, Access::Read, false);
        for n in [2, 3, 4] {
            read(&mut m, n);
        }
        // Two of the next three places are in the address space of 1.
        read(&mut m, 5);
        assert_eq!(members(&mut m), [3, 4, 5]);
        assert!(m.is_member(other));
        read(&mut m, 6);
        assert_eq!(members(&mut m), [3, 4, 5, 6]);
    }

    #[test]
    fn a_batch_is_of_a_few_page_tables() {
        let mut m = batches(12, 1, 11);
        let tables = [0, 1, 2, 1, 3, 4, 5, 4, 2, 0];
        let pages: Vec<_> = tables.iter().zip(1..).map(|(t, n)| t * 512 + n).collect();
        for n in pages.iter().copied().chain([11, 12]) {
            read(&mut m, n);
        }
        read(&mut m, 13);
        let stay: Vec<_> = pages
            .into_iter()
            .filter(|n| m.is_member(page(*n)))
            .collect();
        assert_eq!(stay, [4 * 512 + 6, 5 * 512 + 7, 4 * 512 + 8]);
    }

    #[test]
    fn a_batch_leaves_the_first_segment() {
        // The place of a stay that ended early counts.
        for (first, want) in [(1, vec![7]), (3, vec![5, 6, 7]), (4, vec![4, 5, 6, 7])] {
            let mut m = batches(6, first, 6);
            for n in 1..=6 {
                read(&mut m, n);
            }
            m.close(page(2), 1);
            read(&mut m, 7);
            assert_eq!(members(&mut m), want, "{first}");
        }
    }

    #[test]
    fn a_batch_is_as_large_as_the_set_allows() {
        let shape = Shape {
            batch: 8,
            ..Shape::fifo(64)
        };
        let sizes = [16, 17, 22, 23, 24, 64];
        assert_eq!(sizes.map(|n| shape.batch_of(n, 1)), [1, 2, 7, 8, 8, 8]);
        assert_eq!(sizes.map(|n| shape.batch_of(n, 2)), [1, 1, 1, 1, 1, 8]);
        assert_eq!([38, 39].map(|n| shape.batch_of(n, 64)), [7, 8]);
        let mut m = batches(6, 2, 5);
        for n in 1..=6 {
            read(&mut m, n);
        }
        m.resizing(0, 3);
        m.drain(0);
        m.resized(0, 3);
        assert_eq!(members(&mut m), [4, 5, 6]);
        // A step towards a smaller set has no batch; from here on, two go at a time.
        read(&mut m, 7);
        assert_eq!(members(&mut m), [6, 7]);
        m.resized(0, 6);
        for n in 8..=11 {
            read(&mut m, n);
        }
        assert_eq!(members(&mut m), [6, 7, 8, 9, 10, 11]);
        read(&mut m, 12);
        assert_eq!(members(&mut m), [11, 12]);
    }

    #[test]
    fn what_passes_may_go_in_a_batch() {
        let mut m = Model::new(Shape {
            first: 1,
            again: true,
            batch: 4,
            ..Shape::fifo(4)
        });
        for n in [1, 2, 1, 3, 4] {
            read(&mut m, n);
        }
        // 2 and 3 are referenced again, and 4 before it passes.
        read(&mut m, 2);
        read(&mut m, 4);
        m.store(page(3));
        read(&mut m, 5);
        assert_eq!(members(&mut m), [5]);
        let told: Vec<_> = m.finish().iter().map(|s| (s.again, s.dirtied)).collect();
        let (no, yes) = ((false, false), (true, false));
        assert_eq!(told, [yes, yes, (true, true), no, no]);
    }

    #[test]
    fn an_admission_given_up_has_its_batch() {
        let mut m = batches(4, 1, 2);
        for n in 1..=4 {
            read(&mut m, n);
        }
        m.give_up(1);
        assert_eq!(members(&mut m), [3, 4]);
        m.give_up(1);
        assert_eq!(members(&mut m), [3, 4]);
        m.give_up(1);
        assert!(members(&mut m).is_empty());
    }

    #[test]
    fn what_awaits_a_reference() {
        let mut m = again(3, 1, false);
        read(&mut m, 1);
        let stay = m.stay_of(page(1)).unwrap();
        assert!(!m.awaits(stay));
        read(&mut m, 2);
        assert!(m.awaits(stay));
        read(&mut m, 1);
        assert!(!m.awaits(stay));
    }

    #[test]
    fn a_new_set_is_as_large_as_set_0() {
        // The numbers of sets need not come in their order.
        for set in [1, 3] {
            let mut m = Model::new(Shape {
                first: 1,
                sets: Sets::Process,
                ..Shape::fifo(4)
            });
            m.enter(2, 2);
            m.resized(0, 3);
            m.enter(1, set);
            for n in 1..5 {
                read(&mut m, n);
            }
            assert_eq!((m.members_of(set), m.members_of(2)), (3, 0));
        }
    }
}
