//! `joins cgroup|comm FILE`: begins a trace of a control group, or of processes by their names. Some of
//! its children belong to what is traced from the beginning, and some join later. Others leave the
//! group or lose the name, and others never belong to it. Each child touches pages at addresses of its
//! own whenever the parent asks for that. For each such turn it prints "turn ROLE EXPECTED BEGIN
//! END": the number of the child, whether its references are to be in the trace, and the time, in ns.
//! "never PID" is a process that the trace must not have at all, and "files PID" is one whose open files
//! the trace must have.
use kvmtrace_guest::{
    activator, cgroups, check, fork_child, map_at, now_ns, set, wait_child, wait_for, write,
};
use std::ffi::{CString, c_char};
use std::io::{Error, Read, Result, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

const GROUPS: &str = "/tmp/cgroup";
const PAGES: usize = 200;

/// Touches the pages of a role, and gives the time in which it does so.
fn touch(role: usize) -> Result<[u64; 2]> {
    let base = map_at((role + 1) << 40, PAGES)?;
    let begin = now_ns();
    for i in 0..PAGES {
        write(base, i, 1);
    }
    let end = now_ns();
    // SAFETY: What map_at() has mapped, and nobody uses.
    check(unsafe { libc::munmap(base.cast(), PAGES * 4096) })?;
    Ok([begin, end])
}

fn name(name: &str) -> Result<()> {
    let name = CString::new(name)?;
    // SAFETY: A C string.
    check(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) }).map(drop)
}

/// A child: does what it reads, and writes two times for each command.
fn child(role: usize, from: i32, to: i32) -> Result<()> {
    // It has both ends of its pipes, so it does not see its parent's end.
    // SAFETY: Numbers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    // SAFETY: Descriptors that the parent has given to this process alone.
    let (mut from, mut to) = unsafe {
        (
            std::fs::File::from_raw_fd(from),
            std::fs::File::from_raw_fd(to),
        )
    };
    loop {
        let mut what = [0u8; 16];
        if from.read_exact(&mut what).is_err() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&what);
        let (what, text) = text.trim_end().split_at(1);
        let times = match what {
            "t" => touch(role)?,
            // By a child that is made now.
            "f" => {
                let (mut out, inner) = UnixStream::pair()?;
                let grandchild = fork_child(|| {
                    let times = touch(role).unwrap_or_default();
                    let all = [times[0].to_le_bytes(), times[1].to_le_bytes()].concat();
                    i32::from((&inner).write_all(&all).is_err())
                })?;
                let mut all = [0u8; 16];
                out.read_exact(&mut all)?;
                wait_child(grandchild)?;
                let half =
                    |at: usize| u64::from_le_bytes(all[at..at + 8].try_into().unwrap_or_default());
                [half(0), half(8)]
            }
            "g" => {
                set(&format!("{GROUPS}/{text}/cgroup.procs"), "0")?;
                [0; 2]
            }
            "n" => {
                name(text)?;
                [0; 2]
            }
            "x" => {
                let program = format!("/tmp/{text}");
                std::fs::copy("/proc/self/exe", &program)?;
                let args = [
                    "child".to_owned(),
                    role.to_string(),
                    from.as_raw_fd().to_string(),
                    to.as_raw_fd().to_string(),
                ];
                // What was asked for is answered by the first thing that the new program does.
                return Err(Command::new(program).args(args).arg("anew").exec());
            }
            _ => return Err(Error::other(format!("no command: {what}"))),
        };
        for t in times {
            to.write_all(&t.to_le_bytes())?;
        }
    }
}

/// A child, and the pipes to it and from it.
struct Role {
    number: usize,
    pid: i32,
    to: std::fs::File,
    from: std::fs::File,
}

/// Two pipes: one end of each for the parent, and of each for the child. No exec closes them.
fn pipes() -> Result<([i32; 2], [i32; 2])> {
    let (mut a, mut b) = ([0; 2], [0; 2]);
    // SAFETY: Room for two descriptors.
    unsafe {
        check(libc::pipe(a.as_mut_ptr()))?;
        check(libc::pipe(b.as_mut_ptr()))?;
    }
    Ok(([a[0], b[1]], [b[0], a[1]]))
}

impl Role {
    /// A child that `make` makes, which gets its descriptors.
    fn new(number: usize, make: impl FnOnce([i32; 2]) -> Result<i32>) -> Result<Role> {
        let (its, ours) = pipes()?;
        let pid = make(its)?;
        // SAFETY: Descriptors of ours, which nobody else uses; the child has copies of its own.
        let (from, to) = unsafe {
            libc::close(its[0]);
            libc::close(its[1]);
            (
                std::fs::File::from_raw_fd(ours[0]),
                std::fs::File::from_raw_fd(ours[1]),
            )
        };
        Ok(Role {
            number,
            pid,
            to,
            from,
        })
    }

