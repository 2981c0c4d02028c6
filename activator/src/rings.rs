//! Rings of sub-buffers, as the kernel reports them, and what an interval adds.

use std::collections::HashMap;

use rust_mm_trace::uapi::{VMTRACE_STREAM_EVENT, VMTRACE_STREAM_REF, vmtrace_ring};

use crate::control::{Control, listed, refused};
use crate::counts::Sort;
use crate::error::Failure;

/// Room for rings in the first request: two of each CPU.
const ROOM: usize = 256;
/// The most room: 6 MiB.
const MOST: usize = 1 << 16;

/// The kernel's rings at one moment.
#[derive(Clone, Debug, Default)]
pub struct Rings {
    /// When: ns, CLOCK_MONOTONIC.
    pub time: u64,
    /// Each ring.
    pub list: Vec<vmtrace_ring>,
    /// Whether all rings of the kernel are in `list`.
    pub is_complete: bool,
}

impl Rings {
    /// Those of a trace that began at `time` (ns), before anything had come.
    pub fn none(time: u64) -> Self {
        Self {
            time,
            list: Vec::new(),
            is_complete: true,
        }
    }
}

/// What came of a request for rings.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The rings.
    Rings(Rings),
    /// The trace is not on any more.
    Off,
    /// The kernel is older than this request.
    Unknown,
}

/// Asks for the rings of the trace with this UUID, with room for `room` of them, which grows if
/// there are more.
pub fn ask(control: &dyn Control, uuid: [u8; 16], room: &mut usize) -> Result<Answer, Failure> {
    *room = (*room).clamp(ROOM, MOST);
    let asked = listed(room, MOST, |list| {
        control.rings(list).map(|answer| (answer, answer.nr))
    });
    match asked {
        // Somebody has begun another one.
        Ok(found) if found.answer.uuid != uuid => Ok(Answer::Off),
        Ok(found) => Ok(Answer::Rings(Rings {
            time: found.answer.time,
            list: found.list,
            is_complete: found.is_complete,
        })),
        Err(errno) => match errno.0 {
            libc::ENODATA => Ok(Answer::Off),
            libc::ENOTTY => Ok(Answer::Unknown),
            _ => Err(refused("report its rings", errno)),
        },
    }
}

/// What a ring is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Records of references.
    References,
    /// Events.
    Events,
    /// Something that this program does not know.
    Unknown,
}

impl Kind {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::References => "references",
            Self::Events => "events",
            Self::Unknown => "unknown",
        }
    }
}

/// A ring, and what came to it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The kernel's figures at the end of the interval.
    pub ring: vmtrace_ring,
    /// Records that the ring took in the interval; `None` if the kernel does not count them.
    pub records: Option<u64>,
    /// Records that the ring took since the start; `None` if the kernel does not count them.
    pub records_total: Option<u64>,
    /// Records lost in the interval.
    pub lost: u64,
    /// Records lost since the start.
    pub lost_total: u64,
}

/// Records lost for want of room.
fn lost(ring: &vmtrace_ring) -> u64 {
    ring.lost_full.saturating_add(ring.lost_atomic)
}

/// Records of references that the ring has taken. While admissions are on the way, it may be a
/// little more than that.
fn taken(ring: &vmtrace_ring) -> u64 {
    [ring.admissions, ring.renewed, ring.chances]
        .into_iter()
        .fold(0, u64::saturating_add)
        .saturating_sub(ring.left_out)
        .saturating_sub(ring.lost_full)
}

/// Whether what the kernel counts has not become smaller, as it does if a ring begins anew.
fn goes_on(before: &vmtrace_ring, now: &vmtrace_ring) -> bool {
    let all = |ring: &vmtrace_ring| {
        [
            ring.lost_full,
            ring.lost_atomic,
            ring.admissions,
            ring.renewed,
            ring.chances,
            ring.left_out,
        ]
    };
    all(before).iter().zip(all(now)).all(|(a, b)| *a <= b)
}

impl Row {
    fn new(before: &vmtrace_ring, now: &vmtrace_ring) -> Self {
        let none = vmtrace_ring::default();
        let before = match goes_on(before, now) {
            true => before,
            false => &none,
        };
        let is_counted = now.kind == VMTRACE_STREAM_REF;
        Self {
            ring: *now,
            records: is_counted.then(|| taken(now).saturating_sub(taken(before))),
            records_total: is_counted.then(|| taken(now)),
            lost: lost(now).saturating_sub(lost(before)),
            lost_total: lost(now),
        }
    }

