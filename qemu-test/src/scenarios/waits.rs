//! Waits that always end: outputs that no longer take data, and signals to the process that
//! ends a trace.

use super::Scenario;
use crate::machine::{Machine, Outcome, Profile, step};
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::{Step, StepResult};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "frozen-pid".into(),
            about: "the output's file system is frozen: the program ends, the loss is counted",
            run: Box::new(frozen_pid),
        },
        Scenario {
            name: "frozen-all".into(),
            about: "the same while all processes are traced: the system goes on, the thaw included",
            run: Box::new(frozen_all),
        },
        Scenario {
            name: "frozen-on-off".into(),
            about: "no start and no end of a trace hangs with its output, and a hang loses nothing",
            run: Box::new(frozen_on_off),
        },
        Scenario {
            name: "frozen-control".into(),
            about: "without the stall limit the program waits until the thaw, and nothing is lost",
            run: Box::new(frozen_control),
        },
        Scenario {
            name: "frozen-locks".into(),
            about: "writers that hold locks of the output's file system, and exits that others wait for",
            run: Box::new(frozen_locks),
        },
        Scenario {
            name: "frozen-calls".into(),
            about: "a task waits for room after its system call, without the locks of the call",
            run: Box::new(frozen_calls),
        },
        Scenario {
            name: "stop-locks".into(),
            about: "a traced process hangs with its address space locked: `off` ends the trace",
            run: Box::new(stop_locks),
        },
        Scenario {
            name: "frozen-needed".into(),
            about: "a task with PR_SET_IO_FLUSHER goes on while others wait for room",
            run: Box::new(frozen_needed),
        },
        Scenario {
            name: "frozen-one-cpu".into(),
            about: "a program that fills the log of its CPU does not hold up programs on another CPU",
            run: Box::new(frozen_one_cpu),
        },
        Scenario {
            name: "cut-short".into(),
            about: "a trace that is cut off anywhere explains the references that it has",
            run: Box::new(cut_short),
        },
        Scenario {
            name: "stop-signals".into(),
            about: "no signal to `activator off` spoils a trace",
            run: Box::new(stop_signals),
        },
        Scenario {
            name: "answers".into(),
            about: "STOP and STATUS answer within two seconds in each state of a trace",
            run: Box::new(all_answers),
        },
        Scenario {
            name: "frozen-futexes".into(),
            about: "a program that waits for room within a futex call does not keep its address space locked",
            run: Box::new(|kernel| looked_at(kernel, "frozen-futexes", "futexes loop")),
        },
        Scenario {
            name: "frozen-maps".into(),
            about: "a program that waits for room within mmap() does not keep its address space locked",
            run: Box::new(|kernel| looked_at(kernel, "frozen-maps", "many-maps 40 loop")),
        },
    ]
}

/// A file system for outputs, which can be frozen, on a disk of 64 MiB.
pub(super) const DISK: &str = r#"
set -e
mkfs.ext4 -q -O ^has_journal /dev/swap
mkdir -p /tmp/x
mount /dev/swap /tmp/x
field() { sed "s/.*\"$1\": *\([0-9]*\).*/\1/" status; }
lost() { echo "lost $(($(field lost_io) + $(field lost_full) + $(field lost_atomic)))"; }
now() { cut -d' ' -f1 /proc/uptime; }
since() { echo "$1 $(now)" | awk '{printf "%.1f", $2 - $1}'; }
"#;

/// A step that is killed if it hangs.
pub(super) fn sh(name: &str, script: &str) -> Step {
    Step {
        timeout_s: 240,
        ..crate::machine::debian(name, &format!("{DISK}{script}"))
    }
}

pub(super) fn boot(name: &str, kernel: &str, script: &str) -> Result<Outcome> {
    boot_with(name, kernel, "", script)
}

pub(super) fn boot_with(name: &str, kernel: &str, cmdline: &str, script: &str) -> Result<Outcome> {
    Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: true,
        cmdline: cmdline.into(),
        files: vec![],
        steps: vec![sh(name, script)],
        deadline_s: 500,
    }
    .run()
}

