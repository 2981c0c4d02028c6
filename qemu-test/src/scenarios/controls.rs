//! Negative controls: with one protection of the kernel taken away
//! (vmtrace_break=), what it is for must be seen to fail; with it, to hold. Each
//! protection's absence has a kernel of its own; with all of them there, one boot
//! runs all programs.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::runner::say;
use anyhow::{Context, Result, bail, ensure};
use kvmtrace_guest::Step;
use serde_json::Value;
use std::sync::{Arc, Mutex};

/// Pages in the set.
const N: &str = "64";

/// Where the programs have their pages, and how many at most.
const BASE: u64 = 0x1000_0000_0000;
/// Where `mremap-move` first moves the last 8 of its 2,048 pages to.
const MOVED: u64 = 0x1100_007f_8000;
const OTHER: u64 = 0x2000_0000_0000;
/// Where huge-tlb has pages that two processes map.
const TABLE: u64 = 0x1050_0000_0000;

/// What is counted.
#[derive(Clone, Copy)]
enum Count {
    /// A figure of the kernel's account.
    Figure(&'static str),
    /// Records of the program's own pages.
    Records(fn(&Record) -> bool),
    /// The exit code.
    Code,
}

/// What a count must be, with the protection there.
#[derive(Clone, Copy)]
enum Whole {
    Is(u64),
    AtLeast(u64),
}

/// What it must be without.
#[derive(Clone, Copy)]
enum Broken {
    Below(u64),
    Above(u64),
    Is(u64),
}

/// A protection, and how its absence shows.
struct Control {
    /// As vmtrace_break= knows it.
    name: &'static str,
    /// For the second control of a protection: what its name has more.
    part: &'static str,
    /// What is taken away.
    protection: &'static str,
    /// What is counted, in words.
    counted: &'static str,
    count: Count,
    whole: Whole,
    broken: Broken,
    /// The kernel and the activator notice by themselves.
    noticed: bool,
    /// The activator's options but for the set's size and the output.
    options: &'static [&'static str],
    /// What is traced; the whole system if it is none.
    argv: &'static [&'static str],
}

impl Control {
    /// Its name among the controls.
    fn label(&self) -> String {
        format!("{}{}", self.name, self.part)
    }
}

/// Of which each has its own line.
const CONTROL: Control = Control {
    name: "",
    part: "",
    protection: "",
    counted: "funny PTEs",
    count: Count::Figure("funny"),
    whole: Whole::Is(0),
    broken: Broken::Above(0),
    noticed: true,
    options: &[],
    argv: &[],
};

