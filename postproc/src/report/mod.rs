//! What a person wants to know of a trace.

mod fault_curve;
mod foreign;
mod statistics;
mod summary;

use std::io::Write;
use std::path::Path;

use crate::error::{OutputContext, Result};
use crate::output::Output;
use crate::sim::Curve;

pub use fault_curve::{Caption, draw as draw_fault_curve};
pub use foreign::ForeignSummary;
pub use statistics::{Counters, Statistics};
pub use summary::{Summary, text};

/// Writes summary.json, summary.txt and fault-curve.svg into a directory, which
/// is made if need be.
///
/// # Errors
///
/// [`crate::error::Error::Output`], or [`crate::error::Error::Draw`].
pub fn write(directory: &Path, summary: &Summary, curve: &Curve) -> Result<()> {
    std::fs::create_dir_all(directory).writing(directory.display().to_string())?;
    let json = serde_json::to_vec_pretty(summary)
        .map_err(std::io::Error::from)
        .writing("summary.json")?;
    let svg = draw_fault_curve(&summary.into(), curve)?;
    write_files(directory, &json, &text(summary), &svg)
}

fn write_files(directory: &Path, json: &[u8], text: &str, svg: &str) -> Result<()> {
    let files: [(&str, &[u8]); 3] = [
        ("summary.json", json),
        ("summary.txt", text.as_bytes()),
        ("fault-curve.svg", svg.as_bytes()),
    ];
    for (name, content) in files {
        let mut output = Output::create(&directory.join(name))?;
        output.write_all(content).writing(output.name())?;
        output.finish()?;
    }
    Ok(())
}

/// A number's digits in groups of three, with commas.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
    }
}
