//! A run's two streams of references: all that there were, and what the trace has.

use ::oracle::log::Log;
use ::oracle::model::Page;
use ::oracle::stream;
use ::postproc::canon::PageMode;
use ::postproc::pipeline::{self, Batch, Consumer, Freeing, Outcome, Place, Unwatched, World};
use ::postproc::sim::{Access, Certificate, Certifier, Filler};
use ::postproc::trace::Trace;
use ::postproc::units::{self, CanonPage};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// How pages are named, in both streams alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Naming {
    /// As postproc's canonicaliser names the page of the record in whose stay a
    /// reference falls. The trace's records must be the oracle's for that. Both streams
    /// have the moments at which pages are freed.
    Canonical,
    /// By address space and address, of each stream for itself: nothing need agree. Such a
    /// page is not freed.
    Virtual,
}

/// Numbers of pages by address space and address.
#[derive(Default)]
struct Names(HashMap<Page, u32>);

impl Names {
    fn number(&mut self, page: Page) -> u32 {
        let next = self.0.len() as u32 + 1;
        *self.0.entry(page).or_insert(next)
    }
}

/// What the trace has.
struct Records {
    naming: Naming,
    names: Names,
    /// Of each record, its page.
    pages: Vec<u32>,
    /// The records' pages.
    seen: HashSet<Page>,
    plain: Vec<Access>,
    filled: Vec<Access>,
    filler: Filler,
    freed: Vec<Freed>,
}

/// A page that was freed.
#[derive(Clone, Copy)]
struct Freed {
    /// Records before it.
    after: u32,
    page: CanonPage,
}

impl Consumer for Records {
    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>) -> ::postproc::error::Result<()> {
        let all = batch.refs.iter().zip(batch.places).zip(batch.pages);
        for ((r, place), &page) in all {
            let virt = Page {
                mm: r.mm.0,
                addr: r.address(),
            };
            self.seen.insert(virt);
            let page = match self.naming {
                Naming::Canonical => page,
                Naming::Virtual => CanonPage(self.names.number(virt)),
            };
            self.pages.push(page.0);
            let mapped = matches!(place, Place::Mapped { .. });
            self.filler.record(r, mapped, page, &mut self.filled);
            let f = r.flags();
            let seen = f.access() == units::Access::Seen;
            if !f.continues() && (mapped || !seen) {
                let write = f.writes();
                self.plain.push(Access::reference(page, write));
            }
        }
        Ok(())
    }

    fn freed(&mut self, pages: &[CanonPage], _: &World) -> ::postproc::error::Result<()> {
        let after = self.pages.len() as u32;
        self.filler.freed(pages, &mut self.filled);
        for &page in pages {
            self.plain.push(Access::free(page));
            self.freed.push(Freed { after, page });
        }
        Ok(())
    }

    fn finish(&mut self, _: &Trace, _: &Outcome) -> ::postproc::error::Result<()> {
        self.filler.finish(&mut self.filled);
        Ok(())
    }
}

/// A stay's references among all.
#[derive(Clone, Copy, Default)]
struct Span {
    /// References.
    count: u32,
    /// The last one's place in the stream.
    last: u32,
    /// Records that had begun by then, this one included.
    begun: u32,
}

/// Both streams of a run.
pub struct Streams {
    /// N.
    pub n: u64,
    /// The trace's references as they are.
    pub plain: Vec<Access>,
    /// The same with those that follow from them.
    pub filled: Vec<Access>,
    /// How many references there were.
    pub references: u64,
    /// Distinct pages, as they are named.
    pub footprint: u64,
    /// The trace's bounds on the misses of all references; none if a protection of the
    /// kernel was taken away.
    pub certificate: Option<Certificate>,
    /// Pages (by address space and address) in the trace, in the full stream, and in
    /// both.
    pub page_sets: (usize, usize, usize),
    /// Pages as they are named, by record of the model.
    pages: Vec<u32>,
    /// Pages that were freed, in order.
    freed: Vec<Freed>,
    spans: Vec<Span>,
    path: PathBuf,
}

