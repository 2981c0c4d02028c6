//! The page of a comparison.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::Path;

use serde_json::json;

use super::chart::{LineChart, Rule, Series, Unit};
use super::comparison::{Cell, Column, Comparison, LISTED, LISTED_PAGES, OnlyThere, Side};
use super::page::{Page, Table};
use super::summary::bytes_text;
use super::{Figure, grouped, numbered, quoted, to_json, write_file};
use crate::error::Result;

/// The columns of a comparison at the sizes that are drawn.
pub struct Drawn {
    /// Sizes of memory in pages.
    pub sizes: Vec<u64>,
    /// By size. Those whose policy has no curve are left out.
    pub columns: Vec<Column>,
}

/// Writes the page.
///
/// `drawn` has the curves. `answers` are the lines that answer the questions. `failed` says whether
/// a run needs more memory than is permitted, if that was asked.
///
/// # Errors
///
/// [`crate::error::Error::Output`].
pub fn write(
    comparison: &Comparison,
    drawn: &Drawn,
    answers: &str,
    failed: Option<bool>,
    path: &Path,
) -> Result<()> {
    let c = comparison;
    let figures = [
        Some(curves(c, drawn)),
        differences(c, drawn),
        working_sets(c),
    ];
    let figures: Vec<Figure> = figures.into_iter().flatten().collect();
    let data = to_json(&c.shortened(), "the comparison")?;
    let lines = || answers.lines().map(String::from);
    let page = Page {
        title: "kVMTrace comparison",
        subject: "The runs",
        verdict: failed.map(|failed| {
            let words = lines().filter(|line| line.contains("fails") || line.contains("passes"));
            (!failed, words.collect::<Vec<_>>().join(" "))
        }),
        facts: facts(c, answers),
        badges: Vec::new(),
        findings: Vec::new(),
        figures: &figures,
        tables: [
            Some(runs(c)),
            Some(misses(c)),
            mappings(c),
            only_there(c, Side::New),
            only_there(c, Side::Gone),
            uncompared(c),
        ]
        .into_iter()
        .flatten()
        .collect(),
        data: &String::from_utf8_lossy(&data),
    };
    write_file(path, page.html().as_bytes())
}

