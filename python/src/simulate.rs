//! Simulations: what `postproc simulate` does, with the same proofs and the same limits to them.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{ArrayRef, Float64Array, Int64Array, StringArray};
use arrow_schema::{DataType, Schema, SchemaRef};
use postproc::amount::MemorySize;
use postproc::check::CheckReport;
use postproc::filter::{Filtered, LeftOut};
use postproc::io_limit::IoLimit;
use postproc::pipeline::{Batch, Consumer, Freeing, Outcome, World};
use postproc::report::grouped;
use postproc::sim::measured::{self, How};
use postproc::sim::{
    self, Access, Band, Certificate, Certifier, Counts, Curve, CurvePoint, Filler, Footprint, Job,
    PolicyEntry, Sampler, Workers,
};
use postproc::space::Issue;
use postproc::streams::Selection;
use postproc::trace::{Event, Piece, Trace};
use postproc::units::CanonPage;
use pyo3::prelude::*;
use rust_mm_trace::uapi;
use serde::Serialize;

use crate::columns::{coded, field, i64s, small_words, some_f64s};
use crate::fail::{Failure, Result, Signals};
use crate::reading::{self, Options, Reading};
use crate::table;

/// The policies that have bands.
const LRU: &str = "lru";
const OPT: &str = "opt";

/// How to simulate, besides what to read.
#[derive(Clone, FromPyObject)]
#[pyo3(from_item_all)]
pub struct Manner {
    fill: bool,
    io: bool,
    trust: bool,
    allow_loss: bool,
}

/// All that is asked of a simulation but the policies.
pub struct Asked {
    pub options: Options,
    pub how: Manner,
}

/// What is known about a simulation besides its numbers.
#[derive(Serialize)]
pub struct About {
    pub path: String,
    pub window: Option<u32>,
    pub references: u64,
    pub evms_size: u32,
    pub page_size: u64,
    /// The sizes of huge pages that were mapped, in bytes, if they are known. Each huge page counts as one
    /// page.
    pub huge_page_sizes: Option<BTreeSet<u64>>,
    pub set: Option<u32>,
    pub exact: bool,
    pub why_not_exact: Option<&'static str>,
    pub filter: Option<Filtered>,
    pub filtered: Option<LeftOut>,
    pub good: bool,
    pub findings: Vec<String>,
    pub warnings: Vec<String>,
    pub fill: bool,
    pub freeing: Freeing,
    pub io: Option<u64>,
    pub sample: Option<f64>,
}

const SEVERAL_SETS: &str = "the references are to several sets. A reference is in the trace if the \
                            page was not in its own set, which says nothing about how many pages \
                            of other sets were referenced since. So what one memory for all would \
                            do has no proven bounds. set=NUMBER takes the references to one set, \
                            whose results have bounds";
const FILTERED: &str = "where leaves references out. The bounds follow from the references of all \
                        pages of a set, so those that are left have no proven bounds";
const SELECTED: &str = "the selection leaves references out. The bounds follow from the references \
                        of all pages of a set, so those that are left have no proven bounds";
const LEFT_OUT: &str = "a filter of the kernel has left references out of the trace. The bounds \
                        follow from the references of all pages of a set, so those that are left \
                        have no proven bounds";
const PART: &str = "this is the part of one process. The bounds follow from the references of all \
                    pages of a set, so results of a part have no proven bounds";
const PIECE: &str = "this is a piece that begins in the middle of a trace or a window. Pages that \
                     were enabled before are referenced without a record, so results have no \
                     proven bounds. The directory with all pieces has them";
const BAD: &str = "the trace failed its checks: the results may be wrong. Trace.check() says more";

/// What a reading has given besides the simulations.
pub struct Given {
    about: About,
    certificate: Option<Certificate>,
    /// Whether errors that were measured with other programs apply.
    is_whole: bool,
    clock: bool,
}

/// A destination of the accesses that are read.
pub trait Sink: Consumer {
    fn accesses(&mut self, accesses: &[Access]);
}

impl Sink for Workers<'_> {
    fn accesses(&mut self, accesses: &[Access]) {
        Workers::accesses(self, accesses);
    }
}

impl Sink for Sampler {
    fn accesses(&mut self, accesses: &[Access]) {
        Sampler::accesses(self, accesses);
    }
}

