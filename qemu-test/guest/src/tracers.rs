//! Tracers of references in user space, as lean as they can be: what kVMTrace is compared with.
//!
//! A tracer keeps the N pages accessible that were admitted last. A reference to any other page
//! faults. The tracer logs that reference, makes the page that was admitted N references ago
//! inaccessible, and makes the page of the reference accessible. The log is a ring of records in
//! memory, which nobody writes to a file. The last N records of the log are the set.
//!
//! The three [ways](Way) differ in how a page is made inaccessible, and in how the tracer learns
//! of the fault. No way has a lock of its own: threads that fault at a time take numbers from one
//! counter.
use crate::uffd::{REGISTER, RWP, RWPROTECT, ioctl, open};
use crate::{PAGE, check, stay_on, ticks};
use std::arch::asm;
use std::cell::Cell;
use std::io::{Error, Result};
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Where the first region of traced pages lies.
const BASE: usize = 0x1000_0000_0000;
/// From a region to the next one: what a table of the third level maps, so that two regions
/// share no table of pages.
const APART: usize = 1 << 30;

/// Features of userfaultfd.
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_RWP: u64 = 1 << 17;

/// Modes of [`RWPROTECT`]: pages become inaccessible; they become accessible, and nobody waits
/// for that.
const PROTECT: u64 = 1;
const DONT_WAKE: u64 = 2;

/// Set in a record's address if the reference was a store.
const STORE: u64 = 1;
/// What the CPU says of a fault by a store (arch/x86/include/asm/trap_pf.h).
const ERROR_WRITE: i64 = 1 << 1;
/// What both signals' codes are if a page is inaccessible: SEGV_ACCERR and BUS_ADRERR.
const INACCESSIBLE: i32 = 2;

/// Where region `i` lies.
pub fn region(i: usize) -> usize {
    BASE + i * APART
}

/// Where a plugin of QEMU begins to count. The instruction does nothing on any CPU: it is a NOP
/// with an operand in memory that no compiler emits. The compiler moves no access to memory
/// across it.
#[inline(always)]
pub fn mark_begin() {
    // SAFETY: The instruction changes nothing, not even what its operand names.
    unsafe {
        asm!(
            // nop DWORD PTR [rax+0x4b564d42]
            ".byte 0x0f, 0x1f, 0x80, 0x42, 0x4d, 0x56, 0x4b",
            options(nostack, preserves_flags)
        );
    }
}

/// Where a plugin of QEMU ends to count, as [`mark_begin`].
#[inline(always)]
pub fn mark_end() {
    // SAFETY: As for the other one.
    unsafe {
        asm!(
            // nop DWORD PTR [rax+0x4b564d45]
            ".byte 0x0f, 0x1f, 0x80, 0x45, 0x4d, 0x56, 0x4b",
            options(nostack, preserves_flags)
        );
    }
}

/// Waits without sleep, but lets others of this CPU run at times.
pub fn spin_until(done: impl Fn() -> bool) {
    loop {
        for _ in 0..100 {
            if done() {
                return;
            }
            std::hint::spin_loop();
        }
        // SAFETY: It has no memory to go wrong with.
        unsafe { libc::sched_yield() };
    }
}

/// How a tracer in user space works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// mprotect() takes the right to access a page, and SIGSEGV reports the fault.
    Segv,
    /// UFFDIO_RWPROTECT does, and SIGBUS reports the fault.
    RwpSignal,
    /// UFFDIO_RWPROTECT does, and a thread reads the report of the fault from the userfaultfd.
    RwpThread,
}

impl Way {
    /// The way of that name.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "segv" => Ok(Way::Segv),
            "rwp-signal" => Ok(Way::RwpSignal),
            "rwp-thread" => Ok(Way::RwpThread),
            _ => Err(Error::other(format!(
                "{name}: no way to trace; there are segv, rwp-signal and rwp-thread"
            ))),
        }
    }
}

/// A reference and the stay that it began: 32 bytes.
#[derive(Default)]
struct Record {
    /// Address of the page, and [`STORE`].
    page: AtomicU64,
    /// When it was admitted.
    time: AtomicU64,
    /// When it left the set; 0 if it is there.
    until: AtomicU64,
    /// Who referenced it.
    thread: AtomicU32,
    /// The reference's number and 1, as soon as the page is accessible. Another number says that
    /// the place in the ring has an older record.
    number: AtomicU32,
}

/// A record, as it is read after the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// Which region.
    pub region: usize,
    /// Which page of it.
    pub page: usize,
    /// Whether it was a store.
    pub store: bool,
    /// Time-stamp counter.
    pub time: u64,
    /// When the page left the set; 0 if it did not.
    pub until: u64,
    /// Who referenced the page.
    pub thread: u32,
}

