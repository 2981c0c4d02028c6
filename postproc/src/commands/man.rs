//! `postproc man`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::output::write_files;
use clap::{Args, Command};

use super::screen::print;

/// Print the manual page, or write all manual pages into a directory
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc man | man -l -\n  \
    postproc man -o /usr/local/share/man/man1")]
pub struct ManArgs {
    /// Directory for a page of each command; created if it does not exist
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

fn page(command: &Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}

pub fn run(args: &ManArgs, mut command: Command) -> anyhow::Result<ExitCode> {
    command.build();
    let Some(directory) = &args.output else {
        print(&page(&command)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let name = command.get_name().to_string();
    let mut pages = vec![(format!("{name}.1"), page(&command)?)];
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        let full = format!("{name}-{}", sub.get_name());
        // A page is named by a string that lives as long as the command.
        let title: &'static str = full.clone().leak();
        pages.push((format!("{full}.1"), page(&sub.clone().name(title))?));
    }
    write_files(directory, &pages)?;
    Ok(ExitCode::SUCCESS)
}