/// What a step printed after `key`.
pub(super) fn said<'a>(r: &'a StepResult, key: &str) -> Result<&'a str> {
    r.stdout
        .lines()
        .find_map(|l| l.strip_prefix(key)?.strip_prefix(' '))
        .with_context(|| format!("no line \"{key}\": {r:?}"))
}

/// A step that succeeded and printed each of `lines`.
pub(super) fn all_said(r: &StepResult, lines: &[&str]) -> Result<()> {
    ensure!(r.rc == 0, "{r:?}");
    for line in lines {
        ensure!(
            r.stdout.lines().any(|l| l == *line),
            "no line \"{line}\": {r:?}"
        );
    }
    Ok(())
}

/// The time after `key` is from `least` to `most` seconds. A host that is busy makes the
/// guest's clock run beside its programs, so `most` is generous: what hangs, hangs for ever.
pub(super) fn took(r: &StepResult, key: &str, least: f64, most: f64) -> Result<()> {
    let seconds: f64 = said(r, key)?.parse()?;
    say!("  {key}: {seconds} s");
    ensure!(
        (least..=most).contains(&seconds),
        "{key}: {seconds} s, not {least} to {most}: {r:?}"
    );
    Ok(())
}

/// Of the requests that were timed, each of `want` was answered so, with the error or 0, and
/// within two seconds. These are counted in waits of an eighth, so that they don't depend on
/// how busy the host is.
pub(super) fn answers(r: &StepResult, want: &[&str]) -> Result<()> {
    for want in want {
        let (ms, eighths) = said(r, want)?.split_once(' ').context("no waits")?;
        say!("  {want}: {ms} ms, {eighths} eighths of a second");
        ensure!(eighths.parse::<u32>()? <= 16, "{want}: {ms} ms: {r:?}");
    }
    Ok(())
}

/// Each state, and what STATUS and STOP are to answer.
const STATES: [(&str, &str); 13] = [
    ("off", "ENODATA"),
    ("on", "0"),
    ("warmup", "0"),
    ("between", "0"),
    ("starting", "EINPROGRESS"),
    ("attaching", "0"),
    ("locked", "EINPROGRESS"),
    ("frozen", "EINPROGRESS"),
    ("ending", "EINPROGRESS"),
    ("closing", "EINPROGRESS"),
    ("opening", "EINPROGRESS"),
    ("failed", "EIO"),
    ("over", "ENODATA"),
];

