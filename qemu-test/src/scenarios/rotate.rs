//! Traces that are written in pieces: each is good, all of them are the trace, and the newest ones
//! can be kept alone.

use super::Scenario;
use super::waits::{DISK, all_said, boot, said, took};
use crate::machine::{Machine, Outcome, Profile, debian, step};
use crate::paths;
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::Step;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A scenario's name, what it shows, and what it does.
type Script = (&'static str, &'static str, fn(&str) -> Result<()>);

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let scripts: [Script; 16] = [
        (
            "rotate",
            "pieces by size of programs that fork, execute and map: each is good, and so are all together",
            pieces,
        ),
        (
            "rotate-smp",
            "the same on two CPUs, packed, with a set for each process, while two processes rotate",
            smp,
        ),
        (
            "rotate-windows",
            "pieces of traces with windows, on two CPUs: each piece has whole windows, and all are there",
            windows,
        ),
        (
            "rotate-between",
            "the output hangs where a piece begins between windows: nobody spins, and each wait has an end",
            between,
        ),
        (
            "rotate-late",
            "each process that is made during a slow checkpoint is known in the piece after it",
            late,
        ),
        (
            "rotate-threads",
            "a checkpoint has all threads of a process, of which others end meanwhile",
            threads,
        ),
        (
            "rotate-left",
            "a checkpoint comes to a process that has left the address space of its maker, and has ended",
            left,
        ),
        (
            "control-nobirth",
            "a checkpoint that does not wait for what is being made",
            no_birth,
        ),
        (
            "control-nodescribe",
            "a copy of what a checkpoint has not described yet",
            no_describe,
        ),
        (
            "rotate-stress",
            "pieces while pages are swapped, moved and protected, and N changes: no violation",
            stress,
        ),
        (
            "rotate-keep",
            "the newest pieces are kept, and snapshots have them without a gap, up to the end",
            keep,
        ),
        (
            "rotate-on",
            "the process that `on` leaves behind: it begins pieces, ends with the trace, and can be killed",
            on,
        ),
        (
            "rotate-full",
            "there is no room for the next piece: the trace goes on in the former one, and is whole",
            full,
        ),
        (
            "rotate-frozen",
            "a directory that is frozen: no command hangs, and the trace is whole after the thaw",
            frozen,
        ),
        (
            "rotate-stop",
            "the trace ends, and callers are killed, in the middle of rotations: it is whole each time",
            stop,
        ),
        (
            "rotate-ioctl",
            "what the kernel refuses, and many rotations at a time",
            ioctl,
        ),
    ];
    let scenario = |(name, about, run): Script| Scenario {
        name: name.into(),
        about,
        run: Box::new(run),
    };
    scripts.into_iter().map(scenario).collect()
}

fn run(kernel: &str, name: &str, profile: Profile, steps: Vec<Step>) -> Result<Outcome> {
    run_with(kernel, name, profile, "", steps)
}

/// The same, with more on the kernel's command line.
pub(super) fn run_with(
    kernel: &str,
    name: &str,
    profile: Profile,
    cmdline: &str,
    steps: Vec<Step>,
) -> Result<Outcome> {
    Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile,
        image: true,
        cmdline: cmdline.into(),
        files: vec![],
        steps,
        deadline_s: 1500,
    }
    .run()
}

/// Sends directories to the host, as `unpacked` finds them.
pub(super) fn send(slot: usize, directories: &str) -> Step {
    debian(
        &format!("send {slot}"),
        &format!("tar cf /tmp/sent.tar -C /tmp {directories} && keep {slot} /tmp/sent.tar"),
    )
}

/// The directories that a guest has sent.
pub(super) fn unpacked(out: &Outcome, slot: usize) -> Result<PathBuf> {
    let step = format!("send {slot}");
    let r = out.step(&step)?;
    ensure!(r.rc == 0, "{r:?}");
    let tar = out.kept(slot, &format!("{slot}.tar"))?;
    let to = out.dir.join(format!("sent-{slot}"));
    // What an earlier run has left is none of this one's.
    let _ = fs::remove_dir_all(&to);
    fs::create_dir(&to)?;
    let done = Command::new("tar")
        .arg("xf")
        .arg(&tar)
        .arg("-C")
        .arg(&to)
        .status()
        .context("tar")?;
    ensure!(done.success(), "tar: {done}");
    Ok(to)
}

/// The number of the last of some pieces, which come in order.
pub(super) fn newest(pieces: &[Piece]) -> u64 {
    pieces.last().map_or(0, |piece| piece.number)
}

/// A piece, as it says itself.
pub(super) struct Piece {
    pub(super) number: u64,
    first_seq: u64,
    pub(super) next_seq: Option<u64>,
    is_last: bool,
}

