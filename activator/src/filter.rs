//! Which references the kernel records: `--filter`.

use rust_mm_trace::filter::{Compiled, Expr, Request};

/// The references that are recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// All.
    #[default]
    All,
    /// Those that fit an expression.
    Fits(Compiled),
}

impl Filter {
    /// Parses an expression that the kernel can judge by; an empty text stands for all references.
    ///
    /// # Errors
    ///
    /// What is wrong, with the place in the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::All);
        }
        let expr = Expr::parse(text);
        let compiled = expr.and_then(|expr| Compiled::new(&expr, text));
        compiled.map(Self::Fits).map_err(|error| error.shown(text))
    }

    /// The filter that leaves all references out.
    ///
    /// # Errors
    ///
    /// None, as long as the language has its expression.
    pub fn nothing() -> Result<Self, String> {
        Self::parse("!(pid >= 0)")
    }

    /// The expression as the user wrote it; empty for all references.
    pub fn text(&self) -> &str {
        match self {
            Self::All => "",
            Self::Fits(compiled) => compiled.text(),
        }
    }

    /// The request for the kernel.
    pub fn request(&self) -> Request<'_> {
        match self {
            Self::All => Request::all(),
            Self::Fits(compiled) => compiled.request(),
        }
    }

    /// What is recorded, in words.
    pub fn words(&self) -> String {
        match self {
            Self::All => "all references".to_owned(),
            Self::Fits(compiled) => format!("references with {}", compiled.text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rust_mm_trace::judge;

    #[test]
    fn errors_have_their_place() {
        for (text, want) in [
            (
                "pid == 1 && knd == write",
                "there is no field `knd`\n  pid == 1 && knd == write\n              ^^^\n  did you \
                 mean `kind`?",
            ),
            (
                "pid == 1 && time < 5ms",
                "the kernel cannot judge a reference by `time`\n  pid == 1 && time < 5ms\n       \
                 \x20      ^^^^\n  leave it out, and give it to `postproc ... --where` when you \
                 read the trace",
            ),
            (
                " ",
                "the expression is empty\n   \n  ^\n  a comparison is FIELD OPERATOR VALUE, for \
                 example kind == write",
            ),
        ] {
            assert_eq!(Filter::parse(text), Err(want.to_owned()), "{text}");
        }
    }

    #[test]
    fn nothing_is_kept() {
        let nothing = Filter::nothing().expect("a filter");
        let Filter::Fits(compiled) = &nothing else {
            panic!("{nothing:?}");
        };
        assert!(judge::are_good(compiled.tests(), compiled.texts()));
        let [test] = compiled.tests() else {
            panic!("{compiled:?}");
        };
        // Whatever the reference is.
        assert_eq!((test.yes, test.no), (judge::LEAVE, judge::LEAVE));
        assert_eq!(nothing.request().raw().nr_tests, 1);
    }

    #[test]
    fn nothing_is_everything() {
        let all = Filter::parse("").expect("all references");
        assert_eq!((&all, all.text()), (&Filter::All, ""));
        assert_eq!(all.request().raw().nr_tests, 0);
        let some = Filter::parse("cpu == 1").expect("a filter");
        assert_eq!(some.text(), "cpu == 1");
        assert_eq!(some.request().raw().nr_tests, 1);
        assert_eq!(some.words(), "references with cpu == 1");
    }
}
