//! `many-maps COUNT HOW OUTPUT`: a child has COUNT mappings when the trace begins. HOW is
//! `on`, `windows` or `all`. The child then touches a thousand of them.
//! `many-maps COUNT alone`: makes COUNT mappings, touches one of each sixty, and prints how
//! many mappings there are.
//! `many-maps COUNT loop`: maps and unmaps COUNT pages until it is killed.
//! `many-maps COUNT beside ROUNDS`: a child on CPU 0 maps and unmaps COUNT pages until the parent,
//! on CPU 1, has mapped and unmapped COUNT pages ROUNDS times.
use kvmtrace_guest::{
    PAGE, activator, arg, check, fork_child, map_with, read, set, stay_on, wait_child, wait_for,
};
use std::io::{Error, Result};

const BASE: usize = 0x1000_0000_0000;
/// Each of the pages that it touches is another mapping.
const TOUCHED: usize = 1000;

/// Pages, every other one with other rights, so that each is a mapping.
fn map(count: usize) -> Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let base = map_with(BASE, count, flags, -1)?;
    for i in (0..count).step_by(2) {
        // SAFETY: Mapped above.
        let page = unsafe { base.add(i * PAGE) };
        // SAFETY: As above.
        check(unsafe { libc::mprotect(page.cast(), PAGE, libc::PROT_READ) })?;
    }
    Ok(base)
}

/// Makes the mappings while it may be traced.
fn alone(count: usize) -> Result<()> {
    let base = map(count)?;
    let touched = (0..count).step_by(60);
    let sum: u64 = touched.map(|i| u64::from(read(base, i))).sum();
    let end = BASE + count * PAGE;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let begins = maps
        .lines()
        .filter_map(|l| usize::from_str_radix(l.split_once('-')?.0, 16).ok());
    let made = begins.filter(|at| (BASE..end).contains(at)).count();
    println!("{made} mappings, sum {sum}");
    Ok(())
}

fn map_and_unmap(count: usize) -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let base = map_with(BASE, count, flags, -1)?;
    // SAFETY: Mapped above, and not used after.
    check(unsafe { libc::munmap(base.cast(), count * PAGE) }).map(drop)
}

fn beside(count: usize, rounds: usize) -> Result<()> {
    let child = fork_child(|| {
        let run = || -> Result<()> {
            stay_on(0)?;
            loop {
                map_and_unmap(count)?;
            }
        };
        eprintln!("the child ends: {:?}", run());
        1
    })?;
    stay_on(1)?;
    for _ in 0..rounds {
        map_and_unmap(count)?;
    }
    println!("{rounds} rounds");
    // SAFETY: A child of ours.
    check(unsafe { libc::kill(child, libc::SIGKILL) })?;
    wait_child(child).map(drop)
}

fn main() -> Result<()> {
    let count = arg(1, 1000);
    let how = std::env::args().nth(2).unwrap_or_default();
    match how.as_str() {
        "alone" => return alone(count),
        "loop" => loop {
            map_and_unmap(count)?;
        },
        "beside" => return beside(count, arg(3, 1000)),
        _ => {}
    }
    let output = std::env::args().nth(3).unwrap_or_default();
    set("/proc/sys/vm/max_map_count", "1000000")?;
    let mut ends = [[0; 2]; 2];
    for pair in &mut ends {
        // SAFETY: Room for two descriptors.
        check(unsafe { libc::pipe(pair.as_mut_ptr()) })?;
    }
    let [go, done] = ends;
    let wait = |fd| {
        let mut byte = 0u8;
        // SAFETY: A byte of ours.
        unsafe { libc::read(fd, (&raw mut byte).cast(), 1) == 1 }
    };
    let tell = |fd| {
        // SAFETY: A byte of ours.
        unsafe { libc::write(fd, [0u8].as_ptr().cast(), 1) };
    };
    let child = fork_child(|| {
        // SAFETY: Descriptors of ours. If the parent fails, this is to end, too.
        unsafe {
            libc::close(go[1]);
            libc::close(done[0]);
        }
        let Ok(base) = map(count) else { return 1 };
        tell(done[1]);
        while wait(go[0]) {
            (0..TOUCHED.min(count)).for_each(|i| {
                read(base, i);
            });
            tell(done[1]);
        }
        0
    })?;
    // SAFETY: Descriptors of ours, which the child has.
    unsafe {
        libc::close(go[0]);
        libc::close(done[1]);
    }
    let touched = || {
        tell(go[1]);
        wait(done[0])
            .then_some(())
            .ok_or_else(|| Error::other("the child has gone"))
    };
    if !wait(done[0]) {
        return Err(Error::other("the child has no memory"));
    }
    let scope = match how.as_str() {
        "all" => "--all".into(),
        "windows" => format!("--pid {child} --trace 300ms --skip 100ms --repeat 3"),
        _ => format!("--pid {child}"),
    };
    let begin = std::time::Instant::now();
    // Buffers that have room for a small part of the mappings.
    let buffers = "--buffers 8 --buffer-size 16k";
    activator(&format!("on {scope} -n 512 {buffers} --force -o {output}"))?;
    println!("on {} ms", begin.elapsed().as_millis());
    touched()?;
    if how == "windows" {
        wait_for(200, "three windows", || {
            let status = activator("status --json").unwrap_or_default();
            let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
            status["windows_ended"] == 3
        })?;
    }
    activator("off")?;
    touched()?;
    // SAFETY: A descriptor of ours.
    unsafe { libc::close(go[1]) };
    wait_child(child)?;
    Ok(())
}