/// The limit is the default, 10 s, except where the trace is to fail.
const ANSWERS: &str = r#"
trap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT
touch-loop 300 100000000 >/dev/null & pid=$!
small="-n 32 --pack=no --buffers 4 --buffer-size 4K"
ask() {
	for what in status stop; do
		timeout -s KILL 20 ioctl-fuzz time $what >answer || echo "no answer"
		sed "s/^/$1 /" answer
	done
}
on() { activator on --pid $pid "$@" >/dev/null; }
written() { until [ "$(stat -c %s /tmp/x/$1)" -gt 50000 ]; do sleep 0.1; done; }
# The trace ends after the thaw, perhaps before it is asked to.
whole() {
	fsfreeze -u /tmp/x
	activator off >/dev/null 2>&1 || [ $? = 2 ] || echo "off fails"
	postproc check /tmp/x/$1 >/dev/null && echo "whole $1"
}
ask off
on -n 64 -o /tmp/x/on
sleep 0.5
ask on
on -n 64 --warmup 10min --trace 200ms --skip 10min --repeat 5 -o /tmp/x/warmup
ask warmup
on -n 64 --trace 200ms --skip 10min --repeat 5 -o /tmp/x/between
sleep 1
ask between
: >/tmp/x/starting
fsfreeze -f /tmp/x
ioctl-fuzz time start /tmp/x/starting $pid >start & start=$!
sleep 0.5
ask starting
fsfreeze -u /tmp/x
wait $start
sed 's/^/began /' start
activator off >/dev/null
on $small -o /tmp/x/frozen
written frozen
fsfreeze -f /tmp/x
sleep 1
ask frozen
ask ending
whole frozen
on $small --trace 1s --skip 10min --repeat 5 -o /tmp/x/closing
written closing
fsfreeze -f /tmp/x
sleep 2
ask closing
whole closing
on $small --warmup 1s --trace 10min --repeat 1 -o /tmp/x/opening
fsfreeze -f /tmp/x
sleep 2
ask opening
whole opening
on $small --stall-limit 2s -o /tmp/x/failed
written failed
fsfreeze -f /tmp/x
i=0
while activator status --json >status && [ $((i += 1)) -lt 100 ]; do sleep 0.2; done
ask failed
fsfreeze -u /tmp/x
activator off >/dev/null 2>&1 || true
kill $pid
echo 1 >/tmp/x/locked
sync
hangs /tmp/x/locked /tmp/go >hangs & one=$!
sleep 0.5
activator on --pid $one -n 64 -o /tmp/x/t >/dev/null
fsfreeze -f /tmp/x
touch /tmp/go
sleep 2
ask locked
fsfreeze -u /tmp/x
wait $one
rm /tmp/go
activator off >/dev/null 2>&1 || [ $? = 2 ] || echo "off fails"
postproc check /tmp/x/t >/dev/null && echo "whole locked"
echo 1 >/tmp/x/attaching
sync
hangs /tmp/x/attaching /tmp/go >hangs & one=$!
sleep 0.5
fsfreeze -f /tmp/x
touch /tmp/go
sleep 2
activator on --pid $one -n 64 -o /tmp/t >on 2>&1 & on=$!
sleep 1
kill -0 $on && echo waits
ask attaching
wait $on || echo "on $?"
fsfreeze -u /tmp/x
wait $one
ask over
activator run -q -n 64 -o /tmp/third -- true && postproc check /tmp/third >/dev/null && echo good
"#;

fn all_answers(kernel: &str) -> Result<()> {
    let out = boot("answers", kernel, ANSWERS)?;
    let r = out.step("answers")?;
    all_said(r, &["whole frozen", "whole closing", "whole opening"])?;
    all_said(r, &["whole locked"])?;
    all_said(r, &["waits", "on 2", "good"])?;
    ensure!(said(r, "began start")?.starts_with("0 "), "{r:?}");
    ensure!(!r.stdout.contains("off fails"), "{r:?}");
    for (state, errno) in STATES {
        let [status, stop] = [format!("{state} status 0"), format!("{state} stop {errno}")];
        answers(r, &[&status, &stop])?;
    }
    Ok(())
}

/// The program's output is frozen, and it waits for room. Other processes read what the kernel
/// says of the program. The last request takes the lock of the address space for writing, so
/// nobody may have it at all.
const LOOKED: &str = r#"
$program & pid=$!
waits() { activator status --json >status; field waits; }
activator on --pid $pid --stall-limit 10min -n 32 --pack=no --buffers 4 --buffer-size 4K -o /tmp/x/t >/dev/null
until [ "$(stat -c %s /tmp/x/t)" -gt 100000 ]; do sleep 0.1; done
before=$(waits)
fsfreeze -f /tmp/x
sleep 2
[ "$(waits)" -gt "$before" ] && echo full
ran() { cut -d' ' -f14,15 /proc/$pid/stat; }
before=$(ran)
sleep 0.5
[ "$(ran)" = "$before" ] && echo sleeps
timed() {
	start=$(now)
	timeout -s KILL 20 sh -c "$2" >answer || echo "no answer: $1"
	echo "$1 $(since $start)"
}
for file in stat status maps cmdline; do
	timed $file "cat /proc/$pid/$file"
	[ -s answer ] || echo "nothing in $file"
done
timed lock "echo 5 >/proc/$pid/clear_refs"
echo "call $(cut -d' ' -f1 /proc/$pid/syscall)"
fsfreeze -u /tmp/x
sleep 0.5
kill -9 $pid
activator off >/dev/null && postproc check /tmp/x/t >/dev/null && echo whole
"#;