    /// What the ring is for.
    pub fn kind(&self) -> Kind {
        match self.ring.kind {
            VMTRACE_STREAM_REF => Kind::References,
            VMTRACE_STREAM_EVENT => Kind::Events,
            _ => Kind::Unknown,
        }
    }

    /// The part of the sub-buffers that are not free: 0 to 1. A sub-buffer that is being filled,
    /// that waits for kvmtraced, or that kvmtraced writes is not free.
    pub fn fill(&self) -> f64 {
        let [free, full] = [self.ring.free, self.ring.full].map(u64::from);
        // It may have more for a time than it was made with.
        let all = u64::from(self.ring.buffers).max(free + full);
        match all {
            0 => 0.0,
            all => (all - free) as f64 / all as f64,
        }
    }
}

/// The rings at the end of an interval, and what came to them.
#[derive(Clone, Debug)]
pub struct Changes {
    /// How long the interval was, ns.
    pub ns: u64,
    rows: Vec<Row>,
}

impl Changes {
    /// What came from `before`, if that is known, to `now`.
    pub fn new(before: Option<&Rings>, now: &Rings) -> Self {
        let unknown = Rings {
            time: now.time,
            ..Rings::default()
        };
        let before = before.unwrap_or(&unknown);
        let earlier: HashMap<_, _> = before
            .list
            .iter()
            .map(|ring| ((ring.kind, ring.cpu), ring))
            .collect();
        let rows = now.list.iter().map(|ring| {
            let earlier = earlier.get(&(ring.kind, ring.cpu)).copied();
            match earlier {
                Some(before) => Row::new(before, ring),
                None if before.is_complete => Row::new(&vmtrace_ring::default(), ring),
                // It may have been there already.
                None => Row::new(ring, ring),
            }
        });
        Self {
            ns: now.time.saturating_sub(before.time),
            rows: rows.collect(),
        }
    }

    /// So many in the interval, as a number a second.
    pub fn rate(&self, n: u64) -> f64 {
        match self.ns {
            0 => 0.0,
            ns => n as f64 * 1e9 / ns as f64,
        }
    }

    /// Records lost in the interval, and since the start.
    pub fn lost(&self) -> (u64, u64) {
        self.rows.iter().fold((0u64, 0u64), |(new, total), row| {
            (
                new.saturating_add(row.lost),
                total.saturating_add(row.lost_total),
            )
        })
    }

    /// The fullest ring of this kind.
    pub fn fullest(&self, kind: Kind) -> Option<Row> {
        let rows = self.rows(Sort::Full);
        rows.into_iter().find(|row| row.kind() == kind)
    }

    /// All rings, in order. An order that is not one of rings is that of [`Sort::Full`].
    pub fn rows(&self, sort: Sort) -> Vec<Row> {
        let mut rows = self.rows.clone();
        rows.sort_by(|a, b| {
            let down = |of: &dyn Fn(&Row) -> u64| of(b).cmp(&of(a));
            let fuller = || b.fill().total_cmp(&a.fill());
            let first = match sort {
                Sort::Waiting => down(&|r| r.ring.waiting),
                Sort::Records => down(&|r| r.records.unwrap_or(0)),
                Sort::Lost => down(&|r| r.lost).then_with(|| down(&|r| r.lost_total)),
                Sort::Total => down(&|r| r.lost_total),
                Sort::Cpu => a.ring.cpu.cmp(&b.ring.cpu).then(a.kind().cmp(&b.kind())),
                _ => fuller(),
            };
            first
                .then_with(fuller)
                .then_with(|| down(&|r| r.ring.waiting))
                .then_with(|| a.kind().cmp(&b.kind()))
                .then_with(|| a.ring.cpu.cmp(&b.ring.cpu))
        });
        rows
    }
}

