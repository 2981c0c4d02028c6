//! One run of QEMU: a kernel, an initramfs with the tools, disks, a job.

use crate::runner::{booted_in, cpus, say};
use crate::{cpio::Cpio, paths};
use anyhow::{Context, Result, bail};
use kvmtrace_guest::{Step, StepResult};
use std::collections::{BTreeMap, btree_map::Entry};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Options for each guest's kernel, which follow the options of the guest's scenario.
pub static CMDLINE: OnceLock<String> = OnceLock::new();

/// The model of each guest's CPU, in place of [`CPU_OF_SCENARIOS`].
pub static CPU: OnceLock<String> = OnceLock::new();

/// All features that the emulator has.
pub const ALL_FEATURES: &str = "max";

/// All features, except those for which Linux and glibc copy and clear memory by `rep movsb` and `rep stosb`:
/// the emulator executes these byte by byte. Without them, guests take a third less of the host's time.
pub const CPU_OF_SCENARIOS: &str = "max,-erms,-fsrm,-fzrm,-fsrs";

/// How the guest's CPU runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Profile {
    /// One CPU, one instruction a nanosecond: bit-exact.
    Exact,
    /// One CPU.
    Fast,
    /// Two CPUs in two host threads.
    Smp,
    /// Two CPUs that take turns in one host thread, an instruction in 32 ns, so that a
    /// turn is short.
    Turns,
    /// Four CPUs that take turns.
    Turns4,
    /// Two CPUs that take turns without disks, so that nothing depends on when the host does
    /// something: what runs twice runs the same way. The trace disk is memory.
    Alone,
}

/// QEMU's arguments for so many CPUs in one thread of the host.
macro_rules! turns {
    ($cpus:literal) => {
        [
            "-smp",
            $cpus,
            "-accel",
            "tcg",
            "-icount",
            "shift=5,sleep=off",
            "-rtc",
            "base=2026-01-01,clock=vm",
            "-seed",
            "1",
        ]
    };
}

impl Profile {
    /// The profile's name in file names.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Exact => "exact",
            Profile::Fast => "fast",
            Profile::Smp => "smp",
            Profile::Turns => "turns",
            Profile::Turns4 => "turns4",
            Profile::Alone => "alone",
        }
    }

    /// CPUs of the host that it keeps busy.
    fn host_cpus(self) -> usize {
        match self {
            Profile::Smp => 2,
            _ => 1,
        }
    }

    /// How much longer a step may take by the guest's clock. Under icount it leaps on
    /// while the guest waits for the host's disk; [`Machine::deadline_s`] is by the host's.
    fn leaps(self) -> u64 {
        match self {
            Profile::Exact | Profile::Turns | Profile::Turns4 | Profile::Alone => 100,
            Profile::Fast | Profile::Smp => 1,
        }
    }

    /// Under icount the kernel's check of the local APIC timer fails after half
    /// a second of busy waiting, which is most of a boot; one CPU needs no such
    /// timer, and a second one gets the time from the first.
    ///
    /// Without icount, a host that is busy makes the check of the timer's interrupts
    /// fail, for they are counted against a clock that goes on.
    ///
    /// Under icount the clock also leaps on while the guest waits for the host's disk, so an
    /// output would seem to take nothing for long: there is no stall limit.
    fn cmdline(self) -> &'static str {
        match self {
            Profile::Exact | Profile::Turns | Profile::Turns4 | Profile::Alone => {
                "noapictimer vmtrace_stall=0"
            }
            // The clocksource watchdog of Linux 7.3 can hang a boot for ever, patched or not: while
            // one CPU switches from jiffies to the TSC in stop_machine(), another one waits in
            // watchdog_check_skew() for an answer, with interrupts off. The time-out of this wait is
            // by a clock that stands still meanwhile. One boot in some 100 hung so on a busy host.
            Profile::Fast | Profile::Smp => "no_timer_check tsc=nowatchdog",
        }
    }

    fn args(self) -> &'static [&'static str] {
        match self {
            Profile::Exact => &[
                "-accel",
                "tcg",
                "-icount",
                "shift=0,sleep=off",
                "-rtc",
                "base=2026-01-01,clock=vm",
                "-seed",
                "1",
            ],
            Profile::Turns | Profile::Alone => &turns!("2"),
            Profile::Turns4 => &turns!("4"),
            Profile::Fast => &["-accel", "tcg,tb-size=512"],
            Profile::Smp => &["-smp", "2", "-accel", "tcg,thread=multi,tb-size=512"],
        }
    }
}

