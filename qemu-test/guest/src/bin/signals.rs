//! Signals on the stack and on a stack of their own that touch pages, with a
//! frame that the kernel writes and reads.
use kvmtrace_guest::{PAGE, check, map_at, read, sum, write};
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGES: usize = 40;
const BASE: usize = 0x1000_0000_0000;
static SEEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handler(signal: i32) {
    let n = SEEN.fetch_add(1, Ordering::Relaxed);
    for i in 0..20 {
        write(BASE as *mut u8, (n + i) % PAGES, signal as u8);
    }
    if signal == libc::SIGUSR1 {
        // SAFETY: A signal to this very thread.
        unsafe { libc::raise(libc::SIGUSR2) };
    }
}

fn main() -> std::io::Result<()> {
    let base = map_at(BASE, PAGES)?;
    let stack = map_at(0x1100_0000_0000, 16)?;
    let own = libc::stack_t {
        ss_sp: stack.cast(),
        ss_flags: 0,
        ss_size: 16 * PAGE,
    };
    // SAFETY: Handlers of the right type; the stack stays mapped.
    unsafe {
        check(libc::sigaltstack(&own, std::ptr::null_mut()))?;
        for (signal, flags) in [(libc::SIGUSR1, libc::SA_ONSTACK), (libc::SIGUSR2, 0)] {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = flags;
            check(libc::sigaction(signal, &action, std::ptr::null_mut()))?;
        }
    }
    for i in 0..PAGES {
        read(base, i);
        // SAFETY: A signal to this very thread.
        unsafe {
            libc::raise(if i % 2 == 0 {
                libc::SIGUSR1
            } else {
                libc::SIGUSR2
            })
        };
    }
    println!("{} {}", SEEN.load(Ordering::Relaxed), sum(base, PAGES));
    Ok(())
}