    /// A child by fork.
    fn forked(number: usize) -> Result<Role> {
        Role::new(number, |[from, to]| {
            fork_child(|| i32::from(child(number, from, to).is_err()))
        })
    }

    /// A child that is made in a control group, by fork.
    fn forked_into(number: usize, group: &str) -> Result<Role> {
        let group = std::fs::File::open(format!("{GROUPS}/{group}"))?;
        Role::new(number, |[from, to]| {
            let args = into(&group, 0);
            // SAFETY: Like fork(), of a program with one thread; the arguments are valid.
            let made = unsafe { libc::syscall(libc::SYS_clone3, &args, size_of_val(&args)) };
            if check(made as i32)? == 0 {
                let code = i32::from(child(number, from, to).is_err());
                // SAFETY: The end of the child.
                unsafe { libc::_exit(code) };
            }
            Ok(made as i32)
        })
    }

    /// A child that is made in a control group as by posix_spawn(): it shares this process's
    /// memory until it executes a program.
    fn spawned_into(number: usize, group: &str) -> Result<Role> {
        let group = std::fs::File::open(format!("{GROUPS}/{group}"))?;
        Role::new(number, |[from, to]| {
            let args = into(&group, (libc::CLONE_VM | libc::CLONE_VFORK) as u64);
            let words = [
                "joins",
                "child",
                &number.to_string(),
                &from.to_string(),
                &to.to_string(),
            ]
            .map(|word| CString::new(word).unwrap_or_default());
            let mut argv: Vec<*const c_char> = words.iter().map(|w| w.as_ptr()).collect();
            argv.push(std::ptr::null());
            let env: [*const c_char; 1] = [std::ptr::null()];
            let made: i64;
            // SAFETY: The arguments are valid. The child uses no stack, and executes a program or ends.
            unsafe {
                std::arch::asm!(
                    "syscall",
                    "test rax, rax",
                    "jnz 2f",
                    "mov eax, 59", // execve
                    "mov rdi, r12",
                    "mov rsi, r13",
                    "mov rdx, r14",
                    "syscall",
                    "mov edi, 127",
                    "mov eax, 60", // exit
                    "syscall",
                    "2:",
                    inout("rax") libc::SYS_clone3 => made,
                    inout("rdi") &args => _,
                    inout("rsi") size_of_val(&args) => _,
                    in("r12") c"/proc/self/exe".as_ptr(),
                    in("r13") argv.as_ptr(),
                    in("r14") env.as_ptr(),
                    out("rcx") _,
                    out("r11") _,
                    out("rdx") _,
                );
            }
            if made < 0 {
                return Err(Error::from_raw_os_error(-made as i32));
            }
            Ok(made as i32)
        })
    }

    /// Has it do something; gives two times.
    fn ask(&mut self, what: &str) -> Result<[u64; 2]> {
        write!(self.to, "{what:<16}")?;
        self.answer()
    }

    /// What it answers.
    fn answer(&mut self) -> Result<[u64; 2]> {
        let mut times = [0u64; 2];
        for t in &mut times {
            let mut bytes = [0; 8];
            self.from.read_exact(&mut bytes)?;
            *t = u64::from_le_bytes(bytes);
        }
        Ok(times)
    }

    /// Has it, or a child of it, touch its pages. Are these to be in the trace?
    fn turn(&mut self, what: &str, expected: bool) -> Result<()> {
        let [begin, end] = self.ask(what)?;
        println!("turn {} {} {begin} {end}", self.number, u8::from(expected));
        Ok(())
    }

    fn moves(&self, group: &str) -> Result<()> {
        set(
            &format!("{GROUPS}/{group}/cgroup.procs"),
            &self.pid.to_string(),
        )
    }
}

fn into(group: &std::fs::File, flags: u64) -> libc::clone_args {
    // SAFETY: Zeroes are a clone_args that asks for nothing.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    args.flags = flags | 0x2_0000_0000; // CLONE_INTO_CGROUP
    args.cgroup = group.as_raw_fd() as u64;
    args
}

/// Address spaces that the trace has had.
fn spaces() -> Result<u64> {
    let status = activator("status --json")?;
    let after = status.split("\"mms\":").nth(1).unwrap_or("");
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().map_err(Error::other)
}

/// Does what lets a process join, and waits until the trace has another address space.
fn joined(what: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = spaces()?;
    what()?;
    wait_for(20, "a process has not joined the trace", || {
        spaces().is_ok_and(|now| now > before)
    })
}

