//! Files that appear whole or not at all.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempDir};

use crate::error::{OutputContext, Result};
use crate::unfinished::{self, Registered};

enum Target {
    /// Beside its final name until it is complete.
    Temporary(BufWriter<NamedTempFile>, PathBuf, Registered),
    /// A device or a pipe, which cannot be replaced.
    Direct(BufWriter<File>),
    Stdout(BufWriter<io::Stdout>),
}

impl Write for Target {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Target::Temporary(w, ..) => w.write(buf),
            Target::Direct(w) => w.write(buf),
            Target::Stdout(w) => w.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Target::Temporary(w, ..) => w.flush(),
            Target::Direct(w) => w.flush(),
            Target::Stdout(w) => w.flush(),
        }
    }
}

enum Stream {
    Plain(Target),
    Zstd(Box<zstd::Encoder<'static, Target>>),
}

/// A file being written. Dropped before [`Output::finish`], it leaves nothing
/// behind.
pub struct Output {
    stream: Stream,
    name: String,
    /// Bytes given, before compression.
    written: u64,
}

const BUFFER: usize = 1 << 18;
/// zstd's default level.
const LEVEL: i32 = 3;

impl Output {
    /// Opens `path` for writing; `-` is the standard output, a name that ends
    /// in `.zst` is compressed.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`].
    pub fn create(path: &Path) -> Result<Self> {
        let name = match path.to_str() {
            Some("-") => "standard output".into(),
            _ => path.display().to_string(),
        };
        let target = if path == Path::new("-") {
            Target::Stdout(BufWriter::with_capacity(BUFFER, io::stdout()))
        } else {
            open(path).writing(&name)?
        };
        let stream = if path.extension().is_some_and(|e| e == "zst") {
            Stream::Zstd(Box::new(zstd::Encoder::new(target, LEVEL).writing(&name)?))
        } else {
            Stream::Plain(target)
        };
        Ok(Output {
            stream,
            name,
            written: 0,
        })
    }

    /// What the output is called in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes given so far, before compression.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes out all that is buffered and gives the file its name.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Output`]; then nothing is left behind.
    pub fn finish(self) -> Result<()> {
        finish_all([self])
    }

    /// Writes out all that is buffered. A file keeps its temporary name; all else is
    /// finished.
    fn complete(self) -> Result<Option<Complete>> {
        let mut target = match self.stream {
            Stream::Plain(target) => target,
            Stream::Zstd(encoder) => encoder.finish().writing(&self.name)?,
        };
        target.flush().writing(&self.name)?;
        let Target::Temporary(writer, path, registered) = target else {
            return Ok(None);
        };
        let file = writer
            .into_inner()
            .map_err(|e| e.into_error())
            .writing(&self.name)?;
        Ok(Some((file, path, self.name, registered)))
    }
}

/// A file with all its bytes, its final name, what messages call it, and its temporary
/// name in the register.
type Complete = (NamedTempFile, PathBuf, String, Registered);

/// Writes out all that is buffered of some files, and gives them their names when all of
/// them are complete: a signal leaves all of them or none.
///
/// # Errors
///
/// [`crate::error::Error::Output`]; then no file that is incomplete is left behind.
fn finish_all(outputs: impl IntoIterator<Item = Output>) -> Result<()> {
    let (mut files, mut names) = (Vec::new(), Vec::new());
    for output in outputs {
        let Some((file, path, name, registered)) = output.complete()? else {
            continue;
        };
        files.push((file, path, name));
        names.push(registered);
    }
    // The register is locked meanwhile: it forgets the temporary names after that.
    unfinished::settle(|| {
        for (file, path, name) in files {
            file.persist(path).map_err(|e| e.error).writing(&name)?;
        }
        Ok(())
    })
}

/// Writes files of these names into a directory, which is made if need be. A signal
/// leaves all of them or none.
///
/// # Errors
///
/// [`crate::error::Error::Output`].
pub fn write_files(directory: &Path, files: &[(String, Vec<u8>)]) -> Result<()> {
    let _made = unfinished::make_directories(directory).writing(directory.display().to_string())?;
    let mut outputs = Vec::new();
    for (name, content) in files {
        outputs.push(written(&directory.join(name), content)?);
    }
    finish_all(outputs)
}

/// A file with its content, before it has its name.
pub(crate) fn written(path: &Path, content: &[u8]) -> Result<Output> {
    let mut output = Output::create(path)?;
    output.write_all(content).writing(output.name())?;
    Ok(output)
}

fn open(path: &Path) -> io::Result<Target> {
    match path.metadata() {
        Ok(meta) if meta.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(meta) if !meta.is_file() => {
            let file = OpenOptions::new().write(true).open(path)?;
            Ok(Target::Direct(BufWriter::with_capacity(BUFFER, file)))
        }
        // Through a symbolic link it is the file behind it that is replaced.
        Ok(_) => temporary(&path.canonicalize()?),
        Err(_) => temporary(path),
    }
}

fn temporary(path: &Path) -> io::Result<Target> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    let (file, registered) = unfinished::file(|| {
        tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory(path))
    })?;
    Ok(Target::Temporary(
        BufWriter::with_capacity(BUFFER, file),
        path.into(),
        registered,
    ))
}

/// The directory that a file lies in.
pub(crate) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Makes a directory beside `path`, which may be renamed to it.
pub(crate) fn new_directory(path: &Path) -> io::Result<(TempDir, Registered)> {
    let name = path.file_name().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "not the name of a directory")
    })?;
    if path == Path::new("-") {
        let why = "a directory is written; give -o a name";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    if path.is_symlink() {
        let why = "it is a symbolic link: give -o the directory that it leads to";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    match path.read_dir().map(|mut entries| entries.next().is_some()) {
        Ok(true) => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "it is not empty",
            ));
        }
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    unfinished::directory(|| {
        tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(directory(path))
    })
}

impl Write for Output {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = match &mut self.stream {
            Stream::Plain(w) => w.write(buf)?,
            Stream::Zstd(w) => w.write(buf)?,
        };
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.stream {
            Stream::Plain(w) => w.flush(),
            Stream::Zstd(w) => w.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finished_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.txt");
        let mut output = Output::create(&path).unwrap();
        output.write_all(b"half").unwrap();
        drop(output);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn zst_is_compressed_and_replaces_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.txt.zst");
        std::fs::write(&path, "old").unwrap();
        let mut output = Output::create(&path).unwrap();
        output.write_all(b"whole").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        output.finish().unwrap();
        assert_eq!(
            zstd::decode_all(File::open(&path).unwrap()).unwrap(),
            b"whole"
        );
    }

    #[test]
    fn a_device_is_written_and_not_replaced() {
        let mut output = Output::create(Path::new("/dev/null")).unwrap();
        output.write_all(b"nothing").unwrap();
        output.finish().unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    }
}
