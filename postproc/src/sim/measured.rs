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
    line("lru", How::Plain, [(5.843, 66.83), (0.172, 2.83), (0.019, 0.08), (0.011, 0.08)]),
    line("lru", How::Filled, [(2.831, 63.74), (0.088, 1.31), (0.012, 0.07), (0.002, 0.01)]),
    line("lru", How::Clock, [(0.530, 15.59), (0.075, 1.73), (0.010, 0.05), (0.005, 0.02)]),
    line("lru", How::ClockFilled, [(0.544, 15.53), (0.076, 1.74), (0.009, 0.05), (0.004, 0.02)]),
    line("opt", How::Plain, [(2.549, 17.56), (0.295, 5.74), (0.040, 0.28), (0.009, 0.09)]),
    line("opt", How::Filled, [(0.806, 5.01), (0.140, 2.95), (0.021, 0.14), (0.003, 0.03)]),
    line("opt", How::Clock, [(0.869, 9.39), (0.110, 1.99), (0.013, 0.07), (0.004, 0.04)]),
    line("opt", How::ClockFilled, [(0.814, 9.38), (0.096, 1.37), (0.013, 0.07), (0.004, 0.04)]),
    line("clock", How::Plain, [(9.803, 55.10), (4.557, 26.03), (3.399, 8.70), (3.357, 8.70)]),
    line("clock", How::Filled, [(4.657, 38.52), (0.641, 3.39), (0.199, 0.48), (0.204, 0.47)]),
    line("clock", How::Clock, [(3.927, 12.30), (3.679, 12.30), (3.457, 8.40), (3.754, 8.40)]),
    line("clock", How::ClockFilled, [(1.001, 6.20), (0.573, 3.02), (0.273, 0.63), (0.239, 0.52)]),
    line("2q", How::Plain, [(3.366, 38.18), (0.284, 1.78), (0.178, 1.68), (0.000, 0.00)]),
    line("2q", How::Filled, [(1.295, 11.98), (0.151, 1.73), (0.011, 0.03), (0.005, 0.02)]),
    line("2q", How::Clock, [(2.873, 72.74), (0.095, 0.64), (0.008, 0.06), (0.000, 0.00)]),
    line("2q", How::ClockFilled, [(0.822, 5.52), (0.088, 0.55), (0.010, 0.05), (0.002, 0.01)]),
    line("arc", How::Plain, [(4.523, 41.44), (2.150, 8.07), (1.734, 5.36), (1.533, 4.90)]),
    line("arc", How::Filled, [(4.801, 60.11), (0.513, 2.83), (0.205, 0.81), (0.101, 0.27)]),
    line("arc", How::Clock, [(3.539, 20.36), (2.572, 9.69), (1.738, 5.83), (1.414, 4.49)]),
    line("arc", How::ClockFilled, [(1.370, 5.69), (0.613, 2.94), (0.220, 0.84), (0.106, 0.30)]),
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
