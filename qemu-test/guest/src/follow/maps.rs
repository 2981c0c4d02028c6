//! The mappings of an address space as the program made them, whatever a tracer has taken away since.

use std::collections::BTreeMap;
use std::ops::Range;

/// Right to read, of [`Area::rights`]: as in mmap().
pub const READ: u8 = libc::PROT_READ as u8;
/// Right to write.
pub const WRITE: u8 = libc::PROT_WRITE as u8;
/// Right to execute.
pub const EXEC: u8 = libc::PROT_EXEC as u8;

/// How far below its lowest page a stack may grow: the default limit.
const STACK_ROOM: u64 = 8 << 20;

/// What a range is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    /// What the program may do there.
    pub rights: u8,
    /// Of no file.
    pub anonymous: bool,
    /// It grows down when what is below is accessed.
    pub stack: bool,
}

/// Mappings by address. Each range is of whole pages.
#[derive(Clone, Default, Debug)]
pub struct Maps {
    /// By first address: the end and what it is. They do not overlap.
    areas: BTreeMap<u64, (u64, Area)>,
    /// Where the heap of brk() ends.
    brk: u64,
}

/// Pages that a range of bytes lies on, as addresses.
pub fn whole(start: u64, len: u64) -> Range<u64> {
    let end = start.saturating_add(len).saturating_add(0xfff) & !0xfff;
    start & !0xfff..end
}

