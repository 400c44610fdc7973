//! Scores the unwinder against truth from a processor emulator and prints one line of JSON.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use stk_tests::oracle::{self, Known, Score, States, Wrong, piece};

const USAGE: &str = "usage: unwind-truth IMAGE STATES [--pdb FILE] [--trace-only]

Walks every state (or call chain) of STATES over IMAGE and prints one line of JSON: how many are right.
  --pdb FILE     the image's PDB: x86 frames need it
  --trace-only   give the unwinder what a trace embeds: no code but 64 bytes at the instruction pointer
  --piece FILE   write a small part of STATES, with what of IMAGE it needs, to FILE (tests/data/unwind)";

/// Approximate number of states in a piece.
const STATES_IN_PIECE: usize = 320;

struct Arguments {
    image: PathBuf,
    states: PathBuf,
    pdb: Option<PathBuf>,
    trace_only: bool,
    piece: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<Arguments> {
    let mut files = Vec::new();
    let mut pdb = None;
    let mut trace_only = false;
    let mut piece = None;
    let mut rest = std::env::args_os().skip(1);
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("--pdb") => pdb = Some(PathBuf::from(rest.next().context("--pdb wants a file")?)),
            Some("--trace-only") => trace_only = true,
            Some("--piece") => piece = Some(PathBuf::from(rest.next().context("--piece wants a file")?)),
            Some(option) if option.starts_with('-') => bail!("unknown option {option}"),
            _ => files.push(PathBuf::from(argument)),
        }
    }
    let [image, states] =
        <[PathBuf; 2]>::try_from(files).map_err(|_| anyhow::anyhow!("two files are wanted"))?;
    Ok(Arguments { image, states, pdb, trace_only, piece })
}

fn run(arguments: &Arguments) -> Result<Value> {
    if let Some(out) = &arguments.piece {
        return write_piece(arguments, out);
    }
    let states = oracle::read(&arguments.states)?;
    let whole = oracle::load_image(&arguments.image, Known::Everything, arguments.pdb.as_deref())?;
    let score = if arguments.trace_only {
        let tables = oracle::load_image(&arguments.image, Known::Tables, arguments.pdb.as_deref())?;
        oracle::score(&tables, Some(&whole), &states)
    } else {
        oracle::score(&whole, None, &states)
    };
    let score =
        score.with_context(|| format!("{} and {}", arguments.image.display(), arguments.states.display()))?;
    Ok(report(&states, &score))
}

/// Writes a piece and scores it as the test will.
fn write_piece(arguments: &Arguments, out: &Path) -> Result<Value> {
    let bytes = oracle::decompress(&arguments.states)?;
    let states = oracle::parse(&bytes).with_context(|| arguments.states.display().to_string())?;
    let parts = oracle::take_apart(&arguments.image, Known::Everything, arguments.pdb.as_deref())?;
    piece::write(&parts, &states, &bytes, STATES_IN_PIECE, out)?;
    let piece = piece::read(out)?;
    let score = oracle::score(&piece.image, None, &piece.states)?;
    Ok(report(&piece.states, &score))
}

fn report(states: &States, score: &Score) -> Value {
    json!({
        "arch": states.header.arch.as_str(),
        "states": score.states,
        "right": score.right,
        "by_tag": counts(score.by_tag.iter()),
        "by_trust": counts(score.by_trust.iter()),
        "wrong_examples": score.wrong.iter().map(example).collect::<Vec<_>>(),
        "frames_per_second": score.frames_per_second.round(),
    })
}

fn counts<'a>(of: impl Iterator<Item = (&'a &'static str, &'a (u64, u64))>) -> Map<String, Value> {
    of.map(|(name, (states, right))| ((*name).to_owned(), json!({"states": states, "right": right})))
        .collect()
}

fn example(wrong: &Wrong) -> Value {
    let caller = |truth: &oracle::Truth| {
        json!({
            "ip": format!("{:#x}", truth.ip),
            "sp": format!("{:#x}", truth.sp),
            "nonvolatile": truth.nonvolatile.iter().map(|value| format!("{value:#x}")).collect::<Vec<_>>(),
        })
    };
    json!({
        "rva": format!("{:#x}", wrong.rva),
        "caller": wrong.caller,
        "tags": wrong.tags,
        "truth": caller(&wrong.truth),
        "found": wrong.found.as_ref().map(|(found, _)| caller(found)),
        "trust": wrong.found.as_ref().map(|(_, trust)| trust.as_str()),
        "stop": wrong.stop.as_str(),
    })
}
