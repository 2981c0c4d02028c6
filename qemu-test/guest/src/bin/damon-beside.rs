//! damon-beside: DAMON watches a child of which a part is hot, and must tell which.
use kvmtrace_guest::{PAGE, flush_tlb, fork_child, map_at, set, wait_child, write};
use std::io::{Error, Result};
use std::time::Duration;

const DAMON: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const HOT: usize = 0x1000_0000_0000;
const HOT_PAGES: usize = 256;
const COLD: usize = 0x1000_1000_0000;
const COLD_PAGES: usize = 2048;

fn number(path: &str) -> Result<u64> {
    std::fs::read_to_string(path)?
        .trim()
        .parse()
        .map_err(|e| Error::other(format!("{path}: {e}")))
}

/// Bytes, and bytes times accesses, that DAMON found between two addresses.
fn found(regions: &str, from: usize, pages: usize) -> Result<(u64, u64)> {
    let (from, to) = (from as u64, (from + pages * PAGE) as u64);
    let (mut bytes, mut heat) = (0, 0);
    for entry in std::fs::read_dir(regions)? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        let at = |name: &str| number(&path.join(name).to_string_lossy());
        let (start, end) = (at("start")?.max(from), at("end")?.min(to));
        if start < end {
            bytes += end - start;
            heat += (end - start) * at("nr_accesses")?;
        }
    }
    Ok((bytes, heat))
}

fn watch(pid: i32) -> Result<()> {
    set(&format!("{DAMON}/nr_kdamonds"), "1")?;
    let k = format!("{DAMON}/0");
    set(&format!("{k}/contexts/nr_contexts"), "1")?;
    let c = format!("{k}/contexts/0");
    set(&format!("{c}/operations"), "fvaddr")?;
    let m = format!("{c}/monitoring_attrs");
    set(&format!("{m}/intervals/sample_us"), "20000")?;
    set(&format!("{m}/intervals/aggr_us"), "400000")?;
    set(&format!("{m}/intervals/update_us"), "2000000")?;
    set(&format!("{m}/nr_regions/min"), "40")?;
    set(&format!("{m}/nr_regions/max"), "100")?;
    set(&format!("{c}/targets/nr_targets"), "1")?;
    set(&format!("{c}/targets/0/pid_target"), &pid.to_string())?;
    // The two mappings and nothing else, so that a region is one or the other.
    let r = format!("{c}/targets/0/regions");
    set(&format!("{r}/nr_regions"), "2")?;
    for (i, at, pages) in [(0, HOT, HOT_PAGES), (1, COLD, COLD_PAGES)] {
        set(&format!("{r}/{i}/start"), &at.to_string())?;
        set(&format!("{r}/{i}/end"), &(at + pages * PAGE).to_string())?;
    }
    set(&format!("{c}/schemes/nr_schemes"), "1")?;
    let s = format!("{c}/schemes/0");
    set(&format!("{s}/action"), "stat")?;
    for (name, max) in [("sz", u64::MAX), ("nr_accesses", 1000), ("age", 1 << 30)] {
        let p = format!("{s}/access_pattern/{name}");
        set(&format!("{p}/min"), "0")?;
        set(&format!("{p}/max"), &max.to_string())?;
    }
    set(&format!("{k}/state"), "on")?;
    std::thread::sleep(Duration::from_millis(2500));
    set(&format!("{k}/state"), "update_schemes_tried_regions")?;
    let regions = format!("{s}/tried_regions");
    let (hot, hot_heat) = found(&regions, HOT, HOT_PAGES)?;
    let (cold, cold_heat) = found(&regions, COLD, COLD_PAGES)?;
    set(&format!("{k}/state"), "off")?;
    set(&format!("{DAMON}/nr_kdamonds"), "0")?;
    if hot == 0 || cold == 0 {
        return Err(Error::other(format!("{hot} and {cold} bytes were watched")));
    }
    // Of 20 samples.
    let (h, c) = (hot_heat as f64 / hot as f64, cold_heat as f64 / cold as f64);
    eprintln!("hot {h:.2} of 20 samples, cold {c:.2}");
    println!("hot found: {}, cold found: {}", h >= 10.0, c <= 2.0);
    Ok(())
}

fn main() -> Result<()> {
    let child = fork_child(|| {
        let (Ok(hot), Ok(cold)) = (map_at(HOT, HOT_PAGES), map_at(COLD, COLD_PAGES)) else {
            return 1;
        };
        for i in 0..COLD_PAGES {
            write(cold, i, 1);
        }
        loop {
            for i in 0..HOT_PAGES {
                write(hot, i, i as u8);
            }
            if flush_tlb(hot, HOT_PAGES).is_err() {
                return 1;
            }
            // Several times between two samples, and no more records than need be.
            std::thread::sleep(Duration::from_millis(2));
        }
    })?;
    std::thread::sleep(Duration::from_millis(300));
    let done = watch(child);
    // SAFETY: A child of ours that has not been waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    wait_child(child)?;
    done
}
