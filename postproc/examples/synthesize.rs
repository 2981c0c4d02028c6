//! Writes a large trace made to order, for measuring:
//! `synthesize FILE REFERENCES PAGES [N [EVENTS_EVERY [PROCESSES [TURN [SEED]]]]]`.
//!
//! The pages are divided among the processes, four if nothing else is said, which
//! take turns of TURN references, 1,000 if nothing else is said. Traces of different
//! seeds have different ids and references. With a seed, each process also maps a file
//! that all such traces have, and one that a seventh of them have, and executes both.

use std::fs::File;
use std::io::BufWriter;

use postproc::testing::TraceBuilder;
use postproc::units::{Access, Prot};

/// Where the files are mapped.
const LIBRARY: u64 = 0x2000_0000;
const LIBRARY_OF_SOME: u64 = 0x3000_0000;
/// Pages of each.
const LIBRARY_PAGES: u64 = 200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: u64| args.get(i).map_or(Ok(default), |a| a.parse());
    let path = args
        .get(1)
        .ok_or("synthesize FILE REFERENCES PAGES [N [EVENTS_EVERY [PROCESSES [TURN [SEED]]]]]")?;
    let (references, pages, n) = (number(2, 1_000_000)?, number(3, 100_000)?, number(4, 512)?);
    let every = number(5, 50)?;
    let processes = number(6, 4)?.clamp(1, 100_000);
    let turn = number(7, 1000)?.max(1);
    let seed = number(8, 0)?;

    let mut trace = TraceBuilder::to(BufWriter::new(File::create(path)?), 2, n as u32);
    if seed > 0 {
        trace.header_mut().uuid[..8].copy_from_slice(&seed.to_le_bytes());
    }
    let base = 0x7f00_0000_0000;
    for process in 1..=processes as u32 {
        trace.task(
            0,
            process * 10,
            process * 10,
            process,
            &format!("worker-{process}"),
        );
        let share = pages / processes * 4096;
        for part in 0..16 {
            let start = base + share / 16 / 4096 * part * 4096;
            let end = base + share / 16 / 4096 * (part + 1) * 4096;
            trace.map_anon(0, process * 10, process, start, end, Prot(7));
        }
        trace.map_anon(0, process * 10, process, 0x1000_0000, 0x1010_0000, Prot(3));
        let files = [(LIBRARY, 77), (LIBRARY_OF_SOME, 100 + seed % 7)];
        for (start, ino) in files.into_iter().filter(|_| seed > 0) {
            let end = start + LIBRARY_PAGES * 4096;
            let (tid, prot) = (process * 10, Prot(5));
            trace.map_file(0, tid, process, start, end, prot, false, ino, 0);
        }
    }
    let span = (pages / processes / 16 * 16).max(1);
    // Half the references go to an eighth of the pages; some walk through all.
    let mut random = 0x2545_f491_4f6c_dd1du64 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut walk = 0;
    for i in 0..references {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let process = (i / turn % processes) as u32 + 1;
        let page = match random % 8 {
            0..=3 => (random >> 8) % (span / 8).max(1),
            4..=6 => (random >> 8) % span,
            _ => {
                walk += 1;
                walk % span
            }
        };
        let access = match random >> 61 {
            0 | 1 => Access::Write,
            2 => Access::Exec,
            _ => Access::Read,
        };
        let cpu = (i / 300 % 2) as u32;
        let address = match seed > 0 && access == Access::Exec {
            true => {
                let at = [LIBRARY, LIBRARY_OF_SOME][(random >> 60) as usize % 2];
                at + page % LIBRARY_PAGES * 4096
            }
            false => base + page * 4096,
        };
        trace.touch_as(cpu, process * 10, process, address, access);
        if every > 0 && i % every == every - 1 {
            let start = 0x1000_0000 + (i / every % 256) * 4096;
            trace.unmap(cpu, process * 10, process, start, start + 4096);
            trace.map_anon(cpu, process * 10, process, start, start + 4096, Prot(3));
        }
    }
    trace.finish_to()?;
    Ok(())
}