/// A ring of 8 sub-buffers for tests, of which `free` are free, and so many wait.
#[cfg(test)]
pub(crate) fn ring(kind: Kind, cpu: u32, [free, full]: [u32; 2]) -> vmtrace_ring {
    vmtrace_ring {
        kind: match kind {
            Kind::References => VMTRACE_STREAM_REF,
            Kind::Events => VMTRACE_STREAM_EVENT,
            Kind::Unknown => 99,
        },
        cpu,
        buffers: 8,
        buffer_size: 65536,
        free,
        full,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control;
    use crate::fake::Fake;

    const REFS: Kind = Kind::References;
    const EVENTS: Kind = Kind::Events;

    fn at(seconds: u64, list: Vec<vmtrace_ring>) -> Rings {
        Rings {
            time: seconds * 1_000_000_000,
            list,
            is_complete: true,
        }
    }

    /// Kind, CPU and fill in eighths.
    fn told(changes: &Changes, sort: Sort) -> Vec<(Kind, u32, f64)> {
        let rows = changes.rows(sort);
        rows.iter()
            .map(|row| (row.kind(), row.ring.cpu, row.fill() * 8.0))
            .collect()
    }

    #[test]
    fn fill_is_what_is_not_free() {
        let fill = |buffers, counts| {
            let ring = vmtrace_ring {
                buffers,
                ..ring(REFS, 0, counts)
            };
            Row::new(&ring, &ring).fill()
        };
        assert_eq!(fill(8, [8, 0]), 0.0);
        // One is being filled.
        assert_eq!(fill(8, [7, 0]), 0.125);
        // One is being filled, two wait, and kvmtraced writes one.
        assert_eq!(fill(8, [4, 2]), 0.5);
        assert_eq!(fill(8, [0, 8]), 1.0);
        // It has got more.
        assert_eq!(fill(8, [0, 20]), 1.0);
        assert_eq!(fill(8, [5, 15]), 0.75);
        assert_eq!(fill(8, [10, 0]), 0.0);
        assert_eq!(fill(0, [0, 0]), 0.0);
        assert!(fill(u32::MAX, [u32::MAX, u32::MAX]) <= 0.5);
    }

    #[test]
    fn what_came_in_the_interval() {
        let refs = vmtrace_ring {
            admissions: 1000,
            renewed: 50,
            chances: 20,
            left_out: 60,
            lost_full: 10,
            ..ring(REFS, 0, [7, 0])
        };
        let events = vmtrace_ring {
            lost_full: 1,
            lost_atomic: 2,
            ..ring(EVENTS, 0, [7, 0])
        };
        let later = vmtrace_ring {
            admissions: 3000,
            renewed: 55,
            chances: 22,
            left_out: 160,
            lost_full: 117,
            waiting: 9,
            ..refs
        };
        let events_later = vmtrace_ring {
            lost_atomic: 7,
            ..events
        };
        let before = at(10, vec![refs, events]);
        let now = at(12, vec![later, events_later]);
        let changes = Changes::new(Some(&before), &now);
        let rows = changes.rows(Sort::Cpu);
        assert_eq!(
            (rows[0].records, rows[0].records_total),
            (Some(1800), Some(2800))
        );
        assert_eq!((rows[0].lost, rows[0].lost_total), (107, 117));
        assert_eq!((rows[1].records, rows[1].records_total), (None, None));
        assert_eq!((rows[1].lost, rows[1].lost_total), (5, 8));
        assert_eq!((changes.lost(), changes.rate(1800)), ((112, 125), 900.0));
        // From the start, everything is new.
        let changes = Changes::new(Some(&Rings::none(0)), &now);
        assert_eq!((changes.lost(), changes.ns), ((125, 125), 12_000_000_000));
        // Nothing is negative backwards: the ring began anew.
        let changes = Changes::new(Some(&now), &before);
        assert_eq!((changes.lost(), changes.rate(5)), ((13, 13), 0.0));
        assert_eq!(changes.rows(Sort::Cpu)[0].records, Some(1000));
        // A loss that comes after its admission does not make it begin anew.
        let less = vmtrace_ring {
            lost_full: later.lost_full + 1,
            ..later
        };
        let changes = Changes::new(Some(&now), &at(13, vec![less]));
        assert_eq!(changes.rows(Sort::Cpu)[0].records, Some(0));
    }

    #[test]
    fn a_ring_that_had_no_room_before_is_not_new() {
        let lossy = |cpu| vmtrace_ring {
            lost_full: 5,
            ..ring(REFS, cpu, [7, 0])
        };
        let mut before = at(1, vec![lossy(0)]);
        let now = at(2, vec![lossy(0), lossy(1)]);
        assert_eq!(Changes::new(Some(&before), &now).lost(), (5, 10));
        before.is_complete = false;
        assert_eq!(Changes::new(Some(&before), &now).lost(), (0, 10));
        let unknown = Changes::new(None, &now);
        assert_eq!((unknown.lost(), unknown.ns), ((0, 10), 0));
    }

    #[test]
    fn order_of_rings() {
        let refs = |cpu, free, waiting, admissions, lost_full| vmtrace_ring {
            waiting,
            admissions,
            lost_full,
            ..ring(REFS, cpu, [free, 0])
        };
        let before = at(1, vec![refs(3, 7, 0, 0, 90)]);
        let now = at(
            2,
            vec![
                refs(0, 7, 5, 600, 0),
                ring(EVENTS, 0, [7, 0]),
                refs(1, 2, 40, 100, 2),
                ring(EVENTS, 1, [4, 0]),
                refs(2, 7, 9, 500, 0),
                refs(3, 7, 5, 200, 91),
            ],
        );
        let changes = Changes::new(Some(&before), &now);
        assert_eq!(
            told(&changes, Sort::Full),
            [
                (REFS, 1, 6.0),
                (EVENTS, 1, 4.0),
                (REFS, 2, 1.0),
                (REFS, 0, 1.0),
                (REFS, 3, 1.0),
                (EVENTS, 0, 1.0),
            ]
        );
        assert_eq!(told(&changes, Sort::Refs), told(&changes, Sort::Full));
        let cpus = |sort| {
            let rows = told(&changes, sort);
            let all: Vec<_> = rows.iter().map(|(kind, cpu, _)| (*kind, *cpu)).collect();
            (all[0], all[1])
        };
        assert_eq!(cpus(Sort::Cpu), ((REFS, 0), (EVENTS, 0)));
        assert_eq!(cpus(Sort::Waiting), ((REFS, 1), (REFS, 2)));
        assert_eq!(cpus(Sort::Records), ((REFS, 0), (REFS, 2)));
        assert_eq!(cpus(Sort::Lost), ((REFS, 1), (REFS, 3)));
        assert_eq!(cpus(Sort::Total), ((REFS, 3), (REFS, 1)));
        let fullest = |kind| changes.fullest(kind).map(|row| row.ring.cpu);
        assert_eq!(
            [REFS, EVENTS, Kind::Unknown].map(fullest),
            [Some(1), Some(1), None]
        );
    }

    fn tracing() -> Fake {
        let fake = Fake::default();
        let config = control::Config {
            unwritten: true,
            ..control::Config::example()
        };
        control::start_counts(&fake, &config).expect("started");
        fake
    }

    #[test]
    fn room_grows_with_the_rings() {
        let fake = tracing();
        let rings = |n: u32| Ok((0..n).map(|cpu| ring(REFS, cpu, [7, 0])).collect());
        fake.answer_rings([rings(700), rings(4), rings(100_000)]);
        let mut room = 0;
        let asked = |room: &mut usize| match ask(&fake, [1; 16], room) {
            Ok(Answer::Rings(rings)) => (rings.list.len(), rings.is_complete),
            other => panic!("{other:?}"),
        };
        assert_eq!(asked(&mut room), (700, true));
        assert_eq!((room, fake.rings_asked()), (875, 2));
        // There is room now.
        assert_eq!(asked(&mut room), (4, true));
        assert_eq!(fake.rings_asked(), 3);
        // Nobody has so many.
        assert_eq!(asked(&mut room), (MOST, false));
        assert_eq!(fake.rings_asked(), 5);
    }

    #[test]
    fn refusals() {
        let fake = Fake::default();
        let ask_for = |fake: &Fake, uuid| ask(fake, [uuid; 16], &mut 0);
        assert!(matches!(ask_for(&fake, 0), Ok(Answer::Off)));
        let fake = tracing();
        assert!(matches!(ask_for(&fake, 1), Ok(Answer::Rings(_))));
        // Another trace is none of ours.
        assert!(matches!(ask_for(&fake, 2), Ok(Answer::Off)));
        for (errno, want) in [
            (libc::EPERM, "run this as root"),
            (
                libc::EINVAL,
                "use the tools that were built with the kernel",
            ),
            (libc::EFAULT, "could not report its rings: Bad address"),
        ] {
            fake.answer_rings([Err(errno)]);
            let failure = ask_for(&fake, 1).expect_err("refused");
            assert!(failure.message.contains(want), "{failure}");
        }
        fake.answer_rings([Err(libc::ENOTTY)]);
        assert!(matches!(ask_for(&fake, 1), Ok(Answer::Unknown)));
        fake.answer_rings([Err(libc::ENODATA)]);
        assert!(matches!(ask_for(&fake, 1), Ok(Answer::Off)));
    }
}
