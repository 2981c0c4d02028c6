//! `inject KINDS PROBABILITY INTERVAL WHO SCENE ROUNDS [OPTION…]`: traces while operations
//! of the kernel fail. KINDS are `page` (allocations of pages), `slab` (of objects),
//! `usercopy` (copies from and to user space) and `request` (requests to disks with
//! /sys/block/DISK/make-it-fail), with a + between them. Of as many operations as INTERVAL,
//! one fails with a PROBABILITY in percent.
//!
//! WHO is `task`: only the traced program, which says so itself; `all`: each task there is,
//! kernel threads too, except the first process and this one; `START-END`: each operation
//! that code at these addresses asks for, whatever the task.
//!
//! SCENE is `plain`: faulty, untraced; `run`: `activator run OPTION… faulty`; or `both`: in
//! turns `activator run` of a small program; `activator on --all` and `off`; and, with `all`, `on`
//! when nothing fails yet, three seconds in which one of so many operations fails as
//! PROBABILITY has it, and `off`. With faulty beside them. An OPTION
//! `fail:DISK` lets requests to a disk fail; `beside` has faulty run beside a `run`, too.
//!
//! Nothing fails while traces are checked, after each round. Prints what became of each
//! round, how many faults were injected, and of those that the kernel's log has, how many
//! were in the tracer's functions and in page faults; and what the log has that no healthy
//! kernel prints.
use kvmtrace_guest::{arg, check, set, swap_on};
use rust_mm_trace::ioctl;
use rust_mm_trace::uapi::vmtrace_status;
use std::fs::{File, OpenOptions};
use std::io::{Error, Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const DEBUG: &str = "/sys/kernel/debug";
/// More than are injected.
const TIMES: u64 = 1_000_000_000;
/// Nothing takes so long.
const LIMIT: Duration = Duration::from_secs(100);

struct Faults {
    kinds: Vec<&'static str>,
    probability: String,
}

impl Faults {
    fn new() -> Result<Faults> {
        let argument = |n| std::env::args().nth(n).unwrap_or_default();
        let kinds = argument(1)
            .split('+')
            .map(|kind| match kind {
                "page" => Ok("fail_page_alloc"),
                "slab" => Ok("failslab"),
                "usercopy" => Ok("fail_usercopy"),
                "request" => Ok("fail_make_request"),
                _ => Err(Error::other("page, slab, usercopy or request")),
            })
            .collect::<Result<Vec<_>>>()?;
        for kind in &kinds {
            let knob = |name: &str, value: &str| set(&format!("{DEBUG}/{kind}/{name}"), value);
            knob("probability", "0")?;
            knob("interval", &argument(3))?;
            knob("times", &TIMES.to_string())?;
            knob("space", "0")?;
            knob("verbose", "2")?;
            // All that there is room for.
            knob("verbose_ratelimit_interval_ms", "1000")?;
            knob("verbose_ratelimit_burst", "100")?;
            match argument(4).split_once('-') {
                Some((start, end)) => {
                    knob("stacktrace-depth", "32")?;
                    knob("require-start", start)?;
                    knob("require-end", end)?;
                    knob("task-filter", "N")?;
                }
                None => knob("task-filter", "Y")?,
            }
            match *kind {
                "fail_page_alloc" => {
                    knob("min-order", "0")?;
                    knob("ignore-gfp-wait", "N")?;
                    knob("ignore-gfp-highmem", "N")?;
                }
                "failslab" => knob("ignore-gfp-wait", "N")?,
                _ => {}
            }
        }
        Ok(Faults {
            kinds,
            probability: argument(2),
        })
    }

    fn on(&self) -> Result<()> {
        for kind in &self.kinds {
            set(&format!("{DEBUG}/{kind}/probability"), &self.probability)?;
        }
        Ok(())
    }

    fn interval(&self, interval: &str) -> Result<()> {
        for kind in &self.kinds {
            set(&format!("{DEBUG}/{kind}/interval"), interval)?;
        }
        Ok(())
    }

    fn off(&self) -> Result<()> {
        for kind in &self.kinds {
            set(&format!("{DEBUG}/{kind}/probability"), "0")?;
        }
        Ok(())
    }

    /// How many of each kind there were.
    fn print(&self) -> Result<()> {
        for kind in &self.kinds {
            let left = std::fs::read_to_string(format!("{DEBUG}/{kind}/times"))?;
            let left: u64 = left.trim().parse().map_err(Error::other)?;
            println!("injected {kind} {}", TIMES - left);
        }
        Ok(())
    }
}

/// Has each task there is fail, except the first process and this one.
fn fail_all() -> Result<usize> {
    let own = std::process::id().to_string();
    let mut many = 0;
    for process in std::fs::read_dir("/proc")?.flatten() {
        let name = process.file_name().into_string().unwrap_or_default();
        let number = name.bytes().all(|b| b.is_ascii_digit());
        if !number || name == "1" || name == own {
            continue;
        }
        let Ok(tasks) = std::fs::read_dir(process.path().join("task")) else {
            continue;
        };
        for task in tasks.flatten() {
            many += usize::from(std::fs::write(task.path().join("make-it-fail"), "1").is_ok());
        }
    }
    Ok(many)
}

/// A program that is made to fail from before its exec on, if `fails`.
fn spawn(argv: &[&str], fails: bool) -> Result<Child> {
    let [program, args @ ..] = argv else {
        return Err(Error::other("no program"));
    };
    let mut command = Command::new(format!("/bin/{program}"));
    command.args(args).stdin(Stdio::null());
    // The kernel ends a program with SIGSEGV if it can't write to its rseq area, for which it
    // may need a page.
    command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    // SAFETY: System calls on memory of this function.
    unsafe {
        command.pre_exec(move || {
            if fails {
                let fd = check(libc::open(
                    c"/proc/self/make-it-fail".as_ptr(),
                    libc::O_WRONLY,
                ))?;
                libc::write(fd, c"1".as_ptr().cast(), 1);
                libc::close(fd);
            }
            Ok(())
        });
    }
    let out = File::create(format!("/tmp/inject/{program}.out"))?;
    let errors = File::create(format!("/tmp/inject/{program}.err"))?;
    command.stdout(out).stderr(errors);
    command.spawn()
}

/// The exit code; 128 and the signal; 200 if it hung and was killed.
fn wait(child: &mut Child) -> Result<i32> {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            return Ok(200);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program; 250 if it could not be started.
fn run(argv: &[&str], fails: bool) -> i32 {
    spawn(argv, fails)
        .and_then(|mut child| wait(&mut child))
        .unwrap_or(250)
}

/// Ends a trace that is still on. True if one was.
fn end(device: &File) -> Result<bool> {
    let mut any = false;
    let limit = Instant::now() + LIMIT;
    while Instant::now() < limit {
        let mut status = vmtrace_status::default();
        // SAFETY: A structure of the right type.
        let ret = unsafe {
            libc::ioctl(
                device.as_raw_fd(),
                ioctl::STOP as libc::Ioctl,
                std::ptr::from_mut(&mut status),
            )
        };
        match check(ret).map_err(|e| e.raw_os_error()) {
            Err(Some(libc::ENODATA)) => return Ok(any),
            Err(Some(libc::EINPROGRESS)) => any = true,
            // About to begin.
            Err(Some(libc::EBUSY)) => std::thread::sleep(Duration::from_millis(5)),
            Ok(_) | Err(Some(libc::EIO)) => any = true,
            Err(e) => return Err(Error::other(format!("STOP: {e:?}"))),
        }
    }
    Err(Error::other("the trace does not end"))
}

/// The text of a file, in one line.
fn text(name: &str) -> String {
    let text = std::fs::read_to_string(format!("/tmp/inject/{name}")).unwrap_or_default();
    text.replace('\n', " | ")
}

/// What the kernel printed.
fn kernel_log() -> Result<String> {
    const READ_ALL: i32 = 3;
    let mut buffer = vec![0u8; 16 << 20];
    // SAFETY: Memory of that size.
    let n =
        check(unsafe { libc::klogctl(READ_ALL, buffer.as_mut_ptr().cast(), buffer.len() as i32) })?;
    buffer.truncate(n as usize);
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

/// Lines that no healthy kernel prints.
const BAD: [&str; 12] = [
    "BUG:",
    "WARNING:",
    "Oops",
    "general protection",
    "INFO: task",
    "rcu: INFO",
    "sleeping function",
    "bad: scheduling",
    "Bad page",
    "kernel BUG",
    "list_add corruption",
    "list_del corruption",
];

/// The kernel warns if a new kernel thread, any at all, gets no memory for a mask of CPUs.
const NO_MASK: &str = "WARNING: at kthread_affine_node";

fn print_log() -> Result<()> {
    let log = kernel_log()?;
    let (mut seen, mut tracer, mut faults) = (0, 0, 0);
    for part in log.split("FAULT_INJECTION: forcing a failure").skip(1) {
        // Its stack; other lines may follow.
        let stack = part.split("</TASK>").next().unwrap_or(part);
        seen += 1;
        tracer += usize::from(stack.contains("vmtrace"));
        faults +=
            usize::from(stack.contains("handle_mm_fault") || stack.contains("asm_exc_page_fault"));
    }
    println!("stacks {seen}");
    println!("stacks-tracer {tracer}");
    println!("stacks-faults {faults}");
    for line in log
        .lines()
        .filter(|l| BAD.iter().any(|bad| l.contains(bad)) && !l.contains(NO_MASK))
    {
        println!("bad {line}");
    }
    Ok(())
}

fn main() -> Result<()> {
    let argument = |n| std::env::args().nth(n).unwrap_or_default();
    let (who, scene, rounds) = (argument(4), argument(5), arg(6, 3));
    let options: Vec<String> = std::env::args().skip(7).collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    std::fs::create_dir_all("/tmp/inject")?;
    let console = std::fs::read_to_string("/proc/sys/kernel/printk")?;
    // The stacks are for the log only.
    set("/proc/sys/kernel/printk", "1")?;
    let given = options.iter().skip_while(|o| **o != "-o").nth(1).copied();
    if given.is_none() {
        swap_on("/dev/swap")?;
    }
    for disk in options.iter().filter_map(|o| o.strip_prefix("fail:")) {
        let path = std::fs::canonicalize(disk)?;
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        set(&format!("/sys/block/{name}/make-it-fail"), "1")?;
    }
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/vmtrace")?;
    // What was printed before is not of these faults.
    const CLEAR: i32 = 5;
    // SAFETY: No memory is passed.
    check(unsafe { libc::klogctl(CLEAR, std::ptr::null_mut(), 0) })?;
    let faults = Faults::new()?;
    let all = who == "all";
    let beside = options.contains(&"beside");
    let options: Vec<&str> = options
        .into_iter()
        .filter(|o| *o != "beside" && !o.starts_with("fail:"))
        .collect();
    let output = given.unwrap_or("/tmp/inject/t");
    let common = [&["-q", "-n", "64", "--stall-limit", "3s"][..], &options].concat();
    let common = match given {
        Some(_) => common,
        None => [&common[..], &["-o", output]].concat(),
    };
    if scene == "plain" {
        faults.on()?;
        let code = run(&["faulty", "3", "self"], false);
        faults.off()?;
        println!("program plain {code} {}", text("faulty.out"));
        faults.print()?;
        return set("/proc/sys/kernel/printk", &console);
    }
    for round in 0..rounds {
        for name in ["t", "status", "faulty.out", "touch-loop.out"] {
            let _ = std::fs::remove_file(format!("/tmp/inject/{name}"));
        }
        let mut companion = match scene == "both" || beside {
            true => Some(spawn(&["faulty", "6"], false)?),
            false => None,
        };
        if all {
            std::thread::sleep(Duration::from_millis(300));
            fail_all()?;
        }
        let turn = round % if all { 3 } else { 2 };
        let during = scene == "both" && turn == 2;
        if !during {
            faults.on()?;
        }
        let start = Instant::now();
        let codes = if scene == "run" {
            let argv = [
                &["activator", "run", "--status-file", "/tmp/inject/status"][..],
                &common,
                &["--", "/bin/faulty", "5", "self"],
            ]
            .concat();
            vec![run(&argv, all)]
        } else if turn == 0 {
            let argv = [
                &["activator", "run", "--status-file", "/tmp/inject/status"][..],
                &common,
                &["--", "/bin/touch-loop", "200", "30"],
            ]
            .concat();
            vec![run(&argv, all)]
        } else {
            let common: Vec<&str> = common.iter().copied().filter(|o| *o != "-q").collect();
            let on = run(&[&["activator", "on", "--all"][..], &common].concat(), all);
            let text = text("activator.err");
            println!("on {round} {on} {text}");
            if during {
                faults.interval("1")?;
                faults.on()?;
                std::thread::sleep(Duration::from_secs(3));
                faults.interval(&argument(3))?;
            } else {
                std::thread::sleep(Duration::from_millis(500));
            }
            vec![on, run(&["activator", "off"], all)]
        };
        faults.off()?;
        let seconds = start.elapsed().as_secs();
        let said = text("activator.err");
        let still = end(&device)?;
        if let Some(child) = &mut companion {
            println!("companion {round} {} {}", wait(child)?, text("faulty.out"));
        } else if scene == "run" {
            println!("program {round} {} {}", codes[0], text("activator.out"));
        }
        let exists = std::fs::exists(output)?;
        let checked = match exists {
            true => run(&["postproc", "check", "--json", output], false),
            false => 255,
        };
        let line = serde_json::json!({
            "codes": codes,
            "still_on": still,
            "check": checked,
            "seconds": seconds,
            "status": text("status"),
            "said": said,
        });
        println!("round {line}");
        if checked == 1 {
            println!(
                "found {round} {}",
                text("postproc.out").split_whitespace().collect::<String>()
            );
        } else if checked == 2 {
            println!("unread {round} {}", text("postproc.err"));
        }
        // A trace after it, when all is well.
        let _ = std::fs::remove_file("/tmp/inject/after");
        let after = [
            "activator",
            "run",
            "-q",
            "-n",
            "64",
            "-o",
            "/tmp/inject/after",
            "--",
            "/bin/touch-loop",
            "200",
            "5",
        ];
        let ran = run(&after, false);
        let checked = run(&["postproc", "check", "/tmp/inject/after"], false);
        println!("after {round} {ran} {checked} {}", text("activator.err"));
        std::io::stdout().flush()?;
    }
    faults.print()?;
    print_log()?;
    set("/proc/sys/kernel/printk", &console)?;
    Ok(())
}