impl Streams {
    /// Reads a run's trace, log and stream.
    ///
    /// # Errors
    ///
    /// What can't be read, or does not fit together.
    pub fn load(trace: &Path, log: &Path, path: &Path, naming: Naming) -> Result<Self> {
        let log = Log::read(&mut File::open(log)?).map_err(|e| anyhow!("{e}"))?;
        ensure!(
            log.counts.early == 0,
            "some references came before their address space was traced"
        );
        let trace = Trace::open(trace)?;
        let header = trace.header();
        let n = u64::from(header.evms_size);
        let mut records = Records {
            naming,
            names: Names::default(),
            pages: Vec::new(),
            seen: HashSet::new(),
            plain: Vec::new(),
            filled: Vec::new(),
            filler: Filler::new(header),
            freed: Vec::new(),
        };
        let (mode, freeing) = match naming {
            Naming::Canonical => (PageMode::Canonical, Freeing::Freed),
            Naming::Virtual => (PageMode::Virtual, Freeing::Kept),
        };
        let canonical = PageMode::Canonical;
        pipeline::run_with(
            &trace,
            canonical,
            freeing,
            &mut Unwatched,
            &mut [&mut records],
        )?;
        let mut certifier = Certifier::default();
        pipeline::run_with(&trace, mode, freeing, &mut Unwatched, &mut [&mut certifier])?;
        let certificate = certifier.certificate();
        ensure!(
            certificate.is_some() == (header.debug_break == 0),
            "the trace gives no bounds, or gives some that it cannot give"
        );
        let pages = match naming {
            Naming::Canonical => records.pages,
            Naming::Virtual => {
                let stays = log.stays.iter();
                stays.map(|s| records.names.number(s.page)).collect()
            }
        };
        ensure!(
            pages.len() == log.stays.len() && !pages.is_empty(),
            "{} records in the trace, and {} in the log",
            pages.len(),
            log.stays.len()
        );
        let mut streams = Streams {
            n,
            plain: records.plain,
            filled: records.filled,
            references: 0,
            footprint: 0,
            certificate,
            page_sets: (0, 0, 0),
            spans: vec![Span::default(); pages.len()],
            pages,
            freed: records.freed,
            path: path.into(),
        };
        streams.look()?;
        let referenced = log.stays.iter().zip(&streams.spans);
        let full: HashSet<Page> = referenced
            .filter(|(_, span)| span.count > 0)
            .map(|(stay, _)| stay.page)
            .collect();
        let both = full.intersection(&records.seen).count();
        streams.page_sets = (records.seen.len(), full.len(), both);
        let named = streams.pages.iter().zip(&streams.spans);
        let mut named: Vec<u32> = named.filter(|p| p.1.count > 0).map(|p| *p.0).collect();
        named.sort_unstable();
        named.dedup();
        streams.footprint = named.len() as u64;
        Ok(streams)
    }

    /// Learns where in the stream each stay's references lie.
    fn look(&mut self) -> Result<()> {
        let mut spans = std::mem::take(&mut self.spans);
        let (mut place, mut begun) = (0u32, 0u32);
        self.references = self.read(|stay, _| {
            let span = spans.get_mut(stay).ok_or("it has no such stay")?;
            begun = begun.max(stay as u32 + 1);
            place = place.checked_add(1).ok_or("it is too long")?;
            *span = Span {
                count: span.count.saturating_add(1),
                last: place,
                begun,
            };
            Ok(())
        })?;
        self.spans = spans;
        Ok(())
    }

    fn read(&self, each: impl FnMut(usize, bool) -> Result<(), String>) -> Result<u64> {
        let file = File::open(&self.path)
            .with_context(|| format!("{} is missing", self.path.display()))?;
        let input = BufReader::with_capacity(1 << 20, zstd::Decoder::new(file)?);
        stream::read(input, each).map_err(|e| anyhow!("{}: {e}", self.path.display()))
    }

