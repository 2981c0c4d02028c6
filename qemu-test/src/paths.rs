//! Where things lie.

use std::path::{Path, PathBuf};

/// The build folder: KVMTRACE_BUILD or `build` beside the sources.
pub fn build() -> PathBuf {
    let path = std::env::var_os("KVMTRACE_BUILD").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../build")),
        PathBuf::from,
    );
    path.canonicalize().unwrap_or(path)
}

/// Programs of the host and of the guest, which are linked statically.
pub fn tool(name: &str) -> PathBuf {
    build()
        .join("target/x86_64-unknown-linux-gnu/release")
        .join(name)
}

/// A kernel's image.
pub fn kernel(flavour: &str) -> PathBuf {
    build()
        .join("kernel")
        .join(flavour)
        .join("arch/x86/boot/bzImage")
}

/// Where a kernel's functions lie.
pub fn system_map(flavour: &str) -> PathBuf {
    build().join("kernel").join(flavour).join("System.map")
}

/// The oracle's plugin. QEMU loads it, so it is not linked statically and lies
/// apart from the other tools.
pub fn plugin() -> PathBuf {
    build().join("target/release/liboracle_plugin.so")
}

/// A clock for QEMU that does not depend on the host. QEMU loads it, too.
pub fn clock() -> PathBuf {
    build().join("target/release/libqemu_clock.so")
}

/// Debian's Xen.
pub fn xen() -> PathBuf {
    build().join("xen/xen")
}

/// The guest's Debian root.
pub fn image() -> PathBuf {
    build().join("guest.ext4")
}

/// A path as people type it where they are: relative if it lies below.
pub fn shown(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.into());
    let shown = std::env::current_dir()
        .ok()
        .and_then(|here| path.strip_prefix(here).ok().map(PathBuf::from))
        .filter(|below| !below.as_os_str().is_empty())
        .unwrap_or(path);
    quoted(&shown.display().to_string())
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// How people start a tool: by the short path that `make tools` gives it, if that is there.
pub fn command(name: &str) -> String {
    let short = build().join("bin").join(name);
    if short.exists() {
        // Not where the link leads.
        return format!("{}/{name}", shown(&build().join("bin")));
    }
    shown(&tool(name))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_of_a_shell() {
        assert_eq!(quoted("build/out/trace.vmt"), "build/out/trace.vmt");
        assert_eq!(quoted("my traces/it's.vmt"), "'my traces/it'\\''s.vmt'");
        assert_eq!(quoted(""), "''");
    }
}
