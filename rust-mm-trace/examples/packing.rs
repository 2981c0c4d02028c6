//! Packs packets of made references again and again, so that instructions can be counted:
//! `packing new|again|mixed ROUNDS` prints references and bytes of all rounds.
//!
//! scripts/bench-packing.sh runs it.

use std::process::ExitCode;

use rust_mm_trace::pack::{Hint, Tables};
use rust_mm_trace::pack_refs::{pack, SPARE};
use rust_mm_trace::record::Extras;

/// References in a packet of the default size.
const RECORDS: u32 = 4092;

/// A pattern of references, by a FIFO set of `n` pages in batches of `batch`.
struct Pattern {
    n: u32,
    batch: u32,
    /// The page and the flags of a reference, from its number.
    page: fn(u32) -> (u32, u64),
}

/// A number that looks random.
fn random(i: u32) -> u32 {
    i.wrapping_mul(0x9e37_79b9)
        .rotate_left(15)
        .wrapping_mul(0x85eb_ca6b)
        >> 8
}

fn pattern(name: &str) -> Option<Pattern> {
    Some(match name {
        // As of the loop in docs/cost.md: in its packet, each page is new.
        "new" => Pattern {
            n: 512,
            batch: 8,
            page: |i| (i % 8192, 0),
        },
        // A loop that does the same again.
        "again" => Pattern {
            n: 64,
            batch: 1,
            page: |i| (i % 200, u64::from(i % 200 % 3 == 0)),
        },
        // Six of ten references as before, three to known pages in another order, one with other
        // flags or to a new page.
        "mixed" => Pattern {
            n: 64,
            batch: 1,
            page: |i| match random(i) % 20 {
                0 => (100_000 + random(i) % 100_000, 0),
                1 => (i % 300, 9),
                2..8 => (random(i) % 300, 0),
                _ => (i % 300, 0),
            },
        },
        _ => return None,
    })
}

impl Pattern {
    /// The content of a packet.
    fn content(&self, first: u32) -> Vec<u8> {
        let time = |i: u32| (i - first) * 1300 + random(i) % 40;
        let mut all = Vec::new();
        for i in first..first + RECORDS {
            let (page, flags) = (self.page)(i);
            let end = i - i % self.batch + self.n;
            all.extend((0x7f00_0000_0000 + (u64::from(page) << 12) + flags).to_le_bytes());
            let frame = page / 512 * 4096 + page % 512;
            for word in [i - first, time(i), 77, 3, (time(end) - time(i)) >> 6, frame] {
                all.extend(word.to_le_bytes());
            }
        }
        all
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let pattern = args.next().and_then(|name| pattern(&name));
    let rounds = args.next().and_then(|rounds| rounds.parse::<u32>().ok());
    let (pages, successors) = Tables::SIZES;
    let tables = Tables::new(vec![Default::default(); pages], vec![0; successors], vec![]);
    let (Some(pattern), Some(rounds), Some(mut tables)) = (pattern, rounds, tables) else {
        eprintln!("usage: packing new|again|mixed ROUNDS");
        return ExitCode::FAILURE;
    };
    let hint = Hint {
        lag: pattern.n,
        shift: 6,
    };
    let contents: Vec<_> = (0..4).map(|k| pattern.content(k * RECORDS)).collect();
    let mut out = vec![0; contents[0].len() + SPARE];
    let (mut references, mut bytes) = (0u64, 0u64);
    for content in contents.iter().cycle().take(4 * rounds as usize) {
        let Some(len) = pack(&mut tables, Extras::NONE, hint, content, &mut out) else {
            eprintln!("a packet could not be packed");
            return ExitCode::FAILURE;
        };
        references += u64::from(RECORDS);
        bytes += len as u64;
    }
    println!("{references} {bytes}");
    ExitCode::SUCCESS
}
