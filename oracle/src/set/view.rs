//! How the kernel's set lies in memory.

use crate::model::Page;
use std::ops::Range;

/// Low bits of a handle: the place in its page table, and whether it is a huge page's.
pub(super) const HANDLE_PLACE: u64 = 0xff8;
pub(super) const HANDLE_HUGE: u64 = 7;
/// Entries of a page table.
const ENTRIES: u64 = 512;

/// Where the kernel's set lies: `struct vmtrace_view`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    counter: u64,
    cells: u64,
    nr_cells: u64,
    cell_size: u64,
    claims: u64,
    nr_claims: u64,
    claim_size: u64,
    seats: u64,
    ordinals: u64,
    number: u64,
}

/// A field of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Field {
    /// Admissions, and in the low half how many are the first segment.
    Counts,
    /// Switches, when the CPU asked last.
    Epoch,
    /// The time of that.
    Time,
    /// Admissions since it has its seat.
    Used,
    /// The seat that it had last, plus one, and whether it queues up.
    Seat,
    /// Times that it let another CPU come first.
    Waits,
}

const FIELDS: [Field; 6] = [
    Field::Counts,
    Field::Epoch,
    Field::Time,
    Field::Used,
    Field::Seat,
    Field::Waits,
];

/// A word of the set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The counter's, which all sets have in common.
    Counter,
    /// The next number of a set that has numbers of its own.
    Ordinals,
    /// A slot's number and state.
    Turn(usize),
    /// The greatest number, plus one, that was found to be late for a slot.
    Late(usize),
    /// The handle of a slot's entry.
    Entry(usize),
    /// Of a CPU's claim.
    Claim(usize, Field),
    /// A seat, or from the number of CPUs on, a place of the queue.
    Seat(usize),
    /// Not of the set: a CPU's switches, which others ask for.
    Switches(usize),
}

impl View {
    /// Words of `struct vmtrace_view`.
    pub const WORDS: usize = 10;
    /// Where the number of the set is in it.
    pub const NUMBER: u64 = 72;

    /// The view that these words are. `None` if there is no set.
    pub fn new(words: [u64; Self::WORDS]) -> Option<Self> {
        let [
            counter,
            cells,
            nr_cells,
            cell_size,
            claims,
            nr_claims,
            claim_size,
            seats,
            ordinals,
            number,
        ] = words;
        (cells != 0 && nr_cells.is_power_of_two() && cell_size >= 24 && claim_size >= 48).then_some(
            View {
                counter,
                cells,
                nr_cells,
                cell_size,
                claims,
                nr_claims,
                claim_size,
                seats,
                ordinals,
                number,
            },
        )
    }

    /// The set's number.
    pub fn number(&self) -> u32 {
        self.number as u32
    }

    /// Whether the set has numbers of its own.
    pub fn is_apart(&self) -> bool {
        self.ordinals != 0
    }

    /// Where the set's own words lie, and other words between them.
    pub fn ranges(&self) -> [Range<u64>; 4] {
        let ordinals = if self.is_apart() { 8 } else { 0 };
        [
            (self.ordinals, ordinals),
            (self.cells, self.nr_cells * self.cell_size),
            (self.claims, self.nr_claims * self.claim_size),
            (self.seats, self.nr_claims * 16),
        ]
        .map(|(start, len)| start..start + len)
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.nr_cells as usize
    }

    /// The counter's address.
    pub fn counter(&self) -> u64 {
        self.counter
    }

    /// The word at an address, if it is one of the set's.
    pub fn find(&self, addr: u64) -> Option<Part> {
        let [ordinals, cells, claims, seats] = self.ranges();
        let word = |at: u64, size: u64| (at % size) / 8;
        if addr % 8 != 0 {
            return None;
        }
        if cells.contains(&addr) {
            let at = addr - cells.start;
            let slot = (at / self.cell_size) as usize;
            return match word(at, self.cell_size) {
                0 => Some(Part::Turn(slot)),
                1 => Some(Part::Late(slot)),
                2 => Some(Part::Entry(slot)),
                _ => None,
            };
        }
        if claims.contains(&addr) {
            let at = addr - claims.start;
            let field = FIELDS.get(word(at, self.claim_size) as usize)?;
            return Some(Part::Claim((at / self.claim_size) as usize, *field));
        }
        if seats.contains(&addr) {
            return Some(Part::Seat(((addr - seats.start) / 8) as usize));
        }
        if ordinals.contains(&addr) {
            return Some(Part::Ordinals);
        }
        (addr == self.counter).then_some(Part::Counter)
    }
}

/// The state of a slot, as in the low bits of its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Free. The number's admission has ended or was given up, and nothing is left to be done.
    Done,
    /// An admission is on the way.
    Reserved,
    /// Its page is a member.
    Live,
    /// The stay has ended, and its record is to be written.
    Closed,
    /// The admission was given up, because the number that puts it out has come.
    Overdue,
}

const STATES: [State; 5] = [
    State::Done,
    State::Reserved,
    State::Live,
    State::Closed,
    State::Overdue,
];

