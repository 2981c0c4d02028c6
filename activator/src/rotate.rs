//! The next piece of a trace, and when it begins.
//!
//! A *rotation* makes the file of the next piece and hands it to the kernel, which completes the
//! former one. Whoever begins pieces as long as a trace is on, `run` or the keeper of `on`, has a
//! [`Rotor`]. Anybody may begin a piece beside it.
//!
//! A [`Claim`] is a name that one process has until it ends, however it ends. One is for a single
//! rotation, so that a file that exists without need is known to be left behind; another one tells
//! whether anybody has a rotor for the trace. It is the address of a socket, because a lock in the
//! directory would be waited for when its file system hangs.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::control::{Control, no_rotation};
use crate::error::{Errno, Failure};
use crate::pieces::{self, name};
use crate::status::{State, Status};
use crate::units::{When, count};
use crate::{Io, sys};

/// What is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// One rotation.
    Rotation,
    /// To begin pieces as long as the trace is on.
    Trace,
}

/// A name that no other process has now. Whoever knows it can wake its owner.
#[derive(Debug)]
pub struct Claim(UnixDatagram);

impl Claim {
    fn address(of: Of, uuid: &[u8; 16]) -> io::Result<SocketAddr> {
        let what = match of {
            Of::Rotation => "rotation",
            Of::Trace => "trace",
        };
        let uuid: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
        SocketAddr::from_abstract_name(format!("kvmtrace-{what}-{uuid}"))
    }

