//! `postproc pack` and `postproc unpack`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::output::Output;
use crate::trace::{Form, Repacked, Trace, repack};
use clap::Args;
use serde::Serialize;

use super::NoWhere;
use super::screen::{Opening, Progress, grouped, print_json, stop_flag};

/// Write a trace again with its packets packed
///
/// A packed trace holds the same records and is often a seventh to a third as large. All commands
/// read it. With --zstd, each packet is also compressed by Zstandard. Each packet is packed by
/// itself, so damage costs only the packet that it hits. Packets that are packed already are
/// packed anew. `postproc unpack` restores all packets byte for byte. Damaged packets are
/// copied as they are. Bytes behind the END packet are left out.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc pack run.vmt -o run.packed.vmt\n  \
    postproc pack run.vmt --zstd -o run.packed.vmt\n  \
    postproc pack run.vmt --zstd=19 --json -o run.packed.vmt")]
pub struct PackArgs {
    #[command(flatten)]
    files: Files,
    /// Also compress each packet by Zstandard, at this level
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "3",
          value_parser = clap::value_parser!(i32).range(1..=22))]
    zstd: Option<i32>,
}

/// Write a packed trace again with its packets unpacked
///
/// If the kernel wrote the trace without --pack, the result is that trace, byte for byte, without
/// bytes behind its END packet. If the kernel packed the trace, the records are those that the
/// kernel would have written without --pack. Only the kernel's account at the end still records
/// that they were packed.
#[derive(Args)]
#[command(after_help = "Example:\n  postproc unpack run.packed.vmt -o run.vmt")]
pub struct UnpackArgs {
    #[command(flatten)]
    files: Files,
}

#[derive(Args)]
struct Files {
    /// The trace: a file, a block device or a pipe; `-` is standard input. It may be compressed by
    /// Zstandard. A directory has the pieces of a trace, and is read as that trace
    trace: PathBuf,
    /// The output file; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    no_filter: NoWhere,
    /// Print JSON on standard output
    #[arg(long)]
    json: bool,
}

/// What the user is told.
#[derive(Serialize)]
struct Summary<'a> {
    trace: &'a Path,
    output: &'a Path,
    #[serde(flatten)]
    repacked: Repacked,
}

pub fn pack(args: &PackArgs) -> anyhow::Result<ExitCode> {
    run(&args.files, Form::Packed(args.zstd), "packing")
}

pub fn unpack(args: &UnpackArgs) -> anyhow::Result<ExitCode> {
    run(&args.files, Form::Unpacked, "unpacking")
}

fn run(files: &Files, form: Form, what: &'static str) -> anyhow::Result<ExitCode> {
    files.no_filter.refuse(
        "the output has all records, so that it can be checked, and made what it was again; \
         `postproc export --where` writes some of the references",
    )?;
    let to_stdout = files.output.as_os_str() == "-";
    if to_stdout && files.json {
        anyhow::bail!("--json and -o - both need standard output: give -o a file");
    }
    let trace = Trace::open_watched(&files.trace, &mut Opening::default())?;
    let mut output = Output::create(&files.output)?;
    let name = output.name().to_owned();
    let mut progress = Progress::new(what, stop_flag());
    let repacked = repack(&trace, form, &mut output, &name, &mut progress)?;
    drop(progress);
    output.finish()?;
    if files.json {
        print_json(&Summary {
            trace: trace.path(),
            output: &files.output,
            repacked,
        })?;
    } else if !to_stdout {
        eprintln!("{}", text(&name, &repacked));
    }
    Ok(ExitCode::SUCCESS)
}

fn text(name: &str, r: &Repacked) -> String {
    let each = |what: &str, records: u64, bytes: (u64, u64)| match records {
        0 => String::new(),
        _ => format!(
            "; {what}: {:.2} bytes each, instead of {:.2}",
            bytes.1 as f64 / records as f64,
            bytes.0 as f64 / records as f64
        ),
    };
    let damaged = match r.damaged {
        0 => String::new(),
        1 => "; 1 damaged packet was copied as it is".into(),
        n => format!("; {} damaged packets were copied as they are", grouped(n)),
    };
    format!(
        "{name}: {} bytes, instead of {}{}{}{damaged}",
        grouped(r.bytes.1),
        grouped(r.bytes.0),
        each("references", r.references, r.reference_bytes),
        each("events", r.events, r.event_bytes),
    )
}
