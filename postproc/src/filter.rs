//! The references or events that a filter keeps: `--where`.
//!
//! The language is [`rust_mm_trace::filter`]. A reference is judged by what the events before it
//! say: the name that its thread has at that moment, the mapping in which it lies at that moment.
//! That is the [`World`] of a pass, which knows all events up to the reference.
//!
//! Comparisons with names are not made for each reference, but once for each thread until an event
//! changes something about threads, and once for each mapped object. What is left of the expression
//! for a thread and an object is remembered. For most expressions that is only whether all their
//! references fit.

use std::ops::Range;
use std::str::FromStr;

use rust_mm_trace::filter::{
    Demand, Expr, Field, NOT_MAPPED, Next, ParseError, Program, Subject, Test, UNKNOWN_KIND,
    Values, class_word,
};
use rust_mm_trace::uapi;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::error::{self, Error};
use crate::pipeline::{Place, World, is_reference};
use crate::process::Tasks;
use crate::space::Space;
use crate::streams::Whose;
use crate::trace::{Body, Event, MapKind, Ref, Trace};
use crate::units::{Mm, Tid};

/// An expression as the user wrote it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Clause {
    text: String,
    expr: Expr,
    /// The options that it is from.
    by: String,
}

impl Clause {
    /// Parses an expression that selects references or events.
    ///
    /// # Errors
    ///
    /// What is wrong, with the place in the text: see [`ParseError::shown`].
    pub fn parse(text: &str, subject: Subject) -> Result<Clause, String> {
        let expr = Expr::from_str(text);
        let checked = expr.and_then(|expr| expr.check_for(subject).map(|()| expr));
        match checked {
            Ok(expr) => Ok(Clause {
                text: text.into(),
                expr,
                by: "--where".into(),
            }),
            Err(error) => Err(error.shown(text)),
        }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same, from these options and not from `--where` alone.
    pub fn by(self, by: String) -> Clause {
        Clause { by, ..self }
    }

    /// The expression.
    pub fn expr(&self) -> &Expr {
        &self.expr
    }

    /// Refuses fields that mean nothing for some purpose.
    ///
    /// # Errors
    ///
    /// The reason, with the place of the first of these fields.
    pub fn refuse(&self, fields: &[Field], why: &str) -> Result<(), String> {
        let Some(test) = self.expr.first(|field| fields.contains(&field)) else {
            return Ok(());
        };
        let error = ParseError {
            at: test.at.clone(),
            what: format!("--where: {why}"),
            help: String::new(),
        };
        Err(error.shown(&self.text))
    }
}

/// References that are taken instead of all, for a result that is kept and put together with others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// Which references of this trace.
    pub clause: Clause,
    /// The options that select them, in the same words for each trace: what was chosen by the same words
    /// can be put together.
    pub words: String,
    /// The time that is selected, in ns from the beginning of the trace; without an end, up to
    /// [`u64::MAX`].
    pub time: Range<u64>,
}

impl Chosen {
    /// How long the selected time is, of a trace of this length.
    pub fn length(&self, whole: u64) -> u64 {
        self.time.end.min(whole).saturating_sub(self.time.start)
    }

    /// Demands that something is taken of a trace.
    ///
    /// # Errors
    ///
    /// [`Error::NothingSelected`].
    pub fn demand(&self, trace: &Trace, taken: u64, filtered: &Filtered) -> error::Result<()> {
        match taken {
            0 => Err(Error::NothingSelected {
                path: trace.path().into(),
                why: filtered.keeps_none(&self.words, |n| n.to_string()),
            }),
            _ => Ok(()),
        }
    }
}

/// What a filter has kept, and what it has left out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Filtered {
    /// The expression, as the user wrote it.
    #[serde(rename = "where")]
    pub text: String,
    /// The options that it is from.
    #[serde(skip)]
    pub by: String,
    /// References or events that fit.
    pub kept: u64,
    /// Those that do not.
    pub left_out: u64,
    /// What to write instead, if names of files were demanded that this trace cannot have.
    #[serde(skip)]
    pub instead: Option<String>,
}

