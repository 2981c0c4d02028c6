//! What a stretch notes for those that come after it.
//!
//! Notes are sent to other machines, so they have a form in bytes. All numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 4 | [`VERSION`] |
//! | 4 | CRC32C of the bytes that follow |
//! | 16 | the trace's UUID |
//! | 4 | what of the trace was read ([`form_of`]) |
//! | 4 | the page mode |
//! | 8, 8 | the stretch's first sequence number, and the one after its last |
//! | 8, 8, 8 | records, references and renewals of the stretch |
//! | 8 | the latest time of a record, in ns |
//! | 8 | the set of the first record; `u64::MAX` if there is no record |
//! | 8 | 1 if records are of several sets, or 0 |
//! | 8 | how many notes there are |
//! | | the notes, in the order of the records |
//!
//! A note is three numbers: the record's sequence number, its address space and its virtual page. Each is
//! written as the difference to that of the note before (at first, to the stretch's first number, 0
//! and 0), as a number with a sign of [`crate::varint`].

use std::ops::Range;

use byteorder::{ByteOrder, LittleEndian as LE};

use crate::canon::PageMode;
use crate::error::{Error, Result};
use crate::pipeline::Counted;
use crate::trace::{StreamKind, Trace, Uuid};
use crate::units::{Mm, VirtPage};
use crate::varint;

const MAGIC: [u8; 8] = *b"VMTnames";
const VERSION: u32 = 1;
/// Bytes before the notes.
const HEAD: usize = 112;
/// Of these, bytes that the checksum is not of.
const UNCHECKED: usize = 16;

/// The page modes, by their numbers.
const MODES: [PageMode; 3] = [PageMode::Canonical, PageMode::Virtual, PageMode::Unnamed];

/// A record that may give a name to its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Note {
    seq: u64,
    mm: Mm,
    vpn: VirtPage,
}

impl Note {
    /// What the first note of a stretch follows.
    fn before(start: u64) -> Self {
        Note {
            seq: start,
            mm: Mm(0),
            vpn: VirtPage(0),
        }
    }
}

/// The records of a stretch that may give names to pages, and what was counted of the stretch.
///
/// [`super::names`] makes it, and [`super::run`] uses those of all stretches before the one that it reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    uuid: Uuid,
    form: u32,
    mode: PageMode,
    range: Range<u64>,
    counted: Counted,
    count: u64,
    /// The notes, as they are in the bytes.
    coded: Vec<u8>,
    last: Note,
}

/// What of a trace with one identity is read, and how much there is of it.
fn form_of(trace: &Trace) -> u32 {
    let piece = trace.piece().map(|p| (p.number, p.last_number));
    let (first, last) = piece.unwrap_or((u32::MAX, u32::MAX));
    let records = |kind| trace.index().records(kind);
    let numbers = [
        trace.window().map_or(u64::MAX, u64::from),
        u64::from(first) << 32 | u64::from(last),
        trace.part().map_or(u64::MAX, |part| part.number.into()),
        records(StreamKind::Ref),
        records(StreamKind::Context),
        records(StreamKind::Event),
    ];
    let add = |crc, number: u64| crc32c::crc32c_append(crc, &number.to_le_bytes());
    numbers.into_iter().fold(0, add)
}

impl Names {
    /// Those of a stretch, without notes.
    pub(super) fn of(trace: &Trace, mode: PageMode, range: Range<u64>) -> Self {
        Names {
            uuid: trace.header().uuid,
            form: form_of(trace),
            mode,
            last: Note::before(range.start),
            range,
            counted: Counted::default(),
            count: 0,
            coded: Vec::new(),
        }
    }

    /// Notes a record.
    pub(super) fn push(&mut self, seq: u64, mm: Mm, vpn: VirtPage) {
        let note = Note { seq, mm, vpn };
        let last = std::mem::replace(&mut self.last, note);
        for (now, before) in [
            (seq, last.seq),
            (mm.0.into(), last.mm.0.into()),
            (vpn.0, last.vpn.0),
        ] {
            varint::put_signed(now.wrapping_sub(before) as i64, &mut self.coded);
        }
        self.count += 1;
    }

    /// Takes what was counted of the stretch.
    pub(super) fn count(&mut self, counted: Counted) {
        self.counted = counted;
    }

    /// The trace.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The stretch's sequence numbers.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// How many records were noted.
    pub fn notes(&self) -> u64 {
        self.count
    }

    /// The same without notes, which are not the names of the stretch: for a negative control.
    #[cfg(any(test, feature = "testing"))]
    pub fn without_notes(&self) -> Self {
        Names {
            count: 0,
            coded: Vec::new(),
            last: Note::before(self.range.start),
            ..self.clone()
        }
    }

