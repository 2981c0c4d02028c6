//! The report: a page that needs no network, pictures that are well-formed, data that
//! can be read, and a browser that has nothing to complain of.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use postproc::testing::TraceBuilder;
use postproc::trace::FileId;
use postproc::units::{Access, Prot};
use rust_mm_trace::uapi;

/// What a program must not be able to do by its name.
const NASTY: &str = "</script><b>x";
const NASTY_FILE: &str = "/tmp/<img src=x onerror=alert(1)>,\"&.so.1";

/// Two processes that share a file, two phases, reads, writes and fetches.
fn trace() -> Vec<u8> {
    let mut b = TraceBuilder::new(2, 8);
    b.task(0, 10, 10, 1, "first");
    b.task(0, 20, 20, 2, NASTY);
    for (tid, mm) in [(10, 1), (20, 2)] {
        b.map_anon(0, tid, mm, 0x10_0000, 0x20_0000, Prot(3));
        let file = FileId {
            dev: 8 << 20,
            ino: 7,
            generation: 0,
        };
        let (range, kind) = (0x40_0000..0x48_0000, uapi::VMTRACE_MAP_FILE);
        b.map(0, tid, mm, range, Prot(5), kind, 0, file, 0, NASTY_FILE);
    }
    let mut random = 5u64;
    for i in 0..6_000u64 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (tid, mm) = if i < 4_000 { (10, 1) } else { (20, 2) };
        let span = if i < 2_000 { 40 } else { 200 };
        match random % 4 {
            0 => b.touch_as(
                0,
                tid,
                mm,
                0x40_0000 + (random >> 8) % 100 * 4096,
                Access::Exec,
            ),
            1 => b.touch_as(
                1,
                tid,
                mm,
                0x10_0000 + (random >> 8) % span * 4096,
                Access::Write,
            ),
            _ => b.touch_as(
                0,
                tid,
                mm,
                0x10_0000 + (random >> 8) % span * 4096,
                Access::Read,
            ),
        }
    }
    b.finish()
}

struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("t.vmtrace"), trace()).unwrap();
        Fixture(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postproc"));
        support::run(
            command.args(args).current_dir(self.0.path()),
            "run postproc",
        )
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    fn files(&self, directory: &str, extension: &str) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self
            .path(directory)
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == extension))
            .collect();
        files.sort();
        files
    }
}

/// Python's parsers take pictures and page, and find no address in them.
const PARSE: &str = r#"
import sys, xml.etree.ElementTree as tree
from html.parser import HTMLParser
VOID = {'meta', 'br', 'img', 'link', 'input', 'hr'}
class Page(HTMLParser):
    def __init__(self):
        super().__init__(); self.open = []; self.seen = set()
    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        for name, value in attributes:
            # The only addresses are images in themselves.
            inside = name == 'href' and value.startswith('data:image/png;base64,')
            assert inside or name not in ('src', 'href', 'srcset', 'action') and not name.startswith('on'), (tag, name)
        if tag not in VOID: self.open.append(tag)
    def handle_startendtag(self, tag, attributes):
        self.seen.add(tag)
    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:], self.getpos())
        self.open.pop()
for path in sys.argv[1:]:
    text = open(path, encoding='utf-8').read()
    if path.endswith('.svg'):
        root = tree.fromstring(text)
        assert root.tag == '{http://www.w3.org/2000/svg}svg', root.tag
        width, height = float(root.get('width')), float(root.get('height'))
        for e in root.iter('{http://www.w3.org/2000/svg}text'):
            x, y = float(e.get('x')), float(e.get('y'))
            assert 0 <= x <= width and 0 <= y <= height, (path, e.text)
            # Letters are about half as wide as high.
            wide = len(e.text or '') * float(e.get('font-size')) * 0.5
            if not e.get('transform'):
                left = {'start': x, 'middle': x - wide / 2, 'end': x - wide}[e.get('text-anchor')]
                assert left > -2 and left + wide < width + 2, (path, e.text)
    else:
        page = Page(); page.feed(text); page.close()
        assert not page.open, page.open
        assert 'img' not in page.seen and 'link' not in page.seen and 'b' in page.seen
        # The name of a format, and where a library comes from. Nothing is loaded from there.
        rest = text.replace('http://www.w3.org/2000/svg', '').replace('https://github.com/leeoniya/uPlot', '')
        assert 'http:' not in rest and 'https:' not in rest and '@import' not in rest
