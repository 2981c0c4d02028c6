//! A run's two streams of references: all that there were, and what the trace has.

use ::oracle::log::Log;
use ::oracle::model::Access::Write;
use ::oracle::model::{Page, Stay};
use ::oracle::stream;
use ::postproc::canon::PageMode;
use ::postproc::pipeline::{self, Batch, Consumer, Freeing, Outcome, Place, Unwatched, World};
use ::postproc::sim::{Access, Certificate, Certifier, Filler};
use ::postproc::trace::{Damage, Ref, Trace};
use ::postproc::units::{self, CanonPage};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::{BTreeMap, HashMap, HashSet};
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

/// Whose references are looked at. All others are left out of both streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// Those of all address spaces, in one memory.
    All,
    /// Those to one set, of a trace of several.
    Set(u32),
    /// Those of one address space, whatever its set.
    Space(u32),
}

impl Whose {
    fn has(self, set: u32, mm: u32) -> bool {
        match self {
            Whose::All => true,
            Whose::Set(one) => one == set,
            Whose::Space(one) => one == mm,
        }
    }

    fn has_record(self, r: &Ref) -> bool {
        self.has(r.set, r.mm.0)
    }

    /// The set by whose number postproc certifies these references, if it takes one.
    fn set(self) -> Option<u32> {
        match self {
            Whose::Set(set) => Some(set),
            Whose::All | Whose::Space(_) => None,
        }
    }
}

/// Gives a certifier some of the references, and does not tell it that there are others. So the
/// result is what the bounds were if these references were all of those to one set of N pages.
struct Alone {
    whose: Whose,
    inner: Certifier,
}

impl Consumer for Alone {
    fn begin(&mut self, trace: &Trace) -> ::postproc::error::Result<()> {
        self.inner.begin(trace)
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>) -> ::postproc::error::Result<()> {
        let mut from = 0;
        let same = |a: &Ref, b: &Ref| self.whose.has_record(a) == self.whose.has_record(b);
        for run in batch.refs.chunk_by(same) {
            let part = from..from + run.len();
            from = part.end;
            if run.first().is_some_and(|r| self.whose.has_record(r)) {
                self.inner.references(&Batch {
                    refs: run,
                    places: &batch.places[part.clone()],
                    pages: &batch.pages[part],
                    world: batch.world,
                })?;
            }
        }
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], world: &World) -> ::postproc::error::Result<()> {
        self.inner.freed(pages, world)
    }

    fn damage(&mut self, damage: &Damage) -> ::postproc::error::Result<()> {
        self.inner.damage(damage)
    }

    /// In `finish`, the certifier would find the other sets. So this calls `complete` only.
    fn finish(&mut self, _trace: &Trace, _outcome: &Outcome) -> ::postproc::error::Result<()> {
        self.inner.complete();
        Ok(())
    }
}

/// What a trace has of an address space.
#[derive(Clone, Default, Debug)]
pub struct Known {
    /// Its set.
    pub set: u32,
    /// The process that made its last record, by name.
    pub comm: String,
    /// Distinct addresses of pages.
    pub pages: u64,
}

#[derive(Default)]
struct Survey {
    found: BTreeMap<u32, Known>,
    seen: HashSet<Page>,
}

impl Consumer for Survey {
    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>) -> ::postproc::error::Result<()> {
        for r in batch.refs {
            let known = self.found.entry(r.mm.0).or_default();
            known.set = r.set;
            known.pages += u64::from(self.seen.insert(Page {
                mm: r.mm.0,
                addr: r.address(),
            }));
            let tasks = &batch.world.tasks;
            if let Some(process) = tasks.find(r.tid()).map(|id| tasks.process(id)) {
                if known.comm != process.comm {
                    known.comm.clone_from(&process.comm);
                }
            }
        }
        Ok(())
    }
}

