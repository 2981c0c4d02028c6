//! References by process and mapping, as the kernel counts them, and what an interval adds.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::AddAssign;

use rust_mm_trace::uapi::{
    VMTRACE_MAP_ANON, VMTRACE_MAP_DEVICE, VMTRACE_MAP_FILE, VMTRACE_MAP_HUGETLB, VMTRACE_MAP_SHMEM,
    VMTRACE_MAP_SPECIAL, vmtrace_count,
};

use crate::control::{Control, listed, refused};
use crate::error::Failure;
use crate::rings::{Changes, Rings};
use crate::status::Status;

/// Room for counts in the first request.
const ROOM: usize = 1024;
/// The most room: 128 MiB.
const MOST: usize = 1 << 20;

/// The kernel's counts at one moment.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// When: ns, CLOCK_MONOTONIC.
    pub time: u64,
    /// All references since the start of the trace.
    pub references: u64,
    /// Those of them that are in no entry.
    pub elsewhere: u64,
    /// References of each process to what it has mapped.
    pub list: Vec<vmtrace_count>,
    /// Whether all entries of the kernel are in `list`.
    pub is_complete: bool,
}

impl Counts {
    /// Those of a trace that began at `time` (ns).
    pub fn none(time: u64) -> Self {
        Self {
            time,
            is_complete: true,
            ..Self::default()
        }
    }
}

/// What came of a request for counts.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The counts.
    Counts(Counts),
    /// No trace is on.
    Off,
    /// The trace was begun without counts.
    Uncounted,
}

/// Asks for the counts, with room for `room` entries, which grows if there are more.
pub fn ask(control: &dyn Control, room: &mut usize) -> Result<Answer, Failure> {
    *room = (*room).clamp(ROOM, MOST);
    let asked = listed(room, MOST, |list| {
        control.counts(list).map(|answer| (answer, answer.nr))
    });
    match asked {
        Ok(found) => Ok(Answer::Counts(Counts {
            time: found.answer.time,
            references: found.answer.references,
            elsewhere: found.answer.elsewhere,
            list: found.list,
            is_complete: found.is_complete,
        })),
        Err(errno) => match errno.0 {
            libc::ENODATA => Ok(Answer::Off),
            libc::EOPNOTSUPP => Ok(Answer::Uncounted),
            _ => Err(refused("give the counts of references", errno)),
        },
    }
}

/// References by their kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Loads in user mode.
    pub reads: u64,
    /// Stores in user mode.
    pub writes: u64,
    /// Fetches of instructions.
    pub fetches: u64,
    /// Those of the kernel.
    pub kernel: u64,
}

impl Tally {
    fn of(count: &vmtrace_count) -> Self {
        Self {
            reads: count.reads,
            writes: count.writes,
            fetches: count.fetches,
            kernel: count.kernel,
        }
    }

    /// All of them.
    pub fn sum(self) -> u64 {
        [self.reads, self.writes, self.fetches, self.kernel]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// What came since `before`. A count that has become smaller was given up and began again.
    fn since(self, before: Self) -> Self {
        let less = |now: u64, before: u64| now.checked_sub(before);
        let all = || {
            Some(Self {
                reads: less(self.reads, before.reads)?,
                writes: less(self.writes, before.writes)?,
                fetches: less(self.fetches, before.fetches)?,
                kernel: less(self.kernel, before.kernel)?,
            })
        };
        all().unwrap_or(self)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.reads = self.reads.saturating_add(other.reads);
        self.writes = self.writes.saturating_add(other.writes);
        self.fetches = self.fetches.saturating_add(other.fetches);
        self.kernel = self.kernel.saturating_add(other.kernel);
    }
}

/// The bytes of a name, without its zeros.
fn name(chars: &[libc::c_char]) -> Vec<u8> {
    let bytes = chars.iter().map(|c| *c as u8);
    bytes.take_while(|b| *b != 0).collect()
}

/// What is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// `VMTRACE_MAP_*`.
    pub kind: u32,
    /// Device of a file, else 0.
    pub dev: u64,
    /// Inode of a file, else 0.
    pub ino: u64,
    /// Its name, which may have any bytes.
    pub name: Vec<u8>,
}

/// What tells mappings apart. A file may be renamed, so its name does not.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct MappingKey {
    kind: u32,
    dev: u64,
    ino: u64,
    name: Vec<u8>,
}

