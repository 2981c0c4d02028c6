//! `postproc advise`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::ExitCode;

use crate::amount::{MemorySize, Percent};
use crate::filter::{Filtered, LeftOut};
use crate::pipeline::Freeing;
use crate::report::{bytes_text, sizes_text};
use crate::sim::{Band, Need, measured};
use crate::trace::Trace;
use clap::Args;
use serde::Serialize;

use super::measure::{Measured, Measuring, need_text};
use super::screen::{grouped, numbered, print, print_json};
use super::{
    Checks, Foreign, Input, NO_BOUNDS, Which, filtered_text, left_out_text, verdict, warn_of_piece,
    warn_of_several_sets,
};

/// Say how much memory is enough
///
/// Finds the smallest memory in which the run has at most --slack more page faults than with all the
/// memory that it wants. A run that has all that it wants faults once for each page (a cold miss).
/// Every other fault is for a page that was replaced before. Pages that are freed leave memory, and
/// memory is under LRU.
///
/// The first line is the answer. If the trace allows it, the answer has proven bounds: in memories
/// that are smaller than the lower bound, all references of the run have more faults than the slack
/// permits; in a memory of the upper bound, they do not. "memory.high" is the upper bound in bytes.
/// "memory.max" is the footprint: all pages that exist at one time. A line about OPT, the best policy
/// possible, follows: no policy needs less than its lower bound. Then comes the curve that all this is
/// read from.
///
/// Memory is that of the whole trace, or of what --process, --set and --where select: a tree of
/// processes, or a control group. Bounds exist for a whole trace of one set, and for one set
/// (--set). A smaller N makes the bounds closer (`activator run -n`).
///
/// Control groups are also charged for page tables, stacks and buffers of the kernel, and files that
/// are read and written. No page table entry leads to these, so they are not in the figures.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc advise run.vmt\n  \
    postproc advise run.vmt --slack 5%\n  \
    postproc advise run.vmt --slack 0\n  \
    postproc advise run.vmt --size 16MiB,4000,0.5 --points 0\n  \
    postproc advise run.vmt --where 'tree == 42'\n  \
    postproc advise run.vmt --where 'cgroup ~ \"/build*\"' --json | jq .memory_high\n  \
    postproc advise sets.vmt --set 17\n  \
    postproc advise run.vmt --per-window\n  \
    postproc advise --from lackey lackey.log")]
#[command(
    mut_arg("trust", |trust| trust.conflicts_with("from")),
    mut_arg("process", |process| process.conflicts_with("from")),
    mut_arg("set", |set| set.conflicts_with("from"))
)]
pub struct AdviseArgs {
    #[command(flatten)]
    input: Input,
    /// How many more faults are tolerable than with all the memory that the run wants: 1%, or 0.01
    #[arg(long, value_name = "PERCENT", default_value = "1%")]
    slack: Percent,
    /// Also print the faults in memories of these sizes: 4000 (pages), 16MiB, or 0.1 (of the
    /// footprint); separated by commas
    #[arg(long, value_delimiter = ',', value_name = "SIZE")]
    size: Vec<MemorySize>,
    /// Number of sizes of the curve to print, in equal ratios
    #[arg(long, default_value_t = 16)]
    points: usize,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    foreign: Foreign,
    #[command(flatten)]
    checks: Checks,
}

/// A need with its sizes in bytes.
#[derive(Serialize)]
struct Needed {
    #[serde(flatten)]
    need: Need,
    bytes: u64,
}

#[derive(Serialize)]
struct Advice {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u32>,
    references: u64,
    /// Faults with all the memory that the run wants.
    cold: u64,
    /// The largest number of pages that existed at one time.
    footprint_pages: u64,
    evms_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    set: Option<u32>,
    page_size: u64,
    /// Each huge page counts as one page.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    huge_page_sizes: BTreeSet<u64>,
    good: bool,
    freeing: Freeing,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<Filtered>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filtered: Option<LeftOut>,
    slack: Percent,
    /// The most faults that the slack permits.
    faults_allowed: u64,
    /// Whether the needs have bounds that are proven.
    certified: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not_certified: Option<&'static str>,
    /// The smallest memory under LRU.
    need: Needed,
    /// The same under OPT.
    opt: Needed,
    /// Bytes.
    memory_high: u64,
    memory_max: u64,
    /// Whether the need is less than the memories that N shows well.
    #[serde(skip_serializing_if = "Option::is_none")]
    below_pages: Option<u64>,
    curve: Vec<Row>,
}

/// A size of memory under LRU.
#[derive(Serialize)]
struct Row {
    size_pages: u64,
    faults: u64,
    /// Faults besides the cold ones, as a fraction of these.
    more: f64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    band: Option<Band>,
}

impl Row {
    fn new(m: &Measured, size: u64) -> Self {
        let counts = m.lru.at(size);
        Row {
            size_pages: size,
            faults: counts.misses,
            more: counts.capacity() as f64 / counts.cold.max(1) as f64,
            band: m.lru_band(size),
        }
    }
}