fn looked_at(kernel: &str, name: &str, program: &str) -> Result<()> {
    let out = boot(name, kernel, &format!("program='{program}'\n{LOOKED}"))?;
    let r = out.step(name)?;
    all_said(r, &["full", "sleeps", "whole"])?;
    // The command line is read from the program's memory: the first fault waits a second at
    // most, and the others don't wait.
    for file in ["stat", "status", "maps", "cmdline", "lock"] {
        took(r, file, 0.0, 2.0)?;
    }
    say!("  it waits in system call {}", said(r, "call")?);
    ensure!(!r.stdout.contains("nothing in"), "{r:?}");
    ensure!(!r.stdout.contains("no answer"), "{r:?}");
    Ok(())
}

/// The limit is the default, 10 s. Threads end and are waited for while the log is full:
/// an exiting thread tells others of its end.
const PID: &str = r#"
exits 400 60 >plain
activator run -q --status-file status -n 32 --pack=no --buffers 4 --buffer-size 4K -o /tmp/x/t -- \
	exits 400 60 >traced 2>why &
until [ "$(stat -c %s /tmp/x/t 2>/dev/null || echo 0)" -gt 100000 ]; do sleep 0.1; done
fsfreeze -f /tmp/x
start=$(now)
wait %1 || echo "rc $?"
echo "seconds $(since $start)"
cmp plain traced && echo same
sed 's/^/why /' why
lost
activator status >/dev/null || echo "status $?"
timeout 20 activator run -q -n 64 -o /tmp/second -- true || echo "second $?"
fsfreeze -u /tmp/x
i=0
until activator run -q -n 64 -o /tmp/third -- true 2>/dev/null || [ $((i += 1)) -gt 200 ]; do
	sleep 0.1
done
postproc check /tmp/third >/dev/null && echo good
postproc check /tmp/x/t >/dev/null || echo "bad $?"
umount /tmp/x && echo unmounted
"#;

fn frozen_pid(kernel: &str) -> Result<()> {
    let out = boot("frozen-pid", kernel, PID)?;
    let r = out.step("frozen-pid")?;
    all_said(
        r,
        &[
            "rc 1",
            "same",
            "status 1",
            "second 2",
            "good",
            "bad 1",
            "unmounted",
        ],
    )?;
    took(r, "seconds", 8.0, 60.0)?;
    ensure!(said(r, "lost")?.parse::<u64>()? > 0, "{r:?}");
    ensure!(r.stdout.contains("it took no data"), "{r:?}");
    Ok(())
}

/// As [`PID`] with the protection taken away: longer than the limit of 10 s would be, the program
/// waits. After the thaw it goes on, and the trace is whole.
const CONTROL: &str = r#"
activator run -q -n 32 --pack=no --buffers 4 --buffer-size 4K -o /tmp/x/t -- exits 400 60 >traced &
until [ "$(stat -c %s /tmp/x/t 2>/dev/null || echo 0)" -gt 100000 ]; do sleep 0.1; done
fsfreeze -f /tmp/x
sleep 15
if kill -0 $! && [ ! -s traced ]; then echo waits; fi
activator status >/dev/null && echo answers
fsfreeze -u /tmp/x
wait %1 && echo ended
postproc check /tmp/x/t >/dev/null && echo whole
"#;

fn frozen_control(kernel: &str) -> Result<()> {
    let out = boot_with("frozen-control", kernel, "vmtrace_stall=0", CONTROL)?;
    all_said(
        out.step("frozen-control")?,
        &["waits", "answers", "ended", "whole"],
    )
}

