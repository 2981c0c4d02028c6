//! Ways in which programs come to be: vfork, posix_spawn, clone with a shared
//! address space, exec by a thread, and what a crash starts from the kernel.
use kvmtrace_guest::{check, fork_child, map_at, set, sum, wait_child, wait_for, write};
use std::io::{Error, Result};

const PAGES: usize = 80;
const CORE: &str = "/tmp/births.core";

struct Shared {
    base: *mut u8,
}

/// In the parent's memory, while that waits.
extern "C" fn vforked(arg: *mut libc::c_void) -> i32 {
    // SAFETY: What main() gave.
    let shared = unsafe { &*arg.cast::<Shared>() };
    for i in (0..PAGES).step_by(2) {
        write(shared.base, i, 7);
    }
    let argv = [
        c"touch-loop".as_ptr(),
        c"100".as_ptr(),
        c"1".as_ptr(),
        std::ptr::null(),
    ];
    // SAFETY: Strings with their ends.
    unsafe { libc::execv(c"/bin/touch-loop".as_ptr(), argv.as_ptr()) };
    1
}

fn main() -> Result<()> {
    let me = std::env::args().next().unwrap_or_default();
    match std::env::args().nth(1).as_deref() {
        Some("collect") => return collect(),
        Some("thread") => {
            // exec by another thread than the first.
            let t = std::thread::spawn(|| {
                use std::os::unix::process::CommandExt;
                std::process::Command::new("/bin/touch-loop")
                    .args(["100", "1"])
                    .exec()
            });
            return Err(t.join().unwrap_or_else(|_| Error::other("a thread failed")));
        }
        _ => {}
    }
    let base = map_at(0x1000_0000_0000, PAGES)?;
    for i in 0..PAGES {
        write(base, i, i as u8);
    }
    for _ in 0..5 {
        let mut shared = Shared { base };
        let stack = map_at(0x1100_0000_0000, 16)?;
        // SAFETY: The stack is the child's until it has its own.
        let pid = check(unsafe {
            libc::clone(
                vforked,
                stack.add(16 * 4096).cast(),
                libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
                (&raw mut shared).cast(),
            )
        })?;
        println!("vfork {} {}", wait_child(pid)?, sum(base, PAGES));
    }
    for args in [vec!["thread"], vec!["none"; 0]] {
        let program = if args.is_empty() {
            "/bin/fork-cow"
        } else {
            "/proc/self/exe"
        };
        let out = std::process::Command::new(program).args(&args).output()?;
        print!("{}", String::from_utf8_lossy(&out.stdout));
    }

    // What a crash leaves goes to a program that the kernel starts.
    let _ = std::fs::remove_file(CORE);
    let program = if me.starts_with('/') {
        me
    } else {
        "/bin/births".into()
    };
    set(
        "/proc/sys/kernel/core_pattern",
        &format!("|{program} collect"),
    )?;
    let child = fork_child(|| {
        let limit = libc::rlimit {
            rlim_cur: libc::RLIM_INFINITY,
            rlim_max: libc::RLIM_INFINITY,
        };
        sum(base, PAGES);
        // SAFETY: The end of the child.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &limit);
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            (0x1300_0000_0000usize as *mut u8).write_volatile(1);
        }
        0
    })?;
    println!("crash {:#x}", wait_child(child)?);
    wait_for(20, "the core", || std::fs::exists(CORE).unwrap_or(false))?;
    println!("core {}", std::fs::read_to_string(CORE)?.trim());
    set("/proc/sys/kernel/core_pattern", "core")
}

/// The core comes on standard input: is it one, and does it hold the pages?
fn collect() -> Result<()> {
    use std::io::Read;
    let mut core = Vec::new();
    std::io::stdin().read_to_end(&mut core)?;
    let elf = core.starts_with(b"\x7fELF");
    // The pages' first bytes go 7, 1, 7, 3, 7, 5: find them, a page apart.
    let found = (0..core.len().saturating_sub(PAGES * 4096))
        .step_by(4096)
        .any(|at| (0..PAGES).all(|i| core[at + i * 4096] == if i % 2 == 0 { 7 } else { i as u8 }));
    std::fs::write(format!("{CORE}.new"), format!("elf {elf}, pages {found}\n"))?;
    std::fs::rename(format!("{CORE}.new"), CORE)
}
