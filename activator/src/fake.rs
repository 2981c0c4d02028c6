//! A kernel in memory, for tests.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rust_mm_trace::uapi::{
    VMTRACE_BATCH_DEFAULT, VMTRACE_COUNTED, VMTRACE_FILTERED, VMTRACE_HEADER_SIZE, VMTRACE_MAGIC,
    VMTRACE_PACK, VMTRACE_PACKET_MAGIC, VMTRACE_PAUSABLE, VMTRACE_PIECE, VMTRACE_POLICY_CLOCK,
    VMTRACE_REGIONS, VMTRACE_SCOPE_ALL, VMTRACE_SETS_CGROUP, VMTRACE_SETS_ONE, VMTRACE_STATE_EARLY,
    VMTRACE_STATE_ENDING, VMTRACE_STATE_FAILED, VMTRACE_STATE_OFF, VMTRACE_STATE_ON,
    VMTRACE_STREAM_EVENT, VMTRACE_STREAM_PIECE, VMTRACE_STREAM_PIECE_END, VMTRACE_STREAM_REF,
    VMTRACE_UNWRITTEN, VMTRACE_ZSTD, vmtrace_count, vmtrace_counts, vmtrace_header, vmtrace_packet,
    vmtrace_piece, vmtrace_piece_end, vmtrace_ring, vmtrace_rings, vmtrace_sampling,
    vmtrace_status,
};

use crate::control::{Config, Control, Writing, raw_rotate, raw_take};
use crate::error::Errno;
use crate::filter::Filter;
use crate::status::Status;
use crate::units::Pages;

/// Behaves as the header says, and as the test asks. It counts ten references
/// for each look at the status. A filter leaves four of them out, or all of them if nothing is
/// written. Whoever asks for counts gets a table that the test gives, or the last one again. So it
/// is with rings; if the test gives none, all references go through those of CPU 0.
#[derive(Debug)]
pub struct Fake {
    status: RefCell<vmtrace_status>,
    refuse: Cell<i32>,
    /// The machine is none that can be traced.
    pub is_unfit: Cell<bool>,
    looks_until_full: Cell<Option<u32>>,
    looks_until_off: Cell<Option<u32>>,
    looks_until_refused: Cell<Option<u32>>,
    looks_until_replaced: Cell<Option<u32>>,
    stops_until_taken: Cell<u32>,
    refuse_rotations: RefCell<VecDeque<i32>>,
    refuse_filter: Cell<i32>,
    refuse_take: Cell<i32>,
    /// Of a trace with a filter; empty if all references are recorded.
    filter: RefCell<Option<String>>,
    /// How the trace that began last samples regions; all zero if it does not.
    pub sampling: Cell<vmtrace_sampling>,
    looks_until_rotated: Cell<Option<u32>>,
    piece: RefCell<Option<File>>,
    /// The file and the name of a piece that begins later.
    later: RefCell<Option<(File, String)>>,
    /// Tables of counts that come one after the other. The last one stays.
    tables: RefCell<VecDeque<Vec<vmtrace_count>>>,
    /// References that are in no table, in addition for each one.
    elsewhere: Cell<u64>,
    refuse_counts: Cell<i32>,
    /// Requests for counts.
    asked: Cell<u64>,
    /// Rings, or refusals, that come one after the other. The last one stays.
    rings: RefCell<VecDeque<Result<Vec<vmtrace_ring>, i32>>>,
    /// Requests for rings.
    rings_asked: Cell<u64>,
    /// What programs do until the next look at the status, if N is the argument: references, and the
    /// time for which they have a CPU, ns. Not while there are windows, and none is open.
    pub program: Cell<fn(u32) -> (u64, u64)>,
    /// References in each trace, besides those that come with looks at the status.
    pub busy: Cell<u64>,
    /// How long a start takes.
    pub start_takes: Cell<Duration>,
    /// Calls of [`Control::start`] that succeeded.
    pub starts: Cell<u32>,
    /// Calls of [`Control::stop`] that were not refused with `ENODATA`.
    pub stops: Cell<u32>,
}

