//! How regions of memory are sampled, instead of recording references.

use clap::Args;
use rust_mm_trace::uapi::{
    VMTRACE_BY_ACCESSED, VMTRACE_BY_FAULT, VMTRACE_INTERVAL_MAX, vmtrace_sampling,
};

use crate::units::{parse_change, parse_regions, parse_sample};

/// How many regions an address space has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// At least so many, as far as it has as many pages.
    pub min: u32,
    /// At most so many.
    pub max: u32,
}

/// What shows that a page was accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SampledBy {
    /// The accessed bit of its page table entry. Costs programs next to nothing.
    #[default]
    Accessed,
    /// A fault: the page is disabled until it is accessed. Also shows writes, and on which CPUs.
    Fault,
}

/// How regions are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// From one look at a page of each region to the next, ns.
    pub sample: u64,
    /// From one report to the next, ns.
    pub aggregate: u64,
    /// After so long, regions are adapted to the mappings, ns.
    pub update: u64,
    /// Of each address space.
    pub regions: Regions,
    /// What shows an access.
    pub by: SampledBy,
    /// A window of references begins when so many thousandths of the memory in use change; 0: it does
    /// not begin for that.
    pub change: u32,
}

impl Sampling {
    /// The same in the kernel's form.
    pub fn raw(self) -> vmtrace_sampling {
        vmtrace_sampling {
            sample: self.sample,
            aggregate: self.aggregate,
            update: self.update,
            min_regions: self.regions.min,
            max_regions: self.regions.max,
            by: match self.by {
                SampledBy::Accessed => VMTRACE_BY_ACCESSED,
                SampledBy::Fault => VMTRACE_BY_FAULT,
            },
            change: self.change,
        }
    }
}

/// Looks in a report, and reports until regions are adapted, if the user does not say.
const LOOKS: u64 = 20;
const REPORTS: u64 = 10;

/// Options of traces of regions.
#[derive(Args, Debug)]
#[group(skip)]
pub struct SamplingArgs {
    /// Do not record references: look at one page of each region of memory every TIME (DAMON's way),
    /// and report how often each region was accessed
    ///
    /// That costs little, whatever programs do, so such a trace can be on all the time. It shows
    /// roughly which memory is used, and how much, but no single access. A region is a range of
    /// addresses whose pages are used about equally often. The kernel splits and merges regions as
    /// it learns. Events of mappings and processes are recorded as ever. `postproc regions` shows
    /// the trace. TIME is from 100us to 60min; 5ms is usual. Not for a trace from boot.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse_sample,
        conflicts_with_all = [
            "n", "memory", "slowdown", "interval", "first", "set_per", "policy", "batch", "again",
            "offsets", "virtual_time", "filter", "count", "trace", "pausable", "paused", "max",
        ],
        help_heading = "Regions"
    )]
    pub sample: Option<u64>,

    /// Sample regions as --sample does, but between windows, in which references are recorded
    ///
    /// So the trace shows all the time roughly which memory is used, and in its windows each
    /// reference exactly. Windows begin and end as without this option, or with --on-change. In a
    /// window, no regions are sampled. `postproc info` lists all windows, of references and of
    /// regions, `postproc regions` shows the regions, and all other commands read the references.
    /// TIME is as for --sample.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse_sample,
        requires = "windows_of",
        conflicts_with_all = ["slowdown", "interval", "set_per"],
        help_heading = "Regions"
    )]
    pub between: Option<u64>,

    /// Begin a window when SHARE of the memory in use changes, such as 30%
    ///
    /// With each report of regions, the kernel compares the use of memory with that of the two
    /// reports before. A region is in use if at least four fifths of the looks at it have found an
    /// access, and idle if at most a fifth has. A window begins when the regions that were idle
    /// and are in use, or the other way round, are SHARE, or more, of those in use. SHARE is
    /// from 0.1% to 100%. Windows have the length of --trace, and --skip is the least time
    /// between two. By default, --skip is 19 times --trace, so windows take a twentieth of the
    /// time at most. `activator resume` and `activator pause` work, too.
    #[arg(
        long,
        value_name = "SHARE",
        value_parser = parse_change,
        requires_all = ["between", "trace"],
        help_heading = "Regions"
    )]
    pub on_change: Option<u32>,

    /// Time from one report to the next [default: 20 times that of a look]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse_sample,
        requires = "sampled",
        help_heading = "Regions"
    )]
    pub aggregate: Option<u64>,

    /// Time after which regions are adapted to new mappings [default: 10 times that of --aggregate]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse_sample,
        requires = "sampled",
        help_heading = "Regions"
    )]
    pub update: Option<u64>,

    /// The least and the most regions of a process [default: 10..1000]
    ///
    /// More regions show more detail, and each one costs a look. From 3 to 65536; the second number
    /// is at least twice the first.
    #[arg(
        long,
        value_name = "MIN..MAX",
        value_parser = parse_regions,
        requires = "sampled",
        help_heading = "Regions"
    )]
    pub regions: Option<Regions>,

    /// What shows that a page was accessed [default: accessed]
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        requires = "sampled",
        help_heading = "Regions"
    )]
    pub by: Option<SampledBy>,
}

