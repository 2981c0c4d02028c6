//! protection PART: what each of the tracer's protections is for, so that its absence
//! shows. Addresses are fixed; see controls.rs for what must be in the trace.
use kvmtrace_guest::{PAGE, check, map_at, map_with, read, write};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const BASE: usize = 0x1000_0000_0000;
const OTHER: usize = 0x2000_0000_0000;
const AUDIT: &str = "/sys/kernel/debug/vmtrace/audit";

/// References a page in the second segment, and lets the kernel clear all accessed
/// bits, as reclaim does, before the page leaves the set.
fn clear_refs(rounds: usize) -> std::io::Result<()> {
    const COLD: usize = 300;
    let (page, cold) = (map_at(BASE, 1)?, map_at(OTHER, COLD)?);
    // Accessed bits of the zero page's PTEs are nobody's.
    write(page, 0, 1);
    let mut next = 0;
    let mut others = |pages: usize| {
        for _ in 0..pages {
            read(cold, next % COLD);
            next += 1;
        }
    };
    let mut clear = std::fs::OpenOptions::new()
        .write(true)
        .open("/proc/self/clear_refs")?;
    for _ in 0..rounds {
        read(page, 0);
        others(24);
        read(page, 0);
        clear.write_all(b"1")?;
        others(80);
    }
    Ok(())
}

/// Reads pages that are dirty already, and writes them after.
fn dirty(pages: usize, rounds: usize) -> std::io::Result<()> {
    let base = map_at(BASE, pages)?;
    for i in 0..pages {
        write(base, i, 1);
    }
    for round in 0..rounds {
        for i in 0..pages {
            let byte = read(base, i);
            write(base, i, byte.wrapping_add(round as u8));
        }
    }
    Ok(())
}

/// The same with pages that fork has write-protected, and that are the parent's
/// alone again.
fn upgrade(pages: usize) -> std::io::Result<()> {
    let base = map_at(BASE, pages)?;
    for i in 0..pages {
        write(base, i, 1);
    }
    // SAFETY: One thread; the child ends at once.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        // SAFETY: The end of the child.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: A child of ours.
    check(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) })?;
    for i in 0..pages {
        let byte = read(base, i);
        write(base, i, byte.wrapping_add(1));
    }
    Ok(())
}

/// Reads pages before and after each change of what may be done to them. They are the
/// zero page, which nobody may write: their PTEs are cleared and stored again as they
/// were, for which the kernel sees no need to flush.
fn reprotect(pages: usize, rounds: usize) -> std::io::Result<()> {
    let base = map_at(BASE, pages)?;
    for round in 0..rounds {
        let prot = match round % 2 {
            0 => libc::PROT_READ,
            _ => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: The program's own range.
        check(unsafe { libc::mprotect(base.cast(), pages * PAGE, prot) })?;
        for i in 0..pages {
            read(base, i);
        }
    }
    Ok(())
}

/// Has pages populated and locked, which it never touches.
fn populate(pages: usize) -> std::io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    map_with(BASE, pages, flags | libc::MAP_POPULATE, -1)?;
    let other = map_at(OTHER, pages)?;
    // SAFETY: The program's own range.
    check(unsafe { libc::mlock(other.cast(), pages * PAGE) })?;
    Ok(())
}

/// Has the kernel copy a byte to or from each page, which must fail.
fn denied(base: *mut u8, pages: usize, file: &File, store: bool) -> std::io::Result<()> {
    for i in 0..pages {
        // SAFETY: A byte of the program's own range, which the kernel does not access.
        let (fd, at) = (file.as_raw_fd(), unsafe { base.add(i * PAGE) }.cast());
        // SAFETY: As above.
        let done = check(unsafe {
            match store {
                true => libc::read(fd, at, 1) as i32,
                false => libc::write(fd, at, 1) as i32,
            }
        });
        match done {
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) => {}
            other => return Err(Error::other(format!("page {i}: {other:?}"))),
        }
    }
    Ok(())
}

