//! What was referenced: all accesses of a run, as the oracle's plugin has seen them.
//!
//! The plugin models a set in which all pages have room ([`SHAPE`]), whatever the observer does. A stay of
//! that model is a page of an address space, so the stream of references has the pages without any help of
//! the observer. The references have times.

use super::score::{Grid, Place, Report, Uses};
use crate::fidelity;
use crate::machine::Outcome;
use crate::oracle;
use ::oracle::log::Log;
use ::oracle::model::Shape;
use ::oracle::stream::{self, Item};
use ::postproc::sim::{Access, Curve};
use ::postproc::units::CanonPage;
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::BufReader;

/// The model's set.
pub const SHAPE: Shape = Shape::fifo(1 << 22);

/// Address spaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spaces {
    /// All but these.
    AllBut(BTreeSet<u32>),
    /// One.
    Only(u32),
}

impl Spaces {
    /// Whether an address space is among them.
    pub fn has(&self, mm: u32) -> bool {
        match self {
            Spaces::AllBut(others) => !others.contains(&mm),
            Spaces::Only(one) => *one == mm,
        }
    }
}

/// Whose references count, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scope {
    /// Those of these address spaces.
    pub spaces: Spaces,
    /// From this time on, ns.
    pub from: u64,
    /// To this time, ns.
    pub to: u64,
    /// The kernel disabled no page, because it recorded no references. So pages are accessed that no fault
    /// has made members of a set. The plugin then finds them at their first access.
    pub quiet: bool,
}

impl Scope {
    /// All references of these address spaces.
    pub fn of(spaces: Spaces) -> Self {
        Scope {
            spaces,
            from: 0,
            to: u64::MAX,
            quiet: false,
        }
    }

    /// All references.
    pub fn all() -> Self {
        Scope::of(Spaces::AllBut(BTreeSet::new()))
    }
}

/// All references of a run that are in a scope.
pub struct Truth {
    /// The pages, by number.
    pub names: Vec<Place>,
    /// The uses of each grid.
    pub uses: Vec<Uses>,
    /// The misses under LRU.
    pub lru: Curve,
    /// References.
    pub references: u64,
    /// When the first one was made, and the last one, ns.
    pub span: [u64; 2],
}

/// References that LRU takes in blocks.
struct Block<'b> {
    accesses: Vec<Access>,
    to: &'b mut dyn FnMut(&[Access]),
}

impl Block<'_> {
    fn add(&mut self, page: u32) {
        // There is no canonical page 0.
        let page = CanonPage(page + 1);
        self.accesses.push(Access::reference(page, false));
        if self.accesses.len() >= 1 << 15 {
            self.hand_on();
        }
    }

    fn hand_on(&mut self) {
        (self.to)(&self.accesses);
        self.accesses.clear();
    }
}