/// The address spaces of a trace, by their numbers.
///
/// # Errors
///
/// If the trace can't be read.
pub fn survey(trace: &Path) -> Result<BTreeMap<u32, Known>> {
    let trace = Trace::open(trace)?;
    let mut survey = Survey::default();
    let (mode, kept) = (PageMode::Virtual, Freeing::Kept);
    pipeline::run_with(&trace, mode, kept, &mut Unwatched, &mut [&mut survey])?;
    Ok(survey.found)
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
    whose: Whose,
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
        for ((r, place), &page) in all.filter(|((r, _), _)| self.whose.has_record(r)) {
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
    /// kernel was taken away, or if the references are to several sets.
    pub certificate: Option<Certificate>,
    /// What the bounds were if these references were all of those to one set; none if a protection
    /// was taken away.
    pub alone: Option<Certificate>,
    /// Pages (by address space and address) in the trace, in the full stream, and in
    /// both.
    pub page_sets: (usize, usize, usize),
    /// Pages as they are named, by record of the model.
    pages: Vec<u32>,
    /// Pages that were freed, in order.
    freed: Vec<Freed>,
    spans: Vec<Span>,
    /// Of each stay, whether the access that faulted was a store.
    stores: Vec<bool>,
    /// Of each record of the model, its place among those that count, or [`OTHERS`].
    places: Vec<u32>,
    path: PathBuf,
}

/// The place of a record that does not count.
const OTHERS: u32 = u32::MAX;

/// The stays of a log that count, and of all its stays the places.
fn chosen(log: &Log, whose: Whose) -> (Vec<&Stay>, Vec<u32>) {
    let sets: HashMap<u32, u32> = log.sets.iter().copied().collect();
    let mut stays = Vec::new();
    let places = log.stays.iter().map(|stay| {
        let mm = stay.page.mm;
        if !whose.has(sets.get(&mm).copied().unwrap_or(0), mm) {
            return OTHERS;
        }
        stays.push(stay);
        stays.len() as u32 - 1
    });
    let places = places.collect();
    (stays, places)
}

impl Streams {
    /// Reads a run's trace, log and stream.
    ///
    /// # Errors
    ///
    /// What can't be read, or does not fit together.
    pub fn load(
        trace: &Path,
        log: &Path,
        path: &Path,
        naming: Naming,
        whose: Whose,
    ) -> Result<Self> {
        let log = Log::read(&mut File::open(log)?).map_err(|e| anyhow!("{e}"))?;
        ensure!(
            log.counts.early == 0,
            "some references came before their address space was traced"
        );
        let trace = Trace::open(trace)?;
        let header = trace.header();
        let n = u64::from(header.evms_size);
        let mut records = Records {
            whose,
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
        let mut certifier = Certifier::of_set(whose.set());
        let inner = Certifier::default();
        let mut alone = Alone { whose, inner };
        let both: &mut [&mut dyn Consumer] = &mut [&mut certifier, &mut alone];
        let passed = pipeline::run_with(&trace, mode, freeing, &mut Unwatched, both)?;
        let several = whose.set().is_none() && passed.world.has_several_sets();
        let certificate = match whose {
            // postproc certifies no address space by itself.
            Whose::Space(_) => None,
            Whose::All | Whose::Set(_) => {
                let certificate = certifier.certificate();
                ensure!(
                    certificate.is_some() == (header.debug_break == 0 && !several),
                    "the trace gives no bounds, or gives some that it cannot give"
                );
                certificate
            }
        };
        let alone = alone.inner.certificate();
        let (stays, places) = chosen(&log, whose);
        let pages = match naming {
            Naming::Canonical => records.pages,
            Naming::Virtual => {
                let stays = stays.iter();
                stays.map(|s| records.names.number(s.page)).collect()
            }
        };
        ensure!(
            pages.len() == stays.len() && !pages.is_empty(),
            "{} records in the trace, and {} in the log",
            pages.len(),
            stays.len()
        );
        let mut streams = Streams {
            n,
            plain: records.plain,
            filled: records.filled,
            references: 0,
            footprint: 0,
            certificate,
            alone,
            page_sets: (0, 0, 0),
            spans: vec![Span::default(); pages.len()],
            pages,
            freed: records.freed,
            stores: stays.iter().map(|s| s.access == Write).collect(),
            places,
            path: path.into(),
        };
        streams.look()?;
        let referenced = stays.iter().zip(&streams.spans);
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
        let unused = self.read(|stay, _| {
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
        for stay in unused {
            spans[stay].count = 0;
        }
        self.references = place.into();
        self.spans = spans;
        Ok(())
    }

    /// Hands on each reference that counts. The first one of each stay is the access that faulted,
    /// and counts where its page was admitted: before the first references of all later stays. A
    /// task may leave the CPU before it repeats that access, and other tasks run meanwhile. If they
    /// admit so many pages that the stay ends, the access is never repeated in the stay. It is a
    /// reference all the same, and faults once more. Returns such stays.
    fn read(
        &self,
        mut each: impl FnMut(usize, bool) -> Result<(), String>,
    ) -> Result<HashSet<usize>> {
        let mut begun = 0;
        // Stays that have begun, and whose faulting access is still to be repeated.
        let mut awaited = HashSet::new();
        let mut begin =
            |until: usize, awaited: &mut HashSet<usize>, each: &mut dyn FnMut(_, _) -> _| {
                for stay in begun..until {
                    awaited.insert(stay);
                    let store = self.stores.get(stay).ok_or("it has no such stay")?;
                    each(stay, *store)?;
                }
                begun = begun.max(until);
                Ok::<_, String>(())
            };
        let file = File::open(&self.path)
            .with_context(|| format!("{} is missing", self.path.display()))?;
        let input = BufReader::with_capacity(1 << 20, zstd::Decoder::new(file)?);
        let made = |stay: usize, store| match self.places.get(stay) {
            None => Err("it has no such stay".into()),
            Some(&OTHERS) => Ok(()),
            Some(&place) => {
                let stay = place as usize;
                begin(stay + 1, &mut awaited, &mut each)?;
                match awaited.remove(&stay) {
                    true => Ok(()),
                    false => each(stay, store),
                }
            }
        };
        let failed = |e| anyhow!("{}: {e}", self.path.display());
        stream::read(input, made).map_err(failed)?;
        begin(self.pages.len(), &mut awaited, &mut each).map_err(failed)?;
        Ok(awaited)
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
            alone: None,
            footprint: 0,
            page_sets: (0, 0, 0),
            pages: vec![1, 2, 3, 1],
            freed: Vec::new(),
            spans: vec![Span::default(); 4],
            stores: vec![false; 4],
            places: (0..4).collect(),
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

    /// The access that faults counts where its page is admitted, before later stays begin, though it
    /// may be repeated later or never. A stay in which it never is shows no page.
    #[test]
    fn an_access_that_faults_counts_at_its_admission() {
        let dir = scratch("admission");
        let mut s = streams(&[1, 0, 1, 0, 1], &dir);
        s.pages = vec![5, 6, 7, 8];
        s.stores = vec![false, true, true, false];
        s.spans = vec![Span::default(); 4];
        s.look().unwrap();
        let mut all = Vec::new();
        s.full(|block| all.extend(block.iter().map(|a| (a.page.0, a.writes()))))
            .unwrap();
        let [mut first, mut rest] = [vec![(5, false), (6, true)], vec![(6, false), (5, false)]];
        rest.extend([(6, false), (7, true), (8, false)]);
        first.extend(rest);
        assert_eq!(all, first);
        let counts: Vec<u32> = s.spans.iter().map(|span| span.count).collect();
        assert_eq!((counts, s.references), (vec![2, 3, 0, 0], 7));
        assert_eq!(pages(&s.ends().unwrap()), [5, 6, 5, 6, 7, 8]);
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// Stays of others are in neither stream, and the stays that are left are counted anew.
    #[test]
    fn references_of_others_are_left_out() {
        let dir = scratch("whose");
        let mut s = streams(&[0, 1, 0, 2, 1, 3, 2], &dir);
        s.places = vec![OTHERS, 0, OTHERS, 1];
        s.pages = vec![7, 9];
        s.stores = vec![false; 2];
        s.spans = vec![Span::default(); 2];
        s.look().unwrap();
        let mut all = Vec::new();
        s.full(|block| all.extend(pages(block))).unwrap();
        assert_eq!((all, s.references), (vec![7, 7, 9], 3));
        assert_eq!(s.spans[1].begun, 2);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn stays_are_chosen_by_set_and_by_address_space() {
        let stay = |mm| Stay {
            page: Page { mm, addr: 0x1000 },
            access: ::oracle::model::Access::Read,
            kernel: false,
            dirtied: false,
            again: false,
            goes_on: false,
            why: 0,
        };
        let log = Log {
            shape: ::oracle::model::Shape::fifo(16),
            counts: ::oracle::log::Counts::default(),
            notes: String::new(),
            stays: [1, 2, 3, 2].map(stay).to_vec(),
            whos: Vec::new(),
            sets: vec![(2, 8), (3, 8)],
        };
        for (whose, places) in [
            (Whose::All, [0, 1, 2, 3]),
            (Whose::Set(8), [OTHERS, 0, 1, 2]),
            (Whose::Set(0), [0, OTHERS, OTHERS, OTHERS]),
            (Whose::Space(2), [OTHERS, 0, OTHERS, 1]),
        ] {
            let (stays, got) = chosen(&log, whose);
            assert_eq!(got, places, "{whose:?}");
            assert_eq!(stays.len(), places.iter().filter(|p| **p != OTHERS).count());
        }
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
