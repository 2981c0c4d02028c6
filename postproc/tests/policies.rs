//! Every policy against a slow model of it: the paper's definition in vectors
//! and searches, without a thought for speed, written apart from the policy.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use postproc::canon::PageMode;
use postproc::pipeline::{self, Consumer, Unwatched};
use postproc::sim::{
    self, Access, Counts, CurveSimulation, Job, Kind, LruChunks, LruCurve, SimulationConsumer,
    Workers,
};
use postproc::testing::TraceBuilder;
use postproc::trace::Trace;
use postproc::units::{CanonPage, Prot};
use proptest::prelude::*;

/// Decides what is in memory; knows the whole future, which most do not use.
///
/// To a model each page is one of its own from its first reference to its end, whatever
/// number it has for the policy.
trait Model {
    /// Page `pages[now]` is referenced. True for a hit; otherwise the page is
    /// loaded and what is replaced is pushed to `replaced`.
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool;
    /// A page that was referenced is freed: it is neither in memory any more nor in any
    /// list of what was replaced.
    fn forget(&mut self, page: u32);
}

fn position(queue: &VecDeque<u32>, page: u32) -> Option<usize> {
    queue.iter().position(|&p| p == page)
}

fn take(queue: &mut VecDeque<u32>, page: u32) -> bool {
    match position(queue, page) {
        Some(at) => queue.remove(at).is_some(),
        None => false,
    }
}

/// A reference to a page, or its end: as models and as policies see it.
#[derive(Clone, Copy, Debug)]
struct Step {
    page: u32,
    access: Access,
}

/// The pages that are referenced, in order.
fn pages(steps: &[Step]) -> Vec<u32> {
    let referenced = steps.iter().filter(|s| s.access.is_reference());
    referenced.map(|s| s.page).collect()
}

fn accesses(steps: &[Step]) -> Vec<Access> {
    steps.iter().map(|s| s.access).collect()
}

/// Counts a model's decisions; gives the counts after each step.
fn play(model: &mut dyn Model, size: usize, steps: &[Step]) -> Vec<Counts> {
    let pages = pages(steps);
    let mut counts = Counts {
        size_pages: size as u64,
        ..Counts::default()
    };
    let mut memory: Vec<(u32, bool)> = Vec::new();
    let mut after = Vec::new();
    let (mut now, mut write_backs) = (0, 0);
    for step in steps {
        let page = step.page;
        if step.access.is_reference() {
            let mut replaced = Vec::new();
            let hit = model.reference(&pages, now, &mut replaced);
            assert_eq!(hit, memory.iter().any(|m| m.0 == page), "model is sound");
            counts.references += 1;
            if !hit {
                counts.misses += 1;
                counts.cold += u64::from(!pages[..now].contains(&page));
            }
            for victim in replaced {
                let at = memory.iter().position(|m| m.0 == victim).unwrap();
                write_backs += u64::from(memory.remove(at).1);
            }
            if !hit {
                memory.push((page, false));
            }
            assert!(memory.len() <= size, "model keeps to its size");
            memory.iter_mut().find(|m| m.0 == page).unwrap().1 |= step.access.writes();
            now += 1;
        } else if pages[..now].contains(&page) {
            model.forget(page);
            memory.retain(|m| m.0 != page);
        }
        counts.write_backs = Some(write_backs);
        counts.dirty_left = memory.iter().filter(|m| m.1).count() as u64;
        after.push(counts);
    }
    after
}

/// The pages that are freed while they are dirty, if nothing replaced them since their last
/// reference: by the step at which they are freed.
fn freed_dirty(size: usize, steps: &[Step]) -> Option<usize> {
    let mut model = MinModel::new(size, steps);
    let all = pages(steps);
    let (mut now, mut dirty) = (0, HashMap::new());
    for (at, step) in steps.iter().enumerate() {
        if step.access.is_reference() {
            let hit = model.reference(&all, now, &mut Vec::new());
            let page = dirty.entry(step.page).or_insert(false);
            *page = step.access.writes() || hit && *page;
            now += 1;
        } else if dirty.remove(&step.page) == Some(true) {
            return Some(at);
        }
    }
    None
}

/// Plays a policy by name and compares all decisions.
fn compare(id: &str, size: usize, steps: &[Step], model: &mut dyn Model) {
    let mut expected = play(model, size, steps);
    if id == "opt" {
        // What OPT has replaced is known at the end, and not even then if a dirty page was
        // freed.
        let unknown = freed_dirty(size, steps).unwrap_or(steps.len());
        for after in &mut expected[unknown..] {
            after.write_backs = None;
        }
    }
    let entry = sim::registry().iter().find(|p| p.id == id).unwrap();
    let mut simulation = (entry.simulate)(size as u64);
    for (now, step) in steps.iter().enumerate() {
        simulation.references(&[step.access]);
        let mut found = simulation.counts();
        if id == "opt" && now + 1 < steps.len() {
            if expected[now].write_backs.is_some() && found.write_backs.is_some() {
                found.write_backs = expected[now].write_backs;
            }
            found.dirty_left = expected[now].dirty_left;
        }
        assert_eq!(
            found, expected[now],
            "{id}, {size} pages, step {now} of {steps:?}"
        );
    }
}

/// Belady 1966: the page goes whose next use is farthest; of those never used again,
/// first those that will be freed, then the one used longest ago.
struct MinModel {
    size: usize,
    memory: Vec<u32>,
    freed: HashSet<u32>,
}

impl MinModel {
    fn new(size: usize, steps: &[Step]) -> Self {
        let freed = steps.iter().filter(|s| !s.access.is_reference());
        MinModel {
            size,
            memory: Vec::new(),
            freed: freed.map(|s| s.page).collect(),
        }
    }
}

