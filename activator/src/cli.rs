//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::ArgPredicate;
use clap::{ArgGroup, Args, Parser, Subcommand};

use rust_mm_trace::uapi::VMTRACE_BATCH_MAX;

use crate::control::{Class, Mode, Pack, Policy, SetPer, Sizes, Windows};
use crate::counts::{Of, Sort};
use crate::filter::Filter;
use crate::pace;
use crate::rotate::Plan;
use crate::sampling::SamplingArgs;
use crate::scope::{Asked, Pattern};
use crate::snapshots::{SnapshotTrigger, parse_snapshot_trigger};
use crate::triggers::{Trigger, parse_trigger};
use crate::units::{
    Given, Length, Pages, Ticks, When, parse_buffer_size, parse_cost, parse_flush, parse_interval,
    parse_length, parse_n, parse_pages, parse_seconds, parse_size, parse_slowdown, parse_stall,
    parse_ticks, parse_time, parse_when,
};

/// Turns the kernel's tracing on and off, or traces a command. A trace records
/// each reference to a page outside a set of N enabled pages.
#[derive(Debug, Parser)]
#[command(
    name = "activator",
    version,
    long_version = concat!(env!("CARGO_PKG_VERSION"), " (kernel interface 1)"),
    max_term_width = 90,
    after_help = "\
Examples:
  activator record -o ls.vmt ls -lR /usr      trace a command and its children
  activator record -p 1234 --for 30s          trace a process for 30 seconds
  activator on --pid 1234 -o server.vmt       trace a process that runs already
  activator status --watch                    watch the trace
  activator off                               end the trace and print the summary
  activator top                               count references live, without a trace

Exit codes:
  0    good
  1    the trace lost records or broke an invariant, its output failed, or
       there was no memory for a set of --set-per
  2    wrong usage, an I/O error, or a refusal by the kernel; the message
       states what to do
  129, 130, 131, 143  ended by SIGHUP, SIGINT, SIGQUIT, SIGTERM
More exit codes of `run`:
  126  the command cannot be executed
  127  the command does not exist
  128 and more  a signal killed the command: 128 + the number of the signal
  any  the command's own exit code, if the trace is good

The kernel writes the trace, so no activator needs to run while the trace is
on. If the activator is killed, nothing is lost: `activator off` ends the trace.
Only one trace can be on at a time. Controlling a trace needs CAP_SYS_ADMIN,
or CAP_PERFMON if vm.vmtrace_paranoid is 0."
)]
pub struct Cli {
    /// The control device
    #[arg(long, global = true, hide = true, default_value = "/dev/vmtrace")]
    pub device: PathBuf,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start tracing a running process, or all processes
    On(OnArgs),
    /// End tracing and print the summary
    Off(OffArgs),
    /// Show the trace that is on, or the last one
    Status(StatusArgs),
    /// Trace a command and its children; exit with the command's code
    Run(RunArgs),
    /// Trace a command, or running processes until Ctrl-C
    Record(RecordArgs),
    /// Show which processes and mappings are referenced, live
    Top(TopArgs),
    /// Change N of the trace that is on
    Resize(ResizeArgs),
    /// Change which references of a trace with --filter are recorded
    Filter(FilterArgs),
    /// End the window of a trace with --pausable; nothing is traced until `resume`
    #[command(after_help = PAUSE_HELP)]
    Pause(PauseArgs),
    /// Begin a window of a trace with --pausable
    #[command(after_help = PAUSE_HELP)]
    Resume(PauseArgs),
    /// Begin the next piece of a trace with --rotate now
    Rotate(RotateArgs),
    /// Collect all complete pieces of a trace in a new directory; tracing goes on
    Snapshot(SnapshotArgs),
    /// Write a completion script for a shell
    #[command(after_help = "\
Examples:
  activator completions bash >/etc/bash_completion.d/activator
  activator completions zsh >~/.zfunc/_activator")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write the manual pages of all commands
    Man(ManArgs),
}

impl Command {
    /// How sizes were understood that could be taken for other numbers of pages; none with --quiet.
    pub fn hints(&self) -> impl Iterator<Item = &str> {
        let given = match self {
            Self::On(args) => args.trace.given(),
            Self::Run(args) | Self::Record(RecordArgs { run: args, .. }) => args.given(),
            Self::Top(args) => vec![args.n.as_ref()],
            Self::Resize(args) => vec![Some(&args.n)],
            _ => Vec::new(),
        };
        given
            .into_iter()
            .flatten()
            .filter_map(|given| given.hint.as_deref())
    }
}

const PAUSE_HELP: &str = "\
Examples:
  activator on --pid 1234 --paused -o part.vmt
  activator resume
  activator pause
  echo resume >/dev/vmtrace       resume, from within a traced program

`resume` begins a window, and returns when the window has begun. It may wait until the
output has taken all records of the window before. If a window is open, `resume` does
nothing.
`pause` ends the window, and returns when nothing is traced any more. It does not wait
for the output. If no window is open, `pause` does nothing.

Windows are numbered from 0. Exits with 1 if the trace is bad, or if the command waits
for the output, and the output takes no data for a second. In the second case, the
window begins or ends later. Exits with 2 if no trace is on, if the windows of the trace
do not begin on request, or if `resume` comes after the last window of --repeat.";

/// Options of `pause` and `resume`.
#[derive(Args, Debug)]
pub struct PauseArgs {
    /// Print all fields of the kernel's status as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `rotate`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator on --pid 1234 --rotate 1h -o server
  activator rotate                    prints the file that is complete now
  activator rotate --json | jq -r .rotated.file

The trace goes on in the next file. Exits with 2 if no trace is on, if the trace is not
written in pieces, or if no piece could begin; exits with 1 if the trace is bad.")]
pub struct RotateArgs {
    /// Print all fields of the kernel's status, and the file, as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `snapshot`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator on --all --rotate 16M --keep 256M -o /dev/shm/recent
  activator snapshot /var/tmp/incident
  postproc check /var/tmp/incident

A piece begins, so that all records until now are in complete pieces. DEST then has
all complete pieces that are there, without a gap. They are links to the same files
if DEST is on the same file system, or else copies. Ctrl-C leaves nothing behind.
Exits with 2 if the last trace was not written in pieces. If the trace has ended, no piece
begins.")]
pub struct SnapshotArgs {
    /// A new directory for the pieces
    #[arg(value_name = "DEST")]
    pub to: PathBuf,
    /// Print all fields of the kernel's status, and what DEST has, as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `man`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator man | man -l -
  activator man -o /usr/local/share/man/man1")]
pub struct ManArgs {
    /// Directory for a page of each command; created if it does not exist
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Options of every command that starts a trace. `--repeat` needs one of the group `windows_of`, to
/// which [`RunArgs`] adds options, and how regions are sampled one of the group `sampled`.
#[derive(Args, Debug)]
#[group(skip)]
#[command(group = ArgGroup::new("windows_of").args(["trace", "pausable", "paused"]).multiple(true))]
#[command(group = ArgGroup::new("sampled").args(["sample", "between"]))]
pub struct TraceArgs {
    /// Size of the set: pages that can be referenced without a record; 4096 pages are 16MiB
    ///
    /// N is the size of the EVMS, the set of pages that traced processes can
    /// reference without a fault. A reference to any other page faults and is
    /// recorded. That page enters the set, and the page that entered the set first
    /// leaves it. So a smaller N means more records, a slower run and a larger trace.
    /// A record costs less time than a minor page fault, and at most 32 bytes of output, usually
    /// far less (--pack). References to the N pages of the set are not in the trace, so simulate
    /// memories of 4 N pages and more.
    ///
    /// N is a number of pages (512) or a size in bytes (2MiB; 2M is the same), which is rounded
    /// down to pages.
    ///
    /// N=512 (2 MiB, the default) suits simulated memories of 8 MiB and more. N=4096
    /// (16 MiB) suits those of 64 MiB and more, at a lower cost. N=64 is for small
    /// memories and short runs. The slowdown depends on the program; docs/cost.md has
    /// measured examples. The minimum is 32 pages, or 16 on a
    /// machine with one CPU. With less than 32 pages for each CPU, CPUs take turns at
    /// having a first segment (see --first).
    #[arg(
        short = 'n',
        value_name = "N",
        default_value = "512",
        default_value_if("interval", ArgPredicate::IsPresent, "65536"),
        value_parser = parse_n,
        allow_negative_numbers = true
    )]
    pub n: Given,

