//! Programs that were made for other versions of the interface of /dev/vmtrace.

use super::Scenario;
use crate::machine::{Machine, Profile, debian};
use crate::postproc;
use anyhow::{Result, ensure};

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![Scenario {
        name: "versions".into(),
        about: "configurations of other sizes are understood, or refused; a status gives what fits",
        run: Box::new(versions),
    }]
}

fn versions(kernel: &str) -> Result<()> {
    let out = Machine {
        name: format!("versions-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Fast,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps: vec![
            debian(
                "run",
                "sleep 300 >/dev/null 2>&1 & versions /tmp/v.vmt $! && kill $!",
            ),
            debian("keep", "keep 0 /tmp/v.vmt"),
        ],
        deadline_s: 300,
    }
    .run()?;
    let run = out.step("run")?;
    ensure!(run.rc == 0, "{run:?}");
    let path = out.kept(0, "v.vmt")?;
    let (rc, _) = postproc::json(&["check"], &path)?;
    ensure!(rc == 0, "{}", postproc::explain(&path));
    Ok(())
}