fn facts(c: &Comparison, answers: &str) -> Vec<(&'static str, String)> {
    let mut facts: Vec<(&'static str, String)> = c
        .runs
        .iter()
        .map(|run| ("run", format!("{}: {}", run.label, run.path)))
        .collect();
    facts.extend(answers.lines().map(|line| ("answer", line.into())));
    for run in &c.runs {
        if let Some(why) = run.why_not_certified {
            facts.push(("no bounds", format!("{}: {why}", run.label)));
        }
    }
    facts
}

/// The smallest and the largest size of all points.
fn x_range(sizes: impl Iterator<Item = u64>) -> (f64, f64) {
    let (mut least, mut most) = (u64::MAX, 1);
    for size in sizes {
        (least, most) = (least.min(size), most.max(size));
    }
    let least = least.min(most).max(1) as f64;
    (least, (most as f64).max(least * 2.0))
}

/// Upright lines at the sizes N of the sets, each once.
fn sets(c: &Comparison, range: (f64, f64)) -> Vec<Rule> {
    let mut sizes: Vec<u32> = c.runs.iter().map(|run| run.evms_size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let shown = |n: &u32| *n > 0 && (range.0..=range.1).contains(&f64::from(*n));
    let rule = |n: u32| Rule {
        at: n.into(),
        name: format!("N = {}", grouped(n.into())),
        color: "#b91c1c",
    };
    sizes.into_iter().filter(shown).map(rule).collect()
}

/// What a table or a picture calls the comparison.
fn subtitle(c: &Comparison) -> String {
    let runs: Vec<String> = c
        .runs
        .iter()
        .map(|run| format!("{}: {}", run.label, run.path))
        .collect();
    runs.join(", ")
}

fn curves(c: &Comparison, drawn: &Drawn) -> Figure {
    let all = || lines(c, drawn);
    let x_range = x_range(drawn.sizes.iter().chain(&c.sizes).copied());
    let misses = || all().flat_map(|(_, cells)| cells.into_iter().map(|(_, cell)| cell.misses));
    let least = misses().min().unwrap_or(1).max(1) as f64;
    let most = misses().max().unwrap_or(1).max(1) as f64;
    let series = all().map(|(column, cells)| Series {
        name: c.name(column.under),
        points: cells
            .iter()
            .map(|(size, cell)| (*size as f64, (cell.misses as f64).max(Unit::Count.least())))
            .collect(),
        steps: false,
        dots: cells.len() < drawn.sizes.len(),
        band: cells
            .iter()
            .filter_map(|(size, cell)| {
                let band = cell.band?;
                let at = |count: u64| (count as f64).max(Unit::Count.least());
                Some((*size as f64, at(band.low), at(band.high)))
            })
            .collect(),
    });
    let chart = LineChart {
        over_time: false,
        title: "Misses by size of memory".into(),
        subtitle: subtitle(c),
        x_label: "size of memory: pages, bytes".into(),
        y_label: "misses".into(),
        x: (Unit::Pages(c.page_size), true),
        y: (Unit::Count, true),
        x_range,
        y_range: (least * 0.7, most * 1.25),
        series: series.collect(),
        zones: Vec::new(),
        uprights: sets(c, x_range),
        levels: Vec::new(),
        notes: match all().any(|(_, cells)| cells.iter().any(|(_, cell)| cell.band.is_some())) {
            true => vec![
                "The shaded bands bound the misses that all references of the runs would give. They are \
                 proven."
                    .into(),
            ],
            false => Vec::new(),
        },
    };
    figure("misses", &chart, csv(c, drawn), c, drawn)
}

/// The columns that are drawn, and those that have only the sizes of the tables.
fn lines<'c>(
    c: &'c Comparison,
    drawn: &'c Drawn,
) -> impl Iterator<Item = (&'c Column, Vec<(u64, &'c Cell)>)> {
    let is_drawn = |column: &Column| {
        let same = |drawn: &&Column| drawn.under == column.under;
        drawn.columns.iter().find(same)
    };
    c.columns.iter().map(move |column| {
        let (sizes, cells) = match is_drawn(column) {
            Some(drawn_column) => (&drawn.sizes, &drawn_column.cells),
            None => (&c.sizes, &column.cells),
        };
        (column, sizes.iter().copied().zip(cells).collect())
    })
}

fn differences(c: &Comparison, drawn: &Drawn) -> Option<Figure> {
    let mut series = Vec::new();
    let (mut least, mut most) = (0.0f64, 0.0f64);
    for (column, cells) in lines(c, drawn) {
        let mut points = Vec::new();
        let mut band = Vec::new();
        for (size, cell) in &cells {
            let Some(difference) = cell.difference else {
                continue;
            };
            let point = (*size as f64, difference.misses as f64);
            (least, most) = (least.min(point.1), most.max(point.1));
            points.push(point);
            if let Some((low, high)) = difference.low.zip(difference.high) {
                band.push((point.0, low as f64, high as f64));
            }
        }
        if points.is_empty() {
            continue;
        }
        series.push(Series {
            name: format!("{} - {}", c.name(column.under), c.name(column.base)),
            points,
            steps: false,
            dots: cells.len() < drawn.sizes.len(),
            band,
        });
    }
    if series.is_empty() {
        return None;
    }
    let bounded = series.iter().any(|series| !series.band.is_empty());
    let x_range = x_range(drawn.sizes.iter().chain(&c.sizes).copied());
    let room = ((most - least) * 0.1).max(1.0);
    let chart = LineChart {
        over_time: false,
        title: "Difference of misses by size of memory".into(),
        subtitle: subtitle(c),
        x_label: "size of memory: pages, bytes".into(),
        y_label: "more misses".into(),
        x: (Unit::Pages(c.page_size), true),
        y: (Unit::Count, false),
        x_range,
        y_range: (least - room, most + room),
        series,
        zones: Vec::new(),
        uprights: sets(c, x_range),
        levels: vec![Rule {
            at: 0.0,
            name: "no difference".into(),
            color: "#4b5563",
        }],
        notes: match bounded {
            true => vec![
                "The shaded bands bound the difference for all references of the runs. They are proven. \
                 What does not fit into the picture is cut off."
                    .into(),
            ],
            false => Vec::new(),
        },
    };
    Some(figure("differences", &chart, csv(c, drawn), c, drawn))
}

