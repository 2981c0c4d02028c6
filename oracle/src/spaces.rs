//! Which address space a CPU has loaded, and which ones are traced.

use std::collections::HashMap;

/// Kernel stacks of x86-64 are 16 KiB and aligned to that.
pub const STACK_MASK: u64 = !0x3fff;
/// The page table's address in CR3.
pub const TABLE_MASK: u64 = 0x000f_ffff_ffff_f000;

/// The address space that a CPU has loaded.
#[derive(Clone, Copy, Default)]
struct Cpu {
    /// The mm_struct that the kernel is about to load the page table of.
    arriving: Option<u64>,
    /// The mm_struct whose page table is loaded.
    loaded: Option<u64>,
    /// The table.
    table: u64,
    /// The loaded address space's number, if it is traced.
    current: Option<u32>,
}

/// The address spaces of a guest.
pub struct Spaces {
    /// While a trace is on.
    on: bool,
    /// Numbers of traced address spaces by the address of their mm_struct.
    ids: HashMap<u64, u32>,
    /// Numbers given out since boot.
    numbers: u32,
    /// Stack of the task that makes an address space, the mm_struct, and whether
    /// it has lived already.
    numbering: HashMap<u64, (u64, bool)>,
    /// Address spaces that have lived already and whose pages are being disabled, by
    /// the stack of the task that does it.
    joining: HashMap<u64, u32>,
    /// mm_structs by page table.
    by_table: HashMap<u64, u64>,
    cpus: Vec<Cpu>,
}

impl Spaces {
    /// None, on so many CPUs.
    pub fn new(cpus: usize) -> Self {
        Spaces {
            on: false,
            ids: HashMap::new(),
            numbers: 0,
            numbering: HashMap::new(),
            joining: HashMap::new(),
            by_table: HashMap::new(),
            cpus: vec![Cpu::default(); cpus],
        }
    }

    fn find(&mut self) {
        for cpu in &mut self.cpus {
            cpu.current = cpu
                .loaded
                .filter(|_| self.on)
                .and_then(|mm| self.ids.get(&mm).copied());
        }
    }

    /// A trace begins.
    pub fn begin(&mut self) {
        self.on = true;
        self.ids.clear();
        self.joining.clear();
        self.find();
    }

    /// It is over.
    pub fn end(&mut self) {
        self.on = false;
        self.find();
    }

    /// `mm` may be given a number next, by the task on this stack. If it `lives`
    /// already, its pages are disabled after that, and its own tasks may run before
    /// all are.
    pub fn comes(&mut self, stack: u64, mm: u64, lives: bool) {
        // An earlier address space may have had the same mm_struct.
        self.ids.remove(&mm);
        self.numbering.insert(stack & STACK_MASK, (mm, lives));
        self.find();
    }

    /// The task on this stack gives the next number. Returns the mm_struct and its number; `None` if
    /// the task has announced none.
    pub fn numbered(&mut self, stack: u64) -> Option<(u64, u32)> {
        self.numbers += 1;
        let (mm, lives) = self.numbering.remove(&(stack & STACK_MASK))?;
        if lives {
            self.joining.insert(stack & STACK_MASK, self.numbers);
        }
        self.ids.insert(mm, self.numbers);
        self.find();
        Some((mm, self.numbers))
    }

    /// The task on this stack has disabled all pages of what it lets join, if it
    /// does such a thing.
    pub fn joined(&mut self, stack: u64) {
        self.joining.remove(&(stack & STACK_MASK));
    }

    /// Whether pages of an address space may still be enabled from before the trace.
    pub fn is_joining(&self, number: u32) -> bool {
        self.joining.values().any(|&n| n == number)
    }

    /// The kernel on this CPU is about to switch to `mm`.
    pub fn switching(&mut self, cpu: usize, mm: u64) {
        self.cpus[cpu].arriving = Some(mm);
    }

    /// CR3 is written.
    pub fn table_loaded(&mut self, cpu: usize, cr3: u64) {
        let at = &mut self.cpus[cpu];
        at.table = cr3 & TABLE_MASK;
        if let Some(mm) = at.arriving.take() {
            self.by_table.insert(at.table, mm);
        }
        at.loaded = self.by_table.get(&at.table).copied();
        self.find();
    }

    /// The page table that a CPU has loaded.
    pub fn table(&self, cpu: usize) -> u64 {
        self.cpus[cpu].table
    }

    /// The number of the address space that a CPU has loaded, if it is traced.
    pub fn current(&self, cpu: usize) -> Option<u32> {
        self.cpus[cpu].current
    }

    /// Whether any CPU has a traced one loaded.
    pub fn any(&self) -> bool {
        self.cpus.iter().any(|cpu| cpu.current.is_some())
    }

    /// The number of the address space that this is the mm_struct of.
    pub fn number(&self, mm: u64) -> Option<u32> {
        self.ids.get(&mm).copied().filter(|_| self.on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: u64 = 0xffff_8880_0000_4000;

    #[test]
    fn each_cpu_has_its_own() {
        let mut s = Spaces::new(2);
        for (cpu, mm, cr3) in [(0, 100, 0x1000), (1, 200, 0x2000)] {
            s.switching(cpu, mm);
            s.table_loaded(cpu, cr3);
        }
        s.begin();
        s.comes(STACK, 200, false);
        assert!(!s.any());
        assert_eq!(s.numbered(STACK + 0x100), Some((200, 1)));
        assert_eq!((s.current(0), s.current(1)), (None, Some(1)));
        // The other CPU follows, and then both go on, without being told.
        s.table_loaded(0, 0x2001);
        assert_eq!((s.current(0), s.table(0)), (Some(1), 0x2000));
        s.table_loaded(0, 0x1000);
        s.table_loaded(1, 0x1000);
        assert!(!s.any());
        assert_eq!((s.number(200), s.number(100)), (Some(1), None));
        s.end();
        assert_eq!(s.number(200), None);
    }
}
