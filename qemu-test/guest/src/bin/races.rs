//! `races SEED STEPS [FOLDER] [OPERATIONS]`: threads that only load, only store or only do atomics, while
//! others fork, unmap, move, protect, advise, collapse, migrate, swap and truncate the same
//! pages. The seed chooses regions, threads, operations and their order. Each page has rules
//! that hold whatever runs when; the first violation is printed. Prints `ok` otherwise, which
//! is the same untraced and traced. Files are in FOLDER (/tmp). OPERATIONS, with commas, are
//! done instead of those that the seed chooses.
//!
//! `races many SEED STEPS TOUCHES` is the same with many more accesses: all pages of more
//! regions, and so many touches between two changes.
//!
//! `races late SEED [US]` sets the tracer's delays: points and lengths by the seed, or of US
//! microseconds at most; 0 sets none.
//! `races late SEED,POINTS,US` sets these.
//! `races late` prints how often each point was passed.
//! `races plan SEED` prints what the seed chooses. `races digest FILE` prints length and hash.
//!
//! # What a page has
//!
//! Its storer, one for each page, stores the same value first at [`FIRST`] and then at
//! [`SECOND`]: the page's key, a count that grows, and a checksum. So a load of FIRST after
//! one of SECOND never finds a smaller count. What was found is never older than what the
//! same thread found before. A page becomes what its mapping begins with (its *base*) only if
//! something dropped it since the store: then `started` is larger than `finished` was before
//! the store. Values of a child are never seen by its parent. An addition at [`ADDED`] never
//! finds less than the same thread left there, unless the page was dropped.
use kvmtrace_guest::{
    PAGE, arg, check, counter, fork_child, map_with, move_pages, set, swap_on, wait_child,
};
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};

const BASE: usize = 0x1000_0000_0000;
/// From a region to the next one.
const APART: usize = 1 << 30;
/// From a region to where its pages are moved for a moment.
const AWAY: usize = 1 << 29;
/// Where UFFDIO_MOVE moves pages to, for each thread that does.
const SCRATCH: usize = 0x1800_0000_0000;
const REGIONS: usize = 8;
const PAGES: usize = 32;

const FIRST: usize = 0;
const ADDED: usize = 1032;
const SECOND: usize = 4088;

/// Set in the count of what a child stores.
const CHILD: u32 = 1 << 31;
/// What all pages of a mergeable region begin with.
const MERGED: u64 = 0x6d65_7267_6564;

static STOP: AtomicBool = AtomicBool::new(false);
static VIOLATION: OnceLock<String> = OnceLock::new();
/// Touches of pages, by all threads.
static TOUCHES: AtomicU64 = AtomicU64::new(0);
/// Accesses that found no mapping or no right, and were repeated.
static REPEATED: AtomicU64 = AtomicU64::new(0);
/// The same since any access succeeded.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);

/// Numbers that follow from a seed.
struct Dice(u64);

impl Dice {
    fn new(seed: u64, lane: u64) -> Self {
        let mut dice = Dice((seed << 8 | lane).wrapping_add(1) ^ 0x9e37_79b9_7f4a_7c15);
        for _ in 0..8 {
            dice.roll(2);
        }
        dice
    }

    /// A number below `n`.
    fn roll(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Anon,
    /// Aligned to huge pages, with advice to use them.
    Huge,
    /// Pages that are equal at first, and again at times.
    Merged,
    PrivateFile,
    SharedFile,
    Memfd,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::Anon,
        Kind::Huge,
        Kind::Merged,
        Kind::PrivateFile,
        Kind::SharedFile,
        Kind::Memfd,
    ];

    fn shared(self) -> bool {
        matches!(self, Kind::SharedFile | Kind::Memfd)
    }

    fn has_file(self) -> bool {
        self.shared() || self == Kind::PrivateFile
    }
}

/// What is done to pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    DontNeed,
    Free,
    Unmap,
    MapOver,
    Protect,
    Move,
    MoveAndKeep,
    PageOut,
    Cold,
    Collapse,
    Node,
    Fork,
    Truncate,
    Punch,
    TakeAway,
    ClearRefs,
    Guard,
    Lock,
    Populate,
}

impl Op {
    const ALL: [Op; 19] = [
        Op::DontNeed,
        Op::Free,
        Op::Unmap,
        Op::MapOver,
        Op::Protect,
        Op::Move,
        Op::MoveAndKeep,
        Op::PageOut,
        Op::Cold,
        Op::Collapse,
        Op::Node,
        Op::Fork,
        Op::Truncate,
        Op::Punch,
        Op::TakeAway,
        Op::ClearRefs,
        Op::Guard,
        Op::Lock,
        Op::Populate,
    ];
}

