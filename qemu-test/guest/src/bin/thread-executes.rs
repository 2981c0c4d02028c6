//! `thread-executes`: the first thread works for a while, and another one executes this
//! program again. That one prints `executed`.
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

fn main() -> std::io::Result<()> {
    if std::env::args().nth(1).is_some() {
        println!("executed");
        return Ok(());
    }
    for _ in 0..30_000_000 {
        std::hint::spin_loop();
    }
    let thread = std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(20));
        // This is the end of the first thread, if it comes back at all.
        Err::<(), _>(Command::new("/bin/thread-executes").arg("again").exec())
    });
    thread
        .join()
        .map_err(|_| std::io::Error::other("the thread panicked"))?
}
