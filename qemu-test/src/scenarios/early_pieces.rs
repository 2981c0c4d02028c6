//! Traces from boot that are taken over in pieces: the first one has all that the kernel has kept since
//! boot, and all that holds of pieces holds of them.

use super::Scenario;
use super::early::first_program;
use super::rotate::{ONLY, PROGRAMS, Piece, good_pieces, run_with, send, unpacked, whole};
use super::waits::{DISK, all_said, said};
use crate::machine::{Outcome, Profile, debian};
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "early-rotate".into(),
            about: "references from boot, in pieces: the boot is in the first one, and all are the trace",
            run: Box::new(from_boot),
        },
        Scenario {
            name: "early-rotate-events".into(),
            about: "events from boot, packed, in pieces that many ask for: references begin in the first one",
            run: Box::new(events_first),
        },
        Scenario {
            name: "early-rotate-lost".into(),
            about: "a boot that lost records, in pieces: the first one says so, and the others are good",
            run: Box::new(lost_at_boot),
        },
    ]
}

/// Boots, and runs a script whose files on the disk `sent` come to the host.
fn boot(kernel: &str, name: &str, option: &str, script: &str, sent: &str) -> Result<Outcome> {
    let script = format!("{DISK}{ONLY}{script}");
    let mut taken = debian("taken", &script);
    taken.timeout_s = 900;
    run_with(
        kernel,
        name,
        Profile::Smp,
        &format!("vmtrace={option}"),
        vec![taken, send(0, sent)],
    )
}

/// The first output has room for the header and for nothing else, so the trace stays with the kernel.
/// Programs are run until pieces have begun by their size.
fn taken() -> String {
    format!(
        r#"
sh -c '{PROGRAMS}' >/dev/null
mkdir /tmp/tiny
mount -t tmpfs -o size=4k none /tmp/tiny
rc=0
activator on --early --pack=no --rotate 300K -o /tmp/tiny/p >/dev/null 2>why || rc=$?
echo "tiny $rc"
grep -o "no room for" why
echo "tiny-left $(ls -A /tmp/tiny | wc -l)"
activator status --json >status
echo "state $(field state)"
echo "kept $(field last_seq)"
activator on --early --pack=no --rotate 300K --keep 1G --snapshot-on signal:USR1 -o /tmp/x/p >on
keeper=$(sed -n 's/.*; process \([0-9]*\) begins pieces.*/\1/p' on)
alive $keeper && echo "keeper"
activator status --json >status
grep -q '"rotated_by_somebody":true' status && echo "somebody"
until [ "$(pieces p)" -ge 4 ]; do sh -c '{PROGRAMS}' >/dev/null; done
activator rotate >rotated
echo "rotated $(cat rotated)"
activator snapshot /tmp/x/s >/dev/null
kill -USR1 $keeper
until [ -e /tmp/x/p.snapshots/00000 ]; do sleep 0.1; done
activator off --json >off
alive $keeper && echo "left behind"
only /tmp/x/p
sed 's/^/off /' off
"#
    )
}

/// The last status. Each number is that of a record, or of an admission that was given up.
fn accounted(out: &Outcome) -> Result<Value> {
    let off: Value = serde_json::from_str(said(out.step("taken")?, "off")?)?;
    let sum = |keys: &[&str]| keys.iter().filter_map(|k| off[*k].as_u64()).sum::<u64>();
    let lost = sum(&["lost_full", "lost_atomic", "lost_io"]);
    ensure!(
        sum(&["last_seq"]) == sum(&["refs", "events", "aborted"]) + lost,
        "numbers are missing: {off}"
    );
    let admitted = sum(&["admissions", "renewed", "chances"]);
    let kept = sum(&["refs"]);
    ensure!(
        kept <= admitted && admitted <= kept + lost,
        "{admitted} admissions, {kept} references and {lost} lost: {off}"
    );
    Ok(off)
}

/// What a reader of all pieces counts is what the kernel has counted. `join` has compared the bytes of all
/// pieces with the kernel's checksums, and what it has made of them gives the same references.
fn same(directory: &Path, off: &Value) -> Result<()> {
    let (_, info) = postproc::json(&["info"], directory)?;
    for (told, counted) in [("reference_records", "refs"), ("events", "events")] {
        ensure!(
            info[told] == off[counted],
            "{told}: {info}, and by the kernel {off}"
        );
    }
    let joined = directory.with_extension("joined");
    ensure!(
        postproc::csv(directory)? == postproc::csv(&joined)?,
        "joined, it has other references"
    );
    Ok(())
}

/// The numbers of a snapshot's pieces.
fn numbers(pieces: &[Piece]) -> Vec<u64> {
    pieces.iter().map(|piece| piece.number).collect()
}

