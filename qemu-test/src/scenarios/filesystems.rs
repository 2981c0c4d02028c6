//! File systems whose reads and writes take paths of their own, with the flavour `wide`: btrfs,
//! gfs2, and NFS, whose server is the kernel of the same guest. Programs run there untraced and
//! traced with the same output, the events have all that is read and written, and the traces
//! themselves go there. And a trace on NFS whose server stops, or can't be reached.

use super::Scenario;
use super::corners::Seen;
use super::files;
use super::waits::{all_said, boot as boot_disk, said, took};
use crate::machine::{Machine, Outcome, Profile, debian, step};
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::Step;
use serde_json::Value;

const BASE: u64 = 0x1000_0000_0000;

/// All of them, which need the flavour `wide`.
pub fn full() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "wide-btrfs".into(),
            about: "programs, their files and their traces on btrfs, also with compression",
            run: Box::new(btrfs),
        },
        Scenario {
            name: "wide-btrfs-search".into(),
            about: "searches in trees of btrfs, with buffers and items of more pages than the set has",
            run: Box::new(search),
        },
        Scenario {
            name: "wide-gfs2".into(),
            about: "programs, their files and their traces on gfs2",
            run: Box::new(gfs2),
        },
        Scenario {
            name: "wide-gfs2-extents".into(),
            about: "extents of a file on gfs2, into arrays of more pages than the set has",
            run: Box::new(extents),
        },
        Scenario {
            name: "wide-nfs".into(),
            about: "programs, their files and their traces on NFS, with its server in the same guest",
            run: Box::new(nfs),
        },
        Scenario {
            name: "wide-nfs-direct".into(),
            about: "requests that are queued and bypass the cache of NFS have the right offsets",
            run: Box::new(direct),
        },
        Scenario {
            name: "wide-nfs-stopped".into(),
            about: "the trace goes to NFS whose server stops: all go on, the loss is counted",
            run: Box::new(stopped),
        },
        Scenario {
            name: "wide-nfs-away".into(),
            about: "the trace goes to NFS whose server can't be reached for a while: it is whole",
            run: Box::new(away),
        },
    ]
}

/// Programs that lie in the file system, and write, read and map files there.
const PROGRAMS: &str = "set -e; cd /tmp/x; \
    cp /opt/kvmtrace/bin/fuse /opt/kvmtrace/bin/file-map .; sync; \
    echo 3 >/proc/sys/vm/drop_caches; ./fuse use /tmp/x; ./file-map /tmp/x";

const BTRFS: &str = "mkfs.btrfs -q -f /dev/trace && mkdir -p /tmp/x && mount /dev/trace /tmp/x";

/// From here on, what is written is compressed; the traces, too.
const COMPRESS: &str =
    "mount -o remount,compress-force=zstd /tmp/x && mount | grep -o compress-force";

/// The loopback device goes up or down.
macro_rules! lo {
    () => {
        r#"
lo() { python3 -c '
import fcntl, socket, struct, sys
flags = {"up": 0x49, "down": 0x48}[sys.argv[1]]
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", flags))' $1; }
"#
    };
}

/// A server of NFS: `serve` starts its threads.
macro_rules! serve {
    () => {
        concat!(
            lo!(),
            r#"
serve() { rpc.nfsd -N 3 4; }
lo up
mkdir -p /srv/x /tmp/n
mount -t nfsd nfsd /proc/fs/nfsd
"#
        )
    };
}

/// Serves /srv/x. Before a file can be opened, the server waits ten seconds for clients of an
/// earlier one.
const EXPORT: &str = r#"
exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=0 127.0.0.1:/srv/x
rpc.mountd 2>/dev/null
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
serve
"#;

const NFS: &str = concat!(
    "set -e\n",
    serve!(),
    "mkfs.ext4 -q /dev/trace\nmount /dev/trace /srv/x\n"
);

const NFS_MOUNT: &str = "mkdir -p /tmp/x\nmount -t nfs4 -o vers=4.2 127.0.0.1:/ /tmp/x\n\
    touch /tmp/x/there\nmount | grep 'type nfs4'";

const STOP: &str = "rpc.nfsd 0 && exportfs -ua && umount /srv/x";

/// What is on the disk, and not what is still in the cache.
const COLLECT: &str =
    "set -e; sync; echo 3 >/proc/sys/vm/drop_caches; cp /tmp/x/*.vmt /tmp; umount /tmp/x";

fn traced(name: &str, n: &str, program: &str) -> Step {
    let script =
        format!("/opt/kvmtrace/bin/activator run -q -n {n} -o /tmp/x/{name}.vmt -- {program}");
    debian(name, &script)
}

/// Several programs, all of whose bytes are counted. A file whose blocks are shared with
/// another one is in the events, but not in /proc/PID/io.
fn count() -> Step {
    let script = files::script("/tmp/x").replace("cp ", "cp --reflink=never ");
    Step {
        env: vec![("SCRIPT".into(), script)],
        ..traced("count", "4096", "/opt/kvmtrace/bin/count-io \"$SCRIPT\"")
    }
}

fn keep(name: &str, slot: usize) -> Step {
    let (slot, file) = (slot.to_string(), format!("/tmp/{name}.vmt"));
    step(&format!("keep {name}"), &["/bin/keep", &slot, &file])
}

fn boot(name: &str, kernel: &str, steps: Vec<Step>) -> Result<Outcome> {
    Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps,
        deadline_s: 900,
    }
    .run()
}

