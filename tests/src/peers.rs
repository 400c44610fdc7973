//! Compares other readers of PDBs with the index and the raw records: whose answer follows the
//! records, and how the others differ.
//!
//! The input is [`PdbRecords`], the index and a peer's answers, the result is counts by class of
//! difference. The records decide every difference: an answer is right if it is one of the chains
//! that they allow at the address (folded procedures allow several).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use pdb_addr2line::{ContextPdbData, TypeFormatterFlags};
use serde_json::Value;
use stk_symbols::index::SymbolIndex;

use stk_symbols::pdb_records::{PdbRecords, RecordFrame};

/// A peer's answer for an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Frames, innermost first; none if it does not know the address.
    Frames(Vec<RecordFrame>),
    /// It crashed, or gave an error.
    Failed,
}

/// How an answer compares with the records. The first class that fits counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// One of the chains that the records allow, and the same as ours.
    Same,
    /// One that the records allow, but another one than ours: the two readers chose different
    /// folded procedures.
    OtherRecord,
    /// No procedure record holds the address, and it names the same public as we do, or nothing as
    /// we do.
    SamePublic,
    /// No procedure record holds the address, and it names something else than we do.
    OutsideProcedures,
    /// A crash or an error.
    Failed,
    /// Nothing, where a procedure record holds the address.
    Nothing,
    /// The right function, without some or all of its inline frames.
    InlinesDropped,
    /// The right function with inline frames that the records do not have there.
    InlinesAdded,
    /// The right names; a line where no row covers the address.
    LineInvented,
    /// The right names; no line where a row covers the address.
    LineDropped,
    /// The right names; another line or file than the row's.
    LineOther,
    /// The right number of frames; the outermost function right; another name on an inline level.
    InlineNameOther,
    /// A name that no procedure record at the address has.
    NameOther,
    /// The records allow it but not our answer, so ours is wrong.
    OursWrong,
}

/// The result of a comparison.
#[derive(Default, Debug)]
pub struct Tally {
    /// Addresses compared.
    pub rvas: u64,
    /// The number of answers in each class.
    pub classes: BTreeMap<Class, u64>,
    /// The first answer of each class that is a difference.
    pub examples: BTreeMap<Class, String>,
    /// Addresses at which the records do not allow our own answer.
    pub ours_wrong: u64,
}

impl Tally {
    /// Classifies one answer.
    pub fn add(&mut self, rva: u32, truth: &[Vec<RecordFrame>], ours: &[RecordFrame], theirs: &Answer) {
        self.rvas += 1;
        if !truth.is_empty() && !truth.iter().any(|chain| chain.as_slice() == ours) {
            self.ours_wrong += 1;
        }
        let class = classify(truth, ours, theirs);
        *self.classes.entry(class).or_default() += 1;
        if class > Class::SamePublic {
            self.examples
                .entry(class)
                .or_insert_with(|| format!("{rva:#x}: {theirs:?}; ours {ours:?}; records {truth:?}"));
        }
    }

    /// As JSON, one object.
    pub fn to_json(&self, examples: bool) -> Value {
        let classes: serde_json::Map<String, Value> =
            self.classes.iter().map(|(class, count)| (format!("{class:?}"), (*count).into())).collect();
        let mut out =
            serde_json::json!({ "rvas": self.rvas, "ours_wrong": self.ours_wrong, "classes": classes });
        if examples {
            out["examples"] = self.examples.values().cloned().collect();
        }
        out
    }
}