"#;

fn parse(files: &[PathBuf]) {
    let mut python = Command::new("python3");
    support::run(python.arg("-c").arg(PARSE).args(files), "parse the report");
}

#[test]
fn all_parts_are_there_and_well_formed() {
    let f = Fixture::new();
    let printed = f.run(&["report", "t.vmtrace", "-o", "r"]);
    assert_eq!(printed, f.read("r/summary.txt"));
    let svgs = f.files("r", "svg");
    for name in [
        "fault-curve",
        "heatmap-pages",
        "heatmap-addresses-1",
        "heatmap-addresses-2",
        "working-set",
        "working-set-by-window",
        "faults",
        "reuse-distances",
        "misses-by-mapping",
        "write-backs-by-mapping",
        "slices",
    ] {
        for kind in ["svg", "csv", "json"] {
            assert!(
                f.path(&format!("r/{name}.{kind}")).exists(),
                "{name}.{kind}"
            );
        }
    }
    let mut files = svgs;
    files.push(f.path("r/report.html"));
    parse(&files);
    for json in f.files("r", "json") {
        let text = std::fs::read_to_string(&json).unwrap();
        let _: serde_json::Value = serde_json::from_str(&text).unwrap();
    }
    for csv in f.files("r", "csv") {
        let text = std::fs::read_to_string(&csv).unwrap();
        assert!(text.lines().count() > 1, "{}", csv.display());
    }
    let page = f.read("r/report.html");
    assert!(page.contains("The trace is good"));
    assert!(!page.contains(NASTY), "a name became markup");
    // No figure that has files is missing in the page.
    for svg in f.files("r", "svg") {
        let id = svg.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(page.contains(&format!("<figure id=\"{id}\"")), "{id}");
    }
    // A page alone is the same page.
    f.run(&["report", "t.vmtrace", "-o", "alone.html"]);
    assert_eq!(f.read("alone.html"), page);
}