impl Default for Fake {
    /// A machine with two CPUs on which there was no trace.
    fn default() -> Self {
        Self {
            status: RefCell::new(vmtrace_status {
                size: size_of::<vmtrace_status>() as u32,
                evms_min: 32,
                nr_cpus: 2,
                ..Default::default()
            }),
            refuse: Cell::new(0),
            is_unfit: Cell::new(false),
            looks_until_full: Cell::new(None),
            looks_until_off: Cell::new(None),
            looks_until_refused: Cell::new(None),
            looks_until_replaced: Cell::new(None),
            stops_until_taken: Cell::new(0),
            refuse_rotations: RefCell::default(),
            refuse_filter: Cell::new(0),
            refuse_take: Cell::new(0),
            filter: RefCell::default(),
            sampling: Cell::default(),
            looks_until_rotated: Cell::new(None),
            piece: RefCell::new(None),
            later: RefCell::new(None),
            tables: RefCell::default(),
            elsewhere: Cell::default(),
            refuse_counts: Cell::default(),
            asked: Cell::default(),
            rings: RefCell::default(),
            rings_asked: Cell::default(),
            program: Cell::new(|_| (10, 0)),
            busy: Cell::default(),
            start_takes: Cell::default(),
            starts: Cell::new(0),
            stops: Cell::new(0),
        }
    }
}

/// That of a trace which other programs of this machine know by it.
fn own_uuid() -> [u8; 16] {
    static TRACES: AtomicU32 = AtomicU32::new(0);
    let mut uuid = [0; 16];
    let number = TRACES.fetch_add(1, Ordering::Relaxed);
    uuid[..4].copy_from_slice(&number.to_le_bytes());
    uuid[4..8].copy_from_slice(&std::process::id().to_le_bytes());
    uuid
}

impl Fake {
    /// Changes what the kernel counted.
    pub fn change(&self, change: impl FnOnce(&mut vmtrace_status)) {
        change(&mut self.status.borrow_mut());
    }

    /// Boots with vmtrace=early.
    pub fn boot_early(&self) {
        self.change(|s| {
            (s.state, s.scope, s.uuid) = (VMTRACE_STATE_EARLY, VMTRACE_SCOPE_ALL, own_uuid());
            (s.evms_size, s.evms_peak, s.first_segment) = (512, 512, 16);
        });
    }

    /// Makes every start fail with `errno`.
    pub fn refuse_start(&self, errno: i32) {
        self.refuse.set(errno);
    }

    /// Lets the output be full at the `looks`th look at the status from now.
    pub fn full_after(&self, looks: u32) {
        self.looks_until_full.set(Some(looks));
    }

    /// Refuses the `looks`th look of those that find the trace on, once.
    pub fn refuse_look(&self, looks: u32) {
        self.looks_until_refused.set(Some(looks));
    }

    /// Lets somebody end the trace before the `looks`th look from now.
    pub fn off_after(&self, looks: u32) {
        self.looks_until_off.set(Some(looks));
    }

    /// Lets somebody end the trace and start another before the `looks`th look
    /// from now.
    pub fn replaced_after(&self, looks: u32) {
        self.looks_until_replaced.set(Some(looks));
    }

    /// Lets the output take the rest of the trace only at the `calls`th call of stop after
    /// the next one.
    pub fn taken_after(&self, calls: u32) {
        self.stops_until_taken.set(calls);
    }

    /// Makes the next rotations fail, each with one of these. With `EINPROGRESS`, the kernel
    /// goes on: see [`Fake::rotated_after`].
    pub fn refuse_rotations(&self, errnos: &[i32]) {
        self.refuse_rotations.borrow_mut().extend(errnos);
    }

    /// Makes the next change of the filter fail with `errno`.
    pub fn refuse_filter(&self, errno: i32) {
        self.refuse_filter.set(errno);
    }

    /// Makes the next request for the trace from boot fail with `errno`.
    pub fn refuse_take(&self, errno: i32) {
        self.refuse_take.set(errno);
    }

    /// Sets the tables of counts, which come one after the other.
    pub fn count(&self, tables: impl IntoIterator<Item = Vec<vmtrace_count>>) {
        *self.tables.borrow_mut() = tables.into_iter().collect();
    }