impl Model for MinModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        let page = pages[now];
        if self.memory.contains(&page) {
            return true;
        }
        if self.memory.len() == self.size {
            let distance = |page: u32| {
                let last = pages[..now].iter().rposition(|&p| p == page).unwrap();
                match pages[now..].iter().position(|&p| p == page) {
                    Some(ahead) => ahead,
                    None if self.freed.contains(&page) => 3 * pages.len() - last,
                    None => 2 * pages.len() - last,
                }
            };
            let victim = *self.memory.iter().max_by_key(|&&p| distance(p)).unwrap();
            self.memory.retain(|&p| p != victim);
            replaced.push(victim);
        }
        self.memory.push(page);
        false
    }

    fn forget(&mut self, page: u32) {
        self.memory.retain(|&p| p != page);
    }
}

struct FifoModel {
    size: usize,
    queue: VecDeque<u32>,
}

impl Model for FifoModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        if position(&self.queue, pages[now]).is_some() {
            return true;
        }
        if self.queue.len() == self.size {
            replaced.extend(self.queue.pop_front());
        }
        self.queue.push_back(pages[now]);
        false
    }

    fn forget(&mut self, page: u32) {
        take(&mut self.queue, page);
    }
}

/// Least recently used, by looking back.
struct LruModel {
    size: usize,
    memory: Vec<u32>,
}

impl Model for LruModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        if self.memory.contains(&pages[now]) {
            return true;
        }
        if self.memory.len() == self.size {
            let last = |&&page: &&u32| pages[..now].iter().rposition(|&p| p == page);
            let victim = *self.memory.iter().min_by_key(last).unwrap();
            self.memory.retain(|&p| p != victim);
            replaced.push(victim);
        }
        self.memory.push(pages[now]);
        false
    }

    fn forget(&mut self, page: u32) {
        self.memory.retain(|&p| p != page);
    }
}

/// Corbató 1968, as a queue: what has its bit set goes to the end without it. A frame
/// whose page was freed keeps its place, with the moment of that.
struct ClockModel {
    size: usize,
    on_load: bool,
    queue: VecDeque<Frame>,
    freed: usize,
}

#[derive(Clone, Copy)]
enum Frame {
    Page(u32, bool),
    Free(usize),
}

impl Model for ClockModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        for frame in &mut self.queue {
            match frame {
                Frame::Page(page, bit) if *page == pages[now] => {
                    *bit = true;
                    return true;
                }
                _ => {}
            }
        }
        let loaded = Frame::Page(pages[now], self.on_load);
        // The frame that was freed last.
        let free = (0..self.queue.len()).filter_map(|at| match self.queue[at] {
            Frame::Free(when) => Some((when, at)),
            Frame::Page(..) => None,
        });
        if let Some((_, at)) = free.max() {
            self.queue[at] = loaded;
            return false;
        }
        while self.queue.len() == self.size {
            match self.queue.pop_front().unwrap() {
                Frame::Page(page, false) => replaced.push(page),
                Frame::Page(page, true) => self.queue.push_back(Frame::Page(page, false)),
                Frame::Free(_) => unreachable!("memory is full"),
            }
        }
        self.queue.push_back(loaded);
        false
    }

    fn forget(&mut self, page: u32) {
        self.freed += 1;
        for frame in &mut self.queue {
            if matches!(frame, Frame::Page(p, _) if *p == page) {
                *frame = Frame::Free(self.freed);
            }
        }
    }
}

/// Zhang et al. 2024, algorithm 1: `queue[0]` is the tail, the hand an index.
struct SieveModel {
    size: usize,
    queue: Vec<(u32, bool)>,
    hand: usize,
}

impl Model for SieveModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        if let Some(page) = self.queue.iter_mut().find(|p| p.0 == pages[now]) {
            page.1 = true;
            return true;
        }
        if self.queue.len() == self.size {
            if self.hand >= self.queue.len() {
                self.hand = 0;
            }
            while self.queue[self.hand].1 {
                self.queue[self.hand].1 = false;
                self.hand = (self.hand + 1) % self.queue.len();
            }
            // What comes after it moves to its index. At the head, the hand is
            // unset, although a page that comes then takes the index.
            let at_head = self.hand + 1 == self.queue.len();
            replaced.push(self.queue.remove(self.hand).0);
            if at_head {
                self.hand = 0;
            }
        }
        self.queue.push((pages[now], false));
        false
    }

    fn forget(&mut self, page: u32) {
        let Some(at) = self.queue.iter().position(|p| p.0 == page) else {
            return;
        };
        self.queue.remove(at);
        // The hand is at the next newer page then; unset, if there is none.
        if at < self.hand {
            self.hand -= 1;
        }
        if self.hand == self.queue.len() {
            self.hand = 0;
        }
    }
}

/// Yang et al. 2023, algorithm 1, with what libCacheSim makes of the beginning
/// and of a full main queue. With probation, it is Xia et al. 2026: references to a page that is
/// among so many percent of the small queue's newest do not count.
struct S3FifoModel {
    size: usize,
    was_full: bool,
    probation_percent: usize,
    /// All pages that were loaded into the small queue, in that order.
    loads: Vec<u32>,
    small: VecDeque<(u32, u32)>,
    main: VecDeque<(u32, u32)>,
    ghost: VecDeque<u32>,
}

impl S3FifoModel {
    fn evict(&mut self) -> u32 {
        let small_size = self.size / 10;
        loop {
            if self.main.len() <= self.size - small_size {
                while let Some((page, references)) = self.small.pop_front() {
                    if references > 1 {
                        self.main.push_back((page, 0));
                        continue;
                    }
                    self.ghost.push_back(page);
                    while self.ghost.len() > self.size * 9 / 10 {
                        self.ghost.pop_front();
                    }
                    return page;
                }
            }
            while let Some((page, references)) = self.main.pop_front() {
                if references == 0 {
                    return page;
                }
                self.main.push_back((page, references.min(3) - 1));
            }
        }
    }
}

