//! A reference: one residency in the EVMS.

use super::Fields;
use crate::units::{Mm, VirtPage};
use rust_mm_trace::uapi::{self, vmtrace_ref as R};
use serde::Serialize;
use std::mem::offset_of;

/// Kind of the access that had a page admitted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Exec,
    /// A code that means nothing.
    Invalid,
}

impl Access {
    /// One letter: r, w, x or ?.
    pub fn letter(self) -> char {
        match self {
            Self::Read => 'r',
            Self::Write => 'w',
            Self::Exec => 'x',
            Self::Invalid => '?',
        }
    }
}

/// Why a stay ended: VMTRACE_WHY_*.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Why(pub u8);

impl Why {
    /// N later admissions.
    pub const EVICTED: Self = Self(uapi::VMTRACE_WHY_EVICTED as u8);

    /// Every reason that has a name.
    pub const NAMES: [&'static str; 12] = [
        "evicted",
        "unmapped",
        "cow",
        "protected",
        "reclaimed",
        "moved",
        "exit",
        "drained",
        "migrated",
        "advised",
        "truncated",
        "other",
    ];

    /// The reason's name.
    pub fn name(self) -> &'static str {
        Self::NAMES
            .get(usize::from(self.0))
            .copied()
            .unwrap_or("unknown")
    }
}

/// `struct vmtrace_ref`, made absolute.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// Sequence number of the admission.
    pub seq: u64,
    /// Time of the admission, ns.
    pub time: u64,
    /// The page.
    pub page: VirtPage,
    /// VMTRACE_REF_* bits.
    pub flags: u16,
    /// Thread.
    pub tid: u32,
    /// CPU of the admission.
    pub cpu: u32,
    /// Address space.
    pub mm: Mm,
    /// Length of the stay in units of the header's `stay_shift`.
    pub stay: u32,
    /// Page frame number.
    pub pfn: u32,
}

/// Bytes of a reference record.
pub(super) const REF_SIZE: usize = size_of::<R>();

impl Reference {
    /// Decodes a record of a packet; `b` holds exactly one.
    #[inline]
    pub(super) fn decode(b: &[u8; REF_SIZE], first_seq: u64, first_time: u64) -> Self {
        let page = b.u64_at(offset_of!(R, page));
        let tid_cpu = b.u32_at(offset_of!(R, tid_cpu));
        let flags = u64::from(uapi::VMTRACE_REF_FLAGS);
        Self {
            seq: first_seq.wrapping_add(b.u32_at(offset_of!(R, seq)).into()),
            time: first_time.wrapping_add(b.u32_at(offset_of!(R, time)).into()),
            page: VirtPage(page & !flags),
            flags: (page & flags) as u16,
            tid: tid_cpu & ((1 << uapi::VMTRACE_TID_BITS) - 1),
            cpu: tid_cpu >> uapi::VMTRACE_TID_BITS,
            mm: Mm(b.u32_at(offset_of!(R, mm))),
            stay: b.u32_at(offset_of!(R, stay)),
            pfn: b.u32_at(offset_of!(R, pfn)),
        }
    }

    /// Kind of the admitting access.
    #[inline]
    pub fn access(&self) -> Access {
        match u32::from(self.flags) & uapi::VMTRACE_REF_KIND {
            uapi::VMTRACE_REF_READ => Access::Read,
            uapi::VMTRACE_REF_WRITE => Access::Write,
            uapi::VMTRACE_REF_EXEC => Access::Exec,
            _ => Access::Invalid,
        }
    }

    /// Whether the kernel made the access on the task's behalf.
    pub fn by_kernel(&self) -> bool {
        u32::from(self.flags) & uapi::VMTRACE_REF_KERNEL != 0
    }

    /// Whether the page was written in this stay.
    #[inline]
    pub fn dirtied(&self) -> bool {
        u32::from(self.flags) & uapi::VMTRACE_REF_DIRTIED != 0
    }

    /// Whether it was referenced again after the first segment.
    pub fn again(&self) -> bool {
        u32::from(self.flags) & uapi::VMTRACE_REF_AGAIN != 0
    }

    /// Why the stay ended.
    #[inline]
    pub fn why(&self) -> Why {
        Why(
            ((u32::from(self.flags) & uapi::VMTRACE_REF_WHY) >> uapi::VMTRACE_REF_WHY_SHIFT)
                as u8,
        )
    }
}
