//! Makes the small traces that tests on the host read.

use crate::machine::{Machine, Outcome, Profile, step};
use crate::shared::Shared;
use crate::{paths, postproc};
use anyhow::{Context, Result, bail, ensure};
use kvmtrace_guest::Step;
use std::fs;
use std::path::{Path, PathBuf};

/// A larger one is no small trace.
const MOST_BYTES: usize = 200 << 10;

/// Traces of one boot each: the boot's name, the kernel's command line, the CPUs, and the
/// commands. What is written to /shared/NAME.vmt is a fixture.
type Boot = (&'static str, &'static str, Profile, &'static [&'static str]);

const BOOTS: &[Boot] = &[
    (
        "one",
        "",
        Profile::Exact,
        &[
            "activator run --pack=no -n 64 -o /shared/fifo.vmt -- /bin/touch-loop 200 20",
            "activator run --pack=no -n 64 -o /shared/fork-exec.vmt -- /bin/fork-cow",
            "activator run --pack=no -n 64 --policy clock -o /shared/clock.vmt -- /bin/hot-cold 200 10 8",
            "activator run --pack=no -n 64 --again -o /shared/again.vmt -- /bin/hot-cold 200 10 8",
            "activator run --pack=no -n 64 --warmup 2ms --trace 300 --skip 5ms --repeat 3 \
             -o /shared/windows.vmt -- /bin/touch-loop 200 100000",
            "activator run --pack=no -n 64 --virtual-time -o /shared/virtual-time.vmt -- \
             /bin/virtual-time 2 64 1000",
            "activator run --pack=no -n 64 --events usual,swap,frame,switch -o /shared/frames.vmt -- /bin/ksm",
            "activator run --pack=no -n 64 -o /shared/file-io.vmt -- /bin/stacked",
            "activator run --pack=no -n 64 -o /shared/file-map.vmt -- /bin/file-map",
            "activator run --pack=no -n 64 --max 256 -o /shared/resize.vmt -- /bin/resize-storm 1 32 200",
        ],
    ),
    (
        "two",
        "",
        Profile::Smp,
        &["activator run --pack=no -n 64 -o /shared/two-cpus.vmt -- /bin/threads 10"],
    ),
    (
        "early",
        "vmtrace=early,refs,evms=512",
        Profile::Fast,
        &[
            "fork-cow",
            "activator on --early --pack=no -o /shared/early.vmt",
            "fork-cow",
            "activator off",
        ],
    ),
    (
        "loss",
        "vmtrace=early,refs,evms=64,size=64k",
        Profile::Fast,
        &[
            "fork-cow",
            "activator on --early --pack=no -o /shared/loss.vmt",
            "activator off",
        ],
    ),
];

/// Makes all of them, for the format's present version, and removes what older traces of
/// that version had to give. Gives the folder.
///
/// # Errors
///
/// If a guest fails, or a trace is not what it should be.
pub fn run(kernel: &str) -> Result<PathBuf> {
    let version = rust_mm_trace::uapi::VMTRACE_VERSION;
    let into = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../postproc/tests/fixtures"
    ))
    .join(format!("v{version}"));
    let mut made = Vec::new();
    for boot in BOOTS {
        for trace in traces(boot, kernel)? {
            let stem = trace.file_stem().context("a name")?.to_owned();
            let bytes = fs::read(&trace)?;
            let packed = zstd::encode_all(&bytes[..], 19)?;
            ensure!(
                packed.len() <= MOST_BYTES,
                "{}: {} bytes are too many, {} before they are packed",
                trace.display(),
                packed.len(),
                bytes.len()
            );
            println!(
                "{:<16} {:>9} bytes, packed {:>7}",
                stem.to_string_lossy(),
                bytes.len(),
                packed.len()
            );
            made.push((stem, packed));
        }
    }
    let _ = fs::remove_dir_all(&into);
    fs::create_dir_all(&into)?;
    for (stem, packed) in made {
        let mut name = stem;
        name.push(".vmt.zst");
        fs::write(into.join(name), packed)?;
    }
    Ok(into)
}

/// Boots, and gives the traces that were made.
fn traces((name, cmdline, profile, lines): &Boot, kernel: &str) -> Result<Vec<PathBuf>> {
    let folder = paths::build().join("runs").join(format!("fixtures-{name}"));
    let _ = fs::remove_dir_all(&folder);
    let shared = Shared::new(&folder)?;
    let steps: Vec<Step> = lines
        .iter()
        .enumerate()
        .map(|(i, line)| {
            let mut words: Vec<_> = line.split_ascii_whitespace().collect();
            let program = format!("/bin/{}", words.remove(0));
            step(&format!("{i}"), &[&[program.as_str()], &words[..]].concat())
        })
        .collect();
    let out = Machine {
        name: format!("make-fixtures-{name}"),
        kernel: kernel.into(),
        profile: *profile,
        image: false,
        cmdline: (*cmdline).into(),
        files: vec![],
        steps,
        deadline_s: 900,
    }
    .run_with(&shared.args());
    let files = shared.collect()?;
    let loss = *name == "loss";
    ended_well(&out?, loss)?;
    for trace in &files {
        let (rc, check) = postproc::json(&["check", "--frames"], trace)?;
        ensure!(
            rc == i32::from(loss),
            "{}: {rc}, {check}\n{}",
            trace.display(),
            postproc::explain(trace)
        );
    }
    Ok(files)
}

/// The activator says so if something is lost.
fn ended_well(out: &Outcome, loss: bool) -> Result<()> {
    for r in &out.results {
        if r.rc != 0 && !(loss && r.rc == 1) {
            bail!("{}: {r:?}", out.dir.display());
        }
    }
    Ok(())
}