const CONTROLS: &[Control] = &[
    Control {
        name: "noflush",
        protection: "the TLB flush at eviction",
        counted: "admissions for 2,000 touches",
        count: Count::Figure("admissions"),
        whole: Whole::AtLeast(2000),
        broken: Broken::Below(2000),
        noticed: false,
        argv: &["/bin/touch-loop", "100", "20"],
        ..CONTROL
    },
    Control {
        name: "noaccess",
        protection: "the filter in ptep_set_access_flags()",
        argv: &["/bin/swap-reuse"],
        ..CONTROL
    },
    Control {
        name: "pmdmove",
        protection: "no moves of page tables by mremap()",
        counted: "references of 16, to pages that were moved as members",
        count: Count::Records(|r| r.read && of(MOVED, 8, r)),
        whole: Whole::Is(16),
        broken: Broken::Below(16),
        noticed: false,
        argv: &["/bin/mremap-move"],
        ..CONTROL
    },
    Control {
        name: "nofilter",
        protection: "the filter in set_ptes()",
        argv: &["/bin/touch-loop", "100", "20"],
        ..CONTROL
    },
    Control {
        name: "noreflush",
        protection: "the TLB flush when a PTE is cleared",
        counted: "references of 200, with mprotect() between",
        count: Count::Records(|r| r.read && of(BASE, 10, r)),
        whole: Whole::Is(200),
        broken: Broken::Below(200),
        noticed: false,
        argv: &["/bin/protection", "reprotect"],
        ..CONTROL
    },
    Control {
        name: "noclose",
        protection: "closing when madvise() clears a PTE",
        counted: "dangling members",
        count: Count::Figure("dangling"),
        argv: &["/bin/protection", "dontneed"],
        ..CONTROL
    },
    Control {
        name: "noyoung",
        part: "",
        protection: "the hook where others clear accessed bits",
        counted: "stays marked as referenced again, of 10",
        count: Count::Records(|r| r.address == BASE && r.again),
        whole: Whole::Is(10),
        broken: Broken::Below(10),
        noticed: false,
        options: &["--again"],
        argv: &["/bin/protection", "clear-refs"],
    },
    Control {
        name: "nodirty",
        protection: "moving the dirty bit to the folio for a load",
        counted: "loads recorded as followed by a store, of 300",
        count: Count::Records(|r| r.read && r.dirtied && of(BASE, 100, r)),
        whole: Whole::Is(300),
        broken: Broken::Below(300),
        noticed: false,
        argv: &["/bin/protection", "dirty"],
        ..CONTROL
    },
    Control {
        name: "noupgrade",
        protection: "recording a store that makes a PTE writable",
        counted: "loads recorded as followed by a store, of 100",
        count: Count::Records(|r| r.read && r.dirtied && of(BASE, 100, r)),
        whole: Whole::Is(100),
        broken: Broken::Below(100),
        noticed: false,
        argv: &["/bin/protection", "upgrade"],
        ..CONTROL
    },
    Control {
        name: "noadmit",
        protection: "no admission by populate and mlock",
        counted: "records of pages that nobody touched",
        count: Count::Records(|r| of(BASE, 200, r) || of(OTHER, 200, r)),
        broken: Broken::Above(399),
        noticed: false,
        argv: &["/bin/protection", "populate"],
        ..CONTROL
    },
    Control {
        name: "pmdleaf",
        protection: "no huge pages while traced",
        counted: "uncovered leaves, by the backstop",
        count: Count::Figure("uncovered"),
        noticed: false,
        argv: &["/bin/protection", "huge"],
        ..CONTROL
    },
    Control {
        name: "pmdshare",
        protection: "no page tables of hugetlb shared",
        counted: "references of two processes to 6 huge pages",
        count: Count::Records(|r| of(TABLE, 6 * 512, r)),
        whole: Whole::AtLeast(12),
        broken: Broken::Below(12),
        noticed: false,
        argv: &["/bin/huge-tlb", "table"],
        ..CONTROL
    },
    Control {
        name: "norights",
        protection: "a look at a PTE's rights before its VMA",
        counted: "stores recorded to pages that are read-only",
        count: Count::Records(|r| !r.read && of(BASE, 100, r)),
        noticed: false,
        argv: &["/bin/protection", "read-only"],
        ..CONTROL
    },
    Control {
        name: "norights",
        part: "-execute",
        protection: "a look at a PTE's rights before its VMA",
        counted: "fetches recorded of pages that may not be executed",
        count: Count::Records(|r| r.exec && of(BASE, 100, r)),
        noticed: false,
        argv: &["/bin/protection", "no-execute"],
        ..CONTROL
    },
    Control {
        name: "nofetch",
        protection: "the denial of fetches from pages of the set",
        counted: "reads recorded of pages that were only written, and fetched in vain",
        count: Count::Records(|r| r.read && of(BASE, 100, r)),
        noticed: false,
        argv: &["/bin/protection", "no-execute"],
        ..CONTROL
    },
    Control {
        name: "nokeys",
        protection: "a look at a PTE's protection key",
        counted: "records of 100 pages; later their key is denied",
        count: Count::Records(|r| of(BASE, 100, r)),
        whole: Whole::Is(100),
        broken: Broken::Above(100),
        noticed: false,
        argv: &["/bin/protection", "keys"],
        ..CONTROL
    },
    Control {
        name: "noattach",
        protection: "disabling what is mapped at the start",
        ..CONTROL
    },
    Control {
        name: "noblock",
        protection: "the wait for room in the log",
        counted: "events lost",
        count: Count::Figure("lost_full"),
        options: &["--buffers", "4", "--buffer-size", "4k"],
        argv: &["/bin/protection", "storm"],
        ..CONTROL
    },
    Control {
        name: "noagain",
        protection: "faulting pages in again in iov_iter",
        counted: "exit code (142: killed because it hung)",
        count: Count::Code,
        broken: Broken::Is(142),
        noticed: false,
        argv: &[
            "/bin/protection",
            "alarm",
            "300",
            "/bin/kernel-copies",
            "segments",
        ],
        ..CONTROL
    },
];