/// What a seed chooses.
#[derive(Debug)]
struct Plan {
    kinds: Vec<Kind>,
    ops: Vec<Op>,
    loaders: usize,
    storers: usize,
    adders: usize,
    disturbers: usize,
    /// Pages of each region that are touched.
    pages: usize,
    /// Touches between two looks at whether to stop.
    burst: usize,
    /// Touches of all threads between two changes by one, at least.
    pace: u64,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 0);
        let kinds = (0..2 + dice.roll(REGIONS - 1))
            .map(|_| Kind::ALL[dice.roll(Kind::ALL.len())])
            .collect();
        // Few of them, so that each is frequent; one at least.
        let share = 2 + dice.roll(4);
        let mut ops: Vec<_> = (Op::ALL.into_iter())
            .filter(|_| dice.roll(share) == 0)
            .collect();
        ops.push(Op::ALL[dice.roll(Op::ALL.len())]);
        if dice.roll(2) == 0 {
            ops.push(Op::Fork);
        }
        Plan {
            kinds,
            ops,
            loaders: 1 + dice.roll(3),
            storers: 1 + dice.roll(2),
            adders: dice.roll(2),
            disturbers: 1 + dice.roll(2),
            pages: [2, 6, 16, PAGES][dice.roll(4)],
            burst: [3, 20, 100][dice.roll(3)],
            pace: 0,
        }
    }

    /// The same with so many accesses that nearly all are references: more pages than the set
    /// has.
    fn many(seed: u64, pace: u64) -> Self {
        let mut plan = Plan::new(seed);
        let mut dice = Dice::new(seed, 254);
        while plan.kinds.len() < REGIONS {
            plan.kinds.push(Kind::ALL[dice.roll(Kind::ALL.len())]);
        }
        Plan {
            pages: PAGES,
            burst: 20,
            pace,
            ..plan
        }
    }
}

struct Region {
    kind: Kind,
    at: usize,
    pages: usize,
    number: u64,
    file: Option<File>,
    /// Held while one of the threads changes the mapping.
    changes: Mutex<()>,
    /// Drops that have begun, and that have ended.
    started: AtomicU64,
    finished: AtomicU64,
    /// A page may be freed at any later time, unless something is stored to it.
    lazy: AtomicBool,
    /// Additions that have begun, in all pages.
    additions: AtomicU64,
    /// Of each page one more than [`Last::finished`], once both words were stored and nothing
    /// was dropped meanwhile.
    settled: [AtomicU64; PAGES],
}

/// What is at a word that a storer writes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Base,
    Count(u32),
}

impl Found {
    fn count(self) -> u32 {
        match self {
            Found::Base => 0,
            Found::Count(n) => n,
        }
    }
}

