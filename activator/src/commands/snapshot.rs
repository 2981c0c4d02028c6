//! `activator snapshot`

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Connect, directory_of, rotate, status_of};
use crate::Io;
use crate::cli::SnapshotArgs;
use crate::error::Failure;
use crate::snapshots::{said, take_now};
use crate::status::State;
use crate::units::bytes;

/// Between two lines of progress.
const EVERY: Duration = Duration::from_secs(2);

/// Collects all complete pieces of the trace in a directory.
pub fn execute(args: &SnapshotArgs, connect: Connect<'_>, io: &mut Io<'_>) -> Result<u8, Failure> {
    let mut signals = super::hold_signals(&[])?;
    let control = connect()?;
    let control = control.as_ref();
    let status = status_of(control)?;
    let directory = directory_of(&status)?;
    let to = std::path::absolute(&args.to)
        .map_err(|e| Failure::usage(format!("{}: {e}", args.to.display())))?;
    check_new(&to)?;
    let uuid = status.raw.uuid;
    let is_on = status.is_on();
    let signals = std::cell::RefCell::new(&mut signals);
    let mut next = || match is_on {
        true => rotate::now(control, &directory, &uuid, &mut signals.borrow_mut()),
        // If the output failed, the last piece is not complete.
        false => match (status.raw.piece, status.state()) {
            (last, State::Off) => Ok(last),
            (last, _) => last
                .checked_sub(1)
                .ok_or_else(|| Failure::usage("no piece of the trace is complete")),
        },
    };
    let mut interrupted = None;
    let mut told = Instant::now();
    let mut go_on = |done: u64, of: u64| {
        if done > 0 && told.elapsed() > EVERY {
            told = Instant::now();
            io.note(&format!("copied {} of {}", bytes(done), bytes(of)));
        }
        interrupted = signals.borrow_mut().ending();
        interrupted.is_none()
    };
    let got = take_now(&directory, &uuid, &to, &mut next, &mut go_on)?;
    let Some(got) = got else {
        let signal = interrupted.unwrap_or(libc::SIGTERM);
        return Err(Failure::interrupted(signal, "nothing is left behind"));
    };
    let status = status_of(control)?;
    if args.json {
        let done = json!({
            "directory": to.to_string_lossy(),
            "first_piece": got.first,
            "last_piece": got.last,
            "bytes": got.bytes,
            "copied_bytes": got.copied,
        });
        io.print(&rotate::beside(&status, "snapshot", done))?;
    } else {
        io.print(&format!("{}\n", said(&got, &to)))?;
    }
    // An exit code of 1 needs a reason.
    status.problems().iter().for_each(|p| io.note(p));
    Ok(status.exit_code())
}

/// Checks whether a directory can be made, before a piece begins for it.
fn check_new(to: &Path) -> Result<(), Failure> {
    let shown = to.display();
    if std::fs::symlink_metadata(to).is_ok() {
        return Err(Failure::usage(format!(
            "{shown} exists: give the path of a new directory"
        )));
    }
    match to.parent() {
        Some(parent) if parent.is_dir() => Ok(()),
        _ => Err(Failure::usage(format!(
            "{shown} can't be made: there is no directory for it"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use crate::fake::Bench;
    use std::fs;

    #[test]
    fn has_all_complete_pieces() {
        let bench = Bench::new();
        let on = ["on", "--all", "--rotate", "1G", "-o", "t"];
        bench.activator(&on).expect(0);
        bench.activator(&["rotate"]).expect(0);
        let to = |name: &str| bench.path(name).to_string_lossy().into_owned();
        let got = bench.activator(&["snapshot", &to("s")]);
        let said = &got.expect(0).out;
        assert!(said.starts_with("pieces 0 to 1 ("), "{said}");
        assert_eq!(fs::read_dir(bench.path("s")).expect("dir").count(), 2);
        let got = bench.activator(&["snapshot", &to("s")]);
        assert!(got.expect(2).err.contains("s exists: give"), "{}", got.err);
        let got = bench.activator(&["snapshot", &to("no/s")]);
        assert!(got.expect(2).err.contains("no directory for it"));
        let got = bench.activator(&["snapshot", &to("u"), "--json"]);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
        let snapshot = &json["snapshot"];
        assert_eq!(
            (&snapshot["first_piece"], &snapshot["last_piece"]),
            (&0.into(), &2.into())
        );
        assert_eq!(
            (&json["piece"], &snapshot["copied_bytes"]),
            (&3.into(), &0.into())
        );
        // The last piece is complete when the trace has ended.
        bench.activator(&["off"]).expect(0);
        let got = bench.activator(&["snapshot", &to("v")]);
        assert!(
            got.expect(0).out.starts_with("pieces 0 to 3 ("),
            "{}",
            got.out
        );
    }

    #[test]
    fn refusals() {
        let bench = Bench::new();
        let to = bench.path("s").to_string_lossy().into_owned();
        let got = bench.activator(&["snapshot", &to]);
        assert!(got.expect(2).err.contains("--rotate"), "{}", got.err);
        let on = ["on", "--all", "--rotate", "1G", "-o", "t"];
        bench.activator(&on).expect(0);
        bench.fake.refuse_rotations(&[libc::ENOSPC]);
        let got = bench.activator(&["snapshot", &to]);
        assert!(got.expect(2).err.contains("no room for"), "{}", got.err);
        fs::rename(bench.path("t"), bench.path("moved")).expect("renamed");
        let got = bench.activator(&["snapshot", &to]);
        assert!(got.expect(2).err.contains("there is no directory"));
        assert!(!bench.path("s").exists());
    }
}