impl Filtered {
    /// Says that nothing is kept, and what to do about it.
    pub fn keeps_none(&self, by: &str, grouped: impl Fn(u64) -> String) -> String {
        let instead = self.instead.iter().map(|text| format!("; {text}"));
        format!(
            "{by} keeps no reference: all {} are left out{}",
            grouped(self.left_out),
            instead.collect::<String>()
        )
    }
}

/// What to write instead of names of files with directories, if there are any.
fn instead(expr: &Expr) -> Option<String> {
    /// Names that are proposed at most.
    const PROPOSED: usize = 3;
    let names = expr.in_directories();
    let mut text = String::from("names of files have no directories in this trace");
    let is_name = |last: &str| !last.chars().all(|c| "*?".contains(c));
    let named = names.iter().filter(|(_, last)| is_name(last));
    for (at, (wrong, right)) in named.take(PROPOSED).enumerate() {
        text += if at == 0 { ": write " } else { ", " };
        text += &format!("{right} instead of {wrong}");
    }
    (!names.is_empty()).then_some(text)
}

/// Why a filter is none of the kernel's.
const NOT_KERNEL: &str = "the kernel cannot judge references by this";

impl Clause {
    /// Parses the expression of a filter of the kernel, as a trace has it.
    ///
    /// # Errors
    ///
    /// What is wrong, with the place in the text. The kernel knows only fields of the reference, its
    /// thread and its mapping: see `VMTRACE_FIELD_*`.
    pub fn of_kernel(text: &str) -> Result<Clause, String> {
        let clause = Clause::parse(text, Subject::References)?;
        let unknown = clause.expr.tests().into_iter().find(|t| !is_of_kernel(t));
        match unknown {
            None => Ok(clause),
            Some(test) => Err(ParseError {
                at: test.at.clone(),
                what: NOT_KERNEL.into(),
                help: String::new(),
            }
            .shown(text)),
        }
    }
}

/// Whether the kernel can make a comparison.
fn is_of_kernel(test: &Test) -> bool {
    let words: &[u8] = match test.field {
        Field::Pid
        | Field::Tid
        | Field::Comm
        | Field::Addr
        | Field::Page
        | Field::Mode
        | Field::Cpu
        | Field::Set
        | Field::Mapping => &[],
        // It judges a reference when that begins a stay, in a mapping.
        Field::Kind => &[uapi::VMTRACE_REF_SEEN as u8],
        Field::MappingKind => &[NOT_MAPPED, UNKNOWN_KIND],
        _ => return false,
    };
    match &test.demand {
        Demand::Word { word, .. } => !words.contains(word),
        Demand::WordIn(these) => !these.iter().any(|word| words.contains(word)),
        _ => true,
    }
}

/// A filter of the kernel, and from where on it was in force.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct InForce {
    /// The number of the event that says so. Records with greater numbers fit it.
    pub from_seq: u64,
    /// The expression; empty if everything was recorded.
    pub text: String,
}

/// The kernel's filters that events of a trace name, in their order. Two events in a row with the same
/// filter count as one.
#[derive(Clone, Default, Debug)]
pub struct Filters(Vec<InForce>);

impl Filters {
    /// Follows an event. All events must be followed, in their order.
    pub fn apply(&mut self, event: &Event<'_>) {
        let Body::Filter { expr, .. } = event.body else {
            return;
        };
        let text = String::from_utf8_lossy(expr);
        if self.0.last().is_none_or(|last| last.text != text) {
            self.0.push(InForce {
                from_seq: event.seq,
                text: text.into_owned(),
            });
        }
    }
}

/// What filters of the kernel have left out of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LeftOut {
    /// The filters, in their order.
    pub filter: Vec<InForce>,
    /// Records of references that they left out; `None` if that is not known.
    pub left_out: Option<u64>,
    /// These, and those that are in the trace.
    pub of: Option<u64>,
    /// Whether there may be any.
    #[serde(skip)]
    pub is_any: bool,
}

/// Filters that a line names.
const NAMED: usize = 4;

impl LeftOut {
    /// What the kernel says, and the filters that were met in a pass; `None` if the trace cannot have
    /// a filter.
    pub fn of(trace: &Trace, filters: &Filters) -> Option<Self> {
        if !trace.header().is_filtered() {
            return None;
        }
        let told = trace.left_out_by_kernel();
        let refs = trace.index().end.as_ref().map_or(0, |end| end.status.refs);
        let filters = &filters.0;
        Some(LeftOut {
            left_out: told,
            of: told.map(|left_out| refs.saturating_add(left_out)),
            is_any: trace.may_lack_references()
                && (told.is_some() || filters.iter().any(|one| !one.text.is_empty())),
            filter: filters.clone(),
        })
    }

