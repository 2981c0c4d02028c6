//! An expression as the kernel takes it: `struct vmtrace_filter`.

use std::marker::PhantomData;
use std::mem::{offset_of, size_of};
use std::ops::{Range, RangeInclusive};

use super::{Demand, Expr, Field, Order, ParseError, Test, NOT_MAPPED, UNKNOWN_KIND};
use crate::{judge, uapi};

/// Comparisons that the kernel takes, at most. A list is as many as it has parts.
pub const MOST_KERNEL_TESTS: usize = uapi::VMTRACE_FILTER_TESTS as usize;
/// Bytes of an expression that the kernel takes, at most.
pub const MOST_KERNEL_BYTES: usize = uapi::VMTRACE_FILTER_EXPR as usize;
/// Bytes of an expression and its constants that the kernel takes, at most.
pub const MOST_KERNEL_TEXTS: usize = uapi::VMTRACE_FILTER_TEXTS as usize;

/// What to do about a comparison that the kernel cannot make.
const AFTERWARDS: &str =
    "leave it out, and give it to `postproc ... --where` when you read the trace";

// `judge` is pure and does not see the header.
const _: () = {
    assert!(judge::RANGE as u32 == uapi::VMTRACE_OP_RANGE);
    assert!(judge::TEXT as u32 == uapi::VMTRACE_OP_TEXT);
    assert!(judge::GLOB as u32 == uapi::VMTRACE_OP_GLOB);
    assert!(judge::KEEP as u32 == uapi::VMTRACE_FILTER_KEEP);
    assert!(judge::LEAVE as u32 == uapi::VMTRACE_FILTER_LEAVE);
    assert!(judge::COMM as u32 == uapi::VMTRACE_FIELD_COMM);
    assert!(judge::MAPPING as u32 == uapi::VMTRACE_FIELD_MAPPING);
    assert!(judge::LAST_FIELD as u32 == uapi::VMTRACE_FIELD_MAPPING_KIND);
    assert!(MOST_KERNEL_TESTS < judge::LEAVE as usize);
    type Raw = uapi::vmtrace_filter_test;
    assert!(size_of::<judge::Test>() == size_of::<Raw>());
    assert!(offset_of!(judge::Test, field) == offset_of!(Raw, field));
    assert!(offset_of!(judge::Test, op) == offset_of!(Raw, op));
    assert!(offset_of!(judge::Test, yes) == offset_of!(Raw, yes));
    assert!(offset_of!(judge::Test, no) == offset_of!(Raw, no));
    assert!(offset_of!(judge::Test, low) == offset_of!(Raw, low));
    assert!(offset_of!(judge::Test, high) == offset_of!(Raw, high));
    assert!(size_of::<uapi::vmtrace_filter>() == uapi::VMTRACE_FILTER_SIZE_VER0 as usize);
};

/// The field's number in the kernel, if the kernel judges by it: VMTRACE_FIELD_*.
pub fn kernel_field(field: Field) -> Option<u16> {
    let number = match field {
        Field::Pid => uapi::VMTRACE_FIELD_PID,
        Field::Tid => uapi::VMTRACE_FIELD_TID,
        Field::Comm => uapi::VMTRACE_FIELD_COMM,
        Field::Addr => uapi::VMTRACE_FIELD_ADDR,
        Field::Page => uapi::VMTRACE_FIELD_PAGE,
        Field::Kind => uapi::VMTRACE_FIELD_KIND,
        Field::Mode => uapi::VMTRACE_FIELD_MODE,
        Field::Cpu => uapi::VMTRACE_FIELD_CPU,
        Field::Set => uapi::VMTRACE_FIELD_SET,
        Field::Mapping => uapi::VMTRACE_FIELD_MAPPING,
        Field::MappingKind => uapi::VMTRACE_FIELD_MAPPING_KIND,
        Field::Tree
        | Field::Process
        | Field::Cgroup
        | Field::Window
        | Field::Time
        | Field::Seq
        | Field::Event
        | Field::Class => return None,
    };
    Some(number as u16)
}