impl Model for S3FifoModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        let page = pages[now];
        let probation = self.small.len() * self.probation_percent / 100;
        if let Some(found) = self.small.iter_mut().find(|p| p.0 == page) {
            // It and those loaded after it.
            let since = self.loads.iter().rev().position(|p| *p == page).unwrap() + 1;
            found.1 += u32::from(since >= probation);
            return true;
        }
        if let Some(found) = self.main.iter_mut().find(|p| p.0 == page) {
            found.1 += 1;
            return true;
        }
        let known = take(&mut self.ghost, page);
        if self.small.len() + self.main.len() == self.size {
            replaced.push(self.evict());
            self.was_full = true;
        }
        if known || !self.was_full && self.small.len() >= self.size / 10 {
            self.main.push_back((page, 0));
        } else {
            self.small.push_back((page, 0));
            self.loads.push(page);
        }
        false
    }

    fn forget(&mut self, page: u32) {
        take(&mut self.ghost, page);
        self.small.retain(|p| p.0 != page);
        self.main.retain(|p| p.0 != page);
    }
}

/// Johnson, Shasha 1994, "2Q, full version"; the front of each is its oldest.
struct TwoQModel {
    size: usize,
    a1_in: VecDeque<u32>,
    a1_out: VecDeque<u32>,
    am: VecDeque<u32>,
}

impl Model for TwoQModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        let page = pages[now];
        let (k_in, k_out) = (self.size / 4, self.size / 2);
        if take(&mut self.am, page) {
            self.am.push_back(page);
            return true;
        }
        if self.a1_in.contains(&page) {
            return true;
        }
        let known = take(&mut self.a1_out, page);
        if self.a1_in.len() + self.am.len() == self.size {
            if self.a1_in.len() > k_in {
                let out = self.a1_in.pop_front().unwrap();
                self.a1_out.push_back(out);
                if self.a1_out.len() > k_out {
                    self.a1_out.pop_front();
                }
                replaced.push(out);
            } else {
                replaced.push(self.am.pop_front().unwrap());
            }
        }
        if known {
            self.am.push_back(page);
        } else {
            self.a1_in.push_back(page);
        }
        false
    }

    fn forget(&mut self, page: u32) {
        for queue in [&mut self.a1_in, &mut self.a1_out, &mut self.am] {
            take(queue, page);
        }
    }
}

/// Turner, Levy 1981: one queue; its newest places are the primary segment. A place in it
/// whose page was freed is empty until another page is loaded or brought back.
struct SegQModel {
    size: usize,
    /// Oldest first. What is in front was loaded or brought back last.
    queue: VecDeque<Option<u32>>,
}

impl SegQModel {
    /// The first place of the primary segment.
    fn primary(&self) -> usize {
        let primary = self.size - self.size / 2;
        self.queue.len().saturating_sub(primary)
    }

    fn empty(&self) -> Option<usize> {
        self.queue.iter().position(Option::is_none)
    }
}

impl Model for SegQModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        let page = pages[now];
        let known = self.queue.iter().position(|&p| p == Some(page));
        match known {
            Some(at) if at >= self.primary() => return true,
            Some(at) => {
                // Whichever segment is short then, the other keeps its pages.
                self.queue.remove(at);
            }
            None => {
                if self.queue.iter().flatten().count() == self.size {
                    let oldest = self.queue.iter().position(Option::is_some).unwrap();
                    replaced.extend(self.queue.remove(oldest).flatten());
                }
            }
        }
        if let Some(empty) = self.empty() {
            self.queue.remove(empty);
        }
        self.queue.push_back(Some(page));
        known.is_some()
    }

    fn forget(&mut self, page: u32) {
        if let Some(at) = self.queue.iter().position(|&p| p == Some(page)) {
            if at >= self.primary() {
                self.queue[at] = None;
            } else {
                self.queue.remove(at);
            }
        }
    }
}

/// Megiddo, Modha 2003, figure 4; the front of each list is its LRU end.
#[derive(Default)]
struct ArcModel {
    c: usize,
    p: f64,
    t1: VecDeque<u32>,
    t2: VecDeque<u32>,
    b1: VecDeque<u32>,
    b2: VecDeque<u32>,
}

impl ArcModel {
    /// Makes room if there is none, which frees may have made.
    fn replace(&mut self, in_b2: bool, replaced: &mut Vec<u32>) {
        if self.t1.len() + self.t2.len() < self.c {
            return;
        }
        let t1 = self.t1.len() as f64;
        let of_t1 = (in_b2 && t1 == self.p) || t1 > self.p;
        if !self.t1.is_empty() && (of_t1 || self.t2.is_empty()) {
            let page = self.t1.pop_front().unwrap();
            self.b1.push_back(page);
            replaced.push(page);
        } else {
            let page = self.t2.pop_front().unwrap();
            self.b2.push_back(page);
            replaced.push(page);
        }
    }
}

impl Model for ArcModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        let x = pages[now];
        // Case I.
        if take(&mut self.t1, x) || take(&mut self.t2, x) {
            self.t2.push_back(x);
            return true;
        }
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if self.b1.contains(&x) {
            // Case II.
            let step = if b1 >= b2 { 1.0 } else { b2 / b1 };
            self.p = (self.p + step).min(self.c as f64);
            self.replace(false, replaced);
            take(&mut self.b1, x);
            self.t2.push_back(x);
        } else if self.b2.contains(&x) {
            // Case III.
            let step = if b2 >= b1 { 1.0 } else { b1 / b2 };
            self.p = (self.p - step).max(0.0);
            self.replace(true, replaced);
            take(&mut self.b2, x);
            self.t2.push_back(x);
        } else {
            // Case IV.
            let l1 = self.t1.len() + self.b1.len();
            let total = l1 + self.t2.len() + self.b2.len();
            if l1 == self.c {
                if self.t1.len() < self.c {
                    self.b1.pop_front();
                    self.replace(false, replaced);
                } else {
                    replaced.push(self.t1.pop_front().unwrap());
                }
            } else if total >= self.c {
                if total == 2 * self.c {
                    self.b2.pop_front();
                }
                self.replace(false, replaced);
            }
            self.t1.push_back(x);
        }
        false
    }

    fn forget(&mut self, page: u32) {
        for list in [&mut self.t1, &mut self.t2, &mut self.b1, &mut self.b2] {
            take(list, page);
        }
    }
}

