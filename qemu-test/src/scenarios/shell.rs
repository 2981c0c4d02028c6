//! `make shell` as people use it: what they type, and what is on the host afterwards.

#[path = "../../../postproc/tests/support/shown.rs"]
mod shown;

use super::Scenario;
use crate::machine::CPU_OF_SCENARIOS;
use crate::runner::{CpuShare, cpus, say};
use crate::{paths, postproc};
use anyhow::{Context, Result, bail, ensure};
use shown::Shown;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "shell".into(),
            about: "traces of README's commands in the guest's shell are on the host afterwards",
            run: Box::new(by_hand),
        },
        Scenario {
            name: "shell-early".into(),
            about: "a trace from boot in the shell; files written in the guest outlive it, even if it is cut off",
            run: Box::new(cut_off),
        },
        Scenario {
            name: "shell-documents".into(),
            about: "all commands of the activator that the documents show, as they are shown",
            run: Box::new(documents),
        },
    ]
}

/// What the shell prints when it waits, where it begins.
const PROMPT: &str = "guest:/shared# ";
/// Longer than a boot and any of the commands takes.
const PATIENCE: Duration = Duration::from_secs(900);

/// A guest's shell, by the command that people use.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: Arc<Mutex<String>>,
    /// How much of the output was looked at.
    seen: usize,
    _cpus: CpuShare,
}

impl Shell {
    fn start(folder: &Path, kernel: &str, cmdline: &str) -> Result<Self> {
        let share = cpus(2);
        let mut child = Command::new(std::env::current_exe()?)
            .args([
                "shell",
                "--kernel",
                kernel,
                "--cmdline",
                cmdline,
                "--cpu",
                CPU_OF_SCENARIOS,
            ])
            .arg("--shared")
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let output = Arc::new(Mutex::new(String::new()));
        let (out, err) = (child.stdout.take(), child.stderr.take());
        collect(out.context("no output")?, &output);
        collect(err.context("no output")?, &output);
        let input = child.stdin.take().context("no input")?;
        let mut shell = Shell {
            child,
            input,
            output,
            seen: 0,
            _cpus: share,
        };
        if let Err(e) = shell.wait_for(PROMPT) {
            bail!("{e:#}\n{}", shell.registers());
        }
        Ok(shell)
    }

    /// Where the CPUs are, some times: what QEMU's monitor says about a guest that does not answer.
    fn registers(&mut self) -> String {
        self.seen = self.text().len();
        for keys in ["\x01c", "info registers -a\n", "info registers -a\n"] {
            // A guest that has ended has no monitor.
            let _ = self.input.write_all(keys.as_bytes());
            let _ = self.input.flush();
            std::thread::sleep(Duration::from_secs(2));
        }
        self.text()[self.seen..].into()
    }

    fn text(&self) -> String {
        let text = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        text.clone()
    }

    /// What was printed up to the next place where `what` is.
    fn wait_for(&mut self, what: &str) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ended = self.child.try_wait()?;
            let text = self.text();
            let new = text.get(self.seen..).unwrap_or_default();
            if let Some(at) = new.find(what) {
                self.seen += at + what.len();
                return Ok(new[..at].into());
            }
            if ended.is_some() || Instant::now() > deadline {
                bail!("no {what:?} ({ended:?}):\n{text}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Types a command; gives what it printed.
    fn run(&mut self, command: &str) -> Result<String> {
        self.input.write_all(format!("{command}\r").as_bytes())?;
        self.input.flush()?;
        self.wait_for(PROMPT)
    }

    /// Types a command that must succeed.
    fn succeed(&mut self, command: &str) -> Result<String> {
        let said = self.run(command)?;
        let code = self.run("echo rc=$?")?;
        ensure!(code.contains("rc=0"), "{command}: {code}\n{said}");
        Ok(said)
    }

    /// Types what ends the guest; gives what was printed since.
    fn end(mut self, keys: &str) -> Result<(ExitStatus, String)> {
        self.input.write_all(keys.as_bytes())?;
        self.input.flush()?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                // The rest of the output.
                std::thread::sleep(Duration::from_millis(200));
                return Ok((status, self.text()[self.seen..].into()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the guest does not end:\n{}", self.text())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // SIGINT ends QEMU, too.
            let kill = format!("kill -2 {}", self.child.id());
            let _ = Command::new("sh").args(["-c", &kill]).status();
            let _ = self.child.wait();
        }
    }
}

/// Adds all that comes out of a pipe to a text.
fn collect(mut from: impl Read + Send + 'static, to: &Arc<Mutex<String>>) {
    let to = Arc::clone(to);
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
            to.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push_str(&text);
        }
    });
}

