//! What the figures of benchmarks must be. The targets are beside what measures the figures, and the pages of docs/
//! that have the figures have the targets, too. scripts/targets.py is the same for benchmarks without guests.

use anyhow::{Result, ensure};

/// The kernel whose figures the pages have: without what is for debugging the tracer.
const KERNEL: &str = "release";

/// What a figure must be.
pub struct Target {
    what: String,
    bound: Bound,
    figure: f64,
}

#[derive(Clone, Copy)]
enum Bound {
    Most(f64),
    Least(f64),
}

impl Target {
    /// The figure must not be greater than `limit`.
    pub fn most(what: impl Into<String>, limit: f64, figure: f64) -> Self {
        Target {
            what: what.into(),
            bound: Bound::Most(limit),
            figure,
        }
    }

    /// The figure must not be less than `limit`.
    pub fn least(what: impl Into<String>, limit: f64, figure: f64) -> Self {
        Target {
            bound: Bound::Least(limit),
            ..Target::most(what, limit, figure)
        }
    }

    /// A figure that is no number meets nothing.
    pub fn is_met(&self) -> bool {
        match self.bound {
            Bound::Most(limit) => self.figure <= limit,
            Bound::Least(limit) => self.figure >= limit,
        }
    }

    fn line(&self) -> String {
        let (bound, limit) = match self.bound {
            Bound::Most(limit) => ("at most", limit),
            Bound::Least(limit) => ("at least", limit),
        };
        let verdict = if self.is_met() { "met" } else { "missed" };
        let (what, figure) = (&self.what, self.figure);
        format!("target: {what}, {bound} {limit}: {verdict} ({figure:.3})")
    }
}

/// Prints a line for each target of a run with this kernel. With another kernel than the one that the targets are
/// for, and if JUDGE is 0, none is judged.
///
/// # Errors
///
/// If a target is missed.
pub fn settle(targets: &[Target], kernel: &str) -> Result<()> {
    for target in targets {
        println!("{}", target.line());
    }
    let only_reports = std::env::var_os("JUDGE").is_some_and(|word| word == "0");
    match only_reports || kernel != KERNEL {
        true => Ok(()),
        false => judge(targets),
    }
}

fn judge(targets: &[Target]) -> Result<()> {
    let missed = targets.iter().filter(|target| !target.is_met()).count();
    ensure!(
        missed == 0,
        "{missed} of {} targets are missed; JUDGE=0 only reports them",
        targets.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_meets_its_target_or_misses_it() {
        let met = [
            Target::most("a", 10.0, 9.88),
            Target::most("b", 10.0, 10.0),
            Target::least("c", 1.7, 1.7),
        ];
        assert!(met.iter().all(Target::is_met));
        assert!(judge(&met).is_ok() && judge(&[]).is_ok());
        assert_eq!(met[0].line(), "target: a, at most 10: met (9.880)");
        let missed = [
            Target::most("a", 10.0, 10.01),
            Target::least("c", 1.7, 1.69),
            Target::most("d", 1.0, f64::NAN),
        ];
        assert!(!missed.iter().any(Target::is_met));
        assert_eq!(missed[1].line(), "target: c, at least 1.7: missed (1.690)");
        for target in missed {
            let [met, ..] = [Target::most("a", 10.0, 9.88)];
            let error = judge(&[met, target]).unwrap_err().to_string();
            assert!(error.starts_with("1 of 2 targets are missed"), "{error}");
        }
    }
}