fn sum_of(key: u64, count: u32) -> u64 {
    let mixed = (key << 32 | u64::from(count)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed >> 48
}

fn load(at: usize) -> u64 {
    // SAFETY: A word of a region; if it is not mapped, the signal's handler repeats this.
    let value = unsafe { (at as *const u64).read_volatile() };
    IN_VAIN.store(0, SeqCst);
    value
}

fn store(at: usize, value: u64) {
    // SAFETY: As above.
    unsafe { (at as *mut u64).write_volatile(value) };
    IN_VAIN.store(0, SeqCst);
}

fn violation(what: String) {
    let _ = VIOLATION.set(what);
    STOP.store(true, SeqCst);
}

impl Region {
    fn new(number: usize, kind: Kind, pages: usize, folder: &str) -> Result<Self> {
        let file = match kind {
            Kind::Memfd => {
                // SAFETY: A string with its end.
                let fd = check(unsafe { libc::memfd_create(c"races".as_ptr(), 0) })?;
                // SAFETY: A new descriptor.
                Some(unsafe { File::from_raw_fd(fd) })
            }
            Kind::PrivateFile | Kind::SharedFile => {
                let path = format!("{folder}/races-{number}");
                let mut open = File::options();
                let file = open.read(true).write(true).create(true).truncate(true);
                let file = file.open(&path)?;
                std::fs::remove_file(&path)?;
                Some(file)
            }
            _ => None,
        };
        if let Some(file) = &file {
            file.set_len((PAGES * PAGE) as u64)?;
        }
        let region = Region {
            kind,
            at: BASE + number * APART + if kind == Kind::Huge { 0 } else { number * PAGE },
            pages,
            number: number as u64,
            file,
            changes: Mutex::new(()),
            started: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            lazy: AtomicBool::new(false),
            additions: AtomicU64::new(0),
            settled: [const { AtomicU64::new(0) }; PAGES],
        };
        region.map(region.at, 0, PAGES)?;
        if kind == Kind::Merged {
            for page in 0..PAGES {
                for word in [FIRST, SECOND] {
                    store(region.word(page, word), MERGED);
                }
            }
        }
        Ok(region)
    }

    /// Maps pages from `first` on, whose first one is to be at `at`.
    fn map(&self, at: usize, first: usize, len: usize) -> Result<()> {
        let sharing = if self.kind.shared() {
            libc::MAP_SHARED
        } else {
            libc::MAP_PRIVATE
        };
        let flags = sharing | libc::MAP_FIXED;
        match &self.file {
            Some(file) => {
                // SAFETY: Only this program's regions.
                let p = unsafe {
                    libc::mmap(
                        at as *mut _,
                        len * PAGE,
                        libc::PROT_READ | libc::PROT_WRITE,
                        flags,
                        file.as_raw_fd(),
                        (first * PAGE) as i64,
                    )
                };
                if p == libc::MAP_FAILED {
                    return Err(Error::last_os_error());
                }
            }
            None => {
                map_with(at, len, flags | libc::MAP_ANONYMOUS, -1)?;
            }
        }
        let advice = match self.kind {
            Kind::Huge => libc::MADV_HUGEPAGE,
            Kind::Merged => libc::MADV_MERGEABLE,
            _ => return Ok(()),
        };
        // SAFETY: What was mapped above. Kernels without it refuse, which is right.
        unsafe { libc::madvise(at as *mut _, len * PAGE, advice) };
        Ok(())
    }

    fn page(&self, page: usize) -> usize {
        self.at + page * PAGE
    }

    fn word(&self, page: usize, word: usize) -> usize {
        self.page(page) + word
    }

    fn key(&self, page: usize) -> u64 {
        1 + self.number * PAGES as u64 + page as u64
    }

    fn value(&self, page: usize, count: u32) -> u64 {
        let key = self.key(page);
        key << 48 | u64::from(count) << 16 | sum_of(key, count)
    }

    /// What the storer stores for a count. In a mergeable region, pages become equal at times.
    fn to_store(&self, page: usize, count: u32) -> u64 {
        if self.kind == Kind::Merged && count % 3 == 0 {
            MERGED
        } else {
            self.value(page, count)
        }
    }

    /// What a word is, unless it is what it can't be. `child`: by a child, of itself.
    fn judge(&self, page: usize, value: u64, child: bool) -> std::result::Result<Found, String> {
        if value == 0 || self.kind == Kind::Merged && value == MERGED {
            return Ok(Found::Base);
        }
        let count = (value >> 16) as u32;
        if value != self.value(page, count) || (count & CHILD != 0) != child {
            return Err(format!(
                "{:?} region {} page {page}: {value:#x} is not of this page",
                self.kind, self.number
            ));
        }
        Ok(Found::Count(count))
    }

    fn name(&self, page: usize) -> String {
        let drops = (self.started.load(SeqCst), self.finished.load(SeqCst));
        format!(
            "{:?} region {} page {page} at {:#x}, drops {drops:?}",
            self.kind,
            self.number,
            self.page(page)
        )
    }

    fn dropping<T>(&self, drops: bool, change: impl FnOnce() -> T) -> T {
        self.started.fetch_add(u64::from(drops), SeqCst);
        let result = change();
        self.finished.fetch_add(u64::from(drops), SeqCst);
        result
    }
}

/// What a storer stored last, or an adder left.
#[derive(Clone, Copy, Default)]
struct Last {
    value: u64,
    /// Drops that had ended before.
    finished: u64,
}

/// Whether a page may have been dropped since.
fn dropped(region: &Region, last: &Last) -> bool {
    region.started.load(SeqCst) > last.finished
}

fn still_there(region: &Region, page: usize, last: &Last) -> bool {
    for word in [FIRST, SECOND] {
        let value = load(region.word(page, word));
        let gone = value == 0 && dropped(region, last);
        if value != last.value && !gone {
            violation(format!(
                "{}: {:#x} was stored at {word}, and {value:#x} is there",
                region.name(page),
                last.value
            ));
            return false;
        }
    }
    true
}

fn storer(regions: &[Region], mut dice: Dice, lane: usize, plan: &Plan) {
    let mut counts = vec![[0u32; PAGES]; regions.len()];
    let mut lasts = vec![[None::<Last>; PAGES]; regions.len()];
    while !STOP.load(SeqCst) {
        TOUCHES.fetch_add(plan.burst as u64, SeqCst);
        for _ in 0..plan.burst {
            let r = dice.roll(regions.len());
            let page = dice.roll(plan.pages) / plan.storers * plan.storers + lane;
            let region = &regions[r];
            if page >= region.pages {
                continue;
            }
            if let Some(last) = &lasts[r][page] {
                if !still_there(region, page, last) {
                    return;
                }
            }
            counts[r][page] += 1;
            let value = region.to_store(page, counts[r][page]);
            let finished = region.finished.load(SeqCst);
            store(region.word(page, FIRST), value);
            store(region.word(page, SECOND), value);
            if region.started.load(SeqCst) == finished {
                region.settled[page].store(finished + 1, SeqCst);
            }
            lasts[r][page] = Some(Last { value, finished });
        }
    }
    // Nothing is dropped any more.
    for (region, lasts) in regions.iter().zip(&lasts) {
        for (page, last) in lasts.iter().enumerate() {
            if last.is_some_and(|last| !still_there(region, page, &last)) {
                return;
            }
        }
    }
}

/// What a loader has found at a word.
#[derive(Clone, Copy, Default)]
struct Seen {
    most: u32,
    /// The page was dropped since.
    gone: bool,
}

impl Seen {
    /// Whether this may come after that.
    fn note(&mut self, found: Found) -> bool {
        match found {
            Found::Base => self.gone = true,
            Found::Count(n) => {
                if n < self.most || n == self.most && self.gone {
                    return false;
                }
                *self = Seen {
                    most: n,
                    gone: false,
                };
            }
        }
        true
    }
}

/// Loads a word as the kernel does for a system call: by its address, or by its page frame.
/// It may copy byte by byte while somebody stores. None if it is not mapped.
fn load_as_kernel(by_frame: bool, scratch: &File, at: usize) -> Option<u64> {
    let mut value = 0u64;
    let own: *mut libc::c_void = (&raw mut value).cast();
    let vector = |at: *mut libc::c_void| libc::iovec {
        iov_base: at,
        iov_len: 8,
    };
    // SAFETY: The first may fail for want of a mapping; the others are of ours.
    let done = unsafe {
        if by_frame {
            let (to, from) = (vector(own), vector(at as *mut _));
            libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) == 8
        } else {
            let fd = scratch.as_raw_fd();
            libc::pwrite(fd, at as *const _, 8, 0) == 8 && libc::pread(fd, own, 8, 0) == 8
        }
    };
    done.then_some(value)
}