/// `dd` holds the file system's lock against freezing, and in the second part the lock of the
/// output itself, while it reads pages of its own that it has to wait for. In the third part
/// a process is killed that waits for room and has a lock which another one waits for.
const LOCKS: &str = r#"
head -c 64M /dev/zero >/tmp/big
traced() {
	activator run -q --stall-limit 2s -n 32 --pack=no --buffers 4 --buffer-size 4K -o /tmp/x/t -- "$@"
}
traced sh -c 'while [ ! -e /tmp/thawed ]; do dd if=/tmp/big of=/tmp/x/f bs=16M count=1 conv=notrunc 2>/dev/null; done' 2>/dev/null & run=$!
until pidof dd >/dev/null; do sleep 0.1; done
for i in 1 2 3; do timeout 60 fsfreeze -f /tmp/x && echo "frozen $i"; sleep 0.5; fsfreeze -u /tmp/x; done
touch /tmp/thawed
wait $run || echo "writer $?"
rm /tmp/x/t
traced sh -c 'dd if=/tmp/big of=/tmp/x/t bs=16M count=1 seek=1 conv=notrunc && echo written' 2>/dev/null || echo "itself $?"
exits heir >heir & heir=$!
until [ -s heir ]; do sleep 0.1; done
child=$(head -n 1 heir)
activator on --stall-limit 2s --pid $child -n 32 --pack=no --buffers 4 --buffer-size 4K -o /tmp/x/u >/dev/null
until [ "$(stat -c %s /tmp/x/u)" -gt 100000 ]; do sleep 0.1; done
fsfreeze -f /tmp/x
sleep 1
kill -9 $child
wait $heir && tail -n 1 heir
fsfreeze -u /tmp/x
activator off >/dev/null || echo "off $?"
activator run -q -n 64 -o /tmp/third -- true && postproc check /tmp/third >/dev/null && echo good
"#;

fn frozen_locks(kernel: &str) -> Result<()> {
    let out = boot("frozen-locks", kernel, LOCKS)?;
    let r = out.step("frozen-locks")?;
    all_said(
        r,
        &[
            "frozen 1", "frozen 2", "frozen 3", "written", "itself 1", "true", "good",
        ],
    )
}

/// Nearly all that `dd` faults on, it faults on in read() and write(): 32 pages each time. With
/// the output frozen, it has to wait for room. As it has places in reserve for a call, it does so
/// after the call, without the lock of the other file system, which can be frozen then.
const CALLS: &str = r#"
mkfs.ext4 -q /dev/trace
mkdir -p /tmp/y
mount /dev/trace /tmp/y
waits() { activator status --json >status; field waits; }
activator run -q --stall-limit 100s -n 32 --pack=no --buffers 4 --buffer-size 4K -o /tmp/x/t -- sh -c '
	while [ ! -e /tmp/over ]; do
		dd if=/dev/zero of=/tmp/y/f bs=128k count=64 conv=notrunc 2>/dev/null
	done' & run=$!
until pidof dd >/dev/null; do sleep 0.1; done
i=0
while [ $((i += 1)) -le 5 ]; do
	before=$(waits)
	fsfreeze -f /tmp/x
	sleep 1
	[ "$(waits)" -gt "$before" ] && echo "full $i"
	fsfreeze -f /tmp/y & freeze=$!
	sleep 1
	kill -0 $freeze 2>/dev/null && echo "stuck $i" || echo "free $i"
	fsfreeze -u /tmp/x
	wait $freeze
	fsfreeze -u /tmp/y
	sleep 0.3
done
touch /tmp/over
wait $run && echo "writer 0"
postproc check --frames /tmp/x/t >/dev/null && echo whole
"#;

fn frozen_calls(kernel: &str) -> Result<()> {
    let out = boot("frozen-calls", kernel, CALLS)?;
    let r = out.step("frozen-calls")?;
    let lines = |what: &str| r.stdout.lines().filter(|l| l.starts_with(what)).count();
    ensure!((lines("full "), lines("free ")) == (5, 5), "{r:?}");
    all_said(r, &["writer 0", "whole"])
}

