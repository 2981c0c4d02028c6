//! What `sim::band` proves, on random runs: the misses of all references lie in the
//! band, at every size of memory, and no narrower one would do.

use std::collections::HashMap;

use postproc::sim::{Begin, Part, Witness};
use postproc::units::CanonPage;

/// A generator of Marsaglia's kind.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// LRU of all sizes, as a stack in which freed pages leave holes: the topmost hole moves
/// down to where the page that is referenced was.
#[derive(Default)]
struct Stack(Vec<Option<u32>>);

impl Stack {
    /// The greatest size of memory in which the reference misses.
    fn reference(&mut self, page: u32) -> Option<u32> {
        let at = self.0.iter().position(|&p| p == Some(page));
        let hole = self.0.iter().position(Option::is_none);
        match (at, hole) {
            (Some(at), Some(hole)) if hole < at => {
                self.0[at] = None;
                self.0.remove(hole);
            }
            (Some(at), _) => {
                self.0.remove(at);
            }
            (None, Some(hole)) => {
                self.0.remove(hole);
            }
            (None, None) => {}
        }
        self.0.insert(0, Some(page));
        at.map(|at| at as u32)
    }

    fn free(&mut self, page: u32) {
        for p in &mut self.0 {
            *p = p.filter(|&p| p != page);
        }
    }
}

/// LRU of one size, as it is.
struct Memory {
    size: usize,
    pages: Vec<u32>,
    misses: u64,
}

impl Memory {
    fn reference(&mut self, page: u32) {
        match self.pages.iter().position(|&p| p == page) {
            Some(at) => {
                self.pages.remove(at);
            }
            None => {
                self.misses += 1;
                self.pages.truncate(self.size - 1);
            }
        }
        self.pages.insert(0, page);
    }
}

/// What happens, in order.
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A reference of the run.
    Reference(u32),
    /// A number is taken: that of this record, if it has one.
    Record(usize),
    Free(u32),
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    n: usize,
    first: usize,
    cpus: usize,
    clock: bool,
}

#[derive(Clone, Copy)]
struct Member {
    entry: u32,
    page: u32,
    cpu: usize,
    nth: usize,
    live: bool,
    swept: bool,
    used: bool,
    record: usize,
}

/// The kernel's set, by its description.
struct Set {
    shape: Shape,
    numbers: Vec<Option<Member>>,
    counts: Vec<usize>,
    records: Vec<Part>,
    happened: Vec<Happening>,
}

impl Set {
    fn new(shape: Shape) -> Self {
        Set {
            shape,
            numbers: Vec::new(),
            counts: vec![0; shape.cpus],
            records: Vec::new(),
            happened: Vec::new(),
        }
    }

    fn member(&mut self, entry: u32) -> Option<&mut Member> {
        let mut members = self.numbers.iter_mut().rev().flatten();
        members.find(|m| m.live && m.entry == entry)
    }

    fn end(&mut self, number: usize) {
        let Some(m) = &mut self.numbers[number] else {
            return;
        };
        m.live = false;
        self.records[m.record].again = m.swept && m.used;
    }

    fn write(&mut self, begin: Begin, page: u32, cpu: usize) -> usize {
        self.records.push(Part {
            begin,
            page: Some(CanonPage(page)),
            cpu: cpu as u32,
            again: false,
        });
        self.happened
            .push(Happening::Record(self.records.len() - 1));
        self.records.len() - 1
    }

    /// The next part of a stay.
    fn renew(&mut self, number: usize, begin: Begin) {
        self.end(number);
        if let Some(m) = self.numbers[number] {
            let record = self.write(begin, m.page, m.cpu);
            self.numbers.push(Some(Member {
                live: true,
                used: false,
                record,
                ..m
            }));
        }
    }

