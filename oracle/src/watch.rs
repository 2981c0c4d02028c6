//! Turns what happens in the guest into calls of the model: whose access it is, which
//! fault is an attempt, and what ends a stay.
//!
//! This is for a guest with one CPU. The page and the kind of access of a fault are known
//! when the fault is taken. Whether the fault is granted is known when the kernel's fault
//! handler returns. In between, the task may sleep and other tasks may run. So an attempt
//! is kept under the kernel stack that handles it, and counts at the moment at which it
//! is granted.
//!
//! If an access lies on two pages and faults on the second, the CPU has looked up the
//! first page already. It has set the accessed bit of the first page, and the dirty bit
//! if the access is a store. For a fetch, the instruction's address shows that there is a
//! first page. For a load or store, the page fault does not show it. So if a load or store
//! faults at the first byte of a page, and a reference to the page before would add
//! information, the accessed bit of the page before is *given* by the kernel. When the
//! access is repeated, it must agree with that bit.
//!
//! An interrupt before a fetch is a similar case. The CPU may or may not have looked up
//! the instruction that it was to execute next. If other tasks run then and the page loses
//! its place, no fetch from the page follows in that stay.

use crate::log::{Counts, Log, Notes};
use crate::machine::Entry;
use crate::model::{Access, Answer, EVICTED, Model, Page, Shape, Why};
use crate::scopes::Scopes;
use crate::spaces::{STACK_MASK, Spaces, TABLE_MASK};
use crate::stream;
use std::collections::HashMap;
use std::io::Write;

/// Addresses below are user memory.
pub const USER_END: u64 = 1 << 47;

/// A page's address in one of its bytes'.
pub const PAGE_MASK: u64 = !0xfff;

/// Of a page fault's error code: a store.
pub const PF_WRITE: u64 = 1 << 1;
/// Of a page fault's error code: user mode.
pub const PF_USER: u64 = 1 << 2;
/// Of a page fault's error code: an instruction fetch.
const PF_INSTR: u64 = 1 << 4;

/// FAULT_FLAG_WRITE of `handle_mm_fault()`.
pub const FLAG_WRITE: u64 = 1 << 0;
/// FAULT_FLAG_USER of `handle_mm_fault()`.
pub const FLAG_USER: u64 = 1 << 6;

/// What `handle_mm_fault()` returns when it has not made the access possible:
/// VM_FAULT_OOM, SIGBUS, HWPOISON, HWPOISON_LARGE, SIGSEGV and FALLBACK.
const FAILED: u64 = 0x1 | 0x2 | 0x10 | 0x20 | 0x40 | 0x800;
/// VM_FAULT_RETRY: it is called again in the same fault.
const RETRY: u64 = 0x400;
/// VM_FAULT_COMPLETED: the access will fault again.
const COMPLETED: u64 = 0x4000;

/// The reason why a page is to be made accessible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// An access that faulted.
    Exception,
    /// The kernel, for an access of its own that must not fault.
    Fixup,
}

/// A fault that is being handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Attempt {
    page: Page,
    /// Where the address space's page tables begin.
    table: u64,
    access: Access,
    kernel: bool,
    by: By,
    /// The handler is running for this fault, and not for another access of this task.
    handled: bool,
    /// The task left the CPU when the page was an accessible member. If the page is evicted before
    /// the handler ends, the handler may admit it again.
    met: bool,
    /// The set has not admitted the page when it was asked last.
    refused: bool,
}

impl Attempt {
    fn ask(&self, question: Question) -> Target {
        Target {
            table: self.table,
            addr: self.page.addr,
            write: self.access == Access::Write,
            question,
        }
    }
}

/// A question to the page tables about a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// Is a page mapped there, with permission for the access? A page that the tracer has disabled
    /// counts: its entry keeps the frame and the permissions.
    Mapped,
    /// Does the CPU let the access through?
    Accessible,
    /// Has the CPU looked the page up since its accessed bit was cleared last?
    Accessed,
}

/// A page, and a question to the page tables about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Physical address of the tables' root.
    pub table: u64,
    /// The page.
    pub addr: u64,
    /// For a store.
    pub write: bool,
    /// What is asked.
    pub question: Question,
}

/// A page fault at the moment at which it is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The stack it is handled on.
    pub stack: u64,
    /// CR2.
    pub addr: u64,
    /// Its error code.
    pub code: u64,
    /// CR3.
    pub cr3: u64,
    /// Address of the instruction.
    pub ip: u64,
}

impl Fault {
    /// What kind of access faulted.
    pub fn access(&self) -> Access {
        match self.code {
            c if c & PF_WRITE != 0 => Access::Write,
            c if c & PF_INSTR != 0 => Access::Exec,
            _ => Access::Read,
        }
    }

    /// Whether it is the kernel's.
    pub fn kernel(&self) -> bool {
        self.code & PF_USER == 0
    }
}

/// An access that faulted at a page's first byte. An instruction is identified by the low bits
/// of its address, because QEMU translates a frame only once, wherever it is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Edge {
    page: Page,
    store: bool,
    ip: u64,
}

impl Edge {
    fn new(page: Page, store: bool, ip: u64) -> Self {
        let ip = ip & !PAGE_MASK;
        Edge { page, store, ip }
    }
}

/// What must be checked when it is known whether such an access is split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Split {
    /// The stay that the page before was in.
    stay: usize,
    /// The accessed bit of that page, if it was read.
    looked: Option<bool>,
}

/// All that the oracle knows about a guest.
pub struct Watch {
    shape: Shape,
    /// While a trace is on.
    model: Option<Model>,
    /// No admissions any more.
    sealed: bool,
    spaces: Spaces,
    scopes: Scopes,
    attempts: HashMap<u64, Attempt>,
    /// Where the set leaves its answer, by the stack of the task that asks it.
    asking: HashMap<u64, u64>,
    /// Admissions are not made for a while.
    paused: bool,
    /// Whether the `ptep_set_access_flags()` that runs changes the entry. It runs under a lock, so
    /// no other task is in it.
    stores: bool,
    /// Accesses that faulted at the first byte of a page: they may also lie on the page before.
    splits: HashMap<Edge, Vec<Split>>,
    counts: Counts,
    notes: Notes,
    /// Takes every reference to a member, if anybody wants them.
    stream: Option<Stream>,
    /// The guest's clock, ns.
    time: u64,
}

/// Where all references are written to.
pub type Stream = stream::Writer<Box<dyn Write>>;

impl Watch {
    /// Watches a guest from its boot on, to model sets of this kind.
    pub fn new(shape: Shape) -> Self {
        Watch {
            shape,
            model: None,
            sealed: false,
            spaces: Spaces::new(1),
            scopes: Scopes::new(shape.sets),
            attempts: HashMap::new(),
            asking: HashMap::new(),
            paused: false,
            stores: false,
            splits: HashMap::new(),
            counts: Counts::default(),
            notes: Notes::default(),
            stream: None,
            time: 0,
        }
    }

    /// What follows happens at this time by the guest's clock, ns.
    #[inline]
    pub fn at(&mut self, time: u64) {
        self.time = time;
    }

