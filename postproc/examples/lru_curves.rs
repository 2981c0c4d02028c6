//! Measures the exact LRU curve of all sizes, on one thread and on two, beside a Fenwick tree
//! and Increment-and-Freeze on the same references:
//! `lru_curves REFERENCES PAGES local|uniform ROUNDS [PROGRAM]`, where PROGRAM is the one that
//! scripts/increment-and-freeze.sh builds.
//!
//! Of *uniform* references, each page is as likely as any other. *Local* ones follow Zipf's law
//! with exponent 0.8, but for a scan of all pages that takes a twentieth of them. All
//! computations must give the same curve. Each is a process of its own, which reads the references
//! from a file first. They take turns, so that other work on the machine hits all of them. The
//! speeds are the best of all rounds, and the median of the ratios within each round. The memory is
//! the most that a computation took in any round up to its result, without the references and
//! without the hits of each size, which all of them give. What else a result has is counted: the
//! write-backs of LruCurve and LruChunks.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use postproc::sim::{Access, CurveSimulation, LruChunks, LruCurve};
use postproc::units::CanonPage;

/// As the pipeline hands them on.
const BATCH: usize = 1 << 15;

type Anything = Box<dyn std::error::Error>;

/// The pages that are referenced, in order.
fn references(count: usize, pages: u32, local: bool) -> impl Iterator<Item = u32> {
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut names = vec![0; pages as usize];
    let (mut named, mut walk) = (0, 0);
    let one = move |_| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let uniform = (random >> 11) as f64 / (1u64 << 53) as f64;
        let place = if !local {
            (f64::from(pages) * uniform) as u32
        } else if random % 20 == 0 {
            walk = (walk + 1) % pages;
            walk
        } else {
            (f64::from(pages) * uniform.powi(5)) as u32
        };
        // Pages have numbers in order of first sight.
        let name = &mut names[place as usize];
        if *name == 0 {
            named += 1;
            *name = named;
        }
        *name
    };
    (0..count).map(one)
}

/// A tree of partial sums over words of 64 marks, the classical way to count distinct pages since
/// a page's last reference. A position for each reference, so that nothing is ever moved.
struct Fenwick {
    words: Vec<u64>,
    /// At `i`, counted from 1: marks of as many words up to the `i`th as its lowest bit says.
    sums: Vec<u32>,
    last: Vec<u32>,
    hits: Vec<u64>,
    marks: u32,
}

impl Fenwick {
    fn new(references: usize) -> Self {
        let words = references / 64 + 1;
        Fenwick {
            words: vec![0; words],
            sums: vec![0; words + 1],
            last: Vec::new(),
            hits: Vec::new(),
            marks: 0,
        }
    }

    fn add(&mut self, word: usize, delta: u32) {
        let mut at = word + 1;
        while at < self.sums.len() {
            self.sums[at] = self.sums[at].wrapping_add(delta);
            at += at & at.wrapping_neg();
        }
    }

    fn before(&self, position: usize) -> u32 {
        let (mut at, bit) = (position / 64, 1u64 << (position % 64));
        let mut sum = (self.words[at] & (bit - 1)).count_ones();
        while at > 0 {
            sum += self.sums[at];
            at &= at - 1;
        }
        sum
    }

    fn reference(&mut self, position: usize, page: usize) {
        if page >= self.last.len() {
            self.last.resize((page + 1).next_power_of_two(), 0);
        }
        match self.last[page].checked_sub(1) {
            None => {
                self.marks += 1;
                self.hits.push(0);
            }
            Some(place) => {
                let place = place as usize;
                let distance = self.marks - 1 - self.before(place);
                self.hits[distance as usize] += 1;
                self.words[place / 64] &= !(1 << (place % 64));
                self.add(place / 64, u32::MAX);
            }
        }
        self.words[position / 64] |= 1 << (position % 64);
        self.add(position / 64, 1);
        self.last[page] = position as u32 + 1;
    }
}

