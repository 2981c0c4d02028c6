//! The report as one HTML page that works without a network, and its files.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::Path;

use super::chart::{Unit, time_text};
use super::fault_curve::{self, Caption, PolicyLine};
use super::faults::Faults;
use super::heat::{AddressHeat, PageHeat};
use super::reuse::{self, Reuse};
use super::summary::{Summary, bytes_text, sizes_text};
use super::svg::escape;
use super::working_set::{EnabledPages, WorkingSet};
use super::{Figure, figure_files, grouped, quoted, summary, to_json, write_file, write_files};
use crate::check::Severity;
use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, World};
use crate::sim::Curve;
use crate::space::Issue;
use crate::trace::{Event, Trace};
use crate::units::{Access, CanonPage};
use crate::virtual_time;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The library that draws what is explored, its style, its licence, and what uses it.
const UPLOT: &str = include_str!("vendor/uplot/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("vendor/uplot/uPlot.min.css");
const UPLOT_LICENCE: &str = include_str!("vendor/uplot/LICENSE");
const EXPLORE: &str = include_str!("explore.js");

/// The data of the page about references by time, page and address.
pub struct Views {
    start_ns: u64,
    virtually: bool,
    heat: PageHeat,
    faults: Faults,
    addresses: AddressHeat,
    set: WorkingSet,
    event_ns: u64,
    /// Reuse distances, and the misses of each mapping.
    pub reuse: Reuse,
}

impl Views {
    /// For a trace that is about to be read.
    pub fn new(trace: &Trace) -> Self {
        let start = trace.header().start_time_ns;
        let (first, last) = trace.index().time_span().unwrap_or((start, start));
        // A trace may end long after its last reference.
        let start = if start <= first { start } else { first };
        Views::from_to(start, last.saturating_sub(start), false)
    }

    /// The same in virtual time, see [`virtual_time::InVirtualTime`].
    pub fn in_virtual_time(trace: &Trace) -> Self {
        let start = trace.header().start_time_ns;
        // The length need not be exact. The pass that follows reports what cannot be read.
        let length = virtual_time::length_ns(trace).unwrap_or(0);
        Views::from_to(start, length, true)
    }

    fn from_to(start: u64, length: u64, virtually: bool) -> Self {
        Views {
            start_ns: start,
            virtually,
            heat: PageHeat::new(start, length),
            faults: Faults::new(start, length),
            addresses: AddressHeat::new(start, length),
            set: WorkingSet::new(start, length),
            event_ns: start,
            reuse: Reuse::new(start, length),
        }
    }
}

impl Consumer for Views {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        self.addresses.begin(trace)?;
        self.reuse.begin(trace)
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for (r, page) in batch.refs.iter().zip(batch.pages) {
            let first = self.heat.reference(r.time_ns, page.0);
            // A second chance is a reference, and no fault.
            if r.flags().access() != Access::Seen {
                self.faults.fault(r.time_ns, first);
            }
            self.set.reference(r.time_ns, page.0);
        }
        self.addresses.references(batch)?;
        self.reuse.references(batch)
    }

    fn event(&mut self, event: &Event<'_>, world: &World, issues: &[Issue]) -> Result<()> {
        self.event_ns = event.time_ns;
        self.addresses.event(event, world, issues)
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], world: &World) -> Result<()> {
        for page in pages {
            self.heat.free(page.0);
            self.set.free(self.event_ns, page.0);
        }
        self.reuse.freed(pages, world)
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome) -> Result<()> {
        self.set.finish();
        self.addresses.finish(trace, outcome)?;
        self.reuse.finish(trace, outcome)
    }
}

/// A table of texts and numbers.
pub(super) struct Table {
    pub title: &'static str,
    pub about: String,
    /// Names; a column of numbers is marked.
    pub columns: Vec<(Cow<'static, str>, bool)>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    fn html(&self, t: &mut String) {
        let _ = write!(
            t,
            "<section class=\"card\"><h2>{}</h2><p>{}</p><div class=\"wide\"><table><thead><tr>",
            escape(self.title),
            escape(&self.about)
        );
        for (name, number) in &self.columns {
            let class = if *number { " class=\"n\"" } else { "" };
            let _ = write!(t, "<th{class} tabindex=\"0\">{}</th>", escape(name));
        }
        t.push_str("</tr></thead><tbody>\n");
        for row in &self.rows {
            t.push_str("<tr>");
            for (cell, (_, number)) in row.iter().zip(&self.columns) {
                let class = if *number { " class=\"n\"" } else { "" };
                let _ = write!(t, "<td{class}>{}</td>", escape(cell));
            }
            t.push_str("</tr>\n");
        }
        t.push_str("</tbody></table></div></section>\n");
    }