    /// Takes it; `None` if somebody has it.
    ///
    /// A child that creates a file for a rotation has it, too, until the child ends. So nobody else
    /// rotates while a file may still appear.
    pub fn take(of: Of, uuid: &[u8; 16]) -> io::Result<Option<Self>> {
        #[cfg(test)]
        let mut pause = sys::forks::pause();
        let socket = Self::address(of, uuid).and_then(|a| UnixDatagram::bind_addr(&a));
        match socket {
            Ok(socket) => {
                #[cfg(test)]
                pause.own(socket.as_raw_fd());
                socket.set_nonblocking(true)?;
                Ok(Some(Self(socket)))
            }
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether somebody has it. Wakes whoever has it.
    pub fn is_taken(of: Of, uuid: &[u8; 16]) -> bool {
        let wake = || -> io::Result<()> {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.connect_addr(&Self::address(of, uuid)?)?;
            // That so many have woken it already is no error.
            let _ = socket.send(b"look");
            Ok(())
        };
        wake().is_ok()
    }

    /// To wait for: somebody wants the owner to look.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Takes note that the owner was woken; returns whether it was.
    fn woken(&self) -> bool {
        let mut woken = false;
        while self.0.recv(&mut [0; 8]).is_ok() {
            woken = true;
        }
        woken
    }
}

#[cfg(test)]
impl Drop for Claim {
    fn drop(&mut self) {
        sys::forks::pause().give_up(self.fd());
    }
}

/// What became of a rotation.
#[derive(Debug)]
pub enum Turn {
    /// The piece of this number is complete.
    Done(u32),
    /// The kernel goes on with it.
    Pending(Pending),
    /// Somebody else rotates at the moment.
    Busy,
    /// The trace is not on any more.
    Ended,
}

/// A rotation that the kernel goes on with.
#[derive(Debug)]
pub struct Pending {
    next: Name,
    uuid: [u8; 16],
    _claim: Claim,
}

impl Pending {
    /// What has become of it; `None` if that is not decided yet.
    pub fn look(&self, status: &Status) -> Option<Turn> {
        if status.raw.uuid != self.uuid {
            // Nobody knows how far it got.
            return Some(Turn::Ended);
        }
        match (self.next.begun(status), status.state()) {
            (Some(number), _) => Some(Turn::Done(number.saturating_sub(1))),
            (None, State::On | State::Ending) => None,
            (None, _) => {
                // The trace has ended without this piece.
                self.next.remove();
                Some(Turn::Ended)
            }
        }
    }
}

/// What the file of a piece that is to begin is called.
#[derive(Debug)]
struct Name {
    directory: PathBuf,
    /// The number that it is to have.
    number: u32,
    /// What it is called until it has begun, if there was a file of its name already.
    beside: Option<PathBuf>,
}

impl Name {
    fn path(&self) -> PathBuf {
        self.directory.join(name(self.number))
    }

    fn remove(&self) {
        let path = self.beside.clone().unwrap_or_else(|| self.path());
        let _ = fs::remove_file(path);
    }

    /// The number of the piece, if it has begun. Then its file has its name.
    ///
    /// The file that was there already may be of a piece that the kernel began for a process that
    /// was killed, even after the number was looked up. So the number is what the piece says.
    fn begun(&self, status: &Status) -> Option<u32> {
        let piece = status.raw.piece;
        let Some(beside) = &self.beside else {
            return (piece >= self.number).then_some(self.number);
        };
        let told = File::open(beside).and_then(|file| pieces::read(&file));
        let told = told.ok().flatten().filter(|told| piece >= told.number)?;
        let _ = fs::rename(beside, self.directory.join(name(told.number)));
        Some(told.number)
    }
}

/// Creates a file. With a limit, another process does so, because it may hang.
fn create(path: &Path, limit: Option<Duration>) -> Result<File, Errno> {
    let errno = |e: &io::Error| Errno(e.raw_os_error().unwrap_or(libc::EIO));
    let Some(limit) = limit else {
        return File::create_new(path).map_err(|e| errno(&e));
    };
    let work = || {
        let file = File::create_new(path).map_err(|e| errno(&e));
        let text = file.as_ref().map_or_else(|e| e.0, |_| 0).to_string();
        (text.into_bytes(), file)
    };
    let fd = |file: &Result<File, Errno>| file.as_ref().ok().map(|f| f.as_raw_fd());
    let undo = |file: Result<File, Errno>| {
        if file.is_ok() {
            let _ = fs::remove_file(path);
        }
    };
    match sys::apart(limit, work, fd, undo) {
        Ok(Some((_, Some(fd)))) => Ok(File::from(fd)),
        Ok(Some((text, None))) => {
            let number = String::from_utf8_lossy(&text).parse();
            Err(Errno(number.unwrap_or(libc::EIO)))
        }
        Ok(None) => Err(Errno(libc::ETIMEDOUT)),
        Err(e) => Err(errno(&e)),
    }
}

impl Name {
    /// Creates the file of a piece.
    fn create(
        directory: &Path,
        number: u32,
        limit: Option<Duration>,
    ) -> Result<(Self, File), Errno> {
        let mut next = Self {
            directory: directory.to_owned(),
            number,
            beside: None,
        };
        let file = match create(&next.path(), limit) {
            // Whoever made it rotates no more, but the kernel may still do so. It says.
            Err(Errno(libc::EEXIST)) => {
                let beside = pieces::unfinished(&next.path());
                let _ = fs::remove_file(&beside);
                let file = create(&beside, limit)?;
                next.beside = Some(beside);
                file
            }
            file => file?,
        };
        Ok((next, file))
    }
}

/// Begins the next piece of the trace with this UUID in its directory.
pub fn rotate(
    control: &dyn Control,
    directory: &Path,
    uuid: &[u8; 16],
    limit: Option<Duration>,
) -> Result<Turn, Rotation> {
    let unable = |e: io::Error| Rotation {
        errno: None,
        failure: Failure::usage(format!("can't make sure that nobody else rotates: {e}")),
    };
    let Some(claim) = Claim::take(Of::Rotation, uuid).map_err(unable)? else {
        return Ok(Turn::Busy);
    };
    let Ok(status) = control.status() else {
        return Ok(Turn::Busy);
    };
    if !status.is_on() || status.raw.uuid != *uuid {
        return Ok(Turn::Ended);
    }
    let number = status.raw.piece + 1;
    let shown = directory.join(name(number)).to_string_lossy().into_owned();
    let refused = |errno: Errno| Rotation {
        errno: Some(errno),
        failure: no_rotation(&shown, errno),
    };
    let (next, file) = Name::create(directory, number, limit).map_err(refused)?;
    let pending = |next| Pending {
        next,
        uuid: *uuid,
        _claim: claim,
    };
    match control.rotate(&shown, file.as_fd()) {
        Ok(()) if next.beside.is_none() => Ok(Turn::Done(number - 1)),
        // It has begun, and the next look finds out what its number is.
        Ok(()) | Err(Errno(libc::EINPROGRESS | libc::EINTR)) => Ok(Turn::Pending(pending(next))),
        Err(errno) => {
            next.remove();
            match errno.0 {
                libc::EBUSY => Ok(Turn::Busy),
                libc::ENODATA => Ok(Turn::Ended),
                _ => Err(refused(errno)),
            }
        }
    }
}

/// A rotation that failed. The trace goes on in the former piece.
#[derive(Debug)]
pub struct Rotation {
    /// Why, if the kernel or the file system said so.
    pub errno: Option<Errno>,
    /// What the user should know.
    pub failure: Failure,
}

/// Removes what processes that were killed have left in the directory of pieces, after the trace
/// has ended: the file of a piece that never began. A piece that has not got its name gets it.
pub fn sweep(directory: &Path, status: &Status) {
    let is_over = matches!(status.state(), State::Off | State::Failed);
    if !is_over {
        return;
    }
    // As long as it is held, nobody begins a rotation.
    let Ok(Some(_claim)) = Claim::take(Of::Rotation, &status.raw.uuid) else {
        return;
    };
    let path = directory.join(name(status.raw.piece.saturating_add(1)));
    let _ = fs::remove_file(path);
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let is_ours = |name: &str| name.starts_with('.') && name.contains(".vmtrace.");
        if !entry.file_name().to_str().is_some_and(is_ours) {
            continue;
        }
        let path = entry.path();
        let told = File::open(&path).and_then(|file| pieces::read(&file));
        let _ = match told.ok().flatten() {
            Some(told) if told.uuid == status.raw.uuid => {
                fs::rename(&path, directory.join(name(told.number)))
            }
            _ => fs::remove_file(&path),
        };
    }
}

/// When pieces begin, and which are kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// When the next one begins.
    pub when: When,
    /// How many bytes of complete pieces are kept, if not all.
    pub keep: Option<u64>,
}

