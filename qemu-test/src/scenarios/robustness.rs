//! What is done to a trace to break it: large snapshots, ends at bad moments, slow and broken
//! disks, too little memory, requests that make no sense.

use super::Scenario;
use super::waits::{all_said, answers, boot, boot_with, said, sh, took};
use crate::machine::{Machine, Outcome, Profile, step};
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::{Step, StepResult};
use serde_json::Value;

/// Run each time.
pub fn scenarios() -> Vec<Scenario> {
    type Test = (&'static str, &'static str, fn(&str) -> Result<()>);
    let scripts: [Test; 12] = [
        (
            "attach-stop",
            "`off` ends a start that waits for a locked address space",
            attach_stop,
        ),
        (
            "resize-stop",
            "`off` does not wait for a change of N that waits for room",
            resize_stop,
        ),
        (
            "too-much-memory",
            "buffers that don't fit are refused, and harm no other program",
            too_much_memory,
        ),
        (
            "two-activators",
            "of two starts at a time one succeeds, and the other one says why not",
            two_activators,
        ),
        (
            "fork-bomb",
            "a traced program that forks until it may not any more",
            fork_bomb,
        ),
        (
            "disk-errors",
            "a disk that fails for a time, or from a moment on: the loss is reported",
            disk_errors,
        ),
        (
            "disk-hangs",
            "a disk that answers no more: `off` gives up, and the trace is whole afterwards",
            disk_hangs,
        ),
        (
            "disk-hangs-pid",
            "the disk under the output hangs for longer than the stall limit: the program goes on",
            disk_hangs_pid,
        ),
        (
            "disk-hangs-all",
            "the same while all processes are traced: the system goes on, and the disk is resumed",
            disk_hangs_all,
        ),
        (
            "full-all",
            "an output without room while all processes are traced: the loss is reported",
            full_all,
        ),
        (
            "full-windows",
            "an output without room for all windows: the loss is reported",
            full_windows,
        ),
        (
            "maps-traced",
            "a traced program makes 60,000 mappings: nothing is lost",
            maps_traced,
        ),
    ];
    let mut list: Vec<_> = scripts
        .into_iter()
        .map(|(name, about, run)| Scenario {
            name: name.into(),
            about,
            run: Box::new(run),
        })
        .collect();
    list.push(Scenario {
        name: "snapshot-many".into(),
        about: "a process with 120,000 mappings when the trace or its window begins: nothing lost",
        run: Box::new(snapshot_many),
    });
    list.push(fuzz(3_000, 1));
    list.push(kills(10, 1));
    list.push(Scenario {
        name: "slow-turns".into(),
        about: "a program that always has events for a slow disk does not keep others from room",
        run: Box::new(slow_turns),
    });
    list
}

/// The long ones.
pub fn full() -> Vec<Scenario> {
    let slow = Scenario {
        name: "slow-disk".into(),
        about: "`off` waits for a disk of half a MiB a second, and the trace is whole",
        run: Box::new(slow_disk),
    };
    vec![fuzz(1_000_000, 2), kills(100, 2), slow]
}

/// Nothing was lost, and the checks find nothing.
const GOOD: &str = r#"
good() { postproc check "$1" >/dev/null && echo "$2"; }
"#;

/// A program has its address space locked, because it hangs in a fault on a frozen file
/// system. `on` waits for it, and `off` ends that.
const ATTACH_STOP: &str = r#"
echo 1 >/tmp/x/f
sync
hangs /tmp/x/f /tmp/go >hangs & pid=$!
sleep 0.5
fsfreeze -f /tmp/x
touch /tmp/go
sleep 2
activator on --pid $pid -n 64 -o /tmp/t >on 2>&1 & on=$!
sleep 1.5
kill -0 $on && echo waits
start=$(now)
rc=0
timeout 40 activator off >off 2>&1 || rc=$?
echo "off $rc"
echo "seconds $(since $start)"
i=0
while kill -0 $on 2>/dev/null && [ $((i += 1)) -lt 50 ]; do sleep 0.1; done
if kill -0 $on 2>/dev/null; then echo "on hangs"; else
	rc=0
	wait $on || rc=$?
	echo "on $rc"
