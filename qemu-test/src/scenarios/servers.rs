//! An output whose server is a traced process: a network block device whose server runs on
//! the same machine, and a disk that a program serves through io_uring (ublk). The server cannot
//! make room in the log while it waits for room itself.

use super::Scenario;
use super::waits::{all_said, boot, said, took};
use crate::runner::{alone, say};
use anyhow::{Result, ensure};

/// The scenarios.
pub fn scenarios() -> Vec<Scenario> {
    vec![Scenario {
        name: "server-nbd".into(),
        about: "the output's disk is served by a traced process: all go on, nothing is lost silently",
        run: Box::new(|kernel| run("server-nbd", NBD, kernel)),
    }]
}

/// Those that need the flavour `wide`.
pub fn full() -> Vec<Scenario> {
    let about = "the output's disk is served by a traced process through io_uring: all go on";
    let ublk = |name: &'static str, options: &'static str| Scenario {
        name: name.into(),
        about,
        run: Box::new(move |kernel| run(name, &format!("options={options}{UBLK}"), kernel)),
    };
    vec![ublk("wide-ublk", ""), ublk("wide-ublk-copies", "copies")]
}

const NBD: &str = r#"
mkdir -p /tmp/y
python3 -c '
import fcntl, socket, struct
s = socket.socket()
fcntl.ioctl(s, 0x8914, struct.pack("16sH14x", b"lo", 0x49))'
truncate -s 48M /tmp/served
nbd-server -C /dev/null 127.0.0.1:10809 /tmp/served
until nbd-client -N "" 127.0.0.1 10809 /dev/nbd0 >/dev/null 2>&1; do sleep 0.2; done
mkfs.ext4 -q -O ^has_journal /dev/nbd0
mount -o sync /dev/nbd0 /tmp/y
server=$(pidof nbd-server | tr ' ' '\n' | sort -n | tail -n 1)
ended() { true; }
"#;

/// The kernel copies from and to the server's memory, or the server calls for each copy.
const UBLK: &str = r#"
mkdir -p /tmp/y
ublk 48 $options >/tmp/ublk 2>&1 &
until grep -q '^serves' /tmp/ublk; do sleep 0.1; done
server=$(sed -n 's/^serves //p' /tmp/ublk)
mkfs.ext4 -q -O ^has_journal /dev/ublkb0
mount -o sync /dev/ublkb0 /tmp/y
ended() { kill $server && wait && grep -v '^serves' /tmp/ublk; }
"#;

/// A log that is full at once, of everything and of the server alone; then one with room.
const TRACES: &str = r#"
touch-loop 300 20 >plain
small="--stall-limit 2s -n 32 --pack=no --buffers 4 --buffer-size 4K"
traced() {
	start=$(now)
	i=0
	while [ $((i += 1)) -le 10 ]; do
		touch-loop 300 20 >traced && cmp plain traced && dd if=/dev/zero of=/tmp/y/f bs=64K count=8 2>/dev/null || echo "differs $1"
	done
	rc=0
	activator off >off 2>&1 || rc=$?
	echo "$1-seconds $(since $start)"
	bad=0
	postproc check --frames $2 >check 2>&1 || bad=$?
	echo "$1 $rc $bad"
	state=0
	activator status --json >status || state=$?
	[ $state = $rc ] || echo "differs $1: status $state"
	echo "$1-lost $(lost | cut -d' ' -f2)"
	sed "s/^/$1 off: /" off
}
activator on --all $small -o /tmp/y/t >/dev/null && traced all /tmp/y/t
activator on --pid $server $small -o /tmp/y/u >/dev/null && traced server /tmp/y/u
activator on --all -n 64 -o /tmp/y/v >/dev/null && traced room /tmp/y/v
activator run -q -n 64 -o /tmp/third -- true && postproc check /tmp/third >/dev/null && echo good
umount /tmp/y && echo unmounted
ended
"#;

fn run(name: &str, prepare: &str, kernel: &str) -> Result<()> {
    // Beside other guests, the part with room takes 130 s on a host with two CPUs, and 4 s alone.
    let _host = alone();
    let out = boot(name, kernel, &format!("{prepare}{TRACES}"))?;
    let r = out.step(name)?;
    all_said(r, &["good", "unmounted", "room 0 0"])?;
    for part in ["all", "server", "room"] {
        took(r, &format!("{part}-seconds"), 0.0, 100.0)?;
        let lost: u64 = said(r, &format!("{part}-lost"))?.parse()?;
        let ended = said(r, part)?;
        say!("  {part}: {lost} lost, ended with {ended}");
        // Either whole, or counted and reported.
        let right = match lost {
            0 => "0 0",
            _ => "1 1",
        };
        ensure!(
            ended == right,
            "{part}: {lost} lost, ended with {ended}: {r:?}"
        );
    }
    ensure!(!r.stdout.contains("differs"), "{r:?}");
    if let Some(served) = r.stdout.lines().find(|l| l.contains(" reads, ")) {
        say!("  {served}");
    }
    Ok(())
}
