//! The options of `stk stats` that ask something.

use super::super::values::{choice, default_name};
use super::super::{Usage, terminal_lines};
use super::Format;
use crate::times::{self, TimeArg};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::ffi::OsStr;
use stk_output::stats::{GroupKey, Question, SortBy, StatsOptions, Subject, TreeLimits, with_modules};
use stk_profile::profile::FunctionPattern;

/// A question. There can be one.
#[derive(clap::Args, Debug)]
#[group(skip)]
pub(super) struct QuestionArgs {
    /// Print the call tree. Functions that only call one other are in one line; the lightest are
    /// summed
    #[arg(long, group = "question", help_heading = "Questions")]
    tree: bool,
    /// Print who calls the functions that match, from them outwards. Recursion counts once. RE is
    /// as for --function
    #[arg(long, value_name = "RE", group = "question", help_heading = "Questions")]
    callers: Option<FunctionPattern>,
    /// Print what the functions that match call
    #[arg(long, value_name = "RE", group = "question", help_heading = "Questions")]
    callees: Option<FunctionPattern>,
    /// List the samples by this, or by several, separated by commas
    #[arg(
        long,
        value_parser = GroupKeys,
        value_name = "KEY",
        value_delimiter = ',',
        group = "question",
        help_heading = "Questions"
    )]
    group_by: Vec<GroupKey>,
    /// Functions below each other in a tree
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Questions")]
    depth: Option<u16>,
    /// The order of the list of --group-by
    #[arg(
        long,
        value_parser = choice::<SortBy>(),
        default_value = default_name::<SortBy>(),
        value_name = "WHAT",
        requires = "group_by",
        help_heading = "Questions"
    )]
    sort: SortBy,
}

/// Part of a tree below which functions are summed, where nothing else is said.
const LEAST: f64 = 0.005;
/// Lines of a tree where no terminal limits them.
const LINES: usize = 80;
/// The fewest lines of a tree, however low the terminal.
const LEAST_LINES: usize = 8;
/// Functions of a tree for programs.
const FUNCTIONS: usize = 1000;

impl QuestionArgs {
    /// The question, if there is one. `top` as it was given; `traces`: how many are answered as
    /// one.
    pub(super) fn question(
        &self,
        format: Format,
        top: Option<usize>,
        traces: usize,
    ) -> anyhow::Result<Option<Question>> {
        let subject = match self {
            QuestionArgs { tree: true, .. } => Subject::Tree,
            QuestionArgs { callers: Some(pattern), .. } => Subject::Callers(pattern.clone()),
            QuestionArgs { callees: Some(pattern), .. } => Subject::Callees(pattern.clone()),
            QuestionArgs { group_by, .. } if !group_by.is_empty() => Subject::Groups(keys(group_by, traces)),
            _ if format == Format::Csv => Subject::Groups(keys(&[GroupKey::Function], traces)),
            _ => return self.without().map(|()| None),
        };
        if matches!(subject, Subject::Groups(_)) {
            self.without()?;
        }
        let limits = self.limits(format, top, traces);
        Ok(Some(Question { subject, limits, sort: self.sort, top: rows(format, top) }))
    }

    /// The question for the functions.
    pub(super) fn functions(
        &self,
        format: Format,
        top: Option<usize>,
        traces: usize,
    ) -> anyhow::Result<Question> {
        self.without()?;
        let subject = Subject::Groups(keys(&[GroupKey::Function], traces));
        let limits = self.limits(format, top, traces);
        Ok(Question { subject, limits, sort: self.sort, top: rows(format, top) })
    }

    /// Refuses what only trees have.
    fn without(&self) -> anyhow::Result<()> {
        match self.depth {
            Some(_) => Err(Usage("--depth is for --tree, --callers and --callees".into()).into()),
            None => Ok(()),
        }
    }

    fn limits(&self, format: Format, top: Option<usize>, traces: usize) -> TreeLimits {
        let depth = self.depth.map_or(usize::MAX, usize::from);
        let all = TreeLimits { functions: usize::MAX, lines: usize::MAX, depth, least: 0.0 };
        match (top, format) {
            (Some(0), _) => all,
            (Some(functions), _) => TreeLimits { functions, ..all },
            (None, Format::Json | Format::Csv) => TreeLimits { functions: FUNCTIONS, ..all },
            (None, Format::Table) => {
                // The text before the tree, of which two lines may be wider than the terminal, and
                // the prompt behind it.
                let others = if traces > 1 { traces + 6 } else { 8 };
                let lines = terminal_lines().map(|lines| lines.saturating_sub(others).max(LEAST_LINES));
                TreeLimits { lines: lines.unwrap_or(LINES), least: LEAST, ..all }
            }
        }
    }
}

/// Rows of a list.
fn rows(format: Format, top: Option<usize>) -> usize {
    match (top, format) {
        (None, Format::Csv) | (Some(0), _) => usize::MAX,
        (None, _) => StatsOptions::default().top,
        (Some(rows), _) => rows,
    }
}

/// Takes the names of keys on the command line.
#[derive(Clone)]
struct GroupKeys;

/// Stands for the keys of all labels in the list of keys.
const ANY_LABEL: &str = "label:KEY";

/// Stands for the keys of spans of time in the list of keys.
const ANY_TIME: &str = "time=LENGTH";

/// `time=10s`.
fn time_key(name: &str) -> Option<GroupKey> {
    match times::parse(name.strip_prefix("time=")?) {
        Ok(TimeArg::SinceStart(ns)) if ns > 0 => Some(GroupKey::Time(ns)),
        _ => None,
    }
}

impl TypedValueParser for GroupKeys {
    type Value = GroupKey;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<GroupKey, clap::Error> {
        let name = value.to_string_lossy();
        match GroupKey::of_name(&name).or_else(|| time_key(&name)) {
            Some(key) => Ok(key),
            None => {
                let names = GroupKey::NAMED.iter().map(|named| named.1).chain([ANY_TIME, ANY_LABEL]);
                let known = PossibleValuesParser::new(names);
                // One of the names alone would have been a key: this is the error with the list.
                let named = known.parse_ref(command, arg, value)?;
                Err(command.clone().error(clap::error::ErrorKind::InvalidValue, format!("{named}: name it")))
            }
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let named = GroupKey::NAMED.iter().map(|(_, name, help)| PossibleValue::new(*name).help(*help));
        let label = PossibleValue::new(ANY_LABEL).help("What the label KEY of recordings says: label:build");
        let time = PossibleValue::new(ANY_TIME).help("Spans of time since each trace's start: time=10s");
        Some(Box::new(named.chain([time, label])))
    }
}

/// The keys of a list. Numbers of threads mean nothing without their traces.
fn keys(asked: &[GroupKey], traces: usize) -> Vec<GroupKey> {
    let mut keys = with_modules(asked);
    if traces > 1 && keys.contains(&GroupKey::Thread) && !keys.contains(&GroupKey::Trace) {
        keys.insert(0, GroupKey::Trace);
    }
    keys
}