/// The output itself works, and the trace is good. The process that hangs could not be
/// audited, which is said.
const HANGS: &str = r#"
echo 1 >/tmp/x/f
sync
hangs /tmp/x/f /tmp/go >hangs & pid=$!
activator on --pid $pid -n 64 -o /tmp/t >/dev/null
sleep 0.5
fsfreeze -f /tmp/x
touch /tmp/go
sleep 2
start=$(now)
rc=0
activator off >off 2>&1 || rc=$?
echo "off $rc"
echo "seconds $(since $start)"
grep -o "not audited: 1" off
postproc check --frames /tmp/t >/dev/null && echo whole
activator run -q -n 64 -o /tmp/third -- true && postproc check /tmp/third >/dev/null && echo good
fsfreeze -u /tmp/x
wait $pid
cat hangs
"#;

fn stop_locks(kernel: &str) -> Result<()> {
    let out = boot("stop-locks", kernel, HANGS)?;
    let r = out.step("stop-locks")?;
    all_said(
        r,
        &["off 0", "not audited: 1", "whole", "good", "stored 50"],
    )?;
    took(r, "seconds", 0.0, 20.0)
}

/// The limit is the default, 10 s. Whoever touches a page while the log is full waits for it,
/// `fsfreeze` itself perhaps, and then all goes on as if there were no trace.
const ALL: &str = r#"
touch-loop 300 20 >plain
activator on --all -n 32 --pack=no --buffers 4 --buffer-size 4K -o /tmp/x/t
start=$(now)
fsfreeze -f /tmp/x
i=0
while [ $((i += 1)) -le 20 ]; do touch-loop 300 20 >traced; done
cmp plain traced && echo same
fsfreeze -u /tmp/x && echo thawed
echo "seconds $(since $start)"
activator status --json >status || echo "status $?"
activator off >off || echo "off $?"
grep -c "took no data" off
lost
activator run -q -n 64 -o /tmp/third -- true && postproc check /tmp/third >/dev/null && echo good
"#;

fn frozen_all(kernel: &str) -> Result<()> {
    let out = boot("frozen-all", kernel, ALL)?;
    let r = out.step("frozen-all")?;
    all_said(r, &["same", "thawed", "status 1", "off 1", "good"])?;
    took(r, "seconds", 5.0, 60.0)?;
    ensure!(said(r, "lost")?.parse::<u64>()? > 0, "{r:?}");
    Ok(())
}

/// `off` while the output is frozen gives up and says so; `status` answers meanwhile; the
/// program goes on. What is left is written after the thaw, and the trace is whole. `on`
/// into a frozen file system fails, and leaves nothing there.
const ON_OFF: &str = r#"
touch-loop 300 100000000 & pid=$!
activator on --pid $pid -n 64 -o /tmp/x/t >/dev/null
sleep 1
fsfreeze -f /tmp/x
start=$(now)
activator off 2>off & off=$!
sleep 1.5
begin=$(now)
activator status --json >status
echo "status-seconds $(since $begin)"
echo "state $(field state)"
wait $off || echo "off $?"
echo "off-seconds $(since $start)"
grep -q "takes no data" off && echo said
timeout 20 activator run -q -n 64 -o /tmp/second -- true || echo "second $?"
start=$(now)
activator off 2>/dev/null || echo "again $?"
fsfreeze -u /tmp/x
rc=0
activator off >/dev/null || rc=$?
echo "thawed $rc"
postproc check --frames /tmp/x/t >/dev/null && echo whole
fsfreeze -f /tmp/x
start=$(now)
activator on --stall-limit 2s --pid $pid -o /tmp/x/u 2>on || echo "on $?"
echo "on-seconds $(since $start)"
grep -q "takes no data" on && echo why
activator run -q -n 64 -o /tmp/third -- true && postproc check /tmp/third >/dev/null && echo good
fsfreeze -u /tmp/x
sleep 2
ls /tmp/x | grep -v lost+found
kill $pid
umount /tmp/x && echo unmounted
"#;

