//! Which references or events of a trace are read: `--where`, and the options for what is selected
//! often. The options are translated into the language of `--where`.
//!
//! With the feature `cli`, they are arguments of commands. Without it, their values are read by the same
//! parsers: each is a [`FromStr`].

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use rust_mm_trace::amount;
use rust_mm_trace::filter::{Field, Subject, fits};
use rust_mm_trace::shell::quoted;

use crate::amount::Percent;
use crate::filter::{Chosen, Clause};
use crate::trace::Trace;

/// Why something cannot be selected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unselectable {
    /// The trace does not have what is needed for it.
    #[error("{0}")]
    Trace(String),
    /// The expression is wrong, or has no meaning here.
    #[error("{0}")]
    Expression(String),
    /// The option has no meaning here.
    #[error("{0}")]
    Option(String),
}

type Result<T> = std::result::Result<T, Unselectable>;

/// The options that select by the place of a reference.
pub const OF_PLACE: [&str; 2] = ["--mapping", "--address"];
/// The options that select by the system's clock.
pub const OF_TIME: [&str; 2] = ["--since", "--until"];

/// Which of these references to read.
#[derive(Clone, Default, Debug)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
pub struct Where {
    /// Take only the references that fit an expression, such as
    /// 'comm == "cc1" && mapping ~ "*.so" && kind == write'
    ///
    /// Fields: pid, tid, tree (a process and its descendants), process (its name), comm, cgroup,
    /// mapping, mapping_kind, addr, page, kind (read, write, exec, seen), mode (user, kernel), set,
    /// cpu, window, time (a whole number with a unit, such as 5ms), seq. Operators: ==, !=, <, >, <=,
    /// and >=; in (a list or a range), ~ and !~ (a pattern), &&, ||, and ! before parentheses. Each
    /// reference is judged by what its thread and its mapping were at that moment. What is left out
    /// is counted. docs/using.md describes the language, and what the results are worth ("Filters").
    #[cfg_attr(feature = "cli", arg(long = "where", id = "where", value_name = "EXPR",
        value_parser = clause_of_references))]
    pub clause: Option<Clause>,
    /// The options, all of which must fit, too.
    #[cfg_attr(feature = "cli", command(flatten))]
    pub options: Options,
}

/// Options that select what is selected often.
#[derive(Clone, Default, Debug)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(
    feature = "cli",
    command(next_help_heading = "Selection (all must fit, also --where)")
)]
pub struct Options {
    /// Take what happened from this time on: 1.5s, 250ms, or 90% of the trace
    ///
    /// The time counts from the beginning of the trace; with --window or --per-window, from that of
    /// the window.
    #[cfg_attr(feature = "cli", arg(long, value_name = "TIME"))]
    pub since: Option<Moment>,
    /// Take what happened before this time
    #[cfg_attr(feature = "cli", arg(long, value_name = "TIME"))]
    pub until: Option<Moment>,
    /// Take only this process: its id, or its name, which may be a pattern such as 'python*'
    ///
    /// The name is that of the first thread of the process. A name can fit several processes. In a
    /// pattern, * stands for any characters, and ? for one.
    #[cfg_attr(feature = "cli", arg(long, value_name = "PID|NAME"))]
    pub process: Option<Who>,
    /// Take only threads of this name, which may be a pattern; can be given several times
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME"))]
    pub comm: Vec<String>,
    // This is the text of --help, too, where brackets are brackets.
    #[allow(rustdoc::broken_intra_doc_links)]
    /// Take only references to mappings of this name; can be given several times
    ///
    /// A file's name without its directories (libc.so.6), a name in brackets ([heap]), or a pattern
    /// ('*.so*'). The kernel records no directories. If a trace has paths nevertheless, a path and its
    /// last part fit.
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME"))]
    pub mapping: Vec<String>,
    /// Take only references to these addresses: 0x7f00..0x8f00 (the end is not included), a range
    /// as in /proc/PID/maps (7f00-8f00), or an address, which stands for its page; can be given
    /// several times
    #[cfg_attr(feature = "cli", arg(long, value_name = "RANGE"))]
    pub address: Vec<Addresses>,
}