/// A slot's word: a number and a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// The number, plus one; 0 in a new set.
    pub(super) next: u64,
    pub(super) state: State,
}

impl Turn {
    /// That of a number.
    pub fn new(ordinal: u64, state: State) -> Self {
        Turn {
            next: ordinal + 1,
            state,
        }
    }

    /// The word's meaning, if it has one.
    pub fn read(word: u64) -> Option<Self> {
        let state = *STATES.get((word & 7) as usize)?;
        Some(Turn {
            next: word >> 3,
            state,
        })
    }

    /// The word.
    pub fn word(self) -> u64 {
        self.next << 3 | self.state as u64
    }

    pub(super) fn is(self, ordinal: u64, state: State) -> bool {
        self == Turn::new(ordinal, state)
    }

    /// Whether the slot is free for a number.
    pub(super) fn is_free(self, ordinal: u64) -> bool {
        self.state == State::Done && self.next <= ordinal
    }
}

/// The number with these low bits that is nearest to `near`.
pub fn extend(low: u32, near: u64) -> u64 {
    near.wrapping_add_signed(i64::from(low.wrapping_sub(near as u32) as i32))
}

/// The place in its page table of the entry at an address.
pub fn place_at(ptep: u64) -> u64 {
    ptep / 8 % ENTRIES
}

/// Whether a handle may be that of a page's entry.
pub fn is_handle_of(entry: u64, page: Page) -> bool {
    let shift = match entry & HANDLE_HUGE {
        0 => 12,
        1 => 21,
        2 => 30,
        _ => return false,
    };
    entry != 0 && (entry & HANDLE_PLACE) / 8 == page.addr >> shift & (ENTRIES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_set_are_found() {
        let words = [0x1000, 0x2000, 4, 128, 0x3000, 2, 64, 0x4000, 0x5000, 3];
        let view = View::new(words).unwrap();
        for (addr, part) in [
            (0x1000, Some(Part::Counter)),
            (0x1008, None),
            (0x2000, Some(Part::Turn(0))),
            (0x2088, Some(Part::Late(1))),
            (0x2090, Some(Part::Entry(1))),
            (0x2098, None),
            (0x2081, None),
            (0x2200, None),
            (0x3000, Some(Part::Claim(0, Field::Counts))),
            (0x3048, Some(Part::Claim(1, Field::Epoch))),
            (0x3068, Some(Part::Claim(1, Field::Waits))),
            (0x3070, None),
            (0x4018, Some(Part::Seat(3))),
            (0x4020, None),
            (0x5000, Some(Part::Ordinals)),
            (0x5008, None),
        ] {
            assert_eq!(view.find(addr), part, "{addr:#x}");
        }
        assert_eq!((view.slots(), view.counter()), (4, 0x1000));
        assert_eq!((view.number(), view.is_apart()), (3, true));
        // The only set has the numbers of all.
        let one = [&words[..8], &[0, 0]].concat();
        let one = View::new(one.try_into().unwrap()).unwrap();
        assert_eq!((one.is_apart(), one.find(0)), (false, None));
        // There is no set, or none whose layout is known.
        assert_eq!(View::new([0; View::WORDS]), None);
        for (i, value) in [(2, 3), (3, 16), (6, 40)] {
            let mut other = words;
            other[i] = value;
            assert_eq!(View::new(other), None);
        }
    }

    #[test]
    fn a_turn_has_a_number_and_a_state() {
        let turn = Turn::new(6, State::Closed);
        assert_eq!(turn.word(), 7 << 3 | 3);
        assert_eq!(Turn::read(turn.word()), Some(turn));
        assert_eq!(Turn::read(7 << 3 | 5), None);
        // It is free for greater numbers, as soon as its own is done.
        let done = Turn::new(6, State::Done);
        assert_eq!(Turn::read(7 << 3), Some(done));
        let free: Vec<_> = (5..8).filter(|o| done.is_free(*o)).collect();
        assert_eq!(free, [7]);
        assert!(!turn.is_free(7));
    }

    #[test]
    fn numbers_are_the_nearest() {
        for (low, near, number) in [
            (5, 3, 5),
            (5, 1 << 32, 5 + (1 << 32)),
            (u32::MAX, 1 << 32, u64::from(u32::MAX)),
            (1, u64::from(u32::MAX), 1 + (1 << 32)),
        ] {
            assert_eq!(extend(low, near), number, "{low} near {near}");
        }
    }

    #[test]
    fn a_handle_is_that_of_one_entry() {
        let page = |addr| Page { mm: 1, addr };
        for (entry, addr, is) in [
            (0x1_0008, 0x1000, true),
            (0x1_0008, 0x20_1000, true),
            (0x1_0008, 0x2000, false),
            (0x1_0009, 0x20_0000, true),
            (0x1_000a, 0x4000_0000, true),
            (0x1_000b, 0x1000, false),
            (0, 0, false),
        ] {
            assert_eq!(is_handle_of(entry, page(addr)), is, "{entry:#x} {addr:#x}");
        }
        assert_eq!(place_at(0xffff_8880_0000_1ff8), 511);
    }
}
