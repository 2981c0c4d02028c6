//! What can go wrong, with the place where it did.

use std::path::PathBuf;

/// The result of this library's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a trace could not be read or a product could not be written.
///
/// The message does not contain the cause, which `source()` gives. The code that prints an
/// error must also print the causes, as anyhow's `{:#}` does.
///
/// Damage inside a trace is no error: only the damaged packet is lost, and it is listed as
/// [`crate::trace::Damage`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened, mapped or measured.
    #[error("{path}: cannot read")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The trace became shorter while it was read.
    #[error(
        "{path}: the trace was truncated while it was read: it had {len} bytes when it was opened; \
         the results were discarded"
    )]
    Shortened {
        /// The file.
        path: PathBuf,
        /// Its length in bytes when it was opened.
        len: u64,
    },
    /// A directory or a terminal.
    #[error("{path}: {what}, not a trace; give a file, a block device or a pipe")]
    NotAFile {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// References are needed, and the trace has none: regions of memory were sampled instead.
    #[error(
        "{path}: the trace has samples of regions, and no references: use `postproc regions`, or \
         `postproc export --format damon`"
    )]
    OnlyRegions {
        /// The trace.
        path: PathBuf,
    },
    /// What was selected is nothing, of a trace that is to be kept in another form.
    #[error("{path}: {why}. Nothing is made of the trace")]
    NothingSelected {
        /// The trace.
        path: PathBuf,
        /// The options that select, and what they keep.
        why: String,
    },
    /// An empty file.
    #[error("{path}: empty file; no trace was ever written to it")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Standard input is to be read a second time.
    #[error("{path}: standard input can be read only once: give each `-` but one a file")]
    StdinTwice {
        /// What the user called it.
        path: PathBuf,
    },
    /// No temporary file, or no room in it, for a pipe or a compressed file.
    #[error(
        "{path}: no copy of it can be kept in a temporary file in {}; the environment variable \
         TMPDIR selects another directory",
        directory.display()
    )]
    Spool {
        /// What was read.
        path: PathBuf,
        /// Where the temporary file is.
        directory: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A frame of Zstandard that needs much memory.
    #[error(
        "{path}: decompressing it would take more than {} MiB of memory: decompress it by \
         `zstd -d --long=31`, to a file or a pipe",
        (1u64 << log) >> 20
    )]
    Window {
        /// The file.
        path: PathBuf,
        /// The largest window, as a power of two.
        log: u32,
    },
    /// Compressed data that become suspiciously many.
    #[error(
        "{path}: it expands to more than {ratio} times its size, as no trace does; if it is one, \
         decompress it by `zstd -d`, to a file or a pipe"
    )]
    Expands {
        /// The file.
        path: PathBuf,
        /// The limit.
        ratio: u64,
    },
    /// Compressed data of which nothing can be read.
    #[error("{path}: {why}; nothing could be decompressed")]
    Compressed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The header is damaged, and there is no copy of it.
    #[error(
        "{path}: the trace's header is lost: without it, nobody knows N, the number of CPUs and the \
         layout of the records. Packets of these traces seem to be in the file: {found}. If another \
         file begins with the header of the same trace, name it by --header-of"
    )]
    HeaderLost {
        /// The file.
        path: PathBuf,
        /// The traces that packets are of.
        found: String,
        /// What is wrong with the header.
        source: Box<Error>,
    },
    /// The header of another trace.
    #[error("{path}: it has the header of trace {found}; the damaged file has packets of: {there}")]
    HeaderOfAnother {
        /// The file with the header.
        path: PathBuf,
        /// The trace that it is of.
        found: String,
        /// The traces that packets are of.
        there: String,
    },
    /// A file that ends inside the header.
    #[error("{path}: truncated at byte {len}, inside the trace header of {need} bytes")]
    ShortHeader {
        /// The file.
        path: PathBuf,
        /// The file's length in bytes.
        len: u64,
        /// The header's length in bytes.
        need: u64,
    },
    /// A file that is not a trace.
    #[error(
        "{path}: not a kVMTrace trace: the file begins with {}, not with {}{hint}",
        eight_bytes(*found), eight_bytes(*want)
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The first eight bytes.
        found: u64,
        /// The magic.
        want: u64,
        /// What the file seems to be; begins with a separator, or is empty.
        hint: &'static str,
    },
    /// A trace of another version of the format.
    #[error(
        "{path}: trace format version {found} at byte 8; this program reads version {known} only: \
         use the tools that came with the kernel that wrote it"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in the header.
        found: u32,
        /// The version that can be read.
        known: u32,
    },
    /// A trace with extras that this version does not know.
    #[error(
        "{path}: the trace has features that this program does not know: {} of the feature bits \
         {features:#x} at byte {offset}. Such a feature may change the size of records: use the \
         tools that came with the kernel that wrote the trace, or newer ones",
        bits(*unknown)
    )]
    Features {
        /// The file.
        path: PathBuf,
        /// Where the bits lie.
        offset: u64,
        /// All of the header's feature bits.
        features: u64,
        /// Those that are not known.
        unknown: u64,
    },
    /// The header's checksum does not hold.
    #[error(
        "{path}: corrupt trace header: checksum at byte {offset} is {found:#010x}, bytes 0..{offset} \
         give {computed:#010x}"
    )]
    HeaderCrc {
        /// The file.
        path: PathBuf,
        /// Where the checksum lies.
        offset: u64,
        /// The checksum there.
        found: u32,
        /// The checksum of what is there.
        computed: u32,
    },
    /// The header's checksum holds, but a field makes no sense.
    #[error(
        "{path}: unusable trace header: {field} at byte {offset} is {value}, expected {expected}"
    )]
    HeaderField {
        /// The file.
        path: PathBuf,
        /// The field's name.
        field: &'static str,
        /// Where it lies.
        offset: u64,
        /// Its value.
        value: u64,
        /// The values that would be accepted.
        expected: &'static str,
    },
    /// There is no such window in the trace.
    #[error("{path}: there is no window {number}: {}", windows_there(there))]
    NoWindow {
        /// The file.
        path: PathBuf,
        /// The window that was asked for.
        number: u32,
        /// The windows that exist.
        there: Vec<u32>,
    },
    /// A piece of a trace, where a whole trace is needed.
    #[error(
        "{path}: this is a piece of a trace; give the directory with all pieces, or join them by \
         `postproc join`"
    )]
    IsPiece {
        /// The file.
        path: PathBuf,
    },
    /// A trace without windows is to be split by windows.
    #[error("{path}: the trace has no windows: split it by size or by time")]
    NoWindows {
        /// The trace.
        path: PathBuf,
    },
    /// A trace is to be split into too many pieces, or too small ones.
    #[error(
        "{path}: there would be more than {most} pieces, or pieces so small that most of each would \
         be copies of the same packets or descriptions of the same mappings: ask for larger pieces"
    )]
    ManyPieces {
        /// The trace.
        path: PathBuf,
        /// The most pieces.
        most: usize,
    },
    /// A file that is no piece among pieces.
    #[error(
        "{path}: this is no piece of a trace; a directory of pieces, and `postproc join`, take \
         only what `postproc split` has written: move other files away"
    )]
    NotAPiece {
        /// The file.
        path: PathBuf,
    },
    /// There is nothing where pieces should be.
    #[error("{path}: there is no piece of a trace; `postproc split` makes pieces")]
    NoPieces {
        /// The directory.
        path: PathBuf,
    },
    /// A piece that cannot be used with the others.
    #[error("{path}: this piece of a trace is damaged: {why}; `postproc check` on it says more")]
    PieceDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Pieces that are not there.
    #[error("{path}: missing: {what} of the trace; put all pieces into one directory")]
    PieceMissing {
        /// The directory.
        path: PathBuf,
        /// Which.
        what: String,
    },
    /// A piece of another trace, or of another form of the same trace.
    #[error(
        "{path}: this piece is of trace {found}, and {} is of trace {there}, or of another form of \
         that trace: keep the pieces of each in a directory of their own",
        other.display()
    )]
    PieceOfAnother {
        /// The file.
        path: PathBuf,
        /// The trace that it is of.
        found: String,
        /// Another piece.
        other: PathBuf,
        /// The trace that this one is of.
        there: String,
    },
    /// A piece that is there twice.
    #[error(
        "{path}: this is piece {number}, and so is {}; move one of them away",
        other.display()
    )]
    PieceTwice {
        /// The file.
        path: PathBuf,
        /// The other one.
        other: PathBuf,
        /// The number of both.
        number: u32,
    },
    /// A piece has only a part of a window.
    #[error(
        "{path}: this piece has only a part of window {number}; read the window from the directory \
         with all pieces"
    )]
    PartOfWindow {
        /// The file.
        path: PathBuf,
        /// The window that was asked for.
        number: u32,
    },
    /// The part of one process, where a whole trace is needed.
    #[error(
        "{path}: this is the part of a trace that one process has; join all parts by \
         `postproc join`, and give the result"
    )]
    IsPart {
        /// The file.
        path: PathBuf,
    },
    /// A directory with the parts of processes, where a trace is needed.
    #[error(
        "{path}: this directory has the parts of a trace, one for each process; give one of the \
         parts, or join them by `postproc join`, and give the result"
    )]
    AreParts {
        /// The directory.
        path: PathBuf,
    },
    /// A trace that is not good enough to be divided by processes.
    #[error(
        "{path}: the trace cannot be divided by processes: {why}; `postproc check` says more, and \
         `postproc recover` writes a trace of what is not damaged"
    )]
    NotDivided {
        /// The trace.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A trace is to be divided into too many parts, or into parts that have much in common.
    #[error(
        "{path}: there would be more than {most} parts, or the processes share so much memory by \
         forks that most of each part would be events of other processes: divide the trace by time \
         first, or export single processes by `postproc export --per-process`"
    )]
    ManyParts {
        /// The trace.
        path: PathBuf,
        /// The most parts.
        most: usize,
    },
    /// A file that is no part among parts.
    #[error(
        "{path}: this is no part of a trace; `postproc join` takes only what `postproc split --by \
         process` has written: move other files away"
    )]
    NotAPart {
        /// The file.
        path: PathBuf,
    },
    /// The file with all that no part has.
    #[error(
        "{path}: missing: the frame, which `postproc split --by process` has called {name}; only \
         with it can parts be joined"
    )]
    FrameMissing {
        /// The directory.
        path: PathBuf,
        /// The name of the file.
        name: &'static str,
    },
    /// A frame that cannot be used.
    #[error("{path}: this frame of a trace is damaged: {why}")]
    FrameDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A part that is not what the frame says.
    #[error("{path}: this part of a trace cannot be joined: {why}")]
    PartDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Parts that are not there.
    #[error("{path}: missing: {what}; give `postproc join` all parts of the trace")]
    PartMissing {
        /// The directory.
        path: PathBuf,
        /// Which, by their names.
        what: String,
    },
    /// A part of another trace, or a second frame.
    #[error(
        "{path}: this is of trace {found}, and the frame {} is of trace {there}: keep the parts of \
         each trace in a directory of their own",
        other.display()
    )]
    PartOfAnother {
        /// The file.
        path: PathBuf,
        /// The trace that it is of.
        found: String,
        /// The frame.
        other: PathBuf,
        /// The trace that this one is of.
        there: String,
    },
    /// A part, or a frame, that is there twice.
    #[error("{path}: this is the same part as {}: move one of them away", other.display())]
    PartTwice {
        /// The file.
        path: PathBuf,
        /// The other one.
        other: PathBuf,
    },
    /// Another program's trace that does not have the format that was given.
    #[error("{path}: {place}: {why} (read as {format})")]
    Import {
        /// The file.
        path: PathBuf,
        /// The format's name.
        format: &'static str,
        /// The line or record.
        place: String,
        /// What is wrong there.
        why: String,
    },
    /// Names of a stretch that cannot be used.
    #[error(
        "the names of a stretch of a trace cannot be read: {why}; make them anew from the trace"
    )]
    NamesDamaged {
        /// What is wrong with them.
        why: &'static str,
    },
    /// Names of stretches that are not those before the stretch that is to be read.
    #[error(
        "{path}: these are not the names of all stretches before the one that is to be read: {why}"
    )]
    NamesUnfit {
        /// The trace.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// An output could not be written.
    #[error("{what}: cannot write")]
    Output {
        /// The output.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// More distinct pages than page numbers.
    #[error(
        "{}: the trace has more than 2^29 distinct pages; read one window or one process of the \
         trace; simulate, reduce and report need numbers only for pages that exist at one time, \
         unless --keep-freed is given",
        path.display()
    )]
    TooManyPages {
        /// The trace.
        path: PathBuf,
    },
    /// Reads and writes reference more pages than is allowed.
    #[error(
        "{}: reads and writes make more than {most} references, unusually many for a trace of \
         this size: allow more with --io-limit, or leave out --io",
        path.display()
    )]
    TooMuchIo {
        /// The trace.
        path: PathBuf,
        /// The limit.
        most: u64,
    },
    /// A record that is older than the one before it.
    #[error(
        "record {seq} is older than the one before it, which the format cannot express; \
         `postproc check` reports the details"
    )]
    TimeGoesBack {
        /// Sequence number of the record.
        seq: u64,
    },
    /// A page frame whose number does not fit into a record.
    #[error(
        "reference {seq} has no physical address to export: the number of its page frame is \
         2^32 - 1 or more, which a record cannot hold"
    )]
    NoFrame {
        /// Sequence number of the reference.
        seq: u64,
    },
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Bits by their numbers.
fn bits(set: u64) -> String {
    let numbers: Vec<String> = (0..u64::BITS)
        .filter(|bit| set >> bit & 1 != 0)
        .map(|bit| bit.to_string())
        .collect();
    match &numbers[..] {
        [only] => format!("bit {only}"),
        all => format!("bits {}", all.join(", ")),
    }
}

fn windows_there(there: &[u32]) -> String {
    match (there.first(), there.last()) {
        (Some(first), Some(last)) if first < last => format!("it has {first} to {last}"),
        (Some(only), _) => format!("it has {only} only"),
        _ => "it is a trace without windows; leave out --window and --per-window".into(),
    }
}

impl Error {
    /// Whether the cause is a reader that closed its end: by convention, that is success.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Error::Output { source, .. }
            if source.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

/// Adds to an output error what was being written.
pub(crate) trait OutputContext<T> {
    fn writing(self, what: impl Into<String>) -> Result<T>;
}

impl<T> OutputContext<T> for std::io::Result<T> {
    fn writing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Output {
            what: what.into(),
            source,
        })
    }
}

/// Eight bytes of a file: as text, if they are printable, and as a number.
fn eight_bytes(value: u64) -> String {
    let bytes = value.to_le_bytes();
    let is_text = bytes
        .iter()
        .all(|b| matches!(b, b' '..=b'~' | b'\t' | b'\r' | b'\n'));
    match is_text {
        true => format!("{:?} ({value:#018x})", String::from_utf8_lossy(&bytes)),
        false => format!("{value:#018x}"),
    }
}