/// Bansal, Modha 2004, figure 2; the front of each is its head, or LRU end.
#[derive(Default)]
struct CarModel {
    c: usize,
    p: f64,
    t1: VecDeque<(u32, bool)>,
    t2: VecDeque<(u32, bool)>,
    b1: VecDeque<u32>,
    b2: VecDeque<u32>,
}

impl Model for CarModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        let x = pages[now];
        if let Some(page) = self
            .t1
            .iter_mut()
            .chain(&mut self.t2)
            .find(|page| page.0 == x)
        {
            page.1 = true;
            return true;
        }
        let known = self.b1.contains(&x) || self.b2.contains(&x);
        if self.t1.len() + self.t2.len() == self.c {
            loop {
                if self.t1.len() as f64 >= self.p.max(1.0) {
                    match self.t1.pop_front().unwrap() {
                        (page, false) => {
                            self.b1.push_back(page);
                            replaced.push(page);
                            break;
                        }
                        (page, true) => self.t2.push_back((page, false)),
                    }
                } else {
                    match self.t2.pop_front().unwrap() {
                        (page, false) => {
                            self.b2.push_back(page);
                            replaced.push(page);
                            break;
                        }
                        (page, true) => self.t2.push_back((page, false)),
                    }
                }
            }
        }
        // In the paper within the condition above: without frees, it never holds before.
        if !known && self.t1.len() + self.b1.len() == self.c {
            self.b1.pop_front();
        } else if !known
            && self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len() == 2 * self.c
        {
            self.b2.pop_front();
        }
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if !known {
            self.t1.push_back((x, false));
        } else if take(&mut self.b1, x) {
            self.p = (self.p + (b2 / b1).max(1.0)).min(self.c as f64);
            self.t2.push_back((x, false));
        } else {
            self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
            take(&mut self.b2, x);
            self.t2.push_back((x, false));
        }
        false
    }

    fn forget(&mut self, page: u32) {
        self.t1.retain(|p| p.0 != page);
        self.t2.retain(|p| p.0 != page);
        take(&mut self.b1, page);
        take(&mut self.b2, page);
    }
}

/// Jiang, Zhang 2002, section 3.3; the front of S is its bottom.
#[derive(Default)]
struct LirsModel {
    size: usize,
    lir: Vec<u32>,
    s: VecDeque<u32>,
    q: VecDeque<u32>,
}

impl LirsModel {
    fn prune(&mut self) {
        while !self.s.is_empty() && !self.lir.contains(&self.s[0]) {
            self.s.pop_front();
        }
    }

    /// The LIR part is full, or short of pages that were freed.
    fn exchange(&mut self, page: u32) {
        if self.lir.len() == self.size - (self.size / 100).max(1) {
            let bottom = self.s.pop_front().unwrap();
            self.lir.retain(|&p| p != bottom);
            self.q.push_back(bottom);
        }
        self.lir.push(page);
        self.prune();
    }
}

impl Model for LirsModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        let x = pages[now];
        let hir_size = (self.size / 100).max(1);
        let in_s = take(&mut self.s, x);
        let in_q = take(&mut self.q, x);
        let is_lir = self.lir.contains(&x);
        self.s.push_back(x);
        if is_lir {
            self.prune();
        } else if in_q && in_s {
            self.exchange(x);
        } else if in_q {
            self.q.push_back(x);
            self.prune();
        } else {
            if self.lir.len() + self.q.len() == self.size {
                replaced.push(self.q.pop_front().unwrap());
            }
            if in_s {
                self.exchange(x);
            } else if self.lir.len() < self.size - hir_size {
                self.lir.push(x);
            } else {
                self.q.push_back(x);
                self.prune();
            }
        }
        is_lir || in_q
    }

    fn forget(&mut self, page: u32) {
        self.lir.retain(|&p| p != page);
        take(&mut self.s, page);
        take(&mut self.q, page);
        self.prune();
    }
}

/// Jiang, Chen, Zhang 2005, section 4: the circle as a queue from the hot hand on,
/// the other hands as the pages they are at.
struct ClockProModel {
    m: usize,
    m_c: usize,
    /// Page, state ('h'ot, 'c'old, 'g'one), bit, whether in its test period.
    circle: VecDeque<(u32, char, bool, bool)>,
    cold_hand: Option<u32>,
    test_hand: Option<u32>,
}

impl ClockProModel {
    fn at(&self, page: u32) -> usize {
        self.circle.iter().position(|e| e.0 == page).unwrap()
    }

    fn count(&self, state: char) -> usize {
        self.circle.iter().filter(|e| e.1 == state).count()
    }

    /// The page ahead of a page, or itself if it is alone.
    fn ahead(&self, page: u32) -> u32 {
        self.circle[(self.at(page) + 1) % self.circle.len()].0
    }

    fn remove(&mut self, page: u32) -> (u32, char, bool, bool) {
        let next = self.ahead(page);
        let next = (next != page).then_some(next);
        for hand in [&mut self.cold_hand, &mut self.test_hand] {
            if *hand == Some(page) {
                *hand = next;
            }
        }
        let at = self.at(page);
        self.circle.remove(at).unwrap()
    }