fn loader(regions: &[Region], mut dice: Dice, plan: &Plan) -> Result<()> {
    // SAFETY: A string with its end.
    let fd = check(unsafe { libc::memfd_create(c"loader".as_ptr(), 0) })?;
    // SAFETY: A new descriptor.
    let scratch = unsafe { File::from_raw_fd(fd) };
    let mut seen = vec![[[Seen::default(); 2]; PAGES]; regions.len()];
    while !STOP.load(SeqCst) {
        TOUCHES.fetch_add(plan.burst as u64, SeqCst);
        for _ in 0..plan.burst {
            let r = dice.roll(regions.len());
            let (page, way) = (dice.roll(plan.pages), dice.roll(24));
            let region = &regions[r];
            if way < 2 && region.kind != Kind::Merged {
                // By frame pins the page, and fork() copies a pinned page at once.
                let value = load_as_kernel(way == 0, &scratch, region.word(page, FIRST));
                let key = value.unwrap_or(0) >> 48;
                if key != 0 && key != region.key(page) {
                    violation(format!("{}: {value:x?} by the kernel", region.name(page)));
                    return Ok(());
                }
                continue;
            }
            let settled = region.settled[page].load(SeqCst);
            let mut found = [Found::Base; 2];
            for (i, word) in [SECOND, FIRST].into_iter().enumerate() {
                match region.judge(page, load(region.word(page, word)), false) {
                    Ok(what) => found[i] = what,
                    Err(what) => {
                        violation(what);
                        return Ok(());
                    }
                }
                let before = seen[r][page][i];
                if !seen[r][page][i].note(found[i]) {
                    violation(format!(
                        "{}: {} at {word} after {}, dropped since: {}",
                        region.name(page),
                        found[i].count(),
                        before.most,
                        before.gone
                    ));
                    return Ok(());
                }
            }
            // Dropped since both were stored, or stored once more to be equal to others.
            let excused = found[1] == Found::Base
                && (region.started.load(SeqCst) + 1 != settled || region.kind == Kind::Merged);
            if found[1].count() < found[0].count() && !excused {
                violation(format!(
                    "{}: the second word has {}, the first one then {}",
                    region.name(page),
                    found[0].count(),
                    found[1].count()
                ));
                return Ok(());
            }
        }
    }
    Ok(())
}

