//! The language of filters: what is parsed, what is refused and where, and that its forms agree.

use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use rust_mm_trace::filter::{
    fits, kernel_field, Compiled, Demand, Depends, Expr, Field, Next, Order, ParseError, Program,
    Request, Subject, Test, Type, Values, MOST_BYTES, MOST_DEPTH, MOST_KERNEL_BYTES, MOST_TESTS,
};
use rust_mm_trace::{judge, uapi};

/// A record with any values.
#[derive(Clone, Debug)]
struct Record {
    numbers: BTreeMap<Field, u64>,
    texts: BTreeMap<Field, String>,
    ancestors: Vec<u64>,
}

impl Values for Record {
    fn number(&self, field: Field) -> u64 {
        self.numbers[&field]
    }
    fn text(&self, field: Field) -> &str {
        &self.texts[&field]
    }
    fn word(&self, field: Field) -> u8 {
        self.numbers[&field] as u8
    }
    fn any_ancestor(&self, fits: &mut dyn FnMut(u64) -> bool) -> bool {
        self.ancestors.iter().any(|&id| fits(id))
    }
}

fn record(given: &[(Field, u64)], texts: &[(Field, &str)], ancestors: &[u64]) -> Record {
    let mut numbers: BTreeMap<Field, u64> = Field::ALL.into_iter().map(|f| (f, 0)).collect();
    numbers.extend(given.iter().copied());
    let mut all: BTreeMap<Field, String> =
        Field::ALL.into_iter().map(|f| (f, String::new())).collect();
    all.extend(texts.iter().map(|(f, text)| (*f, text.to_string())));
    Record {
        numbers,
        texts: all,
        ancestors: ancestors.to_vec(),
    }
}

fn parse(text: &str) -> Expr {
    Expr::parse(text).unwrap_or_else(|e| panic!("{}", e.shown(text)))
}

