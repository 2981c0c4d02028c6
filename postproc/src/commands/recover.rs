//! `postproc recover`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::output::Output;
use crate::trace::{DamageKind, Recovered, Trace, recover};
use clap::Args;
use serde::Serialize;

use super::screen::{Opening, Progress, grouped, print, print_json, stop_flag};
use super::{BAD_TRACE, NoWhere, name_of};

/// Copy what is left of a damaged or unfinished trace
///
/// After the machine or the emulator was killed, a trace has no END packet, and its last packet may
/// be torn. A disk that lost power may also have left out parts of the file, or have older bytes
/// there. This command copies the header, and each packet whose checksum holds, in the order of the
/// file. It reports the bytes that it left out, and which packets each stream lacks: their numbers, and the
/// numbers of the last record before them and of the first record after them.
///
/// Of a directory of pieces, this command copies the parts of the trace that the pieces there have, and
/// reports which pieces are missing, damaged or cut short.
///
/// Exits with 0 if the trace was complete, and with 1 if something is missing; the
/// output is written in both cases. Other commands read the output, report what is missing,
/// and exit with 1.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc recover run.vmt -o run.recovered.vmt\n  \
    postproc recover /dev/vdb -o run.recovered.vmt --json | jq .missing")]
pub struct RecoverArgs {
    /// The trace: a file, a block device or a pipe; `-` is standard input. It may be compressed by
    /// Zstandard. A directory has the pieces of a trace, and is read as that trace
    trace: PathBuf,
    /// The output file; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Take the header from this file, which begins as the trace did
    ///
    /// Needed if the first 4096 bytes of the trace are damaged. The file must have the header
    /// of the same trace: for example, it is a copy that was made before, even of a part of the trace.
    #[arg(long, value_name = "FILE")]
    header_of: Option<PathBuf>,
    #[command(flatten)]
    no_filter: NoWhere,
    /// Print the report as JSON on standard output
    #[arg(long)]
    json: bool,
}

/// What the user is told.
#[derive(Serialize)]
struct Summary<'a> {
    trace: String,
    output: &'a Path,
    #[serde(flatten)]
    recovered: &'a Recovered,
}

pub fn run(args: &RecoverArgs) -> anyhow::Result<ExitCode> {
    args.no_filter.refuse(
        "recover copies whole packets, whatever they contain; `postproc export --where` writes some \
         of the references of the copy",
    )?;
    let to_stdout = args.output.as_os_str() == "-";
    if to_stdout && args.json {
        anyhow::bail!("--json and -o - both need standard output: give -o a file");
    }
    let trace = Trace::open_damaged(
        &args.trace,
        args.header_of.as_deref(),
        &mut Opening::default(),
    )?;
    let mut output = Output::create(&args.output)?;
    let name = output.name().to_owned();
    let mut progress = Progress::new("recovering", stop_flag());
    let recovered = recover(&trace, &mut output, &name, &mut progress)?;
    drop(progress);
    output.finish()?;
    let summary = Summary {
        trace: name_of(&trace),
        output: &args.output,
        recovered: &recovered,
    };
    if args.json {
        print_json(&summary)?;
    } else {
        let text = text(&summary.trace, &name, &recovered)?;
        match to_stdout {
            true => eprint!("{text}"),
            false => print(text.as_bytes())?,
        }
    }
    Ok(match recovered.complete {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(BAD_TRACE),
    })
}

/// Lines of one kind that are shown.
const SHOWN: usize = 20;

fn text(trace: &str, output: &str, r: &Recovered) -> Result<String, std::fmt::Error> {
    let mut t = String::new();
    writeln!(
        t,
        "{trace}: {} packets with {} records copied to {output}, {} bytes",
        grouped(r.packets),
        grouped(r.records),
        grouped(r.bytes)
    )?;
    if let Some(last) = r.last_time_ns {
        let seconds = last as f64 / 1e9;
        writeln!(
            t,
            "the last record is of {seconds:.6} s after the trace began"
        )?;
    }
    let (pieces, skipped): (Vec<_>, Vec<_>) =
        r.skipped.iter().partition(|s| s.kind == DamageKind::Piece);
    if !pieces.is_empty() {
        writeln!(t, "not all pieces were copied whole:")?;
    }
    for piece in pieces.iter().take(SHOWN) {
        writeln!(t, "  {}", piece.detail)?;
    }
    more(&mut t, pieces.len())?;
    if skipped.is_empty() {
        writeln!(t, "no bytes were left out")?;
    } else {
        writeln!(t, "{} bytes were left out:", grouped(r.skipped_bytes))?;
    }
    for s in skipped.iter().take(SHOWN) {
        writeln!(t, "  bytes {}..{}: {}", s.start, s.end, s.detail)?;
    }
    more(&mut t, skipped.len())?;
    if !r.missing.is_empty() {
        writeln!(t, "packets are missing:")?;
    }
    for m in r.missing.iter().take(SHOWN) {
        let packets = match m.first_packet == m.last_packet {
            true => format!("packet {}", m.first_packet),
            false => format!("packets {} to {}", m.first_packet, m.last_packet),
        };
        let records = match m.after_seq {
            Some(after) => format!("between the records {after} and {}", m.before_seq),
            None => format!("before record {}", m.before_seq),
        };
        writeln!(t, "  stream {}: {packets}, {records}", m.stream)?;
    }
    more(&mut t, r.missing.len())?;
    if r.repeated != 0 {
        let repeated = grouped(r.repeated);
        writeln!(t, "{repeated} packets stand a second time in the file")?;
    }
    if !r.end {
        writeln!(
            t,
            "there is no END packet: what follows the last packet of each stream is missing, and \
             nobody knows how much that is"
        )?;
    } else if let Some(written) = r.packets_written.filter(|n| *n > r.packets) {
        writeln!(
            t,
            "the kernel wrote {} packets before the END packet: {} are missing",
            grouped(written),
            grouped(written - r.packets)
        )?;
    }
    let verdict = match r.complete {
        true => "complete",
        false => "NOT COMPLETE",
    };
    writeln!(t, "{verdict}")?;
    Ok(t)
}

fn more(t: &mut String, all: usize) -> std::fmt::Result {
    match all.saturating_sub(SHOWN) {
        0 => Ok(()),
        left => writeln!(t, "  and {} more; --json lists all", grouped(left as u64)),
    }
}
