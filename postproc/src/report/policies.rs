//! Which policies are simulated for the fault curves, at which sizes, and how.

use super::fault_curve::{LinePoint, PolicyLine};
use crate::sim::{Certificate, Curve, Estimate, Job, PolicyEntry, Sampler};

/// The largest product of references and simulations without sampling; above it, misses are
/// estimated from a sample.
const BUDGET: f64 = 3e9;
/// The same limit for the product of pages and simulations: each takes up to 40 bytes.
const PAGES: f64 = 12e6;
/// Below this share, a sample is too small.
const LEAST_SHARE: f64 = 0.001;
/// Number of sizes for policies that need a simulation for each size.
const SIZES: usize = 14;

/// The work of the second pass, planned after the first pass, which knows the trace's size.
#[derive(Clone)]
pub struct Plan {
    /// The policies in the order of the request, except lru, which the first pass simulated.
    policies: Vec<&'static PolicyEntry>,
    sizes: Vec<u64>,
    /// The share of pages to simulate; `None` is all pages.
    pub sample: Option<f64>,
}

impl Plan {
    /// For a trace whose LRU curve is known; `sample` is the user's wish.
    pub fn new(
        policies: &[&'static PolicyEntry],
        curve: &Curve,
        evms_size: u32,
        sample: Option<f64>,
    ) -> Self {
        let others: Vec<_> = policies.iter().copied().filter(|p| p.id != "lru").collect();
        let footprint = curve.footprint().max(1);
        // The trace shows nothing below N.
        let first = u64::from(evms_size).clamp(1, footprint);
        let step = (footprint as f64 / first as f64).powf(1.0 / (SIZES - 1) as f64);
        let mut sizes: Vec<u64> = (0..SIZES)
            .map(|i| (first as f64 * step.powi(i as i32)).round() as u64)
            .map(|size| size.clamp(first, footprint))
            .collect();
        sizes.dedup();
        // A curve costs about as much as all these sizes.
        let cost = others.len() * sizes.len();
        let share = (BUDGET / (curve.references as f64 * cost as f64))
            .min(PAGES / (footprint as f64 * cost as f64));
        let sample = match sample {
            Some(share) if share >= 1.0 => None,
            Some(share) => Some(share),
            // A sample is simulated twice, for its error: half of the pages would save nothing.
            None if share < 0.5 => Some((share / 2.0).max(LEAST_SHARE)),
            None => None,
        };
        let mut plan = Plan {
            policies: others,
            sizes,
            sample,
        };
        if let Some(share) = plan.sample {
            let smallest = Sampler::new(share, Vec::new()).smallest();
            plan.sizes.retain(|&size| size >= smallest);
        }
        plan
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    /// Policies and sizes; `None` is all sizes.
    fn asked(&self) -> Vec<(&'static PolicyEntry, Option<u64>)> {
        let mut asked = Vec::new();
        for &policy in &self.policies {
            match policy.curve {
                Some(_) => asked.push((policy, None)),
                None => asked.extend(self.sizes.iter().map(|&size| (policy, Some(size)))),
            }
        }
        asked
    }

    /// The simulations, to be run side by side.
    pub fn jobs(&self) -> Vec<Job> {
        self.asked()
            .into_iter()
            .filter_map(|(policy, size)| match size {
                Some(size) => Some(Job::Size((policy.simulate)(size))),
                None => policy.curve.map(|make| Job::Curve(make())),
            })
            .collect()
    }

    /// The sample, if one is to be taken.
    pub fn sampler(&self) -> Option<Sampler> {
        self.sample.map(|share| Sampler::new(share, self.asked()))
    }

    /// The lines that the jobs computed, with their bands.
    pub fn lines(&self, jobs: Vec<Job>, certificate: Option<&Certificate>) -> Vec<PolicyLine> {
        let mut lines: Vec<PolicyLine> = Vec::new();
        for ((policy, _), job) in self.asked().iter().zip(jobs) {
            match job {
                Job::Curve(curve) => {
                    let curve = curve.finish();
                    let mut line = PolicyLine::of_curve(policy.id, &curve);
                    if let Some(certificate) = certificate {
                        line.certify(certificate, &curve);
                    }
                    lines.push(line);
                }
                Job::Size(simulation) => {
                    let counts = simulation.counts();
                    let point = LinePoint {
                        size_pages: counts.size_pages,
                        misses: counts.misses as f64,
                        write_backs: counts.write_backs.map(|count| count as f64),
                        band: None,
                        misses_error: None,
                    };
                    line(&mut lines, policy.id, None).points.push(point);
                }
            }
        }
        lines
    }

    /// The lines that a sample gave.
    pub fn estimated(&self, estimates: Vec<(&'static str, Estimate)>) -> Vec<PolicyLine> {
        let mut lines = Vec::new();
        for (policy, estimate) in estimates {
            line(&mut lines, policy, self.sample)
                .points
                .push(LinePoint {
                    size_pages: estimate.size_pages,
                    misses: estimate.misses,
                    write_backs: estimate.write_backs,
                    band: None,
                    misses_error: Some(estimate.misses_error),
                });
        }
        lines
    }

    /// Points of a sampled curve.
    pub fn points(&self) -> usize {
        4 * SIZES
    }
}

fn line<'a>(
    lines: &'a mut Vec<PolicyLine>,
    policy: &'static str,
    sample: Option<f64>,
) -> &'a mut PolicyLine {
    let at = match lines.iter().position(|line| line.policy == policy) {
        Some(at) => at,
        None => {
            lines.push(PolicyLine {
                policy,
                all_sizes: false,
                sample,
                measured: None,
                points: Vec::new(),
            });
            lines.len() - 1
        }
    };
    &mut lines[at]
}

/// All lines in the order of the request; `lru` is from the first pass.
pub fn lines_of(
    policies: &[&'static PolicyEntry],
    lru: &Curve,
    others: Vec<PolicyLine>,
    certificate: Option<&Certificate>,
) -> Vec<PolicyLine> {
    let mut all = others;
    if policies.iter().any(|p| p.id == "lru") {
        let mut line = PolicyLine::of_curve("lru", lru);
        if let Some(certificate) = certificate {
            line.certify(certificate, lru);
        }
        all.push(line);
    }
    all.sort_by_key(|line| policies.iter().position(|p| p.id == line.policy));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim;

    fn curve(references: u64, pages: usize) -> Curve {
        Curve {
            references,
            cold: pages as u64,
            hits_from: vec![1; pages],
            write_backs: Some(vec![0; pages]),
            dirty_left: vec![0; pages],
        }
    }

    #[test]
    fn what_is_small_is_exact_and_what_is_large_a_sample() {
        let policies: Vec<_> = sim::registry().iter().take(6).collect();
        let small = Plan::new(&policies, &curve(1_000_000, 8_000), 512, None);
        assert_eq!(small.sample, None);
        assert_eq!(small.sizes.first(), Some(&512));
        assert_eq!(small.sizes.last(), Some(&8_000));
        assert_eq!(small.jobs().len(), 5 * SIZES);
        let large = Plan::new(&policies, &curve(1_000_000_000, 1_000_000), 512, None);
        let share = large.sample.expect("a sample");
        assert!(share < 0.05, "{share}");
        assert!(large.sizes.iter().all(|&size| size as f64 * share >= 7.9));
        // All sizes at once, where that is possible.
        let opt: Vec<_> = sim::registry().iter().filter(|p| p.id == "opt").collect();
        let jobs = Plan::new(&opt, &curve(100_000, 80_000), 64, None).jobs();
        assert!(matches!(jobs[..], [Job::Curve(_)]));
        let wish = Plan::new(&policies, &curve(1_000_000_000, 1_000_000), 512, Some(1.0));
        assert_eq!(wish.sample, None);
        let none = Plan::new(&policies[..1], &curve(100, 10), 4, None);
        assert!(none.is_empty());
    }
}
