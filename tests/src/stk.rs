//! Runs the host's `stk` and reads its outputs.

use crate::wine;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// The result of a run of `stk`.
#[derive(Debug)]
pub struct Ran {
    /// Exit code.
    pub code: Option<i32>,
    /// What it printed to stdout.
    pub stdout: String,
    /// What it printed to stderr.
    pub stderr: String,
}

/// Runs `stk` in `folder`.
pub fn run(folder: &Path, arguments: &[&str]) -> Ran {
    let mut command = Command::new(wine::path("STK_BIN"));
    let output = command.args(arguments).current_dir(folder).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("stk cannot be run: {error}"));
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs `stk` in `folder`, which must succeed, and parses its stdout as JSON.
#[track_caller]
pub fn json(folder: &Path, arguments: &[&str]) -> Value {
    let ran = run(folder, arguments);
    assert_eq!(ran.code, Some(0), "stk {}\n{}{}", arguments.join(" "), ran.stdout, ran.stderr);
    serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|error| panic!("stk {} prints no JSON: {error}\n{}", arguments.join(" "), ran.stdout))
}

/// A speedscope file of the time that samples cover: one profile a thread, each a sequence of
/// stacks in time.
#[derive(Debug)]
pub struct Speedscope {
    /// All profiles but the first, which sums them up.
    pub threads: Vec<Profile>,
}

/// A thread's stacks in time.
#[derive(Debug)]
pub struct Profile {
    /// Name of the profile, which holds that of the thread.
    pub name: String,
    /// When each stack begins and ends, in the file's unit, and its frames, root first.
    pub stacks: Vec<(f64, f64, Vec<Frame>)>,
}

/// A frame of a speedscope file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Frame {
    /// Function.
    pub name: String,
    /// Source file; empty if it is not known.
    pub file: String,
    /// Line; 0 if it is not known.
    pub line: u64,
}

impl Speedscope {
    /// Converts `trace` in `folder` with symbols from `symbols`, a frame for each source line, and
    /// reads the result.
    #[track_caller]
    pub fn of(folder: &Path, trace: &str, symbols: &Path) -> Speedscope {
        let out = format!("{trace}.speedscope.json");
        let symbols = symbols.display().to_string();
        // The trace may have been recorded anew.
        let line = ["convert", trace, "--weight", "wall", "--lines", "--force", "-y", &symbols, "-o", &out];
        let ran = run(folder, &line);
        assert_eq!(ran.code, Some(0), "stk convert {trace}\n{}", ran.stderr);
        let text = std::fs::read_to_string(folder.join(out)).expect("stk wrote it");
        Speedscope::read(&serde_json::from_str(&text).expect("a speedscope file is JSON"))
    }

    fn read(file: &Value) -> Speedscope {
        let frames: Vec<Frame> = array(&file["shared"]["frames"]).iter().map(Frame::read).collect();
        let profiles = array(&file["profiles"]).iter();
        let threads = profiles.skip(1).map(|profile| Profile::read(profile, &frames)).collect();
        Speedscope { threads }
    }

    /// The profiles of threads with this name.
    pub fn named(&self, name: &str) -> Vec<&Profile> {
        let start = format!("{name} (");
        self.threads.iter().filter(|profile| profile.name.starts_with(&start)).collect()
    }

    /// The only thread with this name.
    ///
    /// # Panics
    /// If there is none, or several.
    #[track_caller]
    pub fn only(&self, name: &str) -> &Profile {
        let [profile] = self.named(name)[..] else {
            let names: Vec<&String> = self.threads.iter().map(|profile| &profile.name).collect();
            panic!("one thread '{name}' was expected among {names:?}");
        };
        profile
    }

    /// All stacks with their weights, without gaps.
    pub fn stacks(&self) -> impl Iterator<Item = (f64, &[Frame])> {
        let all = self.threads.iter().flat_map(|profile| &profile.stacks);
        all.filter(|(_, _, stack)| !stack.is_empty()).map(|(start, end, stack)| (end - start, &stack[..]))
    }