    /// The same in a line. `grouped` writes numbers.
    pub fn text(&self, grouped: impl Fn(u64) -> String) -> String {
        let mut line = match (self.left_out, self.of) {
            (Some(left_out), Some(of)) => format!(
                "filter: {} of {} records of references were left out by: ",
                grouped(left_out),
                grouped(of)
            ),
            _ => "filter: an unknown number of references was left out by: ".into(),
        };
        for (at, one) in self.filter.iter().take(NAMED).enumerate() {
            if at > 0 {
                line += &format!("; from sequence number {} on by: ", grouped(one.from_seq));
            }
            if one.text.is_empty() {
                line += "nothing, for all are recorded";
            }
            // Whoever wrote it may see that a terminal would do something else with it.
            let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
            line.extend(one.text.chars().map(shown));
        }
        match self.filter.len() {
            0 => line += "a filter that the trace does not tell",
            more if more > NAMED => {
                line += &format!("; and by {} more", grouped((more - NAMED) as u64));
            }
            _ => {}
        }
        line
    }
}

/// The names that [`Space`] gives to anonymous mappings that have none. The kernel gives them to
/// others: it looks at the mapping, and not at the events about it.
const NAMELESS: [&str; 3] = ["[heap]", "[stack]", "[anon]"];

/// The numbers of windows by the first sequence number of each.
#[derive(Default)]
struct Windows(Vec<(u64, u64)>);

impl Windows {
    fn of(trace: &Trace) -> Self {
        Windows(match (trace.window(), trace.header().windows) {
            (Some(number), _) => vec![(0, number.into())],
            (None, Some(_)) => trace.windows(),
            (None, None) => Vec::new(),
        })
    }

    /// The window that a record is in; 0 if the trace has no windows.
    fn at(&self, seq: u64) -> u64 {
        let behind = self.0.partition_point(|(first, _)| *first <= seq);
        behind
            .checked_sub(1)
            .and_then(|at| self.0.get(at))
            .map_or(0, |(_, number)| *number)
    }
}

/// What does not change during a pass.
#[derive(Default)]
struct Fixed {
    windows: Windows,
    start_ns: u64,
    page_shift: u32,
}

impl Fixed {
    fn of(trace: &Trace) -> Self {
        Fixed {
            windows: Windows::of(trace),
            start_ns: trace.header().start_time_ns,
            page_shift: trace.header().page_shift,
        }
    }
}

/// A reference, and the world at its moment.
struct Reference<'r> {
    r: &'r Ref,
    place: &'r Place,
    world: &'r World,
    fixed: &'r Fixed,
    /// Another name for its mapping.
    called: Option<&'r str>,
}

impl Values for Reference<'_> {
    fn number(&self, field: Field) -> u64 {
        let r = self.r;
        match field {
            Field::Pid => Whose::of(r.tid(), self.world).tgid(self.world).0.into(),
            Field::Tid => r.tid().0.into(),
            Field::Addr => r.exact(),
            Field::Page => r.vpn(self.fixed.page_shift).0,
            Field::Set => r.set.into(),
            Field::Cpu => r.cpu().into(),
            Field::Window => self.fixed.windows.at(r.seq),
            Field::Time => r.time_ns.saturating_sub(self.fixed.start_ns),
            Field::Seq => r.seq,
            _ => 0,
        }
    }

    fn text(&self, field: Field) -> &str {
        match field {
            Field::Comm => self.world.tasks.comm(self.r.tid()),
            Field::Process => {
                let first = Whose::of(self.r.tid(), self.world).tgid(self.world);
                self.world.tasks.comm(first)
            }
            Field::Cgroup => self.world.tasks.cgroup(self.r.tid()),
            Field::Mapping => match self.called {
                Some(name) => name,
                None => mapped_name(self.r, self.place, &self.world.space),
            },
            _ => "",
        }
    }

    fn word(&self, field: Field) -> u8 {
        let flags = self.r.flags();
        match field {
            Field::Kind => (u32::from(flags.0) & uapi::VMTRACE_REF_KIND) as u8,
            Field::Mode => flags.kernel().into(),
            Field::MappingKind => match self.place {
                Place::Mapped { object, .. } => {
                    let kind = self.world.space.object(*object).kind;
                    kind.number().map_or(UNKNOWN_KIND, |number| number as u8)
                }
                _ => NOT_MAPPED,
            },
            _ => 0,
        }
    }

    fn any_ancestor(&self, fits: &mut dyn FnMut(u64) -> bool) -> bool {
        match Whose::of(self.r.tid(), self.world) {
            Whose::Process(id) => {
                let tasks = &self.world.tasks;
                tasks.any_ancestor(id, &mut |tgid| fits(tgid.0.into()))
            }
            Whose::Thread(tid) => fits(tid.0.into()),
        }
    }
}

