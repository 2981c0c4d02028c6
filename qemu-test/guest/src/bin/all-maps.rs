//! all-maps: writes what /proc/PID/maps says of all processes at one moment, which the
//! first open of a file `all-maps.moment-K` tells. They run: what is read before and after
//! it must be the same, or another moment is tried.
use kvmtrace_guest::arg;
use std::fmt::Write as _;
use std::io::{Error, Read, Result, Write};

/// Room for all, which is not to be made while this program's own maps are read.
const ROOM: usize = 8 << 20;

struct Shot {
    text: String,
    buf: Vec<u8>,
}

impl Shot {
    fn new() -> Self {
        Shot {
            text: String::with_capacity(ROOM),
            buf: Vec::with_capacity(ROOM),
        }
    }

    /// A file as text; none if its process is gone.
    fn read(&mut self, path: &str) -> Option<&str> {
        self.buf.clear();
        let mut file = std::fs::File::open(path).ok()?;
        file.read_to_end(&mut self.buf).ok()?;
        std::str::from_utf8(&self.buf).ok()
    }

    fn take(&mut self, pids: &[u32]) {
        self.text.clear();
        for pid in pids {
            let comm = self.read(&format!("/proc/{pid}/comm")).map(str::to_owned);
            let maps = self.read(&format!("/proc/{pid}/maps")).map(str::to_owned);
            // Kernel threads, and who has ended, have none.
            if let (Some(comm), Some(maps)) = (comm, maps.filter(|m| !m.is_empty())) {
                let _ = write!(self.text, "{pid} {comm}{maps}");
            }
        }
    }
}

fn pids() -> Result<Vec<u32>> {
    let mut pids: Vec<u32> = std::fs::read_dir("/proc")?
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    Ok(pids)
}

fn main() -> Result<()> {
    let (mut before, mut after) = (Shot::new(), Shot::new());
    for k in 0..arg(1, 50) {
        let list = pids()?;
        before.take(&list);
        drop(std::fs::File::create(format!("/tmp/all-maps.moment-{k}"))?);
        after.take(&list);
        if before.text == after.text && list == pids()? {
            let mut out = std::io::stdout().lock();
            for line in before.text.lines() {
                // The head of a process has no address.
                let head = !line.split(' ').next().is_some_and(|w| w.contains('-'));
                writeln!(
                    out,
                    "{}{line}",
                    if head {
                        format!("moment {k} ")
                    } else {
                        String::new()
                    }
                )?;
            }
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Err(Error::other("no moment at which nothing changed"))
}