#[cfg(feature = "cli")]
fn clause_of_references(text: &str) -> std::result::Result<Clause, String> {
    Clause::parse(text, Subject::References)
}

impl Where {
    /// Whether anything is selected.
    pub fn is_given(&self) -> bool {
        self.clause.is_some() || self.options.first().is_some()
    }

    /// Whether a filter is needed where the id of a process needs none.
    pub fn filters(&self) -> bool {
        let by_id = matches!(self.options.process, Some(Who::Id(_)));
        let parts = self.options.given().count() - usize::from(by_id);
        self.clause.is_some() || parts > 0
    }

    /// What is selected, as one expression, if that is needed. The id of a process is a part of it if
    /// `ids`.
    ///
    /// # Errors
    ///
    /// The trace does not say when a share of its length has passed, or the expression is too large.
    pub fn expression(&self, trace: &Trace, ids: bool) -> Result<Option<Clause>> {
        let clause = self.clause.as_ref();
        self.options.clause(clause, Subject::References, trace, ids)
    }

    /// Refuses options and fields in `--where` that mean nothing for some purpose.
    ///
    /// # Errors
    ///
    /// The reason, with the first one that is given.
    pub fn refuse(&self, fields: &[Field], options: &[&str], why: &str) -> Result<()> {
        self.options.refuse(options, why)?;
        match &self.clause {
            Some(clause) => clause.refuse(fields, why).map_err(Unselectable::Expression),
            None => Ok(()),
        }
    }

    /// What is selected of a trace for a result that is kept and put together with those of other
    /// traces; `None` if all is.
    ///
    /// # Errors
    ///
    /// As those of [`Where::expression`].
    pub fn chosen(&self, trace: &Trace) -> Result<Option<Chosen>> {
        let Some(clause) = self.expression(trace, true)? else {
            return Ok(None);
        };
        let moment = |option, moment: Option<Moment>| {
            let ns = moment.map(|moment| moment.after_begin(option, trace));
            ns.transpose()
        };
        let since = moment("--since", self.options.since)?.unwrap_or(0);
        let until = moment("--until", self.options.until)?.unwrap_or(u64::MAX);
        Ok(Some(Chosen {
            clause,
            words: self.words(),
            time: since..until,
        }))
    }

    /// The options that select, in an order that does not depend on that of the command line.
    pub fn words(&self) -> String {
        let clause = self.clause.iter().map(|c| ("--where", c.text().to_owned()));
        let mut all: Vec<_> = clause.chain(self.options.given()).collect();
        all.sort();
        all.dedup();
        let words = all
            .iter()
            .map(|(option, value)| format!("{option} {}", quoted(value)));
        words.collect::<Vec<_>>().join(" ")
    }
}

impl Options {
    /// The options that were given, with their values.
    fn given(&self) -> impl Iterator<Item = (&'static str, String)> {
        fn all<T: ToString>(
            option: &'static str,
            values: &[T],
        ) -> impl Iterator<Item = (&'static str, String)> {
            values.iter().map(move |value| (option, value.to_string()))
        }
        all("--since", self.since.as_slice())
            .chain(all("--until", self.until.as_slice()))
            .chain(all("--process", self.process.as_slice()))
            .chain(all("--comm", &self.comm))
            .chain(all("--mapping", &self.mapping))
            .chain(all("--address", &self.address))
    }