    /// The form in which [`Names::from_bytes`] takes them, a few bytes a note.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        bytes[..8].copy_from_slice(&MAGIC);
        LE::write_u32(&mut bytes[8..], VERSION);
        bytes[16..32].copy_from_slice(&self.uuid.0);
        LE::write_u32(&mut bytes[32..], self.form);
        let mode = MODES.iter().position(|mode| *mode == self.mode);
        LE::write_u32(&mut bytes[36..], mode.unwrap_or_default() as u32);
        let counted = &self.counted;
        let numbers = [
            self.range.start,
            self.range.end,
            counted.records,
            counted.references,
            counted.renewals,
            counted.latest_ns,
            counted.first_set.map_or(u64::MAX, u64::from),
            counted.several_sets.into(),
            self.count,
        ];
        for (to, number) in bytes[40..].chunks_exact_mut(8).zip(numbers) {
            LE::write_u64(to, number);
        }
        bytes.extend_from_slice(&self.coded);
        let crc = crc32c::crc32c(&bytes[UNCHECKED..]);
        LE::write_u32(&mut bytes[12..], crc);
        bytes
    }

    /// Takes what [`Names::to_bytes`] has given.
    ///
    /// # Errors
    ///
    /// [`Error::NamesDamaged`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let damaged = |why| Error::NamesDamaged { why };
        let Some((head, coded)) = bytes.split_first_chunk::<HEAD>() else {
            return Err(damaged("they are cut off, or no names"));
        };
        if !head.starts_with(&MAGIC) {
            return Err(damaged("these are no names"));
        }
        if LE::read_u32(&head[8..]) != VERSION {
            return Err(damaged("another version of postproc has made them"));
        }
        if LE::read_u32(&head[12..]) != crc32c::crc32c(&bytes[UNCHECKED..]) {
            return Err(damaged("their checksum is wrong"));
        }
        let mut uuid = Uuid([0; 16]);
        uuid.0.copy_from_slice(&head[16..32]);
        let number = |i: usize| LE::read_u64(&head[40 + 8 * i..]);
        let mode = MODES.get(LE::read_u32(&head[36..]) as usize);
        let first_set = match number(6) {
            u64::MAX => Ok(None),
            set => u32::try_from(set).map(Some),
        };
        let (Some(&mode), Ok(first_set), 0..=1) = (mode, first_set, number(7)) else {
            return Err(damaged("their head has impossible values"));
        };
        let mut names = Names {
            uuid,
            form: LE::read_u32(&head[32..]),
            mode,
            range: number(0)..number(1),
            counted: Counted {
                records: number(2),
                references: number(3),
                renewals: number(4),
                latest_ns: number(5),
                first_set,
                several_sets: number(7) == 1,
            },
            count: number(8),
            coded: coded.to_vec(),
            last: Note::before(number(0)),
        };
        names.verify().map_err(damaged)?;
        Ok(names)
    }

    /// Looks at each note, and takes the last.
    fn verify(&mut self) -> std::result::Result<(), &'static str> {
        let (mut notes, mut count, mut last) = (self.iter(), 0, self.last);
        for note in notes.by_ref() {
            if !self.range.contains(&note.seq) {
                return Err("a note is not of the stretch");
            }
            (count, last) = (count + 1, note);
        }
        if count != self.count || !notes.rest.is_empty() {
            return Err("the head has another number of notes");
        }
        self.last = last;
        Ok(())
    }

    fn iter(&self) -> Notes<'_> {
        Notes {
            rest: &self.coded,
            last: Note::before(self.range.start),
        }
    }
}

/// Notes, one after the other, as far as they can be decoded.
#[derive(Clone)]
struct Notes<'n> {
    rest: &'n [u8],
    last: Note,
}

impl Iterator for Notes<'_> {
    type Item = Note;

    fn next(&mut self) -> Option<Note> {
        let mut rest = self.rest;
        let seq = self
            .last
            .seq
            .wrapping_add(varint::take_signed(&mut rest)? as u64);
        let mm = u64::from(self.last.mm.0).wrapping_add(varint::take_signed(&mut rest)? as u64);
        let vpn = self
            .last
            .vpn
            .0
            .wrapping_add(varint::take_signed(&mut rest)? as u64);
        self.last = Note {
            seq,
            mm: Mm(u32::try_from(mm).ok()?),
            vpn: VirtPage(vpn),
        };
        self.rest = rest;
        Some(self.last)
    }
}

/// The notes of all stretches before one, in order.
#[derive(Default)]
pub(crate) struct Earlier<'n> {
    all: &'n [Names],
    /// Those of the first stretch that is not over; it is the `at`th.
    at: usize,
    notes: Option<Notes<'n>>,
    next: Option<Note>,
    /// What was taken last.
    taken: Vec<(Mm, VirtPage)>,
}

