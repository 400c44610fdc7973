//! A process that converts traces of a batch: `stk batch-worker`, which only `stk batch` starts.
//!
//! It reads orders from its standard input. When that ends, it removes what is half made and ends,
//! whatever it is at: so it stops when the batch wants it to, and when the batch was killed.

use super::super::convert::{self, Converter, Keys, StepObserver};
use super::super::{Cli, Command, Exit, Progress, pool};
use super::log::result_of;
use crate::batch::{Answer, Lost, Order, Setup, Stage};
use anyhow::{Context, bail};
use clap::Parser;
use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use stk_base::interrupt;

pub(in super::super) fn run() -> anyhow::Result<Exit> {
    let mut first = String::new();
    io::stdin().read_line(&mut first)?;
    let setup: Setup =
        serde_json::from_str(&first).context("stk batch starts this command: it has no use otherwise")?;
    let Command::Batch(args) = Cli::try_parse_from(setup.args)?.command else {
        bail!("the command line is not that of a batch");
    };
    if let Some(bytes) = args.memory_limit {
        limit_memory(bytes)?;
    }
    args.shard.iter().for_each(|shard| interrupt::set_owner(&shard.to_string()));
    let (convert, out) = args.conversion()?;
    let format = convert::format(&convert, false)?;
    let keys = Keys::new(&convert, format);
    let silent = Progress::silent();
    let dataset = convert::dataset_of_batch(&out, format)?;
    let pool = pool(Some(setup.threads))?;
    let orders = orders();
    send(&Answer::Ready);
    while let Ok(Order { files, lost }) = orders.recv() {
        let files: Vec<PathBuf> = files.into_iter().map(PathBuf::from).collect();
        let steps = Steps { files: &files, lost };
        let converter = Converter {
            args: &convert,
            format,
            progress: &silent,
            keys: Some(&keys),
            // Its memory may have a limit, which counts for each trace alike.
            images: None,
            limit: args.time_limit,
            watch: Some(&steps),
        };
        let tasks = convert::tasks_of_batch(&out, &files, format, dataset.as_ref(), &|_| None);
        let outcomes =
            pool.install(|| tasks.iter().flat_map(|task| convert::run_task(&converter, task)).collect());
        let outcomes: Vec<(usize, convert::ConvertOutcome)> = outcomes;
        let results = outcomes.iter().map(|(file, outcome)| (*file, result_of(outcome)));
        send(&Answer::Done(results.collect()));
    }
    Ok(Exit::Ok)
}

/// The orders, as they come.
fn orders() -> Receiver<Order> {
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str(&line) else { break };
            if sender.send(order).is_err() {
                break;
            }
        }
        interrupt::end_quietly(Exit::Ok as i32);
    });
    orders
}

/// Reports to the batch. If it is gone, there is nothing to do.
fn send(answer: &Answer) {
    let mut out = io::stdout().lock();
    let text = serde_json::to_string(answer).map_err(io::Error::from);
    if text.and_then(|text| writeln!(out, "{text}")).and_then(|()| out.flush()).is_err() {
        drop(out);
        interrupt::end_quietly(Exit::Failure as i32);
    }
}

/// Reports to the batch which step begins, and refuses those at which another process ended.
struct Steps<'a> {
    files: &'a [PathBuf],
    lost: Vec<Lost>,
}

impl StepObserver for Steps<'_> {
    fn begin(&self, path: &Path, stage: Stage) -> anyhow::Result<()> {
        let wanted: &OsString = &path.as_os_str().to_owned();
        let Some(file) = self.files.iter().position(|file| file.as_os_str() == wanted) else {
            return Ok(());
        };
        if let Some(lost) = self.lost.iter().find(|lost| lost.file == file && lost.stage == stage) {
            return Err(lost.result.clone().into());
        }
        send(&Answer::Begun { file, stage });
        Ok(())
    }
}

/// Has the system refuse this process more memory of its own: heap, stacks and copied pages. Files
/// that are mapped to be read do not count.
#[cfg(target_os = "linux")]
fn limit_memory(bytes: u64) -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::Data, limit).context("--memory-limit: the system does not set the limit")
}

#[cfg(not(target_os = "linux"))]
fn limit_memory(_: u64) -> anyhow::Result<()> {
    bail!("--memory-limit is for Linux")
}
