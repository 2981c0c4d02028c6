//! The addresses of the kernel's functions, from the System.map of a kernel that is booted
//! with `nokaslr`.

use std::collections::HashMap;

/// Where the kernel's image begins; the symbols before it are offsets.
const IMAGE: u64 = 0xffff_ffff_8000_0000;

/// Addresses by name.
pub struct Symbols {
    by_name: HashMap<String, u64>,
    /// By address.
    sorted: Vec<(u64, String)>,
}

impl Symbols {
    /// Reads the text of a System.map.
    ///
    /// # Errors
    ///
    /// A line that is not `address type name`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut by_name = HashMap::new();
        let mut sorted = Vec::new();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(addr), Some(_), Some(name)) = (words.next(), words.next(), words.next())
            else {
                return Err(format!("not a line of a System.map: {line:?}"));
            };
            let addr = u64::from_str_radix(addr, 16)
                .map_err(|e| format!("not an address in {line:?}: {e}"))?;
            by_name.insert(name.to_owned(), addr);
            sorted.push((addr, name.to_owned()));
        }
        sorted.sort_unstable();
        Ok(Symbols { by_name, sorted })
    }

    /// Where a function begins.
    ///
    /// # Errors
    ///
    /// If there is none of that name.
    pub fn start(&self, name: &str) -> Result<u64, String> {
        self.by_name
            .get(name)
            .copied()
            .ok_or_else(|| format!("the kernel has no function {name}"))
    }

    /// Where a function begins, and where the next one does.
    ///
    /// # Errors
    ///
    /// If there is none of that name, or none behind it.
    pub fn range(&self, name: &str) -> Result<std::ops::Range<u64>, String> {
        let start = self.start(name)?;
        let behind = self.sorted.partition_point(|(a, _)| *a <= start);
        self.sorted
            .get(behind)
            .map(|(end, _)| start..*end)
            .ok_or_else(|| format!("nothing lies behind {name}"))
    }

    /// The symbol that an address of the kernel's image belongs to.
    pub fn name(&self, addr: u64) -> Option<&str> {
        self.name_at(self.place(addr)?)
    }

    /// The place of that symbol among all symbols, in the order of their addresses.
    pub fn place(&self, addr: u64) -> Option<usize> {
        let (first, end) = (self.sorted.first()?, self.sorted.last()?);
        if addr < first.0.max(IMAGE) || addr >= end.0 {
            return None;
        }
        let behind = self.sorted.partition_point(|(a, _)| *a <= addr);
        behind.checked_sub(1)
    }

    /// The name of the symbol at a place.
    pub fn name_at(&self, place: usize) -> Option<&str> {
        self.sorted.get(place).map(|(_, name)| name.as_str())
    }

    /// How many symbols there are.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ranges() {
        let s =
            Symbols::parse("ffffffff81000010 T a\nffffffff81000000 t b\nffffffff81000010 T c\n")
                .unwrap();
        assert_eq!(s.start("a"), Ok(0xffff_ffff_8100_0010));
        assert_eq!(
            s.range("b"),
            Ok(0xffff_ffff_8100_0000..0xffff_ffff_8100_0010)
        );
        assert!(s.range("c").is_err());
        assert!(s.start("d").is_err());
        assert_eq!(s.name(0xffff_ffff_8100_000f), Some("b"));
        assert_eq!(s.name(0xffff_ffff_8100_0010), None);
        assert_eq!(s.name(0x1000), None);
    }

    #[test]
    fn what_is_no_map_is_refused() {
        assert!(Symbols::parse("ffffffff81000010 T").is_err());
        assert!(Symbols::parse("here T a").is_err());
    }
}
