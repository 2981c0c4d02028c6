//! What becomes of records: they wait for room or are dropped, and they are soon on the disk.

use super::Scenario;
use super::waits::{all_said, boot, said, took};
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::StepResult;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "discard".into(),
            about: "with --mode discard no program waits for a frozen output, and all losses are counted",
            run: Box::new(discard),
        },
        Scenario {
            name: "flush".into(),
            about: "records of a program that rests are soon in the file and on the disk",
            run: Box::new(flush),
        },
    ]
}

/// In both modes, a program runs while its output is frozen, and after that. Then a program that
/// forks ends while its output is frozen.
const DISCARD: &str = r#"
small='-n 32 --pack=no --buffers 4 --buffer-size 4K'
ran() { cut -d' ' -f14,15 /proc/$pid/stat; }
until_large() { until [ "$(stat -c %s $1 2>/dev/null || echo 0)" -gt $2 ]; do sleep 0.1; done; }
for mode in block discard; do
	touch-loop 600 100000000 & pid=$!
	activator on --pid $pid --mode $mode --stall-limit 10min $small -o /tmp/x/$mode >/dev/null
	until_large /tmp/x/$mode 100000
	fsfreeze -f /tmp/x
	sleep 1
	before=$(ran)
	sleep 1
	[ "$(ran)" = "$before" ] && echo "$mode sleeps" || echo "$mode runs"
	fsfreeze -u /tmp/x
	until_large /tmp/x/$mode $(($(stat -c %s /tmp/x/$mode) + 100000))
	kill -9 $pid
	activator off --json >status 2>/dev/null && echo "$mode off 0" || echo "$mode off $?"
	for what in lost_full lost_atomic lost_io waits refs admissions renewed chances; do
		echo "$mode $what $(field $what)"
	done
	postproc check /tmp/x/$mode >/dev/null && echo "$mode check 0" || echo "$mode check $?"
	postproc check --allow-loss /tmp/x/$mode >/dev/null && echo "$mode allowed 0" || echo "$mode allowed $?"
	postproc info /tmp/x/$mode | sed -n "s/^ *ring .*, /$mode ring /p"
	rm /tmp/x/$mode
done
activator run -q --mode discard $small -o /tmp/x/forks -- \
	sh -c 'while [ ! -e /tmp/frozen ]; do fork-storm; done; fork-storm; touch /tmp/ended' >/dev/null 2>&1 & run=$!
until_large /tmp/x/forks 20000
fsfreeze -f /tmp/x
touch /tmp/frozen
start=$(now)
until [ -e /tmp/ended ]; do sleep 0.1; done
echo "forks $(since $start)"
fsfreeze -u /tmp/x
wait $run || echo "run $?"
postproc check --allow-loss /tmp/x/forks >/dev/null || echo "forks check $?"
"#;

/// A figure of a trace.
fn figure(r: &StepResult, key: &str) -> Result<u64> {
    let text = said(r, key)?;
    text.parse().with_context(|| format!("{key}: {text}"))
}

fn discard(kernel: &str) -> Result<()> {
    let out = boot("discard", kernel, DISCARD)?;
    let r = out.step("discard")?;
    all_said(
        r,
        &[
            "block sleeps",
            "block off 0",
            "block check 0",
            "block ring a full ring makes the task wait",
            "discard runs",
            "discard off 1",
            "discard check 1",
            "discard allowed 0",
            "discard ring a full ring drops records",
            "run 1",
        ],
    )?;
    for mode in ["block", "discard"] {
        let of = |what: &str| figure(r, &format!("{mode} {what}"));
        let lost = of("lost_full")? + of("lost_io")?;
        let made = of("admissions")? + of("renewed")? + of("chances")?;
        say!(
            "  {mode}: {made} records, {lost} lost, {} waits",
            of("waits")?
        );
        // Events of this program are few and find room.
        ensure!(
            of("refs")? + lost == made && of("lost_atomic")? == 0,
            "{r:?}"
        );
        let discards = mode == "discard";
        ensure!((lost > 0) == discards, "{mode}: {lost} lost");
        ensure!((of("waits")? == 0) == discards, "{mode}: waits: {r:?}");
    }
    // It would wait for ten seconds, and much longer with each new task.
    took(r, "forks", 0.0, 60.0)
}

/// The records of the program fill less than a sub-buffer. The disk is read past the page cache.
const FLUSH: &str = r#"
on_disk() { dd if=/dev/swap iflag=direct bs=1M 2>/dev/null | grep -a -o VMTpackt | wc -l; }
mkfifo /tmp/rest
for flush in 100ms 800ms never; do
	rm -f /tmp/done
	activator run -q -n 32 --pack=no --buffers 4 --buffer-size 1M --flush $flush -o /tmp/x/$flush -- \
		sh -c 'touch-loop 600 2; touch /tmp/done; exec cat /tmp/rest' >/tmp/log 2>&1 & run=$!
	until [ -e /tmp/done ]; do sleep 0.05; done
	start=$(now)
	until [ "$(stat -c %s /tmp/x/$flush)" -gt 30000 ]; do
		[ "$(since $start | cut -d. -f1)" -lt 5 ] || break
		sleep 0.05
	done
	echo "$flush took $(since $start)"
	cp /tmp/x/$flush /tmp/cut
	echo "$flush bytes $(stat -c %s /tmp/cut)"
	sleep 1
	echo "$flush packets $(on_disk)"
	: >/tmp/rest
	wait $run || { echo "rc $?"; cat /tmp/log status; exit 9; }
	postproc check /tmp/x/$flush >/dev/null && echo "$flush whole"
	shred -n 0 -z /tmp/x/$flush
	rm /tmp/x/$flush
	sync
done
"#;

fn flush(kernel: &str) -> Result<()> {
    let out = boot("flush", kernel, FLUSH)?;
    let r = out.step("flush")?;
    all_said(r, &["100ms whole", "800ms whole", "never whole"])?;
    for (flush, comes) in [("100ms", true), ("800ms", true), ("never", false)] {
        let bytes = figure(r, &format!("{flush} bytes"))?;
        let packets = figure(r, &format!("{flush} packets"))?;
        say!(
            "  --flush {flush}: {bytes} bytes after {} s, {packets} packets on the disk",
            said(r, &format!("{flush} took"))?
        );
        // 1,168 records of 32 bytes leave the set.
        ensure!((bytes > 30_000) == comes, "{flush}: {bytes} bytes: {r:?}");
        ensure!((packets > 0) == comes, "{flush}: {packets} packets: {r:?}");
    }
    Ok(())
}