fn classify(truth: &[Vec<RecordFrame>], ours: &[RecordFrame], theirs: &Answer) -> Class {
    let Answer::Frames(theirs) = theirs else { return Class::Failed };
    if truth.is_empty() {
        let same = theirs.len() == ours.len() && theirs.iter().zip(ours).all(|(t, o)| same_name(&t.0, &o.0));
        return if same { Class::SamePublic } else { Class::OutsideProcedures };
    }
    if theirs.is_empty() {
        return Class::Nothing;
    }
    let right = |chain: &[RecordFrame]| {
        chain.len() == theirs.len()
            && chain.iter().zip(theirs).all(|(c, t)| same_name(&t.0, &c.0) && same_line(c, t))
    };
    if truth.iter().any(|chain| right(chain)) {
        return match () {
            () if right(ours) => Class::Same,
            () if truth.iter().any(|chain| chain.as_slice() == ours) => Class::OtherRecord,
            () => Class::OursWrong,
        };
    }
    // Among the chains whose outermost function is theirs, the one nearest to theirs decides.
    let last = &theirs[theirs.len() - 1].0;
    let candidates = truth.iter().filter(|chain| chain.last().is_some_and(|frame| same_name(last, &frame.0)));
    candidates.map(|chain| against(chain, theirs)).min().unwrap_or(Class::NameOther)
}

/// How an answer with the right outermost function differs from one chain.
fn against(chain: &[RecordFrame], theirs: &[RecordFrame]) -> Class {
    if theirs.len() < chain.len() {
        return Class::InlinesDropped;
    }
    if theirs.len() > chain.len() {
        return Class::InlinesAdded;
    }
    let pairs = || chain.iter().zip(theirs);
    if !pairs().all(|(chain, their)| same_name(&their.0, &chain.0)) {
        return Class::InlineNameOther;
    }
    // A level can differ in three ways. A wrong line counts most.
    let differs =
        |test: fn(&RecordFrame, &RecordFrame) -> bool| pairs().any(|(c, t)| !same_line(c, t) && test(c, t));
    if differs(|chain, their| chain.2.is_some() && their.2.is_some()) {
        Class::LineOther
    } else if differs(|chain, _| chain.2.is_none()) {
        Class::LineInvented
    } else {
        Class::LineDropped
    }
}

/// Whether their name is the record's, apart from spaces and the spelling of unnamed namespaces.
fn same_name(theirs: &str, record: &str) -> bool {
    theirs == record || plain(theirs) == plain(record)
}

/// A name without spaces. MSVC writes an unnamed namespace with the file's hash in some records
/// (`?A0x8417fefe`) and in words in others.
fn plain(name: &str) -> String {
    let mut name = name.replace(' ', "");
    while let Some(at) = name.find("?A0x") {
        let rest = &name[at + 4..];
        let digits = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        name.replace_range(at..at + 4 + digits, "`anonymousnamespace'");
    }
    name
}

/// The file is compared only if there is a line.
fn same_line(record: &RecordFrame, theirs: &RecordFrame) -> bool {
    record.2 == theirs.2 && (record.2.is_none() || record.1 == theirs.1)
}

/// pdb-addr2line's answers.
pub fn pdb_addr2line(pdb: &Path, rvas: &[u32]) -> Result<Vec<Answer>> {
    let file = File::open(pdb).with_context(|| pdb.display().to_string())?;
    let data = ContextPdbData::try_from_pdb(pdb_addr2line::pdb::PDB::open(file)?)?;
    let flags = TypeFormatterFlags::default() | TypeFormatterFlags::NO_ARGUMENTS;
    let context = data.make_context_with_formatter_flags(flags)?;
    let answer = |&rva: &u32| {
        let Ok(found) = context.find_frames(rva) else { return Answer::Failed };
        let frames = found.into_iter().flat_map(|found| found.frames);
        Answer::Frames(
            frames
                .map(|frame| {
                    let file = frame.file.map(|file| file.into_owned());
                    (frame.function.unwrap_or_default(), file, frame.line.filter(|&line| line != 0))
                })
                .collect(),
        )
    };
    Ok(rvas.iter().map(answer).collect())
}

