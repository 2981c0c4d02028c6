//! What the documents show is so: commands run as shown, figures are the code's.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::shown::{Output, Shown, commands, documents, examples, options, outputs, top};
use clap::CommandFactory;
use postproc::check::{CheckOptions, Checker};
use postproc::commands::Cli;
use postproc::sim::{self, measured};
use postproc::testing::TraceBuilder;
use postproc::trace::RegionBody;
use postproc::units::{Access, Prot};
use rust_mm_trace::uapi;

/// A command of a document ends within this time.
const SOON: Duration = Duration::from_secs(120);

/// A small trace that has what the documents' commands ask for: windows, virtual time,
/// processes 42 and 1234, control groups, files, 100,000 records.
fn trace() -> Vec<u8> {
    let mut t = TraceBuilder::new(2, 16);
    t.virtual_time(1_000_000);
    for window in 0..4 {
        t.begin_window(30_000);
        let processes = [(42, "cc1", "/a/b"), (1234, "sqlite3", "/build")];
        for (i, (pid, comm, cgroup)) in (0..).zip(processes) {
            let mm = 2 * window + i + 1;
            t.task(0, pid, pid, mm, comm);
            t.cgroup(0, (pid, pid), cgroup);
            t.map_anon(0, pid, mm, 0x10_0000, 0x10_0000 + 500 * 4096, Prot(3));
            let kind = uapi::VMTRACE_FILE_REGULAR;
            t.file((0, pid, mm), uapi::VMTRACE_EV_OPEN, 7, kind, "marker");
            t.io((0, pid, mm), uapi::VMTRACE_EV_READ, 7, 0, 9000);
        }
        for i in 0..30_000u64 {
            let of = (i / 50 % 2) as u32;
            let page = i * 7 % 499;
            let access = if i % 5 == 0 {
                Access::Write
            } else {
                Access::Read
            };
            t.touch_as(
                0,
                processes[of as usize].0,
                2 * window + of + 1,
                0x10_0000 + page * 4096,
                access,
            );
        }
        t.io((0, 42, 2 * window + 1), uapi::VMTRACE_EV_WRITE, 7, 0, 1);
        t.end_window(|_| {});
    }
    t.finish()
}

/// The same for commands about sets: process 42 has set 17.
fn trace_of_sets() -> Vec<u8> {
    let mut t = TraceBuilder::new(2, 16);
    t.several_sets();
    for (mm, pid, set) in [(1, 42, 17), (2, 1234, 18)] {
        t.set(0, pid, mm, set);
        t.task(0, pid, pid, mm, "cc1");
        t.map_anon(0, pid, mm, 0x10_0000, 0x10_0000 + 500 * 4096, Prot(3));
    }
    for i in 0..10_000u64 {
        let (mm, pid) = if i / 50 % 2 == 0 { (1, 42) } else { (2, 1234) };
        t.touch(0, pid, mm, 0x10_0000 + i * 7 % 499 * 4096);
    }
    t.finish()
}

/// The same of regions, without references.
fn trace_of_regions() -> Vec<u8> {
    let mut t = TraceBuilder::sample_of_regions(uapi::VMTRACE_BY_ACCESSED);
    for (mm, pid) in [(2, 42), (3, 1234)] {
        t.task(0, pid, pid, mm, "cc1");
        t.map_anon(0, pid, mm, 0x10_0000, 0x20_0000, Prot(3));
        t.report(0, mm, &[region()]);
    }
    t.finish()
}

/// A region of these traces.
fn region() -> RegionBody {
    RegionBody {
        start: 0x10_0000,
        end: 0x20_0000,
        looks: 20,
        accesses: 7,
        writes: 0,
        age: 1,
        cpus: 0,
        index: 0,
        regions: 1,
    }
}

