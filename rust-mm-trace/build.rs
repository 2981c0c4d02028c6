//! Makes Rust types of the one UAPI header.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let header = "uapi/linux/vmtrace.h";
    println!("cargo:rerun-if-changed={header}");
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    bindgen::Builder::default()
        .header(header)
        .allowlist_type("vmtrace_.*")
        .allowlist_var("VMTRACE_.*")
        .derive_default(true)
        .layout_tests(true)
        .generate_comments(false)
        .use_core()
        // _IOW() is no plain constant; the ioctl numbers are made in lib.rs.
        .blocklist_var("VMTRACE_IOC_(START|STOP|STATUS|RESIZE|WINDOW|ROTATE|FILTER|COUNTS|RINGS)")
        .generate()?
        .write_to_file(out.join("uapi.rs"))?;
    Ok(())
}
