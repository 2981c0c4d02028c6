//! The curve in chunks against a stack that is searched from its top, and against merges that are
//! wrong on purpose.

use proptest::prelude::*;

use super::*;
use crate::sim::{Kind, LruCurve};
use crate::units::CanonPage;

/// The stack from its top: a page and the smallest size, less one, in which the page is dirty,
/// or `None` for a hole. Each access searches it.
#[derive(Default)]
struct Naive {
    stack: Vec<Option<(CanonPage, Option<usize>)>>,
    references: u64,
    cold: u64,
    hits: Vec<u64>,
    write_backs: Vec<u64>,
}

impl Naive {
    /// The sizes below a place have replaced the page there, and those of them in which it was
    /// dirty have written it back.
    fn replace(&mut self, place: usize, dirty_from: Option<usize>) -> Option<usize> {
        let from = dirty_from?;
        self.write_backs.resize(self.stack.len(), 0);
        (from..place).for_each(|size| self.write_backs[size] += 1);
        Some(from.max(place))
    }

    fn access(&mut self, access: Access) {
        let is_page = |entry: &Option<(CanonPage, _)>| entry.is_some_and(|e| e.0 == access.page);
        let place = self.stack.iter().position(is_page);
        let hole = self.stack.iter().position(Option::is_none);
        let mut dirty_from = None;
        if let Some(place) = place {
            dirty_from = self.stack[place].and_then(|entry| entry.1);
            dirty_from = self.replace(place, dirty_from);
        }
        if access.kind == Kind::Free {
            if let Some(place) = place {
                self.stack[place] = None;
            }
            return;
        }
        self.references += 1;
        match (place, hole) {
            (Some(place), Some(hole)) if hole < place => {
                self.stack[place] = None;
                self.stack.remove(hole);
            }
            (Some(place), _) => drop(self.stack.remove(place)),
            (None, Some(hole)) => drop(self.stack.remove(hole)),
            (None, None) => {}
        }
        if access.kind == Kind::Write {
            dirty_from = Some(0);
        }
        self.stack.insert(0, Some((access.page, dirty_from)));
        self.hits.resize(self.stack.len(), 0);
        match place {
            Some(place) => self.hits[place] += 1,
            None => self.cold += 1,
        }
    }

    fn curve(mut self) -> Curve {
        let places = self.stack.len();
        self.write_backs.resize(places, 0);
        let mut dirty_left = vec![0; places];
        for place in 0..places {
            let dirty_from = self.stack[place].and_then(|entry| entry.1);
            if let Some(from) = self.replace(place, dirty_from) {
                (from..places).for_each(|size| dirty_left[size] += 1);
            }
        }
        Curve {
            references: self.references,
            cold: self.cold,
            hits_from: self.hits,
            write_backs: Some(self.write_backs),
            dirty_left,
        }
    }
}

fn naive(accesses: &[Access]) -> Curve {
    let mut naive = Naive::default();
    accesses.iter().for_each(|&access| naive.access(access));
    naive.curve()
}

fn whole(accesses: &[Access]) -> Curve {
    let mut curve = LruCurve::default();
    curve.references(accesses);
    curve.curve()
}

fn in_chunks(capacity: usize, threads: usize, accesses: &[Access]) -> Curve {
    let mut curve = LruChunks::of(capacity);
    curve.use_threads(threads);
    curve.references(accesses);
    curve.curve()
}

/// References to pages near and far, of which some write, and ends of pages: none, few or many.
fn accesses(pages: u32, most: usize) -> impl Strategy<Value = Vec<Access>> {
    let step = (0..16u8, 0..pages, any::<bool>());
    (prop::collection::vec(step, 0..most), 0..4u8).prop_map(move |(steps, freeing)| {
        let access = |(kind, page, write): (u8, u32, bool)| {
            let near = CanonPage(1 + page % (pages / 4).max(1));
            let any = CanonPage(1 + page);
            match kind {
                _ if kind < freeing => Access::free(any),
                0..=8 => Access::reference(near, write),
                _ => Access::reference(any, write),
            }
        };
        steps.into_iter().map(access).collect()
    })
}