/// The same of regions in some windows, and of references in the others.
fn trace_of_both() -> Vec<u8> {
    let mut t = TraceBuilder::new(2, 16);
    t.sample_regions(uapi::VMTRACE_BY_ACCESSED);
    for window in 0..4 {
        let (mm, is_of_regions) = (window + 1, window % 2 == 0);
        t.begin_window(1000);
        if !is_of_regions {
            t.event(0, 1, 0, uapi::VMTRACE_EV_REFS_BEGIN, &[]);
        }
        t.task(0, 42, 42, mm, "cc1");
        t.map_anon(0, 42, mm, 0x10_0000, 0x20_0000, Prot(3));
        match is_of_regions {
            true => t.report(0, mm, &[region()]),
            false => (0..1000).for_each(|i| t.touch(0, 42, mm, 0x10_0000 + i * 7 % 199 * 4096)),
        }
        t.end_window(|w| {
            w.why = match is_of_regions {
                true => uapi::VMTRACE_WINDOW_CHANGE,
                false => uapi::VMTRACE_WINDOW_REFS,
            }
        });
    }
    t.finish()
}

/// A directory with all that the documents' commands read.
struct Scratch {
    directory: tempfile::TempDir,
    trace: Vec<u8>,
    sets: Vec<u8>,
    regions: Vec<u8>,
    both: Vec<u8>,
    helps: BTreeMap<String, String>,
    makefile: String,
}

impl Scratch {
    fn new() -> Self {
        Scratch {
            directory: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
            trace: trace(),
            sets: trace_of_sets(),
            regions: trace_of_regions(),
            both: trace_of_both(),
            helps: BTreeMap::new(),
            makefile: std::fs::read_to_string(top().join("Makefile")).unwrap(),
        }
    }

