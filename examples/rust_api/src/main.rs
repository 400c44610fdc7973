//! A Rust program that uses the agent's functions: it captures its own stack, walks it, leaves
//! marks and names its thread. It works the same, and prints what it misses, where no agent is
//! loaded.
//!
//! ```text
//! rust_api [AGENT.DLL] [--until FILE]
//! ```
//!
//! With AGENT.DLL it loads that one; otherwise it looks for one that inject has loaded. It prints
//! `pid N` and `ready`, captures itself about 50 times a second while it computes, and ends when
//! FILE exists, or after 10 s. Then it prints `name value` lines, which the test reads.

use std::hint::black_box;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agent::{Api, Outcome};

/// The tag of the captures: `stk dump --tag 7`.
const TAG: u64 = 7;

/// What the calls answered.
#[derive(Default)]
struct Answers {
    done: u32,
    not_recording: u32,
    no_agent: u32,
    other: u32,
}

impl Answers {
    fn count(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Done => &mut self.done,
            Outcome::NotRecording => &mut self.not_recording,
            Outcome::NoAgent => &mut self.no_agent,
            Outcome::Dropped | Outcome::Refused => &mut self.other,
        } += 1;
    }
}

/// Collatz's steps from `number` to 1, captured at depths of recursion.
#[inline(never)]
fn collatz(api: &Api, answers: &mut Answers, number: u64, steps: u32) -> u32 {
    if number == 1 {
        answers.count(api.capture(TAG));
        return steps;
    }
    let next = if number.is_multiple_of(2) { number / 2 } else { 3 * number + 1 };
    black_box(collatz(api, answers, black_box(next), steps + 1))
}

#[inline(never)]
fn innermost(api: &Api, pcs: &mut [usize]) -> Option<usize> {
    black_box(api.backtrace(pcs, 0))
}

/// Whether an address lies shortly behind the beginning of `innermost`.
fn is_in_innermost(address: usize) -> bool {
    let begins = innermost as fn(&Api, &mut [usize]) -> Option<usize> as usize;
    (begins..begins + 512).contains(&address)
}

fn main() -> ExitCode {
    let (mut agent, mut until) = (None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--until" => until = arguments.next().map(PathBuf::from),
            _ => agent = Some(argument),
        }
    }
    println!("pid {}", std::process::id());
    println!("ready");
    let begun = Instant::now();
    let most = Duration::from_secs(if until.is_some() { 300 } else { 10 });
    let over = || begun.elapsed() > most || until.as_ref().is_some_and(|file| file.exists());
    let (mut captures, mut marks, mut named) = (Answers::default(), Answers::default(), Answers::default());
    let mut api = agent.as_deref().map_or_else(Api::find, Api::load);
    loop {
        if !api.is_loaded() && agent.is_none() {
            // inject may come at any time.
            api = Api::find();
        }
        named.count(api.thread_name("collatz ä"));
        marks.count(api.mark("a round begins: ä"));
        black_box(collatz(&api, &mut captures, 27, 0));
        if over() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut pcs = [0; 64];
    let frames = innermost(&api, &mut pcs);
    println!("loaded {}", u8::from(api.is_loaded()));
    println!("frames {}", frames.map_or(-1, |frames| frames as i64));
    println!("innermost_first {}", u8::from(is_in_innermost(pcs[0])));
    for (name, answers) in [("capture", &captures), ("mark", &marks), ("thread_name", &named)] {
        let Answers { done, not_recording, no_agent, other } = answers;
        println!("{name}_done {done}\n{name}_not_recording {not_recording}");
        println!("{name}_no_agent {no_agent}\n{name}_other {other}");
    }
    println!("end");
    ExitCode::SUCCESS
}
