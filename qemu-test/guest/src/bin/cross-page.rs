//! Accesses that need several pages at once: operands and instructions that lie
//! on two pages, string instructions, and all of it together.
use kvmtrace_guest::{PAGE, check, map_at, sum};
use std::arch::asm;

/// `rep movsb`.
///
/// # Safety
///
/// Both ranges are the program's own.
unsafe fn rep_movs(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: By the caller's promise.
    unsafe {
        asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") len => _,
             options(nostack, preserves_flags));
    }
}

fn main() -> std::io::Result<()> {
    const PAGES: usize = 40;
    let a = map_at(0x1000_0000_0000, PAGES)?;
    let b = map_at(0x1100_0000_0000, PAGES)?;
    let code = map_at(0x1200_0000_0000, PAGES)?;
    let mut n = 0u64;
    // SAFETY: All accesses are inside the three mappings; the code that is
    // written is complete before it is run.
    unsafe {
        for i in 1..PAGES {
            // Eight bytes, four on each page; then eight that are read first.
            let p = a.add(i * PAGE - 4).cast::<u64>();
            p.write_unaligned(i as u64);
            let q = b.add((PAGES - i) * PAGE - 3).cast::<u64>();
            n = n.wrapping_add(q.read_unaligned());
            q.write_unaligned(n);
            // Sixteen bytes with one instruction.
            asm!("movdqu {x}, [{p}]", "movdqu [{q}], {x}",
                 p = in(reg) p.byte_sub(4), q = in(reg) q.byte_sub(7), x = out(xmm_reg) _,
                 options(nostack, preserves_flags));
            // A read-modify-write on two pages.
            asm!("lock add qword ptr [{p}], 3", p = in(reg) p, options(nostack));
        }
        for len in [1usize, PAGE - 1, 3 * PAGE + 5] {
            rep_movs(b.add(7), a.add(PAGE - 3), len);
            rep_movs(a.add(5 * PAGE - 1), b.add(2 * PAGE + 9), len);
        }
        // Backwards, over the page boundary.
        asm!("std", "rep movsb", "cld", inout("rdi") b.add(9 * PAGE + 4) => _,
             inout("rsi") a.add(11 * PAGE + 2) => _, inout("rcx") 2 * PAGE => _, options(nostack));
        // rep stos over three pages, and a compare that ends early.
        asm!("rep stosq", inout("rdi") a.add(20 * PAGE - 8) => _, inout("rcx") 1030usize => _,
             in("rax") 0x0101_0101_0101_0101u64, options(nostack, preserves_flags));
        let mut left = 3 * PAGE;
        asm!("repe cmpsb", inout("rdi") a.add(20 * PAGE) => _, inout("rsi") a.add(20 * PAGE + 1) => _,
             inout("rcx") left, options(nostack));
        n = n.wrapping_add(left as u64);
        // A push of a memory operand, both on two pages.
        asm!("mov {old}, rsp", "mov rsp, {stack}", "push qword ptr [{p}]", "pop qword ptr [{q}]",
             "mov rsp, {old}", old = out(reg) _, stack = in(reg) b.add(30 * PAGE + 4),
             p = in(reg) a.add(31 * PAGE - 2), q = in(reg) a.add(33 * PAGE - 5));
        // `add qword ptr [rdi], 1; ret`, four bytes and one, at every distance
        // from the end of a page, with its operand on two pages.
        for i in 1..PAGES {
            let at = code.add(i * PAGE - i % 6);
            at.copy_from_nonoverlapping([0x48u8, 0x83, 0x07, 0x01, 0xc3].as_ptr(), 5);
        }
    }
    // SAFETY: The range is the program's own.
    check(unsafe { libc::mprotect(code.cast(), PAGES * PAGE, libc::PROT_READ | libc::PROT_EXEC) })?;
    for round in 0..3 {
        for i in 1..PAGES {
            // SAFETY: The code was written above and touches nothing else.
            unsafe {
                let f: extern "C" fn(*mut u64) = std::mem::transmute(code.add(i * PAGE - i % 6));
                f(a.add((i * 7 % (PAGES - 1) + 1) * PAGE - round).cast());
            }
        }
    }
    println!("{n} {} {}", sum(a, PAGES), sum(b, PAGES));
    Ok(())
}