fn figure(id: &str, chart: &LineChart, csv: String, c: &Comparison, drawn: &Drawn) -> Figure {
    let columns: Vec<_> = lines(c, drawn)
        .map(|(column, cells)| {
            let rows: Vec<_> = cells
                .iter()
                .map(|(size, cell)| json!({"size_pages": size, "cell": cell}))
                .collect();
            json!({"name": c.name(column.under), "policy": column.under.policy, "rows": rows})
        })
        .collect();
    Figure {
        id: id.into(),
        title: chart.title.clone(),
        section: "",
        about: match id {
            "misses" => {
                "The misses of each run's references in a memory of each size. Policies that have no \
                 curve have a dot at each size that was simulated."
            }
            _ => "The misses of each run less those of the run, or policy, that it is compared with.",
        }
        .into(),
        svg: chart.draw(),
        explored: chart.explored(),
        csv,
        json: json!({"kind": id, "page_size": c.page_size, "columns": columns}),
    }
}

fn csv(c: &Comparison, drawn: &Drawn) -> String {
    let mut csv = String::from("column,policy,size_pages,misses,low,high,difference,low,high\n");
    for (column, cells) in lines(c, drawn) {
        for (size, cell) in cells {
            let band = cell
                .band
                .map_or(",".into(), |b| format!("{},{}", b.low, b.high));
            let number = |of: Option<i64>| of.map_or(String::new(), |n| n.to_string());
            let d = cell.difference;
            // Writing to a string cannot fail.
            let _ = writeln!(
                csv,
                "{},{},{size},{},{band},{},{},{}",
                quoted(&c.name(column.under)),
                column.under.policy,
                cell.misses,
                number(d.map(|d| d.misses)),
                number(d.and_then(|d| d.low)),
                number(d.and_then(|d| d.high))
            );
        }
    }
    csv
}

fn working_sets(c: &Comparison) -> Option<Figure> {
    let all = || c.runs.iter().flat_map(|run| &run.working_set);
    all().next()?;
    let mut csv = String::from("run,tau_ns,mean_pages,most_pages\n");
    let mut series = Vec::new();
    for run in &c.runs {
        for row in &run.working_set {
            // Writing to a string cannot fail.
            let _ = writeln!(
                csv,
                "{},{},{:.2},{}",
                run.label, row.tau_ns, row.mean_pages, row.most_pages
            );
        }
        let points = run.working_set.iter();
        series.push(Series {
            name: run.label.clone(),
            points: points
                .map(|row| (row.tau_ns as f64, row.mean_pages.max(Unit::Count.least())))
                .collect(),
            dots: true,
            ..Series::default()
        });
    }
    let least = all()
        .fold(f64::MAX, |least, row| least.min(row.mean_pages))
        .max(0.5);
    let most = all().fold(1.0f64, |most, row| most.max(row.mean_pages));
    let taus = || all().map(|row| row.tau_ns);
    let shortest = taus().min().unwrap_or(1) as f64;
    let longest = taus().max().unwrap_or(1) as f64;
    let chart = LineChart {
        over_time: false,
        title: "Mean size of the working set by window".into(),
        subtitle: subtitle(c),
        x_label: "length of the window, τ".into(),
        y_label: "pages".into(),
        x: (Unit::Nanos, true),
        y: (Unit::Count, true),
        x_range: (shortest, longest.max(shortest * 2.0)),
        y_range: (least * 0.7, (most * 1.4).max(least * 2.0)),
        series,
        zones: Vec::new(),
        uprights: Vec::new(),
        levels: Vec::new(),
        notes: vec![
            "References to the N enabled pages are not in a trace, so a working set may be up to N \
             pages larger."
                .into(),
        ],
    };
    let rows: Vec<_> = c
        .runs
        .iter()
        .map(|run| json!({"run": run.label, "rows": run.working_set}))
        .collect();
    Some(Figure {
        id: "working-sets".into(),
        title: chart.title.clone(),
        section: "",
        about: "The pages that were referenced within the time τ, on average over the run.".into(),
        svg: chart.draw(),
        explored: chart.explored(),
        csv,
        json: json!({"kind": "working-sets", "page_size": c.page_size, "runs": rows}),
    })
}

