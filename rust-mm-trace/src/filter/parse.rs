//! From text to an expression.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use super::{
    Demand, Expr, Field, Order, Quoted, Subject, Test, Type, MOST_COMM, MOST_TESTS, UNITS,
};

/// Bytes of an expression, at most: a page, which the kernel can take at once.
pub const MOST_BYTES: usize = 4096;
/// Parentheses and `!` inside each other, at most.
pub const MOST_DEPTH: usize = 32;

/// Why a text is no expression, or not one for its purpose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// The place in the text, in bytes. It is empty if something is missing there.
    pub at: Range<usize>,
    /// What is wrong there.
    pub what: String,
    /// What to do about it; may be empty.
    pub help: String,
}

type Result<T> = std::result::Result<T, ParseError>;

fn error<T>(at: Range<usize>, what: impl Into<String>, help: impl Into<String>) -> Result<T> {
    Err(ParseError {
        at,
        what: what.into(),
        help: help.into(),
    })
}

/// Characters before and behind the place that are shown with it.
const AROUND: usize = 60;

impl ParseError {
    /// The message, the line of `text` that it is about with a mark below the place, and the help.
    /// Its lines have no line end behind the last one.
    pub fn shown(&self, text: &str) -> String {
        let before = text.get(..self.at.start).unwrap_or(text);
        let begin = before.rfind('\n').map_or(0, |at| at + 1);
        let line = text[begin..].lines().next().unwrap_or("");
        let column = text.get(begin..self.at.start).unwrap_or("").chars().count();
        let marked = text.get(self.at.clone()).unwrap_or("");
        let width = marked.lines().next().unwrap_or("").chars().count();
        // A long line is cut on both sides.
        let first = match column > AROUND {
            true => column - AROUND,
            false => 0,
        };
        let end = column + AROUND;
        let shown: String = line
            .chars()
            .skip(first)
            .take(end - first)
            // Whoever wrote it may see that a terminal would do something else with it.
            .map(|c| if c.is_control() { '\u{fffd}' } else { c })
            .collect();
        let (left, right) = (
            if first > 0 { "…" } else { "" },
            if line.chars().nth(end).is_some() {
                "…"
            } else {
                ""
            },
        );
        let space = " ".repeat(column - first + left.chars().count());
        let mark = "^".repeat(width.clamp(1, end - column));
        let mut message = format!("{}\n  {left}{shown}{right}\n  {space}{mark}", self.what);
        if !self.help.is_empty() {
            message += "\n  ";
            message += &self.help;
        }
        message
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.at.start)
    }
}

impl std::error::Error for ParseError {}

#[derive(Clone, PartialEq, Debug)]
enum Token {
    Word,
    /// The value, and the unit behind it if there is one.
    Number(u64, String),
    Text(String),
    Order(Order),
    Fits,
    FitsNot,
    In,
    And,
    Or,
    Not,
    Open,
    Close,
    Comma,
    /// `..`
    Until,
    /// `..=`
    Through,
    End,
}

struct Lexer<'t> {
    text: &'t str,
    at: usize,
}

/// Operators, the longer ones first.
const SIGNS: [(&str, Token); 18] = [
    ("..=", Token::Through),
    ("==", Token::Order(Order::Equal)),
    ("!=", Token::Order(Order::Unequal)),
    ("<=", Token::Order(Order::AtMost)),
    (">=", Token::Order(Order::AtLeast)),
    ("!~", Token::FitsNot),
    ("&&", Token::And),
    ("||", Token::Or),
    ("..", Token::Until),
    ("<", Token::Order(Order::Below)),
    (">", Token::Order(Order::Above)),
    ("~", Token::Fits),
    ("!", Token::Not),
    ("(", Token::Open),
    (")", Token::Close),
    (",", Token::Comma),
    // Those of other languages.
    ("[", Token::Open),
    ("]", Token::Close),
];

