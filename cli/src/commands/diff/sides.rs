//! Which traces are on which side.

use super::DiffArgs;
use crate::commands::datasets::DatasetArg;
use crate::commands::{Exit, Usage, inputs};
use crate::diff::Side;
use std::path::PathBuf;

/// What a side names.
pub(super) enum SideInput {
    Trace(PathBuf),
    Dataset(DatasetArg),
}

/// The traces of both sides, in the order of the command line.
///
/// # Errors
///
/// A usage error if a side is not named, or named twice.
pub(super) fn sides(args: &DiffArgs) -> anyhow::Result<(Vec<(Side, SideInput)>, Exit)> {
    let [base, new] = match args.sides.as_slice() {
        [base, new] if args.base.is_empty() && args.new.is_empty() => [vec![base.clone()], vec![new.clone()]],
        [] if !args.base.is_empty() && !args.new.is_empty() => [args.base.clone(), args.new.clone()],
        [] => {
            return Err(Usage("two sides are compared: give BASE and NEW, or --base and --new".into()).into());
        }
        [_] => return Err(Usage("one side is named: what is it compared with?".into()).into()),
        [_, _, _, ..] => {
            let text =
                "three and more files: say which are which with --base FILE… --new FILE…, or quote patterns";
            return Err(Usage(text.into()).into());
        }
        _ => {
            let text = "give either BASE and NEW, or --base and --new";
            return Err(Usage(text.into()).into());
        }
    };
    let mut files = Vec::new();
    let mut exit = Exit::Ok;
    for (side, named) in [(Side::Base, base), (Side::New, new)] {
        let mut traces = Vec::new();
        for argument in named {
            match DatasetArg::of(&argument)? {
                Some(dataset) => files.push((side, SideInput::Dataset(dataset))),
                None => traces.push(argument),
            }
        }
        let (found, ending) = inputs::traces(&traces);
        exit = exit.worse(ending);
        let found = args.profile.select.process.traces(found)?;
        files.extend(found.into_iter().map(|file| (side, SideInput::Trace(file))));
    }
    Ok((files, exit))
}