/// Between two looks at the size of a piece.
const SOONEST: Duration = Duration::from_millis(10);
const LATEST: Duration = Duration::from_millis(250);
/// Before another look at what somebody else, or the kernel, is doing.
const SOON: Duration = Duration::from_millis(50);
/// Between two looks at a trace whose pieces begin by time only.
const LOOK: Duration = Duration::from_secs(1);
/// After a rotation that failed.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_AT_MOST: Duration = Duration::from_secs(60);
/// For this long, programs that are being started are nothing to report.
const STARTING: u32 = 10;
/// So much longer than a rotation takes is a piece at least.
const MOSTLY: u32 = 4;

/// Begins pieces as long as a trace is on.
#[derive(Debug)]
pub struct Rotor {
    plan: Plan,
    directory: PathBuf,
    uuid: [u8; 16],
    /// Tells others that somebody rotates, as long as the trace is on.
    claim: Option<Claim>,
    is_over: bool,
    /// How long the creation of a file may take, if another process does it.
    limit: Option<Duration>,
    /// The present piece, when it began, and its bytes at the last look.
    piece: u32,
    began: Instant,
    seen: (Instant, u64),
    next_look: Instant,
    /// No rotation before that.
    not_before: Instant,
    pending: Option<Pending>,
    /// Rotations that failed, and how many of them since the last one that did not.
    failures: u64,
    in_a_row: u32,
    last: Option<Failure>,
    /// Why old pieces could not be removed, the last time.
    unpruned: Option<String>,
}

impl Rotor {
    /// Looks after the trace that is on.
    pub fn new(plan: Plan, directory: PathBuf, status: &Status, limit: Option<Duration>) -> Self {
        let now = Instant::now();
        let uuid = status.raw.uuid;
        Self {
            plan,
            directory,
            uuid,
            // Without a claim, `status` says that nobody rotates, and no more.
            claim: Claim::take(Of::Trace, &uuid).ok().flatten(),
            is_over: false,
            limit,
            piece: status.raw.piece,
            began: now,
            seen: (now, status.raw.piece_bytes),
            next_look: now,
            not_before: now,
            pending: None,
            failures: 0,
            in_a_row: 0,
            last: None,
            unpruned: None,
        }
    }