/// What the guest runs on and does.
pub struct Machine {
    /// Names the run's folder.
    pub name: String,
    /// Kernel flavour.
    pub kernel: String,
    /// Speed or exactness.
    pub profile: Profile,
    /// With the Debian image.
    pub image: bool,
    /// More kernel command line.
    pub cmdline: String,
    /// Files for the guest's /work, name and content.
    pub files: Vec<(String, Vec<u8>)>,
    /// What to do.
    pub steps: Vec<Step>,
    /// Seconds until the run is given up.
    pub deadline_s: u64,
}

/// What a run left.
pub struct Outcome {
    /// The run's folder.
    pub dir: PathBuf,
    /// Results of the steps, in order.
    pub results: Vec<StepResult>,
}

impl Outcome {
    /// A step's result.
    ///
    /// # Errors
    ///
    /// If there is none of that name.
    pub fn step(&self, name: &str) -> Result<&StepResult> {
        self.results
            .iter()
            .find(|r| r.name == name)
            .with_context(|| format!("the guest has no result for {name}"))
    }

    /// The raw disk that the trace was written to.
    pub fn trace(&self) -> PathBuf {
        self.dir.join("trace.img")
    }

    /// Takes what the guest's `keep` put into a slot of that disk, as a file `name`.
    ///
    /// # Errors
    ///
    /// If there is nothing.
    pub fn kept(&self, slot: usize, name: &str) -> Result<PathBuf> {
        /// Bytes of the disk that each has: as `keep` knows.
        const SLOT: u64 = 64 << 20;
        let mut disk = File::open(self.trace())?;
        disk.seek(SeekFrom::Start(slot as u64 * SLOT))?;
        let mut len = [0; 8];
        disk.read_exact(&mut len)?;
        let len = u64::from_le_bytes(len);
        if len == 0 || len > SLOT {
            bail!("{name}: a file of {len} bytes");
        }
        let path = self.dir.join(name);
        std::io::copy(&mut disk.take(len), &mut File::create(&path)?)?;
        Ok(path)
    }
}

/// Lines of the console that no healthy kernel prints.
const BAD: &[&str] = &[
    "Kernel panic",
    "BUG:",
    "WARNING:",
    "Oops",
    "general protection",
    "possible circular",
    "possible recursive",
    "inconsistent lock",
    "suspicious RCU",
    "INFO: task",
    "rcu: INFO",
    "KASAN",
    "sleeping function",
    "bad: scheduling",
    "Bad page",
    "kernel BUG",
];

/// The runs under way: their names, and their processes for Ctrl-C.
static RUNNING: Mutex<BTreeMap<String, Option<u32>>> = Mutex::new(BTreeMap::new());

fn running() -> MutexGuard<'static, BTreeMap<String, Option<u32>>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run under way; no other one of its name may be, for they would share a folder.
struct Running<'a>(&'a str);

impl<'a> Running<'a> {
    fn new(name: &'a str) -> Result<Self> {
        match running().entry(name.into()) {
            Entry::Occupied(_) => bail!("two runs of the name {name} at a time"),
            Entry::Vacant(free) => free.insert(None),
        };
        Ok(Running(name))
    }

    fn child(&self, pid: Option<u32>) {
        running().insert(self.0.into(), pid);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        running().remove(self.0);
    }
}

/// Ends what runs. For a signal handler's thread, after which the process ends.
pub fn kill_children() {
    for pid in running().values().flatten() {
        // The shell's own: a small system has no program of that name.
        let kill = format!("kill -9 {pid}");
        let _ = Command::new("sh").args(["-c", &kill]).status();
    }
}