/// A computation: its name, how this program or the other one is asked for it, and its threads.
struct Method {
    name: &'static str,
    asked: &'static str,
    threads: &'static str,
    is_ours: bool,
}

const fn method(
    name: &'static str,
    asked: &'static str,
    threads: &'static str,
    is_ours: bool,
) -> Method {
    Method {
        name,
        asked,
        threads,
        is_ours,
    }
}

/// The first one is what the others are compared with.
const METHODS: [Method; 7] = [
    method("Fenwick tree, 64-bit leaves", "fenwick", "1", true),
    method("LruCurve", "curve", "1", true),
    method("LruChunks", "chunks", "1", true),
    method("LruChunks, 2 threads", "chunks", "2", true),
    method("Increment-and-Freeze", "whole", "1", false),
    method("the same, bounded", "bounded", "1", false),
    method("the same, 2 threads", "bounded", "2", false),
];

/// What a computation took.
struct Taken {
    seconds: f64,
    /// Of all threads together.
    cpu_s: f64,
    bytes: f64,
}

fn numbers<const N: usize>(path: &Path) -> std::io::Result<Vec<[u8; N]>> {
    let bytes = std::fs::read(path)?;
    let numbers = bytes.chunks_exact(N);
    Ok(numbers.filter_map(|bytes| bytes.try_into().ok()).collect())
}

/// A line of /proc/self/status, in bytes.
fn status(name: &str) -> Result<f64, Anything> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim_matches([':', '\t', ' ', 'k', 'B']).parse().ok());
    Ok(kib.map(|kib: f64| kib * 1024.0).ok_or("no such line")?)
}

fn simulate(mut simulation: impl CurveSimulation, accesses: &[Access]) -> Vec<u64> {
    for batch in accesses.chunks(BATCH) {
        simulation.references(batch);
    }
    Box::new(simulation).finish().hits_from
}

fn fenwick(accesses: &[Access]) -> Vec<u64> {
    let mut tree = Fenwick::new(accesses.len());
    for (position, access) in accesses.iter().enumerate() {
        tree.reference(position, access.page.index());
    }
    tree.hits
}