fi
sed 's/^/said /' on
activator run -q -n 64 -o /tmp/third -- true && good /tmp/third third
fsfreeze -u /tmp/x
wait $pid
cat hangs
"#;

fn attach_stop(kernel: &str) -> Result<()> {
    let out = boot("attach-stop", kernel, &format!("{GOOD}{ATTACH_STOP}"))?;
    let r = out.step("attach-stop")?;
    all_said(r, &["waits", "off 0", "on 2", "third", "stored 50"])?;
    ensure!(r.stdout.contains("ended while it began"), "{r:?}");
    took(r, "seconds", 0.0, 10.0)
}

/// The output is frozen. Tasks that find no room don't wait, so that they take the places that
/// the set has in reserve. A program that does nothing has the last pages of the other CPU,
/// which need new records before the set is smaller. So N can't be made smaller then: that gives up after five seconds, and
/// `off` ends it at once.
const RESIZE_STOP: &str = r#"
activator run -q --stall-limit 10min -n 1024 --pack=no --buffers 4 --buffer-size 4K -o /tmp/x/t -- sh -c '
	taskset -c 1 sleep 1000 & sleep 1; exec taskset -c 0 touch-loop 3000 100000000' >/dev/null 2>&1 & run=$!
until [ "$(stat -c %s /tmp/x/t 2>/dev/null || echo 0)" -gt 1000000 ]; do sleep 0.1; done
fsfreeze -f /tmp/x
sleep 3
activator resize 64 >resize 2>&1 & resize=$!
sleep 1
kill -0 $resize && echo waits
ioctl-fuzz time status
start=$(now)
timeout -s KILL 20 ioctl-fuzz time stop
activator off >/dev/null 2>&1 & off=$!
rc=0
wait $resize || rc=$?
echo "resize $rc"
echo "seconds $(since $start)"
fsfreeze -u /tmp/x
rc=0
wait $off || rc=$?
echo "off $rc"
kill -9 $(pidof touch-loop sleep)
wait $run || true
"#;

fn resize_stop(kernel: &str) -> Result<()> {
    let out = boot_with("resize-stop", kernel, "vmtrace_break=noblock", RESIZE_STOP)?;
    let r = out.step("resize-stop")?;
    // Whether all places are taken depends on the moment of the freeze.
    all_said(r, &["off 0"])?;
    match r.stdout.lines().any(|l| l == "waits") && r.stdout.contains("resize 2") {
        true => say!("  the change of N waited, and was ended"),
        false => say!("  the change of N found room this time"),
    }
    ensure!(!r.stdout.contains("resize 1"), "{r:?}");
    answers(r, &["status 0", "stop EINPROGRESS"])?;
    took(r, "seconds", 0.0, 3.0)
}

/// The trace of some 16 MiB is in memory when `off` begins.
fn slow_disk(kernel: &str) -> Result<()> {
    let argv = "/bin/activator run -n 64 --pack=no -o /dev/slow -- /bin/touch-loop 300 1800";
    let steps = vec![
        step("traced", &argv.split(' ').collect::<Vec<_>>()),
        step("check", &["/bin/postproc", "check", "/dev/slow"]),
    ];
    let out = with_slow_disk("slow-disk", kernel, "bps-write=524288", false, steps)?;
    let [traced, check] = [out.step("traced")?, out.step("check")?];
    say!("  run and its end: {} s", traced.ns / 1_000_000_000);
    ensure!(traced.rc == 0, "{traced:?}");
    ensure!(check.rc == 0, "{check:?}");
    // Otherwise the disk was not slow.
    ensure!(traced.ns > 20_000_000_000, "{traced:?}");
    Ok(())
}

/// Each write waits for the disk. Two processes log more events than the disk takes. One of them
/// does so without an end, and must not keep the other one from room. Its CPU has so many buffers
/// that some are full whenever kvmtraced looks. If `run` does not end, `off` ends the trace.
const TURNS: &str = r#"
mkfs.ext4 -q -O ^has_journal /dev/slow
mkdir -p /tmp/s
mount -o sync /dev/slow /tmp/s
start=$(now)
timeout 120 activator run -q --status-file status -n 64 --pack=no --buffers 16 --buffer-size 4K -o /tmp/s/t -- \
	many-maps 1 beside 800 && echo "run 0" || echo "run $?"