    /// Set N for simulating memories of SIZE and more: an eighth of SIZE, such as 512 pages for
    /// 16MiB
    ///
    /// SIZE is a number of pages or of bytes, as for -n. From 4 N pages on, the misses of LRU
    /// have small errors and proven bounds (docs/fidelity.md), and SIZE is twice that. With
    /// --slowdown, an eighth of SIZE is the largest N. If the budget needs a larger N, programs
    /// exceed the budget, or windows end (--pausable).
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_pages,
        conflicts_with_all = ["n", "interval", "max"]
    )]
    pub memory: Option<Pages>,

    /// Adjust N so that programs take at most FACTOR times as long, such as 1.1
    ///
    /// FACTOR is 1.01 to 100. N begins with the value of -n. If tracing costs the programs too
    /// much time, N grows, up to --max. If it costs less, N shrinks, so the trace has as many
    /// references as the budget allows. Each change of N is an event in the trace. FACTOR
    /// holds for all traced programs together, from the beginning of the trace to its end. A run of
    /// less than a second may end before N suits it. The slowdown is estimated from the numbers
    /// of references and events, the time that programs have had a CPU, and the times of a
    /// reference and of an event, which this command measures before the trace begins.
    ///
    /// With --pausable, the window ends if even the largest N costs too much. Another window
    /// begins when the programs have run long enough untraced. `activator run` and `activator
    /// record` adjust N themselves; `activator on` leaves a process behind for this. If that
    /// process is killed, N stays as it is.
    #[arg(
        long,
        value_name = "FACTOR",
        value_parser = parse_slowdown,
        conflicts_with_all = ["interval", "trace", "paused"]
    )]
    pub slowdown: Option<f64>,

    /// Time of one reference for --slowdown, in nanoseconds [default: it is measured]
    ///
    /// An event is then assumed to take 0.6 of this time.
    #[arg(long, value_name = "NS", value_parser = parse_cost, requires = "slowdown")]
    pub cost: Option<f64>,

    /// End all stays after each interval of this length: 50ms, 1s
    ///
    /// Each page that is used in an interval has a record in it, and usually one only. So the
    /// trace shows which pages were used in which interval, at a cost that does not depend on
    /// how often they were used. N is 65536 then, unless -n is given. If programs use more than N
    /// pages in an interval, pages leave the set before its end, and have more records. From
    /// 1 ms to 1 h.
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    pub interval: Option<u64>,

    /// Pages of N that form each CPU's first segment [default: 16, the minimum]
    ///
    /// The last F pages that a CPU admitted to the set are its first segment. No other
    /// CPU can evict them, so every instruction gets all pages that it needs. When the CPU
    /// switches to another task or is idle, its first segment ends. The rest of N is the
    /// second segment, which all CPUs share.
    #[arg(long, value_name = "F", value_parser = parse_pages)]
    pub first: Option<Pages>,

    /// What has a set of N pages of its own
    ///
    /// With `all`, there is one set. Which references of a program are recorded then depends
    /// on what all other traced programs do. With `process` or `cgroup`, it depends on the
    /// programs of the same set only, and programs of different sets share nothing but the
    /// counter of records. For example, `activator on --all --set-per cgroup` gives each
    /// service of systemd a set.
    ///
    /// Simulate the references of each set by themselves. LRU's misses of these references
    /// have proven bounds from 2 N pages on, as in a trace of these programs alone. The
    /// misses of the whole machine have none: a page stays in the set of a program that
    /// rests, whatever other programs reference.
    ///
    /// A fork and an exec make an address space, whose set is empty with `process`. An
    /// address space stays in its set, even if its process is moved to another control
    /// group. Each set takes memory, 128 KiB with N=512. An address space for whose set there
    /// is no memory uses set 0. All such address spaces share set 0, and they are counted.
    /// If there was one, this command exits with 1.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub set_per: SetPer,

    /// Which pages the second segment evicts
    #[arg(long, value_enum, default_value_t)]
    pub policy: Policy,

    /// Pages that one eviction can take from the set [default: N/16, from 1 to 13]
    ///
    /// When a page enters the full set, the oldest page is evicted. With K above 1, the same
    /// eviction also takes other pages: those of the next K - 1 admissions that are in the
    /// address space of the oldest page and in no first segment. These pages are in at most
    /// four page tables that no other CPU has locked. One flush of the TLB is enough for all
    /// of them. So a larger K makes records cheaper, above all if a program has threads on
    /// several CPUs. The price is a set that is sometimes smaller: it has from
    /// N - K + 1 to N pages. K is at most 64, and N - K + 1 is at least the smallest N of
    /// the machine. With --batch 1, the set is exactly the last N pages. CLOCK evicts one
    /// page at a time.
    #[arg(
        long,
        value_name = "K",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(VMTRACE_BATCH_MAX))
    )]
    pub batch: Option<u32>,

    /// Record for each stay whether the page was referenced in the second segment
    ///
    /// When a page enters the second segment, its accessed bit is cleared and its TLB
    /// entry is flushed. With this option, each record is about one and a half times as
    /// expensive. --policy clock implies this option.
    #[arg(long)]
    pub again: bool,

    /// How the records are packed before they are written
    ///
    /// A packed trace is often a seventh to a third as large. kvmtraced, the kernel thread that
    /// writes the trace, packs the records. So the faults of traced programs take no longer.
    /// All commands of `postproc` read a packed trace, and need more processor time for it:
    /// `check` takes about one and a half times as long. `postproc pack` packs a trace
    /// afterwards, and `postproc unpack` unpacks one. `--pack=zstd` also compresses each packet
    /// by Zstandard. The trace is then a half to two thirds as large, and kvmtraced takes more
    /// time. `--pack=no` leaves packing out, for example if kvmtraced has too little time.
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_value = "columns",
        default_missing_value = "columns"
    )]
    pub pack: Pack,

    /// Add to each reference the offset of the access within its page
    ///
    /// So the address of the access is known to the byte. It is the access that faulted, which
    /// began the stay of the page. The option makes each record of a reference 8 bytes longer. The
    /// exports csv, parquet, din, moca-csv and ramulator then have exact addresses. For example,
    /// `activator run --offsets -o trace.vmt -- ls` and then
    /// `postproc export --format din trace.vmt`. The record of a second chance (--policy clock)
    /// has no offset, because no access faulted. Not for a trace from boot.
    #[arg(long)]
    pub offsets: bool,

    /// Add to each record the time that its task has spent in user mode
    ///
    /// This time is called virtual time. Neither the time of tracing's faults nor the
    /// time of other programs counts. Virtual time is measured in ticks of the time
    /// stamp counter. It makes each record 8 bytes longer. At each fault and interrupt,
    /// entering and leaving the kernel takes the same few ticks, and the kernel
    /// subtracts TICKS for this. Without TICKS, this command measures the number of
    /// these ticks before the trace begins, which takes a moment.
    #[arg(
        long,
        value_name = "TICKS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "measured",
        value_parser = parse_ticks
    )]
    pub virtual_time: Option<Ticks>,

    /// Classes of events to record, besides the events that are always recorded
    ///
    /// Events that determine which page an address refers to are always recorded:
    /// mappings, forks, copies on write, truncations and the like. `usual` means four
    /// classes. file: opens and closes of files, with name, type and length. io: reads
    /// and writes by file descriptor, with offset and bytes. shm: attachments of System
    /// V shared memory. gup: pages that the kernel accesses without the page tables of
    /// the process. `all` adds three classes about the machine. swap: pages that are
    /// swapped out and in, with their places in the swap area. frame: pages whose page
    /// frame KSM or migration exchanges. switch: context switches from and to traced
    /// tasks.
    #[arg(
        long,
        value_enum,
        value_name = "CLASS,...",
        value_delimiter = ',',
        default_value = "usual"
    )]
    pub events: Vec<Class>,

    /// Record only the references that fit an expression, such as
    /// 'comm == "cc1" && mapping ~ "*.so" && kind == write'
    ///
    /// Fields: pid, tid, comm, addr, page, kind (read, write, exec), mode (user, kernel), cpu, set,
    /// mapping, mapping_kind (anon, file, shmem, device, special, hugetlb). Operators: ==, !=, <,
    /// <=, >, >=, in (a list or a range), ~ and !~ (a pattern), &&, ||, and ! before parentheses.
    /// The kernel judges each reference by what its thread and its mapping are at that moment. A
    /// reference that does not fit faults as ever, and its page enters the set, but its record is
    /// left out of the trace. So the trace is smaller, and the run is not faster. Events are never
    /// left out. Records that are left out are counted. `activator filter` changes the expression
    /// while the trace is on. With --filter '', all references are recorded until the first
    /// change. Not for a trace from boot. docs/using.md describes the language, and what such a
    /// trace is worth ("Recording less: filters").
    #[arg(long, value_name = "EXPR", value_parser = Filter::parse)]
    pub filter: Option<Filter>,

    /// Count references by process and mapping, for `activator top`
    ///
    /// For each mapping of each process, the kernel counts the references: reads, writes,
    /// instruction fetches and accesses by the kernel. `activator top` shows these counts while
    /// the trace is on. The trace has the same records as without this option. At each reference,
    /// the kernel locks the mapping, so a reference takes a little more time. A reference that a
    /// filter leaves out is counted, too. Not for a trace from boot.
    #[arg(long)]
    pub count: bool,

    /// Trace windows of this length, and nothing between them
    ///
    /// LENGTH is a time with its unit (500us, 200ms, 1.5s, 2min), a number of references
    /// (300, 10k, 2M), or both with a comma between them. With both, the limit that is
    /// reached first ends a window. Each window begins with an empty set and a snapshot,
    /// so each window is a trace by itself. postproc reads windows with --window K or
    /// --per-window. The descendants of a traced process are traced in all later
    /// windows, even if their ancestors have ended.
    #[arg(
        long,
        value_name = "LENGTH",
        value_delimiter = ',',
        value_parser = parse_length,
        help_heading = "Windows"
    )]
    pub trace: Vec<Length>,

    /// Time from the end of a window to the beginning of the next one [default: none]
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "trace", help_heading = "Windows")]
    pub skip: Option<u64>,

    /// Number of windows [default: 1; with --skip or windows on request, no limit]
    #[arg(
        long,
        value_name = "K",
        value_parser = clap::value_parser!(u32).range(1..),
        requires = "windows_of",
        help_heading = "Windows"
    )]
    pub repeat: Option<u32>,

    /// Begin the first window at once; begin and end further windows on request
    ///
    /// `activator pause` ends the window, and `activator resume` begins the next one. A
    /// program that is traced can do so itself: it writes `pause` or `resume` to
    /// /dev/vmtrace, if it may open that device. Nothing is traced between windows, and
    /// programs run as fast as without a trace. --trace limits the length of each window, and
    /// --repeat limits their number.
    #[arg(long, conflicts_with_all = ["skip", "warmup"], help_heading = "Windows")]
    pub pausable: bool,

    /// Begin and end windows on request; trace nothing before the first request
    ///
    /// `activator resume`, or `resume` that a traced program writes to /dev/vmtrace, begins the
    /// first window. Otherwise as --pausable.
    #[arg(long, conflicts_with_all = ["skip", "warmup"], help_heading = "Windows")]
    pub paused: bool,

    /// Time before the first window [default: none]
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "trace", help_heading = "Windows")]
    pub warmup: Option<u64>,

    /// How regions are sampled
    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// How the trace is written in pieces
    #[command(flatten)]
    pub pieces: PiecesArgs,

    /// The largest N that `activator resize` can set [default: 4 N; with several sets, N]
    #[arg(long, value_name = "N", value_parser = parse_n)]
    pub max: Option<Given>,

    /// The trace: a new file, or an unmounted block device; with --rotate, a new or empty directory
    #[arg(short, long, value_name = "OUTPUT", default_value = "trace.vmt")]
    pub output: PathBuf,

    /// Overwrite OUTPUT if the file exists
    #[arg(long)]
    pub force: bool,

    /// Number of sub-buffers of each stream [default: the kernel's]
    ///
    /// If all sub-buffers are full, the traced task waits, and nothing is lost. With more
    /// or larger sub-buffers, tasks wait less often for a slow output.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(4..=65536))]
    pub buffers: Option<u32>,

    /// Size of a sub-buffer in bytes: a power of two from 4KiB to 1MiB [default:
    /// the kernel's]
    #[arg(long, value_name = "BYTES", value_parser = parse_buffer_size)]
    pub buffer_size: Option<u32>,

    /// What becomes of a record that finds no room in the sub-buffers
    ///
    /// The sub-buffers are full if the output takes records more slowly than programs make
    /// them. With `block`, the program waits until there is room, and no record is lost.
    /// With `discard`, no program waits. A record that finds no room is dropped and counted,
    /// and this command exits with 1 if there was one. `postproc` reads such a trace, and
    /// does what needs all records only with --allow-loss.
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub mode: Mode,

    /// How long a record stays in the sub-buffers at most [default: 800ms]
    ///
    /// A sub-buffer is written when it is full. The kernel also writes a sub-buffer that is
    /// not full when TIME has passed, from 100ms to 60s. So the records of a CPU that does
    /// little are soon in the output. `never` writes full sub-buffers only, until the trace
    /// or its window ends. The N pages of the set have no record yet: a record is made when
    /// its page leaves the set.
    #[arg(long, value_name = "TIME", value_parser = parse_flush)]
    pub flush: Option<u32>,

    /// How long the output may take no data before the trace fails [default: 10s]
    ///
    /// If all sub-buffers are full, traced tasks wait until the output takes data. An
    /// output can stop taking data, for example because its file system is frozen or its
    /// disk hangs. Tasks do not wait for such an output for ever. After TIME, from 1s to
    /// 60min, the kernel records no more, and the tasks go on. Records that were not
    /// written are counted as lost.
    #[arg(long, value_name = "TIME", value_parser = parse_stall)]
    pub stall_limit: Option<u32>,

    /// Print all fields of the kernel's status as JSON
    #[arg(long)]
    pub json: bool,
}

