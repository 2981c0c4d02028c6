//! reclaim lru|mglru|oom: memory control groups take memory away, and leave what
//! is in use. reclaim attach: while the whole system is attached, again and again.
use kvmtrace_guest::{
    PAGE, activator, cgroups, check, flush_tlb, fork_child, map_at, pagemap, read, set, stay_on,
    sum, swap_on, wait_child, write,
};
use std::io::{Error, Result};

const GROUP: &str = "/tmp/cgroup/reclaim";
const HOT: usize = 200;
const COLD: usize = 2000;

fn group() -> Result<()> {
    cgroups(c"/tmp/cgroup")?;
    set("/tmp/cgroup/cgroup.subtree_control", "+memory")?;
    std::fs::create_dir_all(GROUP)?;
    set(&format!("{GROUP}/memory.max"), "max")
}

fn enter() -> Result<()> {
    set(&format!("{GROUP}/cgroup.procs"), "0")
}

fn leave() -> Result<()> {
    set("/tmp/cgroup/cgroup.procs", "0")?;
    std::fs::remove_dir(GROUP)
}

fn resident(base: *mut u8, pages: usize) -> Result<usize> {
    Ok(pagemap(base, pages)?
        .iter()
        .filter(|b| *b >> 63 == 1)
        .count())
}

fn reclaim() -> Result<()> {
    enter()?;
    // All memory of one node.
    stay_on(0)?;
    let cold = map_at(0x1000_0000_0000, COLD)?;
    let hot = map_at(0x1100_0000_0000, HOT)?;
    for i in 0..HOT {
        write(hot, i, i as u8);
    }
    for i in 0..COLD {
        write(cold, i, i as u8);
    }
    let mut kept = 0;
    for _ in 0..4 {
        for _ in 0..3 {
            flush_tlb(hot, HOT)?;
            for i in 0..HOT {
                read(hot, i);
            }
        }
        // Half of the cold pages in all, so that there are always some; less is no
        // error here.
        let _ = set(
            &format!("{GROUP}/memory.reclaim"),
            &(COLD / 8 * PAGE).to_string(),
        );
        kept = resident(hot, HOT)?;
    }
    let left = resident(cold, COLD)?;
    if left > COLD * 3 / 4 {
        return Err(Error::other(format!("{left} cold pages are left")));
    }
    println!("in use and kept: {}", kept >= HOT * 9 / 10);
    eprintln!("{kept} of {HOT} hot pages kept, {left} of {COLD} cold ones");
    println!("{} {}", sum(hot, HOT), sum(cold, COLD));
    leave()
}

/// A child that takes too much is killed, and its memory reaped.
fn oom() -> Result<()> {
    set(&format!("{GROUP}/memory.max"), "8M")?;
    set(&format!("{GROUP}/memory.swap.max"), "0")?;
    for _ in 0..3 {
        let child = fork_child(|| {
            if enter().is_err() {
                return 1;
            }
            let Ok(base) = map_at(0x1000_0000_0000, 20_000) else {
                return 2;
            };
            for i in 0..20_000 {
                write(base, i, 1);
            }
            3
        })?;
        println!("{:#x}", wait_child(child)?);
    }
    std::fs::remove_dir(GROUP)
}

/// A figure of the activator's status.
fn figure(status: &str, name: &str) -> Result<u64> {
    status
        .split_once(&format!("\"{name}\":"))
        .and_then(|(_, rest)| rest.split([',', '}']).next())
        .and_then(|digits| digits.trim().parse().ok())
        .ok_or_else(|| Error::other(format!("no {name}: {status}")))
}

/// One process uses memory, another one takes it away; both are attached.
fn attach() -> Result<()> {
    // Neither outlives this process.
    // SAFETY: No pointers.
    let bound = || unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let user = fork_child(|| {
        bound();
        if enter().is_err() {
            return 1;
        }
        let Ok(base) = map_at(0x1000_0000_0000, COLD) else {
            return 2;
        };
        loop {
            for i in 0..COLD {
                write(base, i, i as u8);
            }
        }
    })?;
    let taker = fork_child(|| {
        bound();
        loop {
            // Less than that is no error here.
            let _ = set(&format!("{GROUP}/memory.reclaim"), "1M");
        }
    })?;
    let (mut funny, mut mms) = (0, 0);
    for _ in 0..10 {
        // The exit codes are 1 if something is wrong; what is, the status tells.
        let _ = activator("on --all -n 512 --buffers 64 -o /tmp/attach.vmt --force");
        let _ = activator("off");
        let out = std::process::Command::new("/bin/activator")
            .args(["status", "--json"])
            .output()?;
        let status = String::from_utf8_lossy(&out.stdout);
        funny += figure(&status, "funny")?;
        mms += figure(&status, "mms")?;
    }
    for pid in [user, taker] {
        // SAFETY: Children of this process.
        check(unsafe { libc::kill(pid, libc::SIGKILL) })?;
        wait_child(pid)?;
    }
    println!("{funny} {mms}");
    std::fs::remove_dir(GROUP)
}

fn main() -> Result<()> {
    swap_on("/dev/swap")?;
    group()?;
    let mode = std::env::args().nth(1).unwrap_or_default();
    let mglru = "/sys/kernel/mm/lru_gen/enabled";
    match mode.as_str() {
        "lru" => reclaim(),
        "mglru" => {
            set(mglru, "7")?;
            let done = reclaim();
            set(mglru, "0")?;
            done
        }
        "oom" => oom(),
        "attach" => attach(),
        other => Err(Error::other(format!("no kind of reclaim: {other}"))),
    }?;
    // SAFETY: A string with its end.
    check(unsafe { libc::swapoff(c"/dev/swap".as_ptr()) }).map(drop)
}