/// A trace that went to the file system, and its events.
fn events(out: &Outcome, slot: usize, name: &str) -> Result<Vec<Value>> {
    files::trace(out, slot, name)
}

fn same(out: &Outcome, names: &[&str]) -> Result<()> {
    let plain = out.step("plain")?;
    ensure!(
        plain.rc == 0 && plain.stdout.lines().count() == 4,
        "untraced: {plain:?}"
    );
    for name in names {
        let r = out.step(name)?;
        ensure!(
            r.rc == 0 && r.stdout == plain.stdout,
            "{r:?}, not {plain:?}"
        );
    }
    say!("  {}", plain.stdout.trim().replace('\n', ", "));
    Ok(())
}

/// The programs that lie in the file system: executed there, and their mappings recorded.
fn judge_programs(out: &Outcome, name: &str, events: &[Value]) -> Result<()> {
    let text = |e: &Value, field: &str| e[field].as_str().unwrap_or_default().to_string();
    let exec = events
        .iter()
        .find(|e| text(e, "event") == "exec" && text(e, "comm") == "file-map")
        .context("file-map was not executed")?;
    let opened = events
        .iter()
        .find(|e| text(e, "event") == "open" && text(e, "name") == "file0")
        .context("file0 was not opened")?;
    ensure!(
        exec["dev"] == opened["dev"],
        "{exec} is not where {opened} is"
    );
    let seen = Seen::read(
        &out.dir.join(format!("{name}.vmt")),
        Value::Null,
        Value::Null,
    )?;
    // It writes, reads, and writes all pages again, with fewer members.
    let refs = seen.of(BASE, 128).len();
    ensure!(
        refs >= 3 * 128,
        "{refs} references to the mapping of a file"
    );
    say!("  {name}: {refs} references to the shared mapping of a file");
    Ok(())
}

fn btrfs(kernel: &str) -> Result<()> {
    let programs = format!("sh -c '{PROGRAMS}'");
    let kept = ["used", "calls", "shared", "small", "count"];
    let mut steps = vec![
        debian("prepare", BTRFS),
        debian("plain", PROGRAMS),
        traced("used", "64", &programs),
        debian("after", PROGRAMS),
        traced("calls", "512", "/opt/kvmtrace/bin/file-calls /tmp/x"),
        traced(
            "shared",
            "512",
            "/opt/kvmtrace/bin/shared-blocks /tmp/x unpolled",
        ),
        debian("compress", COMPRESS),
        traced("small", "64", &programs),
        count(),
        debian("collect", COLLECT),
    ];
    steps.extend(kept.iter().enumerate().map(|(i, name)| keep(name, i)));
    let out = boot("wide-btrfs", kernel, steps)?;
    for name in ["prepare", "compress", "collect"] {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{r:?}");
    }
    same(&out, &["used", "after", "small"])?;
    for (slot, name) in [(0, "used"), (3, "small")] {
        judge_programs(&out, name, &events(&out, slot, name)?)?;
    }
    files::calls(&out, "calls", &events(&out, 1, "calls")?, "usual")?;
    files::shared_blocks(&out, &events(&out, 2, "shared")?)?;
    files::count_io(&out, &events(&out, 4, "count")?)
}

/// Nodes of the largest size, and so items: 60,000 bytes are up to 16 pages. Nothing changes
/// the trees after that, not even who reads.
const SEARCH: &str = "mkfs.btrfs -q -f -n 64k /dev/trace && mkdir -p /tmp/x && \
    mount -o noatime /dev/trace /tmp/x && btrfs-search make /tmp/x && sync";