impl Lexer<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// The next token, and where it is.
    fn next(&mut self) -> Result<(Token, Range<usize>)> {
        let space = self.rest().len() - self.rest().trim_start().len();
        self.at += space;
        let start = self.at;
        let Some(first) = self.rest().chars().next() else {
            return Ok((Token::End, start..start));
        };
        if first.is_ascii_digit() {
            return self.number();
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let rest = self.rest();
            let size = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            self.at += size;
            let at = start..self.at;
            return Ok(match &self.text[at.clone()] {
                "in" => (Token::In, at),
                _ => (Token::Word, at),
            });
        }
        if first == '"' {
            return self.quoted();
        }
        for (sign, token) in SIGNS {
            if !self.rest().starts_with(sign) {
                continue;
            }
            let at = start..start + sign.len();
            if matches!(sign, "[" | "]") {
                return error(
                    at,
                    format!("`{sign}` has no meaning here"),
                    "a list is written in parentheses: pid in (1, 2)",
                );
            }
            self.at = at.end;
            return Ok((token, at));
        }
        let at = start..start + first.len_utf8();
        let (what, help) = match first {
            '=' => ("`=` is no comparison", "did you mean `==`?"),
            '&' => ("`&` is no operator", "did you mean `&&`?"),
            '|' => ("`|` is no operator", "did you mean `||`?"),
            '\'' => (
                "`'` does not begin a text",
                "text is written in double quotes: \"cc1\"",
            ),
            '-' => ("numbers are not negative", ""),
            '.' => (
                "`.` has no meaning here",
                "a range is written START..END, and numbers are whole",
            ),
            _ => ("this character has no meaning here", ""),
        };
        error(at, what, help)
    }

    fn number(&mut self) -> Result<(Token, Range<usize>)> {
        let start = self.at;
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let size = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let at = start..start + size;
        let written = &rest[..size];
        let (digits, radix, unit) = match written.strip_prefix("0x") {
            Some(digits) => (digits, 16, ""),
            None => {
                let unit = written.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
                (&written[..written.len() - unit.len()], 10, unit)
            }
        };
        let plain = digits.replace('_', "");
        let value = match u64::from_str_radix(&plain, radix) {
            Ok(value) => value,
            Err(_) if plain.is_empty() || !plain.chars().all(|c| c.is_digit(radix)) => {
                return error(
                    at,
                    "this is no number",
                    "numbers are decimal, or hexadecimal behind 0x",
                );
            }
            Err(_) => return error(at, "this number is too large: the largest is 2^64 - 1", ""),
        };
        let token = Token::Number(value, unit.into());
        self.at = at.end;
        Ok((token, at))
    }

    fn quoted(&mut self) -> Result<(Token, Range<usize>)> {
        let start = self.at;
        let mut text = String::new();
        let mut chars = self.text[start..].char_indices().skip(1);
        while let Some((i, c)) = chars.next() {
            let at = start + i;
            match c {
                '"' => {
                    self.at = at + 1;
                    return Ok((Token::Text(text), start..self.at));
                }
                '\\' => {
                    let escaped = chars.next().map(|(_, c)| c);
                    match escaped {
                        Some(c @ ('"' | '\\')) => text.push(c),
                        Some('x') => {
                            let digits: String = chars.by_ref().take(2).map(|(_, c)| c).collect();
                            match u8::from_str_radix(&digits, 16) {
                                Ok(code @ 0..=0x7f) if !digits.starts_with('+') => {
                                    text.push(char::from(code));
                                }
                                _ => {
                                    return error(
                                        at..(at + 2).min(self.text.len()),
                                        "`\\x` needs two hexadecimal digits, 7f at most",
                                        "",
                                    );
                                }
                            }
                        }
                        _ => {
                            return error(
                                at..at + 1,
                                "a `\\` in a text stands before `\"`, `\\` or x and two digits",
                                "did you mean `\\\\`?",
                            );
                        }
                    }
                }
                '\n' => break,
                _ => text.push(c),
            }
        }
        error(
            start..start + 1,
            "this text does not end",
            "put a `\"` behind it",
        )
    }
}

