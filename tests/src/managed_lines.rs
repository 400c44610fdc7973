//! Lines and methods of examples/mixed as its compiler, its source and its runtime say, beside
//! those that stk shows.
//!
//! The compiler's are tests/data/dotnet/mixed31.lines.txt and mixed31.methods.txt, which other
//! programs than stk wrote.

use crate::stk::{Frame, Speedscope};
use crate::wine;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Comment lines that were put on top of mixed.cs after mixed31.lines.txt was made.
const NEW_ON_TOP: u64 = 2;
/// The class from which on the source was changed since then.
const CHANGED_FROM: &str = "public static class Program";
/// Methods that the build for CoreCLR 10 has another source for (`#if TRIMMED`).
const OTHER_SOURCE: [&str; 3] = ["Outer", "Middle", "<Outer>"];

/// What is known of mixed.cs.
#[derive(Debug)]
pub struct MixedLines {
    /// Lines with sequence points, by method.
    points: BTreeMap<String, BTreeSet<u64>>,
    /// Lines marked `// hot: NAME`, by name.
    hot: BTreeMap<String, u64>,
    /// The first line of [`CHANGED_FROM`]. Frames from there on are not compared.
    changed_from: u64,
}

/// The frames that were compared.
#[derive(Clone, Debug, Default)]
pub struct ComparedLines {
    /// Frames on a line with a sequence point of their method.
    pub right: u64,
    /// Frames of Spin and Shapes on the line marked as hot.
    pub hot: BTreeMap<String, u64>,
}

impl MixedLines {
    /// Reads the files of this repository.
    pub fn read() -> MixedLines {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file of the repository");
        let mut names = BTreeMap::new();
        for line in text("tests/data/dotnet/mixed31.methods.txt").lines() {
            let mut columns = line.split('\t');
            let token = columns.next().and_then(|column| column.split(' ').nth(2));
            if let (Some(token), Some("mixed"), Some(name)) = (token, columns.next(), columns.nth(2)) {
                names.insert(format!("{token:0>8}"), key(name).into_owned());
            }
        }
        let mut points: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        let mut method = None;
        for line in text("tests/data/dotnet/mixed31.lines.txt").lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["method", token] => method = names.get(token),
                [_, line, _] => {
                    let line: u64 = line.parse().expect("a line's number");
                    method.map(|name| points.entry(name.clone()).or_default().insert(line + NEW_ON_TOP));
                }
                _ => {}
            }
        }
        let source = text("examples/mixed/mixed.cs");
        let marked = source
            .lines()
            .zip(1..)
            .filter_map(|(line, number)| Some((line.split_once("; // hot: ")?.1, number)));
        let hot = marked.map(|(name, number)| (name.to_owned(), number)).collect();
        let changed_from = source.lines().zip(1..).find(|(line, _)| line.contains(CHANGED_FROM));
        MixedLines { points, hot, changed_from: changed_from.expect("the class Program").1 }
    }

    fn compares(&self, frame: &Frame) -> bool {
        frame.file.ends_with("mixed.cs") && (1..self.changed_from).contains(&frame.line)
    }

    /// Compares every frame in mixed.cs. A frame without a line is left out: the runtime gives some
    /// calls of optimised code none.
    ///
    /// # Panics
    /// If a frame is on a line that its method has no code on, or Shapes calls from another line
    /// than the marked one.
    #[track_caller]
    pub fn compare(&self, shown: &Speedscope) -> ComparedLines {
        let mut compared = ComparedLines::default();
        for (_, stack) in shown.stacks() {
            for (at, frame) in stack.iter().enumerate().filter(|(_, frame)| self.compares(frame)) {
                let name = key(method(&frame.name));
                let name = &*name;
                if OTHER_SOURCE.contains(&name) {
                    continue;
                }
                let points = self.points.get(name).unwrap_or_else(|| panic!("no method {name}: {frame:?}"));
                assert!(points.contains(&frame.line), "{frame:?}: {name} has code on {points:?}");
                compared.right += 1;
                let Some(&hot) = self.hot.get(name) else { continue };
                let calls = stack.get(at + 1).is_some_and(|callee| key(method(&callee.name)) == "CallArea");
                assert!(!calls || frame.line == hot, "{frame:?}: {name} calls on line {hot}");
                *compared.hot.entry(name.to_owned()).or_default() += u64::from(frame.line == hot);
            }
        }
        compared
    }
}

/// Whether `stream` is a whole EventPipe stream: the magic, and the null tag that ends the last
/// object and the stream.
pub fn is_whole(stream: &[u8]) -> bool {
    stream.starts_with(b"Nettrace") && stream.ends_with(&[6, 1])
}

/// Methods of mixed in a stream of the runtime, by another reader of the format than stk's. `file`
/// is a place for the stream.
#[track_caller]
pub fn methods_in(stream: &[u8], file: &Path) -> BTreeSet<String> {
    let out = listed(stream, file);
    let columns = out.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let of_mixed = columns.filter(|columns| columns.get(1) == Some(&"mixed"));
    of_mixed.map(|columns| columns[3..].join(" ")).collect()
}

/// Code of mixed and of dynamic methods in a stream: its first address, its size, and its name in
/// the form that stk shows.
#[track_caller]
pub fn code_in(stream: &[u8], file: &Path) -> Vec<(u64, u64, String)> {
    let of_line = |line: &str| {
        let columns: Vec<&str> = line.split('\t').collect();
        let [code, module, _, class, name, signature] = columns[..] else { return None };
        let mut numbers = code.split(' ').map(|number| u64::from_str_radix(number, 16).expect("a number"));
        let (start, size) = (numbers.next()?, numbers.next()?);
        let class = if class == module { String::new() } else { format!("{class}.") };
        let arguments = signature.find('(').map_or("", |at| &signature[at..]);
        Some((start, size, format!("{module}!{class}{name}{arguments}")))
    };
    listed(stream, file).lines().filter_map(of_line).collect()
}

/// What methods.py prints: address, size, token and flags; module; IL map; type; name; signature.
#[track_caller]
fn listed(stream: &[u8], file: &Path) -> String {
    std::fs::write(file, stream).expect("the stream is written");
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/dotnet/methods.py");
    let mut python = Command::new("python3");
    let ran = wine::output(python.arg(reader).arg(file).arg("mixed"));
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// The method in a frame's name, such as `mixed!Mixed.Work.Spin(int32):79`, without its type.
fn method(name: &str) -> &str {
    let end = name.find('(').unwrap_or(name.len());
    name[..end].rsplit('.').next().unwrap_or(name)
}

/// Names of lambdas are numbered anew in each build: `<Main>b__6_4`, which stk shows as `Main
/// [lambda 4]`, is one of `<Main>`. The method of a state machine is MoveNext.
fn key(method: &str) -> Cow<'_, str> {
    if method.ends_with(" [state machine]") {
        return Cow::Borrowed("MoveNext");
    }
    if let Some((of, _)) = method.split_once(" [lambda ") {
        return Cow::Owned(format!("<{of}>"));
    }
    Cow::Borrowed(method.find('>').filter(|_| method.starts_with('<')).map_or(method, |end| &method[..=end]))
}