echo "seconds $(since $start)"
activator off >/dev/null 2>&1 && echo "a trace was left"
field waits | sed 's/^/waits /'
postproc check /tmp/s/t >/dev/null && echo whole
"#;

fn slow_turns(kernel: &str) -> Result<()> {
    let steps = vec![sh("slow-turns", TURNS)];
    // So few writes a second that each one waits: the disk has no burst to give.
    let out = with_slow_disk("slow-turns", kernel, "iops-write=20", true, steps)?;
    let r = out.step("slow-turns")?;
    all_said(r, &["800 rounds", "run 0", "whole"])?;
    say!("  {} s", said(r, "seconds")?);
    // Otherwise there was always room.
    ensure!(said(r, "waits")?.parse::<u64>()? > 20, "{r:?}");
    Ok(())
}

/// A guest with a slow disk, /dev/slow.
fn with_slow_disk(
    name: &str,
    kernel: &str,
    most: &str,
    image: bool,
    steps: Vec<Step>,
) -> Result<Outcome> {
    let name = format!("{name}-{kernel}");
    let disk = crate::paths::build()
        .join("runs")
        .join(format!("{name}.slow"));
    std::fs::File::create(&disk)?.set_len(64 << 20)?;
    let drive = format!(
        "if=none,id=slow,format=raw,cache=unsafe,throttling.{most},file={}",
        disk.display()
    );
    let out = Machine {
        name,
        kernel: kernel.into(),
        profile: Profile::Smp,
        image,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 400,
    }
    .run_with(&[
        "-drive".into(),
        drive,
        "-device".into(),
        "virtio-blk-pci,drive=slow,serial=slow".into(),
    ]);
    let _ = std::fs::remove_file(&disk);
    out
}

/// 256 GiB are asked for, beside a program that has much of the memory. What the message
/// says would fit does fit.
const MEMORY: &str = r#"
python3 -c '
import time
held = bytearray(500 << 20)
for i in range(0, len(held), 4096): held[i] = 1
open("/tmp/held", "w").close()
time.sleep(1000)' & holder=$!
until [ -e /tmp/held ]; do sleep 0.2; done
rc=0
activator run -q --buffers 65536 --buffer-size 1M -o /tmp/t -- true 2>why || rc=$?
echo "large $rc"
sed 's/^/why /' why
kill -0 $holder && echo "bystander lives"
fits=$(sed -n 's/.*--buffers \([0-9]*\) would fit.*/\1/p' why)
echo "fits $fits"
rc=0
activator run -q --buffers $fits --buffer-size 1M -o /tmp/t -- true || rc=$?
echo "fitting $rc"
kill -0 $holder && echo "bystander still lives"
good /tmp/t good
activator run -q -n 16GiB -o /tmp/u -- true 2>why || echo "set $?"
sed 's/^/why /' why
kill -0 $holder && echo "bystander lives on"
kill $holder
"#;

fn too_much_memory(kernel: &str) -> Result<()> {
    let out = boot("too-much-memory", kernel, &format!("{GOOD}{MEMORY}"))?;
    let r = out.step("too-much-memory")?;
    all_said(
        r,
        &[
            "large 2",
            "bystander lives",
            "fitting 0",
            "bystander still lives",
            "good",
            "bystander lives on",
        ],
    )?;
    let console = std::fs::read_to_string(out.dir.join("console.log"))?;
    ensure!(!console.contains("Out of memory"), "the OOM killer came");
    say!("  of 65536 buffers {} fit", said(r, "fits")?);
    Ok(())
}

/// Twenty times two starts at a time, of different kinds.
const TWO: &str = r#"
touch-loop 300 100000000 >/dev/null & pid=$!
won=0 lost=0 other=0
for i in $(seq 20); do
	rm -f /tmp/a /tmp/b
	activator on --pid $pid -n 64 -o /tmp/a >on.a 2>&1 & a=$!
	[ $((i % 2)) = 0 ] || sleep 0.0$((i % 7))
	activator on --all -n 64 -o /tmp/b >on.b 2>&1 & b=$!
	rc_a=0 rc_b=0
	wait $a || rc_a=$?
	wait $b || rc_b=$?
	case $rc_a$rc_b in
	02) loser=b winner=a ;;
	20) loser=a winner=b ;;
	*) loser=a winner=b; echo "codes $rc_a $rc_b"; cat on.a on.b ;;
	esac
	won=$((won + 1))
	if grep -q "already on\|has not ended\|is starting" on.$loser; then lost=$((lost + 1)); else sed 's/^/said /' on.$loser; fi
	[ ! -e /tmp/$loser ] || echo "a file of the loser"
	activator off >/dev/null || echo "off $?"
	postproc check /tmp/$winner >/dev/null || echo "bad $winner"