impl Sink for Footprint {
    fn accesses(&mut self, accesses: &[Access]) {
        Footprint::accesses(self, accesses);
    }
}

/// Passes on the references that were asked for: filled in, or with those of read() and write().
struct Feed<'s> {
    sink: &'s mut dyn Sink,
    fill: bool,
    io: bool,
    filler: Option<Filler>,
    accesses: Vec<Access>,
    io_references: u64,
}

type Done = postproc::error::Result<()>;

impl Consumer for Feed<'_> {
    fn begin(&mut self, trace: &Trace) -> Done {
        self.filler = self.fill.then(|| Filler::new(trace.header()));
        self.sink.begin(trace)
    }

    fn wants_continuations(&self) -> bool {
        self.fill
    }

    fn references(&mut self, batch: &Batch<'_>) -> Done {
        let Some(filler) = &mut self.filler else {
            return self.sink.references(batch);
        };
        self.accesses.clear();
        filler.batch(batch, &mut self.accesses);
        self.sink.accesses(&self.accesses);
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        self.sink.follows_freed()
    }

    fn freed(&mut self, pages: &[CanonPage], world: &World) -> Done {
        let Some(filler) = &mut self.filler else {
            return self.sink.freed(pages, world);
        };
        self.accesses.clear();
        filler.freed(pages, &mut self.accesses);
        self.sink.accesses(&self.accesses);
        Ok(())
    }

    fn wants_io(&self) -> bool {
        self.io
    }

    fn io(&mut self, batch: &Batch<'_>) -> Done {
        self.io_references += batch.refs.len() as u64;
        self.sink.references(batch)
    }

    fn event(&mut self, event: &Event<'_>, world: &World, issues: &[Issue]) -> Done {
        self.sink.event(event, world, issues)
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome) -> Done {
        if let Some(filler) = &mut self.filler {
            self.accesses.clear();
            filler.finish(&mut self.accesses);
            self.sink.accesses(&self.accesses);
        }
        self.sink.finish(trace, outcome)
    }
}

impl Asked {
    /// What to read of a trace.
    ///
    /// # Errors
    ///
    /// The arguments contradict each other, or the trace.
    fn reading(&self, trace: &Trace) -> Result<Reading> {
        let reading = self.options.reading(trace)?;
        if self.how.io {
            if self.options.pages() != "canonical" {
                return Err(Failure::argument(
                    "io needs pages='canonical': read() and write() have no virtual pages",
                ));
            }
            if matches!(reading.selection, Some(Selection::Set(_))) {
                return Err(Failure::argument(
                    "io and set exclude each other: what read() and write() reference is in no set",
                ));
            }
            reading.refuse_places()?;
        }
        if self.how.fill && reading.clause.is_some() {
            return Err(Failure::argument(
                "fill finds the place of a reference by counting the records of its set, of which \
                 the selection leaves some out: leave out one of the two",
            ));
        }
        if self.how.fill && trace.may_lack_references() {
            return Err(Failure::trace(
                "fill finds the place of a reference by counting the records of its set, of which \
                 a filter of the kernel has left some out: leave out fill",
            ));
        }
        Ok(reading)
    }