impl Mapping {
    fn of(count: &vmtrace_count) -> Self {
        Self {
            kind: count.kind,
            dev: count.dev,
            ino: count.ino,
            name: name(&count.name),
        }
    }

    fn key(&self) -> MappingKey {
        let is_file = self.ino != 0;
        MappingKey {
            kind: self.kind,
            dev: self.dev,
            ino: self.ino,
            name: if is_file {
                Vec::new()
            } else {
                self.name.clone()
            },
        }
    }

    /// The kind, in a word.
    pub fn kind(&self) -> &'static str {
        match self.kind {
            VMTRACE_MAP_ANON => "anon",
            VMTRACE_MAP_FILE => "file",
            VMTRACE_MAP_SHMEM => "shmem",
            VMTRACE_MAP_DEVICE => "device",
            VMTRACE_MAP_SPECIAL => "special",
            VMTRACE_MAP_HUGETLB => "hugetlb",
            _ => "unknown",
        }
    }
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// The name of one of its threads, which may have any bytes.
    pub comm: Vec<u8>,
}

/// References of a process, to a mapping, or of a process to a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// If the row is of one process.
    pub process: Option<Process>,
    /// If the row is of one mapping.
    pub mapping: Option<Mapping>,
    /// In the interval.
    pub new: Tally,
    /// As far as the kernel has kept counts.
    pub total: Tally,
}

/// What rows are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// A process.
    Process,
    /// A mapping, in all processes.
    Mapping,
    /// A mapping in a process.
    Pair,
}

/// The order of rows. Numbers descend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// References in the interval.
    Refs,
    /// Loads in user mode.
    Reads,
    /// Stores in user mode.
    Writes,
    /// Fetches of instructions.
    Fetches,
    /// References by the kernel.
    Kernel,
    /// References since the start; of rings, records lost since the start.
    Total,
    /// The id of the process, ascending.
    Pid,
    /// The name, ascending.
    Name,
    /// Of rings: the part of the sub-buffers that is not free.
    Full,
    /// Of rings: records that wait in the ring.
    Waiting,
    /// Of rings: records in the interval.
    Records,
    /// Of rings: records lost in the interval.
    Lost,
    /// Of rings: the CPU, ascending.
    Cpu,
}

impl Sort {
    /// Whether it is an order of rings.
    pub fn is_of_rings(self) -> bool {
        match self {
            Self::Refs | Self::Reads | Self::Writes | Self::Fetches | Self::Kernel => false,
            Self::Pid | Self::Name => false,
            Self::Total | Self::Full | Self::Waiting | Self::Records | Self::Lost | Self::Cpu => {
                true
            }
        }
    }

    /// Whether it is an order of processes and mappings.
    pub fn is_of_counts(self) -> bool {
        self == Self::Total || !self.is_of_rings()
    }
}

/// What was known at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// The kernel's status.
    pub status: Status,
    /// The counts, if the trace has some.
    pub counts: Option<Counts>,
    /// The rings, if the kernel reports them.
    pub rings: Option<Rings>,
}

impl Look {
    /// Number of references until then.
    fn references(&self) -> u64 {
        let counted = self.counts.as_ref().map(|c| c.references);
        counted.unwrap_or_else(|| self.status.references())
    }

    /// When, ns.
    fn time(&self) -> u64 {
        let counted = self.counts.as_ref().map(|c| c.time);
        counted.unwrap_or(self.status.raw.stop_time)
    }
}

/// What happened between two looks.
#[derive(Clone, Debug)]
pub struct Interval {
    /// The status at its end.
    pub status: Status,
    /// The status at its beginning.
    pub before: Status,
    /// When it ended: ns, CLOCK_MONOTONIC.
    pub time: u64,
    /// How long it was, ns.
    pub ns: u64,
    /// References in it.
    pub references: u64,
    /// References since the start.
    pub total: u64,
    /// References in it that the kernel has no entries of.
    pub elsewhere: u64,
    /// References since the start that the kernel has no entries of.
    pub elsewhere_total: u64,
    /// Whether references were counted by process and mapping.
    pub is_counted: bool,
    /// The rings, if the kernel reports them.
    pub rings: Option<Changes>,
    /// Each mapping of each process.
    pairs: Vec<Row>,
}

/// A pair's number of the address space and what tells the mapping apart.
type PairKey = (u32, MappingKey);

fn tallies(list: &[vmtrace_count]) -> HashMap<PairKey, Tally> {
    let mut found: HashMap<PairKey, Tally> = HashMap::new();
    for count in list {
        let key = (count.mm, Mapping::of(count).key());
        *found.entry(key).or_default() += Tally::of(count);
    }
    found
}

