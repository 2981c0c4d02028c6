// SPDX-License-Identifier: GPL-2.0

//! Stays of pages in the set: what is known of one, and how the set may be shaped.

/// Bit of a word: its page is a member (VMTRACE_WORD_MEMBER).
pub const MEMBER: u64 = 1;

/// Bit of a word: another policy of observation uses it. For a set, it is 0. No clock is so great.
pub const FOREIGN: u64 = 1 << 63;

/// Low bits of a handle that say which entry of its page table it is, and what the caller notes.
const PLACE: usize = 0xfff;
/// What the caller notes of a huge page.
const HUGE: usize = 0x7;

/// Whether two entries are PTEs in the same page table.
pub fn is_beside(one: usize, other: usize) -> bool {
    (one ^ other) & !PLACE == 0 && (one | other) & HUGE == 0
}

/// Page tables that a batch has pages of, at most. Their locks are held together.
pub const TABLES: usize = 4;

/// The page tables that a batch has pages of: that of its victim, and others of its address space,
/// whose locks are held. None of them is joined by a huge page, which has no batch.
#[derive(Clone, Copy, Debug)]
pub struct Joined {
    owner: usize,
    /// A handle of each, the victim's first. It stands also where there is none yet.
    tables: [usize; TABLES],
    nr: usize,
}

impl Joined {
    /// That of the victim, by its address space and the handle of its entry.
    #[inline(always)]
    pub fn new(owner: usize, entry: usize) -> Joined {
        Joined {
            owner,
            tables: [entry; TABLES],
            nr: 1,
        }
    }

    /// Whether the page table of an entry is one of these. Others join as long as there is room, and
    /// `lock` says that the page table is of this address space, and that its lock is held now.
    #[inline(always)]
    pub fn has(&mut self, entry: usize, lock: impl FnMut(usize, usize) -> bool) -> bool {
        let [victim, ..] = self.tables;
        is_beside(entry, victim) || self.has_other(entry, lock)
    }

    #[inline(never)]
    fn has_other(&mut self, entry: usize, mut lock: impl FnMut(usize, usize) -> bool) -> bool {
        let [victim, others @ ..] = &mut self.tables;
        if (entry | *victim) & HUGE != 0 || entry == 0 {
            return false;
        }
        if others.iter().any(|one| is_beside(*one, entry)) {
            return true;
        }
        // The victim's is the first of them.
        let Some(place) = others.get_mut(self.nr.wrapping_sub(1)) else {
            return false;
        };
        let joins = lock(self.owner, entry);
        if joins {
            *place = entry;
            self.nr = self.nr.wrapping_add(1);
        }
        joins
    }
}

/// One admission, and the record of its stay.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Sequence number of the admission.
    pub seq: u64,
    /// Time of the admission, ns.
    pub time: u64,
    /// Virtual time of the admission, if it is recorded.
    pub vtime: u64,
    /// The address space's pointer, opaque here. Meaningful while live.
    pub owner: usize,
    /// The handle of its page table entry: see [`Words`](crate::tickets::Words). Meaningful while live.
    pub entry: usize,
    /// Page address in the high bits, VMTRACE_REF_* flags in the low twelve.
    pub page: u64,
    /// The address of the access that began the stay.
    pub address: u64,
    /// Number of the address space.
    pub mm: u32,
    /// Thread and CPU, as in `struct vmtrace_ref`.
    pub tid_cpu: u32,
    /// Page frame number, saturating.
    pub pfn: u32,
    /// Length of the stay in units of `1 << STAY_SHIFT` ns, saturating, when it is over.
    pub stay: u32,
    /// Its ordinal among the admissions of its CPU, modulo 2^32.
    pub nth: u32,
    /// That CPU.
    pub cpu: u16,
    /// What else is known.
    pub marks: Marks,
}

/// What else is known of a member: bits of [`Marks::WAS_DIRTY`] and so on.
#[derive(Clone, Copy, Debug)]
pub struct Marks(u8);