/// An expression that the kernel can judge references by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    tests: Vec<judge::Test>,
    /// The expression, and behind it the texts and patterns, each with a zero byte behind it.
    texts: Vec<u8>,
    expr_len: usize,
}

/// A `struct vmtrace_filter`, with the addresses of what it needs.
#[derive(Clone, Copy, Debug)]
pub struct Request<'c> {
    raw: uapi::vmtrace_filter,
    of: PhantomData<&'c Compiled>,
}

impl Request<'_> {
    /// The filter of which all references are recorded.
    pub fn all() -> Request<'static> {
        let raw = uapi::vmtrace_filter {
            size: size_of::<uapi::vmtrace_filter>() as u32,
            ..Default::default()
        };
        Request {
            raw,
            of: PhantomData,
        }
    }

    /// The structure. Its addresses are good as long as this request is.
    pub fn raw(&self) -> &uapi::vmtrace_filter {
        &self.raw
    }

    /// The address of the structure, for `vmtrace_config.filter`. It is good as long as this
    /// request stays where it is.
    pub fn address(&self) -> u64 {
        &raw const self.raw as u64
    }
}

impl Compiled {
    /// Translates an expression, which was parsed from `text`.
    ///
    /// # Errors
    ///
    /// The first place that the kernel cannot judge by, or the limit of `struct vmtrace_filter`
    /// that does not hold.
    pub fn new(expr: &Expr, text: &str) -> Result<Compiled, ParseError> {
        for test in expr.tests() {
            check(test, text)?;
        }
        let expr_len = text.len();
        if expr_len > MOST_KERNEL_BYTES {
            return Err(limit(format!(
                "the kernel takes {MOST_KERNEL_BYTES} bytes of an expression at most, and this one \
                 has {expr_len}"
            )));
        }
        let mut list = List {
            tests: Vec::new(),
            texts: text.as_bytes().to_vec(),
        };
        let begin = list.emit(expr, Next::Keep, Next::Leave);
        if !matches!(begin, Next::Test(_)) {
            // It is always so. Without a test, all references would be recorded.
            let always = Op::Range(0..=u64::MAX);
            list.tests
                .push((uapi::VMTRACE_FIELD_PID as u16, always, begin, begin));
        }
        let List { tests, texts } = list;
        let many = tests.len();
        if many > MOST_KERNEL_TESTS {
            return Err(limit(format!(
                "the kernel takes {MOST_KERNEL_TESTS} comparisons at most, and these are {many}; \
                 each part of a list is one"
            )));
        }
        if texts.len() > MOST_KERNEL_TEXTS {
            return Err(limit(format!(
                "the kernel takes {MOST_KERNEL_TEXTS} bytes of texts at most, and these are {}",
                texts.len()
            )));
        }
        // They were made from the end.
        let number = |next| match next {
            Next::Keep => judge::KEEP,
            Next::Leave => judge::LEAVE,
            Next::Test(at) => (many - 1 - at) as u16,
        };
        let tests = tests.into_iter().rev();
        let tests = tests.map(|(field, op, yes, no)| {
            let (op, low, high) = match op {
                Op::Range(range) => (judge::RANGE, *range.start(), *range.end()),
                Op::Text(at) => (judge::TEXT, at.start as u64, at.len() as u64),
                Op::Glob(at) => (judge::GLOB, at.start as u64, at.len() as u64),
            };
            judge::Test {
                field,
                op,
                yes: number(yes),
                no: number(no),
                low,
                high,
            }
        });
        Ok(Compiled {
            tests: tests.collect(),
            texts,
            expr_len,
        })
    }

    /// The comparisons: 1 to [`MOST_KERNEL_TESTS`]. The first one is where to begin.
    pub fn tests(&self) -> &[judge::Test] {
        &self.tests
    }

    /// The bytes that comparisons need, behind those of the expression.
    pub fn texts(&self) -> &[u8] {
        &self.texts
    }

    /// The expression, as the user wrote it.
    pub fn text(&self) -> &str {
        let text = self.texts.get(..self.expr_len).unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
    }

