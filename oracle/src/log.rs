//! The log that the plugin writes: its counts, and the stays of the model.
//!
//! The log is little-endian. Its parts are: [`MAGIC`], the version, the length of the
//! notes, the size of the set, the size of its first segment, its kind, and its batch (8
//! bytes each); the counts in the order of [`Counts::NAMES`]; the number of stays; the number of
//! address spaces that have another set than set 0; the text of the notes; for each of these, its
//! number and that of its set; and 16 bytes for each stay: page address, address space, flags. If a flag
//! is set, each stay has 16 bytes more: thread, CPU, page frame, zero.

use crate::model::{Access, Page, Sets, Shape, Stay, Who};
use std::io::{self, Read, Write};

/// First bytes of a log.
pub const MAGIC: [u8; 8] = *b"VMToracl";
const VERSION: u32 = 5;

/// Bits of the set's kind.
const SHAPE_AGAIN: u64 = 1;
const SHAPE_CLOCK: u64 = 2;
/// In the next two bits: what has a set of its own.
const SHAPE_SETS: u64 = 3;
const SHAPE_SETS_SHIFT: u32 = 2;

const WRITE: u32 = 1;
const EXEC: u32 = 2;
const SEEN: u32 = WRITE | EXEC;
const KERNEL: u32 = 4;
const DIRTIED: u32 = 8;
const AGAIN: u32 = 16;
const GOES_ON: u32 = 32;
/// Who it was follows.
const WHO: u32 = 64;
const WHY_SHIFT: u32 = 8;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What the plugin saw while the trace was on.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counts {
            /// The fields' names, in the order in which they are written.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// The fields' values, in the same order.
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$name),*]
            }

            fn from_values(values: &[u64]) -> Option<Self> {
                let mut values = values.iter().copied();
                let counts = Counts { $($name: values.next()?),* };
                values.next().is_none().then_some(counts)
            }
        }
    };
}

counts! {
    /// Instruction fetches: one for each page of a translated block, each time that the
    /// block runs.
    fetches,
    /// Loads by user mode.
    loads,
    /// Stores by user mode.
    stores,
    /// Loads from user memory by the kernel.
    kernel_loads,
    /// Stores to user memory by the kernel.
    kernel_stores,
    /// Page faults on addresses of traced address spaces.
    faults,
    /// Faults that the kernel's handler granted.
    granted,
    /// Faults that the handler reported as done, although the access faults again.
    put_off,
    /// Granted faults on members, which admit nothing.
    on_members,
    /// Of these, those whose task left the CPU before the handler ended.
    left,
    /// Of those in turn, the faults whose page lost its place meanwhile and was admitted again.
    readmitted,
    /// Changes of members' entries in place, by the handlers of write faults.
    changed,
    /// Clearings of PTEs that the kernel reported.
    closings,
    /// Aborted admissions that the kernel reported.
    aborts,
    /// Accessed bits that were taken from the kernel. There are two cases: the page before a
    /// page that faulted at its first byte, and the page of an instruction before which an
    /// interrupt came.
    looks,
    /// Accesses to pages that were not disabled yet. Their address space existed before the
    /// trace. It had a number already, but not all of its PTEs were disabled yet.
    early,
    /// Traced address spaces.
    spaces,
    /// Replay: accesses through a stale entry of the TLB, before the flush was done.
    late,
    /// Replay: accesses to a member through a stale entry, after its accessed bit was cleared.
    unsure,
    /// Replay: number of flushes of a page that were due.
    flushes,
    /// Replay: of these flushes, those before which stale entries were used.
    stale,
    /// Replay: stays renewed because their page was in a CPU's first segment.
    renewed,
    /// Replay: second chances.
    chances,
    /// Replay: members that were evicted with a victim, before their turn.
    batched,
    /// Replay: reservations for which there was no room.
    full,
    /// Replay: numbers that several sets have in common, which no admission got, because another
    /// CPU was faster.
    skipped,
    /// Violation: an access to a page that was not a member succeeded.
    escaped,
    /// Violation: an enabled PTE was cleared whose page was not a member.
    foreign_closings,
    /// Violation: a page was admitted for another access than the one that faulted.
    unfounded,
    /// Violation: the set is not what follows from the order.
    misplaced,
    /// Violation: the record of a stay does not agree with the accesses.
    mistold,
    /// The oracle's own failure: it met something that it cannot explain.
    confused,
}

impl Counts {
    /// Counts an access.
    pub fn access(&mut self, kernel: bool, store: bool) {
        let count = match (kernel, store) {
            (false, false) => &mut self.loads,
            (false, true) => &mut self.stores,
            (true, false) => &mut self.kernel_loads,
            (true, true) => &mut self.kernel_stores,
        };
        *count += 1;
    }

    /// The sum of all violations and failures.
    pub fn violations(&self) -> u64 {
        self.escaped
            + self.foreign_closings
            + self.unfounded
            + self.misplaced
            + self.mistold
            + self.confused
    }
}

/// Notes for people. The first notes are the most useful ones.
#[derive(Default)]
pub struct Notes(Vec<String>);

