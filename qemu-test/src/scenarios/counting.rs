//! What `qemu-test count` counts is what happens.

use super::Scenario;
use crate::counting::{self, Row};
use crate::runner::say;
use anyhow::{Context, Result, ensure};

/// The scenario.
pub fn scenario() -> Scenario {
    Scenario {
        name: "counts".into(),
        about: "instructions, locks, stores and interrupts for each reference, counted for four \
                tracers and for batches on one CPU and on two",
        run: Box::new(run),
    }
}

fn find<'a>(rows: &'a [Row], cpus: usize, tracer: &str, program: &str) -> Result<&'a Row> {
    let row = |r: &&Row| r.cpus == cpus && r.tracer == tracer && r.program == program;
    rows.iter()
        .find(row)
        .with_context(|| format!("no row of {tracer}, {program}"))
}

/// A quarter of what `qemu-test count` reads: what is compared here differs by more.
const ROUNDS: u64 = counting::ROUNDS / 4;

/// Instructions for a re-reference, at most.
const MOST: f64 = 1200.0;

fn run(kernel: &str) -> Result<()> {
    let rows = counting::count(&[1, 2], &[], ROUNDS, kernel)?;
    for row in rows.iter().filter(|r| r.cpus == 1) {
        // The time stamp counter counts instructions, too, of all processes of the one CPU.
        let counted = row.instructions * row.references as f64;
        let off = (counted / row.ticks as f64 - 1.0).abs();
        let (tracer, program) = (row.tracer, row.program);
        ensure!(
            off < 0.01,
            "{tracer}, {program}: {counted} instructions and {} ticks",
            row.ticks
        );
        ensure!(
            row.moves == 0.0 && row.interrupts == 0.0 && row.locked == 0.0,
            "{tracer}, {program}: one CPU shares nothing with others: {row:?}"
        );
    }
    for tracer in ["kVMTrace", "RWP, signals", "mprotect"] {
        let alone = find(&rows, 2, tracer, "one program")?;
        let threads = find(&rows, 2, tracer, "two threads")?;
        say!(
            "  {tracer}: {:.0} instructions; {:.3} interrupts, two threads {:.3}",
            alone.instructions,
            alone.interrupts,
            threads.interrupts
        );
        // A page that is disabled is flushed where the other thread runs, too.
        ensure!(threads.interrupts > 0.1, "{tracer}: {threads:?}");
        ensure!(alone.interrupts < 0.05, "{tracer}: {alone:?}");
    }
    // One flush for several pages. How many depends on how the threads take turns: usually, there is one
    // for eight references or more with K=13.
    let one = find(&rows, 2, "kVMTrace", "two threads")?;
    for (tracer, most) in [("kVMTrace, K=13", 1.0 / 6.0), ("kVMTrace, K=32", 1.0 / 8.0)] {
        let batches = find(&rows, 2, tracer, "two threads")?;
        say!("  {tracer}: two threads {:.3}", batches.interrupts);
        ensure!(
            batches.interrupts * 4.0 < one.interrupts && batches.interrupts < most,
            "{tracer}: {batches:?}"
        );
    }
    // All that the only CPU does, kvmtraced included, for a re-reference.
    let reference = find(&rows, 1, "kVMTrace, K=13", "one program")?.instructions;
    say!("  kVMTrace, K=13, one CPU: {reference:.0} instructions");
    ensure!(
        reference <= MOST,
        "{reference:.0} instructions for a reference"
    );
    // Beside locks of page tables, CPUs share none.
    for (program, tracers) in [
        ("two processes", &["kVMTrace", "kVMTrace, K=13"][..]),
        (
            "two threads",
            &["kVMTrace", "kVMTrace, K=13", "kVMTrace, K=32"],
        ),
        (counting::MAPPERS, &["kVMTrace"]),
    ] {
        for tracer in tracers {
            let row = find(&rows, 2, tracer, program)?;
            let (names, others) = row.tracer_locks();
            say!("  {tracer}, {program}: {others:.4} times for each reference or event: [{names}]");
            ensure!(others < 0.01, "{tracer}, {program}: {names}");
        }
    }
    // In one set, a CPU locks page tables of the other process. With a set for each, it does not.
    let one = find(&rows, 2, "kVMTrace", "two processes")?;
    let sets = find(&rows, 2, counting::SETS, "two processes")?;
    for row in [one, sets] {
        say!(
            "  {}: two processes {:.0} instructions, {:.1} under the longest lock that both take",
            row.tracer,
            row.instructions,
            row.longest
        );
    }
    ensure!(one.longest > 20.0 * sets.longest, "{:?}", sets.report.locks);
    // To the counter, each number is one addition. With a set for each process, CPUs that admit share
    // nothing else. (To the ring of each, kvmtraced stores from a CPU of its own.)
    for row in [one, sets] {
        let counter = row.stores_to("hot::NUMBERS");
        say!(
            "  {}: {:.2} stores to lines of both CPUs, {counter:.3} to the counter",
            row.tracer,
            row.common
        );
        // Numbers of admissions that are given up, and of events, are stores, too. If only one CPU had a turn
        // between the marks, the counter was not shared.
        ensure!(counter < 1.05, "{:?}", row.report.lines);
    }
    // On one CPU, kvmtraced takes packets from the ring of the other one.
    ensure!(sets.common < 4.0, "{:?}", sets.report.lines);
    let name = |r: &Row| format!("{:?}", r.report.locks);
    let theirs = find(&rows, 2, "mprotect", "two processes")?;
    ensure!(theirs.longest < 10.0, "{}", name(theirs));
    // What threads of other tracers share is seen.
    let theirs = find(&rows, 2, "mprotect", "two threads")?;
    let others: u64 = theirs.report.locks.iter().map(|l| l.others).sum();
    ensure!(others > theirs.references, "{}", name(theirs));
    Ok(())
}