    /// Forgets what commands have made.
    fn clear(&mut self) {
        self.directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn help(&mut self, subcommand: &str) -> Result<&str, String> {
        if !self.helps.contains_key(subcommand) {
            let output = Command::new(env!("CARGO_BIN_EXE_postproc"))
                .args([subcommand, "--help"].into_iter().filter(|a| !a.is_empty()))
                .env("COLUMNS", "1000")
                .output()
                .unwrap();
            if !output.status.success() {
                return Err(format!("there is no command postproc {subcommand}"));
            }
            let text = String::from_utf8(output.stdout).unwrap();
            self.helps.insert(subcommand.into(), text);
        }
        Ok(&self.helps[subcommand])
    }

    /// Whether the command's words can be right, and whether it runs. A command of `kvmtrace` is
    /// that of `postproc`, if it has one of this name.
    fn check(&mut self, shown: &Shown) -> Result<(), String> {
        let shown = &of_postproc(shown);
        match shown.words[0].as_str() {
            "make" => self.check_make(shown),
            "postproc" => {
                self.check_words(shown)?;
                match shown.in_block && !shown.only_read {
                    true => self.run(shown, Stdio::null()),
                    false => Ok(()),
                }
            }
            // Tests of the crates activator and kvmtrace do that.
            _ => Ok(()),
        }
    }

    fn check_make(&self, shown: &Shown) -> Result<(), String> {
        let target = |word: &&String| !word.starts_with('-') && !word.contains('=');
        for word in shown.words[1..].iter().filter(target) {
            if !self
                .makefile
                .lines()
                .any(|l| l.starts_with(&format!("{word}:")))
            {
                return Err(format!("the Makefile has no target {word}"));
            }
        }
        Ok(())
    }

    fn check_words(&mut self, shown: &Shown) -> Result<(), String> {
        let subcommand = shown.words.get(1).filter(|w| !w.starts_with('-'));
        let help = self.help(subcommand.map_or("", |w| w))?;
        for option in options(&shown.words) {
            // The value of an option may be left out: --zstd[=<LEVEL>].
            let name = |w: &str| {
                w.split("[=")
                    .next()
                    .map(|w| w.trim_end_matches(',').to_owned())
            };
            let word = |w: &str| name(w).as_deref() == Some(option.as_str());
            let is_there = help
                .lines()
                .filter(|line| line.trim_start().starts_with('-'))
                .any(|line| line.split_whitespace().take(2).any(word));
            if !is_there {
                return Err(format!("it has no option {option}"));
            }
        }
        Ok(())
    }

    /// Runs a command on the small trace, under all the names that the command has for it. A trace
    /// of the repository is what it is there.
    fn run(&self, shown: &Shown, output: Stdio) -> Result<(), String> {
        let words: Vec<_> = shown.words[1..].iter().map(|w| self.placed(w)).collect();
        let from = shown.words.iter().position(|w| w == "--from");
        let format = from.and_then(|at| shown.words.get(at + 1));
        for (i, word) in words.iter().enumerate() {
            // What an option makes.
            if i > 0 && ["-o", "--output"].contains(&words[i - 1].as_str()) {
                continue;
            }
            let path = self.path().join(word);
            let content = match Path::new(word).extension().and_then(|e| e.to_str()) {
                _ if path.exists() || word.starts_with('-') => continue,
                _ if is_kept(word) => std::fs::read(top().join(word)).unwrap(),
                _ if word.ends_with("/dev/vdb") => self.trace.clone(),
                Some("vmt" | "vmtrace") if word.contains("sets.") => self.sets.clone(),
                Some("vmt" | "vmtrace") if word.contains("regions.") => self.regions.clone(),
                Some("vmt" | "vmtrace") if word.contains("phases.") => self.both.clone(),
                Some("vmt" | "vmtrace") => self.trace.clone(),
                Some("zst") if word.ends_with(".vmt.zst") || word.ends_with(".vmtrace.zst") => {
                    zstd::encode_all(&self.trace[..], 1).unwrap()
                }
                Some("data") => DAMOS_RECORD.into(),
                Some("log" | "csv" | "txt" | "zst") => match format {
                    Some(format) => foreign(format),
                    None => RECORD.into(),
                },
                _ => continue,
            };
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let mut child = Command::new(env!("CARGO_BIN_EXE_postproc"))
            .args(&words)
            .current_dir(self.path())
            .stdin(match words.iter().any(|w| w == "-") {
                true => {
                    let input = self.path().join("stdin");
                    let content = match format {
                        Some(format) => foreign(format),
                        None => self.trace.clone(),
                    };
                    std::fs::write(&input, content).unwrap();
                    Stdio::from(std::fs::File::open(input).unwrap())
                }
                false => Stdio::null(),
            })
            .stdout(output)
            .stderr(std::fs::File::create(self.path().join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let began = Instant::now();
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if began.elapsed() > SOON => {
                    child.kill().unwrap();
                    return Err(format!("it did not end within {SOON:?}"));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let said = std::fs::read_to_string(self.path().join("stderr")).unwrap();
        match status.success() {
            true => Ok(()),
            false => Err(format!("it ends with {status}: {}", said.trim())),
        }
    }

    /// What is shown as the output of commands and is not their output.
    fn compare(&self, shown: &Output) -> Result<(), String> {
        let file = |name| self.path().join(name);
        let mut real = String::new();
        for command in &shown.of {
            let output = std::fs::File::create(file("stdout")).unwrap();
            self.run(&of_postproc(command), output.into())
                .map_err(|why| format!("{}: {}: {why}", command.place, command.words.join(" ")))?;
            for name in ["stdout", "stderr"] {
                real += &std::fs::read_to_string(file(name)).unwrap();
            }
        }
        let differing = differing(&shown.lines, &real);
        differing.map_or(Ok(()), |what| Err(format!("{}: {what}", shown.place)))
    }

    /// A path from the root becomes one in the directory.
    fn placed(&self, word: &str) -> String {
        let Some(path) = word.strip_prefix('/') else {
            return word.into();
        };
        let path: PathBuf = self.path().join("root").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path.display().to_string()
    }
}

/// The same command as one of `postproc`, if `postproc` has one of this name.
fn of_postproc(shown: &Shown) -> Shown {
    let mut shown = shown.clone();
    let is_ours = |name: &str| Cli::command().find_subcommand(name).is_some();
    if shown.words[0] == "kvmtrace" && shown.words.get(1).is_some_and(|w| is_ours(w)) {
        shown.words[0] = "postproc".into();
    }
    shown
}

fn is_trace(word: &str) -> bool {
    let name = word.trim_end_matches(".zst");
    name.ends_with(".vmt") || name.ends_with(".vmtrace")
}

/// Whether it is a trace in the repository.
fn is_kept(word: &str) -> bool {
    is_trace(word) && top().join(word).is_file()
}

/// Whether commands can be run here as they were for the document: all of their traces are in the
/// repository.
fn can_be_repeated(of: &[Shown]) -> bool {
    let can = |shown: &Shown| {
        let mut traces = shown.words.iter().filter(|word| is_trace(word)).peekable();
        let has_some = traces.peek().is_some();
        has_some && of_postproc(shown).words[0] == "postproc" && traces.all(|word| is_kept(word))
    };
    of.iter().all(can)
}

/// What a line may end with, and what may stand for one line or more.
const LEFT_OUT: &str = "…";

/// Whether a line is as shown.
fn is_as_shown(shown: &str, real: &str) -> bool {
    match shown.strip_suffix(LEFT_OUT) {
        Some(begin) => real.len() > begin.len() && real.starts_with(begin),
        None => shown == real,
    }
}

/// What an output that is shown has and the real one has not.
fn differing(shown: &[String], real: &str) -> Option<String> {
    let real: Vec<&str> = real.trim_end().lines().map(str::trim_end).collect();
    // How many lines of the real output may be those that are shown so far.
    let mut reached = vec![0];
    for line in shown.iter().map(|line| line.trim_end()) {
        let next: Vec<usize> = match line.trim_start() {
            LEFT_OUT => (reached[0] + 1..=real.len()).collect(),
            _ => reached
                .iter()
                .filter(|&&at| real.get(at).is_some_and(|real| is_as_shown(line, real)))
                .map(|at| at + 1)
                .collect(),
        };
        if next.is_empty() {
            let rest: Vec<&str> = real[reached[0]..].iter().take(20).copied().collect();
            return Some(format!(
                "the output does not have this line here: {line:?}. It goes on so:\n{}",
                rest.join("\n")
            ));
        }
        reached = next;
    }
    (!reached.contains(&real.len())).then(|| {
        let rest = real[reached[reached.len() - 1]];
        format!("the output goes on where the one that is shown ends: {rest:?}")
    })
}

/// DAMON's record of process 1234.
const RECORD: &str = "\
kdamond.0-61 [000] .....    0.000200: damon_aggregated: target_id=0 nr_regions=1 1048576-3096576: 5 3\n\
kdamond.0-61 [000] .....    0.000300: damon_aggregated: target_id=0 nr_regions=1 1048576-3096576: 2 0\n";

/// The same as damo writes it.
const DAMOS_RECORD: &str = r#"[{"target_id": 7,
    "intervals": {"sample_us": 5, "aggr_us": 100},
    "snapshots": [{"start_time": 100000, "end_time": 200000, "regions": [
        {"start": 1048576, "end": 3096576, "nr_accesses": {"samples": 3}, "age": {}}]}]}]"#;

/// A small trace of a format from elsewhere.
fn foreign(format: &str) -> Vec<u8> {
    let mut text = String::new();
    if format == "csv" {
        text += "page,access\n";
    }
    for i in 0..2000 {
        let page = i * i % 331 + 1;
        let line = match format {
            "lackey" => format!(" L {:x},4", page * 4096),
            "csv" => format!("{page},read"),
            _ => page.to_string(),
        };
        writeln!(text, "{line}").unwrap();
    }
    text.into_bytes()
}

/// Checks commands; gives what is wrong with them.
fn wrong(scratch: &mut Scratch, shown: &[Shown]) -> Vec<String> {
    let check = |shown: &Shown| {
        let wrong = scratch.check(shown).err()?;
        Some(format!(
            "{}: {}: {wrong}",
            shown.place,
            shown.words.join(" ")
        ))
    };
    shown.iter().filter_map(check).collect()
}

#[test]
fn commands_in_documents_run() {
    let mut scratch = Scratch::new();
    let (mut all, mut run) = (Vec::new(), 0);
    for (name, text) in documents() {
        let shown = commands(&name, &text);
        run += shown
            .iter()
            .filter(|s| s.in_block && ["postproc", "kvmtrace"].contains(&s.words[0].as_str()))
            .count();
        scratch.clear();
        all.extend(wrong(&mut scratch, &shown));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
    assert!(run >= 8, "only {run} commands were found");
}

/// Outputs that documents show, of commands whose traces are in the repository.
#[test]
fn outputs_in_documents_are_real() {
    let (mut all, mut compared) = (Vec::new(), 0);
    for (name, text) in documents() {
        for output in outputs(&name, &text) {
            if can_be_repeated(&output.of) {
                compared += 1;
                all.extend(Scratch::new().compare(&output).err());
            }
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
    assert!(compared >= 3, "only {compared} outputs were compared");
}

/// The control.
#[test]
fn outputs_that_are_not_real_are_found() {
    let real = "a  1 2\nb\n\nc\nd\nc\ne";
    let as_lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    for good in [
        real,
        "…\nb\n\nc\n…\ne",
        "a  1 …\nb\n  …\n",
        "…\nc\ne\n",
        "…",
    ] {
        assert_eq!(differing(&as_lines(good), real), None, "{good}");
    }
    for (bad, what) in [
        ("a  1 3\n…", "\"a  1 3\""),
        ("a  1 2\nb", "\"\""),
        ("…\nb\nc\n…", "\"c\""),
        ("…\nd\n…\nd\n…", "\"d\""),
        ("a  1 2\nb\n\nc\nd\nc\ne\n…", "\"…\""),
        ("a  1 2…\n…", "\"a  1 2…\""),
        ("…\na  1 2\n…", "\"a  1 2\""),
    ] {
        let found = differing(&as_lines(bad), real).unwrap_or_default();
        assert!(found.contains(what), "{bad}: {found}");
    }
    let info = "    kvmtrace check docs/gallery/redis.vmt | head\n\nIt prints:\n\n```text\n";
    let of = |output: &str| outputs("d", &format!("{info}{output}```\n"));
    let good = &of("…\n")[0];
    assert_eq!((good.place.as_str(), good.of.len()), ("d:6", 1));
    assert!(can_be_repeated(&good.of));
    assert_eq!(Scratch::new().compare(good), Ok(()));
    let bad = Scratch::new()
        .compare(&of("…\nnever said\n")[0])
        .unwrap_err();
    assert!(
        bad.starts_with("d:6: ") && bad.contains("never said"),
        "{bad}"
    );
    for other in [
        "    kvmtrace check of-a-run.vmt\n\n```text\ngood\n```\n",
        "    kvmtrace status\n\n```text\ngood\n```\n",
    ] {
        assert!(!can_be_repeated(&outputs("d", other)[0].of), "{other}");
    }
}

#[test]
fn commands_in_helps_run() {
    let mut scratch = Scratch::new();
    let help = scratch.help("").unwrap();
    let subcommands: Vec<String> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next().map(String::from))
        .filter(|name| name != "help")
        .collect();
    assert!(subcommands.len() >= 10, "{subcommands:?}");
    let (mut all, mut run) = (Vec::new(), 0);
    for subcommand in std::iter::once(String::new()).chain(subcommands) {
        let name = format!("postproc {subcommand}");
        let shown = examples(&name, scratch.help(&subcommand).unwrap());
        assert!(!shown.is_empty(), "{name} --help has no example");
        run += shown.len();
        scratch.clear();
        all.extend(wrong(&mut scratch, &shown));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
    assert!(run >= 40, "only {run} commands were found");
}

#[test]
fn what_is_wrong_is_found() {
    let mut scratch = Scratch::new();
    let mut wrong = |text: &str| wrong(&mut scratch, &commands("d", text)).join("\n");
    for good in [
        "    postproc check t.vmt   # good\n",
        "```sh\n$ A=b postproc export t.vmt --format csv -o - | head -n 1 2>&1 >x\n```\n",
        "    kvmtrace check t.vmt\n    kvmtrace record --of-the-kernel ls\n",
        "Use `postproc simulate --fill`, `make check` and `make kernel A=/b`.\n",
        "<!-- not run: it has no such window -->\n    postproc check t.vmt --window 9\n",
        "<!-- not checked: of a version to come -->\n    postproc verify t.vmt\n",
        "    postproc simulate t.vmt --size 100 \\\n        --policy lru\n",
    ] {
        assert_eq!(wrong(good), "", "{good}");
    }
    for (bad, place, what) in [
        (
            "a\n\n    postproc verify t.vmt\n",
            "d:3",
            "no command postproc verify",
        ),
        ("    postproc check t.vmt --all\n", "d:1", "no option --all"),
        ("    kvmtrace check t.vmt --all\n", "d:1", "no option --all"),
        (
            "    kvmtrace check t.vmt --window 9\n",
            "d:1",
            "there is no window 9",
        ),
        (
            "Use `postproc check\n--all t.vmt` or not.\n",
            "d:1",
            "no option --all",
        ),
        (
            "    postproc check t.vmt --window 9\n",
            "d:1",
            "there is no window 9",
        ),
        (
            "    true; postproc simulate t.vmt\n",
            "d:1",
            "exit status: 2",
        ),
        (
            "    postproc simulate t.vmt --size 1 \\\n     --policy none\n",
            "d:1",
            "exit status: 2",
        ),
        ("```\nmake\nmake nothing\n```\n", "d:3", "no target nothing"),
        ("See `make tset`.\n", "d:1", "no target tset"),
    ] {
        let found = wrong(bad);
        assert!(
            found.starts_with(place) && found.contains(what),
            "{bad}: {found}"
        );
    }
}

/// A text without the ends of its lines.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The word or number before each place where `words` stand in a text; not where `of`
/// says that it is a part.
fn before<'t>(text: &'t str, words: &str) -> Vec<&'t str> {
    let starts = text.match_indices(words).map(|(at, _)| &text[..at]);
    let word = |text: &'t str| {
        let mut words = text.rsplit(' ');
        let word = words.next()?;
        (words.next() != Some("of")).then_some(word)
    };
    starts.filter_map(word).collect()
}

/// Numbers that documents may have of what is registered: as many as there are.
#[test]
fn numbers_are_those_of_the_registries() {
    let controls = std::fs::read_to_string(top().join("qemu-test/src/scenarios/controls.rs"));
    let controls = controls.unwrap();
    let list = controls
        .split("const CONTROLS: &[Control] = &[")
        .nth(1)
        .unwrap();
    let list = list.split("\n];").next().unwrap();
    let rules = |checker: Checker| checker.report().rules.len();
    let options = CheckOptions::default;
    let usual = rules(Checker::new(options()));
    assert_eq!(rules(Checker::with_pages(options())), usual + 1);
    let mut found = 0;
    for (words, number) in [
        (" policies", sim::registry().len()),
        (" rules", usual),
        (" protections", list.matches("name: \"").count()),
    ] {
        for (name, text) in documents() {
            for word in before(&flat(&text), words) {
                let Ok(said) = word.trim_start_matches(['(', '*']).parse::<usize>() else {
                    continue;
                };
                found += 1;
                assert_eq!(said, number, "{name}: {said}{words}");
            }
        }
    }
    assert!(found >= 3, "the documents have {found} of these numbers");
}

/// What stands in the table of docs/fidelity.md, by policy and what was simulated.
fn table() -> BTreeMap<(String, String), Vec<(f64, f64)>> {
    let text = std::fs::read_to_string(top().join("docs/fidelity.md")).unwrap();
    let mut table = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<_> = line
            .trim()
            .trim_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        let errors: Option<Vec<(f64, f64)>> = cells
            .iter()
            .skip(2)
            .map(|cell| {
                let (mean, worst) = cell.split_once(" / ")?;
                Some((mean.parse().ok()?, worst.parse().ok()?))
            })
            .collect();
        if let (6, Some(errors)) = (cells.len(), errors) {
            table.insert((cells[0].into(), cells[1].into()), errors);
        }
    }
    table
}

#[test]
fn measured_errors_are_those_of_the_table() {
    let table = table();
    for line in measured::registry() {
        let errors = line.errors.map(|e| (e.mean_percent, e.worst_percent));
        let key = (line.policy.to_string(), line.how.name().to_string());
        assert_eq!(table.get(&key), Some(&errors.to_vec()), "{key:?}");
    }
    // Errors of traces with batches are in the table only.
    let is_told = |how: &str| !how.ends_with("(not built)") && how != "FIFO, batches";
    let built = table.keys().filter(|(_, how)| is_told(how)).count();
    assert_eq!(built, measured::registry().len());
}

/// Texts that may speak of measured errors: documents and sources.
fn texts() -> Vec<(String, String)> {
    let mut texts = documents();
    let mut below = vec![top().join("postproc/src"), top().join("activator/src")];
    while let Some(directory) = below.pop() {
        for entry in directory.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                below.push(path);
            } else {
                let text = std::fs::read(&path).unwrap();
                let text = String::from_utf8_lossy(&text).replace("///", "");
                texts.push((path.display().to_string(), text));
            }
        }
    }
    texts
}