    fn csv(&self) -> String {
        let line = |cells: Vec<String>| cells.join(",") + "\n";
        let mut csv = line(self.columns.iter().map(|c| quoted(&c.0)).collect());
        for row in &self.rows {
            csv += &line(
                row.iter()
                    .zip(&self.columns)
                    .map(|(cell, (_, number))| match number {
                        true => cell.replace(',', ""),
                        false => quoted(cell),
                    })
                    .collect(),
            );
        }
        csv
    }
}

/// A short statement with a mark.
pub(super) struct Badge {
    pub good: bool,
    pub name: String,
    pub value: String,
}

/// The parts of a page.
pub(super) struct Page<'a> {
    pub title: &'a str,
    /// What the facts are about.
    pub subject: &'a str,
    pub verdict: Option<(bool, String)>,
    pub facts: Vec<(&'static str, String)>,
    pub badges: Vec<Badge>,
    pub findings: Vec<String>,
    /// All of these are shown, in this order.
    pub figures: &'a [Figure],
    pub tables: Vec<Table>,
    pub data: &'a str,
}

impl Page<'_> {
    /// The page's text.
    pub fn html(&self) -> String {
        let mut t = String::new();
        // The page loads nothing: the browser enforces this policy.
        let _ = write!(
            t,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
             'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{}</title>\n<style>\n{UPLOT_STYLE}\n{STYLE}</style></head>\n<body>\n\
             <header><h1>{}</h1>",
            escape(self.title),
            escape(self.title)
        );
        if let Some((good, words)) = &self.verdict {
            let class = if *good { "good" } else { "bad" };
            let _ = write!(t, "<p class=\"verdict {class}\">{}</p>", escape(words));
        }
        t.push_str("</header>\n");
        if !self.badges.is_empty() || !self.findings.is_empty() {
            t.push_str(
                "<section class=\"card\" id=\"health\"><h2>The trace's health</h2><ul class=\"badges\">\n",
            );
            for badge in &self.badges {
                let class = if badge.good { "good" } else { "bad" };
                let _ = writeln!(
                    t,
                    "<li class=\"{class}\"><b>{}</b> <span>{}</span></li>",
                    escape(&badge.value),
                    escape(&badge.name)
                );
            }
            t.push_str("</ul>");
            if !self.findings.is_empty() {
                t.push_str("<ul class=\"findings\">\n");
                for finding in &self.findings {
                    let _ = writeln!(t, "<li>{}</li>", escape(finding));
                }
                t.push_str("</ul>");
            }
            t.push_str("</section>\n");
        }
        let _ = writeln!(
            t,
            "<section class=\"card\"><h2>{}</h2><dl>",
            escape(self.subject)
        );
        for (name, value) in &self.facts {
            let _ = writeln!(t, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
        }
        t.push_str("</dl></section>\n");
        let same = |a: &Figure, b: &Figure| !a.section.is_empty() && a.section == b.section;
        for figures in self.figures.chunk_by(same) {
            self.section(&mut t, figures);
        }
        for table in &self.tables {
            table.html(&mut t);
        }
        t.push_str("<script type=\"application/json\" id=\"summary\">");
        t.push_str(&in_script(self.data));
        let _ = write!(
            t,
            "</script>\n<footer>Made by postproc {} of kVMTrace.</footer>\n\
             <script>\n/* uPlot:\n{UPLOT_LICENCE}\n*/\n{UPLOT}</script>\n\
             <script>\n{SCRIPT}</script>\n<script>\n{EXPLORE}</script>\n</body></html>\n",
            env!("CARGO_PKG_VERSION")
        );
        t
    }

    /// Figures, of which one at a time is shown if they have a section in common.
    fn section(&self, t: &mut String, figures: &[Figure]) {
        let title = figures.first().map_or("", |figure| figure.section);
        t.push_str("<section class=\"card\">");
        if !title.is_empty() {
            let _ = write!(t, "<label class=\"choice\">{} <select>", escape(title));
            for figure in figures {
                let name = figure.title.rsplit(": ").next().unwrap_or(&figure.title);
                let _ = write!(
                    t,
                    "<option value=\"{}\">{}</option>",
                    escape(&figure.id),
                    escape(name)
                );
            }
            t.push_str("</select></label>\n");
        }
        for (i, figure) in figures.iter().enumerate() {
            let hidden = if !title.is_empty() && i > 0 {
                " class=\"later\""
            } else {
                ""
            };
            let _ = writeln!(
                t,
                "<figure id=\"{}\"{hidden}>\n{}<figcaption>{} <span class=\"save\"></span></figcaption>",
                escape(&figure.id),
                figure.svg,
                escape(&figure.about)
            );
            let mut data = Cow::Borrowed(&figure.json);
            if figure.json["kind"] == "heatmap" {
                // The page's script computes a heatmap's cells from the packed ones, and its CSV.
                data.to_mut()["cells"] = serde_json::Value::Null;
            } else {
                let csv = in_script(&figure.csv);
                let _ = writeln!(t, "<script type=\"text/csv\" data-csv>{csv}</script>");
            }
            for (name, json) in [("json", &*data), ("explored", &figure.explored)] {
                if !json.is_null() {
                    let json = in_script(&json.to_string());
                    let _ = writeln!(
                        t,
                        "<script type=\"application/json\" data-{name}>{json}</script>"
                    );
                }
            }
            t.push_str("</figure>\n");
        }
        t.push_str("</section>\n");
    }
}