/// The pictures' figures are those of the other commands.
#[test]
fn figures_are_those_of_simulate_and_of_the_csv() {
    let f = Fixture::new();
    f.run(&[
        "report",
        "t.vmtrace",
        "-o",
        "r",
        "--policy",
        "opt,lru,clock,2q",
    ]);
    let data = |name: &str| -> serde_json::Value {
        serde_json::from_str(&f.read(&format!("r/{name}.json"))).unwrap()
    };
    let curves = data("fault-curve");
    let mut compared = 0;
    for line in curves["policies"].as_array().unwrap() {
        let policy = line["policy"].as_str().unwrap();
        let points = line["points"].as_array().unwrap();
        let sizes: Vec<String> = points
            .iter()
            .step_by(7)
            .map(|p| p["size_pages"].to_string())
            .collect();
        let list = sizes.join(",");
        let run = f.run(&[
            "simulate",
            "t.vmtrace",
            "--json",
            "--policy",
            policy,
            "--size",
            &list,
        ]);
        let run: serde_json::Value = serde_json::from_str(&run).unwrap();
        for (point, size) in points
            .iter()
            .step_by(7)
            .zip(run["sizes"].as_array().unwrap())
        {
            assert_eq!(point["size_pages"], size["size_pages"]);
            for name in ["misses", "write_backs"] {
                let drawn = point[name].as_f64().unwrap();
                assert_eq!(
                    drawn,
                    size[name].as_f64().unwrap(),
                    "{policy} {name} {size}"
                );
            }
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
    let rows = f.run(&[
        "export",
        "t.vmtrace",
        "--keep-freed",
        "--format",
        "csv",
        "-o",
        "-",
    ]);
    let references = rows.lines().count() as u64 - 1;
    let cells = |name: &str| -> u64 {
        let rows = data(name);
        let rows = rows["cells"].as_array().unwrap().clone();
        rows.iter()
            .flat_map(|row| row.as_array().unwrap().iter().skip(1).step_by(2))
            .map(|n| n.as_u64().unwrap())
            .sum()
    };
    assert_eq!(cells("heatmap-pages"), references);
    assert_eq!(
        cells("heatmap-addresses-1") + cells("heatmap-addresses-2"),
        references
    );
    let faults = data("faults");
    let sum = |name: &str| -> u64 {
        let counts = faults[name].as_array().unwrap();
        counts.iter().map(|n| n.as_u64().unwrap()).sum()
    };
    assert_eq!(sum("faults"), references);
    assert_eq!(sum("first_references"), curves["cold"].as_u64().unwrap());
    let slices = data("slices");
    let sum = |name: &str| -> u64 {
        let slices = slices["slices"].as_array().unwrap();
        slices.iter().map(|s| s[name].as_u64().unwrap()).sum()
    };
    assert_eq!(sum("references"), references);
    assert_eq!(sum("new_pages"), curves["cold"].as_u64().unwrap());
    // Libraries are told by their names, others by their kind.
    let kinds = f.read("r/kinds-of-memory.csv");
    assert!(kinds.contains("\nlibrary,read from a file,100,"), "{kinds}");
    assert!(kinds.contains("\nanonymous,filled with zeros,"), "{kinds}");
}

/// A second chance counts as a reference, and not as a fault.
#[test]
fn second_chances_are_no_faults() {
    let f = Fixture::new();
    let mut b = TraceBuilder::new(2, 8);
    b.task(0, 10, 10, 1, "clock");
    b.map_anon(0, 10, 1, 0x10_0000, 0x20_0000, Prot(3));
    for i in 0..400u64 {
        let access = match i % 10 {
            9 => Access::Seen,
            _ => Access::Read,
        };
        b.touch_as(0, 10, 1, 0x10_0000 + i % 20 * 4096, access);
    }
    std::fs::write(f.path("clock.vmtrace"), b.finish()).unwrap();
    // The builder's stays are not those of a set with second chances, which the report says.
    let args = ["report", "clock.vmtrace", "--policy", "lru", "-o", "r"];
    assert_eq!(support::postproc(&args, f.0.path()).status.code(), Some(1));
    let sum = |file: &str, list: &str| -> u64 {
        let data: serde_json::Value = serde_json::from_str(&f.read(file)).unwrap();
        let counts = data[list].as_array().unwrap();
        counts.iter().map(|n| n.as_u64().unwrap()).sum()
    };
    assert_eq!(sum("r/faults.json", "faults"), 360);
    assert_eq!(sum("r/faults.json", "first_references"), 18);
    let rows = f.read("r/heatmap-pages.csv");
    let count = |row: &str| row.rsplit(',').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(rows.lines().skip(1).map(count).sum::<u64>(), 400);
}

/// What cannot be simulated as a whole is estimated, and says so.
#[test]
fn a_sample_is_marked() {
    let f = Fixture::new();
    f.run(&[
        "report",
        "t.vmtrace",
        "-o",
        "r",
        "--policy",
        "opt,arc",
        "--sample",
        "0.5",
    ]);
    let svg = f.read("r/fault-curve.svg");
    assert!(
        svg.contains("arc (sampled)") && svg.contains("Estimated from 50 %"),
        "{svg}"
    );
    let data: serde_json::Value = serde_json::from_str(&f.read("r/fault-curve.json")).unwrap();
    let point = &data["policies"][0]["points"][3];
    assert!(point["misses_error"].as_f64().unwrap() > 0.0, "{point}");
}

/// A bad trace has it on top.
#[test]
fn what_is_wrong_comes_first() {
    let f = Fixture::new();
    let mut bad = TraceBuilder::sample();
    bad.unmap(0, 10, 1, 0x1000, 0x2000);
    bad.touch(0, 10, 1, 0x1000);
    std::fs::write(f.path("bad.vmtrace"), bad.finish()).unwrap();
    let args = ["report", "bad.vmtrace", "-o", "bad.html"];
    let output = support::postproc(&args, f.0.path());
    assert_eq!(output.status.code(), Some(1));
    let page = f.read("bad.html");
    let at = |words: &str| page.find(words).unwrap_or_else(|| panic!("no {words}"));
    assert!(at("The trace is not good") < at("Misses by size of memory"));
    assert!(at("<li>mapped: ") < at("Misses by size of memory"));
    assert!(page.contains("class=\"bad\"><b>1</b> <span>references that no mapping allowed"));
}

/// Without a name, the page is beside the trace, and nothing is overwritten.
#[test]
fn a_report_without_a_name_is_beside_the_trace() {
    let f = Fixture::new();
    let report = |more: &[&str]| {
        let args = [&["report", "t.vmtrace", "--policy", "lru"], more].concat();
        let output = support::postproc(&args, f.0.path());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    assert_eq!(report(&[]).0, Some(0));
    let page = f.read("t.html");
    assert!(page.contains("Misses by size of memory"));
    let (code, said) = report(&["--comm", "first"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("t.html exists already"), "{said}");
    assert!(f.read("t.html") == page, "overwritten");
    // It is, by request.
    assert_eq!(report(&["--comm", "first", "-o", "t.html"]).0, Some(0));
    assert!(f.read("t.html") != page);
}

/// A browser loads the page without a complaint, and its script has run to its end.
#[test]
fn a_browser_shows_it() {
    let f = Fixture::new();
    f.run(&["report", "t.vmtrace", "-o", "r"]);
    let show = |page: &Path, what: &[&str]| -> (String, String) {
        let output = Command::new("chromium-headless-shell")
            .args(["--no-sandbox", "--disable-gpu", "--enable-logging=stderr"])
            .arg(format!("--user-data-dir={}", f.path("profile").display()))
            .args(["--window-size=1120,2000", "--virtual-time-budget=2000"])
            .args(what)
            .arg(format!("file://{}", page.display()))
            .output()
            .expect("cannot run a browser (Debian: apt-get install chromium-headless-shell)");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (text(output.stdout), text(output.stderr))
    };
    let (dom, log) = show(&f.path("r/report.html"), &["--dump-dom"]);
    assert!(!log.contains("CONSOLE"), "{log}");
    // What only the script makes.
    assert!(
        dom.contains("<html lang=\"en\" class=\"js\">"),
        "{dom:.300}"
    );
    let figures = dom.matches("<figure ").count();
    assert!(figures >= 10, "{figures}");
    assert_eq!(dom.matches("title=\"Save this as SVG\"").count(), figures);
    // The library has drawn what is explored: all but bars, and but the second address space.
    let explored = dom.matches("data-explored").count() - 1;
    assert!(explored >= 7, "{explored}");
    assert_eq!(dom.matches("class=\"chart\"").count(), explored);
    assert_eq!(dom.matches("class=\"uplot ").count(), explored);
    let png = f.path("page.png");
    show(
        &f.path("r/report.html"),
        &[&format!("--screenshot={}", png.display())],
    );
    assert!(png.metadata().unwrap().len() > 20_000);
    // The control: what is blocked, or fails, is seen.
    let page = f.read("r/report.html");
    let spoilt = page.replacen(
        "<footer>",
        "<img src=\"http://127.0.0.1:9/x.png\"><footer>",
        1,
    );
    std::fs::write(f.path("spoilt.html"), spoilt).unwrap();
    let (_, log) = show(&f.path("spoilt.html"), &["--dump-dom"]);
    assert!(
        log.contains("CONSOLE") && log.contains("Content Security Policy"),
        "{log}"
    );
}

/// The data of a page have a bound: a long trace that touches all memory all the time, in more
/// address spaces than are drawn, has a page that is still small.
///
/// `scripts/browser_test.py` looks at the page, too.
#[test]
fn a_long_trace_has_a_small_page() {
    let f = Fixture::new();
    let mut b = TraceBuilder::new(2, 64);
    let pages = 4096;
    for of in 1..=8 {
        b.task(0, of * 10, of * 10, of, &format!("worker-{of}"));
        b.map_anon(0, of * 10, of, 0x10_0000, 0x10_0000 + pages * 4096, Prot(3));
    }
    let mut random = 88172645463325252u64;
    for _ in 0..2_000_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let of = (random >> 20) as u32 % 8 + 1;
        let access = match random % 3 {
            0 => Access::Write,
            _ => Access::Read,
        };
        let page = (random >> 32) % pages;
        b.touch_as(of % 2, of * 10, of, 0x10_0000 + page * 4096, access);
    }
    std::fs::write(f.path("long.vmtrace"), b.finish()).unwrap();
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("long.html");
    let to = page.to_str().unwrap();
    f.run(&[
        "report",
        "long.vmtrace",
        "--policy",
        "lru,opt,fifo",
        "-o",
        to,
    ]);
    let bytes = page.metadata().unwrap().len();
    let text = std::fs::read_to_string(&page).unwrap();
    // All cells of seven heat maps are used.
    assert_eq!(text.matches("\"kind\":\"heatmap\"").count(), 7);
    assert!((1_000_000..5_000_000).contains(&bytes), "{bytes}");
}

/// So has one in which each row of the maps of addresses has another name, which is as long as names can
/// be, and whose letters each take six bytes.
#[test]
fn long_names_take_little_room() {
    let f = Fixture::new();
    let mut b = TraceBuilder::new(1, 64);
    for of in 1..=6 {
        b.task(0, of * 10, of * 10, of, "names");
        for i in 0..256 {
            let file = FileId {
                dev: 8 << 20,
                ino: u64::from(of) << 16 | i,
                generation: 0,
            };
            let begin = 0x10_0000 + i * 4096;
            let (range, kind) = (begin..begin + 4096, uapi::VMTRACE_MAP_FILE);
            let number = format!("{of}-{i}");
            let name = "<".repeat(uapi::VMTRACE_NAME_MAX as usize - number.len()) + &number;
            b.map(0, of * 10, of, range, Prot(5), kind, 0, file, 0, &name);
            b.touch_as(0, of * 10, of, begin, Access::Read);
        }
    }
    std::fs::write(f.path("names.vmtrace"), b.finish()).unwrap();
    f.run(&["report", "names.vmtrace", "--policy", "lru", "-o", "r"]);
    let page = f.read("r/report.html");
    assert_eq!(page.matches("\"kind\":\"heatmap\"").count(), 7);
    let all_names = 6 * 256 * 6 * 248;
    assert!(
        (all_names..5_000_000).contains(&page.len()),
        "{}",
        page.len()
    );
}

/// A trace from elsewhere has a page, too: its time is the number of references.
#[test]
fn a_trace_from_elsewhere() {
    let f = Fixture::new();
    let pages: String = (0..20_000u64)
        .map(|i| format!("{}\n", i * 7919 % 97 * (i / 5_000 + 1)))
        .collect();
    std::fs::write(f.path("t.txt"), &pages).unwrap();
    f.run(&["report", "--from", "txt", "t.txt", "-o", "r"]);
    let mut files = f.files("r", "svg");
    assert_eq!(files.len(), 5, "{files:?}");
    files.push(f.path("r/report.html"));
    // No table, no badge: <b> comes from neither.
    let page = f.read("r/report.html").replace("</dl>", "</dl><b></b>");
    std::fs::write(f.path("r/report.html"), page).unwrap();
    parse(&files);
    let data: serde_json::Value = serde_json::from_str(&f.read("r/working-set.json")).unwrap();
    let samples = data["samples"].as_array().unwrap();
    assert_eq!(samples.last().unwrap()["t"], 19_999);
}