fn adder(regions: &[Region], mut dice: Dice, plan: &Plan) {
    let mut lasts = vec![[Last::default(); PAGES]; regions.len()];
    while !STOP.load(SeqCst) {
        TOUCHES.fetch_add(plan.burst as u64, SeqCst);
        for _ in 0..plan.burst {
            let r = dice.roll(regions.len());
            let page = dice.roll(plan.pages);
            let region = &regions[r];
            // Their pages would not be equal again.
            if region.kind == Kind::Merged {
                continue;
            }
            let most = 1 + region.additions.fetch_add(1, SeqCst);
            let finished = region.finished.load(SeqCst);
            // SAFETY: As in load(); aligned.
            let word = unsafe { AtomicU64::from_ptr(region.word(page, ADDED) as *mut u64) };
            let found = word.fetch_add(1, SeqCst);
            let last = &mut lasts[r][page];
            if found >= most || found < last.value && !dropped(region, last) {
                violation(format!(
                    "{}: {found} additions after {}, of {most} in all",
                    region.name(page),
                    last.value
                ));
                return;
            }
            *last = Last {
                value: found + 1,
                finished,
            };
        }
    }
}

/// userfaultfd, with pages that can be moved to a place of a thread's own.
struct Taker {
    fd: i32,
    at: usize,
}

impl Taker {
    fn ioctl<const N: usize>(fd: i32, request: u64, arg: &mut [u64; N]) -> bool {
        // SAFETY: The request's size is that of the array.
        unsafe { libc::ioctl(fd, request, arg.as_mut_ptr()) == 0 }
    }

    /// None if the kernel has none of it.
    fn new(lane: usize) -> Result<Option<Self>> {
        const API: u64 = 0xc018_aa3f;
        const REGISTER: u64 = 0xc020_aa00;
        const FEATURE_MOVE: u64 = 1 << 16;
        let at = SCRATCH + lane * APART;
        map_with(
            at,
            PAGES,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
        )?;
        // SAFETY: No memory is given.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as i32;
        let len = (PAGES * PAGE) as u64;
        let there = fd >= 0
            && Self::ioctl(fd, API, &mut [0xaa, FEATURE_MOVE, 0])
            && Self::ioctl(fd, REGISTER, &mut [at as u64, len, 1, 0]);
        Ok(there.then_some(Taker { fd, at }))
    }

    /// Takes a page out of a region, and looks at it.
    fn take(&self, region: &Region, page: usize) -> std::result::Result<(), String> {
        const MOVE: u64 = 0xc028_aa05;
        let to = self.at + page * PAGE;
        let mut request = [to as u64, region.page(page) as u64, PAGE as u64, 0, 0];
        if !Self::ioctl(self.fd, MOVE, &mut request) {
            return Ok(());
        }
        let looked = [FIRST, SECOND].map(|word| region.judge(page, load(to + word), false));
        // SAFETY: A page of this thread's own; it is missing again.
        unsafe { libc::madvise(to as *mut _, PAGE, libc::MADV_DONTNEED) };
        for found in looked {
            found.map_err(|what| format!("{what}, moved away"))?;
        }
        Ok(())
    }
}

struct Disturber<'a> {
    regions: &'a [Region],
    dice: Dice,
    taker: Option<Taker>,
    nodes: bool,
    /// In the middle.
    audits: bool,
    /// Children so far.
    children: u32,
}