/// The name of the mapping in which a reference lies; empty if it lies in none.
fn mapped_name<'w>(r: &Ref, place: &Place, space: &'w Space) -> &'w str {
    let Place::Mapped { object, .. } = place else {
        return "";
    };
    let object = space.object(*object);
    let mapping = match object.has_aliases {
        true => space.get(r.mm).and_then(|s| s.find(r.address())),
        false => None,
    };
    mapping.map_or(&object.name, |mapping| space.name(&mapping))
}

/// What is left of the expression for a thread and a mapping.
#[derive(Clone, Copy)]
struct Line {
    tid: Tid,
    place: u64,
    epoch: u64,
    from: Next,
    holding: u64,
}

const LINES: usize = 1 << 10;

/// Judges the references of a pass.
pub struct Filter {
    text: String,
    by: String,
    expr: Expr,
    program: Program,
    fixed: Fixed,
    lines: Vec<Line>,
    /// Which comparisons about threads hold, and until when that is known: [`Tasks::epoch`].
    tasks: FxHashMap<Tid, (u64, u64)>,
    /// Which comparisons about mappings hold.
    mappings: FxHashMap<u64, u64>,
    /// Whether a mapping's name is a path.
    has_paths: bool,
    /// Whether the present stay of a page is kept, if renewals are judged.
    stays: Option<FxHashMap<(Mm, u64), bool>>,
    kept: u64,
    left_out: u64,
}

impl Filter {
    /// Judges by an expression.
    pub fn new(clause: &Clause) -> Self {
        let none = Line {
            tid: Tid(0),
            place: 0,
            epoch: 0,
            from: Next::Reject,
            holding: 0,
        };
        Filter {
            text: clause.text.clone(),
            by: clause.by.clone(),
            expr: clause.expr.clone(),
            program: Program::new(&clause.expr),
            fixed: Fixed::default(),
            lines: vec![none; LINES],
            tasks: FxHashMap::default(),
            mappings: FxHashMap::default(),
            has_paths: false,
            stays: None,
            kept: 0,
            left_out: 0,
        }
    }

    /// Judges the references of the world of a pass that has begun, by an expression of
    /// [`Clause::of_kernel`].
    pub(crate) fn within(clause: &Clause, world: &World) -> Self {
        Filter {
            fixed: Fixed {
                windows: Windows::default(),
                start_ns: world.header.start_time_ns,
                page_shift: world.header.page_shift,
            },
            ..Filter::new(clause)
        }
    }

    /// Whether the expression is about tasks, and whether it is about mappings.
    pub(crate) fn is_about(&self) -> (bool, bool) {
        (self.program.tasks() != 0, self.program.mappings() != 0)
    }

    /// Whether a reference is to an anonymous mapping without a name of its own, and the verdict would
    /// be another one if that had another of the names that such mappings get.
    pub(crate) fn depends_on_anon(&self, r: &Ref, place: &Place, world: &World) -> bool {
        let Place::Mapped { object, .. } = place else {
            return false;
        };
        let name = mapped_name(r, place, &world.space);
        if world.space.object(*object).kind != MapKind::Anon || !NAMELESS.contains(&name) {
            return false;
        }
        let verdict = |called| {
            self.expr.holds(&Reference {
                r,
                place,
                world,
                fixed: &self.fixed,
                called: Some(called),
            })
        };
        let first = verdict(name);
        NAMELESS.into_iter().any(|name| verdict(name) != first)
    }

