//! `spells PAGES TURNS MS`: reads so many pages in each turn, and rests for so many ms after it. For each
//! turn it prints "turn BEGIN END", in ns.
use kvmtrace_guest::{arg, map_at, now_ns, read, write};
use std::time::Duration;

fn main() -> std::io::Result<()> {
    let (pages, turns, rest) = (arg(1, 300), arg(2, 100), arg(3, 3));
    let base = map_at(0x1000_0000_0000, pages)?;
    for i in 0..pages {
        write(base, i, 1);
    }
    let mut lines = String::new();
    for _ in 0..turns {
        let begin = now_ns();
        for i in 0..pages {
            read(base, i);
        }
        lines += &format!("turn {begin} {}\n", now_ns());
        std::thread::sleep(Duration::from_millis(rest as u64));
    }
    print!("{lines}");
    Ok(())
}
