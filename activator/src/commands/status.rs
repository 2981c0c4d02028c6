//! `activator status`

use std::time::Duration;

use super::{Connect, status_of, text};
use crate::cli::StatusArgs;
use crate::control::Control;
use crate::error::Failure;
use crate::rotate::{Claim, Of};
use crate::status::Status;
use crate::{Io, summary};

/// Rows between two lines of column headings.
const ROWS: u32 = 20;

/// Shows the trace that is on, or the last one.
pub fn execute(args: &StatusArgs, connect: Connect<'_>, io: &mut Io<'_>) -> Result<u8, Failure> {
    let control = connect()?;
    let mut status = look(control.as_ref())?;
    match args.watch {
        Some(every) if status.is_on() => {
            status = watch(control.as_ref(), status, every, args.json, io)?;
            if !args.json {
                io.print("\n")?;
                io.print(&text(&status, false))?;
            }
        }
        _ => io.print(&text(&status, args.json))?,
    }
    Ok(status.exit_code())
}

/// Asks for the status, and whether somebody begins the pieces of the trace.
fn look(control: &dyn Control) -> Result<Status, Failure> {
    let mut status = status_of(control)?;
    if status.is_on() && status.is_in_pieces() {
        status.is_rotated = Some(Claim::is_taken(Of::Trace, &status.raw.uuid));
    }
    Ok(status)
}

/// Prints one row after the other until the trace ends; gives the last status.
fn watch(
    control: &dyn Control,
    mut status: Status,
    every: Duration,
    json: bool,
    io: &mut Io<'_>,
) -> Result<Status, Failure> {
    let mut before: Option<Status> = None;
    for row in 0.. {
        if json {
            io.print(&summary::json(&status, None))?;
        } else {
            if row % ROWS == 0 {
                io.print(summary::WATCH_HEAD)?;
            }
            io.print(&summary::watch_row(&status, before.as_ref()))?;
        }
        if !status.is_on() {
            break;
        }
        std::thread::sleep(every);
        before = Some(status);
        status = look(control)?;
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use crate::Name;
    use crate::fake::Bench;
    use rust_mm_trace::uapi::VMTRACE_STATE_EARLY;

    #[test]
    fn never_on() {
        let bench = Bench::new();
        assert_eq!(
            bench.activator(&["status"]).expect(0).out,
            "tracing    off; there was no trace since boot\n"
        );
    }

    #[test]
    fn on() {
        let bench = Bench::new();
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
        let got = bench.activator(&["status"]);
        assert!(
            got.expect(0)
                .out
                .starts_with("tracing    on\nscope      all processes; 1 ")
        );
        let got = bench.activator(&["status", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
        assert_eq!((&json["state"], &json["scope"]), (&1.into(), &1.into()));
        assert_eq!(json["uuid"], "01".repeat(16));
    }

    #[test]
    fn commands_are_those_of_the_name() {
        let mut bench = Bench::new();
        bench.fake.change(|s| s.state = VMTRACE_STATE_EARLY);
        let line = |bench: &Bench| bench.activator(&["status"]).expect(0).out.clone();
        assert!(line(&bench).contains("`activator on --early` takes it over"));
        bench.name = Name::Kvmtrace;
        assert!(line(&bench).contains("`kvmtrace on --early` takes it over"));
    }

    #[test]
    fn watch_ends_with_the_trace() {
        let bench = Bench::new();
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
        bench.fake.off_after(4);
        let got = bench.activator(&["status", "--watch=0.01"]);
        let (table, last) = got.expect(0).out.split_once("\n\n").expect("two parts");
        assert_eq!(table.lines().count(), 5, "{table}");
        assert!(last.starts_with("tracing    off"));

        bench.activator(&["on", "--all", "-o", "u.vmt"]).expect(0);
        bench.fake.full_after(3);
        let got = bench.activator(&["status", "--watch=0.01", "--json"]);
        let states: Vec<_> = got
            .expect(1)
            .out
            .lines()
            .map(|l| serde_json::from_str::<serde_json::Value>(l).expect("JSON")["state"].clone())
            .collect();
        assert_eq!(states, [1, 1, 2]);
    }
}
