//! Wrong use of the activator: a clear message, the right exit code, and a
//! kernel that goes on.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::postproc;
use anyhow::{Result, anyhow, ensure};
use kvmtrace_guest::{Step, StepResult};

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "bad-input".into(),
            about: "wrong arguments and states give clear errors",
            run: Box::new(bad_input),
        },
        Scenario {
            name: "output-full".into(),
            about: "an output without room: losses are counted and reported, the program is unharmed",
            run: Box::new(output_full),
        },
        Scenario {
            name: "output-frozen".into(),
            about: "an output that hangs: programs wait and can be killed, nothing is lost",
            run: Box::new(output_frozen),
        },
        Scenario {
            name: "activator-killed".into(),
            about: "the trace goes on without the activator; another one ends it",
            run: Box::new(killed),
        },
    ]
}

fn sh(name: &str, script: &str) -> Step {
    crate::machine::debian(name, script)
}

fn boot(name: &str, kernel: &str, image: bool, steps: Vec<Step>) -> Result<Outcome> {
    Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Fast,
        image,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 300,
    }
    .run()
}

/// A step must have ended with a code, and have said something: a result on standard
/// output if the code is 0, else why not on standard error.
fn expect(r: &StepResult, rc: i32, says: &str) -> Result<()> {
    let said = if rc == 0 { &r.stdout } else { &r.stderr };
    ensure!(
        r.rc == rc && !says.is_empty() && said.contains(says),
        "{}: expected exit code {rc} and \"{says}\", got {r:?}",
        r.name
    );
    Ok(())
}

/// How each step ends, and what it says: see the activator's messages.
const EXPECTED: &[(&str, i32, &str)] = &[
    ("small", 2, "N=4 is too small"),
    ("pid", 2, "there is no process 999999"),
    ("kthread", 2, "is a kernel thread"),
    ("off", 2, "tracing is not on: `activator on` starts it"),
    ("directory", 2, "/tmp is a directory"),
    ("char", 2, "/dev/null is a character device"),
    ("readonly", 2, "no file can be created in /proc"),
    ("nocommand", 127, "/bin/no-such-program: command not found"),
    ("nobody", 2, "root"),
    ("on", 0, "tracing all processes into /tmp/e with N=512"),
    (
        "second",
        2,
        "tracing is already on: all processes into /tmp/e",
    ),
    ("end", 0, "tracing    off; this was the last trace"),
    (
        "exists",
        2,
        "/tmp/e exists: give -o another path, or --force",
    ),
];

fn bad_input(kernel: &str) -> Result<()> {
    let run = |name: &str, args: &[&str]| {
        let mut argv = vec!["/bin/activator"];
        argv.extend(args);
        step(name, &argv)
    };
    let mut unprivileged = run("nobody", &["status"]);
    unprivileged.uid = 65534;
    let out = boot(
        "bad-input",
        kernel,
        false,
        vec![
            run(
                "small",
                &["run", "-n", "4", "-o", "/tmp/a", "--", "/bin/touch-loop"],
            ),
            run("pid", &["on", "--pid", "999999", "-o", "/tmp/b"]),
            run("kthread", &["on", "--pid", "2", "-o", "/tmp/c"]),
            run("off", &["off"]),
            run("directory", &["run", "-o", "/tmp", "--", "/bin/touch-loop"]),
            run("char", &["run", "-o", "/dev/null", "--", "/bin/touch-loop"]),
            run(
                "readonly",
                &["run", "-o", "/proc/trace", "--", "/bin/touch-loop"],
            ),
            run(
                "nocommand",
                &["run", "-o", "/tmp/d", "--", "/bin/no-such-program"],
            ),
            unprivileged,
            run("on", &["on", "--all", "-o", "/tmp/e"]),
            run("second", &["on", "--all", "-o", "/tmp/f"]),
            step("touch", &["/bin/touch-loop", "50", "3"]),
            run("end", &["off"]),
            run("exists", &["run", "-o", "/tmp/e", "--", "/bin/touch-loop"]),
            step("after", &["/bin/touch-loop", "50", "3"]),
        ],
    )?;
    for &(name, rc, says) in EXPECTED {
        expect(out.step(name)?, rc, says)?;
    }
    ensure!(
        out.step("touch")?.stdout == out.step("after")?.stdout,
        "the program's output differs"
    );
    Ok(())
}

/// `dd` reads 64 MiB at a time from memory: thousands of references by the kernel
/// on its behalf without a look at signals. Then the file system that holds the
/// trace is frozen. Prints the ticks of a second in which it waits, the least of a minute's,
/// and whether it is gone within a minute of being killed, half of which it may wait for
/// room for the records of its exit. On a busy host the guest has little of each second,
/// so nothing is taken to have happened after one.
const FROZEN: &str = r#"
set -e
mkfs.ext4 -q /dev/swap
mkdir -p /tmp/x && mount /dev/swap /tmp/x
trap 'fsfreeze -u /tmp/x 2>/dev/null || true' EXIT
head -c 64M /dev/zero >/tmp/big
activator run -q --stall-limit 60min -n 32 --buffers 4 --buffer-size 4K -o /tmp/x/t -- \
	sh -c 'while :; do dd if=/tmp/big of=/dev/null bs=64M 2>/dev/null; done' &
