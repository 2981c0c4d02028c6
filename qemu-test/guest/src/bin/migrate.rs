//! `migrate move|balance [traced]`: memory that changes its node. `move` asks for it
//! and compacts; `balance` leaves it to the kernel's balancing, which must leave what
//! is traced alone.
use kvmtrace_guest::{
    activator, arg, check, counter, fork_child, map_at, move_pages, set, stay_on, sum, wait_child,
    write,
};
use std::io::{Error, Result};
use std::time::{Duration, Instant};

const PAGES: usize = 300;
const BASE: usize = 0x1000_0000_0000;

fn moves() -> Result<()> {
    let base = map_at(BASE, PAGES)?;
    for round in 0..3u8 {
        for i in 0..PAGES {
            write(base, i, (i as u8).wrapping_add(round));
        }
        for node in [1, 0] {
            println!("on node {node}: {}", move_pages(base, PAGES, node)?);
            println!("{}", sum(base, PAGES));
        }
        // Shared with a child that reads while they move.
        let child = fork_child(|| {
            for _ in 0..5 {
                sum(base, PAGES);
            }
            (sum(base, PAGES) % 100) as i32
        })?;
        for node in [1, 0] {
            move_pages(base, PAGES, node)?;
        }
        println!("child {:#x}", wait_child(child)?);
        set("/proc/sys/vm/compact_memory", "1")?;
        println!("compacted {}", sum(base, PAGES));
    }
    // All of a process, by migrate_pages(); and pages read back from where they go.
    for (from, onto) in [(1u64, 2u64), (2, 1)] {
        // SAFETY: Two masks of a word.
        check(unsafe { libc::syscall(libc::SYS_migrate_pages, 0, 64, &from, &onto) } as i32)?;
        println!("migrated {}", sum(base, PAGES));
    }
    Ok(())
}

/// Touches memory, for as long as this takes.
fn busy(base: *mut u8, mut more: impl FnMut() -> bool) {
    while more() {
        for _ in 0..20 {
            sum(base, PAGES);
        }
    }
}

fn balance(traced: bool) -> Result<()> {
    let balancing = "/proc/sys/kernel/numa_balancing";
    let debug = "/sys/kernel/debug/sched/numa_balancing";
    set(balancing, "1")?;
    set(&format!("{debug}/scan_delay_ms"), "50")?;
    set(&format!("{debug}/scan_period_min_ms"), "50")?;
    set(&format!("{debug}/scan_period_max_ms"), "100")?;
    let base = map_at(BASE, PAGES)?;
    for i in 0..PAGES {
        write(base, i, i as u8);
    }
    // A program of one thread has memory of another node than its own balanced.
    stay_on(0)?;
    if move_pages(base, PAGES, 1)? != PAGES {
        return Err(Error::other("the memory can't be moved"));
    }
    let updates = || counter("/proc/vmstat", "numa_pte_updates");
    let (before, start) = (updates(), Instant::now());
    let all = PAGES as u64 * 9 / 10;
    let late = Duration::from_secs(20);
    busy(base, || updates() - before < all && start.elapsed() < late);
    let took = start.elapsed();
    if updates() - before < all {
        return Err(Error::other(format!(
            "{} updates in {took:?}: the test shows nothing",
            updates() - before
        )));
    }
    if traced {
        let pid = std::process::id();
        let trace = std::env::args()
            .nth(3)
            .unwrap_or_else(|| "/dev/trace".into());
        move_pages(base, PAGES, 1)?;
        activator(&format!("on -n 64 --pid {pid} -o {trace}"))?;
        let (before, start) = (updates(), Instant::now());
        busy(base, || start.elapsed() < 3 * took);
        let n = updates() - before;
        activator("off")?;
        // Other programs are balanced all the time.
        eprintln!("{all} updates untraced in {took:?}, then {n} traced");
        if n > all / 3 {
            return Err(Error::other(format!("{n} updates while traced")));
        }
    }
    println!("balanced {}", sum(base, PAGES));
    set(balancing, "0")
}

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("move") => moves(),
        Some("balance") => balance(arg(2, 0) != 0),
        other => Err(Error::other(format!("no kind of migration: {other:?}"))),
    }
}
