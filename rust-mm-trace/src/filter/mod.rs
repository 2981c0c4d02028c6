//! The language of filters: which references or events are meant.
//!
//! ```text
//! text ── parse ──→ Expr ── Program::new ──→ Program ──→ accepts(record)
//! ```
//!
//! An [`Expr`] is made of comparisons of a [`Field`] with constants, `&&`, `||`, `!` and
//! parentheses. All errors are found by [`Expr::parse`], and point at a place in the text. A
//! [`Program`] is the same as a list of at most [`MOST_TESTS`] comparisons, of which each says where
//! to go on if it holds and if it does not, always forwards. So whoever evaluates it needs no
//! recursion and no memory, and takes no longer than [`MOST_TESTS`] comparisons. The kernel's
//! filters of tracepoints have the same form (kernel/trace/trace_events_filter.c). A [`Compiled`] is
//! what VMTRACE_IOC_FILTER takes, so that the kernel itself leaves references out.
//!
//! What a comparison is about is asked through [`Values`]. Nothing here depends on how a trace is
//! stored. What a program looks at changes at three speeds ([`Depends`]), so that comparisons with
//! the name of a process or of a file can be decided once for each process or mapping.

mod compile;
mod glob;
mod parse;
mod program;

use std::fmt;
use std::ops::{Range, RangeInclusive};

pub use compile::{
    kernel_field, Compiled, Request, MOST_KERNEL_BYTES, MOST_KERNEL_TESTS, MOST_KERNEL_TEXTS,
};
pub use glob::fits;
pub use parse::{ParseError, MOST_BYTES, MOST_DEPTH};
pub use program::{Entry, Next, Program};

use crate::{events, uapi};

/// Comparisons in an expression, at most.
pub const MOST_TESTS: usize = 64;

/// Bytes of a thread's name, at most.
pub const MOST_COMM: usize = 15;

/// The word of `mapping_kind` for a reference in no mapping.
pub const NOT_MAPPED: u8 = 126;
/// The word of `mapping_kind` for a kind that this version does not know.
pub const UNKNOWN_KIND: u8 = 127;
/// The word of `class` for events that are always recorded.
pub const ALWAYS: u8 = 127;

/// What a comparison is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Field {
    /// The process id.
    Pid,
    /// The thread id.
    Tid,
    /// The process ids of the process and of its ancestors.
    Tree,
    /// The name of the process: that of its first thread.
    Process,
    /// The thread's name.
    Comm,
    /// The path of the thread's control group.
    Cgroup,
    /// The name of what is mapped: a file's name, which in traces of the kernel has no directories, or a
    /// name in brackets.
    Mapping,
    /// The kind of what is mapped.
    MappingKind,
    /// The address, in bytes.
    Addr,
    /// The number of the virtual page.
    Page,
    /// The kind of access.
    Kind,
    /// Who made the access.
    Mode,
    /// The number of the set.
    Set,
    /// The CPU.
    Cpu,
    /// The number of the window.
    Window,
    /// The time since tracing began, in ns.
    Time,
    /// The sequence number of the record.
    Seq,
    /// The type of an event.
    Event,
    /// The class that an event is recorded by.
    Class,
}

/// The values that a field has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    /// Numbers.
    Number,
    /// Times, in ns.
    Time,
    /// Process ids of which one must fit. They have no order.
    Ancestors,
    /// Text.
    Text,
    /// One of these words, each with its number.
    Word(&'static [(&'static str, u8)]),
}

/// What an expression selects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// References to pages.
    References,
    /// Events.
    Events,
}

/// How often the value of a field changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depends {
    /// It is the same for all records of a thread, until an event says something else.
    Task,
    /// It is the same for all references to a mapped object.
    Mapping,
    /// Each record has its own.
    Record,
}

const KINDS: &[(&str, u8)] = &[
    ("read", uapi::VMTRACE_REF_READ as u8),
    ("write", uapi::VMTRACE_REF_WRITE as u8),
    ("exec", uapi::VMTRACE_REF_EXEC as u8),
    ("seen", uapi::VMTRACE_REF_SEEN as u8),
];