    fn push(&mut self, entry: (u32, char, bool, bool)) {
        // The place behind the hot hand is the queue's end.
        self.circle.push_back(entry);
        self.cold_hand.get_or_insert(entry.0);
        self.test_hand.get_or_insert(entry.0);
        while self.count('h') > self.m - self.m_c {
            let page = self.circle[0].0;
            self.circle.rotate_left(1);
            let at = self.circle.len() - 1;
            match self.circle[at] {
                (_, 'h', true, _) => self.circle[at].2 = false,
                (_, 'h', false, _) => self.circle[at].1 = 'c',
                _ => self.end_test(page),
            }
        }
    }

    fn end_test(&mut self, page: u32) {
        let at = self.at(page);
        if !self.circle[at].3 {
            return;
        }
        self.circle[at].3 = false;
        self.m_c = (self.m_c - 1).max(1);
        if self.circle[at].1 == 'g' {
            self.remove(page);
        }
    }

    fn evict(&mut self) -> u32 {
        loop {
            let page = self.cold_hand.unwrap();
            self.cold_hand = Some(self.ahead(page));
            let at = self.at(page);
            match self.circle[at] {
                (_, 'c', false, false) => {
                    self.remove(page);
                    return page;
                }
                (_, 'c', false, true) => {
                    self.circle[at].1 = 'g';
                    while self.count('g') > self.m {
                        let page = self.test_hand.unwrap();
                        self.test_hand = Some(self.ahead(page));
                        if self.circle[self.at(page)].1 != 'h' {
                            self.end_test(page);
                        }
                    }
                    return page;
                }
                (_, 'c', true, test) => {
                    self.remove(page);
                    if test {
                        self.m_c = (self.m_c + 1).min(self.m);
                        self.push((page, 'h', false, false));
                    } else {
                        self.push((page, 'c', false, true));
                    }
                }
                _ => {}
            }
        }
    }
}

impl Model for ClockProModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        let x = pages[now];
        if let Some(entry) = self.circle.iter_mut().find(|e| e.0 == x && e.1 != 'g') {
            entry.2 = true;
            return true;
        }
        let resident = self.count('h') + self.count('c');
        if resident == self.m {
            replaced.push(self.evict());
        }
        if self.circle.iter().any(|e| e.0 == x) {
            self.remove(x);
            self.m_c = (self.m_c + 1).min(self.m);
            self.push((x, 'h', false, false));
        } else if resident + 1 < self.m && self.count('h') < self.m - self.m_c {
            self.push((x, 'h', false, false));
        } else {
            self.push((x, 'c', false, true));
        }
        false
    }

    fn forget(&mut self, page: u32) {
        if self.circle.iter().any(|e| e.0 == page) {
            self.remove(page);
        }
    }
}

/// Carr, Hennessy 1981: frames from the hand on as (page, bit, last use).
struct WsClockModel {
    size: usize,
    frames: VecDeque<(u32, bool, usize)>,
    /// Pages that were freed while in memory and whose frames are free, in that order.
    free: Vec<u32>,
}

/// Marks a frame by the page that was freed there.
const FREED: u32 = 1 << 31;

impl Model for WsClockModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        let x = pages[now];
        if let Some(frame) = self.frames.iter_mut().find(|f| f.0 == x) {
            frame.1 = true;
            return true;
        }
        if let Some(freed) = self.free.pop() {
            let frame = self.frames.iter_mut().find(|f| f.0 == FREED | freed);
            *frame.unwrap() = (x, false, now);
            return false;
        }
        if self.frames.len() < self.size {
            self.frames.push_back((x, false, now));
            return false;
        }
        for frame in 0..self.size {
            let (page, used, last) = self.frames[frame];
            if used {
                self.frames[frame] = (page, false, now);
            } else if now - last > self.size {
                replaced.push(page);
                self.frames[frame].0 = x;
                self.frames[frame].2 = now;
                self.frames.rotate_left((frame + 1) % self.size);
                return false;
            }
        }
        let oldest = self.frames.iter().map(|f| f.2).min().unwrap();
        let frame = self.frames.iter().position(|f| f.2 == oldest).unwrap();
        replaced.push(self.frames[frame].0);
        self.frames[frame] = (x, false, now);
        self.frames.rotate_left((frame + 1) % self.size);
        false
    }

    fn forget(&mut self, page: u32) {
        if let Some(frame) = self.frames.iter_mut().find(|f| f.0 == page) {
            frame.0 |= FREED;
            self.free.push(page);
        }
    }
}

/// Linux 7.3, mm/vmscan.c without CONFIG_LRU_GEN; the front of a list is its
/// tail, from which is reclaimed. Pages with (accessed, PG_referenced).
#[derive(Default)]
struct ActiveInactiveModel {
    size: usize,
    inactive: VecDeque<(u32, bool, bool)>,
    active: VecDeque<(u32, bool, bool)>,
    nonresident_age: usize,
    shadows: HashMap<u32, usize>,
}

impl Model for ActiveInactiveModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        let x = pages[now];
        let mut both = self.inactive.iter_mut().chain(&mut self.active);
        if let Some(found) = both.find(|p| p.0 == x) {
            found.1 = true;
            return true;
        }
        if self.inactive.len() + self.active.len() == self.size {
            loop {
                // Below 1 GiB the ratio is 1.
                while self.inactive.len() < self.active.len() {
                    let (page, _, mark) = self.active.pop_front().unwrap();
                    self.inactive.push_back((page, false, mark));
                }
                match self.inactive.pop_front().unwrap() {
                    (page, false, _) => {
                        self.shadows.insert(page, self.nonresident_age);
                        self.nonresident_age += 1;
                        replaced.push(page);
                        break;
                    }
                    (page, true, false) => self.inactive.push_back((page, false, true)),
                    (page, true, true) => {
                        self.nonresident_age += 1;
                        self.active.push_back((page, false, true));
                    }
                }
            }
        }
        match self.shadows.remove(&x) {
            Some(shadow) if self.nonresident_age - shadow <= self.active.len() => {
                self.nonresident_age += 1;
                self.active.push_back((x, true, false));
            }
            _ => self.inactive.push_back((x, true, false)),
        }
        false
    }

    fn forget(&mut self, page: u32) {
        self.inactive.retain(|p| p.0 != page);
        self.active.retain(|p| p.0 != page);
        self.shadows.remove(&page);
    }
}

