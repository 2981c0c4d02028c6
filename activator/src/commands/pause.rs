//! `activator pause` and `activator resume`

use super::{Connect, status_of};
use crate::cli::PauseArgs;
use crate::control::window;
use crate::error::Failure;
use crate::{Io, summary};

/// Ends or begins a window of the trace that is on.
pub fn execute(
    begin: bool,
    args: &PauseArgs,
    connect: Connect<'_>,
    io: &mut Io<'_>,
) -> Result<u8, Failure> {
    let control = connect()?;
    window(control.as_ref(), begin)?;
    let status = status_of(control.as_ref())?;
    if args.json {
        io.print(&summary::json(&status, None))?;
    } else {
        let begun = status.raw.windows_begun;
        io.print(&match (begin, begun.checked_sub(1)) {
            (true, Some(number)) => format!("tracing window {number}\n"),
            (false, Some(number)) => format!("paused after window {number}\n"),
            (_, None) => "paused\n".to_owned(),
        })?;
    }
    // An exit code of 1 needs a reason.
    status.problems().iter().for_each(|p| io.note(p));
    Ok(status.exit_code())
}

#[cfg(test)]
mod tests {
    use crate::fake::Bench;

    #[test]
    fn windows_begin_and_end() {
        let bench = Bench::new();
        let on = ["on", "--all", "-o", "t.vmt", "--paused"];
        let got = bench.activator(&on);
        assert!(
            got.expect(0).out.contains("`activator resume`"),
            "{}",
            got.out
        );
        for (command, said) in [
            ("pause", "paused\n"),
            ("resume", "tracing window 0\n"),
            ("resume", "tracing window 0\n"),
            ("pause", "paused after window 0\n"),
            ("resume", "tracing window 1\n"),
        ] {
            let got = bench.activator(&[command]);
            assert_eq!(got.expect(0).out, said);
        }
        let got = bench.activator(&["pause", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&got.expect(0).out).expect("JSON");
        assert_eq!(
            (&json["windows_begun"], &json["windows_ended"]),
            (&2.into(), &2.into())
        );
    }

    #[test]
    fn refusals() {
        let bench = Bench::new();
        let got = bench.activator(&["pause"]);
        assert!(got.expect(2).err.contains("no trace is on"), "{}", got.err);
        bench.activator(&["on", "--all", "-o", "t.vmt"]).expect(0);
        let got = bench.activator(&["resume"]);
        assert!(got.expect(2).err.contains("--pausable"), "{}", got.err);
    }

    #[test]
    fn begins_with_a_window_unless_it_is_paused() {
        let bench = Bench::new();
        let on = ["on", "--all", "-o", "t.vmt", "--pausable"];
        bench.activator(&on).expect(0);
        let got = bench.activator(&["pause"]);
        assert_eq!(got.expect(0).out, "paused after window 0\n");
    }
}