impl Disturber<'_> {
    fn run(&mut self, steps: usize, plan: &Plan) -> Result<()> {
        for step in 0..steps {
            if self.audits && step == steps / 2 {
                audit();
            }
            let regions = self.regions;
            let region = &regions[self.dice.roll(regions.len())];
            let op = plan.ops[self.dice.roll(plan.ops.len())];
            let first = self.dice.roll(plan.pages);
            let len = 1 + self.dice.roll(plan.pages - first);
            let held = match region.changes.try_lock() {
                Ok(held) => Some(held),
                Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if held.is_some() {
                self.change(region, op, first, len)
                    .map_err(|e| Error::other(format!("{op:?} of {}: {e}", region.name(first))))?;
            }
            drop(held);
            let touches = TOUCHES.load(SeqCst) + plan.pace;
            while TOUCHES.load(SeqCst) < touches && !STOP.load(SeqCst) {
                std::thread::sleep(std::time::Duration::from_micros(500));
            }
            if STOP.load(SeqCst) {
                break;
            }
            // SAFETY: No arguments.
            unsafe { libc::sched_yield() };
        }
        Ok(())
    }

    fn change(&mut self, region: &Region, op: Op, first: usize, len: usize) -> Result<()> {
        let private = !region.kind.shared();
        let at: *mut libc::c_void = region.page(first) as *mut _;
        let bytes = len * PAGE;
        // SAFETY: Only pages of this program's regions, which the lock is for.
        unsafe {
            match op {
                Op::DontNeed => region.dropping(private, || {
                    libc::madvise(at, bytes, libc::MADV_DONTNEED);
                }),
                Op::Free => {
                    if !region.kind.has_file() {
                        region.lazy.store(true, SeqCst);
                        region.dropping(true, || libc::madvise(at, bytes, libc::MADV_FREE));
                    }
                }
                Op::Unmap => region.dropping(private, || {
                    check(libc::munmap(at, bytes))?;
                    region.map(at as usize, first, len)
                })?,
                Op::MapOver => {
                    region.dropping(private, || region.map(at as usize, first, len))?;
                }
                Op::Protect => {
                    let all = libc::PROT_READ | libc::PROT_WRITE;
                    let none = self.dice.roll(2) == 0;
                    if none {
                        check(libc::mprotect(at, bytes, libc::PROT_NONE))?;
                    }
                    if !none || self.dice.roll(2) == 0 {
                        check(libc::mprotect(at, bytes, libc::PROT_READ))?;
                    }
                    check(libc::mprotect(at, bytes, all))?;
                }
                Op::Move => {
                    let away = (at as usize + AWAY) as *mut _;
                    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                    // Refused if it is more than one mapping.
                    if libc::mremap(at, bytes, bytes, flags, away) != libc::MAP_FAILED
                        && libc::mremap(away, bytes, bytes, flags, at) == libc::MAP_FAILED
                    {
                        return Err(Error::last_os_error());
                    }
                }
                Op::MoveAndKeep => {
                    let away: *mut libc::c_void = (at as usize + AWAY) as *mut _;
                    let keep = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
                    region.dropping(private, || {
                        if libc::mremap(at, bytes, bytes, keep, away) != libc::MAP_FAILED {
                            check(libc::munmap(away, bytes))?;
                        }
                        Ok::<_, Error>(())
                    })?;
                }
                Op::PageOut => {
                    libc::madvise(at, bytes, libc::MADV_PAGEOUT);
                }
                Op::Cold => {
                    libc::madvise(at, bytes, libc::MADV_COLD);
                }
                Op::Collapse => {
                    const MADV_COLLAPSE: i32 = 25;
                    let start = region.at & !((2 << 20) - 1);
                    libc::madvise(start as *mut _, 2 << 20, MADV_COLLAPSE);
                }
                Op::Node => {
                    if self.nodes {
                        let node = self.dice.roll(2) as i32;
                        // Pages that are not there have no node.
                        let _ = move_pages(at.cast(), len, node);
                    }
                }
                Op::Fork => self.fork(region, first, len)?,
                Op::Truncate => {
                    if let Some(file) = &region.file {
                        // What is mapped privately ends, too.
                        region.dropping(true, || {
                            file.set_len((first * PAGE) as u64)?;
                            file.set_len((PAGES * PAGE) as u64)
                        })?;
                    }
                }
                Op::Punch => {
                    if let Some(file) = &region.file {
                        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                        let (from, fd) = ((first * PAGE) as i64, file.as_raw_fd());
                        // Private pages that were never stored to are those of the file.
                        region.dropping(true, || {
                            check(libc::fallocate(fd, how, from, bytes as i64)).map(drop)
                        })?;
                    }
                }
                Op::TakeAway => {
                    if let (Some(taker), Kind::Anon | Kind::Huge) = (&self.taker, region.kind) {
                        let taken = region.dropping(true, || taker.take(region, first));
                        if let Err(what) = taken {
                            violation(what);
                        }
                    }
                }
                Op::ClearRefs => {
                    let what = ["1", "4"][self.dice.roll(2)];
                    set("/proc/self/clear_refs", what)?;
                }
                Op::Guard => {
                    const INSTALL: i32 = 102;
                    const REMOVE: i32 = 103;
                    if private && !region.kind.has_file() {
                        region.dropping(true, || {
                            if libc::madvise(at, bytes, INSTALL) == 0 {
                                check(libc::madvise(at, bytes, REMOVE))?;
                            }
                            Ok::<_, Error>(())
                        })?;
                    }
                }
                Op::Lock => {
                    if libc::mlock(at, bytes) == 0 {
                        check(libc::munlock(at, bytes))?;
                    }
                }
                Op::Populate => {
                    let how = [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE];
                    libc::madvise(at, bytes, how[self.dice.roll(2)]);
                }
            }
        }
        Ok(())
    }

    /// A child whose private pages nobody else changes. It stores to them, and dies.
    fn fork(&mut self, region: &Region, first: usize, len: usize) -> Result<()> {
        self.children += 1;
        let (count, how) = (CHILD | self.children, self.dice.roll(3));
        let (private, lazy) = (!region.kind.shared(), region.lazy.load(SeqCst));
        let child = fork_child(|| {
            let looks = |page: usize| {
                let words = [FIRST, SECOND].map(|word| load(region.word(page, word)));
                let right = words.iter().all(|w| region.judge(page, *w, false).is_ok());
                (words, right)
            };
            for page in first..first + len {
                let (words, right) = looks(page);
                let file = region.kind.has_file();
                // Pages of a file that were not copied change with it.
                let again = looks(page).0;
                let same = again == words || lazy && again == [0; 2];
                if !right || private && !file && !same {
                    return 1;
                }
                if private {
                    store(region.word(page, SECOND), region.value(page, count));
                }
            }
            for page in first..first + len {
                let value = load(region.word(page, SECOND));
                let own = region.judge(page, value, true) == Ok(Found::Count(count));
                // A truncated file takes the copies with it.
                let gone = region.kind.has_file() && value == 0;
                if private && !own && !gone {
                    return 2;
                }
            }
            if how == 0 {
                // SAFETY: The end of this child.
                unsafe { libc::raise(libc::SIGKILL) };
            }
            0
        })?;
        if how == 1 {
            // SAFETY: A child of ours that has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        let status = wait_child(child)?;
        if status != 0 && status != libc::SIGKILL {
            violation(format!(
                "{}: a child's pages are not as they were: {status:#x}",
                region.name(first)
            ));
        }
        Ok(())
    }
}

/// The tracer's audit of itself, if there is a trace. The output is as without one, unless
/// something is found.
fn audit() {
    let told = std::fs::read_to_string("/sys/kernel/debug/vmtrace/audit").unwrap_or_default();
    for line in told.lines() {
        let (what, n) = line.split_once(' ').unwrap_or_default();
        if ["funny", "dangling", "astray", "miscounted"].contains(&what) && n != "0" {
            violation(format!("the audit finds\n{told}"));
        }
    }
    eprintln!("{} lines of audit", told.lines().count());
}

/// The page is not mapped, or protected, or beyond the file, for a moment.
extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: The kernel's.
    let at = unsafe { (*info).si_addr() } as usize;
    let mine = (BASE..BASE + REGIONS * APART).contains(&at);
    REPEATED.fetch_add(1, SeqCst);
    if !mine || IN_VAIN.fetch_add(1, SeqCst) > 10_000_000 {
        let text = b"an access faults for ever, or outside of the regions\n";
        // SAFETY: Ends the program.
        unsafe {
            libc::write(1, text.as_ptr().cast(), text.len());
            libc::_exit(3);
        }
    }
    // SAFETY: No arguments.
    unsafe { libc::sched_yield() };
}