done
kill $pid
echo "won $won lost $lost"
"#;

fn two_activators(kernel: &str) -> Result<()> {
    let out = boot("two-activators", kernel, TWO)?;
    let r = out.step("two-activators")?;
    all_said(r, &["won 20 lost 20"])?;
    ensure!(r.stdout.lines().count() == 1, "{r:?}");
    Ok(())
}

/// All that the user may have fork on for some seconds. The rest of the machine goes on.
const BOMB: &str = r#"
cat >/tmp/bomb.py <<'END'
import os, sys, time
end = time.monotonic() + 4
first = os.getpid()
limit = False
while time.monotonic() < end:
    try:
        if os.fork() == 0:
            first = 0
    except BlockingIOError:
        limit = True
        time.sleep(0.01)
if first == os.getpid() and limit:
    os.write(1, b"limit\n")
os._exit(0)
END
chmod 644 /tmp/bomb.py
rc=0
activator run -n 4096 -q --wait-all --status-file status -o /tmp/t -- \
	prlimit --nproc=60 setpriv --reuid 65534 --clear-groups python3 /tmp/bomb.py || rc=$?
echo "run $rc"
good /tmp/t bomb
lost
activator run -q -n 64 -o /tmp/third -- true && good /tmp/third third
"#;

fn fork_bomb(kernel: &str) -> Result<()> {
    let out = boot("fork-bomb", kernel, &format!("{GOOD}{BOMB}"))?;
    all_said(
        out.step("fork-bomb")?,
        &["limit", "run 0", "bomb", "lost 0", "third"],
    )
}

/// Disks made of others, as dmsetup makes them: `dm create NAME TABLE`, `dm load NAME TABLE`,
/// `dm suspend NAME`, `dm resume NAME`. The first one is /dev/dm-0.
const DM: &str = r#"
umount /tmp/x
cat >/tmp/dm.py <<'END'
import fcntl, os, struct, sys
CREATE, SUSPEND, LOAD = 3, 6, 9
def call(number, name, flags=0, table=None):
    data = b""
    if table:
        start, length, kind, args = (table + " ").split(" ", 3)
        data = struct.pack("<QQiI16s", int(start), int(length), 0, 0, kind.encode())
        data += args.encode() + b"\0"
        data += b"\0" * (-len(data) % 8)
    head = struct.pack("<10IQ128s129s7x", 4, 0, 0, 312 + len(data) + 64, 312,
                       1 if table else 0, 0, flags, 0, 0, 0, name.encode(), b"")
    assert len(head) == 312, len(head)
    buffer = bytearray(head + data + bytes(64))
    with open("/dev/mapper/control", "rb+", buffering=0) as control:
        fcntl.ioctl(control, 0xc138fd00 | number, buffer)
command, name = sys.argv[1:3]
table = sys.argv[3] if len(sys.argv) > 3 else None
if command == "create":
    call(CREATE, name)
    call(LOAD, name, table=table)
    call(SUSPEND, name)
elif command == "load":
    call(LOAD, name, table=table)
    # Without writing back what there is, and without waiting for it.
    call(SUSPEND, name, flags=1 << 1 | 1 << 10 | 1 << 11)
    call(SUSPEND, name)
elif command == "suspend":
    call(SUSPEND, name, flags=1 << 1 | 1 << 10 | 1 << 11)
elif command == "resume":
    call(SUSPEND, name)
END
dm() { python3 /tmp/dm.py "$@"; }
disk=$(readlink -f /dev/swap)
sectors=$(cat /sys/block/$(basename $disk)/size)
linear="0 $sectors linear $disk 0"
dm create d "$linear"
until [ -b /dev/dm-0 ]; do sleep 0.1; done
"#;

