//! `postproc man`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command};
use postproc::output::Output;

use super::screen::print;

/// Print the manual page, or write all manual pages into a directory
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    postproc man | man -l -\n  \
    postproc man -o /usr/local/share/man/man1")]
pub struct ManArgs {
    /// Directory for a page of each command; made if it does not exist
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
    std::fs::create_dir_all(directory)
        .map_err(|e| anyhow::anyhow!("{}: {e}", directory.display()))?;
    let name = command.get_name().to_string();
    let mut pages = vec![(name.clone(), page(&command)?)];
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        let full = format!("{name}-{}", sub.get_name());
        // A page is named by a string that lives as long as the command.
        let title: &'static str = full.clone().leak();
        pages.push((full, page(&sub.clone().name(title))?));
    }
    for (name, text) in pages {
        let mut output = Output::create(&directory.join(format!("{name}.1")))?;
        std::io::Write::write_all(&mut output, &text)?;
        output.finish()?;
    }
    Ok(ExitCode::SUCCESS)
}
