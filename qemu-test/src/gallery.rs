//! Makes the traces of docs/gallery.md.

use crate::loads::{self, Amount, CLEAN, Program};
use crate::machine::{Machine, Outcome, Profile, debian};
use crate::shared::Shared;
use crate::{paths, postproc};
use anyhow::{Result, bail, ensure};
use std::fs;
use std::path::Path;

/// More than the repository is to have of one trace.
const MOST_BYTES: u64 = 400 << 10;

/// Programs that ask for random numbers would wait, for nothing else gives the kernel any here.
const RANDOM: &str = "random.trust_cpu=on";

/// From the kernel's first program on. The kernel keeps so much until the activator takes over.
const EARLY: &str = "vmtrace=early,refs,evms=512,size=128M";

/// What makes a trace.
struct Recipe {
    /// The trace's name.
    name: &'static str,
    /// More options for the kernel.
    cmdline: &'static str,
    /// Commands of the guest, one after the other. They leave /tmp/NAME.vmt.
    commands: Vec<String>,
}

fn of_program(program: &Program) -> Recipe {
    let name = program.name;
    let work = program.script(Amount::Middle);
    let quoted = work.replace('\'', "'\\''");
    Recipe {
        name,
        cmdline: "",
        commands: vec![
            "mount -t tmpfs tmp /tmp".into(),
            // The files that it reads are in memory then, and no disk is waited for.
            work,
            CLEAN.into(),
            format!("activator run --pack=zstd -o /tmp/{name}.vmt -- sh -c '{quoted}'"),
        ],
    }
}

fn of_boot() -> Recipe {
    let commands = [
        "/sbin/init; sleep 1",
        "activator on --early --pack=zstd -o /tmp/boot.vmt",
        "cd /tmp && echo 'int main(void) { return 0; }' > m.c && gcc m.c -o m && ./m",
        "activator off",
    ];
    Recipe {
        name: "boot",
        cmdline: EARLY,
        commands: commands.map(String::from).into(),
    }
}

fn recipes() -> Vec<Recipe> {
    let mut list: Vec<_> = loads::PROGRAMS.iter().map(of_program).collect();
    list.push(of_boot());
    list
}

impl Recipe {
    fn cmdline(&self) -> String {
        format!("{} {RANDOM}", self.cmdline).trim_start().into()
    }

    /// A description of it for readers: a script.
    fn script(&self) -> String {
        let mut text = format!(
            "#!/bin/sh\n# Made {}.vmt in a guest. The kernel's options: {}\nset -e\n",
            self.name,
            self.cmdline()
        );
        for command in &self.commands {
            text += command;
            text.push('\n');
        }
        text
    }

    /// Boots, takes the trace, and checks it.
    fn make(&self, into: &Path, kernel: &str) -> Result<()> {
        let name = self.name;
        eprintln!("booting the patched kernel; tracing {name} …");
        let folder = paths::build().join("runs").join(format!("gallery-{name}"));
        let _ = fs::remove_dir_all(&folder);
        let shared = Shared::new(&folder)?;
        let keep = format!("cp /tmp/{name}.vmt /shared");
        let commands = self.commands.iter().chain([&keep]).enumerate();
        let out = Machine {
            name: format!("make-gallery-{name}"),
            kernel: kernel.into(),
            // Times are by instructions, except for the boot's waits for the disk.
            profile: Profile::Exact,
            image: true,
            cmdline: self.cmdline(),
            files: loads::files(),
            steps: commands
                .map(|(i, command)| debian(&format!("{i}"), command))
                .collect(),
            deadline_s: 900,
        }
        .run_with(&shared.args());
        let files = shared.collect()?;
        ended_well(&out?)?;
        let trace = folder.join(format!("{name}.vmt"));
        ensure!(files.contains(&trace), "{} was not made", trace.display());
        let (rc, check) = postproc::json(&["check", "--frames"], &trace)?;
        ensure!(rc == 0, "{name}: {}", postproc::explain(&trace));
        let bytes = fs::metadata(&trace)?.len();
        println!(
            "{name:<8} {} references, {bytes} bytes",
            check["references"]
        );
        ensure!(
            bytes <= MOST_BYTES,
            "{name}: {bytes} bytes are too many for the repository"
        );
        fs::copy(&trace, into.join(format!("{name}.vmt")))?;
        fs::write(into.join(format!("{name}.sh")), self.script())?;
        Ok(())
    }
}

fn ended_well(out: &Outcome) -> Result<()> {
    match out.results.iter().find(|r| r.rc != 0) {
        Some(r) => bail!("{}: {r:?}", out.dir.display()),
        None => Ok(()),
    }
}

/// Makes the traces whose names have one of the words, checks them, and puts them into `into`.
///
/// # Errors
///
/// If a guest fails, or a trace is not good.
pub fn run(words: &[String], into: &Path, kernel: &str) -> Result<()> {
    fs::create_dir_all(into)?;
    let is_wanted =
        |r: &Recipe| words.is_empty() || words.iter().any(|w| r.name.contains(w.as_str()));
    let wanted: Vec<_> = recipes().into_iter().filter(is_wanted).collect();
    ensure!(!wanted.is_empty(), "the gallery has no such trace");
    wanted.iter().try_for_each(|r| r.make(into, kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gallery_shows_how_its_traces_were_made() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let page = fs::read_to_string(docs.join("gallery.md")).unwrap();
        for recipe in recipes() {
            let name = recipe.name;
            let script = fs::read_to_string(docs.join(format!("gallery/{name}.sh"))).unwrap();
            assert!(
                script == recipe.script(),
                "docs/gallery/{name}.sh is an older one: make gallery"
            );
            assert!(page.contains(&format!("(gallery/{name}.sh)")), "{name}");
        }
    }
}