/// The trace goes to a disk that fails all writes from a moment on, and then to one that fails
/// each other second. Then the disk is well.
const ERRORS: &str = r#"
touch-loop 300 1000 >plain
activator run -q --status-file status -n 64 --force -o /dev/dm-0 -- sh -c 'touch-loop 300 1000 >traced; touch /tmp/half; while [ ! -e /tmp/broken ]; do sleep 0.1; done; touch-loop 300 1000 >traced2' 2>why & run=$!
until [ -e /tmp/half ]; do sleep 0.1; done
dm load d "0 $sectors error"
touch /tmp/broken
rc=0
wait $run || rc=$?
echo "run $rc"
sed 's/^/why /' why
cmp plain traced && cmp plain traced2 && echo same
activator status >/dev/null || echo "status $?"
dm load d "0 $sectors flakey $disk 0 1 1 1 error_writes"
for i in writeback expire; do echo 10 >/proc/sys/vm/dirty_${i}_centisecs; done
rc=0
activator run -q -n 64 --pack=no --force -o /dev/dm-0 -- touch-loop 300 3000 >traced 2>why || rc=$?
echo "flakey $rc"
sed 's/^/why /' why
dm load d "$linear"
activator run -q -n 64 --force -o /dev/dm-0 -- touch-loop 300 1000 >traced || echo "well $?"
good /dev/dm-0 well
cmp plain traced && echo "same again"
activator run -q -n 64 -o /tmp/third -- true && good /tmp/third third
"#;

fn disk_errors(kernel: &str) -> Result<()> {
    let out = boot("disk-errors", kernel, &format!("{GOOD}{DM}{ERRORS}"))?;
    let r = out.step("disk-errors")?;
    all_said(
        r,
        &[
            "run 1",
            "same",
            "status 1",
            "flakey 1",
            "well",
            "same again",
            "third",
        ],
    )?;
    ensure!(r.stdout.contains("why "), "{r:?}");
    Ok(())
}

/// While the disk answers nothing, `off` gives up after ten seconds; afterwards the trace is
/// whole.
const HANGS: &str = r#"
touch-loop 300 100000000 >/dev/null & pid=$!
activator on --pid $pid -n 64 --force -o /dev/dm-0 >/dev/null
sleep 1
dm suspend d
start=$(now)
rc=0
activator off 2>off || rc=$?
echo "off $rc"
echo "seconds $(since $start)"
grep -q "takes no data" off && echo said
start=$(now)
rc=0
activator status >/dev/null || rc=$?
echo "status $rc"
echo "status-seconds $(since $start)"
dm resume d
rc=0
activator off >/dev/null 2>&1 || rc=$?
echo "again $rc"
good /dev/dm-0 whole
kill $pid
activator run -q -n 64 -o /tmp/third -- true && good /tmp/third third
"#;

fn disk_hangs(kernel: &str) -> Result<()> {
    let out = boot("disk-hangs", kernel, &format!("{GOOD}{DM}{HANGS}"))?;
    let r = out.step("disk-hangs")?;
    all_said(r, &["off 1", "said", "whole", "third"])?;
    ensure!(["0", "2"].contains(&said(r, "again")?), "{r:?}");
    took(r, "seconds", 5.0, 60.0)?;
    took(r, "status-seconds", 0.0, 5.0)
}

/// The output is a file on that disk, written to the disk at once. The stall limit is that of
/// the kernel's command line, 2 s.
const LONG: &str = r#"
mkfs.ext4 -q -O ^has_journal /dev/dm-0
mount -o sync /dev/dm-0 /tmp/x
ended() {
	rc=0
	activator status --json >status || rc=$?
	echo "status $rc"
	lost
	bad=0
	postproc check /tmp/x/t >/dev/null 2>&1 || bad=$?
	echo "check $bad"
	i=0
	until activator run -q -n 64 -o /tmp/third -- true 2>/dev/null || [ $((i += 1)) -gt 100 ]; do sleep 0.1; done
	good /tmp/third third
	umount /tmp/x && echo unmounted
}
"#;