/// The words of `mode`: who made an access.
const MODES: &[(&str, u8)] = &[("user", 0), ("kernel", 1)];

const MAPPING_KINDS: &[(&str, u8)] = &[
    ("anon", uapi::VMTRACE_MAP_ANON as u8),
    ("file", uapi::VMTRACE_MAP_FILE as u8),
    ("shmem", uapi::VMTRACE_MAP_SHMEM as u8),
    ("device", uapi::VMTRACE_MAP_DEVICE as u8),
    ("special", uapi::VMTRACE_MAP_SPECIAL as u8),
    ("hugetlb", uapi::VMTRACE_MAP_HUGETLB as u8),
    ("none", NOT_MAPPED),
    ("unknown", UNKNOWN_KIND),
];

/// The names of events with numbers that fit a word's.
const EVENTS: [(&str, u8); events::ALL.len()] = {
    let mut words = [("", 0); events::ALL.len()];
    let mut at = 0;
    while at < words.len() {
        let (number, name, _) = events::ALL[at];
        assert!(number < 126);
        words[at] = (name, number as u8);
        at += 1;
    }
    words
};

const fn bit(class: u32) -> u8 {
    class.trailing_zeros() as u8
}

const CLASSES: &[(&str, u8)] = &[
    ("file", bit(uapi::VMTRACE_CLASS_FILE)),
    ("io", bit(uapi::VMTRACE_CLASS_IO)),
    ("shm", bit(uapi::VMTRACE_CLASS_SHM)),
    ("gup", bit(uapi::VMTRACE_CLASS_GUP)),
    ("swap", bit(uapi::VMTRACE_CLASS_SWAP)),
    ("frame", bit(uapi::VMTRACE_CLASS_FRAME)),
    ("switch", bit(uapi::VMTRACE_CLASS_SWITCH)),
    ("always", ALWAYS),
];

/// The word of `class` for an event of this number.
pub fn class_word(number: u16) -> u8 {
    match events::class(number) {
        0 => ALWAYS,
        class => bit(class),
    }
}

impl Field {
    /// What says where a reference lies. References of read() and write() have none of these.
    pub const OF_PLACE: [Field; 5] = [
        Field::Mapping,
        Field::MappingKind,
        Field::Addr,
        Field::Page,
        Field::Set,
    ];

    /// All fields, in the order in which documents list them.
    pub const ALL: [Field; 19] = [
        Field::Pid,
        Field::Tid,
        Field::Tree,
        Field::Process,
        Field::Comm,
        Field::Cgroup,
        Field::Mapping,
        Field::MappingKind,
        Field::Addr,
        Field::Page,
        Field::Kind,
        Field::Mode,
        Field::Set,
        Field::Cpu,
        Field::Window,
        Field::Time,
        Field::Seq,
        Field::Event,
        Field::Class,
    ];

