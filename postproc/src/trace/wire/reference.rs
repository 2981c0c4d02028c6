//! References: the records of stays.

use std::mem::offset_of;

use byteorder::{ByteOrder, LittleEndian as LE};
use rust_mm_trace::record::Extras;
use rust_mm_trace::uapi;
use serde::Serialize;

use super::{Event, Header, MOST, NO_OFFSET, PacketHead, REF_SIZE};
use crate::units::{Access, Mm, Tid, VirtPage};

/// Why a residency ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the UAPI header documents each value")]
pub enum Why {
    Evicted,
    Unmapped,
    Cow,
    Protected,
    Reclaimed,
    Moved,
    Exit,
    Drained,
    Migrated,
    Advised,
    Truncated,
    Other,
    Renewed,
    Chance,
    Piece,
    Interval,
}

impl Why {
    /// Every value, in the order of their numbers.
    pub const ALL: [Why; 16] = [
        Why::Evicted,
        Why::Unmapped,
        Why::Cow,
        Why::Protected,
        Why::Reclaimed,
        Why::Moved,
        Why::Exit,
        Why::Drained,
        Why::Migrated,
        Why::Advised,
        Why::Truncated,
        Why::Other,
        Why::Renewed,
        Why::Chance,
        Why::Piece,
        Why::Interval,
    ];

    fn from_number(number: u64) -> Self {
        Self::ALL[(number as usize).min(Self::ALL.len() - 1)]
    }

    /// The name used in all output.
    pub fn name(self) -> &'static str {
        match self {
            Why::Evicted => "evicted",
            Why::Unmapped => "unmapped",
            Why::Cow => "cow",
            Why::Protected => "protected",
            Why::Reclaimed => "reclaimed",
            Why::Moved => "moved",
            Why::Exit => "exit",
            Why::Drained => "drained",
            Why::Migrated => "migrated",
            Why::Advised => "advised",
            Why::Truncated => "truncated",
            Why::Other => "other",
            Why::Renewed => "renewed",
            Why::Chance => "chance",
            Why::Piece => "piece",
            Why::Interval => "interval",
        }
    }
}

/// The flags of a reference: the low bits of `vmtrace_ref.page`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefFlags(pub u16);

impl RefFlags {
    /// The number of values of [`RefFlags::index`].
    pub const INDEXES: usize = 1024;

    /// The defined flags, as an index into a histogram.
    pub fn index(self) -> usize {
        usize::from(self.0) & (Self::INDEXES - 1)
    }

    /// The kind of the admitting access.
    pub fn access(self) -> Access {
        match u32::from(self.0) & uapi::VMTRACE_REF_KIND {
            uapi::VMTRACE_REF_READ => Access::Read,
            uapi::VMTRACE_REF_WRITE => Access::Write,
            uapi::VMTRACE_REF_EXEC => Access::Exec,
            _ => Access::Seen,
        }
    }

    /// Whether the record is a renewal, which is not a reference: the stay of the page's last
    /// record goes on.
    #[inline]
    pub fn continues(self) -> bool {
        u32::from(self.0) & uapi::VMTRACE_REF_CONT != 0
    }

    /// Whether the filter would have left the record out. Only in traces of a negative control: see
    /// [`Header::keeps_left_out`].
    pub fn is_left_out(self) -> bool {
        u32::from(self.0) & uapi::VMTRACE_REF_LEFT != 0
    }

    /// Whether the kernel made the access on behalf of the program.
    pub fn kernel(self) -> bool {
        u32::from(self.0) & uapi::VMTRACE_REF_KERNEL != 0
    }

    /// Whether a store to the page was made or begun in this stay.
    pub fn dirtied(self) -> bool {
        u32::from(self.0) & uapi::VMTRACE_REF_DIRTIED != 0
    }

    /// Whether the page was referenced in the second segment.
    pub fn again(self) -> bool {
        u32::from(self.0) & uapi::VMTRACE_REF_AGAIN != 0
    }

    /// Why the residency ended.
    pub fn why(self) -> Why {
        let number = u32::from(self.0) & uapi::VMTRACE_REF_WHY;
        Why::from_number(u64::from(number >> uapi::VMTRACE_REF_WHY_SHIFT))
    }

    /// Whether the page must be written back when it is replaced.
    pub fn writes(self) -> bool {
        self.access() == Access::Write || self.dirtied()
    }
}

