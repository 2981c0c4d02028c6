//! Pages reached by other ways than a plain access: populated, locked, advised
//! about, read by process_vm_readv(), woken on by futex(), gathered by one
//! instruction, hit by a fault that never comes to its access.
use kvmtrace_guest::{PAGE, check, map_at, map_with, read, sum, write};
use std::arch::x86_64::{_mm256_i32gather_epi32, _mm256_set_epi32, _mm256_storeu_si256};

/// Loads eight words, each of which lies on two pages.
///
/// # Safety
///
/// The CPU has AVX2, and 16 pages from `base` are the program's own.
#[target_feature(enable = "avx2")]
unsafe fn gather(base: *mut u8) -> u64 {
    let step = 2 * PAGE as i32;
    let at = _mm256_set_epi32(
        7 * step,
        6 * step,
        5 * step,
        4 * step,
        3 * step,
        2 * step,
        step,
        0,
    );
    let mut words = [0u32; 8];
    // SAFETY: By the caller's promise; the words have room for the vector.
    unsafe {
        let v = _mm256_i32gather_epi32::<1>(base.add(PAGE - 2).cast(), at);
        _mm256_storeu_si256(words.as_mut_ptr().cast(), v);
    }
    words.iter().map(|w| u64::from(*w)).sum()
}

fn main() -> std::io::Result<()> {
    const PAGES: usize = 80;
    let base = map_at(0x1000_0000_0000, PAGES)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_POPULATE;
    let full = map_with(0x1100_0000_0000, PAGES, flags, -1)?;
    let mut n = 0u64;
    let advise = |advice| {
        // SAFETY: The range is the program's own, and nothing lies in it.
        check(unsafe { libc::madvise(base.cast(), PAGES / 2 * PAGE, advice) })
    };
    for round in 0..3u8 {
        for i in 0..PAGES {
            n += u64::from(read(full, i));
            write(base, i, round);
        }
        // SAFETY: The ranges are the program's own.
        unsafe {
            check(libc::mlock(base.add(10 * PAGE).cast(), 20 * PAGE))?;
            let local = libc::iovec {
                iov_base: full.add(4000).cast(),
                iov_len: 20 * PAGE,
            };
            let remote = libc::iovec {
                iov_base: base.add(9 * PAGE + 10).cast(),
                iov_len: 20 * PAGE,
            };
            let got = libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0);
            n += check(got as i32)? as u64;
            check(libc::munlock(base.add(10 * PAGE).cast(), 20 * PAGE))?;
            if std::arch::is_x86_feature_detected!("avx2") {
                n += gather(full.add(usize::from(round) * PAGE));
            }
        }
        for i in 1..PAGES - 1 {
            // Wakes nobody, adds one to a word of a page that is cold.
            // SAFETY: Both words lie in the mappings.
            check(unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    full.add(i * PAGE),
                    libc::FUTEX_WAKE_OP,
                    1,
                    1,
                    base.add((PAGES - i) * PAGE),
                    1 << 28 | 1 << 12,
                )
            } as i32)?;
        }
        advise([libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_COLD][usize::from(round)])?;
        n += sum(base, PAGES);
        // System calls that fail at a page that is not there.
        // SAFETY: Bad addresses are the kernel's to refuse.
        unsafe {
            let wild = 0x1300_0000_0000usize as *mut libc::c_void;
            n += (libc::write(1, wild, 10) + libc::pipe(wild.cast()) as isize + 2) as u64;
        }
    }
    println!("{n} {}", sum(full, PAGES));
    Ok(())
}