/// A row of the closing table.
struct Row {
    control: &'static Control,
    whole: u64,
    broken: u64,
}

/// What was seen, for the closing table.
static ROWS: Mutex<Vec<Row>> = Mutex::new(Vec::new());

/// The boot with all protections, of a kernel.
static WHOLE: Mutex<Option<(String, Arc<Outcome>)>> = Mutex::new(None);

/// A scenario for each protection.
pub fn scenarios() -> Vec<Scenario> {
    CONTROLS
        .iter()
        .map(|control| Scenario {
            name: format!("control-{}", control.label()),
            about: control.protection,
            run: Box::new(move |kernel| run(control, kernel)),
        })
        .collect()
}

/// Prints what all controls saw that have run.
pub fn table() {
    let Ok(rows) = ROWS.lock() else { return };
    println!(
        "\n{:<16} {:<43} {:<51} {:>9} {:>9}",
        "control", "protection that it takes away", "counted", "with", "without"
    );
    for r in rows.iter() {
        let c = r.control;
        println!(
            "{:<16} {:<43} {:<51} {:>9} {:>9}",
            c.label(),
            c.protection,
            c.counted,
            r.whole,
            r.broken
        );
    }
}

/// The content of a record.
struct Record {
    address: u64,
    read: bool,
    exec: bool,
    dirtied: bool,
    again: bool,
}

fn of(base: u64, pages: u64, r: &Record) -> bool {
    (base..base + pages * 4096).contains(&r.address)
}

fn records(csv: &str) -> Result<Vec<Record>> {
    let mut lines = csv.lines();
    let columns: Vec<_> = lines.next().unwrap_or_default().split(',').collect();
    let at = |name: &str| {
        columns
            .iter()
            .position(|c| *c == name)
            .with_context(|| format!("csv has no column {name}"))
    };
    let (address, access) = (at("address")?, at("access")?);
    let (dirtied, again) = (at("dirtied")?, at("again")?);
    lines
        .map(|line| {
            let fields: Vec<_> = line.split(',').collect();
            Ok(Record {
                address: u64::from_str_radix(fields[address].trim_start_matches("0x"), 16)?,
                read: fields[access] == "read",
                exec: fields[access] == "exec",
                dirtied: fields[dirtied] == "1",
                again: fields[again] == "1",
            })
        })
        .collect()
}

/// Traces a control's program, and looks at the trace.
fn steps(c: &Control) -> Vec<Step> {
    let trace = format!("/tmp/{}.vmt", c.label());
    let named = |what: &str, argv: &[&str]| step(&format!("{what}-{}", c.label()), argv);
    let mut options = vec!["-n", N, "-o", &trace];
    options.extend(c.options);
    let start = |words: &[&'static str]| {
        let mut argv = vec!["/bin/activator"];
        argv.extend(words);
        argv
    };
    let mut steps = Vec::new();
    if c.argv.is_empty() {
        let mut on = start(&["on", "--all"]);
        on.extend(&options);
        steps.push(named("on", &on));
        steps.push(named("touch", &["/bin/touch-loop", "100", "2"]));
        steps.push(named("traced", &["/bin/activator", "off"]));
    } else {
        let mut run = start(&["run"]);
        run.extend(&options);
        run.push("--");
        run.extend(c.argv);
        steps.push(named("traced", &run));
    }
    steps.push(named("status", &["/bin/activator", "status", "--json"]));
    steps.push(named("check", &["/bin/postproc", "check", &trace]));
    if matches!(c.count, Count::Records(_)) {
        steps.push(named(
            "csv",
            &[
                "/bin/postproc",
                "export",
                "--format",
                "csv",
                "--keep-freed",
                "--allow-loss",
                "--output",
                "-",
                &trace,
            ],
        ));
    }
    steps
}