fn frozen_on_off(kernel: &str) -> Result<()> {
    let out = boot("frozen-on-off", kernel, ON_OFF)?;
    let r = out.step("frozen-on-off")?;
    all_said(
        r,
        &[
            "state 4",
            "off 1",
            "said",
            "second 2",
            "again 1",
            "whole",
            "on 1",
            "why",
            "good",
            "t",
            "unmounted",
        ],
    )?;
    // The trace may have ended by itself after the thaw.
    ensure!(["0", "2"].contains(&said(r, "thawed")?), "{r:?}");
    ensure!(
        !r.stdout
            .lines()
            .any(|l| l.starts_with('u') && l != "unmounted"),
        "{r:?}"
    );
    took(r, "status-seconds", 0.0, 5.0)?;
    took(r, "off-seconds", 5.0, 60.0)?;
    took(r, "on-seconds", 1.0, 30.0)?;
    Ok(())
}

/// Two processes touch 300 pages each while the logs of both CPUs are full. Two others keep these
/// full, each on its CPU. The limit is longer than the test.
const NEEDED: &str = r#"
sh -c 'needed yes 300 >yes & echo $! >pid.yes
needed no 300 >no & echo $! >pid.no
for cpu in 0 1; do taskset -c $cpu touch-loop 300 100000000 & echo $! >pid.loop$cpu; done
wait' & root=$!
until [ -s pid.loop1 ]; do sleep 0.1; done
sleep 0.5
activator on --pid $root --stall-limit 10min -n 32 --pack=no --buffers 4 --buffer-size 4K -o /tmp/x/t >/dev/null
until [ "$(stat -c %s /tmp/x/t)" -gt 100000 ]; do sleep 0.1; done
fsfreeze -f /tmp/x
sleep 1
kill -USR1 $(cat pid.yes) $(cat pid.no)
i=0
until [ -s yes ] || [ $((i += 1)) -gt 100 ]; do sleep 0.1; done
sed 's/^/needed /' yes
[ -s no ] || echo "other waits"
fsfreeze -u /tmp/x
i=0
until [ -s no ] || [ $((i += 1)) -gt 100 ]; do sleep 0.1; done
sed 's/^/other /' no
kill $(cat pid.loop0 pid.loop1 pid.yes pid.no)
wait $root || true
activator off >/dev/null && postproc check /tmp/x/t >/dev/null && echo whole
"#;

fn frozen_needed(kernel: &str) -> Result<()> {
    let out = boot("frozen-needed", kernel, NEEDED)?;
    all_said(
        out.step("frozen-needed")?,
        &[
            "needed touched 0",
            "other waits",
            "other touched 0",
            "whole",
        ],
    )
}

/// A program on one CPU makes mappings until its CPU's log is full, and waits for room. Then a
/// program on the other CPU touches 300 pages, which have room in the log of that CPU. The limit is
/// longer than the test.
const ONE_CPU: &str = r#"
sh -c 'taskset -c 0 many-maps 40 loop & echo $! >pid.fills
taskset -c 1 needed no 300 >other & echo $! >pid.other
wait' & root=$!
until [ -s pid.other ]; do sleep 0.1; done
sleep 0.5
ticks() { cut -d' ' -f14,15 /proc/$(cat pid.fills)/stat; }
waits() { before=$(ticks); sleep 1; [ -n "$before" ] && [ "$before" = "$(ticks)" ] && echo "$1"; }
activator on --pid $root --stall-limit 10min -n 32 --pack=no --buffers 4 --buffer-size 4K -o /tmp/x/t >/dev/null
until [ "$(stat -c %s /tmp/x/t)" -gt 100000 ]; do sleep 0.1; done
fsfreeze -f /tmp/x
i=0
until waits "waits before" || [ $((i += 1)) -gt 20 ]; do :; done
kill -USR1 $(cat pid.other)
i=0
until [ -s other ] || [ $((i += 1)) -gt 100 ]; do sleep 0.1; done
sed 's/^/other /' other
waits "waits after"
fsfreeze -u /tmp/x
i=0
while waits "waits" >/dev/null && [ $((i += 1)) -lt 20 ]; do :; done
waits "waits for ever" || echo "goes on"
kill $(cat pid.fills pid.other)
wait $root || true
activator off >/dev/null && postproc check /tmp/x/t >/dev/null && echo whole
"#;

