//! Runs itself again with two megabytes of arguments, nearly the most that there can be,
//! and reads them all.
use std::os::unix::process::CommandExt;

fn main() -> std::io::Result<()> {
    if std::env::args().len() > 2 {
        let n: usize = std::env::args()
            .map(|a| a.bytes().map(usize::from).sum::<usize>())
            .sum();
        println!("{} arguments, {n}", std::env::args().len());
        return Ok(());
    }
    let args = (0..410).map(|i| format!("{i:05}").repeat(1000));
    Err(std::process::Command::new("/proc/self/exe")
        .arg0("exec-args")
        .args(args)
        .exec())
}