/// With --memory, N is this part of the memory.
const MEMORY: u32 = 8;

/// Lengths of a window between two that begin for a change, if the user does not say.
const SKIPPED: u64 = 19;

/// Options of traces in pieces.
#[derive(Args, Debug)]
#[group(skip)]
pub struct PiecesArgs {
    /// Write the trace in pieces, and begin the next one at WHEN
    ///
    /// WHEN is the size of a piece (300KiB, 100MiB, 2GiB), its duration (30s, 10min, 1h), or both
    /// with a comma between them: whichever comes first. The smallest size is 64KiB, the shortest
    /// duration 100ms. OUTPUT (-o, required) is a new or empty directory, and its
    /// files are 00000.vmtrace, 00001.vmtrace and so on. Each is a trace by itself, and the
    /// directory is the whole trace for `postproc`. Complete pieces can be read and copied while
    /// the trace goes on, and the oldest ones can be removed. When a piece begins, the set is emptied and all
    /// mappings are described, so pieces should be much larger than that. `activator rotate`
    /// begins a piece at any other time. With windows, a piece begins between two of them, so it may
    /// become larger. Of a trace from boot, the first piece has all that the kernel has kept since boot.
    #[arg(
        long,
        value_name = "WHEN",
        value_parser = parse_when,
        requires = "output",
        conflicts_with = "force",
        help_heading = "Pieces"
    )]
    pub rotate: Option<When>,

    /// Flight recorder: remove old pieces, and keep SIZE bytes of the newest complete ones
    ///
    /// Whenever a piece begins, the oldest complete pieces are removed, as long as the files of
    /// the other complete pieces have SIZE bytes or more. The piece that is being written does
    /// not count. So the directory has up to about two pieces more. `activator snapshot` or --snapshot-on keeps what is
    /// there when something interesting has happened. This works best with a directory in
    /// tmpfs, for example in /dev/shm. If the output is slow, tasks wait as always, unless
    /// --mode discard is given.
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_size,
        requires = "rotate",
        help_heading = "Pieces"
    )]
    pub keep: Option<u64>,

    /// Take a snapshot of all complete pieces when TRIGGER comes; tracing goes on
    ///
    /// Each snapshot is as `activator snapshot` makes it. `signal:USR1` and `signal:USR2` come
    /// when `activator run`, or the process that `activator on` leaves behind, gets this signal;
    /// `activator on` prints the number of that process. `file:PATH` comes when a file of that
    /// name appears. `exit:CODES` comes when the traced program ends with one of CODES: an exit
    /// code (139), a range (1-127), a signal (SIGSEGV is 139), or several of these with commas
    /// between them. `!` in front selects all other codes: `!0` is every code except 0. With
    /// `activator on`, it needs --pid. `rate:N` comes when there are more than N references in a
    /// second, for example rate:50k. After such a snapshot, this trigger rests for 10 s.
    /// The option can be given several times.
    #[arg(
        long,
        value_name = "TRIGGER",
        value_parser = parse_snapshot_trigger,
        requires = "rotate",
        help_heading = "Pieces"
    )]
    pub snapshot_on: Vec<SnapshotTrigger>,

    /// Directory for the snapshots, each in a directory 00000, 00001 and so on [default:
    /// OUTPUT.snapshots]
    #[arg(
        long,
        value_name = "DIR",
        requires = "snapshot_on",
        help_heading = "Pieces"
    )]
    pub snapshots: Option<PathBuf>,

    /// Largest number of snapshots; later triggers are only counted [default: 10]
    #[arg(
        long,
        value_name = "K",
        value_parser = clap::value_parser!(u32).range(1..),
        requires = "snapshot_on",
        help_heading = "Pieces"
    )]
    pub snapshot_most: Option<u32>,
}