    /// Share of the stacks, by weight, that satisfy `wanted`.
    pub fn share(&self, wanted: impl Fn(&[Frame]) -> bool) -> f64 {
        let (mut part, mut all) = (0.0, 0.0);
        for (weight, stack) in self.stacks() {
            all += weight;
            part += if wanted(stack) { weight } else { 0.0 };
        }
        part / all
    }
}

/// Why a stack does not reach its thread's start, if it does not.
pub fn incomplete(stack: &[Frame]) -> Option<&str> {
    stack.first()?.name.strip_prefix("[incomplete stack: ")?.strip_suffix(']')
}

impl Profile {
    fn read(profile: &Value, frames: &[Frame]) -> Profile {
        assert_eq!(profile["type"], "sampled");
        let (samples, weights) = (array(&profile["samples"]), array(&profile["weights"]));
        assert_eq!(samples.len(), weights.len(), "samples and weights differ in number");
        let mut time = profile["startValue"].as_f64().expect("startValue is a number");
        let mut stacks = Vec::new();
        for (sample, weight) in samples.iter().zip(weights) {
            let stack = array(sample).iter().map(|index| {
                let index = index.as_u64().expect("a frame index is a number") as usize;
                frames.get(index).expect("a frame index is in range").clone()
            });
            let end = time + weight.as_f64().expect("a weight is a number");
            stacks.push((time, end, stack.collect()));
            time = end;
        }
        let name = profile["name"].as_str().expect("a profile has a name").to_owned();
        Profile { name, stacks }
    }

    /// Whether some stack holds these functions as neighbours, outermost first.
    pub fn has_chain(&self, functions: &[&str]) -> bool {
        self.stacks.iter().any(|(_, _, stack)| {
            stack
                .windows(functions.len())
                .any(|part| part.iter().zip(functions).all(|(frame, name)| frame.is(name)))
        })
    }

    /// A frame of function `name`, from the first stack that has one.
    pub fn frame(&self, name: &str) -> Option<&Frame> {
        self.stacks.iter().flat_map(|(_, _, stack)| stack).find(|frame| frame.is(name))
    }

    /// The stack at `time`.
    pub fn at(&self, time: f64) -> Option<&[Frame]> {
        let index = self.stacks.partition_point(|&(_, end, _)| end <= time);
        let (start, _, stack) = self.stacks.get(index)?;
        (*start <= time).then_some(stack)
    }
}

impl Frame {
    fn read(frame: &Value) -> Frame {
        Frame {
            name: frame["name"].as_str().expect("a frame has a name").to_owned(),
            file: frame["file"].as_str().unwrap_or_default().to_owned(),
            line: frame["line"].as_u64().unwrap_or(0),
        }
    }

    /// Whether it is of function `name`: scopes before it, and parameters, line and module after it
    /// do not matter.
    pub fn is(&self, name: &str) -> bool {
        self.function() == name
    }

    /// The bare function name.
    fn function(&self) -> &str {
        let name = self.name.split(" [").next().unwrap_or_default();
        let name = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches(':');
        let name = name.find('(').filter(|&at| at > 0).map_or(name, |at| &name[..at]);
        name.rsplit("::").next().unwrap_or(name)
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], |array| array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_function_names_are_found() {
        for (shown, bare) in [
            ("recurse_even:14", "recurse_even"),
            ("`anonymous namespace'::worker_main:25", "worker_main"),
            ("plugin_run:12 [plugin_a.dll]", "plugin_run"),
            ("ns::f(int, ns::T):3", "f"),
            ("ntdll.dll+0x1234", "ntdll.dll+0x"),
            ("RtlUserThreadStart", "RtlUserThreadStart"),
        ] {
            let frame = Frame { name: shown.to_owned(), file: String::new(), line: 0 };
            assert_eq!(frame.function(), bare, "{shown}");
        }
    }
}
