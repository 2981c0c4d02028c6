//! `activator rotate`

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{CREATION, Connect, directory_of, status_of};
use crate::cli::RotateArgs;
use crate::control::{Control, no_rotation, takes_no_piece};
use crate::error::{Errno, Failure};
use crate::pieces::name;
use crate::rotate::{Rotation, Turn, rotate};
use crate::sys::Signals;
use crate::{Io, summary};

/// How long somebody else's rotation, or one that the kernel goes on with, is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Begins the next piece of the trace that is on.
pub fn execute(args: &RotateArgs, connect: Connect<'_>, io: &mut Io<'_>) -> Result<u8, Failure> {
    let mut signals = super::hold_signals(&[])?;
    let control = connect()?;
    let control = control.as_ref();
    let status = status_of(control)?;
    if !status.is_on() {
        return Err(no_rotation("", Errno(libc::ENODATA)));
    }
    let directory = directory_of(&status)?;
    let number = now(control, &directory, &status.raw.uuid, &mut signals)?;
    let file = directory.join(name(number));
    let status = status_of(control)?;
    if args.json {
        let bytes = std::fs::metadata(&file).map_or(0, |meta| meta.len());
        let done = json!({ "file": file.to_string_lossy(), "piece": number, "bytes": bytes });
        io.print(&beside(&status, "rotated", done))?;
    } else {
        io.print(&format!("{}\n", file.display()))?;
    }
    // An exit code of 1 needs a reason.
    status.problems().iter().for_each(|p| io.note(p));
    Ok(status.exit_code())
}

/// Begins the next piece; gives the number of the one that is complete now. Waits for others that
/// do the same.
pub fn now(
    control: &dyn Control,
    directory: &Path,
    uuid: &[u8; 16],
    signals: &mut Signals,
) -> Result<u32, Failure> {
    let mut begin = Instant::now();
    let shown = directory.display();
    let mut pending = None;
    loop {
        let turn = match &pending {
            Some(_) => Ok(Turn::Busy),
            None => rotate(control, directory, uuid, Some(CREATION)),
        };
        match turn {
            Ok(Turn::Done(number)) => return Ok(number),
            Ok(Turn::Pending(p)) => pending = Some(p),
            Ok(Turn::Busy) => {}
            Ok(Turn::Ended) => return Err(no_rotation("", Errno(libc::ENODATA))),
            Err(Rotation {
                errno: Some(Errno(libc::EAGAIN)),
                ..
            }) if begin.elapsed() < PATIENCE => {}
            Err(rotation) => return Err(rotation.failure),
        }
        let status = status_of(control)?;
        if let Some(pending) = &pending {
            match pending.look(&status) {
                Some(Turn::Done(number)) => return Ok(number),
                Some(_) => return Err(no_rotation("", Errno(libc::ENODATA))),
                None => {}
            }
        }
        // The piece begins when the window ends. So this takes as long as the window does.
        if status.raw.windows_begun > status.raw.windows_ended {
            begin = Instant::now();
        }
        if begin.elapsed() > PATIENCE {
            return Err(match pending {
                Some(_) => takes_no_piece(&shown.to_string()),
                None => Failure::usage(
                    "another process has rotated this trace for a long time: try again later",
                ),
            });
        }
        if let Some(signal) = signals.ending() {
            return Err(Failure::interrupted(signal, "the trace goes on"));
        }
        std::thread::sleep(LOOK);
    }
}

/// Writes what a command has done as JSON, beside the status.
pub fn beside(status: &crate::status::Status, name: &str, done: serde_json::Value) -> String {
    summary::with(summary::json(status, None), [(name, done)])
}

#[cfg(test)]
mod tests {
    use crate::fake::Bench;

    const ON: [&str; 6] = ["on", "--all", "--rotate", "1G", "-o", "t"];