fn begin(scope: &[&str], file: &str, group: Option<&str>) -> Result<()> {
    let mut command = Command::new("/bin/activator");
    command
        .args(["on", "-n", "64"])
        .args(scope)
        .args(["-o", file]);
    if let Some(group) = group {
        let procs = format!("{GROUPS}/{group}/cgroup.procs");
        // SAFETY: The parent has one thread.
        unsafe { command.pre_exec(move || set(&procs, "0")) };
    }
    let mut child = command.stdout(std::process::Stdio::null()).spawn()?;
    println!("never {}", child.id());
    match child.wait()?.success() {
        true => Ok(()),
        false => Err(Error::other("the trace does not begin")),
    }
}

fn groups(file: &str) -> Result<()> {
    cgroups(c"/tmp/cgroup")?;
    for group in ["in", "in/below", "out"] {
        std::fs::create_dir_all(format!("{GROUPS}/{group}"))?;
    }
    let mut inside = Role::forked(0)?;
    let mut below = Role::forked(1)?;
    let mut outside = Role::forked(2)?;
    let mut later = Role::forked(3)?;
    inside.moves("in")?;
    below.moves("in/below")?;
    outside.moves("out")?;
    // The activator is in the group, and is left out all the same.
    begin(&["--cgroup", "/in"], file, Some("in"))?;
    for (role, is_in) in [
        (&mut inside, true),
        (&mut below, true),
        (&mut outside, false),
        (&mut later, false),
    ] {
        role.turn("t", is_in)?;
        role.turn("f", is_in)?;
    }
    joined(|| later.moves("in"))?;
    later.turn("t", true)?;
    later.turn("f", true)?;
    later.ask("xother-3")?;
    later.turn("t", true)?;
    // Who leaves stays in the trace.
    inside.moves("out")?;
    inside.turn("t", true)?;
    inside.turn("f", true)?;
    outside.ask("xother-2")?;
    outside.turn("t", false)?;
    // By itself, and at once before it executes a program.
    let mut enters = Role::forked(8)?;
    println!("files {}", enters.pid);
    write!(enters.to, "{:<16}{:<16}", "gin", "xother-8")?;
    enters.answer()?;
    enters.answer()?;
    enters.turn("t", true)?;
    let mut made = Role::forked_into(4, "in")?;
    println!("files {}", made.pid);
    made.turn("t", true)?;
    let mut spawned = Role::spawned_into(5, "in/below")?;
    println!("files {}", spawned.pid);
    spawned.turn("t", true)?;
    let mut elsewhere = Role::spawned_into(6, "out")?;
    elsewhere.turn("t", false)?;
    // This process has shared its memory with one of the group.
    let [from, to] = touch(7)?;
    println!("turn 7 0 {from} {to}");
    println!("never {}", std::process::id());
    Ok(())
}

fn names(file: &str) -> Result<()> {
    let mut before = Role::forked(0)?;
    let mut other = Role::forked(1)?;
    let mut executes = Role::forked(2)?;
    let mut renamed = Role::forked(3)?;
    before.ask("xalpha-1")?;
    other.ask("xbeta")?;
    begin(&["--comm", "al[op]*"], file, None)?;
    for (role, is_in) in [
        (&mut before, true),
        (&mut other, false),
        (&mut executes, false),
        (&mut renamed, false),
    ] {
        role.turn("t", is_in)?;
        role.turn("f", is_in)?;
    }
    executes.ask("xalpha-2")?;
    executes.turn("t", true)?;
    executes.turn("f", true)?;
    joined(|| renamed.ask("nalpha").map(drop))?;
    renamed.turn("t", true)?;
    renamed.turn("f", true)?;
    // Who gets another name stays in the trace.
    before.ask("ngamma")?;
    before.turn("t", true)?;
    before.ask("xdelta")?;
    before.turn("t", true)?;
    before.turn("f", true)?;
    other.ask("nalp")?;
    other.ask("xbeta-2")?;
    other.turn("t", true)?;
    println!("never {}", std::process::id());
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<i32>().map_err(Error::other);
    match args.get(1..).unwrap_or_default() {
        ["child", role, from, to, anew @ ..] => {
            let (role, from, to) = (number(role)?, number(from)?, number(to)?);
            if !anew.is_empty() {
                // SAFETY: The descriptor is this process's, and stays open.
                let mut to = std::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(to) });
                to.write_all(&[0; 16])?;
            }
            child(role as usize, from, to)
        }
        ["cgroup", file] => groups(file),
        ["comm", file] => names(file),
        _ => Err(Error::other("joins cgroup|comm FILE")),
    }
}
