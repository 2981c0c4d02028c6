//! A trace that lasts for a day of the guest's time, in pieces: what it needs of memory does not grow.
//!
//! The guest's clock counts instructions, and leaps while all its CPUs are idle. So a day with some work
//! in each ten minutes takes the host about an hour.

use super::rotate::{newest, send, unpacked};
use super::waits::{DISK, said};
use super::{Scenario, rotate};
use crate::machine::{Machine, Outcome, Profile, debian};
use crate::runner::say;
use anyhow::{Context, Result, ensure};
use kvmtrace_guest::StepResult;

/// Hours of the scenario of `make test-all`, and of that of `make day`.
const HOURS: u32 = 2;
const MANY_HOURS: u32 = 24;
/// Pieces of work in an hour.
const JOBS: u32 = 6;

/// How much the memory of the kernel, and of the process that begins the pieces, may differ between the
/// middle third of the time and the last one, KiB.
const KERNEL_KIB: f64 = 512.0;
const KEEPER_KIB: f64 = 64.0;

/// The short one, and the control of its measure.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        day(HOURS),
        Scenario {
            name: "day-control".into(),
            about: "processes that are left behind take memory, which the same measure finds",
            run: Box::new(control),
        },
    ]
}

/// The long one.
pub fn full() -> Vec<Scenario> {
    vec![day(MANY_HOURS)]
}

fn day(hours: u32) -> Scenario {
    Scenario {
        name: format!("day-{hours}h"),
        about: "hours of a mixed load, in pieces that are removed: nothing is lost, and memory does not grow",
        run: Box::new(move |kernel| run(hours, kernel)),
    }
}

/// Traces the whole system for so many hours. `LEFT` is what each piece of work leaves behind.
const SCRIPT: &str = r#"
cd /tmp
mkdir -p work
kib() { awk -v key="$1:" '$1 == key {print $2}' "$2"; }
# All that is neither free nor of files and programs: what the kernel has for itself.
kernel_kib() {
	sync
	echo 3 >/proc/sys/vm/drop_caches
	awk '{v[$1] = $2} END {print v["MemTotal:"] - v["MemFree:"] - v["Buffers:"] - v["Cached:"] \
		- v["SwapCached:"] - v["AnonPages:"]}' /proc/meminfo
}
work() {
	case $(($1 % 6)) in
	0) sqlite3 work/db "create table if not exists t(a, b); delete from t;
		with recursive c(x) as (select 1 union all select x + 1 from c where x < 4000)
		insert into t select x, hex(randomblob(20)) from c; select count(*) from t where b like '%A%';" ;;
	1) echo 'int f(int n) { int s = 0; while (n) s += n-- * n; return s; }' >work/f.c && gcc -O2 -c -o work/f.o work/f.c ;;
	2) python3 -S -c 'print(sum(len(str(i)) for i in range(20000)))' ;;
	3) for i in 1 2 3 4 5 6 7 8; do echo $i | cat | cat; done ;;
	4) cp -r /etc work/copy && grep -rc root work/copy && rm -r work/copy ;;
	5) touch-loop 2000 3 ;;
	esac >/dev/null
}
sleep_until() {
	left=$(awk -v at=$1 '{d = at - $1; print (d > 0 ? d : 0)}' /proc/uptime)
	sleep $left
}
activator on --all --pack=no --rotate 4M,30min --keep 16M -o /tmp/x/day >on
keeper=$(sed -n 's/.*; process \([0-9]*\) begins pieces.*/\1/p' on)
begin=$(cut -d. -f1 /proc/uptime)
job=0
while [ $job -lt $((HOURS * JOBS)) ]; do
	sleep_until $((begin + job * 3600 / JOBS))
	work $job
	LEFT
	# Each hour, what a user does with a trace that goes on.
	if [ $((job % JOBS)) = 0 ]; then
		activator snapshot /tmp/x/now >/dev/null
		rm -r /tmp/x/now
	fi
	job=$((job + 1))
	sleep_until $((begin + job * 3600 / JOBS - 60))
	echo "memory $(kib VmRSS /proc/$keeper/status) $(kernel_kib)"
done
sleep_until $((begin + HOURS * 3600))
echo "seconds $(($(cut -d. -f1 /proc/uptime) - begin))"
activator status --json >status
lost
echo "records $(field admissions)"
activator off >off
du -sk /tmp/x/day | sed 's/^/kept-kib /; s/\t.*//'
"#;