/// A loop over so many pages, twice.
fn two_rounds(pages: u32) -> Vec<Access> {
    let pages = (0..2 * pages).map(|i| CanonPage(1 + i % pages));
    pages.map(|page| Access::reference(page, false)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn as_a_stack_that_is_searched(
        accesses in accesses(24, 200),
        capacity in 1..70usize,
    ) {
        let expected = naive(&accesses);
        prop_assert_eq!(&whole(&accesses), &expected);
        for capacity in [1, 2, capacity] {
            prop_assert_eq!(&in_chunks(capacity, 1, &accesses), &expected, "{}", capacity);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// With pages in many blocks of the window.
    #[test]
    fn as_the_whole(
        accesses in accesses(3000, 12_000),
        capacity in 1..5000usize,
        threads in 1..5usize,
    ) {
        prop_assert_eq!(in_chunks(capacity, threads, &accesses), whole(&accesses));
    }
}

/// Threads begin with the first chunk of the largest size, and are not many.
#[test]
fn threads_are_few_and_begin_late() {
    let mut curve = LruChunks::default();
    curve.use_threads(1000);
    curve.references(&two_rounds(CHUNK as u32 / 4));
    assert!(matches!(curve.0.get_mut().place, Where::Here(_)));
    assert_eq!(curve.0.get_mut().threads, MOST_THREADS);
    curve.references(&two_rounds(2 * CHUNK as u32));
    assert!(matches!(curve.0.get_mut().place, Where::Threads(_)));
}

/// The curve can be asked for at any time, and then goes on.
#[test]
fn a_curve_on_the_way_changes_nothing() {
    let accesses = two_rounds(1000);
    for threads in [1, 3] {
        let mut curve = LruChunks::of(64);
        curve.use_threads(threads);
        for (i, part) in accesses.chunks(99).enumerate() {
            curve.references(part);
            let upto = (99 * (i + 1)).min(accesses.len());
            assert_eq!(curve.curve(), whole(&accesses[..upto]));
        }
    }
}

/// A window that is moved together and grows, with the largest chunks.
#[test]
fn over_many_windows() {
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let accesses: Vec<Access> = (0..1_000_000u32)
        .map(|i| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let page = CanonPage(1 + (random >> 20) as u32 % (1000 + i / 8));
            match random & 31 {
                0 => Access::free(page),
                1..=9 => Access::reference(page, true),
                _ => Access::reference(page, false),
            }
        })
        .collect();
    let expected = whole(&accesses);
    assert!(expected.footprint() > 50_000, "{}", expected.footprint());
    for (capacity, threads) in [(chunk::MOST, 1), (chunk::MOST, 2), (1000, 3)] {
        assert!(
            in_chunks(capacity, threads, &accesses) == expected,
            "{capacity}"
        );
    }
}

/// A chunk of the largest size with nothing but new pages, twice: numbers of 16 bits suffice.
#[test]
fn the_largest_chunk_of_new_pages() {
    let pages = chunk::MOST as u32;
    let mut curve = LruChunks::of(chunk::MOST);
    curve.0.get_mut().cutter.capacity = chunk::MOST;
    curve.references(&two_rounds(pages));
    let curve = curve.curve();
    assert_eq!(curve.cold, u64::from(pages));
    assert_eq!(curve.hits_from.last(), Some(&u64::from(pages)));
}

/// Steps of a chunk through all stages, but for one that a test leaves out or replaces.
fn with_stages(
    accesses: &[Access],
    order: impl Fn(&mut [usize]),
    complete: impl Fn(&mut Work),
) -> Curve {
    let chunks: Vec<&[Access]> = accesses.chunks(500).collect();
    let mut numbers: Vec<usize> = (0..chunks.len()).collect();
    order(&mut numbers);
    let (mut stack, mut counts) = (Stack::default(), Counts::default());
    let mut work = Work::default();
    for number in numbers {
        work.chunk.compute(chunks[number]);
        work.merge(&mut stack);
        complete(&mut work);
        work.count(&mut counts);
    }
    counts.into_curve(stack)
}

/// The negative control: each stage is needed, in its order.
#[test]
fn a_wrong_merge_is_noticed() {
    // There and back: each step takes a mark from above the next step's page. The other pages make
    // room for distances that are too large.
    let others = 2001..=6000;
    let pages = others.chain(1..=2000).chain((1..=2000).rev());
    let accesses: Vec<Access> = pages
        .map(|page| Access::reference(CanonPage(page), false))
        .collect();
    let expected = naive(&accesses);
    let right = |work: &mut Work| work.complete();
    assert_eq!(with_stages(&accesses, |_| (), right), expected);
    // What earlier steps of the chunk have taken away is not looked at.
    let wrong = with_stages(&accesses, |_| (), |_| ());
    assert_ne!(wrong.hits_from, expected.hits_from);
    // The steps are in another order.
    let reversed = |work: &mut Work| {
        work.found.reverse();
        work.complete();
        work.found.reverse();
    };
    let wrong = with_stages(&accesses, |_| (), reversed);
    assert_ne!(wrong.hits_from, expected.hits_from);
    // Chunks are merged in another order.
    let wrong = with_stages(&accesses, |numbers| numbers.swap(9, 10), right);
    assert_ne!(wrong.hits_from, expected.hits_from);
}

/// The stretches that end at these places, each as it comes back from bytes.
fn stretches(accesses: &[Access], cuts: &[usize], capacity: usize) -> Vec<LruStretch> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (accesses.len() + 1)).collect();
    cuts.extend([0, accesses.len()]);
    cuts.sort_unstable();
    let pairs = cuts.windows(2);
    let stretch = |pair: &[usize]| {
        let mut of = Stretches::of(capacity);
        of.references(&accesses[pair[0]..pair[1]]);
        let stretch = of.finish();
        let back = LruStretch::from_bytes(&stretch.to_bytes());
        assert_eq!(back.as_ref(), Ok(&stretch));
        stretch
    };
    pairs.map(stretch).collect()
}