    /// Passes all references from here on to `stream`; returns the stream before.
    pub fn tell(&mut self, stream: Option<Stream>) -> Option<Stream> {
        std::mem::replace(&mut self.stream, stream)
    }

    /// Passes on a reference to a page, if the page is a member.
    #[inline]
    fn tell_of(&mut self, page: Page, store: bool, kernel: bool) {
        if let (Some(stream), Some(model)) = (&mut self.stream, &mut self.model) {
            if let Some(stay) = model.stay_of(page) {
                stream.at(self.time, kernel);
                stream.reference(stay, store);
            }
        }
    }

    /// Whether accesses are of interest now.
    pub fn wants_accesses(&self) -> bool {
        self.spaces.any() && !self.sealed
    }

    fn note(&mut self, text: String) {
        let at = self.model.as_ref().map_or(0, Model::admissions);
        self.notes.add(at, text);
    }

    /// Counts something that the oracle cannot explain.
    pub fn confused(&mut self, text: String) {
        self.counts.confused += 1;
        self.note(text);
    }

    /// A trace begins.
    pub fn begin(&mut self) {
        self.model = Some(Model::new(self.shape));
        self.sealed = false;
        self.spaces.begin();
        self.scopes = Scopes::new(self.shape.sets);
        self.attempts.clear();
        self.asking.clear();
        self.paused = false;
        self.stores = false;
        self.splits.clear();
        self.counts = Counts::default();
        self.notes = Notes::default();
    }

    /// No admission is on the way. None is made from here on, unless this is only a pause.
    pub fn quiesced(&mut self) {
        self.sealed |= !self.paused;
    }

    /// Ends the trace; returns what the trace must be, or `None` if no trace was on.
    pub fn end(&mut self) -> Option<Log> {
        let model = self.model.take()?;
        self.spaces.end();
        Some(Log {
            shape: self.shape,
            counts: self.counts,
            notes: self.notes.text(),
            stays: model.finish(),
            whos: Vec::new(),
            sets: self.scopes.table(),
        })
    }

    /// `mm` may be given a number next, by the task on this stack. If it `lives`
    /// already, its pages are disabled after that, and its own tasks may run before
    /// all are.
    pub fn space_comes(&mut self, stack: u64, mm: u64, lives: bool) {
        self.spaces.comes(stack, mm, lives);
    }

    /// The task on this stack gives the next number.
    pub fn space_numbered(&mut self, stack: u64) {
        let Some((mm, number)) = self.spaces.numbered(stack) else {
            self.confused("an address space of unknown origin is numbered".into());
            return;
        };
        self.counts.spaces += 1;
        let set = self.scopes.numbered(mm, number);
        if let (Some(set), Some(model)) = (set, &mut self.model) {
            model.enter(number, set);
        } else if self.model.is_some() {
            self.confused(format!("address space {number} has no set"));
        }
    }

    /// The task on this stack gives `mm` its set, as one of that control group.
    pub fn entering(&mut self, stack: u64, mm: u64, group: u64) {
        self.scopes.entering(stack, mm, group);
    }

    /// It has given it set `set`.
    pub fn entered(&mut self, stack: u64, set: u32) {
        if let Err(text) = self.scopes.entered(stack, set) {
            if self.model.is_some() {
                self.confused(text);
            }
        }
    }

    /// `mm` is in its set no more. A set that nobody is in must be empty.
    pub fn leaving(&mut self, mm: u64) {
        let Some(set) = self.scopes.leaving(mm) else {
            return;
        };
        let left = self.model.as_ref().map_or(0, |model| model.members_of(set));
        if left > 0 && !self.sealed {
            self.confused(format!("set {set} ends, and {left} pages are members"));
        }
    }

    /// The task on this stack has disabled all pages of what it lets join.
    pub fn space_joined(&mut self, stack: u64) {
        self.spaces.joined(stack);
    }

    /// The kernel is about to switch to `mm`.
    pub fn switching(&mut self, mm: u64) {
        self.spaces.switching(0, mm);
    }

    /// CR3 is written.
    pub fn table_loaded(&mut self, cr3: u64) {
        self.spaces.table_loaded(0, cr3);
    }

    /// A page fault.
    pub fn fault(&mut self, fault: Fault, tables: impl FnOnce(&Target) -> bool) {
        let Fault {
            stack,
            addr,
            cr3,
            ip,
            ..
        } = fault;
        let stack = stack & STACK_MASK;
        self.attempts.remove(&stack);
        if self.model.is_none() || addr >= USER_END {
            return;
        }
        if cr3 & TABLE_MASK != self.spaces.table(0) {
            self.confused(format!(
                "CR3 is {cr3:#x} at a fault, and {:#x} was loaded last",
                self.spaces.table(0)
            ));
            return;
        }
        let Some(mm) = self.spaces.current(0) else {
            return;
        };
        self.counts.faults += 1;
        let attempt = Attempt {
            page: Page {
                mm,
                addr: addr & PAGE_MASK,
            },
            table: self.spaces.table(0),
            access: fault.access(),
            kernel: fault.kernel(),
            by: By::Exception,
            handled: false,
            met: false,
            refused: false,
        };
        if addr & !PAGE_MASK == 0 {
            self.may_split(&attempt, ip, tables);
        }
        self.attempts.insert(stack, attempt);
    }

    /// `fixup_user_fault()`: an access of the kernel has failed where it could not sleep, so the
    /// kernel asks for the page without an exception.
    pub fn fixup(&mut self, stack: u64, mm: u64, addr: u64, flags: u64) {
        let stack = stack & STACK_MASK;
        self.attempts.remove(&stack);
        let (Some(_), Some(mm)) = (&self.model, self.spaces.number(mm)) else {
            return;
        };
        self.counts.faults += 1;
        let attempt = Attempt {
            page: Page {
                mm,
                addr: addr & PAGE_MASK,
            },
            table: self.spaces.table(0),
            access: if flags & FLAG_WRITE != 0 {
                Access::Write
            } else {
                Access::Read
            },
            kernel: flags & FLAG_USER == 0,
            by: By::Fixup,
            handled: false,
            met: false,
            refused: false,
        };
        self.attempts.insert(stack, attempt);
    }

    /// `handle_mm_fault()` is entered, for an exception or not.
    pub fn handling(&mut self, stack: u64, addr: u64, exception: bool) {
        let stack = stack & STACK_MASK;
        let by = self.attempts.get(&stack).map(|a| a.by);
        let theirs = match by {
            Some(By::Exception) => exception,
            Some(By::Fixup) => !exception,
            None => false,
        };
        if !theirs {
            // The earlier attempt was not granted, and this call is not related to it. The kernel
            // may be populating a page, or pinning it, which is not a reference.
            self.attempts.remove(&stack);
            return;
        }
        if let Some(attempt) = self.attempts.get_mut(&stack) {
            if attempt.page.addr == addr & PAGE_MASK {
                attempt.handled = true;
            } else {
                let text = format!("{addr:#x} is handled at the fault {attempt:?}");
                self.attempts.remove(&stack);
                self.confused(text);
            }
        }
    }