/// No signal ends a call that never ends; the end of the trace does.
const LIMITED: &str = r#"
{ activator run -q -n $N -o /tmp/traced-$N.vmt -- $PROGRAM in /tmp/x $THREADS >/tmp/traced; echo "rc $?" >/tmp/rc; } &
end=$(($(date +%s) + LIMIT))
until [ -s /tmp/rc ] || [ "$(date +%s)" -gt $end ]; do sleep 0.1; done
[ -s /tmp/rc ] || { echo hangs; activator off >/dev/null 2>&1 || true; }
wait
cat /tmp/rc /tmp/traced
rm /tmp/rc
"#;

/// A trace of a program, which hangs for ever if it is not done after `limit` seconds.
fn limited(program: &str, n: u32, limit: u32) -> Step {
    Step {
        env: vec![
            ("PROGRAM".into(), program.into()),
            ("N".into(), n.to_string()),
            ("LIMIT".into(), limit.to_string()),
        ],
        timeout_s: u64::from(limit) + 200,
        ..debian(&format!("traced-{n}"), LIMITED)
    }
}

/// `prepare` makes what `program` then reads: untraced, in `traced` steps, and untraced again.
/// Keeps the trace of the step `traced-32`.
fn boot_limited(
    name: &str,
    kernel: &str,
    cmdline: &str,
    [prepare, program]: [&str; 2],
    traced: Vec<Step>,
) -> Result<Outcome> {
    let mut steps = vec![
        debian("prepare", prepare),
        debian("plain", &format!("{program} in /tmp/x")),
    ];
    steps.extend(traced);
    let last = format!("{program} in /tmp/x && umount /tmp/x");
    steps.push(debian("after", &last));
    steps.push(keep("traced-32", 0));
    let out = Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: true,
        cmdline: cmdline.into(),
        files: vec![],
        steps,
        deadline_s: 900,
    }
    .run()?;
    let (prepared, plain) = (out.step("prepare")?, out.step("plain")?);
    ensure!(prepared.rc == 0 && plain.rc == 0, "{prepared:?}, {plain:?}");
    let after = out.step("after")?;
    ensure!(after.stdout == plain.stdout, "{after:?}, not {plain:?}");
    Ok(out)
}

fn search(kernel: &str) -> Result<()> {
    let boot = |name: &str, cmdline: &str, traced: &[u32], limit: u32| {
        let steps = traced.iter().map(|n| limited("btrfs-search", *n, limit));
        let name = format!("wide-btrfs-search{name}");
        let what = [SEARCH, "btrfs-search"];
        boot_limited(&name, kernel, cmdline, what, steps.collect())
    };
    let out = boot("", "", &[64, 32], 120)?;
    let plain = &out.step("plain")?.stdout;
    say!("  {}", plain.trim().replace('\n', "\n  "));
    for n in [64, 32] {
        let r = out.step(&format!("traced-{n}"))?;
        ensure!(r.stdout == format!("rc 0\n{plain}"), "{r:?}, not {plain}");
    }
    // The second trace: whole, and each call touches each page of its buffer a few times at most.
    files::trace(&out, 0, "traced-32")?;
    let seen = Seen::read(&out.dir.join("traced-32.vmt"), Value::Null, Value::Null)?;
    let calls = |l: &str| {
        let (calls, _) = l.split_once(" 1048576: ")?.1.split_once(' ')?;
        calls.parse::<usize>().ok()
    };
    let calls: usize = plain.lines().filter_map(calls).sum();
    let refs = seen.of(BASE, 257).len();
    say!("  {refs} references to a buffer of 257 pages in {calls} calls");
    ensure!(
        (257 * calls..=4 * 257 * calls).contains(&refs),
        "{refs} references in {calls} calls"
    );
    // Without the protection.
    let out = boot("-noagain", "vmtrace_break=noagain", &[64], 30)?;
    let r = out.step("traced-64")?;
    ensure!(r.stdout.starts_with("hangs\n"), "{r:?}");
    say!("  with noagain it hangs");
    Ok(())
}

/// For one node, with a journal of the least size.
macro_rules! gfs2 {
    () => {
        "mkfs.gfs2 -q -O -p lock_nolock -j 1 -J 8 /dev/trace && mkdir -p /tmp/x && \
            mount -t gfs2 -o noatime /dev/trace /tmp/x"
    };
}

