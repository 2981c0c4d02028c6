//! hot-cold PAGES ROUNDS [HOT]: reads cold pages cyclically, and all hot pages, of
//! which there is one, after each.
use kvmtrace_guest::{arg, map_at, read, sum};

fn main() -> std::io::Result<()> {
    let (pages, rounds, hots) = (arg(1, 200), arg(2, 10), arg(3, 1));
    let hot = map_at(0x2000_0000_0000, hots)?;
    let cold = map_at(0x1000_0000_0000, pages)?;
    let mut n = 0u64;
    for _ in 0..rounds {
        for i in 0..pages {
            n += u64::from(read(cold, i)) + sum(hot, hots);
        }
    }
    println!("{n}");
    Ok(())
}