/// Runs a QEMU that is no guest of ours until it ends. None if it does not in time; it is killed then.
///
/// # Errors
///
/// If QEMU can't be started.
pub fn run_to_end(name: &str, qemu: &mut Command, limit: Duration) -> Result<Option<ExitStatus>> {
    let running = Running::new(name)?;
    let mut child = qemu
        .spawn()
        .context("cannot start QEMU: run 'make setup'")?;
    running.child(Some(child.id()));
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if begin.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    running.child(None);
    Ok(status)
}

/// The last lines of a text, and the file that has all of it.
pub fn tail(text: &str, path: &Path) -> String {
    let lines: Vec<_> = text.lines().collect();
    format!(
        "{}\n(all of it: {})",
        lines[lines.len().saturating_sub(25)..].join("\n"),
        path.display()
    )
}

/// Checks that a console has no line that no healthy kernel prints.
///
/// # Errors
///
/// If it has one.
pub fn healthy(console: &Path) -> Result<()> {
    let text = fs::read(console)?;
    let text = String::from_utf8_lossy(&text);
    if let Some(line) = text.lines().find(|line| is_bad(line)) {
        bail!(
            "the kernel reported a problem: {line}\n(the console: {})",
            console.display()
        );
    }
    Ok(())
}

/// The programs that guests can have.
const PROGRAMS: &[&str] = &[
    "activator",
    "postproc",
    "kvmtrace",
    "touch-loop",
    "take-turns",
    "joins",
    "spells",
    "pauses",
    "phases",
    "versions",
    "throng",
    "different-turns",
    "minor-faults",
    "hot-cold",
    "heats",
    "young",
    "odd-samplings",
    "resize-storm",
    "many-members",
    "fork-cow",
    "mremap-move",
    "mprotect-storm",
    "munmap-remap",
    "exec-args",
    "brk-stack",
    "swap-reuse",
    "file-map",
    "first-touch",
    "threads",
    "crowd",
    "hotplug",
    "exits",
    "hangs",
    "needed",
    "fork-storm",
    "families",
    "rotations",
    "in-namespace",
    "cost",
    "virtual-time",
    "offsets",
    "heirs",
    "small-ids",
    "stacked",
    "cross-page",
    "edge-turn",
    "kernel-copies",
    "other-ways",
    "protection",
    "random-walk",
    "signals",
    "huge-pages",
    "huge-tlb",
    "ksm",
    "swap-disk",
    "idle-pages",
    "reclaim",
    "damon-beside",
    "damon-record",
    "damon-sample",
    "uffd",
    "guards",
    "passes-by",
    "futexes",
    "xsave-signals",
    "zombies",
    "births",
    "device-maps",
    "migrate",
    "frames",
    "switches",
    "defects",
    "cow-race",
    "load-store",
    "reasons",
    "stop-large",
    "generations",
    "file-storm",
    "thread-executes",
    "attach-loop",
    "toggles",
    "mixed-stress",
    "races",
    "keep",
    "count-io",
    "file-calls",
    "shared-blocks",
    "btrfs-search",
    "gfs2-extents",
    "moments",
    "all-maps",
    "many-maps",
    "ioctl-fuzz",
    "faulty",
    "inject",
    "fail-nth",
    "monitor",
    "secret",
    "fuse",
    "ublk",
    "no-huge",
    "names",
    "sharers",
    "kcsan",
    "watch-pages",
];

/// Programs that others start by a name that is no path.
const BY_NAME: [&str; 4] = ["activator", "postproc", "touch-loop", "faulty"];

/// Programs that a job may start: those whose names are somewhere in it. All of them are
/// more than 100 MB, which each guest would have to unpack.
fn named(job: &[u8], files: &[(String, Vec<u8>)]) -> Vec<&'static str> {
    let names = |text: &[u8], name: &str| text.windows(name.len()).any(|w| w == name.as_bytes());
    let needs = |program: &&str| {
        // Its name is also that of a directory, /opt/kvmtrace.
        let name = match *program {
            "kvmtrace" => "kvmtrace ",
            name => name,
        };
        BY_NAME.contains(program)
            || names(job, name)
            || files.iter().any(|(_, data)| names(data, name))
    };
    PROGRAMS.iter().copied().filter(needs).collect()
}