    /// The directory of the pieces.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The UUID of the trace.
    pub fn uuid(&self) -> &[u8; 16] {
        &self.uuid
    }

    /// To wait for: somebody wants it to look.
    pub fn fd(&self) -> Option<RawFd> {
        self.claim.as_ref().map(Claim::fd)
    }

    /// When it is to look next; `None` if the trace has ended.
    pub fn next_at(&self) -> Option<Instant> {
        (!self.is_over).then_some(self.next_look)
    }

    /// Whether the trace has ended.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Looks whether a piece is to begin, if it is time for that.
    pub fn look(&mut self, control: &dyn Control, io: &mut Io<'_>) {
        let now = Instant::now();
        let is_woken = self.claim.as_ref().is_some_and(Claim::woken);
        if self.is_over || (!is_woken && now < self.next_look) {
            return;
        }
        let Some(status) = self.follow(control, now, io) else {
            return;
        };
        if self.pending.is_none() && self.is_due(&status, now) && now >= self.not_before {
            let _ = self.rotate(control, io);
        }
    }

    /// Takes note of what has happened; gives the status if the trace is on.
    fn follow(&mut self, control: &dyn Control, now: Instant, io: &mut Io<'_>) -> Option<Status> {
        // A failed request means nothing for the trace.
        let Ok(status) = control.status() else {
            self.next_look = now + LOOK;
            return None;
        };
        if let Some(turn) = self.pending.as_ref().and_then(|p| p.look(&status)) {
            self.pending = None;
            if matches!(turn, Turn::Done(_)) {
                self.in_a_row = 0;
                self.last = None;
            }
        }
        let is_ours = status.raw.uuid == self.uuid;
        if is_ours && status.state() == State::Ending {
            self.next_look = now + LOOK;
            return None;
        }
        if !is_ours || !status.is_on() {
            self.end(&status);
            return None;
        }
        if status.raw.piece != self.piece {
            self.begin(&status, now, io);
        }
        self.next_look = now + self.rest(&status, now);
        self.seen = (now, status.raw.piece_bytes);
        Some(status)
    }

    /// A piece has begun, whoever did that.
    fn begin(&mut self, status: &Status, now: Instant, io: &mut Io<'_>) {
        self.piece = status.raw.piece;
        self.began = now;
        self.seen = (now, 0);
        let Some(keep) = self.plan.keep else { return };
        let pruned = pieces::prune(&self.directory, keep, self.piece);
        let why = pruned.err().map(|e| e.to_string());
        if let Some(why) = why.as_ref().filter(|_| why != self.unpruned) {
            let directory = self.directory.display();
            io.note(&format!(
                "old pieces in {directory} can't be removed: {why}"
            ));
        }
        self.unpruned = why;
    }

    fn is_due(&self, status: &Status, now: Instant) -> bool {
        let When { bytes, time } = self.plan.when;
        bytes.is_some_and(|bytes| status.raw.piece_bytes >= bytes)
            || time.is_some_and(|time| now.duration_since(self.began) >= time)
    }

    /// How long it may rest until the next look: half of the time that the rest of the piece takes,
    /// as fast as it grew since the last look.
    fn rest(&self, status: &Status, now: Instant) -> Duration {
        let mut rest = LOOK;
        if self.pending.is_some() {
            return SOON;
        }
        if let Some(time) = self.plan.when.time {
            rest = rest.min((self.began + time).saturating_duration_since(now));
        }
        if let Some(limit) = self.plan.when.bytes {
            let (at, bytes) = self.seen;
            let grown = status.raw.piece_bytes.saturating_sub(bytes);
            let left = limit.saturating_sub(status.raw.piece_bytes);
            let took = now.duration_since(at).as_secs_f64();
            let half = took * left as f64 / (grown.max(1) as f64) / 2.0;
            rest = rest.min(Duration::from_secs_f64(half.min(LATEST.as_secs_f64())));
        }
        rest.max(SOONEST)
            .max(self.not_before.saturating_duration_since(now).min(LOOK))
    }

