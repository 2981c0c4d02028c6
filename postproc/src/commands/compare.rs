//! `postproc compare`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::amount::{MemorySize, Percent};
use crate::pipeline::Consumer;
use crate::report::chart::time_text;
use crate::report::comparison::{
    self, Cell, Column, Comparison, Difference, Growth, LISTED, LISTED_PAGES, Mapped, Mapping,
    OnlyThere, Pages, Run, Side, Under,
};
use crate::report::comparison_page::{self, Drawn};
use crate::report::{Contents, Identity, Working, WorkingSet, bytes_text, printable};
use crate::sim::{Job, Need, PolicyEntry, Workers, measured};
use crate::trace::Trace;
use clap::Args;

use super::measure::{Measured, Measuring, need_text};
use super::screen::{Opening, grouped, numbered, print, print_json};
use super::simulate::{policies, policy_names};
use super::{
    Checks, Foreign, NEEDS_MORE, NO_BOUNDS, Which, filtered_text, left_out_text, verdict,
    warn_of_piece, warn_of_several_sets,
};

/// The policies whose curves and needs have bounds.
const LRU: &str = "lru";
const OPT: &str = "opt";

/// Sizes of a curve that is drawn.
const DRAWN: usize = 200;

/// Compare traces, windows or policies
///
/// Puts runs side by side: several traces, or windows of traces (--window, --per-window). All are
/// compared with the first one, which tables call A. With several policies, their curves stand side
/// by side, too; with one run, they are compared with the first policy.
///
/// The first lines say how much memory each run needs for at most --slack more page faults than with
/// all the memory that it wants (`postproc advise` explains this), and how much more that is than A
/// needs. Then come the misses by size of memory, with their differences; the working sets; and what
/// is mapped: how many pages, and how many of them A did not reference (new), or only A referenced
/// (gone). The last tables list which pages are new and which are gone: numbers of pages in a file, or
/// addresses in a process. --json has all of them. Pages of files are the same in all traces if the
/// file's name and the place in the file are the same. A trace does not record directories, so files of
/// one name are taken for one file, and so is a file that was written anew. In windows of one trace,
/// files are recognised by their inodes. A private copy of a page counts as the page in whose place it
/// is. Other pages can be recognised in windows of one trace only; otherwise, they are counted by what
/// they are for.
///
/// LRU and OPT have proven bounds, if the traces allow it. The bounds of a difference follow from
/// those of both runs.
///
/// --fail-above PERCENT ends with exit code 3 if a run needs more memory than A by more than this, by
/// the references of the traces. The output says whether the bounds prove the answer. With --proven,
/// only a growth that is proven ends with 3. A trace that fails its checks ends with 1.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc compare base.vmt new.vmt\n  \
    postproc compare base.vmt new.vmt --fail-above 5%\n  \
    postproc compare base.vmt new.vmt --slack 0 --fail-above 2% --proven --json | jq .growth\n  \
    postproc compare base.vmt new.vmt --where 'comm == \"cc1\"' --size 1MiB,0.5\n  \
    postproc compare base.vmt new.vmt -o comparison.html\n  \
    postproc compare base.vmt new.vmt --json | jq .pages\n  \
    postproc compare run.vmt --policy lru,opt,arc\n  \
    postproc compare run.vmt --window 0,2\n  \
    postproc compare run.vmt --per-window\n  \
    postproc compare --from lackey base.log new.log --fail-above 5%")]
