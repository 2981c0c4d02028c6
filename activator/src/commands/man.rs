//! `activator man`

use std::path::Path;

use clap::{Command, CommandFactory};

use crate::Io;
use crate::cli::{Cli, ManArgs};
use crate::error::Failure;

fn page(command: &Command) -> Vec<u8> {
    let mut page = Vec::new();
    // Writing to a vector cannot fail.
    let _ = clap_mangen::Man::new(command.clone()).render(&mut page);
    page
}

fn write(directory: &Path, name: &str, page: &[u8]) -> Result<(), Failure> {
    let path = directory.join(format!("{name}.1"));
    std::fs::write(&path, page)
        .map_err(|e| Failure::usage(format!("can't write {}: {e}", path.display())))
}

/// Prints the manual page, or writes the pages of all commands into a directory.
pub fn execute(args: &ManArgs, io: &mut Io<'_>) -> Result<u8, Failure> {
    let mut command = Cli::command();
    command.build();
    let Some(directory) = &args.output else {
        io.print(&String::from_utf8_lossy(&page(&command)))?;
        return Ok(0);
    };
    std::fs::create_dir_all(directory)
        .map_err(|e| Failure::usage(format!("can't create {}: {e}", directory.display())))?;
    write(directory, "activator", &page(&command))?;
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        let name: &'static str = format!("activator-{}", sub.get_name()).leak();
        write(directory, name, &page(&sub.clone().name(name)))?;
    }
    Ok(0)
}