#[derive(Clone, Copy)]
struct MglruPage {
    page: u32,
    generation: usize,
    accessed: bool,
    workingset: bool,
    /// PG_referenced and what LRU_REFS_MASK counts beyond it.
    refs: usize,
}

/// Linux 7.3, mm/vmscan.c with CONFIG_LRU_GEN: all generations ever, as queues
/// whose front is the tail.
struct MglruModel {
    size: usize,
    min_seq: usize,
    generations: Vec<VecDeque<MglruPage>>,
    shadows: HashMap<u32, (usize, bool)>,
}

impl MglruModel {
    fn max_seq(&self) -> usize {
        self.generations.len() - 1
    }

    fn inc_max_seq(&mut self) {
        let max_seq = self.max_seq();
        for folio in self.generations.iter_mut().flatten().filter(|f| f.accessed) {
            folio.accessed = false;
            if folio.refs > 0 || folio.workingset {
                folio.refs = 0;
                folio.workingset = true;
                folio.generation = max_seq;
            } else {
                folio.refs = 1;
            }
        }
        self.generations.push(VecDeque::new());
    }

    fn add(&mut self, mut folio: MglruPage) {
        let active = if folio.workingset { 0 } else { 1 };
        folio.generation = (self.max_seq() - active).max(self.min_seq);
        self.generations[folio.generation].push_back(folio);
    }

    fn evict(&mut self) -> u32 {
        loop {
            while self.min_seq + 2 <= self.max_seq() && self.generations[self.min_seq].is_empty() {
                self.min_seq += 1;
            }
            if self.min_seq + 2 > self.max_seq() {
                self.inc_max_seq();
                continue;
            }
            let mut folio = self.generations[self.min_seq].pop_front().unwrap();
            if folio.generation != self.min_seq {
                self.generations[folio.generation].push_back(folio);
            } else if !folio.accessed {
                self.shadows
                    .insert(folio.page, (self.min_seq, folio.workingset));
                return folio.page;
            } else {
                folio.accessed = false;
                if folio.refs == 2 {
                    folio.refs = 0;
                    folio.workingset = true;
                } else {
                    folio.refs += 1;
                }
                self.add(folio);
            }
        }
    }
}

impl Model for MglruModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        let page = pages[now];
        let mut all = self.generations.iter_mut().flatten();
        if let Some(folio) = all.find(|f| f.page == page) {
            folio.accessed = true;
            return true;
        }
        if self.generations.iter().map(VecDeque::len).sum::<usize>() == self.size {
            replaced.push(self.evict());
        }
        let shadow = self.shadows.remove(&page);
        let workingset = shadow.is_some_and(|(seq, was)| was && self.max_seq() - seq < 4);
        self.add(MglruPage {
            page,
            generation: 0,
            accessed: true,
            workingset,
            refs: 0,
        });
        false
    }

    fn forget(&mut self, page: u32) {
        for generation in &mut self.generations {
            generation.retain(|folio| folio.page != page);
        }
        self.shadows.remove(&page);
    }
}

/// The model of a policy, for these steps.
fn model(id: &str, size: usize, steps: &[Step]) -> Box<dyn Model> {
    let empty = VecDeque::new;
    match id {
        "lru" => Box::new(LruModel {
            size,
            memory: Vec::new(),
        }),
        "fifo" => Box::new(FifoModel {
            size,
            queue: empty(),
        }),
        "clock" | "clock-set" => Box::new(ClockModel {
            size,
            on_load: id == "clock-set",
            queue: VecDeque::new(),
            freed: 0,
        }),
        "sieve" => Box::new(SieveModel {
            size,
            queue: Vec::new(),
            hand: 0,
        }),
        "s3-fifo" | "s4-fifo" => Box::new(S3FifoModel {
            size,
            was_full: false,
            probation_percent: if id == "s4-fifo" { 25 } else { 0 },
            loads: Vec::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghost: empty(),
        }),
        "2q" => Box::new(TwoQModel {
            size,
            a1_in: empty(),
            a1_out: empty(),
            am: empty(),
        }),
        "segq" => Box::new(SegQModel {
            size,
            queue: VecDeque::new(),
        }),
        "arc" => Box::new(ArcModel {
            c: size,
            ..ArcModel::default()
        }),
        "car" => Box::new(CarModel {
            c: size,
            ..CarModel::default()
        }),
        "lirs" => Box::new(LirsModel {
            size,
            ..LirsModel::default()
        }),
        "clock-pro" => Box::new(ClockProModel {
            m: size,
            m_c: 1,
            circle: VecDeque::new(),
            cold_hand: None,
            test_hand: None,
        }),
        "wsclock" => Box::new(WsClockModel {
            size,
            frames: VecDeque::new(),
            free: Vec::new(),
        }),
        "active-inactive" => Box::new(ActiveInactiveModel {
            size,
            ..ActiveInactiveModel::default()
        }),
        "mglru" => Box::new(MglruModel {
            size,
            min_seq: 0,
            generations: vec![VecDeque::new(); 4],
            shadows: Default::default(),
        }),
        "opt" => Box::new(MinModel::new(size, steps)),
        _ => panic!("{id} has no model: write one"),
    }
}