#[command(
    mut_arg("trust", |trust| trust.conflicts_with("from")),
    mut_arg("process", |process| process.conflicts_with("from")),
    mut_arg("set", |set| set.conflicts_with("from"))
)]
pub struct CompareArgs {
    /// The traces: files, block devices, pipes, or directories with pieces; `-` is standard input.
    /// They may be compressed by Zstandard. All are compared with the first one
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Print JSON on standard output
    #[arg(long)]
    json: bool,
    /// Compare these windows of each trace, separated by commas; the first window is 0
    #[arg(long, value_name = "K", value_delimiter = ',', conflicts_with_all = ["per_window", "from"])]
    window: Vec<u32>,
    /// Compare all windows of each trace
    #[arg(long, conflicts_with = "from")]
    per_window: bool,
    /// Also write a page with pictures to this file
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
    /// The policies, separated by commas; the first one is that of --fail-above
    #[arg(long, value_delimiter = ',', default_value = "lru", value_parser = policy_names())]
    policy: Vec<String>,
    /// How many more faults are tolerable than with all the memory that a run wants: 1%, or 0.01
    #[arg(long, value_name = "PERCENT", default_value = "1%")]
    slack: Percent,
    /// End with exit code 3 if a run needs more memory than the first one by more than this
    #[arg(long, value_name = "PERCENT")]
    fail_above: Option<Percent>,
    /// With --fail-above, end with 3 only if the bounds prove it
    #[arg(long, requires = "fail_above")]
    proven: bool,
    /// Also compare memories of these sizes: 4000 (pages), 16MiB, or 0.1 (of the first run's
    /// footprint); separated by commas
    #[arg(long, value_delimiter = ',', value_name = "SIZE")]
    size: Vec<MemorySize>,
    /// Number of sizes to compare, in equal ratios
    #[arg(long, default_value_t = 12)]
    points: usize,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    foreign: Foreign,
    #[command(flatten)]
    checks: Checks,
}

/// A run that is to be compared, and what was found in it.
struct Found {
    path: PathBuf,
    /// `None` for another program's trace.
    trace: Option<Trace>,
    measured: Measured,
    set: WorkingSet,
    contents: Contents,
}

impl CompareArgs {
    fn measuring<'a>(&'a self, path: &'a Path) -> Measuring<'a> {
        Measuring {
            path,
            which: &self.which,
            foreign: &self.foreign,
            checks: &self.checks,
        }
    }

    /// The policies in the order of the request.
    fn policies(&self) -> Vec<&'static PolicyEntry> {
        let mut entries = policies(&self.policy);
        entries.sort_by_key(|entry| self.policy.iter().position(|name| name == entry.id));
        entries
    }

    /// The runs: traces, or windows of them.
    fn runs(&self) -> anyhow::Result<Vec<(PathBuf, Option<Trace>)>> {
        let mut runs = Vec::new();
        for path in &self.traces {
            if self.foreign.from.is_some() {
                runs.push((path.clone(), None));
                continue;
            }
            let trace = Trace::open_watched(path, &mut Opening::default())?;
            let windows = match self.per_window {
                true => trace.windows_of_references(),
                false => self.window.clone(),
            };
            if windows.is_empty() {
                // Says that there is no window, if one was asked for.
                if self.per_window {
                    trace.only_window(0)?;
                }
                runs.push((path.clone(), Some(trace)));
                continue;
            }
            for window in windows {
                runs.push((path.clone(), Some(trace.only_window(window)?)));
            }
        }
        Ok(runs)
    }
}

/// The name of a run in tables: A to Z, then A1 and so on.
fn label(run: usize) -> String {
    let letter = char::from(b'A' + (run % 26) as u8);
    match run / 26 {
        0 => letter.into(),
        round => format!("{letter}{round}"),
    }
}

fn find(args: &CompareArgs, identity: Identity) -> anyhow::Result<Vec<Found>> {
    let mut found = Vec::new();
    for (path, trace) in args.runs()? {
        if let Some(trace) = &trace {
            trace.demand_references()?;
            warn_of_piece(trace, NO_BOUNDS);
        }
        let mut working = match &trace {
            Some(trace) => Working::of(trace),
            None => Working::new(0, 0),
        };
        let mut contents = Contents::new(identity);
        let beside: &mut [&mut dyn Consumer] = &mut [&mut working, &mut contents];
        let measured = args.measuring(&path).run(trace.as_ref(), beside)?;
        if measured.several_sets {
            warn_of_several_sets();
        }
        found.push(Found {
            path,
            trace,
            measured,
            set: working.set,
            contents,
        });
    }
    Ok(found)
}

/// At most `count` sizes in equal ratios, the ends among them.
fn spaced(from: u64, to: u64, count: usize) -> BTreeSet<u64> {
    let step = (to.max(1) as f64 / from as f64).powf(1.0 / (count.max(2) - 1) as f64);
    let size = |i| (from as f64 * step.powi(i as i32)).round() as u64;
    (0..count).map(size).map(|size| size.min(to)).collect()
}

