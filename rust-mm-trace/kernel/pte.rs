// SPDX-License-Identifier: GPL-2.0

//! Page table entries, as pure logic: what the bits of one say, and what it becomes.
//!
//! A disabled entry is one of PROT_NONE: the bit for "present" is taken away, and the bit for "no
//! access" is set. It keeps all else, so it says by itself which accesses its mapping allows, and
//! the CPU does not use it. The kernel inverts the frame of such an entry against speculation past
//! the missing bit (arch/x86/include/asm/pgtable-invert.h), and so does this file.
//!
//! The functions are those of C in arch/x86/include/asm/pgtable.h. KUnit compares both for all
//! combinations of bits.
//!
//! The entry of a shadow stack is dirty, and not writable: that is how the CPU recognizes one. It
//! denies plain stores, and allows those of calls. On such a CPU, no other entry is like that: all
//! others have a bit of software for "dirty" while they are not writable. The entry of a shadow stack
//! keeps both bits while it is disabled.

use kernel::bindings;

/// The bits, from C.
mod bit {
    use kernel::bindings::*;

    pub(super) const PRESENT: u64 = 1 << vmtrace_pte_bit_VMTRACE_PTE_BIT_PRESENT;
    pub(super) const RW: u64 = 1 << vmtrace_pte_bit_VMTRACE_PTE_BIT_RW;
    pub(super) const USER: u64 = 1 << vmtrace_pte_bit_VMTRACE_PTE_BIT_USER;
    pub(super) const ACCESSED: u64 = 1 << vmtrace_pte_bit_VMTRACE_PTE_BIT_ACCESSED;
    pub(super) const DIRTY: u64 = 1 << vmtrace_pte_bit_VMTRACE_PTE_BIT_DIRTY;
    pub(super) const PSE: u64 = 1 << vmtrace_pte_bit_VMTRACE_PTE_BIT_PSE;
    pub(super) const PROTNONE: u64 = 1 << vmtrace_pte_bit_VMTRACE_PTE_BIT_PROTNONE;
    pub(super) const SPECIAL: u64 = 1 << vmtrace_pte_bit_VMTRACE_PTE_BIT_SPECIAL;
    pub(super) const SAVED_DIRTY: u64 = 1 << vmtrace_pte_bit_VMTRACE_PTE_BIT_SAVED_DIRTY;
    pub(super) const NX: u64 = 1 << vmtrace_pte_bit_VMTRACE_PTE_BIT_NX;
    pub(super) const ANY_DIRTY: u64 = DIRTY | SAVED_DIRTY;

    pub(super) const PKEY: u32 = vmtrace_pte_bit_VMTRACE_PTE_BIT_PKEY;
    const _: () = assert!(PKEY < 64 - 4);

    /// Only in kernels that have it.
    pub(super) const SOFT_DIRTY: u64 = if cfg!(CONFIG_MEM_SOFT_DIRTY) {
        1 << vmtrace_pte_bit_VMTRACE_PTE_BIT_SOFT_DIRTY
    } else {
        0
    };
    pub(super) const UFFD: u64 = if cfg!(CONFIG_HAVE_ARCH_USERFAULTFD_WP) {
        1 << vmtrace_pte_bit_VMTRACE_PTE_BIT_UFFD
    } else {
        0
    };
}

const PAGE_SHIFT: u32 = 12;

/// An access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    /// FAULT_FLAG_*.
    pub(crate) flags: u32,
}

impl Access {
    /// A store.
    #[inline(always)]
    pub(crate) fn writes(self) -> bool {
        self.flags & bindings::fault_flag_FAULT_FLAG_WRITE != 0
    }

    /// An instruction is fetched.
    #[inline(always)]
    pub(crate) fn fetches(self) -> bool {
        self.flags & bindings::fault_flag_FAULT_FLAG_INSTRUCTION != 0
    }

    /// Somebody means the page: it is not only populated or pinned.
    pub(crate) fn is_reference(self) -> bool {
        self.flags & bindings::fault_flag_FAULT_FLAG_NOREF == 0
    }

    /// VMTRACE_REF_*.
    #[inline(always)]
    pub(crate) fn reference(self) -> u64 {
        let kind = if self.writes() {
            bindings::VMTRACE_REF_WRITE | bindings::VMTRACE_REF_DIRTIED
        } else if self.fetches() {
            bindings::VMTRACE_REF_EXEC
        } else {
            bindings::VMTRACE_REF_READ
        };
        let user = self.flags & bindings::fault_flag_FAULT_FLAG_USER != 0;
        u64::from(
            kind | if user {
                0
            } else {
                bindings::VMTRACE_REF_KERNEL
            },
        )
    }
}

/// A page table entry; also that of a huge page, which is stored like one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Pte(pub(crate) u64);

impl Pte {
    #[inline(always)]
    fn has(self, bits: u64) -> bool {
        self.0 & bits != 0
    }

    /// Whether user mode can reach a page through it.
    #[inline(always)]
    pub(crate) fn is_enabled(self) -> bool {
        const ENABLED: u64 = bit::PRESENT | bit::USER;
        self.0 & ENABLED == ENABLED
    }

    /// Whether this tracer has disabled it.
    #[inline(always)]
    pub(crate) fn is_disabled(self) -> bool {
        const DISABLED: u64 = bit::PROTNONE | bit::USER;
        self.0 & (bit::PRESENT | DISABLED) == DISABLED
    }