/// The pieces in a directory, which has nothing else. Each passes its check, and they follow each
/// other without a gap.
pub(super) fn good_pieces(directory: &Path) -> Result<Vec<Piece>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    let mut pieces: Vec<Piece> = Vec::new();
    for name in &names {
        let path = directory.join(name);
        let (rc, _) = postproc::json(&["check", "--frames"], &path)?;
        ensure!(rc == 0, "{name}: {}", postproc::explain(&path));
        let (_, info) = postproc::json(&["info"], &path)?;
        let told = &info["piece"];
        let figure = |value: &Value| value.as_u64();
        let piece = Piece {
            number: figure(&told["number"]).with_context(|| format!("{name}: {told}"))?,
            first_seq: figure(&told["first_seq"]).with_context(|| format!("{name}: {told}"))?,
            next_seq: figure(&told["end"]["next_seq"]),
            is_last: told["end"]["is_last"] == true,
        };
        ensure!(*name == format!("{:05}.vmtrace", piece.number), "{names:?}");
        if let Some(before) = pieces.last() {
            ensure!(
                before.number + 1 == piece.number && before.next_seq == Some(piece.first_seq),
                "{name} does not follow the piece before it: {told}"
            );
        }
        pieces.push(piece);
    }
    ensure!(!pieces.is_empty(), "{} is empty", directory.display());
    Ok(pieces)
}