fn word(name: impl Into<Cow<'static, str>>) -> (Cow<'static, str>, bool) {
    (name.into(), false)
}

fn number(name: impl Into<Cow<'static, str>>) -> (Cow<'static, str>, bool) {
    (name.into(), true)
}

fn runs(c: &Comparison) -> Table {
    let bytes = |pages: u64| bytes_text(pages.saturating_mul(c.page_size));
    let bound = |of: Option<u64>| of.map_or("-".into(), grouped);
    Table {
        title: "Needs",
        about: format!(
            "How much memory each run needs, under LRU and under OPT, for at most {} more faults than \
             with all the memory that it wants: its footprint.",
            c.slack
        ),
        columns: vec![
            word("run"),
            word("trace"),
            number("N"),
            number("references"),
            number("cold misses"),
            number("footprint"),
            number("need, pages"),
            word("need"),
            number("at least"),
            number("at most"),
            number("OPT, pages"),
            number("at least"),
            number("at most"),
        ],
        rows: c
            .runs
            .iter()
            .map(|run| {
                vec![
                    run.label.clone(),
                    run.path.clone(),
                    grouped(run.evms_size.into()),
                    grouped(run.references),
                    grouped(run.cold),
                    grouped(run.footprint_pages),
                    grouped(run.need.pages),
                    bytes(run.need.pages),
                    bound(run.need.bounds.map(|b| b.low)),
                    bound(run.need.bounds.map(|b| b.high)),
                    grouped(run.opt.pages),
                    bound(run.opt.bounds.map(|b| b.low)),
                    bound(run.opt.bounds.map(|b| b.high)),
                ]
            })
            .collect(),
    }
}

fn misses(c: &Comparison) -> Table {
    let mut columns = vec![number("pages"), word("size")];
    for column in &c.columns {
        let name = c.name(column.under);
        columns.extend([number(name.clone()), number("at least"), number("at most")]);
        if column.cells.iter().any(|cell| cell.difference.is_some()) {
            columns.push(number(format!("{name}: more")));
        }
    }
    let row = |(at, &size): (usize, &u64)| {
        let mut row = vec![grouped(size), bytes_text(size.saturating_mul(c.page_size))];
        for cell in c.columns.iter().filter_map(|column| column.cells.get(at)) {
            let bound = |of: Option<u64>| of.map_or("-".into(), grouped);
            row.push(grouped(cell.misses));
            row.push(bound(cell.band.map(|band| band.low)));
            row.push(bound(cell.band.map(|band| band.high)));
            row.extend(cell.difference.map(|d| d.misses.to_string()));
        }
        row
    };
    Table {
        title: "Misses",
        about:
            "The misses of the references of each run, with the bounds for all references, and how \
                many more they are than those with which they are compared."
                .into(),
        columns,
        rows: c.sizes.iter().enumerate().map(row).collect(),
    }
}