impl<'n> Earlier<'n> {
    /// # Errors
    ///
    /// [`Error::NamesUnfit`].
    pub fn all(trace: &Trace, mode: PageMode, all: &'n [Names], start: u64) -> Result<Self> {
        fit(trace, mode, all, start).map_err(|why| Error::NamesUnfit {
            path: trace.path().into(),
            why,
        })?;
        let mut earlier = Earlier {
            all,
            notes: all.first().map(Names::iter),
            ..Earlier::default()
        };
        earlier.step();
        Ok(earlier)
    }

    /// What was counted of each stretch.
    pub fn counted(&self) -> impl Iterator<Item = &'n Counted> + use<'n> {
        self.all.iter().map(|names| &names.counted)
    }

    fn step(&mut self) {
        while let Some(notes) = &mut self.notes {
            self.next = notes.next();
            if self.next.is_some() {
                return;
            }
            self.at += 1;
            self.notes = self.all.get(self.at).map(Names::iter);
        }
        self.next = None;
    }

    /// The pages of the next notes up to a sequence number; at most so many.
    #[inline]
    pub fn take(&mut self, seq: u64, most: usize) -> &[(Mm, VirtPage)] {
        self.taken.clear();
        while let Some(note) = self.next.filter(|note| note.seq <= seq) {
            if self.taken.len() == most {
                break;
            }
            self.taken.push((note.mm, note.vpn));
            self.step();
        }
        &self.taken
    }
}

/// Says why names are not those of all stretches before a sequence number, if they are not.
fn fit(
    trace: &Trace,
    mode: PageMode,
    all: &[Names],
    start: u64,
) -> std::result::Result<(), String> {
    let (uuid, form) = (trace.header().uuid, form_of(trace));
    let mut next = 0;
    for names in all {
        let Range { start, end } = names.range;
        if names.uuid != uuid {
            return Err(format!(
                "some are of trace {}, and this is trace {uuid}",
                names.uuid
            ));
        }
        if names.form != form {
            return Err("the trace was longer or shorter, or another part of it was read".into());
        }
        if names.mode != mode {
            return Err("they name pages in another way".into());
        }
        if start != next || end < start {
            return Err(format!("a stretch begins at {start}, not at {next}"));
        }
        next = end;
    }
    match next == start {
        true => Ok(()),
        false => Err(format!("the last stretch ends at {next}, not at {start}")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Names, Note};
    use crate::canon::PageMode;
    use crate::pipeline::Counted;
    use crate::trace::Uuid;
    use crate::units::{Mm, VirtPage};

    fn names(start: u64, notes: &[(u64, u32, u64)]) -> Names {
        let mut names = Names {
            uuid: Uuid([7; 16]),
            form: 77,
            mode: PageMode::Virtual,
            range: start..u64::MAX,
            counted: Counted {
                records: 1 << 40,
                first_set: Some(3),
                several_sets: true,
                ..Counted::default()
            },
            count: 0,
            coded: Vec::new(),
            last: Note::before(start),
        };
        for &(after, mm, vpn) in notes {
            names.push(start + after, Mm(mm), VirtPage(vpn));
        }
        names
    }

    proptest! {
        #[test]
        fn names_come_back(
            start in 0..1u64 << 62,
            notes in prop::collection::vec((0..1u64 << 62, any::<u32>(), any::<u64>()), 0..50),
        ) {
            let names = names(start, &notes);
            prop_assert_eq!(Names::from_bytes(&names.to_bytes()).expect("good"), names);
        }

        /// Whatever is changed is noticed, also if the checksum holds; nothing panics.
        #[test]
        fn other_bytes_are_refused(
            notes in prop::collection::vec((0..1u64 << 20, 0..9u32, 0..1u64 << 36), 0..20),
            at in any::<prop::sample::Index>(),
            change in 1..=u8::MAX,
            mend in any::<bool>(),
        ) {
            let good = names(5, &notes);
            let mut bytes = good.to_bytes();
            let at = at.index(bytes.len());
            prop_assert!(Names::from_bytes(&bytes[..at]).is_err());
            bytes[at] ^= change;
            if mend {
                let crc = crc32c::crc32c(&bytes[super::UNCHECKED..]);
                bytes[12..16].copy_from_slice(&crc.to_le_bytes());
                if let Ok(other) = Names::from_bytes(&bytes) {
                    prop_assert_eq!(other.iter().count() as u64, other.notes());
                }
            } else {
                prop_assert!(Names::from_bytes(&bytes).is_err());
            }
            prop_assert!(Names::from_bytes(&bytes[1..]).is_err());
        }
    }
}
