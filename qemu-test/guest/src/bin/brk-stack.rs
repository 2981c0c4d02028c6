//! Grows the heap by brk and the stack by recursion, and gives the heap back.
use kvmtrace_guest::{PAGE, sum, write};

fn deep(n: u32) -> u64 {
    let mut room = [0u8; 16 * PAGE];
    for i in 0..16 {
        write(room.as_mut_ptr(), i, n as u8);
    }
    let below = if n == 0 { 0 } else { deep(n - 1) };
    below + sum(room.as_mut_ptr(), 16)
}

fn main() {
    const PAGES: usize = 300;
    // SAFETY: Nothing else moves the break: malloc works above what it has.
    let base = unsafe { libc::sbrk((PAGES * PAGE) as libc::intptr_t) } as *mut u8;
    for i in 0..PAGES - 1 {
        write(base, i, i as u8);
    }
    println!("heap {}", sum(base, PAGES - 1));
    // SAFETY: Gives back the upper half, which is not used after.
    unsafe { libc::sbrk(-((PAGES / 2 * PAGE) as libc::intptr_t)) };
    println!("half {}", sum(base, PAGES / 2 - 1));
    println!("stack {}", deep(60));
}
