//! Programs with known behaviour, untraced and traced: the same output, and a
//! trace without a violation.

use super::Scenario;
use crate::machine::{ALL_FEATURES, CPU, Machine, Outcome, Profile, step};
use crate::postproc;
use crate::runner::say;
use ::postproc::trace::{Body, Merge, Step, StreamKind, Trace, mend_checksums};
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::Step as Job;
use rust_mm_trace::uapi;
use std::mem::offset_of;
use std::path::Path;

const PROGRAMS: &[&[&str]] = &[
    &["touch-loop", "200", "20"],
    &["fork-cow"],
    &["mremap-move"],
    &["mprotect-storm"],
    &["munmap-remap"],
    &["exec-args"],
    &["brk-stack"],
    &["swap-reuse"],
    &["file-map"],
    &["threads"],
    &["fork-storm"],
];

/// A scenario for each size of the set and profile: all programs in one boot, each with a
/// trace of its own.
pub fn scenarios() -> Vec<Scenario> {
    const SETS: [(&str, Profile, &str); 6] = [
        ("32", Profile::Exact, ""),
        ("64", Profile::Exact, ""),
        ("512", Profile::Exact, ""),
        ("64", Profile::Smp, ""),
        ("512", Profile::Smp, ""),
        // With five levels of page tables exec fills its stack elsewhere.
        ("64", Profile::Exact, "no5lvl"),
    ];
    let mut list = Vec::new();
    for (n, profile, cmdline) in SETS {
        // The least set makes programs slow.
        let some: &'static [&'static str] = match (n, cmdline) {
            ("32", _) => &["touch-loop", "exec-args", "threads"],
            (_, "no5lvl") => &["exec-args"],
            _ => &[],
        };
        let dash = if cmdline.is_empty() { "" } else { "-" };
        list.push(Scenario {
            name: format!("programs-{n}-{}{dash}{cmdline}", profile.name()),
            about: "programs have the same output untraced and traced; no violation in the traces",
            run: Box::new(move |kernel| {
                let programs = PROGRAMS.iter().copied();
                let chosen = programs.filter(|p| some.is_empty() || some.contains(&p[0]));
                run(&chosen.collect::<Vec<_>>(), n, profile, cmdline, kernel)
            }),
        });
    }
    list.push(Scenario {
        name: "late-admissions".into(),
        about: "admissions that take long are in order with the page's other changes; \
                without the check of `noorder`, they are not",
        run: Box::new(late),
    });
    list.push(Scenario {
        name: "late-copies".into(),
        about: "a copy on write while another thread's load is admitted: the load is of the \
                page before or after, and its record says the same",
        run: Box::new(late_copies),
    });
    list.push(Scenario {
        name: "attach-reclaim".into(),
        about: "PTEs that reclaim clears while an address space is being attached are not funny",
        run: Box::new(attach_reclaim),
    });
    list
}

/// A boot on two CPUs of a kernel with this taken away.
fn broken(name: &str, breaks: &str, kernel: &str, steps: Vec<Job>) -> Result<Outcome> {
    Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: false,
        cmdline: format!("vmtrace_break={breaks}"),
        files: vec![],
        steps,
        deadline_s: 600,
    }
    .run()
}

/// With the attach made long, so that reclaim often comes by.
fn attach_reclaim(kernel: &str) -> Result<()> {
    let funny = |name: &str, breaks: &str| -> Result<u64> {
        let steps = vec![step("attach", &["/bin/reclaim", "attach"])];
        let out = broken(name, breaks, kernel, steps)?;
        let r = out.step("attach")?;
        ensure!(r.rc == 0, "it fails: {r:?}");
        let (funny, mms) = r.stdout.trim().split_once(' ').context("two figures")?;
        ensure!(
            mms.parse::<u64>()? >= 20,
            "{mms} address spaces were attached"
        );
        Ok(funny.parse()?)
    };
    let with = funny("attach-reclaim", "late")?;
    let without = funny("control-attach-reclaim", "late,noorder")?;
    say!("  funny PTEs: {with} with the protection, {without} without");
    ensure!(with == 0, "{with} funny PTEs");
    ensure!(without > 0, "no funny PTE without it; this shows nothing");
    Ok(())
}