/// Text that can stand in a script element without ending it. In JSON it means the same
/// text; the reader of the CSV reverses the change.
fn in_script(text: &str) -> String {
    text.replace('<', "\\u003c")
}

/// A report of a trace: summary, pictures and tables.
pub struct Report {
    /// The summary.
    pub summary: Summary,
    pictures: Vec<Figure>,
    tables: Vec<Table>,
}

impl Report {
    /// Combines the results of a pass and the lines of the policies.
    pub fn new(summary: Summary, views: &Views, lru: &Curve, lines: &[PolicyLine]) -> Self {
        let caption = Caption::from(&summary);
        let mut subtitle = caption.subtitle();
        if views.virtually {
            subtitle += "; in virtual time";
        }
        let page_size = summary.page_size;
        let evms = summary.evms_size;
        let reuse = &views.reuse;
        let mut pictures = vec![fault_curve::figure(&caption, lines, lru.cold)];
        pictures.push(views.heat.figure(Unit::Nanos, views.start_ns, &subtitle));
        pictures.extend(views.addresses.figures(&subtitle_short(&summary)));
        let enabled = EnabledPages {
            n: evms,
            several: summary.sets.is_some(),
        };
        let set = &views.set;
        pictures.extend(set.figures(Unit::Nanos, page_size, Some(enabled), &subtitle));
        pictures.push(views.faults.figure(&subtitle));
        pictures.push(reuse::histogram(lru, page_size, &subtitle));
        pictures.extend(reuse.breakdown(lru, page_size, evms, &subtitle));
        if reuse.slices().len() > 1 {
            let footprint = lru.footprint();
            pictures.push(reuse.slices_figure(footprint, page_size, evms, &subtitle));
        }
        let tables = tables(&summary, reuse, lru);
        Report {
            summary,
            pictures,
            tables,
        }
    }

    /// The page.
    pub fn html(&self) -> Result<String> {
        let s = &self.summary;
        let data = to_json(s, "summary.json")?;
        let page = Page {
            title: "kVMTrace report",
            subject: "The trace",
            verdict: Some((
                s.check.good,
                match s.check.good {
                    true => "The trace is good: every check passed.".into(),
                    false => format!(
                        "The trace is not good: {} errors. The results below may be wrong.",
                        grouped(s.check.errors())
                    ),
                },
            )),
            facts: facts(s),
            badges: badges(s),
            findings: findings(s),
            figures: &self.pictures,
            tables: Vec::new(),
            data: &String::from_utf8_lossy(&data),
        };
        let mut page = page;
        page.tables = self.tables.iter().map(Table::copy).collect();
        Ok(page.html())
    }