    /// The first option that was given, in a fixed order.
    pub fn first(&self) -> Option<&'static str> {
        self.given().next().map(|(option, _)| option)
    }

    /// The same without `--mapping` and `--address`, by which [`Places`](crate::places::Places) selects
    /// events.
    pub fn without_places(&self) -> Options {
        Options {
            mapping: Vec::new(),
            address: Vec::new(),
            ..self.clone()
        }
    }

    /// Refuses options.
    ///
    /// # Errors
    ///
    /// The reason, with the first of these that is given.
    pub fn refuse(&self, options: &[&str], why: &str) -> Result<()> {
        match self.given().find(|(option, _)| options.contains(option)) {
            None => Ok(()),
            Some((option, _)) => Err(Unselectable::Option(format!("{option}: {why}"))),
        }
    }

    /// What is selected, and what `clause` selects, as one expression. The id of a process is a part
    /// of it if `ids`.
    ///
    /// # Errors
    ///
    /// As those of [`Where::expression`].
    pub fn clause(
        &self,
        clause: Option<&Clause>,
        subject: Subject,
        trace: &Trace,
        ids: bool,
    ) -> Result<Option<Clause>> {
        let mut parts = Vec::new();
        for (option, operator, moment) in
            [("--since", ">=", self.since), ("--until", "<", self.until)]
        {
            if let Some(moment) = moment {
                let ns = moment.after_begin(option, trace)?;
                parts.push(format!("time {operator} {}", time(ns)));
            }
        }
        match &self.process {
            Some(Who::Id(pid)) if ids => parts.push(format!("pid == {pid}")),
            Some(Who::Name(name)) => parts.push(named("process", name)),
            _ => {}
        }
        let page_size = trace.header().page_size();
        parts.extend(any_of(self.comm.iter().map(|name| named("comm", name))));
        parts.extend(any_of(self.mapping.iter().flat_map(|name| mapped(name))));
        parts.extend(any_of(self.address.iter().map(|a| a.expression(page_size))));
        if parts.is_empty() {
            return Ok(clause.cloned());
        }
        let mut by = Vec::new();
        if let Some(clause) = clause {
            by.push("--where".to_owned());
            parts.insert(0, format!("({})", clause.text()));
        }
        let is_in = |option: &str| option != "--process" || ids || self.process_name().is_some();
        let given = self.given().filter(|(option, _)| is_in(option));
        by.extend(given.map(|(option, value)| format!("{option} {value}")));
        let by = by.join(" ");
        match Clause::parse(&parts.join(" && "), subject) {
            Ok(clause) => Ok(Some(clause.by(by))),
            Err(why) => Err(Unselectable::Expression(format!(
                "{by}: together they are this expression: {why}"
            ))),
        }
    }

    fn process_name(&self) -> Option<&str> {
        match &self.process {
            Some(Who::Name(name)) => Some(name),
            _ => None,
        }
    }
}

/// One of several expressions; `None` if there are none.
fn any_of(expressions: impl Iterator<Item = String>) -> Option<String> {
    let mut all: Vec<_> = expressions.collect();
    match all.len() {
        0 | 1 => all.pop(),
        _ => Some(format!("({})", all.join(" || "))),
    }
}

/// A text of the language.
fn text(text: &str) -> String {
    let mut shown = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => shown.extend(['\\', c]),
            c if c.is_ascii_control() => shown += &format!("\\x{:02x}", u32::from(c)),
            c => shown.push(c),
        }
    }
    shown + "\""
}

/// Whether a name is a pattern. Brackets alone make none, for names have them.
fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// A name or a pattern.
fn named(field: &str, name: &str) -> String {
    let operator = match is_pattern(name) {
        true => "~",
        false => "==",
    };
    format!("{field} {operator} {}", text(name))
}

/// A mapping by its name, or by the last part of its path.
fn mapped(name: &str) -> Vec<String> {
    let mut all = vec![named("mapping", name)];
    if !name.contains(['/', '*', '?', '[']) {
        all.push(format!("mapping ~ {}", text(&format!("*/{name}"))));
    }
    all
}

/// Units of time that are whole numbers of the one behind, longest first, in ns.
const UNITS: [(&str, u64); 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1000),
    ("ns", 1),
];

/// A time of the language.
fn time(ns: u64) -> String {
    let whole = UNITS.iter().find(|(_, unit)| ns % unit == 0 && ns > 0);
    let (name, unit) = whole.unwrap_or(&("s", 1_000_000_000));
    format!("{}{name}", ns / unit)
}