fn boot(hours: u32, left: &str, kernel: &str) -> Result<(Outcome, String)> {
    let name = match left {
        ":" => format!("day-{hours}h"),
        _ => "day-control".into(),
    };
    let script = SCRIPT
        .replace("HOURS", &hours.to_string())
        .replace("JOBS", &JOBS.to_string())
        .replace("LEFT", left);
    let out = Machine {
        name: format!("{name}-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Exact,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps: vec![debian(&name, &format!("{DISK}{script}")), send(0, "x/day")],
        deadline_s: 600 + 600 * u64::from(hours),
    }
    .run()?;
    Ok((out, name))
}

/// Memory at each piece of work, KiB.
struct Memory {
    keeper: Vec<f64>,
    kernel: Vec<f64>,
}

impl Memory {
    fn of(r: &StepResult) -> Result<Memory> {
        let (mut keeper, mut kernel) = (Vec::new(), Vec::new());
        for line in r.stdout.lines() {
            if let Some(rest) = line.strip_prefix("memory ") {
                let (of_keeper, of_kernel) =
                    rest.split_once(' ').with_context(|| line.to_owned())?;
                keeper.push(of_keeper.parse().with_context(|| line.to_owned())?);
                kernel.push(of_kernel.parse().with_context(|| line.to_owned())?);
            }
        }
        Ok(Memory { keeper, kernel })
    }

    fn len(&self) -> usize {
        self.kernel.len()
    }

    /// What grew by more than it may, in words.
    fn growth(&self) -> Vec<String> {
        let all = [
            ("the kernel", &self.kernel, KERNEL_KIB),
            ("the process that begins pieces", &self.keeper, KEEPER_KIB),
        ];
        let more = all.map(|(what, samples, most)| {
            let more = grows(samples);
            let text = format!("the memory of {what} grew by {more:.0} KiB: {samples:?}");
            (more > most).then_some(text)
        });
        more.into_iter().flatten().collect()
    }
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len().max(1) as f64
}

/// How much more the last third of some samples is than the middle one, by their means. In the first
/// third, caches and pools fill.
fn grows(samples: &[f64]) -> f64 {
    let third = samples.len() / 3;
    let last = samples.len() - third;
    mean(&samples[last..]) - mean(&samples[last - third..last])
}

fn run(hours: u32, kernel: &str) -> Result<()> {
    let (out, name) = boot(hours, ":", kernel)?;
    let r = out.step(&name)?;
    ensure!(r.rc == 0, "{r:?}");
    let seconds: u32 = said(r, "seconds")?.parse()?;
    ensure!(seconds >= hours * 3600, "only {seconds} s: {r:?}");
    ensure!(said(r, "lost")? == "0", "{r:?}");
    let records: u64 = said(r, "records")?.parse()?;
    ensure!(records > 10_000 * u64::from(hours), "{r:?}");
    let memory = Memory::of(r)?;
    ensure!(memory.len() == (hours * JOBS) as usize, "{r:?}");
    let (keeper, of_kernel) = (&memory.keeper, &memory.kernel);
    say!(
        "  {} records in {hours} hours; the kernel's memory grew by {:.0} KiB of {:.0}, the keeper's by {:.0} of {:.0}",
        records,
        grows(of_kernel),
        mean(of_kernel),
        grows(keeper),
        mean(keeper)
    );
    let growth = memory.growth();
    ensure!(growth.is_empty(), "{growth:?}");
    let pieces = rotate::good_pieces(&unpacked(&out, 0)?.join("x/day"))?;
    say!(
        "  {} of {} pieces are kept, {} KiB; each is good",
        pieces.len(),
        newest(&pieces) + 1,
        said(r, "kept-kib")?
    );
    // A piece is at most half an hour old. Those before the last 16 MiB are removed, except for two.
    let kept: u64 = said(r, "kept-kib")?.parse()?;
    ensure!(newest(&pieces) >= 2 * u64::from(hours) - 1, "{r:?}");
    ensure!(kept < (16 + 3 * 4) << 10, "{kept} KiB are kept");
    ensure!(
        hours < MANY_HOURS || pieces.len() as u64 <= newest(&pieces) / 2,
        "no piece was removed"
    );
    Ok(())
}

fn control(kernel: &str) -> Result<()> {
    // Eight processes in each ten minutes that do not end. One of them took less than 128 KiB.
    let left = "for i in 1 2 3 4 5 6 7 8; do sleep 1000000 >/dev/null 2>&1 & done";
    let (out, name) = boot(HOURS, left, kernel)?;
    let r = out.step(&name)?;
    ensure!(r.rc == 0, "{r:?}");
    let growth = Memory::of(r)?.growth();
    let of_kernel = growth.iter().find(|text| text.contains("of the kernel"));
    let text =
        of_kernel.with_context(|| format!("the kernel's memory does not grow: {}", r.stdout))?;
    say!("  {}", text.split(':').next().unwrap_or_default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_of_the_last_third() {
        let flat = [
            9.0, 500.0, 1000.0, 1004.0, 996.0, 1000.0, 1001.0, 999.0, 1000.0,
        ];
        assert!(grows(&flat).abs() < 1.0, "{}", grows(&flat));
        let steady: Vec<f64> = (0..24).map(|at| 10_000.0 + 70.0 * f64::from(at)).collect();
        assert_eq!(grows(&steady), 560.0);
        let memory = |keeper: &[f64], kernel: &[f64]| {
            let (keeper, kernel) = (keeper.to_vec(), kernel.to_vec());
            Memory { keeper, kernel }.growth()
        };
        assert!(memory(&flat, &flat).is_empty());
        assert!(memory(&flat, &steady)[0].contains("of the kernel"));
        assert!(memory(&steady, &flat)[0].contains("begins pieces"));
        assert_eq!(memory(&steady, &steady).len(), 2);
    }
}