    /// Sets how many references there are that no table has.
    pub fn count_elsewhere(&self, references: u64) {
        self.elsewhere.set(references);
    }

    /// Makes each request for counts fail with `errno`.
    pub fn refuse_counts(&self, errno: i32) {
        self.refuse_counts.set(errno);
    }

    /// How often counts were asked for.
    pub fn asked(&self) -> u64 {
        self.asked.get()
    }

    /// Sets the rings that the next requests are answered with, one after the other. An error
    /// number refuses a request.
    pub fn answer_rings(&self, answers: impl IntoIterator<Item = Result<Vec<vmtrace_ring>, i32>>) {
        *self.rings.borrow_mut() = answers.into_iter().collect();
    }

    /// How often rings were asked for.
    pub fn rings_asked(&self) -> u64 {
        self.rings_asked.get()
    }

    /// The rings of a machine whose CPU 0 does everything.
    fn usual_rings(status: &vmtrace_status) -> Vec<vmtrace_ring> {
        let empty = |kind, cpu| vmtrace_ring {
            kind,
            cpu,
            buffers: 8,
            buffer_size: 65536,
            free: 8,
            ..Default::default()
        };
        let of_cpu = |cpu| {
            [
                empty(VMTRACE_STREAM_REF, cpu),
                empty(VMTRACE_STREAM_EVENT, cpu),
            ]
        };
        let mut rings: Vec<_> = (0..status.nr_cpus).flat_map(of_cpu).collect();
        if let [references, events, ..] = &mut rings[..] {
            *references = vmtrace_ring {
                free: 7,
                lost_full: status.lost_full,
                admissions: status.admissions,
                renewed: status.renewed,
                chances: status.chances,
                left_out: status.left_out,
                ..*references
            };
            events.free = 7;
        }
        rings
    }

    /// The filter of the trace, as the user wrote it: empty if all references are recorded, `None`
    /// if the trace was begun without one.
    pub fn filter(&self) -> Option<String> {
        self.filter.borrow().clone()
    }

    /// Lets a rotation that is in progress be done at the `looks`th look, or request for another
    /// one, from now.
    pub fn rotated_after(&self, looks: u32) {
        self.looks_until_rotated.set(Some(looks));
    }

    /// Puts the present piece's own part into its file, so far as it is counted.
    fn end_piece(&self, status: &vmtrace_status) {
        if let Some(mut file) = self.piece.borrow_mut().take() {
            let own = vec![0; status.piece_bytes as usize];
            let end =
                packet::<vmtrace_piece_end>(status.uuid, VMTRACE_STREAM_PIECE_END, status.piece);
            let done = file.write_all(&own).and_then(|()| file.write_all(&end));
            // The test will find out.
            drop(done);
        }
    }

    /// Begins a piece.
    fn begin_piece(&self, status: &mut vmtrace_status, file: File, name: &str) {
        let mut file = file;
        let mut text = vec![0; VMTRACE_HEADER_SIZE as usize];
        text[..8].copy_from_slice(&VMTRACE_MAGIC.to_le_bytes());
        let uuid = std::mem::offset_of!(vmtrace_header, uuid);
        text[uuid..uuid + 16].copy_from_slice(&status.uuid);
        let piece = packet::<vmtrace_piece>(status.uuid, VMTRACE_STREAM_PIECE, status.piece);
        let done = file.write_all(&text).and_then(|()| file.write_all(&piece));
        drop(done);
        status.piece_bytes = 0;
        status.output = raw_rotate(name, -1).output;
        *self.piece.borrow_mut() = Some(file);
    }

    /// A rotation that was in progress is done, if it is time for that.
    fn rotate_later(&self, status: &mut vmtrace_status) {
        let later = match Self::due(&self.looks_until_rotated) {
            true => self.later.borrow_mut().take(),
            false => None,
        };
        if let Some((file, name)) = later {
            self.rotate_to(status, file, &name);
        }
    }

    fn rotate_to(&self, status: &mut vmtrace_status, file: File, name: &str) {
        self.end_piece(status);
        status.piece += 1;
        self.begin_piece(status, file, name);
    }

