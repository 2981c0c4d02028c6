//! `activator resize`

use super::{Connect, status_of};
use crate::cli::ResizeArgs;
use crate::error::Failure;
use crate::units::count;
use crate::{Io, control, summary};

/// Changes N of the trace that is on.
pub fn execute(args: &ResizeArgs, connect: Connect<'_>, io: &mut Io<'_>) -> Result<u8, Failure> {
    let control = connect()?;
    let before = status_of(control.as_ref())?.raw.evms_size;
    control::resize(control.as_ref(), args.n.pages)?;
    let status = status_of(control.as_ref())?;
    if args.json {
        io.print(&summary::json(&status, None))?;
    } else {
        io.print(&format!(
            "N={}{}, was {}\n",
            count(status.raw.evms_size.into()),
            status.for_each(),
            count(before.into())
        ))?;
    }
    // An exit code of 1 needs a reason.
    status.problems().iter().for_each(|p| io.note(p));
    Ok(status.exit_code())
}

#[cfg(test)]
mod tests {
    use crate::fake::Bench;

    #[test]
    fn larger_and_smaller() {
        let bench = Bench::new();
        let on = ["on", "--all", "-o", "t.vmt", "--max", "8192"];
        bench.activator(&on).expect(0);
        let got = bench.activator(&["resize", "8192"]);
        assert_eq!(got.expect(0).out, "N=8,192, was 512\n");
        let got = bench.activator(&["resize", "64", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
        assert_eq!(
            (&json["evms_size"], &json["evms_peak"]),
            (&64.into(), &8192.into())
        );
    }

    /// What `k` and `M` mean is said once, on standard error. JSON stays JSON.
    #[test]
    fn letters_are_explained() {
        let bench = Bench::new();
        let on = ["on", "--all", "-o", "t.vmt", "-n", "128k", "--max", "32M"];
        let got = bench.activator(&on);
        let told = "activator: 128k is a size in bytes: 32 pages of 4KiB. For 131072 pages, write 131072\n\
                    activator: 32M is a size in bytes: 8,192 pages of 4KiB\n";
        assert!(got.expect(0).err.starts_with(told), "{}", got.err);
        let got = bench.activator(&["resize", "1M", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
        assert_eq!(json["evms_size"], 256);
        assert!(
            got.err
                .starts_with("activator: 1M is a size in bytes: 256 pages of 4KiB.")
        );
        assert_eq!(bench.activator(&["resize", "16MiB"]).expect(0).err, "");
    }

    #[test]
    fn several_sets() {
        let bench = Bench::new();
        let on = ["on", "--all", "-o", "t.vmt", "--set-per", "process"];
        bench.activator(&on).expect(0);
        let got = bench.activator(&["resize", "513"]);
        assert!(got.expect(2).err.contains("--max 513"), "{}", got.err);
        let got = bench.activator(&["resize", "64"]);
        assert_eq!(got.expect(0).out, "N=64 for each process, was 512\n");
    }

    #[test]
    fn bad_trace() {
        let bench = Bench::new();
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
        assert_eq!(bench.activator(&["resize", "64"]).expect(0).err, "");
        bench.fake.change(|s| s.sets_shared = 2);
        let got = bench.activator(&["resize", "128"]);
        assert_eq!(got.expect(1).out, "N=128, was 64\n");
        assert!(
            got.err
                .starts_with("activator: 2 address spaces share set 0"),
            "{}",
            got.err
        );
    }

    #[test]
    fn refusals() {
        let bench = Bench::new();
        let got = bench.activator(&["resize", "64"]);
        assert!(got.expect(2).err.contains("no trace is on"), "{}", got.err);
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
        let got = bench.activator(&["resize", "31"]);
        assert!(got.expect(2).err.contains("at least 32"), "{}", got.err);
        let got = bench.activator(&["resize", "16MiB"]);
        assert!(got.expect(2).err.contains("--max 4096"), "{}", got.err);
    }

    #[test]
    fn sizes_that_do_not_fit() {
        let bench = Bench::new();
        let on = |more: &[&str]| {
            let args: Vec<_> = ["on", "--all", "-o", "t.vmt"]
                .iter()
                .chain(more)
                .copied()
                .collect();
            bench.activator(&args).expect(2).err.clone()
        };
        assert!(on(&["--first", "8"]).contains("--first 16"));
        assert!(on(&["--first", "300"]).contains("at least 600"));
        assert!(on(&["--max", "100"]).contains("less than N=512"));
    }
}