struct Parser<'t> {
    lexer: Lexer<'t>,
    token: Token,
    at: Range<usize>,
    depth: usize,
    tests: usize,
}

impl Parser<'_> {
    fn step(&mut self) -> Result<()> {
        (self.token, self.at) = self.lexer.next()?;
        Ok(())
    }

    /// What is written at a place.
    fn written(&self, at: &Range<usize>) -> &str {
        &self.lexer.text[at.clone()]
    }

    /// What is at the present place, for a message.
    fn found(&self) -> String {
        match self.token {
            Token::End => "the expression ends".into(),
            _ => format!("`{}` is", self.written(&self.at)),
        }
    }

    fn any(&mut self) -> Result<Expr> {
        let mut expr = self.all()?;
        while self.token == Token::Or {
            self.step()?;
            expr = expr.or(self.all()?);
        }
        Ok(expr)
    }

    fn all(&mut self) -> Result<Expr> {
        let mut expr = self.one()?;
        while self.token == Token::And {
            self.step()?;
            expr = expr.and(self.one()?);
        }
        Ok(expr)
    }

    fn deeper(&mut self) -> Result<()> {
        self.depth += 1;
        match self.depth > MOST_DEPTH {
            true => error(
                self.at.clone(),
                format!("more than {MOST_DEPTH} parentheses and `!` are inside each other"),
                "",
            ),
            false => Ok(()),
        }
    }

    fn one(&mut self) -> Result<Expr> {
        match self.token {
            Token::Not => {
                self.deeper()?;
                self.step()?;
                if !matches!(self.token, Token::Not | Token::Open) {
                    return error(
                        self.at.clone(),
                        "`!` is followed by parentheses",
                        "what is negated is written !(FIELD == VALUE), or FIELD != VALUE",
                    );
                }
                let inner = self.one()?;
                self.depth -= 1;
                Ok(Expr::Not(Box::new(inner)))
            }
            Token::Open => {
                self.deeper()?;
                let open = self.at.clone();
                self.step()?;
                let inner = self.any()?;
                match self.token {
                    Token::Close => self.step()?,
                    Token::End => {
                        return error(open, "this `(` is not closed", "put a `)` behind its part");
                    }
                    _ => return self.unexpected("`&&`, `||` or `)`"),
                }
                self.depth -= 1;
                Ok(inner)
            }
            Token::Word => Ok(Expr::Test(self.test()?)),
            Token::Text(_) | Token::Number(..) => error(
                self.at.clone(),
                "a comparison begins with a field",
                "the field is on the left: comm == \"cc1\"",
            ),
            _ => error(
                self.at.clone(),
                format!("{} where a comparison should begin", self.found()),
                "a comparison is FIELD OPERATOR VALUE, for example kind == write",
            ),
        }
    }

    /// The error of a token that cannot be here.
    fn unexpected<T>(&self, expected: &str) -> Result<T> {
        let help = match (&self.token, self.written(&self.at)) {
            (Token::Word, "and" | "AND") => "did you mean `&&`?",
            (Token::Word, "or" | "OR") => "did you mean `||`?",
            (Token::Word, "not" | "NOT") => "did you mean `!`?",
            _ => "",
        };
        error(
            self.at.clone(),
            format!("{} here, and {expected} was expected", self.found()),
            help,
        )
    }

    fn test(&mut self) -> Result<Test> {
        let at = self.at.clone();
        let name = self.written(&at).to_owned();
        let Some(field) = Field::ALL.into_iter().find(|f| f.name() == name) else {
            return error(
                at,
                format!("there is no field `{name}`"),
                help_with_field(&name),
            );
        };
        self.tests += 1;
        if self.tests > MOST_TESTS {
            return error(
                at,
                format!("there are more than {MOST_TESTS} comparisons"),
                "a list is one comparison: pid in (1, 2, 3)",
            );
        }
        self.step()?;
        let sign_at = self.at.clone();
        let sign = self.token.clone();
        let demand = match sign {
            Token::Order(order) => {
                self.step()?;
                self.ordered(field, order, sign_at)?
            }
            Token::Fits | Token::FitsNot => {
                if field.values() != Type::Text {
                    return error(
                        sign_at.clone(),
                        format!(
                            "`{}` compares text with a pattern, and `{name}` is {}",
                            self.written(&sign_at),
                            described(field)
                        ),
                        "",
                    );
                }
                self.step()?;
                Demand::Glob {
                    negated: sign == Token::FitsNot,
                    pattern: self.text(field)?,
                }
            }
            Token::In => {
                self.step()?;
                self.within(field)?
            }
            _ => {
                let signs = match field.values() {
                    Type::Number | Type::Time => "==, !=, <, <=, >, >= or in",
                    Type::Ancestors | Type::Word(_) => "==, != or in",
                    Type::Text => "==, !=, ~, !~ or in",
                };
                return self.unexpected(signs);
            }
        };
        Ok(Test { field, demand, at })
    }

    fn ordered(&mut self, field: Field, order: Order, at: Range<usize>) -> Result<Demand> {
        let equality = matches!(order, Order::Equal | Order::Unequal);
        if !equality && !matches!(field.values(), Type::Number | Type::Time) {
            return error(
                at,
                format!(
                    "`{}` has no order: it is {}",
                    field.name(),
                    described(field)
                ),
                "it is compared by ==, != or in",
            );
        }
        let negated = order == Order::Unequal;
        Ok(match field.values() {
            Type::Number | Type::Time | Type::Ancestors => Demand::Number(
                order,
                match equality {
                    true => self.possible(field)?,
                    false => self.number(field)?,
                },
            ),
            Type::Text => Demand::Text {
                negated,
                text: self.name(field)?,
            },
            Type::Word(_) => Demand::Word {
                negated,
                word: self.word(field)?,
            },
        })
    }

    /// What is behind `in`.
    fn within(&mut self, field: Field) -> Result<Demand> {
        let is_number = matches!(field.values(), Type::Number | Type::Time | Type::Ancestors);
        if self.token != Token::Open {
            return match (is_number, &self.token) {
                (true, Token::Number(..)) => Ok(Demand::NumberIn(vec![self.range(field)?])),
                (true, _) => self.unexpected("a range START..END or a list in parentheses"),
                _ => self.unexpected("a list in parentheses"),
            };
        }
        let open = self.at.clone();
        self.step()?;
        let (mut ranges, mut texts, mut words) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            match field.values() {
                _ if is_number => ranges.push(self.range(field)?),
                Type::Text => texts.push(self.name(field)?),
                _ => words.push(self.word(field)?),
            }
            match self.token {
                Token::Comma => self.step()?,
                Token::Close => break,
                Token::End => {
                    return error(open, "this `(` is not closed", "put a `)` behind its part");
                }
                _ => return self.unexpected("`,` or `)`"),
            }
        }
        self.step()?;
        Ok(match field.values() {
            _ if is_number => Demand::NumberIn(ranges),
            Type::Text => Demand::TextIn(texts),
            _ => Demand::WordIn(words),
        })
    }

    /// A number or a range.
    fn range(&mut self, field: Field) -> Result<RangeInclusive<u64>> {
        let at = self.at.clone();
        let start = self.possible(field)?;
        let through = match self.token {
            Token::Until => false,
            Token::Through => true,
            _ => return Ok(start..=start),
        };
        self.step()?;
        let at = at.start..self.at.end;
        let end = self.number(field)?;
        let last = match through {
            true => Some(end),
            false => end.checked_sub(1),
        };
        match last.filter(|&last| start <= last) {
            Some(last) => Ok(start..=last),
            None => error(
                at,
                "this range is empty",
                "START..END has START and what is below END; START..=END has END too",
            ),
        }
    }

    /// A number that the field can have.
    fn possible(&mut self, field: Field) -> Result<u64> {
        let at = self.at.clone();
        let value = self.number(field)?;
        let most = field.most();
        match value > most {
            true => error(
                at,
                format!("`{}` is never {value}: the largest is {most}", field.name()),
                "",
            ),
            false => Ok(value),
        }
    }

    fn number(&mut self, field: Field) -> Result<u64> {
        let at = self.at.clone();
        let Token::Number(value, unit) = self.token.clone() else {
            let wanted = match field.values() {
                Type::Time => "a time such as 5ms",
                _ => "a number",
            };
            if matches!(self.token, Token::Text(_)) {
                let what = format!("`{}` is compared with {wanted}, not text", field.name());
                return error(at, what, "");
            }
            return self.unexpected(wanted);
        };
        self.step()?;
        if field.values() != Type::Time {
            return match unit.is_empty() {
                true => Ok(value),
                false => error(
                    at,
                    format!("`{}` has no unit `{unit}`", field.name()),
                    "numbers are decimal, or hexadecimal behind 0x",
                ),
            };
        }
        let size = UNITS.iter().find(|(name, _)| *name == unit);
        let Some((_, size)) = size else {
            let what = match unit.is_empty() {
                true => "this time has no unit".into(),
                false => format!("there is no unit `{unit}`"),
            };
            return error(at, what, "the units are ns, us, ms and s");
        };
        match value.checked_mul(*size) {
            Some(ns) => Ok(ns),
            None => error(at, "this time is too large: the largest is 2^64 - 1 ns", ""),
        }
    }

    /// A text that the field can have.
    fn name(&mut self, field: Field) -> Result<String> {
        let at = self.at.clone();
        let text = self.text(field)?;
        if field != Field::Comm {
            return Ok(text);
        }
        let (mut short, mut bytes) = (String::new(), 0);
        for c in text.chars() {
            bytes += match c {
                // A byte that is no UTF-8.
                char::REPLACEMENT_CHARACTER => 1,
                c => c.len_utf8(),
            };
            if bytes > MOST_COMM {
                return error(
                    at,
                    format!("`comm` is never so long: names have {MOST_COMM} bytes at most"),
                    format!("did you mean `{}`?", Quoted(&short)),
                );
            }
            short.push(c);
        }
        Ok(text)
    }

    fn text(&mut self, field: Field) -> Result<String> {
        let text = match &self.token {
            Token::Text(text) => text.clone(),
            Token::Word | Token::Number(..) => {
                let word = self.written(&self.at);
                return error(
                    self.at.clone(),
                    format!("`{}` is compared with text in quotes", field.name()),
                    format!("did you mean `\"{word}\"`?"),
                );
            }
            _ => return self.unexpected("text in double quotes"),
        };
        self.step()?;
        Ok(text)
    }

    fn word(&mut self, field: Field) -> Result<u8> {
        let Type::Word(words) = field.values() else {
            return self.unexpected("a word");
        };
        let at = self.at.clone();
        let all = || {
            let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
            format!("`{}` is one of: {}", field.name(), names.join(", "))
        };
        let written = match &self.token {
            Token::Word | Token::In => self.written(&at).to_owned(),
            Token::Text(text) => {
                let is_one = words.iter().any(|(name, _)| name == text);
                let help = match is_one {
                    true => format!("did you mean `{text}`?"),
                    false => all(),
                };
                return error(
                    at,
                    format!("`{}` is compared with a word without quotes", field.name()),
                    help,
                );
            }
            Token::End => return error(at, "the expression ends before a word", all()),
            _ => return error(at, format!("{} no word", self.found()), all()),
        };
        let Some((_, number)) = words.iter().find(|(name, _)| *name == written) else {
            let near = near(&written, words.iter().map(|(name, _)| *name));
            let help = match near {
                Some(name) => format!("did you mean `{name}`?"),
                None => all(),
            };
            return error(at, format!("`{}` is never `{written}`", field.name()), help);
        };
        self.step()?;
        Ok(*number)
    }
}