    /// Writes the page alone.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn write_page(&self, path: &Path) -> Result<()> {
        write_file(path, self.html()?.as_bytes())
    }

    /// Writes report.html, summary.json, summary.txt, and each figure as SVG, CSV and
    /// JSON into a directory, which is created if necessary.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn write(&self, directory: &Path) -> Result<()> {
        let mut files = vec![
            ("report.html".to_string(), self.html()?.into_bytes()),
            (
                "summary.json".into(),
                to_json(&self.summary, "summary.json")?,
            ),
            (
                "summary.txt".into(),
                summary::text(&self.summary).into_bytes(),
            ),
        ];
        files.extend(figure_files(&self.pictures)?);
        for table in &self.tables {
            let name = table.title.to_lowercase().replace(' ', "-");
            files.push((format!("{name}.csv"), table.csv().into_bytes()));
        }
        write_files(directory, &files)
    }
}

impl Table {
    fn copy(&self) -> Table {
        Table {
            title: self.title,
            about: self.about.clone(),
            columns: self.columns.clone(),
            rows: self.rows.clone(),
        }
    }
}

fn subtitle_short(s: &Summary) -> String {
    grouped(s.references)
}

fn facts(s: &Summary) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("trace", s.path.clone()),
        ("of", format!("{}, Linux {}", s.scope, s.kernel)),
        (
            "set",
            format!(
                "N = {} pages ({}){}",
                grouped(s.evms_size.into()),
                bytes_text(u64::from(s.evms_size).saturating_mul(s.page_size)),
                match &s.sets {
                    None => String::new(),
                    Some(sets) => format!(" in each set, {}", sets.of),
                }
            ),
        ),
        ("references", grouped(s.references)),
        (
            "distinct pages",
            format!(
                "{} ({})",
                grouped(s.distinct_pages),
                bytes_text(s.distinct_bytes)
            ),
        ),
        ("processes", grouped(s.processes)),
        ("CPUs", s.cpus.to_string()),
        ("duration", time_text(s.duration_ns as f64)),
        (
            "references a second",
            grouped(s.faults_per_second.round() as u64),
        ),
        ("events", grouped(s.events)),
        (
            "size",
            format!(
                "{}, {:.1} bytes a record",
                bytes_text(s.bytes),
                s.bytes as f64 / (s.references + s.renewals + s.events).max(1) as f64
            ),
        ),
        ("identity", s.uuid.clone()),
    ];
    if let Some(filter) = &s.filter {
        facts.push((
            "left out",
            format!(
                "{} references, by --where '{}'",
                grouped(filter.left_out),
                filter.text
            ),
        ));
    }
    if let Some(text) = s.part_text() {
        facts.push(("part", text));
    }
    if let Some(left_out) = &s.filtered {
        facts.push(("filter", left_out.text(grouped)));
    }
    if !s.huge_page_sizes.is_empty() {
        facts.push((
            "huge pages",
            format!(
                "{} references to pages of {}; each counts as one page",
                grouped(s.huge_references),
                sizes_text(&s.huge_page_sizes)
            ),
        ));
    }
    facts
}

fn badges(s: &Summary) -> Vec<Badge> {
    let count = |name: &str, value: Option<u64>| Badge {
        good: value == Some(0),
        name: name.into(),
        value: value.map_or("unknown".into(), grouped),
    };
    let status = s.status.as_ref();
    let mut badges = vec![
        Badge {
            good: status.is_some(),
            name: "the kernel's account at the end".into(),
            value: if status.is_some() {
                "present"
            } else {
                "missing"
            }
            .into(),
        },
        count("references that no mapping allowed", Some(s.violations)),
        count("records lost", s.lost),
        count("funny PTEs", s.funny),
        count("stuck victims", status.map(|s| s.stuck)),
        count("dangling members", status.map(|s| s.dangling)),
        count("counts that contradict", status.map(|s| s.miscounted)),
        count("accesses not covered", status.map(|s| s.uncovered)),
    ];
    if s.sets.is_some() {
        let shared = status.map(|s| s.sets_shared);
        badges.push(count("address spaces without a set of their own", shared));
    }
    let failed = s.check.rules.iter().filter(|r| r.errors > 0).count() as u64;
    let mut rules = count("rules broken", Some(failed));
    rules.name = format!("of {} rules broken", s.check.rules.len());
    badges.insert(0, rules);
    badges
}

