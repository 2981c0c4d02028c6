//! `postproc split` and `postproc join`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::output::Output;
use crate::trace::{
    By, DividedTrace, Reunited, SplitTrace, Trace, are_parts, divide, join, plan, split, unite,
};
use clap::Args;
use rust_mm_trace::amount::Size;
use serde::Serialize;

use super::NoWhere;
use super::microseconds;
use super::note;
use super::screen::{Opening, Progress, grouped, print, print_json, stop_flag};

/// Split a trace into pieces, or into a part for each process. Each is readable by itself
///
/// Writes a directory of files. Unless `--by process` is given, each file is a piece of the trace: it
/// has the trace's header, a description of what existed when the piece began, a part of the trace's
/// bytes, and an account of its records. All commands read the directory as the whole trace. All commands except pack, unpack
/// and split also read a single piece. `postproc join` writes the trace again, byte for byte, up to
/// the end of its END packet. Bytes after this packet are no part of the trace, and are dropped.
///
/// When a piece begins in the middle of a trace or of a window, the set already has up to N pages.
/// Until these pages leave the set, references to them are in no record of the piece. So the misses of
/// such a piece have no proven bounds. The directory, the first piece, and pieces of whole windows
/// have bounds.
///
/// `--by process` writes a part for each process that has references, and one more file, the frame,
/// which has the rest of the trace. A part has the references of its process, and the events that are
/// needed to read them. All commands except pack, unpack and split read a part. The part of process 42
/// gives the results that the trace gives with `--where 'pid == 42'`. The misses of a part have no
/// proven bounds. No command but `postproc join` takes the directory of parts. `postproc join` writes
/// the trace again, byte for byte, from the frame and all parts. A damaged trace is not divided by
/// processes.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc split run.vmt --by size=64MiB -o by-size\n  \
    postproc split run.vmt --by time=10s --json -o by-time\n  \
    postproc split run.vmt --by windows -o windows\n  \
    postproc split run.vmt --by process -o by-process\n  \
    postproc check windows/00001.vmtrace\n  \
    postproc check windows\n  \
    postproc join windows -o again.vmt\n  \
    postproc join by-process -o again.vmt")]
pub struct SplitArgs {
    /// The trace: a file, a block device or a pipe; `-` is standard input. It may be compressed by
    /// Zstandard. A directory of pieces is split anew
    trace: PathBuf,
    /// How to split: `windows` (one window in each piece), `windows=K` (K windows), `size=SIZE`
    /// (about so many bytes of the trace, for example 64MiB), `time=DURATION` (a time with its unit,
    /// for example 500ms or 1.5s), or `process` (a part for each process)
    #[arg(long, value_name = "WAY", value_parser = way)]
    by: Way,
    /// The directory for the files, which must not exist, or be empty
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    no_filter: NoWhere,
    /// Print JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Join the pieces of a trace, or the parts of its processes
///
/// Writes the trace that was split, byte for byte, up to the end of its END packet. Each piece's
/// checksum is verified. If a piece is missing between two others, is damaged, is given twice, or
/// belongs to another trace, no output is written, the message names the piece, and the exit code is
/// 2. If the first or the last pieces of a trace that the kernel wrote in pieces are missing, the
/// others are joined to one piece.
///
/// The parts of processes are joined likewise, with the frame that was written with them. Each part's
/// checksum is verified. If a part or the frame is missing, was changed, is given twice, or belongs to
/// another trace, no output is written, the message names the file, and the exit code is 2.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc split run.vmt --by windows=2 -o pieces\n  \
    postproc join pieces -o again.vmt\n  \
    postproc split run.vmt --by process -o by-process\n  \
    postproc join by-process -o again.vmt\n  \
    postproc join pieces/00001.vmtrace pieces/00000.vmtrace -o again.vmt")]
pub struct JoinArgs {
    /// The pieces, or the parts and the frame, in any order, or a directory that has them. Each but
    /// the frame may be compressed by Zstandard
    #[arg(required = true, value_name = "DIR|PIECE")]
    pieces: Vec<PathBuf>,
    /// The output file; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    no_filter: NoWhere,
    /// Print JSON on standard output
    #[arg(long)]
    json: bool,
}

/// How a trace is split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Into pieces.
    Pieces(By),
    /// Into a part for each process.
    Processes,
}