/// Nothing changes the file system after that.
const EXTENTS: &str = concat!(gfs2!(), " && gfs2-extents make /tmp/x && sync");

fn gfs2(kernel: &str) -> Result<()> {
    let programs = format!("sh -c '{PROGRAMS}'");
    let kept = ["used", "calls", "count"];
    let mut steps = vec![
        debian("prepare", gfs2!()),
        debian("plain", PROGRAMS),
        traced("used", "64", &programs),
        debian("after", PROGRAMS),
        traced("calls", "512", "/opt/kvmtrace/bin/file-calls /tmp/x remote"),
        count(),
        debian("collect", COLLECT),
    ];
    steps.extend(kept.iter().enumerate().map(|(i, name)| keep(name, i)));
    let out = boot("wide-gfs2", kernel, steps)?;
    for name in ["prepare", "collect"] {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{r:?}");
    }
    same(&out, &["used", "after"])?;
    judge_programs(&out, "used", &events(&out, 0, "used")?)?;
    files::calls(&out, "calls", &events(&out, 1, "calls")?, "usual")?;
    files::count_io(&out, &events(&out, 2, "count")?)
}

fn extents(kernel: &str) -> Result<()> {
    let boot = |name: &str, cmdline: &str, steps: Vec<Step>| {
        let name = format!("wide-gfs2-extents{name}");
        boot_limited(&name, kernel, cmdline, [EXTENTS, "gfs2-extents"], steps)
    };
    let traced = |n: u32, limit: u32| limited("gfs2-extents", n, limit);
    // While threads touch cold pages, too; and with the least N.
    let mut beside = traced(33, 200);
    beside.env.push(("THREADS".into(), "3".into()));
    let out = boot("", "", vec![traced(64, 120), traced(32, 120), beside])?;
    let plain = &out.step("plain")?.stdout;
    say!("  {}", plain.trim().replace('\n', "\n  "));
    for n in [64, 32, 33] {
        let r = out.step(&format!("traced-{n}"))?;
        ensure!(r.stdout == format!("rc 0\n{plain}"), "{r:?}, not {plain}");
    }
    // The call, and the program afterwards, touch each page of the buffer a few times at most.
    files::trace(&out, 0, "traced-32")?;
    let seen = Seen::read(&out.dir.join("traced-32.vmt"), Value::Null, Value::Null)?;
    let refs = seen.of(BASE, 165).len();
    say!("  {refs} references to a buffer of 165 pages");
    ensure!((165..=4 * 165).contains(&refs), "{refs} references");
    // Without the protection.
    let out = boot("-noagain", "vmtrace_break=noagain", vec![traced(64, 20)])?;
    let r = out.step("traced-64")?;
    ensure!(r.stdout.starts_with("hangs\n"), "{r:?}");
    say!("  with noagain it hangs");
    Ok(())
}

fn nfs(kernel: &str) -> Result<()> {
    let programs = format!("sh -c '{PROGRAMS}'");
    let kept = ["used", "calls", "count"];
    let mut steps = vec![
        debian("prepare", &format!("{NFS}{EXPORT}{NFS_MOUNT}")),
        debian("plain", PROGRAMS),
        traced("used", "64", &programs),
        debian("after", PROGRAMS),
        traced("calls", "512", "/opt/kvmtrace/bin/file-calls /tmp/x cached"),
        count(),
        debian("collect", COLLECT),
        debian("stop", STOP),
    ];
    steps.extend(kept.iter().enumerate().map(|(i, name)| keep(name, i)));
    let out = boot("wide-nfs", kernel, steps)?;
    for name in ["prepare", "collect", "stop"] {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{r:?}");
    }
    ensure!(out.step("prepare")?.stdout.contains("type nfs4"), "no NFS");
    same(&out, &["used", "after"])?;
    judge_programs(&out, "used", &events(&out, 0, "used")?)?;
    files::calls(&out, "calls", &events(&out, 1, "calls")?, "usual")?;
    files::count_io(&out, &events(&out, 2, "count")?)
}

fn direct(kernel: &str) -> Result<()> {
    let steps = vec![
        debian("prepare", &format!("{NFS}{EXPORT}{NFS_MOUNT}")),
        traced("calls", "512", "/opt/kvmtrace/bin/file-calls /tmp/x remote"),
        debian("collect", COLLECT),
        debian("stop", STOP),
        keep("calls", 0),
    ];
    let out = boot("wide-nfs-direct", kernel, steps)?;
    for name in ["prepare", "collect", "stop"] {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{r:?}");
    }
    files::calls(&out, "calls", &events(&out, 0, "calls")?, "usual")
}