impl PiecesArgs {
    /// When pieces begin, if the trace is to be written in pieces.
    pub fn plan(&self) -> Option<Plan> {
        let keep = self.keep;
        self.rotate.map(|when| Plan { when, keep })
    }
}

impl TraceArgs {
    /// What is given as N.
    fn given(&self) -> Vec<Option<&Given>> {
        vec![Some(&self.n), self.max.as_ref()]
    }

    /// The sizes that the arguments ask for.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            n: self.n(),
            first: self.first,
            max: self.most(),
            batch: self.batch,
            policy: self.policy,
            memory_per_page: self.memory.map(|_| MEMORY),
        }
    }

    /// N at the beginning.
    pub fn n(&self) -> Pages {
        match (self.memory, self.slowdown) {
            (Some(Pages(memory)), None) => Pages(memory / MEMORY),
            (Some(Pages(memory)), Some(_)) => self.n.pages.min(Pages(memory / MEMORY)),
            (None, _) => self.n.pages,
        }
    }

    /// The largest N that can be set later. With intervals, N is large in any case.
    pub fn most(&self) -> Option<Pages> {
        let max = self.max.as_ref().map(|given| given.pages);
        let given = max.or(self.interval.map(|_| self.n.pages));
        match (self.memory, self.slowdown) {
            (Some(Pages(memory)), Some(_)) => Some(Pages(memory / MEMORY)),
            (None, Some(_)) => given.or_else(|| Some(pace::most(self))),
            (_, None) => given,
        }
    }

    /// Whether a process looks after the trace as long as it is on.
    pub fn is_kept(&self) -> bool {
        self.pieces.rotate.is_some() || self.slowdown.is_some()
    }

    /// The windows that the arguments ask for, if any.
    pub fn windows(&self) -> Option<Windows> {
        let on_request = self.pausable || self.paused || self.sampling.on_change.is_some();
        (on_request || !self.trace.is_empty()).then(|| self.windows_as(on_request))
    }

    /// The windows, which begin on request or by the plan of the arguments.
    pub fn windows_as(&self, on_request: bool) -> Windows {
        let mut windows = Windows {
            count: match (self.repeat, self.skip) {
                (Some(count), _) => count,
                (None, None) if !on_request => 1,
                (None, _) => 0,
            },
            warmup: self.warmup.unwrap_or(0),
            skip: self.skip.unwrap_or(0),
            on_request,
            ..Windows::default()
        };
        for length in &self.trace {
            let (limit, new) = match length {
                Length::Time(ns) => (&mut windows.time, *ns),
                Length::References(n) => (&mut windows.references, *n),
            };
            // Of two lengths of one kind, the shorter one ends a window.
            if *limit == 0 || new < *limit {
                *limit = new;
            }
        }
        if self.sampling.on_change.is_some() && self.skip.is_none() {
            windows.skip = windows.time.saturating_mul(SKIPPED);
        }
        windows
    }
}

/// Arguments of `resize`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator resize 4096     fewer records from now on
  activator resize 64       more records from now on
  activator resize 16MiB    4096 pages

