//! Which scenarios are controls: each protection that vmtrace_break= takes away is missed in one of them.

use super::{Scenario, all};

/// Protections whose control has another name than `control-` and the protection's.
const ELSEWHERE: &[(&str, &str)] = &[("noorder", "control-races"), ("nocompare", "control-races")];

/// Controls of other things than the protections that they take away, and of those with other programs.
const MORE: &[&str] = &[
    "attach-reclaim",
    "filter-noorder",
    "late-admissions",
    "late-copies",
    "fidelity-noflush",
    "fidelity-sets-noflush",
    "regions-control",
    "regions-young",
];

/// How controls that compare with the oracle begin.
const ORACLE: &[&str] = &["oracle-no", "replay-no"];

fn is_control(name: &str) -> bool {
    name.starts_with("control-")
        || ORACLE.iter().any(|begin| name.starts_with(begin))
        || ELSEWHERE.iter().any(|(_, scenario)| *scenario == name)
        || MORE.contains(&name)
}

/// All controls.
pub fn controls() -> Vec<Scenario> {
    let mut list = all();
    list.retain(|s| is_control(&s.name));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the kernel has the names of the protections.
    const KERNEL: &str = include_str!("../../../rust-mm-trace/kernel/pte.c");

    /// Those without a control here. The scheduler, too, ends what turns end, so only a model shows `noturns`.
    /// The others are no protections: `late` makes races frequent, `race` is for KCSAN (`make test-kcsan`), and
    /// `keepleft` lets a test see what filters leave out.
    const NONE: &[&str] = &["noturns", "late", "race", "keepleft"];

    /// What the kernel's parameters are documented in.
    const PARAMETERS: &str = include_str!(
        "../../../linux-patches/0022-Documentation-mm-describe-virtual-memory-reference-t.patch"
    );

    fn names() -> Vec<&'static str> {
        let (_, rest) = KERNEL.split_once("const names[BITS_PER_LONG] = {").unwrap();
        let (list, _) = rest.split_once('}').unwrap();
        list.split('"').skip(1).step_by(2).collect()
    }

    #[test]
    fn each_protection_has_a_control() {
        let names = names();
        assert!(names.contains(&"noflush") && names.contains(&"keepleft"));
        let listed = ELSEWHERE.iter().map(|(name, _)| name).chain(NONE);
        for name in listed {
            assert!(names.contains(name), "{name}");
        }
        let controls = controls();
        for name in names {
            let elsewhere = ELSEWHERE.iter().find(|(of, _)| *of == name);
            let own = format!("control-{name}");
            let wanted = elsewhere.map_or(own.as_str(), |(_, scenario)| scenario);
            let found = controls.iter().any(|s| s.name == wanted);
            assert_eq!(found, !NONE.contains(&name), "{name}: {wanted}");
        }
    }

    /// In the list of values, and with a text.
    #[test]
    fn each_protection_is_documented() {
        let (_, rest) = PARAMETERS.split_once("+\tvmtrace_break=").unwrap();
        let (text, _) = rest.split_once("+\tvmtrace_late=").unwrap();
        let (list, texts) = text.split_once('}').unwrap();
        let listed: Vec<_> = list.split(['{', '|', '+', ' ', '\t', '\n']).collect();
        for name in names() {
            assert!(listed.contains(&name), "{name} is not listed: {list}");
            assert!(
                texts.contains(&format!("+\t\t\t{name}:")),
                "{name} has no text"
            );
        }
    }

    #[test]
    fn what_is_listed_exists() {
        let controls = controls();
        for name in MORE {
            assert!(controls.iter().any(|s| s.name == *name), "{name}");
        }
        for begin in ORACLE {
            assert!(
                controls.iter().any(|s| s.name.starts_with(begin)),
                "{begin}"
            );
        }
    }
}
