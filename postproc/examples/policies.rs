//! Measures the simulation of one size of memory, policy by policy, and beside
//! it libCacheSim on the same references; then of all sizes at once, and beside it
//! libCacheSim's mrcProfiler:
//! `policies REFERENCES PAGES SIZE [PYTHON PROFILER]`, where PYTHON has libcachesim.
//!
//! References follow Zipf's law with exponent 0.8, but for a scan of all pages
//! that takes a twentieth of them. Times are those of the processor, of one thread.
//! They leave out decoding and checking of a trace here, and on the other side whatever
//! precedes the simulation; libCacheSim reads its requests from a mapped file meanwhile.
//! Of mrcProfiler, all that the program does is measured.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;

use postproc::sim::{self, Access};
use postproc::units::CanonPage;

/// As the pipeline hands them on.
const BATCH: usize = 1 << 15;

fn references(count: usize, pages: u32) -> Vec<Access> {
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut names = vec![0; pages as usize];
    let (mut named, mut walk) = (0, 0);
    (0..count)
        .map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let place = if random % 20 == 0 {
                walk = (walk + 1) % pages;
                walk
            } else {
                let uniform = (random >> 11) as f64 / (1u64 << 53) as f64;
                (f64::from(pages) * uniform.powi(5)) as u32
            };
            // Pages have numbers in order of first sight.
            let name = &mut names[place as usize];
            if *name == 0 {
                named += 1;
                *name = named;
            }
            Access::reference(CanonPage(*name), random >> 62 == 0)
        })
        .collect()
}

/// libCacheSim's oracleGeneral; see export/oracle_general.rs.
fn write(path: &Path, accesses: &[Access]) -> std::io::Result<()> {
    let mut next = vec![-1i64; accesses.len()];
    let mut last = std::collections::HashMap::new();
    for (i, access) in accesses.iter().enumerate() {
        if let Some(before) = last.insert(access.page, i) {
            next[before] = i as i64 + 1;
        }
    }
    let mut out = BufWriter::new(File::create(path)?);
    for (access, next) in accesses.iter().zip(next) {
        out.write_all(&0u32.to_le_bytes())?;
        out.write_all(&u64::from(access.page.0).to_le_bytes())?;
        out.write_all(&1u32.to_le_bytes())?;
        out.write_all(&next.to_le_bytes())?;
    }
    out.flush()
}

type Anything = Box<dyn std::error::Error>;

/// Seconds that this process's only thread has had a processor.
fn cpu_s() -> Result<f64, Anything> {
    let all = std::fs::read_to_string("/proc/self/schedstat")?;
    let ns = all.split(' ').next().ok_or("no time")?;
    Ok(ns.parse::<f64>()? / 1e9)
}

/// Seconds that processes it has waited for have had one, in ticks of 10 ms.
fn children_s() -> Result<f64, Anything> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("no name")?;
    // cutime and cstime are the 16th and 17th, and two are before the parenthesis.
    let ticks: Result<Vec<f64>, _> = fields.split(' ').skip(13).take(2).map(str::parse).collect();
    Ok(ticks?.iter().sum::<f64>() / 100.0)
}

/// What mrcProfiler says of some shares of all pages, as pairs of a size in pages and
/// the share of references that miss; and how many seconds it took.
fn profile(program: &str, requests: &Path) -> Result<(Vec<(u64, f64)>, f64), Anything> {
    let start = children_s()?;
    let output = Command::new(program)
        .arg(requests)
        .args(["oracleGeneral", "--algo=LRU", "--profiler=SHARDS"])
        .args(["--profiler-params=FIX_RATE,1.0,1", "--size=0.01,0.1,0.5"])
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    // Columns: share, size with its unit, misses of requests, misses of bytes.
    let text = String::from_utf8_lossy(&output.stdout);
    let points = text.lines().filter_map(|line| {
        let mut fields = line.split('\t').skip(1);
        let size = fields.next()?.strip_suffix('B')?.parse().ok()?;
        Some((size, fields.next()?.parse().ok()?))
    });
    Ok((points.collect(), children_s()? - start))
}

fn main() -> Result<(), Anything> {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: u32| args.get(i).map_or(Ok(default), |a| a.parse());
    let (count, pages, size) = (
        number(1, 10_000_000)?,
        number(2, 1_000_000)?,
        number(3, 100_000)?,
    );
    let accesses = references(count as usize, pages);
    let mega = |seconds: f64| f64::from(count) / seconds / 1e6;
    let directory = tempfile::tempdir()?;
    let requests = directory.path().join("requests.oracleGeneral");
    if args.len() > 4 {
        write(&requests, &accesses)?;
    }
    println!(
        "{:<10} {:>12} {:>10} {:>12} {:>10} {:>7}",
        "policy", "misses", "M refs/s", "libCacheSim", "M refs/s", "times"
    );
    for policy in sim::registry() {
        let start = cpu_s()?;
        let mut simulation = (policy.simulate)(size.into());
        for batch in accesses.chunks(BATCH) {
            simulation.references(batch);
        }
        let misses = simulation.counts().misses;
        let ours = mega(cpu_s()? - start);
        print!("{:<10} {misses:>12} {ours:>10.1}", policy.id);
        if let Some(python) = args.get(4) {
            let script = concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/misses_by_libcachesim.py"
            );
            let job = format!("{}:{size}", policy.id);
            let output = Command::new(python)
                .arg(script)
                .arg(&requests)
                .arg(&job)
                .output()?;
            if output.status.success() {
                let theirs: serde_json::Value = serde_json::from_slice(&output.stdout)?;
                let speed = mega(theirs["seconds"][&job].as_f64().ok_or("no time")?);
                let misses = &theirs[&job];
                print!(" {misses:>12} {speed:>10.1} {:>7.1}", ours / speed);
            }
        }
        println!();
    }
    println!("\nall sizes at once:");
    for policy in sim::registry() {
        let Some(make) = policy.curve else { continue };
        let start = cpu_s()?;
        let mut simulation = make();
        for batch in accesses.chunks(BATCH) {
            simulation.references(batch);
        }
        let ours = mega(cpu_s()? - start);
        let curve = simulation.finish();
        let misses = curve.at(size.into()).misses;
        let sizes = curve.footprint();
        println!("{:<10} {misses:>12} {ours:>10.2}  {sizes} sizes", policy.id);
        let Some(profiler) = args.get(5).filter(|_| policy.id == "lru") else {
            continue;
        };
        let (points, seconds) = profile(profiler, &requests)?;
        let speed = mega(seconds);
        println!(
            "  mrcProfiler at rate 1.0: {speed:.2} M refs/s, {:.1} times",
            ours / speed
        );
        for (pages, rate) in points {
            let exact = curve.at(pages).misses as f64 / f64::from(count);
            println!("  {pages:>9} pages: {exact:.6} miss, mrcProfiler has {rate:.6}");
        }
    }
    Ok(())
}
