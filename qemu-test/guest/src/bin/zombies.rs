//! `zombies ROUNDS`: makes processes by vfork() that sleep in the address space of their maker, execute
//! this program, and end. They are waited for later. Each of several threads does so.
use kvmtrace_guest::{arg, check};
use std::ffi::CString;
use std::io::Result;
use std::time::Duration;

/// How long a process has the address space of its maker.
const BEFORE: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 15_000_000,
};
/// How long it is there when it has ended, about.
const AFTER: Duration = Duration::from_millis(60);

fn make(rounds: usize) -> Result<()> {
    let path = CString::new("/bin/zombies")?;
    let word = CString::new("end")?;
    let argv = [path.as_ptr(), word.as_ptr(), std::ptr::null()];
    for _ in 0..rounds {
        // SAFETY: The child calls nothing that changes what its maker has, and ends by exec or _exit.
        #[allow(deprecated)]
        let child = check(unsafe {
            let child = libc::vfork();
            if child == 0 {
                libc::nanosleep(&BEFORE, std::ptr::null_mut());
                libc::execv(path.as_ptr(), argv.as_ptr());
                libc::_exit(1);
            }
            child
        })?;
        std::thread::sleep(AFTER);
        let mut status = 0;
        // SAFETY: `status` is there.
        check(unsafe { libc::waitpid(child, &mut status, 0) })?;
        assert_eq!(status, 0, "a process has failed");
    }
    Ok(())
}

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("end") {
        return Ok(());
    }
    let rounds = arg(1, 10);
    let threads: Vec<_> = (0..4)
        .map(|_| std::thread::spawn(move || make(rounds)))
        .collect();
    for thread in threads {
        thread.join().expect("a thread has failed")?;
    }
    println!("{} processes have ended", rounds * 4);
    Ok(())
}
