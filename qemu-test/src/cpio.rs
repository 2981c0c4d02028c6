//! An initramfs: the "newc" archive that the kernel unpacks
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use anyhow::{Context, Result};
use std::path::Path;

/// An archive in the making.
#[derive(Default)]
pub struct Cpio {
    bytes: Vec<u8>,
    ino: u32,
}

impl Cpio {
    fn entry(&mut self, name: &str, mode: u32, rdev: (u32, u32), data: &[u8]) {
        self.ino += 1;
        let fields = [
            self.ino,
            mode,
            0,
            0,
            1,
            0,
            data.len() as u32,
            0,
            0,
            rdev.0,
            rdev.1,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for f in fields {
            self.bytes.extend_from_slice(format!("{f:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        while self.bytes.len() % 4 != 0 {
            self.bytes.push(0);
        }
    }

    /// Adds a directory.
    pub fn dir(&mut self, name: &str) {
        self.entry(name, 0o040755, (0, 0), &[]);
    }

    /// Adds a file.
    pub fn file(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entry(name, 0o100000 | mode, (0, 0), data);
    }

    /// Adds a character device.
    pub fn device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(name, 0o020600, (major, minor), &[]);
    }

    /// Adds a program from the host, under `bin/`.
    ///
    /// # Errors
    ///
    /// If the program is not there.
    pub fn program(&mut self, path: &Path) -> Result<Vec<u8>> {
        let data = std::fs::read(path)
            .with_context(|| format!("{} is missing: run 'make tools'", path.display()))?;
        let name = path.file_name().context("a program without a name")?;
        self.file(&format!("bin/{}", name.to_string_lossy()), 0o755, &data);
        Ok(data)
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }
}