    /// Starts a trace in pieces whose directory is `directory`.
    #[cfg(test)]
    pub(crate) fn start_in_pieces(&self, directory: &std::path::Path) {
        let path = directory.join(crate::pieces::name(0));
        let file = File::create_new(&path).expect("create");
        let config = Config {
            writing: Writing {
                in_pieces: true,
                ..Writing::default()
            },
            output: path.to_string_lossy().into_owned(),
            ..Config::example()
        };
        self.start(&config, Some(std::os::fd::AsFd::as_fd(&file)))
            .expect("started");
    }

    /// The status of a trace that ended well.
    pub fn example() -> Status {
        let mut raw = vmtrace_status {
            size: size_of::<vmtrace_status>() as u32,
            scope: 2,
            pid: 42,
            evms_size: 512,
            evms_peak: 512,
            first_segment: 16,
            evms_min: 32,
            nr_cpus: 2,
            uuid: [0xab; 16],
            start_time: 5_000_000_000,
            stop_time: 17_500_000_000,
            last_seq: 1_235_801,
            admissions: 1_234_567,
            refs: 1_234_567,
            events: 1234,
            members_max: 512,
            uncovered: 2,
            waits: 7,
            packets: 605,
            bytes: 39_551_632,
            stored: 39_551_632,
            mms: 3,
            ..Default::default()
        };
        for (to, from) in raw.output.iter_mut().zip(b"/data/t.vmt") {
            *to = *from as libc::c_char;
        }
        Status::from(raw)
    }

    fn due(counter: &Cell<Option<u32>>) -> bool {
        match counter.get() {
            Some(0 | 1) => {
                counter.set(None);
                true
            }
            Some(n) => {
                counter.set(Some(n - 1));
                false
            }
            None => false,
        }
    }

    fn end(status: &mut vmtrace_status) {
        status.state = VMTRACE_STATE_OFF;
        let kept = status.admissions - status.left_out;
        status.refs = kept - status.lost_full.min(kept);
        status.members = 0;
    }
}

/// A packet whose content is zeros, and a piece's number where that has it.
fn packet<T>(uuid: [u8; 16], kind: u32, number: u32) -> Vec<u8> {
    use std::mem::offset_of;
    let head = size_of::<vmtrace_packet>();
    let mut bytes = vec![0; head + size_of::<T>()];
    bytes[..8].copy_from_slice(&VMTRACE_PACKET_MAGIC.to_le_bytes());
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(offset_of!(vmtrace_packet, uuid), &uuid);
    put(
        offset_of!(vmtrace_packet, kind),
        &(kind as u16).to_le_bytes(),
    );
    put(
        offset_of!(vmtrace_packet, content_size),
        &(size_of::<T>() as u32).to_le_bytes(),
    );
    put(head, &number.to_le_bytes());
    bytes
}

/// Flags that go with regions.
const WITH_REGIONS: u32 =
    VMTRACE_REGIONS | VMTRACE_PACK | VMTRACE_ZSTD | VMTRACE_PIECE | VMTRACE_UNWRITTEN;