/// The values of a field, in words.
fn described(field: Field) -> &'static str {
    match field.values() {
        Type::Number => "a number",
        Type::Time => "a time",
        Type::Ancestors => "a set of process ids",
        Type::Text => "text",
        Type::Word(_) => "a word",
    }
}

/// What others call the fields.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("access", "kind"),
    ("address", "addr"),
    ("ancestor", "tree"),
    ("exe", "comm"),
    ("file", "mapping"),
    ("name", "comm"),
    ("object", "mapping"),
    ("path", "mapping"),
    ("ppid", "tree"),
    ("process", "pid"),
    ("tgid", "pid"),
    ("thread", "tid"),
    ("timestamp", "time"),
    ("type", "event"),
    ("vaddr", "addr"),
    ("vpn", "page"),
];

fn help_with_field(name: &str) -> String {
    if matches!(name.to_ascii_lowercase().as_str(), "and" | "or" | "not") {
        return "the operators are &&, || and !".into();
    }
    let lower = name.to_ascii_lowercase();
    let other = OTHER_NAMES.iter().find(|(other, _)| *other == lower);
    let names = Field::ALL.map(Field::name);
    match other
        .map(|(_, name)| *name)
        .or_else(|| near(name, names.into_iter()))
    {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the fields are: {}", names.join(", ")),
    }
}