#[test]
fn expressions_hold_for_what_they_say() {
    let cc1 = record(
        &[
            (Field::Pid, 42),
            (Field::Tid, 43),
            (Field::Addr, 0x1800),
            (Field::Kind, 1),
            (Field::Time, 2_000_000),
            (Field::Cpu, 3),
        ],
        &[
            (Field::Comm, "cc1"),
            (Field::Mapping, "/usr/lib/libc.so"),
            (Field::Cgroup, "/build"),
        ],
        &[42, 7, 1],
    );
    for (text, holds) in [
        (
            r#"comm == "cc1" && mapping ~ "*.so" && kind == write"#,
            true,
        ),
        (r#"comm == "cc" "#, false),
        (r#"comm != "cc""#, true),
        (r#"mapping !~ "*.so""#, false),
        (r#"comm in ("as", "cc1")"#, true),
        (r#"comm in ("as")"#, false),
        (r#"cgroup == "/build""#, true),
        ("pid == 42", true),
        ("pid in (1, 40..43, 99)", true),
        ("pid in 40..42", false),
        ("pid in 40..=42", true),
        ("tid > 42 && tid <= 43", true),
        ("tree == 7", true),
        ("tree != 7", false),
        ("tree == 8", false),
        ("tree != 8", true),
        ("tree in (8, 1)", true),
        ("!(tree in (8, 9))", true),
        ("addr in 0x1000..0x2000", true),
        ("addr >= 0x1_801", false),
        ("time == 2ms", true),
        ("time in 1999us..2000001ns", true),
        ("time < 1s", true),
        ("kind in (read, write)", true),
        ("kind != write", false),
        ("mode == user", true),
        ("cpu == 1 || cpu == 2 && pid == 42", false),
        ("(cpu == 3 || cpu == 2) && pid == 42", true),
        ("!(cpu == 3)", false),
        ("!!(cpu == 3)", true),
        ("pid==42&&!(cpu!=3)||(kind==read)", true),
        ("pid ==\n\t 42\n&& cpu == 3", true),
    ] {
        let expr = parse(text);
        assert_eq!(expr.holds(&cc1), holds, "{text}");
        assert_eq!(Program::new(&expr).accepts(&cc1), holds, "{text}");
        assert_eq!(parse(&expr.to_string()), expr, "{text}: {expr}");
    }
}

/// What is shown for a wrong expression, which is in the first line.
#[track_caller]
fn refused(expected: &str) {
    let (text, expected) = expected.split_once('\n').unwrap();
    let error = Expr::parse(text).expect_err(text);
    assert_eq!(error.shown(text), expected.trim_end(), "\n{text}");
}

#[test]
fn errors_point_at_their_place() {
    refused("comn == \"cc1\"\nthere is no field `comn`\n  comn == \"cc1\"\n  ^^^^\n  did you mean `comm`?");
    refused("pid == 1 && tgid == 2\nthere is no field `tgid`\n  pid == 1 && tgid == 2\n              ^^^^\n  did you mean `pid`?");
    refused("pid = 1\n`=` is no comparison\n  pid = 1\n      ^\n  did you mean `==`?");
    refused("pid == 1 & cpu == 1\n`&` is no operator\n  pid == 1 & cpu == 1\n           ^\n  did you mean `&&`?");
    refused("pid == 1 and cpu == 1\n`and` is here, and `&&`, `||` or the end was expected\n  pid == 1 and cpu == 1\n           ^^^\n  did you mean `&&`?");
    refused("kind == wirte\n`kind` is never `wirte`\n  kind == wirte\n          ^^^^^\n  did you mean `write`?");
    refused("kind == fetch\n`kind` is never `fetch`\n  kind == fetch\n          ^^^^^\n  `kind` is one of: read, write, exec, seen");
    refused("kind == \"write\"\n`kind` is compared with a word without quotes\n  kind == \"write\"\n          ^^^^^^^\n  did you mean `write`?");
    refused("comm == cc1\n`comm` is compared with text in quotes\n  comm == cc1\n          ^^^\n  did you mean `\"cc1\"`?");
    refused("kind < write\n`kind` has no order: it is a word\n  kind < write\n       ^\n  it is compared by ==, != or in");
    refused("pid ~ \"4*\"\n`~` compares text with a pattern, and `pid` is a number\n  pid ~ \"4*\"\n      ^");
    refused(
        "time > 5\nthis time has no unit\n  time > 5\n         ^\n  the units are ns, us, ms and s",
    );
    refused("pid == 5ms\n`pid` has no unit `ms`\n  pid == 5ms\n         ^^^\n  numbers are decimal, or hexadecimal behind 0x");
    refused("addr in 5..5\nthis range is empty\n  addr in 5..5\n          ^^^^\n  START..END has START and what is below END; START..=END has END too");
    refused(
        "pid == \"5\"\n`pid` is compared with a number, not text\n  pid == \"5\"\n         ^^^",
    );
    refused("comm == \"cc1\nthis text does not end\n  comm == \"cc1\n          ^\n  put a `\"` behind it");
    refused("(pid == 1 || pid == 2\nthis `(` is not closed\n  (pid == 1 || pid == 2\n  ^\n  put a `)` behind its part");
    refused("pid == 1)\nthis `)` closes nothing\n  pid == 1)\n          ^");
    refused("pid == \nthe expression ends here, and a number was expected\n  pid == \n         ^");
    refused(
        "pid\nthe expression ends here, and ==, !=, <, <=, >, >= or in was expected\n  pid\n     ^",
    );
    refused("\"cc1\" == comm\na comparison begins with a field\n  \"cc1\" == comm\n  ^^^^^\n  the field is on the left: comm == \"cc1\"");
    refused("!kind == write\n`!` is followed by parentheses\n  !kind == write\n   ^^^^\n  what is negated is written !(FIELD == VALUE), or FIELD != VALUE");
    refused("pid in [1, 2]\n`[` has no meaning here\n  pid in [1, 2]\n         ^\n  a list is written in parentheses: pid in (1, 2)");
    refused("pid == 99999999999999999999\nthis number is too large: the largest is 2^64 - 1\n  pid == 99999999999999999999\n         ^^^^^^^^^^^^^^^^^^^^");
    refused("pid == 4194304\n`pid` is never 4194304: the largest is 4194303\n  pid == 4194304\n         ^^^^^^^");
    refused("!(tree in (1, 0x1_0000_0000))\n`tree` is never 4294967296: the largest is 4194303\n  !(tree in (1, 0x1_0000_0000))\n                ^^^^^^^^^^^^^");
    refused("cpu in 1024..2000\n`cpu` is never 1024: the largest is 1023\n  cpu in 1024..2000\n         ^^^^");
    refused("set != 4294967296\n`set` is never 4294967296: the largest is 4294967295\n  set != 4294967296\n         ^^^^^^^^^^");
    refused("comm == \"kworker/u16:0-events\"\n`comm` is never so long: names have 15 bytes at most\n  comm == \"kworker/u16:0-events\"\n          ^^^^^^^^^^^^^^^^^^^^^^\n  did you mean `\"kworker/u16:0-e\"`?");
    refused("comm in (\"a\", \"0123456789abcd\u{e9}\")\n`comm` is never so long: names have 15 bytes at most\n  comm in (\"a\", \"0123456789abcd\u{e9}\")\n                ^^^^^^^^^^^^^^^^^\n  did you mean `\"0123456789abcd\"`?");
    // These have a meaning.
    for text in [
        "pid < 99999999 && pid in 0..=99999999 && cpu <= 1024 && addr == 0xffffffffffffffff",
        "comm ~ \"kworker/u16:0-events\" || comm == \"kworker/u16:0-e\"",
        // What is not UTF-8 is shown so: a byte has three.
        "comm == \"\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\"",
        "mapping == \"/a/very/long/name/of/a/file\" && time == 9999999999s",
    ] {
        parse(text);
    }
    refused("pid == 1 &&\nthe expression ends where a comparison should begin\n  pid == 1 &&\n             ^\n  a comparison is FIELD OPERATOR VALUE, for example kind == write");
    let error = Expr::parse("  ").unwrap_err();
    assert_eq!(error.what, "the expression is empty");
}

#[test]
fn places_are_shown_in_their_line() {
    let text = "pid == 1 &&\n comm == \"é\" && knd == write";
    let error = Expr::parse(text).unwrap_err();
    let expected =
        "there is no field `knd`\n   comm == \"é\" && knd == write\n                  ^^^\n  \
                    did you mean `kind`?";
    assert_eq!(error.shown(text), expected);
    let long = format!(
        "{} knd == write && {}",
        "pid == 1 &&".repeat(30),
        "pid == 1 &&".repeat(30)
    );
    let shown = Expr::parse(&long).unwrap_err().shown(&long);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(
        lines[1].starts_with("  …") && lines[1].ends_with('…'),
        "{shown}"
    );
    let at = lines[2].find('^').unwrap();
    let marked: String = lines[1].chars().skip(at).take(3).collect();
    assert_eq!(marked, "knd");
    // A terminal is shown nothing that would change it.
    let escape = "pid == 1 \u{1b}[31m";
    let shown = Expr::parse(escape).unwrap_err().shown(escape);
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
}

#[test]
fn limits_are_errors() {
    let many = |n| vec!["pid == 1"; n].join(" || ");
    assert!(Expr::parse(&many(MOST_TESTS)).is_ok());
    assert!(Expr::parse(&many(MOST_TESTS + 1)).is_err());
    let deep = |n| format!("{}pid == 1{}", "(".repeat(n), ")".repeat(n));
    assert!(Expr::parse(&deep(MOST_DEPTH)).is_ok());
    assert!(Expr::parse(&deep(MOST_DEPTH + 1)).is_err());
    assert!(Expr::parse(&format!("{}pid == 1", "!".repeat(2000))).is_err());
    assert!(Expr::parse(&" ".repeat(MOST_BYTES + 1)).is_err());
}

#[test]
fn fields_of_other_records_are_refused() {
    let shown = |text, subject| {
        let error: ParseError = parse(text).check_for(subject).unwrap_err();
        error.shown(text)
    };
    let of_event = shown("pid == 1 && event == exec", Subject::References);
    let mark = "  pid == 1 && event == exec\n              ^^^^^\n";
    assert!(of_event.contains(mark), "{of_event}");
    assert!(of_event.starts_with("references have no `event`"));
    let of_reference = shown("mapping ~ \"*\"", Subject::Events);
    assert!(of_reference.starts_with("events have no `mapping`"));
    for subject in [Subject::References, Subject::Events] {
        parse("comm == \"a\" && tree == 1 && time > 1s && set == 0")
            .check_for(subject)
            .unwrap();
    }
}

#[test]
fn programs_go_forwards_only() {
    let expr = parse(
        "!(pid == 1 && (cpu == 1 || kind == read)) || (addr in 1..5 && !(comm == \"a\" || set == 2))",
    );
    let program = Program::new(&expr);
    let fields: Vec<Field> = program.entries().iter().map(|e| e.test.field).collect();
    let written: Vec<Field> = expr.tests().iter().map(|t| t.field).collect();
    assert_eq!(fields, written);
    for (at, entry) in program.entries().iter().enumerate() {
        for next in [entry.yes, entry.no] {
            assert!(!matches!(next, Next::Test(to) if usize::from(to) <= at));
        }
    }
    assert_eq!(program.tasks().count_ones(), 2);
    assert_eq!(program.mappings(), 0);
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..6u64,
        any::<u64>(),
        Just(u64::MAX),
        (0..50u64).prop_map(|n| n * 500_000)
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[ab/*?]{0,4}", "\\PC{0,6}", any::<String>()]
}

/// A text that the field can have.
fn short(field: Field, mut text: String) -> String {
    while field == Field::Comm && text.len() > 15 {
        text.pop();
    }
    text
}

fn demand(field: Field) -> BoxedStrategy<Demand> {
    let order = prop_oneof![
        Just(Order::Equal),
        Just(Order::Unequal),
        Just(Order::Below),
        Just(Order::AtMost),
        Just(Order::Above),
        Just(Order::AtLeast)
    ];
    let most = field.most();
    // What is never so is refused.
    let number = move || number().prop_map(move |n| n.min(most));
    let text = move || text().prop_map(move |text| short(field, text));
    let range = (number(), number()).prop_map(|(a, b)| a.min(b)..=a.max(b));
    let ranges = prop::collection::vec(range, 1..4).prop_map(Demand::NumberIn);
    let negated = any::<bool>();
    match field.values() {
        Type::Number | Type::Time => prop_oneof![
            (order, number()).prop_map(|(order, than)| Demand::Number(order, than)),
            ranges
        ]
        .boxed(),
        Type::Ancestors => prop_oneof![
            number().prop_map(|pid| Demand::Number(Order::Equal, pid)),
            number().prop_map(|pid| Demand::Number(Order::Unequal, pid)),
            ranges
        ]
        .boxed(),
        Type::Text => prop_oneof![
            (negated, text()).prop_map(|(negated, text)| Demand::Text { negated, text }),
            (any::<bool>(), text())
                .prop_map(|(negated, pattern)| Demand::Glob { negated, pattern }),
            prop::collection::vec(text(), 1..4).prop_map(Demand::TextIn)
        ]
        .boxed(),
        Type::Word(words) => {
            let word = prop::sample::select(words.iter().map(|(_, n)| *n).collect::<Vec<_>>());
            prop_oneof![
                (negated, word.clone()).prop_map(|(negated, word)| Demand::Word { negated, word }),
                prop::collection::vec(word, 1..4).prop_map(Demand::WordIn)
            ]
            .boxed()
        }
    }
}

fn test() -> impl Strategy<Value = Expr> {
    prop::sample::select(Field::ALL.to_vec()).prop_flat_map(|field| {
        demand(field).prop_map(move |demand| {
            Expr::Test(Test {
                field,
                demand,
                at: 0..0,
            })
        })
    })
}

fn expr() -> impl Strategy<Value = Expr> {
    test().prop_recursive(5, 30, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|e| Expr::Not(Box::new(e))),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| a.and(b)),
            (inner.clone(), inner).prop_map(|(a, b)| a.or(b)),
        ]
    })
}

fn any_record() -> impl Strategy<Value = Record> {
    let numbers = prop::collection::vec(number(), Field::ALL.len());
    let texts = prop::collection::vec(text(), Field::ALL.len());
    let words = prop::collection::vec(any::<prop::sample::Index>(), Field::ALL.len());
    let ancestors = prop::collection::vec(number(), 0..4);
    (numbers, texts, words, ancestors).prop_map(|(numbers, texts, words, ancestors)| {
        let mut of_fields: BTreeMap<Field, u64> = Field::ALL.into_iter().zip(numbers).collect();
        for (field, index) in Field::ALL.into_iter().zip(words) {
            if let Type::Word(words) = field.values() {
                of_fields.insert(field, index.get(words).1.into());
            }
        }
        Record {
            numbers: of_fields,
            texts: Field::ALL.into_iter().zip(texts).collect(),
            ancestors,
        }
    })
}

/// Something like an expression.
fn nearly() -> impl Strategy<Value = String> {
    let parts = [
        "pid", "comm", "kind", "time", "in", "==", "!=", "~", "!~", "&&", "||", "!", "(", ")", ",",
        "..", "..=", "<", "5", "5ms", "0x", "0xff", "\"a*\"", "\"", "write", " ", "\n", "é", "'",
        "[", "\\",
    ];
    let part = prop_oneof![9 => prop::sample::select(parts.to_vec()).prop_map(String::from), 1 => any::<String>()];
    prop::collection::vec(part, 0..30).prop_map(|parts| parts.concat())
}

/// What every text must do.
fn is_safe(text: &str) -> Result<(), TestCaseError> {
    match Expr::parse(text) {
        Ok(expr) => {
            let printed = expr.to_string();
            // It may be longer than what was written.
            if printed.len() <= MOST_BYTES {
                prop_assert_eq!(Expr::parse(&printed), Ok(expr));
            }
        }
        Err(error) => {
            let start = error.at.start;
            prop_assert!(start <= error.at.end && error.at.end <= text.len());
            prop_assert!(text.is_char_boundary(start) && text.is_char_boundary(error.at.end));
            let shown = error.shown(text);
            prop_assert!(shown
                .lines()
                .nth(2)
                .is_some_and(|mark| mark.trim().starts_with('^')));
            prop_assert!(
                !shown.chars().any(|c| c.is_control() && c != '\n'),
                "{:?}",
                shown
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_printed_parses_to_the_same(expr in expr()) {
        let printed = expr.to_string();
        if printed.len() <= MOST_BYTES {
            prop_assert_eq!(Expr::parse(&printed), Ok(expr), "{}", printed);
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in any::<String>()) {
        is_safe(&text)?;
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        is_safe(&String::from_utf8_lossy(&bytes))?;
    }

    #[test]
    fn what_is_nearly_an_expression_is_parsed_or_refused(text in nearly()) {
        is_safe(&text)?;
    }

    /// The definition, the program, and the program of which parts were decided before.
    #[test]
    fn programs_decide_as_expressions_do(expr in expr(), record in any_record()) {
        let program = Program::new(&expr);
        let holds = expr.holds(&record);
        prop_assert_eq!(program.accepts(&record), holds);
        for known in [program.tasks(), program.mappings(), program.tasks() | program.mappings()] {
            let holding = program.results(known, &record);
            let from = program.decided(known, holding);
            prop_assert_eq!(program.resume(from, known, holding, &record), holds);
            if let Next::Test(at) = from {
                prop_assert!(known >> at & 1 == 0);
            }
        }
        for (at, entry) in program.entries().iter().enumerate() {
            let depends = entry.test.field.depends();
            prop_assert_eq!(program.tasks() >> at & 1 != 0, depends == Depends::Task);
        }
    }

    /// Patterns of stars alone are what a simple search says.
    #[test]
    fn stars_stand_for_anything(parts in prop::collection::vec("[ab]{0,2}", 1..4), text in "[ab]{0,8}") {
        fn slow(parts: &[String], text: &str) -> bool {
            let Some((first, rest)) = parts.split_first() else {
                return false;
            };
            let Some(behind) = text.strip_prefix(first.as_str()) else {
                return false;
            };
            match rest.is_empty() {
                true => behind.is_empty(),
                false => (0..=behind.len()).any(|at| slow(rest, &behind[at..])),
            }
        }
        let pattern = parts.join("*");
        prop_assert_eq!(fits(pattern.as_bytes(), text.as_bytes()), slow(&parts, &text));
    }
}

/// The number of a field in the kernel, back to the field.
fn field_of(number: u16) -> Field {
    let mut all = Field::ALL.into_iter();
    all.find(|field| kernel_field(*field) == Some(number))
        .expect("a field")
}

impl judge::Reference for Record {
    fn number(&self, field: u16) -> u64 {
        self.numbers[&field_of(field)]
    }
    fn is(&self, field: u16, text: &[u8]) -> bool {
        self.texts[&field_of(field)].as_bytes() == text
    }
    fn fits(&self, field: u16, pattern: &[u8]) -> bool {
        let (end, pattern) = pattern.split_last().expect("a zero byte");
        assert!(*end == 0 && !pattern.contains(&0));
        fits(pattern, self.texts[&field_of(field)].as_bytes())
    }
}

fn keeps(compiled: &Compiled, record: &Record) -> bool {
    judge::keeps(compiled.tests(), compiled.texts(), record)
}

#[track_caller]
fn compiled(text: &str) -> Compiled {
    let compiled =
        Compiled::new(&parse(text), text).unwrap_or_else(|e| panic!("{}", e.shown(text)));
    assert!(
        judge::are_good(compiled.tests(), compiled.texts()),
        "{text}"
    );
    compiled
}

#[test]
fn the_kernel_gets_what_is_written() {
    let text = "comm == \"cc1\" && !(addr in (1..3, 0x10)) && mapping !~ \"*.so\" || kind != write";
    let compiled = compiled(text);
    assert_eq!(compiled.text(), text);
    assert_eq!(compiled.texts(), [text, "*.so\0cc1\0"].concat().as_bytes());
    let test = |field: u32, op, low, high, yes, no| judge::Test {
        field: field as u16,
        op,
        yes,
        no,
        low,
        high,
    };
    let behind = text.len() as u64;
    use judge::{GLOB, KEEP, LEAVE, RANGE, TEXT};
    assert_eq!(
        compiled.tests(),
        [
            test(uapi::VMTRACE_FIELD_COMM, TEXT, behind + 5, 3, 1, 4),
            test(uapi::VMTRACE_FIELD_ADDR, RANGE, 1, 2, 4, 2),
            test(uapi::VMTRACE_FIELD_ADDR, RANGE, 16, 16, 4, 3),
            test(uapi::VMTRACE_FIELD_MAPPING, GLOB, behind, 4, 4, KEEP),
            test(uapi::VMTRACE_FIELD_KIND, RANGE, 1, 1, LEAVE, KEEP),
        ]
    );
    let request = compiled.request();
    let raw = request.raw();
    assert_eq!((raw.size, raw.nr_tests), (32, 5));
    assert_eq!(raw.tests, compiled.tests().as_ptr() as u64);
    assert_eq!(raw.texts, compiled.texts().as_ptr() as u64);
    assert_eq!(raw.texts_len as usize, compiled.texts().len());
    assert_eq!(raw.expr_len as usize, text.len());
    let all = Request::all();
    let all = all.raw();
    assert_eq!((all.size, all.nr_tests, all.expr_len), (32, 0, 0));
    assert_eq!((all.tests, all.texts, all.texts_len), (0, 0, 0));
}

#[test]
fn what_is_always_so_is_one_comparison() {
    let of = |pid| record(&[(Field::Pid, pid)], &[], &[]);
    for (text, many, holds) in [
        ("pid < 0", 1, false),
        ("pid >= 0", 1, true),
        ("addr > 0xffffffffffffffff", 1, false),
        ("addr <= 0xffffffffffffffff", 1, true),
        ("!(pid < 0)", 1, true),
        ("comm == \"a\" && pid < 0", 1, false),
        ("pid < 0 && comm == \"a\"", 1, false),
        ("pid >= 0 || comm == \"a\"", 1, true),
        (
            "pid in (4, 0..=0xffffffffffffffff, 5) || comm == \"a\"",
            1,
            true,
        ),
        ("pid == 7 && (pid >= 0 || comm == \"a\")", 1, true),
        ("pid == 7 || (pid < 0 && comm == \"a\")", 1, true),
        (
            "pid == 7 && (comm == \"a\" || pid >= 0 || tid == 3)",
            1,
            true,
        ),
        ("!(pid != 7 || pid < 0)", 1, true),
        ("(pid == 7 || pid == 8) && pid >= 0", 2, true),
    ] {
        let compiled = compiled(text);
        assert_eq!(compiled.tests().len(), many, "{text}: {compiled:?}");
        assert_eq!(keeps(&compiled, &of(7)), holds, "{text}");
        assert_eq!(parse(text).holds(&of(7)), holds, "{text}");
    }
}

/// What is shown for an expression that the kernel cannot judge by, which is in the first line.
#[track_caller]
fn not_for_the_kernel(expected: &str) {
    let (text, expected) = expected.split_once('\n').unwrap();
    let error = Compiled::new(&parse(text), text).expect_err(text);
    assert_eq!(error.shown(text), expected.trim_end(), "\n{text}");
}

#[test]
fn what_the_kernel_cannot_judge_is_refused() {
    const HELP: &str =
        "leave it out, and give it to `postproc ... --where` when you read the trace";
    for field in [
        "tree == 4",
        "cgroup == \"/a\"",
        "window == 1",
        "time < 5ms",
        "seq == 3",
    ] {
        let name = field.split(' ').next().unwrap_or_default();
        not_for_the_kernel(&format!(
            "pid == 1 && {field}\nthe kernel cannot judge a reference by `{name}`\n  pid == 1 && \
             {field}\n              {}\n  {HELP}",
            "^".repeat(name.len())
        ));
    }
    not_for_the_kernel(&format!(
        "kind == seen || pid == 1\nthe kernel judges the first reference of a stay, which is never \
         `seen`\n  kind == seen || pid == 1\n          ^^^^\n  {HELP}"
    ));
    not_for_the_kernel(&format!(
        "comm == \"none\" && !(mapping_kind in (anon, none))\nthe kernel judges by the mapping of a \
         page, whose kind is never `none`\n  comm == \"none\" && !(mapping_kind in (anon, \
         none))\n                                             ^^^^\n  {HELP}"
    ));
    not_for_the_kernel(&format!(
        "mapping_kind != unknown\nthe kernel judges by the mapping of a page, whose kind is never \
         `unknown`\n  mapping_kind != unknown\n                  ^^^^^^^\n  {HELP}"
    ));
    not_for_the_kernel("event == exec\nreferences have no `event`, which is a field of events\n  event == exec\n  ^^^^^\n  `--events` selects the classes of events that are recorded");
    not_for_the_kernel("class in (io, file)\nreferences have no `class`, which is a field of events\n  class in (io, file)\n  ^^^^^\n  `--events` selects the classes of events that are recorded");
    for text in [
        "comm == \"a\\x00b\"",
        "mapping ~ \"\\x00\"",
        "mapping in (\"a\", \"\\x00\")",
    ] {
        let error = Compiled::new(&parse(text), text).expect_err(text);
        assert!(error.shown(text).contains("zero byte"), "{text}: {error}");
    }
    for text in ["comm != \"\u{fffd}\"", "mapping !~ \"*\u{fffd}\""] {
        let error = Compiled::new(&parse(text), text).expect_err(text);
        assert!(error.shown(text).contains("no UTF-8"), "{text}: {error}");
    }
    // These are other words and texts.
    for text in [
        "kind in (read, write, exec) && comm == \"seen\"",
        "mapping_kind in (anon, file, shmem, device, special, hugetlb)",
        "mapping == \"\" || comm !~ \"\" || mode == kernel || set == 3 || cpu != 1 || page == 5",
    ] {
        compiled(text);
    }
}

#[test]
fn limits_of_the_kernel_are_errors() {
    let refused = |expr: &Expr, text: &str| match Compiled::new(expr, text) {
        Ok(compiled) => {
            assert!(judge::are_good(compiled.tests(), compiled.texts()));
            String::new()
        }
        Err(error) => error.shown(text),
    };
    let text = |bytes: usize| format!("{:bytes$}", "pid == 1");
    assert_eq!(refused(&parse(&text(400)), &text(400)), "");
    let long = refused(&parse(&text(401)), &text(401));
    assert!(
        long.contains("400 bytes of an expression at most"),
        "{long}"
    );
    assert!(long.contains("this one has 401"), "{long}");
    // No text of 400 bytes has so many parts, or such texts.
    let list = |many: u64| Test {
        field: Field::Tid,
        demand: Demand::NumberIn((0..many).map(|n| n..=n).collect()),
        at: 0..0,
    };
    assert_eq!(refused(&Expr::Test(list(256)), ""), "");
    let many = refused(&Expr::Test(list(257)), "");
    assert!(
        many.contains("256 comparisons at most, and these are 257"),
        "{many}"
    );
    assert!(!refused(&Expr::Test(list(100_000)), "").is_empty());
    let name = |bytes| Test {
        field: Field::Mapping,
        demand: Demand::TextIn(vec!["a".repeat(bytes)]),
        at: 0..0,
    };
    assert_eq!(refused(&Expr::Test(name(4094)), "x"), "");
    let texts = refused(&Expr::Test(name(4095)), "x");
    assert!(
        texts.contains("4096 bytes of texts at most, and these are 4097"),
        "{texts}"
    );
}

/// Expressions that the kernel can judge by, unless texts have odd characters.
fn kernel_expr() -> impl Strategy<Value = Expr> {
    let fields: Vec<Field> = Field::ALL
        .into_iter()
        .filter(|field| kernel_field(*field).is_some())
        .collect();
    let test = prop::sample::select(fields).prop_flat_map(|field| {
        demand(field).prop_map(move |demand| {
            Expr::Test(Test {
                field,
                demand,
                at: 0..0,
            })
        })
    });
    let test = test.prop_filter("the kernel judges by it", |e| Compiled::new(e, "").is_ok());
    // What is always so or never is rare otherwise.
    let never = prop::sample::select(vec![Order::Below, Order::AtLeast]).prop_map(|order| {
        Expr::Test(Test {
            field: Field::Cpu,
            demand: Demand::Number(order, 0),
            at: 0..0,
        })
    });
    prop_oneof![6 => test, 1 => never].prop_recursive(5, 30, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|e| Expr::Not(Box::new(e))),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| a.and(b)),
            (inner.clone(), inner).prop_map(|(a, b)| a.or(b)),
        ]
    })
}

/// A record that counts how often it is asked.
struct Counted<'r>(&'r Record, Cell<usize>);

impl judge::Reference for Counted<'_> {
    fn number(&self, field: u16) -> u64 {
        self.1.set(self.1.get() + 1);
        judge::Reference::number(self.0, field)
    }
    fn is(&self, field: u16, text: &[u8]) -> bool {
        self.1.set(self.1.get() + 1);
        self.0.is(field, text)
    }
    fn fits(&self, field: u16, pattern: &[u8]) -> bool {
        self.1.set(self.1.get() + 1);
        self.0.fits(field, pattern)
    }
}

/// A number that is in a list of tests, or nearly.
fn damage() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..12u64,
        1 => any::<u64>(),
        2 => prop::sample::select(vec![0xffff, 0xfffe, 0xfffd, 256, u64::MAX]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_kernel_judges_as_expressions_do(expr in kernel_expr(), records in prop::collection::vec(any_record(), 4)) {
        let printed = expr.to_string();
        let text = match printed.len() <= MOST_KERNEL_BYTES {
            true => printed.as_str(),
            false => "",
        };
        let compiled = Compiled::new(&expr, text);
        prop_assert!(compiled.is_ok(), "{:?}", compiled);
        let compiled = compiled.unwrap();
        prop_assert_eq!(compiled.text(), text);
        prop_assert!(judge::are_good(compiled.tests(), compiled.texts()), "{:?}", compiled);
        prop_assert!(!compiled.tests().is_empty());
        // Nothing is asked in vain: each test but the first one is where another one leads to.
        for at in 1..compiled.tests().len() {
            let leads = |test: &judge::Test| [test.yes, test.no].map(usize::from).contains(&at);
            prop_assert!(compiled.tests()[..at].iter().any(leads), "{:?}", compiled);
        }
        for record in &records {
            prop_assert_eq!(keeps(&compiled, record), expr.holds(record), "{}", expr);
        }
    }

    #[test]
    fn whatever_is_accepted_comes_to_an_end(
        expr in kernel_expr(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..6u8, damage()), 1..4),
        byte in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        record in any_record(),
    ) {
        let compiled = Compiled::new(&expr, "").unwrap();
        let (mut tests, mut texts) = (compiled.tests().to_vec(), compiled.texts().to_vec());
        for (at, part, value) in changes {
            let test = &mut tests[at.index(compiled.tests().len())];
            match part {
                0 => test.field = value as u16,
                1 => test.op = value as u16,
                2 => test.yes = value as u16,
                3 => test.no = value as u16,
                4 => test.low = value,
                _ => test.high = value,
            }
        }
        if let Some((at, value)) = byte.filter(|_| !texts.is_empty()) {
            let at = at.index(texts.len());
            texts[at] = value;
        }
        let good = judge::are_good(&tests, &texts);
        // What a test is about may make no sense, but it must be safe.
        let in_kernel = tests.iter().all(|t| t.field <= judge::LAST_FIELD);
        prop_assert!(in_kernel || !good);
        if good {
            let counted = Counted(&record, Cell::new(0));
            judge::keeps(&tests, &texts, &counted);
            prop_assert!(counted.1.get() <= tests.len());
            prop_assert!(judge::fields(&tests) >> (judge::LAST_FIELD + 1) == 0);
        }
    }
}

#[test]
fn a_filter_that_leads_back_is_none() {
    use rust_mm_trace::judge::{are_good, Test, KEEP, LEAVE};
    let leads = |yes| Test {
        high: 9,
        yes,
        no: LEAVE,
        ..Test::default()
    };
    assert!(are_good(&[leads(1), leads(KEEP)], &[]));
    for (at, yes) in [(0, 0), (1, 0), (1, 1), (1, 2)] {
        let mut tests = [leads(1), leads(KEEP)];
        tests[at].yes = yes;
        assert!(!are_good(&tests, &[]), "test {at} leads to {yes}");
    }
}