    /// Its name in an expression.
    pub fn name(self) -> &'static str {
        match self {
            Field::Pid => "pid",
            Field::Tid => "tid",
            Field::Tree => "tree",
            Field::Process => "process",
            Field::Comm => "comm",
            Field::Cgroup => "cgroup",
            Field::Mapping => "mapping",
            Field::MappingKind => "mapping_kind",
            Field::Addr => "addr",
            Field::Page => "page",
            Field::Kind => "kind",
            Field::Mode => "mode",
            Field::Set => "set",
            Field::Cpu => "cpu",
            Field::Window => "window",
            Field::Time => "time",
            Field::Seq => "seq",
            Field::Event => "event",
            Field::Class => "class",
        }
    }

    /// Its values.
    pub fn values(self) -> Type {
        match self {
            Field::Pid
            | Field::Tid
            | Field::Addr
            | Field::Page
            | Field::Set
            | Field::Cpu
            | Field::Window
            | Field::Seq => Type::Number,
            Field::Time => Type::Time,
            Field::Tree => Type::Ancestors,
            Field::Process | Field::Comm | Field::Cgroup | Field::Mapping => Type::Text,
            Field::MappingKind => Type::Word(MAPPING_KINDS),
            Field::Kind => Type::Word(KINDS),
            Field::Mode => Type::Word(MODES),
            Field::Event => Type::Word(&EVENTS),
            Field::Class => Type::Word(CLASSES),
        }
    }

    /// The largest number that it has.
    pub fn most(self) -> u64 {
        match self {
            Field::Pid | Field::Tid | Field::Tree => (1 << uapi::VMTRACE_TID_BITS) - 1,
            Field::Cpu => (1 << (u32::BITS - uapi::VMTRACE_TID_BITS)) - 1,
            Field::Set | Field::Window => u32::MAX.into(),
            _ => u64::MAX,
        }
    }

    /// How often its value changes.
    pub fn depends(self) -> Depends {
        match self {
            Field::Pid
            | Field::Tid
            | Field::Tree
            | Field::Process
            | Field::Comm
            | Field::Cgroup => Depends::Task,
            Field::Mapping | Field::MappingKind => Depends::Mapping,
            _ => Depends::Record,
        }
    }

    /// Whether records of this kind have it.
    pub fn is_of(self, subject: Subject) -> bool {
        match self {
            Field::Mapping
            | Field::MappingKind
            | Field::Addr
            | Field::Page
            | Field::Kind
            | Field::Mode => subject == Subject::References,
            Field::Event | Field::Class => subject == Subject::Events,
            _ => true,
        }
    }
}

/// How a number is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// `==`
    Equal,
    /// `!=`
    Unequal,
    /// `<`
    Below,
    /// `<=`
    AtMost,
    /// `>`
    Above,
    /// `>=`
    AtLeast,
}

impl Order {
    fn sign(self) -> &'static str {
        match self {
            Order::Equal => "==",
            Order::Unequal => "!=",
            Order::Below => "<",
            Order::AtMost => "<=",
            Order::Above => ">",
            Order::AtLeast => ">=",
        }
    }

    fn holds(self, value: u64, than: u64) -> bool {
        match self {
            Order::Equal => value == than,
            Order::Unequal => value != than,
            Order::Below => value < than,
            Order::AtMost => value <= than,
            Order::Above => value > than,
            Order::AtLeast => value >= than,
        }
    }
}

/// What a comparison demands of a field's value. Which of them a field can have depends on
/// [`Field::values`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Demand {
    /// A number in this order to another one.
    Number(Order, u64),
    /// A number in one of these ranges.
    NumberIn(Vec<RangeInclusive<u64>>),
    /// This text, or not this one.
    Text {
        /// Whether the text must be another one.
        negated: bool,
        /// The text.
        text: String,
    },
    /// A text that fits a pattern, or does not; see [`fits`].
    Glob {
        /// Whether the text must not fit.
        negated: bool,
        /// The pattern.
        pattern: String,
    },
    /// One of these texts.
    TextIn(Vec<String>),
    /// This word, or not this one.
    Word {
        /// Whether the word must be another one.
        negated: bool,
        /// The word's number.
        word: u8,
    },
    /// One of these words, by their numbers.
    WordIn(Vec<u8>),
}

/// A comparison of a field with constants.
#[derive(Clone, Debug)]
pub struct Test {
    /// The field.
    pub field: Field,
    /// What is demanded of it.
    pub demand: Demand,
    /// Where in the text the field's name is, in bytes. It makes no difference to comparisons.
    pub at: Range<usize>,
}

impl PartialEq for Test {
    fn eq(&self, other: &Self) -> bool {
        self.field == other.field && self.demand == other.demand
    }
}

impl Eq for Test {}

/// A parsed expression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expr {
    /// A comparison.
    Test(Test),
    /// Not this one.
    Not(Box<Expr>),
    /// All of these, of which there are at least two, and none of which is an `All` itself.
    All(Vec<Expr>),
    /// At least one of these, of which there are at least two, and none of which is an `Any`
    /// itself.
    Any(Vec<Expr>),
}

impl Expr {
    /// Both of these.
    pub fn and(self, other: Expr) -> Expr {
        let mut all = match self {
            Expr::All(all) => all,
            one => vec![one],
        };
        match other {
            Expr::All(more) => all.extend(more),
            one => all.push(one),
        }
        Expr::All(all)
    }

