//! First segments, and the seats of the CPUs that have one.

use super::{Admission, Field, Number, Part, Set};
use crate::model::Shape;

/// ns without a number after which a CPU has no first segment.
pub const CLAIM_NS: u64 = 8_000_000;
/// First segments' lengths that a CPU has its seat for, at least.
const TERM: u64 = 4;
/// Seats or CPUs in the queue that one admission looks at.
const LOOK: usize = 8;
/// Bit of a claim's seat: the CPU is in the queue for one.
const WAITS: u64 = 1 << 32;

/// The first part of what a CPU that draws a number does with its claim.
#[derive(Clone, Debug)]
pub(super) struct Seating {
    seated: bool,
    stores: Vec<(Part, u64)>,
}

/// How many CPUs have a first segment at a time in a set of `n`; 0: each.
pub(super) fn seats(shape: &Shape, n: u64, cpus: usize) -> usize {
    let n = n as usize;
    if cpus <= 1 || n >= 2 * shape.first * cpus {
        return 0;
    }
    (n / shape.first / 8).max(1)
}

impl Set {
    /// Whether all CPUs together could put each other's numbers out.
    pub(super) fn is_crowded(&self) -> bool {
        self.n < 2 * self.claims.len() as u64
    }

    fn nr_seats(&self) -> usize {
        seats(&self.shape, self.n, self.claims.len())
    }

    /// Takes what a CPU has read of a word: the first that is left.
    fn read(&mut self, cpu: usize, part: Part) -> u64 {
        let at = self.loads[cpu].iter().position(|(p, _)| *p == part);
        match (at, part) {
            (Some(at), _) => self.loads[cpu].remove(at).1,
            (None, Part::Claim(of, field)) => self.claims[of][field as usize],
            (None, Part::Seat(seat)) => self.seats[seat],
            (None, _) => 0,
        }
    }

    fn read_claim(&mut self, cpu: usize, of: usize, field: Field) -> u64 {
        self.read(cpu, Part::Claim(of, field))
    }

    /// Whether a member is in a first segment, as a CPU with a number sees it.
    pub(super) fn is_first(&mut self, cpu: usize, ordinal: u64) -> bool {
        let Some(&Number { cpu: of, nth, .. }) = self.number(ordinal) else {
            return false;
        };
        let time = self.admission(cpu).map_or(0, |a| a.time);
        let counts = self.read_claim(cpu, of, Field::Counts);
        let (count, held) = ((counts >> 32) as u32, counts as u32);
        count.wrapping_sub(nth) < held
            && (self.nr_seats() == 0 || self.is_seated(cpu, of))
            && !self.is_over(cpu, of, time)
    }

    fn is_over(&mut self, cpu: usize, of: usize, time: u64) -> bool {
        if self.claims.len() == 1 {
            return false;
        }
        if time.saturating_sub(self.read_claim(cpu, of, Field::Time)) >= CLAIM_NS {
            return true;
        }
        let epoch = self.read_claim(cpu, of, Field::Epoch);
        epoch != self.read(cpu, Part::Switches(of))
    }

    fn is_seated(&mut self, cpu: usize, of: usize) -> bool {
        let seat = self.read_claim(cpu, of, Field::Seat) & !WAITS;
        let Some(seat) = seat.checked_sub(1).map(|s| s as usize) else {
            return false;
        };
        seat < self.seats.len() && self.read(cpu, Part::Seat(seat)) == of as u64 + 1
    }

    /// A CPU has drawn its first number: what it has stored of claims and seats must be what
    /// follows from what it had read.
    pub(super) fn took(&mut self, cpu: usize) {
        let drawn = |a: &&Admission| a.number.is_some() && a.stores.is_some();
        if self.admission(cpu).filter(drawn).is_none() {
            return;
        }
        self.take_seat(cpu);
        let Some(a) = self.admission_mut(cpu) else {
            return;
        };
        let Some(stores) = a.stores.take() else {
            return;
        };
        let (number, epoch) = (a.number.unwrap_or_default(), a.epoch);
        let time = Part::Claim(cpu, Field::Time);
        let time = stores.iter().rev().find(|(p, _)| *p == time);
        let time = time.map_or(0, |(_, value)| *value);
        let (must, nth) = self.take(cpu, epoch, time);
        // It does not wait any more for another CPU.
        let waits = (Part::Claim(cpu, Field::Waits), 0);
        let crowded = self.is_crowded();
        let stores: Vec<_> = stores
            .into_iter()
            .filter(|s| !crowded || *s != waits)
            .collect();
        if stores != must {
            self.misplaced(format!(
                "with number {number}, CPU {cpu} stores {stores:x?} and not {must:x?}"
            ));
        }
        self.loads[cpu].clear();
        if let Some(a) = self.admission_mut(cpu) {
            (a.nth, a.time) = (nth, time);
        }
    }