    /// The pages that were freed, for [`Before::stay`].
    fn before(&self) -> Before<'_> {
        Before { left: &self.freed }
    }

    /// Hands all references on, and the pages that are freed, in order.
    ///
    /// # Errors
    ///
    /// As reading.
    pub fn full(&self, mut to: impl FnMut(&[Access])) -> Result<()> {
        let mut block = Vec::with_capacity(1 << 15);
        let mut freed = self.before();
        self.read(|stay, write| {
            for page in freed.stay(stay) {
                block.push(Access::free(page));
            }
            let page = CanonPage(*self.pages.get(stay).ok_or("it has no such stay")?);
            block.push(Access::reference(page, write));
            if block.len() >= 1 << 15 {
                to(&block);
                block.clear();
            }
            Ok(())
        })?;
        block.extend(freed.rest().map(Access::free));
        to(&block);
        Ok(())
    }

    /// The first and the last reference of each stay, where they are.
    ///
    /// # Errors
    ///
    /// As reading.
    pub fn ends(&self) -> Result<Vec<Access>> {
        let mut ends = Vec::with_capacity(2 * self.pages.len());
        let mut begun = vec![false; self.pages.len()];
        let mut place = 0;
        let mut freed = self.before();
        self.read(|stay, write| {
            ends.extend(freed.stay(stay).map(Access::free));
            place += 1;
            let first = !std::mem::replace(&mut begun[stay], true);
            if first || self.spans[stay].last == place {
                let page = CanonPage(self.pages[stay]);
                ends.push(Access::reference(page, write));
            }
            Ok(())
        })?;
        ends.extend(freed.rest().map(Access::free));
        Ok(ends)
    }

    /// The records, each counted twice, and a reference in the middle of that of
    /// `parts` equal parts of a stay in which its last one falls: what a kernel could
    /// tell that looks at accessed bits so many times in a stay.
    ///
    /// A stay ends when its page is freed, so no such reference comes after that.
    pub fn parts(&self, parts: u64) -> Vec<Access> {
        let mut later: Vec<(u64, CanonPage)> = Vec::new();
        // Names are given once, so a page is freed at most once.
        let ends: HashMap<CanonPage, u32> = self.freed.iter().map(|f| (f.page, f.after)).collect();
        for (i, (&page, span)) in (0u64..).zip(self.pages.iter().zip(&self.spans)) {
            let after = u64::from(span.begun).saturating_sub(i + 1);
            if after > 0 {
                let part = (after * parts / self.n).min(parts - 1);
                let at = i + (2 * part + 1) * self.n / (2 * parts);
                let page = CanonPage(page);
                let last = ends.get(&page).map_or(u64::MAX, |&end| u64::from(end) - 1);
                later.push((at.min(last), page));
            }
        }
        later.sort_by_key(|l| l.0);
        let mut later = later.into_iter().peekable();
        let mut all = Vec::with_capacity(3 * self.pages.len());
        let hit = |page| Access::reference(page, false);
        let mut freed = self.before();
        for (i, &page) in (0..).zip(&self.pages) {
            all.extend(freed.stay(i as usize).map(Access::free));
            all.extend([hit(CanonPage(page)); 2]);
            while let Some((_, page)) = later.next_if(|l| l.0 <= i) {
                all.push(hit(page));
            }
        }
        all.extend(later.map(|(_, page)| hit(page)));
        all.extend(freed.rest().map(Access::free));
        all
    }

    /// Fails unless the trace and the full stream have the same pages.
    ///
    /// # Errors
    ///
    /// How many are in common.
    pub fn same_pages(&self) -> Result<()> {
        let (trace, full, both) = self.page_sets;
        ensure!(
            trace == both && full == both && both > 0,
            "the trace has {trace} pages, all references are to {full}, and {both} are in both"
        );
        Ok(())
    }
}

/// Pages that were freed, each before the first reference of a later stay.
///
/// The stream of all references has no events. Between an event and the next stay, only members
/// of the set are referenced, so the misses of memories of 2 N pages and more are those of the
/// exact place.
struct Before<'f> {
    left: &'f [Freed],
}