impl Advice {
    fn new(args: &AdviseArgs, m: &Measured) -> anyhow::Result<Self> {
        let cold = m.cold();
        let limit = args.slack.above(cold);
        let bytes = |pages: u64| pages.saturating_mul(m.page_size);
        let needed = |need: Need| Needed {
            bytes: bytes(need.pages),
            need,
        };
        let (need, opt) = (m.lru_need(limit), m.opt_need(limit));
        let enough = need.bounds.map_or(need.pages, |bounds| bounds.high);
        // The trace shows nothing below N.
        let least = u64::from(m.evms_size).min(m.footprint());
        let mut sizes: BTreeSet<u64> = m
            .lru
            .sampled(args.points)
            .iter()
            .map(|p| p.size_pages)
            .collect();
        sizes.retain(|&size| args.points > 0 && size >= least);
        for size in &args.size {
            let pages = size.pages(m.page_size, m.footprint());
            sizes.insert(pages.map_err(|why| anyhow::anyhow!("--size: {why}"))?);
        }
        let bounds = need.bounds.map(|bounds| [bounds.low, bounds.high]);
        sizes.extend(bounds.into_iter().flatten().chain([need.pages]));
        sizes.remove(&0);
        let shown_well = u64::from(m.evms_size) * u64::from(measured::LEAST);
        Ok(Advice {
            path: m.name.clone(),
            window: m.window,
            references: m.references,
            cold,
            footprint_pages: m.footprint(),
            evms_size: m.evms_size,
            set: args.which.set,
            page_size: m.page_size,
            huge_page_sizes: m.huge.clone(),
            good: m.is_good(),
            freeing: Freeing::Freed,
            filter: m.filtered.clone(),
            filtered: m.left_out.clone(),
            slack: args.slack,
            faults_allowed: limit,
            certified: m.certificate.is_some(),
            why_not_certified: m.why_not,
            memory_high: bytes(enough),
            memory_max: bytes(m.footprint()),
            below_pages: (need.pages < shown_well).then_some(shown_well),
            need: needed(need),
            opt: needed(opt),
            curve: sizes.into_iter().map(|size| Row::new(m, size)).collect(),
        })
    }

    fn mib(&self, pages: u64) -> String {
        bytes_text(pages.saturating_mul(self.page_size))
    }

    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut t = String::new();
        writeln!(
            t,
            "{} needs {} for at most {} more faults than with all the memory it wants, {} ({}).\n",
            self.path,
            need_text(self.need.need, self.page_size),
            self.slack,
            self.mib(self.footprint_pages),
            numbered(self.footprint_pages, "page")
        )?;
        let enough = match self.certified {
            true => "enough under LRU: this is proven",
            false => "enough under LRU, by the references of the trace",
        };
        writeln!(t, "memory.high  {:<14} {enough}", self.memory_high)?;
        writeln!(
            t,
            "memory.max   {:<14} all pages that existed at one time",
            self.memory_max
        )?;
        writeln!(
            t,
            "\nThe best policy possible, OPT, needs {}.",
            need_text(self.opt.need, self.page_size)
        )?;
        if let Some(left_out) = &self.filtered {
            writeln!(t, "{}", left_out_text(left_out))?;
        }
        if let Some(filtered) = &self.filter {
            writeln!(t, "{}.", filtered_text(filtered))?;
        }
        if let Some(why) = self.why_not_certified {
            writeln!(t, "No bound is proven: {why}.")?;
        }
        if let Some(pages) = self.below_pages {
            writeln!(
                t,
                "The need is below {} N = {} pages. The trace says little about memories so small: \
                 trace with a smaller N.",
                measured::LEAST,
                grouped(pages)
            )?;
        }
        if !self.huge_page_sizes.is_empty() {
            writeln!(
                t,
                "Huge pages of {} are mapped: each counts as one page.",
                sizes_text(&self.huge_page_sizes)
            )?;
        }
        writeln!(
            t,
            "\n{}, {} cold{}; {}\n",
            numbered(self.references, "reference"),
            grouped(self.cold),
            match (self.evms_size, self.set) {
                (0, _) => String::new(),
                (n, None) => format!("; N = {}", grouped(n.into())),
                (n, Some(set)) => format!("; set {set}; N = {}", grouped(n.into())),
            },
            self.freeing.text()
        )?;
        writeln!(
            t,
            "{:>12} {:>12} {:>14} {:>10} {:>14} {:>14}",
            "pages", "size", "faults", "more", "at least", "at most"
        )?;
        for row in &self.curve {
            let bound = |of: fn(Band) -> u64| row.band.map_or("-".into(), |b| grouped(of(b)));
            writeln!(
                t,
                "{:>12} {:>12} {:>14} {:>8.2} % {:>14} {:>14}",
                grouped(row.size_pages),
                self.mib(row.size_pages),
                grouped(row.faults),
                100.0 * row.more,
                bound(|band| band.low),
                bound(|band| band.high)
            )?;
        }
        if self.certified {
            writeln!(
                t,
                "\nThe number of faults on all references of the run is proven to lie between the \
                 columns\n\"at least\" and \"at most\" (docs/memory.md)."
            )?;
        }
        Ok(t)
    }
}

pub fn run(args: &AdviseArgs) -> anyhow::Result<ExitCode> {
    if let Some(format) = &args.foreign.from {
        args.input.windows.none_in(format)?;
        args.which.only.none_in(format)?;
        return run_one(args, None);
    }
    args.input.each(|trace| {
        trace.demand_references()?;
        warn_of_piece(trace, NO_BOUNDS);
        run_one(args, Some(trace))
    })
}

fn run_one(args: &AdviseArgs, trace: Option<&Trace>) -> anyhow::Result<ExitCode> {
    let measuring = Measuring {
        path: &args.input.trace,
        which: &args.which,
        foreign: &args.foreign,
        checks: &args.checks,
    };
    let measured = measuring.run(trace, &mut [])?;
    let advice = Advice::new(args, &measured)?;
    match args.input.json {
        true => print_json(&advice)?,
        false => print(advice.text()?.as_bytes())?,
    }
    if measured.several_sets {
        warn_of_several_sets();
    }
    Ok(measured
        .report
        .map_or(ExitCode::SUCCESS, |report| verdict(&report)))
}