fn boot(kernel: &str, name: &str, cmdline: &str, steps: Vec<Step>) -> Result<Outcome> {
    Machine {
        name: format!("control-{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: false,
        cmdline: cmdline.into(),
        files: vec![],
        steps,
        deadline_s: 600,
    }
    .run()
}

/// The boot with all protections; all controls share it.
fn whole(kernel: &str) -> Result<Arc<Outcome>> {
    let Ok(mut known) = WHOLE.lock() else {
        bail!("another control panicked");
    };
    if let Some((of, out)) = &*known {
        if of == kernel {
            return Ok(out.clone());
        }
    }
    let steps = CONTROLS.iter().flat_map(steps).collect();
    let out = Arc::new(boot(kernel, "whole", "vmtrace_audit=1", steps)?);
    *known = Some((kernel.into(), out.clone()));
    Ok(out)
}

/// What a control counts in a run, and what else it is judged by.
struct Seen {
    count: u64,
    traced: i32,
    check: i32,
    status: Value,
}

fn seen(c: &Control, out: &Outcome) -> Result<Seen> {
    let result = |what: &str| out.step(&format!("{what}-{}", c.label()));
    let text = &result("status")?.stdout;
    let status: Value =
        serde_json::from_str(text).with_context(|| format!("activator status: {text}"))?;
    let traced = result("traced")?.rc;
    let count = match c.count {
        Count::Figure(name) => status[name]
            .as_u64()
            .with_context(|| format!("activator status has no {name}: {status}"))?,
        Count::Records(which) => {
            let all = records(&result("csv")?.stdout)?;
            ensure!(!all.is_empty(), "the trace has no record");
            all.iter().filter(|r| which(r)).count() as u64
        }
        Count::Code => u64::try_from(traced)?,
    };
    Ok(Seen {
        count,
        traced,
        check: result("check")?.rc,
        status,
    })
}

fn run(c: &'static Control, kernel: &str) -> Result<()> {
    let with = whole(kernel)?;
    let w = seen(c, &with)?;
    ensure!(
        w.traced == 0 && w.check == 0,
        "with the protection, exit code {}, of postproc check {}: {}",
        w.traced,
        w.check,
        w.status
    );
    ensure!(
        w.status["audits"].as_u64() > Some(0),
        "no address space was audited: {}",
        w.status
    );
    let break_ = format!("vmtrace_break={}", c.name);
    let b = seen(c, &boot(kernel, &c.label(), &break_, steps(c))?)?;
    say!(
        "  {}: {} with the protection, {} without",
        c.counted,
        w.count,
        b.count
    );
    let right = match c.whole {
        Whole::Is(n) => w.count == n,
        Whole::AtLeast(n) => w.count >= n,
    };
    ensure!(right, "{} with the protection: {}", c.counted, w.count);
    let fails = match c.broken {
        Broken::Below(n) => b.count < n,
        Broken::Above(n) => b.count > n,
        Broken::Is(n) => b.count == n,
    };
    ensure!(
        fails,
        "{} without the protection: {}; the control shows nothing",
        c.counted,
        b.count
    );
    ensure!(
        !c.noticed || b.traced == 1,
        "the activator calls such a trace good: {}",
        b.status
    );
    ensure!(b.check == 1, "postproc check calls such a trace good");
    if let Ok(mut rows) = ROWS.lock() {
        rows.push(Row {
            control: c,
            whole: w.count,
            broken: b.count,
        });
    }
    Ok(())
}