impl Marks {
    /// See [`Admission::was_dirty`].
    pub const WAS_DIRTY: u8 = 1 << 0;
    /// The accessed bit was cleared when it came into the second segment.
    pub const SWEPT: u8 = 1 << 1;
    /// Somebody else found the accessed bit set since, and cleared it.
    pub const REFERENCED: u8 = 1 << 2;
    /// The accessed bit was set when this set cleared it, and other users of the
    /// bit have not seen it yet.
    pub const HIDDEN: u8 = 1 << 3;

    /// None of these.
    pub const NONE: Marks = Marks(0);

    /// Whether there is this bit.
    pub fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// Sets a bit, if `on`.
    pub fn set_if(&mut self, on: bool, bit: u8) {
        if on {
            self.0 |= bit;
        }
    }

    /// Clears a bit.
    pub fn clear(&mut self, bit: u8) {
        self.0 &= !bit;
    }
}

impl Slot {
    /// A slot that holds nothing; what a new store is filled with.
    pub const EMPTY: Slot = Slot {
        seq: 0,
        time: 0,
        vtime: 0,
        owner: 0,
        entry: 0,
        page: 0,
        address: 0,
        mm: 0,
        tid_cpu: 0,
        pfn: 0,
        stay: 0,
        nth: 0,
        cpu: 0,
        marks: Marks::NONE,
    };

    /// The offset of the access within its page, which may be a huge one. [`NO_OFFSET`] if only the
    /// accessed bit has shown the access. A stay that goes on keeps that of its first access.
    pub fn offset(&self) -> u64 {
        match self.page & KIND {
            SEEN => NO_OFFSET,
            _ => self.address.wrapping_sub(self.page & !FLAGS),
        }
    }
}

/// The offset of an access whose address is not known (VMTRACE_OFFSET_NONE).
pub const NO_OFFSET: u64 = 1 << 63;

/// A CPU that has asked for no number for so long has no first segment any more, ns. A CPU
/// that runs an instruction faults again and again, and each fault takes microseconds.
pub const CLAIM_NS: u64 = 8_000_000;

/// Admissions in a seat, in first segments, before it is given to another CPU. One
/// instruction needs a first segment; what it had before that may be gone.
pub const TERM: u32 = 4;

/// Seats or waiting CPUs that one admission looks at.
pub const LOOK: usize = 8;

/// No CPU or no seat.
pub const NOBODY: u16 = u16::MAX;

/// Who asks for a number, and when.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The CPU.
    pub cpu: usize,
    /// Its epoch.
    pub epoch: u32,
    /// Now.
    pub time: u64,
}

/// Low bits of [`Slot::page`] that are flags.
pub const FLAGS: u64 = 0xfff;
/// The kind of access (VMTRACE_REF_KIND).
pub const KIND: u64 = 0x3;
/// Kind: an access that only the accessed bit shows (VMTRACE_REF_SEEN).
pub const SEEN: u64 = 0x3;
/// Flag: by the kernel (VMTRACE_REF_KERNEL).
pub const BY_KERNEL: u64 = 0x4;
/// Flag: written during the stay (VMTRACE_REF_DIRTIED).
pub const DIRTIED: u64 = 0x8;
/// Flag: referenced in the second segment (VMTRACE_REF_AGAIN).
pub const AGAIN: u64 = 0x10;
/// Flag: a filter leaves it out (VMTRACE_REF_LEFT).
pub const LEFT: u64 = 0x400;
/// Flag: no reference, a stay that goes on (VMTRACE_REF_CONT).
pub const CONT: u64 = 0x200;
/// Why: for another reason (VMTRACE_WHY_OTHER).
pub const WHY_OTHER: u32 = 11;
/// Why: renewed, for its CPU may still need it (VMTRACE_WHY_RENEWED).
pub const WHY_RENEWED: u32 = 12;
/// Why: renewed by a second chance (VMTRACE_WHY_CHANCE).
pub const WHY_CHANCE: u32 = 13;
/// Position of the reason in the flags (VMTRACE_REF_WHY_SHIFT).
pub const WHY_SHIFT: u32 = 5;
/// Unit of [`Slot::stay`] (VMTRACE_STAY_SHIFT).
pub const STAY_SHIFT: u32 = 6;