/// The smallest size of a piece, bytes.
const LEAST_PIECE: u64 = 1 << 10;

/// Parses how to split a trace.
fn way(text: &str) -> Result<Way, String> {
    let (way, value) = match text.split_once('=') {
        Some((way, value)) => (way, Some(value)),
        None => (text, None),
    };
    match (way, value) {
        ("windows", None) => Ok(Way::Pieces(By::Windows(1))),
        ("process", None) => Ok(Way::Processes),
        ("windows", Some(count)) => match count.parse() {
            Ok(count @ 1..) => Ok(Way::Pieces(By::Windows(count))),
            _ => Err("expected a number of windows, for example windows=10".into()),
        },
        ("size", Some(size)) => match Size::read_bytes(size)? {
            // A few records make no piece.
            bytes if bytes < LEAST_PIECE => Err(format!(
                "{size} is a number of bytes, and a piece has 1KiB or more: give a size such as \
                 size=64MiB"
            )),
            bytes => Ok(Way::Pieces(By::Bytes(bytes))),
        },
        ("time", Some(time)) => Ok(Way::Pieces(By::Time(microseconds(time)? * 1000))),
        _ => Err("expected windows, windows=K, size=SIZE, time=DURATION or process".into()),
    }
}

#[derive(Serialize)]
struct SplitSummary<'a, S> {
    trace: &'a Path,
    output: &'a Path,
    #[serde(flatten)]
    split: &'a S,
}

#[derive(Serialize)]
struct JoinSummary<'a, J> {
    output: &'a Path,
    #[serde(flatten)]
    joined: &'a J,
}

/// Why there is nothing to select.
const WHOLE: &str = "the files have all records, so that `postproc join` can make the trace again; `postproc \
                     export --where` writes some of the references";

pub fn run(args: &SplitArgs) -> anyhow::Result<ExitCode> {
    args.no_filter.refuse(WHOLE)?;
    let trace = Trace::open_watched(&args.trace, &mut Opening::default())?;
    let by = match args.by {
        Way::Pieces(by) => by,
        Way::Processes => return run_by_process(args, &trace),
    };
    let plan = {
        let mut progress = Progress::new("planning", stop_flag());
        plan(&trace, by, &mut progress)?
    };
    let mut progress = Progress::new("splitting", stop_flag());
    let done = split(&trace, &plan, &args.output, &mut progress)?;
    drop(progress);
    finish(args, &trace, &done, text(&args.output, &done)?)
}

fn run_by_process(args: &SplitArgs, trace: &Trace) -> anyhow::Result<ExitCode> {
    // A process without references has no part.
    trace.demand_references()?;
    let mut progress = Progress::new("splitting", stop_flag());
    let done = divide(trace, &args.output, &mut progress)?;
    drop(progress);
    finish(args, trace, &done, parts_text(&args.output, &done)?)
}