    #[test]
    fn prints_the_file_that_is_complete() {
        let bench = Bench::new();
        bench.activator(&ON).expect(0);
        let file = |number: u32| bench.path("t").join(format!("{number:05}.vmtrace"));
        let got = bench.activator(&["rotate"]);
        assert_eq!(got.expect(0).out, format!("{}\n", file(0).display()));
        let got = bench.activator(&["rotate", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
        assert_eq!(
            (&json["piece"], &json["rotated"]["piece"]),
            (&2.into(), &1.into())
        );
        assert_eq!(json["rotated"]["file"], file(1).to_string_lossy().as_ref());
        let bytes = std::fs::metadata(file(1)).expect("complete").len();
        assert_eq!(json["rotated"]["bytes"], bytes);
        assert!(file(2).exists() && !file(3).exists());
        let got = bench.activator(&["status"]);
        assert!(
            got.expect(0).out.contains("; nobody rotates this trace\n"),
            "{}",
            got.out
        );
        bench.activator(&["off"]).expect(0);
        let got = bench.activator(&["rotate"]);
        assert!(got.expect(2).err.contains("no trace is on"), "{}", got.err);
    }

    #[test]
    fn refusals() {
        let bench = Bench::new();
        let got = bench.activator(&["rotate"]);
        assert!(got.expect(2).err.contains("no trace is on"), "{}", got.err);
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
        let got = bench.activator(&["rotate"]);
        assert!(got.expect(2).err.contains("--rotate"), "{}", got.err);
        bench.activator(&["off"]).expect(0);
        bench.activator(&ON).expect(0);
        for (errno, want) in [
            (libc::ENOSPC, "no room for "),
            (libc::EIO, "could not begin a piece in "),
            (libc::ENODATA, "no trace is on"),
        ] {
            bench.fake.refuse_rotations(&[errno]);
            let got = bench.activator(&["rotate"]);
            assert!(got.expect(2).err.contains(want), "{}", got.err);
            assert!(!bench.path("t").join("00001.vmtrace").exists());
        }
    }

    #[test]
    fn others_are_waited_for() {
        let bench = Bench::new();
        bench.activator(&ON).expect(0);
        bench
            .fake
            .refuse_rotations(&[libc::EBUSY, libc::EAGAIN, libc::EBUSY]);
        bench.activator(&["rotate"]).expect(0);
        assert!(bench.path("t").join("00001.vmtrace").exists());
        // The kernel goes on with it.
        bench.fake.refuse_rotations(&[libc::EINPROGRESS]);
        bench.fake.rotated_after(4);
        let got = bench.activator(&["rotate"]);
        assert!(
            got.expect(0).out.ends_with("00001.vmtrace\n"),
            "{}",
            got.out
        );
        bench.activator(&["off"]).expect(0);
    }

    /// Somebody is killed while the kernel begins a piece for him. It has begun it after the
    /// number of the next one was looked up.
    #[test]
    fn a_piece_that_has_begun_meanwhile_is_not_replaced() {
        use crate::control::Control;
        for looks in 1..8 {
            let bench = Bench::new();
            bench.activator(&ON).expect(0);
            let path = bench.path("t").join("00001.vmtrace");
            let file = std::fs::File::create_new(&path).expect("created");
            bench.fake.refuse_rotations(&[libc::EINPROGRESS]);
            let name = path.to_string_lossy();
            let begun = bench.fake.rotate(&name, std::os::fd::AsFd::as_fd(&file));
            assert!(begun.is_err());
            bench.fake.rotated_after(looks);
            bench.activator(&["rotate"]).expect(0);
            bench.activator(&["off"]).expect(0);
            let mut left: Vec<_> = std::fs::read_dir(bench.path("t"))
                .expect("dir")
                .map(|entry| entry.expect("entry").path())
                .collect();
            left.sort();
            assert_eq!(left.len(), 3, "{looks}: {left:?}");
            for (number, path) in (0..).zip(left) {
                let file = std::fs::File::open(&path).expect("open");
                let told = crate::pieces::read(&file).expect("read").expect("a piece");
                assert_eq!((told.number, told.is_complete), (number, true), "{path:?}");
            }
        }
    }

    #[test]
    fn a_file_that_was_left_behind_is_replaced() {
        let bench = Bench::new();
        bench.activator(&ON).expect(0);
        let next = bench.path("t").join("00001.vmtrace");
        std::fs::write(&next, "").expect("written");
        // Nobody knows whether the kernel has it.
        bench.fake.refuse_rotations(&[libc::EBUSY]);
        bench.activator(&["rotate"]).expect(0);
        assert!(std::fs::metadata(&next).expect("there").len() > 0);
        let left = std::fs::read_dir(bench.path("t")).expect("dir").count();
        assert_eq!(left, 2);
        // What is left behind at the end is removed, unless it is a piece.
        let dir = bench.path("t");
        for name in ["00002.vmtrace", ".00002.vmtrace.77"] {
            std::fs::write(dir.join(name), "").expect("written");
        }
        std::fs::rename(&next, dir.join(".00001.vmtrace.78")).expect("renamed");
        bench.activator(&["off"]).expect(0);
        let left = std::fs::read_dir(&dir).expect("dir").count();
        assert_eq!(left, 2);
        assert!(std::fs::metadata(&next).expect("there").len() > 0);
    }
}