    /// Reads the trace for `sink`. `bands` says whether bounds are wanted, if there are any.
    pub fn read(
        &self,
        trace: &Trace,
        signals: &mut Signals,
        sink: &mut dyn Sink,
        bands: bool,
        sample: Option<f64>,
    ) -> Result<Given> {
        let reading = self.reading(trace)?;
        let set = match reading.selection {
            Some(Selection::Set(set)) => Some(set),
            _ => None,
        };
        let is_process = matches!(reading.selection, Some(Selection::Process(_)));
        let may_be_exact =
            !is_process && reading.clause.is_none() && !self.how.io && sample.is_none();
        let mut checker = reading::checker(self.how.trust, self.how.allow_loss, 3);
        let mut feed = Feed {
            sink,
            fill: self.how.fill,
            io: self.how.io,
            filler: None,
            accesses: Vec::new(),
            io_references: 0,
        };
        let mut certifier = (bands && may_be_exact).then(|| Certifier::of_set(set));
        let mut limit = self.how.io.then(|| IoLimit::new(trace, None));
        let mut beside: Vec<&mut dyn Consumer> = vec![&mut checker];
        beside.extend(certifier.as_mut().map(|c| c as &mut dyn Consumer));
        beside.extend(limit.as_mut().map(|c| c as &mut dyn Consumer));
        let passed = reading.run_some(trace, signals, &mut beside, &mut feed)?;
        drop(beside);
        let report: CheckReport = checker.report();
        // The proof assumes a trace that passes its checks.
        let certificate = certifier.filter(|_| report.good);
        let certificate = certificate.and_then(|c| c.certificate());
        let io = self.how.io.then_some(feed.io_references);
        let references = match is_process || passed.filtered.is_some() {
            // This number includes references of read() and write().
            true => passed.references,
            false => passed.references + io.unwrap_or(0),
        };
        let world = &passed.outcome.world;
        let several_sets = reading.selection.is_none() && world.has_several_sets();
        let lacks = passed.left_out.as_ref().is_some_and(|l| l.is_any);
        let is_part = trace.is_partial();
        let is_piece = trace.piece().is_some_and(Piece::begins_blindly);
        // First what another argument, or another file, changes.
        let why_not_exact = match &passed.filtered {
            _ if several_sets => Some(SEVERAL_SETS),
            Some(filtered) if filtered.by == "--where" => Some(FILTERED),
            Some(_) => Some(SELECTED),
            None if is_part => Some(PART),
            None if lacks => Some(LEFT_OUT),
            None => None,
        };
        let mut warnings = Vec::new();
        if !report.good {
            warnings.push(BAD.to_owned());
        }
        // A filter was asked for; of the others the user may not know.
        let unasked = why_not_exact.filter(|why| ![FILTERED, SELECTED].contains(why));
        warnings.extend(unasked.map(str::to_owned));
        warnings.extend(is_piece.then(|| PIECE.to_owned()));
        let header = trace.header();
        Ok(Given {
            about: About {
                path: trace.path().display().to_string(),
                window: trace.window(),
                references,
                evms_size: header.evms_size,
                page_size: header.page_size(),
                huge_page_sizes: Some(world.space.huge_pages().clone()),
                set,
                exact: why_not_exact.is_none(),
                why_not_exact,
                filter: passed.filtered,
                filtered: passed.left_out,
                good: report.good,
                findings: reading::findings(&report),
                warnings,
                fill: self.how.fill,
                freeing: reading.freeing,
                io,
                sample,
            },
            certificate,
            is_whole: may_be_exact && !several_sets && !lacks && !is_part,
            clock: header.policy == uapi::VMTRACE_POLICY_CLOCK,
        })
    }
}

impl Given {
    /// What is known besides the numbers, as JSON.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string(&self.about).map_err(|error| Failure::trace(error.to_string()))
    }

    /// The error that was measured with other programs, for a policy without a band.
    fn measured(&self, policy: &str, size: u64) -> Option<measured::Error> {
        if !self.is_whole || matches!(policy, LRU | OPT) {
            return None;
        }
        let times = size as f64 / f64::from(self.about.evms_size.max(1));
        measured::error(policy, How::of(self.clock, self.about.fill), times)
    }
}

/// One row of a result.
pub struct Row {
    pub policy: String,
    /// `None` of a policy in Python that does not say how large its memory is.
    pub size_pages: Option<u64>,
    pub counts: Counts,
    pub band: Option<Band>,
    pub measured: Option<measured::Error>,
    /// Whether pages that are dirty at the end were counted.
    pub knows_dirty: bool,
}