/// An empty folder. The disk of an earlier run that failed would be taken into it.
fn folder(name: &str, kernel: &str) -> Result<PathBuf> {
    let runs = paths::build().join("runs");
    let name = format!("{name}-{kernel}-shared");
    let folder = runs.join(&name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir(&runs)? {
        let entry = entry?.file_name();
        let file = entry.to_string_lossy();
        if file.starts_with(&format!("{name}.")) && file.ends_with(".img") {
            fs::remove_file(runs.join(entry))?;
        }
    }
    Ok(folder)
}

/// The traces in the folder are good, and there is nothing else of that kind.
fn good(folder: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        let trace = folder.join(name);
        ensure!(trace.exists(), "{} is not on the host", trace.display());
        let (rc, check) = postproc::json(&["check", "--frames"], &trace)?;
        ensure!(rc == 0, "{name}: {}", postproc::explain(&trace));
        let regions = postproc::regions(&trace).map(|lines| lines.lines().count() as u64);
        let (what, many) = match regions {
            Ok(lines) => ("regions", lines),
            Err(_) => ("references", check["references"].as_u64().unwrap_or(0)),
        };
        ensure!(many > 100, "{name}: {many} {what}");
        say!(
            "  {name}: {many} {what}, {} bytes",
            fs::metadata(&trace)?.len()
        );
    }
    Ok(())
}

