//! touch-loop PAGES ROUNDS [r|w]: touches pages cyclically at a fixed address.
use kvmtrace_guest::{arg, map_at, read, sum, write};

fn main() -> std::io::Result<()> {
    let (pages, rounds) = (arg(1, 100), arg(2, 10));
    let store = std::env::args().nth(3).is_none_or(|m| m == "w");
    let base = map_at(0x1000_0000_0000, pages)?;
    let mut n = 0u64;
    for r in 0..rounds {
        for i in 0..pages {
            if store {
                write(base, i, (r + i) as u8);
            } else {
                n += u64::from(read(base, i));
            }
        }
    }
    println!("{} {}", n, sum(base, pages));
    Ok(())
}
