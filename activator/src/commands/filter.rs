//! `activator filter`

use super::{Connect, status_of};
use crate::cli::FilterArgs;
use crate::error::Failure;
use crate::{Io, control, summary};

/// Changes which references of the trace that is on are recorded.
pub fn execute(args: &FilterArgs, connect: Connect<'_>, io: &mut Io<'_>) -> Result<u8, Failure> {
    let control = connect()?;
    let filter = args.filter();
    // This finds a kernel of another version.
    status_of(control.as_ref())?;
    control::filter(control.as_ref(), &filter)?;
    let status = status_of(control.as_ref())?;
    if args.json {
        io.print(&summary::json(&status, None))?;
    } else {
        io.print(&format!("recording {} from now on\n", filter.words()))?;
    }
    // An exit code of 1 needs a reason.
    status.problems().iter().for_each(|p| io.note(p));
    Ok(status.exit_code())
}

#[cfg(test)]
mod tests {
    use crate::fake::Bench;

    const ON: [&str; 6] = ["on", "--all", "-o", "t.vmt", "--filter", ""];

    #[test]
    fn changes() {
        let bench = Bench::new();
        bench.activator(&ON).expect(0);
        assert_eq!(bench.fake.filter(), Some(String::new()));
        let expr = "comm == \"cc1\" && kind == write";
        let got = bench.activator(&["filter", expr]);
        let want = format!("recording references with {expr} from now on\n");
        assert_eq!((got.expect(0).out.as_str(), got.err.as_str()), (&*want, ""));
        assert_eq!(bench.fake.filter().as_deref(), Some(expr));
        for all in ["", "--none"] {
            bench.activator(&["filter", expr]).expect(0);
            let got = bench.activator(&["filter", all]);
            assert_eq!(got.expect(0).out, "recording all references from now on\n");
            assert_eq!(bench.fake.filter(), Some(String::new()));
        }
        let got = bench.activator(&["filter", "--json", "cpu == 1"]);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
        assert_eq!(json["state"], 1);
        assert!(json["left_out"].is_u64(), "{json}");
    }

    #[test]
    fn refusals() {
        let bench = Bench::new();
        let refused = |want: &str| {
            let got = bench.activator(&["filter", "cpu == 1"]);
            assert!(got.expect(2).err.contains(want), "{}", got.err);
        };
        refused("no trace is on, so there is no filter to change");
        bench.activator(&ON[..4]).expect(0);
        refused(
            "the trace was begun without --filter; begin it with --filter '' to set filters later",
        );
        assert_eq!(bench.fake.filter(), None);
        bench.activator(&["off"]).expect(0);
        bench.activator(&["on", "--all", "-o", "u.vmt", "--filter", ""]);
        for (errno, want) in [
            (libc::EINVAL, "the kernel does not know this filter"),
            (libc::E2BIG, "too long for this kernel"),
            (libc::ENOTTY, "the kernel's vmtrace interface"),
            (libc::EINTR, "interrupted"),
            (libc::ENOMEM, "Cannot allocate memory"),
            (libc::EPERM, "run this as root"),
        ] {
            bench.fake.refuse_filter(errno);
            refused(want);
        }
        assert_eq!(bench.fake.filter(), Some(String::new()));
    }

    #[test]
    fn bad_usage_asks_nothing_of_the_kernel() {
        let bench = Bench::new();
        bench.activator(&ON).expect(0);
        for (args, want) in [
            (&["filter"][..], "<EXPR|--none>"),
            (&["filter", "cpu == 1", "--none"], "cannot be used with"),
            (
                &["filter", "tree == 1"],
                "the kernel cannot judge a reference by `tree`\n  tree == 1\n  ^^^^\n",
            ),
            (
                &["filter", "cpu = 1"],
                "`=` is no comparison\n  cpu = 1\n      ^\n",
            ),
        ] {
            let got = bench.activator(args);
            assert!(got.expect(2).err.contains(want), "{args:?}: {}", got.err);
        }
        assert_eq!(bench.fake.filter(), Some(String::new()));
    }
}
