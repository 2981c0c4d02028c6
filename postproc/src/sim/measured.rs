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

/// The measured error of a policy in memories of `times` N pages, if there is one.
pub fn error(policy: &str, how: How, times: f64) -> Option<Error> {
    let line = LINES
        .iter()
        .find(|line| line.policy == policy && line.how == how)?;
    let column = FROM.iter().rposition(|&from| f64::from(from) <= times)?;
    Some(line.errors[column])
}

/// Whether the error of a policy was measured, at some size.
pub fn is_known(policy: &str) -> bool {
    LINES.iter().any(|line| line.policy == policy)
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
    line("lru", How::Plain, [(5.750, 66.18), (0.163, 2.82), (0.017, 0.06), (0.007, 0.06)]),
    line("lru", How::Filled, [(2.806, 63.77), (0.078, 1.18), (0.013, 0.07), (0.002, 0.02)]),
    line("lru", How::Clock, [(0.494, 15.48), (0.061, 1.68), (0.010, 0.04), (0.004, 0.02)]),
    line("lru", How::ClockFilled, [(0.524, 15.43), (0.061, 1.70), (0.010, 0.04), (0.004, 0.02)]),
    line("opt", How::Plain, [(2.578, 17.56), (0.292, 5.74), (0.042, 0.29), (0.009, 0.09)]),
    line("opt", How::Filled, [(0.756, 4.93), (0.131, 2.95), (0.025, 0.15), (0.005, 0.05)]),
    line("opt", How::Clock, [(0.869, 9.28), (0.115, 2.01), (0.013, 0.09), (0.004, 0.04)]),
    line("opt", How::ClockFilled, [(0.816, 9.27), (0.101, 1.38), (0.013, 0.09), (0.004, 0.04)]),
    line("clock", How::Plain, [(9.406, 54.60), (4.104, 29.73), (2.665, 8.30), (2.206, 8.30)]),
    line("clock", How::Filled, [(4.638, 38.23), (0.596, 3.33), (0.183, 0.71), (0.268, 0.71)]),
    line("clock", How::Clock, [(3.491, 12.56), (2.961, 12.56), (2.524, 6.62), (1.661, 6.62)]),
    line("clock", How::ClockFilled, [(0.995, 6.96), (0.449, 3.02), (0.229, 0.71), (0.260, 0.71)]),
    line("2q", How::Plain, [(2.857, 37.20), (0.150, 2.24), (0.015, 0.04), (0.009, 0.03)]),
    line("2q", How::Filled, [(1.330, 12.08), (0.083, 1.23), (0.013, 0.04), (0.009, 0.03)]),
    line("2q", How::Clock, [(1.651, 26.71), (0.046, 0.45), (0.013, 0.05), (0.007, 0.03)]),
    line("2q", How::ClockFilled, [(0.740, 5.21), (0.045, 0.38), (0.013, 0.05), (0.007, 0.03)]),
    line("arc", How::Plain, [(4.218, 40.22), (1.831, 8.44), (1.242, 4.96), (0.555, 1.20)]),
    line("arc", How::Filled, [(4.705, 60.48), (0.351, 2.79), (0.113, 0.46), (0.055, 0.14)]),
    line("arc", How::Clock, [(3.090, 13.27), (2.201, 9.60), (1.479, 5.55), (0.582, 0.92)]),
    line("arc", How::ClockFilled, [(1.191, 5.13), (0.435, 2.94), (0.120, 0.49), (0.057, 0.15)]),
    line("fifo", How::Plain, [(3.132, 27.67), (0.391, 2.28), (0.031, 0.13), (0.008, 0.03)]),
    line("fifo", How::Filled, [(1.681, 15.64), (0.075, 0.30), (0.013, 0.04), (0.004, 0.03)]),
    line("fifo", How::Clock, [(1.973, 19.96), (0.083, 0.35), (0.044, 0.35), (0.005, 0.02)]),
    line("fifo", How::ClockFilled, [(0.979, 10.50), (0.062, 0.28), (0.025, 0.17), (0.005, 0.02)]),
    line("segq", How::Plain, [(7.403, 63.79), (0.116, 0.68), (0.012, 0.04), (0.011, 0.04)]),
    line("segq", How::Filled, [(4.061, 53.32), (0.030, 0.12), (0.009, 0.05), (0.002, 0.01)]),
    line("segq", How::Clock, [(0.804, 9.03), (0.049, 0.31), (0.013, 0.04), (0.007, 0.02)]),
    line("segq", How::ClockFilled, [(0.929, 9.57), (0.049, 0.39), (0.012, 0.04), (0.005, 0.02)]),
    line("active-inactive", How::Plain, [(1.800, 12.06), (0.275, 2.01), (0.214, 2.01), (0.010, 0.05)]),
    line("active-inactive", How::Filled, [(5.242, 40.92), (0.256, 1.60), (0.310, 1.60), (0.003, 0.01)]),
    line("active-inactive", How::Clock, [(5.841, 44.59), (0.145, 1.42), (0.217, 1.42), (0.002, 0.01)]),
    line("active-inactive", How::ClockFilled, [(1.269, 10.99), (0.146, 1.42), (0.217, 1.42), (0.002, 0.01)]),
    line("mglru", How::Plain, [(9.124, 70.54), (1.019, 19.82), (0.034, 0.17), (0.030, 0.17)]),
    line("mglru", How::Filled, [(2.253, 22.29), (0.374, 5.85), (0.056, 0.23), (0.040, 0.23)]),
    line("mglru", How::Clock, [(5.537, 74.63), (0.133, 1.20), (0.043, 0.20), (0.033, 0.20)]),
    line("mglru", How::ClockFilled, [(0.888, 10.16), (0.097, 0.51), (0.044, 0.20), (0.033, 0.20)]),
    line("car", How::Plain, [(6.400, 27.11), (4.314, 27.11), (2.786, 5.97), (1.784, 5.68)]),
    line("car", How::Filled, [(4.271, 33.51), (1.084, 3.81), (1.055, 3.81), (0.972, 3.81)]),
    line("car", How::Clock, [(4.231, 15.88), (3.035, 12.87), (2.211, 5.82), (0.981, 2.54)]),
    line("car", How::ClockFilled, [(1.814, 8.38), (1.096, 3.81), (0.972, 3.81), (0.984, 3.81)]),
    line("clock-pro", How::Plain, [(8.679, 37.33), (4.215, 22.29), (3.223, 8.84), (2.599, 8.84)]),
    line("clock-pro", How::Filled, [(3.735, 23.27), (0.893, 4.85), (0.925, 4.85), (1.240, 4.85)]),
    line("clock-pro", How::Clock, [(6.272, 46.97), (3.381, 15.76), (3.024, 11.66), (2.552, 11.66)]),
    line("clock-pro", How::ClockFilled, [(2.368, 13.86), (0.950, 4.52), (1.179, 3.60), (1.049, 3.60)]),
    line("lirs", How::Plain, [(14.728, 60.90), (9.123, 28.19), (6.902, 26.20), (7.016, 26.20)]),
    line("lirs", How::Filled, [(4.006, 16.41), (1.651, 7.47), (0.771, 2.90), (0.313, 1.13)]),
    line("lirs", How::Clock, [(11.711, 49.10), (9.331, 26.15), (6.587, 26.15), (6.580, 26.15)]),
    line("lirs", How::ClockFilled, [(3.800, 17.71), (1.729, 8.01), (0.771, 2.91), (0.327, 1.16)]),
    line("s3-fifo", How::Plain, [(7.026, 34.47), (4.637, 34.47), (5.025, 34.47), (6.914, 34.47)]),
    line("s3-fifo", How::Filled, [(4.261, 31.06), (3.859, 31.06), (4.781, 31.06), (5.973, 31.06)]),
    line("s3-fifo", How::Clock, [(4.940, 32.77), (4.207, 32.77), (4.702, 32.77), (6.358, 32.77)]),
    line("s3-fifo", How::ClockFilled, [(4.016, 28.92), (3.485, 28.92), (4.213, 28.92), (5.400, 28.92)]),
    line("sieve", How::Plain, [(489.681, 4722.81), (661.223, 4722.81), (130.490, 1094.72), (13.071, 40.87)]),
    line("sieve", How::Filled, [(2.375, 10.86), (1.131, 7.70), (0.406, 1.45), (0.197, 0.62)]),
    line("sieve", How::Clock, [(846.606, 8555.69), (1130.736, 8555.69), (876.607, 8555.69), (4.764, 26.69)]),
    line("sieve", How::ClockFilled, [(1.222, 11.17), (0.776, 7.16), (0.494, 1.91), (0.170, 0.62)]),
    line("wsclock", How::Plain, [(9.167, 55.94), (3.711, 27.67), (2.216, 5.34), (1.712, 5.34)]),
    line("wsclock", How::Filled, [(5.978, 42.26), (1.970, 20.42), (1.605, 14.44), (2.605, 14.44)]),
    line("wsclock", How::Clock, [(3.375, 12.54), (3.125, 12.54), (2.513, 6.57), (1.650, 6.57)]),
    line("wsclock", How::ClockFilled, [(1.995, 15.29), (1.453, 15.29), (1.098, 8.43), (1.624, 8.43)]),
    line("clock-set", How::Plain, [(4.892, 41.72), (0.132, 0.71), (0.012, 0.08), (0.017, 0.08)]),
    line("clock-set", How::Filled, [(3.011, 25.07), (0.149, 2.33), (0.020, 0.08), (0.014, 0.08)]),
    line("clock-set", How::Clock, [(5.545, 42.98), (0.133, 1.11), (0.013, 0.08), (0.013, 0.08)]),
    line("clock-set", How::ClockFilled, [(0.933, 7.04), (0.165, 1.39), (0.013, 0.08), (0.013, 0.08)]),
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

    /// Policies that were added after the measurement. Their results have no error.
    const NOT_MEASURED: [&str; 1] = ["s4-fifo"];

    #[test]
    fn every_policy_is_measured() {
        for policy in crate::sim::registry() {
            if NOT_MEASURED.contains(&policy.id) {
                assert!(LINES.iter().all(|line| line.policy != policy.id));
                continue;
            }
            let lines = LINES.iter().filter(|line| line.policy == policy.id);
            let hows: Vec<_> = lines.map(|line| line.how).collect();
            let all = [How::Plain, How::Filled, How::Clock, How::ClockFilled];
            assert_eq!(hows, all, "{}", policy.id);
        }
    }
}