    /// A reference; with `abort`, its admission is given up, and it is made again.
    fn reference(&mut self, entry: u32, page: u32, cpu: usize, abort: bool) {
        if let Some(m) = self.member(entry) {
            m.used = true;
            self.happened.push(Happening::Reference(page));
            return;
        }
        self.counts[cpu] += 1;
        let nth = self.counts[cpu];
        while let Some(tail) = self.numbers.len().checked_sub(self.shape.n) {
            let Some(m) = self.numbers[tail].filter(|m| m.live) else {
                break;
            };
            if self.counts[m.cpu] - m.nth < self.shape.first {
                self.renew(tail, Begin::Renewal);
            } else if self.shape.clock && m.swept && m.used {
                self.renew(tail, Begin::Chance);
            } else {
                self.end(tail);
                break;
            }
        }
        let passed = nth.checked_sub(self.shape.first);
        for m in self.numbers.iter_mut().flatten() {
            if m.live && m.cpu == cpu && Some(m.nth) == passed {
                m.swept = true;
                m.used = false;
            }
        }
        if abort {
            self.numbers.push(None);
            return self.reference(entry, page, cpu, false);
        }
        let record = self.write(Begin::Stay, page, cpu);
        self.happened.push(Happening::Reference(page));
        self.numbers.push(Some(Member {
            entry,
            page,
            cpu,
            nth,
            live: true,
            swept: false,
            used: false,
            record,
        }));
    }

    /// The entry is cleared; the page lives on.
    fn cut(&mut self, entry: u32) {
        let found = |m: &Option<Member>| m.is_some_and(|m| m.live && m.entry == entry);
        if let Some(number) = self.numbers.iter().rposition(found) {
            self.end(number);
        }
    }

    fn resize(&mut self, n: usize) {
        while self.shape.n > n {
            match self.numbers.len().checked_sub(self.shape.n) {
                Some(tail) => match self.numbers[tail].filter(|m| m.live) {
                    Some(m) if self.counts[m.cpu] - m.nth < self.shape.first => {
                        self.renew(tail, Begin::Renewal);
                    }
                    Some(_) => self.end(tail),
                    None => self.shape.n -= 1,
                },
                None => self.shape.n -= 1,
            }
        }
        self.shape.n = n;
    }

    fn finish(&mut self) {
        for number in 0..self.numbers.len() {
            if self.numbers[number].is_some_and(|m| m.live) {
                self.end(number);
            }
        }
    }
}

/// A run that was traced.
struct Run {
    shape: Shape,
    /// The largest set there was.
    n: u64,
    records: Vec<Part>,
    happened: Vec<Happening>,
}

/// A random run: loops and walks on some CPUs, pages with several entries, frees, cuts.
fn run(random: &mut Random) -> Run {
    let cpus = 1 + random.below(3) as usize;
    let first = 1 + random.below(3) as usize;
    let n = (3 + random.below(10) as usize).max(first * cpus);
    let shape = Shape {
        n,
        first,
        cpus,
        clock: random.one_in(3),
    };
    let mut set = Set::new(shape);
    let mut largest = n;
    let entries = 4 + random.below(5 * n as u64);
    let aliases = if random.one_in(2) {
        entries
    } else {
        1 + random.below(entries)
    };
    let (frees, cuts, sizes, aborts) = (
        [10, 60, 1 << 40][random.below(3) as usize],
        [10, 80, 1 << 40][random.below(3) as usize],
        [100, 1 << 40][random.below(2) as usize],
        [9, 1 << 40][random.below(2) as usize],
    );
    // The page an entry leads to, and the next page that is made.
    let mut pages: HashMap<u64, u32> = HashMap::new();
    let mut next = 1;
    // A CPU that is rarely heard of keeps its first segment.
    let idle = [1, 3, 60][random.below(3) as usize];
    let steps = 20 + random.below(60);
    for _ in 0..steps {
        let cpu = if random.one_in(idle) {
            random.below(cpus as u64) as usize
        } else {
            0
        };
        let base = random.below(entries);
        let span = 1 + random.below(2 * n as u64);
        let length = 1 + random.below(3 * n as u64);
        let kind = random.below(4);
        for i in 0..length {
            let entry = match kind {
                0 => base + i % span,
                1 => base + random.below(span),
                2 => base + span - 1 - i % span,
                _ => random.below(entries),
            } % entries;
            let class = entry % aliases;
            let page = *pages.entry(class).or_insert_with(|| {
                next += 1;
                next - 1
            });
            set.reference(entry as u32, page, cpu, random.one_in(aborts));
            if random.one_in(cuts) {
                set.cut(random.below(entries) as u32);
            }
            if random.one_in(frees) {
                let class = random.below(aliases);
                if let Some(page) = pages.remove(&class) {
                    let of = (0..entries).filter(|e| e % aliases == class);
                    for entry in of {
                        set.cut(entry as u32);
                    }
                    set.happened.push(Happening::Free(page));
                }
            }
            if random.one_in(sizes) {
                let n = (2 + random.below(12) as usize).max(first * cpus);
                largest = largest.max(n);
                set.resize(n);
            }
        }
    }
    set.finish();
    Run {
        shape,
        n: largest as u64,
        records: set.records,
        happened: set.happened,
    }
}