fn prepare() -> Result<bool> {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: A handler of the right type.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            check(libc::sigaction(signal, &action, std::ptr::null_mut()))?;
        }
    }
    // A machine without them has less to race with. One without disks swaps to its memory.
    let _ = swap_on("/dev/swap").or_else(|_| swap_on("/dev/ram0"));
    let _ = set("/sys/kernel/mm/ksm/sleep_millisecs", "2");
    let _ = set("/sys/kernel/mm/ksm/run", "1");
    std::fs::exists("/sys/devices/system/node/node1")
}

fn races(mut plan: Plan, seed: u64, steps: usize, folder: &str, only: &str) -> Result<()> {
    if !only.is_empty() {
        let named = |op: &Op| only.split(',').any(|name| name == format!("{op:?}"));
        plan.ops = Op::ALL.into_iter().filter(named).collect();
        if plan.ops.is_empty() {
            return Err(Error::other(format!(
                "none of these is an operation: {only}"
            )));
        }
    }
    let nodes = prepare()?;
    let regions: Vec<_> = (plan.kinds.iter().enumerate())
        .map(|(number, kind)| Region::new(number, *kind, plan.pages, folder))
        .collect::<Result<_>>()?;
    let failed = Mutex::new(None);
    let note = |result: Result<()>| {
        if let Err(e) = result {
            STOP.store(true, SeqCst);
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
        }
    };
    let (plan, regions, note) = (&plan, &regions[..], &note);
    let dice = |lane: usize| Dice::new(seed, 1 + lane as u64);
    std::thread::scope(|s| {
        for lane in 0..plan.storers {
            s.spawn(move || storer(regions, dice(lane), lane, plan));
        }
        for lane in 0..plan.loaders {
            s.spawn(move || note(loader(regions, dice(16 + lane), plan)));
        }
        for lane in 0..plan.adders {
            s.spawn(move || adder(regions, dice(32 + lane), plan));
        }
        let disturbers: Vec<_> = (0..plan.disturbers)
            .map(|lane| {
                s.spawn(move || {
                    let taker = match Taker::new(lane) {
                        Ok(taker) => taker,
                        Err(e) => return note(Err(e)),
                    };
                    let mut d = Disturber {
                        regions,
                        dice: dice(64 + lane),
                        taker,
                        nodes,
                        audits: lane == 0,
                        children: (lane as u32) << 24,
                    };
                    note(d.run(steps, plan));
                })
            })
            .collect();
        for d in disturbers {
            let _ = d.join();
        }
        STOP.store(true, SeqCst);
    });
    let merged = std::fs::read_to_string("/sys/kernel/mm/ksm/pages_sharing").unwrap_or_default();
    let _ = set("/sys/kernel/mm/ksm/run", "0");
    eprintln!("{} accesses repeated", REPEATED.load(SeqCst));
    // All of this boot.
    let pages = |what| counter("/proc/vmstat", what);
    let (out, back) = (pages("pswpout"), pages("pswpin"));
    eprintln!("{} merged {out} out {back} back", merged.trim());
    if let Some(e) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(e);
    }
    match VIOLATION.get() {
        Some(what) => {
            println!("seed {seed}: {what}");
            Err(Error::other("a page is not what it must be"))
        }
        None => {
            println!("ok");
            Ok(())
        }
    }
}

