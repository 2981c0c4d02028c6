//! Boots kVMTrace's kernels in QEMU: tests, the main job, a shell.

use anyhow::Result;
use clap::{Parser, Subcommand};
use runner::{Keep, run_all};
use std::num::NonZero;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

mod bench;
mod compare;
mod counting;
mod cpio;
mod demo;
mod fidelity;
mod fixtures;
mod gallery;
mod loads;
mod machine;
mod metal;
mod oracle;
mod paths;
mod postproc;
mod runner;
mod scenarios;
mod shared;
mod shell;
mod targets;

#[derive(Parser)]
#[command(
    version,
    about,
    after_help = "Examples:\n  qemu-test list\n  qemu-test run programs-64-exact\n  qemu-test all --kernel lockdep\n  qemu-test demo -n 512"
)]
struct Cli {
    /// Number of guests at a time [default: one for each CPU]. If there are several, one more runs
    /// beside them that waits most of the time
    #[arg(short, long, global = true, value_name = "J")]
    jobs: Option<NonZero<usize>>,
    /// Keep the disks and traces of scenarios that pass, too; `run` always does
    #[arg(long, global = true)]
    keep: bool,
    /// More options for the command line of each guest's kernel. In a shell, vmtrace=early traces
    /// from boot on; vmtrace_break=noflush shows what a scenario finds without that protection
    #[arg(long, global = true, value_name = "OPTIONS")]
    cmdline: Option<String>,
    /// The model of each guest's CPU, as QEMU names it [default: for scenarios, all features except fast string
    /// operations, which the emulator executes slowly; max for what measures, `oracle`, `shell` and `demo`]
    #[arg(long, global = true, value_name = "MODEL")]
    cpu: Option<String>,
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// List the scenarios
    List,
    /// Run scenarios whose names contain one of the words
    Run {
        /// Words to look for in the names
        #[arg(required = true)]
        words: Vec<String>,
        /// Kernel flavour
        #[arg(long, default_value = "base")]
        kernel: String,
    },
    /// Run all scenarios
    All {
        /// Leave out scenarios that take long, if another one shows the same
        #[arg(long)]
        quick: bool,
        /// Kernel flavour
        #[arg(long, default_value = "base")]
        kernel: String,
    },
    /// Remove each protection of the kernel, and check that a test fails
    Controls {
        /// Kernel flavour
        #[arg(long, default_value = "base")]
        kernel: String,
    },
    /// Compare traces of the release kernel with those of debug kernels
    Same,
    /// Compare programs' traces with the oracle's, record by record
    Oracle {
        /// Words to look for in the names [default: all names]
        words: Vec<String>,
        /// Take the words as names of programs, and run each with all sets, many in one boot
        #[arg(long, conflicts_with = "walks")]
        table: bool,
        /// Run this many long random walks instead
        #[arg(long, value_name = "SEEDS")]
        walks: Option<u32>,
        /// The first walk's seed
        #[arg(long, default_value_t = 100, requires = "walks")]
        seed: u32,
        /// The set for the walks [default: FIFOs of three sizes in turn]
        #[arg(long, value_name = "N[-again|-clock[-FIRST]]", requires = "walks")]
        set: Option<scenarios::oracle::Set>,
        /// Kernel flavour
        #[arg(long, default_value = "base")]
        kernel: String,
    },
    /// Run difficult cases with all kinds of sets, and long stress
    Corners {
        /// Words to look for in the names [default: all names]
        words: Vec<String>,
        /// Seeds of the scenarios that look for races [default: some hundreds]
        #[arg(long, value_name = "FIRST..END", value_parser = scenarios::races::seeds)]
        seeds: Option<Range<u64>>,
        /// Kernel flavour
        #[arg(long, default_value = "base")]
        kernel: String,
    },
    /// Look for races on four CPUs, seed after seed, until there were so many admissions
    #[command(after_help = "Examples:
  qemu-test races --admissions 1000000 --seed 5000
  qemu-test races --repeat 5000..5005        a boot of that run, twice
  qemu-test races --repeat 5003              one seed by itself, which is another race
  qemu-test races --short --repeat 110..120  a boot of `corners` on two CPUs in turns")]
    Races {
        /// Admissions in all
        #[arg(long, value_name = "COUNT", default_value_t = 100_000_000)]
        admissions: u64,
        /// The first seed; a run that was ended goes on with the one that it printed last
        #[arg(long, default_value_t = 100_000)]
        seed: u64,
        /// Run these seeds in one boot, then in another one, and compare all that they print and
        /// all traces, byte by byte
        #[arg(long, value_name = "SEED|FIRST..END", value_parser = scenarios::races::repeated,
            conflicts_with_all = ["admissions", "seed"])]
        repeat: Option<Range<u64>>,
        /// Repeat the programs of `corners`, on two CPUs
        #[arg(long, requires = "repeat")]
        short: bool,
        /// Kernel flavour
        #[arg(long, default_value = "base")]
        kernel: String,
    },
    /// Compare what observers report of programs with all references of the same runs
    #[command(after_help = "Examples:
  qemu-test compare
  qemu-test compare sqlite3 gcc --quick
  qemu-test compare --instructions
  qemu-test compare python3 'N = 64' DAMON --json build/out/compare.json")]
    Compare {
        /// Words to look for in the names of programs and of observers [default: all names]
        words: Vec<String>,
        /// Small loads
        #[arg(long)]
        quick: bool,
        /// Only the factors by which instructions grow
        #[arg(long, conflicts_with = "json")]
        instructions: bool,
        /// Also write all figures of each row to this file
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Kernel flavour [default: the one without what is for debugging the tracer]
        #[arg(long, default_value = "release", hide_default_value = true)]
        kernel: String,
    },
    /// Compare a trace with a log of the oracle
    Diff {
        /// The trace
        trace: PathBuf,
        /// The log
        log: PathBuf,
    },
    /// Trace sqlite3 and gcc, check the trace, write a report and simulator input
    Demo {
        /// Pages in the set
        #[arg(short, default_value_t = 512)]
        n: u32,
        /// Kernel flavour
        #[arg(long, default_value = "base")]
        kernel: String,
    },
    /// Measure costs: instructions under icount, slowdown of real programs, two CPUs against one
    #[command(after_help = "Examples:
  qemu-test bench
  qemu-test bench --references
  qemu-test bench --programs 64,512
  qemu-test bench --programs 64 --batch 8
  qemu-test bench --two-cpus --json")]
    Bench {
        /// Only the instruction counts, which take seconds
        #[arg(long)]
        quick: bool,
        /// Only the instruction counts of traced references; needs no unpatched kernel
        #[arg(long)]
        references: bool,
        /// Only what sqlite3 and gcc cost with sets of these sizes; needs no unpatched kernel
        #[arg(long, value_name = "N", value_delimiter = ',', num_args = 1..)]
        programs: Option<Vec<u32>>,
        /// The same with batches of this size
        #[arg(long, value_name = "K", requires = "programs")]
        batch: Option<u32>,
        /// Only the references a second of one process on one CPU, and of two processes and two
        /// threads on two CPUs, each CPU in a thread of the host; needs no unpatched kernel
        #[arg(long, conflicts_with_all = ["quick", "references", "programs"])]
        two_cpus: bool,
        /// Print these as JSON, without targets
        #[arg(long, requires = "two_cpus")]
        json: bool,
        /// Kernel flavour [default: the one without what is for debugging the tracer]
        #[arg(long, default_value = "release", hide_default_value = true)]
        kernel: String,
    },
    /// Count what a reference costs on several CPUs: instructions, locks, shared lines, interrupts
    #[command(after_help = "Examples:
  qemu-test count
  qemu-test count --cpus 2 --json
  qemu-test count 'K=13, two threads' --cpus 8,64
  qemu-test count --cpus 1 --functions
  qemu-test count --plot build/scaling.svg")]
    Count {
        /// Words to look for in the names of tracers and programs, such as 'mprotect, two threads' [default: all names]
        words: Vec<String>,
        /// CPUs of the guests
        #[arg(long, value_delimiter = ',', default_values_t = counting::CPUS)]
        cpus: Vec<usize>,
        /// Print all figures, for each lock and line too, as JSON, without targets
        #[arg(long)]
        json: bool,
        /// Also print, for each reference, the instructions of the functions that run most
        #[arg(long, value_name = "MOST", num_args = 0..=1, default_missing_value = "20")]
        functions: Option<usize>,
        /// Draw how many references CPUs can admit at a time
        #[arg(long, value_name = "SVG")]
        plot: Option<PathBuf>,
        /// Kernel flavour [default: the one without what is for debugging the tracer]
        #[arg(long, default_value = "release", hide_default_value = true)]
        kernel: String,
    },
    /// Compare simulations of traces with those of all references of the same runs
    Fidelity {
        /// Words to look for in the names of programs and of sets [default: all names]
        words: Vec<String>,
        /// Small loads, and sets of 64 pages only
        #[arg(long)]
        quick: bool,
        /// Kernel flavour
        #[arg(long, default_value = "base")]
        kernel: String,
    },
    /// Make the small traces that tests on the host use
    Fixtures {
        /// Kernel flavour
        #[arg(long, default_value = "base")]
        kernel: String,
    },
    /// Make the traces of docs/gallery.md
    Gallery {
        /// Words to look for in the names: sqlite3, gcc, python3, redis, boot [default: all]
        words: Vec<String>,
        /// The directory for the traces [default: build/gallery]
        #[arg(short, long, value_name = "DIR")]
        output: Option<PathBuf>,
        /// Kernel flavour
        #[arg(long, default_value = "base")]
        kernel: String,
    },
    /// Install our packages in a Debian 13 on a disk, boot our kernel from it, trace there as a user, and remove
    /// all of it again
    Metal,
    /// Open a shell in the patched guest, with the tools on PATH; `exit` or Ctrl-A x ends the guest
    Shell {
        /// The directory of the host that is /shared in the guest [default: build/shared]
        #[arg(long, value_name = "DIR")]
        shared: Option<PathBuf>,
        /// Kernel flavour
        #[arg(long, default_value = "base")]
        kernel: String,
    },
}