/// A reference: one residency in the EVMS.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ref {
    /// Global sequence number of the admission.
    pub seq: u64,
    /// Time of the admission.
    pub time_ns: u64,
    /// Where the record lies in the file.
    pub offset: u64,
    /// Virtual page address and flags.
    pub page: u64,
    /// Thread and CPU.
    pub tid_cpu: u32,
    /// The address space.
    pub mm: Mm,
    /// Length of the residency in units of `header.stay_shift`.
    pub stay: u32,
    /// Page frame number, saturating.
    pub pfn: u32,
    /// The EVMS that the page was in.
    pub set: u32,
    /// The task's virtual time, in ticks; 0 if the trace has none.
    pub vtime: u64,
    /// The offset of the access within its page; [`NO_OFFSET`] if it is not known.
    pub within: u64,
}

impl Ref {
    /// Decodes one record with these extras, of a packet with this head.
    #[inline]
    pub(crate) fn decode(b: &[u8], offset: u64, head: &PacketHead, extras: Extras) -> Self {
        type R = uapi::vmtrace_ref;
        let first = b.get(REF_SIZE..).and_then(|rest| rest.first_chunk());
        let first = first.map(|raw| u64::from_le_bytes(*raw));
        let last = b.last_chunk().map_or(0, |raw| u64::from_le_bytes(*raw));
        let (vtime, within) = match extras {
            Extras::NONE => (0, NO_OFFSET),
            Extras::VTIME => (first.unwrap_or(0), NO_OFFSET),
            Extras::OFFSET => (0, last),
            _ => (first.unwrap_or(0), last),
        };
        Ref {
            vtime,
            within,
            seq: head.first_seq.wrapping_add(u64::from(get!(b, R, seq, u32))),
            time_ns: head
                .first_time_ns
                .wrapping_add(u64::from(get!(b, R, time, u32))),
            offset,
            page: get!(b, R, page, u64),
            tid_cpu: get!(b, R, tid_cpu, u32),
            mm: Mm(get!(b, R, mm, u32)),
            stay: get!(b, R, stay, u32),
            pfn: get!(b, R, pfn, u32),
            set: head.stream.set,
        }
    }

    /// A reference to a page of a file that was read or written. Only its thread and its time are
    /// known.
    pub(crate) fn of_io(event: &Event<'_>, write: bool) -> Self {
        let kind = match write {
            true => uapi::VMTRACE_REF_WRITE,
            false => uapi::VMTRACE_REF_READ,
        };
        let tid = event.tid.0 & ((1 << uapi::VMTRACE_TID_BITS) - 1);
        Ref {
            seq: event.seq,
            time_ns: event.time_ns,
            vtime: event.vtime.unwrap_or(0),
            offset: event.offset,
            page: u64::from(kind | uapi::VMTRACE_REF_KERNEL),
            tid_cpu: tid | event.cpu << uapi::VMTRACE_TID_BITS,
            mm: event.mm,
            stay: u32::MAX,
            pfn: u32::MAX,
            set: 0,
            within: NO_OFFSET,
        }
    }

    /// The offset of the access within its page, if it is known. Of a huge page, it may be larger
    /// than a page.
    #[inline]
    pub fn within(&self) -> Option<u64> {
        (self.within != NO_OFFSET).then_some(self.within)
    }

    /// The address of the access, or of its page if the offset is not known.
    #[inline]
    pub fn exact(&self) -> u64 {
        self.address() | self.within().unwrap_or(0)
    }

    /// The time alone, of the bytes that [`Ref::TIME`] says.
    pub(crate) fn time_of(b: [u8; 4], base_time: u64) -> u64 {
        base_time.wrapping_add(u64::from(u32::from_le_bytes(b)))
    }

    /// Where in a record its time lies.
    pub(crate) const TIME: u64 = offset_of!(uapi::vmtrace_ref, time) as u64;

    /// The sequence number alone.
    #[inline]
    pub(crate) fn peek_seq(b: &[u8; REF_SIZE], base_seq: u64) -> u64 {
        base_seq.wrapping_add(u64::from(get!(b, uapi::vmtrace_ref, seq, u32)))
    }

    /// Address of the page's first byte.
    pub fn address(&self) -> u64 {
        self.page & !u64::from(uapi::VMTRACE_REF_FLAGS)
    }

    /// The virtual page.
    #[inline]
    pub fn vpn(&self, page_shift: u32) -> VirtPage {
        VirtPage(self.page >> page_shift)
    }

    /// The flags.
    #[inline]
    pub fn flags(&self) -> RefFlags {
        RefFlags((self.page & u64::from(uapi::VMTRACE_REF_FLAGS)) as u16)
    }

    /// The thread that made the access.
    #[inline]
    pub fn tid(&self) -> Tid {
        Tid(self.tid_cpu & ((1 << uapi::VMTRACE_TID_BITS) - 1))
    }

