//! What an output that is one file was made of: a small file beside it, since not every format
//! says it. It counts only if it fits the output that is there.

use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Write};
use stk_base::files::{Below, Kind, MayReplace};
use stk_output::formats::{self, ConversionFacts};

/// What is known of an output.
#[derive(PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Record {
    /// What its conversion depended on.
    key: String,
    /// Its length; while it is made, that of the output that is replaced.
    bytes: u64,
    /// What the conversion came to.
    facts: ConversionFacts,
    /// Whether it is made: a batch that was stopped then may have given it its name or not.
    #[serde(default)]
    unfinished: bool,
}

/// What the record says of the output that is there.
#[derive(PartialEq, Eq, Debug)]
pub enum Recorded {
    /// It was made by this conversion.
    Done(ConversionFacts),
    /// stk batch made it, by this or another conversion.
    Own,
    /// There is none, or stk batch did not make it.
    Nothing,
}

/// Folder of the records in that of the outputs.
const DONE: &str = "done";
/// Bytes of a record that are read at most.
const MOST_READ: u64 = 64 << 10;

fn record_of(output: &Below) -> io::Result<Below> {
    let mut name = output.name()?.to_owned();
    name.push(".json");
    Ok(output.parent().join("_stk").join(DONE).join(name))
}

impl Record {
    /// What is known of an output, for a conversion with this key.
    ///
    /// # Errors
    ///
    /// That the output or the record is a link, or the record no regular file; else the error of
    /// the system.
    pub fn of(output: &Below, key: &str) -> io::Result<Recorded> {
        let found = output.kind().map_err(|error| about(output, error))?;
        let at = record_of(output)?;
        let text = match at.read(MOST_READ) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Recorded::Nothing),
            Err(error) => return Err(about(&at, error)),
        };
        let (Some(Kind::File { len }), Ok(record)) = (found, serde_json::from_slice::<Record>(&text)) else {
            return Ok(Recorded::Nothing);
        };
        let fits = record.bytes == len;
        Ok(match record.key == key {
            true if fits && !record.unfinished => Recorded::Done(record.facts),
            true if record.unfinished => Recorded::Own,
            _ if fits => Recorded::Own,
            _ => Recorded::Nothing,
        })
    }

    /// Says that an output is about to be written: should the batch be stopped before
    /// [`write`](Record::write), the next one knows the output as its own, and makes it again.
    pub fn begin(output: &Below, key: &str) -> io::Result<()> {
        save(output, key, ConversionFacts::default(), true)
    }

    /// Writes the record of an output.
    pub fn write(output: &Below, key: &str, facts: ConversionFacts) -> io::Result<()> {
        save(output, key, facts, false)
    }
}

fn save(output: &Below, key: &str, facts: ConversionFacts, unfinished: bool) -> io::Result<()> {
    let bytes = match output.kind().map_err(|error| about(output, error))? {
        Some(Kind::File { len }) => len,
        _ => 0,
    };
    let text = serde_json::to_string(&Record { key: key.to_owned(), bytes, facts, unfinished })?;
    let at = record_of(output).map_err(|error| about(output, error))?;
    let save = || {
        at.parent().make_folder()?;
        let mut file = formats::temporary(&at.parent())?;
        writeln!(file, "{text}")?;
        file.persist(&at, MayReplace::NoTrace)
    };
    save().map(drop).map_err(|error| about(&at, error))
}

/// The error with the file that it is about.
fn about(file: &Below, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", file.path().display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_for_the_output_that_it_describes() {
        let folder = tempfile::tempdir().unwrap();
        let output = Below::folder(folder.path()).unwrap().join("a.folded");
        let of = |key| Record::of(&output, key).unwrap();
        let put = |text: &str| std::fs::write(output.path(), text).unwrap();
        assert_eq!(of("key"), Recorded::Nothing);
        put("12345");
        assert_eq!(of("key"), Recorded::Nothing, "somebody else's");
        Record::begin(&output, "key").unwrap();
        assert_eq!(of("key"), Recorded::Own, "the output is made again");
        put("a longer one");
        assert_eq!(of("key"), Recorded::Own, "a batch that was stopped now wrote it");
        assert_eq!(of("another"), Recorded::Nothing);
        let facts = ConversionFacts { samples: 7, ..ConversionFacts::default() };
        Record::write(&output, "key", facts).unwrap();
        assert_eq!(of("key"), Recorded::Done(facts));
        assert_eq!(of("another"), Recorded::Own, "other options");
        put("shorter");
        assert_eq!((of("key"), of("another")), (Recorded::Nothing, Recorded::Nothing));
        std::fs::remove_file(output.path()).unwrap();
        assert_eq!(of("key"), Recorded::Nothing);
    }

    #[test]
    fn a_planted_record_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let output = Below::folder(folder.path()).unwrap().join("a.folded");
        std::fs::write(output.path(), "mine").unwrap();
        let record = folder.path().join("_stk/done/a.folded.json");
        std::fs::create_dir_all(record.parent().unwrap()).unwrap();
        for text in ["", "{}", "[]", r#"{"key":"key","bytes":4}"#, "\0"] {
            std::fs::write(&record, text).unwrap();
            assert_eq!(Record::of(&output, "key").unwrap(), Recorded::Nothing, "{text}");
        }
    }
}