/// The tracer of this process.
pub struct Tracer {
    way: Way,
    /// Pages of the set.
    n: u64,
    /// Pages of each region.
    pages: usize,
    /// The userfaultfd of those ways that have one.
    fd: i32,
    /// A power of two of records.
    ring: Box<[Record]>,
    /// Whether a page is in the set, or is being admitted. Two threads that fault on one page at
    /// a time are one reference.
    held: Box<[AtomicBool]>,
    count: Count,
}

/// References so far: alone in its cache line, and not in that of what is only read.
#[repr(align(64))]
struct Count(AtomicU64);

static TRACER: OnceLock<Tracer> = OnceLock::new();
static FAILED: OnceLock<&'static AtomicBool> = OnceLock::new();

thread_local! {
    /// This thread's id, which a handler of signals has no system call for.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// Sets the flag to be raised if the tracer fails in a place that can return no error.
pub fn report_failure(flag: &'static AtomicBool) {
    // Who sets it twice keeps the first one.
    let _ = FAILED.set(flag);
}

/// Ends the process. For handlers of signals.
fn die(what: &str) -> ! {
    if let Some(flag) = FAILED.get() {
        flag.store(true, Relaxed);
    }
    // SAFETY: Bytes of a string; then the end.
    unsafe {
        libc::write(2, what.as_ptr().cast(), what.len());
        libc::_exit(1)
    }
}

impl Tracer {
    /// Makes the tracer of this process, which has one at most: a set of `n` pages, for `regions`
    /// regions of `pages` pages. Any thread that waits for faults runs on CPU `cpu`.
    ///
    /// # Errors
    ///
    /// The system's, or if there is a tracer already.
    pub fn start(
        way: Way,
        n: usize,
        regions: usize,
        pages: usize,
        cpu: usize,
    ) -> Result<&'static Self> {
        if n == 0 || pages > APART / PAGE {
            return Err(Error::other("N is 0, or a region is too large"));
        }
        let fd = match way {
            Way::Segv => -1,
            Way::RwpSignal => open(FEATURE_RWP | FEATURE_SIGBUS)?,
            Way::RwpThread => open(FEATURE_RWP | FEATURE_THREAD_ID)?,
        };
        // A record stays as long as any thread can need it: a thread that is late by N references
        // makes others wait.
        let records = ((regions + 2) * n).max(1 << 14).next_power_of_two();
        let tracer = Tracer {
            way,
            n: n as u64,
            pages,
            fd,
            // Each is written, so that no fault on the ring is counted later.
            ring: (0..records).map(|_| Record::default()).collect(),
            held: (0..regions * pages)
                .map(|_| AtomicBool::default())
                .collect(),
            count: Count(AtomicU64::new(0)),
        };
        TRACER
            .set(tracer)
            .map_err(|_| Error::other("a second tracer"))?;
        let tracer = TRACER
            .get()
            .ok_or_else(|| Error::other("no tracer was made"))?;
        match way {
            Way::Segv => catch(libc::SIGSEGV)?,
            Way::RwpSignal => catch(libc::SIGBUS)?,
            Way::RwpThread => {
                std::thread::Builder::new().spawn(move || tracer.serve(cpu))?;
            }
        }
        Ok(tracer)
    }

    /// Begins to trace a region that this thread has mapped and filled.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn arm(&self, i: usize) -> Result<()> {
        // SAFETY: It has no memory to go wrong with.
        THREAD.set(unsafe { libc::gettid() } as u32);
        let (at, len) = (region(i) as u64, (self.pages * PAGE) as u64);
        if self.way != Way::Segv {
            ioctl(self.fd, REGISTER, &mut [at, len, RWP, 0])?;
        }
        self.change(at, len, false)
    }

    /// Makes pages accessible or inaccessible.
    fn change(&self, at: u64, len: u64, accessible: bool) -> Result<()> {
        let mode = match (self.way, accessible) {
            (Way::Segv, _) => {
                let rights = match accessible {
                    true => libc::PROT_READ | libc::PROT_WRITE,
                    false => libc::PROT_NONE,
                };
                // SAFETY: Pages of a region, which has no values of Rust in it.
                let done = unsafe { libc::mprotect(at as *mut _, len as usize, rights) };
                return check(done).map(drop);
            }
            (_, false) => PROTECT,
            (Way::RwpSignal, true) => DONT_WAKE,
            (Way::RwpThread, true) => 0,
        };
        ioctl(self.fd, RWPROTECT, &mut [at, len, mode])
    }

    /// The same for one page, from places that can return no error.
    fn set(&self, page: u64, accessible: bool) {
        if self.change(page, PAGE as u64, accessible).is_err() {
            die("sharers: the kernel did not change a page's protection\n");
        }
    }

    /// Region and page of an address.
    fn place(&self, address: u64) -> Option<(usize, usize)> {
        let from = (address as usize).checked_sub(BASE)?;
        let (region, page) = (from / APART, from % APART / PAGE);
        (page < self.pages).then_some((region, page))
    }

    fn held(&self, page: u64) -> &AtomicBool {
        self.place(page)
            .and_then(|(region, page)| self.held.get(region * self.pages + page))
            .unwrap_or_else(|| die("sharers: a fault that is not the tracer's\n"))
    }

    fn record(&self, number: u64) -> &Record {
        &self.ring[number as usize & (self.ring.len() - 1)]
    }

    /// Logs a reference and lets it happen.
    fn admit(&self, address: u64, store: bool, thread: u32) {
        let page = address & !(PAGE as u64 - 1);
        if self.held(page).swap(true, Acquire) {
            // Another thread admits it. This one tries again.
            return;
        }
        let now = ticks();
        let number = self.count.0.fetch_add(1, Relaxed);
        if let Some(first) = number.checked_sub(self.n) {
            let oldest = self.record(first);
            // Who admits it may not be done yet.
            let after = (first as u32).wrapping_add(1);
            spin_until(|| oldest.number.load(Acquire) == after);
            let victim = oldest.page.load(Relaxed) & !STORE;
            self.set(victim, false);
            oldest.until.store(now, Relaxed);
            self.held(victim).store(false, Release);
        }
        let record = self.record(number);
        record.page.store(page | u64::from(store), Relaxed);
        record.time.store(now, Relaxed);
        record.until.store(0, Relaxed);
        record.thread.store(thread, Relaxed);
        self.set(page, true);
        let after = (number as u32).wrapping_add(1);
        record.number.store(after, Release);
    }

    /// Answers the messages of the userfaultfd (struct uffd_msg).
    fn serve(&self, cpu: usize) {
        /// Event of a fault, and flags of one by a store and of one on a protected page.
        const FAULT: u64 = 0x12;
        const FLAG_WRITE: u64 = 1;
        const FLAG_RWP: u64 = 8;
        if stay_on(cpu).is_err() {
            die("sharers: the tracer's thread can't be on its CPU\n");
        }
        let mut messages = [[0u64; 4]; 16];
        loop {
            // SAFETY: Room for so many messages.
            let n = unsafe {
                libc::read(
                    self.fd,
                    messages.as_mut_ptr().cast(),
                    size_of_val(&messages),
                )
            };
            let Ok(n) = usize::try_from(n) else {
                die("sharers: the userfaultfd can't be read\n");
            };
            for [event, flags, address, thread] in &messages[..n / 32] {
                if event & 0xff != FAULT || flags & FLAG_RWP == 0 {
                    die("sharers: the userfaultfd reports something else\n");
                }
                self.admit(*address, flags & FLAG_WRITE != 0, *thread as u32);
            }
        }
    }

    /// References so far.
    pub fn count(&self) -> u64 {
        self.count.0.load(Acquire)
    }

    /// The references from number `since` on that are still in the ring. Nobody may be traced
    /// meanwhile.
    pub fn references(&self, since: u64) -> Vec<Reference> {
        let end = self.count();
        let since = since.max(end.saturating_sub(self.ring.len() as u64));
        (since..end)
            .filter_map(|number| {
                let record = self.record(number);
                let address = record.page.load(Relaxed);
                let (region, page) = self.place(address)?;
                Some(Reference {
                    region,
                    page,
                    store: address & STORE != 0,
                    time: record.time.load(Relaxed),
                    until: record.until.load(Relaxed),
                    thread: record.thread.load(Relaxed),
                })
            })
            .collect()
    }
}

/// Lets the tracer handle a signal. No other signal is blocked meanwhile, not even the same one:
/// the kernel then takes no lock to change what is blocked.
fn catch(signal: i32) -> Result<()> {
    // SAFETY: A handler of the right type; zeros are an action without flags.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        check(libc::sigaction(signal, &action, std::ptr::null_mut()))?;
    }
    Ok(())
}

extern "C" fn on_fault(_: i32, info: *const libc::siginfo_t, context: *const libc::ucontext_t) {
    // SAFETY: The kernel gives both, with an address as faults have it.
    let (code, address, error) = unsafe {
        (
            (*info).si_code,
            (*info).si_addr() as u64,
            (*context).uc_mcontext.gregs[libc::REG_ERR as usize],
        )
    };
    match TRACER.get() {
        Some(tracer) if code == INACCESSIBLE => {
            tracer.admit(address, error & ERROR_WRITE != 0, THREAD.get());
        }
        _ => die("sharers: a signal that is not the tracer's\n"),
    }
}
