//! `csv`: named columns, as `postproc export`, `postproc reduce` and many others
//! have them.
//!
//! The first line names the columns, in any order and in upper or lower case. Lines
//! that begin with `#` are skipped, except the note of `postproc reduce`.
//!
//! | column | |
//! |---|---|
//! | page, id, object, obj_id or key | the page, as any text; the first of these columns that exists |
//! | address | instead of the page: a virtual address in it, decimal or with 0x |
//! | access, op or rw | optional: `write`, `w`, `set`, `put`, `store` and `1` write; `free`, `delete` and `del` are no references: the page is freed |
//! | dirtied | optional: `1` writes, too |
//!
//! Fields have no quotes and no commas inside.

use super::lines::{ByLine, Lines, Wrong, decimal, hexadecimal, shown};
use super::note::{NOTE_MARK, Note};
use super::{Accesses, ImportEntry};

pub(super) const ENTRY: ImportEntry = ImportEntry {
    id: "csv",
    about: "named columns: page (or id, key, address), and optionally access",
    make: |page_shift| {
        ByLine::boxed(Csv {
            page_shift,
            columns: None,
            note: None,
        })
    },
};

struct Columns {
    object: usize,
    is_address: bool,
    access: Option<usize>,
    dirtied: Option<usize>,
}

impl Columns {
    fn parse(line: &[u8]) -> Result<Self, Wrong> {
        let names: Vec<String> = line
            .split(|&c| c == b',')
            .map(|name| String::from_utf8_lossy(name).trim().to_ascii_lowercase())
            .collect();
        let find = |wanted: &[&str]| {
            let of = |name: &&str| names.iter().position(|n| n == name);
            wanted.iter().find_map(of)
        };
        let named = find(&["page", "id", "object", "obj_id", "key"]);
        let address = find(&["address"]);
        let object = named.or(address).ok_or_else(|| {
            format!(
                "expected names of columns, among them page, id, object, obj_id, key or address; \
                 found {}",
                shown(line)
            )
        })?;
        Ok(Columns {
            object,
            is_address: named.is_none(),
            access: find(&["access", "op", "rw"]),
            dirtied: find(&["dirtied"]),
        })
    }
}

struct Csv {
    page_shift: u32,
    columns: Option<Columns>,
    note: Option<Note>,
}

fn is_write(field: &[u8]) -> bool {
    [&b"write"[..], b"w", b"set", b"put", b"store", b"1"]
        .iter()
        .any(|word| field.eq_ignore_ascii_case(word))
}

fn is_free(field: &[u8]) -> bool {
    [&b"free"[..], b"delete", b"del"]
        .iter()
        .any(|word| field.eq_ignore_ascii_case(word))
}

fn address(field: &[u8]) -> Option<u64> {
    match field.strip_prefix(b"0x") {
        Some(digits) => hexadecimal(digits),
        None => decimal(field),
    }
}

impl Lines for Csv {
    fn line(&mut self, line: &[u8], to: &mut Accesses) -> Result<(), Wrong> {
        if line.starts_with(b"#") {
            if let Some(note) = line.strip_prefix(NOTE_MARK.as_bytes()) {
                let note = serde_json::from_slice(note);
                self.note = Some(note.map_err(|e| format!("the note is malformed: {e}"))?);
            }
            return Ok(());
        }
        if line.is_empty() {
            return Ok(());
        }
        let Some(columns) = &self.columns else {
            self.columns = Some(Columns::parse(line)?);
            return Ok(());
        };
        let (mut object, mut write, mut free) = (None, false, false);
        for (at, field) in line.split(|&c| c == b',').enumerate() {
            let field = field.trim_ascii();
            if at == columns.object {
                object = Some(field);
            }
            write |= columns.access == Some(at) && is_write(field);
            free |= columns.access == Some(at) && is_free(field);
            write |= columns.dirtied == Some(at) && field == b"1";
        }
        let object = object
            .filter(|field| !field.is_empty())
            .ok_or_else(|| format!("too few columns in {}", shown(line)))?;
        if columns.is_address {
            let address = address(object)
                .ok_or_else(|| format!("expected an address, found {}", shown(object)))?;
            match free {
                true => to.free_number(address >> self.page_shift),
                false => to.number(address >> self.page_shift, write)?,
            }
        } else {
            // Of numbers many fit into memory; but 7 and 07 may be two keys.
            match decimal(object).filter(|_| object[0] != b'0' || object.len() == 1) {
                Some(number) if free => to.free_number(number),
                Some(number) => to.number(number, write)?,
                None if free => to.free_word(object),
                None => to.word(object, write)?,
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Wrong> {
        match self.columns {
            Some(_) => Ok(()),
            None => Err("no line names the columns".into()),
        }
    }

    fn note(&self) -> Option<&Note> {
        self.note.as_ref()
    }
}