/// `X % on average and Y % at worst`, wherever it stands, is a mean and a worst error of
/// the table, rounded as written.
#[test]
fn measured_errors_are_said_as_measured() {
    let said = |text: &str, of: f64| {
        let digits = text.split_once('.').map_or(0, |(_, digits)| digits.len());
        format!("{of:.digits$}") == text
    };
    let is_measured = |mean: &str, worst: &str| {
        let errors = measured::registry().iter().flat_map(|line| line.errors);
        let mut errors = errors.map(|e| (e.mean_percent, e.worst_percent));
        errors.any(|e| said(mean, e.0) && said(worst, e.1))
    };
    assert!(is_measured("0.16", "2.8") && is_measured("0.163", "2.82"));
    assert!(!is_measured("0.5", "5.6") && !is_measured("0.16", "5.6"));
    let mut found = 0;
    for (name, text) in texts() {
        let text = flat(&text);
        for (at, words) in text.match_indices(" % on average") {
            let mean = text[..at].rsplit(' ').next().unwrap_or_default();
            let rest = text[at + words.len()..].trim_start_matches([',', ' ']);
            let rest = rest.strip_prefix("and ").unwrap_or(rest);
            let worst = rest.split(' ').next().unwrap_or_default();
            if mean.parse::<f64>().is_err() || !rest[worst.len()..].starts_with(" % at worst") {
                continue;
            }
            found += 1;
            assert!(
                is_measured(mean, worst),
                "{name}: {mean} and {worst} % were not measured"
            );
        }
    }
    assert!(found >= 2, "{found} sentences have measured errors");
}

/// The picture in the README has the measured errors, too: it is to be drawn anew when they
/// change.
#[test]
fn measured_errors_in_the_picture_are_those_of_the_table() {
    let picture = std::fs::read_to_string(top().join("docs/fault-curve.svg")).unwrap();
    let mut found = 0;
    for line in measured::registry() {
        let drawn = picture.contains(&format!(">{}</text>", line.policy));
        let bounded = ["lru", "opt"].contains(&line.policy);
        if line.how != measured::How::Plain || bounded || !drawn {
            continue;
        }
        let at = measured::FROM.iter().position(|&n| n == measured::LEAST);
        let error = line.errors[at.unwrap()];
        let (mean, worst) = (error.mean_percent, error.worst_percent);
        let words = format!("{} {mean} % and {worst} %", line.policy);
        assert!(picture.contains(&words), "the picture lacks: {words}");
        found += 1;
    }
    assert_eq!(found, 5);
}
