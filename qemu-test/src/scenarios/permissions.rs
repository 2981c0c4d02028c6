//! Who may trace, and who may know what is traced.

use super::Scenario;
use super::waits::{all_said, sh};
use crate::machine::{Machine, Profile, step};
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::Step;
use serde_json::Value;

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![Scenario {
        name: "permissions".into(),
        about: "a trace needs a capability of the whole machine, and STATUS does not give names away",
        run: Box::new(permissions),
    }]
}

/// Everybody may open the device, so that only capabilities count. Prints what each user gets.
const PERMISSIONS: &str = r#"
chmod 666 /dev/vmtrace
mkdir -m 777 /tmp/open
level() { echo $1 >/proc/sys/vm/vmtrace_paranoid; }
nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
perfmon() { nobody --inh-caps +perfmon --ambient-caps +perfmon "$@"; }
traces() {
	rc=0
	$2 activator run -q -o /tmp/open/$1-$2.vmt -- true 2>/tmp/open/why || rc=$?
	[ $rc = 0 ] && postproc check /tmp/open/$1-$2.vmt >/dev/null && rc="$rc good"
	grep -q 'did not permit' /tmp/open/why && rc="$rc refused"
	echo "$1 $2 $rc"
}
knows() {
	echo "$1 $2 $($2 activator status --json | grep -Ec '"output":"/tmp/secret.vmt".*"pid":[1-9]')"
}
echo "default $(cat /proc/sys/vm/vmtrace_paranoid)"
level 2 2>/dev/null || echo "no level 2"
nobody sh -c 'echo 0 >/proc/sys/vm/vmtrace_paranoid' 2>/dev/null || echo "no level of nobody"
for level in 1 0; do
	level $level
	for who in '' nobody perfmon; do
		traces $level "$who"
	done
done
sleep 1000 & pid=$!
activator on --pid $pid -o /tmp/secret.vmt >/dev/null
for level in 1 0; do
	level $level
	for who in '' nobody perfmon; do
		knows $level-knows "$who"
	done
done
# Each request of somebody without the right.
for request in off 'resize 128' 'filter pid==1' rotate 'top --once'; do
	rc=0
	nobody activator $request >/dev/null 2>/tmp/open/why || rc=$?
	echo "nobody $request: $rc"
done
# A trace of somebody who has only CAP_PERFMON.
perfmon activator off >/dev/null
perfmon activator on --pid $pid -o /tmp/open/of-perfmon.vmt >/dev/null
echo "in $(perfmon activator status --json | grep -c '"output":"/tmp/open/of-perfmon.vmt"')"
perfmon activator off >/dev/null
kill $pid
postproc check /tmp/open/of-perfmon.vmt >/dev/null
echo ended
"#;

/// What root of another user namespace asks for, with everything else permitted.
fn in_namespace(name: &str, command: &str) -> Step {
    let line = format!("/bin/in-namespace /bin/activator {command}");
    step(name, &line.split(' ').collect::<Vec<_>>())
}

fn permissions(kernel: &str) -> Result<()> {
    let out = Machine {
        name: format!("permissions-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Smp,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps: vec![
            sh("permissions", PERMISSIONS),
            in_namespace("run", "run -q -o /tmp/apart.vmt -- /bin/touch-loop 1 1"),
            in_namespace("all", "on --all -o /tmp/apart-all.vmt"),
            in_namespace("off", "off"),
            in_namespace("status", "status --json"),
            step("outside", &["/bin/activator", "status", "--json"]),
        ],
        deadline_s: 500,
    }
    .run()?;
    for name in ["run", "all", "off"] {
        let r = out.step(name)?;
        ensure!(r.rc == 2 && r.stderr.contains("did not permit"), "{r:?}");
    }
    let knows = |name| -> Result<bool> {
        let r = out.step(name)?;
        let status: Value = serde_json::from_str(&r.stdout).with_context(|| format!("{r:?}"))?;
        Ok(status["pid"] != 0 && status["output"] == "/tmp/open/of-perfmon.vmt")
    };
    ensure!(!knows("status")? && knows("outside")?, "names are told");
    all_said(
        out.step("permissions")?,
        &[
            "default 1",
            "no level 2",
            "no level of nobody",
            "1  0 good",
            "1 nobody 2 refused",
            "1 perfmon 2 refused",
            "0  0 good",
            "0 nobody 2 refused",
            "0 perfmon 0 good",
            "1-knows  1",
            "1-knows nobody 0",
            "1-knows perfmon 0",
            "0-knows  1",
            "0-knows nobody 0",
            "0-knows perfmon 1",
            "nobody off: 2",
            "nobody resize 128: 2",
            "nobody filter pid==1: 2",
            "nobody rotate: 2",
            "nobody top --once: 2",
            "in 1",
            "ended",
        ],
    )
}
