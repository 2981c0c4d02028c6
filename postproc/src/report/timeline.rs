//! Time in columns. Their number is bounded, although the end is not known.

/// The largest number of columns of most figures. Once that many were reached, there are at least half as many.
pub const COLUMNS: usize = 320;

/// Cuts time into columns of equal width.
///
/// If a moment lies after the last column, columns become twice as wide, and counts by column
/// must be added up in pairs.
#[derive(Clone, Debug)]
pub struct Timeline<const MOST: usize = COLUMNS> {
    start: u64,
    width: u64,
    /// First moment after the present column.
    until: u64,
    present: usize,
}

/// The effect of a moment on a timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moved {
    /// The present column has ended, and later columns may have ended, too.
    To(usize),
    /// Columns are twice as wide: counts must be added up in pairs.
    Doubled,
}

impl<const MOST: usize> Timeline<MOST> {
    /// Begins at `start`; `length` is the expected length.
    pub fn new(start: u64, length: u64) -> Self {
        let width = (length / MOST as u64 + 1).max(1);
        Timeline {
            start,
            width,
            until: start.saturating_add(width),
            present: 0,
        }
    }

    /// The present column.
    #[inline]
    pub fn present(&self) -> usize {
        self.present
    }

    /// Width of a column.
    pub fn width(&self) -> u64 {
        self.width
    }

    /// The first moment after the present column.
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Moves on towards a moment; to be called until it returns `None`. A moment before the
    /// present column belongs to the present column.
    #[inline]
    pub fn step(&mut self, moment: u64) -> Option<Moved> {
        if moment < self.until {
            return None;
        }
        Some(self.advance(moment))
    }

    #[cold]
    fn advance(&mut self, moment: u64) -> Moved {
        let wanted = (moment - self.start) / self.width;
        if wanted < MOST as u64 {
            self.present = wanted as usize;
            self.until = self
                .start
                .saturating_add(self.width.saturating_mul(wanted + 1));
            return Moved::To(self.present);
        }
        self.width = self.width.saturating_mul(2);
        self.present /= 2;
        self.until = self
            .start
            .saturating_add(self.width.saturating_mul(self.present as u64 + 1));
        Moved::Doubled
    }
}

/// Counts by column.
#[derive(Clone, Debug)]
pub struct Row<const MOST: usize = COLUMNS>(Box<[u32; MOST]>);

impl<const MOST: usize> Default for Row<MOST> {
    fn default() -> Self {
        Row(Box::new([0; MOST]))
    }
}

impl<const MOST: usize> Row<MOST> {
    /// Adds one to a column.
    #[inline]
    pub fn count(&mut self, column: usize) {
        let cell = &mut self.0[column];
        *cell = cell.saturating_add(1);
    }

    /// Gives a column a count.
    #[cfg(test)]
    pub fn set(&mut self, column: usize, count: u32) {
        self.0[column] = count;
    }

    /// Follows [`Moved::Doubled`].
    pub fn double(&mut self) {
        for i in 0..MOST {
            let pair = |j: usize| self.0.get(j).copied().unwrap_or(0);
            self.0[i] = pair(2 * i).saturating_add(pair(2 * i + 1));
        }
    }

    /// Adds another row's counts.
    pub fn add(&mut self, other: &Self) {
        for (to, from) in self.0.iter_mut().zip(other.0.iter()) {
            *to = to.saturating_add(*from);
        }
    }

    /// The counts.
    pub fn cells(&self) -> &[u32] {
        &self.0[..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_hold_all_of_any_length() {
        let mut line = <Timeline>::new(10, 0);
        let mut row = <Row>::default();
        let moments = 5 * COLUMNS as u64;
        for moment in 10..10 + moments {
            while let Some(moved) = line.step(moment) {
                if moved == Moved::Doubled {
                    row.double();
                }
            }
            row.count(line.present());
        }
        assert_eq!(line.width(), 8);
        assert_eq!(
            row.cells().iter().map(|&c| u64::from(c)).sum::<u64>(),
            moments
        );
        let used = moments as usize / 8;
        assert!(row.cells()[..used].iter().all(|&c| c == 8), "{row:?}");
        assert!(row.cells()[used..].iter().all(|&c| c == 0));
    }
}
