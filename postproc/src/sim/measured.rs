//! The measured errors of simulations of traces, compared with simulations of all references
//! of the same runs.
//!
//! `make fidelity` measures the errors with sqlite3, gcc, python3 and redis, and N = 64 and
//! 512. docs/fidelity.md has the full table and the method. This module has a part of that
//! table, and is the only place in the code that has these numbers. A test compares the two
//! tables. It also compares every sentence with such a number in the README, in docs/ and in
//! the code.

use serde::Serialize;

/// The error of a simulation: |misses of the trace − misses of all references| / (misses of
/// all references + distinct pages), in %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Error {
    /// The mean over all programs, both N, and all sizes of memory that count.
    pub mean_percent: f64,
    /// The largest error.
    pub worst_percent: f64,
}

/// How the trace was made and simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// A trace with FIFO.
    Plain,
    /// A trace with FIFO and `--again`, simulated with `--fill`.
    Filled,
    /// A trace with CLOCK.
    Clock,
    /// A trace with CLOCK, simulated with `--fill`.
    ClockFilled,
}

impl How {
    /// A trace whose set is a CLOCK or a FIFO, simulated with `--fill` or without.
    pub const fn of(clock: bool, filled: bool) -> Self {
        match (clock, filled) {
            (false, false) => How::Plain,
            (false, true) => How::Filled,
            (true, false) => How::Clock,
            (true, true) => How::ClockFilled,
        }
    }

    /// The name in the table of docs/fidelity.md.
    pub const fn name(self) -> &'static str {
        match self {
            How::Plain => "FIFO",
            How::Filled => "FIFO --again, filled",
            How::Clock => "CLOCK",
            How::ClockFilled => "CLOCK, filled",
        }
    }
}

/// The smallest size of memory for each column of [`Line::errors`], in multiples of N.
pub const FROM: [u32; 4] = [1, 4, 10, 30];

/// The smallest size of memory for which results are meant, in multiples of N. From there on
/// the theorem about LRU holds (see [`super::Filler`]). The errors of other policies were
/// measured.
pub const LEAST: u32 = 4;

/// A policy's errors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The policy's name.
    pub policy: &'static str,
    /// How the traces were made and simulated.
    pub how: How,
    /// The errors at sizes of memory of [`FROM`] times N and more.
    pub errors: [Error; FROM.len()],
}

/// All measured errors of traces that the kernel can make.
pub fn registry() -> &'static [Line] {
    LINES
}

/// Those of some policies about whose errors nothing is known: no bound is proven, and no
/// error was measured.
pub fn unknown(policies: impl IntoIterator<Item = &'static str>) -> Vec<&'static str> {
    let known = |policy: &str| {
        matches!(policy, "lru" | "opt") || LINES.iter().any(|line| line.policy == policy)
    };
    policies.into_iter().filter(|p| !known(p)).collect()
}

/// The measured error of a policy in memories of `times` N pages, if there is one.
pub fn error(policy: &str, how: How, times: f64) -> Option<Error> {
    let line = LINES
        .iter()
        .find(|line| line.policy == policy && line.how == how)?;
    let column = FROM.iter().rposition(|&from| f64::from(from) <= times)?;
    Some(line.errors[column])
}

const fn line(policy: &'static str, how: How, errors: [(f64, f64); FROM.len()]) -> Line {
    const fn error((mean_percent, worst_percent): (f64, f64)) -> Error {
        Error {
            mean_percent,
            worst_percent,
        }
    }
    let [a, b, c, d] = errors;
    Line {
        policy,
        how,
        errors: [error(a), error(b), error(c), error(d)],
    }
}

#[rustfmt::skip]
const LINES: &[Line] = &[
    line("lru", How::Plain, [(5.772, 66.79), (0.151, 2.29), (0.014, 0.07), (0.008, 0.07)]),
    line("lru", How::Filled, [(2.798, 63.63), (0.074, 1.19), (0.008, 0.05), (0.002, 0.01)]),
    line("lru", How::Clock, [(0.491, 15.54), (0.066, 1.67), (0.010, 0.04), (0.002, 0.01)]),
    line("lru", How::ClockFilled, [(0.521, 15.49), (0.066, 1.67), (0.010, 0.04), (0.002, 0.01)]),
    line("opt", How::Plain, [(2.578, 17.54), (0.295, 5.82), (0.042, 0.29), (0.009, 0.09)]),
    line("opt", How::Filled, [(0.810, 4.94), (0.142, 2.95), (0.020, 0.13), (0.001, 0.01)]),
    line("opt", How::Clock, [(0.864, 9.35), (0.114, 1.99), (0.013, 0.09), (0.004, 0.04)]),
    line("opt", How::ClockFilled, [(0.804, 9.34), (0.100, 1.37), (0.013, 0.09), (0.004, 0.04)]),
    line("clock", How::Plain, [(9.376, 55.07), (4.088, 29.73), (2.634, 8.38), (2.194, 8.38)]),
    line("clock", How::Filled, [(4.600, 38.16), (0.561, 3.34), (0.207, 0.62), (0.247, 0.62)]),
    line("clock", How::Clock, [(3.437, 12.46), (2.930, 12.46), (2.434, 6.65), (1.697, 6.65)]),
    line("clock", How::ClockFilled, [(0.985, 6.73), (0.486, 2.99), (0.225, 0.71), (0.254, 0.71)]),
    line("2q", How::Plain, [(3.176, 37.94), (0.157, 2.30), (0.019, 0.04), (0.007, 0.03)]),
    line("2q", How::Filled, [(1.266, 12.06), (0.074, 1.31), (0.014, 0.05), (0.007, 0.03)]),
    line("2q", How::Clock, [(1.846, 31.50), (0.054, 0.42), (0.018, 0.08), (0.007, 0.03)]),
    line("2q", How::ClockFilled, [(0.748, 5.38), (0.046, 0.38), (0.018, 0.07), (0.007, 0.03)]),
    line("arc", How::Plain, [(4.252, 40.77), (1.831, 8.54), (1.307, 4.88), (0.544, 1.20)]),
    line("arc", How::Filled, [(4.680, 60.49), (0.363, 2.78), (0.131, 0.45), (0.062, 0.14)]),
    line("arc", How::Clock, [(3.173, 14.00), (2.197, 9.52), (1.503, 5.50), (0.589, 0.94)]),
    line("arc", How::ClockFilled, [(1.156, 5.25), (0.410, 2.87), (0.125, 0.48), (0.055, 0.15)]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_column_is_that_of_the_size() {
        let at = |times| error("lru", How::Plain, times).map(|e| e.mean_percent);
        let columns = LINES[0].errors.map(|e| Some(e.mean_percent));
        assert_eq!(at(0.9), None);
        assert_eq!([at(1.0), at(4.0), at(10.0), at(31.0)], columns);
        assert_eq!(at(3.9), columns[0]);
        assert_eq!(error("random", How::Plain, 4.0), None);
    }
}