The trace goes on, and an event in the trace records the change. N can grow up to the
value of --max with which the trace was started.")]
pub struct ResizeArgs {
    /// Number of pages that can be referenced without a record; 4096 pages are 16MiB
    #[arg(value_name = "N", value_parser = parse_n)]
    pub n: Given,
    /// Print all fields of the kernel's status as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `filter`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator on --pid 1234 --filter '' -o part.vmt
  activator filter 'comm == \"cc1\" && kind == write'
  activator filter 'mapping ~ \"*.so*\" || mapping == \"[heap]\"'
  activator filter --none             record all references again

The trace must have been begun with --filter. An event in the trace marks the moment from
which on the new filter judges references. `activator run --help` lists the fields and the
operators at --filter.

Exits with 2 if no trace is on, if the trace was begun without --filter, or if the
expression is wrong. Exits with 1 if the trace is bad.")]
#[group(skip)]
#[command(group = ArgGroup::new("filter_of").args(["expr", "none"]).required(true))]
pub struct FilterArgs {
    /// The references that are recorded from now on; '' stands for all
    #[arg(value_name = "EXPR", value_parser = Filter::parse)]
    pub expr: Option<Filter>,
    /// Record all references from now on, as with ''
    #[arg(long)]
    pub none: bool,
    /// Print all fields of the kernel's status as JSON
    #[arg(long)]
    pub json: bool,
}

impl FilterArgs {
    /// The references that are recorded.
    pub fn filter(&self) -> Filter {
        self.expr.clone().unwrap_or_default()
    }
}

/// Arguments of `on`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator on --pid 1234                     into ./trace.vmt with N=512
  activator on -n 4096 --all -o /data/all.vmt
                                              the whole system, at low cost
  activator on --cgroup /system.slice/nginx.service
                                              a service, with what it starts
  activator on --comm 'python3*'              all processes of these names
  activator on --pid 1234 -o /dev/vdb         directly to a disk; its content is
                                              overwritten from the start
  activator on --pid 1234 --trace 10M --skip 1min
                                              windows of 10 million references, a
                                              minute between them
  activator on --all --interval 50ms -o used.vmt
                                              which pages are used in which interval
                                              of 50 ms
  activator on --all --sample 5ms -o regions.vmt
                                              how often regions of memory are used,
                                              sampled at little cost
  activator on --all --slowdown 1.05 -o cheap.vmt
                                              slows programs down by at most 5 %
  activator on --all --set-per cgroup -o services.vmt
                                              a set of 512 pages for each control
                                              group
  activator on --all --filter 'mapping_kind == file' -o files.vmt
                                              only references to mapped files
  activator on --all --rotate 1G,1h -o all    in pieces of a GiB or an hour
  activator on --all --rotate 16M --keep 256M -o /dev/shm/recent
                                              the last 256 MiB, in memory;
                                              `activator snapshot` keeps them
  activator on --early -o boot.vmt            the events that vmtrace=early on the
                                              kernel command line has kept since boot,
                                              and everything from now on
  activator on --early --rotate 1G,1h --keep 16G -o /var/tmp/boot
                                              the same in pieces; the newest 16 GiB
                                              are kept

The trace goes on when this command has ended; `activator off` ends the trace. With
--rotate, a process in the background begins the pieces. It ends with the trace, and
writes errors to OUTPUT/.keeper.log. If it is killed, the trace goes on in the present
piece: `activator rotate` and `activator snapshot` still begin pieces, but nobody
removes old pieces or waits for triggers. With --slowdown, a process in the background
changes N. Without --rotate, it writes errors to OUTPUT.keeper.log.")]
pub struct OnArgs {
    /// What to trace
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// How to trace
    #[command(flatten)]
    pub trace: TraceArgs,
}

/// The processes that `on` traces.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct ScopeArgs {
    /// Trace all processes, including those that start later
    #[arg(long)]
    pub all: bool,
    /// Trace this process, and all processes that it forks from now on
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    /// Trace the processes of this control group, and all processes that they fork
    ///
    /// GROUP is a directory, or a name as in /proc/PID/cgroup: /system.slice/cron.service. A
    /// process is traced if it is in the group or in a group below it when the trace begins,
    /// or from the moment when it is made there, is moved there, or executes a program there. A
    /// process that is moved there joins a moment later. It remains traced if it is moved
    /// elsewhere. The group must be of version 2.
    #[arg(long, value_name = "GROUP")]
    pub cgroup: Option<PathBuf>,
    /// Trace processes whose names fit this pattern, and all processes that they fork
    ///
    /// The name is that in /proc/PID/comm, of at most 15 bytes. In the pattern, * stands for any
    /// characters, ? for one character, and [...] for one of some characters. It has at most 59
    /// bytes. A process is traced if its name fits when the trace begins, or from the moment when
    /// it gets a name that fits, as by executing a program. A process that only changes its name
    /// joins a moment later. It remains traced if it gets another name.
    #[arg(long, value_name = "PATTERN", value_parser = Pattern::parse)]
    pub comm: Option<Pattern>,
    /// Take over the trace that the kernel began at boot
    ///
    /// With vmtrace=early on its command line, the kernel records the events of all
    /// processes from the first one on, and keeps the records in memory. This command makes
    /// the kernel write these records to OUTPUT, and record references from now on, too. On
    /// the kernel command line, vmtrace=early takes more options after commas: size=SIZE is
    /// the memory for the records (by default 64M, or with `refs` an eighth of the
    /// machine's, at most 512M), `refs` records references from boot on,
    /// and evms=N and classes=CLASS+... correspond to -n and --events. --pack, --rotate, --keep,
    /// --snapshot-on, --flush and --stall-limit say how the trace is written from now on.
    #[arg(long, conflicts_with_all = [
        "n", "interval", "set_per", "first", "policy", "batch", "again", "events", "max", "buffers", "buffer_size",
        "mode", "offsets", "filter", "count", "trace", "pausable", "paused", "memory", "slowdown",
        "sample", "between",
    ])]
    pub early: bool,
}

impl ScopeArgs {
    /// The processes that are to be traced.
    pub fn asked(&self) -> Asked<'_> {
        Asked {
            pid: self.pid,
            group: self.cgroup.as_deref(),
            comm: self.comm.as_ref(),
        }
    }
}

/// Arguments of `off`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator off
  activator off --json | jq .refs

Exits with 1 if the trace lost records or broke an invariant, if its output failed,
or if there was no memory for a set of --set-per. Exits with 2 if no trace was on.")]
pub struct OffArgs {
    /// Print all fields of the kernel's status as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator status
  activator status --watch          a line each second until the trace ends
  activator status --watch=0.2 --json

Exits with 1 if the trace lost records or broke an invariant, if its output failed,
or if there was no memory for a set of --set-per.")]
pub struct StatusArgs {
    /// Print all fields of the kernel's status as JSON
    #[arg(long)]
    pub json: bool,
    /// Print a line every SECS seconds until the trace ends
    #[arg(
        long,
        value_name = "SECS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = parse_seconds
    )]
    pub watch: Option<Duration>,
}

/// Arguments of `top`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator top                           all processes, until Ctrl-C
  activator top -p 1234 -N 16MiB          a process and its children; colder pages
  activator top --once -- ls -lR /usr     a command and its children, as a whole
  activator top -d 5 -n 12 --json -- make -j8
                                          a line of JSON each 5 s for a minute
  activator top --by pair --sort writes   each mapping of each process, by writes
  activator top --by ring                 each ring of records, the fullest first

What is counted are references: accesses to a page outside the set of the last N pages.
They fault, so the kernel sees them. Accesses to the N pages of the set are not counted. A
greater N shows the colder part, and slows programs down less.

The line `rings` shows whether the output keeps up. Each CPU has a ring of sub-buffers for
records of references, and another one for events. The fill of a ring is the part of its
sub-buffers that are not free at the end of the interval. The sub-buffer that is being
filled is not free, even if it has one record only: with 8 sub-buffers, a ring that is in
use is at least 12.5% full. A ring keeps a reserve for tasks that cannot wait, so other
tasks may wait before the ring is 100% full. The line begins with LOST if records were
lost in the interval.

If a trace is on, `top` shows that trace, and never ends it. A trace that was begun
without --count has no counts of processes and mappings, but it has rings. If no trace
is on, `top` begins one that only counts: nothing is recorded or written. That trace ends
with `top`: after the last round, at a signal such as Ctrl-C, when CMD ends, or when
nobody reads the output any more. If `top` is killed, the trace goes on;
`activator off` ends it.

On a terminal, the table is redrawn in place, and what CMD writes to the terminal is
discarded. Otherwise, and with --once or --json, the table or the line of JSON is printed
after each interval, and the standard output of CMD goes to standard error. After the
last round, CMD goes on untraced, and `top` waits for it.

Exit codes:
  any  CMD's own exit code, if the trace is good
  0    without CMD: the trace is good
  1    the trace is bad, whatever CMD's code was, or somebody has ended it before `top`
  2    wrong usage, or a refusal by the kernel; the message states what to do
  126  CMD cannot be executed
  127  CMD does not exist
  129, 130, 131, 143  ended by SIGHUP, SIGINT (Ctrl-C), SIGQUIT, SIGTERM")]
