//! Loads, stores and instructions that lie on two pages, of which the first is a
//! member whose turn to go may come when the second one is admitted.
use kvmtrace_guest::{PAGE, check, map_at, read, write};

const COLD: usize = 200;
/// Admissions between the first page's and the second one's: with what else the
/// program needs, some are as many as a set of 64 pages has places.
const DISTANCES: std::ops::Range<usize> = 24..64;

/// `mov $1, %eax; ret`, three bytes on one page and three on the next.
const CODE: [u8; 6] = [0xb8, 1, 0, 0, 0, 0xc3];
const RET: u8 = 0xc3;

fn main() -> std::io::Result<()> {
    let pairs = DISTANCES.len();
    let cold = map_at(0x1000_0000_0000, COLD)?;
    let data = map_at(0x1100_0000_0000, 4 * pairs)?;
    let code = map_at(0x1200_0000_0000, 2 * pairs)?;
    for pair in 0..pairs {
        write(code, 2 * pair, RET);
        // SAFETY: The end of one page of the mapping, and the beginning of the next.
        unsafe {
            code.add((2 * pair + 1) * PAGE - 3)
                .copy_from_nonoverlapping(CODE.as_ptr(), CODE.len());
        }
    }
    // SAFETY: The range is the program's own.
    check(unsafe {
        libc::mprotect(
            code.cast(),
            2 * pairs * PAGE,
            libc::PROT_READ | libc::PROT_EXEC,
        )
    })?;
    let run = |at: usize| {
        // SAFETY: A function that was written there above.
        let f: extern "C" fn() -> u32 = unsafe { std::mem::transmute(code.add(at)) };
        f()
    };
    let (mut n, mut next) = (0u64, 0);
    for kind in 0..3 {
        for (pair, distance) in DISTANCES.enumerate() {
            let first = 2 * pair + if kind == 1 { 2 * pairs } else { 0 };
            if kind == 2 {
                run(first * PAGE);
            } else {
                n += u64::from(read(data, first));
            }
            for _ in 0..distance {
                n += u64::from(read(cold, next));
                next = (next + 1) % COLD;
            }
            // SAFETY: Eight bytes on two pages of the mapping.
            let p = unsafe { data.add((first + 1) * PAGE - 4).cast::<u64>() };
            match kind {
                // SAFETY: As above.
                0 => n = n.wrapping_add(unsafe { p.read_unaligned() }),
                // SAFETY: As above.
                1 => unsafe { p.write_unaligned(n) },
                _ => n += u64::from(run((first + 1) * PAGE - 3)),
            }
        }
    }
    println!("{n}");
    Ok(())
}