impl SamplingArgs {
    /// How regions are sampled, if they are.
    pub fn sampling(&self) -> Option<Sampling> {
        let sample = self.sample.or(self.between)?;
        let times = |time: u64, n: u64| time.saturating_mul(n).min(VMTRACE_INTERVAL_MAX);
        let aggregate = self.aggregate.unwrap_or_else(|| times(sample, LOOKS));
        Some(Sampling {
            sample,
            aggregate,
            update: self.update.unwrap_or_else(|| times(aggregate, REPORTS)),
            regions: self.regions.unwrap_or(Regions { min: 10, max: 1000 }),
            by: self.by.unwrap_or_default(),
            change: self.on_change.unwrap_or(0),
        })
    }

    /// Why the options do not go together, if they do not.
    pub fn contradiction(&self) -> Option<&'static str> {
        let sampling = self.sampling()?;
        if sampling.aggregate < sampling.sample {
            return Some(
                "--aggregate is less than the time of a look: there would be no look between two reports",
            );
        }
        (sampling.update < sampling.aggregate)
            .then_some("--update is less than --aggregate, which is 20 times --sample by default: give a longer \
             --update, or a shorter --aggregate")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command, TraceArgs};
    use clap::Parser;

    fn parsed(options: &[&str]) -> Result<TraceArgs, String> {
        let line = [&["activator", "on", "--all"], options].concat();
        match Cli::try_parse_from(line).map(|cli| cli.command) {
            Ok(Command::On(args)) => Ok(args.trace),
            Ok(_) => Err("another command".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[track_caller]
    fn sampling(options: &[&str]) -> Sampling {
        let args = parsed(options).expect("good options");
        assert_eq!(args.sampling.contradiction(), None);
        args.sampling.sampling().expect("regions")
    }

    #[test]
    fn defaults_follow_from_the_time_of_a_look() {
        assert!(parsed(&[]).unwrap().sampling.sampling().is_none());
        let least = sampling(&["--sample", "5ms"]);
        let expected = Sampling {
            sample: 5_000_000,
            aggregate: 100_000_000,
            update: 1_000_000_000,
            regions: Regions { min: 10, max: 1000 },
            by: SampledBy::Accessed,
            change: 0,
        };
        assert_eq!(least, expected);
        let other = sampling(&["--sample", "1ms", "--aggregate", "50ms"]);
        assert_eq!((other.aggregate, other.update), (50_000_000, 500_000_000));
        // The kernel takes an hour at most.
        let long = sampling(&["--sample", "10min"]);
        assert_eq!(
            (long.aggregate, long.update),
            (3_600_000_000_000, 3_600_000_000_000)
        );
    }

    #[test]
    fn all_options_are_the_kernels() {
        let options = "--sample 100us --aggregate 2ms --update 3ms --regions 3..6 --by fault";
        let raw = sampling(&options.split(' ').collect::<Vec<_>>()).raw();
        let times = (raw.sample, raw.aggregate, raw.update);
        assert_eq!(times, (100_000, 2_000_000, 3_000_000));
        assert_eq!((raw.min_regions, raw.max_regions), (3, 6));
        assert_eq!((raw.by, raw.change), (VMTRACE_BY_FAULT, 0));
        assert_eq!(sampling(&["--sample", "1ms"]).raw().by, VMTRACE_BY_ACCESSED);
    }

    #[test]
    fn times_are_in_order() {
        for (options, message) in [
            ("--sample 5ms --aggregate 1ms", "--aggregate is less"),
            ("--sample 5ms --update 50ms", "--update is less"),
        ] {
            let args = parsed(&options.split(' ').collect::<Vec<_>>()).unwrap();
            let why = args.sampling.contradiction().expect("a contradiction");
            assert!(why.contains(message), "{why}");
        }
    }

    #[test]
    fn wrong_values_say_what_is_right() {
        for (options, message) in [
            ("--sample 99us", "give a time from 100us to 60min"),
            ("--sample 61min", "give a time from 100us to 60min"),
            ("--sample 5", "with its unit"),
            ("--sample 5ms --regions 2..10", "from 3 to 65536"),
            ("--sample 5ms --regions 10..65537", "from 3 to 65536"),
            ("--sample 5ms --regions 10..19", "at least twice"),
            ("--sample 5ms --regions 10", "such as 10..1000"),
            ("--sample 5ms --by luck", "accessed, fault"),
        ] {
            let error = parsed(&options.split(' ').collect::<Vec<_>>()).unwrap_err();
            assert!(error.contains(message), "{options}: {error}");
        }
    }

    #[test]
    fn regions_may_be_sampled_between_windows() {
        let parse = |line: &str| parsed(&line.split(' ').collect::<Vec<_>>());
        let args =
            parse("-n 64 --trace 100ms --between 5ms --on-change 30% --again").expect("good");
        let raw = args.sampling.sampling().expect("regions").raw();
        assert_eq!((raw.sample, raw.change), (5_000_000, 300));
        let windows = args.windows().expect("windows");
        assert!(windows.on_request);
        assert_eq!(
            (windows.time, windows.skip, windows.count),
            (100_000_000, 1_900_000_000, 0)
        );
        let skip = parse("--trace 1s --between 5ms --on-change 0.5% --skip 2s --repeat 3");
        let args = skip.expect("good");
        let windows = args.windows().expect("windows");
        assert_eq!((windows.skip, windows.count), (2_000_000_000, 3));
        assert_eq!(args.sampling.on_change, Some(5));
        // By a plan, and on request.
        let plan = parse("--trace 1s --skip 5s --between 5ms").expect("good");
        let windows = plan.windows().expect("windows");
        assert_eq!((windows.on_request, windows.skip), (false, 5_000_000_000));
        assert_eq!(plan.sampling.sampling().expect("regions").change, 0);
        for good in [
            "--paused --between 1ms",
            "--pausable --between 1ms --by fault",
        ] {
            assert!(
                parse(good)
                    .expect(good)
                    .windows()
                    .expect("windows")
                    .on_request
            );
        }
        for (wrong, message) in [
            ("--between 5ms", "--trace <LENGTH>|--pausable|--paused"),
            ("--between 5ms --on-change 10%", "--trace <LENGTH>"),
            ("--trace 1s --on-change 10%", "--between <TIME>"),
            (
                "--trace 1s --between 5ms --sample 5ms",
                "cannot be used with",
            ),
            (
                "--trace 1s --between 5ms --interval 1s",
                "cannot be used with",
            ),
            (
                "--trace 1s --between 5ms --set-per process",
                "cannot be used with",
            ),
            (
                "--pausable --between 5ms --slowdown 1.5",
                "cannot be used with",
            ),
            (
                "--trace 1s --between 5ms --on-change 0%",
                "from 0.1% to 100%",
            ),
            (
                "--trace 1s --between 5ms --on-change 101%",
                "from 0.1% to 100%",
            ),
            (
                "--trace 1s --between 5ms --on-change 30",
                "from 0.1% to 100%",
            ),
        ] {
            let error = parse(wrong).expect_err(wrong);
            assert!(error.contains(message), "{wrong}: {error}");
        }
        let line = "activator on --early --trace 1s --between 5ms";
        assert!(Cli::try_parse_from(line.split(' ')).is_err());
    }

    #[test]
    fn options_need_sample_and_exclude_those_of_references() {
        for options in [
            "--aggregate 1s",
            "--update 1s",
            "--regions 3..6",
            "--by fault",
        ] {
            let error = parsed(&options.split(' ').collect::<Vec<_>>()).unwrap_err();
            assert!(
                error.contains("--sample <TIME>|--between <TIME>"),
                "{options}: {error}"
            );
        }
        for options in [
            "-n 64",
            "--memory 4096",
            "--slowdown 1.1",
            "--interval 1s",
            "--first 16",
            "--set-per process",
            "--policy clock",
            "--batch 2",
            "--again",
            "--offsets",
            "--virtual-time",
            "--filter pid==1",
            "--count",
            "--trace 1s",
            "--pausable",
            "--paused",
            "--max 1024",
        ] {
            let line = format!("--sample 5ms {options}");
            let error = parsed(&line.split(' ').collect::<Vec<_>>()).unwrap_err();
            assert!(error.contains("cannot be used with"), "{options}: {error}");
        }
        // These are about the output.
        let line = "--sample 5ms --pack=zstd --mode discard --buffers 8 --flush 1s --events none \
                    --rotate 1M -o new";
        assert!(parsed(&line.split_whitespace().collect::<Vec<_>>()).is_ok());
        let line = "activator on --early --sample 5ms";
        assert!(Cli::try_parse_from(line.split(' ')).is_err());
        for option in [
            "--windows=f",
            "--resume-on=signal:USR1",
            "--pause-on=signal:USR1",
        ] {
            let line = ["activator", "run", "--sample", "5ms", option, "true"];
            let error = Cli::try_parse_from(line).unwrap_err().to_string();
            assert!(error.contains("cannot be used with"), "{option}: {error}");
        }
    }
}