/// Programs that another one may start: it contains their paths.
fn started(program: &[u8]) -> impl Iterator<Item = &'static str> {
    const BIN: &[u8] = b"/bin/";
    let paths = program.windows(BIN.len()).enumerate();
    let paths = paths.filter_map(|(at, w)| (w == BIN).then_some(at + BIN.len()));
    paths.flat_map(|at| {
        let rest = program.get(at..).unwrap_or_default();
        let begins = move |name: &&str| rest.starts_with(name.as_bytes());
        PROGRAMS.iter().copied().filter(begins)
    })
}

impl Machine {
    /// Whether somebody works in the guest by hand.
    fn interactive(&self) -> bool {
        self.steps.iter().any(|s| s.name == "shell")
    }

    fn initramfs(&self) -> Result<Vec<u8>> {
        let mut cpio = Cpio::default();
        for dir in ["bin", "dev", "proc", "sys", "tmp", "root", "files"] {
            cpio.dir(dir);
        }
        cpio.device("dev/console", 5, 1);
        let init = fs::read(paths::tool("init")).context("init is missing: run 'make tools'")?;
        cpio.file("init", 0o755, &init);
        let mut steps = self.steps.clone();
        for step in &mut steps {
            step.timeout_s *= self.profile.leaps();
        }
        let job = serde_json::to_vec(&steps)?;
        let mut programs = match self.interactive() {
            true => PROGRAMS.to_vec(),
            false => named(&job, &self.files),
        };
        let mut packed = 0;
        while let Some(program) = programs.get(packed) {
            let data = cpio.program(&paths::tool(program))?;
            for other in started(&data) {
                if !programs.contains(&other) {
                    programs.push(other);
                }
            }
            packed += 1;
        }
        for (name, data) in &self.files {
            cpio.file(&format!("files/{name}"), 0o644, data);
        }
        cpio.file("job.json", 0o644, &job);
        Ok(cpio.finish())
    }

    /// Boots, runs the job, and collects the results.
    ///
    /// # Errors
    ///
    /// If something is missing, the guest does not end well or in time, or its
    /// console shows that the kernel is not well.
    pub fn run(&self) -> Result<Outcome> {
        self.run_with(&[])
    }

    /// The same with more arguments for QEMU.
    ///
    /// # Errors
    ///
    /// As [`Machine::run`].
    pub fn run_with(&self, more: &[String]) -> Result<Outcome> {
        self.run_under(None, more)
    }

    /// The same as a guest of a hypervisor that QEMU boots, if there is one: a file of the Multiboot
    /// specification, which gets the kernel and its memory disk as modules.
    ///
    /// # Errors
    ///
    /// As [`Machine::run`].
    pub fn run_under(&self, hypervisor: Option<&Path>, more: &[String]) -> Result<Outcome> {
        for _ in 1..BOOTS {
            match self.boot(hypervisor, more)? {
                Booted::Ended(outcome) => return Ok(outcome),
                Booted::Failed(why) => {
                    say!("  {}: QEMU failed, {why}: once more", self.name);
                }
            }
        }
        match self.boot(hypervisor, more)? {
            Booted::Ended(outcome) => Ok(outcome),
            Booted::Failed(why) => bail!("QEMU failed {BOOTS} times: {why}"),
        }
    }