const LONG_PID: &str = r#"
touch-loop 300 2000 >plain
activator run -q -n 32 --pack=no --buffers 4 --buffer-size 4K -o /tmp/x/t -- touch-loop 300 2000 >traced 2>why & run=$!
until [ "$(stat -c %s /tmp/x/t 2>/dev/null || echo 0)" -gt 50000 ]; do sleep 0.1; done
dm suspend d
start=$(now)
rc=0
wait $run || rc=$?
echo "seconds $(since $start)"
echo "run $rc"
grep -q "took no data" why && echo said
cmp plain traced && echo same
dm resume d && echo resumed
ended
"#;

fn disk_hangs_pid(kernel: &str) -> Result<()> {
    let script = format!("{GOOD}{DM}{LONG}{LONG_PID}");
    let out = boot_with("disk-hangs-pid", kernel, "vmtrace_stall=2", &script)?;
    let r = out.step("disk-hangs-pid")?;
    all_said(r, &["run 1", "said", "same", "resumed"])?;
    hung(r)
}

const LONG_ALL: &str = r#"
touch-loop 300 20 >plain
activator on --all -n 256 --pack=no --buffers 4 --buffer-size 16K -o /tmp/x/t >/dev/null
start=$(now)
dm suspend d
i=0
while [ $((i += 1)) -le 20 ]; do touch-loop 300 20 >traced; cmp plain traced || echo differs; done
dm resume d && echo resumed
echo "seconds $(since $start)"
rc=0
activator off >off 2>&1 || rc=$?
echo "off $rc"
grep -q "took no data" off && echo said
ended
"#;

fn disk_hangs_all(kernel: &str) -> Result<()> {
    let script = format!("{GOOD}{DM}{LONG}{LONG_ALL}");
    let out = boot_with("disk-hangs-all", kernel, "vmtrace_stall=2", &script)?;
    let r = out.step("disk-hangs-all")?;
    all_said(r, &["resumed", "off 1", "said"])?;
    ensure!(!r.stdout.contains("differs"), "{r:?}");
    hung(r)
}

/// What holds after both.
fn hung(r: &StepResult) -> Result<()> {
    all_said(r, &["status 1", "check 1", "third", "unmounted"])?;
    took(r, "seconds", 1.5, 60.0)?;
    say!("  {} lost", said(r, "lost")?);
    ensure!(said(r, "lost")?.parse::<u64>()? > 0, "{r:?}");
    Ok(())
}

/// The disk has 1 MiB. Not all of the programs' records fit.
const FULL_ALL: &str = r#"
touch-loop 300 200 >plain
activator on --all -n 64 --pack=no --force -o /dev/small >/dev/null
i=0
while [ $((i += 1)) -le 5 ]; do touch-loop 300 200 >traced; cmp plain traced && echo "same $i"; done
rc=0
activator off >off 2>&1 || rc=$?
echo "off $rc"
sed 's/^/said /' off
"#;

/// The first windows fit, and the others don't.
const FULL_WINDOWS: &str = r#"
touch-loop 300 200000 >plain
rc=0
activator run -q -n 64 --pack=no --trace 6k --skip 20ms --repeat 1000 --force -o /dev/small -- touch-loop 300 200000 >traced 2>off || rc=$?
echo "off $rc"
sed 's/^/said /' off
cmp plain traced && echo "same 5"
activator status --json >status || true
echo "windows $(field windows_ended)"
"#;

const FULL: &str = r#"
rc=0
activator status --json >status || rc=$?
echo "status $rc"
lost
bad=0
postproc check /dev/small >/dev/null 2>&1 || bad=$?
echo "check $bad"
activator run -q -n 64 -o /tmp/third -- touch-loop 300 20 >/dev/null && good /tmp/third third
"#;

fn no_room(name: &str, kernel: &str, script: &str) -> Result<StepResult> {
    let out = boot(name, kernel, &format!("{GOOD}{script}{FULL}"))?;
    let r = out.step(name)?;
    let lines = ["same 5", "off 1", "status 1", "check 1", "third"];
    all_said(r, &lines)?;
    ensure!(r.stdout.contains("No space left"), "{r:?}");
    say!("  {} lost", said(r, "lost")?);
    ensure!(said(r, "lost")?.parse::<u64>()? > 0, "{r:?}");
    Ok(r.clone())
}

