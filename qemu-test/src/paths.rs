//! Where things lie.

use std::path::PathBuf;

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

/// The guest's Debian root.
pub fn image() -> PathBuf {
    build().join("guest.ext4")
}