/// Sets the tracer's delays.
fn late(what: Option<&str>, longest: Option<&str>) -> Result<()> {
    const FILE: &str = "/sys/kernel/debug/vmtrace/late";
    let text = std::fs::read_to_string(FILE)?;
    let Some(what) = what else {
        print!("{text}");
        return Ok(());
    };
    let seed = match what.parse() {
        Ok(0) => return set(FILE, "0,0,0"),
        Ok(seed) => seed,
        Err(_) => return set(FILE, what),
    };
    let points = text.lines().skip(1).count();
    let mut dice = Dice::new(seed, 255);
    let share = 1 + dice.roll(4);
    let mut mask = 1u64 << dice.roll(points);
    for point in 0..points {
        mask |= u64::from(dice.roll(share) == 0) << point;
    }
    let us = [3, 31, 120][dice.roll(3)];
    let us = longest.and_then(|us| us.parse().ok()).unwrap_or(us);
    set(FILE, &format!("{seed},{mask:x},{us}"))
}

fn main() -> Result<()> {
    let word = std::env::args().nth(1).unwrap_or_default();
    match word.as_str() {
        "late" => late(
            std::env::args().nth(2).as_deref(),
            std::env::args().nth(3).as_deref(),
        ),
        "many" => {
            let seed = arg(2, 1) as u64;
            let plan = Plan::many(seed, arg(4, 250) as u64);
            races(plan, seed, arg(3, 200), "/tmp", "")
        }
        "digest" => {
            let path = std::env::args().nth(2).unwrap_or_default();
            let bytes = std::fs::read(path)?;
            // FNV-1a.
            let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
            });
            println!("{} bytes, {hash:016x}", bytes.len());
            Ok(())
        }
        "plan" => {
            println!("{:?}", Plan::new(arg(2, 1) as u64));
            Ok(())
        }
        _ => {
            let mut more = std::env::args().skip(3);
            let folder = more.next().unwrap_or_else(|| "/tmp".into());
            let only = more.next().unwrap_or_default();
            let seed = arg(1, 1) as u64;
            races(Plan::new(seed), seed, arg(2, 200), &folder, &only)
        }
    }
}