fn frozen_one_cpu(kernel: &str) -> Result<()> {
    let out = boot("frozen-one-cpu", kernel, ONE_CPU)?;
    all_said(
        out.step("frozen-one-cpu")?,
        &[
            "waits before",
            "other touched 0",
            "waits after",
            "goes on",
            "whole",
        ],
    )
}

/// Bytes of the trace that is cut.
const WHOLE: u64 = 9 << 20;

/// Cuts a trace of few events at many places, where a machine might have been switched off.
fn cut_short(kernel: &str) -> Result<()> {
    let argv = "/bin/activator run -n 64 --pack=no -o /dev/trace -- /bin/touch-loop 300 1000";
    let argv: Vec<_> = argv.split(' ').collect();
    let out = Machine {
        name: format!("cut-short-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps: vec![step("touch", &argv)],
        deadline_s: 300,
    }
    .run()?;
    ensure!(out.step("touch")?.rc == 0, "{:?}", out.step("touch")?);
    let (rc, _) = postproc::json(&["check"], &out.trace())?;
    ensure!(rc == 0, "{}", postproc::explain(&out.trace()));
    let (mut trace, cut) = (File::open(out.trace())?, out.dir.join("cut.vmt"));
    for part in 1..=24 {
        let mut bytes = vec![0; usize::try_from(WHOLE * part / 24)?];
        trace.seek(SeekFrom::Start(0))?;
        trace.read_exact(&mut bytes)?;
        fs::write(&cut, &bytes)?;
        let (rc, check) = postproc::json(&["check"], &cut)?;
        ensure!(rc == 1, "a cut trace is called good");
        let rules = check["rules"].as_array().context("no rules")?;
        let errors = |name: &str| {
            let rule = rules.iter().find(|r| r["id"] == name);
            rule.and_then(|r| r["errors"].as_u64())
        };
        let all = ["events", "lifecycle", "mapped", "permitted"].map(errors);
        ensure!(
            all == [Some(0); 4],
            "cut at {} bytes: {all:?}\n{}",
            bytes.len(),
            postproc::explain(&cut)
        );
        ensure!(
            check["references"].as_u64() > Some(bytes.len() as u64 / 64),
            "few references in {} bytes: {check}",
            bytes.len()
        );
    }
    fs::remove_file(cut)?;
    Ok(())
}

/// Ten moments for each signal. In the background a shell ignores SIGINT, and what it
/// executes inherits that.
const SIGNALS: &str = r#"
touch-loop 2000 100000000 & pid=$!
good=0
for signal in TERM KILL INT; do
	for ms in 1 3 6 10 15 22 32 45 65 100; do
		rm -f /tmp/x/t
		activator on --pid $pid -n 64 -o /tmp/x/t >/dev/null
		sleep 0.2
		env --default-signal=INT activator off >/dev/null 2>&1 & off=$!
		sleep "0.$(printf %03d $ms)"
		kill -$signal $off 2>/dev/null || true
		rc=0
		wait $off || rc=$?
		case $rc in 0 | 130 | 137 | 143) ;; *) echo "bad end of off after $signal at $ms: $rc" ;; esac
		rc=0
		activator off >/dev/null 2>&1 || rc=$?
		if [ $rc != 0 ] && [ $rc != 2 ]; then echo "off after $signal at $ms: $rc"; fi
		if postproc check /tmp/x/t >/dev/null; then good=$((good + 1)); else echo "bad after $signal at $ms"; fi
	done
done
kill $pid
echo "good $good"
"#;

fn stop_signals(kernel: &str) -> Result<()> {
    let out = boot("stop-signals", kernel, SIGNALS)?;
    let r = out.step("stop-signals")?;
    all_said(r, &["good 30"])?;
    ensure!(r.stdout.lines().count() == 1, "{r:?}");
    Ok(())
}