impl Before<'_> {
    /// Those that are to be handed on before a reference of this stay.
    fn stay(&mut self, stay: usize) -> impl Iterator<Item = CanonPage> {
        let n = self.left.iter().take_while(|f| f.after as usize <= stay);
        let (now, left) = self.left.split_at(n.count());
        self.left = left;
        now.iter().map(|f| f.page)
    }

    /// Those that are left at the end.
    fn rest(&mut self) -> impl Iterator<Item = CanonPage> {
        self.stay(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stream's references are to stays of three pages; N is 4.
    fn streams(references: &[usize], dir: &Path) -> Streams {
        let path = dir.join("references.zst");
        let out = zstd::Encoder::new(File::create(&path).unwrap(), 1).unwrap();
        let mut writer = stream::Writer::new(out);
        for &stay in references {
            writer.reference(stay, false);
        }
        writer.finish().unwrap().finish().unwrap();
        let mut streams = Streams {
            n: 4,
            plain: Vec::new(),
            filled: Vec::new(),
            references: 0,
            certificate: None,
            footprint: 0,
            page_sets: (0, 0, 0),
            pages: vec![1, 2, 3, 1],
            freed: Vec::new(),
            spans: vec![Span::default(); 4],
            path,
        };
        streams.look().unwrap();
        streams
    }

    fn pages(accesses: &[Access]) -> Vec<u32> {
        accesses.iter().map(|a| a.page.0).collect()
    }

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("fidelity-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn references_by_their_stays() {
        let dir = scratch("stays");
        let s = streams(&[0, 1, 0, 2, 0, 1, 3, 2, 3], &dir);
        let mut all = Vec::new();
        s.full(|block| all.extend(pages(block))).unwrap();
        assert_eq!(all, [1, 2, 1, 3, 1, 2, 1, 3, 1]);
        assert_eq!(s.references, 9);
        // But the third: it is neither stay 0's first nor its last.
        assert_eq!(pages(&s.ends().unwrap()), [1, 2, 3, 1, 2, 1, 3, 1]);
        // Stays 0, 1 and 2 were referenced last after 2, 1 and 1 more had come.
        assert_eq!(pages(&s.parts(2)), [1, 1, 2, 2, 3, 3, 2, 1, 1, 1, 3]);
        assert_eq!(pages(&s.parts(4)), [1, 1, 2, 2, 3, 3, 1, 2, 1, 1, 3]);
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// A page is freed before the first reference of a stay that began later, in each stream,
    /// and is not referenced after that.
    #[test]
    fn freed_pages_come_between_the_stays() {
        let dir = scratch("freed");
        let mut s = streams(&[0, 1, 0, 2, 1, 2, 3, 2, 3], &dir);
        let page = CanonPage;
        s.pages = vec![1, 2, 3, 4];
        s.freed = vec![
            Freed {
                after: 2,
                page: page(1),
            },
            Freed {
                after: 4,
                page: page(2),
            },
        ];
        let signed = |accesses: &[Access]| -> Vec<i64> {
            let sign = |a: &Access| if a.is_reference() { 1 } else { -1 };
            accesses
                .iter()
                .map(|a| sign(a) * i64::from(a.page.0))
                .collect()
        };
        let mut all = Vec::new();
        s.full(|block| all.extend(signed(block))).unwrap();
        assert_eq!(all, [1, 2, 1, -1, 3, 2, 3, 4, 3, 4, -2]);
        assert_eq!(signed(&s.ends().unwrap()), [1, 2, 1, -1, 3, 2, 4, 3, 4, -2]);
        // The middle of the first half of stay 0 would be after it has ended.
        s.n = 16;
        assert_eq!(signed(&s.parts(2))[..7], [1, 1, 2, 2, 1, -1, 3]);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_page_that_is_missing_on_either_side_is_found() {
        let dir = scratch("sets");
        let mut s = streams(&[0, 1, 2, 3], &dir);
        for (sets, same) in [
            ((3, 3, 3), true),
            ((4, 3, 3), false),
            ((3, 4, 3), false),
            ((3, 3, 2), false),
            ((0, 0, 0), false),
        ] {
            s.page_sets = sets;
            assert_eq!(s.same_pages().is_ok(), same, "{sets:?}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_stay_that_no_record_has_is_refused() {
        let dir = scratch("short");
        let mut s = streams(&[0, 1], &dir);
        s.spans.truncate(1);
        assert!(s.look().unwrap_err().to_string().contains("no such stay"));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
