//! `phases PAGES APART MS TURNS`: two blocks of so many pages, of which the second one begins APART pages
//! after the first. In each turn of so many ms, the pages of one block are written again and again, and the
//! other block is left alone. The first block has the first turn, and the blocks take turns.
//! Prints "block ADDRESS" for each block, and to stderr "turn BEGIN END" for each turn, in ns.
use kvmtrace_guest::{PAGE, arg, map_at, now_ns, write};
use std::io::{Error, Result};

/// Where the first block lies.
const BASE: usize = 0x1000_0000_0000;

fn main() -> Result<()> {
    let (pages, apart) = (arg(1, 64), arg(2, 160));
    let (ms, turns) = (arg(3, 400), arg(4, 6));
    if pages > apart / 2 {
        return Err(Error::other("blocks are to be apart"));
    }
    let mut blocks = Vec::new();
    for number in 0..2 {
        let at = BASE + number * apart * PAGE;
        let base = map_at(at, pages)?;
        (0..pages).for_each(|page| write(base, page, 1));
        println!("block {at:#x}");
        blocks.push(base);
    }
    let mut lines = String::new();
    for turn in 0..turns {
        let begin = now_ns();
        let end = begin + ms as u64 * 1_000_000;
        while now_ns() < end {
            (0..pages).for_each(|page| write(blocks[turn % 2], page, turn as u8));
        }
        lines += &format!("turn {begin} {}\n", now_ns());
    }
    eprint!("{lines}");
    Ok(())
}