/// The sizes of a set, and what its second segment does.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Pages that can be enabled at once.
    pub n: usize,
    /// Admissions in the first segment of each CPU.
    pub first: usize,
    /// CPUs.
    pub cpus: usize,
    /// Pages that were referenced in the second segment get a second chance.
    pub clock: bool,
    /// Record whether a page was referenced in the second segment.
    pub again: bool,
    /// Pages that one admission evicts at most; with `clock`, it is one.
    pub batch: usize,
}

impl Shape {
    /// Whether there can be such a set, with so many slots, places of first segments, claims and
    /// seats.
    pub fn fits(&self, slots: usize, firsts: usize, claims: usize, seats: usize) -> bool {
        self.first != 0
            && self.cpus != 0
            && self.cpus < usize::from(NOBODY)
            && firsts == firsts_for(self)
            && claims == self.cpus
            && seats == self.cpus.saturating_mul(2)
            && u32::try_from(self.first).is_ok()
            && self.n >= least(self.first, self.cpus)
            && self.batch != 0
            && self.batch <= batch_max(self.n, self.first, self.cpus)
            && slots > self.n
            && slots.is_power_of_two()
            && u32::try_from(slots).is_ok()
    }
}

/// A page, as whoever changes its page table entry knows it.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The handle of the entry: see [`Words`](crate::tickets::Words).
    pub entry: usize,
    /// Number of the address space.
    pub mm: u32,
    /// Address of the page.
    pub addr: u64,
}

/// The last bits of a PTE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bits {
    /// Accessed.
    pub young: bool,
    /// Dirty.
    pub dirty: bool,
}

/// What is known when a page is enabled. C lays it out: `struct vmtrace_admission`
/// begins like this.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Admission {
    /// The address space's pointer, opaque.
    pub owner: usize,
    /// The handle of its page table entry: see [`Words`](crate::tickets::Words).
    pub entry: usize,
    /// Page address and flags of the access.
    pub page: u64,
    /// Number of the address space.
    pub mm: u32,
    /// Thread and CPU.
    pub tid_cpu: u32,
    /// Page frame number.
    pub pfn: u32,
    /// The PTE's dirty bit was set before and stays set, so that finding it
    /// set at the end proves no store.
    pub was_dirty: bool,
    /// Virtual time, if it is recorded.
    pub vtime: u64,
    /// The address of the access.
    pub address: u64,
}

/// Places for the first segments.
pub fn firsts_for(shape: &Shape) -> usize {
    shape.first.saturating_mul(shape.cpus)
}

/// The smallest set with first segments of this size: a first segment, and as much
/// beside it, unless there is only one CPU.
pub fn least(first: usize, cpus: usize) -> usize {
    first.saturating_mul(cpus.min(2))
}

/// The largest batch for a set of `n` with first segments of this size: it leaves the
/// smallest set.
pub fn batch_max(n: usize, first: usize, cpus: usize) -> usize {
    n.saturating_sub(least(first, cpus)).saturating_add(1)
}

/// How many CPUs have a first segment at a time in a set of `n`; 0: each.
///
/// At most half of the set is in first segments. Where this does not do for all CPUs, it
/// is an eighth of the set, or one CPU: what a CPU holds while 63 others admit is
/// renewed again and again, and most instructions need so few pages that they get on
/// without a seat.
pub fn seats_for(n: u64, first: u32, cpus: usize) -> usize {
    let first = u64::from(first).max(1);
    let all = first.saturating_mul(cpus as u64);
    if cpus == 1 || n >= all.saturating_mul(2) {
        return 0;
    }
    // Fewer than CPUs, as `all` is more than half of `n`.
    (n / first / 8).max(1) as usize
}
