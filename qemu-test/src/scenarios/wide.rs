//! Paths that a small kernel never takes, with the flavour `wide`: virtual machines, file
//! systems in user space, memory that the kernel has no mapping of.

use super::Scenario;
use super::corners::Seen;
use super::waits::{all_said, boot, said, took};
use crate::machine::{Machine, Profile, step};
use crate::postproc;
use crate::runner::say;
use anyhow::{Result, ensure};
use serde_json::Value;

const BASE: u64 = 0x1000_0000_0000;

/// A program that runs untraced, traced, and untraced again.
struct Program {
    name: &'static str,
    about: &'static str,
    argv: &'static [&'static str],
    shows: fn(&Seen) -> Result<()>,
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "kvm",
        about: "a traced virtual machine monitor: the machine computes the same",
        argv: &["/bin/monitor"],
        shows: monitor,
    },
    Program {
        name: "secret",
        about: "memfd_secret: the same values, each page is recorded",
        argv: &["/bin/secret"],
        shows: secret,
    },
    Program {
        name: "fuse",
        about: "a traced file system in user space and its user: the same values",
        argv: &[
            "/bin/fuse",
            "serve",
            "/tmp/fuse",
            "/bin/fuse",
            "use",
            "/tmp/fuse",
        ],
        shows: |_| Ok(()),
    },
];

/// All of them.
pub fn full() -> Vec<Scenario> {
    let mut list: Vec<_> = PROGRAMS
        .iter()
        .map(|program| Scenario {
            name: format!("wide-{}", program.name),
            about: program.about,
            run: Box::new(move |kernel| run(program, kernel)),
        })
        .collect();
    list.push(Scenario {
        name: "wide-fuse-output".into(),
        about: "the trace goes to a file system that a traced process serves: all go on",
        run: Box::new(fuse_output),
    });
    list.extend(super::servers::full());
    list.extend(super::filesystems::full());
    list.extend(super::files::full());
    list.push(super::xen::scenario());
    list
}

fn run(program: &Program, kernel: &str) -> Result<()> {
    let mut traced = vec![
        "/bin/activator",
        "run",
        "-q",
        "-n",
        "64",
        "-o",
        "/dev/trace",
        "--",
    ];
    traced.extend(program.argv);
    let out = Machine {
        name: format!("wide-{}-{kernel}", program.name),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps: vec![
            step("before", program.argv),
            step("traced", &traced),
            step("after", program.argv),
        ],
        deadline_s: 600,
    }
    .run()?;
    let before = out.step("before")?;
    ensure!(before.rc == 0, "untraced: {before:?}");
    for name in ["traced", "after"] {
        let r = out.step(name)?;
        ensure!(
            r.rc == 0 && r.stdout == before.stdout,
            "{r:?}, not {before:?}"
        );
    }
    let (rc, _) = postproc::json(&["check", "--frames"], &out.trace())?;
    ensure!(rc == 0, "{}", postproc::explain(&out.trace()));
    let seen = Seen::read(&out.trace(), Value::Null, Value::Null)?;
    say!("  {}", before.stdout.trim());
    (program.shows)(&seen)
}

/// The monitor's own references are recorded, and each page that KVM takes for the machine;
/// the machine's own references are not.
fn monitor(seen: &Seen) -> Result<()> {
    const PAGES: u64 = 128;
    let refs = seen.of(BASE, PAGES).len();
    let handed = seen.handed_out(BASE, PAGES);
    say!("  {refs} references to the machine's memory, handed out {handed} times");
    ensure!(refs > 100, "{refs} references of the monitor");
    ensure!(handed >= 100, "pages handed out {handed} times only");
    Ok(())
}

fn secret(seen: &Seen) -> Result<()> {
    const PAGES: u64 = 96;
    let refs = seen.of(BASE, PAGES).len();
    say!("  {refs} references");
    // Two processes, three rounds, more pages than members.
    ensure!(refs >= 6 * 96, "{refs} references");
    Ok(())
}

/// The server must read and write memory to take what kvmtraced writes.
const OUTPUT: &str = r#"
cat >/tmp/user <<'END'
#!/bin/sh
echo $PPID >/tmp/server
until [ -e /tmp/done ]; do sleep 0.1; done
END
chmod +x /tmp/user
fuse serve /tmp/f /tmp/user >/tmp/served 2>&1 &
until [ -s /tmp/server ]; do sleep 0.1; done
mountpoint -q /tmp/f && echo mounted
start=$(now)
rc=0
activator on --pid $(cat /tmp/server) -n 32 --pack=no --buffers 4 --buffer-size 4K --stall-limit 2s \
	--force -o /tmp/f/t >on 2>&1 || rc=$?
echo "on $rc"
sed 's/^/said-on /' on
timeout 20 dd if=/dev/zero of=/tmp/f/other bs=4k count=200 2>/dev/null || echo "dd $?"
rc=0
timeout 60 activator off >off 2>&1 || rc=$?
echo "off $rc"
echo "seconds $(since $start)"
sed 's/^/said-off /' off
rc=0
activator status --json >status || rc=$?
echo "status $rc"
lost
rc=0
postproc check /tmp/f/t >check 2>&1 || rc=$?
echo "check $rc"
activator run -q -n 64 -o /tmp/third -- true && postproc check /tmp/third >/dev/null && echo third
touch /tmp/done
i=0
while kill -0 $(cat /tmp/server) 2>/dev/null && [ $((i += 1)) -lt 100 ]; do sleep 0.1; done
sed 's/^/served /' /tmp/served
"#;

fn fuse_output(kernel: &str) -> Result<()> {
    let out = boot("wide-fuse-output", kernel, OUTPUT)?;
    let r = out.step("wide-fuse-output")?;
    say!("{}", r.stdout);
    all_said(r, &["mounted", "third"])?;
    ensure!(!r.stdout.contains("dd 124"), "the file system hangs: {r:?}");
    ensure!(!r.stdout.contains("off 124"), "`off` hangs: {r:?}");
    // The server is the one that could take the data, and waits for room: this is lost.
    all_said(r, &["on 0", "off 1", "status 1", "check 1"])?;
    say!("  {} lost", said(r, "lost")?);
    ensure!(said(r, "lost")?.parse::<u64>()? > 0, "{r:?}");
    took(r, "seconds", 0.0, 60.0)
}