pub struct TopArgs {
    /// Length of an interval, in seconds [default: 1]
    ///
    /// With --once and CMD, the default is the whole run of CMD.
    #[arg(short, long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub delay: Option<Duration>,

    /// Number of intervals [default: no limit]
    #[arg(short = 'n', long, value_name = "ROUNDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,

    /// Print one table, and end
    #[arg(long, conflicts_with = "rounds")]
    pub once: bool,

    /// What each row is about
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub by: By,

    /// The order of rows [default: refs; with --by ring: full]
    #[arg(long, value_enum, value_name = "KEY")]
    pub sort: Option<Sort>,

    /// Rows of each table, at most [default: as many as there are, or fit on the terminal]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: Option<u32>,

    /// Print an object of JSON in a line for each interval
    ///
    /// docs/using.md describes the fields.
    #[arg(long)]
    pub json: bool,

    /// Count this process, and all processes that it forks from now on
    #[arg(
        short,
        long,
        value_name = "PID",
        value_parser = clap::value_parser!(i32).range(1..),
        conflicts_with = "command"
    )]
    pub pid: Option<i32>,

    /// Count the processes of this control group, and all processes that they fork
    ///
    /// As --cgroup of `activator on`.
    #[arg(long, value_name = "GROUP", conflicts_with_all = ["command", "pid"])]
    pub cgroup: Option<PathBuf>,

    /// Count processes whose names fit this pattern, and all processes that they fork
    ///
    /// As --comm of `activator on`.
    #[arg(
        long,
        value_name = "PATTERN",
        value_parser = Pattern::parse,
        conflicts_with_all = ["command", "pid", "cgroup"]
    )]
    pub comm: Option<Pattern>,

    /// Size of the set: the number of pages that can be referenced without a count [default: 512]
    ///
    /// As -n of `activator run`. 4096 pages are 16MiB.
    #[arg(short = 'N', value_name = "N", value_parser = parse_n, allow_negative_numbers = true)]
    pub n: Option<Given>,

    /// What has a set of N pages of its own [default: all]
    ///
    /// As --set-per of `activator run`. With `process`, the counts of a process do not depend
    /// on what other processes do.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub set_per: Option<SetPer>,

    /// Time of one reference, in nanoseconds; 0 leaves the estimate out
    ///
    /// `top` multiplies the number of references by this time: that is about how much of a
    /// CPU's time references take, and how much they slow programs down. Without this option,
    /// `top` measures the time before it begins a trace of its own, which takes a moment. It is
    /// the median time of a read by one thread, in a set of at most 1024 pages. It does not
    /// contain what other CPUs lose when a page is flushed there. For a trace that somebody
    /// else has begun, nothing is estimated without this option.
    #[arg(long, value_name = "NS", value_parser = parse_cost)]
    pub cost: Option<f64>,

    /// A command and its arguments: count it and its children
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

impl TopArgs {
    /// The processes that are to be counted, unless there is a command.
    pub fn asked(&self) -> Asked<'_> {
        Asked {
            pid: self.pid,
            group: self.cgroup.as_deref(),
            comm: self.comm.as_ref(),
        }
    }

    /// The order of rows; refuses one that the tables do not have.
    pub fn order(&self) -> Result<Sort, String> {
        let sort = self.sort.unwrap_or_else(|| self.by.sort());
        let is_by_ring = self.by == By::Ring;
        match is_by_ring {
            true if !sort.is_of_rings() => Err("this --sort is for rows of processes and \
                mappings; with --by ring, use full, waiting, records, lost, total or cpu"
                .to_owned()),
            false if !sort.is_of_counts() => {
                Err("this --sort is for rows of rings; add --by ring".to_owned())
            }
            _ => Ok(sort),
        }
    }
}

/// What rows of `top` are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// Processes.
    Process,
    /// Mappings, in all processes.
    Mapping,
    /// Two tables: of processes and of mappings.
    #[default]
    Both,
    /// Each mapping of each process.
    Pair,
    /// Rings of sub-buffers: how full they are, and what was lost.
    Ring,
}

impl By {
    /// The order of rows, if it is not given.
    pub fn sort(self) -> Sort {
        match self {
            Self::Ring => Sort::Full,
            _ => Sort::Refs,
        }
    }

    /// The tables of counts.
    pub fn tables(self) -> Vec<Of> {
        match self {
            Self::Process => vec![Of::Process],
            Self::Mapping => vec![Of::Mapping],
            Self::Both => vec![Of::Process, Of::Mapping],
            Self::Pair => vec![Of::Pair],
            Self::Ring => Vec::new(),
        }
    }
}

/// Arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  activator run -- ls -lR /usr                    into ./trace.vmt with N=512
  activator run -n 64 -o db.vmt -- sqlite3 test.db <queries.sql
  activator run --warmup 10s --trace 200ms --skip 5s --repeat 10 -- ./simulation
  activator run --wait-all -- sh -c 'daemon & exit'
  activator run --set-per process -- make -j8     a set for each process
  activator run -- runuser -u alice -- make       CMD as another user than root
  activator run --filter 'comm == \"cc1\" && kind == write' -- make
                                                  only writes by threads named cc1
  activator run --windows list.csv -- ./simulation
                                                  the windows that list.csv has
  activator run --resume-on signal:USR1 --pause-on signal:USR2 -- ./server
  activator run --rotate 100M -o pieces -- make   files of about 100 MiB
  activator run --rotate 16M --keep 256M --snapshot-on 'exit:!0' -o recent -- ./server
                                                  the last 256 MiB before a crash

Tracing starts just before CMD is executed, and ends when CMD itself has ended.
Children that outlive CMD go on untraced, unless --wait-all is given. The summary
goes to standard error, because standard output belongs to CMD. Interrupts from
the terminal reach CMD, and do not end this command, which forwards SIGTERM and
SIGHUP to CMD. If this command is killed, CMD and the trace go on;
`activator off` ends the trace.

Exit codes:
  any  CMD's own exit code, if the trace is good
  128 and more  a signal killed CMD: 128 + the number of the signal
  1    the trace is bad, whatever CMD's code was
  2    tracing could not start; or, with --rotate, the last rotation or a
       snapshot failed
  126  CMD cannot be executed
  127  CMD does not exist
  129, 130, 131, 143  SIGHUP, SIGINT, SIGQUIT or SIGTERM came before CMD was
       started")]
pub struct RunArgs {
    /// How to trace
    #[command(flatten)]
    pub trace: TraceArgs,
    /// Trace the windows that FILE lists
    ///
    /// Each line of FILE has the time at which a window begins, a comma, and the time at which
    /// it ends: `1.5s,2s`. Times count from the start of CMD. The windows are in order and do
    /// not overlap. Empty lines and lines that begin with # are ignored. --trace limits the
    /// length of each window, and --repeat limits their number.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["skip", "warmup", "slowdown", "sample"],
        group = "windows_of",
        help_heading = "Windows"
    )]
    pub windows: Option<PathBuf>,

    /// Begin a window when TRIGGER comes, and trace nothing before the first
    ///
    /// `signal:USR1` and `signal:USR2` are signals to this command, not to CMD. `file:PATH`
    /// comes when a file of that name appears. This command looks for the file every 50 ms.
    /// If the file exists already at the start, this command exits with 2. If the file is
    /// removed, it can appear again. The option can be given several times; each of the
    /// triggers begins a window. A trigger that comes while a window is open, or before CMD has
    /// begun, does nothing.
    #[arg(
        long,
        value_name = "TRIGGER",
        value_parser = parse_trigger,
        conflicts_with_all = ["skip", "warmup", "slowdown", "sample"],
        group = "windows_of",
        help_heading = "Windows"
    )]
    pub resume_on: Vec<Trigger>,

    /// End the window when TRIGGER comes
    ///
    /// The triggers are those of --resume-on. The option can be given several times; each of
    /// the triggers ends the window. Without --resume-on, --windows and --paused, the first
    /// window begins with CMD. A trigger that comes while no window is open does nothing.
    #[arg(
        long,
        value_name = "TRIGGER",
        value_parser = parse_trigger,
        conflicts_with_all = ["skip", "warmup", "slowdown", "sample"],
        group = "windows_of",
        help_heading = "Windows"
    )]
    pub pause_on: Vec<Trigger>,

    /// Trace until all descendants of CMD have ended
    #[arg(long)]
    pub wait_all: bool,
    /// Print no summary
    #[arg(short, long)]
    pub quiet: bool,
    /// Also write the final status to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub status_file: Option<PathBuf>,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