impl Interval {
    /// What happened from `before` to `now`.
    pub fn new(before: &Look, now: &Look) -> Self {
        let references = now.references().saturating_sub(before.references());
        let (mut pairs, mut elsewhere, mut elsewhere_total) = (Vec::new(), 0, 0);
        if let Some(counts) = &now.counts {
            let none = Counts::default();
            let earlier = before.counts.as_ref().unwrap_or(&none);
            pairs = all_pairs(earlier, counts);
            // Counts that are given up move there, and are not of this interval.
            let moved = counts.elsewhere.saturating_sub(earlier.elsewhere);
            let shown = pairs
                .iter()
                .fold(0u64, |n, r| n.saturating_add(r.new.sum()));
            elsewhere = references.saturating_sub(shown).min(moved);
            elsewhere_total = counts.elsewhere;
        }
        Self {
            status: now.status,
            before: before.status,
            time: now.time(),
            ns: now.time().saturating_sub(before.time()),
            references,
            total: now.references(),
            elsewhere,
            elsewhere_total,
            is_counted: now.counts.is_some(),
            rings: now
                .rings
                .as_ref()
                .map(|rings| Changes::new(before.rings.as_ref(), rings)),
            pairs,
        }
    }

    /// So many in the interval, as a number a second.
    pub fn rate(&self, n: u64) -> f64 {
        match self.ns {
            0 => 0.0,
            ns => n as f64 * 1e9 / ns as f64,
        }
    }

    /// So many of the references in the interval, as a part of them: 0 to 1.
    pub fn share(&self, n: u64) -> f64 {
        // The kernel counts on while it is read, so a sum may be greater than the total.
        let shown = self.pairs.iter().map(|r| r.new.sum());
        let all = shown.fold(0u64, u64::saturating_add).max(self.references);
        match all {
            0 => 0.0,
            all => n as f64 / all as f64,
        }
    }

    /// Those that had references in the interval, or also those that had some before, in order.
    pub fn rows(&self, of: Of, sort: Sort, idle: bool) -> Vec<Row> {
        let mut rows = match of {
            Of::Pair => self.pairs.clone(),
            Of::Process => merged(&self.pairs, |row| {
                row.process.as_ref().map_or(0, |process| process.pid)
            }),
            Of::Mapping => merged(&self.pairs, |row| row.mapping.as_ref().map(Mapping::key)),
        };
        rows.retain(|row| row.new.sum() > 0 || idle && row.total.sum() > 0);
        for row in &mut rows {
            match of {
                Of::Process => row.mapping = None,
                Of::Mapping => row.process = None,
                Of::Pair => {}
            }
        }
        rows.sort_by(|a, b| order(a, b, sort));
        rows
    }
}

/// All pairs, with what came from `before` to `now`.
fn all_pairs(before: &Counts, now: &Counts) -> Vec<Row> {
    let earlier = tallies(&before.list);
    let mut at: HashMap<PairKey, usize> = HashMap::new();
    let mut rows: Vec<Row> = Vec::new();
    for count in &now.list {
        let mapping = Mapping::of(count);
        let key = (count.mm, mapping.key());
        let total = Tally::of(count);
        match at.get(&key) {
            // Nobody says that the kernel has a pair only once.
            Some(&at) => rows[at].total += total,
            None => {
                at.insert(key, rows.len());
                let comm = name(&count.comm);
                rows.push(Row {
                    process: Some(Process {
                        pid: count.pid,
                        comm,
                    }),
                    mapping: Some(mapping),
                    new: Tally::default(),
                    total,
                });
            }
        }
    }
    for (key, at) in at {
        let row = &mut rows[at];
        row.new = match earlier.get(&key) {
            Some(before) => row.total.since(*before),
            None if before.is_complete => row.total,
            // It may have been there already.
            None => Tally::default(),
        };
    }
    rows
}

/// Adds up the rows that `key` gives the same for. Names are those of the greatest part.
fn merged<K: Eq + std::hash::Hash>(pairs: &[Row], key: impl Fn(&Row) -> K) -> Vec<Row> {
    let mut at: HashMap<K, (usize, u64)> = HashMap::new();
    let mut rows: Vec<Row> = Vec::new();
    for pair in pairs {
        let part = pair.new.sum();
        let next = rows.len();
        let (at, greatest) = at.entry(key(pair)).or_insert((next, part));
        let Some(row) = rows.get_mut(*at) else {
            rows.push(pair.clone());
            continue;
        };
        row.new += pair.new;
        row.total += pair.total;
        if part > *greatest {
            *greatest = part;
            row.process.clone_from(&pair.process);
            row.mapping.clone_from(&pair.mapping);
        }
    }
    rows
}