    /// `__vmtrace_touch()`, which was reported like `handle_mm_fault()`, has left the fault to
    /// that one.
    pub fn untouched(&mut self, stack: u64) {
        if let Some(attempt) = self.attempts.get_mut(&(stack & STACK_MASK)) {
            attempt.handled = false;
        }
    }

    /// `handle_mm_fault()` returns. Even if it reports success, it may have left the work to the
    /// next fault, because something changed while it held no lock. So the page tables are asked
    /// whether they map a page with permission for the access, disabled by the tracer or not. If
    /// the page was an accessible member when the task left the CPU, the handler may have found
    /// nothing to do, and the page may have lost its place since then. In this case the page must
    /// be accessible.
    pub fn handled(&mut self, stack: u64, result: u64, tables: impl FnOnce(&Target) -> bool) {
        let stack = stack & STACK_MASK;
        match self.attempts.get_mut(&stack) {
            Some(attempt) if attempt.handled => attempt.handled = false,
            _ => return,
        }
        if result & RETRY != 0 {
            return;
        }
        let Some(attempt) = self.attempts.remove(&stack) else {
            return;
        };
        if attempt.refused {
            self.counts.put_off += 1;
        } else if result & (FAILED | COMPLETED) == 0 {
            let question = if attempt.met {
                Question::Accessible
            } else {
                Question::Mapped
            };
            if tables(&attempt.ask(question)) {
                self.granted(&attempt);
            } else {
                self.counts.put_off += 1;
            }
        }
    }

    /// The task on this stack leaves the CPU. If it is handling a fault, and the CPU already lets
    /// the access through, the attempt has been granted, before anything that other tasks do next.
    pub fn switched_out(&mut self, stack: u64, tables: impl FnOnce(&Target) -> bool) {
        let stack = stack & STACK_MASK;
        let Some(attempt) = self.attempts.get_mut(&stack).filter(|a| a.handled) else {
            return;
        };
        if !tables(&attempt.ask(Question::Accessible)) {
            return;
        }
        let was = *attempt;
        let member = self.model.as_mut().is_some_and(|m| m.is_member(was.page));
        if !member {
            self.attempts.remove(&stack);
        } else if was.met {
            return;
        } else {
            attempt.met = true;
            self.counts.left += 1;
        }
        self.granted(&was);
    }

    fn granted(&mut self, a: &Attempt) {
        let Some(model) = &mut self.model else {
            return;
        };
        if self.sealed {
            return;
        }
        // What the handler does to a member's entry is known from changed(). It does nothing if
        // another task was faster: then the access is a reference when it is repeated.
        let known = model.is_member(a.page);
        self.counts.granted += 1;
        if known {
            self.counts.on_members += 1;
        } else {
            model.admit(a.page, a.access, a.kernel);
            self.counts.readmitted += u64::from(a.met);
        }
    }

    /// `ptep_set_access_flags(vma, addr, ptep, entry, dirty)` is entered. It stores `entry` only if
    /// `stores`.
    pub fn changing(&mut self, stores: bool) {
        self.stores = stores;
    }

    /// What was entered last is about to replace `old` by `new`, the entry of a page of `mm`. The
    /// handler of a write fault on a member does so, to set the accessed bit and the dirty bit. If
    /// the entry was write-protected, the tracer records the store, whatever the dirty bit was.
    pub fn changed(&mut self, mm: u64, addr: u64, old: Entry, new: Entry) {
        let stores = std::mem::take(&mut self.stores);
        let (true, Some(mm), false) = (stores, self.spaces.number(mm), self.sealed) else {
            return;
        };
        let Some(model) = &mut self.model else {
            return;
        };
        let page = Page {
            mm,
            addr: addr & PAGE_MASK,
        };
        // Another page gets a stay of its own.
        if !old.is_accessible() || old.frame() != new.frame() {
            return;
        }
        let known = if new.is_dirty() && new.is_writable() && !old.is_writable() {
            model.write_fault(page)
        } else if new.is_dirty() && !old.is_dirty() {
            model.store(page)
        } else if new.is_accessed() {
            model.touch(page)
        } else {
            return;
        };
        self.counts.changed += u64::from(known);
    }

    /// An interrupt is taken before the instruction at `ip`, which may have been looked
    /// up already.
    pub fn interrupted(&mut self, ip: u64, tables: impl FnOnce(&Target) -> bool) {
        let Some(mm) = self.spaces.current(0).filter(|_| ip < USER_END) else {
            return;
        };
        let Some(model) = self.model.as_mut().filter(|_| !self.sealed) else {
            return;
        };
        let addr = ip & PAGE_MASK;
        let page = Page { mm, addr };
        if !model.stay_of(page).is_some_and(|stay| model.awaits(stay)) {
            return;
        }
        let target = Target {
            table: self.spaces.table(0),
            addr,
            write: false,
            question: Question::Accessed,
        };
        if tables(&target) {
            self.counts.looks += 1;
            model.touch(page);
        }
    }

    /// An access has faulted at the first byte of a page.
    fn may_split(&mut self, a: &Attempt, ip: u64, tables: impl FnOnce(&Target) -> bool) {
        let before = Page {
            addr: a.page.addr.wrapping_sub(0x1000),
            ..a.page
        };
        let Some(model) = self.model.as_mut().filter(|_| !self.sealed) else {
            return;
        };
        let Some(stay) = model.stay_of(before) else {
            return;
        };
        let store = a.access == Access::Write;
        let mut looked = None;
        if a.access == Access::Exec {
            if ip & PAGE_MASK == before.addr {
                model.touch(before);
            }
            return;
        } else if model.awaits(stay) {
            self.counts.looks += 1;
            let set = tables(&Target {
                addr: before.addr,
                ..a.ask(Question::Accessed)
            });
            if set {
                model.touch(before);
            }
            looked = Some(set);
        } else if !store {
            return;
        }
        self.splits
            .entry(Edge::new(a.page, store, ip))
            .or_default()
            .push(Split { stay, looked });
    }

    /// An access of `size` bytes of user memory by the instruction at `pc` has
    /// succeeded.
    pub fn access(&mut self, pc: u64, addr: u64, size: u64, store: bool) {
        let last = addr + size - 1;
        let split = (last ^ addr) & PAGE_MASK != 0;
        if !self.splits.is_empty() && (split || addr & !PAGE_MASK == 0) {
            self.known_split(pc, last & PAGE_MASK, store, split);
        }
        self.access_page(pc, addr, store);
        if split {
            self.access_page(pc, last, store);
        }
    }

    /// An access succeeds that may be the one that faulted at `addr`: now it is known whether that
    /// access is `split`.
    fn known_split(&mut self, pc: u64, addr: u64, store: bool, split: bool) {
        let (Some(mm), Some(model)) = (self.spaces.current(0), &mut self.model) else {
            return;
        };
        let edge = Edge::new(Page { mm, addr }, store, pc);
        let mut wrong = None;
        for known in self.splits.remove(&edge).unwrap_or_default() {
            if split && store {
                model.store_in(known.stay);
            }
            if known.looked.is_some_and(|looked| looked != split) {
                wrong = Some(known);
            }
        }
        if let Some(known) = wrong {
            self.confused(format!(
                "an access to {addr:#x} in mm {mm} by the instruction at {pc:#x} is{} split, \
                 and the accessed bit of the page before, in record {}, told otherwise",
                if split { "" } else { " not" },
                known.stay
            ));
        }
    }