/// The rows as a table.
pub fn rows(rows: Vec<Row>) -> Result<table::Batch> {
    let schema: SchemaRef = Arc::new(Schema::new(vec![
        field("policy", small_words(), false),
        field("size_pages", DataType::Int64, true),
        field("references", DataType::Int64, false),
        field("misses", DataType::Int64, false),
        field("hits", DataType::Int64, false),
        field("cold", DataType::Int64, false),
        field("capacity", DataType::Int64, false),
        field("write_backs", DataType::Int64, true),
        field("dirty_left", DataType::Int64, true),
        field("lower", DataType::Int64, true),
        field("upper", DataType::Int64, true),
        field("measured_mean_percent", DataType::Float64, true),
        field("measured_worst_percent", DataType::Float64, true),
    ]));
    let of = |value: fn(&Row) -> u64| i64s(rows.iter().map(|r| value(r) as i64).collect());
    let some = |value: fn(&Row) -> Option<u64>| -> ArrayRef {
        let values = rows.iter().map(|r| value(r).map(|v| v as i64));
        Arc::new(Int64Array::from_iter(values))
    };
    let error = |value: fn(&measured::Error) -> f64| {
        some_f64s(
            rows.iter()
                .map(|r| r.measured.as_ref().map(value))
                .collect(),
        )
    };
    let columns = vec![
        policies(rows.iter().map(|r| r.policy.as_str()))?,
        some(|r| r.size_pages),
        of(|r| r.counts.references),
        of(|r| r.counts.misses),
        of(|r| r.counts.hits()),
        of(|r| r.counts.cold),
        of(|r| r.counts.capacity()),
        some(|r| r.counts.write_backs),
        some(|r| r.knows_dirty.then_some(r.counts.dirty_left)),
        some(|r| r.band.map(|band| band.low)),
        some(|r| r.band.map(|band| band.high)),
        error(|e| e.mean_percent),
        error(|e| e.worst_percent),
    ];
    Ok(table::Batch(table::batch(&schema, columns, rows.len())?))
}

/// A column of names of policies, which are few.
fn policies<'p>(names: impl Iterator<Item = &'p str>) -> Result<ArrayRef> {
    let mut list: Vec<&str> = Vec::new();
    let mut keys: Vec<i8> = Vec::new();
    for name in names {
        let at = list.iter().position(|known| *known == name);
        let at = at.unwrap_or_else(|| {
            list.push(name);
            list.len() - 1
        });
        let key = i8::try_from(at);
        keys.push(key.map_err(|_| Failure::argument("more than 128 policies at once"))?);
    }
    let list: ArrayRef = Arc::new(StringArray::from(list));
    coded::<Int8Type>(keys, &[], &list)
}

/// The policies of these names, each once, in the order of the registry.
pub fn entries(names: &[String]) -> Result<Vec<&'static PolicyEntry>> {
    let known = |name: &String| name == "all" || sim::registry().iter().any(|p| p.id == *name);
    if let Some(name) = names.iter().find(|name| !known(name)) {
        let ids: Vec<&str> = sim::registry().iter().map(|p| p.id).collect();
        return Err(Failure::argument(format!(
            "no policy is called {name:?}; there are {}, and 'all'",
            ids.join(", ")
        )));
    }
    let all = names.iter().any(|name| name == "all");
    let wanted = |p: &&PolicyEntry| all || names.iter().any(|name| name == p.id);
    Ok(sim::registry().iter().filter(wanted).collect())
}