impl Control for Fake {
    fn start(&self, config: &Config, out: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        std::thread::sleep(self.start_takes.get());
        let mut status = self.status.borrow_mut();
        if self.refuse.get() != 0 {
            return Err(Errno(self.refuse.get()));
        }
        if matches!(status.state, VMTRACE_STATE_ON | VMTRACE_STATE_EARLY) {
            return Err(Errno(libc::EBUSY));
        }
        let raw = config.raw(out.map_or(-1, |out| out.as_raw_fd()));
        let is_unwritten = raw.flags & VMTRACE_UNWRITTEN != 0;
        match out {
            Some(_) if is_unwritten => return Err(Errno(libc::EINVAL)),
            None if !is_unwritten => return Err(Errno(libc::EBADF)),
            _ => {}
        }
        if raw.evms_size < status.evms_min || raw.sets > VMTRACE_SETS_CGROUP {
            return Err(Errno(libc::EINVAL));
        }
        let has_regions = raw.flags & VMTRACE_REGIONS != 0;
        let has_windows =
            raw.window_time | raw.window_refs != 0 || raw.flags & VMTRACE_PAUSABLE != 0;
        if raw.flags & !WITH_REGIONS != 0 && has_regions && !has_windows {
            return Err(Errno(libc::EINVAL));
        }
        self.sampling.set(raw.sampling);
        self.starts.set(self.starts.get() + 1);
        let filter = config.filter.as_ref().map(|f| f.text().to_owned());
        *self.filter.borrow_mut() = filter;
        let in_pieces = raw.flags & VMTRACE_PIECE != 0;
        let uuid = match in_pieces {
            true => own_uuid(),
            false => [self.starts.get() as u8; 16],
        };
        let own_set = raw.sets != VMTRACE_SETS_ONE && status.sets_shared == 0;
        *status = vmtrace_status {
            size: status.size,
            state: VMTRACE_STATE_ON,
            scope: raw.scope,
            pid: raw.pid,
            evms_size: raw.evms_size,
            evms_peak: raw.evms_size,
            evms_max: match (raw.evms_max, raw.sets) {
                (0, VMTRACE_SETS_ONE) => 4 * raw.evms_size,
                (0, _) => raw.evms_size,
                (max, _) => max,
            },
            first_segment: raw.first_segment.max(16),
            policy: raw.policy as u16,
            batch: match (raw.batch, raw.policy) {
                (0, VMTRACE_POLICY_CLOCK) => 1,
                (0, _) => (raw.evms_size / 16).clamp(1, VMTRACE_BATCH_DEFAULT),
                (k, _) => k,
            } as u16,
            flags: raw.flags,
            windows: raw.windows,
            classes: raw.classes,
            evms_min: status.evms_min,
            nr_cpus: status.nr_cpus,
            uuid,
            start_time: 1_000_000_000,
            stop_time: 1_000_000_000,
            mms: 1,
            sets: raw.sets,
            // One for the address space, unless the test has left no memory for it.
            sets_made: u64::from(own_set),
            sets_max: u64::from(own_set),
            output: raw.output,
            // Set beforehand by a test.
            lost_full: status.lost_full,
            funny: status.funny,
            stuck: status.stuck,
            dangling: status.dangling,
            miscounted: status.miscounted,
            sets_shared: status.sets_shared,
            ..Default::default()
        };
        if let Some(out) = out.filter(|_| in_pieces) {
            let file = File::from(out.try_clone_to_owned().map_err(|_| Errno(libc::EBADF))?);
            self.begin_piece(&mut status, file, &config.output);
        }
        Ok(())
    }

    fn take(&self, output: &str, writing: Writing, out: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut status = self.status.borrow_mut();
        if status.state != VMTRACE_STATE_EARLY {
            return Err(Errno(libc::ENODATA));
        }
        match self.refuse_take.take() {
            0 => {}
            errno => return Err(Errno(errno)),
        }
        let raw = raw_take(output, writing, out.as_raw_fd());
        status.state = VMTRACE_STATE_ON;
        status.output = raw.output;
        status.flags = raw.flags;
        if writing.in_pieces {
            let file = File::from(out.try_clone_to_owned().map_err(|_| Errno(libc::EBADF))?);
            self.begin_piece(&mut status, file, output);
        }
        Ok(())
    }

    fn stop(&self) -> Result<Status, Errno> {
        let mut status = self.status.borrow_mut();
        match status.state {
            VMTRACE_STATE_ON | VMTRACE_STATE_EARLY | VMTRACE_STATE_ENDING => {
                self.stops.set(self.stops.get() + 1);
                if let Some(left) = self.stops_until_taken.get().checked_sub(1) {
                    self.stops_until_taken.set(left);
                    status.state = VMTRACE_STATE_ENDING;
                    return Err(Errno(libc::EINPROGRESS));
                }
                self.end_piece(&status);
                status.admissions += self.busy.get();
                if status.flags & VMTRACE_UNWRITTEN != 0 {
                    status.left_out += self.busy.get();
                }
                Self::end(&mut status);
                Ok(Status::from(*status))
            }
            VMTRACE_STATE_FAILED => {
                self.stops.set(self.stops.get() + 1);
                Err(Errno(libc::EIO))
            }
            _ => Err(Errno(libc::ENODATA)),
        }
    }