/// Prints what was made, as JSON or as text.
fn finish(
    args: &SplitArgs,
    trace: &Trace,
    split: &impl Serialize,
    text: String,
) -> anyhow::Result<ExitCode> {
    let (trace, output) = (trace.path(), &*args.output);
    match args.json {
        true => print_json(&SplitSummary {
            trace,
            output,
            split,
        })?,
        false => print(text.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn parts_text(directory: &Path, done: &DividedTrace) -> Result<String, std::fmt::Error> {
    let mut t = String::new();
    writeln!(
        t,
        "{}: {} parts of {} bytes, and a frame of {}; the trace has {}\n",
        directory.display(),
        grouped(done.parts.len() as u64),
        grouped(done.bytes - done.frame_bytes),
        grouped(done.frame_bytes),
        grouped(done.trace_bytes)
    )?;
    writeln!(
        t,
        "{:<38} {:>14} {:>14} {:>14}",
        "part", "ref. records", "events", "bytes"
    )?;
    for part in done.parts.iter().take(SHOWN) {
        writeln!(
            t,
            "{:<38} {:>14} {:>14} {:>14}",
            part.file,
            grouped(part.reference_records),
            grouped(part.events),
            grouped(part.bytes)
        )?;
    }
    if let Some(more @ 1..) = done.parts.len().checked_sub(SHOWN) {
        writeln!(t, "{} more parts; --json lists all", grouped(more as u64))?;
    }
    Ok(t)
}

/// Pieces in the table.
const SHOWN: usize = 20;

fn text(directory: &Path, done: &SplitTrace) -> Result<String, std::fmt::Error> {
    let mut t = String::new();
    writeln!(
        t,
        "{}: {} pieces of {} bytes; the trace has {}\n",
        directory.display(),
        grouped(done.pieces.len() as u64),
        grouped(done.bytes),
        grouped(done.trace_bytes)
    )?;
    writeln!(
        t,
        "{:<16} {:>14} {:>14} {:>14} {:>14}",
        "piece", "first record", "ref. records", "events", "bytes"
    )?;
    for piece in done.pieces.iter().take(SHOWN) {
        writeln!(
            t,
            "{:<16} {:>14} {:>14} {:>14} {:>14}",
            piece.file,
            grouped(piece.first_seq),
            grouped(piece.reference_records),
            grouped(piece.events),
            grouped(piece.bytes)
        )?;
    }
    if let Some(more @ 1..) = done.pieces.len().checked_sub(SHOWN) {
        writeln!(t, "{} more pieces; --json lists all", grouped(more as u64))?;
    }
    Ok(t)
}

pub fn run_join(args: &JoinArgs) -> anyhow::Result<ExitCode> {
    args.no_filter.refuse(WHOLE)?;
    let to_stdout = args.output.as_os_str() == "-";
    if to_stdout && args.json {
        anyhow::bail!("--json and -o - both need standard output: give -o a file");
    }
    let mut output = Output::create(&args.output)?;
    let name = output.name().to_owned();
    let mut progress = Progress::new("joining", stop_flag());
    if are_parts(&args.pieces) {
        let united = unite(&args.pieces, &mut output, &name, &mut progress)?;
        drop(progress);
        output.finish()?;
        return told(args, to_stdout, &name, &united);
    }
    let joined = join(&args.pieces, &mut output, &name, &mut progress)?;
    drop(progress);
    output.finish()?;
    if args.json {
        print_json(&JoinSummary {
            output: &args.output,
            joined: &joined,
        })?;
    } else if !to_stdout {
        let numbers = joined.numbers.map_or_else(String::new, |(first, last)| {
            format!(", {first} to {last}, which are one piece now")
        });
        eprintln!(
            "{name}: {} bytes of {} pieces{numbers}",
            grouped(joined.bytes),
            grouped(joined.pieces)
        );
    }
    for path in &joined.left_out {
        note!(
            "{} is left out: it was made for a piece that did not begin",
            path.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what was joined of parts.
fn told(
    args: &JoinArgs,
    to_stdout: bool,
    name: &str,
    united: &Reunited,
) -> anyhow::Result<ExitCode> {
    if args.json {
        print_json(&JoinSummary {
            output: &args.output,
            joined: united,
        })?;
    } else if !to_stdout {
        eprintln!(
            "{name}: {} bytes of {} parts",
            grouped(united.bytes),
            grouped(united.parts)
        );
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_parsed() {
        let piece = |by| Ok(Way::Pieces(by));
        assert_eq!(way("process"), Ok(Way::Processes));
        assert_eq!(way("windows"), piece(By::Windows(1)));
        assert_eq!(way("windows=10"), piece(By::Windows(10)));
        assert_eq!(way("size=64MiB"), piece(By::Bytes(64 << 20)));
        assert_eq!(way("size=0.5M"), piece(By::Bytes(1 << 19)));
        assert_eq!(way("size=65536"), piece(By::Bytes(1 << 16)));
        assert_eq!(way("time=500ms"), piece(By::Time(500_000_000)));
        assert_eq!(way("time=1.5ms"), piece(By::Time(1_500_000)));
        // It once was a number of MiB.
        let old = way("size=64").expect_err("64 bytes");
        assert!(old.contains("such as size=64MiB"), "{old}");
        let bad = [
            "",
            "window",
            "windows=",
            "windows=0",
            "windows=-1",
            "size",
            "size=0",
            "size=0.1",
            "size=10%",
            "size=nan",
            "size=inf",
            "size=-1",
            "time",
            "time=5",
            "time=0s",
            "process=1",
        ];
        for text in bad {
            assert!(way(text).is_err(), "{text}");
        }
    }
}