fn has_bands(entries: &[&'static PolicyEntry]) -> bool {
    entries.iter().any(|entry| matches!(entry.id, LRU | OPT))
}

/// Sizes of memory, as texts, in pages. A share of the footprint needs a pass of its own.
///
/// # Errors
///
/// A text is no size, or the trace cannot be read.
pub fn pages_of(
    trace: &Trace,
    signals: &mut Signals,
    mut asked: Asked,
    texts: &[String],
) -> Result<Vec<u64>> {
    let named = |text: &str, why: String| Failure::argument(format!("size {text:?}: {why}"));
    let mut sizes: Vec<MemorySize> = Vec::with_capacity(texts.len());
    for text in texts {
        let size = text.parse::<MemorySize>();
        sizes.push(size.map_err(|why| named(text, why))?);
    }
    let mut footprint = Footprint::default();
    if sizes.iter().any(|size| size.needs_footprint()) {
        // What is filled in are pages that are there. The pass that simulates checks the trace.
        asked.how = Manner {
            fill: false,
            trust: true,
            ..asked.how
        };
        asked.read(trace, signals, &mut footprint, false, None)?;
    }
    let page_size = trace.header().page_size();
    let mut pages = Vec::with_capacity(sizes.len());
    for (text, size) in texts.iter().zip(sizes) {
        let size = size.pages(page_size, footprint.pages());
        pages.push(size.map_err(|why| named(text, why))?);
    }
    Ok(pages)
}

/// Simulates memories of these sizes.
pub fn sizes(
    trace: &Trace,
    signals: &mut Signals,
    asked: &Asked,
    entries: &[&'static PolicyEntry],
    sizes: &[u64],
) -> Result<(Given, table::Batch)> {
    let mut jobs: Vec<(&'static str, Job)> = Vec::new();
    for entry in entries {
        jobs.extend(
            sizes
                .iter()
                .map(|&size| (entry.id, Job::Size((entry.simulate)(size)))),
        );
    }
    // OPT must be simulated at further sizes to get its bounds.
    let more = Certifier::members(trace) - 1;
    if let Some(opt) = entries.iter().find(|entry| entry.id == OPT) {
        let around = |&size: &u64| [size.saturating_sub(more), size.saturating_add(more)];
        let bounding: BTreeSet<u64> = sizes.iter().flat_map(around).collect();
        let bounding = bounding.iter().filter(|s| **s > 0 && !sizes.contains(s));
        jobs.extend(bounding.map(|&size| ("", Job::Size((opt.simulate)(size)))));
    }
    let (names, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
    let (given, jobs) = std::thread::scope(|scope| {
        let mut workers = Workers::start(scope, jobs);
        let given = asked.read(trace, signals, &mut workers, has_bands(entries), None)?;
        Ok::<_, Failure>((given, workers.join()))
    })?;
    let mut counted: Vec<(&'static str, Counts)> = Vec::new();
    for (name, job) in names.into_iter().zip(jobs) {
        if let Job::Size(simulation) = job {
            counted.push((name, simulation.counts()));
        }
    }
    let opt_misses = |size: u64| {
        let of_opt = counted.iter().filter(|(name, _)| matches!(*name, OPT | ""));
        let mut at = of_opt.filter(|(_, counts)| counts.size_pages == size);
        at.next().map(|(_, counts)| counts.misses)
    };
    let band = |policy: &str, size: u64| {
        let certificate = given.certificate.as_ref()?;
        match policy {
            LRU => certificate.lru(size),
            OPT => {
                let needed = certificate.sizes_for_opt(size);
                let known = needed.iter().all(|&size| opt_misses(size).is_some());
                let misses = |size| opt_misses(size).unwrap_or(0);
                known.then(|| certificate.opt(misses, size))?
            }
            _ => None,
        }
    };
    let asked_for = counted.iter().filter(|(name, _)| !name.is_empty());
    let all = asked_for.map(|&(policy, counts)| Row {
        policy: policy.into(),
        size_pages: Some(counts.size_pages),
        counts,
        band: band(policy, counts.size_pages),
        measured: given.measured(policy, counts.size_pages),
        knows_dirty: true,
    });
    let batch = rows(all.collect())?;
    Ok((given, batch))
}

/// The rows of each policy.
pub type ByPolicy = Vec<(&'static str, table::Batch)>;

/// Simulates all sizes of memory at once. With `points`, at most so many sizes are in the result, in
/// equal ratios; with 0, all are.
pub fn curves(
    trace: &Trace,
    signals: &mut Signals,
    asked: &Asked,
    entries: &[&'static PolicyEntry],
    points: usize,
) -> Result<(Given, ByPolicy)> {
    let mut jobs = Vec::new();
    for entry in entries {
        let Some(make) = entry.curve else {
            let able = sim::registry().iter().filter(|p| p.curve.is_some());
            return Err(Failure::argument(format!(
                "{} cannot compute a curve in one pass (only these policies can: {}); give sizes \
                 to Trace.simulate()",
                entry.id,
                able.map(|p| p.id).collect::<Vec<_>>().join(", ")
            )));
        };
        jobs.push(Job::Curve(make()));
    }
    let (given, jobs) = std::thread::scope(|scope| {
        let mut workers = Workers::start(scope, jobs);
        let given = asked.read(trace, signals, &mut workers, has_bands(entries), None)?;
        Ok::<_, Failure>((given, workers.join()))
    })?;
    let mut all = Vec::new();
    for (entry, job) in entries.iter().zip(jobs) {
        if let Job::Curve(curve) = job {
            let batch = rows(of_curve(Some(&given), entry.id, &curve.finish(), points))?;
            all.push((entry.id, batch));
        }
    }
    Ok((given, all))
}

/// A curve without bounds. `points` is as in [`curves`].
pub fn curve_rows(policy: &'static str, curve: &Curve, points: usize) -> Result<table::Batch> {
    rows(of_curve(None, policy, curve, points))
}

fn of_curve(given: Option<&Given>, policy: &'static str, curve: &Curve, points: usize) -> Vec<Row> {
    let chosen: Vec<CurvePoint> = match points {
        0 => curve.points().collect(),
        count => curve.sampled(count),
    };
    // `Curve::at` adds up all smaller sizes, which is slow if it is done for each size.
    let misses: Vec<u64> = curve.points().map(|point| point.misses).collect();
    let misses_at = |size: u64| match misses.len() {
        0 => curve.references,
        len => misses[(size.max(1) as usize).min(len) - 1],
    };
    let row = |point: CurvePoint| {
        let size = point.size_pages;
        let certificate = given.and_then(|given| given.certificate.as_ref());
        let band = certificate.and_then(|c| match policy {
            LRU => c.lru(size),
            OPT => c.opt(misses_at, size),
            _ => None,
        });
        let dirty = curve.dirty_left.get(size as usize - 1).copied();
        Row {
            policy: policy.into(),
            size_pages: Some(size),
            counts: Counts {
                size_pages: size,
                references: curve.references,
                misses: point.misses,
                cold: curve.cold,
                write_backs: point.write_backs,
                dirty_left: dirty.unwrap_or(0),
            },
            band,
            measured: given.and_then(|given| given.measured(policy, size)),
            knows_dirty: dirty.is_some(),
        }
    };
    chosen.into_iter().map(row).collect()
}

/// Estimates the misses from a share of the pages. Without sizes, of curves.
pub fn estimates(
    trace: &Trace,
    signals: &mut Signals,
    asked: &Asked,
    entries: &[&'static PolicyEntry],
    (sizes, points): (&[u64], usize),
    rate: f64,
) -> Result<(Given, Vec<Estimated>)> {
    if !(rate > 0.0 && rate <= 1.0) {
        return Err(Failure::argument(
            "sample must be a number above 0 and not above 1",
        ));
    }
    let mut of = Vec::new();
    for &entry in entries {
        match sizes {
            [] => of.push((entry, None)),
            sizes => of.extend(sizes.iter().map(|&size| (entry, Some(size)))),
        }
    }
    let mut sampler = Sampler::new(rate, of);
    let smallest = sampler.smallest();
    if let Some(size) = sizes.iter().find(|&&size| size < smallest) {
        return Err(Failure::argument(format!(
            "a sample of {rate} gives no estimate for {} pages, only for {} and more; give a \
             larger share",
            grouped(*size),
            grouped(smallest)
        )));
    }
    let given = asked.read(trace, signals, &mut sampler, false, Some(rate))?;
    let estimates = sampler.estimates(points);
    Ok((given, estimates))
}

/// An estimate, and the name of its policy.
pub type Estimated = (&'static str, sim::Estimate);

/// The rows of each policy's estimates.
pub fn by_policy(estimates: &[Estimated]) -> Result<ByPolicy> {
    let of_one = estimates.chunk_by(|a, b| a.0 == b.0);
    of_one
        .map(|part| Ok((part[0].0, estimate_rows(part)?)))
        .collect()
}

/// Estimates as a table.
pub fn estimate_rows(estimates: &[Estimated]) -> Result<table::Batch> {
    let schema: SchemaRef = Arc::new(Schema::new(vec![
        field("policy", small_words(), false),
        field("size_pages", DataType::Int64, false),
        field("misses", DataType::Float64, false),
        field("misses_error", DataType::Float64, false),
        field("low", DataType::Float64, false),
        field("high", DataType::Float64, false),
        field("cold", DataType::Int64, false),
        field("write_backs", DataType::Float64, true),
    ]));
    let floats = |of: fn(&sim::Estimate) -> f64| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(
            estimates.iter().map(|e| of(&e.1)),
        ))
    };
    let ints =
        |of: fn(&sim::Estimate) -> u64| i64s(estimates.iter().map(|e| of(&e.1) as i64).collect());
    let columns = vec![
        policies(estimates.iter().map(|e| e.0))?,
        ints(|e| e.size_pages),
        floats(|e| e.misses),
        floats(|e| e.misses_error),
        floats(|e| e.low),
        floats(|e| e.high),
        ints(|e| e.cold),
        some_f64s(estimates.iter().map(|e| e.1.write_backs).collect()),
    ];
    let batch = table::batch(&schema, columns, estimates.len())?;
    Ok(table::Batch(batch))
}