/// Each write to the output waits for the server. When it has stopped, the program goes on
/// after the stall limit, and ends; another trace can't begin, for the kernel still waits for
/// the first one's output, until the server is back.
const STOPPED: &str = r#"
mount --bind /tmp/x /srv/x
mount -t nfs4 -o vers=4.2,sync 127.0.0.1:/ /tmp/n
touch /tmp/n/there
exits 400 60 >plain
activator run -q --status-file status --stall-limit 2s -n 32 --pack=no --buffers 4 --buffer-size 4K -o /tmp/n/t -- \
	exits 400 60 >traced 2>why &
until [ "$(stat -c %s /tmp/x/t 2>/dev/null || echo 0)" -gt 100000 ]; do sleep 0.1; done
rpc.nfsd 0
start=$(now)
wait %1 || echo "rc $?"
echo "seconds $(since $start)"
cmp plain traced && echo same
sed 's/^/why /' why
lost
activator status >/dev/null || echo "status $?"
timeout 20 activator run -q -n 64 -o /tmp/second -- true || echo "second $?"
serve
i=0
until activator run -q -n 64 -o /tmp/third -- true 2>/dev/null || [ $((i += 1)) -gt 600 ]; do
	sleep 0.1
done
postproc check /tmp/third >/dev/null && echo good
postproc check /tmp/n/t >/dev/null || echo "bad $?"
touch /tmp/n/back
activator run -q -n 64 -o /tmp/n/u -- true && postproc check --frames /tmp/n/u >/dev/null && echo works
umount /tmp/n && echo unmounted
"#;

fn stopped(kernel: &str) -> Result<()> {
    let script = format!("{}{EXPORT}{STOPPED}", serve!());
    let out = boot_disk("wide-nfs-stopped", kernel, &script)?;
    let r = out.step("wide-nfs-stopped")?;
    say!("{}", r.stdout);
    all_said(
        r,
        &[
            "rc 1",
            "same",
            "status 1",
            "second 2",
            "good",
            "bad 1",
            "works",
            "unmounted",
        ],
    )?;
    took(r, "seconds", 1.0, 60.0)?;
    ensure!(said(r, "lost")?.parse::<u64>()? > 0, "{r:?}");
    ensure!(r.stdout.contains("it took no data"), "{r:?}");
    Ok(())
}

/// What is written goes to the cache, so that nothing need be lost. `off` gives up, and
/// ends the trace when the server can be reached again.
const AWAY: &str = r#"
mount --bind /tmp/x /srv/x
mount -t nfs4 -o vers=4.2 127.0.0.1:/ /tmp/n
touch /tmp/n/there
touch-loop 300 100000000 & pid=$!
activator on --pid $pid -n 64 -o /tmp/n/t >/dev/null
sleep 1
lo down
sleep 2
start=$(now)
activator off 2>off & off=$!
sleep 1.5
begin=$(now)
rc=0
activator status --json >status || rc=$?
echo "status $rc"
echo "status-seconds $(since $begin)"
wait $off || echo "off $?"
echo "off-seconds $(since $start)"
sed 's/^/said-off /' off
lo up
rc=1
i=0
until [ $rc = 0 ] || [ $((i += 1)) -gt 20 ]; do
	rc=0
	activator off >/dev/null 2>&1 || rc=$?
done
echo "back $rc"
sync
echo 3 >/proc/sys/vm/drop_caches
postproc check --frames /tmp/n/t >/dev/null && echo whole
kill $pid
activator run -q -n 64 -o /tmp/n/u -- true && postproc check --frames /tmp/n/u >/dev/null && echo works
umount /tmp/n && echo unmounted
"#;

fn away(kernel: &str) -> Result<()> {
    let script = format!("{}{EXPORT}{AWAY}", serve!());
    let out = boot_disk("wide-nfs-away", kernel, &script)?;
    let r = out.step("wide-nfs-away")?;
    say!("{}", r.stdout);
    all_said(
        r,
        &["status 0", "off 1", "back 0", "whole", "works", "unmounted"],
    )?;
    took(r, "status-seconds", 0.0, 5.0)?;
    took(r, "off-seconds", 5.0, 40.0)
}