fn put_together<'s>(stretches: impl IntoIterator<Item = &'s LruStretch>) -> LruStretch {
    let mut all = Stretches::default();
    for stretch in stretches {
        all.stretch(stretch).unwrap();
    }
    all.finish()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// However the references are cut, and in whatever order neighbours are put together.
    #[test]
    fn stretches_are_the_whole(
        accesses in accesses(24, 200),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
        capacity in 1..70usize,
        groups in 1..4usize,
    ) {
        let expected = naive(&accesses);
        let stretches = stretches(&accesses, &cuts, capacity);
        let all = put_together(&stretches);
        prop_assert_eq!(&all.clone().into_curve(), &expected);
        // References before the first stretch are one as well.
        let of_groups: Vec<_> = stretches.chunks(groups).map(put_together).collect();
        prop_assert_eq!(&put_together(&of_groups), &all);
        let mut one = Stretches::of(capacity);
        one.references(&accesses);
        prop_assert_eq!(&one.finish(), &all);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// With pages in many blocks of the window.
    #[test]
    fn long_stretches_are_the_whole(
        accesses in accesses(3000, 12_000),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
        capacity in 1..5000usize,
    ) {
        let stretches = stretches(&accesses, &cuts, capacity);
        prop_assert_eq!(put_together(&stretches).into_curve(), whole(&accesses));
    }
}

/// With more steps than are applied at a time; and the negative control: in another order, the stretches
/// are another curve.
#[test]
fn stretches_of_many_pages_have_an_order() {
    // There and back, so that each step takes a mark from above the next step's page.
    let pages = (1..=200_000u32)
        .chain((1..=100_000).rev())
        .chain(50_000..=150_000);
    let accesses: Vec<Access> = pages
        .enumerate()
        .map(|(i, page)| match i % 13 {
            0 => Access::free(CanonPage(page)),
            i => Access::reference(CanonPage(page), i % 3 == 0),
        })
        .collect();
    let mut stretches = stretches(&accesses, &[150_000, 290_000], 1000);
    assert!(
        stretches
            .iter()
            .all(|stretch| stretch.steps.len() > 1 << 15)
    );
    let expected = whole(&accesses);
    assert!(put_together(&stretches).into_curve() == expected);
    stretches.swap(0, 1);
    assert!(put_together(&stretches).into_curve() != expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Bytes with a checksum that fits, but wrong content, are refused, or have a curve.
    #[test]
    fn hostile_stretches_are_refused(
        accesses in accesses(12, 60),
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4),
        length in any::<usize>(),
        shorter in any::<bool>(),
    ) {
        let mut of = Stretches::of(8);
        of.references(&accesses);
        let mut bytes = of.finish().to_bytes();
        for (at, value) in changes {
            let at = 12 + at % (bytes.len() - 12);
            bytes[at] = value;
        }
        if shorter {
            bytes.truncate(12 + length % (bytes.len() - 12));
        }
        let crc = crc32c::crc32c(&bytes[12..]).to_le_bytes();
        bytes[8..12].copy_from_slice(&crc);
        if let Ok(stretch) = LruStretch::from_bytes(&bytes) {
            let mut all = Stretches::of(8);
            all.references(&accesses);
            all.stretch(&stretch).unwrap();
            all.references(&accesses);
            all.stretch(&stretch).unwrap();
            all.finish().into_curve();
            stretch.into_curve();
        }
        bytes[8] ^= 1;
        prop_assert_eq!(LruStretch::from_bytes(&bytes), Err(Malformed));
    }
}

/// The bytes are those of this version, whose number changes with them.
#[test]
fn the_form_of_bytes_has_a_version() {
    let mut of = Stretches::of(3);
    of.references(&[
        Access::reference(CanonPage(7), true),
        Access::reference(CanonPage(300), false),
        Access::reference(CanonPage(7), false),
        Access::free(CanonPage(300)),
        Access::reference(CanonPage(5), true),
    ]);
    let bytes = of.finish().to_bytes();
    assert_eq!(&bytes[..8], b"VMTlru\0\x01");
    let (crc, rest) = bytes[8..].split_at(4);
    assert_eq!(crc, crc32c::crc32c(rest).to_le_bytes());
    assert_eq!(rest, BYTES);
}

/// Two places, four references, none to a page that is known to be new; no hole; one hit at distance 2; write-backs
/// in size 1; and the steps of the pages 7, 300, which was freed, and 5, which has filled its hole.
const BYTES: &[u8] = &[
    2, 4, 0, 0, 1, 1, 2, 2, 0, 2, 1, 1, 3, 48, 14, 0, 0, 1, 24, 202, 4, 1, 52, 205, 4, 2, 0, 0,
];