    fn window(&self, begin: bool) -> Result<(), Errno> {
        let mut status = self.status.borrow_mut();
        if status.state != VMTRACE_STATE_ON {
            return Err(Errno(libc::ENODATA));
        }
        if status.flags & VMTRACE_PAUSABLE == 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let is_open = status.windows_begun > status.windows_ended;
        match (begin, is_open) {
            (true, false) if status.windows != 0 && status.windows_ended == status.windows => {
                return Err(Errno(libc::ENODATA));
            }
            (true, false) => status.windows_begun += 1,
            (false, true) => status.windows_ended += 1,
            _ => {}
        }
        Ok(())
    }

    fn rotate(&self, output: &str, out: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut status = self.status.borrow_mut();
        if status.state != VMTRACE_STATE_ON {
            return Err(Errno(libc::ENODATA));
        }
        if status.flags & VMTRACE_PIECE == 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        self.rotate_later(&mut status);
        if self.later.borrow().is_some() {
            return Err(Errno(libc::EBUSY));
        }
        let file = File::from(out.try_clone_to_owned().map_err(|_| Errno(libc::EBADF))?);
        match self.refuse_rotations.borrow_mut().pop_front() {
            Some(libc::EINPROGRESS) => {
                *self.later.borrow_mut() = Some((file, output.to_owned()));
                return Err(Errno(libc::EINPROGRESS));
            }
            Some(errno) => return Err(Errno(errno)),
            None => self.rotate_to(&mut status, file, output),
        }
        Ok(())
    }

    fn filter(&self, filter: &Filter) -> Result<(), Errno> {
        let status = self.status.borrow();
        if status.state != VMTRACE_STATE_ON {
            return Err(Errno(libc::ENODATA));
        }
        if status.flags & VMTRACE_FILTERED == 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        match self.refuse_filter.take() {
            0 => *self.filter.borrow_mut() = Some(filter.text().to_owned()),
            errno => return Err(Errno(errno)),
        }
        Ok(())
    }

    fn status(&self) -> Result<Status, Errno> {
        if self.is_unfit.get() {
            return Err(Errno(libc::ENODEV));
        }
        let mut status = self.status.borrow_mut();
        if status.state == VMTRACE_STATE_ON {
            if Self::due(&self.looks_until_refused) {
                return Err(Errno(libc::EIO));
            }
            if status.flags & VMTRACE_PIECE != 0 {
                status.piece_bytes += 32768;
            }
            self.rotate_later(&mut status);
            let (references, ran) = (self.program.get())(status.evms_size);
            status.ran += ran;
            let is_closed =
                status.windows_begun > 0 && status.windows_begun == status.windows_ended;
            match status.flags & VMTRACE_REGIONS != 0 {
                true => status.events += references,
                false if is_closed => {}
                false => status.admissions += references,
            }
            if self.filter.borrow().as_ref().is_some_and(|f| !f.is_empty()) {
                let is_unwritten = status.flags & VMTRACE_UNWRITTEN != 0;
                status.left_out += if is_unwritten { 10 } else { 4 };
            }
            if status.flags & VMTRACE_REGIONS == 0 {
                (status.members, status.members_max) = (10, 10);
            }
            status.stop_time += 1_000_000_000;
            if Self::due(&self.looks_until_full) {
                status.state = VMTRACE_STATE_FAILED;
                status.error = libc::ENOSPC;
                status.lost_io = status.admissions;
            }
            if Self::due(&self.looks_until_off) {
                Self::end(&mut status);
            }
            if Self::due(&self.looks_until_replaced) {
                status.uuid = [0xee; 16];
            }
        }
        Ok(Status::from(*status))
    }

