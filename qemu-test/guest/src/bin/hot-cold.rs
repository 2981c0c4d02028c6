//! hot-cold PAGES ROUNDS: reads cold pages cyclically, and one hot page after each.
use kvmtrace_guest::{arg, map_at, read};

fn main() -> std::io::Result<()> {
    let (pages, rounds) = (arg(1, 200), arg(2, 10));
    let hot = map_at(0x2000_0000_0000, 1)?;
    let cold = map_at(0x1000_0000_0000, pages)?;
    let mut n = 0u64;
    for _ in 0..rounds {
        for i in 0..pages {
            n += u64::from(read(cold, i)) + u64::from(read(hot, 0));
        }
    }
    println!("{n}");
    Ok(())
}