    /// What a CPU that draws a number must store, and which of its admissions that is.
    fn take(&mut self, cpu: usize, epoch: u32, time: u64) -> (Vec<(Part, u64)>, u32) {
        let own = |field| Part::Claim(cpu, field);
        let seating = self.admission_mut(cpu).and_then(|a| a.seating.take());
        let Some(Seating { seated, mut stores }) = seating else {
            return (Vec::new(), 0);
        };
        // Its admissions before, and how many of them are its first segment.
        let counts = self.read_claim(cpu, cpu, Field::Counts);
        let (count, mut held) = ((counts >> 32) as u32, counts as u32);
        if self.claims.len() > 1 {
            let idle = time.saturating_sub(self.read_claim(cpu, cpu, Field::Time)) >= CLAIM_NS;
            if idle || self.read_claim(cpu, cpu, Field::Epoch) != u64::from(epoch) {
                held = 0;
            }
            stores.push((own(Field::Epoch), u64::from(epoch)));
            stores.push((own(Field::Time), time));
        }
        let count = count.wrapping_add(1);
        if seated {
            held = (held + 1).min(self.shape.first as u32);
        }
        let counts = u64::from(count) << 32 | u64::from(held);
        stores.push((own(Field::Counts), counts));
        if self.nr_seats() > 0 && seated {
            let used = self.read_claim(cpu, cpu, Field::Used);
            stores.push((own(Field::Used), used + 1));
        }
        (stores, count)
    }

    /// Its first part, after which the lock of the seats is free: to be done before another CPU
    /// takes that.
    fn take_seat(&mut self, cpu: usize) {
        self.seater.take_if(|seater| *seater == cpu);
        let Some(a) = self.admission(cpu).filter(|a| a.seating.is_none()) else {
            return;
        };
        let epoch = a.epoch;
        let own = |field| Part::Claim(cpu, field);
        let time = a
            .stores
            .iter()
            .flatten()
            .find(|(p, _)| *p == own(Field::Time));
        let time = time.map_or(0, |(_, value)| *value);
        let mut seated = true;
        let mut stores = Vec::new();
        if self.nr_seats() > 0 {
            seated = self.is_seated(cpu, cpu);
            if !seated {
                // Without a seat, it has no first segment.
                let counts = self.read_claim(cpu, cpu, Field::Counts);
                stores.push((own(Field::Counts), counts & !u64::from(u32::MAX)));
                stores.push((own(Field::Used), 0));
                // If another CPU has the lock, this one does nothing.
                if self.loads[cpu].iter().any(|(p, _)| *p == own(Field::Seat)) {
                    if !self.is_seated(cpu, cpu) {
                        self.seat(cpu, epoch, time, &mut stores);
                    }
                    seated = self.is_seated(cpu, cpu);
                }
            }
        }
        if let Some(a) = self.admission_mut(cpu) {
            a.seating = Some(Seating { seated, stores });
        }
    }

    /// A CPU has loaded its seat. If it has no number yet, and this is not the first look at that,
    /// it has the lock of the seats: the CPU that had it last is done with that.
    pub(super) fn seat_loaded(&mut self, cpu: usize) {
        let own = Part::Claim(cpu, Field::Seat);
        let again = self.loads[cpu].iter().any(|(p, _)| *p == own);
        let takes = self
            .admission(cpu)
            .is_some_and(|a| a.number.is_none() && a.seating.is_none());
        if !takes || !again || self.seater == Some(cpu) {
            return;
        }
        if let Some(before) = self.seater.replace(cpu) {
            self.take_seat(before);
            self.seater = Some(cpu);
        }
    }

    /// A CPU without a seat queues up for one, and hands out those that are free.
    fn seat(&mut self, cpu: usize, epoch: u32, time: u64, stores: &mut Vec<(Part, u64)>) {
        let cpus = self.claims.len();
        stores.push((Part::Claim(cpu, Field::Epoch), u64::from(epoch)));
        stores.push((Part::Claim(cpu, Field::Time), time));
        let seat = self.read_claim(cpu, cpu, Field::Seat);
        if seat & WAITS == 0 {
            let seat = self.read_claim(cpu, cpu, Field::Seat);
            stores.push((Part::Claim(cpu, Field::Seat), seat | WAITS));
            let at = (self.queue.0 + self.queue.1) % cpus;
            stores.push((Part::Seat(cpus + at), cpu as u64));
            self.queue.1 += 1;
        }
        for _ in 0..LOOK {
            let (front, waiting) = self.queue;
            if waiting == 0 {
                return;
            }
            let next = self.read(cpu, Part::Seat(cpus + front)) as usize;
            if next >= cpus {
                return;
            }
            if next != cpu && self.is_over(cpu, next, time) {
                self.queue = ((front + 1) % cpus, waiting - 1);
                let seat = self.read_claim(cpu, next, Field::Seat) & !WAITS;
                stores.push((Part::Claim(next, Field::Seat), seat));
                continue;
            }
            let turn = self.turn;
            self.turn = (turn + 1) % self.nr_seats();
            let holder = self.read(cpu, Part::Seat(turn)).checked_sub(1);
            let free = holder.is_none_or(|holder| {
                let holder = holder as usize;
                let used = self.read_claim(cpu, holder, Field::Used);
                used >= TERM * self.shape.first as u64 || self.is_over(cpu, holder, time)
            });
            if free {
                self.queue = ((front + 1) % cpus, waiting - 1);
                stores.push((Part::Claim(next, Field::Seat), turn as u64 + 1));
                stores.push((Part::Seat(turn), next as u64 + 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_for_sets_that_are_too_small() {
        let shape = |first| Shape {
            first,
            ..Shape::fifo(64)
        };
        for (first, n, cpus, want) in [
            (16, 64, 2, 0),
            (16, 63, 2, 1),
            (16, 32, 1, 0),
            (16, 64, 4, 1),
            (16, 256, 64, 2),
        ] {
            assert_eq!(seats(&shape(first), n, cpus), want, "{first} {n} {cpus}");
        }
    }
}
