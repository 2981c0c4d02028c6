//! hot-cold PAGES ROUNDS HOT FIRST: reads cold pages cyclically, and all HOT pages (1)
//! after each. FIRST cold pages (0) are read before, so that hot ones come in a row.
use kvmtrace_guest::{arg, map_at, read, sum};

fn main() -> std::io::Result<()> {
    let (pages, rounds, hots) = (arg(1, 200), arg(2, 10), arg(3, 1));
    let hot = map_at(0x2000_0000_0000, hots)?;
    let cold = map_at(0x1000_0000_0000, pages)?;
    let mut n = sum(cold, arg(4, 0));
    for _ in 0..rounds {
        for i in 0..pages {
            n += u64::from(read(cold, i)) + sum(hot, hots);
        }
    }
    println!("{n}");
    Ok(())
}