/// A thread loads what another one stores to, and the store copies the page. The load's
/// record has a number before the copy's and the frame of before, or both of after.
fn late_copies(kernel: &str) -> Result<()> {
    const PAGES: &str = "3000";
    const RUNS: [(&str, &str, &str); 4] = [
        ("file", "64", "fifo"),
        ("zero", "64", "fifo"),
        ("file", "32", "clock"),
        ("zero", "32", "clock"),
    ];
    // Per run: errors of any rule, and copies.
    let boot = |name: &str, breaks: &str| -> Result<Vec<(u64, usize)>> {
        let mut steps = Vec::new();
        for (slot, (kind, n, policy)) in RUNS.iter().enumerate() {
            let (trace, slot) = (format!("/tmp/{slot}.vmt"), slot.to_string());
            let run = format!("/bin/activator run -n {n} --policy {policy} -o {trace} --");
            let mut argv: Vec<_> = run.split(' ').collect();
            argv.extend(["/bin/load-store", kind, PAGES]);
            steps.push(step(&format!("traced {slot}"), &argv));
            steps.push(step("keep", &["/bin/keep", &slot, &trace]));
        }
        let out = broken(name, breaks, kernel, steps)?;
        let mut seen = Vec::new();
        for (slot, (kind, n, policy)) in RUNS.iter().enumerate() {
            let r = out.step(&format!("traced {slot}"))?;
            let pages: u64 = PAGES.parse()?;
            ensure!(r.stdout.trim() == (2 * pages).to_string(), "{r:?}");
            let path = out.kept(slot, &format!("{slot}.vmt"))?;
            let (_, report) = postproc::json(&["check", "--frames"], &path)?;
            let mut errors = 0;
            for rule in report["rules"].as_array().into_iter().flatten() {
                // That something was broken on purpose is always an error.
                if rule["id"] != "health" {
                    errors += rule["errors"].as_u64().context("no number of errors")?;
                }
            }
            let trace = Trace::open(&path)?;
            let mut merge = Merge::of_kinds(&trace, &[StreamKind::Event]);
            let mut copies = 0;
            while let Step::Event(event) = merge.fill(&mut Vec::new(), 1)? {
                copies += usize::from(matches!(event.body, Body::Cow(_)));
            }
            say!("  {breaks}: {kind} pages, {policy} {n}: {copies} copies, {errors} errors");
            seen.push((errors, copies));
        }
        Ok(seen)
    };
    for (errors, copies) in boot("late-copies", "late")? {
        ensure!(copies > 100, "{copies} copies: this shows nothing");
        ensure!(errors == 0, "{errors} errors");
    }
    let without = boot("control-late-copies", "late,noorder")?;
    let errors: u64 = without.iter().map(|(errors, _)| errors).sum();
    ensure!(
        errors > 0,
        "no error without the protection: this shows nothing"
    );
    Ok(())
}

/// Admissions take some time between their number and their end, so that another CPU
/// often copies the page on write in between, after a stay of it or without one. (With
/// the usual times that befalls one run of `threads` in some hundreds.)
fn late(kernel: &str) -> Result<()> {
    let program = ["/bin/first-touch", "1000"];
    let mut traced = vec![
        "/bin/activator",
        "run",
        "-n",
        "64",
        "-o",
        "/dev/trace",
        "--",
    ];
    traced.extend(program);
    // What is wrong, by rule, and admissions given up.
    let boot = |name: &str, breaks: &str| -> Result<(Vec<String>, u64)> {
        let steps = vec![
            step("plain", &program),
            step("traced", &traced),
            step("status", &["/bin/activator", "status", "--json"]),
        ];
        let out = broken(name, breaks, kernel, steps)?;
        let (plain, traced) = (out.step("plain")?, out.step("traced")?);
        ensure!(
            plain.rc == 0 && plain.stdout == traced.stdout,
            "untraced {plain:?}, traced {traced:?}"
        );
        let status: serde_json::Value = serde_json::from_str(&out.step("status")?.stdout)?;
        let aborted = status["aborted"].as_u64();
        let (_, report) = postproc::json(&["check", "--frames"], &out.trace())?;
        let mut wrong = Vec::new();
        for rule in report["rules"].as_array().into_iter().flatten() {
            if rule["errors"] != 0 {
                wrong.push(rule["id"].as_str().unwrap_or_default().to_string());
                say!("  {breaks}: {} errors of {}", rule["errors"], rule["id"]);
            }
        }
        Ok((
            wrong,
            aborted.context("the status has no number of aborted admissions")?,
        ))
    };
    let (wrong, aborted) = boot("late-admissions", "late")?;
    // That something was broken on purpose is always an error.
    ensure!(wrong == ["health"], "errors of {wrong:?}");
    say!("  {aborted} admissions given up");
    ensure!(
        aborted > 0,
        "no admission was overtaken: this shows nothing"
    );
    let (wrong, _) = boot("control-noorder", "late,noorder")?;
    ensure!(
        wrong == ["health", "residency", "frames"],
        "unordered, errors of {wrong:?} only"
    );
    Ok(())
}

