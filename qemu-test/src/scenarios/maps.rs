//! What the events say of address spaces, against what the kernel says of them at
//! random moments: /proc/PID/maps of all processes of a load.

use super::Scenario;
use crate::machine::{Machine, Profile, debian};
use crate::postproc;
use crate::runner::say;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;

const MOMENTS: usize = 10;

/// gcc twice at a time, redis under load, forks.
const LOAD: &str = "cd /tmp; echo 'int f(int x) { return x + 1; }' >f.c; \
    /opt/kvmtrace/bin/fork-storm 30 & \
    /opt/kvmtrace/bin/mremap-move & /opt/kvmtrace/bin/mprotect-storm & \
    /opt/kvmtrace/bin/threads & /opt/kvmtrace/bin/brk-stack & \
    redis-server --port 0 --unixsocket /tmp/r.sock --save '' --io-threads 2 & \
    (gcc -O2 -c f.c -o 1.o; gcc -g -c f.c -o 2.o) & (gcc -O1 -c f.c -o 3.o; gcc f.c -S) & \
    until redis-cli -s /tmp/r.sock ping; do sleep 0.1; done; \
    redis-benchmark -s /tmp/r.sock -c 4 -n 2000 -r 2000 -d 400 -t set,get,lpush; \
    redis-cli -s /tmp/r.sock shutdown nosave; wait";

/// The scenario.
pub fn scenarios() -> Vec<Scenario> {
    vec![Scenario {
        name: "maps".into(),
        about: "mappings by the events = /proc/PID/maps of every process at 10 moments of a load",
        run: Box::new(run),
    }]
}

fn run(kernel: &str) -> Result<()> {
    let moments = MOMENTS.to_string();
    let mut traced = debian("traced", "");
    traced.argv = "/opt/kvmtrace/bin/activator run -n 16384 -o /dev/trace -- \
                   /opt/kvmtrace/bin/moments"
        .split_ascii_whitespace()
        .chain([moments.as_str(), "/tmp/maps", LOAD])
        .map(String::from)
        .collect();
    let out = Machine {
        name: format!("maps-{kernel}"),
        kernel: kernel.into(),
        profile: Profile::Turns,
        image: true,
        cmdline: String::new(),
        files: vec![],
        steps: vec![traced, debian("maps", "cat /tmp/maps")],
        deadline_s: 900,
    }
    .run()?;
    for name in ["traced", "maps"] {
        let r = out.step(name)?;
        ensure!(r.rc == 0, "{name}: {r:?}");
    }
    let moments = parse(&out.step("maps")?.stdout)?;
    ensure!(moments.len() == MOMENTS, "{} moments", moments.len());
    let (mut compared, mut ranges, mut kinds) = (0, 0, BTreeMap::new());
    let mut control = 0;
    for (k, processes) in &moments {
        let at = format!("maps.moment-{k}");
        let (rc, told) = postproc::json(&["maps", "--at-open", &at], &out.trace())?;
        ensure!(rc == 0, "postproc maps says that events contradict others");
        // The control: at another moment something is mapped otherwise.
        let other = format!("maps.moment-{}", (k + 1) % MOMENTS);
        let (_, later) = postproc::json(&["maps", "--at-open", &other], &out.trace())?;
        for (pid, (comm, maps)) in processes {
            let by_events = of(&told, *pid);
            if let Some((a, b)) = difference(maps, &by_events) {
                bail!("moment {k}, {comm} {pid}: /proc/PID/maps has {a:?}, events say {b:?}");
            }
            control += usize::from(difference(maps, &of(&later, *pid)).is_some());
            compared += 1;
            ranges += maps.len();
            *kinds.entry(comm.clone()).or_insert(0) += 1;
        }
    }
    say!("  {compared} address spaces with {ranges} ranges at {MOMENTS} moments: {kinds:?}");
    say!("  {control} of them differ from those of another moment");
    ensure!(
        compared > 5 * MOMENTS && kinds.len() > 5 && control > 0,
        "hardly anything was compared"
    );
    Ok(())
}

/// A range: addresses, what may be done, shared or private, offset, device, inode.
pub(super) type Range = (u64, u64, u8, bool, u64, u64, u64);

pub(super) type Processes = BTreeMap<u64, (String, Vec<Range>)>;

/// What lies side by side and is of one kind is one range.
fn add(list: &mut Vec<Range>, r: Range) {
    if let Some(b) = list.last_mut() {
        let follows = r.6 == 0 || b.4 + (b.1 - b.0) == r.4;
        if b.1 == r.0 && (b.2, b.3, b.5, b.6) == (r.2, r.3, r.5, r.6) && follows {
            b.1 = r.1;
            return;
        }
    }
    list.push(r);
}

/// /proc/PID/maps of all processes by moment and process id.
pub(super) fn parse(text: &str) -> Result<BTreeMap<usize, Processes>> {
    let mut moments: BTreeMap<usize, Processes> = BTreeMap::new();
    let mut at = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let ["moment", k, pid, comm @ ..] = words.as_slice() {
            let key = (k.parse()?, pid.parse()?);
            let empty = (comm.join(" "), Vec::new());
            moments.entry(key.0).or_default().insert(key.1, empty);
            at = Some(key);
            continue;
        }
        let range = range(&words).with_context(|| format!("not a line of maps: {line:?}"))?;
        // vsyscall, which is no mapping of the process.
        if range.0 >> 63 == 1 {
            continue;
        }
        let (k, pid) = at.context("maps before the first moment")?;
        let list = moments.get_mut(&k).and_then(|m| m.get_mut(&pid));
        add(&mut list.context("no such process")?.1, range);
    }
    Ok(moments)
}

fn range(words: &[&str]) -> Option<Range> {
    let hex = |s: &str| u64::from_str_radix(s, 16).ok();
    let (start, end) = words.first()?.split_once('-')?;
    let may = words.get(1)?.as_bytes();
    let bit = |i: usize, c: u8, value: u8| if may.get(i) == Some(&c) { value } else { 0 };
    let prot = bit(0, b'r', 1) | bit(1, b'w', 2) | bit(2, b'x', 4);
    let (major, minor) = words.get(3)?.split_once(':')?;
    let ino: u64 = words.get(4)?.parse().ok()?;
    let offset = if ino == 0 { 0 } else { hex(words.get(2)?)? };
    Some((
        hex(start)?,
        hex(end)?,
        prot,
        may.get(3) == Some(&b's'),
        offset,
        hex(major)? << 20 | hex(minor)?,
        ino,
    ))
}

/// What `postproc maps` says of a process.
pub(super) fn of(told: &Value, pid: u64) -> Vec<Range> {
    let mut list = Vec::new();
    let all = told["processes"].as_array().into_iter().flatten();
    let one = all
        .filter(|p| p["pid"] == pid)
        .flat_map(|p| p["maps"].as_array());
    for r in one.flatten() {
        let n = |name: &str| r[name].as_u64().unwrap_or(u64::MAX);
        let shared = r["shared"] == true;
        let prot = n("prot") as u8;
        let (dev, ino, offset) = (n("dev"), n("ino"), n("offset"));
        add(
            &mut list,
            (n("start"), n("end"), prot, shared, offset, dev, ino),
        );
    }
    list
}

/// The first range that is another, as both have it.
pub(super) fn difference(a: &[Range], b: &[Range]) -> Option<(Option<Range>, Option<Range>)> {
    (0..a.len().max(b.len()))
        .map(|i| (a.get(i).copied(), b.get(i).copied()))
        .find(|(a, b)| a != b)
}