/// A directory that has a whole trace: so are its pieces, so is the directory, and so is what `join`
/// makes of it. Gives the number of pieces.
pub(super) fn whole(directory: &Path) -> Result<usize> {
    let pieces = good_pieces(directory)?;
    ensure!(
        pieces[0].number == 0 && pieces.last().is_some_and(|piece| piece.is_last),
        "not all pieces are there"
    );
    let (rc, _) = postproc::json(&["check", "--frames"], directory)?;
    ensure!(rc == 0, "all pieces: {}", postproc::explain(directory));
    let joined = directory.with_extension("joined");
    let done = Command::new(paths::tool("postproc"))
        .args(["join", "-o"])
        .args([&joined, directory])
        .output()?;
    ensure!(
        done.status.success(),
        "join: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    let (rc, _) = postproc::json(&["check", "--frames"], &joined)?;
    ensure!(rc == 0, "joined: {}", postproc::explain(&joined));
    Ok(pieces.len())
}

/// The last status of a trace, which lost nothing.
fn status(out: &Outcome, step: &str) -> Result<Value> {
    let status: Value = serde_json::from_str(&out.step(step)?.stdout)?;
    ensure!(
        status["problems"].as_array().is_some_and(Vec::is_empty),
        "{status}"
    );
    Ok(status)
}

/// Programs that make and end address spaces, mappings and threads.
pub(super) const PROGRAMS: &str = "fork-storm 20; families 2 6; exec-args; munmap-remap; mremap-move; \
    mprotect-storm; file-map; brk-stack; threads; fork-storm 20";

fn pieces(kernel: &str) -> Result<()> {
    let traced = |name: &str, options: &str| {
        let script = format!(
            "activator run -q {options} --rotate 150K -o /tmp/{name} -- sh -c '{PROGRAMS}' >/dev/null"
        );
        [
            debian(name, &script),
            debian(&format!("{name} status"), "activator status --json"),
        ]
    };
    let mut steps = Vec::from(traced("plain", "-n 64 --pack=no"));
    steps.extend(traced("sets", "-n 64 --set-per process --pack"));
    steps.extend(traced(
        "vtime",
        "-n 64 --pack=no --virtual-time=60 --offsets --batch 8",
    ));
    steps.extend(traced("clock", "-n 64 --pack=no --policy clock"));
    steps.push(debian(
        "by time",
        "activator run -q -n 64 --rotate 2s -o /tmp/time -- fork-storm 40 >/dev/null",
    ));
    steps.push(send(0, "plain sets vtime clock time"));
    let out = run(kernel, "rotate", Profile::Fast, steps)?;
    for name in ["plain", "sets", "vtime", "clock", "by time"] {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{r:?}");
    }
    let sent = unpacked(&out, 0)?;
    for name in ["plain", "sets", "vtime", "clock"] {
        let status = status(&out, &format!("{name} status"))?;
        let count = whole(&sent.join(name)).with_context(|| name.to_owned())?;
        say!("  {name}: {count} pieces of {} bytes", status["stored"]);
        ensure!(count >= 3, "{name}: only {count} pieces");
        ensure!(status["piece"] == count - 1, "{name}: {status}");
    }
    let count = whole(&sent.join("time")).context("by time")?;
    say!("  by time: {count} pieces");
    Ok(())
}

/// The activator rotates, and so does somebody else.
const SMP: &str = r#"
activator run -q -n 64 --set-per process --pack=zstd --rotate 64k --status-file /tmp/status -o /tmp/pieces -- \
	sh -c 'families 3 40; families 2 10 & families 2 10; wait' >out & run=$!
by_hand=0
while kill -0 $run 2>/dev/null; do
	activator rotate >rotated 2>&1 && by_hand=$((by_hand + 1)) || cat rotated
	sleep 0.1
done
wait $run || echo "run $?"
cat out
echo "by hand $by_hand"
cp /tmp/status status
echo "problems $(grep -c '"problems":\[\]' status)"
"#;

fn smp(kernel: &str) -> Result<()> {
    let steps = vec![
        debian("rotate-smp", &format!("{DISK}{SMP}")),
        send(0, "pieces"),
    ];
    let out = run(kernel, "rotate-smp", Profile::Smp, steps)?;
    let r = out.step("rotate-smp")?;
    all_said(r, &["3 families of 3", "2 families of 2", "problems 1"])?;
    ensure!(!r.stdout.contains("run "), "{r:?}");
    let by_hand: u32 = said(r, "by hand")?.parse()?;
    let count = whole(&unpacked(&out, 0)?.join("pieces"))?;
    say!("  {count} pieces, {by_hand} of them begun by `activator rotate`");
    ensure!(count > 8 && by_hand > 2, "{r:?}");
    Ok(())
}

/// Windows by time and by references, one behind the other and with time between them; and on request,
/// where a piece is asked for in each window. The first of these is longer than any wait for the output.
const WINDOWS: [(&str, &str, &str); 4] = [
    (
        "time",
        "--trace 30ms --skip 10ms --rotate 64K --pack=no",
        "families 3 8; families 2 5 & families 2 5; wait",
    ),
    (
        "next",
        "--trace 500 --skip 0ms --rotate 64K --set-per process --pack",
        "families 3 8; threads; fork-storm 20",
    ),
    (
        "some",
        "--trace 20ms --skip 0ms --repeat 3 --rotate 200ms --policy clock",
        "families 3 12",
    ),
    (
        "asked",
        "--paused --rotate 1G --virtual-time=60",
        "for i in 1 2 3 4 5; do activator resume; families 2 2; activator rotate & turn=$!; \
         [ $i = 1 ] && sleep 12; activator pause; wait $turn || exit 9; done",
    ),
];

fn windows(kernel: &str) -> Result<()> {
    let mut steps = Vec::new();
    for (name, options, programs) in WINDOWS {
        let script = format!(
            "activator run -q -n 64 {options} -o /tmp/{name} -- sh -c '{programs}' >/dev/null"
        );
        steps.push(debian(name, &script));
        let name = format!("{name} status");
        steps.push(debian(&name, "activator status --json"));
    }
    let names = WINDOWS.map(|(name, ..)| name);
    steps.push(send(0, &names.join(" ")));
    let out = run(kernel, "rotate-windows", Profile::Smp, steps)?;
    let sent = unpacked(&out, 0)?;
    for name in names {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{r:?}");
        let status = status(&out, &format!("{name} status"))?;
        let directory = sent.join(name);
        let count = whole(&directory).with_context(|| name.to_owned())?;
        let windows_of = |path: &Path| -> Result<Vec<Value>> {
            let (_, info) = postproc::json(&["info"], path)?;
            let list = info["windows"].as_array();
            Ok(list.with_context(|| info.to_string())?.clone())
        };
        let all = windows_of(&directory)?;
        let mut apart = Vec::new();
        for piece in 0..count {
            let path = directory.join(format!("{piece:05}.vmtrace"));
            let (_, info) = postproc::json(&["info"], &path)?;
            ensure!(info["piece"]["is_middle"] == false, "{name}: {info}");
            apart.extend(windows_of(&path)?);
        }
        say!("  {name}: {count} pieces, {} windows", all.len());
        ensure!(
            status["windows_ended"] == all.len() && all.len() == apart.len(),
            "{name}: {} windows, {} in all pieces: {status}",
            all.len(),
            apart.len()
        );
        let least = if name == "asked" { 6 } else { 2 };
        ensure!(
            count >= least && status["piece"] == count - 1,
            "{name}: {status}"
        );
    }
    Ok(())
}

/// Pieces begin while processes are made that have smaller ids than their makers, by fork, vfork and
/// exec. A checkpoint comes to processes by id. Its visit is slow, and so are the moments in which an
/// address space has its number, and no task that the visit can find. Gives the pieces.
fn slowly(kernel: &str, name: &str, cmdline: &str) -> Result<PathBuf> {
    let line = "/bin/activator run -q -n 64 --rotate 200ms -o /tmp/pieces -- /bin/small-ids 40";
    let steps = vec![
        step("late", &["/bin/races", "late", "1,600000,16"]),
        step("traced", &line.split(' ').collect::<Vec<_>>()),
        send(0, "pieces"),
    ];
    let out = run_with(kernel, name, Profile::Smp, cmdline, steps)?;
    for name in ["late", "traced"] {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{r:?}");
    }
    Ok(unpacked(&out, 0)?.join("pieces"))
}

/// The first piece is on a file system that is frozen, and the next one is not. So kvmtraced hangs when
/// it ends the first piece, and the thread of the trace waits for it between windows.
const BETWEEN: &str = r#"
touch-loop 600 100000000 & work=$!
activator on --pid $work -n 64 --paused --rotate 1G -o /tmp/x/p >/dev/null
activator resume
activator pause
# All records of the window are written.
until activator status --json | grep -q '"windows_ended":1[,}]'; do sleep 0.1; done
fsfreeze -f /tmp/x
took() {
	key=$1
	shift
	start=$(now)
	timeout 40 "$@" >/tmp/said 2>&1 && code=0 || code=$?
	echo "$key $code $(since $start) $(tr '
' ' ' </tmp/said)"
}
took rotate rotations one /tmp/next
# Clock ticks of 10 ms that the two threads of the trace run in two seconds.
ticks() {
	for pid in $(pgrep '^(kvmtraced|vmtrace_session)'); do cut -d' ' -f14,15 /proc/$pid/stat; done |
		awk '{n += $1 + $2} END {print n}'
}
before=$(ticks)
sleep 2
echo "ticks $(($(ticks) - before))"
echo "threads $(pgrep -c '^(kvmtraced|vmtrace_session)')"
took resume sh -c 'echo resume >/dev/vmtrace'
took status activator status
took off activator off
fsfreeze -u /tmp/x
until activator status --json | grep -q '"state":0'; do activator off >/dev/null 2>&1 || true; sleep 0.1; done
kill $work
activator status --json >status
lost
mkdir /tmp/both
mv /tmp/x/p/00000.vmtrace /tmp/both
mv /tmp/next /tmp/both/00001.vmtrace
postproc check /tmp/both >/dev/null && echo whole
"#;

fn between(kernel: &str) -> Result<()> {
    let out = boot("rotate-between", kernel, BETWEEN)?;
    let r = out.step("rotate-between")?;
    all_said(r, &["threads 2", "lost 0", "whole"])?;
    let ticks: u64 = said(r, "ticks")?.parse()?;
    say!("  {ticks} of 200 ticks");
    ensure!(ticks < 40, "the threads of the trace spin: {r:?}");
    // A command, its exit code, and the most seconds that it may take: `off` tries ten times.
    for (key, code, most) in [
        ("rotate", "0", 5.0),
        ("resume", "1", 5.0),
        ("status", "0", 3.0),
        ("off", "1", 25.0),
    ] {
        let text = said(r, key)?;
        let mut words = text.split(' ');
        let (found, seconds) = (words.next(), words.next().unwrap_or_default());
        say!("  {key}: {seconds} s");
        let seconds: f64 = seconds.parse().with_context(|| text.to_owned())?;
        ensure!(
            found == Some(code) && seconds < most,
            "{key}, {code} in {most} s: {text}"
        );
    }
    ensure!(said(r, "rotate")?.contains("EINPROGRESS"), "{r:?}");
    Ok(())
}

/// One checkpoint, which begins the second piece, was made and compared. How many more there are depends on
/// the host, for each of them is slow.
const CHECKED: usize = 2;

fn late(kernel: &str) -> Result<()> {
    let count = whole(&slowly(kernel, "rotate-late", "")?)?;
    say!("  {count} pieces");
    ensure!(count >= CHECKED, "only {count} pieces");
    Ok(())
}

/// Processes are made by vfork(), execute, and end, while a visit that has found them sleeps.
fn left(kernel: &str) -> Result<()> {
    let line = "/bin/activator run -q -n 256 --rotate 100ms -o /tmp/pieces -- /bin/zombies 50";
    let steps = vec![
        step("late", &["/bin/races", "late", "1,400000,60"]),
        step("traced", &line.split(' ').collect::<Vec<_>>()),
        send(0, "pieces"),
    ];
    let out = run(kernel, "rotate-left", Profile::Smp, steps)?;
    all_said(out.step("traced")?, &["200 processes have ended"])?;
    let count = whole(&unpacked(&out, 0)?.join("pieces"))?;
    say!("  {count} pieces");
    ensure!(count >= CHECKED, "only {count} pieces");
    Ok(())
}

fn threads(kernel: &str) -> Result<()> {
    let line = "/bin/activator run -q -n 256 --rotate 100ms -o /tmp/pieces -- /bin/throng 3";
    // What comes between two parts of the threads, if they are visited in parts, takes 5 to 10 ms.
    let steps = vec![
        step("late", &["/bin/races", "late", "1,400000,16"]),
        step("traced", &line.split(' ').collect::<Vec<_>>()),
        send(0, "pieces"),
    ];
    let out = run(kernel, "rotate-threads", Profile::Smp, steps)?;
    all_said(out.step("traced")?, &["360 threads"])?;
    let count = whole(&unpacked(&out, 0)?.join("pieces"))?;
    say!("  {count} pieces");
    ensure!(count >= CHECKED, "only {count} pieces");
    Ok(())
}

/// Without a protection, there is a piece that lacks something.
fn lacks(kernel: &str, name: &str) -> Result<()> {
    let protection = name.trim_start_matches("control-");
    let pieces = slowly(kernel, name, &format!("vmtrace_break={protection}"))?;
    let (mut bad, mut all) = (0, 0);
    for entry in fs::read_dir(pieces)? {
        let (rc, _) = postproc::json(&["check"], &entry?.path())?;
        all += 1;
        bad += u32::from(rc != 0);
    }
    say!("  {bad} of {all} pieces are bad");
    ensure!(bad > 0, "the control shows nothing");
    Ok(())
}

fn no_birth(kernel: &str) -> Result<()> {
    lacks(kernel, "control-nobirth")
}

fn no_describe(kernel: &str) -> Result<()> {
    lacks(kernel, "control-nodescribe")
}

fn stress(kernel: &str) -> Result<()> {
    let line = "/bin/activator run -q -n 256 --max 4096 --rotate 150k,300ms -o /tmp/pieces -- \
                /bin/mixed-stress 60000";
    let mut traced = step("traced", &line.split(' ').collect::<Vec<_>>());
    traced.timeout_s = 900;
    let steps = vec![
        traced,
        step("status", &["/bin/activator", "status", "--json"]),
        send(0, "pieces"),
    ];
    let out = run(kernel, "rotate-stress", Profile::Smp, steps)?;
    all_said(out.step("traced")?, &["all values right"])?;
    let status = status(&out, "status")?;
    let count = whole(&unpacked(&out, 0)?.join("pieces"))?;
    say!("  {count} pieces, {} admissions", status["admissions"]);
    ensure!(count >= 3, "only {count} pieces");
    Ok(())
}

/// The pieces are in memory, and one kind of snapshots is on another file system.
const KEEP: &str = r#"
mkdir /tmp/y
mount -t tmpfs none /tmp/y
activator run -n 64 --pack=no --rotate 150K --keep 450K --snapshot-on 'exit:!0' --snapshot-on signal:USR2 --snapshots /tmp/x/s \
	-o /tmp/y/pieces -- sh -c 'touch /tmp/begun; while [ ! -e /tmp/go ]; do fork-storm 5; done; families 2 4; exit 3' \
	>/dev/null 2>err & run=$!
until [ -e /tmp/y/pieces/00006.vmtrace ]; do sleep 0.2; done
most=0
i=0
while [ $((i += 1)) -le 20 ]; do
	kib=$(du -sk /tmp/y/pieces | cut -f1)
	[ $kib -le $most ] || most=$kib
	sleep 0.1
done
echo "most-kib $most"
activator snapshot /tmp/y/manual
echo "links $(stat -c %h "$(ls /tmp/y/manual/* | tail -n 1)")"
activator snapshot --json /tmp/x/copied >status
echo "copied $(field copied_bytes)"
rc=0
activator snapshot /tmp/y/manual 2>why || rc=$?
echo "again $rc"
# It is killed while it copies.
i=0
while [ $((i += 1)) -le 10 ]; do
	activator snapshot /tmp/x/half >/dev/null 2>&1 & snapshot=$!
	sleep 0.0$i
	kill -TERM $snapshot 2>/dev/null || true
	wait $snapshot 2>/dev/null || true
	rm -rf /tmp/x/half
done
echo "left $(ls -A /tmp/x | grep -c half || true)"
kill -USR2 $run
until [ -e /tmp/x/s/00000 ]; do sleep 0.1; done
touch /tmp/go
rc=0
wait $run || rc=$?
echo "run $rc"
grep -o 'because of [^,]*' err
echo "first $(ls /tmp/y/pieces | head -n 1)"
mkdir /tmp/sent
cp -r /tmp/y/pieces /tmp/y/manual /tmp/x/copied /tmp/x/s/00000 /tmp/x/s/00001 /tmp/sent
"#;

fn keep(kernel: &str) -> Result<()> {
    let steps = vec![
        debian("rotate-keep", &format!("{DISK}{KEEP}")),
        send(0, "sent"),
    ];
    let out = run(kernel, "rotate-keep", Profile::Smp, steps)?;
    let r = out.step("rotate-keep")?;
    all_said(
        r,
        &[
            "again 2",
            "left 0",
            "links 2",
            "run 3",
            "because of a signal",
            "because of the exit code 3",
        ],
    )?;
    ensure!(said(r, "first")? != "00000.vmtrace", "{r:?}");
    ensure!(said(r, "copied")?.parse::<u64>()? > 450 << 10, "{r:?}");
    // 450 KiB, a piece more that is complete, and the present one, each of them larger than it is
    // to be by what a description has, and by what comes before a busy host begins the next one.
    let most: u64 = said(r, "most-kib")?.parse()?;
    say!("  at most {most} KiB are kept");
    ensure!((450..10_000).contains(&most), "{r:?}");
    let sent = unpacked(&out, 0)?.join("sent");
    let mut ends = Vec::new();
    for name in ["manual", "copied", "00000", "00001", "pieces"] {
        let directory = sent.join(name);
        let pieces = good_pieces(&directory).with_context(|| name.to_owned())?;
        let bytes: u64 = fs::read_dir(&directory)?
            .map(|e| Ok(e?.metadata()?.len()))
            .sum::<Result<u64>>()?;
        say!("  {name}: {} pieces, {bytes} bytes", pieces.len());
        ensure!(bytes >= 450 << 10, "{name}: only {bytes} bytes");
        let last = pieces.last().context("no pieces")?;
        ends.push((last.number, last.is_last));
    }
    let reach: Vec<_> = ends.iter().map(|end| end.1).collect();
    ensure!(reach == [false, false, false, true, true], "{ends:?}");
    ensure!(ends.is_sorted(), "{ends:?}");
    Ok(())
}

/// `only`: nothing but pieces is in a directory. `busy`: a program that makes less than a megabyte
/// of records in a second, because the disk has 64. Who has lost its parent stays a zombie here.
pub(super) const ONLY: &str = r#"
alive() { [ -e /proc/$1/stat ] && ! grep -q ') Z ' /proc/$1/stat; }
busy() { sh -c 'while :; do touch-loop 300 20 >/dev/null; sleep 0.2; done' & pid=$!; }
only() { [ -z "$(ls -A $1 | grep -v '^[0-9]*[.]vmtrace$')" ] || ls -A $1; }
pieces() { ls /tmp/x/$1 | wc -l; }
until_pieces() { until [ "$(pieces $1)" -ge $2 ]; do sleep 0.1; done; }
good() { postproc check --frames "$1" >why && echo "$2" || cat why; }
"#;

const ON: &str = r#"
busy
trap 'kill $pid' EXIT
activator on --pid $pid -n 64 --pack=no --rotate 300K -o /tmp/x/p >on
keeper=$(sed -n 's/.*; process \([0-9]*\) begins pieces.*/\1/p' on)
alive $keeper && echo "keeper"
until_pieces p 4
activator status | grep -q 'nobody rotates' || echo "somebody"
activator status --json >status
grep -q '"rotated_by_somebody":true' status && echo "json"
activator rotate
start=$(now)
activator off >off
echo "off-seconds $(since $start)"
alive $keeper && echo "left behind"
only /tmp/x/p
good /tmp/x/p "first"
# Killed, it is missed by nobody but the pieces.
activator on --pid $pid -n 64 --pack=no --rotate 300K -o /tmp/x/q >on
keeper=$(sed -n 's/.*; process \([0-9]*\) begins pieces.*/\1/p' on)
until_pieces q 3
kill -9 $keeper
sleep 1
activator status | grep -o 'nobody rotates this trace'
before=$(pieces q)
sleep 2
[ "$(pieces q)" = $before ] && echo "no more"
activator rotate >/dev/null && activator rotate >/dev/null && echo "by hand"
[ "$(pieces q)" = $((before + 2)) ] && echo "two more"
activator off >/dev/null && echo "off"
only /tmp/x/q
good /tmp/x/q "second"
# All processes but the one that begins the pieces.
activator on --all -n 256 --pack=no --rotate 1M --snapshot-on signal:USR1 -o /tmp/x/all >on
keeper=$(sed -n 's/.*; process \([0-9]*\) begins pieces.*/\1/p' on)
until_pieces all 4
kill -USR1 $keeper
until [ -e /tmp/x/all.snapshots/00000 ]; do sleep 0.1; done
activator off >/dev/null && echo "off all"
only /tmp/x/all
good /tmp/x/all "third"
# What a traced program exits with.
sh -c 'until [ -e /tmp/end ]; do sleep 0.1; done; touch-loop 600 3 >/dev/null; exit 7' & short=$!
activator on --pid $short -n 64 --rotate 1G --snapshot-on exit:7 -o /tmp/x/e >/dev/null
touch /tmp/end
wait $short || echo "exits $?"
i=0
until [ -e /tmp/x/e.snapshots/00000 ] || [ $((i += 1)) -gt 100 ]; do sleep 0.1; done
ls /tmp/x/e.snapshots
activator off >/dev/null
good /tmp/x/e.snapshots/00000/00000.vmtrace "fourth"
"#;

fn on(kernel: &str) -> Result<()> {
    let out = boot("rotate-on", kernel, &format!("{ONLY}{ON}"))?;
    let r = out.step("rotate-on")?;
    all_said(
        r,
        &[
            "keeper",
            "somebody",
            "json",
            "first",
            "nobody rotates this trace",
            "no more",
            "by hand",
            "two more",
            "off",
            "second",
            "off all",
            "third",
            "exits 7",
            "00000",
            "fourth",
        ],
    )?;
    ensure!(!r.stdout.contains("left behind"), "{r:?}");
    ensure!(!r.stdout.contains(".keeper.log"), "{r:?}");
    took(r, "off-seconds", 0.0, 20.0)
}

/// A file system without room is mounted over the directory, so that the kernel still has the former
/// piece.
const FULL: &str = r#"
mkdir /tmp/full
mount -t tmpfs -o size=16k none /tmp/full
dd if=/dev/zero of=/tmp/full/.fill bs=4k 2>/dev/null || true
fill() { mount --bind /tmp/full $1; }
activator run -q -n 64 --rotate 200ms -o /tmp/x/p -- \
	sh -c 'while [ ! -e /tmp/go ]; do touch-loop 300 20; sleep 0.2; done; exit 3' >/dev/null 2>err & run=$!
until_pieces p 2
fill /tmp/x/p
until grep -q 'no piece begins' err; do sleep 0.1; done
rc=0
activator rotate 2>why || rc=$?
echo "rotate $rc"
grep -o 'no room for' why
sleep 5
ls /tmp/x/p
umount -l /tmp/x/p
before=$(pieces p)
until_pieces p $((before + 2))
echo "goes on"
touch /tmp/go
rc=0
wait $run || rc=$?
echo "run $rc"
sed 's/[0-9]*$/N/; s/^/err /' err
only /tmp/x/p
good /tmp/x/p "first"
rm /tmp/go
activator run -q -n 64 --rotate 200ms --status-file status -o /tmp/x/q -- \
	sh -c 'while [ ! -e /tmp/go ]; do touch-loop 300 20; sleep 0.2; done; exit 3' >/dev/null 2>err & run=$!
until_pieces q 2
fill /tmp/x/q
until grep -q 'no piece begins' err; do sleep 0.1; done
touch /tmp/go
rc=0
wait $run || rc=$?
echo "still-full $rc"
tail -n 1 err | grep -o 'the last one, too: no room\|the trace is whole'
umount -l /tmp/x/q
only /tmp/x/q
good /tmp/x/q "second"
lost
"#;

fn full(kernel: &str) -> Result<()> {
    let out = boot("rotate-full", kernel, &format!("{ONLY}{FULL}"))?;
    let r = out.step("rotate-full")?;
    all_said(
        r,
        &[
            "rotate 2",
            "no room for",
            "goes on",
            "run 3",
            "first",
            "still-full 2",
            "the last one, too: no room",
            "the trace is whole",
            "second",
            "lost 0",
        ],
    )?;
    let told = r
        .stdout
        .lines()
        .filter(|l| l.starts_with("err ") && l.contains("no piece begins"));
    ensure!(told.count() == 1, "told more than once: {r:?}");
    Ok(())
}

const FROZEN: &str = r#"
busy
activator on --pid $pid -n 64 --stall-limit 10min --rotate 1G -o /tmp/x/p >/dev/null
activator rotate >/dev/null
fsfreeze -f /tmp/x
start=$(now)
rc=0
activator rotate 2>why || rc=$?
echo "rotate $rc"
grep -o 'may be frozen' why
echo "rotate-seconds $(since $start)"
start=$(now)
activator status | grep -o 'piece  *1,'
echo "status-seconds $(since $start)"
fsfreeze -u /tmp/x
i=0
until [ "$(pieces p)" = 2 ] || [ $((i += 1)) -gt 50 ]; do sleep 0.1; done
activator rotate >/dev/null && echo "again"
# The kernel has the file, and can't write to it.
: >/tmp/x/p/00003.vmtrace
timeout -s KILL 100 python3 - <<'END'
import fcntl, os, struct, subprocess, errno
fd = os.open("/tmp/x/p/00003.vmtrace", os.O_WRONLY)
device = os.open("/dev/vmtrace", os.O_RDWR)
argument = struct.pack("<Ii256s", 264, fd, b"/tmp/x/p/00003.vmtrace")
request = 1 << 30 | 264 << 16 | 0xb7 << 8 | 6
def rotate():
    try:
        fcntl.ioctl(device, request, argument)
        return "0"
    except OSError as e:
        return errno.errorcode[e.errno]
subprocess.check_call(["fsfreeze", "-f", "/tmp/x"])
print("frozen", rotate())
print("other", rotate())
subprocess.check_call(["fsfreeze", "-u", "/tmp/x"])
END
i=0
until activator status | grep -q 'piece  *3,' || [ $((i += 1)) -gt 100 ]; do sleep 0.1; done
activator rotate
kill $pid
activator off >/dev/null && echo "off"
only /tmp/x/p
good /tmp/x/p "whole"
"#;

fn frozen(kernel: &str) -> Result<()> {
    let out = boot("rotate-frozen", kernel, &format!("{ONLY}{FROZEN}"))?;
    let r = out.step("rotate-frozen")?;
    all_said(
        r,
        &[
            "rotate 2",
            "may be frozen",
            "again",
            "frozen EINPROGRESS",
            "other EBUSY",
            "/tmp/x/p/00003.vmtrace",
            "off",
            "whole",
        ],
    )?;
    took(r, "rotate-seconds", 4.0, 30.0)?;
    took(r, "status-seconds", 0.0, 5.0)
}

/// In each round, the trace ends at another moment. In each second one, callers are killed before.
const STOP: &str = r#"
families 1 200 >/dev/null & busy=$!
random=1 i=0 whole=0 ended=0 several=0
while [ $((i += 1)) -le 16 ]; do
	busy
	activator on --pid $pid -n 64 --rotate 100ms -o /tmp/x/p$i >on
	keeper=$(sed -n 's/.*; process \([0-9]*\) begins pieces.*/\1/p' on)
	( while activator rotate; do :; done >/dev/null 2>&1 ) & rotates=$!
	if [ $((i % 2)) = 0 ]; then
		k=0
		while [ $((k += 1)) -le 6 ]; do
			activator rotate >/dev/null 2>&1 & victim=$!
			sleep 0.0$((k * 3 % 10))
			kill -9 $victim 2>/dev/null || true
			wait $victim 2>/dev/null || true
		done
	fi
	[ $((i % 4)) != 0 ] || kill -9 $keeper
	random=$(((random * 1103515245 + 12345) % 2147483648))
	sleep "0.$(printf %03d $((random / 65536 % 900)))"
	activator off >off 2>&1 && ended=$((ended + 1)) || cat off
	wait $rotates || true
	[ $((i % 4)) = 0 ] || ! alive $keeper || echo "left behind"
	kill -9 $pid
	only /tmp/x/p$i
	[ "$(pieces p$i)" -lt 2 ] || several=$((several + 1))
	postproc check --frames /tmp/x/p$i >why && whole=$((whole + 1)) || { echo "bad $i"; cat why; }
	rm -rf /tmp/x/p$i
done
kill -9 $busy 2>/dev/null || true
echo "ended $ended"
echo "whole $whole"
echo "several $several"
activator run -q -n 64 -o /tmp/third -- true && good /tmp/third third
"#;

fn stop(kernel: &str) -> Result<()> {
    let out = boot("rotate-stop", kernel, &format!("{ONLY}{STOP}"))?;
    let r = out.step("rotate-stop")?;
    all_said(r, &["ended 16", "whole 16", "third"])?;
    ensure!(!r.stdout.contains("left behind"), "{r:?}");
    let several: u32 = said(r, "several")?.parse()?;
    say!("  {several} of 16 traces have several pieces");
    ensure!(several > 8, "{r:?}");
    Ok(())
}

const IOCTL: &str = r#"
rotations refused
rotations nobody
only /tmp/rotations
good /tmp/rotations "refused is good"
busy
activator on --pid $pid -n 64 --rotate 1G -o /tmp/x/p >/dev/null
rotations many 4 15
activator off >/dev/null && echo "off"
kill $pid
only /tmp/x/p
good /tmp/x/p "many is good"
"#;

fn ioctl(kernel: &str) -> Result<()> {
    let out = boot("rotate-ioctl", kernel, &format!("{ONLY}{IOCTL}"))?;
    let r = out.step("rotate-ioctl")?;
    all_said(
        r,
        &[
            "off ENODATA",
            "unwritten EINVAL",
            // In pieces, too, but there is no trace from boot.
            "early ENODATA",
            "unknown EINVAL",
            "whole start 0",
            "whole EOPNOTSUPP",
            "whole stop 0",
            "pieces start 0",
            "none EBADF",
            "closed EBADF",
            "reader EBADF",
            "null EINVAL",
            "directory EBADF",
            "pipe EINVAL",
            "small EINVAL",
            "short EINVAL",
            "long EINVAL",
            "nothing EINVAL",
            "unterminated EINVAL",
            "address EFAULT",
            "other EINVAL",
            "piece 0",
            "good 0",
            "piece 1 in /tmp/rotations/00001.vmtrace",
            "pieces stop 0",
            "over ENODATA",
            "nobody EPERM",
            "refused is good",
            "rotated 60",
            "piece 60",
            "off",
            "many is good",
        ],
    )?;
    say!(
        "  60 rotations of 4 threads; {} came while another one was under way, {} during an exec",
        said(r, "busy")?,
        said(r, "again")?
    );
    Ok(())
}