fn run(programs: &[&[&str]], n: &str, profile: Profile, cmdline: &str, kernel: &str) -> Result<()> {
    let mut steps = Vec::new();
    for (slot, argv) in programs.iter().enumerate() {
        let (name, program) = (argv[0], format!("/bin/{}", argv[0]));
        let (file, slot) = (format!("/tmp/{name}.vmt"), slot.to_string());
        let mut plain = vec![program.as_str()];
        plain.extend(&argv[1..]);
        let mut traced = vec!["/bin/activator", "run", "-n", n, "-o", &file];
        if name == "fork-cow" {
            // Records of this trace are changed where they are.
            traced.push("--pack=no");
        }
        traced.push("--");
        traced.extend(&plain);
        steps.extend([
            step(&format!("{name} plain"), &plain),
            step(&format!("{name} traced"), &traced),
            step(&format!("{name} after"), &plain),
            step(&format!("{name} keep"), &["/bin/keep", &slot, &file]),
        ]);
    }
    // With fast strings, the kernel and glibc copy in other ways.
    let cpu = match profile {
        Profile::Smp if CPU.get().is_none() => vec!["-cpu".into(), ALL_FEATURES.into()],
        _ => vec![],
    };
    let out = Machine {
        name: format!("programs-{n}-{}{cmdline}-{kernel}", profile.name()),
        kernel: kernel.into(),
        profile,
        image: false,
        cmdline: cmdline.into(),
        files: vec![],
        steps,
        deadline_s: 900,
    }
    .run_with(&cpu)?;
    let mut wrong = Vec::new();
    for (slot, argv) in programs.iter().enumerate() {
        if let Err(e) = judge(&out, argv[0], slot) {
            wrong.push(format!("{}: {e:#}", argv[0]));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    say!("  {} programs", programs.len());
    Ok(())
}

fn judge(out: &Outcome, name: &str, slot: usize) -> Result<()> {
    let plain = out.step(&format!("{name} plain"))?;
    ensure!(
        plain.rc == 0 && !plain.stdout.is_empty(),
        "untraced it fails: {plain:?}"
    );
    for what in ["traced", "after"] {
        let r = out.step(&format!("{name} {what}"))?;
        ensure!(
            r.rc == plain.rc,
            "{what}: exit code {} instead of {}: {}",
            r.rc,
            plain.rc,
            r.stderr
        );
        ensure!(
            r.stdout == plain.stdout,
            "{what}: another output:\n{}\ninstead of\n{}",
            r.stdout,
            plain.stdout
        );
    }
    let trace = out.kept(slot, &format!("{name}.vmt"))?;
    let (rc, _) = postproc::json(&["check", "--frames"], &trace)?;
    ensure!(
        rc == 0,
        "postproc check finds:\n{}",
        postproc::explain(&trace)
    );
    match name {
        "fork-cow" => without_copies(&trace),
        _ => Ok(()),
    }
}

/// A control: if the trace did not record copies on write, canonical pages would not be
/// what page frames say, and nothing else would be wrong.
fn without_copies(path: &Path) -> Result<()> {
    let trace = Trace::open(path)?;
    let mut bytes = std::fs::read(path)?;
    bytes.truncate(trace.index().stop as usize);
    let mut merge = Merge::of_kinds(&trace, &[StreamKind::Event]);
    while let Step::Event(event) = merge.fill(&mut Vec::new(), 1)? {
        if let Body::Cow(_) = event.body {
            // With the same fields, of a class that is on, and no page becomes another one.
            let at = event.offset as usize + offset_of!(uapi::vmtrace_event, type_);
            let other = uapi::VMTRACE_EV_GUP as u16;
            bytes[at..at + 2].copy_from_slice(&other.to_le_bytes());
        }
    }
    mend_checksums(&mut bytes);
    let path = path.with_file_name("without-copies.vmt");
    std::fs::write(&path, bytes)?;
    let (rc, report) = postproc::json(&["check", "--frames"], &path)?;
    ensure!(rc == 1, "postproc check calls it good: {report}");
    for rule in report["rules"].as_array().into_iter().flatten() {
        ensure!(
            (rule["id"] == "frames") == (rule["errors"] != 0),
            "without copies on write: {rule}"
        );
    }
    Ok(())
}