    fn boot(&self, hypervisor: Option<&Path>, more: &[String]) -> Result<Booted> {
        let running = Running::new(&self.name)?;
        let dir = paths::build().join("runs").join(&self.name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir)?;
        booted_in(&dir);
        let kernel = paths::kernel(&self.kernel);
        if !kernel.exists() {
            bail!("{} is missing: run 'make kernel'", kernel.display());
        }
        fs::write(dir.join("initramfs"), self.initramfs()?)?;
        for (disk, size) in [
            ("trace", 8u64 << 30),
            ("out", 256 << 20),
            ("swap", 64 << 20),
            ("small", 1 << 20),
        ] {
            File::create(dir.join(format!("{disk}.img")))?.set_len(size)?;
        }
        let interactive = self.interactive();

        let mut qemu = Command::new(paths::build().join("qemu/qemu-system-x86_64"));
        qemu.args([
            "-nodefaults",
            "-no-user-config",
            "-nic",
            "none",
            "-vga",
            "none",
            "-display",
            "none",
        ])
        .args(["-m", "1024", "-no-reboot", "-machine", "pc", "-cpu"])
        .arg(CPU.get().map_or(CPU_OF_SCENARIOS, String::as_str))
        .args(self.profile.args())
        .args(more);
        // identify_cpu() clears the CPU's features for a moment; an interrupt in
        // it makes KASAN take 5-level addresses for wild ones.
        let levels = if self.kernel == "kasan" { "no5lvl" } else { "" };
        let quiet = if interactive { " quiet" } else { "" };
        if self.profile == Profile::Alone {
            let clock = paths::clock();
            if !clock.exists() {
                bail!("{} is missing: run 'make tools'", clock.display());
            }
            qemu.env("LD_PRELOAD", clock);
            let trace = dir.join("trace.img");
            File::options()
                .write(true)
                .open(&trace)?
                .set_len(SHARED_MB << 20)?;
            qemu.arg("-object").arg(format!(
                "memory-backend-file,id=trace,share=on,size={SHARED_MB}M,mem-path={}",
                trace.display()
            ));
            qemu.args(["-device", "ivshmem-plain,memdev=trace"]);
        }
        let cmdline = format!(
            "panic=-1 nokaslr norandmaps random.trust_cpu=off printk.time=0 {} {levels} {} {}{quiet}",
            self.profile.cmdline(),
            self.cmdline,
            CMDLINE.get().map_or("", String::as_str)
        );
        let initramfs = dir.join("initramfs");
        if let Some(hypervisor) = hypervisor {
            qemu.arg("-kernel").arg(hypervisor);
            qemu.args(["-append", "com1=115200,8n1 console=com1 noreboot=false"]);
            // A comma separates modules.
            let kernel = format!("{} console=hvc0 {cmdline}", kernel.display());
            let modules = [kernel, initramfs.display().to_string()];
            let modules = modules.map(|m| m.replace(',', ",,")).join(",");
            qemu.arg("-initrd").arg(modules);
        } else {
            qemu.arg("-kernel").arg(&kernel);
            qemu.arg("-initrd").arg(&initramfs);
            qemu.arg("-append").arg(format!("console=ttyS0 {cmdline}"));
        }
        let disks: &[_] = match self.profile {
            Profile::Alone => &[],
            _ => &["trace", "out", "swap", "small"],
        };
        for disk in disks {
            qemu.arg("-drive").arg(format!(
                "if=none,id={disk},format=raw,cache=unsafe,file={}",
                dir.join(format!("{disk}.img")).display()
            ));
            qemu.arg("-device")
                .arg(format!("virtio-blk-pci,drive={disk},serial={disk}"));
        }
        if self.image {
            let image = paths::image();
            if !image.exists() {
                bail!("{} is missing: run 'make image'", image.display());
            }
            qemu.arg("-drive").arg(format!(
                "if=none,id=root,format=raw,snapshot=on,file={}",
                image.display()
            ));
            qemu.args(["-device", "virtio-blk-pci,drive=root,serial=root"]);
        }
        if interactive {
            qemu.args(["-serial", "mon:stdio"]);
        } else {
            qemu.arg("-serial")
                .arg(format!("file:{}", dir.join("console.log").display()))
                .stdin(Stdio::null());
        }
        fs::write(dir.join("command"), format!("{qemu:?}\n"))?;
        let share = cpus(self.profile.host_cpus());
        let mut child = qemu
            .spawn()
            .context("cannot start QEMU: run 'make setup'")?;
        running.child(Some(child.id()));
        let begin = Instant::now();
        let deadline = begin + Duration::from_secs(self.deadline_s);
        let mut began = interactive;
        let has_begun = || fs::read(dir.join("console.log")).is_ok_and(|c| begins(&c));
        let status = loop {
            if let Some(s) = child.try_wait()? {
                if s.signal() == Some(SIGABRT) && !has_begun() {
                    running.child(None);
                    return Ok(Booted::Failed(format!("before the guest began, {s}")));
                }
                break Some(s);
            }
            if !began && begin.elapsed() > BOOT {
                began = has_begun();
                if !began {
                    child.kill()?;
                    child.wait()?;
                    running.child(None);
                    let why = format!("the guest did not begin in {} s", BOOT.as_secs());
                    return Ok(Booted::Failed(why));
                }
            }
            if !interactive && Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        drop(share);
        running.child(None);
        if interactive {
            return Ok(Booted::Ended(Outcome {
                dir,
                results: Vec::new(),
            }));
        }

        let console = String::from_utf8_lossy(&fs::read(dir.join("console.log"))?).into_owned();
        let tail = || tail(&console, &dir.join("console.log"));
        if self.profile == Profile::Smp && executed_the_past(&console) {
            let why = "a CPU executed a breakpoint that is not in memory any more";
            return Ok(Booted::Failed(why.into()));
        }
        if let Some(line) = console.lines().find(|l| is_bad(l)) {
            bail!("the kernel reported a problem: {line}\n{}", tail());
        }
        match status {
            None => bail!(
                "the guest did not end within {} s\n{}",
                self.deadline_s,
                tail()
            ),
            Some(s) if !s.success() => bail!("QEMU: {s}\n{}", tail()),
            Some(_) => {}
        }
        if !console.lines().any(|l| l.trim_end().ends_with("DONE rc=0")) {
            bail!("the guest did not finish its job\n{}", tail());
        }
        let json = if disks.is_empty() {
            let told = console.lines().find_map(|l| l.strip_prefix("RESULTS "));
            told.context("the guest printed no results")?.into()
        } else {
            let mut out = File::open(dir.join("out.img"))?;
            let mut len = [0u8; 8];
            out.read_exact(&mut len)?;
            let mut json = vec![0u8; usize::try_from(u64::from_le_bytes(len))?];
            out.read_exact(&mut json)?;
            json
        };
        fs::write(dir.join("results.json"), &json)?;
        let results = serde_json::from_slice(&json).context("cannot read the guest's results")?;
        Ok(Booted::Ended(Outcome { dir, results }))
    }
}

/// With several CPUs in threads of the host, QEMU 10.0 can end by an assertion of its own
/// (iotlb_to_section) or stand still while the guest's kernel sets up PCI: a CPU looks up a
/// device's memory by a number from before another one has moved it. Of some hundred boots
/// on two CPUs one does, before the guest's first process. What happens after that is the
/// guest's.
const BOOTS: u32 = 3;

/// How it ends then (signal(7), x86).
const SIGABRT: i32 = 6;

/// Longer than any boot takes up to the guest's first step.
const BOOT: Duration = Duration::from_secs(240);

/// Megabytes of the memory that takes the trace disk's place: 16 slots, as
/// [`Outcome::kept`] knows them.
const SHARED_MB: u64 = 1024;

/// What became of a boot.
enum Booted {
    /// The guest began, and its job ended.
    Ended(Outcome),
    /// QEMU failed, and not the guest.
    Failed(String),
}

/// Whether a line of the console is one that no healthy kernel prints.
fn is_bad(line: &str) -> bool {
    // KCSAN names the functions. Races of the rest of the kernel are not judged here.
    if line.contains("BUG: KCSAN") {
        return line.contains("vmtrace");
    }
    if XENS.iter().any(|known| line.contains(known)) {
        return false;
    }
    BAD.iter().any(|bad| line.contains(bad))
}

/// What Linux 7.3 reports as a paravirtualized guest of Xen with CONFIG_DEBUG_VM, patched or not: a
/// context switch resumes the lazy mode of the next task, but that of a new task was never paused
/// (arch/x86/xen/enlighten_pv.c).
const XENS: [&str; 2] = [
    "WARNING: at xen_end_context_switch+",
    "WARNING: at xen_start_context_switch+",
];

/// Whether the first problem on a console is a breakpoint that is not in the dump of the
/// code: the byte before the instruction pointer, which the dump has in angle brackets, is
/// another one. With several CPUs in threads of the host, QEMU can keep the translation of a
/// breakpoint that the kernel has replaced; docs/correctness.md explains how. A breakpoint
/// that is in memory is the kernel's own.
fn executed_the_past(console: &str) -> bool {
    let mut lines = console.lines().skip_while(|l| !is_bad(l));
    if !lines.next().is_some_and(|l| l.contains("Oops: int3")) {
        return false;
    }
    let Some(code) = lines.find_map(|l| l.strip_prefix("Code: ")) else {
        return false;
    };
    let mut bytes = code.split_whitespace();
    let mut before = None;
    for byte in bytes.by_ref() {
        if byte.starts_with('<') {
            break;
        }
        before = Some(byte);
    }
    before.is_some_and(|byte| byte != "cc")
}

/// Whether a console shows that the guest's first process, or its kernel's last word, was
/// reached.
fn begins(console: &[u8]) -> bool {
    let has = |word: &[u8]| console.windows(word.len()).any(|w| w == word);
    has(b"STEP ") || has(b"Kernel panic")
}

/// A step in the initramfs.
pub fn step(name: &str, argv: &[&str]) -> Step {
    Step {
        name: name.into(),
        argv: argv.iter().map(|s| (*s).into()).collect(),
        chroot: false,
        timeout_s: 300,
        background: false,
        uid: 0,
        env: vec![],
    }
}

/// A shell command in the Debian root.
pub fn debian(name: &str, script: &str) -> Step {
    Step {
        chroot: true,
        timeout_s: 1200,
        ..step(name, &["/bin/sh", "-c", script])
    }
}

#[cfg(test)]
mod tests {
    use super::{begins, executed_the_past, is_bad, named, started};

