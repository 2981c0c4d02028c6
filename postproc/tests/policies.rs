//! Every policy against a slow model of it: the paper's definition in vectors
//! and searches, without a thought for speed, written apart from the policy.

use std::collections::VecDeque;

use postproc::canon::PageMode;
use postproc::pipeline::{self, Consumer, Unwatched};
use postproc::sim::{self, Access, Counts, Job, SimulationConsumer, Workers};
use postproc::testing::TraceBuilder;
use postproc::trace::Trace;
use postproc::units::{CanonPage, Prot};
use proptest::prelude::*;

/// Decides what is in memory; knows the whole future, which most do not use.
trait Model {
    /// Page `pages[now]` is referenced. True for a hit; otherwise the page is
    /// loaded and what is replaced is pushed to `replaced`.
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool;
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

/// Counts a model's decisions; gives the counts after each reference.
fn play(model: &mut dyn Model, size: usize, accesses: &[(u32, bool)]) -> Vec<Counts> {
    let pages: Vec<u32> = accesses.iter().map(|a| a.0).collect();
    let mut counts = Counts {
        size_pages: size as u64,
        ..Counts::default()
    };
    let mut memory: Vec<(u32, bool)> = Vec::new();
    let mut after = Vec::new();
    for (now, &(page, write)) in accesses.iter().enumerate() {
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
            counts.write_backs += u64::from(memory.remove(at).1);
        }
        if !hit {
            memory.push((page, false));
        }
        assert!(memory.len() <= size, "model keeps to its size");
        memory.iter_mut().find(|m| m.0 == page).unwrap().1 |= write;
        counts.dirty_left = memory.iter().filter(|m| m.1).count() as u64;
        after.push(counts);
    }
    after
}

/// Plays a policy by name and compares all decisions.
fn compare(id: &str, size: usize, accesses: &[(u32, bool)], model: &mut dyn Model) {
    let expected = play(model, size, accesses);
    let entry = sim::registry().iter().find(|p| p.id == id).unwrap();
    let mut simulation = (entry.simulate)(size as u64);
    for (now, &(page, write)) in accesses.iter().enumerate() {
        simulation.references(&[Access {
            page: CanonPage(page),
            write,
        }]);
        let mut found = simulation.counts();
        // Which of its pages OPT replaced is known at the end.
        if id == "opt" && now + 1 < accesses.len() {
            found.write_backs = expected[now].write_backs;
            found.dirty_left = expected[now].dirty_left;
        }
        assert_eq!(
            found, expected[now],
            "{id}, {size} pages, reference {now} of {accesses:?}"
        );
    }
}

/// Belady 1966: the page goes whose next use is farthest; of those never used
/// again, the one used longest ago.
struct MinModel {
    size: usize,
    memory: Vec<u32>,
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
}

/// Corbató 1968, as a queue: what has its bit set goes to the end without it.
struct ClockModel {
    size: usize,
    on_load: bool,
    queue: VecDeque<(u32, bool)>,
}

impl Model for ClockModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        if let Some(page) = self.queue.iter_mut().find(|p| p.0 == pages[now]) {
            page.1 = true;
            return true;
        }
        if self.queue.len() == self.size {
            loop {
                let (page, referenced) = self.queue.pop_front().unwrap();
                if !referenced {
                    replaced.push(page);
                    break;
                }
                self.queue.push_back((page, false));
            }
        }
        self.queue.push_back((pages[now], self.on_load));
        false
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
}

/// Yang et al. 2023, algorithm 1, with what libCacheSim makes of the beginning
/// and of a full main queue.
struct S3FifoModel {
    size: usize,
    was_full: bool,
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
        let mut both = self.small.iter_mut().chain(&mut self.main);
        if let Some(found) = both.find(|p| p.0 == page) {
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
        }
        false
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
}

/// Turner, Levy 1981: one queue; its newest pages are the primary segment.
struct SegQModel {
    size: usize,
    /// Oldest first. What is in front was loaded or brought back last.
    queue: VecDeque<u32>,
}