fn mappings(c: &Comparison) -> Option<Table> {
    if c.mappings.is_empty() {
        return None;
    }
    let mut columns = vec![word("mapping"), word("kind")];
    for (at, run) in c.runs.iter().enumerate() {
        columns.push(number(format!("{}: references", run.label)));
        columns.push(number(format!("{}: pages", run.label)));
        if at > 0 {
            columns.push(number(format!("{}: new", run.label)));
            columns.push(number(format!("{}: gone", run.label)));
        }
    }
    let rows = c.mappings.iter().take(LISTED).map(|mapping| {
        let mut row = vec![mapping.name.clone(), mapping.class.name().into()];
        for (at, mapped) in mapping.runs.iter().enumerate() {
            row.extend([grouped(mapped.references), grouped(mapped.pages)]);
            if at > 0 {
                let of = |count: Option<u64>| count.map_or("-".into(), grouped);
                row.push(of(mapped.changed.as_ref().map(|changed| changed.new)));
                row.push(of(mapped.changed.as_ref().map(|changed| changed.gone)));
            }
        }
        row
    });
    Some(Table {
        title: "Mappings",
        about: format!(
            "Pages by mapping; those that changed most come first{}. New pages were not referenced in the \
             first run, and gone pages only there. Pages of files are the same in all traces. Other pages \
             are the same only in windows of one trace, so a dash stands for those of different traces.",
            match c.mappings.len().saturating_sub(LISTED) {
                0 => String::new(),
                1 => ", and 1 more is left out".into(),
                more => format!(", and {} more are left out", grouped(more as u64)),
            }
        ),
        columns,
        rows: rows.collect(),
    })
}

/// Which pages only one of two runs referenced.
fn only_there(c: &Comparison, side: Side) -> Option<Table> {
    let (title, about) = match side {
        Side::New => (
            "New pages",
            "Pages that the run referenced, and the first run did not",
        ),
        Side::Gone => (
            "Gone pages",
            "Pages that the first run referenced, and the run did not",
        ),
    };
    let mut rows = Vec::new();
    for pages in &c.pages {
        let run = &c.runs[pages.run].label;
        let there = c.only_there(pages.run, side);
        let (listed, rest) = there.split_at(there.len().min(LISTED_PAGES));
        let row = |only: &OnlyThere<'_>| {
            vec![
                run.clone(),
                only.mapping.name.clone(),
                only.mapping.class.name().into(),
                only.which(c.page_size),
                grouped(only.pages),
            ]
        };
        rows.extend(listed.iter().map(row));
        if !rest.is_empty() {
            let pages: u64 = rest.iter().map(|only| only.pages).sum();
            let mappings = numbered(rest.len() as u64, "more mapping");
            let blank = String::new;
            rows.push(vec![
                run.clone(),
                mappings,
                blank(),
                blank(),
                grouped(pages),
            ]);
        }
    }
    let columns = ["run", "mapping", "kind", "which"].map(word);
    (!rows.is_empty()).then(|| Table {
        title,
        about: format!(
            "{about}, by mapping; those with most such pages come first. Which ones these are: numbers of \
             pages in the file, or addresses in a process."
        ),
        columns: columns.into_iter().chain([number("pages")]).collect(),
        rows,
    })
}

/// Pages that cannot be recognised in another run.
fn uncompared(c: &Comparison) -> Option<Table> {
    let mut rows = Vec::new();
    for pages in &c.pages {
        rows.extend(pages.uncompared.iter().map(|of| {
            vec![
                c.runs[pages.run].label.clone(),
                of.class.name().into(),
                grouped(of.pages),
                grouped(of.base_pages),
            ]
        }));
    }
    (!rows.is_empty()).then(|| Table {
        title: "Pages that cannot be recognised in the other run",
        about: "How many of these pages the run and the first run have, by what they are for. In another \
                trace, only pages of files are recognised."
            .into(),
        columns: vec![word("run"), word("kind"), number("pages"), number("in the first run")],
        rows,
    })
}
