//! `activator off`

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Connect, status_of, stop, text};
use crate::Io;
use crate::cli::OffArgs;
use crate::error::Failure;
use crate::keeper::LOG;
use crate::rotate::{Claim, Of, sweep};
use crate::status::Status;

/// Ends the trace and prints its counts.
pub fn execute(args: &OffArgs, connect: Connect<'_>, io: &mut Io<'_>) -> Result<u8, Failure> {
    let control = connect()?;
    let control = control.as_ref();
    // Another version is refused before anything is done.
    status_of(control)?;
    let Some(status) = stop(control)? else {
        let last = status_of(control)?;
        return Err(Failure::usage(match last.failure() {
            Some(why) => format!(
                "tracing is not on: the last trace, into {}, ended by itself: {why}",
                last.output()
            ),
            None => "tracing is not on: `activator on` starts it".to_owned(),
        }));
    };
    if let Some(directory) = status.directory() {
        end_of_pieces(&directory, &status, io);
    }
    io.print(&text(&status, args.json))?;
    Ok(status.exit_code())
}

/// Waits for the process that began the pieces, and leaves nothing behind that is none.
pub(super) fn end_of_pieces(directory: &Path, status: &Status, io: &mut Io<'_>) {
    let begin = Instant::now();
    // Each look wakes it.
    while Claim::is_taken(Of::Trace, &status.raw.uuid) && begin.elapsed() < KEEPER {
        std::thread::sleep(Duration::from_millis(10));
    }
    sweep(directory, status);
    let log = directory.join(LOG);
    if log.exists() {
        io.note(&format!("not all went well: see {}", log.display()));
    }
}

/// How long the process that began the pieces may take to end.
const KEEPER: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use crate::fake::Bench;
    use rust_mm_trace::uapi::vmtrace_status;

    #[test]
    fn without_on() {
        let bench = Bench::new();
        assert_eq!(
            bench.activator(&["off"]).expect(2).err,
            "activator: tracing is not on: `activator on` starts it\n"
        );
        bench.fake.change(|s| s.error = libc::ENOSPC);
        let got = bench.activator(&["off"]);
        assert!(
            got.expect(2)
                .err
                .contains("ended by itself: No space left on device")
        );
    }

    #[test]
    fn good_trace() {
        let bench = Bench::new();
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
        let got = bench.activator(&["off"]);
        assert!(
            got.expect(0)
                .out
                .starts_with("tracing    off; this was the last trace\n")
        );
        bench.activator(&["off"]).expect(2);
    }

    #[test]
    fn bad_trace() {
        let spoils: [fn(&mut vmtrace_status); 6] = [
            |s| s.lost_full = 1,
            |s| s.funny = 1,
            |s| s.stuck = 1,
            |s| s.dangling = 1,
            |s| s.miscounted = 1,
            |s| s.sets_shared = 1,
        ];
        for spoil in spoils {
            let bench = Bench::new();
            bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
            bench.fake.change(spoil);
            let got = bench.activator(&["off"]);
            assert!(got.expect(1).out.contains("\nBAD        "), "{}", got.out);
        }
    }

    #[test]
    fn failed_output() {
        let bench = Bench::new();
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
        bench.fake.full_after(1);
        let got = bench.activator(&["off", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&got.expect(1).out).expect("JSON");
        assert_eq!(
            (&json["state"], &json["error"]),
            (&2.into(), &libc::ENOSPC.into())
        );
        assert_eq!(
            json["problems"][0],
            "the output failed: No space left on device"
        );
    }

    #[test]
    fn output_that_takes_nothing() {
        let bench = Bench::new();
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
        // A second now and then is nothing to speak of.
        bench.fake.taken_after(3);
        bench.activator(&["off"]).expect(0);
        bench.activator(&["on", "--all", "-o", "u.vmt"]).expect(0);
        bench.fake.taken_after(100);
        let got = bench.activator(&["off"]);
        assert!(
            got.expect(1)
                .err
                .contains("u.vmt takes no data; all processes go on"),
            "{}",
            got.err
        );
        let got = bench.activator(&["status"]);
        assert!(
            got.expect(0).out.starts_with("tracing    ending; "),
            "{}",
            got.out
        );
        bench.fake.taken_after(1);
        bench.activator(&["off"]).expect(0);
    }

    #[test]
    fn other_version_is_not_stopped() {
        let bench = Bench::new();
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
        bench.fake.change(|s| s.size = 1);
        let got = bench.activator(&["off"]);
        assert!(
            got.expect(2).err.contains("interface is not the one"),
            "{}",
            got.err
        );
        assert_eq!(bench.fake.stops.get(), 0);
    }
}