impl Notes {
    /// Adds a line, unless there are enough lines already.
    pub fn add(&mut self, record: usize, text: String) {
        if self.0.len() < 20 {
            self.0.push(format!("at record {record}: {text}\n"));
        }
    }

    /// All notes.
    pub fn text(&self) -> String {
        self.0.concat()
    }
}

/// A log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Log {
    /// The model's set.
    pub shape: Shape,
    /// The counts.
    pub counts: Counts,
    /// Text about the first violations and failures, a line each.
    pub notes: String,
    /// The stays, in order of admission.
    pub stays: Vec<Stay>,
    /// Further facts about each stay; empty if there are none.
    pub whos: Vec<Who>,
    /// Address spaces that have another set than set 0, in order, and their sets.
    pub sets: Vec<(u32, u32)>,
}

impl Log {
    /// Writes the log.
    ///
    /// # Errors
    ///
    /// The writer's.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let notes = u32::try_from(self.notes.len()).map_err(io::Error::other)?;
        out.write_all(&notes.to_le_bytes())?;
        let s = self.shape;
        let kind = if s.again { SHAPE_AGAIN } else { 0 }
            | if s.clock { SHAPE_CLOCK } else { 0 }
            | (s.sets as u64) << SHAPE_SETS_SHIFT;
        for value in [s.size as u64, s.first as u64, kind, s.batch as u64] {
            out.write_all(&value.to_le_bytes())?;
        }
        for value in self.counts.values() {
            out.write_all(&value.to_le_bytes())?;
        }
        for len in [self.stays.len(), self.sets.len()] {
            out.write_all(&(len as u64).to_le_bytes())?;
        }
        out.write_all(self.notes.as_bytes())?;
        for value in self.sets.iter().flat_map(|(mm, set)| [mm, set]) {
            out.write_all(&value.to_le_bytes())?;
        }
        let whos = self.whos.iter().map(Some).chain(std::iter::repeat(None));
        for (s, who) in self.stays.iter().zip(whos) {
            let mut flags = u32::from(s.why) << WHY_SHIFT;
            flags |= match s.access {
                Access::Read => 0,
                Access::Write => WRITE,
                Access::Exec => EXEC,
                Access::Seen => SEEN,
            };
            flags |= if s.kernel { KERNEL } else { 0 };
            flags |= if s.dirtied { DIRTIED } else { 0 };
            flags |= if s.again { AGAIN } else { 0 };
            flags |= if s.goes_on { GOES_ON } else { 0 };
            flags |= if who.is_some() { WHO } else { 0 };
            out.write_all(&s.page.addr.to_le_bytes())?;
            out.write_all(&s.page.mm.to_le_bytes())?;
            out.write_all(&flags.to_le_bytes())?;
            if let Some(w) = who {
                for value in [w.tid, w.cpu, w.pfn, 0] {
                    out.write_all(&value.to_le_bytes())?;
                }
            }
        }
        Ok(())
    }

    /// Reads a log.
    ///
    /// # Errors
    ///
    /// The log is too short or too long, or is no log.
    pub fn read(input: &mut impl Read) -> Result<Self, String> {
        let mut bytes = Vec::new();
        input
            .read_to_end(&mut bytes)
            .map_err(|e| format!("can't be read: {e}"))?;
        let mut rest = bytes.as_slice();
        if take::<8>(&mut rest)? != MAGIC {
            return Err("not a log of the oracle".into());
        }
        let version = u32::from_le_bytes(take(&mut rest)?);
        if version != VERSION {
            return Err(format!(
                "version {version}, and this reader knows {VERSION}"
            ));
        }
        let notes = u32::from_le_bytes(take(&mut rest)?) as usize;
        let [size, first] = [take(&mut rest)?, take(&mut rest)?]
            .map(|b| usize::try_from(u64::from_le_bytes(b)).map_err(|e| format!("the set: {e}")));
        let kind = u64::from_le_bytes(take(&mut rest)?);
        let sets = Sets::new((kind >> SHAPE_SETS_SHIFT & SHAPE_SETS) as u32);
        let known = SHAPE_AGAIN | SHAPE_CLOCK | SHAPE_SETS << SHAPE_SETS_SHIFT;
        let sets = sets
            .filter(|_| kind & !known == 0)
            .ok_or_else(|| format!("kind {kind:#x} of the set makes no sense"))?;
        let batch = u64::from_le_bytes(take(&mut rest)?);
        let shape = Shape {
            size: size?,
            first: first?,
            again: kind & SHAPE_AGAIN != 0,
            clock: kind & SHAPE_CLOCK != 0,
            batch: usize::try_from(batch).map_err(|e| format!("the batch: {e}"))?,
            sets,
        };
        let mut values = Vec::new();
        for _ in Counts::NAMES {
            values.push(u64::from_le_bytes(take(&mut rest)?));
        }
        let counts = Counts::from_values(&values).ok_or("counts are missing")?;
        let len = u64::from_le_bytes(take(&mut rest)?);
        let nr_sets = u64::from_le_bytes(take(&mut rest)?);
        let (notes, mut rest) = rest
            .split_at_checked(notes)
            .ok_or("it ends inside its notes")?;
        let notes = String::from_utf8_lossy(notes).into_owned();
        let mut sets = Vec::new();
        for _ in 0..nr_sets {
            let [mm, set] = [take(&mut rest)?, take(&mut rest)?].map(u32::from_le_bytes);
            sets.push((mm, set));
        }
        let mut stays = Vec::new();
        let mut whos = Vec::new();
        for _ in 0..len {
            let addr = u64::from_le_bytes(take(&mut rest)?);
            let mm = u32::from_le_bytes(take(&mut rest)?);
            let flags = u32::from_le_bytes(take(&mut rest)?);
            let known = SEEN | KERNEL | DIRTIED | AGAIN | GOES_ON | WHO | 0xff << WHY_SHIFT;
            if flags & !known != 0 {
                return Err(format!("flags {flags:#x} of a stay make no sense"));
            }
            if flags & WHO != 0 {
                let [tid, cpu, pfn, _] = [
                    take(&mut rest)?,
                    take(&mut rest)?,
                    take(&mut rest)?,
                    take(&mut rest)?,
                ]
                .map(u32::from_le_bytes);
                whos.push(Who { tid, cpu, pfn });
            }
            stays.push(Stay {
                page: Page { mm, addr },
                access: match flags & SEEN {
                    WRITE => Access::Write,
                    EXEC => Access::Exec,
                    SEEN => Access::Seen,
                    _ => Access::Read,
                },
                kernel: flags & KERNEL != 0,
                dirtied: flags & DIRTIED != 0,
                again: flags & AGAIN != 0,
                goes_on: flags & GOES_ON != 0,
                why: (flags >> WHY_SHIFT & 0xff) as u8,
            });
        }
        if !rest.is_empty() {
            return Err(format!("{} bytes behind its {len} stays", rest.len()));
        }
        if !whos.is_empty() && whos.len() != stays.len() {
            return Err("some stays tell who it was, some don't".into());
        }
        Ok(Log {
            shape,
            counts,
            notes,
            stays,
            whos,
            sets,
        })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let (head, tail) = rest
        .split_first_chunk::<N>()
        .ok_or("it ends before its time")?;
    *rest = tail;
    Ok(*head)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> Log {
        let stay = |n: u64, access, kernel, dirtied, again, why| Stay {
            page: Page {
                mm: 3,
                addr: n << 12,
            },
            access,
            kernel,
            dirtied,
            again,
            goes_on: false,
            why,
        };
        Log {
            shape: Shape {
                clock: true,
                again: true,
                batch: 5,
                sets: Sets::Cgroup,
                ..Shape::fifo(32)
            },
            counts: Counts {
                fetches: 5,
                stores: 2,
                granted: 3,
                ..Counts::default()
            },
            notes: "a line\n".into(),
            stays: vec![
                stay(1, Access::Exec, false, false, true, 0),
                stay(0x7_ffff_fffe, Access::Write, true, true, false, 11),
                stay(3, Access::Read, false, true, true, 13),
                Stay {
                    goes_on: true,
                    ..stay(3, Access::Seen, false, false, false, 7)
                },
            ],
            whos: Vec::new(),
            sets: vec![(3, 1), (4, 7)],
        }
    }

    /// The same, with who it was.
    pub(crate) fn replayed() -> Log {
        let log = example();
        let who = |n| Who {
            tid: 100 + n,
            cpu: n % 2,
            pfn: 0x1234 + n,
        };
        Log {
            whos: (0..log.stays.len() as u32).map(who).collect(),
            ..log
        }
    }

    fn bytes(log: &Log) -> Vec<u8> {
        let mut out = Vec::new();
        log.write(&mut out).unwrap();
        out
    }

    #[test]
    fn what_is_written_is_read() {
        for log in [example(), replayed()] {
            assert_eq!(Log::read(&mut bytes(&log).as_slice()), Ok(log));
        }
    }

    #[test]
    fn every_shorter_log_is_refused() {
        for whole in [bytes(&example()), bytes(&replayed())] {
            for len in 0..whole.len() {
                assert!(Log::read(&mut &whole[..len]).is_err(), "{len} bytes");
            }
        }
    }

    #[test]
    fn a_longer_log_and_another_version_are_refused() {
        let mut b = bytes(&example());
        b.push(0);
        assert!(Log::read(&mut b.as_slice()).is_err());
        let mut b = bytes(&example());
        b[8] = 99;
        assert!(Log::read(&mut b.as_slice()).unwrap_err().contains("99"));
        b[0] = b'X';
        assert!(Log::read(&mut b.as_slice()).is_err());
    }

    #[test]
    fn flags_that_mean_nothing_are_refused() {
        let mut b = bytes(&example());
        let last = b.len() - 4;
        b[last] |= 0x80;
        assert!(Log::read(&mut b.as_slice()).is_err());
        for bits in [4, 16] {
            let mut b = bytes(&example());
            b[MAGIC.len() + 8 + 16] |= bits;
            assert!(Log::read(&mut b.as_slice()).is_err());
        }
    }
}
