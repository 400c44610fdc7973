//! Questions beyond the lists that every trace gets, and their answers. What a trace adds to an
//! answer is summed first, so that one answer can be of several traces.

use super::call_tree::{CallTreeStats, Direction, TreeLimits, call_tree};
use super::calls::{CallSums, FunctionName};
use super::groups::{GroupStats, GroupSums, GroupTable, Recorded, SortBy, ThreadValues, span_ns};
use super::keys::GroupKey;
use super::page::{AnswerTotal, Page, names_module};
use super::{StatsOptions, group_text, tree_text};
use serde::Serialize;
use std::io;
use stk_profile::profile::{Batch, Category, FrameName, FunctionPattern, Functions, Profile, Runs, spans};

/// What is requested.
#[derive(Clone, Debug)]
pub enum Subject {
    /// The call tree.
    Tree,
    /// Who calls the functions that match.
    Callers(FunctionPattern),
    /// What the functions that match call.
    Callees(FunctionPattern),
    /// The samples by these keys.
    Groups(Vec<GroupKey>),
}

/// A question, and how much of its answer is shown.
#[derive(Clone, Debug)]
pub struct Question {
    pub subject: Subject,
    pub limits: TreeLimits,
    pub sort: SortBy,
    /// Rows of a list.
    pub top: usize,
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    CallTree(CallTreeStats),
    Groups(GroupStats),
}

/// What one trace, or several, add to an answer.
#[derive(Debug)]
pub struct AnswerSums(AnswerKindSums);

#[derive(Debug)]
enum AnswerKindSums {
    Calls(CallSums),
    Groups(GroupTable),
}

impl AnswerSums {
    pub(super) fn calls(sums: CallSums) -> AnswerSums {
        AnswerSums(AnswerKindSums::Calls(sums))
    }

    pub(super) fn groups(table: GroupTable) -> AnswerSums {
        AnswerSums(AnswerKindSums::Groups(table))
    }

    /// Adds a trace to the group of these values.
    pub(super) fn add_recorded(&mut self, values: &[String], recorded: Recorded) {
        if let AnswerKindSums::Groups(table) = &mut self.0 {
            table.add_recorded(values, recorded);
        }
    }

    /// The same, for the sums of several traces.
    pub(super) fn of_first(self) -> AnswerSums {
        match self.0 {
            AnswerKindSums::Groups(table) => AnswerSums(AnswerKindSums::Groups(table.without_timelines())),
            calls => AnswerSums(calls),
        }
    }

    /// Adds another trace's, for the same question.
    pub(super) fn absorb(&mut self, other: &AnswerSums) {
        match (&mut self.0, &other.0) {
            (AnswerKindSums::Calls(sums), AnswerKindSums::Calls(other)) => sums.absorb(other),
            (AnswerKindSums::Groups(table), AnswerKindSums::Groups(other)) => table.absorb(other),
            _ => {}
        }
    }

    /// The answer to the question that they were summed for.
    pub fn answer(&self, question: &Question) -> Answer {
        match &self.0 {
            AnswerKindSums::Groups(table) => Answer::Groups(table.list(question.sort, question.top)),
            AnswerKindSums::Calls(sums) => {
                let (direction, pattern) = match &question.subject {
                    Subject::Callers(pattern) => (Direction::Callers, Some(pattern)),
                    Subject::Callees(pattern) => (Direction::Callees, Some(pattern)),
                    Subject::Tree | Subject::Groups(_) => (Direction::Tree, None),
                };
                let is_chosen = |function: u32| {
                    let FunctionName { function, module } = &sums.functions()[function as usize];
                    let has_module = names_module(function, module);
                    // Patterns of functions do not look at whose code it is.
                    let name = FrameName { function, has_module, module, category: Category::Unknown };
                    pattern.is_some_and(|pattern| pattern.is_match(&name))
                };
                Answer::CallTree(call_tree(sums, direction, &is_chosen, &question.limits))
            }
        }
    }
}

/// The most spans of time of a trace.
const MOST_SPANS: usize = 10_000;

/// Refuses spans of time that are too many.
fn check_spans(runs: &Runs, keys: &[GroupKey]) -> io::Result<()> {
    let Some(length_ns) = span_ns(keys) else { return Ok(()) };
    if spans(runs, length_ns, MOST_SPANS)?.is_some() {
        return Ok(());
    }
    let text = format!(
        "--group-by time makes more than {MOST_SPANS} spans: choose longer ones, or a part of the trace"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Sums for a question, filled run by run.
pub(super) struct QuestionSums<'a> {
    groups: Option<GroupSums<'a>>,
}

impl<'a> QuestionSums<'a> {
    pub(super) fn new(
        profile: &'a Profile,
        functions: &'a Functions,
        runs: &Runs,
        options: &StatsOptions,
        question: &Question,
        given: Option<&'a ThreadValues>,
    ) -> io::Result<QuestionSums<'a>> {
        let groups = match &question.subject {
            Subject::Groups(keys) => {
                check_spans(runs, keys)?;
                let (weight, running_only) = (options.weight, options.running_only);
                Some(GroupSums::new(profile, functions, keys, weight, running_only, runs.span(), given))
            }
            Subject::Tree | Subject::Callers(_) | Subject::Callees(_) => None,
        };
        Ok(QuestionSums { groups })
    }

    pub(super) fn add(&mut self, batch: &Batch<'_>) {
        if let Some(groups) = &mut self.groups {
            batch.runs.iter().for_each(|run| groups.add(batch.thread, run));
        }
    }

    /// The sums; of a call tree, `calls` makes them.
    pub(super) fn finish(self, cpu_known: bool, calls: impl FnOnce() -> CallSums) -> AnswerSums {
        match self.groups {
            Some(groups) => AnswerSums::groups(groups.finish(cpu_known)),
            None => AnswerSums::calls(calls()),
        }
    }
}

impl Answer {
    /// Prints an answer with its heading.
    pub(super) fn print(&self, of: AnswerTotal, page: &mut Page<'_>) -> io::Result<()> {
        let title = of.whole.weight.title();
        match self {
            Answer::CallTree(tree) => {
                page.heading(&tree_text::heading(tree, of))?;
                tree_text::print(tree, of, page)
            }
            Answer::Groups(groups) => {
                page.heading(&group_text::heading(groups, title))?;
                group_text::print(groups, of.whole, page)
            }
        }
    }
}

/// The keys that a list has for those asked: a function stands with its module.
pub fn with_modules(keys: &[GroupKey]) -> Vec<GroupKey> {
    let mut all: Vec<GroupKey> = Vec::new();
    for key in keys {
        if !all.contains(key) {
            all.push(key.clone());
        }
        if *key == GroupKey::Function && !keys.contains(&GroupKey::Module) {
            all.push(GroupKey::Module);
        }
    }
    all
}