    /// The request for the kernel.
    pub fn request(&self) -> Request<'_> {
        let raw = uapi::vmtrace_filter {
            nr_tests: self.tests.len() as u32,
            tests: self.tests.as_ptr() as u64,
            texts: self.texts.as_ptr() as u64,
            texts_len: self.texts.len() as u32,
            expr_len: self.expr_len as u32,
            ..*Request::all().raw()
        };
        Request {
            raw,
            of: PhantomData,
        }
    }
}

fn limit(what: String) -> ParseError {
    ParseError {
        at: 0..0,
        what,
        help:
            "a shorter one keeps more references; `postproc ... --where` selects some of them when \
               you read the trace"
                .into(),
    }
}

/// Refuses a comparison that the kernel cannot judge by.
fn check(test: &Test, text: &str) -> Result<(), ParseError> {
    let field = test.field;
    let name = field.name();
    let error = |at: Range<usize>, what: String, help: &str| {
        Err(ParseError {
            at,
            what,
            help: help.into(),
        })
    };
    if matches!(field, Field::Event | Field::Class) {
        return error(
            test.at.clone(),
            format!("references have no `{name}`, which is a field of events"),
            "`--events` selects the classes of events that are recorded",
        );
    }
    if kernel_field(field).is_none() {
        let what = format!("the kernel cannot judge a reference by `{name}`");
        return error(test.at.clone(), what, AFTERWARDS);
    }
    if let Some(word) = words(&test.demand).find_map(|word| unjudged(field, word)) {
        // The comparison goes on behind its field, and has no other text.
        let behind = text.get(test.at.end..).unwrap_or_default();
        let at = match behind.find(word) {
            Some(from) => test.at.end + from..test.at.end + from + word.len(),
            None => test.at.clone(),
        };
        let what = match field {
            Field::Kind => {
                format!("the kernel judges the first reference of a stay, which is never `{word}`")
            }
            _ => {
                format!("the kernel judges by the mapping of a page, whose kind is never `{word}`")
            }
        };
        return error(at, what, AFTERWARDS);
    }
    for text in constants(&test.demand) {
        if text.contains('\0') {
            let what = format!("a text of `{name}` contains a zero byte, which no name has");
            return error(test.at.clone(), what, "leave it out");
        }
        if text.contains(char::REPLACEMENT_CHARACTER) {
            return error(
                test.at.clone(),
                format!(
                    "a text of `{name}` contains U+FFFD, which stands for bytes that are no UTF-8"
                ),
                "the kernel compares bytes: a pattern with a `?` for each such byte fits",
            );
        }
    }
    Ok(())
}

/// The words of a comparison.
fn words(demand: &Demand) -> impl Iterator<Item = u8> + '_ {
    let words = match demand {
        Demand::Word { word, .. } => std::slice::from_ref(word),
        Demand::WordIn(words) => words,
        _ => &[],
    };
    words.iter().copied()
}

/// The texts and patterns of a comparison.
fn constants(demand: &Demand) -> &[String] {
    match demand {
        Demand::Text { text, .. } => std::slice::from_ref(text),
        Demand::Glob { pattern, .. } => std::slice::from_ref(pattern),
        Demand::TextIn(texts) => texts,
        _ => &[],
    }
}

/// The name of a word that no reference has when the kernel judges it.
fn unjudged(field: Field, word: u8) -> Option<&'static str> {
    let is_unjudged = match field {
        Field::Kind => u32::from(word) == uapi::VMTRACE_REF_SEEN,
        Field::MappingKind => matches!(word, NOT_MAPPED | UNKNOWN_KIND),
        _ => false,
    };
    is_unjudged.then(|| super::word_name(field, word))
}

/// Where to go on, while the list is made from its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Keep,
    Leave,
    /// The comparison with this number, counted from the end.
    Test(usize),
}

/// A comparison of the kernel.
enum Op {
    Range(RangeInclusive<u64>),
    /// These bytes of the texts.
    Text(Range<usize>),
    Glob(Range<usize>),
}

/// The comparisons from the end, and the texts.
struct List {
    tests: Vec<(u16, Op, Next, Next)>,
    texts: Vec<u8>,
}

impl List {
    /// Appends a comparison whose result matters; gives where to begin.
    fn test(&mut self, field: u16, op: Op, yes: Next, no: Next) -> Next {
        if yes == no {
            return yes;
        }
        self.tests.push((field, op, yes, no));
        Next::Test(self.tests.len() - 1)
    }