    fn access_page(&mut self, pc: u64, addr: u64, store: bool) {
        let (Some(mm), Some(model), false) = (self.spaces.current(0), &mut self.model, self.sealed)
        else {
            return;
        };
        let kernel = pc >= USER_END;
        self.counts.access(kernel, store);
        let page = Page {
            mm,
            addr: addr & PAGE_MASK,
        };
        let known = if store {
            model.store(page)
        } else {
            model.touch(page)
        };
        if !known {
            let access = if store { Access::Write } else { Access::Read };
            self.escaped(page, access, kernel, pc);
        }
        self.tell_of(page, store, kernel);
    }

    /// User mode runs an instruction that has a byte at `addr`.
    pub fn fetch(&mut self, addr: u64) {
        let (Some(mm), Some(model), false) = (self.spaces.current(0), &mut self.model, self.sealed)
        else {
            return;
        };
        self.counts.fetches += 1;
        let page = Page {
            mm,
            addr: addr & PAGE_MASK,
        };
        if !model.touch(page) {
            self.escaped(page, Access::Exec, false, addr);
        }
        self.tell_of(page, false, false);
    }

    fn escaped(&mut self, page: Page, access: Access, kernel: bool, pc: u64) {
        if self.spaces.is_joining(page.mm) {
            self.counts.early += 1;
            return;
        }
        self.counts.escaped += 1;
        self.note(format!(
            "{access:?} of {:#x} in mm {} by the instruction at {pc:#x}, and the page is no member",
            page.addr, page.mm
        ));
        if let Some(model) = &mut self.model {
            model.admit(page, access, kernel);
        }
    }

    /// The kernel cleared an enabled PTE.
    pub fn closed(&mut self, mm: u32, addr: u64, why: Why) {
        let Some(model) = &mut self.model else {
            return;
        };
        self.counts.closings += 1;
        let page = Page {
            mm,
            addr: addr & PAGE_MASK,
        };
        if !model.close(page, why) && !self.sealed {
            self.counts.foreign_closings += 1;
            self.note(format!(
                "the enabled PTE of {:#x} in mm {mm} is cleared, and the page is no member",
                page.addr
            ));
        }
    }

    /// Admissions are made no more, or again, while the trace goes on.
    pub fn pause(&mut self, on: bool) {
        self.paused = on;
    }

    /// A set is to have another size. It is paused.
    pub fn resizing(&mut self, set: u32, to: u64) {
        if let Some(model) = &mut self.model {
            model.resizing(set, to as usize);
        }
    }

    /// One step towards a smaller set; or towards an empty one, at the end of a trace.
    pub fn drain(&mut self, set: u32, why: Why) {
        if let Some(model) = self.model.as_mut().filter(|_| why == EVICTED) {
            model.drain(set);
        }
    }

    /// A set has another size from here on.
    pub fn resized(&mut self, set: u32, to: u64) {
        if let Some(model) = &mut self.model {
            model.resized(set, to as usize);
        }
    }

    /// The set is asked to admit a page, by the task on this stack. What is shared with it, the
    /// answer above all, lies at `at`.
    pub fn asking(&mut self, stack: u64, at: u64) {
        self.asking.insert(stack & STACK_MASK, at);
    }

    /// Where the set that was asked leaves its answer.
    pub fn asked(&mut self, stack: u64) -> Option<u64> {
        self.asking.remove(&(stack & STACK_MASK))
    }

    /// It has answered, to address space `mm`. Without room for a record, and while it is paused, it
    /// admits nothing. Then the fault is done, and the access faults again.
    pub fn answered(&mut self, stack: u64, mm: u32, answer: Option<Answer>) {
        if let Some(attempt) = self.attempts.get_mut(&(stack & STACK_MASK)) {
            attempt.refused = answer == Some(Answer::Full);
        }
        if answer == Some(Answer::Changed) {
            self.gave_up(mm);
        }
    }