impl Model for SegQModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        let page = pages[now];
        let primary = self.size - self.size / 2;
        let known = position(&self.queue, page);
        match known {
            Some(at) if self.queue.len() - at <= primary => return true,
            Some(at) => drop(self.queue.remove(at)),
            None if self.queue.len() == self.size => replaced.extend(self.queue.pop_front()),
            None => {}
        }
        self.queue.push_back(page);
        known.is_some()
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
    fn replace(&mut self, in_b2: bool) -> u32 {
        let t1 = self.t1.len() as f64;
        if !self.t1.is_empty() && ((in_b2 && t1 == self.p) || t1 > self.p) {
            let page = self.t1.pop_front().unwrap();
            self.b1.push_back(page);
            page
        } else {
            let page = self.t2.pop_front().unwrap();
            self.b2.push_back(page);
            page
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
            replaced.push(self.replace(false));
            take(&mut self.b1, x);
            self.t2.push_back(x);
        } else if self.b2.contains(&x) {
            // Case III.
            let step = if b2 >= b1 { 1.0 } else { b1 / b2 };
            self.p = (self.p - step).max(0.0);
            replaced.push(self.replace(true));
            take(&mut self.b2, x);
            self.t2.push_back(x);
        } else {
            // Case IV.
            let l1 = self.t1.len() + self.b1.len();
            let total = l1 + self.t2.len() + self.b2.len();
            if l1 == self.c {
                if self.t1.len() < self.c {
                    self.b1.pop_front();
                    replaced.push(self.replace(false));
                } else {
                    replaced.push(self.t1.pop_front().unwrap());
                }
            } else if total >= self.c {
                if total == 2 * self.c {
                    self.b2.pop_front();
                }
                replaced.push(self.replace(false));
            }
            self.t1.push_back(x);
        }
        false
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
            if !known && self.t1.len() + self.b1.len() == self.c {
                self.b1.pop_front();
            } else if !known
                && self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len() == 2 * self.c
            {
                self.b2.pop_front();
            }
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

    fn exchange(&mut self, page: u32) {
        let bottom = self.s.pop_front().unwrap();
        self.lir.retain(|&p| p != bottom);
        self.lir.push(page);
        self.q.push_back(bottom);
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
}

/// Carr, Hennessy 1981: frames from the hand on as (page, bit, last use).
struct WsClockModel {
    size: usize,
    frames: VecDeque<(u32, bool, usize)>,
}

impl Model for WsClockModel {
    fn reference(&mut self, pages: &[u32], now: usize, replaced: &mut Vec<u32>) -> bool {
        let x = pages[now];
        if let Some(frame) = self.frames.iter_mut().find(|f| f.0 == x) {
            frame.1 = true;
            return true;
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
}

/// Linux 7.3, mm/vmscan.c without CONFIG_LRU_GEN; the front of a list is its
/// tail, from which is reclaimed. Pages with (accessed, PG_referenced).
#[derive(Default)]
struct ActiveInactiveModel {
    size: usize,
    inactive: VecDeque<(u32, bool, bool)>,
    active: VecDeque<(u32, bool, bool)>,
    nonresident_age: usize,
    shadows: std::collections::HashMap<u32, usize>,
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
    shadows: std::collections::HashMap<u32, (usize, bool)>,
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
}

/// The model of a policy.
fn model(id: &str, size: usize) -> Box<dyn Model> {
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
        }),
        "sieve" => Box::new(SieveModel {
            size,
            queue: Vec::new(),
            hand: 0,
        }),
        "s3-fifo" => Box::new(S3FifoModel {
            size,
            was_full: false,
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
            queue: empty(),
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
        "opt" => Box::new(MinModel {
            size,
            memory: Vec::new(),
        }),
        _ => panic!("{id} has no model: write one"),
    }
}

/// References with something to find: near the last ones, by few favourites, in
/// loops, or anywhere.
fn accesses(pages: u32, most: usize) -> impl Strategy<Value = Vec<(u32, bool)>> {
    let kind = 0..4u8;
    prop::collection::vec((kind, any::<u32>(), prop::bool::weighted(0.3)), 0..most).prop_map(
        move |steps| {
            let mut done: Vec<(u32, bool)> = Vec::new();
            for (kind, random, write) in steps {
                let page = match kind {
                    0 if !done.is_empty() => {
                        done[done.len() - 1 - random as usize % done.len().min(8)].0
                    }
                    1 => 1 + random % (pages / 5).max(1),
                    2 => done.last().map_or(1, |&(page, _)| 1 + page % pages),
                    _ => 1 + random % pages,
                };
                done.push((page, write));
            }
            done
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each policy decides as its model does, at small sizes, where every
    /// boundary is met.
    #[test]
    fn policies_are_their_models(
        size in 1..24usize,
        accesses in accesses(30, 300),
    ) {
        for entry in sim::registry() {
            compare(entry.id, size, &accesses, &mut *model(entry.id, size));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// The same with sizes at which tenths and hundredths of memory are pages.
    #[test]
    fn policies_are_their_models_when_larger(
        size in 24..220usize,
        accesses in accesses(300, 2500),
    ) {
        for entry in sim::registry() {
            let expected = play(&mut *model(entry.id, size), size, &accesses);
            let mut simulation = (entry.simulate)(size as u64);
            let all: Vec<Access> = accesses
                .iter()
                .map(|&(page, write)| Access { page: CanonPage(page), write })
                .collect();
            simulation.references(&all);
            let expected = expected.last().copied().unwrap_or(simulation.counts());
            prop_assert_eq!(simulation.counts(), expected, "{}", entry.id);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A curve has for every size what a simulation of that size counts.
    #[test]
    fn curves_are_their_sizes(accesses in accesses(40, 500)) {
        let all: Vec<Access> = accesses
            .iter()
            .map(|&(page, write)| Access { page: CanonPage(page), write })
            .collect();
        for entry in sim::registry() {
            let Some(make) = entry.curve else {
                continue;
            };
            let mut curve = make();
            curve.references(&all);
            let curve = curve.curve();
            for size in 1..45 {
                let mut simulation = (entry.simulate)(size);
                simulation.references(&all);
                prop_assert_eq!(curve.at(size), simulation.counts(), "{}", entry.id);
            }
        }
    }
}

/// OPT's windows, of a size and of the curve, are moved together and grow without a
/// trace.
#[test]
fn opt_over_many_windows() {
    let mut random = 88_172_645_463_325_252u64;
    let mut pages = Vec::new();
    for i in 0..300_000u64 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let spread = 1000 + i / 10;
        pages.push((1 + (random % spread) * (random >> 40 & 1) + (random >> 20) % 300) as u32);
    }
    // Belady's rule by the time of next use, in a sorted set.
    let mut next_use = vec![u64::MAX; 40_000];
    let mut next = vec![0; pages.len()];
    for (now, &page) in pages.iter().enumerate().rev() {
        next[now] = std::mem::replace(&mut next_use[page as usize], now as u64);
    }
    let opt = sim::registry().iter().find(|p| p.id == "opt").unwrap();
    let mut curve = opt.curve.expect("OPT has a curve")();
    for &page in &pages {
        let page = CanonPage(page);
        curve.references(&[Access { page, write: false }]);
    }
    let curve = curve.curve();
    for size in [1, 2, 17, 300, 1000, 5000, 20_000] {
        let mut memory = std::collections::BTreeSet::new();
        let mut misses = 0;
        for (now, &page) in pages.iter().enumerate() {
            if memory.remove(&(now as u64, page)) {
            } else {
                misses += 1;
                if memory.len() == size {
                    memory.pop_last();
                }
            }
            memory.insert((next[now], page));
        }
        assert_eq!(curve.at(size as u64).misses, misses, "{size} pages");
        let mut simulation = (opt.simulate)(size as u64);
        for page in &pages {
            simulation.references(&[Access {
                page: CanonPage(*page),
                write: false,
            }]);
        }
        assert_eq!(simulation.counts().misses, misses, "{size} pages");
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