fn order(a: &Row, b: &Row, sort: Sort) -> Ordering {
    let down = |of: &dyn Fn(&Row) -> u64| of(b).cmp(&of(a));
    let pid = |row: &Row| row.process.as_ref().map(|p| p.pid);
    let comm = |row: &Row| row.process.as_ref().map(|p| p.comm.clone());
    let mapped = |row: &Row| row.mapping.as_ref().map(|m| m.name.clone());
    let key = |row: &Row| row.mapping.as_ref().map(Mapping::key);
    let first = match sort {
        Sort::Refs => Ordering::Equal,
        // Those of rings only.
        Sort::Full | Sort::Waiting | Sort::Records | Sort::Lost | Sort::Cpu => Ordering::Equal,
        Sort::Reads => down(&|r| r.new.reads),
        Sort::Writes => down(&|r| r.new.writes),
        Sort::Fetches => down(&|r| r.new.fetches),
        Sort::Kernel => down(&|r| r.new.kernel),
        Sort::Total => down(&|r| r.total.sum()),
        Sort::Pid => pid(a).cmp(&pid(b)),
        Sort::Name => comm(a)
            .cmp(&comm(b))
            .then_with(|| mapped(a).cmp(&mapped(b))),
    };
    first
        .then_with(|| down(&|r| r.new.sum()))
        .then_with(|| down(&|r| r.total.sum()))
        .then_with(|| pid(a).cmp(&pid(b)))
        .then_with(|| mapped(a).cmp(&mapped(b)))
        .then_with(|| key(a).cmp(&key(b)))
}

