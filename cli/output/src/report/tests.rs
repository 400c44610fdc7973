use super::*;
use crate::annotate::{AnnotateOptions, CodeSource, SourceFolder, SourceFolders, annotate};
use flate2::read::DeflateDecoder;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::PathBuf;
use stk_profile::pipeline::{self, LoadOptions, Loaded};
use stk_profile::trace::TraceFile;
use stk_symbols::{SymbolPath, SymbolStore};

fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces").join(name)
}

/// A kept trace, read by so many threads.
fn load(name: &str, jobs: usize) -> Loaded {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs).build().unwrap();
    pool.install(|| pipeline::load(&kept(name), &LoadOptions::default())).unwrap()
}

fn source(loaded: &Loaded) -> Source<'_> {
    Source {
        profile: &loaded.profile,
        runs: &loaded.runs,
        missing: &loaded.missing,
        warnings: &[],
        part: "",
        annotation: None,
        zone: TimeZone::Utc,
    }
}

/// A block as the page reads it: written anew from its description in `mod.rs`.
struct Decoded {
    facts: Value,
    columns: BTreeMap<String, Vec<u64>>,
}

fn decode(block: &str) -> Decoded {
    let mut bytes = Vec::new();
    DeflateDecoder::new(&STANDARD.decode(block).unwrap()[..]).read_to_end(&mut bytes).unwrap();
    let (length, rest) = bytes.split_first_chunk::<4>().unwrap();
    let (json, mut rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
    let facts: Value = serde_json::from_slice(json).unwrap();
    let mut columns = BTreeMap::new();
    for column in facts["columns"].as_array().unwrap() {
        let [rows, planes] = ["rows", "planes"].map(|key| column[key].as_u64().unwrap() as usize);
        let mut numbers = vec![0; rows];
        for plane in 0..planes {
            let (bytes, behind) = rest.split_at(rows);
            rest = behind;
            numbers.iter_mut().zip(bytes).for_each(|(n, byte)| *n += u64::from(*byte) << (8 * plane));
        }
        columns.insert(column["name"].as_str().unwrap().to_owned(), numbers);
    }
    assert!(rest.is_empty());
    Decoded { facts, columns }
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

impl Decoded {
    fn sum(&self, column: &str) -> u64 {
        self.columns[column].iter().sum()
    }

    /// By node: its function, and the node of its caller.
    fn nodes(&self) -> Vec<(usize, Option<usize>)> {
        let mut path: Vec<usize> = Vec::new();
        let mut nodes = Vec::new();
        let mut expected = 0;
        for (step, frame) in self.columns["depth"].iter().zip(&self.columns["frame"]) {
            let depth = (expected + unzigzag(*step)) as usize;
            expected = depth as i64 + 1;
            path.truncate(depth);
            nodes.push(((frame >> 2) as usize, path.last().copied()));
            path.push(nodes.len() - 1);
        }
        nodes
    }

    /// By function: the CPU time of the stacks that end in it, and of those that have it.
    fn functions(&self) -> BTreeMap<String, (u64, u64)> {
        let nodes = self.nodes();
        let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (node, cpu) in self.columns["node"].iter().zip(&self.columns["cpu"]) {
            let Some(leaf) = (*node as usize).checked_sub(1) else { continue };
            let stack: Vec<usize> = std::iter::successors(Some(leaf), |&node| nodes[node].1).collect();
            let mut functions: Vec<usize> = stack.iter().map(|&node| nodes[node].0).collect();
            sums.entry(self.name(functions[0])).or_default().0 += cpu;
            functions.sort_unstable();
            functions.dedup();
            functions.iter().for_each(|&function| sums.entry(self.name(function)).or_default().1 += cpu);
        }
        sums
    }

    /// A function's name, with the module, since names are unique only within it.
    fn name(&self, function: usize) -> String {
        let of = &self.facts["functions"];
        let module = of["modules"][function].as_u64().unwrap() as usize;
        let (module, name) = (&self.facts["modules"][module], &of["names"][function]);
        format!("{}!{}", module.as_str().unwrap(), name.as_str().unwrap())
    }
}

fn stats_of(loaded: &Loaded) -> Stats {
    let options = StatsOptions { top: usize::MAX, ..StatsOptions::default() };
    stats::collect(&loaded.profile, &loaded.runs, None, &options).unwrap()
}

#[test]
fn a_block_decodes_to_the_sums_of_the_statistics() {
    for name in ["busy.stk", "mixed.stk"] {
        let loaded = load(name, 2);
        let (block, figures) = block(&source(&loaded), MOST_ROWS).unwrap();
        let decoded = decode(&block);
        let stats = stats_of(&loaded);
        let totals = stats.totals;
        let sums = ["cpu", "wall", "samples"].map(|column| decoded.sum(column));
        assert_eq!(sums, [totals.cpu_ns, totals.weight_ns, totals.samples]);
        assert_eq!((figures.totals.cpu_ns, &decoded.facts["joined_ns"]), (totals.cpu_ns, &Value::Null));
        let waiting: u64 = decoded.columns["state"]
            .iter()
            .zip(&decoded.columns["samples"])
            .filter(|(state, _)| **state >= 3)
            .map(|(_, samples)| samples)
            .sum();
        assert_eq!(waiting, stats.states.waiting.samples);
        let functions = decoded.functions();
        assert!(stats.functions_by_self.len() > 5 && stats.functions_by_total.len() > 10);
        for function in stats.functions_by_self.iter().chain(&stats.functions_by_total) {
            let sums = functions[&format!("{}!{}", function.module, function.function)];
            let expected = (function.own.weight_ns, function.total.weight_ns);
            assert_eq!(sums, expected, "{name}: {}", function.function);
        }
    }
}

#[test]
fn rows_begin_when_the_runs_of_their_threads_do() {
    let loaded = load("busy.stk", 2);
    let decoded = decode(&block(&source(&loaded), MOST_ROWS).unwrap().0);
    let mut starts = Vec::new();
    let mut rows = decoded.columns["gap"].iter().zip(&decoded.columns["wall"]);
    for thread in decoded.facts["threads"].as_array().unwrap() {
        let mut at = 0;
        for (gap, wall) in rows.by_ref().take(thread["rows"].as_u64().unwrap() as usize) {
            at += unzigzag(*gap);
            starts.push(at as u64);
            at += *wall as i64;
        }
    }
    let mut expected = Vec::new();
    let visited: io::Result<()> = loaded.runs.for_each(|batch| {
        expected.extend(batch.runs.iter().map(|run| run.first_ns));
        Ok(())
    });
    visited.unwrap();
    assert_eq!(starts, expected);
}

#[test]
fn rows_that_are_joined_keep_their_sums() {
    let loaded = load("busy.stk", 2);
    let whole = decode(&block(&source(&loaded), MOST_ROWS).unwrap().0);
    let joined = decode(&block(&source(&loaded), 600).unwrap().0);
    let rows = |decoded: &Decoded| decoded.columns["cpu"].len();
    assert!(rows(&whole) > 1000 && rows(&joined) <= 600, "{} and {}", rows(&whole), rows(&joined));
    assert!(joined.facts["joined_ns"].as_u64().unwrap() > 0);
    assert_eq!(joined.facts["runs"].as_u64().unwrap() as usize, rows(&whole));
    for column in ["cpu", "wall", "samples"] {
        assert_eq!(joined.sum(column), whole.sum(column), "{column}");
    }
    assert_eq!(joined.functions(), whole.functions());
}

/// What a page holds of the source and the instructions of a kept trace.
fn decoded_with_code(name: &str, loaded: &Loaded) -> Decoded {
    let sources = SourceFolders::open(&[SourceFolder::parse("../..")]).unwrap();
    let file = TraceFile::open(&kept(name)).unwrap();
    let trace = file.read().unwrap();
    let images = pipeline::load_images(&trace, &SymbolStore::new(SymbolPath::default()));
    let options = AnnotateOptions {
        what: ".",
        stats: StatsOptions::default(),
        top: 200,
        sources: &sources,
        embedded: None,
        linked: None,
        code: Some(CodeSource { trace: &trace, images: &images }),
    };
    let annotation = annotate(&loaded.profile, &loaded.runs, &options).unwrap();
    let with = Source { annotation: Some(&annotation), ..source(loaded) };
    decode(&block(&with, MOST_ROWS).unwrap().0)
}

/// The functions of a source of a page, and the sum of numbers in rows.
fn names_of(decoded: &Decoded, of: &Value) -> BTreeSet<String> {
    let functions = of["functions"].as_array().unwrap().iter();
    functions.map(|f| decoded.name(f.as_u64().unwrap() as usize)).collect()
}

fn sum<'v>(rows: impl IntoIterator<Item = &'v Value>, at: usize) -> u64 {
    rows.into_iter().map(|row| row[at].as_u64().unwrap()).sum()
}

#[test]
fn instructions_of_a_page_sum_to_their_functions_self_time() {
    let mut texts = 0;
    for name in ["busy.stk", "mixed.stk"] {
        let loaded = load(name, 2);
        let decoded = decoded_with_code(name, &loaded);
        let sums = decoded.functions();
        let mut own = 0;
        for of in decoded.facts["sources"].as_array().unwrap() {
            let names = names_of(&decoded, of);
            assert_eq!(of["code_problem"], Value::Null);
            let blocks = of["code"].as_array().unwrap();
            let rows: Vec<&Value> =
                blocks.iter().flat_map(|block| block["rows"].as_array().unwrap()).collect();
            let expected: u64 = names.iter().map(|name| sums[name].0).sum();
            assert_eq!(sum(rows.iter().copied(), 5), expected, "{names:?}");
            for row in &rows {
                // An instruction, or why there is none.
                assert_ne!(row[2].is_null(), row[3].is_null(), "{row}");
                texts += usize::from(row[2].is_string());
            }
            own += sum(rows, 5);
        }
        assert!(own > 0, "{name}");
    }
    // mixed has recorded code.
    assert!(texts > 50, "{texts}");
}

#[test]
fn source_lines_of_a_page_are_those_of_annotate() {
    let loaded = load("busy.stk", 2);
    let decoded = decoded_with_code("busy.stk", &loaded);
    let sums = decoded.functions();
    let found = decoded.facts["sources"].as_array().unwrap();
    assert!(found.len() > 20, "{}", found.len());
    assert_eq!(decoded.facts["sources_weight"], "cpu");
    let mut texts = 0;
    for of in found {
        let names = names_of(&decoded, of);
        assert_eq!(
            sum(of["lines"].as_array().unwrap(), 1),
            names.iter().map(|name| sums[name].0).sum::<u64>(),
            "{names:?}"
        );
        let Some(file) = of["file"].as_str().filter(|file| file.ends_with("leaf_loops.cpp")) else {
            continue;
        };
        // The kept trace is of an older text; the numbers and the text of this one belong together.
        let text = std::fs::read_to_string(Path::new("../../examples/busy/leaf_loops.cpp")).unwrap();
        let expected = text.lines().skip(of["first"].as_u64().unwrap() as usize - 1);
        for (shown, line) in of["texts"].as_array().unwrap().iter().zip(expected) {
            assert_eq!(shown, &line.replace('\t', "    "), "{file}");
            texts += 1;
        }
    }
    assert!(texts > 20, "{texts}");
    assert_eq!(decode(&block(&source(&loaded), MOST_ROWS).unwrap().0).facts["sources"], Value::Array(vec![]));
}

/// The bytes of a page of a trace.
fn page_of(loaded: &Loaded) -> Vec<u8> {
    let mut report = Report::default();
    report.add(&source(loaded)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    let digest = stk_schema::identity::ContentHash([7; 16]);
    let content = Content {
        uuid: String::new(),
        start_utc_ns: 0,
        digest,
        len: 5,
        beginnings: Vec::new(),
        redacted_from: None,
    };
    report.write(Some(&path), &content).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn the_bytes_of_a_page_do_not_depend_on_the_number_of_threads() {
    assert!(page_of(&load("mixed.stk", 1)) == page_of(&load("mixed.stk", 4)));
}

const HOSTILE: &str =
    "</script><script>alert('owned')</script><img src=x onerror=alert(1)> \u{202e}\u{2028}\0 名前";

#[test]
fn names_from_traces_are_data_only() {
    let mut loaded = load("busy.stk", 2);
    let profile = &mut loaded.profile;
    profile.trace.process = HOSTILE.to_owned();
    profile.trace.source = HOSTILE.to_owned();
    profile.trace.host = HOSTILE.to_owned();
    profile.threads.iter_mut().for_each(|thread| thread.name = HOSTILE.to_owned());
    profile.images.iter_mut().for_each(|image| image.name = HOSTILE.to_owned());
    let page = String::from_utf8(page_of(&loaded)).unwrap();
    for part in ["owned", "onerror", "alert("] {
        assert!(!page.contains(part), "{part}");
    }
    let block = page.split_once("class=\"trace\">").unwrap().1.split_once("</script>").unwrap().0;
    let facts = decode(block).facts;
    for name in [&facts["process"], &facts["host"], &facts["threads"][0]["name"], &facts["modules"][0]] {
        assert_eq!(name, HOSTILE);
    }
}

#[test]
fn a_page_loads_nothing_and_runs_no_script_but_its_own() {
    let page = String::from_utf8(page_of(&load("busy.stk", 2))).unwrap();
    let policy =
        page.split_once("Content-Security-Policy\" content=\"").unwrap().1.split_once('"').unwrap().0;
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"), "{policy}");
    // The scripts that a browser runs have no type. Those with one are data.
    let scripts: Vec<&str> =
        page.split("<script>").skip(1).map(|s| s.split_once("</script>").unwrap().0).collect();
    let [script] = scripts[..] else { panic!("{} scripts", scripts.len()) };
    let digest = ring::digest::digest(&ring::digest::SHA256, script.as_bytes());
    assert!(policy.contains(&format!("'sha256-{}'", STANDARD.encode(digest))), "{policy}");
    for word in [
        "http:",
        "https:",
        "//cdn",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
    ] {
        assert!(!page.contains(word), "{word}");
    }
    for part in WORKER.iter().chain(&SCRIPTS).chain([&STYLE]) {
        assert!(!part.contains("</") && !part.contains("<!--") && !part.contains("{{"));
    }
}

#[test]
fn build_is_the_label_or_else_the_executables_identity() {
    let mut loaded = load("busy.stk", 2);
    let profile = &mut loaded.profile;
    let executable = profile.trace.executable.unwrap();
    let image = &mut profile.images[executable.0 as usize];
    assert_eq!(image.name, "busy.exe");
    assert!(image.debug_id.len() > 32, "{}: GUID and age", image.debug_id);
    let debug_id = std::mem::take(&mut image.debug_id);
    image.code_id = "65F00D0012000".to_owned();
    assert_eq!(build_of(profile), "65F00D0012000");
    profile.images[executable.0 as usize].debug_id.clone_from(&debug_id);
    assert_eq!(build_of(profile), debug_id);
    profile.trace.metadata.push(("label.build".to_owned(), "1234".to_owned()));
    assert_eq!(build_of(profile), "1234");
}

#[test]
fn a_page_says_of_what_it_was_made() {
    let page = String::from_utf8(page_of(&load("busy.stk", 2))).unwrap();
    let mark = "(trace of 5 bytes, xxh3-128 07070707070707070707070707070707)";
    assert!(page[..4096].contains(mark));
}