impl Maps {
    /// From /proc/PID/maps. Also says where the vDSO is, if there is one. The kernel's own mappings are not
    /// among the areas.
    pub fn parse(text: &str) -> (Self, Option<Range<u64>>) {
        let mut maps = Maps::default();
        let mut vdso = None;
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (range, rights) = (words.next(), words.next().unwrap_or_default());
            let hex = |text: &str| u64::from_str_radix(text, 16).ok();
            let range = range.and_then(|r| r.split_once('-'));
            let Some((Some(start), Some(end))) = range.map(|(a, b)| (hex(a), hex(b))) else {
                continue;
            };
            let mut words = words.skip(2);
            let (inode, name) = (words.next(), words.next().unwrap_or_default());
            match name {
                "[vdso]" => vdso = Some(start..end),
                name if name.starts_with("[v") => {}
                name => {
                    let right = |letter, right| if rights.contains(letter) { right } else { 0 };
                    let area = Area {
                        rights: right('r', READ) | right('w', WRITE) | right('x', EXEC),
                        anonymous: inode == Some("0"),
                        stack: name == "[stack]",
                    };
                    maps.areas.insert(start, (end, area));
                    if name == "[heap]" {
                        maps.brk = end;
                    }
                }
            }
        }
        (maps, vdso)
    }

    /// What lies at an address.
    pub fn at(&self, addr: u64) -> Option<Area> {
        let (_, (end, area)) = self.areas.range(..=addr).next_back()?;
        (addr < *end).then_some(*area)
    }

    /// The parts of a range that are mapped.
    pub fn within(&self, range: Range<u64>) -> Vec<(Range<u64>, Area)> {
        let before = self.areas.range(..range.start).next_back();
        let inside = self.areas.range(range.clone());
        before
            .into_iter()
            .chain(inside)
            .map(|(start, (end, area))| {
                let part = (*start).max(range.start)..(*end).min(range.end);
                (part, *area)
            })
            .filter(|(part, _)| part.start < part.end)
            .collect()
    }

    /// All that is mapped.
    pub fn all(&self) -> Vec<(Range<u64>, Area)> {
        self.within(0..u64::MAX)
    }

    /// Nothing is mapped in a range any more.
    pub fn unmap(&mut self, range: Range<u64>) {
        for (part, area) in self.within(range.clone()) {
            let before = self.areas.range(..=part.start).next_back();
            let Some((&start, &(end, _))) = before else {
                continue;
            };
            self.areas.remove(&start);
            if start < part.start {
                self.areas.insert(start, (part.start, area));
            }
            if part.end < end {
                self.areas.insert(part.end, (end, area));
            }
        }
    }

    /// A range is mapped anew.
    pub fn map(&mut self, range: Range<u64>, area: Area) {
        if range.start < range.end {
            self.unmap(range.clone());
            self.areas.insert(range.start, (range.end, area));
        }
    }

    /// The program changes its rights.
    pub fn protect(&mut self, range: Range<u64>, rights: u8) {
        for (part, area) in self.within(range) {
            self.map(part, Area { rights, ..area });
        }
    }

    /// A mapping moves, or its size changes.
    pub fn moved(&mut self, old: Range<u64>, new: Range<u64>) {
        let parts = self.within(old.clone());
        self.unmap(old.clone());
        let Some((_, last)) = parts.last().cloned() else {
            return;
        };
        let at = |addr: u64| (addr - old.start).saturating_add(new.start).min(new.end);
        self.unmap(new.clone());
        for (part, area) in parts {
            self.map(at(part.start)..at(part.end), area);
        }
        // What is new is like the end of what was there.
        self.map(at(old.end)..new.end, last);
    }

    /// brk() has returned `end`. Gives what is not mapped any more, and what is mapped since.
    pub fn broke(&mut self, end: u64) -> [Range<u64>; 2] {
        let up = |addr: u64| addr.saturating_add(0xfff) & !0xfff;
        // The first answer says where the heap is.
        let old = up(if self.brk == 0 { end } else { self.brk });
        let new = up(end);
        self.brk = end;
        if new <= old {
            self.unmap(new..old);
            return [new..old, new..new];
        }
        let area = Area {
            rights: READ | WRITE,
            anonymous: true,
            stack: false,
        };
        self.map(old..new, area);
        [old..old, old..new]
    }

    /// If an address lies below the stack and nothing else is there, the stack has grown down to it.
    pub fn grown(&mut self, addr: u64) -> Option<Area> {
        let (&start, &(end, area)) = self.areas.range(addr..).next()?;
        if self.at(addr).is_some() || !area.stack || start - addr > STACK_ROOM {
            return None;
        }
        self.areas.remove(&start);
        self.areas.insert(addr & !0xfff, (end, area));
        Some(area)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RW: u8 = READ | WRITE;

    fn area(rights: u8) -> Area {
        Area {
            rights,
            anonymous: true,
            stack: false,
        }
    }

    fn ranges(maps: &Maps) -> Vec<(u64, u64, u8)> {
        let all = maps.all().into_iter();
        all.map(|(r, a)| (r.start, r.end, a.rights)).collect()
    }

    const TEXT: &str = "\
00400000-00402000 r-xp 00000000 fe:00 123 /bin/true
00403000-00404000 rw-p 00003000 fe:00 123 /bin/true
00500000-00521000 rw-p 00000000 00:00 0 [heap]
7ffff7ff9000-7ffff7ffd000 r--p 00000000 00:00 0 [vvar]
7ffff7ffd000-7ffff7fff000 r-xp 00000000 00:00 0 [vdso]
7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0 [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
";

    #[test]
    fn mappings_are_read() {
        let (maps, vdso) = Maps::parse(TEXT);
        assert_eq!(vdso, Some(0x7fff_f7ff_d000..0x7fff_f7ff_f000));
        let found = ranges(&maps);
        assert_eq!(found.len(), 4);
        assert_eq!(found[0], (0x40_0000, 0x40_2000, READ | EXEC));
        assert!(maps.at(0x40_1fff).is_some_and(|a| !a.anonymous));
        assert!(maps.at(0x50_0000).is_some_and(|a| a.anonymous && !a.stack));
        assert!(maps.at(0x7fff_ffff_e000).is_some_and(|a| a.stack));
        assert_eq!(maps.at(0x40_2000), None);
        assert_eq!(maps.brk, 0x52_1000);
    }

    #[test]
    fn parts_are_unmapped_and_protected() {
        let mut maps = Maps::default();
        maps.map(0x1000..0x9000, area(RW));
        maps.unmap(0x3000..0x4000);
        maps.protect(0x2000..0x6000, READ);
        let all = [
            (0x1000, 0x2000, RW),
            (0x2000, 0x3000, READ),
            (0x4000, 0x6000, READ),
            (0x6000, 0x9000, RW),
        ];
        assert_eq!(ranges(&maps), all);
        let parts = maps.within(0x2800..0x5000);
        assert_eq!(parts[0].0, 0x2800..0x3000);
        assert_eq!(parts[1].0, 0x4000..0x5000);
        maps.unmap(0..u64::MAX);
        assert!(maps.all().is_empty());
    }

    #[test]
    fn a_mapping_moves_and_grows() {
        let mut maps = Maps::default();
        maps.map(0x1000..0x3000, area(READ));
        maps.protect(0x2000..0x3000, RW);
        maps.moved(0x1000..0x3000, 0x11000..0x15000);
        let all = [
            (0x11000, 0x12000, READ),
            (0x12000, 0x13000, RW),
            (0x13000, 0x15000, RW),
        ];
        assert_eq!(ranges(&maps), all);
        // It shrinks where it is.
        maps.moved(0x11000..0x15000, 0x11000..0x12000);
        assert_eq!(ranges(&maps), [(0x11000, 0x12000, READ)]);
    }

    #[test]
    fn the_heap_and_the_stack_grow() {
        let (mut maps, _) = Maps::parse("7ffffffde000-7ffffffff000 rw-p 0 00:00 0 [stack]\n");
        assert!(maps.broke(0x50_0010).iter().all(Range::is_empty));
        assert_eq!(maps.broke(0x50_2800)[1], 0x50_1000..0x50_3000);
        assert!(maps.broke(0x50_2900).iter().all(Range::is_empty));
        assert!(maps.at(0x50_1000).is_some_and(|a| a.rights == RW));
        let [gone, new] = maps.broke(0x50_1000);
        assert!(gone == (0x50_1000..0x50_3000) && new.is_empty());
        assert!(maps.at(0x50_1000).is_none() && maps.at(0x50_0fff).is_none());
        assert_eq!(maps.grown(0x7fff_fffd_8123).map(|a| a.rights), Some(RW));
        assert!(maps.at(0x7fff_fffd_8000).is_some());
        // It is known now, and the next one is too far away.
        assert_eq!(maps.grown(0x7fff_fffd_8123), None);
        assert_eq!(maps.grown(0x7fff_0000_0000), None);
        assert_eq!(maps.grown(0x7fff_ffff_f000), None);
    }
}