    /// Before a pass over this trace, in which renewals are judged too if `renewals`.
    pub fn begin(&mut self, trace: &Trace, renewals: bool) {
        self.fixed = Fixed::of(trace);
        self.stays = renewals.then(FxHashMap::default);
    }

    /// What was kept and left out so far. Only references are counted, not renewals.
    pub fn filtered(&self) -> Filtered {
        Filtered {
            text: self.text.clone(),
            by: self.by.clone(),
            kept: self.kept,
            left_out: self.left_out,
            instead: (self.kept == 0 && !self.has_paths)
                .then(|| instead(&self.expr))
                .flatten(),
        }
    }

    /// Whether a record is kept.
    ///
    /// A renewal is judged as the reference that began its stay, so that stays are kept or left
    /// out as wholes.
    #[inline]
    pub fn judge(&mut self, r: &Ref, place: &Place, world: &World) -> bool {
        if self.stays.is_some() {
            return self.judge_stay(r, place, world);
        }
        let keep = self.fits(r, place, world);
        self.count(keep, r, place);
        keep
    }

    fn count(&mut self, keep: bool, r: &Ref, place: &Place) {
        let counted = u64::from(is_reference(r, place));
        self.kept += counted & u64::from(keep);
        self.left_out += counted & u64::from(!keep);
    }

    fn judge_stay(&mut self, r: &Ref, place: &Place, world: &World) -> bool {
        let page = (r.mm, r.address());
        let stay = self.stays.as_ref().and_then(|stays| stays.get(&page));
        let keep = match stay.filter(|_| r.flags().continues()) {
            Some(&keep) => keep,
            None => self.fits(r, place, world),
        };
        if let Some(stays) = &mut self.stays {
            stays.insert(page, keep);
        }
        self.count(keep, r, place);
        keep
    }

    /// Whether a record fits the expression, by the definition and without anything remembered. It
    /// is slow, and for comparisons.
    pub fn by_definition(&self, r: &Ref, place: &Place, world: &World) -> bool {
        self.expr.holds(&Reference {
            r,
            place,
            world,
            fixed: &self.fixed,
            called: None,
        })
    }

    /// Whether a record fits the expression.
    #[inline]
    pub fn fits(&mut self, r: &Ref, place: &Place, world: &World) -> bool {
        let (mut tid, mut epoch) = (Tid(0), 1);
        if self.program.tasks() != 0 {
            (tid, epoch) = (r.tid(), world.tasks.epoch() + 1);
        }
        let key = match self.program.mappings() {
            0 => 0,
            _ => place_key(r, place, &world.space),
        };
        let hash = u64::from(tid.0).wrapping_mul(0x9e37_79b9) ^ key ^ key >> 32;
        let at = hash as usize % LINES;
        let line = &self.lines[at];
        if line.epoch != epoch || line.tid != tid || line.place != key {
            self.look_up(at, (tid, key, epoch), r, place, world);
        }
        let line = &self.lines[at];
        match line.from {
            Next::Accept => true,
            Next::Reject => false,
            from => {
                let known = self.program.tasks() | self.program.mappings();
                let of = Reference {
                    r,
                    place,
                    world,
                    fixed: &self.fixed,
                    called: None,
                };
                self.program.resume(from, known, line.holding, &of)
            }
        }
    }

    /// Fills a line.
    #[cold]
    fn look_up(
        &mut self,
        at: usize,
        (tid, key, epoch): (Tid, u64, u64),
        r: &Ref,
        place: &Place,
        world: &World,
    ) {
        let (program, fixed) = (&self.program, &self.fixed);
        let of = Reference {
            r,
            place,
            world,
            fixed,
            called: None,
        };
        let (tasks, mappings) = (program.tasks(), program.mappings());
        let mut holding = 0;
        if tasks != 0 {
            let known = self.tasks.entry(tid).or_default();
            if known.0 != epoch {
                *known = (epoch, program.results(tasks, &of));
            }
            holding |= known.1;
        }
        if mappings != 0 {
            let has_paths = &mut self.has_paths;
            let results = || {
                // Shared memory without a name is "dev/zero", which is no path.
                *has_paths |= of.text(Field::Mapping).starts_with('/');
                program.results(mappings, &of)
            };
            holding |= *self.mappings.entry(key).or_insert_with(results);
        }
        self.lines[at] = Line {
            tid,
            place: key,
            epoch,
            from: program.decided(tasks | mappings, holding),
            holding,
        };
    }
}