fn findings(s: &Summary) -> Vec<String> {
    let mut findings = Vec::new();
    for rule in &s.check.rules {
        let found = rule.errors + rule.warnings;
        if found > 0 {
            findings.push(format!(
                "{}: {} errors, {} waived; the rule demands that {}",
                rule.id,
                grouped(rule.errors),
                grouped(rule.warnings),
                rule.about
            ));
        }
        let told = |f: &&crate::check::Finding| f.severity != Severity::Note;
        findings.extend(
            rule.examples
                .iter()
                .filter(told)
                .take(3)
                .map(|f| format!("{}: {}", rule.id, f.message)),
        );
    }
    findings
}

fn tables(s: &Summary, reuse: &Reuse, lru: &Curve) -> Vec<Table> {
    // The largest power of two that is at most half of the pages.
    let half = 63 - (lru.footprint().max(2) / 2).leading_zeros() as usize;
    let half = half.min(reuse::SIZES - 1);
    let memory = grouped(1 << half);
    let about = format!(
        "Misses and write-backs are those of an LRU memory of {memory} pages, which all processes \
         share."
    );
    let n = |name| (Cow::Borrowed(name), true);
    let word = |name| (Cow::Borrowed(name), false);
    let classes = Table {
        title: "Kinds of memory",
        about: format!(
            "{about} The private copy of a page (copy on write) counts as another page."
        ),
        columns: vec![
            word("kind"),
            word("first references are"),
            n("first references"),
            n("capacity misses"),
            n("write-backs"),
        ],
        rows: reuse
            .by_class()
            .iter()
            .map(|(class, counts)| {
                vec![
                    class.name().into(),
                    class.first_reference().into(),
                    grouped(counts.cold),
                    grouped(counts.capacity[half]),
                    grouped(counts.write_backs[half]),
                ]
            })
            .collect(),
    };
    let counts = |c: &super::Counters| {
        [
            c.references,
            c.reads,
            c.writes,
            c.execs,
            c.kernel,
            c.dirtied,
            c.new_pages,
        ]
        .map(grouped)
    };
    let counted = [
        n("references"),
        n("reads"),
        n("writes"),
        n("fetches"),
        n("by the kernel"),
        n("dirtied"),
        n("first references"),
    ];
    let processes = Table {
        title: "Processes",
        about:
            "The processes with the most references. The first reference to a shared page counts \
                for the process that made it."
                .into(),
        columns: [&[n("pid"), word("name"), word("executed")], &counted[..]].concat(),
        rows: s
            .top_processes
            .iter()
            .map(|row| {
                let mut cells = vec![row.pid.to_string(), row.comm.clone(), row.exe.clone()];
                cells.extend(counts(&row.counters));
                cells
            })
            .collect(),
    };
    let mappings = Table {
        title: "Mappings",
        about: format!("The mappings with the most references. {about}"),
        columns: [
            &[word("what"), word("kind")],
            &counted[..],
            &[n("misses"), n("write-backs")],
        ]
        .concat(),
        rows: s
            .top_mappings
            .iter()
            .map(|row| {
                let mut cells = vec![row.name.clone(), row.class.name().into()];
                cells.extend(counts(&row.counters));
                let by_size = match row.object {
                    Some(object) => reuse.of_object(object),
                    None => Some(reuse.elsewhere()),
                };
                let (misses, backs) =
                    by_size.map_or((0, 0), |b| (b.cold + b.capacity[half], b.write_backs[half]));
                cells.extend([grouped(misses), grouped(backs)]);
                cells
            })
            .collect(),
    };
    let slices = Table {
        title: if reuse.has_windows() {
            "Windows"
        } else {
            "Slices of time"
        },
        about: "Parts of the trace, side by side.".into(),
        columns: vec![
            n("number"),
            word("time"),
            n("references"),
            n("pages"),
            n("new pages"),
            n("reads"),
            n("writes"),
            n("fetches"),
            n("dirtied"),
            n("references a second"),
        ],
        rows: reuse
            .slices()
            .iter()
            .map(|slice| {
                let mut cells = vec![slice.number.to_string()];
                cells.extend(reuse::slice_cells(slice));
                cells
            })
            .collect(),
    };
    vec![classes, processes, mappings, slices]
}

#[cfg(test)]
mod tests {
    use super::in_script;

    #[test]
    fn a_name_cannot_end_a_script() {
        assert_eq!(in_script("\"</script>\""), "\"\\u003c/script>\"");
    }
}