/// What becomes of the number of a page that was freed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Again {
    /// It is never given again.
    Never,
    /// The next page with the same name gets it.
    ByName,
    /// The next new page gets it, as in a pass over a trace.
    ByAny,
}

fn again() -> impl Strategy<Value = Again> {
    prop_oneof![
        2 => Just(Again::Never),
        1 => Just(Again::ByName),
        1 => Just(Again::ByAny),
    ]
}

/// Gives pages to names, each of which is a page from its first reference to its end. A name
/// that has no page may be freed, too.
fn numbered(again: Again, named: &[(u32, Kind)]) -> Vec<Step> {
    let mut pages: HashMap<u32, (u32, CanonPage)> = HashMap::new();
    let (mut spare, mut given, mut last) = (Vec::new(), 0, 0);
    let mut steps = Vec::new();
    for &(name, kind) in named {
        if kind == Kind::Free {
            let (page, number) = match (pages.remove(&name), again) {
                (Some(found), _) => {
                    spare.push(found.1);
                    found
                }
                (None, Again::ByName) => (u32::MAX, CanonPage(name)),
                // A number that no page ever had.
                (None, _) => (u32::MAX, CanonPage(1 << 20)),
            };
            steps.push(Step {
                page,
                access: Access::free(number),
            });
            continue;
        }
        let (page, number) = *pages.entry(name).or_insert_with(|| {
            last += 1;
            let number = match again {
                Again::Never => CanonPage(last),
                Again::ByName => CanonPage(name),
                Again::ByAny => spare.pop().unwrap_or_else(|| {
                    given += 1;
                    CanonPage(given)
                }),
            };
            (last, number)
        });
        steps.push(Step {
            page,
            access: Access::reference(number, kind == Kind::Write),
        });
    }
    steps
}

