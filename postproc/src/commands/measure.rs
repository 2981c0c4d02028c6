//! The curves of a trace, with what is known about their bounds: for `advise` and `compare`.

use std::collections::BTreeSet;
use std::path::Path;

use crate::check::CheckReport;
use crate::filter::{Filtered, LeftOut};
use crate::import::Imported;
use crate::pipeline::{Consumer, Freeing};
use crate::report::bytes_text;
use crate::sim::{
    Band, Certificate, Certifier, Curve, CurveSimulation, Job, LruChunks, Need, OptCurve, Workers,
};
use crate::trace::Trace;

use super::screen::{Progress, grouped, numbered, stop_flag};
use super::{
    Checks, Foreign, LEFT_OUT, PART, Pages, Reading, SEVERAL_SETS, Which, name_of, why_filtered,
};
use crate::streams::Selection;
use crate::tee::Tee;

/// Why the references of one process have no bounds.
const PROCESS: &str = "--process leaves references out. The bounds follow from the references of all \
                       pages of a set, so those of one process have no proven bounds. A trace with a set \
                       for each process (--set-per process) has them: select the set by --set NUMBER";

/// Why a trace has no bounds although all its references are read.
const UNPROVEN: &str = "the bounds need a trace that passes its checks, has its end and all its \
                        windows from their beginning, lost nothing, and has no uncovered access \
                        (`postproc check` shows what is missing)";

/// Why another program's trace has no bounds.
const ELSEWHERE: &str = "a trace of another program does not say which references it lacks";

/// What to read.
pub struct Measuring<'a> {
    pub path: &'a Path,
    pub which: &'a Which,
    pub foreign: &'a Foreign,
    pub checks: &'a Checks,
}

/// The curves of a trace, or of what was selected of it.
pub struct Measured {
    /// The trace's name, with its window.
    pub name: String,
    pub window: Option<u32>,
    pub references: u64,
    /// The size N of the set; 0 for another program's trace.
    pub evms_size: u32,
    pub page_size: u64,
    pub huge: BTreeSet<u64>,
    pub lru: Curve,
    pub opt: Curve,
    pub certificate: Option<Certificate>,
    /// Why there is no certificate.
    pub why_not: Option<&'static str>,
    /// References to several sets share one memory.
    pub several_sets: bool,
    pub filtered: Option<Filtered>,
    pub left_out: Option<LeftOut>,
    /// `None` for another program's trace.
    pub report: Option<CheckReport>,
}

impl Measured {
    /// The largest number of pages that existed at one time.
    pub fn footprint(&self) -> u64 {
        self.lru.footprint()
    }

    /// First references to pages: the misses that no memory avoids.
    pub fn cold(&self) -> u64 {
        self.lru.cold
    }

    pub fn lru_need(&self, limit: u64) -> Need {
        Need::lru(&self.lru, self.certificate.as_ref(), limit)
    }

    pub fn opt_need(&self, limit: u64) -> Need {
        Need::opt(&self.opt, self.certificate.as_ref(), limit)
    }

    pub fn lru_band(&self, size: u64) -> Option<Band> {
        let certificate = self.certificate.as_ref()?;
        self.band_of_all(size).or_else(|| certificate.lru(size))
    }

    pub fn opt_band(&self, size: u64) -> Option<Band> {
        let certificate = self.certificate.as_ref()?;
        let misses = |size| self.opt.at(size).misses;
        let band = || certificate.opt(misses, size);
        self.band_of_all(size).or_else(band)
    }

    /// The misses of a memory that never replaces a page are exact.
    fn band_of_all(&self, size: u64) -> Option<Band> {
        let cold = self.cold();
        (size >= self.footprint()).then_some(Band {
            low: cold,
            high: cold,
        })
    }

    pub fn is_good(&self) -> bool {
        self.report.as_ref().is_none_or(|report| report.good)
    }
}

