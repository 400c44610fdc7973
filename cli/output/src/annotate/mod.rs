//! Source lines and instructions of functions, each with what samples come to in it:
//! `stk annotate`.
//!
//! ```text
//! subject       which functions, or which source file    Profile, text -> Part
//! sums          weights by part, line and instruction    Profile, StackAmounts -> OwnTotal
//! sources       source files below folders, in PDBs     a path of debug information -> lines
//! source_link   source files on named servers            a path, SourceLink's map -> lines
//! code          machine code as text                     bytes -> instructions
//! instructions  the instructions of a function           Trace, images -> CodeBlock
//! text          how it is printed
//! ```
//!
//! The weights are those of `stk stats`: [`StackAmounts`] sums the runs, and the one sum over the
//! call tree shares them out. So the lines of a function, and its instructions, add up to the
//! function's own weight exactly.

mod code;
mod instructions;
mod source_link;
mod sources;
mod subject;
mod sums;
mod text;

pub use instructions::{CodeBlock, CodeSource, InstructionRow};
pub use source_link::{SourceAddressError, SourceServers};
pub use sources::{SourceFolder, SourceFolders, SourceProblem};
pub use text::print;

use crate::stats::{Amount, StackAmounts, StatsOptions};
use serde::Serialize;
use sources::SourceText;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use stk_profile::profile::{
    Additive, FunctionId, Functions, OwnTotal, PatternError, Profile, Runs, SelectionShare, Weight,
};
use stk_profile::runtimes::dotnet::Lines;
use subject::CodeSubject;
use sums::PartSums;

/// Version of the JSON that `schema/annotate.schema.json` describes. It is raised when the meaning
/// of a field changes or a field is removed, not when one is added.
pub const VERSION: u32 = 1;

/// What is annotated, and with what.
#[derive(Clone, Copy, Debug)]
pub struct AnnotateOptions<'a> {
    /// A function's name, the end of a source file's path, or a regular expression for functions.
    pub what: &'a str,
    /// What is counted.
    pub stats: StatsOptions,
    /// Functions or files at most.
    pub top: usize,
    /// Where source files are.
    pub sources: &'a SourceFolders,
    /// PDBs of .NET modules, if texts in them are wanted. The folders come first.
    pub embedded: Option<&'a Lines<'a>>,
    /// PDBs of .NET modules, and servers from which texts are taken by SourceLink's maps in them.
    /// Folders and texts in PDBs come first.
    pub linked: Option<(&'a Lines<'a>, &'a SourceServers)>,
    /// Where machine code is, if instructions are wanted.
    pub code: Option<CodeSource<'a>>,
}

/// Functions or files with their lines and instructions.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Annotation {
    /// File or name of the trace.
    pub source: String,
    /// The trace's UUID, 32 hex digits.
    pub trace_id: String,
    /// Executable's file name.
    pub process: String,
    /// Which part of the samples the figures are of; `None`: all.
    pub selection: Option<SelectionShare>,
    /// What `weight_ns` is; samples count for one nominal interval each.
    pub weight: Weight,
    /// Nominal time between two samples of a thread.
    pub interval_ns: u64,
    /// The weight of all samples that count: what shares refer to.
    pub counted_ns: u64,
    /// The most own weight first.
    pub parts: Vec<PartStats>,
    /// How many functions or files match and are left out.
    pub others: u64,
    /// Their own samples.
    pub others_self: Amount,
}

/// A function or a source file.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PartStats {
    /// The function; `None`: it is a whole file.
    pub function: Option<String>,
    /// File name of its module; empty if it is in none, and for a file.
    pub module: String,
    /// The source file, as its debug information names it.
    pub file: Option<String>,
    /// Samples that end in it.
    #[serde(rename = "self")]
    pub own: Amount,
    /// Samples that have it anywhere on the stack.
    pub total: Amount,
    /// Which file the texts are from.
    pub text_file: Option<String>,
    /// Why there is no text.
    pub no_text: Option<String>,
    /// Lines that have samples, in their order; that of addresses without a line is last.
    pub lines: Vec<LineRow>,
    /// Its machine code, if it is wanted.
    pub code: Vec<CodeBlock>,
    /// The text of its file; empty if there is none.
    #[serde(skip)]
    pub(crate) texts: Arc<[String]>,
    /// Its functions' ids in the profile.
    #[serde(skip)]
    pub(crate) functions: Vec<FunctionId>,
}

