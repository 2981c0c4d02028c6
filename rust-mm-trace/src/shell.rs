//! Words of a shell's command line.

/// The text as one word, in quotes if it needs some.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./,=:+@%".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.into(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_shell_reads_one_word() {
        for plain in ["a.vmt", "/tmp/x-1_2,3", "n=4096", "50%", "é", "u@h:+"] {
            assert_eq!(quoted(plain), plain);
        }
        for (text, word) in [
            ("", "''"),
            ("a b", "'a b'"),
            ("*.so", "'*.so'"),
            ("~x", "'~x'"),
            ("it's", "'it'\\''s'"),
            ("$x", "'$x'"),
            ("[heap]", "'[heap]'"),
            ("cc1 --mapping x", "'cc1 --mapping x'"),
            ("comm == \"cc1\"", "'comm == \"cc1\"'"),
        ] {
            assert_eq!(quoted(text), word);
        }
    }
}