impl Measuring<'_> {
    /// Reads the trace once. Each consumer `beside` gets what was selected.
    pub fn run(
        &self,
        trace: Option<&Trace>,
        beside: &mut [&mut dyn Consumer],
    ) -> anyhow::Result<Measured> {
        std::thread::scope(|scope| {
            let jobs = vec![
                Job::Curve(Box::<LruChunks>::default() as Box<dyn CurveSimulation>),
                Job::Curve(Box::<OptCurve>::default()),
            ];
            let mut workers = Workers::start(scope, jobs);
            let mut measured = match trace {
                Some(trace) => self.read(trace, &mut workers, beside)?,
                None => self.read_foreign(&mut workers)?,
            };
            let mut curves = workers.join().into_iter().filter_map(|job| match job {
                Job::Curve(curve) => Some(curve.finish()),
                Job::Size(_) => None,
            });
            measured.lru = curves.next().unwrap_or_default();
            measured.opt = curves.next().unwrap_or_default();
            Ok(measured)
        })
    }

    /// Reads the trace again, unchecked.
    pub fn simulate(&self, trace: Option<&Trace>, workers: &mut Workers<'_>) -> anyhow::Result<()> {
        let Some(trace) = trace else {
            anyhow::ensure!(
                self.path != Path::new("-"),
                "only lru and opt are simulated from standard input, which can be read only once; give \
                 a file for the other policies"
            );
            self.import(workers)?;
            return Ok(());
        };
        let mut progress = Progress::new("simulating", stop_flag());
        let reading = self.reading(trace)?;
        reading.run(trace, &mut progress, &mut [], workers)?;
        Ok(())
    }

    fn reading(&self, trace: &Trace) -> anyhow::Result<Reading> {
        Ok(Reading {
            mode: Pages::Canonical.into(),
            freeing: Freeing::Freed,
            selection: self.which.selection(),
            clause: self.which.clause(trace, false, false)?,
            in_virtual_time: false,
        })
    }

    fn import(&self, workers: &mut Workers<'_>) -> anyhow::Result<Imported> {
        let import = self.foreign.open(self.path)?;
        let import = import.ok_or_else(|| anyhow::anyhow!("no format was named"))?;
        let mut progress = Progress::new("reading", stop_flag());
        let imported = import.run(&mut progress, |accesses, _| {
            workers.accesses(accesses);
            Ok(())
        })?;
        Ok(imported)
    }

    fn read(
        &self,
        trace: &Trace,
        workers: &mut Workers<'_>,
        beside: &mut [&mut dyn Consumer],
    ) -> anyhow::Result<Measured> {
        let reading = self.reading(trace)?;
        let selection = reading.selection;
        let mut checker = self.checks.checker();
        let mut certifier = Certifier::of_set(self.which.set);
        let mut progress = Progress::new("reading", stop_flag());
        let mut consumers: Vec<&mut dyn Consumer> = vec![workers];
        for other in beside {
            consumers.push(&mut **other);
        }
        let mut tee = Tee::new(consumers);
        // What is selected has no bounds, except one set.
        let is_partial = self.which.only.is_given();
        let mut whole: Vec<&mut dyn Consumer> = vec![&mut checker];
        if !is_partial {
            whole.push(&mut certifier);
        }
        let pass = reading.run(trace, &mut progress, &mut whole, &mut tee)?;
        let report = checker.report();
        // The proof assumes a trace that passes its checks.
        let proven = !is_partial && report.good;
        let certificate = certifier.certificate().filter(|_| proven);
        let several_sets = selection.is_none() && pass.outcome.world.has_several_sets();
        let lacks = pass.left_out.as_ref().is_some_and(|l| l.is_any);
        let filtered = pass.filtered.as_ref().map(why_filtered);
        let why_not = match selection {
            _ if certificate.is_some() => None,
            // First what another command line, or another file, changes.
            _ if several_sets => Some(SEVERAL_SETS),
            _ if filtered.is_some() => filtered,
            Some(Selection::Process(_)) => Some(PROCESS),
            _ if trace.is_partial() => Some(PART),
            _ if lacks => Some(LEFT_OUT),
            _ => Some(UNPROVEN),
        };
        Ok(Measured {
            name: name_of(trace),
            window: trace.window(),
            references: pass.references,
            evms_size: trace.header().evms_size,
            page_size: trace.header().page_size(),
            huge: pass.outcome.world.space.huge_pages().clone(),
            lru: Curve::default(),
            opt: Curve::default(),
            certificate,
            why_not,
            several_sets,
            filtered: pass.filtered,
            left_out: pass.left_out,
            report: Some(report),
        })
    }

    fn read_foreign(&self, workers: &mut Workers<'_>) -> anyhow::Result<Measured> {
        let imported = self.import(workers)?;
        Ok(Measured {
            name: self.path.display().to_string(),
            window: None,
            references: imported.references,
            evms_size: imported.note.as_ref().map_or(0, |note| note.evms_size),
            page_size: self.foreign.page_size,
            huge: BTreeSet::new(),
            lru: Curve::default(),
            opt: Curve::default(),
            certificate: None,
            why_not: Some(ELSEWHERE),
            several_sets: false,
            filtered: None,
            left_out: None,
            report: None,
        })
    }
}

/// A need in words: the size, and what is proven about it.
pub fn need_text(need: Need, page_size: u64) -> String {
    let size = bytes_text(need.pages.saturating_mul(page_size));
    let pages = numbered(need.pages, "page");
    match need.bounds {
        Some(bounds) if bounds.low == bounds.high => format!("{size} ({pages}, proven)"),
        Some(bounds) => format!(
            "{size} ({pages}; proven: {} to {})",
            grouped(bounds.low),
            grouped(bounds.high)
        ),
        None => format!("{size} ({pages}; not proven)"),
    }
}