fn by_hand(kernel: &str) -> Result<()> {
    let folder = folder("shell", kernel)?;
    fs::write(folder.join("mine.sql"), "select 6 * 7;\n")?;
    let mut shell = Shell::start(&folder, kernel, "")?;
    // A file of the host's, and one that the program makes.
    shell.succeed("activator run -n 512 -o sqlite.vmt -- sqlite3 db <mine.sql")?;
    // Without -o: into ./trace.vmt, which is kept, too.
    let said = shell.succeed("kvmtrace record ls -lR /usr/bin >list")?;
    ensure!(said.contains("kvmtrace check trace.vmt"), "{said}");
    // A process that runs already, until it has run for so long.
    shell.succeed("sh -c 'while :; do ls -l /usr/bin >/dev/null; done' & sleep 0.1")?;
    let said = shell.succeed("kvmtrace record -p $! --for 2s -n 256KiB -o attached.vmt")?;
    ensure!(said.contains("attached.vmt: "), "{said}");
    shell.succeed("kill $!")?;
    let said = shell.succeed("kvmtrace status --json")?;
    ensure!(said.contains("\"state\":0,"), "{said}");
    let said = shell.succeed("postproc check sqlite.vmt >/dev/null && cat list | wc -l")?;
    shell.succeed("activator on --all -o all.vmt")?;
    shell.succeed("ls -l /usr/bin >/dev/null; sqlite3 db 'create table t(a)'")?;
    let status = shell.succeed("activator status")?;
    ensure!(status.contains("/shared/all.vmt"), "{status}");
    shell.succeed("activator off")?;
    // A trace that is on when the shell ends is ended in order.
    shell.succeed("activator on --all -o last.vmt")?;
    shell.succeed("ls -lR /etc >/dev/null")?;
    let (status, end) = shell.end("exit\r")?;
    ensure!(status.success(), "{status}: {end}");
    good(
        &folder,
        &[
            "sqlite.vmt",
            "trace.vmt",
            "attached.vmt",
            "all.vmt",
            "last.vmt",
        ],
    )?;
    for name in ["db", "list"] {
        ensure!(folder.join(name).exists(), "{name} is lost; {said}");
    }
    ensure!(
        end.contains("sqlite.vmt") && end.contains("check ") && !end.contains("mine.sql"),
        "what is where is not said: {end}"
    );
    // The commands that are printed run as printed.
    let lines = end.lines().skip_while(|l| l.trim() != "next:").skip(1);
    let commands: Vec<_> = lines.map(str::trim).filter(|l| !l.is_empty()).collect();
    ensure!(commands.len() == 2, "{end}");
    for command in commands {
        let out = Command::new("sh").args(["-c", command]).output()?;
        ensure!(out.status.success(), "{command}: {out:?}");
    }
    ensure!(folder.join("report/report.html").exists(), "no report");
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn cut_off(kernel: &str) -> Result<()> {
    let folder = folder("shell-early", kernel)?;
    let mut shell = Shell::start(&folder, kernel, "vmtrace=early")?;
    shell.succeed("activator on --early -o boot.vmt")?;
    shell.succeed("ls -lR /etc >/dev/null")?;
    shell.succeed("activator off")?;
    // Ctrl-A x: QEMU ends at once.
    let (status, end) = shell.end("\u{1}x")?;
    ensure!(status.success(), "{status}: {end}");
    good(&folder, &["boot.vmt"])?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// A process that the documents name. In the guest it has another number.
const SERVER: &str = "1234";
/// A program that the documents name. It works without a pause, from before the first window
/// that they show (after 10 s) until after its end, so that the window has references.
const SIMULATION: &str = "#!/bin/sh
end=$(($(date +%s) + 12))
while [ $(date +%s) -lt $end ]; do ls -lR /usr/lib >/dev/null; done
";

/// The commands that a document shows complete, and that need the patched kernel.
fn of_kernel(name: &str, text: &str) -> Vec<Shown> {
    let is_of_kernel = |words: &[String]| match words {
        [first, ..] if first == "activator" => true,
        [first, second, ..] if first == "kvmtrace" => shown::OF_KERNEL.contains(&second.as_str()),
        _ => false,
    };
    let mut shown = shown::commands(name, text);
    shown.retain(|s| s.in_block && !s.only_read && is_of_kernel(&s.words));
    shown
}

/// A command's words for a shell.
fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,=:".contains(c);
    let quoted = words
        .iter()
        .map(|word| match !word.is_empty() && word.chars().all(plain) {
            true => word.clone(),
            false => format!("'{}'", word.replace('\'', "'\\''")),
        });
    quoted.collect::<Vec<_>>().join(" ")
}

/// The trace that a command makes, if it says so.
fn output_of(shown: &Shown) -> Option<String> {
    shown
        .words
        .iter()
        .skip_while(|w| *w != "-o")
        .nth(1)
        .cloned()
}

fn documents(kernel: &str) -> Result<()> {
    let folder = folder("shell-documents", kernel)?;
    fs::write(folder.join("simulation"), SIMULATION)?;
    let mut commands: Vec<Shown> = shown::documents()
        .iter()
        .flat_map(|(name, text)| of_kernel(name, text))
        .collect();
    ensure!(commands.len() >= 8, "only {commands:?} were found");
    // A trace from boot is on until something ends it, and each needs a boot.
    let is_early = |shown: &Shown| shown.words.iter().any(|w| w == "--early");
    commands.sort_by_key(|shown| !is_early(shown));
    let boots = commands.iter().filter(|shown| is_early(shown)).count();
    let mut traces = Vec::new();
    for shown in commands.drain(..boots.saturating_sub(1)) {
        let command = quoted(&shown.words);
        let mut shell = Shell::start(&folder, kernel, "vmtrace=early")?;
        shell
            .succeed(&command)
            .with_context(|| shown.place.clone())?;
        say!("  {}: {command}", shown.place);
        shell.succeed("ls -l /etc >/dev/null; activator off")?;
        traces.extend(output_of(&shown));
        let (status, end) = shell.end("exit\r")?;
        ensure!(status.success(), "{status}: {end}");
    }
    let mut shell = Shell::start(&folder, kernel, "vmtrace=early")?;
    shell.succeed("chmod +x simulation")?;
    shell.succeed("sh -c 'while :; do ls -l /usr/bin >/dev/null; done' &")?;
    let said = shell.succeed("echo server=$!")?;
    let server: String = said
        .rsplit_once("server=")
        .map_or("", |(_, rest)| rest)
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    ensure!(!server.is_empty(), "{said}");
    for shown in &commands {
        let mut words = shown.words.clone();
        for word in words.iter_mut().filter(|w| *w == SERVER) {
            word.clone_from(&server);
        }
        let command = quoted(&words);
        shell
            .succeed(&command)
            .with_context(|| shown.place.clone())?;
        say!("  {}: {command}", shown.place);
        traces.extend(output_of(shown));
        if is_early(shown) {
            shell.succeed("ls -l /etc >/dev/null; activator off")?;
        }
    }
    // Nothing is on that a document does not end.
    let status = shell.run("activator status")?;
    ensure!(status.contains("off"), "{status}");
    let (status, end) = shell.end("exit\r")?;
    ensure!(status.success(), "{status}: {end}");
    ensure!(traces.len() >= 4, "only {traces:?} have names");
    let traces: Vec<_> = traces.iter().map(String::as_str).collect();
    good(&folder, &traces)?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_go_to_the_shell_as_they_are_shown() {
        let text = "Text:\n\n    activator run -n 8 -- sqlite3 db 'it\"s 1'  # why\n    \
                    postproc check a\n    kvmtrace record ls\n    kvmtrace info a\n\nAnd `activator status --json`.\n";
        let found = of_kernel("d", text);
        let lines: Vec<_> = found.iter().map(|s| quoted(&s.words)).collect();
        let of_activator = "activator run -n 8 -- sqlite3 db 'it\"s 1'";
        assert_eq!(lines, [of_activator, "kvmtrace record ls"]);
        assert_eq!(quoted(&["it's".into()]), r"'it'\''s'");
    }
}