/// A source line.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LineRow {
    /// From 1; `None`: no line is known.
    pub line: Option<u32>,
    /// Samples that end in it.
    #[serde(rename = "self")]
    pub own: Amount,
    /// Samples that have it anywhere on the stack, each once.
    pub total: Amount,
    /// Its text, if the source is known and has so many lines.
    pub text: Option<String>,
}

/// Why nothing is annotated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnnotateError {
    /// No function has the name, and it is no regular expression.
    #[error("no function or source file is named so, and it {0}")]
    Pattern(#[from] PatternError),
    /// Temporary files cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Annotates functions or files. There are no parts if nothing matches.
///
/// # Errors
///
/// When the text is no pattern, or the system refuses a temporary file.
pub fn annotate(
    profile: &Profile,
    runs: &Runs,
    options: &AnnotateOptions<'_>,
) -> Result<Annotation, AnnotateError> {
    let functions = Functions::new(profile, false);
    let amounts = StackAmounts::of(profile, runs, &options.stats)?;
    let mut parts = Vec::new();
    let mut texts = SourceTexts { options, in_folders: HashMap::new(), in_pdbs: HashMap::new() };
    let (mut others, mut others_self) = (0u64, Amount::default());
    for list in subject::parts(profile, &functions, options.what, options.code.is_some())? {
        let sums = PartSums::new(profile, &functions, &amounts.stacks, &list);
        let mut order: Vec<(usize, OwnTotal<Amount>)> = sums.of_parts().into_iter().collect();
        order.sort_by_key(|(at, sum)| (std::cmp::Reverse((sum.own.weight_ns, sum.total.weight_ns)), *at));
        // What has no weight is only shown where nothing else is.
        let weighed = order.partition_point(|(_, sum)| sum.own.weight_ns > 0 || sum.total.weight_ns > 0);
        let most = if weighed > 0 && options.top < usize::MAX { weighed } else { order.len() };
        for (_, sum) in order.drain(options.top.min(most)..) {
            others += 1;
            others_self.add(sum.own);
        }
        // Code is read for what is shown, in this order.
        let shown: Vec<CodeSubject> = order.iter().map(|(at, _)| list[*at].clone()).collect();
        let sums = PartSums::new(profile, &functions, &amounts.stacks, &shown);
        let mut lines = sums.of_lines();
        let mut code = options.code.map(|source| instructions::blocks(&sums, source)).unwrap_or_default();
        for (at, (subject, (_, sum))) in shown.iter().zip(order).enumerate() {
            let of_part = lines.remove(&at).unwrap_or_default();
            let text = match &subject.file {
                Some(file) => texts.find(&subject.module, file),
                None => Err(SourceProblem::NoFile),
            };
            let mut part = described(subject, sum, of_part, text);
            part.code = code.remove(&at).unwrap_or_default();
            parts.push(part);
        }
    }
    let trace = &profile.trace;
    Ok(Annotation {
        source: trace.source.clone(),
        trace_id: trace.trace_id.clone(),
        process: trace.process.clone(),
        selection: profile.selection.clone(),
        weight: amounts.weight,
        interval_ns: trace.interval_ns,
        counted_ns: amounts.counted_ns,
        parts,
        others,
        others_self,
    })
}

/// The texts of files, which functions share: each is read once.
struct SourceTexts<'a> {
    options: &'a AnnotateOptions<'a>,
    in_folders: HashMap<String, Result<SourceText, SourceProblem>>,
    /// By module and file: in PDBs and on servers.
    in_pdbs: HashMap<(String, String), Result<SourceText, SourceProblem>>,
}

