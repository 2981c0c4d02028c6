//! Changes protections and counts faults that reach the program: exactly one
//! per page.
use kvmtrace_guest::{PAGE, check, map_at, read, sum, write};
use std::sync::atomic::{AtomicUsize, Ordering};

static FAULTS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    FAULTS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: The kernel gives a valid siginfo; the page is the program's own.
    unsafe {
        let page = (*info).si_addr() as usize & !(PAGE - 1);
        libc::mprotect(
            page as *mut libc::c_void,
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
        );
    }
}

fn main() -> std::io::Result<()> {
    const PAGES: usize = 100;
    // SAFETY: A handler of the right type.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        check(libc::sigaction(
            libc::SIGSEGV,
            &action,
            std::ptr::null_mut(),
        ))?;
    }
    let base = map_at(0x1000_0000_0000, PAGES)?;
    for i in 0..PAGES {
        write(base, i, i as u8);
    }
    for (prot, store) in [
        (libc::PROT_NONE, false),
        (libc::PROT_READ, true),
        (libc::PROT_NONE, true),
        (libc::PROT_READ, false),
        (libc::PROT_READ | libc::PROT_WRITE, true),
    ] {
        FAULTS.store(0, Ordering::Relaxed);
        // SAFETY: The range is the program's own.
        check(unsafe { libc::mprotect(base.cast(), PAGES * PAGE, prot) })?;
        for _ in 0..2 {
            for i in 0..PAGES {
                if store {
                    write(base, i, i as u8);
                } else {
                    read(base, i);
                }
            }
        }
        println!(
            "{prot} {store}: {} faults, {}",
            FAULTS.load(Ordering::Relaxed),
            sum(base, PAGES)
        );
    }
    Ok(())
}