until pidof dd >/dev/null; do sleep 0.1; done
fsfreeze -f /tmp/x
seconds() { i=0; while [ $i -lt 60 ] && ! "$@"; do i=$((i + 1)); done; }
ticks() { awk '{print $14 + $15}' /proc/$pid/stat; }
least=100
waits() {
	pid=$(pidof dd) && t=$(ticks) && sleep 1 && u=$(ticks) || return 1
	if [ $((u - t)) -lt $least ]; then least=$((u - t)); fi
	[ $least -lt 20 ]
}
seconds waits
echo "waiting $least"
parent=$(awk '{print $4}' /proc/$pid/stat)
kill -9 $parent $pid
gone() { sleep 1; ! state=$(awk '{print $3}' /proc/$pid/stat 2>/dev/null) || [ "$state" = Z ]; }
seconds gone
if gone; then echo gone; fi
fsfreeze -u /tmp/x
wait %1 || echo "rc $?"
postproc check /tmp/x/t >/dev/null && echo good
"#;

fn output_frozen(kernel: &str) -> Result<()> {
    let out = boot("output-frozen", kernel, true, vec![sh("frozen", FROZEN)])?;
    let r = out.step("frozen")?;
    ensure!(r.rc == 0, "{r:?}");
    let ticks: u32 = r
        .stdout
        .lines()
        .find_map(|l| l.strip_prefix("waiting "))
        .and_then(|n| n.parse().ok())
        .ok_or_else(|| anyhow!("no line \"waiting\": {r:?}"))?;
    ensure!(
        ticks < 20,
        "the task burned {ticks} ticks in a second: {r:?}"
    );
    ensure!(
        r.stdout.lines().any(|l| l == "gone"),
        "the task waits on after it was killed: {r:?}"
    );
    ensure!(
        r.stdout.contains("rc 137") && r.stdout.contains("good"),
        "{r:?}"
    );
    Ok(())
}

fn output_full(kernel: &str) -> Result<()> {
    let out = boot(
        "output-full",
        kernel,
        false,
        vec![
            step("plain", &["/bin/touch-loop", "2000", "60"]),
            step(
                "full",
                &[
                    "/bin/activator",
                    "run",
                    "-n",
                    "64",
                    "--pack=no",
                    "-o",
                    "/dev/small",
                    "--",
                    "/bin/touch-loop",
                    "2000",
                    "60",
                ],
            ),
            step("status", &["/bin/activator", "status", "--json"]),
            step(
                "again",
                &[
                    "/bin/activator",
                    "run",
                    "-n",
                    "64",
                    "-o",
                    "/dev/trace",
                    "--",
                    "/bin/touch-loop",
                    "2000",
                    "20",
                ],
            ),
        ],
    )?;
    let full = out.step("full")?;
    ensure!(full.rc == 1, "a full output must exit with 1: {full:?}");
    ensure!(
        full.stdout == out.step("plain")?.stdout,
        "the program's output differs"
    );
    let status: serde_json::Value = serde_json::from_str(&out.step("status")?.stdout)?;
    ensure!(
        status["lost_io"].as_u64() > Some(0),
        "no loss is counted: {status}"
    );
    ensure!(out.step("again")?.rc == 0, "a new trace after it fails");
    let (rc, _) = postproc::json(&["check"], &out.trace())?;
    ensure!(
        rc == 0,
        "the next trace is bad:\n{}",
        postproc::explain(&out.trace())
    );
    let (rc, _) = postproc::json(&["check"], &out.dir.join("small.img"))?;
    ensure!(rc != 0, "postproc check calls the cut trace good");
    Ok(())
}

fn killed(kernel: &str) -> Result<()> {
    let out = boot(
        "activator-killed",
        kernel,
        true,
        vec![
            sh("plain", "touch-loop 300 4000"),
            sh(
                "killed",
                "activator run -n 64 -o /dev/trace -- touch-loop 300 4000 > out & pid=$!; \
                 until pidof touch-loop >/dev/null; do sleep 0.1; done; kill -9 $pid; while pidof touch-loop >/dev/null; do sleep 0.1; done; cat out",
            ),
            sh("off", "activator off"),
        ],
    )?;
    ensure!(
        out.step("plain")?.stdout == out.step("killed")?.stdout,
        "the program's output differs"
    );
    ensure!(out.step("off")?.rc == 0, "off: {:?}", out.step("off")?);
    let (rc, _) = postproc::json(&["check"], &out.trace())?;
    ensure!(
        rc == 0,
        "the trace is bad:\n{}",
        postproc::explain(&out.trace())
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_code_message_or_none_is_noticed() {
        for &(name, rc, says) in EXPECTED {
            let result = |rc: i32, said: &str| StepResult {
                name: name.into(),
                rc,
                stdout: if rc == 0 { said.into() } else { String::new() },
                stderr: if rc == 0 { String::new() } else { said.into() },
                ns: 0,
            };
            let good = format!("activator: {says}\n");
            expect(&result(rc, &good), rc, says).unwrap();
            assert!(expect(&result(rc + 1, &good), rc, says).is_err(), "{name}");
            for other in ["", "activator: something else\n"] {
                assert!(expect(&result(rc, other), rc, says).is_err(), "{name}");
            }
            // An expectation that anything would meet is none.
            assert!(expect(&result(rc, &good), rc, "").is_err());
        }
    }
}
