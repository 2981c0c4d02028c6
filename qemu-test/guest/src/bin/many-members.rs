//! many-members PAGES N LEAST AFTER: touches its pages with the set as it is, twice with a
//! set of N pages, and the first AFTER of them with the set of LEAST pages again.
use kvmtrace_guest::{activator, arg, map_at, read, write};

fn main() -> std::io::Result<()> {
    let [pages, many, least, after] = [arg(1, 1000), arg(2, 1000), arg(3, 64), arg(4, 100)];
    let base = map_at(0x1000_0000_0000, pages)?;
    for i in 0..pages {
        write(base, i, i as u8);
    }
    activator(&format!("resize {many}"))?;
    let mut n = 0u64;
    for _ in 0..2 {
        for i in 0..pages {
            n += u64::from(read(base, i));
        }
    }
    activator(&format!("resize {least}"))?;
    for i in 0..after {
        n += u64::from(read(base, i));
    }
    println!("{n}");
    Ok(())
}