impl SourceTexts<'_> {
    fn find(&mut self, module: &str, file: &str) -> Result<SourceText, SourceProblem> {
        let found = self.in_folders.entry(file.to_owned()).or_insert_with(|| self.options.sources.find(file));
        let (embedded, linked) = (self.options.embedded, self.options.linked);
        if found.is_ok() || embedded.is_none() && linked.is_none() {
            return found.clone();
        }
        let problem = found.clone();
        let find = || {
            let embedded = embedded.map_or(problem, |pdbs| sources::embedded(pdbs, module, file));
            match linked {
                Some((pdbs, servers)) => embedded.or_else(|_| servers.find(pdbs, module, file)),
                None => embedded,
            }
        };
        self.in_pdbs.entry((module.to_owned(), file.to_owned())).or_insert_with(find).clone()
    }
}

/// A part with its lines and their texts.
fn described(
    part: &CodeSubject,
    sum: OwnTotal<Amount>,
    of_lines: BTreeMap<Option<u32>, OwnTotal<Amount>>,
    found: Result<SourceText, SourceProblem>,
) -> PartStats {
    let mut lines: Vec<LineRow> = of_lines
        .into_iter()
        .map(|(line, OwnTotal { own, total })| LineRow { line, own, total, text: None })
        .collect();
    // The one of no line is first in the order of the map.
    if lines.first().is_some_and(|row| row.line.is_none()) {
        lines.rotate_left(1);
    }
    let (mut text_file, mut no_text, mut texts) = (None, None, Arc::default());
    match found {
        Ok(source) => {
            let (has, last) = (source.lines.len(), lines.iter().filter_map(|row| row.line).max());
            if let Some(last) = last.filter(|last| *last as usize > has) {
                no_text = Some(format!(
                    "{} has {has} lines and the debug information names line {last}: another build's text",
                    source.path
                ));
            }
            (text_file, texts) = (Some(source.path), source.lines);
        }
        Err(problem) => no_text = Some(problem.to_string()),
    }
    for row in &mut lines {
        let at = row.line.and_then(|line| (line as usize).checked_sub(1));
        row.text = at.and_then(|at| texts.get(at).cloned());
    }
    PartStats {
        function: part.function.clone(),
        module: part.module.clone(),
        file: part.file.clone(),
        own: sum.own,
        total: sum.total,
        text_file,
        no_text,
        lines,
        code: Vec::new(),
        texts,
        functions: part.functions.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::PrintOptions;
    use std::path::Path;
    use stk_profile::pipeline::{LoadOptions, load};
    use stk_tests::synth::Random;

    #[test]
    fn hostile_lines_and_paths_stay_within_their_bounds() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let loaded = load(&root.join("examples/traces/busy.stk"), &LoadOptions::default()).unwrap();
        let (mut profile, runs) = (loaded.profile, loaded.runs);
        let folder = SourceFolder { old: None, folder: root.join("examples") };
        let sources = SourceFolders::open(&[folder]).unwrap();
        let mut random = Random::new(3);
        let paths = [
            "busy.cpp",
            "../../Cargo.toml",
            "busy/busy.cpp",
            "/",
            r"\\server\share\x.cpp",
            "",
            "\u{1b}[2J\n",
        ];
        for _ in 0..200 {
            let files = paths.map(|path| profile.symbols.strings.intern(path));
            for name in &mut profile.symbols.named {
                name.file = Some(files[random.below(files.len())]);
                name.line =
                    [None, Some(0), Some(u32::MAX), Some(random.number() as u32), Some(7)][random.below(5)];
            }
            let options = AnnotateOptions {
                what: ".",
                stats: StatsOptions::default(),
                top: usize::MAX,
                sources: &sources,
                embedded: None,
                linked: None,
                code: None,
            };
            let annotation = annotate(&profile, &runs, &options).unwrap();
            assert!(annotation.parts.len() > 20);
            for part in &annotation.parts {
                let mut own = Amount::default();
                part.lines.iter().for_each(|line| own.add(line.own));
                assert_eq!(own, part.own);
                let is_below = |text: &String| !text.contains("Cargo.toml");
                assert!(part.text_file.iter().all(is_below), "{:?}", part.text_file);
            }
            let mut text = Vec::new();
            print(&annotation, &mut text, &PrintOptions::default()).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(!text.contains('\u{1b}') && text.lines().count() < 100_000);
        }
    }
}