impl Run {
    /// For each size of memory, the misses of all references.
    fn truth(&self, upto: u64) -> Vec<u64> {
        let mut stack = Stack::default();
        let mut misses = vec![0; upto as usize + 1];
        for happened in &self.happened {
            match *happened {
                Happening::Reference(page) => {
                    let distance = stack.reference(page).map_or(upto, |d| u64::from(d));
                    for misses in misses.iter_mut().take(distance as usize + 1) {
                        *misses += 1;
                    }
                }
                Happening::Free(page) => stack.free(page),
                Happening::Record(_) => {}
            }
        }
        misses
    }

    /// What the trace's references give, and the witness of its records.
    fn trace(&self, again: bool, upto: u64) -> (Vec<u64>, Witness) {
        let first = again.then_some(self.shape.first as u32);
        let mut witness = Witness::new(self.n, first);
        let mut stack = Stack::default();
        let mut misses = vec![0; upto as usize + 1];
        for happened in &self.happened {
            match *happened {
                Happening::Record(at) => {
                    let part = self.records[at];
                    let mut distance = None;
                    if part.begin != Begin::Renewal {
                        let page = part.page.expect("a page");
                        distance = stack.reference(page.0);
                        let upto = distance.map_or(upto, |d| u64::from(d));
                        for misses in misses.iter_mut().take(upto as usize + 1) {
                            *misses += 1;
                        }
                    }
                    witness.record(part, distance);
                }
                Happening::Free(page) => {
                    stack.free(page);
                    witness.freed(CanonPage(page));
                }
                Happening::Reference(_) => {}
            }
        }
        (misses, witness)
    }
}

const UPTO: u64 = 90;

/// The stack with holes is LRU with memory that is freed.
#[test]
fn the_stack_is_lru() {
    let mut random = Random(88_172_645_463_325_252);
    for _ in 0..100 {
        let run = run(&mut random);
        let truth = run.truth(UPTO);
        for size in [1, 2, 3, 5, 8, 13, 21, 34, 55] {
            let mut memory = Memory {
                size,
                pages: Vec::new(),
                misses: 0,
            };
            for happened in &run.happened {
                match *happened {
                    Happening::Reference(page) => memory.reference(page),
                    Happening::Free(page) => memory.pages.retain(|&p| p != page),
                    Happening::Record(_) => {}
                }
            }
            assert_eq!(memory.misses, truth[size]);
        }
    }
}

/// The theorem, with and without `--again`.
#[test]
fn the_misses_of_all_references_lie_in_the_band() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut renewed, mut chances) = (0, 0);
    // The sum of the widths of bands, in misses of the trace.
    let mut widths = [0.0; 2];
    let mut points = 0;
    for case in 0..3000 {
        let run = run(&mut random);
        let truth = run.truth(UPTO);
        for again in [false, true] {
            let (misses, witness) = run.trace(again || run.shape.clock, UPTO);
            let bands = witness.bands();
            assert!(bands.at(bands.least() - 1).is_none());
            renewed += u64::from(witness.renewals() > 0);
            chances += u64::from(witness.chances() > 0);
            for size in bands.least()..UPTO {
                let band = bands.at(size).expect("a band");
                let (true_, traced) = (truth[size as usize], misses[size as usize]);
                let case = format!(
                    "case {case}, {:?}, {size} pages: {true_}, {band:?}",
                    run.shape
                );
                assert!(band.low <= true_ && true_ <= band.high, "{case}");
                assert!(
                    band.low <= traced && traced <= band.high,
                    "{traced}: {case}"
                );
                widths[usize::from(again)] += (band.high - band.low) as f64 / traced as f64;
                points += 1;
            }
        }
    }
    let widths = widths.map(|sum| sum / (points / 2) as f64);
    println!("{renewed} with renewals, {chances} with second chances, mean width {widths:?}");
    assert!(renewed > 500 && chances > 500);
    assert!(widths[1] < widths[0]);
}
