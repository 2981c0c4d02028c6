//! What must not be touched: PROT_NONE, guard pages of both kinds, a thread's
//! stack end, what lies past a file's end. Signals and errors are counted.
use kvmtrace_guest::{PAGE, check, map_at, map_with, read, sum, write};
use std::io::Result;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

const BASE: usize = 0x1000_0000_0000;
const PAGES: usize = 90;
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

static FAULTS: AtomicUsize = AtomicUsize::new(0);
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static WRONG: AtomicUsize = AtomicUsize::new(0);
static EXPECTED: AtomicUsize = AtomicUsize::new(0);

// Where to go on after a fault.
unsafe extern "C" {
    #[link_name = "__sigsetjmp"]
    fn sigsetjmp(at: *mut u64, mask: i32) -> i32;
    fn siglongjmp(at: *mut u64, value: i32) -> !;
}
static mut BACK: [u64; 64] = [0; 64];

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    FAULTS.fetch_add(1, Relaxed);
    SIGNAL.store(signal, Relaxed);
    // SAFETY: The kernel gives a valid siginfo; touch() has set the place.
    unsafe {
        CODE.store((*info).si_code, Relaxed);
        if (*info).si_addr() as usize != EXPECTED.load(Relaxed) {
            WRONG.fetch_add(1, Relaxed);
        }
        siglongjmp(&raw mut BACK as *mut u64, 1)
    }
}

/// Touches a byte; true if no signal came.
#[inline(never)]
fn touch(at: usize, store: bool) -> bool {
    EXPECTED.store(at, Relaxed);
    // SAFETY: Nothing with a destructor lies between; one thread at a time.
    unsafe {
        if sigsetjmp(&raw mut BACK as *mut u64, 1) != 0 {
            return false;
        }
        let p = at as *mut u8;
        if store {
            p.write_volatile(1);
        } else {
            p.read_volatile();
        }
    }
    true
}

/// Touches the pages twice, reading and writing, and tells what came of it.
fn tell(what: &str, base: *mut u8, pages: usize) {
    FAULTS.store(0, Relaxed);
    let mut through = 0;
    for store in [false, true, false] {
        for i in 0..pages {
            through += usize::from(touch(base as usize + i * PAGE + 5, store));
        }
    }
    println!(
        "{what}: {} signals {} code {}, {through} through, {} at a wrong address",
        FAULTS.load(Relaxed),
        SIGNAL.load(Relaxed),
        CODE.load(Relaxed),
        WRONG.swap(0, Relaxed)
    );
}

fn deep(n: u64) -> u64 {
    let room = std::hint::black_box([n as u8; PAGE]);
    if n == 0 {
        return u64::from(room[0]);
    }
    deep(n - 1) + u64::from(room[PAGE / 2])
}

/// A thread that runs into the end of its stack.
extern "C" fn overflow(_: *mut libc::c_void) -> *mut libc::c_void {
    let Ok(alt) = map_at(0x1300_0000_0000, 16) else {
        return std::ptr::null_mut();
    };
    let own = libc::stack_t {
        ss_sp: alt.cast(),
        ss_flags: 0,
        ss_size: 16 * PAGE,
    };
    // SAFETY: The stack stays mapped; nothing with a destructor is left behind.
    unsafe {
        libc::sigaltstack(&own, std::ptr::null_mut());
        if sigsetjmp(&raw mut BACK as *mut u64, 1) == 0 {
            std::hint::black_box(deep(1 << 30));
        }
    }
    std::ptr::null_mut()
}

fn stack() -> Result<()> {
    FAULTS.store(0, Relaxed);
    // SAFETY: The attributes are initialised, the thread is joined.
    unsafe {
        let mut attr: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&mut attr);
        libc::pthread_attr_setstacksize(&mut attr, 64 * PAGE);
        let mut thread = 0;
        check(-libc::pthread_create(
            &mut thread,
            &attr,
            overflow,
            std::ptr::null_mut(),
        ))?;
        check(-libc::pthread_join(thread, std::ptr::null_mut()))?;
    }
    WRONG.store(0, Relaxed);
    println!(
        "stack's end: {} signal {} code {}",
        FAULTS.load(Relaxed),
        SIGNAL.load(Relaxed),
        CODE.load(Relaxed)
    );
    Ok(())
}

fn main() -> Result<()> {
    // SAFETY: A handler of the right type.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            check(libc::sigaction(signal, &action, std::ptr::null_mut()))?;
        }
    }
    let base = map_at(BASE, PAGES)?;
    for i in 0..PAGES {
        write(base, i, i as u8);
    }
    let whole = PAGES * PAGE;
    let protect = |prot| {
        // SAFETY: The range is the program's own.
        check(unsafe { libc::mprotect(base.cast(), whole, prot) })
    };
    tell("mapped", base, PAGES);
    protect(libc::PROT_NONE)?;
    tell("none", base, PAGES);
    protect(libc::PROT_READ)?;
    tell("read", base, PAGES);
    protect(libc::PROT_READ | libc::PROT_EXEC)?;
    tell("exec", base, PAGES);
    protect(libc::PROT_READ | libc::PROT_WRITE)?;
    tell("all", base, PAGES);

    // SAFETY: Ranges are the program's own.
    unsafe {
        // Guards over members, over cold pages, over what was never touched.
        check(libc::madvise(base.cast(), 30 * PAGE, MADV_GUARD_INSTALL))?;
        tell("guards", base, 30);
        let err = libc::write(1, base.add(3 * PAGE).cast(), 8);
        println!("write from a guard {err}, {}", *libc::__errno_location());
        check(libc::madvise(base.cast(), 30 * PAGE, MADV_GUARD_REMOVE))?;
        println!("removed {}", sum(base, PAGES));
        check(libc::munmap(base.add(40 * PAGE).cast(), 10 * PAGE))?;
        tell("unmapped", base.add(40 * PAGE), 10);
    }

    let fd = {
        // SAFETY: A string with its end.
        let fd = check(unsafe { libc::memfd_create(c"short".as_ptr(), 0) })?;
        // SAFETY: A descriptor of ours.
        check(unsafe { libc::ftruncate(fd, (10 * PAGE) as i64) })?;
        fd
    };
    for (what, flags) in [("shared", libc::MAP_SHARED), ("private", libc::MAP_PRIVATE)] {
        let file = map_with(0x1100_0000_0000, 20, flags | libc::MAP_FIXED, fd)?;
        tell(what, file, 20);
        read(file, 0);
        // SAFETY: A descriptor of ours.
        check(unsafe { libc::ftruncate(fd, (5 * PAGE) as i64) })?;
        tell("cut", file, 20);
        // SAFETY: As above.
        check(unsafe { libc::ftruncate(fd, (10 * PAGE) as i64) })?;
        tell("long again", file, 20);
    }
    stack()?;
    stack()
}