impl RunArgs {
    /// What is given as N, for whoever wants to know how it was understood.
    fn given(&self) -> Vec<Option<&Given>> {
        match self.quiet {
            true => Vec::new(),
            false => self.trace.given(),
        }
    }
}

/// Arguments of `record`: those of [`RunArgs`] and of [`OnArgs`].
#[derive(Args, Debug)]
#[command(
    about = "Trace a command, or running processes until Ctrl-C",
    long_about = None,
    after_help = RECORD_HELP,
    mut_arg("command", |command| command.required(false)),
    mut_arg("wait_all", |arg| arg.conflicts_with("ScopeArgs")),
    mut_arg("status_file", |arg| arg.conflicts_with("ScopeArgs")),
    mut_arg("windows", |arg| arg.conflicts_with("ScopeArgs")),
    mut_arg("resume_on", |arg| arg.conflicts_with("ScopeArgs")),
    mut_arg("pause_on", |arg| arg.conflicts_with("ScopeArgs")),
    mut_group("ScopeArgs", |group| group.required(false)),
    group = ArgGroup::new("recorded")
        .args(["command", "all", "pid", "cgroup", "comm", "early"])
        .required(true)
)]
pub struct RecordArgs {
    /// The processes, if there is no command
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// End the trace after this time: 500ms, 30s, 5min
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time, conflicts_with = "command")]
    pub duration: Option<u64>,
    /// How to trace, and the command
    #[command(flatten)]
    pub run: RunArgs,
}

const RECORD_HELP: &str = "\
Examples:
  activator record ls -lR /usr            a command and its children, into ./trace.vmt
  activator record -o db.vmt sqlite3 test.db 'select 1'
  activator record -p 1234                a process, and what it forks, until Ctrl-C
  activator record --all --for 30s -o all.vmt
                                          all processes, for 30 seconds
  activator record --comm 'python3*' -o python.vmt
                                          all processes of these names
  activator record -n 16MiB --filter 'kind == write' -- make
                                          only writes; the set has 16 MiB

With CMD, the trace ends when CMD has ended, as with `activator run`, and the exit code is
that of CMD. Otherwise the trace ends at the first of these: Ctrl-C (or SIGTERM, SIGHUP,
SIGQUIT), the end of --for, or the end of the process of --pid. The exit code is then 0 if
the trace is good, and 1 if it is bad. A short summary goes to standard error, with the
commands that come next. With --json, the kernel's status goes to standard output after
the end; with CMD, it goes to standard error.

`activator on` and `activator off` begin and end a trace without waiting in between. If
`record` is killed, the trace goes on, and `activator off` ends it.";

impl RunArgs {
    /// Whether windows begin and end on request.
    pub fn is_on_request(&self) -> bool {
        let trace = &self.trace;
        trace.pausable || !self.pause_on.is_empty() || self.begins_paused()
    }

    /// Whether nothing is traced when the command begins.
    pub fn begins_paused(&self) -> bool {
        let on_change = self.trace.sampling.on_change.is_some() && !self.trace.pausable;
        self.trace.paused || on_change || self.windows.is_some() || !self.resume_on.is_empty()
    }