fn full_all(kernel: &str) -> Result<()> {
    let r = no_room("full-all", kernel, FULL_ALL)?;
    all_said(&r, &["same 1", "same 2", "same 3", "same 4"])
}

fn full_windows(kernel: &str) -> Result<()> {
    let r = no_room("full-windows", kernel, FULL_WINDOWS)?;
    let windows: u32 = said(&r, "windows")?.parse()?;
    say!("  {windows} windows");
    ensure!((1..1000).contains(&windows), "{r:?}");
    Ok(())
}

/// The buffers have room for a small part of the mappings.
const MAPS: &str = r#"
many-maps 60000 alone >plain
cat plain
rc=0
activator run -q --status-file s -n 512 --buffers 4 --buffer-size 4K -o /tmp/t -- many-maps 60000 alone >traced || rc=$?
echo "run $rc"
cmp plain traced && echo same
activator status --json >status || true
lost
echo "events $(field events)"
good /tmp/t good
activator run -q -n 64 -o /tmp/third -- true && good /tmp/third third
"#;

fn maps_traced(kernel: &str) -> Result<()> {
    let out = boot("maps-traced", kernel, &format!("{GOOD}{MAPS}"))?;
    let r = out.step("maps-traced")?;
    let lines = ["60000 mappings, sum 0", "run 0", "same", "lost 0", "good"];
    all_said(r, &lines)?;
    all_said(r, &["third"])?;
    let events: u64 = said(r, "events")?.parse()?;
    say!("  {events} events");
    // Each call splits one mapping into three, or the last one into two.
    ensure!(events >= 30_000, "{events} events");
    Ok(())
}

/// The lost records that a status counts.
fn lost(status: &Value) -> u64 {
    ["lost_full", "lost_atomic", "lost_io"]
        .iter()
        .map(|k| status[k].as_u64().unwrap_or(u64::MAX / 4))
        .sum()
}