    /// One of these, or both.
    pub fn or(self, other: Expr) -> Expr {
        let mut any = match self {
            Expr::Any(any) => any,
            one => vec![one],
        };
        match other {
            Expr::Any(more) => any.extend(more),
            one => any.push(one),
        }
        Expr::Any(any)
    }

    /// All comparisons, in the order of the text.
    pub fn tests(&self) -> Vec<&Test> {
        let mut tests = Vec::new();
        self.visit(&mut |test| tests.push(test));
        tests
    }

    fn visit<'e>(&'e self, see: &mut impl FnMut(&'e Test)) {
        match self {
            Expr::Test(test) => see(test),
            Expr::Not(inner) => inner.visit(see),
            Expr::All(parts) | Expr::Any(parts) => {
                for part in parts {
                    part.visit(see);
                }
            }
        }
    }

    /// The names of files that comparisons demand with directories, each with the part behind the last `/`.
    /// A name whose last part is demanded, too, is left out.
    pub fn in_directories(&self) -> Vec<(&str, &str)> {
        let mut names: Vec<&str> = Vec::new();
        self.visit(&mut |test| match &test.demand {
            _ if test.field != Field::Mapping => {}
            Demand::Text { negated, text } if !negated => names.push(text),
            Demand::Glob { negated, pattern } if !negated => names.push(pattern),
            Demand::TextIn(texts) => names.extend(texts.iter().map(String::as_str)),
            _ => {}
        });
        let parted = names.iter().filter_map(|name| {
            let (_, last) = name.rsplit_once('/')?;
            (!names.contains(&last)).then_some((*name, last))
        });
        parted.collect()
    }

    /// The first comparison with a field of this kind.
    pub fn first(&self, is_meant: impl Fn(Field) -> bool) -> Option<&Test> {
        self.tests().into_iter().find(|test| is_meant(test.field))
    }

    /// Whether an expression is about a field.
    pub fn uses(&self, field: Field) -> bool {
        self.first(|f| f == field).is_some()
    }

    /// Whether a record fits, by the definition and without any short cut.
    pub fn holds(&self, of: &impl Values) -> bool {
        match self {
            Expr::Test(test) => test.holds(of),
            Expr::Not(inner) => !inner.holds(of),
            Expr::All(parts) => parts.iter().all(|part| part.holds(of)),
            Expr::Any(parts) => parts.iter().any(|part| part.holds(of)),
        }
    }
}

/// What comparisons ask of a record.
pub trait Values {
    /// The value of a field of [`Type::Number`] or [`Type::Time`].
    fn number(&self, field: Field) -> u64;
    /// The value of a field of [`Type::Text`]; empty if it is not known.
    fn text(&self, field: Field) -> &str;
    /// The number of the word that a field of [`Type::Word`] has.
    fn word(&self, field: Field) -> u8;
    /// Whether `fits` is true of the id of the process, or of an ancestor's.
    fn any_ancestor(&self, fits: &mut dyn FnMut(u64) -> bool) -> bool;
}

impl Test {
    /// Whether a record has what is demanded.
    pub fn holds(&self, of: &impl Values) -> bool {
        let field = self.field;
        if field.values() == Type::Ancestors {
            return match &self.demand {
                // Its negation: no ancestor is that one.
                Demand::Number(Order::Unequal, pid) => !of.any_ancestor(&mut |id| id == *pid),
                Demand::Number(order, pid) => of.any_ancestor(&mut |id| order.holds(id, *pid)),
                Demand::NumberIn(ranges) => of.any_ancestor(&mut |id| in_one(ranges, id)),
                _ => false,
            };
        }
        match &self.demand {
            Demand::Number(order, than) => order.holds(of.number(field), *than),
            Demand::NumberIn(ranges) => in_one(ranges, of.number(field)),
            Demand::Text { negated, text } => (of.text(field) == text) != *negated,
            Demand::Glob { negated, pattern } => {
                fits(pattern.as_bytes(), of.text(field).as_bytes()) != *negated
            }
            Demand::TextIn(texts) => texts.iter().any(|text| text == of.text(field)),
            Demand::Word { negated, word } => (of.word(field) == *word) != *negated,
            Demand::WordIn(words) => words.contains(&of.word(field)),
        }
    }
}

