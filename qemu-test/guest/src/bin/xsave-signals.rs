//! Signals whose frames, with all that XSAVE saves, lie across pages that are cold,
//! at every offset; registers must be the same after.
use kvmtrace_guest::{PAGE, check, map_at, sum};
use std::arch::asm;
use std::io::Result;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static SEEN: AtomicUsize = AtomicUsize::new(0);
static COLD: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handler(_: i32) {
    SEEN.fetch_add(1, Relaxed);
    // Evicts the frame.
    sum(COLD.load(Relaxed) as *mut u8, 100);
}

/// Sends a signal with known values in all vector registers; true if they are the
/// same after it.
#[target_feature(enable = "avx")]
unsafe fn raise(pid: i32, tid: i32, values: &[u64; 64]) -> bool {
    let mut after = [0u64; 64];
    // SAFETY: Loads and stores inside the arrays; a system call that changes rax,
    // rcx and r11.
    unsafe {
        asm!(
            "vmovups ymm0, [{v}]", "vmovups ymm3, [{v} + 32]",
            "vmovups ymm7, [{v} + 64]", "vmovups ymm15, [{v} + 96]",
            "syscall",
            "vmovups [{a}], ymm0", "vmovups [{a} + 32], ymm3",
            "vmovups [{a} + 64], ymm7", "vmovups [{a} + 96], ymm15",
            v = in(reg) values.as_ptr(),
            a = in(reg) after.as_mut_ptr(),
            inlateout("rax") libc::SYS_tgkill => _,
            in("rdi") pid, in("rsi") tid, in("rdx") libc::SIGUSR1,
            out("rcx") _, out("r11") _,
            out("ymm0") _, out("ymm3") _, out("ymm7") _, out("ymm15") _,
        );
    }
    after[..16] == values[..16]
}

fn main() -> Result<()> {
    const STACK: usize = 8;
    let cold = map_at(0x1000_0000_0000, 100)?;
    COLD.store(cold as usize, Relaxed);
    let stack = map_at(0x1100_0000_0000, STACK + 1)?;
    let mut values = [0u64; 64];
    for (i, v) in values.iter_mut().enumerate() {
        *v = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    // SAFETY: A handler of the right type; no arguments.
    let (pid, tid) = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        check(libc::sigaction(
            libc::SIGUSR1,
            &action,
            std::ptr::null_mut(),
        ))?;
        (libc::getpid(), libc::syscall(libc::SYS_gettid) as i32)
    };
    let avx = std::arch::is_x86_feature_detected!("avx");
    let (mut sent, mut kept) = (0, 0);
    for offset in (0..PAGE).step_by(64) {
        let own = libc::stack_t {
            ss_sp: stack.wrapping_add(offset).cast(),
            ss_flags: 0,
            ss_size: STACK * PAGE,
        };
        // SAFETY: The stack stays mapped, and nothing is on it.
        check(unsafe { libc::sigaltstack(&own, std::ptr::null_mut()) })?;
        sum(cold, 100);
        sent += 1;
        // SAFETY: The CPU has AVX, as was asked.
        if avx && unsafe { raise(pid, tid, &values) } {
            kept += 1;
        }
    }
    println!("{sent} sent, {} seen, {kept} kept", SEEN.load(Relaxed));
    Ok(())
}