    /// Whether a plain store is allowed.
    #[inline(always)]
    pub(crate) fn is_writable(self) -> bool {
        self.has(bit::RW)
    }

    /// Whether its bits are those of a shadow stack, in a kernel that has shadow stacks.
    #[inline(always)]
    pub(crate) fn is_shadow_stack(self) -> bool {
        cfg!(CONFIG_X86_USER_SHADOW_STACK) && self.0 & (bit::RW | bit::DIRTY) == bit::DIRTY
    }

    /// Whether stores of some kind are allowed.
    #[inline(always)]
    pub(crate) fn takes_stores(self) -> bool {
        self.is_writable() || self.is_shadow_stack()
    }

    #[inline(always)]
    pub(crate) fn is_young(self) -> bool {
        self.has(bit::ACCESSED)
    }

    #[inline(always)]
    pub(crate) fn is_dirty(self) -> bool {
        self.has(bit::ANY_DIRTY)
    }

    /// Of memory without a struct page, or the page of zeros.
    pub(crate) fn is_special(self) -> bool {
        self.has(bit::SPECIAL)
    }

    /// The bit for the size: a huge page, or in a PTE a kind of caching that is not covered.
    #[inline(always)]
    pub(crate) fn has_pse(self) -> bool {
        self.has(bit::PSE)
    }

    /// Whether the frame is inverted. Present entries are not, and an empty one has no frame.
    #[inline(always)]
    fn inverts(self) -> bool {
        self.0 != 0 && !self.has(bit::PRESENT)
    }

    /// It with these other bits, and the frame inverted if it must be. `mask` is of the frame.
    #[inline(always)]
    fn with(self, bits: u64, mask: u64) -> Pte {
        let new = Pte(bits);
        match self.inverts() != new.inverts() {
            true => Pte(bits ^ mask),
            false => new,
        }
    }

    #[inline(always)]
    pub(crate) fn disable(self, mask: u64) -> Pte {
        self.with(self.0 & !bit::PRESENT | bit::PROTNONE, mask)
    }

    #[inline(always)]
    pub(crate) fn enable(self, mask: u64) -> Pte {
        self.with(self.0 & !bit::PROTNONE | bit::PRESENT, mask)
    }

    /// The frame.
    #[inline(always)]
    pub(crate) fn frame(self, mask: u64) -> u64 {
        let bits = if self.inverts() { !self.0 } else { self.0 };
        (bits & mask) >> PAGE_SHIFT
    }

    #[inline(always)]
    pub(crate) fn make_young(self) -> Pte {
        Pte(self.0 | bit::ACCESSED)
    }

    pub(crate) fn make_old(self) -> Pte {
        Pte(self.0 & !bit::ACCESSED)
    }

    /// The CPU would take the entry of a page that may not be written and is dirty for one of a
    /// shadow stack, so its dirty bit is another one.
    #[inline(always)]
    pub(crate) fn make_dirty(self) -> Pte {
        let dirty = if self.is_writable() {
            bit::DIRTY
        } else {
            bit::SAVED_DIRTY
        };
        Pte(self.0 & !(bit::DIRTY & !dirty) | dirty | bit::SOFT_DIRTY)
    }

    #[inline(always)]
    pub(crate) fn make_clean(self) -> Pte {
        Pte(self.0 & !bit::ANY_DIRTY)
    }

    /// Whether the fault of an access may enable it, or must come again first.
    #[inline(always)]
    pub(crate) fn may_enable(self, access: Access) -> bool {
        self.is_disabled() && (!access.writes() || self.takes_stores())
    }

    /// Whether it allows an access, as its VMA does: a disabled one has kept the rights and the
    /// protection key. `pkru` has the rights of the task to pages with keys. What is not allowed
    /// here is looked at again by the fault's usual path, so this may say no too often.
    #[inline(always)]
    pub(crate) fn allows(self, access: Access, pkru: u32) -> Allowed {
        let mut needs = 0;
        if access.writes() {
            needs |= bit::RW;
        }
        if access.fetches() {
            needs |= bit::NX;
        }
        // RW permits and NX forbids. With RW inverted, a set bit forbids in both cases.
        if self.has(bit::UFFD) || (self.0 ^ bit::RW) & needs != 0 {
            return Allowed::NoRight;
        }
        match access.fetches() || self.key_allows(access, pkru) {
            true => Allowed::Yes,
            false => Allowed::NoKey,
        }
    }

    /// Two bits of PKRU for each key: it may not be read, it may not be written.
    #[inline(always)]
    fn key_allows(self, access: Access, pkru: u32) -> bool {
        if !cfg!(CONFIG_X86_INTEL_MEMORY_PROTECTION_KEYS) {
            return true;
        }
        let key = (self.0 >> bit::PKEY) as u32 & 15;
        let denies = pkru >> (key << 1);
        let asked = 1 | u32::from(access.writes()) << 1;
        denies & asked == 0
    }

    /// What a disabled one becomes when an access enables it. The entry of a shadow stack is dirty
    /// already. make_dirty() would move its dirty bit, and so make it one of plain memory.
    #[inline(always)]
    pub(crate) fn touched(self, access: Access, mask: u64) -> Pte {
        let pte = match access.writes() && !self.is_shadow_stack() {
            true => self.make_dirty(),
            false => self,
        };
        pte.make_young().enable(mask)
    }
}

/// Answer of [`Pte::allows`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Allowed {
    Yes,
    /// Its rights do not allow it.
    NoRight,
    /// Its protection key does not.
    NoKey,
}