/// A moment of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// So many ns after the beginning.
    Time(u64),
    /// After this share of the whole length.
    Share(Percent),
}

impl Moment {
    /// In ns after the beginning of the trace or the window.
    ///
    /// # Errors
    ///
    /// The trace does not say how long it is, and this is a share of its length.
    pub fn after_begin(self, option: &str, trace: &Trace) -> Result<u64> {
        let share = match self {
            Moment::Time(ns) => return Ok(ns),
            Moment::Share(share) => share,
        };
        let end = trace
            .index()
            .end
            .as_ref()
            .map(|end| end.status.stop_time_ns);
        let length = end.and_then(|end| end.checked_sub(trace.header().start_time_ns));
        match length {
            Some(length) if length > 0 => Ok(share.of(length)),
            _ => Err(Unselectable::Trace(format!(
                "{option} {self}: the trace does not say when it ended, so its length is not known: \
                 give a time, such as 1.5s"
            ))),
        }
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        const EXPECTED: &str = "expected a time with its unit (1.5s, 250ms, 10us, 5ns, 2min), or a \
                                share of the trace, which is not above 100% (90%)";
        if text.ends_with('%') {
            let share: Percent = text.parse().map_err(|_| EXPECTED)?;
            let is_share = share.of(1_000_000) <= 1_000_000;
            return is_share
                .then_some(Moment::Share(share))
                .ok_or(EXPECTED.into());
        }
        let ns = amount::time(text);
        ns.map(Moment::Time).ok_or(EXPECTED.into())
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::Time(ns) => f.write_str(&time(*ns)),
            // As it is written: without a space.
            Moment::Share(share) => f.write_str(&share.to_string().replace(' ', "")),
        }
    }
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    /// By its id.
    Id(u32),
    /// By its name, or a pattern.
    Name(String),
}

impl FromStr for Who {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text.is_empty() {
            return Err("expected the id or the name of a process".into());
        }
        match text.bytes().all(|b| b.is_ascii_digit()) {
            true => text
                .parse()
                .map(Who::Id)
                .map_err(|_| "there is no such id".into()),
            false => Ok(Who::Name(text.into())),
        }
    }
}

impl Who {
    /// Whether it is a process with this id and name.
    pub fn is(&self, pid: u32, name: &str) -> bool {
        match self {
            Who::Id(id) => *id == pid,
            Who::Name(pattern) if is_pattern(pattern) => fits(pattern.as_bytes(), name.as_bytes()),
            Who::Name(own) => own == name,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Id(pid) => write!(f, "{pid}"),
            Who::Name(name) => f.write_str(name),
        }
    }
}

/// A range of addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addresses {
    text: String,
    begin: u64,
    /// Behind the last one; `None` for the page of `begin`.
    end: Option<u64>,
}

impl Addresses {
    /// From the first address to the last one.
    pub fn bounds(&self, page_size: u64) -> RangeInclusive<u64> {
        match self.end {
            Some(end) => self.begin..=end - 1,
            None => {
                let page = self.begin & !(page_size - 1);
                page..=page | (page_size - 1)
            }
        }
    }

    fn expression(&self, page_size: u64) -> String {
        let bounds = self.bounds(page_size);
        format!("addr in {:#x}..={:#x}", bounds.start(), bounds.end())
    }
}

/// Whether a mapping with this name is one of those that `--mapping` selects by `wanted`.
pub fn is_mapping(wanted: &str, name: &str) -> bool {
    if is_pattern(wanted) {
        return fits(wanted.as_bytes(), name.as_bytes());
    }
    let last = name.rsplit('/').next().unwrap_or(name);
    wanted == name || !wanted.contains(['/', '[']) && wanted == last
}