/// An entry of the kernel for tests: reads, writes, fetches and references by the kernel of
/// process `pid` with the same number of its address space.
#[cfg(test)]
pub(crate) fn entry(pid: u32, comm: &str, mapping: (&str, u64), counts: [u64; 4]) -> vmtrace_count {
    let mut entry = vmtrace_count {
        reads: counts[0],
        writes: counts[1],
        fetches: counts[2],
        kernel: counts[3],
        ino: mapping.1,
        dev: u64::from(mapping.1 != 0),
        kind: u32::from(mapping.1 != 0),
        mm: pid,
        pid,
        ..Default::default()
    };
    let put = |to: &mut [libc::c_char], text: &str| {
        let room = to.len() - 1;
        for (to, from) in to[..room].iter_mut().zip(text.bytes()) {
            *to = from as libc::c_char;
        }
    };
    put(&mut entry.comm, comm);
    put(&mut entry.name, mapping.0);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::units::Pages;
    use crate::{control, filter::Filter};

    const HEAP: (&str, u64) = ("[heap]", 0);
    const STACK: (&str, u64) = ("[stack]", 0);
    const LIBC: (&str, u64) = ("/lib/libc.so.6", 7);

    fn look(time: u64, elsewhere: u64, list: Vec<vmtrace_count>) -> Look {
        let sum = list.iter().map(|c| Tally::of(c).sum()).sum::<u64>();
        Look {
            status: Fake::example(),
            counts: Some(Counts {
                time: time * 1_000_000_000,
                references: sum + elsewhere,
                elsewhere,
                list,
                is_complete: true,
            }),
            rings: None,
        }
    }

    /// The names of rows, and their references in the interval.
    fn told(interval: &Interval, of: Of, sort: Sort) -> Vec<(String, u64)> {
        let rows = interval.rows(of, sort, false);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        rows.iter()
            .map(|row| {
                let process = row.process.as_ref().map(|p| text(&p.comm));
                let mapping = row.mapping.as_ref().map(|m| text(&m.name));
                let names: Vec<_> = process.into_iter().chain(mapping).collect();
                (names.join(" "), row.new.sum())
            })
            .collect()
    }

    fn want(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
        rows.iter().map(|(name, n)| ((*name).into(), *n)).collect()
    }

    #[test]
    fn sums_by_process_and_mapping() {
        let before = look(10, 0, vec![entry(1, "a", HEAP, [100, 0, 0, 0])]);
        let now = look(
            12,
            0,
            vec![
                entry(1, "a", HEAP, [110, 1, 0, 0]),
                entry(1, "a", LIBC, [0, 0, 5, 0]),
                entry(2, "b", LIBC, [0, 0, 0, 20]),
                entry(2, "b", STACK, [2, 2, 0, 0]),
            ],
        );
        let interval = Interval::new(&before, &now);
        assert_eq!((interval.ns, interval.references), (2_000_000_000, 40));
        assert_eq!((interval.total, interval.elsewhere), (140, 0));
        assert_eq!(interval.rate(40), 20.0);
        assert_eq!(interval.share(10), 0.25);
        let refs = Sort::Refs;
        assert_eq!(
            told(&interval, Of::Process, refs),
            want(&[("b", 24), ("a", 16)])
        );
        assert_eq!(
            told(&interval, Of::Mapping, refs),
            want(&[("/lib/libc.so.6", 25), ("[heap]", 11), ("[stack]", 4)])
        );
        assert_eq!(
            told(&interval, Of::Pair, refs),
            want(&[
                ("b /lib/libc.so.6", 20),
                ("a [heap]", 11),
                ("a /lib/libc.so.6", 5),
                ("b [stack]", 4),
            ])
        );
        // What was not referenced in the interval is in the total all the same.
        let later = look(13, 0, {
            let mut list = now.counts.as_ref().map_or(Vec::new(), |c| c.list.clone());
            list[1].fetches += 1;
            list
        });
        let rows = Interval::new(&now, &later).rows(Of::Process, refs, false);
        let totals: Vec<_> = rows.iter().map(|r| (r.new.sum(), r.total.sum())).collect();
        assert_eq!(totals, [(1, 117)]);
        let first = |of, sort| told(&interval, of, sort).swap_remove(0).0;
        assert_eq!(first(Of::Process, Sort::Reads), "a");
        assert_eq!(first(Of::Process, Sort::Writes), "b");
        assert_eq!(first(Of::Process, Sort::Fetches), "a");
        assert_eq!(first(Of::Process, Sort::Kernel), "b");
        assert_eq!(first(Of::Process, Sort::Total), "a");
        assert_eq!(first(Of::Process, Sort::Pid), "a");
        assert_eq!(first(Of::Mapping, Sort::Name), "/lib/libc.so.6");
        assert_eq!(first(Of::Mapping, Sort::Total), "[heap]");
    }

    #[test]
    fn what_the_kernel_gives_up_is_never_negative() {
        let looks = [
            look(
                1,
                0,
                vec![
                    entry(1, "a", HEAP, [100, 0, 0, 0]),
                    entry(1, "a", STACK, [9, 0, 0, 0]),
                ],
            ),
            // The stack was given up, and had one reference more by then.
            look(2, 10, vec![entry(1, "a", HEAP, [101, 0, 0, 0])]),
            // It comes back, and the heap was given up and came back in the meantime.
            look(
                3,
                112,
                vec![
                    entry(1, "a", HEAP, [4, 0, 0, 0]),
                    entry(1, "a", STACK, [3, 0, 0, 0]),
                ],
            ),
        ];
        let interval = Interval::new(&looks[0], &looks[1]);
        assert_eq!(
            told(&interval, Of::Pair, Sort::Refs),
            want(&[("a [heap]", 1)])
        );
        assert_eq!((interval.references, interval.elsewhere), (2, 1));
        let interval = Interval::new(&looks[1], &looks[2]);
        assert_eq!(
            told(&interval, Of::Pair, Sort::Refs),
            want(&[("a [heap]", 4), ("a [stack]", 3)])
        );
        assert_eq!((interval.references, interval.elsewhere), (8, 1));
        assert_eq!(interval.elsewhere_total, 112);
        // Nothing is negative backwards either.
        let interval = Interval::new(&looks[2], &looks[0]);
        assert_eq!(
            (interval.ns, interval.references, interval.elsewhere),
            (0, 0, 0)
        );
        assert_eq!((interval.rate(5), interval.share(0)), (0.0, 0.0));
    }

    #[test]
    fn an_entry_that_had_no_room_before_is_not_new() {
        let mut before = look(1, 0, vec![entry(1, "a", HEAP, [100, 0, 0, 0])]);
        let now = look(
            2,
            0,
            vec![
                entry(1, "a", HEAP, [101, 0, 0, 0]),
                entry(2, "b", HEAP, [5000, 0, 0, 0]),
            ],
        );
        let names = |before: &Look| told(&Interval::new(before, &now), Of::Process, Sort::Pid);
        assert_eq!(names(&before), want(&[("a", 1), ("b", 5000)]));
        before.counts.as_mut().expect("counts").is_complete = false;
        assert_eq!(names(&before), want(&[("a", 1)]));
    }

    #[test]
    fn files_are_told_apart_by_their_inodes() {
        let before = look(1, 0, vec![entry(1, "a", LIBC, [100, 0, 0, 0])]);
        // It was renamed, and another file has its name.
        let now = look(
            2,
            0,
            vec![
                entry(1, "a", ("/lib/old", 7), [103, 0, 0, 0]),
                entry(1, "a", ("/lib/libc.so.6", 8), [1, 0, 0, 0]),
            ],
        );
        assert_eq!(
            told(&Interval::new(&before, &now), Of::Mapping, Sort::Refs),
            want(&[("/lib/old", 3), ("/lib/libc.so.6", 1)])
        );
        // exec() makes an address space, and the process is the same.
        let mut twice = look(2, 0, vec![entry(1, "new", HEAP, [2, 0, 0, 0]); 2]);
        let list = &mut twice.counts.as_mut().expect("counts").list;
        (list[0].mm, list[1].mm) = (5, 6);
        let interval = Interval::new(&before, &twice);
        assert_eq!(
            told(&interval, Of::Process, Sort::Refs),
            want(&[("new", 4)])
        );
    }

    #[test]
    fn names_are_those_of_the_greatest_part() {
        let now = look(
            2,
            0,
            vec![
                entry(1, "main", HEAP, [1, 0, 0, 0]),
                entry(1, "worker", STACK, [9, 0, 0, 0]),
                entry(1, "other", LIBC, [5, 0, 0, 0]),
            ],
        );
        let none = look(1, 0, Vec::new());
        let interval = Interval::new(&none, &now);
        assert_eq!(
            told(&interval, Of::Process, Sort::Refs),
            want(&[("worker", 15)])
        );
    }

    #[test]
    fn without_counts_there_are_the_figures_of_the_status() {
        let uncounted = |at: u64| {
            let mut status = Fake::example();
            status.raw.state = 1;
            status.raw.stop_time = at * 1_000_000_000;
            status.raw.admissions = at * 1000;
            Look {
                status,
                counts: None,
                rings: None,
            }
        };
        let interval = Interval::new(&uncounted(3), &uncounted(5));
        assert_eq!((interval.references, interval.total), (2000, 5000));
        assert_eq!(interval.rate(interval.references), 1000.0);
        assert!(!interval.is_counted && interval.rows(Of::Pair, Sort::Refs, true).is_empty());
    }

    fn counting(fake: &Fake) {
        let config = control::Config {
            filter: Filter::nothing().ok(),
            counted: true,
            unwritten: true,
            evms_size: Pages(64),
            ..control::Config::example()
        };
        control::start_counts(fake, &config).expect("started");
    }

    #[test]
    fn room_grows_with_the_table() {
        let fake = Fake::default();
        counting(&fake);
        let table = |n: u32| (1..=n).map(|i| entry(i, "a", HEAP, [1, 0, 0, 0])).collect();
        fake.count([table(3000), table(3), table(10)]);
        let mut room = 0;
        let asked = |room: &mut usize| match ask(&fake, room) {
            Ok(Answer::Counts(counts)) => {
                assert!(counts.is_complete);
                counts.list.len()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(asked(&mut room), 3000);
        assert_eq!((room, fake.asked()), (3750, 2));
        // There is room now.
        assert_eq!((asked(&mut room), asked(&mut room)), (3, 10));
        assert_eq!(fake.asked(), 4);
    }

    #[test]
    fn refusals() {
        let fake = Fake::default();
        assert!(matches!(ask(&fake, &mut 0), Ok(Answer::Off)));
        counting(&fake);
        for (errno, want) in [
            (libc::EPERM, "run this as root"),
            (
                libc::ENOTTY,
                "use the tools that were built with the kernel",
            ),
            (libc::ENOMEM, "Cannot allocate memory"),
        ] {
            fake.refuse_counts(errno);
            let failure = ask(&fake, &mut 0).expect_err("refused");
            assert!(failure.message.contains(want), "{failure}");
        }
        fake.refuse_counts(libc::EOPNOTSUPP);
        assert!(matches!(ask(&fake, &mut 0), Ok(Answer::Uncounted)));
    }
}