/// The kernel stores to pages that may only be read, of which most are not in the set.
fn read_only(pages: usize) -> std::io::Result<()> {
    let base = map_at(BASE, pages)?;
    for i in 0..pages {
        read(base, i);
    }
    // SAFETY: The program's own range.
    check(unsafe { libc::mprotect(base.cast(), pages * PAGE, libc::PROT_READ) })?;
    denied(base, pages, &File::open("/dev/zero")?, true)
}

/// Calls that ended by a signal as without a trace, and others.
static DENIED: AtomicUsize = AtomicUsize::new(0);
static OTHERS: AtomicUsize = AtomicUsize::new(0);

/// Ends a call of what may not be executed as if it had returned.
extern "C" fn return_from_call(
    _: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    /// The page is present; user mode; a fetch (Intel SDM, volume 3, page-fault exceptions).
    const ERROR: i64 = 1 | 4 | 16;
    const SEGV_ACCERR: i32 = 2;
    // SAFETY: The kernel gives a handler with SA_SIGINFO both, which nobody else uses. A call has just stored its
    // return address where the stack pointer points.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let is_denied =
            (*info).si_code == SEGV_ACCERR && registers[libc::REG_ERR as usize] == ERROR;
        let count = if is_denied { &DENIED } else { &OTHERS };
        count.fetch_add(1, Relaxed);
        let stack = registers[libc::REG_RSP as usize];
        registers[libc::REG_RIP as usize] = *(stack as *const i64);
        registers[libc::REG_RSP as usize] = stack + 8;
    }
}

/// Calls pages that may not be executed. Most of the first ones are not in the set. The others were never touched.
fn no_execute(pages: usize) -> std::io::Result<()> {
    let (base, other) = (map_at(BASE, pages)?, map_at(OTHER, pages)?);
    for i in 0..pages {
        write(base, i, 1);
    }
    // SAFETY: Zeros are a valid action; its fields are set below.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_flags = libc::SA_SIGINFO;
    action.sa_sigaction = return_from_call as *const () as usize;
    // SAFETY: The handler changes nothing but where the program continues.
    check(unsafe { libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()) })?;
    for at in [base, other] {
        for i in 0..pages {
            // SAFETY: The processor executes nothing there. The handler returns.
            let page: extern "C" fn() = unsafe { std::mem::transmute(at.add(i * PAGE)) };
            page();
        }
    }
    let seen = (DENIED.load(Relaxed), OTHERS.load(Relaxed));
    if seen != (2 * pages, 0) {
        return Err(Error::other(format!("signals: {seen:?}")));
    }
    Ok(())
}

/// The kernel loads from pages whose protection key this thread may not use.
fn keys(pages: usize) -> std::io::Result<()> {
    const PKEY_DISABLE_ACCESS: usize = 1;
    let base = map_at(BASE, pages)?;
    for i in 0..pages {
        write(base, i, 1);
    }
    let all = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: A new key, for the program's own range.
    unsafe {
        let key = check(libc::syscall(libc::SYS_pkey_alloc, 0, PKEY_DISABLE_ACCESS) as i32)?;
        check(libc::syscall(libc::SYS_pkey_mprotect, base, pages * PAGE, all, key) as i32)?;
    }
    denied(base, pages, &File::create("/tmp/keys")?, false)
}

/// Gives pages away that are members, and lets the kernel audit itself.
fn dontneed(pages: usize) -> std::io::Result<()> {
    let base = map_at(BASE, pages)?;
    for i in 0..pages {
        write(base, i, 1);
    }
    // SAFETY: The program's own range.
    check(unsafe { libc::madvise(base.cast(), pages * PAGE, libc::MADV_DONTNEED) })?;
    audit()
}

/// Prints what the kernel's audit finds.
fn audit() -> std::io::Result<()> {
    print!("{}", std::fs::read_to_string(AUDIT)?);
    Ok(())
}