impl FromStr for Addresses {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        const EXPECTED: &str = "expected a range of addresses (0x7f00..0x8f00, or 7f00-8f00 as in \
                                /proc/PID/maps), or an address (0x7f00)";
        let hex = |text: &str| {
            let digits = text.strip_prefix("0x").unwrap_or(text);
            let is_number = digits.bytes().all(|b| b.is_ascii_hexdigit());
            is_number
                .then(|| u64::from_str_radix(digits, 16).ok())
                .flatten()
        };
        let number = |text: &str| match text.starts_with("0x") {
            true => hex(text),
            false if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
            false => None,
        };
        let (begin, end) = match (text.split_once(".."), text.split_once('-')) {
            (Some((begin, end)), _) => (number(begin), Some(number(end))),
            (None, Some((begin, end))) => (hex(begin), Some(hex(end))),
            (None, None) => (number(text), None),
        };
        let begin = begin.ok_or(EXPECTED)?;
        let end = end.map(|end| end.ok_or(EXPECTED)).transpose()?;
        if end.is_some_and(|end| end <= begin) {
            return Err("the range is empty: its end is not above its beginning".into());
        }
        Ok(Addresses {
            text: text.into(),
            begin,
            end,
        })
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let ns = |text: &str| match text.parse() {
            Ok(Moment::Time(ns)) => Some(ns),
            _ => None,
        };
        assert_eq!(ns("1.5s"), Some(1_500_000_000));
        assert_eq!(ns("250ms"), Some(250_000_000));
        assert_eq!((ns("0s"), ns("7ns")), (Some(0), Some(7)));
        assert_eq!(ns("2min"), Some(120_000_000_000));
        let shown = |text: &str| text.parse().map(|moment: Moment| moment.to_string());
        for share in ["7%", "90%", "99.5%", "100%"] {
            assert_eq!(shown(share), Ok(share.into()));
        }
        for bad in [
            "", "5", "s", "-1s", ".5s", "1.s", "101%", "1e3s", "0.1ns", "1 s",
        ] {
            let refused = bad.parse::<Moment>();
            assert!(refused.is_err_and(|e| e.contains("90%")), "{bad}");
        }
        assert_eq!(
            (time(0), time(1_500_000_000)),
            ("0s".into(), "1500ms".into())
        );
    }

    #[test]
    fn addresses() {
        let shown = |text: &str| text.parse().map(|a: Addresses| a.expression(4096));
        let is = |text: &str| Ok::<_, String>(text.to_owned());
        assert_eq!(shown("0x1000..0x2000"), is("addr in 0x1000..=0x1fff"));
        assert_eq!(shown("1000-2000"), is("addr in 0x1000..=0x1fff"));
        assert_eq!(shown("0x1234"), is("addr in 0x1000..=0x1fff"));
        assert_eq!(shown("4096"), is("addr in 0x1000..=0x1fff"));
        let last = shown("0xffffffffffffffff");
        assert_eq!(last, is("addr in 0xfffffffffffff000..=0xffffffffffffffff"));
        for bad in ["", "x", "1..", "..1", "0x2000..0x1000", "5-5", "-1", "abc"] {
            assert!(shown(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_texts_of_the_language() {
        assert_eq!(named("comm", "cc1"), "comm == \"cc1\"");
        assert_eq!(named("comm", "py*"), "comm ~ \"py*\"");
        assert_eq!(mapped("[heap]"), ["mapping == \"[heap]\""]);
        let libc = ["mapping == \"libc.so.6\"", "mapping ~ \"*/libc.so.6\""];
        assert_eq!(mapped("libc.so.6"), libc);
        for (wanted, name, is_one) in [
            ("libc.so.6", "libc.so.6", true),
            ("libc.so.6", "/usr/lib/libc.so.6", true),
            ("/lib/libc.so.6", "/usr/lib/libc.so.6", false),
            ("lib*", "libc.so.6", true),
            ("[heap]", "[heap]", true),
            ("heap", "[heap]", false),
        ] {
            assert_eq!(is_mapping(wanted, name), is_one, "{wanted} {name}");
        }
        for odd in ["a\"b\\c", "a\nb\x7f", "é", " "] {
            let expression = named("comm", odd);
            let parsed = Clause::parse(&expression, Subject::References);
            assert!(parsed.is_ok(), "{expression}");
        }
    }
}