    fn range(&mut self, field: u16, range: RangeInclusive<u64>, yes: Next, no: Next) -> Next {
        match range == (0..=u64::MAX) {
            true => yes,
            false => self.test(field, Op::Range(range), yes, no),
        }
    }

    fn text(&mut self, field: u16, text: &str, yes: Next, no: Next) -> Next {
        let at = self.place(text);
        self.test(field, Op::Text(at), yes, no)
    }

    /// Appends a text with its zero byte; gives where it is, without that.
    fn place(&mut self, text: &str) -> Range<usize> {
        let from = self.texts.len();
        self.texts.extend(text.bytes());
        let at = from..self.texts.len();
        self.texts.push(0);
        at
    }

    /// Appends parts, of which one must hold.
    fn any<T>(
        &mut self,
        parts: impl DoubleEndedIterator<Item = T>,
        yes: Next,
        no: Next,
        mut emit: impl FnMut(&mut Self, T, Next, Next) -> Next,
    ) -> Next {
        let before = self.tests.len();
        parts.rev().fold(no, |next, part| {
            let begin = emit(self, part, yes, next);
            if begin == yes {
                // This part always holds. What is behind it is never reached.
                self.tests.truncate(before);
            }
            begin
        })
    }

    /// Appends an expression; gives where to begin.
    fn emit(&mut self, expr: &Expr, yes: Next, no: Next) -> Next {
        match expr {
            Expr::Test(test) => self.compare(test, yes, no),
            Expr::Not(inner) => self.emit(inner, no, yes),
            Expr::Any(parts) => self.any(parts.iter(), yes, no, Self::emit),
            // That all hold means that not one does not.
            Expr::All(parts) => self.any(parts.iter(), no, yes, |list, part, fails, holds| {
                list.emit(part, holds, fails)
            }),
        }
    }

    fn compare(&mut self, test: &Test, yes: Next, no: Next) -> Next {
        // All comparisons were checked.
        let Some(field) = kernel_field(test.field) else {
            return no;
        };
        let below = |than: u64| than.checked_sub(1).map(|last| 0..=last);
        let above = |than: u64| than.checked_add(1).map(|first| first..=u64::MAX);
        match &test.demand {
            Demand::Number(order, than) => {
                let (range, yes, no) = match order {
                    Order::Equal => (Some(*than..=*than), yes, no),
                    Order::Unequal => (Some(*than..=*than), no, yes),
                    Order::Below => (below(*than), yes, no),
                    Order::AtMost => (Some(0..=*than), yes, no),
                    Order::Above => (above(*than), yes, no),
                    Order::AtLeast => (Some(*than..=u64::MAX), yes, no),
                };
                match range {
                    Some(range) => self.range(field, range, yes, no),
                    None => no,
                }
            }
            Demand::NumberIn(ranges) => self.any(ranges.iter(), yes, no, |list, range, yes, no| {
                list.range(field, range.clone(), yes, no)
            }),
            Demand::Text { negated, text } => {
                let (yes, no) = swapped(*negated, yes, no);
                self.text(field, text, yes, no)
            }
            Demand::Glob { negated, pattern } => {
                let (yes, no) = swapped(*negated, yes, no);
                let at = self.place(pattern);
                self.test(field, Op::Glob(at), yes, no)
            }
            Demand::TextIn(texts) => self.any(texts.iter(), yes, no, |list, text, yes, no| {
                list.text(field, text, yes, no)
            }),
            Demand::Word { negated, word } => {
                let (yes, no) = swapped(*negated, yes, no);
                let word = u64::from(*word);
                self.range(field, word..=word, yes, no)
            }
            Demand::WordIn(words) => self.any(words.iter(), yes, no, |list, word, yes, no| {
                let word = u64::from(*word);
                list.range(field, word..=word, yes, no)
            }),
        }
    }
}

fn swapped(negated: bool, yes: Next, no: Next) -> (Next, Next) {
    match negated {
        true => (no, yes),
        false => (yes, no),
    }
}
