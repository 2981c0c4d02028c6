//! minor-faults PAGES ROUNDS: touches pages cyclically, and prints the minor faults that
//! getrusage() counts for the first round and for the others.
use kvmtrace_guest::{arg, check, map_at, write};

fn minor() -> std::io::Result<i64> {
    // SAFETY: Plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: Room for the result.
    check(unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) })?;
    Ok(usage.ru_minflt)
}

fn main() -> std::io::Result<()> {
    let (pages, rounds) = (arg(1, 300), arg(2, 20));
    let base = map_at(0x1000_0000_0000, pages)?;
    let mut counts = vec![minor()?];
    for round in 0..rounds {
        for page in 0..pages {
            write(base, page, round as u8);
        }
        if round == 0 {
            counts.push(minor()?);
        }
    }
    counts.push(minor()?);
    println!(
        "{} faults in the first round, {} in the others",
        counts[1] - counts[0],
        counts[2] - counts[1]
    );
    Ok(())
}