/// References with something to find: near the last ones, by few favourites, in
/// loops, or anywhere. Pages are freed one by one and by many.
fn steps(names: u32, most: usize) -> impl Strategy<Value = Vec<Step>> {
    let kind = 0..20u8;
    let step = (kind, any::<u32>(), prop::bool::weighted(0.3));
    // How much is freed: nothing in some cases.
    let freeing = 0..4u8;
    (prop::collection::vec(step, 0..most), freeing, again()).prop_map(
        move |(steps, freeing, again)| {
            let mut done: Vec<(u32, Kind)> = Vec::new();
            for (kind, random, write) in steps {
                let recent = |done: &[(u32, Kind)]| match done.len() {
                    0 => 1,
                    len => done[len - 1 - random as usize % len.min(8)].0,
                };
                let access = if write { Kind::Write } else { Kind::Read };
                match kind {
                    0 if freeing > 0 => done.push((recent(&done), Kind::Free)),
                    1 if freeing > 1 => done.push((1 + random % names, Kind::Free)),
                    2 if freeing > 2 && random % 4 == 0 => {
                        let from = random / 4 % names;
                        let end = (from + 1 + random / 1024 % names.div_ceil(3)).min(names);
                        done.extend((from..end).map(|name| (1 + name, Kind::Free)));
                    }
                    0..=6 => done.push((recent(&done), access)),
                    7..=11 => done.push((1 + random % (names / 5).max(1), access)),
                    12..=15 => {
                        let next = done.last().map_or(1, |&(name, _)| 1 + name % names);
                        done.push((next, access));
                    }
                    _ => done.push((1 + random % names, access)),
                }
            }
            numbered(again, &done)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Each policy decides as its model does, at small sizes, where every
    /// boundary is met.
    #[test]
    fn policies_are_their_models(
        size in 1..24usize,
        steps in steps(30, 300),
    ) {
        for entry in sim::registry() {
            compare(entry.id, size, &steps, &mut *model(entry.id, size, &steps));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// The same with sizes at which tenths and hundredths of memory are pages.
    #[test]
    fn policies_are_their_models_when_larger(
        size in 24..220usize,
        steps in steps(300, 2500),
    ) {
        for entry in sim::registry() {
            let expected = play(&mut *model(entry.id, size, &steps), size, &steps);
            let mut simulation = (entry.simulate)(size as u64);
            simulation.references(&accesses(&steps));
            let mut expected = expected.last().copied().unwrap_or(simulation.counts());
            if entry.id == "opt" && freed_dirty(size, &steps).is_some() {
                expected.write_backs = None;
            }
            prop_assert_eq!(simulation.counts(), expected, "{}", entry.id);
        }
    }
}

/// The most pages that live at one time.
fn most(steps: &[Step]) -> u64 {
    let mut live = BTreeSet::new();
    let mut most = 0;
    for step in steps {
        match step.access.kind {
            Kind::Free => live.remove(&step.page),
            _ => live.insert(step.page),
        };
        most = most.max(live.len());
    }
    most as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A curve has for every size what a simulation of that size counts.
    #[test]
    fn curves_are_their_sizes(steps in steps(40, 500)) {
        let all = accesses(&steps);
        for entry in sim::registry() {
            let Some(make) = entry.curve else {
                continue;
            };
            let mut curve = make();
            curve.references(&all);
            let curve = curve.curve();
            prop_assert_eq!(curve.footprint(), most(&steps), "{}", entry.id);
            for size in 1..45 {
                let mut simulation = (entry.simulate)(size);
                simulation.references(&all);
                let mut counts = simulation.counts();
                // What OPT has written back is unknown for all sizes if it is for one.
                if curve.write_backs.is_none() {
                    prop_assert_eq!(entry.id, "opt");
                    counts.write_backs = None;
                }
                prop_assert_eq!(curve.at(size), counts, "{}", entry.id);
            }
        }
    }

    /// The LRU curve does not depend on the chunks in which it is computed, or on the threads.
    #[test]
    fn lru_in_chunks(steps in steps(60, 700), chunk in 1..400usize, threads in 1..4usize) {
        let all = accesses(&steps);
        let mut whole = LruCurve::default();
        whole.references(&all);
        for chunk in [1, chunk] {
            let mut chunks = LruChunks::of(chunk);
            chunks.use_threads(threads);
            chunks.references(&all);
            prop_assert_eq!(chunks.curve(), whole.curve(), "chunks of {}", chunk);
        }
    }

    /// Freeing changes no miss of OPT.
    #[test]
    fn opt_does_not_mind_what_is_freed(steps in steps(40, 500), size in 1..45u64) {
        let opt = sim::registry().iter().find(|p| p.id == "opt").unwrap();
        let misses = |all: &[Access]| {
            let mut simulation = (opt.simulate)(size);
            simulation.references(all);
            simulation.counts().misses
        };
        let kept: Vec<Access> = steps
            .iter()
            .filter(|s| s.access.is_reference())
            .map(|s| Access::reference(CanonPage(s.page), s.access.writes()))
            .collect();
        prop_assert_eq!(misses(&accesses(&steps)), misses(&kept));
    }
}

/// Many references to more and more pages, of which many are freed.
fn long(again: Again) -> Vec<Step> {
    let mut random = 88_172_645_463_325_252u64;
    let mut named = Vec::new();
    for i in 0..200_000u64 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let spread = 1000 + i / 10;
        let name = 1 + (random % spread) * (random >> 40 & 1) + (random >> 20) % 300;
        let kind = match random >> 44 & 15 {
            0 => Kind::Free,
            1..=3 => Kind::Write,
            _ => Kind::Read,
        };
        named.push((name as u32, kind));
        // As if a process ended.
        if i % 30_000 == 29_999 {
            let part = 1 + i as u32 / 30_000 % 3;
            let ended = (1..spread as u32).filter(|name| name % 4 < part);
            named.extend(ended.map(|name| (name, Kind::Free)));
        }
    }
    numbered(again, &named)
}

/// Windows of the LRU curve are moved together and grow without a trace, holes in it too.
#[test]
fn lru_over_many_windows() {
    let lru = sim::registry().iter().find(|p| p.id == "lru").unwrap();
    for again in [Again::Never, Again::ByName, Again::ByAny] {
        let steps = long(again);
        let all = accesses(&steps);
        let mut curve = lru.curve.expect("LRU has a curve")();
        curve.references(&all);
        let curve = curve.curve();
        assert_eq!(curve.footprint(), most(&steps));
        assert!(curve.footprint() > 6_000, "{}", curve.footprint());
        for size in [1, 2, 17, 300, 999, 1000, 3000, 5000, 7000, 10_000, 20_000] {
            let mut simulation = (lru.simulate)(size);
            simulation.references(&all);
            assert_eq!(curve.at(size), simulation.counts(), "{again:?}");
        }
    }
}

/// OPT's windows, of a size and of the curve, are moved together and grow without a
/// trace.
#[test]
fn opt_over_many_windows() {
    let opt = sim::registry().iter().find(|p| p.id == "opt").unwrap();
    for again in [Again::Never, Again::ByAny] {
        let steps = long(again);
        let all = accesses(&steps);
        let pages = pages(&steps);
        // Belady's rule by the time of next use, in a sorted set.
        let mut next_use = HashMap::new();
        let mut next = vec![0; pages.len()];
        for (now, &page) in pages.iter().enumerate().rev() {
            next[now] = next_use.insert(page, now as u64).unwrap_or(u64::MAX);
        }
        let mut curve = opt.curve.expect("OPT has a curve")();
        curve.references(&all);
        let curve = curve.curve();
        assert_eq!(curve.footprint(), most(&steps));
        for size in [1, 2, 17, 300, 1000, 5000, 20_000] {
            let mut memory = BTreeSet::new();
            let mut misses = 0;
            for (now, &page) in pages.iter().enumerate() {
                if !memory.remove(&(now as u64, page)) {
                    misses += 1;
                    if memory.len() == size {
                        memory.pop_last();
                    }
                }
                memory.insert((next[now], page));
            }
            assert_eq!(curve.at(size as u64).misses, misses, "{size} pages");
            let mut simulation = (opt.simulate)(size as u64);
            simulation.references(&all);
            assert_eq!(simulation.counts().misses, misses, "{size} pages");
        }
    }
}

/// Threads change nothing, and give jobs back in their order.
#[test]
fn in_parallel_as_one_after_the_other() {
    let mut builder = TraceBuilder::new(2, 16);
    builder.program();
    builder.map_anon(0, 10, 1, 0x10_0000, 0x10_0000 + (4096 << 10), Prot(3));
    for i in 0..100_000u64 {
        let page = i * i % 769 + i / 400;
        builder.touch(0, 10, 1, 0x10_0000 + 4096 * page);
        if i % 5000 == 0 {
            builder.map_anon(0, 10, 1, 0x1000, 0x2000, Prot(3));
            builder.unmap(0, 10, 1, 0x1000, 0x2000);
        }
    }
    let trace = Trace::from_bytes("memory", builder.finish()).unwrap();
    let make = || {
        let sizes = [64, 200, 500];
        let all = sim::registry().iter();
        all.flat_map(move |entry| sizes.map(|size| (entry.simulate)(size)))
    };
    let mut alone = SimulationConsumer::default();
    alone.sizes = make().collect();
    let parallel = std::thread::scope(|scope| {
        let mut workers = Workers::start(scope, make().map(Job::Size).collect());
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut alone, &mut workers];
        pipeline::run(&trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
        workers.join()
    });
    assert_eq!(alone.sizes.len(), parallel.len());
    for (one, job) in alone.sizes.iter().zip(&parallel) {
        let Job::Size(other) = job else {
            panic!("a size came back as a curve");
        };
        assert!(one.counts().references > 50_000);
        assert_eq!(one.counts(), other.counts());
    }
}