    #[test]
    fn a_guest_has_the_programs_that_its_job_names() {
        let job = br#"[{"argv":["/bin/sh","-c","activator run -- hot-cold 3; /files/x"]}]"#;
        let files = [("x".into(), b"#!/bin/sh\nexec crowd 4".to_vec())];
        let all = [
            "activator",
            "postproc",
            "touch-loop",
            "hot-cold",
            "crowd",
            "faulty",
        ];
        assert_eq!(named(job, &files), all);
        let has = |job: &[u8]| named(job, &[]).contains(&"kvmtrace");
        assert!(has(b"kvmtrace record ls") && !has(b"/opt/kvmtrace/bin/activator run ls"));
        let program = b"x\0/bin/shmany/bin/threads/bin/hot-coldno such file/bin";
        assert!(started(program).eq(["threads", "hot-cold"]));
    }

    #[test]
    fn a_breakpoint_that_is_in_memory_is_no_fault_of_qemu() {
        let console = |first: &str, byte: &str| {
            format!(
                "STEP attach\n{first}\nRIP: 0010:try_to_unmap+0x55/0x110\n\
                 Code: 48 c7 44 24 28 00 00 00 00 {byte} <8d> 00 00 00 48 8b\n\
                 Code: 0f 05 <48> 3d 00\nKernel panic - not syncing\n"
            )
        };
        let int3 = "Oops: int3: 0000 [#1] SMP";
        assert!(executed_the_past(&console(int3, "e9")));
        assert!(executed_the_past(&console(int3, "0f")));
        assert!(!executed_the_past(&console(int3, "cc")));
        // Another problem came first.
        assert!(!executed_the_past(&console("BUG: bad", "e9")));
        let later = format!("BUG: bad\n{}", console(int3, "e9"));
        assert!(!executed_the_past(&later));
        assert!(!executed_the_past("STEP attach\nDONE rc=0\n"));
        assert!(!executed_the_past("Oops: int3: 0000 [#1] SMP\nno dump\n"));
    }

    #[test]
    fn races_of_others() {
        assert!(is_bad(
            "BUG: KCSAN: data-race in vmtrace_admit / zap_pte_range"
        ));
        assert!(!is_bad("BUG: KCSAN: data-race in a / b"));
        assert!(!is_bad(
            "WARNING: at xen_end_context_switch+0x3f/0x50, CPU#0"
        ));
        assert!(is_bad("WARNING: at xen_mc_flush+0x3f/0x50, CPU#0"));
        assert!(is_bad("BUG: Bad page map in process"));
    }

    #[test]
    fn a_guest_that_began() {
        assert!(!begins(
            b"pci_bus 0000:00: root bus resource
"
        ));
        assert!(begins(
            b"Run /init as init process
STEP early
"
        ));
        assert!(begins(
            b"Kernel panic - not syncing: no init
"
        ));
    }
}