    /// Begins a piece now. Failures are reported here; `None` if there was one, or if the trace has
    /// ended.
    pub fn rotate(&mut self, control: &dyn Control, io: &mut Io<'_>) -> Option<Turn> {
        if self.is_over {
            return None;
        }
        if self.pending.is_some() {
            return Some(Turn::Busy);
        }
        let start = Instant::now();
        let turn = rotate(control, &self.directory, &self.uuid, self.limit);
        let now = Instant::now();
        self.not_before = now + (now - start) * MOSTLY;
        match turn {
            Ok(Turn::Done(number)) => {
                self.in_a_row = 0;
                self.last = None;
                self.follow(control, now, io);
                Some(Turn::Done(number))
            }
            Ok(Turn::Pending(pending)) => {
                self.pending = Some(pending);
                self.next_look = now + SOON;
                Some(Turn::Busy)
            }
            Ok(Turn::Busy) => {
                self.next_look = now + SOON;
                self.not_before = self.not_before.max(self.next_look);
                Some(Turn::Busy)
            }
            Ok(Turn::Ended) => {
                self.next_look = now;
                None
            }
            Err(Rotation {
                errno: Some(Errno(libc::EAGAIN)),
                ..
            }) if self.in_a_row < STARTING => {
                self.in_a_row += 1;
                self.not_before = now + SOONEST * self.in_a_row;
                self.next_look = self.not_before;
                Some(Turn::Busy)
            }
            Err(rotation) => {
                self.fail(rotation.failure, io);
                let again = AGAIN.saturating_mul(1 << (self.in_a_row - 1).min(6));
                self.not_before = now + again.min(AGAIN_AT_MOST);
                None
            }
        }
    }

    /// Takes note of a failure; only the first of several that are the same is reported at once.
    fn fail(&mut self, failure: Failure, io: &mut Io<'_>) {
        self.failures += 1;
        self.in_a_row += 1;
        if self.last.as_ref() != Some(&failure) {
            io.note(&format!(
                "no piece begins: {failure}; the trace goes on in piece {}",
                self.piece
            ));
        }
        self.last = Some(failure);
    }

    /// The trace has ended.
    pub fn end(&mut self, status: &Status) {
        if status.raw.uuid == self.uuid {
            if let Some(pending) = self.pending.take() {
                let _ = pending.look(status);
            }
            sweep(&self.directory, status);
        }
        self.claim = None;
        self.is_over = true;
    }

    /// What is to be said at the end: that rotations failed, and the last one, too.
    pub fn failure(&self) -> Option<Failure> {
        let last = self.last.as_ref()?;
        Some(Failure::new(
            last.code,
            format!(
                "{} rotations failed, the last one, too: {last}; the trace is whole",
                count(self.failures)
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_one_process_s() {
        let mut uuid = [0xc1; 16];
        uuid[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let take = |of| Claim::take(of, &uuid).expect("sockets");
        assert!(!Claim::is_taken(Of::Trace, &uuid));
        let claim = take(Of::Trace).expect("free");
        assert!(take(Of::Trace).is_none());
        assert!(take(Of::Rotation).is_some(), "another one");
        assert!(!claim.woken());
        // However often it is woken, nobody waits.
        for _ in 0..2000 {
            assert!(Claim::is_taken(Of::Trace, &uuid));
        }
        assert!(claim.woken() && !claim.woken());
        drop(claim);
        assert!(!Claim::is_taken(Of::Trace, &uuid));
        assert!(take(Of::Trace).is_some());
    }

    /// The children of other tests, which are other threads, have no claim of this one.
    #[test]
    fn a_claim_is_no_other_test_s() {
        let mut uuid = [0xc2; 16];
        uuid[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let take = || Claim::take(Of::Rotation, &uuid).expect("sockets");
        let child = || sys::Probe::new(|| 1).expect("child");
        let claim = take().expect("free");
        let of_other = std::thread::scope(|scope| scope.spawn(child).join().expect("no panic"));
        drop(claim);
        let claim = take().expect("the child does not have it");
        assert_eq!(of_other.run().expect("run"), 1);
        // One of its own keeps it until the child ends.
        let own = child();
        drop(claim);
        assert!(take().is_none());
        drop(own);
        assert!(take().is_some());
    }
}