/// Runs a program, and has the kernel audit itself all the while. Prints the sums of
/// what the audits told.
fn beside(args: &[String]) -> std::io::Result<()> {
    let [program, args @ ..] = args else {
        return Err(Error::other("beside PROGRAM ARGS…"));
    };
    let mut child = std::process::Command::new(program)
        .args(args)
        .stdout(std::process::Stdio::null())
        .spawn()?;
    let mut sums = BTreeMap::new();
    let mut audits = 0;
    let status = loop {
        let text = std::fs::read_to_string(AUDIT)?;
        audits += 1;
        let mut told = BTreeMap::new();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("finding", _)) => println!("{line}"),
                Some((name, n)) => {
                    told.insert(name.to_owned(), n.parse::<u64>().map_err(Error::other)?);
                }
                None => return Err(Error::other(format!("what is {line:?}?"))),
            }
        }
        if told["members"] > told["size"] {
            println!("finding more members than N\n{text}");
        }
        for (name, n) in told {
            *sums.entry(name).or_insert(0) += n;
        }
        if let Some(status) = child.try_wait()? {
            break status;
        }
    };
    println!("audits {audits}");
    for (name, n) in sums {
        println!("{name} {n}");
    }
    if !status.success() {
        return Err(Error::other(format!("{program}: {status}")));
    }
    Ok(())
}

/// Touches memory that is to have huge pages.
fn huge(pages: usize) -> std::io::Result<()> {
    let base = map_at(BASE, pages)?;
    // SAFETY: The program's own range.
    check(unsafe { libc::madvise(base.cast(), pages * PAGE, libc::MADV_HUGEPAGE) })?;
    for i in 0..pages {
        write(base, i, 1);
    }
    Ok(())
}

/// Makes many events in one system call: a change of protection for as many mappings.
fn storm(pages: usize) -> std::io::Result<()> {
    // Nothing takes the CPU from this program unless it waits, so nothing makes room.
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: The caller's own policy.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &first) })?;
    let base = map_at(BASE, pages)?;
    for i in (0..pages).step_by(2) {
        // SAFETY: The program's own page.
        check(unsafe { libc::mprotect(base.add(i * PAGE).cast(), PAGE, libc::PROT_READ) })?;
    }
    // SAFETY: The program's own range.
    check(unsafe { libc::mprotect(base.cast(), pages * PAGE, libc::PROT_NONE) })?;
    Ok(())
}

/// Runs a program that gets SIGALRM after so many ms.
fn alarm(args: &[String]) -> std::io::Result<()> {
    let [ms, program, args @ ..] = args else {
        return Err(Error::other("alarm MS PROGRAM ARGS…"));
    };
    let ms: libc::time_t = ms.parse().map_err(Error::other)?;
    let timer = libc::itimerval {
        it_interval: libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        },
        it_value: libc::timeval {
            tv_sec: ms / 1000,
            tv_usec: ms % 1000 * 1000,
        },
    };
    // SAFETY: A timer, and no room for the old one.
    check(unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) })?;
    Err(std::process::Command::new(program).args(args).exec())
}

fn main() -> std::io::Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let part = args.first().map_or("", String::as_str);
    match part {
        "clear-refs" => clear_refs(10)?,
        "dirty" => dirty(100, 3)?,
        "upgrade" => upgrade(100)?,
        "reprotect" => reprotect(10, 20)?,
        "populate" => populate(200)?,
        "read-only" => read_only(100)?,
        "no-execute" => no_execute(100)?,
        "keys" => keys(100)?,
        "dontneed" => dontneed(30)?,
        "beside" => beside(&args[1..])?,
        "huge" => huge(1024)?,
        "storm" => storm(1000)?,
        "alarm" => alarm(&args[1..])?,
        _ => return Err(Error::other(format!("no part {part:?}"))),
    }
    println!("{part} done");
    Ok(())
}
