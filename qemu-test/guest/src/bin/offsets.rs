//! Accesses at known offsets within pages: reads, writes, fetches, accesses that span two pages, and
//! the kernel's. The scenario `offsets` knows the same addresses.
use kvmtrace_guest::{PAGE, check, map_at};
use std::hint::black_box;

const PAGES: usize = 200;
const ROUNDS: usize = 4;

/// Where page `i` is accessed in a round. Eight bytes from there on are of the page.
fn offset(i: usize, round: usize) -> usize {
    (i * 1103 + round * 517) % (PAGE - 7)
}

fn main() -> std::io::Result<()> {
    let data = map_at(0x1000_0000_0000, PAGES)?;
    let pairs = map_at(0x1100_0000_0000, PAGES)?;
    let code = map_at(0x1200_0000_0000, PAGES)?;
    let calls = map_at(0x1300_0000_0000, PAGES)?;
    for round in 0..ROUNDS {
        for i in 0..PAGES {
            // SAFETY: The byte is the program's own.
            unsafe {
                let at = data.add(i * PAGE + offset(i, round));
                match round % 2 {
                    0 => at.write_volatile(i as u8),
                    _ => drop(black_box(at.read_volatile())),
                }
            }
        }
    }
    for i in (0..PAGES).step_by(2) {
        // SAFETY: The bytes are the program's own.
        unsafe {
            let at = pairs.add((i + 1) * PAGE - 1 - i % 7).cast::<u64>();
            black_box(at.read_unaligned());
        }
    }
    for i in 0..PAGES {
        // SAFETY: The byte is the program's own: `ret`.
        unsafe { code.add(i * PAGE + offset(i, 0)).write_volatile(0xc3) };
    }
    // SAFETY: The range is the program's own.
    check(unsafe { libc::mprotect(code.cast(), PAGES * PAGE, libc::PROT_READ | libc::PROT_EXEC) })?;
    for i in 0..PAGES {
        // SAFETY: There is a function that returns at once.
        unsafe {
            let f: extern "C" fn() = std::mem::transmute(code.add(i * PAGE + offset(i, 0)));
            f();
        }
    }
    // SAFETY: The name is a string that ends with a zero.
    let zero = check(unsafe { libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY) })?;
    // SAFETY: As above.
    let file = check(unsafe { libc::memfd_create(c"offsets".as_ptr(), 0) })?;
    for round in 0..2 {
        for i in 0..PAGES {
            // SAFETY: The bytes are the program's own.
            let done = unsafe {
                let at = calls.add(i * PAGE + offset(i, round)).cast();
                match round {
                    0 => libc::read(zero, at, 8),
                    _ => libc::write(file, at, 8),
                }
            };
            if done != 8 {
                return Err(std::io::Error::last_os_error());
            }
        }
    }
    Ok(())
}