fn snapshot_many(kernel: &str) -> Result<()> {
    let mut steps = Vec::new();
    let runs = [("on", 120_000), ("windows", 120_000), ("all", 30_011)];
    for (how, count) in runs {
        let line = format!("/bin/many-maps {count} {how} /tmp/many.vmt");
        steps.push(step(how, &line.split(' ').collect::<Vec<_>>()));
        steps.push(step("status", &["/bin/activator", "status", "--json"]));
        steps.push(step("check", &["/bin/postproc", "check", "/tmp/many.vmt"]));
    }
    let out = Machine {
        name: format!("snapshot-many-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: false,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 600,
    }
    .run()?;
    let mut bad = Vec::new();
    for (i, (how, count)) in runs.iter().enumerate() {
        let [r, status, check] = [0, 1, 2].map(|k| &out.results[3 * i + k]);
        let status: Value = serde_json::from_str(&status.stdout).context("no status")?;
        let (lost, events) = (lost(&status), status["events"].as_u64().unwrap_or(0));
        say!(
            "  {count} mappings, {how}: {lost} lost, {events} events, {}",
            r.stdout.trim()
        );
        if r.rc != 0 || check.rc != 0 || lost != 0 || events < *count {
            bad.push(format!("{how}: {lost} lost; {r:?} {check:?}"));
        }
    }
    ensure!(bad.is_empty(), "{bad:?}");
    Ok(())
}

fn fuzz(count: u64, seed: u64) -> Scenario {
    Scenario {
        name: format!("ioctl-fuzz-{}k", count / 1000),
        about: "requests that make no sense: no oops, no lost memory, the next trace is good",
        run: Box::new(move |kernel| run_fuzz(kernel, count, seed)),
    }
}

fn run_fuzz(kernel: &str, count: u64, seed: u64) -> Result<()> {
    let fuzz = |name: &str, seed: u64, who: &str| {
        let line = format!("/bin/ioctl-fuzz {count} {seed} {who}");
        Step {
            timeout_s: 3000,
            ..step(name, &line.split(' ').collect::<Vec<_>>())
        }
    };
    let trace = "/bin/activator run -q -n 64 -o /dev/trace -- /bin/touch-loop 300 100";
    // A start and its end wait for grace periods, 30 ms in all. A million requests start 80,000
    // traces.
    let cmdline = match count > 100_000 {
        true => "rcupdate.rcu_expedited=1".into(),
        false => String::new(),
    };
    let out = Machine {
        name: format!("ioctl-fuzz-{count}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: false,
        cmdline,
        files: vec![],
        steps: vec![
            // What is kept for ever is made by the first requests.
            fuzz("first", seed + 100, "root"),
            step("before", &["/bin/ioctl-fuzz", "memory"]),
            fuzz("root", seed, "root"),
            fuzz("nobody", seed + 1, "nobody"),
            step("status", &["/bin/activator", "status", "--json"]),
            step("after", &["/bin/ioctl-fuzz", "memory"]),
            step("trace", &trace.split(' ').collect::<Vec<_>>()),
            step("check", &["/bin/postproc", "check", "/dev/trace"]),
        ],
        deadline_s: 7200,
    }
    .run()?;
    for name in ["first", "root", "nobody"] {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{r:?}");
        say!("  {name}: {}", r.stdout.trim());
    }
    let starts = &out.step("nobody")?.stdout;
    ensure!(
        starts.contains(", 0 starts"),
        "nobody started a trace: {starts}"
    );
    let status: Value = serde_json::from_str(&out.step("status")?.stdout)?;
    ensure!(status["state"].is_number(), "{status}");
    let free = |name| -> Result<i64> { Ok(out.step(name)?.stdout.trim().parse()?) };
    let (before, after) = (free("before")?, free("after")?);
    say!("  available: {before} KiB before, {after} KiB after");
    ensure!(before - after < 8 << 10, "{} KiB are lost", before - after);
    for name in ["trace", "check"] {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{r:?}");
    }
    Ok(())
}

/// `activator run` is killed at as many moments, from a seed: `off` ends the trace, or there
/// is none; what there is of a trace is good; and so is the next one.
fn kills(moments: u32, seed: u32) -> Scenario {
    Scenario {
        name: format!("activator-kills-{moments}"),
        about: "the activator is killed at any moment: the trace ends well, and so does the next",
        run: Box::new(move |kernel| run_kills(kernel, moments, seed)),
    }
}

const KILLS: &str = r#"
touch-loop 300 100 >plain
random=$seed ended=0 none=0 good=0 i=0
while [ $((i += 1)) -le $moments ]; do
	rm -f /tmp/t
	random=$(((random * 1103515245 + 12345) % 2147483648))
	ms=$((random / 65536 % 800))
	activator run -q -n 64 -o /tmp/t -- touch-loop 300 1000 >/dev/null 2>&1 & pid=$!
	sleep "0.$(printf %03d $ms)"
	kill -9 $pid 2>/dev/null || true
	wait $pid 2>/dev/null || true
	rc=0
	activator off >off 2>&1 || rc=$?
	case $rc in
	0)
		ended=$((ended + 1))
		# A killed activator leaves its unfinished file under another name, or none.
		for t in /tmp/t /tmp/.t*; do
			if [ -s "$t" ]; then postproc check "$t" >why || { echo "bad after $ms ms"; cat why; }; fi
		done
		;;
	2) none=$((none + 1)) ;;
	*) echo "off $rc after $ms ms"; cat off ;;
	esac
	rm -f /tmp/.t*
	while pidof touch-loop >/dev/null; do kill -9 $(pidof touch-loop) 2>/dev/null; sleep 0.05; done
	activator run -q -n 64 -o /tmp/third --force -- touch-loop 300 100 >traced && postproc check /tmp/third >/dev/null &&
		cmp plain traced && good=$((good + 1))
done
echo "ended $ended, none $none"
echo "good $good"
"#;

fn run_kills(kernel: &str, moments: u32, seed: u32) -> Result<()> {
    let name = format!("activator-kills-{moments}");
    let out = boot_with(
        &name,
        kernel,
        "",
        &format!("moments={moments} seed={seed}\n{KILLS}"),
    )?;
    let r = out.step(&name)?;
    all_said(r, &[&format!("good {moments}")])?;
    ensure!(r.stdout.lines().count() == 2, "{r:?}");
    say!("  {}", r.stdout.lines().next().unwrap_or_default());
    Ok(())
}