/// Computes in this process; prints what it took, and writes the hits of each size.
fn compute(asked: &str, requests: &Path, result: &Path) -> Result<(), Anything> {
    let accesses: Vec<Access> = numbers(requests)?
        .into_iter()
        .map(|page| Access::reference(CanonPage(u32::from_le_bytes(page)), false))
        .collect();
    let before = status("VmRSS")?;
    // From here on, the peak is that of the computation.
    std::fs::write("/proc/self/clear_refs", "5")?;
    let cpu_time = || clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from);
    let (start, cpu) = (Instant::now(), cpu_time()?);
    let hits = match asked {
        "fenwick" => fenwick(&accesses),
        "curve" => simulate(LruCurve::default(), &accesses),
        _ => {
            let mut chunks = LruChunks::default();
            let threads = std::env::var("OMP_NUM_THREADS")?;
            chunks.use_threads(threads.parse()?);
            simulate(chunks, &accesses)
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    let cpu_s = (cpu_time()? - cpu).as_secs_f64();
    // The peak includes the result, as that of Increment-and-Freeze does.
    let result_bytes = size_of_val(&hits[..]) as f64;
    let bytes = status("VmHWM")? - before - result_bytes;
    println!("{seconds} {cpu_s} {bytes}");
    let mut out = BufWriter::new(File::create(result)?);
    let mut sum = 0;
    // Of no pages first.
    for hits in [0].iter().chain(&hits) {
        sum += hits;
        out.write_all(&u64::to_le_bytes(sum))?;
    }
    Ok(out.flush()?)
}

/// Has a computation made by a program; gives the hits of each size, too.
fn run(
    program: &Path,
    method: &Method,
    directory: &Path,
) -> Result<(Taken, Vec<[u8; 8]>), Anything> {
    let result = directory.join("hits");
    let output = Command::new(program)
        .arg(method.asked)
        .args([&directory.join("requests"), &result])
        .env("OMP_NUM_THREADS", method.threads)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let mut fields = text.split_whitespace().map(str::parse::<f64>);
    let mut next = || -> Result<f64, Anything> { Ok(fields.next().ok_or("no number")??) };
    let taken = Taken {
        seconds: next()?,
        cpu_s: next()?,
        bytes: next()?,
    };
    let mut hits = numbers(&result)?;
    // Sizes at which nothing is added.
    while hits.len() > 1 && hits.last() == hits.get(hits.len() - 2) {
        hits.pop();
    }
    Ok((taken, hits))
}

/// The median of a ratio over all rounds: the mean of the middle two if their number is even.
fn median(ratios: impl Iterator<Item = f64>) -> f64 {
    let mut ratios: Vec<f64> = ratios.collect();
    ratios.sort_by(f64::total_cmp);
    let middle = |at: usize| ratios.get(at).copied().unwrap_or(f64::NAN);
    (middle(ratios.len() / 2) + middle(ratios.len().saturating_sub(1) / 2)) / 2.0
}

fn main() -> Result<(), Anything> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, asked, requests, result] = &args[..] {
        return compute(asked, requests.as_ref(), result.as_ref());
    }
    let usage = "lru_curves REFERENCES PAGES local|uniform ROUNDS [PROGRAM]";
    let arg = |i: usize| args.get(i).ok_or(usage);
    let (count, pages): (usize, u32) = (arg(1)?.parse()?, arg(2)?.parse()?);
    let (kind, rounds): (_, usize) = (arg(3)?, arg(4)?.parse()?);
    let directory = tempfile::tempdir()?;
    let mut out = BufWriter::new(File::create(directory.path().join("requests"))?);
    let mut distinct = 0;
    for page in references(count, pages, kind == "local") {
        distinct = distinct.max(page);
        out.write_all(&page.to_le_bytes())?;
    }
    out.flush()?;
    let this = std::env::current_exe()?;
    let other = args.get(5).map(Path::new);
    let is_there = |method: &&Method| method.is_ours || other.is_some();
    let methods: Vec<&Method> = METHODS.iter().filter(is_there).collect();
    let mut taken: Vec<Vec<Taken>> = methods.iter().map(|_| Vec::new()).collect();
    let mut expected = None;
    for _ in 0..rounds {
        for (method, taken) in methods.iter().zip(&mut taken) {
            let program = other.filter(|_| !method.is_ours).unwrap_or(&this);
            let (one, hits) = run(program, method, directory.path())?;
            taken.push(one);
            if *expected.get_or_insert_with(|| hits.clone()) != hits {
                return Err(format!("{}: another curve", method.name).into());
            }
        }
    }
    println!(
        "{count} references, {kind}, to {distinct} pages; all curves are equal; {rounds} rounds"
    );
    println!(
        "{:<28} {:>9} {:>6} {:>12} {:>6} {:>13}",
        "", "M refs/s", "times", "by CPU time", "times", "bytes a page"
    );
    for (method, rounds) in methods.iter().zip(&taken) {
        let best = |of: fn(&Taken) -> f64| rounds.iter().map(of).fold(f64::INFINITY, f64::min);
        let most_bytes = rounds.iter().map(|t| t.bytes).fold(0.0, f64::max);
        let times = |of: fn(&Taken) -> f64| {
            let pairs = taken[0].iter().zip(rounds);
            median(pairs.map(|(first, this)| of(first) / of(this)))
        };
        let mega = |seconds: f64| count as f64 / seconds / 1e6;
        println!(
            "{:<28} {:>9.2} {:>6.2} {:>12.2} {:>6.2} {:>13.1}",
            method.name,
            mega(best(|t| t.seconds)),
            times(|t| t.seconds),
            mega(best(|t| t.cpu_s)),
            times(|t| t.cpu_s),
            most_bytes / f64::from(distinct)
        );
    }
    Ok(())
}