fn in_one(ranges: &[RangeInclusive<u64>], value: u64) -> bool {
    ranges.iter().any(|range| range.contains(&value))
}

/// The expression as text that parses to the same expression.
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Test(test) => write!(f, "{test}"),
            Expr::Not(inner) => match **inner {
                Expr::Not(_) => write!(f, "!{inner}"),
                _ => write!(f, "!({inner})"),
            },
            Expr::All(parts) => joined(f, parts, " && ", |part| matches!(part, Expr::Any(_))),
            Expr::Any(parts) => joined(f, parts, " || ", |_| false),
        }
    }
}

fn joined(
    f: &mut fmt::Formatter<'_>,
    parts: &[Expr],
    sign: &str,
    enclosed: fn(&Expr) -> bool,
) -> fmt::Result {
    for (i, part) in parts.iter().enumerate() {
        f.write_str(if i > 0 { sign } else { "" })?;
        match enclosed(part) {
            true => write!(f, "({part})")?,
            false => write!(f, "{part}")?,
        }
    }
    Ok(())
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = self.field;
        f.write_str(field.name())?;
        let equal = |negated: &bool| if *negated { "!=" } else { "==" };
        match &self.demand {
            Demand::Number(order, value) => {
                write!(f, " {} {}", order.sign(), Number(field, *value))
            }
            Demand::NumberIn(ranges) => match &ranges[..] {
                [range] if range.start() != range.end() => write!(f, " in {}", Span(field, range)),
                _ => listed(f, ranges.iter().map(|range| Span(field, range))),
            },
            Demand::Text { negated, text } => write!(f, " {} {}", equal(negated), Quoted(text)),
            Demand::Glob { negated, pattern } => {
                let sign = if *negated { "!~" } else { "~" };
                write!(f, " {sign} {}", Quoted(pattern))
            }
            Demand::TextIn(texts) => listed(f, texts.iter().map(|text| Quoted(text))),
            Demand::Word { negated, word } => {
                write!(f, " {} {}", equal(negated), word_name(field, *word))
            }
            Demand::WordIn(words) => listed(f, words.iter().map(|&word| word_name(field, word))),
        }
    }
}

fn word_name(field: Field, number: u8) -> &'static str {
    let Type::Word(words) = field.values() else {
        return "";
    };
    let found = words.iter().find(|(_, n)| *n == number);
    found.map_or("", |(name, _)| name)
}

fn listed(
    f: &mut fmt::Formatter<'_>,
    items: impl Iterator<Item = impl fmt::Display>,
) -> fmt::Result {
    f.write_str(" in (")?;
    for (i, item) in items.enumerate() {
        write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
    }
    f.write_str(")")
}

/// A number as it is written for a field.
struct Number(Field, u64);

/// The units of times, in ns.
const UNITS: [(&str, u64); 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Number(field, value) = self;
        match field {
            Field::Addr | Field::Page => write!(f, "{value:#x}"),
            Field::Time => {
                let whole = |(_, size): &&(&str, u64)| value % size == 0;
                let (unit, size) = UNITS.iter().find(whole).unwrap_or(&("ns", 1));
                write!(f, "{}{unit}", value / size)
            }
            _ => write!(f, "{value}"),
        }
    }
}

struct Span<'r>(Field, &'r RangeInclusive<u64>);

impl fmt::Display for Span<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Span(field, range) = self;
        let (start, end) = (*range.start(), *range.end());
        write!(f, "{}", Number(field, start))?;
        match end.checked_add(1) {
            _ if start == end => Ok(()),
            Some(behind) => write!(f, "..{}", Number(field, behind)),
            None => write!(f, "..={}", Number(field, end)),
        }
    }
}

struct Quoted<'t>(&'t str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\0'..='\x1f' | '\x7f' => write!(f, "\\x{:02x}", c as u32)?,
                _ => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}