impl Truth {
    /// Reads a run's references, and finds the uses by each of the grids.
    ///
    /// # Errors
    ///
    /// If the plugin left nothing that can be read, an access was not seen as it should be, or there are
    /// no references.
    pub fn read(out: &Outcome, scope: &Scope, grids: &[Grid]) -> Result<Self> {
        let log = File::open(oracle::last_log(out)).context("the plugin left no log")?;
        let log = Log::read(&mut BufReader::new(log)).map_err(|e| anyhow!("{e}"))?;
        let counts = &log.counts;
        let expected = match scope.quiet {
            // Of each address space, the plugin says once that it has no set.
            true => (0, counts.escaped, counts.spaces),
            false => (0, 0, 0),
        };
        ensure!(
            (counts.early, counts.escaped, counts.confused) == expected,
            "the plugin could not follow all accesses: {:?}\n{}",
            log.counts,
            log.notes
        );
        // Of each stay, its page's number.
        let mut numbers: HashMap<Place, u32> = HashMap::new();
        let mut places: Vec<Place> = Vec::new();
        let stays: Vec<u32> = log
            .stays
            .iter()
            .map(|stay| {
                let place = Place {
                    mm: stay.page.mm,
                    vpn: stay.page.addr >> 12,
                };
                *numbers.entry(place).or_insert_with(|| {
                    places.push(place);
                    places.len() as u32 - 1
                })
            })
            .collect();
        let in_scope: Vec<bool> = places.iter().map(|p| scope.spaces.has(p.mm)).collect();
        let mut named: Vec<Option<u32>> = vec![None; places.len()];
        let mut names: Vec<Place> = Vec::new();
        let mut uses: Vec<Uses> = grids.iter().map(|_| Uses::default()).collect();
        let (mut references, mut span) = (0, [u64::MAX, 0]);
        let path = oracle::stream(out);
        let lru = fidelity::lru(|to| {
            let file = File::open(&path).with_context(|| path.display().to_string())?;
            let input = BufReader::with_capacity(1 << 20, zstd::Decoder::new(file)?);
            let mut block = Block {
                accesses: Vec::with_capacity(1 << 15),
                to,
            };
            let (mut time, mut last) = (0, None);
            let mut intervals: Vec<usize> = vec![0; grids.len()];
            let item = |item: Item| -> Result<(), String> {
                let (stay, kernel) = match item {
                    Item::Time(now) => {
                        time = now;
                        let grids = intervals.iter_mut().zip(grids);
                        grids.for_each(|(interval, grid)| *interval = grid.interval(now));
                        return Ok(());
                    }
                    Item::Reference { stay, kernel, .. } => (stay, kernel),
                };
                let page = *stays.get(stay).ok_or("it has no such stay")? as usize;
                let (Some(place), Some(number)) = (places.get(page), named.get_mut(page)) else {
                    return Err("it has no such page".into());
                };
                let counts = in_scope.get(page).is_some_and(|is| *is);
                if !counts || !(scope.from..=scope.to).contains(&time) {
                    return Ok(());
                }
                let page = *number.get_or_insert_with(|| {
                    names.push(*place);
                    names.len() as u32 - 1
                });
                references += 1;
                span = [span[0].min(time), time];
                for (uses, interval) in uses.iter_mut().zip(&intervals) {
                    uses.reference(page, *interval, kernel);
                }
                // A page that is referenced again at once is a hit in each memory.
                if last.replace(page) != Some(page) {
                    block.add(page);
                }
                Ok(())
            };
            stream::read_all(input, item).map_err(|e| anyhow!("{}: {e}", path.display()))?;
            block.hand_on();
            Ok(())
        })?;
        ensure!(references > 0, "nothing was referenced");
        Ok(Truth {
            names,
            uses,
            lru,
            references,
            span,
        })
    }

    /// LRU's misses if the pages of the reports are the references, in their order. Of a region, only
    /// pages count that were referenced at some time.
    ///
    /// # Errors
    ///
    /// If there is no LRU.
    pub fn lru_of(&self, reports: &[Report]) -> Result<Curve> {
        let mut sorted: Vec<(Place, u32)> = self.names.iter().copied().zip(0..).collect();
        sorted.sort_unstable();
        let mut others: HashMap<Place, u32> = HashMap::new();
        fidelity::lru(|to| {
            let mut block = Block {
                accesses: Vec::with_capacity(1 << 15),
                to,
            };
            for r in reports {
                let from = sorted.partition_point(|(place, _)| *place < r.at);
                let within = |place: &Place| {
                    place.mm == r.at.mm && place.vpn < r.at.vpn.saturating_add(r.pages)
                };
                let mut none = true;
                for (_, page) in sorted[from..].iter().take_while(|(p, _)| within(p)) {
                    block.add(*page);
                    none = false;
                }
                if none && r.pages == 1 {
                    let next = (sorted.len() + others.len()) as u32;
                    block.add(*others.entry(r.at).or_insert(next));
                }
            }
            block.hand_on();
            Ok(())
        })
    }
}