/// The sizes of memory to compare, in ascending order.
fn sizes(args: &CompareArgs, found: &[Found], needs: &[Need]) -> anyhow::Result<Vec<u64>> {
    let largest = found.iter().max_by_key(|f| f.measured.footprint());
    let (Some(base), Some(largest)) = (found.first(), largest) else {
        return Ok(Vec::new());
    };
    // A trace shows nothing below N.
    let n = found
        .iter()
        .map(|f| f.measured.evms_size)
        .max()
        .unwrap_or(0);
    let least = u64::from(n).min(largest.measured.footprint());
    let mut sizes = spaced(least.max(1), largest.measured.footprint(), args.points);
    for size in &args.size {
        let pages = size.pages(base.measured.page_size, base.measured.footprint());
        sizes.insert(pages.map_err(|why| anyhow::anyhow!("--size: {why}"))?);
    }
    sizes.extend(needs.iter().map(|need| need.pages));
    sizes.remove(&0);
    Ok(sizes.into_iter().collect())
}

/// The misses of a policy that has no curve, at these sizes: a pass of its own.
fn simulated(
    args: &CompareArgs,
    found: &Found,
    entries: &[&'static PolicyEntry],
    sizes: &[u64],
) -> anyhow::Result<Vec<u64>> {
    let job = |entry: &PolicyEntry, &size: &u64| Job::Size((entry.simulate)(size));
    let jobs = entries
        .iter()
        .flat_map(|entry| sizes.iter().map(|size| job(entry, size)));
    let jobs = jobs.collect();
    let measuring = args.measuring(&found.path);
    let jobs = std::thread::scope(|scope| {
        let mut workers = Workers::start(scope, jobs);
        measuring.simulate(found.trace.as_ref(), &mut workers)?;
        Ok::<_, anyhow::Error>(workers.join())
    })?;
    let misses = |job: Job| match job {
        Job::Size(simulation) => simulation.counts().misses,
        Job::Curve(_) => 0,
    };
    Ok(jobs.into_iter().map(misses).collect())
}

fn columns(
    args: &CompareArgs,
    found: &[Found],
    entries: &[&'static PolicyEntry],
    sizes: &[u64],
) -> anyhow::Result<Vec<Column>> {
    let first = args.policies().first().map_or(LRU, |entry| entry.id);
    let has_curve = |entry: &&&'static PolicyEntry| matches!(entry.id, LRU | OPT);
    let others: Vec<_> = entries.iter().filter(|e| !has_curve(e)).copied().collect();
    let mut columns = Vec::new();
    for (run, one) in found.iter().enumerate() {
        let misses = match others.is_empty() || sizes.is_empty() {
            true => Vec::new(),
            false => simulated(args, one, &others, sizes)?,
        };
        let mut misses = misses.into_iter();
        let m = &one.measured;
        for entry in entries {
            let mut cell = |&size: &u64| match entry.id {
                LRU => Cell::new(m.lru.at(size).misses, m.lru_band(size)),
                OPT => Cell::new(m.opt.at(size).misses, m.opt_band(size)),
                _ => Cell::new(misses.next().unwrap_or(0), None),
            };
            let under = |run, policy| Under { run, policy };
            columns.push(Column {
                under: under(run, entry.id),
                base: match found.len() {
                    1 => under(run, first),
                    _ => under(0, entry.id),
                },
                cells: sizes.iter().map(&mut cell).collect(),
            });
        }
    }
    Ok(columns)
}

/// The curves as they are drawn.
fn drawn(
    args: &CompareArgs,
    found: &[Found],
    entries: &[&'static PolicyEntry],
    c: &Comparison,
) -> anyhow::Result<Drawn> {
    let has_curve = |entry: &&'static PolicyEntry| matches!(entry.id, LRU | OPT);
    let entries: Vec<_> = entries.iter().copied().filter(has_curve).collect();
    let ends = c.sizes.first().zip(c.sizes.last());
    let sizes: Vec<u64> = match ends {
        Some((&from, &to)) => spaced(from, to, DRAWN).into_iter().collect(),
        None => Vec::new(),
    };
    let mut drawn = Drawn {
        columns: columns(args, found, &entries, &sizes)?,
        sizes,
    };
    comparison::compare(&mut drawn.columns);
    Ok(drawn)
}

fn compare(
    args: &CompareArgs,
    entries: &[&'static PolicyEntry],
) -> anyhow::Result<(Comparison, Vec<Found>)> {
    let windows = args.window.len() > 1 || args.per_window;
    let identity = match args.traces.len() {
        1 => Identity::OfTrace,
        _ => Identity::OfFiles,
    };
    anyhow::ensure!(
        args.traces.len() > 1 || windows || entries.len() > 1,
        "nothing to compare: give several traces, several windows (--window 0,1 or --per-window) or \
         several policies (--policy lru,opt)"
    );
    let found = find(args, identity)?;
    let page_size = found.first().map_or(0, |f| f.measured.page_size);
    if let Some(other) = found.iter().find(|f| f.measured.page_size != page_size) {
        anyhow::bail!(
            "{} has pages of {} bytes and the first trace has pages of {page_size} bytes: such pages \
             cannot be compared",
            other.measured.name,
            other.measured.page_size
        );
    }
    let limit = |m: &Measured| args.slack.above(m.cold());
    let lru = |f: &Found| f.measured.lru_need(limit(&f.measured));
    let opt = |f: &Found| f.measured.opt_need(limit(&f.measured));
    let (lru, opt): (Vec<Need>, Vec<Need>) = found.iter().map(|f| (lru(f), opt(f))).unzip();
    let first = entries.first().map_or(LRU, |entry| entry.id);
    let needs = if first == OPT { &opt } else { &lru };
    if args.fail_above.is_some() {
        anyhow::ensure!(
            found.len() > 1,
            "--fail-above compares the needs of runs: give several traces or windows"
        );
        anyhow::ensure!(
            matches!(first, LRU | OPT),
            "--fail-above needs a policy with a curve: name lru or opt first with --policy"
        );
    }
    let why_not = |f: &Found| Some((f.measured.name.clone(), f.measured.why_not?));
    if let (true, Some((name, why))) = (args.proven, found.iter().find_map(why_not)) {
        anyhow::bail!("--proven: {name} has no bounds, so nothing would ever be proven: {why}");
    }
    let sizes = sizes(args, &found, needs)?;
    let columns = columns(args, &found, entries, &sizes)?;
    let growth = needs.iter().enumerate().skip(1);
    let growth = growth.map(|(run, &need)| Growth::new(run, needs[0], need, args.fail_above));
    let contents: Vec<&Contents> = found.iter().map(|f| &f.contents).collect();
    let run = |(at, f): (usize, &Found)| {
        let m = &f.measured;
        Run {
            label: label(at),
            path: m.name.clone(),
            window: m.window,
            references: m.references,
            cold: m.cold(),
            footprint_pages: m.footprint(),
            evms_size: m.evms_size,
            good: m.is_good(),
            certified: m.certificate.is_some(),
            why_not_certified: m.why_not,
            filter: m.filtered.clone(),
            filtered: m.left_out.clone(),
            need: lru[at],
            opt: opt[at],
            working_set: f.set.by_tau(),
        }
    };
    let mappings = comparison::mappings(&contents);
    let mut comparison = Comparison {
        page_size,
        slack: args.slack,
        fail_above: args.fail_above,
        need_policy: if first == OPT { OPT } else { LRU },
        runs: found.iter().enumerate().map(run).collect(),
        growth: growth.collect(),
        sizes,
        columns,
        pages: comparison::pages(&mappings, found.len()),
        mappings,
    };
    comparison::compare(&mut comparison.columns);
    comparison.find_pages(&contents, args.json);
    Ok((comparison, found))
}

pub fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    if let Some(format) = &args.foreign.from {
        args.which.only.none_in(format)?;
    }
    let entries = args.policies();
    let (comparison, found) = compare(args, &entries)?;
    let fails = |growth: &Growth| {
        let too_much = growth.too_much;
        too_much.is_some_and(|t| t.failed && (t.proven || !args.proven))
    };
    let fails = comparison.growth.iter().any(fails);
    if let Some(path) = &args.output {
        let drawn = drawn(args, &found, &entries, &comparison)?;
        let mut lines = String::new();
        answers(&comparison, &mut lines)?;
        let failed = args.fail_above.map(|_| fails);
        comparison_page::write(&comparison, &drawn, &lines, failed, path)?;
    }
    match args.json {
        true => print_json(&comparison)?,
        false => print(text(&comparison)?.as_bytes())?,
    }
    let mut bad = ExitCode::SUCCESS;
    for found in &found {
        if let Some(report) = &found.measured.report {
            let code = verdict(report);
            if !report.good {
                bad = code;
            }
        }
    }
    if found.iter().any(|found| !found.measured.is_good()) {
        return Ok(bad);
    }
    Ok(match fails {
        true => ExitCode::from(NEEDS_MORE),
        false => ExitCode::SUCCESS,
    })
}

/// A growth in words: `3.2 % more than A (proven: 1.0 % to 4.1 %)`.
fn growth_text(growth: &Growth) -> String {
    let Some(more) = growth.more else {
        return "A needs nothing".into();
    };
    let percent = |value: f64| format!("{:.1} %", 100.0 * value);
    let words = match more {
        more if more < 0.0 => format!("{} less than A", percent(-more)),
        more => format!("{} more than A", percent(more)),
    };
    let signed = |value: f64| format!("{:+.1} %", 100.0 * value);
    match growth.low.zip(growth.high) {
        Some((low, high)) => format!("{words} (proven: {} to {})", signed(low), signed(high)),
        None => words,
    }
}

fn signed(number: i64) -> String {
    let sign = match number {
        0 => "",
        n if n < 0 => "-",
        _ => "+",
    };
    format!("{sign}{}", grouped(number.unsigned_abs()))
}

fn answers(c: &Comparison, t: &mut String) -> std::fmt::Result {
    let needs = |run: &Run| match c.need_policy {
        OPT => run.opt,
        _ => run.need,
    };
    for (at, run) in c.runs.iter().enumerate() {
        let growth = c.growth.iter().find(|growth| growth.run == at);
        let more = growth.map_or(String::new(), |g| format!(", {}", growth_text(g)));
        writeln!(
            t,
            "{} needs {}{more}",
            run.label,
            need_text(needs(run), c.page_size)
        )?;
    }
    let policy = match c.need_policy {
        OPT => " (under OPT)",
        _ => "",
    };
    writeln!(
        t,
        "for at most {} more faults than with all the memory it wants{policy}.",
        c.slack
    )?;
    if let Some(permitted) = c.fail_above {
        for growth in &c.growth {
            let Some(too_much) = growth.too_much else {
                continue;
            };
            let label = &c.runs[growth.run].label;
            let verdict = match too_much.failed {
                true => format!("{label} fails: it needs more than {permitted} more memory than A"),
                false => format!("{label} passes: it needs at most {permitted} more memory than A"),
            };
            let proof = match too_much.proven {
                true => "this is proven",
                false => "this is not proven",
            };
            writeln!(t, "{verdict}; {proof}.")?;
        }
    }
    Ok(())
}

fn runs_text(c: &Comparison, t: &mut String) -> std::fmt::Result {
    for run in &c.runs {
        writeln!(
            t,
            "{}  {}: {}, {} cold, footprint {} ({}){}",
            run.label,
            run.path,
            numbered(run.references, "reference"),
            grouped(run.cold),
            bytes_text(run.footprint_pages.saturating_mul(c.page_size)),
            numbered(run.footprint_pages, "page"),
            match run.evms_size {
                0 => String::new(),
                n => format!("; N = {}", grouped(n.into())),
            }
        )?;
        if let Some(left_out) = &run.filtered {
            writeln!(t, "   {}", left_out_text(left_out))?;
        }
        if let Some(filtered) = &run.filter {
            writeln!(t, "   {}", filtered_text(filtered))?;
        }
    }
    let n = c.runs.first().map_or(0, |run| run.evms_size);
    if c.runs.iter().any(|run| run.evms_size != n) {
        writeln!(
            t,
            "The runs have sets of different N: compare no references and no working sets, and misses \
             only in memories of {} N pages and more.",
            measured::LEAST
        )?;
    }
    let mut reasons: Vec<&str> = c.runs.iter().filter_map(|r| r.why_not_certified).collect();
    reasons.dedup();
    for why in reasons {
        let which: Vec<&str> = c
            .runs
            .iter()
            .filter(|run| run.why_not_certified == Some(why))
            .map(|run| run.label.as_str())
            .collect();
        writeln!(t, "No bound is proven for {}: {why}.", which.join(", "))?;
    }
    Ok(())
}

/// Misses with their band: `1,234 (1,200 to 1,300)`.
fn cell_text(cell: &Cell) -> String {
    match cell.band {
        Some(band) => format!(
            "{} ({} to {})",
            grouped(cell.misses),
            grouped(band.low),
            grouped(band.high)
        ),
        None => grouped(cell.misses),
    }
}

fn difference_text(difference: &Difference) -> String {
    let misses = signed(difference.misses);
    match difference.low.zip(difference.high) {
        Some((low, high)) => format!("{misses} ({} to {})", signed(low), signed(high)),
        None => misses,
    }
}

/// A table whose columns are as wide as their widest cell. The first `names` columns are texts.
fn table(
    t: &mut String,
    names: usize,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
) -> std::fmt::Result {
    let lines = || std::iter::once(&head).chain(&rows);
    let width = |at: usize| {
        let cells = lines().filter_map(|line| line.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for line in lines() {
        let mut text = String::new();
        for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let gap = if at == 0 { "" } else { "  " };
            match at < names {
                true => write!(text, "{gap}{cell:<width$}")?,
                false => write!(text, "{gap}{cell:>width$}")?,
            }
        }
        writeln!(t, "{}", text.trim_end())?;
    }
    Ok(())
}

fn curves_text(c: &Comparison, t: &mut String) -> std::fmt::Result {
    let mut head = vec!["pages".to_string(), "size".into()];
    for column in &c.columns {
        let name = c.name(column.under);
        head.push(name.clone());
        if column.cells.iter().any(|cell| cell.difference.is_some()) {
            head.push(format!("{name} - {}", c.name(column.base)));
        }
    }
    let row = |(at, &size): (usize, &u64)| {
        let mut row = vec![grouped(size), bytes_text(size.saturating_mul(c.page_size))];
        for cell in c.columns.iter().filter_map(|column| column.cells.get(at)) {
            row.push(cell_text(cell));
            row.extend(cell.difference.iter().map(difference_text));
        }
        row
    };
    writeln!(t, "\nMisses by size of memory")?;
    table(t, 0, head, c.sizes.iter().enumerate().map(row).collect())
}

fn working_sets_text(c: &Comparison, t: &mut String) -> std::fmt::Result {
    let taus: BTreeSet<u64> = c
        .runs
        .iter()
        .flat_map(|run| &run.working_set)
        .map(|row| row.tau_ns)
        .collect();
    if taus.is_empty() {
        return Ok(());
    }
    let mut head = vec!["tau".to_string()];
    for run in &c.runs {
        head.push(format!("{} mean", run.label));
        head.push(format!("{} largest", run.label));
    }
    let row = |tau: u64| {
        let mut row = vec![time_text(tau as f64)];
        for run in &c.runs {
            let found = run.working_set.iter().find(|row| row.tau_ns == tau);
            row.push(found.map_or("-".into(), |r| grouped(r.mean_pages.round() as u64)));
            row.push(found.map_or("-".into(), |r| grouped(r.most_pages.into())));
        }
        row
    };
    writeln!(t, "\nPages referenced in a time tau (working sets)")?;
    table(t, 0, head, taus.into_iter().map(row).collect())
}

fn mappings_text(c: &Comparison, t: &mut String) -> std::fmt::Result {
    if c.mappings.is_empty() {
        return Ok(());
    }
    let mut head = vec!["mapping".to_string(), "kind".into()];
    for (at, run) in c.runs.iter().enumerate() {
        head.push(format!("{} pages", run.label));
        if at > 0 {
            head.extend(["new".into(), "gone".into()]);
        }
    }
    let cells = |(at, mapped): (usize, &Mapped)| {
        let mut cells = vec![grouped(mapped.pages)];
        if at > 0 {
            let of = |count: Option<u64>| count.map_or("-".into(), grouped);
            cells.push(of(mapped.changed.as_ref().map(|changed| changed.new)));
            cells.push(of(mapped.changed.as_ref().map(|changed| changed.gone)));
        }
        cells
    };
    let row = |mapping: &Mapping| {
        let mut row = vec![printable(&mapping.name, 44), mapping.class.name().into()];
        row.extend(mapping.runs.iter().enumerate().flat_map(cells));
        row
    };
    writeln!(t, "\nPages by mapping; those that changed most come first")?;
    let listed = c.mappings.iter().take(LISTED);
    table(t, 2, head, listed.map(row).collect())?;
    match c.mappings.len().saturating_sub(LISTED) {
        0 => Ok(()),
        1 => writeln!(t, "1 more mapping changed less: --json has it"),
        more => writeln!(
            t,
            "{} more mappings changed less: --json has them",
            grouped(more as u64)
        ),
    }
}

fn pages_text(c: &Comparison, t: &mut String) -> std::fmt::Result {
    for pages in &c.pages {
        let own = &c.runs[pages.run].label;
        for (side, only, not) in [(Side::New, &**own, "A"), (Side::Gone, "A", &**own)] {
            let there = c.only_there(pages.run, side);
            let all: u64 = there.iter().map(|only| only.pages).sum();
            writeln!(
                t,
                "\nPages that {only} references and {not} does not: {}",
                in_mappings(c, all, there.len())
            )?;
            only_there_text(c, &there, t)?;
        }
        uncompared_text(c, pages, t)?;
    }
    Ok(())
}

/// So many pages in so many mappings.
fn in_mappings(c: &Comparison, pages: u64, mappings: usize) -> String {
    match pages {
        0 => "none".into(),
        _ => format!(
            "{} ({}) in {}",
            grouped(pages),
            bytes_text(pages.saturating_mul(c.page_size)),
            numbered(mappings as u64, "mapping")
        ),
    }
}

fn only_there_text(c: &Comparison, there: &[OnlyThere<'_>], t: &mut String) -> std::fmt::Result {
    if there.is_empty() {
        return Ok(());
    }
    let (listed, rest) = there.split_at(there.len().min(LISTED_PAGES));
    let row = |only: &OnlyThere<'_>| {
        vec![
            printable(&only.mapping.name, 44),
            only.mapping.class.name().into(),
            only.which(c.page_size),
            grouped(only.pages),
        ]
    };
    let head = ["mapping", "kind", "which", "pages"].map(String::from);
    table(t, 3, head.into(), listed.iter().map(row).collect())?;
    if !rest.is_empty() {
        let pages: u64 = rest.iter().map(|only| only.pages).sum();
        let have = if rest.len() == 1 { "has" } else { "have" };
        let rest = in_mappings(c, pages, rest.len());
        writeln!(t, "and {rest} that {have} fewer: --json has all pages")?;
    }
    Ok(())
}

fn uncompared_text(c: &Comparison, pages: &Pages, t: &mut String) -> std::fmt::Result {
    if pages.uncompared.is_empty() {
        return Ok(());
    }
    let own = &c.runs[pages.run].label;
    writeln!(t, "\nPages that cannot be recognised in the other run")?;
    let head = vec!["kind".into(), format!("{own} pages"), "A pages".into()];
    let row = |of: &comparison::Uncompared| {
        vec![
            of.class.name().into(),
            grouped(of.pages),
            grouped(of.base_pages),
        ]
    };
    table(t, 1, head, pages.uncompared.iter().map(row).collect())
}

fn text(c: &Comparison) -> std::result::Result<String, std::fmt::Error> {
    let mut t = String::new();
    answers(c, &mut t)?;
    writeln!(t)?;
    runs_text(c, &mut t)?;
    curves_text(c, &mut t)?;
    working_sets_text(c, &mut t)?;
    mappings_text(c, &mut t)?;
    pages_text(c, &mut t)?;
    Ok(t)
}