/// The name that a misspelled one is most like, if it is like one.
fn near(written: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    // Names are short, and so is what is like one.
    if written.len() > 32 {
        return None;
    }
    let lower = written.to_ascii_lowercase();
    let wrong = |name: &&str| distance(&lower, name);
    let best = names.min_by_key(wrong)?;
    let most = best.len().max(lower.len()).div_ceil(3).min(3);
    (wrong(&best) <= most && wrong(&best) < best.len()).then_some(best)
}

/// How many characters must be added, left out, changed or exchanged with their neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut rows = [vec![0; b.len() + 1], (0..=b.len()).collect(), Vec::new()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let last = &rows[1];
            let changed = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[0][j - 2] + 1);
            }
            row.push(least);
        }
        rows[2] = row;
        rows.rotate_left(1);
    }
    rows[1][b.len()]
}

impl Expr {
    /// Parses an expression.
    ///
    /// # Errors
    ///
    /// The first place where the text is no expression, or where a value has another type than its
    /// field.
    pub fn parse(text: &str) -> Result<Expr> {
        if text.len() > MOST_BYTES {
            return error(
                0..0,
                format!("an expression has {MOST_BYTES} bytes at most"),
                "a list or a pattern may say the same in fewer",
            );
        }
        let mut parser = Parser {
            lexer: Lexer { text, at: 0 },
            token: Token::End,
            at: 0..0,
            depth: 0,
            tests: 0,
        };
        parser.step()?;
        if parser.token == Token::End {
            return error(
                0..0,
                "the expression is empty",
                "a comparison is FIELD OPERATOR VALUE, for example kind == write",
            );
        }
        let expr = parser.any()?;
        match parser.token {
            Token::End => Ok(expr),
            Token::Close => error(parser.at, "this `)` closes nothing", ""),
            _ => parser.unexpected("`&&`, `||` or the end"),
        }
    }

    /// Checks that records of this kind have all fields of the expression.
    ///
    /// # Errors
    ///
    /// The first field that they do not have.
    pub fn check_for(&self, subject: Subject) -> Result<()> {
        let Some(test) = self.first(|field| !field.is_of(subject)) else {
            return Ok(());
        };
        let (have, others) = match subject {
            Subject::References => ("references", "events"),
            Subject::Events => ("events", "references"),
        };
        let fields: Vec<&str> = Field::ALL
            .into_iter()
            .filter(|field| field.is_of(subject))
            .map(Field::name)
            .collect();
        error(
            test.at.clone(),
            format!(
                "{have} have no `{}`, which is a field of {others}",
                test.field.name()
            ),
            format!("the fields of {have} are: {}", fields.join(", ")),
        )
    }
}

impl FromStr for Expr {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Expr> {
        Expr::parse(text)
    }
}