/// llvm-symbolizer's answers for an image with its PDB beside it. It crashes at some addresses;
/// another process then answers the next ones.
pub fn llvm_symbolizer(image: &Path, rvas: &[u32]) -> Result<Vec<Answer>> {
    let mut answers = Vec::with_capacity(rvas.len());
    while answers.len() < rvas.len() {
        let mut child = Command::new("llvm-symbolizer-19")
            .args(["--relative-address", "--functions=short", "--no-demangle", "--output-style=JSON"])
            .arg(format!("--obj={}", image.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("llvm-symbolizer-19")?;
        let questions: String = rvas[answers.len()..].iter().map(|rva| format!("{rva:#x}\n")).collect();
        let mut input = child.stdin.take().context("its input")?;
        // A process that crashed reads no more.
        let writer = std::thread::spawn(move || input.write_all(questions.as_bytes()).is_ok());
        for line in BufReader::new(child.stdout.take().context("its output")?).lines() {
            let Ok(answer) = serde_json::from_str::<Value>(&line?) else { break };
            answers.push(llvm_answer(&answer));
        }
        let _ = writer.join();
        child.wait()?;
        if answers.len() < rvas.len() {
            answers.push(Answer::Failed);
        }
    }
    Ok(answers)
}

fn llvm_answer(answer: &Value) -> Answer {
    let Some(symbols) = answer["Symbol"].as_array() else { return Answer::Failed };
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let frames = symbols.iter().map(|symbol| {
        let line =
            symbol["Line"].as_u64().and_then(|line| u32::try_from(line).ok()).filter(|&line| line != 0);
        (text(&symbol["FunctionName"]).unwrap_or_default(), text(&symbol["FileName"]), line)
    });
    let known = |frame: &RecordFrame| !frame.0.is_empty() || frame.2.is_some();
    Answer::Frames(frames.filter(known).collect())
}

/// Our answer.
pub fn ours(index: &SymbolIndex, rva: u32) -> Result<Vec<RecordFrame>> {
    let hit = index.lookup(rva)?;
    let frames = hit.iter().flat_map(|hit| hit.frames());
    Ok(frames.map(|frame| (frame.name.to_owned(), frame.file.map(str::to_owned), frame.line)).collect())
}

/// Compares the answers to `rvas` with the records and with ours.
pub fn compare(truth: &PdbRecords, index: &SymbolIndex, rvas: &[u32], answers: &[Answer]) -> Result<Tally> {
    let mut tally = Tally::default();
    for (&rva, answer) in rvas.iter().zip(answers) {
        tally.add(rva, &truth.chains(rva)?, &ours(index, rva)?, answer);
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str, line: u32) -> RecordFrame {
        (name.to_owned(), Some("a.h".to_owned()), Some(line).filter(|&line| line != 0))
    }

    #[test]
    fn differences_are_classified() {
        let records = [vec![frame("?A0x8417fefe::in", 3), frame("f<int, int>", 0)], vec![frame("folded", 7)]];
        let class =
            |theirs: &[RecordFrame]| classify(&records, &records[0], &Answer::Frames(theirs.to_vec()));
        let inlined = || frame("`anonymous namespace'::in", 3);
        assert_eq!(class(&[inlined(), frame("f<int,int>", 0)]), Class::Same);
        assert_eq!(class(&[frame("folded", 7)]), Class::OtherRecord);
        assert_eq!(class(&[frame("folded", 8)]), Class::LineOther);
        assert_eq!(class(&[inlined(), frame("f<int,int>", 9)]), Class::LineInvented);
        assert_eq!(
            class(&[frame("`anonymous namespace'::in", 0), frame("f<int,int>", 0)]),
            Class::LineDropped
        );
        assert_eq!(class(&[frame("f<int,int>", 0)]), Class::InlinesDropped);
        assert_eq!(class(&[inlined(), inlined(), frame("f<int,int>", 0)]), Class::InlinesAdded);
        assert_eq!(class(&[frame("out", 3), frame("f<int,int>", 0)]), Class::InlineNameOther);
        assert_eq!(class(&[frame("g", 7)]), Class::NameOther);
        assert_eq!(class(&[]), Class::Nothing);
        assert_eq!(classify(&records, &[], &Answer::Frames(vec![frame("folded", 7)])), Class::OursWrong);
        assert_eq!(classify(&[], &[frame("p", 0)], &Answer::Frames(vec![frame("p", 5)])), Class::SamePublic);
    }
}