/// Runs what has a boot for itself and, if `many`, what shares one; the table of both
/// comes last.
fn compare_all(
    list: Vec<scenarios::Scenario>,
    words: &[String],
    many: bool,
    kernel: &str,
    jobs: NonZero<usize>,
    keep: Keep,
) -> Result<()> {
    let mut list = list;
    list.retain(|s| words.is_empty() || words.iter().any(|w| s.name.contains(w.as_str())));
    let rows = if many {
        scenarios::oracle::table(words, kernel, jobs)
    } else {
        vec![]
    };
    let alone = if many && list.is_empty() {
        Ok(())
    } else {
        run_all(&list, kernel, jobs, keep)
    };
    let all = scenarios::oracle::print(rows);
    alone.and(all)
}

impl Cmd {
    /// The CPU of guests that are for people, whose instructions and references are counted, or that prove
    /// something at length; of the others, nothing in particular.
    fn cpu(&self) -> Option<String> {
        let all = matches!(
            self,
            Cmd::Oracle { .. }
                | Cmd::Fidelity { .. }
                | Cmd::Compare { .. }
                | Cmd::Bench { .. }
                | Cmd::Count { .. }
                | Cmd::Same
                | Cmd::Demo { .. }
                | Cmd::Fixtures { .. }
                | Cmd::Gallery { .. }
                | Cmd::Shell { .. }
        );
        all.then(|| machine::ALL_FEATURES.into())
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let handler = ctrlc::set_handler(|| {
        machine::kill_children();
        std::process::exit(130);
    });
    if let Err(e) = handler {
        eprintln!("warning: Ctrl-C may leave QEMU behind: {e}");
    }
    let jobs = cli.jobs.unwrap_or_else(runner::default_jobs);
    if let Some(cmdline) = cli.cmdline {
        machine::CMDLINE.get_or_init(|| cmdline);
    }
    if let Some(cpu) = cli.cpu.or_else(|| cli.command.cpu()) {
        machine::CPU.get_or_init(|| cpu);
    }
    let keep = if cli.keep { Keep::All } else { Keep::Failed };
    let result = match &cli.command {
        Cmd::List => {
            for s in scenarios::all() {
                println!("{:<32} {}", s.name, s.about);
            }
            Ok(())
        }
        Cmd::Run { words, kernel } => {
            let mut list = scenarios::all();
            list.retain(|s| words.iter().any(|w| s.name.contains(w.as_str())));
            run_all(&list, kernel, jobs, Keep::All)
        }
        Cmd::All { quick, kernel } => {
            let mut list = match quick {
                true => scenarios::long::quick(),
                false => scenarios::all(),
            };
            scenarios::plan::arrange(&mut list);
            run_all(&list, kernel, jobs, keep)
        }
        Cmd::Controls { kernel } => {
            let mut list = scenarios::protections::controls();
            scenarios::plan::arrange(&mut list);
            let result = run_all(&list, kernel, jobs, keep);
            scenarios::controls::table();
            result
        }
        Cmd::Same => run_all(&scenarios::same::scenarios(), "release", jobs, keep),
        Cmd::Oracle {
            words,
            table,
            walks,
            seed,
            set,
            kernel,
        } => {
            let list = match walks {
                Some(walks) => scenarios::oracle::walks(*seed..seed.saturating_add(*walks), *set),
                None if *table => vec![],
                None if words.is_empty() => scenarios::oracle::beside_table(),
                None => scenarios::oracle::full(),
            };
            let many = *table || words.is_empty() && walks.is_none();
            compare_all(list, words, many, kernel, jobs, keep)
        }
        Cmd::Corners {
            words,
            seeds,
            kernel,
        } => {
            let mut list = scenarios::corners::full();
            let seeds = seeds.clone().unwrap_or(scenarios::races::MANY);
            list.extend(scenarios::races::full(seeds));
            list.extend(scenarios::workload::full());
            list.extend(scenarios::early::full());
            list.extend(scenarios::huge::full());
            list.extend(scenarios::robustness::full());
            list.extend(scenarios::many_cpus::full());
            list.extend(scenarios::selftests::full());
            list.extend(scenarios::boot::full());
            list.extend(scenarios::faults::full());
            list.extend(scenarios::day::full());
            list.extend(scenarios::wide::full());
            list.retain(|s| words.is_empty() || words.iter().any(|w| s.name.contains(w.as_str())));
            run_all(&list, kernel, jobs, keep)
        }
        Cmd::Races {
            admissions,
            seed,
            repeat,
            short,
            kernel,
        } => match repeat {
            Some(seeds) => scenarios::races::again(seeds.clone(), !short, kernel),
            None => scenarios::races::long(*admissions, *seed, kernel, jobs),
        },
        Cmd::Compare {
            words,
            quick,
            instructions,
            json,
            kernel,
        } => compare::run(words, *quick, *instructions, json.as_deref(), kernel),
        Cmd::Diff { trace, log } => oracle::compare(trace, log).map(|agreed| println!("{agreed}")),
        Cmd::Demo { n, kernel } => demo::run(*n, kernel),
        Cmd::Bench {
            references: true,
            kernel,
            ..
        } => bench::references(kernel),
        Cmd::Bench {
            two_cpus: true,
            json,
            kernel,
            ..
        } => bench::pace::run(*json, kernel)
            .and_then(|of_two_cpus| targets::settle(&of_two_cpus, kernel)),
        Cmd::Bench {
            programs: Some(sizes),
            batch,
            kernel,
            ..
        } => bench::whole_programs(sizes, *batch, kernel)
            .and_then(|of_programs| targets::settle(&of_programs, kernel)),
        Cmd::Bench { quick, kernel, .. } => bench::run(!quick, kernel),
        Cmd::Count {
            words,
            cpus,
            json,
            functions,
            plot,
            kernel,
        } => counting::run(cpus, words, *json, *functions, plot.as_deref(), kernel),
        Cmd::Fidelity {
            words,
            quick,
            kernel,
        } => fidelity::run(words, *quick, kernel),
        Cmd::Fixtures { kernel } => fixtures::run(kernel)
            .map(|folder| println!("the traces are in {}", paths::shown(&folder))),
        Cmd::Gallery {
            words,
            output,
            kernel,
        } => {
            let into = output
                .clone()
                .unwrap_or_else(|| paths::build().join("gallery"));
            gallery::run(words, &into, kernel)
                .map(|()| println!("the traces are in {}", paths::shown(&into)))
        }
        Cmd::Metal => metal::run(),
        Cmd::Shell { shared, kernel } => shell::run(kernel, shared.as_deref()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}