fn from_boot(kernel: &str) -> Result<()> {
    let option = "early,refs,evms=64,size=48M";
    let sent = "x/p x/s x/p.snapshots";
    let out = boot(kernel, "early-rotate", option, &taken(), sent)?;
    let r = out.step("taken")?;
    let lines = [
        "tiny 2",
        "no room for",
        "tiny-left 0",
        "state 3",
        "keeper",
        "somebody",
    ];
    all_said(r, &lines)?;
    ensure!(!r.stdout.contains("left behind"), "{r:?}");
    ensure!(!r.stdout.contains(".keeper.log"), "{r:?}");
    let off = accounted(&out)?;
    ensure!(
        off["problems"].as_array().is_some_and(Vec::is_empty),
        "{off}"
    );
    let sent = unpacked(&out, 0)?.join("x");
    let directory = sent.join("p");
    let count = whole(&directory)?;
    same(&directory, &off)?;
    let first = first_program(&directory.join("00000.vmtrace"))?;
    let pieces = good_pieces(&directory)?;
    let kept: u64 = said(r, "kept")?.parse()?;
    ensure!(
        kept > first && pieces[0].next_seq > Some(kept),
        "the first piece lacks some of {kept} numbers of the boot: up to {:?}",
        pieces[0].next_seq
    );
    say!(
        "  {count} pieces; {kept} numbers at the boot, {}",
        off["last_seq"]
    );
    // By size, by hand, and for two snapshots.
    ensure!(count >= 6 && off["piece"] == count - 1, "{off}");
    let rotated = said(r, "rotated")?;
    let by_hand = good_pieces(&sent.join("s"))?;
    let by_signal = good_pieces(&sent.join("p.snapshots/00000"))?;
    for snapshot in [&by_hand, &by_signal] {
        let all: Vec<_> = (0..snapshot.len() as u64).collect();
        ensure!(numbers(snapshot) == all, "{:?}", numbers(snapshot));
    }
    let last = by_hand.last().context("no pieces")?.number;
    ensure!(
        rotated.ends_with(".vmtrace") && by_signal.len() > by_hand.len() && last >= 4,
        "{rotated}, pieces up to {last} by hand, {} by a signal",
        by_signal.len()
    );
    Ok(())
}

/// Two others ask for pieces, from before the trace is taken over.
const ASKED: &str = r#"
trap 'touch /tmp/enough' EXIT
asks() { while [ ! -e /tmp/enough ]; do activator rotate >/dev/null 2>>refused || true; done; }
asks & one=$!
asks & two=$!
fork-storm 5 >/dev/null
activator on --early --rotate 1s -o /tmp/x/p >on
until [ "$(pieces p)" -ge 5 ]; do families 2 6 >/dev/null; done
touch /tmp/enough
wait $one $two
activator off --json >off
only /tmp/x/p
grep -q 'takes it over in pieces' refused && echo "refused before"
sed 's/^/off /' off
"#;

fn events_first(kernel: &str) -> Result<()> {
    let out = boot(kernel, "early-rotate-events", "early", ASKED, "x/p")?;
    let r = out.step("taken")?;
    all_said(r, &["refused before"])?;
    let off = accounted(&out)?;
    let directory = unpacked(&out, 0)?.join("x/p");
    let count = whole(&directory)?;
    same(&directory, &off)?;
    let first = directory.join("00000.vmtrace");
    first_program(&first)?;
    let began = postproc::events(&["--type", "refs_begin"], &directory)?.len();
    let in_first = postproc::events(&["--type", "refs_begin"], &first)?.len();
    ensure!(
        (began, in_first) == (1, 1),
        "references began {began} times, {in_first} of them in the first piece"
    );
    ensure!(off["refs"].as_u64() > Some(1000), "{off}");
    say!("  {count} pieces, {} references", off["refs"]);
    ensure!(count >= 5, "only {count} pieces");
    Ok(())
}

/// `record` waits for the end. The first piece is copied before it is removed.
const LOST: &str = r#"
fork-storm 20 >/dev/null
activator record --early --pack=no --rotate 150K --keep 450K --json -o /tmp/x/p >off 2>err & record=$!
until [ -e /tmp/x/p/00000.vmtrace ]; do
	alive $record || cat err
	alive $record
	sleep 0.1
done
activator rotate >/dev/null 2>&1 || echo "rotate $?"
cp /tmp/x/p/00000.vmtrace /tmp/x/first
while [ -e /tmp/x/p/00000.vmtrace ]; do
	alive $record
	families 2 4 >/dev/null
done
kill -TERM $record
rc=0
wait $record || rc=$?
echo "record $rc"
only /tmp/x/p
sed 's/^/off /' off
"#;

fn lost_at_boot(kernel: &str) -> Result<()> {
    let option = "early,refs,evms=64,size=64k";
    let out = boot(kernel, "early-rotate-lost", option, LOST, "x/p x/first")?;
    let r = out.step("taken")?;
    // The loss is reported by each command.
    all_said(r, &["rotate 1", "record 1"])?;
    let off = accounted(&out)?;
    let lost = off["lost_full"].as_u64().unwrap_or(0);
    ensure!(lost > 100 && off["lost_io"] == 0, "{off}");
    let sent = unpacked(&out, 0)?.join("x");
    // All of it before the trace had an output.
    let pieces = good_pieces(&sent.join("p"))?;
    ensure!(pieces[0].number > 0, "{:?}", numbers(&pieces));
    let (rc, check) = postproc::json(&["check"], &sent.join("first"))?;
    let errors = |rule: &str| {
        let all = check["rules"].as_array().into_iter().flatten();
        all.filter(|r| r["id"] == rule)
            .filter_map(|r| r["errors"].as_u64())
            .sum::<u64>()
    };
    ensure!(
        rc == 1 && errors("loss") > 0 && errors("conservation") == 0,
        "the first piece: {rc}, {check}"
    );
    say!(
        "  {lost} records lost of a boot; pieces {:?} are good",
        numbers(&pieces)
    );
    Ok(())
}