    fn counts(&self, list: &mut [vmtrace_count]) -> Result<vmtrace_counts, Errno> {
        let mut status = self.status.borrow_mut();
        if status.state != VMTRACE_STATE_ON {
            return Err(Errno(libc::ENODATA));
        }
        if status.flags & VMTRACE_COUNTED == 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if self.refuse_counts.get() != 0 {
            return Err(Errno(self.refuse_counts.get()));
        }
        self.asked.set(self.asked.get() + 1);
        let mut tables = self.tables.borrow_mut();
        let table = tables.front().cloned().unwrap_or_default();
        // Who has too little room asks for the same table again.
        if table.len() <= list.len() && tables.len() > 1 {
            tables.pop_front();
        }
        for (to, from) in list.iter_mut().zip(&table) {
            *to = *from;
        }
        let of = |c: &vmtrace_count| c.reads + c.writes + c.fetches + c.kernel;
        status.stop_time += 1_000_000_000;
        Ok(vmtrace_counts {
            size: size_of::<vmtrace_counts>() as u32,
            nr: table.len() as u32,
            time: status.stop_time,
            references: table.iter().map(of).sum::<u64>() + self.elsewhere.get(),
            elsewhere: self.elsewhere.get(),
            ..Default::default()
        })
    }

    fn rings(&self, list: &mut [vmtrace_ring]) -> Result<vmtrace_rings, Errno> {
        let status = self.status.borrow();
        if status.state == VMTRACE_STATE_OFF {
            return Err(Errno(libc::ENODATA));
        }
        self.rings_asked.set(self.rings_asked.get() + 1);
        let mut answers = self.rings.borrow_mut();
        let usual = || Ok(Self::usual_rings(&status));
        let rings = answers.front().cloned().unwrap_or_else(usual);
        // Who has too little room asks for the same rings again.
        let is_whole = rings.as_ref().map_or(true, |all| all.len() <= list.len());
        if is_whole && answers.len() > 1 {
            answers.pop_front();
        }
        let rings = rings.map_err(Errno)?;
        for (to, from) in list.iter_mut().zip(&rings) {
            *to = *from;
        }
        Ok(vmtrace_rings {
            size: size_of::<vmtrace_rings>() as u32,
            nr: rings.len() as u32,
            time: status.stop_time,
            seq: status.last_seq,
            uuid: status.uuid,
            ..Default::default()
        })
    }

    fn resize(&self, n: Pages) -> Result<(), Errno> {
        let mut status = self.status.borrow_mut();
        if status.state != VMTRACE_STATE_ON {
            return Err(Errno(libc::ENODATA));
        }
        if n.0 < crate::control::least_n(status.first_segment, status.nr_cpus) {
            return Err(Errno(libc::EINVAL));
        }
        if n.0 > status.evms_max {
            return Err(Errno(libc::ENOSPC));
        }
        status.evms_size = n.0;
        status.evms_peak = status.evms_peak.max(n.0);
        Ok(())
    }
}

/// A directory and a kernel for the tests of commands.
#[cfg(test)]
pub(crate) struct Bench {
    pub fake: std::rc::Rc<Fake>,
    pub name: crate::Name,
    dir: tempfile::TempDir,
}

/// What a command wrote and how it ended.
#[cfg(test)]
pub(crate) struct Got {
    pub code: u8,
    pub out: String,
    pub err: String,
}

#[cfg(test)]
impl Got {
    pub fn expect(&self, code: u8) -> &Self {
        assert_eq!(self.code, code, "out: {}err: {}", self.out, self.err);
        self
    }
}

#[cfg(test)]
impl Bench {
    pub fn new() -> Self {
        Self {
            fake: std::rc::Rc::default(),
            name: crate::Name::default(),
            dir: tempfile::tempdir().expect("tempdir"),
        }
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a command line; what follows `-o` lies in the directory.
    pub fn activator(&self, args: &[&str]) -> Got {
        let mut line = vec!["activator".into()];
        for (i, arg) in args.iter().enumerate() {
            line.push(match i.checked_sub(1).map(|i| args[i]) {
                Some("-o") => self.path(arg).into_os_string(),
                _ => arg.into(),
            });
        }
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = crate::run(
            line,
            &|_| Ok(Box::new(self.fake.clone())),
            &mut crate::Io {
                out: &mut out,
                err: &mut err,
                background: false,
                is_stdout: false,
                name: self.name,
            },
        );
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Got {
            code,
            out: text(out),
            err: text(err),
        }
    }
}