    /// The CPU on which that thread ran.
    pub fn cpu(&self) -> u32 {
        self.tid_cpu >> uapi::VMTRACE_TID_BITS
    }

    /// When the residency ended; `None` if its length saturated.
    #[inline]
    pub fn end_ns(&self, stay_shift: u32) -> Option<u64> {
        (self.stay != u32::MAX).then(|| {
            self.time_ns
                .saturating_add(u64::from(self.stay) << stay_shift)
        })
    }

    /// The same reference with a later time. Its stay ends when it did, or at once.
    pub(crate) fn at(&self, time_ns: u64, stay_shift: u32) -> Ref {
        let stay = match self.end_ns(stay_shift) {
            // Not more than it was.
            Some(end) => (end.saturating_sub(time_ns) >> stay_shift) as u32,
            None => self.stay,
        };
        Ref {
            time_ns,
            stay,
            ..*self
        }
    }
}

/// Bytes of the largest huge page.
const MOST_OFFSET: u64 = 1 << 30;

/// What holds for every reference of a trace.
pub(crate) struct RefBounds {
    /// Whether they have offsets.
    offsets: bool,
    /// Bits of [`Ref::page`] that are clear: those of the offset within a page, except the flags,
    /// and the highest bit, which only kernel addresses have.
    no_page: u64,
    /// Flags that the trace cannot have.
    no_flags: u64,
    /// [`Ref::tid_cpu`] is below this.
    end: u64,
    /// The last reason why a record ends, where it lies in [`Ref::page`].
    last_why: u64,
}

/// The low bits of [`Ref::page`] that mean nothing.
const NO_FLAGS: u64 = (uapi::VMTRACE_REF_FLAGS
    & !(uapi::VMTRACE_REF_KIND
        | uapi::VMTRACE_REF_KERNEL
        | uapi::VMTRACE_REF_DIRTIED
        | uapi::VMTRACE_REF_AGAIN
        | uapi::VMTRACE_REF_WHY
        | uapi::VMTRACE_REF_CONT)) as u64;

impl Header {
    /// What holds for every reference.
    pub(crate) fn ref_bounds(&self) -> RefBounds {
        let offset = (1 << self.page_shift) - 1;
        RefBounds {
            offsets: self.has_offsets(),
            no_page: offset & !u64::from(uapi::VMTRACE_REF_FLAGS) | !MOST,
            no_flags: match self.keeps_left_out() {
                true => NO_FLAGS & !u64::from(uapi::VMTRACE_REF_LEFT),
                false => NO_FLAGS,
            },
            end: u64::from(self.nr_cpus) << uapi::VMTRACE_TID_BITS,
            last_why: u64::from(match self.interval_ns {
                0 => uapi::VMTRACE_WHY_PIECE,
                _ => uapi::VMTRACE_WHY_INTERVAL,
            }) << uapi::VMTRACE_REF_WHY_SHIFT,
        }
    }
}

impl RefBounds {
    /// Whether they hold for a reference, each of which is asked about.
    #[inline]
    pub(crate) fn hold(&self, r: &Ref) -> bool {
        let clear = r.page & (self.no_page | self.no_flags) == 0;
        let why = r.page & u64::from(uapi::VMTRACE_REF_WHY);
        // One branch.
        clear & (why <= self.last_why) & (u64::from(r.tid_cpu) < self.end) & self.is_within(r)
    }

    /// Whether the offset is one that the page can have, or none. A huge page has 1 GiB at most,
    /// and its size divides its address. Only an access that the accessed bit has shown has none.
    #[inline]
    fn is_within(&self, r: &Ref) -> bool {
        let seen = r.page & u64::from(uapi::VMTRACE_REF_KIND) == u64::from(uapi::VMTRACE_REF_SEEN);
        let room = 1u64 << (r.address() | MOST_OFFSET).trailing_zeros();
        let none = r.within == NO_OFFSET;
        none & (seen | !self.offsets) | (r.within < room) & !seen
    }

    /// Which one does not hold, in words.
    #[cold]
    pub(crate) fn broken(&self, r: &Ref) -> &'static str {
        if !self.is_within(r) {
            return "a reference with an impossible offset within its page";
        }
        if r.page & self.no_page != 0 {
            "a reference to an address where no page can be"
        } else if r.page & self.no_flags != 0 {
            "a reference with flags that do not exist"
        } else if u64::from(r.tid_cpu) >= self.end {
            "a reference on a CPU that does not exist"
        } else {
            "a reference whose record ended for a reason that does not exist"
        }
    }
}