    /// The kernel gave up an admission of address space `mm` that had a place.
    pub fn gave_up(&mut self, mm: u32) {
        if let Some(model) = &mut self.model {
            self.counts.aborts += 1;
            model.give_up(mm);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DRAINED, Sets};

    const STACK: u64 = 0xffff_8880_0000_4000;
    const OTHER_STACK: u64 = STACK + 0x4000;
    const PC: u64 = 0x40_0000;
    const KERNEL_PC: u64 = 0xffff_ffff_8100_0000;
    const MM: u64 = 0xffff_8880_1234_5000;
    const CR3: u64 = 0x1000_0000;
    const READ: u64 = PF_USER;
    const WRITE: u64 = PF_USER | PF_WRITE;

    /// A guest whose traced address space 1 is loaded.
    fn watch(size: usize) -> Watch {
        watch_set(Shape {
            first: size.min(Shape::FIRST),
            ..Shape::fifo(size)
        })
    }

    fn watch_set(shape: Shape) -> Watch {
        let mut w = Watch::new(shape);
        w.switching(MM);
        w.table_loaded(CR3);
        w.begin();
        assert!(!w.wants_accesses());
        w.space_comes(STACK, MM, false);
        enter(&mut w, STACK, MM, 0);
        w.space_numbered(STACK + 0x100);
        assert!(w.wants_accesses());
        w
    }

    /// An address space gets its set.
    fn enter(w: &mut Watch, stack: u64, mm: u64, set: u32) {
        w.entering(stack, mm, 7);
        w.entered(stack + 8, set);
    }

    /// A fault, by the instruction at PC.
    fn fault(stack: u64, addr: u64, code: u64, cr3: u64) -> impl FnOnce(&mut Watch) {
        let fault = Fault {
            stack,
            addr,
            code,
            cr3,
            ip: PC,
        };
        move |w| w.fault(fault, |_| panic!("no accessed bit is needed"))
    }

    fn grant(w: &mut Watch, stack: u64, addr: u64, code: u64) {
        fault(stack, addr, code, CR3)(w);
        w.handling(stack, addr, true);
        w.handled(stack, 0, |_| true);
    }

    /// An entry that maps 0x7000 for reading, was looked up, and is accessible.
    const ENTRY: u64 = 0x7025;
    /// PTE_RW and _PAGE_DIRTY.
    const WRITTEN: u64 = 0x42;

    /// The handler changes the entry of a page in place, for a store.
    fn change(w: &mut Watch, addr: u64, old: u64, new: u64) {
        w.changing(true);
        w.changed(MM, addr, Entry::new(old), Entry::new(new));
    }

    /// A write fault on a member, whose handler makes the entry writable.
    fn upgrade(w: &mut Watch, addr: u64) {
        fault(STACK, addr, WRITE, CR3)(w);
        w.handling(STACK, addr, true);
        change(w, addr, ENTRY, ENTRY | WRITTEN);
        w.handled(STACK, 0, |_| true);
    }

    fn records(w: &mut Watch) -> Vec<(u64, Access, bool, bool)> {
        let log = w.end().unwrap();
        log.stays
            .iter()
            .map(|s| (s.page.addr, s.access, s.kernel, s.dirtied))
            .collect()
    }

    #[test]
    fn granted_faults_admit_in_the_order_of_the_grants() {
        let mut w = watch(16);
        fault(STACK, 0x1234, READ, CR3)(&mut w);
        w.handling(STACK, 0x1234, true);
        grant(&mut w, OTHER_STACK, 0x2000, PF_WRITE);
        w.handled(STACK, 4, |_| true);
        w.access(PC, 0x1234, 1, false);
        w.access(KERNEL_PC, 0x2fff, 1, true);
        assert_eq!((w.counts.granted, w.counts.escaped), (2, 0));
        assert_eq!((w.counts.loads, w.counts.kernel_stores), (1, 1));
        assert_eq!(
            records(&mut w),
            [
                (0x2000, Access::Write, true, true),
                (0x1000, Access::Read, false, false)
            ]
        );
    }

    #[test]
    fn what_the_set_refuses_is_not_granted() {
        for (answers, granted, aborts) in [
            (&[Answer::Full][..], 0, 0),
            (&[Answer::Go], 1, 0),
            (&[Answer::Full, Answer::Go], 1, 0),
            (&[Answer::Changed, Answer::Full], 0, 1),
        ] {
            let mut w = watch(16);
            fault(STACK, 0x1234, READ, CR3)(&mut w);
            w.handling(STACK, 0x1234, true);
            for answer in answers {
                w.asking(STACK, 0x5000);
                assert_eq!(w.asked(STACK + 8), Some(0x5000));
                w.answered(STACK, 1, Some(*answer));
            }
            w.handled(STACK, 0, |_| true);
            assert_eq!((w.counts.granted, w.counts.put_off), (granted, 1 - granted));
            assert_eq!(w.counts.aborts, aborts);
            assert_eq!(w.asked(STACK), None);
        }
    }

    #[test]
    fn a_set_that_is_paused_gets_another_size() {
        let mut w = watch(20);
        for n in 1..=20 {
            grant(&mut w, STACK, n << 12, READ);
        }
        w.pause(true);
        w.quiesced();
        w.resizing(0, 17);
        w.drain(0, DRAINED);
        w.drain(0, EVICTED);
        w.resized(0, 17);
        w.pause(false);
        assert!(w.wants_accesses());
        w.access(PC, 0x4000, 1, false);
        assert_eq!(w.counts.escaped, 0);
        w.access(PC, 0x3000, 1, false);
        assert_eq!(w.counts.escaped, 1);
        w.quiesced();
        assert!(!w.wants_accesses());
    }

    /// A stream that a test can read after passing it on.
    #[derive(Clone, Default)]
    struct Kept(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn references_are_told_by_the_stay_they_fall_in() {
        let kept = Kept::default();
        let mut w = watch(1);
        assert!(w.tell(Some(Stream::new(Box::new(kept.clone())))).is_none());
        grant(&mut w, STACK, 0x1000, READ);
        w.access(PC, 0x1234, 1, false);
        grant(&mut w, STACK, 0x2000, WRITE);
        w.access(KERNEL_PC, 0x2000, 8, true);
        // An access on two pages, the first of which has no place any more.
        grant(&mut w, STACK, 0x3000, READ);
        w.access(PC, 0x2ffc, 8, false);
        w.fetch(0x3000);
        // An access in an untraced address space, and one after the last admission.
        w.table_loaded(CR3 + 0x1000);
        w.access(PC, 0x1000, 1, false);
        w.table_loaded(CR3);
        w.quiesced();
        w.access(PC, 0x3000, 1, false);
        let stream = w.tell(None).expect("the stream");
        stream.finish().expect("memory takes all");
        let mut told = Vec::new();
        let read = stream::read(kept.0.borrow().as_slice(), |stay, store| {
            told.push((stay, store));
            Ok(())
        });
        let log = w.end().expect("a log");
        let told: Vec<_> = told
            .iter()
            .map(|&(stay, store)| (stay, log.stays[stay].page.addr, store))
            .collect();
        // The violation is a stay of its own, and takes the place of 0x3000.
        let (r, s) = (false, true);
        let want = [
            (0, 0x1000, r),
            (1, 0x2000, s),
            (3, 0x2000, r),
            (4, 0x3000, r),
            (4, 0x3000, r),
        ];
        assert_eq!(told, want);
        assert_eq!(read, Ok(5));
    }

    #[test]
    fn what_is_not_granted_admits_nothing() {
        let mut w = watch(16);
        for result in [1, 2, 0x40, COMPLETED] {
            fault(STACK, 0x1000, READ, CR3)(&mut w);
            w.handling(STACK, 0x1000, true);
            w.handled(STACK, result, |_| true);
        }
        // A signal came instead, then the kernel pins a page.
        fault(STACK, 0x1000, READ, CR3)(&mut w);
        w.handling(STACK, 0x1000, false);
        w.handled(STACK, 0, |_| true);
        // A kernel address.
        grant(&mut w, STACK, KERNEL_PC, 0);
        assert_eq!(w.counts.confused, 0);
        assert_eq!(records(&mut w), []);
    }

    #[test]
    fn a_fault_that_left_no_such_page_is_not_granted() {
        let mut w = watch(16);
        fault(STACK, 0x1234, WRITE, CR3)(&mut w);
        w.handling(STACK, 0x1234, true);
        w.handled(STACK, 0, |target| {
            assert_eq!(
                *target,
                Target {
                    table: CR3,
                    addr: 0x1000,
                    write: true,
                    question: Question::Mapped,
                }
            );
            false
        });
        assert_eq!((w.counts.granted, w.counts.put_off), (0, 1));
        assert_eq!(records(&mut w), []);
    }

    #[test]
    fn what_is_accessible_when_a_task_leaves_was_granted_before() {
        let mut w = watch(16);
        for (stack, addr) in [(STACK, 0x1000), (OTHER_STACK, 0x2000)] {
            fault(stack, addr, READ, CR3)(&mut w);
            // Not in the handler yet.
            w.switched_out(stack, |_| panic!("nothing to ask"));
            w.handling(stack, addr, true);
            w.switched_out(stack, |target| target.addr == 0x2000);
        }
        w.handled(STACK, 0, |_| true);
        w.handled(OTHER_STACK, 0, |_| panic!("granted already"));
        let order: Vec<_> = records(&mut w).iter().map(|r| r.0).collect();
        assert_eq!(order, [0x2000, 0x1000]);
    }

    #[test]
    fn a_member_that_goes_while_its_fault_is_handled_may_come_again() {
        // The handler reuses a page for writing, others run and take its place, and
        // then the handler enables it, or it had looked before they ran.
        for admitted in [true, false] {
            let mut w = watch(2);
            grant(&mut w, STACK, 0x1000, READ);
            fault(STACK, 0x1000, WRITE, CR3)(&mut w);
            w.handling(STACK, 0x1000, true);
            change(&mut w, 0x1000, ENTRY, ENTRY | WRITTEN);
            for _ in 0..2 {
                w.switched_out(STACK, |t| t.question == Question::Accessible);
            }
            assert_eq!((w.counts.on_members, w.counts.left), (1, 1));
            grant(&mut w, OTHER_STACK, 0x2000, READ);
            w.switched_out(STACK, |_| true);
            grant(&mut w, OTHER_STACK, 0x3000, READ);
            w.switched_out(STACK, |_| false);
            w.handled(STACK, 0, |t| {
                assert_eq!(t.question, Question::Accessible);
                admitted
            });
            assert_eq!(
                (w.counts.on_members, w.counts.put_off),
                (1, u64::from(!admitted))
            );
            assert_eq!(w.counts.readmitted, u64::from(admitted));
            let mut want = vec![
                (0x1000, Access::Read, false, true),
                (0x2000, Access::Read, false, false),
                (0x3000, Access::Read, false, false),
            ];
            if admitted {
                want.push((0x1000, Access::Write, false, true));
            }
            assert_eq!(records(&mut w), want);
        }
    }

    #[test]
    fn a_member_that_comes_again_is_admitted_when_its_task_leaves() {
        let mut w = watch(1);
        grant(&mut w, STACK, 0x1000, READ);
        fault(STACK, 0x1000, WRITE, CR3)(&mut w);
        w.handling(STACK, 0x1000, true);
        w.switched_out(STACK, |_| true);
        grant(&mut w, OTHER_STACK, 0x2000, READ);
        w.switched_out(STACK, |_| true);
        grant(&mut w, OTHER_STACK, 0x3000, READ);
        w.handled(STACK, 0, |_| panic!("granted already"));
        let order: Vec<_> = records(&mut w).iter().map(|r| r.0).collect();
        assert_eq!(order, [0x1000, 0x2000, 0x1000, 0x3000]);
    }

    #[test]
    fn a_retried_fault_is_granted_once() {
        let mut w = watch(16);
        fault(STACK, 0x1000, PF_USER | PF_INSTR, CR3)(&mut w);
        for result in [RETRY, 0, 0] {
            w.handling(STACK, 0x1000, true);
            w.handled(STACK, result, |_| true);
        }
        w.fetch(0x1ffe);
        assert_eq!(w.counts.escaped, 0);
        assert_eq!(records(&mut w), [(0x1000, Access::Exec, false, false)]);
    }

    #[test]
    fn a_fault_on_a_member_admits_nothing_but_tells_of_a_store() {
        let mut w = watch(16);
        grant(&mut w, STACK, 0x1000, READ);
        upgrade(&mut w, 0x1000);
        assert_eq!((w.counts.on_members, w.counts.changed), (1, 1));
        assert_eq!(records(&mut w), [(0x1000, Access::Read, false, true)]);
    }

    #[test]
    fn a_write_fault_that_changes_nothing_is_no_store() {
        // Another thread was faster: the handler finds another entry than it had read.
        let mut w = watch(16);
        grant(&mut w, STACK, 0x1000, READ);
        grant(&mut w, STACK, 0x1000, WRITE);
        assert_eq!((w.counts.on_members, w.counts.changed), (1, 0));
        assert_eq!(records(&mut w), [(0x1000, Access::Read, false, false)]);
    }

    #[test]
    fn only_a_change_of_a_members_own_entry_counts() {
        for (old, new, dirtied) in [
            (ENTRY, ENTRY | WRITTEN, true),
            // It was writable, and not dirty.
            (ENTRY | 0x2, ENTRY | WRITTEN, true),
            // Forced into a mapping without the right to write: _PAGE_SAVED_DIRTY.
            (ENTRY, ENTRY | 1 << 58, true),
            // The same, and it was written before it was admitted: the entry shows nothing new.
            (ENTRY | 1 << 58, ENTRY | 1 << 58, false),
            // It becomes writable only.
            (ENTRY, ENTRY | 0x2, false),
            // It was disabled. It is another page's.
            (ENTRY & !1, ENTRY | WRITTEN, false),
            (ENTRY + 0x1000, ENTRY | WRITTEN, false),
        ] {
            let mut w = watch(16);
            grant(&mut w, STACK, 0x1000, READ);
            change(&mut w, 0x1000, old, new);
            change(&mut w, 0x2000, old, new);
            let other = (MM + 64, Entry::new(ENTRY), Entry::new(ENTRY | WRITTEN));
            w.changing(true);
            w.changed(other.0, 0x1000, other.1, other.2);
            assert_eq!(records(&mut w), [(0x1000, Access::Read, false, dirtied)]);
        }
        // A load's fault stores nothing, and what was said of a store holds once.
        let mut w = watch(16);
        grant(&mut w, STACK, 0x1000, READ);
        change(&mut w, 0x2000, ENTRY, ENTRY | WRITTEN);
        w.changed(MM, 0x1000, Entry::new(ENTRY), Entry::new(ENTRY | WRITTEN));
        w.changing(false);
        w.changed(MM, 0x1000, Entry::new(ENTRY), Entry::new(ENTRY | WRITTEN));
        assert_eq!(records(&mut w), [(0x1000, Access::Read, false, false)]);
    }

    #[test]
    fn a_pin_for_writing_is_no_reference_but_a_store() {
        let mut w = watch(16);
        grant(&mut w, STACK, 0x1000, READ);
        for addr in [0x1000, 0x2000] {
            w.handling(STACK, addr, false);
            change(&mut w, addr, ENTRY, ENTRY | WRITTEN);
            w.handled(STACK, 0, |_| panic!("nothing to ask"));
        }
        assert_eq!(w.counts.granted, 1);
        assert_eq!(records(&mut w), [(0x1000, Access::Read, false, true)]);
    }

    #[test]
    fn a_store_on_two_pages_dirties_the_first_when_the_second_faults() {
        // The second page takes the first one's place in a set of one.
        for (addr, dirtied) in [(0x1ffc, true), (0x2000, false)] {
            let mut w = watch(1);
            grant(&mut w, STACK, 0x1000, READ);
            grant(&mut w, STACK, 0x2000, WRITE);
            w.access(PC, addr, 8, true);
            assert_eq!(w.end().unwrap().stays[0].dirtied, dirtied, "{addr:#x}");
        }
    }

    #[test]
    fn copy_on_write_is_a_new_stay() {
        let mut w = watch(16);
        grant(&mut w, STACK, 0x1000, READ);
        fault(STACK, 0x1000, WRITE, CR3)(&mut w);
        w.handling(STACK, 0x1000, true);
        w.closed(1, 0x1000, 2);
        w.handled(STACK, 0, |_| true);
        assert_eq!(
            records(&mut w),
            [
                (0x1000, Access::Read, false, false),
                (0x1000, Access::Write, false, true)
            ]
        );
    }

    #[test]
    fn an_access_to_no_member_is_a_violation_and_a_record() {
        let mut w = watch(1);
        grant(&mut w, STACK, 0x1000, READ);
        grant(&mut w, STACK, 0x2000, READ);
        w.access(PC, 0x1008, 1, true);
        w.fetch(0x2000);
        assert_eq!(w.counts.escaped, 2);
        let log = w.end().unwrap();
        assert_eq!(log.stays.len(), 4);
        assert!(log.notes.contains("Write of 0x1000"), "{}", log.notes);
    }

    #[test]
    fn until_it_has_joined_an_address_space_may_have_enabled_pages() {
        let mut w = Watch::new(Shape::fifo(16));
        w.switching(MM);
        w.table_loaded(CR3);
        w.begin();
        w.space_comes(STACK, MM, true);
        enter(&mut w, STACK, MM, 0);
        w.space_numbered(STACK);
        w.access(PC, 0x1000, 1, true);
        w.fetch(0x2000);
        grant(&mut w, STACK, 0x3000, READ);
        assert_eq!((w.counts.early, w.counts.escaped), (2, 0));
        // Somebody else's lock.
        w.space_joined(OTHER_STACK);
        w.fetch(0x2000);
        assert_eq!((w.counts.early, w.counts.escaped), (3, 0));
        w.space_joined(STACK);
        w.fetch(0x2000);
        assert_eq!((w.counts.early, w.counts.escaped), (3, 1));
        let pages: Vec<_> = records(&mut w).iter().map(|r| r.0).collect();
        assert_eq!(pages, [0x3000, 0x2000]);
    }

    #[test]
    fn clearing_what_is_no_member_is_a_violation() {
        let mut w = watch(16);
        w.closed(1, 0x1000, 1);
        assert_eq!(w.counts.foreign_closings, 1);
        w.quiesced();
        w.closed(1, 0x1000, 1);
        assert_eq!(w.counts.foreign_closings, 1);
    }

    #[test]
    fn accesses_of_other_address_spaces_do_not_count() {
        let mut w = watch(16);
        w.switching(MM + 64);
        w.table_loaded(CR3 + 0x1000);
        grant_other(&mut w);
        w.access(PC, 0x1000, 1, true);
        // Back, without being told: the table is known.
        w.table_loaded(CR3 | 1);
        grant(&mut w, STACK, 0x3000, READ);
        assert_eq!((w.counts.escaped, w.counts.stores), (0, 0));
        assert_eq!(records(&mut w), [(0x3000, Access::Read, false, false)]);
    }

    fn grant_other(w: &mut Watch) {
        fault(STACK, 0x1000, READ, CR3 + 0x1000)(w);
        w.handling(STACK, 0x1000, true);
        w.handled(STACK, 0, |_| true);
    }

    #[test]
    fn a_reused_mm_struct_is_not_traced_until_it_is_numbered() {
        let mut w = watch(16);
        w.space_comes(OTHER_STACK, MM, false);
        assert!(!w.wants_accesses());
        w.leaving(MM);
        enter(&mut w, OTHER_STACK, MM, 0);
        w.space_numbered(OTHER_STACK);
        grant(&mut w, STACK, 0x1000, READ);
        assert_eq!(w.end().unwrap().stays[0].page.mm, 2);
    }

    #[test]
    fn a_fault_under_another_table_confuses() {
        let mut w = watch(16);
        fault(STACK, 0x1000, READ, CR3 + 0x5000)(&mut w);
        w.space_numbered(OTHER_STACK);
        assert_eq!(w.counts.confused, 2);
    }

    #[test]
    fn a_fixup_is_the_kernels_reference() {
        let mut w = watch(16);
        w.fixup(STACK, MM, 0x1010, FLAG_WRITE);
        w.handling(STACK, 0x1010, false);
        w.handled(STACK, 0, |_| true);
        w.fixup(STACK, MM + 64, 0x2010, FLAG_WRITE);
        w.handling(STACK, 0x2010, false);
        w.handled(STACK, 0, |_| true);
        assert_eq!(records(&mut w), [(0x1000, Access::Write, true, true)]);
    }

    #[test]
    fn after_the_seal_nothing_is_admitted() {
        let mut w = watch(16);
        grant(&mut w, STACK, 0x1000, READ);
        w.quiesced();
        grant(&mut w, STACK, 0x2000, READ);
        w.access(PC, 0x5000, 1, false);
        assert_eq!(w.counts.escaped, 0);
        assert_eq!(w.end().unwrap().stays.len(), 1);
        assert!(w.end().is_none());
    }

    #[test]
    fn a_second_trace_begins_anew() {
        let mut w = watch(16);
        grant(&mut w, STACK, 0x1000, READ);
        w.end();
        w.begin();
        assert!(!w.wants_accesses());
        w.space_comes(STACK, MM, false);
        enter(&mut w, STACK, MM, 0);
        w.space_numbered(STACK);
        grant(&mut w, STACK, 0x1000, READ);
        let log = w.end().unwrap();
        assert_eq!((log.stays.len(), log.stays[0].page.mm), (1, 2));
    }

    const OTHER_MM: u64 = MM + 64;
    const OTHER_CR3: u64 = CR3 + 0x1000;

    /// Two address spaces, each with a set of its own. The first one is loaded.
    fn watch_two(size: usize) -> Watch {
        let mut w = Watch::new(Shape {
            first: size.min(Shape::FIRST),
            sets: Sets::Process,
            ..Shape::fifo(size)
        });
        w.begin();
        for (mm, cr3, set) in [(OTHER_MM, OTHER_CR3, 2), (MM, CR3, 1)] {
            w.switching(mm);
            w.table_loaded(cr3);
            w.space_comes(STACK, mm, false);
            enter(&mut w, STACK, mm, set);
            w.space_numbered(STACK);
        }
        w
    }

    /// The same page of both, in turn: (address space, page).
    fn go(w: &mut Watch, which: u32, addr: u64) {
        let (mm, cr3) = [(OTHER_MM, OTHER_CR3), (MM, CR3)][which as usize - 1];
        w.switching(mm);
        w.table_loaded(cr3);
        fault(STACK, addr, READ, cr3)(w);
        w.handling(STACK, addr, true);
        w.handled(STACK, 0, |_| true);
    }

    #[test]
    fn each_process_evicts_its_own_pages_only() {
        let mut w = watch_two(2);
        for (mm, n) in [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (1, 3)] {
            go(&mut w, mm, n << 12);
        }
        // The first one's page has gone for its own third page only.
        w.fetch(0x2000);
        assert_eq!(w.counts.violations(), 0);
        w.fetch(0x1000);
        assert_eq!(w.counts.escaped, 1);
        let log = w.end().unwrap();
        let told: Vec<_> = log
            .stays
            .iter()
            .map(|s| (s.page.mm, s.page.addr >> 12, s.why))
            .collect();
        let all = [
            (1, 1, EVICTED),
            (1, 2, EVICTED),
            (2, 1, EVICTED),
            (2, 2, DRAINED),
            (2, 3, DRAINED),
            (1, 3, DRAINED),
            (1, 1, DRAINED),
        ];
        assert_eq!(told, all);
    }

    #[test]
    fn an_admission_given_up_has_a_place_in_its_own_set() {
        let mut w = watch_two(1);
        go(&mut w, 2, 0x1000);
        go(&mut w, 1, 0x1000);
        w.gave_up(2);
        w.fetch(0x1000);
        assert_eq!(w.counts.escaped, 0);
        w.table_loaded(CR3);
        w.fetch(0x1000);
        assert_eq!(w.counts.escaped, 1);
    }

    #[test]
    fn a_set_ends_with_its_process() {
        for closes in [true, false] {
            let mut w = watch_two(16);
            go(&mut w, 1, 0x1000);
            go(&mut w, 2, 0x1000);
            if closes {
                w.closed(2, 0x1000, 6);
            }
            w.leaving(MM);
            assert_eq!(w.counts.confused, u64::from(!closes));
            // The same mm_struct, for another process.
            w.space_comes(STACK, MM, false);
            enter(&mut w, STACK, MM, 3);
            w.space_numbered(STACK);
            w.table_loaded(CR3);
            grant(&mut w, STACK, 0x1000, READ);
            let stays = w.end().unwrap().stays;
            assert_eq!((stays.len(), stays[2].page.mm), (3, 3));
        }
    }

    #[test]
    fn a_set_that_must_be_another_confuses() {
        for (set, wrong) in [(3, 0), (0, 1), (1, 1), (2, 1)] {
            let mut w = watch_two(16);
            w.space_comes(STACK, MM + 128, false);
            enter(&mut w, STACK, MM + 128, set);
            w.space_numbered(STACK);
            assert_eq!(w.counts.confused, wrong, "{set}");
        }
        // It has none at all.
        let mut w = watch_two(16);
        w.space_comes(STACK, MM + 128, false);
        w.space_numbered(STACK);
        assert_eq!(w.counts.confused, 1);
    }

    #[test]
    fn sets_get_another_size_one_by_one() {
        let mut w = watch_two(20);
        for n in 1..=20 {
            go(&mut w, 1, n << 12);
            go(&mut w, 2, n << 12);
        }
        w.resizing(2, 17);
        w.drain(2, EVICTED);
        w.resized(2, 17);
        w.fetch(0x1000);
        assert_eq!(w.counts.escaped, 0);
        w.table_loaded(OTHER_CR3);
        w.fetch(0x1000);
        assert_eq!(w.counts.escaped, 1);
    }

    /// A set in whose second segment 0x1000 is, swept: its first segment has one
    /// page, 0x9000.
    fn swept(size: usize, clock: bool) -> Watch {
        let mut w = watch_set(Shape {
            first: 1,
            again: true,
            clock,
            ..Shape::fifo(size)
        });
        grant(&mut w, STACK, 0x1000, READ);
        w.access(PC, 0x1000, 1, false);
        grant(&mut w, STACK, 0x9000, READ);
        w
    }

    fn again(w: &mut Watch) -> Vec<bool> {
        w.end().unwrap().stays.iter().map(|s| s.again).collect()
    }

    #[test]
    fn each_way_to_set_the_accessed_bit_counts() {
        type Act = fn(&mut Watch);
        let acts: [(Act, bool); 11] = [
            (|_| {}, false),
            (|w| w.access(PC, 0x2000, 1, true), false),
            (|w| w.access(PC, 0x1fff, 1, false), true),
            (|w| w.access(KERNEL_PC, 0x1000, 8, true), true),
            (|w| w.access(PC, 0xffc, 8, false), true),
            (|w| w.fetch(0x1234), true),
            (|w| upgrade(w, 0x1000), true),
            // Another thread has admitted the page. The handler does nothing, and the access comes
            // again, perhaps not before the page has lost its place.
            (|w| grant(w, STACK, 0x1000, READ), false),
            (|w| grant(w, STACK, 0x1000, WRITE), false),
            // The kernel sets the accessed bit itself.
            (|w| change(w, 0x1000, ENTRY & !0x20, ENTRY), true),
            (
                |w| {
                    w.quiesced();
                    w.access(PC, 0x1000, 1, false);
                },
                false,
            ),
        ];
        for (i, (act, told)) in acts.into_iter().enumerate() {
            let mut w = swept(16, false);
            act(&mut w);
            assert_eq!(again(&mut w)[0], told, "act {i}");
        }
    }

    fn fault_at(w: &mut Watch, code: u64, ip: u64, accessed: Option<bool>) {
        let fault = Fault {
            stack: STACK,
            addr: 0x2000,
            code,
            cr3: CR3,
            ip,
        };
        w.fault(fault, |target| {
            assert_eq!((target.table, target.addr), (CR3, 0x1000));
            assert_eq!(target.question, Question::Accessed);
            accessed.expect("no accessed bit is needed")
        });
        w.handling(STACK, 0x2000, true);
        w.handled(STACK, 0, |_| true);
    }

    #[test]
    fn a_fetch_that_an_interrupt_came_before_may_have_referenced_its_page() {
        for (ip, looked, told) in [
            (0x1234, Some(true), true),
            (0x1234, Some(false), false),
            // The bit is not read for kernel code, nor for a page that is not a member.
            (KERNEL_PC, None, false),
            (0x5000, None, false),
        ] {
            let mut w = swept(2, false);
            w.interrupted(ip, |target| {
                assert_eq!((target.table, target.addr), (CR3, 0x1000));
                assert_eq!(target.question, Question::Accessed);
                looked.expect("no accessed bit is needed")
            });
            assert_eq!(w.counts.looks, u64::from(told));
            // A reference to the page would add no information any more.
            if told {
                w.interrupted(ip, |_| panic!("known already"));
            }
            assert_eq!(again(&mut w)[0], told, "{ip:#x} {looked:?}");
        }
        // Before its accessed bit was cleared, and after the end.
        let mut w = swept(16, false);
        w.interrupted(0x9000, |_| panic!("not swept"));
        w.quiesced();
        w.interrupted(0x1234, |_| panic!("sealed"));
    }

    #[test]
    fn a_fetch_on_two_pages_has_referenced_the_first() {
        for (ip, told) in [(0x1ffe, true), (0x2000, false)] {
            // The newcomer takes the first one's place.
            let mut w = swept(2, false);
            fault_at(&mut w, PF_USER | PF_INSTR, ip, None);
            assert_eq!(again(&mut w)[0], told, "{ip:#x}");
        }
    }

    #[test]
    fn an_access_on_two_pages_has_referenced_the_first() {
        for code in [READ, WRITE] {
            for (addr, looked, right) in [
                (0x1ffc, true, true),
                (0x2000, false, true),
                (0x1ffc, false, false),
                (0x2000, true, false),
            ] {
                let mut w = swept(2, true);
                fault_at(&mut w, code, PC, Some(looked));
                // With a second chance the place is that of 0x9000.
                let whys: Vec<_> = (0..2)
                    .map(|n| Page {
                        mm: 1,
                        addr: [0x1000, 0x9000][n],
                    })
                    .map(|page| w.model.as_mut().unwrap().is_member(page))
                    .collect();
                assert_eq!(whys, [looked, !looked]);
                w.access(PC, 0x2000, 1, code != WRITE);
                w.access(PC + 4, 0x2000, 1, code == WRITE);
                assert_eq!((w.counts.looks, w.counts.confused), (1, 0));
                grant(&mut w, STACK, 0x1000, READ);
                w.access(PC, addr, 8, code == WRITE);
                assert_eq!(w.counts.confused, u64::from(!right));
                assert_eq!(again(&mut w)[0], looked);
            }
        }
    }
}