/// A number for what comparisons about mappings depend on: the object, and the name by which it is
/// mapped if it has several.
fn place_key(r: &Ref, place: &Place, space: &Space) -> u64 {
    let Place::Mapped { object, .. } = place else {
        return u64::MAX;
    };
    let key = u64::from(object.0);
    if !space.object(*object).has_aliases {
        return key;
    }
    let mapping = space.get(r.mm).and_then(|s| s.find(r.address()));
    let alias = mapping.and_then(|mapping| mapping.alias);
    key | alias.map_or(0, |alias| (u64::from(alias.number()) + 1) << 32)
}

/// Judges the events of a trace.
pub struct EventFilter {
    text: String,
    by: String,
    program: Program,
    fixed: Fixed,
    tasks: Tasks,
    /// If the expression is about sets.
    space: Option<Space>,
    kept: u64,
    left_out: u64,
}

impl EventFilter {
    /// Judges the events of a trace by an expression.
    pub fn new(clause: &Clause, trace: &Trace) -> Self {
        let program = Program::new(&clause.expr);
        EventFilter {
            text: clause.text.clone(),
            by: clause.by.clone(),
            fixed: Fixed::of(trace),
            tasks: Tasks::default(),
            space: program.uses(Field::Set).then(Space::default),
            program,
            kept: 0,
            left_out: 0,
        }
    }

    /// Follows an event. All events must be followed, in their order.
    pub fn follow(&mut self, event: &Event<'_>) {
        self.tasks.apply(event);
        if let Some(space) = &mut self.space {
            space.apply(event);
        }
    }

    /// Whether the event that was followed last is kept. It is judged by what holds after it: exec
    /// has the name of the new program.
    pub fn judge(&mut self, event: &Event<'_>) -> bool {
        let keep = self.program.accepts(&Happened {
            event,
            filter: self,
        });
        self.kept += u64::from(keep);
        self.left_out += u64::from(!keep);
        keep
    }

    /// What was kept and left out so far.
    pub fn filtered(&self) -> Filtered {
        Filtered {
            text: self.text.clone(),
            by: self.by.clone(),
            kept: self.kept,
            left_out: self.left_out,
            instead: None,
        }
    }
}

/// An event, and the world after it.
struct Happened<'e> {
    event: &'e Event<'e>,
    filter: &'e EventFilter,
}

impl Values for Happened<'_> {
    fn number(&self, field: Field) -> u64 {
        let (event, fixed) = (self.event, &self.filter.fixed);
        match field {
            Field::Pid => event.tgid.0.into(),
            Field::Tid => event.tid.0.into(),
            Field::Set => {
                let space = self.filter.space.as_ref();
                space.map_or(0, |space| space.set_of(event.mm).into())
            }
            Field::Cpu => event.cpu.into(),
            Field::Window => fixed.windows.at(event.seq),
            Field::Time => event.time_ns.saturating_sub(fixed.start_ns),
            Field::Seq => event.seq,
            _ => 0,
        }
    }

    fn text(&self, field: Field) -> &str {
        match field {
            Field::Comm => self.filter.tasks.comm(self.event.tid),
            Field::Process => self.filter.tasks.comm(self.event.tgid),
            Field::Cgroup => self.filter.tasks.cgroup(self.event.tid),
            _ => "",
        }
    }

    fn word(&self, field: Field) -> u8 {
        match field {
            // Words have numbers of seven bits, and an event of any other number has no name.
            Field::Event => u8::try_from(self.event.number).unwrap_or(u8::MAX),
            Field::Class => class_word(self.event.number),
            _ => 0,
        }
    }

    fn any_ancestor(&self, fits: &mut dyn FnMut(u64) -> bool) -> bool {
        let tasks = &self.filter.tasks;
        match tasks.find(self.event.tid) {
            Some(id) => tasks.any_ancestor(id, &mut |tgid| fits(tgid.0.into())),
            None => fits(self.event.tgid.0.into()),
        }
    }
}