    /// All triggers, and whether each begins a window.
    pub fn triggers(&self) -> Vec<(Trigger, bool)> {
        let with = |list: &[Trigger], begin| -> Vec<_> {
            list.iter().map(|t| (t.clone(), begin)).collect()
        };
        [with(&self.resume_on, true), with(&self.pause_on, false)].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use rust_mm_trace::uapi::VMTRACE_VERSION;

    #[test]
    fn is_consistent() {
        Cli::command().debug_assert();
    }

    fn run_args(line: &[&str]) -> RunArgs {
        match Cli::try_parse_from(line).map(|c| c.command) {
            Ok(Command::Run(args)) => args,
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn command_keeps_its_options() {
        for line in [
            &["activator", "run", "-n", "4096", "--", "ls", "-l", "--json"][..],
            &["activator", "run", "-n", "4096", "ls", "-l", "--json"],
        ] {
            let args = run_args(line);
            assert_eq!(args.command, ["ls", "-l", "--json"]);
            assert_eq!(args.trace.n.pages, Pages(4096));
            assert!(!args.trace.json);
        }
    }

    #[test]
    fn windows() {
        let windows = |args: &[&str]| {
            let line = [&["activator", "run"], args, &["--", "ls"]].concat();
            run_args(&line).trace.windows()
        };
        assert_eq!(windows(&[]), None);
        let ms = 1_000_000;
        let mut want = Windows {
            count: 1,
            time: 200 * ms,
            ..Windows::default()
        };
        assert_eq!(windows(&["--trace", "200ms"]), Some(want));
        (want.count, want.skip, want.references) = (0, 5000 * ms, 300_000);
        assert_eq!(
            windows(&["--trace", "300k,200ms", "--skip", "5s"]),
            Some(want)
        );
        (want.count, want.warmup) = (10, ms / 1000);
        let all = "--trace 1M,200ms,300k --skip 5s --repeat 10 --warmup 1us";
        let all: Vec<_> = all.split(' ').collect();
        assert_eq!(windows(&all), Some(want));
        for line in [
            "--skip 5s",
            "--repeat 2",
            "--warmup 1s",
            "--trace 1s --repeat 0",
        ] {
            let line = format!("activator run {line} -- ls");
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn repeat_limits_windows_of_all_kinds() {
        let go = "file:go";
        for options in [
            &["--trace", "1s"][..],
            &["--trace", "1s", "--skip", "1s"],
            &["--pausable"],
            &["--paused"],
            &["--paused", "--trace", "10k"],
            &["--windows", "list.csv"],
            &["--windows", "list.csv", "--trace", "1s"],
            &["--resume-on", go],
            &["--pause-on", go],
            &["--resume-on", go, "--pause-on", "signal:USR1"],
            &["--resume-on", go, "--trace", "1M,1s"],
            &["--paused", "--resume-on", go],
            &["--pausable", "--windows", "list.csv", "--pause-on", go],
        ] {
            let line = [&["activator", "run", "--repeat", "3"], options, &["ls"]].concat();
            let args = run_args(&line);
            assert_eq!(args.trace.repeat, Some(3), "{options:?}");
            let windows = args.trace.windows_as(args.is_on_request());
            assert_eq!(windows.count, 3, "{options:?}");
        }
        let refused = |line: &[&str]| match Cli::try_parse_from(line) {
            Ok(cli) => panic!("{line:?}: {cli:?}"),
            Err(error) => error.to_string(),
        };
        for (line, all) in [
            (
                &["activator", "run", "--repeat", "3", "ls"][..],
                "<--trace <LENGTH>|--pausable|--paused|--windows <FILE>|--resume-on <TRIGGER>|\
                 --pause-on <TRIGGER>>",
            ),
            (
                &["activator", "on", "--all", "--repeat", "3"],
                "<--trace <LENGTH>|--pausable|--paused>",
            ),
        ] {
            let error = refused(line);
            assert!(error.contains(all), "{error}");
        }
        // The windows of a plan and those on request exclude each other.
        for options in [
            &["--windows", "list.csv", "--trace", "1s", "--skip", "1s"][..],
            &["--resume-on", go, "--trace", "1s", "--warmup", "1s"],
        ] {
            let line = [&["activator", "run", "--repeat", "3"], options, &["ls"]].concat();
            assert!(
                refused(&line).contains("cannot be used with"),
                "{options:?}"
            );
        }
        let early = ["activator", "on", "--early", "--repeat", "3", "--pausable"];
        assert!(refused(&early).contains("cannot be used with"));
    }

    #[test]
    fn defaults() {
        let args = run_args(&["activator", "run", "--", "ls"]);
        assert_eq!(args.trace.n.pages, Pages(512));
        assert_eq!(args.trace.output, PathBuf::from("trace.vmt"));
        assert_eq!((args.trace.buffers, args.trace.buffer_size), (None, None));
        assert_eq!(args.trace.batch, None);
        assert_eq!(args.trace.set_per, SetPer::All);
    }

    #[test]
    fn pieces() {
        let plan = |args: &[&str]| {
            let line = [&["activator", "run", "-o", "d"], args, &["--", "ls"]].concat();
            run_args(&line).trace.pieces.plan()
        };
        assert!(plan(&[]).is_none());
        let got = plan(&["--rotate", "1G,10min", "--keep", "4G"]).expect("pieces");
        assert_eq!(got.when.bytes, Some(1 << 30));
        assert_eq!(got.when.time, Some(Duration::from_secs(600)));
        assert_eq!(got.keep, Some(4 << 30));
        for (line, why) in [
            ("run --rotate 1G -- ls", "--output <OUTPUT>"),
            ("run --rotate 10m -o d -- ls", "min for minutes"),
            ("run --keep 1G -o d -- ls", "--rotate <WHEN>"),
            ("run --snapshot-on exit:0 -o d -- ls", "--rotate <WHEN>"),
            ("run --rotate 1G --snapshots e -o d -- ls", "--snapshot-on"),
            (
                "run --rotate 1G --snapshot-on exit:x -o d -- ls",
                "\"x\": give",
            ),
            ("run --rotate 1G --force -o d -- ls", "cannot be used with"),
            ("on --early --rotate 1G", "--output <OUTPUT>"),
        ] {
            let line = format!("activator {line}");
            let e = Cli::try_parse_from(line.split(' ')).expect_err(&line);
            assert!(e.to_string().contains(why), "{line}: {e}");
        }
    }

    #[test]
    fn filters() {
        let filter = |args: &[&str]| {
            let line = [&["activator", "run"], args, &["--", "ls"]].concat();
            run_args(&line).trace.filter
        };
        assert_eq!(filter(&[]), None);
        assert_eq!(filter(&["--filter", ""]), Some(Filter::All));
        let text = "comm == \"cc1\" && kind == write";
        let got = filter(&["--filter", text, "--set-per", "process", "--pack"]);
        assert_eq!(got.as_ref().map(Filter::text), Some(text));
        for more in [
            &["--trace", "1s", "--skip", "1s"][..],
            &["--paused"],
            &["--rotate", "1M", "-o", "d"],
        ] {
            assert!(filter(&[more, &["--filter", text]].concat()).is_some());
        }
        for (line, why) in [
            (
                &["run", "--filter", "knd == write", "ls"][..],
                "there is no field `knd`\n  knd == write\n  ^^^\n  did you mean `kind`?",
            ),
            (
                &["on", "--all", "--filter", "kind == seen"],
                "never `seen`\n  kind == seen\n          ^^^^\n",
            ),
            (
                &["on", "--early", "--filter", "pid == 1"],
                "'--early' cannot be used with '--filter <EXPR>'",
            ),
            (
                &["on", "--early", "--filter", ""],
                "'--early' cannot be used with '--filter <EXPR>'",
            ),
        ] {
            let line = [&["activator"], line].concat();
            let e = Cli::try_parse_from(&line).expect_err("refused").to_string();
            assert!(e.contains(why), "{line:?}: {e}");
        }
        let line = |args: &[&str]| {
            let line = [&["activator", "filter"], args].concat();
            match Cli::try_parse_from(&line).map(|c| c.command) {
                Ok(Command::Filter(args)) => Some(args.filter()),
                _ => None,
            }
        };
        assert_eq!(line(&["--none"]), Some(Filter::All));
        assert_eq!(line(&[""]), Some(Filter::All));
        assert_eq!(line(&[]), None);
        assert_eq!(line(&["", "--none"]), None);
        assert_eq!(line(&[text]).as_ref().map(Filter::text), Some(text));
    }

    #[test]
    fn version_is_the_kernels() {
        let want = format!("(kernel interface {VMTRACE_VERSION})");
        let version = Cli::command().render_long_version();
        assert!(version.contains(&want), "{version}");
    }

    #[test]
    fn sets() {
        for (value, want) in [
            ("all", SetPer::All),
            ("process", SetPer::Process),
            ("cgroup", SetPer::Cgroup),
        ] {
            let args = run_args(&["activator", "run", "--set-per", value, "--", "ls"]);
            assert_eq!(args.trace.set_per, want);
            let line = ["activator", "on", "--all", "--set-per", value];
            match Cli::try_parse_from(line).map(|c| c.command) {
                Ok(Command::On(args)) => assert_eq!(args.trace.set_per, want),
                other => panic!("{value}: {other:?}"),
            }
            let line = ["activator", "on", "--early", "--set-per", value];
            assert!(Cli::try_parse_from(line).is_err(), "{value}");
        }
        for bad in [
            "",
            "one",
            "task",
            "cgroups",
            "Process",
            "process,cgroup",
            "1",
        ] {
            let line = ["activator", "run", "--set-per", bad, "--", "ls"];
            let error = Cli::try_parse_from(line).expect_err(bad).to_string();
            assert!(
                error.contains("all, process, cgroup") || bad.is_empty(),
                "{error}"
            );
        }
        let line = ["activator", "run", "--set-per", "--", "ls"];
        assert!(Cli::try_parse_from(line).is_err());
    }

    #[test]
    fn records_are_packed_by_default() {
        for (options, want) in [
            (&[][..], Pack::Columns),
            (&["--pack"], Pack::Columns),
            (&["--pack=columns"], Pack::Columns),
            (&["--pack=zstd"], Pack::Zstd),
            (&["--pack=no"], Pack::No),
        ] {
            let line = [&["activator", "run"], options, &["--", "ls"]].concat();
            assert_eq!(run_args(&line).trace.pack, want, "{options:?}");
            for scope in [&["--all"][..], &["--early"]] {
                let line = [&["activator", "on"], scope, options].concat();
                match Cli::try_parse_from(line).map(|c| c.command) {
                    Ok(Command::On(args)) => assert_eq!(args.trace.pack, want, "{options:?}"),
                    other => panic!("{options:?}: {other:?}"),
                }
            }
        }
        // The value needs the equals sign, or else a command could be taken for it.
        let args = run_args(&["activator", "run", "--pack", "zstd"]);
        assert_eq!(
            (args.trace.pack, args.command),
            (Pack::Columns, vec!["zstd".into()])
        );
    }

    #[test]
    fn batches() {
        let args = run_args(&["activator", "run", "--batch", "64", "--", "ls"]);
        assert_eq!(args.trace.sizes().batch, Some(64));
        for bad in ["0", "65", "-1", "8k", ""] {
            let line = ["activator", "run", "--batch", bad, "--", "ls"];
            assert!(Cli::try_parse_from(line).is_err(), "{bad}");
        }
    }
}
